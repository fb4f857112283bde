//! `fullbore restore --dry-run`.

use super::restore_report::say_refusal;
use crate::cli::{
    options::OutputArgs,
    output::{aside, printed},
};
use fullbore_engine::restore::{
    Restore,
    delta::PlannedRemoval,
    preview::{PreviewChange, PreviewTotals},
};
use fullbore_format::{entry::EntryPath, error::Result, root::EntryName, text};
use serde_json::json;
use std::io::Write;

/// Lists what the restore would do.
///
/// # Errors
/// Those of [`Restore::preview`] and [`Restore::planned_removal`].
pub(super) fn run(restore: &Restore, output: &OutputArgs) -> Result<u8> {
    let mut totals = PreviewTotals::default();
    let mut removal = PlannedRemoval::default();
    let code = printed(|out| {
        let mut say =
            |sign: char, change: &str, path: &EntryPath| line(out, output, (sign, change), path);
        removal = restore.planned_removal()?;
        let mut paths = removal.paths.iter();
        paths.try_for_each(|path| say('-', "removed", path))?;
        totals = restore.preview(&mut |change, path| match change {
            PreviewChange::Create => say('+', "added", path),
            PreviewChange::Change => say('~', "changed", path),
        })?;
        if output.json {
            let result = json!({"type": "result", "dry_run": true, "id": totals.id, "added": totals.created,
                "changed": totals.changed, "removed": removal.paths.len(), "same": totals.same, "kept": totals.kept});
            text::json(out, &result)?;
        }
        Ok(0)
    })?;
    if output.json || output.quiet {
        return Ok(code);
    }
    for note in &totals.notes {
        aside(format_args!("note: {note}"));
    }
    aside(format_args!(
        "backup {}: {} would be created, {} changed, {} deleted; {} look the same",
        totals.id,
        text::counted(totals.created, "entry"),
        text::count(totals.changed),
        text::count(removal.paths.len() as u64),
        text::count(totals.same)
    ));
    totals.refusal.iter().for_each(say_refusal);
    if totals.kept > 0 {
        let newer = text::counted(totals.kept, "newer file");
        aside(format_args!(
            "note: {newer} of the target would be kept; --overwrite=all replaces them"
        ));
    }
    removal.refusal.iter().for_each(say_refusal);
    // The directory itself is one entry that looks the same.
    let has_files = totals.changed + totals.same + totals.kept > 1;
    if has_files && !restore.into.is_in_place() {
        aside("note: the target holds files: the restore needs --overwrite, --delta or --mirror");
    }
    Ok(code)
}

fn line(
    out: &mut dyn Write,
    output: &OutputArgs,
    (sign, change): (char, &str),
    path: &EntryPath,
) -> Result<()> {
    if output.json {
        let path = EntryName(path.clone());
        return text::json(
            out,
            &json!({"type": "change", "change": change, "path": path}),
        );
    }
    if output.quiet {
        return Ok(());
    }
    let name = if path.is_empty() {
        ".".to_owned()
    } else {
        text::name(path)
    };
    text::line(out, &format!("{sign} {name}"))
}
