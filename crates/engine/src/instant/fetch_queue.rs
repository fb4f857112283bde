//! What the lanes of a worker fetch next: pieces that somebody waits for, then pieces that are likely to be asked for,
//! then the rest.

use fullbore_platform::queue::Locked;
use std::{
    collections::{HashSet, VecDeque},
    sync::{Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

/// Time between two looks of a lane without work.
const LOOK: Duration = Duration::from_millis(200);
/// Pieces of a request that is not for a whole file, at most.
const FEW: u64 = 32;
/// Pieces that are fetched ahead of a sequential reader, at most.
const MOST_AHEAD: u64 = 8;

/// A piece of a file: several units that are fetched together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FilePiece {
    pub(super) file: u32,
    pub(super) piece: u64,
}

/// Pieces of a file, one after the other.
#[derive(Debug, Clone, Copy)]
struct PieceSpan {
    file: u32,
    next: u64,
    last: u64,
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
    wanted: VecDeque<PieceSpan>,
    ahead: VecDeque<PieceSpan>,
    whole: VecDeque<PieceSpan>,
    /// Pieces that are likely to be asked for soon.
    listed: VecDeque<FilePiece>,
    /// Files that somebody touched, and all files in their order, each with the first piece that was not given out.
    touched: VecDeque<PieceSpan>,
    rest: VecDeque<PieceSpan>,
    was_touched: HashSet<u32>,
    claimed: HashSet<FilePiece>,
    /// End of the last request for each file, and the pieces that were fetched ahead of it.
    sequences: VecDeque<(u32, u64, u64)>,
    holds_rest: bool,
    /// Time between two pieces of the rest, and the time of the next.
    pace: Duration,
    rest_at: Option<Instant>,
    is_done: bool,
}

impl FetchQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.locked()
    }

    /// Sets the order of the rest, and the pieces that come before it. The rest of a file ends with its last piece.
    pub(super) fn plan(&self, order: &[u32], last_of: impl Fn(u32) -> u64, listed: Vec<FilePiece>) {
        let mut state = self.lock();
        let spans = order.iter().map(|file| PieceSpan {
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

    pub(super) fn hold_rest(&self, holds: bool) {
        self.lock().holds_rest = holds;
        self.changed.notify_all();
    }

    /// Leaves this time between two pieces that nobody waits for.
    pub(super) fn set_pace(&self, pace: Duration) {
        self.lock().pace = pace;
    }

    /// Adds pieces that somebody waits for. `end` is the last piece of the file.
    pub(super) fn want(&self, file: u32, first: u64, last: u64, end: u64) {
        let mut state = self.lock();
        let span = PieceSpan {
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
            state.touched.push_back(PieceSpan {
                file,
                next: 0,
                last: end,
            });
        }
        self.changed.notify_all();
    }

    /// Waits for a piece for a lane. `None` at the end. The piece must be released.
    pub(super) fn next(
        &self,
        kind: LaneKind,
        is_here: impl Fn(FilePiece) -> bool,
    ) -> Option<FilePiece> {
        let mut state = self.lock();
        loop {
            if state.is_done {
                return None;
            }
            while let Some(piece) = state.take(kind) {
                if !is_here(piece) && state.claimed.insert(piece) {
                    return Some(piece);
                }
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.map_or_else(|error| error.into_inner().0, |(state, _)| state);
        }
    }

    /// Gives a piece back, fetched or not.
    pub(super) fn release(&self, piece: FilePiece) {
        self.lock().claimed.remove(&piece);
    }

    /// Ends all lanes.
    pub(super) fn end(&self) {
        self.lock().is_done = true;
        self.changed.notify_all();
    }
}

impl QueueState {
    fn take(&mut self, kind: LaneKind) -> Option<FilePiece> {
        let demand = [&mut self.wanted, &mut self.ahead, &mut self.whole];
        for spans in demand {
            if let Some(piece) = take_in_turn(spans) {
                return Some(piece);
            }
        }
        let now = Instant::now();
        let is_early = self.rest_at.is_some_and(|at| now < at);
        if kind == LaneKind::Demand || self.holds_rest || is_early {
            return None;
        }
        let piece = take_first(&mut self.touched)
            .or_else(|| self.listed.pop_front())
            .or_else(|| take_first(&mut self.rest))?;
        self.rest_at = Some(self.rest_at.unwrap_or(now).max(now) + self.pace);
        Some(piece)
    }

    /// Doubles the pieces ahead of a reader that goes on where its last request ended.
    fn read_ahead(&mut self, span: PieceSpan, end: u64) {
        /// Readers that are remembered.
        const READERS: usize = 256;
        let known = self.sequences.iter().position(|(file, next, _)| {
            *file == span.file && (span.next == *next || span.next + 1 == *next)
        });
        let ahead = match known.and_then(|index| self.sequences.remove(index)) {
            Some((_, _, ahead)) => (ahead * 2).clamp(1, MOST_AHEAD),
            None => 0,
        };
        if self.sequences.len() == READERS {
            self.sequences.pop_front();
        }
        let after = span.last + 1;
        self.sequences.push_back((span.file, after, ahead));
        if ahead > 0 && after <= end {
            self.ahead.push_back(PieceSpan {
                file: span.file,
                next: after,
                last: (after + ahead - 1).min(end),
            });
        }
    }
}

/// Takes a piece of the first span, and puts the rest of the span behind the others.
fn take_in_turn(spans: &mut VecDeque<PieceSpan>) -> Option<FilePiece> {
    let mut span = spans.pop_front()?;
    let piece = FilePiece {
        file: span.file,
        piece: span.next,
    };
    span.next += 1;
    if span.next <= span.last {
        spans.push_back(span);
    }
    Some(piece)
}

/// Takes a piece of the first span, which stays first.
fn take_first(spans: &mut VecDeque<PieceSpan>) -> Option<FilePiece> {
    let span = spans.front_mut()?;
    let piece = FilePiece {
        file: span.file,
        piece: span.next,
    };
    span.next += 1;
    if span.next > span.last {
        spans.pop_front();
    }
    Some(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(queue: &FetchQueue, kind: LaneKind) -> (u32, u64) {
        let piece = queue.next(kind, |_| false).unwrap();
        queue.release(piece);
        (piece.file, piece.piece)
    }

    #[test]
    fn waiting_readers_come_first_and_touched_files_before_the_rest() {
        let queue = FetchQueue::default();
        let listed = FilePiece { file: 4, piece: 1 };
        queue.plan(&[3, 2], |_| 1, vec![listed]);
        queue.want(2, 1, 1, 1);
        let order: Vec<_> = (0..5).map(|_| next(&queue, LaneKind::Rest)).collect();
        assert_eq!(order, [(2, 1), (2, 0), (2, 1), (4, 1), (3, 0)]);
        queue.hold_rest(true);
        queue.want(2, 0, 0, 1);
        assert_eq!(next(&queue, LaneKind::Demand), (2, 0));
        queue.end();
        assert!(queue.next(LaneKind::Rest, |_| false).is_none());
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
        assert_eq!(ahead, [(12, 12), (13, 14)]);
    }
}
