//! Real backups that refer to each other: what the loss of any object costs is named exactly, and nothing else.

use crate::runs;
use crate::runs::{fullbore, has, noise, or_skip, shell, tampered, temp, text, write};
use fullbore_engine::repair::{self, Repair, RepairStep};
use fullbore_format::{
    digest::hex,
    page::{EntryState, ManifestPage, Record},
    root::Root,
    seal::seal,
};
use fullbore_platform::metrics::meter::Meter;
use fullbore_repository::protocol::intent_key;
use fullbore_storage::{Leased, LocalObjects, Objects, Storages, Take};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    num::NonZeroUsize,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Files of a tree and their content.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut stack) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(place) = stack.pop() {
        for path in fs::read_dir(&place)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path())
        {
            match path.is_dir() {
                true => stack.push(path),
                false => {
                    let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
                    found.insert(name, fs::read(path).unwrap());
                }
            }
        }
    }
    found
}

/// Three backups of a tree that changes, with the content of each.
fn three(dir: &Path, more: &[&str]) -> Vec<(String, BTreeMap<String, Vec<u8>>)> {
    let (tree, repository) = (dir.join("tree"), dir.join("repo"));
    for i in 0..60 {
        write(
            tree.join(format!("d{}/f{i:02}", i % 3)),
            text(i, (i * 400) as usize),
        );
    }
    write(tree.join("large"), noise(7, 3_000_000));
    fs::hard_link(tree.join("d1/f07"), tree.join("other name")).unwrap();
    let mut all = Vec::new();
    for round in 0..3 {
        let args = args![
            "backup",
            tree,
            "--to",
            repository,
            "--json",
            "--frame-size",
            "64K",
            "--segment-size",
            "1M"
        ];
        let ran = fullbore(args.into_iter().chain(more.iter().map(OsString::from))).ends_with(0);
        all.push((
            ran.json().pop().unwrap()["id"].as_str().unwrap().to_owned(),
            files(&tree),
        ));
        write(
            tree.join(format!("d0/f{:02}", round * 3)),
            text(90 + round, 5000),
        );
        write(tree.join(format!("new{round}")), noise(round, 200_000));
        let mut large = fs::read(tree.join("large")).unwrap();
        large[(round as usize + 1) * 500_000] ^= 1;
        fs::write(tree.join("large"), large).unwrap();
    }
    all
}

fn lost(verdict: &Value, id: &str, all: &BTreeMap<String, Vec<u8>>) -> BTreeSet<String> {
    let loss = verdict["lost"]
        .as_array()
        .unwrap()
        .iter()
        .find(|loss| loss["backup"] == id);
    let Some(loss) = loss else {
        return BTreeSet::new();
    };
    assert_eq!(loss["unnamed"], Value::Array(vec![]), "{loss}");
    match loss["all"] == true {
        true => all.keys().cloned().collect(),
        false => loss["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|file| file.as_str().unwrap().to_owned())
            .collect(),
    }
}

fn objects(dir: &Path) -> Vec<PathBuf> {
    files(dir)
        .into_keys()
        .map(|name| dir.join(name))
        .filter(|path| path.exists())
        .collect()
}

#[test]
fn the_loss_of_any_object_names_exactly_the_files_that_are_lost_with_it() {
    for more in [&["--compress", "zstd"][..], &["--compress", "none"]] {
        let dir = temp();
        let all = three(dir.path(), more);
        let (repository, target) = (dir.path().join("repo"), dir.path().join("to"));
        let verify = || fullbore(args!["verify", repository, "--data", "--json"]);
        assert_eq!(verify().ends_with(0).json().pop().unwrap()["backups"], 3);
        // Others need all of the second backup: without its root it is like one that was forgotten and pruned.
        let spared = repository.join("backups").join(&all[1].0).join("root.json");
        // The one says that this is a repository, the other which data was checked.
        let others = ["fullbore-repo.json", "verify.json"];
        let is_named =
            |path: &PathBuf| *path != spared && !others.iter().any(|other| path.ends_with(other));
        for object in objects(&repository).into_iter().filter(is_named) {
            let whole = fs::read(&object).unwrap();
            fs::remove_file(&object).unwrap();
            let verdict = verify().ends_with(4).json().pop().unwrap();
            for (id, wanted) in &all {
                let _ = fs::remove_dir_all(&target);
                let selected = format!("{}@{id}", repository.display());
                let ran = fullbore(args![
                    "restore",
                    selected,
                    "--to",
                    target,
                    "--keep-going",
                    "-q"
                ]);
                let given = files(&target);
                let missing: BTreeSet<String> = wanted
                    .iter()
                    .filter(|(name, data)| given.get(*name) != Some(data))
                    .map(|(name, _)| name.clone())
                    .collect();
                assert_eq!(
                    lost(&verdict, id, wanted),
                    missing,
                    "{object:?} of {id}: {verdict:#}\n{}",
                    ran.err
                );
            }
            fs::write(&object, whole).unwrap();
        }
        verify().ends_with(0);
    }
}

/// All segments of all backups.
fn segments(repository: &Path) -> Vec<PathBuf> {
    objects(&repository.join("backups"))
        .into_iter()
        .filter(|path| path.to_string_lossy().contains("/s01-"))
        .collect()
}

#[test]
fn an_object_that_the_disk_does_not_give_is_lost_as_one_that_is_not_there() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let all = three(dir.path(), &[]);
    let repository = dir.path().join("repo");
    let losses = |ran: runs::Ran| {
        let verdict = ran.ends_with(4).json().pop().unwrap();
        all.iter()
            .map(|(id, files)| lost(&verdict, id, files))
            .collect::<Vec<_>>()
    };
    for segment in segments(&repository) {
        let verify = args!["verify", repository, "--data", "--json"];
        let unread = losses(tampered(
            "pread64:error=EIO",
            Some(&segment),
            verify.clone(),
        ));
        let back = dir.path().join("back");
        let restore = args!["restore", repository, "--to", back, "--keep-going"];
        tampered("pread64:error=EIO", Some(&segment), restore).ends_with(if unread[2].is_empty() {
            0
        } else {
            4
        });
        for (name, content) in &all[2].1 {
            assert_eq!(
                fs::read(back.join(name)).ok().as_ref() == Some(content),
                !unread[2].contains(name),
                "{name}"
            );
        }
        fs::remove_dir_all(&back).unwrap();
        let away = dir.path().join("away");
        fs::rename(&segment, &away).unwrap();
        assert_eq!(unread, losses(fullbore(verify)), "{segment:?}");
        fs::rename(&away, &segment).unwrap();
    }
}

#[test]
fn what_a_disk_gives_when_it_is_asked_again_is_not_given_up() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    three(dir.path(), &[]);
    let repository = dir.path().join("repo");
    let before = files(&repository);
    for (kind, calls) in ["pread64", "openat", "statx"].into_iter().enumerate() {
        for (number, object) in objects(&repository).into_iter().enumerate() {
            // Each call fails for each object, the first, second or fourth time.
            let when = [1, 2, 4][(kind + number) % 3];
            let repair = args!["repair", repository, "--data", "--yes"];
            let inject = format!("{calls}:error=EIO:when={when}");
            let ran = tampered(&inject, Some(&object), repair);
            let case = format!("{inject} {object:?}: {}{}", ran.out, ran.err);
            assert!([0, 1].contains(&ran.code), "{case}");
            assert!(files(&repository) == before, "{case}");
        }
    }
}

#[test]
fn a_disk_that_fails_at_any_moment_of_a_restore_is_told() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    for i in 0..400 {
        write(tree.join(format!("a/f{i}")), noise(i, 10));
    }
    fs::create_dir(tree.join("b")).unwrap();
    (0..400).for_each(|i| {
        fs::hard_link(tree.join(format!("a/f{i}")), tree.join(format!("b/h{i}"))).unwrap()
    });
    fullbore(args!["backup", &tree, "--to", &repo]).ends_with(0);
    let mut ends = BTreeSet::new();
    for index in 1..14 {
        let target = dir.path().join(format!("to{index}"));
        let line = "strace -f -qq -o /dev/null -e trace=pread64 -e inject=pread64:error=EIO:when=$1+ \"$2\" restore \"$3\" --to \"$4\" 2>&1";
        let ran = shell(
            line,
            args![index.to_string(), runs::FULLBORE, &repo, &target],
        );
        let links = fs::read_dir(target.join("b")).map_or(0, Iterator::count);
        assert!(
            ran.code != 0 || links == 400,
            "from read {index} on: {links} links, {}",
            ran.out
        );
        ends.insert(ran.code);
    }
    assert!(ends.contains(&0) && ends.len() > 1, "{ends:?}");
}

#[test]
fn a_lack_of_descriptors_ends_a_restore_and_is_not_called_damage() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    three(dir.path(), &[]);
    let repository = dir.path().join("repo");
    // By its name, as it is opened in its directory, and in whichever thread that is. Pages are in segments, too.
    let without = "openat:error=EMFILE:when=1+";
    let segment = Path::new("s01-000001.tar.zst");
    for more in [None, Some("--keep-going")] {
        let back = temp();
        let restore = args!["restore", repository, "--to", back.path()].into_iter();
        let restore = restore.chain(more.map(Into::into));
        let ran = tampered(without, Some(segment), restore).ends_with(1);
        assert!(
            ran.err.contains("too many open files") && !ran.err.contains("damaged"),
            "{}",
            ran.err
        );
    }
}

