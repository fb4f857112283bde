//! Which earlier backup of the source is the base of a new one.
//!
//! It is the latest complete backup of the same source with the same codec, digest and block size.
//! A source is a host and its paths, or a host and its cluster.
//! The ids of backups have letters of their source ([`ids`](super::ids)), so that in a repository
//! of many hosts few roots of other sources are read: one of each other source, and only if no
//! backup with the letters is of this source.

use super::{
    base::{NewBackup, WantedBase},
    counted::counted,
    ids::{SourceMark, pseudonym, source_letters},
    level::is_below,
    listed::{backup_ids, ids_of, listed_roots},
    protocol::is_dead,
    repository_file::read_repository,
    roots::{BackupFiles, BackupState},
    select::BackupFilter,
    selector::{LATEST, pick},
};
use crate::archive::{Archive, object::ObjectName};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{EntryName, Root, SourceInfo, is_pseudonym},
};
use fullbore_platform as platform;
use fullbore_storage::Objects;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

/// A backup of the same source that cannot be a base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlike {
    pub backup: String,
    pub why: &'static str,
}

/// The backups that a new one could be compared with.
#[derive(Default)]
pub struct ChosenBases {
    pub(super) archives: Vec<Archive>,
    /// Backups that are not there any more, or not in each destination.
    pub(super) gone: HashSet<String>,
    /// The latest backup of the source that cannot be the base.
    pub(super) unlike: Option<Unlike>,
    /// Damaged roots of the source.
    pub(super) damage: BTreeSet<String>,
    /// Whether there are backups, and none of them is of this source.
    pub(super) is_new_source: bool,
    /// The name of the cluster in the latest backup of it.
    pub(super) cluster_name: Option<SourceInfo>,
}

impl ChosenBases {
    /// Chooses among the backups of a listing, but for those in `not`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] or [`ErrorKind::NotFound`] if the requested base cannot be one.
    pub fn of(
        objects: &Arc<dyn Objects>,
        files: &BTreeMap<String, BackupFiles>,
        not: HashSet<String>,
        wanted: &WantedBase,
        new_backup: &NewBackup<'_>,
    ) -> Result<Self> {
        let mut chosen = Self {
            gone: not,
            ..Self::default()
        };
        chosen.choose(objects, files, wanted, new_backup)?;
        Ok(chosen)
    }

    /// Chooses again, among the backups of a later listing.
    pub(super) fn choose(
        &mut self,
        objects: &Arc<dyn Objects>,
        files: &BTreeMap<String, BackupFiles>,
        wanted: &WantedBase,
        new_backup: &NewBackup<'_>,
    ) -> Result<()> {
        let mut search = BaseSearch::new(objects, new_backup);
        if wanted.full {
            if has_no_path(new_backup) {
                search.candidates(files, None, &self.gone)?;
                self.cluster_name = search.cluster_name;
            }
            return Ok(());
        }
        search.below_level = wanted.below_level;
        self.archives = search.candidates(files, wanted.base.as_deref(), &self.gone)?;
        let newest_lacking = files
            .keys()
            .rev()
            .find(|id| self.gone.contains(*id) && source_letters(id) == search.letters);
        if self.archives.is_empty()
            && let Some(id) = newest_lacking
        {
            search.unlike.get_or_insert(Unlike {
                backup: id.clone(),
                why: NOT_EVERYWHERE,
            });
        }
        let is_any = !ids_of(files, BackupState::Listed).is_empty();
        self.is_new_source = is_any
            && self.archives.is_empty()
            && search.unlike.is_none()
            && search.damage.is_empty();
        self.cluster_name = search.cluster_name;
        self.unlike = search.unlike;
        self.damage.extend(search.damage);
        Ok(())
    }
}

/// A search among the backups of a repository.
struct BaseSearch<'a> {
    objects: &'a Arc<dyn Objects>,
    like: &'a NewBackup<'a>,
    /// The letters of the source in ids.
    letters: String,
    /// The name of the source in roots that this host cannot read.
    pseudonym: Option<String>,
    /// The latest backup of the source that cannot be the base.
    unlike: Option<Unlike>,
    /// Damaged roots of the source.
    damage: BTreeSet<String>,
    /// The name of the cluster in the latest backup of it.
    cluster_name: Option<SourceInfo>,
    /// A root that was sealed with a generation that the key does not have, or that only a key can read.
    sealed_otherwise: Option<Error>,
    /// Only a backup of a lower level can be the base.
    below_level: Option<u8>,
}

