//! WAL that a server archives: pushed to a repository, fetched for a recovery, listed and checked.
//!
//! The server's rules decide the exit codes: a push that says success lets the server delete the segment, a fetch that says
//! "missing" lets it end its recovery and open. So a push succeeds only when the segment is durable and no other content
//! of that name is there, and a fetch says "missing" only at the true end of the archive.

mod ahead;
mod catch_up;
mod compare;
mod facts;
mod get;
mod pack;
mod push;
mod pushed;
mod receive;
mod serve;
mod server_check;
mod server_files;
mod shown;
mod spool;
mod system;

pub use ahead::WalAhead;
pub use catch_up::CaughtUp;
pub use facts::{SystemReport, TimelineReport, system_reports};
pub use get::{Got, WalGet};
pub use push::{PushReport, SpooledFile, WalPush};
pub use receive::{ReceiveEvent, ReceiveProgress, WalReceive};
pub use serve::WalServe;
pub use server_check::{ServerCheck, ServerCheckReport, WalLag};
pub use shown::{ArchivedSegment, SegmentComparison, StoredFacts, stored_segments};
pub use spool::{SpoolState, WalSpool};
pub(crate) use system::check_one_content;
pub use system::{
    RepositoryArchive, StoredBy, SystemWal, has_segment, read_segment, segment_bytes_of,
};
