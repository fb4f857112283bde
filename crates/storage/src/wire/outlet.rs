//! All connections of a session, as this side writes to them: each frame goes by an idle one.
//!
//! Frames have numbers, and the other side receives them in that order. Where there are several connections, a frame is kept until the
//! other side has received it, and goes by another one if its connection breaks. While the first connection is alone, the session ends with
//! it, so its frames are not kept; later it may break as any other, once the other side has received all of them.

use super::{end::violated, stream::WireStream};
use fullbore_format::error::Result;
use fullbore_platform::queue::Monitor;
use fullbore_wire::{
    frame::{MAX_DATA, write_frame},
    message::Message,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// The connection that a session begins with.
pub(super) const FIRST: u64 = 0;

/// Bytes of frames that were sent and may still have to be sent again, and that the other side may have to put in order.
pub(super) const FRAME_WINDOW: usize = 32 << 20;

/// Bytes that each frame counts in that window, in addition to its data.
pub(super) const FRAME_COST: usize = 256;

/// The connections as this side writes to them.
#[derive(Debug, Default)]
pub(super) struct Outlet(Monitor<Outputs>);

#[derive(Debug, Default)]
struct Outputs {
    last_number: u64,
    last_connection: u64,
    uses: u64,
    by_connection: BTreeMap<u64, OutletStream>,
    /// The first connection is used only while there is no other one.
    first_rests: bool,
    unreceived: BTreeMap<u64, SentFrame>,
    unreceived_bytes: usize,
    /// The last frame that was sent and not kept.
    last_unkept: u64,
    /// The other side has received all frames up to this one.
    received: u64,
    /// The threads that wait for a connection, in their order.
    line: BTreeSet<LinePlace>,
    last_place: u64,
    is_ended: bool,
}

/// The place of a thread among those that wait for a connection. Without it a thread that sends without pause would keep the
/// connection for itself, and a call of another one would wait for seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LinePlace {
    /// Frames without a number go first: the window may be full, and they open it.
    is_numbered: bool,
    place: u64,
}

#[derive(Debug)]
struct OutletStream {
    /// Absent while a frame is written.
    stream: Option<WireStream>,
    /// Kept after an error of the last connection, until the session has ended for that reason: its reader would say that it was closed.
    failed: Option<WireStream>,
    is_ended: Arc<AtomicBool>,
    /// The number of its last use among those of all.
    last_use: u64,
}

#[derive(Debug)]
struct SentFrame {
    connection: u64,
    message: Message,
    data: Vec<u8>,
}

impl SentFrame {
    fn cost(&self) -> usize {
        self.data.len() + FRAME_COST
    }
}

impl Outputs {
    fn idle(&self) -> Option<u64> {
        let rests = self.first_rests && self.by_connection.len() > 1;
        let all = self.by_connection.iter();
        let idle = all.filter(|(id, output)| output.stream.is_some() && (**id != FIRST || !rests));
        // In turn: a thread that sends alone fills the buffers of all.
        let next = idle.min_by_key(|(_, output)| output.last_use);
        next.map(|(id, _)| *id)
    }

    fn line_up(&mut self, is_numbered: bool) -> LinePlace {
        self.last_place += 1;
        let place = LinePlace {
            is_numbered,
            place: self.last_place,
        };
        self.line.insert(place);
        place
    }

    fn take(&mut self) -> Option<(u64, WireStream)> {
        let id = self.idle()?;
        self.uses += 1;
        let output = self.by_connection.get_mut(&id)?;
        output.last_use = self.uses;
        let stream = output.stream.take()?;
        Some((id, stream))
    }

    /// Are frames by this connection not kept, because the session ends with it?
    fn is_alone(&self, connection: u64) -> bool {
        connection == FIRST && self.by_connection.keys().eq([&FIRST])
    }

    /// Frames by the first connection need no copies once it is the only one again.
    fn forget_of_first(&mut self) {
        if !self.is_alone(FIRST) {
            return;
        }
        let sent = self.unreceived.iter();
        let by_first = sent.filter(|(_, frame)| frame.connection == FIRST);
        let numbers: Vec<u64> = by_first.map(|(number, _)| *number).collect();
        for number in numbers {
            self.forget(number);
            self.last_unkept = self.last_unkept.max(number);
        }
    }

    fn keep(&mut self, number: u64, frame: SentFrame) {
        self.unreceived_bytes += frame.cost();
        self.unreceived.insert(number, frame);
    }

    fn forget(&mut self, number: u64) {
        if let Some(frame) = self.unreceived.remove(&number) {
            self.unreceived_bytes -= frame.cost();
        }
    }
}

