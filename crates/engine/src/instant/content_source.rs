//! The content of files of a backup, by place: each frame is checked before its bytes are given out.

use super::plan_file::InstantPlan;
use fullbore_format::{
    entry::{ByteRun, Entry, EntryKind},
    error::{Error, Result},
};
use fullbore_platform::queue::Locked;
use fullbore_repository::archive::{
    Archive, extents::FileContent, frame_cache::FrameCache, schedule::misfit,
};
use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Mutex},
};

/// Files whose records stay in memory: as many as there may be readers at once.
const KEPT_FILES: usize = 16;

/// Reads content for all lanes.
pub(super) struct ContentSource {
    archive: Arc<Archive>,
    frames: FrameCache,
    known: Mutex<VecDeque<(u32, Arc<StoredContent>)>>,
}

/// The records of one file.
pub(super) struct StoredContent {
    content: FileContent,
    entry: Entry,
}

impl ContentSource {
    pub(super) fn new(archive: Archive) -> Self {
        let archive = Arc::new(archive);
        Self {
            frames: FrameCache::default(),
            archive,
            known: Mutex::default(),
        }
    }

    /// Returns the records of a file of the plan.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if they are damaged, or an error of the
    /// storage.
    pub(super) fn file(&self, plan: &InstantPlan, index: u32) -> Result<Arc<StoredContent>> {
        if let Some((_, found)) = self
            .known
            .locked()
            .iter()
            .find(|(known, _)| *known == index)
        {
            return Ok(found.clone());
        }
        let planned = &plan.files[index as usize];
        let parts = self.archive.find(&planned.path.0)?;
        let entry = parts.first().map(|part| part.entry.clone());
        let content = FileContent::new(parts);
        let (Some(entry), Some(content)) = (entry, content) else {
            return Err(misfit(&planned.path.0));
        };
        if entry.size() != planned.size {
            return Err(misfit(&planned.path.0));
        }
        let found = Arc::new(StoredContent { content, entry });
        let mut known = self.known.locked();
        known.push_back((index, found.clone()));
        if known.len() > KEPT_FILES {
            known.pop_front();
        }
        Ok(found)
    }

    /// Reads the data in a range of a file into `buffer`, one run after the other, and returns the runs.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if a frame is damaged, or an error of the
    /// storage.
    pub(super) fn read(
        &self,
        file: &StoredContent,
        range: Range<u64>,
        buffer: &mut Vec<u8>,
    ) -> Result<Vec<ByteRun>> {
        buffer.clear();
        let runs = data_runs(&file.entry, &range);
        let Some((data_offset, _)) = runs.first().copied() else {
            return Ok(Vec::new());
        };
        // The data of neighbouring runs is one range of the stored data.
        let wanted: u64 = runs.iter().map(|(_, run)| run.len).sum();
        for stored in file.content.runs(data_offset, wanted) {
            stored.append(&self.archive, &self.frames, buffer)?;
        }
        if buffer.len() as u64 != wanted {
            return Err(Error::corrupt(
                "the stored data of a file is shorter than the manifest says",
            ));
        }
        file.content.check(&self.archive, data_offset, buffer)?;
        Ok(runs.into_iter().map(|(_, run)| run).collect())
    }
}

/// Returns the runs of data in a range of a file, each with the bytes of data before it.
fn data_runs(entry: &Entry, range: &Range<u64>) -> Vec<(u64, ByteRun)> {
    let EntryKind::File { map: Some(map), .. } = &entry.kind else {
        let run = ByteRun {
            offset: range.start,
            len: range.end - range.start,
        };
        return vec![(range.start, run)];
    };
    let first = map.partition_point(|run| run.offset + run.len <= range.start);
    let touched = map[first..].iter().take_while(|run| run.offset < range.end);
    let cut = touched.filter_map(|run| {
        let start = run.offset.max(range.start);
        let end = (run.offset + run.len).min(range.end);
        let offset = map.data_before(start)?;
        Some((
            offset,
            ByteRun {
                offset: start,
                len: end - start,
            },
        ))
    });
    cut.collect()
}

/// Returns whether a range of a file has data.
pub(super) fn has_data(entry: &Entry, range: &Range<u64>) -> bool {
    !data_runs(entry, range).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let runs = data_runs(&sparse, &(start..end));
            runs.into_iter()
                .map(|(data, run)| (data, run.offset, run.len))
                .collect::<Vec<_>>()
        };
        assert_eq!(found(0, 100), [(0, 10, 10), (10, 40, 5)]);
        assert_eq!(found(15, 42), [(5, 15, 5), (10, 40, 2)]);
        assert_eq!(found(20, 40), []);
        assert_eq!(found(45, 100), []);
        assert!(!has_data(&sparse, &(50..60)));
    }
}
