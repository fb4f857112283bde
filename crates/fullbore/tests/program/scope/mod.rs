//! Which objects a backup is of, as the operator says it; and what is said back.

mod destination;
mod output;
mod rules;

use crate::runs;
use crate::runs::{
    FULLBORE, Mount, Ran, assert_same, fed, fullbore, has, is_root, only, or_skip, sample, shape,
    shell, temp,
};
use std::{ffi::OsString, fs, path::Path};

/// Paths in the only backup of `from`, the root as `.`.
fn listed(from: &Path) -> Vec<String> {
    let ran = fullbore(args![
        "list",
        format!("{}@latest", from.display()),
        "--json"
    ])
    .ends_with(0);
    let name = |entry: serde_json::Value| match entry["path"].as_str() {
        Some("") => ".".to_owned(),
        Some(path) => path.to_owned(),
        None => entry["path"].to_string(), // bytes that are no text
    };
    ran.json().into_iter().map(name).collect()
}

/// Back `tree` up by these options, and list what is stored.
fn stored(tree: &Path, options: impl IntoIterator<Item = OsString>) -> Vec<String> {
    let dir = temp();
    let target = dir.path().join("r");
    fullbore(
        args!["backup", tree, "--to", target, "--quiet"]
            .into_iter()
            .chain(options),
    )
    .ends_with(0);
    listed(&target)
}

fn files(dir: &Path, names: &[&str]) {
    names
        .iter()
        .for_each(|name| runs::write(dir.join(name), name));
}

#[test]
fn the_contents_of_one_directory_are_the_root() {
    let dir = temp();
    files(dir.path(), &["t/a", "t/b/c"]);
    assert_eq!(stored(&dir.path().join("t"), []), [".", "a", "b", "b/c"]);
    assert_eq!(stored(&dir.path().join("t/"), []), [".", "a", "b", "b/c"]);
}

#[test]
fn a_single_file_is_the_file() {
    let dir = temp();
    files(dir.path(), &["t/a", "t/b"]);
    assert_eq!(stored(&dir.path().join("t/a"), []), ["a"]);
}

#[test]
fn several_paths_are_stored_under_their_last_names() {
    let dir = temp();
    files(dir.path(), &["x/one/f", "y/two/f", "z/file"]);
    let target = dir.path().join("r");
    let paths = args![
        dir.path().join("y/two"),
        dir.path().join("x/one"),
        dir.path().join("z/file")
    ];
    fullbore(
        args!["backup", "--to", target, "--quiet"]
            .into_iter()
            .chain(paths),
    )
    .ends_with(0);
    assert_eq!(listed(&target), ["file", "one", "one/f", "two", "two/f"]);
    let back = dir.path().join("b");
    fullbore(args!["restore", target, "--to", back, "--quiet"]).ends_with(0);
    assert_same(
        &shape(&dir.path().join("x/one")),
        &shape(&back.join("one")),
        "one of several",
    );
}

#[test]
fn a_link_to_a_directory_is_stored_under_its_own_name() {
    let dir = temp();
    files(dir.path(), &["releases/5/f", "other/g"]);
    let link = dir.path().join("current");
    std::os::unix::fs::symlink("releases/5", &link).unwrap();
    assert_eq!(stored(&link, []), [".", "f"]);
    assert_eq!(
        stored(&dir.path().join("other"), args![link.join(".")]),
        ["current", "current/f", "other", "other/g"]
    );
    assert_eq!(
        stored(&dir.path().join("other"), args![link.join("..")]),
        ["other", "other/g", "releases", "releases/5", "releases/5/f"]
    );
}

#[test]
fn equal_names_are_an_error_that_suggests_whole_paths() {
    let dir = temp();
    files(dir.path(), &["x/same/f", "y/same/g"]);
    let (target, paths) = (
        dir.path().join("r"),
        args![dir.path().join("x/same"), dir.path().join("y/same")],
    );
    let backup = |options: &[&str]| {
        fullbore(
            args!["backup", "--to", target]
                .into_iter()
                .chain(paths.clone())
                .chain(runs::args(options)),
        )
    };
    let ran = backup(&[])
        .ends_with(2)
        .has_one_error("cannot store two paths as \"same\"");
    assert!(ran.err.contains("hint:  use --full-paths"), "{}", ran.err);
    assert!(!target.exists());
    backup(&["--full-paths", "--quiet"]).ends_with(0);
    let base = dir
        .path()
        .to_str()
        .unwrap()
        .trim_start_matches('/')
        .to_owned();
    let names = listed(&target);
    for name in ["x/same", "x/same/f", "y/same/g", "x", ""] {
        let name = format!("{base}/{name}");
        assert!(
            names.iter().any(|have| *have == name.trim_end_matches('/')),
            "{name} is not in {names:?}"
        );
    }
}

