//! A cluster whose files the server sends: BASE_BACKUP of the replication protocol.
//!
//! A role with REPLICATION is enough, and a line `replication` in pg_hba.conf. The files come in one
//! stream, in the order of the server's directories; so the content is taken in that order, frames are
//! made by all workers, and the records are sorted at the end. A second session holds the WAL with a
//! temporary slot. No SQL can be asked: what other ways find out by it is in decision 123.

mod archives;
mod deferred;
mod earlier;
mod ending;
mod frames;
mod lz4;
mod open;
mod patches;
mod sent_source;
mod sent_wal;
#[cfg(test)]
mod tests;

pub(super) use open::open;

use super::{
    conninfo::Params,
    control::{self, Control},
    inventory::ManifestInventory,
    layout::ClusterLayout,
    lsn::Lsn,
    relation::Sizes,
    replication::{BackupEnd, ReplicationClient},
    request::Wal,
};
use archives::{SentArchives, SentItem, wrong};
use fullbore_format::{
    entry::{ByteRun, Entry, EntryKind, EntryPath, split},
    error::{Error, ErrorKind, Result, quoted},
    root,
};
use fullbore_pipeline::{
    frame::{LargeFile, Slice},
    known,
};
use fullbore_platform::{
    dir::{DirName, FileKind},
    queue::Locked,
    write::{self, anonymous_file},
};
use patches::{SentPatch, patched_path};
use sent_wal::SentWal;
use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    sync::{Arc, Mutex, OnceLock, atomic::AtomicBool},
};

/// Bytes of a file that is taken at once, at most: no frame is larger.
const MAX_TAKEN_BYTES: u64 = 64 << 20;
/// Bytes of the control file, at most.
const MAX_CONTROL_BYTES: u64 = 64 << 10;
/// Bytes of the label, at most.
const MAX_LABEL_BYTES: u64 = 64 << 10;
const CONTROL: &[u8] = b"global/pg_control";
const LABEL: &[u8] = b"backup_label";
const MANIFEST: &[u8] = b"backup_manifest";
/// A restore may change it, so PostgreSQL's manifest does not list it.
const TABLESPACE_MAP: &[u8] = b"tablespace_map";
/// Files of the backup itself, which other backups must not contain.
const LABELS: [&[u8]; 2] = [LABEL, TABLESPACE_MAP];

/// A cluster that a server sends.
pub(super) struct SentCluster {
    wal: Wal,
    start: Lsn,
    start_timeline: u32,
    system_identifier: u64,
    sizes: Sizes,
    /// Permission bits of the directories that the server does not send.
    directory_mode: u32,
    /// Whether the server sends blocks that changed since the base.
    is_incremental: bool,
    /// For questions by SQL, which the role may not be allowed to ask.
    params: Option<Params>,
    facts: Mutex<root::ClusterInfo>,
    inventory: ManifestInventory,
    layout: ClusterLayout,
    /// The session with the slot.
    holder: Mutex<ReplicationClient>,
    sent: Mutex<SentFiles>,
    /// The WAL, searched as it comes.
    sent_wal: Mutex<SentWal>,
    /// Content that was taken and not read yet, by path and offset.
    contents: Mutex<HashMap<(EntryPath, u64), Vec<u8>>>,
    /// Buffers for content: fresh memory costs as much as copying it.
    spare: Mutex<Vec<Vec<u8>>>,
    /// Files that this program adds.
    late: Mutex<HashMap<EntryPath, Arc<File>>>,
    warnings: Mutex<Vec<String>>,
    failed: Mutex<Option<Error>>,
    end: OnceLock<BackupEnd>,
    /// Whether a file with bad pages is named in the backup.
    names_bad_pages: AtomicBool,
    is_complete: OnceLock<()>,
}

/// The state of the stream. Only the thread that scans waits for the server.
struct SentFiles {
    archives: SentArchives,
    /// The file whose content comes next, and the bytes of it that were taken.
    pending: Option<(Entry, u64)>,
    /// The changed blocks of that file, if only these come.
    patch: Option<SentPatch>,
    /// The first entry of an archive, behind the directory that is not in the stream.
    first: Option<Entry>,
    /// The entry of PG_VERSION: owner and mode of the files that are added.
    model: Entry,
    has_control: bool,
    has_label: bool,
    /// Names in `pg_wal`, with their sizes.
    wal: BTreeSet<(EntryPath, u64)>,
}

/// The source of a cluster that is sent.
pub(super) struct SentSource(pub(super) Arc<SentCluster>);

