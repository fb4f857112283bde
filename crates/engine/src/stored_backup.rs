//! A stored backup as the source of another one.
//!
//! The scan returns the records of an [`Archive`], with late records at the end. A read fetches and
//! decodes the frames of a slice and makes tar members from them. The result is a full backup, even
//! if the archive is incremental.
//!
//! Damaged data never passes as whole. A frame with a checksum is checked when it is decoded;
//! content in other frames is compared with its digest. Every digest in the new backup is compared
//! with the digest in the old one. Memory between the scan and the new manifest is bounded by the
//! queue of the pipeline.

use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath, Time},
    error::{Error, Result, quoted},
    page::{EntryState, FrameAt, PageItem, Record, SegmentId},
    pax,
    root::PageAt,
};
use fullbore_pipeline::frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile, Scanned, Slice};
use fullbore_pipeline::source::{Source, Stream};
use fullbore_platform::queue::Locked;
use fullbore_repository::archive::{
    Archive, Records, Selection,
    extents::{FileContent, FrameRange},
    frame_cache::{FrameCache, FrameKey},
    schedule::misfit,
};
use fullbore_tree::read::{pad, part};
use std::{
    collections::HashMap,
    fmt,
    iter::Peekable,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, Release},
        },
    },
};

/// Bytes of decoded frames that stay in memory: its readers come to a frame one after the other.
const FRAME_BYTES: usize = 4 << 20;

/// A damage, and the files that are lost by it.
#[derive(Debug)]
pub struct Damaged {
    /// Description of the damage.
    pub error: Error,
    /// The damaged frame, if the damage is in a frame.
    pub frame: Option<(SegmentId, FrameAt)>,
    /// Paths of the lost files.
    pub files: Vec<EntryPath>,
}

/// Receives each [`Damaged`] report, from any thread. An error from it ends the run.
pub type OnDamage = Box<dyn Fn(Damaged) -> Result<()> + Send + Sync>;

/// A stored backup as a source.
pub struct StoredBackup(Arc<BackupInner>);

struct BackupInner {
    archive: Arc<Archive>,
    selection: Selection,
    frames: FrameCache,
    on_damage: OnDamage,
    /// Files that were scanned and are not yet in the new manifest.
    open_files: Mutex<HashMap<EntryPath, Arc<FileContent>>>,
    /// The first file whose digest turned out wrong after its data was stored.
    digest_error: Mutex<Option<Error>>,
    /// Whether a page of the manifest has no whole copy.
    has_lost_pages: AtomicBool,
}

impl StoredBackup {
    /// Reads a whole backup. `on_damage` decides whether to go on after damage.
    pub fn new(archive: Arc<Archive>, on_damage: OnDamage) -> Self {
        Self::of(archive, Selection::default(), on_damage)
    }

    /// As [`StoredBackup::new`], but reads a selection only. A link to a file that is not selected becomes a file.
    pub fn of(archive: Arc<Archive>, selection: Selection, on_damage: OnDamage) -> Self {
        let frames = FrameCache::new(FRAME_BYTES);
        let (open_files, digest_error, has_lost_pages) = Default::default();
        Self(Arc::new(BackupInner {
            archive,
            selection,
            frames,
            on_damage,
            open_files,
            digest_error,
            has_lost_pages,
        }))
    }

    /// The backup that is read.
    pub fn archive(&self) -> &Archive {
        &self.0.archive
    }

    /// Checks that every stored file had the right digest. Call this after the last file.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) for a wrong digest.
    pub fn check(&self) -> Result<()> {
        self.0.digest_error.locked().take().map_or(Ok(()), Err)
    }

    /// Returns the pages without a whole copy, whose entries could not be scanned. Complete after
    /// the scan.
    pub fn lost_pages(&self) -> Vec<&PageAt> {
        let archive = self.archive();
        let is_lost = |index: &usize| archive.page(*index).is_err();
        let pages = if self.0.has_lost_pages.load(Relaxed) {
            archive.root.pages.len()
        } else {
            0
        };
        (0..pages)
            .filter(is_lost)
            .map(|index| &archive.root.pages[index])
            .collect()
    }

