//! Who sealed something: a person, or the put key of a host.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A number that says which key sealed something. It is no secret, and never the same for two put keys of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Author(u64);

impl Author {
    /// Any person who reads the repository.
    pub const PERSON: Self = Self(0);

    /// Returns the number of a put key that is made of these random bytes.
    pub fn of_host(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes).max(1))
    }

    /// Returns whether this is a person.
    pub fn is_person(self) -> bool {
        self == Self::PERSON
    }

    /// Reads 16 hexadecimal digits as [`fmt::Display`] writes them; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let author = Self(u64::from_str_radix(text, 16).ok()?);
        (author.to_string() == text).then_some(author)
    }

    /// The bytes that secrets and proofs are made of.
    pub fn bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl TryFrom<String> for Author {
    type Error = &'static str;

    fn try_from(text: String) -> std::result::Result<Self, &'static str> {
        Self::parse(&text).ok_or("the number of a key has 16 hexadecimal digits")
    }
}

impl From<Author> for String {
    fn from(author: Author) -> Self {
        author.to_string()
    }
}
