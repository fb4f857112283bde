//! Paths and names of any bytes, as JSON.

use super::digest::hex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path or a name in JSON: text if the bytes are UTF-8, else `{"hex": "…"}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct EntryName(pub Vec<u8>);

impl From<&str> for EntryName {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

#[derive(Serialize, Deserialize)]
struct Hex {
    hex: String,
}

impl Serialize for EntryName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Hex { hex: hex(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for EntryName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Text(String),
            Hex(Hex),
        }
        match Either::deserialize(deserializer)? {
            Either::Text(text) => Ok(Self(text.into_bytes())),
            Either::Hex(Hex { hex }) => parse_hex(&hex)
                .map(Self)
                .ok_or_else(|| serde::de::Error::custom("not hexadecimal")),
        }
    }
}

/// Returns the bytes that [`hex`] encoded, or `None` if `text` is not hexadecimal.
pub fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).map(|d| d as u8))
        .collect();
    let digits = digits.filter(|d| d.len().is_multiple_of(2))?;
    Some(
        digits
            .as_chunks()
            .0
            .iter()
            .map(|[high, low]| high << 4 | low)
            .collect(),
    )
}
