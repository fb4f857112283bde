//! The data of calls: how much there may be of each kind, and keeping it until it is here as a whole.
//!
//! A call comes before its data. So the side that is asked knows what the data is for before it takes memory. A call that it does not allow
//! is answered at once, and the data that still comes for it is dropped.

use super::{
    WireService,
    calls::{MAX_CALLS, has_room_for_body},
    not_offered, unknown_topic,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    seal::MAX_BYTES,
};
use fullbore_wire::{
    frame::MAX_DATA,
    message::{AskTopic, Call, encode, not_a_message},
};
use minicbor::Decoder;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    num::NonZeroU64,
    sync::atomic::{AtomicUsize, Ordering::AcqRel},
};

/// What the data of a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallBody {
    /// An object.
    Object,
    /// Bytes that replace others of an upload.
    Amendment,
    /// Keys of objects to delete.
    Keys,
    /// The content of an intent.
    Intent,
    /// The arguments of a command.
    Arguments,
    /// Output of a command.
    Output,
    /// A question to the service.
    Question(AskTopic),
}

impl CallBody {
    /// What the data of a call is; `None` if it has none.
    fn of(call: &Call) -> Option<Self> {
        match call {
            Call::Put { .. } => Some(Self::Object),
            Call::Amend { .. } => Some(Self::Amendment),
            Call::Delete => Some(Self::Keys),
            Call::Lease { .. } | Call::UpdateLease { .. } => Some(Self::Intent),
            Call::Run => Some(Self::Arguments),
            Call::Output { .. } => Some(Self::Output),
            Call::Ask { topic } => Some(Self::Question(*topic)),
            _ => None,
        }
    }

    /// The error of a side that does not take it.
    pub fn not_offered(self) -> Error {
        match self {
            Self::Question(topic) => unknown_topic(topic),
            Self::Arguments => not_offered("to run commands"),
            Self::Output => not_offered("to print"),
            _ => not_offered("a repository"),
        }
    }

    /// Bytes of it at most, whoever sends it.
    pub fn max_bytes(self) -> u64 {
        match self {
            Self::Object => MAX_BYTES,
            Self::Amendment => 8 << 20,
            Self::Keys => KEYS_BYTES as u64,
            Self::Intent => 1 << 20,
            // As the system allows a program at most.
            Self::Arguments => 2 << 20,
            Self::Output => MAX_DATA as u64,
            // A tar of files of a copy may have 16 MiB, the map of a file as much.
            Self::Question(_) => 24 << 20,
        }
    }
}

/// A call that is here as a whole.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: u64,
    pub(super) call: Call,
    /// Its data, or why it is not allowed.
    pub(super) body: Result<Vec<u8>>,
}

impl Job {
    fn whole(id: u64, call: Call, body: Vec<u8>) -> Self {
        let body = Ok(body);
        Self { id, call, body }
    }

    pub(super) fn body_bytes(&self) -> usize {
        self.body.as_ref().map_or(0, Vec::len)
    }
}

/// Calls whose data is on its way, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    calls: BTreeMap<u64, ArrivingCall>,
}

#[derive(Debug)]
struct ArrivingCall {
    call: Call,
    body: Vec<u8>,
    /// Bytes that did not come yet.
    following: u64,
}

fn violated(why: &str) -> Error {
    Error::corrupt("cannot go on with the other side").because(why.to_owned())
}

