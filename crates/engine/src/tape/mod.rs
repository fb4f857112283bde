//! A backup on tapes: parts between marks, each of them an archive of its own.
//!
//! ```text
//! label | part | part | … | pages and root          the next backup on the tape: … | label | part | …
//! ```
//! A part is a segment, cut into records of the same length; it ends at a member of the tar. Each part
//! has a root of all parts so far, so a backup that was cut off restores up to its last whole part. The first part of
//! each further tape begins with the pages of all parts before, and the last part has nothing but all pages and the root.
//! If a tape ends or fails within a part, the part goes on on the next tape.
//!
//! Belongs here: what is written to tapes. Does not belong here: drives (`fullbore-tape`), where a part
//! ends (`pipeline/lay`), and reading tapes (`repository/archive`).

mod media;
pub mod service;
mod sink;
mod writer;

use fullbore_crypt::UserRecipient;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::Root,
    sizes,
    text::size,
};
use fullbore_pipeline::sink::{Abilities, Destination, Place, Sink, place_of};
use fullbore_platform::queue::Locked;
use media::{LoadedTape, TapeProgress};
pub use media::{TapeOptions, TapeSpec};
use sink::TapeSink;
use std::sync::{Arc, Mutex};

/// Returns the bytes of all parts of a backup.
pub fn stored_bytes(root: &Root) -> u64 {
    sizes::sum(root.segments.iter().map(|segment| segment.bytes))
}

impl TapeSpec {
    /// Opens the destination for backup `id`; with recipients each part is encrypted by itself. The tape in the drive is looked
    /// at, and not written.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if the tape has data that must not be lost; those of the drive.
    pub fn open(
        &self,
        id: &str,
        recipients: Option<Arc<[UserRecipient]>>,
    ) -> Result<TapeDestination> {
        let first = LoadedTape::open(self, id, 1)?;
        self.note_first(&first);
        let progress = TapeProgress {
            first: Some(first),
            ..TapeProgress::default()
        };
        Ok(TapeDestination {
            spec: self.clone(),
            id: id.to_owned(),
            recipients,
            progress: Arc::new(Mutex::new(progress)),
        })
    }
}

/// The tapes of one backup.
pub struct TapeDestination {
    spec: TapeSpec,
    id: String,
    recipients: Option<Arc<[UserRecipient]>>,
    progress: Arc<Mutex<TapeProgress>>,
}

impl Destination for TapeDestination {
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn stream(&mut self, _number: u32) -> Result<Box<dyn Sink>> {
        let first = self.progress.locked().first.take();
        let first = first
            .ok_or_else(|| Error::new(ErrorKind::Bug, "cannot write two streams to a tape"))?;
        Ok(Box::new(TapeSink::new(
            &self.spec,
            &self.id,
            self.recipients.clone(),
            first,
            self.progress.clone(),
        )))
    }

    /// The file of a simulated tape.
    fn places(&self) -> Vec<Place> {
        let file = self.spec.drive.simulated();
        file.and_then(place_of).into_iter().collect()
    }

    fn commit(self: Box<Self>, root: &[u8]) -> Result<()> {
        let progress = self.progress.locked();
        // The tapes describe themselves, so the backup does not fail with the catalog.
        let stored = self.spec.catalog.store(&self.id, root, |file| {
            progress.pages.copy_with(|bytes| {
                let written = file.write_all(bytes);
                written.map_err(|error| Error::io("could not write a catalog", error))
            })
        });
        if let Err(error) = stored {
            fullbore_platform::debug(|| error.line());
        }
        Ok(())
    }

    fn explained(&self, error: Error) -> Error {
        let progress = self.progress.locked();
        let notes = progress.notes.iter();
        let error = notes.fold(error, |error, note| error.detail(note.clone()));
        if progress.tapes.is_empty() {
            return error;
        }
        let tapes = progress.tapes.join(", ");
        error.detail(format!(
            "{tapes} {}, as an incomplete backup, up to the last whole part of {}",
            if progress.tapes.len() == 1 {
                "restores"
            } else {
                "restore"
            },
            size::bytes(self.spec.options.part_bytes()),
        ))
    }

    /// Removes nothing: a tape keeps its data until it is written again.
    fn abort(self: Box<Self>, _keep: bool) {}
}
