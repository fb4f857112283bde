//! A cluster that is being backed up, however its files are read.

use super::{page_stage::PageCheck, wal_summaries::BlockChanges};
use fullbore_format::{error::Result, root};
use std::sync::Arc;

/// What a backup asks about the cluster beside its sources. Dropping the cluster ends its sessions, and with
/// them the backup mode and the slot.
pub trait ClusterBackup: Send + Sync {
    /// Returns the facts that the root records; complete once the backup is.
    fn facts(&self) -> root::ClusterInfo;

    /// Returns what the operator should know about the server; complete once the backup is.
    fn warnings(&self) -> Vec<String>;

    /// Returns how to check page checksums, if the cluster has checksums.
    fn page_check(&self) -> Option<Arc<PageCheck>>;

    /// Returns the blocks changed since the backup `base`, if the server's WAL summaries have them.
    fn changes_since(&self, base: &root::ClusterInfo) -> Option<BlockChanges>;

    /// Checks that every late file is in the archive and that the WAL was kept until it was read.
    ///
    /// Called after everything was read: the server removes or overwrites WAL as soon as the
    /// session ends.
    ///
    /// # Errors
    /// The reason why the backup is void.
    fn check(&self) -> Result<()>;
}
