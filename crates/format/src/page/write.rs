//! Encodes a page from its records: columns, with differences instead of values where those are
//! smaller.

use super::*;
use crate::{
    digest::Digest,
    entry::{ByteRun, Entry, EntryKind, Owner},
};
use std::collections::HashMap;

/// Encodes a page, record by record in archive order.
#[derive(Default)]
pub(super) struct PageEncoder {
    pub(super) columns: Columns,
    owners: HashMap<Owner, u32>,
    frames: HashMap<FrameAt, u32>,
    last: PreviousValues,
    /// Index of the last record.
    index: u32,
}

impl PageEncoder {
    /// Adds a record with this entry. Its content follows.
    pub(super) fn entry(&mut self, entry: &Entry, state: &EntryState) {
        self.index = self.columns.kinds.len() as u32;
        let c = &mut self.columns;
        c.paths.extend_from_slice(&entry.path);
        c.paths.push(0);
        c.modes.push(entry.mode);
        // Times and inodes are stored as differences: neighbours in a directory are similar, which
        // zstd uses.
        c.mtimes
            .push(entry.mtime.seconds.wrapping_sub(self.last.mtime));
        c.mtime_nanos.push(entry.mtime.nanos);
        c.ctimes
            .push(entry.ctime.seconds.wrapping_sub(self.last.ctime));
        c.ctime_nanos.push(entry.ctime.nanos);
        c.inodes
            .push(entry.inode.wrapping_sub(self.last.inode) as i64);
        c.xattrs.extend(
            entry
                .xattrs
                .iter()
                .map(|(k, v)| (self.index, k.clone().into(), v.clone().into())),
        );
        self.last = PreviousValues {
            mtime: entry.mtime.seconds,
            ctime: entry.ctime.seconds,
            inode: entry.inode,
            ..self.last
        };
        self.owner(&entry.owner);
        self.kind(&entry.kind);
        self.state(state);
    }

    /// Adds the content of the last record.
    pub(super) fn content(&mut self, record: &Record) {
        let index = self.index;
        if record.from > 0 {
            self.columns.from.push((index, record.from));
        }
        // Only the last record of a page can go on in the next page.
        self.columns.more = record.more;
        self.digest(record.digest);
        self.blocks(index, &record.blocks);
        self.crcs(index, &record.crcs);
        self.chunks(index, &record.chunks);
        if record.entry.is_file() {
            self.columns.extent_counts.push(record.extents.len() as u32);
            record.extents.iter().for_each(|extent| self.extent(extent));
        }
    }

    /// Says that no content of the last record is known.
    pub(super) fn no_content(&mut self) {
        self.digest(None);
        if matches!(self.columns.kinds.last(), Some(&FILE | &SPARSE)) {
            self.columns.extent_counts.push(0);
        }
    }

    fn owner(&mut self, owner: &Owner) {
        let next = self.owners.len() as u32;
        let index = *self.owners.entry(owner.clone()).or_insert(next);
        if index == next {
            let row = (
                owner.uid,
                owner.gid,
                owner.user.to_string(),
                owner.group.to_string(),
            );
            self.columns.owners.push(row);
        }
        self.columns.owner.push(index);
    }

    fn kind(&mut self, kind: &EntryKind) {
        let c = &mut self.columns;
        c.kinds.push(match kind {
            EntryKind::File { map: None, .. } => FILE,
            EntryKind::File { .. } => SPARSE,
            EntryKind::Directory => DIRECTORY,
            EntryKind::Symlink(_) => SYMLINK,
            EntryKind::HardLink(_) => HARD_LINK,
            EntryKind::Fifo => FIFO,
            EntryKind::CharDevice(_) => CHAR_DEVICE,
            EntryKind::BlockDevice(_) => BLOCK_DEVICE,
            EntryKind::Socket => SOCKET,
        });
        match kind {
            EntryKind::File { size, map } => {
                c.sizes.push(*size);
                map.iter().for_each(|map| encode_map(map, &mut c.maps));
            }
            EntryKind::Symlink(target) | EntryKind::HardLink(target) => {
                c.links.extend_from_slice(target);
                // A NUL ends the text: neither paths nor targets of links can contain one.
                c.links.push(0);
            }
            EntryKind::CharDevice(device) | EntryKind::BlockDevice(device) => {
                c.devices.push((device.major, device.minor))
            }
            EntryKind::Directory | EntryKind::Fifo | EntryKind::Socket => {}
        }
    }

