//! One stream of a cluster, as a source.

use super::{
    data_dir::DataTree,
    source::{ClusterSource, check_readable},
};
use fullbore_format::{
    error::Result,
    page::{EntryState, Record},
};
use fullbore_pipeline::{
    frame::{Buf, Frame, Scanned, Slice},
    source::{OpenAhead, Source, Stream},
};
use fullbore_platform::queue::Locked;
use std::sync::{Arc, Mutex, mpsc::Sender};

/// One stream of the cluster: the directories on one device.
pub(super) struct ClusterPart {
    pub(super) cluster: Arc<ClusterSource>,
    pub(super) tree: Arc<dyn DataTree>,
    /// True for the stream that carries the late files.
    pub(super) is_first: bool,
    /// Held until the stream is read.
    pub(super) unread: Mutex<Option<Sender<()>>>,
}

impl Source for ClusterPart {
    fn scan(&self) -> Result<Stream<Scanned>> {
        let scanned = self.tree.scan()?;
        let cluster = self.cluster.clone();
        Ok(Box::new(scanned.map(move |scanned| {
            let scanned = scanned?;
            check_readable(&scanned.entry.path, &scanned.state)?;
            cluster.late.check_not_linked(&scanned.entry)?;
            cluster.inventory.register(&scanned);
            cluster.init_forks.note(&scanned.entry);
            Ok(scanned)
        })))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        self.cluster.read(&*self.tree, slice, buf)
    }

    fn on_stored(&self, record: &Record, crc32c: Option<u32>) {
        if let Err(error) = self.cluster.inventory.list_stored(record, crc32c) {
            self.cluster.failed.locked().get_or_insert(error);
        }
        if record.state == EntryState::Whole {
            self.cluster.awaited.locked().remove(&record.entry.path);
        }
    }

    fn opener(&self) -> Option<Arc<dyn OpenAhead>> {
        self.tree.opener()
    }

    fn prepare(&self, slices: Stream<Slice>) -> Stream<Slice> {
        self.tree.prepare(slices)
    }

    fn on_all_read(&self) {
        self.unread.locked().take();
        self.tree.on_all_read();
    }

    fn finish(&self) -> Result<Stream<Scanned>> {
        let late = if self.is_first {
            self.cluster.finish(&*self.tree)?
        } else {
            Vec::new()
        };
        Ok(Box::new(late.into_iter().map(Ok)))
    }
}
