//! Makes the placeholders of an instant restore: marked before they have a name, and noted in the plan.

use super::{
    content_source::has_data,
    plan_file::{PlannedFile, UNIT_BYTES, WithheldFile},
};
use crate::restore::deferral::FileDeferral;
use fullbore_format::{
    entry::{Entry, split},
    error::Result,
    page::PageItem,
    root::EntryName,
};
use fullbore_platform::{
    dir::{path_of, stat_fd},
    pre_content::{EventGroup, handle::FileHandle},
    queue::Locked,
};
use fullbore_tree::write::writer::TargetWriter;
use std::{
    collections::BTreeMap,
    io,
    os::{fd::BorrowedFd, unix::ffi::OsStrExt},
    path::PathBuf,
    sync::{Arc, Mutex},
};

/// The file of a cluster, and of each of its databases, without which a server does not use it.
pub(super) const PG_VERSION: &[u8] = b"PG_VERSION";

/// The placeholders that a restore made.
#[derive(Debug, Default)]
pub(super) struct MadePlaceholders {
    pub(super) files: Vec<PlannedFile>,
    pub(super) withheld: Vec<WithheldFile>,
    /// A directory of each file system.
    pub(super) roots: BTreeMap<u64, PathBuf>,
    /// Units that are holes in the backup: there is nothing to fill.
    pub(super) holes: Vec<u64>,
    next_unit: u64,
}

/// Makes placeholders of large files: of a tree all, of a cluster the files of its relations.
#[derive(Debug)]
pub(super) struct Placeholders {
    pub(super) group: Arc<EventGroup>,
    pub(super) is_cluster: bool,
    pub(super) made: Mutex<MadePlaceholders>,
}

impl Placeholders {
    fn is_withheld(&self, path: &[u8]) -> bool {
        let (above, name) = split(path);
        // Those of a server's start and of its databases. There is one in each directory of a tablespace too.
        self.is_cluster && name == PG_VERSION && (above.is_empty() || above.starts_with(b"base/"))
    }

    fn note(&self, entry: &Entry, file: BorrowedFd<'_>) -> io::Result<()> {
        self.group.mark(file)?;
        let stat = stat_fd(file)?;
        let handle = FileHandle::of(file)?;
        let mut made = self.made.locked();
        // A nameless file is shown in its directory.
        let directory = || {
            path_of(file)
                .parent()
                .map(PathBuf::from)
                .unwrap_or_default()
        };
        made.roots.entry(stat.dev).or_insert_with(directory);
        let first_unit = made.next_unit;
        let planned = PlannedFile {
            path: EntryName(entry.path.clone()),
            dev: stat.dev,
            inode: stat.inode,
            handle: (handle.kind, handle.bytes),
            size: entry.size(),
            mtime: (entry.mtime.seconds, entry.mtime.nanos),
            first_unit,
        };
        made.next_unit += planned.units();
        if entry.is_sparse() {
            let is_hole = |unit: &u64| {
                let start = unit * UNIT_BYTES;
                !has_data(entry, &(start..(start + UNIT_BYTES).min(planned.size)))
            };
            let holes = (0..planned.units()).filter(is_hole);
            made.holes.extend(holes.map(|unit| first_unit + unit));
        }
        made.files.push(planned);
        Ok(())
    }

    fn withhold(&self, entry: &Entry) {
        self.made.locked().withheld.push(WithheldFile {
            path: EntryName(entry.path.clone()),
            content: EntryName::default(),
            mtime: (entry.mtime.seconds, entry.mtime.nanos),
        });
    }
}

impl FileDeferral for Placeholders {
    fn defers(&self, item: &PageItem) -> bool {
        let path = &item.entry.path;
        if !item.entry.is_file() || item.entry.data_len() == 0 {
            return false;
        }
        // Small files are written at once, which leaves few marks.
        let is_large = item.entry.data_len() > UNIT_BYTES;
        self.is_withheld(path) || is_large && (!self.is_cluster || is_relation(path))
    }

    fn make(&self, writer: &mut TargetWriter, item: &PageItem) -> Result<()> {
        let entry = &item.entry;
        if self.is_withheld(&entry.path) {
            // Its reserved space is zeros, which a server refuses.
            writer.placeholder(entry, &mut |_| Ok(()))?;
            self.withhold(entry);
            return Ok(());
        }
        writer.placeholder(entry, &mut |file| self.note(entry, file))
    }
}

/// Returns whether this is the file of a relation.
pub(super) fn is_relation(path: &[u8]) -> bool {
    let tops: [&[u8]; 3] = [b"base/", b"global/", b"pg_tblspc/"];
    let name = split(path).1;
    tops.iter().any(|top| path.starts_with(top)) && name.first().is_some_and(u8::is_ascii_digit)
}

/// Returns the bytes of a directory's path as the plan has them.
pub(super) fn root_name(directory: &std::path::Path) -> EntryName {
    EntryName(directory.as_os_str().as_bytes().to_vec())
}
