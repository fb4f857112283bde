//! The wrappers count and fail as they are told, and forward everything.

use super::suite::{get, keys, ours, pattern, put};
use fullbore_format::error::{Error, ErrorKind};
use fullbore_storage::{
    Fault, Faulty, LocalObjects, MemoryObjects, Objects, Operation, OperationCount, PutIf,
    Recording, Take,
};
use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

#[test]
fn no_function_of_the_traits_has_a_default_that_a_wrapper_could_forget() {
    let path =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("crates/storage/src/lib.rs");
    let source = fs::read_to_string(path).unwrap();
    let code: Vec<_> = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    for name in ["Objects", "Upload", "Lease"] {
        let begin = code
            .iter()
            .position(|line| line.starts_with(&format!("pub trait {name}:")))
            .unwrap();
        let body = &code[begin + 1..];
        let end = body.iter().position(|line| *line == "}").unwrap();
        let text = body[..end].join("\n");
        assert!(text.contains("fn "), "{name}");
        assert!(
            !text.contains('{'),
            "a function of {name} has a body: {text}"
        );
    }
}

#[test]
fn calls_and_bytes_are_counted_by_operation() {
    let recording = Recording::new(Arc::new(MemoryObjects::new()));
    let objects: Arc<dyn Objects> = Arc::new(recording.clone());
    put(&objects, "a", &[0; 100]);
    put(&objects, "b", &[0; 11]);
    get(&objects, "a");
    get(&objects, "none");
    objects.read_at("a", 10, 20, &mut Vec::new()).unwrap();
    objects
        .read_at("none", 10, 20, &mut Vec::new())
        .unwrap_err();
    keys(&objects, "x");
    let mut upload = objects.create("c").unwrap();
    upload.append(&[0; 1000]).unwrap();
    upload.append(&[0; 1]).unwrap();
    upload.amend(0, &[1; 5]).unwrap();
    upload.finish().unwrap();
    let mut lease = ours(objects.lease("i", b"body", Take::New).unwrap());
    lease.update(b"longer body").unwrap();
    objects.delete(&["a".to_owned(), "b".to_owned()]).unwrap();
    let counted = |operation| {
        let OperationCount { calls, bytes } = recording.count(operation);
        (calls, bytes)
    };
    let expected = [
        (Operation::Put, (2, 111)),
        (Operation::Get, (2, 100)),
        (Operation::ReadAt, (2, 20)),
        (Operation::List, (1, 0)),
        (Operation::Create, (1, 0)),
        (Operation::Append, (2, 1001)),
        (Operation::Amend, (1, 5)),
        (Operation::Finish, (1, 0)),
        (Operation::Lease, (1, 0)),
        (Operation::UpdateLease, (1, 11)),
        (Operation::Delete, (1, 0)),
        (Operation::Stat, (0, 0)),
    ];
    for (operation, count) in expected {
        assert_eq!(counted(operation), count, "{operation:?}");
    }
    assert_eq!(recording.requests(), 12);
    assert_eq!(
        recording.log().last().unwrap(),
        &(Operation::Delete, "a".to_owned())
    );
    recording.reset();
    assert_eq!(recording.requests(), 0);
}

#[test]
fn the_chosen_call_fails_and_no_other() {
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let faulty = Faulty::new(memory.clone())
        .with(Operation::Put, 2, Fault::Fail(ErrorKind::Full))
        .with(Operation::Put, 3, Fault::FailLate(ErrorKind::Unreachable))
        .with(Operation::Delete, 1, Fault::Fail(ErrorKind::Permission));
    let put = |key: &str| {
        faulty
            .put(key, b"bytes", &PutIf::Always)
            .map(drop)
            .map_err(|error: Error| error.kind)
    };
    assert_eq!(put("a"), Ok(()));
    assert_eq!(put("b"), Err(ErrorKind::Full));
    assert_eq!(put("c"), Err(ErrorKind::Unreachable));
    assert_eq!(put("d"), Ok(()));
    assert_eq!(
        keys(&memory, ""),
        ["a", "c", "d"],
        "what fails late is done"
    );
    assert_eq!(
        faulty.delete(&["a".to_owned()]).unwrap_err().kind,
        ErrorKind::Permission
    );
    faulty.delete(&["a".to_owned()]).unwrap();
    assert_eq!(keys(&memory, ""), ["c", "d"]);
    assert_eq!(faulty.calls(Operation::Put), 4);
}

