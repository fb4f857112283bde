//! What the lanes of a worker fetch next: units that somebody waits for, then units that are likely to be asked for,
//! then the rest.

use fullbore_platform::queue::Locked;
use std::{
    collections::{HashSet, VecDeque},
    sync::{Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

/// Time between two looks of a lane without work.
const LOOK: Duration = Duration::from_millis(200);
/// Units of a request that is not for a whole file, at most.
const FEW: u64 = 128;
/// Units that are fetched ahead of a sequential reader, at first and at most.
const LEAST_AHEAD: u64 = 4;
const MOST_AHEAD: u64 = 32;
/// Units that nobody waits for and that a lane takes at once.
const AT_ONCE: u64 = 16;

/// A unit of a file, by its number in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FileUnit {
    pub(super) file: u32,
    pub(super) unit: u64,
}

/// Units of a file, one after the other: from `next` to `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnitSpan {
    pub(super) file: u32,
    pub(super) next: u64,
    pub(super) last: u64,
}

impl UnitSpan {
    pub(super) fn one(FileUnit { file, unit }: FileUnit) -> Self {
        let (next, last) = (unit, unit);
        Self { file, next, last }
    }

    pub(super) fn units(self) -> impl Iterator<Item = FileUnit> {
        let file = self.file;
        (self.next..=self.last).map(move |unit| FileUnit { file, unit })
    }
}

/// The kind of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneKind {
    /// Only for what somebody waits for.
    Demand,
    /// For the rest too.
    Rest,
}

/// The queue, which all lanes share.
#[derive(Debug, Default)]
pub(super) struct FetchQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    wanted: VecDeque<UnitSpan>,
    ahead: VecDeque<UnitSpan>,
    whole: VecDeque<UnitSpan>,
    /// Units that are likely to be asked for soon.
    listed: VecDeque<FileUnit>,
    /// Files that somebody touched, and all files in their order, each with the first unit that was not given out.
    touched: VecDeque<UnitSpan>,
    rest: VecDeque<UnitSpan>,
    was_touched: HashSet<u32>,
    claimed: HashSet<FileUnit>,
    /// End of the last request for each file, and the units that were fetched ahead of it.
    sequences: VecDeque<(u32, u64, u64)>,
    holds_rest: bool,
    /// Time between two units of the rest, and the time of the next.
    pace: Duration,
    rest_at: Option<Instant>,
    /// Files that are filled beside each other.
    beside: usize,
    is_done: bool,
}

impl FetchQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.locked()
    }

    /// Makes a queue whose lanes leave `pace` between two units that nobody waits for, and fill such units of up to
    /// `beside` files beside each other.
    pub(super) fn new(pace: Duration, beside: usize) -> Self {
        let queue = Self::default();
        {
            let mut state = queue.lock();
            state.pace = pace;
            state.beside = beside;
        }
        queue
    }

    /// Sets the order of the rest, and the units that come before it. The rest of a file ends with its last unit.
    pub(super) fn plan(&self, order: &[u32], last_of: impl Fn(u32) -> u64, listed: Vec<FileUnit>) {
        let mut state = self.lock();
        let spans = order.iter().map(|file| UnitSpan {
            file: *file,
            next: 0,
            last: last_of(*file),
        });
        state.rest = spans.collect();
        state.listed = listed.into();
        self.changed.notify_all();
    }

    /// Returns whether everything was given out once.
    pub(super) fn is_given_out(&self) -> bool {
        let state = self.lock();
        state.rest.is_empty() && state.touched.is_empty() && state.claimed.is_empty()
    }

    /// Returns whether somebody asked for a part of a file.
    pub(super) fn was_touched(&self, file: u32) -> bool {
        self.lock().was_touched.contains(&file)
    }

    pub(super) fn hold_rest(&self, holds: bool) {
        self.lock().holds_rest = holds;
        self.changed.notify_all();
    }

    /// Adds units that somebody waits for. `end` is the last unit of the file.
    pub(super) fn want(&self, file: u32, first: u64, last: u64, end: u64) {
        let mut state = self.lock();
        let span = UnitSpan {
            file,
            next: first,
            last: last.min(end),
        };
        if last.saturating_sub(first) >= FEW {
            state.whole.push_back(span);
        } else {
            state.wanted.push_back(span);
            state.read_ahead(span, end);
        }
        if state.was_touched.insert(file) {
            state.touched.push_back(UnitSpan {
                file,
                next: 0,
                last: end,
            });
        }
        self.changed.notify_all();
    }

    /// Waits for units for a lane. `None` at the end. They must be released.
    pub(super) fn next(
        &self,
        kind: LaneKind,
        is_here: impl Fn(FileUnit) -> bool,
    ) -> Option<UnitSpan> {
        let mut state = self.lock();
        loop {
            if state.is_done {
                return None;
            }
            while let Some(span) = state.take_wanted() {
                if let Some(claimed) = state.claim(span, &is_here) {
                    return Some(claimed);
                }
            }
            while let Some(span) = state.take_rest(kind) {
                if let Some(claimed) = state.claim(span, &is_here) {
                    state.pause_rest(claimed);
                    return Some(claimed);
                }
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.map_or_else(|error| error.into_inner().0, |(state, _)| state);
        }
    }

    /// Gives units back, fetched or not.
    pub(super) fn release(&self, span: UnitSpan) {
        let mut state = self.lock();
        span.units()
            .for_each(|unit| _ = state.claimed.remove(&unit));
    }

    /// Ends all lanes.
    pub(super) fn end(&self) {
        self.lock().is_done = true;
        self.changed.notify_all();
    }
}

