//! That a restore says it is done only when it is durable, on file systems that do not tell it at once.

#![allow(missing_docs)]

mod runs;

use runs::{Mount, fullbore, has, or_skip, shell, tampered, temp};
use std::{fs, path::Path};

/// A backup of some files, one of them large, and a directory for the target.
fn backup(dir: &Path) -> std::path::PathBuf {
    let (tree, repo) = (dir.join("tree"), dir.join("repo"));
    for i in 0..20 {
        runs::write(tree.join(format!("d{}/f{i}", i % 3)), "content");
    }
    fs::write(tree.join("large"), vec![7; 3 << 20]).unwrap();
    fullbore(args!["backup", tree, "--to", repo, "--quiet"]).ends_with(0);
    repo
}

/// Calls of this name that a run makes.
fn calls(name: &str, dir: &Path, args: impl IntoIterator<Item = std::ffi::OsString>) -> usize {
    let log = dir.join("calls");
    let line = "log=$1; call=$2; shift 2; strace -f -qq -e trace=$call -o \"$log\" \"$@\"";
    let args = args![log, name, runs::FULLBORE].into_iter().chain(args);
    shell(line, args).ends_with(0);
    fs::read_to_string(log).unwrap().matches(&format!("{name}(")).count()
}

/// Restores into `to`, a directory on a file system that hides what goes wrong, ask each file.
fn assert_asks(dir: &Path, repo: &Path, to: &Path) {
    let new = |name: &str| to.join(name);
    let asked = calls("fsync", dir, args!["restore", repo, "--to", new("a")]);
    assert!(asked >= 21 + 4, "{asked}");
    // So it hears of an error.
    let ran = tampered("fsync:error=EIO:when=7", None, args!["restore", repo, "--to", new("b")]).ends_with(1);
    assert!(ran.err.contains("could not make durable"), "{}", ran.err);
    let again = calls("fsync", dir, args!["restore", repo, "--to", new("a"), "--delta"]);
    assert!(again >= 21, "{again}");
    let cat = |line: &str| shell(line, args![repo, runs::FULLBORE, new("c")]).ends_with(0);
    cat("zstd -dcq \"$1\"/backups/*/s*.zst | \"$2\" restore - --to \"$3\"");
}

#[test]
fn an_overlay_hides_errors_of_what_lies_below() {
    let dir = temp();
    let repo = backup(dir.path());
    let [low, up, to] = ["low", "up", "to"].map(|name| dir.path().join(name));
    for at in [&low, &to] {
        fs::create_dir(at).unwrap();
    }
    let Some(_tmpfs) = Mount::tmpfs(&up, "40m") else { return };
    let line = "mkdir \"$2/u\" \"$2/w\" && mount -t overlay -o \"lowerdir=$1,upperdir=$2/u,workdir=$2/w\" none \"$3\"";
    let mounted = shell(line, args![low, up, to]).code == 0;
    if or_skip(mounted, "no overlay can be mounted here") {
        let _overlay = Mount::at(&to);
        assert_asks(dir.path(), &repo, &to);
    }
}

#[test]
fn a_file_system_of_fuse_is_asked_for_each_file() {
    let dir = temp();
    let repo = backup(dir.path());
    let [below, to] = ["below", "to"].map(|name| dir.path().join(name));
    for at in [&below, &to] {
        fs::create_dir(at).unwrap();
    }
    let mounted = has("bindfs") && shell("bindfs \"$1\" \"$2\"", args![below, to]).code == 0;
    if or_skip(mounted, "no bindfs can be mounted here") {
        let _fuse = Mount::at(&to);
        assert_asks(dir.path(), &repo, &to);
    }
}

#[test]
fn elsewhere_one_call_is_enough() {
    let dir = temp();
    let repo = backup(dir.path());
    let at = dir.path().join("at");
    let Some(_tmpfs) = Mount::tmpfs(&at, "40m") else { return };
    let (to, args) = (at.join("to"), |to: &Path| args!["restore", repo, "--to", to]);
    assert_eq!(calls("syncfs", dir.path(), args(&to)), 1);
    assert!(calls("fsync", dir.path(), args(&at.join("two"))) < 5);
}
