//! `fullbore drill`.

use super::restore_cluster::TargetArgs;
use crate::cli::{
    metered_run::MeteredRun,
    metrics_file::{RunNumbers, measured, metrics_path},
    options::{FRAME_BYTES, OutputArgs, memory},
    output::{aside, told},
    report,
    select::SelectArgs,
    storage::fetch_words,
    values::threads,
};
use clap::{Args, ValueHint};
use fullbore_engine::{
    drill::{Drill, DrillOutcome},
    restore::{EntryPatterns, Restore, RestoreInto},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::{
        self,
        size::{counted, seconds},
    },
};
use fullbore_platform as platform;
use fullbore_postgres::restore::{plan::ClusterOptions, recovery::RecoveryOptions};
use fullbore_storage::Storages;
use serde_json::{Value, json};
use std::{env, ffi::OsString, num::NonZeroUsize, path::PathBuf};

/// `fullbore drill`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 the cluster was restored, recovered and answered, 1 failed, 2 wrong arguments, 4 damage was found"
)]
pub(in crate::cli) struct DrillArgs {
    /// A repository or an archive with backups of a cluster
    ///
    /// @BACKUP chooses a backup: an id, latest, latest~1, 2026-11-25 or 2d.
    #[arg(value_name = "REPO[@BACKUP]")]
    from: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// Run this query, and print its rows: the first 100 of them
    #[arg(long, value_name = "SQL")]
    query: Option<String>,
    /// The database for the query
    #[arg(long, value_name = "NAME", default_value = "postgres")]
    database: String,
    #[command(flatten)]
    target: TargetArgs,
    /// Recover on this timeline: current, latest or a number
    #[arg(long, value_name = "TIMELINE", help_heading = "PostgreSQL")]
    target_timeline: Option<String>,
    /// End right before the target
    #[arg(long, help_heading = "PostgreSQL")]
    target_exclusive: bool,
    /// Command with which the server fetches WAL
    ///
    /// The default is that of the configuration in the backup, or of a repository that has the WAL.
    /// Without a target the server recovers to the end of the archive.
    #[arg(long, value_name = "CMD", help_heading = "PostgreSQL")]
    restore_command: Option<String>,
    /// The directory of the server's programs
    ///
    /// The default is that of the version of the backup, where distributions install it, or in PATH.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "PostgreSQL")]
    bindir: Option<PathBuf>,
    /// Restore below this directory
    ///
    /// It needs room for the cluster, and all of it is removed. The default is TMPDIR, or /var/tmp.
    #[arg(long, value_name = "SCRATCH", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
    /// Write numbers of the drill to this file, for node_exporter
    ///
    /// They replace those of an earlier drill, but no other file.
    #[arg(long, value_name = "FILE.prom", value_parser = metrics_path, value_hint = ValueHint::FilePath)]
    metrics: Option<PathBuf>,
    /// Threads that compute [default: the processors this process may use]
    #[arg(long, short = 'j', value_name = "N", value_parser = threads)]
    workers: Option<NonZeroUsize>,
    /// All buffers together, beside the memory of the server
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = text::size::parse)]
    memory: u64,
    #[command(flatten)]
    output: OutputArgs,
}

pub(in crate::cli) fn run(args: DrillArgs, storages: &Storages) -> Result<u8> {
    let metrics = args.metrics.clone();
    measured(metrics.as_deref(), None, |numbers| {
        drill(args, storages, numbers)
    })
}

fn drill(args: DrillArgs, storages: &Storages, numbers: &mut RunNumbers) -> Result<u8> {
    let output = args.output.clone();
    let run = MeteredRun::new(storages, &output, report::ENDS);
    let outcome = plan(args, storages).and_then(|drill| run.work(|meter| drill.run(meter)))?;
    let json = outcome_json(&outcome);
    let is_failed = outcome.failure.is_some();
    numbers.drill = Some(json.clone()).filter(|_| !is_failed);
    if output.json {
        told(|out| text::json(out, &json).map(|()| 0))?;
    } else {
        let lines = lines(&outcome);
        lines
            .iter()
            .filter(|_| !output.quiet || is_failed)
            .for_each(aside);
    }
    outcome
        .failure
        .map_or(Ok(0), |error| Err(drill_error(error)))
}

