//! A host that was taken over, while its files are backed up or a backup is restored to it: it speaks the protocol and does what it
//! likes. It gets the rights that the command asked for.

use super::{
    TIMES,
    over_ssh::{files, fullbore, scratch, text, tree},
    sshd::{FULLBORE, sshd},
    streams,
};
use fullbore_storage::{
    Leased, Objects, PutIf, Take,
    wire::{Offer, PeerSide, ServiceNumber, Wire, WireObjects, command_service},
};
use minicbor::Encoder;
use std::{
    ffi::OsString,
    fs,
    net::TcpListener,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::{Command, Output},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

/// Runs fullbore; ssh leads to a host that does this. Returns its output and the words that came to the host.
fn against(
    dir: &Path,
    arguments: &[&str],
    deed: impl Fn(&PeerSide, &WireObjects) + Send + Sync + 'static,
) -> (Output, Vec<OsString>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let ssh = dir.join("ssh");
    let script =
        format!("#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/{port}\ncat <&3 &\nexec cat >&3\n");
    fs::write(&ssh, script).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let words = Arc::new(Mutex::new(Vec::new()));
    let is_as_expected = Arc::new(AtomicBool::new(false));
    let heard = words.clone();
    let went_well = is_as_expected.clone();
    // It does the deed when it is asked to run a command, and answers that the command is done.
    let run = move |arguments: Vec<OsString>, peer: &PeerSide| {
        *heard.lock().unwrap() = arguments;
        let objects = peer.objects("near").unwrap();
        let done = AssertUnwindSafe(|| deed(peer, &objects));
        went_well.store(catch_unwind(done).is_ok(), Relaxed);
        Ok(0)
    };
    let host = Offer::none().service(ServiceNumber::COMMANDS, command_service(run));
    let serving = thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let streams = fullbore_storage::wire::WireStreams {
            input: OwnedFd::from(socket.try_clone().unwrap()),
            output: OwnedFd::from(socket),
        };
        let wire = Wire::connect(streams, "near", host, TIMES);
        drop(wire.and_then(Wire::wait)); // it ends as the command does
    });
    let output = Command::new(FULLBORE)
        .args(arguments)
        .args(["--ssh", ssh.to_str().unwrap()])
        .output()
        .unwrap();
    serving.join().unwrap();
    let words = words.lock().unwrap().clone();
    assert!(is_as_expected.load(Relaxed), "see above: {}", text(&output));
    (output, words)
}

/// A repository with a backup of another host, and the id of that.
fn with_a_backup_of_another(dir: &Path, more: &[&str]) -> (String, String) {
    let payroll = dir.join("payroll");
    fs::create_dir(&payroll).unwrap();
    fs::write(payroll.join("secret-name"), "salary").unwrap();
    let repository = dir.join("repository").display().to_string();
    let payroll = payroll.to_str().unwrap();
    let backup = ["backup", payroll, "--host", "other", "--to", &repository];
    fullbore(0, &[&backup[..], more].concat());
    let id = fs::read_dir(Path::new(&repository).join("backups")).unwrap();
    let id = id.map(|entry| entry.unwrap().file_name()).next().unwrap();
    (repository, id.into_string().unwrap())
}

/// Everything of the backup of another host that is refused, or is not there.
fn attack(objects: &WireObjects, id: &str) {
    let listed = objects.list("").unwrap();
    assert!(
        listed.iter().all(|object| !object.key.contains(id)),
        "{listed:?}"
    );
    let listed = objects.list("backups").unwrap();
    assert!(listed.is_empty(), "{listed:?}");
    let key_of = |name: &str| format!("backups/{id}/{name}");
    for name in ["root.json", "manifest", "s01-000001.tar.zst", "notes.json"] {
        let key = key_of(name);
        assert!(matches!(objects.get(&key), Ok(None)), "{key}");
        assert!(matches!(objects.stat(&key), Ok(None)), "{key}");
        objects.read_at(&key, 0, 1, &mut Vec::new()).unwrap_err();
        objects.delete(std::slice::from_ref(&key)).unwrap_err();
        objects.put(&key, b"x", &PutIf::Always).unwrap_err();
        objects.put(&key, b"x", &PutIf::Absent).unwrap_err();
    }
    for key in ["keys/owner.age", "keys/current.json", "verify.json", "x"] {
        assert!(matches!(objects.get(key), Ok(None)), "{key}");
        objects.put(key, b"x", &PutIf::Always).unwrap_err();
        objects.delete(&[key.to_owned()]).unwrap_err();
    }
    objects
        .put("fullbore-repo.json", b"x", &PutIf::Always)
        .unwrap_err();
    objects
        .delete(&["fullbore-repo.json".to_owned()])
        .unwrap_err();
    let intent = format!("intents/{id}.json");
    for take in [Take::Dead, Take::New] {
        let leased = objects.lease(&intent, b"{}", take);
        assert!(!matches!(leased, Ok(Leased::Ours(_))), "{take:?}");
    }
    assert!(
        !objects
            .lease("keys/change.json", b"", Take::New)
            .is_ok_and(|leased| matches!(leased, Leased::Ours(_)))
    );
}