#[test]
fn a_repair_says_what_it_does_and_afterwards_everything_that_is_left_restores() {
    for more in [&["--compress", "zstd"][..], &["--compress", "none"]] {
        let dir = temp();
        let all = three(dir.path(), more);
        let (repository, copy, target) = (
            dir.path().join("repo"),
            dir.path().join("copy"),
            dir.path().join("to"),
        );
        fullbore(args!["repair", repository]).ends_with(0);
        let spared = repository.join("backups").join(&all[1].0).join("root.json");
        for object in objects(&repository)
            .into_iter()
            .filter(|path| *path != spared)
        {
            let name = object.strip_prefix(&repository).unwrap().to_owned();
            let _ = fs::remove_dir_all(&copy);
            runs::shell("cp -r \"$1\" \"$2\"", args![repository, copy]).ends_with(0);
            fs::remove_file(copy.join(&name)).unwrap();
            let case = format!("{name:?} {more:?}");
            let verdict = fullbore(args!["verify", copy, "--json"]);
            let verdict = verdict.json().pop();
            let before = files(&copy);
            let said = fullbore(args!["repair", copy]);
            assert_eq!(
                (said.code, files(&copy) == before),
                (4, true),
                "{case}: {}{}",
                said.out,
                said.err
            );
            let done = fullbore(args!["repair", copy, "--yes"]);
            assert_eq!(done.code, 0, "{case}: {}{}", done.out, done.err);
            let after = fullbore(args!["verify", copy, "--data"]);
            assert_eq!(
                after.code, 0,
                "{case}: {}{}{}",
                done.out, after.out, after.err
            );
            let of_root = name.ends_with("root.json");
            for (index, (id, wanted)) in all.iter().enumerate() {
                let _ = fs::remove_dir_all(&target);
                let ran = fullbore(args![
                    "restore",
                    format!("{}@{id}", copy.display()),
                    "--to",
                    target,
                    "-q"
                ]);
                let given = files(&target);
                assert!(
                    given
                        .iter()
                        .all(|(name, data)| wanted.get(name) == Some(data)),
                    "{case}: wrong content"
                );
                let missing: BTreeSet<String> = wanted
                    .keys()
                    .filter(|name| !given.contains_key(*name))
                    .cloned()
                    .collect();
                // A root that is rebuilt cannot tell whether there were whole pages of others.
                let may_lack = of_root && index > 0 && name.to_str().unwrap().contains(id);
                let wanted_code = if missing.is_empty() && !may_lack {
                    0
                } else {
                    3
                };
                assert_eq!(ran.code, wanted_code, "{case}, {id}: {}", ran.err);
                let lost = match &verdict {
                    // A full backup comes back as it was; one that shared whole pages with others does not.
                    _ if of_root && (index == 0 || !name.to_str().unwrap().contains(id)) => {
                        BTreeSet::new()
                    }
                    _ if of_root => continue,
                    Some(verdict) => lost(verdict, id, wanted),
                    None => BTreeSet::new(),
                };
                assert_eq!(missing, lost, "{case}, {id}: {}", done.out);
            }
        }
    }
}

#[test]
fn what_a_backup_lost_with_its_root_is_told_to_whoever_restores_or_exports_it() {
    let dir = temp();
    let (tree, repository, target) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("to"),
    );
    (0..12_000).for_each(|i| write(tree.join(format!("d{}/f{i}", i / 500)), b""));
    std::thread::sleep(std::time::Duration::from_millis(3100)); // what changed just now is compared with more than its times
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    write(tree.join("z"), "new");
    let ran = fullbore(args!["backup", tree, "--to", repository, "--json"]).ends_with(0);
    let id = ran.json().pop().unwrap()["id"].as_str().unwrap().to_owned();
    fs::remove_file(repository.join("backups").join(&id).join("root.json")).unwrap();
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    let (source, export) = (
        format!("{}@{id}", repository.display()),
        dir.path().join("x.tar.zst"),
    );
    fullbore(args!["export", source, "--to", export, "-q"]).ends_with(0);
    for source in [source.clone(), export.display().to_string()] {
        let _ = fs::remove_dir_all(&target);
        let ran = fullbore(args!["restore", source, "--to", target]).ends_with(3);
        assert!(files(&target).len() < 12_001, "nothing is lost here");
        assert!(
            ran.err.contains("the root was lost") && !ran.err.contains("every digest"),
            "{}",
            ran.err
        );
        // One file is there or not; a directory may hold less than it did.
        fullbore(args![
            "restore",
            source,
            "z",
            "--to",
            dir.path().join("one"),
            "--overwrite=all"
        ])
        .ends_with(0);
        let whole = files(&tree);
        let args = args!["restore", source, "--to", tree, "--delta", "--delete"];
        fullbore(args)
            .ends_with(4)
            .has_one_error("file list is damaged");
        assert_eq!(files(&tree), whole);
        fullbore(args!["restore", source, "--to", tree, "--delta", "-q"]).ends_with(3);
        assert_eq!(files(&tree), whole);
    }
}

#[test]
fn what_a_backup_lost_with_a_page_is_told_to_whoever_restores_or_exports_it() {
    let dir = temp();
    let (tree, repository, target) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("to"),
    );
    (0..50).for_each(|i| write(tree.join(format!("d/f{i}")), text(i, 100)));
    std::thread::sleep(std::time::Duration::from_millis(3100));
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    write(tree.join("d/f7"), "new");
    let ran = fullbore(args!["backup", tree, "--to", repository, "--json"]).ends_with(0);
    let id = ran.json().pop().unwrap()["id"].as_str().unwrap().to_owned();
    let home = repository.join("backups").join(&id);
    let root: Value = serde_json::from_slice(&fs::read(home.join("root.json")).unwrap()).unwrap();
    let page = root["pages"]
        .as_array()
        .unwrap()
        .iter()
        .find(|page| page["backup"].is_null())
        .unwrap();
    for (file, place) in [
        ("manifest", "manifest_offset"),
        ("s01-000001.tar.zst", "offset"),
    ] {
        let file = fs::File::options()
            .write(true)
            .open(home.join(file))
            .unwrap();
        file.write_all_at(b"damage", page[place].as_u64().unwrap() + 20)
            .unwrap();
    }
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
    let (source, export) = (
        repository.display().to_string(),
        dir.path().join("x.tar.zst"),
    );
    fullbore(args!["export", source, "--to", export, "-q"]).ends_with(0);
    let whole = files(&tree);
    for source in [source, export.display().to_string()] {
        let _ = fs::remove_dir_all(&target);
        let ran = fullbore(args!["restore", source, "--to", target]).ends_with(3);
        assert!(
            ran.err.contains("unknown names") && !ran.err.contains("every digest"),
            "{}",
            ran.err
        );
        let args = args!["restore", source, "--to", tree, "--delta", "--delete"];
        fullbore(args)
            .ends_with(4)
            .has_one_error("file list is damaged");
        assert_eq!(files(&tree), whole);
    }
}

#[test]
fn the_last_backup_is_not_passed_over_when_its_root_is_lost() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("t"), dir.path().join("r"));
    for day in ["first", "second"] {
        write(tree.join("f"), day);
        fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    }
    let ids = fullbore(args!["list", repository, "--json"]).json();
    let ids: Vec<_> = ids
        .iter()
        .map(|line| line["id"].as_str().unwrap().to_owned())
        .collect();
    fs::remove_file(repository.join("backups").join(&ids[1]).join("root.json")).unwrap();
    let listed = fullbore(args!["list", repository]).ends_with(4).out;
    assert!(
        listed.contains(&format!("{}  its root is lost", ids[1])),
        "{listed}"
    );
    let lines = fullbore(args!["list", repository, "--json"])
        .ends_with(4)
        .json();
    assert!(
        lines[1]["id"] == *ids[1] && lines[1]["complete"] == false,
        "{lines:?}"
    );
    let back = dir.path().join("b");
    fullbore(args!["restore", repository, "--to", back])
        .ends_with(4)
        .has_one_error("is lost, which is later than");
    assert!(!back.exists());
    fullbore(args![
        "restore",
        format!("{}@{}", repository.display(), ids[0]),
        "--to",
        back
    ])
    .ends_with(0);
    // The next one is the latest again.
    write(tree.join("f"), "third");
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    fullbore(args!["restore", repository, "--to", dir.path().join("c")]).ends_with(0);
    assert_eq!(fs::read(dir.path().join("c/f")).unwrap(), b"third");
}

#[test]
fn a_root_that_is_lost_after_a_repair_has_every_entry_once() {
    let dir = temp();
    let (tree, repository, target) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("to"),
    );
    (0..400).for_each(|i| write(tree.join(format!("f{i}")), noise(i, 3000)));
    fs::hard_link(tree.join("f1"), tree.join("hard link")).unwrap();
    let ran = fullbore(args!["backup", tree, "--to", repository, "--json"]).ends_with(0);
    let home = repository
        .join("backups")
        .join(ran.json().pop().unwrap()["id"].as_str().unwrap());
    let segment = home.join("s01-000001.tar.zst");
    let mut given = Vec::new();
    for file in [399, 10] {
        let content = &noise(file, 3000)[1000..1300];
        let stored = fs::read(&segment).unwrap();
        let index = stored
            .windows(300)
            .position(|bytes| bytes == content)
            .expect("noise is stored as it is");
        spoil(&segment, index as u64 + 150);
        fullbore(args!["repair", repository, "--data", "--yes"]).ends_with(0);
        for is_lost in [false, true] {
            if is_lost {
                fs::remove_file(home.join("root.json")).unwrap();
                fullbore(args!["repair", repository, "--yes"]).ends_with(0);
            }
            let listed =
                fullbore(args!["list", format!("{}@latest", repository.display())]).ends_with(0);
            assert_eq!(listed.out.lines().count(), 402, "{}", listed.out);
            fullbore(args!["verify", repository]).ends_with(0);
            let _ = fs::remove_dir_all(&target);
            fullbore(args!["restore", repository, "--to", target, "-q"]).ends_with(3);
            given.push(files(&target));
        }
    }
    assert!(given[0] == given[1] && given[2] == given[3] && given[2].len() < given[0].len());
}

