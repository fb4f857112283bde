//! Gives files, directories, links and devices their owner, mode, attributes and times.
//!
//! User attributes and access lists that the entry lacks are removed; a new object can inherit them
//! from its directory. So the result is the same in every target. A refusal of the system becomes a
//! warning.

use super::{
    access::{mode_before_list, mode_without_list, replaced_error},
    writer::{TargetWriter, is_of_kind},
};
use fullbore_format::{
    acl::{is_list, local_list},
    entry::{Entry, EntryKind, Xattr},
    error::{Result, quoted, reason},
};
use fullbore_platform::{
    dir::{self, Stat},
    durable,
    owner::OwnerNames,
    unopened::UnopenedObject,
    write, xattr,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// State of a file or directory before it gets its metadata.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Before {
    /// Created by this run, with this mode.
    Made(u32),
    /// Possibly older than this run, with these attributes.
    There(Stat),
}

/// The modes that an object gets one after the other. Only an access list makes them differ.
struct ModeSteps {
    wanted: u32,
    before_list: u32,
    /// Final mode if the access list could not be set.
    without_list: u32,
}

impl ModeSteps {
    fn of(entry: &Entry, owned: bool) -> Self {
        let wanted = allowed_mode(entry, owned);
        Self {
            wanted,
            before_list: mode_before_list(entry, wanted),
            without_list: mode_without_list(entry, wanted),
        }
    }

    /// Returns whether the object, whose mode is `current` if known, needs a call to set its mode.
    fn must_set(&self, current: Option<u32>) -> bool {
        let is_right = [Some(self.wanted), Some(self.before_list)].contains(&current);
        // Earlier calls may have cleared setuid and setgid.
        !is_right || self.wanted & 0o6000 != 0
    }

    fn has_list(&self) -> bool {
        self.before_list != self.wanted
    }
}

impl TargetWriter {
    /// Gives an open file or directory its owner, mode, attributes and times, and removes extra
    /// attributes first.
    ///
    /// The order matters: a change of owner clears setuid and capabilities, an ACL changes with the
    /// mode, and `user.` attributes need a writable file.
    pub(crate) fn apply_metadata(
        &mut self,
        fd: BorrowedFd<'_>,
        entry: &Entry,
        earlier: Before,
    ) -> Result<()> {
        let path = &entry.path;
        let may_have_extra = self.may_have_extra_xattrs(path, earlier)?;
        if may_have_extra {
            let present =
                xattr::read_all(fd).map_err(|e| self.tree.error("set the metadata of", path, e))?;
            self.remove_extra_xattrs(entry, &present, |name| xattr::remove_fd(fd, name))?;
        }
        let (mode, owner) = self.current_mode_and_owner(path, earlier, || dir::stat_fd(fd));
        let owned = self.apply_owner(entry, owner, |uid, gid| write::chown_fd(fd, uid, gid))?;
        let set = |name: &[u8], value: &[u8]| xattr::set_fd(fd, name, value);
        self.set_xattrs(entry, true, set)?;
        let modes = ModeSteps::of(entry, owned);
        let may_have_inherited = may_have_extra && matches!(earlier, Before::Made(_));
        if may_have_inherited || modes.must_set(mode) {
            let done = write::chmod_fd(fd, modes.before_list);
            self.warn_if_forbidden(entry, "mode", done)?;
        }
        // Without its list the mode of the group would grant what the list's mask was to limit.
        if !self.set_xattrs(entry, false, set)? && modes.has_list() {
            let done = write::chmod_fd(fd, modes.without_list);
            self.warn_if_forbidden(entry, "mode", done)?;
        }
        let done = write::set_times_fd(fd, entry.mtime);
        self.check_time_result(entry, done, || dir::stat_fd(fd))?;
        if self.tree.syncs_each_file() {
            let synced = match entry.kind {
                EntryKind::Directory => durable::sync_dir_and_close(fd),
                _ => durable::sync_and_close(fd),
            };
            synced.map_err(|e| self.tree.error("sync", path, e))?;
        }
        Ok(())
    }

    /// Returns whether the object can have attributes or an access list that are not in the backup.
    fn may_have_extra_xattrs(&mut self, path: &[u8], earlier: Before) -> Result<bool> {
        match (self.tree.may_have_extra_xattrs(path), earlier) {
            (Some(known), _) => Ok(known),
            (None, Before::There(_)) => Ok(true),
            (None, Before::Made(_)) => {
                self.enter(path)?;
                Ok(self.inherits_acl())
            }
        }
    }

