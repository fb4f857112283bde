//! Forget and prune beside backups that are alive, that died, and that refer to others.

use super::runs::{self, Ran, fullbore, names, tampered, temp};
use super::{assert_restores, dir, full, id, prune, thin};
use fullbore_format::{root::Root, seal::seal};
use fullbore_pipeline::sink::Destination;
use fullbore_platform::write;
use fullbore_repository::{
    protocol::{Intent, check, intent_key, listed_needs, refer},
    writer::RepositoryWriter,
};
use fullbore_storage as storage;
use fullbore_storage::{Leased, LocalObjects, Objects, PutIf, Take};
use std::{
    ffi::OsString,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Begins backup 5.
fn writer(repository: &Path) -> RepositoryWriter {
    let objects = Arc::new(storage::LocalObjects::new(repository));
    RepositoryWriter::begin(objects, &id(5), "2026-11-05T05:45:01Z", "tar.zst").unwrap()
}

/// A backup that died: what it stored, and a partial root.
pub(crate) fn died(repository: &Path, day: u32) -> Root {
    let root = full(repository, day, "/data");
    fs::rename(
        dir(repository, day).join("root.json"),
        dir(repository, day).join("partial.json"),
    )
    .unwrap();
    fs::create_dir_all(repository.join("intents")).unwrap();
    let intent = Intent {
        id: id(day),
        ..Intent::default()
    };
    fs::write(
        repository.join(intent_key(&id(day))),
        seal(&intent).unwrap(),
    )
    .unwrap();
    root
}

#[test]
fn a_dead_backup_is_kept_until_a_newer_one_of_its_source_is_complete() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    died(repository, 2);
    full(repository, 3, "/other");
    let elsewhere = temp();
    let tree = elsewhere.path();
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
    let mut store = writer(repository);
    let referred = store.announce_bases(&[id(1), id(4)]).unwrap();
    assert_eq!(referred.gone, [id(4)]);
    fullbore(args!["forget", "--yes", repository, id(1)]).ends_with(0);
    prune(repository);
    let five = Root {
        id: id(5),
        ..first.clone()
    };
    let root = Root {
        id: id(5),
        bases: vec![id(1)],
        ..referring(&five, &first)
    };
    Box::new(store).commit(&seal(&root).unwrap()).unwrap();
    prune(repository);
    assert_restores(repository, 5, 1);
    assert!(dir(repository, 1).join("forgotten.json").exists());
    assert_eq!(names(&repository.join("intents")), [""; 0]);
}

fn referring(root: &Root, base: &Root) -> Root {
    let other = temp();
    Root {
        id: root.id.clone(),
        ..thin(other.path(), 5, base)
    }
}

#[test]
fn a_root_is_not_stored_if_what_it_refers_to_is_gone() {
    let dir_ = temp();
    let repository = dir_.path();
    let first = full(repository, 1, "/data");
    let second = thin(repository, 2, &first);
    let objects = LocalObjects::new(repository);
    let listed = listed_needs(&objects, &second).unwrap();
    check(&objects, &second, &listed).unwrap();
    let store = writer(repository);
    fs::write(dir(repository, 1).join("s01-000001.tar.zst"), "short").unwrap();
    let root = Root {
        id: id(5),
        ..second
    };
    let error = Box::new(store).commit(&seal(&root).unwrap()).unwrap_err();
    assert!(
        error.what.contains("s01-000001.tar.zst") && error.what.contains("5 bytes"),
        "{}",
        error.what
    );
    assert!(!dir(repository, 5).exists());
    assert_eq!(names(&repository.join("intents")), [""; 0]);
}

#[test]
fn tombstones_of_a_prune_that_was_killed_are_seen_and_taken_up() {
    let dir_ = temp();
    let repository = dir_.path();
    full(repository, 1, "/data");
    full(repository, 2, "/data");
    let objects = LocalObjects::new(repository);
    for name in ["manifest", "s01-000001.tar.zst", "s01-000002.tar.zst"] {
        objects
            .put(&format!("tombstones/{}/{name}", id(1)), b"", &PutIf::Always)
            .unwrap();
    }
    let referred = refer(&objects, &[id(1), id(2), id(3)]).unwrap();
    assert_eq!(referred.gone, [id(3)]);
    assert_eq!(referred.manifests, [id(1)].into());
    let mut numbers: Vec<_> = referred
        .tombstones
        .iter()
        .map(|segment| segment.number)
        .collect();
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
    let objects = LocalObjects::new(repository);
    let store = writer(repository);
    let seize = |day| {
        objects
            .lease(&intent_key(&id(day)), b"", Take::Dead)
            .unwrap()
    };
    assert!(matches!(seize(5), Leased::Held));
    assert!(matches!(seize(6), Leased::Absent));
    Box::new(store).abort(false);
    assert!(matches!(seize(5), Leased::Absent));
    let path = repository.join(intent_key(&id(6)));
    fs::write(&path, "").unwrap();
    // NFS refuses the lock of a file that is open for reading only.
    assert!(matches!(seize(6), Leased::Ours(lease) if lease.is_ours()));
    let held = fs::File::open(&path).unwrap();
    assert!(write::lock_exclusive(&held).unwrap());
    assert!(matches!(seize(6), Leased::Held));
}

