//! Refuses to delete most of a directory that was probably not meant.
//!
//! The counts decide, and not a memory of earlier runs: where an earlier copy or restore of the same
//! source was made, most objects belong to the source.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::count,
};
use minicbor::{Decode, Encode};

/// The number of objects that a run may delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct DeletionLimit {
    /// At most so many. `None`: at most half of those that are there.
    #[n(0)]
    pub max: Option<u64>,
    /// Whether everything may be deleted if the source is empty.
    #[n(1)]
    pub allow_empty: bool,
}

/// The objects that a run would delete, below the target itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlannedDeletions {
    /// Objects that only the target has, with those below them.
    pub extra: u64,
    /// Objects that the target has.
    pub there: u64,
    /// Whether the source has no objects at all.
    pub is_source_empty: bool,
}

impl DeletionLimit {
    /// Checks planned deletions in `target`, before the first change.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if they are more than the limit. Its hint names the option that allows
    /// them.
    pub fn check(&self, planned: PlannedDeletions, target: &str) -> Result<()> {
        let PlannedDeletions {
            extra,
            there: existing,
            ..
        } = planned;
        let Some((reason, option)) = self.objection(planned) else {
            return Ok(());
        };
        let (extra, existing) = (count(extra), count(existing));
        let message =
            format!("cannot delete {extra} of the {existing} files and directories in {target}");
        Err(Error::new(ErrorKind::Usage, message)
            .because(reason)
            .hint(format!("nothing was changed; {option}")))
    }

    /// Returns the reason not to delete them, and how to allow it.
    pub fn objection(&self, planned: PlannedDeletions) -> Option<(String, String)> {
        let PlannedDeletions {
            extra,
            there,
            is_source_empty,
        } = planned;
        let allowing = format!("if they should be deleted, add --max-delete {extra}");
        match self.max {
            _ if extra == 0 => None,
            _ if is_source_empty && self.allow_empty => None,
            _ if is_source_empty => Some((
                "the source is empty; perhaps it is not mounted".to_owned(),
                "if all should be deleted, add --allow-empty".to_owned(),
            )),
            Some(max) if extra > max => Some((format!("--max-delete is {max}"), allowing)),
            None if extra > there / 2 => Some((
                "that is more than half; perhaps this is another directory than you meant"
                    .to_owned(),
                allowing,
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(limit: DeletionLimit, extra: u64, existing: u64, is_source_empty: bool) -> String {
        let planned = PlannedDeletions {
            extra,
            there: existing,
            is_source_empty,
        };
        let checked = limit.check(planned, "\"t\"");
        checked.map_or_else(|error| error.line(), |()| String::new())
    }

    #[test]
    fn more_than_half_more_than_the_limit_and_all_for_an_empty_source_are_refused() {
        let half = DeletionLimit::default();
        assert_eq!(refusal(half, 0, 0, true), "");
        assert_eq!(refusal(half, 5, 10, false), "");
        assert!(refusal(half, 6, 10, false).contains("6 of the 10"));
        assert!(refusal(half, 1, 1, false).contains("more than half"));
        assert!(refusal(half, 1, 9, true).contains("the source is empty"));
        let most = DeletionLimit {
            max: Some(7),
            allow_empty: false,
        };
        assert_eq!(refusal(most, 7, 7, false), "");
        assert!(refusal(most, 8, 100, false).contains("--max-delete is 7"));
        assert!(refusal(most, 1, 1, true).contains("the source is empty"));
        let all = DeletionLimit {
            max: None,
            allow_empty: true,
        };
        assert_eq!(refusal(all, 9, 9, true), "");
        assert!(!refusal(all, 9, 9, false).is_empty());
    }
}
