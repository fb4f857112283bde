//! `fullbore pin` and `fullbore unpin`.

use crate::{
    cli::{options::EXIT_CODES, output::told, select::no_filter},
    command::tag::Pin,
};
use clap::Args;
use fullbore_format::error::Result;
use fullbore_storage::Storages;
use std::ffi::OsString;

/// `fullbore pin` and `fullbore unpin`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::cli) struct PinArgs {
    /// A repository, with @BACKUP for one of its backups
    ///
    /// BACKUP is an id, latest, or a day on which exactly one backup began.
    #[arg(value_name = "REPO[@BACKUP]")]
    from: OsString,
    #[arg(from_global)]
    json: bool,
}

pub(in crate::cli) fn run(args: PinArgs, storages: &Storages, pinned: bool) -> Result<u8> {
    let filter = no_filter(&args.from, true);
    let pin = Pin {
        storages: storages.clone(),
        from: args.from,
        filter,
        pinned,
        json: args.json,
    };
    told(|out| pin.run(out).map(|()| 0))
}
