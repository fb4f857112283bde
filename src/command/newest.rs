//! When the newest backup of each source in a repository began.

use crate::{
    error::Result,
    repo::{
        counted::counted_backups,
        open::{is_repository, repository_at},
    },
    text::source_text,
};
use std::{collections::BTreeMap, ffi::OsStr};

/// Seconds since 1970 at which the newest complete backup of each source began; empty for what is no repository. A backup that
/// cannot be read is left out.
///
/// # Errors
/// The storage's.
pub fn newest_backups(repository: &OsStr) -> Result<BTreeMap<String, i64>> {
    let mut newest = BTreeMap::new();
    if !is_repository(repository) {
        return Ok(newest);
    }
    for (_, root) in counted_backups(&repository_at(repository)?)? {
        let Ok(root) = root else {
            continue;
        };
        let Ok(time) = root.time.parse::<jiff::Timestamp>() else {
            continue;
        };
        let seconds = newest.entry(source_text(&root.source)).or_insert(i64::MIN);
        *seconds = time.as_second().max(*seconds);
    }
    Ok(newest)
}
