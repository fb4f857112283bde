//! Frees storage that no backup needs, see [`crate::repo::prune`].

use crate::{
    error::Result,
    repo::{
        open::{read_repository, repository_at},
        protocol,
        prune::{BackupRemains, ObjectCount, Pruned, prune},
    },
    text,
};
use serde::Serialize;
use std::{ffi::OsString, io::Write};

/// The repository to prune, and the form of the output.
#[derive(Debug, Clone, Default)]
pub struct Prune {
    /// The repository.
    pub repository: OsString,
    /// Whether to print only what would be freed.
    pub dry_run: bool,
    /// Whether to print JSON, one object a line.
    pub json: bool,
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
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    held_by: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    doubtful: &'a [String],
}

impl Prune {
    /// Prunes the repository, and prints freed and held storage.
    ///
    /// # Errors
    /// Those of [`prune`].
    pub fn run(&self, out: &mut dyn Write) -> Result<()> {
        let objects = repository_at(&self.repository)?;
        read_repository(&*objects)?;
        let pruned = prune(&*objects, self.dry_run)?;
        if self.json {
            self.print_json(&pruned, out)
        } else {
            self.print(&pruned, out)
        }
    }

    fn print(&self, pruned: &Pruned, out: &mut dyn Write) -> Result<()> {
        let frees = if self.dry_run { "would free" } else { "freed" };
        for (
            id,
            BackupRemains {
                freed,
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
            let parts: Vec<_> = freed.into_iter().chain(held).chain(cut_off).collect();
            text::line(out, &format!("{id}  {}", parts.join("; ")))?;
        }
        for id in &pruned.doubtful {
            let what = format!("{id}  skipped: cannot tell whether the backup is still running");
            text::line(
                out,
                &format!(
                    "{what}; if it is not, remove {:?}",
                    protocol::intent_key(id)
                ),
            )?;
        }
        let freed = pruned.freed();
        let held = pruned.held();
        let cut_off = pruned.cut_off();
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
        text::line(out, &format!("{frees} {}{still}{kept}", amount(&freed)))
    }

    fn print_json(&self, pruned: &Pruned, out: &mut dyn Write) -> Result<()> {
        let line =
            |kind, id, freed: ObjectCount, held: ObjectCount, cut_off: ObjectCount| PruneLine {
                kind,
                id,
                dry_run: self.dry_run,
                freed_bytes: freed.bytes,
                freed_segments: freed.segments,
                held_bytes: held.bytes,
                held_segments: held.segments,
                cut_off_bytes: cut_off.bytes,
                cut_off_segments: cut_off.segments,
                held_by: &[],
                doubtful: &[],
            };
        for (
            id,
            BackupRemains {
                freed,
                held,
                cut_off,
                by,
            },
        ) in &pruned.backups
        {
            let line = line("backup", Some(&**id), *freed, *held, *cut_off);
            text::json(
                out,
                &PruneLine {
                    held_by: by,
                    ..line
                },
            )?;
        }
        let result = line(
            "result",
            None,
            pruned.freed(),
            pruned.held(),
            pruned.cut_off(),
        );
        text::json(
            out,
            &PruneLine {
                doubtful: &pruned.doubtful,
                ..result
            },
        )
    }
}

pub(super) fn amount(amount: &ObjectCount) -> String {
    format!(
        "{} in {}",
        text::bytes(amount.bytes),
        text::counted(amount.segments, "segment")
    )
}

fn holders(by: &[String]) -> String {
    match by {
        [] => String::new(),
        [one] => format!(" by {one}"),
        [first, rest @ ..] => format!(" by {first} and {} more", text::count(rest.len() as u64)),
    }
}
