//! The state of an object in earlier backups.
//!
//! An unchanged object costs a reference. In a large file that changed, every block is compared
//! with the earlier block at the same place, and unchanged blocks become references too. A
//! reference points to the backup that holds the data, so that a restore follows no chain.

mod content;

pub use content::{KnownContent, ReadContent, StoredContent};

use fullbore_format::{
    chunk::ContentChunk,
    entry::{ByteRun, Entry, EntryKind},
    page::{BLOCK_DIGEST_BYTES, Extent, ManifestPage, PageItem, Record},
};
use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

/// An object in the base backup, with the trust in it and the places of its content.
#[derive(Debug, Clone)]
pub struct BaseEntry {
    /// The parts of its record, one for each page; never empty. Segment names are relative to their
    /// pages.
    pub parts: Arc<[PageItem]>,
    /// How much is certain without reading the content.
    pub trust: Trust,
    chunks: Chunks,
    /// The changed runs, ascending, in bytes of the file, if known. The rest of the file is
    /// unchanged.
    pub changed: Option<Arc<[ByteRun]>>,
    /// Runs of the earlier data, ascending, to store again even if unchanged.
    again: Arc<[ByteRun]>,
    /// Compares with the stored content, if the digests of the record are no proof.
    unproven: Option<Arc<dyn StoredContent>>,
}

/// Start and length of each chunk of a file. Built at the first lookup.
type Chunks = Arc<OnceLock<HashMap<[u8; BLOCK_DIGEST_BYTES], (u64, u32)>>>;

/// How much is certain about an object in an earlier backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// All metadata is equal, so the object is unchanged.
    Same,
    /// The content is unchanged; the metadata is that of the scan.
    Content,
    /// Unchanged by the user's choice of comparison. Later backups must not take the metadata of
    /// this scan as a proof.
    Unverified,
    /// Only digests can tell.
    Nothing,
}

/// Place of a run of a file's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredRun {
    /// In the frame of its part.
    Here {
        /// Bytes of the frame before the run.
        inner: u32,
        len: u32,
    },
    /// In an earlier backup.
    Kept {
        /// Bytes of the earlier data before the run.
        at: u64,
        len: u32,
    },
}

impl BaseEntry {
    /// Creates an entry from the parts of its record.
    pub fn new(parts: Arc<[PageItem]>, trust: Trust) -> Self {
        Self {
            parts,
            trust,
            chunks: Chunks::default(),
            changed: None,
            again: Arc::default(),
            unproven: None,
        }
    }

    /// The state of `entry` without the places of its content, for a host that only reads it.
    pub fn without_places(entry: &Entry, trust: Trust) -> Self {
        let record = Record {
            entry: entry.clone(),
            ..Record::default()
        };
        let page = ManifestPage {
            records: vec![record],
            ..ManifestPage::default()
        };
        let parts = PageItem::new(Arc::new(page), 0).into_iter().collect();
        Self::new(parts, trust)
    }

    /// Marks these ascending runs of whole blocks to be stored again.
    ///
    /// For an unchanged file only these runs are read. With `Trust::Claim` the whole file is
    /// read, because the runs and the rest could otherwise come from two versions of the file.
    #[must_use]
    pub fn store_again(self, again: Vec<ByteRun>) -> Self {
        let again: Arc<[ByteRun]> = again.into();
        let changed = match self.trust {
            Trust::Nothing => self.changed.clone(),
            Trust::Unverified => None,
            Trust::Same | Trust::Content => Some(again.clone()),
        };
        Self {
            again,
            changed,
            trust: Trust::Nothing,
            ..self
        }
    }

    /// Marks runs to be stored again if their current place in the file is unknown: the whole file
    /// is read, and blocks found in these runs are stored again.
    #[must_use]
    pub fn store_found_again(self, again: Vec<ByteRun>) -> Self {
        Self {
            again: again.into(),
            trust: Trust::Nothing,
            ..self
        }
    }

