//! Reports on archived WAL.

use fullbore_engine::wal::{SystemReport, TimelineReport, system_reports};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text,
    wal::SegmentName,
};
use fullbore_postgres::{
    lsn::Lsn,
    wal_archive::{WalGap, check_segment, first_difference},
};
use fullbore_repository::{
    root_index::IndexPlace,
    root_reader::DocumentReader,
    roots::{RootFacts, backup_files},
    wal::{StoredRun, WalArchive, WalListing, WalNeeds, list_systems},
};
use fullbore_storage::{Objects, Storages};
use serde_json::json;
use std::{collections::BTreeMap, ffi::OsString, io::Write, sync::Arc};

/// Lists the WAL of each system in a repository.
#[derive(Debug, Clone)]
pub(super) struct WalList {
    /// How storages are reached.
    pub(super) storages: Storages,
    /// The repository.
    pub(super) repository: OsString,
    /// Whether to print JSON, one object a line.
    pub(super) json: bool,
}

/// Checks all WAL of a repository.
#[derive(Debug, Clone)]
pub(super) struct WalCheck {
    /// How storages are reached.
    pub(super) storages: Storages,
    /// The repository.
    pub(super) repository: OsString,
    /// Whether to print JSON, one object a line.
    pub(super) json: bool,
}

/// Returns what the backups of a repository need; those that cannot be read are left out.
///
/// # Errors
/// Those of the listing.
fn needs_of_backups(objects: &dyn Objects, storages: &Storages) -> Result<Vec<WalNeeds>> {
    let mut needs = Vec::new();
    let place = IndexPlace::new(storages.index_dir());
    let mut reader = DocumentReader::new(objects, &place);
    reader.visit_listed(&backup_files(objects)?, &mut |_, facts| {
        let root = facts.and_then(RootFacts::root).ok();
        needs.extend(root.as_ref().and_then(WalNeeds::of));
        Ok(())
    })?;
    Ok(needs)
}

impl WalList {
    /// Prints the timelines of each system, with their segments, backups and gaps.
    ///
    /// # Errors
    /// The storage's, and those of `out`.
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let objects = self.storages.repository_at(&self.repository)?;
        let needs = needs_of_backups(&*objects, &self.storages)?;
        let reports = system_reports(&objects, &needs)?;
        if reports.is_empty() && !self.json {
            text::line(
                out,
                "no WAL was archived here: archive_command = 'fullbore wal push %p --to REPO'",
            )?;
        }
        for report in &reports {
            match self.json {
                true => text::json(out, &system_json(report))?,
                false => print_system(report, out)?,
            }
        }
        Ok(())
    }
}

/// Returns the WAL of a system as JSON.
pub(super) fn system_json(report: &SystemReport) -> serde_json::Value {
    let gap = |gap: &WalGap| json!({ "first_segment": gap.from.to_string(), "last_segment": gap.to.to_string() });
    let timeline = |timeline: &TimelineReport| {
        json!({
            "timeline": timeline.timeline,
            "parent": timeline.parent.map(|(parent, _)| parent),
            "switch_lsn": timeline.parent.map(|(_, place)| place.to_string()),
            "first_segment": timeline.ends.map(|(first, _)| first.to_string()),
            "last_segment": timeline.ends.map(|(_, last)| last.to_string()),
            "segments": timeline.segments,
            "backup_ids": timeline.backups,
        })
    };
    json!({
        "type": "wal",
        "system": report.system,
        "segment_bytes": report.segment_bytes,
        "segments": report.segments,
        "objects": report.objects,
        "stored_bytes": report.bytes,
        "timelines": report.timelines.iter().map(timeline).collect::<Vec<_>>(),
        "gaps": report.gaps.iter().map(gap).collect::<Vec<_>>(),
        "accepted_gaps": report.accepted_gaps.iter().map(gap).collect::<Vec<_>>(),
        "cut_off": report.cut_off.iter().map(|(id, spot)| json!({ "id": id, "gap": gap(spot) })).collect::<Vec<_>>(),
        "doubtful_timelines": report.doubtful_timelines,
    })
}

/// Prints the timelines of a system, and what is wrong with its WAL.
///
/// # Errors
/// Those of `out`.
pub(super) fn print_system(report: &SystemReport, out: &mut dyn Write) -> Result<()> {
    let segments = text::counted(report.segments, "segment");
    let bytes = text::bytes(report.bytes);
    text::line(
        out,
        &format!("system {}  {segments}, {bytes}", report.system),
    )?;
    for (depth, timeline) in report.tree() {
        let indent = "  ".repeat(depth + 1);
        text::line(out, &format!("{indent}{}", timeline_line(timeline)))?;
    }
    for gap in &report.accepted_gaps {
        let line = format!("  gap: {} is missing, as was accepted", gap_text(gap));
        text::line(out, &line)?;
    }
    for line in fault_lines(report) {
        text::line(out, &line)?;
    }
    Ok(())
}

fn timeline_line(timeline: &TimelineReport) -> String {
    let source = timeline
        .parent
        .map(|(parent, place)| format!(", left timeline {parent} at {place}"));
    let ends = match timeline.ends {
        Some((first, last)) => format!(
            "{first} to {last}, {}",
            text::counted(timeline.segments, "segment")
        ),
        None => "no segment".to_owned(),
    };
    let backups = match timeline.backups.len() {
        0 => String::new(),
        count => format!(", {}", text::counted(count as u64, "backup")),
    };
    format!(
        "timeline {}  {ends}{backups}{}",
        timeline.timeline,
        source.unwrap_or_default()
    )
}

