//! Frees storage that no backup needs, see [`fullbore_repository::prune`].

use fullbore_format::{error::Result, text};
use fullbore_repository::{
    open::read_repository,
    protocol,
    prune::{BackupRemains, ObjectCount, Pruned, prune_with},
    root_index::IndexPlace,
    root_reader::DocumentReader,
    wal::{PrunedWal, WalRetention, prune_wal},
};
use fullbore_storage::Storages;
use serde::Serialize;
use std::{ffi::OsString, io::Write, sync::Arc};

/// The repository to prune, and the form of the output.
#[derive(Debug, Clone, Default)]
pub(super) struct Prune {
    /// How storages are reached.
    pub(super) storages: Storages,
    /// The repository.
    pub(super) repository: OsString,
    /// Whether to print only what would be freed.
    pub(super) dry_run: bool,
    /// Whether to print JSON, one object a line.
    pub(super) json: bool,
    /// How long archived WAL is kept.
    pub(super) wal: WalRetention,
}

/// One backup, or the total, as JSON.
#[derive(Serialize)]
struct PruneLine<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    dry_run: bool,
    freed_bytes: u64,
    freed_segments: u64,
    held_bytes: u64,
    held_segments: u64,
    cut_off_bytes: u64,
    cut_off_segments: u64,
    #[serde(skip_serializing_if = "is_zero")]
    undeleted_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    undeleted_segments: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    held_by: Vec<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    doubtful: &'a [String],
}