    fn state(&mut self, state: &EntryState) {
        let (number, reason) = match state {
            EntryState::Whole => return,
            EntryState::Changed => (1, String::new()),
            EntryState::Unreadable(reason) => (2, reason.clone()),
            EntryState::Vanished => (3, String::new()),
            EntryState::Noted => (4, String::new()),
            EntryState::BadPages(pages) => (5, joined(pages)),
        };
        self.columns.states.push((self.index, number, reason));
    }

    fn digest(&mut self, digest: Option<Digest>) {
        let c = &mut self.columns;
        match digest {
            None => c.digest_kinds.push(0),
            Some(Digest::Blake3(bytes)) => {
                c.digest_kinds.push(1);
                c.digests.extend_from_slice(&bytes);
            }
            Some(Digest::Crc32c(value)) => {
                c.digest_kinds.push(2);
                c.digests.extend_from_slice(&value.to_le_bytes());
            }
        }
    }

    fn blocks(&mut self, index: u32, blocks: &[[u8; BLOCK_DIGEST_BYTES]]) {
        if blocks.is_empty() {
            return;
        }
        let c = &mut self.columns;
        let count = (index, blocks.len() as u32);
        if blocks.iter().all(is_short) {
            c.short_counts.push(count);
            let shortened = blocks.iter().map(|block| &block[..SHORT_DIGEST_BYTES]);
            shortened.for_each(|block| c.short_blocks.extend_from_slice(block));
        } else {
            c.block_counts.push(count);
            c.blocks.extend_from_slice(blocks.as_flattened());
        }
    }

    fn crcs(&mut self, index: u32, crcs: &[u32]) {
        if !crcs.is_empty() {
            self.columns.crc_counts.push((index, crcs.len() as u32));
            self.columns.crcs.extend_from_slice(crcs);
        }
    }

    fn chunks(&mut self, index: u32, chunks: &[ContentChunk]) {
        if chunks.is_empty() {
            return;
        }
        let c = &mut self.columns;
        c.chunk_counts.push((index, chunks.len() as u32));
        for chunk in chunks {
            c.chunk_lens.push(chunk.len);
            c.chunks.extend_from_slice(&chunk.digest);
        }
    }

    fn extent(&mut self, extent: &Extent) {
        let next = self.frames.len() as u32;
        let index = *self.frames.entry(extent.frame).or_insert(next);
        let c = &mut self.columns;
        if index == next {
            c.frame_segments.push(extent.frame.segment);
            c.frame_offsets
                .push(extent.frame.offset.wrapping_sub(self.last.offset) as i64);
            c.frame_stored.push(extent.frame.stored_len);
            c.frame_plain.push(extent.frame.plain_len);
            self.last.offset = extent.frame.offset;
        }
        c.extent_frames
            .push(index.wrapping_sub(self.last.frame) as i32);
        c.extent_inner.push(extent.inner);
        c.extent_lens.push(extent.len);
        self.last.frame = index;
    }
}

fn joined(pages: &[u32]) -> String {
    let pages: Vec<String> = pages.iter().map(u32::to_string).collect();
    pages.join(" ")
}

fn encode_map(map: &[ByteRun], out: &mut Vec<u64>) {
    out.push(map.len() as u64);
    let mut end = 0;
    for run in map {
        out.extend([run.offset.wrapping_sub(end), run.len]);
        end = run.offset + run.len;
    }
}