#[test]
fn a_truncated_call_gives_or_takes_half() {
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let faulty = [
        Operation::Get,
        Operation::ReadAt,
        Operation::List,
        Operation::Put,
        Operation::Append,
    ]
    .into_iter()
    .fold(Faulty::new(memory.clone()), |faulty, operation| {
        faulty.with(operation, 1, Fault::Truncate)
    });
    let objects: Arc<dyn Objects> = Arc::new(faulty);
    put(&memory, "a", b"0123456789");
    put(&memory, "b", b"");
    assert_eq!(get(&objects, "a").unwrap(), b"01234");
    assert_eq!(get(&objects, "a").unwrap(), b"0123456789");
    assert_eq!(
        objects
            .read_at("a", 0, 10, &mut Vec::new())
            .unwrap_err()
            .kind,
        ErrorKind::Corrupt
    );
    assert_eq!(keys(&objects, ""), ["a"]);
    assert_eq!(keys(&objects, ""), ["a", "b"]);
    assert_eq!(
        objects.put("c", b"0123", &PutIf::Always).unwrap_err().kind,
        ErrorKind::Unreachable
    );
    assert_eq!(get(&memory, "c").unwrap(), b"01");
    let mut upload = objects.create("d").unwrap();
    assert_eq!(
        upload.append(&pattern(10, 1)).unwrap_err().kind,
        ErrorKind::Unreachable
    );
    assert_eq!(upload.finish().unwrap().bytes, 5);
}

#[test]
fn a_delayed_call_is_done_later() {
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let delay = Duration::from_millis(30);
    let faulty = Faulty::new(memory.clone()).with(Operation::Put, 1, Fault::Delay(delay));
    let began = Instant::now();
    faulty.put("a", b"x", &PutIf::Always).unwrap();
    assert!(began.elapsed() >= delay);
    assert_eq!(keys(&memory, ""), ["a"]);
}

#[test]
fn uploads_and_leases_of_a_wrapped_storage_fail_as_planned() {
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let faulty = [
        Operation::Create,
        Operation::Lease,
        Operation::UpdateLease,
        Operation::Finish,
    ]
    .into_iter()
    .fold(Faulty::new(memory.clone()), |faulty, operation| {
        faulty.with(operation, 1, Fault::Fail(ErrorKind::System))
    });
    assert_eq!(faulty.create("a").unwrap_err().kind, ErrorKind::System);
    let upload = faulty.create("a").unwrap();
    assert_eq!(upload.finish().unwrap_err().kind, ErrorKind::System);
    assert_eq!(keys(&memory, ""), [""; 0]);
    assert_eq!(
        faulty.lease("i", b"", Take::New).unwrap_err().kind,
        ErrorKind::System
    );
    let mut lease = ours(faulty.lease("i", b"one", Take::New).unwrap());
    assert_eq!(lease.update(b"two").unwrap_err().kind, ErrorKind::System);
    lease.update(b"three").unwrap();
}

#[test]
fn a_wrapped_directory_is_still_known_as_local() {
    let dir = tempfile::tempdir().unwrap();
    let local = Arc::new(LocalObjects::new(dir.path()));
    let wrapped = Recording::new(Arc::new(Faulty::new(local)));
    assert_eq!(wrapped.as_local().unwrap().root(), dir.path());
    assert!(wrapped.abilities().has_locks);
    assert!(!wrapped.answers_late());
    assert!(MemoryObjects::new().as_local().is_none());
    assert!(MemoryObjects::new().answers_late());
    assert!(!MemoryObjects::new().abilities().has_locks);
}
