//! What the other host may do with a repository of this host, while a backup of its files or a restore to it runs there.
//!
//! This host has opened the repository with its own keys, and the other one may have been taken over. So it gets the rights that the
//! command asks for, by types that have no other operations. Objects that it may not read are absent for it.

use super::{
    Allowed, AppendRules, Confined, Leased, ListedObject, LocalObjects, Objects, Put, PutIf,
    SealedObjects, StorageAbilities, Take, Upload, Version, whole_root,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    key_kind::KeyKind,
    layout::{BACKUPS, INTENTS, MANIFEST, PARTIAL, REPOSITORY, ROOT, TOMBSTONES, is_backup_id},
    root::{Root, is_void},
    seal::seal,
};
use fullbore_platform::queue::{Locked, run_each};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Roots that are read at the same time.
const READS: usize = 16;

/// Returns the backup that a key belongs to, and the rest of the key; of an intent the rest is empty.
fn backup_of(key: &str) -> Option<(&str, &str)> {
    let (room, rest) = key.split_once('/')?;
    let (id, name) = match room {
        BACKUPS | TOMBSTONES => rest.split_once('/').unwrap_or((rest, "")),
        INTENTS => (rest.strip_suffix(".json")?, ""),
        _ => return None,
    };
    is_backup_id(id).then_some((id, name))
}

fn refused(inner: &dyn Objects, verb: &str, key: &str, why: &str) -> Error {
    let message = format!("cannot {verb} {}", inner.describe(key));
    Error::new(ErrorKind::Permission, message).because(why.to_owned())
}

/// Gets an object; a root with the lists that it shares with another backup, of which the other host may not read anything.
fn get_whole(inner: &dyn Objects, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
    let found = inner.get(key)?;
    let Some((id, ROOT | PARTIAL)) = backup_of(key) else {
        return Ok(found);
    };
    let Some((bytes, version)) = found else {
        return Ok(None);
    };
    let name = format!("the root of backup {id:?}");
    let whole = match Root::open_as_stored(&bytes, &name) {
        Ok(root) if root.is_short() => seal(&whole_root(inner, root, &name)?)?,
        // The other host reports what is damaged.
        _ => bytes,
    };
    Ok(Some((whole, version)))
}

fn absent(inner: &dyn Objects, key: &str) -> Error {
    let message = format!("could not read {}", inner.describe(key));
    Error::new(ErrorKind::NotFound, message).because("it is not there")
}

/// The rights of a host whose files are backed up: to add one backup in its own name, and to read what this backup is compared with,
/// which are the roots and manifests of earlier backups of the same host.
#[derive(Debug)]
pub struct FarBackup {
    inner: Arc<dyn Objects>,
    adding: Confined,
    host: String,
    /// The backup that was announced.
    announced: Mutex<Option<String>>,
    /// Earlier backups of the same host.
    bases: OnceLock<BTreeSet<String>>,
    has_root: AtomicBool,
}

const ADDS_ONE: &str = "this host may add one backup of its own";

impl FarBackup {
    /// Returns the rights of a backup of `host` into a repository that this host has opened.
    pub fn new(inner: Arc<dyn Objects>, host: &str) -> Self {
        let rules = AppendRules {
            host: Some(host.to_owned()),
            is_opened: true,
            ..AppendRules::default()
        };
        Self {
            adding: Confined::new(inner.clone(), Allowed::Append, &rules),
            inner,
            host: host.to_owned(),
            announced: Mutex::default(),
            bases: OnceLock::new(),
            has_root: AtomicBool::new(false),
        }
    }

    /// Returns whether the root of the backup was stored: only then there is a backup, whatever the other host says.
    pub fn has_root(&self) -> bool {
        self.has_root.load(Relaxed)
    }

    fn is_announced(&self, id: &str) -> bool {
        self.announced.locked().as_deref() == Some(id)
    }

