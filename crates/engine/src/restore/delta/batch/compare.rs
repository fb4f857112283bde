//! Compares existing files with the backup: small files as a whole, large files block by block.

use super::{
    CompareUnit, DeltaBatch, DeltaWorker, PatchTarget, WantedPiece, read_error, wanted_extent,
};
use crate::verify::compare_tree::has_content;
use fullbore_format::{error::Result, page::PageItem, sizes};
use fullbore_repository::archive::block_digests::{are_digested, judged};
use fullbore_tree::write::in_place::{Patch, is_up_to_date};
use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

impl DeltaBatch<'_> {
    pub(super) fn block_bytes(&self) -> u64 {
        self.run.archive.root.options.block_bytes
    }

    /// Returns whether the record has a digest for each block it describes.
    pub(super) fn has_blocks(&self, item: &PageItem) -> bool {
        are_digested(item, item.described_bytes(), &self.run.archive.root.options)
    }

    pub(super) fn compare_unit(
        &self,
        worker: &mut DeltaWorker,
        unit: CompareUnit,
    ) -> Result<Vec<WantedPiece>> {
        match unit {
            CompareUnit::Whole(item) => {
                let path = item.entry.path.clone();
                let wants = if item.entry.is_file() {
                    self.compare_file(worker, item)
                } else {
                    self.compare_other(worker, &item).map(|()| Vec::new())
                };
                self.run
                    .unless_refused(&path, wants)
                    .map(Option::unwrap_or_default)
            }
            CompareUnit::Stretch(target, item, range, offset) => {
                self.compare_blocks(worker, &target, &item, range, offset)
            }
        }
    }

    /// Compares and restores a link, pipe or device.
    fn compare_other(&self, worker: &mut DeltaWorker, item: &PageItem) -> Result<()> {
        let same = is_up_to_date(&mut worker.writer, &item.entry)?;
        let counter = if same {
            &self.delta.same
        } else {
            &self.delta.changed
        };
        counter.fetch_add(1, Relaxed);
        if same {
            Ok(())
        } else {
            worker.writer.special_file(&item.entry)
        }
    }

    fn compare_file(&self, worker: &mut DeltaWorker, item: PageItem) -> Result<Vec<WantedPiece>> {
        let entry = &item.entry;
        sizes::add_shared(&self.run.meter.bytes, entry.data_len());
        if let Some(patch) = Patch::open(&mut worker.writer, entry)?
            && self.is_same(worker, &patch, &item)?
        {
            patch.finish(&mut worker.writer, entry)?;
            return self.count_file(false);
        }
        // The worker that decodes the only frame writes the whole file.
        if item.extents.len() == 1 {
            return Ok(vec![wanted_extent(None, &item, 0, item.from)]);
        }
        let target = Arc::new(self.create_target(&mut worker.writer, &item, entry.data_len())?);
        if item.extents.is_empty() {
            return self.finish_or_refuse(worker, &target).map(|()| Vec::new());
        }
        target.unproven.store(true, Relaxed);
        self.add_ended(target.clone());
        let mut offset = 0;
        let mut wants = Vec::new();
        for position in 0..item.extents.len() {
            wants.push(wanted_extent(Some(target.clone()), &item, position, offset));
            offset += u64::from(item.extents[position].len);
        }
        Ok(wants)
    }

    /// Returns whether the existing file has the content of the record and may stay.
    fn is_same(&self, worker: &mut DeltaWorker, patch: &Patch, item: &PageItem) -> Result<bool> {
        let size = item.entry.size();
        if patch.stat().size != size || (item.digest.is_none() && size > 0) {
            return Ok(false);
        }
        let same = size == 0
            || has_content(patch.file(), item, &mut worker.buffer)
                .map_err(|e| read_error(item, e))?;
        Ok(same
            && (patch.may_write()
                || (patch.has_metadata_of(&mut worker.writer, &item.entry)?
                    && self.delta.claim_inode(patch.stat()))))
    }

    /// Reads the target where these extents belong, and returns the pieces with differing blocks.
    fn compare_blocks(
        &self,
        worker: &mut DeltaWorker,
        target: &Arc<PatchTarget>,
        item: &PageItem,
        range: Range<usize>,
        mut offset: u64,
    ) -> Result<Vec<WantedPiece>> {
        let extents = &item.extents[range.clone()];
        let len = sizes::sum(extents.iter().map(|extent| u64::from(extent.len)));
        sizes::add_shared(&self.run.meter.bytes, len);
        let has_blocks = self.has_blocks(item);
        let differing = match has_blocks && !target.patch.is_new() {
            true => self.differing_blocks(worker, target, item, offset..offset + len)?,
            false if self.is_unchanged(worker, target) => Vec::new(),
            false => std::iter::once(offset..offset + len).collect(),
        };
        let mut wants = Vec::new();
        for position in range {
            let end = offset + u64::from(item.extents[position].len);
            let first = differing.partition_point(|bytes| bytes.end <= offset);
            let here = differing[first..]
                .iter()
                .take_while(|bytes| bytes.start < end);
            let clamped =
                |offset_in_file: u64| (offset_in_file.clamp(offset, end) - offset) as usize;
            let blocks: Vec<_> = here
                .map(|bytes| clamped(bytes.start)..clamped(bytes.end))
                .collect();
            if !blocks.is_empty() {
                let provable = has_blocks && self.is_whole_blocks(item, offset, end);
                // If data moved within the file, only the digest of the whole file proves the
                // result.
                target.unproven.fetch_or(!provable, Relaxed);
                wants.push(WantedPiece {
                    blocks,
                    provable,
                    ..wanted_extent(Some(target.clone()), item, position, offset)
                });
            }
            offset = end;
        }
        Ok(wants)
    }

    /// Returns whether a file that spans several pages is unchanged as a whole. The first worker
    /// decides for all others. An unreadable file counts as changed.
    fn is_unchanged(&self, worker: &mut DeltaWorker, target: &PatchTarget) -> bool {
        let mut look = || {
            let last = self.run.archive.last_of(&target.item.entry.path)?;
            self.is_same(worker, &target.patch, &last).ok()
        };
        *target
            .whole
            .get_or_init(|| !target.patch.is_new() && look().unwrap_or(false))
    }

    /// Returns the byte ranges whose blocks differ from the manifest or cannot be judged; adjacent
    /// blocks are joined. `bytes` starts at a block.
    fn differing_blocks(
        &self,
        worker: &mut DeltaWorker,
        target: &PatchTarget,
        item: &PageItem,
        bytes: Range<u64>,
    ) -> Result<Vec<Range<u64>>> {
        let (mut found, mut offset): (Vec<Range<u64>>, _) = (Vec::new(), bytes.start);
        // Blocks of a cluster have 8 KiB: one call reads at least 1 MiB of them.
        let step = self
            .block_bytes()
            .max(1 << 20)
            .next_multiple_of(self.block_bytes());
        while offset < bytes.end {
            let len = step.min(bytes.end - offset) as usize;
            worker.buffer.resize(len.max(worker.buffer.len()), 0);
            let got = target
                .patch
                .read(&item.entry, offset, &mut worker.buffer[..len])
                .map_err(|e| read_error(item, e))?;
            for (block, same) in
                judged(item, self.block_bytes(), offset, &worker.buffer[..got], len)
            {
                let start = offset + block.start as u64;
                let end = offset + block.end as u64;
                match found.last_mut() {
                    _ if same == Some(true) => {}
                    Some(last) if last.end == start => last.end = end,
                    _ => found.push(start..end),
                }
            }
            offset += len as u64;
        }
        Ok(found)
    }

    /// Returns whether these bytes are whole blocks, so that block digests cover exactly them.
    fn is_whole_blocks(&self, item: &PageItem, offset: u64, end: u64) -> bool {
        let block = self.block_bytes();
        offset.is_multiple_of(block) && (end.is_multiple_of(block) || end == item.entry.data_len())
    }
}
