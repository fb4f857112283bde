//! Copies to and from another host, by a real sshd.

use super::{
    result,
    runs::{Ran, assert_same, names, shape, temp, write},
    sample,
    sshd::sshd,
};
use std::{fs, path::Path, thread, time::Duration};

fn copy(arguments: &[&str]) -> Ran {
    let arguments: Vec<&str> = ["copy"].iter().chain(arguments).copied().collect();
    sshd().fullbore(&arguments).output().unwrap().into()
}

fn far(path: &Path) -> String {
    format!("ssh://far{}", path.display())
}

fn near(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn pushed_and_pulled_a_tree_is_the_same() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    let (source, pushed, pulled) = (path("from"), path("pushed"), path("pulled"));
    sample(&source);
    copy(&[near(&source), &far(&pushed)]).ends_with(0);
    assert_same(&shape(&source), &shape(&pushed), "pushed");
    copy(&[&far(&source), near(&pulled)]).ends_with(0);
    assert_same(&shape(&source), &shape(&pulled), "pulled");
    for change in 0..2 {
        write(source.join("many/00/0"), format!("changed {change}"));
        fs::remove_file(source.join(format!("many/01/{}", 1 + 7 * change))).unwrap();
        let options = ["--delete", "--compress=zstd:3", "--checksum"];
        let push = copy(&[&[near(&source), &far(&pushed)], &options[..]].concat()).ends_with(0);
        let pull = copy(&[&[&far(&source), near(&pulled)], &options[..]].concat()).ends_with(0);
        for ran in [push, pull] {
            assert!(ran.out.contains("- many/01/"), "{}", ran.out);
        }
        assert_same(&shape(&source), &shape(&pushed), "pushed again");
        assert_same(&shape(&source), &shape(&pulled), "pulled again");
    }
    let same = copy(&[near(&source), &far(&pushed), "--json"]).ends_with(0);
    assert_eq!(result(&same)["changed"], 0, "{}", same.out);
    let same = copy(&[&far(&source), near(&pulled), "--json", "-n"]).ends_with(0);
    assert_eq!(result(&same)["changed"], 0, "{}", same.out);
}

#[test]
fn killed_over_ssh_a_copy_is_completed_by_the_next() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    let (source, target) = (path("from"), path("to"));
    sample(&source);
    for (delay, is_push) in [(150, true), (300, false), (450, true), (600, false)] {
        let words = match is_push {
            true => [near(&source).to_owned(), far(&target)],
            false => [far(&source), near(&target).to_owned()],
        };
        let words = [&words[0], &words[1]].map(String::as_str);
        let _ = fs::remove_dir_all(&target);
        let mut child = sshd()
            .fullbore(&[&["copy"], &words[..]].concat())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap(); // it may be over
        child.wait().unwrap();
        copy(&[&words[..], &["--delete"]].concat()).ends_with(0);
        assert_same(&shape(&source), &shape(&target), "completed");
    }
}

#[test]
fn a_host_that_only_adds_backups_copies_no_trees() {
    let dir = temp();
    let source = dir.path().join("from");
    write(source.join("a"), "1");
    let target = format!("ssh://limited{}", dir.path().join("to").display());
    let ran = copy(&[near(&source), &target]);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(!dir.path().join("to").exists());
    let ran = copy(&["ssh://far/a", "ssh://far/b"]).ends_with(2);
    let ran = ran.has_one_error("both are other hosts");
    let command =
        "hint:  run the copy on one of them: `ssh far fullbore copy /a \"ssh://far/b\"`\n";
    assert!(ran.err.ends_with(command), "{}", ran.err);
}

#[test]
fn patterns_of_a_file_of_this_host_count_on_both_sides() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    let (source, pushed, pulled) = (path("from"), path("pushed"), path("pulled"));
    for name in ["a.tmp", "b.tmp", "sub/c.log", "sub/d"] {
        write(source.join(name), "new");
    }
    for target in [&pushed, &pulled] {
        write(target.join("kept.tmp"), "there");
        write(target.join("gone"), "there");
    }
    write(
        path("patterns"),
        "# temporary files\r\n*.tmp\r\n\n/sub/*.log",
    );
    let from_file = format!("--exclude-from={}", near(&path("patterns")));
    let options = [
        &*from_file,
        "--exclude=!b.tmp",
        "--delete",
        "--max-delete=1",
    ];
    copy(&[&[near(&source), &far(&pushed)], &options[..]].concat()).ends_with(0);
    copy(&[&[&far(&source), near(&pulled)], &options[..]].concat()).ends_with(0);
    for target in [&pushed, &pulled] {
        assert_eq!(names(target), ["b.tmp", "kept.tmp", "sub"]);
        assert_eq!(names(&target.join("sub")), ["d"]);
    }
    let missing = ["--exclude-from=/not/there"];
    copy(&[&[near(&source), &far(&pushed)], &missing[..]].concat())
        .ends_with(2)
        .has_one_error("could not read the patterns in \"/not/there\"");
}