    /// Returns the current mode and owner, as far as they are known.
    fn current_mode_and_owner(
        &self,
        path: &[u8],
        earlier: Before,
        stat: impl FnOnce() -> io::Result<Stat>,
    ) -> (Option<u32>, Option<(u32, u32)>) {
        match earlier {
            Before::There(stat) => (Some(stat.mode), Some((stat.uid, stat.gid))),
            Before::Made(mode) => match self.tree.new_file(path, stat, mode) {
                Some(attrs) => (attrs.keeps_mode.then_some(mode), Some(attrs.owner)),
                None => (Some(mode), None),
            },
        }
    }

    /// Removes user attributes, access lists and capabilities that the entry lacks.
    fn remove_extra_xattrs(
        &self,
        entry: &Entry,
        present: &[Xattr],
        remove: impl Fn(&[u8]) -> io::Result<()>,
    ) -> Result<()> {
        for name in extra_xattrs(entry, present) {
            let done = remove(name);
            self.check_xattr_result(entry, "remove", name, done)?;
        }
        Ok(())
    }

    /// Sets the owner unless it is right already. Returns whether the owner is right; a refusal
    /// becomes a warning.
    fn apply_owner(
        &mut self,
        entry: &Entry,
        current: Option<(u32, u32)>,
        set: impl Fn(u32, u32) -> io::Result<()>,
    ) -> Result<bool> {
        let wanted = self.owner_ids(&entry.owner);
        if current == Some(wanted) {
            return Ok(true);
        }
        match set(wanted.0, wanted.1) {
            Ok(()) => Ok(true),
            Err(e) if write::is_owner_refusal(&e) => {
                self.tree.notes.add("owner", &reason(&e), &entry.path);
                Ok(false)
            }
            Err(e) => Err(self.tree.error("set the owner of", &entry.path, e)),
        }
    }

    /// Turns a refusal to set mode or time into a warning. A user who may give files away may not
    /// change them afterwards.
    fn warn_if_forbidden(&self, entry: &Entry, property: &str, done: io::Result<()>) -> Result<()> {
        match done {
            Err(e) if write::is_forbidden(&e) => {
                self.tree.notes.add(property, &reason(&e), &entry.path);
                Ok(())
            }
            done => done.map_err(|e| self.tree.error("set the metadata of", &entry.path, e)),
        }
    }

    /// Sets the `user.` attributes, or all others. Returns whether all of them are set; a refusal
    /// becomes a warning.
    fn set_xattrs(
        &self,
        entry: &Entry,
        user: bool,
        set: impl Fn(&[u8], &[u8]) -> io::Result<()>,
    ) -> Result<bool> {
        let mut all = true;
        let wanted = entry.xattrs.iter();
        for attribute in wanted.filter(|(name, _)| name.starts_with(b"user.") == user) {
            let (name, _) = attribute;
            all &= match self.tree.local_value(attribute, &entry.path) {
                Some(value) => self.check_xattr_result(entry, "set", name, set(name, &value))?,
                None => false,
            };
        }
        Ok(all)
    }

    /// Returns whether an attribute was set or removed. A refusal becomes a warning; a full or
    /// failing disk is an error.
    fn check_xattr_result(
        &self,
        entry: &Entry,
        verb: &str,
        name: &[u8],
        done: io::Result<()>,
    ) -> Result<bool> {
        let Err(error) = done else { return Ok(true) };
        if write::is_disk_failure(&error) || self.tree.is_full(&entry.path, &error) {
            return Err(self
                .tree
                .error(&format!("{verb} an attribute of"), &entry.path, error));
        }
        let removal = if verb == "remove" { "removal of " } else { "" };
        self.tree.notes.add(
            &format!("{removal}attribute {}", quoted(name)),
            &reason(&error),
            &entry.path,
        );
        Ok(false)
    }

    /// As [`Self::apply_metadata`], for an object of this run that cannot be opened.
    pub(crate) fn apply_metadata_at(&mut self, entry: &Entry) -> Result<()> {
        let tree = self.tree.clone();
        let failed = tree.failed("set the metadata of", &entry.path);
        let (dir, name) = self.enter_shared(&entry.path)?;
        let object = UnopenedObject::open(dir.as_fd(), name).map_err(failed)?;
        let stat = object.stat().map_err(failed)?;
        // Between creation and now another user may have put an object of their own here, which
        // must not get the owner of the backup.
        if !is_of_kind(&stat, &entry.kind) || !tree.may_have_made(&entry.path, &dir, &stat) {
            return Err(failed(replaced_error()));
        }
        let owner = Some((stat.uid, stat.gid));
        if matches!(entry.kind, EntryKind::Symlink(_)) {
            self.apply_owner(entry, owner, |uid, gid| object.chown(uid, gid))?;
            self.set_all_xattrs(entry, &object)?;
        } else {
            self.apply_modes_at(entry, &object, &stat)?;
        }
        let done = object.set_times(entry.mtime);
        self.check_time_result(entry, done, || object.stat())
    }

