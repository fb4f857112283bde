//! Finds the base of a new backup in volumes or on tapes, in the catalog of this host.

use crate::{
    archive::Archive,
    base::{Base, FoundBase, NewBackup, Unlike, WantedBase},
    base_search::{OTHER_HOST, OTHER_SOURCE, differs},
    level::{is_below, level_of},
    selector::LATEST,
    tape_catalog::{TapeCatalog, needed_tapes},
    volume_series::VolumeSeries,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::Root,
};
use fullbore_storage::Storages;
use std::{ffi::OsStr, path::Path};

/// Where the earlier backups are, of which the catalog of this host knows.
#[derive(Debug, Clone, Copy)]
pub enum Shelf<'a> {
    /// In volumes with a prefix; without a catalog none is known.
    Volumes(&'a Path, Option<&'a VolumeSeries>),
    /// On tapes.
    Tapes {
        drive: &'a OsStr,
        catalog: &'a TapeCatalog,
        /// The tape that the new backup is written over.
        replaced: Option<&'a str>,
    },
}

impl Shelf<'_> {
    fn roots(&self) -> Result<Vec<Root>> {
        match self {
            Self::Volumes(_, series) => Ok(series.map(VolumeSeries::roots).unwrap_or_default()),
            Self::Tapes { catalog, .. } => catalog.lasting_roots(),
        }
    }

    fn archive(&self, storages: &Storages, id: &str) -> Option<Result<Archive>> {
        match self {
            Self::Volumes(prefix, series) => {
                let kept = (*series)?.read(id)?;
                Some(Archive::of_catalog(storages, prefix, kept))
            }
            Self::Tapes { drive, catalog, .. } => {
                let kept = catalog.read(id)?;
                Some(Archive::of_tape_catalog(storages, drive, kept))
            }
        }
    }

    /// Returns the reason why a backup cannot be the base of a new one.
    fn differs(&self, root: &Root, new_backup: &NewBackup<'_>) -> Option<&'static str> {
        let reason = differs(root, new_backup);
        let Self::Tapes {
            replaced: Some(replaced),
            ..
        } = self
        else {
            return reason;
        };
        reason.or_else(|| needed_tapes(root).contains(*replaced).then_some(REPLACED))
    }
}

const REPLACED: &str = "the tape in the drive has a part of it, and is written over";

impl Base {
    /// Finds the base of a new backup among the complete ones in the catalog: the one that is asked for, or the newest of
    /// the same source with a lower level. Without either, a backup in volumes or on tapes has no base.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] or [`ErrorKind::NotFound`] if the base that is asked for cannot be one.
    pub fn find_in_series(
        storages: &Storages,
        shelf: Shelf<'_>,
        wanted: &WantedBase,
        new_backup: &NewBackup<'_>,
    ) -> Result<FoundBase> {
        let begun = match (&wanted.resume, shelf) {
            (None, _) => None,
            (Some(set), Shelf::Volumes(prefix, Some(series))) => {
                Some(begun_in(storages, (prefix, series), set, new_backup)?)
            }
            (Some(_), _) => return Err(no_catalog()),
        };
        let is_wanted = wanted.base.is_some() || wanted.below_level.is_some();
        if (wanted.full || !is_wanted) && begun.is_none() {
            return Ok(FoundBase::default());
        }
        let search = SeriesSearch {
            wanted,
            new_backup,
            shelf,
            roots: shelf.roots()?,
        };
        let (chosen, unlike) = match &wanted.base {
            Some(base) => (Some(search.asked_for(base)?), None),
            None if wanted.full || !is_wanted => (None, None),
            None => search.newest(),
        };
        let ids = begun.into_iter().chain(chosen);
        let archives = ids.filter_map(|id| shelf.archive(storages, &id));
        let archives = archives.collect::<Result<Vec<_>>>()?;
        let is_any = !archives.is_empty();
        Ok(FoundBase {
            base: is_any.then(|| Self::in_volumes(archives, wanted, new_backup)),
            unlike,
            ..FoundBase::default()
        })
    }
}

/// Puts the backup that goes on into the catalog, since its newest volume may be taken out now. Returns its id.
fn begun_in(
    storages: &Storages,
    place: (&Path, &VolumeSeries),
    set: &str,
    new_backup: &NewBackup<'_>,
) -> Result<String> {
    let root = Archive::catalog_volumes(storages, place, set)?;
    let refused = |why: &str| {
        let message = format!("cannot go on with backup {:?}", root.id);
        Error::new(ErrorKind::Usage, message).because(why.to_owned())
    };
    if is_complete(&root) {
        return Err(refused("it is complete"));
    }
    if level_of(&root) != new_backup.level {
        return Err(refused("it has another level"));
    }
    match differs(&root, new_backup) {
        None => Ok(root.id),
        Some(why) => Err(refused(why)),
    }
}

fn no_catalog() -> Error {
    let message = "cannot go on with a backup: there is no catalog of volumes";
    Error::new(ErrorKind::Usage, message).hint("use --catalog DIR")
}

struct SeriesSearch<'a> {
    wanted: &'a WantedBase,
    new_backup: &'a NewBackup<'a>,
    shelf: Shelf<'a>,
    /// The backups in the catalog, the newest first.
    roots: Vec<Root>,
}

impl SeriesSearch<'_> {
    /// Returns the id of the newest backup that can be the base; or the newest one of the source that cannot.
    fn newest(&self) -> (Option<String>, Option<Unlike>) {
        let mut unlike = None;
        for root in &self.roots {
            if !is_complete(root) || !is_below(root, self.wanted.below_level) {
                continue;
            }
            match self.shelf.differs(root, self.new_backup) {
                None => return (Some(root.id.clone()), None),
                Some(OTHER_SOURCE) => {}
                Some(why) => {
                    let backup = root.id.clone();
                    unlike.get_or_insert(Unlike { backup, why });
                }
            }
        }
        (None, unlike)
    }

    fn asked_for(&self, base: &str) -> Result<String> {
        let is_asked = |root: &&Root| match base {
            LATEST => self.shelf.differs(root, self.new_backup).is_none(),
            base => root.id.starts_with(base),
        };
        let Some(root) = self
            .roots
            .iter()
            .filter(is_asked)
            .find(|root| is_complete(root))
        else {
            let message = format!("could not find a backup {base:?} that could be the base");
            return Err(Error::new(ErrorKind::NotFound, message)
                .because("the catalog of this host has no complete one there"));
        };
        match self.shelf.differs(root, self.new_backup) {
            // Whoever names the backup trusts its host.
            None | Some(OTHER_HOST) => Ok(root.id.clone()),
            Some(why) => {
                let message = format!("cannot take backup {:?} as the base", root.id);
                Err(Error::new(ErrorKind::Usage, message).because(why))
            }
        }
    }
}

fn is_complete(root: &Root) -> bool {
    root.volume.is_some_and(|facts| facts.is_last)
}