    fn entries(&self, late: bool) -> Stream<Scanned> {
        let records = Archive::sequence(self.0.archive.clone(), &self.0.selection, late).peekable();
        Box::new(BackupEntries {
            inner: self.0.clone(),
            records,
        })
    }
}

impl fmt::Debug for StoredBackup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({:?})", self.archive().root.id)
    }
}

impl Source for StoredBackup {
    fn scan(&self) -> Result<Stream<Scanned>> {
        Ok(self.entries(false))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        match slice {
            Slice::Members(small, large) => self.0.read_members(small, large, buf),
            Slice::Piece {
                file,
                offset,
                len,
                last,
            } => self.0.read_piece(file, offset, len, last, buf),
        }
    }

    fn on_stored(&self, record: &Record, _crc32c: Option<u32>) {
        self.0.check_stored(record);
    }

    fn finish(&self) -> Result<Stream<Scanned>> {
        Ok(self.entries(true))
    }
}

/// Iterates over the records of one sequence as entries. The records of a file that spans pages
/// become one entry.
struct BackupEntries {
    inner: Arc<BackupInner>,
    records: Peekable<Records<Arc<Archive>>>,
}

impl Iterator for BackupEntries {
    type Item = Result<Scanned>;

    fn next(&mut self) -> Option<Result<Scanned>> {
        loop {
            match self.records.next()? {
                Ok(item) => return Some(self.entry(item)),
                // The entries of a page without a whole copy are lost; the scan continues if the
                // caller wants that.
                Err(error) => {
                    self.inner.has_lost_pages.store(true, Relaxed);
                    let told = (self.inner.on_damage)(Damaged {
                        error,
                        frame: None,
                        files: Vec::new(),
                    });
                    if let Err(error) = told {
                        return Some(Err(error));
                    }
                }
            }
        }
    }
}

impl BackupEntries {
    fn entry(&mut self, first: PageItem) -> Result<Scanned> {
        let mut parts = vec![first];
        // A link to a file that is not selected would have no target: it becomes a file.
        if let EntryKind::HardLink(target) = &parts[0].entry.kind
            && !self.inner.selection.holds(target)
        {
            let path = parts[0].entry.path.clone();
            let found = self.inner.archive.find(target)?;
            if !found.is_empty() {
                parts = found
                    .iter()
                    .map(|item| item.renamed(path.clone()))
                    .collect();
            }
        }
        while let Some(Ok(next)) = self.records.next_if(|next| follows(&parts, next)) {
            parts.push(next);
        }
        let last = &parts[parts.len() - 1];
        let mut entry = last.entry.clone();
        let mut state = last.state.clone();
        if entry.is_file() && state.is_stored() {
            match FileContent::new(parts) {
                Some(content) => drop(
                    self.inner
                        .open_files
                        .locked()
                        .insert(entry.path.clone(), Arc::new(content)),
                ),
                None => {
                    state = self.inner.report_loss(
                        None,
                        misfit(&entry.path),
                        vec![entry.path.clone()],
                    )?;
                    entry.clear_content();
                }
            }
        }
        Ok(Scanned::new(entry, state))
    }
}

/// Returns whether `next` is a further record of the same file.
fn follows(parts: &[PageItem], next: &Result<PageItem>) -> bool {
    let last = &parts[parts.len() - 1];
    next.as_ref()
        .is_ok_and(|next| last.more && next.from > 0 && next.entry.path == last.entry.path)
}

/// A damaged frame, found while reading one slice.
struct DamagedFrame {
    place: FrameKey,
    frame: FrameAt,
    error: Error,
    /// The bytes that could be decoded in spite of the damage.
    plain: Option<Vec<u8>>,
    /// Files of the slice that are lost with the frame.
    files: Vec<EntryPath>,
}

