//! Who may hold connections to a server: strangers a few for a short time, and the holder of a certificate a part of its own.
//!
//! A new stranger is never refused. It takes the place of another one, of the address that holds the most places. So whoever holds all
//! places cannot keep out a host that shows its certificate at once, unless it makes hundreds of connections within the time of a
//! handshake.

use fullbore_platform::queue::Locked;
use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
    net::{IpAddr, Shutdown, TcpStream},
    sync::{Arc, Mutex},
};

/// Connections that have shown no certificate, at the same time.
pub(super) const MAX_STRANGERS: usize = 128;

/// Of them, those of one IPv4 address or one /64 of IPv6.
const MAX_OF_ADDRESS: usize = 32;

/// Sessions of one certificate, at the same time.
pub(super) const MAX_SESSIONS: usize = 16;

/// Connections of one certificate, at the same time: each session may have several.
const MAX_CONNECTIONS: usize = 64;

/// The part of an address that one host has for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AddressGroup([u8; 8]);

impl AddressGroup {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self((u64::from(v4.to_bits()) | 0xffff << 32).to_be_bytes()),
            IpAddr::V6(v6) => Self(((v6.to_bits() >> 64) as u64).to_be_bytes()),
        }
    }
}

/// Connections that have shown no certificate.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<StrangerTable>);

#[derive(Debug, Default)]
struct StrangerTable {
    last: u64,
    by_number: BTreeMap<u64, Stranger>,
}

#[derive(Debug)]
struct Stranger {
    group: AddressGroup,
    socket: TcpStream,
}

/// The place of a stranger, until it is known or gone.
#[derive(Debug)]
pub(super) struct StrangerPlace {
    strangers: Arc<Strangers>,
    number: u64,
}

impl StrangerTable {
    /// Returns the stranger to close for a new one of this group, if one must be.
    fn to_close(&self, group: AddressGroup, random: u64) -> Option<u64> {
        let mut counts = BTreeMap::<AddressGroup, usize>::new();
        for stranger in self.by_number.values() {
            *counts.entry(stranger.group).or_default() += 1;
        }
        let is_greedy = counts.get(&group).is_some_and(|n| *n >= MAX_OF_ADDRESS);
        let largest = || counts.iter().max_by_key(|(_, count)| **count);
        let origin = match () {
            () if is_greedy => group,
            () if self.by_number.len() >= MAX_STRANGERS => *largest()?.0,
            () => return None,
        };
        // At random, so that an attacker cannot choose which connection is closed.
        let count = counts.get(&origin).copied().unwrap_or(1) as u64;
        let of_group = self.by_number.iter().filter(|(_, s)| s.group == origin);
        let mut numbers = of_group.map(|(number, _)| *number);
        numbers.nth((random % count) as usize)
    }
}

impl Strangers {
    /// Gives a new connection a place, and closes a random one of the same address, or of the address that has the most, if there is no
    /// place.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        socket: &TcpStream,
    ) -> std::io::Result<StrangerPlace> {
        let stranger = Stranger {
            group: AddressGroup::of(address),
            socket: socket.try_clone()?,
        };
        let random = RandomState::new().build_hasher().finish();
        let mut table = self.0.locked();
        if let Some(closed) = table.to_close(stranger.group, random)
            && let Some(other) = table.by_number.remove(&closed)
        {
            let _ = other.socket.shutdown(Shutdown::Both); // one that has gone needs no end
        }
        table.last += 1;
        let number = table.last;
        table.by_number.insert(number, stranger);
        drop(table);
        Ok(StrangerPlace {
            strangers: self.clone(),
            number,
        })
    }
}

impl Drop for StrangerPlace {
    fn drop(&mut self) {
        self.strangers.0.locked().by_number.remove(&self.number);
    }
}

/// Connections of those who have shown a certificate, by the digest of the certificate.
#[derive(Debug, Default)]
pub(super) struct KnownHosts(Mutex<BTreeMap<[u8; 32], HostLoad>>);

#[derive(Debug, Default, Clone, Copy)]
struct HostLoad {
    connections: usize,
    sessions: usize,
}

/// A connection of a certificate, while it lasts.
#[derive(Debug)]
pub(super) struct KnownConnection {
    hosts: Arc<KnownHosts>,
    certificate: [u8; 32],
    has_session: bool,
}

