//! The checksums of PostgreSQL's pages, looked at while they pass.
//!
//! A page that is wrong is read once more: it may have been written at that moment, and then recovery writes it anew
//! (rule 21). One that stays wrong is noted with its file; it is stored all the same, and nothing fails.

use super::{
    page_checksum::{PageVerdict, check},
    relation::{Sizes, is_relation},
};
use crate::{
    error::Result,
    format::page::EntryState,
    frame::{Frame, FrameContent, FrameEntry},
    known::StoredRun,
    platform::read,
    queue::Locked,
    source::tree::SourceTree,
    stage::Stage,
};
use std::{fmt, sync::Arc};

/// What all workers need to look at pages.
pub struct PageCheck {
    /// Where wrong pages are read again: one of these has the file.
    pub trees: Vec<Arc<SourceTree>>,
    /// Of pages, and of files of them.
    pub sizes: Sizes,
    /// What was changed since is written anew by recovery.
    pub start_lsn: u64,
}

impl fmt::Debug for PageCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCheck")
            .field("start_lsn", &self.start_lsn)
            .finish_non_exhaustive()
    }
}

/// The stage.
pub struct PageChecks(pub Arc<PageCheck>);

impl Stage for PageChecks {
    fn apply(&mut self, mut frame: Frame) -> Result<Frame> {
        let Frame { parts, data, .. } = &mut frame;
        for part in parts {
            let Some((path, offset)) = place(part) else {
                continue;
            };
            let bad = match &part.runs {
                None => self.0.bad(
                    path,
                    offset,
                    &data[part.inner as usize..][..part.len as usize],
                ),
                Some(runs) => self.0.bad_of(path, offset, runs, data),
            };
            if !bad.is_empty() {
                note(&mut part.what, bad);
            }
        }
        Ok(frame)
    }
}

/// The file that a part is of, and where in it.
fn place(part: &FrameEntry) -> Option<(&[u8], u64)> {
    match &part.what {
        FrameContent::Whole(entry, state) if state.is_stored() && entry.is_file() => {
            Some((&entry.path, 0))
        }
        FrameContent::Whole(..) | FrameContent::Head(..) => None,
        FrameContent::Piece { file, offset, .. } => Some((&file.entry.path, *offset)),
    }
}

fn note(what: &mut FrameContent, bad: Vec<u32>) {
    match what {
        FrameContent::Whole(_, state) => *state = EntryState::bad_pages(bad),
        FrameContent::Piece { file, .. } => file.bad_pages.locked().extend(bad),
        FrameContent::Head(..) => {}
    }
}

impl PageCheck {
    /// Of a piece of which only some was read.
    fn bad_of(&self, path: &[u8], mut offset: u64, runs: &[StoredRun], data: &[u8]) -> Vec<u32> {
        let mut bad = Vec::new();
        for run in runs {
            offset += match *run {
                StoredRun::Kept { len, .. } => u64::from(len),
                StoredRun::Here { inner, len } => {
                    bad.extend(self.bad(path, offset, &data[inner as usize..][..len as usize]));
                    u64::from(len)
                }
            };
        }
        bad
    }

    /// Numbers of the pages that are wrong, of a piece of a file.
    fn bad(&self, path: &[u8], offset: u64, content: &[u8]) -> Vec<u32> {
        let Some(first) = is_relation(path, self.sizes) else {
            return Vec::new();
        };
        let bytes = u64::from(self.sizes.page_bytes);
        let pages = content
            .chunks_exact(self.sizes.page_bytes as usize)
            .zip(offset / bytes..);
        let wrong = pages.filter(|(page, at)| {
            let block = first + *at as u32;
            check(page, block, self.start_lsn) == PageVerdict::Bad
                && self.stays_bad(path, at * bytes, page, block)
        });
        wrong.map(|(_, at)| first + at as u32).collect()
    }

    /// Is it wrong when it is read again, and still the same? If it cannot be read, nobody knows better.
    fn stays_bad(&self, path: &[u8], offset: u64, page: &[u8], block: u32) -> bool {
        let mut again = Vec::new();
        let read = self
            .trees
            .iter()
            .find_map(|tree| tree.open(path).ok())
            .and_then(|fd| {
                read::read_full(&fd, &mut again, offset, page.len(), read::Cache::Keep).ok()
            });
        match read {
            Some(got) if got == page.len() => {
                again == page && check(&again, block, self.start_lsn) == PageVerdict::Bad
            }
            Some(_) => false, // the file was cut meanwhile
            None => true,
        }
    }
}
