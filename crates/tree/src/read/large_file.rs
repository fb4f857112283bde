//! Large files of a tree: all readers share one open file and read it piece by piece.

use super::{
    TreeInner, changed, pad, part,
    refit::{REPLACED, is_replaced},
    unstorable,
};
use fullbore_format::{
    entry::{ByteRun, Entry, Xattr},
    error::{Result, reason},
    page::EntryState,
};
use fullbore_pipeline::{
    frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile},
    known::StoredRun,
};
use fullbore_platform as platform;
use fullbore_platform::read;
use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::Ordering::{AcqRel, Release},
    },
};

impl TreeInner {
    /// Appends the header of a large file.
    pub(crate) fn append_large_header(
        &self,
        large: Arc<LargeFile>,
        buf: &mut Vec<u8>,
    ) -> Result<FrameEntry> {
        let mut entry = large.entry.clone();
        let replaced = match self.open_shared(&large) {
            Ok((fd, xattrs)) => {
                entry.xattrs.clone_from(xattrs);
                let now = self.now(fd);
                // Owner and attributes are read when the file is open, later than the scan: they
                // belong to the content that is read.
                now.iter()
                    .for_each(|now| _ = self.update_owner(now, &mut entry));
                now.is_some_and(|now| is_replaced(fd, &now, &entry, large.born))
            }
            Err(state) => {
                self.orphan_links(&entry, true);
                return Ok(part(
                    FrameContent::Whole(entry, state.clone()),
                    buf.len(),
                    0,
                ));
            }
        };
        self.orphan_links(&entry, replaced);
        large.changed.fetch_or(replaced, AcqRel);
        // A file of which an earlier backup has parts is stored as members for its pieces, without
        // a header of its own.
        if large.known.is_none() {
            self.append_header(&entry, buf)?;
        }
        Ok(FrameEntry {
            replaced,
            ..part(FrameContent::Head(entry, large), buf.len(), 0)
        })
    }

    /// Returns the open file that all readers of a large file share. The first caller opens it:
    /// waiting for the reader of the header could be a deadlock, because that reader may be waiting
    /// for a permit.
    pub(crate) fn open_shared<'a>(
        &self,
        large: &'a LargeFile,
    ) -> &'a Result<(OwnedFd, Vec<Xattr>), EntryState> {
        large.opened.get_or_init(|| {
            let opened = self
                .open(&large.entry.path)
                .and_then(|fd| Ok((self.xattrs(&fd)?, fd)));
            let (xattrs, fd) = opened.map_err(|error| self.state_of(&error))?;
            let entry = Entry {
                xattrs,
                ..large.entry.clone()
            };
            // A replaced file must not be read in part, with the rest taken from the earlier file.
            let is_cut = entry.is_sparse()
                || large
                    .known
                    .as_ref()
                    .is_some_and(|known| known.changed.is_some());
            if self.now(&fd).is_some_and(|now| {
                (now.size != entry.size() || is_cut) && is_replaced(&fd, &now, &entry, large.born)
            }) {
                return Err(EntryState::Unreadable(REPLACED.to_owned()));
            }
            self.append_header(&entry, &mut Vec::new())
                .map_err(|error| unstorable(&error))?; // its pieces come after it
            if platform::tricks() {
                read::sequential(&fd);
            }
            Ok((fd, entry.xattrs))
        })
    }

    /// Reads `len` bytes of a large file at `offset`, or fewer if the file has shrunk since the
    /// scan.
    ///
    /// A short read is not an error: the frame is filled with zeros to the length in the tar
    /// header, and the file is marked changed (as PostgreSQL's own `sendFile` does). Bytes that
    /// cannot be read are also filled with zeros, and then the whole file counts as unreadable: its
    /// header is written already, but the manifest leaves it out.
    pub(crate) fn read_piece(
        &self,
        file: Arc<LargeFile>,
        offset: u64,
        len: u32,
        last: bool,
        mut buf: Buf,
    ) -> Result<Frame> {
        let Ok((fd, _)) = self.open_shared(&file) else {
            return Ok(Frame::new(buf, Vec::new(), last));
        };
        if let Some(patches) = file
            .known
            .as_ref()
            .and_then(|known| known.split_by_changes(offset, len.into()))
        {
            return Ok(self.read_patched_piece(
                fd,
                file.clone(),
                (offset, len, last),
                patches,
                buf,
            ));
        }
        let mut complete = true;
        // With holes, a read behind the last run does not show whether the file has grown.
        let reads_end = last && !file.entry.is_sparse();
        for ByteRun { offset, len } in file.entry.runs(offset, len.into()) {
            let start = buf.len();
            let cache = self.cache();
            let read = match reads_end {
                true => read::read_end(fd, &mut buf, offset, len as usize, cache),
                false => read::read_full(fd, &mut buf, offset, len as usize, cache),
            };
            match read {
                Ok(got) => complete &= got as u64 == len,
                Err(error) => self.mark_unreadable(&file, &error),
            }
            buf.resize(start + len as usize, 0);
        }
        self.note_change(fd, &file, complete);
        let alone = file.known.is_some();
        if last && !alone {
            pad(&mut buf, file.data_len);
        }
        let content = FrameContent::Piece { file, offset, last };
        Ok(Frame::new(
            buf,
            vec![part(content, 0, len as usize)],
            last || alone,
        ))
    }

    /// Records whether the file changed while its pieces were read.
    fn note_change(&self, fd: &OwnedFd, file: &LargeFile, complete: bool) {
        if self.has_overlay() || (complete && file.unread.fetch_sub(1, AcqRel) > 1) {
            return;
        }
        let now = self.now(fd);
        let checked = if complete {
            Ok(())
        } else {
            now.as_ref().map_or(Ok(()), |now| self.check_size(fd, now))
        };
        match checked {
            Err(error) => self.mark_unreadable(file, &error),
            Ok(()) if !complete || now.is_some_and(|now| changed(&now, &file.entry)) => {
                file.changed.store(true, Release)
            }
            Ok(()) => {}
        }
    }

    fn mark_unreadable(&self, file: &LargeFile, error: &io::Error) {
        self.shortage.notice(error);
        file.failed.get_or_init(|| reason(error));
    }

    /// Reads only the changed parts of a piece.
    fn read_patched_piece(
        &self,
        fd: &OwnedFd,
        file: Arc<LargeFile>,
        (offset, len, last): (u64, u32, bool),
        patches: Vec<StoredRun>,
        mut buf: Buf,
    ) -> Frame {
        let mut position = offset;
        let mut complete = true;
        for patch in &patches {
            position += match *patch {
                StoredRun::Kept { len, .. } => u64::from(len),
                StoredRun::Here { inner, len } => {
                    let read = read::read_full(fd, &mut buf, position, len as usize, self.cache());
                    match read {
                        Ok(got) => complete &= got == len as usize,
                        Err(error) => self.mark_unreadable(&file, &error),
                    }
                    buf.resize((inner + len) as usize, 0); // bytes that were truncated meanwhile
                    u64::from(len)
                }
            };
        }
        self.note_change(fd, &file, complete);
        let content = FrameContent::Piece { file, offset, last };
        Frame::new(
            buf,
            vec![FrameEntry {
                runs: Some(patches),
                ..part(content, 0, len as usize)
            }],
            true,
        )
    }
}
