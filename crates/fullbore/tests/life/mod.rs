//! What is done to the backups of a repository after they were made: forget, prune, tag, pin.

mod beside;
mod chosen;
mod index;
mod rest;

use fullbore_format::{
    layout,
    root::{FORMAT, Live, PageAt, Root, Segment, SourceInfo},
    seal::seal,
};
use serde_json::json;
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};
use testkit::{
    fixture::{Fixture, content, restore},
    runs::{self, Ran, fullbore, names, temp},
};

/// The id of the backup of a day of November.
fn id(day: u32) -> String {
    format!("202611{day:02}T054501Z-k3f9qz")
}

fn dir(repository: &Path, day: u32) -> PathBuf {
    repository.join("backups").join(id(day))
}

/// A full backup of that day, of a source of its own if one is named.
fn full(repository: &Path, day: u32, source: &str) -> Root {
    let mut fixture = Fixture {
        id: id(day),
        segment_bytes: 20_000,
        ..Fixture::default()
    };
    fixture.dir("", 0o755);
    for i in 0..30 {
        fixture.file(&format!("f{i:02}"), content(u64::from(day * 100 + i), 3000));
    }
    let root = fixture.write_repository(repository);
    dated(repository, root, day, source)
}

fn dated(repository: &Path, root: Root, day: u32, source: &str) -> Root {
    let mut root = Root {
        id: id(day),
        time: format!("2026-11-{day:02}T05:45:01Z"),
        ..root
    };
    root.source.paths = vec![fullbore_format::root::EntryName(source.into())];
    fs::write(
        dir(repository, day).join(layout::ROOT),
        seal(&root).unwrap(),
    )
    .unwrap();
    root
}

/// A backup of that day with nothing of its own: all of it is in `base`.
fn thin(repository: &Path, day: u32, base: &Root) -> Root {
    let day_of = |backup: &String| {
        if backup.is_empty() {
            base.id.clone()
        } else {
            backup.clone()
        }
    };
    let size = |live: &Live| {
        let own =
            |segment: &&Segment| (segment.stream, segment.number) == (live.stream, live.number);
        base.segments
            .iter()
            .find(own)
            .map_or(live.of_bytes, |segment| segment.bytes)
    };
    let live = |live: &Live| Live {
        backup: day_of(&live.backup),
        of_bytes: size(live),
        ..live.clone()
    };
    let page = |page: &PageAt| PageAt {
        backup: day_of(&page.backup),
        ..page.clone()
    };
    let root = Root {
        format: FORMAT,
        bases: vec![base.id.clone()],
        segments: vec![],
        liveness: base.liveness.iter().map(live).collect(),
        pages: base.pages.iter().map(page).collect(),
        ..base.clone()
    };
    fs::create_dir_all(dir(repository, day)).unwrap();
    fs::write(dir(repository, day).join(layout::MANIFEST), "").unwrap();
    dated(repository, root, day, "/data")
}

fn listed(repository: &Path) -> Vec<u32> {
    let ran = fullbore(args!["list", repository, "--json"]).ends_with(0);
    let day = |line: serde_json::Value| line["id"].as_str().unwrap()[6..8].parse().unwrap();
    ran.json().into_iter().map(day).collect()
}

fn assert_restores(repository: &Path, day: u32, as_of: u32) {
    let out = temp();
    let back = out.path().join("back");
    let backup = format!("{}@{}", repository.display(), id(day));
    restore(Path::new(&backup), &back).unwrap();
    for i in 0..30 {
        let there = fs::read(back.join(format!("f{i:02}"))).unwrap();
        assert_eq!(
            there,
            content(u64::from(as_of * 100 + i), 3000),
            "{day} f{i:02}"
        );
    }
}

fn prune(repository: &Path) -> Ran {
    fullbore(args!["prune", repository]).ends_with(0)
}

