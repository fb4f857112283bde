//! A wrapper that limits what a host may do to a repository that it reaches over a connection.
//!
//! [`Allowed::Append`] is for hosts that back themselves up: they add backups, and whoever takes over such a host can neither delete
//! nor replace the backups that are there, nor add some in the name of another host. They read everything, as incremental backups
//! need: encrypt what other hosts must not read.

use super::{
    Leased, ListedObject, LocalObjects, Objects, Put, PutIf, SealedObjects, StorageAbilities, Take,
    Upload, Version,
    append::{AppendRules, AppendSession},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_wire::key::check_key;
use std::sync::Arc;

/// What may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// Objects may be read.
    Read,
    /// Backups may be added, too, see [`AppendRules`].
    Append,
    /// Everything may be done.
    Write,
}

/// Objects that some things may be done with.
#[derive(Debug, Clone)]
pub struct Confined {
    inner: Arc<dyn Objects>,
    rights: Rights,
}

/// What may be done, and what was done.
#[derive(Debug, Clone)]
enum Rights {
    Read,
    Append(Arc<AppendSession>),
    Write,
}

impl Confined {
    /// Allows this with the objects inside. The rules are for [`Allowed::Append`].
    pub fn new(inner: Arc<dyn Objects>, allowed: Allowed, rules: &AppendRules) -> Self {
        let rights = match allowed {
            Allowed::Read => Rights::Read,
            Allowed::Append => Rights::Append(AppendSession::new(inner.clone(), rules.clone())),
            Allowed::Write => Rights::Write,
        };
        Self { inner, rights }
    }

    fn refused(&self, verb: &str, key: &str) -> Error {
        let message = format!("cannot {verb} {}", self.inner.describe(key));
        Error::new(ErrorKind::Permission, message).because("this host may only read there")
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
        check_key(key)?;
        match &self.rights {
            Rights::Read => Err(self.refused("write", key)),
            Rights::Append(session) => session.put(key, bytes, condition),
            Rights::Write => self.inner.put(key, bytes, condition),
        }
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        check_key(key)?;
        match &self.rights {
            Rights::Read => Err(self.refused("write", key)),
            Rights::Append(session) => session.create(key),
            Rights::Write => self.inner.create(key),
        }
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        match &self.rights {
            Rights::Read => {
                let first = keys.first().map_or("", |key| key);
                Err(self.refused("delete", first))
            }
            Rights::Append(session) => session.delete(keys),
            Rights::Write => self.inner.delete(keys),
        }
    }

    /// Leaves uploads of others where the storage cannot tell the living from the dead.
    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        match &self.rights {
            Rights::Read => Err(self.refused("free unfinished objects of", prefix)),
            Rights::Append(session)
                if !session.has_announced(prefix) && !self.inner.abilities().has_locks =>
            {
                Ok(())
            }
            _ => self.inner.abort_uploads(prefix),
        }
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        self.inner.settle(prefix)
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        check_key(key)?;
        match &self.rights {
            Rights::Read => Err(self.refused("take the lease on", key)),
            Rights::Append(session) => session.lease(key, body, take),
            Rights::Write => self.inner.lease(key, body, take),
        }
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
