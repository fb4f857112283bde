//! The document that lists the members of a repository: its fields, and how they are read.

use crate::{author::Author, error::Result, seal::open_sealed};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a mark: 100,000 roots have 2.1 MB of them in base64. The key of the hash is secret, so nobody can look for two roots with one mark.
pub const MARK_BYTES: usize = 16;

/// The mark of a root in the list.
pub type RootMark = [u8; MARK_BYTES];

/// A key file in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedKey {
    /// For whom it is wrapped.
    pub recipient: String,
    /// In whose name its owner seals.
    pub author: Author,
    /// BLAKE3 of the file.
    pub digest: String,
    /// The file may be missing: it is being added, or that was cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_pending: bool,
}

/// The list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// By the keys of their files.
    pub files: BTreeMap<String, ListedKey>,
    /// Marks of the roots that count although their key does not.
    #[serde(with = "marks_as_text", default)]
    pub accepted: BTreeSet<RootMark>,
}

/// Marks one behind the other in base64.
mod marks_as_text {
    use super::*;
    use serde::{Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(
        marks: &BTreeSet<RootMark>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = marks.iter().flatten().copied().collect();
        serializer.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeSet<RootMark>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = BASE64_STANDARD.decode(text).map_err(D::Error::custom)?;
        let (marks, rest) = bytes.as_chunks();
        if !rest.is_empty() {
            return Err(D::Error::custom("a mark was cut off"));
        }
        Ok(marks.iter().copied().collect())
    }
}

impl Members {
    /// Reads the plain bytes of a list, which messages call `name`.
    ///
    /// # Errors
    /// `ErrorKind::Corrupt`.
    pub fn parse(plain: &[u8], name: &str) -> Result<Self> {
        open_sealed(plain, name)
    }
}
