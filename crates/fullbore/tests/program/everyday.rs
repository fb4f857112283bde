//! Words and output of every day: tables, statistics, one file, previews, the place of the repository, colours.

use crate::runs::{self, Ran, command, fullbore, noise, shape, temp, write};
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

/// A tree with a directory, links and a file with a hole.
fn tree(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    for name in ["etc/a.conf", "etc/b.conf", "etc/ssh/c.conf", "var/x.tmp"] {
        write(tree.join(name), name);
    }
    write(tree.join("var/large"), noise(1, 3_000_000));
    symlink("a.conf", tree.join("etc/link")).unwrap();
    fs::hard_link(tree.join("etc/a.conf"), tree.join("var/same")).unwrap();
    let hole = fs::File::create(tree.join("var/hole")).unwrap();
    std::os::unix::fs::FileExt::write_at(&hole, b"end", 2_000_000).unwrap();
    tree
}

fn backed_up(dir: &Path) -> (PathBuf, PathBuf) {
    let (tree, repository) = (tree(dir), dir.join("repo"));
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    (tree, repository)
}

fn with(variables: &[(&str, &Path)], args: impl IntoIterator<Item = OsString>) -> Ran {
    let mut command = command(args);
    for (name, value) in variables {
        command.env(name, value);
    }
    command.output().unwrap().into()
}

#[test]
fn a_list_is_a_table_with_a_header_and_a_last_line() {
    let dir = temp();
    let (tree, repository) = backed_up(dir.path());
    fullbore(args![
        "backup", tree, "--to", repository, "-t", "weekly", "-t", "env=prod"
    ])
    .ends_with(0);
    let list = fullbore(args!["list", repository]).ends_with(0).out;
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(
        lines[0],
        "BACKUP                  WHEN              FILES     SIZE   ADDED  SOURCE"
    );
    assert_eq!(lines.len(), 5, "{list}");
    assert!(lines[1][24..].starts_with("today ") || lines[1][24..].starts_with("yesterday "));
    assert!(
        lines[1].ends_with(&format!(":{}", tree.display())),
        "{list}"
    );
    assert_eq!(lines[3].trim_start(), "tags env=prod, weekly");
    assert!(lines[4].starts_with("2 backups of 1 source, "), "{list}");
    let tagged = fullbore(args!["list", repository, "--tag", "weekly", "--json"]).json();
    assert_eq!(
        (tagged.len(), &tagged[0]["tags"]["weekly"]),
        (1, &"".into())
    );
    let quiet = fullbore(args!["list", repository, "-q"]).ends_with(0).out;
    assert_eq!(quiet.lines().count(), 3, "{quiet}");
    let long = fullbore(args!["list", repository, "-l"]).ends_with(0).out;
    assert!(long.contains("\n                        from 20"), "{long}");
}

#[test]
fn the_first_backup_of_a_source_beside_others_is_noted() {
    let dir = temp();
    let (tree, repository) = backed_up(dir.path());
    let other = dir.path().join("other");
    write(other.join("f"), "f");
    let is_noted = |origin: &Path| {
        let ran = fullbore(args!["backup", origin, "--to", repository]).ends_with(0);
        ran.err.contains("this is the first one of this source")
    };
    assert!(!is_noted(&tree));
    assert!(is_noted(&other));
    assert!(!is_noted(&other) && !is_noted(&tree));
}

/// As that of a disk that is not mounted.
#[test]
fn a_backup_without_files_is_warned_of_and_does_not_push_out_the_last_one_with_content() {
    let dir = temp();
    let (tree, repository) = backed_up(dir.path());
    fs::remove_dir_all(&tree).unwrap();
    fs::create_dir(&tree).unwrap();
    for _ in 0..2 {
        let ran = fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
        assert!(ran.err.contains("the backup has no files"), "{}", ran.err);
    }
    let forgotten = fullbore(args!["forget", repository, "--keep-last", "1", "--prune"]);
    let forgotten = forgotten.ends_with(0);
    assert!(
        forgotten.out.contains("last with content") || forgotten.out.contains("last complete"),
        "{}",
        forgotten.out
    );
    let list = fullbore(args!["list", repository, "--json"]).ends_with(0);
    let bytes = list
        .json()
        .into_iter()
        .map(|backup| backup["bytes"].as_u64().unwrap());
    let bytes: Vec<u64> = bytes.collect();
    assert!(
        bytes.len() == 2 && bytes[0] > 0 && bytes[1] == 0,
        "{bytes:?}"
    );
}

