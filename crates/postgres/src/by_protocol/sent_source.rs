//! A cluster that is sent, as the source of a backup.

use super::{SentCluster, SentSource, TABLESPACE_MAP, archives::wrong, frames};
use crate::{
    cluster_backup::{ChangedBlocks, ClusterBackup, EarlierBackup},
    page_stage::PageCheck,
};
use fullbore_format::{
    error::{Result, quoted},
    page::{EntryState, Record},
    root,
};
use fullbore_pipeline::{
    frame::{Buf, Frame, Scanned, Slice},
    known::Trust,
    source::{Source, Stream},
};
use fullbore_platform::queue::Locked;
use std::sync::{Arc, atomic::Ordering::Relaxed};

impl ClusterBackup for SentCluster {
    fn facts(&self) -> root::ClusterInfo {
        self.facts.locked().clone()
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.locked().clone()
    }

    fn page_check(&self) -> Option<Arc<PageCheck>> {
        if !self.facts.locked().checksums {
            return None;
        }
        Some(Arc::new(PageCheck {
            data: None,
            sizes: self.sizes,
            start_lsn: self.start.0,
        }))
    }

    fn begin(
        &self,
        _earlier: Option<&EarlierBackup<'_>>,
    ) -> Result<Option<Arc<dyn ChangedBlocks>>> {
        Ok(None)
    }

    fn check(&self) -> Result<()> {
        let incomplete = || wrong("it is not complete");
        self.is_complete.get().copied().ok_or_else(incomplete)
    }
}

impl ChangedBlocks for SentCluster {
    /// Of a file of which changed blocks come, the rest is in the base.
    fn narrow(&self, scanned: &mut Scanned) -> Result<()> {
        let sent = self.sent.locked();
        let Some(patch) = &sent.patch else {
            return Ok(());
        };
        let size = scanned.entry.size();
        if size == 0 {
            scanned.known = None;
            return self.add_content((scanned.entry.path.clone(), 0), Vec::new());
        }
        let known = scanned.known.as_mut();
        let known = known.filter(|known| known.trust == Trust::Nothing && known.has_blocks());
        let Some(known) = known else {
            let path = quoted(&scanned.entry.path);
            return Err(wrong(&format!(
                "it has changed blocks of {path}, which was not backed up before"
            )));
        };
        let old_size = known.parts[0].entry.size();
        let runs = patch.changed_runs(size, old_size);
        scanned.comes_in_runs = !runs.is_empty() || size != old_size;
        known.limit_changes(runs, size);
        Ok(())
    }
}

impl Source for SentSource {
    fn scan(&self) -> Result<Stream<Scanned>> {
        let cluster = self.0.clone();
        let mut is_over = false;
        Ok(Box::new(std::iter::from_fn(move || {
            if is_over {
                return None;
            }
            let next = cluster.next_entry().transpose();
            is_over = !matches!(next, Some(Ok(_)));
            Some(next?.map(|entry| Scanned::new(entry, EntryState::Whole)))
        })))
    }

    fn is_sorted(&self) -> bool {
        false
    }

    /// Takes the content of each slice from the stream, in order.
    fn prepare(&self, slices: Stream<Slice>) -> Stream<Slice> {
        let cluster = self.0.clone();
        Box::new(slices.map(move |slice| {
            let slice = slice?;
            cluster.take(&slice)?;
            Ok(slice)
        }))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        match slice {
            Slice::Members(small, large) => frames::members(&self.0, small, large, buf),
            Slice::Piece {
                file,
                offset,
                len,
                last,
            } => frames::piece(&self.0, file, (offset, len, last), buf),
        }
    }

    /// A page that was torn when it was read looks damaged. The server reads such a page again, and says
    /// at the end whether any page stayed damaged.
    fn settle(&self, record: &mut Record) {
        let is_right = self.0.end.get().is_some_and(|end| !end.has_bad_pages);
        if !matches!(record.state, EntryState::BadPages(_)) {
            return;
        }
        if is_right {
            record.state = EntryState::Whole;
        } else {
            self.0.names_bad_pages.store(true, Relaxed);
        }
    }

    fn on_stored(&self, record: &Record, crc32c: Option<u32>) {
        if record.entry.path == TABLESPACE_MAP {
            return;
        }
        if let Err(error) = self.0.inventory.list_stored(record, crc32c) {
            self.0.failed.locked().get_or_insert(error);
        }
    }

    fn finish(&self) -> Result<Stream<Scanned>> {
        Ok(Box::new(self.0.finish()?.into_iter().map(Ok)))
    }
}
