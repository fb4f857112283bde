//! The drives of this host as a service of a session.

use fullbore_format::error::Result;
use fullbore_repository::tape_drive::open_here;
use fullbore_storage::wire::{PeerSide, WireService};
use fullbore_tape::{ServedDrive, TapeRights, question_room};
use std::sync::Arc;

/// Offers tape drives of this host to the other side.
#[derive(Debug, Clone)]
pub struct TapeService(Arc<ServedDrive>);

impl TapeService {
    /// Offers the drives that `rights` allow.
    pub fn new(rights: TapeRights) -> Self {
        Self(Arc::new(ServedDrive::new(rights, open_here)))
    }

    /// Writes what came and closes the drive, when the session has ended.
    ///
    /// # Errors
    /// Those of the drive.
    pub fn end(&self) -> Result<()> {
        self.0.end()
    }
}

impl WireService for TapeService {
    fn room_bytes(&self, question: &[u8]) -> usize {
        question_room(question)
    }

    fn answer(&self, question: &[u8], _: &PeerSide) -> Result<Vec<u8>> {
        self.0.answer(question)
    }
}
