//! The files of a cluster as a source, read through a [`DataDir`].
//!
//! Lists directory by directory, and reads each slice with one call, however many files it has. Only
//! files and directories are delivered: links are followed, except those of tablespaces made since
//! the backup began. Inodes, change times and attributes are not known, so a later backup compares
//! contents, or asks the server which blocks changed.

use super::{
    DataDir, DataTree, FoundFile, fetch_queue::FetchQueue, fetched_slices::FetchedSlices,
    row_reader,
};
use crate::late_files::LateFiles;
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath, Owner, Time, order},
    error::{Error, ErrorKind, Result, quoted},
    page::EntryState,
};
use fullbore_pipeline::{
    frame::{Buf, Frame, Scanned, Slice},
    source::{Source, Stream},
};
use fullbore_platform::{
    dir::{DirName, FileKind},
    queue::Locked,
};
use fullbore_tree::read::Overlay;
use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

/// Directories within each other, at most. A server has five; more come from a link that leads
/// back.
const MAX_DEPTH: usize = 16;

/// A tree that is read through a [`DataDir`].
pub struct RemoteTree(Arc<RemoteFiles>);

/// State shared by the scan and the readers.
pub(super) struct RemoteFiles {
    pub(super) data: Arc<dyn DataDir>,
    pub(super) late: Arc<LateFiles>,
    owner: FileOwner,
    /// Directories that are not delivered: tablespaces that lie in the data directory are stored
    /// where their links are.
    elsewhere: HashSet<EntryPath>,
    /// Bytes that may be read ahead.
    pub(super) ahead_bytes: u64,
    /// What is read ahead for the present scan.
    fetched: Mutex<Option<Arc<FetchQueue>>>,
}

/// Owner and modes of all files.
#[derive(Debug, Clone)]
pub struct FileOwner {
    /// Owner and group.
    pub owner: Owner,
    /// Permission bits of a directory, as the setting `data_directory_mode` says.
    pub directory_mode: u32,
}

impl RemoteTree {
    /// The files of `data`, of which `late` decides what is backed up. At most `ahead_bytes` of their content
    /// are read ahead.
    pub fn new(
        data: Arc<dyn DataDir>,
        late: Arc<LateFiles>,
        owner: FileOwner,
        elsewhere: HashSet<EntryPath>,
        ahead_bytes: u64,
    ) -> Self {
        Self(Arc::new(RemoteFiles {
            data,
            late,
            owner,
            elsewhere,
            ahead_bytes,
            fetched: Mutex::default(),
        }))
    }
}

impl DataTree for RemoteTree {
    fn look(&self, path: &[u8]) -> Scanned {
        let found = self.0.data.stat(&[path]);
        let state = match &found {
            Ok(found) if found.iter().flatten().next().is_some() => EntryState::Whole,
            Ok(_) => EntryState::Vanished,
            Err(error) => EntryState::Unreadable(error.line()),
        };
        let file = found.ok().and_then(|mut found| found.pop().flatten());
        let entry = file.map_or_else(
            || Entry {
                path: path.to_vec(),
                ..Entry::default()
            },
            |file| self.0.entry(path.to_vec(), &file),
        );
        Scanned::new(entry, state)
    }
}

impl Source for RemoteTree {
    fn scan(&self) -> Result<Stream<Scanned>> {
        let root = FoundFile {
            name: Vec::new(),
            kind: FileKind::Directory,
            size: 0,
            mtime: Time::default(),
        };
        let root = self.0.data.stat(&[b"."])?.pop().flatten().unwrap_or(root);
        Ok(Box::new(RemoteWalk {
            files: self.0.clone(),
            waiting: vec![FoundAt {
                path: EntryPath::new(),
                depth: 0,
                file: root,
            }],
        }))
    }

    fn prepare(&self, slices: Stream<Slice>) -> Stream<Slice> {
        FetchedSlices::start(&self.0, slices)
    }

    fn on_all_read(&self) {
        let fetched = self.0.fetched.locked().take();
        fetched.iter().for_each(|queue| queue.stop());
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        slice.wait();
        match slice {
            Slice::Members(small, large) => row_reader::read_members(&self.0, small, large, buf),
            Slice::Piece {
                file,
                offset,
                len,
                last,
            } => row_reader::read_piece(&self.0, file, (offset, len, last), buf),
        }
    }
}

/// An entry that the scan has found and not delivered yet.
struct FoundAt {
    path: EntryPath,
    depth: usize,
    file: FoundFile,
}

/// The scan. Memory: the names of the directories on the way to the present one.
struct RemoteWalk {
    files: Arc<RemoteFiles>,
    /// In reverse archive order.
    waiting: Vec<FoundAt>,
}

impl Iterator for RemoteWalk {
    type Item = Result<Scanned>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.waiting.pop()?;
        if next.file.kind == FileKind::Directory
            && let Err(error) = self.enter(&next)
        {
            self.waiting.clear();
            return Some(Err(error));
        }
        let entry = self.files.entry(next.path, &next.file);
        Some(Ok(Scanned::new(entry, EntryState::Whole)))
    }
}

impl RemoteWalk {
    /// Adds the files in a directory.
    fn enter(&mut self, dir: &FoundAt) -> Result<()> {
        if dir.depth >= MAX_DEPTH {
            let message = format!(
                "cannot back up the cluster: {} is too deep",
                quoted(&dir.path)
            );
            return Err(Error::new(ErrorKind::Unsupported, message)
                .because("does a link in the data directory lead back to it?"));
        }
        let depth = dir.depth + 1;
        let found = self.files.backed_up(&dir.path)?;
        let start = self.waiting.len();
        self.waiting.extend(found.into_iter().map(|file| FoundAt {
            path: child_path(&dir.path, &file.name),
            depth,
            file,
        }));
        self.waiting[start..].sort_by(|a, b| order(&b.path, &a.path));
        Ok(())
    }
}

