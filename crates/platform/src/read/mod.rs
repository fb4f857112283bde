//! Reads files at offsets and advises the page cache.
//!
//! No function moves a file position, except [`data_map`], whose file position is not used
//! otherwise. All functions can be called on one file from several threads. A file that shrinks or
//! grows meanwhile is never an error.
#![allow(unsafe_code)]

use super::{debug, tricks};
use fullbore_format::entry::ByteRun;
use rustix::{
    fs::{Advice, SeekFrom, fadvise},
    io::{Errno, retry_on_intr},
};
use std::{
    cell::Cell,
    fs::File,
    io,
    mem::MaybeUninit,
    num::NonZeroU64,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::FileExt,
    },
};

/// Handling of the pages that a read brought into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageCacheUse {
    /// The system decides.
    Keep,
    /// Dropped after the read, so that a backup does not evict the working set of the machine.
    ///
    /// `RWF_DONTCACHE` (Linux 6.14) keeps pages that were cached before; without it,
    /// `POSIX_FADV_DONTNEED` drops those too.
    Drop,
    /// Dropped after the read even if they were cached before, because the backup read them ahead.
    DropAll,
}

/// Maximum number of runs of a sparse file: 1 MiB of memory. The smallest holes of a file with more
/// are read as data.
pub const MAX_RUNS: usize = 1 << 16;

/// Number of reads after which a thread tries `RWF_DONTCACHE` again after a refusal.
///
/// The errno does not tell an old kernel from a file system without support, and one tree may have
/// both kinds.
const REFUSED: u32 = 64;

thread_local! {
    static UNTIL_NEXT_TRY: Cell<u32> = const { Cell::new(0) };
}

/// Reads once into `buffer` at `offset`. May return fewer bytes than fit; returns 0 only at the end
/// of the file.
///
/// Takes one call with [`PageCacheUse::Keep`], or if `RWF_DONTCACHE` works.
///
/// # Errors
/// The system's; an interrupted call is repeated.
pub fn pread(
    fd: impl AsFd,
    buffer: &mut [u8],
    offset: u64,
    cache: PageCacheUse,
) -> io::Result<usize> {
    // SAFETY: `u8` and `MaybeUninit<u8>` have the same layout, and `read_once` writes only
    // initialized bytes.
    let room = unsafe { &mut *(std::ptr::from_mut(buffer) as *mut [MaybeUninit<u8>]) };
    Ok(read_once(fd.as_fd(), room, offset, cache)?)
}

/// Appends `len` bytes at `offset` of the file to `buffer`, or fewer if the file ends earlier;
/// returns the count.
///
/// The space is not zeroed first. Takes one call if the system returns all bytes at once, as it
/// does for local files.
///
/// # Errors
/// The system's; bytes that were read before the error remain in `buffer`.
pub fn read_full(
    fd: impl AsFd,
    buffer: &mut Vec<u8>,
    offset: u64,
    len: usize,
    cache: PageCacheUse,
) -> io::Result<usize> {
    append(fd, buffer, offset, (len, len), cache)
}

/// Appends the last `len` bytes of a file, at `offset`, to `buffer`, and one more byte if the file
/// has grown; returns the count.
///
/// Takes one call if the file has the expected length. A separate call to find the end would be one
/// more for each file.
///
/// # Errors
/// As [`read_full`].
pub fn read_end(
    fd: impl AsFd,
    buffer: &mut Vec<u8>,
    offset: u64,
    len: usize,
    cache: PageCacheUse,
) -> io::Result<usize> {
    append(fd, buffer, offset, (len, len + 1), cache)
}

/// Appends bytes at `offset` to `buffer` until there are `enough` or the file ends; at most `room`
/// bytes.
fn append(
    fd: impl AsFd,
    buffer: &mut Vec<u8>,
    offset: u64,
    (enough, room): (usize, usize),
    cache: PageCacheUse,
) -> io::Result<usize> {
    buffer.reserve(room);
    let mut done = 0;
    let mut ended = room == 0;
    while !ended {
        let spare = &mut buffer.spare_capacity_mut()[..room - done];
        let got = read_once(fd.as_fd(), spare, offset + done as u64, cache)?;
        // SAFETY: `read_once` initialized the first `got` bytes of the spare capacity.
        unsafe { buffer.set_len(buffer.len() + got) };
        done += got;
        ended = got == 0 || done >= enough;
    }
    Ok(done)
}

