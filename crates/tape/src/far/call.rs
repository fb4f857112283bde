//! The questions about a drive and their answers, as they are sent.
//!
//! ```text
//! u32 LE   bytes of the words
//! words    a question or an answer, CBOR
//! body     the bytes of records, one after the other
//! ```

use super::failure::FarFailure;
use fullbore_format::{
    cbor::decode_bounded,
    error::{Error, Result},
};
use minicbor::{Decode, Encode, bytes::ByteVec};

/// Items of a batch at most: a record may be short.
pub(super) const BATCH_ITEMS: usize = 4096;
/// Bytes after which a batch is sent. Three of them are under way, and a batch has one record more.
pub(super) const BATCH_BYTES: usize = 4 << 20;
/// Bytes of records that one answer has at most, unless it is one record.
pub(super) const AHEAD_BYTES: usize = 8 << 20;
/// The longest record that is read or written.
pub(super) const MOST_RECORD_BYTES: u32 = 16 << 20;
/// Records and marks that a ring leaves at most.
const MOST_LEFT: usize = 1 << 18;
/// Values of a question or an answer at most: a ring that ends names each item that it leaves.
const MOST_VALUES: usize = MOST_LEFT + 64;

/// What a command does with a drive. A later one includes those before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum TapeUse {
    /// Asks for the state.
    #[n(0)]
    Ask,
    /// Reads, and moves and unloads the tape.
    #[n(1)]
    Read,
    /// Writes.
    #[n(2)]
    Write,
    /// Erases the whole medium.
    #[n(3)]
    Erase,
}

