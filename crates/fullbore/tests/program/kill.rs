//! A backup that is killed, or whose destination fails, leaves nothing that looks complete; the next one clears it away.

use crate::runs;
use crate::runs::{
    Mount, Ran, assert_same, fullbore, has, is_root, names, noise, only, or_skip, sample, shape,
    shell, started, temp,
};
use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A tree that is stored in a few frames and segments.
fn little(dir: &Path) {
    for i in 0..6 {
        runs::write(
            dir.join(format!("d{}/f{i}", i % 2)),
            noise(i, 1000 + i as usize),
        );
    }
    runs::write(dir.join("large"), noise(9, 1_500_000));
}

/// Ids that `list` shows; all of them are complete.
fn listed(repository: &Path) -> Vec<String> {
    if !repository.join("fullbore-repo.json").exists() {
        return Vec::new();
    }
    let ran = fullbore(args!["list", repository, "--json"]).ends_with(0);
    let id = |backup: serde_json::Value| {
        assert_eq!(backup["complete"], true, "{backup}");
        backup["id"].as_str().unwrap().to_owned()
    };
    ran.json().into_iter().map(id).collect()
}

fn assert_restores(tree: &Path, repository: &Path, id: &str) {
    let dir = temp();
    let back = dir.path().join("back");
    fullbore(args![
        "restore",
        format!("{}@{id}", repository.display()),
        "--to",
        back,
        "--quiet"
    ])
    .ends_with(0);
    assert_same(&shape(tree), &shape(&back), id);
}

/// There is nothing but committed backups.
#[track_caller]
fn assert_no_leftovers(repository: &Path) {
    assert_eq!(names(&repository.join("intents")), [""; 0]);
    let partial = shell("find \"$1\" -name '*.partial*'", args![repository]);
    assert_eq!(partial.out, "");
    for backup in names(&repository.join("backups")) {
        assert!(
            repository
                .join("backups")
                .join(&backup)
                .join("root.json")
                .exists(),
            "{backup} has no root"
        );
    }
}

/// A backup by one worker under strace, which tampers as `inject` says.
fn tampered(inject: &str, tree: &Path, to: &Path) -> Ran {
    let little = [
        "--workers",
        "1",
        "--readers",
        "1",
        "--segment-size",
        "1M",
        "--frame-size",
        "64K",
    ];
    let args = args!["backup", tree, "--to", to, "--quiet"]
        .into_iter()
        .chain(little.map(Into::into));
    runs::tampered(inject, None, args)
}

/// Places where a backup touches its destination, and how often the same thread may at most.
const CALLS: [(&str, u32); 7] = [
    ("openat", 30),
    ("mkdir,mkdirat", 6),
    ("write,pwrite64", 60),
    ("fsync", 12),
    ("link,linkat,rename,renameat,renameat2", 4),
    ("flock", 4),
    ("unlink,unlinkat", 4),
];

#[test]
fn killed_at_any_system_call_a_backup_leaves_nothing_incomplete() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("tree");
    little(&tree);
    for (calls, most) in CALLS {
        let (mut kills, repository) = (0, dir.path().join(calls));
        for when in 1..=most {
            // Steps grow: the first calls set the stage, the later ones are alike.
            if when > 12 && when % 7 != 0 {
                continue;
            }
            let before = listed(&repository);
            let ran = tampered(
                &format!("{calls}:signal=KILL:when={when}"),
                &tree,
                &repository,
            );
            let after = listed(&repository);
            if ran.code == 0 {
                break;
            }
            kills += 1;
            let new: Vec<_> = after.iter().filter(|id| !before.contains(id)).collect();
            assert!(
                after.len() - new.len() == before.len() && new.len() <= 1,
                "{calls} {when}: {before:?} {after:?}"
            );
            new.into_iter()
                .for_each(|id| assert_restores(&tree, &repository, id));
            if when % 3 == 0 {
                fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
                assert_no_leftovers(&repository);
            }
        }
        assert!(
            kills > 0,
            "{calls} is never called: this test tests nothing"
        );
        fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
        assert_no_leftovers(&repository);
        fullbore(args!["verify", repository, "--data", "--against", tree]).ends_with(0);
    }
}

