//! The table of `fullbore fleet`.
//!
//! A row fits the terminal: a long source is shortened in its middle. What is wrong with a source follows on a line below it.

use fullbore_engine::fleet::{ExpectedBy, FleetReport, FleetSource, SourceState};
use fullbore_format::{
    error::Result,
    root::is_pseudonym,
    text::{
        self,
        columns::{cut, fitted, padded, width},
        duration::{exact, short},
        source_text,
    },
};
use std::{collections::BTreeSet, io::Write, time::Duration};

/// Columns behind the source, and in a narrow terminal, where GROWTH and DRILL are left out.
const REST_COLUMNS: usize = 55;
const NARROW_REST_COLUMNS: usize = 39;
/// Columns of the source in a narrow terminal.
const LEAST_SOURCE_COLUMNS: usize = 14;
/// Columns of an interval.
const EVERY_COLUMNS: usize = 6;
/// Columns before a line about the source above it.
const NOTE_COLUMN: usize = 2;

/// The table and its room.
pub(super) struct FleetTable<'a> {
    report: &'a FleetReport,
    /// Columns of the terminal; `None` for whole lines.
    columns: Option<usize>,
    /// Whether all facts of each source are printed.
    is_long: bool,
    is_narrow: bool,
    /// Columns of the sources.
    source_columns: usize,
    /// Names of several sources, of which only their repositories tell which is which.
    doubled: BTreeSet<String>,
}

