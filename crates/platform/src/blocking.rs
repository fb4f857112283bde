//! Descriptors that another program has made non-blocking, such as a pipe it shares with its
//! children.

use rustix::event::{PollFd, PollFlags, poll};
use std::{
    io::{self, ErrorKind, Read, Write},
    os::fd::AsFd,
};

/// Reads and writes that wait, even if the descriptor is non-blocking. The mode itself is not
/// changed, because all processes that share the descriptor share its mode.
#[derive(Debug)]
pub struct BlockedCalls<F>(pub F);

impl<F: AsFd> BlockedCalls<F> {
    fn until<T>(
        &mut self,
        ready: PollFlags,
        mut call: impl FnMut(&mut F) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match call(&mut self.0) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
            match poll(&mut [PollFd::new(&self.0, ready)], None) {
                Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
                _ => {}
            }
        }
    }
}

impl<F: AsFd + Read> Read for BlockedCalls<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.until(PollFlags::IN, |stream| stream.read(bytes))
    }
}

impl<F: AsFd + Write> Write for BlockedCalls<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.until(PollFlags::OUT, |stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.until(PollFlags::OUT, Write::flush)
    }
}