impl Arriving {
    /// Takes a call with the beginning of its data. Returns it if it is whole.
    ///
    /// `held_bytes` are those of the data of all calls; the bytes that this call may have are added to them.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the other side sends more than it may.
    pub(super) fn begin(
        &mut self,
        limit: BodyLimit<'_>,
        held_bytes: &AtomicUsize,
        (id, call, following): (u64, Call, Option<NonZeroU64>),
        data: &[u8],
    ) -> Result<Option<Job>> {
        let following = following.map_or(0, NonZeroU64::get);
        let bytes = following.saturating_add(data.len() as u64);
        let kind = CallBody::of(&call);
        if bytes > kind.map_or(0, CallBody::max_bytes) {
            return Err(violated("it sends more than it may"));
        }
        let allowed = kind.map_or(Ok(()), |kind| limit.check(kind, bytes));
        if let Err(refused) = allowed {
            let body = Err(refused);
            return Ok(Some(Job { id, call, body }));
        }
        let body = held_body(held_bytes, bytes as usize, data)?;
        if following == 0 {
            return Ok(Some(Job::whole(id, call, body)));
        }
        let arriving = ArrivingCall {
            call,
            body,
            following,
        };
        let is_second = self.calls.insert(id, arriving).is_some();
        if is_second || self.calls.len() > MAX_CALLS {
            return Err(violated("it makes more calls than it may"));
        }
        Ok(None)
    }

    /// Takes further data of a call. Returns the call if it is whole. Drops data of a call that was refused.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the other side announced less for this call.
    pub(super) fn add_part(&mut self, id: u64, data: &[u8]) -> Result<Option<Job>> {
        let Entry::Occupied(mut found) = self.calls.entry(id) else {
            return Ok(None);
        };
        let arriving = found.get_mut();
        let left = arriving.following.checked_sub(data.len() as u64);
        let left = left.filter(|_| !data.is_empty());
        arriving.following = left.ok_or_else(|| violated("it sends more than it may"))?;
        arriving.body.extend_from_slice(data);
        if arriving.following > 0 {
            return Ok(None);
        }
        let whole = found.remove();
        Ok(Some(Job::whole(id, whole.call, whole.body)))
    }
}

/// How much data this side takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyLimit<'s> {
    pub(super) service: &'s dyn WireService,
    /// Bytes of an object, by the data of the session.
    pub(super) object_bytes: u64,
}

impl BodyLimit<'_> {
    /// Refuses data that this side does not take.
    fn check(self, kind: CallBody, bytes: u64) -> Result<()> {
        let mut most = self.service.body_limit(kind)?;
        if kind == CallBody::Object {
            most = most.min(self.object_bytes);
        }
        if bytes <= most {
            return Ok(());
        }
        let what = format!("cannot take {bytes} bytes at once from this host");
        Err(Error::new(ErrorKind::Permission, what).because(format!("it may send {most}")))
    }
}

/// Room for data, with its beginning.
fn held_body(held_bytes: &AtomicUsize, bytes: usize, data: &[u8]) -> Result<Vec<u8>> {
    let before = held_bytes.fetch_add(bytes, AcqRel);
    if !has_room_for_body(before, bytes) {
        return Err(violated("it sends more than it may"));
    }
    let mut body = Vec::with_capacity(bytes);
    body.extend_from_slice(data);
    Ok(body)
}

/// Keys of one call that deletes objects, and their bytes, at most.
const MAX_KEYS: usize = 4096;
const KEYS_BYTES: usize = 512 << 10;

/// Bytes of a key beside its text.
const KEY_HEAD_BYTES: usize = 3;

/// The keys of a delete as they are sent, in as many calls as they need.
pub(super) fn key_batches(keys: &[String]) -> Vec<&[String]> {
    let mut batches = Vec::new();
    let mut left = keys;
    while !left.is_empty() {
        let mut bytes = KEY_HEAD_BYTES;
        let fits = |key: &&String| {
            bytes += key.len() + KEY_HEAD_BYTES;
            bytes <= KEYS_BYTES
        };
        let count = left.iter().take(MAX_KEYS).take_while(fits).count();
        let (batch, rest) = left.split_at(count.max(1));
        batches.push(batch);
        left = rest;
    }
    batches
}

/// The keys of a batch, as they are sent.
pub(super) fn encode_keys(keys: &[String]) -> Vec<u8> {
    encode(&keys)
}