    /// Limits the possible changes of a file of `size` bytes to these ascending runs. Runs to be
    /// stored again are added to them.
    pub fn limit_changes(&mut self, runs: Vec<ByteRun>, size: u64) {
        let again = self
            .again
            .iter()
            .filter(|run| run.offset < size)
            .map(|run| ByteRun {
                offset: run.offset,
                len: run.len.min(size - run.offset),
            });
        let mut all: Vec<ByteRun> = runs.into_iter().chain(again).collect();
        all.sort_unstable_by_key(|run| run.offset);
        all.dedup_by(|next, run| {
            let touches = next.offset <= run.offset + run.len;
            if touches {
                run.len = run.len.max(next.offset + next.len - run.offset);
            }
            touches
        });
        self.changed = Some(all.into());
    }

    /// Returns whether any of the `len` bytes from byte `offset` of the earlier data is to be stored
    /// again.
    pub fn is_stored_again(&self, offset: u64, len: u64) -> bool {
        let next = self
            .again
            .partition_point(|run| run.offset + run.len <= offset);
        self.again
            .get(next)
            .is_some_and(|run| run.offset < offset + len)
    }

    /// Returns the start of the chunk with this digest and length.
    pub fn chunk(&self, chunk: &ContentChunk) -> Option<u64> {
        let places = self.chunks.get_or_init(|| {
            let mut places = HashMap::new();
            for (start, chunk) in self.parts.iter().flat_map(chunk_starts) {
                places.entry(chunk.digest).or_insert((start, chunk.len));
            }
            places
        });
        places
            .get(&chunk.digest)
            .filter(|(_, len)| *len == chunk.len)
            .map(|(start, _)| *start)
    }

    /// Returns, for each chunk of a sparse file, its start in the earlier data if the same chunk
    /// was at the same place. `places` is ascending.
    pub fn chunks_at(&self, chunks: &[ContentChunk], places: &[ByteRun]) -> Vec<Option<u64>> {
        let data_before = |place: u64| match &self.last().entry.kind {
            EntryKind::File { map: Some(map), .. } => map.data_before(place),
            _ => Some(place),
        };
        // Both lists are ascending, so one pass over the earlier chunks finds all of them.
        let wanted: Vec<Option<u64>> = places
            .iter()
            .map(|place| data_before(place.offset))
            .collect();
        let first = wanted.iter().flatten().next().copied().unwrap_or(0);
        let first_part = self
            .parts
            .partition_point(|part| part.from <= first)
            .saturating_sub(1);
        let starts = self.parts[first_part..].iter().flat_map(chunk_starts);
        let mut starts = starts.peekable();
        wanted
            .into_iter()
            .zip(chunks)
            .map(|(wanted, chunk)| {
                let wanted = wanted?;
                while starts.next_if(|(start, _)| *start < wanted).is_some() {}
                starts
                    .peek()
                    .filter(|(start, found)| *start == wanted && *found == chunk)
                    .map(|(start, _)| *start)
            })
            .collect()
    }

    pub fn has_chunks(&self) -> bool {
        self.parts.iter().any(|part| !part.chunks.is_empty())
    }

    /// Returns whether the record has block digests.
    pub fn has_blocks(&self) -> bool {
        self.parts.iter().all(|part| part.block(0).is_some())
    }

    /// Returns the last part of the record, which has the digest.
    pub fn last(&self) -> &Record {
        &self.parts[self.parts.len() - 1]
    }

    /// Returns the digest of the block of `block` bytes that starts `offset` bytes into the data;
    /// `None` if no block starts there or its digest is unknown.
    pub fn block(&self, offset: u64, block: u64) -> Option<&[u8; BLOCK_DIGEST_BYTES]> {
        let (part, index) = self.place(offset, block)?;
        part.block(index)
    }

    /// Returns the CRC-32C of that block.
    pub fn crc(&self, offset: u64, block: u64) -> Option<u32> {
        let (part, index) = self.place(offset, block)?;
        part.crcs.get(index).copied()
    }

    fn place(&self, offset: u64, block: u64) -> Option<(&Record, usize)> {
        let part = &self.parts[self
            .parts
            .partition_point(|part| part.from <= offset)
            .checked_sub(1)?];
        let inner = offset - part.from;
        inner
            .is_multiple_of(block)
            .then_some((&**part, usize::try_from(inner / block).ok()?))
    }