impl<'a> BaseSearch<'a> {
    fn new(objects: &'a Arc<dyn Objects>, new_backup: &'a NewBackup<'a>) -> Self {
        let mark = match new_backup.cluster {
            Some(cluster) => SourceMark::Cluster(&cluster.system_identifier),
            None => SourceMark::Files(new_backup.origin),
        };
        Self {
            objects,
            like: new_backup,
            letters: mark.letters(&**objects),
            pseudonym: pseudonym(&**objects, new_backup.origin),
            unlike: None,
            damage: BTreeSet::new(),
            cluster_name: None,
            sealed_otherwise: None,
            below_level: None,
        }
    }

    /// Returns the latest complete backup of this source, and the durable part of a later one that
    /// died; or the backup that `base` names. Those in `gone` do not count.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] or [`ErrorKind::NotFound`] if `base` cannot be one; [`ErrorKind::Permission`] for a root that was sealed with
    /// a generation of the repository's key that this host does not have: the keys of the two may be of two repositories.
    fn candidates(
        &mut self,
        files: &BTreeMap<String, BackupFiles>,
        base: Option<&str>,
        gone: &HashSet<String>,
    ) -> Result<Vec<Archive>> {
        if let Some(base) = base {
            return self.asked_for(base).map(|archive| vec![archive]);
        }
        let left = |state| {
            let mut ids = counted(ids_of(files, state));
            ids.retain(|id| !gone.contains(id));
            ids
        };
        let latest = self.latest_complete(left(BackupState::Listed));
        if let Some(error) = self.sealed_otherwise.take() {
            return Err(error);
        }
        let mut partial = left(BackupState::Partial);
        partial.retain(|id| {
            // An interrupted backup may have the changes since one of a higher level.
            if self.below_level.is_some() {
                return false;
            }
            let is_later = latest.as_ref().is_none_or(|latest| *id > latest.root.id);
            is_later && source_letters(id) == self.letters && is_dead(&**self.objects, id)
        });
        platform::debug(|| {
            format!(
                "{} backups were interrupted and can be resumed",
                partial.len()
            )
        });
        let interrupted = partial
            .iter()
            .rev()
            .filter_map(|id| Archive::open_partial(self.objects, id).ok())
            .find(|archive| {
                self.difference(&archive.root).is_none()
                    && !self.is_of_other_key(&archive.root.id)
                    && has_manifests(archive)
            });
        Ok(interrupted.into_iter().chain(latest).collect())
    }

    /// Returns the latest complete backup of this source among `ids`, which are oldest first.
    fn latest_complete(&mut self, ids: Vec<String>) -> Option<Archive> {
        let (likely, others) = divide(ids, &self.letters);
        let latest = self.latest_among(likely.into_iter());
        if latest.is_some() || self.unlike.is_some() {
            return latest;
        }
        let mut found = Vec::new();
        for (id, root) in listed_roots(self.objects, others) {
            match root {
                Ok(root) if self.is_of_source(&root) => found.push(id),
                Ok(_) => {}
                Err(error) => self.note_keys(error),
            }
        }
        self.latest_among(found.into_iter())
    }

    /// Returns the latest complete backup of this source among `ids`, which are newest first.
    fn latest_among(&mut self, ids: impl Iterator<Item = String>) -> Option<Archive> {
        let left_out = self.like.left_out;
        let mut alike = ids.filter_map(|id| self.open_alike(id));
        // A backup of some names contains few of the files that another one wants.
        let suits = |archive: &Archive| is_part(left_out) || !is_part(&archive.root.left_out);
        match alike.next() {
            Some(latest) if !suits(&latest) => alike.find(suits).or(Some(latest)),
            latest => latest,
        }
    }

