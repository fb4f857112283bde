//! Real backups that refer to each other: what the loss of any object costs is named exactly, and nothing else.

#![allow(missing_docs)]

mod runs;

use runs::{fullbore, noise, temp, text, write};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Files of a tree and their content.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut stack) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(at) = stack.pop() {
        for path in fs::read_dir(&at).into_iter().flatten().map(|entry| entry.unwrap().path()) {
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
        write(tree.join(format!("d{}/f{i:02}", i % 3)), text(i, (i * 400) as usize));
    }
    write(tree.join("large"), noise(7, 3_000_000));
    fs::hard_link(tree.join("d1/f07"), tree.join("other name")).unwrap();
    let mut all = Vec::new();
    for round in 0..3 {
        let args = args!["backup", tree, "--to", repository, "--json", "--frame-size", "64K", "--segment-size", "1M"];
        let ran = fullbore(args.into_iter().chain(more.iter().map(std::ffi::OsString::from))).ends_with(0);
        all.push((ran.json().pop().unwrap()["id"].as_str().unwrap().to_owned(), files(&tree)));
        write(tree.join(format!("d0/f{:02}", round * 3)), text(90 + round, 5000));
        write(tree.join(format!("new{round}")), noise(round, 200_000));
        let mut large = fs::read(tree.join("large")).unwrap();
        large[(round as usize + 1) * 500_000] ^= 1;
        fs::write(tree.join("large"), large).unwrap();
    }
    all
}

fn lost(verdict: &Value, id: &str, all: &BTreeMap<String, Vec<u8>>) -> BTreeSet<String> {
    let loss = verdict["lost"].as_array().unwrap().iter().find(|loss| loss["backup"] == id);
    let Some(loss) = loss else { return BTreeSet::new() };
    assert_eq!(loss["unnamed"], Value::Array(vec![]), "{loss}");
    match loss["all"] == true {
        true => all.keys().cloned().collect(),
        false => loss["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap().to_owned()).collect(),
    }
}

fn objects(dir: &Path) -> Vec<PathBuf> {
    files(dir).into_keys().map(|name| dir.join(name)).filter(|path| path.exists()).collect()
}

#[test]
fn the_loss_of_any_object_names_exactly_the_files_that_are_lost_with_it() {
    for more in [&["--compress", "zstd"][..], &["--compress", "gzip"]] {
        let dir = temp();
        let all = three(dir.path(), more);
        let (repository, to) = (dir.path().join("repo"), dir.path().join("to"));
        let verify = || fullbore(args!["verify", repository, "--data", "--json"]);
        assert_eq!(verify().ends_with(0).json().pop().unwrap()["backups"], 3);
        for object in objects(&repository).into_iter().filter(|path| !path.ends_with("fullbore-repo.json")) {
            let whole = fs::read(&object).unwrap();
            fs::remove_file(&object).unwrap();
            let is_side = object.to_str().unwrap().ends_with(".manifest");
            let verdict = verify().ends_with(if is_side { 0 } else { 4 }).json().pop().unwrap();
            for (id, wanted) in &all {
                let _ = fs::remove_dir_all(&to);
                let from = format!("{}@{id}", repository.display());
                let ran = fullbore(args!["restore", from, "--to", to, "--keep-going", "-q"]);
                let given = files(&to);
                let missing: BTreeSet<String> = wanted
                    .iter()
                    .filter(|(name, data)| given.get(*name) != Some(data))
                    .map(|(name, _)| name.clone())
                    .collect();
                assert_eq!(lost(&verdict, id, wanted), missing, "{object:?} of {id}: {verdict:#}\n{}", ran.err);
            }
            fs::write(&object, whole).unwrap();
        }
        verify().ends_with(0);
    }
}
