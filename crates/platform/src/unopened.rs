//! Objects that cannot be opened: links, pipes, devices. Their metadata is set through a descriptor
//! of the object itself, so that another object under the same name is not changed.

use super::{
    dir::{self, FileKind, Stat, through_proc},
    write::{content_time, owner_ids},
    xattr, xattrat,
};
use fullbore_format::entry::{Time, Xattr};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, XattrFlags, removexattr, setxattr},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

#[derive(Debug)]
pub struct UnopenedObject<'a> {
    fd: OwnedFd,
    dir: BorrowedFd<'a>,
    name: &'a [u8],
}

impl<'a> UnopenedObject<'a> {
    /// Opens a handle of the object `name` in `dir`; follows no link.
    ///
    /// # Errors
    /// The system's.
    pub fn open(dir: BorrowedFd<'a>, name: &'a [u8]) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self {
            fd: rustix::fs::openat(dir, name, flags, Mode::empty())?,
            dir,
            name,
        })
    }

    /// Returns the metadata of the object.
    ///
    /// # Errors
    /// The system's.
    pub fn stat(&self) -> io::Result<Stat> {
        dir::stat_fd(&self.fd)
    }

    /// Returns whether its ctime shows changes.
    pub fn has_change_time(&self) -> bool {
        crate::durable::updates_change_times(&self.fd)
    }

    /// Sets owner and group, like [`crate::write::chown_fd`].
    ///
    /// # Errors
    /// As [`crate::write::chown_fd`].
    pub fn chown(&self, uid: u32, gid: u32) -> io::Result<()> {
        let (uid, gid) = owner_ids(uid, gid)?;
        Ok(rustix::fs::chownat(
            &self.fd,
            "",
            uid,
            gid,
            AtFlags::EMPTY_PATH,
        )?)
    }

    /// Sets the permission bits. Symbolic links have no mode.
    ///
    /// # Errors
    /// `ENOTSUP` for a symbolic link, or the system's; `Unsupported` without `/proc` before Linux
    /// 6.13.
    pub fn chmod(&self, mode: u32) -> io::Result<()> {
        if self.stat()?.kind == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        match through_proc(&self.fd) {
            Err(_) if xattrat::works() => Ok(xattrat::chmod(self.fd.as_fd(), mode)?),
            path => Ok(rustix::fs::chmodat(
                CWD,
                path?,
                Mode::from_raw_mode(mode),
                AtFlags::empty(),
            )?),
        }
    }

    /// Sets the times, like [`crate::write::set_times_fd`], but by name, because older
    /// systems require that.
    ///
    /// # Errors
    /// The system's.
    pub fn set_times(&self, mtime: Time) -> io::Result<()> {
        Ok(rustix::fs::utimensat(
            self.dir,
            self.name,
            &content_time(mtime),
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }

    /// Reads all attributes, like [`xattr::read_all_at`].
    ///
    /// # Errors
    /// As [`xattr::read_all_at`].
    pub fn xattrs(&self) -> io::Result<Vec<Xattr>> {
        xattr::read_all_at(self.dir, self.name)
    }

    /// Sets one attribute, replacing its value.
    ///
    /// # Errors
    /// As [`xattr::set_fd`]; `Unsupported` without `/proc` before Linux 6.13.
    pub fn set_xattr(&self, attribute: &[u8], value: &[u8]) -> io::Result<()> {
        match through_proc(&self.fd) {
            // By name: these calls take no O_PATH descriptor.
            Err(_) if xattrat::works() => Ok(xattrat::set(self.dir, self.name, attribute, value)?),
            path => Ok(setxattr(path?, attribute, value, XattrFlags::empty())?),
        }
    }

    /// Removes one attribute.
    ///
    /// # Errors
    /// As [`xattr::remove_fd`]; `Unsupported` without `/proc` before Linux 6.13.
    pub fn remove_xattr(&self, attribute: &[u8]) -> io::Result<()> {
        match through_proc(&self.fd) {
            Err(_) if xattrat::works() => Ok(xattrat::remove(self.dir, self.name, attribute)?),
            path => Ok(removexattr(path?, attribute)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_has_its_own_attributes_and_not_those_of_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir::open_root(dir.path()).unwrap();
        std::fs::write(dir.path().join("f"), "").unwrap();
        symlink("f", dir.path().join("l")).unwrap();
        let [file, link] =
            [&b"f"[..], b"l"].map(|name| UnopenedObject::open(root.as_fd(), name).unwrap());
        file.set_xattr(b"user.a", b"1").unwrap();
        assert!(link.xattrs().unwrap().is_empty());
        // Only privileged users may set attributes of links, and only trusted ones.
        if link.set_xattr(b"trusted.x", b"2").is_ok() {
            assert_eq!(
                link.xattrs().unwrap(),
                [(b"trusted.x".to_vec(), b"2".to_vec())]
            );
            assert_eq!(
                file.xattrs().unwrap(),
                [(b"user.a".to_vec(), b"1".to_vec())]
            );
            link.remove_xattr(b"trusted.x").unwrap();
        }
    }

    #[test]
    fn another_object_under_the_same_name_is_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir::open_root(dir.path()).unwrap();
        std::fs::write(dir.path().join("f"), "").unwrap();
        let before = dir::stat(&root, b"f").unwrap().mode;
        let object = UnopenedObject::open(root.as_fd(), b"f").unwrap();
        std::fs::rename(dir.path().join("f"), dir.path().join("moved")).unwrap();
        std::fs::write(dir.path().join("f"), "").unwrap();
        object.chmod(0o751).unwrap();
        object.set_xattr(b"user.a", b"1").unwrap();
        assert_eq!(dir::stat(&root, b"moved").unwrap().mode, 0o751);
        assert_eq!(dir::stat(&root, b"f").unwrap().mode, before);
        assert!(xattr::read_all_at(&root, b"f").unwrap().is_empty());
    }
}
