//! Arguments, as clap sees them.

use super::{
    care::{DeltaArgs, RepairArgs, SampleArgs},
    cluster::ClusterArgs,
    far::host,
    keys::KeyArgs,
    life::{ForgetArgs, PinArgs, PruneArgs, TagArgs},
    look::{CopyArgs, DiffArgs, ExportArgs, FindArgs},
    select::SelectArgs,
    storage::{EncryptArgs, StorageArgs},
    values::{
        CheckpointArg, Chunking, Readers, block_size, destination, frame_size, interval, rate,
        readers, segment_size, stream_name, tag, target, threads,
    },
};
use crate::{
    backup::paths::Scope,
    command::{bench::BenchSubject, serve::AllowedLocation},
    format::digest::Algorithm,
    postgres::request::Wal,
    repo::compare::Compare,
    stage::codec::Codec,
    text::{arguments::any_bytes, size},
};
use clap::{
    Args, Parser, Subcommand, ValueHint,
    builder::{NonEmptyStringValueParser, PathBufValueParser, TypedValueParser},
};
use std::{
    ffi::OsString,
    num::{NonZeroU64, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

/// What a command that looks at backups, or at what is noted of them, ends with.
pub(super) const EXIT_CODES: &str =
    "EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 damage was found";
/// What a command ends with that looks at none.
const PLAIN_EXIT_CODES: &str = "EXIT CODES: 0 done, 1 failed, 2 wrong arguments";

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
    /// Use plain system calls only: no io_uring, no page cache advice, no preallocation
    #[arg(long, global = true, display_order = 900)]
    pub(super) no_tricks: bool,
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
    /// Check backups: their structure, every byte, or one against a tree on disk
    Verify(VerifyArgs),
    /// Write a stored backup as a full one, in one file or in another repository
    Export(ExportArgs),
    /// Print how two backups differ
    Diff(DiffArgs),
    /// Print which backups hold a path, and when it changed
    Find(FindArgs),
    /// Copy a backup to another repository, with everything it refers to
    CopyBackup(CopyArgs),
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
    /// Rebuild roots and manifests that are lost, and drop what nothing can restore; first it is only said
    ///
    /// Manifests are rebuilt from the copies of their pages in the segments;
    /// roots from labels, seek tables and pages. Segments are never changed.
    Repair(RepairArgs),
    /// Offer repositories of this host to another one; ssh:// locations start it there
    #[command(after_help = PLAIN_EXIT_CODES)]
    Serve(ServeArgs),
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

/// `fullbore backup`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 done, 1 failed (nothing was committed), 2 wrong arguments, 3 done but something could not be read, \
                  4 damage was found (nothing was committed)"
)]
pub(super) struct BackupArgs {
    /// A directory (a repository, made on first use), FILE.tar.zst (or .tzst), FILE.tar.lz4, FILE.tar.gz (or .tgz), FILE.tar, - (standard output) or null: (nowhere, to measure)
    #[arg(long, value_name = "DEST", value_hint = ValueHint::AnyPath, value_parser = any_bytes(destination))]
    pub(super) to: OsString,
    /// Fail if the repository is not there, as when its disk is not mounted; scheduled backups use this
    #[arg(long)]
    pub(super) no_create: bool,
    /// Back up standard input as a file of this name
    #[arg(long, value_name = "NAME", value_parser = any_bytes(stream_name), conflicts_with_all = ["paths", "files_from"])]
    pub(super) stdin_name: Option<OsString>,
    /// Back up the running cluster that these settings lead to: "host=… port=… user=…"; empty: what PGHOST and the like say
    #[arg(long, value_name = "SETTINGS", conflicts_with_all = ["paths", "stdin_name"], help_heading = "PostgreSQL")]
    pub(super) connect: Option<String>,
    /// PATH is the data directory of a cluster that was shut down
    #[arg(long, conflicts_with_all = ["connect", "stdin_name"], help_heading = "PostgreSQL")]
    pub(super) offline: bool,
    /// Begin with a checkpoint at once, or with one that spares the disks [default: fast]
    #[arg(
        long,
        value_enum,
        conflicts_with = "offline",
        help_heading = "PostgreSQL"
    )]
    pub(super) checkpoint: Option<CheckpointArg>,
    /// Where the WAL is that the backup needs: in it, in the server's archive (which is looked at), or elsewhere [default: included]
    #[arg(
        long,
        value_enum,
        conflicts_with = "offline",
        help_heading = "PostgreSQL"
    )]
    pub(super) wal: Option<Wal>,
    /// zstd[:LEVEL] (1; negative ones are faster), lz4, none, or gzip[:LEVEL] for a plain stream [default: zstd:1, or as DEST ends]
    #[arg(long, value_name = "CODEC")]
    pub(super) compress: Option<Codec>,
    /// Threads that compress [default: the processors this process may use]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(super) workers: Option<NonZeroUsize>,
    /// Threads that read each device, or auto: as many as it pays
    #[arg(long, value_name = "N", default_value = "auto", value_parser = readers)]
    pub(super) readers: Readers,
    /// All buffers together; at least 6 frames, and 4 for each further device
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse)]
    pub(super) memory: u64,
    /// Read at most so many bytes a second, so that others have the rest of the disk
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub(super) max_rate: Option<NonZeroU64>,
    /// Bytes that are compressed by themselves: a power of two, 64K to 64M [default: 1M, of a cluster 256K]
    #[arg(long, value_name = "SIZE", value_parser = frame_size)]
    pub(super) frame_size: Option<u32>,
    /// Take everything for new
    #[arg(long, conflicts_with = "base", help_heading = "Incremental")]
    pub(super) full: bool,
    /// Compare with this backup [default: the latest of the same source]
    #[arg(long, value_name = "ID", help_heading = "Incremental")]
    pub(super) base: Option<String>,
    /// What shows that a file has not changed: size, times and inode; or only some of it; or nothing but its content
    #[arg(long, value_enum, default_value_t = Compare::Inode, help_heading = "Incremental")]
    pub(super) compare: Compare,
    /// Bytes that are compared and stored again if they changed: a power of two, 4K to 64M, and a frame if that is less [default: 1M, of a cluster 8K]
    #[arg(long, value_name = "SIZE", value_parser = block_size, help_heading = "Incremental")]
    pub(super) block_size: Option<u32>,
    /// How large files are cut to be compared: in blocks, or also where their content says, for files whose content shifts
    #[arg(long, value_enum, default_value_t = Chunking::Fixed, help_heading = "Incremental")]
    pub(super) chunking: Chunking,
    /// Time after which what is stored so far is made durable: if the backup is cut off, the next one goes on from there; 0: after each frame
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = interval, help_heading = "Incremental")]
    pub(super) checkpoint_interval: Duration,
    /// Stored bytes after which a repository begins a new segment; at least 1M
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = segment_size)]
    pub(super) segment_size: u64,
    /// How files are digested
    #[arg(long, value_enum, default_value_t = Algorithm::Blake3)]
    pub(super) digest: Algorithm,
    #[command(flatten)]
    pub(super) scope: Scope,
    /// Whose backup it is: that host's earlier ones are what it is compared with [default: this host]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(super) host: Option<String>,
    /// Note this in the backup; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = tag)]
    pub(super) tag: Vec<(String, String)>,
    /// Run on this host, which reads its own PATHs or cluster; also said by ssh://HOST/PATH
    #[arg(long, value_name = "ssh://HOST", value_parser = any_bytes(host))]
    pub(super) on: Option<String>,
    /// Only say what would be backed up; files are not opened
    #[arg(long, conflicts_with_all = ["stdin_name", "report"])]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) encrypt: EncryptArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// `fullbore init`.
