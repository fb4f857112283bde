//! Workers that take jobs from one planner.

use crate::{
    error::{Error, Kind, Result},
    queue::{End, Queue, start_in},
};
use std::{
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

/// The first failure of any thread; after it nobody begins anything.
#[derive(Default)]
struct Failure {
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Failure {
    fn note(&self, error: Error) {
        let mut first = self.error.lock().unwrap_or_else(|e| e.into_inner());
        if !self.failed.swap(true, Relaxed) {
            *first = Some(error);
        }
    }
}

/// Run `plan` on this thread; the jobs it hands out are done by `workers` threads, each with what `make` gave it.
///
/// At most two jobs a worker wait. The first error of anybody ends everything and is the result.
pub(super) fn work<J: Send, W>(
    workers: NonZeroUsize,
    make: impl Fn() -> W + Sync,
    each: impl Fn(&mut W, J) -> Result<()> + Sync,
    plan: impl FnOnce(&mut dyn FnMut(J) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let failure = Failure::default();
    thread::scope(|scope| {
        let jobs = End(Arc::new(Queue::with_room(2 * workers.get())));
        for _ in 0..workers.get() {
            let jobs = End(jobs.0.clone());
            if let Err(error) = start_in(scope, || serve(jobs, &failure, make(), &each)) {
                failure.note(error);
                break;
            }
        }
        let mut send = |job| match !failure.failed.load(Relaxed) && jobs.0.push(job) {
            true => Ok(()),
            false => Err(stopped()),
        };
        if let Err(error) = plan(&mut send) {
            failure.note(error);
        }
    });
    failure.error.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
}

/// Never seen: the failure that stopped us was noted before.
fn stopped() -> Error {
    Error::new(Kind::Bug, "cannot go on after a failure")
}

/// A worker that panics closes the queue: nobody may wait for room that it would have made.
fn serve<J, W>(jobs: End<J>, failure: &Failure, mut with: W, each: &impl Fn(&mut W, J) -> Result<()>) {
    while let Some(job) = jobs.0.pop() {
        if failure.failed.load(Relaxed) {
            continue;
        }
        if let Err(error) = each(&mut with, job) {
            failure.note(error);
        }
    }
}