    /// Gives an unopened object other than a link its owner, mode and attributes.
    fn apply_modes_at(
        &mut self,
        entry: &Entry,
        object: &UnopenedObject,
        stat: &Stat,
    ) -> Result<()> {
        let mode = self.creation_mode(entry);
        let may_have_inherited = self.may_have_extra_xattrs(&entry.path, Before::Made(mode))?;
        if may_have_inherited {
            let tree = self.tree.clone();
            let failed = tree.failed("set the metadata of", &entry.path);
            let present = object.xattrs().map_err(failed)?;
            self.remove_extra_xattrs(entry, &present, |name| object.remove_xattr(name))?;
        }
        let owner = Some((stat.uid, stat.gid));
        // The owner first: a change of owner clears setuid bits, which the mode sets afterwards.
        let owned = self.apply_owner(entry, owner, |uid, gid| object.chown(uid, gid))?;
        let modes = ModeSteps::of(entry, owned);
        if may_have_inherited || stat.mode != modes.before_list {
            let done = object.chmod(modes.before_list);
            self.warn_if_forbidden(entry, "mode", done)?;
        }
        let has_all = self.set_all_xattrs(entry, object)?;
        if !has_all && modes.has_list() {
            let done = object.chmod(modes.without_list);
            self.warn_if_forbidden(entry, "mode", done)?;
        }
        Ok(())
    }

    /// Sets all attributes of an unopened object. Returns whether the target took all of them.
    fn set_all_xattrs(&mut self, entry: &Entry, object: &UnopenedObject) -> Result<bool> {
        let set = |name: &[u8], value: &[u8]| object.set_xattr(name, value);
        Ok(self.set_xattrs(entry, true, set)? & self.set_xattrs(entry, false, set)?)
    }

    /// Opens the directory of `path`, also for use while the writer is in another one.
    fn enter_shared<'a>(&mut self, path: &'a [u8]) -> Result<(OwnedFd, &'a [u8])> {
        let tree = self.tree.clone();
        let (dir, name) = self.enter(path)?;
        let dir = dir.try_clone();
        let dir = dir.map_err(|e| tree.error("open the directory of", path, e))?;
        Ok((dir, name))
    }

    /// Checks the result of setting the time. A warning says when the file system does not store
    /// the exact time.
    fn check_time_result(
        &self,
        entry: &Entry,
        done: io::Result<()>,
        stat: impl FnOnce() -> io::Result<Stat>,
    ) -> Result<()> {
        let is_set = done.is_ok();
        self.warn_if_forbidden(entry, "time", done)?;
        if is_set
            && !self.tree.keeps_time(&entry.path, entry.mtime)
            && stat().is_ok_and(|stat| stat.mtime != entry.mtime)
        {
            self.tree
                .notes
                .add("exact time", "the file system cannot store it", &entry.path);
        }
        Ok(())
    }
}

/// Drops setuid and setgid if the owner could not be set, so that a program does not run as another
/// user.
fn allowed_mode(entry: &Entry, owned: bool) -> u32 {
    let directory = matches!(entry.kind, EntryKind::Directory);
    if owned || directory {
        entry.mode
    } else {
        entry.mode & !0o6000
    }
}

/// Returns the names of the user and administrator attributes, access lists and capabilities that
/// the entry lacks.
fn extra_xattrs<'a>(entry: &'a Entry, present: &'a [Xattr]) -> impl Iterator<Item = &'a [u8]> {
    let wanted = |name: &[u8]| entry.xattrs.iter().any(|(wanted, _)| wanted == name);
    present
        .iter()
        .map(|(name, _)| &name[..])
        .filter(move |name| is_managed_xattr(name) && !wanted(name))
}

fn is_managed_xattr(name: &[u8]) -> bool {
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"system.posix_acl_"];
    prefixes.iter().any(|prefix| name.starts_with(prefix)) || name == b"security.capability"
}

/// Returns whether `present` holds all attributes of the entry, by `is_same`, and no attribute that a
/// restore would remove.
pub fn has_only_xattrs(
    entry: &Entry,
    present: &[Xattr],
    is_same: impl Fn(&Xattr, &Xattr) -> bool,
) -> bool {
    entry
        .xattrs
        .iter()
        .all(|wanted| present.iter().any(|present| is_same(wanted, present)))
        && extra_xattrs(entry, present).next().is_none()
}

/// Returns whether an attribute of a backup is the one that an object has here: a list of permissions
/// with the users and groups that its names are here.
pub fn is_same_here(wanted: &Xattr, present: &Xattr, names: &OwnerNames, is_numeric: bool) -> bool {
    if wanted.0 != present.0 || !is_list(&wanted.0) {
        return wanted == present;
    }
    local_list(&wanted.1, names, is_numeric).is_ok_and(|local| local.raw == present.1)
}
