//! Extended attributes of an entry, compared with those that an object has.

use fullbore_format::{
    acl::{is_list, local_list},
    entry::{Entry, Xattr},
};
use fullbore_platform::owner::OwnerNames;

/// Returns the names of the user and administrator attributes, access lists and capabilities that
/// the entry lacks.
pub(super) fn extra_xattrs<'a>(
    entry: &'a Entry,
    present: &'a [Xattr],
) -> impl Iterator<Item = &'a [u8]> {
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
