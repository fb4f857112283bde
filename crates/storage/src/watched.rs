//! A wrapper for the repository of a location: compares it with what this host remembers of it, and never takes an encrypted one for a
//! clear one.
//!
//! It asks the storage for nothing by itself, with one exception: it learns of the id of the repository as the command reads it. The
//! exception is an encrypted repository that this host does not know yet: two of its roots are read before it is remembered.

use super::{
    Leased, ListedObject, LocalObjects, Objects, Put, PutIf, SealedObjects, StorageAbilities, Take,
    Upload, Version,
    remembered::{AcceptedRepositories, Acquaintance, LocationMemory, MetKeys},
};
use fullbore_crypt::is_sealed;
use fullbore_format::{
    error::{Error, ErrorKind, OtherKeys, Result},
    key_kind::KeyKind,
    layout::{BACKUPS, REPOSITORY, ROOT, Repository},
    seal::open_sealed,
};
use fullbore_platform::queue::Locked;
use std::sync::{Arc, Mutex};

/// The member of a root that has its sealed part.
const SEALED_MEMBER: &[u8] = b"\n\"sealed\": {";

/// The objects of a repository at a location.
#[derive(Debug)]
pub(super) struct WatchedObjects {
    inner: Arc<dyn Objects>,
    watch: Mutex<Watch>,
}

#[derive(Debug)]
struct Watch {
    memory: LocationMemory,
    accepts: AcceptedRepositories,
    /// Are its keys known, or named by the user?
    has_known_keys: bool,
    met: Option<Acquaintance>,
    /// Its id.
    id: String,
}

impl WatchedObjects {
    /// Watches objects. `accepts` a repository that is not known, if its user has said so; `has_known_keys` as
    /// [`LocationMemory::check_keys`] returns it.
    pub(super) fn new(
        inner: Arc<dyn Objects>,
        memory: LocationMemory,
        accepts: AcceptedRepositories,
        has_known_keys: bool,
    ) -> Self {
        Self {
            inner,
            watch: Mutex::new(Watch {
                memory,
                accepts,
                has_known_keys,
                met: None,
                id: String::new(),
            }),
        }
    }

    fn is_clear(&self) -> bool {
        self.inner.as_sealed().is_none()
    }