/// Initializes the first bytes of `room` and returns their count.
fn read_once(
    fd: BorrowedFd<'_>,
    room: &mut [MaybeUninit<u8>],
    offset: u64,
    cache: PageCacheUse,
) -> rustix::io::Result<usize> {
    if cache == PageCacheUse::Keep {
        return plain(fd, room, offset);
    }
    if cache == PageCacheUse::Drop && tricks() && may_try_uncached() {
        match retry_on_intr(|| uncached(fd, room, offset)) {
            // Container runtimes that do not know the call forbid it (`EPERM`).
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM) => note_refusal(),
            other => return other,
        }
    }
    let got = plain(fd, room, offset)?;
    drop_behind(fd, offset, got as u64);
    Ok(got)
}

fn plain(
    fd: BorrowedFd<'_>,
    room: &mut [MaybeUninit<u8>],
    offset: u64,
) -> rustix::io::Result<usize> {
    retry_on_intr(|| rustix::io::pread(fd, &mut *room, offset).map(|(read, _)| read.len()))
}

fn may_try_uncached() -> bool {
    let left = UNTIL_NEXT_TRY.get();
    UNTIL_NEXT_TRY.set(left.saturating_sub(1));
    left == 0
}

fn note_refusal() {
    UNTIL_NEXT_TRY.set(REFUSED);
    debug(|| "RWF_DONTCACHE is refused, pages are dropped after they were read".into());
}

/// Reads with `preadv2` and `RWF_DONTCACHE`.
fn uncached(
    fd: BorrowedFd<'_>,
    room: &mut [MaybeUninit<u8>],
    offset: u64,
) -> rustix::io::Result<usize> {
    let part = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    // SAFETY: `part` describes `room`, which this function may write during the call.
    let got = unsafe {
        libc::preadv2(
            fd.as_raw_fd(),
            &part,
            1,
            signed(offset),
            libc::RWF_DONTCACHE,
        )
    };
    usize::try_from(got).map_err(|_| last_error())
}

/// Advises that a file is read from front to back: the system reads twice as far ahead. A refusal
/// is ignored.
pub fn sequential(fd: impl AsFd) {
    let _ = fadvise(fd, 0, None, Advice::Sequential);
}

/// Drops the clean pages of a range from the page cache. A refusal is ignored.
pub fn drop_behind(fd: impl AsFd, offset: u64, len: u64) {
    advise(fd, offset, len, Advice::DontNeed);
}

/// Passes advice on; a length of 0 is skipped, because the system takes it for "to the end".
fn advise(fd: impl AsFd, offset: u64, len: u64, advice: Advice) {
    if let Some(len) = NonZeroU64::new(len) {
        let _ = fadvise(fd, offset, Some(len), advice);
    }
}

/// Returns the data runs of a file of `size` bytes, at most [`MAX_RUNS`]. Returns `None` if the
/// file has no hole or the file system cannot tell, so that the whole file counts as data. Takes
/// two calls a run.
///
/// If the file changes meanwhile, the map is still ascending, within `size`, and safe for reading.
///
/// # Errors
/// The system's.
pub fn data_map(fd: impl AsFd, size: u64) -> io::Result<Option<Vec<ByteRun>>> {
    let mut map = MappedFile::default();
    let mut offset = 0;
    while offset < size {
        let data = match find(&fd, SeekFrom::Data(offset)) {
            // EINVAL: the file system cannot tell. ENXIO: there is no data after `at`.
            Err(Errno::INVAL) => return Ok(None),
            Err(Errno::NXIO) => break,
            other => other?.max(offset),
        };
        let hole = find(&fd, SeekFrom::Hole(data)).unwrap_or(size);
        // The file changed between the calls if a hole ends before it starts.
        offset = if hole > data { hole } else { size };
        map.push(data.min(size), offset.min(size));
    }
    Ok(if map.is_everything(size) {
        None
    } else {
        Some(map.runs)
    })
}

/// Returns the data of a file of `size` bytes outside of these ascending `runs`. If the file system
/// cannot tell, everything outside of the runs counts as data.
///
/// # Errors
/// The system's.
pub fn data_outside(fd: impl AsFd, size: u64, runs: &[ByteRun]) -> io::Result<Vec<ByteRun>> {
    let current = data_map(fd, size)?;
    Ok(gaps(
        runs,
        current.as_deref().unwrap_or(&[ByteRun {
            offset: 0,
            len: size,
        }]),
    ))
}

