//! Extended attributes, including access control lists.
//!
//! A file without attributes costs one call. Only namespaces that a restore may be able to set are
//! read: `user.`, `security.`, `trusted.` and the two POSIX lists. Attributes that file systems
//! invent about themselves (`system.nfs4_acl`, `btrfs.*`, `ceph.*`) are ignored. Whether another
//! system accepts a value is found out there, by trying.

use super::{dir::through_proc, xattrat};
use fullbore_format::entry::Xattr;
use rustix::{
    fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, lgetxattr, llistxattr},
    io::Errno,
};
use std::{cell::RefCell, ffi::CString, io, os::fd::AsFd};

/// Maximum size of a value and of all names together on Linux, on every file system
/// (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const LIMIT: usize = 64 << 10;
/// Size of the first buffer. The system allocates as much for each call, and for 64 KiB that takes
/// three times as long as the rest of the call.
const USUAL: usize = 1 << 10;

/// The access list of a directory that new objects in it inherit.
const DEFAULT_LIST: &str = "system.posix_acl_default";

thread_local! {
    /// One buffer for the names of an object, one for a value: a thread handles one object at a
    /// time.
    static BUFFERS: RefCell<[Vec<u8>; 2]> = RefCell::new([vec![0; LIMIT], vec![0; LIMIT]]);
}

/// Returns all attributes of an open file or directory, in the order of the system. Takes one call
/// if there are none.
///
/// Returns an empty list on a file system without attributes. An attribute that is removed
/// meanwhile is skipped.
///
/// # Errors
/// The system's; `EBADF` if `fd` was opened for path lookup only.
pub fn read_all(fd: impl AsFd) -> io::Result<Vec<Xattr>> {
    collect(
        |list| flistxattr(&fd, list),
        |name, value| fgetxattr(&fd, name, value),
    )
}

/// Returns all attributes of `name` in `dir`, for objects that cannot be opened: symbolic links,
/// devices, named pipes. Follows no link.
///
/// # Errors
/// The system's; `Unsupported` without `/proc` before Linux 6.13.
pub fn read_all_at(dir: impl AsFd, name: &[u8]) -> io::Result<Vec<Xattr>> {
    match path_of(&dir, name) {
        Err(_) if xattrat::works() => {
            let dir = dir.as_fd();
            collect(
                |list| xattrat::list(dir, name, list),
                |attribute, value| xattrat::get(dir, name, attribute, value),
            )
        }
        path => {
            let path = &*path?;
            collect(
                |list| llistxattr(path, list),
                |name, value| lgetxattr(path, name, value),
            )
        }
    }
}

/// Sets one attribute of an open file or directory, replacing its value.
///
/// # Errors
/// `ENOTSUP` if the file system has no attributes or not this namespace, `EPERM`, `E2BIG` above 64
/// KiB, or the system's.
pub fn set_fd(fd: impl AsFd, name: &[u8], value: &[u8]) -> io::Result<()> {
    Ok(fsetxattr(fd, name, value, XattrFlags::empty())?)
}

/// Removes one attribute of an open file or directory.
///
/// # Errors
/// `ENODATA` if it has no attribute of this name, `EPERM`, or the system's.
pub fn remove_fd(fd: impl AsFd, name: &[u8]) -> io::Result<()> {
    Ok(fremovexattr(fd, name)?)
}

/// Returns whether new objects in this directory inherit an access list. Takes one call; true if
/// the system does not say.
pub fn passes_on_default_acl(dir: impl AsFd) -> bool {
    // A list is longer than this buffer: the call fails, and the answer is yes.
    let mut short = [0; 1];
    !matches!(
        fgetxattr(dir, DEFAULT_LIST, &mut short[..]),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS)
    )
}

/// Returns a path to `name` in `dir` that is short however long the path of `dir` is. These calls
/// take no directory before Linux 6.13.
fn path_of(dir: impl AsFd, name: &[u8]) -> io::Result<CString> {
    let mut path = through_proc(dir)?.into_bytes();
    path.push(b'/');
    path.extend_from_slice(name);
    Ok(CString::new(path)?)
}

