//! The target of a copy as a service of a session.

use super::{
    CopyTarget,
    far::{QUESTION_ROOM, answer},
};
use fullbore_format::error::Result;
use fullbore_storage::wire::{PeerSide, WireService};
use std::{fmt, sync::Arc};

/// Offers the target of a copy to the side that reads.
pub struct CopyService(Arc<dyn CopyTarget>);

impl CopyService {
    /// Offers a target.
    pub fn new(target: Arc<dyn CopyTarget>) -> Self {
        Self(target)
    }
}

impl fmt::Debug for CopyService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CopyService")
    }
}

impl WireService for CopyService {
    fn room_bytes(&self, _: &[u8]) -> usize {
        QUESTION_ROOM
    }

    fn answer(&self, question: &[u8], _: &PeerSide) -> Result<Vec<u8>> {
        answer(&*self.0, question)
    }
}
