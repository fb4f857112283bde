//! The arguments of `fullbore restore`, and the restore that they ask for.

use super::{instant_args::InstantArgs, restore_cluster::ClusterArgs};
use crate::cli::{
    options::{
        DESTINATION, FRAME_BYTES, OutputArgs, PERFORMANCE, RunArgs, SOURCE, memory, rare, selected,
    },
    output::{aside, printed, told},
    select::SelectArgs,
    storage::fetch_words,
    values::{any_bytes, target, threads},
};
use clap::{
    Args, ValueHint,
    builder::{PathBufValueParser, TypedValueParser},
};
use fullbore_engine::restore::{EntryPatterns, ExtraDeletion, Restore, RestoreInto};
use fullbore_format::{
    entry::EntryPath,
    error::{Error, ErrorKind, Result, quoted},
    root::EntryName,
    text::{self, arguments::pattern, size},
};
use fullbore_platform as platform;
use fullbore_storage::Storages;
use fullbore_tree::write::{deletion_limit::DeletionLimit, layout::TargetMount};
use serde_json::json;
use std::{ffi::OsString, num::NonZeroUsize, os::unix::ffi::OsStrExt, path::PathBuf};

/// `fullbore restore`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 3 done but the backup could not capture everything, 4 damage was found"
)]
#[command(mut_args(rare(&["target_lsn", "target_name", "target_xid", "target_immediate"])))]
pub(in crate::cli) struct RestoreArgs {
    /// A repository, archive, tar or -, with @ID, @latest, @2026-11-25 or @2d
    ///
    /// A tar of any program is restored, also from - (standard input). @BACKUP chooses one backup
    /// of a repository: an id, latest, latest~1, 2026-11-25 or 2d.
    #[arg(value_name = "REPO[@BACKUP]")]
    pub(in crate::cli) from: OsString,
    #[command(flatten)]
    pub(super) select: SelectArgs,
    /// The directory to restore into
    ///
    /// It must be absent or empty, unless --overwrite, --delta or --mirror is given.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, value_parser = PathBufValueParser::new().try_map(target), required_unless_present_any = ["plan", "interactive"], help_heading = DESTINATION)]
    pub(in crate::cli) to: Option<PathBuf>,
    /// Restore only these paths, and everything below them
    #[arg(value_name = "PATH")]
    pub(super) paths: Vec<PathBuf>,
    /// Restore only entries that match this pattern, as in .gitignore
    ///
    /// Everything below a matching directory is restored too. Can be repeated.
    #[arg(long, value_name = "GLOB", value_parser = any_bytes(pattern))]
    pub(super) include: Vec<OsString>,
    /// Exclude entries that match this pattern, as in .gitignore
    ///
    /// Everything below a matching directory is excluded too. An exclude wins over --include. Can
    /// be repeated.
    #[arg(long, short = 'e', value_name = "GLOB", value_parser = any_bytes(pattern), help_heading = SOURCE)]
    pub(super) exclude: Vec<OsString>,
    /// Only list what would be created (+), changed (~) and deleted (-)
    ///
    /// Nothing is written. Entries are compared by kind, size, time, mode, owner (for root),
    /// attributes and the targets of links. Content is not read.
    #[arg(long, short = 'n', conflicts_with = "plan", requires = "to")]
    pub(in crate::cli) dry_run: bool,
    /// Look at the backup, mark entries and restore them, by commands
    ///
    /// `help` lists the commands: ls, cd, add, delete, find, extract and others. They are typed, or read from a
    /// pipe, where the first error ends the session.
    #[arg(long, short = 'i', conflicts_with_all = ["plan", "dry_run", "include", "exclude"])]
    pub(in crate::cli) interactive: bool,
    /// Only print the cost: bytes to fetch, segments to open, time
    ///
    /// The plan assumes an empty target. Nothing is written.
    #[arg(long, hide_short_help = true)]
    pub(in crate::cli) plan: bool,
    /// Restore into a directory that is not empty, and replace files
    ///
    /// Newer files are replaced only with --overwrite=all. A file is newer if its modification time
    /// is later than in the backup. The restore prints how many newer files it kept.
    ///
    /// After an interrupted restore, use --overwrite=all: a file that is written in part is newer.
    /// For a cluster and for a stream, all files are replaced.
    #[arg(long, value_name = "all", num_args = 0..=1, require_equals = true, default_missing_value = "older", value_parser = overwrite, help_heading = DESTINATION)]
    pub(super) overwrite: Option<RestoreInto>,
    #[command(flatten)]
    pub(super) delta: DeltaArgs,
    /// Restore what is not damaged, and list the rest
    #[arg(long)]
    pub(super) keep_going: bool,
    /// Set owners by number, even where their names are known
    #[arg(long, help_heading = DESTINATION, hide_short_help = true)]
    pub(super) numeric_owner: bool,
    /// Threads that compute [default: one for each processor]
    ///
    /// The default is the number of processors that this process may use.
    #[arg(long, short = 'j', value_name = "N", value_parser = threads, help_heading = PERFORMANCE, hide_short_help = true)]
    pub(super) workers: Option<NonZeroUsize>,
    /// Size of all buffers together
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse, help_heading = PERFORMANCE, hide_short_help = true)]
    pub(super) memory: u64,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(in crate::cli) run: RunArgs,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
    #[command(flatten)]
    pub(super) instant: InstantArgs,
}