#[test]
fn killed_at_any_system_call_an_archive_is_the_old_one_or_the_new_one() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    little(&old);
    little(&new);
    runs::write(new.join("more"), "the newer one");
    let place = dir.path().join("place");
    fs::create_dir(&place).unwrap();
    for name in ["x.tar.zst", "x.tar.lz4"] {
        let archive = place.join(name);
        for calls in [
            "fsync",
            "rename,renameat,renameat2",
            "unlink,unlinkat",
            "pwrite64",
        ] {
            for when in 1..=4 {
                fullbore(args!["backup", old, "--to", archive, "--quiet"]).ends_with(0);
                let ran = tampered(&format!("{calls}:signal=KILL:when={when}"), &new, &archive);
                assert_whole(
                    &archive,
                    &old,
                    &new,
                    ran.code == 0,
                    &format!("{name} {calls} {when}"),
                );
                fullbore(args!["backup", new, "--to", archive, "--quiet"]).ends_with(0);
                let there: Vec<_> = names(&place)
                    .into_iter()
                    .filter(|name| name.contains("partial"))
                    .collect();
                assert_eq!(there, [""; 0], "{name} {calls} {when}");
                if ran.code == 0 {
                    break;
                }
            }
        }
        fullbore(args!["verify", archive, "--data", "--against", new]).ends_with(0);
        fs::remove_dir_all(&place).unwrap();
        fs::create_dir(&place).unwrap();
    }
}

fn assert_whole(archive: &Path, old: &Path, new: &Path, done: bool, case: &str) {
    let dir = temp();
    let back = dir.path().join("back");
    let ran = fullbore(args!["restore", archive, "--to", back, "--quiet"]);
    assert_eq!(ran.code, 0, "{case}: {}", ran.err);
    let (old, new, back) = (shape(old), shape(new), shape(&back));
    assert!(
        back == new || (back == old && !done),
        "{case}: {:?}",
        runs::differences(&old, &back)
    );
}

/// Feed `len` bytes to a backup of standard input; it goes on.
fn underway(repository: &Path, len: usize) -> std::process::Child {
    let options = args!["--segment-size", "1M", "--frame-size", "64K", "--quiet"];
    let mut child = started(
        args!["backup", "--stdin-name", "s", "--to", repository]
            .into_iter()
            .chain(options),
    );
    child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(&noise(7, len))
        .unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    while stored_bytes(repository) + (1 << 20) < len as u64
        || names(&repository.join("intents")).is_empty()
    {
        assert!(Instant::now() < until, "nothing is stored");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

fn stored_bytes(repository: &Path) -> u64 {
    let find = shell(
        "find \"$1\" -name 's0*' -printf '%s\\n' 2>/dev/null",
        args![repository],
    );
    find.out
        .lines()
        .filter_map(|line| line.parse::<u64>().ok())
        .sum()
}

#[test]
fn killed_after_any_number_of_stored_bytes_a_backup_is_not_listed() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    little(&tree);
    for stored in [0, 70_000, 1_000_000, 1_100_000, 2_500_000, 5_000_000] {
        let before = listed(&repository);
        let mut child = underway(&repository, stored);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(listed(&repository), before);
        fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
        assert_no_leftovers(&repository);
    }
    listed(&repository)
        .iter()
        .for_each(|id| assert_restores(&tree, &repository, id));
}

#[test]
fn killed_at_any_time_a_backup_leaves_nothing_incomplete() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    sample(&tree);
    let backup = || args!["backup", tree, "--to", repository, "--quiet"];
    let start = Instant::now();
    fullbore(backup()).ends_with(0);
    let whole = start.elapsed();
    for part in 0..12 {
        let mut child = started(backup());
        std::thread::sleep(whole * part / 10);
        child.kill().unwrap(); // it may be over
        child.wait().unwrap();
    }
    fullbore(backup()).ends_with(0);
    assert_no_leftovers(&repository);
    listed(&repository)
        .iter()
        .for_each(|id| assert_restores(&tree, &repository, id));
}

