//! The arguments of `fullbore backup`.

use super::{far::host, tape_args::TapeToArgs};
use crate::cli::{
    encryption::EncryptArgs,
    metrics_file::metrics_path,
    options::{DESTINATION, OutputArgs, PERFORMANCE, RunArgs, SOURCE, rare},
    scope_args::ScopeArgs,
    values::{
        COMPARES, CheckpointArg, Chunking, DEDUPS, DIGESTS, LevelArg, Readers, RunOn, VIAS, WALS,
        any_bytes, block_size, destination, frame_size, interval, level, one_of, rate, readers,
        segment_size, stream_name, tag, threads,
    },
};
use clap::{ArgGroup, Args, ValueHint, builder::NonEmptyStringValueParser};
use fullbore_engine::{
    backup::{Dedup, MAX_DESTINATIONS},
    plan::SinkSpec,
    volumes::VolumeSizes,
};
use fullbore_format::{
    digest::Algorithm,
    error::{Error, ErrorKind, Result},
    text::{duration, size},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_postgres::request::{Via, Wal};
use fullbore_repository::compare::Compare;
use fullbore_storage::Storages;
use std::{
    ffi::{OsStr, OsString},
    num::{NonZeroU64, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

/// `fullbore backup`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 done, 1 failed (nothing was committed), 2 wrong arguments, 3 done but something could not be read, \
                  4 damage was found (nothing was committed)"
)]
#[command(group = ArgGroup::new("near").multiple(true).args(["metrics", "on", "run_on"]))]
#[command(mut_args(rare(&["passphrase", "no_encryption"])))]
pub(in crate::cli) struct BackupArgs {
    /// A repository, an archive, volumes:PREFIX, tape:DRIVE, - or null:
    ///
    /// A directory is a repository, which is created on first use. An archive is FILE.tar.zst (or
    /// .tzst), FILE.tar.lz4, FILE.tar.gz (or .tgz) or FILE.tar. With volumes:PREFIX, the archive is
    /// divided into PREFIX-BACKUP-001.tar.zst and so on. With tape:/dev/nst0 it is written to tapes. - is
    /// standard output. With null: nothing is stored, to measure the source. Can be repeated with
    /// repositories: the source is read once, and each of them gets the backup.
    #[arg(long, value_name = "DEST", required = true, value_hint = ValueHint::AnyPath, value_parser = any_bytes(destination), help_heading = DESTINATION)]
    pub(in crate::cli) to: Vec<OsString>,
    /// Fail if the repository does not exist
    ///
    /// Scheduled backups use this option. Without it, a backup to a disk that is not mounted
    /// creates a new repository at the mount point.
    #[arg(long, help_heading = DESTINATION)]
    pub(in crate::cli) no_create: bool,
    /// Back up standard input as a file of this name
    #[arg(long, value_name = "NAME", value_parser = any_bytes(stream_name), conflicts_with_all = ["files_from"], help_heading = SOURCE, hide_short_help = true)]
    pub(in crate::cli) stdin_name: Option<OsString>,
    /// Back up the output of the command behind --
    ///
    /// It takes the place of standard input. If the command fails, nothing is stored.
    #[arg(long, requires_all = ["stdin_name", "paths"], conflicts_with_all = ["connect", "offline", "on", "dry_run"], help_heading = SOURCE, hide_short_help = true)]
    pub(in crate::cli) stdin_from_command: bool,
    /// Back up the running cluster at these connection settings
    ///
    /// The settings are those of libpq: "host=… port=… user=…". If they are empty, PGHOST and the
    /// other variables of libpq say where the server is.
    #[arg(long, value_name = "SETTINGS", conflicts_with_all = ["paths", "stdin_name"], help_heading = "PostgreSQL", hide_short_help = true)]
    pub(in crate::cli) connect: Option<String>,
    /// PATH is the data directory of a cluster that is shut down
    #[arg(long, conflicts_with_all = ["connect", "stdin_name"], help_heading = "PostgreSQL", hide_short_help = true)]
    pub(in crate::cli) offline: bool,
    /// How the checkpoint at the start is done [default: fast]
    #[arg(
        long,
        value_enum,
        conflicts_with = "offline",
        help_heading = "PostgreSQL",
        hide_short_help = true
    )]
    pub(in crate::cli) checkpoint: Option<CheckpointArg>,
    /// Where the WAL of the backup is kept [default: included]
    #[arg(
        long,
        value_parser = one_of(&WALS),
        conflicts_with = "offline",
        help_heading = "PostgreSQL", hide_short_help = true)]
    pub(in crate::cli) wal: Option<Wal>,
    /// How the files of a running cluster are read
    ///
    /// By SQL, fullbore needs no access to the server's host. The role needs EXECUTE on three
    /// functions, which the error names. --readers is the number of sessions then, 4 by default.
    /// By protocol, the server sends all files in one stream, and the role needs REPLICATION.
    #[arg(
        long,
        value_parser = one_of(&VIAS),
        default_value = "auto",
        conflicts_with = "offline",
        help_heading = "PostgreSQL",
        hide_short_help = true
    )]
    pub(in crate::cli) via: Via,
    /// zstd[:LEVEL], auto, lz4, none, or gzip[:LEVEL] for a plain stream
    ///
    /// The default is zstd:1, or the codec that the ending of DEST names. Negative levels of zstd
    /// are faster. auto uses the strongest level from zstd:-5 to zstd:9 that costs no time.
    #[arg(long, value_name = "CODEC", help_heading = DESTINATION)]
    pub(in crate::cli) compress: Option<Codec>,
    /// Threads that compress [default: one for each processor]
    ///
    /// The default is the number of processors that this process may use.
    #[arg(long, short = 'j', value_name = "N", value_parser = threads, help_heading = PERFORMANCE, hide_short_help = true)]
    pub(in crate::cli) workers: Option<NonZeroUsize>,
    /// Threads that read each device, or auto
    ///
    /// auto adds threads as long as they increase the speed.
    #[arg(long, value_name = "N", default_value = "auto", value_parser = readers, help_heading = PERFORMANCE, hide_short_help = true)]
    pub(in crate::cli) readers: Readers,
    /// Size of all buffers together
    ///
    /// The least is 6 frames, and 4 more for each further device.
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse, help_heading = PERFORMANCE, hide_short_help = true)]
    pub(in crate::cli) memory: u64,
    /// Read at most this many bytes a second
    ///
    /// Other programs then have the rest of the disk.
    #[arg(long, value_name = "SIZE", value_parser = rate, help_heading = PERFORMANCE, hide_short_help = true)]
    pub(in crate::cli) max_rate: Option<NonZeroU64>,
    /// Bytes in a compressed frame [default: 1M, for a cluster 256K]
    ///
    /// Each frame can be decompressed without the others. The size is a power of two from 64K to
    /// 64M.
    #[arg(long, value_name = "SIZE", value_parser = frame_size, help_heading = PERFORMANCE, hide_short_help = true)]
    pub(in crate::cli) frame_size: Option<u32>,
    /// Store all files again, changed or not
    #[arg(long, conflicts_with = "base", help_heading = "Incremental")]
    pub(in crate::cli) full: bool,
    /// Compare with this backup [default: the latest of the same source]
    #[arg(
        long,
        value_name = "ID",
        help_heading = "Incremental",
        hide_short_help = true
    )]
    pub(in crate::cli) base: Option<String>,
    /// Store what changed since the latest backup of a lower level (0 to 9)
    ///
    /// 0 stores everything. The level is the tag "level" of the backup, as `fullbore list` prints it. A
    /// backup without a level does not count. In a repository each backup can be restored alone, whatever
    /// its level. Of a backup in volumes or on tapes, a restore needs those of its lower levels too.
    /// hanoi chooses the level: 0 for the first backup of a source, 1 after a week, and between them
    /// the next of 3 2 5 4 7 6 9 8 9 9.
    #[arg(
        long,
        value_name = "N|hanoi",
        value_parser = level,
        conflicts_with_all = ["base", "full"],
        help_heading = "Incremental",
        hide_short_help = true
    )]
    pub(in crate::cli) level: Option<LevelArg>,
    /// Note the backup in this file, as dump does in /etc/dumpdates
    ///
    /// The file gets the level and the time of each PATH. Lines of dump are kept.
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        requires = "level",
        conflicts_with_all = ["on", "dry_run"],
        help_heading = "Incremental",
        hide_short_help = true
    )]
    pub(in crate::cli) dumpdates: Option<PathBuf>,
    /// Go on with this backup in volumes, which ended before its last volume
    ///
    /// What is in its volumes is not stored again: they are needed for a restore, beside the new ones. Its newest
    /// volume must be there. All other options are those of that backup.
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = ["base", "full"],
        help_heading = "Incremental",
        hide_short_help = true
    )]
    pub(in crate::cli) resume: Option<String>,
    /// End the backup after more than this many entries that cannot be read
    ///
    /// By default it goes on, names them all, and ends with exit code 3. The volumes that have names are kept.
    #[arg(
        long,
        value_name = "N",
        help_heading = SOURCE,
        hide_short_help = true
    )]
    pub(in crate::cli) errors: Option<u64>,
    /// How an unchanged file is recognized
    #[arg(long, value_parser = one_of(&COMPARES), default_value = "inode", help_heading = "Incremental", hide_short_help = true)]
    pub(in crate::cli) compare: Compare,
    /// Bytes in a block to compare [default: 1M, for a cluster 8K]
    ///
    /// Of a changed file, the blocks that differ are stored again. The size is a power of two from
    /// 4K to 64M, and at most that of a frame.
    #[arg(long, value_name = "SIZE", value_parser = block_size, help_heading = "Incremental", hide_short_help = true)]
    pub(in crate::cli) block_size: Option<u32>,
    /// How large files are cut for the comparison
    #[arg(long, value_enum, default_value_t = Chunking::Fixed, help_heading = "Incremental", hide_short_help = true)]
    pub(in crate::cli) chunking: Chunking,
    /// Whose stored content is not stored again
    ///
    /// Without this option it is that of all sources of the repository which this host may read and refer to: with a
    /// put key, or on a host that may only add backups, that of its own. A full backup stores everything.
    #[arg(long, value_parser = one_of(&DEDUPS), conflicts_with = "full", help_heading = "Incremental", hide_short_help = true)]
    pub(in crate::cli) dedup: Option<Dedup>,
    /// Time after which stored data is made durable
    ///
    /// If the backup is interrupted, the next backup continues from that point. 0 means after each
    /// frame.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = interval, help_heading = "Incremental", hide_short_help = true)]
    pub(in crate::cli) checkpoint_interval: Duration,
    /// Begin a new segment of a repository after this many stored bytes
    ///
    /// The least is 1M.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = segment_size, help_heading = DESTINATION, hide_short_help = true)]
    pub(in crate::cli) segment_size: u64,
    /// Bytes of a volume, or auto
    ///
    /// A list such as 8G,25G is for the first volumes; the last size holds for all that follow. auto
    /// fills the file system. The least is 1M.
    #[arg(long, value_name = "SIZE[,SIZE]", help_heading = DESTINATION, hide_short_help = true)]
    pub(in crate::cli) volume_size: Option<VolumeSizes>,
    #[command(flatten)]
    pub(in crate::cli) tape: TapeToArgs,
    /// How the contents of files are digested
    ///
    /// With none, a restore detects damage only in frames of zstd and lz4, which have checksums.
    /// Also, restore --delta then writes all files again.
    #[arg(long, value_parser = one_of(&DIGESTS), default_value = "blake3", help_heading = PERFORMANCE, hide_short_help = true)]
    pub(in crate::cli) digest: Algorithm,
    #[command(flatten)]
    pub(in crate::cli) scope: ScopeArgs,
    /// Record this host name [default: the name of this host]
    ///
    /// Earlier backups of that host serve as the base.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), hide_short_help = true)]
    pub(in crate::cli) host: Option<String>,
    /// Tag the backup with KEY or KEY=VALUE (repeatable)
    #[arg(long, short = 't', value_name = "TAG", value_parser = tag)]
    pub(in crate::cli) tag: Vec<(String, String)>,
    /// Expect the next backup of this source within this time, such as 1d
    ///
    /// It is the tag "every" of the backup, and `fullbore fleet` tells which sources are late.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, hide_short_help = true)]
    pub(in crate::cli) every: Option<Duration>,
    /// Run on this host, which reads its own PATHs or cluster
    ///
    /// A PATH such as ssh://HOST/PATH says the same.
    #[arg(long, value_name = "ssh://HOST", value_parser = any_bytes(host), help_heading = SOURCE, hide_short_help = true)]
    pub(in crate::cli) on: Option<String>,
    /// The host that compares, digests and compresses
    ///
    /// It matters only if source and destination are on two hosts.
    #[arg(long, value_enum, default_value_t = RunOn::Source, hide_short_help = true)]
    pub(in crate::cli) run_on: RunOn,
    /// Only print what would be backed up, and open no files
    ///
    /// With -v, each entry is printed that differs from the last backup in kind, size, time, mode,
    /// owner or the target of a link.
    #[arg(long, short = 'n', conflicts_with_all = ["stdin_name", "report"])]
    pub(in crate::cli) dry_run: bool,
    #[command(flatten)]
    pub(in crate::cli) encrypt: EncryptArgs,
    #[command(flatten)]
    pub(in crate::cli) output: OutputArgs,
    /// Write numbers of the backup to this file, for node_exporter
    ///
    /// The file of an earlier run is replaced, but no other file.
    #[arg(long, value_name = "FILE.prom", value_parser = metrics_path, value_hint = ValueHint::FilePath, hide_short_help = true)]
    pub(in crate::cli) metrics: Option<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) run: RunArgs,
}

