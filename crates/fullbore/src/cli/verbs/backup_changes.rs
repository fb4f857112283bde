//! The entries that `fullbore backup --verbose` prints: `+` new, `~` changed, `-` gone, `x` excluded, with its pattern.

use crate::{cli::output::printed, cli::verbs::diff_backups::Diff};
use fullbore_engine::{
    backup::{Backup, changes::SourceChange},
    plan::SinkSpec,
};
use fullbore_format::{entry::EntryPath, error::Result, root::Root, text};
use fullbore_repository::{
    archive::Selection,
    open::{named, open},
    select::BackupFilter,
};
use std::ffi::OsStr;

/// Prints an entry that is excluded; called from the threads that list directories.
pub(super) fn print_excluded(path: &[u8], pattern: &[u8]) {
    let line = format!("x {}  {}", text::name(path), text::name(pattern));
    // The backup goes on without its output.
    let _ = printed(|out| text::line(out, &line).map(|()| 0));
}

/// Prints what a dry run found.
///
/// # Errors
/// Those of standard output.
pub(super) fn print_change(change: SourceChange, path: &EntryPath) -> Result<()> {
    let sign = match change {
        SourceChange::Added => '+',
        SourceChange::Changed => '~',
        SourceChange::Removed => '-',
    };
    printed(|out| text::line(out, &format!("{sign} {}", shown(path))).map(|()| 0)).map(drop)
}

/// Prints what a backup stored, compared with the one before; of a first backup all entries.
///
/// # Errors
/// Those of reading the backup, and of standard output.
pub(super) fn print_stored(plan: &Backup, to: &OsStr, root: &Root) -> Result<()> {
    if !matches!(plan.to, SinkSpec::Repository(_)) {
        return Ok(());
    }
    if let Some(base) = root.bases.first() {
        let diff = Diff {
            storages: plan.storages.clone(),
            repository: to.to_owned(),
            a: Some(base.clone()),
            b: root.id.clone(),
            ..Diff::default()
        };
        return printed(|out| diff.run(out).map(|_| 0)).map(drop);
    }
    let stored = named(to, &root.id);
    let archive = open(&plan.storages, stored, &BackupFilter::default())?;
    printed(|out| {
        for item in archive.records(&Selection::default(), false) {
            let item = item?;
            if !item.more {
                text::line(out, &format!("+ {}", shown(&item.entry.path)))?;
            }
        }
        Ok(0)
    })
    .map(drop)
}

fn shown(path: &[u8]) -> String {
    match path {
        [] => ".".to_owned(),
        path => text::name(path),
    }
}