/// A backup of standard input to `to`, in `line` of a shell, once something of it is there.
fn held(line: &str, to: &Path, stderr: Stdio) -> Child {
    let place = to.parent().unwrap();
    let before = names(place);
    let words = args![
        "-c",
        line,
        "sh",
        runs::FULLBORE,
        "backup",
        "--stdin-name",
        "s",
        "--to",
        to
    ];
    let mut child = Command::new("sh")
        .args(words)
        .stdin(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(&noise(7, 3_000_000))
        .unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    while names(place) == before {
        assert!(Instant::now() < until, "nothing is there");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

fn send(signal: &str, child: &Child) {
    shell(
        "kill -s \"$1\" \"$2\"",
        args![signal, child.id().to_string()],
    )
    .ends_with(0);
}

#[test]
fn a_signal_ends_a_backup_with_a_word_and_leaves_no_half_archive() {
    let dir = temp();
    for target in ["x.tar.zst", "x.tar.gz", "r"] {
        for (signal, number) in [("HUP", 1), ("INT", 2), ("TERM", 15)] {
            let place = dir.path().join(format!("{target}.{signal}"));
            fs::create_dir(&place).unwrap();
            // Whoever runs the tests may want some ignored, as nohup does.
            let child = held(
                "exec env --default-signal=HUP,INT,TERM \"$@\"",
                &place.join(target),
                Stdio::piped(),
            );
            send(signal, &child);
            let ended = child.wait_with_output().unwrap();
            assert_eq!(ended.status.signal(), Some(number), "{target}");
            let words = String::from_utf8(ended.stderr).unwrap();
            let expected = format!("error: interrupted by SIG{signal}: nothing was committed\n");
            assert!(words.starts_with(&expected), "{words}");
            assert_eq!(words.contains("hint"), target == "r", "{words}");
            assert_eq!(
                names(&place),
                if target == "r" { vec!["r"] } else { vec![] }
            );
        }
    }
}

/// What a run says that a signal ends as soon as it is `there`, while a call is held up.
fn ended_behind(
    inject: &str,
    args: impl IntoIterator<Item = OsString>,
    there: impl Fn() -> bool,
) -> String {
    let line =
        "strace -f -qq -o /dev/null -e \"inject=$1\" sh -c 'echo $$ && exec \"$@\"' sh \"${@:2}\"";
    let mut strace = Command::new("bash");
    strace
        .args(["-c", line, "bash", inject, runs::FULLBORE])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = strace.spawn().unwrap();
    let mut pid = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut pid)
        .unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while !there() {
        assert!(Instant::now() < until, "nothing is there");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(200));
    shell("kill -s TERM \"$1\"", args![pid.trim()]).ends_with(0);
    String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap()
}

#[test]
fn a_signal_behind_the_commit_does_not_say_that_nothing_was_committed() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("tree");
    little(&tree);
    let [repository, copy] = ["r", "copy"].map(|name| dir.path().join(name));
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    let first = only(&repository.join("backups"))
        .file_name()
        .unwrap()
        .to_owned();
    let roots = |path: &Path| {
        shell("ls \"$1\"/backups/*/root.json", args![path])
            .out
            .lines()
            .count()
    };
    let [archive, exported] = ["x.tar.lz4", "y.tar.zst"].map(|name| dir.path().join(name));
    let of_first = args![format!("{}@{}", repository.display(), first.display())];
    // Each run is held up behind its commit: where it removes its partial root, or syncs the directory of an archive. A copy
    // removes the document of a forgotten backup before.
    let unlink = "unlinkat:delay_enter=3000000:when=1";
    let sync = "fsync:delay_enter=3000000";
    let backup = |target: &Path| args!["backup", tree, "--to", target, "--quiet"].to_vec();
    let args_of = |verb: &str, target: &Path| {
        [
            &args![verb][..],
            &of_first,
            &args!["--to", target, "--quiet"],
        ]
        .concat()
    };
    let cases: [(_, _, &dyn Fn() -> bool); 4] = [
        (unlink, backup(&repository), &|| roots(&repository) == 2),
        (sync, backup(&archive), &|| archive.exists()),
        (sync, args_of("export", &exported), &|| exported.exists()),
        (
            "unlinkat:delay_enter=3000000:when=3",
            [&args!["copy"][..], &of_first, &args![copy, "--quiet"]].concat(),
            &|| roots(&copy) == 1,
        ),
    ];
    for (inject, args, there) in cases {
        let words = ended_behind(inject, args, there);
        let expected =
            "error: interrupted by SIGTERM: what it made is complete, but may not be durable yet\n";
        assert!(words.starts_with(expected), "{words}"); // strace may complain
    }
    for (source, more) in [(&repository, 2), (&copy, 1)] {
        assert_eq!(roots(source), more);
        fullbore(args!["verify", source, "--data"]).ends_with(0);
    }
    for source in [&archive, &exported] {
        fullbore(args!["verify", source, "--data", "--against", tree]).ends_with(0);
    }
}

#[test]
fn a_signal_that_is_to_be_ignored_is_and_one_that_is_not_ends_the_run_whoever_listens() {
    let dir = temp();
    let archive = dir.path().join("x.tar.zst");
    let mut child = held("trap '' HUP; exec \"$@\"", &archive, Stdio::null());
    send("HUP", &child);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    fullbore(args!["verify", archive, "--data"]).ends_with(0);
    let (_unread, mut full) = std::io::pipe().unwrap();
    full.write_all(&[b'x'; 1 << 16]).unwrap(); // as much as a pipe holds
    let mut child = held("exec \"$@\"", &dir.path().join("y.tar.zst"), full.into());
    send("TERM", &child);
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    assert_eq!(names(dir.path()), ["x.tar.zst"]);
}

#[test]
fn a_backup_under_way_is_left_alone_by_another() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    little(&tree);
    let mut child = underway(&repository, 2_000_000);
    let intent = only(&repository.join("intents"));
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    assert!(intent.exists());
    assert_eq!(listed(&repository).len(), 1);
    drop(child.stdin.take());
    Ran::from(child.wait_with_output().unwrap()).ends_with(0);
    assert_eq!(listed(&repository).len(), 2);
    assert_no_leftovers(&repository);
    for id in listed(&repository) {
        fullbore(args![
            "verify",
            format!("{}@{id}", repository.display()),
            "--data"
        ])
        .ends_with(0);
    }
}

