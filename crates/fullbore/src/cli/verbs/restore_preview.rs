//! `fullbore restore --dry-run`.

use super::restore_report::say_refusal;
use crate::cli::{
    options::OutputArgs,
    output::{aside, printed},
};
use fullbore_engine::restore::{
    Restore,
    delta::{Delta, ExtraDeletion},
    preview::{PreviewChange, PreviewTotals},
};
use fullbore_format::{entry::EntryPath, error::Result, root::EntryName, text};
use fullbore_platform::queue::Locked;
use serde_json::json;
use std::{io::Write, sync::Mutex};

/// Lists what the restore would do. `is_allowed` tells whether the target may hold files.
///
/// # Errors
/// Those of [`Restore::preview`] and [`Delta::plan_deletions`].
pub(super) fn run(
    restore: &Restore,
    deletion: Option<ExtraDeletion>,
    is_allowed: bool,
    output: &OutputArgs,
) -> Result<u8> {
    let mut totals = PreviewTotals::default();
    let mut refusal = None;
    let deleted: Mutex<Vec<EntryPath>> = Mutex::default();
    let code = printed(|out| {
        let mut say =
            |sign: char, change: &str, path: &EntryPath| line(out, output, (sign, change), path);
        if deletion.is_some() {
            let keep = |paths: &[EntryPath]| {
                deleted.locked().extend_from_slice(paths);
                Ok(())
            };
            refusal = Delta::new(restore, deletion, &keep).plan_deletions()?;
            let deleted = deleted.locked();
            deleted
                .iter()
                .try_for_each(|path| say('-', "delete", path))?;
        }
        totals = restore.preview(&mut |change, path| match change {
            PreviewChange::Create => say('+', "create", path),
            PreviewChange::Change => say('~', "change", path),
        })?;
        if output.json {
            let result = json!({"type": "result", "dry_run": true, "created": totals.created,
                "changed": totals.changed, "deleted": deleted.locked().len(), "same": totals.same});
            text::json(out, &result)?;
        }
        Ok(0)
    })?;
    if output.json || output.quiet {
        return Ok(code);
    }
    aside(format_args!(
        "{} would be created, {} changed, {} deleted; {} look the same",
        text::counted(totals.created, "entry"),
        text::count(totals.changed),
        text::count(deleted.locked().len() as u64),
        text::count(totals.same)
    ));
    refusal.iter().for_each(say_refusal);
    let has_files = totals.changed + totals.same > 1;
    if has_files && !is_allowed {
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
