//! The server of a drill: starts it on the restored files, waits until it accepts queries, and stops it.

use super::{programs::ServerPrograms, scratch::Scratch, user::ServerUser};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_postgres::stopped::read_small_text;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Line of `postmaster.pid` with the status, from 0; since version 10.
const STATUS_LINE: usize = 7;
/// The status of a server that accepts queries.
const READY: &str = "ready";
/// Bytes of the log that are read, from its end.
const LOG_BYTES: u64 = 64 << 10;
/// Lines of the log that an error repeats.
const LOG_LINES: usize = 3;
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// Time for a server to stop at once; it kills what does not end after 5 seconds.
const STOP: Duration = Duration::from_secs(8);

/// A running server. Dropped, it is stopped.
#[derive(Debug)]
pub(super) struct DrillServer {
    child: Child,
    data: PathBuf,
    log: PathBuf,
}

impl DrillServer {
    /// Starts the server on the files of the scratch directory, with the configuration in `conf` there.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start(
        scratch: &Scratch,
        programs: &ServerPrograms,
        user: &ServerUser,
    ) -> Result<Self> {
        let log = scratch.file("log");
        let program = programs.path("postgres");
        let failed = |e| Error::io(format!("could not start {program:?}"), e);
        // A file and not a pipe: a full pipe would block the server.
        let out = File::create_new(&log).map_err(failed)?;
        let conf = scratch.file("conf");
        let child = user
            .command(&program)
            .arg("-D")
            .arg(scratch.data())
            .arg("-c")
            .arg(format!("config_file={}", conf.display()))
            .current_dir(scratch.data())
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(failed)?)
            .stderr(out)
            .spawn()
            .map_err(failed)?;
        Ok(Self {
            child,
            data: scratch.data(),
            log,
        })
    }

    /// Waits until recovery has ended and the server accepts queries, however long that takes.
    ///
    /// # Errors
    /// [`ErrorKind::System`] with the last lines of its log if the server ends before.
    pub(super) fn wait_until_open(&mut self) -> Result<()> {
        while !self.is_open() {
            let ended = self.child.try_wait();
            let ended = ended.map_err(|e| Error::io("could not wait for the server", e))?;
            if let Some(status) = ended {
                return Err(self.failure(status));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn is_open(&self) -> bool {
        let text = read_small_text(&self.data.join("postmaster.pid")).unwrap_or_default();
        let mut lines = text.lines();
        let is_own = lines.next() == Some(&self.child.id().to_string());
        is_own && lines.nth(STATUS_LINE - 1).map(str::trim) == Some(READY)
    }

    fn failure(&self, status: ExitStatus) -> Error {
        let message = "the server ended before it accepted queries";
        let lines = self.log_lines();
        let is_bad = |line: &&String| line.starts_with("FATAL:") || line.starts_with("PANIC:");
        let bad = lines.iter().find(is_bad);
        let error = Error::new(ErrorKind::System, message);
        let error = match bad.and_then(|line| line.split_once(':')) {
            Some((_, why)) => error.because(why.trim().to_owned()),
            None => error.because(status.to_string()),
        };
        let last = lines.iter().rev().take(LOG_LINES).rev();
        last.fold(error, |error, line| error.detail(line.clone()))
    }

    /// The last lines of the server's log.
    pub(super) fn log_lines(&self) -> Vec<String> {
        let text = tail(&self.log).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Stops the server at once: its files are not needed any more.
    pub(super) fn stop(&mut self) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Some(id), Ok(None)) = (id, self.child.try_wait()) {
            let _ = kill_process(id, Signal::QUIT);
        }
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > STOP {
                let _ = self.child.kill();
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for DrillServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the end of a file.
pub(super) fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(LOG_BYTES)))?;
    let mut text = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
