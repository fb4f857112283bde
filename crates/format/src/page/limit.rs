//! Limits on the content of a page: many times what fullbore writes, and small enough to decode in
//! memory.
//!
//! A list of numbers is many times larger in memory than in CBOR, and zstd compresses zeros to
//! almost no bytes. Without limits, 4 MB of a manifest could become gigabytes.

use super::{MAX_EXTENTS, MAX_RECORDS};
use minicbor::{Decoder, data::Type, decode::Error};

const RECORDS: u64 = 8 * MAX_RECORDS as u64;
const EXTENTS: u64 = 16 * MAX_EXTENTS as u64;
const XATTRS: u64 = 1 << 21;
const RUNS: u64 = 1 << 22;
/// CRCs and chunks, which are more numerous than extents.
const PARTS: u64 = 1 << 24;

/// Returns whether every column of a page is within its limit. Decodes no column.
pub(super) fn is_within_limits(plain: &[u8]) -> Result<bool, Error> {
    let mut decoder = Decoder::new(plain);
    let Some(columns) = decoder.array()? else {
        return Ok(false);
    };
    for column in 0..columns {
        let len = match decoder.datatype()? {
            Type::Array => decoder.probe().array()?.unwrap_or(u64::MAX),
            // fullbore never writes lists of unknown length.
            Type::ArrayIndef | Type::BytesIndef => u64::MAX,
            Type::Bytes if column == KINDS => decoder.probe().bytes()?.len() as u64,
            _ => 0,
        };
        if len > max_items(column) {
            return Ok(false);
        }
        if !skip_item(&mut decoder, DEPTH)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Maximum depth of nested lists, also in columns of later versions.
const DEPTH: u32 = 8;

/// Skips one item. Refuses items without a length and deeper nesting, because the way back out
/// takes memory.
///
/// # Errors
/// The decoder's error if the bytes are not CBOR. `Ok(false)` if the item is refused.
fn skip_item(decoder: &mut Decoder<'_>, depth: u32) -> Result<bool, Error> {
    let items = match decoder.datatype()? {
        Type::Array => decoder.array()?,
        Type::Map => decoder.map()?.map(|pairs| pairs.saturating_mul(2)),
        Type::Tag => {
            decoder.tag()?;
            Some(1)
        }
        Type::ArrayIndef | Type::MapIndef | Type::BytesIndef | Type::StringIndef => None,
        _ => return decoder.skip().map(|()| true),
    };
    let Some(items) = items.filter(|_| depth > 0) else {
        return Ok(false);
    };
    for _ in 0..items {
        if !skip_item(decoder, depth - 1)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The column with one byte for each record.
const KINDS: u64 = 2;

fn max_items(column: u64) -> u64 {
    match column {
        12 => RUNS,
        15 => XATTRS,
        20..=27 => EXTENTS,
        32 | 34 => PARTS,
        _ => RECORDS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_without_a_length_or_too_deep_are_not_passed_over() {
        let deep = |depth: usize| [vec![0x81; depth + 1], vec![1]].concat(); // columns, and lists in the first
        for (plain, is_right) in [
            (vec![0x81, 0x82, 1, 2], true),
            (vec![0x81, 0x81, 0x9f, 0xff], false),
            (vec![0x81, 0x81, 0xbf, 0xff], false),
            (deep(8), true),
            (deep(9), false),
        ] {
            assert_eq!(is_within_limits(&plain).unwrap(), is_right, "{plain:x?}");
        }
        assert!(is_within_limits(&[0x81, 0x82, 1]).is_err());
    }
}
