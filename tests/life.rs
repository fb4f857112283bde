//! What is done to the backups of a repository after they were made: forget, prune, tag, pin.

#![allow(missing_docs)]

mod common;
mod runs;

use common::{Fixture, content, restore};
use fullbore::{
    format::{
        layout,
        root::{FORMAT, Live, PageAt, Root, Segment, seal},
    },
    platform::{Tricks, write},
    repo::{
        objects::{Directory, Objects},
        protocol::{Intent, check, intent_key, refer},
        store::Store,
    },
    sink::Destination,
};
use runs::{Ran, fullbore, names, temp};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
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
    let mut fixture = Fixture { id: id(day), segment_bytes: 20_000, ..Fixture::default() };
    fixture.dir("", 0o755);
    for i in 0..30 {
        fixture.file(&format!("f{i:02}"), content(u64::from(day * 100 + i), 3000));
    }
    let root = fixture.write_repository(repository);
    dated(repository, root, day, source)
}

fn dated(repository: &Path, root: Root, day: u32, source: &str) -> Root {
    let mut root = Root { id: id(day), time: format!("2026-11-{day:02}T05:45:01Z"), ..root };
    root.source.paths = vec![fullbore::format::root::Name(source.into())];
    fs::write(dir(repository, day).join(layout::ROOT), seal(&root).unwrap()).unwrap();
    root
}

