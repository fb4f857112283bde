//! A cluster that is stopped: the proof that it is, and what its files say of it.

use super::control::{self, Control, ControlState};
use crate::{
    error::{Error, ErrorKind, Result},
    platform::{self, safe_file},
};
use std::{
    fs, io,
    os::fd::{AsRawFd, BorrowedFd},
    path::{Path, PathBuf},
};

/// The history of a timeline has a line for each before it.
const MOST_BYTES: u64 = 1 << 20;

/// The control file of a cluster that was shut down cleanly and is not running.
///
/// # Errors
/// [`Kind::Usage`] if it runs or was not shut down.
pub fn clean(data: &Path) -> Result<(Vec<u8>, Control)> {
    let (bytes, control) = control::read(&control::path(data))?;
    let cannot = |why: &str| {
        Error::new(
            ErrorKind::Usage,
            format!("cannot back up the cluster at {data:?}: {why}"),
        )
    };
    if is_running(data) {
        return Err(cannot("it is running and no connection was given")
            .hint("use postgres://… as the source, so that the server is told when the backup starts and ends"));
    }
    if !matches!(
        control.state,
        ControlState::ShutDown | ControlState::ShutDownInRecovery
    ) {
        return Err(cannot("it was not shut down cleanly")
            .hint("start it, and stop it with `pg_ctl stop -m fast`"));
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
    Err(Error::new(
        ErrorKind::System,
        format!("cannot complete the backup: the cluster at {data:?} was started meanwhile"),
    )
    .hint("use postgres://… as the source while it runs"))
}

/// Does the process that `postmaster.pid` names exist?
pub fn is_running(data: &Path) -> bool {
    postmaster(data).is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
}

/// A file of the data directory that has a few lines. Who backs it up may do more than who owns it: no link is followed, nothing
/// waited for, and not more read than that.
///
/// # Errors
/// As those of [`safe_file::read`].
pub fn small_text(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&safe_file::read(path, MOST_BYTES)?).into_owned())
}

/// The process that `postmaster.pid` names.
fn postmaster(data: &Path) -> Option<u32> {
    let text = small_text(&data.join("postmaster.pid")).ok()?;
    // In single-user mode it is written as a negative number.
    text.lines()
        .next()?
        .trim()
        .parse()
        .ok()
        .map(i32::unsigned_abs)
}

/// Why the file of this path in the directory `dir` is not to be copied as other files are: it is the control file of a cluster
/// whose server runs. Without it, nobody starts a server on a copy by accident (rule 9).
pub fn torn(dir: BorrowedFd<'_>, path: &[u8]) -> Option<String> {
    let is_control = path
        .strip_suffix(b"global/pg_control")
        .is_some_and(|at| at.is_empty() || at.ends_with(b"/"));
    let data =
        is_control.then(|| PathBuf::from(format!("/proc/self/fd/{}/..", dir.as_raw_fd())))?;
    let runs = platform::process_in(&data, "postgres").is_some() || is_hidden_server(&data);
    let why = "a PostgreSQL server runs on it: a copy of its files is no backup, use postgres://… as the source";
    runs.then(|| why.to_owned())
}

/// Does `postmaster.pid` name a server of which this process may not see where it runs?
fn is_hidden_server(data: &Path) -> bool {
    let Some(pid) = postmaster(data) else {
        return false;
    };
    let is_server =
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "postgres");
    is_server && fs::metadata(format!("/proc/{pid}/cwd")).is_err()
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
    let text = small_text(&path).map_err(|e| Error::io(format!("could not read {path:?}"), e))?;
    let text = text.trim().to_owned();
    match text.parse::<u32>() {
        Ok(major) if major >= 13 => Ok((text, major)),
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            format!("cannot back up PostgreSQL {text}: 13 and newer are known"),
        )),
    }
}
