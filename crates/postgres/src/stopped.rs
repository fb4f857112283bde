//! A stopped cluster: checks that it is stopped, and reads facts from its files.
//!
//! Also reads small text files of a data directory safely. A running server is the work of
//! `session`.

use super::control::{self, Control, ControlState};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform as platform;
use fullbore_platform::safe_file;
use fullbore_tree::incomplete::refuse_incomplete;
use std::{
    fs, io,
    os::fd::{AsRawFd, BorrowedFd},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Limit for small text files. A timeline's history, the longest of them, has one line for each
/// earlier timeline.
const MOST_BYTES: u64 = 1 << 20;

/// Returns the control file of a cluster, after checking that the cluster was shut down cleanly and
/// is not running.
///
/// # Errors
/// [`ErrorKind::Usage`] if the cluster runs or was not shut down.
pub fn read_clean_control(data: &Path) -> Result<(Vec<u8>, Control)> {
    refuse_incomplete(data)?;
    let (bytes, control) = control::read(&control::path(data))?;
    if is_running(data) {
        return Err(
            cannot_read_stopped("it is running and no connection was given", data).hint(
                "use postgres://… as the source, so that the server is told when the backup \
                starts and ends",
            ),
        );
    }
    if !matches!(
        control.state,
        ControlState::ShutDown | ControlState::ShutDownInRecovery
    ) {
        return Err(cannot_read_stopped("it was not shut down cleanly", data)
            .hint("start it, and stop it with `pg_ctl stop -m fast`"));
    }
    Ok((bytes, control))
}

fn cannot_read_stopped(reason: &str, data: &Path) -> Error {
    Error::new(
        ErrorKind::Usage,
        format!("cannot back up the cluster at {data:?}: {reason}"),
    )
}

/// Checks that the cluster was not started since [`read_clean_control`] returned these bytes.
///
/// # Errors
/// [`ErrorKind::System`] if it was: the backup is void.
pub fn check_still_stopped(data: &Path, bytes: &[u8]) -> Result<()> {
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

/// Time for a server to end that has removed `postmaster.pid`.
const ENDING_TIME: Duration = Duration::from_secs(5);

/// Returns the process of the server that runs in `data`. A server without `postmaster.pid` may be ending, because `pg_ctl
/// stop` returns once that file is gone: it has 5 seconds.
pub fn server_process(data: &Path) -> Option<u32> {
    let deadline = Instant::now() + ENDING_TIME;
    loop {
        let process = platform::process_in(data, "postgres")?;
        let may_end = data.join("postmaster.pid").symlink_metadata().is_err();
        if !may_end || Instant::now() >= deadline {
            return Some(process);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns whether the process named in `postmaster.pid` exists.
pub fn is_running(data: &Path) -> bool {
    postmaster_pid(data).is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
}

/// Reads a file of the data directory that has a few lines.
///
/// fullbore may run as root while the file's owner is another user. So a link is not followed, a
/// pipe is not waited for, and at most 1 MiB is read.
///
/// # Errors
/// Those of [`safe_file::read`].
pub fn read_small_text(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&safe_file::read(path, MOST_BYTES)?).into_owned())
}

/// The process ID in `postmaster.pid`.
fn postmaster_pid(data: &Path) -> Option<u32> {
    let text = read_small_text(&data.join("postmaster.pid")).ok()?;
    // A server in single-user mode writes the negative number.
    text.lines()
        .next()?
        .trim()
        .parse()
        .ok()
        .map(i32::unsigned_abs)
}

/// Returns a reason not to copy the file at `path` below `dir` like any other file: it is the
/// control file of a cluster whose server runs.
///
/// A copy without its control file cannot be started by accident (rule 9).
pub fn live_server_reason(dir: BorrowedFd<'_>, path: &[u8]) -> Option<String> {
    let is_control = path
        .strip_suffix(b"global/pg_control")
        .is_some_and(|place| place.is_empty() || place.ends_with(b"/"));
    let data =
        is_control.then(|| PathBuf::from(format!("/proc/self/fd/{}/..", dir.as_raw_fd())))?;
    let runs = server_process(&data).is_some() || is_hidden_server(&data);
    let reason = "a PostgreSQL server runs on it: a copy of its files is not a backup; use \
        postgres://… as the source";
    runs.then(|| reason.to_owned())
}

/// Returns whether `postmaster.pid` names a server whose working directory this process may not
/// see.
fn is_hidden_server(data: &Path) -> bool {
    let Some(pid) = postmaster_pid(data) else {
        return false;
    };
    let is_server =
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "postgres");
    is_server && fs::metadata(format!("/proc/{pid}/cwd")).is_err()
}

/// Returns whether `path` is the data directory of a cluster.
pub fn is_data_directory(path: &Path) -> bool {
    path.join("PG_VERSION").is_file() && path.join("global/pg_control").is_file()
}

/// Returns the text of `PG_VERSION`, and the major version.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the version is older than 13, or the system's error.
pub fn read_version(data: &Path) -> Result<(String, u32)> {
    let path = data.join("PG_VERSION");
    let text =
        read_small_text(&path).map_err(|e| Error::io(format!("could not read {path:?}"), e))?;
    let text = text.trim().to_owned();
    match text.parse::<u32>() {
        Ok(major) if major >= 13 => Ok((text, major)),
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            format!("cannot back up PostgreSQL {text}: versions 13 and newer are supported"),
        )),
    }
}
