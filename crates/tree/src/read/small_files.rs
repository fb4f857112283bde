//! Small files of a tree: builds frames from whole members.
//!
//! A file is opened, copied into the frame with its header, and checked again where it may have
//! changed. [`super::large_file`] reads files that are larger than a frame.

use super::{
    TreeInner, changed, pad,
    parent_dir::ParentDir,
    part,
    refit::{REPLACED, content_length_differs, is_replaced, needs_recheck, room},
    unstorable,
};
use fullbore_format::{
    entry::{Entry, EntryKind, Time, xattr_bytes},
    error::Result,
    page::EntryState,
};
use fullbore_pipeline::{
    frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile, Scanned, Slice},
    known::{BaseEntry, Trust},
};
use fullbore_platform::{
    dir::{self, Stat},
    read::{self, PageCacheUse},
    uring::FileRing,
};
use std::{cell::RefCell, io, os::fd::OwnedFd, sync::Arc};

thread_local! {
    /// Opens and closes many files with one call where the system can do that.
    static RING: RefCell<Option<FileRing>> = const { RefCell::new(None) };
}

impl TreeInner {
    /// Returns how a small file is read.
    fn cache_of(&self, scanned: &Scanned) -> PageCacheUse {
        if scanned.is_read_ahead {
            PageCacheUse::DropAll
        } else {
            self.cache()
        }
    }

    pub(super) fn read_members(
        &self,
        small: Vec<Scanned>,
        large: Option<Arc<LargeFile>>,
        buf: Buf,
    ) -> Result<Frame> {
        let waited_for = large.clone();
        let frame = self.build_frame(small, large, buf);
        if let (Err(error), Some(large)) = (&frame, waited_for) {
            large
                .opened
                // this ends the run; no thread may wait for the file any longer
                .get_or_init(|| Err(EntryState::Unreadable(error.line())));
        }
        frame
    }

    fn build_frame(
        &self,
        small: Vec<Scanned>,
        large: Option<Arc<LargeFile>>,
        mut buf: Buf,
    ) -> Result<Frame> {
        let mut parts = Vec::with_capacity(small.len() + 1);
        let left = self.append_members(small, &mut parts, &mut buf)?;
        let mut rest = None;
        let mut ends_member = true;
        if !left.is_empty() {
            // The readers of its pieces may be waiting for the open file.
            if let Some(large) = &large {
                let _ = self.open_shared(large);
            }
            rest = Some(Slice::Members(left, large));
        } else if let Some(large) = large {
            let part = self.append_large_header(large, &mut buf)?;
            ends_member =
                !matches!(&part.what, FrameContent::Head(_, file) if file.known.is_none());
            parts.push(part);
        }
        Self::close_waiting();
        parts.retain(
            |part| !matches!(&part.what, FrameContent::Whole(entry, state) if self.skips_silently(entry, state)),
        );
        Ok(Frame {
            rest,
            ..Frame::new(buf, parts, ends_member)
        })
    }

    /// Appends members until the frame is full. Returns the members that did not fit.
    fn append_members(
        &self,
        small: Vec<Scanned>,
        parts: &mut Vec<FrameEntry>,
        buf: &mut Buf,
    ) -> Result<Vec<Scanned>> {
        let mut home = ParentDir::default();
        let mut text_bytes = 0;
        let mut small = small.into_iter();
        loop {
            self.open_together(small.as_slice(), &mut home);
            let Some(scanned) = small.next() else { break };
            let is_first = scanned.is_first;
            let part = FrameEntry {
                is_first,
                ..self.append_member(scanned, &mut home, buf)?
            };
            if let FrameContent::Whole(entry, _) = &part.what {
                text_bytes += xattr_bytes(&entry.xattrs);
            }
            parts.push(part);
            if buf.exceeds_capacity(buf.len() + text_bytes) {
                break;
            }
        }
        Ok(small.collect())
    }

    /// Closes what waits for that on this thread.
    pub(super) fn close_waiting() {
        RING.with_borrow_mut(|ring| ring.iter_mut().for_each(FileRing::flush));
    }

    /// Closes a file or directory that was only read, now or with others.
    pub(super) fn close(&self, fd: OwnedFd) {
        Self::with_ring(|ring| ring.close(fd));
    }

    pub(super) fn with_ring<T>(work: impl FnOnce(&mut FileRing) -> T) -> T {
        RING.with_borrow_mut(|ring| work(ring.get_or_insert_default()))
    }

    /// Appends one whole member: header, content, padding. A file that cannot be read adds nothing
    /// to the stream.
    fn append_member(
        &self,
        mut scanned: Scanned,
        current: &mut ParentDir,
        buf: &mut Vec<u8>,
    ) -> Result<FrameEntry> {
        match self.unlink_orphan(&mut scanned.entry, room(buf, buf.len())) {
            Ok(true) => scanned.known = None,
            Ok(false) => {}
            Err(state) => return Ok(whole(scanned.entry, state, buf.len())),
        }
        // Before the file is opened: an unchanged file costs no call at all.
        if let Some(same) = scanned.known.take_if(|known| known.trust == Trust::Same) {
            return Ok(known_part(scanned.entry, scanned.state, same, buf.len()));
        }
        if scanned.entry.is_file() && scanned.state.is_stored() {
            self.append_regular(scanned, current, buf)
        } else {
            Ok(self.append_special(scanned.entry, scanned.state, buf))
        }
    }

