//! Copies of files that take no more names, see [`super::link`].

use fullbore_format::entry::EntryPath;
use std::collections::HashMap;

/// Device and inode number.
pub(super) type Inode = (u64, u64);

/// For each file at the limit, the copies that take its further names, the latest last. Keyed by
/// inode, because a tar can hold another file of the same name later.
pub(crate) type LinkCopies = HashMap<Inode, Vec<LinkCopy>>;

/// A copy of a file that takes no more names.
#[derive(Debug, Clone)]
pub(crate) struct LinkCopy {
    pub(super) path: EntryPath,
    pub(super) inode: Inode,
}
