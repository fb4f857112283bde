//! Frames: a message and data behind it, each of a bounded length. And the greeting that comes before the first of them.
//!
//! ```text
//! u32 LE   bytes of the header, 1 to 64 KiB
//! u32 LE   bytes of the data, 0 to 1 MiB
//! header   a message, CBOR, and behind it the number of the frame, if it has one
//! data
//! ```

use crate::message::{Message, decode_numbered, encode};
use fullbore_format::error::{Error, ErrorKind, Result, quoted};
use std::io::{self, IoSlice, Read, Write};

/// Bytes of a header at most.
pub const MAX_HEADER: usize = 64 << 10;

/// Bytes of the data of a frame at most. Larger content is sent as several frames, and others come between them.
pub const MAX_DATA: usize = 1 << 20;

/// The version of the messages. Both sides must have the same.
pub const PROTOCOL: u32 = 1;

/// The first words of a greeting.
const GREETING: &str = "fullbore wire ";

/// Bytes of a greeting at most, with its line feed.
const MAX_GREETING: usize = 128;

/// A frame that was read.
#[derive(Debug)]
pub struct WireFrame {
    /// Frames with numbers are received in their order, whatever connections they come by; others at once.
    pub number: Option<u64>,
    /// The message.
    pub message: Message,
    /// The bytes behind it.
    pub data: Vec<u8>,
}

/// The next frame; `None` if the stream ended before it.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if no frame follows or the stream ends within one, [`ErrorKind::Unreachable`] if it cannot be read.
pub fn read_frame(input: &mut impl Read) -> Result<Option<WireFrame>> {
    match FrameLengths::read(input)? {
        Some(lengths) => lengths.read_frame(input).map(Some),
        None => Ok(None),
    }
}

/// How long a frame is.
#[derive(Debug, Clone, Copy)]
pub struct FrameLengths {
    header: usize,
    data: usize,
}

impl FrameLengths {
    /// Bytes of the lengths themselves.
    pub const BYTES: usize = 8;

    /// The lengths of the next frame; `None` if the stream ended before it.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if they are beyond the limits, [`ErrorKind::Unreachable`] if they cannot be read.
    pub fn read(input: &mut impl Read) -> Result<Option<Self>> {
        let mut lengths = [0; Self::BYTES];
        let mut filled = 0;
        while filled < lengths.len() {
            match input.read(&mut lengths[filled..]) {
                // Between two frames a side may close the connection, within one it may not.
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(unreadable(io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(error)),
            }
        }
        let [h0, h1, h2, h3, d0, d1, d2, d3] = lengths;
        let header = u32::from_le_bytes([h0, h1, h2, h3]) as usize;
        let data = u32::from_le_bytes([d0, d1, d2, d3]) as usize;
        if header == 0 || header > MAX_HEADER || data > MAX_DATA {
            let message = "could not read a frame of the other side";
            let why = format!("it has {header} bytes of header and {data} of data");
            return Err(Error::corrupt(message).because(why));
        }
        Ok(Some(Self { header, data }))
    }

    /// Bytes that follow.
    pub fn bytes(self) -> usize {
        self.header + self.data
    }

    /// The rest of the frame.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is no message or the stream ends within it, [`ErrorKind::Unreachable`] if it cannot be read.
    pub fn read_frame(self, input: &mut impl Read) -> Result<WireFrame> {
        let mut header = vec![0; self.header];
        input.read_exact(&mut header).map_err(unreadable)?;
        let (message, number) = decode_numbered(&header)?;
        let mut data = vec![0; self.data];
        input.read_exact(&mut data).map_err(unreadable)?;
        Ok(WireFrame {
            number,
            message,
            data,
        })
    }
}

fn unreadable(error: io::Error) -> Error {
    let message = "could not read from the other side";
    Error {
        kind: ErrorKind::Unreachable,
        ..Error::io(message, error)
    }
}

/// Writes a frame with one call, if the system takes all of it.
///
/// # Errors
/// The stream's; a part of the frame may have been written.
pub fn write_frame(
    output: &mut impl Write,
    message: &Message,
    number: Option<u64>,
    data: &[u8],
) -> io::Result<()> {
    let mut header = encode(message);
    if let Some(number) = number {
        header.extend(encode(&number));
    }
    if header.len() > MAX_HEADER || data.len() > MAX_DATA {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a message is too long",
        ));
    }
    let mut begin = Vec::with_capacity(8 + header.len());
    begin.extend_from_slice(&(header.len() as u32).to_le_bytes());
    begin.extend_from_slice(&(data.len() as u32).to_le_bytes());
    begin.extend_from_slice(&header);
    let mut slices = [IoSlice::new(&begin), IoSlice::new(data)];
    let mut left = &mut slices[..];
    IoSlice::advance_slices(&mut left, 0);
    // A pipe that is nearly full takes a part of a frame.
    while !left.is_empty() {
        match output.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes the greeting of this side.
///
/// # Errors
/// The stream's.
pub fn write_greeting(output: &mut impl Write) -> io::Result<()> {
    output.write_all(greeting_of(PROTOCOL).as_bytes())
}

fn greeting_of(protocol: u32) -> String {
    format!("{GREETING}{protocol} {}\n", env!("CARGO_PKG_VERSION"))
}

/// Reads the greeting of the other side, which `peer` names in messages.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if it is of another version or of another program, [`ErrorKind::Unreachable`] if there is none.
pub fn read_greeting(input: &mut impl Read, peer: &str) -> Result<()> {
    check_greeting(&read_line(input, peer)?, peer)
}

/// Reads a line of the length of a greeting at most, with its line feed if it has one; what comes instead may be cut anywhere.
///
/// # Errors
/// [`ErrorKind::Unreachable`] if nothing comes, or a part of a greeting.
pub fn read_line(input: &mut impl Read, peer: &str) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') && line.len() < MAX_GREETING {
        // Byte by byte: what follows the line belongs to the first frame.
        let mut byte = [0];
        let read = match input.read(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(|error| Error {
                kind: ErrorKind::Unreachable,
                ..Error::io(format!("could not hear from {peer}"), error)
            })?,
        };
        if read == 0 {
            break;
        }
        line.push(byte[0]);
    }
    let is_cut = line.last() != Some(&b'\n')
        && GREETING
            .as_bytes()
            .starts_with(&line[..line.len().min(GREETING.len())]);
    if is_cut {
        let message = format!("could not reach fullbore on {peer}");
        return Err(
            Error::new(ErrorKind::Unreachable, message).because("it ended without an answer")
        );
    }
    Ok(line)
}

