//! Checks that WAL left out of the backup arrives in the server's archive.

use super::{
    data_dir::DataDir,
    session::{ArchivedWal, ServerFacts, Session},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use std::{
    thread,
    time::{Duration, Instant},
};

/// An archive in which segments can be looked for, such as the repository that a backup goes to.
pub trait SegmentArchive: std::fmt::Debug + Send + Sync {
    /// Returns whether it takes the WAL of this system.
    ///
    /// # Errors
    /// The storage's.
    fn has_wal_of(&self, system: &str) -> Result<bool>;

    /// Returns whether it has this segment.
    ///
    /// # Errors
    /// The storage's.
    fn has(&self, system: &str, segment: &str) -> Result<bool>;
}

/// Time within which a segment that the server says is archived must be in the archive.
const ARRIVAL: Duration = Duration::from_secs(20);

/// Returns whether `archive` takes the WAL of this server: a segment that this call ends arrives there. Of a standby, which
/// cannot end one, that is not known.
///
/// # Errors
/// The storage's; if the session is lost.
pub fn is_archived_to(
    archive: &dyn SegmentArchive,
    session: &mut Session,
    facts: &ServerFacts,
) -> Result<bool> {
    let system = facts.system_identifier.to_string();
    let is_on = facts.archive_mode == "on" || facts.archive_mode == "always";
    if facts.standby || !is_on || !archive.has_wal_of(&system)? {
        return Ok(false);
    }
    let segment = session.switch_wal()?;
    arrives(archive, &system, &segment)
}

/// Returns whether a segment arrives in an archive within a while.
///
/// # Errors
/// The storage's.
pub fn arrives(archive: &dyn SegmentArchive, system: &str, segment: &str) -> Result<bool> {
    let start = Instant::now();
    while !archive.has(system, segment)? {
        if start.elapsed() >= ARRIVAL {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(200));
    }
    Ok(true)
}

/// Time that the archiver may take for a segment.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Name of this wait in the report.
pub const AWAITED: &str = "the server's archive";

/// Checks that archiving works: within `patience` a segment arrives, either the one that this call
/// ends or, if the archive lags, an earlier one (rule 6). On a standby only the end of the backup
/// can show it.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if archiving is off, [`ErrorKind::System`] if no segment arrives.
pub fn check_archiving(
    session: &mut Session,
    facts: &ServerFacts,
    patience: Duration,
) -> Result<()> {
    let wanted = if facts.standby { "always" } else { "on" };
    if facts.archive_mode != "always" && facts.archive_mode != wanted {
        let message = format!(
            "cannot leave the WAL to the archive: archive_mode is {:?}",
            facts.archive_mode
        );
        let hint = format!("set archive_mode = {wanted} on the server, or use --wal included");
        return Err(Error::new(ErrorKind::Unsupported, message).hint(hint));
    }
    if facts.standby {
        return Ok(());
    }
    let segment = session.switch_wal()?;
    let previous = session.archived_wal(&segment)?.count;
    poll_until(session, &segment, patience, |archived| {
        archived.done || archived.count > previous
    })
}

/// Returns a warning, if the archiver fails: its last failure is newer than its last success.
///
/// # Errors
/// If the session is lost.
pub fn failure_warning(session: &mut Session) -> Result<Option<String>> {
    let archived = session.archived_wal("")?;
    Ok(archived.failing.map(|segment| {
        format!(
            "the server fails to archive {segment} (archive_command or archive_library): a recovery to a time after \
            this backup needs it; the server's log says why"
        )
    }))
}

/// Waits until everything up to `segment` is in the archive (rule 25), as long as some file arrives
/// within each `patience`.
///
/// # Errors
/// [`ErrorKind::System`] if no file arrives, with the file that the archiver fails to archive.
pub fn await_segment(
    session: &mut Session,
    data: &dyn DataDir,
    segment: &str,
    patience: Duration,
) -> Result<()> {
    poll_until(session, segment, patience, |archived| {
        archived.done || is_archived(data, segment)
    })
}

/// Returns whether the marks beside the segment say that it is archived.
///
/// The archiver's last file may be the history of this backup, whose name is that of its first
/// segment. Then only the marks tell.
fn is_archived(data: &dyn DataDir, segment: &str) -> bool {
    let mark = |state: &str| data.contains(&format!("pg_wal/archive_status/{segment}.{state}"));
    let is_gone = || !data.contains(&format!("pg_wal/{segment}")) && data.contains("pg_wal");
    mark("done") || (!mark("ready") && is_gone())
}

/// Polls the archiver until `is_enough`, or until no file arrived for `patience`.
fn poll_until(
    session: &mut Session,
    segment: &str,
    patience: Duration,
    is_enough: impl Fn(&ArchivedWal) -> bool,
) -> Result<()> {
    let mut start = Instant::now();
    let mut count = None;
    loop {
        let archived = session.archived_wal(segment)?;
        if is_enough(&archived) {
            return Ok(());
        }
        if count.replace(archived.count) != Some(archived.count) {
            start = Instant::now();
        }
        if start.elapsed() >= patience {
            return Err(timeout_error(session, segment, patience, archived));
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Returns the error for an archive in which no file arrives.
fn timeout_error(
    session: &Session,
    segment: &str,
    patience: Duration,
    archived: ArchivedWal,
) -> Error {
    let seconds = patience.as_secs();
    let message = format!(
        "could not find WAL segment {segment:?}: no file came into the archive within {seconds} s"
    );
    let last = archived.last.unwrap_or_else(|| "nothing".to_owned());
    let failing = archived
        .failing
        .map(|name| format!("; it fails to archive {name}"))
        .unwrap_or_default();
    let hint = if session.standby() {
        // The standby has archived all complete segments; the segment that its primary writes is not
        // complete.
        "on the primary, run `SELECT pg_switch_wal()` when the files are copied; --wal included \
            needs no archive"
    } else {
        "the server's log says why; --wal included needs no archive"
    };
    Error::new(ErrorKind::System, message)
        .because(format!("the last file it archived is {last}{failing}"))
        .hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_dir::local::LocalDir;
    use std::fs;

    #[test]
    fn the_mark_of_a_segment_or_its_absence_says_that_it_is_archived() {
        let dir = tempfile::tempdir().unwrap();
        let wal = dir.path().join("pg_wal");
        let data = LocalDir::new(dir.path());
        let name = "000000010000000000000006";
        assert!(!is_archived(&data, name), "no directory to look in");
        fs::create_dir_all(wal.join("archive_status")).unwrap();
        fs::write(wal.join(name), "").unwrap();
        assert!(!is_archived(&data, name), "the segment is not complete");
        fs::write(wal.join("archive_status").join(format!("{name}.ready")), "").unwrap();
        assert!(!is_archived(&data, name), "the segment waits");
        fs::rename(
            wal.join("archive_status").join(format!("{name}.ready")),
            wal.join("archive_status").join(format!("{name}.done")),
        )
        .unwrap();
        assert!(is_archived(&data, name));
        fs::remove_dir_all(wal.join("archive_status")).unwrap();
        fs::remove_file(wal.join(name)).unwrap();
        assert!(is_archived(&data, name), "the server has removed it");
    }
}
