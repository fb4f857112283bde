//! The arguments of `fullbore restore --instant`.

use crate::cli::values::interval;
use clap::{Args, ValueHint};
use fullbore_engine::instant::InstantOptions;
use fullbore_format::text::size;
use std::{path::PathBuf, time::Duration};

/// How a tree is served before all of it is there.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Instant restore")]
pub(in crate::cli) struct InstantArgs {
    /// Make all files usable at once, and fetch what is read first
    ///
    /// A reader of a file waits until the part that it reads is there. The rest follows in the background. It needs
    /// root, Linux 6.14 or later, and ext4, xfs or btrfs.
    #[arg(long, requires = "to", conflicts_with_all = ["dry_run", "plan", "keep_going"])]
    pub(in crate::cli) instant: bool,
    /// Start a server on the cluster, and wait until it accepts connections
    ///
    /// It runs as the owner of the data directory. If fullbore is killed, its readers wait until --resume.
    #[arg(long, requires = "instant")]
    start: bool,
    /// The directory of the server's programs
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "start", hide_short_help = true)]
    bindir: Option<PathBuf>,
    /// Return when everything is there
    #[arg(long, requires = "instant")]
    pub(super) wait: bool,
    /// Show how far an instant restore is
    #[arg(long, requires = "instant", conflicts_with_all = ["start", "wait", "resume"])]
    pub(super) status: bool,
    /// Go on after a restart of the machine, or after fullbore was killed
    ///
    /// Give the same arguments as for the restore.
    #[arg(long, requires = "instant")]
    pub(super) resume: bool,
    /// Time without progress after which a reader gets an error
    ///
    /// 0 waits for ever.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = interval, requires = "instant", hide_short_help = true)]
    patience: Duration,
    /// A program that reads by range (repeatable), or any
    ///
    /// Other programs get a file when all of it is there. A program that looks for holes, clones files or grows
    /// mappings would read zeros otherwise. The server that --start made reads by range.
    #[arg(long, value_name = "PROGRAM", value_hint = ValueHint::ExecutablePath, requires = "instant", hide_short_help = true)]
    by_range: Vec<PathBuf>,
    /// Bytes a second of content that nobody waits for
    ///
    /// What somebody reads comes at full speed.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "instant", hide_short_help = true)]
    rest_rate: Option<u64>,
}

impl InstantArgs {
    pub(super) fn options(&self) -> InstantOptions {
        InstantOptions {
            start: self.start,
            bindir: self.bindir.clone(),
            by_range: self.by_range.clone(),
            rest_rate: self.rest_rate,
            patience: Some(self.patience).filter(|patience| !patience.is_zero()),
        }
    }
}