    /// Appends the header of an entry without content, if its state is stored.
    fn append_special(&self, entry: Entry, state: EntryState, buf: &mut Vec<u8>) -> FrameEntry {
        let is_dir = entry.kind == EntryKind::Directory;
        let is_stored = state.is_stored() || (is_dir && !self.skips_silently(&entry, &state));
        let mut state = state;
        if is_stored && let Err(error) = self.append_header(&entry, buf) {
            state = unstorable(&error);
        }
        whole(entry, state, buf.len())
    }

    /// Appends a regular file, unless an earlier backup holds its content.
    fn append_regular(
        &self,
        mut scanned: Scanned,
        current: &mut ParentDir,
        buf: &mut Vec<u8>,
    ) -> Result<FrameEntry> {
        let (fd, is_home) = match self.open_member(&mut scanned, current) {
            Ok(opened) => opened,
            Err(error) => {
                self.orphan_links(&scanned.entry, scanned.is_first);
                let state = self.state_of(&error);
                return Ok(whole(scanned.entry, state, buf.len()));
            }
        };
        let same = scanned
            .known
            .take_if(|known| matches!(known.trust, Trust::Content | Trust::Unverified));
        // The file is looked at again after it was read wherever another user could have swapped
        // it, or where its times prove nothing.
        let must_recheck = scanned.exposed
            || !is_home
            || self.rules.looks_twice
            || same.is_some()
            || self.is_unrepaired(&scanned.entry.path);
        if let Some(same) = same {
            let now = self.recheck_stat(&fd, &scanned.entry);
            let is_replaced =
                now.is_some_and(|now| is_replaced(&fd, &now, &scanned.entry, scanned.born));
            if !is_replaced {
                return Ok(unchanged_part(scanned, same, buf.len()));
            }
            // The frame was cut for a file that adds nothing: the new content may not fit.
            if scanned.entry.data_len() > room(buf, buf.len()) {
                let state = EntryState::Unreadable(REPLACED.to_owned());
                return Ok(whole(scanned.entry, state, buf.len()));
            }
        }
        self.fit_to_present(&fd, &mut scanned.entry);
        self.append_opened(fd, scanned, must_recheck, buf)
    }

    /// Opens a file, and reads its attributes into the entry.
    fn open_member(
        &self,
        scanned: &mut Scanned,
        current: &mut ParentDir,
    ) -> io::Result<(OwnedFd, bool)> {
        let path = &scanned.entry.path;
        let (fd, is_home) =
            self.retry_while_missing(path, || self.open_in(current, path, scanned.home))?;
        scanned.entry.xattrs = self.xattrs(&fd)?;
        Ok((fd, is_home))
    }

    /// Appends an open file, and closes it.
    fn append_opened(
        &self,
        fd: OwnedFd,
        scanned: Scanned,
        must_recheck: bool,
        buf: &mut Vec<u8>,
    ) -> Result<FrameEntry> {
        let cache = self.cache_of(&scanned);
        let entry = scanned.entry;
        let start = buf.len();
        let (inner, read) = match self.append_file(&fd, &entry, cache, buf) {
            Ok(copied) => copied,
            Err(error) => {
                self.close(fd);
                return Ok(whole(entry, unstorable(&error), start));
            }
        };
        let mut file = CopiedFile {
            entry,
            start,
            inner,
            read,
            cache,
            now: None,
            replaced: false,
        };
        if must_recheck || scanned.is_first || needs_recheck(&file.read, &file.entry) {
            file.now = self.recheck_stat(&fd, &file.entry);
        }
        // After the content was read: a swap during the reading is seen too.
        file.replaced = file
            .now
            .is_some_and(|now| is_replaced(&fd, &now, &file.entry, scanned.born));
        self.orphan_links(&file.entry, scanned.is_first && file.replaced);
        self.recheck_copy(&fd, &mut file, buf)?;
        self.close(fd);
        self.finish_copy(file, scanned.known, buf)
    }

    /// Copies the file again if it has changed since the scan and the frame has room for it.
    fn recheck_copy(&self, fd: &OwnedFd, file: &mut CopiedFile, buf: &mut Vec<u8>) -> Result<()> {
        if let Some(found) = file.now.filter(|now| self.must_copy_again(file, now)) {
            if self.refit(&found, &mut file.entry, room(buf, file.start)) {
                // Once more, not until it stops changing: a file that grows for ever must not hold
                // the run.
                buf.truncate(file.start);
                (file.inner, file.read) = self.append_file(fd, &file.entry, file.cache, buf)?;
                file.now = self.recheck_stat(fd, &file.entry);
            } else if file.replaced {
                file.read = Err(io::Error::other(REPLACED));
            }
        }
        if matches!(file.read, Ok(false))
            && let Some(now) = &file.now
            && let Err(error) = self.check_size(fd, now)
        {
            file.read = Err(error);
        }
        Ok(())
    }

