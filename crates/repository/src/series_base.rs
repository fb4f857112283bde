//! Finds the base of a new backup in volumes, in the catalog of this host.

use crate::{
    archive::Archive,
    base::{Base, FoundBase, NewBackup, Unlike, WantedBase},
    base_search::{OTHER_HOST, OTHER_SOURCE, differs},
    level::{is_below, level_of},
    selector::LATEST,
    volume_series::VolumeSeries,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::Root,
};
use fullbore_storage::Storages;
use std::path::Path;

impl Base {
    /// Finds the base of a new backup among the complete ones in the catalog: the one that is asked for, or the newest of
    /// the same source with a lower level. Without either, a backup in volumes has no base.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] or [`ErrorKind::NotFound`] if the base that is asked for cannot be one.
    pub fn find_in_series(
        storages: &Storages,
        (prefix, series): (&Path, Option<&VolumeSeries>),
        wanted: &WantedBase,
        new_backup: &NewBackup<'_>,
    ) -> Result<FoundBase> {
        let begun = match (&wanted.resume, series) {
            (None, _) => None,
            (Some(set), Some(series)) => {
                Some(begun_in(storages, (prefix, series), set, new_backup)?)
            }
            (Some(_), None) => return Err(no_catalog()),
        };
        let is_wanted = wanted.base.is_some() || wanted.below_level.is_some();
        if (wanted.full || !is_wanted) && begun.is_none() {
            return Ok(FoundBase::default());
        }
        let search = SeriesSearch {
            wanted,
            new_backup,
            roots: series.map(VolumeSeries::roots).unwrap_or_default(),
        };
        let (chosen, unlike) = match &wanted.base {
            Some(base) => (Some(search.asked_for(base)?), None),
            None if wanted.full || !is_wanted => (None, None),
            None => search.newest(),
        };
        let ids = begun.into_iter().chain(chosen);
        let kept = ids.filter_map(|id| series?.read(&id));
        let archives = kept.map(|kept| Archive::of_catalog(storages, prefix, kept));
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
            match differs(root, self.new_backup) {
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
            LATEST => differs(root, self.new_backup).is_none(),
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
                .because("the catalog of this host has no complete one under this prefix"));
        };
        match differs(root, self.new_backup) {
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
