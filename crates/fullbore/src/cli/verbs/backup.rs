//! `fullbore backup`.

use super::{
    backup_listing,
    backup_source::requested_cluster,
    far::{self, host},
    init::say_new,
};
use crate::{
    cli::{
        encryption::EncryptArgs,
        html_report::{self, HtmlPage, HtmlReport},
        limit::{RunEnds, RunLimit},
        metrics_file::{MetricsFile, RunNumbers, metrics_path},
        options::{FRAME_BYTES, OutputArgs, RunArgs, UNREADABLE, memory},
        output::printed,
        profile,
        progress::{A_MOMENT, Progress},
        report,
        scope_args::{ScopeArgs, looks_twice},
        values::{
            COMPARES, CheckpointArg, Chunking, DIGESTS, Readers, RunOn, VIAS, WALS, any_bytes,
            block_size, destination, distinct_tags, frame_size, interval, one_of, rate, readers,
            segment_size, stream_name, tag, threads,
        },
    },
    command::newest::newest_backups,
};
use clap::{Args, ValueHint, builder::NonEmptyStringValueParser};
use fullbore_engine::{
    backup::{Backup, Outcome, Subject, far_source::FarSubject, paths::Scope},
    plan::{SinkSpec, Tuning},
};
use fullbore_format::{
    digest::Algorithm,
    error::{Error, ErrorKind, Result},
    root::Root,
    text::{self, size},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform as platform;
use fullbore_platform::{
    metrics::{hardware::RunKind, meter::Meter},
    queue::start,
};
use fullbore_postgres::request::{Via, Wal};
use fullbore_repository::{base::WantedBase, compare::Compare};
use fullbore_storage::Storages;
use fullbore_tree::far::MAX_FRAME_BYTES;
use std::{
    ffi::{OsStr, OsString},
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

/// `fullbore backup`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 done, 1 failed (nothing was committed), 2 wrong arguments, 3 done but something could not be read, \
                  4 damage was found (nothing was committed)"
)]
pub(in crate::cli) struct BackupArgs {
    /// A repository, an archive file, - (standard output) or null: (nowhere)
    ///
    /// A directory is a repository, which is created on first use. An archive is FILE.tar.zst (or
    /// .tzst), FILE.tar.lz4, FILE.tar.gz (or .tgz) or FILE.tar. With null: nothing is stored, to
    /// measure the source.
    #[arg(long, value_name = "DEST", value_hint = ValueHint::AnyPath, value_parser = any_bytes(destination))]
    pub(in crate::cli) to: OsString,
    /// Fail if the repository does not exist
    ///
    /// Scheduled backups use this option. Without it, a backup to a disk that is not mounted
    /// creates a new repository at the mount point.
    #[arg(long)]
    pub(in crate::cli) no_create: bool,
    /// Back up standard input as a file of this name
    #[arg(long, value_name = "NAME", value_parser = any_bytes(stream_name), conflicts_with_all = ["files_from"])]
    pub(in crate::cli) stdin_name: Option<OsString>,
    /// Back up the output of the command behind --
    ///
    /// It takes the place of standard input. If the command fails, nothing is stored.
    #[arg(long, requires_all = ["stdin_name", "paths"], conflicts_with_all = ["connect", "offline", "on", "dry_run"])]
    pub(in crate::cli) stdin_from_command: bool,
    /// Back up the running cluster at these connection settings
    ///
    /// The settings are those of libpq: "host=… port=… user=…". If they are empty, PGHOST and the
    /// other variables of libpq say where the server is.
    #[arg(long, value_name = "SETTINGS", conflicts_with_all = ["paths", "stdin_name"], help_heading = "PostgreSQL")]
    pub(in crate::cli) connect: Option<String>,
    /// PATH is the data directory of a cluster that is shut down
    #[arg(long, conflicts_with_all = ["connect", "stdin_name"], help_heading = "PostgreSQL")]
    pub(in crate::cli) offline: bool,
    /// How the checkpoint at the start is done [default: fast]
    #[arg(
        long,
        value_enum,
        conflicts_with = "offline",
        help_heading = "PostgreSQL"
    )]
    pub(in crate::cli) checkpoint: Option<CheckpointArg>,
    /// Where the WAL of the backup is kept [default: included]
    #[arg(
        long,
        value_parser = one_of(&WALS),
        conflicts_with = "offline",
        help_heading = "PostgreSQL"
    )]
    pub(in crate::cli) wal: Option<Wal>,
    /// How the files of a running cluster are read
    ///
    /// By SQL, fullbore needs no access to the server's host. The role needs EXECUTE on three
    /// functions, which the error names. --readers is the number of sessions then, 4 by default.
    #[arg(
        long,
        value_parser = one_of(&VIAS),
        default_value = "auto",
        conflicts_with = "offline",
        help_heading = "PostgreSQL"
    )]
    pub(in crate::cli) via: Via,
    /// zstd[:LEVEL], auto, lz4, none, or gzip[:LEVEL] for a plain stream
    ///
    /// The default is zstd:1, or the codec that the ending of DEST names. Negative levels of zstd
    /// are faster. auto uses the strongest level from zstd:-5 to zstd:9 that costs no time.
    #[arg(long, value_name = "CODEC")]
    pub(in crate::cli) compress: Option<Codec>,
    /// Threads that compress [default: one for each processor]
    ///
    /// The default is the number of processors that this process may use.
    #[arg(long, short = 'j', value_name = "N", value_parser = threads)]
    pub(in crate::cli) workers: Option<NonZeroUsize>,
    /// Threads that read each device, or auto
    ///
    /// auto adds threads as long as they increase the speed.
    #[arg(long, value_name = "N", default_value = "auto", value_parser = readers)]
    pub(in crate::cli) readers: Readers,
    /// Size of all buffers together
    ///
    /// The least is 6 frames, and 4 more for each further device.
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse)]
    pub(in crate::cli) memory: u64,
    /// Read at most this many bytes a second
    ///
    /// Other programs then have the rest of the disk.
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub(in crate::cli) max_rate: Option<NonZeroU64>,
    /// Bytes in a compressed frame [default: 1M, for a cluster 256K]
    ///
    /// Each frame can be decompressed without the others. The size is a power of two from 64K to
    /// 64M.
    #[arg(long, value_name = "SIZE", value_parser = frame_size)]
    pub(in crate::cli) frame_size: Option<u32>,
    /// Store all files again, changed or not
    #[arg(long, conflicts_with = "base", help_heading = "Incremental")]
    pub(in crate::cli) full: bool,
    /// Compare with this backup [default: the latest of the same source]
    #[arg(long, value_name = "ID", help_heading = "Incremental")]
    pub(in crate::cli) base: Option<String>,
    /// How an unchanged file is recognized
    #[arg(long, value_parser = one_of(&COMPARES), default_value = "inode", help_heading = "Incremental")]
    pub(in crate::cli) compare: Compare,
    /// Bytes in a block to compare [default: 1M, for a cluster 8K]
    ///
    /// Of a changed file, the blocks that differ are stored again. The size is a power of two from
    /// 4K to 64M, and at most that of a frame.
    #[arg(long, value_name = "SIZE", value_parser = block_size, help_heading = "Incremental")]
    pub(in crate::cli) block_size: Option<u32>,
    /// How large files are cut for the comparison
    #[arg(long, value_enum, default_value_t = Chunking::Fixed, help_heading = "Incremental")]
    pub(in crate::cli) chunking: Chunking,
    /// Time after which stored data is made durable
    ///
    /// If the backup is interrupted, the next backup continues from that point. 0 means after each
    /// frame.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = interval, help_heading = "Incremental")]
    pub(in crate::cli) checkpoint_interval: Duration,
    /// Begin a new segment of a repository after this many stored bytes
    ///
    /// The least is 1M.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = segment_size)]
    pub(in crate::cli) segment_size: u64,
    /// How the contents of files are digested
    ///
    /// With none, a restore detects damage only in frames of zstd and lz4, which have checksums.
    /// Also, restore --delta then writes all files again.
    #[arg(long, value_parser = one_of(&DIGESTS), default_value = "blake3")]
    pub(in crate::cli) digest: Algorithm,
    #[command(flatten)]
    pub(in crate::cli) scope: ScopeArgs,
    /// Record this host name [default: the name of this host]
    ///
    /// Earlier backups of that host serve as the base.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(in crate::cli) host: Option<String>,
    /// Tag the backup with KEY or KEY=VALUE (repeatable)
    #[arg(long, short = 't', value_name = "TAG", value_parser = tag)]
    pub(in crate::cli) tag: Vec<(String, String)>,
    /// Run on this host, which reads its own PATHs or cluster
    ///
    /// A PATH such as ssh://HOST/PATH says the same.
    #[arg(long, value_name = "ssh://HOST", value_parser = any_bytes(host))]
    pub(in crate::cli) on: Option<String>,
    /// The host that compares, digests and compresses
    ///
    /// It matters only if source and destination are on two hosts.
    #[arg(long, value_enum, default_value_t = RunOn::Source)]
    pub(in crate::cli) run_on: RunOn,
    /// Only print what would be backed up, and open no files
    ///
    /// With -v, each entry is printed that differs from the last backup in kind, size, time, mode,
    /// owner or the target of a link.
    #[arg(long, short = 'n', conflicts_with_all = ["stdin_name", "report"])]
    pub(in crate::cli) dry_run: bool,
    #[command(flatten)]
    pub(in crate::cli) encrypt: EncryptArgs,
    #[command(flatten)]
    pub(in crate::cli) output: OutputArgs,
    /// Write numbers of the backup to this file, for node_exporter
    ///
    /// The file of an earlier run is replaced, but no other file.
    #[arg(long, value_name = "FILE.prom", value_parser = metrics_path, value_hint = ValueHint::FilePath)]
    pub(in crate::cli) metrics: Option<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) run: RunArgs,
}