/// Reads the value of --overwrite.
fn overwrite(word: &str) -> Result<RestoreInto, String> {
    match word {
        "older" => Ok(RestoreInto::Overwrite { newer: false }),
        "all" => Ok(RestoreInto::Overwrite { newer: true }),
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
    #[arg(long, requires = "to", conflicts_with = "overwrite", help_heading = DESTINATION, hide_short_help = true)]
    delta: bool,
    /// Delete files that are not in the backup
    ///
    /// Below PATHs, if any are given. Files that the backup excluded are kept. The files to delete
    /// are listed first, by --plan too. The repository itself and mount points that are not in the
    /// backup are never deleted.
    #[arg(long, requires = "delta", conflicts_with = "overwrite", help_heading = DESTINATION, hide_short_help = true)]
    pub(in crate::cli) delete: bool,
    /// Make the target equal to the backup, as --delta --delete do
    #[arg(long, requires = "to", conflicts_with_all = ["overwrite", "delta"])]
    mirror: bool,
    /// Delete at most N files and directories [default: half of them]
    ///
    /// If there are more to delete, the restore ends before its first change.
    #[arg(long, value_name = "N", hide_short_help = true)]
    max_delete: Option<u64>,
    /// Also delete files that the backup excluded
    #[arg(long, hide_short_help = true)]
    delete_excluded: bool,
}

impl DeltaArgs {
    pub(super) fn is_delta(&self) -> bool {
        self.delta || self.mirror
    }

    pub(super) fn deletion(&self) -> Option<ExtraDeletion> {
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
    pub(super) fn check(&self) -> Result<()> {
        let given = [
            (self.max_delete.is_some(), "--max-delete"),
            (self.delete_excluded, "--delete-excluded"),
        ];
        let given = given.into_iter().find(|(is_given, _)| *is_given);
        match (self.deletion(), given) {
            (None, Some((_, option))) => {
                let message = format!("cannot use {option}: nothing is deleted");
                Err(Error::new(ErrorKind::Usage, message).hint("add --mirror, or --delta --delete"))
            }
            _ => Ok(()),
        }
    }
}

impl RestoreArgs {
    fn into(&self) -> RestoreInto {
        match self.delta.is_delta() {
            true => RestoreInto::Delta {
                delete: self.delta.deletion(),
            },
            false => self.overwrite.unwrap_or_default(),
        }
    }
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
            chosen: None,
        },
        into: args.into(),
        keep_going: args.keep_going,
        numeric_owner: args.numeric_owner,
        postgres: args.cluster.clone().options(),
        workers: args.workers.unwrap_or_else(platform::cores),
        memory: memory(args.memory, FRAME_BYTES),
        fetch_words: fetch_words(),
        say_elsewhere: elsewhere(args.output.json, args.output.quiet),
        say_removed: removed(args.output.json, args.output.quiet),
    })
}

/// What says of each place outside of the target that it will be written to.
fn elsewhere(json: bool, quiet: bool) -> fn(&[TargetMount]) {
    match (json, quiet) {
        (true, _) => |mounts| {
            let _ = told(|out| {
                mounts
                    .iter()
                    .try_for_each(|mount| text::line(out, &mount_line(mount)))
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

fn mount_line(mount: &TargetMount) -> String {
    let directory = EntryName(mount.directory.as_os_str().as_bytes().to_vec());
    json!({"type": "elsewhere", "path": EntryName(mount.at.clone()), "directory": directory})
        .to_string()
}

/// Returns what says which files are removed, before the first one is. A reader that has gone has
/// read enough.
fn removed(json: bool, quiet: bool) -> fn(&[EntryPath]) -> Result<()> {
    match (json, quiet) {
        (true, _) => |paths| {
            say_lines(paths, |path| {
                json!({"type": "change", "change": "removed", "path": EntryName(path.clone())})
                    .to_string()
            })
        },
        (false, false) => |paths| say_lines(paths, |path| format!("delete: {}", quoted(path))),
        (false, true) => |_| Ok(()),
    }
}

/// Prints a line for each path.
///
/// # Errors
/// Of standard output: a file that was not named is not removed.
fn say_lines(paths: &[EntryPath], line: fn(&EntryPath) -> String) -> Result<()> {
    printed(|out| {
        let mut lines = paths.iter().map(line);
        lines
            .try_for_each(|line| text::line(out, &line))
            .map(|()| 0)
    })
    .map(drop)
}
