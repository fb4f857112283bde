//! `fullbore prune`.

use crate::{cli::output::told_unless, command::prune::Prune};
use clap::{Args, ValueHint};
use fullbore_format::error::Result;
use std::ffi::OsString;

/// `fullbore prune`.
#[derive(Debug, Args)]
#[command(
    after_help = "Backups and other prunes may run at the same time. If a prune is interrupted, the next one continues it.\n\
                  EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 a root is damaged or lost (nothing was freed)"
)]
pub(in crate::cli) struct PruneArgs {
    /// The repository
    #[arg(value_name = "REPO", value_hint = ValueHint::DirPath)]
    repository: OsString,
    /// Only print what would be freed
    #[arg(long, short = 'n')]
    dry_run: bool,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
}

pub(in crate::cli) fn run(args: PruneArgs) -> Result<u8> {
    let prune = Prune {
        repository: args.repository,
        dry_run: args.dry_run,
        json: args.json,
    };
    told_unless(args.quiet && !args.json, |out| prune.run(out).map(|()| 0))
}