#[test]
fn first_backups_at_the_same_time_make_one_repository() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    little(&tree);
    let children: Vec<_> = (0..6)
        .map(|_| started(args!["backup", tree, "--to", repository, "--quiet"]))
        .collect();
    children
        .into_iter()
        .for_each(|child| drop(Ran::from(child.wait_with_output().unwrap()).ends_with(0)));
    assert_eq!(listed(&repository).len(), 6);
    assert_no_leftovers(&repository);
    listed(&repository)
        .iter()
        .for_each(|id| assert_restores(&tree, &repository, id));
}

#[test]
fn a_full_disk_ends_the_backup_with_one_error_and_leaves_nothing() {
    let dir = temp();
    let (tree, place) = (dir.path().join("tree"), dir.path().join("place"));
    runs::write(tree.join("f"), noise(1, 9_000_000));
    let Some(_mount) = Mount::tmpfs(&place, "4m") else {
        return;
    };
    let repository = place.join("repository");
    for target in [
        repository.clone(),
        place.join("x.tar.zst"),
        place.join("x.tar.gz"),
        place.join("x.tar"),
    ] {
        let ran = fullbore(args!["backup", tree, "--to", target])
            .ends_with(1)
            .has_one_error("no space left");
        assert!(
            ran.err.contains("nothing was committed") && ran.err.contains("hint:"),
            "{}",
            ran.err
        );
    }
    assert_eq!(listed(&repository), [""; 0]);
    assert_no_leftovers(&repository);
    assert_eq!(names(&repository.join("backups")), [""; 0]);
    assert_eq!(names(&place), ["repository"]);
    little(&dir.path().join("little"));
    fullbore(args![
        "backup",
        dir.path().join("little"),
        "--to",
        repository,
        "--quiet"
    ])
    .ends_with(0);
}

#[test]
fn an_error_of_the_device_ends_the_backup_with_one_error_and_leaves_nothing() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("tree");
    little(&tree);
    for (calls, most) in [("pwrite64", 5), ("fsync", 9)] {
        for (target, when) in [PathBuf::from("r"), "x.tar.zst".into(), "x.tar.gz".into()]
            .iter()
            .flat_map(|target| (1..=most).map(move |n| (target, n)))
        {
            let place = temp();
            let target = place.path().join(target);
            let ran = tampered(&format!("{calls}:error=EIO:when={when}"), &tree, &target);
            if ran.code == 0 {
                continue;
            }
            let ran = ran.ends_with(1).has_one_error("input/output error");
            if target.ends_with("r") {
                assert_eq!(listed(&target), [""; 0], "{calls} {when}");
                assert_eq!(
                    names(&target.join("backups")),
                    [""; 0],
                    "{calls} {when}: {}",
                    ran.err
                );
                assert_no_leftovers(&target);
            } else {
                assert_eq!(names(place.path()), [""; 0], "{calls} {when}: {}", ran.err);
            }
        }
    }
}

#[test]
fn a_destination_that_vanishes_ends_the_backup_with_one_error() {
    let dir = temp();
    let repository = dir.path().join("repository");
    let mut child = underway(&repository, 1_500_000);
    fs::remove_dir_all(&repository).unwrap();
    drop(child.stdin.take());
    Ran::from(child.wait_with_output().unwrap())
        .ends_with(1)
        .has_one_error("no such file");
    assert!(!repository.exists());
}