impl QueueState {
    /// Claims the first units of a span that are not here and that no other lane has. What is behind them in the span
    /// comes next.
    fn claim(&mut self, span: UnitSpan, is_here: impl Fn(FileUnit) -> bool) -> Option<UnitSpan> {
        let is_free = |unit: &FileUnit| !is_here(*unit) && !self.claimed.contains(unit);
        let first = span.units().find(is_free)?;
        let behind = UnitSpan {
            next: first.unit,
            ..span
        };
        let free = behind.units().take_while(is_free).collect::<Vec<_>>();
        let last = first.unit + free.len() as u64 - 1;
        self.claimed.extend(free);
        if last < span.last {
            self.rest.push_front(UnitSpan {
                next: last + 1,
                ..span
            });
        }
        Some(UnitSpan { last, ..behind })
    }

    fn take_wanted(&mut self) -> Option<UnitSpan> {
        let demand = [&mut self.wanted, &mut self.ahead, &mut self.whole];
        let unit = demand.into_iter().find_map(take_in_turn)?;
        Some(UnitSpan::one(unit))
    }

    fn take_rest(&mut self, kind: LaneKind) -> Option<UnitSpan> {
        let is_early = self.rest_at.is_some_and(|at| Instant::now() < at);
        if kind == LaneKind::Demand || self.holds_rest || is_early {
            return None;
        }
        take_apart(&mut self.touched, &self.claimed, self.beside)
            .or_else(|| self.listed.pop_front().map(UnitSpan::one))
            .or_else(|| take_apart(&mut self.rest, &self.claimed, self.beside))
    }

    /// Sets the time of the next unit of the rest. Units that were here cost no time.
    fn pause_rest(&mut self, span: UnitSpan) {
        let now = Instant::now();
        let pause = self.pace * (span.last - span.next + 1) as u32;
        self.rest_at = Some(self.rest_at.unwrap_or(now).max(now) + pause);
    }

    /// Doubles the units ahead of a reader that goes on where its last request ended.
    fn read_ahead(&mut self, span: UnitSpan, end: u64) {
        /// Readers that are remembered.
        const READERS: usize = 256;
        let known = self.sequences.iter().position(|(file, next, _)| {
            *file == span.file && (span.next == *next || span.next + 1 == *next)
        });
        let ahead = match known.and_then(|index| self.sequences.remove(index)) {
            Some((_, _, ahead)) => (ahead * 2).clamp(LEAST_AHEAD, MOST_AHEAD),
            None => 0,
        };
        if self.sequences.len() == READERS {
            self.sequences.pop_front();
        }
        let after = span.last + 1;
        self.sequences.push_back((span.file, after, ahead));
        if ahead > 0 && after <= end {
            self.ahead.push_back(UnitSpan {
                file: span.file,
                next: after,
                last: (after + ahead - 1).min(end),
            });
        }
    }
}

/// Takes a unit of the first span, and puts the rest of the span behind the others.
fn take_in_turn(spans: &mut VecDeque<UnitSpan>) -> Option<FileUnit> {
    let mut span = spans.pop_front()?;
    let unit = FileUnit {
        file: span.file,
        unit: span.next,
    };
    span.next += 1;
    if span.next <= span.last {
        spans.push_back(span);
    }
    Some(unit)
}

