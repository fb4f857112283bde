//! Who can get at what is restored while that goes on, and may not in the end.
//!
//! Who has a file open keeps it, whatever its owner and mode become: he reads what is written to it, or writes to what was
//! found to be right.

use super::{trial::trial, writer::Writer};
use crate::{
    error::Result,
    format::entry::{Entry, Xattr},
    platform::{
        self,
        walk::{self, Stat},
        write, xattr,
    },
};
use std::{io, os::fd::AsFd};

/// The access list of a file.
const LIST: &[u8] = b"system.posix_acl_access";
/// What a mode gives the group; of a file with a list, the most that the list gives.
const GROUP: u32 = 0o070;
/// Setuid, setgid, sticky: lost by a change of owner, so set after it.
const SPECIAL: u32 = 0o7000;
/// Mode of what gets its own later.
pub(super) const PRIVATE: u32 = 0o600;

impl Writer {
    /// The final mode if nothing that follows would change it or need another, and by it nobody can open the file who may not in
    /// the end. That is so if its group may do what all may, or is right from the start.
    pub(super) fn creation_mode(&mut self, entry: &Entry) -> u32 {
        let later = entry.mode & SPECIAL != 0 || !entry.xattrs.is_empty();
        let is_equal = (entry.mode >> 3 ^ entry.mode) & 0o7 == 0;
        let is_right = is_equal || self.tree.group_of_new(&entry.path) == Some(self.numbers(&entry.owner).1);
        if later || !is_right { PRIVATE } else { entry.mode }
    }

    /// May a file that is there stay? Only if nobody can have it open who may not by its entry: it is ours or that of its owner to
    /// be, and neither group nor others nor anybody of a list may do more with it. Or if a new one would be no better.
    pub(super) fn may_stay(&mut self, entry: &Entry, file: impl AsFd, stat: &Stat) -> Result<bool> {
        let failed = |writer: &Self, e| writer.tree.error("look at", &entry.path, e);
        let (uid, gid) = self.numbers(&entry.owner);
        let for_group = group_exceeds(stat.mode, entry.mode);
        let wanted = list_of(entry);
        let is_listed = stat.mode & 0o077 != 0 && (for_group || wanted.is_some());
        let there = if is_listed { list(&file).map_err(|e| failed(self, e))? } else { wanted.cloned() };
        let is_narrow = [uid, platform::user().0].contains(&stat.uid)
            && stat.mode & 0o077 & !entry.mode == 0
            && (stat.gid == gid || !for_group)
            && there.as_ref() == wanted;
        Ok(is_narrow || self.is_as_new(entry, stat, there.as_ref())?)
    }

    /// Would a new file be within the reach of just as many? So it is where the system does not keep owners, modes and lists, or
    /// does not let us set them.
    fn is_as_new(&mut self, entry: &Entry, there: &Stat, listed: Option<&Xattr>) -> Result<bool> {
        let tree = self.tree.clone();
        let (uid, gid) = self.numbers(&entry.owner);
        let wanted = list_of(entry);
        let (dir, _) = self.enter(&entry.path)?;
        let made = trial(dir, &tree.notes, |file, _| {
            // What the system refuses it would refuse again.
            let _ = write::chown_fd(file, uid, gid);
            let _ = write::chmod_fd(file, entry.mode & 0o777);
            let _ = match wanted {
                Some((name, value)) => xattr::set_fd(file, name, value),
                None => xattr::remove_fd(file, LIST),
            };
            Ok((walk::stat_fd(file)?, list(file)?))
        });
        let is_same = |(new, list): (Stat, Option<Xattr>)| {
            (new.uid, new.gid) == (there.uid, there.gid)
                && there.mode & 0o077 & !new.mode == 0
                && list.as_ref() == listed
        };
        Ok(made.and_then(io::Result::ok).is_some_and(is_same))
    }
}

/// The mode until the access list is set: what it gives to all of the list together would be the group's.
pub(super) fn mode_before_list(entry: &Entry, wanted: u32) -> u32 {
    if list_of(entry).is_some() { wanted & !GROUP } else { wanted }
}

fn list_of(entry: &Entry) -> Option<&Xattr> {
    entry.xattrs.iter().find(|(name, _)| name == LIST)
}

/// May the group of a file of mode `has` do what others may not by the mode `wanted`? Then it matters which group it is, and
/// whom a list names.
fn group_exceeds(has: u32, wanted: u32) -> bool {
    (has >> 3) & 0o7 & !wanted != 0
}

fn list(file: impl AsFd) -> io::Result<Option<Xattr>> {
    Ok(xattr::read_all(file)?.into_iter().find(|(name, _)| name == LIST))
}
