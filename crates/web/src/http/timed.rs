//! A connection whose waits have an end.

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::{
    cell::Cell,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

/// Time for a request with its form, and for the greeting of TLS.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Time for a piece of an answer: 128 KiB.
const PIECE_TIME: Duration = Duration::from_secs(60);
/// Time for the other side to take the end of an answer.
const END_TIME: Duration = Duration::from_secs(1);

/// A socket with a time at which reading and writing fail.
struct TimedSocket {
    socket: TcpStream,
    end: Rc<Cell<Instant>>,
}

impl TimedSocket {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.get().saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for TimedSocket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(buf)
    }
}

impl Write for TimedSocket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Line {
    Plain(TimedSocket),
    Encrypted(Box<StreamOwned<ServerConnection, TimedSocket>>),
}

/// A connection, encrypted or not. It belongs to one thread.
pub(crate) struct TimedStream {
    line: Line,
    end: Rc<Cell<Instant>>,
}

impl TimedStream {
    /// Takes a connection; with TLS, its greeting is a part of the first read.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(socket: TcpStream, tls: Option<Arc<ServerConfig>>) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let end = Rc::new(Cell::new(Instant::now() + REQUEST_TIME));
        let timed = TimedSocket {
            socket,
            end: end.clone(),
        };
        let line = match tls {
            None => Line::Plain(timed),
            Some(config) => {
                let connection = ServerConnection::new(config).map_err(io::Error::other)?;
                Line::Encrypted(Box::new(StreamOwned::new(connection, timed)))
            }
        };
        Ok(Self { line, end })
    }

    /// Sends a piece of an answer, of 128 KiB at most.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::TimedOut`] if the other side does not take it.
    pub(crate) fn write_piece(&mut self, piece: &[u8]) -> io::Result<()> {
        self.end.set(Instant::now() + PIECE_TIME);
        match &mut self.line {
            Line::Plain(socket) => socket.write_all(piece),
            Line::Encrypted(stream) => {
                stream.write_all(piece)?;
                stream.flush()
            }
        }
    }

    /// Ends the connection. `is_whole`: the answer is complete, so that the other side gets its end.
    pub(crate) fn finish(mut self, is_whole: bool) {
        self.end.set(Instant::now() + END_TIME);
        if is_whole && let Line::Encrypted(stream) = &mut self.line {
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
        let socket = match &mut self.line {
            Line::Plain(timed) => timed,
            Line::Encrypted(stream) => &mut stream.sock,
        };
        let _ = socket.socket.shutdown(Shutdown::Write);
        // Bytes that were not read would make the system drop the end of the answer.
        let mut rest = [0; 4096];
        for _ in 0..64 {
            match socket.read(&mut rest) {
                Ok(count) if count > 0 => {}
                _ => break,
            }
        }
    }
}

impl Read for TimedStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &mut self.line {
            Line::Plain(socket) => socket.read(buf),
            Line::Encrypted(stream) => stream.read(buf),
        }
    }
}
