//! Threads that work for the other side.

use super::{bodies::Job, line::Line};
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

/// A thread that works for the other side. When it ends, also by a panic, it is counted no more.
pub(super) struct ServingThread<E: Fn()> {
    line: Arc<Line>,
    ended: E,
}

impl<E: Fn()> ServingThread<E> {
    /// Counts a thread; `ended` is called when the thread ends.
    pub(super) fn new(line: Arc<Line>, ended: E) -> Self {
        Self { line, ended }
    }
}

impl<E: Fn()> Drop for ServingThread<E> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = "a thread of the storage has failed";
            self.line.end(&Error::new(ErrorKind::Bug, message));
        }
        (self.ended)();
    }
}