impl SentCluster {
    /// Returns the next entry; `None` at the end of the backup.
    fn next_entry(&self) -> Result<Option<Entry>> {
        let mut sent = self.sent.locked();
        self.take_pending(&mut sent)?;
        if let Some(first) = sent.first.take()
            && let Some(entry) = self.accept(&mut sent, first)?
        {
            return Ok(Some(entry));
        }
        let mut above = None;
        loop {
            match sent.archives.next()? {
                SentItem::End(end) => {
                    if !sent.has_control {
                        return Err(wrong("it has no control file"));
                    }
                    if !sent.has_label {
                        return Err(wrong("it has no backup_label"));
                    }
                    _ = self.end.set(end);
                    return Ok(None);
                }
                SentItem::Archive(path) => above = Some(path),
                SentItem::Member(entry) => {
                    if let Some(path) = above.take() {
                        return Ok(Some(sent.begin_archive(path, entry, self.directory_mode)));
                    }
                    if let Some(entry) = self.accept(&mut sent, entry)? {
                        return Ok(Some(entry));
                    }
                }
            }
        }
    }

    /// Prepares for the content of an entry. Returns `None` for an entry that is not backed up.
    fn accept(&self, sent: &mut SentFiles, entry: Entry) -> Result<Option<Entry>> {
        let EntryKind::File { size, .. } = entry.kind else {
            return Ok(self.is_backed_up(&entry.path).then_some(entry));
        };
        if self.is_incremental
            && let Some(path) = patched_path(&entry.path)
        {
            let (entry, patch) = SentPatch::read(&mut sent.archives, entry, path, self.sizes)?;
            sent.pending = Some((entry.clone(), 0));
            sent.patch = Some(patch);
            return Ok(Some(entry));
        }
        match &entry.path[..] {
            CONTROL => self.take_control(sent, &entry, size)?,
            LABEL => return self.take_label(sent, entry, size).map(Some),
            b"PG_VERSION" => {
                sent.model = entry.clone();
                sent.pending = Some((entry.clone(), 0));
            }
            // A cluster without tablespaces has an empty map, which other ways leave out.
            path if !self.is_backed_up(path) || (path == TABLESPACE_MAP && size == 0) => {
                sent.skip(size)?;
                return Ok(None);
            }
            path => {
                if split(path).0 == b"pg_wal" {
                    sent.wal.insert((path.to_vec(), size));
                }
                sent.pending = Some((entry.clone(), 0));
            }
        }
        Ok(Some(entry))
    }

    /// The server leaves out the same files as fullbore, but for those that ask for recovery.
    fn is_backed_up(&self, path: &[u8]) -> bool {
        let (dir, name) = split(path);
        if !dir.is_empty() || LABELS.contains(&path) {
            return true;
        }
        let mut names = vec![DirName {
            bytes: name.to_vec(),
            kind: FileKind::Unknown,
            inode: 0,
        }];
        self.layout.retain_backed_up(dir, &mut names);
        !names.is_empty()
    }

    /// Takes the control file, changed so that no server starts on it without `backup_label` (rule 9).
    fn take_control(&self, sent: &mut SentFiles, entry: &Entry, size: u64) -> Result<()> {
        if size > MAX_CONTROL_BYTES {
            return Err(wrong("its control file is too large"));
        }
        let content = sent.archives.content(size, Some(size))?;
        let control = Control::parse(&content);
        let control = control.ok_or_else(|| wrong("the format of its control file is unknown"))?;
        if control.system_identifier != self.system_identifier {
            return Err(wrong(
                "its control file has another system identifier than the server",
            ));
        }
        let safe = control::without_checkpoint(&content).unwrap_or_default();
        sent.has_control = true;
        self.insert_late(&entry.path, &safe)
    }

    /// Takes the label, without the lines that say that the backup is an incremental one: the restored cluster is
    /// whole.
    fn take_label(&self, sent: &mut SentFiles, entry: Entry, size: u64) -> Result<Entry> {
        if size > MAX_LABEL_BYTES {
            return Err(wrong("its backup_label is too large"));
        }
        let content = sent.archives.content(size, Some(size))?;
        sent.has_label = self.read_label(&content)?;
        let lines = content.split_inclusive(|byte| *byte == b'\n');
        let label: Vec<u8> = lines
            .filter(|line| !line.starts_with(b"INCREMENTAL FROM "))
            .flatten()
            .copied()
            .collect();
        self.insert_late(&entry.path, &label)?;
        let size = label.len() as u64;
        Ok(Entry {
            kind: EntryKind::File { size, map: None },
            ..entry
        })
    }

    /// Adds a file that is not stored as it was sent.
    fn insert_late(&self, path: &[u8], content: &[u8]) -> Result<()> {
        let file = Arc::new(anonymous(content)?);
        let earlier = self.late.locked().insert(path.to_vec(), file);
        let why = format!("it has {} twice", quoted(path));
        earlier.map_or(Ok(()), |_| Err(wrong(&why)))
    }

    /// Takes the content of a file that shares a frame with others.
    fn take_pending(&self, sent: &mut SentFiles) -> Result<()> {
        let Some((entry, taken)) = sent.pending.take() else {
            return Ok(());
        };
        let size = entry.size();
        if let Some(patch) = sent.patch.take() {
            // Its blocks are those of the base, and it shares a frame with others.
            let message = format!("the blocks of {} were not read", quoted(&entry.path));
            return match patch.is_taken() {
                true => Ok(()),
                false => Err(Error::new(ErrorKind::Bug, message)),
            };
        }
        if taken > 0 || size > MAX_TAKEN_BYTES {
            let message = format!("not all of {} was read", quoted(&entry.path));
            return Err(Error::new(ErrorKind::Bug, message));
        }
        let content = sent.archives.content(size, Some(size));
        let added = content.and_then(|content| self.add_content((entry.path, 0), content));
        added.map_err(|error| {
            // The frame of this file comes before the end of the scan: its reader reports the
            // error.
            let kind = error.kind;
            self.failed.locked().get_or_insert(error);
            Error::new(kind, "the backup that the server sends has ended")
        })
    }

