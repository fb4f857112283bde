//! Output of a run: reports, JSON, the terminal, and errors about options.

use super::*;

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