#[test]
fn a_page_that_only_the_manifest_has_keeps_its_place() {
    let dir = temp();
    let (tree, repository, target) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("to"),
    );
    write(tree.join("big"), noise(1, 3_000_000));
    let options = args![
        "--frame-size",
        "64K",
        "--block-size",
        "16K",
        "--checkpoint-interval",
        "0",
        "--json"
    ];
    let ran = fullbore(
        args!["backup", tree, "--to", repository]
            .into_iter()
            .chain(options),
    )
    .ends_with(0);
    let home = repository
        .join("backups")
        .join(ran.json().pop().unwrap()["id"].as_str().unwrap());
    let root: Value = serde_json::from_slice(&fs::read(home.join("root.json")).unwrap()).unwrap();
    let pages = root["pages"].as_array().unwrap();
    let page = &pages[pages.len() / 2];
    let segment = fs::File::options()
        .write(true)
        .open(home.join(segment_of(page)))
        .unwrap();
    segment
        .write_all_at(b"damage", page["offset"].as_u64().unwrap() + 20)
        .unwrap();
    fs::remove_file(home.join("root.json")).unwrap();
    fullbore(args!["repair", repository, "--data", "--yes"]).ends_with(0);
    fullbore(args!["repair", repository, "--data"]).ends_with(0);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
    fullbore(args!["restore", repository, "--to", target, "-q"]).ends_with(0);
    assert!(files(&target) == files(&tree));
    fullbore(args![
        "export",
        repository,
        "--to",
        dir.path().join("x.tar.zst"),
        "-q"
    ])
    .ends_with(0);
}

#[test]
fn a_segment_that_is_lost_with_root_and_manifest_is_missed() {
    // One in the middle: nothing tells of the last.
    for codec in ["zstd", "lz4"] {
        let dir = temp();
        let (tree, repository, target) = (
            dir.path().join("tree"),
            dir.path().join("repo"),
            dir.path().join("to"),
        );
        (0..8).for_each(|i| write(tree.join(format!("f{i}")), noise(i, 700_000)));
        let options = args!["--segment-size", "1M", "--compress", codec, "--json"];
        let ran = fullbore(
            args!["backup", tree, "--to", repository]
                .into_iter()
                .chain(options),
        )
        .ends_with(0);
        let home = repository
            .join("backups")
            .join(ran.json().pop().unwrap()["id"].as_str().unwrap());
        let segment = segments(&repository).into_iter().rev().nth(2).unwrap();
        for lost in [&home.join("root.json"), &home.join("manifest"), &segment] {
            fs::remove_file(lost).unwrap();
        }
        fullbore(args!["repair", repository, "--yes"]).ends_with(0);
        let ran = fullbore(args!["restore", repository, "--to", target]).ends_with(3);
        assert!(
            ran.err.contains("and a segment or a part of one") && !files(&target).is_empty(),
            "{segment:?}: {}",
            ran.err
        );
        let whole = files(&tree);
        fullbore(args![
            "restore", repository, "--to", tree, "--delta", "--delete"
        ])
        .ends_with(4);
        assert_eq!(files(&tree), whole);
    }
}

#[test]
fn a_manifest_that_nothing_reads_any_more_can_be_lost() {
    let dir = temp();
    let (tree, repository, target) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("to"),
    );
    (0..10).for_each(|i| write(tree.join(format!("f{i}")), noise(i, 70_000)));
    std::thread::sleep(std::time::Duration::from_millis(3100));
    let backup = || {
        let ran = fullbore(args!["backup", tree, "--to", repository, "--json"]).ends_with(0);
        ran.json().pop().unwrap()["id"].as_str().unwrap().to_owned()
    };
    let first = backup();
    [0, 2, 4, 6]
        .iter()
        .for_each(|i| write(tree.join(format!("f{i}")), text(*i, 100)));
    backup();
    fullbore(args!["forget", "--yes", repository, first]).ends_with(0);
    fullbore(args!["prune", repository]).ends_with(0);
    fs::remove_file(repository.join("backups").join(&first).join("manifest")).unwrap();
    backup();
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
    fullbore(args!["restore", repository, "--to", target, "-q"]).ends_with(0);
    assert_eq!(files(&target), files(&tree));
}

#[test]
fn samples_go_round_and_find_damage() {
    let dir = temp();
    write(dir.path().join("tree/large"), noise(1, 40 << 20));
    let repository = dir.path().join("repo");
    fullbore(args![
        "backup",
        dir.path().join("tree"),
        "--to",
        repository,
        "-q",
        "--segment-size",
        "9M"
    ])
    .ends_with(0);
    let sample = |more: &[&str]| {
        let args = args!["verify", repository, "--json"].into_iter();
        fullbore(args.chain(more.iter().map(OsString::from)))
    };
    let mut never = u64::MAX;
    let mut rounds = 0;
    while never > 0 {
        let found = sample(&["--sample", "20%"])
            .ends_with(0)
            .json()
            .pop()
            .unwrap();
        let now = found["sampled"]["never_bytes"].as_u64().unwrap();
        assert!(now < never, "{found}");
        (never, rounds) = (now, rounds + 1);
    }
    assert!((3..=6).contains(&rounds), "{rounds}");
    let all = sample(&["--for", "1h"]).ends_with(0).json().pop().unwrap();
    assert_eq!(all["sampled"]["bytes"], all["sampled"]["of_bytes"]);
    let segment = segments(&repository).remove(0);
    let mut bytes = fs::read(&segment).unwrap();
    bytes[5 << 20] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let found = sample(&["--sample", "100%"])
        .ends_with(4)
        .json()
        .pop()
        .unwrap();
    assert_eq!(found["lost"][0]["files"], serde_json::json!(["large"]));
}

#[test]
fn a_backup_in_a_directory_of_another_name_is_damaged_and_no_base() {
    let dir = temp();
    let all = three(dir.path(), &[]);
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    let other = format!("{}-zzzzzz", &all[2].0[..16]);
    fs::rename(
        repository.join("backups").join(&all[2].0),
        repository.join("backups").join(&other),
    )
    .unwrap();
    fullbore(args!["verify", format!("{}@{other}", repository.display())])
        .ends_with(4)
        .has_one_error(&all[2].0);
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    fullbore(args![
        "verify",
        repository.display().to_string() + "@latest",
        "--data"
    ])
    .ends_with(0);
}

#[test]
fn more_backups_are_checked_than_files_can_be_open() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("a"), noise(1, 50_000));
    let line = "for i in {1..80}; do echo $i > \"$2/b\"; \"$1\" backup \"$2\" --to \"$3\" --quiet || exit; done";
    shell(line, args![runs::FULLBORE, tree, repository]).ends_with(0);
    let checks = [
        "verify \"$2\"",
        "verify \"$2\" --data",
        "verify \"$2\" --sample 20%",
        "repair \"$2\"",
        "find \"$2\" b",
    ];
    for check in checks {
        let line = format!("ulimit -n 64 && \"$1\" {check}");
        shell(&line, args![runs::FULLBORE, repository]).ends_with(0);
    }
}

#[test]
fn a_backup_that_cannot_be_looked_at_is_not_passed_over() {
    if !or_skip(has("strace"), "no strace") {
        return;
    }
    let dir = temp();
    let (tree, repository, target) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("to"),
    );
    for content in ["old", "newer"] {
        write(tree.join("file"), content);
        fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    }
    let homes = fs::read_dir(repository.join("backups")).unwrap();
    let mut homes: Vec<_> = homes.map(|home| home.unwrap().path()).collect();
    homes.sort();
    let root = homes[1].join("root.json");
    let with_denied = |args: &[OsString]| {
        tampered(
            "statx,openat:error=EACCES",
            Some(&root),
            args.iter().cloned(),
        )
    };
    for command in ["show", "verify", "list"] {
        let ran = with_denied(&args![command, format!("{}@latest", repository.display())]);
        assert_eq!(ran.code, 1, "{command}: {}{}", ran.out, ran.err);
    }
    let ran = with_denied(&args!["restore", repository, "--to", target]).ends_with(1);
    assert!(
        ran.err.contains("permission denied") && !target.join("file").exists(),
        "{}",
        ran.err
    );
    for args in [
        &args!["list", repository][..],
        &args!["verify", repository],
        &args!["forget", repository, "--keep-last", "1"],
    ] {
        let ran = with_denied(args);
        assert_ne!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
    }
}

/// Backups of a small tree, with what is at the end of their ids' directories.
fn small(dir: &Path, backups: usize) -> Vec<(String, PathBuf)> {
    let (tree, repository) = (dir.join("tree"), dir.join("repo"));
    let backup = |n: usize| {
        write(tree.join("f"), format!("content {n}"));
        let ran = fullbore(args!["backup", tree, "--to", repository, "--json"]).ends_with(0);
        let id = ran.json().pop().unwrap()["id"].as_str().unwrap().to_owned();
        (id.clone(), repository.join("backups").join(id))
    };
    (0..backups).map(backup).collect()
}

