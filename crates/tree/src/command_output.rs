//! The output of a command, as it is read: its end is an error unless the command succeeded.

use fullbore_format::error::{Error, Result};
use fullbore_platform::child_environment::without_secrets;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::{OsStr, OsString},
    io::{self, Read},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::Mutex,
};

static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Ends all commands whose output is read, because this process ends. May be called at any time.
pub fn end_commands() {
    let running = RUNNING.lock().map(|running| running.clone());
    for pid in running.unwrap_or_default() {
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// Reads the standard output of a command. Its standard input and standard error are those of this process.
#[derive(Debug)]
pub struct CommandOutput {
    program: OsString,
    child: Child,
    out: ChildStdout,
    is_over: bool,
}

impl CommandOutput {
    /// Starts a command: a program and its arguments.
    ///
    /// # Errors
    /// The system's, as where there is no such program.
    pub fn start(words: &[OsString]) -> Result<Self> {
        let program = words.first().map_or(OsStr::new(""), OsString::as_os_str);
        let failed = |e| Error::io(format!("could not run {program:?}"), e);
        let mut command = Command::new(program);
        // The command of a user needs neither the passphrase nor the keys of a store.
        let command = without_secrets(&mut command);
        let command = command.args(words.iter().skip(1)).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let out = child
            .stdout
            .take()
            .ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        if let (Some(pid), Ok(mut running)) = (pid_of(&child), RUNNING.lock()) {
            running.push(pid);
        }
        Ok(Self {
            program: program.to_owned(),
            child,
            out,
            is_over: false,
        })
    }

    /// Its number may belong to another process after it was waited for.
    fn forget(&self) {
        if let Ok(mut running) = RUNNING.lock() {
            running.retain(|pid| Some(*pid) != pid_of(&self.child));
        }
    }

    fn check(&self, status: ExitStatus) -> io::Result<()> {
        let program = &self.program;
        let reason = match (status.code(), status.signal()) {
            (Some(0), _) => return Ok(()),
            (Some(code), _) => format!("{program:?} ended with code {code}"),
            (None, signal) => {
                format!("signal {} ended {program:?}", signal.unwrap_or_default())
            }
        };
        Err(io::Error::other(reason))
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

impl Read for CommandOutput {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.out.read(bytes)?;
        if count == 0 && !bytes.is_empty() && !self.is_over {
            self.forget();
            let status = self.child.wait()?;
            self.is_over = true;
            self.check(status)?;
        }
        Ok(count)
    }
}

impl Drop for CommandOutput {
    /// Ends a command whose output is no longer wanted.
    fn drop(&mut self) {
        if !self.is_over {
            self.forget();
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(script: &str) -> (String, io::Result<usize>) {
        let words = ["sh", "-c", script].map(OsString::from);
        let mut text = String::new();
        let mut output = CommandOutput::start(&words).unwrap();
        let end = output.read_to_string(&mut text);
        (text, end)
    }

    #[test]
    fn the_end_of_a_command_that_failed_is_an_error() {
        assert_eq!(read("echo a; echo b").1.unwrap(), 4);
        for (script, why) in [
            ("echo a; exit 3", "\"sh\" ended with code 3"),
            ("echo a; kill -9 $$", "signal 9 ended \"sh\""),
        ] {
            assert_eq!(read(script).1.unwrap_err().to_string(), why);
        }
        assert!(CommandOutput::start(&["/nowhere/x".into()]).is_err());
    }
}
