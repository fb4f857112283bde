//! Hashes the content of every part.

use super::Stage;
use crate::{
    frame::{Frame, FrameContent, FrameEntry},
    known::StoredRun,
};
use fullbore_format::{
    chunk::{self, ContentChunk, MAX_FILE_BYTES},
    digest::{Algorithm, Piece, crc32c, digests, piece},
    error::Result,
};
use std::sync::atomic::Ordering::Acquire;

/// Stage that computes digests, chunks and CRCs.
#[derive(Debug, Clone, Copy)]
pub struct DigestStage {
    pub algorithm: Algorithm,
    /// Block size in bytes.
    pub block: u64,
    /// Whether large files are cut into chunks by their content.
    pub chunks: bool,
    /// Whether CRC-32Cs of blocks are computed too, as PostgreSQL's manifest needs them.
    pub crc32c: bool,
}

impl Stage for DigestStage {
    fn apply(&mut self, mut frame: Frame) -> Result<Frame> {
        let Frame { parts, data, .. } = &mut frame;
        let mut files = Vec::new();
        let mut contents = Vec::new();
        for (index, part) in parts.iter_mut().enumerate() {
            if let Some((offset, total)) = part_range(part) {
                let content = &data[part.inner as usize..][..part.len as usize];
                // Small files are hashed together below: one call fills all lanes of the processor
                // with several files.
                if self.algorithm == Algorithm::Blake3 && total <= self.block {
                    files.push(index);
                    contents.push(content);
                } else {
                    part.piece = piece(self.algorithm, content, offset, total, self.block);
                }
                part.chunks = self.cut_chunks(part, content);
                if self.crc32c {
                    part.crcs = content.chunks(self.block as usize).map(crc32c).collect();
                }
            } else {
                self.digest_blocks(part, data);
            }
        }
        files
            .into_iter()
            .zip(digests(&contents))
            .for_each(|(index, digest)| parts[index].piece = Piece::Whole(digest));
        Ok(frame)
    }
}

impl DigestStage {
    /// Cuts a piece into chunks if its file has chunks. A sparse file always has them, because
    /// holes that appear or vanish shift its data.
    fn cut_chunks(&self, part: &FrameEntry, content: &[u8]) -> Vec<ContentChunk> {
        let FrameContent::Piece { file, offset, .. } = &part.what else {
            return Vec::new();
        };
        let is_small =
            *offset < MAX_FILE_BYTES && (file.is_endless() || file.data_len <= MAX_FILE_BYTES);
        match file.entry.is_sparse() {
            _ if !is_small => Vec::new(),
            true if self.algorithm != Algorithm::Blake3 => Vec::new(),
            true => chunk::by_place(content, file.entry.runs(*offset, content.len() as u64)),
            false if self.chunks => chunk::by_content(content),
            false => Vec::new(),
        }
    }

    /// Digests the blocks of a partly read piece, if it was read in whole blocks.
    fn digest_blocks(&self, part: &mut FrameEntry, data: &[u8]) {
        let (FrameContent::Piece { file, offset, .. }, Some(runs)) = (&part.what, &part.runs)
        else {
            return;
        };
        let mut position = *offset;
        let mut digests = Vec::new();
        let mut crcs = Vec::new();
        for run in runs {
            let (StoredRun::Here { len, .. } | StoredRun::Kept { len, .. }) = *run;
            let end = position + u64::from(len);
            if let StoredRun::Here { inner, len } = *run {
                let content = &data[inner as usize..][..len as usize];
                // A block that was read in part has no digest: without all of them none is kept.
                if !position.is_multiple_of(self.block)
                    || !(end.is_multiple_of(self.block) || end == file.data_len)
                {
                    return;
                }
                let Piece::Blocks(blocks) =
                    piece(self.algorithm, content, position, file.data_len, self.block)
                else {
                    return;
                };
                digests.extend(blocks);
                crcs.extend(content.chunks(self.block as usize).map(crc32c));
            }
            position = end;
        }
        (part.piece, part.crcs) = (Piece::Blocks(digests), crcs);
    }
}

/// Returns the offset of a part in its file's data, and the length of that data; `None` if the part
/// has no data.
fn part_range(part: &FrameEntry) -> Option<(u64, u64)> {
    match &part.what {
        _ if part.runs.is_some() => None,
        FrameContent::Whole(entry, state) if state.is_stored() && entry.is_file() => {
            Some((0, part.len.into()))
        }
        FrameContent::Whole(..) | FrameContent::Head(..) => None,
        FrameContent::Piece { file, offset, .. } => {
            let total = file.data_len.min(file.end.load(Acquire));
            (part.len > 0 || total == 0).then_some((*offset, total))
        }
    }
}
