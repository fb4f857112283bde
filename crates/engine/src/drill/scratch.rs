//! The scratch directory of a drill, and what a killed drill has left.
//!
//! Each drill has a directory of its own with a lock that the system releases when the process ends, however it ends.
//! A directory without a living owner is removed by the next drill of the same user, with the server that still
//! runs in it.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{process_in, user_id};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::{self, DirBuilder, File, TryLockError},
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// What the names of scratch directories begin with.
const PREFIX: &str = "fullbore-drill-";
const LOCK: &str = "lock";
/// Name of the lock before it is held.
const NEW_LOCK: &str = "lock.new";
/// Age of a directory without a lock that counts as left: a drill makes its lock at once.
const AGE: Duration = Duration::from_secs(60);
/// Name of a server's process.
const SERVER: &str = "postgres";
/// Time for a server to stop at once, and then to die.
const STOP: Duration = Duration::from_secs(6);
/// Time for both when this process was told to end.
const SHORT_STOP: Duration = Duration::from_millis(1200);
/// Bytes in the address of a socket.
const SOCKET_BYTES: usize = 107;

/// The directory of the drill of this process, for a signal.
static RUNNING: Mutex<Option<PathBuf>> = Mutex::new(None);

/// A scratch directory. Dropped, it is removed.
#[derive(Debug)]
pub(super) struct Scratch {
    top: PathBuf,
    _lock: File,
}

/// Ends the server of a drill that runs in this process, and removes its files. For a signal handler's thread; what
/// does not end in time is left to the next drill.
pub fn end_drill() {
    let running = RUNNING.lock().ok().and_then(|mut running| running.take());
    if let Some(top) = running {
        let begun = Instant::now();
        // A restore that still writes makes new files beside the removal.
        while remove(&top, SHORT_STOP).is_err() && begun.elapsed() < SHORT_STOP {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Scratch {
    /// Removes what killed drills have left in `dir`, and makes a scratch directory there.
    ///
    /// # Errors
    /// The system's, and if a server of a killed drill does not end.
    pub(super) fn new(dir: &Path) -> Result<Self> {
        let dir = &std::path::absolute(dir)
            .map_err(|e| Error::io(format!("could not find {dir:?}"), e))?;
        remove_leftovers(dir)?;
        let random = RandomState::new().build_hasher().finish();
        let top = dir.join(format!("{PREFIX}{random:016x}"));
        check_socket_name(&top)?;
        let failed = |e| Error::io(format!("could not make the scratch directory {top:?}"), e);
        // The server of a drill by root is another user, and needs a way to its own directories.
        let mode = if user_id() == 0 { 0o711 } else { 0o700 };
        DirBuilder::new().mode(mode).create(&top).map_err(failed)?;
        let lock = take_lock(&top).map_err(failed)?;
        if let Ok(mut running) = RUNNING.lock() {
            *running = Some(top.clone());
        }
        Ok(Self { top, _lock: lock })
    }

    /// The directory itself.
    pub(super) fn top(&self) -> &Path {
        &self.top
    }

    /// The data directory, which the restore makes.
    pub(super) fn data(&self) -> PathBuf {
        data_in(&self.top)
    }

    /// Directory of the tablespaces, which the restore makes.
    pub(super) fn tablespaces(&self) -> PathBuf {
        self.top.join("tablespaces")
    }

    /// Directory of the server's socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.top.join("s")
    }

    /// A file that only this process writes.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.top.join(name)
    }

    /// Removes everything.
    ///
    /// # Errors
    /// The system's, and if the server does not end.
    pub(super) fn remove(self) -> Result<()> {
        remove(&self.top, STOP)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.top.exists() {
            let _ = remove(&self.top, STOP);
        }
        if let Ok(mut running) = RUNNING.lock() {
            *running = None;
        }
    }
}

fn data_in(top: &Path) -> PathBuf {
    top.join("data")
}

/// Takes the lock before it has its name: a lock that can be taken has no living owner.
fn take_lock(top: &Path) -> io::Result<File> {
    let new = top.join(NEW_LOCK);
    let file = File::create_new(&new)?;
    file.lock()?;
    fs::rename(new, top.join(LOCK))?;
    Ok(file)
}

/// The address of a socket has room for 107 bytes.
fn check_socket_name(top: &Path) -> Result<()> {
    let name = top.join("s/.s.PGSQL.5432");
    if name.as_os_str().len() <= SOCKET_BYTES {
        return Ok(());
    }
    let message = format!("cannot drill in {top:?}: the name is too long for a socket");
    Err(Error::new(ErrorKind::Usage, message).hint("choose a directory with a shorter name: --dir"))
}

/// Removes the directories of drills of this user that have no living owner.
fn remove_leftovers(dir: &Path) -> Result<()> {
    let failed = |e| Error::io(format!("could not read the directory {dir:?}"), e);
    for entry in fs::read_dir(dir).map_err(failed)?.flatten() {
        let is_named = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PREFIX));
        let path = entry.path();
        if is_named && is_left(&path) {
            remove(&path, STOP)?;
        }
    }
    Ok(())
}