    fn keys(&self) -> MetKeys<'_> {
        match self.inner.as_sealed() {
            None => MetKeys::Clear,
            Some(sealed) => sealed
                .ring()
                .map_or(MetKeys::Locked, |ring| MetKeys::Opened(ring)),
        }
    }

    /// Compares the repository with the memory. What is damaged is left to whoever reads it.
    fn meet(&self, repository: &[u8]) -> Result<()> {
        let Ok(repository) = open_sealed::<Repository>(repository, "") else {
            return Ok(());
        };
        if self.has_met(&repository.id) {
            return Ok(());
        }
        if self.is_of_unknown_keys() {
            self.check_old_roots()?;
        }
        let mut watch = self.watch.locked();
        let accepts = watch.accepts;
        let name = self.describe("");
        let met = watch
            .memory
            .meet(&repository.id, self.keys(), accepts, &name)?;
        watch.met = Some(met);
        watch.id = repository.id;
        Ok(())
    }

    fn has_met(&self, id: &str) -> bool {
        let watch = self.watch.locked();
        watch.met.is_some() && watch.id == id
    }

    fn is_of_unknown_keys(&self) -> bool {
        let watch = self.watch.locked();
        let is_known = watch.accepts.is_made || watch.has_known_keys;
        !is_known && matches!(self.keys(), MetKeys::Opened(_))
    }

    /// Refuses to begin a backup in a repository that is not the one of yesterday.
    fn check_acquaintance(&self) -> Result<()> {
        if self.watch.locked().met.is_none() {
            self.get(REPOSITORY)?;
        }
        let watch = self.watch.locked();
        if watch.met != Some(Acquaintance::Stranger) {
            return Ok(());
        }
        let name = self.describe("");
        let message =
            format!("cannot write to {name}: it is not the repository that this host knows there");
        let known = watch.memory.known_ids();
        Err(Error::new(ErrorKind::Permission, message)
            .because(format!("it is repository {:?}, and {known} was there before", watch.id))
            .hint("is it the right disk, or the right address? if this repository is meant too, run `fullbore init` for it, which changes nothing in it"))
    }

    /// Opens the oldest and the newest root: keys that a storage has put in place open none that was there before.
    fn check_old_roots(&self) -> Result<()> {
        let listed = self.inner.list(BACKUPS)?;
        let is_root = |key: &str| key.strip_suffix(ROOT).is_some_and(|dir| dir.ends_with('/'));
        let mut roots = listed
            .iter()
            .map(|object| &object.key[..])
            .filter(|key| is_root(key));
        for key in [roots.next(), roots.next_back()].into_iter().flatten() {
            match self.inner.get(key) {
                Err(error) if error.is_of_other_keys() => {
                    return Err(error.hint(
                        "the storage may have put keys of its own in place: compare the fingerprint that `fullbore key list` prints with \
                         that on another host, and run the command again with --expect-keys FINGERPRINT",
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses bytes that a key has sealed, if they are read as clear ones.
    fn check_clear(&self, key: &str, is_from_start: bool, bytes: &[u8]) -> Result<()> {
        if !self.is_clear() {
            return Ok(());
        }
        let is_root = is_root_document(key) && has_sealed_member(bytes);
        if is_root || is_from_start && is_sealed(bytes) {
            let why =
                "it is encrypted, and the repository has no keys: keys/current.json is missing";
            return Err(Error::new(ErrorKind::Permission, format!("cannot read {}", self.describe(key)))
                .because(OtherKeys(why.to_owned()))
                .hint("if the keys were lost, write them anew with a copy of the repository's key: fullbore key restore REPO --key SAVED"));
        }
        Ok(())
    }
}

fn is_root_document(key: &str) -> bool {
    matches!(KeyKind::of(key), KeyKind::Backup(_, part) if part.is_root())
}

fn has_sealed_member(root: &[u8]) -> bool {
    let mut rest = root;
    // A line feed in a text is written as two characters.
    while let Some(index) = rest.iter().position(|byte| *byte == b'\n') {
        rest = &rest[index..];
        if rest.starts_with(SEALED_MEMBER) {
            return true;
        }
        rest = &rest[1..];
    }
    false
}

impl Objects for WatchedObjects {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        self.inner.list(prefix)
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.inner.read_at(key, offset, len, out)?;
        self.check_clear(key, offset == 0, out)
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        let got = self.inner.get(key)?;
        if let Some((bytes, _)) = &got {
            match key {
                REPOSITORY => self.meet(bytes)?,
                _ => self.check_clear(key, KeyKind::of(key).is_sealed(), bytes)?,
            }
        }
        Ok(got)
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        self.inner.stat(key)
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        if key == REPOSITORY {
            let mut watch = self.watch.locked();
            if !watch.accepts.others && *condition == PutIf::Absent {
                watch.memory.check_new(&self.describe(""))?;
            }
            // What this command makes is right.
            watch.accepts = AcceptedRepositories {
                others: true,
                clear: true,
                is_made: true,
            };
        }
        self.inner.put(key, bytes, condition)
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        self.inner.create(key)
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        self.inner.delete(keys)
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        self.inner.abort_uploads(prefix)
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        self.inner.settle(prefix)
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        if take == Take::New && matches!(KeyKind::of(key), KeyKind::Intent(_)) {
            self.check_acquaintance()?;
        }
        self.inner.lease(key, body, take)
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
        self.inner.as_local()
    }

    fn as_sealed(&self) -> Option<&SealedObjects> {
        self.inner.as_sealed()
    }
}
