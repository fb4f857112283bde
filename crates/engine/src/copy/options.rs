//! The request for a copy: both ends, the options, and when two entries count as equal.

use super::{
    call::{OpenTarget, OwnerRights},
    rules::CopyRules,
    sources::CopySource,
};
use fullbore_format::{
    acl,
    entry::{Entry, EntryKind, Xattr},
    entry_difference::{EntryDifference, difference},
};
use fullbore_tree::write::{deletion_limit::DeletionLimit, xattrs::has_only_xattrs};
use std::path::{Path, PathBuf};

/// A larger file is copied block by block.
pub(super) const LARGE_FILE: u32 = 1 << 20;

/// Hears of entries, from any thread.
pub trait CopyWatch: Send + Sync {
    /// An entry is new (`+`), changed (`~`), or no longer needed (`-`).
    fn entry(&self, sign: char, path: &[u8]);

    /// All entries so far are shown before this returns: what follows may remove them.
    fn flush(&self);
}

/// Options of a copy.
#[derive(Debug, Clone, Default)]
pub struct CopyOptions {
    /// The rules that leave out files, on both sides.
    pub rules: CopyRules,
    /// Whether files are deleted that only the target has.
    pub delete: bool,
    /// Whether content is compared, also of files whose size and time are equal.
    pub checksum: bool,
    /// A dry run: nothing is written.
    pub dry_run: bool,
    /// Whether owners are set and compared by number.
    pub numeric_owner: bool,
    /// Whether files are deleted that patterns and marks leave out.
    pub delete_excluded: bool,
    /// How much may be deleted.
    pub limit: DeletionLimit,
    /// The owners that the side that writes can set; `None` if it can set all. Told by that side.
    pub owners: Option<OwnerRights>,
}

impl CopyOptions {
    /// The rights that such a copy needs to the target at `path`, which may be empty if the other
    /// side chooses it.
    pub fn target(&self, path: &Path, may_be_file: bool) -> OpenTarget {
        use std::os::unix::ffi::OsStrExt;
        OpenTarget {
            may_be_file,
            path: path.as_os_str().as_bytes().to_vec(),
            rules: self.rules.clone(),
            numeric_owner: self.numeric_owner,
            dry_run: self.dry_run,
            checksum: self.checksum,
            delete: self.delete,
            delete_excluded: self.delete_excluded,
            limit: self.limit,
        }
    }

    pub(super) fn deletion_rules(&self) -> CopyRules {
        self.rules.of_deletion(self.delete_excluded)
    }

    pub(super) fn removes_whole_directories(&self) -> bool {
        self.deletion_rules().removes_whole_directories()
    }

    /// Returns whether the content of both files is compared before they count as changed.
    pub(super) fn is_compared(&self, entry: &Entry, there: &Entry) -> bool {
        self.checksum && there.path == entry.path && there.size() == entry.size()
    }

    /// Compares an entry of the source with one of the target, by the owners and attributes that a
    /// copy would set.
    pub(super) fn difference(&self, entry: &Entry, there: &Entry) -> EntryDifference {
        EntryDifference {
            owner: !self.is_same_owner(entry, there),
            mode: !self.is_same_mode(entry, there),
            attributes: !self.has_same_xattrs(entry, there),
            ..difference(entry, there)
        }
    }

    /// Returns whether an entry of the target has the mode that it would get.
    pub(super) fn is_same_mode(&self, entry: &Entry, there: &Entry) -> bool {
        let keeps_bits = entry.kind == EntryKind::Directory || self.may_set_owner(entry);
        // Without the right owner, a file gets no setuid and setgid bits.
        let wanted = match keeps_bits {
            true => entry.mode,
            false => entry.mode & !0o6000,
        };
        wanted == there.mode
    }

    fn may_set_owner(&self, entry: &Entry) -> bool {
        let rights = self.owners.as_ref();
        rights.is_none_or(|rights| rights.may_set(&entry.owner, self.numeric_owner))
    }

    /// Returns whether an entry of the target has the attributes of the source, and no other that a
    /// copy would remove.
    pub(super) fn has_same_xattrs(&self, entry: &Entry, there: &Entry) -> bool {
        let is_same = |wanted: &Xattr, there: &Xattr| {
            let is_same_list = || {
                acl::is_list(&wanted.0)
                    && acl::is_same_list(&wanted.1, &there.1, self.numeric_owner)
            };
            wanted.0 == there.0 && (wanted.1 == there.1 || is_same_list())
        };
        if self.owners.is_none() {
            return has_only_xattrs(entry, &there.xattrs, is_same);
        }
        // A user cannot set those of root.
        let is_settable = |xattr: &&Xattr| {
            !xattr.0.starts_with(b"trusted.") && !xattr.0.starts_with(b"security.")
        };
        let settable = |all: &[Xattr]| all.iter().filter(is_settable).cloned().collect();
        let wanted = Entry {
            xattrs: settable(&entry.xattrs),
            ..entry.clone()
        };
        let there: Vec<Xattr> = settable(&there.xattrs);
        has_only_xattrs(&wanted, &there, is_same)
    }

    /// Returns whether an entry of the target has the owner and group that it would get: by name, if
    /// both have one.
    pub(super) fn is_same_owner(&self, one: &Entry, other: &Entry) -> bool {
        if !self.may_set_owner(one) {
            return true;
        }
        let (one, other) = (&one.owner, &other.owner);
        let has_names = |a: &str, b: &str| !self.numeric_owner && !a.is_empty() && !b.is_empty();
        let user = match has_names(&one.user, &other.user) {
            true => one.user == other.user,
            false => one.uid == other.uid,
        };
        let group = match has_names(&one.group, &other.group) {
            true => one.group == other.group,
            false => one.gid == other.gid,
        };
        user && group
    }
}

/// A copy.
#[derive(Debug, Clone, Default)]
pub struct TreeCopy {
    /// A directory whose content is copied, or files and directories, each with its place.
    pub from: Vec<CopySource>,
    /// Path of the target, if this side chooses it: a directory whose content it becomes, or below
    /// which the sources are written.
    pub to: Option<PathBuf>,
    /// Whether the source is a single file, and the target may be the file and no directory.
    pub may_be_file: bool,
    /// Whether the target is on this machine.
    pub is_near: bool,
    /// The options.
    pub options: CopyOptions,
}
