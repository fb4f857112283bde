//! The commands, as clap sees them.

use super::{
    command_line, help,
    options::{GlobalArgs, PLAIN_EXIT_CODES},
    profile::ProfileArgs,
    storage::{CacheUse, StorageArgs, StorageNeeds},
    verbs::{
        backup_args::BackupArgs, bench::BenchArgs, cat::CatArgs, config::ConfigArgs,
        copy::CopyTreeArgs, diff::DiffArgs, drill::DrillArgs, export::ExportArgs, find::FindArgs,
        fleet::FleetArgs, forget::ForgetArgs, host::HostArgs, init::InitArgs, key::KeyArgs,
        list::ListArgs, mount::MountArgs, pin::PinArgs, prune::PruneArgs, repair::RepairArgs,
        restore_args::RestoreArgs, run::RunProfileArgs, schedule::ScheduleArgs, serve::ServeArgs,
        show::ShowArgs, simtape::SimtapeArgs, stats::StatsArgs, status::StatusArgs, sync::SyncArgs,
        systemd::SystemdArgs, tag::TagArgs, tape::TapeArgs, verify::VerifyArgs, wal::WalArgs,
        web::WebArgs,
    },
};
use clap::{CommandFactory, Parser, Subcommand};
use fullbore_storage::ClearUse;
use std::{ffi::OsString, path::PathBuf};

/// Back up and restore PostgreSQL clusters and file trees, as fast as the slowest piece of hardware permits, in standard streams.
///
/// A full backup is tar in independent zstd frames: `zstd -dc FILE… | tar -xi` restores it without this program.
#[derive(Debug, Parser)]
#[command(
    name = "fullbore",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 3 done but not everything could be read, 4 damage was found. \
                  The help of each command gives their meaning there."
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
    /// Back up files, directories, a PostgreSQL cluster or standard input
    Backup(Box<BackupArgs>),
    /// Create an empty repository, unless it exists
    Init(InitArgs),
    /// Restore a backup or parts of it
    Restore(Box<RestoreArgs>),
    /// List the backups of a repository, or the entries of a backup
    List(ListArgs),
    /// Show source, statistics, segments and skipped entries of a backup
    Show(ShowArgs),
    /// Print how many backups a repository holds, and their sizes
    Stats(StatsArgs),
    /// Print the state of all sources, those with trouble first
    ///
    /// Is the newest backup of a source late? Does the source grow, was it verified, is a backup damaged?
    Fleet(FleetArgs),
    /// Write a file of a backup to standard output, or a directory as tar
    Cat(CatArgs),
    /// Show backups as directories, until they are unmounted
    ///
    /// Files are read when a program asks for them. The mount is read-only.
    Mount(MountArgs),
    /// Show backups in a browser, and let files be taken out
    ///
    /// It listens on this host alone, prints the address, and opens a browser. The pages change nothing.
    Web(WebArgs),
    /// Check the structure or all bytes of backups, or compare with a tree
    Verify(VerifyArgs),
    /// Restore a cluster for a trial, start it, run a query, and remove it
    ///
    /// The cluster is restored into a scratch directory. Its server listens on a socket of its own
    /// only, and archives nothing. The result is stored in the repository.
    Drill(Box<DrillArgs>),
    /// Write a stored backup as a full one, to a file or a repository
    Export(ExportArgs),
    /// Print how two backups differ
    Diff(DiffArgs),
    /// Print which backups contain a path, and when it changed
    Find(FindArgs),
    /// Copy a directory to a directory, or a backup to another repository
    ///
    /// Either directory can be on another host. The content of SRC becomes the content of DST, with
    /// all metadata. DST is created if it is missing. Only differences are transferred.
    Copy(Box<CopyTreeArgs>),
    /// Copy the backups that another repository lacks
    ///
    /// Backups are copied oldest first, each with everything that it needs. A backup is listed in
    /// DEST when all of it is durable there.
    Sync(Box<SyncArgs>),
    /// Forget backups by name, or by rules of what to keep
    Forget(ForgetArgs),
    /// Free the space of forgotten and interrupted backups
    Prune(PruneArgs),
    /// Set, remove or print the tags of a backup
    Tag(TagArgs),
    /// Keep a backup, whatever the rules of forget say
    Pin(PinArgs),
    /// Let the rules forget a pinned backup again
    Unpin(PinArgs),
    /// List or change the keys of an encrypted repository
    Key(KeyArgs),
    /// Let a host add backups to a repository, or end that
    Host(HostArgs),
    /// Rebuild lost roots and manifests, and drop data beyond repair
    ///
    /// Without --yes, the steps are only listed. On a terminal, repair then asks whether to do
    /// them.
    ///
    /// Manifests are rebuilt from the copies of their pages in the segments. Roots are rebuilt from
    /// labels, seek tables and pages. Segments are never changed.
    Repair(RepairArgs),
    /// Offer repositories of this host to other hosts
    ///
    /// A location such as ssh://HOST/PATH starts this command on the other host.
    #[command(after_help = PLAIN_EXIT_CODES)]
    Serve(ServeArgs),
    /// Run backup, forget, prune and verify, as a profile says
    Run(RunProfileArgs),
    /// Archive the WAL of a PostgreSQL server, and fetch it for a recovery
    Wal(WalArgs),
    /// Check profiles, and print the commands that they stand for
    Config(ConfigArgs),
    /// Print systemd units that run a profile every night
    Systemd(SystemdArgs),
    /// Repeat a backup each hour, day, week or month, by a timer
    ///
    /// The words are those of a backup: `fullbore schedule daily ~ --to REPO`. Without words,
    /// schedules are listed.
    Schedule(ScheduleArgs),
    /// Remind of backups that are late, and print nothing if none is
    ///
    /// It reads what this host remembers of its own backups, and asks no repository.
    Status(StatusArgs),
    /// Measure this machine, and how much of its speed a backup reaches
    Bench(BenchArgs),
    /// Print the state of a tape drive, label tapes and list them
    Tape(TapeArgs),
    /// Simulate a tape drive, for tests and for other programs
    Simtape(SimtapeArgs),
    /// Print the completions of a shell
    #[command(after_help = PLAIN_EXIT_CODES)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Show the manual page
    ///
    /// On a terminal it is shown by man, else it is printed.
    #[command(after_help = PLAIN_EXIT_CODES)]
    Man {
        /// Show the page of this command
        #[arg(value_name = "COMMAND", conflicts_with = "to")]
        command: Option<String>,
        /// Write the pages of all commands into this directory instead
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
}