/// Default for a cluster: such a frame fits the second-level cache, and its pages compress equally well.
const CLUSTER_FRAME_BYTES: u32 = 256 << 10;

pub(in crate::cli) fn run(args: BackupArgs, storages: &Storages) -> Result<u8> {
    match args.metrics.clone().filter(|_| !args.dry_run) {
        Some(file) => measured(args, storages, &file),
        None => store(args, storages, &mut None),
    }
}

/// Makes the backup, and writes numbers of it to a file.
fn measured(args: BackupArgs, storages: &Storages, file: &Path) -> Result<u8> {
    let profile = profile::of_process().map(|profile| &profile.name[..]);
    let file = MetricsFile::new(file, profile)?;
    let begun = Instant::now();
    let to = args.to.clone();
    let mut result = None;
    let code = store(args, storages, &mut result);
    let own = profile::of_process().and_then(|profile| profile.own_source());
    let newest = newest_backups(storages, &to, own.as_ref()).ok();
    file.write(&RunNumbers {
        exit_code: code.as_ref().map_or_else(Error::exit_code, |code| *code),
        seconds: begun.elapsed().as_secs_f64(),
        warnings: result.as_ref().map_or(0, warning_count),
        backup: result,
        newest,
        ..RunNumbers::default()
    });
    code
}

