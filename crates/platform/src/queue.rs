//! Starting threads, and the tools with which they wait for each other: a queue, a promise, and the
//! monitor below both.
//!
//! Threads sleep while they wait, and a change wakes only threads that sleep. A channel spins and
//! yields first, and a bare condition variable makes a system call for every notification: either
//! cost a system call for every four small files of a backup.
//!
//! Belongs here: waiting and waking. Does not belong here: the work of the threads.

mod byte_budget;
mod rate_limit;

pub use byte_budget::{ByteBudget, ByteRoom};
pub use rate_limit::RateLimit;

use crate::memory;
use fullbore_format::error::{Error, ErrorKind, Result};
use std::{
    collections::VecDeque,
    io,
    panic::resume_unwind,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire},
        },
    },
    thread::{Builder, JoinHandle, Scope, ScopedJoinHandle},
};

/// Runs `work` on a new thread.
///
/// # Errors
/// [`fullbore_format::error::ErrorKind::System`] if the system has no thread for it; `work` is dropped then.
pub fn start<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    memory::check_thread()
        .and_then(|()| Builder::new().spawn(work))
        .map_err(refused)
}

/// Runs `work` on a new thread within a scope.
///
/// # Errors
/// As [`start`].
pub fn start_in<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    memory::check_thread()
        .and_then(|()| Builder::new().spawn_scoped(scope, work))
        .map_err(refused)
}

/// Does two tasks: at the same time if `at_once` is set and the system has a thread for the first
/// one, else one after the other.
///
/// Two questions to another host at the same time cost one round trip.
pub fn run_both<A: Send, B>(
    at_once: bool,
    first: impl Fn() -> A + Sync,
    second: impl FnOnce() -> B,
) -> (A, B) {
    if !at_once {
        return (first(), second());
    }
    std::thread::scope(|scope| {
        let first_run = start_in(scope, &first);
        let second = second();
        let first = match first_run {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => first(),
        };
        (first, second)
    })
}

/// Does `work` for each item, all at the same time. Returns the results in the order of the items; in
/// place of one, an error if its thread could not be started or stopped.
pub fn run_each<I: Sync, R: Send>(
    items: &[I],
    work: impl Fn(&I) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    if let [one] = items {
        return vec![work(one)];
    }
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = items
            .iter()
            .map(|item| start_in(scope, move || work(item)))
            .collect();
        let threads = threads.into_iter();
        threads
            .map(|thread| {
                thread?
                    .join()
                    .unwrap_or_else(|_| Err(Error::new(ErrorKind::Bug, "a thread stopped")))
            })
            .collect()
    })
}

/// Changes a number that other threads change too, unless `change` returns `None`. Returns whether
/// it was changed.
///
/// The memory order is acquire and release: a thread that reads the new number sees earlier writes
/// of the thread that set it.
pub fn change(number: &AtomicUsize, change: impl Fn(usize) -> Option<usize>) -> bool {
    let mut now = number.load(Acquire);
    while let Some(next) = change(now) {
        match number.compare_exchange_weak(now, next, AcqRel, Acquire) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
    false
}

fn refused(error: io::Error) -> Error {
    let is_memory = error.kind() == io::ErrorKind::OutOfMemory;
    let error = Error::io("could not start a thread", error);
    if is_memory {
        return error;
    }
    error.hint(
        "raise the limit of threads (`ulimit -u`, TasksMax of a systemd unit), or use fewer --workers and --readers",
    )
}

/// Access to a mutex that ignores poisoning.
///
/// This is safe, because no code that can panic runs while one of these mutexes is held. A panic
/// elsewhere ends the run because a result is missing, not because of a lock.
pub trait Locked<T> {
    fn locked(&self) -> MutexGuard<'_, T>;

    /// Consumes the mutex and returns its value.
    fn opened(self) -> T;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(self) -> T {
        self.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A state that threads wait for.
#[derive(Debug, Default)]
pub struct Monitor<T> {
    /// The state, and the number of sleeping threads.
    state: Mutex<(T, usize)>,
    changed: Condvar,
}

impl<T> Monitor<T> {
    pub const fn new(state: T) -> Self {
        Self {
            state: Mutex::new((state, 0)),
            changed: Condvar::new(),
        }
    }

    /// Locks the state; also gives the number of sleeping threads.
    pub fn lock(&self) -> MutexGuard<'_, (T, usize)> {
        self.state.locked()
    }

    /// Sleeps while `waits` returns true.
    pub fn sleep(&self, mut waits: impl FnMut(&mut T) -> bool) -> MutexGuard<'_, (T, usize)> {
        let mut state = self.lock();
        while waits(&mut state.0) {
            state.1 += 1;
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.1 -= 1;
        }
        state
    }

    /// Changes the state and wakes all sleeping threads.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state.0);
        self.wake(state, true);
        result
    }

    /// Wakes all sleeping threads, or one of them if any of them can handle the change.
    pub fn wake(&self, state: MutexGuard<'_, (T, usize)>, all: bool) {
        let sleepers = state.1;
        drop(state);
        match (sleepers, all) {
            (0, _) => {}
            (_, true) => self.changed.notify_all(),
            (_, false) => self.changed.notify_one(),
        }
    }
}