#[test]
fn a_reader_that_goes_away_ends_the_backup_with_one_error() {
    let dir = temp();
    runs::write(dir.path().join("f"), noise(1, 4 << 20));
    let ran = shell(
        "\"$1\" backup \"$2\" --to - | head -c 100000 >/dev/null",
        args![runs::FULLBORE, dir.path()],
    );
    ran.ends_with(1)
        .has_one_error("could not write to standard output");
    let ran = shell(
        "\"$1\" backup \"$2\" --to - >/dev/full",
        args![runs::FULLBORE, dir.path()],
    );
    ran.ends_with(1).has_one_error("no space left");
    // Opened for reading only.
    let ran = shell(
        "\"$1\" backup \"$2\" --to - 1<\"$2/f\"",
        args![runs::FULLBORE, dir.path()],
    );
    ran.ends_with(1)
        .has_one_error("could not write to standard output: bad file descriptor");
}

#[test]
fn a_file_that_is_no_archive_is_refused_and_kept() {
    let dir = temp();
    let (tree, archive) = (dir.path().join("tree"), dir.path().join("x.tar.zst"));
    little(&tree);
    runs::write(&archive, "precious");
    fullbore(args!["backup", tree, "--to", archive])
        .ends_with(1)
        .has_one_error("is not a fullbore archive");
    assert_eq!(fs::read(&archive).unwrap(), b"precious");
    runs::write(dir.path().join("full/of"), "something");
    let target = dir.path().join("full");
    fullbore(args!["backup", tree, "--to", target])
        .ends_with(2)
        .has_one_error("it is not empty");
    assert_eq!(names(&target), ["of"]);
}

#[test]
fn an_archive_is_replaced_only_when_the_new_one_is_complete() {
    let dir = temp();
    let (tree, archive) = (dir.path().join("tree"), dir.path().join("x.tar.zst"));
    little(&tree);
    fullbore(args!["backup", tree, "--to", archive, "--quiet"]).ends_with(0);
    let before = fs::read(&archive).unwrap();
    let mut child = started(args![
        "backup",
        "--stdin-name",
        "s",
        "--to",
        archive,
        "--quiet"
    ]);
    child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(&noise(1, 3_000_000))
        .unwrap();
    assert!(fs::read(&archive).unwrap() == before);
    drop(child.stdin.take());
    Ran::from(child.wait_with_output().unwrap()).ends_with(0);
    assert!(fs::read(&archive).unwrap() != before);
    assert_eq!(names(dir.path()), ["tree", "x.tar.zst"]);
}

#[test]
fn a_destination_that_may_not_be_written_is_an_error() {
    let dir = temp();
    let (tree, closed) = (dir.path().join("tree"), dir.path().join("closed"));
    little(&tree);
    fs::create_dir(&closed).unwrap();
    runs::set_mode(&closed, 0o555);
    for target in [closed.join("r"), closed.join("x.tar.zst")] {
        let ran = if is_root() {
            runs::set_mode(dir.path(), 0o755);
            shell(
                "setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"",
                args![runs::FULLBORE, "backup", tree, "--to", target],
            )
        } else {
            fullbore(args!["backup", tree, "--to", target])
        };
        ran.ends_with(1).has_one_error("permission denied");
    }
}

#[test]
fn a_large_file_that_cannot_be_read_to_its_end_is_listed_and_the_rest_goes_on() {
    if !or_skip(has("strace"), "strace") {
        return;
    }
    let dir = temp();
    let (tree, target, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("back"),
    );
    runs::write(tree.join("large"), noise(1, 1 << 20));
    std::fs::hard_link(tree.join("large"), tree.join("other-name")).unwrap();
    // Not a file: strace counts the reads of each thread, and any of them may be the one that fails.
    std::os::unix::fs::symlink("large", tree.join("small")).unwrap();
    // 16 pieces on two threads: one of them reads at least 8.
    for when in [1, 3, 8] {
        let target = target.join(when.to_string());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        let ran = tampered(&format!("preadv2:error=EIO:when={when}"), &tree, &target).ends_with(3);
        assert!(
            ran.err
                .starts_with("not captured: \"large\": input/output error\n"),
            "{}",
            ran.err
        );
        let shown = fullbore(args!["show", target, "--json"])
            .ends_with(0)
            .json();
        let missing = shown[0]["root"]["not_captured"].as_array().unwrap();
        assert_eq!(
            missing
                .iter()
                .map(|m| m["path"].as_str().unwrap())
                .collect::<Vec<_>>(),
            ["large", "other-name"]
        );
        assert!(
            missing[0]["reason"]
                .as_str()
                .unwrap()
                .contains("input/output error"),
            "{missing:?}"
        );
        fullbore(args!["restore", target, "--to", back, "--quiet"]).ends_with(3);
        let names: Vec<_> = std::fs::read_dir(&back)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["small"]);
        fullbore(args!["verify", target, "--data"]).ends_with(0);
        std::fs::remove_dir_all(&back).unwrap();
    }
}
