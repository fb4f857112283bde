//! Threads that store the pieces of one upload, several at once, past the page cache.
//!
//! The kernel lets one thread at a time write to a file through the page cache, but takes direct writes of several to a range that
//! is allocated (decision 40). The writer of the upload fills buffers and hands them over; it waits only when all of them are full.

use crate::parts::PieceDigest;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::PART_BYTES,
};
use fullbore_platform::{
    debug,
    queue::{End, Monitor, Queue, start},
    write,
};
use std::{
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
};

/// Addresses, offsets and lengths of direct writes are multiples of this: no block of a device in use is larger.
const ALIGNMENT: usize = 4096;

/// How uploads to a local directory store their pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storing {
    /// Threads of each upload; with 0, the thread that appends writes through the page cache.
    pub threads: usize,
    /// Bytes that are written at once, a power of two from 4 KiB to 8 MiB. An upload takes `threads + 2` times as much memory.
    pub piece_bytes: usize,
}

impl Default for Storing {
    /// Returns measured values, see decision 40.
    fn default() -> Self {
        Self {
            threads: 2,
            piece_bytes: 1 << 20,
        }
    }
}

impl Storing {
    /// Returns the size of a piece, so that pieces are aligned and none crosses a border of parts.
    pub(super) fn checked_piece_bytes(self) -> usize {
        self.piece_bytes
            .clamp(ALIGNMENT, PART_BYTES as usize)
            .next_power_of_two()
    }
}

/// Memory for one piece, at an address that direct writes take.
#[derive(Debug)]
pub(super) struct PieceBuffer {
    bytes: Vec<u8>,
    start: usize,
    filled: usize,
}

impl PieceBuffer {
    pub(super) fn new(piece_bytes: usize) -> Self {
        let bytes = vec![0; piece_bytes + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self {
            bytes,
            start,
            filled: 0,
        }
    }

    /// Takes as much as there is room for; how many bytes that were.
    pub(super) fn fill(&mut self, data: &[u8]) -> usize {
        let start = self.start + self.filled;
        let taken = data.len().min(self.room());
        self.bytes[start..start + taken].copy_from_slice(&data[..taken]);
        self.filled += taken;
        taken
    }

    pub(super) fn room(&self) -> usize {
        self.bytes.len() - ALIGNMENT - self.filled
    }

    pub(super) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.filled]
    }

    pub(super) fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.filled]
    }
}

/// A piece on its way to the file.
#[derive(Debug)]
struct PieceToStore {
    index: usize,
    buffer: PieceBuffer,
}

/// What was stored so far.
#[derive(Debug, Default)]
struct StoringProgress {
    /// Digests of pieces, by index.
    digests: Vec<Option<PieceDigest>>,
    under_way: usize,
    error: Option<io::Error>,
}

#[derive(Debug)]
struct StoringShared {
    file: Arc<File>,
    direct: File,
    /// Did the file system refuse a direct write?
    is_refused: AtomicBool,
    piece_bytes: u64,
    progress: Monitor<StoringProgress>,
}

impl StoringShared {
    fn store(&self, piece: &PieceToStore) {
        let bytes = piece.buffer.filled();
        let digest = PieceDigest::of(bytes);
        let stored = self.write(bytes, piece.index as u64 * self.piece_bytes);
        self.progress.change(|progress| {
            progress.under_way -= 1;
            match stored {
                Ok(()) => progress.digests[piece.index] = Some(digest),
                Err(error) => _ = progress.error.get_or_insert(error),
            }
        });
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if !self.is_refused.load(Relaxed) {
            match write::pwrite_all(&self.direct, bytes, offset) {
                Err(error) if write::is_refusal_of_direct(&error) => {
                    debug(|| {
                        format!(
                            "a direct write is refused ({error}), pieces pass through the page cache"
                        )
                    });
                    self.is_refused.store(true, Relaxed);
                }
                written => return written,
            }
        }
        write::pwrite_all(&self.file, bytes, offset)
    }
}

/// The threads of one upload. Dropped, they store what was handed over and end.
#[derive(Debug)]
pub(super) struct StoringThreads {
    shared: Arc<StoringShared>,
    work: Arc<Queue<PieceToStore>>,
    free: Arc<Queue<PieceBuffer>>,
    threads: Vec<JoinHandle<()>>,
}

impl StoringThreads {
    /// Starts threads that store pieces of `file`, which is open as `direct` too.
    pub(super) fn start(file: Arc<File>, direct: File, storing: Storing) -> Result<Self> {
        let piece_bytes = storing.checked_piece_bytes();
        let shared = Arc::new(StoringShared {
            file,
            direct,
            is_refused: AtomicBool::new(false),
            piece_bytes: piece_bytes as u64,
            progress: Monitor::default(),
        });
        let mut started = Self {
            shared,
            work: Arc::default(),
            free: Arc::default(),
            threads: Vec::with_capacity(storing.threads),
        };
        for _ in 0..storing.threads {
            let shared = started.shared.clone();
            let work = started.work.clone();
            let free = End(started.free.clone());
            started
                .threads
                .push(start(move || store_pieces(&shared, &work, &free.0))?);
        }
        // One more waits in line, and one is being filled.
        for _ in 0..=storing.threads {
            started.free.push(PieceBuffer::new(piece_bytes));
        }
        Ok(started)
    }

    /// Hands a full buffer over and gives an empty one for it; waits until there is one.
    ///
    /// # Errors
    /// That of an earlier piece.
    pub(super) fn exchange(
        &self,
        index: usize,
        buffer: PieceBuffer,
    ) -> Result<PieceBuffer, io::Error> {
        self.shared
            .progress
            .change(|progress| match progress.error.take() {
                Some(error) => Err(error),
                None => {
                    progress.under_way += 1;
                    progress.digests.push(None);
                    Ok(())
                }
            })?;
        self.work.push(PieceToStore { index, buffer });
        self.free
            .pop()
            .ok_or_else(|| io::Error::other("a thread that stores stopped"))
    }

    /// Waits until all that was handed over is stored.
    ///
    /// # Errors
    /// Those of a piece.
    pub(super) fn wait(&self) -> io::Result<()> {
        let mut state = self
            .shared
            .progress
            .sleep(|progress| progress.under_way > 0);
        state.0.error.take().map_or(Ok(()), Err)
    }

    /// Replaces the digest of a piece that was stored.
    pub(super) fn set_digest(&self, index: usize, digest: PieceDigest) {
        self.shared
            .progress
            .change(|progress| progress.digests[index] = Some(digest));
    }

    /// Returns the digests of all pieces, which were [waited](Self::wait) for.
    pub(super) fn digests(&self) -> Result<Vec<PieceDigest>> {
        let state = self.shared.progress.lock();
        let digests = state.0.digests.iter().copied().collect::<Option<Vec<_>>>();
        digests.ok_or_else(|| Error::new(ErrorKind::Bug, "a piece of an upload was not stored"))
    }
}

impl Drop for StoringThreads {
    fn drop(&mut self) {
        self.work.close();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // its piece is missing then, and the upload was not finished
        }
    }
}

fn store_pieces(shared: &StoringShared, work: &Queue<PieceToStore>, free: &Queue<PieceBuffer>) {
    while let Some(piece) = work.pop() {
        shared.store(&piece);
        let mut buffer = piece.buffer;
        buffer.filled = 0;
        free.push(buffer);
    }
}
