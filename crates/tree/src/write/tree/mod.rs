//! The directory tree that a restore writes to.
//!
//! Paths are resolved beneath the target, and no symbolic link is followed on the way, whether it
//! comes from the backup or was there before. A small file costs at most five calls: create, write,
//! owner if it differs, times, close. A sixth call sets the mode if the final mode would admit
//! other users too early. Directories are created with mode 0700 as they arrive, and get their
//! metadata when everything in them is written. Durability needs [`TargetTree::sync`].

use super::{
    case_folding::{MadeNames, name_taken_error},
    directories::{NewFileAttrs, TargetDirectories},
    layout::TargetLayout,
    link::LinkCopies,
    metadata::is_same_here,
    probe::with_test_file,
    warnings::TargetWarnings,
};
use fullbore_format::{
    acl::{LocalAcl, is_list, local_list, shown},
    entry::{EntryPath, Owner, Time, Xattr},
    error::{Error, ErrorKind, Result, is_inode_shortage, quoted},
};
use fullbore_platform::{
    dir::{self, Stat, open_dir},
    durable,
    owner::OwnerNames,
    queue::Locked,
    write::{self, Umask},
};
use std::{
    borrow::Cow,
    collections::{HashMap, hash_map},
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    sync::{Arc, Mutex, atomic::AtomicU8},
};

#[derive(Debug, Clone, Copy, Default)]
pub struct TargetOptions {
    /// Whether the target may hold objects already. Objects with the same path are replaced.
    pub overwrite: bool,
    /// Whether owners are set by number, even where the name exists on this system.
    pub numeric_owner: bool,
    /// Whether missing parent directories that have no entry get the mode of `mkdir -p`. Otherwise
    /// they get mode 0700.
    pub usual_parents: bool,
    /// Whether a file gets its name only when it is complete, also where the name is free.
    pub whole_files: bool,
}

/// The tree that a restore writes to. Shared by all writers.
#[derive(Debug)]
pub struct TargetTree {
    /// The directories of the layout that are open.
    pub places: TargetDirectories,
    /// Options that the tree was opened with.
    pub options: TargetOptions,
    /// Warnings about metadata that could not be restored.
    pub notes: TargetWarnings,
    names: OwnerNames,
    /// The file systems of the target, each with a directory that was opened before anything was
    /// written to it.
    pub(crate) systems: Mutex<HashMap<u64, OwnedFd>>,
    /// The sync methods of these file systems: a bit for each [`SyncMethod`](durable::SyncMethod).
    pub(crate) sync_methods: AtomicU8,
    mask: Mask,
    /// The created names, if the file system treats several names as one.
    made: Option<Mutex<MadeNames>>,
    /// Directories with a temporary owner or mode, with their former attributes.
    pub(crate) changed: Mutex<HashMap<EntryPath, Stat>>,
    /// Copies of files that take no more names.
    pub(crate) link_copies: Mutex<LinkCopies>,
}

/// Keeps the umask of the process cleared while any tree is open. Holds the former mask.
#[derive(Debug)]
struct Mask(u32);

static MASK: Mutex<(usize, Option<Umask>)> = Mutex::new((0, None));

impl Mask {
    fn clear() -> Self {
        let mut mask = MASK.locked();
        mask.0 += 1;
        Self(mask.1.get_or_insert_with(Umask::clear).previous())
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        let mut mask = MASK.locked();
        mask.0 -= 1;
        if mask.0 == 0 {
            mask.1 = None;
        }
    }
}

impl TargetTree {
    /// Opens the target, and creates it and the links to its mounts.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if the target is not empty and must be; [`ErrorKind::Full`] if the
    /// data does not fit; or the system's error. Most errors come before anything is created.
    pub fn create(layout: &TargetLayout, options: TargetOptions) -> Result<Arc<Self>> {
        layout.check(options.overwrite)?;
        let places = TargetDirectories::open(layout)?;
        let mut tree = Self {
            places,
            made: None,
            changed: Mutex::default(),
            link_copies: Mutex::default(),
            options,
            notes: TargetWarnings::of(options.whole_files),
            names: OwnerNames::default(),
            systems: Mutex::default(),
            sync_methods: AtomicU8::new(0),
            mask: Mask::clear(),
        };
        // Before anything is created: a directory without write permission would refuse even the
        // test file.
        for place in tree.places.all() {
            tree.add_write_access(&place.at, place.dir.as_fd());
        }
        let folds: Vec<bool> = tree
            .places
            .all()
            .map(|place| place.probe_case_folding(&tree.notes))
            .collect();
        // Names that were made are remembered only where `A` and `a` are one name: it takes memory
        // for each object.
        tree.made = folds.contains(&true).then(Mutex::default);
        for place in tree.places.all() {
            let dir = place
                .dir
                .try_clone()
                .and_then(|dir| tree.note_filesystem(dir.as_fd()));
            dir.map_err(|e| Error::io(format!("could not open the target {:?}", layout.root), e))?;
        }
        tree.remove_earlier_final()?;
        tree.places
            .mount_points()
            .try_for_each(|path| tree.link_mount(path))?;
        let tree = Arc::new(tree);
        tree.register();
        Ok(tree)
    }

