//! What a message says of an object.

/// An object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    /// Its key.
    pub key: String,
    /// Its length.
    pub bytes: u64,
    /// Its version, where a listing has it.
    pub version: Option<Version>,
}

/// Names one content of an object; only the storage that made it knows its form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(String);

impl Version {
    /// A version from the words of a storage.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The words of the storage.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// When a put is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutIf {
    /// Whatever is there.
    Always,
    /// If no object has the key.
    Absent,
    /// If the object that has the key has this version.
    Version(Version),
}

/// Which intents a lease may be taken on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// One that is absent, and is made.
    New,
    /// One whose holder let go or died.
    Dead,
    /// Either.
    DeadOrNew,
}
