//! Who may hold a connection: a bounded number, and those without a session make room.

use fullbore_platform::queue::Locked;
use std::{
    collections::BTreeMap,
    net::{Shutdown, TcpStream},
    sync::{Arc, Mutex},
};

/// Connections at the same time.
pub(crate) const MAX_CONNECTIONS: usize = 64;
/// Of them, downloads.
const MAX_DOWNLOADS: usize = 24;
/// Of them, questions that start a program or search.
const MAX_QUESTIONS: usize = 4;

/// The connections that are open.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<PlaceTable>);

#[derive(Debug, Default)]
struct PlaceTable {
    last: u64,
    open: BTreeMap<u64, OpenPlace>,
}

#[derive(Debug)]
struct OpenPlace {
    socket: TcpStream,
    /// Whether the request came with a session.
    is_known: bool,
    kind: PlaceKind,
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaceKind {
    Page,
    Question,
    Download,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    /// Gives a connection a place. If all are taken, the oldest connection without a session ends; `None` if there is none.
    pub(crate) fn admit(self: &Arc<Self>, socket: &TcpStream) -> Option<Place> {
        let socket = socket.try_clone().ok()?;
        let mut table = self.0.locked();
        if table.open.len() >= MAX_CONNECTIONS {
            let oldest = table.open.iter().find(|(_, place)| !place.is_known);
            let number = oldest.map(|(number, _)| *number)?;
            if let Some(place) = table.open.remove(&number) {
                let _ = place.socket.shutdown(Shutdown::Both); // it may have gone
            }
        }
        table.last += 1;
        let number = table.last;
        table.open.insert(
            number,
            OpenPlace {
                socket,
                is_known: false,
                kind: PlaceKind::Page,
            },
        );
        Some(Place {
            places: self.clone(),
            number,
        })
    }
}

impl Place {
    /// Notes that the connection has a session.
    pub(crate) fn is_known(&self) {
        if let Some(place) = self.places.0.locked().open.get_mut(&self.number) {
            place.is_known = true;
        }
    }

    /// Returns whether the connection may do this now.
    pub(crate) fn begin(&self, kind: PlaceKind) -> bool {
        let most = match kind {
            PlaceKind::Page => MAX_CONNECTIONS,
            PlaceKind::Question => MAX_QUESTIONS,
            PlaceKind::Download => MAX_DOWNLOADS,
        };
        let mut table = self.places.0.locked();
        let others = table.open.iter();
        let others = others.filter(|(number, place)| **number != self.number && place.kind == kind);
        if others.count() >= most {
            return false;
        }
        match table.open.get_mut(&self.number) {
            Some(place) => {
                place.kind = kind;
                true
            }
            // It was closed for another one.
            None => false,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.0.locked().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair(listener: &TcpListener) -> TcpStream {
        TcpStream::connect(listener.local_addr().unwrap()).unwrap()
    }

    #[test]
    fn strangers_make_room_and_those_with_a_session_stay() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let places = Arc::<Places>::default();
        let sockets: Vec<_> = (0..MAX_CONNECTIONS + 1).map(|_| pair(&listener)).collect();
        let mut held: Vec<_> = sockets[..MAX_CONNECTIONS]
            .iter()
            .map(|socket| places.admit(socket).unwrap())
            .collect();
        held[0].is_known();
        let newest = places.admit(&sockets[MAX_CONNECTIONS]).unwrap();
        assert!(held[0].begin(PlaceKind::Page), "it has a session");
        assert!(!held[1].begin(PlaceKind::Page), "it made room");
        held.iter().for_each(Place::is_known);
        newest.is_known();
        assert!(places.admit(&sockets[0]).is_none(), "none makes room");
        held.truncate(1);
        assert!(places.admit(&sockets[0]).is_some());
    }

    #[test]
    fn downloads_and_questions_leave_places_for_pages() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let places = Arc::<Places>::default();
        let socket = pair(&listener);
        let held: Vec<_> = (0..MAX_CONNECTIONS)
            .map(|_| places.admit(&socket).unwrap())
            .collect();
        let downloads = held.iter().filter(|place| place.begin(PlaceKind::Download));
        assert_eq!(downloads.count(), MAX_DOWNLOADS);
        let rest = held[MAX_DOWNLOADS..].iter();
        let questions = rest.filter(|place| place.begin(PlaceKind::Question));
        assert_eq!(questions.count(), MAX_QUESTIONS);
    }
}