/// The destinations that could be opened.
#[derive(Debug, Default)]
pub(super) struct OpenedSinks {
    pub(super) sinks: Vec<SinkSpec>,
    pub(super) codec: Option<Codec>,
    /// The others, with their place and their word on the command line.
    pub(super) failed: Vec<(usize, OsString, Error)>,
}

/// Returns whether a person has to change something before the command can work.
fn is_of_person(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::Usage | ErrorKind::Permission | ErrorKind::Unsupported | ErrorKind::Corrupt
    )
}

impl BackupArgs {
    /// The first destination.
    pub(in crate::cli) fn first_to(&self) -> &OsStr {
        self.to.first().map(OsString::as_os_str).unwrap_or_default()
    }

    /// Refuses several destinations where there can be one only.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    pub(super) fn must_have_one_destination(&self, why: &str) -> Result<()> {
        if self.to.len() < 2 {
            return Ok(());
        }
        let message = "cannot back up to several destinations";
        Err(Error::new(ErrorKind::Usage, message).because(why.to_owned()))
    }

    /// Opens all destinations. One that cannot be reached does not keep the others from being
    /// opened.
    ///
    /// # Errors
    /// As [`BackupArgs::sink`] if it is the only one, or if the command line is wrong;
    /// [`ErrorKind::Usage`] if one of several is named twice or is no repository.
    pub(super) fn sinks(&self, storages: &Storages) -> Result<OpenedSinks> {
        if self.to.len() > MAX_DESTINATIONS {
            self.must_have_one_destination(&format!("there can be {MAX_DESTINATIONS}"))?;
        }
        let mut opened = OpenedSinks::default();
        for (index, word) in self.to.iter().enumerate() {
            if self.to[..index].contains(word) {
                let message = format!("cannot back up to {word:?} twice");
                return Err(Error::new(ErrorKind::Usage, message));
            }
            match self.sink_at(storages, word) {
                Ok((sink, codec)) => {
                    if sink.storage().is_none() {
                        self.must_have_one_destination(&format!("{word:?} is no repository"))?;
                    }
                    opened.codec = codec;
                    opened.sinks.push(sink);
                }
                Err(error) if self.to.len() < 2 || is_of_person(&error) => return Err(error),
                Err(error) => opened.failed.push((index, word.clone(), error)),
            }
        }
        match opened.sinks.is_empty() {
            false => Ok(opened),
            true => Err(opened.failed.swap_remove(0).2),
        }
    }

    /// Opens the destination, encrypted as the options say. Returns the codec, too.
    ///
    /// # Errors
    /// Those of [`SinkSpec::parse`], and of the options of encryption.
    pub(super) fn sink(&self, storages: &Storages) -> Result<(SinkSpec, Option<Codec>)> {
        self.sink_at(storages, self.first_to())
    }

    fn sink_at(&self, storages: &Storages, word: &OsStr) -> Result<(SinkSpec, Option<Codec>)> {
        let (target, codec) = SinkSpec::parse(storages, word, self.compress)?;
        let target = target.with_volume_sizes(self.volume_size.clone())?;
        let target = target.with_tape_options(self.tape.options())?;
        // The question takes a round trip, and the outcome has the answer, too.
        let is_new = self.encrypt.asks_for_new(storages, word)? && target.is_new_repository();
        let target =
            self.encrypt
                .apply(storages, target, word, is_new, self.no_create, self.dry_run)?;
        Ok((target, codec))
    }
}
