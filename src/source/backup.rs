//! A stored backup as the source of another one.
//!
//! The scan gives the records of an [`Archive`], those that came late at the end; a read fetches and decodes the frames that
//! hold a slice and makes members of a tar from them. So what comes out is a full backup, whatever the archive refers to.
//!
//! Nothing damaged passes as whole: a frame with a checksum is compared with that when it is decoded, the content of others
//! with its digest; and every digest that the new backup gets is compared with the one that the old has. What waits between the
//! scan and the new manifest is as much as the line of the pipeline holds.

use super::{
    Source, Stream,
    tree::{pad, part},
};
use crate::{
    archive::{
        Archive, Records,
        extents::FileContent,
        frame_cache::{FrameCache, Place},
        schedule::misfit,
    },
    error::{Error, Result, quoted},
    format::{
        entry::{Entry, EntryKind, EntryPath, Time},
        page::{EntryState, FrameAt, PageItem, Record, SegmentId},
        pax,
        root::PageAt,
    },
    frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile, Scanned, Slice},
    queue::Locked,
};
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

/// Damage that was met, and the files that cannot be had because of it.
#[derive(Debug)]
pub struct Damaged {
    /// What is wrong.
    pub error: Error,
    /// The frame, if it is one.
    pub frame: Option<(SegmentId, FrameAt)>,
    /// The files.
    pub files: Vec<EntryPath>,
}

/// Is told of damage, from any thread; what it fails with ends the run.
pub type Tell = Box<dyn Fn(Damaged) -> Result<()> + Send + Sync>;

/// See the module.
pub struct StoredBackup(Arc<BackupInner>);

struct BackupInner {
    archive: Arc<Archive>,
    frames: FrameCache,
    tell: Tell,
    /// Files that were scanned and are not in the new manifest yet.
    under_way: Mutex<HashMap<EntryPath, Arc<FileContent>>>,
    /// The first file that turned out to be another when it was too late to leave it out.
    wrong: Mutex<Option<Error>>,
    /// Was there a page that is nowhere whole?
    lacks_pages: AtomicBool,
}

impl StoredBackup {
    /// All of a backup. `tell` is asked whether to go on after damage.
    pub fn new(archive: Arc<Archive>, tell: Tell) -> Self {
        let frames = FrameCache::new(archive.clone());
        let (under_way, wrong, lacks_pages) = Default::default();
        Self(Arc::new(BackupInner {
            archive,
            frames,
            tell,
            under_way,
            wrong,
            lacks_pages,
        }))
    }

    /// The backup.
    pub fn archive(&self) -> &Archive {
        &self.0.archive
    }

    /// Did every file that passed have its digest? Asked once all have.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::error::Kind::Corrupt) if one had not.
    pub fn check(&self) -> Result<()> {
        self.0.wrong.locked().take().map_or(Ok(()), Err)
    }

    /// The pages whose entries could not be scanned, as no copy of them is whole. Known once all were.
    pub fn lost_pages(&self) -> Vec<&PageAt> {
        let archive = self.archive();
        let is_lost = |at: &usize| archive.page(*at).is_err();
        let pages = if self.0.lacks_pages.load(Relaxed) {
            archive.root.pages.len()
        } else {
            0
        };
        (0..pages)
            .filter(is_lost)
            .map(|at| &archive.root.pages[at])
            .collect()
    }

    fn entries(&self, late: bool) -> Stream<Scanned> {
        let records = Archive::sequence(self.0.archive.clone(), late).peekable();
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
            Slice::Members(small, large) => self.0.members(small, large, buf),
            Slice::Piece {
                file,
                offset,
                len,
                last,
            } => self.0.piece(file, offset, len, last, buf),
        }
    }

    fn laid(&self, record: &Record, _crc32c: Option<u32>) {
        self.0.laid(record);
    }

    fn finish(&self) -> Result<Stream<Scanned>> {
        Ok(self.entries(true))
    }
}

