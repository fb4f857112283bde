//! The data of calls: how much there may be of each kind, and keeping it until it is here as a whole.
//!
//! A call comes before its data. So the side that is asked knows what the data is for before it takes memory. A call that it does not allow
//! or does not understand is answered at once, and the data that still comes for it is dropped.

use super::{
    calls::{MAX_CALLS, has_room_for_body},
    end::violated,
    offer::Offer,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_wire::{
    message::{Call, MAX_VALUES, decode},
    object_call::{ObjectBody, ObjectCall},
    service::ServiceNumber,
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    num::NonZeroU64,
    sync::atomic::{AtomicUsize, Ordering::AcqRel},
};

/// A call that this side is asked.
#[derive(Debug)]
pub(super) enum AskedCall {
    /// Of the service of objects.
    Objects(ObjectCall),
    /// Of another service, whose data is the question.
    Service(ServiceNumber),
}

impl AskedCall {
    /// Reads the question of a call.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if there is none, or it is none of the service; the other side gets the words.
    pub(super) fn read(call: Option<&Call>) -> Result<Self> {
        let call = call.ok_or_else(not_understood)?;
        match call.service {
            ServiceNumber::OBJECTS => {
                let question = decode(&call.question, MAX_VALUES);
                question.map(Self::Objects).map_err(|_| not_understood())
            }
            service if call.question.is_empty() => Ok(Self::Service(service)),
            _ => Err(not_understood()),
        }
    }
}

fn not_understood() -> Error {
    let message = "cannot do this: this host does not understand the call";
    Error::new(ErrorKind::Unsupported, message)
}

/// How much data a call may have.
#[derive(Debug)]
pub(super) struct BodyLimit {
    /// Bytes at most, whoever sends them: more ends the session.
    pub(super) protocol_bytes: u64,
    /// Bytes that this side takes, or why it takes none: more is refused.
    pub(super) allowed_bytes: Result<u64>,
}

impl BodyLimit {
    /// Returns the limit of a call. `object_bytes` are those of an object, by the data of the session.
    pub(super) fn of(call: &AskedCall, offer: &Offer, object_bytes: u64) -> Self {
        match call {
            AskedCall::Objects(call) => Self::of_objects(call.body(), offer, object_bytes),
            AskedCall::Service(number) => {
                let max_bytes = number.max_body_bytes();
                Self {
                    // The data of a service that this version does not know may be of any length: it is dropped.
                    protocol_bytes: max_bytes.unwrap_or(u64::MAX),
                    allowed_bytes: offer.service_at(*number).map(|_| max_bytes.unwrap_or(0)),
                }
            }
        }
    }

    fn of_objects(body: Option<ObjectBody>, offer: &Offer, object_bytes: u64) -> Self {
        let Some(body) = body else {
            return Self {
                protocol_bytes: 0,
                allowed_bytes: Ok(0),
            };
        };
        let service = offer.object_service();
        let allowed_bytes = service.and_then(|service| service.body_limit(body));
        Self {
            protocol_bytes: body.max_bytes(),
            allowed_bytes: match body {
                ObjectBody::Object => allowed_bytes.map(|bytes| bytes.min(object_bytes)),
                _ => allowed_bytes,
            },
        }
    }

    /// Refuses data that this side does not take.
    fn check(self, bytes: u64) -> Result<()> {
        let most = self.allowed_bytes?;
        if bytes <= most {
            return Ok(());
        }
        let message = format!("cannot take {bytes} bytes at once from this host");
        Err(Error::new(ErrorKind::Permission, message).because(format!("it may send {most}")))
    }
}

/// A call that is here as a whole, or is refused.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: u64,
    /// The call and its data, or why it is not done.
    pub(super) asked: Result<(AskedCall, Vec<u8>)>,
}

impl Job {
    fn whole(id: u64, call: AskedCall, body: Vec<u8>) -> Self {
        let asked = Ok((call, body));
        Self { id, asked }
    }

    pub(super) fn refused(id: u64, error: Error) -> Self {
        let asked = Err(error);
        Self { id, asked }
    }

    pub(super) fn body_bytes(&self) -> usize {
        self.asked.as_ref().map_or(0, |(_, body)| body.len())
    }
}

