//! `fullbore stats`.

use crate::{
    cli::{options::EXIT_CODES, output::printed},
    command::stats::Stats,
};
use clap::{Args, ValueHint};
use fullbore_format::error::Result;
use fullbore_storage::Storages;
use std::ffi::OsString;

/// `fullbore stats`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::cli) struct StatsArgs {
    /// The repository
    #[arg(value_name = "REPO", value_hint = ValueHint::DirPath)]
    repository: OsString,
    #[arg(from_global)]
    json: bool,
}

pub(in crate::cli) fn run(args: StatsArgs, storages: &Storages) -> Result<u8> {
    let stats = Stats {
        storages: storages.clone(),
        repository: args.repository,
        json: args.json,
    };
    printed(|out| stats.run(out))
}
