//! The backup that recovery to a point begins with: of a repository the last one of the cluster that ended before it.

use super::restore::Restore;
use crate::{
    error::Result,
    format::root::Root,
    repo::open::{backup_ids, is_repository, list_backups, open},
    source::archive::Archive,
};
use std::path::Path;

/// Open it; without such a target, or if a backup is named, what FROM means.
///
/// # Errors
/// As [`open`]. If all ended later it is the last one, and what is planned with it says so.
pub(super) fn opened(restore: &Restore) -> Result<Archive> {
    early_enough(restore, open(&restore.from)?)
}

/// The same, if `last` is what FROM means.
///
/// # Errors
/// As [`open`].
pub(super) fn early_enough(restore: &Restore, last: Archive) -> Result<Archive> {
    let recovery = &restore.postgres.recovery;
    let Some(cluster) = last.root.postgres.as_ref().filter(|_| is_repository(&restore.from)) else { return Ok(last) };
    if recovery.can_begin_with(cluster, last.root.captured()) {
        return Ok(last);
    }
    let is_of_it = |root: &Root| {
        let other = root.postgres.as_ref().filter(|other| other.system_identifier == cluster.system_identifier);
        other.is_some_and(|other| recovery.can_begin_with(other, root.captured()))
    };
    let all = list_backups(Path::new(&restore.from))?;
    match all.iter().rfind(|(_, root)| root.as_ref().is_ok_and(is_of_it)) {
        Some((id, _)) => open(&format!("{}@{id}", restore.from)),
        None => Ok(last),
    }
}

/// What is to be said where it is not the last one.
pub(super) fn note(restore: &Restore, root: &Root) -> Option<String> {
    let ids = if is_repository(&restore.from) { backup_ids(Path::new(&restore.from)).ok()? } else { Vec::new() };
    let is_earlier = ids.last().is_some_and(|last| *last > root.id) && restore.postgres.recovery.is_choosy();
    is_earlier.then(|| format!("backup {} is the last one that can be recovered to the target", root.id))
}
