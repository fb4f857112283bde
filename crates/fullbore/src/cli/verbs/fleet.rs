//! `fullbore fleet`: prints the state of all sources of some repositories.

use super::fleet_table::FleetTable;
use crate::cli::{
    metrics_file::{RunNumbers, measured, metrics_path},
    output::{aside, printed, printed_within, terminal_columns},
    select::SelectArgs,
};
use clap::{Args, ValueHint};
use fullbore_engine::fleet::{Fleet, FleetReport, SourceState};
use fullbore_format::{
    error::Result,
    text::{self, duration},
};
use fullbore_storage::Storages;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{ffi::OsString, io::Write, path::PathBuf, time::Duration};

/// `fullbore fleet`.
#[derive(Debug, Args)]
#[command(
    after_help = "AGE is the time since the newest backup began, EVERY the expected distance of backups. A source says it with `backup --every`; \
                  else it is the usual distance of its last backups, marked with ~. GROWTH is that of 30 days. VERIFIED and DRILL are ages, too.\n\
                  EXIT CODES: 0 done, 1 a source is late, a host has no backup or a repository cannot be read, 2 wrong arguments, 4 a backup is damaged"
)]
pub(in crate::cli) struct FleetArgs {
    /// The repositories
    #[arg(value_name = "REPO", required = true, value_hint = ValueHint::DirPath)]
    repositories: Vec<OsString>,
    #[command(flatten)]
    select: SelectArgs,
    /// Expect a backup of every source within this time, such as 1d
    ///
    /// The default is the time that the source says itself, by `backup --every`.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    every: Option<Duration>,
    /// Print whole names, and all facts of each source
    #[arg(long, short)]
    long: bool,
    /// Write the numbers to this file, for node_exporter
    ///
    /// They replace those of an earlier run, but no other file.
    #[arg(long, value_name = "FILE.prom", value_parser = metrics_path, value_hint = ValueHint::FilePath)]
    metrics: Option<PathBuf>,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
    #[arg(from_global)]
    verbose: bool,
}

impl FleetArgs {
    /// Returns whether there are several repositories, of which one may be clear beside a key.
    pub(in crate::cli) fn is_of_several(&self) -> bool {
        self.repositories.len() > 1
    }
}

pub(in crate::cli) fn run(args: FleetArgs, storages: &Storages) -> Result<u8> {
    let metrics = args.metrics.clone();
    measured(metrics.as_deref(), None, |numbers| {
        look(args, storages, numbers)
    })
}

fn look(args: FleetArgs, storages: &Storages, numbers: &mut RunNumbers) -> Result<u8> {
    let first = args.repositories.first().cloned().unwrap_or_default();
    let fleet = Fleet {
        storages: storages.clone(),
        filter: args.select.filter(&first, false)?,
        repositories: args.repositories,
        every: args.every,
        now: Timestamp::now(),
    };
    let is_of_several = fleet.repositories.len() > 1;
    let report = fleet.look()?;
    if is_of_several {
        storages.check_key_use()?;
    }
    let code = report.exit_code();
    numbers.warnings = report
        .sources
        .iter()
        .map(|source| source.warnings.len() as u64)
        .sum();
    if args.json {
        printed(|out| print_json(&report, out).map(|()| 0))?;
    } else if !args.quiet {
        let is_long = args.long || args.verbose;
        let columns = terminal_columns().filter(|_| !is_long);
        let table = FleetTable::new(&report, columns, is_long);
        printed_within(columns, |out| table.print(out).map(|()| 0))?;
    }
    for repository in &report.repositories {
        if let Some(error) = repository.error.as_ref().filter(|_| !args.json) {
            aside(format_args!("error: {error}"));
        }
    }
    // Beside an encrypted one, a clear repository may have been put in the place of another.
    let has_encrypted = report.repositories.iter().any(|one| one.encrypted);
    let clear = report.repositories.iter();
    let clear = clear.filter(|one| !one.encrypted && one.error.is_none() && has_encrypted);
    for repository in clear.filter(|_| !args.json && !args.quiet) {
        let name = &repository.repository;
        aside(format_args!("note: {name:?} is not encrypted"));
    }
    numbers.fleet = Some(report);
    Ok(code)
}

/// Prints each repository and each source on a line, then the numbers of sources.
fn print_json(report: &FleetReport, out: &mut dyn Write) -> Result<()> {
    for repository in &report.repositories {
        text::json(out, &typed("repository", serde_json::to_value(repository)))?;
    }
    for source in &report.sources {
        let mut line = typed("source", serde_json::to_value(source));
        line["source_text"] = text::source_text(&source.source).into();
        text::json(out, &line)?;
    }
    let result = json!({
        "type": "result",
        "time": report.time,
        "sources": report.sources.len(),
        "late_sources": report.late(),
        "damaged_sources": report.count(SourceState::Damaged),
        "warned_sources": report.count(SourceState::Warned),
        "exit_code": report.exit_code(),
    });
    text::json(out, &result)
}

fn typed(kind: &str, value: serde_json::Result<Value>) -> Value {
    let mut value = value.unwrap_or_default();
    value["type"] = kind.into();
    value
}
