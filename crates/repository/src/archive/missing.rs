//! Entries of a restore that the backup could not capture completely.
//!
//! The report of the backup listed them; but the restore may be run by another person, years later.

use fullbore_format::{
    error::quoted,
    page::{EntryState, Record},
    text::counted,
};

/// The counts of incomplete entries, with the first of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MissingParts {
    /// Entries that were not captured, and are not restored.
    pub unreadable: u64,
    /// Files whose page checksums were wrong in the source: they are restored as they were.
    pub bad_pages: u64,
    /// Why an unknown number of entries may be missing.
    pub unnamed: Option<&'static str>,
    /// Files that were written to while they were read: their content may be torn.
    changed: u64,
    first_unreadable: String,
    first_bad: String,
    first_changed: String,
}

impl MissingParts {
    /// Starts with no missing parts except the losses without a name.
    pub fn new(unnamed: Option<&'static str>) -> Self {
        Self {
            unnamed,
            ..Self::default()
        }
    }

    /// Returns whether every entry is complete and correct.
    pub fn is_empty(&self) -> bool {
        self.is_captured() && self.bad_pages == 0
    }

    /// Returns whether every entry is complete, correct or not.
    pub fn is_captured(&self) -> bool {
        self.unreadable == 0 && self.unnamed.is_none()
    }

    /// Counts a wanted record. A file that vanished before it was read is not missing.
    pub fn note(&mut self, record: &Record) {
        let (count, first, reason) = match &record.state {
            _ if record.more => return,
            EntryState::Unreadable(reason) => (
                &mut self.unreadable,
                &mut self.first_unreadable,
                &reason[..],
            ),
            EntryState::BadPages(_) => (&mut self.bad_pages, &mut self.first_bad, ""),
            EntryState::Changed => (&mut self.changed, &mut self.first_changed, ""),
            _ => return,
        };
        if *count == 0 {
            *first =
                quoted(&record.entry.path) + if reason.is_empty() { "" } else { ": " } + reason;
        }
        *count += 1;
    }

    /// Returns a line for each of the four counts that is not zero.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self
            .unnamed
            .iter()
            .map(|reason| (*reason).to_owned())
            .collect();
        if self.unreadable > 0 {
            // Lines for people: each has number and first name, so that one look tells whether it
            // matters.
            let (past, present) = if self.unreadable == 1 {
                ("was", "is")
            } else {
                ("were", "are")
            };
            let line = format!(
                "{} {past} not captured by the backup and {present}",
                counted(self.unreadable, "entry")
            );
            lines.push(format!(
                "{line} not restored, the first is {}",
                self.first_unreadable
            ));
        }
        if self.bad_pages > 0 {
            let files = counted(self.bad_pages, "file");
            lines.push(format!(
                "{files} had wrong page checksums already, the first is {}",
                self.first_bad
            ));
        }
        if self.changed > 0 {
            let files = counted(self.changed, "file");
            lines.push(format!(
                "{files} changed while the backup read them, the first is {}",
                self.first_changed
            ));
        }
        lines
    }
}
