//! The files of a host as a service of a session.

use super::{
    far_source::{SourceRights, check_scope, served_sources},
    paths::Scope,
};
use fullbore_format::error::Result;
use fullbore_storage::wire::{MAX_ANSWER_BYTES, PeerSide, ServiceNumber, Wire, WireService};
use fullbore_tree::far::{ServedSources, opened_words, question_room};

/// Offers files of this host to a backup that runs on the other side.
#[derive(Debug)]
pub struct FileService(ServedSources);

impl FileService {
    /// Offers the files that `rights` allow.
    pub fn new(rights: SourceRights) -> Self {
        Self(served_sources(rights))
    }
}

impl WireService for FileService {
    fn room_bytes(&self, question: &[u8]) -> usize {
        question_room(question)
    }

    fn answer(&self, question: &[u8], _: &PeerSide) -> Result<Vec<u8>> {
        self.0.answer(question)
    }
}

/// Passes questions on to a third host, whose files are offered. It may be asked for those of one scope only.
#[derive(Debug)]
pub struct PassedFiles {
    /// The session with the third host.
    pub wire: Wire,
    /// The files, by the paths of that host.
    pub scope: Scope,
}

impl WireService for PassedFiles {
    fn room_bytes(&self, question: &[u8]) -> usize {
        question_room(question)
    }

    fn answer(&self, question: &[u8], _: &PeerSide) -> Result<Vec<u8>> {
        if let Some(words) = opened_words(question)? {
            check_scope(&words, &self.scope)?;
        }
        let third = self.wire.peer();
        third.ask(ServiceNumber::FILES, question, MAX_ANSWER_BYTES)
    }
}
