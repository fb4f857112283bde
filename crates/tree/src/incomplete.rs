//! The file that marks a tree whose restore is not complete.

use fullbore_format::error::{Error, ErrorKind, Result};
use std::path::Path;

/// Name of the file, in the top directory of the tree.
pub const INCOMPLETE: &str = "FULLBORE_INCOMPLETE";

/// Refuses to read a tree that is not completely restored.
///
/// # Errors
/// [`ErrorKind::Unsupported`].
pub fn refuse_incomplete(top: &Path) -> Result<()> {
    if !top.join(INCOMPLETE).exists() {
        return Ok(());
    }
    let message = format!("cannot read {top:?}: it is not completely restored");
    Err(Error::new(ErrorKind::Unsupported, message)
        .because(format!("it has the file {INCOMPLETE}"))
        .hint("wait until `fullbore restore … --instant --status` says that all of it is there"))
}
