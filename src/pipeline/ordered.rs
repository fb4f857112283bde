//! A map on many threads that keeps the order.
//!
//! A feeder takes an item from the input, takes a place in line for it, and only then gives it to the crew: the credit is
//! taken before the work, so an item at the head of the line never waits for one behind it. Locks and condition variables
//! rather than channels: a channel spins and yields before it sleeps, which cost a system call for every four small files.

use super::meter::{Gauge, timed};
use crate::{
    error::{Error, Kind, Result},
    source::Stream,
};
use std::{
    collections::VecDeque,
    num::NonZeroUsize,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// A lock whose holder may have panicked: the state is consistent all the same, since nothing that can panic runs inside.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The results of one stream, in order, and how many there may be under way.
#[derive(Debug)]
pub struct Line<O> {
    state: Mutex<Places<O>>,
    freed: Condvar,
    ready: Condvar,
    max: usize,
}

#[derive(Debug)]
struct Places<O> {
    /// The place at the head has number `first`; one that is not filled is being worked on.
    places: VecDeque<Option<Result<O>>>,
    first: u64,
    limit: usize,
    /// No more items come.
    ended: bool,
    /// Nobody takes results any more.
    closed: bool,
}

impl<O> Line<O> {
    /// A line of at most `limit` places at first, and never more than `max`.
    pub fn new(limit: usize, max: usize) -> Arc<Self> {
        let (max, places) = (max.max(1), VecDeque::new());
        let places = Places { places, first: 0, limit: limit.clamp(1, max), ended: false, closed: false };
        Arc::new(Self { state: Mutex::new(places), freed: Condvar::new(), ready: Condvar::new(), max })
    }

    /// Make it longer. Short lines keep frames in the processor's cache: running 64 MiB ahead cost a tenth of the time of
    /// zstd-1; long ones are worth it only where the source is slow.
    pub fn raise(&self, limit: usize) {
        let mut state = locked(&self.state);
        state.limit = state.limit.max(limit.min(self.max));
        self.freed.notify_all();
    }

    /// Wait for a place and give its number; `None` if nobody will take what comes.
    fn take(&self) -> Option<u64> {
        let full = |state: &mut Places<O>| state.places.len() >= state.limit && !state.closed;
        let mut state = self.freed.wait_while(locked(&self.state), full).unwrap_or_else(PoisonError::into_inner);
        state.places.push_back(None);
        (!state.closed).then(|| state.first + state.places.len() as u64 - 1)
    }

    fn fill(&self, number: u64, result: Result<O>) {
        let mut state = locked(&self.state);
        let at = (number - state.first) as usize;
        state.places[at] = Some(result);
        if at == 0 {
            self.ready.notify_one();
        }
    }

    fn end(&self) {
        locked(&self.state).ended = true;
        self.ready.notify_one();
    }

    fn next(&self) -> Option<Result<O>> {
        let waits = |state: &mut Places<O>| match state.places.front() {
            Some(head) => head.is_none(),
            None => !state.ended,
        };
        let mut state = self.ready.wait_while(locked(&self.state), waits).unwrap_or_else(PoisonError::into_inner);
        let head = state.places.pop_front()?;
        state.first += 1;
        self.freed.notify_one();
        head
    }

    fn close(&self) {
        locked(&self.state).closed = true;
        self.freed.notify_all();
    }
}

/// A place in line that must be filled, even if the thread that should do it panics.
struct Ticket<O> {
    line: Arc<Line<O>>,
    number: u64,
    result: Option<Result<O>>,
}

impl<O> Drop for Ticket<O> {
    fn drop(&mut self) {
        let lost = || Err(Error::new(Kind::Bug, "a pipeline worker stopped"));
        self.line.fill(self.number, self.result.take().unwrap_or_else(lost));
    }
}

/// Items for the threads of a crew. What bounds it are the lines.
struct Queue<T> {
    items: Mutex<(VecDeque<T>, bool)>,
    ready: Condvar,
}

impl<T> Queue<T> {
    fn push(&self, item: T) {
        locked(&self.items).0.push_back(item);
        self.ready.notify_one();
    }

    fn pop(&self) -> Option<T> {
        let waits = |(items, closed): &mut (VecDeque<T>, bool)| items.is_empty() && !*closed;
        let items = self.ready.wait_while(locked(&self.items), waits);
        items.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }

    fn close(&self) {
        locked(&self.items).1 = true;
        self.ready.notify_all();
    }
}

/// How many threads may compute at the same time; any number may read meanwhile.
///
/// Held only while computing, never while waiting for anything, so it cannot be part of a circle.
#[derive(Debug)]
pub struct Permits {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Permits {
    /// So many.
    pub fn new(count: NonZeroUsize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(count.get()), freed: Condvar::new() })
    }

    /// Compute, once there is a permit.
    pub fn hold<T>(&self, compute: impl FnOnce() -> T) -> T {
        let free = self.freed.wait_while(locked(&self.free), |free| *free == 0);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        let result = compute();
        *locked(&self.free) += 1;
        self.freed.notify_one();
        result
    }
}

