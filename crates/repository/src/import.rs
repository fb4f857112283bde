//! Takes in a backup that another repository holds, object by object.
//!
//! An object gets its key only when it is whole and durable. The root comes last, when all objects
//! that it refers to exist. Until then each backup whose objects are copied has an intent, like a
//! backup under way, so that no other process removes them as leftovers; and the root exists as a
//! partial one, so that a prune keeps its objects. Another backup that owns some of the objects and
//! is not in this repository gets the document of a forgotten backup. Objects that an earlier prune
//! was about to delete are not relied on. A killed copy leaves no listed backup; the next copy
//! resumes it.

use super::{
    intent::HeldIntent,
    protocol,
    roots::{self, dir, key},
    writer::{is_left, open_or_make, put_root, remove_backup, remove_partial_root},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{FORGOTTEN, INTENTS, PARTIAL, ROOT, TOMBSTONES, UNPROVEN},
    root::Root,
    seal::open_sealed,
};
use fullbore_platform as platform;
use fullbore_storage::{Objects, PutIf, Upload, as_stored};
use std::sync::Arc;

/// A backup that is being copied to here.
pub struct IncomingBackup {
    objects: Arc<dyn Objects>,
    id: String,
    sealed: Vec<u8>,
    /// Backups without any object here before this copy.
    made: Vec<String>,
    /// Whether the backup was listed when the copy began.
    was_listed: bool,
    /// Whether this copy made the partial root.
    made_partial: bool,
    intents: Vec<HeldIntent>,
}

/// An object that a backup needs: backup, name, and its least number of bytes.
pub type NeededObject = (String, String, u64);

impl IncomingBackup {
    /// Opens or makes the repository of these objects, and announces a backup: its root, sealed and
    /// parsed, and the sealed roots, if any, of the `others` that it refers to.
    ///
    /// Waits while another copy brings one of the same backups.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a directory holds something else, [`ErrorKind::Unreachable`] while a
    /// prune is deleting objects that it needs; errors of the storage.
    pub fn begin(
        objects: Arc<dyn Objects>,
        sealed: Vec<u8>,
        facts: &Root,
        others: &[(&str, &[u8])],
    ) -> Result<Self> {
        open_or_make(&*objects, &facts.time, None)?;
        objects.settle(INTENTS)?;
        let mut incoming = Self {
            objects,
            id: facts.id.clone(),
            sealed,
            made: Vec::new(),
            was_listed: false,
            made_partial: false,
            intents: Vec::new(),
        };
        let mut ids = facts.referenced_backups();
        ids.push(&facts.id);
        // Always in the same order: two copies never wait for each other.
        ids.sort_unstable();
        match incoming.announce_all(&ids, facts, others) {
            Ok(()) => Ok(incoming),
            Err(error) => {
                incoming.abort();
                Err(error)
            }
        }
    }

    fn announce_all(&mut self, ids: &[&str], facts: &Root, others: &[(&str, &[u8])]) -> Result<()> {
        for id in ids {
            self.announce(id, &facts.time)?;
        }
        self.was_listed = self.has(&self.id, ROOT)?;
        self.rely_on(ids)?;
        self.write_partial()?;
        self.write_forgotten(others)?;
        ids.iter().try_for_each(|id| self.check_not_pruned(id))
    }

    fn announce(&mut self, id: &str, time: &str) -> Result<()> {
        // The intent of a listed backup is taken, too: it may be forgotten meanwhile, and a prune
        // removes no objects without the intent.
        self.intents
            .push(HeldIntent::take(&self.objects, id, time)?);
        // Uploads that killed copies left unfinished: this process holds their intent now.
        self.objects.abort_uploads(&dir(id))?;
        if self.objects.list(&dir(id))?.is_empty() {
            self.made.push(id.to_owned());
        }
        Ok(())
    }

    /// A prune keeps the objects of every backup that a live intent names, even of a forgotten one.
    fn rely_on(&mut self, ids: &[&str]) -> Result<()> {
        let bases: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        self.intents
            .iter_mut()
            .try_for_each(|intent| intent.rely_on(&bases))
    }