impl BackupInner {
    /// Reports damage and returns the state of the lost file.
    fn report_loss(
        &self,
        frame: Option<(SegmentId, FrameAt)>,
        error: Error,
        files: Vec<EntryPath>,
    ) -> Result<EntryState> {
        let state = unreadable(&error);
        (self.on_damage)(Damaged {
            error,
            frame,
            files,
        })?;
        Ok(state)
    }

    fn content(&self, path: &[u8]) -> Option<Arc<FileContent>> {
        self.open_files.locked().get(path).cloned()
    }

    fn read_members(
        &self,
        small: Vec<Scanned>,
        large: Option<Arc<LargeFile>>,
        mut buf: Buf,
    ) -> Result<Frame> {
        let mut parts = Vec::with_capacity(small.len() + 1);
        let mut bad = Vec::new();
        for scanned in small {
            parts.push(self.append_member(scanned, &mut buf, &mut bad)?);
        }
        for DamagedFrame {
            place: (segment, _),
            frame,
            error,
            files,
            ..
        } in bad
        {
            self.report_loss(Some((segment, frame)), error, files)?;
        }
        let ends_member = large.as_ref().is_none_or(|large| large.known.is_some());
        if let Some(large) = large {
            // Pieces of a file on volumes have headers of their own.
            if !ends_member {
                self.append_header(&large.entry, &mut buf)?;
            }
            self.copy_state(&large);
            parts.push(part(
                FrameContent::Head(large.entry.clone(), large),
                buf.len(),
                0,
            ));
        }
        Ok(Frame::new(buf, parts, ends_member))
    }

    /// Appends one whole member: header, content, padding. A damaged member adds nothing to the
    /// stream.
    fn append_member(
        &self,
        scanned: Scanned,
        buf: &mut Vec<u8>,
        bad: &mut Vec<DamagedFrame>,
    ) -> Result<FrameEntry> {
        let Scanned { entry, state, .. } = scanned;
        let start = buf.len();
        if state.is_stored() || entry.kind == EntryKind::Directory {
            self.append_header(&entry, buf)?;
        }
        let inner = buf.len();
        let content = self
            .content(&entry.path)
            .filter(|_| entry.is_file() && state.is_stored());
        let Some(content) = content else {
            return Ok(part(FrameContent::Whole(entry, state), inner, 0));
        };
        let state = match self.append_small(&content, buf, bad)? {
            None => state,
            Some(lost) => {
                // The header describes content that would not follow it.
                buf.truncate(start);
                return Ok(part(FrameContent::Whole(entry, lost), start, 0));
            }
        };
        let len = buf.len() - inner;
        pad(buf, len as u64);
        Ok(part(FrameContent::Whole(entry, state), inner, len))
    }

    /// Appends the content of a small file. Returns the file's new state if the content is lost.
    fn append_small(
        &self,
        content: &FileContent,
        buf: &mut Vec<u8>,
        bad: &mut Vec<DamagedFrame>,
    ) -> Result<Option<EntryState>> {
        let inner = buf.len();
        for run in content.runs(0, content.data_len()) {
            let Some(frame) = self.append_run(&run, buf, bad) else {
                continue;
            };
            let saved = frame.plain.as_deref().and_then(|plain| run.of(plain));
            let Some(bytes) = saved.filter(|bytes| content.is_saved(bytes)) else {
                frame.files.push(content.path().clone());
                return Ok(Some(unreadable(&frame.error)));
            };
            buf.extend_from_slice(bytes);
        }
        let Err(error) = content.check(&self.archive, 0, &buf[inner..]) else {
            return Ok(None);
        };
        let state = self.report_loss(None, error, vec![content.path().clone()])?;
        Ok(Some(state))
    }