#[derive(Debug, Args)]
#[command(after_help = PLAIN_EXIT_CODES)]
pub(super) struct InitArgs {
    /// The directory of the repository; the directory above it has to be there
    #[arg(value_name = "REPO", value_hint = ValueHint::DirPath, value_parser = any_bytes(destination))]
    pub(super) repository: OsString,
    #[command(flatten)]
    pub(super) encrypt: EncryptArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// How the end of a run is told.
#[derive(Debug, Args, Clone)]
pub(super) struct OutputArgs {
    /// One JSON object a line: progress, then the result
    #[arg(long)]
    pub(super) json: bool,
    /// Say nothing but errors
    #[arg(long, short)]
    pub(super) quiet: bool,
}

/// What all commands that move bytes have.
#[derive(Debug, Args, Clone)]
pub(super) struct RunArgs {
    /// Write a page about the run: throughput, and what the limit was, over time; it replaces an earlier one, but no other file
    #[arg(long, value_name = "FILE.html", value_hint = ValueHint::FilePath)]
    pub(super) report: Option<PathBuf>,
}

/// `fullbore restore`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 3 done but the backup could not capture everything, 4 damage was found"
)]
pub(super) struct RestoreArgs {
    /// A repository, an archive, any tar or - (standard input); @ID, @PREFIX or @latest chooses the backup
    #[arg(value_name = "FROM[@BACKUP]")]
    pub(super) from: OsString,
    #[command(flatten)]
    pub(super) select: SelectArgs,
    /// The directory to restore into: absent or empty, unless --overwrite or --delta
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, value_parser = PathBufValueParser::new().try_map(target), required_unless_present = "plan")]
    pub(super) to: Option<PathBuf>,
    /// Only these, and what is below them
    #[arg(value_name = "PATH")]
    pub(super) paths: Vec<PathBuf>,
    /// Only say what it will cost: bytes to fetch, segments to open, expected time, as if nothing were there; nothing is written
    #[arg(long)]
    pub(super) plan: bool,
    /// Restore into a directory that holds something; files that are in the way are replaced
    #[arg(long)]
    pub(super) overwrite: bool,
    #[command(flatten)]
    pub(super) delta: DeltaArgs,
    /// Restore what is not damaged, and list the rest
    #[arg(long)]
    pub(super) keep_going: bool,
    /// Owners by number, even where their names are known
    #[arg(long)]
    pub(super) numeric_owner: bool,
    /// Threads that compute [default: the processors this process may use]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(super) workers: Option<NonZeroUsize>,
    /// All buffers together
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse)]
    pub(super) memory: u64,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) run: RunArgs,
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
}

