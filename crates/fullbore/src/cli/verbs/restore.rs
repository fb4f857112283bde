//! `fullbore restore`.

use super::{far, restore_cluster::ClusterArgs, restore_plan, restore_preview, restore_report};
use crate::cli::values::any_bytes;
use crate::cli::{
    html_report::{self, HtmlPage, HtmlReport},
    limit::{RunEnds, RunLimit},
    options::{FRAME_BYTES, OutputArgs, RunArgs, memory, selected},
    output::{aside, printed, told},
    progress::Progress,
    report,
    select::SelectArgs,
    storage,
    values::{target, threads},
};
use clap::{
    Args, ValueHint,
    builder::{PathBufValueParser, TypedValueParser},
};
use fullbore_engine::restore::{
    EntryPatterns, Overwrite, Restore,
    delta::{Delta, ExtraDeletion},
};
use fullbore_format::{
    entry::EntryPath,
    error::{Error, ErrorKind, Result, quoted},
    root::EntryName,
    text::{self, arguments::pattern, size},
};
use fullbore_platform as platform;
use fullbore_platform::metrics::{hardware::RunKind, meter::Meter};
use fullbore_storage::Storages;
use fullbore_tree::write::{deletion_limit::DeletionLimit, layout::TargetMount};
use serde_json::json;
use std::{
    env, ffi::OsString, num::NonZeroUsize, os::unix::ffi::OsStrExt, path::PathBuf, sync::Arc,
};

/// `fullbore restore`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 3 done but the backup could not capture everything, 4 damage was found"
)]
pub(in crate::cli) struct RestoreArgs {
    /// A repository, archive, tar or -, with @ID, @latest, @2026-11-25 or @2d
    ///
    /// A tar of any program is restored, also from - (standard input). @BACKUP chooses one backup
    /// of a repository: an id, latest, latest~1, 2026-11-25 or 2d.
    #[arg(value_name = "REPO[@BACKUP]")]
    pub(in crate::cli) from: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// The directory to restore into
    ///
    /// It must be absent or empty, unless --overwrite, --delta or --mirror is given.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, value_parser = PathBufValueParser::new().try_map(target), required_unless_present = "plan")]
    pub(in crate::cli) to: Option<PathBuf>,
    /// Restore only these paths, and everything below them
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Restore only entries that match this pattern, as in .gitignore
    ///
    /// Everything below a matching directory is restored too. Can be repeated.
    #[arg(long, value_name = "GLOB", value_parser = any_bytes(pattern))]
    include: Vec<OsString>,
    /// Exclude entries that match this pattern, as in .gitignore
    ///
    /// Everything below a matching directory is excluded too. An exclude wins over --include. Can
    /// be repeated.
    #[arg(long, short = 'e', value_name = "GLOB", value_parser = any_bytes(pattern))]
    exclude: Vec<OsString>,
    /// Only list what would be created (+), changed (~) and deleted (-)
    ///
    /// Nothing is written. Entries are compared by kind, size, time, mode, owner (for root),
    /// attributes and the targets of links. Content is not read.
    #[arg(long, short = 'n', conflicts_with = "plan", requires = "to")]
    pub(in crate::cli) dry_run: bool,
    /// Only print the cost: bytes to fetch, segments to open, time
    ///
    /// The plan assumes an empty target. Nothing is written.
    #[arg(long)]
    pub(in crate::cli) plan: bool,
    /// Restore into a directory that is not empty, and replace files
    ///
    /// Newer files are replaced only with --overwrite=all. A file is newer if its modification time
    /// is later than in the backup. The restore prints how many newer files it kept.
    ///
    /// After an interrupted restore, use --overwrite=all: a file that is written in part is newer.
    /// For a cluster and for a stream, all files are replaced.
    #[arg(long, value_name = "all", num_args = 0..=1, require_equals = true, default_missing_value = "older", value_parser = overwrite)]
    pub(super) overwrite: Option<Overwrite>,
    #[command(flatten)]
    pub(super) delta: DeltaArgs,
    /// Restore what is not damaged, and list the rest
    #[arg(long)]
    keep_going: bool,
    /// Set owners by number, even where their names are known
    #[arg(long)]
    numeric_owner: bool,
    /// Threads that compute [default: one for each processor]
    ///
    /// The default is the number of processors that this process may use.
    #[arg(long, short = 'j', value_name = "N", value_parser = threads)]
    workers: Option<NonZeroUsize>,
    /// Size of all buffers together
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse)]
    memory: u64,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    pub(in crate::cli) run: RunArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Reads the value of --overwrite.
