//! WAL as it arrives, and the positions that are reported back.

use super::{
    message::{Fields, Message, Messages, lost, unexpected},
    place, read_answer,
    refusal::refusal,
    text_at, timeline_number,
};
use crate::lsn::Lsn;
use fullbore_format::error::Result;
use std::{
    io,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Seconds from 1970 to 2000, from which servers count.
const EPOCH_SECONDS: u64 = 946_684_800;
/// Bytes before the WAL in a message: the kind, two positions and a time.
const DATA_HEAD: usize = 25;
/// No server has written so much WAL.
pub(super) const MAX_PLACE: u64 = 1 << 62;
/// Messages of other kinds in a row, at most.
const MAX_OTHERS: usize = 1000;

/// What has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WalEvent {
    /// WAL from this place on, directly behind what arrived before.
    Data {
        /// The place of the first byte.
        start: Lsn,
        /// The bytes; at most 1 MiB, and mostly 128 KiB.
        bytes: Vec<u8>,
    },
    /// The server lives, and its WAL ends here.
    Alive {
        end: Lsn,
        /// Whether it wants a report at once, or it ends the connection.
        wants_report: bool,
    },
    /// Nothing arrived in the time that was given.
    Quiet,
    /// The timeline has ended, and all of its WAL has arrived. The session can begin another stream.
    End(TimelineEnd),
}

/// Where a timeline ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineEnd {
    pub next: u32,
    /// The place of the switch.
    pub at: Lsn,
}

/// The positions that a receiver reports. None may lie behind what it has made durable: the server removes WAL, and
/// with synchronous replication it answers commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalPositions {
    /// What is written.
    pub written: Lsn,
    /// What is durable.
    pub durable: Lsn,
}

/// A stream of WAL in a session.
pub struct WalStream<'a> {
    messages: &'a mut Messages,
    /// The place of the next byte.
    next: Lsn,
    /// The end of the server's WAL, as it said last.
    server_end: Lsn,
    /// The end of the timeline, if the server had no WAL of it to send, or has sent all.
    ended: Option<TimelineEnd>,
}

impl<'a> WalStream<'a> {
    /// Reads the answer to `START_REPLICATION`.
    pub(super) fn begin(messages: &'a mut Messages, start: Lsn) -> Result<Self> {
        let mut stream = Self {
            messages,
            next: start,
            server_end: start,
            ended: None,
        };
        for _ in 0..MAX_OTHERS {
            let Some(Message { kind, body }) = stream.messages.next()? else {
                continue;
            };
            match kind {
                b'W' => {
                    stream.messages.is_streaming = true;
                    return Ok(stream);
                }
                b'N' | b'S' => {}
                // The timeline ended at this place: there is nothing to send.
                b'T' => {
                    stream.ended = Some(stream.read_end()?);
                    return Ok(stream);
                }
                b'E' => {
                    let refused = refusal("the server does not send this WAL", &body);
                    read_answer(stream.messages)?.ok();
                    return Err(refused);
                }
                kind => return Err(unexpected(&format!("a message of kind {kind}"))),
            }
        }
        Err(unexpected("no WAL"))
    }

    /// The place of the next byte that arrives.
    pub fn position(&self) -> Lsn {
        self.next
    }

    /// The end of the server's WAL, as it said last.
    pub fn server_end(&self) -> Lsn {
        self.server_end
    }

    /// Returns whether [`WalStream::next`] has something to do at once.
    pub fn is_ready(&self) -> bool {
        self.ended.is_none() && self.messages.is_ready()
    }

    /// Waits for WAL, for at most `limit`.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](fullbore_format::error::ErrorKind::Unreachable) if the connection is lost: connect
    /// again, and stream from what is durable. The server's, as for WAL that it has removed. After an error the session is of no
    /// further use.
    pub fn next(&mut self, limit: Duration) -> Result<WalEvent> {
        if let Some(end) = self.ended {
            return Ok(WalEvent::End(end));
        }
        let limit = limit.max(Duration::from_millis(1)); // zero means forever
        self.messages.link().set_patience(Some(limit))?;
        for _ in 0..MAX_OTHERS {
            let Some(Message { kind, body }) = self.messages.next()? else {
                return Ok(WalEvent::Quiet);
            };
            match kind {
                b'd' => return self.event(body),
                b'c' => return self.end(),
                // A server that shuts down has sent all.
                b'C' => return Err(lost(&io::ErrorKind::ConnectionReset.into())),
                b'E' => return Err(refusal("the server ended the stream of WAL", &body)),
                b'N' | b'S' => {}
                kind => return Err(unexpected(&format!("a message of kind {kind}"))),
            }
        }
        Ok(WalEvent::Quiet)
    }