    /// Reads the label, without which recovery would begin at a wrong place.
    fn read_label(&self, content: &[u8]) -> Result<bool> {
        let text = String::from_utf8_lossy(content);
        let begins = format!("START WAL LOCATION: {} ", self.start);
        if !text.starts_with(&begins) {
            return Err(wrong(
                "its backup_label names another start than the server",
            ));
        }
        self.facts.locked().standby = text.lines().any(|line| line == "BACKUP FROM: standby");
        Ok(true)
    }

    /// Takes a piece of a large file.
    fn take_piece(&self, file: &LargeFile, (offset, len, last): (u64, u32, bool)) -> Result<()> {
        let path = &file.entry.path;
        let mut sent = self.sent.locked();
        let pending = sent.pending.take();
        let is_next = |(entry, taken): &(Entry, u64)| entry.path == *path && *taken == offset;
        let Some((entry, taken)) = pending.filter(is_next) else {
            let message = format!("the content of {} was not expected", quoted(path));
            return Err(Error::new(ErrorKind::Bug, message));
        };
        let mut content = self.spare.locked().pop().unwrap_or_default();
        match changed_runs(file, offset, len) {
            Some(runs) => sent.take_runs(&runs, &mut content)?,
            None => {
                let ends = last.then_some(entry.size());
                let archives = &mut sent.archives;
                archives.append_content(len.into(), ends, &mut content)?;
            }
        }
        if last {
            let patch = sent.patch.take();
            let is_taken = patch.is_none_or(|patch| patch.is_taken());
            debug_assert!(is_taken, "each block that is sent is in a run that changed");
        } else {
            sent.pending = Some((entry, taken + u64::from(len)));
        }
        drop(sent);
        self.add_content((path.to_vec(), offset), content)
    }

    /// Takes the content of a slice, which comes next in the stream.
    fn take(&self, slice: &Slice) -> Result<()> {
        match slice {
            Slice::Piece {
                file,
                offset,
                len,
                last,
            } if !self.late.locked().contains_key(&file.entry.path) => {
                self.take_piece(file, (*offset, *len, *last))
            }
            Slice::Piece { .. } | Slice::Members(..) => Ok(()),
        }
    }

    fn add_content(&self, place: (EntryPath, u64), content: Vec<u8>) -> Result<()> {
        if let Some(name) = place.0.strip_prefix(b"pg_wal/") {
            let name = String::from_utf8_lossy(name);
            self.sent_wal.locked().add(&name, place.1, &content)?;
        }
        let why = format!("it has {} twice", quoted(&place.0));
        match self.contents.locked().insert(place, content) {
            None => Ok(()),
            Some(_) => Err(wrong(&why)),
        }
    }
}

/// Returns the runs of a piece that changed; `None` if all of it comes.
fn changed_runs(file: &LargeFile, offset: u64, len: u32) -> Option<Vec<ByteRun>> {
    let runs = file.known.as_ref()?.split_by_changes(offset, len.into())?;
    Some(known::changed_places(offset, &runs))
}

/// Returns a temporary file without a name, with this content.
fn anonymous(content: &[u8]) -> Result<File> {
    let failed = |e| Error::io("could not write a temporary file", e);
    let file = anonymous_file(&std::env::temp_dir()).map_err(failed)?;
    write::pwrite_all(&file, content, 0).map_err(failed)?;
    Ok(file)
}

impl SentFiles {
    /// Returns the entry of the directory that holds the files of an archive, of which `first` is the
    /// first one.
    fn begin_archive(&mut self, path: EntryPath, first: Entry, mode: u32) -> Entry {
        let above = Entry {
            path,
            kind: EntryKind::Directory,
            mode,
            ..first.clone()
        };
        self.first = Some(first);
        above
    }

    /// Takes runs of the file that comes next, of which only changed blocks are sent.
    fn take_runs(&mut self, runs: &[ByteRun], content: &mut Vec<u8>) -> Result<()> {
        let missing = || Error::new(ErrorKind::Bug, "changed blocks were not expected");
        let patch = self.patch.as_mut().ok_or_else(missing)?;
        for run in runs {
            patch.take_run(&mut self.archives, *run, content)?;
        }
        Ok(())
    }

    /// Drops the content of a file.
    fn skip(&mut self, size: u64) -> Result<()> {
        let mut left = size;
        while left > 0 {
            let len = left.min(64 << 10);
            left -= len;
            self.archives.content(len, (left == 0).then_some(size))?;
        }
        Ok(())
    }
}
