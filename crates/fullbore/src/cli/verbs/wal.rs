//! `fullbore wal`: the archive of a server's WAL.

use super::wal_receive::WalReceiveArgs;
use crate::cli::{
    output::{aside, printed, told},
    values::{any_bytes, destination, interval, threads},
    verbs::wal_report::{WalCheck, WalList},
};
use clap::{Args, Subcommand, ValueHint};
use fullbore_engine::wal::{Got, PushReport, WalAhead, WalGet, WalPush, WalServe};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    wal::SegmentName,
};
use fullbore_platform::cores;
use fullbore_storage::Storages;
use std::{ffi::OsString, num::NonZeroUsize, path::PathBuf, time::Duration};

/// The exit code of a fetch that failed: a server ends its recovery then, and does not open.
pub(in crate::cli) const FETCH_FAILED: u8 = 126;

/// Segments behind a push that are left to a process of their own.
const BACKLOG: usize = 8;

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
    /// The level of zstd
    #[arg(long, value_name = "LEVEL", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=19))]
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

#[derive(Debug, Clone, Subcommand)]
pub(in crate::cli) enum WalVerb {
    /// Store a file that the server has finished, and those behind it
    ///
    /// archive_command = 'fullbore wal push %p --to REPO'
    Push {
        /// The file, which the server names with %p
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        path: PathBuf,
        /// The repository
        #[arg(long, value_name = "DEST", value_hint = ValueHint::DirPath, value_parser = any_bytes(destination))]
        to: OsString,
        #[command(flatten)]
        system: WalSystemArgs,
        #[command(flatten)]
        store: WalStoreArgs,
        /// Wait so long for a storage that is away
        #[arg(long, value_name = "TIME", value_parser = interval, default_value = "60s")]
        patience: Duration,
        /// Push only this file
        #[arg(long)]
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
    /// Read all WAL and check it for damage, gaps and conflicts
    Check {
        /// The repository
        #[arg(value_name = "REPO", value_hint = ValueHint::DirPath, value_parser = any_bytes(destination))]
        repository: OsString,
        #[arg(from_global)]
        json: bool,
    },
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
            to,
            system,
            store,
            patience,
            alone,
            no_serve,
        } => {
            let push = WalPush {
                storages: storages.clone(),
                path,
                to,
                copy_name: system.copy_name,
                system: system.system,
                level: store.level,
                workers: store.workers(),
                patience,
                alone,
            };
            let report = push.run()?;
            if !no_serve && !alone && report.waits_behind >= BACKLOG {
                leave_server(&push, &report);
            }
            Ok(0)
        }
        WalVerb::Get {
            name,
            path,
            from,
            system,
            through,
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
        } => {
            let ahead = WalAhead {
                storages: storages.clone(),
                name,
                from,
                system,
                copy_name,
                data,
            };
            ahead.run().map(|()| 0)
        }
        WalVerb::Serve {
            data,
            to,
            copy_name,
            store,
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
        WalVerb::Check { repository, json } => {
            let check = WalCheck {
                storages: storages.clone(),
                repository,
                json,
            };
            told(|out| check.run(out))
        }
    }
}

fn fetch(get: &WalGet, is_alone: bool, is_quiet: bool) -> Result<u8> {
    match get.run()? {
        Got::Written { leads_on } => {
            let behind = get.behind().filter(|_| leads_on && !is_alone);
            if let Some(Err(error)) = behind.map(|ahead| super::wal_server::fetch_ahead(&ahead)) {
                let what = "could not leave a process that fetches ahead";
                fullbore_platform::debug(|| Error::io(what, error).line());
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

/// Starts a process that pushes the backlog, with the words of this one. It is of no harm if there is one.
fn leave_server(push: &WalPush, report: &PushReport) {
    let data = push
        .path
        .parent()
        .and_then(|wal| wal.parent())
        .map(PathBuf::from);
    let Some(data) = data.filter(|_| report.stored_bytes > 0) else {
        return;
    };
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
