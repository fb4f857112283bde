//! A run that a signal ends: what that means is said, and no archive is left half written under a hidden name.
//!
//! A signal that whoever started the program wants ignored (`nohup`) stays so, and a process that was ended by one ends by it.

use super::{A_MOMENT, args::Command, output::aside, report};
use crate::{
    error::{Error, ErrorKind},
    plan::SinkSpec,
    platform,
    queue::start,
    sink::{commit_flag::is_named, local_file::remove_partials},
    target::access::restore_dir_access,
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
    low_level::{emulate_default_handler, signal_name},
};
use std::sync::mpsc;

/// What is said instead once a backup, copy or archive has its name.
const NAMED: &str = ": what it made is complete, but may not be durable yet";

/// From now on, say what a signal does to `command`. Without a thread nothing is said, and it ends the process alone.
pub(super) fn watch(command: &Command) {
    let (lost, hint) = meaning(command);
    let wait = move || {
        let wanted = [SIGHUP, SIGINT, SIGTERM]
            .into_iter()
            .filter(|signal| !platform::is_ignored(*signal));
        let Ok(mut signals) = Signals::new(wanted) else {
            return;
        };
        for signal in signals.forever() {
            let name = signal_name(signal).unwrap_or("a signal");
            let (done, is_done) = mpsc::channel();
            let tell = move || {
                remove_partials();
                restore_dir_access();
                // Looked at behind the wait for names that were being given.
                let (lost, hint) = if is_named() {
                    (NAMED, "")
                } else {
                    (lost, hint)
                };
                let error = Error::new(ErrorKind::System, format!("interrupted by {name}{lost}"));
                let error = if hint.is_empty() {
                    error
                } else {
                    error.hint(hint)
                };
                aside(report::error(&error));
                let _ = done.send(());
            };
            // Nobody may read standard error, and a disk may hang.
            let _ = start(tell).map(|_| is_done.recv_timeout(A_MOMENT));
            let _ = emulate_default_handler(signal); // it ends the process
        }
    };
    let _ = start(wait);
}

/// What is lost by an interruption, and how to go on.
fn meaning(command: &Command) -> (&'static str, &'static str) {
    let is_repository = |to| matches!(SinkSpec::parse(to, None), Ok((SinkSpec::Repository(_), _)));
    match command {
        Command::Backup(args) if args.dry_run => ("", ""),
        Command::Backup(args) if is_repository(&args.to) => (
            ": nothing was committed",
            "the next backup of the same source goes on from the last checkpoint, if there was one (--checkpoint-interval)",
        ),
        Command::Backup(_) | Command::Export(_) | Command::CopyBackup(_) => {
            (": nothing was committed", "")
        }
        Command::Restore(args) if args.plan => ("", ""),
        Command::Restore(args) if args.from == "-" => (": the target is not complete", ""),
        Command::Restore(_) => (
            ": the target is not complete",
            "the same command with --delta goes on from there; of a cluster with --delta --delete",
        ),
        _ => ("", ""),
    }
}
