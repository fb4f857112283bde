//! Reaches a path one name at a time, and notes the first place where another user could lead it elsewhere.
//!
//! A process of root often reads and writes below directories of other users: the HOME that `sudo`
//! keeps, the directory of a collector. The owner and mode of the last name say little there,
//! because a directory above may be exchanged at any moment. Here each name is opened once, without
//! following links, and its owner and mode are those of the open descriptor.
//!
//! Trusted are root and the user of this process. Others can change a file if it belongs to them or
//! if its mode lets a group or everybody write. In a sticky directory (`/tmp`) they can change only
//! names that belong to them. On a file system that is mounted read-only the mode does not count.

use super::{
    dir::{FileKind, Stat, stat_fd, through_proc},
    machine::user_id,
};
use rustix::{
    fs::{CWD, Mode, OFlags, StatVfsMountFlags, openat, readlinkat},
    io::Errno,
};
use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs::{DirBuilder, File},
    io::{self, ErrorKind},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStringExt, fs::DirBuilderExt},
    },
    path::{Component, Path, PathBuf},
};

/// Links that a path may lead through, as in Linux itself.
const MAX_LINKS: usize = 40;

const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o022;

/// A file or directory, open without any rights, and who else can change the way to it.
#[derive(Debug)]
pub struct GuardedPath {
    fd: OwnedFd,
    stat: Stat,
    /// The first file or directory on the way that another user may change, the last name included.
    pub changeable: Option<PathBuf>,
    /// The first link that another user could have made or replaced.
    pub foreign_link: Option<PathBuf>,
}

impl GuardedPath {
    /// Reaches `path`. Every link is resolved here, also one in the last name.
    ///
    /// # Errors
    /// `ELOOP` after 40 links; or the system's.
    pub fn reach(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        PathWalk::new(&path)?.end()
    }

    /// Reaches a directory that is written to, and follows no link that another user could have made.
    ///
    /// # Errors
    /// `PermissionDenied` for such a link; `NotADirectory`; or as [`GuardedPath::reach`].
    pub fn reach_dir(path: &Path) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let reached = Self::reach(path)?.without_foreign_link()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&reached.fd, ".", flags, Mode::empty())?)
    }

    fn without_foreign_link(self) -> io::Result<Self> {
        let Some(link) = &self.foreign_link else {
            return Ok(self);
        };
        let reason = format!("another user could have made the link {link:?}");
        Err(io::Error::new(ErrorKind::PermissionDenied, reason))
    }

    /// Opens the file that was reached for reading.
    ///
    /// # Errors
    /// `InvalidData` if it is not a regular file; or the system's.
    pub fn open(&self) -> io::Result<File> {
        if self.stat.kind != FileKind::File {
            let reason = "it is not a regular file";
            return Err(io::Error::new(ErrorKind::InvalidData, reason));
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(openat(CWD, through_proc(&self.fd)?, flags, Mode::empty())?.into())
    }
}

/// Makes a directory for files of this user alone, if it is missing, with its parents.
///
/// # Errors
/// `PermissionDenied` if it belongs to another user, or if a link leads there that another user
/// could have made; or the system's.
pub fn own_dir(path: &Path) -> io::Result<()> {
    let stat = made_dir(path)?.stat;
    if is_trusted(stat.uid) {
        return Ok(());
    }
    let reason = format!("it belongs to user {}", stat.uid);
    Err(io::Error::new(ErrorKind::PermissionDenied, reason))
}

fn made_dir(path: &Path) -> io::Result<GuardedPath> {
    let found = GuardedPath::reach(path).and_then(GuardedPath::without_foreign_link);
    match (found, path.parent()) {
        (Err(error), Some(above)) if error.kind() == ErrorKind::NotFound => {
            made_dir(above)?;
            match DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                _ => GuardedPath::reach(path).and_then(GuardedPath::without_foreign_link),
            }
        }
        (found, _) => found,
    }
}

/// Does a file with this owner belong to root or to the user of this process?
pub fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == user_id()
}

struct PathWalk {
    /// The directory that was reached, and its path without links.
    dir: OwnedFd,
    stat: Stat,
    at: PathBuf,
    /// Names that are still to be opened.
    rest: VecDeque<OsString>,
    links: usize,
    changeable: Option<PathBuf>,
    foreign_link: Option<PathBuf>,
}

impl PathWalk {
    /// Begins at the root directory. `path` must be absolute.
    fn new(path: &Path) -> io::Result<Self> {
        let dir = open_name(CWD, OsStr::new("/"))?;
        let stat = stat_fd(&dir)?;
        let mut walk = Self {
            dir,
            stat,
            at: PathBuf::from("/"),
            rest: names_of(path),
            links: 0,
            changeable: None,
            foreign_link: None,
        };
        walk.note(&stat);
        Ok(walk)
    }

