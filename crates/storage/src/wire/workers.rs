//! Threads that work for the other side.

use super::{bodies::Job, link::Link};
use fullbore_format::error::{Error, ErrorKind};
use std::{collections::VecDeque, sync::Arc};

/// Calls that wait for threads, and those threads.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) queue: VecDeque<Job>,
    pub(super) idle: usize,
    /// Workers and threads of uploads.
    pub(super) threads: usize,
    pub(super) workers: usize,
    pub(super) is_ending: bool,
}

impl Work {
    /// Threads of uploads, also of those that end.
    pub(super) fn upload_threads(&self) -> usize {
        self.threads - self.workers
    }
}

/// A thread that works for the other side.
pub(super) struct ServingThread {
    pub(super) link: Arc<Link>,
    pub(super) is_worker: bool,
}

impl Drop for ServingThread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.link.end(&Error::new(
                ErrorKind::Bug,
                "a thread of the storage has failed",
            ));
        }
        self.link.server.work.change(|work| {
            work.threads -= 1;
            work.workers -= usize::from(self.is_worker);
        });
    }
}