#[test]
fn a_host_that_is_pulled_from_reaches_no_backup_of_another_host_and_its_word_is_no_backup() {
    let dir = scratch();
    let (key, recipient) = sshd().user_key();
    for encryption in [
        vec![],
        vec!["--encrypt-to", &recipient, "--key", key.to_str().unwrap()],
    ] {
        let dir = dir.path().join(encryption.len().to_string());
        fs::create_dir(&dir).unwrap();
        let (repository, id) = with_a_backup_of_another(&dir, &encryption);
        let before = files(Path::new(&repository));
        let key = encryption.get(2..).unwrap_or_default();
        let pull = ["backup", "ssh://root@db1:22/srv", "--to", &repository];
        let (output, words) = against(&dir, &[&pull[..], key].concat(), move |peer, objects| {
            attack(objects, &id);
            peer.print(true, b"backup 20261126T201810Z-j5u9z8 is complete")
                .unwrap();
        });
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("it has stored no backup here"), "{said}");
        assert_eq!(files(Path::new(&repository)), before);
        let host = words.iter().position(|word| word == "--host").unwrap();
        assert_eq!(words[host + 1], "db1", "{words:?}");
        assert!(!words.iter().any(|word| word == "--key"), "{words:?}");
    }
}

#[test]
fn a_host_that_is_pulled_from_adds_one_backup_and_in_its_own_name() {
    let dir = scratch();
    let (repository, id) = with_a_backup_of_another(dir.path(), &[]);
    let root = Path::new(&repository).join(format!("backups/{id}/root.json"));
    let root = fs::read(root).unwrap();
    let pull = ["backup", "ssh://db1/srv", "--to", &repository];
    let (output, _) = against(dir.path(), &pull, move |_, objects| {
        let announce = |id: &str| {
            let key = format!("intents/{id}.json");
            objects.lease(&key, b"not an intent", Take::New)
        };
        announce("20261126T201810Z-j5u9z8").unwrap_err();
        announce("99991126T201810Z-j5u9z8").unwrap_err();
        // The root of another backup, and of another host, under a name that was not announced.
        let key = "backups/20261126T201810Z-j5u9z8/root.json";
        objects.put(key, &root, &PutIf::Absent).unwrap_err();
        objects
            .create("backups/20261126T201810Z-j5u9z8/manifest")
            .and_then(|upload| upload.finish())
            .map(drop)
            .unwrap_err();
    });
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
}

#[test]
fn a_host_that_a_backup_is_restored_to_reads_that_backup_only() {
    let dir = scratch();
    let (repository, other) = with_a_backup_of_another(dir.path(), &[]);
    let source = dir.path().join("source");
    tree(&source);
    let source = source.to_str().unwrap();
    fullbore(
        0,
        &["backup", source, "--to", &repository, "--host", "mine"],
    );
    let restore = [
        "restore",
        &repository,
        "--host",
        "mine",
        "--to",
        "ssh://db1/srv",
    ];
    let before = files(Path::new(&repository));
    let (output, _) = against(dir.path(), &restore, move |_, objects| {
        let listed = objects.list("backups").unwrap();
        assert!(
            listed.iter().all(|object| !object.key.contains(&other)),
            "{listed:?}"
        );
        let root = listed
            .iter()
            .find(|object| object.key.ends_with("/root.json"));
        let own = root.unwrap().key.clone();
        assert!(objects.get(&own).unwrap().is_some());
        for key in [
            format!("backups/{other}/root.json"),
            "verify.json".to_owned(),
        ] {
            assert!(objects.get(&key).unwrap().is_none(), "{key}");
        }
        objects
            .read_at(&format!("backups/{other}/manifest"), 0, 1, &mut Vec::new())
            .unwrap_err();
        objects
            .put(
                "backups/20261126T201810Z-j5u9z8/manifest",
                b"x",
                &PutIf::Absent,
            )
            .unwrap_err();
        objects
            .create("backups/20261126T201810Z-j5u9z8/manifest")
            .and_then(|upload| upload.finish())
            .map(drop)
            .unwrap_err();
        objects.delete(&[own]).unwrap_err();
        objects
            .lease("intents/20261126T201810Z-j5u9z8.json", b"", Take::New)
            .unwrap_err();
    });
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(files(Path::new(&repository)), before);
}

