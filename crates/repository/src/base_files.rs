//! The files of a base whose blocks are known one by one.

use super::base::Base;
use crate::archive::Archive;
use fullbore_format::{
    entry::{Entry, EntryKind, Time},
    page::{EntryState, PageItem, describe_whole_file},
};
use fullbore_pipeline::{
    frame::Scanned,
    known::{BaseEntry, Trust},
};
use std::sync::Arc;

impl Base {
    /// Calls `each` with the files of the base of which single blocks may be referred to, in archive order. Of
    /// these, a new backup can be made from blocks that changed. Memory: the records of one file.
    pub fn for_each_block_file(&self, each: &mut dyn FnMut(&Entry)) {
        let Some(archive) = self.only_archive() else {
            return;
        };
        let mut parts: Vec<PageItem> = Vec::new();
        for item in archive.clone().into_records() {
            match item {
                Ok(item) => {
                    let is_next = parts
                        .first()
                        .is_some_and(|part| part.entry.path != item.entry.path);
                    if is_next {
                        self.offer(std::mem::take(&mut parts), each);
                    }
                    parts.push(item);
                }
                Err(error) => {
                    self.note(&error);
                    parts.clear(); // a file that cannot be read is sent as a whole
                }
            }
        }
        self.offer(parts, each);
    }

    /// The archive of a base that is one.
    fn only_archive(&self) -> Option<&Arc<Archive>> {
        let mut archives = self.archives();
        archives.next().filter(|_| archives.next().is_none())
    }

    fn offer(&self, parts: Vec<PageItem>, each: &mut dyn FnMut(&Entry)) {
        if !describe_whole_file(&parts) {
            return;
        }
        let entry = parts[0].entry.clone();
        let is_whole = parts.iter().all(|part| part.state == EntryState::Whole);
        let is_dense = matches!(entry.kind, EntryKind::File { map: None, .. });
        let scanned = Scanned::new(entry, EntryState::Whole);
        let trust = self.rules.trust(&scanned, &parts[0], Time::default());
        if !is_whole || !is_dense || trust.is_none() || !self.rules.digests {
            return;
        }
        let known = self.usable(BaseEntry::new(parts.into(), Trust::Nothing));
        let has_each_block = |known: &BaseEntry| {
            known.has_blocks()
                && !known.has_chunks()
                && !known.is_stored_again(0, scanned.entry.size())
        };
        if known.as_ref().is_some_and(has_each_block) {
            each(&scanned.entry);
        }
    }
}
