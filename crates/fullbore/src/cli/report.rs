//! The last lines of each command, for people and as JSON.

use super::limit::RunLimit;
use fullbore_engine::{
    backup::SourceCount,
    report::damage::{Damage, damage_lines},
};
use fullbore_format::{
    entry::EntryPath,
    error::{Error, quoted},
    root::{ClusterInfo, EntryName, NotCaptured, Root, Tablespace},
    sizes,
    text::{
        self,
        size::{bytes, count, counted, rate, seconds},
    },
};
use fullbore_platform::metrics::{hardware::Limit, waits::Wait};
use fullbore_postgres::inventory;
use fullbore_repository::{base::Unlike, level::level_of};
use fullbore_storage::CloudCounts;
use serde_json::{Value, json};
use std::{collections::BTreeSet, num::NonZeroU64};

/// The number of entries that are named at the end of a run; the manifest names all of them.
pub(super) const NAMED: usize = 10;

/// The last lines of a backup.
pub(super) fn backup(
    root: &Root,
    limit: &RunLimit,
    is_verbose: bool,
    waits: &[Wait],
    to: &str,
) -> Vec<String> {
    let totals = &root.totals;
    let verdict = &limit.verdict;
    // Nothing may be stored, and then the ratio would be infinite.
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
            None if totals.kept_bytes > 0 => {
                format!("{} are as in other sources", bytes(totals.kept_bytes))
            }
            None => format!("ratio {:.2}", totals.bytes as f64 / stored as f64),
            Some(base) => format!("{} are as in {base}", bytes(totals.kept_bytes)),
        }
    ));
    let is_above_nothing = |level: &u8| *level > 0 && root.bases.is_empty();
    lines.extend(level_of(root).filter(is_above_nothing).map(|level| {
        format!("note: no backup of a level below {level} is known here: everything was stored, as with --level 0")
    }));
    lines.extend(text::levels(&root.run.levels).map(|levels| format!("compression zstd:{levels}")));
    lines.extend(limit.line(is_verbose));
    lines.extend(store(limit.counts, Some(limit)));
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
        text::binary_bytes(bytes_per_second.get())
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
            "WARNING: earlier backups are damaged or cannot be read: {few}{more}. This backup is sound: it stored again what it needs of them. \
             Run `fullbore verify` to see what is lost"
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
    let way = match cluster.via.as_str() {
        "sql" => format!(", read by SQL because {}", cluster.via_reason),
        "protocol" => format!(", read by protocol because {}", cluster.via_reason),
        _ => String::new(),
    };
    format!(
        "PostgreSQL {version}{standby}{way}, from {start_lsn} to {stop_lsn} on timeline {timeline}; {place}"
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
    let message = if entry.is_stored_anyway() {
        "captured, but not as it was"
    } else {
        "not captured"
    };
    format!("{message}: {}: {}", quoted(&entry.path.0), entry.reason)
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
    lines.extend(found.idle_names.iter().map(|line| format!("note: {line}")));
    lines.push(format!(
        "{}, {} would be backed up",
        counted(found.files, "file"),
        bytes(found.bytes)
    ));
    lines
}

/// The line about marked caches whose contents were left out.
pub(super) fn caches((count, first): &(u64, EntryPath)) -> String {
    let caches = counted(*count, "marked cache");
    let first = quoted(first);
    match count {
        1 => format!("left out: {caches}, {first}; --include-caches stores it"),
        _ => format!("left out: {caches}, the first is {first}; --include-caches stores them"),
    }
}

