//! Which objects a backup is of, as the operator says it; and what is said back.

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
fn a_report_that_cannot_be_written_is_said_before_anything_is_done() {
    let dir = temp();
    files(dir.path(), &["t/a"]);
    let (tree, page) = (dir.path().join("t"), dir.path().join("no/page.html"));
    let [store, back] = ["r", "b"].map(|name| dir.path().join(name));
    fullbore(args!["backup", tree, "--to", store, "--report", page])
        .ends_with(1)
        .has_one_error("the report");
    assert!(!store.exists());
    fullbore(args!["backup", tree, "--to", store, "--quiet"]).ends_with(0);
    fullbore(args!["restore", store, "--to", back, "--report", page])
        .ends_with(1)
        .has_one_error("the report");
    assert!(!back.exists());
    // A longer one that was there is replaced; and what fails at the end is only a warning.
    let page = dir.path().join("page.html");
    fs::write(
        &page,
        "<!doctype html>\n<!-- A report of fullbore -->\n".repeat(1 << 16),
    )
    .unwrap();
    fullbore(args![
        "backup", tree, "--to", store, "--quiet", "--report", page
    ])
    .ends_with(0);
    assert!(fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
    let ran = fullbore(args![
        "backup",
        tree,
        "--to",
        store,
        "--report",
        "/dev/full"
    ])
    .ends_with(0);
    assert!(
        ran.err
            .contains("warning: could not write the report \"/dev/full\": no space left"),
        "{}",
        ran.err
    );
}

#[test]
fn a_pattern_that_says_nothing_is_refused() {
    let dir = temp();
    for pattern in ["", "  ", "!", "# of 1998", "a\nb"] {
        fullbore(args![
            "backup",
            dir.path(),
            "--to",
            "null:",
            "--exclude",
            pattern
        ])
        .ends_with(2);
        fullbore(args!["find", dir.path(), pattern]).ends_with(2);
    }
    files(dir.path(), &["t/#a", "t/b"]);
    assert_eq!(
        stored(&dir.path().join("t"), args!["--exclude", "\\#*"]),
        [".", "b"]
    );
}

#[test]
fn a_report_takes_no_place_of_another_file_and_leaves_no_empty_one() {
    let dir = temp();
    files(dir.path(), &["t/a"]);
    let [tree, archive, back, page] =
        ["t", "a.tar.zst", "b", "page.html"].map(|name| dir.path().join(name));
    fullbore(args!["backup", tree, "--to", archive, "--quiet"]).ends_with(0);
    fs::write(tree.join("a"), "<!doctype html>\n<html>").unwrap();
    let both = || [&archive, &tree.join("a")].map(|path| fs::read(path).unwrap());
    let before = both();
    let ran = fullbore(args!["restore", archive, "--to", back, "--report", archive]).ends_with(2);
    ran.has_one_error("another file is there");
    fullbore(args![
        "backup",
        tree,
        "--to",
        "null:",
        "--report",
        tree.join("a")
    ])
    .ends_with(2);
    assert!(both() == before && !back.exists());
    fullbore(args![
        "backup",
        dir.path().join("none"),
        "--to",
        "null:",
        "--report",
        page
    ])
    .ends_with(1);
    assert!(!page.exists());
}

#[test]
fn a_list_of_names_is_taken_in_any_order_with_the_directories_above() {
    let dir = temp();
    files(dir.path(), &["t/a/b/c", "t/a/d", "t/e", "t/new\nline"]);
    let (tree, list) = (dir.path().join("t"), dir.path().join("list"));
    fs::write(&list, "./e\na/b/c\n\ne\n").unwrap();
    assert_eq!(
        stored(&tree, args!["--files-from", list]),
        [".", "a", "a/b", "a/b/c", "e"]
    );
    let ran = fed(
        args![
            "backup",
            tree,
            "--files-from",
            "-",
            "--null",
            "--to",
            dir.path().join("r")
        ],
        b"new\nline\0a/d\0",
    );
    Ran::from(ran).ends_with(0);
    assert_eq!(
        listed(&dir.path().join("r")),
        [".", "a", "a/d", "new\nline"]
    );
    // What was never there has not vanished: the list is wrong.
    fs::write(&list, "a/d\r\ne\nno/where/f\n").unwrap();
    for names in [&b""[..], b"\n\n"] {
        let nothing = fed(
            args![
                "backup",
                tree,
                "--files-from",
                "-",
                "--to",
                dir.path().join("none")
            ],
            names,
        );
        assert!(
            nothing.status.code() == Some(1) && !dir.path().join("none").exists(),
            "{nothing:?}"
        );
    }
    let ran = fullbore(args![
        "backup",
        tree,
        "--files-from",
        list,
        "--to",
        dir.path().join("s")
    ])
    .ends_with(3);
    for name in ["a/d\\r", "no/where/f"] {
        assert!(
            ran.err.contains(&format!(
                "not captured: \"{name}\": no file or directory has this name\n"
            )),
            "{}",
            ran.err
        );
    }
    assert_eq!(ran.err.matches("not captured").count(), 2, "{}", ran.err);
    fs::write(&list, "../outside\n").unwrap();
    fullbore(args![
        "backup",
        tree,
        "--files-from",
        list,
        "--to",
        dir.path().join("r")
    ])
    .ends_with(2)
    .has_one_error("..");
}

#[test]
fn what_a_list_names_and_the_rules_leave_out_is_left_out() {
    let dir = temp();
    files(
        dir.path(),
        &[
            "t/a/x.log",
            "t/a/y",
            "t/build/z",
            "t/marked/.nobackup",
            "t/marked/w",
        ],
    );
    let (tree, list) = (dir.path().join("t"), dir.path().join("list"));
    fs::write(
        &list,
        "a/x.log\na/y\nbuild\nbuild/z\ngone.log\nmarked\nmarked/w\n",
    )
    .unwrap();
    let rules = args![
        "--exclude",
        "*.log",
        "--exclude",
        "build/",
        "--exclude-if-present",
        ".nobackup"
    ];
    let options = args!["--files-from", list].into_iter().chain(rules);
    assert_eq!(stored(&tree, options), [".", "a", "a/y", "marked"]);
}

#[test]
fn names_of_one_file_in_a_list_are_links() {
    let dir = temp();
    let (tree, list, target, back) = (
        dir.path().join("t"),
        dir.path().join("list"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    files(&tree, &["a", "d/c"]);
    ["b", "d/b"]
        .iter()
        .for_each(|name| fs::hard_link(tree.join("a"), tree.join(name)).unwrap());
    fs::write(&list, "a\nb\nd\nd/b\nd/c\n").unwrap();
    fullbore(args![
        "backup",
        tree,
        "--files-from",
        list,
        "--to",
        target,
        "--quiet"
    ])
    .ends_with(0);
    fullbore(args!["restore", target, "--to", back, "--quiet"]).ends_with(0);
    assert_same(&shape(&tree), &shape(&back), "by a list");
}

#[test]
fn patterns_leave_out_what_they_match() {
    let dir = temp();
    files(
        dir.path(),
        &[
            "t/a.o",
            "t/a.c",
            "t/build/x",
            "t/sub/build/y",
            "t/sub/a.o",
            "t/keep.o",
            "t/log/z",
        ],
    );
    let (tree, list) = (dir.path().join("t"), dir.path().join("patterns"));
    assert_eq!(
        stored(
            &tree,
            args![
                "--exclude",
                "*.o",
                "--exclude",
                "!keep.o",
                "--exclude",
                "/build"
            ]
        ),
        [
            ".",
            "a.c",
            "keep.o",
            "log",
            "log/z",
            "sub",
            "sub/build",
            "sub/build/y"
        ]
    );
    fs::write(&list, "# objects\n*.o\nbuild/\n").unwrap();
    assert_eq!(
        stored(&tree, args!["--exclude-from", list, "--exclude", "log"]),
        [".", "a.c", "sub"]
    );
    let ran = fullbore(args![
        "backup",
        tree,
        "--exclude-from",
        dir.path(),
        "--to",
        dir.path().join("r")
    ]);
    ran.ends_with(2).has_one_error("patterns");
}

#[test]
fn a_class_is_a_byte_of_a_name_and_braces_are_braces() {
    let dir = temp();
    files(
        dir.path(),
        &["t/core/precious", "t/core.old", "t/core7", "t/{a}", "t/a"],
    );
    let options = args!["--exclude", "core[!0-9]*", "--exclude", "{a}"];
    assert_eq!(
        stored(&dir.path().join("t"), options),
        [".", "a", "core", "core/precious", "core7"]
    );
}

#[test]
fn marked_directories_are_stored_without_their_contents() {
    let dir = temp();
    files(
        dir.path(),
        &[
            "t/cache/x",
            "t/cache/sub/y",
            "t/marked/.nobackup",
            "t/marked/z",
            "t/fake/CACHEDIR.TAG",
            "t/fake/w",
        ],
    );
    let tree = dir.path().join("t");
    fs::write(
        tree.join("cache/CACHEDIR.TAG"),
        "Signature: 8a477f597d28d172789f06886806bc55\n# a cache",
    )
    .unwrap();
    let all = stored(
        &tree,
        args!["--exclude-caches", "--exclude-if-present", ".nobackup"],
    );
    assert_eq!(
        all,
        [
            ".",
            "cache",
            "cache/CACHEDIR.TAG",
            "fake",
            "fake/CACHEDIR.TAG",
            "fake/w",
            "marked"
        ]
    );
}

#[test]
fn a_dry_run_counts_and_writes_nothing() {
    let dir = temp();
    let (tree, target) = (dir.path().join("t"), dir.path().join("r"));
    sample(&tree);
    let ran = fullbore(args!["backup", tree, "--to", target, "--dry-run", "--json"]).ends_with(0);
    let dry = &ran.json()[0];
    let real = fullbore(args!["backup", tree, "--to", "null:", "--json"])
        .ends_with(0)
        .json()
        .pop()
        .unwrap();
    assert_eq!(
        (&dry["files"], &dry["bytes"], &dry["entries"]),
        (&real["files"], &real["bytes"], &real["entries"])
    );
    assert!(!target.exists());
    if or_skip(has("strace"), "there is no strace") {
        let args = args!["backup", tree, "--to", target, "--dry-run"];
        let ran =
            runs::tampered("getdents64:error=EACCES", Some(&tree.join("a")), args).ends_with(3);
        assert!(
            ran.out.starts_with("not captured: \"a\": ")
                && ran.out.ends_with(" would be backed up\n"),
            "{}",
            ran.out
        );
    }
}

#[test]
fn an_archive_that_is_named_by_a_link_is_what_that_leads_to() {
    let dir = temp();
    let tree = dir.path().join("t");
    files(&tree, &["a"]);
    fs::create_dir(dir.path().join("vault")).unwrap();
    for ending in ["tar.lz4", "tar.zst"] {
        let (link, archive) = (
            dir.path().join(format!("l.{ending}")),
            dir.path().join(format!("vault/x.{ending}")),
        );
        fullbore(args!["backup", tree, "--to", archive, "--quiet"]).ends_with(0);
        std::os::unix::fs::symlink(format!("vault/x.{ending}"), &link).unwrap();
        let id = |path: &Path| {
            fullbore(args!["show", path, "--json"]).ends_with(0).json()[0]["id"].clone()
        };
        let old = id(&link);
        assert_eq!(id(&archive), old);
        fullbore(args!["backup", tree, "--to", link, "--quiet"]).ends_with(0);
        assert!(link.is_symlink() && id(&link) != old && id(&archive) == id(&link));
        fullbore(args!["verify", link, "--data", "--against", tree]).ends_with(0);
    }
    let lost = dir.path().join("lost.tar.zst");
    for lost in [lost, dir.path().join("lost")] {
        std::os::unix::fs::symlink("/not/mounted", &lost).unwrap();
        let words = "it is a link to \"/not/mounted\", which ";
        fullbore(args!["backup", tree, "--to", lost])
            .ends_with(1)
            .has_one_error(words);
        fullbore(args!["restore", dir.path().join("l.tar.lz4"), "--to", lost])
            .ends_with(1)
            .has_one_error(words);
    }
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
fn on_a_terminal_what_is_left_is_told() {
    if !or_skip(has("script"), "there is no script") {
        return;
    }
    let dir = temp();
    (0..30).for_each(|offset| {
        runs::write(
            dir.path().join(format!("t/{offset}")),
            runs::noise(offset, 1_000_000),
        )
    });
    let line = "script -qec \"'$1' backup '$2' --to null: --max-rate 8M --workers 1\" /dev/null";
    let ran = shell(line, args![FULLBORE, dir.path().join("t")]).ends_with(0);
    assert!(
        ran.out.contains(" of 30.0 MB, ") && ran.out.contains(" left; "),
        "{}",
        ran.out
    );
}

#[test]
fn json_has_the_promised_fields() {
    let dir = temp();
    let (tree, target) = (dir.path().join("t"), dir.path().join("r"));
    sample(&tree);
    let options = args!["--tag", "job=night", "--tag", "empty=", "--json"];
    let lines = fullbore(
        args!["backup", tree, "--to", target]
            .into_iter()
            .chain(options),
    )
    .ends_with(0)
    .json();
    let result = lines.last().unwrap();
    for field in [
        "id",
        "limit",
        "shares",
        "seconds",
        "entries",
        "bytes",
        "stored_bytes",
        "files",
        "unreadable",
    ] {
        assert!(!result[field].is_null(), "{field} is not in {result}");
    }
    for side in ["source", "workers", "sink"] {
        let share = |name: &str| result["shares"][side][name].as_f64().unwrap();
        assert!(
            (0.0..=1.02).contains(&(share("busy") + share("starved") + share("blocked"))),
            "{result}"
        );
    }
    assert!(
        lines[..lines.len() - 1]
            .iter()
            .all(|line| line["type"] == "progress")
    );
    let backup = fullbore(args!["list", target, "--json"])
        .ends_with(0)
        .json()
        .pop()
        .unwrap();
    for field in [
        "id",
        "time",
        "source",
        "entries",
        "bytes",
        "stored_bytes",
        "complete",
    ] {
        assert!(!backup[field].is_null(), "{field} is not in {backup}");
    }
    assert_eq!(
        (&backup["entries"], &backup["bytes"]),
        (&result["entries"], &result["bytes"])
    );
    assert_eq!(
        backup["tags"],
        serde_json::json!({"job": "night", "empty": ""})
    );
    assert_eq!(backup["entries"], shape(&tree).len());
    let shown = fullbore(args!["show", target, "--json"]).ends_with(0);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&shown.out).unwrap()["id"],
        backup["id"]
    );
}

#[test]
fn quiet_runs_say_nothing_and_wrong_arguments_end_with_2() {
    let dir = temp();
    files(dir.path(), &["t/a"]);
    fullbore(args!["init", dir.path().join("r")]).ends_with(0);
    let ran = fullbore(args![
        "backup",
        dir.path().join("t"),
        "--to",
        dir.path().join("r"),
        "--quiet"
    ])
    .ends_with(0);
    assert_eq!((&*ran.out, &*ran.err), ("", ""));
    for wrong in [
        &["--compress", "zip"][..],
        &["--frame-size", "100K"],
        &["--workers", "0"],
        &["--tag", "=x"],
        &["--memory", "1"],
        &["--compress", "zstd:99"],
        &["--to", ""],
        &["--to", "x.tar.xz"],
        &["--to", "x.TAR.ZST"],
        &["--to", "x.tar.zst", "--compress", "lz4"],
        &["--to", "null:", "--base", "2026"],
        &["--offline", "postgres://x"],
    ] {
        let rest = if wrong.contains(&"--to") {
            vec![]
        } else {
            args!["--to", dir.path().join("r2")].to_vec()
        };
        let source = if wrong.contains(&"--offline") {
            vec![]
        } else {
            args![dir.path().join("t")].to_vec()
        };
        let all = args!["backup"]
            .into_iter()
            .chain(source)
            .chain(rest)
            .chain(runs::args(wrong));
        let ran = Ran::from(runs::command(all).current_dir(dir.path()).output().unwrap());
        assert_eq!(ran.code, 2, "{wrong:?}: {}{}", ran.out, ran.err);
        assert_eq!(runs::names(dir.path()), ["r", "t"], "{wrong:?}");
    }
}

#[test]
fn a_terminal_gets_no_backup() {
    if !or_skip(has("script"), "there is no program that makes terminals") {
        return;
    }
    let dir = temp();
    files(dir.path(), &["t/a"]);
    let line = "script -qec \"'$1' backup '$2' --to -\" /dev/null";
    let ran = shell(line, args![FULLBORE, dir.path().join("t")]);
    assert_eq!(ran.code, 2, "{}", ran.out);
    assert!(
        ran.out.contains("cannot write a backup to a terminal") && ran.out.len() < 1000,
        "{}",
        ran.out
    );
}

#[test]
fn a_part_of_a_repository_is_no_backup_and_no_damage() {
    let dir = temp();
    files(dir.path(), &["t/a"]);
    let repository = dir.path().join("r");
    fullbore(args![
        "backup",
        dir.path().join("t"),
        "--to",
        repository,
        "--quiet"
    ])
    .ends_with(0);
    let segment = runs::segments(&repository).remove(0);
    for command in [
        &args!["restore", segment, "--to", dir.path().join("b")][..],
        &args!["list", segment],
    ] {
        let ran = fullbore(command.iter().cloned())
            .ends_with(2)
            .has_one_error("it is part of a repository");
        assert!(
            ran.err
                .contains(&format!("name the repository, {repository:?}")),
            "{}",
            ran.err
        );
    }
    // Somewhere else it is what it is: a tar without its manifest.
    fs::copy(&segment, dir.path().join("x.tar.zst")).unwrap();
    fullbore(args!["list", dir.path().join("x.tar.zst")]).ends_with(4);
}

#[test]
fn two_file_systems_are_two_streams_of_one_backup() {
    let dir = temp();
    let tree = dir.path().join("t");
    sample(&tree);
    files(&tree, &["a/z", "n/below the other", "z/last"]);
    let Some(_mount) = Mount::tmpfs(&tree.join("m"), "64m") else {
        return;
    };
    files(&tree, &["m/one", "m/sub/two"]);
    runs::write(tree.join("m/large"), runs::noise(1, 3_000_000));
    let Some(_inner) = Mount::tmpfs(&tree.join("m/sub/inner"), "8m") else {
        return;
    };
    files(&tree, &["m/sub/inner/three"]);
    let (target, back) = (dir.path().join("r"), dir.path().join("b"));
    fullbore(args!["backup", tree, "--to", target, "--quiet"]).ends_with(0);
    let names = runs::names(&only(&target.join("backups")));
    assert_eq!(
        names
            .iter()
            .filter(|name| name.starts_with("s0"))
            .map(|name| &name[..3])
            .collect::<Vec<_>>(),
        ["s01", "s02", "s03"]
    );
    let before = shape(&tree);
    fullbore(args!["restore", target, "--to", back, "--quiet"]).ends_with(0);
    assert_same(&before, &shape(&back), "three streams");
    fullbore(args!["verify", target, "--data", "--against", tree]).ends_with(0);
    let stock = dir.path().join("stock");
    let line = "mkdir \"$2\" && zstd -dcq \"$1\"/s0*.tar.zst | tar -xi -p -C \"$2\"";
    shell(line, args![only(&target.join("backups")), stock]).ends_with(0);
    assert_same(&before, &shape(&stock), "three streams by zstd and tar");
    let (file, one) = (dir.path().join("x.tar.zst"), dir.path().join("one"));
    fullbore(args!["backup", tree, "--to", file, "--quiet"]).ends_with(0);
    fullbore(args!["restore", file, "--to", one, "--quiet"]).ends_with(0);
    assert_same(&before, &shape(&one), "one stream");
    let small = dir.path().join("small");
    fullbore(args![
        "restore",
        target,
        "--to",
        small,
        "m/sub/inner/three",
        "z/last",
        "--quiet"
    ])
    .ends_with(0);
    assert_eq!(
        fs::read(small.join("m/sub/inner/three")).unwrap(),
        b"m/sub/inner/three"
    );
    let only_this = stored(&tree, args!["-x"]);
    assert!(only_this.contains(&"m".to_owned()) && only_this.contains(&"z/last".to_owned()));
    assert!(
        !only_this.iter().any(|path| path.starts_with("m/")),
        "{only_this:?}"
    );
}

#[test]
fn what_the_backup_is_written_to_is_not_part_of_it() {
    let dir = temp();
    let tree = dir.path();
    fs::create_dir(tree.join("a")).unwrap();
    files(tree, &["a/file", "z"]);
    let repository = tree.join("a/backups of this");
    for _ in 0..2 {
        fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
        assert_eq!(
            listed(&repository),
            [".", "a", "a/backups of this", "a/file", "z"]
        );
    }
    // Another repository is as good as any other data.
    let stored = stored(tree, []);
    assert!(
        stored.iter().any(|path| path.ends_with("root.json")),
        "{stored:?}"
    );
    fs::remove_dir_all(&repository).unwrap();
    for (name, times) in [("x.tar", 1), ("x.tar.gz", 1), ("x.tar.zst", 2)] {
        let archive = tree.join(name);
        for _ in 0..times {
            fullbore(args!["backup", tree, "--to", archive, "--quiet"]).ends_with(0);
            assert_eq!(listed(&archive), [".", "a", "a/file", "z"]);
        }
        fs::remove_file(&archive).unwrap();
    }
    let to_stdout = "cd \"$2\" && exec \"$1\" backup . --to - --quiet > stream.tar.zst";
    shell(to_stdout, args![runs::FULLBORE, tree]).ends_with(0);
    let stream = tree.join("stream.tar.zst");
    assert_eq!(listed(&stream), [".", "a", "a/file", "z"]);
    fs::remove_file(stream).unwrap();
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    let refused = fullbore(args!["backup", repository, "--to", repository, "--quiet"]);
    assert_ne!(refused.code, 0);
    assert!(
        refused.err.contains("is the destination of the backup"),
        "{}",
        refused.err
    );
}

#[test]
fn what_the_backup_is_written_to_is_not_part_of_it_though_a_list_names_it() {
    let dir = temp();
    let tree = dir.path().join("t");
    files(&tree, &["a/file", "z"]);
    let repository = tree.join("a/r");
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    let by_list = |target: &Path, find: &str| {
        let line = format!(
            "cd \"$2\" && {find} -print0 | \"$1\" backup . --files-from - --null --to \"$3\" --quiet"
        );
        shell(&line, args![FULLBORE, tree, target]).ends_with(0);
        listed(target)
    };
    assert_eq!(
        by_list(&repository, "find ."),
        [".", "a", "a/file", "a/r", "z"]
    );
    assert_eq!(by_list(&repository, "find a/r/* z"), [".", "z"]);
    let list = dir.path().join("list");
    fs::write(&list, "backups\n").unwrap();
    let refused = fullbore(args![
        "backup",
        repository,
        "--files-from",
        list,
        "--to",
        repository,
        "--quiet"
    ]);
    assert!(
        refused
            .ends_with(2)
            .err
            .contains("is the destination of the backup")
    );
    fs::remove_dir_all(&repository).unwrap();
    for _ in 0..2 {
        assert_eq!(
            by_list(&tree.join("x.tar.zst"), "find ."),
            [".", "a", "a/file", "z"]
        );
    }
}

#[test]
fn pseudo_file_systems_are_not_entered() {
    let dir = temp();
    let path = dir.path().join("t/proc");
    fs::create_dir_all(&path).unwrap();
    let mounted = is_root() && runs::shell("mount -t proc proc \"$1\"", args![path]).code == 0;
    if or_skip(mounted, "no proc can be mounted here") {
        let listed = stored(&dir.path().join("t"), []);
        runs::shell("umount -l \"$1\"", args![path]).ends_with(0);
        assert_eq!(listed, [".", "proc"]);
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

#[test]
fn what_goes_to_standard_output_goes_nowhere_if_that_is_closed() {
    let dir = temp();
    runs::write(dir.path().join("tree/file"), b"content");
    let closed = shell(
        "\"$1\" backup \"$2\" --to - >&-",
        args![FULLBORE, dir.path().join("tree")],
    )
    .ends_with(2);
    closed.has_one_error("it is closed");
    shell(
        "\"$1\" backup \"$2\" --to - >/dev/null",
        args![FULLBORE, dir.path().join("tree")],
    )
    .ends_with(0);
}

#[test]
fn a_tree_that_cannot_be_looked_at_for_a_moment_is_no_file() {
    if !or_skip(has("strace"), "no strace") {
        return;
    }
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    runs::write(tree.join("d/file"), "content");
    let line = "ulimit -v 8000000; timeout 30 strace -f -qq -o /dev/null -e inject=statx:error=$1:when=$2 -P \"$3\" \"$4\" backup \"$3\" --to \"$5\" -q";
    for error in ["EIO", "ENOENT", "ESTALE"] {
        for when in 1..6 {
            let _ = fs::remove_dir_all(&repository);
            let ran = shell(
                line,
                args![error, when.to_string(), tree, FULLBORE, repository],
            );
            assert!(
                [0, 1, 3].contains(&ran.code),
                "{error} {when}: {} {}",
                ran.code,
                ran.err
            );
            if ran.code == 0 {
                // What is in the tree may go; that is said.
                let said = fullbore(args!["show", repository])
                    .out
                    .contains("d: vanished before it was read");
                assert!(
                    said || listed(&repository).contains(&"d/file".to_owned()),
                    "{error} {when}"
                );
            }
        }
    }
}

#[test]
fn a_path_in_the_repository_that_the_backup_goes_to_is_refused() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("t"), dir.path().join("t/r"));
    files(&tree, &["f"]);
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    let before = runs::names(&repository.join("backups"));
    let home = repository.join("backups").join(&before[0]);
    for path in [
        repository.join("backups"),
        repository.join("intents"),
        home.join("manifest"),
        home,
    ] {
        for args in [
            &args![path][..],
            &args![tree, path],
            &args![tree, path, "--full-paths"],
            &args![path, "--dry-run"],
        ] {
            let words = args!["backup", "--to", repository].into_iter();
            let said = fullbore(words.chain(args.iter().cloned()))
                .ends_with(2)
                .has_one_error("inside the destination repository");
            assert!(said.err.contains(path.to_str().unwrap()), "{}", said.err);
        }
    }
    let line = "cd \"$2\" && \"$1\" backup r --to r";
    shell(line, args![FULLBORE, tree])
        .ends_with(2)
        .has_one_error("cannot back up \"r\": it is the destination of the backup");
    assert_eq!(runs::names(&repository.join("backups")), before);
    // What is mounted elsewhere is still its own.
    let elsewhere = tree.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let bind = "mount --bind \"$1\" \"$2\"";
    if or_skip(
        shell(bind, args![repository.join("backups"), elsewhere]).code == 0,
        "nothing can be mounted here",
    ) {
        let _mount = runs::Mount::at(&elsewhere);
        fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
        assert_eq!(listed(&repository), [".", "elsewhere", "f", "r"]);
    }
}

#[test]
fn a_number_of_threads_is_at_least_one_and_no_slip() {
    for option in ["--workers", "--readers"] {
        for number in ["0", "100000", "-1", "many"] {
            let ran = fullbore(args![
                "backup",
                "x",
                "--to",
                "null:",
                format!("{option}={number}")
            ])
            .ends_with(2);
            assert!(ran.err.contains("a number from 1 to 1024"), "{}", ran.err);
        }
    }
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let dir = temp();
    let (tree, page) = (dir.path().join("t"), dir.path().join("page.html"));
    files(&tree, &["f"]);
    for options in [
        args!["--wal", "none"],
        args!["--via", "sql"],
        args!["--checkpoint", "fast"],
        args!["--exclude-if-present", ""],
        args!["--exclude-if-present", "sub/x"],
    ] {
        fullbore(
            args!["backup", tree, "--to", "null:"]
                .into_iter()
                .chain(options),
        )
        .ends_with(2);
    }
    fullbore(args![
        "backup",
        tree,
        "--to",
        "null:",
        "--dry-run",
        "--report",
        page
    ])
    .ends_with(2);
    let stream = args![
        "backup",
        "--stdin-name",
        "s",
        "--to",
        "null:",
        "--exclude",
        "x"
    ];
    assert!(
        fullbore(stream)
            .ends_with(2)
            .err
            .contains("options such as --exclude are for trees")
    );
    let repository = dir.path().join("r");
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    fullbore(args!["tag", repository, "a=1", "--remove", "a"]).ends_with(2);
    fullbore(args!["verify", repository, "--for", "0s"]).ends_with(2);
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
        (said.len(), &said[0]["changed"]["entries"]),
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