/// The records of one sequence as entries; those of a file that goes on over pages as one.
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
                // A page that is nowhere whole: what it describes is lost, the rest goes on if that is wanted.
                Err(error) => {
                    self.inner.lacks_pages.store(true, Relaxed);
                    let told = (self.inner.tell)(Damaged {
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
        while let Some(Ok(next)) = self.records.next_if(|next| follows(&parts, next)) {
            parts.push(next);
        }
        let last = &parts[parts.len() - 1];
        let (mut entry, mut state) = (last.entry.clone(), last.state.clone());
        if entry.is_file() && state.is_stored() {
            match FileContent::new(parts) {
                Some(content) => drop(
                    self.inner
                        .under_way
                        .locked()
                        .insert(entry.path.clone(), Arc::new(content)),
                ),
                None => {
                    state = self
                        .inner
                        .lose(None, misfit(&entry.path), vec![entry.path.clone()])?;
                    entry.clear_content();
                }
            }
        }
        Ok(Scanned::new(entry, state))
    }
}

/// Is `next` more of the same file?
fn follows(parts: &[PageItem], next: &Result<PageItem>) -> bool {
    let last = &parts[parts.len() - 1];
    next.as_ref()
        .is_ok_and(|next| last.more && next.from > 0 && next.entry.path == last.entry.path)
}

/// A frame that is damaged.
struct BadPages {
    place: Place,
    frame: FrameAt,
    error: Error,
    /// What came out of it all the same.
    plain: Option<Vec<u8>>,
    /// The files of one slice that are lost with it.
    files: Vec<EntryPath>,
}

impl BackupInner {
    /// Tell of damage; the state of what is lost by it.
    fn lose(
        &self,
        frame: Option<(SegmentId, FrameAt)>,
        error: Error,
        files: Vec<EntryPath>,
    ) -> Result<EntryState> {
        let state = lost(&error);
        (self.tell)(Damaged {
            error,
            frame,
            files,
        })?;
        Ok(state)
    }

    fn content(&self, path: &[u8]) -> Option<Arc<FileContent>> {
        self.under_way.locked().get(path).cloned()
    }

    fn members(
        &self,
        small: Vec<Scanned>,
        large: Option<Arc<LargeFile>>,
        mut buf: Buf,
    ) -> Result<Frame> {
        let mut parts = Vec::with_capacity(small.len() + 1);
        let mut bad = Vec::new();
        for scanned in small {
            parts.push(self.member(scanned, &mut buf, &mut bad)?);
        }
        for BadPages {
            place: (segment, _),
            frame,
            error,
            files,
            ..
        } in bad
        {
            self.lose(Some((segment, frame)), error, files)?;
        }
        let ends_member = large.is_none();
        if let Some(large) = large {
            self.header(&large.entry, &mut buf)?;
            self.mark(&large);
            parts.push(part(
                FrameContent::Head(large.entry.clone(), large),
                buf.len(),
                0,
            ));
        }
        Ok(Frame::new(buf, parts, ends_member))
    }

    /// One whole member: header, content, padding. What is damaged leaves nothing in the stream.
    fn member(
        &self,
        scanned: Scanned,
        buf: &mut Vec<u8>,
        bad: &mut Vec<BadPages>,
    ) -> Result<FrameEntry> {
        let Scanned { entry, state, .. } = scanned;
        let start = buf.len();
        if state.is_stored() || entry.kind == EntryKind::Directory {
            self.header(&entry, buf)?;
        }
        let inner = buf.len();
        let content = self
            .content(&entry.path)
            .filter(|_| entry.is_file() && state.is_stored());
        let Some(content) = content else {
            return Ok(part(FrameContent::Whole(entry, state), inner, 0));
        };
        let state = match self.small(&content, buf, bad)? {
            None => state,
            Some(lost) => {
                buf.truncate(start);
                return Ok(part(FrameContent::Whole(entry, lost), start, 0));
            }
        };
        let len = buf.len() - inner;
        pad(buf, len as u64);
        Ok(part(FrameContent::Whole(entry, state), inner, len))
    }

    /// Append all of a small file; its state, if it cannot be had.
    fn small(
        &self,
        content: &FileContent,
        buf: &mut Vec<u8>,
        bad: &mut Vec<BadPages>,
    ) -> Result<Option<EntryState>> {
        let inner = buf.len();
        for run in content.runs(0, content.data_len()) {
            let place = (run.segment.clone(), run.frame.offset);
            let at = match bad.iter().position(|known| known.place == place) {
                Some(at) => at,
                None => {
                    let Err(error) = run.append(&self.frames, buf) else {
                        continue;
                    };
                    let plain = self.frames.salvage(run.segment, &run.frame).ok();
                    bad.push(BadPages {
                        place,
                        frame: run.frame,
                        error,
                        plain,
                        files: Vec::new(),
                    });
                    bad.len() - 1
                }
            };
            let BadPages {
                error,
                plain,
                files,
                ..
            } = &mut bad[at];
            match plain
                .as_deref()
                .and_then(|plain| run.of(plain))
                .filter(|bytes| content.is_saved(bytes))
            {
                Some(bytes) => buf.extend_from_slice(bytes),
                None => {
                    files.push(content.path().clone());
                    return Ok(Some(lost(error)));
                }
            }
        }
        match content.check(&self.archive, 0, &buf[inner..]) {
            Ok(()) => Ok(None),
            Err(error) => self
                .lose(None, error, vec![content.path().clone()])
                .map(Some),
        }
    }

    /// What is known of a large file besides its content.
    fn mark(&self, large: &LargeFile) {
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

    /// A piece of a large file. If its frames are damaged it is zeros, and the file counts as unreadable as a whole.
    fn piece(
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
        if let Some(reason) = self.large(&content, offset, len.into(), &mut buf)? {
            file.failed.get_or_init(|| reason);
        }
        buf.resize(len as usize, 0);
        if last {
            pad(&mut buf, file.data_len);
        }
        let what = FrameContent::Piece { file, offset, last };
        Ok(Frame::new(buf, vec![part(what, 0, len as usize)], last))
    }

    /// Append some of a large file; why it cannot be had, if so.
    fn large(
        &self,
        content: &FileContent,
        offset: u64,
        len: u64,
        buf: &mut Vec<u8>,
    ) -> Result<Option<String>> {
        let lose = |frame, error: Error| {
            let reason = error.line();
            self.lose(frame, error, vec![content.path().clone()])
                .map(|_| Some(reason))
        };
        for run in content.runs(offset, len) {
            if let Err(error) = run.append(&self.frames, buf) {
                return lose(Some((run.segment.clone(), run.frame)), error);
            }
        }
        content
            .check(&self.archive, offset, buf)
            .map_or_else(|error| lose(None, error), |()| Ok(None))
    }

    /// Of a cluster, headers are as its own tools write them: whole seconds, so that no extended ones are needed.
    fn header(&self, entry: &Entry, buf: &mut Vec<u8>) -> Result<()> {
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

    fn laid(&self, record: &Record) {
        let path = &record.entry.path;
        let Some(content) = self.under_way.locked().remove(path) else {
            return;
        };
        if let (Some(was), Some(is)) = (content.digest(), record.digest)
            && was != is
        {
            let error = Error::corrupt(format!("file {} is damaged", quoted(path)));
            self.wrong.locked().get_or_insert_with(|| {
                error.because(format!("its digest is {is}, the manifest says {was}"))
            });
        }
    }
}

fn lost(error: &Error) -> EntryState {
    EntryState::Unreadable(error.line())
}
