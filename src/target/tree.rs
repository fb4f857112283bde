//! A directory tree as a sink.
//!
//! Everything is resolved beneath the target and no symbolic link is followed on the way, whether the backup brings it or
//! the target has it. A small file costs five calls at most: create, write, owner if it differs, times, close; and one for its
//! mode, if by that the wrong ones could open it until it has its owner. Directories are made as they come, with mode 0700, and get
//! their metadata when all that is in them is written. Nothing is durable before [`Tree::sync`].

use super::{
    case_folding::{MadeNames, taken},
    layout::{Fresh, TargetDirectories, TargetLayout},
    link::Carriers,
    probe::trial,
    warnings::TargetWarnings,
};
use crate::{
    error::{Error, ErrorKind, Result, is_inode_shortage},
    format::{
        entry::{EntryPath, Owner, Time, Xattr},
        pax::NamedAcl,
    },
    platform::{
        Tricks,
        dir::{self, Stat, open_dir},
        durable,
        owner::OwnerNames,
        write::{self, Umask},
    },
    queue::Locked,
};
use std::{
    collections::{HashMap, hash_map},
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    sync::{Arc, Mutex, atomic::AtomicU8},
};

/// How a tree is written.
#[derive(Debug, Clone, Copy, Default)]
pub struct TargetOptions {
    /// May the target hold something already? Then what stands in the way is replaced.
    pub overwrite: bool,
    /// Owners by number, even where the name exists here.
    pub numeric_owner: bool,
    /// Are directories that nothing describes made as `mkdir -p` makes them? Else with mode 0700.
    pub usual_parents: bool,
    /// May the system's special calls be used?
    pub tricks: Tricks,
}

/// The target.
#[derive(Debug)]
pub struct TargetTree {
    pub(crate) places: TargetDirectories,
    /// How it is written.
    pub options: TargetOptions,
    /// What could not be restored.
    pub notes: TargetWarnings,
    names: OwnerNames,
    /// The file systems of the target, each with a directory opened before anything was written to it.
    pub(crate) systems: Mutex<HashMap<u64, OwnedFd>>,
    /// What they want: a bit for each [`durable::Way`].
    pub(crate) ways: AtomicU8,
    mask: Mask,
    /// What was made, where the file system may take another name for the same.
    made: Option<Mutex<MadeNames>>,
    /// Directories that were there and have another owner or mode for now: what they were before.
    pub(crate) changed: Mutex<HashMap<EntryPath, Stat>>,
    /// Files that carry the names of others which take no more of them.
    pub(crate) carriers: Mutex<Carriers>,
}

