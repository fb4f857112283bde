//! Connections whose sockets hold little, with as much as possible on its way in both directions.

use super::{
    TIMES, far_over,
    suite::{get, keys, pattern},
};
use fullbore_storage::{
    MemoryObjects, Objects,
    wire::{
        Offer, OfferedObjects, PeerSide, ServiceNumber, Wire, WireStreams, command_service,
        print_service,
    },
};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use std::{
    ffi::{OsStr, OsString},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

/// Both ends of a socket that holds about 4 KiB in each direction.
pub(crate) fn small_socket() -> (UnixStream, UnixStream) {
    let (near, far) = super::socket();
    for end in [&near, &far] {
        // The system doubles it, for what it keeps beside the bytes.
        set_socket_send_buffer_size(end, 2048).unwrap();
        set_socket_recv_buffer_size(end, 2048).unwrap();
    }
    (near, far)
}

const LINE: &[u8] = b"sub/directory/file-000001 is unchanged\n";

/// Offers objects, and prints so many lines on the other side when it is asked to run something. Counts the bytes of the output of the
/// other side.
fn printing(objects: Arc<dyn Objects>, lines: u64, heard_bytes: &Arc<AtomicU64>) -> Offer {
    let run = move |_: Vec<OsString>, peer: &PeerSide| {
        for number in 0..lines {
            peer.print(number % 2 == 0, LINE)?;
        }
        Ok(7)
    };
    let hear = || {
        let heard_bytes = heard_bytes.clone();
        print_service(move |bytes| {
            heard_bytes.fetch_add(bytes.len() as u64, Relaxed);
            Ok(())
        })
    };
    Offer::none()
        .objects(OfferedObjects::new(objects))
        .service(ServiceNumber::COMMANDS, command_service(run))
        .service(ServiceNumber::OUTPUT, hear())
        .service(ServiceNumber::ERRORS, hear())
}

/// Uploads to the other side and reads it back, while a command runs there.
fn use_everything(wire: &Arc<Wire>, seed: u64) {
    let objects = wire.objects(OsStr::new(""), "other").unwrap();
    thread::scope(|scope| {
        let command = scope.spawn(|| wire.run(&["say".into()]).unwrap());
        for number in 0..3 {
            let objects = &objects;
            scope.spawn(move || {
                let data = pattern(3_000_000, seed + number);
                let key = format!("u/{seed}-{number}");
                let mut upload = objects.create(&key).unwrap();
                data.chunks(77_777)
                    .for_each(|part| upload.append(part).unwrap());
                upload.finish().unwrap();
                let mut out = Vec::new();
                objects.read_at(&key, 0, data.len(), &mut out).unwrap();
                assert!(out == data, "{key}");
            });
        }
        assert_eq!(command.join().unwrap(), 7);
    });
}

#[test]
fn a_hundred_thousand_lines_pass_both_ways_beside_uploads_over_sockets_of_four_kib() {
    let lines = 50_000;
    let ends = small_socket();
    let start = |socket: UnixStream, seed: u64| {
        thread::spawn(move || {
            let heard_bytes = Arc::new(AtomicU64::new(0));
            let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
            let offer = printing(memory.clone(), lines, &heard_bytes);
            let streams: WireStreams = super::streams(socket);
            let wire = Wire::connect(streams, "\"other\"", offer, TIMES).unwrap();
            let wire = Arc::new(wire);
            use_everything(&wire, seed);
            (heard_bytes.load(Relaxed), memory, wire)
        })
    };
    let sides = [start(ends.0, 0), start(ends.1, 10)];
    // The connections stay until both are done.
    let done = sides.map(|side| side.join().unwrap());
    for (heard_bytes, memory, _) in &done {
        assert_eq!(*heard_bytes, lines * LINE.len() as u64);
        assert_eq!(keys(memory, "u").len(), 3);
    }
    assert_eq!(get(&done[1].1, "u/0-2").unwrap(), pattern(3_000_000, 2));
}

#[test]
fn answers_that_are_not_taken_hold_up_no_other_call() {
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let objects = far_over(small_socket(), memory);
    let data = pattern(2_000_000, 1);
    let mut upload = objects.create("large").unwrap();
    upload.append(&data).unwrap();
    upload.finish().unwrap();
    // Forty large answers and small calls at the same time: more than the sockets hold by far.
    thread::scope(|scope| {
        for number in 0..40 {
            let (objects, data) = (&objects, &data);
            scope.spawn(move || {
                let mut out = Vec::new();
                if number % 2 == 0 {
                    objects.read_at("large", 0, data.len(), &mut out).unwrap();
                    assert!(out == *data);
                } else {
                    assert_eq!(objects.stat("large").unwrap(), Some(data.len() as u64));
                }
            });
        }
    });
}
