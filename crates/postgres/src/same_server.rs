//! Checks that the local files belong to the server that answers.
//!
//! A primary and its standbys share one system identifier, and mostly the same paths on different
//! hosts. Files of one server with the backup label of another make a backup that does not start,
//! or worse, one that starts.

use super::{
    control::{self, Control, ControlState},
    data_dir::DataDir,
    lsn::Lsn,
    session::{ServerFacts, Session},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform as platform;
use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// How long shared storage may take to show a file that the server wrote.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(10);

/// Returns the data directory of the connected server and its control file, after checking that
/// both have the same system identifier (rule 5).
///
/// # Errors
/// [`ErrorKind::Usage`] if the files belong to another cluster; [`ErrorKind::Permission`] if the
/// server does not show its data directory or the directory cannot be read.
pub(super) fn find_data_directory(facts: &ServerFacts) -> Result<(PathBuf, Vec<u8>)> {
    let Some(data) = facts.data_directory.clone() else {
        return Err(Error::new(
            ErrorKind::Permission,
            "cannot find the data directory: the server does not show it to this role",
        )
        .hint("`GRANT pg_read_all_settings TO …`"));
    };
    let (bytes, control) = control::read(&control::path(&data)).map_err(|error| {
        let hint =
            format!("run fullbore on the server's host, as a user who may read {data:?}: root or the server's user");
        Error { what: format!("cannot read the data directory {data:?} of the server"), ..error }.hint(hint)
    })?;
    // Host names and paths can be the same in a container: only this number tells the clusters
    // apart.
    if control.system_identifier != facts.system_identifier {
        let message =
            format!("cannot back up the cluster: the files in {data:?} belong to another cluster");
        let found = control.system_identifier;
        let expected = facts.system_identifier;
        return Err(Error::new(ErrorKind::Usage, message)
            .because(format!(
                "system identifier {found} here, {expected} at the server"
            ))
            .hint("run fullbore on the host of that server"));
    }
    Ok((data, bytes))
}

/// Returns the control file once it has the checkpoint of the backup's start (rule 5).
///
/// # Errors
/// [`ErrorKind::System`] if the checkpoint does not appear within [`ARRIVAL_LIMIT`].
pub(super) fn await_checkpoint(data: &dyn DataDir, start: Option<Lsn>) -> Result<Control> {
    let deadline = Instant::now() + ARRIVAL_LIMIT;
    loop {
        let (_, control) = control::read_in(data)?;
        match start {
            Some(start) if control.redo_lsn < start.0 && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(50))
            }
            Some(start) if control.redo_lsn < start.0 => {
                let message = format!(
                    "cannot back up the cluster: the checkpoint at {start} is not in its files"
                );
                return Err(Error::new(ErrorKind::System, message)
                    .hint("is the data directory on shared storage that shows changes late?"));
            }
            _ => return Ok(control),
        }
    }
}

/// Checks that the server runs on these files.
///
/// The first available proof decides:
/// - The server makes a replication slot; its directory, with a unique name, appears here.
/// - The server's process works in this directory.
/// - Both are standbys, or neither is.
///
/// # Errors
/// [`ErrorKind::Usage`] if the server runs on other files; [`ErrorKind::Unreachable`] if the
/// session is lost.
pub(super) fn check_same_server(
    session: &mut Session,
    may_hold_wal: bool,
    data: &Path,
) -> Result<()> {
    let is_for_this = session.slot().is_none() && may_hold_wal;
    if is_for_this && session.hold_wal().is_err() {
        session.check_alive()?; // all slots are in use, or the server allows no slots
    }
    let reason = match session
        .slot()
        .map(|name| data.join("pg_replslot").join(name))
    {
        Some(slot) => {
            let is_here = await_path(&slot);
            if is_for_this {
                session.release_wal()?;
            }
            (!is_here).then_some("the replication slot that the server made is not among them")
        }
        None => {
            let runs_here = platform::works_in(session.process().unsigned_abs(), data);
            let (_, control) = control::read(&control::path(data))?;
            let is_standby = control.state == ControlState::ArchiveRecovery;
            let is_other = !runs_here && is_standby != session.standby();
            is_other.then_some("one of the two is a standby, the other a primary")
        }
    };
    let Some(reason) = reason else { return Ok(()) };
    let message = format!(
        "cannot back up the cluster: the files in {data:?} do not belong to the server that answers"
    );
    let hint = "run fullbore on the host of that server, or name the server of this host";
    Err(Error::new(ErrorKind::Usage, message)
        .because(reason)
        .hint(hint))
}

/// Waits for `path` to appear; returns whether it did.
fn await_path(path: &Path) -> bool {
    let deadline = Instant::now() + ARRIVAL_LIMIT;
    while path.symlink_metadata().is_err() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(50));
    }
    true
}
