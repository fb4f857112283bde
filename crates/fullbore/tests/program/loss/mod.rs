//! Real backups that refer to each other: what the loss of any object costs is named exactly, and nothing else.

mod names;
mod repairs;
mod roots;
mod verdicts;

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
        .find(|loss| loss["id"] == id);
    let Some(loss) = loss else {
        return BTreeSet::new();
    };
    assert_eq!(loss["unnamed"], Value::Array(vec![]), "{loss}");
    match loss["all"] == true {
        true => all.keys().cloned().collect(),
        false => loss["paths"]
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
        // The first says that this is a repository, the second which data was checked, and the third only saves space.
        let others = ["fullbore-repo.json", "verify.json", "contents"];
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
