//! The command line: arguments, the progress line, the last lines, exit codes.
//!
//! Turns arguments into options of the engines, and prints their results. Decides nothing about backups.

mod args;
mod care;
mod cluster;
mod far;
mod html_report;
mod keys;
mod life;
mod look;
mod man;
mod output;
mod progress;
mod report;
mod select;
mod signals;
mod storage;
mod suggestions;
mod values;

use crate::{
    backup::{
        Backup, Outcome, Subject,
        paths::{Scope, warning_of},
    },
    command::{
        bench::{Bench, Figure},
        list::List,
        serve::Serve,
        show::Show,
    },
    error::{Error, ErrorKind, Result},
    metrics::meter::Meter,
    plan::{SinkSpec, Tuning},
    platform,
    postgres::{
        conninfo::{Environment, Params},
        request::{ClusterRequest, ClusterServer, Wal},
        stopped,
    },
    queue::start,
    repo::{
        base::WantedBase,
        compare::Compare,
        open::{holds_none, repository_at},
        writer,
    },
    restore::{Restore, delta::Delta},
    stage::codec::Codec,
    text,
};
use args::{
    BackupArgs, BenchArgs, Cli, Command, InitArgs, ListArgs, OutputArgs, RestoreArgs, ShowArgs,
};
use clap::CommandFactory;
use html_report::{HtmlPage, HtmlReport};
use output::{aside, printed, told};
use progress::Progress;
use std::{
    os::unix::ffi::OsStringExt,
    path::Path,
    process::ExitCode,
    sync::{Arc, atomic::Ordering::Relaxed},
};
use values::{CheckpointArg, Chunking};

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    if let Err(error) = platform::memory::prepare() {
        aside(report::error(&Error::io("could not begin", error)));
        return ExitCode::FAILURE;
    }
    platform::raise_open_files_limit();
    platform::survive_file_size_limit();
    let result = suggestions::parse()
        .and_then(|cli| cli.storage.apply().map(|()| cli))
        .inspect(|cli| {
            if cli.no_tricks {
                platform::refuse_tricks();
            }
            signals::watch(&cli.command);
        })
        .and_then(|cli| match cli.command {
            Command::Backup(args) => backup(args),
            Command::Init(args) => init(args),
            Command::Restore(args) => restore(args),
            Command::List(args) => list(args),
            Command::Show(args) => show(args),
            Command::Verify(args) => care::verify(args),
            Command::Export(args) => look::export(args),
            Command::Diff(args) => look::diff(args),
            Command::Find(args) => look::find(args),
            Command::CopyBackup(args) => look::copy(args),
            Command::Forget(args) => life::forget(args),
            Command::Prune(args) => life::prune(args),
            Command::Tag(args) => life::tag_backup(args),
            Command::Pin(args) => life::pin(args, true),
            Command::Unpin(args) => life::pin(args, false),
            Command::Key(args) => keys::key(args),
            Command::Repair(args) => care::repair(args),
            Command::Serve(args) => Serve {
                allowed: args.allow,
            }
            .run()
            .map(|()| 0),
            Command::Bench(args) => bench(args),
            Command::Completions { shell } => completions(shell),
            Command::Man { to } => man(to.as_deref()),
        });
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            aside(report::error(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Exit code of a backup that lacks entries that could not be read.
const UNREADABLE: u8 = 3;
/// Default of plain bytes in a frame.
const FRAME_BYTES: u32 = 1 << 20;
/// Default for a cluster: such a frame fits the second-level cache, and its pages compress equally well.
const CLUSTER_FRAME_BYTES: u32 = 256 << 10;
/// The run time after which an estimate of the end is useful.
const A_MOMENT: std::time::Duration = std::time::Duration::from_secs(2);

fn backup(args: BackupArgs) -> Result<u8> {
    if let Some(code) = far::backup(&args)? {
        return Ok(code);
    }
    let (to, codec) = SinkSpec::parse(&args.to, args.compress)?;
    let to = args
        .encrypt
        .apply(to, &args.to, args.no_create, args.dry_run)?;
    let (output, report, dry_run) = (args.output.clone(), args.run.report.clone(), args.dry_run);
    let plan = plan(args, to, codec)?;
    if dry_run {
        return count(&plan, &output);
    }
    let paper = report.as_deref().map(HtmlReport::open).transpose()?;
    let meter = Arc::new(Meter::default());
    let progress = Progress::new(&output, plan.to == SinkSpec::Stdout, report::SIDES);
    if progress.is_drawn() && plan.subject.can_be_counted() {
        plan_deletions(&plan, &meter);
    }
    let is_new = plan.to.is_new_repository();
    let outcome = progress.watch(&meter, || plan.run(&meter));
    progress.clear();
    let Outcome {
        root,
        verdict,
        unlike,
        damage,
        warnings,
    } = outcome?;
    let place = plan.to.completion_text() + if is_new { ", a new repository" } else { "" };
    let mut lines = report::backup(&root, &verdict, &meter.waits.long_waits(), &place);
    let before_last = lines.len() - 1;
    let damaged = report::base_damage(&damage);
    let held = plan.max_rate.map(report::held);
    lines.splice(
        before_last..before_last,
        held.into_iter()
            .chain(unlike.iter().map(report::anew))
            .chain(damaged.clone())
            .chain(report::warnings(&warnings)),
    );
    progress.lacks(&root, damaged);
    if is_new && output.quiet {
        say_new(&plan.to);
    }
    progress.end(&lines, || {
        let mut result = report::backup_json(&root, &verdict);
        result["new_repository"] = is_new.into();
        result["unlike"] = report::anew_json(unlike.as_ref());
        result["base_damage"] = damage.into();
        result["warnings"] = warnings.clone().into();
        result["waited"] = report::waited_json(&meter.waits.long_waits());
        result
    });
    if let Some(paper) = paper {
        lines.push(html_report::machine());
        let (title, lines) = (&format!("backup {}", root.id), &lines);
        paper.print(&HtmlPage {
            title,
            lines,
            verdict: &verdict,
            timeline: &meter.timeline(),
            names: report::SIDES,
        });
    }
    Ok(if root.totals.is_complete() {
        0
    } else {
        UNREADABLE
    })
}

/// Makes an empty repository.
fn init(args: InitArgs) -> Result<u8> {
    let (to, _) = SinkSpec::parse(&args.repository, None)?;
    let to = args.encrypt.apply(to, &args.repository, false, false)?;
    let Some(objects) = to.storage() else {
        let what = format!(
            "cannot make a repository of {:?}: that is no name of a directory",
            args.repository
        );
        return Err(Error::new(ErrorKind::Usage, what));
    };
    let is_new = writer::init(
        &**objects,
        &jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string(),
    )?;
    match (args.output.json, args.output.quiet, is_new) {
        (true, ..) => {
            return told(|out| {
                text::json(
                    out,
                    &serde_json::json!({"type": "result", "new_repository": is_new}),
                )
                .map(|()| 0)
            });
        }
        (_, _, true) => say_new(&to),
        (_, false, false) => aside(format_args!(
            "{} is a repository already; nothing was changed",
            to.name()
        )),
        (_, true, false) => {}
    }
    Ok(0)
}

/// Reports a new repository, with `--quiet` too: a disk that is not mounted looks like an empty directory.
fn say_new(to: &SinkSpec) {
    aside(format_args!("{} is a new repository", to.name()));
}

/// Counts the source beside the run, so that the remaining time can be estimated; not for a run that ends within a moment.
/// Without a thread there is no estimate. The thread ends with the process.
fn plan_deletions(plan: &Backup, meter: &Arc<Meter>) {
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
    let found = plan.count()?;
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

/// The cluster to back up, if the source is one.
fn cluster(args: &BackupArgs) -> Result<Option<ClusterRequest>> {
    let url = |path: &Path| path.to_str().filter(|text| is_url(text)).map(str::to_owned);
    let server = match (&args.connect, &args.scope.paths[..]) {
        (Some(settings), _) => ClusterServer::Running(params(settings)?),
        (None, [path]) => match url(path) {
            Some(_) if args.offline => {
                let what = "--offline wants the data directory of a cluster that is shut down, not the address of a server";
                return Err(Error::new(ErrorKind::Usage, what));
            }
            Some(url) => ClusterServer::Running(params(&url)?),
            None if args.offline => ClusterServer::Stopped(path.clone()),
            None if is_settings(path) => {
                // It may contain a password.
                let what = "cannot back up what looks like the settings of a connection";
                return Err(Error::new(ErrorKind::Usage, what)
                    .hint("give them to --connect, or say postgres://user@host/"));
            }
            None => return tree(args).map(|()| None),
        },
        (None, _) if args.offline => {
            return Err(Error::new(
                ErrorKind::Usage,
                "--offline takes exactly one PATH",
            ));
        }
        (None, _) => return tree(args).map(|()| None),
    };
    if is_picky(args) {
        let what = "cannot leave anything out of a cluster, or store it under other paths";
        return Err(
            Error::new(ErrorKind::Usage, what).hint("options such as --exclude are for trees")
        );
    }
    let fast = args.checkpoint != Some(CheckpointArg::Spread);
    Ok(Some(ClusterRequest {
        server,
        fast,
        wal: args.wal.unwrap_or(Wal::Included),
    }))
}

/// Refuses options that do not apply: PostgreSQL options without a cluster, options that exclude files with a stream.
fn tree(args: &BackupArgs) -> Result<()> {
    if args.wal.is_some() || args.checkpoint.is_some() {
        let what = "--wal and --checkpoint are for running clusters: postgres://… as the PATH, or --connect";
        return Err(Error::new(ErrorKind::Usage, what));
    }
    if args.stdin_name.is_some() && is_picky(args) {
        let what = "cannot leave anything out of standard input, or store it under other paths";
        return Err(
            Error::new(ErrorKind::Usage, what).hint("options such as --exclude are for trees")
        );
    }
    let warnings: Vec<String> = args
        .scope
        .paths
        .iter()
        .filter_map(|path| warning_of(path))
        .collect();
    report::warnings(&warnings).for_each(aside);
    let paths = &args.scope.paths;
    paths.iter().try_for_each(|path| not_running(path))
}

/// Is there an option that selects files?
fn is_picky(args: &BackupArgs) -> bool {
    let scope = &args.scope;
    let lists = [&scope.exclude, &scope.exclude_if_present];
    lists.iter().any(|list| !list.is_empty())
        || !scope.exclude_from.is_empty()
        || scope.files_from.is_some()
        || scope.exclude_caches
        || scope.one_file_system
        || scope.full_paths
}

fn params(text: &str) -> Result<Box<Params>> {
    let params = Params::new(text, &Environment::of_process())?;
    params
        .warnings
        .iter()
        .for_each(|warning| aside(format_args!("warning: {warning}")));
    Ok(Box::new(params))
}

/// Refuses the data directory of a running cluster as a path: its files would not be consistent.
fn not_running(path: &Path) -> Result<()> {
    if path.to_str().is_some_and(is_url) {
        return Err(Error::new(
            ErrorKind::Usage,
            "cannot back up a cluster beside other paths",
        )
        .hint("give it alone"));
    }
    if !stopped::is_data_directory(path) {
        return Ok(());
    }
    if stopped::is_running(path) {
        let what = format!(
            "cannot back up the cluster at {path:?}: it is running and no connection was given"
        );
        return Err(Error::new(ErrorKind::Usage, what)
            .hint("use postgres://… as the source, so that the server is told when the backup starts and ends"));
    }
    aside(format_args!(
        "warning: {path:?} is the data directory of a cluster, and is backed up like any other tree: --offline makes sure that it \
         was shut down, and takes its tablespaces too"
    ));
    Ok(())
}

/// Is it a connection string such as `host=… user=…`, and not an existing file?
fn is_settings(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let mut names = text
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .map(|(name, _)| name);
    !path.exists()
        && names.any(|name| {
            ["host", "hostaddr", "dbname", "user", "password", "service"].contains(&name)
        })
}

fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    ["postgres", "postgresql"]
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known))
}

