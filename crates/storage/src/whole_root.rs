//! Reads a root together with the lists that it may share with an earlier backup.

use super::Objects;
use fullbore_format::{
    error::{ErrorKind, Result},
    layout::{BACKUPS, FORGOTTEN, ROOT},
    root::{Root, is_void},
};

/// Completes the root of a backup, if it is [short](Root::is_short). Messages call it `name`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the lists are lost or were changed; errors of the storage.
pub fn whole_root(objects: &dyn Objects, root: Root, name: &str) -> Result<Root> {
    if !root.is_short() {
        return Ok(root);
    }
    match kept_root(objects, &root.lists_of) {
        Ok(Some(other)) => root.with_lists_of(&other, name),
        Ok(None) => Err(root.without_lists(name)),
        Err(error) if error.kind == ErrorKind::Corrupt => {
            Err(root.without_lists(name).detail(error.line()))
        }
        Err(error) => Err(error),
    }
}

/// Returns the root of a backup that is listed or forgotten, as it is stored.
///
/// # Errors
/// As [`Root::of_backup_as_stored`]; errors of the storage.
pub fn kept_root(objects: &dyn Objects, id: &str) -> Result<Option<Root>> {
    // A backup that is forgotten has its new document before it loses the old one, and so has one that is listed again.
    for name in [ROOT, FORGOTTEN, ROOT] {
        let key = format!("{BACKUPS}/{id}/{name}");
        if let Some((bytes, _)) = objects.get(&key)?
            && !is_void(&bytes)
        {
            return Root::of_backup_as_stored(id, &bytes, &format!("{key:?}")).map(Some);
        }
    }
    Ok(None)
}
