//! Programs that `fullbore run` starts: its steps and its hooks.
//!
//! A signal that ends this process is passed on to the program that runs; [`is_interrupted`] then says that there was one.

use fullbore_format::error::{Error, Result};
use fullbore_platform::{child_environment::without_secrets, queue::start};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};
use std::{
    ffi::OsString,
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicI32, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// Bytes of standard error that are kept of each program.
const KEPT_BYTES: usize = 4096;
/// Time between a request to end and the kill.
const GRACE: Duration = Duration::from_secs(2);
/// Time between two looks at a program that may run too long.
const LOOK: Duration = Duration::from_millis(20);

/// The signal that came to end this process; 0 if none did.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);
/// The program that runs, and whether it leads a group of its own.
static RUNNING: Mutex<Option<(Pid, bool)>> = Mutex::new(None);

/// How a program ended.
#[derive(Debug)]
pub(super) struct ChildEnd {
    status: ExitStatus,
    /// Did it take too long, so that it was killed?
    pub(super) is_timed_out: bool,
    /// Its standard output, if that was kept.
    pub(super) out: Vec<u8>,
    /// The end of its standard error, if that was kept.
    pub(super) err: String,
}

impl ChildEnd {
    /// Its exit code; 1 if a signal ended it.
    pub(super) fn code(&self) -> u8 {
        let code = self.status.code().unwrap_or(1);
        u8::try_from(code).unwrap_or(1)
    }

    /// Why it is a failure, or `None` if it is none.
    pub(super) fn failure(&self) -> Option<String> {
        match (self.status.code(), self.status.signal()) {
            _ if self.is_timed_out => Some("it ran too long and was killed".to_owned()),
            (Some(0), _) => None,
            (Some(code), _) => Some(format!("it ended with code {code}")),
            (_, signal) => Some(format!("signal {} ended it", signal.unwrap_or_default())),
        }
    }
}

/// Passes signals on from now on.
pub(super) fn pass_signals_on() {
    let _ = start(pass_each_signal);
}

fn pass_each_signal() {
    let Ok(mut signals) = Signals::new([SIGHUP, SIGINT, SIGTERM]) else {
        return;
    };
    for signal in signals.forever() {
        INTERRUPTED.store(signal, SeqCst);
        if let Some(running) = running() {
            let _ = send(running, Signal::TERM);
        }
    }
}

/// Was there a signal to end?
pub(super) fn is_interrupted() -> bool {
    INTERRUPTED.load(SeqCst) != 0
}

/// Ends this process by the signal that came to end it, if one did, so that its parent sees it.
pub(super) fn end_if_interrupted() {
    match INTERRUPTED.load(SeqCst) {
        0 => {}
        signal => drop(emulate_default_handler(signal)),
    }
}

fn running() -> Option<(Pid, bool)> {
    RUNNING.lock().ok().and_then(|running| *running)
}

fn send((pid, is_group): (Pid, bool), signal: Signal) -> rustix::io::Result<()> {
    if is_group {
        kill_process_group(pid, signal)
    } else {
        kill_process(pid, signal)
    }
}

/// Runs a step: keeps its standard output, and shows and keeps its standard error.
///
/// # Errors
/// The system's.
pub(super) fn run_step(command: &mut Command) -> Result<ChildEnd> {
    let failed = |e| Error::io("could not run a step", e);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let out = child.stdout.take();
    let err = child.stderr.take();
    let (kept_err, got_err) = mpsc::channel();
    thread::spawn(move || kept_err.send(err.map(show_and_keep).unwrap_or_default()));
    let registered = Registered::new(&child, false);
    if let Some(pid) = registered.0.filter(|_| is_interrupted()) {
        // The signal came before the program was known.
        let _ = send((pid, false), Signal::TERM);
    }
    let mut kept = Vec::new();
    if let Some(mut out) = out {
        out.read_to_end(&mut kept).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    Ok(ChildEnd {
        status,
        is_timed_out: false,
        out: kept,
        // A program that it left behind may hold the pipe open.
        err: got_err.recv_timeout(GRACE).unwrap_or_default(),
    })
}

/// Copies to standard error, and returns the end.
fn show_and_keep(mut from: impl Read) -> String {
    let mut kept = Vec::new();
    let mut buf = [0; 4096];
    loop {
        match from.read(&mut buf) {
            Ok(0) => break,
            Ok(count) => {
                let _ = io::stderr().lock().write_all(&buf[..count]);
                kept.extend_from_slice(&buf[..count]);
                let over = kept.len().saturating_sub(KEPT_BYTES);
                kept.drain(..over);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&kept).trim_end().to_owned()
}

/// Runs a hook with `input` on its standard input, for no longer than `timeout`. All that it prints goes to standard error.
///
/// # Errors
/// The system's.
pub(super) fn run_hook(words: &[String], input: String, timeout: Duration) -> Result<ChildEnd> {
    let program = words.first().map_or("", String::as_str);
    let failed = |e| Error::io(format!("could not run {program:?}"), e);
    let mut command = Command::new(program);
    let arguments = words.iter().skip(1).map(OsString::from);
    let out = io::stderr().as_fd().try_clone_to_owned().map_err(failed)?;
    without_secrets(&mut command);
    command.args(arguments).stdin(Stdio::piped()).stdout(out);
    // A group of its own, so that a shell ends with the programs that it started.
    let mut child = command.process_group(0).spawn().map_err(failed)?;
    let registered = Registered::new(&child, true);
    if let Some(mut stdin) = child.stdin.take() {
        // It need not read.
        thread::spawn(move || stdin.write_all(input.as_bytes()));
    }
    let status = wait_until(&mut child, Instant::now() + timeout).map_err(failed)?;
    let is_timed_out = status.is_none();
    let status = match status {
        Some(status) => status,
        None => end(&mut child, &registered).map_err(failed)?,
    };
    Ok(ChildEnd {
        status,
        is_timed_out,
        out: Vec::new(),
        err: String::new(),
    })
}

fn wait_until(child: &mut Child, end: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= end {
            return Ok(status);
        }
        thread::sleep(LOOK);
    }
}

/// Asks the group of a program to end, and kills it if it does not.
fn end(child: &mut Child, registered: &Registered) -> io::Result<ExitStatus> {
    let group = registered.0.map(|pid| (pid, true));
    let tell = |signal| group.map(|group| send(group, signal));
    let _ = tell(Signal::TERM);
    let _ = wait_until(child, Instant::now() + GRACE)?;
    // Programs that it started may go on without it.
    let _ = tell(Signal::KILL);
    child.wait()
}

/// The program that signals are passed on to, until it is dropped.
struct Registered(Option<Pid>);

impl Registered {
    fn new(child: &Child, is_group: bool) -> Self {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        if let Ok(mut running) = RUNNING.lock() {
            *running = pid.map(|pid| (pid, is_group));
        }
        Self(pid)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Ok(mut running) = RUNNING.lock() {
            *running = None;
        }
    }
}
