//! Decoded pages, for all threads and all backups that share the cache, bounded in bytes.

use super::byte_cache::ByteCache;
use fullbore_format::{error::Result, page::ManifestPage};
use std::sync::Arc;

/// Most bytes that an archive keeps by itself: two pages of full names and many extents.
const KEPT_BYTES: usize = 8 << 20;

/// Pages by backup and index in its root.
pub struct PageCache {
    kept: ByteCache<(String, usize), ManifestPage>,
    /// Whether only one archive uses it, which may drop all pages.
    is_own: bool,
}

impl Default for PageCache {
    fn default() -> Self {
        Self {
            kept: ByteCache::new(KEPT_BYTES),
            is_own: true,
        }
    }
}

impl PageCache {
    /// Makes a cache of at most `most_bytes`, or one page, for several backups.
    pub fn shared(most_bytes: usize) -> Self {
        Self {
            kept: ByteCache::new(most_bytes),
            is_own: false,
        }
    }

    pub(super) fn get(
        &self,
        backup: &str,
        index: usize,
        read: impl FnOnce() -> Result<ManifestPage>,
    ) -> Result<Arc<ManifestPage>> {
        self.kept.get(&(backup.to_owned(), index), || {
            let page = read()?;
            let bytes = page.memory_bytes();
            Ok((page, bytes))
        })
    }

    /// Drops the pages, unless other archives use them.
    pub(super) fn let_go(&self) {
        if self.is_own {
            self.kept.clear();
        }
    }
}
