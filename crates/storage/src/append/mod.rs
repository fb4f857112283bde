//! What a host may add to a repository that it reaches over a connection.
//!
//! A session announces backups and adds their objects. Until the root of a backup is stored, its objects may be
//! replaced and deleted; from then on only its intent and its partial root may be. A root is checked by
//! [`RootGate`] before it is stored. A piece of an unfinished WAL segment may be deleted by the session that added
//! it. Every other object of a repository stays as it is, and no object has a name that the commands for maintenance
//! do not know.

mod intents;
mod lease;
mod ledger;
mod rules;
mod upload;
mod wal;

pub use rules::{AppendRules, check_host_name};

use super::{Leased, Objects, Put, PutIf, Take, Upload, generation::is_encrypted, whole_root};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    key_kind::{BackupPart, KeyKind, MayAdd, max_document_bytes},
    layout::{BACKUPS, REPOSITORY, Repository, UNPROVEN, is_of_future},
    root::{FREE_ROOT_BYTES, ListsName, Root, RootGate, RootOwner, is_void, root_limit},
    seal::open_sealed,
};
use fullbore_platform::{debug, queue::Locked};
use jiff::Timestamp;
use lease::{AnnouncedLease, DeadLease};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError, RwLock},
};
use upload::AddedUpload;

/// Bytes of an object by which a storage is tried.
const PROBE_BYTES: usize = 64;

/// Bytes of a key file of a new repository.
const KEY_FILE_BYTES: usize = 64 << 10;

/// Objects other than those of backups that a session adds: key files and probes.
const MAX_OTHERS: usize = 64;

/// Bytes that are added before the use of the host is counted again.
const LOOK_BYTES: u64 = 256 << 20;

/// A backup that was announced in this session.
#[derive(Debug, Clone, Default)]
struct AnnouncedBackup {
    /// Is the repository encrypted?
    is_sealed: bool,
    /// Its root is stored, or may be: nothing of it may be changed.
    is_committed: bool,
    /// Backups that its root may refer to: those that its intent names, and those that they refer to.
    may_refer_to: BTreeSet<String>,
    /// Bytes of the largest root of those.
    base_root_bytes: u64,
    /// The pages of lists of those that its intent names.
    base_lists: Vec<ListsName>,
}

impl AnnouncedBackup {
    /// Refuses a root that refers to a backup which the intent did not name: a prune may remove what it needs.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`].
    fn check_references(&self, root: &Root) -> Result<()> {
        let is_foreign = |other: &&str| !self.may_refer_to.contains(*other);
        let Some(other) = root.referenced_backups().into_iter().find(is_foreign) else {
            return Ok(());
        };
        let message = format!("cannot store the root of backup {:?}", root.id);
        let why = format!("it refers to backup {other:?}, which its intent did not name");
        Err(Error::new(ErrorKind::Permission, message).because(why))
    }
}

/// Bytes that are about to be added.
#[derive(Debug, Clone, Copy)]
enum AddedBytes {
    /// Those of a whole object.
    Object(u64),
    /// Some of an upload that is not finished.
    Upload(u64),
}

/// What was added in a session.
#[derive(Debug, Default)]
struct AddedObjects {
    backups: BTreeMap<String, AnnouncedBackup>,
    /// Key files of a new repository, and probes.
    others: BTreeSet<String>,
    /// Bytes that the host used when it was counted last.
    used: u64,
    /// Bytes that were added since.
    since: u64,
    /// Bytes of uploads that are not finished.
    open: u64,
    /// Systems of which this host may add WAL.
    systems: BTreeSet<String>,
    /// Pieces of unfinished segments, which it may delete.
    pieces: BTreeSet<String>,
}

/// What one session has added, and may add.
#[derive(Debug)]
pub(super) struct AppendSession {
    inner: Arc<dyn Objects>,
    rules: AppendRules,
    added: Mutex<AddedObjects>,
    /// Held shared while objects of a backup are changed, and alone while a root is stored: no change that began
    /// before a commit ends after it.
    commits: RwLock<()>,
}

impl AppendSession {
    pub(super) fn new(inner: Arc<dyn Objects>, rules: AppendRules) -> Arc<Self> {
        Arc::new(Self {
            inner,
            rules,
            added: Mutex::default(),
            commits: RwLock::default(),
        })
    }

    fn refused(&self, verb: &str, key: &str) -> Error {
        let message = format!("cannot {verb} {}", self.inner.describe(key));
        Error::new(ErrorKind::Permission, message).because("this host may only add backups there")
    }