fn collect(
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Vec<Xattr>> {
    BUFFERS.with_borrow_mut(|[names, value]| {
        let listed = match with_buffers(names, list) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODATA) => 0,
            other => other?,
        };
        let wanted = names[..listed]
            .split(|c| *c == 0)
            .filter(|name| is_kept(name));
        wanted
            .filter_map(|name| read_one(name, value, &get).transpose())
            .collect()
    })
}

/// Calls `ask` with a small buffer, and with the whole buffer if that is too small.
fn with_buffers(
    buffer: &mut [u8],
    ask: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<usize> {
    match ask(&mut buffer[..USUAL]) {
        Err(Errno::RANGE) => ask(buffer),
        answered => answered,
    }
}

/// Reads one attribute; `None` if it was removed after the listing.
fn read_one(
    name: &[u8],
    value: &mut [u8],
    get: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Option<Xattr>> {
    match with_buffers(value, |value| get(name, value)) {
        Ok(len) => Ok(Some((name.to_vec(), value[..len].to_vec()))),
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether an attribute is backed up. XFS shows access lists a second time, in its own
/// format.
fn is_kept(name: &[u8]) -> bool {
    [&b"user."[..], b"security.", b"trusted."]
        .iter()
        .any(|space| name.starts_with(space))
        && !name.starts_with(b"trusted.SGI_ACL_")
        || name == b"system.posix_acl_access"
        || name == DEFAULT_LIST.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_as_they_were_set() {
        let dir = tempfile::tempdir().unwrap();
        let root = crate::dir::open_root(dir.path()).unwrap();
        let file = std::fs::File::create(dir.path().join("f")).unwrap();
        assert!(read_all(&file).unwrap().is_empty());
        let large = vec![7; 3000];
        set_fd(&file, b"user.a", b"").unwrap();
        set_fd(&file, b"user.\xff", &large).unwrap();
        let expected = [(b"user.a".to_vec(), vec![]), (b"user.\xff".to_vec(), large)];
        for mut found in [read_all(&file).unwrap(), read_all_at(&root, b"f").unwrap()] {
            found.sort();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_value_of_64_kib_comes_back_where_the_file_system_has_room_for_it() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = std::fs::File::create(dir.path().join("f")).unwrap();
        let value = vec![9; LIMIT];
        if set_fd(&file, b"user.large", &value).is_ok() {
            assert_eq!(read_all(&file).unwrap(), [(b"user.large".to_vec(), value)]);
        }
        assert!(set_fd(&file, b"user.larger", &vec![9; LIMIT + 1]).is_err());
    }

    #[test]
    fn names_that_need_more_room_than_usual_are_all_listed() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("f")).unwrap();
        let names: Vec<Vec<u8>> = (0..40)
            .map(|n| format!("user.{n:040}").into_bytes())
            .collect();
        assert!(names.iter().map(|name| name.len() + 1).sum::<usize>() > USUAL);
        names
            .iter()
            .for_each(|name| set_fd(&file, name, b"1").unwrap());
        let mut found: Vec<Vec<u8>> = read_all(&file)
            .unwrap()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        found.sort();
        assert_eq!(found, names);
    }

    #[test]
    fn a_file_system_without_attributes_has_none() {
        assert!(
            read_all(std::fs::File::open("/proc/self/status").unwrap())
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn attributes_that_a_file_system_invents_are_ignored() {
        for kept in [
            &b"user.x"[..],
            b"security.selinux",
            b"trusted.overlay.opaque",
            b"system.posix_acl_default",
        ] {
            assert!(is_kept(kept));
        }
        for skipped in [
            &b""[..],
            b"trusted.SGI_ACL_FILE",
            b"system.nfs4_acl",
            b"btrfs.compression",
            b"ceph.dir.layout",
        ] {
            assert!(!is_kept(skipped));
        }
    }
}
