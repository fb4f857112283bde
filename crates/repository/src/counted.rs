//! The backups that count for what is latest: those whose time is not more than a day in the future.
//!
//! The others come from a clock that was wrong, or from a host that lies. They are listed and can be named by their
//! ids, and take no part in the order of backups.

use super::{
    open::{backup_ids, listed_roots, read_repository},
    scan::lost_roots,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::is_of_future,
    root::Root,
};
use fullbore_storage::Objects;
use jiff::Timestamp;
use std::sync::Arc;

/// Backups of the future that an error lists.
const LISTED: usize = 5;

pub(super) fn counted(mut ids: Vec<String>) -> Vec<String> {
    let now = Timestamp::now();
    ids.retain(|id| !is_of_future(id, now));
    ids
}

/// As [`list_backups`](super::open::list_backups), of the backups that count.
///
/// # Errors
/// As there.
pub fn counted_backups(
    objects: &Arc<dyn Objects>,
) -> Result<impl Iterator<Item = (String, Result<Root>)> + use<>> {
    read_repository(&**objects)?;
    Ok(listed_roots(objects, counted(backup_ids(&**objects)?)))
}

/// As [`lost_roots`], of the backups that count.
///
/// # Errors
/// As there.
pub(super) fn counted_lost_roots(objects: &Arc<dyn Objects>) -> Result<Vec<String>> {
    lost_roots(objects).map(counted)
}

/// Adds the backups that do not count to the error of a backup that was not found.
pub(super) fn with_later_backups(objects: &Arc<dyn Objects>, error: Error) -> Error {
    let now = Timestamp::now();
    let mut later = backup_ids(&**objects).unwrap_or_default();
    later.retain(|id| is_of_future(id, now));
    if error.kind != ErrorKind::NotFound || later.is_empty() {
        return error;
    }
    let error = later
        .iter()
        .take(LISTED)
        .map(|id| format!("{id:?} is more than a day in the future and does not count"))
        .fold(error, Error::detail);
    error.hint("check the clock of this host, or name a backup by its id")
}
