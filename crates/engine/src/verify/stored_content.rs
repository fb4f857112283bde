//! Compares a file on disk byte by byte with a stored file that has no digest.
//!
//! This happens with `--digest none`, and with a relation of which only the changed pages were
//! read. The frames with the content of the file are fetched and decoded.

use fullbore_format::{
    entry::ByteRun,
    error::{Error, Result, quoted},
    page::{Extent, PageItem, SegmentId},
};
use fullbore_platform::read::each_piece;
use fullbore_repository::archive::{
    Archive,
    frame_reader::{FrameReader, extent_content},
    schedule::{is_saved, misfit},
};
use std::{fs::File, io};

/// Decoded frames that a thread keeps: a frame has many small files, and a relation alternates
/// between the frames of a few backups.
const KEPT_FRAMES: usize = 4;

/// The decoder and the frames of one thread.
#[derive(Default)]
pub(crate) struct StoredContent {
    reader: FrameReader,
    /// Decoded frames, the one used last at the end.
    frames: Vec<((SegmentId, u64), Vec<u8>)>,
    /// Whether to use the content of a frame with a wrong checksum, too.
    salvage: bool,
}

impl StoredContent {
    /// Makes a value for [`StoredContent::saves`].
    pub(crate) fn salvaging() -> Self {
        Self {
            salvage: true,
            ..Self::default()
        }
    }

    /// Returns whether `file` has the data of `item`, the last record of a stored file. Holes of
    /// the backup are not compared.
    ///
    /// # Errors
    /// Damage to the backup, or an error of the system.
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
        let mut offset = 0;
        for part in parts(archive, item)? {
            for extent in &part.extents {
                let content = self.content(archive, &part, extent)?;
                let len = content.len() as u64;
                if !holds(file, item.entry.runs(offset, len), content, buffer).map_err(failed)? {
                    return Ok(false);
                }
                offset += len;
            }
        }
        if offset == item.entry.data_len() {
            return Ok(true);
        }
        Err(misfit(&item.entry.path))
    }

    /// Returns whether a file of one extent is intact although the checksum of its frame is wrong.
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
                let wrong = self
                    .reader
                    .fetch(archive, &key.0, &extent.frame)?
                    .salvage()?;
                wrong.filter(|_| !self.salvage).map_or(Ok(()), Err)?;
                (key, self.reader.take_plain())
            }
        };
        if self.frames.len() == KEPT_FRAMES {
            self.frames.remove(0);
        }
        self.frames.push(kept);
        let plain = self.frames.last().map_or(&[][..], |(_, plain)| plain);
        extent_content(extent, plain)
            .ok_or_else(|| Error::corrupt("the manifest refers to bytes beyond the end of a frame"))
    }
}

/// Returns all records of a file from its last one.
fn parts(archive: &Archive, item: &PageItem) -> Result<Vec<PageItem>> {
    if item.from == 0 {
        Ok(vec![item.clone()])
    } else {
        archive.find(&item.entry.path)
    }
}

/// Returns whether `content` is in these runs of the file.
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
