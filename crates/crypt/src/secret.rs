//! Secrets of 32 bytes.

use fullbore_format::{
    author::Author,
    error::{Error, ErrorKind, Result},
};
use std::fmt;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// 32 secret bytes, cleared when they are dropped and never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret([u8; 32]);

/// Returns the number of a new put key.
///
/// # Errors
/// [`ErrorKind::System`] if the system has no random bytes.
pub fn random_author() -> Result<Author> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(Author::of_host(bytes))
}

impl Secret {
    /// A secret that the system's random generator makes.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the system has no random bytes.
    pub fn random() -> Result<Self> {
        let mut secret = Self([0; 32]);
        fill_random(&mut secret.0)?;
        Ok(secret)
    }

    /// A secret from 64 hexadecimal digits; `None` for any other text.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut secret = Self([0; 32]);
        for (byte, pair) in secret.0.iter_mut().zip(digits.chunks(2)) {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            *byte = (high << 4 | low) as u8;
        }
        Some(secret)
    }

    /// Its 64 hexadecimal digits.
    pub fn to_hex(&self) -> Zeroizing<String> {
        // With room from the start: a string that grows leaves a copy behind.
        let mut text = Zeroizing::new(String::with_capacity(64));
        for nibble in self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
            text.push(char::from_digit(nibble.into(), 16).unwrap_or('0'));
        }
        text
    }

    /// Another secret, made of this one: it tells nothing about this one, nor about those of other parts.
    pub(super) fn derived(&self, context: &str, parts: &[u8]) -> Self {
        let key = Zeroizing::new(blake3::derive_key(context, &self.0));
        Self(*blake3::keyed_hash(&key, parts).as_bytes())
    }

    /// The bytes, for a keyed hash.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Fills `bytes` from the system's random generator.
pub(super) fn fill_random(bytes: &mut [u8]) -> Result<()> {
    aws_lc_rs::rand::fill(bytes)
        .map_err(|_| Error::new(ErrorKind::System, "could not get random bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_as_it_was_written_and_never_printed() {
        let secret = Secret::random().unwrap();
        let text = secret.to_hex();
        assert_eq!(Secret::from_hex(&text).unwrap().expose(), secret.expose());
        for bad in ["", &text[1..], &format!("{}g", &text[1..]), "ä"] {
            assert!(Secret::from_hex(bad).is_none(), "{bad}");
        }
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_ne!(secret.expose(), Secret::random().unwrap().expose());
    }
}
