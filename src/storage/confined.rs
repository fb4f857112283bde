//! A wrapper that limits what a host may do to a repository that it reaches over a connection.
//!
//! [`Allowed::Append`] is for hosts that back themselves up: they add backups, and whoever takes over such a host can neither delete
//! nor replace the backups that are there. They read everything, as incremental backups need: encrypt what other hosts must not read.

use super::{
    KEYS, Lease, Leased, ListedObject, LocalObjects, Objects, Put, PutIf, SealedObjects,
    StorageAbilities, Take, Upload, Version,
    key::{check_key, is_below, split_key},
};
use crate::{
    error::{Error, ErrorKind, Result},
    format::layout::{BACKUPS, INTENTS, REPOSITORY, is_backup_id},
    queue::Locked,
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

/// What may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// Objects may be read.
    Read,
    /// Backups may be added, too. What this wrapper added may be replaced and deleted through it.
    Append,
    /// Everything may be done.
    Write,
}

/// Objects that some things may be done with.
#[derive(Debug, Clone)]
pub struct Confined {
    inner: Arc<dyn Objects>,
    allowed: Allowed,
    added: Arc<Mutex<Added>>,
}

/// What was added through a wrapper.
#[derive(Debug, Default)]
struct Added {
    /// Backups that were announced here: everything of them was made here.
    backups: BTreeSet<String>,
    /// Other objects.
    keys: BTreeSet<String>,
}

impl Added {
    fn has(&self, key: &str) -> bool {
        self.keys.contains(key) || backup_of(key).is_some_and(|id| self.backups.contains(id))
    }
}

/// The backup that an object is of, or the intent of.
fn backup_of(key: &str) -> Option<&str> {
    let (room, rest) = key.split_once('/')?;
    let id = match room {
        BACKUPS => rest.split('/').next()?,
        INTENTS => rest.strip_suffix(".json")?,
        _ => return None,
    };
    is_backup_id(id).then_some(id)
}

impl Confined {
    /// Allows this with the objects inside.
    pub fn new(inner: Arc<dyn Objects>, allowed: Allowed) -> Self {
        Self {
            inner,
            allowed,
            added: Arc::default(),
        }
    }

    fn refused(&self, verb: &str, key: &str) -> Error {
        let what = format!("cannot {verb} {}", self.inner.describe(key));
        let why = match self.allowed {
            Allowed::Read => "this host may only read there",
            _ => "this host may only add backups there",
        };
        Error::new(ErrorKind::Permission, what).because(why)
    }

    /// # Errors
    /// [`ErrorKind::Permission`] unless the object may be replaced or deleted.
    fn check_change(&self, verb: &str, key: &str) -> Result<()> {
        check_key(key)?;
        let may = match self.allowed {
            Allowed::Read => false,
            Allowed::Append => self.added.locked().has(key),
            Allowed::Write => true,
        };
        if may {
            Ok(())
        } else {
            Err(self.refused(verb, key))
        }
    }

    /// May an object be made that is absent, and does not belong to a backup of this host? A repository and its first keys may, and what
    /// finds out whether the storage has conditions.
    fn may_add(&self, key: &str) -> Result<bool> {
        if self.allowed != Allowed::Append {
            return Ok(false);
        }
        let is_probe = key.starts_with("probe-") && !key.contains('/');
        let is_first_key = is_below(key, KEYS);
        Ok(key == REPOSITORY || is_probe || is_first_key && self.inner.stat(REPOSITORY)?.is_none())
    }

    /// Takes the lease on the intent of a new backup, of which nothing may be there.
    fn announce(&self, id: &str, key: &str, body: &[u8]) -> Result<Leased> {
        if !self.inner.list(&format!("{BACKUPS}/{id}"))?.is_empty() {
            return Ok(Leased::Held);
        }
        let leased = self.inner.lease(key, body, Take::New)?;
        if matches!(leased, Leased::Ours(_)) {
            self.added.locked().backups.insert(id.to_owned());
        }
        Ok(leased)
    }
}

impl Objects for Confined {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        self.inner.list(prefix)
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.inner.read_at(key, offset, len, out)
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        self.inner.get(key)
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        self.inner.stat(key)
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        let may_change = self.check_change("write", key);
        if may_change.is_err() {
            if *condition != PutIf::Absent || !self.may_add(key)? {
                return may_change.map(|()| Put::Refused);
            }
            let put = self.inner.put(key, bytes, condition)?;
            if matches!(put, Put::Done(_)) {
                self.added.locked().keys.insert(key.to_owned());
            }
            return Ok(put);
        }
        self.inner.put(key, bytes, condition)
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        self.check_change("write", key)?;
        self.inner.create(key)
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let may = |key: &&String| self.check_change("delete", key).is_ok();
        let mine: Vec<String> = keys.iter().filter(may).cloned().collect();
        let refused = keys
            .iter()
            .try_for_each(|key| self.check_change("delete", key));
        refused.and(self.inner.delete(&mine))
    }

    /// Leaves uploads of others where the storage cannot tell the living from the dead.
    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        let is_own = self.check_change("free", prefix).is_ok();
        match self.allowed {
            Allowed::Read => Err(self.refused("free unfinished objects of", prefix)),
            Allowed::Append if !is_own && !self.inner.abilities().has_locks => Ok(()),
            _ => self.inner.abort_uploads(prefix),
        }
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        self.inner.settle(prefix)
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        check_key(key)?;
        if self.allowed == Allowed::Write {
            return self.inner.lease(key, body, take);
        }
        let id = backup_of(key).filter(|_| split_key(key).0 == INTENTS);
        match (self.allowed, take, id) {
            (Allowed::Append, Take::New, Some(id)) => self.announce(id, key, body),
            // By it an incremental backup knows that another one is dead. The intent stays as it is.
            (Allowed::Append, Take::Dead, Some(_)) => {
                let leased = self.inner.lease(key, body, take)?;
                let Leased::Ours(inner) = leased else {
                    return Ok(leased);
                };
                let refused = self.check_change("write", key).err().map(|e| e.line());
                Ok(Leased::Ours(Box::new(ConfinedLease { inner, refused })))
            }
            _ => Err(self.refused("take the lease on", key)),
        }
    }

    fn abilities(&self) -> StorageAbilities {
        self.inner.abilities()
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

/// A lease on the intent of another host.
#[derive(Debug)]
struct ConfinedLease {
    inner: Box<dyn Lease>,
    /// Why the intent must stay as it is.
    refused: Option<String>,
}

impl Lease for ConfinedLease {
    fn update(&mut self, body: &[u8]) -> Result<()> {
        match &self.refused {
            Some(why) => Err(Error::new(ErrorKind::Permission, why.clone())),
            None => self.inner.update(body),
        }
    }

    fn is_ours(&self) -> bool {
        self.inner.is_ours()
    }
}