fn change_root(home: &Path, change: impl FnOnce(&mut Root)) {
    let path = home.join("root.json");
    let mut root = Root::open(&fs::read(&path).unwrap(), "root.json").unwrap();
    change(&mut root);
    fs::write(path, seal(&root).unwrap()).unwrap();
}

#[test]
fn what_holds_no_backup_is_not_sound() {
    let dir = temp();
    let (id, home) = small(dir.path(), 1).pop().unwrap();
    let (repository, target) = (dir.path().join("repo"), dir.path().join("to"));
    let selected = |id: &str| format!("{}@{id}", repository.display());
    let root = home.join("root.json");
    fs::rename(&root, home.join("partial.json")).unwrap();
    for args in [
        &args!["verify", repository][..],
        &args!["restore", selected(&id), "--to", target],
        &args!["show", repository],
    ] {
        let ran = fullbore(args.iter().cloned()).ends_with(1);
        assert!(
            ran.err.contains(&id) && ran.err.contains("was interrupted"),
            "{args:?}: {}",
            ran.err
        );
    }
    fs::rename(home.join("partial.json"), &root).unwrap();
    fullbore(args!["forget", "--yes", repository, id]).ends_with(0);
    for args in [
        &args!["verify", repository, "--json"][..],
        &args!["verify", repository, "--sample", "5%"],
    ] {
        let ran = fullbore(args.iter().cloned())
            .ends_with(1)
            .has_one_error("holds none");
        assert_eq!(ran.out, "");
    }
    for more in [&[][..], &["--json"]] {
        let ran = fullbore(
            args!["list", repository]
                .into_iter()
                .chain(more.iter().map(OsString::from)),
        )
        .ends_with(0);
        assert!(
            ran.out.is_empty() && ran.err.contains("holds no backup"),
            "{}{}",
            ran.out,
            ran.err
        );
    }
    fullbore(args!["repair", repository]).ends_with(0);
}

#[test]
fn a_root_is_missed_though_others_need_all_that_it_had() {
    let dir = temp();
    let (tree, repository, back) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("back"),
    );
    write(tree.join("large"), noise(7, 3_000_000));
    let backup = || {
        fullbore(args!["backup", tree, "--to", repository, "--json"])
            .ends_with(0)
            .json()
            .remove(0)
    };
    let first = backup()["id"].as_str().unwrap().to_owned();
    write(tree.join("new"), "new");
    backup();
    fs::remove_file(tree.join("new")).unwrap();
    fs::remove_file(repository.join("backups").join(&first).join("root.json")).unwrap();
    let verified = fullbore(args!["verify", repository]).ends_with(4);
    assert!(
        verified.out.contains(&first) || verified.err.contains(&first),
        "{} {}",
        verified.out,
        verified.err
    );
    fullbore(args!["prune", repository])
        .ends_with(4)
        .has_one_error("root.json\" is missing");
    fullbore(args!["repair", repository]).ends_with(4);
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    fullbore(args![
        "restore",
        format!("{}@{first}", repository.display()),
        "--to",
        back,
        "--quiet"
    ]);
    assert_eq!(files(&back), files(&tree));
    for args in [
        &args!["verify", repository][..],
        &args!["prune", repository],
    ] {
        fullbore(args.to_vec()).ends_with(0);
    }
    // What is copied for others is no loss, nor is what was forgotten.
    let copy = dir.path().join("copy");
    fullbore(args![
        "copy",
        format!("{}@latest", repository.display()),
        copy
    ])
    .ends_with(0);
    fullbore(args!["verify", copy]).ends_with(0);
    fullbore(args!["forget", "--yes", repository, first]).ends_with(0);
    for args in [
        &args!["prune", repository][..],
        &args!["verify", repository],
    ] {
        fullbore(args.to_vec()).ends_with(0);
    }
}

#[test]
fn a_root_that_is_lost_or_damaged_is_not_a_backup_that_never_was() {
    let dir = temp();
    let (id, home) = small(dir.path(), 1).pop().unwrap();
    let (repository, target) = (dir.path().join("repo"), dir.path().join("to"));
    let selected = |id: &str| format!("{}@{id}", repository.display());
    let ran = fullbore(args!["restore", selected("2027"), "--to", target]).ends_with(1);
    assert!(ran.err.contains("it holds 1 backup, "), "{}", ran.err);
    let whole = fs::read(home.join("root.json")).unwrap();
    fs::remove_file(home.join("root.json")).unwrap();
    for args in [
        &args!["restore", repository, "--to", target][..],
        &args!["show", repository],
        &args!["list", selected(&id)],
        &args!["restore", selected(&id[..12]), "--to", target],
    ] {
        let ran = fullbore(args.iter().cloned())
            .ends_with(4)
            .has_one_error("is lost");
        assert!(
            ran.err.contains(&id) && ran.err.contains("fullbore repair"),
            "{args:?}: {}",
            ran.err
        );
    }
    let mut damaged = whole;
    damaged[30] ^= 1;
    fs::write(home.join("root.json"), damaged).unwrap();
    let ran = fullbore(args!["restore", repository, "--to", target])
        .ends_with(4)
        .has_one_error("damaged");
    assert!(
        ran.err.contains("fullbore repair") && ran.err.contains("@BACKUP"),
        "{}",
        ran.err
    );
    let ran = fullbore(args!["prune", repository])
        .ends_with(4)
        .has_one_error("damaged");
    let places = ["fullbore repair", "fullbore forget"].map(|command| ran.err.find(command));
    assert!(places[0].is_some() && places[0] < places[1], "{}", ran.err);
}

#[test]
fn a_repository_without_its_own_file_is_one_that_can_be_repaired() {
    let dir = temp();
    let (id, _) = small(dir.path(), 1).pop().unwrap();
    let repository = dir.path().join("repo");
    fs::remove_file(repository.join("fullbore-repo.json")).unwrap();
    let selected = format!("{}@{id}", repository.display());
    for args in [
        &args!["list", repository][..],
        &args!["list", selected],
        &args!["show", repository],
        &args!["verify", repository],
        &args!["restore", repository, "--to", dir.path().join("to")],
        &args!["diff", repository, "latest"],
        &args!["find", repository, "f"],
        &args!["forget", "--yes", repository, id],
        &args!["prune", repository],
        &args!["pin", repository],
        &args!["export", repository, "--to", dir.path().join("x.tar")],
    ] {
        let ran = fullbore(args.iter().cloned()).ends_with(1);
        assert!(
            ran.err.contains("fullbore repair") && ran.err.contains("fullbore-repo.json"),
            "{args:?}: {}",
            ran.err
        );
    }
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
    // What others mention of it makes no leftover of it.
    fullbore(args![
        "backup",
        dir.path().join("tree"),
        "--to",
        repository,
        "--quiet"
    ])
    .ends_with(0);
    fs::remove_file(repository.join("backups").join(id).join("root.json")).unwrap();
    fullbore(args!["verify", repository]).ends_with(4);
    fullbore(args!["prune", repository]).ends_with(4);
}

#[test]
fn the_last_line_names_what_is_damaged_and_not_what_was_looked_at() {
    let dir = temp();
    let all = small(dir.path(), 3);
    let repository = dir.path().join("repo");
    let last_line = || {
        fullbore(args!["verify", repository, "--data"])
            .ends_with(4)
            .err
            .lines()
            .last()
            .unwrap()
            .to_owned()
    };
    let flip = |path: PathBuf| {
        let whole = fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        damaged[30] ^= 1;
        fs::write(&path, damaged).unwrap();
        (path, whole)
    };
    let back = |(path, whole): (PathBuf, Vec<u8>)| fs::write(path, whole).unwrap();
    let manifest = flip(all[2].1.join("manifest"));
    assert_eq!(
        last_line(),
        format!(
            "1 of 3 backups is damaged in 1 place: {}; no file is lost",
            all[2].0
        )
    );
    let root = flip(all[1].1.join("root.json"));
    let both = format!("{}, {}", all[1].0, all[2].0);
    assert_eq!(
        last_line(),
        format!("2 of 3 backups are damaged in 2 places: {both}; 1 backup lost something")
    );
    back(manifest);
    let one = format!(
        "1 of 3 backups is damaged in 1 place: {}; 1 backup lost something",
        all[1].0
    );
    assert_eq!(last_line(), one);
    back(root);
    let (root, whole) = flip(all[0].1.join("root.json"));
    fs::remove_file(&root).unwrap();
    assert_eq!(last_line(), one.replace(&all[1].0, &all[0].0));
    // A single one among those without a root is not all there is.
    fs::remove_dir_all(&all[1].1).unwrap();
    let verdict = fullbore(args!["verify", repository, "--json"])
        .ends_with(4)
        .json()
        .pop()
        .unwrap();
    assert_eq!(verdict["id"], "", "{verdict}");
    fs::write(root, whole).unwrap();
}

#[test]
fn a_backup_of_a_newer_program_is_not_damaged_and_the_others_are_listed() {
    let dir = temp();
    let all = small(dir.path(), 2);
    let repository = dir.path().join("repo");
    change_root(&all[1].1, |root| root.format = 999);
    for command in [
        &args!["list", repository][..],
        &args!["list", repository, "--json"],
        &args!["verify", repository],
    ] {
        let ran = fullbore(command.iter().cloned()).ends_with(1);
        let is_list = command[0] == "list";
        assert!(
            !is_list || all.iter().all(|(id, _)| ran.out.contains(id)),
            "{}{}",
            ran.out,
            ran.err
        );
    }
}

