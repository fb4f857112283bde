//! The files of a server that archives: its WAL, and the marks beside it.

use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    wal::{SegmentName, WalFileName},
};
use fullbore_platform::{exact_read::read_exactly, safe_file};
use fullbore_postgres::{
    control,
    wal_archive::{SegmentFacts, check_segment_begin},
};
use std::{
    collections::BTreeSet,
    fs::{self, File, Metadata},
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

/// Bytes of a history or a label at most.
const MAX_SMALL_BYTES: u64 = 64 << 10;
/// Bytes of a segment that are read at once: they stay in the cache of the processor until they are compressed.
const PIECE_BYTES: u64 = 256 << 10;
/// Bytes from the beginning of a segment that have its header.
const PAGE_BYTES: u64 = 8192;

/// The directory in which a server has its WAL: `pg_wal`.
#[derive(Debug, Clone)]
pub(super) struct WalDirectory {
    dir: PathBuf,
}

/// Tells the content of a file from any other content that it had before: a segment is never changed after it is
/// complete, but its file is used again for a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            bytes: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// As one line of text.
    pub(super) fn line(&self) -> String {
        let Self {
            device,
            inode,
            bytes,
            modified,
            changed,
        } = self;
        format!(
            "{device} {inode} {bytes} {}.{:09} {}.{:09}",
            modified.0, modified.1, changed.0, changed.1
        )
    }
}

impl WalDirectory {
    /// The directory that a file is in.
    pub(super) fn around(file: &Path) -> Self {
        Self {
            dir: file.parent().unwrap_or(Path::new("")).to_owned(),
        }
    }

    /// The WAL of the cluster in this data directory.
    pub(super) fn of_cluster(data: &Path) -> Self {
        Self {
            dir: data.join("pg_wal"),
        }
    }

    /// The files in this directory.
    pub(super) fn of_files(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    /// The directory as one absolute path, without links.
    pub(super) fn real_path(&self) -> PathBuf {
        let dir = if self.dir.as_os_str().is_empty() {
            Path::new(".")
        } else {
            &self.dir
        };
        dir.canonicalize().unwrap_or_else(|_| dir.to_owned())
    }

    pub(super) fn exists(&self) -> bool {
        self.dir.is_dir()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the system identifier of the cluster, if the directory is in one.
    pub(super) fn system(&self) -> Option<u64> {
        let data = self.dir.parent()?;
        let (_, control) = control::read(&control::path(data)).ok()?;
        Some(control.system_identifier)
    }

    /// Returns whether the server waits for this segment to be archived.
    pub(super) fn is_ready(&self, segment: SegmentName) -> bool {
        self.path(&format!("archive_status/{segment}.ready"))
            .exists()
    }

    /// Returns the segments that the server waits for, in order.
    pub(super) fn ready_segments(&self) -> Vec<SegmentName> {
        let listed = fs::read_dir(self.path("archive_status"));
        let names = listed
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name());
        let mut ready: Vec<SegmentName> = names.filter_map(ready_segment).collect();
        ready.sort_unstable();
        ready
    }

    /// Returns the path of a file in the directory.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path(name)
    }

