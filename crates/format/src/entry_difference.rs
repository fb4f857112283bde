//! The properties in which two entries differ.

use crate::entry::{Entry, EntryKind, same_xattrs};

/// The properties in which two entries differ; their paths, inodes and the times of their last
/// change of metadata are not compared.
///
/// A caller for whom a property means something else, or nothing, replaces it before it asks
/// [`EntryDifference::is_none`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryDifference {
    /// They are of different kinds, such as a file and a directory. The next three are false then.
    pub kind: bool,
    /// Two files of different sizes.
    pub size: bool,
    /// Two files with holes at different places.
    pub holes: bool,
    /// Two links with different targets, or two devices with different numbers.
    pub target: bool,
    /// Permission bits. The mode of a symbolic link has no meaning, so two links never differ here.
    pub mode: bool,
    /// Owner or group, by number or by name.
    pub owner: bool,
    /// Time of the last change of the content.
    pub mtime: bool,
    /// Extended attributes; their order does not count.
    pub attributes: bool,
}

/// Compares two entries.
pub fn difference(a: &Entry, b: &Entry) -> EntryDifference {
    EntryDifference {
        mode: a.mode != b.mode && !(is_symlink(a) && is_symlink(b)),
        owner: a.owner != b.owner,
        mtime: a.mtime != b.mtime,
        attributes: !same_xattrs(&a.xattrs, &b.xattrs),
        ..kind_difference(&a.kind, &b.kind)
    }
}

fn is_symlink(entry: &Entry) -> bool {
    matches!(entry.kind, EntryKind::Symlink(_))
}

/// Compares two kinds and their properties; all other properties are the same.
fn kind_difference(a: &EntryKind, b: &EntryKind) -> EntryDifference {
    let mut found = EntryDifference::default();
    match (a, b) {
        (
            EntryKind::File { size, map },
            EntryKind::File {
                size: other_size,
                map: other_map,
            },
        ) => {
            found.size = size != other_size;
            found.holes = map != other_map;
        }
        _ if std::mem::discriminant(a) != std::mem::discriminant(b) => found.kind = true,
        _ => found.target = a != b,
    }
    found
}

impl EntryDifference {
    /// Returns whether no property differs.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{ByteRun, Device, Owner, Time};

    fn file(size: u64) -> Entry {
        Entry {
            kind: EntryKind::File { size, map: None },
            ..Entry::default()
        }
    }

    fn of_kind(kind: EntryKind) -> Entry {
        Entry {
            kind,
            ..Entry::default()
        }
    }

    #[test]
    fn each_property_is_found_alone() {
        let none = EntryDifference::default();
        let holes = EntryKind::File {
            size: 7,
            map: Some(vec![ByteRun { offset: 1, len: 2 }].into()),
        };
        let owner = Owner {
            user: "anna".into(),
            ..Owner::default()
        };
        let mtime = Time {
            seconds: 0,
            nanos: 1,
        };
        let attribute = (b"user.a".to_vec(), b"1".to_vec());
        let changed = [
            (file(8), EntryDifference { size: true, ..none }),
            (
                of_kind(holes),
                EntryDifference {
                    holes: true,
                    ..none
                },
            ),
            (
                of_kind(EntryKind::Fifo),
                EntryDifference { kind: true, ..none },
            ),
            (
                Entry {
                    mode: 0o644,
                    ..file(7)
                },
                EntryDifference { mode: true, ..none },
            ),
            (
                Entry { owner, ..file(7) },
                EntryDifference {
                    owner: true,
                    ..none
                },
            ),
            (
                Entry { mtime, ..file(7) },
                EntryDifference {
                    mtime: true,
                    ..none
                },
            ),
            (
                Entry {
                    xattrs: vec![attribute],
                    ..file(7)
                },
                EntryDifference {
                    attributes: true,
                    ..none
                },
            ),
        ];
        for (other, wanted) in changed {
            assert_eq!(difference(&file(7), &other), wanted);
            assert_eq!(difference(&other, &file(7)), wanted);
            assert!(difference(&other, &other.clone()).is_none());
        }
    }

    #[test]
    fn links_and_devices_differ_by_target() {
        let device = |minor| of_kind(EntryKind::CharDevice(Device { major: 1, minor }));
        assert!(difference(&device(1), &device(2)).target);
        let link = |target: &[u8]| of_kind(EntryKind::Symlink(target.to_vec()));
        assert!(difference(&link(b"a"), &link(b"b")).target);
        let other_mode = Entry {
            mode: 0o777,
            ..link(b"a")
        };
        assert!(difference(&link(b"a"), &other_mode).is_none());
    }
}
