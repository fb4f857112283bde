//! Records that keep the page they stand in.

use super::{FrameAt, ManifestPage, Record, SegmentId};
use crate::format::entry::{self, EntryPath};
use std::{ops::Deref, sync::Arc};

/// A record of a page that is still in memory.
#[derive(Debug, Clone)]
pub struct PageItem {
    page: Arc<ManifestPage>,
    index: usize,
}

impl Deref for PageItem {
    type Target = Record;
    fn deref(&self) -> &Record {
        &self.page.records[self.index]
    }
}

impl PageItem {
    /// The record at `index` of a page.
    pub fn new(page: Arc<ManifestPage>, index: usize) -> Option<Self> {
        (index < page.records.len()).then_some(Self { page, index })
    }

    /// The page it stands in.
    pub fn page(&self) -> &Arc<ManifestPage> {
        &self.page
    }

    /// Its place in the page, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The segment a frame of this record is in.
    pub fn segment(&self, frame: &FrameAt) -> &SegmentId {
        &self.page.segments[frame.segment as usize]
    }

    /// The same record under another path.
    #[must_use]
    pub fn renamed(&self, path: EntryPath) -> Self {
        let mut record = Record::clone(self);
        record.entry.path = path;
        self.with(record)
    }

    /// The same file without its content: all of it is a hole. What is no file stays what it is.
    #[must_use]
    pub fn hollow(&self) -> Self {
        let mut record = Record::clone(self);
        if let entry::EntryKind::File { map, .. } = &mut record.entry.kind {
            *map = Some(Vec::new().into());
            (record.extents, record.digest, record.from, record.more) =
                (Vec::new(), None, 0, false);
        }
        self.with(record)
    }

    /// The same part of a file that turned out to be like its `last` part.
    #[must_use]
    pub fn like(&self, last: &Self) -> Self {
        self.with(Record {
            entry: last.entry.clone(),
            state: last.state.clone(),
            ..Record::clone(self)
        })
    }

    /// The same record as all there is of its file, in a page of its own.
    #[must_use]
    pub fn alone(&self) -> Self {
        self.with(Record {
            from: 0,
            ..Record::clone(self)
        })
    }

    /// Of the segments of its page, only those it needs go with it.
    fn with(&self, mut record: Record) -> Self {
        let mut segments: Vec<SegmentId> = Vec::new();
        for extent in &mut record.extents {
            let id = self.segment(&extent.frame);
            let at = segments
                .iter()
                .rposition(|known| known == id)
                .unwrap_or(segments.len());
            if at == segments.len() {
                segments.push(id.clone());
            }
            extent.frame.segment = at as u32;
        }
        let page = ManifestPage {
            segments,
            records: vec![record],
            origin: None,
        };
        Self {
            page: Arc::new(page),
            index: 0,
        }
    }
}
