//! The command line: arguments, the progress line, the last lines, exit codes.
//!
//! `verbs/` has a file for each command: its arguments, and a function `run` that turns them into options of an engine and prints
//! the result. Here belongs only what people and programs type and read; nothing here decides anything about backups.

mod advice;
mod args;
mod child;
mod color;
mod command_line;
mod command_words;
mod encryption;
mod examples;
mod help;
mod html_chart;
mod html_page;
mod html_report;
mod limit;
mod manual;
mod metered_run;
mod metrics_file;
mod newest;
mod options;
mod output;
mod output_file;
mod profile;
mod progress;
mod report;
mod rsync_words;
mod scope_args;
mod select;
mod signals;
mod storage;
mod suggestions;
mod values;
mod verbs;

use args::Command;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform as platform;
use fullbore_storage::Storages;
use output::aside;
use std::{env, process::ExitCode};

/// Printed once, after a run on CIFS, vboxsf or 9p.
const UNSYNCED_DIRECTORY: &str = "warning: the file system cannot sync directories: after a power failure, files that were just \
    written may be missing";

/// Runs the command of the arguments of this process, and returns its exit code.
fn prepared_run() -> Result<u8> {
    platform::memory::prepare().map_err(|error| Error::io("could not begin", error))?;
    platform::raise_open_files_limit();
    platform::survive_file_size_limit();
    if let Some(words) = verbs::wal_words::read(&env::args_os().collect::<Vec<_>>()) {
        return run_plain(words);
    }
    let cli = suggestions::parse()?;
    let storages = cli.storage.storages(cli.command.storage_needs())?;
    if cli.global.json && !cli.command.has_json() {
        let message = "cannot use --json with this command";
        return Err(Error::new(ErrorKind::Usage, message)
            .because("its output is for another program already, or it has none")
            .hint("leave --json out; doc/json.md names the commands that have it"));
    }
    if cli.global.no_tricks {
        platform::refuse_tricks();
    }
    signals::watch(&cli.command, &storages);
    let about = advice::DataUse::of(&cli.command);
    run(cli.command, &storages, cli.global.quiet).map_err(|error| advice::advised(error, about))
}

/// Runs a command whose words clap did not read.
fn run_plain(words: verbs::wal_words::PlainWalWords) -> Result<u8> {
    let command = Command::Wal(words.wal);
    let storages = words.storage.storages(command.storage_needs())?;
    signals::watch(&command, &storages);
    run(command, &storages, words.is_quiet)
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let is_fetch = verbs::wal::is_fetch(&env::args_os().collect::<Vec<_>>());
    let result = match is_fetch {
        true => verbs::wal::without_panic(prepared_run),
        false => prepared_run(),
    };
    if platform::durable::has_refused_directory() {
        aside(UNSYNCED_DIRECTORY);
    }
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Errors before a command is known are about its words.
            let error = advice::advised(error, advice::DataUse::Other);
            aside(report::error(&error));
            let code = if is_fetch {
                verbs::wal::FETCH_FAILED
            } else {
                error.exit_code()
            };
            ExitCode::from(code)
        }
    }
}

/// Runs a command, and returns its exit code.
fn run(command: Command, storages: &Storages, is_quiet: bool) -> Result<u8> {
    match command {
        Command::Backup(args) => verbs::backup::run(*args, storages),
        Command::Init(args) => verbs::init::run(args, storages),
        Command::Restore(args) => verbs::restore::run(*args, storages),
        Command::List(args) => verbs::list::run(args, storages),
        Command::Show(args) => verbs::show::run(args, storages),
        Command::Stats(args) => verbs::stats::run(args, storages),
        Command::Fleet(args) => verbs::fleet::run(args, storages),
        Command::Cat(args) => verbs::cat::run(args, storages),
        Command::Mount(args) => verbs::mount::run(args, storages),
        Command::Web(args) => verbs::web::run(args, storages),
        Command::Verify(args) => verbs::verify::run(args, storages),
        Command::Drill(args) => verbs::drill::run(*args, storages),
        Command::Export(args) => verbs::export::run(args, storages),
        Command::Diff(args) => verbs::diff::run(args, storages),
        Command::Find(args) => verbs::find::run(args, storages),
        Command::Copy(args) => verbs::copy::run(*args, storages),
        Command::Sync(args) => verbs::sync::run(*args, storages),
        Command::Forget(args) => verbs::forget::run(args, storages),
        Command::Prune(args) => verbs::prune::run(args, storages),
        Command::Tag(args) => verbs::tag::run(args, storages),
        Command::Pin(args) => verbs::pin::run(args, storages, true),
        Command::Unpin(args) => verbs::pin::run(args, storages, false),
        Command::Key(args) => verbs::key::run(args, storages),
        Command::Host(args) => verbs::host::run(args, storages),
        Command::Repair(args) => verbs::repair::run(args, storages),
        Command::Serve(args) => verbs::serve::run(args, storages),
        Command::Run(args) => verbs::run::run(args, storages),
        Command::Wal(args) => verbs::wal::run(args, storages, is_quiet),
        Command::Config(args) => verbs::config::run(args),
        Command::Systemd(args) => verbs::systemd::run(args),
        Command::Schedule(args) => verbs::schedule::run(args),
        Command::Status(args) => verbs::status::run(args, storages),
        Command::Bench(args) => verbs::bench::run(args),
        Command::Tape(args) => verbs::tape::run(args, storages),
        Command::Simtape(args) => verbs::simtape::run(args),
        Command::Completions { shell } => verbs::completions::run(args::command(), shell),
        Command::Man { command, to } => {
            verbs::man::run(args::command(), command.as_deref(), to.as_deref())
        }
    }
}
