//! A process beside a mount that clears the mount if the process of the mount was killed.
//!
//! A killed process leaves its mount behind: each access to the directory then fails. The watcher
//! holds nothing but a pipe from that process, and reads until the pipe ends.

use fullbore_engine::mount::clear_dead_mount;
use fullbore_format::error::{Error, Result};
use std::{
    env,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
};

/// The watcher of this process.
pub(super) struct MountWatcher(Child);

impl MountWatcher {
    /// Starts a watcher for the mount that is made at `dir`.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start(dir: &Path) -> Result<Self> {
        let failed = |error| Error::io("could not start the watcher of the mount", error);
        let mut command = Command::new(env::current_exe().map_err(failed)?);
        let path = env::var_os("PATH").unwrap_or_default();
        command
            .args(["mount", "--watch", "-"])
            .arg(dir)
            .env_clear()
            .env("PATH", path)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal from the keyboard must not end it.
            .process_group(0);
        command.spawn().map(Self).map_err(failed)
    }

    /// Ends it, after the mount is gone.
    pub(super) fn end(mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Waits for the end of the process that made the mount, and clears the mount if it is still there.
pub(super) fn watch(dir: &Path) {
    let _ = io::copy(&mut io::stdin().lock().take(u64::MAX), &mut io::sink());
    clear_dead_mount(dir);
}
