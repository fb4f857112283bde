//! A drive that is written to through a buffer, wherever the drive is.
//!
//! The buffer stands before the drive, on the host of the drive. So a writer on another host has the same
//! interface, and a pause of the network does not stop the drive.

use crate::{Drive, DriveError, pace::PaceSettings};
use fullbore_format::error::Result;
use std::{collections::VecDeque, sync::Arc};

/// A drive that can be written to through a buffer.
pub trait RingDrive: Drive {
    /// Begins a buffer. The first item gets the number `first` on the medium, where the head is.
    ///
    /// # Errors
    /// If the system has no thread for it; those of the host of the drive.
    fn begin_ring(
        self: Box<Self>,
        first: u64,
        settings: RingSettings,
    ) -> Result<Box<dyn DriveRing>>;

    /// Returns the bytes that the buffers before this drive have together, unless another size was chosen.
    fn usual_buffer_bytes(&self) -> u64;
}

/// A buffer before a drive.
pub trait DriveRing: Send {
    /// Adds an item; waits for room. Gives it back if the ring has stopped.
    fn push(&self, item: RingItem) -> Option<RingItem>;

    /// Returns whether the medium is behind its early warning, or takes no more.
    fn is_near_end(&self) -> bool;

    /// Waits until all is on the medium or the ring has stopped.
    ///
    /// # Errors
    /// If the thread has panicked; [`ErrorKind::Unreachable`](fullbore_format::error::ErrorKind::Unreachable) if
    /// the host of the drive is lost.
    fn finish(self: Box<Self>) -> Result<RingEnd>;
}

/// A record or a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RingItem {
    /// The bytes of a record. They are shared: the ring keeps them until they are on the medium.
    Record(Arc<Vec<u8>>),
    /// A mark that is not waited for.
    Mark,
    /// A record that the host of the drive has kept. Only the ring of that host takes it.
    Held {
        /// Its number among all that were kept.
        serial: u64,
        /// Its length.
        bytes: u32,
    },
}

impl RingItem {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Record(bytes) => bytes.len() as u64,
            Self::Mark => 0,
            Self::Held { bytes, .. } => u64::from(*bytes),
        }
    }
}

/// The parameters of a ring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RingSettings {
    /// The size of the buffer, and the lowest speed of the drive.
    pub pace: PaceSettings,
    /// Bytes that the drive has taken and may still lose, at most. At this many the drive is waited for.
    pub most_kept_bytes: u64,
}

/// Why a ring took no more.
#[derive(Debug)]
pub enum RingStop {
    /// All was taken, and is on the medium.
    Ended,
    /// The medium is at its physical end: the first item that is left was not taken.
    Full,
    /// The drive failed, and what it lost could not be written again.
    Failed(DriveError),
}

/// What a ring leaves.
pub struct RingEnd {
    /// The drive, behind the last item that it took.
    pub drive: Box<dyn RingDrive>,
    /// Why it ended.
    pub stop: RingStop,
    /// Items that are not on the medium for sure, in their order.
    pub left: VecDeque<RingItem>,
    /// The number on the medium of the first item that is left: all before it is on the medium.
    pub first_left: u64,
    /// How often writing was begun.
    pub starts: u64,
    /// How often records were written again after an error.
    pub rewrites: u32,
}
