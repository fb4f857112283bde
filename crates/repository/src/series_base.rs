//! Finds the base of a new backup in volumes, in the catalog of this host.

use crate::{
    archive::Archive,
    base::{Base, FoundBase, NewBackup, Unlike, WantedBase},
    base_search::{OTHER_HOST, OTHER_SOURCE, differs},
    level::is_below,
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
        let is_wanted = wanted.base.is_some() || wanted.below_level.is_some();
        if wanted.full || !is_wanted {
            return Ok(FoundBase::default());
        }
        let search = SeriesSearch {
            wanted,
            new_backup,
            roots: series.map(VolumeSeries::roots).unwrap_or_default(),
        };
        let (chosen, unlike) = match &wanted.base {
            Some(base) => (Some(search.asked_for(base)?), None),
            None => search.newest(),
        };
        let kept = chosen.and_then(|id| series?.read(&id));
        let archive = kept.map(|kept| Archive::of_catalog(storages, prefix, kept));
        let base = archive.transpose()?;
        let base = base.map(|archive| Self::in_volumes(archive, wanted, new_backup));
        Ok(FoundBase {
            base,
            unlike,
            ..FoundBase::default()
        })
    }
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
