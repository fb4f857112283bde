//! A stage turns one frame into one frame.

pub mod codec;
pub mod digest;
mod raw_zstd;
pub mod thin;

use crate::{error::Result, frame::Frame};

/// A stage turns one frame into one frame.
///
/// It sees frames in any order, from one thread, and keeps nothing that makes one frame's bytes depend on another's; that
/// is what lets it run on any number of workers, on either side.
pub trait Stage: Send {
    /// Transform `frame.data` in place or replace it, and note what was learned in its parts.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::error::Kind::Corrupt) if the bytes are not what this stage's inverse wrote.
    fn apply(&mut self, frame: Frame) -> Result<Frame>;
}

/// Several stages in a row are a stage.
pub struct Chain(pub Vec<Box<dyn Stage>>);

impl Stage for Chain {
    fn apply(&mut self, frame: Frame) -> Result<Frame> {
        self.0
            .iter_mut()
            .try_fold(frame, |frame, stage| stage.apply(frame))
    }
}