/// The line about the requests to object stores: `store: 34 requests, 31.0 MB sent, 21.1 kB received`. If
/// it was the limit of the run, the line says how fast it was.
pub(super) fn store(counts: Option<CloudCounts>, limit: Option<&RunLimit>) -> Option<String> {
    let counts = counts?;
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
    if counts.unlisted_uploads > 0 {
        line += "; it does not list unfinished uploads, so those of killed backups keep their room";
    }
    let limited = counts.limited.as_secs_f64();
    if limited > 0.0 {
        line += &format!(
            "; --limit-upload or --limit-download held requests for {}",
            seconds(limited)
        );
    }
    let why = limit.and_then(|run| match run.limit() {
        Limit::TransferLimit => Some((run, "; that is the limit")),
        Limit::Store => Some((run, "; the store is the limit")),
        Limit::StoreOrNetwork => Some((run, "; the store or the network to it is the limit")),
        _ => None,
    });
    if let Some((run, why)) = why {
        // A backup mostly sends, a restore mostly receives: the larger one took the time.
        let moved = counts.sent_bytes.max(counts.received_bytes);
        line += &format!("{why}, at {}", rate(moved, run.verdict.seconds));
    }
    Some(line)
}

/// Returns the requests to object stores as JSON.
pub(super) fn store_json(counts: &CloudCounts) -> Value {
    json!({"requests": counts.requests, "sent_bytes": counts.sent_bytes, "received_bytes": counts.received_bytes,
        "retries": counts.retries, "throttled": counts.throttled, "limited_seconds": counts.limited.as_secs_f64(),
        "paused_seconds": counts.paused.as_secs_f64(), "unlisted_uploads": counts.unlisted_uploads})
}

/// The names of the parts of a backup,
pub(super) const SIDES: [&str; 3] = ["source", "workers", "sink"];
/// and those of a restore.
pub(super) const ENDS: [&str; 3] = ["backup", "workers", "target"];

pub(super) fn damage_json(damage: &Damage) -> Value {
    let paths: Vec<_> = damage
        .files
        .iter()
        .map(|path| EntryName(path.clone()))
        .collect();
    json!({"what": damage.what, "detail": damage.detail, "paths": paths})
}

/// Lists the files that are lost, one a line, and behind them the damaged objects.
pub(super) fn damage(damage: &[Damage], is_verbose: bool) -> Vec<String> {
    let lost: BTreeSet<_> = damage.iter().flat_map(|one| &one.files).collect();
    let lost = lost.iter().map(|path| format!("lost: {}", quoted(path)));
    lost.chain(damage_lines(damage, is_verbose)).collect()
}

/// The time that was spent waiting for the server.
pub(super) fn waited_json(waits: &[Wait]) -> Value {
    waits
        .iter()
        .map(|wait| json!({"for": wait.what, "seconds": wait.time.as_secs_f64()}))
        .collect()
}

/// Says that a backup needs content of other sources.
pub(super) fn shared(with: &[String]) -> Option<String> {
    let newest = with.last()?;
    Some(format!(
        "note: content was found in {} of other sources, such as {newest}, and is not stored again; `fullbore export` writes a copy \
         that needs no other backup",
        counted(with.len() as u64, "backup")
    ))
}

/// The result of a backup as JSON.
pub(super) fn backup_json(root: &Root, limit: &RunLimit) -> Value {
    let totals = &root.totals;
    let mut result = json!({"type": "result", "id": root.id, "time": root.time,
        "source": root.source, "source_text": text::source_text(&root.source), "complete": totals.is_complete(),
        "seconds": limit.verdict.seconds, "entries": totals.entries, "files": totals.files,
        "bytes": totals.bytes, "stored_bytes": totals.stored_bytes,
        "bases": root.bases, "kept_files": totals.kept, "kept_bytes": totals.kept_bytes, "unreadable": totals.unreadable,
        "changed_while_read": totals.changed, "vanished": totals.vanished, "sockets": totals.sockets, "bad_pages": totals.bad_pages,
        "segments": root.segments.len(), "not_captured": root.not_captured, "postgres": root.postgres,
        "levels": root.run.levels});
    limit.add_to(&mut result);
    result
}

/// Formats a tag.
pub(super) fn tag(key: &str, value: &str) -> String {
    match value {
        "" => text::name(key.as_bytes()),
        _ => text::name(format!("{key}={value}").as_bytes()),
    }
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