    fn event(&mut self, mut body: Vec<u8>) -> Result<WalEvent> {
        let mut fields = Fields(&body);
        match fields.byte()? {
            b'w' => {
                let start = Lsn(fields.u64()?);
                let rest = fields.0.len();
                // A gap in the stream would become a hole in a segment.
                if start != self.next || rest < DATA_HEAD - 9 {
                    return Err(unexpected(&format!(
                        "WAL of {start} where {} follows",
                        self.next
                    )));
                }
                self.server_end = Lsn(fields.u64()?);
                body.drain(..DATA_HEAD);
                let end = start.0.checked_add(body.len() as u64);
                let end = end.filter(|end| *end <= MAX_PLACE);
                self.next = Lsn(end.ok_or_else(|| unexpected("WAL behind its end"))?);
                Ok(WalEvent::Data { start, bytes: body })
            }
            b'k' => {
                let end = Lsn(fields.u64()?);
                self.server_end = end;
                fields.u64()?;
                let wants_report = fields.byte()? != 0;
                Ok(WalEvent::Alive { end, wants_report })
            }
            kind => Err(unexpected(&format!("data of kind {kind}"))),
        }
    }

    /// Answers the end of the stream, and reads where the timeline ended.
    fn end(&mut self) -> Result<WalEvent> {
        self.messages.write(Some(b'c'), b"")?;
        let end = self.read_end()?;
        self.messages.is_streaming = false;
        self.ended = Some(end);
        Ok(WalEvent::End(end))
    }

    fn read_end(&mut self) -> Result<TimelineEnd> {
        self.messages.link().set_patience(None)?;
        let rows = read_answer(self.messages)?
            .map_err(|body| refusal("the server ended the stream of WAL", &body))?;
        let row = rows.into_iter().next();
        let row = row.ok_or_else(|| unexpected("the end of a stream without a next timeline"))?;
        let next = timeline_number(&text_at(&row, 0).unwrap_or_default())?;
        let switch = place(&text_at(&row, 1).unwrap_or_default())?;
        Ok(TimelineEnd { next, at: switch })
    }

    /// Reports positions. Do so every few seconds, at once if the server wants it, and when more is durable.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](fullbore_format::error::ErrorKind::Unreachable).
    pub fn report(&mut self, positions: WalPositions) -> Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        let mut body = vec![b'r'];
        // Nothing is applied; a server with remote_apply waits for a standby.
        for position in [positions.written, positions.durable, Lsn(0)] {
            body.extend(position.0.to_be_bytes());
        }
        body.extend(microseconds().to_be_bytes());
        body.push(0);
        self.messages.write(Some(b'd'), &body)
    }
}

