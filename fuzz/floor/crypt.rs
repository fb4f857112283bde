//! The number of a key, which a list of members carries, without the keys.

#[allow(dead_code)]
#[path = "../../src/crypt/author.rs"]
mod author;
pub use author::Author;

/// As of `src/crypt/secret.rs`; nothing that is fuzzed makes a key.
mod secret {
    pub(super) fn fill_random(bytes: &mut [u8]) -> crate::error::Result<()> {
        bytes.fill(1);
        Ok(())
    }
}