    /// Refuses an object of a backup that this session does not make.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] unless this session announced the backup and has not stored its root.
    fn check_open(&self, verb: &str, key: &str, id: &str) -> Result<()> {
        match self.added.locked().backups.get(id) {
            Some(backup) if !backup.is_committed => Ok(()),
            Some(_) => {
                let message = format!("cannot {verb} {}", self.inner.describe(key));
                Err(Error::new(ErrorKind::Permission, message)
                    .because("the backup is complete, and this host may only add backups there"))
            }
            None => Err(self.refused(verb, key)),
        }
    }

    /// Returns whether this session has announced the backup that the prefix is of.
    pub(super) fn has_announced(&self, prefix: &str) -> bool {
        self.is_announced(prefix.split('/').nth(1).unwrap_or_default())
    }

    fn is_announced(&self, id: &str) -> bool {
        self.added.locked().backups.contains_key(id)
    }

    pub(super) fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        match KeyKind::of(key).may_be_added() {
            MayAdd::OfBackup(id, BackupPart::Root) => self.put_root(key, id, bytes, condition),
            MayAdd::OfBackup(id, part) => {
                // The root must not be committed between the check and the put.
                let _no_commit = self.commits.read().unwrap_or_else(PoisonError::into_inner);
                self.check_open("write", key, id)?;
                if part == BackupPart::Partial {
                    self.check_root(id, bytes)?;
                }
                self.charge(AddedBytes::Object(bytes.len() as u64))?;
                self.inner.put(key, bytes, condition)
            }
            MayAdd::OfSystem(system) => self.put_wal(key, system, bytes, condition),
            MayAdd::Once => self.put_other(key, bytes, condition),
            MayAdd::Never => Err(self.refused("write", key)),
        }
    }

    /// Stores the root, or the document that says that there will be none.
    fn put_root(&self, key: &str, id: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        let _alone = self.commits.write().unwrap_or_else(PoisonError::into_inner);
        self.check_open("write", key, id)?;
        if *condition != PutIf::Absent {
            return Err(self.refused("replace", key));
        }
        if is_void(bytes) {
            return self.inner.put(key, bytes, condition);
        }
        self.check_root(id, bytes)?;
        self.charge(AddedBytes::Object(bytes.len() as u64))?;
        // Whoever finds the root finds the mark.
        let mark = format!("{BACKUPS}/{id}/{UNPROVEN}");
        self.inner.put(&mark, b"", &PutIf::Always)?;
        let put = self.inner.put(key, bytes, condition);
        // After an error the root may be there.
        let is_absent = put.is_err() && matches!(self.inner.stat(key), Ok(None));
        if let Some(backup) = self.added.locked().backups.get_mut(id) {
            backup.is_committed = !is_absent;
        }
        put
    }

    /// Refuses a root that this session may not store.
    ///
    /// # Errors
    /// As [`RootGate::check`]; [`ErrorKind::Permission`] if it refers to a backup that its intent did not name.
    fn check_root(&self, id: &str, bytes: &[u8]) -> Result<()> {
        let backup = self.added.locked().backups.get(id).cloned();
        let backup = backup.unwrap_or_default();
        let gate = RootGate {
            id,
            owner: self.owner(backup.is_sealed)?,
            max_bytes: self.max_root_bytes(id, bytes.len() as u64, backup.base_root_bytes)?,
        };
        let root = gate.check(bytes)?;
        backup.check_references(&root)?;
        self.check_lists(root, &backup)
    }

    /// Refuses lists of another backup that no base has: they could be those of another host. What a base has was checked when its root was
    /// stored.
    fn check_lists(&self, root: Root, backup: &AnnouncedBackup) -> Result<()> {
        let has_own = root.lists_of == root.id && !root.is_short();
        if root.lists_of.is_empty() || has_own {
            return Ok(());
        }
        let name = format!("the root of backup {:?}", root.id);
        let message = format!("cannot store {name}");
        if !backup
            .base_lists
            .iter()
            .any(|lists| *lists == root.lists_name())
        {
            let why = format!(
                "it shares lists of backup {:?} that no base of it has",
                root.lists_of
            );
            return Err(Error::new(ErrorKind::Permission, message).because(why));
        }
        let whole = whole_root(&*self.inner, root, &name)?;
        backup.check_references(&whole)
    }

    /// Returns the bytes that a root may have. Most roots have less than every root may have, and need no listing.
    fn max_root_bytes(&self, id: &str, bytes: u64, base_root_bytes: u64) -> Result<u64> {
        if bytes <= FREE_ROOT_BYTES {
            return Ok(FREE_ROOT_BYTES);
        }
        let listed = self.inner.list(&format!("{BACKUPS}/{id}"))?;
        let stored = listed.iter().map(|object| object.bytes).sum();
        Ok(root_limit(stored, base_root_bytes))
    }

    /// Returns the owner that the roots of this session must have.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if that is not known.
    fn owner(&self, is_sealed: bool) -> Result<RootOwner<'_>> {
        match &self.rules.host {
            _ if is_sealed => Ok(RootOwner::Sealed),
            Some(host) => Ok(RootOwner::Host(host)),
            None => {
                let message = format!("cannot add a backup to {}", self.inner.describe(""));
                Err(Error::new(ErrorKind::Permission, message)
                    .because("the server does not know which host this is")
                    .hint("on the server: `serve --stdio --allow append:LOCATION --host NAME`; a server that listens takes the name of the certificate"))
            }
        }
    }

    /// Returns whether roots come sealed.
    fn is_sealed(&self) -> Result<bool> {
        Ok(!self.rules.is_opened && is_encrypted(&*self.inner)?)
    }

    /// Puts an object that is of no backup. A repository may be made with its first keys, and a storage may be tried.
    fn put_other(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        let kind = KeyKind::of(key);
        let is_ours = self.added.locked().others.contains(key);
        let is_probe = matches!(kind, KeyKind::Probe(_));
        // Only what this session has made may be replaced by it.
        if *condition != PutIf::Absent && !is_ours || !is_probe && self.is_made()? {
            return Err(self.refused("write", key));
        }
        let max_bytes = match kind {
            KeyKind::Probe(_) => PROBE_BYTES,
            KeyKind::KeyFile(_) => KEY_FILE_BYTES,
            _ => max_document_bytes(key) as usize,
        };
        let is_full = !is_ours && self.added.locked().others.len() >= MAX_OTHERS;
        if bytes.len() > max_bytes || is_full {
            return Err(self.refused("write so much to", key));
        }
        if kind == KeyKind::Repository {
            self.owner(self.is_sealed()?)?;
            open_sealed::<Repository>(bytes, &self.inner.describe(key))?;
        }
        let put = self.inner.put(key, bytes, condition)?;
        if matches!(put, Put::Done(_)) {
            self.added.locked().others.insert(key.to_owned());
        }
        Ok(put)
    }

    fn is_made(&self) -> Result<bool> {
        Ok(self.inner.stat(REPOSITORY)?.is_some())
    }

    pub(super) fn create(self: &Arc<Self>, key: &str) -> Result<Box<dyn Upload>> {
        match KeyKind::of(key).may_be_added() {
            MayAdd::OfBackup(id, part) if part.is_uploaded() => {
                self.check_open("write", key, id)?;
                Ok(Box::new(AddedUpload::new(self, key, id)?))
            }
            _ => Err(self.refused("write", key)),
        }
    }

    /// Deletes the objects that may go.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if there was another one; the storage's.
    pub(super) fn delete(&self, keys: &[String]) -> Result<()> {
        let _no_commit = self.commits.read().unwrap_or_else(PoisonError::into_inner);
        let mut refused = Ok(());
        let mut going = Vec::new();
        for key in keys {
            match self.check_delete(key) {
                Ok(()) => going.push(key.clone()),
                error => refused = refused.and(error),
            }
        }
        let deleted = self.inner.delete(&going);
        if deleted.is_ok() {
            let mut added = self.added.locked();
            added.pieces.retain(|piece| !going.contains(piece));
        }
        refused.and(deleted)
    }

    fn check_delete(&self, key: &str) -> Result<()> {
        super::check_key(key)?;
        let kind = KeyKind::of(key);
        let may = match kind {
            KeyKind::Backup(id, part)
                if part.is_uploaded()
                    || matches!(part, BackupPart::Forgotten | BackupPart::Unproven) =>
            {
                return self.check_open("delete", key, id);
            }
            // The root has all that its partial root has.
            KeyKind::Backup(id, BackupPart::Partial) => self.is_announced(id),
            KeyKind::Intent(_) => kind.announced().is_some_and(|id| self.is_announced(id)),
            KeyKind::Probe(_) => self.added.locked().others.contains(key),
            KeyKind::Wal(_) => self.added.locked().pieces.contains(key),
            KeyKind::KeyFile(_) => self.added.locked().others.contains(key) && !self.is_made()?,
            _ => false,
        };
        if may {
            Ok(())
        } else {
            Err(self.refused("delete", key))
        }
    }

    pub(super) fn lease(self: &Arc<Self>, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        match (KeyKind::of(key).announced(), take) {
            (Some(id), Take::New) => self.announce(id, key, body),
            // By it an incremental backup knows that another one is dead. It is let go at once.
            (Some(_), Take::Dead) => match self.inner.lease(key, b"", take)? {
                Leased::Ours(lease) => {
                    drop(lease);
                    let refused = self.refused("write", key);
                    Ok(Leased::Ours(Box::new(DeadLease(refused.line()))))
                }
                other => Ok(other),
            },
            _ => Err(self.refused("take the lease on", key)),
        }
    }

    /// Takes the lease on the intent of a new backup, of which nothing may be there.
    fn announce(self: &Arc<Self>, id: &str, key: &str, body: &[u8]) -> Result<Leased> {
        if is_of_future(id, Timestamp::now()) {
            let message =
                format!("cannot begin backup {id:?}: it is more than a day in the future");
            return Err(Error::new(ErrorKind::Permission, message)
                .because("its id is a time, and the clock of the server is another one")
                .hint("check the clock of this host"));
        }
        let is_sealed = self.is_sealed()?;
        self.owner(is_sealed)?;
        // As if its intent were there: the host takes another id.
        if !self.inner.list(&format!("{BACKUPS}/{id}"))?.is_empty() {
            return Ok(Leased::Held);
        }
        let mut backup = AnnouncedBackup {
            is_sealed,
            ..AnnouncedBackup::default()
        };
        self.check_intent(id, body, &mut backup)?;
        // Counted before the lease, so that a session that ends at once counts too.
        if let Some(host) = self.rules.limited_host() {
            let used = ledger::note_begun(&*self.inner, host, id, &self.rules)?;
            self.added.locked().used = used;
        }
        let leased = self.inner.lease(key, body, Take::New)?;
        let Leased::Ours(inner) = leased else {
            return Ok(leased);
        };
        self.added.locked().backups.insert(id.to_owned(), backup);
        Ok(Leased::Ours(Box::new(AnnouncedLease {
            inner,
            session: self.clone(),
            id: id.to_owned(),
        })))
    }

    /// Counts bytes that are about to be added: of whole objects, and of uploads that are not finished.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] if they are more than the quota of the host allows.
    fn charge(&self, bytes: AddedBytes) -> Result<()> {
        let Some(host) = self
            .rules
            .limited_host()
            .filter(|_| self.rules.quota.is_some())
        else {
            return Ok(());
        };
        let is_recent = self.added.locked().since < LOOK_BYTES;
        if is_recent && self.take(bytes).is_ok() {
            return Ok(());
        }
        // Other sessions of the host may have added some, and a prune may have freed some.
        let used = ledger::used_bytes(&*self.inner, host)?;
        let mut added = self.added.locked();
        (added.used, added.since) = (used, 0);
        drop(added);
        self.take(bytes)
    }

    fn take(&self, bytes: AddedBytes) -> Result<()> {
        let mut added = self.added.locked();
        let of_object = |bytes: u64| bytes.saturating_add(ledger::OBJECT_BYTES);
        let (more, is_open) = match bytes {
            AddedBytes::Object(bytes) => (of_object(bytes), false),
            AddedBytes::Upload(bytes) => (bytes, true),
        };
        self.rules.check_used(added.total().saturating_add(more))?;
        let sum = if is_open {
            &mut added.open
        } else {
            &mut added.since
        };
        *sum = sum.saturating_add(more);
        Ok(())
    }

    /// Counts an upload that was finished or given up, whose bytes were counted as open ones.
    fn settle_upload(&self, bytes: u64, is_finished: bool) {
        let mut added = self.added.locked();
        added.open = added.open.saturating_sub(bytes);
        if is_finished {
            added.since = added.since.saturating_add(bytes + ledger::OBJECT_BYTES);
        }
    }
}

impl AddedObjects {
    fn total(&self) -> u64 {
        self.used
            .saturating_add(self.since)
            .saturating_add(self.open)
    }
}

impl Drop for AppendSession {
    /// Deletes the probes that the host has left.
    fn drop(&mut self) {
        let others = std::mem::take(&mut self.added.locked().others);
        let is_probe = |key: &String| matches!(KeyKind::of(key), KeyKind::Probe(_));
        let probes: Vec<String> = others.into_iter().filter(is_probe).collect();
        if !probes.is_empty()
            && let Err(error) = self.inner.delete(&probes)
        {
            debug(|| error.line());
        }
    }
}