fn child_path(dir: &[u8], name: &[u8]) -> EntryPath {
    match dir {
        b"" => name.to_vec(),
        _ => [dir, b"/", name].concat(),
    }
}

impl RemoteFiles {
    /// What is read ahead.
    pub(super) fn fetched(&self) -> Option<Arc<FetchQueue>> {
        self.fetched.locked().clone()
    }

    pub(super) fn set_fetched(&self, queue: Option<Arc<FetchQueue>>) {
        *self.fetched.locked() = queue;
    }

    /// Lists the files in a directory that are backed up.
    fn backed_up(&self, dir: &[u8]) -> Result<Vec<FoundFile>> {
        let mut found = self.data.list(dir)?;
        let mut names: Vec<DirName> = found.iter().cloned().map(FoundFile::into_name).collect();
        self.late.pick(dir, &mut names);
        let kept: HashSet<Vec<u8>> = names.into_iter().map(|name| name.bytes).collect();
        found.retain(|file| {
            kept.contains(&file.name) && !self.elsewhere.contains(&child_path(dir, &file.name))
        });
        // Tablespaces are links; those that are backed up are stored as directories.
        for link in found
            .iter_mut()
            .filter(|file| file.kind == FileKind::Symlink)
        {
            link.kind = FileKind::Directory;
        }
        Ok(found)
    }

    fn entry(&self, path: EntryPath, file: &FoundFile) -> Entry {
        let is_dir = file.kind == FileKind::Directory;
        let mode = self.owner.directory_mode;
        Entry {
            path,
            kind: if is_dir {
                EntryKind::Directory
            } else {
                EntryKind::File {
                    size: file.size,
                    map: None,
                }
            },
            mode: if is_dir { mode } else { mode & 0o666 },
            owner: self.owner.owner.clone(),
            mtime: file.mtime,
            ..Entry::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{data_dir::local::LocalDir, layout::ClusterLayout};
    use fullbore_pipeline::frame::FrameContent;
    use std::{fs, os::unix::fs::symlink, path::Path, path::PathBuf};

    fn tree(dir: &Path) -> RemoteTree {
        let layout = ClusterLayout::new(15, 202_209_061, true);
        let late = Arc::new(LateFiles::new(layout, PathBuf::new(), HashSet::new()));
        let owner = FileOwner {
            owner: Owner::default(),
            directory_mode: 0o750,
        };
        let elsewhere = HashSet::from([b"here".to_vec()]);
        RemoteTree::new(Arc::new(LocalDir::new(dir)), late, owner, elsewhere, 0)
    }

    /// A directory with a few files of a cluster.
    fn cluster() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("base/5")).unwrap();
        fs::create_dir(dir.path().join("here")).unwrap();
        for (name, bytes) in [
            ("base/5/100", 8192),
            ("base/5/101", 8192),
            ("base/5/101_init", 10),
            ("base-x", 3),
            ("PG_VERSION", 3),
        ] {
            fs::write(dir.path().join(name), vec![b'x'; bytes]).unwrap();
        }
        dir
    }

    fn scan(tree: &RemoteTree) -> Vec<Scanned> {
        tree.scan().unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn the_files_that_are_backed_up_come_in_archive_order() {
        let dir = cluster();
        let found = scan(&tree(dir.path()));
        let paths: Vec<&[u8]> = found.iter().map(|one| &one.entry.path[..]).collect();
        let wanted: [&[u8]; 7] = [
            b"",
            b"PG_VERSION",
            b"base",
            b"base/5",
            b"base/5/100",
            b"base/5/101_init",
            b"base-x",
        ];
        assert_eq!(paths, wanted);
        let modes = [0, 1].map(|index: usize| found[index].entry.mode);
        assert_eq!(modes, [0o750, 0o640]);
    }

    #[test]
    fn relations_keep_the_length_of_the_scan_and_other_files_get_theirs_of_now() {
        let dir = cluster();
        let tree = tree(dir.path());
        let found = scan(&tree);
        fs::write(dir.path().join("base/5/100"), "short").unwrap();
        fs::write(dir.path().join("PG_VERSION"), "longer").unwrap();
        fs::remove_file(dir.path().join("base/5/101_init")).unwrap();
        let frame = tree
            .read(Slice::Members(found, None), Buf::default())
            .unwrap();
        let content = |path: &[u8]| {
            let is_of_path = |frame_content: &FrameContent| matches!(frame_content, FrameContent::Whole(entry, _) if entry.path == path);
            let part = frame.parts.iter().find(|part| is_of_path(&part.what))?;
            Some(frame.data[part.inner as usize..][..part.len as usize].to_vec())
        };
        assert_eq!(content(b"PG_VERSION").unwrap(), b"longer");
        let relation = content(b"base/5/100").unwrap();
        assert!(relation.starts_with(b"short\0") && relation.len() == 8192);
        assert_eq!(content(b"base/5/101_init"), None, "it was dropped");
        assert_eq!(content(b"base-x").unwrap(), b"xxx");
    }

    #[test]
    fn a_link_that_leads_back_ends_the_scan() {
        let dir = cluster();
        symlink(".", dir.path().join("back")).unwrap();
        let mut scan = tree(dir.path()).scan().unwrap();
        let failed = scan.find_map(Result::err).unwrap();
        assert!(failed.line().contains("is too deep"), "{failed:?}");
        assert!(scan.next().is_none());
    }
}
