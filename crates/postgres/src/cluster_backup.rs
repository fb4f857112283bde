//! A cluster that is being backed up, however its files are read.

use super::page_stage::PageCheck;
use fullbore_format::{entry::Entry, error::Result, root};
use fullbore_pipeline::frame::Scanned;
use std::sync::Arc;

/// An earlier backup of the same cluster.
pub struct EarlierBackup<'a> {
    pub facts: &'a root::ClusterInfo,
    /// Bytes of a block that can be referred to.
    pub block_bytes: u64,
    pub for_each_file: ForEachFile<'a>,
}

/// Calls a function with the files of which single blocks can be referred to.
pub type ForEachFile<'a> = &'a dyn Fn(&mut dyn FnMut(&Entry));

/// The blocks that changed since an earlier backup.
pub trait ChangedBlocks: Send + Sync {
    /// Limits the read of a file to the places that can have changed, if the file would be read and
    /// compared.
    ///
    /// # Errors
    /// If the changes do not fit the earlier backup.
    fn narrow(&self, scanned: &mut Scanned) -> Result<()>;
}

/// What a backup asks about the cluster beside its sources. Dropping the cluster ends its sessions, and with
/// them the backup mode and the slot.
pub trait ClusterBackup: Send + Sync {
    /// Returns the facts that the root records; complete once the backup is.
    fn facts(&self) -> root::ClusterInfo;

    /// Returns what the operator should know about the server; complete once the backup is.
    fn warnings(&self) -> Vec<String>;

    /// Returns how to check page checksums, if the cluster has checksums.
    fn page_check(&self) -> Option<Arc<PageCheck>>;

    /// Begins the backup, if it has not begun. Returns the blocks changed since the earlier backup, if
    /// the server's WAL summaries have them. Called once, before the scan.
    ///
    /// # Errors
    /// The server's.
    fn begin(&self, earlier: Option<&EarlierBackup<'_>>) -> Result<Option<Arc<dyn ChangedBlocks>>>;

    /// Checks that every late file is in the archive and that the WAL was kept until it was read.
    ///
    /// Called after everything was read: the server removes or overwrites WAL as soon as the
    /// session ends.
    ///
    /// # Errors
    /// The reason why the backup is void.
    fn check(&self) -> Result<()>;
}
