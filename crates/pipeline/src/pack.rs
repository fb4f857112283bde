//! Cuts frames from the sizes in the scan, before any content is read, so that reading is as
//! parallel as compressing.
//!
//! Small members are packed together. A file larger than a frame puts its header at the end of a
//! pack, and its content into frames of its own, so that later backups can refer to the content
//! alone.

use crate::{
    frame::{LargeFile, Scanned, Slice},
    source::Stream,
};
use fullbore_format::{
    entry::{Entry, xattr_bytes},
    error::Result,
};
use std::sync::{Arc, atomic::Ordering::Acquire};

/// Returns the header bytes of an entry in all but rare cases: with nanoseconds, an extended header
/// and its record come first.
///
/// Counts only the extended attributes that are known now: a scan does not read those of files, but
/// an earlier backup may have them. They are held three times: in the frame, in its entry, and in
/// the page of the earlier backup.
fn header_bytes(scanned: &Scanned) -> u64 {
    let entry = &scanned.entry;
    let path = if entry.path.len() < 100 {
        0
    } else {
        entry.path.len()
    };
    let long = path + 3 * xattr_bytes(&entry.xattrs).max(base_xattr_bytes(scanned));
    let long = long.next_multiple_of(512) as u64;
    if entry.mtime.nanos == 0 && long == 0 {
        512
    } else {
        1536 + long
    }
}

/// Maximum number of members in a frame: empty files have no bytes that would fill it.
const MAX_MEMBERS: usize = 1024;

/// Cuts the entries of a scan into slices of about `frame_bytes`; each slice is read as one frame.
pub fn pack(entries: Stream<Scanned>, frame_bytes: u32) -> Stream<Slice> {
    pack_below(entries, frame_bytes, frame_bytes)
}

/// As [`pack`], but files of more than `most_bytes` have frames of their own, also if they are
/// smaller than a frame.
pub fn pack_below(entries: Stream<Scanned>, frame_bytes: u32, most_bytes: u32) -> Stream<Slice> {
    Box::new(Pack {
        entries,
        frame_bytes: frame_bytes.into(),
        most_bytes: most_bytes.into(),
        small: Vec::new(),
        bytes: 0,
        kept_text: 0,
        large: None,
        error: None,
    })
}

struct Pack {
    entries: Stream<Scanned>,
    frame_bytes: u64,
    /// Bytes of a file that shares a frame with others, at most.
    most_bytes: u64,
    small: Vec<Scanned>,
    bytes: u64,
    /// Bytes of paths and attributes of entries that are not read; a slice may hold many of these.
    kept_text: u64,
    large: Option<(Arc<LargeFile>, u64)>,
    error: Option<fullbore_format::error::Error>,
}

impl Iterator for Pack {
    type Item = Result<Slice>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(piece) = self.next_piece() {
            return Some(Ok(piece));
        }
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        loop {
            match self.entries.next() {
                None => return self.take_members(None).map(Ok),
                Some(Err(error)) => {
                    self.error = Some(error);
                    return self
                        .take_members(None)
                        .map(Ok)
                        .or_else(|| self.error.take().map(Err));
                }
                Some(Ok(scanned)) => {
                    if let Some(slice) = self.add_entry(scanned) {
                        return Some(Ok(slice));
                    }
                }
            }
        }
    }
}