    /// Opens a backup that can be the base; notes why another one cannot.
    fn open_alike(&mut self, id: String) -> Option<Archive> {
        let archive = match Archive::open_backup(self.objects, &id) {
            Ok(archive) => archive,
            Err(error) => {
                let is_damaged = error.kind == ErrorKind::Corrupt;
                self.damage.extend(is_damaged.then(|| error.line()));
                self.note_keys(error);
                return None;
            }
        };
        self.note_name(&archive.root);
        match self.difference(&archive.root) {
            None if self.is_of_other_key(&id) => {}
            None if !self.is_low_enough(&archive.root) => {}
            None => return Some(archive),
            Some(OTHER_SOURCE) => {}
            Some(reason) => {
                self.unlike.get_or_insert(Unlike {
                    backup: id,
                    why: reason,
                });
            }
        }
        None
    }

    /// Returns whether the level of a backup is below that of the new one, if it has one. A backup
    /// without a level is no base of one with a level.
    fn is_low_enough(&self, root: &Root) -> bool {
        is_below(root, self.below_level)
    }

    /// Notes the name of the cluster, if this host can read it.
    fn note_name(&mut self, root: &Root) {
        let is_named = !is_pseudonym(&root.source) && !root.source.paths.is_empty();
        if self.like.cluster.is_some() && is_named && self.is_of_source(root) {
            self.cluster_name.get_or_insert_with(|| root.source.clone());
        }
    }

    /// A damaged root, also one that somebody else has made, is damage and does not end a backup.
    fn note_keys(&mut self, error: Error) {
        if error.kind == ErrorKind::Permission && error.is_of_other_keys() {
            self.sealed_otherwise.get_or_insert(error);
        }
    }

    fn asked_for(&self, base: &str) -> Result<Archive> {
        let id = if base == LATEST {
            self.latest_alike()?
        } else {
            pick(self.objects, Some(base), &BackupFilter::default())?
        };
        let archive = Archive::open_backup(self.objects, &id)?;
        match self.difference(&archive.root) {
            // Whoever names the backup trusts its host.
            None | Some(OTHER_HOST) => Ok(archive),
            Some(reason) => Err(Error::new(
                ErrorKind::Usage,
                format!("cannot take backup {id:?} as the base"),
            )
            .because(reason)),
        }
    }

    /// Returns the id of the latest backup of the same source.
    fn latest_alike(&self) -> Result<String> {
        read_repository(&**self.objects)?;
        let (likely, others) = divide(counted(backup_ids(&**self.objects)?), &self.letters);
        let is_alike =
            |root: &Root| self.is_of_source(root) && self.difference(root) != Some(NOT_READ);
        for ids in [likely, others] {
            let mut alike = listed_roots(self.objects, ids)
                .filter_map(|(id, root)| root.is_ok_and(|root| is_alike(&root)).then_some(id));
            if let Some(id) = alike.next() {
                return Ok(id);
            }
        }
        let message = format!(
            "could not find a backup in {} that could be the base",
            self.objects.describe("")
        );
        Err(Error::new(ErrorKind::NotFound, message).because("it has no backup of this source"))
    }

    fn is_of_source(&self, root: &Root) -> bool {
        !matches!(self.difference(root), Some(OTHER_SOURCE | OTHER_HOST))
    }

    /// Returns whether another key made this backup, which may say any source. A put key reads the lists of its own backups only.
    fn is_of_other_key(&self, id: &str) -> bool {
        let sealed = self.objects.as_sealed();
        sealed.is_some_and(|sealed| sealed.reads() && sealed.is_of_put_key(id))
    }

    /// Returns the reason why a backup cannot be the base of this one.
    fn difference(&self, base: &Root) -> Option<&'static str> {
        if is_pseudonym(&base.source) {
            let is_same = self.pseudonym.as_ref() == Some(&base.source.host);
            return Some(if is_same { NOT_READ } else { OTHER_SOURCE });
        }
        differs(base, self.like)
    }
}

/// Returns whether the path of the cluster is not known.
fn has_no_path(new_backup: &NewBackup<'_>) -> bool {
    let is_empty = |path: &EntryName| path.0.is_empty();
    new_backup.cluster.is_some() && new_backup.origin.paths.iter().all(is_empty)
}