/// The mask is the process's: cleared while any tree is open. What it was before.
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
    /// Open the target, which is made if it is not there, with the links to what is mounted in it.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if it holds something and may not, [`ErrorKind::Full`] if it will not fit, or the system's
    /// error; mostly before anything was made.
    pub fn create(layout: &TargetLayout, options: TargetOptions) -> Result<Arc<Self>> {
        layout.check(options.overwrite)?;
        let places = TargetDirectories::open(layout)?;
        let mut tree = Self {
            places,
            made: None,
            changed: Mutex::default(),
            carriers: Mutex::default(),
            options,
            notes: TargetWarnings::default(),
            names: OwnerNames::default(),
            systems: Mutex::default(),
            ways: AtomicU8::new(0),
            mask: Mask::clear(),
        };
        for place in tree.places.all() {
            tree.open_up(&place.at, place.dir.as_fd());
        }
        let folds: Vec<bool> = tree
            .places
            .all()
            .map(|place| place.folds(&tree.notes))
            .collect();
        tree.made = folds.contains(&true).then(Mutex::default);
        for place in tree.places.all() {
            let dir = place.dir.try_clone().and_then(|dir| tree.touch(dir));
            dir.map_err(|e| Error::io(format!("could not open the target {:?}", layout.root), e))?;
        }
        tree.displace_last()?;
        tree.places
            .mount_points()
            .try_for_each(|path| tree.link_mount(path))?;
        let tree = Arc::new(tree);
        tree.enlist();
        Ok(tree)
    }

    /// A file in the target that is gone when it is closed, if there can be one.
    pub fn nameless(&self) -> Option<File> {
        trial(&self.places.resolve(b"").0.dir, &self.notes, |file| {
            file.try_clone().ok().map(File::from)
        })
        .flatten()
    }

    /// Make the symbolic link to what is mounted at `path`. It gets its metadata with the directory.
    fn link_mount(&self, path: &[u8]) -> Result<()> {
        let Some(target) = self.places.mounted(path) else {
            return Ok(());
        };
        let (parent, name) = self.places.split(path);
        let dir = self
            .open_parent(parent)
            .map_err(|e| self.error("create the directory of", path, e))?;
        let create = |dir: BorrowedFd<'_>, name: &[u8]| {
            write::symlink_at(target.as_os_str().as_bytes(), dir, name)
        };
        self.replacing(path, dir.as_fd(), name, create)
            .map_err(|e| self.error("link", path, e))
    }

    /// An error about the entry at `path`.
    pub(crate) fn error(&self, doing: &str, path: &[u8], error: io::Error) -> Error {
        let name = self.places.name(path);
        let free = if is_inode_shortage(&error) {
            "remove files there (`df -i` shows inodes)"
        } else {
            "free space"
        };
        let again = if self.options.overwrite {
            ""
        } else {
            " with --overwrite"
        };
        let error = Error::io(format!("could not {doing} {name:?}"), error);
        match error.kind {
            ErrorKind::Full => error.hint(format!("{free}, and run the same command again{again}")),
            _ => error,
        }
    }

    /// Did what belongs at `path` find no room?
    pub(crate) fn is_full(&self, path: &[u8], error: &io::Error) -> bool {
        write::is_full(error, &self.places.resolve(path).0.dir)
    }

    /// Open a directory beneath its place.
    pub(crate) fn open_dir(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let (place, rest) = self.places.resolve(path);
        open_dir(&place.dir, rest, self.options.tricks)
    }

    /// Open a directory beneath its place; it and its parents are made where they are missing.
    ///
    /// # Errors
    /// The system's, or that one of them was made under another name.
    pub(crate) fn open_parent(&self, parent: &[u8]) -> io::Result<OwnedFd> {
        let Some(made) = &self.made else {
            return self.open_or_make(parent);
        };
        let mut made = made.locked();
        let ends = (0..parent.len())
            .filter(|at| parent[*at] == b'/')
            .chain([parent.len()]);
        for above in ends
            .map(|end| &parent[..end])
            .filter(|above| !above.is_empty())
        {
            if made.has(above) || self.places.mounted(above).is_some() {
                continue;
            }
            let stat = dir::stat_fd(self.open_or_make(above)?)?;
            if made.is_taken(above, &stat) {
                return Err(taken());
            }
            made.note(above, &stat);
        }
        self.open_or_make(parent)
    }

    fn open_or_make(&self, parent: &[u8]) -> io::Result<OwnedFd> {
        match self.open_dir(parent) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let (place, rest) = self.places.resolve(parent);
                // Whatever the mask, what is restored must be able to be made in it: as `mkdir -p` has it.
                let mode = if self.options.usual_parents {
                    0o777 & !self.mask.0 | 0o700
                } else {
                    0o700
                };
                write::create_dir_beneath(&place.dir, rest, mode, self.options.tricks)
            }
            // It may be on a file system of its own, and not among the directories of what is restored.
            Ok(dir) if self.options.overwrite => self.touch(dir.try_clone()?).map(|()| dir),
            other => other,
        }
    }

    /// The attribute that a list of permissions is here, if all whom it names are known here.
    ///
    /// # Errors
    /// Why there is none, for a note.
    pub fn named(&self, acl: &NamedAcl) -> Result<Xattr, &'static str> {
        acl.resolve(|user| self.names.uid(user), |group| self.names.gid(group))
    }

    /// User and group here of an owner there: by name where the name exists.
    pub(crate) fn owner(&self, owner: &Owner) -> (u32, u32) {
        if self.options.numeric_owner {
            return (owner.uid, owner.gid);
        }
        let uid = Some(&owner.user)
            .filter(|name| !name.is_empty())
            .and_then(|name| self.names.uid(name));
        let gid = Some(&owner.group)
            .filter(|name| !name.is_empty())
            .and_then(|name| self.names.gid(name));
        (uid.unwrap_or(owner.uid), gid.unwrap_or(owner.gid))
    }

    /// What new files get where `path` is; unknown where directories of others are written into, and of the places
    /// themselves, which may have been there before.
    pub(crate) fn fresh(
        &self,
        path: &[u8],
        stat: impl FnOnce() -> io::Result<Stat>,
        mode: u32,
    ) -> Option<Fresh> {
        let (place, rest) = self.places.resolve(path);
        if self.options.overwrite || rest.is_empty() {
            return None;
        }
        let known = &place.fresh;
        if known.get().is_none() {
            let stat = stat().ok()?;
            let _ = known.set(Fresh {
                owner: (stat.uid, stat.gid),
                mode_kept: stat.mode == mode,
            });
        }
        known.get().copied()
    }

    /// The group that a new file gets at `path`, if that and nobody else can get at it: unknown where directories of others are
    /// written into.
    pub(crate) fn group_of_new(&self, path: &[u8]) -> Option<u32> {
        let (place, _) = self.places.resolve(path);
        place
            .maker
            .get()
            .map(|maker| maker.1)
            .filter(|_| !self.options.overwrite && !place.passes_on_default_acl)
    }

    /// Does the file system where `path` is surely keep this time? Those of 32 bits end in 2038, and some begin in 1970.
    pub(crate) fn keeps(&self, path: &[u8], time: Time) -> bool {
        let (place, _) = self.places.resolve(path);
        place.keeps_nanos.get() == Some(&true) && (0..=i64::from(i32::MAX)).contains(&time.seconds)
    }

    /// May what stands at `path` have attributes and access lists that nobody gave it? Unknown where directories of others
    /// are written into: there each of them is to be asked.
    pub(crate) fn wears(&self, path: &[u8]) -> Option<bool> {
        let (place, rest) = self.places.resolve(path);
        (!self.options.overwrite).then_some(rest.is_empty() || place.passes_on_default_acl)
    }

    /// Remember the file system of a directory that was there before.
    pub(crate) fn touch(&self, fd: OwnedFd) -> io::Result<()> {
        let dev = dir::stat_fd(&fd)?.dev;
        if let hash_map::Entry::Vacant(new) = self.systems.locked().entry(dev) {
            self.goes(durable::sync_method(&fd)?);
            new.insert(fd);
        }
        Ok(())
    }

    /// Do `make`, which makes what is called `name` or takes what is there. Not if that was made under another name.
    ///
    /// Where names may be taken for others this is done by one thread at a time: none finds what another has made and not
    /// remembered yet.
    pub(crate) fn making<T>(
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
        let before = dir::stat(&dir, name).ok();
        if before.is_some_and(|stat| made.is_taken(path, &stat)) {
            return Err(taken());
        }
        let done = make()?;
        before.iter().for_each(|stat| made.forget(stat));
        made.note(path, &dir::stat(&dir, name)?);
        Ok(done)
    }

    /// Was what is called `name` made under another name than `path`?
    pub(crate) fn is_taken(&self, path: &[u8], dir: impl AsFd, name: &[u8]) -> bool {
        self.made.as_ref().is_some_and(|made| {
            let made = made.locked();
            dir::stat(dir, name).is_ok_and(|stat| made.is_taken(path, &stat))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::entry::{Entry, EntryKind};
    use crate::target::writer::TargetWriter;
    use std::fs;

    /// A tree that takes names of another case for the same. Where they are not, a test makes the other name.
    fn folding(root: &std::path::Path) -> Arc<TargetTree> {
        let options = TargetOptions {
            overwrite: true,
            ..TargetOptions::default()
        };
        let tree = TargetTree::create(&TargetLayout::plain(root), options).unwrap();
        let mut tree = Arc::into_inner(tree).unwrap();
        tree.made.get_or_insert_default();
        Arc::new(tree)
    }

    fn file(path: &str, data: &str) -> Entry {
        let kind = EntryKind::File {
            size: data.len() as u64,
            map: None,
        };
        Entry {
            path: path.as_bytes().to_vec(),
            kind,
            mode: 0o644,
            ..Entry::default()
        }
    }

    #[test]
    fn what_a_restore_has_made_is_not_replaced_under_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("Case"), "from before").unwrap();
        let mut writer = TargetWriter::new(&folding(dir.path()));
        writer.file(&file("Case", "one"), b"one").unwrap();
        fs::hard_link(at("Case"), at("case")).unwrap();
        let error = writer.file(&file("case", "two"), b"two").unwrap_err();
        assert_eq!(
            (error.kind, error.hint.is_none()),
            (ErrorKind::Exists, true),
            "{}",
            error.line()
        );
        assert_eq!(
            writer.link(b"case", b"other").unwrap_err().kind,
            ErrorKind::NotFound
        );
        assert_eq!(fs::read(at("case")).unwrap(), b"one");
        // A name of a file of which another name was replaced.
        fs::write(at("x"), "x").unwrap();
        fs::hard_link(at("x"), at("y")).unwrap();
        writer
            .tree
            .making(b"x", fs::File::open(dir.path()).unwrap(), b"x", || Ok(()))
            .unwrap();
        [("x", "anew"), ("y", "anew too")]
            .iter()
            .for_each(|(name, data)| {
                writer.file(&file(name, data), data.as_bytes()).unwrap();
            });
        // The same name again, as a tar may have it.
        writer.file(&file("Case", "three"), b"three").unwrap();
        assert_eq!(
            (fs::read(at("Case")).unwrap(), fs::read(at("case")).unwrap()),
            (b"three".into(), b"one".into())
        );
    }

    #[test]
    fn a_directory_that_a_restore_has_made_is_not_entered_under_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("before")).unwrap();
        let make = |path: &str, writer: &mut TargetWriter| {
            writer.directory(
                &Entry {
                    kind: EntryKind::Directory,
                    ..file(path, "")
                },
                true,
            )
        };
        let mut writer = TargetWriter::new(&folding(dir.path()));
        assert!(make("Dir", &mut writer).unwrap() && !make("before", &mut writer).unwrap());
        writer.file(&file("Implied/f", ""), b"").unwrap();
        for [name, other] in [["Dir", "dir"], ["before", "BEFORE"], ["Implied", "implied"]] {
            fs::create_dir(at(other)).unwrap();
            let error = make(other, &mut writer).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Exists, "{}", error.line());
            let below = file(&format!("{other}/in/it"), "");
            assert_eq!(
                writer.file(&below, b"").unwrap_err().kind,
                ErrorKind::Exists
            );
            assert_eq!(fs::read_dir(at(other)).unwrap().count(), 0);
            writer
                .file(&file(&format!("{name}/in/it"), ""), b"")
                .unwrap();
        }
    }
}
