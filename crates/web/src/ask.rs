//! Questions to the commands of this program, each in a process of its own.
//!
//! A page shows what the command says, so it cannot disagree with it. A question ends with its time, with enough lines, and when
//! nobody waits for it any more; its memory is that of its own process.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::{Locked, start};
use serde_json::Value;
use std::{
    env,
    ffi::OsString,
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

/// Time for a question.
const QUESTION_TIME: Duration = Duration::from_secs(120);
/// Bytes of a line of an answer.
const LINE_BYTES: u64 = 4 << 20;
/// Bytes of all lines that are kept of an answer.
const ANSWER_BYTES: usize = 8 << 20;
/// Bytes that are kept of standard error.
const ERROR_BYTES: usize = 4096;
/// Variables that would give the command other words.
const OF_WORDS: [&str; 3] = ["FULLBORE_PROFILE", "FULLBORE_REPOSITORY", "FULLBORE_CONFIG"];

/// An answer.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// Objects of JSON, one a line.
    pub(crate) lines: Vec<Value>,
    /// Whether these are all lines.
    pub(crate) is_whole: bool,
}

/// Returns the command of this program with these words; none of them is read from the environment.
pub(crate) fn command(words: &[OsString]) -> Command {
    let program = env::current_exe().unwrap_or_else(|_| "fullbore".into());
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    OF_WORDS.iter().for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// A command that runs; it is killed when it is dropped.
pub(crate) struct Running {
    child: Arc<Mutex<Child>>,
    errors: mpsc::Receiver<String>,
    pub(crate) out: ChildStdout,
}

impl Running {
    /// Starts a command.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn start(words: &[OsString]) -> Result<Self> {
        let failed = |error| Error::io("could not start a command", error);
        let mut command = command(words);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let none = || Error::new(ErrorKind::Bug, "a command has no output");
        let out = child.stdout.take().ok_or_else(none)?;
        let err = child.stderr.take().ok_or_else(none)?;
        let (sender, errors) = mpsc::channel();
        start(move || sender.send(end_of(err)))?;
        Ok(Self {
            child: Arc::new(Mutex::new(child)),
            errors,
            out,
        })
    }

    /// Kills the command after this time.
    ///
    /// # Errors
    /// The system has no thread.
    pub(crate) fn limit(&self, time: Duration) -> Result<mpsc::Sender<()>> {
        let child = Arc::downgrade(&self.child);
        let (ended, end) = mpsc::channel::<()>();
        start(move || {
            let is_late = end.recv_timeout(time) == Err(mpsc::RecvTimeoutError::Timeout);
            if is_late && let Some(child) = child.upgrade() {
                let _ = child.locked().kill(); // it may have ended
            }
        })?;
        Ok(ended)
    }

    /// Waits for the end. Returns the exit code.
    ///
    /// # Errors
    /// The words of the command, if the exit code is not among `good`.
    pub(crate) fn finish(self, good: &[i32]) -> Result<i32> {
        let status = self.child.locked().wait();
        let status = status.map_err(|error| Error::io("could not wait for a command", error))?;
        match status.code() {
            Some(code) if good.contains(&code) => Ok(code),
            None => Err(Error::new(ErrorKind::System, "it took too long")),
            Some(_) => {
                let said = self.errors.recv_timeout(Duration::from_secs(1));
                Err(said_error(&said.unwrap_or_default()))
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut child = self.child.locked();
        let _ = child.kill(); // it may have ended
        let _ = child.wait();
    }
}

/// Returns what a command said as an error: its lines without the words that begin them.
fn said_error(said: &str) -> Error {
    let mut lines = said.lines().map(str::trim);
    let first = lines.find(|line| line.starts_with("error: "));
    let first = first.and_then(|line| line.strip_prefix("error: "));
    let error = Error::new(ErrorKind::System, first.unwrap_or("the command failed"));
    lines.fold(error, |error, line| match line.strip_prefix("hint:") {
        Some(hint) => error.hint(hint.trim().to_owned()),
        None => error.detail(line),
    })
}

fn end_of(mut from: impl Read) -> String {
    let mut kept = Vec::new();
    let mut buf = [0; 1024];
    while let Ok(count) = from.read(&mut buf) {
        if count == 0 {
            break;
        }
        kept.extend_from_slice(&buf[..count]);
        let over = kept.len().saturating_sub(ERROR_BYTES);
        kept.drain(..over);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Asks a command for lines of JSON, `most` at most; with one of the exit codes `good` there is no error.
///
/// # Errors
/// Those of the command, in its words.
pub(crate) fn ask(words: &[OsString], most: usize, good: &[i32]) -> Result<Answer> {
    let mut answer = Answer::default();
    let mut bytes = 0;
    answer.is_whole = ask_lines(words, good, |line, length| {
        bytes += length;
        let has_room = answer.lines.len() < most && bytes <= ANSWER_BYTES;
        if has_room {
            answer.lines.push(line);
        }
        has_room
    })?;
    Ok(answer)
}

/// Asks a command, and gives each object of JSON to `take`.
///
/// # Errors
/// As [`ask`].
pub(crate) fn ask_each(
    words: &[OsString],
    good: &[i32],
    mut take: impl FnMut(Value),
) -> Result<()> {
    let take = |line, _| {
        take(line);
        true
    };
    ask_lines(words, good, take).map(drop)
}

/// Gives each line and its length to `take` until it returns `false`. Returns whether these were all.
fn ask_lines(
    words: &[OsString],
    good: &[i32],
    mut take: impl FnMut(Value, usize) -> bool,
) -> Result<bool> {
    let mut running = Running::start(words)?;
    let _limit = running.limit(QUESTION_TIME)?;
    let mut out = BufReader::new(&mut running.out);
    loop {
        let mut line = String::new();
        let read = (&mut out).take(LINE_BYTES).read_line(&mut line);
        let count = read.map_err(|error| Error::io("could not read an answer", error))?;
        if count == 0 {
            break;
        }
        let parsed = serde_json::from_str(&line);
        let parsed = parsed
            .map_err(|why| Error::new(ErrorKind::Bug, "an answer is no JSON").because(why))?;
        if !take(parsed, count) {
            return Ok(false);
        }
    }
    running.finish(good)?;
    Ok(true)
}
