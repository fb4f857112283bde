//! One stream of a backup on its way to several repositories.
//!
//! Each repository has a thread and a queue of bounded size. Bytes go into every queue that has
//! room. A repository whose queue stays full misses bytes: it *falls behind*, and later reads them
//! from a segment that another repository has stored. The pipeline waits only
//!
//! - while every repository that has all bytes so far has a full queue: one of them must go on, and
//! - for a short part of the run ([`PATIENCE`]), for repositories that are almost as fast.
//!
//! A repository that fails is out, and nobody waits for it. The stream fails if no repository is
//! left that has all bytes.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_pipeline::sink::StoredSegment;
use fullbore_platform::queue::Locked;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The share of a run, as a divisor, for which the pipeline waits for repositories with a full
/// queue although others could go on: two disks of one kind differ for moments only.
const PATIENCE: u32 = 20;

/// Time that the pipeline waits for them at any rate: a disk may stall at the begin.
const FIRST_PATIENCE: Duration = Duration::from_secs(1);

/// Bytes that are read at once by a repository that fell behind.
pub(super) const FETCHED_BYTES: u64 = 8 << 20;

/// A position in a stream: how many segments begin there or before, and bytes in the last one. The
/// numbers of segments grow, and may leave some out.
pub(super) type Position = (u32, u64);

/// Bytes that all repositories share.
#[derive(Debug, Clone)]
struct Piece {
    at: Position,
    bytes: Arc<Vec<u8>>,
}

/// The next task of a repository.
pub(super) enum Step {
    /// Stores these bytes of the segment with this number.
    Bytes(u32, Position, Arc<Vec<u8>>),
    /// Reads so many bytes of a segment from another repository, and stores them.
    Fetch {
        segment: u32,
        at: Position,
        bytes: u64,
        from: usize,
    },
    /// Ends the segment with this place in the order.
    End(u32),
    /// Waits until all ended segments are durable.
    Sync,
    /// All segments are stored and durable.
    Done,
}

/// The state of a stream in one repository.
#[derive(Debug, Default)]
struct MemberState {
    queue: VecDeque<Piece>,
    queued_bytes: u64,
    /// The next byte to store.
    position: Position,
    /// Behind the last byte that was stored or is in the queue, without a gap.
    reach: Position,
    /// Durable segments, by their place in the order.
    stored: BTreeMap<u32, StoredSegment>,
    /// The place of the last segment that its thread ended.
    ended: u32,
    /// The segment that another repository must have before this one can go on.
    waits_for: Option<u32>,
    /// The error that ended it.
    failed: Option<Error>,
    /// Did it end because the run failed?
    was_stopped: bool,
    is_done: bool,
    /// Can others read its segments?
    is_readable: bool,
}

#[derive(Debug, Default)]
struct StreamState {
    members: Vec<MemberState>,
    /// Behind the last byte of the stream so far.
    end: Position,
    /// The numbers of the segments, in order.
    numbers: Vec<u32>,
    /// Bytes of the segments that ended, by their place in the order, from 1.
    totals: BTreeMap<u32, u64>,
    is_finished: bool,
    /// Has the run failed, or does it need no more?
    is_stopped: bool,
    /// Number of callers that wait for durable segments.
    syncs: usize,
    /// Time that the pipeline waited for repositories with a full queue.
    waited: Duration,
}

/// One stream, shared by the pipeline and the threads of the repositories.
#[derive(Debug)]
pub(super) struct FannedStream {
    state: Mutex<StreamState>,
    changed: Condvar,
    queue_bytes: u64,
    begun: Instant,
}

impl FannedStream {
    /// A stream to repositories, of each of which is told whether others can read its segments.
    pub(super) fn new(readable: &[bool], queue_bytes: u64) -> Self {
        let member = |is_readable: &bool| MemberState {
            is_readable: *is_readable,
            position: (1, 0),
            reach: (1, 0),
            ..MemberState::default()
        };
        Self {
            state: Mutex::new(StreamState {
                members: readable.iter().map(member).collect(),
                end: (1, 0),
                ..StreamState::default()
            }),
            changed: Condvar::new(),
            queue_bytes,
            begun: Instant::now(),
        }
    }

