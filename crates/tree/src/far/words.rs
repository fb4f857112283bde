//! Words that are sent between hosts, as CBOR. Nothing that comes is trusted: numbers are checked where they are used.

use fullbore_format::{
    cbor::decode_bounded,
    entry::ByteRun,
    error::{Error, Result},
};
use minicbor::{Decode, Encode};

pub(super) fn encoded<T: Encode<()>>(value: &T) -> Vec<u8> {
    encoded_in(value, 0)
}

/// A value as CBOR, which has about so many bytes.
pub(super) fn encoded_in<T: Encode<()>>(value: &T, bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(bytes);
    let _ = minicbor::encode(value, &mut bytes); // a `Vec` takes all bytes
    bytes
}

/// Values in a question or an answer at most. A large file of which half a million runs have changed has 1.5 million.
pub(super) const MAX_VALUES: usize = 1 << 21;

/// The value that all of the bytes are.
///
/// # Errors
/// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt).
pub(super) fn decoded<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Result<T> {
    decode_bounded(bytes, MAX_VALUES).map_err(|fault| wrong_words(&fault.to_string()))
}

/// The error for what the other host says of a source.
pub(super) fn wrong_words(reason: &str) -> Error {
    Error::corrupt("could not read a source of another host").because(reason.to_owned())
}

/// A run: its beginning and its length.
pub(super) type RunWords = (u64, u64);

pub(super) fn run_words(runs: &[ByteRun]) -> Vec<RunWords> {
    runs.iter().map(|run| (run.offset, run.len)).collect()
}

/// Runs that are ascending, not empty, do not touch, and end within `size`.
pub(super) fn runs(words: Vec<RunWords>, size: u64) -> Result<Vec<ByteRun>> {
    let mut end = None;
    let mut runs = Vec::with_capacity(words.len());
    for (offset, len) in words {
        let is_behind = end.is_none_or(|end| offset > end);
        let next = offset.checked_add(len).filter(|next| *next <= size);
        let Some(next) = next.filter(|_| is_behind && len > 0) else {
            return Err(wrong_words("the map of a file is wrong"));
        };
        end = Some(next);
        runs.push(ByteRun { offset, len });
    }
    Ok(runs)
}