#[test]
fn what_is_forgotten_is_freed_by_the_next_prune_and_not_before() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    full(repository, 2, "/data");
    fullbore(args!["forget", "--yes", repository, id(1)]).ends_with(0);
    assert_eq!(listed(repository), [2]);
    assert!(dir(repository, 1).join("s01-000001.tar.zst").exists());
    let dry = fullbore(args!["prune", repository, "--dry-run"]).ends_with(0);
    assert!(dry.out.contains("would free"), "{}", dry.out);
    assert!(dir(repository, 1).join("forgotten.json").exists());
    let ran = prune(repository);
    assert!(
        ran.out.contains("freed") && ran.out.contains("segments"),
        "{}",
        ran.out
    );
    assert_eq!(dry.out.replace("would free", "freed"), ran.out);
    assert_eq!(names(&repository.join("backups")), [id(2)]);
    assert_eq!(names(&repository.join("tombstones")), [""; 0]);
    assert_restores(repository, 2, 2);
    assert!(prune(repository).out.starts_with("freed 0 B"));
}

#[test]
fn what_a_later_backup_refers_to_outlives_the_backup_it_is_in() {
    let dir_ = temp();
    let repository = dir_.path();
    let first = full(repository, 1, "/data");
    let second = thin(repository, 2, &first);
    thin(repository, 3, &second);
    full(repository, 4, "/data");
    fullbore(args!["forget", "--yes", repository, id(1), id(2)]).ends_with(0);
    let ran = prune(repository);
    assert!(
        ran.out.contains(&format!("held by {}", id(3))),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("still held"), "{}", ran.out);
    assert_eq!(names(&repository.join("backups")), [id(1), id(3), id(4)]);
    assert!(dir(repository, 1).join("forgotten.json").exists());
    assert_restores(repository, 3, 1);
    prune(repository);
    assert_restores(repository, 3, 1);
    fullbore(args!["forget", "--yes", repository, id(3)]).ends_with(0);
    prune(repository);
    assert_eq!(names(&repository.join("backups")), [id(4)]);
}

#[test]
fn rules_keep_and_say_why() {
    let dir_ = temp();
    let repository = dir_.path();
    for day in 1..=9 {
        full(repository, day, if day == 3 { "/other" } else { "/data" });
    }
    fullbore(args!["pin", format!("{}@{}", repository.display(), id(1))]).ends_with(0);
    let tag = format!("{}@{}", repository.display(), id(2));
    fullbore(args!["tag", tag, "release=1.0"]).ends_with(0);
    let rules = args![
        "--keep-last",
        "1",
        "--keep-daily",
        "2",
        "--keep-tag",
        "release"
    ];
    let args_with = |more: &[&str]| {
        let more: Vec<_> = more.iter().map(std::ffi::OsString::from).collect();
        args!["forget", "--yes", repository]
            .into_iter()
            .chain(rules.clone())
            .chain(more)
            .collect::<Vec<_>>()
    };
    let dry = fullbore(args_with(&["--dry-run"])).ends_with(0);
    assert_eq!(listed(repository).len(), 9);
    for (day, why) in [
        (1, "pinned"),
        (2, "tag release"),
        (3, "last, daily"),
        (8, "daily"),
        (9, "last, daily"),
    ] {
        let line = dry
            .out
            .lines()
            .find(|line| line.contains(&id(day)))
            .unwrap();
        let is_kept = line.starts_with("keep ") && line.ends_with(&format!("  {why}"));
        assert!(is_kept, "{line}");
    }
    assert!(
        dry.out.contains("4 backups would be forgotten, 5 kept"),
        "{}",
        dry.out
    );
    fullbore(args_with(&[])).ends_with(0);
    assert_eq!(listed(repository), [1, 2, 3, 8, 9]);
    fullbore(args_with(&["--group-by", "none"])).ends_with(0);
    assert_eq!(listed(repository), [1, 2, 8, 9]);
}