/// The drill that the arguments ask for.
fn plan(args: DrillArgs, storages: &Storages) -> Result<Drill> {
    if args.from == "-" {
        let message = "cannot drill a stream";
        return Err(Error::new(ErrorKind::Usage, message).hint("write it to a file first"));
    }
    let recovery = RecoveryOptions {
        target: args.target.target(),
        timeline: args.target_timeline,
        exclusive: args.target_exclusive,
        restore_command: args.restore_command,
        ..RecoveryOptions::default()
    };
    let restore = Restore {
        storages: storages.clone(),
        filter: args.select.filter(&args.from, true)?,
        from: args.from,
        // The drill makes a directory of its own.
        to: PathBuf::new(),
        paths: Vec::new(),
        patterns: EntryPatterns::default(),
        into: RestoreInto::Empty,
        keep_going: false,
        numeric_owner: false,
        postgres: ClusterOptions {
            recovery,
            ..ClusterOptions::default()
        },
        workers: args.workers.unwrap_or_else(platform::cores),
        memory: memory(args.memory, FRAME_BYTES),
        fetch_words: fetch_words(),
        say_elsewhere: |_| (),
        say_removed: |_| Ok(()),
    };
    Ok(Drill {
        restore,
        dir: args.dir.unwrap_or_else(scratch_dir),
        bindir: args.bindir,
        query: args.query,
        database: args.database,
    })
}

/// The usual directory for large files that a restart may keep: what a killed drill left is found again.
fn scratch_dir() -> PathBuf {
    env::var_os("TMPDIR")
        .filter(|dir| !dir.is_empty())
        .map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

/// Says that the drill failed, before the reason.
fn drill_error(mut error: Error) -> Error {
    error.what = format!("the drill failed: {}", error.what);
    error
}

fn outcome_json(outcome: &DrillOutcome) -> Value {
    let mut object = serde_json::to_value(&outcome.record).unwrap_or_default();
    object["type"] = "result".into();
    object["seconds_to_queries"] = outcome.record.seconds_to_queries().into();
    object["rows"] = json!(outcome.answer.rows);
    object["notes"] = json!(outcome.notes);
    object["passed"] = outcome.failure.is_none().into();
    object
}

fn lines(outcome: &DrillOutcome) -> Vec<String> {
    let record = &outcome.record;
    let mut lines: Vec<_> = outcome
        .notes
        .iter()
        .map(|note| format!("note: {note}"))
        .collect();
    lines.push(format!("backup: {} of {}", record.id, record.source_text));
    if let Some(target) = &record.recovery_target {
        let reached = record.reached.as_ref();
        let reached = reached.map(|place| format!("; recovery stopped {place}"));
        lines.push(format!("target: {target}{}", reached.unwrap_or_default()));
    }
    // The error says the rest.
    if outcome.failure.is_some() {
        return lines;
    }
    if record.query.is_some() {
        let rows = outcome.answer.rows.iter();
        lines.extend(rows.map(|row| format!("answer: {}", row.replace('\t', " | "))));
        let count = counted(record.row_count, "row");
        let took = seconds(record.query_seconds);
        lines.push(format!("query: {count} in {took}"));
    }
    if record.amcheck {
        lines.push("pg_amcheck: no damage".to_owned());
    }
    lines.push(format!(
        "restored in {}, accepted queries {} later, with PostgreSQL {}; the backup is of {}",
        seconds(record.restore_seconds),
        seconds(record.replay_seconds),
        record.server_version,
        record.backup_version,
    ));
    lines.push(format!(
        "the drill passed: {} until queries; everything is removed",
        seconds(record.seconds_to_queries())
    ));
    lines
}
