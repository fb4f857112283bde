//! Repositories of another process: the suite of all storages over a connection, connections that end or lie, and whole commands over ssh.

mod confined;
mod connection;
mod connections;
mod far_source;
mod faults;
mod faults_far;
mod hostile;
mod hostile_far;
mod hostile_files;
mod installed;
mod kept_manifest;
mod listening;
mod namespaces;
mod over_ssh;
mod round_trips;
mod tapes;

use crate::storage::suite::{self, Fixture, suite};
use fullbore_format::error::Result;
use fullbore_storage::{
    Allowed, AppendRules, Confined, LocalObjects, MemoryObjects, Objects, Recording, SystemClock,
    wire::{
        Offer, OfferedObjects, ServiceNumber, Wire, WireObjects, WireStreams, WireTimes,
        command_service,
    },
};
use std::{
    ffi::OsStr,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};
use testkit::sshd;

/// Signs of life come so often that a test need not wait long for one that does not.
pub(crate) const TIMES: WireTimes = WireTimes {
    beat: Duration::from_millis(100),
    silence: Duration::from_secs(5),
    greeting: Duration::from_secs(20),
    idle: None,
};

/// Both ends of a socket.
pub(crate) fn socket() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

pub(crate) fn streams(socket: UnixStream) -> WireStreams {
    WireStreams {
        input: OwnedFd::from(socket.try_clone().unwrap()),
        output: OwnedFd::from(socket),
    }
}

/// Offers objects, and to run commands, which do nothing.
fn offer_of(objects: Arc<dyn Objects>) -> Offer {
    Offer::none()
        .objects(OfferedObjects::new(objects))
        .service(ServiceNumber::COMMANDS, command_service(|_, _| Ok(0)))
}

/// Serves objects in a thread until the connection ends.
pub(crate) fn serve(socket: UnixStream, objects: Arc<dyn Objects>) -> JoinHandle<Result<()>> {
    thread::spawn(move || {
        Wire::connect(streams(socket), "\"near\"", offer_of(objects), TIMES)?.wait()
    })
}

pub(crate) fn connect(socket: UnixStream) -> Result<WireObjects> {
    let wire = Wire::connect(streams(socket), "\"far\"", Offer::none(), TIMES)?;
    Arc::new(wire).objects(OsStr::new("any"), "ssh://far/any")
}

/// Objects as another process would see them.
pub(crate) fn far(objects: Arc<dyn Objects>) -> WireObjects {
    far_over(socket(), objects)
}

/// As [`far`], over a socket with these ends.
pub(crate) fn far_over(
    (near, far): (UnixStream, UnixStream),
    objects: Arc<dyn Objects>,
) -> WireObjects {
    serve(far, objects);
    connect(near).unwrap()
}

fn in_directory(make: impl Fn(Arc<dyn Objects>) -> Arc<dyn Objects>) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalObjects::new(&dir.path().join("repository"));
    Fixture {
        objects: make(Arc::new(local)),
        _kept: Some(Box::new(dir)),
    }
}

fn in_memory(make: impl Fn(Arc<dyn Objects>) -> Arc<dyn Objects>) -> Fixture {
    let memory = MemoryObjects::new().with_clock(Arc::new(SystemClock), Duration::from_millis(800));
    Fixture {
        objects: make(Arc::new(memory)),
        _kept: None,
    }
}

suite!(local, in_directory(|local| Arc::new(far(local))));
suite!(memory, in_memory(|memory| Arc::new(far(memory))));
suite!(
    over_two_connections,
    in_directory(|local| Arc::new(far(Arc::new(far(local)))))
);
suite!(
    over_sockets_of_four_kib,
    in_memory(|memory| Arc::new(far_over(faults::small_socket(), memory)))
);
suite!(
    confined_to_writing,
    in_directory(|local| Arc::new(far(Arc::new(Confined::new(
        local,
        Allowed::Write,
        &AppendRules::default()
    )))))
);
suite!(
    recorded,
    in_memory(|memory| Arc::new(Recording::new(Arc::new(far(memory)))))
);
