//! `fullbore prune`.

use crate::cli::{
    output::{terminal_columns, told_unless_within},
    values::days,
    verbs::prune_report::Prune,
};
use clap::{Args, ValueHint};
use fullbore_format::error::Result;
use fullbore_repository::wal::WalRetention;
use fullbore_storage::Storages;
use std::{ffi::OsString, time::Duration};

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
    #[command(flatten)]
    wal: WalKeepArgs,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
}

/// How long archived WAL is kept.
#[derive(Debug, Args, Clone)]
pub(in crate::cli) struct WalKeepArgs {
    /// Keep archived WAL for recovery to any time within this, such as 14d
    ///
    /// The default is the WAL since the oldest backup.
    #[arg(long, value_name = "TIME", value_parser = days)]
    keep_wal: Option<Duration>,
    /// Delete archived WAL so long after a prune found it unneeded
    #[arg(long, value_name = "TIME", value_parser = days, default_value = "24h", hide_short_help = true)]
    wal_grace: Duration,
}

impl WalKeepArgs {
    pub(in crate::cli) fn retention(&self) -> WalRetention {
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        WalRetention {
            keep_seconds: self.keep_wal.map(seconds),
            grace_seconds: seconds(self.wal_grace),
        }
    }
}

pub(in crate::cli) fn run(args: PruneArgs, storages: &Storages) -> Result<u8> {
    let prune = Prune {
        storages: storages.clone(),
        repository: args.repository,
        dry_run: args.dry_run,
        json: args.json,
        wal: args.wal.retention(),
    };
    let columns = terminal_columns().filter(|_| !args.json);
    let is_quiet = args.quiet && !args.json;
    told_unless_within(is_quiet, columns, |out| prune.run(out).map(|()| 0))
}
