//! Takes in a backup that another repository holds, object by object.
//!
//! An object is written under another name, made durable and renamed: what has its name is whole. The root comes last, when
//! all that it refers to is there. Until then each directory that has no root has an intent, as that of a backup under way, so
//! that nobody takes it for left behind; and the root stands as a partial one, so that a prune keeps all that it refers
//! to. What comes of backups that are not here is, here, what is left of them: it gets the document of one that was forgotten.
//! What a prune that began before was about to delete is not relied on. A copy that was killed leaves nothing that
//! is listed; another one goes on where it was.

use super::{
    atomic_file::replace,
    objects::{is_left, write_new, write_root},
    permissions,
    protocol::{self, Intent},
    roots::key,
    writer::{announce, open_or_make, rely_on, remove_backup, withdraw},
};
use crate::{
    error::{Error, ErrorKind, Result},
    format::{
        layout::{BACKUPS, FORGOTTEN, PARTIAL, ROOT, TOMBSTONES},
        root::Root,
        seal::{MAX_BYTES, open_sealed},
    },
    platform::safe_file,
    sink::local_file::{Output, name, sync_dir},
    storage::LocalObjects,
};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// A backup that is being copied to here.
pub struct Incoming {
    root: PathBuf,
    id: String,
    /// The root that will be.
    sealed: Vec<u8>,
    /// Directories that objects go to.
    dirs: Vec<PathBuf>,
    /// Backups whose directories this copy made.
    made: Vec<String>,
    /// Was it listed when the copy began?
    was_listed: bool,
    /// Is the partial root there only because of this copy?
    made_partial: bool,
    intents: Vec<(File, Intent)>,
}

/// An object that is being written.
pub struct Arriving {
    output: Output,
    partial: PathBuf,
    path: PathBuf,
}

impl Incoming {
    /// Open or make the repository at `root`, and announce a backup: its root, sealed and as it is read, and the sealed roots
    /// of those `others` it refers to that have one.
    ///
    /// Waits for another copy that brings one of the same backups.
    ///
    /// # Errors
    /// [`Kind::Usage`] if the directory holds something else, [`Kind::Unreachable`] while what is needed of it is being
    /// pruned; else the system's.
    pub fn begin(
        root: &Path,
        sealed: Vec<u8>,
        facts: &Root,
        others: &[(&str, &[u8])],
    ) -> Result<Self> {
        open_or_make(root, &facts.time)?;
        let (root, id) = (root.to_owned(), facts.id.clone());
        let (was_listed, made_partial) = (false, false);
        let mut incoming = Self {
            root,
            id,
            sealed,
            dirs: vec![],
            made: vec![],
            was_listed,
            made_partial,
            intents: vec![],
        };
        let mut ids: Vec<&str> = facts
            .referenced_backups()
            .into_iter()
            .chain([&facts.id[..]])
            .collect();
        // Always in the same order: two copies never wait for each other.
        ids.sort_unstable();
        let announced = ids
            .iter()
            .try_for_each(|id| incoming.announce(id, &facts.time));
        incoming.was_listed = incoming.is_listed();
        let announced = announced
            .and_then(|()| incoming.rely_on(&ids))
            .and_then(|()| incoming.write_partial());
        let announced = announced.and_then(|()| incoming.write_forgotten(others));
        match announced.and_then(|()| ids.iter().try_for_each(|id| incoming.is_not_pruned(id))) {
            Ok(()) => Ok(incoming),
            Err(error) => {
                incoming.abort();
                Err(error)
            }
        }
    }