/// The question for a tree, as the side that runs a backup asks it.
fn question(path: &str, list: Option<&str>) -> Vec<u8> {
    let mut scope = Encoder::new(Vec::new());
    scope.array(7).unwrap();
    scope.array(1).unwrap().bytes(path.as_bytes()).unwrap();
    // Rules: patterns, files of patterns, are marked caches left out as they are unasked, marks, a flag.
    scope.array(5).unwrap();
    scope.array(0).unwrap().array(0).unwrap();
    scope.bool(true).unwrap().array(0).unwrap();
    scope.bool(false).unwrap();
    match list {
        Some(list) => scope.bytes(list.as_bytes()).unwrap(),
        None => scope.null().unwrap(),
    };
    for _ in 0..4 {
        scope.bool(false).unwrap();
    }
    let mut open = Encoder::new(Vec::new());
    let scope = scope.into_writer();
    open.array(2)
        .unwrap()
        .u8(0)
        .unwrap()
        .array(1)
        .unwrap()
        .bytes(&scope)
        .unwrap();
    open.into_writer()
}

#[test]
fn the_host_of_the_destination_is_served_the_files_of_the_command_line_and_no_others() {
    let dir = scratch();
    let [data, private] =
        ["data", "private"].map(|name| dir.path().join(name).display().to_string());
    tree(Path::new(&data));
    tree(Path::new(&private));
    let backup = ["backup", &data, "--to", "ssh://vault/x", "--run-on", "dest"];
    let (own, other) = (data.clone(), private.clone());
    against(dir.path(), &backup, move |peer, _| {
        let ask = |question: &[u8]| peer.ask(ServiceNumber::FILES, question, 1 << 20);
        for question in [
            question(&other, None),
            question(&own, Some(&format!("{other}/large"))),
            question("/", None),
            question(&format!("{own}/../private"), None),
        ] {
            let error = ask(&question).unwrap_err();
            assert!(
                error.line().contains("than the command line names"),
                "{}",
                error.line()
            );
        }
        ask(&question(&own, None)).unwrap();
    });
}

#[test]
fn a_host_serves_files_below_the_paths_that_it_allows_and_nothing_else() {
    let dir = scratch();
    let [data, private] =
        ["data", "private"].map(|name| dir.path().join(name).display().to_string());
    tree(Path::new(&data));
    tree(Path::new(&private));
    std::os::unix::fs::symlink(&private, dir.path().join("data/link")).unwrap();
    let (ours, theirs) = super::socket();
    let mut serving = Command::new(FULLBORE)
        .args(["serve", "--stdio", "--allow", &format!("source:{data}")])
        .env("FULLBORE_LISTEN", "127.0.0.1:0") // a variable of the host does not stop it
        .stdin(OwnedFd::from(theirs.try_clone().unwrap()))
        .stdout(OwnedFd::from(theirs))
        .spawn()
        .unwrap();
    let wire = Arc::new(Wire::connect(streams(ours), "\"db1\"", Offer::none(), TIMES).unwrap());
    let ask = |question: &[u8]| wire.peer().ask(ServiceNumber::FILES, question, 1 << 20);
    for (question, words) in [
        (question(&private, None), "source:PATH"),
        (question(&format!("{data}/link"), None), "source:PATH"),
        (question(&format!("{data}/../private"), None), "source:PATH"),
        (
            question(&data, Some(&format!("{private}/large"))),
            "source:PATH",
        ),
        (question("/", None), "source:PATH"),
    ] {
        let error = ask(&question).unwrap_err();
        assert!(error.line().contains(words), "{}", error.line());
    }
    let objects = wire.objects(private.as_ref(), "x");
    objects.and_then(|objects| objects.list("")).unwrap_err();
    wire.run(&["version".into()]).unwrap_err();
    wire.peer()
        .ask(ServiceNumber::COPY, b"", 1 << 20)
        .unwrap_err();
    ask(&question(&format!("{data}/sub"), None)).unwrap();
    drop(wire);
    serving.kill().unwrap();
    serving.wait().unwrap();
}

#[test]
fn a_report_of_another_host_is_drawn_here_from_numbers() {
    let dir = scratch();
    let (repository, _) = with_a_backup_of_another(dir.path(), &[]);
    let report = dir.path().join("report.html");
    let pull = [
        "backup",
        "ssh://db1/srv",
        "--to",
        &repository,
        "--report",
        report.to_str().unwrap(),
    ];
    let page = "<!doctype html>\n<!-- A report of fullbore --><script>alert(1)</script>";
    let (output, _) = against(dir.path(), &pull, move |peer, _| {
        peer.ask(ServiceNumber::REPORT, page.as_bytes(), 1 << 20)
            .unwrap();
    });
    assert!(
        text(&output).contains("has sent no report"),
        "{}",
        text(&output)
    );
    assert!(!report.exists());
}
