//! Receives WAL as a server writes it, so that a repository has the last second, too.
//!
//! Whole segments become the objects that a push makes. Of the segment that is not finished, pieces are stored. A position is
//! reported to the server as durable only when all WAL before it is durable in the repository: with synchronous replication
//! the server answers a commit then, and it may remove the WAL.
//!
//! A receiver can end at any moment: it begins again with the first segment that the repository lacks. It does not
//! look for the new primary after a failover: the connection string names that server, or all servers of the cluster.

mod line;
mod open_segment;
mod segment_store;
mod session;
mod stream;

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    wal::SegmentName,
};
use fullbore_postgres::{conninfo::Params, lsn::Lsn};
use fullbore_storage::Storages;
use session::KnownServer;
use std::{ffi::OsString, thread, time::Duration};

/// Pause before a server or a storage that is away is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Receives the WAL of a server.
#[derive(Debug, Clone)]
pub struct WalReceive {
    /// How storages are reached.
    pub storages: Storages,
    /// How the server is reached. With synchronous replication it knows this receiver by the name of the application.
    pub server: Box<Params>,
    /// The repository.
    pub to: OsString,
    /// The replication slot: the server keeps WAL that was not received.
    pub slot: String,
    /// Make the slot if there is none.
    pub creates_slot: bool,
    /// Store each commit at once, and not only every [`WalReceive::every`].
    pub is_synchronous: bool,
    /// How long WAL waits before it is stored.
    pub every: Duration,
    /// Note a gap and go on behind it, where the server has removed WAL.
    pub accepts_gap: bool,
    /// The name of a copy of a cluster.
    pub copy_name: Option<String>,
    /// The level of zstd for whole segments.
    pub level: i32,
}

/// What a receiver tells while it runs.
#[derive(Debug)]
pub enum ReceiveEvent<'a> {
    /// It receives from this place on.
    Begun {
        /// The system.
        system: &'a str,
        /// The timeline.
        timeline: u32,
        /// The place of the first byte.
        from: Lsn,
        /// Whether the storage answers late, so that each flush takes a while.
        answers_late: bool,
    },
    /// The server or the storage is away; it is tried again.
    Lost(&'a Error),
    /// These segments are missing, and it went on behind them.
    Skipped(SegmentName, SegmentName),
    /// Every few seconds, and when it begins.
    Progress(ReceiveProgress),
}

/// How far a receiver is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ReceiveProgress {
    /// All WAL before this place is durable.
    pub durable: Lsn,
    /// Bytes of WAL that the server has behind it.
    pub lag_bytes: u64,
    /// Seconds since the repository had all WAL of the server.
    pub lag_seconds: f64,
    /// Bytes that were received since the start.
    pub received_bytes: u64,
    /// Whole segments that were stored since the start.
    pub stored_segments: u64,
}

impl WalReceive {
    /// Receives until there is an error that waiting does not mend.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`] if the server has removed WAL that the repository lacks; [`ErrorKind::Exists`] if other content of a
    /// segment is in the repository; [`ErrorKind::NotFound`] without the slot; those of the first connection.
    pub fn run(&self, tell: &mut dyn FnMut(ReceiveEvent<'_>)) -> Result<()> {
        let mut known = KnownServer::default();
        let mut storages = self.storages.clone();
        loop {
            match session::run(self, &storages, &mut known, tell) {
                Ok(()) => {}
                Err(error) if error.kind == ErrorKind::Unreachable && known.is_known() => {
                    tell(ReceiveEvent::Lost(&error));
                    thread::sleep(PAUSE);
                    storages = storages.reopened();
                }
                Err(error) => return Err(error),
            }
        }
    }
}