    fn end(mut self) -> io::Result<GuardedPath> {
        while let Some(name) = self.rest.pop_front() {
            let next = open_name(&self.dir, &name)?;
            let stat = stat_fd(&next)?;
            if stat.kind == FileKind::Symlink {
                self.follow(&next, &stat, &name)?;
            } else {
                self.enter(next, stat, &name);
            }
        }
        Ok(GuardedPath {
            fd: self.dir,
            stat: self.stat,
            changeable: self.changeable,
            foreign_link: self.foreign_link,
        })
    }

    fn enter(&mut self, next: OwnedFd, stat: Stat, name: &OsStr) {
        if name == ".." {
            self.at.pop();
        } else {
            self.at.push(name);
        }
        (self.dir, self.stat) = (next, stat);
        self.note(&stat);
    }

    fn follow(&mut self, link: &OwnedFd, stat: &Stat, name: &OsStr) -> io::Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let path = self.at.join(name);
        // In a sticky directory others have links of their own; elsewhere the directory was noted.
        if !is_trusted(stat.uid) {
            self.changeable.get_or_insert_with(|| path.clone());
        }
        if self.changeable.is_some() {
            self.foreign_link.get_or_insert(path);
        }
        let target = readlinkat(link, "", Vec::new())?.into_bytes();
        let target = PathBuf::from(OsString::from_vec(target));
        if target.is_absolute() {
            self.dir = open_name(CWD, OsStr::new("/"))?;
            self.at = PathBuf::from("/");
        }
        let rest = std::mem::take(&mut self.rest);
        self.rest = names_of(&target).into_iter().chain(rest).collect();
        Ok(())
    }

    fn note(&mut self, stat: &Stat) {
        let is_sticky = stat.kind == FileKind::Directory && stat.mode & STICKY != 0;
        let is_open = stat.mode & OTHERS_WRITE != 0 && !is_sticky;
        if is_open && !is_read_only(&self.dir) || !is_trusted(stat.uid) {
            self.changeable.get_or_insert_with(|| self.at.clone());
        }
    }
}

/// Is the file system mounted read-only, as the volume of a ConfigMap is, whose mode lets all write?
fn is_read_only(fd: impl AsFd) -> bool {
    rustix::fs::fstatvfs(fd).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
}

fn names_of(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

/// Opens a name as it is, a link too, without any rights.
fn open_name(dir: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(dir, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn first_changeable(path: &Path) -> Option<PathBuf> {
        GuardedPath::reach(path).unwrap().changeable
    }

    #[test]
    fn a_mode_that_lets_others_write_is_found_in_the_file_and_in_every_directory_above() {
        let base = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(base.path()).unwrap();
        let dir = base.join("a/b");
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("file");
        fs::write(&file, "text").unwrap();
        set_mode(&file, 0o644);
        assert_eq!(first_changeable(&file), None);
        for (path, mode, usual) in [
            (&file, 0o666, 0o644),
            (&file, 0o620, 0o644),
            (&dir, 0o777, 0o755),
            (&base.join("a"), 0o775, 0o755),
        ] {
            set_mode(path, mode);
            assert_eq!(first_changeable(&file).as_ref(), Some(path));
            set_mode(path, usual);
        }
        set_mode(&dir, 0o1777);
        assert_eq!(first_changeable(&file), None, "a sticky directory is safe");
    }

    #[test]
    fn a_link_is_followed_only_where_no_other_user_could_have_made_it() {
        let base = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(base.path()).unwrap();
        fs::create_dir_all(base.join("real/deep")).unwrap();
        fs::create_dir(base.join("open")).unwrap();
        symlink("real", base.join("link")).unwrap();
        symlink("../link/deep", base.join("open/link")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        assert!(GuardedPath::reach_dir(&base.join("link/deep/../deep")).is_ok());
        assert!(GuardedPath::reach_dir(&base.join("open/link")).is_ok());
        set_mode(&base.join("open"), 0o777);
        let refused = GuardedPath::reach_dir(&base.join("open/link")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("open/link"), "{refused}");
        assert!(own_dir(&base.join("open/link")).is_err());
        assert!(own_dir(&base.join("open/new/dir")).is_ok());
        assert!(GuardedPath::reach_dir(&base.join("loop")).is_err());
        assert!(
            GuardedPath::reach(&base.join("real"))
                .unwrap()
                .open()
                .is_err()
        );
    }
}