impl Prune {
    /// Prunes the repository, and prints freed and held storage.
    ///
    /// # Errors
    /// Those of [`prune`]; [`ErrorKind::Permission`](fullbore_format::error::ErrorKind::Permission) if the storage refused to delete something.
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let objects = self.storages.repository_at(&self.repository)?;
        read_repository(&*objects)?;
        let place = IndexPlace::new(self.storages.index_dir());
        let mut reader = DocumentReader::new(&*objects, &place);
        let pruned = prune_with(&*objects, self.dry_run, &mut reader)?;
        if self.json {
            self.print_json(&pruned, out)?;
        } else {
            self.print(&pruned, out)?;
        }
        let wal = prune_wal(&objects, &mut reader, &self.wal, self.dry_run)?;
        self.print_wal(&wal, out)?;
        pruned.refusal.map_or(Ok(()), Err)
    }

    /// Prints what was done with WAL, if a repository has some.
    fn print_wal(&self, wal: &PrunedWal, out: &mut dyn Write) -> Result<()> {
        if self.json {
            if !wal.is_nothing() {
                text::json(out, &wal_json(wal, self.dry_run))?;
            }
            return Ok(());
        }
        let frees = if self.dry_run { "would free" } else { "freed" };
        let mut lines = Vec::new();
        if wal.freed_runs > 0 {
            lines.push(format!(
                "{frees} {} of WAL",
                wal_amount(wal.freed_runs, wal.freed_bytes)
            ));
        }
        if wal.joined_segments > 0 {
            let joined = text::counted(wal.joined_segments, "single segment");
            lines.push(format!("{joined} of WAL joined"));
        }
        if wal.marked_runs > 0 {
            let hours = self.wal.grace_seconds / 3600;
            let wal_amount = wal_amount(wal.marked_runs, wal.marked_bytes);
            lines.push(format!("{wal_amount} of WAL go with a prune in {hours} h or later, as a recovery may be reading them"));
        }
        for system in &wal.systems_without_backups {
            lines.push(format!(
                "the WAL of system {system} is kept: it has no backup here"
            ));
        }
        lines.extend(
            wal.skipped
                .iter()
                .map(|why| format!("the WAL is kept: {why}")),
        );
        lines.iter().try_for_each(|line| text::line(out, line))
    }

    fn print(&self, pruned: &Pruned, out: &mut dyn Write) -> Result<()> {
        let frees = if self.dry_run { "would free" } else { "freed" };
        for (
            id,
            BackupRemains {
                freed,
                undeleted,
                held,
                cut_off,
                by,
            },
        ) in &pruned.backups
        {
            let is_some = |amount: &ObjectCount| *amount != ObjectCount::default();
            let freed = is_some(freed).then(|| format!("{frees} {}", amount(freed)));
            let held = is_some(held).then(|| format!("{} held{}", amount(held), holders(by)));
            let cut_off = is_some(cut_off)
                .then(|| format!("{} kept to resume the interrupted backup", amount(cut_off)));
            let undeleted =
                is_some(undeleted).then(|| format!("could not delete {}", amount(undeleted)));
            let parts = [freed, undeleted, held, cut_off];
            let parts: Vec<_> = parts.into_iter().flatten().collect();
            text::line(out, &format!("{id}  {}", parts.join("; ")))?;
        }
        for id in &pruned.doubtful {
            let message = format!("{id}  skipped: cannot tell whether the backup is still running");
            text::line(
                out,
                &format!(
                    "{message}; if it is not, remove {:?}",
                    protocol::intent_key(id)
                ),
            )?;
        }
        let freed = pruned.freed();
        let held = pruned.held();
        let cut_off = pruned.cut_off();
        let undeleted = pruned.undeleted();
        let refused = match undeleted.bytes {
            0 => String::new(),
            _ => format!("; could not delete {}", amount(&undeleted)),
        };
        let still = match held.bytes {
            0 => String::new(),
            _ => format!(
                "; {} of forgotten backups still held, because newer ones refer to it",
                amount(&held)
            ),
        };
        let kept = match cut_off.bytes {
            0 => String::new(),
            _ => format!(
                "; {} kept for the next backup of the same source, or until the interrupted backup is forgotten",
                amount(&cut_off)
            ),
        };
        text::line(
            out,
            &format!("{frees} {}{refused}{still}{kept}", amount(&freed)),
        )
    }

    fn print_json(&self, pruned: &Pruned, out: &mut dyn Write) -> Result<()> {
        for (id, remains) in &pruned.backups {
            let line = PruneLine {
                held_by: remains.by.iter().map(|id| &**id).collect(),
                ..self.json_line("freed", Some(&**id), remains)
            };
            text::json(out, &line)?;
        }
        let all = BackupRemains {
            freed: pruned.freed(),
            undeleted: pruned.undeleted(),
            held: pruned.held(),
            cut_off: pruned.cut_off(),
            by: Vec::new(),
        };
        let result = PruneLine {
            doubtful: &pruned.doubtful,
            ..self.json_line("result", None, &all)
        };
        text::json(out, &result)
    }

    fn json_line<'a>(
        &self,
        kind: &'static str,
        id: Option<&'a str>,
        remains: &BackupRemains,
    ) -> PruneLine<'a> {
        PruneLine {
            kind,
            id,
            dry_run: self.dry_run,
            freed_bytes: remains.freed.bytes,
            freed_segments: remains.freed.segments,
            held_bytes: remains.held.bytes,
            held_segments: remains.held.segments,
            cut_off_bytes: remains.cut_off.bytes,
            cut_off_segments: remains.cut_off.segments,
            undeleted_bytes: remains.undeleted.bytes,
            undeleted_segments: remains.undeleted.segments,
            held_by: Vec::new(),
            doubtful: &[],
        }
    }
}

fn wal_amount(runs: u64, bytes: u64) -> String {
    format!(
        "{} in {}",
        text::bytes(bytes),
        text::counted(runs, "object")
    )
}

fn wal_json(wal: &PrunedWal, dry_run: bool) -> serde_json::Value {
    serde_json::json!({
        "type": "freed_wal",
        "dry_run": dry_run,
        "freed_bytes": wal.freed_bytes,
        "freed_objects": wal.freed_runs,
        "joined_segments": wal.joined_segments,
        "marked_bytes": wal.marked_bytes,
        "marked_objects": wal.marked_runs,
        "systems_without_backups": wal.systems_without_backups,
        "why_kept": wal.skipped,
    })
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

pub(super) fn amount(amount: &ObjectCount) -> String {
    format!(
        "{} in {}",
        text::bytes(amount.bytes),
        text::counted(amount.segments, "segment")
    )
}

fn holders(by: &[Arc<str>]) -> String {
    match by {
        [] => String::new(),
        [one] => format!(" by {one}"),
        [first, rest @ ..] => format!(" by {first} and {} more", text::count(rest.len() as u64)),
    }
}
