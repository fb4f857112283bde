//! How much a page may hold: many times what is ever written, and so little that it fits memory when it is decoded.
//!
//! A list of numbers is many times as large in memory as in CBOR, and zeros are nothing at all to zstd: without limits 4 MB of a
//! manifest become gigabytes.

use super::{MAX_EXTENTS, MAX_RECORDS};
use minicbor::{Decoder, data::Type, decode::Error};

const RECORDS: u64 = 8 * MAX_RECORDS as u64;
const EXTENTS: u64 = 16 * MAX_EXTENTS as u64;
const XATTRS: u64 = 1 << 21;
const RUNS: u64 = 1 << 22;
/// CRCs and chunks: there are more of them than extents.
const PARTS: u64 = 1 << 24;

/// Does no column of a page have more than there can be? Nothing is decoded by this.
pub(super) fn fits(plain: &[u8]) -> Result<bool, Error> {
    let mut decoder = Decoder::new(plain);
    let Some(columns) = decoder.array()? else { return Ok(false) };
    for column in 0..columns {
        let len = match decoder.datatype()? {
            Type::Array => decoder.probe().array()?.unwrap_or(u64::MAX),
            // Nobody writes lists whose end is not known.
            Type::ArrayIndef | Type::BytesIndef => u64::MAX,
            Type::Bytes if column == KINDS => decoder.probe().bytes()?.len() as u64,
            _ => 0,
        };
        if len > most(column) {
            return Ok(false);
        }
        decoder.skip()?;
    }
    Ok(true)
}

/// The column that has a byte for each record.
const KINDS: u64 = 2;

fn most(column: u64) -> u64 {
    match column {
        12 => RUNS,
        15 => XATTRS,
        20..=27 => EXTENTS,
        32 | 34 => PARTS,
        _ => RECORDS,
    }
}
