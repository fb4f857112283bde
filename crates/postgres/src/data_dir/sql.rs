//! A data directory that is read by SQL, through several sessions with its server.

use super::{DataDir, FileIdentity, FileRange, FoundFile, RangeReceiver};
use crate::{
    conninfo::Params,
    session::{ConfigPlaces, FileSession, ServerMark, Session},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    root::Tablespace,
};
use fullbore_platform::{
    self as platform,
    dir::{DirName, FileKind},
    queue::{Locked, start_in},
};
use std::{
    collections::HashSet,
    fmt,
    num::NonZeroUsize,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, PoisonError},
    thread,
};

/// Sessions that read files, unless the user gives a number.
///
/// Measured on one host: 1 session reads 0.8 to 1.6 GB/s, 2 up to 2.0, 4 up to 2.4.
pub const SESSIONS: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// A data directory that is read by SQL.
pub struct SqlDir {
    path: PathBuf,
    /// Sessions that no thread uses now.
    idle: Mutex<Vec<FileSession>>,
    is_idle: Condvar,
    /// Number of sessions.
    count: usize,
}

impl SqlDir {
    /// Opens `count` sessions with the server of `session` that read files, and one more for questions;
    /// fewer if the server accepts no more.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] with the statements to run, if the role may not read files; those
    /// of connecting, for the first session.
    pub(crate) fn open(
        params: &Params,
        session: &mut Session,
        path: PathBuf,
        count: NonZeroUsize,
    ) -> Result<Self> {
        let missing = session.missing_file_rights()?;
        if !missing.is_empty() {
            return Err(session.file_rights_error(missing));
        }
        let server = session.mark()?;
        let idle = open_sessions(params, &server, count)?;
        Ok(Self {
            path,
            count: idle.len(),
            idle: Mutex::new(idle),
            is_idle: Condvar::new(),
        })
    }

    /// Asks where the configuration is.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn config_places(&self) -> Result<ConfigPlaces> {
        self.with(FileSession::config_places)
    }

    /// Returns the settings that files set, with their values.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn file_settings(&self) -> Result<Vec<(String, String)>> {
        self.with(FileSession::file_settings)
    }

    /// Returns the files of a listing, with links told from directories.
    fn checked(&self, dir: &[u8], mut found: Vec<FoundFile>) -> Result<Vec<FoundFile>> {
        if dir.is_empty() {
            // A socket cannot be told from a file, and the server cannot open it.
            found.retain(|file| !file.name.starts_with(b".s.PGSQL."));
        }
        if dir == b"pg_tblspc" {
            let linked: HashSet<Vec<u8>> = self
                .tablespaces()?
                .iter()
                .map(|space| space.oid.to_string().into_bytes())
                .collect();
            for file in found.iter_mut().filter(|file| linked.contains(&file.name)) {
                file.kind = FileKind::Symlink;
            }
        }
        match found.iter().find(|file| file.name.contains(&b'/')) {
            Some(file) => {
                let message = format!("cannot list {}", quoted(dir));
                let why = format!("a name is {}", quoted(&file.name));
                Err(Error::new(ErrorKind::Unsupported, message).because(why))
            }
            None => Ok(found),
        }
    }

    /// Runs `run` in a session that no other thread uses, and waits for one.
    fn with<T>(&self, run: impl FnOnce(&mut FileSession) -> Result<T>) -> Result<T> {
        let mut idle = self.idle.locked();
        let mut session = loop {
            match idle.pop() {
                Some(session) => break session,
                None => {
                    let woken = self.is_idle.wait(idle);
                    idle = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(idle);
        let done = run(&mut session);
        self.idle.locked().push(session);
        self.is_idle.notify_one();
        done
    }
}

fn open_sessions(
    params: &Params,
    server: &ServerMark,
    count: NonZeroUsize,
) -> Result<Vec<FileSession>> {
    // All at once: over a slow line each takes a second.
    let opened = thread::scope(|scope| {
        let open = |_| start_in(scope, || FileSession::open(params, server));
        let opening: Vec<_> = (0..=count.get()).map(open).collect();
        let joined = |opening: Result<thread::ScopedJoinHandle<'_, Result<FileSession>>>| {
            opening?.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        opening.into_iter().map(joined).collect::<Vec<_>>()
    });
    let mut sessions = Vec::with_capacity(opened.len());
    let mut failed = None;
    for opened in opened {
        match opened {
            Ok(session) => sessions.push(session),
            Err(error) => {
                platform::debug(|| format!("fewer sessions read: {}", error.line()));
                failed.get_or_insert(error);
            }
        }
    }
    match failed {
        Some(error) if sessions.is_empty() => Err(error),
        _ => Ok(sessions),
    }
}

impl Drop for SqlDir {
    /// Ends the sessions all at once: each waits for its server.
    fn drop(&mut self) {
        let idle = std::mem::take(&mut *self.idle.locked());
        thread::scope(|scope| {
            for session in idle {
                // If no thread can be started, the session ends here.
                _ = start_in(scope, move || drop(session));
            }
        });
    }
}

impl fmt::Debug for SqlDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqlDir({:?}, {} sessions)", self.path, self.count)
    }
}

impl DataDir for SqlDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn list(&self, dir: &[u8]) -> Result<Vec<FoundFile>> {
        let found = self.with(|session| session.list(&[dir]))?;
        self.checked(dir, found.into_iter().flatten().collect())
    }

    fn names_of_all(&self, dirs: &[&[u8]]) -> Result<Vec<Vec<DirName>>> {
        let found = self.with(|session| session.list(dirs))?;
        let name = |(dir, found): (&&[u8], Vec<FoundFile>)| {
            let checked = self.checked(dir, found)?;
            Ok(checked.into_iter().map(FoundFile::into_name).collect())
        };
        dirs.iter().zip(found).map(name).collect()
    }

    fn stat(&self, paths: &[&[u8]]) -> Result<Vec<Option<FoundFile>>> {
        let found = self.with(|session| session.stat(paths))?;
        let file = |found: Option<(FoundFile, i64)>| found.map(|(file, _)| file);
        Ok(found.into_iter().map(file).collect())
    }

    fn read(&self, ranges: &[FileRange<'_>], each: RangeReceiver<'_>) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        self.with(|session| session.read(ranges, each))
    }

    /// One session is left for the others.
    fn fetchers(&self) -> usize {
        self.count - 1
    }

    fn tablespaces(&self) -> Result<Vec<Tablespace>> {
        let mut found = self.with(FileSession::tablespaces)?;
        // An in-place tablespace has a relative path: it is a directory.
        found.retain(|space| space.location.0.starts_with(b"/"));
        Ok(found)
    }

    fn identity(&self, path: &[u8]) -> Result<Option<FileIdentity>> {
        let found = self.with(|session| session.stat(&[path]))?;
        let change = found.into_iter().flatten().next();
        Ok(change.map(|(_, seconds)| FileIdentity {
            inode: 0,
            ctime: format!("{seconds}.000000000"),
        }))
    }
}
