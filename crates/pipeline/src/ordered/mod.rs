//! A parallel map that keeps the order.
//!
//! A feeder takes an item from the input, reserves a place in line, and only then gives the item to
//! the workers. The place is reserved before the work, so the first item in line never waits for a
//! later one.

use crate::source::Stream;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{
    metrics::meter::{Gauge, timed},
    queue::{Locked, Monitor, Queue, start},
};
use std::{
    collections::VecDeque,
    num::NonZeroUsize,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

/// The results of one stream, in order, with a limit on the number in progress.
///
/// One thread fills the line and one takes from it. Each is woken only when it can proceed, and the
/// feeder only when several places are free: on two cores, each wake-up interrupts a thread that
/// compresses.
#[derive(Debug)]
pub struct FrameLine<O> {
    places: Mutex<LinePlaces<O>>,
    filled: Condvar,
    room: Condvar,
    /// Number of free places that is worth waking the feeder for.
    batch: usize,
    max: usize,
}

#[derive(Debug)]
struct LinePlaces<O> {
    /// The first place has number `first`; an empty place is still being worked on.
    line: VecDeque<Option<Result<O>>>,
    first: u64,
    limit: usize,
    ended: bool,
    /// Whether the reader has stopped taking results.
    closed: bool,
    feeder_sleeps: bool,
    taker_sleeps: bool,
}

impl<O> FrameLine<O> {
    /// Creates a line of at most `limit` places, which can be raised to `max`.
    pub fn new(limit: usize, max: usize) -> Arc<Self> {
        let max = max.max(1);
        let limit = limit.clamp(1, max);
        let line = VecDeque::new();
        let batch = (limit / 2).max(1);
        let [ended, closed, feeder_sleeps, taker_sleeps] = [false; 4];
        let places = LinePlaces {
            line,
            first: 0,
            limit,
            ended,
            closed,
            feeder_sleeps,
            taker_sleeps,
        };
        Arc::new(Self {
            places: Mutex::new(places),
            filled: Condvar::new(),
            room: Condvar::new(),
            batch,
            max,
        })
    }

    /// Creates a line of the same length for another stream.
    pub fn same_length(&self) -> Arc<Self> {
        Self::new(self.lock().limit, self.max)
    }

    /// Makes the line longer. Short lines keep frames in the processor's cache: running 64 MiB
    /// ahead costs zstd-1 a tenth of its time. Long lines pay off only with a slow source.
    pub fn raise(&self, limit: usize) {
        let mut places = self.lock();
        places.limit = places.limit.max(limit.min(self.max));
        self.room.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, LinePlaces<O>> {
        self.places.locked()
    }

    /// Returns how many results only wait for the reader, and the number of places.
    pub fn fill(&self) -> (usize, usize) {
        let places = self.lock();
        let done = places.line.iter().filter(|place| place.is_some());
        (done.count(), places.limit)
    }

    /// Waits for a place and returns its number; `None` if the reader has stopped.
    fn reserve_place(&self) -> Option<u64> {
        let mut places = self.lock();
        if places.line.len() >= places.limit {
            places.feeder_sleeps = true;
            while places.line.len() + self.batch > places.limit && !places.closed {
                places = self
                    .room
                    .wait(places)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            places.feeder_sleeps = false;
        }
        places.line.push_back(None);
        (!places.closed).then(|| places.first + places.line.len() as u64 - 1)
    }

    fn fill_place(&self, number: u64, result: Result<O>) {
        let mut places = self.lock();
        let index = (number - places.first) as usize;
        places.line[index] = Some(result);
        let wake = index == 0 && places.taker_sleeps;
        drop(places);
        if wake {
            self.filled.notify_one();
        }
    }

    fn end(&self, error: Option<Error>) {
        let mut places = self.lock();
        places.line.extend(error.map(|error| Some(Err(error))));
        places.ended = true;
        drop(places);
        self.filled.notify_one();
    }

    fn next(&self) -> Option<Result<O>> {
        let mut places = self.lock();
        while places.line.front().map_or(!places.ended, Option::is_none) {
            places.taker_sleeps = true;
            places = self
                .filled
                .wait(places)
                .unwrap_or_else(PoisonError::into_inner);
            places.taker_sleeps = false;
        }
        let head = places.line.pop_front()?;
        places.first += 1;
        let wake = places.feeder_sleeps && places.line.len() + self.batch <= places.limit;
        drop(places);
        if wake {
            self.room.notify_one();
        }
        head
    }

    fn close(&self) {
        self.lock().closed = true;
        self.room.notify_one();
    }
}

/// A place in line that is filled even if its thread panics.
struct LineTicket<O> {
    line: Arc<FrameLine<O>>,
    number: u64,
    result: Option<Result<O>>,
}

impl<O> Drop for LineTicket<O> {
    fn drop(&mut self) {
        self.line.fill_place(
            self.number,
            self.result
                .take()
                .unwrap_or_else(|| Err(Error::new(ErrorKind::Bug, "a pipeline worker stopped"))),
        );
    }
}

/// Limits the threads that compute at the same time; any number may read meanwhile.
///
/// A permit is held only while computing, never while waiting, so it cannot be part of a deadlock.
/// A returned permit wakes one thread, because needless wake-ups interrupt threads that compute.
#[derive(Debug)]
pub struct Permits(Monitor<FreePermits>);

#[derive(Debug)]
struct FreePermits {
    count: usize,
    /// Number of waiting threads that have priority.
    urgent: usize,
}

impl Permits {
    /// Creates `count` permits.
    pub fn new(count: NonZeroUsize) -> Arc<Self> {
        Arc::new(Self(Monitor::new(FreePermits {
            count: count.get(),
            urgent: 0,
        })))
    }

    /// Runs `compute` as soon as there is a permit.
    pub fn hold<T>(&self, compute: impl FnOnce() -> T) -> T {
        self.0
            .sleep(|free| free.count == 0 || free.urgent > 0)
            .0
            .count -= 1;
        let _held = PermitGuard(self);
        compute()
    }

    /// Runs `compute` as soon as there is a permit, before all threads in `hold`.
    pub fn hold_first<T>(&self, compute: impl FnOnce() -> T) -> T {
        self.0.lock().0.urgent += 1;
        let mut state = self.0.sleep(|free| free.count == 0);
        state.0.count -= 1;
        state.0.urgent -= 1;
        self.0.wake(state, true); // permits returned meanwhile were withheld from the others
        let _held = PermitGuard(self);
        compute()
    }
}

/// A permit, returned also by a panic.
struct PermitGuard<'a>(&'a Permits);

impl Drop for PermitGuard<'_> {
    fn drop(&mut self) {
        let permits = &self.0.0;
        let mut state = permits.lock();
        state.0.count += 1;
        let all = state.0.urgent > 0; // a single woken thread might be one that must wait
        permits.wake(state, all);
    }
}

/// The work on each item.
pub type WorkFn<I, O> = Box<dyn FnMut(I) -> Result<O> + Send>;

/// Threads that do one kind of work.
pub struct FrameWorkers<I, O> {
    queue: Arc<Queue<(I, LineTicket<O>)>>,
    make: Box<dyn Fn() -> Result<WorkFn<I, O>> + Send + Sync>,
    gauge: Arc<Gauge>,
    size: AtomicUsize,
}

impl<I: Send + 'static, O: Send + 'static> FrameWorkers<I, O> {
    /// Starts `size` threads. Each gets its own `make()`, so it may keep state such as a
    /// compressor. `gauge` counts how long feeders waited.
    ///
    /// # Errors
    /// Errors of `make`.
    pub fn start(
        size: NonZeroUsize,
        gauge: Arc<Gauge>,
        make: impl Fn() -> Result<WorkFn<I, O>> + Send + Sync + 'static,
    ) -> Result<Arc<Self>> {
        let queue = Arc::new(Queue::default());
        let workers = Arc::new(Self {
            queue,
            make: Box::new(make),
            gauge,
            size: AtomicUsize::new(0),
        });
        (0..size.get()).try_for_each(|_| workers.grow())?;
        Ok(workers)
    }

    /// Starts one more thread.
    ///
    /// # Errors
    /// Errors of `make`, or if the system cannot start a thread.
    pub fn grow(&self) -> Result<()> {
        let queue = self.queue.clone();
        let mut work = (self.make)()?;
        start(move || {
            while let Some((item, mut ticket)) = queue.pop() {
                ticket.result = Some(work(item));
            }
        })?;
        self.size.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Returns the work function for a thread outside of this group.
    ///
    /// # Errors
    /// Errors of `make`.
    pub fn make_work(&self) -> Result<WorkFn<I, O>> {
        (self.make)()
    }

    /// Returns whether an item waits for a thread.
    pub fn has_backlog(&self) -> bool {
        self.queue.has_items()
    }

    /// Returns the number of threads.
    pub fn size(&self) -> usize {
        self.size.load(Relaxed)
    }

    /// Maps every item of `input` and yields the results in order, at most `line` ahead of the
    /// reader.
    ///
    /// An error keeps its place in line, and the stream continues after it. A line serves one
    /// stream.
    pub fn ordered(
        self: &Arc<Self>,
        input: impl Iterator<Item = Result<I>> + Send + 'static,
        line: Arc<FrameLine<O>>,
    ) -> Stream<O> {
        let workers = self.clone();
        let places = line.clone();
        let started = start(move || {
            let end = OrderedEnd(places);
            workers.feed(input, &end.0);
        });
        match started {
            Ok(_) => Box::new(OrderedFrames(line)),
            Err(error) => Box::new(std::iter::once(Err(error))),
        }
    }

    fn feed(&self, mut input: impl Iterator<Item = Result<I>>, line: &Arc<FrameLine<O>>) {
        while let Some(item) = timed(&self.gauge.starved, || input.next()) {
            let Some(number) = timed(&self.gauge.blocked, || line.reserve_place()) else {
                return;
            };
            let mut ticket = LineTicket {
                line: line.clone(),
                number,
                result: None,
            };
            match item {
                Ok(item) => _ = self.queue.push((item, ticket)),
                Err(error) => ticket.result = Some(Err(error)),
            }
        }
    }
}

/// Ends the line when the input ends or its thread panics.
struct OrderedEnd<O>(Arc<FrameLine<O>>);

impl<O> Drop for OrderedEnd<O> {
    fn drop(&mut self) {
        self.0.end(
            thread::panicking()
                .then(|| Error::new(ErrorKind::Bug, "a thread that scans the source panicked")),
        );
    }
}

impl<I, O> Drop for FrameWorkers<I, O> {
    fn drop(&mut self) {
        self.queue.close();
    }
}

struct OrderedFrames<O>(Arc<FrameLine<O>>);

impl<O> Iterator for OrderedFrames<O> {
    type Item = Result<O>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl<O> Drop for OrderedFrames<O> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests;
