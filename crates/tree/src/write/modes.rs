//! Modes of files and directories while they are restored, and with access lists. Changes nothing.

use fullbore_format::{
    acl::{ACCESS_LIST, rights_of_group},
    entry::{Entry, Xattr},
};
use fullbore_platform::{self as platform, dir::Stat};

/// Mode bits that a directory's owner needs to change entries in the directory.
pub(super) const OWNER_ACCESS: u32 = 0o300;
/// Mode bits of the group. For a file with an access list, they are the most that the list grants.
pub(super) const GROUP_BITS: u32 = 0o070;
/// Setuid, setgid and sticky bits. A change of owner clears them, so they are set after it.
pub(super) const SPECIAL_BITS: u32 = 0o7000;
/// Mode of a new file until it gets its final metadata.
pub(super) const PRIVATE: u32 = 0o600;

/// Returns whether this process owns the directory but lacks the permission to write to it.
pub(super) fn can_add_write_access(dir: &Stat) -> bool {
    let mine = platform::user_id();
    mine != 0 && dir.uid == mine && dir.mode & OWNER_ACCESS != OWNER_ACCESS
}

/// Returns the mode to set before the access list. The mask of the list would otherwise count as
/// the rights of the group.
pub(super) fn mode_before_list(entry: &Entry, wanted: u32) -> u32 {
    if access_list_of(entry).is_some() {
        wanted & !GROUP_BITS
    } else {
        wanted
    }
}

/// Returns the mode of a file whose access list could not be set. The group gets its own rights of
/// the list, not the mask.
pub(super) fn mode_without_list(entry: &Entry, wanted: u32) -> u32 {
    access_list_of(entry).map_or(wanted, |(_, list)| {
        wanted & (!GROUP_BITS | rights_of_group(list) << 3)
    })
}

pub(super) fn access_list_of(entry: &Entry) -> Option<&Xattr> {
    entry.xattrs.iter().find(|(name, _)| name == ACCESS_LIST)
}

/// Returns whether the group of a file with mode `current` may do more than others may by the mode
/// `wanted`. Only then the identity of the group and the users in a list matter.
pub(super) fn group_exceeds(current: u32, wanted: u32) -> bool {
    (current >> 3) & 0o7 & !wanted != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user and group that do not exist.
    const OTHER: u32 = 12_345;

    #[test]
    fn without_its_list_a_file_gives_its_group_no_more_than_the_list_did() {
        let entry = |tag: u16, rights: u16, id: u32| {
            [
                &tag.to_le_bytes()[..],
                &rights.to_le_bytes(),
                &id.to_le_bytes(),
            ]
            .concat()
        };
        let list = |group: u16| {
            let entries = [
                entry(1, 6, !0),
                entry(2, 7, OTHER),
                entry(4, group, !0),
                entry(16, 7, !0),
                entry(32, 0, !0),
            ];
            [&2u32.to_le_bytes()[..], &entries.concat()].concat()
        };
        for (group, mode) in [(0, 0o600), (4, 0o640), (7, 0o670)] {
            let entry = Entry {
                mode: 0o670,
                xattrs: vec![(ACCESS_LIST.to_vec(), list(group))],
                ..Entry::default()
            };
            assert_eq!(mode_without_list(&entry, entry.mode), mode, "{group}");
        }
        assert_eq!(
            mode_without_list(
                &Entry {
                    mode: 0o670,
                    ..Entry::default()
                },
                0o670
            ),
            0o670
        );
    }
}
