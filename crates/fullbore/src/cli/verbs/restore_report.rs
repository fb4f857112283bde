//! The last lines of a restore.

use crate::cli::{
    limit::RunLimit,
    output::aside,
    report::{damage_json, store},
};
use fullbore_engine::restore::{DeltaChanges, Summary};
use fullbore_format::{
    error::{Error, quoted},
    root::EntryName,
    text::size::{bytes, count, counted, rate, seconds},
};
use fullbore_platform::metrics::meter::Meter;
use serde_json::{Value, json};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path, sync::atomic::Ordering::Relaxed};

/// The last lines of a restore.
pub(super) fn lines(
    summary: &Summary,
    meter: &Meter,
    limit: &RunLimit,
    is_verbose: bool,
    to: &Path,
) -> Vec<String> {
    let verdict = &limit.verdict;
    let (files, content) = (meter.files.load(Relaxed), meter.bytes.load(Relaxed));
    let read = meter.stored_bytes.load(Relaxed);
    let mut lines: Vec<_> = summary
        .notes
        .iter()
        .map(|note| format!("note: {note}"))
        .collect();
    lines.push(format!(
        "{}, {} in {}, {}{}",
        counted(files, "file"),
        bytes(content),
        seconds(verdict.seconds),
        rate(content, verdict.seconds),
        if read > 0 {
            format!("; {} read", bytes(read))
        } else {
            String::new()
        },
    ));
    lines.extend(summary.changes.iter().map(changes));
    lines.extend(limit.line(is_verbose));
    lines.extend(store(limit.counts, Some(limit)));
    lines.push(restored(summary, files, to));
    lines.extend(summary.next.iter().map(|step| format!("next: {step}")));
    lines
}

/// The first line for a tar that has no root.
pub(super) const BARE: &str = "nothing says what should be in it";

/// The content of the target: all of a backup, or the parts that were requested. `files` were written.
fn restored(summary: &Summary, files: u64, to: &Path) -> String {
    let target = to.display();
    let is_bare = summary.id.is_empty();
    let (parts, is) = parts(summary);
    let whole = match (is_bare, &*summary.source) {
        (true, _) => "the archive".to_owned(),
        // A root that was rebuilt may not know.
        (false, ":") => format!("backup {}", summary.id),
        (false, source) => format!("backup {} of {source}", summary.id),
    };
    let subject = parts
        .as_ref()
        .map_or_else(|| whole.clone(), |parts| format!("{parts} of {whole}"));
    if summary.newer_files > 0 && summary.damage.is_empty() {
        let newer = counted(summary.newer_files, "newer file");
        return match files {
            0 => format!("nothing of {subject} is restored in \"{target}\", which has {newer}"),
            _ => format!("{subject} {is} restored in \"{target}\", but for {newer} there"),
        };
    }
    match (summary.damage.len(), summary.lacking.is_captured()) {
        (0, _) if is_bare => format!("{subject} {is} restored in \"{target}\"; {BARE}"),
        (0, true) if summary.digested => {
            // One path is named as a whole: it keeps the directories that it has in the backup.
            let place = match &summary.paths[..] {
                [path] => quoted(to.join(OsStr::from_bytes(path)).as_os_str().as_bytes()),
                _ => format!("\"{target}\""),
            };
            let as_in = if summary.paths.len() == 1 { "as" } else { "in" };
            format!("{subject} {is} restored {as_in} {place}, every digest matched")
        }
        (0, true) => format!(
            "{subject} {is} restored in \"{target}\"; the backup has no digests of files to compare"
        ),
        (0, false) => {
            let total = parts.map_or_else(String::new, |parts| format!("of {parts} "));
            format!("what was captured {total}by {whole} is restored in \"{target}\"")
        }
        (_, _) if is_bare => {
            let total = parts.map_or_else(String::new, |parts| format!("of {parts} "));
            format!("what came {total}before the damage is restored in \"{target}\"")
        }
        (_, _) => format!("what is whole of {subject} is restored in \"{target}\""),
    }
}

/// The number of parts that are named at the end of a restore.
const PARTS: usize = 3;

/// The names of the parts that were requested, and the verb for them; `None` for the whole backup.
fn parts(summary: &Summary) -> (Option<String>, &'static str) {
    match (&summary.paths[..], &summary.databases[..]) {
        ([], []) => (None, "is"),
        (paths @ [_, ..], _) => named_list(paths.iter().map(|path| quoted(path)).collect(), ""),
        ([], [name]) => named_list(vec![format!("{name:?}")], "database "),
        ([], names) => named_list(
            names.iter().map(|name| format!("{name:?}")).collect(),
            "databases ",
        ),
    }
}

