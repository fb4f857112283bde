//! Handles signals that end a run: prints the consequences, and deletes unfinished archives.
//!
//! A signal that was ignored when the program started (`nohup`) stays ignored. After the handler ran, the process ends by the
//! signal, so that its parent sees it.

use super::{
    args::Command,
    child,
    output::aside,
    progress::{A_MOMENT, clear_line},
    report,
};
use fullbore_engine::{drill::end_drill, plan::SinkSpec, sink::local_file::remove_partials};
use fullbore_format::error::{Error, ErrorKind};
use fullbore_pipeline::sink::commit_flag::is_named;
use fullbore_platform as platform;
use fullbore_platform::queue::start;
use fullbore_storage::{Location, Storages};
use fullbore_tree::{command_output::end_commands, write::access::restore_dir_access};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
    low_level::{emulate_default_handler, signal_name},
};
use std::{ffi::OsStr, sync::mpsc};

/// The message once a backup, copy or archive is committed.
const NAMED: &str = ": what it made is complete, but may not be durable yet";

/// From now on, a signal prints its consequence for `command`. If no thread can be started, signals end the process without a
/// message.
pub(super) fn watch(command: &Command, storages: &Storages) {
    // A server that listens, a mount and pages end by themselves.
    if matches!(command, Command::Serve(args) if args.listen.is_some())
        || matches!(command, Command::Mount(_) | Command::Web(_))
    {
        return;
    }
    // Nor does a part of an instant restore print anything.
    if fullbore_engine::instant::has_role() {
        return;
    }
    if matches!(command, Command::Run(_)) {
        return child::pass_signals_on();
    }
    let (lost, hint) = meaning(command, storages);
    let _ = start(move || wait_for_signals(lost, hint));
}

/// Waits for signals, prints the consequence, and ends the process.
fn wait_for_signals(lost: &'static str, hint: &'static str) {
    let wanted = [SIGHUP, SIGINT, SIGTERM]
        .into_iter()
        .filter(|signal| !platform::is_ignored(*signal));
    let Ok(mut signals) = Signals::new(wanted) else {
        return;
    };
    for signal in signals.forever() {
        let name = signal_name(signal).unwrap_or("a signal");
        let (done, is_done) = mpsc::channel();
        let end = move || {
            end_run(name, lost, hint);
            let _ = done.send(());
        };
        // Standard error may block, and a disk may hang.
        let _ = start(end).map(|_| is_done.recv_timeout(A_MOMENT));
        let _ = emulate_default_handler(signal); // ends the process
    }
}

/// Ends commands and servers, removes partial files, and prints what the signal costs.
fn end_run(name: &str, lost: &str, hint: &'static str) {
    end_commands();
    remove_partials();
    end_drill();
    restore_dir_access();
    // Read after the wait for commits in progress.
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
    clear_line();
    aside(report::error(&error));
}

fn is_repository(storages: &Storages, destination: &OsStr) -> bool {
    match Location::parse(destination) {
        // Another host is not asked.
        Ok(far) if far.as_local().is_none() => far.is_repository(),
        _ => matches!(
            SinkSpec::parse(storages, destination, None),
            Ok((SinkSpec::Repository(_), _))
        ),
    }
}

/// What the interruption costs, and how to continue.
fn meaning(command: &Command, storages: &Storages) -> (&'static str, &'static str) {
    match command {
        Command::Backup(args) if args.dry_run => ("", ""),
        Command::Backup(args) if is_repository(storages, args.first_to()) => (
            ": nothing was committed",
            "the next backup of the same source goes on from the last checkpoint, if there was one (--checkpoint-interval)",
        ),
        Command::Copy(args) if !args.is_between_repositories(storages) => (
            ": the copy is not complete",
            "the same command goes on from there",
        ),
        Command::Sync(args) if args.dry_run => ("", ""),
        Command::Sync(_) => (
            ": the backups that were copied are complete",
            "the same command goes on from there",
        ),
        Command::Backup(_) | Command::Export(_) | Command::Copy(_) => {
            (": nothing was committed", "")
        }
        Command::Drill(_) => (
            ": the drill says nothing about the backup",
            "what is left of it is removed by the next drill",
        ),
        Command::Restore(args) if args.plan || args.dry_run => ("", ""),
        Command::Restore(args) if args.from == "-" => (": the target is not complete", ""),
        Command::Restore(_) => (
            ": the target is not complete",
            "the same command with --delta goes on from there; of a cluster with --delta --delete",
        ),
        _ => ("", ""),
    }
}
