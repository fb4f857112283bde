//! Keeps a process alive, and quick, on which others wait.

use std::{fs, io};

/// Keeps the memory of this process from being paged out, as far as it was used, and makes the kernel kill it later than
/// others if memory is short. `score` is from -1000, for never, to 0.
///
/// A process that answers readers must not wait for a page that only these readers could free.
///
/// # Errors
/// The system's; the process works all the same.
pub fn stay(score: i32) -> io::Result<()> {
    fs::write("/proc/self/oom_score_adj", score.to_string())?;
    let flags = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: the call takes no pointers.
    match unsafe { libc::mlockall(flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the niceness of this thread, which later threads and processes of it inherit. For that of a process whose threads
/// others wait for: each switch to it is part of their wait.
///
/// A process without the right goes on as it is.
pub fn set_niceness(niceness: i32) {
    let _ = rustix::process::setpriority_process(None, niceness);
}
