//! `fullbore show`.

use crate::{
    cli::{options::EXIT_CODES, output::printed, select::SelectArgs},
    command::show::Show,
};
use clap::Args;
use fullbore_format::error::Result;
use fullbore_storage::Storages;
use std::ffi::OsString;

/// `fullbore show`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::cli) struct ShowArgs {
    /// A repository, archive or -, with @ID, @latest, @2026-11-25 or @2d
    ///
    /// Standard input is read for -. @BACKUP chooses one backup of a repository: an id, latest, latest~1,
    /// 2026-11-25 or 2d.
    #[arg(value_name = "REPO[@BACKUP]")]
    from: OsString,
    #[command(flatten)]
    select: SelectArgs,
    #[arg(from_global)]
    json: bool,
}

pub(in crate::cli) fn run(args: ShowArgs, storages: &Storages) -> Result<u8> {
    let filter = args.select.filter(&args.from, true)?;
    let show = Show {
        storages: storages.clone(),
        from: args.from,
        filter,
        json: args.json,
    };
    printed(|out| show.run(out).map(|()| 0))
}
