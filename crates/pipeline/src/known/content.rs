//! What is known of a content by its digest, whatever its path.

use super::{BaseEntry, StoredRun};
use fullbore_format::digest::Digest;
use std::{fmt, sync::Arc};

/// The whole content of a file, as it was read.
#[derive(Debug, Clone, Copy)]
pub struct ReadContent<'a> {
    pub digest: &'a Digest,
    pub data: &'a [u8],
}

/// Content that earlier backups have.
pub trait KnownContent: fmt::Debug + Send + Sync {
    /// Returns the earlier record of a file with exactly this content; `None` if there is none, or if that cannot be shown. Called from
    /// any thread.
    fn find(&self, content: &ReadContent<'_>) -> Option<BaseEntry>;
}

/// Compares content with what is stored, where the digests in a record prove nothing: who wrote them may have lied.
pub trait StoredContent: fmt::Debug + Send + Sync {
    /// Returns whether the data of this entry from byte `at` on is exactly `data`.
    fn is(&self, entry: &BaseEntry, at: u64, data: &[u8]) -> bool;
}

/// The record of the same path: one file.
impl KnownContent for BaseEntry {
    fn find(&self, content: &ReadContent<'_>) -> Option<BaseEntry> {
        let is_same = self.last().digest.as_ref() == Some(content.digest);
        (is_same && self.is_stored_as(0, content.data)).then(|| self.clone())
    }
}

impl BaseEntry {
    /// Makes every reference to this entry depend on a look at the stored content.
    #[must_use]
    pub fn unproven(self, stored: Arc<dyn StoredContent>) -> Self {
        Self {
            unproven: Some(stored),
            ..self
        }
    }

    /// Returns whether the earlier data from byte `at` on is `data`, which has the digest that the record says.
    pub fn is_stored_as(&self, at: u64, data: &[u8]) -> bool {
        { self.unproven.as_ref() }.is_none_or(|stored| stored.is(self, at, data))
    }

    /// Turns runs that only look as if they were kept into runs that are stored. `data` is the piece with all runs, one after the
    /// other, and begins `inner` bytes into its frame.
    #[must_use]
    pub fn proven(&self, runs: Vec<StoredRun>, data: &[u8], inner: u32) -> Vec<StoredRun> {
        if self.unproven.is_none() {
            return runs;
        }
        let mut proven = Vec::with_capacity(runs.len());
        let mut position = 0;
        for run in runs {
            let (StoredRun::Kept { len, .. } | StoredRun::Here { len, .. }) = run;
            let here = StoredRun::Here {
                inner: inner + position as u32,
                len,
            };
            let end = position + len as usize;
            let run = match run {
                StoredRun::Kept { at, .. } if self.is_stored_as(at, &data[position..end]) => run,
                _ => here,
            };
            super::push_run(&mut proven, run);
            position = end;
        }
        proven
    }
}
