//! Reads the root of a backup that is one file, or a series of volumes.

use super::object::{ObjectName, ObjectReader};
use fullbore_format::{
    error::{Error, Result},
    root::Root,
    seal::MAX_BYTES,
};

/// Reads the root in `store`.
///
/// # Errors
/// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if it is damaged; those of reading.
pub(super) fn read_root(store: &dyn ObjectReader) -> Result<Root> {
    let len = store.len(&ObjectName::Root)?;
    let name = store.name(&ObjectName::Root);
    if len > MAX_BYTES {
        return Err(Error::corrupt(format!("{name} is damaged")).because("it is too large"));
    }
    let mut bytes = Vec::new();
    store.read_at(&ObjectName::Root, 0, len as usize, &mut bytes)?;
    Root::open(&bytes, &name)
}
