//! `fullbore wal`: the archive of a server's WAL.

use super::{wal_check::WalCheckArgs, wal_receive::WalReceiveArgs, wal_show::WalShow};
use crate::cli::{
    output::{aside, printed},
    values::{any_bytes, destination, interval, threads},
    verbs::wal_report::WalList,
};
use clap::{Args, Subcommand, ValueHint};
use fullbore_engine::wal::{
    CaughtUp, Got, SpooledFile, WalAhead, WalGet, WalPush, WalServe, WalSpool,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::{
        counted,
        size::{self, bytes},
    },
    wal::SegmentName,
};
use fullbore_platform::cores;
use fullbore_storage::Storages;
use std::{ffi::OsString, num::NonZeroUsize, path::PathBuf, time::Duration};

/// The exit code of a fetch that failed: a server ends its recovery then, and does not open.
pub(in crate::cli) const FETCH_FAILED: u8 = 126;

/// Segments behind a push that are left to a process of their own.
const BACKLOG: usize = 8;
/// Bytes of a spool, unless given.
const SPOOL_BYTES: u64 = 20 << 30;

/// `fullbore wal`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 damage or a gap was found; \
                        of `wal get`: 0 written, 1 the archive ends before it, 126 anything else"
)]
pub(in crate::cli) struct WalArgs {
    #[command(subcommand)]
    pub(in crate::cli) verb: WalVerb,
}

impl WalArgs {
    /// Returns whether the command prints JSON.
    pub(in crate::cli) fn has_json(&self) -> bool {
        matches!(
            self.verb,
            WalVerb::List { .. } | WalVerb::Show { .. } | WalVerb::Check(_)
        )
    }
}

/// Which cluster the WAL is of.
#[derive(Debug, Args, Clone, Default)]
pub(in crate::cli) struct WalSystemArgs {
    /// System identifier, where the command runs outside a data directory
    #[arg(long, value_name = "NUMBER")]
    pub(super) system: Option<u64>,
    /// Archive a copy of a cluster apart from its origin, under this name
    #[arg(long = "as", value_name = "NAME", value_parser = copy_name)]
    pub(super) copy_name: Option<String>,
}

/// How WAL is stored.
#[derive(Debug, Args, Clone)]
pub(in crate::cli) struct WalStoreArgs {
    /// The level of zstd, from -10 to 19
    ///
    /// Levels below 0 are faster and store more: of WAL of pgbench, -5 takes 0.6 of the processor of 1, and stores 1.9 times as much.
    #[arg(long, value_name = "LEVEL", default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-10..=19))]
    level: i32,
    /// Segments that are compressed at the same time
    ///
    /// The default is a thread for each processor, and at most 4.
    #[arg(long, short = 'j', value_name = "N", value_parser = threads)]
    pub(super) workers: Option<NonZeroUsize>,
}

impl Default for WalStoreArgs {
    fn default() -> Self {
        Self {
            level: 1,
            workers: None,
        }
    }
}

impl WalStoreArgs {
    fn workers(&self) -> usize {
        self.workers
            .unwrap_or(cores())
            .get()
            .min(16)
            .min(self.workers.map_or(4, NonZeroUsize::get))
    }
}

/// Where files wait while the repository is away.
#[derive(Debug, Args, Clone, Default)]
pub(in crate::cli) struct WalSpoolArgs {
    /// Take files into this directory while the repository is away or full
    ///
    /// The server counts such a file as archived, and may remove its own: until it is stored, it is on this
    /// host only. A process that the push leaves behind stores it when the repository is back.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(super) spool: Option<PathBuf>,
    /// The directory has at most this many bytes [default: 20G]
    ///
    /// A push fails when there is no more room, and the server keeps its WAL. No file is dropped.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "spool")]
    pub(super) spool_size: Option<u64>,
}

impl WalSpoolArgs {
    fn spool(self) -> Option<WalSpool> {
        Some(WalSpool {
            dir: self.spool?,
            max_bytes: self.spool_size.unwrap_or(SPOOL_BYTES),
        })
    }
}