/// Returns whether this is the directory of a drill of this user that has ended without removing it.
fn is_left(top: &Path) -> bool {
    let Some(meta) = fs::symlink_metadata(top).ok().filter(is_own) else {
        return false;
    };
    match File::open(top.join(LOCK)) {
        Ok(lock) => !matches!(lock.try_lock(), Err(TryLockError::WouldBlock)),
        Err(_) => {
            let age = meta
                .modified()
                .ok()
                .and_then(|modified| modified.elapsed().ok());
            age.is_some_and(|age| age > AGE)
        }
    }
}

fn is_own(meta: &fs::Metadata) -> bool {
    meta.is_dir() && meta.uid() == user_id()
}

/// Ends the server in a scratch directory, and removes the directory.
fn remove(top: &Path, limit: Duration) -> Result<()> {
    let data = data_in(top);
    if !end_servers(&data, Signal::QUIT, limit) && !end_servers(&data, Signal::KILL, limit) {
        let message = format!("could not end the server of a drill in {data:?}");
        return Err(
            Error::new(ErrorKind::System, message).hint("stop it, and remove the directory")
        );
    }
    fs::remove_dir_all(top)
        .map_err(|e| Error::io(format!("could not remove the scratch directory {top:?}"), e))
}

/// Signals the server's processes until none is left. Returns whether they have ended.
fn end_servers(data: &Path, signal: Signal, limit: Duration) -> bool {
    let begun = Instant::now();
    let mut signalled = Vec::new();
    while let Some(process) = process_in(data, SERVER) {
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        // A second SIGQUIT gains nothing; of SIGKILL each process needs one.
        if let Some(pid) = pid.filter(|pid| !signalled.contains(pid)) {
            let _ = kill_process(pid, signal);
            signalled.push(pid);
        }
        if begun.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().flatten();
        names
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn what_a_killed_drill_left_is_removed_and_that_of_a_living_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let living = Scratch::new(dir.path()).unwrap();
        let dead = dir.path().join(format!("{PREFIX}dead"));
        let begun = dir.path().join(format!("{PREFIX}begun"));
        let other = dir.path().join("other");
        for made in [&dead, &begun, &other] {
            fs::create_dir_all(made.join("data/base")).unwrap();
        }
        fs::write(dead.join(LOCK), "").unwrap();
        let next = Scratch::new(dir.path()).unwrap();
        assert!(!dead.exists() && begun.exists() && other.exists());
        assert!(living.top.exists() && next.top.exists());
        next.remove().unwrap();
        drop(living);
        assert_eq!(names(dir.path()).len(), 2);
    }

    #[test]
    fn a_link_with_the_name_of_a_scratch_directory_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join(LOCK), "").unwrap();
        std::os::unix::fs::symlink(&kept, dir.path().join(format!("{PREFIX}x"))).unwrap();
        Scratch::new(dir.path()).unwrap().remove().unwrap();
        assert!(kept.join(LOCK).exists());
    }

    #[test]
    fn a_directory_with_a_long_name_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(80));
        fs::create_dir(&long).unwrap();
        assert_eq!(Scratch::new(&long).unwrap_err().kind, ErrorKind::Usage);
        assert!(names(&long).is_empty());
    }
}
