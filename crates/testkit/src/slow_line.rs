//! A line between a client and a server on this host that answers late, and carries so many bytes a second.
//!
//! The server listens on a Unix socket. Each connection holds as many bytes as a send buffer of Linux has.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Bytes that a connection carries at the same time: the default of `tcp_wmem`.
const WINDOW_BYTES: usize = 4 << 20;
/// Time that a thread may sleep too long and the line makes up for.
const LATE: Duration = Duration::from_millis(10);
const PIECE_BYTES: usize = 64 << 10;

/// The line, for as long as the process runs.
#[derive(Clone)]
pub struct SlowLine {
    pub port: u16,
    /// Bytes that the server has sent.
    pub received: Arc<AtomicU64>,
    /// Writes of clients that pass before a connection is cut: about one for each statement.
    pub left: Arc<AtomicI64>,
}

/// What all connections share.
#[derive(Clone)]
struct Line {
    delay: Duration,
    bytes_per_second: u64,
    /// When the line is free again.
    free: Arc<Mutex<Instant>>,
    carried: Arc<AtomicU64>,
    left: Arc<AtomicI64>,
}

impl SlowLine {
    /// A line to the server at `socket`. `round_trip` passes between a question and its answer.
    pub fn to(socket: &Path, round_trip: Duration, bytes_per_second: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let line = |carried: &Arc<AtomicU64>, left: &Arc<AtomicI64>| Line {
            delay: round_trip / 2,
            bytes_per_second,
            free: Arc::new(Mutex::new(Instant::now())),
            carried: carried.clone(),
            left: left.clone(),
        };
        let received = Arc::new(AtomicU64::new(0));
        let endless = Arc::new(AtomicI64::new(i64::MAX));
        let there = line(&Arc::default(), &left);
        let back = line(&received, &endless);
        let socket: PathBuf = socket.to_owned();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = UnixStream::connect(&socket) else {
                    continue;
                };
                client.set_nodelay(true).ok();
                let (from_client, to_client) = (client.try_clone().unwrap(), client);
                let (from_server, to_server) = (server.try_clone().unwrap(), server);
                there.carry(from_client, to_server);
                back.carry(from_server, to_client);
            }
        });
        Self {
            port,
            received,
            left,
        }
    }
}

impl Line {
    fn carry(&self, mut from: impl Read + Send + 'static, to: impl Write + Shut + Send + 'static) {
        let (sender, receiver) = channel();
        let window = Arc::new(Window::default());
        let (line, room) = (self.clone(), window.clone());
        thread::spawn(move || line.deliver(&receiver, &room, to).ok());
        let delay = self.delay;
        thread::spawn(move || read_pieces(&mut from, delay, &window, &sender).ok());
    }

    fn deliver(
        &self,
        pieces: &Receiver<(Instant, Vec<u8>)>,
        window: &Window,
        mut to: impl Write + Shut,
    ) -> io::Result<()> {
        for (due, piece) in pieces {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let seconds = piece.len() as f64 / self.bytes_per_second as f64;
            let done = {
                let mut free = self.free.lock().unwrap();
                let latest = Instant::now().checked_sub(LATE).unwrap_or(*free);
                *free = (*free).max(latest) + Duration::from_secs_f64(seconds);
                *free
            };
            thread::sleep(done.saturating_duration_since(Instant::now()));
            if self.left.fetch_sub(1, Relaxed) == 1 {
                break;
            }
            self.carried.fetch_add(piece.len() as u64, Relaxed);
            to.write_all(&piece)?;
            window.shrink(piece.len());
        }
        to.shut();
        Ok(())
    }
}

/// Bytes of a connection that are on the way.
#[derive(Default)]
struct Window {
    bytes: Mutex<usize>,
    changed: Condvar,
}

impl Window {
    fn grow(&self, bytes: usize) {
        let on_the_way = self.bytes.lock().unwrap();
        let is_full = |bytes: &mut usize| *bytes >= WINDOW_BYTES;
        *self.changed.wait_while(on_the_way, is_full).unwrap() += bytes;
    }

    fn shrink(&self, bytes: usize) {
        *self.bytes.lock().unwrap() -= bytes;
        self.changed.notify_one();
    }
}

fn read_pieces(
    from: &mut impl Read,
    delay: Duration,
    window: &Window,
    pieces: &Sender<(Instant, Vec<u8>)>,
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let len = from.read(&mut buffer)?;
        let piece = buffer[..len].to_vec();
        window.grow(len);
        if len == 0 || pieces.send((Instant::now() + delay, piece)).is_err() {
            return Ok(());
        }
    }
}

/// Ends the direction in which it is written.
trait Shut {
    fn shut(&self);
}

impl Shut for TcpStream {
    fn shut(&self) {
        self.shutdown(std::net::Shutdown::Write).ok();
    }
}

impl Shut for UnixStream {
    fn shut(&self) {
        self.shutdown(std::net::Shutdown::Write).ok();
    }
}
