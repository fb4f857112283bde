//! WAL that is in the server's archive, not in the backup: the proof that it gets there.

use super::session::{ArchivedWal, ServerFacts, Session};
use crate::error::{Error, ErrorKind, Result};
use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// How long the archiver may take over a segment.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// What is waited for here, as the operator knows it.
pub const AWAITED: &str = "the server's archive";

/// Archiving works: a segment arrives before `patience` ends, the one that is ended now or, where the archive is behind, one
/// before it (rule 6). On a standby only the end of the backup shows it.
///
/// # Errors
/// [`Kind::Unsupported`] if archiving is off, [`Kind::System`] if nothing arrives.
pub fn prove(session: &mut Session, facts: &ServerFacts, patience: Duration) -> Result<()> {
    let wanted = if facts.standby { "always" } else { "on" };
    if facts.archive_mode != "always" && facts.archive_mode != wanted {
        let what = format!(
            "cannot leave the WAL to the archive: archive_mode is {:?}",
            facts.archive_mode
        );
        let hint = format!("set archive_mode = {wanted} on the server, or take --wal included");
        return Err(Error::new(ErrorKind::Unsupported, what).hint(hint));
    }
    if facts.standby {
        return Ok(());
    }
    let segment = session.switch_wal()?;
    let before = session.archived(&segment)?.count;
    until(session, &segment, patience, |archived| {
        archived.done || archived.count > before
    })
}

/// Wait until everything up to `segment` is in the archive (rule 25), as long as something arrives there within `patience`.
///
/// # Errors
/// [`Kind::System`] if nothing does, with what the archiver fails at.
pub fn wait(session: &mut Session, data: &Path, segment: &str, patience: Duration) -> Result<()> {
    until(session, segment, patience, |archived| {
        archived.done || is_archived(data, segment)
    })
}

/// What the archiver took last may be the history of this very backup, whose name is that of its first segment: then only the mark
/// beside the segment tells.
fn is_archived(data: &Path, segment: &str) -> bool {
    let wal = data.join("pg_wal");
    let mark = |of: &str| {
        wal.join("archive_status")
            .join(format!("{segment}.{of}"))
            .exists()
    };
    mark("done") || (!mark("ready") && !wal.join(segment).exists() && wal.is_dir())
}

fn until(
    session: &mut Session,
    segment: &str,
    patience: Duration,
    is_enough: impl Fn(&ArchivedWal) -> bool,
) -> Result<()> {
    let (mut since, mut count) = (Instant::now(), None);
    loop {
        let archived = session.archived(segment)?;
        if is_enough(&archived) {
            return Ok(());
        }
        if count.replace(archived.count) != Some(archived.count) {
            since = Instant::now();
        }
        if since.elapsed() >= patience {
            return Err(nothing_came(session, segment, patience, archived));
        }
        thread::sleep(Duration::from_millis(200));
    }
}

fn nothing_came(
    session: &Session,
    segment: &str,
    patience: Duration,
    archived: ArchivedWal,
) -> Error {
    let seconds = patience.as_secs();
    let what = format!(
        "could not see WAL segment {segment:?}: nothing came into the archive within {seconds} s"
    );
    let last = archived.last.unwrap_or_else(|| "nothing".to_owned());
    let failing = archived
        .failing
        .map(|name| format!("; it fails at {name}"))
        .unwrap_or_default();
    let hint = match session.standby() {
        // It has archived what is complete; the segment that its primary writes to is not.
        true => {
            "on the primary, run `SELECT pg_switch_wal()` when the files are copied; --wal included needs no archive"
        }
        false => "the server's log says why; --wal included does without the archive",
    };
    Error::new(ErrorKind::System, what)
        .because(format!("the last it archived is {last}{failing}"))
        .hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_mark_tells_that_a_segment_is_archived_and_so_does_its_absence() {
        let dir = tempfile::tempdir().unwrap();
        let (wal, name) = (dir.path().join("pg_wal"), "000000010000000000000006");
        assert!(!is_archived(dir.path(), name), "nothing can be seen");
        fs::create_dir_all(wal.join("archive_status")).unwrap();
        fs::write(wal.join(name), "").unwrap();
        assert!(!is_archived(dir.path(), name), "it is not complete");
        fs::write(wal.join("archive_status").join(format!("{name}.ready")), "").unwrap();
        assert!(!is_archived(dir.path(), name), "it waits");
        fs::rename(
            wal.join("archive_status").join(format!("{name}.ready")),
            wal.join("archive_status").join(format!("{name}.done")),
        )
        .unwrap();
        assert!(is_archived(dir.path(), name));
        fs::remove_dir_all(wal.join("archive_status")).unwrap();
        fs::remove_file(wal.join(name)).unwrap();
        assert!(is_archived(dir.path(), name), "the server needs it no more");
    }
}
