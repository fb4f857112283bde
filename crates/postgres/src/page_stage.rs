//! Checks the checksums of PostgreSQL's pages as the frames pass.
//!
//! A wrong page is read once more: the server may have been writing it, and then recovery rewrites
//! it (rule 21). A page that stays wrong is recorded with its file. The page is stored all the
//! same, and the backup continues.

use super::{
    data_dir::{DataDir, FileRange},
    page_checksum::{PageVerdict, check},
    relation::{Sizes, first_block},
};
use fullbore_format::{error::Result, page::EntryState};
use fullbore_pipeline::{
    frame::{Frame, FrameContent, FrameEntry},
    known::StoredRun,
    stage::Stage,
};
use fullbore_platform::queue::Locked;
use std::{fmt, sync::Arc};

/// Data that the workers share to check pages.
pub struct PageCheck {
    /// The files, to read wrong pages from again, if they can be.
    pub data: Option<Arc<dyn DataDir>>,
    /// Bytes of a page, and pages of a segment file.
    pub sizes: Sizes,
    /// Where the backup began. Recovery rewrites every page changed since.
    pub start_lsn: u64,
}

impl fmt::Debug for PageCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCheck")
            .field("start_lsn", &self.start_lsn)
            .finish_non_exhaustive()
    }
}

/// The stage of one worker.
pub struct PageChecks(pub Arc<PageCheck>);

impl Stage for PageChecks {
    fn apply(&mut self, mut frame: Frame) -> Result<Frame> {
        let Frame { parts, data, .. } = &mut frame;
        for part in parts {
            let Some((path, offset)) = file_part(part) else {
                continue;
            };
            let bad = match &part.runs {
                None => self.0.bad_pages(
                    path,
                    offset,
                    &data[part.inner as usize..][..part.len as usize],
                ),
                Some(runs) => self.0.bad_pages_in_runs(path, offset, runs, data),
            };
            if !bad.is_empty() {
                record_bad_pages(&mut part.what, bad);
            }
        }
        Ok(frame)
    }
}

/// Returns the file that a part belongs to, and the part's offset in the file.
fn file_part(part: &FrameEntry) -> Option<(&[u8], u64)> {
    match &part.what {
        FrameContent::Whole(entry, state) if state.is_stored() && entry.is_file() => {
            Some((&entry.path, 0))
        }
        FrameContent::Whole(..) | FrameContent::Head(..) => None,
        FrameContent::Piece { file, offset, .. } => Some((&file.entry.path, *offset)),
    }
}

/// Records bad page numbers with the file.
fn record_bad_pages(content: &mut FrameContent, bad: Vec<u32>) {
    match content {
        FrameContent::Whole(_, state) => *state = EntryState::bad_pages(bad),
        FrameContent::Piece { file, .. } => file.bad_pages.locked().extend(bad),
        FrameContent::Head(..) => {}
    }
}

impl PageCheck {
    /// Returns the bad pages of a piece of which only some runs were read.
    fn bad_pages_in_runs(
        &self,
        path: &[u8],
        mut offset: u64,
        runs: &[StoredRun],
        data: &[u8],
    ) -> Vec<u32> {
        let mut bad = Vec::new();
        for run in runs {
            offset += match *run {
                StoredRun::Kept { len, .. } => u64::from(len),
                StoredRun::Here { inner, len } => {
                    bad.extend(self.bad_pages(
                        path,
                        offset,
                        &data[inner as usize..][..len as usize],
                    ));
                    u64::from(len)
                }
            };
        }
        bad
    }

    /// Returns the numbers of the bad pages in a piece of a file.
    fn bad_pages(&self, path: &[u8], offset: u64, content: &[u8]) -> Vec<u32> {
        let Some(first) = first_block(path, self.sizes) else {
            return Vec::new();
        };
        let bytes = u64::from(self.sizes.page_bytes);
        let pages = content
            .chunks_exact(self.sizes.page_bytes as usize)
            .zip(offset / bytes..);
        let wrong = pages.filter(|(page, position)| {
            let block = first + *position as u32;
            check(page, block, self.start_lsn) == PageVerdict::Bad
                && self.is_still_bad(path, position * bytes, page, block)
        });
        wrong.map(|(_, position)| first + position as u32).collect()
    }

    /// Reads the page again; returns whether it is still wrong and unchanged. A page that cannot be
    /// read again counts as bad.
    fn is_still_bad(&self, path: &[u8], offset: u64, page: &[u8], block: u32) -> bool {
        let range = FileRange {
            path,
            offset,
            len: page.len() as u32,
        };
        let Some(data) = &self.data else {
            return true;
        };
        let mut again = None;
        let read = data.read(&[range], &mut |bytes| {
            again = bytes.map(<[u8]>::to_vec);
        });
        match again.filter(|_| read.is_ok()) {
            Some(again) if again.len() == page.len() => {
                again == page && check(&again, block, self.start_lsn) == PageVerdict::Bad
            }
            Some(_) => false, // the file was truncated meanwhile
            None => true,
        }
    }
}
