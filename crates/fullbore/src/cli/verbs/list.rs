//! `fullbore list`.

use crate::cli::{
    options::selected,
    output::{printed_within, terminal_columns},
    select::SelectArgs,
    verbs::{
        list_due::ListDue,
        listing::{EntryForm, List},
    },
};
use clap::Args;
use fullbore_format::error::Result;
use fullbore_storage::Storages;
use std::{ffi::OsString, path::PathBuf};

/// `fullbore list`.
#[derive(Debug, Args)]
#[command(
    after_help = "The oldest backup comes first. WHEN is the begin of a backup in local time, while ids are in UTC. SIZE is the size of its content. ADDED is the part \
                  that earlier backups did not have. Each backup can be restored completely.\n\
                  EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 damage was found"
)]
pub(in crate::cli) struct ListArgs {
    /// A repository, archive, tar or -, with @ID, @latest, @2026-11-25 or @2d
    ///
    /// Without @BACKUP, the backups of a repository are listed. @BACKUP lists the entries of one:
    /// an id, latest, latest~1, 2026-11-25 or 2d. Of an archive, any tar or - (standard input) the
    /// entries are listed.
    #[arg(value_name = "REPO[@BACKUP]")]
    from: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// List only these paths, and the direct entries of directories
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print all facts: begin and end of backups, PostgreSQL, options
    #[arg(long, short)]
    long: bool,
    /// List everything below the directories given as PATH
    #[arg(long, short = 'R')]
    recursive: bool,
    /// Indent the names of entries below their directory
    #[arg(long, conflicts_with = "json")]
    tree: bool,
    /// Round the sizes of entries, such as 1.23 MB
    #[arg(long, short = 'H')]
    human_readable: bool,
    /// List the sources that have no backup of today, by their levels
    ///
    /// Sources without levels do not count. -l lists those with a backup of today, too. The level of the
    /// next backup is the one of `backup --level hanoi`.
    #[arg(long, conflicts_with_all = ["paths", "tree", "recursive"], hide_short_help = true)]
    due: bool,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
    #[arg(from_global)]
    verbose: bool,
}

pub(in crate::cli) fn run(args: ListArgs, storages: &Storages) -> Result<u8> {
    let filter = args.select.filter(&args.from, true)?;
    let is_long = args.long || args.verbose;
    // Whole with -l, in a pipe and as JSON.
    let columns = terminal_columns().filter(|_| !is_long && !args.json);
    if args.due {
        let list = ListDue {
            storages,
            from: &args.from,
            filter: &filter,
            all: is_long,
            json: args.json,
        };
        return printed_within(terminal_columns().filter(|_| !args.json), |out| {
            list.run(out)
        });
    }
    let list = List {
        storages: storages.clone(),
        from: args.from,
        filter,
        paths: selected(args.paths),
        recursive: args.recursive || args.tree,
        form: if args.tree {
            EntryForm::Tree
        } else {
            EntryForm::Lines
        },
        human: args.human_readable,
        long: is_long,
        quiet: args.quiet,
        columns,
        json: args.json,
    };
    printed_within(columns, |out| list.run(out))
}
