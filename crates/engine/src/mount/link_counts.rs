//! Counts of the names of files.
//!
//! A record does not say how many other names its file has. The first question reads all pages,
//! which for 60,000 files are eight. In a backup of many pages that happens on a thread of its own, and
//! meanwhile each file counts as one with two names: programs that copy hard links then remember a
//! file that has only one, which costs them memory and changes no copy.

use fullbore_format::{entry::EntryKind, error::Result};
use fullbore_platform::queue::start;
use fullbore_repository::archive::{Archive, Selection};
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Pages that are read while the first question waits: half a million entries.
const FEW_PAGES: usize = 64;
/// Most files with several names that are counted; 16 bytes each.
const MAX_COUNTED: usize = 1 << 20;
/// The count of a file whose names are not counted.
const UNKNOWN: u32 = 2;

/// The files of one backup that have several names.
#[derive(Default)]
pub(super) struct LinkCounts {
    counts: Arc<OnceLock<OtherNames>>,
    is_started: AtomicBool,
}

/// Other names of each file, by the hash of its path; `None` if they are not known.
struct OtherNames {
    hasher: RandomState,
    counts: Option<HashMap<u64, u32>>,
}

impl LinkCounts {
    /// Returns the count of names of the file at `path`.
    pub(super) fn of(&self, archive: &Arc<Archive>, path: &[u8]) -> u32 {
        if archive.root.pages.len() <= FEW_PAGES {
            return self
                .counts
                .get_or_init(|| OtherNames::of(archive))
                .names(path);
        }
        if !self.is_started.swap(true, Relaxed) {
            let counts = self.counts.clone();
            let archive = archive.clone();
            let count = move || drop(counts.set(OtherNames::of(&archive)));
            let _ = start(count);
        }
        self.counts.get().map_or(UNKNOWN, |known| known.names(path))
    }
}

impl OtherNames {
    fn of(archive: &Archive) -> Self {
        let hasher = RandomState::new();
        let counts = count(archive, &hasher).ok().flatten();
        Self { hasher, counts }
    }

    /// Returns the count of names of the file at `path`.
    fn names(&self, path: &[u8]) -> u32 {
        let Some(counts) = &self.counts else {
            return UNKNOWN;
        };
        let others = counts.get(&self.hasher.hash_one(path));
        others.copied().unwrap_or(0).saturating_add(1)
    }
}

fn count(archive: &Archive, hasher: &RandomState) -> Result<Option<HashMap<u64, u32>>> {
    let mut counts: HashMap<u64, u32> = HashMap::new();
    for item in archive.records(&Selection::default(), false) {
        if let EntryKind::HardLink(target) = &item?.entry.kind {
            let others = counts.entry(hasher.hash_one(&target[..])).or_default();
            *others = others.saturating_add(1);
        }
        if counts.len() > MAX_COUNTED {
            return Ok(None);
        }
    }
    Ok(Some(counts))
}