    fn must_copy_again(&self, file: &CopiedFile, now: &Stat) -> bool {
        let is_torn = self.is_unrepaired(&file.entry.path) && changed(now, &file.entry);
        is_torn || content_length_differs(now, &file.entry, file.replaced, &file.read)
    }

    /// Pads a copied file and builds its part. A file that could not be read is removed again.
    fn finish_copy(
        &self,
        mut file: CopiedFile,
        known: Option<BaseEntry>,
        buf: &mut Vec<u8>,
    ) -> Result<FrameEntry> {
        let len = buf.len() - file.inner;
        let is_complete = match file.read {
            Ok(is_complete) => is_complete,
            Err(error) => {
                buf.truncate(file.start);
                return Ok(whole(file.entry, self.state_of(&error), file.start));
            }
        };
        let has_changed = file.now.is_some_and(|now| changed(&now, &file.entry));
        let is_same = is_complete && !file.replaced && !has_changed;
        let state = if is_same || self.has_overlay() {
            EntryState::Whole
        } else {
            EntryState::Changed
        };
        if let Some(now) = file.now
            && self.update_owner(&now, &mut file.entry)
        {
            // The owner stands in the header before the content, which is read already: the header
            // is written anew.
            let mut header = Vec::new();
            self.append_header(&file.entry, &mut header)?;
            let inner = file.start + header.len();
            buf.splice(file.start..file.inner, header);
            file.inner = inner;
        }
        pad(buf, len as u64);
        Ok(FrameEntry {
            known,
            replaced: file.replaced,
            ..part(FrameContent::Whole(file.entry, state), file.inner, len)
        })
    }

    /// Appends header and content of a file. Returns the start of the content, and whether the
    /// content has the promised length.
    fn append_file(
        &self,
        fd: &OwnedFd,
        entry: &Entry,
        cache: PageCacheUse,
        buf: &mut Vec<u8>,
    ) -> Result<(usize, io::Result<bool>)> {
        self.append_header(entry, buf)?;
        Ok((buf.len(), self.append_content(fd, entry, cache, buf)))
    }

    /// As [`Self::now`], but also for files that the program does not repair.
    fn recheck_stat(&self, fd: &OwnedFd, entry: &Entry) -> Option<Stat> {
        if self.repairs(&entry.path) {
            None
        } else {
            dir::stat_fd(fd).ok()
        }
    }

    /// Appends the content of a small file: exactly as many bytes as its header promised. Returns
    /// whether the file had as many.
    fn append_content(
        &self,
        fd: &OwnedFd,
        entry: &Entry,
        cache: PageCacheUse,
        buf: &mut Vec<u8>,
    ) -> io::Result<bool> {
        let want = entry.data_len() as usize;
        let inner = buf.len();
        let mut complete = true;
        match &entry.kind {
            EntryKind::File { map: Some(map), .. } => {
                for run in map.iter() {
                    let got = read::read_full(fd, buf, run.offset, run.len as usize, cache)?;
                    complete &= got as u64 == run.len;
                    // The header promised this length: zeros keep the tar readable, and the state
                    // says "changed".
                    buf.resize(buf.len() + run.len as usize - got, 0);
                }
            }
            _ => {
                let got = read::read_end(fd, buf, 0, want, cache)?;
                complete = got == want;
            }
        }
        buf.resize(inner + want, 0);
        Ok(complete)
    }
}

/// A small file whose content was just copied into a frame.
struct CopiedFile {
    entry: Entry,
    /// Start of the header in the frame.
    start: usize,
    /// Start of the content in the frame.
    inner: usize,
    /// Whether the content has the length that the header promises.
    read: io::Result<bool>,
    cache: PageCacheUse,
    /// Attributes after the copy, if they were needed.
    now: Option<Stat>,
    /// Whether the file is another one than in the scan.
    replaced: bool,
}

/// A part for a file whose content an earlier backup holds.
fn known_part(entry: Entry, state: EntryState, known: BaseEntry, offset: usize) -> FrameEntry {
    FrameEntry {
        known: Some(known),
        runs: Some(Vec::new()),
        ..whole(entry, state, offset)
    }
}

/// As [`known_part`], for a file that was opened because its metadata has changed.
fn unchanged_part(scanned: Scanned, same: BaseEntry, offset: usize) -> FrameEntry {
    let mut entry = scanned.entry;
    // The content was not compared, so the next backup must not rely on inode and ctime.
    if same.trust == Trust::Unverified {
        entry.inode = 0;
        entry.ctime = Time::default();
    }
    known_part(entry, scanned.state, same, offset)
}

/// A part without content, for an entry whose header ends at `offset`.
fn whole(entry: Entry, state: EntryState, offset: usize) -> FrameEntry {
    part(FrameContent::Whole(entry, state), offset, 0)
}