/// The time of this host, as servers count it.
fn microseconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    let elapsed = now.saturating_sub(Duration::from_secs(EPOCH_SECONDS));
    u64::try_from(elapsed.as_micros()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{super::link::Link, *};
    use std::{io::Write, os::unix::net::UnixStream};

    /// A connection over which a server has sent these messages, and its side of it.
    fn sent(messages: &[(u8, Vec<u8>)]) -> (Messages, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        for (kind, body) in messages {
            let mut bytes = vec![*kind];
            bytes.extend((body.len() as u32 + 4).to_be_bytes());
            bytes.extend(body);
            theirs.write_all(&bytes).unwrap();
        }
        (Messages::new(Link::Socket(ours)), theirs)
    }

    /// What a stream from place 100 makes of these messages.
    fn events(messages: &[(u8, Vec<u8>)]) -> Result<Vec<WalEvent>> {
        let (mut read, _theirs) = sent(messages);
        let mut stream = WalStream::begin(&mut read, Lsn(100))?;
        let mut events = Vec::new();
        loop {
            let event = stream.next(Duration::from_millis(50))?;
            let is_last = matches!(event, WalEvent::Quiet | WalEvent::End(_));
            events.push(event);
            if is_last {
                return Ok(events);
            }
        }
    }

    fn data(start: u64, bytes: &[u8]) -> (u8, Vec<u8>) {
        let mut body = vec![b'w'];
        body.extend(start.to_be_bytes());
        body.extend([0; 16]);
        body.extend(bytes);
        (b'd', body)
    }

    fn end() -> [(u8, Vec<u8>); 4] {
        let mut row = vec![0, 2, 0, 0, 0, 1, b'2', 0, 0, 0, 4];
        row.extend(b"0/65");
        [
            (b'T', vec![]),
            (b'D', row),
            (b'C', vec![]),
            (b'Z', vec![b'I']),
        ]
    }

    #[test]
    fn wal_is_handed_on_in_order_and_a_timeline_ends() {
        let mut messages = vec![(b'W', vec![]), data(100, b"a"), (b'c', vec![])];
        messages.extend(end());
        let found = events(&messages).unwrap();
        let start = Lsn(100);
        assert_eq!(
            found[0],
            WalEvent::Data {
                start,
                bytes: b"a".to_vec()
            }
        );
        let position = Lsn(0x65);
        assert_eq!(
            found[1],
            WalEvent::End(TimelineEnd {
                next: 2,
                at: position
            })
        );
        assert_eq!(events(&end()).unwrap(), found[1..]);
    }

    #[test]
    fn a_gap_and_other_messages_that_cannot_be_are_errors() {
        let begin = || (b'W', vec![]);
        for bad in [
            data(101, b"a"),
            data(99, b"a"),
            (b'd', b"w".to_vec()),
            (b'd', vec![]),
            (b'd', b"k\0\0".to_vec()),
            (b'd', b"x".to_vec()),
            (b'?', vec![]),
        ] {
            assert!(events(&[begin(), bad.clone()]).is_err(), "{bad:?}");
        }
        assert_eq!(events(&[begin()]).unwrap(), [WalEvent::Quiet]);
    }

    #[test]
    fn changed_bytes_of_messages_are_errors_or_other_events() {
        let begin = || (b'W', vec![]);
        let good = [
            data(100, b"abc"),
            (b'd', [b"k".as_slice(), &[1; 17]].concat()),
        ];
        for (kind, body) in good {
            for offset in 0..body.len() {
                for bit in 0..8 {
                    let mut changed = body.clone();
                    changed[offset] ^= 1 << bit;
                    let mut messages = vec![begin(), (kind, changed), (b'c', vec![])];
                    messages.extend(end());
                    let found = events(&messages);
                    let handed = found.iter().flatten().filter_map(|event| match event {
                        WalEvent::Data { start, bytes } => Some((start.0, bytes.len())),
                        _ => None,
                    });
                    assert!(handed.into_iter().all(|sizes| sizes == (100, 3)));
                }
            }
        }
        for end in 0..8 {
            let changed = (b'd', data(100, b"abc").1[..end].to_vec());
            assert!(events(&[begin(), changed]).is_err());
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_a_server_sends_wal_is_handed_on_without_a_gap(
            kinds in proptest::collection::vec(proptest::sample::select(b"dddcwTDCEZNS?".to_vec()), 0..12),
            bodies in proptest::collection::vec(proptest::collection::vec(0..=255_u8, 0..40), 12),
            marks in proptest::collection::vec((proptest::sample::select(b"wwk?".to_vec()), 98..103_u64), 12),
        ) {
            let mut messages = vec![(b'W', vec![])];
            for ((kind, body), (mark, start)) in kinds.into_iter().zip(bodies).zip(marks) {
                // Most data begins as WAL does, so that what is behind the head is read too.
                let head = [&[mark][..], &start.to_be_bytes()].concat();
                let body = if kind == b'd' { [head, body].concat() } else { body };
                messages.push((kind, body));
            }
            // The server ends the connection behind them: nothing is waited for.
            let (mut read, theirs) = sent(&messages);
            drop(theirs);
            let mut next = 100;
            let Ok(mut stream) = WalStream::begin(&mut read, Lsn(next)) else { return Ok(()) };
            while let Ok(event) = stream.next(Duration::from_millis(50)) {
                match event {
                    WalEvent::Data { start, bytes } => {
                        assert_eq!(start.0, next);
                        next += bytes.len() as u64;
                    }
                    WalEvent::End(_) => break,
                    WalEvent::Alive { .. } | WalEvent::Quiet => {}
                }
            }
        }
    }
}
