//! The worker as its guardian sees it: a process that is asked over a pipe, and that wakes the guardian over another.

use super::{messages::WorkerRequest, roles::start, state_dir::StateDir};
use fullbore_platform::pre_content::EventGroup;
use rustix::{
    io::{FdFlags, fcntl_setfd},
    pipe::{PipeFlags, pipe_with},
};
use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd},
    process::Child,
    time::{Duration, Instant},
};

/// Time between two starts.
const PAUSE: Duration = Duration::from_millis(500);

/// The process, and its pipes.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    state: StateDir,
    running: Option<RunningWorker>,
    wakes: u64,
    last_start: Option<Instant>,
}

#[derive(Debug)]
struct RunningWorker {
    child: Child,
    requests: File,
    wake: File,
    is_serving: bool,
}

impl WorkerProcess {
    pub(super) fn new(state: &StateDir) -> Self {
        Self {
            state: state.clone(),
            running: None,
            wakes: 0,
            last_start: None,
        }
    }

    /// Starts a worker. The one before it has ended.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start(&mut self, group: &EventGroup) -> io::Result<()> {
        self.last_start = Some(Instant::now());
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (worker_reads, requests) = pipe_with(flags)?;
        let (wake, worker_wakes) = pipe_with(flags)?;
        // Only the guardian must never wait.
        rustix::io::ioctl_fionbio(&worker_reads, false)?;
        fcntl_setfd(&worker_reads, FdFlags::CLOEXEC)?;
        let log = self.state.log().map_err(|e| io::Error::other(e.line()))?;
        let child = start(
            "worker",
            [group, &worker_reads, &worker_wakes, &worker_wakes],
            log.into(),
        )?;
        self.running = Some(RunningWorker {
            child,
            requests: requests.into(),
            wake: wake.into(),
            is_serving: false,
        });
        Ok(())
    }

    /// Returns whether none runs and it is time to start one. A worker that cannot start must not take all processor
    /// time.
    pub(super) fn is_due(&self) -> bool {
        let is_soon = self.last_start.is_some_and(|start| start.elapsed() < PAUSE);
        self.running.is_none() && !is_soon
    }

    /// Returns its number; 0 if none runs.
    pub(super) fn id(&self) -> u32 {
        self.running
            .as_ref()
            .map_or(0, |running| running.child.id())
    }

    /// Returns whether it has said that it serves.
    pub(super) fn is_serving(&self) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| running.is_serving)
    }

    pub(super) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.wake.as_fd())
    }

    /// Takes the bytes that woke the guardian.
    pub(super) fn drain(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = running.wake.read(&mut bytes) {
            running.is_serving = true;
            self.wakes += read as u64;
        }
    }

    /// Returns how often the worker woke the guardian: that it does something.
    pub(super) fn wakes(&self) -> u64 {
        self.wakes
    }

    /// Sends a request. If the pipe is full or the worker has ended, the request is sent again later.
    pub(super) fn send(&self, request: WorkerRequest) {
        if let Some(running) = &self.running {
            let _ = request.send(&running.requests);
        }
    }

    /// Returns the exit code of a worker that has ended, once; 128 and the signal for one that was killed.
    pub(super) fn ended(&mut self) -> Option<i32> {
        let running = self.running.as_mut()?;
        let status = running.child.try_wait().ok()??;
        self.running = None;
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        Some(status.code().unwrap_or(128 + signal.unwrap_or(0)))
    }

    /// Ends the worker, and waits until it has ended.
    pub(super) fn kill(&mut self) {
        if let Some(running) = &mut self.running {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}