    /// From here on a prune keeps the objects that this root mentions, unless it marked them
    /// before.
    fn write_partial(&mut self) -> Result<()> {
        if self.was_listed {
            return Ok(());
        }
        self.made_partial = !self.has(&self.id, PARTIAL)?;
        self.put(&self.id, PARTIAL, &self.sealed)
    }

    fn write_forgotten(&self, others: &[(&str, &[u8])]) -> Result<()> {
        for (id, sealed) in others {
            if roots::state(&*self.objects, id)?.is_none() {
                self.put(id, FORGOTTEN, sealed)?;
            }
        }
        Ok(())
    }

    /// Runs after everything else is announced: a prune that marks an object later sees the
    /// announcement.
    fn check_not_pruned(&self, id: &str) -> Result<()> {
        if self.objects.list(&format!("{TOMBSTONES}/{id}"))?.is_empty() {
            return Ok(());
        }
        let message = format!(
            "could not copy to {}: backup {id:?} is being pruned there",
            self.objects.describe("")
        );
        Err(Error::new(ErrorKind::Unreachable, message).hint(
            "let `fullbore prune` end, or run it if it was killed; then run the same command again",
        ))
    }

    fn has(&self, id: &str, file: &str) -> Result<bool> {
        Ok(self.objects.stat(&key(id, file))?.is_some())
    }

    fn put(&self, id: &str, file: &str, bytes: &[u8]) -> Result<()> {
        self.objects
            .put(&key(id, file), bytes, &PutIf::Always)
            .map(drop)
    }

