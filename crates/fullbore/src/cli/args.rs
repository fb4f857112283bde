//! The commands, as clap sees them.

use super::{
    options::{GlobalArgs, PLAIN_EXIT_CODES},
    profile::ProfileArgs,
    storage::StorageArgs,
    verbs::{
        backup::BackupArgs, bench::BenchArgs, cat::CatArgs, config::ConfigArgs, copy::CopyTreeArgs,
        diff::DiffArgs, drill::DrillArgs, export::ExportArgs, find::FindArgs, forget::ForgetArgs,
        init::InitArgs, key::KeyArgs, list::ListArgs, pin::PinArgs, prune::PruneArgs,
        repair::RepairArgs, restore::RestoreArgs, run::RunProfileArgs, serve::ServeArgs,
        show::ShowArgs, stats::StatsArgs, systemd::SystemdArgs, tag::TagArgs, verify::VerifyArgs,
        wal::WalArgs,
    },
};
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Back up and restore PostgreSQL clusters and file trees, as fast as the slowest piece of hardware permits, in standard streams.
///
/// A full backup is tar in independent zstd frames: `zstd -dc FILE… | tar -xi` restores it without this program.
#[derive(Debug, Parser)]
#[command(
    name = "fullbore",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 3 done but not all could be captured, 4 damage was found; \
                  the help of each command says what they mean there"
)]
pub(super) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(super) command: Command,
    #[command(flatten)]
    pub(super) global: GlobalArgs,
    #[command(flatten)]
    pub(super) profile: ProfileArgs,
    #[command(flatten)]
    pub(super) storage: StorageArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Back up files and directories, a PostgreSQL cluster, or standard input
    Backup(BackupArgs),
    /// Make an empty repository, unless it is there
    Init(InitArgs),
    /// Restore a backup or parts of it
    Restore(RestoreArgs),
    /// List the backups of a repository, or the entries of one
    List(ListArgs),
    /// Show what a backup is: source, statistics, segments, what was not captured
    Show(ShowArgs),
    /// Print how many backups a repository holds, and what they take
    Stats(StatsArgs),
    /// Write a file of a backup to standard output; a directory as a tar
    Cat(CatArgs),
    /// Check backups: their structure, every byte, or one against a tree on disk
    Verify(VerifyArgs),
    /// Restore a cluster into a scratch directory, start a server there, run a query, and remove it
    ///
    /// The result is stored in the repository. The server listens on a socket of its own only, and archives nothing.
    Drill(Box<DrillArgs>),
    /// Write a stored backup as a full one, in one file or in another repository
    Export(ExportArgs),
    /// Print how two backups differ
    Diff(DiffArgs),
    /// Print which backups hold a path, and when it changed
    Find(FindArgs),
    /// Copy a directory to a directory, also from or to another host, or a backup to another repository
    ///
    /// The content of SRC becomes the content of DST, which is made if it is missing, with all metadata. Only differences cross.
    Copy(Box<CopyTreeArgs>),
    /// Forget backups, by rules of what to keep or by name
    Forget(ForgetArgs),
    /// Free what only forgotten and interrupted backups need
    Prune(PruneArgs),
    /// Set, take away or print the tags of a backup
    Tag(TagArgs),
    /// Never forget a backup, whatever the rules say
    Pin(PinArgs),
    /// Let a pinned backup be forgotten again
    Unpin(PinArgs),
    /// List or change the keys of an encrypted repository
    Key(KeyArgs),
    /// Rebuild lost roots and manifests, and drop data that cannot be restored. Without --yes it lists the steps, or asks on a terminal
    ///
    /// Manifests are rebuilt from the copies of their pages in the segments;
    /// roots from labels, seek tables and pages. Segments are never changed.
    Repair(RepairArgs),
    /// Offer repositories of this host to another one; ssh:// locations start it there
    #[command(after_help = PLAIN_EXIT_CODES)]
    Serve(ServeArgs),
    /// Back up, forget, prune and verify a share, as a profile says
    Run(RunProfileArgs),
    /// Archive the WAL of a PostgreSQL server, and fetch it for a recovery
    Wal(WalArgs),
    /// Check profiles, and print the commands that they stand for
    Config(ConfigArgs),
    /// Print systemd units that run a profile every night
    Systemd(SystemdArgs),
    /// Measure this machine, and what the pipeline reaches of it
    Bench(BenchArgs),
    /// Print the completions of a shell
    #[command(after_help = PLAIN_EXIT_CODES)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(after_help = PLAIN_EXIT_CODES)]
    Man {
        /// Write the pages of all commands into this directory instead
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_takes_the_global_options() {
        let mut cli = Cli::command().disable_help_subcommand(true);
        cli.build();
        for command in cli.get_subcommands() {
            let options: Vec<_> = command
                .get_arguments()
                .filter_map(clap::Arg::get_long)
                .collect();
            for name in [
                "json",
                "quiet",
                "verbose",
                "color",
                "repository",
                "no-tricks",
            ] {
                assert!(options.contains(&name), "{} --{name}", command.get_name());
            }
        }
    }
}
