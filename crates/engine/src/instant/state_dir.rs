//! The directory beside a target that has the state of its instant restore.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{place::dir_of, write::lock_exclusive};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Names of the files in the directory.
const PLAN: &str = "plan";
const UNITS: &str = "units";
const LOCK: &str = "lock";
const WORKER_LOCK: &str = "worker-lock";
const LOG: &str = "log";

/// The state directory `.NAME.fullbore-instant` of the target `NAME`.
#[derive(Debug, Clone)]
pub(super) struct StateDir {
    pub(super) path: PathBuf,
    /// Where the tree is made before it gets its name: `.NAME.fullbore-incomplete`.
    pub(super) hidden: PathBuf,
    pub(super) target: PathBuf,
    /// What the state directory is called while it is removed.
    ended: PathBuf,
}

impl StateDir {
    /// Returns the places for a target, which may be relative to the working directory.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a target without a name, such as `/`; the system's.
    pub(super) fn of(target: &Path) -> Result<Self> {
        let failed = |e| Error::io(format!("could not look at {target:?}"), e);
        let target = std::path::absolute(target).map_err(failed)?;
        let Some(name) = target.file_name() else {
            let message = format!("cannot restore to {target:?} with --instant");
            return Err(Error::new(ErrorKind::Usage, message)
                .because("its state needs a place beside the target"));
        };
        let beside = |ending: &str| dir_of(&target).join(hidden_name(name, ending));
        Ok(Self {
            path: beside("instant"),
            hidden: beside("incomplete"),
            ended: beside("ended"),
            target: target.clone(),
        })
    }

    /// Makes the directory, and takes its lock.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if there is one already; the system's.
    pub(super) fn create(&self) -> Result<File> {
        // Of an earlier restore that was killed at its end.
        let _ = fs::remove_dir_all(&self.ended);
        let made = DirBuilder::new().mode(0o700).create(&self.path);
        match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                // Fails if another process has the lock.
                drop(self.lock()?);
                let message = format!(
                    "cannot restore to {:?}: an instant restore of it did not end",
                    self.target
                );
                return Err(Error::new(ErrorKind::Exists, message).hint(format!(
                    "go on with it: add --resume; or remove {:?}, {:?} and the target",
                    self.path, self.hidden
                )));
            }
            made => made.map_err(|e| self.error("make", e))?,
        }
        self.lock()
    }

    /// Takes the lock of the whole restore.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if another process has it; [`ErrorKind::NotFound`] without a state; the system's.
    pub(super) fn lock(&self) -> Result<File> {
        self.lock_file(LOCK)?.ok_or_else(|| {
            let message = format!(
                "cannot restore to {:?}: its instant restore is running",
                self.target
            );
            Error::new(ErrorKind::Exists, message).hint("--status shows how far it is")
        })
    }

    /// Takes the lock of the process that writes content; `None` if another process has it.
    ///
    /// # Errors
    /// As [`StateDir::lock`].
    pub(super) fn worker_lock(&self) -> Result<Option<File>> {
        self.lock_file(WORKER_LOCK)
    }

    fn lock_file(&self, name: &str) -> Result<Option<File>> {
        if !self.path.is_dir() {
            let message = format!("could not find an instant restore of {:?}", self.target);
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        let file = self.open(name)?;
        let is_locked = lock_exclusive(&file).map_err(|e| self.error("lock", e))?;
        Ok(is_locked.then_some(file))
    }

    /// Returns whether a process holds the lock.
    pub(super) fn is_served(&self) -> bool {
        self.path.is_dir() && self.lock_file(LOCK).is_ok_and(|lock| lock.is_none())
    }

    fn open(&self, name: &str) -> Result<File> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let opened = options.mode(0o600).open(self.path.join(name));
        opened.map_err(|e| self.error("open a file in", e))
    }

    pub(super) fn units(&self) -> Result<File> {
        self.open(UNITS)
    }

    pub(super) fn plan(&self) -> PathBuf {
        self.path.join(PLAN)
    }

    /// Opens the log of the processes in the background, for appending.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn log(&self) -> Result<File> {
        let mut options = OpenOptions::new();
        let opened = options
            .append(true)
            .create(true)
            .mode(0o600)
            .open(self.path.join(LOG));
        opened.map_err(|e| self.error("open the log in", e))
    }

    /// Returns the last line of the log.
    pub(super) fn last_log_line(&self) -> Option<String> {
        let text = fs::read_to_string(self.path.join(LOG)).ok()?;
        text.lines().last().map(str::to_owned)
    }

    /// Removes the state: the target is complete, or was not begun.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn remove(&self) -> Result<()> {
        // Renamed first, so that it goes at once: another process that opens its lock would make that file again.
        let removed =
            fs::rename(&self.path, &self.ended).and_then(|()| fs::remove_dir_all(&self.ended));
        removed.map_err(|e| self.error("remove", e))
    }

    pub(super) fn error(&self, doing: &str, error: io::Error) -> Error {
        Error::io(format!("could not {doing} {:?}", self.path), error)
    }
}

fn hidden_name(name: &OsStr, ending: &str) -> OsString {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".fullbore-{ending}"));
    hidden
}
