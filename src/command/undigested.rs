//! Comparing a file on disk with a stored one that has no digest: byte by byte.
//!
//! So it is with `--digest none`, and with a relation of which only the pages were read that had changed. The frames that the
//! file is in are fetched and decoded.

use super::content::Hand;
use crate::{
    error::{Error, Result, quoted},
    format::{
        entry::{Kind, Run},
        page::{Extent, Item, SegmentId},
    },
    source::{archive::Archive, jobs::misfit},
};
use std::{fs::File, io, os::unix::fs::FileExt};

/// Decoded frames that a thread keeps: many small files are in one, and a relation goes back and forth between the frames of a
/// few backups.
const KEPT_FRAMES: usize = 4;

/// What one thread has to compare with.
#[derive(Default)]
pub(super) struct Stored {
    hand: Hand,
    /// Decoded frames, the one used last at the end.
    frames: Vec<((SegmentId, u64), Vec<u8>)>,
}

impl Stored {
    /// Has `file` the data of `item`, the last record of a stored file? What is a hole in the backup is not looked at.
    ///
    /// # Errors
    /// Damage to the backup, or the system's.
    pub(super) fn is_in(&mut self, archive: &Archive, item: &Item, file: &File, buffer: &mut [u8]) -> Result<bool> {
        let whole = [Run { offset: 0, len: item.entry.size() }];
        let mut places = match &item.entry.kind {
            Kind::File { map: Some(map), .. } => Places { runs: map, used: 0 },
            _ => Places { runs: &whole, used: 0 },
        };
        let failed = |e| Error::io(format!("could not read {} in the tree", quoted(&item.entry.path)), e);
        let mut at = 0;
        for part in parts(archive, item)? {
            for extent in &part.extents {
                let content = self.content(archive, &part, extent)?;
                at += content.len() as u64;
                if !places.hold(file, content, buffer).map_err(failed)? {
                    return Ok(false);
                }
            }
        }
        if at == item.entry.data_len() {
            return Ok(true);
        }
        Err(misfit(&item.entry.path))
    }

    fn content(&mut self, archive: &Archive, part: &Item, extent: &Extent) -> Result<&[u8]> {
        let key = (part.segment(&extent.frame).clone(), extent.frame.offset);
        let kept = match self.frames.iter().position(|(kept, _)| *kept == key) {
            Some(at) => self.frames.remove(at),
            None => {
                self.hand.decode(archive, &key.0, &extent.frame)?;
                (key, std::mem::take(&mut self.hand.plain))
            }
        };
        if self.frames.len() == KEPT_FRAMES {
            self.frames.remove(0);
        }
        self.frames.push(kept);
        let plain = self.frames.last().map_or(&[][..], |(_, plain)| plain);
        let content = plain.get(extent.inner as usize..).and_then(|rest| rest.get(..extent.len as usize));
        content.ok_or_else(|| Error::corrupt("the manifest wants more of a frame than it holds"))
    }
}

/// All records of a file of which this is the last.
fn parts(archive: &Archive, item: &Item) -> Result<Vec<Item>> {
    if item.from == 0 { Ok(vec![item.clone()]) } else { archive.find(&item.entry.path) }
}

/// Where in a file its data is, from the first byte on.
struct Places<'a> {
    runs: &'a [Run],
    /// Bytes of the first run that were gone over.
    used: u64,
}

impl Places<'_> {
    /// Is `content` in the file where its next data is?
    fn hold(&mut self, file: &File, mut content: &[u8], buffer: &mut [u8]) -> io::Result<bool> {
        while !content.is_empty() {
            let Some((offset, len)) = self.next(content.len().min(buffer.len())) else { return Ok(false) };
            match file.read_exact_at(&mut buffer[..len], offset) {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                other => other?,
            }
            if buffer[..len] != content[..len] {
                return Ok(false);
            }
            content = &content[len..];
        }
        Ok(true)
    }

    /// The next bytes, `most` of them at most: where they are, and how many.
    fn next(&mut self, most: usize) -> Option<(u64, usize)> {
        while self.runs.first().is_some_and(|run| run.len == self.used) {
            (self.runs, self.used) = (&self.runs[1..], 0);
        }
        let run = self.runs.first()?;
        let (offset, len) = (run.offset + self.used, (run.len - self.used).min(most as u64));
        self.used += len;
        Some((offset, len as usize))
    }
}