/// A backup of that day with nothing of its own: all of it is in `base`.
fn thin(repository: &Path, day: u32, base: &Root) -> Root {
    let of = |backup: &String| if backup.is_empty() { base.id.clone() } else { backup.clone() };
    let size = |live: &Live| {
        let own = |segment: &&Segment| (segment.stream, segment.number) == (live.stream, live.number);
        base.segments.iter().find(own).map_or(live.of_bytes, |segment| segment.bytes)
    };
    let live = |live: &Live| Live { backup: of(&live.backup), of_bytes: size(live), ..live.clone() };
    let page = |page: &PageAt| PageAt { backup: of(&page.backup), ..page.clone() };
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
    let from = format!("{}@{}", repository.display(), id(day));
    restore(Path::new(&from), &back).unwrap();
    for i in 0..30 {
        let there = fs::read(back.join(format!("f{i:02}"))).unwrap();
        assert_eq!(there, content(u64::from(as_of * 100 + i), 3000), "{day} f{i:02}");
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
    fullbore(args!["forget", repository, id(1)]).ends_with(0);
    assert_eq!(listed(repository), [2]);
    assert!(dir(repository, 1).join("s01-000001.tar.zst").exists());
    let dry = fullbore(args!["prune", repository, "--dry-run"]).ends_with(0);
    assert!(dry.out.contains("would free"), "{}", dry.out);
    assert!(dir(repository, 1).join("forgotten.json").exists());
    let ran = prune(repository);
    assert!(ran.out.contains("freed") && ran.out.contains("segments"), "{}", ran.out);
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
    fullbore(args!["forget", repository, id(1), id(2)]).ends_with(0);
    let ran = prune(repository);
    assert!(ran.out.contains(&format!("held by {}", id(3))), "{}", ran.out);
    assert!(ran.out.contains("still held"), "{}", ran.out);
    assert_eq!(names(&repository.join("backups")), [id(1), id(3), id(4)]);
    assert!(!dir(repository, 1).join("forgotten.json").exists());
    assert_restores(repository, 3, 1);
    prune(repository);
    assert_restores(repository, 3, 1);
    fullbore(args!["forget", repository, id(3)]).ends_with(0);
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
    let rules = args!["--keep-last", "1", "--keep-daily", "2", "--keep-tag", "release"];
    let with = |more: &[&str]| {
        let more: Vec<_> = more.iter().map(std::ffi::OsString::from).collect();
        args!["forget", repository].into_iter().chain(rules.clone()).chain(more).collect::<Vec<_>>()
    };
    let dry = fullbore(with(&["--dry-run"])).ends_with(0);
    assert_eq!(listed(repository).len(), 9);
    for (day, why) in [(1, "pinned"), (2, "tag release"), (3, "last, daily"), (8, "daily"), (9, "last, daily")] {
        let line = dry.out.lines().find(|line| line.contains(&id(day))).unwrap();
        assert!(line.ends_with(&format!("keep    {why}")), "{line}");
    }
    assert!(dry.out.contains("4 backups would be forgotten, 5 kept"), "{}", dry.out);
    fullbore(with(&[])).ends_with(0);
    assert_eq!(listed(repository), [1, 2, 3, 8, 9]);
    fullbore(with(&["--group-by", "none"])).ends_with(0);
    assert_eq!(listed(repository), [1, 2, 8, 9]);
}

#[test]
fn forget_never_means_all() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    for rules in [&[][..], &["--keep-last", "0"], &["--keep-tag", "nowhere"]] {
        fullbore(args!["forget", repository].into_iter().chain(rules.iter().map(Into::into))).ends_with(2);
    }
    fullbore(args!["forget", repository, id(1), "--keep-last", "1"]).ends_with(2);
    fullbore(args!["forget", repository, id(7)]).ends_with(1);
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
    fullbore(args!["forget", repository, id(2), id(1)]).has_one_error("it is pinned");
    assert_eq!(listed(repository), [1, 2]);
    let list = fullbore(args!["list", repository]).ends_with(0);
    assert_eq!(list.out.lines().map(|line| line.ends_with("(pinned)")).collect::<Vec<_>>(), [true, false]);
    assert!(fullbore(args!["show", one]).ends_with(0).out.contains("pinned"));
    fullbore(args!["unpin", one]).ends_with(0);
    fullbore(args!["forget", repository, id(1)]).ends_with(0);
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
    let shown = fullbore(args!["show", repository, "--json"]).ends_with(0).json().remove(0);
    assert_eq!((&shown["tags"], &shown["pinned"]), (&serde_json::json!({"b": "3"}), &true.into()));
    let list = fullbore(args!["list", repository, "--json"]).ends_with(0).json().remove(0);
    assert_eq!((&list["tags"], &list["pinned"]), (&serde_json::json!({"b": "3"}), &true.into()));
    assert_eq!(fullbore(args!["tag", repository]).ends_with(0).out, format!("{}  b=3\n", id(1)));
    fullbore(args!["tag", repository, "--remove", "a"]).ends_with(1);
    assert_eq!(fs::read(dir(repository, 1).join("root.json")).unwrap(), root);
}

#[test]
fn damaged_notes_keep_nobody_from_a_restore() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    fs::write(dir(repository, 1).join("notes.json"), "{").unwrap();
    assert_restores(repository, 1, 1);
    fullbore(args!["list", repository]).ends_with(4);
    fullbore(args!["forget", repository, id(1)]).ends_with(4);
}

#[test]
fn a_root_that_cannot_be_read_stops_a_prune_before_anything_goes() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    full(repository, 2, "/data");
    let newer = full(repository, 3, "/data");
    fullbore(args!["forget", repository, id(1)]).ends_with(0);
    let there = || names(&dir(repository, 1)).len();
    let before = there();
    fs::write(dir(repository, 2).join("root.json"), "{").unwrap();
    fullbore(args!["prune", repository]).ends_with(4);
    assert_eq!(there(), before);
    let rules = fullbore(args!["forget", repository, "--keep-last", "1"]).ends_with(4);
    assert!(rules.out.contains(&format!("{}  stays", id(2))), "{}", rules.out);
    fullbore(args!["forget", repository, id(2)]).ends_with(0);
    let newer = Root { format: FORMAT + 1, ..newer };
    fs::write(dir(repository, 3).join("root.json"), seal(&newer).unwrap()).unwrap();
    fullbore(args!["prune", repository]).ends_with(1).has_one_error("format");
    assert_eq!(there(), before);
    let newer = Root { format: FORMAT, ..newer };
    fs::write(dir(repository, 3).join("root.json"), seal(&newer).unwrap()).unwrap();
    prune(repository);
    assert_eq!(names(&repository.join("backups")), [id(3)]);
}