    /// Adds the next bytes of the stream: those of a segment at this offset.
    ///
    /// # Errors
    /// That of a repository, if none is left that has all bytes.
    pub(super) fn put(&self, segment: u32, offset: u64, bytes: Vec<u8>) -> Result<()> {
        let mut state = self.state.locked();
        if state.end.1 == 0 {
            state.numbers.push(segment);
        }
        let at = state.end;
        if state.numbers.last() != Some(&segment) || at.1 != offset {
            let message = "cannot write a segment of a repository out of order";
            return Err(Error::new(ErrorKind::Bug, message));
        }
        let piece = Piece {
            at,
            bytes: Arc::new(bytes),
        };
        loop {
            state.check_alive(at)?;
            let patience = FIRST_PATIENCE + self.begun.elapsed() / PATIENCE;
            if !state.must_wait(at, self.queue_bytes, patience) {
                break;
            }
            let begun = Instant::now();
            state = self.wait(state);
            state.waited += begun.elapsed();
        }
        state.push(&piece, self.queue_bytes);
        self.changed.notify_all();
        Ok(())
    }

    /// Notes that the open segment is complete.
    pub(super) fn end_segment(&self) {
        let mut state = self.state.locked();
        let (segment, bytes) = state.end;
        if bytes == 0 {
            return; // none is open
        }
        state.totals.insert(segment, bytes);
        state.end = (segment + 1, 0);
        for member in &mut state.members {
            if member.reach == (segment, bytes) {
                member.reach = (segment + 1, 0);
            }
        }
        self.changed.notify_all();
    }

    /// Waits until one repository has all ended segments. Returns them.
    ///
    /// # Errors
    /// As [`FannedStream::put`].
    pub(super) fn sync(&self) -> Result<BTreeMap<u32, StoredSegment>> {
        let mut state = self.state.locked();
        state.syncs += 1;
        self.changed.notify_all();
        let stored = loop {
            let all = state.totals.len();
            let whole = { state.members.iter() }
                .find(|member| member.failed.is_none() && member.stored.len() == all);
            if let Some(member) = whole {
                break Ok(member.by_number());
            }
            if let Some(error) = state.first_error_if_all_failed() {
                break Err(error);
            }
            state = self.wait(state);
        };
        state.syncs -= 1;
        stored
    }

    /// Notes that no bytes follow.
    pub(super) fn finish(&self) {
        self.end_segment();
        self.state.locked().is_finished = true;
        self.changed.notify_all();
    }

    /// Ends the threads of all repositories: the run has failed.
    pub(super) fn stop(&self) {
        self.state.locked().is_stopped = true;
        self.changed.notify_all();
    }

    /// Returns what a repository does next.
    ///
    /// # Errors
    /// If the run has failed, or the bytes that this repository missed are nowhere.
    pub(super) fn next(&self, index: usize) -> Result<Step> {
        let mut state = self.state.locked();
        loop {
            if state.is_stopped {
                return Err(Error::new(ErrorKind::Gone, "the run has ended"));
            }
            if let Some(step) = state.next(index) {
                state.members[index].waits_for = None;
                self.changed.notify_all(); // there may be room in its queue
                return Ok(step);
            }
            if state.is_behind(index) {
                let segment = state.members[index].position.0;
                let before = state.members[index].waits_for.replace(segment);
                if before != Some(segment) {
                    // Others may have ended it, and not wait until it is durable.
                    self.changed.notify_all();
                }
                if state.is_stuck() {
                    let message = "could not continue: it fell behind, and no repository is left that has what it missed";
                    return Err(Error::new(ErrorKind::Unreachable, message)
                        .hint("run the same command again"));
                }
            }
            state = self.wait(state);
        }
    }

    /// Notes that a repository stored bytes up to here.
    pub(super) fn stored_to(&self, index: usize, position: Position) {
        let mut state = self.state.locked();
        let member = &mut state.members[index];
        member.position = position;
        member.reach = member.reach.max(position);
        self.changed.notify_all();
    }

    /// Notes that a repository ended a segment, and which ones are durable.
    pub(super) fn ended(&self, index: usize, segment: u32, stored: Vec<StoredSegment>) {
        let mut state = self.state.locked();
        let member = &mut state.members[index];
        member.ended = segment;
        member.position = (segment + 1, 0);
        member.reach = member.reach.max(member.position);
        drop(state);
        self.durable(index, stored);
    }

    /// Notes durable segments.
    pub(super) fn durable(&self, index: usize, stored: Vec<StoredSegment>) {
        let mut state = self.state.locked();
        for segment in stored {
            let order = state.numbers.binary_search(&segment.number);
            let place = order.map_or(0, |before| before as u32 + 1);
            state.members[index].stored.insert(place, segment);
        }
        self.changed.notify_all();
    }