#[test]
fn forget_never_means_all() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    for rules in [&[][..], &["--keep-last", "0"], &["--keep-tag", "nowhere"]] {
        fullbore(
            args!["forget", "--yes", repository]
                .into_iter()
                .chain(rules.iter().map(Into::into)),
        )
        .ends_with(2);
    }
    fullbore(args!["forget", repository, id(1), "--keep-last", "1"]).ends_with(2);
    fullbore(args!["forget", "--yes", repository, id(7)]).ends_with(1);
    assert_eq!(listed(repository), [1]);
}

#[test]
fn a_pinned_backup_is_not_forgotten_even_by_name() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    full(repository, 2, "/data");
    let one = format!("{}@{}", repository.display(), id(1));
    fullbore(args!["pin", one]).ends_with(0);
    fullbore(args!["forget", "--yes", repository, id(2), id(1)]).has_one_error("it is pinned");
    assert_eq!(listed(repository), [1, 2]);
    let list = fullbore(args!["list", repository]).ends_with(0);
    let lines: Vec<&str> = list.out.lines().collect();
    let line_of = |id: String| lines.iter().position(|line| line.starts_with(&id)).unwrap();
    assert_eq!(lines[line_of(id(1)) + 1].trim(), "pinned", "{}", list.out);
    assert_eq!(list.out.matches("pinned").count(), 1);
    assert!(
        fullbore(args!["show", one])
            .ends_with(0)
            .out
            .contains("pinned")
    );
    fullbore(args!["unpin", one]).ends_with(0);
    fullbore(args!["forget", "--yes", repository, id(1)]).ends_with(0);
    assert_eq!(listed(repository), [2]);
}

#[test]
fn tags_change_and_the_root_does_not() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    let root = fs::read(dir(repository, 1).join("root.json")).unwrap();
    fullbore(args!["tag", repository, "a=1", "b=2"]).ends_with(0);
    fullbore(args!["pin", repository]).ends_with(0);
    fullbore(args!["tag", repository, "b=3", "--remove", "a"]).ends_with(0);
    let shown = fullbore(args!["show", repository, "--json"])
        .ends_with(0)
        .json()
        .remove(0);
    assert_eq!(
        (&shown["tags"], &shown["pinned"]),
        (&json!({"b": "3"}), &true.into())
    );
    let list = fullbore(args!["list", repository, "--json"])
        .ends_with(0)
        .json()
        .remove(0);
    assert_eq!(
        (&list["tags"], &list["pinned"]),
        (&json!({"b": "3"}), &true.into())
    );
    assert_eq!(
        fullbore(args!["tag", repository]).ends_with(0).out,
        format!("{}  b=3\n", id(1))
    );
    fullbore(args!["tag", repository, "--remove", "a"]).ends_with(1);
    let told = |args: [OsString; 3]| {
        fullbore(args.into_iter().chain(args!["--json"]))
            .ends_with(0)
            .json()
    };
    assert_eq!(
        told(args!["tag", repository, "c="]),
        [json!({"type": "result", "id": id(1), "tags": {"b": "3", "c": ""}})]
    );
    let told = |verb| {
        fullbore(args![verb, repository, "--json"])
            .ends_with(0)
            .json()
    };
    assert_eq!(
        told("unpin"),
        [json!({"type": "result", "id": id(1), "pinned": false})]
    );
    assert_eq!(
        told("pin"),
        [json!({"type": "result", "id": id(1), "pinned": true})]
    );
    assert_eq!(
        fs::read(dir(repository, 1).join("root.json")).unwrap(),
        root
    );
}

#[test]
fn damaged_notes_keep_nobody_from_a_restore() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    fs::write(dir(repository, 1).join("notes.json"), "{").unwrap();
    assert_restores(repository, 1, 1);
    fullbore(args!["list", repository]).ends_with(4);
    fullbore(args!["forget", "--yes", repository, id(1)]).ends_with(4);
}

