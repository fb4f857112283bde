//! `fullbore wal receive`.

use super::{backup_source::params, wal::copy_name};
use crate::cli::{
    metrics_file::{MetricsFile, metrics_path},
    output::aside,
    report,
    values::{any_bytes, destination, interval},
};
use clap::{Args, ValueHint};
use fullbore_engine::wal::{ReceiveEvent, WalReceive};
use fullbore_format::error::{Error, Result};
use fullbore_storage::Storages;
use std::{ffi::OsString, path::PathBuf, time::Duration};

/// The name of the application where none was given.
const APPLICATION: &str = "fullbore";

/// `fullbore wal receive`.
#[derive(Debug, Args, Clone)]
pub(in crate::cli) struct WalReceiveArgs {
    /// The server, or all servers of a cluster: a connection string
    ///
    /// The role needs the right to replicate. A password comes from PGPASSWORD, ~/.pgpass or a service file.
    #[arg(value_name = "postgres://…")]
    server: String,
    /// The repository
    #[arg(long, value_name = "DEST", value_hint = ValueHint::DirPath, value_parser = any_bytes(destination))]
    to: OsString,
    /// The replication slot: the server keeps WAL that was not received
    ///
    /// It is also the name in synchronous_standby_names, unless application_name is given.
    #[arg(long, value_name = "NAME")]
    slot: String,
    /// Make the slot if there is none
    #[arg(long)]
    create_slot: bool,
    /// Store each commit at once, for synchronous_standby_names
    #[arg(long)]
    sync: bool,
    /// Store WAL after this time
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s", conflicts_with = "sync")]
    every: Duration,
    /// Go on behind WAL that the server has removed, and note the gap
    #[arg(long)]
    accept_gap: bool,
    /// Archive a copy of a cluster apart from its origin, under this name
    #[arg(long = "as", value_name = "NAME", value_parser = copy_name)]
    copy_name: Option<String>,
    /// The level of zstd, from -10 to 19
    #[arg(long, value_name = "LEVEL", default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-10..=19))]
    level: i32,
    /// Write lag and amount to this file every 10 seconds, for node_exporter
    #[arg(long, value_name = "FILE.prom", value_parser = metrics_path, value_hint = ValueHint::FilePath)]
    metrics: Option<PathBuf>,
}

/// Receives until there is an error, or a signal.
pub(in crate::cli) fn run(args: WalReceiveArgs, storages: Storages, is_quiet: bool) -> Result<u8> {
    let mut server = params(&args.server)?;
    if server.application_name == APPLICATION {
        server.application_name.clone_from(&args.slot);
    }
    let metrics = args.metrics.as_deref();
    let metrics = metrics
        .map(|path| MetricsFile::new(path, None))
        .transpose()?;
    let receive = WalReceive {
        storages,
        server,
        to: args.to,
        slot: args.slot,
        creates_slot: args.create_slot,
        is_synchronous: args.sync,
        every: args.every,
        accepts_gap: args.accept_gap,
        copy_name: args.copy_name,
        level: args.level,
    };
    let mut printed = ReceiveLines {
        metrics,
        is_quiet,
        is_synchronous: args.sync,
        last: String::new(),
    };
    receive.run(&mut |event| printed.tell(&event))?;
    Ok(0)
}

/// Prints what happens, each thing once.
struct ReceiveLines {
    metrics: Option<MetricsFile>,
    is_quiet: bool,
    is_synchronous: bool,
    last: String,
}

impl ReceiveLines {
    fn tell(&mut self, event: &ReceiveEvent<'_>) {
        match event {
            ReceiveEvent::Begun {
                system,
                timeline,
                from,
                answers_late,
            } => {
                self.print(format!(
                    "receiving WAL of system {system} on timeline {timeline} from {from} on"
                ));
                if *answers_late && self.is_synchronous {
                    self.print("each commit waits for a request to the storage".to_owned());
                }
            }
            ReceiveEvent::Lost(error) => self.print_loss(error),
            ReceiveEvent::Skipped(from, to) => {
                self.print(format!(
                    "gap: {from} to {to} are missing; make a new backup"
                ));
            }
            ReceiveEvent::Progress(progress) => {
                if let Some(metrics) = &self.metrics {
                    metrics.write_received(progress);
                }
            }
        }
    }

    fn print(&mut self, line: String) {
        if !self.is_quiet {
            aside(&line);
        }
        self.last = line;
    }

    /// Also with --quiet, but not again and again.
    fn print_loss(&mut self, error: &Error) {
        let line = report::error(error).to_string();
        if self.last != line {
            aside(format_args!("{line}\ntrying again"));
        }
        self.last = line;
    }
}