/// A backup that died: what it stored, and a partial root.
fn died(repository: &Path, day: u32) -> Root {
    let root = full(repository, day, "/data");
    fs::rename(dir(repository, day).join("root.json"), dir(repository, day).join("partial.json")).unwrap();
    fs::create_dir_all(repository.join("intents")).unwrap();
    let intent = Intent { id: id(day), ..Intent::default() };
    fs::write(repository.join(intent_key(&id(day))), seal(&intent).unwrap()).unwrap();
    root
}

#[test]
fn a_dead_backup_is_kept_until_a_newer_one_of_its_source_is_complete() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    died(repository, 2);
    full(repository, 3, "/other");
    let tree = dir_.path().join("elsewhere");
    runs::write(tree.join("f"), "x");
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    prune(repository);
    assert!(dir(repository, 2).join("s01-000001.tar.zst").exists());
    assert_eq!(names(&repository.join("intents")), [""; 0]);
    full(repository, 4, "/data");
    prune(repository);
    assert!(!dir(repository, 2).exists());
    assert_restores(repository, 1, 1);
}

#[test]
fn a_backup_that_is_alive_loses_nothing_to_a_prune() {
    let dir_ = temp();
    let repository = dir_.path();
    let first = full(repository, 1, "/data");
    let mut store = Store::begin(repository, &id(5), "2026-11-05T05:45:01Z", "tar.zst", Tricks::Auto).unwrap();
    let referred = store.refer(&[id(1), id(4)]).unwrap();
    assert_eq!(referred.gone, [id(4)]);
    fullbore(args!["forget", repository, id(1)]).ends_with(0);
    prune(repository);
    let five = Root { id: id(5), ..first.clone() };
    let root = Root { id: id(5), bases: vec![id(1)], ..referring(&five, &first) };
    Box::new(store).commit(&seal(&root).unwrap()).unwrap();
    prune(repository);
    assert_restores(repository, 5, 1);
    assert!(!dir(repository, 1).join("forgotten.json").exists());
    assert_eq!(names(&repository.join("intents")), [""; 0]);
}

fn referring(root: &Root, base: &Root) -> Root {
    let other = temp();
    Root { id: root.id.clone(), ..thin(other.path(), 5, base) }
}

#[test]
fn a_root_is_not_stored_if_what_it_refers_to_is_gone() {
    let dir_ = temp();
    let repository = dir_.path();
    let first = full(repository, 1, "/data");
    let second = thin(repository, 2, &first);
    check(&Directory::new(repository), &second).unwrap();
    let store = Store::begin(repository, &id(5), "2026-11-05T05:45:01Z", "tar.zst", Tricks::Auto).unwrap();
    fs::write(dir(repository, 1).join("s01-000001.tar.zst"), "short").unwrap();
    let root = Root { id: id(5), ..second };
    let error = Box::new(store).commit(&seal(&root).unwrap()).unwrap_err();
    assert!(error.what.contains("s01-000001.tar.zst") && error.what.contains("5 bytes"), "{}", error.what);
    assert!(!dir(repository, 5).exists());
    assert_eq!(names(&repository.join("intents")), [""; 0]);
}

#[test]
fn tombstones_of_a_prune_that_was_killed_are_seen_and_taken_up() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    full(repository, 2, "/data");
    let objects = Directory::new(repository);
    for name in ["manifest", "s01-000001.tar.zst", "s01-000002.tar.gz.manifest"] {
        objects.mark(&format!("tombstones/{}/{name}", id(1))).unwrap();
    }
    let referred = refer(&objects, &[id(1), id(2), id(3)]).unwrap();
    assert_eq!(referred.gone, [id(3)]);
    assert_eq!(referred.manifests, [id(1)].into());
    let mut numbers: Vec<_> = referred.tombstones.iter().map(|segment| segment.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    prune(repository);
    assert_eq!(names(&repository.join("tombstones")), [""; 0]);
    assert_restores(repository, 1, 1);
}