impl Outlet {
    /// Adds a connection, and returns its number. `first_rests` from now on: the first connection is used only while there is no other.
    pub(super) fn add(
        &self,
        stream: WireStream,
        is_ended: Arc<AtomicBool>,
        first_rests: bool,
    ) -> Option<u64> {
        self.0.change(|outputs| {
            if outputs.is_ended {
                return None;
            }
            let id = outputs.last_connection;
            outputs.last_connection += 1;
            outputs.first_rests |= first_rests;
            let output = OutletStream {
                stream: Some(stream),
                failed: None,
                is_ended,
                last_use: 0,
            };
            outputs.by_connection.insert(id, output);
            Some(id)
        })
    }

    /// Sends a frame by any connection; an error is one of the last connection. After the end nothing is sent.
    ///
    /// # Errors
    /// The connection's; a part of the frame may have been sent.
    pub(super) fn send(&self, message: &Message, data: &[u8]) -> io::Result<()> {
        self.send_by_any(message, data, true)
    }

    /// As [`Outlet::send`], for a message whose order does not matter. It need not wait for the window.
    pub(super) fn send_at_once(&self, message: &Message) -> io::Result<()> {
        self.send_by_any(message, b"", false)
    }

    fn send_by_any(&self, message: &Message, data: &[u8], is_numbered: bool) -> io::Result<()> {
        let mut state = self.wait_in_line(is_numbered);
        let outputs = &mut state.0;
        if outputs.is_ended {
            return Ok(());
        }
        let Some((connection, stream)) = outputs.take() else {
            return Ok(());
        };
        let number = is_numbered.then(|| {
            outputs.last_number += 1;
            outputs.last_number
        });
        if let Some(number) = number
            && outputs.is_alone(connection)
        {
            outputs.last_unkept = number;
        } else if let Some(number) = number {
            let frame = SentFrame {
                connection,
                message: message.clone(),
                data: data.to_vec(),
            };
            outputs.keep(number, frame);
        }
        self.call_next(state);
        self.write(connection, stream, data.len(), |stream| {
            write_frame(stream, message, number, data)
        })
    }

