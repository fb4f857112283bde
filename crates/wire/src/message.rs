//! The messages of a connection, as CBOR. A message is decoded from at most [`MAX_HEADER`] bytes and [`MAX_VALUES`] values, so nothing in
//! one needs a limit of its own.
//!
//! [`MAX_HEADER`]: crate::frame::MAX_HEADER

use crate::{service::ServiceNumber, wire_error::WireError};
use fullbore_format::{
    cbor::{CborFault, check_values, decode_bounded},
    error::Error,
};
use minicbor::{Decode, Encode, bytes::ByteVec};
use std::num::NonZeroU64;

/// Values in a message and behind it at most: an error has 8 lines of details and some 20 others.
pub const MAX_VALUES: usize = 64;

/// Every message; either side may send each.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Message {
    /// The sender is alive.
    #[n(0)]
    Beat,
    /// Data of a call whose [`Message::Call`] came before.
    #[n(1)]
    CallPart {
        /// The number of the call.
        #[n(0)]
        id: u64,
    },
    /// A question, with the beginning of its data.
    #[n(2)]
    Call {
        /// A number that no other call of this connection and direction has.
        #[n(0)]
        id: u64,
        /// The question.
        #[n(1)]
        call: Call,
        /// Bytes of its data that follow in other frames: whoever is asked knows what for, and how much it is, before it takes memory.
        #[n(2)]
        following: Option<NonZeroU64>,
    },
    /// Data of an answer whose [`Message::Answer`] follows.
    #[n(3)]
    AnswerPart {
        /// The number of the call.
        #[n(0)]
        id: u64,
    },
    /// The answer to a call, with the rest of its data.
    #[n(4)]
    Answer {
        /// The number of the call.
        #[n(0)]
        id: u64,
        /// The answer.
        #[n(1)]
        answer: CallAnswer,
    },
    /// Data for an upload. It is not answered; its room is given back by [`Message::Credit`].
    #[n(5)]
    Append {
        /// The number of the upload.
        #[n(0)]
        upload: u64,
    },
    /// So many bytes of uploads were stored, and others may be sent.
    #[n(6)]
    Credit {
        /// A part of what was sent.
        #[n(0)]
        bytes: u64,
    },
    /// An upload has failed; the rest of it is dropped.
    #[n(7)]
    UploadFailed {
        /// The number of the upload.
        #[n(0)]
        upload: u64,
        /// Why.
        #[n(1)]
        error: WireError,
    },
    /// A lease is not held any more.
    #[n(8)]
    LeaseLost {
        /// The number of the call that took the lease.
        #[n(0)]
        lease: u64,
    },
    /// All frames up to this one were received, and need not be sent again.
    #[n(9)]
    Received {
        /// The number of a frame.
        #[n(0)]
        number: u64,
    },
    /// Begins an upload. It is not answered; an error comes as [`Message::UploadFailed`].
    #[n(10)]
    Create {
        /// A number that no call of this connection and direction has.
        #[n(0)]
        upload: u64,
        /// The object.
        #[n(1)]
        key: String,
    },
}

/// A question to a service of the other side.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Call {
    /// Who understands the question.
    #[n(0)]
    pub service: ServiceNumber,
    /// The question, in the words of the service.
    #[n(1)]
    pub question: ByteVec,
}

impl Call {
    /// Returns a call of a service.
    pub fn new(service: ServiceNumber, question: Vec<u8>) -> Self {
        let question = question.into();
        Self { service, question }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum CallAnswer {
    /// It could not be done.
    #[n(0)]
    Failed(#[n(0)] WireError),
    /// It was done. The words of the service, which may be empty, say what the data is.
    #[n(1)]
    Done(#[n(0)] ByteVec),
}

impl CallAnswer {
    /// Returns the answer that is nothing but its data.
    pub fn bytes() -> Self {
        Self::Done(Vec::new().into())
    }
}

/// How further connections of a session are made.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct JoinOffer {
    /// The secret that a further connection begins with.
    #[n(0)]
    pub secret: ByteVec,
    /// A TCP port that listens, and the public key of the server there; without it, they are made in the way of the first one.
    #[n(1)]
    pub listener: Option<(u16, ByteVec)>,
}

impl JoinOffer {
    /// The port that listens, and the public key of the server there.
    pub fn listener(&self) -> Option<(u16, &[u8])> {
        let (port, key) = self.listener.as_ref()?;
        Some((*port, key))
    }
}

/// A value as CBOR.
pub fn encode<T: Encode<()>>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A `Vec` takes all bytes, and the types of this file encode any value.
    let _ = minicbor::encode(value, &mut bytes);
    bytes
}

/// The value that all of the bytes are, which consists of at most `max_values` values.
///
/// # Errors
/// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if they are none, or more than one.
pub fn decode<'b, T: Decode<'b, ()>>(bytes: &'b [u8], max_values: usize) -> Result<T, Error> {
    decode_bounded(bytes, max_values).map_err(|fault| not_a_message().because(fault))
}

/// A message, and the number behind it, above 0, if there is one.
///
/// # Errors
/// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt).
pub fn decode_numbered(bytes: &[u8]) -> Result<(Message, Option<u64>), Error> {
    let refused = |fault: CborFault| not_a_message().because(fault);
    check_values(bytes, MAX_VALUES).map_err(refused)?;
    let mut decoder = minicbor::Decoder::new(bytes);
    let message = decoder
        .decode()
        .map_err(|error| not_a_message().because(error))?;
    let number = &bytes[decoder.position()..];
    if number.is_empty() {
        return Ok((message, None));
    }
    match decode(number, 1)? {
        0 => Err(not_a_message().because("its number is 0")),
        number => Ok((message, Some(number))),
    }
}

/// The error for bytes that are no message.
pub fn not_a_message() -> Error {
    Error::corrupt("could not read a message of the other side")
}
