//! Comparing a file on disk with a stored one that has no digest: byte by byte.
//!
//! So it is with `--digest none`, and with a relation of which only the pages were read that had changed. The frames that the
//! file is in are fetched and decoded.

use super::data::DataWorker;
use crate::{
    archive::{
        Archive,
        schedule::{is_saved, misfit},
    },
    error::{Error, Result, quoted},
    format::{
        entry::ByteRun,
        page::{Extent, PageItem, SegmentId},
    },
    platform::read::each_piece,
};
use std::{fs::File, io};

/// Decoded frames that a thread keeps: many small files are in one, and a relation goes back and forth between the frames of a
/// few backups.
const KEPT_FRAMES: usize = 4;

/// What one thread has to compare with.
#[derive(Default)]
pub(crate) struct StoredContent {
    hand: DataWorker,
    /// Decoded frames, the one used last at the end.
    frames: Vec<((SegmentId, u64), Vec<u8>)>,
    /// Take also what comes out of a frame whose checksum is wrong?
    salvage: bool,
}

impl StoredContent {
    /// For [`Stored::saves`].
    pub(crate) fn salvaging() -> Self {
        Self {
            salvage: true,
            ..Self::default()
        }
    }

    /// Has `file` the data of `item`, the last record of a stored file? What is a hole in the backup is not looked at.
    ///
    /// # Errors
    /// Damage to the backup, or the system's.
    pub(crate) fn is_in(
        &mut self,
        archive: &Archive,
        item: &PageItem,
        file: &File,
        buffer: &mut [u8],
    ) -> Result<bool> {
        let failed = |e| {
            Error::io(
                format!("could not read {} in the tree", quoted(&item.entry.path)),
                e,
            )
        };
        let mut at = 0;
        for part in parts(archive, item)? {
            for extent in &part.extents {
                let content = self.content(archive, &part, extent)?;
                let len = content.len() as u64;
                if !holds(file, item.entry.runs(at, len), content, buffer).map_err(failed)? {
                    return Ok(false);
                }
                at += len;
            }
        }
        if at == item.entry.data_len() {
            return Ok(true);
        }
        Err(misfit(&item.entry.path))
    }

    /// Is a file of one extent whole, though the checksum of its frame is wrong?
    pub(crate) fn saves(&mut self, archive: &Archive, item: &PageItem) -> bool {
        let [extent] = &item.extents[..] else {
            return false;
        };
        let is_all = item.from == 0 && !item.more;
        is_all
            && self
                .content(archive, item, extent)
                .is_ok_and(|content| is_saved(item, content))
    }

    fn content(&mut self, archive: &Archive, part: &PageItem, extent: &Extent) -> Result<&[u8]> {
        let key = (part.segment(&extent.frame).clone(), extent.frame.offset);
        let kept = match self.frames.iter().position(|(kept, _)| *kept == key) {
            Some(at) => self.frames.remove(at),
            None => {
                let wrong = self.hand.salvage(archive, &key.0, &extent.frame)?;
                wrong.filter(|_| !self.salvage).map_or(Ok(()), Err)?;
                (key, std::mem::take(&mut self.hand.plain))
            }
        };
        if self.frames.len() == KEPT_FRAMES {
            self.frames.remove(0);
        }
        self.frames.push(kept);
        let plain = self.frames.last().map_or(&[][..], |(_, plain)| plain);
        let content = plain
            .get(extent.inner as usize..)
            .and_then(|rest| rest.get(..extent.len as usize));
        content.ok_or_else(|| Error::corrupt("the manifest wants more of a frame than it holds"))
    }
}

/// All records of a file of which this is the last.
fn parts(archive: &Archive, item: &PageItem) -> Result<Vec<PageItem>> {
    if item.from == 0 {
        Ok(vec![item.clone()])
    } else {
        archive.find(&item.entry.path)
    }
}

/// Is `content` in these runs of the file?
fn holds(
    file: &File,
    runs: impl Iterator<Item = ByteRun>,
    mut content: &[u8],
    buffer: &mut [u8],
) -> io::Result<bool> {
    let mut same = true;
    let compared = each_piece(file, runs, buffer, |found| {
        let (wanted, rest) = content.split_at(found.len());
        same &= found == wanted;
        content = rest;
    });
    match compared {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        done => done.map(|()| same && content.is_empty()),
    }
}