    /// Notes the end of a repository's thread.
    pub(super) fn over(&self, index: usize, result: Result<()>) {
        let mut state = self.state.locked();
        let is_stopped = state.is_stopped;
        let member = &mut state.members[index];
        member.queue.clear();
        member.was_stopped = is_stopped;
        match result {
            Ok(()) => member.is_done = true,
            Err(error) => member.failed = Some(error),
        }
        self.changed.notify_all();
    }

    /// Returns the error by which a repository failed by itself.
    pub(super) fn failure_of(&self, index: usize) -> Option<Error> {
        let state = self.state.locked();
        let member = &state.members[index];
        member.failed.clone().filter(|_| !member.was_stopped)
    }

    /// Waits until the thread of a repository has ended.
    pub(super) fn wait_for(&self, index: usize) {
        let mut state = self.state.locked();
        while !state.members[index].is_done && state.members[index].failed.is_none() {
            state = self.wait(state);
        }
    }

    /// Returns the durable segments of a repository by their numbers.
    pub(super) fn stored_by(&self, index: usize) -> BTreeMap<u32, StoredSegment> {
        self.state.locked().members[index].by_number()
    }

    /// Notes that the segments of a repository cannot be read.
    pub(super) fn unreadable(&self, index: usize) {
        self.state.locked().members[index].is_readable = false;
        self.changed.notify_all();
    }

    fn wait<'a>(&self, state: MutexGuard<'a, StreamState>) -> MutexGuard<'a, StreamState> {
        // With a limit, because patience ends without a change.
        let waited = self.changed.wait_timeout(state, Duration::from_millis(20));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl MemberState {
    fn by_number(&self) -> BTreeMap<u32, StoredSegment> {
        let stored = self.stored.values();
        stored
            .map(|segment| (segment.number, segment.clone()))
            .collect()
    }

    fn is_alive(&self) -> bool {
        self.failed.is_none()
    }

    fn has_room(&self, queue_bytes: u64) -> bool {
        self.queued_bytes < queue_bytes
    }
}

impl StreamState {
    /// Fails if no repository is left that has all bytes before this position.
    fn check_alive(&self, at: Position) -> Result<()> {
        let has_all = |member: &MemberState| member.is_alive() && member.reach == at;
        if self.members.iter().any(has_all) {
            return Ok(());
        }
        let error = self.members.iter().find_map(|member| member.failed.clone());
        Err(error.unwrap_or_else(|| Error::new(ErrorKind::Bug, "a stream has no destination")))
    }

    fn first_error_if_all_failed(&self) -> Option<Error> {
        let is_any_alive = self.members.iter().any(MemberState::is_alive);
        let mut errors = self
            .members
            .iter()
            .filter_map(|member| member.failed.clone());
        errors.next().filter(|_| !is_any_alive)
    }

    /// Returns whether the pipeline waits before it adds bytes at this position.
    fn must_wait(&self, at: Position, queue_bytes: u64, patience: Duration) -> bool {
        let whole = |member: &&MemberState| member.is_alive() && member.reach == at;
        let is_full = |member: &MemberState| !member.has_room(queue_bytes);
        let all: Vec<usize> = (0..self.members.len())
            .filter(|index| whole(&&self.members[*index]))
            .collect();
        let full: Vec<usize> = { all.iter().copied() }
            .filter(|index| is_full(&self.members[*index]))
            .collect();
        if full.is_empty() {
            return false;
        }
        if full.len() == all.len() || self.waited < patience {
            return true;
        }
        // One that could not read from another one must not fall behind.
        full.iter().any(|index| {
            let others = all.iter().filter(|other| *other != index);
            !others
                .into_iter()
                .any(|other| self.members[*other].is_readable && !is_full(&self.members[*other]))
        })
    }

    /// Adds bytes to the queue of each repository that has all bytes before and room.
    fn push(&mut self, piece: &Piece, queue_bytes: u64) {
        let len = piece.bytes.len() as u64;
        let behind = (piece.at.0, piece.at.1 + len);
        for member in &mut self.members {
            let is_next = member.is_alive() && member.reach == piece.at;
            if is_next && member.has_room(queue_bytes) {
                member.queue.push_back(piece.clone());
                member.queued_bytes += len;
                member.reach = behind;
            }
        }
        self.end = behind;
    }

    /// Is this repository at a position whose bytes are not in its queue, although there are some?
    fn is_behind(&self, index: usize) -> bool {
        let member = &self.members[index];
        let (segment, offset) = member.position;
        if !member.queue.is_empty() {
            return false;
        }
        match self.totals.get(&segment) {
            Some(total) => offset < *total,
            None => member.position < self.end,
        }
    }