/// Warnings in the result of a backup, and entries that could not be read.
fn warning_count(result: &serde_json::Value) -> u64 {
    let texts = result["warnings"].as_array().map_or(0, Vec::len);
    let unreadable = ["unreadable", "bad_pages"].map(|key| result[key].as_u64().unwrap_or(0));
    texts as u64 + unreadable.iter().sum::<u64>()
}

/// Makes the backup. `result` gets what `--json` prints at its end.
fn store(
    args: BackupArgs,
    storages: &Storages,
    result: &mut Option<serde_json::Value>,
) -> Result<u8> {
    if let Some(code) = far::backup(&args, storages)? {
        return Ok(code);
    }
    let (to, codec) = SinkSpec::parse(storages, &args.to, args.compress)?;
    // The question takes a round trip, and the outcome has the answer, too.
    let is_new = args.encrypt.asks_for_new(storages, &args.to)? && to.is_new_repository();
    let to = args
        .encrypt
        .apply(storages, to, &args.to, is_new, args.no_create, args.dry_run)?;
    let (output, report, dry_run) = (args.output.clone(), args.run.report.clone(), args.dry_run);
    let far = far::subject(&args, storages)?;
    let word = args.to.clone();
    let ends = run_ends(&args, storages);
    let plan = plan(args, storages, to, codec, far)?;
    if dry_run {
        return count(&plan, &output);
    }
    let paper = report.as_deref().map(HtmlReport::open).transpose()?;
    let meter = Arc::new(Meter::default());
    let progress = Progress::new(storages, &output, plan.to.is_stdout(), report::SIDES);
    if progress.is_drawn() && plan.subject.can_be_counted() {
        count_beside(&plan, &meter);
    }
    let outcome = progress.watch(&meter, || plan.run(&meter));
    progress.clear();
    let outcome = outcome?;
    let root = &outcome.root;
    let is_new = outcome.is_new_repository;
    let limit = RunLimit::judge(
        &meter,
        &outcome.verdict,
        RunKind::Backup,
        &ends,
        plan.tuning.workers,
        plan.max_rate.map(NonZeroU64::get),
    );
    *result = Some(result_json(&outcome, &meter, &limit));
    let mut lines = last_lines(&plan, &outcome, &meter, &limit, output.verbose);
    progress.lacks(root, report::base_damage(&outcome.damage));
    if is_new && output.quiet {
        say_new(&plan.to);
    }
    if output.verbose && !output.json {
        backup_listing::print_stored(&plan, &word, root)?;
    }
    progress.end(&lines, || result_json(&outcome, &meter, &limit));
    let code = if root.totals.is_complete() {
        0
    } else {
        UNREADABLE
    };
    if let Some(paper) = paper {
        lines.extend(limit.line(false).is_none().then(|| limit.text()));
        lines.push(html_report::machine());
        paper.print(&HtmlPage {
            title: &format!("backup {}", root.id),
            facts: html_report::facts(&text::source_text(&root.source), code),
            lines: &lines,
            limit: &limit,
            timeline: &meter.timeline(),
        });
    }
    Ok(code)
}