#[test]
fn page_checksums_that_were_wrong_at_the_backup_are_told_by_a_check() {
    let dir = temp();
    let all = small(dir.path(), 1);
    change_root(&all[0].1, |root| root.totals.bad_pages = 2);
    let repository = dir.path().join("repo");
    let ran = fullbore(args!["verify", repository]).ends_with(0);
    assert!(
        ran.err.contains("sound") && ran.err.contains("2 files had wrong page checksums"),
        "{}",
        ran.err
    );
    assert_eq!(
        fullbore(args!["verify", repository, "--json"])
            .ends_with(0)
            .json()
            .pop()
            .unwrap()["bad_pages"],
        2
    );
}

#[test]
fn what_is_not_found_is_said() {
    let dir = temp();
    small(dir.path(), 1);
    let repository = dir.path().join("repo");
    let ran = fullbore(args!["find", repository, "nothing*"])
        .ends_with(1)
        .has_one_error("\"nothing*\"");
    assert_eq!(ran.out, "");
    let ran = fullbore(args![
        "list",
        format!("{}@latest", repository.display()),
        "x"
    ])
    .ends_with(1);
    assert!(
        ran.err.contains("`fullbore list REPO@latest` shows"),
        "{}",
        ran.err
    );
}

/// What can be had of a backup, and it is right.
fn had(
    repository: &Path,
    id: &str,
    wanted: &BTreeMap<String, Vec<u8>>,
    to: &Path,
) -> BTreeSet<String> {
    let _ = fs::remove_dir_all(to);
    let backup = format!("{}@{id}", repository.display());
    let ran = fullbore(args!["restore", backup, "--to", to, "--keep-going", "-q"]);
    let given = files(to);
    assert!(
        given
            .iter()
            .all(|(name, data)| wanted.get(name) == Some(data)),
        "{backup}: wrong content, {}",
        ran.err
    );
    given.into_keys().collect()
}

#[test]
fn a_repair_takes_nothing_from_what_can_be_restored() {
    for codec in ["zstd", "none"] {
        let dir = temp();
        let (tree, repository, copy) = (
            dir.path().join("tree"),
            dir.path().join("repo"),
            dir.path().join("copy"),
        );
        (0..3).for_each(|i| write(tree.join(format!("f{i}")), noise(i, 100_000)));
        let mut all = Vec::new();
        for round in 0..2 {
            let args = args![
                "backup",
                tree,
                "--to",
                repository,
                "--compress",
                codec,
                "--frame-size",
                "64K",
                "--json"
            ];
            let id = fullbore(args).ends_with(0).json().pop().unwrap()["id"]
                .as_str()
                .unwrap()
                .to_owned();
            all.push((id, files(&tree)));
            write(tree.join("f0"), noise(10 + round, 100_000));
            write(tree.join("new"), b"new");
        }
        let names: Vec<PathBuf> = files(&repository).into_keys().map(PathBuf::from).collect();
        let pairs = names
            .iter()
            .enumerate()
            .flat_map(|(index, one)| names[index + 1..].iter().map(move |other| [one, other]))
            // All pairs of the one codec are enough for what does not ask for it.
            .step_by(if codec == "zstd" { 1 } else { 3 });
        // One pair is gone, the next is damaged.
        for (pair, is_gone) in pairs.zip([true, false].into_iter().cycle()) {
            let _ = fs::remove_dir_all(&copy);
            runs::shell("cp -r \"$1\" \"$2\"", args![repository, copy]).ends_with(0);
            for path in pair.map(|name| copy.join(name)) {
                let mut stored = fs::read(&path).unwrap();
                let middle = stored.len() / 2;
                stored
                    .iter_mut()
                    .skip(middle)
                    .take(3)
                    .for_each(|byte| *byte ^= 0x15);
                if is_gone {
                    fs::remove_file(&path).unwrap()
                } else {
                    fs::write(&path, stored).unwrap()
                }
            }
            let had = |all: &[(String, _)]| -> Vec<_> {
                all.iter()
                    .map(|(id, wanted)| had(&copy, id, wanted, &dir.path().join("to")))
                    .collect()
            };
            let before = had(&all);
            let [first, second] =
                [0, 1].map(|_| fullbore(args!["repair", copy, "--data", "--yes"]).out);
            let after = had(&all);
            let kept = before
                .iter()
                .zip(&after)
                .all(|(before, after)| before.is_subset(after));
            assert!(
                kept,
                "{codec} {pair:?} {is_gone}: {before:?} {after:?}\n{first}{second}"
            );
        }
    }
}

#[test]
fn a_file_that_was_cut_by_its_content_and_has_no_other_checksum_is_looked_at() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    let backup = |content: &[u8]| {
        write(tree.join("f"), content);
        let args = args![
            "backup",
            tree,
            "--to",
            repository,
            "--compress",
            "none",
            "--frame-size",
            "256K",
            "--json"
        ];
        let ran =
            fullbore(
                args.into_iter()
                    .chain(args!["--block-size", "4K", "--chunking", "content"]),
            )
            .ends_with(0);
        ran.json().pop().unwrap()["id"].as_str().unwrap().to_owned()
    };
    let content = noise(1, 3_000_000);
    let first = backup(&content);
    let second = backup(&[b"shifted", &content[..]].concat());
    let third = backup(&[b"shifted again", &content[..]].concat());
    let segment = repository
        .join("backups")
        .join(&second)
        .join("s01-000001.tar.zst");
    let mut stored = fs::read(&segment).unwrap();
    stored[150_000] ^= 4;
    fs::write(&segment, stored).unwrap();
    let target = dir.path().join("to");
    let mut lost = 0;
    for id in [&first, &second, &third] {
        let selected = format!("{}@{id}", repository.display());
        let ran = fullbore(args![
            "restore",
            selected,
            "--to",
            target.join(id),
            "--quiet"
        ]);
        let verdict = fullbore(args!["verify", selected, "--data", "--json"])
            .json()
            .pop()
            .unwrap();
        let is_named = verdict["lost"][0]["files"][0] == "f";
        assert_eq!(is_named, ran.code == 4, "{id}: {verdict:#}");
        lost += u32::from(is_named);
    }
    assert!(lost > 0);
    fullbore(args!["repair", repository, "--data", "--yes"]).ends_with(0);
    let selected = format!("{}@{second}", repository.display());
    fullbore(args![
        "restore",
        selected,
        "--to",
        target.join("rest"),
        "--quiet"
    ])
    .ends_with(3);
}

/// A backup of ten files of incompressible content, and the directory it is in.
fn ten(dir: &Path, more: &[&str]) -> (PathBuf, PathBuf) {
    let (tree, repository) = (dir.join("tree"), dir.join("repo"));
    (0..10).for_each(|i| write(tree.join(format!("f{i}")), noise(i, 30_000)));
    let args = args!["backup", tree, "--to", repository, "--json"];
    let ran = fullbore(args.into_iter().chain(more.iter().map(OsString::from))).ends_with(0);
    let home = repository
        .join("backups")
        .join(ran.json().pop().unwrap()["id"].as_str().unwrap());
    (repository, home)
}

fn spoil(path: &Path, at: u64) {
    fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(b"damage", at)
        .unwrap();
}

#[test]
fn the_file_of_a_repository_is_made_anew_wherever_labels_are() {
    for codec in ["zstd", "lz4", "none"] {
        let dir = temp();
        let other = temp();
        let (foreign, _) = ten(other.path(), &["--compress", codec]);
        // What looks like the label of another repository, in the content of files.
        let first = segments(&foreign).remove(0);
        write(dir.path().join("tree/a"), fs::read(first).unwrap());
        let (repository, _) = ten(dir.path(), &["--compress", codec]);
        let file = repository.join("fullbore-repo.json");
        let before: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        spoil(&file, 20);
        fullbore(args!["list", repository]).ends_with(4);
        fullbore(args!["repair", repository, "--yes"]).ends_with(0);
        let after: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(before["id"], after["id"], "{codec}");
        fullbore(args!["verify", repository, "--data"]).ends_with(0);
    }
}

/// Who refers to a page keeps the manifest that it is in, whole or not, and not the segment of another copy.
#[test]
fn a_page_whose_manifest_is_damaged_is_not_referred_to() {
    for is_shorter in [false, true] {
        let dir = temp();
        let (repository, home) = ten(dir.path(), &[]);
        let again = || {
            let ran = fullbore(args![
                "backup",
                dir.path().join("tree"),
                "--to",
                repository,
                "--json"
            ])
            .ends_with(0);
            let done = ran.json().pop().unwrap();
            let root = home
                .with_file_name(done["id"].as_str().unwrap())
                .join("root.json");
            let root: Value = serde_json::from_slice(&fs::read(root).unwrap()).unwrap();
            (
                done["base_damage"].clone(),
                root["pages"][0]["backup"].clone(),
            )
        };
        let first = home.file_name().unwrap().to_str().unwrap();
        thread::sleep(Duration::from_millis(2100)); // what is younger than a base is looked at again
        again();
        assert_eq!(again().1, first, "unchanged pages are referred to");
        let manifest = home.join("manifest");
        let len = fs::metadata(&manifest).unwrap().len();
        match is_shorter {
            true => fs::File::options()
                .write(true)
                .open(&manifest)
                .unwrap()
                .set_len(len - 10)
                .unwrap(),
            false => spoil(&manifest, len / 2),
        }
        let (damage, page) = again();
        assert!(
            damage[0]
                .as_str()
                .is_some_and(|word| word.contains("manifest"))
                && page != first,
            "{damage} {page}"
        );
    }
}