impl<'a> FleetTable<'a> {
    pub(super) fn new(report: &'a FleetReport, columns: Option<usize>, is_long: bool) -> Self {
        let sources = report.sources.iter();
        let widest = sources.map(|source| width(&source_text(&source.source)));
        let widest = widest.max().unwrap_or(0).max("SOURCE".len());
        let names = report.sources.iter();
        let names = names.map(|source| source_text(&source.source));
        let mut seen = BTreeSet::new();
        let doubled = names.filter(|name| !seen.insert(name.clone())).collect();
        let is_narrow =
            columns.is_some_and(|columns| columns < REST_COLUMNS + LEAST_SOURCE_COLUMNS);
        let rest = if is_narrow {
            NARROW_REST_COLUMNS
        } else {
            REST_COLUMNS
        };
        let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(rest));
        Self {
            doubled,
            is_narrow,
            report,
            columns,
            is_long,
            source_columns: widest.min(room.max(LEAST_SOURCE_COLUMNS)),
        }
    }

    /// Prints the header, the sources and the numbers of them.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn print(&self, out: &mut dyn Write) -> Result<()> {
        let header = [
            "AGE", "EVERY", "SIZE", "GROWTH", "VERIFIED", "DRILL", "STATE",
        ];
        if !self.report.sources.is_empty() {
            text::line(out, &self.row("SOURCE", header.map(str::to_owned)))?;
        }
        for source in &self.report.sources {
            let name = fitted(&source_text(&source.source), self.source_columns);
            text::line(out, &self.row(&name, cells(source)))?;
            for note in self.notes(source) {
                let note = format!("{:NOTE_COLUMN$}{note}", "");
                let note = self
                    .columns
                    .map_or(note.clone(), |columns| cut(&note, columns));
                text::line(out, &note)?;
            }
        }
        for repository in &self.report.repositories {
            let unreadable = repository.unreadable.len() as u64;
            if unreadable > 0 {
                let backups = text::counted(unreadable, "backup");
                let name = &repository.repository;
                text::line(
                    out,
                    &format!(
                        "damaged: {backups} of {name:?} cannot be read: `fullbore verify` names them"
                    ),
                )?;
            }
        }
        for repository in &self.report.repositories {
            let hosts = &repository.hosts_without_backup;
            if !hosts.is_empty() {
                let line = format!(
                    "never: no backup of {}, which have put keys: `fullbore host remove` takes back one that is not wanted",
                    hosts.join(", ")
                );
                text::line(out, &line)?;
            }
        }
        text::line(out, &self.last_line())?;
        let is_sealed = |source: &FleetSource| is_pseudonym(&source.source);
        if self.report.sources.iter().any(is_sealed) {
            text::line(
                out,
                "hosts and paths are encrypted: --key FILE shows them, and hosts without a backup",
            )?;
        }
        Ok(())
    }

    fn row(
        &self,
        source: &str,
        [age, every, size, growth, verified, drill, state]: [String; 7],
    ) -> String {
        let source = padded(source, self.source_columns);
        let first = format!("{source} {age:>5} {every:>6} {size:>8}");
        let row = match self.is_narrow {
            true => format!("{first} {verified:>8} {state:<7}"),
            false => format!("{first} {growth:>9} {verified:>8} {drill:>5} {state:<7}"),
        };
        row.trim_end().to_owned()
    }

    /// Returns what is wrong with a source on one line, or with `--long` all facts.
    fn notes(&self, source: &FleetSource) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(after) = source.late_after_seconds.filter(|_| source.late) {
            notes.push(format!("late for {}", short(source.age_seconds - after)));
        }
        if source.damaged_backups > 0 {
            notes.push(format!(
                "{} damaged",
                text::counted(source.damaged_backups, "backup")
            ));
        }
        notes.extend(source.warnings.iter().cloned());
        let is_one = self.report.repositories.len() == 1;
        let place = format!("in {:?}", source.repository);
        if !self.is_long {
            let is_told = !is_one
                && (!notes.is_empty() || self.doubled.contains(&source_text(&source.source)));
            notes.extend(Some(place).filter(|_| is_told));
            return Some(notes.join("; "))
                .filter(|line| !line.is_empty())
                .into_iter()
                .collect();
        }
        notes.push(place);
        let share = source.verified_share * 100.0;
        notes.push(format!(
            "newest {}, one of {}; {} stored, {share:.0} % of the newest verified",
            source.newest,
            text::counted(source.backups, "backup"),
            text::bytes(source.stored_bytes),
        ));
        notes
    }

    fn last_line(&self) -> String {
        let report = self.report;
        let all = text::counted(report.sources.len() as u64, "source");
        let counts = [
            (report.count(SourceState::Damaged), "damaged"),
            (report.late(), "late"),
            (report.count(SourceState::Warned), "with warnings"),
        ];
        let some = counts.iter().filter(|(count, _)| *count > 0);
        let mut parts = vec![all];
        parts.extend(some.map(|(count, what)| format!("{count} {what}")));
        parts.join(", ")
    }
}

/// Returns an interval as it was told, or about as it was learned.
fn every(seconds: u64, by: Option<ExpectedBy>) -> String {
    let told = exact(Duration::from_secs(seconds));
    match by {
        Some(ExpectedBy::Distances) => format!("~{}", short(seconds)),
        _ if told.len() <= EVERY_COLUMNS => told,
        _ => short(seconds),
    }
}

fn cells(source: &FleetSource) -> [String; 7] {
    let every = source
        .expected_seconds
        .map(|seconds| every(seconds, source.expected_by));
    let growth = source.growth_bytes.map(|growth| {
        let sign = if growth < 0 { '-' } else { '+' };
        format!("{sign}{}", text::bytes(growth.unsigned_abs()))
    });
    let verified = source.verified_age_seconds.map(short);
    let drill = source.last_drill.as_ref().map(|drill| match drill.passed {
        true => short(drill.age_seconds),
        false => "fail".to_owned(),
    });
    let state = match source.state {
        SourceState::Damaged => "damaged",
        SourceState::Late => "late",
        SourceState::Warned => "warning",
        SourceState::Sound => "ok",
    };
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        short(source.age_seconds),
        or_none(every),
        text::bytes(source.bytes),
        or_none(growth),
        or_none(verified),
        or_none(drill),
        state.to_owned(),
    ]
}
