//! The keys of a call that deletes objects: as many calls as they need, and no memory for more than one call may have.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_wire::{
    message::{encode, not_a_message},
    object_call::KEYS_BYTES,
};
use minicbor::Decoder;

/// Keys of one call that deletes objects, at most.
const MAX_KEYS: usize = 4096;

/// Bytes of a key beside its text.
const KEY_HEAD_BYTES: usize = 3;

/// Returns the keys of a delete as they are sent, in as many calls as they need.
pub(super) fn key_batches(keys: &[String]) -> Vec<&[String]> {
    let mut batches = Vec::new();
    let mut left = keys;
    while !left.is_empty() {
        let mut bytes = KEY_HEAD_BYTES;
        let fits = |key: &&String| {
            bytes += key.len() + KEY_HEAD_BYTES;
            bytes <= KEYS_BYTES
        };
        let count = left.iter().take(MAX_KEYS).take_while(fits).count();
        let (batch, rest) = left.split_at(count.max(1));
        batches.push(batch);
        left = rest;
    }
    batches
}

/// Returns the keys of a batch, as they are sent.
pub(super) fn encode_keys(keys: &[String]) -> Vec<u8> {
    encode(&keys)
}

/// Returns the keys of a delete. The storage refuses those that cannot be used, and deletes the others.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if they are none or too many.
pub(super) fn decode_keys(bytes: &[u8]) -> Result<Vec<String>> {
    let refused = |error| not_a_message().because(error);
    let mut decoder = Decoder::new(bytes);
    let count = decoder.array().map_err(refused)?.unwrap_or(u64::MAX);
    if count > MAX_KEYS as u64 {
        let message = format!("cannot delete {count} objects with one call");
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let mut keys = Vec::new();
    for _ in 0..count {
        let key = decoder.str().map_err(refused)?;
        keys.push(key.to_owned());
    }
    match decoder.position() == bytes.len() {
        true => Ok(keys),
        false => Err(not_a_message().because("bytes follow it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_keys_fit_their_calls_and_are_all_keys() {
        let short = |count| {
            (0..count)
                .map(|number| number.to_string())
                .collect::<Vec<_>>()
        };
        let long = |count| vec!["k".repeat(512); count];
        for keys in [short(0), short(1), short(10_000), long(5000)] {
            let batches = key_batches(&keys);
            assert_eq!(batches.concat(), keys);
            for batch in batches {
                let bytes = encode_keys(batch);
                assert!(bytes.len() <= KEYS_BYTES, "{}", bytes.len());
            }
        }
    }

    #[test]
    fn keys_are_counted_before_memory_is_taken_for_them() {
        let keys = vec!["a/b".to_owned(), "c".to_owned()];
        assert_eq!(decode_keys(&encode_keys(&keys)).unwrap(), keys);
        let many = encode_keys(&vec![String::new(); MAX_KEYS + 1]);
        assert_eq!(decode_keys(&many).unwrap_err().kind, ErrorKind::Corrupt);
        assert!(decode_keys(&[0x9f, 0xff]).is_err());
        assert!(decode_keys(&[0x80, 0]).is_err());
    }
}
