//! `fullbore mount`: shows backups as directories, until it is ended or unmounted.

use super::mount_watch::{MountWatcher, watch};
use crate::cli::{
    options::{FRAME_BYTES, PERFORMANCE, PLAIN_EXIT_CODES, memory},
    output::{aside, printed},
    report,
    select::no_filter,
    values::interval,
};
use clap::{Args, ValueHint};
use fullbore_engine::mount::{MountEnd, MountOptions, MountSession, clear_dead_mount};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::EntryName,
    text::size,
};
use fullbore_platform::{self as platform, queue::start};
use fullbore_repository::open::{open, place, read_repository};
use fullbore_storage::{Found, Storages};
use serde_json::json;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::exit,
    thread,
    time::Duration,
};

/// Time that programs with open files get after a signal.
const GRACE: Duration = Duration::from_secs(5);

/// `fullbore mount`.
#[derive(Debug, Args)]
#[command(after_help = PLAIN_EXIT_CODES)]
pub(in crate::cli) struct MountArgs {
    /// A repository or archive, with @ID, @latest, @2026-11-25 or @2d
    ///
    /// Without @BACKUP all backups of a repository are shown: ids/ID, latest, by-time, by-day,
    /// by-tag and hosts. With @BACKUP, DIR shows the tree of one: an id, latest, latest~1,
    /// 2026-11-25 or 2d.
    #[arg(value_name = "REPO[@BACKUP]", value_hint = ValueHint::AnyPath)]
    from: OsString,
    /// An empty directory
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// Let other users look, as far as the owners and modes of entries permit
    #[arg(long)]
    allow_other: bool,
    /// Wait this long for a storage that is away (0 = without end)
    ///
    /// A program that reads waits, too. After that time it gets an error.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = interval)]
    patience: Duration,
    /// Size of all caches together
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse, help_heading = PERFORMANCE)]
    memory: u64,
    /// Clear the mount when standard input ends, if its process is gone
    #[arg(long, hide = true)]
    watch: bool,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
}

pub(in crate::cli) fn run(args: MountArgs, storages: &Storages) -> Result<u8> {
    if args.watch {
        watch(&args.dir);
        return Ok(0);
    }
    // Pages are decoded on any thread: with a heap for each, all heaps grow to the largest page.
    platform::memory::return_large_buffers();
    clear_dead_mount(&args.dir);
    check_empty(&args.dir)?;
    let dir = platform::dir::real_path(&args.dir)
        .map_err(|error| Error::io(format!("could not examine {:?}", args.dir), error))?;
    // Before the mount: the watcher must know of it whenever this process is killed.
    let watcher = MountWatcher::start(&dir)?;
    // Before the mount as well: a signal that comes in between ends it.
    let signals = ending_signals();
    let session = mounted(&args, storages, &dir)?;
    if let Some(signals) = signals {
        end_on_signals(signals, session.end());
    }
    say_ready(&args)?;
    session.run()?;
    watcher.end();
    Ok(0)
}

/// Mounts one backup, or all of a repository.
fn mounted(args: &MountArgs, storages: &Storages, dir: &Path) -> Result<MountSession> {
    let patience = Some(args.patience).filter(|time| !time.is_zero());
    let options = MountOptions {
        memory: memory(args.memory, FRAME_BYTES),
        is_for_others: args.allow_other,
        patience,
        on_trouble: Box::new(|error| aside(report::error(&error))),
    };
    let (location, backup) = place(&args.from)?;
    let is_file = location.as_local().is_some() && location.look() == Found::File;
    if is_file || backup.is_some() {
        let archive = open(storages, &args.from, &no_filter(&args.from, true))?;
        return options.show_backup(archive, dir);
    }
    let objects = storages.objects(&location)?;
    read_repository(&*objects)?;
    options.show_repository(objects, dir)
}

/// Refuses a directory whose files the mount would hide.
fn check_empty(dir: &Path) -> Result<()> {
    let failed = |error| {
        Error::io(format!("could not open directory {dir:?}"), error)
            .hint("name an empty directory; `mkdir` makes one")
    };
    let mut names = fs::read_dir(dir).map_err(failed)?;
    if names.next().is_none() {
        return Ok(());
    }
    let message = format!("cannot mount at {dir:?}: it is not empty");
    Err(Error::new(ErrorKind::Usage, message)
        .hint("its files would be hidden; make a new directory"))
}

fn say_ready(args: &MountArgs) -> Result<()> {
    if args.json {
        let ready = json!({"type": "mounted", "directory": EntryName(args.dir.as_os_str().as_bytes().to_vec())});
        printed(|out| Ok(writeln!(out, "{ready}").map_or(1, |()| 0))).map(drop)
    } else {
        if !args.quiet {
            aside(format_args!(
                "{:?} shows {:?}; `umount` ends it",
                args.dir, args.from
            ));
        }
        Ok(())
    }
}

/// Catches the signals that end the mount, unless whoever started it ignores them.
fn ending_signals() -> Option<Signals> {
    let wanted = [SIGHUP, SIGINT, SIGTERM]
        .into_iter()
        .filter(|signal| !platform::is_ignored(*signal));
    Signals::new(wanted).ok()
}

/// Unmounts when a signal comes, and ends the process if programs keep files open.
fn end_on_signals(mut signals: Signals, end: MountEnd) {
    let _ = start(move || {
        if signals.forever().next().is_some() {
            end.unmount();
            thread::sleep(GRACE);
            exit(0);
        }
    });
}