#[test]
fn a_root_that_cannot_be_read_stops_a_prune_before_anything_goes() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    full(repository, 2, "/data");
    let newer = full(repository, 3, "/data");
    fullbore(args!["forget", "--yes", repository, id(1)]).ends_with(0);
    let there = || names(&dir(repository, 1)).len();
    let before = there();
    fs::write(dir(repository, 2).join("root.json"), "{").unwrap();
    fullbore(args!["prune", repository]).ends_with(4);
    assert_eq!(there(), before);
    let rules = fullbore(args!["forget", repository, "--keep-last", "1"]).ends_with(4);
    assert!(
        rules.out.contains(&format!("{}  kept: ", id(2))),
        "{}",
        rules.out
    );
    let rules = fullbore(args!["forget", repository, "--keep-last", "1", "--json"])
        .ends_with(4)
        .json();
    assert_eq!(
        (&rules[1]["id"], &rules[1]["forgotten"]),
        (&id(2).into(), &false.into()),
        "{rules:?}"
    );
    fullbore(args!["forget", "--yes", repository, id(2)]).ends_with(0);
    let newer = Root {
        format: FORMAT + 1,
        ..newer
    };
    fs::write(dir(repository, 3).join("root.json"), seal(&newer).unwrap()).unwrap();
    fullbore(args!["prune", repository])
        .ends_with(1)
        .has_one_error("format");
    assert_eq!(there(), before);
    let newer = Root {
        format: FORMAT,
        ..newer
    };
    fs::write(dir(repository, 3).join("root.json"), seal(&newer).unwrap()).unwrap();
    prune(repository);
    assert_eq!(names(&repository.join("backups")), [id(3)]);
}

#[test]
fn a_new_backup_is_the_latest_though_the_clock_went_back() {
    let dir_ = temp();
    let (tree, repository) = (dir_.path().join("tree"), dir_.path().join("repository"));
    runs::write(tree.join("f"), "x");
    fs::create_dir(&repository).unwrap();
    let newest = || {
        fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
        let shown = fullbore(args![
            "show",
            format!("{}@latest", repository.display()),
            "--path",
            tree,
            "--json"
        ]);
        let shown = shown.ends_with(0).json().remove(0);
        assert!(shown["time"].as_str().unwrap() < "2999");
        shown["id"].as_str().unwrap().to_owned()
    };
    let rename = |target: &str| {
        let backups = repository.join("backups");
        let root = full(&repository, 1, "/data");
        fs::rename(dir(&repository, 1), backups.join(target)).unwrap();
        let root = Root {
            id: target.to_owned(),
            ..root
        };
        fs::write(backups.join(target).join("root.json"), seal(&root).unwrap()).unwrap();
    };
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(20);
    let soon = soon.strftime("%Y%m%dT%H%M%SZ-zzzzzz").to_string();
    rename(&soon);
    assert!(newest() > soon);
    // One of a clock that was wrong by more than a day does not turn the order of all others around.
    rename("29991231T235959Z-zzzzzz");
    let first = newest();
    assert!(first > soon && first.as_str() < "2999", "{first}");
    assert!(newest() > first);
}

#[test]
fn sources_that_look_alike_are_kept_apart() {
    let dir_ = temp();
    let repository = dir_.path();
    for (day, paths) in [(1, &["/a", "/b"][..]), (2, &["/a /b"])] {
        let mut root = full(repository, day, "/data");
        root.source.paths = paths
            .iter()
            .map(|path| fullbore_format::root::EntryName(path.as_bytes().to_vec()))
            .collect();
        fs::write(dir(repository, day).join("root.json"), seal(&root).unwrap()).unwrap();
    }
    // Of the third nobody knows what it is of.
    for day in [3, 4] {
        let mut root = full(repository, day, "/data");
        // A root that a repair made is that of the contents of some path.
        root.source = SourceInfo {
            contents: true,
            ..SourceInfo::default()
        };
        fs::write(dir(repository, day).join("root.json"), seal(&root).unwrap()).unwrap();
    }
    let said = fullbore(args![
        "forget",
        repository,
        "--keep-last",
        "1",
        "--dry-run",
        "--json"
    ])
    .ends_with(0)
    .json();
    assert!(
        said.len() == 4
            && said
                .iter()
                .all(|line| line["forgotten"] == false && line["dry_run"] == true),
        "{said:?}"
    );
}

