//! A limit of the bytes that several threads hold at the same time.

use super::Monitor;

/// Bytes that threads may hold together. Threads that wait for room get it in their order, so a
/// large request is not passed by small ones for ever.
#[derive(Debug)]
pub struct ByteBudget {
    limit: usize,
    held: Monitor<HeldBytes>,
}

#[derive(Debug)]
struct HeldBytes {
    bytes: usize,
    /// Threads that came so far.
    came: u64,
    /// Threads that got room so far.
    served: u64,
}

/// Room for bytes, until it is dropped.
#[derive(Debug)]
pub struct ByteRoom<'b> {
    budget: &'b ByteBudget,
    bytes: usize,
}

impl ByteBudget {
    /// Creates a budget of so many bytes.
    pub const fn new(limit: usize) -> Self {
        Self {
            limit,
            held: Monitor::new(HeldBytes {
                bytes: 0,
                came: 0,
                served: 0,
            }),
        }
    }

    /// Waits until there is room for so many bytes. More than the limit fits alone.
    ///
    /// A thread that has room must not wait for more room of the same budget.
    pub fn take(&self, bytes: usize) -> ByteRoom<'_> {
        let mut place = None;
        let mut state = self.held.sleep(|held| {
            let place = *place.get_or_insert_with(|| {
                held.came += 1;
                held.came
            });
            let is_full = held.bytes > 0 && held.bytes.saturating_add(bytes) > self.limit;
            place != held.served + 1 || is_full
        });
        state.0.served += 1;
        state.0.bytes += bytes;
        // The next thread in the line may find room, too.
        self.held.wake(state, true);
        ByteRoom {
            budget: self,
            bytes,
        }
    }
}

impl Drop for ByteRoom<'_> {
    fn drop(&mut self) {
        self.budget.held.change(|held| held.bytes -= self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
        thread,
    };

    #[test]
    fn threads_never_hold_more_than_the_budget_unless_one_is_alone() {
        let budget = ByteBudget::new(10);
        let (held, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for bytes in [1, 3, 4, 10, 7, 25, 0, 2] {
                let (budget, held, most) = (&budget, &held, &most);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let room = budget.take(bytes);
                        let now = held.fetch_add(bytes, Relaxed) + bytes;
                        assert!(now <= 10 || now == 25, "{now}");
                        most.fetch_max(now, Relaxed);
                        held.fetch_sub(bytes, Relaxed);
                        drop(room);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 25);
    }
}
