//! Starts a server on a cluster that is not whole. It inherits the event group, so that its readers wait if all other
//! processes are killed.

use super::event_table::EventTable;
use crate::drill::{programs::ServerPrograms, user::ServerUser};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::pre_content::{EventGroup, inherit::inheritable};
use fullbore_postgres::stopped::read_small_text;
use std::{
    fs::File,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::Duration,
};

/// Name of the server's log in the data directory, unless its configuration names another.
const LOG: &str = "fullbore-start.log";
/// The first version that has `recovery_init_sync_method`.
const SYNCFS_SINCE: u32 = 14;
/// Line of `postmaster.pid` with the status, from 0.
const STATUS_LINE: usize = 7;
/// Statuses of a server that accepts connections, and of a standby that does.
const ACCEPTING: [&str; 2] = ["ready", "standby"];
const PAUSE: Duration = Duration::from_millis(10);
/// Lines of the log that an error repeats.
const LOG_LINES: usize = 5;

/// The server of a cluster.
#[derive(Debug)]
pub(super) struct InstantServer {
    programs: ServerPrograms,
    user: ServerUser,
    major: u32,
    data: PathBuf,
}

impl InstantServer {
    /// Finds the programs of a server before anything is restored.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without them.
    pub(super) fn programs(major: u32, bindir: Option<&Path>) -> Result<ServerPrograms> {
        ServerPrograms::find(major, bindir)
    }

    pub(super) fn new(programs: ServerPrograms, major: u32, data: &Path) -> Result<Self> {
        Ok(Self {
            user: ServerUser::of_files(data)?,
            data: data.to_owned(),
            programs,
            major,
        })
    }

    /// Starts the server, and waits until it accepts connections.
    ///
    /// # Errors
    /// [`ErrorKind::System`] with the last lines of its log if it ends before.
    pub(super) fn start(&self, group: &EventGroup, table: &EventTable) -> Result<()> {
        let failed = |e| Error::io("could not start the server", e);
        let log = self.data.join(LOG);
        let out = File::create(&log).map_err(failed)?;
        let (uid, gid) = self.user.ids();
        chown(&log, Some(uid), Some(gid)).map_err(failed)?;
        let mut command = self.user.command(&self.programs.path("postgres"));
        command.arg("-D").arg(&self.data).current_dir(&self.data);
        if self.major >= SYNCFS_SINCE {
            command.args(["-c", "recovery_init_sync_method=syncfs"]);
        }
        let output = out.try_clone().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(output).stderr(out);
        // The server and all its processes hold these for as long as they run.
        let held = [inheritable(group), inheritable(table.memory())];
        let child = command.spawn().map_err(failed)?;
        drop(held);
        self.wait_until_open(child, &log)
    }

    fn wait_until_open(&self, mut child: Child, log: &Path) -> Result<()> {
        while !self.is_open(child.id()) {
            let ended = child.try_wait();
            let ended = ended.map_err(|e| Error::io("could not wait for the server", e))?;
            if let Some(status) = ended {
                let text = std::fs::read_to_string(log).unwrap_or_default();
                let message = "the server ended before it accepted connections";
                let error = Error::new(ErrorKind::System, message).because(status.to_string());
                let lines = text.lines().rev().take(LOG_LINES).collect::<Vec<_>>();
                return Err(lines
                    .into_iter()
                    .rev()
                    .fold(error, |e, line| e.detail(line.to_owned())));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn is_open(&self, id: u32) -> bool {
        let text = read_small_text(&self.data.join("postmaster.pid")).unwrap_or_default();
        let mut lines = text.lines();
        let is_own = lines.next() == Some(&id.to_string());
        let status = lines.nth(STATUS_LINE - 1).map(str::trim);
        is_own && status.is_some_and(|status| ACCEPTING.contains(&status))
    }
}

/// Returns the number of the server of a data directory, if it runs.
pub(super) fn running_server(data: &Path) -> Option<i32> {
    let text = read_small_text(&data.join("postmaster.pid")).ok()?;
    let id: i32 = text.lines().next()?.trim().parse().ok()?;
    let is_running = id > 0 && fullbore_platform::works_in(id as u32, data);
    is_running.then_some(id)
}
