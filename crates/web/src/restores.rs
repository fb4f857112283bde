//! Restores that a page began: one at a time, by `fullbore restore`.

use crate::ask::command;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::{Locked, start};
use serde::Serialize;
use serde_json::Value;
use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Read},
    process::{Child, Stdio},
    sync::{Arc, Mutex},
};

/// Bytes of a line of progress.
const LINE_BYTES: u64 = 1 << 20;
/// Bytes that are kept of standard error.
const ERROR_BYTES: usize = 4096;

/// The state of the last restore.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct RestoreState {
    /// Whether one was begun since this program started.
    pub(crate) began: bool,
    pub(crate) running: bool,
    pub(crate) backup: String,
    pub(crate) target: String,
    /// The last line of progress, or the result.
    pub(crate) last: Option<Value>,
    pub(crate) exit_code: Option<i32>,
    /// The end of standard error.
    pub(crate) messages: String,
}

/// Begins restores, if that is allowed.
pub(crate) struct Restores {
    is_allowed: bool,
    state: Arc<Mutex<RestoreState>>,
}

impl Restores {
    pub(crate) fn new(is_allowed: bool) -> Self {
        Self {
            is_allowed,
            state: Arc::default(),
        }
    }

    /// Whether pages may restore.
    pub(crate) fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// Returns how the last restore stands.
    pub(crate) fn state(&self) -> RestoreState {
        self.state.locked().clone()
    }

    /// Begins a restore.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if restores are not allowed; [`ErrorKind::Usage`] if one runs; the system's.
    pub(crate) fn begin(&self, words: &[OsString], backup: &str, target: &str) -> Result<()> {
        if !self.is_allowed {
            let error = Error::new(ErrorKind::Permission, "this server does not restore");
            return Err(
                error.hint("copy the command, or start `fullbore web` with --allow-restore")
            );
        }
        let mut state = self.state.locked();
        if state.running {
            let error = Error::new(ErrorKind::Usage, "another restore is running");
            return Err(error.hint("wait until it has ended"));
        }
        let mut command = command(words);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |error| Error::io("could not start a restore", error);
        let child = command.spawn().map_err(failed)?;
        *state = RestoreState {
            began: true,
            running: true,
            backup: backup.to_owned(),
            target: target.to_owned(),
            ..RestoreState::default()
        };
        drop(state);
        let state = self.state.clone();
        start(move || follow(child, &state)).map(drop)
    }
}

/// Follows a restore until it ends.
fn follow(mut child: Child, state: &Arc<Mutex<RestoreState>>) {
    if let Some(err) = child.stderr.take() {
        let state = state.clone();
        let _ = start(move || keep_messages(err, &state));
    }
    if let Some(out) = child.stdout.take() {
        let mut out = BufReader::new(out);
        let mut line = String::new();
        while let Ok(count) = (&mut out).take(LINE_BYTES).read_line(&mut line) {
            if count == 0 {
                break;
            }
            if let Ok(value) = serde_json::from_str(&line) {
                state.locked().last = Some(value);
            }
            line.clear();
        }
    }
    let code = child.wait().ok().and_then(|status| status.code());
    let mut state = state.locked();
    state.running = false;
    state.exit_code = code.or(Some(1));
}

fn keep_messages(mut from: impl Read, state: &Mutex<RestoreState>) {
    let mut buf = [0; 1024];
    while let Ok(count) = from.read(&mut buf) {
        if count == 0 {
            break;
        }
        let mut state = state.locked();
        state
            .messages
            .push_str(&String::from_utf8_lossy(&buf[..count]));
        while state.messages.len() > ERROR_BYTES {
            let first = state.messages.chars().next().map_or(1, char::len_utf8);
            state.messages.drain(..first);
        }
    }
}
