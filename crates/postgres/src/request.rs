//! The request to back up a cluster.

use super::{archiver::SegmentArchive, conninfo::Params};
use fullbore_platform::metrics::waits::Waits;
use fullbore_tree::read::Own;
use std::{num::NonZeroUsize, path::PathBuf, sync::Arc};

pub use super::data_dir::sql::SESSIONS;

/// The cluster to back up, and the options.
#[derive(Debug, Clone)]
pub struct ClusterRequest {
    pub server: ClusterServer,
    /// True for a checkpoint at once; false to spread it over time.
    pub fast: bool,
    /// Location of the WAL that the backup needs.
    pub wal: Wal,
    /// An archive to which the WAL is left if it takes the WAL of this server, whatever `wal` says.
    pub archive: Option<Arc<dyn SegmentArchive>>,
    /// The way to the files of a running cluster.
    pub via: Via,
    /// Sessions that read files by SQL.
    pub sessions: NonZeroUsize,
}

#[derive(Debug, Clone)]
pub enum ClusterServer {
    /// A running server, with its connection parameters.
    Running(Box<Params>),
    /// The data directory of a stopped cluster.
    Stopped(PathBuf),
}

/// How the files of a running cluster are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Via {
    /// From the data directory if it is on this host, else by SQL, else by protocol
    #[default]
    Auto,
    /// From the data directory on this host
    Files,
    /// Through sessions with the server
    Sql,
    /// As the server sends them to a standby
    Protocol,
}

/// Location of the WAL that a backup needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wal {
    /// In the backup: it starts on its own
    Included,
    /// In the archive; the backup ends when it is there
    Archived,
    /// Nothing is looked at
    None,
}

impl Wal {
    /// The value in the root.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Included => "included",
            Self::Archived => "archived",
            Self::None => "none",
        }
    }
}

/// How the files of the cluster are read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// True to make a stream for each device.
    pub split: bool,
    /// Directories listed at the same time.
    pub walkers: usize,
    /// Files and directories that this backup writes to; the backup excludes them.
    pub own: Own,
    /// Memory for what is read ahead by SQL.
    pub ahead_bytes: u64,
    /// Counts the time spent waiting for the server.
    pub waits: Arc<Waits>,
}