/// Returns the bytes that are data on disk and a hole in the backup. Both lists are ascending.
fn gaps(backup: &[ByteRun], disk: &[ByteRun]) -> Vec<ByteRun> {
    let mut gaps = Vec::new();
    for run in disk {
        let mut position = run.offset;
        let end = run.offset + run.len;
        let first = backup.partition_point(|known| known.offset + known.len <= position);
        for known in backup[first..]
            .iter()
            .take_while(|known| known.offset < end)
        {
            if known.offset > position {
                gaps.push(ByteRun {
                    offset: position,
                    len: known.offset - position,
                });
            }
            position = known.offset + known.len;
        }
        if position < end {
            gaps.push(ByteRun {
                offset: position,
                len: end - position,
            });
        }
    }
    gaps
}

/// Reads these runs of a file in pieces of at most the length of `buffer`; `take` gets the bytes in
/// order.
///
/// # Errors
/// `UnexpectedEof` if the file ends too early, or the system's.
pub fn each_piece(
    file: &File,
    runs: impl IntoIterator<Item = ByteRun>,
    buffer: &mut [u8],
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    for run in runs {
        let mut offset = 0;
        while offset < run.len {
            let len = buffer.len().min((run.len - offset) as usize);
            file.read_exact_at(&mut buffer[..len], run.offset + offset)?;
            take(&buffer[..len]);
            offset += len as u64;
        }
    }
    Ok(())
}

/// Returns whether two files have the same first `len` bytes.
///
/// # Errors
/// `UnexpectedEof` if one file ends too early, or the system's.
pub fn have_same_content(one: &File, other: &File, len: u64) -> io::Result<bool> {
    let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
    let mut offset = 0;
    while offset < len {
        let piece = (1 << 20).min(len - offset) as usize;
        let [first, second] = &mut buffers;
        one.read_exact_at(&mut first[..piece], offset)?;
        other.read_exact_at(&mut second[..piece], offset)?;
        if first[..piece] != second[..piece] {
            return Ok(false);
        }
        offset += piece as u64;
    }
    Ok(true)
}

fn find(fd: impl AsFd, place: SeekFrom) -> rustix::io::Result<u64> {
    rustix::fs::seek(fd, place)
}

/// Runs of data, limited in number.
#[derive(Default)]
struct MappedFile {
    runs: Vec<ByteRun>,
    /// Holes smaller than this count as data.
    threshold: u64,
}

impl MappedFile {
    fn push(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let threshold = self.threshold.max(1);
        match self.runs.last_mut() {
            Some(last) if start - (last.offset + last.len) < threshold => {
                last.len = end - last.offset
            }
            _ => self.runs.push(ByteRun {
                offset: start,
                len: end - start,
            }),
        }
        if self.runs.len() > MAX_RUNS {
            self.fill_smaller_half();
        }
    }

    /// Fills the smaller half of the holes, and later every hole smaller than these.
    fn fill_smaller_half(&mut self) {
        let mut gaps: Vec<u64> = self
            .runs
            .windows(2)
            .map(|pair| gap(&pair[0], &pair[1]))
            .collect();
        let half = gaps.len() / 2;
        let (smaller, middle, _) = gaps.select_nth_unstable(half);
        self.threshold = *middle;
        // Fill only as many holes of the middle size as needed: all holes may have the same size.
        let mut equal = half - smaller.iter().filter(|gap| **gap < self.threshold).count();
        let old = std::mem::take(&mut self.runs);
        for run in old {
            match self.runs.last_mut() {
                Some(last) if is_filled(gap(last, &run), self.threshold, &mut equal) => {
                    last.len = run.offset + run.len - last.offset;
                }
                _ => self.runs.push(run),
            }
        }
    }

    fn is_everything(&self, size: u64) -> bool {
        size == 0
            || self.runs
                == [ByteRun {
                    offset: 0,
                    len: size,
                }]
    }
}

fn gap(earlier: &ByteRun, later: &ByteRun) -> u64 {
    later.offset - (earlier.offset + earlier.len)
}

fn is_filled(gap: u64, threshold: u64, equal: &mut usize) -> bool {
    if gap == threshold && *equal > 0 {
        *equal -= 1;
        return true;
    }
    gap < threshold
}

/// Converts an offset for the system, whose offsets are signed and at most `i64::MAX`.
pub(super) fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}

/// Returns the error of the last libc call.
pub(super) fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests;
