//! The messages of a connection, as CBOR. A message is decoded from at most [`MAX_HEADER`] bytes and [`MAX_VALUES`] values, so nothing in
//! one needs a limit of its own.
//!
//! [`MAX_HEADER`]: crate::frame::MAX_HEADER

use crate::wire_error::WireError;
use crate::{PutIf, Take, Version};
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

/// A question. The functions of `Objects`, and what is between two sides.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Call {
    /// Opens the objects at a location; all later calls are about them, and may be sent before the answer.
    #[n(0)]
    Open {
        /// A word of the command line; empty for what the other side offers by itself.
        #[n(0)]
        location: ByteVec,
    },
    /// Answered by [`CallAnswer::Bytes`], the data being pages, as of [`crate::listing`].
    #[n(1)]
    List {
        /// As of `Objects::list`.
        #[n(0)]
        prefix: String,
    },
    /// Answered by [`CallAnswer::Bytes`].
    #[n(2)]
    ReadAt {
        /// The object.
        #[n(0)]
        key: String,
        /// Where to begin.
        #[n(1)]
        offset: u64,
        /// How many bytes.
        #[n(2)]
        len: u64,
    },
    /// Answered by [`CallAnswer::Got`].
    #[n(3)]
    Get {
        /// The object.
        #[n(0)]
        key: String,
    },
    /// Answered by [`CallAnswer::Bytes`] with a number or without.
    #[n(4)]
    Stat {
        /// The object.
        #[n(0)]
        key: String,
    },
    /// Stores the data; answered by [`CallAnswer::Put`].
    #[n(5)]
    Put {
        /// The object.
        #[n(0)]
        key: String,
        /// When.
        #[n(1)]
        condition: Condition,
    },
    /// Replaces bytes of an upload by the data.
    #[n(7)]
    Amend {
        /// The upload.
        #[n(0)]
        upload: u64,
        /// Where.
        #[n(1)]
        offset: u64,
    },
    /// Answered by [`CallAnswer::Finished`], the data being the digests of the parts.
    #[n(8)]
    Finish {
        /// The upload.
        #[n(0)]
        upload: u64,
    },
    /// Gives up an upload.
    #[n(9)]
    Abort {
        /// The upload.
        #[n(0)]
        upload: u64,
    },
    /// Deletes the objects whose keys are the data.
    #[n(10)]
    Delete,
    /// As of `Objects::abort_uploads`.
    #[n(11)]
    AbortUploads {
        /// The prefix.
        #[n(0)]
        prefix: String,
    },
    /// As of `Objects::settle`.
    #[n(12)]
    Settle {
        /// The prefix.
        #[n(0)]
        prefix: String,
    },
    /// Takes a lease, which has the number of this call; the data is the content of a new intent.
    #[n(13)]
    Lease {
        /// The intent.
        #[n(0)]
        key: String,
        /// As of [`Take`].
        #[n(1)]
        take: TakeWord,
    },
    /// Replaces the content of an intent by the data.
    #[n(14)]
    UpdateLease {
        /// The lease.
        #[n(0)]
        lease: u64,
    },
    /// Lets go of a lease.
    #[n(15)]
    DropLease {
        /// The lease.
        #[n(0)]
        lease: u64,
    },
    /// Runs a command; the data are its arguments. Answered by [`CallAnswer::Exited`].
    #[n(16)]
    Run,
    /// The data is output of the command that the other side asked for.
    #[n(17)]
    Output {
        /// Standard error, or else standard output.
        #[n(0)]
        is_error: bool,
    },
    /// Asks for a way to further connections. Answered by [`CallAnswer::Offered`].
    #[n(18)]
    Offer,
    /// Asks the service something that this connection does not know; the data is the question. Answered by [`CallAnswer::Bytes`].
    #[n(19)]
    Ask {
        /// Who understands the question.
        #[n(0)]
        topic: AskTopic,
    },
}

/// Who understands a question to a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum AskTopic {
    /// The files of the host, for a backup that runs on the other side.
    #[n(0)]
    Files,
    /// The target of a copy of trees.
    #[n(1)]
    Copy,
    /// The file for the report of a command that runs on the other side. The question is the report, and the answer is empty.
    #[n(2)]
    Report,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum CallAnswer {
    /// It could not be done.
    #[n(0)]
    Failed(#[n(0)] WireError),
    /// It was done, and the data, if any, is what was asked for.
    #[n(1)]
    Bytes,
    /// The objects are open.
    #[n(2)]
    Opened {
        /// As of `StorageAbilities`.
        #[n(0)]
        has_locks: bool,
        /// As of `StorageAbilities`.
        #[n(1)]
        amends: bool,
    },
    /// The version of the object that the data is, if it is there.
    #[n(3)]
    Got(#[n(0)] Option<String>),
    /// How many bytes an object has, if it is there.
    #[n(4)]
    Size(#[n(0)] Option<u64>),
    /// The version of the object that was stored; none if the condition did not hold.
    #[n(5)]
    Put(#[n(0)] Option<String>),
    /// An upload was finished, and has so many bytes.
    #[n(6)]
    Finished(#[n(0)] u64),
    /// What came of an attempt to take a lease.
    #[n(7)]
    Leased(#[n(0)] LeasedWord),
    /// A command ended with this exit code.
    #[n(8)]
    Exited(#[n(0)] u8),
    /// How further connections are made.
    #[n(9)]
    Offered(#[n(0)] JoinOffer),
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

/// [`PutIf`] as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Condition {
    /// Whatever is there.
    #[n(0)]
    Always,
    /// If no object has the key.
    #[n(1)]
    Absent,
    /// If the object has this version.
    #[n(2)]
    Version(#[n(0)] String),
}

impl Condition {
    /// Returns the word for `condition`.
    pub fn of(condition: &PutIf) -> Self {
        match condition {
            PutIf::Always => Self::Always,
            PutIf::Absent => Self::Absent,
            PutIf::Version(version) => Self::Version(version.as_str().to_owned()),
        }
    }

    /// Returns the condition.
    pub fn into_put_if(self) -> PutIf {
        match self {
            Self::Always => PutIf::Always,
            Self::Absent => PutIf::Absent,
            Self::Version(version) => PutIf::Version(Version::new(version)),
        }
    }
}

/// [`Take`] as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum TakeWord {
    /// An intent that is absent, and is made.
    #[n(0)]
    New,
    /// One whose holder let go or died.
    #[n(1)]
    Dead,
    /// Either.
    #[n(2)]
    DeadOrNew,
}

impl TakeWord {
    /// Returns the word for `take`.
    pub fn of(take: Take) -> Self {
        match take {
            Take::New => Self::New,
            Take::Dead => Self::Dead,
            Take::DeadOrNew => Self::DeadOrNew,
        }
    }

    /// Returns the intents that are meant.
    pub fn into_take(self) -> Take {
        match self {
            Self::New => Take::New,
            Self::Dead => Take::Dead,
            Self::DeadOrNew => Take::DeadOrNew,
        }
    }
}

/// `Leased` as it is sent; the lease itself stays where it was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum LeasedWord {
    /// The side that asked holds the lease.
    #[n(0)]
    Ours,
    /// Another holder is alive.
    #[n(1)]
    Held,
    /// The intent is not there.
    #[n(2)]
    Absent,
    /// The storage cannot tell.
    #[n(3)]
    Unknown,
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
