//! Where each call takes its time, as over a network: jobs are smaller there and more threads do them, and nothing else changes.

use crate::runs;
use crate::runs::{assert_same, fullbore, has, or_skip, shape, shell, temp};
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

/// Many directories, one in the other, and one of which several threads take a batch.
fn wide(tree: &Path) {
    for i in 0..150 {
        runs::write(
            tree.join(format!("d{}/e{}/f{i}", i % 30, i % 3)),
            format!("{i}"),
        );
    }
    (0..1300).for_each(|i| runs::write(tree.join(format!("many/{i}")), ""));
    for (dir, mode) in [("d7/e1", 0o500), ("d7", 0o555)] {
        runs::set_mode(&tree.join(dir), mode);
        runs::set_mtime(&tree.join(dir), 1_700_000_000, 1);
    }
}

/// So that anybody can remove it.
fn open_up(tree: &Path) {
    ["d7", "d7/e1"]
        .iter()
        .for_each(|dir| runs::set_mode(&tree.join(dir), 0o755));
}

/// A run of which each such call takes 300 µs longer; gives the number of threads it started.
fn slowed(calls: &str, log: &Path, args: impl IntoIterator<Item = OsString>) -> usize {
    let line = format!(
        "strace -f -qq --seccomp-bpf -o \"$1\" -e trace={calls},clone3,clone -e inject={calls}:delay_enter=300 \"${{@:2}}\""
    );
    let args = [log.into(), runs::FULLBORE.into()].into_iter().chain(args);
    shell(&line, args).ends_with(0);
    let log = fs::read_to_string(log).unwrap();
    log.lines()
        .filter(|line| line.contains("clone") && !line.contains("resumed>"))
        .count()
}

#[test]
fn a_tree_that_is_slow_is_walked_by_more_threads_and_comes_back() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let [tree, quick, slow, log] = ["t", "quick", "slow", "log"].map(|name| dir.path().join(name));
    wide(&tree);
    let few = slowed(
        "uname",
        &log,
        args!["backup", tree, "--to", quick, "--quiet"],
    );
    let many = slowed(
        "statx",
        &log,
        args!["backup", tree, "--to", slow, "--quiet"],
    );
    assert!(
        many > few + 4,
        "{many} threads, and {few} where it is quick"
    );
    for (source, calls) in [
        (quick, "uname"),
        (slow, "openat2,openat,mkdirat,utimensat,fchmod"),
    ] {
        let back = dir.path().join(format!("back {calls}"));
        slowed(
            calls,
            &log,
            args!["restore", source, "--to", back, "--quiet"],
        );
        assert_same(&shape(&tree), &shape(&back), calls);
        slowed(
            calls,
            &log,
            args!["verify", source, "--against", back, "--data"],
        );
        slowed(
            calls,
            &log,
            args!["restore", source, "--to", back, "--delta", "--quiet"],
        );
        fullbore(args!["verify", source, "--against", tree]).ends_with(0);
        open_up(&back);
    }
    open_up(&tree);
}

#[test]
fn a_directory_stays_open_until_links_to_what_is_in_it_are_made() {
    if !or_skip(
        has("strace") && runs::is_root(),
        "there is no strace, or nobody to restore as",
    ) {
        return;
    }
    let dir = temp();
    let [tree, repository, target] = ["t", "r", "to"].map(|name| dir.path().join(name));
    runs::write(tree.join("a/f"), "linked");
    // So many that a worker has done with `a` long before another comes to the link.
    (0..40).for_each(|i| fs::create_dir(tree.join(format!("aa{i:02}"))).unwrap());
    fs::create_dir(tree.join("b")).unwrap();
    fs::hard_link(tree.join("a/f"), tree.join("b/g")).unwrap();
    runs::set_mode(&tree.join("a"), 0o300);
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    shell("chmod -R go+rX \"$1\"", args![repository]).ends_with(0);
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let line =
        format!("{nobody} strace -f -qq -o /dev/null -e inject=utimensat:delay_enter=3000 \"$@\"");
    let run = [runs::FULLBORE.into()].into_iter().chain(args![
        "restore",
        repository,
        "--to",
        target,
        "--workers",
        "4"
    ]);
    shell(&line, run).ends_with(0);
    let inode = |path: &str| fs::metadata(target.join(path)).unwrap().ino();
    assert_eq!(inode("a/f"), inode("b/g"));
    assert_eq!(
        fs::metadata(target.join("a")).unwrap().permissions().mode() & 0o777,
        0o300
    );
}