#[test]
fn a_diff_is_with_the_backup_before_unless_another_is_named() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    full(repository, 2, "/other");
    full(repository, 3, "/data");
    let ends = |args: &[&str]| {
        let args = args!["diff", repository, "--json"]
            .into_iter()
            .chain(runs::args(args));
        let last = fullbore(args).ends_with(0).json().pop().unwrap();
        ["id_before", "id_after"].map(|end| last[end].as_str().unwrap().to_owned())
    };
    assert_eq!(ends(&["--path", "/data"]), [id(1), id(3)]);
    assert_eq!(ends(&[&format!("@{}", id(3)), &id(2)]), [id(3), id(2)]);
    assert_eq!(
        ends(&["--path", "/data", "@latest", &id(1)]),
        [id(3), id(1)]
    );
    fullbore(args!["diff", repository])
        .ends_with(2)
        .has_one_error("has backups of 2 sources");
    fullbore(args!["diff", repository, "latest", "nonsense"]).ends_with(1);
}

#[test]
fn of_a_lost_root_that_nothing_can_rebuild_the_way_out_is_named() {
    let dir_ = temp();
    let repository = dir_.path();
    let first = full(repository, 1, "/data");
    thin(repository, 2, &first);
    fs::remove_file(dir(repository, 2).join("root.json")).unwrap();
    for more in [&[][..], &["--yes"]] {
        let ran = fullbore(
            args!["repair", repository]
                .into_iter()
                .chain(runs::args(more)),
        )
        .ends_with(4);
        assert!(
            ran.out.contains(&format!(
                "`fullbore forget` of {} gives the backup up",
                id(2)
            )),
            "{}",
            ran.out
        );
        assert_eq!(ran.err, "nothing of this can be repaired\n");
    }
    let said = fullbore(args!["list", repository]).ends_with(4).out;
    assert!(said.contains("or tells how to proceed"), "{said}");
    fullbore(args!["forget", "--yes", repository, id(2)]).ends_with(0);
    prune(repository);
    assert_eq!(listed(repository), [1]);
}

#[test]
fn a_directory_that_is_not_found_once_is_not_taken_for_an_empty_one() {
    if !runs::or_skip(runs::has("strace"), "there is no strace") {
        return;
    }
    let dir_ = temp();
    for nth in 1..=6 {
        let repository = &dir_.path().join(nth.to_string());
        let first = full(repository, 1, "/data");
        thin(repository, 2, &first);
        full(repository, 3, "/data");
        fullbore(args!["forget", "--yes", repository, id(1)]).ends_with(0);
        // What the second needs of it stays, and so must the word that it was forgotten.
        let inject = format!("openat:error=ENOENT:when={nth}");
        let ran = runs::tampered(
            &inject,
            Some(&dir(repository, 1)),
            args!["prune", repository],
        );
        assert!(ran.code == 0 || nth < 6, "{nth}: {}", ran.err);
        assert!(dir(repository, 1).join("forgotten.json").exists(), "{nth}");
        prune(repository);
        assert_eq!(listed(repository), [2, 3]);
        assert_restores(repository, 2, 1);
    }
}

#[test]
fn what_a_dead_intent_names_is_not_removed_because_its_root_was_not_found_once() {
    if !runs::or_skip(runs::has("strace"), "there is no strace") {
        return;
    }
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    fs::create_dir_all(repository.join("intents")).unwrap();
    let intent = repository.join("intents").join(format!("{}.json", id(1)));
    for nth in 1..=10 {
        runs::write(&intent, "");
        let inject = format!("statx:error=ENOENT:when={nth}");
        let root = dir(repository, 1).join("root.json");
        runs::tampered(&inject, Some(&root), args!["prune", repository]);
        prune(repository);
        assert!(!intent.exists());
        assert_restores(repository, 1, 1);
    }
}