/// Checks a greeting that was read.
///
/// # Errors
/// As [`read_greeting`].
pub fn check_greeting(line: &[u8], peer: &str) -> Result<()> {
    let words = std::str::from_utf8(line).ok();
    let words = words
        .and_then(|line| line.strip_suffix('\n'))
        .and_then(|line| line.strip_prefix(GREETING));
    let Some((protocol, version)) = words.and_then(|words| words.split_once(' ')) else {
        let message = format!("cannot understand {peer}");
        let why = format!("it says {}", quoted(line.trim_ascii()));
        return Err(Error::new(ErrorKind::Unsupported, message)
            .because(why)
            .hint("the startup files of the shell on that host must print nothing"));
    };
    if protocol == PROTOCOL.to_string() {
        return Ok(());
    }
    let message = format!(
        "cannot talk to fullbore {version:?} on {peer}: this is fullbore {}",
        env!("CARGO_PKG_VERSION")
    );
    Err(Error::new(ErrorKind::Unsupported, message)
        .hint("install the same version of fullbore on both hosts, or use --install-far, which copies this program over ssh"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Call, CallAnswer, MAX_VALUES, decode};
    use crate::{object_call::ObjectCall, service::ServiceNumber};
    use proptest::prelude::*;

    fn framed(message: &Message, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, message, Some(3), data).unwrap();
        bytes
    }

    #[test]
    fn frames_are_read_as_they_were_written_and_one_that_is_cut_is_an_error() {
        let message = Message::Call {
            id: 7,
            call: Some(Call::new(
                ServiceNumber::OBJECTS,
                encode(&ObjectCall::ReadAt {
                    key: "a/b".into(),
                    offset: u64::MAX,
                    len: 1,
                }),
            )),
            following: None,
        };
        let bytes = [
            framed(&message, b"data"),
            framed(&Message::Beat, &[1; MAX_DATA]),
        ]
        .concat();
        let mut input = &bytes[..];
        let first = read_frame(&mut input).unwrap().unwrap();
        assert_eq!((first.message, &first.data[..]), (message, &b"data"[..]));
        let second = read_frame(&mut input).unwrap().unwrap();
        assert_eq!(
            (second.message, second.data.len()),
            (Message::Beat, MAX_DATA)
        );
        assert!(read_frame(&mut input).unwrap().is_none());
        for end in 1..framed(&Message::Beat, b"data").len() {
            let whole = framed(&Message::Beat, b"data");
            assert!(read_frame(&mut &whole[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn a_frame_that_claims_more_than_its_limit_is_corrupt() {
        for (header, data) in [(0, 0), (MAX_HEADER + 1, 0), (1, MAX_DATA + 1)] {
            let lengths = [
                (header as u32).to_le_bytes(),
                u32::try_from(data).unwrap().to_le_bytes(),
            ];
            let bytes = [&lengths.concat()[..], &vec![0; 2 << 20]].concat();
            let error = read_frame(&mut &bytes[..]).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt, "{header} {data}");
        }
        assert!(write_frame(&mut Vec::new(), &Message::Beat, None, &[0; MAX_DATA + 1]).is_err());
    }

    #[test]
    fn another_version_and_another_program_are_refused_with_what_to_do() {
        let read = |line: &str| read_greeting(&mut line.as_bytes(), "\"db1\"");
        read(&greeting_of(PROTOCOL)).unwrap();
        for (line, hint) in [
            (greeting_of(PROTOCOL + 1), "the same version"),
            ("Welcome to db1!\n".to_owned(), "startup files"),
            ("fullbore\n".to_owned(), "startup files"),
            ("x".repeat(1000), "startup files"),
        ] {
            let error = read(&line).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unsupported, "{line}");
            assert!(error.hint.unwrap().contains(hint), "{line}");
        }
        for cut in ["", "full", "fullbore wire", "fullbore wire 1 0.1"] {
            assert_eq!(read(cut).unwrap_err().kind, ErrorKind::Unreachable, "{cut}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<Message>(&bytes, MAX_VALUES);
            let _ = read_frame(&mut &bytes[..]);
            let mut whole = framed(&Message::Beat, b"");
            whole.splice(8.., bytes.iter().copied());
            whole[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
            let _ = read_frame(&mut &whole[..]);
        }

        #[test]
        fn a_message_that_was_changed_is_a_message_or_an_error(
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            bytes in any::<u64>(),
        ) {
            let message = Message::Answer { id: bytes, answer: CallAnswer::Done(bytes.to_be_bytes().to_vec().into()) };
            let mut encoded = encode(&message);
            prop_assert_eq!(decode::<Message>(&encoded, MAX_VALUES).unwrap(), message);
            let offset = at.index(encoded.len());
            encoded[offset] = byte;
            if let Ok(other) = decode::<Message>(&encoded, MAX_VALUES) {
                let again: Message = decode(&encode(&other), MAX_VALUES).unwrap();
                prop_assert_eq!(again, other);
            }
        }
    }
}