#[test]
fn a_directory_is_listed_one_level_deep_and_a_tree_is_indented() {
    let dir = temp();
    let (_, repository) = backed_up(dir.path());
    let backup = format!("{}@latest", repository.display());
    let paths = |more: &[&str]| {
        let words = args!["list", backup, "etc", "--json"].into_iter();
        let listed = fullbore(words.chain(more.iter().map(OsString::from)));
        let listed = listed.ends_with(0).json().into_iter();
        let paths: Vec<String> = listed
            .map(|line| line["path"].as_str().unwrap().to_owned())
            .collect();
        paths
    };
    let near = ["etc", "etc/a.conf", "etc/b.conf", "etc/link", "etc/ssh"];
    assert_eq!(paths(&[]), near);
    assert_eq!(paths(&["-R"]).last().unwrap(), "etc/ssh/c.conf");
    let tree = fullbore(args!["list", backup, "--tree", "etc"])
        .ends_with(0)
        .out;
    assert!(
        tree.contains("  etc/\n") && tree.contains("     14 B        c.conf\n"),
        "{tree}"
    );
    let human = fullbore(args!["list", backup, "-H", "var/large"])
        .ends_with(0)
        .out;
    assert!(human.contains(" 3.00 MB "), "{human}");
}

#[test]
fn stats_count_what_a_repository_holds() {
    let dir = temp();
    let (tree, repository) = backed_up(dir.path());
    write(tree.join("var/large"), noise(2, 3_000_000));
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    let stats = || {
        fullbore(args!["stats", repository, "--json"])
            .ends_with(0)
            .json()
            .remove(0)
    };
    let listed = fullbore(args!["list", repository, "--json"]).json();
    let before = stats();
    let sum: u64 = listed
        .iter()
        .map(|line| line["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(
        (&before["backups"], &before["sources"], &before["bytes"]),
        (&2.into(), &1.into(), &sum.into())
    );
    assert_eq!(before["newest_id"], listed[1]["id"]);
    assert_eq!(
        (&before["verified_share"], &before["last_verified_time"]),
        (&0.0.into(), &().into())
    );
    fullbore(args!["verify", repository, "--sample", "100%", "-q"]).ends_with(0);
    let first = listed[0]["id"].as_str().unwrap();
    fullbore(args![
        "forget",
        "--yes",
        format!("{}@{first}", repository.display())
    ])
    .ends_with(0);
    let after = stats();
    assert_eq!(
        (&after["backups"], &after["verified_share"]),
        (&1.into(), &1.0.into())
    );
    // The small files of the first backup are still needed.
    assert!(after["held_bytes"].as_u64() > Some(0), "{after}");
    let said = fullbore(args!["stats", repository]).ends_with(0).out;
    assert!(
        said.contains("verified   100 % of the data, last 20") && said.contains(" held, because"),
        "{said}"
    );
}

#[test]
fn a_file_goes_to_standard_output_as_it_was() {
    let dir = temp();
    let (tree, repository) = backed_up(dir.path());
    for path in ["var/large", "var/hole", "etc/a.conf", "var/same"] {
        let output = command(args!["cat", repository, path]).output().unwrap();
        assert!(output.status.success(), "{path}");
        assert!(
            output.stdout == fs::read(tree.join(path)).unwrap(),
            "{path}"
        );
    }
    let ran = fullbore(args!["cat", repository, "etc/link"]).ends_with(2);
    ran.has_one_error("it is no file or directory");
    fullbore(args!["cat", repository, "nowhere"])
        .ends_with(1)
        .has_one_error("could not find");
}

#[test]
fn a_directory_goes_to_standard_output_as_a_tar_that_is_complete() {
    let dir = temp();
    let (tree, repository) = backed_up(dir.path());
    let (file, target) = (dir.path().join("x.tar"), dir.path().join("to"));
    let output = command(args!["dump", repository, "var"]).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    fs::write(&file, output.stdout).unwrap();
    fs::create_dir(&target).unwrap();
    let tar = Command::new("tar")
        .arg("-xf")
        .arg(&file)
        .arg("-C")
        .arg(&target)
        .output()
        .unwrap();
    assert!(
        tar.status.success(),
        "{}",
        String::from_utf8_lossy(&tar.stderr)
    );
    // The other name of the file is not in the directory.
    assert_eq!(fs::read(target.join("var/same")).unwrap(), b"etc/a.conf");
    for path in ["var/large", "var/hole", "var/x.tmp"] {
        assert!(
            fs::read(target.join(path)).unwrap() == fs::read(tree.join(path)).unwrap(),
            "{path}"
        );
    }
    assert!(!target.join("etc").exists());
}

#[test]
fn a_dry_restore_lists_what_it_would_do_and_does_nothing() {
    let dir = temp();
    let (_, repository) = backed_up(dir.path());
    let target = dir.path().join("to");
    let dry = |more: &[&str]| {
        let words = args!["restore", repository, "--to", target, "-n"].into_iter();
        fullbore(words.chain(more.iter().map(OsString::from))).ends_with(0)
    };
    let first = dry(&[]);
    assert!(
        first.out.starts_with("+ .\n+ etc\n") && !target.exists(),
        "{}",
        first.out
    );
    fullbore(args!["restore", repository, "--to", target, "-q"]).ends_with(0);
    assert_eq!(dry(&["--mirror"]).out, "");
    write(target.join("etc/a.conf"), "other");
    fs::remove_file(target.join("etc/b.conf")).unwrap();
    write(target.join("etc/new"), "");
    let before = shape(&target);
    let ran = dry(&["--mirror"]);
    let mut lines: Vec<&str> = ran.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["+ etc/b.conf", "- etc/new", "~ etc/a.conf"],
        "{}",
        ran.out
    );
    assert!(
        ran.err
            .contains("1 entry would be created, 1 changed, 1 deleted"),
        "{}",
        ran.err
    );
    assert!(dry(&[]).err.contains("the restore needs --overwrite"));
    runs::assert_same(&before, &shape(&target), "a dry run");
    fullbore(args![
        "restore", repository, "--to", target, "--mirror", "-q"
    ])
    .ends_with(0);
    assert_eq!(dry(&["--mirror"]).out, "");
    assert!(!target.join("etc/new").exists());
}

