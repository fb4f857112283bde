//! Attributes as the kernel wants them.

use super::{backup_tree::ShownEntry, inode::InodePlace, top_tree::TopEntry};
use fullbore_format::{
    acl::{is_list, local_list},
    entry::{Device, Entry, EntryKind, Time, Xattr},
};
use fullbore_platform::owner::OwnerNames;
use fuser::{FileAttr, FileType, INodeNo};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Size of the reads that programs choose.
const BLOCK_BYTES: u32 = 128 << 10;

/// The owner that entries are shown with.
#[derive(Debug)]
pub(super) enum ShownOwner {
    /// That of the backup: by name if the name exists here, otherwise by number, as a restore does.
    Stored(Box<OwnerNames>),
    /// This user and group own everything.
    Own(u32, u32),
}

impl ShownOwner {
    fn of(&self, entry: &Entry) -> (u32, u32) {
        match self {
            Self::Stored(names) => names.numbers(&entry.owner),
            Self::Own(uid, gid) => (*uid, *gid),
        }
    }

    fn of_mount(&self) -> (u32, u32) {
        match self {
            Self::Stored(_) => (0, 0),
            Self::Own(uid, gid) => (*uid, *gid),
        }
    }

    /// Returns the value of an extended attribute. Lists of access have the numbers of this system;
    /// `None` for a list whose names are not known here.
    pub(super) fn xattr(&self, (name, value): &Xattr) -> Option<Vec<u8>> {
        match self {
            Self::Stored(names) if is_list(name) => {
                local_list(value, &**names, false).ok().map(|list| list.raw)
            }
            // Permissions do not count for a user who owns everything.
            Self::Own(..) if is_list(name) => None,
            _ => Some(value.clone()),
        }
    }
}

/// Returns the attributes of an entry of a backup with this count of names.
pub(super) fn of_entry(
    shown: &ShownEntry,
    inode: u64,
    names: u32,
    owner: &ShownOwner,
    mounted: SystemTime,
) -> FileAttr {
    let Some(entry) = shown.entry() else {
        return of_directory(inode, owner, mounted);
    };
    let (uid, gid) = owner.of(entry);
    let mtime = system_time(entry.mtime);
    let ctime = if entry.ctime == Time::default() {
        mtime
    } else {
        system_time(entry.ctime)
    };
    FileAttr {
        size: size(entry),
        blocks: entry.data_len().div_ceil(512),
        atime: mtime,
        mtime,
        ctime,
        kind: kind(&entry.kind),
        perm: (entry.mode & 0o7777) as u16,
        nlink: names,
        uid,
        gid,
        rdev: device(&entry.kind),
        ..of_directory(inode, owner, mounted)
    }
}

fn of_directory(inode: u64, owner: &ShownOwner, mounted: SystemTime) -> FileAttr {
    let (uid, gid) = owner.of_mount();
    FileAttr {
        ino: INodeNo(inode),
        size: 0,
        blocks: 0,
        atime: mounted,
        mtime: mounted,
        ctime: mounted,
        crtime: UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0o755,
        nlink: 2,
        uid,
        gid,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// Returns the attributes of an entry above the backups.
pub(super) fn of_top(
    number: u64,
    entry: &TopEntry,
    owner: &ShownOwner,
    mounted: SystemTime,
) -> FileAttr {
    let directory = of_directory(InodePlace::Top(number).inode(), owner, mounted);
    match entry {
        TopEntry::Link(target) => FileAttr {
            kind: FileType::Symlink,
            perm: 0o777,
            nlink: 1,
            size: target.len() as u64,
            ..directory
        },
        _ => directory,
    }
}

fn size(entry: &Entry) -> u64 {
    match &entry.kind {
        EntryKind::Symlink(target) => target.len() as u64,
        _ => entry.size(),
    }
}

fn kind(kind: &EntryKind) -> FileType {
    match kind {
        EntryKind::File { .. } | EntryKind::HardLink(_) => FileType::RegularFile,
        EntryKind::Directory => FileType::Directory,
        EntryKind::Symlink(_) => FileType::Symlink,
        EntryKind::Fifo => FileType::NamedPipe,
        EntryKind::CharDevice(_) => FileType::CharDevice,
        EntryKind::BlockDevice(_) => FileType::BlockDevice,
        EntryKind::Socket => FileType::Socket,
    }
}

/// Returns the number of a device as the kernel encodes it in 32 bits: 12 of the major and 20 of the
/// minor number.
fn device(kind: &EntryKind) -> u32 {
    match kind {
        EntryKind::CharDevice(Device { major, minor })
        | EntryKind::BlockDevice(Device { major, minor }) => {
            (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
        }
        _ => 0,
    }
}

fn system_time(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    let nanos = Duration::from_nanos(time.nanos.into());
    let exact = whole.and_then(|whole| whole.checked_add(nanos));
    exact.unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_out_of_range_are_times() {
        let time = |seconds, nanos| system_time(Time { seconds, nanos });
        let before = UNIX_EPOCH - Duration::from_millis(500);
        assert_eq!(time(-1, 500_000_000), before);
        let last = UNIX_EPOCH + Duration::from_secs(i64::MAX as u64);
        assert_eq!(time(i64::MAX, 0), last);
        assert!(time(i64::MIN, 0) < UNIX_EPOCH);
    }

    #[test]
    fn devices_are_encoded_as_the_kernel_does() {
        let device_of = |major, minor| device(&EntryKind::CharDevice(Device { major, minor }));
        assert_eq!(device_of(8, 1), 0x801);
        assert_eq!(device_of(259, 0x12345), 0x1231_0345);
    }
}