    fn names(&self) -> Vec<WalFileName> {
        let listed = fs::read_dir(&self.dir);
        let names = listed
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name());
        names
            .filter_map(|name| WalFileName::parse(name.to_str()?))
            .collect()
    }

    /// Returns the segments in the directory by their names; a server may have recycled some.
    pub(super) fn segments(&self) -> BTreeSet<SegmentName> {
        self.names().into_iter().filter_map(segment_of).collect()
    }

    /// Returns the timelines whose histories are in the directory.
    pub(super) fn histories(&self) -> BTreeSet<u32> {
        self.names().into_iter().filter_map(history_of).collect()
    }

    /// Marks a segment that the server takes for archived as one that waits, so that no checkpoint removes it. Returns whether
    /// the mark was changed.
    pub(super) fn mark_ready(&self, segment: SegmentName) -> bool {
        let [done, ready] = self.marks(segment);
        fs::rename(done, ready).is_ok()
    }

    /// Marks a segment as archived.
    pub(super) fn mark_done(&self, segment: SegmentName) {
        let [done, ready] = self.marks(segment);
        // The server may have done so. A mark that stays is pushed again, which is success.
        let _ = fs::rename(ready, done);
    }

    fn marks(&self, segment: SegmentName) -> [PathBuf; 2] {
        ["done", "ready"].map(|mark| self.path(&format!("archive_status/{segment}.{mark}")))
    }

    /// Returns the stamp of a segment as it is now; `None` if it is not there.
    pub(super) fn stamp(&self, segment: SegmentName) -> Option<FileStamp> {
        let meta = fs::symlink_metadata(self.path(&segment.to_string())).ok()?;
        Some(FileStamp::of(&meta))
    }

    /// Reads a segment and checks that it is the one of that name. A partial one has a file of its own.
    pub(super) fn read_segment(
        &self,
        segment: SegmentName,
        is_partial: bool,
    ) -> Result<(Vec<u8>, FileStamp, SegmentFacts)> {
        let opened = self.open_segment(segment, is_partial)?;
        let mut content = Vec::with_capacity(opened.facts.segment_bytes as usize);
        opened.read(&mut |piece| {
            content.extend_from_slice(piece);
            Ok(())
        })?;
        Ok((content, opened.stamp, opened.facts))
    }

    /// The same without its content.
    pub(super) fn open_segment(
        &self,
        segment: SegmentName,
        is_partial: bool,
    ) -> Result<OpenSegment> {
        let suffix = if is_partial { ".partial" } else { "" };
        let path = self.path(&format!("{segment}{suffix}"));
        let failed = |error| cannot_read(&path, error);
        let file = safe_file::open(&path).map_err(failed)?;
        let stamp = FileStamp::of(&file.metadata().map_err(failed)?);
        let mut begin = Vec::new();
        let begin_bytes = stamp.bytes.min(PAGE_BYTES) as usize;
        read_exactly(&file, 0, begin_bytes, &mut begin).map_err(failed)?;
        // The header says how many bytes there are: no more are read, whatever the file has.
        let facts = check_segment_begin(&begin, stamp.bytes, segment)?;
        Ok(OpenSegment {
            file,
            path,
            stamp,
            facts,
        })
    }

    /// Returns the content of a segment; `None` if it is not there, or not the one of that name.
    pub(super) fn content(&self, segment: SegmentName) -> Option<Vec<u8>> {
        self.read_segment(segment, false)
            .ok()
            .map(|(content, ..)| content)
    }

    /// Reads a history or a label.
    pub(super) fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path(name);
        safe_file::read(&path, MAX_SMALL_BYTES).map_err(|error| cannot_read(&path, error))
    }
}

/// A segment of a server, whose header was checked.
#[derive(Debug)]
pub(super) struct OpenSegment {
    file: File,
    path: PathBuf,
    pub(super) stamp: FileStamp,
    pub(super) facts: SegmentFacts,
}

impl OpenSegment {
    /// Reads all of it, and hands it to `take` in pieces.
    pub(super) fn read(&self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut piece = Vec::new();
        let mut offset = 0;
        while offset < self.facts.segment_bytes {
            let bytes = (self.facts.segment_bytes - offset).min(PIECE_BYTES);
            read_exactly(&self.file, offset, bytes as usize, &mut piece)
                .map_err(|error| cannot_read(&self.path, error))?;
            take(&piece)?;
            offset += bytes;
        }
        Ok(())
    }
}

fn cannot_read(path: &Path, error: io::Error) -> Error {
    let path = quoted(path.as_os_str().as_bytes());
    Error::io(format!("could not read {path}"), error)
}

fn history_of(name: WalFileName) -> Option<u32> {
    match name {
        WalFileName::History(timeline) => Some(timeline),
        _ => None,
    }
}

/// Returns the segment of this name; `None` for a file of another kind.
pub(super) fn segment_of(name: WalFileName) -> Option<SegmentName> {
    match name {
        WalFileName::Segment(segment) => Some(segment),
        _ => None,
    }
}

/// Returns the segment that a file of `archive_status` marks as one that waits.
fn ready_segment(mark: std::ffi::OsString) -> Option<SegmentName> {
    let mark = std::str::from_utf8(mark.as_bytes()).ok()?;
    SegmentName::parse(mark.strip_suffix(".ready")?)
}

/// The error of a command that does not know which system is meant.
pub(super) fn unknown_system(what: String) -> Error {
    Error::new(ErrorKind::Usage, what)
        .because("it is not known of which cluster it is")
        .hint("run it in the data directory of the cluster, as the server does, or give --system IDENTIFIER")
}