#[derive(Debug, Clone, Subcommand)]
pub(in crate::cli) enum WalVerb {
    /// Store a file that the server has finished, and those behind it
    ///
    /// archive_command = 'fullbore wal push %p --to REPO'
    Push {
        /// The file, which the server names with %p
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present = "catch_up")]
        path: Option<PathBuf>,
        /// Store all that this data directory has and the repository lacks
        ///
        /// Run it on a standby before it is promoted, and on an old primary that was stopped before
        /// pg_rewind: what only they have is lost otherwise.
        #[arg(long, value_name = "DATADIR", value_hint = ValueHint::DirPath, conflicts_with_all = ["path", "alone", "spool"])]
        catch_up: Option<PathBuf>,
        /// The repository
        #[arg(long, value_name = "DEST", value_hint = ValueHint::DirPath, value_parser = any_bytes(destination))]
        to: OsString,
        #[command(flatten)]
        system: WalSystemArgs,
        #[command(flatten)]
        store: WalStoreArgs,
        #[command(flatten)]
        spool: WalSpoolArgs,
        /// Wait so long for a storage that is away
        #[arg(long, value_name = "TIME", value_parser = interval, default_value = "60s")]
        patience: Duration,
        /// Push only this file
        #[arg(long, conflicts_with = "spool")]
        alone: bool,
        /// Leave no process behind that pushes a backlog
        #[arg(long)]
        no_serve: bool,
    },
    /// Fetch a file for a recovery
    ///
    /// restore_command = 'fullbore wal get %f %p --from REPO'
    Get {
        /// The name of the file, which the server gives as %f
        #[arg(value_name = "NAME")]
        name: String,
        /// Where to write it, which the server gives as %p
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        path: PathBuf,
        /// The repository
        #[arg(long, value_name = "REPO", value_hint = ValueHint::DirPath, value_parser = any_bytes(destination))]
        from: OsString,
        #[command(flatten)]
        system: WalSystemArgs,
        /// The last segment that the restore saw
        ///
        /// Up to there, a missing segment is an error.
        #[arg(long, value_name = "SEGMENT", value_parser = segment)]
        through: Option<SegmentName>,
        /// The archive ends after this segment, whatever is behind it
        #[arg(long, value_name = "SEGMENT", value_parser = segment)]
        until: Option<SegmentName>,
        /// Use the WAL of this host, where two hosts archived different WAL
        #[arg(long, value_name = "HOST")]
        wal_from: Option<String>,
        /// For a standby that also streams: a gap is not an error
        #[arg(long)]
        standby: bool,
        /// Leave no process behind that fetches the next segments
        #[arg(long)]
        alone: bool,
        /// Wait so long for a storage that is away
        #[arg(long, value_name = "TIME", value_parser = interval, default_value = "10m")]
        patience: Duration,
    },
    /// Fetch the segments behind one, before the server asks
    ///
    /// A fetch leaves this process behind.
    #[command(hide = true)]
    Ahead {
        /// The name of the segment
        #[arg(value_name = "NAME")]
        name: String,
        /// The data directory of the server
        #[arg(value_name = "DATADIR")]
        data: PathBuf,
        /// The repository
        #[arg(long, value_name = "REPO", value_parser = any_bytes(destination))]
        from: OsString,
        /// The system identifier
        #[arg(long, value_name = "NUMBER")]
        system: u64,
        /// The name of a copy of a cluster
        #[arg(long = "as", value_name = "NAME", value_parser = copy_name)]
        copy_name: Option<String>,
        /// Use the WAL of this host, where two hosts archived different WAL
        #[arg(long, value_name = "HOST")]
        wal_from: Option<String>,
    },
    /// Push segments as the server finishes them, before it asks
    Serve {
        /// The data directory of the server
        #[arg(value_name = "DATADIR", value_hint = ValueHint::DirPath)]
        data: PathBuf,
        /// The repository
        #[arg(long, value_name = "DEST", value_hint = ValueHint::DirPath, value_parser = any_bytes(destination))]
        to: OsString,
        /// Archive a copy of a cluster apart from its origin, under this name
        #[arg(long = "as", value_name = "NAME", value_parser = copy_name)]
        copy_name: Option<String>,
        #[command(flatten)]
        store: WalStoreArgs,
        #[command(flatten)]
        spool: WalSpoolArgs,
        /// End after so long without work [default: never]
        #[arg(long, value_name = "TIME", value_parser = interval)]
        idle: Option<Duration>,
    },
    /// Receive WAL as the server writes it, up to the last second
    ///
    /// It runs until a signal ends it, and connects again when the server was away. Started again, it goes on without a gap.
    Receive(Box<WalReceiveArgs>),
    /// List the WAL of each system: timelines, segments, gaps
    List {
        /// The repository
        #[arg(value_name = "REPO", value_hint = ValueHint::DirPath, value_parser = any_bytes(destination))]
        repository: OsString,
        #[arg(from_global)]
        json: bool,
    },
    /// Print who stored a segment, in which objects, and which records it has
    Show {
        /// The repository
        #[arg(value_name = "REPO", value_hint = ValueHint::DirPath, value_parser = any_bytes(destination))]
        repository: OsString,
        /// The name of the segment
        #[arg(value_name = "SEGMENT", value_parser = segment)]
        segment: SegmentName,
        #[arg(from_global)]
        json: bool,
    },
    /// Read all WAL of a repository, or test the way from a server to it
    ///
    /// Of a repository, all WAL is read and checked for damage, gaps and conflicts. Of a server, the
    /// settings are checked, a segment is ended, and it must arrive in the repository.
    Check(Box<WalCheckArgs>),
}

