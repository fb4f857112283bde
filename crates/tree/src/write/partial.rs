//! Files that are too large to be written again after an interruption.
//!
//! While such a file is written, it has a hidden name beside its final one, which only depends on
//! that. So a later run finds it, compares its blocks and goes on. It belongs to this user alone, and
//! is taken for one only if it does.

use super::{
    access::PRIVATE,
    replace::{NewFile, PendingPlace, ReplaceName},
    writer::TargetWriter,
};
use fullbore_format::{
    digest::{Digest, digests, hex},
    entry::{self, Entry},
    error::Result,
};
use fullbore_platform as platform;
use fullbore_platform::{
    dir::{self, FileKind},
    write,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// The start of the names of unfinished files.
const PREFIX: &[u8] = b".fullbore-copy-";

/// Bytes of the digest of a name in the name of its unfinished file.
const NAME_BYTES: usize = 12;

/// Returns the name of the unfinished file beside `name`.
fn partial_name(name: &[u8]) -> Vec<u8> {
    let digest = match digests(&[name]).first() {
        Some(Digest::Blake3(digest)) => hex(&digest[..NAME_BYTES]),
        _ => String::new(),
    };
    [PREFIX, digest.as_bytes()].concat()
}

/// Returns whether the last name of `path` is one of an unfinished file.
pub fn is_partial(path: &[u8]) -> bool {
    entry::split(path).1.starts_with(PREFIX)
}

impl NewFile {
    /// Returns whether a later run finds the file if this one is interrupted.
    pub(super) fn is_partial(&self) -> bool {
        matches!(self.place.name, ReplaceName::Partial(_))
    }
}

impl TargetWriter {
    /// Opens the unfinished file for `entry`, or makes the file `source` that, or creates it. Returns
    /// it, and whether it may have content.
    pub(super) fn partial_file(
        &mut self,
        entry: &Entry,
        source: Option<&[u8]>,
    ) -> Result<(NewFile, bool)> {
        let tree = self.tree.clone();
        let path = entry.path.clone();
        let moved = match source {
            Some(source) => self.take_over(entry, source)?,
            None => None,
        };
        let (dir, name) = self.enter(&path)?;
        let dir = dir.as_fd();
        // The name follows from that of the entry, so an interrupted copy is found and continued.
        let partial = partial_name(name);
        let opened = tree.with_write_access(&path, dir, || open_partial(dir, &partial, moved));
        let (fd, has_content) = opened.map_err(|e| tree.error("create", &path, e))?;
        let made = NewFile {
            file: fd.into(),
            place: PendingPlace {
                name: ReplaceName::Partial(partial),
                is_placed: false.into(),
                tree: tree.clone(),
                path,
            },
        };
        if !has_content {
            let reserved = made.reserve(entry, false);
            reserved.map_err(|e| tree.error("write", &entry.path, e))?;
        }
        Ok((made, has_content))
    }

    /// Renames the file `source` to the name of the unfinished file for `entry`, if it has no other
    /// name and only users whom the entry admits can have it open. Returns its device and inode.
    fn take_over(&mut self, entry: &Entry, source: &[u8]) -> Result<Option<(u64, u64)>> {
        let tree = self.tree.clone();
        let (parent, old) = tree.places.split(source);
        let Ok(from_dir) = tree.open_dir(parent) else {
            return Ok(None);
        };
        let Ok(file) = write::open_write(&from_dir, old) else {
            return Ok(None);
        };
        let stat = dir::stat_fd(&file).map_err(|e| tree.error("rename", source, e))?;
        // A further name would show the file while it is half changed.
        let is_alone = stat.kind == FileKind::File && stat.nlink == 1;
        if !is_alone || !self.may_keep_file(entry, &file, &stat)? {
            return Ok(None);
        }
        let (dir, name) = self.enter(&entry.path)?;
        let partial = partial_name(name);
        let renamed = tree.with_write_access(&entry.path, dir.as_fd(), || {
            write::rename_at(&from_dir, old, dir, &partial)
        });
        Ok(renamed.ok().map(|()| (stat.dev, stat.inode)))
    }
}

/// Opens an unfinished file, or creates one. One that was renamed just now may have another owner.
fn open_partial(
    dir: BorrowedFd<'_>,
    name: &[u8],
    moved: Option<(u64, u64)>,
) -> io::Result<(OwnedFd, bool)> {
    if let Ok(file) = write::open_write(dir, name) {
        let stat = dir::stat_fd(&file)?;
        // A file that others can have open could change below the new content.
        let is_private = stat.uid == platform::user_id() && stat.mode & 0o077 == 0;
        if stat.kind == FileKind::File
            && stat.nlink == 1
            && (is_private || moved == Some((stat.dev, stat.inode)))
        {
            return Ok((file, true));
        }
    }
    match write::unlink_at(dir, name) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    Ok((write::create_file(dir, name, PRIVATE)?, false))
}