impl Pack {
    /// Adds an entry. Returns a slice if the entry completes one.
    fn add_entry(&mut self, scanned: Scanned) -> Option<Slice> {
        let reads = scanned.is_read();
        let len = if reads && scanned.state.is_stored() {
            data_len(&scanned.entry)
        } else {
            0
        };
        // A large file gets frames of its own, after the small ones before it: the order of the
        // archive stays.
        if len > self.most_bytes || scanned.comes_in_runs {
            let pieces = len.div_ceil(self.frame_bytes);
            let large = LargeFile::new(scanned, len, pieces);
            self.large = Some((large.clone(), 0));
            return self.take_members(Some(large));
        }
        let bytes = if reads {
            len.next_multiple_of(512) + header_bytes(&scanned)
        } else {
            0
        };
        let text = if reads {
            0
        } else {
            scanned.entry.path.len() + base_xattr_bytes(&scanned)
        } as u64;
        // Entries that are not read add no bytes to the frame, but their names take memory.
        let full = (self.bytes + bytes).max(self.kept_text + text) > self.frame_bytes
            || self.small.len() >= MAX_MEMBERS;
        let slice = if full { self.take_members(None) } else { None };
        self.small.push(scanned);
        self.kept_text += text;
        self.bytes += bytes;
        slice
    }

    fn take_members(&mut self, head: Option<Arc<LargeFile>>) -> Option<Slice> {
        (self.bytes, self.kept_text) = (0, 0);
        let small = std::mem::take(&mut self.small);
        (!small.is_empty() || head.is_some()).then_some(Slice::Members(small, head))
    }

    fn next_piece(&mut self) -> Option<Slice> {
        let (file, offset) = self.large.take()?;
        let end = file.data_len.min(file.end.load(Acquire));
        if file.is_endless() && offset >= end {
            return None; // an earlier piece has already reached the end of the stream
        }
        let len = (file.data_len - offset).min(self.frame_bytes);
        let last = offset + len == file.data_len;
        if !last {
            self.large = Some((file.clone(), offset + len));
        }
        Some(Slice::Piece {
            file,
            offset,
            len: len as u32,
            last,
        })
    }
}

/// Returns the size of the extended attributes that an earlier backup has for the entry.
fn base_xattr_bytes(scanned: &Scanned) -> usize {
    scanned
        .known
        .as_ref()
        .map_or(0, |known| xattr_bytes(&known.last().entry.xattrs))
}

/// Returns the bytes of content that the archive will hold; [`u64::MAX`] for a stream.
fn data_len(entry: &Entry) -> u64 {
    if entry.size() == u64::MAX {
        u64::MAX
    } else {
        entry.data_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::{entry::EntryKind, page::EntryState};
    use proptest::{collection::vec, prelude::*};

    fn entries(sizes: &[u64]) -> Vec<Scanned> {
        let entry = |(i, size): (usize, &u64)| {
            let kind = EntryKind::File {
                size: *size,
                map: None,
            };
            Scanned::new(
                Entry {
                    path: format!("{i:05}").into(),
                    kind,
                    ..Entry::default()
                },
                EntryState::Whole,
            )
        };
        sizes.iter().enumerate().map(entry).collect()
    }

    proptest! {
        #[test]
        fn every_byte_of_every_entry_is_read_once_and_in_order(sizes in vec(0u64..200_000, 0..60)) {
            let entries = entries(&sizes);
            let mut seen: Vec<(Vec<u8>, u64)> = Vec::new();
            for slice in pack(Box::new(entries.clone().into_iter().map(Ok)), 65_536) {
                match slice.unwrap() {
                    Slice::Members(small, head) => {
                        let bytes: u64 = small.iter().map(|s| s.entry.size()).sum();
                        prop_assert!(bytes <= 65_536);
                        seen.extend(small.into_iter().map(|s| (s.entry.path.clone(), s.entry.size())));
                        seen.extend(head.map(|large| (large.entry.path.clone(), 0)));
                    }
                    Slice::Piece { file, offset, len, last } => {
                        let (path, so_far) = seen.last_mut().unwrap();
                        prop_assert_eq!((&*path, *so_far), (&file.entry.path, offset));
                        *so_far += u64::from(len);
                        prop_assert_eq!(last, *so_far == file.entry.size());
                    }
                }
            }
            let all: Vec<_> = entries.into_iter().map(|s| (s.entry.path.clone(), s.entry.size())).collect();
            prop_assert_eq!(seen, all);
        }
    }
}