pub(super) fn copy_name(text: &str) -> Result<String, String> {
    match fullbore_format::wal::check_system_name(&format!("1.{text}")) {
        true => Ok(text.to_owned()),
        false => Err("1 to 32 letters, digits, - and _".to_owned()),
    }
}

pub(super) fn segment(text: &str) -> Result<SegmentName, String> {
    SegmentName::parse(text).ok_or_else(|| "a WAL segment has 24 hexadecimal digits".to_owned())
}

pub(in crate::cli) fn run(args: WalArgs, storages: &Storages, is_quiet: bool) -> Result<u8> {
    match args.verb {
        WalVerb::Push {
            path,
            catch_up,
            to,
            system,
            store,
            spool,
            patience,
            alone,
            no_serve,
        } => {
            let push = WalPush {
                storages: storages.clone(),
                path: path.unwrap_or_default(),
                to,
                copy_name: system.copy_name,
                system: system.system,
                level: store.level,
                workers: store.workers(),
                patience,
                alone,
                spool: spool.spool(),
            };
            if let Some(data) = catch_up {
                return push.catch_up(&data).map(|caught| {
                    print_caught(&caught, is_quiet);
                    0
                });
            }
            let report = push.run()?;
            report.spooled.iter().for_each(tell_spooled);
            let has_backlog = report.stored_bytes > 0 && report.waits_behind >= BACKLOG;
            if !no_serve && !alone && (has_backlog || report.spooled.is_some()) {
                leave_server(&push);
            }
            Ok(0)
        }
        WalVerb::Get {
            name,
            path,
            from,
            system,
            through,
            until,
            wal_from,
            standby,
            alone,
            patience,
        } => {
            let get = WalGet {
                storages: storages.clone(),
                name,
                path,
                from,
                system: system.system,
                copy_name: system.copy_name,
                through,
                until,
                wal_from,
                standby,
                patience,
            };
            fetch(&get, alone, is_quiet)
        }
        WalVerb::Ahead {
            name,
            data,
            from,
            system,
            copy_name,
            wal_from,
        } => {
            let ahead = WalAhead {
                storages: storages.clone(),
                name,
                from,
                system,
                copy_name,
                wal_from,
                data,
            };
            ahead.run().map(|()| 0)
        }
        WalVerb::Serve {
            data,
            to,
            copy_name,
            store,
            spool,
            idle,
        } => {
            let serve = WalServe {
                storages: storages.clone(),
                data,
                to,
                copy_name,
                level: store.level,
                workers: store.workers(),
                idle,
                spool: spool.spool(),
            };
            serve.run().map(|_| 0)
        }
        WalVerb::Receive(args) => super::wal_receive::run(*args, storages.clone(), is_quiet),
        WalVerb::List { repository, json } => {
            let list = WalList {
                storages: storages.clone(),
                repository,
                json,
            };
            printed(|out| list.run(out).map(|()| 0))
        }
        WalVerb::Show {
            repository,
            segment,
            json,
        } => {
            let show = WalShow {
                storages: storages.clone(),
                repository,
                segment,
                json,
            };
            printed(|out| show.run(out))
        }
        WalVerb::Check(args) => super::wal_check::run(*args, storages, is_quiet),
    }
}