/// Divides ids, oldest first, by the letters of a source. Returns the ids that have them, newest
/// first; and of those with other letters the newest of each source, newest first.
fn divide(ids: Vec<String>, letters: &str) -> (Vec<String>, Vec<String>) {
    let (likely, others): (Vec<String>, Vec<String>) = ids
        .into_iter()
        .rev()
        .partition(|id| source_letters(id) == letters);
    let mut met = HashSet::new();
    (
        likely,
        others
            .into_iter()
            .filter(|id| met.insert(source_letters(id).to_owned()))
            .collect(),
    )
}

/// Returns whether the options choose single names of the source.
pub fn is_part(left_out: &[String]) -> bool {
    left_out
        .iter()
        .any(|option| option.starts_with("--files-from"))
}

/// Returns whether all manifests that the backup refers to exist. An interrupted copy lacks some of
/// them.
fn has_manifests(archive: &Archive) -> bool {
    let mut ids = archive.root.referenced_backups().into_iter().chain([""]);
    ids.all(|id| {
        archive
            .store()
            .len(&ObjectName::Manifest(id.to_owned()))
            .is_ok()
    })
}

const NOT_EVERYWHERE: &str =
    "another destination lacks it, and the key of this host cannot copy it there";
const NOT_READ: &str =
    "the key of this host does not read it, and the host has no copy of its list of files";
pub(crate) const OTHER_SOURCE: &str = "it is of another source";
/// A host that may add backups could claim to have the cluster of another one, whose content would
/// then be taken from it.
pub(crate) const OTHER_HOST: &str = "it is of the same cluster on another host: --host NAME takes the name of that host, --base ID this one backup";

/// Returns whether a backup is of the source of another one, on the same host.
pub fn is_of_source(root: &Root, new_backup: &NewBackup<'_>) -> bool {
    !matches!(differs(root, new_backup), Some(OTHER_SOURCE | OTHER_HOST))
}

/// Returns the reason why a backup cannot be the base of another one.
pub(crate) fn differs(base: &Root, new_backup: &NewBackup<'_>) -> Option<&'static str> {
    let (earlier, now) = (&base.options, new_backup.options);
    let same_source = match (&base.postgres, new_backup.cluster) {
        (Some(earlier), Some(now)) => earlier.system_identifier == now.system_identifier,
        (None, None) => base.source == *new_backup.origin,
        _ => false,
    };
    match () {
        // The strongest reason first: it is the one that is shown.
        () if !same_source => Some(OTHER_SOURCE),
        () if base.source.host != new_backup.origin.host => Some(OTHER_HOST),
        () if earlier.codec != now.codec => Some("it is compressed by another codec"),
        () if earlier.digest != now.digest => Some("its files are digested in another way"),
        () if earlier.block_bytes != now.block_bytes => Some("its blocks have another size"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::root::{ClusterInfo, SourceInfo};

    #[test]
    fn a_cluster_of_another_host_is_no_base() {
        let cluster = ClusterInfo {
            system_identifier: "7".into(),
            ..ClusterInfo::default()
        };
        let origin = |host: &str| SourceInfo {
            host: host.into(),
            ..SourceInfo::default()
        };
        let base = Root {
            source: origin("web1"),
            postgres: Some(cluster.clone()),
            ..Root::default()
        };
        let like = |host: &str| {
            let like = NewBackup {
                origin: &origin(host),
                cluster: Some(&cluster),
                options: &base.options,
                left_out: &[],
                level: None,
            };
            differs(&base, &like)
        };
        assert_eq!(like("db1"), Some(OTHER_HOST));
        assert_eq!(like("web1"), None);
    }

    #[test]
    fn ids_with_the_letters_of_the_source_come_first() {
        let ids = ["00aa11", "01bb11", "02aa22", "03bb22", "04cc11"];
        let id = |letters: &&str| format!("20261121T054501Z-{letters}");
        let (likely, others) = divide(ids.iter().map(id).collect(), "aa");
        assert_eq!(likely, [id(&"02aa22"), id(&"00aa11")]);
        assert_eq!(others, [id(&"04cc11"), id(&"03bb22")]);
    }
}