fn named_list(names: Vec<String>, word: &str) -> (Option<String>, &str) {
    let more = names.len().saturating_sub(PARTS);
    let named = names
        .iter()
        .take(PARTS)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    let is = if names.len() == 1 { "is" } else { "are" };
    (Some(format!("{word}{named}{more}")), is)
}

/// The result of a restore as JSON.
pub(super) fn json(summary: &Summary, meter: &Meter, limit: &RunLimit) -> Value {
    let damaged: Vec<_> = summary.damage.iter().map(damage_json).collect();
    let paths: Vec<_> = summary
        .paths
        .iter()
        .map(|path| EntryName(path.clone()))
        .collect();
    let mut result = json!({"type": "result", "id": known(&summary.id), "source": summary.source_info, "source_text": known(&summary.source), "time": known(&summary.time),
        "paths": paths, "databases": summary.databases,
        "complete": summary.exit_code() == 0, "seconds": limit.verdict.seconds, "entries": summary.entries,
        "unreadable": summary.lacking.unreadable, "bad_pages": summary.lacking.bad_pages,
        "files": meter.files.load(Relaxed), "bytes": meter.bytes.load(Relaxed),
        "stored_bytes": meter.stored_bytes.load(Relaxed), "notes": summary.notes, "next": summary.next,
        "changes": summary.changes.as_ref().map(changes_json), "damage": damaged});
    limit.add_to(&mut result);
    result
}

/// Returns a text that a tar without a root does not have, and a rebuilt root has no words for.
fn known(text: &str) -> Option<&str> {
    Some(text).filter(|text| !matches!(*text, "" | ":"))
}

/// What a restore into what was there found there.
fn changes(changes: &DeltaChanges) -> String {
    let DeltaChanges {
        same,
        changed,
        removed,
        written_bytes,
    } = changes;
    let removed = if *removed > 0 {
        format!(", {} removed", count(*removed))
    } else {
        String::new()
    };
    let files = counted(*changed, "file");
    format!(
        "{files} changed, {} the same{removed}; {} written",
        count(*same),
        bytes(*written_bytes)
    )
}

/// The same as JSON.
fn changes_json(changes: &DeltaChanges) -> serde_json::Value {
    json!({"same": changes.same, "changed": changes.changed, "removed": changes.removed,
        "written_bytes": changes.written_bytes})
}

/// Says that a restore would be refused.
pub(super) fn say_refusal(error: &Error) {
    aside(format_args!(
        "note: the restore itself would fail: {}",
        error.line()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_engine::report::damage::Damage;

    #[test]
    fn the_last_line_of_a_restore_names_the_parts_that_were_asked_for() {
        let (id, source) = ("B".to_owned(), "h:/t".to_owned());
        let said = |paths: &[&str], databases: &[&str], damaged: bool| {
            let paths = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
            let databases = databases.iter().map(|name| (*name).to_owned()).collect();
            let one = Damage {
                what: "a frame".to_owned(),
                detail: Vec::new(),
                files: Vec::new(),
            };
            let damage = if damaged { vec![one] } else { Vec::new() };
            let (id, source) = (id.clone(), source.clone());
            let summary = Summary {
                id,
                source,
                paths,
                databases,
                damage,
                digested: true,
                ..Summary::default()
            };
            restored(&summary, 1, Path::new("x"))
        };
        let matched = "restored in \"x\", every digest matched";
        assert_eq!(
            said(&[], &[], false),
            format!("backup B of h:/t is {matched}")
        );
        assert_eq!(
            said(&["a/f"], &[], false),
            "\"a/f\" of backup B of h:/t is restored as \"x/a/f\", every digest matched"
        );
        assert_eq!(
            said(&["a", "b"], &[], false),
            format!("\"a\", \"b\" of backup B of h:/t are {matched}")
        );
        let five = said(&["a", "b", "c", "d", "e"], &[], false);
        assert_eq!(
            five,
            format!("\"a\", \"b\", \"c\" and 2 more of backup B of h:/t are {matched}")
        );
        assert_eq!(
            said(&[], &["shop"], false),
            format!("database \"shop\" of backup B of h:/t is {matched}")
        );
        assert_eq!(
            said(&[], &["a", "b"], false),
            format!("databases \"a\", \"b\" of backup B of h:/t are {matched}")
        );
        assert_eq!(
            said(&["a"], &[], true),
            "what is whole of \"a\" of backup B of h:/t is restored in \"x\""
        );
    }
}