    /// Splits `len` bytes of the file at `offset` into unchanged and changed runs. The changed runs
    /// are numbered as if they followed each other from byte 0 of a frame. Returns `None` if the
    /// changes are unknown.
    pub fn split_by_changes(&self, offset: u64, len: u64) -> Option<Vec<StoredRun>> {
        let mut runs = Vec::new();
        let mut position = offset;
        let mut inner = 0;
        let end = offset + len;
        let changed = self.changed.as_ref()?;
        // The runs are ascending, so those before the piece are skipped without reading them.
        let first = changed.partition_point(|run| run.offset + run.len <= offset);
        for run in &changed[first..] {
            let start = run.offset.clamp(position, end);
            let stop = (run.offset + run.len).min(end);
            if run.offset >= end {
                break;
            }
            if start > position {
                runs.push(StoredRun::Kept {
                    at: position,
                    len: (start - position) as u32,
                });
            }
            runs.push(StoredRun::Here {
                inner,
                len: (stop - start) as u32,
            });
            inner += (stop - start) as u32;
            position = stop;
        }
        if position < end {
            runs.push(StoredRun::Kept {
                at: position,
                len: (end - position) as u32,
            });
        }
        Some(runs)
    }
}

/// Returns the chunks of a part, each with its start in the file's data.
fn chunk_starts(part: &PageItem) -> impl Iterator<Item = (u64, &ContentChunk)> {
    let mut end = part.from;
    part.chunks.iter().map(move |chunk| {
        let start = end;
        end += u64::from(chunk.len);
        (start, chunk)
    })
}

/// Finds the extents of runs of an earlier file. Fast for runs that follow each other.
#[derive(Debug, Default)]
pub struct Finder {
    part: usize,
    extent: usize,
    /// Bytes of data before that extent.
    before: u64,
}

impl Finder {
    /// Calls `each` with the extents of `len` bytes of data from `offset` on, and the part of the
    /// record that holds each extent.
    pub fn find(
        &mut self,
        known: &BaseEntry,
        offset: u64,
        len: u64,
        mut each: impl FnMut(&PageItem, Extent),
    ) {
        let end = offset + len;
        if offset < self.before {
            *self = Self::default();
        }
        while let Some(item) = known.parts.get(self.part) {
            let Some(extent) = item.extents.get(self.extent) else {
                self.part += 1;
                self.extent = 0;
                continue;
            };
            let extent_end = self.before + u64::from(extent.len);
            let start = offset.max(self.before);
            let stop = end.min(extent_end);
            if start < stop {
                let inner = extent.inner + (start - self.before) as u32;
                each(
                    item,
                    Extent {
                        frame: extent.frame,
                        inner,
                        len: (stop - start) as u32,
                    },
                );
            }
            if extent_end > end {
                return; // the next run may start in this extent
            }
            self.before = extent_end;
            self.extent += 1;
            if extent_end == end {
                return;
            }
        }
    }
}

/// Returns the places in the file of those runs of a piece that are not kept. The piece begins at byte `at`.
pub fn changed_places(mut at: u64, runs: &[StoredRun]) -> Vec<ByteRun> {
    let mut changed = Vec::new();
    for run in runs {
        let len = match *run {
            StoredRun::Kept { len, .. } => len,
            StoredRun::Here { len, .. } => {
                changed.push(ByteRun {
                    offset: at,
                    len: len.into(),
                });
                len
            }
        };
        at += u64::from(len);
    }
    changed
}

/// Adds a run to a list, and joins it with the previous run if they touch.
pub fn push_run(runs: &mut Vec<StoredRun>, run: StoredRun) {
    match (runs.last_mut(), run) {
        (
            Some(StoredRun::Here { inner, len }),
            StoredRun::Here {
                inner: next,
                len: more,
            },
        ) if *inner + *len == next => {
            *len += more;
        }
        (
            Some(StoredRun::Kept { at, len }),
            StoredRun::Kept {
                at: next,
                len: more,
            },
        ) if *at + u64::from(*len) == next => {
            *len += more;
        }
        _ => runs.push(run),
    }
}

#[cfg(test)]
mod tests;