/// Calls whose data is on its way, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    calls: BTreeMap<u64, ArrivingCall>,
}

#[derive(Debug)]
struct ArrivingCall {
    call: AskedCall,
    body: Vec<u8>,
    /// Bytes that did not come yet.
    following: u64,
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
        limit: BodyLimit,
        held_bytes: &AtomicUsize,
        (id, call, following): (u64, AskedCall, Option<NonZeroU64>),
        data: &[u8],
    ) -> Result<Option<Job>> {
        let following = following.map_or(0, NonZeroU64::get);
        let bytes = following.saturating_add(data.len() as u64);
        if bytes > limit.protocol_bytes {
            return Err(violated("it sends more than it may"));
        }
        if let Err(refused) = limit.check(bytes) {
            return Ok(Some(Job::refused(id, refused)));
        }
        // Room for all that was announced is taken now, so that calls cannot grow beyond it together.
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

/// Takes room for data, with its beginning.
fn held_body(held_bytes: &AtomicUsize, bytes: usize, data: &[u8]) -> Result<Vec<u8>> {
    let before = held_bytes.fetch_add(bytes, AcqRel);
    if !has_room_for_body(before, bytes) {
        return Err(violated("it sends more than it may"));
    }
    let mut body = Vec::with_capacity(bytes);
    body.extend_from_slice(data);
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{OfferedObjects, calls::BODY_WINDOW};
    use crate::{MemoryObjects, PutIf};
    use fullbore_format::seal::MAX_BYTES;
    use fullbore_wire::object_call::Condition;
    use std::sync::Arc;

    type BegunCall = (u64, AskedCall, Option<NonZeroU64>);

    fn call(id: u64, call: ObjectCall, following: u64) -> BegunCall {
        (id, AskedCall::Objects(call), NonZeroU64::new(following))
    }

    fn put(id: u64, following: u64) -> BegunCall {
        let condition = Condition::of(&PutIf::Always);
        let key = "a".to_owned();
        call(id, ObjectCall::Put { key, condition }, following)
    }

    fn begin(
        arriving: &mut Arriving,
        offer: &Offer,
        held: &AtomicUsize,
        begun: BegunCall,
        data: &[u8],
    ) -> Result<Option<Job>> {
        let limit = BodyLimit::of(&begun.1, offer, MAX_BYTES);
        arriving.begin(limit, held, begun, data)
    }

    #[test]
    fn a_call_that_is_not_allowed_is_refused_at_once_and_its_data_is_dropped() {
        let (held, none) = (AtomicUsize::new(0), Offer::none());
        let mut arriving = Arriving::default();
        let question = AskedCall::Service(ServiceNumber::COPY);
        let question = (2, question, NonZeroU64::new(3));
        let unknown = AskedCall::Service(ServiceNumber(999));
        let unknown = (3, unknown, NonZeroU64::new(u64::MAX));
        for (id, begun) in [(1, put(1, 3)), (2, question), (3, unknown)] {
            let job = begin(&mut arriving, &none, &held, begun, b"ab");
            let job = job.unwrap().unwrap();
            assert_eq!(job.asked.unwrap_err().kind, ErrorKind::Permission);
            assert!(arriving.add_part(id, b"c").unwrap().is_none());
            assert!(arriving.add_part(id, b"de").unwrap().is_none());
        }
        assert_eq!(held.into_inner(), 0);
    }

    #[test]
    fn more_data_than_was_announced_or_is_allowed_ends_the_session() {
        let objects = OfferedObjects::new(Arc::new(MemoryObjects::new()));
        let offer = Offer::none().objects(objects);
        let held = AtomicUsize::new(0);
        let mut arriving = Arriving::default();
        let mut send = |begun, data: &[u8]| begin(&mut arriving, &offer, &held, begun, data);
        send(put(1, 2), b"").unwrap();
        send(put(2, 2), b"").unwrap();
        let stat = call(3, ObjectCall::Stat { key: "a".into() }, 0);
        send(stat, b"a").unwrap_err();
        send(put(4, MAX_BYTES + 1), b"").unwrap_err();
        send(put(5, BODY_WINDOW as u64), b"").unwrap_err();
        arriving.add_part(1, b"").unwrap_err();
        arriving.add_part(2, b"abc").unwrap_err();
    }
}
