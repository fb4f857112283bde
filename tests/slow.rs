//! Where each call takes its time, as over a network: jobs are smaller there and more threads do them, and nothing else changes.

#![allow(missing_docs)]

mod runs;

use runs::{assert_same, fullbore, has, or_skip, shape, shell, temp};
use std::{ffi::OsString, fs, path::Path};

/// Many directories, one in the other, and one of which several threads take a batch.
fn wide(tree: &Path) {
    for i in 0..150 {
        runs::write(tree.join(format!("d{}/e{}/f{i}", i % 30, i % 3)), format!("{i}"));
    }
    (0..1300).for_each(|i| runs::write(tree.join(format!("many/{i}")), ""));
    for (dir, mode) in [("d7/e1", 0o500), ("d7", 0o555)] {
        runs::set_mode(&tree.join(dir), mode);
        runs::set_mtime(&tree.join(dir), 1_700_000_000, 1);
    }
}

/// So that anybody can remove it.
fn open_up(tree: &Path) {
    ["d7", "d7/e1"].iter().for_each(|dir| runs::set_mode(&tree.join(dir), 0o755));
}

/// A run of which each such call takes 300 µs longer; gives the number of threads it started.
fn slowed(calls: &str, log: &Path, args: impl IntoIterator<Item = OsString>) -> usize {
    let line = format!(
        "strace -f -qq --seccomp-bpf -o \"$1\" -e trace={calls},clone3,clone -e inject={calls}:delay_enter=300 \"${{@:2}}\""
    );
    let args = [log.into(), runs::FULLBORE.into()].into_iter().chain(args);
    shell(&line, args).ends_with(0);
    let log = fs::read_to_string(log).unwrap();
    log.lines().filter(|line| line.contains("clone") && !line.contains("resumed>")).count()
}

#[test]
fn a_tree_that_is_slow_is_walked_by_more_threads_and_comes_back() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let [tree, quick, slow, log] = ["t", "quick", "slow", "log"].map(|name| dir.path().join(name));
    wide(&tree);
    let few = slowed("uname", &log, args!["backup", tree, "--to", quick, "--quiet"]);
    let many = slowed("statx", &log, args!["backup", tree, "--to", slow, "--quiet"]);
    assert!(many > few + 4, "{many} threads, and {few} where it is quick");
    for (from, calls) in [(quick, "uname"), (slow, "openat2,openat,mkdirat,utimensat,fchmod")] {
        let back = dir.path().join(format!("back {calls}"));
        slowed(calls, &log, args!["restore", from, "--to", back, "--quiet"]);
        assert_same(&shape(&tree), &shape(&back), calls);
        slowed(calls, &log, args!["verify", from, "--against", back, "--data"]);
        slowed(calls, &log, args!["restore", from, "--to", back, "--delta", "--quiet"]);
        fullbore(args!["verify", from, "--against", tree]).ends_with(0);
        open_up(&back);
    }
    open_up(&tree);
}