    /// Returns what a repository can do now.
    fn next(&mut self, index: usize) -> Option<Step> {
        let member = &mut self.members[index];
        // A piece of the next segment waits until this one has ended.
        let front = member.queue.front();
        if front.is_some_and(|piece| piece.at == member.position)
            && let Some(piece) = member.queue.pop_front()
        {
            member.queued_bytes -= piece.bytes.len() as u64;
            let number = self.number_of(piece.at.0);
            return Some(Step::Bytes(number, piece.at, piece.bytes));
        }
        let (segment, offset) = member.position;
        if let Some(total) = self.totals.get(&segment).copied() {
            if offset >= total {
                return Some(Step::End(segment));
            }
            if let Some(from) = self.holder_of(segment, index) {
                let bytes = (total - offset).min(FETCHED_BYTES);
                let at = (segment, offset);
                return Some(Step::Fetch {
                    segment: self.number_of(segment),
                    at,
                    bytes,
                    from,
                });
            }
        }
        let member = &self.members[index];
        let has_unstored = member.ended > 0 && !member.stored.contains_key(&member.ended);
        // Its thread has nothing else to do, or others wait for the segment.
        let is_idle = self.is_finished || self.syncs > 0 || self.is_waited_for(index);
        if has_unstored && is_idle {
            return Some(Step::Sync);
        }
        let is_at_end = self.is_finished && member.position >= self.end;
        (is_at_end && !has_unstored).then_some(Step::Done)
    }

    /// Returns the number of the segment with this place in the order.
    fn number_of(&self, place: u32) -> u32 {
        let before = place as usize - 1;
        self.numbers.get(before).copied().unwrap_or_default()
    }

    /// Returns a repository that has this segment and can be read.
    fn holder_of(&self, segment: u32, index: usize) -> Option<usize> {
        let holds = |(other, member): &(usize, &MemberState)| {
            *other != index
                && member.is_alive()
                && member.is_readable
                && member.stored.contains_key(&segment)
        };
        let members = self.members.iter().enumerate();
        members.clone().find(holds).map(|(other, _)| other)
    }

    /// Returns whether another repository waits for a segment that this one has ended.
    fn is_waited_for(&self, index: usize) -> bool {
        let ended = self.members[index].ended;
        let mut wanted = self.members.iter().filter_map(|member| member.waits_for);
        wanted.any(|segment| segment <= ended)
    }