/// Ids that are listed; each is checked byte by byte.
fn assert_all_whole(repository: &Path) -> Vec<String> {
    let ran = fullbore(args!["list", repository, "--json"]).ends_with(0);
    let ids: Vec<_> = ran
        .json()
        .iter()
        .map(|line| line["id"].as_str().unwrap().to_owned())
        .collect();
    for id in &ids {
        fullbore(args![
            "verify",
            format!("{}@{id}", repository.display()),
            "--data"
        ])
        .ends_with(0);
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
        let sizes = args![
            "--frame-size",
            "64K",
            "--segment-size",
            "1M",
            "--quiet",
            "--to",
            repository
        ];
        let tag = args!["--tag", if day % 7 == 3 { "week=1" } else { "day=1" }];
        fullbore(args!["backup", tree].into_iter().chain(sizes).chain(tag)).ends_with(0);
        let newest = fullbore(args!["show", repository, "--json"])
            .ends_with(0)
            .json()
            .remove(0)["root"]
            .take();
        trees.insert(
            newest["id"].as_str().unwrap().to_owned(),
            runs::shape(&tree),
        );
        fullbore(args![
            "forget",
            repository,
            "--keep-last",
            "2",
            "--keep-tag",
            "week"
        ])
        .ends_with(0);
        prune(&repository);
    }
    let ids = assert_all_whole(&repository);
    assert_eq!(ids.len(), 2 + 3);
    for id in ids {
        let out = temp();
        let back = out.path().join("back");
        fullbore(args![
            "restore",
            format!("{}@{id}", repository.display()),
            "--to",
            back,
            "--quiet"
        ])
        .ends_with(0);
        runs::assert_same(&trees[&id], &runs::shape(&back), &id);
    }
    let last = fullbore(args!["show", repository, "--json"])
        .ends_with(0)
        .json()
        .remove(0)["root"]
        .take();
    fullbore(args!["forget", repository, "--keep-last", "1"]).ends_with(0);
    let held = prune(&repository);
    assert!(
        last["bases"]
            .as_array()
            .is_some_and(|bases| bases.len() == 1),
        "{}",
        last["bases"]
    );
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
        assert!(
            ended.status.success() || day % 4 == 0,
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
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
        fullbore(args![
            "backup",
            tree,
            "--to",
            repository,
            "--quiet",
            "--frame-size",
            "64K"
        ])
        .ends_with(0);
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

/// A copy brings back under its own names what was forgotten here.
#[test]
fn copies_and_prunes_of_what_they_bring_back_at_the_same_time_lose_nothing() {
    let dir_ = temp();
    let (source, repository) = (dir_.path().join("source"), dir_.path().join("repository"));
    let tree = dir_.path().join("tree");
    for day in 0..3 {
        change(&tree, day);
        fullbore(args![
            "backup",
            tree,
            "--to",
            source,
            "--quiet",
            "--frame-size",
            "64K"
        ])
        .ends_with(0);
    }
    let ids = names(&source.join("backups"));
    fullbore(args!["copy", source, repository, "--quiet"]).ends_with(0);
    let until = Instant::now() + Duration::from_secs(4);
    std::thread::scope(|scope| {
        for id in ids.iter().chain(&ids[..1]) {
            let selected = format!("{}@{id}", source.display());
            let repository = &repository;
            scope.spawn(move || {
                while Instant::now() < until {
                    let ran = fullbore(args!["copy", selected, repository, "--quiet"]);
                    // It says so where a prune, or a forget, was faster.
                    assert!(matches!(ran.code, 0 | 1), "{}", ran.err);
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < until {
                    let ran = fullbore(args!["sync", source, repository, "--quiet"]);
                    assert!(matches!(ran.code, 0 | 1), "{}", ran.err);
                }
            });
            scope.spawn(|| {
                while Instant::now() < until {
                    fullbore(args!["forget", repository, "--keep-last", "1"]);
                    prune(&repository);
                    fullbore(args!["verify", repository, "--quiet"]);
                }
            });
        }
    });
    assert_all_whole(&repository);
    prune(&repository);
    assert_all_whole(&repository);
}

#[test]
fn killed_at_any_system_call_a_prune_leaves_what_is_listed_and_the_next_one_goes_on() {
    if !runs::or_skip(runs::has("strace"), "there is no strace") {
        return;
    }
    for calls in [
        "unlink,unlinkat,rmdir",
        "rename,renameat,renameat2",
        "fsync",
        "openat",
    ] {
        for when in (1..40).filter(|when| when % 3 == 1 || *when < 5) {
            let dir_ = temp();
            let repository = dir_.path();
            let first = full(repository, 1, "/data");
            thin(repository, 2, &first);
            full(repository, 3, "/data");
            died(repository, 4);
            full(repository, 5, "/data");
            fullbore(args!["forget", "--yes", repository, id(1), id(3)]).ends_with(0);
            let ran = tampered(
                &format!("{calls}:signal=KILL:when={when}"),
                None,
                args!["prune", repository],
            );
            assert_restores(repository, 2, 1);
            prune(repository);
            assert_eq!(
                names(&repository.join("backups")),
                [id(1), id(2), id(5)],
                "{calls} {when}"
            );
            assert_eq!(names(&repository.join("tombstones")), [""; 0]);
            assert_eq!(names(&repository.join("intents")), [""; 0]);
            assert_restores(repository, 2, 1);
            if ran.code == 0 {
                break;
            }
        }
    }
}

/// Two backups of a file, of which the first is forgotten and pruned when what runs is about to open its manifest: it has seen the
/// root. What runs is made of the repository, and the id of the first.
fn forgotten_meanwhile(dir: &Path, command: impl FnOnce(&Path, &str) -> Vec<OsString>) -> Ran {
    let (tree, repository) = (dir.join("tree"), dir.join("repo"));
    runs::write(tree.join("f"), runs::noise(1, 500_000));
    fullbore(args!["backup", &tree, "--to", &repository]).ends_with(0);
    let first = names(&repository.join("backups")).remove(0);
    fullbore(args!["backup", &tree, "--to", &repository, "--full"]).ends_with(0);
    let command = command(&repository, &first);
    std::thread::scope(|scope| {
        // By its name, as it is opened in its directory, and in whichever thread that is.
        let late = "openat:delay_enter=5000000:when=1";
        let manifest = Some(Path::new("manifest"));
        let run = scope.spawn(move || runs::tampered(late, manifest, command));
        std::thread::sleep(Duration::from_millis(2000));
        fullbore(args!["forget", "--yes", &repository, &first]).ends_with(0);
        fullbore(args!["prune", &repository]).ends_with(0);
        run.join().unwrap()
    })
}

#[test]
fn what_is_forgotten_and_pruned_while_all_is_verified_is_no_damage() {
    if !runs::or_skip(runs::has("strace"), "there is no strace") {
        return;
    }
    for options in [["verify", "--data"], ["verify", "--sample=100%"]] {
        forgotten_meanwhile(temp().path(), |repository, _| {
            args![options[0], repository, options[1]].into()
        })
        .ends_with(0);
    }
}

#[test]
fn a_backup_that_is_forgotten_and_pruned_while_it_is_read_is_not_called_damaged() {
    if !runs::or_skip(runs::has("strace"), "there is no strace") {
        return;
    }
    for options in [
        &["verify", "--data"][..],
        &["verify"],
        &["restore", "--plan", "--to"],
        &["restore", "--keep-going", "--to"],
        &["restore", "--keep-going", "--delta", "--delete", "--to"],
        &["export", "--keep-going", "--to"],
    ] {
        let dir = temp();
        let target = dir.path().join("to.tar.zst");
        if options.contains(&"--delta") {
            runs::write(target.join("f"), runs::noise(2, 500_000));
        }
        let command = |repository: &Path, id: &str| {
            let backup = format!("{}@{id}", repository.display()).into();
            let target = options
                .last()
                .filter(|last| **last == "--to")
                .map(|_| target.clone().into());
            [options[0].into(), backup]
                .into_iter()
                .chain(options[1..].iter().map(Into::into))
                .chain(target)
                .collect()
        };
        let ran = forgotten_meanwhile(dir.path(), command).ends_with(1);
        assert!(
            ran.err.contains("any more") && ran.err.contains("it was forgotten"),
            "{options:?}: {}",
            ran.err
        );
        assert!(
            !format!("{}{}", ran.out, ran.err).contains("damage"),
            "{options:?}: {} {}",
            ran.out,
            ran.err
        );
        assert_eq!(
            target.join("f").exists(),
            options.contains(&"--delta"),
            "{options:?}"
        );
    }
}
