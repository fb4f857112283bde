//! One direction of a connection: a pipe or a socket that is waited for with `poll`, so that whoever waits notices the end of the
//! connection, and a side that says nothing any more.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
};
use std::{
    fs::File,
    io::{self, IoSlice, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Time after which whoever waits looks whether the connection has ended.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 250_000_000,
};

/// A pipe or a socket that does not block.
#[derive(Debug)]
pub(super) struct WireStream {
    file: File,
    is_ended: Arc<AtomicBool>,
    /// A read fails if nothing comes for so long.
    pub(super) silence: Duration,
}

impl WireStream {
    pub(super) fn new(
        fd: OwnedFd,
        is_ended: Arc<AtomicBool>,
        silence: Duration,
    ) -> io::Result<Self> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            file: fd.into(),
            is_ended,
            silence,
        })
    }

    /// Does the call again until it need not wait.
    fn retried<T>(
        &self,
        flags: PollFlags,
        deadline: Option<Instant>,
        mut call: impl FnMut(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            if self.is_ended.load(Relaxed) {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "the connection has ended",
                ));
            }
            match call(&self.file) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let why = format!("nothing came for {} seconds", self.silence.as_secs_f32());
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            match poll(&mut [PollFd::new(&self.file, flags)], Some(&LOOK)) {
                Err(rustix::io::Errno::INTR) | Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Wakes both sides, if this is a socket; the other side of a pipe wakes when this is closed.
    pub(super) fn shut_down(self) {
        let _ = UnixStream::from(OwnedFd::from(self.file)).shutdown(std::net::Shutdown::Both);
    }
}

impl Read for WireStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let deadline = Instant::now() + self.silence;
        self.retried(PollFlags::IN, Some(deadline), |mut file| file.read(bytes))
    }
}

impl Write for WireStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retried(PollFlags::OUT, None, |mut file| file.write(bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.retried(PollFlags::OUT, None, |mut file| file.write_vectored(slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
