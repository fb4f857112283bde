//! All connections of a session, as this side reads from them: frames are received in the order of their numbers.

use super::{
    bodies::Arriving,
    end::violated,
    outlet::{FRAME_COST, FRAME_WINDOW},
};
use fullbore_format::error::Result;
use fullbore_wire::frame::{MAX_DATA, WireFrame};
use std::collections::BTreeMap;

/// Bytes after which the other side is told that they were received.
pub(super) const TOLD_BYTES: usize = 1 << 20;

/// A frame that came before others of smaller numbers costs room, which the other side bounds, but for frames that were being written.
const MAX_EARLY: usize = FRAME_WINDOW + 16 * MAX_DATA;

/// What came, and waits for what did not.
#[derive(Debug, Default)]
pub(super) struct Inlet {
    /// Of the last frame that was received.
    last_number: u64,
    early: BTreeMap<u64, WireFrame>,
    early_bytes: usize,
    /// Parts of calls that are not here as a whole.
    pub(super) arriving: Arriving,
}

fn cost(frame: &WireFrame) -> usize {
    frame.data.len() + FRAME_COST
}

impl Inlet {
    /// The number of the last frame of those that were received without a gap.
    pub(super) fn last_number(&self) -> u64 {
        self.last_number
    }

    /// Takes a frame, unless it came before.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if the other side sends more than it may.
    pub(super) fn take(&mut self, number: u64, frame: WireFrame) -> Result<()> {
        if number <= self.last_number || self.early.contains_key(&number) {
            return Ok(());
        }
        self.early_bytes += cost(&frame);
        self.early.insert(number, frame);
        if self.early_bytes > MAX_EARLY {
            return Err(violated("a frame is missing among those that it sends"));
        }
        Ok(())
    }

    /// The frame whose turn it is, if it is here.
    pub(super) fn next(&mut self) -> Option<WireFrame> {
        let frame = self.early.remove(&(self.last_number + 1))?;
        self.last_number += 1;
        self.early_bytes -= cost(&frame);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::message::Message;

    fn frame(data: usize) -> WireFrame {
        WireFrame {
            number: None,
            message: Message::Beat,
            data: vec![0; data],
        }
    }

    #[test]
    fn frames_are_received_once_and_in_order() {
        let mut inlet = Inlet::default();
        let mut received = Vec::new();
        for number in [2, 1, 1, 4, 2, 5, 3, 3, 6] {
            inlet.take(number, frame(number as usize)).unwrap();
            while let Some(frame) = inlet.next() {
                received.push(frame.data.len());
            }
        }
        assert_eq!(received, [1, 2, 3, 4, 5, 6]);
        assert_eq!((inlet.last_number(), inlet.early_bytes), (6, 0));
    }

    #[test]
    fn a_frame_that_never_comes_ends_the_session_before_memory_does() {
        let mut inlet = Inlet::default();
        let taken = (2..).map(|number| inlet.take(number, frame(MAX_DATA)));
        let refused = taken.take(1000).position(|taken| taken.is_err());
        assert!(
            refused.is_some_and(|frames| (32..100).contains(&frames)),
            "{refused:?}"
        );
    }
}
