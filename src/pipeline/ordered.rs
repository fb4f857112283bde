//! A map on many threads that keeps the order.
//!
//! A feeder takes an item from the input, takes a place in line for it, and only then gives it to the crew: the credit is
//! taken before the work, so an item at the head of the line never waits for one behind it.

use crate::{
    error::{Error, ErrorKind, Result},
    metrics::meter::{Gauge, timed},
    queue::{Locked, Monitor, Queue, start},
    source::Stream,
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

/// The results of one stream, in order, and how many there may be under way.
///
/// One thread fills the line and one takes from it. Each is woken only for what it waits for, and the one that fills it only
/// when several places are free: on two cores, each time they wake they stop a thread that compresses.
#[derive(Debug)]
pub struct FrameLine<O> {
    places: Mutex<LinePlaces<O>>,
    filled: Condvar,
    room: Condvar,
    /// Places that must be free before it is worth waking anybody for them.
    batch: usize,
    max: usize,
}

#[derive(Debug)]
struct LinePlaces<O> {
    /// The place at the head has number `first`; one that is not filled is being worked on.
    line: VecDeque<Option<Result<O>>>,
    first: u64,
    limit: usize,
    /// No more items come.
    ended: bool,
    /// Nobody takes results any more.
    closed: bool,
    feeder_sleeps: bool,
    taker_sleeps: bool,
}

impl<O> FrameLine<O> {
    /// A line of at most `limit` places at first, and never more than `max`.
    pub fn new(limit: usize, max: usize) -> Arc<Self> {
        let max = max.max(1);
        let limit = limit.clamp(1, max);
        let (line, batch) = (VecDeque::new(), (limit / 2).max(1));
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

    /// Another of the same lengths, for another stream.
    pub fn anew(&self) -> Arc<Self> {
        Self::new(self.lock().limit, self.max)
    }

    /// Make it longer. Short lines keep frames in the processor's cache: running 64 MiB ahead cost a tenth of the time of
    /// zstd-1; long ones are worth it only where the source is slow.
    pub fn raise(&self, limit: usize) {
        let mut places = self.lock();
        places.limit = places.limit.max(limit.min(self.max));
        self.room.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, LinePlaces<O>> {
        self.places.locked()
    }

    /// Wait for a place and give its number; `None` if nobody will take what comes.
    fn take(&self) -> Option<u64> {
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

    fn fill(&self, number: u64, result: Result<O>) {
        let mut places = self.lock();
        let at = (number - places.first) as usize;
        places.line[at] = Some(result);
        let wake = at == 0 && places.taker_sleeps;
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

/// A place in line that must be filled, even if the thread that should do it panics.
struct Ticket<O> {
    line: Arc<FrameLine<O>>,
    number: u64,
    result: Option<Result<O>>,
}

impl<O> Drop for Ticket<O> {
    fn drop(&mut self) {
        let lost = || Err(Error::new(ErrorKind::Bug, "a pipeline worker stopped"));
        self.line
            .fill(self.number, self.result.take().unwrap_or_else(lost));
    }
}

/// How many threads may compute at the same time; any number may read meanwhile.
///
/// Held only while computing, never while waiting for anything, so it cannot be part of a circle. A permit that is given back
/// wakes one thread: those woken for nothing stop others that compute.
#[derive(Debug)]
pub struct Permits(Monitor<Free>);

#[derive(Debug)]
struct Free {
    count: usize,
    /// Threads that go first.
    urgent: usize,
}

impl Permits {
    /// So many.
    pub fn new(count: NonZeroUsize) -> Arc<Self> {
        Arc::new(Self(Monitor::new(Free {
            count: count.get(),
            urgent: 0,
        })))
    }

    /// Compute, once there is a permit.
    pub fn hold<T>(&self, compute: impl FnOnce() -> T) -> T {
        self.0
            .sleep(|free| free.count == 0 || free.urgent > 0)
            .0
            .count -= 1;
        let _held = PermitGuard(self);
        compute()
    }

    /// The same, before all who wait.
    pub fn hold_first<T>(&self, compute: impl FnOnce() -> T) -> T {
        self.0.lock().0.urgent += 1;
        let mut state = self.0.sleep(|free| free.count == 0);
        state.0.count -= 1;
        state.0.urgent -= 1;
        self.0.wake(state, true); // what was given back meanwhile was kept from the others
        let _held = PermitGuard(self);
        compute()
    }
}

/// A permit, which is given back also by a panic.
struct PermitGuard<'a>(&'a Permits);

impl Drop for PermitGuard<'_> {
    fn drop(&mut self) {
        let permits = &self.0.0;
        let mut state = permits.lock();
        state.0.count += 1;
        let all = state.0.urgent > 0; // the one that is woken must not be one that may not go
        permits.wake(state, all);
    }
}

/// What a thread does with each item.
pub type Work<I, O> = Box<dyn FnMut(I) -> Result<O> + Send>;

/// Threads that do one kind of work.
pub struct FrameWorkers<I, O> {
    queue: Arc<Queue<(I, Ticket<O>)>>,
    make: Box<dyn Fn() -> Result<Work<I, O>> + Send + Sync>,
    gauge: Arc<Gauge>,
    size: AtomicUsize,
}

impl<I: Send + 'static, O: Send + 'static> FrameWorkers<I, O> {
    /// Start `size` threads; each gets its own `make()`, so it may keep state, such as a compressor. `gauge` is told how
    /// long feeders waited.
    ///
    /// # Errors
    /// What `make` says.
    pub fn start(
        size: NonZeroUsize,
        gauge: Arc<Gauge>,
        make: impl Fn() -> Result<Work<I, O>> + Send + Sync + 'static,
    ) -> Result<Arc<Self>> {
        let queue = Arc::new(Queue::default());
        let crew = Arc::new(Self {
            queue,
            make: Box::new(make),
            gauge,
            size: AtomicUsize::new(0),
        });
        (0..size.get()).try_for_each(|_| crew.grow())?;
        Ok(crew)
    }

    /// One thread more.
    ///
    /// # Errors
    /// What `make` says, or if the system has no thread.
    pub fn grow(&self) -> Result<()> {
        let (queue, mut work) = (self.queue.clone(), (self.make)()?);
        start(move || {
            while let Some((item, mut ticket)) = queue.pop() {
                ticket.result = Some(work(item));
            }
        })?;
        self.size.fetch_add(1, Relaxed);
        Ok(())
    }

    /// What each thread does, for one more that has its own.
    ///
    /// # Errors
    /// What `make` says.
    pub fn work(&self) -> Result<Work<I, O>> {
        (self.make)()
    }

    /// Does something wait for a thread?
    pub fn is_behind(&self) -> bool {
        self.queue.has_items()
    }

    /// How many threads there are.
    pub fn size(&self) -> usize {
        self.size.load(Relaxed)
    }

    /// Map every item of `input`, and yield the results in its order, no further ahead of the reader than `line` allows.
    ///
    /// An error keeps its place in line, and the stream goes on behind it. A line serves one stream.
    pub fn ordered(
        self: &Arc<Self>,
        input: impl Iterator<Item = Result<I>> + Send + 'static,
        line: Arc<FrameLine<O>>,
    ) -> Stream<O> {
        let (crew, places) = (self.clone(), line.clone());
        let started = start(move || {
            let end = OrderedEnd(places);
            crew.feed(input, &end.0);
        });
        match started {
            Ok(_) => Box::new(OrderedFrames(line)),
            Err(error) => Box::new(std::iter::once(Err(error))),
        }
    }

    fn feed(&self, mut input: impl Iterator<Item = Result<I>>, line: &Arc<FrameLine<O>>) {
        while let Some(item) = timed(&self.gauge.starved, || input.next()) {
            let Some(number) = timed(&self.gauge.blocked, || line.take()) else {
                return;
            };
            let mut ticket = Ticket {
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

/// No more comes behind what has come; a thread that panicked says so.
struct OrderedEnd<O>(Arc<FrameLine<O>>);

impl<O> Drop for OrderedEnd<O> {
    fn drop(&mut self) {
        let lost = || {
            Error::new(
                ErrorKind::Bug,
                "a thread that looks for what to read is lost",
            )
        };
        self.0.end(thread::panicking().then(lost));
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
mod tests {
    use super::*;

    fn crew(size: usize) -> Arc<FrameWorkers<u64, u64>> {
        let work = || -> Result<Work<u64, u64>> {
            Ok(Box::new(|n| {
                std::thread::sleep(std::time::Duration::from_micros(n % 7 * 50));
                Ok(n * 2)
            }))
        };
        FrameWorkers::start(NonZeroUsize::new(size).unwrap(), Arc::default(), work).unwrap()
    }

    #[test]
    fn one_worker_and_many_give_the_same_order() {
        for size in [1, 2, 7, 16] {
            let out: Vec<_> = crew(size)
                .ordered((0..300).map(Ok), FrameLine::new(size + 1, size + 1))
                .map(Result::unwrap)
                .collect();
            assert_eq!(
                out,
                (0..300).map(|n| n * 2).collect::<Vec<_>>(),
                "{size} workers"
            );
        }
    }

    #[test]
    fn streams_share_a_crew_and_each_keeps_its_order() {
        let crew = crew(3);
        let mut streams: Vec<_> = (0..4)
            .map(|i| crew.ordered((i..i + 50).map(Ok), FrameLine::new(2, 2)))
            .collect();
        for round in 0..50 {
            for (i, stream) in streams.iter_mut().enumerate() {
                assert_eq!(stream.next().unwrap().unwrap(), (i as u64 + round) * 2);
            }
        }
    }

    #[test]
    fn what_is_urgent_is_computed_first() {
        let (permits, order) = (Permits::new(NonZeroUsize::MIN), Mutex::new(Vec::new()));
        let note = |who| order.lock().unwrap().push(who);
        std::thread::scope(|scope| {
            permits.hold(|| {
                (0..3).for_each(|_| _ = scope.spawn(|| permits.hold(|| note("another"))));
                scope.spawn(|| permits.hold_first(|| note("urgent")));
                while permits.0.lock().0.urgent == 0 {
                    std::thread::yield_now();
                }
            });
        });
        assert_eq!(
            order.into_inner().unwrap(),
            ["urgent", "another", "another", "another"]
        );
    }

    #[test]
    fn an_error_keeps_its_place_in_line() {
        let input = (0..10).map(|n| {
            if n == 6 {
                Err(Error::corrupt("six"))
            } else {
                Ok(n)
            }
        });
        let out: Vec<_> = crew(4).ordered(input, FrameLine::new(3, 3)).collect();
        assert_eq!(out.iter().position(Result::is_err), Some(6));
        assert_eq!(out.len(), 10);
    }

    #[test]
    fn items_in_flight_stay_under_the_depth() {
        static LIVE: AtomicUsize = AtomicUsize::new(0);
        static PEAK: AtomicUsize = AtomicUsize::new(0);
        let input = (0..200u64).map(|n| {
            PEAK.fetch_max(LIVE.fetch_add(1, Relaxed) + 1, Relaxed);
            Ok(n)
        });
        for result in crew(8).ordered(input, FrameLine::new(2, 5)) {
            result.unwrap();
            LIVE.fetch_sub(1, Relaxed);
        }
        // 5 in line, one in the feeder's hand before it has a place, one in ours.
        assert!(PEAK.load(Relaxed) <= 7, "{}", PEAK.load(Relaxed));
    }

    #[test]
    fn a_worker_that_panics_is_an_error_in_its_place() {
        let work = || -> Result<Work<u64, u64>> {
            Ok(Box::new(|n| {
                assert_ne!(n, 3, "this panic belongs to the test");
                Ok(n)
            }))
        };
        let crew =
            FrameWorkers::start(NonZeroUsize::new(2).unwrap(), Arc::default(), work).unwrap();
        let out: Vec<_> = crew.ordered((0..8).map(Ok), FrameLine::new(3, 3)).collect();
        assert_eq!(out.iter().map(Result::is_err).position(|bad| bad), Some(3));
        assert_eq!(out.len(), 8);
    }

    #[test]
    fn an_input_that_panics_is_an_error_at_the_end() {
        let input = (0..8).map(|n| {
            assert_ne!(n, 3, "this panic belongs to the test");
            Ok(n)
        });
        let out: Vec<_> = crew(2).ordered(input, FrameLine::new(3, 3)).collect();
        assert_eq!(
            out.iter().map(Result::is_err).collect::<Vec<_>>(),
            [false, false, false, true]
        );
    }

    #[test]
    fn dropping_the_output_stops_the_feeder() {
        let mut stream = crew(4).ordered((0..).map(Ok), FrameLine::new(4, 4));
        assert_eq!(stream.next().unwrap().unwrap(), 0);
        drop(stream);
    }
}
