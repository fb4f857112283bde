//! Segments that were fetched before the server asked for them, in a directory of this user.
//!
//! A fetch leaves a process behind that fetches the segments behind its own, in order and within a bound, and ends at the end
//! of the archive or when the server has not asked for a while. A segment gets its name in the directory when it is complete
//! and was checked; the server's question takes it from there. Without the directory every question is answered by the storage.

use super::{
    push::{location_name, system_name},
    system::run_with,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    wal::SegmentName,
};
use fullbore_platform::{debug, guarded_path::own_dir, write};
use fullbore_postgres::wal_archive::check_segment;
use fullbore_repository::wal::WalArchive;
use fullbore_storage::Storages;
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Bytes that wait in the directory at most.
const MAX_BYTES: u64 = 256 << 20;
/// Pause while the directory is full.
const LOOK: Duration = Duration::from_millis(20);
/// The process ends if the server takes nothing for so long.
const IDLE: Duration = Duration::from_secs(60);
/// The file with the name of the segment that the server asked for last.
const ASKED: &str = "asked";

/// Fetches the segments behind one.
#[derive(Debug, Clone)]
pub struct WalAhead {
    /// How storages are reached.
    pub storages: Storages,
    /// The name of the segment that the server has.
    pub name: String,
    /// The repository.
    pub from: OsString,
    /// The system identifier.
    pub system: u64,
    /// The name of a copy of a cluster.
    pub copy_name: Option<String>,
    /// Of segments that two hosts archived with different content, that of this host is fetched.
    pub wal_from: Option<String>,
    /// The data directory of the server.
    pub data: PathBuf,
}

impl WalAhead {
    /// Fetches until the archive ends, or the server asks no more. Does nothing if another process does this already.
    ///
    /// # Errors
    /// The storage's, and those of the segments: the server gets them when it asks.
    pub fn run(&self) -> Result<()> {
        let last = SegmentName::parse(&self.name).ok_or_else(|| {
            let message = format!(
                "cannot fetch what is behind {:?}: it is no segment",
                self.name
            );
            Error::new(ErrorKind::Usage, message)
        })?;
        let objects = self.storages.repository_at(&self.from)?;
        let system = system_name(self.system, self.copy_name.as_deref());
        let archive = WalArchive::new(objects, &system).preferring(self.wal_from.clone());
        let host = self.wal_from.as_deref();
        FetchedAhead::of(&self.storages, &self.from, &system, host, &self.data).run(&archive, last)
    }
}

/// The directory for one cluster and one repository.
#[derive(Debug, Clone)]
pub(super) struct FetchedAhead {
    dir: Option<PathBuf>,
}

impl FetchedAhead {
    /// Of the segments of a system in the repository that `from` names, for the server with this data directory.
    pub(super) fn of(
        storages: &Storages,
        from: &OsString,
        system: &str,
        wal_from: Option<&str>,
        data: &Path,
    ) -> Self {
        let data = if data.as_os_str().is_empty() {
            Path::new(".")
        } else {
            data
        };
        let data = data.canonicalize().unwrap_or_else(|_| data.to_owned());
        let key = format!(
            "fetched\n{}\n{system} {}\n{}",
            location_name(storages, from),
            wal_from.unwrap_or_default(),
            data.display()
        );
        let name = blake3::hash(key.as_bytes()).to_hex();
        let dir = storages.state_dir();
        let dir = dir.map(|state| state.join("wal").join(&name[..32]));
        Self { dir }
    }

    /// Takes a segment of a system that is there.
    pub(super) fn take(&self, segment: SegmentName, system: u64) -> Option<Vec<u8>> {
        let path = self.dir.as_ref()?.join(segment.to_string());
        let content = fs::read(&path).ok()?;
        let _ = fs::remove_file(&path); // it makes room, and is not asked for again
        self.note_asked(segment);
        let facts = check_segment(&content, segment).ok()?;
        (facts.system == system).then_some(content)
    }

    /// Returns whether a process fetches ahead.
    pub(super) fn is_locked(&self) -> bool {
        let has_dir = self.dir.as_ref().is_some_and(|dir| own_dir(dir).is_ok());
        has_dir && self.lock().is_none()
    }

