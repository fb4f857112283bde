//! When the newest backup of each source in a repository began, and how far its WAL goes.

use fullbore_engine::wal::{SystemReport, system_reports};
use fullbore_format::{
    error::{Error, Result},
    text::source_text,
};
use fullbore_repository::{counted::counted_backups, open::is_repository, select::OwnSource};
use fullbore_storage::{Found, Location, Storages};
use std::{collections::BTreeMap, ffi::OsStr};

/// Times of the newest backups.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NewestBackups {
    /// Seconds since 1970 at which the newest backup of each source began.
    pub(super) seconds: BTreeMap<String, i64>,
    /// Whether every backup could be read, so that a source that is not named has none.
    pub(super) is_whole: bool,
}

/// Numbers of the archived WAL of a system.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WalNumbers {
    /// The system, and behind a dot the name of a copy.
    pub system: String,
    /// The location at which the newest segment ends.
    pub archived_bytes: u64,
    /// Gaps.
    pub gaps: u64,
    /// Bytes and seconds that the repository is behind the server, if the server was asked.
    pub lag: Option<(u64, f64)>,
}

impl WalNumbers {
    /// Returns the numbers with their names.
    pub(super) fn numbers(&self) -> Vec<(&'static str, f64)> {
        let mut numbers = vec![
            ("fullbore_wal_archived_bytes", self.archived_bytes as f64),
            ("fullbore_wal_gaps", self.gaps as f64),
        ];
        if let Some((bytes, seconds)) = self.lag {
            numbers.push(("fullbore_wal_lag_bytes", bytes as f64));
            numbers.push(("fullbore_wal_lag_seconds", seconds));
        }
        numbers
    }
}

/// Returns the numbers of the WAL in a repository; nothing for an archive or a stream.
///
/// # Errors
/// The storage's.
pub(super) fn newest_wal(storages: &Storages, repository: &OsStr) -> Result<Vec<WalNumbers>> {
    if !is_repository(repository) {
        return Ok(Vec::new());
    }
    let reports = system_reports(&storages.repository_at(repository)?, &[])?.into_iter();
    Ok(reports.map(wal_numbers).collect())
}

fn wal_numbers(report: SystemReport) -> WalNumbers {
    WalNumbers {
        archived_bytes: report.newest().map_or(0, |newest| {
            newest
                .next(report.segment_bytes)
                .start(report.segment_bytes)
        }),
        gaps: report.gaps.len() as u64,
        lag: None,
        system: report.system,
    }
}

/// Returns the times in a repository, of all sources or of `own` alone; nothing for an archive or a stream.
///
/// # Errors
/// [`fullbore_format::error::ErrorKind::NotFound`] if nothing is there, as where a disk is not mounted; the storage's.
pub(super) fn newest_backups(
    storages: &Storages,
    repository: &OsStr,
    own: Option<&OwnSource>,
) -> Result<NewestBackups> {
    let mut newest = NewestBackups::default();
    if !is_repository(repository) {
        return must_exist(repository).map(|()| newest);
    }
    newest.is_whole = true;
    for (_, root) in counted_backups(&storages.repository_at(repository)?)? {
        let Ok(root) = root else {
            newest.is_whole = false;
            continue;
        };
        let time = root.time.parse::<jiff::Timestamp>();
        let is_wanted = own.is_none_or(|own| own.is(&root.source));
        if let Some(time) = time.ok().filter(|_| is_wanted) {
            let of_source = newest.seconds.entry(source_text(&root.source));
            let seconds = of_source.or_insert(i64::MIN);
            *seconds = time.as_second().max(*seconds);
        }
    }
    Ok(newest)
}

/// Refuses an empty mount point and a path that is not there.
fn must_exist(repository: &OsStr) -> Result<()> {
    let location = Location::parse(repository)?;
    match location.look() {
        Found::Nothing | Found::Directory if location.as_local().is_some() => {
            let message = format!("could not find a repository at {location}");
            Err(Error::new(
                fullbore_format::error::ErrorKind::NotFound,
                message,
            ))
        }
        _ => Ok(()),
    }
}
