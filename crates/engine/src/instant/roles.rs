//! The processes of an instant restore. Each is this program with the same arguments; a variable says which it is, and
//! which descriptors it inherited.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::pre_content::inherit::{inheritable, take_inherited};
use std::{
    env, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    process::{Child, Command, Stdio},
};

/// The variable.
const VARIABLE: &str = "FULLBORE_INSTANT_ROLE";

/// The part that a process has in an instant restore.
#[derive(Debug)]
pub enum InstantRole {
    /// Answers the events, and holds the group.
    Guardian(GuardianFds),
    /// Fetches, checks and writes content.
    Worker(WorkerFds),
}

/// The descriptors that a guardian inherits.
#[derive(Debug)]
pub struct GuardianFds {
    pub(super) group: OwnedFd,
    pub(super) events: OwnedFd,
    pub(super) lock: OwnedFd,
    /// Closed when the tree is served; an error is written to it.
    pub(super) ready: OwnedFd,
}

/// The descriptors that a worker inherits.
#[derive(Debug)]
pub struct WorkerFds {
    pub(super) group: OwnedFd,
    /// Requests of the guardian.
    pub(super) requests: OwnedFd,
    /// A byte wakes the guardian.
    pub(super) wake: OwnedFd,
}

/// Returns whether this process has a role: nobody looks at its terminal.
pub fn has_role() -> bool {
    env::var_os(VARIABLE).is_some()
}

impl InstantRole {
    /// Returns the role of this process; `None` if a person or another program started it.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the descriptors are not there.
    pub fn of_this_process() -> Result<Option<Self>> {
        let Ok(text) = env::var(VARIABLE) else {
            return Ok(None);
        };
        let wrong = || Error::new(ErrorKind::Usage, format!("cannot use {VARIABLE}={text:?}"));
        let (role, numbers) = text.split_once(':').ok_or_else(wrong)?;
        let mut fds = Vec::new();
        for number in numbers.split(',') {
            let number = number.parse().map_err(|_| wrong())?;
            fds.push(take_inherited(number).map_err(|e| wrong().because(e.to_string()))?);
        }
        match (role, <[OwnedFd; 4]>::try_from(fds)) {
            ("guardian", Ok([group, events, lock, ready])) => {
                Ok(Some(Self::Guardian(GuardianFds {
                    group,
                    events,
                    lock,
                    ready,
                })))
            }
            ("worker", Ok([group, requests, wake, _])) => Ok(Some(Self::Worker(WorkerFds {
                group,
                requests,
                wake,
            }))),
            _ => Err(wrong()),
        }
    }
}

/// Starts this program again in a role, with these descriptors and its output in `log`.
///
/// # Errors
/// The system's.
pub(super) fn start(role: &str, fds: [&dyn AsFdDyn; 4], log: OwnedFd) -> io::Result<Child> {
    let passed = fds.map(|fd| fd.inheritable());
    let passed = passed.into_iter().collect::<io::Result<Vec<_>>>()?;
    let numbers: Vec<_> = passed.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    // Not by its path: the file may be replaced by a new version meanwhile.
    let mut command = Command::new("/proc/self/exe");
    let mut words = env::args_os();
    if let Some(name) = words.next() {
        std::os::unix::process::CommandExt::arg0(&mut command, name);
    }
    command
        .args(words)
        .env(VARIABLE, format!("{role}:{}", numbers.join(",")))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    command.spawn()
}

/// A descriptor that can be passed on.
pub(super) trait AsFdDyn {
    fn inheritable(&self) -> io::Result<OwnedFd>;
}

impl<T: AsFd> AsFdDyn for T {
    fn inheritable(&self) -> io::Result<OwnedFd> {
        inheritable(self)
    }
}
