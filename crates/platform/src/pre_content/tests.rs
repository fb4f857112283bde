use super::{
    handle::FileHandle, inherit::*, probe::refusal_in, shared_map::SharedMap, waiting::WaitingCall,
    *,
};
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::Ordering::SeqCst,
};

/// Returns a directory where files can be marked, or prints why there is none.
fn place() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir().unwrap();
    let refusal = refusal_in(dir.path()).unwrap();
    if let Some(refusal) = refusal {
        println!("skipped: it needs {}", refusal.line());
        return None;
    }
    Some(dir)
}

fn reader(path: &Path) -> Child {
    let mut cat = Command::new("/bin/cat");
    cat.arg(path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Answers the events of one reader until a range is asked for; returns the range with its event.
fn next_range(group: &EventGroup) -> AccessEvent {
    loop {
        let mut buffer = [0; MAX_EVENT_BYTES];
        let read = group.read(&mut buffer).unwrap();
        for event in events_in(&buffer[..read]) {
            if event.access != Access::Open {
                return event;
            }
            group.answer(event.number, AccessAnswer::Allow).unwrap();
            close_number(event.number);
        }
    }
}

#[test]
fn a_reader_sees_what_was_written_before_its_answer_and_eio_after_a_refusal() {
    let Some(dir) = place() else { return };
    let path = dir.path().join("file");
    let file = File::create_new(&path).unwrap();
    crate::write::allocate(&file, 100_000).unwrap();
    let group = EventGroup::new().unwrap();
    group.mark(&file).unwrap();

    let child = reader(&path);
    let event = next_range(&group);
    assert!(matches!(event.access, Access::Range { offset: 0, count } if count > 0));
    assert_eq!(WaitingCall::of(event.thread), WaitingCall::Read);
    assert_eq!(event.thread, child.id() as i32);
    crate::write::pwrite_all(&file, &[7; 100_000], 0).unwrap();
    group.answer(event.number, AccessAnswer::Allow).unwrap();
    close_number(event.number);
    group.unmark(&file).unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, [7; 100_000]);

    group.mark(&file).unwrap();
    let child = reader(&path);
    let event = next_range(&group);
    group.answer(event.number, AccessAnswer::Fail).unwrap();
    assert!(group.answer(event.number, AccessAnswer::Fail).is_err());
    close_number(event.number);
    let ended = child.wait_with_output().unwrap();
    assert!(ended.stdout.is_empty() && !ended.status.success());
}

#[test]
fn a_file_is_opened_by_its_handle_after_a_rename_and_without_a_name() {
    let Some(dir) = place() else { return };
    let path = dir.path().join("file");
    fs::write(&path, "old").unwrap();
    let handle = FileHandle::of(File::open(&path).unwrap()).unwrap();
    fs::rename(&path, dir.path().join("moved")).unwrap();
    let beside = File::open(dir.path()).unwrap();
    let opened = File::from(handle.open(&beside).unwrap());
    assert_eq!(opened.metadata().unwrap().len(), 3);
    fs::remove_file(dir.path().join("moved")).unwrap();
    assert!(handle.open(&beside).is_ok());
    drop(opened);
    let gone = handle.open(&beside).unwrap_err();
    assert_eq!(gone.raw_os_error(), Some(libc::ESTALE));
}

#[test]
fn shared_memory_is_taken_out_of_a_process_that_inherited_it() {
    let map = SharedMap::in_memory("fullbore-test", 4096).unwrap();
    map.word(8).store(5, SeqCst);
    let passed = inheritable(&map).unwrap();
    let mut child = Command::new("/bin/sleep").arg("60").spawn().unwrap();
    drop(passed);
    let found = loop {
        match take_from(child.id() as i32, "/memfd:fullbore-test").unwrap() {
            Some(found)
                if fs::read_link(format!("/proc/{}/exe", child.id()))
                    .unwrap()
                    .ends_with("sleep") =>
            {
                break found;
            }
            _ => std::thread::yield_now(),
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    let again = SharedMap::of_fd(found, 4096).unwrap();
    assert_eq!(again.word(8).load(SeqCst), 5);
    let numbers = [again.as_fd().as_raw_fd(), 900, 901];
    let kept = occupy(&numbers).unwrap();
    assert_eq!(
        kept.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>(),
        [900, 901]
    );
}

#[test]
fn a_file_system_without_such_events_is_named() {
    if !Path::new("/dev/shm").is_dir() {
        return;
    }
    let refusal = refusal_in(Path::new("/dev/shm")).unwrap().unwrap();
    assert_eq!(refusal.file_system, "tmpfs");
    assert!(!refusal.file_system_gives);
    assert!(
        refusal.line().contains("(this is tmpfs)"),
        "{}",
        refusal.line()
    );
}

#[test]
fn events_that_are_not_whole_are_not_read() {
    assert_eq!(events_in(&[]), []);
    assert_eq!(events_in(&[0; 48]), []);
    let mut event = vec![0; 24];
    event[0] = 24;
    event[16] = 9;
    assert_eq!(events_in(&event).len(), 1);
    assert_eq!(events_in(&event[..23]), []);
    event[0] = 25;
    assert_eq!(events_in(&event), []);
}