    fn announce(&mut self, id: &str, time: &str) -> Result<()> {
        // Of one that is listed, too: it may be forgotten meanwhile, and a prune removes nothing whose intent it cannot take.
        self.intents.push(announce(&self.root, id, time)?);
        let dir = self.dir(id);
        match safe_file::create_dir(&dir, permissions::of_dir(&self.root)) {
            Ok(()) => self.made.push(id.to_owned()),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                safe_file::open_dir(&dir)
                    .map_err(|e| Error::io(format!("could not open {}", name(&dir)), e))?;
            }
            Err(e) => return Err(Error::io(format!("could not create {}", name(&dir)), e)),
        }
        self.dirs.push(dir);
        Ok(())
    }

    /// A prune keeps what the backups hold that a live intent names, forgotten ones too.
    fn rely_on(&mut self, ids: &[&str]) -> Result<()> {
        let bases: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        self.intents
            .iter_mut()
            .try_for_each(|intent| rely_on(&self.root, intent, &bases))
    }

    /// What a root mentions that is seen from here on, no prune deletes that has not marked it before.
    fn write_partial(&mut self) -> Result<()> {
        if self.was_listed {
            return Ok(());
        }
        self.made_partial = !self.dir(&self.id).join(PARTIAL).exists();
        write_new(&self.root, &key(&self.id, PARTIAL), &self.sealed)
    }

    fn write_forgotten(&self, others: &[(&str, &[u8])]) -> Result<()> {
        others.iter().try_for_each(|(id, sealed)| {
            match [ROOT, PARTIAL, FORGOTTEN]
                .iter()
                .any(|file| self.dir(id).join(file).exists())
            {
                true => Ok(()),
                false => write_new(&self.root, &key(id, FORGOTTEN), sealed),
            }
        })
    }

    /// Looked at after all else is announced: who marks something later sees that.
    fn is_not_pruned(&self, id: &str) -> Result<()> {
        let marks = self.root.join(TOMBSTONES).join(id);
        if fs::read_dir(marks).is_ok_and(|mut marks| marks.next().is_some()) {
            let what = format!(
                "could not copy to {}: backup {id:?} is being pruned there",
                name(&self.root)
            );
            return Err(Error::new(ErrorKind::Unreachable, what)
                .hint("let `fullbore prune` end, or run it if it was killed; then run the same command again"));
        }
        Ok(())
    }

    fn is_listed(&self) -> bool {
        self.dir(&self.id).join(ROOT).exists()
    }

    fn dir(&self, id: &str) -> PathBuf {
        self.root.join(BACKUPS).join(id)
    }

    /// The object of this name in backup `id`; `None` if there is none.
    ///
    /// # Errors
    /// The system's.
    pub fn open(&self, id: &str, object: &str) -> Result<Option<File>> {
        let path = self.path(id, object);
        match safe_file::open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io(format!("could not open {}", name(&path)), e)),
        }
    }

    /// Where an object of this name in backup `id` belongs.
    pub fn path(&self, id: &str, object: &str) -> PathBuf {
        self.dir(id).join(object)
    }

    /// Begin an object of backup `id`.
    ///
    /// # Errors
    /// The system's.
    pub fn create(&self, id: &str, object: &str) -> Result<Arriving> {
        let path = self.path(id, object);
        let partial = self.dir(id).join(format!("{object}.partial"));
        match fs::remove_file(&partial) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io(format!("could not remove {}", name(&partial)), e));
            }
            _ => {}
        }
        Ok(Arriving {
            output: Output::create(&partial, permissions::of_file(&self.root))?,
            partial,
            path,
        })
    }

    /// Make the backup visible. `objects` is all that it refers to: backup, name, and how many bytes it has at least.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if an object is not there any more; else the system's. Nothing is visible then.
    pub fn commit(self, objects: &[(String, String, u64)]) -> Result<()> {
        let done = self.dirs.iter().try_for_each(|dir| sync_dir(dir));
        let done = done.and_then(|()| sync_dir(&self.root.join(BACKUPS)));
        let done = done
            .and_then(|()| self.all_there(objects))
            .and_then(|()| self.write_root());
        match done {
            Ok(()) => {
                self.withdraw();
                Ok(())
            }
            // Somebody may have seen it: what it refers to stays, for a prune to judge, whether it could be taken back or not.
            Err(error) if !self.was_listed && self.is_listed() => {
                let _ = protocol::forget(&LocalObjects::new(&self.root), &self.id); // it is looked whether that was done
                let root = self.dir(&self.id).join(ROOT);
                self.withdraw();
                Err(is_left(&root, "copy", error))
            }
            Err(error) => {
                self.abort();
                Err(error)
            }
        }
    }

    fn write_root(&self) -> Result<()> {
        let dir = self.dir(&self.id);
        if self.was_listed {
            return self.compare_root(&dir.join(ROOT));
        }
        // While the partial root stands: a forget that comes after the root leaves a word of its own.
        let _ = fs::remove_file(dir.join(FORGOTTEN)); // of no use any more, and of no harm
        write_root(&self.root, &key(&self.id, ROOT), &self.sealed)?;
        let _ = fs::remove_file(dir.join(PARTIAL)); // likewise
        Ok(())
    }

    /// The root that is there already: a damaged one is replaced, one that was repaired here stays.
    fn compare_root(&self, path: &Path) -> Result<()> {
        let lost = |what: &str| {
            Error::new(
                ErrorKind::NotFound,
                format!("could not copy to {}: {what}", name(&self.root)),
            )
        };
        let there = match safe_file::read(path, MAX_BYTES) {
            Ok(there) => there,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(lost(&format!("backup {:?} was forgotten there", self.id)));
            }
            Err(e) => return Err(Error::io(format!("could not read {}", name(path)), e)),
        };
        match open_sealed::<Root>(&there, ROOT) {
            Ok(_) => Ok(()),
            Err(_) => replace(path, &self.sealed),
        }
    }

    /// Somebody may have forgotten a backup here while we relied on what it held.
    fn all_there(&self, objects: &[(String, String, u64)]) -> Result<()> {
        let is_there = |(id, object, bytes): &&(String, String, u64)| {
            fs::symlink_metadata(self.path(id, object))
                .is_ok_and(|found| found.is_file() && found.len() >= *bytes)
        };
        match objects.iter().find(|object| !is_there(object)) {
            None => Ok(()),
            Some((id, object, _)) => {
                let path = self.path(id, object);
                Err(Error::new(
                    ErrorKind::NotFound,
                    format!("could not find {}: it was removed meanwhile", name(&path)),
                )
                .detail("nothing was committed")
                .hint("run the same command again"))
            }
        }
    }

    /// Remove what this copy made. What was there before stays.
    pub fn abort(mut self) {
        if self.made_partial && !self.made.contains(&self.id) && !self.is_listed() {
            let _ = fs::remove_file(self.dir(&self.id).join(PARTIAL)); // what is left is what was left before
        }
        let made = self
            .made
            .iter()
            .filter(|id| !self.dir(id).join(ROOT).exists());
        let left: Vec<String> = made
            .filter(|id| !remove_backup(&self.root, id))
            .cloned()
            .collect();
        self.intents
            .retain(|(_, intent)| !left.contains(&intent.id));
        self.withdraw();
    }

    fn withdraw(self) {
        for (lock, intent) in self.intents {
            withdraw(&self.root, &intent.id);
            drop(lock);
        }
    }
}

impl Arriving {
    /// Write `data` at `offset`.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, data: &[u8], offset: u64) -> Result<()> {
        self.output.write(data, offset)
    }

    /// Make it durable and give it its name.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(self) -> Result<()> {
        self.output.sync()?;
        fs::rename(&self.partial, &self.path)
            .map_err(|e| Error::io(format!("could not rename {}", name(&self.partial)), e))?;
        // Others may use what has its name.
        self.path.parent().map_or(Ok(()), sync_dir)
    }
}
