//! Builds frames from ranges of files that are read through a [`DataDir`](super::DataDir).
//!
//! A slice is one call, however many files it has. As for local files, a file that WAL repairs gets
//! the length of the scan: zeros fill it if it became shorter. Any other file, such as configuration, is
//! stored as it is now, and read again if it changed meanwhile.

use super::{
    FileRange, ROW_BYTES,
    fetch_queue::{FetchItem, FetchedContent},
    remote_tree::RemoteFiles,
    rows,
};
use fullbore_format::{
    entry::{ByteRun, Entry, EntryKind},
    error::{Error, Result},
    page::EntryState,
    pax,
};
use fullbore_pipeline::{
    frame::{Buf, Frame, FrameContent, FrameEntry, LargeFile, Scanned, Slice},
    known::{self, BaseEntry, StoredRun, Trust},
};
use fullbore_platform::read::{self, PageCacheUse};
use fullbore_tree::read::{Overlay, pad, part};
use std::sync::Arc;

/// Times that a file is read which changes while it is read.
const READS: usize = 3;

/// The present content of a file; `None` if it is gone.
type Content = Option<Vec<u8>>;

/// Reads whole members, and the header of a large file.
pub(super) fn read_members(
    files: &RemoteFiles,
    small: Vec<Scanned>,
    large: Option<Arc<LargeFile>>,
    mut buf: Buf,
) -> Result<Frame> {
    let head = large.clone();
    let frame = build_frame(files, small, large, &mut buf);
    // Its pieces must not wait any longer, also if the run ends here.
    if let Some(head) = head {
        let _ = head.opened.set(Err(EntryState::Vanished));
    }
    let (parts, ends_member) = frame?;
    Ok(Frame::new(buf, parts, ends_member))
}

fn build_frame(
    files: &RemoteFiles,
    small: Vec<Scanned>,
    large: Option<Arc<LargeFile>>,
    buf: &mut Vec<u8>,
) -> Result<(Vec<FrameEntry>, bool)> {
    let wanted: Vec<&Scanned> = small.iter().filter(|scanned| is_read(scanned)).collect();
    let mut contents = files.contents(&wanted)?.into_iter();
    let mut parts = Vec::with_capacity(small.len() + 1);
    for scanned in small {
        parts.push(if is_read(&scanned) {
            let content = contents.next().flatten();
            append_file(files, scanned, content, buf)?
        } else {
            append_special(scanned, buf)?
        });
    }
    let mut ends_member = true;
    if let Some(large) = large {
        let head = append_head(files, large, buf)?;
        ends_member = !matches!(&head.what, FrameContent::Head(_, file) if file.known.is_none());
        parts.push(head);
    }
    parts.retain(
        |part| !matches!(&part.what, FrameContent::Whole(entry, EntryState::Vanished) if !files.late.expects(&entry.path)),
    );
    Ok((parts, ends_member))
}

/// Returns whether the content of an entry is needed.
fn is_read(scanned: &Scanned) -> bool {
    scanned.entry.is_file() && scanned.state.is_stored() && !is_unchanged(scanned)
}

/// Returns whether an earlier backup has the content: the server says that no block changed, or the
/// comparison says so.
fn is_unchanged(scanned: &Scanned) -> bool {
    scanned
        .known
        .as_ref()
        .is_some_and(|known| match known.trust {
            Trust::Nothing => has_no_change(known, &scanned.entry),
            Trust::Same | Trust::Content | Trust::Unverified => true,
        })
}

fn has_no_change(known: &BaseEntry, entry: &Entry) -> bool {
    let is_same_size = known.last().entry.size() == entry.size();
    is_same_size && known.changed.as_ref().is_some_and(|runs| runs.is_empty())
}

