//! A session: both sides send frames over one connection or several, and one thread of each side reads all that come by one connection.
//!
//! A reader never waits for anything but the other side: it hands data over to calls, workers and uploads, whose room is bounded
//! by what the other side may send. So both sides may write as much as they like at the same time, and neither waits for ever. Only a
//! limit that the user has set makes a reader pause.

use super::{
    WireLimits, WireService, WireTimes,
    calls::Calls,
    end::{EndReason, closed},
    inlet::{Inlet, TOLD_BYTES},
    outlet::{FIRST, FRAME_COST, Outlet},
    server::Server,
    stream::{WireEnds, WireStream},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{
    debug,
    queue::{Locked, Monitor, start},
};
use fullbore_wire::{
    frame::{FrameLengths, MAX_DATA, WireFrame},
    message::{Call, CallAnswer, Message},
};
use std::{
    io::{self, BufReader},
    num::NonZeroU64,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Bytes of the buffer of a reader: several small frames come with one call.
const READ_BUFFER: usize = 64 << 10;

/// Bytes of data, in both directions, after which a session is worth further connections. Most commands that only look move less.
const BUSY_BYTES: u64 = 4 << 20;

/// Further connections of a session at most.
const MAX_CONNECTIONS: usize = 64;

/// What all connections of a session share.
#[derive(Debug)]
pub(super) struct Link {
    /// What messages call the other side, in quotes.
    pub(super) peer: String,
    outlet: Outlet,
    inlet: Mutex<Inlet>,
    limits: WireLimits,
    moved_bytes: AtomicU64,
    pub(super) needs: Monitor<LinkNeeds>,
    pub(super) calls: Calls,
    pub(super) server: Server,
}

/// What threads beside the readers wait for.
#[derive(Debug, Default)]
pub(super) struct LinkNeeds {
    /// Bytes that came while there were further connections, and that the other side was not told to be received.
    untold_bytes: usize,
    /// The other side is told what was received, however little it is.
    is_told_now: bool,
    /// Has so much been moved that further connections help?
    pub(super) is_busy: bool,
    /// Further connections that are open.
    pub(super) connections: usize,
    /// Has the first connection ended, and the session goes on without it?
    pub(super) is_first_lost: bool,
    pub(super) is_ended: bool,
}

impl Link {
    pub(super) fn new(peer: &str, limits: WireLimits, service: Arc<dyn WireService>) -> Self {
        Self {
            peer: peer.to_owned(),
            outlet: Outlet::default(),
            inlet: Mutex::default(),
            limits,
            moved_bytes: AtomicU64::new(0),
            needs: Monitor::default(),
            calls: Calls::new(),
            server: Server::new(service),
        }
    }

    /// The other side as a side to make calls to, for a command that runs here.
    pub(super) fn peer_side(self: &Arc<Self>) -> super::PeerSide {
        super::PeerSide { link: self.clone() }
    }

    /// Begins the session with its first connection. The thread ends when all that the other side has begun is ended.
    ///
    /// # Errors
    /// A thread could not be started.
    pub(super) fn begin(
        self: &Arc<Self>,
        ends: WireEnds,
        times: &WireTimes,
    ) -> Result<JoinHandle<()>> {
        let WireEnds {
            mut input,
            mut output,
            is_ended,
        } = ends;
        input.silence = times.silence;
        output.silence = times.silence;
        self.outlet.add(output, is_ended, false);
        let link = self.clone();
        let reader = start(move || {
            let error = link.read_until_end(input);
            link.lose(FIRST, &error);
            link.needs.change(|needs| needs.is_first_lost = true);
            drop(link.needs.sleep(|needs| !needs.is_ended));
            link.server.end();
        })?;
        let (link, times) = (self.clone(), *times);
        start(move || link.beat_until_end(&times))?;
        Ok(reader)
    }

    /// Adds a connection, and keeps `kept` until it ends. With `first_rests`, the first one is used only while there is no other.
    ///
    /// # Errors
    /// The session has ended; a thread could not be started.
    pub(super) fn join(
        self: &Arc<Self>,
        ends: WireEnds,
        times: &WireTimes,
        first_rests: bool,
        kept: Option<Box<dyn std::fmt::Debug + Send + Sync>>,
    ) -> Result<()> {
        let WireEnds {
            mut input,
            mut output,
            is_ended,
        } = ends;
        input.silence = times.silence;
        output.silence = times.silence;
        if self.needs.lock().0.connections >= MAX_CONNECTIONS {
            let what = "cannot add a connection: there are too many";
            return Err(Error::new(ErrorKind::Usage, what));
        }
        let Some(connection) = self.outlet.add(output, is_ended, first_rests) else {
            return Err(self.ended().unwrap_or_else(closed));
        };
        let is_first = self.needs.change(|needs| {
            needs.connections += 1;
            needs.is_told_now = true;
            needs.connections == 1
        });
        if is_first {
            let link = self.clone();
            start(move || link.tell_until_alone())?;
        }
        let link = self.clone();
        start(move || {
            let error = link.read_until_end(input);
            drop(kept);
            link.lose(connection, &error);
            link.needs.change(|needs| needs.connections -= 1);
        })
        .map(drop)
    }

    /// Goes on without a connection, or ends the session for the reason why the connection has ended.
    fn lose(&self, connection: u64, error: &Error) {
        debug(|| format!("a connection has ended: {}", error.line()));
        if self.outlet.lose(connection).is_err() {
            self.end(error);
        }
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
        let id = self.begin_call(call, body, max_bytes)?;
        let (answer, data) = self.end_call(id)?;
        Ok((id, answer, data))
    }

    /// Sends a call and returns its number, for [`Link::end_call`].
    ///
    /// # Errors
    /// As [`Link::call`].
    pub(super) fn begin_call(&self, call: Call, body: &[u8], max_bytes: u64) -> Result<u64> {
        let id = self.calls.begin(body.len(), max_bytes, false)?;
        self.send_call(id, call, body);
        Ok(id)
    }

    fn send_call(&self, id: u64, call: Call, body: &[u8]) {
        let (first, rest) = body.split_at(body.len().min(MAX_DATA));
        let following = NonZeroU64::new(rest.len() as u64);
        let call = Message::Call {
            id,
            call,
            following,
        };
        self.send_or_end(&call, first);
        for part in rest.chunks(MAX_DATA) {
            self.send_or_end(&Message::CallPart { id }, part);
        }
    }

    /// Makes a call without data, and takes the parts of its answer, of at most `max_bytes`, while others come.
    ///
    /// # Errors
    /// Those of the call and the reason why the connection ended; those of `take`, which end the session.
    pub(super) fn call_in_parts(
        &self,
        call: Call,
        max_bytes: u64,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<CallAnswer> {
        let id = self.calls.begin(0, max_bytes, true)?;
        self.send_call(id, call, b"");
        let mut take = |part: &[u8]| take(part).inspect_err(|error| self.end(error));
        while let Some(part) = self.calls.next_part(id)? {
            take(&part)?;
        }
        let (answer, last) = self.end_call(id)?;
        take(&last)?;
        Ok(answer)
    }

    /// Waits for the answer to a call, once.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub(super) fn end_call(&self, id: u64) -> Result<(CallAnswer, Vec<u8>)> {
        match self.calls.wait(id)? {
            (CallAnswer::Failed(error), _) => Err(error.into_error()),
            answered => Ok(answered),
        }
    }

    /// Sends data of any length: all but the last part of it behind `part`, the rest behind `last`. An error ends the session.
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

    /// Sends a frame. An error ends the session, since a part of the frame may have been sent.
    pub(super) fn send_or_end(&self, message: &Message, data: &[u8]) {
        self.limits.wait_to_send(data.len());
        self.count(data.len());
        let sent = self.outlet.send(message, data);
        self.end_unless_sent(sent);
    }

    fn end_unless_sent(&self, sent: io::Result<()>) {
        if let Err(error) = sent {
            let kind = match error.kind() {
                io::ErrorKind::InvalidInput => ErrorKind::Bug,
                _ => ErrorKind::Unreachable,
            };
            let error = Error::io("could not write to the other side", error);
            self.end(&Error { kind, ..error });
        }
    }

    fn count(&self, bytes: usize) {
        let before = self.moved_bytes.fetch_add(bytes as u64, Relaxed);
        if before < BUSY_BYTES && before + bytes as u64 >= BUSY_BYTES {
            self.needs.change(|needs| needs.is_busy = true);
        }
    }

    /// Ends the session: all calls fail, and nothing is sent any more.
    pub(super) fn end(&self, error: &Error) {
        self.calls.end(EndReason::of(&self.peer, error));
        self.outlet.end();
        self.needs.change(|needs| needs.is_ended = true);
    }

    /// The reason why the session ended.
    pub(super) fn ended(&self) -> Option<Error> {
        self.calls.ended()
    }

    /// Reads until a connection ends, and returns why.
    fn read_until_end(self: &Arc<Self>, input: WireStream) -> Error {
        let mut input = BufReader::with_capacity(READ_BUFFER, input);
        loop {
            let frame = match read_in_time(&mut input) {
                Ok(Some(frame)) => frame,
                Ok(None) => return closed(),
                Err(error) if error.kind == ErrorKind::Corrupt => {
                    self.end(&error);
                    return error;
                }
                Err(error) => return error,
            };
            self.count(frame.data.len());
            self.limits.wait_to_receive(frame.data.len());
            self.note_untold(frame.data.len());
            if let Err(error) = self.receive_in_order(frame) {
                self.end(&error);
                return error;
            }
        }
    }

    fn note_untold(&self, bytes: usize) {
        let mut needs = self.needs.lock();
        if needs.0.connections == 0 {
            return;
        }
        needs.0.untold_bytes += bytes + FRAME_COST;
        let is_due = needs.0.untold_bytes >= TOLD_BYTES;
        if is_due {
            self.needs.wake(needs, true);
        }
    }

    fn receive_in_order(self: &Arc<Self>, frame: WireFrame) -> Result<()> {
        let mut inlet = self.inlet.locked();
        let Some(number) = frame.number else {
            return self.receive(&mut inlet, frame);
        };
        inlet.take(number, frame)?;
        while let Some(frame) = inlet.next() {
            self.receive(&mut inlet, frame)?;
        }
        Ok(())
    }

    fn receive(self: &Arc<Self>, inlet: &mut Inlet, frame: WireFrame) -> Result<()> {
        let arriving = &mut inlet.arriving;
        let WireFrame { message, data, .. } = frame;
        match message {
            Message::Beat => Ok(()),
            Message::CallPart { id } => self.server.add_part(self, arriving, id, &data),
            Message::Call {
                id,
                call,
                following,
            } => {
                let call = (id, call, following);
                self.server.accept(self, arriving, call, &data)
            }
            Message::Append { upload } => self.server.append(upload, data),
            Message::AnswerPart { id } => self.calls.add_part(id, data),
            Message::Answer { id, answer } => self.calls.complete(id, answer, data),
            Message::Credit { bytes } => self.calls.give_credit(bytes),
            Message::UploadFailed { upload, error } => self.calls.fail_upload(upload, error),
            Message::LeaseLost { lease } => self.calls.lose_lease(lease),
            Message::Received { number } => self.outlet.forget_received(number),
            Message::Create { upload, key } => self.server.begin_upload(self, upload, key),
        }
    }

    /// Tells the other side what was received, until there are no further connections.
    fn tell_until_alone(&self) {
        loop {
            let mut needs = self.needs.sleep(|needs| {
                let is_due = needs.untold_bytes >= TOLD_BYTES || needs.is_told_now;
                !needs.is_ended && needs.connections > 0 && !is_due
            });
            let is_over = needs.0.is_ended || needs.0.connections == 0;
            needs.0.untold_bytes = 0;
            needs.0.is_told_now = false;
            drop(needs);
            let number = self.inlet.locked().last_number();
            let told = self.outlet.send_at_once(&Message::Received { number });
            self.end_unless_sent(told);
            if is_over {
                return;
            }
        }
    }

    /// Says from time to time that this side is alive, and which leases are not.
    fn beat_until_end(&self, times: &WireTimes) {
        let mut rest = SessionRest::default();
        while !self.calls.sleep(times.beat) {
            let received = self.inlet.locked().last_number();
            let idle = rest.after(received, self.server.is_at_rest(), times.beat);
            if times.idle.is_some_and(|most| idle >= most) {
                let error = Error::new(ErrorKind::Unreachable, "the session was idle for too long");
                self.end(&error);
                return;
            }
            let sent = self.outlet.beat();
            self.end_unless_sent(sent);
            // So that the first connection can break, although little was sent since there are others.
            self.needs
                .change(|needs| needs.is_told_now |= needs.untold_bytes > 0);
            self.server.leases.report_lost(self);
        }
    }
}

/// How long a session has been idle, by what it was at its last signs of life: no clock is read for a frame.
#[derive(Debug, Default)]
struct SessionRest {
    received: u64,
    idle: Duration,
}

impl SessionRest {
    /// So much later this frame was the last one that came. Returns for how long nothing has happened.
    fn after(&mut self, received: u64, is_at_rest: bool, time: Duration) -> Duration {
        if received == self.received && is_at_rest {
            self.idle += time;
        } else {
            self.idle = Duration::ZERO;
        }
        self.received = received;
        self.idle
    }
}

/// The next frame, which must come within a time that depends on its length; `None` if the connection ended before it.
fn read_in_time(input: &mut BufReader<WireStream>) -> Result<Option<WireFrame>> {
    input.get_mut().expect_bytes(FrameLengths::BYTES);
    let Some(lengths) = FrameLengths::read(input)? else {
        return Ok(None);
    };
    input.get_mut().expect_bytes(lengths.bytes());
    lengths.read_frame(input).map(Some)
}
