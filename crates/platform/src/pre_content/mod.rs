//! Events that ask before the content of a marked file is touched (fanotify, Linux 6.14 and later).
//!
//! The kernel stops a reader, writes an [`AccessEvent`] into the group, and lets the reader go on when somebody
//! that holds the group has answered. A group lives as long as any process holds a descriptor of it. When the last
//! one is closed, all that wait are let go, and nobody is asked any more.
//!
//! Belongs here: the calls, and the shapes that the kernel gives. Does not belong here: which answer is right.

#![allow(unsafe_code)]

pub mod handle;
pub mod inherit;
pub mod probe;
pub mod shared_map;
pub mod standing;
pub mod waiting;

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

/// `FAN_PRE_ACCESS`, which the headers of many systems lack.
const PRE_ACCESS: u64 = 0x0010_0000;
/// Type of the record with the range of an event.
const INFO_RANGE: u8 = 6;
/// Bytes of an event without records.
const EVENT_BYTES: usize = size_of::<libc::fanotify_event_metadata>();
/// Bytes of the record with the range.
const RANGE_BYTES: usize = 24;
/// Bytes that one event can have, at most. A read with a buffer of this size returns one or two events.
pub const MAX_EVENT_BYTES: usize = EVENT_BYTES + RANGE_BYTES;

/// One access that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessEvent {
    /// Number of the descriptor that the kernel opened in this process: the name of the event in an answer.
    pub number: RawFd,
    /// Thread that waits; 0 if it is not visible here.
    pub thread: i32,
    /// The access.
    pub access: Access,
}

/// How a file is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The file is opened.
    Open,
    /// These bytes are about to be touched.
    Range {
        /// First byte.
        offset: u64,
        /// Number of bytes. 0 for a change of the size to `offset`, and for a clone from `offset` on.
        count: u64,
    },
}

/// The answer to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessAnswer {
    /// The access goes on.
    Allow,
    /// The access fails with EIO.
    Fail,
}

impl AccessAnswer {
    fn response(self) -> u32 {
        match self {
            Self::Allow => libc::FAN_ALLOW,
            Self::Fail => libc::FAN_DENY | ((libc::EIO as u32) << 24),
        }
    }
}

/// A group: it receives the events of the files that it marks.
#[derive(Debug)]
pub struct EventGroup(File);

impl EventGroup {
    /// Makes a group. Its queue has no bound: the events that do not fit into a bounded one are let go unanswered.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN, or the system's.
    pub fn new() -> io::Result<Self> {
        let flags = libc::FAN_CLASS_PRE_CONTENT
            | libc::FAN_CLOEXEC
            | libc::FAN_UNLIMITED_QUEUE
            | libc::FAN_UNLIMITED_MARKS
            | libc::FAN_REPORT_TID;
        let event_flags = libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC | libc::O_NOATIME;
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::fanotify_init(flags, event_flags as u32) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else closes it.
        Ok(Self::from(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Asks before the content of an open file is touched, and before the file is opened.
    ///
    /// # Errors
    /// `EINVAL` on a kernel without such events, `EOPNOTSUPP` on a file system without them, or the system's.
    pub fn mark(&self, file: impl AsFd) -> io::Result<()> {
        self.change_mark(file, libc::FAN_MARK_ADD)
    }

    /// Stops asking for a file. Accesses that wait already still need their answers.
    ///
    /// # Errors
    /// `ENOENT` if the file is not marked, or the system's.
    pub fn unmark(&self, file: impl AsFd) -> io::Result<()> {
        self.change_mark(file, libc::FAN_MARK_REMOVE)
    }

    /// Stops asking for a file that this process does not open: the open would wait for its own answer.
    ///
    /// # Errors
    /// As [`EventGroup::unmark`].
    pub fn unmark_path(&self, path: &Path) -> io::Result<()> {
        self.change_mark_at(path, libc::FAN_MARK_REMOVE)
    }

    fn change_mark(&self, file: impl AsFd, change: u32) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        self.change_mark_at(Path::new(&path), change)
    }

    fn change_mark_at(&self, path: &Path, change: u32) -> io::Result<()> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mask = PRE_ACCESS | libc::FAN_OPEN_PERM;
        // SAFETY: `path` ends in NUL and lives until the call returns.
        let done = unsafe {
            libc::fanotify_mark(
                self.0.as_raw_fd(),
                change,
                mask,
                libc::AT_FDCWD,
                path.as_ptr(),
            )
        };
        if done < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Reads events into `buffer`, which must be zero, and waits for the first.
    ///
    /// The buffer is where another process finds the numbers of these events if this one is killed.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(buffer)
    }

    /// Answers the event of this number.
    ///
    /// # Errors
    /// `ENOENT` if no event of this number waits, or the system's.
    pub fn answer(&self, number: RawFd, answer: AccessAnswer) -> io::Result<()> {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        bytes[4..].copy_from_slice(&answer.response().to_ne_bytes());
        (&self.0).write_all(&bytes)
    }
}

impl From<OwnedFd> for EventGroup {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

impl AsFd for EventGroup {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the events in a buffer that the kernel filled. Stops at the first that is not whole.
pub fn events_in(buffer: &[u8]) -> Vec<AccessEvent> {
    let mut events = Vec::new();
    let mut rest = buffer;
    while let Some((event, bytes)) = event_at(rest) {
        events.extend(event);
        rest = &rest[bytes..];
    }
    events
}

/// Returns the event at the start of a buffer, and its length. `None` in it for an event without a descriptor.
fn event_at(buffer: &[u8]) -> Option<(Option<AccessEvent>, usize)> {
    let bytes = u32_at(buffer, 0)? as usize;
    if bytes < EVENT_BYTES || bytes > buffer.len() {
        return None;
    }
    let mask = u64_at(buffer, 8)?;
    let number = u32_at(buffer, 16)? as RawFd;
    let thread = u32_at(buffer, 20)? as i32;
    let access = if mask & PRE_ACCESS == 0 {
        Access::Open
    } else {
        range_in(&buffer[EVENT_BYTES..bytes])
    };
    let event = AccessEvent {
        number,
        thread,
        access,
    };
    Some(((number >= 0).then_some(event), bytes))
}

/// Returns the range in the records of an event. Without one, the access may be to everything.
fn range_in(records: &[u8]) -> Access {
    let mut rest = records;
    while let [kind, _, low, high, ..] = *rest {
        let bytes = usize::from(u16::from_ne_bytes([low, high]));
        if kind == INFO_RANGE
            && let (Some(offset), Some(count)) = (u64_at(rest, 8), u64_at(rest, 16))
        {
            return Access::Range { offset, count };
        }
        if bytes == 0 || bytes > rest.len() {
            break;
        }
        rest = &rest[bytes..];
    }
    Access::Range {
        offset: 0,
        count: u64::MAX,
    }
}

fn u32_at(buffer: &[u8], offset: usize) -> Option<u32> {
    let bytes = buffer.get(offset..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

fn u64_at(buffer: &[u8], offset: usize) -> Option<u64> {
    let bytes = buffer.get(offset..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests;