/// Takes units of the first of some spans whose file no other lane fills, since a file system lets one thread write to
/// a file.
fn take_apart(
    spans: &mut VecDeque<UnitSpan>,
    claimed: &HashSet<FileUnit>,
    beside: usize,
) -> Option<UnitSpan> {
    let is_free = |span: &UnitSpan| !claimed.iter().any(|unit| unit.file == span.file);
    let index = spans.iter().take(beside).position(is_free).unwrap_or(0);
    let span = spans.get_mut(index)?;
    let taken = UnitSpan {
        last: span.last.min(span.next + AT_ONCE - 1),
        ..*span
    };
    span.next = taken.last + 1;
    if span.next > span.last {
        spans.remove(index);
    }
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(queue: &FetchQueue, kind: LaneKind) -> UnitSpan {
        queue.next(kind, |_| false).unwrap()
    }

    fn next(queue: &FetchQueue, kind: LaneKind) -> (u32, u64, u64) {
        let span = claim(queue, kind);
        queue.release(span);
        (span.file, span.next, span.last)
    }

    #[test]
    fn waiting_readers_come_first_and_touched_files_before_the_rest() {
        let queue = FetchQueue::default();
        let listed = FileUnit { file: 4, unit: 1 };
        queue.plan(&[3, 2], |_| 1, vec![listed]);
        queue.want(2, 1, 1, 1);
        let order: Vec<_> = (0..4).map(|_| next(&queue, LaneKind::Rest)).collect();
        assert_eq!(order, [(2, 1, 1), (2, 0, 1), (4, 1, 1), (3, 0, 1)]);
        queue.hold_rest(true);
        queue.want(2, 0, 0, 1);
        assert_eq!(next(&queue, LaneKind::Demand), (2, 0, 0));
        queue.end();
        assert!(queue.next(LaneKind::Rest, |_| false).is_none());
    }

    #[test]
    fn lanes_fill_different_files() {
        let queue = FetchQueue::new(Duration::ZERO, 2);
        queue.plan(&[1, 2], |_| 2 * AT_ONCE - 1, Vec::new());
        let held = [(); 2].map(|()| claim(&queue, LaneKind::Rest));
        assert_eq!(held.map(|span| span.file), [1, 2]);
        queue.release(held[0]);
        assert_eq!(next(&queue, LaneKind::Rest), (1, AT_ONCE, 2 * AT_ONCE - 1));
        assert_eq!(next(&queue, LaneKind::Rest), (2, AT_ONCE, 2 * AT_ONCE - 1));
    }

    #[test]
    fn the_pace_of_the_rest_counts_what_is_fetched() {
        let queue = FetchQueue::new(Duration::from_secs(3600), 2);
        queue.plan(&[1, 2, 3], |_| 9, Vec::new());
        let is_here = |unit: FileUnit| unit.file == 1 || unit.file == 2 && unit.unit < 7;
        let span = queue.next(LaneKind::Rest, is_here).unwrap();
        assert_eq!((span.file, span.next, span.last), (2, 7, 9));
        queue.want(3, 5, 5, 9);
        assert_eq!(queue.next(LaneKind::Rest, is_here).unwrap().next, 5);
        assert!(queue.lock().take_rest(LaneKind::Rest).is_none());
    }

    #[test]
    fn pieces_that_another_lane_has_are_left_out() {
        let queue = FetchQueue::default();
        queue.plan(&[1], |_| 3, Vec::new());
        queue.want(1, 1, 1, 3);
        let held = claim(&queue, LaneKind::Demand);
        assert_eq!((held.next, held.last), (1, 1));
        assert_eq!(next(&queue, LaneKind::Rest), (1, 0, 0));
        assert_eq!(next(&queue, LaneKind::Rest), (1, 2, 3));
    }

    #[test]
    fn a_sequential_reader_gets_more_and_more_ahead() {
        let queue = FetchQueue::default();
        for first in [10, 11, 12] {
            queue.want(1, first, first, 100);
        }
        let state = queue.lock();
        let ahead: Vec<_> = state
            .ahead
            .iter()
            .map(|span| (span.next, span.last))
            .collect();
        assert_eq!(ahead, [(12, 15), (13, 20)]);
    }
}
