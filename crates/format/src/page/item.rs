//! Records that keep their page in memory.

use super::{FrameAt, ManifestPage, Record, SegmentId};
use crate::entry::{self, EntryPath};
use std::{ops::Deref, sync::Arc};

/// A record, together with a reference to its page.
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
    /// Returns the record at `index` of a page, if the page has so many.
    pub fn new(page: Arc<ManifestPage>, index: usize) -> Option<Self> {
        (index < page.records.len()).then_some(Self { page, index })
    }

    /// The page that holds the record.
    pub fn page(&self) -> &Arc<ManifestPage> {
        &self.page
    }

    /// Index of the record in its page, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the segment that holds a frame of this record.
    pub fn segment(&self, frame: &FrameAt) -> &SegmentId {
        &self.page.segments[frame.segment as usize]
    }

    /// Returns the same record under another path.
    #[must_use]
    pub fn renamed(&self, path: EntryPath) -> Self {
        let mut record = Record::clone(self);
        record.entry.path = path;
        self.in_own_page(record)
    }

    /// Returns the same file without its content, as one large hole. Other kinds of entries do not
    /// change.
    #[must_use]
    pub fn without_content(&self) -> Self {
        let mut record = Record::clone(self);
        if let entry::EntryKind::File { map, .. } = &mut record.entry.kind {
            *map = Some(Vec::new().into());
            (record.extents, record.digest, record.from, record.more) =
                (Vec::new(), None, 0, false);
        }
        self.in_own_page(record)
    }

    /// Returns the same part of a file with the metadata and state of its `last` part, which is the
    /// newest.
    #[must_use]
    pub fn with_metadata_of(&self, last: &Self) -> Self {
        self.in_own_page(Record {
            entry: last.entry.clone(),
            state: last.state.clone(),
            ..Record::clone(self)
        })
    }

    /// Returns the record as the only part of its file, in a page of its own.
    #[must_use]
    pub fn as_only_part(&self) -> Self {
        self.in_own_page(Record {
            from: 0,
            ..Record::clone(self)
        })
    }

    /// Puts `record` in a new page that has only the segments the record needs.
    fn in_own_page(&self, mut record: Record) -> Self {
        let mut segments: Vec<SegmentId> = Vec::new();
        for extent in &mut record.extents {
            let id = self.segment(&extent.frame);
            let position = segments
                .iter()
                .rposition(|known| known == id)
                .unwrap_or(segments.len());
            if position == segments.len() {
                segments.push(id.clone());
            }
            extent.frame.segment = position as u32;
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
