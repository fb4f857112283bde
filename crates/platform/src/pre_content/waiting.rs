//! The system call in which a thread waits for an answer, from `/proc/TID/syscall`.

use std::{fs, thread, time::Duration};

/// Looks at a thread that is not asleep yet: it needs a processor for a moment, which others may have.
const LOOKS: u32 = 10;
/// Time between the first two of them; each pause is twice as long as the one before, together 100 ms.
const PAUSE: Duration = Duration::from_micros(100);
/// Mode bits of `fallocate` that move the bytes behind the range: collapse and insert.
const MOVING: u64 = 0x08 | 0x20;

/// What the call of a waiting thread does to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitingCall {
    /// The call reads.
    Read,
    /// The call may write, or map for writing.
    Write,
    /// The call moves all bytes behind its range.
    Move,
    /// The call changes the size. The kernel rounds the range of such an event to pages, so the size is that of the
    /// call.
    Resize(u64),
    /// The call runs requests of io_uring.
    Ring,
    /// The call opens the file, and makes it empty.
    OpenEmpty,
    /// The call opens the file for reading.
    Open,
    /// The call opens the file for writing, and keeps its content.
    OpenToWrite,
    /// The call could not be read, or is not listed here.
    Unknown,
}

impl WaitingCall {
    /// Returns the call in which a thread waits.
    pub fn of(thread: i32) -> Self {
        if thread == 0 {
            return Self::Unknown;
        }
        let path = format!("/proc/{thread}/syscall");
        for look in 0..LOOKS {
            match fs::read_to_string(&path) {
                Ok(line) if line.starts_with("running") || line.starts_with("-1") => {
                    thread::sleep(PAUSE * (1 << look));
                }
                Ok(line) => return Self::read(&line),
                Err(_) => break,
            }
        }
        Self::Unknown
    }

    /// Reads a line such as `17 0x3 0x7f… 0x2000 0x0 …`: the number of the call, and its arguments.
    fn read(line: &str) -> Self {
        let mut words = line.split_ascii_whitespace();
        let number = words.next().and_then(|word| word.parse().ok());
        let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        let arguments: Vec<u64> = words.filter_map(hex).take(6).collect();
        match number {
            Some(number) if arguments.len() == 6 => Self::of_call(number, &arguments),
            _ => Self::Unknown,
        }
    }

    fn of_call(number: i64, arguments: &[u64]) -> Self {
        match number {
            libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_readv
            | libc::SYS_preadv
            | libc::SYS_preadv2
            | libc::SYS_readahead
            | libc::SYS_fadvise64
            | libc::SYS_madvise
            | libc::SYS_sendfile
            | libc::SYS_execve => Self::Read,
            libc::SYS_mmap => Self::of_mapping(arguments[2], arguments[3]),
            libc::SYS_truncate | libc::SYS_ftruncate => Self::Resize(arguments[1]),
            libc::SYS_fallocate if arguments[1] & MOVING != 0 => Self::Move,
            libc::SYS_openat => Self::of_open(arguments[2]),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => Self::of_open(arguments[1]),
            // The file may be at either end of a copy.
            libc::SYS_write
            | libc::SYS_pwrite64
            | libc::SYS_writev
            | libc::SYS_pwritev
            | libc::SYS_pwritev2
            | libc::SYS_fallocate
            | libc::SYS_copy_file_range
            | libc::SYS_splice
            | libc::SYS_io_submit => Self::Write,
            libc::SYS_io_uring_enter => Self::Ring,
            _ => Self::Unknown,
        }
    }

    fn of_mapping(protection: u64, flags: u64) -> Self {
        // A private mapping never reaches the file. A shared one can be made writable later.
        let is_shared = flags & libc::MAP_SHARED as u64 != 0;
        if is_shared || protection > 7 {
            Self::Write
        } else {
            Self::Read
        }
    }

    fn of_open(flags: u64) -> Self {
        if flags & libc::O_TRUNC as u64 != 0 {
            Self::OpenEmpty
        } else if flags & libc::O_ACCMODE as u64 == libc::O_RDONLY as u64 {
            Self::Open
        } else {
            Self::OpenToWrite
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_of_a_waiting_thread_is_read() {
        let line = |number: i64, words: &str| format!("{number} {words} 0x0 0x0 0x7ffd 0x7fff\n");
        for (line, call) in [
            (
                line(libc::SYS_pread64, "0x3 0x1 0x2000 0x0"),
                WaitingCall::Read,
            ),
            (
                line(libc::SYS_pwrite64, "0x3 0x1 0x2000 0x0"),
                WaitingCall::Write,
            ),
            (
                line(libc::SYS_ftruncate, "0x3 0x7 0x0 0x0"),
                WaitingCall::Resize(7),
            ),
            (
                line(libc::SYS_fallocate, "0x3 0x8 0x0 0x1000"),
                WaitingCall::Move,
            ),
            (
                line(libc::SYS_fallocate, "0x3 0x3 0x0 0x1000"),
                WaitingCall::Write,
            ),
            (
                line(libc::SYS_mmap, "0x0 0x1000 0x3 0x1"),
                WaitingCall::Write,
            ),
            (
                line(libc::SYS_mmap, "0x0 0x1000 0x1 0x2"),
                WaitingCall::Read,
            ),
            (
                line(libc::SYS_openat, "0xffffff9c 0x1 0x200 0x0"),
                WaitingCall::OpenEmpty,
            ),
            (
                line(libc::SYS_openat, "0xffffff9c 0x1 0x2 0x0"),
                WaitingCall::OpenToWrite,
            ),
            (
                line(libc::SYS_openat, "0xffffff9c 0x1 0x80000 0x0"),
                WaitingCall::Open,
            ),
            ("running\n".to_owned(), WaitingCall::Unknown),
            (String::new(), WaitingCall::Unknown),
        ] {
            assert_eq!(WaitingCall::read(&line), call, "{line}");
        }
    }
}
