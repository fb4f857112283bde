//! Lists of names, patterns and marks.

use super::*;

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

const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55";

#[test]
fn marked_caches_are_left_out_by_default_and_counted() {
    let dir = temp();
    let tree = dir.path().join("t");
    files(
        &tree,
        &[
            "a/cache/x",
            "b/cache/deep/y",
            "b/z",
            "pg/base/1",
            "pg/PG_VERSION",
        ],
    );
    for marked in ["a/cache", "b/cache", "pg"] {
        fs::write(tree.join(marked).join("CACHEDIR.TAG"), TAG).unwrap();
    }
    let target = dir.path().join("r");
    let run = |more: &[&str]| {
        let words = args!["backup", tree, "--to", target].into_iter();
        fullbore(words.chain(runs::args(more))).ends_with(0)
    };
    let listed = || {
        let ran = fullbore(args![
            "list",
            "-R",
            format!("{}@latest", target.display()),
            "--json"
        ]);
        let lines = ran.ends_with(0).json();
        let paths = lines
            .iter()
            .map(|line| line["path"].as_str().unwrap().to_owned());
        paths.collect::<Vec<_>>()
    };
    let ran = run(&[]);
    let line = ran
        .err
        .lines()
        .find(|line| line.starts_with("left out: 2 marked caches, "));
    assert!(
        line.is_some_and(|line| line.ends_with("; --include-caches stores them")),
        "{}",
        ran.err
    );
    let paths = listed();
    assert!(
        paths.contains(&"a/cache/CACHEDIR.TAG".to_owned()),
        "{paths:?}"
    );
    assert!(!paths.contains(&"a/cache/x".to_owned()), "{paths:?}");
    // Databases are stored, whatever lies beside them.
    assert!(paths.contains(&"pg/base/1".to_owned()), "{paths:?}");
    let json = run(&["--json"]).json();
    assert_eq!(json.last().unwrap()["left_out_caches"], 2);
    // All is stored if that is said, and nothing of it is lost by a later default.
    let ran = run(&["--include-caches"]);
    assert!(!ran.err.contains("left out"), "{}", ran.err);
    assert!(listed().contains(&"b/cache/deep/y".to_owned()));
    run(&[]);
    assert!(!listed().contains(&"b/cache/deep/y".to_owned()));
    fullbore(args!["verify", target, "--data", "-q"]).ends_with(0);
    // A name that is typed is stored, and so is one of a list.
    let cache = tree.join("a/cache");
    let ran = fullbore(args!["backup", cache, "--to", dir.path().join("own")]).ends_with(0);
    assert!(
        ran.err.contains("1 file") || ran.err.contains("2 files"),
        "{}",
        ran.err
    );
    runs::write(dir.path().join("list"), "a/cache/x\n");
    let list = dir.path().join("list");
    fullbore(args![
        "backup",
        tree,
        "--to",
        dir.path().join("one"),
        "--files-from",
        list,
        "-q"
    ])
    .ends_with(0);
    let one = format!("{}@latest", dir.path().join("one").display());
    assert!(
        fullbore(args!["list", "-R", one])
            .ends_with(0)
            .out
            .contains("a/cache/x")
    );
}

#[test]
fn a_clone_has_marked_caches() {
    let dir = temp();
    let tree = dir.path().join("t");
    files(&tree, &["cache/x"]);
    fs::write(tree.join("cache/CACHEDIR.TAG"), TAG).unwrap();
    let to = dir.path().join("to");
    fullbore(args!["copy", tree, to, "-q"]).ends_with(0);
    assert!(to.join("cache/x").exists());
}
