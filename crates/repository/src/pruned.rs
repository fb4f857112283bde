//! The outcome of a prune: which objects it deleted, kept and could not delete.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::segment_numbers,
    sizes,
};
use std::{collections::BTreeMap, sync::Arc};

/// What a prune deleted, or would delete: backups that lost objects, or have objects that only
/// others need.
#[derive(Debug, Default)]
pub struct Pruned {
    pub backups: BTreeMap<String, BackupRemains>,
    /// Backups that were skipped, because it cannot be found out whether they are alive.
    pub doubtful: Vec<String>,
    /// The first deletion that the storage refused; the others were tried all the same.
    pub refusal: Option<Error>,
}

/// The outcome for a backup that is not listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackupRemains {
    pub freed: ObjectCount,
    /// Objects that the storage refused to delete.
    pub undeleted: ObjectCount,
    /// Objects that are kept because other backups refer to them.
    pub held: ObjectCount,
    /// Objects that are kept of an interrupted backup, so that the next backup of its source can
    /// resume it.
    pub cut_off: ObjectCount,
    /// The listed backups that refer to these objects.
    pub by: Vec<Arc<str>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectCount {
    /// Segments among them.
    pub segments: u64,
    pub bytes: u64,
}

impl ObjectCount {
    pub(super) fn add(&mut self, name: &str, bytes: u64) {
        self.segments += u64::from(segment_numbers(name).is_some());
        sizes::add(&mut self.bytes, bytes);
    }
}

impl Pruned {
    /// Returns the sum of all deleted objects.
    pub fn freed(&self) -> ObjectCount {
        self.sum(|remains| remains.freed)
    }

    /// Returns the sum of all objects that the storage refused to delete.
    pub fn undeleted(&self) -> ObjectCount {
        self.sum(|remains| remains.undeleted)
    }

    /// Returns the sum of all objects that are kept for others.
    pub fn held(&self) -> ObjectCount {
        self.sum(|remains| remains.held)
    }

    /// Returns the sum of all objects that are kept of interrupted backups.
    pub fn cut_off(&self) -> ObjectCount {
        self.sum(|remains| remains.cut_off)
    }

    /// Notes that the storage refused to delete something. The prune goes on: other deletions may be permitted.
    ///
    /// # Errors
    /// Every other error.
    pub(super) fn note_refusal(&mut self, deleted: Result<()>) -> Result<()> {
        match deleted {
            Err(error) if error.kind == ErrorKind::Permission => {
                self.refusal.get_or_insert(error);
                Ok(())
            }
            deleted => deleted,
        }
    }

    fn sum(&self, count: impl Fn(&BackupRemains) -> ObjectCount) -> ObjectCount {
        self.backups
            .values()
            .map(count)
            .fold(ObjectCount::default(), |sum, more| ObjectCount {
                segments: sum.segments.saturating_add(more.segments),
                bytes: sum.bytes.saturating_add(more.bytes),
            })
    }
}
