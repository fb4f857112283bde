//! Builds frames from content that was taken from the stream.

use super::SentCluster;
use fullbore_format::{
    entry::{Entry, EntryPath},
    error::{Error, ErrorKind, Result, quoted},
    page::EntryState,
    pax, sizes,
};
use fullbore_pipeline::{
    frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile, Scanned},
    known::{self, BaseEntry},
};
use fullbore_platform::{
    queue::Locked,
    read::{self, PageCacheUse},
};
use fullbore_tree::read::{pad, part};
use std::sync::Arc;

/// Idle buffers, at most.
const MOST_SPARE: usize = 4;

/// Makes the frame of whole members, and of the header of a large file.
pub(super) fn members(
    cluster: &SentCluster,
    small: Vec<Scanned>,
    large: Option<Arc<LargeFile>>,
    mut buf: Buf,
) -> Result<Frame> {
    let mut parts = Vec::with_capacity(small.len() + 1);
    for scanned in small {
        parts.push(append_member(cluster, scanned, &mut buf)?);
    }
    let mut ends_member = true;
    if let Some(large) = large {
        _ = large.opened.set(Err(EntryState::Vanished)); // its pieces wait for nothing
        let entry = large.entry.clone();
        ends_member = large.known.is_some();
        if !ends_member {
            append_header(&entry, &mut buf)?;
        }
        parts.push(part(FrameContent::Head(entry, large), buf.len(), 0));
    }
    Ok(Frame::new(buf, parts, ends_member))
}

fn append_member(cluster: &SentCluster, scanned: Scanned, buf: &mut Vec<u8>) -> Result<FrameEntry> {
    let Scanned {
        entry,
        known,
        state,
        ..
    } = scanned;
    if !entry.is_file() {
        if known.is_none() {
            append_header(&entry, buf)?;
        }
        let runs = known.is_some().then(Vec::new);
        return Ok(FrameEntry {
            known,
            runs,
            ..part(FrameContent::Whole(entry, state), buf.len(), 0)
        });
    }
    if is_unchanged(known.as_ref(), &entry) {
        return Ok(FrameEntry {
            known,
            runs: Some(Vec::new()),
            ..part(FrameContent::Whole(entry, state), buf.len(), 0)
        });
    }
    let content = cluster.content(&entry.path, 0, entry.size())?;
    append_header(&entry, buf)?;
    let inner = buf.len();
    buf.extend_from_slice(&content);
    pad(buf, content.len() as u64);
    Ok(FrameEntry {
        known,
        ..part(FrameContent::Whole(entry, state), inner, content.len())
    })
}

/// Returns whether the server said that no block of the file changed.
fn is_unchanged(known: Option<&BaseEntry>, entry: &Entry) -> bool {
    known.is_some_and(|known| {
        let is_same_size = known.last().entry.size() == entry.size();
        is_same_size && known.changed.as_ref().is_some_and(|runs| runs.is_empty())
    })
}

/// Makes the frame of a piece of a large file.
pub(super) fn piece(
    cluster: &SentCluster,
    file: Arc<LargeFile>,
    (offset, len, last): (u64, u32, bool),
    mut buf: Buf,
) -> Result<Frame> {
    let known = file.known.as_ref();
    let runs = known.and_then(|known| known.split_by_changes(offset, len.into()));
    let sent = match &runs {
        Some(runs) => sizes::sum(
            known::changed_places(offset, runs)
                .iter()
                .map(|run| run.len),
        ),
        None => len.into(),
    };
    let mut content = cluster.content(&file.entry.path, offset, sent)?;
    std::mem::swap(&mut *buf, &mut content);
    cluster.keep_spare(content);
    let is_alone = file.known.is_some();
    if last && !is_alone {
        pad(&mut buf, file.data_len);
    }
    let frame_content = FrameContent::Piece { file, offset, last };
    let piece = FrameEntry {
        runs,
        ..part(frame_content, 0, len as usize)
    };
    Ok(Frame::new(buf, vec![piece], last || is_alone))
}

/// Appends a header, in whole seconds as the program's own tools write it.
fn append_header(entry: &Entry, buf: &mut Vec<u8>) -> Result<()> {
    let mut header = entry.clone();
    header.mtime.nanos = 0;
    pax::write_header(&header, buf)
}

impl SentCluster {
    /// The reason why content was not taken.
    fn missing_content(&self, path: &[u8]) -> Error {
        let message = format!("the content of {} is not there", quoted(path));
        let failed = self.failed.locked().take();
        failed.unwrap_or_else(|| Error::new(ErrorKind::Bug, message))
    }

    fn keep_spare(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.locked();
        if spare.len() < MOST_SPARE && buffer.is_empty() {
            spare.push(buffer);
        }
    }

    /// Returns content that was taken, or that of a file that this program adds.
    fn content(&self, path: &EntryPath, offset: u64, len: u64) -> Result<Vec<u8>> {
        let late = self.late.locked().get(path).cloned();
        if let Some(file) = late {
            let mut content = Vec::new();
            let len = len as usize;
            read::read_full(&file, &mut content, offset, len, PageCacheUse::Keep)
                .map_err(|error| Error::io("could not read a temporary file", error))?;
            return Ok(content);
        }
        let taken = self.contents.locked().remove(&(path.clone(), offset));
        taken
            .filter(|content| content.len() as u64 == len)
            .ok_or_else(|| self.missing_content(path))
    }
}
