//! What a copy of a backup brought.

use fullbore_repository::wal::CopiedWal;

/// The outcome of a copy.
#[derive(Debug, Default)]
pub struct CopiedBackup {
    /// ID of the backup.
    pub id: String,
    /// IDs of the backups that it refers to.
    pub others: Vec<String>,
    /// Number of copied objects.
    pub objects: u64,
    /// Bytes of the copied objects.
    pub bytes: u64,
    /// Number of objects that the destination had already.
    pub there: u64,
    /// Bytes of these objects.
    pub there_bytes: u64,
    /// The WAL of the cluster that the repository has, from the backup on.
    pub wal: CopiedWal,
    /// Wall-clock time in seconds.
    pub seconds: f64,
    /// Notes that could not be copied; the backup itself is complete.
    pub warnings: Vec<String>,
}
