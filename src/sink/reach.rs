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

impl Writer {
    /// May a file that is there stay? Only if nobody can have it open who may not by its entry: it is ours or that of its owner to
    /// be, and neither group nor others nor anybody of a list may do more with it. Or if a new one would be no better.
    pub(super) fn may_stay(&mut self, entry: &Entry, file: impl AsFd, stat: &Stat) -> Result<bool> {
        let failed = |writer: &Self, e| writer.tree.error("look at", &entry.path, e);
        let (uid, gid) = self.numbers(&entry.owner);
        let for_group = group_exceeds(stat.mode, entry.mode);
        let wanted = entry.xattrs.iter().find(|(name, _)| name == LIST);
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
        let wanted = entry.xattrs.iter().find(|(name, _)| name == LIST);
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

/// May the group of a file of mode `has` do what others may not by the mode `wanted`? Then it matters which group it is, and
/// whom a list names.
fn group_exceeds(has: u32, wanted: u32) -> bool {
    (has >> 3) & 0o7 & !wanted != 0
}

fn list(file: impl AsFd) -> io::Result<Option<Xattr>> {
    Ok(xattr::read_all(file)?.into_iter().find(|(name, _)| name == LIST))
}