#[test]
fn an_export_says_which_pages_it_could_not_read() {
    let dir = temp();
    let (tree, file) = (dir.path().join("tree"), dir.path().join("x.tar.zst"));
    write(tree.join("f"), b"f");
    fullbore(args!["backup", tree, "--to", file]).ends_with(0);
    let page = fullbore(args!["show", file, "--json"]).json().remove(0)["pages"][0].clone();
    spoil(&file, page["offset"].as_u64().unwrap() + 30);
    let (repository, home) = ten(dir.path(), &[]);
    let pages = fullbore(args!["show", repository, "--json"])
        .json()
        .remove(0)["pages"][0]
        .clone();
    spoil(&home.join("manifest"), 30);
    spoil(
        &segments(&repository)[0],
        pages["offset"].as_u64().unwrap() + 30,
    );
    for (number, source) in [&file, &repository].into_iter().enumerate() {
        for name in ["y.tar.zst", "r"] {
            let target = dir.path().join(format!("{number}{name}"));
            let ran =
                fullbore(args!["export", source, "--to", target, "--keep-going"]).ends_with(4);
            assert!(
                ran.err.contains("but for what is named above"),
                "{}",
                ran.err
            );
            let back = dir.path().join(format!("{number}{name} back"));
            let ran = fullbore(args!["restore", target, "--to", back]).ends_with(3);
            assert!(
                ran.err.contains("lost with a page of the manifest"),
                "{}",
                ran.err
            );
        }
    }
}

#[test]
fn a_repair_that_leaves_something_to_do_says_so() {
    let dir = temp();
    let (repository, home) = ten(dir.path(), &["--frame-size", "64K"]);
    spoil(&home.join("root.json"), 20);
    spoil(&segments(&repository)[0], 200_000);
    let ran = fullbore(args!["repair", repository, "--data", "--yes"]).ends_with(4);
    assert!(
        ran.err.contains("run the same command again"),
        "{}",
        ran.err
    );
    fullbore(args!["repair", repository, "--data", "--yes"]).ends_with(0);
    fullbore(args!["repair", repository, "--data"]).ends_with(0);
    fullbore(args![
        "restore",
        repository,
        "--to",
        dir.path().join("to"),
        "-q"
    ])
    .ends_with(3);
}

#[test]
fn notes_that_are_damaged_are_found_and_what_may_be_pinned_stays_so() {
    let dir = temp();
    let (repository, home) = ten(dir.path(), &[]);
    fullbore(args!["pin", format!("{}@latest", repository.display())]).ends_with(0);
    spoil(&home.join("notes.json"), 3);
    let verdict = fullbore(args!["verify", repository, "--json"])
        .ends_with(4)
        .json()
        .pop()
        .unwrap();
    assert!(
        verdict["damage"][0]["what"]
            .as_str()
            .unwrap()
            .contains("notes.json"),
        "{verdict}"
    );
    assert_eq!(verdict["lost"], Value::Array(vec![]));
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    fullbore(args!["verify", repository]).ends_with(0);
    let listed = fullbore(args!["list", repository, "--json"])
        .ends_with(0)
        .json();
    assert_eq!(listed[0]["pinned"], true);
}

#[test]
fn an_empty_manifest_that_is_lost_is_missed_by_nobody() {
    let dir = temp();
    let (repository, _) = ten(dir.path(), &[]);
    std::thread::sleep(std::time::Duration::from_millis(3100)); // what changed just now is compared with more than its times
    let again = || {
        fullbore(args![
            "backup",
            dir.path().join("tree"),
            "--to",
            repository,
            "--json"
        ])
        .ends_with(0)
    };
    again();
    let id = again().json().pop().unwrap()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let manifest = repository.join("backups").join(id).join("manifest");
    assert_eq!(manifest.metadata().unwrap().len(), 0);
    fs::remove_file(manifest).unwrap();
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
    let copy = dir.path().join("copy");
    fullbore(args![
        "copy",
        format!("{}@latest", repository.display()),
        copy
    ])
    .ends_with(0);
    fullbore(args!["verify", copy, "--data"]).ends_with(0);
    fullbore(args!["restore", copy, "--to", dir.path().join("to"), "-q"]).ends_with(0);
}

#[test]
fn a_segment_that_is_not_there_is_told_of_once() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("large"), noise(7, 20_000_000)); // three parts with checksums of their own
    let id = fullbore(args!["backup", tree, "--to", repository, "--json"])
        .ends_with(0)
        .json()
        .pop()
        .unwrap()["id"]
        .clone();
    fs::remove_file(
        repository
            .join("backups")
            .join(id.as_str().unwrap())
            .join("s01-000001.tar.zst"),
    )
    .unwrap();
    for data in [&[][..], &["--data"]] {
        let ran = fullbore(
            args!["verify", repository]
                .into_iter()
                .chain(data.iter().map(OsString::from)),
        )
        .ends_with(4);
        let lines: Vec<&str> = ran.out.lines().chain(ran.err.lines()).collect();
        let told = |words: &str| lines.iter().filter(|line| line.contains(words)).count();
        assert_eq!(
            (told("damage: "), told("harmless: "), told("in 1 place")),
            (1, 0, 1),
            "{lines:#?}"
        );
    }
}

/// Where `wanted` stands in a file of a repository, which keeps what does not compress as it is.
fn flip(segment: &Path, wanted: &[u8]) {
    let mut bytes = fs::read(segment).unwrap();
    let offset = bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
        .expect("noise is stored as it is");
    bytes[offset] ^= 1;
    fs::write(segment, bytes).unwrap();
}

#[test]
fn every_command_loses_of_a_damaged_frame_only_what_is_damaged() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    (0..20).for_each(|i| write(tree.join(format!("f{i:02}")), noise(i, 10_000)));
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    write(tree.join("new"), text(1, 10));
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    let all = files(&tree);
    let segment = objects(&repository)
        .into_iter()
        .find(|path| path.to_str().unwrap().ends_with("zst"))
        .unwrap();
    flip(&segment, &noise(7, 10_000)[5000..5064]);
    let verdict = fullbore(args!["verify", repository, "--data", "--json"])
        .ends_with(4)
        .json()
        .pop()
        .unwrap();
    for loss in verdict["lost"].as_array().unwrap() {
        assert_eq!(loss["files"], serde_json::json!(["f07"]), "{verdict}");
    }
    assert_eq!(verdict["lost"].as_array().unwrap().len(), 2, "{verdict}");
    let sampled = fullbore(args!["verify", repository, "--sample", "100%", "--json"])
        .ends_with(4)
        .json()
        .pop()
        .unwrap();
    assert_eq!(sampled["lost"], verdict["lost"]);
    let whole: BTreeMap<_, _> = all
        .iter()
        .filter(|(name, _)| *name != "f07")
        .map(|(a, b)| (a.clone(), b.clone()))
        .collect();
    let exported = dir.path().join("x.tar.zst");
    fullbore(args![
        "export",
        repository,
        "--to",
        exported,
        "--keep-going"
    ])
    .ends_with(4);
    let target = dir.path().join("exported");
    fullbore(args!["restore", exported, "--to", target]).ends_with(3);
    assert_eq!(
        files(&target)
            .into_iter()
            .filter(|(name, _)| name != "f07")
            .collect::<BTreeMap<_, _>>(),
        whole
    );
    fullbore(args!["find", repository, "f07"]).ends_with(0);
    fullbore(args!["repair", repository, "--data", "--yes"]).ends_with(0);
    fullbore(args!["find", repository, "f07"]).ends_with(1); // what was not captured no backup holds
    let target = dir.path().join("repaired");
    fullbore(args!["restore", repository, "--to", target]).ends_with(3);
    assert_eq!(
        files(&target)
            .into_iter()
            .filter(|(name, _)| name != "f07")
            .collect::<BTreeMap<_, _>>(),
        whole
    );
}

/// Two files' headers, and what is between files, belong to no content.
#[test]
fn a_damaged_frame_by_which_no_file_is_lost_ends_nothing() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    (0..3).for_each(|i| write(tree.join(format!("f{i}")), noise(i, 10_000)));
    write(tree.join("zz"), noise(9, 2000));
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    fs::remove_file(tree.join("zz")).unwrap();
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    let segment = objects(&repository)
        .into_iter()
        .find(|path| path.to_str().unwrap().ends_with("zst"))
        .unwrap();
    flip(&segment, &noise(9, 2000)[500..564]); // what the second backup does not want
    let target = dir.path().join("to");
    let ran = fullbore(args!["restore", repository, "--to", target]).ends_with(0);
    assert!(ran.err.contains("no requested data is lost"), "{}", ran.err);
    assert_eq!(files(&target), files(&tree));
    let exported = dir.path().join("x.tar.zst");
    fullbore(args!["export", repository, "--to", exported]).ends_with(0);
    let verdict = fullbore(args![
        "verify",
        format!("{}@latest", repository.display()),
        "--data",
        "--json"
    ])
    .ends_with(4);
    assert_eq!(verdict.json().pop().unwrap()["lost"], Value::Array(vec![]));
}

