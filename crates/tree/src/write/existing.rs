//! An object that is at a path before it gets its metadata.

use fullbore_format::entry::EntryKind;
use fullbore_platform::dir::{FileKind, Stat};
use std::io;

/// State of a file or directory before it gets its metadata.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Before {
    /// Created by this run, with this mode.
    Made(u32),
    /// Possibly older than this run, with these attributes.
    There(Stat),
}

/// Returns whether the existing object has the kind of the entry.
pub(crate) fn is_of_kind(stat: &Stat, kind: &EntryKind) -> bool {
    match kind {
        EntryKind::Symlink(_) => stat.kind == FileKind::Symlink,
        EntryKind::Fifo => stat.kind == FileKind::Fifo,
        EntryKind::CharDevice(device) => (stat.kind, stat.rdev) == (FileKind::CharDevice, *device),
        EntryKind::BlockDevice(device) => {
            (stat.kind, stat.rdev) == (FileKind::BlockDevice, *device)
        }
        _ => false,
    }
}

/// The error for an object that is not the one that this restore created.
pub(crate) fn replaced_error() -> io::Error {
    io::Error::other("another object has replaced it since")
}