/// Appends an entry whose content is not needed.
fn append_special(scanned: Scanned, buf: &mut Vec<u8>) -> Result<FrameEntry> {
    let is_unchanged = is_unchanged(&scanned);
    let Scanned {
        entry,
        state,
        known,
        ..
    } = scanned;
    if is_unchanged {
        return Ok(FrameEntry {
            known,
            runs: Some(Vec::new()),
            ..part(FrameContent::Whole(entry, state), buf.len(), 0)
        });
    }
    if state.is_stored() {
        append_header(&entry, buf)?;
    }
    Ok(part(FrameContent::Whole(entry, state), buf.len(), 0))
}

/// Appends a header, in whole seconds as the program's own tools write it.
fn append_header(entry: &Entry, buf: &mut Vec<u8>) -> Result<()> {
    let mut header = entry.clone();
    header.mtime.nanos = 0;
    pax::write_header(&header, buf)
}

/// Appends a file whose content was read.
fn append_file(
    files: &RemoteFiles,
    scanned: Scanned,
    content: Content,
    buf: &mut Vec<u8>,
) -> Result<FrameEntry> {
    let Scanned {
        mut entry, known, ..
    } = scanned;
    let is_cut = |content: &Vec<u8>| is_wal(&entry.path) && (content.len() as u64) < entry.size();
    let Some(mut content) = content.filter(|content| !is_cut(content)) else {
        let frame_content = FrameContent::Whole(entry, EntryState::Vanished);
        return Ok(part(frame_content, buf.len(), 0));
    };
    if files.late.repairs(&entry.path) {
        content.resize(entry.size() as usize, 0);
    } else {
        let size = content.len() as u64;
        entry.kind = EntryKind::File { size, map: None };
    }
    append_header(&entry, buf)?;
    let inner = buf.len();
    let len = content.len();
    buf.extend_from_slice(&content);
    pad(buf, len as u64);
    Ok(FrameEntry {
        known,
        ..part(FrameContent::Whole(entry, EntryState::Whole), inner, len)
    })
}

/// Appends the header of a large file, if the file is there.
fn append_head(
    files: &RemoteFiles,
    large: Arc<LargeFile>,
    buf: &mut Vec<u8>,
) -> Result<FrameEntry> {
    let entry = large.entry.clone();
    if !files.exists(&large)? {
        large.failed.get_or_init(|| "it vanished".to_owned());
        let content = FrameContent::Whole(entry, EntryState::Vanished);
        return Ok(part(content, buf.len(), 0));
    }
    if large.known.is_none() {
        append_header(&entry, buf)?;
    }
    Ok(part(FrameContent::Head(entry, large), buf.len(), 0))
}

/// Reads a piece of a large file: all of it, or the runs that changed.
pub(super) fn read_piece(
    files: &RemoteFiles,
    file: Arc<LargeFile>,
    (offset, len, last): (u64, u32, bool),
    mut buf: Buf,
) -> Result<Frame> {
    let fetched = files.take(&file.entry.path, offset)?;
    if file.failed.get().is_some() {
        return Ok(Frame::new(buf, Vec::new(), last));
    }
    let (wanted, runs) = wanted_runs(&file, offset, len);
    let is_complete = match fetched {
        Some(mut fetched) => {
            let is_complete = !fetched.is_missing && !fetched.is_short;
            std::mem::swap(&mut *buf, &mut fetched.bytes);
            files.give_back(fetched.bytes);
            is_complete
        }
        None => files.append_runs(&file.entry.path, &wanted, &mut buf)?,
    };
    if !is_complete && is_wal(&file.entry.path) {
        file.failed
            .get_or_init(|| "the server removed it".to_owned());
        return Ok(Frame::new(buf, Vec::new(), last));
    }
    let is_alone = file.known.is_some();
    if last && !is_alone {
        pad(&mut buf, file.data_len);
    }
    let content = FrameContent::Piece { file, offset, last };
    let piece = FrameEntry {
        runs,
        ..part(content, 0, len as usize)
    };
    Ok(Frame::new(buf, vec![piece], last || is_alone))
}

/// Returns whether a file is WAL: no other file replaces what is missing of it.
fn is_wal(path: &[u8]) -> bool {
    path.starts_with(b"pg_wal/")
}

