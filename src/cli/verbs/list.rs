//! `fullbore list`.

use crate::{
    cli::{
        options::selected,
        output::{aside, printed},
        select::SelectArgs,
    },
    command::list::List,
    error::Result,
    repo::open::{holds_none, repository_at},
};
use clap::Args;
use std::{ffi::OsString, path::PathBuf};

/// `fullbore list`.
#[derive(Debug, Args)]
#[command(
    after_help = "Of a backup: its id, when it began, what it is of, and the bytes of that; \"stored\" is what a full one takes here, \
                  \"added\" what another one stored beyond those before it. Each is complete by itself.\n\
                  EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 damage was found"
)]
pub(in crate::cli) struct ListArgs {
    /// A repository, an archive, any tar or - (standard input); @ID, @PREFIX or @latest chooses a backup, whose entries are listed
    #[arg(value_name = "FROM[@BACKUP]")]
    from: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// Only these, and what is below them
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn run(args: ListArgs) -> Result<u8> {
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
