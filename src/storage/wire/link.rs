//! A connection: both sides send frames, and one thread of each reads all that come.
//!
//! The reader never waits for anything but the other side: it hands data over to calls, workers and uploads, whose room is bounded
//! by what the other side may send. So both sides may write as much as they like at the same time, and neither waits for ever.

use super::{
    WireService, WireTimes,
    calls::Calls,
    end::{EndReason, closed},
    frame::{MAX_DATA, WireFrame, read_frame, write_frame},
    message::{Call, CallAnswer, Message},
    server::{Arriving, Server},
    stream::WireStream,
};
use crate::{
    error::{Error, ErrorKind, Result},
    queue::Locked,
};
use std::{
    io::BufReader,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Bytes of the buffer of the reader: several small frames come with one call.
const READ_BUFFER: usize = 64 << 10;

/// What both directions of a connection share.
#[derive(Debug)]
pub(super) struct Link {
    /// What messages call the other side, in quotes.
    pub(super) peer: String,
    output: Mutex<Option<WireStream>>,
    is_ended: Arc<AtomicBool>,
    pub(super) calls: Calls,
    pub(super) server: Server,
}

impl Link {
    pub(super) fn new(
        peer: &str,
        output: WireStream,
        is_ended: Arc<AtomicBool>,
        service: Arc<dyn WireService>,
    ) -> Self {
        Self {
            peer: peer.to_owned(),
            output: Mutex::new(Some(output)),
            is_ended,
            calls: Calls::new(),
            server: Server::new(service),
        }
    }

    /// The other side as a side to make calls to, for a command that runs here.
    pub(super) fn peer_side(self: &Arc<Self>) -> super::PeerSide {
        super::PeerSide { link: self.clone() }
    }

    /// Makes a call. The answer may have `max_bytes` of data.
    ///
    /// # Errors
    /// Those of the call, or the reason why the connection ended.
    pub(super) fn call(
        &self,
        call: Call,
        body: &[u8],
        max_bytes: u64,
    ) -> Result<(u64, CallAnswer, Vec<u8>)> {
        let id = self.calls.begin(body.len(), max_bytes)?;
        self.send_in_parts(body, Message::CallPart { id }, Message::Call { id, call });
        match self.calls.wait(id)? {
            (CallAnswer::Failed(error), _) => Err(error.into_error()),
            (answer, data) => Ok((id, answer, data)),
        }
    }

    /// Sends data of any length: all but the last part of it behind `part`, the rest behind `last`. An error ends the connection.
    pub(super) fn send_in_parts(&self, data: &[u8], part: Message, last: Message) {
        let mut data = data;
        while let Some((first, rest)) = data.split_at_checked(MAX_DATA)
            && !rest.is_empty()
        {
            self.send_or_end(&part, first);
            data = rest;
        }
        self.send_or_end(&last, data);
    }

    /// Sends a frame. An error ends the connection, since a part of the frame may have been sent.
    pub(super) fn send_or_end(&self, message: &Message, data: &[u8]) {
        let mut output = self.output.locked();
        let Some(stream) = output.as_mut() else {
            return;
        };
        let sent = write_frame(stream, message, data);
        drop(output);
        if let Err(error) = sent {
            let kind = match error.kind() {
                std::io::ErrorKind::InvalidInput => ErrorKind::Bug,
                _ => ErrorKind::Unreachable,
            };
            let error = Error::io("could not write to the other side", error);
            self.end(&Error { kind, ..error });
        }
    }

    /// Ends the connection: all calls fail, and nothing is sent any more.
    pub(super) fn end(&self, error: &Error) {
        self.calls.end(EndReason::of(&self.peer, error));
        self.is_ended.store(true, Relaxed);
        // Whoever writes notices soon.
        let output = self.output.locked().take();
        if let Some(output) = output {
            output.shut_down();
        }
    }

    /// The reason why the connection ended.
    pub(super) fn ended(&self) -> Option<Error> {
        self.calls.ended()
    }

    /// Reads until the connection ends, and ends what the other side has begun.
    pub(super) fn read_until_end(self: &Arc<Self>, input: WireStream) {
        let mut input = BufReader::with_capacity(READ_BUFFER, input);
        let mut arriving = Arriving::default();
        let error = loop {
            let received = match read_frame(&mut input) {
                Ok(Some(frame)) => self.receive(&mut arriving, frame),
                Ok(None) => Err(closed()),
                Err(error) => Err(error),
            };
            if let Err(error) = received {
                break error;
            }
        };
        self.end(&error);
        self.server.end();
    }

    fn receive(self: &Arc<Self>, arriving: &mut Arriving, frame: WireFrame) -> Result<()> {
        let WireFrame { message, data } = frame;
        match message {
            Message::Beat => Ok(()),
            Message::CallPart { id } => self.server.add_part(arriving, id, &data),
            Message::Call { id, call } => self.server.accept(self, arriving, id, call, &data),
            Message::Append { upload } => self.server.append(upload, data),
            Message::AnswerPart { id } => self.calls.add_part(id, data),
            Message::Answer { id, answer } => self.calls.complete(id, answer, data),
            Message::Credit { bytes } => self.calls.give_credit(bytes),
            Message::UploadFailed { upload, error } => self.calls.fail_upload(upload, error),
            Message::LeaseLost { lease } => self.calls.lose_lease(lease),
        }
    }

    /// Says from time to time that this side is alive, and which leases are not.
    pub(super) fn beat_until_end(&self, times: &WireTimes) {
        while !self.calls.sleep(times.beat) {
            self.send_or_end(&Message::Beat, b"");
            self.server.report_lost_leases(self);
        }
    }
}