/// The ends of the run: files of this host, unless the arguments name something else.
fn run_ends(args: &BackupArgs, storages: &Storages) -> RunEnds {
    let stdin = args.stdin_name.as_ref().map(|_| OsStr::new("-"));
    RunEnds::of(storages, stdin, Some(&args.to))
}

/// Said once for each source.
const NEW_SOURCE: &str = "note: the repository has backups of other sources, and this is the first one of this source; commands that \
    take the latest backup now need --host or --path";

/// Retention counts such a backup as any other, and keeps the newest one with content beside it.
const NO_CONTENT: &str = "WARNING: the backup has no files; perhaps the source is not mounted";

fn last_lines(
    plan: &Backup,
    outcome: &Outcome,
    meter: &Meter,
    limit: &RunLimit,
    is_verbose: bool,
) -> Vec<String> {
    let is_new = outcome.is_new_repository;
    let place = plan.to.completion_text() + if is_new { ", a new repository" } else { "" };
    let waits = meter.waits.long_waits();
    let mut lines = report::backup(&outcome.root, limit, is_verbose, &waits, &place);
    let before_last = lines.len() - 1;
    let held = plan.max_rate.map(report::held);
    lines.splice(
        before_last..before_last,
        held.into_iter()
            .chain(outcome.unlike.iter().map(report::anew))
            .chain(outcome.is_new_source.then(|| NEW_SOURCE.to_owned()))
            .chain(has_no_files(&outcome.root).then(|| NO_CONTENT.to_owned()))
            .chain(report::base_damage(&outcome.damage))
            .chain(report::warnings(&outcome.warnings)),
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
    result["new_source"] = outcome.is_new_source.into();
    result["unlike"] = report::anew_json(outcome.unlike.as_ref());
    result["base_damage"] = outcome.damage.clone().into();
    result["warnings"] = outcome.warnings.clone().into();
    result["waited"] = report::waited_json(&meter.waits.long_waits());
    result
}

/// Counts the source beside the run, so that the remaining time can be estimated; not for a run that ends within a moment.
/// Without a thread there is no estimate. The thread ends with the process.
fn count_beside(plan: &Backup, meter: &Arc<Meter>) {
    let (plan, meter) = (plan.clone(), meter.clone());
    let count = move || {
        std::thread::sleep(A_MOMENT);
        if let Ok(found) = plan.count() {
            meter.total_bytes.store(found.bytes, Relaxed);
        }
    };
    let _ = start(count);
}

/// Prints what a backup would store.
fn count(plan: &Backup, output: &OutputArgs) -> Result<u8> {
    let found = match output.verbose && !output.json {
        true => plan.count_changes(Some(&mut backup_listing::print_change))?,
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
    if args.base.is_some() && !matches!(to, SinkSpec::Repository(_)) {
        return Err(Error::new(
            ErrorKind::Usage,
            "--base wants a repository: elsewhere every backup is full",
        ));
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
            .then_some(backup_listing::print_excluded),
        ..args.scope.scope(looks_twice(args.compare))
    };
    let subject = match (cluster, args.stdin_name, far) {
        (_, _, Some(far)) => Subject::Far(far),
        (Some(request), _, _) => Subject::Cluster(request),
        (None, Some(name), _) if args.stdin_from_command => {
            let words = files.paths.into_iter().map(PathBuf::into_os_string);
            Subject::Command(name, words.collect())
        }
        (None, Some(name), _) => Subject::Stdin(name),
        (None, None, _) => Subject::Files(files),
    };
    let usual = if matches!(subject, Subject::Cluster(_)) {
        CLUSTER_FRAME_BYTES
    } else {
        FRAME_BYTES
    };
    let frame_bytes = args.frame_size.unwrap_or(usual);
    if matches!(subject, Subject::Far(_)) && frame_bytes > MAX_FRAME_BYTES {
        let what = "cannot read the files of another host in frames of more than 16M";
        return Err(Error::new(ErrorKind::Usage, what).hint("use a smaller --frame-size"));
    }
    Ok(Backup {
        storages: storages.clone(),
        subject,
        to,
        no_create: args.no_create,
        codec: codec.unwrap_or(Codec::Zstd(1)),
        digest: args.digest,
        max_rate: args.max_rate,
        host,
        tags: distinct_tags(args.tag)?,
        base: WantedBase {
            base: args.base,
            full: args.full,
            compare: args.compare,
        },
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
    })
}
