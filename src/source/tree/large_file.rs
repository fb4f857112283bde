//! Large files of a tree: one open file that all readers share, read piece by piece.

use super::{
    TreeInner, changed, pad, part,
    refit::{REPLACED, is_replaced},
    unstorable,
};
use crate::{
    error::{Result, reason},
    format::{
        entry::{ByteRun, Entry, Xattr},
        page::EntryState,
    },
    frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile},
    known::StoredRun,
    platform::{Tricks, dir::Stat, read},
};
use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::Ordering::{AcqRel, Release},
    },
};

impl TreeInner {
    /// The header of a large file.
    pub(crate) fn head(&self, large: Arc<LargeFile>, buf: &mut Vec<u8>) -> Result<FrameEntry> {
        let mut entry = large.entry.clone();
        let replaced = match self.opened(&large) {
            Ok((fd, xattrs)) => {
                entry.xattrs.clone_from(xattrs);
                let now = self.now(fd);
                now.iter().for_each(|now| _ = self.adopt(now, &mut entry));
                now.is_some_and(|now| is_replaced(fd, &now, &entry, large.born))
            }
            Err(state) => {
                self.disown(&entry, true);
                return Ok(part(
                    FrameContent::Whole(entry, state.clone()),
                    buf.len(),
                    0,
                ));
            }
        };
        self.disown(&entry, replaced);
        large.changed.fetch_or(replaced, AcqRel);
        if large.known.is_none() {
            self.header(&entry, buf)?;
        }
        Ok(FrameEntry {
            replaced,
            ..part(FrameContent::Head(entry, large), buf.len(), 0)
        })
    }

    /// The open file that all readers of a large one share. Whoever comes first opens it: to wait for the reader of the
    /// header would be a wait for one that may itself be waiting for a permit to read.
    pub(crate) fn opened<'a>(
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
            // Nor may it be read in part only, and the rest of it be that of the other.
            let is_cut = entry.is_sparse()
                || large
                    .known
                    .as_ref()
                    .is_some_and(|known| known.changed.is_some());
            let is_other = |now: Stat| {
                (now.size != entry.size() || is_cut) && is_replaced(&fd, &now, &entry, large.born)
            };
            if self.now(&fd).is_some_and(is_other) {
                return Err(EntryState::Unreadable(REPLACED.to_owned()));
            }
            self.header(&entry, &mut Vec::new())
                .map_err(|error| unstorable(&error))?; // its pieces come behind it
            if self.rules.tricks == Tricks::Auto {
                read::sequential(&fd);
            }
            Ok((fd, entry.xattrs))
        })
    }

    /// Read `slice.len` bytes of a large file, or fewer if it has shrunk since the scan.
    ///
    /// Fewer is not an error: the frame is filled with zeros to the length the header promised, and the file is marked
    /// changed (as PostgreSQL's own `sendFile` does). The same for what cannot be read, and then the file counts as
    /// unreadable as a whole: its header is out already, but the manifest does not have it.
    pub(crate) fn piece(
        &self,
        file: Arc<LargeFile>,
        offset: u64,
        len: u32,
        last: bool,
        mut buf: Buf,
    ) -> Result<Frame> {
        let Ok((fd, _)) = self.opened(&file) else {
            return Ok(Frame::new(buf, Vec::new(), last));
        };
        if let Some(patches) = file
            .known
            .as_ref()
            .and_then(|known| known.split_by_changes(offset, len.into()))
        {
            return Ok(self.patched(fd, file.clone(), (offset, len, last), patches, buf));
        }
        let mut complete = true;
        // Whether there is more behind the end is not to be told where there are holes.
        let reads_end = last && !file.entry.is_sparse();
        for ByteRun { offset, len } in file.entry.runs(offset, len.into()) {
            let start = buf.len();
            let (cache, tricks) = (self.cache(), self.rules.tricks);
            let read = match reads_end {
                true => read::read_end(fd, &mut buf, offset, len as usize, cache, tricks),
                false => read::read_full(fd, &mut buf, offset, len as usize, cache, tricks),
            };
            match read {
                Ok(got) => complete &= got as u64 == len,
                Err(error) => self.fail(&file, &error),
            }
            buf.resize(start + len as usize, 0);
        }
        self.note_change(fd, &file, complete);
        let alone = file.known.is_some();
        if last && !alone {
            pad(&mut buf, file.data_len);
        }
        let what = FrameContent::Piece { file, offset, last };
        Ok(Frame::new(
            buf,
            vec![part(what, 0, len as usize)],
            last || alone,
        ))
    }

    /// A piece was read: did the file change while it was?
    fn note_change(&self, fd: &OwnedFd, file: &LargeFile, complete: bool) {
        if self.is_plain() || (complete && file.unread.fetch_sub(1, AcqRel) > 1) {
            return;
        }
        let now = self.now(fd);
        let checked = if complete {
            Ok(())
        } else {
            now.as_ref().map_or(Ok(()), |now| self.check_size(fd, now))
        };
        match checked {
            Err(error) => self.fail(file, &error),
            Ok(()) if !complete || now.is_some_and(|now| changed(&now, &file.entry)) => {
                file.changed.store(true, Release)
            }
            Ok(()) => {}
        }
    }

    fn fail(&self, file: &LargeFile, error: &io::Error) {
        self.shortage.notice(error);
        file.failed.get_or_init(|| reason(error));
    }

    /// Of a piece only what is known to have changed is read.
    fn patched(
        &self,
        fd: &OwnedFd,
        file: Arc<LargeFile>,
        (offset, len, last): (u64, u32, bool),
        patches: Vec<StoredRun>,
        mut buf: Buf,
    ) -> Frame {
        let (mut at, mut complete) = (offset, true);
        for patch in &patches {
            at += match *patch {
                StoredRun::Kept { len, .. } => u64::from(len),
                StoredRun::Here { inner, len } => {
                    let read = read::read_full(
                        fd,
                        &mut buf,
                        at,
                        len as usize,
                        self.cache(),
                        self.rules.tricks,
                    );
                    match read {
                        Ok(got) => complete &= got == len as usize,
                        Err(error) => self.fail(&file, &error),
                    }
                    buf.resize((inner + len) as usize, 0); // what was cut off meanwhile
                    u64::from(len)
                }
            };
        }
        self.note_change(fd, &file, complete);
        let what = FrameContent::Piece { file, offset, last };
        Frame::new(
            buf,
            vec![FrameEntry {
                runs: Some(patches),
                ..part(what, 0, len as usize)
            }],
            true,
        )
    }
}
