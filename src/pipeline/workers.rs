//! Workers that take jobs from one planner.

use super::thread_count::{ThreadTuner, max_threads};
use crate::{
    error::{Error, ErrorKind, Result},
    metrics::meter::Meter,
    platform::{self, memory},
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
    thread,
    time::Duration,
};

/// The number of workers: limit and present value.
pub(crate) struct WorkerLimit<'a> {
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
    pub(crate) fn climbing(workers: NonZeroUsize, fit: usize, meter: &'a Meter) -> Self {
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
pub(crate) fn work<J: Send, W>(
    limit: &WorkerLimit<'_>,
    make: impl Fn() -> W + Sync,
    each: impl Fn(&mut W, J) -> Result<()> + Sync,
    plan: impl FnOnce(&mut dyn FnMut(J) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let first = limit.now.load(Relaxed);
    let most = limit.tuner.map_or(first, |(most, _)| most.max(first));
    let failure = FirstFailure::default();
    let workers = Workers::default();
    thread::scope(|scope| {
        let jobs = End(Arc::new(Queue::with_room(2 * most)));
        let queue = jobs.0.clone();
        let failure = &failure;
        let workers = &workers;
        let make = &make;
        let each = &each;
        let resize = move |size: usize| {
            workers.wanted.store(size, Relaxed);
            while workers.try_join(size) {
                let queue = queue.clone();
                start_in(scope, move || {
                    work_loop(&queue, failure, workers, make, each)
                })
                .inspect_err(|_| workers.leave())?;
            }
            Ok(())
        };
        if let Err(error) = resize(first) {
            limit.now.store(workers.present().max(1), Relaxed);
            // Fewer workers than before are enough, but not fewer than the user requested.
            if workers.present() < first.min(limit.workers) {
                failure.note(error);
            }
        }
        let (done, over) = mpsc::channel::<()>();
        if let Some((most, meter)) = limit.tuner {
            meter.share_threads(first);
            let queue = jobs.0.clone();
            let attend =
                move || adjust_workers((&queue, workers), &over, (limit, most), meter, resize);
            // Without a thread to adjust it, the number of workers stays the same.
            let _ = start_in(scope, attend);
        }
        let mut send = |job| {
            if !failure.failed.load(Relaxed) && jobs.0.push(job) {
                Ok(())
            } else {
                Err(stopped_error())
            }
        };
        if let Err(error) = plan(&mut send) {
            failure.note(error);
        }
        jobs.0.drain();
        drop(done);
    });
    failure.error.opened().map_or(Ok(()), Err)
}

/// Adjusts the number of workers until the run is over: adds workers where they pay off, removes
/// them where they did not.
fn adjust_workers<J>(
    (jobs, workers): (&Queue<J>, &Workers),
    over: &mpsc::Receiver<()>,
    (limit, most): (&WorkerLimit<'_>, usize),
    meter: &Meter,
    resize: impl Fn(usize) -> Result<()>,
) {
    let mut tuner = ThreadTuner::new(meter, limit.workers);
    while over.recv_timeout(Duration::from_millis(50)) == Err(mpsc::RecvTimeoutError::Timeout) {
        let now = limit.now.load(Relaxed);
        let wanted = tuner.wanted_threads(meter.sample(), now, most, |_, _| jobs.has_items());
        if wanted != now {
            limit.now.store(wanted, Relaxed);
            meter.share_threads(wanted);
            if let Err(error) = resize(wanted) {
                limit.now.store(workers.present(), Relaxed);
                platform::debug(|| error.line());
            }
        }
    }
    limit.now.fetch_min(tuner.proven_threads(), Relaxed);
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
        change(&self.here, |here| (here < size).then_some(here + 1))
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
        change(&self.here, |here| (here > wanted).then(|| here - 1))
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

fn work_loop<J, W>(
    jobs: &Queue<J>,
    failure: &FirstFailure,
    workers: &Workers,
    make: &impl Fn() -> W,
    each: &impl Fn(&mut W, J) -> Result<()>,
) {
    let _watch = PanicGuard(jobs);
    let mut with = make();
    while !workers.try_leave()
        && let Some(job) = jobs.pop()
    {
        if failure.failed.load(Relaxed) {
            continue;
        }
        let done = memory::check()
            .map_err(|e| Error::io("could not continue", e))
            .and_then(|()| each(&mut with, job));
        if let Err(error) = done {
            failure.note(error);
        }
    }
}