/// The keys of a delete. The storage refuses those that cannot be used, and deletes the others.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if they are none or too many.
pub(super) fn decode_keys(bytes: &[u8]) -> Result<Vec<String>> {
    let refused = |error| not_a_message().because(error);
    let mut decoder = Decoder::new(bytes);
    let count = decoder.array().map_err(refused)?.unwrap_or(u64::MAX);
    if count > MAX_KEYS as u64 {
        let what = format!("cannot delete {count} objects with one call");
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    let mut keys = Vec::new();
    for _ in 0..count {
        let key = decoder.str().map_err(refused)?;
        keys.push(key.to_owned());
    }
    match decoder.position() == bytes.len() {
        true => Ok(keys),
        false => Err(not_a_message().because("bytes follow it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{NoService, OfferedObjects, calls::BODY_WINDOW};
    use crate::{MemoryObjects, PutIf};
    use std::sync::Arc;

    #[test]
    fn batches_of_keys_fit_their_calls_and_are_all_keys() {
        let short = |count| {
            (0..count)
                .map(|number| number.to_string())
                .collect::<Vec<_>>()
        };
        let long = |count| vec!["k".repeat(512); count];
        for keys in [short(0), short(1), short(10_000), long(5000)] {
            let batches = key_batches(&keys);
            assert_eq!(batches.concat(), keys);
            for batch in batches {
                let bytes = encode_keys(batch);
                assert!(bytes.len() <= KEYS_BYTES, "{}", bytes.len());
            }
        }
    }

    #[test]
    fn keys_are_counted_before_memory_is_taken_for_them() {
        let keys = vec!["a/b".to_owned(), "c".to_owned()];
        assert_eq!(decode_keys(&encode_keys(&keys)).unwrap(), keys);
        let many = encode_keys(&vec![String::new(); MAX_KEYS + 1]);
        assert_eq!(decode_keys(&many).unwrap_err().kind, ErrorKind::Corrupt);
        assert!(decode_keys(&[0x9f, 0xff]).is_err());
        assert!(decode_keys(&[0x80, 0]).is_err());
    }

    fn put(id: u64, following: u64) -> (u64, Call, Option<NonZeroU64>) {
        let condition = fullbore_wire::message::Condition::of(&PutIf::Always);
        let key = "a".to_owned();
        (id, Call::Put { key, condition }, NonZeroU64::new(following))
    }

    fn limit(service: &dyn WireService) -> BodyLimit<'_> {
        BodyLimit {
            service,
            object_bytes: MAX_BYTES,
        }
    }

    #[test]
    fn a_call_that_is_not_allowed_is_refused_at_once_and_its_data_is_dropped() {
        let held = AtomicUsize::new(0);
        let mut arriving = Arriving::default();
        let job = arriving.begin(limit(&NoService), &held, put(1, 3), b"ab");
        let job = job.unwrap().unwrap();
        assert_eq!(job.body.unwrap_err().kind, ErrorKind::Permission);
        assert!(arriving.add_part(1, b"c").unwrap().is_none());
        assert!(arriving.add_part(1, b"de").unwrap().is_none());
        assert_eq!(held.into_inner(), 0);
    }

    #[test]
    fn more_data_than_was_announced_or_is_allowed_ends_the_session() {
        let service = OfferedObjects::new(Arc::new(MemoryObjects::new()));
        let service = limit(&service);
        let held = AtomicUsize::new(0);
        let mut arriving = Arriving::default();
        arriving.begin(service, &held, put(1, 2), b"").unwrap();
        arriving.add_part(1, b"").unwrap_err();
        arriving.begin(service, &held, put(2, 2), b"").unwrap();
        arriving.add_part(2, b"abc").unwrap_err();
        let stat = (3, Call::Stat { key: "a".into() }, None);
        arriving.begin(service, &held, stat, b"a").unwrap_err();
        let longest = put(4, MAX_BYTES + 1);
        arriving.begin(service, &held, longest, b"").unwrap_err();
        let window = put(5, BODY_WINDOW as u64);
        arriving.begin(service, &held, window, b"").unwrap_err();
    }
}
