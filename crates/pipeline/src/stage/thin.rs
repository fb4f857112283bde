//! Removes data that earlier backups have from frames.
//!
//! A small unchanged file is removed as a whole, by its digest. Of a piece of a large file only the
//! changed blocks stay. These become members with a name other than the file's: a tool that does
//! not know the format and extracted them over the file would leave zeros around them.

use super::Stage;
use crate::{
    frame::{Frame, FrameContent, FrameEntry, LargeFile},
    known::{BaseEntry, KnownContent, ReadContent, StoredRun, push_run},
};
use fullbore_format::{
    chunk::{self, ContentChunk},
    content_list::LEAST_BYTES,
    digest::{BlockDigest, Joiner, Piece},
    entry::{Entry, EntryKind, Time},
    error::Result,
    page::{EntryState, matches_block},
    pax,
};
use std::sync::Arc;

/// Directory in the tar for changed pieces of files.
pub const PARTS: &[u8] = b".fullbore/parts/";

/// Stage that removes known data from frames.
#[derive(Debug)]
pub struct Thin {
    block: u64,
    /// Content of other sources.
    shared: Option<Arc<dyn KnownContent>>,
    /// The remaining data of the frame; the buffers are swapped.
    rest: Vec<u8>,
}

impl Thin {
    /// Creates the stage for files with blocks of `block` bytes. Files that have no earlier record are looked for in `shared`.
    pub fn new(block: u64, shared: Option<Arc<dyn KnownContent>>) -> Self {
        Self {
            block,
            shared,
            rest: Vec::new(),
        }
    }

    /// Returns the earlier record of a file that was read whole, if it has the same content.
    fn find(&self, part: &FrameEntry, data: &[u8]) -> Option<BaseEntry> {
        let is_asked = part.known.is_some() || self.shared.is_some() && may_be_shared(part);
        if !is_asked {
            return None;
        }
        let mut joiner = Joiner::default();
        joiner.push(&part.piece);
        let content = ReadContent {
            digest: &joiner.finish()?,
            data: data.get(part.inner as usize..)?.get(..part.len as usize)?,
        };
        let by_path = part.known.as_ref().and_then(|known| known.find(&content));
        let shared = self.shared.as_ref().filter(|_| may_be_shared(part));
        by_path.or_else(|| shared?.find(&content))
    }

    /// Copies the remaining bytes of a part, which starts at `start` in `data`. Returns the end of
    /// the part.
    fn thin_part(&mut self, part: &mut FrameEntry, data: &[u8], start: usize) -> Result<usize> {
        let inner = part.inner as usize;
        let len = part.len as usize;
        if let FrameContent::Piece { file, offset, .. } = &part.what
            && let Some(known) = &file.known
        {
            let runs = match part.runs.take() {
                Some(runs) => runs,
                None => {
                    // Blocks find what stayed at its place, chunks what moved. The one that keeps
                    // more is taken.
                    let by_blocks = self.block_runs(known, &part.piece, *offset, (inner, len));
                    let places = chunk_places(known, &part.chunks, &file.entry, *offset);
                    let by_chunks = chunk_runs(&part.chunks, places, inner as u32);
                    let runs = if kept_bytes(&by_chunks) > kept_bytes(&by_blocks) {
                        by_chunks
                    } else {
                        by_blocks
                    };
                    known.proven(runs, &data[inner..inner + len], inner as u32)
                }
            };
            part.runs = Some(self.write_members(file, *offset, runs, data)?);
            return Ok(inner + len);
        }
        let padding = if part.runs.is_none() && len > 0 {
            pax::padding(len as u64)
        } else {
            0
        };
        let end = data.len().min(inner + len + padding);
        // A known file leaves no bytes, but its part stays: it becomes a reference in the page.
        if part.runs.is_none() && part.known.is_some() {
            part.runs = Some(Vec::new());
            part.inner = self.rest.len() as u32;
        } else {
            part.inner = (self.rest.len() + inner - start) as u32;
            self.rest.extend_from_slice(&data[start..end]);
        }
        Ok(end)
    }

    /// Returns the place of each block of a piece: here or in an earlier backup.
    fn block_runs(
        &self,
        known: &BaseEntry,
        piece: &Piece,
        offset: u64,
        (inner, len): (usize, usize),
    ) -> Vec<StoredRun> {
        let blocks: &[BlockDigest] = if let Piece::Blocks(blocks) = piece {
            blocks
        } else {
            &[]
        };
        let mut runs = Vec::new();
        let mut position = 0;
        while position < len {
            let end = len.min(position + self.block as usize);
            let place = offset + position as u64;
            let digest = blocks.get(position / self.block as usize);
            let len = (end - position) as u32;
            let same = digest
                .zip(known.block(place, self.block))
                .is_some_and(|(digest, block)| matches_block(block, digest))
                // Blocks in segments that are given up are stored again although they are known.
                && !known.is_stored_again(place, len.into());
            let changed = StoredRun::Here {
                inner: (inner + position) as u32,
                len,
            };
            push_run(
                &mut runs,
                if same {
                    StoredRun::Kept { at: place, len }
                } else {
                    changed
                },
            );
            position = end;
        }
        runs
    }