/// Damage is found again each time, and the rest comes to its turn all the same.
#[test]
fn damaged_parts_do_not_keep_samples_from_the_others() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    (0..3).for_each(|i| write(tree.join(format!("f{i}")), noise(i, 12_000_000)));
    fullbore(args![
        "backup",
        tree,
        "--to",
        repository,
        "--segment-size",
        "12M"
    ])
    .ends_with(0);
    let segment = objects(&repository)
        .into_iter()
        .find(|path| path.to_str().unwrap().ends_with("1.tar.zst"))
        .unwrap();
    flip(&segment, &noise(0, 12_000_000)[1_000_000..1_000_064]);
    let sample = || {
        fullbore(args!["verify", repository, "--sample", "20%", "--json"])
            .json()
            .pop()
            .unwrap()
    };
    let never: Vec<_> = (0..8)
        .map(|_| sample()["sampled"]["never_bytes"].as_u64().unwrap())
        .collect();
    assert_eq!(never.last(), Some(&0), "{never:?}");
    assert!(!sample()["damage"].as_array().unwrap().is_empty());
}

#[test]
fn a_root_that_is_rebuilt_takes_no_page_from_others() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    (0..200).for_each(|i| write(tree.join(format!("a{i:04}")), format!("file {i}")));
    write(tree.join("m_big"), noise(1, 3_000_000));
    let pause = || std::thread::sleep(std::time::Duration::from_millis(3100));
    pause();
    let backup = |more: &[&str]| {
        let command = args![
            "backup",
            &tree,
            "--to",
            &repo,
            "--quiet",
            "--frame-size",
            "64K"
        ];
        fullbore(command.into_iter().chain(runs::args(more))).ends_with(0);
    };
    backup(&["--checkpoint-interval", "0"]);
    write(tree.join("a0100"), "changed");
    backup(&[]);
    pause();
    backup(&[]);
    let ids = runs::names(&repo.join("backups"));
    fs::remove_file(repo.join("backups").join(&ids[1]).join("root.json")).unwrap();
    fullbore(args!["repair", &repo, "--yes"]);
    for id in [&ids[0], &ids[2]] {
        fullbore(args![
            "verify",
            format!("{}@{id}", repo.display()),
            "--data"
        ])
        .ends_with(0);
    }
}

#[test]
fn no_name_is_given_to_what_was_not_restored() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    let content = noise(1, 20_000);
    write(tree.join("a"), &content);
    ["b", "c"]
        .iter()
        .for_each(|name| fs::hard_link(tree.join("a"), tree.join(name)).unwrap());
    fullbore(args!["backup", &tree, "--to", &repo, "--quiet"]).ends_with(0);
    let segment = segments(&repo).pop().unwrap();
    let mut stored = fs::read(&segment).unwrap();
    let index = stored
        .windows(300)
        .position(|bytes| *bytes == content[100..400])
        .unwrap();
    stored[index + 50] ^= 1;
    fs::write(&segment, stored).unwrap();
    for how in ["--overwrite=all", "--delta"] {
        for names in [&["b", "c"][..], &[]] {
            let target = temp();
            ["a", "b", "c"]
                .iter()
                .for_each(|name| write(target.path().join(name), format!("old {name}")));
            let command = args![
                "restore",
                &repo,
                "--to",
                target.path(),
                "--keep-going",
                "--quiet",
                how
            ];
            let ran = fullbore(command.into_iter().chain(runs::args(names))).ends_with(4);
            assert_eq!(
                fs::read(target.path().join("c")).unwrap(),
                b"old c",
                "{how} {names:?}: {}",
                ran.err
            );
            assert!(ran.err.contains("\"c\""), "{how} {names:?}: {}", ran.err);
        }
    }
}

/// Old content, that is to be neither restored nor given another name.
fn old_names(to: &Path) {
    let _ = fs::remove_dir_all(to);
    ["y", "z"]
        .iter()
        .for_each(|name| write(to.join("p").join(name), format!("old {name}")));
}

/// Is it as it was?
fn has_old_names(to: &Path) -> bool {
    ["y", "z"]
        .iter()
        .all(|name| fs::read(to.join("p").join(name)).unwrap() == format!("old {name}").as_bytes())
}

/// A tree with a file, other names of it in a directory, and files between.
fn linked(tree: &Path) {
    write(tree.join("a"), noise(1, 500_000));
    (0..9).for_each(|i| write(tree.join(format!("m{i}")), noise(i, 30_000)));
    write(tree.join("p/x"), "x");
    ["y", "z"]
        .iter()
        .for_each(|name| fs::hard_link(tree.join("a"), tree.join("p").join(name)).unwrap());
}

/// Change the only page of a backup, as another program might have written it.
fn change_page(home: &Path, change: impl FnOnce(&mut ManifestPage)) {
    let mut manifest = fs::read(home.join("manifest")).unwrap();
    change_root(home, |root| {
        let [place] = &mut root.pages[..] else {
            panic!("several pages")
        };
        let start = place.manifest_offset.unwrap() as usize;
        let mut page = ManifestPage::decode(&manifest[start..][..place.bytes as usize]).unwrap();
        change(&mut page);
        let stored = page.encode().unwrap();
        (place.manifest_offset, place.bytes) = (Some(manifest.len() as u64), stored.len() as u64);
        (place.digest, place.segment, place.offset) = (hex(blake3::hash(&stored).as_bytes()), 0, 0);
        manifest.extend(stored);
    });
    fs::write(home.join("manifest"), manifest).unwrap();
}

#[test]
fn no_name_is_given_to_what_stands_in_for_a_file_that_was_not_captured() {
    let dir = temp();
    let (tree, repo, target) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("to"),
    );
    linked(&tree);
    fullbore(args!["backup", &tree, "--to", &repo, "--quiet"]).ends_with(0);
    let home = repo
        .join("backups")
        .join(runs::names(&repo.join("backups")).remove(0));
    change_page(&home, |page| {
        let file = page
            .records
            .iter_mut()
            .find(|record| record.entry.path == b"a")
            .unwrap();
        file.entry.clear_content();
        let (entry, state) = (
            file.entry.clone(),
            EntryState::Unreadable("it was lost".to_owned()),
        );
        *file = Record {
            entry,
            state,
            ..Record::default()
        };
    });
    for how in ["--overwrite=all", "--delta"] {
        old_names(&target);
        let ran = fullbore(args!["restore", &repo, "p", "--to", &target, how]).ends_with(3);
        assert!(has_old_names(&target), "{how}: {}", ran.err);
        assert!(
            ran.err
                .contains("the file that it links to does not exist): 2 entries"),
            "{how}: {}",
            ran.err
        );
    }
    fs::remove_dir_all(&target).unwrap();
    let ran = fullbore(args!["restore", &repo, "p", "--to", &target]).ends_with(3);
    assert!(
        files(&target).len() == 1 && ran.err.contains("2 entries"),
        "{}",
        ran.err
    );
    let ran = fullbore(args![
        "restore",
        &repo,
        "p/y",
        "--to",
        dir.path().join("one")
    ])
    .ends_with(1);
    assert!(
        ran.err.contains("it was not captured: it was lost"),
        "{}",
        ran.err
    );
}

/// The name of the segment in which a page of a root is: each checkpoint ends one.
fn segment_of(page: &Value) -> String {
    let number = |name: &str| page[name].as_u64().unwrap();
    format!("s{:02}-{:06}.tar.zst", number("stream"), number("segment"))
}

/// Damage the first page of a backup for which that holds, in the manifest and in the segment; gives that, and where it is there.
fn spoil_page(home: &Path, holds: impl Fn(&Value) -> bool) -> (PathBuf, u64) {
    let root: Value = serde_json::from_slice(&fs::read(home.join("root.json")).unwrap()).unwrap();
    let page = root["pages"]
        .as_array()
        .unwrap()
        .iter()
        .find(|page| holds(page))
        .unwrap();
    spoil(
        &home.join("manifest"),
        page["manifest_offset"].as_u64().unwrap() + 20,
    );
    let position = page["offset"].as_u64().unwrap();
    let segment = home.join(segment_of(page));
    spoil(&segment, position + 20);
    (segment, position)
}

/// A backup of [`linked`] with many pages, and the directory it is in.
fn linked_pages(dir: &Path) -> (PathBuf, PathBuf) {
    let (tree, repo) = (dir.join("tree"), dir.join("repo"));
    write(tree.join("0"), "0");
    linked(&tree);
    std::thread::sleep(std::time::Duration::from_millis(3100));
    let more = ["--frame-size", "64K", "--checkpoint-interval", "0"];
    fullbore(
        args!["backup", &tree, "--to", &repo, "--quiet"]
            .into_iter()
            .chain(runs::args(more)),
    )
    .ends_with(0);
    let home = repo
        .join("backups")
        .join(runs::names(&repo.join("backups")).remove(0));
    (repo, home)
}

#[test]
fn no_name_is_given_to_what_stands_in_for_a_file_whose_page_is_lost() {
    let dir = temp();
    let (repo, home) = linked_pages(dir.path());
    let target = dir.path().join("to");
    spoil_page(&home, |page| page["first"] == "a");
    for how in ["--overwrite=all", "--delta"] {
        old_names(&target);
        let ran = fullbore(args![
            "restore",
            &repo,
            "p",
            "--to",
            &target,
            "--keep-going",
            "--quiet",
            how
        ])
        .ends_with(4);
        assert!(has_old_names(&target), "{how}: {}", ran.err);
        assert!(
            ["p/y", "p/z"].iter().all(|name| ran.err.contains(name)),
            "{how}: {}",
            ran.err
        );
    }
}

