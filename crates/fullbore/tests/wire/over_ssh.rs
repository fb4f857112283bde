//! Whole commands over ssh.

use super::{
    sshd::{self, FULLBORE, sshd},
    suite::pattern,
};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

pub(crate) fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}

/// Runs fullbore, which must end with this code. Returns what it printed.
pub(crate) fn fullbore(code: i32, arguments: &[&str]) -> String {
    let output = sshd().fullbore(arguments).output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    said
}

/// A tree with small and large files.
pub(crate) fn tree(path: &Path) {
    fs::create_dir_all(path.join("sub")).unwrap();
    for number in 0..40 {
        fs::write(
            path.join(format!("sub/{number}")),
            pattern(number * 97, number as u64),
        )
        .unwrap();
    }
    fs::write(path.join("large"), pattern(9_000_000, 3)).unwrap();
}

/// Every file below a directory, by its path.
pub(crate) fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(place) = waiting.pop() {
        for entry in fs::read_dir(place).unwrap().map(|entry| entry.unwrap()) {
            let path = entry.path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().display().to_string();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// A directory for sources and repositories.
pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("fullbore-wire")
        .tempdir_in("/var/tmp")
        .unwrap()
}

/// The files of a source that was restored, however deep its path is there.
pub(crate) fn restored(to: &Path, source: &Path) -> BTreeMap<String, Vec<u8>> {
    let path = source.strip_prefix("/").unwrap();
    let whole = to.join(path);
    files(if whole.exists() { &whole } else { to })
}

fn only_backup(repository: &Path) -> String {
    let mut ids: Vec<_> = fs::read_dir(repository.join("backups"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    ids.remove(0)
}

/// A segment behind its label, the second frame, which names the backup.
fn after_label(bytes: &[u8]) -> Vec<u8> {
    let is_skippable = |four: &[u8]| four[0] & 0xf0 == 0x50 && four[1..] == [0x2a, 0x4d, 0x18];
    let offset = bytes.windows(4).position(is_skippable).unwrap();
    let len = u32::from_le_bytes(bytes[offset + 4..offset + 8].try_into().unwrap()) as usize;
    bytes[offset + 8 + len..].to_vec()
}

/// The segments of all backups, without the names of backups.
pub(crate) fn segments(repository: &Path) -> Vec<(String, Vec<u8>)> {
    let all = files(&repository.join("backups")).into_iter();
    let segments = all.filter(|(name, _)| name.ends_with(".tar.zst"));
    segments
        .map(|(name, bytes)| {
            let (_, name) = name.split_once('/').unwrap();
            (name.to_owned(), after_label(&bytes))
        })
        .collect()
}

#[test]
fn every_verb_works_with_a_repository_on_another_host() {
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source);
    let repository = dir.path().join("repository");
    let there = format!("ssh://far{}", repository.display());
    let src = source.to_str().unwrap();
    fullbore(0, &["init", &there]);
    let said = fullbore(0, &["backup", src, "--to", &there]);
    assert!(
        said.contains(&format!("is complete in {there:?}")),
        "{said}"
    );
    let first = only_backup(&repository);
    // The same command with the repository near makes the same segments.
    let near = dir.path().join("near");
    fullbore(0, &["backup", src, "--to", near.to_str().unwrap()]);
    let same = segments(&repository);
    assert!(!same.is_empty() && same == segments(&near));
    fs::write(source.join("sub/1"), "changed").unwrap();
    fullbore(0, &["backup", src, "--to", &there]);
    let listed = fullbore(0, &["list", &there]);
    assert_eq!(listed.matches(src).count(), 2, "{listed}");
    fullbore(0, &["list", &format!("{there}@{first}")]);
    fullbore(0, &["show", &there]);
    fullbore(0, &["verify", &there, "--data"]);
    fullbore(0, &["verify", &there, "--sample", "10%"]);
    fullbore(0, &["find", &there, "sub/1"]);
    fullbore(
        0,
        &[
            "diff",
            &format!("{there}@{first}"),
            &format!("{there}@latest"),
        ],
    );
    fullbore(0, &["tag", &there, "kind=test"]);
    fullbore(0, &["pin", &format!("{there}@{first}")]);
    fullbore(0, &["unpin", &format!("{there}@{first}")]);
    fullbore(0, &["repair", &there]);
    let target = dir.path().join("restored");
    fullbore(0, &["restore", &there, "--to", target.to_str().unwrap()]);
    assert_eq!(restored(&target, &source), files(&source));
    let copy = format!("ssh://far{}", dir.path().join("copy").display());
    fullbore(0, &["copy", &there, &copy]);
    fullbore(0, &["verify", &copy]);
    let export = dir.path().join("full.tar.zst");
    fullbore(0, &["export", &there, "--to", export.to_str().unwrap()]);
    fullbore(0, &["forget", "--yes", &there, &first]);
    fullbore(0, &["prune", &there]);
    fullbore(0, &["verify", &there, "--data"]);
    fullbore(0, &["verify", repository.to_str().unwrap(), "--data"]);
}

#[test]
fn an_encrypted_repository_on_another_host_is_opened_with_keys_of_this_one() {
    let dir = scratch();
    tree(&dir.path().join("source"));
    let source = dir.path().join("source");
    let there = format!("ssh://far{}/repository", dir.path().display());
    let (key, recipient) = sshd().user_key();
    let key_option = ["--key", key.to_str().unwrap()];
    let backup = ["backup", source.to_str().unwrap(), "--to", &there];
    fullbore(0, &[&backup[..], &["--encrypt-to", &recipient]].concat());
    fullbore(0, &[&["verify", &there][..], &key_option].concat());
    // Without the key only lengths are checked.
    fullbore(0, &["verify", &there]);
    let target = dir.path().join("restored");
    let restore = ["restore", &there, "--to", target.to_str().unwrap()];
    fullbore(1, &restore);
    fullbore(0, &[&restore[..], &key_option].concat());
    assert_eq!(restored(&target, &source), files(&source));
    fullbore(0, &[&["key", "list", &there][..], &key_option].concat());
}

#[test]
fn what_is_wrong_on_the_other_host_is_said_with_what_to_do() {
    let dir = scratch();
    let there = format!("ssh://far{}/none", dir.path().display());
    let said = fullbore(1, &["list", &there]);
    assert!(said.contains(&there), "{said}");
    let said = fullbore(
        1,
        &[
            "list",
            &format!("ssh://far{}/none/at/all", dir.path().display()),
        ],
    );
    assert!(said.contains("/none/at"), "{said}");
    fs::write(dir.path().join("x"), "").unwrap();
    fullbore(2, &["list", &format!("ssh://far{}", dir.path().display())]);
    fullbore(2, &["list", "ssh://-oProxyCommand=touch/x"]);
    fullbore(2, &["list", "ssh://far"]);
    // No such host, no ssh, no fullbore, another version, and a shell that prints.
    let said = fullbore(1, &["list", "ssh://no-such-host.invalid/x"]);
    assert!(said.contains("ssh failed"), "{said}");
    let args_with = |ssh: &str, program: &str| {
        let output = sshd::program()
            .args(["list", &there, "--ssh", ssh, "--far-program", program])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        text(&output)
    };
    let ssh = sshd().command();
    let said = args_with("/none/ssh", "fullbore");
    assert!(said.contains("could not start \"/none/ssh\""), "{said}");
    let said = args_with(&ssh, "/none/fullbore");
    assert!(said.contains("--far-program"), "{said}");
    for (script, expected) in [
        (
            "echo 'fullbore wire 999 9.9.9'; cat",
            "install the same version",
        ),
        ("echo 'Welcome to db1'; exec cat", "must print nothing"),
        ("exit 3", "exit code 3"),
    ] {
        let other = dir.path().join("a program's other version");
        fs::write(&other, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
        let said = args_with(&ssh, other.to_str().unwrap());
        assert!(said.contains(expected), "{script}: {said}");
    }
}

#[test]
fn a_host_that_may_append_backs_up_again_and_again_and_cannot_forget() {
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source);
    let vault = sshd().vault();
    let there = format!("ssh://limited{}", vault.display());
    let source = source.to_str().unwrap();
    // A backup in the name of another host ends before anything is stored.
    let said = fullbore(1, &["backup", source, "--to", &there, "--host", "web2"]);
    assert!(said.contains("run the backup with --host web1"), "{said}");
    assert_eq!(
        files(&vault).into_keys().collect::<Vec<_>>(),
        ["fullbore-repo.json"]
    );
    let backup = ["backup", source, "--to", &there, "--host", "web1"];
    fullbore(0, &backup);
    let first = only_backup(&vault);
    let before = files(&vault.join("backups"));
    fullbore(0, &backup);
    fullbore(0, &["verify", &there, "--data"]);
    let said = fullbore(1, &["forget", "--yes", &there, &first]);
    assert!(said.contains("this host may only add backups"), "{said}");
    let latest = format!("{there}@latest");
    for command in [&["pin", &latest][..], &["tag", &latest, "a=b"]] {
        let code = sshd().fullbore(command).output().unwrap();
        assert_ne!(code.status.code(), Some(0), "{command:?}: {}", text(&code));
    }
    let other = format!("ssh://limited{}/other", dir.path().display());
    let said = fullbore(1, &["init", &other]);
    assert!(said.contains("only"), "{said}");
    let after = files(&vault.join("backups"));
    for (name, bytes) in &before {
        assert!(after.get(name) == Some(bytes), "{name}");
    }
}

/// The process of the ssh that a command has started.
pub(crate) fn ssh_of(parent: u32) -> Option<u32> {
    let listed = Command::new("ps")
        .args(["-o", "pid=", "-o", "comm=", "--ppid", &parent.to_string()])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let ssh = listed
        .lines()
        .find_map(|line| line.trim().strip_suffix(" ssh").map(str::trim));
    ssh.map(|process| process.parse().unwrap())
}

/// Ends the ssh that a command has started, and no other one.
pub(crate) fn kill_ssh_of(parent: u32) -> bool {
    ssh_of(parent).is_some_and(|process| {
        let kill = ["-9", &process.to_string()];
        Command::new("kill").args(kill).status().unwrap().success()
    })
}

#[test]
fn a_backup_whose_ssh_is_killed_goes_on_or_commits_nothing_and_the_next_one_works() {
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source);
    fs::write(source.join("more"), pattern(40_000_000, 5)).unwrap();
    let repository = dir.path().join("repository");
    let there = format!("ssh://far{}", repository.display());
    let source = source.to_str().unwrap();
    let mut done = 0;
    for delay in [0, 150, 300, 500, 800] {
        let mut backup = sshd()
            .fullbore(&[
                "backup",
                source,
                "--to",
                &there,
                "--max-rate",
                "20M",
                "--full",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let began = Instant::now();
        thread::sleep(Duration::from_millis(delay));
        let mut killed = 0;
        while backup.try_wait().unwrap().is_none() {
            killed += usize::from(kill_ssh_of(backup.id()));
            thread::sleep(Duration::from_millis(5));
        }
        assert!(killed > 0, "{delay}");
        let ended = backup.wait_with_output().unwrap();
        assert!(began.elapsed() < Duration::from_secs(300), "it did not end");
        // While ssh is the only connection, the backup ends with it.
        match ended.status.code() {
            Some(0) if delay > 0 => done += 1,
            code => assert_eq!(code, Some(1), "{}", text(&ended)),
        }
    }
    let roots = || {
        let all = files(&repository).into_keys();
        all.filter(|name| name.ends_with("root.json")).count()
    };
    if repository.exists() {
        assert_eq!(roots(), done);
    }
    fullbore(0, &["backup", source, "--to", &there]);
    assert_eq!(roots(), done + 1);
    fullbore(0, &["verify", &there, "--data"]);
    // Nothing of the others is left once it is pruned, and no process of a far host holds its intent.
    fullbore(0, &["prune", &there]);
    let intents = fs::read_dir(repository.join("intents")).map_or(0, |dir| dir.count());
    assert_eq!(intents, 0);
}

/// Stands in for ssh: runs the command of the far side here, and keeps what the near side says.
const RECORDING_SSH: &str = r#"#!/bin/sh
for command; do :; done
tee "$FULLBORE_SAID" | sh -c "$command"
"#;

/// The calls among the frames that a side has said.
fn calls(said: &[u8]) -> usize {
    let greeting = said.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut left = &said[greeting..];
    let mut calls = 0;
    while !left.is_empty() {
        let length = |offset: usize| {
            u32::from_le_bytes(left[offset..offset + 4].try_into().unwrap()) as usize
        };
        let (header, data) = (length(0), length(4));
        // A message is [number, [fields]], and 2 is the number of calls.
        calls += usize::from(left[8..10] == [0x82, 2]);
        left = &left[8 + header + data..];
    }
    calls
}

#[test]
fn a_backup_without_changes_needs_no_round_trip_for_a_file() {
    let dir = scratch();
    let ssh = dir.path().join("ssh");
    fs::write(&ssh, RECORDING_SSH).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let [few, many] = [20, 3000].map(|count| {
        let source = dir.path().join(format!("source-{count}"));
        fs::create_dir_all(&source).unwrap();
        for number in 0..count {
            fs::write(source.join(number.to_string()), number.to_string()).unwrap();
        }
        let there = format!("ssh://any{}/repository-{count}", dir.path().display());
        let said = dir.path().join("said");
        let backup = || {
            let output = sshd::program()
                .args(["backup", source.to_str().unwrap(), "--to", &there, "--ssh"])
                .arg(&ssh)
                .args(["--far-program", FULLBORE])
                .env("FULLBORE_SAID", &said)
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", text(&output));
            calls(&fs::read(&said).unwrap())
        };
        backup();
        backup()
    });
    println!("calls of a backup without changes: {few} for 20 files, {many} for 3000");
    assert!(few > 5 && few <= 16, "{few}");
    assert!(many <= few + 4, "{few} {many}");
}

/// The id, host and first path of each backup of a repository.
fn sources(repository: &str) -> Vec<(String, String)> {
    let output = sshd()
        .fullbore(&["list", repository, "--json"])
        .output()
        .unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let field = |line: &serde_json::Value, name: &str| line[name].to_string();
    let parsed = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    parsed
        .map(|line: serde_json::Value| (field(&line, "host"), field(&line, "source")))
        .collect()
}

#[test]
fn a_source_on_another_host_is_backed_up_there_as_a_near_one_is_here() {
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source);
    let src = source.to_str().unwrap();
    let [pulled, near, encrypted] =
        ["pulled", "near", "encrypted"].map(|name| dir.path().join(name));
    let [pulled_at, near_at, encrypted_at] =
        [&pulled, &near, &encrypted].map(|path| path.to_str().unwrap());
    let far_source = format!("ssh://far{src}");
    let said = fullbore(
        0,
        &["backup", &far_source, "--to", pulled_at, "--tag", "a=b"],
    );
    assert!(said.contains("is complete in"), "{said}");
    fullbore(0, &["backup", src, "--to", near_at, "--host", "far"]);
    let same = segments(&pulled);
    assert!(!same.is_empty() && same == segments(&near));
    assert_eq!(
        sources(pulled_at),
        sources(near_at),
        "the host that was asked"
    );
    // The next one is incremental, also as --on says it, and one of this host goes on from it.
    let before = files(&pulled);
    fs::write(source.join("sub/7"), "changed").unwrap();
    fullbore(
        0,
        &[
            "backup",
            "--on",
            "ssh://far",
            src,
            "--to",
            pulled_at,
            "--quiet",
        ],
    );
    fullbore(0, &["backup", src, "--to", pulled_at, "--host", "far"]);
    let added: usize = files(&pulled)
        .iter()
        .filter(|(name, _)| name.contains("/s0") && !before.contains_key(*name))
        .map(|(_, bytes)| bytes.len())
        .sum();
    assert!(added < 100_000, "{added}");
    fullbore(0, &["verify", pulled_at, "--data"]);
    let target = dir.path().join("restored");
    fullbore(0, &["restore", pulled_at, "--to", target.to_str().unwrap()]);
    assert_eq!(restored(&target, &source), files(&source));
    // Both ends far, and a key that stays here.
    let (key, recipient) = sshd().user_key();
    let there = format!("ssh://far{encrypted_at}");
    let backup = [
        "backup",
        &far_source,
        "--to",
        &there,
        "--encrypt-to",
        &recipient,
    ];
    fullbore(0, &backup);
    fullbore(0, &["verify", encrypted_at]);
    let key = key.to_str().unwrap();
    fullbore(0, &["verify", encrypted_at, "--data", "--key", key]);
    let target = dir.path().join("sealed");
    let restore = ["restore", encrypted_at, "--to", target.to_str().unwrap()];
    fullbore(1, &restore);
    fullbore(0, &[&restore[..], &["--key", key]].concat());
    assert_eq!(restored(&target, &source), files(&source));
}

#[test]
fn a_target_on_another_host_is_restored_there() {
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source);
    let near = dir.path().join("near");
    let near = near.to_str().unwrap();
    fullbore(0, &["backup", source.to_str().unwrap(), "--to", near]);
    for (origin, target) in [
        (near.to_owned(), "one"),
        (format!("{near}@latest"), "two"),
        (format!("ssh://far{near}@latest"), "three"),
    ] {
        let target = dir.path().join(target);
        let far_target = format!("ssh://far{}", target.display());
        fullbore(0, &["restore", &origin, "--to", &far_target]);
        assert_eq!(restored(&target, &source), files(&source), "{origin}");
        // The exit code and the words of the other host come back.
        let said = fullbore(1, &["restore", &origin, "--to", &far_target]);
        assert!(said.contains(target.to_str().unwrap()), "{said}");
    }
}

#[test]
fn what_another_host_cannot_run_is_refused() {
    let dir = scratch();
    let source = dir.path().join("none");
    let near = dir.path().join("near");
    let near = near.to_str().unwrap();
    let far_source = format!("ssh://far{}", source.display());
    let said = fullbore(1, &["backup", &far_source, "--to", near]);
    assert!(said.contains("none"), "{said}");
    fullbore(2, &["backup", &far_source, "--to", "-"]);
    fullbore(
        2,
        &["backup", &far_source, "--to", &format!("{near}.tar.zst")],
    );
    fullbore(2, &["backup", &far_source, near, "--to", near]);
    fullbore(2, &["backup", &far_source, "ssh://other/x", "--to", near]);
    // A directory above the repository is not made, as for a source of this host: its disk may not be mounted.
    let missing = dir.path().join("no/such/repository");
    let said = fullbore(
        1,
        &["backup", &far_source, "--to", missing.to_str().unwrap()],
    );
    assert!(said.contains("does not exist"), "{said}");
    assert!(!dir.path().join("no").exists());
    // A host that may only append runs nothing for others.
    let limited = format!("ssh://limited{}", source.display());
    let said = fullbore(1, &["backup", &limited, "--to", near]);
    assert!(said.contains("does not offer to run commands"), "{said}");
    let output = sshd()
        .fullbore(&["list", "peer:x"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
}
