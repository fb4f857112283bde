//! Descriptors that outlive the process that made them: passed to programs, and taken out of a living process.

use rustix::{
    fd::{BorrowedFd, RawFd},
    io::{dup, fcntl_getfd},
    process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open},
};
use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

/// How a group looks in `/proc/PID/fd`.
pub const GROUP_LINK: &str = "anon_inode:[fanotify]";

/// Returns a second descriptor that programs started by this process inherit.
///
/// # Errors
/// The system's.
pub fn inheritable(fd: impl AsFd) -> io::Result<OwnedFd> {
    Ok(dup(fd)?)
}

/// Takes over a descriptor that this process inherited, by its number.
///
/// # Errors
/// `EBADF` if there is none.
pub fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number is only asked for, and not used if nothing is open there.
    let there = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_getfd(there)?;
    rustix::io::fcntl_setfd(there, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: the starter of this program left the descriptor open for it, and names each once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes the descriptor of an event.
pub fn close_number(number: RawFd) {
    // SAFETY: the kernel opened the descriptor for the event, and nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}

/// Returns the descriptor of an event, for as long as the event is not answered.
pub fn borrow_number<T>(number: RawFd, use_it: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
    // SAFETY: an event that was not answered keeps its descriptor open.
    use_it(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Makes sure that these numbers are in use, so that no new event gets the number of an older one. Returns what
/// keeps them in use.
///
/// # Errors
/// The system's.
pub fn occupy(numbers: &[RawFd]) -> io::Result<Vec<OwnedFd>> {
    let null = File::open("/dev/null")?;
    let mut kept = Vec::new();
    for number in numbers.iter().copied().filter(|number| *number >= 0) {
        // SAFETY: only asked for.
        let is_used = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).is_ok();
        if is_used {
            continue;
        }
        // SAFETY: the call takes no pointers; the number was free.
        let made = unsafe { libc::fcntl(null.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new.
        kept.push(unsafe { OwnedFd::from_raw_fd(made) });
    }
    Ok(kept)
}

/// Copies the first descriptor of a process whose link begins with `link`. `None` if the process has none.
///
/// # Errors
/// The system's, also if the process is gone.
pub fn take_from(pid: i32, link: &str) -> io::Result<Option<OwnedFd>> {
    let process = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let is_it = fs::read_link(entry.path())
            .is_ok_and(|found| found.to_string_lossy().starts_with(link));
        let number = entry.file_name().to_string_lossy().parse();
        if let (true, Ok(number)) = (is_it, number) {
            return Ok(Some(pidfd_getfd(
                &process,
                number,
                PidfdGetfdFlags::empty(),
            )?));
        }
    }
    Ok(None)
}
