//! Messages of the protocol: their frames and fields, with a bound on each.
//!
//! A message is read only up to [`MAX_BYTES`]; the length that the other side gives is checked before memory is taken.

use super::link::Link;
use fullbore_format::error::{Error, ErrorKind, Result};
use std::io::{self, Read, Write};

/// Bytes of a message, at most. A server sends at most 128 KiB of WAL in one, and a history of 64 KiB.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Bytes of the kind and the length of a message.
const HEAD: usize = 5;

/// A message of the server: its kind, and the bytes behind its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) body: Vec<u8>,
}

/// Reads messages from a link, and writes them.
pub(super) struct Messages {
    link: Link,
    /// Bytes that were read, from `at` to `end` not yet used. It grows to the longest message and is
    /// not cleared between reads.
    read: Vec<u8>,
    at: usize,
    end: usize,
    /// Whether a stream of WAL has begun and not ended: no command can be sent.
    pub(super) is_streaming: bool,
}

impl Messages {
    pub(super) fn new(link: Link) -> Self {
        Self {
            link,
            read: Vec::new(),
            at: 0,
            end: 0,
            is_streaming: false,
        }
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// Writes a message. The first of a connection has no kind.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`].
    pub(super) fn write(&mut self, kind: Option<u8>, body: &[u8]) -> Result<()> {
        let mut bytes = Vec::with_capacity(HEAD + body.len());
        bytes.extend(kind);
        let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
        bytes.extend(length.to_be_bytes());
        bytes.extend(body);
        let written = self.link.write_all(&bytes).and_then(|()| self.link.flush());
        written.map_err(|error| lost(&error))
    }

    /// Returns the next message; `None` if none came within the time limit of the link.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if the connection has ended, [`ErrorKind::Unsupported`] for a message that is too long.
    pub(super) fn next(&mut self) -> Result<Option<Message>> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            match self.fill() {
                Ok(0) => return Err(lost(&io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) if is_timeout(&error) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(&error)),
            }
        }
    }

    /// Returns whether a message, or a part of one, is there at once.
    pub(super) fn is_ready(&self) -> bool {
        let read = &self.read[self.at..self.end];
        let length = read.get(1..HEAD).and_then(|length| length.try_into().ok());
        let length = length.map_or(u32::MAX, u32::from_be_bytes);
        read.len() as u64 > u64::from(length) || self.link.is_ready()
    }

    /// Takes a message from the bytes that were read, if it is there as a whole.
    fn take(&mut self) -> Result<Option<Message>> {
        let bytes = &self.read[self.at..self.end];
        let Some((head, rest)) = bytes.split_at_checked(HEAD) else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if !(4..=MAX_BYTES).contains(&length) {
            return Err(unexpected(&format!("a message of {length} bytes")));
        }
        let Some(body) = rest.get(..length - 4) else {
            return Ok(None);
        };
        let message = Message {
            kind: head[0],
            body: body.to_vec(),
        };
        self.at += HEAD + body.len();
        Ok(Some(message))
    }

    fn fill(&mut self) -> io::Result<usize> {
        self.read.copy_within(self.at..self.end, 0);
        self.end -= self.at;
        self.at = 0;
        let most = self.end + READ_BYTES;
        if self.read.len() < most {
            self.read.resize(most, 0);
        }
        let got = self.link.read(&mut self.read[self.end..])?;
        self.end += got;
        Ok(got)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// The connection has ended.
pub(super) fn lost(error: &io::Error) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the connection with the server was lost",
    )
    .because(fullbore_format::error::reason(error))
}

/// The server said something that the protocol does not have here.
pub(super) fn unexpected(message: &str) -> Error {
    let error = Error::new(ErrorKind::Unsupported, "cannot understand the server");
    error.because(format!("it sent {message}"))
}

/// Reads the fields of a message, in order.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the next `len` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (found, rest) = self
            .0
            .split_at_checked(len)
            .ok_or_else(|| unexpected("a message that is too short"))?;
        self.0 = rest;
        Ok(found)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn i16(&mut self) -> Result<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Returns the text up to a zero byte.
    pub(super) fn text(&mut self) -> Result<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0);
        let end = end.ok_or_else(|| unexpected("a text without an end"))?;
        let text = self.bytes(end)?;
        self.bytes(1)?;
        Ok(text)
    }

    /// Returns the columns of a row; `None` for null.
    ///
    /// # Errors
    /// If the message is not a row.
    pub(super) fn row(mut self) -> Result<Vec<Option<Vec<u8>>>> {
        let columns = self.i16()?;
        let mut row = Vec::new();
        for _ in 0..columns {
            let length = self.i32()?;
            let column = match usize::try_from(length) {
                Ok(length) => Some(self.bytes(length)?.to_vec()),
                Err(_) => None,
            };
            row.push(column);
        }
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixStream, thread, time::Duration};

    fn of(bytes: Vec<u8>) -> Messages {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || theirs.write_all(&bytes));
        Messages::new(Link::Socket(ours))
    }

    #[test]
    fn messages_are_read_whole_and_in_order() {
        let mut messages = of(b"Z\0\0\0\x05Id\0\0\0\x04".to_vec());
        let mut next = || {
            messages
                .next()
                .map(|found| found.map(|found| (found.kind, found.body)))
        };
        assert_eq!(next().unwrap(), Some((b'Z', b"I".to_vec())));
        assert_eq!(next().unwrap(), Some((b'd', vec![])));
        assert_eq!(next().unwrap_err().kind, ErrorKind::Unreachable);
    }

    #[test]
    fn a_length_that_cannot_be_takes_no_memory() {
        for length in [0_u32, 3, MAX_BYTES as u32 + 1, u32::MAX] {
            let mut bytes = vec![b'd'];
            bytes.extend(length.to_be_bytes());
            let mut messages = of(bytes);
            let error = messages.next().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unsupported, "{length}");
            assert!(messages.read.capacity() <= 2 * READ_BYTES);
        }
    }

    #[test]
    fn a_silent_server_is_no_error_and_half_a_message_is_kept() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let limit = Some(Duration::from_millis(1));
        ours.set_read_timeout(limit).unwrap();
        let mut messages = Messages::new(Link::Socket(ours));
        theirs.write_all(b"Z\0\0").unwrap();
        assert_eq!(messages.next().unwrap(), None);
        theirs.write_all(b"\0\x05I").unwrap();
        assert_eq!(messages.next().unwrap().unwrap().body, b"I");
    }

    #[test]
    fn fields_that_end_early_are_refused() {
        for bytes in [&b""[..], b"\0\x01", b"\0\x01\0\0\0\x05abc", b"\x7f\xff"] {
            Fields(bytes).row().unwrap_err();
        }
        let row = Fields(b"\0\x02\0\0\0\x01a\xff\xff\xff\xff").row().unwrap();
        assert_eq!(row, [Some(b"a".to_vec()), None]);
        Fields(b"abc").text().unwrap_err();
    }
}