    /// Appends the bytes of one run. Returns its frame instead if the frame is damaged.
    fn append_run<'a>(
        &self,
        run: &FrameRange<'_>,
        buf: &mut Vec<u8>,
        bad: &'a mut Vec<DamagedFrame>,
    ) -> Option<&'a mut DamagedFrame> {
        let place = (run.segment.clone(), run.frame.offset);
        if let Some(index) = bad.iter().position(|known| known.place == place) {
            return Some(&mut bad[index]);
        }
        let error = run.append(&self.archive, &self.frames, buf).err()?;
        bad.push(DamagedFrame {
            place,
            frame: run.frame,
            error,
            plain: self
                .frames
                .salvage(&self.archive, run.segment, &run.frame)
                .ok(),
            files: Vec::new(),
        });
        bad.last_mut()
    }

    /// Copies the stored state of a large file, such as its bad pages.
    fn copy_state(&self, large: &LargeFile) {
        match self
            .content(&large.entry.path)
            .as_deref()
            .map(FileContent::state)
        {
            Some(EntryState::Changed) => large.changed.store(true, Release),
            Some(EntryState::BadPages(pages)) => {
                large.bad_pages.locked().clone_from(pages);
            }
            _ => {}
        }
    }

    /// Reads a piece of a large file. A damaged piece is filled with zeros, and the whole file
    /// counts as unreadable.
    fn read_piece(
        &self,
        file: Arc<LargeFile>,
        offset: u64,
        len: u32,
        last: bool,
        mut buf: Buf,
    ) -> Result<Frame> {
        let content = self
            .content(&file.entry.path)
            .ok_or_else(|| misfit(&file.entry.path))?;
        if let Some(reason) = self.append_large(&content, offset, len.into(), &mut buf)? {
            file.failed.get_or_init(|| reason);
        }
        buf.resize(len as usize, 0);
        let is_alone = file.known.is_some();
        if last && !is_alone {
            pad(&mut buf, file.data_len);
        }
        let content = FrameContent::Piece { file, offset, last };
        let parts = vec![part(content, 0, len as usize)];
        Ok(Frame::new(buf, parts, last || is_alone))
    }

    /// Appends a part of a large file. Returns the reason if the content is lost.
    fn append_large(
        &self,
        content: &FileContent,
        offset: u64,
        len: u64,
        buf: &mut Vec<u8>,
    ) -> Result<Option<String>> {
        let lose = |frame, error: Error| {
            let reason = error.line();
            self.report_loss(frame, error, vec![content.path().clone()])
                .map(|_| Some(reason))
        };
        for run in content.runs(offset, len) {
            if let Err(error) = run.append(&self.archive, &self.frames, buf) {
                return lose(Some((run.segment.clone(), run.frame)), error);
            }
        }
        content
            .check(&self.archive, offset, buf)
            .map_or_else(|error| lose(None, error), |()| Ok(None))
    }

    /// Appends a header. For a cluster, times have whole seconds as in headers of PostgreSQL's own
    /// tools, so no extended header is needed.
    fn append_header(&self, entry: &Entry, buf: &mut Vec<u8>) -> Result<()> {
        if self.archive.root.postgres.is_none() || entry.mtime.nanos == 0 {
            return pax::write_header(entry, buf);
        }
        let mtime = Time {
            nanos: 0,
            ..entry.mtime
        };
        pax::write_header(
            &Entry {
                mtime,
                ..entry.clone()
            },
            buf,
        )
    }

    fn check_stored(&self, record: &Record) {
        let path = &record.entry.path;
        let Some(content) = self.open_files.locked().remove(path) else {
            return;
        };
        if let (Some(was), Some(is)) = (content.digest(), record.digest)
            && was != is
        {
            let error = Error::corrupt(format!("file {} is damaged", quoted(path)));
            self.digest_error.locked().get_or_insert_with(|| {
                error.because(format!("its digest is {is}, the manifest says {was}"))
            });
        }
    }
}

fn unreadable(error: &Error) -> EntryState {
    EntryState::Unreadable(error.line())
}
