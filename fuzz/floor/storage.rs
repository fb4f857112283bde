//! Stand-ins of the types that the messages of a connection carry, so that they are fuzzed without the storages.

/// As of `src/storage/mod.rs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    pub key: String,
    pub bytes: u64,
    pub version: Option<Version>,
}

/// As of `src/storage/mod.rs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(String);

impl Version {
    pub fn new(version: impl Into<String>) -> Self {
        Self(version.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// As of `src/storage/mod.rs`.
pub enum PutIf {
    Always,
    Absent,
    Version(Version),
}

/// As of `src/storage/mod.rs`.
#[derive(Clone, Copy)]
pub enum Take {
    New,
    Dead,
    DeadOrNew,
}

#[allow(dead_code)]
#[path = "../../src/storage/key.rs"]
mod key;
pub use key::MAX_NAME_BYTES;

#[path = "../../src/storage/members/list_document.rs"]
pub mod members;

#[path = "wire.rs"]
pub mod wire;