#[test]
fn an_intent_is_held_while_its_backup_lives_and_free_after_it() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    let objects = Directory::new(repository);
    let store = Store::begin(repository, &id(5), "2026-11-05T05:45:01Z", "tar.zst", Tricks::Auto).unwrap();
    assert!(objects.seize(&intent_key(&id(5))).unwrap().is_none());
    assert!(objects.seize(&intent_key(&id(6))).unwrap().is_some());
    Box::new(store).abort(false);
    assert!(objects.seize(&intent_key(&id(5))).unwrap().is_some());
    let path = repository.join(intent_key(&id(6)));
    fs::write(&path, "").unwrap();
    let held = fs::File::open(&path).unwrap();
    assert!(write::lock_exclusive(&held).unwrap());
    assert!(objects.seize(&intent_key(&id(6))).unwrap().is_none());
}

#[test]
fn a_new_backup_is_the_latest_though_the_clock_went_back() {
    let dir_ = temp();
    let (tree, repository) = (dir_.path().join("tree"), dir_.path().join("repository"));
    runs::write(tree.join("f"), "x");
    fs::create_dir(&repository).unwrap();
    full(&repository, 1, "/data");
    let future = "29991231T235959Z-zzzzzz";
    fs::rename(dir(&repository, 1), repository.join("backups").join(future)).unwrap();
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    let shown = fullbore(args!["show", repository, "--json"]).ends_with(0).json().remove(0);
    assert!(shown["id"].as_str().unwrap() > future, "{}", shown["id"]);
    assert!(shown["time"].as_str().unwrap() < "2999");
}

/// Ids that are listed; each is checked byte by byte.
fn assert_all_whole(repository: &Path) -> Vec<String> {
    let ran = fullbore(args!["list", repository, "--json"]).ends_with(0);
    let ids: Vec<_> = ran.json().iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    for id in &ids {
        fullbore(args!["verify", format!("{}@{id}", repository.display()), "--data"]).ends_with(0);
    }
    ids
}

/// A tree that changes a little every day, in small files and in a large one.
fn change(tree: &Path, day: u64) {
    runs::write(tree.join(format!("new{}", day % 5)), runs::noise(day, 5000));
    for file in 0..8 {
        runs::write(tree.join(format!("old{file}")), runs::noise(file, 20_000));
    }
    let mut large = runs::noise(99, 400_000);
    large[(day as usize * 40_000) % 400_000..][..1000].copy_from_slice(&runs::noise(day, 1000));
    runs::write(tree.join("large"), large);
    runs::set_mtime(&tree.join("large"), 1_700_000_000 + day as i64, 0);
    (0..8).for_each(|file| runs::set_mtime(&tree.join(format!("old{file}")), 1_600_000_000, 0));
}