#[test]
fn a_path_that_is_not_there_is_an_error() {
    let dir = temp();
    let ran = fullbore(args![
        "backup",
        dir.path().join("no"),
        "--to",
        dir.path().join("r")
    ]);
    ran.ends_with(1).has_one_error("no such file");
    assert!(!dir.path().join("r").exists());
}

#[test]
fn an_empty_standard_input_is_an_error_and_what_it_holds_is_not_foretold() {
    let dir = temp();
    for target in [
        dir.path().join("r").into_os_string(),
        dir.path().join("x.tar.zst").into_os_string(),
        "-".into(),
    ] {
        let ran: Ran = fed(
            args!["backup", "--stdin-name", "dump.sql", "--to", target],
            b"",
        )
        .into();
        let ran = ran
            .ends_with(1)
            .has_one_error("cannot back up an empty stream");
        assert!(ran.err.contains("pipefail"), "{}", ran.err);
    }
    assert!(!dir.path().join("x.tar.zst").exists());
    assert_eq!(fullbore(args!["list", dir.path().join("r")]).out, "");
    fullbore(args![
        "backup",
        "--stdin-name",
        "s",
        "--to",
        dir.path().join("r"),
        "--dry-run"
    ])
    .ends_with(2);
    for name in [
        "",
        ".",
        "..",
        "/s",
        "s/",
        "a//b",
        "a/../b",
        &"x".repeat(256),
    ] {
        fullbore(args![
            "backup",
            "--stdin-name",
            name,
            "--to",
            dir.path().join("r")
        ])
        .ends_with(2);
    }
    fullbore(args!["backup", "-", "--to", dir.path().join("r")])
        .ends_with(1)
        .has_one_error("--stdin-name NAME");
}

#[test]
fn what_looks_like_another_machine_is_no_directory_here() {
    let dir = temp();
    runs::write(dir.path().join("t/f"), "x");
    for target in ["sftp://host/x", "user@host:/x", "host:x", "null:x", "null"] {
        let ran = shell(
            "cd \"$1\"; \"$2\" backup t --to \"$3\"",
            args![dir.path(), FULLBORE, target],
        )
        .ends_with(2);
        ran.has_one_error("a path of this machine does not begin like this");
    }
    shell(
        "cd \"$1\"; \"$2\" backup t --to ./a:b --quiet",
        args![dir.path(), FULLBORE],
    )
    .ends_with(0);
    for target in ["-", "null:", "x.tar.zst"] {
        fullbore(args!["copy", dir.path().join("a:b"), target]).ends_with(2);
    }
}

#[test]
fn the_latest_of_many_backups_in_one_second_is_the_last() {
    let dir = temp();
    let (tree, target) = (dir.path().join("t"), dir.path().join("r"));
    let mut made = Vec::new();
    for n in 0..12 {
        runs::write(tree.join("f"), n.to_string());
        let ran = fullbore(args!["backup", tree, "--to", target, "--json"]).ends_with(0);
        made.push(ran.json().pop().unwrap()["id"].clone());
    }
    let listed = fullbore(args!["list", target, "--json"])
        .ends_with(0)
        .json();
    assert_eq!(
        listed
            .into_iter()
            .map(|backup| backup["id"].clone())
            .collect::<Vec<_>>(),
        made
    );
    fullbore(args![
        "restore",
        target,
        "--to",
        dir.path().join("b"),
        "--quiet"
    ])
    .ends_with(0);
    assert_eq!(fs::read(dir.path().join("b/f")).unwrap(), b"11");
}

/// As different as digests are: nothing was changed.
#[test]
fn what_was_digested_in_two_ways_is_compared_by_its_looks() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    runs::write(tree.join("a"), "a");
    for digest in ["crc32c", "blake3"] {
        fullbore(args![
            "backup", tree, "--to", repository, "--digest", digest
        ])
        .ends_with(0);
    }
    let said = fullbore(args!["diff", repository, "--json"])
        .ends_with(0)
        .json();
    assert_eq!(
        (said.len(), &said[0]["changed"]),
        (1, &0.into()),
        "{said:?}"
    );
    runs::write(tree.join("a"), "b");
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    let said = fullbore(args!["diff", repository, "--json"])
        .ends_with(0)
        .json();
    assert_eq!(said[0]["differing_bytes"], 1);
    let settings = format!("host={} password=hushhush", dir.path().display());
    let ran = fullbore(args!["backup", settings, "--to", repository]).ends_with(2);
    assert!(
        !ran.err.contains("hushhush") && ran.err.contains("--connect"),
        "{}",
        ran.err
    );
}