/// Returns a line for each gap that was not accepted, and for each backup that a gap cuts off.
pub(super) fn fault_lines(report: &SystemReport) -> Vec<String> {
    let gaps = report.gaps.iter();
    let gaps = gaps.filter(|gap| !report.accepted_gaps.contains(gap));
    let gaps = gaps.map(|gap| format!("  gap: {} is missing", gap_text(gap)));
    let cut_off = report
        .cut_off
        .iter()
        .map(|(id, gap)| format!("  backup {id}: a recovery ends before {}", gap.from));
    let doubtful = report.doubtful_timelines.iter().map(|timeline| {
        format!("  timeline {timeline}: two servers began it, and each archived a history")
    });
    gaps.chain(cut_off).chain(doubtful).collect()
}

/// Returns how many gaps there are, in words.
pub(super) fn counted_gaps(gaps: u64) -> String {
    match gaps {
        0 => "no gap".to_owned(),
        gaps => format!(
            "{}, which `fullbore wal list` names",
            text::counted(gaps, "gap")
        ),
    }
}

/// Returns the first and the last segment of a gap.
pub(super) fn gap_text(gap: &WalGap) -> String {
    match gap.from == gap.to {
        true => gap.from.to_string(),
        false => format!("{} to {}", gap.from, gap.to),
    }
}

impl WalCheck {
    /// Reads all WAL. Returns the exit code: 4 if there is damage, a gap or two contents of one segment.
    ///
    /// # Errors
    /// The storage's, and those of `out`.
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<u8> {
        let objects = self.storages.repository_at(&self.repository)?;
        let (segments, faults) = wal_faults(&self.storages, &objects, true)?;
        self.print(segments, &faults, out)?;
        Ok(if faults.is_empty() { 0 } else { 4 })
    }

    fn print(&self, segments: u64, faults: &[String], out: &mut dyn Write) -> Result<()> {
        if self.json {
            let faults: Vec<&str> = faults.iter().map(|line| line.trim()).collect();
            return text::json(
                out,
                &json!({ "type": "wal_check", "segments": segments, "faults": faults }),
            );
        }
        faults.iter().try_for_each(|line| text::line(out, line))?;
        let faults = match faults.len() {
            0 => "no fault".to_owned(),
            count => text::counted(count as u64, "fault"),
        };
        text::line(
            out,
            &format!("{} read, {faults}", text::counted(segments, "segment")),
        )
    }
}

fn fault_line(error: &Error) -> String {
    format!("  {}", error.line())
}

/// Returns how many segments were read, and what is wrong with the WAL of a repository: gaps, and if it `reads` all of it, damage and
/// two contents of one segment.
///
/// # Errors
/// The storage's.
pub(super) fn wal_faults(
    storages: &Storages,
    objects: &Arc<dyn Objects>,
    reads: bool,
) -> Result<(u64, Vec<String>)> {
    let mut segments = 0;
    let mut faults = Vec::new();
    let systems = list_systems(&**objects)?;
    if systems.is_empty() {
        return Ok((segments, faults));
    }
    let needs = needs_of_backups(&**objects, storages)?;
    for report in system_reports(objects, &needs)? {
        faults.extend(fault_lines(&report));
    }
    for (system, listing) in systems.into_iter().filter(|_| reads) {
        let archive = WalArchive::new(objects.clone(), &system);
        segments += read_all(&archive, &listing, &mut faults);
    }
    Ok((segments, faults))
}

/// Reads all runs of a system, and adds what is wrong with them.
fn read_all(archive: &WalArchive, listing: &WalListing, faults: &mut Vec<String>) -> u64 {
    let mut segments = 0;
    let mut contents: BTreeMap<SegmentName, ([u8; 32], &StoredRun)> = BTreeMap::new();
    for stored in &listing.runs {
        let checked = archive.read_segments(stored, stored.run.first, &mut |name, packed| {
            segments += 1;
            let content = packed.content()?;
            check_segment(&content, name)?;
            if stored.run.is_partial {
                return Ok(true);
            }
            let digest = packed.member.digest;
            let known = contents.entry(name).or_insert((digest, stored));
            if known.0 != digest {
                let other = archive.segment_of(known.1, name)?;
                let difference = first_difference(&other, &content);
                faults.extend(
                    difference.map(|position| two_contents(name, [known.1, stored], position)),
                );
            }
            Ok(true)
        });
        faults.extend(checked.err().as_ref().map(fault_line));
    }
    for stored in &listing.pieces {
        match archive.read_piece(&stored.piece) {
            // A run has taken its place meanwhile.
            Err(error) if error.kind == ErrorKind::NotFound => {}
            read => faults.extend(read.err().as_ref().map(fault_line)),
        }
    }
    segments
}

/// Contents with the same records to the end are no fault: a standby writes other bytes behind them than its primary.
fn two_contents(segment: SegmentName, [one, other]: [&StoredRun; 2], at: Lsn) -> String {
    format!(
        "  {segment} has two contents, which differ from {at} on: {} and {}",
        one.run, other.run
    )
}