    /// Returns earlier backups of the same host. Reads the roots of all backups, once.
    fn bases(&self) -> Result<&BTreeSet<String>> {
        if let Some(bases) = self.bases.get() {
            return Ok(bases);
        }
        let listed = self.inner.list(BACKUPS)?;
        let roots = listed.iter().filter_map(|object| {
            let (id, name) = backup_of(&object.key)?;
            [ROOT, PARTIAL]
                .contains(&name)
                .then_some((id, &*object.key))
        });
        let roots: Vec<(&str, &str)> = roots.collect();
        let mut bases = BTreeSet::new();
        for some in roots.chunks(READS) {
            let of_host = run_each(some, |(id, key)| self.is_of_host(id, key));
            let ids = some.iter().zip(of_host);
            // A root that cannot be read is no base: then more is stored, and no content of another host is shown.
            bases.extend(ids.filter_map(|((id, _), is_of_host)| {
                matches!(is_of_host, Ok(true)).then(|| (*id).to_owned())
            }));
        }
        Ok(self.bases.get_or_init(|| bases))
    }

    /// Returns whether a backup is of the same host. A root that cannot be read is that of another host.
    fn is_of_host(&self, id: &str, key: &str) -> Result<bool> {
        let Some((bytes, _)) = self.inner.get(key)? else {
            return Ok(false);
        };
        let root = Root::of_backup_as_stored(id, &bytes, &self.inner.describe(key))?;
        Ok(root.source.host == self.host)
    }

    /// Returns whether the other host may know that the object is there.
    fn is_listed(&self, key: &str) -> Result<bool> {
        match backup_of(key) {
            Some((id, _)) => Ok(self.is_announced(id) || self.bases()?.contains(id)),
            None => Ok(key == REPOSITORY),
        }
    }

    /// Returns whether the other host may read the object. Content of earlier backups is of no use for a new one.
    fn is_readable(&self, key: &str) -> Result<bool> {
        let is_content = |(id, name): (&str, &str)| {
            let is_intent = matches!(KeyKind::of(key), KeyKind::Intent(_));
            let is_facts = is_intent || [ROOT, PARTIAL, MANIFEST].contains(&name);
            !is_facts && !self.is_announced(id)
        };
        Ok(self.is_listed(key)? && !backup_of(key).is_some_and(is_content))
    }

    /// Refuses an object that the other host may not add.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] unless the object is one of the announced backup, or makes a new repository.
    fn check_own(&self, verb: &str, key: &str) -> Result<()> {
        let is_own = match backup_of(key) {
            Some((id, _)) => {
                self.is_announced(id) && !matches!(KeyKind::of(key), KeyKind::Tombstone(_))
            }
            None => matches!(KeyKind::of(key), KeyKind::Repository | KeyKind::Probe(_)),
        };
        if is_own {
            return Ok(());
        }
        Err(refused(&*self.inner, verb, key, ADDS_ONE))
    }

    fn note_root(&self, key: &str, bytes: &[u8], put: &Put) {
        let is_root = backup_of(key).is_some_and(|(_, name)| name == ROOT);
        if is_root && matches!(put, Put::Done(_)) && !is_void(bytes) {
            self.has_root.store(true, Relaxed);
        }
    }
}

