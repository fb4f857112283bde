//! What a backup over ssh receives when nothing has changed: the manifest that it is compared with stays on this host.

use super::{
    over_ssh::{scratch, text},
    sshd::sshd,
};
use fullbore_format::{root::Root, seal::open_sealed};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

/// Bytes that a backup without changes receives at most, of a manifest with several times as many.
const RECEIVED_BYTES: u64 = 12_000;

/// A tree of which each directory has pages of its own: a page ends at 2 MiB of names and targets.
fn tree(path: &Path) {
    for number in 0..8u32 {
        let directory = path.join(format!("{number:02}"));
        fs::create_dir_all(&directory).unwrap();
        for link in 0..600u32 {
            let digest = blake3::hash(&[number.to_le_bytes(), link.to_le_bytes()].concat());
            let target = digest.to_hex().repeat(60);
            symlink(target, directory.join(format!("{link:03}"))).unwrap();
        }
    }
}

/// A command in place of ssh that counts what it receives.
fn counting(dir: &Path) -> String {
    let script = dir.join("counting");
    let received = dir.join("received");
    let text = format!(
        "#!/bin/sh\n{} \"$@\" | tee {}\n",
        sshd().command(),
        received.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    script.display().to_string()
}

#[test]
fn a_backup_without_changes_receives_no_page_over_ssh() {
    let dir = scratch();
    let (source, repository) = (dir.path().join("source"), dir.path().join("repository"));
    tree(&source);
    let ssh = counting(dir.path());
    let there = format!("ssh://far{}", repository.display());
    let backup = |more: &[&str]| {
        let mut command: Command =
            sshd().fullbore(&["backup", source.to_str().unwrap(), "--to", &there]);
        command.args(more).env("FULLBORE_SSH", &ssh);
        if more.is_empty() {
            command.arg("--cache-dir").arg(dir.path().join("cache"));
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        fs::metadata(dir.path().join("received")).unwrap().len()
    };
    // What is as young as a backup is read again, and a file that was written just now has no version.
    thread::sleep(Duration::from_millis(3100));
    backup(&[]);
    thread::sleep(Duration::from_millis(4100));
    for run in 2..5 {
        let received = backup(&[]);
        assert!(received <= RECEIVED_BYTES, "{run}: {received}");
    }
    let uncached = backup(&["--no-cache"]);
    assert!(uncached > 3 * RECEIVED_BYTES, "{uncached}");
    // The roots are short: their lists were in what was kept.
    let mut ids: Vec<_> = fs::read_dir(repository.join("backups"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    ids.sort();
    for id in &ids[1..] {
        let root: Root = open_sealed(&fs::read(id.join("root.json")).unwrap(), "it").unwrap();
        assert!(root.is_short());
    }
}
