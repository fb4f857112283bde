//! Objects that the rules of a backup exclude.

use super::inner::TreeInner;
use fullbore_format::entry::is_within;
use fullbore_platform::{dir, read};
use std::os::{fd::OwnedFd, unix::ffi::OsStrExt};

/// File that marks a cache directory, and how the file must begin (bford.info/cachedir).
pub const CACHE_TAG_NAME: &[u8] = b"CACHEDIR.TAG";
const CACHE_TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";
/// File that a data directory of PostgreSQL has, and the directory of each of its databases.
const DATABASE_NAME: &[u8] = b"PG_VERSION";

impl TreeInner {
    pub(super) fn is_excluded(&self, path: &[u8], is_dir: bool) -> bool {
        self.rules.exclude.matches(path, is_dir)
    }

    /// As [`Self::is_excluded`], and tells the listener.
    pub(super) fn note_excluded(&self, path: &[u8], is_dir: bool) -> bool {
        let pattern = self.rules.exclude.matching_line(path, is_dir);
        if let (Some(pattern), Some(say)) = (pattern, self.rules.on_excluded) {
            say(path, pattern);
        }
        pattern.is_some()
    }

    /// Returns the name in this directory that excludes its contents.
    pub(super) fn exclusion_mark(
        &self,
        dir: &OwnedFd,
        contains: impl Fn(&[u8]) -> bool,
    ) -> Option<&[u8]> {
        let by_name = self
            .rules
            .files
            .exclude_if_present
            .iter()
            .map(|name| name.as_bytes())
            .find(|name| contains(name));
        if by_name.is_some() {
            return by_name;
        }
        // Databases of a server are no caches, whoever has put a tag beside them.
        let is_cache = self.rules.files.exclude_caches
            && contains(CACHE_TAG_NAME)
            && !contains(DATABASE_NAME)
            && self.is_cache_tag(dir);
        is_cache.then_some(CACHE_TAG_NAME)
    }

    /// Returns whether the rules exclude `path` itself or a directory above it, below the first
    /// top.
    pub(crate) fn leaves_out(&self, path: &[u8], is_dir: bool) -> bool {
        let top = self.tops.first().map_or(&b""[..], |top| &top.at);
        let slashes = path
            .iter()
            .enumerate()
            .filter(|(_, c)| **c == b'/')
            .map(|(slash, _)| &path[..slash]);
        let mut parents = slashes.filter(|dir| is_within(dir, top) && dir != &top);
        self.is_excluded(path, is_dir)
            || parents
                .any(|dir| self.is_excluded(dir, true) || self.exclusion_mark_at(dir).is_some())
    }

    /// As [`Self::exclusion_mark`], for the directory at `path`, without listing it.
    pub(crate) fn exclusion_mark_at(&self, path: &[u8]) -> Option<&[u8]> {
        if !self.rules.files.has_marks() {
            return None;
        }
        let (dir, rel) = self.locate(path)?;
        let dir = dir::open_dir(dir, rel).ok()?;
        self.exclusion_mark(&dir, |name| dir::stat(&dir, name).is_ok())
    }

    fn is_cache_tag(&self, dir: &OwnedFd) -> bool {
        let mut head = Vec::new();
        let tag = dir::open_read(dir, CACHE_TAG_NAME);
        tag.and_then(|fd| {
            read::read_full(&fd, &mut head, 0, CACHE_TAG.len(), read::PageCacheUse::Keep)
        })
        .is_ok_and(|_| head == CACHE_TAG)
    }
}