#[test]
fn a_dry_restore_compares_links_attributes_and_owners() {
    let dir = temp();
    let (_, repository) = backed_up(dir.path());
    let target = dir.path().join("to");
    fullbore(args!["restore", repository, "--to", target, "-q"]).ends_with(0);
    let mut changed = vec!["~ etc/link", "~ var/same"];
    fs::remove_file(target.join("etc/link")).unwrap();
    symlink("b.conf", target.join("etc/link")).unwrap();
    fs::copy(target.join("var/same"), target.join("var/copy")).unwrap();
    fs::rename(target.join("var/copy"), target.join("var/same")).unwrap();
    if runs::set_xattr(&target.join("var/hole"), "user.note", b"new") {
        changed.push("~ var/hole");
    }
    if runs::is_root() {
        std::os::unix::fs::chown(target.join("etc/ssh"), Some(12345), None).unwrap();
        changed.push("~ etc/ssh");
    }
    let ran = fullbore(args![
        "restore", repository, "--to", target, "-n", "--mirror"
    ])
    .ends_with(0);
    let mut lines: Vec<&str> = ran.out.lines().collect();
    lines.sort_unstable();
    changed.sort_unstable();
    assert_eq!(lines, changed);
}

#[test]
fn tables_have_a_header_on_a_terminal_only() {
    if !runs::or_skip(runs::has("script"), "there is no script") {
        return;
    }
    let dir = temp();
    let (tree, repository) = backed_up(dir.path());
    write(tree.join("etc/a.conf"), "another content");
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    let lines = [
        ("find '$2' a.conf", "FROM"),
        ("forget '$2' --keep-last 1 -n", "REASON"),
        ("diff '$2' latest~1 latest", "PATH"),
    ];
    for (line, header) in lines {
        let first = |line: &str| {
            let ran = runs::shell(line, args![runs::FULLBORE, repository]).ends_with(0);
            ran.out.lines().next().unwrap().to_owned()
        };
        let terminal = first(&format!("script -qec \"'$1' {line}\" /dev/null"));
        assert!(terminal.contains(header), "{terminal}");
        let piped = first(&format!("'$1' {line}").replace('\'', "\""));
        assert!(!piped.contains(header), "{piped}");
    }
}

