//! Workers that take jobs from one planner.

use super::thread_count::{Climb, max_threads};
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
    climb: Option<(usize, &'a Meter)>,
}

impl From<NonZeroUsize> for WorkerLimit<'_> {
    fn from(workers: NonZeroUsize) -> Self {
        Self {
            workers: workers.get(),
            now: workers.get().into(),
            climb: None,
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
            climb: Some((most, meter)),
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

/// Runs `plan` on this thread; `hands` workers do the jobs that it sends, each with its own value
/// from `make`.
///
/// At most two jobs wait for each possible worker. The first error of any thread stops all of them
/// and is returned.
pub(crate) fn work<J: Send, W>(
    hands: &WorkerLimit<'_>,
    make: impl Fn() -> W + Sync,
    each: impl Fn(&mut W, J) -> Result<()> + Sync,
    plan: impl FnOnce(&mut dyn FnMut(J) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let first = hands.now.load(Relaxed);
    let most = hands.climb.map_or(first, |(most, _)| most.max(first));
    let (failure, crew) = (FirstFailure::default(), Workers::default());
    thread::scope(|scope| {
        let jobs = End(Arc::new(Queue::with_room(2 * most)));
        let (queue, failure, crew, make, each) = (jobs.0.clone(), &failure, &crew, &make, &each);
        let resize = move |size: usize| {
            crew.wanted.store(size, Relaxed);
            while crew.joined(size) {
                let queue = queue.clone();
                start_in(scope, move || serve(&queue, failure, crew, make, each))
                    .inspect_err(|_| crew.leave())?;
            }
            Ok(())
        };
        if let Err(error) = resize(first) {
            hands.now.store(crew.here().max(1), Relaxed);
            // Fewer workers than before are enough, but not fewer than the user requested.
            if crew.here() < first.min(hands.workers) {
                failure.note(error);
            }
        }
        let (done, over) = mpsc::channel::<()>();
        if let Some((most, meter)) = hands.climb {
            meter.share(first);
            let queue = jobs.0.clone();
            let attend = move || attend((&queue, crew), &over, (hands, most), meter, resize);
            // Without a thread to adjust it, the number of workers stays the same.
            let _ = start_in(scope, attend);
        }
        let mut send = |job| match !failure.failed.load(Relaxed) && jobs.0.push(job) {
            true => Ok(()),
            false => Err(stopped()),
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
fn attend<J>(
    (jobs, crew): (&Queue<J>, &Workers),
    over: &mpsc::Receiver<()>,
    (hands, most): (&WorkerLimit<'_>, usize),
    meter: &Meter,
    resize: impl Fn(usize) -> Result<()>,
) {
    let mut climb = Climb::new(meter, hands.workers);
    while over.recv_timeout(Duration::from_millis(50)) == Err(mpsc::RecvTimeoutError::Timeout) {
        let now = hands.now.load(Relaxed);
        let wanted = climb.advise(meter.sample(), now, most, |_, _| jobs.has_items());
        if wanted != now {
            hands.now.store(wanted, Relaxed);
            meter.share(wanted);
            if let Err(error) = resize(wanted) {
                hands.now.store(crew.here(), Relaxed);
                platform::debug(|| error.line());
            }
        }
    }
    hands.now.fetch_min(climb.proven(), Relaxed);
}

/// Present and wanted number of workers.
#[derive(Default)]
struct Workers {
    here: AtomicUsize,
    wanted: AtomicUsize,
}

impl Workers {
    /// Adds one worker if there are less than `size`. Returns whether it did.
    fn joined(&self, size: usize) -> bool {
        change(&self.here, |here| (here < size).then_some(here + 1))
    }

    fn here(&self) -> usize {
        self.here.load(Acquire)
    }

    fn leave(&self) {
        self.here.fetch_sub(1, AcqRel);
    }

    /// Removes one worker if there are more than wanted. Returns whether it did.
    fn left(&self) -> bool {
        let wanted = self.wanted.load(Relaxed);
        change(&self.here, |here| (here > wanted).then(|| here - 1))
    }
}

/// The error that stops the planner. The user never sees it, because the failure behind it was
/// noted first.
fn stopped() -> Error {
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

fn serve<J, W>(
    jobs: &Queue<J>,
    failure: &FirstFailure,
    crew: &Workers,
    make: &impl Fn() -> W,
    each: &impl Fn(&mut W, J) -> Result<()>,
) {
    let _watch = PanicGuard(jobs);
    let mut with = make();
    while !crew.left()
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