impl KnownHosts {
    /// Counts a connection of a certificate; `None` if it has too many.
    pub(super) fn admit(self: &Arc<Self>, certificate: &[u8]) -> Option<KnownConnection> {
        let certificate = *blake3::hash(certificate).as_bytes();
        let mut hosts = self.0.locked();
        let load = hosts.entry(certificate).or_default();
        if load.connections >= MAX_CONNECTIONS {
            return None;
        }
        load.connections += 1;
        drop(hosts);
        Some(KnownConnection {
            hosts: self.clone(),
            certificate,
            has_session: false,
        })
    }
}

impl KnownConnection {
    /// Counts a session that this connection begins. Returns whether it may.
    pub(super) fn begin_session(&mut self) -> bool {
        let mut hosts = self.hosts.0.locked();
        let load = hosts.entry(self.certificate).or_default();
        self.has_session = load.sessions < MAX_SESSIONS;
        load.sessions += usize::from(self.has_session);
        self.has_session
    }
}

impl Drop for KnownConnection {
    fn drop(&mut self) {
        let mut hosts = self.hosts.0.locked();
        if let Some(load) = hosts.get_mut(&self.certificate) {
            load.connections -= 1;
            load.sessions -= usize::from(self.has_session);
            if load.connections == 0 {
                hosts.remove(&self.certificate);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, net::TcpListener, time::Duration};

    struct Door {
        listener: TcpListener,
        strangers: Arc<Strangers>,
    }

    impl Door {
        fn new() -> Self {
            Self {
                listener: TcpListener::bind("127.0.0.1:0").unwrap(),
                strangers: Arc::default(),
            }
        }

        /// A connection that claims this address.
        fn connect(&self, address: [u8; 4]) -> (TcpStream, StrangerPlace) {
            let near = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
            let (far, _) = self.listener.accept().unwrap();
            let place = self.strangers.admit(address.into(), &far).unwrap();
            (near, place)
        }
    }

    fn is_open(near: &mut TcpStream) -> bool {
        let _ = near.set_read_timeout(Some(Duration::from_millis(1)));
        near.read(&mut [0]).is_err()
    }

    #[test]
    fn strangers_of_one_address_take_places_of_each_other_only() {
        let door = Door::new();
        let (mut other, _other) = door.connect([10, 0, 0, 2]);
        let mut all: Vec<_> = (0..200).map(|_| door.connect([10, 0, 0, 1])).collect();
        let open = all
            .iter_mut()
            .filter_map(|(near, _)| is_open(near).then_some(()));
        assert_eq!(open.count(), MAX_OF_ADDRESS);
        assert!(is_open(&mut other));
        assert!(
            is_open(&mut all.last_mut().unwrap().0),
            "a new one has a place"
        );
    }

    #[test]
    fn strangers_of_many_addresses_leave_a_host_its_place() {
        let door = Door::new();
        let (mut host, _host) = door.connect([10, 0, 0, 1]);
        let many = (0..300).map(|number| door.connect([10, 1, 0, (number % 60) as u8]));
        let mut all: Vec<_> = many.collect();
        let open = all
            .iter_mut()
            .filter_map(|(near, _)| is_open(near).then_some(()));
        assert_eq!(open.count() + 1, MAX_STRANGERS);
        assert!(is_open(&mut host));
        drop(all);
        assert_eq!(door.strangers.0.locked().by_number.len(), 1);
    }

    #[test]
    fn a_certificate_has_a_part_of_its_own() {
        let hosts = Arc::<KnownHosts>::default();
        let mut of_one: Vec<_> = std::iter::from_fn(|| hosts.admit(b"one")).collect();
        assert_eq!(of_one.len(), MAX_CONNECTIONS);
        let begun = of_one
            .iter_mut()
            .filter_map(|one| one.begin_session().then_some(()));
        assert_eq!(begun.count(), MAX_SESSIONS);
        let mut other = hosts.admit(b"other").unwrap();
        assert!(other.begin_session());
        drop(of_one);
        assert!(hosts.admit(b"one").unwrap().begin_session());
        drop(other);
        assert!(hosts.0.locked().is_empty());
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_and_mapped_ones_are_those_of_ipv4() {
        let group = |address: &str| AddressGroup::of(address.parse().unwrap());
        assert_eq!(group("2001:db8::1"), group("2001:db8::ffff:2"));
        assert_ne!(group("2001:db8::1"), group("2001:db8:0:1::1"));
        assert_eq!(group("::ffff:10.0.0.1"), group("10.0.0.1"));
        assert_ne!(group("10.0.0.1"), group("10.0.0.2"));
    }
}