/// Of the names of a file that was cut off none is told to be there, and a restore of one is refused.
fn has_no_name_of_a(repo: &str, to: &Path) {
    let listed = fullbore(args!["list", repo, "--json"]).ends_with(0).json();
    for name in ["a", "p/y", "p/z"] {
        let entry = listed.iter().find(|entry| entry["path"] == name).unwrap();
        assert_eq!(entry["state"], "unreadable", "{entry}");
        let ran = fullbore(args!["restore", repo, name, "--to", to.join("none")]).ends_with(1);
        assert!(ran.err.contains("it was not captured"), "{}", ran.err);
    }
    for how in ["--overwrite=all", "--delta"] {
        old_names(to);
        write(to.join("a"), "old a");
        let ran = fullbore(args!["restore", repo, "--to", to, "--quiet", how]).ends_with(3);
        assert!(
            has_old_names(to) && fs::read(to.join("a")).unwrap() == b"old a",
            "{how}: {}",
            ran.err
        );
    }
}

#[test]
fn a_repair_gives_up_the_names_of_a_file_that_was_lost_with_a_page() {
    let dir = temp();
    let (repo, home) = linked_pages(dir.path());
    // One in the midst of those that go on with it, and what of the tar would tell the same.
    let seen = std::cell::Cell::new(0);
    let (segment, offset) = spoil_page(&home, |page| {
        page["first"] == "a" && seen.replace(seen.get() + 1) == 2
    });
    let segment = fs::File::options().write(true).open(segment).unwrap();
    segment.write_all_at(&[0; 60_000], offset - 64_000).unwrap();
    fullbore(args!["repair", &repo, "--yes"]).ends_with(0);
    has_no_name_of_a(
        &format!("{}@latest", repo.display()),
        &dir.path().join("to"),
    );
    fullbore(args!["verify", &repo]).ends_with(0);
}

#[test]
fn a_repair_gives_up_the_names_of_a_file_that_was_lost_with_the_root() {
    let dir = temp();
    let (repo, _) = linked_pages(dir.path());
    let tree = dir.path().join("tree");
    write(tree.join("0"), "1");
    write(tree.join("p/x"), "xx");
    fullbore(args![
        "backup",
        &tree,
        "--to",
        &repo,
        "--quiet",
        "--frame-size",
        "64K"
    ])
    .ends_with(0);
    let id = runs::names(&repo.join("backups")).pop().unwrap();
    fs::remove_file(repo.join("backups").join(&id).join("root.json")).unwrap();
    fullbore(args!["repair", &repo, "--yes"]).ends_with(0);
    has_no_name_of_a(&format!("{}@{id}", repo.display()), &dir.path().join("to"));
    fullbore(args!["repair", &repo]).ends_with(0);
}

/// What a repair would do.
fn planned(repository: &Path) -> Vec<RepairStep> {
    let repair = Repair {
        storages: Storages::default(),
        repository: repository.into(),
        data: false,
        workers: NonZeroUsize::MIN,
    };
    repair.plan(&Meter::default()).unwrap()
}

#[test]
fn a_root_that_is_back_before_it_is_rebuilt_stays() {
    let dir = temp();
    let (_, home) = small(dir.path(), 1).remove(0);
    let (repository, root) = (dir.path().join("repo"), home.join("root.json"));
    let good = fs::read(&root).unwrap();
    fs::write(&root, &good[..good.len() - 20]).unwrap();
    let steps = planned(&repository);
    fs::write(&root, &good).unwrap();
    assert_eq!(repair::execute(&steps).unwrap(), [""; 0]);
    assert_eq!(fs::read(&root).unwrap(), good);
}

#[test]
fn the_root_of_another_backup_is_none_that_is_back() {
    let dir = temp();
    let all = small(dir.path(), 2);
    fs::copy(all[0].1.join("root.json"), all[1].1.join("root.json")).unwrap();
    let repository = dir.path().join("repo");
    fullbore(args!["verify", repository]).ends_with(4);
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
}

#[test]
fn a_root_that_became_another_since_is_not_written_over() {
    let dir = temp();
    let (repository, home) = ten(dir.path(), &[]);
    fs::remove_file(segments(&repository).remove(0)).unwrap();
    let steps = planned(&repository);
    let root = home.join("root.json");
    let before = fs::read(&root).unwrap();
    change_root(&home, |root| root.tool = "another".to_owned());
    let other = fs::read(&root).unwrap();
    let left = repair::execute(&steps).unwrap();
    assert!(
        left.len() == 1 && left[0].ends_with("its root has changed since the repair was planned"),
        "{left:?}"
    );
    assert_eq!(fs::read(&root).unwrap(), other);
    fs::write(&root, before).unwrap();
    assert_eq!(repair::execute(&steps).unwrap(), [""; 0]);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
}

#[test]
fn what_another_has_the_lock_of_is_left_for_the_next_repair() {
    let dir = temp();
    let (id, home) = small(dir.path(), 1).remove(0);
    let repository = dir.path().join("repo");
    fs::remove_file(home.join("root.json")).unwrap();
    let steps = planned(&repository);
    let claimed = LocalObjects::new(&repository)
        .lease(&intent_key(&id), b"", Take::DeadOrNew)
        .unwrap();
    assert!(matches!(claimed, Leased::Ours(_)));
    let left = repair::execute(&steps).unwrap();
    assert!(
        left.len() == 1 && left[0].contains("is being pruned or copied"),
        "{left:?}"
    );
    assert!(!home.join("root.json").exists());
    drop(claimed);
    assert_eq!(repair::execute(&steps).unwrap(), [""; 0]);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
}

#[test]
fn what_is_gone_before_it_is_repaired_ends_no_repair() {
    let dir = temp();
    let all = small(dir.path(), 2);
    let repository = dir.path().join("repo");
    all.iter()
        .for_each(|(_, home)| spoil(&home.join("manifest"), 20));
    let steps = planned(&repository);
    assert_eq!(steps.len(), 2);
    let gone = &all[0].1;
    fs::remove_dir_all(gone).unwrap();
    assert_eq!(repair::execute(&steps).unwrap(), [""; 0]);
    assert!(!gone.exists());
    fullbore(args![
        "verify",
        format!("{}@{}", repository.display(), all[1].0)
    ])
    .ends_with(0);
    // As a prune that was killed leaves it.
    fs::create_dir(gone).unwrap();
    assert_eq!(repair::execute(&steps).unwrap(), [""; 0]);
    assert_eq!(runs::names(gone), [""; 0]);
    assert_eq!(runs::names(&repository.join("intents")), [""; 0]);
}

#[test]
fn what_may_be_on_a_page_that_is_lost_keeps_nothing_else_from_coming_back() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    (0..8).for_each(|i| write(tree.join(format!("d/f{i}")), noise(i, 60_000)));
    std::thread::sleep(std::time::Duration::from_millis(3100));
    let more = [
        "--frame-size",
        "64K",
        "--checkpoint-interval",
        "0",
        "--quiet",
    ];
    fullbore(
        args!["backup", &tree, "--to", &repo]
            .into_iter()
            .chain(runs::args(more)),
    )
    .ends_with(0);
    let home = repo
        .join("backups")
        .join(runs::names(&repo.join("backups")).remove(0));
    let root: Value = serde_json::from_slice(&fs::read(home.join("root.json")).unwrap()).unwrap();
    let firsts: Vec<&str> = root["pages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["first"].as_str().unwrap())
        .collect();
    assert!(firsts.len() > 3, "{firsts:?}");
    // The page with the directory itself, and that before the one that begins with a file.
    spoil_page(&home, |page| page["first"] == firsts[0]);
    for (path, wanted) in [
        ("d", &firsts[1..]),
        (firsts[1], &firsts[1..2]),
        ("d/f0", &[]),
    ] {
        let target = dir.path().join(path.replace('/', "-"));
        fullbore(args!["restore", &repo, path, "--to", &target, "--quiet"]).ends_with(4);
        for how in ["--overwrite=all", "--delta"] {
            let ran = fullbore(args![
                "restore",
                &repo,
                path,
                "--to",
                &target,
                "--keep-going",
                how,
                "-q"
            ])
            .ends_with(4);
            assert!(ran.err.contains("it describes"), "{path}: {}", ran.err);
            let given = files(&target);
            assert!(
                wanted.iter().all(|name| given.contains_key(*name)),
                "{path} {wanted:?}: {:?}",
                given.keys()
            );
        }
    }
}

#[test]
fn a_page_that_says_too_little_of_a_file_costs_that_file_and_no_later_backup() {
    let dir = temp();
    let (repo, home) = ten(dir.path(), &[]);
    change_page(&home, |page| {
        let record = page
            .records
            .iter_mut()
            .find(|record| record.entry.path == b"f3")
            .unwrap();
        record.extents[0].len -= 1;
    });
    let first = home.file_name().unwrap().to_str().unwrap();
    let ran = fullbore(args!["verify", &repo]).ends_with(4);
    assert!(ran.out.contains("f3"), "{}", ran.out);
    // What is stored anew is whole.
    fullbore(args![
        "backup",
        dir.path().join("tree"),
        "--to",
        &repo,
        "--quiet"
    ])
    .ends_with(0);
    fullbore(args![
        "restore",
        &repo,
        "--to",
        dir.path().join("second"),
        "-q"
    ])
    .ends_with(0);
    assert_eq!(
        files(&dir.path().join("second")),
        files(&dir.path().join("tree"))
    );
    fullbore(args!["repair", &repo, "--yes"]).ends_with(0);
    fullbore(args!["verify", &repo, "--data"]).ends_with(0);
    fullbore(args!["repair", &repo]).ends_with(0);
    let back = dir.path().join("first");
    fullbore(args![
        "restore",
        format!("{}@{first}", repo.display()),
        "--to",
        &back,
        "-q"
    ])
    .ends_with(3);
    assert_eq!(files(&back).len(), 9);
}