    /// Returns a file without a name in the target, if the system supports this. Closing the file
    /// deletes it.
    pub fn nameless(&self) -> Option<File> {
        with_test_file(&self.places.resolve(b"").0.dir, &self.notes, |file| {
            file.try_clone().ok().map(File::from)
        })
        .flatten()
    }

    /// Creates the symbolic link to the directory that is mounted at `path`. The link gets its
    /// metadata together with the directory.
    fn link_mount(&self, path: &[u8]) -> Result<()> {
        let Some(target) = self.places.mount_target(path) else {
            return Ok(());
        };
        let (parent, name) = self.places.split(path);
        let dir = self
            .open_parent(parent)
            .map_err(|e| self.error("create the directory of", path, e))?;
        self.create_or_replace(path, dir.as_fd(), name, |dir, name| {
            write::symlink_at(target.as_os_str().as_bytes(), dir, name)
        })
        .map_err(|e| self.error("link", path, e))
    }

    /// Returns how the system's errors become errors about the entry at `path`.
    pub(super) fn failed<'a>(
        &'a self,
        doing: &'a str,
        path: &'a [u8],
    ) -> impl Fn(io::Error) -> Error + Copy + 'a {
        move |error| self.error(doing, path, error)
    }

    /// Builds an error about the entry at `path`.
    pub fn error(&self, doing: &str, path: &[u8], error: io::Error) -> Error {
        let name = self.places.name(path);
        let free = if is_inode_shortage(&error) {
            "remove files there (`df -i` shows inodes)"
        } else {
            "free space"
        };
        let again = if self.options.overwrite || self.options.whole_files {
            ""
        } else {
            " with --overwrite=all"
        };
        let error = Error::io(format!("could not {doing} {name:?}"), error);
        match error.kind {
            ErrorKind::Full => error.hint(format!("{free}, and run the same command again{again}")),
            _ => error,
        }
    }

    /// Returns whether the file system of `path` is full.
    pub(crate) fn is_full(&self, path: &[u8], error: &io::Error) -> bool {
        write::is_full(error, &self.places.resolve(path).0.dir)
    }

    pub fn open_dir(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let (place, rest) = self.places.resolve(path);
        open_dir(&place.dir, rest)
    }

    /// Opens a directory of the tree, and creates missing parents.
    ///
    /// # Errors
    /// The system's error, or an error if one of them was created under another name.
    pub(crate) fn open_parent(&self, parent: &[u8]) -> io::Result<OwnedFd> {
        let Some(made) = &self.made else {
            return self.open_or_make(parent);
        };
        let mut made = made.locked();
        let ends = (0..parent.len())
            .filter(|slash| parent[*slash] == b'/')
            .chain([parent.len()]);
        for above in ends
            .map(|end| &parent[..end])
            .filter(|above| !above.is_empty())
        {
            if made.has(above) || self.places.mount_target(above).is_some() {
                continue;
            }
            let stat = dir::stat_fd(self.open_or_make(above)?)?;
            // The file system gave the directory of another name: entries of two directories would
            // be mixed.
            if made.is_taken(above, &stat) {
                return Err(name_taken_error());
            }
            made.note(above, &stat);
        }
        self.open_or_make(parent)
    }

    fn open_or_make(&self, parent: &[u8]) -> io::Result<OwnedFd> {
        match self.open_dir(parent) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let (place, rest) = self.places.resolve(parent);
                // The owner's bits are always set, whatever the mask is: the restore must create
                // objects in the directory, as with `mkdir -p`.
                let mode = if self.options.usual_parents {
                    0o777 & !self.mask.0 | 0o700
                } else {
                    0o700
                };
                write::create_dir_beneath(&place.dir, rest, mode)
            }
            // The directory may be on a file system of its own, and may not be among the restored
            // directories.
            Ok(dir) if self.options.overwrite => self.note_filesystem(dir.as_fd()).map(|()| dir),
            other => other,
        }
    }

    /// Returns the value of an attribute as this system takes it: the users and groups of a list of
    /// permissions by their names. `None` for a list that cannot be set; a note says why.
    pub(crate) fn local_value<'a>(
        &self,
        attribute: &'a Xattr,
        path: &[u8],
    ) -> Option<Cow<'a, [u8]>> {
        let (name, value) = attribute;
        if !is_list(name) {
            return Some(Cow::Borrowed(value));
        }
        match local_list(value, &self.names, self.options.numeric_owner) {
            Ok(LocalAcl { raw, unknown }) => {
                for name in unknown {
                    let subject = format!("permissions of {}", quoted(name.as_bytes()));
                    self.notes.add(
                        &subject,
                        "by name: it is not known here, so its number got them",
                        path,
                    );
                }
                Some(Cow::Owned(raw))
            }
            Err(reason) => {
                let subject = format!("permissions {}", shown(value));
                self.notes.add(&subject, reason, path);
                None
            }
        }
    }

    /// Returns whether an attribute of the backup is the one that is there.
    pub(crate) fn is_same_xattr(&self, wanted: &Xattr, present: &Xattr) -> bool {
        is_same_here(wanted, present, &self.names, self.options.numeric_owner)
    }

    /// Returns user and group numbers on this system: by name if the name exists here, otherwise by
    /// number.
    pub(crate) fn owner(&self, owner: &Owner) -> (u32, u32) {
        if self.options.numeric_owner {
            return (owner.uid, owner.gid);
        }
        self.names.numbers(owner)
    }

    /// Returns the attributes that new files get at `path`.
    ///
    /// They are unknown in a target with older directories, and for the root and the mounts
    /// themselves.
    pub(crate) fn new_file(
        &self,
        path: &[u8],
        stat: impl FnOnce() -> io::Result<Stat>,
        mode: u32,
    ) -> Option<NewFileAttrs> {
        let (place, rest) = self.places.resolve(path);
        if self.options.overwrite || rest.is_empty() {
            return None;
        }
        let known = &place.new_file;
        if known.get().is_none() {
            let stat = stat().ok()?;
            let _ = known.set(NewFileAttrs {
                owner: (stat.uid, stat.gid),
                keeps_mode: stat.mode == mode,
            });
        }
        known.get().copied()
    }

    /// Returns the group that a new file gets at `path`, if only this group gets access. Unknown in
    /// a target with older directories.
    pub(crate) fn group_of_new(&self, path: &[u8]) -> Option<u32> {
        let (place, _) = self.places.resolve(path);
        place
            .new_owner
            .get()
            .map(|new_owner| new_owner.1)
            .filter(|_| !self.options.overwrite && !place.passes_on_default_acl)
    }

    /// Returns whether the file system of `path` is known to store this time exactly. Times of 32
    /// bits end in 2038, and some start in 1970.
    pub(crate) fn keeps_time(&self, path: &[u8], time: Time) -> bool {
        let (place, _) = self.places.resolve(path);
        place.keeps_nanos.get() == Some(&true) && (0..=i64::from(i32::MAX)).contains(&time.seconds)
    }

    /// Returns whether an object at `path` can have attributes and access lists that are not in the
    /// backup. Unknown in a target with older directories: each object is checked there.
    pub(crate) fn may_have_extra_xattrs(&self, path: &[u8]) -> Option<bool> {
        let (place, rest) = self.places.resolve(path);
        (!self.options.overwrite).then_some(rest.is_empty() || place.passes_on_default_acl)
    }

    /// Records the file system of a directory that existed before.
    pub(crate) fn note_filesystem(&self, dir: BorrowedFd<'_>) -> io::Result<()> {
        let dev = dir::stat_fd(dir)?.dev;
        if let hash_map::Entry::Vacant(new) = self.systems.locked().entry(dev) {
            self.note_sync_method(durable::sync_method(dir)?);
            new.insert(dir.try_clone_to_owned()?);
        }
        Ok(())
    }

    /// Calls `make`, which creates or accepts the object `name`. Fails if that object was created
    /// under another name.
    ///
    /// On a file system that ignores case, one thread at a time does this, so that every created
    /// object is recorded before another thread looks.
    pub(crate) fn unless_name_taken<T>(
        &self,
        path: &[u8],
        dir: impl AsFd,
        name: &[u8],
        make: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let Some(made) = &self.made else {
            return make();
        };
        let mut made = made.locked();
        let previous = dir::stat(&dir, name).ok();
        if previous.is_some_and(|stat| made.is_taken(path, &stat)) {
            return Err(name_taken_error());
        }
        let done = make()?;
        previous.iter().for_each(|stat| made.forget(stat));
        made.note(path, &dir::stat(&dir, name)?);
        Ok(done)
    }

    /// Returns whether the object `name` was created under another path than `path`.
    pub(crate) fn is_taken(&self, path: &[u8], dir: impl AsFd, name: &[u8]) -> bool {
        self.made.as_ref().is_some_and(|made| {
            let made = made.locked();
            dir::stat(dir, name).is_ok_and(|stat| made.is_taken(path, &stat))
        })
    }
}

#[cfg(test)]
mod tests;
