//! Workers that take jobs from one planner.

use super::thread_count::{ThreadTuner, max_threads};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform as platform;
use fullbore_platform::{
    memory,
    metrics::meter::Meter,
    queue::{End, Locked, Queue, change, start_in},
};
use std::{
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
        mpsc,
    },
    thread::{self, Scope},
    time::Duration,
};

/// The number of workers: limit and present value.
pub struct WorkerLimit<'a> {
    /// Number of workers that may compute at once.
    workers: usize,
    /// Present number of workers.
    now: AtomicUsize,
    /// Maximum number of workers that wait for a device instead of a processor, and the meter that
    /// counts their work.
    tuner: Option<(usize, &'a Meter)>,
}

impl From<NonZeroUsize> for WorkerLimit<'_> {
    fn from(workers: NonZeroUsize) -> Self {
        Self {
            workers: workers.get(),
            now: workers.get().into(),
            tuner: None,
        }
    }
}

impl<'a> WorkerLimit<'a> {
    /// Starts with as many workers as may compute at once, and allows at most `fit`.
    pub fn climbing(workers: NonZeroUsize, fit: usize, meter: &'a Meter) -> Self {
        let most = max_threads(workers.get()).min(fit);
        Self {
            workers: workers.get(),
            now: workers.get().into(),
            tuner: Some((most, meter)),
        }
    }
}

/// The first failure of any thread. After it, no thread starts a new job.
#[derive(Default)]
struct FirstFailure {
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl FirstFailure {
    fn note(&self, error: Error) {
        let mut first = self.error.locked();
        if !self.failed.swap(true, Relaxed) {
            *first = Some(error);
        }
    }
}

/// Runs `plan` on this thread; `limit` workers do the jobs that it sends, each with its own value
/// from `make`.
///
/// At most two jobs wait for each possible worker. The first error of any thread stops all of them
/// and is returned.
pub fn work<J: Send, W>(
    limit: &WorkerLimit<'_>,
    make: impl Fn() -> W + Sync,
    each: impl Fn(&mut W, J) -> Result<()> + Sync,
    plan: impl FnOnce(&mut dyn FnMut(J) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let first = limit.now.load(Relaxed);
    let most = limit.tuner.map_or(first, |(most, _)| most.max(first));
    let pool = WorkerPool {
        jobs: Arc::new(Queue::with_room(2 * most)),
        failure: FirstFailure::default(),
        workers: Workers::default(),
        make,
        each,
    };
    thread::scope(|scope| {
        // Closes the queue at the end of the scope, so that the workers end.
        let jobs = End(pool.jobs.clone());
        pool.start(scope, limit, first);
        let (done, ended) = mpsc::channel::<()>();
        if let Some((most, meter)) = limit.tuner {
            let pool = &pool;
            meter.share_threads(first);
            // Without a thread to adjust it, the number of workers stays the same.
            let _ = start_in(scope, move || {
                pool.adjust(scope, &ended, (limit, most), meter)
            });
        }
        if let Err(error) = plan(&mut |job| pool.send(job)) {
            pool.failure.note(error);
        }
        jobs.0.drain();
        drop(done);
    });
    pool.failure.error.opened().map_or(Ok(()), Err)
}

/// Workers and the jobs that wait for them.
struct WorkerPool<J, M, E> {
    jobs: Arc<Queue<J>>,
    failure: FirstFailure,
    workers: Workers,
    make: M,
    each: E,
}

impl<J: Send, W, M, E> WorkerPool<J, M, E>
where
    M: Fn() -> W + Sync,
    E: Fn(&mut W, J) -> Result<()> + Sync,
{
    /// Starts the first workers. Fewer than before are enough, but not fewer than the user
    /// requested.
    fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        limit: &WorkerLimit<'_>,
        first: usize,
    ) {
        if let Err(error) = self.resize(scope, first) {
            limit.now.store(self.workers.present().max(1), Relaxed);
            if self.workers.present() < first.min(limit.workers) {
                self.failure.note(error);
            }
        }
    }

    /// Starts workers until there are `size`; surplus workers end after their job.
    fn resize<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, size: usize) -> Result<()> {
        self.workers.wanted.store(size, Relaxed);
        while self.workers.try_join(size) {
            start_in(scope, move || self.work_loop()).inspect_err(|_| self.workers.leave())?;
        }
        Ok(())
    }

    /// Adjusts the number of workers until the run is over: adds workers where they pay off,
    /// removes them where they did not.
    fn adjust<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        ended: &mpsc::Receiver<()>,
        (limit, most): (&WorkerLimit<'_>, usize),
        meter: &Meter,
    ) {
        let mut tuner = ThreadTuner::new(meter, limit.workers);
        // 20 times a second: the end of the work is noticed at once, because its channel closes.
        while ended.recv_timeout(Duration::from_millis(50)) == Err(mpsc::RecvTimeoutError::Timeout)
        {
            let now = limit.now.load(Relaxed);
            let has_jobs = || self.jobs.has_items();
            let wanted = tuner.wanted_threads(meter.sample(), now, most, |_, _| has_jobs());
            if wanted != now {
                limit.now.store(wanted, Relaxed);
                meter.share_threads(wanted);
                if let Err(error) = self.resize(scope, wanted) {
                    limit.now.store(self.workers.present(), Relaxed);
                    platform::debug(|| error.line());
                }
            }
        }
        limit.now.fetch_min(tuner.proven_threads(), Relaxed);
    }

    /// Hands a job to the workers. Fails after any failure.
    fn send(&self, job: J) -> Result<()> {
        if !self.failure.failed.load(Relaxed) && self.jobs.push(job) {
            Ok(())
        } else {
            Err(stopped_error())
        }
    }

    /// Does jobs until the queue is closed or there are too many workers.
    fn work_loop(&self) {
        let _watch = PanicGuard(&self.jobs);
        let mut worker = (self.make)();
        while !self.workers.try_leave()
            && let Some(job) = self.jobs.pop()
        {
            if self.failure.failed.load(Relaxed) {
                continue;
            }
            let done = memory::check()
                .map_err(|e| Error::io("could not continue", e))
                .and_then(|()| (self.each)(&mut worker, job));
            if let Err(error) = done {
                self.failure.note(error);
            }
        }
    }
}

/// Present and wanted number of workers.
#[derive(Default)]
struct Workers {
    here: AtomicUsize,
    wanted: AtomicUsize,
}

impl Workers {
    /// Adds one worker if there are less than `size`. Returns whether it did.
    fn try_join(&self, size: usize) -> bool {
        change(&self.here, |present| {
            (present < size).then_some(present + 1)
        })
    }

    fn present(&self) -> usize {
        self.here.load(Acquire)
    }

    fn leave(&self) {
        self.here.fetch_sub(1, AcqRel);
    }

    /// Removes one worker if there are more than wanted. Returns whether it did.
    fn try_leave(&self) -> bool {
        let wanted = self.wanted.load(Relaxed);
        change(&self.here, |present| {
            (present > wanted).then(|| present - 1)
        })
    }
}

/// The error that stops the planner. The user never sees it, because the failure behind it was
/// noted first.
fn stopped_error() -> Error {
    Error::new(ErrorKind::Bug, "cannot continue after a failure")
}

/// Closes the queue if its worker panics, so that no thread waits for the lost job.
struct PanicGuard<'a, J>(&'a Queue<J>);

impl<J> Drop for PanicGuard<'_, J> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abandon();
        }
    }
}