fn overwrite(word: &str) -> Result<Overwrite, String> {
    match word {
        "older" => Ok(Overwrite::Older),
        "all" => Ok(Overwrite::All),
        _ => Err("it is \"older\" or \"all\"".to_owned()),
    }
}

/// How to restore into a tree that is there.
#[derive(Debug, Args)]
pub(in crate::cli) struct DeltaArgs {
    /// Compare with existing files, and write only what differs
    ///
    /// Files are changed in place. If the restore is interrupted, a file may be part old and part
    /// new.
    #[arg(long, requires = "to", conflicts_with = "overwrite")]
    delta: bool,
    /// Delete files that are not in the backup
    ///
    /// Below PATHs, if any are given. Files that the backup excluded are kept. The files to delete
    /// are listed first, by --plan too. The repository itself and mount points that are not in the
    /// backup are never deleted.
    #[arg(long, requires = "delta", conflicts_with = "overwrite")]
    pub(in crate::cli) delete: bool,
    /// Make the target equal to the backup, as --delta --delete do
    #[arg(long, requires = "to", conflicts_with_all = ["overwrite", "delta"])]
    mirror: bool,
    /// Delete at most N files and directories [default: half of them]
    ///
    /// If there are more to delete, the restore ends before its first change.
    #[arg(long, value_name = "N")]
    max_delete: Option<u64>,
    /// Also delete files that the backup excluded
    #[arg(long)]
    delete_excluded: bool,
}

impl DeltaArgs {
    pub(super) fn is_delta(&self) -> bool {
        self.delta || self.mirror
    }

    fn deletion(&self) -> Option<ExtraDeletion> {
        let deletion = ExtraDeletion {
            excluded: self.delete_excluded,
            limit: DeletionLimit {
                max: self.max_delete,
                allow_empty: false,
            },
        };
        (self.delete || self.mirror).then_some(deletion)
    }

    /// Refuses options of a deletion without one.
    fn check(&self) -> Result<()> {
        let given = [
            (self.max_delete.is_some(), "--max-delete"),
            (self.delete_excluded, "--delete-excluded"),
        ];
        let given = given.into_iter().find(|(is_given, _)| *is_given);
        match (self.deletion(), given) {
            (None, Some((_, option))) => {
                let what = format!("cannot use {option}: nothing is deleted");
                Err(Error::new(ErrorKind::Usage, what).hint("add --mirror, or --delta --delete"))
            }
            _ => Ok(()),
        }
    }
}

pub(in crate::cli) fn run(args: RestoreArgs, storages: &Storages) -> Result<u8> {
    if let Some(code) = far::restore(&args, storages)? {
        return Ok(code);
    }
    args.delta.check()?;
    let ends = RunEnds::of(storages, Some(&args.from), None);
    let restore = plan(&args, storages)?;
    let say = |paths: &[Vec<u8>]| say_removed(paths, args.output.json, args.output.quiet);
    if args.dry_run {
        let deletion = args.delta.deletion();
        let is_allowed = args.overwrite.is_some() || args.delta.is_delta();
        return restore_preview::run(&restore, deletion, is_allowed, &args.output);
    }
    if args.plan {
        let deletion = args.delta.deletion();
        if deletion.is_some() {
            let refusal = Delta::new(&restore, deletion, &say).plan_deletions()?;
            refusal.into_iter().for_each(|error| say_refusal(&error));
        }
        return restore_plan::run(restore, args.to, args.output.json);
    }
    let paper = args
        .run
        .report
        .as_deref()
        .map(HtmlReport::open)
        .transpose()?;
    let meter = Arc::new(Meter::default());
    let progress = Progress::new(storages, &args.output, false, report::ENDS);
    let summary = progress.watch(&meter, || match args.delta.is_delta() {
        true => Delta::new(&restore, args.delta.deletion(), &say).run(&meter),
        false => restore.run(&meter),
    });
    progress.clear();
    let summary = summary?;
    let verdict = meter.verdict();
    let limit = RunLimit::judge(
        &meter,
        &verdict,
        RunKind::Restore,
        &ends,
        restore.workers,
        None,
    );
    let is_verbose = args.output.verbose;
    let mut lines = restore_report::lines(&summary, &meter, &limit, is_verbose, &restore.to);
    progress.end(&lines, || restore_report::json(&summary, &meter, &limit));
    if args.output.quiet || args.output.json {
        summary.next[..summary.needed]
            .iter()
            .for_each(|step| aside(format_args!("next: {step}")));
    }
    report::damage(&summary.damage, is_verbose)
        .iter()
        .for_each(aside);
    if let Some(paper) = paper {
        lines.extend(limit.line(false).is_none().then(|| limit.text()));
        lines.push(html_report::machine());
        paper.print(&HtmlPage {
            title: &format!("restore of {}", summary.id),
            facts: html_report::facts(&summary.source, summary.exit_code()),
            lines: &lines,
            limit: &limit,
            timeline: &meter.timeline(),
        });
    }
    Ok(summary.exit_code())
}

