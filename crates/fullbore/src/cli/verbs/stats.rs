//! `fullbore stats`: prints how many backups a repository holds, and what they take.

use super::wal_report::counted_gaps;
use crate::cli::{
    options::EXIT_CODES,
    output::{printed_within, terminal_columns},
};
use clap::{Args, ValueHint};
use fullbore_engine::{drill::record::DrillRecord, wal::system_reports};
use fullbore_format::{
    error::Result,
    layout::segment_numbers,
    page::SegmentId,
    root::PART_BYTES,
    text::{self, local_time::local_second, source_text},
};
use fullbore_repository::{
    open::read_repository,
    prune::prune_forecast,
    root_index::IndexPlace,
    root_reader::DocumentReader,
    roots::{RootFacts, backup_files},
    verify_memory::CheckedShare,
    wal::WalNeeds,
};
use fullbore_storage::Storages;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io::Write,
};

/// `fullbore stats`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::cli) struct StatsArgs {
    /// The repository
    #[arg(value_name = "REPO", value_hint = ValueHint::DirPath)]
    repository: OsString,
    #[arg(from_global)]
    json: bool,
}

pub(in crate::cli) fn run(args: StatsArgs, storages: &Storages) -> Result<u8> {
    let columns = terminal_columns().filter(|_| !args.json);
    printed_within(columns, |out| args.print(storages, out))
}

/// The numbers of a repository.
#[derive(Debug, Default, Serialize)]
struct RepositoryStats {
    #[serde(rename = "type")]
    kind: &'static str,
    /// Backups that can be read, and others.
    backups: u64,
    damaged_backups: u64,
    sources: u64,
    /// Content of all backups: as many bytes as restores of all of them would write.
    bytes: u64,
    /// Bytes of all objects of backups.
    stored_bytes: u64,
    ratio: f64,
    /// Bytes of forgotten and interrupted backups: those that a prune frees, and those that others need. `None` where a prune
    /// would refuse.
    freeable_bytes: Option<u64>,
    held_bytes: Option<u64>,
    oldest_id: Option<String>,
    oldest_time: Option<String>,
    newest_id: Option<String>,
    newest_time: Option<String>,
    /// Share of the stored data that was ever checked, from 0 to 1.
    verified_share: f64,
    /// When data was checked last, as RFC 3339.
    last_verified_time: Option<String>,
    /// The newest restore drill of each PostgreSQL cluster that has backups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    drills: Vec<DrillRecord>,
    /// Bytes of stored data around damage that the last verification of them found.
    damaged_bytes: u64,
    /// Bytes of archived WAL.
    #[serde(skip_serializing_if = "is_zero")]
    wal_bytes: u64,
    /// Gaps in it.
    #[serde(skip_serializing_if = "is_zero")]
    wal_gap_count: u64,
    /// The newest archived segments, by system.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    wal_newest: BTreeMap<String, String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl StatsArgs {
    /// Prints the numbers. Returns the exit code: 4 if a backup is damaged, 1 if one cannot be read for another reason.
    ///
    /// # Errors
    /// Those of opening the repository, and of `out`.
    fn print(&self, storages: &Storages, out: &mut dyn Write) -> Result<u8> {
        let objects = storages.repository_at(&self.repository)?;
        read_repository(&*objects)?;
        let files = backup_files(&*objects)?;
        let mut stats = RepositoryStats {
            kind: "result",
            stored_bytes: super::listing::stored_bytes(&files),
            ..RepositoryStats::default()
        };
        let mut code = 0;
        let mut sources = BTreeSet::new();
        let mut systems = BTreeSet::new();
        let mut segments = BTreeMap::new();
        let mut needs = Vec::new();
        let place = IndexPlace::new(storages.index_dir());
        let mut reader = DocumentReader::new(&*objects, &place);
        reader.visit_listed(&files, &mut |id, facts| {
            let (facts, root) = match facts.and_then(|facts| Ok((facts, facts.root()?))) {
                Ok(read) => read,
                Err(error) => {
                    stats.damaged_backups += 1;
                    code = error.exit_code().max(code);
                    return Ok(());
                }
            };
            stats.backups += 1;
            needs.extend(WalNeeds::of(&root));
            stats.bytes = stats.bytes.saturating_add(root.totals.bytes);
            sources.insert(source_text(&root.source));
            add_segments(facts, &mut segments);
            let system = root.postgres.as_ref();
            systems.extend(system.map(|cluster| cluster.system_identifier.clone()));
            // IDs are in order of time, so the first backup is the oldest.
            if stats.oldest_id.is_none() {
                stats.oldest_id = Some(id.to_owned());
                stats.oldest_time = Some(root.time.clone());
            }
            (stats.newest_id, stats.newest_time) = (Some(id.to_owned()), Some(root.time));
            Ok(())
        })?;
        stats.sources = sources.len() as u64;
        stats.ratio = stats.bytes as f64 / stats.stored_bytes.max(1) as f64;
        // A forecast fails where a prune would. All other numbers are right without it.
        if let Ok(pruned) = prune_forecast(&*objects, &mut reader, files, &BTreeSet::new()) {
            stats.freeable_bytes = Some(pruned.freed().bytes);
            stats.held_bytes = Some(pruned.held().bytes);
        }
        let checked = CheckedShare::read(&*objects, &segments, PART_BYTES);
        let newest = |system: &String| DrillRecord::newest(&*objects, system).ok().flatten();
        stats.drills = systems.iter().filter_map(newest).collect();
        stats.verified_share = checked.share;
        stats.last_verified_time = checked.last.and_then(text::utc_time);
        stats.damaged_bytes = checked.damaged_bytes;
        for report in system_reports(&objects, &needs)? {
            stats.wal_bytes += report.bytes;
            stats.wal_gap_count += report.gaps.len() as u64;
            let newest = report.newest().map(|newest| newest.to_string());
            stats
                .wal_newest
                .extend(newest.map(|newest| (report.system.clone(), newest)));
        }
        match self.json {
            true => text::json(out, &stats)?,
            false => print(&stats, out)?,
        }
        Ok(code)
    }
}