impl Objects for FarBackup {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        let mut listed = self.inner.list(prefix)?;
        // Before, so that a failure to read a root is none of a listing.
        self.bases()?;
        listed.retain(|object| self.is_listed(&object.key).unwrap_or(false));
        Ok(listed)
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        match self.is_readable(key)? {
            true => self.inner.read_at(key, offset, len, out),
            false => Err(absent(&*self.inner, key)),
        }
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        match self.is_readable(key)? {
            true => get_whole(&*self.inner, key),
            false => Ok(None),
        }
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        match self.is_listed(key)? {
            true => self.inner.stat(key),
            false => Ok(None),
        }
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        self.check_own("write", key)?;
        let put = self.adding.put(key, bytes, condition)?;
        self.note_root(key, bytes, &put);
        Ok(put)
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        self.check_own("write", key)?;
        self.adding.create(key)
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let checked = keys.iter().map(|key| self.check_own("delete", key));
        checked.collect::<Result<()>>()?;
        self.adding.delete(keys)
    }

    /// Frees uploads of this backup only: those of others stay.
    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        match self.check_own("free", prefix) {
            Ok(()) => self.adding.abort_uploads(prefix),
            Err(_) => Ok(()),
        }
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        self.inner.settle(prefix)
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        let Some(id) = KeyKind::of(key).announced() else {
            return Err(refused(&*self.inner, "take the lease on", key, ADDS_ONE));
        };
        if take != Take::New {
            return match self.is_listed(key)? {
                true => self.adding.lease(key, body, take),
                false => Ok(Leased::Held),
            };
        }
        // Locked until the lease is taken: of two calls at the same time one begins a backup.
        let mut announced = self.announced.locked();
        if announced.is_some() {
            return Err(refused(
                &*self.inner,
                "begin another backup in",
                "",
                ADDS_ONE,
            ));
        }
        let leased = self.adding.lease(key, body, take)?;
        if matches!(leased, Leased::Ours(_)) {
            *announced = Some(id.to_owned());
        }
        Ok(leased)
    }

    fn abilities(&self) -> StorageAbilities {
        self.inner.abilities()
    }

    fn answers_late(&self) -> bool {
        self.inner.answers_late()
    }

    fn describe(&self, key: &str) -> String {
        self.inner.describe(key)
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        None
    }

    fn as_sealed(&self) -> Option<&SealedObjects> {
        None
    }
}

/// The rights of a host to which one backup is restored: to read that backup, and the content of others that it refers to.
#[derive(Debug)]
pub struct FarRestore {
    inner: Arc<dyn Objects>,
    id: String,
    /// Backups that the chosen one refers to.
    others: BTreeSet<String>,
}

const READS_ONE: &str = "this host may read one backup";

impl FarRestore {
    /// Returns the rights of a restore of the backup with this root, from a repository that this host has opened.
    pub fn new(inner: Arc<dyn Objects>, root: &Root) -> Self {
        let others = root.referenced_backups().into_iter().map(str::to_owned);
        Self {
            inner,
            id: root.id.clone(),
            others: others.collect(),
        }
    }

    fn is_readable(&self, key: &str) -> bool {
        let Some((id, name)) = backup_of(key) else {
            return key == REPOSITORY;
        };
        let is_referenced = || self.others.contains(id) && ![ROOT, PARTIAL].contains(&name);
        key.starts_with(BACKUPS) && (id == self.id || is_referenced())
    }

    fn refused<T>(&self, verb: &str, key: &str) -> Result<T> {
        Err(refused(&*self.inner, verb, key, READS_ONE))
    }
}

impl Objects for FarRestore {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        let mut listed = self.inner.list(prefix)?;
        listed.retain(|object| self.is_readable(&object.key));
        Ok(listed)
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        match self.is_readable(key) {
            true => self.inner.read_at(key, offset, len, out),
            false => Err(absent(&*self.inner, key)),
        }
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        if !self.is_readable(key) {
            return Ok(None);
        }
        get_whole(&*self.inner, key)
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        match self.is_readable(key) {
            true => self.inner.stat(key),
            false => Ok(None),
        }
    }

    fn put(&self, key: &str, _: &[u8], _: &PutIf) -> Result<Put> {
        self.refused("write", key)
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        self.refused("write", key)
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        self.refused("delete", keys.first().map_or("", |key| key))
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        self.refused("free", prefix)
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        self.inner.settle(prefix)
    }

    fn lease(&self, key: &str, _: &[u8], _: Take) -> Result<Leased> {
        self.refused("take the lease on", key)
    }

    fn abilities(&self) -> StorageAbilities {
        self.inner.abilities()
    }

    fn answers_late(&self) -> bool {
        self.inner.answers_late()
    }

    fn describe(&self, key: &str) -> String {
        self.inner.describe(key)
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        None
    }

    fn as_sealed(&self) -> Option<&SealedObjects> {
        None
    }
}