/// `fullbore list`.
#[derive(Debug, Args)]
#[command(
    after_help = "Of a backup: its id, when it began, what it is of, and the bytes of that; \"stored\" is what a full one takes here, \
                  \"added\" what another one stored beyond those before it. Each is complete by itself.\n\
                  EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 damage was found"
)]
pub(super) struct ListArgs {
    /// A repository, an archive, any tar or - (standard input); @ID, @PREFIX or @latest chooses a backup, whose entries are listed
    #[arg(value_name = "FROM[@BACKUP]")]
    pub(super) from: OsString,
    #[command(flatten)]
    pub(super) select: SelectArgs,
    /// Only these, and what is below them
    #[arg(value_name = "PATH")]
    pub(super) paths: Vec<PathBuf>,
    /// One JSON object a line
    #[arg(long)]
    pub(super) json: bool,
}

/// `fullbore show`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct ShowArgs {
    /// A repository, an archive or - (standard input); @ID, @PREFIX or @latest chooses the backup
    #[arg(value_name = "FROM[@BACKUP]")]
    pub(super) from: OsString,
    #[command(flatten)]
    pub(super) select: SelectArgs,
    /// As JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// `fullbore verify`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 sound, 1 failed or different, 2 wrong arguments, 4 damage was found"
)]
pub(super) struct VerifyArgs {
    /// A repository, of which all backups are checked, an archive, any tar or - (standard input), which are read to their end; @ID, @PREFIX or @latest chooses one backup
    #[arg(value_name = "FROM[@BACKUP]")]
    pub(super) from: OsString,
    #[command(flatten)]
    pub(super) select: SelectArgs,
    /// Read and check every byte
    #[arg(long)]
    pub(super) data: bool,
    #[command(flatten)]
    pub(super) sample: SampleArgs,
    /// Compare with this tree, and list the differences
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(super) against: Option<PathBuf>,
    /// Threads that compute [default: the processors this process may use]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(super) workers: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// `fullbore serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Talk over standard input and output, with the fullbore that started ssh
    #[arg(long, required = true)]
    pub(super) stdio: bool,
    /// Offer one location only, to read:LOCATION it, to append:LOCATION backups to it, or to write:LOCATION it
    #[arg(long, value_name = "WHAT:LOCATION", value_parser = |word: &str| AllowedLocation::parse(word).map_err(|error| error.what))]
    pub(super) allow: Option<AllowedLocation>,
}

/// `fullbore bench`.
#[derive(Debug, Args)]
#[command(after_help = PLAIN_EXIT_CODES)]
pub(super) struct BenchArgs {
    /// What to measure
    #[arg(value_enum)]
    pub(super) what: BenchSubject,
    /// Read from here (read, pipeline), or write here (write) [default: the current directory]
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(super) path: Option<PathBuf>,
    /// Codec for compress and pipeline
    #[arg(long, value_name = "CODEC", default_value = "zstd:1")]
    pub(super) compress: Codec,
    /// Threads [default: the processors this process may use]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(super) workers: Option<NonZeroUsize>,
    /// Bytes to move
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
    pub(super) size: u64,
    /// As JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_takes_no_tricks() {
        let mut cli = Cli::command().disable_help_subcommand(true);
        cli.build();
        for command in cli.get_subcommands() {
            let mut options = command.get_arguments().filter_map(clap::Arg::get_long);
            assert!(
                options.any(|name| name == "no-tricks"),
                "{}",
                command.get_name()
            );
        }
    }
}