    /// Notes which segment the server asked for. An error is none: the process behind fetches what is not needed any more.
    pub(super) fn note_asked(&self, segment: SegmentName) {
        let noted = self.write(ASKED, segment.to_string().as_bytes());
        if let Err(error) = noted {
            debug(|| format!("could not note what was asked for: {error}"));
        }
    }

    fn asked(&self) -> Option<SegmentName> {
        let asked = fs::read_to_string(self.dir.as_ref()?.join(ASKED)).ok()?;
        SegmentName::parse(&asked)
    }

    fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let Some(dir) = &self.dir else {
            return Err(io::ErrorKind::NotFound.into());
        };
        own_dir(dir)?;
        let written = dir.join(format!("{name}.{}.new", std::process::id()));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&written)?;
        file.write_all(content)?;
        fs::rename(&written, dir.join(name))
    }

    /// Takes the lock of the one process that fetches ahead.
    fn lock(&self) -> Option<File> {
        let dir = self.dir.as_ref()?;
        own_dir(dir).ok()?;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join("lock"))
            .ok()?;
        write::lock_exclusive(&file).ok()?.then_some(file)
    }

    /// Returns the segments that wait, and the bytes of all.
    fn waiting(&self) -> (Vec<SegmentName>, u64) {
        let listed = self.dir.as_ref().and_then(|dir| fs::read_dir(dir).ok());
        let mut names = Vec::new();
        let mut bytes = 0;
        for entry in listed.into_iter().flatten().flatten() {
            let name = entry.file_name();
            if let Some(segment) = name.to_str().and_then(SegmentName::parse) {
                names.push(segment);
                bytes += entry.metadata().map_or(0, |meta| meta.len());
            }
        }
        (names, bytes)
    }

    fn remove(&self, segments: &[SegmentName]) {
        let Some(dir) = &self.dir else { return };
        for segment in segments {
            let _ = fs::remove_file(dir.join(segment.to_string())); // the server may have taken it
        }
    }

    /// Fetches the segments behind `last`, until the archive ends or the server asks no more.
    ///
    /// # Errors
    /// The storage's, and those of the segments: the server gets them when it asks.
    pub(super) fn run(&self, archive: &WalArchive, last: SegmentName) -> Result<()> {
        let Some(_lock) = self.lock() else {
            return Ok(());
        };
        let (left, _) = self.waiting();
        self.remove(&left);
        let fetched = self.fetch_behind(archive, last);
        // What the server did not take is of no use to a later recovery.
        let (left, _) = self.waiting();
        self.remove(&left);
        fetched
    }

    fn fetch_behind(&self, archive: &WalArchive, last: SegmentName) -> Result<()> {
        let mut last = last;
        let mut segment_bytes = None;
        loop {
            let next = match segment_bytes {
                None => SegmentName {
                    number: last.number + 1,
                    ..last
                },
                Some(bytes) => last.next(bytes),
            };
            let Some(stored) = run_with(archive, next)? else {
                return self.wait_until_taken();
            };
            let mut is_over = false;
            archive.read_segments(&stored, next, &mut |name, content| {
                segment_bytes = Some(content.len() as u64);
                last = name;
                if self
                    .asked()
                    .is_some_and(|asked| asked >= name && asked.timeline == name.timeline)
                {
                    return Ok(true); // the server was faster
                }
                is_over = !self.has_room(content.len() as u64);
                if is_over {
                    return Ok(false);
                }
                check_segment(&content, name)?;
                self.write(&name.to_string(), &content)
                    .map_err(|error| Error::io(format!("could not keep {name}"), error))?;
                Ok(true)
            })?;
            if is_over {
                return Ok(());
            }
        }
    }

    /// Waits for room. False if the server takes nothing.
    fn has_room(&self, bytes: u64) -> bool {
        let mut changed = Instant::now();
        let mut least = u64::MAX;
        loop {
            let (_, used) = self.waiting();
            if used + bytes <= MAX_BYTES {
                return true;
            }
            if used < least {
                (least, changed) = (used, Instant::now());
            }
            if changed.elapsed() >= IDLE {
                return false;
            }
            thread::sleep(LOOK);
        }
    }

    fn wait_until_taken(&self) -> Result<()> {
        let begun = Instant::now();
        while !self.waiting().0.is_empty() && begun.elapsed() < IDLE {
            thread::sleep(LOOK);
        }
        Ok(())
    }
}
