//! Which segments were pushed before the server asked for them, in a directory of this user.
//!
//! A note is written when the segment is durable in the repository and was compared. The server's question is then
//! answered by comparing the file with its note. Losing a note costs a push that meets its own object. A note counts for
//! an hour, as the repository may be another one later.

use super::server_files::{FileStamp, WalDirectory};
use fullbore_format::wal::SegmentName;
use fullbore_platform::{debug, guarded_path::own_dir, write};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// How long a note counts.
const AGE: Duration = Duration::from_secs(3600);

/// The file that says when the repository was found.
const SEEN: &str = "repository";

/// Returns whether a note counts by its time.
fn is_recent(note: &Path) -> bool {
    let modified = fs::metadata(note).and_then(|meta| meta.modified());
    let age = modified.ok().and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age < AGE)
}

/// The notes of one cluster and one repository.
#[derive(Debug, Clone)]
pub(super) struct PushedAhead {
    /// `None` if this user has no place for notes.
    dir: Option<PathBuf>,
}

impl PushedAhead {
    /// The notes of this WAL in the repository at `location`, with the words by which it was named.
    pub(super) fn of(
        state_dir: Option<&Path>,
        location: &str,
        system: &str,
        wal: &WalDirectory,
    ) -> Self {
        let key = format!("{location}\n{system}\n{}", wal.real_path().display());
        let name = blake3::hash(key.as_bytes()).to_hex();
        let dir = state_dir.map(|state| state.join("wal").join(&name[..32]));
        Self { dir }
    }

    /// Returns whether this segment, as its file is now, is in the repository.
    pub(super) fn has(&self, segment: SegmentName, stamp: &FileStamp) -> bool {
        let Some(path) = self.path(segment) else {
            return false;
        };
        let note = fs::read_to_string(&path);
        note.is_ok_and(|note| note == format!("{}\n", stamp.line())) && is_recent(&path)
    }

    fn path(&self, segment: SegmentName) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(segment.to_string()))
    }

    /// Returns whether this process or an earlier one found the repository here within the time for which notes count.
    pub(super) fn has_seen_repository(&self) -> bool {
        let seen = self.dir.as_ref().map(|dir| dir.join(SEEN));
        seen.is_some_and(|seen| is_recent(&seen))
    }

    /// Notes that the repository is there. An error is none: it is looked for again then.
    pub(super) fn note_repository(&self) {
        let Some(dir) = &self.dir else { return };
        let noted = own_dir(dir).and_then(|_| fs::write(dir.join(SEEN), ""));
        if let Err(error) = noted {
            debug(|| format!("could not note that the repository is there: {error}"));
        }
    }

    /// Notes segments. An error is none: they are pushed again then.
    pub(super) fn note(&self, pushed: &[(SegmentName, FileStamp)]) {
        if pushed.is_empty() {
            return;
        }
        let noted = self.try_note(pushed);
        if let Err(error) = noted {
            debug(|| format!("could not note what was pushed: {error}"));
        }
    }

    fn try_note(&self, pushed: &[(SegmentName, FileStamp)]) -> io::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        own_dir(dir)?;
        self.remove_old(dir)?;
        for (segment, stamp) in pushed {
            let written = dir.join(format!("{segment}.{}", std::process::id()));
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&written)?;
            file.write_all(format!("{}\n", stamp.line()).as_bytes())?;
            fs::rename(&written, dir.join(segment.to_string()))?;
        }
        Ok(())
    }

    fn remove_old(&self, dir: &Path) -> io::Result<()> {
        let now = SystemTime::now();
        for entry in fs::read_dir(dir)?.flatten() {
            let name = entry.file_name();
            let is_note = name
                .to_str()
                .is_some_and(|name| name.len() >= 24 && SegmentName::parse(&name[..24]).is_some());
            let modified = entry.metadata().and_then(|meta| meta.modified());
            let is_old =
                modified.is_ok_and(|time| now.duration_since(time).is_ok_and(|age| age > AGE));
            if is_note && is_old {
                let _ = fs::remove_file(entry.path()); // it does not count any more
            }
        }
        Ok(())
    }

    /// Takes the lock of the one process that pushes ahead; `None` if another process has it, or there is no place for it.
    pub(super) fn lock(&self) -> Option<File> {
        let dir = self.dir.as_ref()?;
        own_dir(dir).ok()?;
        let path = dir.join("lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .ok()?;
        write::lock_exclusive(&file).ok()?.then_some(file)
    }
}
