//! Writes the keys of a repository anew that has lost them.

use super::{
    Objects, ProvenRoot, Put,
    generation::is_encrypted,
    key_change::{alone, require_reader},
    key_file::check_name,
    keys::write_first,
};
use fullbore_crypt::{KeyRing, UserRecipient};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{BACKUPS, REPOSITORY, ROOT},
};
use std::sync::Arc;

/// Writes the keys of a repository that has lost them, from a copy of its key. Key files of other people are left, and open it again;
/// the list of members begins anew.
///
/// # Errors
/// [`ErrorKind::Exists`] if the repository has keys; [`ErrorKind::Permission`] if `ring` cannot read, or if a backup was sealed with
/// another key; the storage's.
pub fn restore_keys(
    objects: &Arc<dyn Objects>,
    ring: &KeyRing,
    name: &str,
    recipient: &UserRecipient,
) -> Result<()> {
    check_name(name)?;
    require_reader(ring, "write the keys anew")?;
    alone(&**objects, || restore_alone(objects, ring, name, recipient))
}

fn restore_alone(
    objects: &Arc<dyn Objects>,
    ring: &KeyRing,
    name: &str,
    recipient: &UserRecipient,
) -> Result<()> {
    let message = || format!("cannot write the keys of {} anew", objects.describe(""));
    let exists = || {
        Error::new(ErrorKind::Exists, message())
            .because("it has keys")
            .hint("if a key file was lost, add another one: fullbore key add REPO --key SAVED --name NAME")
    };
    if is_encrypted(&**objects)? {
        return Err(exists());
    }
    if objects.stat(REPOSITORY)?.is_none() {
        return Err(Error::new(ErrorKind::NotFound, message()).because("there is no repository"));
    }
    check_opens(objects, ring)
        .map_err(|error| error.hint("give a copy of the newest key of this repository"))?;
    match write_first(&**objects, ring, name, recipient)? {
        Put::Done(_) => Ok(()),
        Put::Refused => Err(exists()),
    }
}

/// Checks that a key proves the root of each backup. The list of those that count is lost, too, and begins anew with all of them.
fn check_opens(objects: &Arc<dyn Objects>, ring: &KeyRing) -> Result<()> {
    for object in objects.list(BACKUPS)? {
        let is_root = object.key.rsplit('/').next() == Some(ROOT);
        let stored = match is_root {
            true => objects.get(&object.key)?,
            false => None,
        };
        if let Some((stored, _)) = stored {
            ProvenRoot::check(&object.key, &stored, ring, &objects.describe(&object.key))?;
        }
    }
    Ok(())
}
