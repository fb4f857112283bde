//! A session: both sides send frames over one connection or several, and one thread of each side reads all that come by one connection.
//!
//! A reader never waits for anything but the other side: it hands data over to calls, workers and uploads, whose room is bounded
//! by what the other side may send. So both sides may write as much as they like at the same time, and neither waits for ever. Only a
//! limit that the user has set makes a reader pause.

use super::{
    end::closed,
    inlet::{Inlet, TOLD_BYTES},
    limits::{WireLimits, WireTimes},
    line::Line,
    offer::Offer,
    outlet::{FIRST, FRAME_COST},
    peer::{JoinedSession, PeerSide},
    server::Server,
    stream::{WireEnds, WireStream},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::{Locked, start};
use fullbore_wire::{
    frame::{FrameLengths, WireFrame},
    message::Message,
};
use std::{
    fmt,
    io::BufReader,
    sync::{Arc, Mutex, Weak},
    thread::JoinHandle,
    time::Duration,
};

/// Bytes of the buffer of a reader: several small frames come with one call.
const READ_BUFFER: usize = 64 << 10;

/// Further connections of a session at most.
const MAX_CONNECTIONS: usize = 64;

/// What all connections of a session share.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) line: Arc<Line>,
    inlet: Mutex<Inlet>,
    server: Arc<Server>,
}

impl Session {
    pub(super) fn new(peer: &str, limits: WireLimits, offer: Offer) -> Arc<Self> {
        let line = Arc::new(Line::new(peer, limits));
        Arc::new_cyclic(|session: &Weak<Self>| {
            let peer = PeerSide::new(line.clone(), session.clone());
            Self {
                server: Arc::new(Server::new(line.clone(), offer, peer)),
                line,
                inlet: Mutex::default(),
            }
        })
    }

    /// Returns the other side.
    pub(super) fn peer_side(self: &Arc<Self>) -> PeerSide {
        let session: Weak<Self> = Arc::downgrade(self);
        PeerSide::new(self.line.clone(), session)
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
        self.line.outlet.add(output, is_ended, false);
        let session = self.clone();
        let reader = start(move || {
            let line = &session.line;
            let error = session.read_until_end(input);
            line.lose(FIRST, &error);
            line.needs.change(|needs| needs.is_first_lost = true);
            // The session may go on by other connections; what the other side has begun lasts until it ends.
            drop(line.needs.sleep(|needs| !needs.is_ended));
            session.server.end();
        })?;
        let session = self.clone();
        let times = *times;
        start(move || session.beat_until_end(&times))?;
        Ok(reader)
    }

    /// Reads until a connection ends, and returns why.
    fn read_until_end(self: &Arc<Self>, input: WireStream) -> Error {
        let mut input = BufReader::with_capacity(READ_BUFFER, input);
        loop {
            let frame = match read_in_time(&mut input) {
                Ok(Some(frame)) => frame,
                Ok(None) => return closed(),
                Err(error) if error.kind == ErrorKind::Corrupt => {
                    self.line.end(&error);
                    return error;
                }
                Err(error) => return error,
            };
            self.line.count(frame.data.len());
            self.line.limits.wait_to_receive(frame.data.len());
            self.note_untold(frame.data.len());
            if let Err(error) = self.receive_in_order(frame) {
                self.line.end(&error);
                return error;
            }
        }
    }

    fn note_untold(&self, bytes: usize) {
        let mut needs = self.line.needs.lock();
        if needs.0.connections == 0 {
            return;
        }
        needs.0.untold_bytes += bytes + FRAME_COST;
        let is_due = needs.0.untold_bytes >= TOLD_BYTES;
        if is_due {
            self.line.needs.wake(needs, true);
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
            Message::CallPart { id } => self.server.add_part(arriving, id, &data),
            Message::Call {
                id,
                call,
                following,
            } => self.server.accept(arriving, (id, call, following), &data),
            Message::Append { upload } => self.server.append(upload, data),
            Message::AnswerPart { id } => self.line.calls.add_part(id, data),
            Message::Answer { id, answer } => self.line.calls.complete(id, answer, data),
            Message::Credit { bytes } => self.line.calls.give_credit(bytes),
            Message::UploadFailed { upload, error } => self.line.calls.fail_upload(upload, error),
            Message::LeaseLost { lease } => self.line.calls.lose_lease(lease),
            Message::Received { number } => self.line.outlet.forget_received(number),
            Message::Create { upload, key } => self.server.begin_upload(upload, key),
        }
    }

