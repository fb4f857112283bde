//! Connections that end, freeze, or say what is not true.

use super::{
    TIMES, connect, far, serve, socket, streams,
    suite::{get, keys, ours, pattern, put},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_storage::{
    Fault, Faulty, Leased, LocalObjects, MemoryObjects, Objects, Operation, PutIf, Recording, Take,
    wire::{Offer, OfferedObjects, Wire, WireTimes},
};
use std::{
    ffi::OsStr,
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

const INTENT: &str = "intents/20261121T054501Z-k3f9qz.json";

/// Passes bytes from one socket to another until `left` of them have passed, and then ends both.
fn pass(mut from: UnixStream, mut to: UnixStream, left: Arc<AtomicUsize>) {
    let mut bytes = vec![0; 4096];
    while let Ok(read) = from.read(&mut bytes) {
        let may = left
            .fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(read)))
            .unwrap()
            .min(read);
        if read == 0 || may == 0 || to.write_all(&bytes[..may]).is_err() || may < read {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A connection to a server that is cut after so many bytes in both directions together.
fn cut_after(
    bytes: usize,
    objects: Arc<dyn Objects>,
) -> (UnixStream, thread::JoinHandle<Result<()>>) {
    let (near, near_end) = socket();
    let (far_end, far) = socket();
    let left = Arc::new(AtomicUsize::new(bytes));
    let (a, b) = (near_end.try_clone().unwrap(), far_end.try_clone().unwrap());
    let also = left.clone();
    thread::spawn(move || pass(near_end, far_end, left));
    thread::spawn(move || pass(b, a, also));
    (near, serve(far, objects))
}

/// A backup as far as a storage sees it.
fn store_a_backup(objects: &dyn Objects, data: &[u8]) -> Result<()> {
    let Leased::Ours(mut lease) = objects.lease(INTENT, b"mine", Take::DeadOrNew)? else {
        panic!("the lease of a dead connection is held");
    };
    let mut upload = objects.create("backups/a/s1")?;
    for part in data.chunks(100_000) {
        upload.append(part)?;
    }
    upload.amend(5, b"amended")?;
    upload.finish()?;
    lease.update(b"ready")?;
    objects.put(
        "backups/a/root.json",
        b"root",
        &fullbore_storage::PutIf::Absent,
    )?;
    objects.delete(&[INTENT.to_owned()])
}

#[test]
fn a_connection_that_is_cut_anywhere_leaves_nothing_half_done_and_the_next_one_works() {
    let data = pattern(300_000, 7);
    let mut expected = data.clone();
    expected[5..12].copy_from_slice(b"amended");
    let mut done = 0;
    let mut failed = 0;
    let mut bytes = 0;
    while done < 2 {
        // Small steps where the messages are, large ones within the data.
        bytes += if !(700..=300_000).contains(&bytes) {
            19
        } else {
            20_011
        };
        let dir = tempfile::tempdir().unwrap();
        let local: Arc<dyn Objects> = Arc::new(LocalObjects::new(&dir.path().join("repository")));
        let (near, server) = cut_after(bytes, local.clone());
        let stored = connect(near).and_then(|objects| store_a_backup(&objects, &data));
        let _ = server.join().unwrap();
        match &stored {
            Ok(()) => done += 1,
            Err(error) => {
                failed += 1;
                assert_eq!(error.kind, ErrorKind::Unreachable, "{bytes}: {error:?}");
            }
        }
        // Each object is there as a whole or not at all, and the root is the last.
        let there = keys(&local, "backups");
        let has_root = there.iter().any(|key| key.ends_with("root.json"));
        for key in &there {
            let whole = if key.ends_with("s1") {
                &expected[..]
            } else {
                b"root"
            };
            assert_eq!(get(&local, key).unwrap(), whole, "{bytes}: {key}");
        }
        assert!(!has_root || there.len() == 2, "{bytes}: {there:?}");
        assert!(stored.is_err() || has_root, "{bytes}");
        if !has_root {
            store_a_backup(&far(local.clone()), &data).unwrap();
            assert_eq!(get(&local, "backups/a/s1").unwrap(), expected);
        }
    }
    assert!(failed > 40, "{failed}");
}

#[test]
fn calls_that_wait_fail_when_the_connection_ends() {
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    put(&memory, "a", b"");
    let slow = Faulty::new(memory);
    let slow = (1..=8).fold(slow, |slow, nth| {
        slow.with(Operation::Get, nth, Fault::Delay(Duration::from_secs(20)))
    });
    let (near, far) = socket();
    let server = serve(far, Arc::new(slow));
    let cut = near.try_clone().unwrap();
    let objects = connect(near).unwrap();
    thread::scope(|scope| {
        let calls: Vec<_> = (0..8).map(|_| scope.spawn(|| objects.get("a"))).collect();
        thread::sleep(Duration::from_millis(200));
        let began = Instant::now();
        cut.shutdown(Shutdown::Both).unwrap();
        for call in calls {
            let error = call.join().unwrap().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unreachable, "{error:?}");
        }
        assert!(
            began.elapsed() < Duration::from_secs(15),
            "the answer was waited for"
        );
    });
    assert_eq!(objects.get("a").unwrap_err().kind, ErrorKind::Unreachable);
    // The other side meets the end as it reads, or as it says that it is there.
    let other = server.join().unwrap();
    let is_expected = |error: &Error| error.kind == ErrorKind::Unreachable;
    assert!(other.as_ref().err().is_none_or(is_expected), "{other:?}");
}

#[test]
fn a_side_that_says_nothing_any_more_is_taken_for_dead_and_its_leases_end() {
    let local_dir = tempfile::tempdir().unwrap();
    let local: Arc<dyn Objects> = Arc::new(LocalObjects::new(&local_dir.path().join("r")));
    // Bytes stop passing after the lease was taken, and no socket ends.
    let (near, near_end) = socket();
    let (far_end, far) = socket();
    let server = serve(far, local.clone());
    let (mut a, mut b) = (near_end.try_clone().unwrap(), far_end.try_clone().unwrap());
    let (mut near_end, mut far_end) = (near_end, far_end);
    let is_frozen = Arc::new(AtomicUsize::new(0));
    let copy = |source: &mut UnixStream, target: &mut UnixStream, is_frozen: &AtomicUsize| {
        let mut bytes = [0; 4096];
        while let Ok(read) = source.read(&mut bytes)
            && read > 0
        {
            while is_frozen.load(Relaxed) == 1 {
                thread::sleep(Duration::from_millis(20));
            }
            if target.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
    };
    let (one, two) = (is_frozen.clone(), is_frozen.clone());
    thread::spawn(move || copy(&mut near_end, &mut far_end, &one));
    thread::spawn(move || copy(&mut b, &mut a, &two));
    let objects = connect(near).unwrap();
    let lease = ours(objects.lease(INTENT, b"", Take::New).unwrap());
    assert!(lease.is_ours());
    assert!(matches!(
        local.lease(INTENT, b"", Take::Dead).unwrap(),
        Leased::Held
    ));
    is_frozen.store(1, Relaxed);
    let error = objects.get("a").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable);
    assert!(!lease.is_ours());
    let error = server.join().unwrap().unwrap_err();
    assert!(error.line().contains("nothing came"), "{}", error.line());
    ours(local.lease(INTENT, b"", Take::Dead).unwrap());
    is_frozen.store(2, Relaxed);
}

#[test]
fn a_thread_of_the_other_side_that_hangs_holds_up_its_own_call_only() {
    // Longer than the time after which a side that says nothing is taken for dead.
    let hangs = Fault::Delay(TIMES.silence + Duration::from_secs(1));
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    put(&memory, "there", b"content");
    let hanging = Faulty::new(memory.clone())
        .with(Operation::Get, 1, hangs)
        .with(Operation::Append, 1, hangs)
        .with(Operation::Put, 1, hangs)
        .with(Operation::List, 1, hangs);
    let objects = far(Arc::new(hanging));
    let upload = || {
        let mut upload = objects.create("uploaded")?;
        upload.append(b"bytes")?;
        upload.finish().map(drop)
    };
    thread::scope(|scope| {
        let held_up = [
            scope.spawn(|| objects.get("there").map(drop)),
            scope.spawn(upload),
            scope.spawn(|| objects.put("stored", b"x", &PutIf::Absent).map(drop)),
            scope.spawn(|| objects.list("").map(drop)),
        ];
        thread::sleep(Duration::from_millis(300));
        let mut others = 0;
        while !held_up.iter().any(|call| call.is_finished()) {
            assert_eq!(objects.stat("there").unwrap(), Some(7));
            others += 1;
            thread::sleep(Duration::from_millis(50));
        }
        println!("{others} other calls were answered meanwhile");
        assert!(others > 10, "{others}");
        for call in held_up {
            call.join().unwrap().unwrap();
        }
    });
    assert_eq!(get(&memory, "uploaded").unwrap(), b"bytes");
    assert_eq!(get(&memory, "stored").unwrap(), b"x");
}

/// Passes bytes on until it is told to freeze; then it keeps all, and no socket ends.
fn pass_until_frozen(mut from: UnixStream, mut to: UnixStream, is_frozen: Arc<AtomicBool>) {
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if !is_frozen.load(Relaxed) && to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
}

#[test]
fn a_direction_that_freezes_ends_the_session_on_both_sides() {
    for freezes_near in [true, false] {
        let (near, near_end) = socket();
        let (far_end, far) = socket();
        let server = serve(far, Arc::new(MemoryObjects::new()));
        let is_frozen = [Arc::new(AtomicBool::new(false)), Arc::default()];
        let ways = [
            (near_end.try_clone().unwrap(), far_end.try_clone().unwrap()),
            (far_end, near_end),
        ];
        for ((source, target), is_frozen) in ways.into_iter().zip(is_frozen.clone()) {
            thread::spawn(move || pass_until_frozen(source, target, is_frozen));
        }
        let objects = connect(near).unwrap();
        let lease = ours(objects.lease(INTENT, b"", Take::New).unwrap());
        is_frozen[usize::from(freezes_near)].store(true, Relaxed);
        let began = Instant::now();
        // What goes the other way is told to the very end.
        let error = objects.get("a").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unreachable, "{}", error.line());
        assert!(!lease.is_ours());
        drop((lease, objects));
        server.join().unwrap().unwrap_err();
        assert!(began.elapsed() < 12 * TIMES.silence, "{freezes_near}");
    }
}

/// Says something to a server after the greeting, and returns how it ended.
fn after_saying(bytes: &[u8]) -> Error {
    let (mut near, far) = socket();
    let server = serve(far, Arc::new(MemoryObjects::new()));
    near.write_all(b"fullbore wire 1 0.1.0\n").unwrap();
    let _ = near.write_all(bytes);
    let error = server.join().unwrap().unwrap_err();
    // It says nothing that is not a frame, and it is gone.
    near.set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    near.read_to_end(&mut Vec::new()).unwrap();
    error
}

/// Sends these bytes to a server and then one at a time, so that it never hears nothing for as long as it would wait. Returns how the
/// session ended.
fn after_trickling(begin: &[u8]) -> Error {
    const TIMES: WireTimes = WireTimes {
        beat: Duration::from_millis(100),
        silence: Duration::from_secs(2),
        greeting: Duration::from_secs(2),
        idle: None,
    };
    let (mut near, far) = socket();
    let server = thread::spawn(move || {
        let objects = OfferedObjects::new(Arc::new(MemoryObjects::new()));
        let offer = Offer::none().objects(objects);
        Wire::connect(streams(far), "\"near\"", offer, TIMES)?.wait()
    });
    near.write_all(begin).unwrap();
    // The server closes its socket before its thread ends.
    let is_given_up = (0..200).any(|_| {
        thread::sleep(Duration::from_millis(500));
        near.write_all(b"f").is_err()
    });
    assert!(is_given_up, "it waits for ever");
    server.join().unwrap().unwrap_err()
}

#[test]
fn a_side_that_sends_a_message_byte_by_byte_is_given_up() {
    let greeting = b"fullbore wire 1 0.1.0\n";
    let lengths = [1000u32, 0].map(u32::to_le_bytes).concat();
    let begun = [&greeting[..], &lengths].concat();
    // Within the greeting, within the lengths of a frame, and within its header.
    let cases = [&b"fullbore"[..], &greeting[..], &begun];
    thread::scope(|scope| {
        let ends = cases.map(|begin| scope.spawn(move || after_trickling(begin)));
        for end in ends {
            let error = end.join().unwrap();
            assert_eq!(error.kind, ErrorKind::Unreachable, "{}", error.line());
            let is_late = error.line().contains("did not come as a whole in time");
            assert!(is_late, "{}", error.line());
        }
    });
}

fn frame(header: &[u8], data_bytes: usize) -> Vec<u8> {
    let lengths = [header.len() as u32, data_bytes as u32].map(u32::to_le_bytes);
    [&lengths.concat(), header, &vec![0; data_bytes]].concat()
}

#[test]
fn a_side_that_breaks_the_rules_is_given_up() {
    // A message is [number, [fields]], a call in it [service, question]; an answer to nothing, data of no upload, credit for nothing.
    for (word, bytes) in [
        ("no message", frame(b"\xff", 0)),
        ("an unknown message", frame(&[0x82, 24, 99, 0x80], 0)),
        ("bytes behind a message", frame(&[0x82, 0, 0x80, 0], 0)),
        ("a long header", vec![0xff; 100]),
        ("data of no upload", frame(&[0x82, 5, 0x81, 7], 10)),
        ("credit for nothing", frame(&[0x82, 6, 0x81, 1], 0)),
        (
            "an answer to nothing",
            frame(&[0x82, 4, 0x82, 1, 0x82, 1, 0x81, 0x40], 0),
        ),
        (
            "part of an answer to nothing",
            frame(&[0x82, 3, 0x81, 1], 5),
        ),
        ("a lease that was not taken", frame(&[0x82, 8, 0x81, 1], 0)),
        (
            "a frame that is cut",
            frame(&[0x82, 0, 0x80], 0)[..9].to_vec(),
        ),
        (
            "data of a call that has none",
            frame(&[0x82, 2, 0x82, 1, 0x82, 1, 0x40], 1),
        ),
        ("a call without a number", frame(&[0x82, 2, 0x80], 0)),
        ("a header of too many values", frame(&[0x80; 65], 0)),
        ("too many calls that are not whole", {
            // Runs, the data of each of which is to follow.
            let calls = (0..=64u8).map(|id| frame(&[0x82, 2, 0x83, 24, id, 0x82, 2, 0x40, 1], 0));
            calls.collect::<Vec<_>>().concat()
        }),
    ] {
        let error = if word == "a frame that is cut" {
            let (mut near, far) = socket();
            let server = serve(far, Arc::new(MemoryObjects::new()));
            near.write_all(b"fullbore wire 1 0.1.0\n").unwrap();
            near.write_all(&bytes).unwrap();
            near.shutdown(Shutdown::Write).unwrap();
            server.join().unwrap().unwrap_err()
        } else {
            after_saying(&bytes)
        };
        let expected = match word {
            "a frame that is cut" => ErrorKind::Unreachable,
            _ => ErrorKind::Corrupt,
        };
        assert_eq!(error.kind, expected, "{word}: {}", error.line());
    }
}

#[test]
fn more_of_a_call_than_may_be_sent_ends_the_connection() {
    // Arguments of a run: more of them than it announces, and more than 2 MiB.
    let run = |following: u8| {
        let header = [0x82, 2, 0x83, 1, 0x82, 2, 0x40, 0x1a, 0, following, 0, 0];
        frame(&header, 1 << 20)
    };
    let part = frame(&[0x82, 1, 0x81, 1], 1 << 20);
    for bytes in [[run(8), part].concat(), run(17)] {
        let error = after_saying(&bytes);
        assert_eq!(error.kind, ErrorKind::Corrupt, "{}", error.line());
    }
}

#[test]
fn an_answer_that_was_not_asked_for_is_no_result() {
    let (near, mut far) = socket();
    let answers = thread::spawn(move || {
        far.write_all(b"fullbore wire 1 0.1.0\n").unwrap();
        let opened = [
            0x82, 4, 0x82, 1, 0x82, 1, 0x81, 0x45, 0x82, 0, 0x82, 0xf5, 0xf5,
        ];
        far.write_all(&frame(&opened, 0)).unwrap();
        // The size of an object is asked for, and a version is the answer.
        let version = [0x82, 4, 0x82, 2, 0x82, 1, 0x81, 0x44, 0x82, 3, 0x81, 0xf6];
        far.write_all(&frame(&version, 0)).unwrap();
        far.read_to_end(&mut Vec::new()).unwrap();
    });
    let wire = Arc::new(Wire::connect(streams(near), "\"far\"", Offer::none(), TIMES).unwrap());
    let opened = wire.objects(OsStr::new("x"), "ssh://far/x");
    // The second answer may come before its question: then it is one to no question.
    let error = opened.and_then(|objects| objects.stat("a")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{}", error.line());
    drop(wire);
    answers.join().unwrap();
}

#[test]
fn errors_of_the_other_side_keep_their_kind_and_their_words() {
    for kind in [
        ErrorKind::NotFound,
        ErrorKind::Full,
        ErrorKind::Permission,
        ErrorKind::Unsupported,
        ErrorKind::Gone,
    ] {
        let faulty = Faulty::new(Arc::new(MemoryObjects::new()))
            .with(Operation::Put, 1, Fault::Fail(kind))
            .with(Operation::Append, 3, Fault::Fail(kind));
        let objects = far(Arc::new(faulty));
        let error = objects
            .put("a", b"", &fullbore_storage::PutIf::Always)
            .unwrap_err();
        assert_eq!(error.kind, kind);
        assert!(error.what.contains("a fault was planned"), "{}", error.what);
        // What follows an append that failed is dropped, and so is the object.
        let mut upload = objects.create("b").unwrap();
        let appended = (0..200).try_for_each(|_| upload.append(&[7; 200_000]));
        let error = appended
            .and_then(|()| upload.finish().map(drop))
            .unwrap_err();
        assert_eq!(error.kind, kind);
        assert_eq!(objects.stat("b").unwrap(), None);
    }
}

#[test]
fn many_uploads_with_more_data_than_the_window_do_not_wait_for_each_other_for_ever() {
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let objects: Arc<dyn Objects> = Arc::new(far(memory.clone()));
    // More than the window of 16 MiB in all, in odd pieces; two are never finished, and hold some of it.
    let mut idle = [
        objects.create("idle/1").unwrap(),
        objects.create("idle/2").unwrap(),
    ];
    for upload in &mut idle {
        upload.append(&pattern(700_000, 1)).unwrap();
    }
    thread::scope(|scope| {
        for number in 0..6 {
            let objects = &objects;
            scope.spawn(move || {
                let data = pattern(9_000_000, number);
                let mut upload = objects.create(&format!("u/{number}")).unwrap();
                data.chunks(333_333)
                    .for_each(|part| upload.append(part).unwrap());
                upload.finish().unwrap();
                let mut out = Vec::new();
                objects
                    .read_at(&format!("u/{number}"), 0, data.len(), &mut out)
                    .unwrap();
                assert!(out == data);
            });
        }
    });
    drop(idle);
    assert_eq!(keys(&memory, "").len(), 6);
}

#[test]
fn an_upload_needs_no_answer_for_each_append() {
    let recording = Recording::new(Arc::new(MemoryObjects::new()));
    let objects = far(Arc::new(recording.clone()));
    let slow = Instant::now();
    let mut upload = objects.create("a").unwrap();
    for _ in 0..1000 {
        upload.append(&[1; 100]).unwrap();
    }
    upload.finish().unwrap();
    assert_eq!(recording.count(Operation::Append).calls, 1000);
    assert_eq!(recording.count(Operation::Append).bytes, 100_000);
    assert!(slow.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_lease_that_another_takes_is_lost_on_this_side_too() {
    let dir = tempfile::tempdir().unwrap();
    let local: Arc<dyn Objects> = Arc::new(LocalObjects::new(&dir.path().join("r")));
    let objects = far(local.clone());
    let lease = ours(objects.lease(INTENT, b"", Take::New).unwrap());
    assert!(lease.is_ours());
    local.delete(&[INTENT.to_owned()]).unwrap();
    let began = Instant::now();
    while lease.is_ours() {
        assert!(began.elapsed() < Duration::from_secs(120));
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn both_sides_serve_each_other_over_one_connection() {
    let near_memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let far_memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    put(&near_memory, "whose", b"near");
    put(&far_memory, "whose", b"far");
    let (near, far) = socket();
    let far = thread::spawn(move || {
        let wire = Wire::connect(
            streams(far),
            "\"near\"",
            Offer::none().objects(OfferedObjects::new(far_memory)),
            TIMES,
        );
        let wire = Arc::new(wire.unwrap());
        let objects = wire.objects(OsStr::new(""), "near").unwrap();
        for _ in 0..200 {
            objects.read_at("whose", 0, 4, &mut Vec::new()).unwrap();
        }
        let got = objects.get("whose").unwrap().unwrap().0;
        (got, wire)
    });
    let wire = Wire::connect(
        streams(near),
        "\"far\"",
        Offer::none().objects(OfferedObjects::new(near_memory)),
        TIMES,
    );
    let wire = Arc::new(wire.unwrap());
    let objects = wire.objects(OsStr::new(""), "far").unwrap();
    let got = objects.get("whose").unwrap().unwrap().0;
    let (of_far, _held) = far.join().unwrap();
    assert_eq!((got, of_far), (b"far".to_vec(), b"near".to_vec()));
}