    /// Waits for a connection, and for room in the window if the frame has a number.
    fn wait_in_line(&self, is_numbered: bool) -> MutexGuard<'_, (Outputs, usize)> {
        let mut place = None;
        let mut state = self.0.sleep(|outputs| {
            let place = *place.get_or_insert_with(|| outputs.line_up(is_numbered));
            let is_next = outputs.line.first() == Some(&place);
            let is_full = is_numbered && outputs.unreceived_bytes >= FRAME_WINDOW;
            !outputs.is_ended && (!is_next || is_full || outputs.idle().is_none())
        });
        if let Some(place) = place {
            state.0.line.remove(&place);
        }
        state
    }

    /// Goes on without the lock; the next thread in the line may find another connection.
    fn call_next(&self, state: MutexGuard<'_, (Outputs, usize)>) {
        if state.0.line.is_empty() || state.0.idle().is_none() {
            drop(state);
        } else {
            self.0.wake(state, true);
        }
    }

    /// Writes a frame with so many bytes of data. A side that does not take it in time is given up.
    fn write(
        &self,
        connection: u64,
        mut stream: WireStream,
        bytes: usize,
        write: impl FnOnce(&mut WireStream) -> io::Result<()>,
    ) -> io::Result<()> {
        stream.expect_bytes(bytes);
        let written = write(&mut stream);
        let fatal = self.0.change(|outputs| {
            let is_alone = outputs.is_alone(connection);
            let is_ended = outputs.is_ended;
            let output = outputs.by_connection.get_mut(&connection);
            let Some(output) = output.filter(|_| !is_ended) else {
                stream.shut_down();
                return written.err().filter(|_| is_alone);
            };
            match written {
                Ok(()) => output.stream = Some(stream),
                Err(error) if is_alone || error.kind() == io::ErrorKind::InvalidInput => {
                    output.failed = Some(stream);
                    return Some(error);
                }
                // Its reader sees that it has ended, and sees to the rest.
                Err(_) => stream.shut_down(),
            }
            None
        });
        fatal.map_or(Ok(()), Err)
    }

    /// Says on each idle connection that this side is alive. Never waits.
    pub(super) fn beat(&self) -> io::Result<()> {
        let all: Vec<u64> = self.0.lock().0.by_connection.keys().copied().collect();
        for connection in all {
            let mut state = self.0.lock();
            let output = state.0.by_connection.get_mut(&connection);
            let stream = output.and_then(|output| output.stream.take_if(|idle| idle.has_room()));
            drop(state);
            if let Some(stream) = stream {
                self.write(connection, stream, 0, |stream| {
                    write_frame(stream, &Message::Beat, None, b"")
                })?;
            }
        }
        Ok(())
    }

    /// The other side has received all frames up to this one.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if it was not sent.
    pub(super) fn forget_received(&self, number: u64) -> Result<()> {
        self.0.change(|outputs| {
            if number > outputs.last_number {
                return Err(violated("it received more than was sent"));
            }
            outputs.received = outputs.received.max(number);
            while let Some(first) = outputs.unreceived.keys().next().copied()
                && first <= number
            {
                outputs.forget(first);
            }
            Ok(())
        })
    }

    /// Takes a connection that has ended out of use, and sends its frames by others.
    ///
    /// # Errors
    /// There is no other connection, or frames are lost with this one; those of the others.
    pub(super) fn lose(&self, connection: u64) -> io::Result<()> {
        let (output, numbers, goes_on) = self.0.change(|outputs| {
            let output = outputs.by_connection.remove(&connection);
            let is_complete = connection != FIRST || outputs.last_unkept <= outputs.received;
            let goes_on = is_complete && !outputs.by_connection.is_empty();
            outputs.forget_of_first();
            let sent = outputs.unreceived.iter();
            let by_it = sent.filter(|(_, frame)| frame.connection == connection);
            let numbers: Vec<u64> = by_it.map(|(number, _)| *number).collect();
            (output, numbers, goes_on)
        });
        if let Some(output) = output {
            output.is_ended.store(true, Relaxed);
            output.stream.into_iter().for_each(WireStream::shut_down);
        }
        if !goes_on {
            return Err(io::ErrorKind::NotConnected.into());
        }
        numbers
            .into_iter()
            .try_for_each(|number| self.resend(number))
    }

    fn resend(&self, number: u64) -> io::Result<()> {
        let mut state = self.wait_in_line(false);
        let outputs = &mut state.0;
        if outputs.is_ended || !outputs.unreceived.contains_key(&number) {
            self.call_next(state);
            return Ok(());
        }
        let Some((connection, stream)) = outputs.take() else {
            return Ok(());
        };
        let Some(frame) = outputs.unreceived.get_mut(&number) else {
            return Ok(());
        };
        frame.connection = connection;
        let (message, data) = (frame.message.clone(), frame.data.clone());
        if outputs.is_alone(connection) {
            outputs.forget(number);
            outputs.last_unkept = outputs.last_unkept.max(number);
        }
        self.call_next(state);
        self.write(connection, stream, data.len(), |stream| {
            write_frame(stream, &message, Some(number), &data)
        })
    }

    /// Ends all connections.
    pub(super) fn end(&self) {
        let idle: Vec<WireStream> = self.0.change(|outputs| {
            outputs.is_ended = true;
            outputs.unreceived.clear();
            outputs.unreceived_bytes = 0;
            let all = outputs.by_connection.values_mut();
            all.filter_map(|output| {
                output.is_ended.store(true, Relaxed);
                output.stream.take().or(output.failed.take())
            })
            .collect()
        });
        idle.into_iter().for_each(WireStream::shut_down);
    }
}

const _: () = assert!(FRAME_WINDOW >= 16 * MAX_DATA);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{WireEnds, WireStreams};
    use fullbore_wire::frame::read_frame;
    use std::{os::unix::net::UnixStream, thread, time::Duration};

    #[test]
    fn a_frame_goes_before_those_of_a_thread_that_sends_without_pause() {
        let (near, far) = UnixStream::pair().unwrap();
        let ends = |socket: UnixStream| {
            let input = socket.try_clone().unwrap().into();
            let output = socket.into();
            WireEnds::new(WireStreams { input, output }, Duration::from_secs(60)).unwrap()
        };
        let (near, mut far) = (ends(near), ends(far));
        let outlet = Outlet::default();
        outlet.add(near.output, near.is_ended, false).unwrap();
        let large = Message::Append { upload: 1 };
        let small = Message::Credit { bytes: 1 };
        thread::scope(|scope| {
            // More than the socket holds, so the thread waits within a frame.
            scope.spawn(|| {
                (0..50).for_each(|_| outlet.send(&large, &vec![0; MAX_DATA]).unwrap());
            });
            while outlet.0.lock().0.idle().is_some() {
                thread::yield_now();
            }
            scope.spawn(|| outlet.send(&small, b"").unwrap());
            while outlet.0.lock().0.line.is_empty() {
                thread::yield_now();
            }
            let mut sent = (0..51).map(|_| read_frame(&mut far.input).unwrap().unwrap().message);
            let before = sent
                .by_ref()
                .take_while(|message| *message != small)
                .count();
            sent.for_each(drop);
            assert!(before <= 2, "{before}");
        });
    }
}