    /// Returns the size of the object of this name in backup `id`; `None` if it does not exist.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn len(&self, id: &str, object: &str) -> Result<Option<u64>> {
        self.objects.stat(&key(id, object))
    }

    /// Reads a range of an object of backup `id`.
    ///
    /// # Errors
    /// As [`Objects::read_at`].
    pub fn read_at(
        &self,
        (id, object): (&str, &str),
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.objects.read_at(&key(id, object), offset, len, out)
    }

    /// As [`IncomingBackup::read_at`], of the bytes that are stored.
    ///
    /// # Errors
    /// As [`Objects::read_at`].
    pub fn read_stored_at(
        &self,
        (id, object): (&str, &str),
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let stored = as_stored(&*self.objects);
        stored.read_at(&key(id, object), offset, len, out)
    }

    /// How many stored bytes the object of this name in backup `id` has; `None` if there is none.
    ///
    /// # Errors
    /// The storage's.
    pub fn stored_len(&self, id: &str, object: &str) -> Result<Option<u64>> {
        as_stored(&*self.objects).stat(&key(id, object))
    }

    /// Begins an object of backup `id` that is stored as it is given.
    ///
    /// # Errors
    /// The storage's.
    pub fn create_stored(&self, id: &str, object: &str) -> Result<Box<dyn Upload>> {
        as_stored(&*self.objects).create(&key(id, object))
    }

    /// Replaces the root that the backup will have.
    pub fn set_root(&mut self, sealed: Vec<u8>) {
        self.sealed = sealed;
    }

    /// Returns the name of an object of backup `id` for messages, in quotes.
    pub fn describe(&self, id: &str, object: &str) -> String {
        self.objects.describe(&key(id, object))
    }

    /// Begins an object of backup `id`.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn create(&self, id: &str, object: &str) -> Result<Box<dyn Upload>> {
        self.objects.create(&key(id, object))
    }

    /// Makes the backup visible, if all objects that it refers to exist.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if an object has disappeared; the storage's. The backup is not
    /// visible then.
    pub fn commit(self, needed: &[NeededObject]) -> Result<()> {
        let done = self
            .settle()
            .and_then(|()| self.check_all_there(needed))
            .and_then(|()| self.intents.iter().try_for_each(HeldIntent::check))
            .and_then(|()| self.write_root());
        match done {
            Ok(()) => {
                self.withdraw();
                Ok(())
            }
            // Another process may have seen the root: its objects are left for a prune to judge,
            // whether or not the root could be removed.
            Err(error) if !self.was_listed && self.is_committed() => {
                // The next check shows whether this worked.
                let _ = protocol::forget(&*self.objects, &self.id);
                let objects = self.objects.clone();
                let root = key(&self.id, ROOT);
                self.withdraw();
                Err(is_left(&*objects, &root, "copy", error))
            }
            Err(error) => {
                self.abort();
                Err(error)
            }
        }
    }

    /// Returns whether the root exists. If that cannot be found out, it may.
    fn is_committed(&self) -> bool {
        self.has(&self.id, ROOT).unwrap_or(true)
    }

    /// Makes the objects durable that other processes wrote, because this backup relies on them.
    fn settle(&self) -> Result<()> {
        self.intents
            .iter()
            .try_for_each(|intent| self.objects.settle(&dir(intent.id())))
    }

    fn write_root(&self) -> Result<()> {
        if self.was_listed {
            return self.compare_root();
        }
        // While the partial root exists: a forget that comes after the root leaves a document of
        // its own.
        if let Err(error) = self.objects.delete(&[key(&self.id, FORGOTTEN)]) {
            platform::debug(|| error.line()); // of no use any more, and of no harm
        }
        // Who can write to the repository that it comes from may not be who can write here.
        self.put(&self.id, UNPROVEN, b"")?;
        put_root(&*self.objects, &self.id, &self.sealed)?;
        remove_partial_root(&*self.objects, &self.id);
        Ok(())
    }

    /// Compares the existing root: a damaged one is replaced, one that was repaired here is kept.
    fn compare_root(&self) -> Result<()> {
        let key = key(&self.id, ROOT);
        let Some((present, _)) = self.objects.get(&key)? else {
            let message = format!(
                "could not copy to {}: backup {:?} was forgotten there",
                self.objects.describe(""),
                self.id
            );
            return Err(Error::new(ErrorKind::NotFound, message));
        };
        if open_sealed::<Root>(&present, ROOT).is_ok() {
            return Ok(());
        }
        // An upload keeps the access of the object that it replaces.
        let mut upload = self.objects.create(&key)?;
        upload.append(&self.sealed)?;
        upload.finish().map(drop)
    }

    /// Another process may have forgotten a backup here while this copy relied on its objects.
    fn check_all_there(&self, needed: &[NeededObject]) -> Result<()> {
        for (id, object, bytes) in needed {
            if self.len(id, object)?.is_none_or(|found| found < *bytes) {
                let object = self.describe(id, object);
                let message = format!("could not find {object}: it was removed meanwhile");
                return Err(Error::new(ErrorKind::NotFound, message)
                    .detail("nothing was committed")
                    .hint("run the same command again"));
            }
        }
        Ok(())
    }

    /// Ends a copy that was cut off, as if its process had been killed: the objects stay, and a
    /// partial root keeps them. The next copy goes on from there.
    pub fn suspend(self) {
        self.withdraw();
    }

    /// Removes the objects that this copy made. Objects that existed before are kept.
    pub fn abort(mut self) {
        let made = std::mem::take(&mut self.made);
        if self.made_partial && !made.contains(&self.id) && !self.is_committed() {
            remove_partial_root(&*self.objects, &self.id); // the remaining objects existed before
        }
        let is_kept = |id: &String| self.has(id, ROOT).unwrap_or(true);
        let left: Vec<String> = made
            .into_iter()
            .filter(|id| self.is_held(id) && !is_kept(id))
            .filter(|id| !remove_backup(&self.objects, id))
            .collect();
        self.intents
            .retain(|intent| !left.iter().any(|id| id == intent.id()));
        self.withdraw();
    }

    /// The process that took over a lease decides about the remaining objects.
    fn is_held(&self, id: &str) -> bool {
        self.intents
            .iter()
            .any(|intent| intent.id() == id && intent.is_ours())
    }

    fn withdraw(self) {
        self.intents.into_iter().for_each(HeldIntent::withdraw);
    }
}
