//! Every order of the steps of two sides that send each other uploads, over streams that hold few frames.

use super::{ReceiveCredit, SendCredit};
use std::{
    collections::{HashSet, VecDeque},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// What one run of the model is about. Bytes of frames are 1 or 2.
#[derive(Debug, Clone, Copy)]
struct Rules {
    window: u64,
    step: u64,
    /// Frames that a stream holds; whoever writes another one waits.
    stream_frames: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Frame {
    Append {
        upload: usize,
        bytes: u64,
    },
    /// The upload is finished or aborted.
    Last {
        upload: usize,
    },
    Credit {
        bytes: u64,
    },
    Failed {
        upload: usize,
    },
    Answer {
        upload: usize,
    },
}

/// The thread that sends an upload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sending {
    /// Bytes of the frames that are left.
    left: Vec<u64>,
    /// Room was taken for the next frame.
    has_room: bool,
    is_failed: bool,
    is_last_sent: bool,
    is_answered: bool,
}

/// The thread that stores an upload of the other side.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Storing {
    /// Bytes that wait; 0 is the last step.
    queue: VecDeque<u64>,
    /// Frames that this thread has to send before it goes on.
    saying: VecDeque<Frame>,
    may_fail: bool,
    has_failed: bool,
    stored_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Side {
    credit: SendCredit,
    /// Bytes that wait, and bytes of which the other side was not told: the numbers of a [`ReceiveCredit`].
    received: (u64, u64),
    sending: Vec<Sending>,
    storing: Vec<Storing>,
    /// Frames on their way to the other side.
    stream: VecDeque<Frame>,
}

type State = [Side; 2];

impl Side {
    /// Sends uploads of these frames, and stores as many as the other side sends; which of those may fail.
    fn new(rules: Rules, uploads: &[&[u64]], stores: &[bool]) -> Self {
        let sending = uploads.iter().map(|frames| Sending {
            left: frames.to_vec(),
            has_room: false,
            is_failed: false,
            is_last_sent: false,
            is_answered: false,
        });
        let storing = stores.iter().map(|may_fail| Storing {
            queue: VecDeque::new(),
            saying: VecDeque::new(),
            may_fail: *may_fail,
            has_failed: false,
            stored_bytes: 0,
        });
        Self {
            credit: SendCredit::new(rules.window),
            received: (0, 0),
            sending: sending.collect(),
            storing: storing.collect(),
            stream: VecDeque::new(),
        }
    }

    /// Does something with the receiving half of the credit.
    fn receive<T>(&mut self, rules: Rules, step: impl FnOnce(&ReceiveCredit) -> T) -> T {
        let (waiting, untold) = self.received;
        let credit = ReceiveCredit {
            waiting: AtomicU64::new(waiting),
            untold: AtomicU64::new(untold),
            ..ReceiveCredit::new(rules.window, rules.step)
        };
        let done = step(&credit);
        self.received = (credit.waiting.load(Relaxed), credit.untold.load(Relaxed));
        done
    }

    fn has_place(&self, rules: Rules) -> bool {
        self.stream.len() < rules.stream_frames
    }
}

/// The step of a thread that sends; `None` if it waits.
fn send_step(state: &State, rules: Rules, at: usize, upload: usize) -> Option<State> {
    let mut next = state.clone();
    let side = &mut next[at];
    let has_place = side.has_place(rules);
    let sending = &mut side.sending[upload];
    if sending.is_last_sent {
        return None;
    }
    let frame = match sending.left.first().copied() {
        Some(bytes) if sending.has_room => {
            sending.left.remove(0);
            sending.has_room = false;
            Frame::Append { upload, bytes }
        }
        Some(bytes) if !sending.is_failed => {
            if !side.credit.has(bytes) {
                return None;
            }
            side.credit.take(bytes);
            sending.has_room = true;
            return Some(next);
        }
        _ => {
            sending.is_last_sent = true;
            Frame::Last { upload }
        }
    };
    side.stream.push_back(frame);
    has_place.then_some(next)
}

/// The steps of a thread that stores: it may succeed or fail.
fn store_steps(state: &State, rules: Rules, at: usize, upload: usize) -> Vec<State> {
    let mut next = state.clone();
    let side = &mut next[at];
    if let Some(frame) = side.storing[upload].saying.pop_front() {
        let has_place = side.has_place(rules);
        side.stream.push_back(frame);
        return if has_place { vec![next] } else { Vec::new() };
    }
    let Some(bytes) = side.storing[upload].queue.pop_front() else {
        return Vec::new();
    };
    if bytes == 0 {
        side.storing[upload]
            .saying
            .push_back(Frame::Answer { upload });
        return vec![next];
    }
    let told = side.receive(rules, |credit| credit.stored(bytes));
    let credit = told.map(|bytes| Frame::Credit { bytes });
    let mut steps = Vec::new();
    if side.storing[upload].may_fail && !side.storing[upload].has_failed {
        let mut failed = next.clone();
        let storing = &mut failed[at].storing[upload];
        storing.has_failed = true;
        storing.saying.push_back(Frame::Failed { upload });
        storing.saying.extend(credit.clone());
        steps.push(failed);
    }
    let storing = &mut next[at].storing[upload];
    storing.stored_bytes += bytes;
    storing.saying.extend(credit);
    steps.push(next);
    steps
}

/// The step of the reader, which never waits for a place in the stream of its own side.
fn read_step(state: &State, rules: Rules, at: usize) -> Option<State> {
    let mut next = state.clone();
    let frame = next[1 - at].stream.pop_front()?;
    let side = &mut next[at];
    match frame {
        Frame::Append { upload, bytes } => {
            side.receive(rules, |credit| credit.arrive(bytes)).unwrap();
            side.storing[upload].queue.push_back(bytes);
        }
        Frame::Last { upload } => side.storing[upload].queue.push_back(0),
        Frame::Credit { bytes } => side.credit.give(bytes).unwrap(),
        Frame::Failed { upload } => side.sending[upload].is_failed = true,
        Frame::Answer { upload } => side.sending[upload].is_answered = true,
    }
    Some(next)
}

fn next_states(state: &State, rules: Rules) -> Vec<State> {
    let mut all = Vec::new();
    for index in 0..2 {
        let side = &state[index];
        all.extend(read_step(state, rules, index));
        all.extend(
            (0..side.sending.len()).filter_map(|upload| send_step(state, rules, index, upload)),
        );
        all.extend(
            (0..side.storing.len()).flat_map(|upload| store_steps(state, rules, index, upload)),
        );
    }
    all
}

/// Everything that was sent was stored or belongs to an upload that failed, and all room is free again.
fn check_end(state: &State, sent_bytes: &[Vec<u64>; 2], rules: Rules) {
    for (index, side) in state.iter().enumerate() {
        let other = &state[1 - index];
        assert!(
            side.sending.iter().all(|sending| sending.is_answered),
            "{state:?}"
        );
        for (storing, sent) in side.storing.iter().zip(&sent_bytes[1 - index]) {
            assert!(
                storing.has_failed || storing.stored_bytes == *sent,
                "{state:?}"
            );
        }
        let (waiting, untold) = side.received;
        assert_eq!(waiting, 0, "{state:?}");
        let free = SendCredit::new(rules.window);
        let mut credit = other.credit.clone();
        credit.give(untold).unwrap();
        assert_eq!(credit, free, "{state:?}");
    }
}

/// Goes through all states. Returns how many there are, and one in which all wait for ever, if there is such a state.
fn explore(rules: Rules, uploads: [&[&[u64]]; 2], fails: bool) -> (usize, Option<State>) {
    let bytes = uploads.map(|uploads| uploads.iter().map(|frames| frames.iter().sum()).collect());
    let stores = |index: usize| vec![fails; uploads[index].len()];
    let first = [
        Side::new(rules, uploads[0], &stores(1)),
        Side::new(rules, uploads[1], &stores(0)),
    ];
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(state) = open.pop() {
        for side in &state {
            let waiting: u64 = side.storing.iter().flat_map(|storing| &storing.queue).sum();
            assert!(waiting <= rules.window, "{state:?}");
        }
        let next = next_states(&state, rules);
        if next.is_empty() {
            let is_answered = |side: &Side| side.sending.iter().all(|sending| sending.is_answered);
            if !state.iter().all(is_answered) {
                return (seen.len(), Some(state));
            }
            check_end(&state, &bytes, rules);
        }
        for state in next {
            if seen.insert(state.clone()) {
                open.push(state);
            }
        }
    }
    (seen.len(), None)
}

const RULES: Rules = Rules {
    window: 3,
    step: 2,
    stream_frames: 1,
};

#[test]
fn uploads_both_ways_end_in_every_order_of_their_steps() {
    for stream_frames in [1, 2] {
        let rules = Rules {
            stream_frames,
            ..RULES
        };
        let (states, stuck) = explore(rules, [&[&[2, 1, 2], &[1, 2]], &[&[2, 2]]], false);
        println!("{states} states with {stream_frames} frames in a stream");
        assert_eq!(stuck, None);
        assert!(states > 10_000, "{states}");
    }
}

#[test]
fn uploads_that_fail_at_any_time_give_their_room_back() {
    let (states, stuck) = explore(RULES, [&[&[2, 2], &[2]], &[&[2]]], true);
    println!("{states} states");
    assert_eq!(stuck, None);
    assert!(states > 1_000, "{states}");
}

#[test]
fn a_step_that_leaves_no_room_for_a_frame_is_found_to_wait_for_ever() {
    let rules = Rules { step: 3, ..RULES };
    let (_, stuck) = explore(rules, [&[&[2, 2]], &[]], false);
    assert!(stuck.is_some());
}

#[test]
fn the_window_of_the_program_has_room_for_a_frame_beside_a_step() {
    use crate::wire::{calls::UPLOAD_WINDOW, server::CREDIT_STEP};
    use fullbore_wire::frame::MAX_DATA;
    assert!(super::append_cost(MAX_DATA) <= UPLOAD_WINDOW - CREDIT_STEP + 1);
}

#[test]
fn more_than_was_agreed_is_refused() {
    let mut credit = SendCredit::new(3);
    credit.take(2);
    assert!(credit.has(1) && !credit.has(2));
    assert!(credit.give(3).is_err());
    credit.give(2).unwrap();
    let received = ReceiveCredit::new(3, 2);
    received.arrive(3).unwrap();
    assert_eq!(received.stored(1), None);
    assert_eq!(received.stored(2), Some(3));
    received.arrive(3).unwrap();
    assert!(received.arrive(1).is_err());
}
