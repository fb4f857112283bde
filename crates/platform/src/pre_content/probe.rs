//! Finds out whether this process may ask before files of a directory are read, and why not.

use super::{AccessAnswer, EventGroup, MAX_EVENT_BYTES, events_in};
use crate::write;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Signal, kill_process},
};
use std::{
    fs::File,
    io,
    path::Path,
    process::{Child, Command, Stdio},
};

/// Time for the first event of a test file.
const PATIENCE: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// Facts of this system that decide whether it can ask before files are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreContentRefusal {
    /// Release of the kernel, such as `6.18.44`.
    pub kernel: String,
    /// Whether the kernel knows such events.
    pub kernel_knows: bool,
    /// Name of the file system.
    pub file_system: String,
    /// Whether the file system gives such events.
    pub file_system_gives: bool,
    /// Whether this process has CAP_SYS_ADMIN.
    pub is_privileged: bool,
}

impl PreContentRefusal {
    /// Returns the conditions, each with the state here, as one line.
    pub fn line(&self) -> String {
        let privilege = if self.is_privileged {
            "there"
        } else {
            "missing"
        };
        format!(
            "Linux 6.14 or later (this is {}), ext4, xfs or btrfs (this is {}) and CAP_SYS_ADMIN ({privilege})",
            self.kernel, self.file_system
        )
    }
}

/// Marks a file without a name in `dir`, and lets a child read it. `None` if this process was asked.
///
/// # Errors
/// The system's, about the test file.
pub fn refusal_in(dir: &Path) -> io::Result<Option<PreContentRefusal>> {
    let file = write::anonymous_file(dir)?;
    write::pwrite_all(&file, b"x", 0)?;
    let marked = EventGroup::new().and_then(|group| group.mark(&file).map(|()| group));
    let error = match marked {
        Ok(group) if is_asked(&group, &file)? => return Ok(None),
        Ok(_) => io::ErrorKind::Unsupported.into(),
        Err(error) => error,
    };
    let uname = rustix::system::uname();
    let is_privileged = has_admin_right();
    let os_error = error.raw_os_error();
    Ok(Some(PreContentRefusal {
        kernel: uname.release().to_string_lossy().into_owned(),
        // An unknown bit of a mask is EINVAL.
        kernel_knows: os_error != Some(libc::EINVAL) && os_error != Some(libc::ENOSYS),
        file_system: file_system_name(dir),
        file_system_gives: is_privileged && os_error != Some(libc::EOPNOTSUPP),
        is_privileged,
    }))
}

/// Lets a child read the file, and returns whether the group was asked.
fn is_asked(group: &EventGroup, file: &File) -> io::Result<bool> {
    // The child opens the file by the descriptor of this process.
    let path = format!("/proc/{}/fd/{}", std::process::id(), fd_number(file));
    let child = Command::new("/bin/cat")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let asked = answer_all(group);
    end(child)?;
    asked
}

fn fd_number(file: &File) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(file)
}

/// Answers the open and the read of the child. Returns whether a read was asked for.
fn answer_all(group: &EventGroup) -> io::Result<bool> {
    loop {
        let mut waits = [PollFd::new(group, PollFlags::IN)];
        if poll(&mut waits, Some(&PATIENCE))? == 0 {
            return Ok(false);
        }
        let mut buffer = [0; MAX_EVENT_BYTES];
        let read = group.read(&mut buffer)?;
        for event in events_in(&buffer[..read]) {
            group.answer(event.number, AccessAnswer::Allow)?;
            super::inherit::close_number(event.number);
            if event.access != super::Access::Open {
                return Ok(true);
            }
        }
    }
}

/// Ends the child: it may wait for an answer that does not come.
fn end(mut child: Child) -> io::Result<()> {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = kill_process(pid, Signal::KILL);
    }
    child.wait().map(drop)
}

fn has_admin_right() -> bool {
    /// Bit of CAP_SYS_ADMIN.
    const ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> ADMIN & 1 == 1)
}

/// Returns the name of the file system of a directory, from the mounts of this process.
fn file_system_name(dir: &Path) -> String {
    let info = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mounts = info.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let point = place.split(' ').nth(4)?;
        Some((Path::new(point), kind.split(' ').next()?))
    });
    let longest = mounts
        .filter(|(point, _)| dir.starts_with(point))
        .max_by_key(|(point, _)| point.components().count());
    longest.map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
}
