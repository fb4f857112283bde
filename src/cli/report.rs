//! The last lines of each command, for people and as JSON.

use super::care;
use crate::{
    backup::SourceCount,
    command::{copy::CopiedBackup, export::Exported},
    error::{Error, quoted},
    format::{
        root::{ClusterInfo, EntryName, NotCaptured, Root, Tablespace},
        sizes,
    },
    metrics::{
        meter::{LimitVerdict, Meter, Side},
        waits::Wait,
    },
    postgres::inventory,
    repo::base::Unlike,
    report::damage::Damage,
    restore::Summary,
    storage::access::cloud_counts,
    text::size::{bytes, count, counted, rate, seconds},
    verify::{VerifyVerdict as Found, losses::EntryLoss},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, num::NonZeroU64, path::Path, sync::atomic::Ordering::Relaxed};

/// The number of entries that are named at the end of a run; the manifest names all of them.
const NAMED: usize = 10;

/// The last lines of a backup.
pub(super) fn backup(root: &Root, verdict: &LimitVerdict, waits: &[Wait], to: &str) -> Vec<String> {
    let totals = &root.totals;
    let stored = if totals.stored_bytes == 0 {
        1
    } else {
        totals.stored_bytes
    };
    let mut lines = not_captured(root);
    lines.push(format!(
        "{}, {} in {}, {}; {} stored, {}",
        counted(totals.files, "file"),
        bytes(totals.bytes),
        seconds(verdict.seconds),
        rate(totals.bytes, verdict.seconds),
        bytes(totals.stored_bytes),
        match root.bases.last() {
            None => format!("ratio {:.2}", totals.bytes as f64 / stored as f64),
            Some(base) => format!("{} are as in {base}", bytes(totals.kept_bytes)),
        }
    ));
    lines.push(limit(verdict, SIDES));
    lines.extend(store(Some((verdict, Side::Sink))));
    lines.extend(waits.iter().map(|wait| {
        format!(
            "waited {} for {}",
            seconds(wait.time.as_secs_f64()),
            wait.what
        )
    }));
    lines.extend(
        root.postgres
            .iter()
            .filter(|cluster| !cluster.configuration.is_empty())
            .map(elsewhere),
    );
    lines.extend(
        root.postgres
            .iter()
            .filter_map(inventory::unlisted_note)
            .map(|note| format!("note: {note}")),
    );
    lines.extend(
        root.postgres
            .iter()
            .flat_map(|cluster| &cluster.tablespaces_meanwhile)
            .map(meanwhile),
    );
    lines.extend(root.postgres.iter().map(cluster));
    let but = if totals.is_complete() {
        ""
    } else {
        ", but for what is named above"
    };
    lines.push(format!("backup {} {to}{but}", root.id));
    lines
}

/// The limit of reading that the user set.
pub(super) fn held(bytes_per_second: NonZeroU64) -> String {
    format!(
        "--max-rate held reading to {}/s",
        bytes(bytes_per_second.get())
    )
}

/// Why no earlier backup was the base.
pub(super) fn anew(Unlike { backup, why }: &Unlike) -> String {
    format!("note: everything is stored anew, as {backup} cannot be compared with: {why}")
}

/// Why no earlier backup was the base, in words.
pub(super) fn anew_json(unlike: Option<&Unlike>) -> Value {
    unlike.map_or(
        Value::Null,
        |Unlike { backup, why }| json!({ "id": backup, "why": why }),
    )
}

/// Warnings, one a line.
pub(super) fn warnings(warnings: &[String]) -> impl Iterator<Item = String> {
    warnings.iter().map(|warning| format!("warning: {warning}"))
}