/// A queue for any number of threads, with or without a limit of waiting items.
#[derive(Debug)]
pub struct Queue<T>(Monitor<Items<T>>);

#[derive(Debug)]
struct Items<T> {
    items: VecDeque<T>,
    room: usize,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::with_room(usize::MAX)
    }
}

impl<T> Queue<T> {
    /// Creates a queue in which at most `room` items wait. Only one thread may fill it.
    pub fn with_room(room: usize) -> Self {
        Self(Monitor::new(Items {
            items: VecDeque::new(),
            room,
            closed: false,
        }))
    }

    /// Adds an item, and waits for room if necessary. Returns false, and drops the item, if the
    /// queue is closed.
    pub fn push(&self, item: T) -> bool {
        let mut state = self
            .0
            .sleep(|queue| queue.items.len() >= queue.room && !queue.closed);
        if state.0.closed {
            return false;
        }
        state.0.items.push_back(item);
        self.0.wake(state, false);
        true
    }

    /// Returns the next item, and waits for one if necessary; `None` if the queue is closed and
    /// empty.
    pub fn pop(&self) -> Option<T> {
        let mut state = self
            .0
            .sleep(|queue| queue.items.is_empty() && !queue.closed);
        let item = state.0.items.pop_front();
        let drained = state.0.closed && state.0.items.is_empty();
        // A filler that found no room is woken once half of the room is free, not for every item.
        if drained || state.0.items.len() == state.0.room / 2 {
            self.0.wake(state, true);
        }
        item
    }

    pub fn has_items(&self) -> bool {
        !self.0.lock().0.items.is_empty()
    }

    /// Closes the queue and waits until all items are taken.
    pub fn drain(&self) {
        self.close();
        drop(self.0.sleep(|queue| !queue.items.is_empty()));
    }

    /// Closes the queue and drops its items.
    pub fn abandon(&self) {
        self.0.change(|queue| {
            queue.closed = true;
            queue.items.clear();
        });
    }

    /// Closes the queue. A thread that waits for room gets `false` from [`Queue::push`].
    pub fn close(&self) {
        self.0.change(|queue| queue.closed = true);
    }
}

/// One end of a queue. Dropping it, also by a panic, closes the queue, so that the other end does
/// not wait for ever.
#[derive(Debug)]
pub struct End<T>(pub Arc<Queue<T>>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A value that another thread waits for. Dropping it without a value breaks the promise.
#[derive(Debug)]
pub struct Promise<T>(Arc<Queue<T>>);

/// The other end of a [`Promise`].
#[derive(Debug)]
pub struct PromisedValue<T>(Arc<Queue<T>>);

/// Creates a promise and its other end.
pub fn promise<T>() -> (Promise<T>, PromisedValue<T>) {
    let queue = Arc::new(Queue::default());
    (Promise(queue.clone()), PromisedValue(queue))
}

impl<T> Promise<T> {
    /// Delivers the value.
    pub fn keep(self, answer: T) {
        self.0.push(answer);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T> PromisedValue<T> {
    /// Waits for the value; `None` if the promise was broken.
    pub fn wait(self) -> Option<T> {
        self.0.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_queue_gives_what_it_has_and_then_nothing() {
        let queue = Queue::default();
        queue.push(1);
        queue.close();
        assert_eq!([queue.pop(), queue.pop()], [Some(1), None]);
    }

    #[test]
    fn no_more_wait_than_there_is_room_for() {
        let queue = Arc::new(Queue::with_room(3));
        let filler = End(queue.clone());
        let thread = std::thread::spawn(move || (0..1000).for_each(|i| assert!(filler.0.push(i))));
        for i in 0..1000 {
            assert_eq!(queue.pop(), Some(i));
            assert!(queue.0.lock().0.items.len() <= 3);
        }
        assert_eq!(queue.pop(), None);
        thread.join().unwrap();
    }

    #[test]
    fn waiting_for_room_ends_when_the_queue_is_closed() {
        let queue = Arc::new(Queue::with_room(1));
        let end = End(queue.clone());
        let thread = std::thread::spawn(move || (0..).find(|i| !queue.push(*i)));
        assert_eq!(end.0.pop(), Some(0));
        drop(end);
        assert!(thread.join().unwrap().is_some());
    }

    #[test]
    fn promises_are_kept_or_known_to_be_broken() {
        let (promise, answer) = super::promise();
        std::thread::spawn(|| promise.keep(7));
        assert_eq!(answer.wait(), Some(7));
        let (promise, answer) = super::promise::<u8>();
        drop(promise);
        assert_eq!(answer.wait(), None);
    }
}
