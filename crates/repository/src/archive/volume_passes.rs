//! Reads the content of a backup volume by volume.
//!
//! Workers fetch side by side, and files refer to volumes in any order. A single drive must get each
//! volume once, in order. So the records are passed over once to learn which volumes are wanted,
//! and then once for each of these: a pass wants the frames of its volume alone, and ends when all
//! of its jobs are done.

use super::schedule::ScheduleShared;
use fullbore_format::{
    entry::EntryPath,
    page::{PageItem, SegmentId},
    root::Root,
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// The passes over a backup in volumes, and the one that is under way.
#[derive(Debug)]
pub struct VolumePasses<H> {
    /// Id of the backup.
    set: String,
    /// The volumes that are wanted. The ids of backups begin with their time, so bases come first.
    wanted: BTreeSet<SegmentId>,
    /// The volume of this pass; `None` in the first pass, which only learns.
    volume: Option<SegmentId>,
    /// Files of which a pass before this one has restored a part.
    begun: HashMap<EntryPath, Arc<ScheduleShared<H>>>,
}

impl<H> VolumePasses<H> {
    /// Begins with the pass that learns; `None` for a backup that is not in volumes.
    pub fn new(root: &Root) -> Option<Self> {
        root.volume?;
        Some(Self {
            set: root.id.clone(),
            wanted: BTreeSet::new(),
            volume: None,
            begun: HashMap::new(),
        })
    }

    /// Returns whether this is the first pass.
    pub fn is_first(&self) -> bool {
        self.volume.is_none()
    }

    /// The wanted volumes in order, each with its backup; all are known after the first pass.
    pub fn wanted(&self) -> &BTreeSet<SegmentId> {
        &self.wanted
    }

    /// Goes to the next pass. Returns false if there is none. Call it when all jobs of the last one are done.
    pub fn advance(&mut self) -> bool {
        self.begun.retain(|_, shared| !shared.is_complete());
        let next = match &self.volume {
            None => self.wanted.first().cloned(),
            Some(volume) => {
                let behind = self.wanted.iter().find(|wanted| *wanted > volume);
                behind.cloned()
            }
        };
        self.volume = next;
        self.volume.is_some()
    }

    /// Returns whether the frames of a segment are read in this pass. The first pass notes the segment.
    pub(super) fn takes(&mut self, segment: &SegmentId) -> bool {
        let mut whole = segment.clone();
        if whole.backup.is_empty() {
            whole.backup.clone_from(&self.set);
        }
        match &self.volume {
            Some(volume) => *volume == whole,
            None => {
                self.wanted.insert(whole);
                false
            }
        }
    }

    /// Returns the state of a file that an earlier pass began.
    pub(super) fn begun(&self, path: &[u8]) -> Option<Arc<ScheduleShared<H>>> {
        self.begun.get(path).cloned()
    }

    /// Keeps the state of a file, if this pass has a part of it and another pass may have the rest.
    pub(super) fn keep(&mut self, item: &PageItem, shared: &Arc<ScheduleShared<H>>) {
        if self.is_first() {
            return;
        }
        let here = item
            .extents
            .iter()
            .filter(|extent| self.takes(item.segment(&extent.frame)))
            .count();
        let is_divided = here < item.extents.len() || item.more || item.from > 0;
        if here > 0 && is_divided {
            self.begun.insert(item.entry.path.clone(), shared.clone());
        }
    }
}
