//! Which roots count: a proof alone is not enough, as whoever was removed can still make one.

use super::SealedObjects;
use crate::{
    generation::current_generation,
    members::{self, Members, counts},
    root_document::ProvenRoot,
};
use fullbore_crypt::{Access, Author, KeyRing};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::Locked;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// A list of members is read again for a root that does not count, but not more often than this: a storage may be full of such roots.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The list of members, once a root needs it, and when it was read; and who made the backups of others.
#[derive(Debug, Default)]
pub(super) struct KnownMembers {
    list: Mutex<Option<(Arc<Members>, Instant)>>,
    /// Backups that were read, and that put keys made.
    of_put_keys: Mutex<BTreeMap<String, Author>>,
}

impl SealedObjects {
    /// Refuses a root that does not count. Only people can tell: a put key has no list of members.
    pub(super) fn check_counts(&self, root: &ProvenRoot, name: &str) -> Result<()> {
        let Some(ring) = self.ring.as_deref() else {
            return Ok(());
        };
        let is_newest = root.generation == ring.newest().number();
        if ring.access() == Access::Put || is_newest && root.author.is_person() {
            return Ok(());
        }
        let (members, read) = self.known_members(ring)?;
        if counts(&members, ring, root) {
            return Ok(());
        }
        if read.elapsed() >= READ_AGAIN_AFTER && counts(&self.read_members(ring)?.0, ring, root) {
            return Ok(());
        }
        Err(does_not_count(root, ring, name))
    }

    /// Returns whether a backup that was read is one that only others can have made: with the key of a person, one of a put key. It may say
    /// any host, so it is no base.
    pub fn is_of_put_key(&self, backup: &str) -> bool {
        self.members.of_put_keys.locked().contains_key(backup)
    }

    /// Returns the name of the put key that made a backup whose root was read, or its number if it was removed since. `None` if a person made it,
    /// or without a key that reads.
    pub fn put_key_of(&self, backup: &str) -> Option<String> {
        let ring = self.ring.as_deref()?;
        let author = *self.members.of_put_keys.locked().get(backup)?;
        let (members, _) = self.known_members(ring).ok()?;
        let name = members::name_of(&members, author).map(str::to_owned);
        Some(name.unwrap_or_else(|| author.to_string()))
    }

    /// Notes who made a root that was read.
    pub(super) fn note_author(&self, root: &ProvenRoot, key: &str) {
        let backup = key.split('/').nth(1).unwrap_or_default();
        let mut known = self.members.of_put_keys.locked();
        if root.author.is_person() {
            known.remove(backup);
        } else {
            known.insert(backup.to_owned(), root.author);
        }
    }

    fn known_members(&self, ring: &KeyRing) -> Result<(Arc<Members>, Instant)> {
        let known = self.members.list.locked().clone();
        known.map_or_else(|| self.read_members(ring), Ok)
    }

    fn read_members(&self, ring: &KeyRing) -> Result<(Arc<Members>, Instant)> {
        let (members, _) = members::read_members(&*self.inner, ring)?;
        let known = (Arc::new(members), Instant::now());
        *self.members.list.locked() = Some(known.clone());
        Ok(known)
    }

    /// Refuses a root that was just stored, if the key was rotated meanwhile: others may not count it. A rotation puts the new generation in
    /// place before it lists the roots for the last time, so a root that was stored before that is in its list.
    pub(super) fn check_still_current(&self, name: &str) -> Result<()> {
        let Some(ring) = self.ring.as_deref() else {
            return Ok(());
        };
        match current_generation(&*self.inner)? {
            Some(current) if current != ring.newest().number() => Err(Error::new(
                ErrorKind::Gone,
                format!("{name} does not count"),
            )
            .because("the key of the repository was rotated while this backup was made")
            .hint("run the same command again; or let it count: fullbore key accept")),
            _ => Ok(()),
        }
    }
}

fn does_not_count(root: &ProvenRoot, ring: &KeyRing, name: &str) -> Error {
    let newest = ring.newest().number();
    let why = if root.generation == newest {
        format!(
            "the put key {} that sealed it was removed before",
            root.author
        )
    } else {
        format!(
            "generation {} of the repository's key sealed it, and it was not there when the key was rotated to {newest}",
            root.generation
        )
    };
    Error::corrupt(format!("{name} does not count"))
        .because(why)
        .hint("whoever was removed may have made it: forget it by its id; if it is genuine: fullbore key accept REPO ID")
}