/// Returns the places that are read of a piece of a large file, and where the whole of the piece is
/// if only changes are read.
fn wanted_runs(file: &LargeFile, offset: u64, len: u32) -> (Vec<ByteRun>, Option<Vec<StoredRun>>) {
    let known = file.known.as_ref();
    let runs = known.and_then(|known| known.split_by_changes(offset, len.into()));
    let len = len.into();
    let wanted = match &runs {
        Some(runs) => known::changed_places(offset, runs),
        None => vec![ByteRun { offset, len }],
    };
    (wanted, runs)
}

/// Calls `add` with what the reader of a slice will take.
pub(super) fn items_of(files: &RemoteFiles, slice: &Slice, add: &mut dyn FnMut(FetchItem)) {
    match slice {
        Slice::Members(small, _) => {
            let read = small.iter().filter(|scanned| is_read(scanned));
            read.filter_map(|scanned| files.whole_item(scanned))
                .for_each(add);
        }
        Slice::Piece {
            file, offset, len, ..
        } => {
            let path = &file.entry.path;
            let (wanted, _) = wanted_runs(file, *offset, *len);
            if wanted.is_empty() || files.late.open(path).is_some() {
                return;
            }
            let ranges = wanted
                .iter()
                .flat_map(|run| rows(path, run.offset, run.len));
            add(FetchItem {
                key: (path.clone(), *offset),
                ranges: ranges.map(|range| (range.offset, range.len)).collect(),
                is_padded: true,
            });
        }
    }
}

impl RemoteFiles {
    /// Returns whether the file is there.
    ///
    /// The beginning of its content says so, if that is read. Of a file whose beginning is known from
    /// an earlier backup it does not matter: if it is gone, the WAL drops it again.
    fn exists(&self, file: &LargeFile) -> Result<bool> {
        let path = &file.entry.path;
        if self.late.open(path).is_some() {
            return Ok(true);
        }
        if let Some(fetched) = self.fetched()
            && let Some(is_missing) = fetched.is_missing(&(path.clone(), 0))?
        {
            return Ok(!is_missing);
        }
        let is_known = { file.known.as_ref() }.is_some_and(|known| known.changed.is_some());
        Ok(is_known || self.data.stat(&[path])?.iter().any(Option::is_some))
    }

    /// Takes content that was read ahead.
    fn take(&self, path: &[u8], offset: u64) -> Result<Option<FetchedContent>> {
        let Some(fetched) = self.fetched() else {
            return Ok(None);
        };
        fetched.take(&(path.to_vec(), offset))
    }

    /// Returns a buffer to those who read ahead.
    fn give_back(&self, buffer: Vec<u8>) {
        if let Some(fetched) = self.fetched() {
            fetched.give_back(buffer);
        }
    }

    /// Returns what is read of a whole file; `None` for a late file.
    fn whole_item(&self, scanned: &Scanned) -> Option<FetchItem> {
        let path = &scanned.entry.path;
        if self.late.open(path).is_some() {
            return None;
        }
        let more = if self.late.repairs(path) {
            0
        } else {
            ROW_BYTES
        };
        let len = scanned.entry.size() + u64::from(more);
        // An empty file is asked for as well: it may be gone.
        let ranges = rows(path, 0, len.max(1));
        Some(FetchItem {
            key: (path.clone(), 0),
            ranges: ranges.map(|range| (range.offset, range.len)).collect(),
            is_padded: false,
        })
    }

