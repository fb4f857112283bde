//! The content of files of a backup, by place: each frame is checked before its bytes are given out.

use super::plan_file::InstantPlan;
use fullbore_format::{
    entry::{ByteRun, Entry},
    error::Result,
};
use fullbore_platform::memory::{machine_bytes, within_limit};
use fullbore_repository::archive::{
    Archive,
    byte_cache::ByteCache,
    frame_cache::FrameCache,
    schedule::misfit,
    stored_file::{StoredFile, data_runs},
};
use std::{ops::Range, sync::Arc};

/// The part of the machine's memory that records of files may have, if they need more than `--memory`.
const MACHINE_PART: u64 = 16;

/// Reads content for all lanes.
pub(super) struct ContentSource {
    archive: Arc<Archive>,
    frames: Arc<FrameCache>,
    files: ByteCache<u32, StoredFile>,
}

impl ContentSource {
    /// `memory` are the bytes of `--memory`. Records of files may have more: readers jump between files, and to decode
    /// a page of the manifest takes longer than to decode a frame.
    pub(super) fn new(archive: Archive, memory: u64) -> Self {
        let records = (memory / 2).max(within_limit(machine_bytes() / MACHINE_PART, 0));
        Self {
            archive: Arc::new(archive),
            frames: Arc::new(FrameCache::new((memory / 4) as usize)),
            files: ByteCache::new(records as usize),
        }
    }

    /// Returns the records of a file of the plan.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if they are damaged, or an error of the
    /// storage.
    pub(super) fn file(&self, plan: &InstantPlan, index: u32) -> Result<Arc<StoredFile>> {
        self.files.get(&index, || {
            let planned = &plan.files[index as usize];
            let (archive, frames) = (self.archive.clone(), self.frames.clone());
            let file = StoredFile::open(archive, frames, &planned.path.0)?;
            let file = file.filter(|file| file.size() == planned.size);
            let file = file.ok_or_else(|| misfit(&planned.path.0))?;
            let bytes = file.record_bytes();
            Ok((file, bytes))
        })
    }
}

/// Returns the runs of data in a range of a file, cut to the range.
fn runs_in(entry: &Entry, range: &Range<u64>) -> impl Iterator<Item = ByteRun> {
    let Range { start, end } = range.clone();
    let touched = data_runs(entry, start).take_while(move |run| run.offset < end);
    touched.map(move |run| {
        let offset = run.offset.max(start);
        let stop = run.offset.saturating_add(run.len).min(end);
        ByteRun {
            offset,
            len: stop - offset,
        }
    })
}

/// Returns whether a range of a file has data.
pub(super) fn has_data(entry: &Entry, range: &Range<u64>) -> bool {
    runs_in(entry, range).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::entry::EntryKind;

    #[test]
    fn data_in_a_range_is_found_between_holes() {
        let runs = [(10, 10), (40, 5)].map(|(offset, len)| ByteRun { offset, len });
        let sparse = Entry {
            kind: EntryKind::File {
                size: 100,
                map: Some(runs[..].into()),
            },
            ..Entry::default()
        };
        let found = |start, end| {
            let range = start..end;
            let data = |run: &ByteRun| match &sparse.kind {
                EntryKind::File { map: Some(map), .. } => map.data_before(run.offset).unwrap(),
                _ => run.offset,
            };
            let runs = runs_in(&sparse, &range);
            runs.map(|run| (data(&run), run.offset, run.len))
                .collect::<Vec<_>>()
        };
        assert_eq!(found(0, 100), [(0, 10, 10), (10, 40, 5)]);
        assert_eq!(found(15, 42), [(5, 15, 5), (10, 40, 2)]);
        assert_eq!(found(20, 40), []);
        assert_eq!(found(45, 100), []);
        assert!(!has_data(&sparse, &(50..60)));
    }
}
