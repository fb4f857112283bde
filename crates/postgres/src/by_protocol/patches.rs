//! Files of which only changed blocks are sent, from version 17 on: `INCREMENTAL.16384` for `16384`.
//!
//! The format is that of the server (basebackup_incremental.c): three numbers (magic, count of blocks, and
//! the length below which other blocks are those of the earlier backup), the numbers of the blocks, zeros
//! up to a whole page if there are blocks, and the blocks. Numbers are in the byte order of the
//! server.

use super::archives::{SentArchives, wrong};
use crate::relation::{Sizes, relation_of};
use fullbore_format::{
    entry::{ByteRun, Entry, EntryKind, EntryPath, split},
    error::{Result, quoted},
};

const PREFIX: &[u8] = b"INCREMENTAL.";
const MAGIC: u32 = 0xd3ae_1f0d;
/// Bytes of the three numbers.
const HEAD_BYTES: u64 = 12;

/// The changed blocks of a file, of which the content comes next in the stream.
#[derive(Debug)]
pub(super) struct SentPatch {
    page_bytes: u64,
    /// Numbers of the blocks that are sent, ascending.
    blocks: Vec<u32>,
    /// Blocks that were taken.
    taken: usize,
    /// Blocks below this number that are not sent are those of the earlier backup.
    kept_below: u32,
    /// Bytes of the member in the archive.
    member_bytes: u64,
}

/// Returns the path of the file that a member changes; `None` for a whole file.
pub(super) fn patched_path(path: &[u8]) -> Option<EntryPath> {
    let (dir, name) = split(path);
    let name = name.strip_prefix(PREFIX)?;
    let path = [dir, b"/", name].concat();
    relation_of(&path).is_some().then_some(path)
}

impl SentPatch {
    /// Reads the numbers of a member. Returns the entry of the file with its present length.
    ///
    /// # Errors
    /// For numbers that cannot be; those of the stream.
    pub(super) fn read(
        archives: &mut SentArchives,
        member: Entry,
        path: EntryPath,
        sizes: Sizes,
    ) -> Result<(Entry, Self)> {
        let member_bytes = member.size();
        let refused = |why: &str| wrong(&format!("{} {why}", quoted(&member.path)));
        if member_bytes < HEAD_BYTES {
            return Err(refused("is too short"));
        }
        let ends = |len: u64| (len == member_bytes).then_some(member_bytes);
        let head = archives.content(HEAD_BYTES, ends(HEAD_BYTES))?;
        let head = Numbers::of_head(&head).ok_or_else(|| refused("does not begin as it must"))?;
        let page_bytes = u64::from(sizes.page_bytes);
        let list_bytes = u64::from(head.count) * 4;
        let blocks_at = match head.count {
            0 => HEAD_BYTES,
            _ => (HEAD_BYTES + list_bytes).next_multiple_of(page_bytes),
        };
        let is_possible = head.count <= sizes.segment_blocks
            && head.kept_below <= sizes.segment_blocks
            && member_bytes == blocks_at + u64::from(head.count) * page_bytes;
        if !is_possible {
            return Err(refused("has another length than its blocks"));
        }
        let mut list = archives.content(blocks_at - HEAD_BYTES, None)?;
        list.truncate(list_bytes as usize);
        let blocks = head.numbers(&list);
        let is_ascending = blocks.is_sorted_by(|a, b| a < b);
        if !is_ascending || blocks.last() >= Some(&sizes.segment_blocks) {
            return Err(refused("has blocks that cannot be"));
        }
        let behind = blocks.last().map_or(0, |last| last + 1);
        let size = u64::from(head.kept_below.max(behind)) * page_bytes;
        let entry = Entry {
            path,
            kind: EntryKind::File { size, map: None },
            ..member
        };
        let patch = Self {
            page_bytes,
            blocks,
            taken: 0,
            kept_below: head.kept_below,
            member_bytes,
        };
        Ok((entry, patch))
    }

