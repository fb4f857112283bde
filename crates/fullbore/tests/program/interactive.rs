//! `restore -i`: from a pipe, and on a terminal.

use crate::runs::{self, fullbore, temp, write};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};
use testkit::terminal::Terminal;

fn repository(dir: &Path) -> (PathBuf, PathBuf) {
    let (tree, repository) = (dir.join("tree"), dir.join("repo"));
    for name in [
        "etc/a.conf",
        "etc/b.conf",
        "etc/.hidden",
        "home/ana/my notes",
        "home/ana/cache/x",
        "home/ben/y",
    ] {
        write(tree.join(name), name);
    }
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    (tree, repository)
}

/// Runs a session from a pipe; gives standard output and the exit code.
fn session(args: impl IntoIterator<Item = OsString>, lines: &str) -> (String, String, i32) {
    let mut all = args!["restore", "-i", "-q"].to_vec();
    all.extend(args);
    let ran = runs::fed(all, lines.as_bytes());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        text(ran.stdout),
        text(ran.stderr),
        ran.status.code().unwrap(),
    )
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => waiting.push(path),
                false => found.push(path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned()),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn marked_entries_are_extracted_and_no_others() {
    let dir = temp();
    let (_, repository) = repository(dir.path());
    let to = dir.path().join("to");
    let lines =
        "cd home\nadd ana\ndelete ana/cache\nadd ../etc/*.conf\nls\nls ../\nmarked\nextract\n";
    let (out, said, code) = session(args![repository, "--to", to], lines);
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        out.lines().take(8).collect::<Vec<_>>(),
        [
            "* ana/",
            "  ben/",
            "+ etc/",
            "+ home/",
            "+ /etc/a.conf",
            "+ /etc/b.conf",
            "+ /home/ana",
            "- /home/ana/cache"
        ],
        "{out}"
    );
    let names = ["etc/a.conf", "etc/b.conf", "home/ana/my notes"];
    assert_eq!(files(&to), names);
}

#[test]
fn what_is_added_below_a_deleted_directory_is_extracted() {
    let dir = temp();
    let (_, repository) = repository(dir.path());
    let to = dir.path().join("to it");
    let lines = "add\ndelete home\nadd \"home/ana/my notes\"\nextract 'TO'\nquit\nls nowhere\n";
    let lines = lines.replace("TO", to.to_str().unwrap());
    let (_, said, code) = session(args![repository], &lines);
    assert_eq!(code, 0, "{said}");
    let names = [
        "etc/.hidden",
        "etc/a.conf",
        "etc/b.conf",
        "home/ana/my notes",
    ];
    assert_eq!(files(&to), names);
}

#[test]
fn the_first_error_of_a_pipe_ends_the_session() {
    let dir = temp();
    let (_, repository) = repository(dir.path());
    let to = dir.path().join("to");
    for (lines, words) in [
        ("cd nowhere\nadd\nextract\n", "\"nowhere\""),
        ("add *.none\nextract\n", "matches \"*.none\""),
        ("extract\n", "nothing is marked"),
        ("add 'tree\n", "a ' is not closed"),
        ("fetch\n", "it is no command"),
        ("cd etc/a.conf\n", "it is no directory"),
    ] {
        let (_, said, code) = session(args![repository, "--to", to], lines);
        assert!(code != 0 && said.contains(words), "{lines}: {code} {said}");
        assert!(!to.exists(), "{lines}");
    }
    let (_, said, code) = session(args![repository], "add\nextract\n");
    assert!(
        code == 2 && said.contains("the target is missing"),
        "{said}"
    );
}

/// A script for restore(8) answers the questions that it asks behind `extract`.
#[test]
fn a_script_for_dump_ends_as_it_should() {
    let dir = temp();
    let (_, repository) = repository(dir.path());
    let to = dir.path().join("to");
    let lines = "what\nprompt\nadd etc\nextract\n1\ny\nquit\n";
    let (out, said, code) = session(args![repository, "--to", to], lines);
    assert_eq!(code, 0, "{said}");
    assert!(
        out.starts_with("backup 20") && out.contains(", from 20"),
        "{out}"
    );
    assert!(said.contains("note: \"1\" is left out"), "{said}");
    assert_eq!(files(&to).len(), 3);
    let (_, said, code) = session(args![repository, "--to", to], "add etc\n1\n");
    assert!(code == 2 && said.contains("it is no command"), "{said}");
    let (_, said, code) = session(args![repository, "--to", to], "add etc\n");
    assert!(code == 0 && said.contains("nothing was restored"), "{said}");
}