/// Returns the program for clap.
pub(super) fn command() -> clap::Command {
    help::arranged(Cli::command(), |_| true)
}

/// Returns the program for one line of words: only commands whose name is a word have arguments.
///
/// Most of the time of a start is spent on arguments. It reads the line as [`program`] does, if it
/// does not refuse the line.
pub(super) fn program_for(words: &[OsString]) -> clap::Command {
    if words.iter().any(|word| command_line::is_alias(word)) {
        return program();
    }
    let is_named = |name: &str| words.iter().any(|word| word == name);
    let mut program = help::arranged(Cli::command(), is_named);
    program.build();
    program
}

/// Returns the program as clap knows it, with the global options in every command.
pub(super) fn program() -> clap::Command {
    let mut program = command();
    program.build();
    program
}

impl Command {
    /// Returns what the command needs of storages.
    pub(super) fn storage_needs(&self) -> StorageNeeds {
        StorageNeeds {
            cache: self.cache_use(),
            clear: self.clear_use(),
            accepts_other_keys: matches!(self, Self::Init(_)),
        }
    }

    /// Returns whether `--json` changes the output. Else it is refused, so that no program waits for JSON.
    pub(super) fn has_json(&self) -> bool {
        match self {
            Self::Cat(_)
            | Self::Serve(_)
            | Self::Host(_)
            | Self::Completions { .. }
            | Self::Man { .. } => false,
            Self::Wal(args) => args.has_json(),
            Self::Tape(args) => args.has_json(),
            _ => true,
        }
    }

    fn cache_use(&self) -> CacheUse {
        match self {
            Self::List(_)
            | Self::Show(_)
            | Self::Stats(_)
            | Self::Fleet(_)
            | Self::Cat(_)
            | Self::Mount(_)
            | Self::Web(_)
            | Self::Find(_)
            | Self::Diff(_)
            | Self::Restore(_)
            | Self::Drill(_)
            | Self::Sync(_)
            | Self::Export(_) => CacheUse::Documents,
            Self::Backup(_) => CacheUse::Bases,
            _ => CacheUse::Nothing,
        }
    }

    /// Returns whether the command may use a clear repository beside a key.
    fn clear_use(&self) -> ClearUse {
        let encrypt = match self {
            Self::Backup(args) => Some(&args.encrypt),
            Self::Init(args) => Some(&args.encrypt),
            Self::Export(args) => Some(&args.encrypt),
            Self::Copy(args) => Some(args.encrypt()),
            Self::Sync(args) => Some(&args.encrypt),
            _ => None,
        };
        match self {
            _ if encrypt.is_some_and(|encrypt| encrypt.no_encryption) => ClearUse::Decided,
            Self::Copy(_) | Self::Export(_) | Self::Sync(_) => ClearUse::OneOfSeveral,
            Self::Fleet(args) if args.is_of_several() => ClearUse::OneOfSeveral,
            Self::Web(args) if args.is_of_several() => ClearUse::OneOfSeveral,
            _ => ClearUse::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
