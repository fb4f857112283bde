//! A backup as a series of volumes: files of a limited size, each of them a one-file archive.
//!
//! A volume gets its name when it is complete and durable, before the next one begins. So the
//! volumes that are there after a crash are whole, and the newest one describes all of them. Only
//! the last one says that the backup is complete.
//!
//! Belongs here: where volumes are written, and how large they may be. Does not belong here: where
//! a volume ends (`pipeline/lay`), and reading volumes (`repository/archive`).

mod sink;
mod sizes;

pub use sizes::{VolumeSize, VolumeSizes};

use crate::sink::local_file::OneFile;
use fullbore_crypt::UserRecipient;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_pipeline::sink::{Abilities, Destination, Place, Sink, place_of};
use fullbore_platform::{
    place::{check_parent_exists, dir_of},
    queue::Locked,
    write::free_bytes,
};
use fullbore_repository::{page_spool::PageSpool, volume_series::VolumeSeries};
use fullbore_storage::MediaChange;
use sink::VolumeSink;
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// A series of volumes as a destination.
#[derive(Debug, Clone)]
pub struct VolumeSpec {
    /// What the paths of the volumes begin with.
    pub prefix: PathBuf,
    /// The sizes of the volumes.
    pub sizes: VolumeSizes,
    /// How the medium is changed between two volumes.
    pub change: MediaChange,
    /// Where the backup is noted when it is complete.
    pub catalog: Option<VolumeSeries>,
}

impl PartialEq for VolumeSpec {
    fn eq(&self, other: &Self) -> bool {
        (&self.prefix, &self.sizes) == (&other.prefix, &other.sizes)
    }
}

impl Eq for VolumeSpec {}

impl VolumeSpec {
    /// Checks that volumes can be written there: the directory exists, and a full medium can be changed.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Usage`]; the system's.
    pub fn check(&self) -> Result<()> {
        check_parent_exists(&self.prefix)?;
        if self.sizes.fill_media() && !self.change.is_possible() {
            let message = format!("cannot fill the media of {}", self.name());
            return Err(Error::new(ErrorKind::Usage, message)
                .because("nobody can change a full medium: there is no terminal")
                .hint("use --change-command PROGRAM, or a size with --volume-size"));
        }
        Ok(())
    }

    /// Returns the bytes of a file above which it is stored in pieces.
    pub fn whole_bytes(&self) -> u64 {
        let free = File::open(self.dir())
            .and_then(free_bytes)
            .unwrap_or(u64::MAX);
        self.sizes.whole_bytes(free)
    }

    /// The directory that the volumes are in.
    pub fn dir(&self) -> &Path {
        dir_of(&self.prefix)
    }

    /// Name in messages.
    pub fn name(&self) -> String {
        format!("\"volumes:{}\"", self.prefix.display())
    }

    /// Opens the destination for backup `id`; with recipients each volume is encrypted by itself.
    ///
    /// # Errors
    /// As [`VolumeSpec::check`].
    pub fn open(
        &self,
        id: &str,
        recipients: Option<Arc<[UserRecipient]>>,
    ) -> Result<VolumeDestination> {
        self.check()?;
        Ok(VolumeDestination {
            spec: self.clone(),
            id: id.to_owned(),
            recipients,
            progress: Arc::default(),
        })
    }
}

/// The volumes of one backup.
pub struct VolumeDestination {
    spec: VolumeSpec,
    id: String,
    recipients: Option<Arc<[UserRecipient]>>,
    progress: Arc<Mutex<SetProgress>>,
}

/// How far a series of volumes is.
#[derive(Default)]
struct SetProgress {
    /// The volume that has no name yet, closed or not.
    unnamed: Option<OneFile>,
    /// Volumes that have their names.
    named: u32,
    /// The manifest so far.
    pages: PageSpool,
}

impl SetProgress {
    /// Gives the newest volume its name. With `is_last`, the backup is complete then.
    fn name_newest(&mut self, is_last: bool) -> Result<()> {
        let Some(volume) = self.unnamed.take() else {
            return Ok(());
        };
        volume.publish(is_last)?;
        self.named += 1;
        Ok(())
    }
}

impl SetProgress {
    fn store_in(&self, catalog: &VolumeSeries, id: &str, root: &[u8]) -> Result<()> {
        catalog.store(id, root, |file| {
            self.pages.copy_with(|bytes| {
                let written = file.write_all(bytes);
                written.map_err(|error| Error::io("could not write a catalog", error))
            })
        })
    }
}

impl Destination for VolumeDestination {
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn stream(&mut self, _number: u32) -> Result<Box<dyn Sink>> {
        Ok(Box::new(VolumeSink::new(
            self.spec.clone(),
            self.id.clone(),
            self.recipients.clone(),
            self.progress.clone(),
        )))
    }

    /// The directory of the volumes: later ones do not exist yet.
    fn places(&self) -> Vec<Place> {
        place_of(self.spec.dir()).into_iter().collect()
    }

    fn commit(self: Box<Self>, root: &[u8]) -> Result<()> {
        let done = self.progress.locked().name_newest(true);
        done.map_err(|error| self.explained(error))?;
        // The volumes describe themselves, so the backup does not fail with the catalog.
        if let Some(catalog) = &self.spec.catalog
            && let Err(error) = self.progress.locked().store_in(catalog, &self.id, root)
        {
            fullbore_platform::debug(|| error.line());
        }
        Ok(())
    }

    fn explained(&self, error: Error) -> Error {
        let named = self.progress.locked().named;
        let kept = match named {
            0 => return error,
            1 => "volume 1 is kept".to_owned(),
            named => format!("volumes 1 to {named} are kept"),
        };
        let id = &self.id;
        error.detail(format!(
            "{kept}: an incomplete backup, which --resume {id} goes on with"
        ))
    }

    /// Removes the volume that has no name. The others stay: they are whole, and may be on other media.
    fn abort(self: Box<Self>, _keep: bool) {
        if let Some(volume) = self.progress.locked().unnamed.take() {
            volume.remove();
        }
    }
}
