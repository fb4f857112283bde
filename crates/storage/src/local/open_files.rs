//! Files of objects that are kept open: a restore reads a segment thousands of times, by range.

use fullbore_format::layout::MANIFEST;
use fullbore_platform::{open_files_limit, queue::Locked};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    sync::{Arc, Mutex},
};

/// So many files are kept at most, and no more than a quarter of those that can be open: the others are for source and target.
const MAX_OPEN: u64 = 256;

/// Open files by key.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(Mutex<BTreeMap<String, Arc<File>>>);

impl OpenFiles {
    /// Returns the open file of a key, opened now if it is not kept.
    pub(super) fn get_or_open(
        &self,
        key: &str,
        open: impl FnOnce() -> io::Result<File>,
    ) -> io::Result<Arc<File>> {
        if let Some(file) = self.0.locked().get(key) {
            return Ok(file.clone());
        }
        let file = Arc::new(open()?);
        let mut kept = self.0.locked();
        let room = MAX_OPEN.min(open_files_limit() / 4) as usize;
        if kept.len() >= room {
            // Manifests stay as long as they can: that of a backup that was forgotten meanwhile could not be opened again.
            kept.retain(|key, _| key.ends_with(MANIFEST));
        }
        if kept.len() >= room {
            kept.clear();
        }
        kept.insert(key.to_owned(), file.clone());
        Ok(file)
    }

    /// Closes the file of an object that this process replaced or deleted, once no read needs it.
    pub(super) fn forget(&self, key: &str) {
        self.0.locked().remove(key);
    }
}