/// The damage in earlier backups that this backup met.
pub(super) fn base_damage(damage: &[String]) -> Option<String> {
    let few = damage
        .iter()
        .take(NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join("; ");
    let more = damage.len().saturating_sub(NAMED);
    let more = if more > 0 {
        format!("; and {more} more")
    } else {
        String::new()
    };
    (!damage.is_empty()).then(|| {
        format!(
            "WARNING: earlier backups are damaged, or cannot be read: {few}{more}; this one is not, as it stores again what it needs of that; \
             `fullbore verify` tells what is lost"
        )
    })
}

/// The configuration files outside the data directory, which the backup does not contain.
fn elsewhere(cluster: &ClusterInfo) -> String {
    let files: Vec<_> = cluster
        .configuration
        .iter()
        .map(|path| quoted(&path.0))
        .collect();
    format!(
        "note: outside of the data directory, and not in this backup: {}",
        files.join(", ")
    )
}

/// The effects that a server restored from the backup would have on the original one.
fn meanwhile(space: &Tablespace) -> String {
    let (name, location) = (quoted(&space.name.0), quoted(&space.location.0));
    format!(
        "WARNING: tablespace {name} was created at {location} while the backup ran: a restored server will create it there again, \
         and write there; take another backup"
    )
}

/// The WAL range of a backup of a cluster, and where the WAL is stored.
fn cluster(cluster: &ClusterInfo) -> String {
    let ClusterInfo {
        version,
        start_lsn,
        stop_lsn,
        timeline,
        ..
    } = cluster;
    let place = match cluster.wal.as_str() {
        "included" => "its WAL is included",
        "archived" => "its WAL is in the archive",
        _ => "WARNING: its WAL is not included, and nobody looked for it in the archive",
    };
    if !cluster.online {
        return format!("PostgreSQL {version}, shut down, timeline {timeline}");
    }
    let standby = if cluster.standby {
        ", from a standby"
    } else {
        ""
    };
    format!(
        "PostgreSQL {version}{standby}, from {start_lsn} to {stop_lsn} on timeline {timeline}; {place}"
    )
}

/// The entries that could not be captured; the first few are named.
pub(super) fn not_captured(root: &Root) -> Vec<String> {
    let mut lines: Vec<_> = root.not_captured.iter().take(NAMED).map(lacks).collect();
    let totals = &root.totals;
    let all = sizes::sum([
        totals.unreadable,
        totals.changed,
        totals.vanished,
        totals.sockets,
        totals.bad_pages,
    ]);
    if all > lines.len() as u64 {
        lines.push(format!(
            "and {} more: `fullbore show` lists them",
            all - lines.len() as u64
        ));
    }
    lines
}

fn lacks(entry: &NotCaptured) -> String {
    // Stored, but torn or wrong.
    let what = if entry.is_stored_anyway() {
        "captured, but not as it was"
    } else {
        "not captured"
    };
    format!("{what}: {}: {}", quoted(&entry.path.0), entry.reason)
}

/// The estimate that a dry run prints.
pub(super) fn would_be(found: &SourceCount) -> Vec<String> {
    let mut lines: Vec<_> = found.not_captured.iter().map(lacks).collect();
    if found.unreadable > lines.len() as u64 {
        lines.push(format!(
            "and {} more",
            found.unreadable - lines.len() as u64
        ));
    }
    lines.extend(warnings(&found.warnings));
    lines.push(format!(
        "{}, {} would be backed up",
        counted(found.files, "file"),
        bytes(found.bytes)
    ));
    lines
}

/// The limit of the run, and the speed that the other two parts could reach: `limit: workers, busy 97 %; the source could give 2.1×`.
pub(super) fn limit(verdict: &LimitVerdict, names: [&str; 3]) -> String {
    let sides = [Side::Source, Side::Workers, Side::Sink];
    let could = ["could give", "could do", "could take"];
    let others = sides
        .into_iter()
        .filter(|side| *side != verdict.limit)
        .map(|side| {
            let at = side as usize;
            format!(
                "the {} {} {}",
                names[at],
                could[at],
                times(verdict.headroom(side))
            )
        });
    format!(
        "limit: {}, busy {:.0} %; {}",
        names[verdict.limit as usize],
        verdict.of(verdict.limit).busy * 100.0,
        others.collect::<Vec<_>>().join(", ")
    )
}

/// What was asked of object stores: `store: 34 requests, 31.0 MB sent, 21.1 kB received`; and if that `side` was the limit, why.
pub(super) fn store(of: Option<(&LimitVerdict, Side)>) -> Option<String> {
    let counts = cloud_counts()?;
    let mut line = format!(
        "store: {}, {} sent, {} received",
        counted(counts.requests, "request"),
        bytes(counts.sent_bytes),
        bytes(counts.received_bytes)
    );
    if counts.retries > 0 {
        let paused = seconds(counts.paused.as_secs_f64());
        line += &format!(
            "; {} made again, after pauses of {paused}",
            count(counts.retries)
        );
    }
    if counts.throttled > 0 {
        line += &format!("; it refused {} as too many", count(counts.throttled));
    }
    let limited = counts.limited.as_secs_f64();
    if limited > 0.0 {
        line += &format!(
            "; --limit-upload or --limit-download held requests for {}",
            seconds(limited)
        );
    }
    if let Some((verdict, side)) = of
        && verdict.limit == side
    {
        let moved = counts.sent_bytes.max(counts.received_bytes);
        let speed = rate(moved, verdict.seconds);
        line += match () {
            () if limited > verdict.seconds / 10.0 => "; that is the limit",
            () if counts.throttled > 0 => "; the store is the limit",
            () => "; the store or the network to it is the limit",
        };
        line += &format!(", at {speed}");
    }
    Some(line)
}

/// What was asked of object stores as JSON; `None` if none was used.
pub(super) fn store_json() -> Option<Value> {
    let counts = cloud_counts()?;
    Some(
        json!({"requests": counts.requests, "sent_bytes": counts.sent_bytes, "received_bytes": counts.received_bytes,
        "retries": counts.retries, "throttled": counts.throttled, "limited_seconds": counts.limited.as_secs_f64(),
        "paused_seconds": counts.paused.as_secs_f64()}),
    )
}

/// A part that was idle nearly all the time gives no reliable measure of its speed.
fn times(headroom: f64) -> String {
    if headroom > 99.0 {
        "over 99×".to_owned()
    } else {
        format!("{headroom:.1}×")
    }
}

/// The names of the parts of a backup,
pub(super) const SIDES: [&str; 3] = ["source", "workers", "sink"];
/// and those of a restore.
pub(super) const ENDS: [&str; 3] = ["backup", "workers", "target"];

/// The last lines of a restore.
pub(super) fn restore(
    summary: &Summary,
    meter: &Meter,
    verdict: &LimitVerdict,
    to: &Path,
) -> Vec<String> {
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
    lines.extend(summary.changes.iter().map(care::changes));
    lines.push(limit(verdict, ENDS));
    lines.extend(store(Some((verdict, Side::Source))));
    lines.push(restored(summary, to));
    lines.extend(summary.next.iter().map(|step| format!("next: {step}")));
    lines
}

/// The first line for a tar that has no root.
const BARE: &str = "nothing says what should be in it";

/// The content of the target: all of a backup, or the parts that were requested.
fn restored(summary: &Summary, to: &Path) -> String {
    let to = to.display();
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
    match (summary.damage.len(), summary.lacking.is_captured()) {
        (0, _) if is_bare => format!("{subject} {is} restored in \"{to}\"; {BARE}"),
        (0, true) if summary.digested => {
            format!("{subject} {is} restored in \"{to}\", every digest matched")
        }
        (0, true) => format!(
            "{subject} {is} restored in \"{to}\"; the backup has no digests of files to compare"
        ),
        (0, false) => {
            let of = parts.map_or_else(String::new, |parts| format!("of {parts} "));
            format!("what was captured {of}by {whole} is restored in \"{to}\"")
        }
        (_, _) if is_bare => {
            let of = parts.map_or_else(String::new, |parts| format!("of {parts} "));
            format!("what came {of}before the damage is restored in \"{to}\"")
        }
        (_, _) => format!("what is whole of {subject} is restored in \"{to}\""),
    }
}

/// The number of parts that are named at the end of a restore.
const PARTS: usize = 3;

/// The names of the parts that were requested, and the verb for them; `None` for the whole backup.
fn parts(summary: &Summary) -> (Option<String>, &'static str) {
    let of = |names: Vec<String>, what: &str| {
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
        (Some(format!("{what}{named}{more}")), is)
    };
    match (&summary.paths[..], &summary.databases[..]) {
        ([], []) => (None, "is"),
        (paths @ [_, ..], _) => of(paths.iter().map(|path| quoted(path)).collect(), ""),
        ([], [name]) => of(vec![format!("{name:?}")], "database "),
        ([], names) => of(
            names.iter().map(|name| format!("{name:?}")).collect(),
            "databases ",
        ),
    }
}

/// The result of a restore as JSON.
pub(super) fn restore_json(summary: &Summary, meter: &Meter, verdict: &LimitVerdict) -> Value {
    let damaged: Vec<_> = summary.damage.iter().map(damage_json).collect();
    let paths: Vec<_> = summary
        .paths
        .iter()
        .map(|path| EntryName(path.clone()))
        .collect();
    json!({"type": "result", "id": summary.id, "source": summary.source, "time": summary.time,
        "paths": paths, "databases": summary.databases,
        "complete": summary.exit_code() == 0, "limit": verdict.limit.name(),
        "shares": shares(verdict), "seconds": verdict.seconds, "entries": summary.entries,
        "unreadable": summary.lacking.unreadable, "bad_pages": summary.lacking.bad_pages,
        "files": meter.files.load(Relaxed), "bytes": meter.bytes.load(Relaxed),
        "stored_bytes": meter.stored_bytes.load(Relaxed), "notes": summary.notes, "next": summary.next,
        "changes": summary.changes.as_ref().map(care::changes_json), "damage": damaged})
}

fn damage_json(damage: &Damage) -> Value {
    let files: Vec<_> = damage
        .files
        .iter()
        .map(|path| EntryName(path.clone()))
        .collect();
    json!({"what": damage.what, "detail": damage.detail, "files": files})
}

/// Lists the damaged objects, and the files that are lost with each, one a line.
pub(super) fn damage(damage: &[Damage]) -> Vec<String> {
    let said = damage.iter().map(|one| {
        one.detail
            .iter()
            .fold(format!("damage: {}", one.what), |s, l| {
                format!("{s}\n        {l}")
            })
    });
    let lost: BTreeSet<_> = damage.iter().flat_map(|one| &one.files).collect();
    said.chain(lost.iter().map(|path| format!("lost: {}", quoted(path))))
        .collect()
}

/// The last line of a verification.
/// `against` is the tree that the backup was compared with.
pub(super) fn verify(found: &Found, against: Option<&Path>) -> String {
    let what = if found.data {
        "every byte"
    } else {
        "the structure"
    };
    let entries = counted(found.entries, "entry");
    let (subject, is) = match &*found.id {
        "" if found.is_bare => ("the tar".to_owned(), "is"),
        "" => (counted(found.backups as u64, "backup"), "are"),
        id => (format!("backup {id}"), "is"),
    };
    let trailed = if found.is_trailed {
        "; what comes after its end is none of it"
    } else {
        ""
    };
    match found.exit_code() {
        0 if found.is_bare => {
            let time = seconds(found.seconds);
            format!(
                "the tar has its end, and all checksums of its {entries} are right, in {time}; {BARE}{trailed}"
            )
        }
        0 => {
            let lacking = match found.not_captured {
                0 => String::new(),
                n => format!(
                    "; {} more could not be captured, or were given up by a repair",
                    count(n)
                ),
            };
            let wrong = match found.bad_pages {
                0 => String::new(),
                n => format!(
                    "; {} had wrong page checksums when they were backed up",
                    counted(n, "file")
                ),
            };
            let same =
                against.map_or_else(String::new, |tree| format!(", and {tree:?} is the same"));
            format!(
                "{subject} {is} sound: {what} of {entries} was checked in {}{same}{lacking}{wrong}{trailed}",
                seconds(found.seconds)
            )
        }
        1 => {
            format!(
                "{subject} {is} sound, and the tree differs in {}",
                counted(found.differences.len() as u64, "place")
            )
        }
        _ if found.of > 1 && !found.damaged.is_empty() => damaged_ones(found),
        _ => format!(
            "{subject} {is} damaged in {}; {}",
            places(found),
            losers(found)
        ),
    }
}

/// The hint about damage in a repository.
pub(super) fn after_damage(found: &Found) -> Option<String> {
    let hint = match (found.exit_code(), found.lost.is_empty()) {
        (4, true) => {
            "`fullbore repair` says what can be made anew; the rest no file needs: it goes with the backups that stored it"
        }
        (4, false) => {
            "`fullbore repair --data` says what can be made anew, and what is lost; where it has marked that (--yes), the next backup \
             stores again what is there still, as `fullbore backup --full` does at once"
        }
        _ => return None,
    };
    Some(format!("hint:  {hint}"))
}

/// The damaged ones of several backups; the first few are named.
fn damaged_ones(found: &Found) -> String {
    let (ids, is) = (
        &found.damaged,
        if found.damaged.len() == 1 {
            "is"
        } else {
            "are"
        },
    );
    let mut names = ids
        .iter()
        .take(NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if ids.len() > NAMED {
        names.push_str(&format!(" and {} more", ids.len() - NAMED));
    }
    let of = format!(
        "{} of {}",
        count(ids.len() as u64),
        counted(found.of as u64, "backup")
    );
    format!(
        "{of} {is} damaged in {}: {names}; {}",
        places(found),
        losers(found)
    )
}

fn places(found: &Found) -> String {
    counted((found.damage.len() + found.warnings.len()) as u64, "place")
}

fn losers(found: &Found) -> String {
    match found.lost.len() {
        // A stream that lacks its end does not say how much is missing.
        0 if found.is_bare => "what else is lost nothing says".to_owned(),
        0 => "no file is lost".to_owned(),
        n => format!("{} lost something", counted(n as u64, "backup")),
    }
}

/// The result of a verification as JSON.
pub(super) fn verify_json(found: &Found) -> Value {
    let differences: Vec<_> = found
        .differences
        .iter()
        .map(|d| json!({"path": EntryName(d.path.clone()), "what": d.what}))
        .collect();
    let damage: Vec<_> = found.damage.iter().map(damage_json).collect();
    let lost: Vec<_> = found.lost.iter().map(loss_json).collect();
    json!({"type": "result", "id": found.id, "backups": found.backups, "sound": found.exit_code() != 4,
        "entries": found.entries, "not_captured": found.not_captured, "bad_pages": found.bad_pages, "seconds": found.seconds,
        "damage": damage, "lost": lost, "warnings": found.warnings, "differences": differences})
}

fn loss_json(loss: &EntryLoss) -> Value {
    let files: Vec<_> = loss
        .files
        .iter()
        .map(|path| EntryName(path.clone()))
        .collect();
    json!({"backup": loss.backup, "all": loss.all, "files": files, "unnamed": loss.unnamed})
}

/// The time that was spent waiting for the server.
pub(super) fn waited_json(waits: &[Wait]) -> Value {
    waits
        .iter()
        .map(|wait| json!({"for": wait.what, "seconds": wait.time.as_secs_f64()}))
        .collect()
}

/// The result of a backup as JSON.
pub(super) fn backup_json(root: &Root, verdict: &LimitVerdict) -> Value {
    let totals = &root.totals;
    json!({"type": "result", "id": root.id, "time": root.time, "complete": totals.is_complete(), "limit": verdict.limit.name(),
        "shares": shares(verdict), "seconds": verdict.seconds, "entries": totals.entries, "files": totals.files,
        "bytes": totals.bytes, "stored_bytes": totals.stored_bytes,
        "bases": root.bases, "kept": totals.kept, "kept_bytes": totals.kept_bytes, "unreadable": totals.unreadable,
        "changed": totals.changed, "vanished": totals.vanished, "sockets": totals.sockets, "bad_pages": totals.bad_pages,
        "segments": root.segments.len(), "not_captured": root.not_captured, "postgres": root.postgres})
}

/// The result of an export as JSON.
pub(super) fn export_json(exported: &Exported) -> Value {
    let mut json = backup_json(&exported.outcome.root, &exported.outcome.verdict);
    let damage: Vec<_> = exported.damage.iter().map(damage_json).collect();
    let complete = damage.is_empty() && exported.outcome.root.totals.is_complete();
    (json["complete"], json["from"]) = (complete.into(), exported.from.clone().into());
    (json["damage"], json["warnings"]) = (damage.into(), exported.warnings.clone().into());
    json
}

/// The last lines of a copy.
pub(super) fn copy(copied: &CopiedBackup, to: &str) -> Vec<String> {
    let there = match copied.there {
        0 => String::new(),
        n => format!(
            "; {}, {} were there",
            counted(n, "object"),
            bytes(copied.there_bytes)
        ),
    };
    let (objects, content, time) = (
        counted(copied.objects, "object"),
        bytes(copied.bytes),
        seconds(copied.seconds),
    );
    let others = match copied.others.len() {
        0 => String::new(),
        n => format!(
            ", with what it needs of {}",
            counted(n as u64, "other backup")
        ),
    };
    let moved = format!(
        "{objects}, {content} in {time}, {}{there}",
        rate(copied.bytes, copied.seconds)
    );
    vec![
        moved,
        format!("backup {} is complete in {to}{others}", copied.id),
    ]
}

/// The result of a copy as JSON.
pub(super) fn copy_json(copied: &CopiedBackup) -> Value {
    json!({"type": "result", "id": copied.id, "others": copied.others, "objects": copied.objects,
        "bytes": copied.bytes, "there": copied.there, "there_bytes": copied.there_bytes, "seconds": copied.seconds,
        "warnings": copied.warnings})
}

/// Busy, starved and blocked shares of each side, by name.
pub(super) fn shares(verdict: &LimitVerdict) -> Value {
    let row = |side: Side| {
        let share = verdict.of(side);
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        (
            side.name().to_owned(),
            json!({"busy": round(share.busy), "starved": round(share.starved), "blocked": round(share.blocked)}),
        )
    };
    [Side::Source, Side::Workers, Side::Sink]
        .map(row)
        .into_iter()
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Formats an error for a terminal.
pub(super) fn error(error: &Error) -> String {
    let mut text = format!("error: {}", error.line());
    for line in &error.detail {
        text.push_str(&format!("\n       {line}"));
    }
    if let Some(hint) = &error.hint {
        text.push_str(&format!("\nhint:  {hint}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_headroom_that_nobody_measured_is_not_told_as_one() {
        assert_eq!(
            [1.0, 29.04, 99.0, 99.1, 1000.0].map(times),
            ["1.0×", "29.0×", "99.0×", "over 99×", "over 99×"]
        );
    }

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
            restored(&summary, Path::new("x"))
        };
        let matched = "restored in \"x\", every digest matched";
        assert_eq!(
            said(&[], &[], false),
            format!("backup B of h:/t is {matched}")
        );
        assert_eq!(
            said(&["a/f"], &[], false),
            format!("\"a/f\" of backup B of h:/t is {matched}")
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
