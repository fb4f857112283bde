//! Reading files at offsets, and saying what the page cache should do with them.
//!
//! No function moves a file position, except [`data_map`], whose file position nobody uses. All can be called on one
//! file from several threads. A file that shrinks or grows meanwhile is not an error anywhere.
#![allow(unsafe_code)]

use super::{Tricks, debug};
use crate::format::entry::ByteRun;
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

/// What becomes of the pages that a read brought into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// The system decides.
    Keep,
    /// Gone after the read, so that a backup does not push out what the machine works with.
    ///
    /// `RWF_DONTCACHE` (Linux 6.14) spares pages that were there before; where it is missing, `POSIX_FADV_DONTNEED`
    /// drops those too.
    Drop,
    /// Gone after the read, though they were there before: they were brought there for this read.
    DropAhead,
}

/// A sparse file is described by at most this many runs: 1 MiB of memory. The smallest holes are then read as data.
pub const MAX_RUNS: usize = 1 << 16;

/// After a refusal of `RWF_DONTCACHE` a thread asks again only after this many reads.
///
/// The errno does not tell an old kernel from a file system without it, and one tree may have both kinds.
const REFUSED: u32 = 64;

thread_local! {
    static UNTIL_NEXT_TRY: Cell<u32> = const { Cell::new(0) };
}

/// Read once into `buffer` at `offset`; fewer bytes than fit may come, 0 only at the end of the file.
///
/// One call with [`Cache::Keep`], or where `RWF_DONTCACHE` works.
///
/// # Errors
/// The system's; an interrupted call is repeated.
pub fn pread(
    fd: impl AsFd,
    buffer: &mut [u8],
    offset: u64,
    cache: Cache,
    tricks: Tricks,
) -> io::Result<usize> {
    // SAFETY: `u8` and `MaybeUninit<u8>` have one layout, and `read_once` only ever writes initialized bytes.
    let room = unsafe { &mut *(std::ptr::from_mut(buffer) as *mut [MaybeUninit<u8>]) };
    Ok(read_once(fd.as_fd(), room, offset, cache, tricks)?)
}

/// Append `len` bytes at `offset` of the file to `buffer`, or fewer if the file ends before; returns how many.
///
/// The room is not zeroed first. One call where the system gives all at once, as it does for local files.
///
/// # Errors
/// The system's; what was read before the error stays in `buffer`.
pub fn read_full(
    fd: impl AsFd,
    buffer: &mut Vec<u8>,
    offset: u64,
    len: usize,
    cache: Cache,
    tricks: Tricks,
) -> io::Result<usize> {
    append(fd, buffer, offset, (len, len), cache, tricks)
}

/// Append the last `len` bytes of a file, those at `offset`, to `buffer`, and one byte more if it has more; returns how many
/// came.
///
/// One call where the file is as long as it was said to be: a last call that finds its end would be one for each file.
///
/// # Errors
/// As [`read_full`].
pub fn read_end(
    fd: impl AsFd,
    buffer: &mut Vec<u8>,
    offset: u64,
    len: usize,
    cache: Cache,
    tricks: Tricks,
) -> io::Result<usize> {
    append(fd, buffer, offset, (len, len + 1), cache, tricks)
}

/// Append bytes at `offset` to `buffer` until there are enough or the file ends, and no more than there is room for.
fn append(
    fd: impl AsFd,
    buffer: &mut Vec<u8>,
    offset: u64,
    (enough, room): (usize, usize),
    cache: Cache,
    tricks: Tricks,
) -> io::Result<usize> {
    buffer.reserve(room);
    let (mut done, mut ended) = (0, room == 0);
    while !ended {
        let spare = &mut buffer.spare_capacity_mut()[..room - done];
        let got = read_once(fd.as_fd(), spare, offset + done as u64, cache, tricks)?;
        // SAFETY: `read_once` initialized the first `got` bytes of the spare capacity.
        unsafe { buffer.set_len(buffer.len() + got) };
        done += got;
        ended = got == 0 || done >= enough;
    }
    Ok(done)
}