/// Adds the segments that a backup refers to, with their stored bytes.
fn add_segments(facts: &RootFacts, segments: &mut BTreeMap<SegmentId, u64>) {
    for need in &facts.needs {
        if let Some((stream, number)) = segment_numbers(&need.name) {
            let segment = SegmentId {
                backup: need.backup.to_string(),
                stream,
                number,
            };
            segments.insert(segment, need.bytes);
        }
    }
}

fn print(stats: &RepositoryStats, out: &mut dyn Write) -> Result<()> {
    let damaged = match stats.damaged_backups {
        0 => String::new(),
        n => format!(", and {} that cannot be read", text::count(n)),
    };
    let sources = text::counted(stats.sources, "source");
    let mut lines = vec![
        (
            "backups",
            format!("{} of {sources}{damaged}", text::count(stats.backups)),
        ),
        ("content", text::bytes(stats.bytes)),
        (
            "stored",
            format!(
                "{}, ratio {:.2}",
                text::bytes(stats.stored_bytes),
                stats.ratio
            ),
        ),
    ];
    lines.push(("forgotten", forgotten(stats)));
    let oldest = backup_line(stats.oldest_id.as_deref(), stats.oldest_time.as_deref());
    let newest = backup_line(stats.newest_id.as_deref(), stats.newest_time.as_deref());
    lines.extend(oldest.map(|oldest| ("oldest", oldest)));
    lines.extend(newest.map(|newest| ("newest", newest)));
    let verified = match &stats.last_verified_time {
        None => "never; `fullbore verify --sample 5%` checks a share".to_owned(),
        Some(time) => format!(
            "{:.0} % of the data, last {}",
            stats.verified_share * 100.0,
            local_second(time)
        ),
    };
    lines.push(("verified", verified));
    lines.extend(wal(stats).map(|wal| ("wal", wal)));
    lines.extend(damage(stats).map(|damage| ("damaged", damage)));
    lines.extend(
        stats
            .drills
            .iter()
            .map(|drill| ("drill", drill_line(drill))),
    );
    lines
        .iter()
        .try_for_each(|(name, value)| text::line(out, &format!("{name:<10} {value}")))
}

fn backup_line(id: Option<&str>, time: Option<&str>) -> Option<String> {
    Some(format!("{}, {}", id?, local_second(time?)))
}

/// Returns how much WAL was archived, if there is some.
fn wal(stats: &RepositoryStats) -> Option<String> {
    let gaps = counted_gaps(stats.wal_gap_count);
    let systems = text::counted(stats.wal_newest.len() as u64, "system");
    (stats.wal_bytes > 0).then(|| format!("{} of {systems}, {gaps}", text::bytes(stats.wal_bytes)))
}

/// The newest drill of a cluster, on one line.
pub(super) fn drill_line(drill: &DrillRecord) -> String {
    let time = local_second(&drill.time);
    match &drill.error {
        None => format!(
            "passed {time}, {} until queries, backup {}",
            text::size::seconds(drill.seconds_to_queries()),
            drill.id
        ),
        Some(why) => format!("failed {time}, backup {}: {why}", drill.id),
    }
}

/// Returns what verifications found, if that was damage.
fn damage(stats: &RepositoryStats) -> Option<String> {
    (stats.damaged_bytes > 0).then(|| {
        format!(
            "at least one place in {} of the data; `fullbore verify --data` names it",
            text::bytes(stats.damaged_bytes)
        )
    })
}

fn forgotten(stats: &RepositoryStats) -> String {
    let (Some(freeable), Some(held)) = (stats.freeable_bytes, stats.held_bytes) else {
        return "not known; `fullbore prune --dry-run` says why".to_owned();
    };
    let held = match held {
        0 => String::new(),
        held => format!(
            "; {} held, because newer backups refer to it",
            text::bytes(held)
        ),
    };
    format!("`fullbore prune` frees {}{held}", text::bytes(freeable))
}
