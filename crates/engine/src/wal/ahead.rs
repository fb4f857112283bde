//! Segments that were fetched before the server asked for them, in a directory of this user.
//!
//! A fetch leaves a process behind that fetches the segments behind its own, in order and within a bound, and ends at the end
//! of the archive or when the server has not asked for a while. A segment gets its name in the directory when it is complete
//! and was checked; the server's question takes it from there. Without the directory every question is answered by the storage.

use super::{
    get::{cannot_write, unpack_into, write_beside},
    push::{location_name, system_name},
    system::run_with,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    wal::SegmentName,
};
use fullbore_platform::{boot_id, debug, guarded_path::own_dir, write};
use fullbore_postgres::wal_archive::check_segment_begin;
use fullbore_repository::wal::WalArchive;
use fullbore_storage::Storages;
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
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
    boot: String,
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
        let boot = boot_id();
        Self { dir, boot }
    }

    /// Gives a segment of a system the name `target`. Returns false if it was not fetched.
    pub(super) fn take(&self, segment: SegmentName, system: u64, target: &Path) -> bool {
        let Some(dir) = &self.dir else { return false };
        let path = dir.join(self.file_name(segment));
        let Ok(mut file) = File::open(&path) else {
            return false;
        };
        let is_right = is_segment(&mut file, segment, system);
        let is_moved = is_right && move_file(&path, target).is_ok();
        let _ = fs::remove_file(&path); // it makes room, and is not asked for again
        self.note_asked(segment);
        is_moved
    }

    /// A file without sync may have zeros after a crash of the machine: one of an earlier boot has another name.
    fn file_name(&self, segment: SegmentName) -> String {
        format!("{segment}.{}", self.boot)
    }

    /// Returns whether a process fetches ahead.
    pub(super) fn is_locked(&self) -> bool {
        let has_dir = self.dir.as_ref().is_some_and(|dir| own_dir(dir).is_ok());
        has_dir && self.lock().is_none()
    }

    /// Notes which segment the server asked for. An error is none: the process behind fetches what is not needed any more.
    pub(super) fn note_asked(&self, segment: SegmentName) {
        let noted = self.write(ASKED, &mut |file| {
            file.write_all(segment.to_string().as_bytes())
                .map_err(|error| Error::io("could not note what was asked for", error))
        });
        if let Err(error) = noted {
            debug(|| error.line());
        }
    }

    fn asked(&self) -> Option<SegmentName> {
        let asked = fs::read_to_string(self.dir.as_ref()?.join(ASKED)).ok()?;
        SegmentName::parse(&asked)
    }

    /// Lets `fill` write a file, which has its name when it is complete.
    fn write(&self, name: &str, fill: &mut dyn FnMut(&mut File) -> Result<()>) -> Result<()> {
        let failed = |error| Error::io(format!("could not keep {name}"), error);
        let dir = self.dir.as_ref();
        let dir = dir.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        own_dir(dir).map_err(failed)?;
        let written = dir.join(format!("{name}.{}.new", std::process::id()));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&written)
            .map_err(failed)?;
        let filled = fill(&mut file);
        if filled.is_err() {
            let _ = fs::remove_file(&written); // of no use without the rest
        }
        filled?;
        fs::rename(&written, dir.join(name)).map_err(failed)
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

    /// Returns the files of segments that wait, and the bytes of all.
    fn waiting(&self) -> (Vec<String>, u64) {
        let listed = self.dir.as_ref().and_then(|dir| fs::read_dir(dir).ok());
        let mut names = Vec::new();
        let mut bytes = 0;
        for entry in listed.into_iter().flatten().flatten() {
            let name = entry.file_name();
            if let Some(name) = name.to_str().filter(|name| is_fetched(name)) {
                names.push(name.to_owned());
                bytes += entry.metadata().map_or(0, |meta| meta.len());
            }
        }
        (names, bytes)
    }

    fn remove(&self, names: &[String]) {
        let Some(dir) = &self.dir else { return };
        for name in names {
            let _ = fs::remove_file(dir.join(name)); // the server may have taken it
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
            archive.read_segments(&stored, next, &mut |name, packed| {
                segment_bytes = Some(packed.segment_bytes);
                last = name;
                if self
                    .asked()
                    .is_some_and(|asked| asked >= name && asked.timeline == name.timeline)
                {
                    return Ok(true); // the server was faster
                }
                is_over = !self.has_room(packed.segment_bytes);
                if is_over {
                    return Ok(false);
                }
                self.write(&self.file_name(name), &mut |file| {
                    unpack_into(file, &packed, name).map(drop)
                })?;
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

/// Returns whether a file in the directory is a segment, of whichever boot.
fn is_fetched(name: &str) -> bool {
    let parts = name.split_once('.');
    parts.is_some_and(|(segment, boot)| {
        SegmentName::parse(segment).is_some() && !boot.ends_with(".new")
    })
}

/// Returns whether a file is a segment of this system, by its length and its first page: it was checked when it was written.
fn is_segment(file: &mut File, segment: SegmentName, system: u64) -> bool {
    let mut begin = [0; 512];
    let bytes = file.metadata().map_or(0, |meta| meta.len());
    let is_read = file.read_exact(&mut begin).is_ok();
    let facts = check_segment_begin(&begin, bytes, segment);
    is_read && facts.is_ok_and(|facts| facts.system == system)
}

/// Moves a file. To another file system it is copied.
fn move_file(source: &Path, target: &Path) -> Result<()> {
    let failed = |error| cannot_write(target, error);
    match fs::rename(source, target) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            write_beside(target, &mut |file| {
                let copied = File::open(source).and_then(|mut source| io::copy(&mut source, file));
                copied.map(drop).map_err(failed)
            })
        }
        moved => moved.map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_postgres::sample_wal::{SAMPLE_SYSTEM as SYSTEM, sample_segment};

    const SEGMENT: SegmentName = SegmentName {
        timeline: 1,
        log: 0,
        number: 5,
    };

    fn segment(start: u64) -> Vec<u8> {
        sample_segment(1, start, 1 << 20)
    }

    /// Has one file with this content, which was fetched in this boot.
    fn fetched(dir: &Path, boot: &str, content: &[u8]) -> FetchedAhead {
        let fetched = FetchedAhead {
            dir: Some(dir.to_owned()),
            boot: "now".to_owned(),
        };
        let path = dir.join(format!("{SEGMENT}.{boot}"));
        fs::write(path, content).unwrap();
        fetched
    }

    #[test]
    fn a_segment_is_moved_to_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("RECOVERYXLOG");
        let fetched = fetched(dir.path(), "now", &segment(5 << 20));
        assert!(fetched.take(SEGMENT, SYSTEM, &target));
        assert!(fs::read(&target).unwrap() == segment(5 << 20));
        assert_eq!(fetched.waiting(), (Vec::new(), 0));
        assert_eq!(fetched.asked(), Some(SEGMENT));
    }

    #[test]
    fn to_another_file_system_it_is_copied() {
        let (from, to) = (
            tempfile::tempdir().unwrap(),
            tempfile::tempdir_in("/dev/shm").unwrap(),
        );
        let target = to.path().join("RECOVERYXLOG");
        let fetched = fetched(from.path(), "now", &segment(5 << 20));
        assert!(fetched.take(SEGMENT, SYSTEM, &target));
        assert!(fs::read(&target).unwrap() == segment(5 << 20));
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
        assert_eq!(fetched.waiting(), (Vec::new(), 0));
    }

    #[test]
    fn one_of_an_earlier_boot_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("RECOVERYXLOG");
        let fetched = fetched(dir.path(), "before", &segment(5 << 20));
        assert!(!fetched.take(SEGMENT, SYSTEM, &target));
        assert!(!target.exists());
        let (names, bytes) = fetched.waiting();
        assert_eq!((names.len(), bytes), (1, 1 << 20));
        fetched.remove(&names);
        assert_eq!(fetched.waiting(), (Vec::new(), 0));
    }

    #[test]
    fn one_that_is_short_or_of_another_place_or_system_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("RECOVERYXLOG");
        let short = segment(5 << 20)[..9000].to_vec();
        for (content, system) in [
            (short, SYSTEM),
            (segment(6 << 20), SYSTEM),
            (segment(5 << 20), SYSTEM + 1),
            (Vec::new(), SYSTEM),
        ] {
            let fetched = fetched(dir.path(), "now", &content);
            assert!(!fetched.take(SEGMENT, system, &target));
            assert!(!target.exists());
            assert_eq!(fetched.waiting(), (Vec::new(), 0), "it makes room");
        }
    }
}