type Work<I, O> = Box<dyn FnMut(I) -> Result<O> + Send>;

/// Threads that do one kind of work.
pub struct Crew<I, O> {
    queue: Arc<Queue<(I, Ticket<O>)>>,
    make: Box<dyn Fn() -> Result<Work<I, O>> + Send + Sync>,
    gauge: Arc<Gauge>,
    size: AtomicUsize,
}

impl<I: Send + 'static, O: Send + 'static> Crew<I, O> {
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
        let queue = Arc::new(Queue { items: Mutex::default(), ready: Condvar::new() });
        let crew = Arc::new(Self { queue, make: Box::new(make), gauge, size: AtomicUsize::new(0) });
        (0..size.get()).try_for_each(|_| crew.grow())?;
        Ok(crew)
    }

    /// One thread more.
    ///
    /// # Errors
    /// What `make` says.
    pub fn grow(&self) -> Result<()> {
        let (queue, mut work) = (self.queue.clone(), (self.make)()?);
        std::thread::spawn(move || {
            while let Some((item, mut ticket)) = queue.pop() {
                ticket.result = Some(work(item));
            }
        });
        self.size.fetch_add(1, Relaxed);
        Ok(())
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
        line: Arc<Line<O>>,
    ) -> Stream<O> {
        let (crew, places) = (self.clone(), line.clone());
        std::thread::spawn(move || {
            crew.feed(input, &places);
            places.end();
        });
        Box::new(InOrder(line))
    }

    fn feed(&self, mut input: impl Iterator<Item = Result<I>>, line: &Arc<Line<O>>) {
        while let Some(item) = timed(&self.gauge.starved, || input.next()) {
            let Some(number) = timed(&self.gauge.blocked, || line.take()) else { return };
            let mut ticket = Ticket { line: line.clone(), number, result: None };
            match item {
                Ok(item) => self.queue.push((item, ticket)),
                Err(error) => ticket.result = Some(Err(error)),
            }
        }
    }
}

impl<I, O> Drop for Crew<I, O> {
    fn drop(&mut self) {
        self.queue.close();
    }
}

struct InOrder<O>(Arc<Line<O>>);

impl<O> Iterator for InOrder<O> {
    type Item = Result<O>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl<O> Drop for InOrder<O> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crew(size: usize) -> Arc<Crew<u64, u64>> {
        let work = || -> Result<Work<u64, u64>> {
            Ok(Box::new(|n| {
                std::thread::sleep(std::time::Duration::from_micros(n % 7 * 50));
                Ok(n * 2)
            }))
        };
        Crew::start(NonZeroUsize::new(size).unwrap(), Arc::default(), work).unwrap()
    }

    #[test]
    fn one_worker_and_many_give_the_same_order() {
        for size in [1, 2, 7, 16] {
            let out: Vec<_> =
                crew(size).ordered((0..300).map(Ok), Line::new(size + 1, size + 1)).map(Result::unwrap).collect();
            assert_eq!(out, (0..300).map(|n| n * 2).collect::<Vec<_>>(), "{size} workers");
        }
    }

    #[test]
    fn streams_share_a_crew_and_each_keeps_its_order() {
        let crew = crew(3);
        let mut streams: Vec<_> = (0..4).map(|i| crew.ordered((i..i + 50).map(Ok), Line::new(2, 2))).collect();
        for round in 0..50 {
            for (i, stream) in streams.iter_mut().enumerate() {
                assert_eq!(stream.next().unwrap().unwrap(), (i as u64 + round) * 2);
            }
        }
    }

    #[test]
    fn an_error_keeps_its_place_in_line() {
        let input = (0..10).map(|n| if n == 6 { Err(Error::corrupt("six")) } else { Ok(n) });
        let out: Vec<_> = crew(4).ordered(input, Line::new(3, 3)).collect();
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
        for result in crew(8).ordered(input, Line::new(2, 5)) {
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
        let crew = Crew::start(NonZeroUsize::new(2).unwrap(), Arc::default(), work).unwrap();
        let out: Vec<_> = crew.ordered((0..8).map(Ok), Line::new(3, 3)).collect();
        assert_eq!(out.iter().map(Result::is_err).position(|bad| bad), Some(3));
        assert_eq!(out.len(), 8);
    }

    #[test]
    fn dropping_the_output_stops_the_feeder() {
        let mut stream = crew(4).ordered((0..).map(Ok), Line::new(4, 4));
        assert_eq!(stream.next().unwrap().unwrap(), 0);
        drop(stream);
    }
}
