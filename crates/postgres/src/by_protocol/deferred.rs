//! A backup by protocol that begins when its base is known: the server is told of the base first.

use super::{
    SentCluster, SentSource,
    open::{RunningServer, sent_cluster},
};
use crate::{
    cluster_backup::{ChangedBlocks, ClusterBackup, EarlierBackup},
    page_stage::PageCheck,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    page::Record,
    root::ClusterInfo,
};
use fullbore_pipeline::{
    frame::{Buf, Frame, Scanned, Slice},
    source::{Source, Stream},
};
use fullbore_platform::queue::Locked;
use std::sync::{Arc, Mutex, OnceLock};

/// The cluster, before and after the backup has begun.
pub(super) struct SentBackup {
    /// The facts that are known before.
    facts: ClusterInfo,
    server: Mutex<Option<RunningServer>>,
    begun: OnceLock<SentSource>,
}

impl SentBackup {
    pub(super) fn new(server: RunningServer) -> Self {
        Self {
            facts: server.facts.clone(),
            server: Mutex::new(Some(server)),
            begun: OnceLock::new(),
        }
    }

    fn cluster(&self) -> Option<&Arc<SentCluster>> {
        self.begun.get().map(|source| &source.0)
    }

    fn source(&self) -> Result<&SentSource> {
        let early = || Error::new(ErrorKind::Bug, "the backup has not begun");
        self.begun.get().ok_or_else(early)
    }
}

impl ClusterBackup for SentBackup {
    fn facts(&self) -> ClusterInfo {
        self.cluster()
            .map_or_else(|| self.facts.clone(), |cluster| cluster.facts())
    }

    fn warnings(&self) -> Vec<String> {
        self.cluster()
            .map_or_else(Vec::new, |cluster| cluster.warnings())
    }

    fn page_check(&self) -> Option<Arc<PageCheck>> {
        self.cluster()?.page_check()
    }

    fn begin(&self, earlier: Option<&EarlierBackup<'_>>) -> Result<Option<Arc<dyn ChangedBlocks>>> {
        let server = self.server.locked().take();
        let again = || Error::new(ErrorKind::Bug, "the backup began twice");
        let begun = server.ok_or_else(again)?.begin(earlier)?;
        let cluster = Arc::new(sent_cluster(begun)?);
        let changes = cluster
            .is_incremental
            .then(|| cluster.clone() as Arc<dyn ChangedBlocks>);
        _ = self.begun.set(SentSource(cluster));
        Ok(changes)
    }

    fn check(&self) -> Result<()> {
        self.source()?.0.check()
    }
}

impl Source for SentBackup {
    fn scan(&self) -> Result<Stream<Scanned>> {
        self.source()?.scan()
    }

    fn is_sorted(&self) -> bool {
        false
    }

    fn prepare(&self, slices: Stream<Slice>) -> Stream<Slice> {
        match self.begun.get() {
            Some(source) => source.prepare(slices),
            None => slices,
        }
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        self.source()?.read(slice, buf)
    }

    fn settle(&self, record: &mut Record) {
        self.begun
            .get()
            .iter()
            .for_each(|source| source.settle(record));
    }

    fn on_stored(&self, record: &Record, crc32c: Option<u32>) {
        let begun = self.begun.get();
        begun
            .iter()
            .for_each(|source| source.on_stored(record, crc32c));
    }

    fn finish(&self) -> Result<Stream<Scanned>> {
        self.source()?.finish()
    }
}
