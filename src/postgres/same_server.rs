//! The proof that the files here are those of the server that answers.
//!
//! A primary and its standbys have the same identifier, and mostly the same paths on hosts of their own: files of one with the
//! label of another are a backup that does not start, or worse, that does.

use super::{
    control::{self, Control, ControlState},
    lsn::Lsn,
    session::{ServerFacts, Session},
};
use crate::{
    error::{Error, ErrorKind, Result},
    platform,
};
use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// How long storage that is shared may take to show what the server wrote.
const ARRIVES: Duration = Duration::from_secs(10);

/// The data directory of the server that answers, and its control file: of the same cluster (rule 5).
///
/// # Errors
/// [`Kind::Usage`] if it is of another; [`Kind::Permission`] if the server does not tell, or it cannot be read.
pub(super) fn files_of(facts: &ServerFacts) -> Result<(PathBuf, Vec<u8>)> {
    let Some(data) = facts.data_directory.clone() else {
        return Err(Error::new(
            ErrorKind::Permission,
            "cannot find the data directory: the server does not tell this role",
        )
        .hint("`GRANT pg_read_all_settings TO …`"));
    };
    let (bytes, control) = control::read(&control::path(&data)).map_err(|error| {
        let hint =
            format!("run fullbore on the server's host, as a user who may read {data:?}: root or the server's own");
        Error { what: format!("cannot read the data directory {data:?} of the server"), ..error }.hint(hint)
    })?;
    if control.system_identifier != facts.system_identifier {
        let what =
            format!("cannot back up the cluster: the files in {data:?} are those of another");
        let (here, there) = (control.system_identifier, facts.system_identifier);
        return Err(Error::new(ErrorKind::Usage, what)
            .because(format!(
                "system identifier {here} here, {there} at the server"
            ))
            .hint("run fullbore on the host of that server"));
    }
    Ok((data, bytes))
}

/// The control file once the checkpoint of the start has arrived in it (rule 5).
///
/// # Errors
/// [`Kind::System`] if it does not arrive.
pub(super) fn started(data: &Path, start: Option<Lsn>) -> Result<Control> {
    let until = Instant::now() + ARRIVES;
    loop {
        let (_, control) = control::read(&control::path(data))?;
        match start {
            Some(start) if control.redo_lsn < start.0 && Instant::now() < until => {
                thread::sleep(Duration::from_millis(50))
            }
            Some(start) if control.redo_lsn < start.0 => {
                let what = format!(
                    "cannot back up the cluster: the checkpoint at {start} is not in its files"
                );
                return Err(Error::new(ErrorKind::System, what)
                    .hint("is the data directory on storage whose changes this host sees late?"));
            }
            _ => return Ok(control),
        }
    }
}

/// Does the server run on these files? What it has just made is there: the directory of a slot, whose name no other has.
/// Where it makes none, its process works there; or at least both are standbys, or neither is.
///
/// # Errors
/// [`Kind::Usage`] if not; [`Kind::Unreachable`] if the session is lost.
pub(super) fn same_server(session: &mut Session, may_hold_wal: bool, data: &Path) -> Result<()> {
    let is_for_this = session.slot().is_none() && may_hold_wal;
    if is_for_this && session.hold_wal().is_err() {
        session.alive()?; // all slots are taken, or the server has none
    }
    let why = match session
        .slot()
        .map(|name| data.join("pg_replslot").join(name))
    {
        Some(slot) => {
            let is_here = arrives(&slot);
            if is_for_this {
                session.release_wal()?;
            }
            (!is_here).then_some("the replication slot that it made is not among them")
        }
        None => {
            let runs_here = platform::works_in(session.process().unsigned_abs(), data);
            let (_, control) = control::read(&control::path(data))?;
            let is_standby = control.state == ControlState::ArchiveRecovery;
            let is_other = !runs_here && is_standby != session.standby();
            is_other.then_some("of these and that server one is a standby, the other a primary")
        }
    };
    let Some(why) = why else { return Ok(()) };
    let what = format!(
        "cannot back up the cluster: the files in {data:?} are not those of the server that answers"
    );
    let hint = "run fullbore on the host of that server, or name the server of this host";
    Err(Error::new(ErrorKind::Usage, what).because(why).hint(hint))
}

fn arrives(path: &Path) -> bool {
    let until = Instant::now() + ARRIVES;
    while path.symlink_metadata().is_err() {
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(Duration::from_millis(50));
    }
    true
}
