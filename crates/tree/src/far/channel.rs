//! The way to a host that serves sources, and what it has opened.

use fullbore_format::error::Result;
use std::fmt;

/// A way to a host that serves sources.
pub trait SourceChannel: fmt::Debug + Send + Sync {
    /// Asks a question, and returns the answer.
    ///
    /// # Errors
    /// Those of the other host, and of the way to it.
    fn ask(&self, question: &[u8]) -> Result<Vec<u8>>;
}

/// What a host has opened for a backup.
#[derive(Debug, Clone)]
pub struct FarOrigin {
    pub host: String,
    pub paths: Vec<Vec<u8>>,
    /// Is the root of the backup the content of the only path?
    pub contents: bool,
    /// How many sources there are.
    pub sources: usize,
}
