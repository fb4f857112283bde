//! Stages: each turns one frame into one frame.
//!
//! Belongs here: work on the bytes of one frame, without I/O and without other frames. Does not
//! belong here: the order of frames (`pipeline`), and the check of PostgreSQL pages (`postgres`).

pub mod codec;
pub mod digest;
pub mod level;
mod raw_zstd;
pub mod thin;

use crate::frame::Frame;
use fullbore_format::error::Result;

/// A transformation of frames.
///
/// A stage receives frames in any order, from one thread, and keeps no state that makes the bytes
/// of one frame depend on another frame. So a stage can run on any number of workers, on both
/// sides.
pub trait Stage: Send {
    /// Transforms `frame.data` in place or replaces it, and records findings in the parts of the
    /// frame.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if the bytes were not written by
    /// the inverse of this stage.
    fn apply(&mut self, frame: Frame) -> Result<Frame>;
}

/// Several stages in a row, as one stage.
pub struct Chain(pub Vec<Box<dyn Stage>>);

impl Stage for Chain {
    fn apply(&mut self, frame: Frame) -> Result<Frame> {
        self.0
            .iter_mut()
            .try_fold(frame, |frame, stage| stage.apply(frame))
    }
}
