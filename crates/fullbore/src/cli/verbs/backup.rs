//! `fullbore backup`.

use super::{
    backup_args::{BackupArgs, OpenedSinks},
    backup_changes,
    backup_several::{self as several, NamedEnd, UnopenedSinks},
    backup_source::requested_cluster,
    dumpdates::Dumpdates,
    far_backup,
    init::say_new,
};
use crate::cli::{
    limit::{RunEnds, RunLimit},
    metered_run::{JudgedRun, MeteredRun, ReportHead},
    metrics_file::measured,
    newest::{newest_backups, newest_wal},
    options::{FRAME_BYTES, OutputArgs, UNREADABLE, memory},
    output::printed,
    profile::{self, NamedProfile},
    progress::A_MOMENT,
    report,
    scope_args::looks_twice,
    values::{Chunking, LevelArg, distinct_tags},
};
use fullbore_engine::{
    backup::{Backup, Outcome, Subject, far_source::FarSubject, paths::Scope},
    fleet::EVERY_TAG,
    plan::{SinkSpec, Tuning},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::Root,
    text::{self, duration},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform as platform;
use fullbore_platform::{
    metrics::{hardware::RunKind, meter::Meter},
    queue::start,
};
use fullbore_repository::{base::WantedBase, level::LEVEL_TAG};
use fullbore_storage::{LastBackup, LastBackups, Storages};
use fullbore_tree::far::MAX_FRAME_BYTES;
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    num::NonZeroU64,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

/// Default for a cluster: such a frame fits the second-level cache, and its pages compress equally well.
const CLUSTER_FRAME_BYTES: u32 = 256 << 10;

/// Exit code if a destination lacks the backup.
const FAILED: u8 = 1;

pub(in crate::cli) fn run(args: BackupArgs, storages: &Storages) -> Result<u8> {
    let file = args.metrics.clone().filter(|_| !args.dry_run);
    let Some(file) = file else {
        return store(args, storages, &mut None);
    };
    let profile = profile::of_process();
    let name = profile.map(|profile| &profile.name[..]);
    measured(Some(&file), name, |numbers| {
        let target = args.first_to().to_owned();
        let code = store(args, storages, &mut numbers.backup);
        numbers.warnings = numbers.backup.as_ref().map_or(0, warning_count);
        let own = profile.and_then(NamedProfile::own_source);
        numbers.newest = newest_backups(storages, &target, own.as_ref()).ok();
        numbers.wal = newest_wal(storages, &target).unwrap_or_default();
        code
    })
}

/// Warnings in the result of a backup, and entries that could not be read.
fn warning_count(result: &serde_json::Value) -> u64 {
    let texts = result["warnings"].as_array().map_or(0, Vec::len);
    let unreadable = ["unreadable", "bad_pages"].map(|key| result[key].as_u64().unwrap_or(0));
    texts as u64 + unreadable.iter().sum::<u64>()
}

/// Makes the backup. `result` gets the object that `--json` prints at the end.
fn store(
    args: BackupArgs,
    storages: &Storages,
    result: &mut Option<serde_json::Value>,
) -> Result<u8> {
    // A source on another host is read by that host, which runs the backup itself.
    if let Some(code) = far_backup::backup(&args, storages)? {
        return Ok(code);
    }
    let output = args.output.clone();
    let report_file = args.run.report.clone();
    let is_dry_run = args.dry_run;
    let destination = args.first_to().to_owned();
    let ends = run_ends(&args, storages);
    let dumpdates = args.dumpdates.as_deref().map(Dumpdates::check);
    let dumpdates = dumpdates.transpose()?;
    let (plan, unopened) = opened_plan(args, storages)?;
    if is_dry_run {
        return count(&plan, &output);
    }
    let run = MeteredRun::beside_output(storages, &output, report::SIDES, plan.to.is_stdout());
    let run = run.with_report(report_file.as_deref())?;
    if run.progress().is_drawn() && plan.subject.can_be_counted() {
        count_beside(&plan, run.meter());
    }
    let outcome = run.work(|meter| plan.run(meter))?;
    let judged = JudgedRun {
        kind: RunKind::Backup,
        ends: &ends,
        workers: plan.tuning.workers,
        max_rate: plan.max_rate.map(NonZeroU64::get),
    };
    let limit = run.limit(Some(&outcome.verdict), &judged);
    let each = several::ends(&plan, &outcome, unopened);
    let mut numbers = result_json(&outcome, run.meter(), &limit);
    several::add_to(&mut numbers, &each);
    *result = Some(numbers);
    remember(storages, &plan, &outcome, several::holders(&each));
    let code = print_end(
        &plan,
        &destination,
        (&outcome, &each),
        &output,
        (run, &limit),
    )?;
    if let Some(dumpdates) = dumpdates {
        dumpdates.note(&outcome.root)?;
    }
    Ok(code)
}

/// Remembers a backup for `fullbore status`, unless it is stored nowhere or has no files.
fn remember(storages: &Storages, plan: &Backup, outcome: &Outcome, holders: Option<String>) {
    let root = &outcome.root;
    let is_kept = !plan.to.is_stdout() && !matches!(plan.to, SinkSpec::Null);
    let Some(dir) = storages
        .state_dir()
        .filter(|_| is_kept && !has_no_files(root))
    else {
        return;
    };
    let every = root.tags.get(EVERY_TAG);
    let every = every.and_then(|every| duration::parse(every).ok());
    LastBackups::new(dir).note(&LastBackup {
        source: text::source_text(&root.source),
        place: holders.unwrap_or_else(|| plan.to.name()),
        time: root.time.clone(),
        every_seconds: every.map(|every| every.as_secs()),
    });
}

/// Prints the end of a backup, and writes its report. Returns the exit code.
fn print_end(
    plan: &Backup,
    destination: &OsStr,
    (outcome, each): (&Outcome, &[NamedEnd]),
    output: &OutputArgs,
    (run, limit): (MeteredRun, &RunLimit),
) -> Result<u8> {
    let root = &outcome.root;
    let place = several::completion_text(each).unwrap_or_else(|| completion_text(plan, outcome));
    let lines = last_lines(plan, outcome, (run.meter(), limit), output.verbose, &place);
    let failed = several::tell_failures(each);
    run.progress()
        .lacks(root, report::base_damage(&outcome.damage));
    if outcome.is_new_repository && output.quiet {
        say_new(&plan.to);
    }
    if output.verbose && !output.json {
        backup_changes::print_stored(plan, destination, root)?;
    }
    run.end(&lines, || {
        let mut result = result_json(outcome, run.meter(), limit);
        several::add_to(&mut result, each);
        result
    });
    let exit_code = match root.totals.is_complete() {
        _ if failed > 0 => FAILED,
        true => 0,
        false => UNREADABLE,
    };
    let head = ReportHead {
        title: format!("backup {}", root.id),
        source: &text::source_text(&root.source),
        exit_code,
    };
    run.print_report(&head, lines, limit);
    Ok(exit_code)
}

/// Opens the destination, and connects to the host of the source if that is another one.
fn opened_plan(args: BackupArgs, storages: &Storages) -> Result<(Backup, UnopenedSinks)> {
    let OpenedSinks {
        mut sinks,
        codec,
        failed,
    } = args.sinks(storages)?;
    let also = sinks.split_off(1);
    let Some(target) = sinks.pop() else {
        return Err(Error::new(ErrorKind::Bug, "there is no destination"));
    };
    let far = far_backup::subject(&args, storages)?;
    let plan = plan(args, storages, target, codec, far)?;
    Ok((Backup { also, ..plan }, failed))
}

/// The ends of the run: files of this host, unless the arguments name something else.
fn run_ends(args: &BackupArgs, storages: &Storages) -> RunEnds {
    let stdin = args.stdin_name.as_ref().map(|_| OsStr::new("-"));
    RunEnds::of(storages, stdin, Some(args.first_to()))
}

/// Said once for each source.
const NEW_SOURCE: &str = "note: the repository has backups of other sources, and this is the first one of this source; commands that \
    take the latest backup now need --host or --path";

/// Retention counts such a backup as any other, and keeps the newest one with content beside it.
const NO_CONTENT: &str = "WARNING: the backup has no files; perhaps the source is not mounted";

/// The words about the only destination.
fn completion_text(plan: &Backup, outcome: &Outcome) -> String {
    let is_new = outcome.is_new_repository;
    plan.to.completion_text() + if is_new { ", a new repository" } else { "" }
}

fn last_lines(
    plan: &Backup,
    outcome: &Outcome,
    (meter, limit): (&Meter, &RunLimit),
    is_verbose: bool,
    place: &str,
) -> Vec<String> {
    let waits = meter.waits.long_waits();
    let mut lines = report::backup(&outcome.root, limit, is_verbose, &waits, place);
    let before_last = lines.len() - 1;
    let held = plan.max_rate.map(report::held);
    let idle = outcome.idle_names.as_ref().filter(|_| is_verbose);
    lines.splice(
        before_last..before_last,
        held.into_iter()
            .chain(outcome.unlike.iter().map(report::anew))
            .chain(report::shared(&outcome.shared_with))
            .chain(outcome.is_new_source.then(|| NEW_SOURCE.to_owned()))
            .chain(has_no_files(&outcome.root).then(|| NO_CONTENT.to_owned()))
            .chain(outcome.caches.as_ref().map(report::caches))
            .chain(report::base_damage(&outcome.damage))
            .chain(report::warnings(&outcome.warnings))
            .chain(idle.map(|line| format!("note: {line}"))),
    );
    lines
}

/// Returns whether a backup has nothing but directories.
fn has_no_files(root: &Root) -> bool {
    root.totals.entries == root.totals.directories
}

fn result_json(outcome: &Outcome, meter: &Meter, limit: &RunLimit) -> serde_json::Value {
    let mut result = report::backup_json(&outcome.root, limit);
    result["new_repository"] = outcome.is_new_repository.into();
    result["shared_with"] = outcome.shared_with.clone().into();
    result["new_source"] = outcome.is_new_source.into();
    result["unlike"] = report::anew_json(outcome.unlike.as_ref());
    result["base_damage"] = outcome.damage.clone().into();
    result["warnings"] = outcome.warnings.clone().into();
    let caches = outcome.caches.as_ref().map_or(0, |(count, _)| *count);
    result["left_out_caches"] = caches.into();
    result["waited"] = report::waited_json(&meter.waits.long_waits());
    result
}

/// Counts the source beside the run, so that the remaining time can be estimated; not for a run that ends within a moment.
/// Without a thread there is no estimate. The thread ends with the process.
fn count_beside(plan: &Backup, meter: &Arc<Meter>) {
    let (plan, meter) = (plan.clone(), meter.clone());
    let _ = start(move || {
        // A short backup ends before it would need the total.
        std::thread::sleep(A_MOMENT);
        if let Ok(found) = plan.count() {
            meter.total_bytes.store(found.bytes, Relaxed);
        }
    });
}

/// Prints what a backup would store.
fn count(plan: &Backup, output: &OutputArgs) -> Result<u8> {
    let found = match output.verbose && !output.json {
        true => plan.count_changes(Some(&mut backup_changes::print_change))?,
        false => plan.count()?,
    };
    let line = serde_json::json!({
        "type": "result", "dry_run": true, "files": found.files, "entries": found.entries, "bytes": found.bytes,
        "unreadable": found.unreadable, "warnings": found.warnings,
    });
    printed(|out| {
        match (output.json, output.quiet) {
            (true, _) => text::json(out, &line)?,
            (false, false) => report::would_be(&found)
                .iter()
                .try_for_each(|words| text::line(out, words))?,
            (false, true) => {}
        }
        Ok(if found.unreadable == 0 { 0 } else { UNREADABLE })
    })
}

fn plan(
    args: BackupArgs,
    storages: &Storages,
    to: SinkSpec,
    codec: Option<Codec>,
    far: Option<FarSubject>,
) -> Result<Backup> {
    if args.base.is_some() && !has_bases(&to) {
        return Err(every_backup_is_full("--base"));
    }
    if args.resume.is_some() && to.volumes().is_none() {
        let message = "--resume goes on with volumes; a repository goes on by itself";
        return Err(Error::new(ErrorKind::Usage, message));
    }
    let mut tags = distinct_tags(args.tag.clone())?;
    if let Some(every) = args.every {
        add_every(every, &mut tags)?;
    }
    if args.level.is_some() {
        check_level(args.level, &to, &tags)?;
    }
    let cluster = match far {
        Some(_) => None,
        None => requested_cluster(&args, storages)?,
    };
    let host = match (args.host, &far) {
        (None, Some(far)) => Some(far.host_name()?),
        (host, _) => host,
    };
    let files = Scope {
        on_excluded: (args.output.verbose && !args.output.json && !to.is_stdout())
            .then_some(backup_changes::print_excluded),
        ..args.scope.scope(looks_twice(args.compare))
    };
    let subject = match (cluster, far) {
        (_, Some(far)) => Subject::Far(far),
        (Some(request), None) => Subject::Cluster(request),
        (None, None) => near_subject(args.stdin_name, args.stdin_from_command, files),
    };
    let usual = if matches!(subject, Subject::Cluster(_)) {
        CLUSTER_FRAME_BYTES
    } else {
        FRAME_BYTES
    };
    let frame_bytes = args.frame_size.unwrap_or(usual);
    if matches!(subject, Subject::Far(_)) && frame_bytes > MAX_FRAME_BYTES {
        let message = "cannot read the files of another host in frames of more than 16M";
        return Err(Error::new(ErrorKind::Usage, message).hint("use a smaller --frame-size"));
    }
    let mut backup = Backup {
        storages: storages.clone(),
        subject,
        to,
        also: Vec::new(),
        no_create: args.no_create,
        codec: codec.unwrap_or(Codec::Zstd(1)),
        digest: args.digest,
        max_rate: args.max_rate,
        most_errors: args.errors,
        host,
        tags,
        base: WantedBase {
            base: args.base,
            full: args.full,
            below_level: None,
            resume: args.resume,
            compare: args.compare,
        },
        dedup: args.dedup.unwrap_or_default(),
        checkpoint_interval: args.checkpoint_interval,
        chunks: args.chunking == Chunking::Content,
        block_bytes: args.block_size.map(u64::from),
        tuning: Tuning {
            workers: args.workers.unwrap_or_else(platform::cores),
            readers: args.readers.0,
            memory_bytes: memory(args.memory, frame_bytes),
            frame_bytes,
            segment_bytes: args.segment_size,
        },
    };
    let level = match args.level {
        Some(LevelArg::Hanoi) => Some(backup.hanoi_level()?),
        Some(LevelArg::Number(level)) => Some(level),
        None => None,
    };
    if let Some(level) = level {
        backup.tags.insert(LEVEL_TAG.to_owned(), level.to_string());
        backup.base.full |= level == 0;
        backup.base.below_level = Some(level);
    }
    Ok(backup)
}

/// Returns whether a backup to this destination can have a base.
fn has_bases(to: &SinkSpec) -> bool {
    matches!(to, SinkSpec::Repository(_)) || to.is_in_volumes()
}

fn every_backup_is_full(option: &str) -> Error {
    let message =
        format!("{option} wants a repository, volumes or tapes: elsewhere every backup is full");
    Error::new(ErrorKind::Usage, message)
}

/// Adds the tag with the time within which the next backup is expected.
fn add_every(every: Duration, tags: &mut BTreeMap<String, String>) -> Result<()> {
    match tags.insert(EVERY_TAG.to_owned(), duration::exact(every)) {
        None => Ok(()),
        Some(_) => Err(Error::new(
            ErrorKind::Usage,
            "cannot use --every and the tag \"every\"",
        )),
    }
}

/// Refuses a level where every backup is full, or beside a tag of that name.
fn check_level(
    level: Option<LevelArg>,
    to: &SinkSpec,
    tags: &BTreeMap<String, String>,
) -> Result<()> {
    if level != Some(LevelArg::Number(0)) && !has_bases(to) {
        return Err(every_backup_is_full("--level above 0"));
    }
    if tags.contains_key(LEVEL_TAG) {
        let message = "cannot use --level and the tag \"level\"";
        return Err(Error::new(ErrorKind::Usage, message));
    }
    Ok(())
}

/// Returns the source of a backup of files, of standard input or of the output of a command.
fn near_subject(name: Option<OsString>, is_from_command: bool, files: Scope) -> Subject {
    match name {
        Some(name) if is_from_command => {
            let words = files.paths.into_iter().map(PathBuf::into_os_string);
            Subject::Command(name, words.collect())
        }
        Some(name) => Subject::Stdin(name),
        None => Subject::Files(files),
    }
}