fn print_caught(caught: &CaughtUp, is_quiet: bool) {
    if is_quiet {
        return;
    }
    aside(format_args!(
        "{} stored, {} were there",
        counted(caught.stored.len() as u64, "segment"),
        caught.there
    ));
    for segment in &caught.open {
        aside(format_args!(
            "note: {segment} is not complete, and was not stored"
        ));
    }
}

fn fetch(get: &WalGet, is_alone: bool, is_quiet: bool) -> Result<u8> {
    match get.run()? {
        Got::Written { leads_on } => {
            let behind = get.behind().filter(|_| leads_on && !is_alone);
            if let Some(Err(error)) = behind.map(|ahead| super::wal_server::fetch_ahead(&ahead)) {
                let message = "could not leave a process that fetches ahead";
                fullbore_platform::debug(|| Error::io(message, error).line());
            }
            Ok(0)
        }
        Got::Missing(why) => {
            // A server asks for histories that are not there each time that it starts.
            if !is_quiet && !get.name.ends_with(".history") {
                aside(format_args!("missing: {why}"));
            }
            Ok(1)
        }
    }
}

/// Tells the server's log what is on its host only.
fn tell_spooled(spooled: &SpooledFile) {
    let SpooledFile {
        name,
        reason,
        state,
    } = spooled;
    let why = match reason {
        Some(reason) => format!(", as the repository did not take it: {reason}"),
        None => String::new(),
    };
    aside(format_args!("warning: {name} is in the spool only{why}"));
    let files = counted(state.files, "file");
    aside(format_args!(
        "warning: on this host only: {files}, {} of WAL",
        bytes(state.bytes)
    ));
    if let Some(reason) = &state.reason {
        let refused = counted(state.refused, "file");
        aside(format_args!(
            "warning: the repository refused {refused} of the spool: {reason}"
        ));
    }
}

/// Starts a process that pushes the backlog, with the words of this one. It is of no harm if there is one.
fn leave_server(push: &WalPush) {
    let data = push
        .path
        .parent()
        .and_then(|wal| wal.parent())
        .map(PathBuf::from);
    let Some(data) = data else { return };
    if let Err(error) = super::wal_server::leave(push, &data) {
        fullbore_platform::debug(|| {
            Error::io("could not leave a process that pushes the backlog", error).line()
        });
    }
}

/// Returns whether the words of this process are those of a fetch: then no error may have an exit code that a server takes for
/// the end of the archive.
pub(in crate::cli) fn is_fetch(words: &[OsString]) -> bool {
    let mut words = words.iter().skip(1).skip_while(|word| *word != "wal");
    words.next().is_some() && words.any(|word| word == "get")
}

/// A panic is an error, too.
pub(in crate::cli) fn without_panic(
    work: impl FnOnce() -> Result<u8> + std::panic::UnwindSafe,
) -> Result<u8> {
    std::panic::catch_unwind(work)
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Bug, "the fetch ended by a panic")))
}
