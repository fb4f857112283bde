//! How threads are started, and what they wait for each other with: a queue, a promise, and the monitor under both.
//!
//! They sleep where they have to wait, and wake only who sleeps. A channel spins and yields first, and a bare condition
//! variable calls the system for every notice: either cost a system call for every four small files of a backup.

use crate::{
    error::{Error, Result},
    platform::memory,
};
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire},
        },
    },
    thread::{Builder, JoinHandle, Scope, ScopedJoinHandle},
};

/// Do `work` on a thread of its own.
///
/// # Errors
/// [`crate::error::Kind::System`] if the system has no thread for it; `work` is dropped then.
pub fn start<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    memory::check_thread()
        .and_then(|()| Builder::new().spawn(work))
        .map_err(refused)
}

/// The same within a scope.
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

/// Change a number that others change too, unless there is nothing to change it to; was it? What its threads did before is
/// seen by who finds what they left.
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

/// A mutex as one thread has it. What a thread that panicked left in one is taken as it is: nothing that can panic runs while
/// one of ours is held, and a panic elsewhere ends the run by what it was to deliver, not by a lock.
pub trait Locked<T> {
    /// What is in it, alone.
    fn locked(&self) -> MutexGuard<'_, T>;

    /// What is in it, for good.
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
    /// The state, and how many threads sleep.
    state: Mutex<(T, usize)>,
    changed: Condvar,
}

impl<T> Monitor<T> {
    /// With this state.
    pub fn new(state: T) -> Self {
        Self {
            state: Mutex::new((state, 0)),
            changed: Condvar::new(),
        }
    }

    /// The state, and how many threads sleep.
    pub fn lock(&self) -> MutexGuard<'_, (T, usize)> {
        self.state.locked()
    }

    /// Sleep while `waits`.
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

    /// Change the state, and wake all who sleep.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state.0);
        self.wake(state, true);
        result
    }

    /// Wake all who sleep, or one if the change gave something to do to any of them.
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

/// Items for any number of threads, as many as come, or no more at once than there is room for.
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
    /// A queue that `room` items may wait in, and that one thread fills.
    pub fn with_room(room: usize) -> Self {
        Self(Monitor::new(Items {
            items: VecDeque::new(),
            room,
            closed: false,
        }))
    }

    /// One more, where there is room or there will be; false if the queue is closed, and so the item lost.
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

    /// The next, once there is one; `None` when the queue is closed and empty.
    pub fn pop(&self) -> Option<T> {
        let mut state = self
            .0
            .sleep(|queue| queue.items.is_empty() && !queue.closed);
        let item = state.0.items.pop_front();
        let drained = state.0.closed && state.0.items.is_empty();
        // Who fills it and found no room is woken when half is free, not for every item.
        if drained || state.0.items.len() == state.0.room / 2 {
            self.0.wake(state, true);
        }
        item
    }

    /// Does something wait in it?
    pub fn has_items(&self) -> bool {
        !self.0.lock().0.items.is_empty()
    }

    /// No more come; wait until somebody took what there is.
    pub fn drain(&self) {
        self.close();
        drop(self.0.sleep(|queue| !queue.items.is_empty()));
    }

    /// No more come, and nobody will take what there is.
    pub fn abandon(&self) {
        self.0.change(|queue| {
            queue.closed = true;
            queue.items.clear();
        });
    }

    /// No more come. Whoever waits for room is told that there is none.
    pub fn close(&self) {
        self.0.change(|queue| queue.closed = true);
    }
}

/// One end of a queue; the queue is closed when it is dropped, by a panic too, so that nobody waits for the other end.
#[derive(Debug)]
pub struct End<T>(pub Arc<Queue<T>>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// An answer that is awaited. A promise that is dropped without one is known to be broken.
#[derive(Debug)]
pub struct Promise<T>(Arc<Queue<T>>);

/// The other end of a [`Promise`].
#[derive(Debug)]
pub struct Answer<T>(Arc<Queue<T>>);

/// A promise, and where its answer comes out.
pub fn promise<T>() -> (Promise<T>, Answer<T>) {
    let queue = Arc::new(Queue::default());
    (Promise(queue.clone()), Answer(queue))
}

impl<T> Promise<T> {
    /// Give the answer.
    pub fn keep(self, answer: T) {
        self.0.push(answer);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T> Answer<T> {
    /// Wait for it; `None` if the promise was broken.
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
    fn who_waits_for_room_in_a_queue_that_nobody_empties_is_told() {
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
