//! Encodes a page from its records: columns, with differences instead of values where those are
//! smaller.

use crate::{
    digest::Digest,
    entry::{ByteRun, EntryKind, Owner},
    page::*,
};
use std::collections::HashMap;

/// Encodes a page, record by record in archive order.
#[derive(Default)]
pub(super) struct PageEncoder {
    pub(super) columns: Columns,
    owners: HashMap<Owner, u32>,
    frames: HashMap<FrameAt, u32>,
    last: PreviousValues,
}

impl PageEncoder {
    /// Adds a record, the `index`-th of the page.
    pub(super) fn record(&mut self, index: u32, record: &Record) {
        let c = &mut self.columns;
        let entry = &record.entry;
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
                .map(|(k, v)| (index, k.clone().into(), v.clone().into())),
        );
        self.last = PreviousValues {
            mtime: entry.mtime.seconds,
            ctime: entry.ctime.seconds,
            inode: entry.inode,
            ..self.last
        };
        self.owner(&entry.owner);
        self.kind(&entry.kind);
        self.state(index, record);
        self.digest(record.digest);
        self.blocks(index, &record.blocks);
        self.crcs(index, &record.crcs);
        self.chunks(index, &record.chunks);
        if matches!(entry.kind, EntryKind::File { .. }) {
            self.columns.extent_counts.push(record.extents.len() as u32);
            record.extents.iter().for_each(|extent| self.extent(extent));
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

    fn state(&mut self, index: u32, record: &Record) {
        let (state, reason) = match &record.state {
            EntryState::Whole => (0, String::new()),
            EntryState::Changed => (1, String::new()),
            EntryState::Unreadable(reason) => (2, reason.clone()),
            EntryState::Vanished => (3, String::new()),
            EntryState::Noted => (4, String::new()),
            EntryState::BadPages(pages) => (
                5,
                pages
                    .iter()
                    .map(u32::to_string)
                    .collect::<Vec<_>>()
                    .join(" "),
            ),
        };
        if state > 0 {
            self.columns.states.push((index, state, reason));
        }
        if record.from > 0 {
            self.columns.from.push((index, record.from));
        }
        // Only the last record of a page can go on in the next page.
        self.columns.more = record.more;
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

fn encode_map(map: &[ByteRun], out: &mut Vec<u64>) {
    out.push(map.len() as u64);
    let mut end = 0;
    for run in map {
        out.extend([run.offset.wrapping_sub(end), run.len]);
        end = run.offset + run.len;
    }
}
