//! Giving files, directories, links and devices their owner, mode, attributes and times.
//!
//! What an object has and its entry has not is taken off: attributes of users, and access lists, which also come from the
//! directory it was made in. So the result is the entry's whatever the target was like. What the system refuses is noted.

use super::{
    access::{mode_before_list, mode_without_list, replaced},
    tree::TargetTree,
    writer::{TargetWriter, is_of_kind},
};
use crate::{
    error::{Result, quoted, reason},
    format::entry::{Entry, EntryKind, Xattr},
    platform::{
        dir::{self, Stat},
        durable,
        unopened::UnopenedObject,
        write, xattr,
    },
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

/// What a file or directory was before it got its metadata.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Before {
    /// It was made just now, with this mode.
    Made(u32),
    /// It may have been there for long.
    There(Stat),
}

impl TargetWriter {
    /// Give an open file or directory owner, mode, attributes and times, in the order the system needs: a change of owner
    /// takes setuid and capabilities away, an ACL changes with the mode, and `user.` attributes want a file that may be
    /// written. What it should not have is taken off first.
    pub(crate) fn dress(
        &mut self,
        fd: BorrowedFd<'_>,
        entry: &Entry,
        before: Before,
    ) -> Result<()> {
        let failed = |tree: &TargetTree, e| tree.error("set the metadata of", &entry.path, e);
        let wears = self.wears(&entry.path, before)?;
        if wears {
            let there = xattr::read_all(fd).map_err(|e| failed(&self.tree, e))?;
            self.undress(entry, &there, |name| xattr::remove_fd(fd, name))?;
        }
        let (mode, owner) = self.known(&entry.path, before, || dir::stat_fd(fd));
        let owned = self.own(entry, owner, |uid, gid| write::chown_fd(fd, uid, gid))?;
        let set = |name: &[u8], value: &[u8]| xattr::set_fd(fd, name, value);
        self.attributes(entry, true, set)?;
        let wanted = allowed_mode(entry, owned);
        let first = mode_before_list(entry, wanted);
        let inherited = wears && matches!(before, Before::Made(_));
        // Setuid and setgid may have been lost by what came before.
        if ![Some(wanted), Some(first)].contains(&mode) || inherited || wanted & 0o6000 != 0 {
            self.allowed(entry, "mode", write::chmod_fd(fd, first))?;
        }
        if !self.attributes(entry, false, set)? && first != wanted {
            self.allowed(
                entry,
                "mode",
                write::chmod_fd(fd, mode_without_list(entry, wanted)),
            )?;
        }
        self.time(entry, write::set_times_fd(fd, entry.mtime), || {
            dir::stat_fd(fd)
        })?;
        match self.tree.settles_each() {
            true => durable::sync_and_close(fd)
                .map_err(|e| self.tree.error("make durable", &entry.path, e)),
            false => Ok(()),
        }
    }

    /// May it have attributes or an access list that nobody gave it?
    fn wears(&mut self, path: &[u8], before: Before) -> Result<bool> {
        match (self.tree.wears(path), before) {
            (Some(known), _) => Ok(known),
            (None, Before::There(_)) => Ok(true),
            (None, Before::Made(_)) => {
                self.enter(path)?;
                Ok(self.inherits())
            }
        }
    }

    /// Mode and owner that it has, as far as they are known.
    fn known(
        &self,
        path: &[u8],
        before: Before,
        stat: impl FnOnce() -> io::Result<Stat>,
    ) -> (Option<u32>, Option<(u32, u32)>) {
        match before {
            Before::There(stat) => (Some(stat.mode), Some((stat.uid, stat.gid))),
            Before::Made(mode) => {
                let fresh = self.tree.fresh(path, stat, mode);
                (
                    fresh.is_none_or(|fresh| fresh.mode_kept).then_some(mode),
                    fresh.map(|fresh| fresh.owner),
                )
            }
        }
    }

    /// Take away the attributes of users, the access lists and the capabilities that are there and the entry does not have.
    fn undress(
        &self,
        entry: &Entry,
        there: &[Xattr],
        remove: impl Fn(&[u8]) -> io::Result<()>,
    ) -> Result<()> {
        for name in unwanted(entry, there) {
            let done = remove(name);
            self.attribute(entry, "remove", name, done)?;
        }
        Ok(())
    }

