//! Reads that follow each other are answered by few requests, and all others as they are.

use fullbore_format::error::ErrorKind;
use fullbore_storage::{
    CoalescedObjects, Fault, Faulty, MemoryObjects, Objects, Operation, PutIf, Recording,
};
use std::{
    sync::{Arc, Barrier},
    thread,
};

const KEY: &str = "backups/20261121T054501Z-aaaaaa/s01-000001.tar.zst";
const MIB: usize = 1 << 20;

fn content(bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    blake3::Hasher::new().finalize_xof().fill(&mut content);
    content
}

/// A storage with one object, counted, and read ahead.
fn storage(content: &[u8]) -> (Recording, CoalescedObjects) {
    let memory = MemoryObjects::new();
    let mut upload = memory.create(KEY).unwrap();
    upload.append(content).unwrap();
    upload.finish().unwrap();
    let recording = Recording::new(Arc::new(memory));
    (
        recording.clone(),
        CoalescedObjects::new(Arc::new(recording)),
    )
}

fn check(objects: &dyn Objects, content: &[u8], offset: usize, len: usize) {
    let mut out = vec![7; 3];
    objects.read_at(KEY, offset as u64, len, &mut out).unwrap();
    assert!(out == content[offset..offset + len], "{offset} + {len}");
}

#[test]
fn frames_that_follow_each_other_take_a_request_for_several_megabytes() {
    let content = content(100 * MIB + 5);
    let (recording, objects) = storage(&content);
    let frame = 300_000;
    for offset in (0..content.len()).step_by(frame) {
        check(
            &objects,
            &content,
            offset,
            frame.min(content.len() - offset),
        );
    }
    let requests = recording.count(Operation::ReadAt).calls;
    assert!(requests <= 30, "{requests} requests");
    assert_eq!(recording.count(Operation::Stat).calls, 1);
}

#[test]
fn reads_here_and_there_are_passed_on_as_they_are() {
    let content = content(40 * MIB);
    let (recording, objects) = storage(&content);
    let places: Vec<usize> = (0..50).map(|index| (index * 17 % 40) * MIB).collect();
    for index in &places {
        check(&objects, &content, *index, 1000);
    }
    let read = recording.count(Operation::ReadAt);
    assert_eq!(read.calls, places.len() as u64);
    assert_eq!(read.bytes, 1000 * places.len() as u64);
}

#[test]
fn no_more_is_read_in_vain_than_was_read() {
    let content = content(80 * MIB);
    for frames in [1, 2, 5, 20, 50] {
        let (recording, objects) = storage(&content);
        for frame in 0..frames {
            check(&objects, &content, frame * MIB, MIB);
        }
        // Windows that were requested may still be under way.
        let read = recording.count(Operation::ReadAt).bytes as usize;
        assert!(
            read <= 2 * frames * MIB + 8 * MIB,
            "{read} for {frames} MiB"
        );
    }
}

#[test]
fn several_threads_read_the_same_bytes_as_one() {
    let content = content(60 * MIB);
    let (recording, objects) = storage(&content);
    let (threads, frame) = (4, MIB / 16);
    // No thread begins a read before all have read as much, so that reads follow each other whichever thread runs first.
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (objects, content, barrier) = (&objects, &content, &barrier);
            scope.spawn(move || {
                for offset in (thread * frame..content.len()).step_by(threads * frame) {
                    barrier.wait();
                    check(objects, content, offset, frame);
                }
            });
        }
    });
    // Of 960 reads.
    let requests = recording.count(Operation::ReadAt).calls;
    assert!(requests <= 80, "{requests} requests");
}

#[test]
fn an_object_that_was_replaced_is_read_anew() {
    let before = content(20 * MIB);
    let (_, objects) = storage(&before);
    for frame in 0..10 {
        check(&objects, &before, frame * MIB, MIB);
    }
    let after: Vec<u8> = before.iter().map(|byte| byte ^ 0x55).collect();
    let mut upload = objects.create(KEY).unwrap();
    upload.append(&after).unwrap();
    upload.finish().unwrap();
    for frame in 8..20 {
        check(&objects, &after, frame * MIB, MIB);
    }
    objects.put(KEY, b"short", &PutIf::Always).unwrap();
    objects
        .read_at(KEY, 9 << 20, MIB, &mut Vec::new())
        .unwrap_err();
}

#[test]
fn a_window_that_fails_is_an_error_only_for_those_who_read_it() {
    let content = content(30 * MIB);
    let (recording, _) = storage(&content);
    for nth in 1..12 {
        let faulty = Faulty::new(Arc::new(recording.clone())).with(
            Operation::ReadAt,
            nth,
            Fault::Fail(ErrorKind::System),
        );
        let objects = CoalescedObjects::new(Arc::new(faulty));
        let mut failed = 0;
        for frame in 0..30 {
            let mut out = Vec::new();
            match objects.read_at(KEY, (frame * MIB) as u64, MIB, &mut out) {
                Ok(()) => assert!(out == content[frame * MIB..(frame + 1) * MIB]),
                Err(_) => failed += 1,
            }
        }
        assert!(failed <= 1, "request {nth}: {failed} reads failed");
    }
}