#[test]
fn patterns_choose_what_is_restored_and_protect_what_they_exclude() {
    let dir = temp();
    let (_, repository) = backed_up(dir.path());
    let target = dir.path().join("to");
    let restore = |target: &Path, more: &[&str]| {
        let words = args!["restore", repository, "--to", target, "-q"].into_iter();
        fullbore(words.chain(more.iter().map(OsString::from)))
    };
    let files = |target: &Path| {
        let mut found: Vec<String> = shape(target)
            .keys()
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect();
        found.retain(|path| target.join(path).is_file());
        found
    };
    restore(&target, &["--include", "*.conf", "--exclude", "ssh/"]).ends_with(0);
    assert_eq!(files(&target), ["etc/a.conf", "etc/b.conf"]);
    let other = dir.path().join("other");
    restore(&other, &["-e", "/var", "-e", "*.conf"]).ends_with(0);
    assert_eq!(files(&other), [""; 0]);
    assert!(other.join("etc/ssh").is_dir() && !other.join("var").exists());
    write(other.join("var/mine"), "");
    restore(&other, &["-e", "var/", "--mirror"]).ends_with(0);
    assert!(other.join("var/mine").exists() && other.join("etc/ssh/c.conf").exists());
    restore(&dir.path().join("no"), &["--include", "*.jpg"])
        .ends_with(1)
        .has_one_error("could not find an entry that --include matches");
}

