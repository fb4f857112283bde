//! A cluster that is stopped: the proof that it is, and what its files say of it.

use super::control::{self, Control, State};
use crate::error::{Error, Kind, Result};
use std::{fs, path::Path};

/// The control file of a cluster that was shut down cleanly and is not running.
///
/// # Errors
/// [`Kind::Usage`] if it runs or was not shut down.
pub fn clean(data: &Path) -> Result<(Vec<u8>, Control)> {
    let (bytes, control) = control::read(&control::path(data))?;
    let cannot = |why: &str| Error::new(Kind::Usage, format!("cannot back up the cluster at {data:?}: {why}"));
    if is_running(data) {
        return Err(cannot("it is running and no connection was given")
            .hint("use postgres://… as the source, so that the server is told when the backup starts and ends"));
    }
    if !matches!(control.state, State::ShutDown | State::ShutDownInRecovery) {
        return Err(cannot("it was not shut down cleanly").hint("start it, and stop it with `pg_ctl stop -m fast`"));
    }
    Ok((bytes, control))
}

/// It was not started since `clean` gave these bytes.
///
/// # Errors
/// [`Kind::System`] if it was: the backup is void.
pub fn still_clean(data: &Path, bytes: &[u8]) -> Result<()> {
    let same = control::read(&control::path(data)).is_ok_and(|(now, _)| now == bytes);
    if same && !is_running(data) {
        return Ok(());
    }
    Err(Error::new(Kind::System, format!("cannot complete the backup: the cluster at {data:?} was started meanwhile"))
        .hint("use postgres://… as the source while it runs"))
}

/// Does the process that `postmaster.pid` names exist?
pub fn is_running(data: &Path) -> bool {
    let pid = fs::read_to_string(data.join("postmaster.pid")).ok();
    let pid = pid.as_deref().and_then(|text| text.lines().next()?.trim().parse::<u32>().ok());
    pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
}

/// Is this the data directory of a cluster?
pub fn is_data_directory(path: &Path) -> bool {
    path.join("PG_VERSION").is_file() && path.join("global/pg_control").is_file()
}

/// The version as its files say it, and the major one.
///
/// # Errors
/// [`Kind::Unsupported`] if it is too old, or the system's error.
pub fn version(data: &Path) -> Result<(String, u32)> {
    let path = data.join("PG_VERSION");
    let text = fs::read_to_string(&path).map_err(|e| Error::io(format!("could not read {path:?}"), e))?;
    let text = text.trim().to_owned();
    match text.parse::<u32>() {
        Ok(major) if major >= 13 => Ok((text, major)),
        _ => Err(Error::new(Kind::Unsupported, format!("cannot back up PostgreSQL {text}: 13 and newer are known"))),
    }
}
