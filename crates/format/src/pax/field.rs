//! The fields of a header block: positions, numbers, checksum.
//!
//! Sources: POSIX.1-2017 `pax`, "ustar Interchange Format"; base 256 and the sparse fields are from
//! GNU tar's `tar.h`.

use super::BLOCK;
use std::ops::Range;

/// A header block.
pub(super) type Block = [u8; BLOCK];

pub(super) const NAME: Range<usize> = 0..100;
pub(super) const MODE: Range<usize> = 100..108;
pub(super) const UID: Range<usize> = 108..116;
pub(super) const GID: Range<usize> = 116..124;
pub(super) const SIZE: Range<usize> = 124..136;
pub(super) const MTIME: Range<usize> = 136..148;
pub(super) const CHECKSUM: Range<usize> = 148..156;
pub(super) const TYPEFLAG: usize = 156;
pub(super) const LINK: Range<usize> = 157..257;
/// Magic and version together.
pub(super) const MAGIC: Range<usize> = 257..265;
pub(super) const USER: Range<usize> = 265..297;
pub(super) const GROUP: Range<usize> = 297..329;
pub(super) const MAJOR: Range<usize> = 329..337;
pub(super) const MINOR: Range<usize> = 337..345;
pub(super) const PREFIX: Range<usize> = 345..500;

/// Bytes of the longest user or group name in a field that is certainly complete. GNU tar cuts a
/// longer name to 31 bytes and a NUL, Python to 32 bytes; the rest may be the name of another user.
pub(super) const MAX_SURE_OWNER: usize = 30;

/// Magic and version of POSIX.
pub(super) const POSIX: &[u8; 8] = b"ustar\x0000";
/// Magic and version of GNU's older format, which has no prefix.
pub(super) const GNU: &[u8; 8] = b"ustar  \0";

/// The largest number that `width` bytes hold in octal with a NUL at the end.
pub(super) const fn octal_max(width: usize) -> i64 {
    (1 << (3 * (width - 1))) - 1
}

/// Writes `value` in octal with a NUL, or in base 256 if it is negative or too large. `field` has
/// at least 8 bytes.
pub(super) fn put_number(field: &mut [u8], value: i64) {
    if (0..=octal_max(field.len())).contains(&value) {
        put_octal(field, value);
    } else {
        put_base256(field, value);
    }
}

fn put_octal(field: &mut [u8], mut value: i64) {
    let last = field.len() - 1;
    field[last] = 0;
    for byte in field[..last].iter_mut().rev() {
        *byte = b'0' + (value & 7) as u8;
        value >>= 3;
    }
}

/// Writes two's complement; the highest bit marks base 256.
fn put_base256(field: &mut [u8], mut value: i64) {
    for byte in field.iter_mut().rev() {
        *byte = value as u8;
        value >>= 8;
    }
    field[0] |= 0x80;
}

/// Reads a number in the form of [`put_number`] or of other tools: blanks before it, NUL or blank
/// after it. An empty field is 0.
pub(super) fn number(field: &[u8]) -> Option<i64> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => base256(field),
        _ => octal(field),
    }
}

fn octal(field: &[u8]) -> Option<i64> {
    let digits = field
        .trim_ascii_start()
        .split(|c| matches!(c, 0 | b' '))
        .next()?;
    digits.iter().try_fold(0i64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

fn base256(field: &[u8]) -> Option<i64> {
    // The bit below the mark is the sign. Fields have at most 12 bytes, 95 bits.
    let first = i128::from(field[0] & 0x7f) - if field[0] & 0x40 == 0 { 0 } else { 0x80 };
    let value = field[1..]
        .iter()
        .fold(first, |value, byte| (value << 8) | i128::from(*byte));
    i64::try_from(value).ok()
}

/// Returns the text of a field: up to a NUL, or the whole field.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|c| *c == 0).next().unwrap_or_default()
}

/// Puts the start of `text` in a field that is zero so far.
pub(super) fn put_text(field: &mut [u8], text: &[u8]) {
    let len = text.len().min(field.len());
    field[..len].copy_from_slice(&text[..len]);
}

/// Fills in the checksum: six octal digits, NUL, blank. Must be the last change of a header block.
pub(super) fn seal(block: &mut Block) {
    let (sum, _) = sums(block);
    put_octal(&mut block[CHECKSUM.start..CHECKSUM.end - 1], sum);
    block[CHECKSUM.end - 1] = b' ';
}

/// Returns whether the checksum is right. Some old tools added the bytes as signed numbers.
pub(super) fn is_sealed(block: &Block) -> bool {
    let (unsigned, signed) = sums(block);
    octal(&block[CHECKSUM]).is_some_and(|sum| sum == unsigned || sum == signed)
}

/// Returns the sums of the bytes as unsigned and as signed numbers; the checksum field counts as
/// blanks.
fn sums(block: &Block) -> (i64, i64) {
    let mut unsigned: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    let mut signed: i32 = block.iter().map(|byte| i32::from(*byte as i8)).sum();
    for byte in &block[CHECKSUM] {
        unsigned = unsigned + 32 - u32::from(*byte);
        signed = signed + 32 - i32::from(*byte as i8);
    }
    (unsigned.into(), signed.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_octal_as_long_as_they_fit() {
        let mut field = [0; 8];
        put_number(&mut field, 0o7777777);
        assert_eq!(&field, b"7777777\0");
        put_number(&mut field, 0o10000000);
        assert_eq!(field, [0x80, 0, 0, 0, 0, 0x20, 0, 0]);
        put_number(&mut field, -2);
        assert_eq!(field, [255, 255, 255, 255, 255, 255, 255, 254]);
    }

    #[test]
    fn numbers_of_other_tools_are_read() {
        for (text, value) in [
            (&b"   644 \0"[..], Some(0o644)),
            (b"0000644\0", Some(0o644)),
            (b"00000644", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"12x4567\0", None),
            (b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
        ] {
            assert_eq!(number(text), value, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_number_comes_back(value: i64, small in -0x4000_0000_0000i64..0x4000_0000_0000) {
            let mut field = [0; 12];
            put_number(&mut field, value);
            prop_assert_eq!(number(&field), Some(value));
            put_number(&mut field[..8], small);
            prop_assert_eq!(number(&field[..8]), Some(small));
        }
    }
}