/// Initializes the first bytes of `room`, as many as are returned.
fn read_once(
    fd: BorrowedFd<'_>,
    room: &mut [MaybeUninit<u8>],
    offset: u64,
    cache: Cache,
    tricks: Tricks,
) -> rustix::io::Result<usize> {
    if cache == Cache::Keep {
        return plain(fd, room, offset);
    }
    if tricks == Tricks::Auto && cache == Cache::Drop && may_try() {
        match retry_on_intr(|| uncached(fd, room, offset)) {
            // Container runtimes that do not know the call forbid it (`EPERM`).
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM) => refused(),
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

fn may_try() -> bool {
    let left = UNTIL_NEXT_TRY.get();
    UNTIL_NEXT_TRY.set(left.saturating_sub(1));
    left == 0
}

fn refused() {
    UNTIL_NEXT_TRY.set(REFUSED);
    debug(|| "RWF_DONTCACHE is refused, pages are dropped after they were read".into());
}

/// `preadv2` with `RWF_DONTCACHE`.
fn uncached(
    fd: BorrowedFd<'_>,
    room: &mut [MaybeUninit<u8>],
    offset: u64,
) -> rustix::io::Result<usize> {
    let part = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    // SAFETY: `part` describes `room`, which is ours to write for the length of the call.
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

/// Say that a file will be read from front to back: the system reads twice as far ahead. A refusal is nothing to us.
pub fn sequential(fd: impl AsFd) {
    let _ = fadvise(fd, 0, None, Advice::Sequential);
}

/// Drop the pages of a range, clean ones only. A refusal is nothing to us.
pub fn drop_behind(fd: impl AsFd, offset: u64, len: u64) {
    advise(fd, offset, len, Advice::DontNeed);
}

/// A length of 0 would mean "to the end".
fn advise(fd: impl AsFd, offset: u64, len: u64, advice: Advice) {
    if let Some(len) = NonZeroU64::new(len) {
        let _ = fadvise(fd, offset, Some(len), advice);
    }
}

/// Where the data of a file of `size` bytes is, at most [`MAX_RUNS`] runs; `None` if there is no hole, or the file system
/// cannot tell, so that all of it is data. Two calls a run.
///
/// If the file changes meanwhile the map is some map of it: ascending, within `size`, and good for reading.
///
/// # Errors
/// The system's.
pub fn data_map(fd: impl AsFd, size: u64) -> io::Result<Option<Vec<ByteRun>>> {
    let mut map = MappedFile::default();
    let mut at = 0;
    while at < size {
        let data = match find(&fd, SeekFrom::Data(at)) {
            // A file system that cannot tell (EINVAL), or says that there is nothing after `at` (ENXIO).
            Err(Errno::INVAL) => return Ok(None),
            Err(Errno::NXIO) => break,
            other => other?.max(at),
        };
        let hole = find(&fd, SeekFrom::Hole(data)).unwrap_or(size);
        // A hole that ends before it starts: the file changed between the calls.
        at = if hole > data { hole } else { size };
        map.push(data.min(size), at.min(size));
    }
    Ok(if map.is_everything(size) {
        None
    } else {
        Some(map.runs)
    })
}

/// The data of a file of `size` bytes that is in none of these ascending `runs`; all else where the file system cannot tell.
///
/// # Errors
/// The system's.
pub fn data_outside(fd: impl AsFd, size: u64, runs: &[ByteRun]) -> io::Result<Vec<ByteRun>> {
    let there = data_map(fd, size)?;
    Ok(gaps(
        runs,
        there.as_deref().unwrap_or(&[ByteRun {
            offset: 0,
            len: size,
        }]),
    ))
}

/// The bytes that are data on disk and a hole in the backup; both lists are ascending.
fn gaps(backup: &[ByteRun], disk: &[ByteRun]) -> Vec<ByteRun> {
    let mut gaps = Vec::new();
    for run in disk {
        let (mut at, end) = (run.offset, run.offset + run.len);
        let first = backup.partition_point(|known| known.offset + known.len <= at);
        for known in backup[first..]
            .iter()
            .take_while(|known| known.offset < end)
        {
            if known.offset > at {
                gaps.push(ByteRun {
                    offset: at,
                    len: known.offset - at,
                });
            }
            at = known.offset + known.len;
        }
        if at < end {
            gaps.push(ByteRun {
                offset: at,
                len: end - at,
            });
        }
    }
    gaps
}

/// Read these runs of a file, as much as `buffer` holds at a time; `take` gets the bytes in order.
///
/// # Errors
/// `UnexpectedEof` if the file ends before, or the system's.
pub fn each_piece(
    file: &File,
    runs: impl IntoIterator<Item = ByteRun>,
    buffer: &mut [u8],
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    for run in runs {
        let mut at = 0;
        while at < run.len {
            let len = buffer.len().min((run.len - at) as usize);
            file.read_exact_at(&mut buffer[..len], run.offset + at)?;
            take(&buffer[..len]);
            at += len as u64;
        }
    }
    Ok(())
}

/// Have two files the same `len` bytes?
///
/// # Errors
/// `UnexpectedEof` if one ends before, or the system's.
pub fn is_same(one: &File, other: &File, len: u64) -> io::Result<bool> {
    let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
    let mut at = 0;
    while at < len {
        let piece = (1 << 20).min(len - at) as usize;
        let [first, second] = &mut buffers;
        one.read_exact_at(&mut first[..piece], at)?;
        other.read_exact_at(&mut second[..piece], at)?;
        if first[..piece] != second[..piece] {
            return Ok(false);
        }
        at += piece as u64;
    }
    Ok(true)
}

fn find(fd: impl AsFd, place: SeekFrom) -> rustix::io::Result<u64> {
    rustix::fs::seek(fd, place)
}

/// Runs of data, few enough.
#[derive(Default)]
struct MappedFile {
    runs: Vec<ByteRun>,
    /// Holes smaller than this are data.
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
            self.halve();
        }
    }

    /// Fill the smaller half of the holes, and from now on every hole that is smaller than these.
    fn halve(&mut self) {
        let mut gaps: Vec<u64> = self
            .runs
            .windows(2)
            .map(|pair| gap(&pair[0], &pair[1]))
            .collect();
        let half = gaps.len() / 2;
        let (smaller, middle, _) = gaps.select_nth_unstable(half);
        self.threshold = *middle;
        // Of the holes that are as large as the middle one only so many are filled as are needed: all may be equal.
        let mut equal = half - smaller.iter().filter(|gap| **gap < self.threshold).count();
        let old = std::mem::take(&mut self.runs);
        for run in old {
            match self.runs.last_mut() {
                Some(last) if fills(gap(last, &run), self.threshold, &mut equal) => {
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

fn gap(before: &ByteRun, after: &ByteRun) -> u64 {
    after.offset - (before.offset + before.len)
}

fn fills(gap: u64, threshold: u64, equal: &mut usize) -> bool {
    if gap == threshold && *equal > 0 {
        *equal -= 1;
        return true;
    }
    gap < threshold
}

/// Offsets of files are signed in the system's interface, and never above `i64::MAX`.
pub(super) fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}

/// The error of the last call of libc.
pub(super) fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of 10 bytes, the hole before each as long as told.
    fn map(holes: impl Iterator<Item = u64>) -> MappedFile {
        let (mut map, mut at) = (MappedFile::default(), 0);
        for hole in holes {
            map.push(at + hole, at + hole + 10);
            at += hole + 10;
        }
        map
    }

    #[test]
    fn gaps_are_data_on_disk_and_holes_in_the_backup() {
        let run = |offset, len| ByteRun { offset, len };
        assert_eq!(
            gaps(&[run(10, 5), run(20, 5)], &[run(0, 12), run(14, 20)]),
            [run(0, 10), run(15, 5), run(25, 9)]
        );
        assert_eq!(gaps(&[], &[run(3, 4)]), [run(3, 4)]);
        assert_eq!(gaps(&[run(0, 9)], &[run(3, 4)]), []);
    }

    #[test]
    fn the_smallest_holes_are_filled_first() {
        let small = |i: &u64| i % 2 == 1;
        let map = map((0..MAX_RUNS as u64 * 2).map(|i| if small(&i) { 1 } else { 1000 }));
        assert!(map.runs.len() <= MAX_RUNS);
        assert!(
            map.runs
                .windows(2)
                .all(|pair| gap(&pair[0], &pair[1]) == 1000)
        );
        assert!(map.runs.len() >= MAX_RUNS / 2);
    }

    #[test]
    fn of_holes_that_are_all_equal_at_least_half_the_limit_are_kept() {
        for count in [MAX_RUNS, MAX_RUNS + 1, MAX_RUNS * 3] {
            let runs = map(std::iter::repeat_n(5, count)).runs;
            assert!(
                runs.len() <= MAX_RUNS && runs.len() >= MAX_RUNS / 2,
                "{}",
                runs.len()
            );
            assert!(runs.windows(2).all(|pair| gap(&pair[0], &pair[1]) > 0));
            assert_eq!(
                runs.last().map(|run| run.offset + run.len),
                Some(count as u64 * 15)
            );
        }
    }

    #[test]
    fn runs_that_touch_are_one() {
        let mut map = MappedFile::default();
        for (start, end) in [(0, 5), (5, 9), (9, 9), (10, 12)] {
            map.push(start, end);
        }
        assert_eq!(
            map.runs,
            [
                ByteRun { offset: 0, len: 9 },
                ByteRun { offset: 10, len: 2 }
            ]
        );
    }
}
