//! The options of a restore, and its outcome.

use crate::report::damage::Damage;
use fullbore_format::{entry::EntryPath, error::Result, root::SourceInfo};
use fullbore_postgres::restore::plan::ClusterOptions;
use fullbore_repository::{
    archive::{PathFilter, missing::MissingParts},
    select::BackupFilter,
};
use fullbore_storage::Storages;
use fullbore_tree::write::{deletion_limit::DeletionLimit, layout::TargetMount};
use std::{ffi::OsString, num::NonZeroUsize, path::PathBuf};

/// The backup to restore, the target, and the options of the restore.
#[derive(Debug, Clone)]
pub struct Restore {
    /// How storages are reached.
    pub storages: Storages,
    /// `FROM[@BACKUP]`, or `-` for a tar on standard input.
    pub from: OsString,
    /// Selects the backups of which the latest is restored.
    pub filter: BackupFilter,
    /// The target directory.
    pub to: PathBuf,
    /// Paths in the backup; empty for everything.
    pub paths: Vec<Vec<u8>>,
    /// Patterns that choose among them.
    pub patterns: EntryPatterns,
    /// What happens to files that the target has.
    pub into: RestoreInto,
    /// Whether the restore continues after damage and restores every undamaged file.
    pub keep_going: bool,
    /// Whether owners are restored by number instead of by name.
    pub numeric_owner: bool,
    /// Options that only the restore of a PostgreSQL cluster has.
    pub postgres: ClusterOptions,
    /// Number of threads that decode and digest at once.
    pub workers: NonZeroUsize,
    /// Memory limit of all buffers together, in bytes.
    pub memory: u64,
    /// The words of a command that fetches WAL: the program, then the options with which it reaches this repository.
    pub fetch_words: Vec<OsString>,
    /// Called before the first write, with the directories outside of the target that the restore
    /// writes to.
    pub say_elsewhere: fn(&[TargetMount]),
    /// Called with the paths that do not belong to the backup, before the first is removed. After
    /// an error nothing is removed.
    pub say_removed: fn(&[EntryPath]) -> Result<()>,
}

/// The outcome of a restore.
#[derive(Debug, Default)]
pub struct Summary {
    /// ID of the backup; empty for a foreign tar.
    pub id: String,
    /// Source of the backup; empty for a stream without metadata.
    pub source: String,
    /// The same in parts; `None` if the stream does not say it.
    pub source_info: Option<SourceInfo>,
    /// Start time of the backup, as RFC 3339.
    pub time: String,
    /// The requested paths, in their order; empty if everything was requested.
    pub paths: Vec<EntryPath>,
    /// The requested databases; empty for a whole cluster and for other backups.
    pub databases: Vec<String>,
    /// Number of entries that were restored or tried.
    pub entries: u64,
    /// Whether the manifest has digests to check files against.
    pub digested: bool,
    /// Notes on parts that could not be restored and are no failure, one line for each reason.
    pub notes: Vec<String>,
    /// Files of the target that stayed, because they are newer than in the backup.
    pub newer_files: u64,
    /// Steps for the user to take now, one line each.
    pub next: Vec<String>,
    /// Number of steps, from the start of `next`, that must precede the start of the server.
    pub needed: usize,
    /// Damage that cost files; only with `keep_going`.
    pub damage: Vec<Damage>,
    /// Parts that the backup itself does not hold as they were.
    pub lacking: MissingParts,
    /// Counts of a restore into existing files.
    pub changes: Option<DeltaChanges>,
    /// Wall-clock time in seconds.
    pub seconds: f64,
}

impl Summary {
    /// Returns 4 if something is damaged, 3 if the backup does not hold everything as it was, else
    /// 0.
    pub fn exit_code(&self) -> u8 {
        match (self.damage.is_empty(), self.lacking.is_empty()) {
            (false, _) => 4,
            (true, false) => 3,
            (true, true) => 0,
        }
    }
}

/// What a restore does with the files that the target has.
#[derive(Debug, Clone, Copy, Default)]
pub enum RestoreInto {
    /// There are none: the target is absent or empty, or has nothing in the place of the selected
    /// paths.
    #[default]
    Empty,
    /// Files of the backup replace them.
    Overwrite {
        /// Whether files are replaced that are newer than in the backup.
        newer: bool,
    },
    /// They are compared with the backup, and only what differs is written.
    Delta {
        /// How files are removed that do not belong to the backup; `None` keeps them.
        delete: Option<ExtraDeletion>,
    },
}

impl RestoreInto {
    /// Returns whether the target may have files.
    pub fn is_in_place(self) -> bool {
        !matches!(self, Self::Empty)
    }

    /// Returns whether whole files are replaced.
    pub(crate) fn overwrites(self) -> bool {
        matches!(self, Self::Overwrite { .. })
    }
}

/// How files are removed that do not belong to the backup.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExtraDeletion {
    /// Whether files are removed that the backup left out on its host.
    pub excluded: bool,
    /// How much may be removed.
    pub limit: DeletionLimit,
}

/// Counts of a restore into existing files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeltaChanges {
    /// Files, links and special files that already were as in the backup.
    pub same: u64,
    /// Files, links and special files that differed or were missing.
    pub changed: u64,
    /// Removed paths that did not belong to the backup, each counted once with everything below it.
    pub removed: u64,
    /// Bytes of content that were written.
    pub written_bytes: u64,
}

/// Patterns as in `.gitignore`, from the root of the backup.
#[derive(Debug, Clone, Default)]
pub struct EntryPatterns {
    /// Only entries that one of these matches, and those below them; empty for all.
    pub include: Vec<OsString>,
    /// Entries that are not restored, nor those below them.
    pub exclude: Vec<OsString>,
    /// Entries that a session has chosen; they replace the paths and the patterns.
    pub chosen: Option<ChosenEntries>,
}

/// Entries that were chosen one by one.
#[derive(Clone)]
pub struct ChosenEntries {
    /// These paths, and everything below them.
    pub paths: Vec<EntryPath>,
    /// The entries below these paths that are not restored.
    pub left_out: Option<PathFilter>,
}

impl std::fmt::Debug for ChosenEntries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.paths).finish()
    }
}
