//! The sources of a copy: the content of one directory, or files and directories by their names.

use super::rules::CopyRules;
use fullbore_format::{
    entry::{EntryPath, is_within},
    error::{Error, ErrorKind, Result},
};
use fullbore_platform::dir;
use fullbore_tree::read::{Top, TopRole};
use std::{
    ffi::OsStr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

/// A file or directory that is copied.
#[derive(Debug, Clone, Default)]
pub struct CopySource {
    /// Its path on this machine.
    pub path: PathBuf,
    /// Its name in the target; empty if the target gets its content.
    pub at: EntryPath,
}

impl CopySource {
    /// The content of a directory.
    pub fn content(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            at: EntryPath::new(),
        }
    }

    /// A file or directory that is written below the target, by the last name of its path.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if it has no name, as `/`; the system's.
    pub fn named(path: &Path) -> Result<Self> {
        let failed = |e| Error::io(format!("could not find {path:?}"), e);
        path.symlink_metadata().map_err(failed)?;
        let absolute = std::path::absolute(path).map_err(failed)?;
        let whole = match absolute.file_name() {
            Some(_) => absolute,
            // It ends with `..`.
            None => path.canonicalize().map_err(failed)?,
        };
        let name = whole.file_name().ok_or_else(|| {
            let message = format!("cannot copy {path:?} below another directory");
            Error::new(ErrorKind::Usage, message).because("it has no name")
        })?;
        let at = name.as_bytes().to_vec();
        Ok(Self { path: whole, at })
    }

    /// Returns the directory that is open for this source, and the name in it; without a name, it
    /// is the source.
    fn open(&self) -> Result<(OwnedFd, Option<Vec<u8>>)> {
        let failed = |e| Error::io(format!("could not open {:?}", self.path), e);
        let is_link = self.path.is_symlink();
        if self.at.is_empty() || (self.path.is_dir() && !is_link) {
            return Ok((dir::open_root(&self.path).map_err(failed)?, None));
        }
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        let name = self.path.file_name().map(|name| name.as_bytes().to_vec());
        Ok((dir::open_root(parent).map_err(failed)?, name))
    }

    fn top(&self) -> Result<Top> {
        let (dir, name) = self.open()?;
        Ok(Top {
            at: self.at.clone(),
            dir,
            name,
            role: TopRole::Named,
        })
    }

    /// Returns the directory in which the objects of this source are looked for.
    pub(super) fn root(&self) -> Result<SourceRoot> {
        let (dir, name) = self.open()?;
        Ok(SourceRoot {
            at: self.at.clone(),
            dir,
            name: name.unwrap_or_default(),
        })
    }
}

/// An open directory, and the part of a tree that is found in it.
#[derive(Debug)]
pub(super) struct SourceRoot {
    /// The place in the tree.
    pub(super) at: EntryPath,
    pub(super) dir: OwnedFd,
    /// The name of that place in the directory; empty for the directory itself.
    pub(super) name: Vec<u8>,
}

impl SourceRoot {
    /// Returns the path of an object in the directory; `None` if it is beside this part.
    pub(super) fn path_in(&self, path: &[u8]) -> Option<EntryPath> {
        if !is_within(path, &self.at) {
            return None;
        }
        let rest = &path[self.at.len()..];
        let rest = match self.at.is_empty() {
            true => rest,
            false => rest.strip_prefix(b"/").unwrap_or(rest),
        };
        let parts = [&self.name[..], rest].into_iter();
        Some(
            parts
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join(&b'/'),
        )
    }
}

/// Returns whether an object at this path belongs to a copy: whether it is one of the names, or below one. Without names all do.
pub(super) fn is_of_copy(names: Option<&[EntryPath]>, path: &[u8]) -> bool {
    names.is_none_or(|names| names.iter().any(|name| is_within(path, name)))
}

/// Returns where the walks of these sources begin. A source that a pattern leaves out is none.
///
/// # Errors
/// Those of the system, and of a pattern.
pub(super) fn tops(sources: &[CopySource], rules: &CopyRules) -> Result<Vec<Top>> {
    let patterns = rules.patterns()?;
    let is_wanted = |source: &&CopySource| !patterns.leave_out(&source.at, source.path.is_dir());
    let wanted = sources.iter().filter(is_wanted);
    let mut tops = wanted.map(CopySource::top).collect::<Result<Vec<_>>>()?;
    tops.sort_by(|one, other| one.at.cmp(&other.at));
    Ok(tops)
}

/// Returns whether an object may be at the top of a tree by this name.
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && !name.contains(&b'/') && fullbore_format::entry::is_safe(name)
}

/// Returns the name of a path as that of an object in its directory.
pub(super) fn last_name(path: &Path) -> Option<&[u8]> {
    path.file_name().map(OsStr::as_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_the_tree_is_found_by_its_path_in_the_directory_that_is_open() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let root = |path: &str, at: &str| {
            let path = dir.path().join(path);
            let at = at.as_bytes().to_vec();
            CopySource { path, at }.root().unwrap()
        };
        let content = root("sub", "");
        assert_eq!(content.path_in(b"x/y").unwrap(), b"x/y");
        assert_eq!(content.path_in(b"").unwrap(), b"");
        let below = root("sub", "sub");
        assert_eq!(below.path_in(b"sub/y").unwrap(), b"y");
        assert_eq!(below.path_in(b"subway"), None);
        let renamed = root("file", "other");
        assert_eq!(renamed.path_in(b"other").unwrap(), b"file");
        assert_eq!(renamed.path_in(b"file"), None);
    }

    #[test]
    fn a_source_is_written_by_the_last_name_of_its_path() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let at = |path: &str| CopySource::named(&dir.path().join(path)).map(|source| source.at);
        assert_eq!(at("a").unwrap(), b"a");
        assert_eq!(at("a/").unwrap(), b"a");
        assert_eq!(at("a/b/..").unwrap(), b"a");
        assert_eq!(at("a/b/.").unwrap(), b"b");
        assert!(at("c").is_err());
        assert!(CopySource::named(Path::new("/")).is_err());
        assert!(is_name(b"a b") && !is_name(b"") && !is_name(b"..") && !is_name(b"a/b"));
    }
}