#[test]
fn an_option_or_the_environment_stands_for_the_repository() {
    let dir = temp();
    let (tree, repository) = backed_up(dir.path());
    let standing = [("FULLBORE_REPOSITORY", repository.as_path())];
    let list = fullbore(args!["list", repository]).out;
    assert_eq!(
        fullbore(args!["-r", repository, "list"]).ends_with(0).out,
        list
    );
    assert_eq!(with(&standing, args!["list"]).ends_with(0).out, list);
    let entries = with(&standing, args!["list", "@latest", "etc"])
        .ends_with(0)
        .out;
    assert!(entries.contains("etc/a.conf"), "{entries}");
    with(&standing, args!["backup", tree]).ends_with(0);
    assert_eq!(
        fullbore(args!["list", "--json", "-r", repository])
            .json()
            .len(),
        2
    );
    let found = with(&standing, args!["find", "a.conf", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(found[0]["backups"], 2);
    with(&standing, args!["list", dir.path().join("other")])
        .ends_with(1)
        .has_one_error("other");
}

#[test]
fn verbs_of_other_programs_are_understood_and_said_once() {
    let dir = temp();
    let (_, repository) = backed_up(dir.path());
    let ran = fullbore(args!["snapshots", repository]).ends_with(0);
    assert_eq!(ran.err, "note: `snapshots` is `list` here\n");
    assert_eq!(ran.out, fullbore(args!["list", repository]).out);
    assert_eq!(
        fullbore(args!["-q", "check", repository]).ends_with(0).err,
        ""
    );
    let lost = fullbore(args!["create", repository]).ends_with(2);
    lost.has_one_error("there is no command \"create\" here");
}

#[test]
fn colours_are_used_only_where_they_are_wanted() {
    let dir = temp();
    let nowhere = dir.path().join("nowhere");
    let err = |more: &[&str]| {
        let words = args!["list", nowhere].into_iter();
        fullbore(words.chain(more.iter().map(OsString::from)))
            .ends_with(1)
            .err
    };
    assert!(err(&["--color", "always"]).starts_with("\u{1b}[31merror:\u{1b}[0m could"));
    assert!(err(&[]).starts_with("error: could"));
    let (_, repository) = backed_up(dir.path());
    let forget = args![
        "forget",
        repository,
        "--keep-last",
        "1",
        "-n",
        "--color",
        "always"
    ];
    let kept = fullbore(forget).ends_with(0).out;
    assert!(kept.contains("\u{1b}[32mkeep\u{1b}[0m    20"), "{kept}");
    let bytes = command(args!["cat", repository, "etc/a.conf", "--color", "always"]).output();
    assert_eq!(bytes.unwrap().stdout, b"etc/a.conf");
}

#[test]
fn a_verbose_backup_lists_each_file_and_why() {
    let dir = temp();
    let (tree, repository) = (tree(dir.path()), dir.path().join("repo"));
    let run = |more: &[&str]| {
        let words = args!["backup", tree, "--to", repository, "-v", "-e", "*.tmp"].into_iter();
        let ran = fullbore(words.chain(more.iter().map(OsString::from))).ends_with(0);
        let mut lines: Vec<String> = ran.out.lines().map(str::to_owned).collect();
        lines.retain(|line| !line.ends_with("would be backed up"));
        lines.sort_unstable();
        lines
    };
    let dry = run(&["-n"]);
    assert!(
        dry.contains(&"+ var/large".to_owned()) && dry.contains(&"x var/x.tmp  *.tmp".to_owned())
    );
    assert!(!repository.exists());
    let first = run(&[]);
    assert_eq!(dry, first);
    write(tree.join("etc/a.conf"), "another");
    fs::remove_file(tree.join("etc/b.conf")).unwrap();
    write(tree.join("etc/new"), "");
    let signs = |lines: &[String], sign: &str| {
        let found = lines.iter().filter(|line| line.starts_with(sign));
        let names: Vec<&str> = found
            .filter_map(|line| {
                line.split_whitespace()
                    .find(|word| word.starts_with("etc/"))
            })
            .collect();
        names.join(" ")
    };
    for lines in [run(&["-n"]), run(&[])] {
        assert_eq!(signs(&lines, "+ "), "etc/new", "{lines:?}");
        assert_eq!(signs(&lines, "- "), "etc/b.conf", "{lines:?}");
        assert!(signs(&lines, "~ ").contains("etc/a.conf"), "{lines:?}");
        assert!(
            lines.iter().any(|line| line.starts_with("x var/x.tmp")),
            "{lines:?}"
        );
    }
}

#[test]
fn verify_says_what_share_of_the_data_was_ever_checked() {
    let dir = temp();
    let (_, repository) = backed_up(dir.path());
    let share = || {
        let err = fullbore(args!["verify", repository]).ends_with(0).err;
        err.lines().next().unwrap().to_owned()
    };
    let before = share();
    assert!(
        before.starts_with("no data was read yet; --data"),
        "{before}"
    );
    let all = fullbore(args!["verify", repository, "--data"]).ends_with(0);
    assert!(!all.err.contains("at least once"), "{}", all.err);
    // Nothing is left to say.
    let after = share();
    assert!(
        after.starts_with("backup ") && after.contains(" is sound: "),
        "{after}"
    );
}
