//! Extended attributes, access control lists among them.
//!
//! A file without any costs one call. Listed are only the namespaces that a restore may be able to set: `user.`,
//! `security.`, `trusted.` and the two POSIX lists; what file systems invent about themselves (`system.nfs4_acl`,
//! `btrfs.*`, `ceph.*`) is passed over. Whether a value can be set on another system is decided there, by trying.

use super::{dir::through_proc, xattrat};
use crate::format::entry::Xattr;
use rustix::{
    fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, lgetxattr, llistxattr},
    io::Errno,
};
use std::{cell::RefCell, ffi::CString, io, os::fd::AsFd};

/// Linux allows 64 KiB for a value and 64 KiB for all names (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`), on every file system.
const LIMIT: usize = 64 << 10;
/// Room that is offered first: the system allocates as much for each call, and 64 KiB take it three times as long as the rest of it.
const USUAL: usize = 1 << 10;

/// The access list of a directory that what is made in it inherits.
const DEFAULT_LIST: &str = "system.posix_acl_default";

thread_local! {
    /// The names of one object, then one value: a thread asks for one object at a time.
    static BUFFERS: RefCell<[Vec<u8>; 2]> = RefCell::new([vec![0; LIMIT], vec![0; LIMIT]]);
}

/// All attributes of an open file or directory, in the order the system lists them; one call if it has none.
///
/// A file system that knows no attributes has none; one that is removed meanwhile is left out.
///
/// # Errors
/// The system's; `EBADF` if `fd` was opened for passing through only.
pub fn read_all(fd: impl AsFd) -> io::Result<Vec<Xattr>> {
    collect(
        |list| flistxattr(&fd, list),
        |name, value| fgetxattr(&fd, name, value),
    )
}

/// All attributes of `name` in `dir`, for what cannot be opened: symbolic links, devices, named pipes. Follows no link.
///
/// # Errors
/// The system's; one of its own where `/proc` is not mounted, before Linux 6.13.
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

/// Set one attribute of an open file or directory, replacing it.
///
/// # Errors
/// `ENOTSUP` where the file system knows none or not this namespace, `EPERM`, `E2BIG` above 64 KiB, or the system's.
pub fn set_fd(fd: impl AsFd, name: &[u8], value: &[u8]) -> io::Result<()> {
    Ok(fsetxattr(fd, name, value, XattrFlags::empty())?)
}

/// Take one attribute away from an open file or directory.
///
/// # Errors
/// `ENODATA` if it has none of this name, `EPERM`, or the system's.
pub fn remove_fd(fd: impl AsFd, name: &[u8]) -> io::Result<()> {
    Ok(fremovexattr(fd, name)?)
}

/// Does what is made in this directory get an access list from it? One call; yes if the system does not say.
pub fn passes_list_on(dir: impl AsFd) -> bool {
    // A list is longer than that, which is an error, and yes.
    let mut short = [0; 1];
    !matches!(
        fgetxattr(dir, DEFAULT_LIST, &mut short[..]),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS)
    )
}

/// A path to `name` in `dir` whatever the length of the path of `dir`: these calls take no directory before Linux 6.13.
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
        let listed = match with_room(names, list) {
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

/// Ask with little room, and if that is not enough with all of it.
fn with_room(
    buffer: &mut [u8],
    ask: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<usize> {
    match ask(&mut buffer[..USUAL]) {
        Err(Errno::RANGE) => ask(buffer),
        answered => answered,
    }
}

/// `None` if it has been removed since it was listed.
fn read_one(
    name: &[u8],
    value: &mut [u8],
    get: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Option<Xattr>> {
    match with_room(value, |value| get(name, value)) {
        Ok(len) => Ok(Some((name.to_vec(), value[..len].to_vec()))),
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// XFS shows access lists a second time, in its own form.
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
        let root = crate::platform::dir::open_root(dir.path()).unwrap();
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
    fn names_that_a_file_system_invents_are_passed_over() {
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
