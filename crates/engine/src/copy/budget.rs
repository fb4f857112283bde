//! Counts what the other side asks to delete, so that it cannot pass the limit of this side.
//!
//! The side that reads refuses before the first change, with all counts at hand. This one does not
//! trust it: the entries that were listed before the first change are the tree, and each removal is
//! counted before it is done. A refusal is final. The same number of entries can be lost by new
//! content: that is not counted here.

use super::call::not_allowed;
use fullbore_format::{
    error::{Error, Result},
    text::count,
};
use fullbore_platform::queue::Locked;
use fullbore_tree::write::deletion_limit::{DeletionLimit, PlannedDeletions};
use std::sync::Mutex;

/// The deletions of one copy.
#[derive(Debug)]
pub(super) struct DeletionBudget {
    limit: DeletionLimit,
    counts: Mutex<DeletionCounts>,
}

#[derive(Debug, Default)]
struct DeletionCounts {
    there: u64,
    gone: u64,
    /// Whether entries that are listed from now on do not count: the other side may have made them.
    is_closed: bool,
    /// Whether the source brought any entry.
    has_made: bool,
    is_refused: bool,
}

impl DeletionBudget {
    pub(super) fn new(limit: DeletionLimit) -> Self {
        Self {
            limit,
            counts: Mutex::default(),
        }
    }

    /// Counts an entry that was listed, but not the root.
    pub(super) fn note_listed(&self, path: &[u8]) {
        let mut counts = self.counts.locked();
        if !counts.is_closed && !path.is_empty() {
            counts.there += 1;
        }
    }

    /// Notes that entries which are listed from now on do not count: the tree is listed again, or
    /// the other side makes entries.
    pub(super) fn close(&self) {
        self.counts.locked().is_closed = true;
    }

    /// Notes an entry that the source brings. The root alone is an empty source.
    pub(super) fn note_made(&self, path: &[u8]) {
        self.counts.locked().has_made |= !path.is_empty();
    }

    /// Takes so many entries, which are about to be deleted.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if that is more than the limit
    /// allows, and for each removal after that.
    pub(super) fn take(&self, entries: u64) -> Result<()> {
        let mut counts = self.counts.locked();
        counts.is_closed = true;
        if counts.is_refused {
            return Err(not_allowed());
        }
        let gone = counts.gone.saturating_add(entries);
        let planned = PlannedDeletions {
            extra: gone,
            there: counts.there,
            is_source_empty: !counts.has_made && gone >= counts.there,
        };
        let Some((why, _)) = self.limit.objection(planned) else {
            counts.gone = gone;
            return Ok(());
        };
        counts.is_refused = true;
        Err(refused(planned, why))
    }

    /// Gives back an entry that was taken and is still there.
    pub(super) fn give_back(&self) {
        let mut counts = self.counts.locked();
        counts.gone = counts.gone.saturating_sub(1);
    }
}

fn refused(planned: PlannedDeletions, why: String) -> Error {
    let PlannedDeletions { extra, there, .. } = planned;
    let (extra, there) = (count(extra), count(there));
    let message =
        format!("cannot delete {extra} of the {there} files and directories of the target");
    let error = Error::new(fullbore_format::error::ErrorKind::Corrupt, message).because(why);
    error.hint(
        "the other side should have ended the copy before its first change: either it does not \
        keep to the options of this command, or the target has changed meanwhile",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: DeletionLimit, listed: usize) -> DeletionBudget {
        let budget = DeletionBudget::new(limit);
        budget.note_listed(b"");
        (0..listed).for_each(|_| budget.note_listed(b"a"));
        budget
    }

    #[test]
    fn half_of_the_listed_entries_may_go_and_a_refusal_is_final() {
        let half = budget(DeletionLimit::default(), 4);
        half.close();
        half.note_listed(b"made by the other side");
        assert!(half.take(1).is_ok() && half.take(1).is_ok());
        assert!(half.take(1).is_err());
        half.give_back();
        assert!(half.take(1).is_err() && half.take(0).is_err());
        let renamed = budget(DeletionLimit::default(), 4);
        renamed.take(1).unwrap();
        renamed.give_back();
        assert!(renamed.take(2).is_ok() && renamed.take(u64::MAX).is_err());
        assert!(budget(DeletionLimit::default(), 0).take(1).is_err());
    }

    #[test]
    fn an_empty_source_may_delete_everything_only_if_that_is_said() {
        let most = DeletionLimit {
            max: Some(9),
            allow_empty: false,
        };
        assert!(budget(most, 4).take(3).is_ok());
        assert!(budget(most, 4).take(4).is_err());
        let made = budget(most, 4);
        made.note_made(b"");
        assert!(made.take(0).is_ok());
        made.note_made(b"a");
        assert!(made.take(4).is_ok());
        let all = DeletionLimit {
            max: None,
            allow_empty: true,
        };
        assert!(budget(all, 4).take(4).is_ok());
    }
}