    /// Returns whether each repository that is left waits for a segment that none of the others has,
    /// and will have.
    fn is_stuck(&self) -> bool {
        let alive = (0..self.members.len()).filter(|index| self.members[*index].is_alive());
        alive.into_iter().all(|index| {
            let member = &self.members[index];
            if member.is_done {
                return true;
            }
            let Some(segment) = member.waits_for else {
                return false;
            };
            let others = (0..self.members.len()).filter(|other| *other != index);
            let may_come = |other: usize| {
                let other = &self.members[other];
                other.is_alive() && other.is_readable && other.ended >= segment
            };
            !others.into_iter().any(may_come)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Segments of a repository in memory, by their numbers.
    type Stored = Arc<Mutex<BTreeMap<u32, Vec<u8>>>>;

    /// Numbers that look random, the same in each run.
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self, sides: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % sides
        }
    }

    /// How a repository behaves.
    #[derive(Debug, Clone, Copy)]
    struct Manners {
        /// One step in so many takes a millisecond.
        sleeps: u64,
        /// It fails at this step.
        fails_at: Option<u64>,
    }

    fn stored_segment(number: u32, bytes: &[u8]) -> StoredSegment {
        StoredSegment {
            number,
            bytes: bytes.len() as u64,
            parts: Vec::new(),
        }
    }

    fn member(stream: &FannedStream, index: usize, all: &[Stored], manners: Manners) -> Result<()> {
        let (mut dice, mut steps) = (Dice(index as u64 + 77), 0);
        let mut open: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        loop {
            let step = stream.next(index)?;
            steps += 1;
            if manners.fails_at.is_some_and(|at| steps >= at) {
                all[index].locked().clear(); // what it has is gone
                return Err(Error::new(ErrorKind::Full, "full"));
            }
            if manners.sleeps > 0 && dice.roll(manners.sleeps) == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            match step {
                Step::Bytes(number, (place, offset), bytes) => {
                    let segment = open.entry(number).or_default();
                    assert_eq!(segment.len() as u64, offset);
                    segment.extend_from_slice(&bytes);
                    stream.stored_to(index, (place, segment.len() as u64));
                }
                Step::Fetch {
                    segment: number,
                    at: (place, offset),
                    bytes,
                    from,
                } => {
                    let other = all[from].locked().get(&number).cloned();
                    let Some(other) = other else {
                        stream.unreadable(from);
                        continue;
                    };
                    let segment = open.entry(number).or_default();
                    assert_eq!(segment.len() as u64, offset);
                    segment.extend_from_slice(&other[offset as usize..(offset + bytes) as usize]);
                    stream.stored_to(index, (place, segment.len() as u64));
                }
                Step::End(place) => stream.ended(index, place, Vec::new()),
                Step::Sync => {
                    let ended = std::mem::take(&mut open);
                    let told = ended
                        .iter()
                        .map(|(number, bytes)| stored_segment(*number, bytes));
                    let told: Vec<_> = told.collect();
                    all[index].locked().extend(ended);
                    stream.durable(index, told);
                }
                Step::Done => return Ok(()),
            }
        }
    }

    /// Runs a stream to repositories with these manners. Returns what was put, what each has, and
    /// the outcome of the pipeline.
    fn run(manners: &[Manners], seed: u64) -> (BTreeMap<u32, Vec<u8>>, Vec<Stored>, Result<()>) {
        let stream = FannedStream::new(&vec![true; manners.len()], 5000);
        let all: Vec<Stored> = manners.iter().map(|_| Stored::default()).collect();
        let mut put = BTreeMap::new();
        let piped = thread::scope(|scope| {
            for (index, manners) in manners.iter().enumerate() {
                let (stream, all) = (&stream, &all);
                scope.spawn(move || {
                    let result = member(stream, index, all, *manners);
                    stream.over(index, result);
                });
            }
            let mut dice = Dice(seed);
            let mut pipe = || {
                let mut number = 0;
                for _ in 0..6 {
                    number += 1 + dice.roll(2) as u32;
                    let mut segment: Vec<u8> = Vec::new();
                    for _ in 0..dice.roll(30) {
                        let piece = vec![dice.roll(256) as u8; 1 + dice.roll(3000) as usize];
                        stream.put(number, segment.len() as u64, piece.clone())?;
                        segment.extend(piece);
                    }
                    stream.end_segment();
                    if !segment.is_empty() {
                        put.insert(number, segment);
                    }
                    if dice.roll(3) == 0 {
                        assert_eq!(stream.sync()?.len(), put.len());
                    }
                }
                stream.finish();
                stream.sync().map(drop)
            };
            let piped = pipe();
            if piped.is_err() {
                stream.stop();
            }
            piped
        });
        for (index, manners) in manners.iter().enumerate() {
            if piped.is_ok() && stream.failure_of(index).is_none() {
                assert!(
                    *all[index].locked() == put,
                    "repository {index} of {manners:?}"
                );
            }
        }
        (put, all, piped)
    }

    const FAST: Manners = Manners {
        sleeps: 0,
        fails_at: None,
    };

    #[test]
    fn every_repository_that_does_not_fail_has_every_byte_whatever_their_speeds() {
        let slow = |sleeps| Manners { sleeps, ..FAST };
        for seed in 0..6 {
            for speeds in [
                vec![0, 1],
                vec![1, 0],
                vec![0, 0],
                vec![1, 3, 0],
                vec![2, 1],
            ] {
                let manners: Vec<_> = speeds.iter().map(|sleeps| slow(*sleeps)).collect();
                let (put, all, piped) = run(&manners, seed);
                piped.unwrap();
                assert!(
                    all.iter().all(|stored| *stored.locked() == put),
                    "{seed} {speeds:?}"
                );
            }
        }
    }

    #[test]
    fn a_repository_that_fails_at_any_step_ends_no_other_that_has_all_bytes() {
        for at in 1..60 {
            let fails = Manners {
                sleeps: 0,
                fails_at: Some(at),
            };
            for manners in [[FAST, fails], [fails, FAST]] {
                let (put, all, piped) = run(&manners, at);
                // One that fell behind needs the other one; else it has everything.
                if piped.is_ok() {
                    let whole = all.iter().filter(|stored| *stored.locked() == put).count();
                    assert!(whole >= 1, "{at}");
                }
            }
        }
    }

    #[test]
    fn a_stream_without_any_repository_that_is_left_fails_and_does_not_wait() {
        let fails = |at| Manners {
            sleeps: 2,
            fails_at: Some(at),
        };
        for (one, two) in [(1, 1), (3, 9), (20, 4), (7, 30)] {
            let (_, _, piped) = run(&[fails(one), fails(two)], one);
            assert_eq!(piped.unwrap_err().kind, ErrorKind::Full);
        }
    }
}