fn plan(args: BackupArgs, to: SinkSpec, codec: Option<Codec>) -> Result<Backup> {
    if args.base.is_some() && !matches!(to, SinkSpec::Repository(_)) {
        return Err(Error::new(
            ErrorKind::Usage,
            "--base wants a repository: elsewhere every backup is full",
        ));
    }
    let cluster = cluster(&args)?;
    let files = Scope {
        looks_twice: matches!(args.compare, Compare::Mtime | Compare::Size),
        ..args.scope
    };
    let subject = match (cluster, args.stdin_name) {
        (Some(request), _) => Subject::Cluster(request),
        (None, Some(name)) => Subject::Stdin(name),
        (None, None) => Subject::Files(files),
    };
    let usual = if matches!(subject, Subject::Cluster(_)) {
        CLUSTER_FRAME_BYTES
    } else {
        FRAME_BYTES
    };
    let frame_bytes = args.frame_size.unwrap_or(usual);
    Ok(Backup {
        subject,
        to,
        no_create: args.no_create,
        codec: codec.unwrap_or(Codec::Zstd(1)),
        digest: args.digest,
        max_rate: args.max_rate,
        host: args.host,
        tags: args.tag.into_iter().collect(),
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

/// `wanted` bytes for buffers, or fewer if the limit of address space is lower; at least 8 frames.
fn memory(wanted: u64, frame_bytes: u32) -> u64 {
    platform::memory::within_limit(wanted, 8 * u64::from(frame_bytes))
}

/// Converts paths to the form of the archive.
fn selected(paths: Vec<std::path::PathBuf>) -> Vec<Vec<u8>> {
    paths
        .into_iter()
        .map(|path| path.into_os_string().into_vec())
        .collect()
}

fn restore(args: RestoreArgs) -> Result<u8> {
    if let Some(code) = far::restore(&args)? {
        return Ok(code);
    }
    let filter = args.select.filter(&args.from, true)?;
    let restore = Restore {
        from: args.from,
        filter,
        to: args.to.clone().unwrap_or_default(),
        paths: selected(args.paths),
        overwrite: args.overwrite,
        keep_going: args.keep_going,
        numeric_owner: args.numeric_owner,
        postgres: args.cluster.into(),
        workers: args.workers.unwrap_or_else(platform::cores),
        memory: memory(args.memory, FRAME_BYTES),
        say_elsewhere: care::elsewhere(args.output.json, args.output.quiet),
    };
    let say = |paths: &[Vec<u8>]| care::say_removed(paths, args.output.json, args.output.quiet);
    if args.plan {
        if args.delta.delete {
            Delta::new(&restore, true, &say).plan_deletions()?;
        }
        return look::plan(restore, args.to, args.output.json);
    }
    let paper = args
        .run
        .report
        .as_deref()
        .map(HtmlReport::open)
        .transpose()?;
    let meter = Arc::new(Meter::default());
    let progress = Progress::new(&args.output, false, report::ENDS);
    let summary = progress.watch(&meter, || match args.delta.delta {
        true => Delta::new(&restore, args.delta.delete, &say).run(&meter),
        false => restore.run(&meter),
    });
    progress.clear();
    let summary = summary?;
    let verdict = meter.verdict();
    let mut lines = report::restore(&summary, &meter, &verdict, &restore.to);
    progress.end(&lines, || report::restore_json(&summary, &meter, &verdict));
    if args.output.quiet || args.output.json {
        summary.next[..summary.needed]
            .iter()
            .for_each(|step| aside(format_args!("next: {step}")));
    }
    report::damage(&summary.damage).iter().for_each(aside);
    if let Some(paper) = paper {
        lines.push(html_report::machine());
        let (title, lines, timeline) = (
            &format!("restore of {}", summary.id),
            &lines,
            &meter.timeline(),
        );
        paper.print(&HtmlPage {
            title,
            lines,
            verdict: &verdict,
            timeline,
            names: report::ENDS,
        });
    }
    Ok(summary.exit_code())
}

fn list(args: ListArgs) -> Result<u8> {
    let filter = args.select.filter(&args.from, true)?;
    let list = List {
        from: args.from,
        filter,
        paths: selected(args.paths),
        json: args.json,
    };
    let code = printed(|out| list.run(out))?;
    // Not on standard output, where the list goes.
    if code == 0 && list.is_of_backups() && holds_none(&*repository_at(&list.from)?)? {
        aside(format_args!("{:?} holds no backup", list.from));
    }
    Ok(code)
}

fn show(args: ShowArgs) -> Result<u8> {
    let filter = args.select.filter(&args.from, true)?;
    let show = Show {
        from: args.from,
        filter,
        json: args.json,
    };
    printed(|out| show.run(out).map(|()| 0))
}

fn bench(args: BenchArgs) -> Result<u8> {
    let path = args.path.unwrap_or_else(|| ".".into());
    let workers = args.workers.unwrap_or_else(platform::cores);
    let bench = Bench {
        what: args.what,
        path,
        codec: args.compress,
        workers,
        bytes: args.size,
    };
    let figures = bench.run()?;
    printed(|out| {
        for Figure { name, rate, remark } in &figures {
            let rate = *rate as u64;
            match args.json {
                true => text::json(
                    out,
                    &serde_json::json!({"name": name, "bytes_per_second": rate, "remark": remark}),
                )?,
                false => text::line(
                    out,
                    &format!(
                        "{name:<20} {:>12}   {remark}",
                        crate::text::size::rate(rate, 1.0)
                    ),
                )?,
            }
        }
        Ok(0)
    })
}

fn completions(shell: clap_complete::Shell) -> Result<u8> {
    let mut script = Vec::new(); // the generator panics on an error of its writer
    clap_complete::generate(shell, &mut Cli::command(), "fullbore", &mut script);
    printed(|out| text::line(out, String::from_utf8_lossy(&script).trim_end()).map(|()| 0))
}

/// Prints the manual page, or writes the pages of all commands to a directory.
fn man(to: Option<&Path>) -> Result<u8> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let failed = |e| Error::io("could not write the manual", e);
    let Some(dir) = to else {
        return printed(|mut out| man::page(&command, &mut out).map(|()| 0).map_err(failed));
    };
    std::fs::create_dir_all(dir).map_err(failed)?;
    for command in std::iter::once(&command).chain(command.get_subcommands()) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let mut page = Vec::new();
        man::page(command, &mut page)
            .and_then(|()| std::fs::write(dir.join(format!("{name}.1")), page))
            .map_err(|e| Error::io(format!("could not write the manual to {dir:?}"), e))?;
    }
    Ok(0)
}
