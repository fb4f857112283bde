//! A limit of the values in CBOR, for whatever another host says.
//!
//! One byte may be a value that takes 24 bytes or more once it is decoded, so the values are counted
//! before any memory is taken for them.

use minicbor::{Decode, Decoder};
use std::fmt;

/// Why bytes are not the value that was expected.
#[derive(Debug)]
pub enum CborFault {
    /// They have more values than may be there, or an end is missing.
    TooMany(usize),
    /// Bytes follow the value.
    Longer,
    /// They are something else.
    Other(minicbor::decode::Error),
}

impl fmt::Display for CborFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(most) => write!(f, "it has more than {most} values, or is cut"),
            Self::Longer => f.write_str("bytes follow it"),
            Self::Other(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CborFault {}

/// Decodes the one value that the bytes are, if it consists of at most `max_values` values. A list
/// counts as one, and so does each value in it.
///
/// # Errors
/// A [`CborFault`].
pub fn decode_bounded<'b, T: Decode<'b, ()>>(
    bytes: &'b [u8],
    max_values: usize,
) -> Result<T, CborFault> {
    check_values(bytes, max_values)?;
    let mut decoder = Decoder::new(bytes);
    let value = decoder.decode().map_err(CborFault::Other)?;
    match decoder.position() == bytes.len() {
        true => Ok(value),
        false => Err(CborFault::Longer),
    }
}

/// Checks that bytes consist of at most `max_values` values of definite length.
///
/// # Errors
/// [`CborFault::TooMany`].
pub fn check_values(bytes: &[u8], max_values: usize) -> Result<(), CborFault> {
    count_values(bytes, max_values).map(drop)
}

/// Counts the values of bytes, at most `max_values` of definite length.
///
/// # Errors
/// [`CborFault::TooMany`].
pub fn count_values(mut bytes: &[u8], max_values: usize) -> Result<usize, CborFault> {
    for counted in 0..max_values {
        if bytes.is_empty() {
            return Ok(counted);
        }
        bytes = after_value(bytes).ok_or(CborFault::TooMany(max_values))?;
    }
    match bytes.is_empty() {
        true => Ok(max_values),
        false => Err(CborFault::TooMany(max_values)),
    }
}

/// The bytes behind a value; behind the beginning of a list, those of its values.
fn after_value(bytes: &[u8]) -> Option<&[u8]> {
    let (first, rest) = bytes.split_first()?;
    let (number, rest) = match first & 31 {
        small @ ..24 => (u64::from(small), rest),
        wide @ 24..28 => {
            let (number, rest) = rest.split_at_checked(1 << (wide - 24))?;
            let number = number
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte));
            (number, rest)
        }
        _ => return None,
    };
    let is_text = matches!(first >> 5, 2 | 3);
    let skipped = if is_text { number } else { 0 };
    rest.get(usize::try_from(skipped).ok()?..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use minicbor::bytes::ByteVec;
    use proptest::prelude::*;

    #[test]
    fn a_list_of_more_values_than_allowed_is_refused_before_it_is_decoded() {
        let texts = minicbor::to_vec(vec![""; 1000]).unwrap();
        assert_eq!(
            decode_bounded::<Vec<&str>>(&texts, 1001).unwrap().len(),
            1000
        );
        let refused = decode_bounded::<Vec<&str>>(&texts, 1000).unwrap_err();
        assert!(matches!(refused, CborFault::TooMany(1000)), "{refused}");
        // A length that is claimed and not there.
        let claimed = [&[0x9a, 0xff, 0xff, 0xff, 0xff][..], &[0x60; 9]].concat();
        assert!(decode_bounded::<Vec<&str>>(&claimed, 8).is_err());
        assert!(decode_bounded::<ByteVec>(&[0x5a, 0, 0, 1, 0, 1], 8).is_err());
        assert!(decode_bounded::<Vec<&str>>(&[0x9f, 0x60, 0xff], 8).is_err());
        assert!(matches!(
            decode_bounded::<u64>(&[1, 1], 8),
            Err(CborFault::Longer)
        ));
    }

    proptest! {
        #[test]
        fn values_are_counted_as_they_were_written(
            rows in proptest::collection::vec((any::<String>(), any::<u64>(), any::<Option<i32>>()), 0..40),
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        ) {
            let value = (rows, ByteVec::from(bytes));
            let encoded = minicbor::to_vec(&value).unwrap();
            let values = 3 + 4 * value.0.len();
            prop_assert!(check_values(&encoded, values).is_ok());
            prop_assert!(check_values(&encoded, values - 1).is_err());
        }

        #[test]
        fn any_bytes_are_counted_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = check_values(&bytes, bytes.len());
        }
    }
}
