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

/// How many workers there are.
pub(crate) struct WorkerLimit<'a> {
    /// So many may compute at once.
    workers: usize,
    /// So many are there now,
    now: AtomicUsize,
    /// and up to so many while they wait for a device and not for a processor; what they have done stands in the meter.
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
    /// At first as many as may compute at once; no more than `fit`.
    pub(crate) fn climbing(workers: NonZeroUsize, fit: usize, meter: &'a Meter) -> Self {
        let most = max_threads(workers.get()).min(fit);
        Self {
            workers: workers.get(),
            now: workers.get().into(),
            climb: Some((most, meter)),
        }
    }
}

/// The first failure of any thread; after it nobody begins anything.
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

/// Run `plan` on this thread; the jobs it hands out are done by other `hands`, each with what `make` gave it.
///
/// At most two jobs wait for each worker there may be. The first error of anybody ends everything and is the result.
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
            // Fewer than there were before suffice, but not fewer than were asked for.
            if crew.here() < first.min(hands.workers) {
                failure.note(error);
            }
        }
        let (done, over) = mpsc::channel::<()>();
        if let Some((most, meter)) = hands.climb {
            meter.share_threads(first);
            let queue = jobs.0.clone();
            let attend = move || attend((&queue, crew), &over, (hands, most), meter, resize);
            // Without a thread for it their number stays what it is.
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

/// Until nothing waits any more: more workers where they pay, fewer where they did not.
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
            meter.share_threads(wanted);
            if let Err(error) = resize(wanted) {
                hands.now.store(crew.here(), Relaxed);
                platform::debug(|| error.line());
            }
        }
    }
    hands.now.fetch_min(climb.proven(), Relaxed);
}

/// How many workers there are, and how many there should be.
#[derive(Default)]
struct Workers {
    here: AtomicUsize,
    wanted: AtomicUsize,
}

impl Workers {
    /// One joins, if there are less than `size`.
    fn joined(&self, size: usize) -> bool {
        change(&self.here, |here| (here < size).then_some(here + 1))
    }

    fn here(&self) -> usize {
        self.here.load(Acquire)
    }

    fn leave(&self) {
        self.here.fetch_sub(1, AcqRel);
    }

    /// One leaves, if there are more than wanted.
    fn left(&self) -> bool {
        let wanted = self.wanted.load(Relaxed);
        change(&self.here, |here| (here > wanted).then(|| here - 1))
    }
}

/// Never seen: the failure that stopped us was noted before.
fn stopped() -> Error {
    Error::new(ErrorKind::Bug, "cannot go on after a failure")
}

/// A worker that panics closes the queue: nobody may wait for what it would have done.
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
            .map_err(|e| Error::io("could not go on", e))
            .and_then(|()| each(&mut with, job));
        if let Err(error) = done {
            failure.note(error);
        }
    }
}