/// A question.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(super) enum TapeCall {
    /// Opens a drive. One is open at a time.
    #[n(0)]
    Open {
        /// The name, as on that host.
        #[n(0)]
        drive: ByteVec,
        #[n(1)]
        usage: TapeUse,
    },
    #[n(1)]
    Close,
    /// Writes the body as one record.
    #[n(2)]
    Record,
    #[n(3)]
    Mark,
    #[n(4)]
    Flush,
    /// Reads up to `count` records, to the next mark.
    #[n(5)]
    Read {
        /// Bytes of a record at most.
        #[n(0)]
        most: u32,
        #[n(1)]
        count: u32,
    },
    #[n(6)]
    Position,
    #[n(7)]
    Locate(#[n(0)] u64),
    #[n(8)]
    SpaceMarks(#[n(0)] i32),
    #[n(9)]
    SpaceRecords(#[n(0)] i32),
    #[n(10)]
    SpaceToEnd,
    #[n(11)]
    Status,
    #[n(12)]
    LowestRate,
    #[n(13)]
    Rewind,
    #[n(14)]
    Erase,
    #[n(15)]
    Unload,
    /// Begins the buffer before the drive.
    #[n(16)]
    BeginRing {
        #[n(0)]
        first: u64,
        #[n(1)]
        ring_bytes: u64,
        #[n(2)]
        lowest_rate: f64,
        #[n(3)]
        most_kept_bytes: u64,
    },
    /// Adds items to the buffer. Their records are the body.
    #[n(17)]
    Push {
        /// The number of the batch since the ring was begun, from 0. Batches are taken in their order.
        #[n(0)]
        number: u64,
        #[n(1)]
        items: Vec<PushedItem>,
    },
    /// Waits until all is on the medium.
    #[n(18)]
    FinishRing,
}

impl TapeCall {
    /// Returns what a caller must have asked for.
    pub(super) fn usage(&self) -> TapeUse {
        match self {
            Self::Open { usage, .. } => *usage,
            Self::Close | Self::Status | Self::LowestRate | Self::Position => TapeUse::Ask,
            Self::Read { .. }
            | Self::Locate(_)
            | Self::SpaceMarks(_)
            | Self::SpaceRecords(_)
            | Self::SpaceToEnd
            | Self::Rewind
            | Self::Unload => TapeUse::Read,
            Self::Record
            | Self::Mark
            | Self::Flush
            | Self::BeginRing { .. }
            | Self::Push { .. }
            | Self::FinishRing => TapeUse::Write,
            Self::Erase => TapeUse::Erase,
        }
    }
}

/// An item of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(super) enum PushedItem {
    /// So many bytes of the body.
    #[n(0)]
    Record(#[n(0)] u32),
    #[n(1)]
    Mark,
    /// A record that the host of the drive has kept.
    #[n(2)]
    Held(#[n(0)] u64),
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(super) enum TapeAnswer {
    #[n(0)]
    Done,
    /// The drive or the medium failed.
    #[n(1)]
    Failed(#[n(0)] FarFailure),
    #[n(2)]
    Opened {
        #[n(0)]
        least_bytes: u32,
        #[n(1)]
        most_bytes: u32,
        #[n(2)]
        usual_buffer_bytes: u64,
    },
    #[n(3)]
    Written(#[n(0)] WriteWord),
    /// Lengths of records, which are the body; a mark and the end of the data only at the end.
    #[n(4)]
    Found {
        #[n(0)]
        records: Vec<u32>,
        #[n(1)]
        end: FoundEnd,
    },
    #[n(5)]
    Place {
        #[n(0)]
        next: u64,
        #[n(1)]
        on_medium: Option<u64>,
    },
    #[n(6)]
    Status(#[n(0)] StatusWords),
    #[n(7)]
    Rate(#[n(0)] f64),
    #[n(8)]
    Pushed {
        #[n(0)]
        is_near_end: bool,
        #[n(1)]
        is_stopped: bool,
    },
    #[n(9)]
    RingEnded(#[n(0)] RingWords),
}

/// What became of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub(super) enum WriteWord {
    #[n(0)]
    Taken,
    #[n(1)]
    TakenNearEnd,
    #[n(2)]
    Full,
}

/// What follows the records of an answer.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(super) enum FoundEnd {
    /// Perhaps other records.
    #[n(0)]
    More,
    #[n(1)]
    Mark,
    #[n(2)]
    EndOfData,
    #[n(3)]
    Failed(#[n(0)] FarFailure),
}

/// A [`DeviceStatus`](crate::DeviceStatus).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(super) struct StatusWords {
    /// Its flags in their order, from bit 0.
    #[n(0)]
    pub(super) flags: u8,
    #[n(1)]
    pub(super) block_bytes: u32,
    #[n(2)]
    pub(super) density: u8,
}

/// A [`RingEnd`](crate::RingEnd).
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(super) struct RingWords {
    #[n(0)]
    pub(super) stop: StopWord,
    /// Lengths of records that are kept; 0 is a mark.
    #[n(1)]
    pub(super) left: Vec<u32>,
    /// The serial number of the first kept record; the others follow, marks have none.
    #[n(2)]
    pub(super) first_serial: u64,
    #[n(3)]
    pub(super) first_left: u64,
    #[n(4)]
    pub(super) starts: u64,
    #[n(5)]
    pub(super) rewrites: u32,
}

/// Why a ring took no more.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub(super) enum StopWord {
    #[n(0)]
    Ended,
    #[n(1)]
    Full,
    #[n(2)]
    Failed(#[n(0)] FarFailure),
}

/// Returns words and a body as they are sent.
pub(super) fn packed<T: Encode<()>>(words: &T, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    // A `Vec` takes all bytes.
    let _ = minicbor::encode(words, &mut bytes);
    let len = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Takes words and their body apart.
///
/// # Errors
/// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) for anything else.
pub(super) fn unpacked<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Result<(T, &'b [u8])> {
    let (len, rest) = bytes.split_first_chunk().ok_or_else(not_understood)?;
    let len = u32::from_le_bytes(*len) as usize;
    let (words, body) = rest.split_at_checked(len).ok_or_else(not_understood)?;
    let words = decode_bounded(words, MOST_VALUES);
    let words = words.map_err(|error| not_understood().because(error))?;
    Ok((words, body))
}

/// The error for a question or an answer that the other side should not send.
pub(super) fn not_understood() -> Error {
    Error::corrupt(
        "cannot go on with the tape: the other side says something that is not understood",
    )
}
