//! The level of a codec, as the root stores it: a number, or `"auto"`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;

/// The word for a level that changes during the run.
const AUTO: &str = "auto";

/// The level of a codec. A frame decodes without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodecLevel {
    /// One level for all frames; 0 for codecs without levels, and in roots that were rebuilt.
    Fixed(i32),
    /// Each frame has the level that fitted the run at that time.
    Auto,
}

impl Default for CodecLevel {
    fn default() -> Self {
        Self::Fixed(0)
    }
}

impl fmt::Display for CodecLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(level) => level.fmt(f),
            Self::Auto => f.write_str(AUTO),
        }
    }
}

impl Serialize for CodecLevel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(level) => serializer.serialize_i32(*level),
            Self::Auto => serializer.serialize_str(AUTO),
        }
    }
}

impl<'de> Deserialize<'de> for CodecLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match StoredLevel::deserialize(deserializer)? {
            StoredLevel::Number(level) => Ok(Self::Fixed(level)),
            StoredLevel::Word(word) if word == AUTO => Ok(Self::Auto),
            StoredLevel::Word(word) => Err(D::Error::custom(format!("unknown level {word:?}"))),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum StoredLevel {
    Number(i32),
    Word(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_number_or_the_word_auto() {
        for (text, level) in [
            ("-5", CodecLevel::Fixed(-5)),
            ("9", CodecLevel::Fixed(9)),
            ("\"auto\"", CodecLevel::Auto),
        ] {
            assert_eq!(serde_json::from_str::<CodecLevel>(text).unwrap(), level);
            assert_eq!(serde_json::to_string(&level).unwrap(), text);
        }
        assert!(serde_json::from_str::<CodecLevel>("\"best\"").is_err());
    }
}