    /// Writes a member for every run that stays here.
    fn write_members(
        &mut self,
        file: &LargeFile,
        mut offset: u64,
        runs: Vec<StoredRun>,
        data: &[u8],
    ) -> Result<Vec<StoredRun>> {
        let mut placed = Vec::with_capacity(runs.len());
        for run in runs {
            let (run, len) = match run {
                StoredRun::Kept { len, .. } => (run, len),
                StoredRun::Here { inner, len } => {
                    // Each run is a tar member of its own, so that tar can still unpack the frame.
                    pax::write_header(&piece_member(&file.entry, offset, len), &mut self.rest)?;
                    let place = self.rest.len() as u32;
                    self.rest
                        .extend_from_slice(&data[inner as usize..][..len as usize]);
                    self.rest
                        .resize(self.rest.len() + pax::padding(len.into()), 0);
                    (StoredRun::Here { inner: place, len }, len)
                }
            };
            placed.push(run);
            offset += u64::from(len);
        }
        Ok(placed)
    }
}

impl Stage for Thin {
    fn apply(&mut self, mut frame: Frame) -> Result<Frame> {
        let Frame { data, parts, .. } = &mut frame;
        let mut is_any = false;
        for part in parts.iter_mut() {
            is_any |= match &part.what {
                FrameContent::Piece { file, .. } => file.known.is_some(),
                _ if part.runs.is_some() => false,
                _ => {
                    part.known = self.find(part, data);
                    part.known.is_some()
                }
            };
        }
        if !is_any {
            return Ok(frame);
        }
        self.rest.clear();
        let mut position = 0;
        for part in parts {
            position = self.thin_part(part, data, position)?;
        }
        std::mem::swap(&mut **data, &mut self.rest);
        frame.plain_len = frame.data.len() as u32;
        Ok(frame)
    }
}

/// Returns whether content of another source may take the place of this file. A file that changed while it was read, or that is
/// small, is stored.
fn may_be_shared(part: &FrameEntry) -> bool {
    let is_whole = match &part.what {
        FrameContent::Whole(entry, EntryState::Whole) => entry.is_file() && !entry.is_sparse(),
        _ => false,
    };
    is_whole && u64::from(part.len) >= LEAST_BYTES
}

/// Returns the bytes that earlier backups have.
fn kept_bytes(runs: &[StoredRun]) -> u64 {
    runs.iter()
        .map(|run| {
            if let StoredRun::Kept { len, .. } = run {
                u64::from(*len)
            } else {
                0
            }
        })
        .sum()
}

/// Returns the places of the chunks of a piece in the earlier data: for a sparse file only the same
/// places, otherwise any.
fn chunk_places(
    known: &BaseEntry,
    chunks: &[ContentChunk],
    entry: &Entry,
    offset: u64,
) -> Vec<Option<u64>> {
    let places: Vec<_> = if entry.is_sparse() {
        let len = chunks.iter().map(|chunk| u64::from(chunk.len)).sum();
        known.chunks_at(chunks, &chunk::places(entry.runs(offset, len)))
    } else {
        chunks.iter().map(|chunk| known.chunk(chunk)).collect()
    };
    places
        .into_iter()
        .zip(chunks)
        .map(|(place, chunk)| {
            place.filter(|place| !known.is_stored_again(*place, chunk.len.into()))
        })
        .collect()
}

fn chunk_runs(chunks: &[ContentChunk], places: Vec<Option<u64>>, mut inner: u32) -> Vec<StoredRun> {
    let mut runs = Vec::new();
    for (ContentChunk { len, .. }, place) in chunks.iter().copied().zip(places) {
        push_run(
            &mut runs,
            place.map_or(StoredRun::Here { inner, len }, |start| StoredRun::Kept {
                at: start,
                len,
            }),
        );
        inner += len;
    }
    runs
}

/// Returns the member that holds a run of a file.
fn piece_member(file: &Entry, offset: u64, len: u32) -> Entry {
    let mut path = PARTS.to_vec();
    path.extend(&file.path);
    path.extend(format!("/{offset}-{len}").as_bytes());
    let mtime = Time {
        nanos: 0,
        ..file.mtime
    };
    Entry {
        path,
        kind: EntryKind::File {
            size: len.into(),
            map: None,
        },
        mode: 0o600,
        owner: file.owner.clone(),
        mtime,
        ..Entry::default()
    }
}
