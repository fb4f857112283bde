//! An upload to a local directory.
//!
//! A short object is written at its end. A longer one is stored by threads of its own behind [`Upload::append`], where the
//! file system takes direct writes to allocated ranges ([`StoringThreads`]); elsewhere the thread that appends writes through the page cache,
//! and has the system write behind it.

use super::{
    directory::LocalObjects,
    partial::PartialFile,
    storing::{PieceBuffer, StoringThreads},
};
use crate::{
    Objects, StoredObject, Upload,
    parts::{PieceDigest, amended_range, part_digests},
};
use fullbore_format::{
    digest::Crc64,
    error::{Error, Result},
    root::PART_BYTES,
};
use fullbore_platform::{debug, tricks, write};
use std::{fs::File, io, mem, ops::Range, os::unix::fs::FileExt};

/// Bytes after which the system is told to start writing: a few milliseconds of a fast drive.
const BEHIND_BYTES: u64 = 8 << 20;

/// Bytes that are allocated first, then as many again as there are, up to [`MAX_STEP_BYTES`]: the kernel waits for direct writes under way
/// before it allocates.
const MIN_STEP_BYTES: u64 = 16 << 20;

/// Bytes that are allocated at once at most. A segment is seldom longer than 1 GiB, and what is left over is given back.
const MAX_STEP_BYTES: u64 = 256 << 20;

#[derive(Debug)]
pub(super) struct LocalUpload {
    objects: LocalObjects,
    key: String,
    partial: PartialFile,
    piece_bytes: usize,
    /// Bytes that were appended.
    end: u64,
    way: StoringWay,
    has_failed: bool,
}

/// How bytes get into the file.
#[derive(Debug)]
enum StoringWay {
    /// All of them are in a buffer.
    Short(PieceBuffer),
    /// The thread that appends writes them.
    Buffered(Box<BufferedPieces>),
    /// Threads write full pieces.
    Parallel(ParallelPieces),
    /// The first piece could not be stored.
    Failed,
}

impl LocalUpload {
    pub(super) fn new(objects: LocalObjects, key: &str, partial: PartialFile) -> Self {
        let piece_bytes = objects.storing.checked_piece_bytes();
        Self {
            key: key.to_owned(),
            partial,
            piece_bytes,
            end: 0,
            way: StoringWay::Short(PieceBuffer::new(piece_bytes)),
            has_failed: false,
            objects,
        }
    }