#[test]
fn incremental_for_ever_with_rules_and_prunes_every_backup_restores() {
    let dir_ = temp();
    let (tree, repository) = (dir_.path().join("tree"), dir_.path().join("repository"));
    let mut trees: std::collections::BTreeMap<String, runs::Shape> = Default::default();
    for day in 0..25 {
        change(&tree, day);
        let sizes = args!["--frame-size", "64K", "--segment-size", "1M", "--quiet", "--to", repository];
        let tag = args!["--tag", if day % 7 == 3 { "week=1" } else { "day=1" }];
        fullbore(args!["backup", tree].into_iter().chain(sizes).chain(tag)).ends_with(0);
        let newest = fullbore(args!["show", repository, "--json"]).ends_with(0).json().remove(0);
        trees.insert(newest["id"].as_str().unwrap().to_owned(), runs::shape(&tree));
        fullbore(args!["forget", repository, "--keep-last", "2", "--keep-tag", "week"]).ends_with(0);
        prune(&repository);
    }
    let ids = assert_all_whole(&repository);
    assert_eq!(ids.len(), 2 + 3);
    for id in ids {
        let out = temp();
        let back = out.path().join("back");
        fullbore(args!["restore", format!("{}@{id}", repository.display()), "--to", back, "--quiet"]).ends_with(0);
        runs::assert_same(&trees[&id], &runs::shape(&back), &id);
    }
    let last = fullbore(args!["show", repository, "--json"]).ends_with(0).json().remove(0);
    fullbore(args!["forget", repository, "--keep-last", "1"]).ends_with(0);
    let held = prune(&repository);
    assert!(last["bases"].as_array().is_some_and(|bases| bases.len() == 1), "{}", last["bases"]);
    assert!(held.out.contains("still held"), "{}", held.out);
    assert_all_whole(&repository);
}

/// One backup after the other; every fourth is killed.
fn back_up_until(tree: &Path, repository: &Path, until: Instant) {
    for day in (1..).take_while(|day| *day < 5 || Instant::now() < until) {
        change(tree, day);
        let options = args!["--quiet", "--frame-size", "64K", "--to", repository];
        let mut child = runs::started(args!["backup", tree].into_iter().chain(options));
        if day % 4 == 0 {
            std::thread::sleep(Duration::from_millis(day % 30));
            child.kill().unwrap();
        }
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success() || day % 4 == 0, "{}", String::from_utf8_lossy(&ended.stderr));
    }
}

#[test]
fn backups_prunes_and_forgetting_at_the_same_time_lose_nothing() {
    let dir_ = temp();
    let repository = dir_.path().join("repository");
    let until = Instant::now() + Duration::from_secs(4);
    let trees = [0u64, 1].map(|n| dir_.path().join(format!("tree{n}")));
    for tree in &trees {
        change(tree, 0);
        fullbore(args!["backup", tree, "--to", repository, "--quiet", "--frame-size", "64K"]).ends_with(0);
    }
    std::thread::scope(|scope| {
        for tree in &trees {
            scope.spawn(|| back_up_until(tree, &repository, until));
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < until {
                    fullbore(args!["forget", repository, "--keep-last", "2"]).ends_with(0);
                    prune(&repository);
                }
            });
        }
    });
    assert!(assert_all_whole(&repository).len() >= 4);
    prune(&repository);
    assert_all_whole(&repository);
}

#[test]
fn killed_at_any_system_call_a_prune_leaves_what_is_listed_and_the_next_one_goes_on() {
    if !runs::or_skip(runs::has("strace"), "there is no strace") {
        return;
    }
    for calls in ["unlink,unlinkat,rmdir", "rename,renameat,renameat2", "fsync", "openat"] {
        for when in (1..40).filter(|when| when % 3 == 1 || *when < 5) {
            let dir_ = temp();
            let repository = dir_.path();
            let first = full(repository, 1, "/data");
            thin(repository, 2, &first);
            full(repository, 3, "/data");
            died(repository, 4);
            full(repository, 5, "/data");
            fullbore(args!["forget", repository, id(1), id(3)]).ends_with(0);
            let mut strace = std::process::Command::new("strace");
            let inject = format!("inject={calls}:signal=KILL:when={when}");
            strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &inject, runs::FULLBORE, "prune"]).arg(repository);
            let ran: Ran = strace.output().unwrap().into();
            assert_restores(repository, 2, 1);
            prune(repository);
            assert_eq!(names(&repository.join("backups")), [id(1), id(2), id(5)], "{calls} {when}");
            assert_eq!(names(&repository.join("tombstones")), [""; 0]);
            assert_eq!(names(&repository.join("intents")), [""; 0]);
            assert_restores(repository, 2, 1);
            if ran.code == 0 {
                break;
            }
        }
    }
}