    /// Set the owner if it is another than the one it has. Is it the right one now? What the system refuses is noted.
    fn own(
        &mut self,
        entry: &Entry,
        has: Option<(u32, u32)>,
        set: impl Fn(u32, u32) -> io::Result<()>,
    ) -> Result<bool> {
        let wanted = self.numbers(&entry.owner);
        if has == Some(wanted) {
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

    /// What came of setting mode or time: who may give files away may not do that to what is another's by then. That is noted.
    fn allowed(&self, entry: &Entry, what: &str, done: io::Result<()>) -> Result<()> {
        match done {
            Err(e) if write::is_forbidden(&e) => {
                self.tree.notes.add(what, &reason(&e), &entry.path);
                Ok(())
            }
            done => done.map_err(|e| self.tree.error("set the metadata of", &entry.path, e)),
        }
    }

    /// Set the attributes that are `user.` ones, or those that are not. Are all of them set? What the system refuses is noted.
    fn attributes(
        &self,
        entry: &Entry,
        user: bool,
        set: impl Fn(&[u8], &[u8]) -> io::Result<()>,
    ) -> Result<bool> {
        let mut all = true;
        for (name, value) in entry
            .xattrs
            .iter()
            .filter(|(name, _)| name.starts_with(b"user.") == user)
        {
            all &= self.attribute(entry, "set", name, set(name, value))?;
        }
        Ok(all)
    }

    /// What came of setting or removing an attribute: was it done? What the system refuses is noted.
    fn attribute(
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

    /// As [`Writer::dress`], of what cannot be opened and was made just now.
    pub(crate) fn dress_at(&mut self, entry: &Entry) -> Result<()> {
        let tree = self.tree.clone();
        let (dir, name) = self.enter(&entry.path)?;
        let dir = dir
            .try_clone()
            .map_err(|e| tree.error("open the directory of", &entry.path, e))?;
        let failed = |e| tree.error("set the metadata of", &entry.path, e);
        let object = UnopenedObject::open(dir.as_fd(), name).map_err(failed)?;
        let stat = object.stat().map_err(failed)?;
        if !is_of_kind(&stat, &entry.kind) || !tree.may_have_made(&entry.path, &dir, &stat) {
            return Err(failed(replaced()));
        }
        let is_link = matches!(entry.kind, EntryKind::Symlink(_));
        let before = Before::Made(if is_link {
            0o777
        } else {
            self.creation_mode(entry)
        });
        let inherited = !is_link && self.wears(&entry.path, before)?; // links have no lists
        if inherited {
            let there = object.xattrs().map_err(failed)?;
            self.undress(entry, &there, |attribute| object.remove_xattr(attribute))?;
        }
        let owned = self.own(entry, Some((stat.uid, stat.gid)), |uid, gid| {
            object.chown(uid, gid)
        })?;
        let wanted = allowed_mode(entry, owned);
        let first = mode_before_list(entry, wanted);
        if !is_link && (inherited || stat.mode != first) {
            self.allowed(entry, "mode", object.chmod(first))?;
        }
        let set = |attribute: &[u8], value: &[u8]| object.set_xattr(attribute, value);
        let all = self.attributes(entry, true, set)? & self.attributes(entry, false, set)?;
        if !is_link && !all && first != wanted {
            self.allowed(
                entry,
                "mode",
                object.chmod(mode_without_list(entry, wanted)),
            )?;
        }
        self.time(entry, object.set_times(entry.mtime), || object.stat())
    }

    /// What came of setting the time: not every file system keeps each of them. Those that are not kept are noted.
    fn time(
        &self,
        entry: &Entry,
        done: io::Result<()>,
        stat: impl FnOnce() -> io::Result<Stat>,
    ) -> Result<()> {
        let is_set = done.is_ok();
        self.allowed(entry, "time", done)?;
        if is_set
            && !self.tree.keeps(&entry.path, entry.mtime)
            && stat().is_ok_and(|stat| stat.mtime != entry.mtime)
        {
            self.tree
                .notes
                .add("exact time", "the file system cannot keep it", &entry.path);
        }
        Ok(())
    }
}

/// What runs as its owner or group must not run as somebody else.
fn allowed_mode(entry: &Entry, owned: bool) -> u32 {
    let directory = matches!(entry.kind, EntryKind::Directory);
    if owned || directory {
        entry.mode
    } else {
        entry.mode & !0o6000
    }
}

/// The attributes of users and of administrators, the access lists and the capabilities among these that the entry does not have.
fn unwanted<'a>(entry: &'a Entry, there: &'a [Xattr]) -> impl Iterator<Item = &'a [u8]> {
    let ours = |name: &[u8]| {
        let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"system.posix_acl_"];
        prefixes.iter().any(|prefix| name.starts_with(prefix)) || name == b"security.capability"
    };
    let wanted = |name: &[u8]| entry.xattrs.iter().any(|(wanted, _)| wanted == name);
    there
        .iter()
        .map(|(name, _)| &name[..])
        .filter(move |name| ours(name) && !wanted(name))
}

/// Has what has these attributes all that the entry has, and none that would be taken away?
pub(crate) fn wears(entry: &Entry, there: &[Xattr]) -> bool {
    entry.xattrs.iter().all(|wanted| there.contains(wanted))
        && unwanted(entry, there).next().is_none()
}