    /// Returns the places of a file of `size` bytes that may differ from the earlier file of
    /// `old_size` bytes. Blocks that are neither sent nor in the earlier file are zeros.
    pub(super) fn changed_runs(&self, size: u64, old_size: u64) -> Vec<ByteRun> {
        let page = self.page_bytes;
        let kept_end = (u64::from(self.kept_below) * page).min(old_size / page * page);
        let mut runs: Vec<ByteRun> = Vec::new();
        let mut push = |offset: u64, len: u64| match runs.last_mut() {
            Some(last) if last.offset + last.len == offset => last.len += len,
            _ => runs.push(ByteRun { offset, len }),
        };
        for block in &self.blocks {
            let offset = u64::from(*block) * page;
            if offset >= kept_end {
                break;
            }
            push(offset, page);
        }
        if kept_end < size {
            push(kept_end, size - kept_end);
        }
        runs
    }

    /// Takes the blocks of a run from the stream.
    ///
    /// # Errors
    /// Those of the stream.
    pub(super) fn take_run(
        &mut self,
        archives: &mut SentArchives,
        run: ByteRun,
        content: &mut Vec<u8>,
    ) -> Result<()> {
        let page = self.page_bytes;
        for offset in (run.offset..run.offset + run.len).step_by(page as usize) {
            let is_sent = |block: &u32| u64::from(*block) * page == offset;
            if self.blocks.get(self.taken).is_some_and(is_sent) {
                self.taken += 1;
                let ends = (self.taken == self.blocks.len()).then_some(self.member_bytes);
                content.extend(archives.content(page, ends)?);
            } else {
                content.resize(content.len() + page as usize, 0);
            }
        }
        Ok(())
    }

    /// Returns whether all blocks were taken.
    pub(super) fn is_taken(&self) -> bool {
        self.taken == self.blocks.len()
    }
}

/// The numbers of a member, and how they are read.
struct Numbers {
    count: u32,
    kept_below: u32,
    read: fn([u8; 4]) -> u32,
}

impl Numbers {
    fn of_head(head: &[u8]) -> Option<Self> {
        let magic = head.first_chunk::<4>()?;
        let orders: [fn([u8; 4]) -> u32; 2] = [u32::from_le_bytes, u32::from_be_bytes];
        let read = orders.into_iter().find(|read| read(*magic) == MAGIC)?;
        let number = |at: usize| head.get(at..)?.first_chunk::<4>().map(|bytes| read(*bytes));
        Some(Self {
            count: number(4)?,
            kept_below: number(8)?,
            read,
        })
    }

    fn numbers(&self, list: &[u8]) -> Vec<u32> {
        let (numbers, _) = list.as_chunks::<4>();
        numbers.iter().map(|bytes| (self.read)(*bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(blocks: &[u32], kept_below: u32) -> SentPatch {
        SentPatch {
            page_bytes: 8192,
            blocks: blocks.to_vec(),
            taken: 0,
            kept_below,
            member_bytes: 0,
        }
    }

    fn runs(patch: &SentPatch, pages: u64, old_pages: u64) -> Vec<(u64, u64)> {
        let runs = patch.changed_runs(pages * 8192, old_pages * 8192);
        runs.iter()
            .map(|run| (run.offset / 8192, run.len / 8192))
            .collect()
    }

    #[test]
    fn blocks_that_are_neither_sent_nor_kept_are_changed() {
        assert_eq!(runs(&patch(&[2, 3, 7], 9), 9, 9), [(2, 2), (7, 1)]);
        assert_eq!(runs(&patch(&[], 9), 9, 9), []);
        assert_eq!(
            runs(&patch(&[2], 9), 9, 6),
            [(2, 1), (6, 3)],
            "it has grown"
        );
        assert_eq!(runs(&patch(&[2], 5), 9, 9), [(2, 1), (5, 4)], "it was cut");
        assert_eq!(runs(&patch(&[8], 5), 9, 9), [(5, 4)]);
        assert_eq!(runs(&patch(&[4], 5), 5, 5), [(4, 1)]);
    }

    #[test]
    fn only_relations_have_changed_blocks() {
        let path = patched_path(b"base/5/INCREMENTAL.16384.1").unwrap();
        assert_eq!(path, b"base/5/16384.1");
        for other in ["INCREMENTAL.16384", "base/5/INCREMENTAL.x", "base/5/16384"] {
            assert_eq!(patched_path(other.as_bytes()), None, "{other}");
        }
    }
}