    /// Appends runs of a file. Zeros take the place of bytes that are not there any more; returns whether
    /// all were there.
    fn append_runs(&self, path: &[u8], runs: &[ByteRun], buf: &mut Vec<u8>) -> Result<bool> {
        if let Some(file) = self.late.open(path) {
            let failed = |error| Error::io("could not read a temporary file", error);
            let file = file.map_err(failed)?;
            for run in runs {
                let end = buf.len() + run.len as usize;
                let len = run.len as usize;
                read::read_full(&file, buf, run.offset, len, PageCacheUse::Keep).map_err(failed)?;
                buf.resize(end, 0);
            }
            return Ok(true);
        }
        let ranges: Vec<_> = runs
            .iter()
            .flat_map(|run| rows(path, run.offset, run.len))
            .collect();
        let mut lengths = ranges.iter().map(|range| range.len as usize);
        let mut is_complete = true;
        self.data.read(&ranges, &mut |row| {
            let len = lengths.next().unwrap_or(0);
            let end = buf.len() + len;
            is_complete &= row.is_some_and(|row| row.len() == len);
            buf.extend_from_slice(row.unwrap_or_default());
            buf.resize(end, 0);
        })?;
        Ok(is_complete)
    }

    /// Reads the content of small files.
    fn contents(&self, wanted: &[&Scanned]) -> Result<Vec<Content>> {
        let mut contents = self.read_whole(wanted)?;
        for _ in 1..READS {
            let torn = self.torn(wanted, &contents)?;
            if torn.is_empty() {
                break;
            }
            let again: Vec<&Scanned> = torn.iter().map(|index| wanted[*index]).collect();
            for (index, content) in torn.into_iter().zip(self.read_whole(&again)?) {
                contents[index] = content;
            }
        }
        Ok(contents)
    }

    /// Returns the files that WAL does not repair and that changed while they were read.
    fn torn(&self, wanted: &[&Scanned], contents: &[Content]) -> Result<Vec<usize>> {
        let is_watched = |index: &usize| {
            let path = &wanted[*index].entry.path;
            !self.late.repairs(path) && contents[*index].is_some()
        };
        let watched: Vec<usize> = (0..wanted.len()).filter(is_watched).collect();
        if watched.is_empty() {
            return Ok(Vec::new());
        }
        let paths: Vec<&[u8]> = watched
            .iter()
            .map(|index| &wanted[*index].entry.path[..])
            .collect();
        let now = self.data.stat(&paths)?;
        let is_torn = |(index, now): &(&usize, Option<super::FoundFile>)| {
            let bytes = contents[**index].as_ref().map_or(0, Vec::len) as u64;
            now.as_ref().is_none_or(|now| {
                let is_same_time = now.mtime == wanted[**index].entry.mtime;
                now.size != bytes || !is_same_time
            })
        };
        let torn = watched.iter().zip(now).filter(is_torn);
        Ok(torn.map(|(index, _)| *index).collect())
    }

    /// Reads files from the beginning to the end: up to the size of the scan if WAL repairs the file,
    /// otherwise as far as it goes now, within one more row. What was read ahead is taken.
    fn read_whole(&self, wanted: &[&Scanned]) -> Result<Vec<Content>> {
        let mut contents: Vec<Content> = Vec::with_capacity(wanted.len());
        let mut items: Vec<FetchItem> = Vec::new();
        let mut owners: Vec<usize> = Vec::new();
        for (index, scanned) in wanted.iter().enumerate() {
            let path = &scanned.entry.path;
            if let Some(fetched) = self.take(path, 0)? {
                contents.push((!fetched.is_missing).then_some(fetched.bytes));
                continue;
            }
            let mut content = Vec::new();
            match self.whole_item(scanned) {
                Some(item) => {
                    owners.resize(owners.len() + item.ranges.len(), index);
                    items.push(item);
                }
                None => {
                    let len = scanned.entry.size();
                    self.append_runs(path, &[ByteRun { offset: 0, len }], &mut content)?;
                }
            }
            contents.push(Some(content));
        }
        let ranges: Vec<FileRange<'_>> = items.iter().flat_map(FetchItem::file_ranges).collect();
        let mut owners = owners.into_iter();
        self.data.read(&ranges, &mut |row| {
            let Some(index) = owners.next() else { return };
            match (row, &mut contents[index]) {
                (Some(row), Some(content)) => content.extend_from_slice(row),
                (None, content) => *content = None,
                (Some(_), None) => {}
            }
        })?;
        Ok(contents)
    }
}
