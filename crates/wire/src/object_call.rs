//! The words of the service of objects.

use crate::{PutIf, Take, Version};
use fullbore_format::seal::MAX_BYTES;
use minicbor::{Decode, Encode, bytes::ByteVec};

/// A question to the service of objects: a function of `Objects`, of an upload or of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum ObjectCall {
    /// Opens the objects at a location; all later calls are about them, and may be sent before the answer.
    #[n(0)]
    Open {
        /// A word of the command line; empty for what the other side offers by itself.
        #[n(0)]
        location: ByteVec,
    },
    /// Answered by pages, as of [`crate::listing`].
    #[n(1)]
    List {
        /// As of `Objects::list`.
        #[n(0)]
        prefix: String,
    },
    /// Answered by the bytes.
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
    /// Answered by [`ObjectAnswer::Got`].
    #[n(3)]
    Get {
        /// The object.
        #[n(0)]
        key: String,
    },
    /// Answered by [`ObjectAnswer::Size`].
    #[n(4)]
    Stat {
        /// The object.
        #[n(0)]
        key: String,
    },
    /// Stores the data; answered by [`ObjectAnswer::Put`].
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
    #[n(6)]
    Amend {
        /// The upload.
        #[n(0)]
        upload: u64,
        /// Where.
        #[n(1)]
        offset: u64,
    },
    /// Answered by [`ObjectAnswer::Finished`], the data being the digests of the parts.
    #[n(7)]
    Finish {
        /// The upload.
        #[n(0)]
        upload: u64,
    },
    /// Gives up an upload.
    #[n(8)]
    Abort {
        /// The upload.
        #[n(0)]
        upload: u64,
    },
    /// Deletes the objects whose keys are the data.
    #[n(9)]
    Delete,
    /// As of `Objects::abort_uploads`.
    #[n(10)]
    AbortUploads {
        /// The prefix.
        #[n(0)]
        prefix: String,
    },
    /// As of `Objects::settle`.
    #[n(11)]
    Settle {
        /// The prefix.
        #[n(0)]
        prefix: String,
    },
    /// Takes a lease, which has the number of this call; the data is the content of a new intent.
    #[n(12)]
    Lease {
        /// The intent.
        #[n(0)]
        key: String,
        /// As of [`Take`].
        #[n(1)]
        take: TakeWord,
    },
    /// Replaces the content of an intent by the data.
    #[n(13)]
    UpdateLease {
        /// The lease.
        #[n(0)]
        lease: u64,
    },
    /// Lets go of a lease.
    #[n(14)]
    DropLease {
        /// The lease.
        #[n(0)]
        lease: u64,
    },
}

impl ObjectCall {
    /// Returns what the data of the call is; `None` if it has none.
    pub fn body(&self) -> Option<ObjectBody> {
        match self {
            Self::Put { .. } => Some(ObjectBody::Object),
            Self::Amend { .. } => Some(ObjectBody::Amendment),
            Self::Delete => Some(ObjectBody::Keys),
            Self::Lease { .. } | Self::UpdateLease { .. } => Some(ObjectBody::Intent),
            _ => None,
        }
    }
}

/// What the data of a call of objects is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectBody {
    /// An object.
    Object,
    /// Bytes that replace others of an upload.
    Amendment,
    /// Keys of objects to delete.
    Keys,
    /// The content of an intent.
    Intent,
}

/// Bytes of the keys of one call that deletes objects, at most.
pub const KEYS_BYTES: usize = 512 << 10;

impl ObjectBody {
    /// Returns the bytes of it at most, whoever sends it.
    pub fn max_bytes(self) -> u64 {
        match self {
            Self::Object => MAX_BYTES,
            Self::Amendment => 8 << 20,
            Self::Keys => KEYS_BYTES as u64,
            Self::Intent => 1 << 20,
        }
    }
}

/// An answer of the service of objects. One that is nothing but its data has no words.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum ObjectAnswer {
    /// The objects are open.
    #[n(0)]
    Opened {
        /// As of `StorageAbilities`.
        #[n(0)]
        has_locks: bool,
        /// As of `StorageAbilities`.
        #[n(1)]
        amends: bool,
    },
    /// The version of the object that the data is, if it is there.
    #[n(1)]
    Got(#[n(0)] Option<String>),
    /// How many bytes an object has, if it is there.
    #[n(2)]
    Size(#[n(0)] Option<u64>),
    /// The version of the object that was stored; none if the condition did not hold.
    #[n(3)]
    Put(#[n(0)] Option<String>),
    /// An upload was finished, and has so many bytes.
    #[n(4)]
    Finished(#[n(0)] u64),
    /// What came of an attempt to take a lease.
    #[n(5)]
    Leased(#[n(0)] LeasedWord),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{MAX_VALUES, decode, encode};
    use proptest::prelude::*;

    #[test]
    fn calls_with_data_say_how_much_they_may_have() {
        let put = ObjectCall::Put {
            key: "a".into(),
            condition: Condition::Absent,
        };
        assert_eq!(put.body().map(ObjectBody::max_bytes), Some(MAX_BYTES));
        assert_eq!(ObjectCall::Finish { upload: 1 }.body(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_call_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(call) = decode::<ObjectCall>(&bytes, MAX_VALUES) {
                prop_assert_eq!(decode::<ObjectCall>(&encode(&call), MAX_VALUES).unwrap(), call);
            }
            let _ = decode::<ObjectAnswer>(&bytes, MAX_VALUES);
        }
    }
}