    fn append_bytes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if let StoringWay::Short(buffer) = &mut self.way {
            let taken = buffer.fill(bytes);
            bytes = &bytes[taken..];
            if buffer.room() > 0 {
                return Ok(());
            }
            self.way = self.way_of_long()?;
        }
        match &mut self.way {
            StoringWay::Short(_) | StoringWay::Failed => Err(after_failure()),
            StoringWay::Buffered(pieces) => pieces.append(self.partial.file(), bytes),
            StoringWay::Parallel(pieces) => pieces.append(self.partial.file(), bytes),
        }
    }

    /// Goes over from a first piece that is full.
    fn way_of_long(&mut self) -> io::Result<StoringWay> {
        let way = mem::replace(&mut self.way, StoringWay::Failed);
        let StoringWay::Short(buffer) = way else {
            return Ok(way);
        };
        if let Some((threads, allocated)) = self.start_threads()? {
            let mut pieces = ParallelPieces {
                threads,
                next: 0,
                allocated,
                piece_bytes: self.piece_bytes,
                buffer: None,
            };
            pieces.hand_over(self.partial.file(), buffer)?;
            return Ok(StoringWay::Parallel(pieces));
        }
        let mut pieces = BufferedPieces::new();
        pieces.append(self.partial.file(), buffer.filled())?;
        Ok(StoringWay::Buffered(Box::new(pieces)))
    }

    /// Starts threads, and returns how many bytes are allocated; `None` where direct writes are not known to be better.
    fn start_threads(&self) -> io::Result<Option<(StoringThreads, u64)>> {
        let storing = self.objects.storing;
        let file = self.partial.file();
        if storing.threads == 0 || !tricks() || !write::takes_direct_writes(file) {
            return Ok(None);
        }
        let direct = match self.partial.open_direct() {
            Ok(direct) => direct,
            Err(error) => {
                debug(|| format!("no direct writes to {}: {error}", self.key));
                return Ok(None);
            }
        };
        // Without room for the first step the short one decides whether the file system is full.
        let first = write::extend(file, 0, MIN_STEP_BYTES);
        let allocated = match first {
            Ok(true) => MIN_STEP_BYTES,
            Ok(false) => return Ok(None),
            Err(_) => 0,
        };
        match StoringThreads::start(file.clone(), direct, storing) {
            Ok(threads) => Ok(Some((threads, allocated))),
            Err(error) => {
                debug(|| error.line());
                Ok(None)
            }
        }
    }

    fn amend_bytes(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.partial.file();
        let piece_bytes = self.piece_bytes as u64;
        match &mut self.way {
            StoringWay::Failed => Err(after_failure()),
            StoringWay::Short(buffer) => {
                buffer.filled_mut()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            StoringWay::Buffered(pieces) => {
                write::pwrite_all(file, bytes, offset)?;
                pieces.recount(file, offset, bytes.len() as u64)
            }
            StoringWay::Parallel(pieces) => {
                // A thread that still writes a piece would write the old bytes over the new ones.
                pieces.threads.wait()?;
                let stored_end = pieces.next as u64 * piece_bytes;
                let in_file = stored_end.saturating_sub(offset).min(bytes.len() as u64) as usize;
                write::pwrite_all(file, &bytes[..in_file], offset)?;
                for index in pieces_of(offset, in_file as u64, piece_bytes) {
                    let digest = digest_in_file(file, index * piece_bytes, piece_bytes)?;
                    pieces.threads.set_digest(index as usize, digest);
                }
                // The rest is in the piece that is being filled.
                if let Some(buffer) = &mut pieces.buffer {
                    let start = (offset + in_file as u64).saturating_sub(stored_end) as usize;
                    let rest = &bytes[in_file..];
                    buffer.filled_mut()[start..][..rest.len()].copy_from_slice(rest);
                }
                Ok(())
            }
        }
    }

    /// Stores what is left, and makes all durable under its name.
    fn finish_file(&mut self) -> io::Result<Vec<PieceDigest>> {
        let file = self.partial.file();
        let digests = match &mut self.way {
            StoringWay::Failed => return Err(after_failure()),
            StoringWay::Short(buffer) => {
                write::pwrite_all(file, buffer.filled(), 0)?;
                let is_empty = buffer.filled().is_empty();
                if is_empty {
                    Vec::new()
                } else {
                    vec![PieceDigest::of(buffer.filled())]
                }
            }
            StoringWay::Buffered(pieces) => pieces.digests(),
            StoringWay::Parallel(pieces) => pieces.finish(file, self.end)?,
        };
        write::fsync(file)?;
        self.partial.give_name(false)?;
        self.objects.open_files.forget(&self.key);
        Ok(digests)
    }

    fn done<T>(&mut self, done: io::Result<T>) -> Result<T> {
        done.map_err(|error| {
            self.has_failed = true;
            self.objects
                .failed("write", &self.key, error)
                .detail("nothing was committed")
        })
    }

    fn check_not_failed(&self) -> Result<()> {
        if !self.has_failed {
            return Ok(());
        }
        let message = format!("could not write {}", self.objects.describe(&self.key));
        Err(Error::io(message, after_failure()))
    }
}

impl Upload for LocalUpload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.check_not_failed()?;
        let appended = self.append_bytes(bytes);
        self.end += bytes.len() as u64;
        self.done(appended)
    }

    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_not_failed()?;
        amended_range(offset, bytes.len(), self.end)?;
        let amended = self.amend_bytes(offset, bytes);
        self.done(amended)
    }

    fn finish(mut self: Box<Self>) -> Result<StoredObject> {
        self.check_not_failed()?;
        let finished = self.finish_file();
        let digests = self.done(finished)?;
        Ok(StoredObject {
            bytes: self.end,
            parts: part_digests(&digests),
        })
    }

    fn abort(self: Box<Self>) {}
}

/// Parts that the thread that appends writes through the page cache.
#[derive(Debug)]
struct BufferedPieces {
    done: Vec<PieceDigest>,
    open: Crc64,
    open_bytes: u64,
    /// Where the system was told to write last.
    told: u64,
}

impl BufferedPieces {
    fn new() -> Self {
        Self {
            done: Vec::new(),
            open: Crc64::default(),
            open_bytes: 0,
            told: 0,
        }
    }

    fn end(&self) -> u64 {
        self.done.len() as u64 * PART_BYTES + self.open_bytes
    }

    fn append(&mut self, file: &File, bytes: &[u8]) -> io::Result<()> {
        write::pwrite_all(file, bytes, self.end())?;
        self.count(bytes);
        let end = self.end();
        if tricks() && end - self.told >= BEHIND_BYTES {
            self.write_behind(file, end);
        }
        Ok(())
    }

