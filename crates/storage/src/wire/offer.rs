//! What one side of a session offers to the other: a table of services by number.
//!
//! A service that is not in the table is refused before memory is taken for its data, so a side has no rights but those that it was
//! given by an entry.

use super::peer::PeerSide;
use crate::Objects;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::ByteBudget;
use fullbore_wire::{object_call::ObjectBody, service::ServiceNumber};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// Bytes of answers that are read from the storage and not yet sent, unless one is alone. A worker waits for room before it reads.
pub const ANSWER_WINDOW: usize = 32 << 20;

/// A service that answers questions. Both are bytes whose meaning is the service's.
pub trait WireService: fmt::Debug + Send + Sync {
    /// Returns the bytes of memory that a question takes here, until its answer is sent. A worker waits for that room before it asks.
    fn room_bytes(&self, question: &[u8]) -> usize;

    /// Answers a question, from any thread.
    ///
    /// # Errors
    /// Those of the question; the other side gets their words.
    fn answer(&self, question: &[u8], peer: &PeerSide) -> Result<Vec<u8>>;
}

/// The service of objects: locations that the other side may open, one in each session.
pub trait ObjectService: fmt::Debug + Send + Sync {
    /// Returns the bytes of the data of a call that this side takes, at most those that any side may send. Asked before any of them is
    /// kept.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if such a call is not allowed; its data is dropped then.
    fn body_limit(&self, body: ObjectBody) -> Result<u64>;

    /// Returns the objects at a location, a word of the command line; for an empty word those that this side offers by itself.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if they are not offered; the storage's.
    fn open(&self, location: &[u8]) -> Result<Arc<dyn Objects>>;
}

/// The services that one side offers.
#[derive(Debug, Clone)]
pub struct Offer {
    objects: Option<Arc<dyn ObjectService>>,
    services: BTreeMap<ServiceNumber, Arc<dyn WireService>>,
    /// Room for the answers of a session: that of all sessions of one host, if they share it.
    answers: Arc<ByteBudget>,
    /// The error for services that are not offered, if it is a special one.
    refusal: Option<fn() -> Error>,
}

impl Offer {
    /// Offers nothing.
    pub fn none() -> Self {
        Self {
            objects: None,
            services: BTreeMap::new(),
            answers: Arc::new(ByteBudget::new(ANSWER_WINDOW)),
            refusal: None,
        }
    }

    /// Offers nothing, and says why.
    pub fn refusing(reason: fn() -> Error) -> Self {
        Self {
            refusal: Some(reason),
            ..Self::none()
        }
    }

    /// Offers objects, too.
    #[must_use]
    pub fn objects(mut self, service: impl ObjectService + 'static) -> Self {
        self.objects = Some(Arc::new(service));
        self
    }

    /// Offers a service, too.
    #[must_use]
    pub fn service(mut self, number: ServiceNumber, service: impl WireService + 'static) -> Self {
        self.services.insert(number, Arc::new(service));
        self
    }

    /// Takes the room for answers from `room`, which other sessions may share.
    #[must_use]
    pub fn with_room(mut self, room: Arc<ByteBudget>) -> Self {
        self.answers = room;
        self
    }

    /// Returns the numbers of all services that are offered.
    pub fn numbers(&self) -> Vec<ServiceNumber> {
        let objects = self.objects.iter().map(|_| ServiceNumber::OBJECTS);
        objects.chain(self.services.keys().copied()).collect()
    }

    pub(super) fn answer_room(&self) -> &Arc<ByteBudget> {
        &self.answers
    }

    /// Returns a service of the table.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if it is not offered.
    pub(super) fn service_at(&self, number: ServiceNumber) -> Result<&dyn WireService> {
        let service = self.services.get(&number);
        service
            .map(|found| &**found)
            .ok_or_else(|| self.refused(number))
    }

    /// Returns the service of objects.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if it is not offered.
    pub(super) fn object_service(&self) -> Result<&dyn ObjectService> {
        let service = self.objects.as_deref();
        service.ok_or_else(|| self.refused(ServiceNumber::OBJECTS))
    }

    fn refused(&self, number: ServiceNumber) -> Error {
        let no_reason = || not_offered(number.words());
        self.refusal.map_or_else(no_reason, |reason| reason())
    }
}

/// Objects that are offered by themselves, whatever location is asked for, and for every use.
#[derive(Debug)]
pub struct OfferedObjects(Arc<dyn Objects>);

impl OfferedObjects {
    /// Offers objects.
    pub fn new(objects: Arc<dyn Objects>) -> Self {
        Self(objects)
    }
}

impl ObjectService for OfferedObjects {
    fn body_limit(&self, body: ObjectBody) -> Result<u64> {
        Ok(body.max_bytes())
    }

    fn open(&self, _: &[u8]) -> Result<Arc<dyn Objects>> {
        Ok(self.0.clone())
    }
}

/// Answers by a function, without room of its own.
struct AnswerBy<F>(F);

impl<F> fmt::Debug for AnswerBy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnswerBy")
    }
}

impl<F> WireService for AnswerBy<F>
where
    F: Fn(&[u8], &PeerSide) -> Result<Vec<u8>> + Send + Sync,
{
    fn room_bytes(&self, _: &[u8]) -> usize {
        0
    }

    fn answer(&self, question: &[u8], peer: &PeerSide) -> Result<Vec<u8>> {
        (self.0)(question, peer)
    }
}

/// Returns a service that answers by a function, and whose questions take no room of their own.
pub fn answer_by(
    answer: impl Fn(&[u8], &PeerSide) -> Result<Vec<u8>> + Send + Sync + 'static,
) -> impl WireService + 'static {
    AnswerBy(answer)
}

/// Returns the error of a side that does not offer `what`.
pub fn not_offered(what: &str) -> Error {
    Error::new(
        ErrorKind::Permission,
        format!("cannot do this: this host does not offer {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryObjects;

    #[test]
    fn only_services_of_the_table_are_offered() {
        let objects = Arc::new(MemoryObjects::new());
        let offer = Offer::none().objects(OfferedObjects::new(objects));
        offer.object_service().unwrap();
        for number in 1..20 {
            let error = offer.service_at(ServiceNumber(number)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Permission);
        }
        let full = Offer::refusing(|| Error::new(ErrorKind::Unreachable, "it is full"));
        assert_eq!(
            full.object_service().unwrap_err().kind,
            ErrorKind::Unreachable
        );
        let error = full.service_at(ServiceNumber::COPY).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unreachable);
    }
}