/// The restore that the arguments ask for.
///
/// # Errors
/// As [`SelectArgs::filter`](crate::cli::select::SelectArgs::filter).
pub(super) fn plan(args: &RestoreArgs, storages: &Storages) -> Result<Restore> {
    Ok(Restore {
        storages: storages.clone(),
        from: args.from.clone(),
        filter: args.select.clone().filter(&args.from, true)?,
        to: args.to.clone().unwrap_or_default(),
        paths: selected(args.paths.clone()),
        patterns: EntryPatterns {
            include: args.include.clone(),
            exclude: args.exclude.clone(),
        },
        overwrite: args.overwrite.unwrap_or_default(),
        keep_going: args.keep_going,
        numeric_owner: args.numeric_owner,
        postgres: args.cluster.clone().options(),
        workers: args.workers.unwrap_or_else(platform::cores),
        memory: memory(args.memory, FRAME_BYTES),
        fetch_words: fetch_words(),
        say_elsewhere: elsewhere(args.output.json, args.output.quiet),
    })
}

/// Returns the program and the options with which a server reaches the repository later: of the user that restores.
pub(in crate::cli) fn fetch_words() -> Vec<OsString> {
    let program = env::current_exe().unwrap_or_else(|_| "fullbore".into());
    let mut words = vec![program.into_os_string()];
    words.extend(storage::words_of_process());
    words
}

/// Says that a restore would be refused.
pub(super) fn say_refusal(error: &Error) {
    aside(format_args!(
        "note: the restore itself would fail: {}",
        error.line()
    ));
}

/// Say what will be removed. A reader that has gone has read enough.
///
/// # Errors
/// Of standard output: what is not told is not removed.
fn say_removed(paths: &[EntryPath], json: bool, quiet: bool) -> Result<()> {
    printed(|out| {
        for path in paths.iter().filter(|_| !quiet || json) {
            let line = match json {
                true => json!({"type": "delete", "path": EntryName(path.clone())}).to_string(),
                false => format!("delete: {}", quoted(path)),
            };
            text::line(out, &line)?;
        }
        Ok(0)
    })
    .map(drop)
}

/// What says of each place outside of the target that it will be written to.
fn elsewhere(json: bool, quiet: bool) -> fn(&[TargetMount]) {
    match (json, quiet) {
        (true, _) => |mounts| {
            let line = |mount: &TargetMount| {
                let directory = EntryName(mount.directory.as_os_str().as_bytes().to_vec());
                json!({"type": "elsewhere", "path": EntryName(mount.at.clone()), "directory": directory})
                    .to_string()
            };
            let _ = told(|out| {
                mounts
                    .iter()
                    .try_for_each(|mount| text::line(out, &line(mount)))
                    .map(|()| 0)
            });
        },
        (false, false) => |mounts| {
            mounts.iter().for_each(|mount| {
                aside(format_args!(
                    "elsewhere: {} goes to {:?}",
                    quoted(&mount.at),
                    mount.directory
                ));
            });
        },
        (false, true) => |_| (),
    }
}