    fn count(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = PART_BYTES - self.open_bytes;
            let (now, later) = bytes.split_at(bytes.len().min(room as usize));
            self.open.update(now);
            self.open_bytes += now.len() as u64;
            if self.open_bytes == PART_BYTES {
                self.done.push(PieceDigest {
                    crc: self.open.value().0,
                    bytes: PART_BYTES,
                });
                self.open = Crc64::default();
                self.open_bytes = 0;
            }
            bytes = later;
        }
    }

    /// Has the last range written, and the one before it, by now on the device, leave the cache.
    fn write_behind(&mut self, file: &File, end: u64) {
        write::write_behind(file, self.told, end - self.told);
        if let Some(before) = self.told.checked_sub(BEHIND_BYTES) {
            write::drop_behind(file, before, BEHIND_BYTES);
        }
        self.told = end;
    }

    /// Reads the pieces again that were amended.
    fn recount(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        for index in pieces_of(offset, len, PART_BYTES) {
            if let Some(done) = self.done.get_mut(index as usize) {
                *done = digest_in_file(file, index * PART_BYTES, PART_BYTES)?;
                continue;
            }
            self.open = Crc64::default();
            self.open
                .update(&read_piece(file, index * PART_BYTES, self.open_bytes)?);
        }
        Ok(())
    }

    fn digests(&self) -> Vec<PieceDigest> {
        let open = PieceDigest {
            crc: self.open.value().0,
            bytes: self.open_bytes,
        };
        self.done
            .iter()
            .copied()
            .chain((self.open_bytes > 0).then_some(open))
            .collect()
    }
}

/// Pieces that threads store.
#[derive(Debug)]
struct ParallelPieces {
    threads: StoringThreads,
    /// The index of the piece that is being filled.
    next: usize,
    allocated: u64,
    piece_bytes: usize,
    /// Absent only after an error.
    buffer: Option<PieceBuffer>,
}

impl ParallelPieces {
    fn append(&mut self, file: &File, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut buffer = self.buffer.take().ok_or_else(after_failure)?;
            let taken = buffer.fill(bytes);
            bytes = &bytes[taken..];
            if buffer.room() > 0 {
                self.buffer = Some(buffer);
            } else {
                self.hand_over(file, buffer)?;
            }
        }
        Ok(())
    }

    fn hand_over(&mut self, file: &File, buffer: PieceBuffer) -> io::Result<()> {
        self.allocate(file)?;
        self.buffer = Some(self.threads.exchange(self.next, buffer)?);
        self.next += 1;
        Ok(())
    }

    /// Makes sure that there is room for the next piece.
    fn allocate(&mut self, file: &File) -> io::Result<()> {
        let needed = (self.next + 1) as u64 * self.piece_bytes as u64;
        if needed <= self.allocated {
            return Ok(());
        }
        let step = self.allocated.clamp(MIN_STEP_BYTES, MAX_STEP_BYTES);
        // Where there is no room for a step, there may be room for what is still to come.
        if write::extend(file, self.allocated, step).is_ok_and(|is_done| is_done) {
            self.allocated += step;
        } else {
            write::extend(file, self.allocated, needed - self.allocated)?;
            self.allocated = needed;
        }
        Ok(())
    }

    /// Stores the last piece, which may have any length, through the page cache, and gives back what was allocated for more.
    fn finish(&mut self, file: &File, end: u64) -> io::Result<Vec<PieceDigest>> {
        self.threads.wait()?;
        let mut digests = self.threads.digests().map_err(io::Error::other)?;
        if let Some(last) = self.buffer.take().filter(|last| !last.filled().is_empty()) {
            write::pwrite_all(
                file,
                last.filled(),
                self.next as u64 * self.piece_bytes as u64,
            )?;
            digests.push(PieceDigest::of(last.filled()));
        }
        write::truncate(file, end)?;
        Ok(digests)
    }
}

fn after_failure() -> io::Error {
    io::Error::other("an earlier part of it could not be written")
}

/// Returns the indexes of the pieces that a range touches.
fn pieces_of(offset: u64, len: u64, piece_bytes: u64) -> Range<u64> {
    if len == 0 {
        return 0..0;
    }
    offset / piece_bytes..(offset + len).div_ceil(piece_bytes)
}

fn digest_in_file(file: &File, offset: u64, len: u64) -> io::Result<PieceDigest> {
    Ok(PieceDigest::of(&read_piece(file, offset, len)?))
}

fn read_piece(file: &File, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}