#[test]
fn find_versions_and_long_lists_tell_of_the_backup() {
    let dir = temp();
    let (tree, repository) = repository(dir.path());
    write(tree.join("etc/a.conf"), "changed");
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    let lines = "find *.conf\ncd etc\nfind a.*\nls -l a.conf\nversions a.conf\npwd\nhelp\n";
    let (out, said, code) = session(args![repository], lines);
    assert_eq!(code, 0, "{said}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..3], ["  etc/a.conf", "  etc/b.conf", "  etc/a.conf"]);
    assert!(lines[3].starts_with("  -rw"), "{out}");
    assert!(
        lines[4].ends_with("etc/a.conf") && lines[5].ends_with("etc/a.conf"),
        "{out}"
    );
    assert_eq!(lines[6], "/etc");
    assert!(lines[7].starts_with("ls [-l] [PATH…]"), "{out}");
}

#[test]
fn an_archive_is_looked_at_as_a_repository_is() {
    let dir = temp();
    let (tree, _) = repository(dir.path());
    let (archive, to) = (dir.path().join("a.tar.zst"), dir.path().join("to"));
    fullbore(args!["backup", tree, "--to", archive, "-q"]).ends_with(0);
    let (_, said, code) = session(args![archive, "--to", to], "add home/b*\nextract\n");
    assert_eq!(code, 0, "{said}");
    assert_eq!(files(&to), ["home/ben/y"]);
    let (_, said, _) = session(args![archive], "versions etc/a.conf\n");
    assert!(said.contains("an archive of one backup"), "{said}");
}

#[test]
fn modes_of_marked_directories_are_set_again() {
    let dir = temp();
    let (tree, repository) = repository(dir.path());
    runs::set_mode(&tree.join("etc"), 0o750);
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    let to = dir.path().join("to");
    fs::create_dir_all(to.join("etc")).unwrap();
    let (_, said, code) = session(args![repository, "--to", to], "add etc\nsetmodes\n");
    assert_eq!(code, 0, "{said}");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&to.join("etc").metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o750);
    assert_eq!(files(&to), [""; 0]);
}

#[test]
fn a_terminal_has_completion_and_history_and_errors_do_not_end_the_session() {
    if !runs::or_skip(runs::has("script"), "script is missing") {
        return;
    }
    let dir = temp();
    let (_, repository) = repository(dir.path());
    let to = dir.path().join("to");
    let program = env!("CARGO_BIN_EXE_fullbore");
    let command = format!(
        "{program} restore -i {} --to {}",
        repository.display(),
        to.display()
    );
    let mut terminal = Terminal::run(&command);
    terminal.shows("`help` lists the commands");
    terminal.shows("restore > ");
    terminal.types("cd nowhere\r");
    terminal.shows("could not find \"nowhere\"");
    terminal.shows("restore > ");
    terminal.types("cd ho\t\r");
    terminal.shows("restore > ");
    terminal.types("pw\t\r");
    terminal.shows("/home");
    // A name with a blank is completed quoted; Ctrl-C gives a new line.
    terminal.types("add ana/my\t\r");
    terminal.shows("my\\ notes");
    terminal.types("half a line\x03");
    // What is typed before the new line is there would be dropped.
    terminal.shows("half a line");
    terminal.shows("restore > ");
    terminal.types("marked\r");
    terminal.shows(" /home/ana/my notes\r\n");
    // The last line again.
    terminal.types("\x1b[A\r");
    terminal.shows(" /home/ana/my notes\r\n");
    terminal.types("extract\r");
    terminal.shows("every digest matched");
    terminal.types("\x04");
    assert_eq!(terminal.ends().0, 0);
    assert_eq!(files(&to), ["home/ana/my notes"]);
}