    /// Tells the other side what was received, until there are no further connections.
    fn tell_until_alone(&self) {
        loop {
            let mut needs = self.line.needs.sleep(|needs| {
                let is_due = needs.untold_bytes >= TOLD_BYTES || needs.is_told_now;
                !needs.is_ended && needs.connections > 0 && !is_due
            });
            let is_over = needs.0.is_ended || needs.0.connections == 0;
            needs.0.untold_bytes = 0;
            needs.0.is_told_now = false;
            drop(needs);
            let number = self.inlet.locked().last_number();
            let told = self.line.outlet.send_at_once(&Message::Received { number });
            self.line.end_unless_sent(told);
            if is_over {
                return;
            }
        }
    }

    /// Says from time to time that this side is alive, and which leases are not.
    fn beat_until_end(&self, times: &WireTimes) {
        let mut rest = SessionRest::default();
        while !self.line.calls.sleep(times.beat) {
            let received = self.inlet.locked().last_number();
            let idle = rest.after(received, self.server.is_at_rest(), times.beat);
            if times.idle.is_some_and(|most| idle >= most) {
                let error = Error::new(ErrorKind::Unreachable, "the session was idle for too long");
                self.line.end(&error);
                return;
            }
            let sent = self.line.outlet.beat();
            self.line.end_unless_sent(sent);
            // So that the first connection can break, although little was sent since there are others.
            self.line
                .needs
                .change(|needs| needs.is_told_now |= needs.untold_bytes > 0);
            self.server.leases.report_lost(&self.line);
        }
    }
}

impl JoinedSession for Session {
    fn join(
        self: Arc<Self>,
        ends: WireEnds,
        times: &WireTimes,
        first_rests: bool,
        kept: Option<Box<dyn fmt::Debug + Send + Sync>>,
    ) -> Result<()> {
        let WireEnds {
            mut input,
            mut output,
            is_ended,
        } = ends;
        input.silence = times.silence;
        output.silence = times.silence;
        let line = &self.line;
        if line.needs.lock().0.connections >= MAX_CONNECTIONS {
            let message = "cannot add a connection: there are too many";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let Some(connection) = line.outlet.add(output, is_ended, first_rests) else {
            return Err(line.ended().unwrap_or_else(closed));
        };
        let is_first = line.needs.change(|needs| {
            needs.connections += 1;
            needs.is_told_now = true;
            needs.connections == 1
        });
        if is_first {
            let session = self.clone();
            start(move || session.tell_until_alone())?;
        }
        start(move || {
            // The connection counts among those of its host until its reader ends.
            let error = self.read_until_end(input);
            drop(kept);
            self.line.lose(connection, &error);
            self.line.needs.change(|needs| needs.connections -= 1);
        })
        .map(drop)
    }
}

/// How long a session has been idle, by what it was at its last signs of life: no clock is read for a frame.
#[derive(Debug, Default)]
struct SessionRest {
    received: u64,
    idle: Duration,
}

impl SessionRest {
    /// Notes the last frame that came, so much later than before. Returns for how long nothing has happened.
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

/// Reads the next frame, which must come within a time that depends on its length; `None` if the connection ended before it.
fn read_in_time(input: &mut BufReader<WireStream>) -> Result<Option<WireFrame>> {
    input.get_mut().expect_bytes(FrameLengths::BYTES);
    let Some(lengths) = FrameLengths::read(input)? else {
        return Ok(None);
    };
    input.get_mut().expect_bytes(lengths.bytes());
    lengths.read_frame(input).map(Some)
}
