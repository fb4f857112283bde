//! A backup that refers to others is exported as a full one.

#![allow(missing_docs)]

mod runs;

use fullbore::source::archive::Archive;
use runs::{assert_same, fed, fullbore, noise, sample, shape, shell, temp};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A repository with two backups of a tree, the second of which refers to the first; and the tree as it is in the second.
struct Two {
    _dir: tempfile::TempDir,
    tree: PathBuf,
    repository: PathBuf,
    ids: [String; 2],
}

fn two(codec: &str) -> Two {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    sample(&tree);
    for i in 0..40 {
        runs::write(tree.join(format!("many/{i:02}")), noise(100 + i, 3000));
    }
    let backup = || {
        let options = ["--frame-size", "64K", "--segment-size", "1M", "--json", "--tag", "k=v", "--compress", codec];
        let options = args![tree, "--to", repository].into_iter().chain(options.map(Into::into));
        let ran = fullbore(args!["backup"].into_iter().chain(options)).ends_with(0);
        ran.json().last().unwrap()["id"].as_str().unwrap().to_owned()
    };
    let first = backup();
    change(&tree);
    let second = backup();
    Two { _dir: dir, tree, repository, ids: [first, second] }
}

fn change(tree: &Path) {
    for i in (0..40).step_by(3) {
        runs::write(tree.join(format!("many/{i:02}")), noise(200 + i, 3500));
    }
    let mut large = fs::read(tree.join("large")).unwrap();
    large[70_000..80_000].fill(7);
    fs::write(tree.join("large"), large).unwrap();
    fs::remove_file(tree.join("a/b/f07")).unwrap();
    runs::write(tree.join("new/file"), "new");
}

impl Two {
    fn at(&self, number: usize) -> String {
        format!("{}@{}", self.repository.display(), self.ids[number])
    }

    fn assert_is(&self, back: &Path, case: &str) {
        assert_same(&shape(&self.tree), &shape(back), case);
    }

    fn restored(&self, from: &str) {
        let dir = temp();
        let back = dir.path().join("back");
        fullbore(args!["verify", from, "--data"]).ends_with(0);
        fullbore(args!["restore", from, "--to", back, "--quiet"]).ends_with(0);
        self.assert_is(&back, from);
    }
}

#[test]
fn the_second_backup_refers_to_the_first() {
    let two = two("zstd:1");
    let archive = Archive::open_backup(&two.repository, &two.ids[1]).unwrap();
    assert_eq!(archive.root.others(), [&two.ids[0]]);
    let dir = temp();
    let back = dir.path().join("back");
    fullbore(args!["restore", two.at(1), "--to", back, "--quiet"]).ends_with(0);
    two.assert_is(&back, "thin");
}

#[test]
fn an_export_extracts_with_tar_to_the_same_tree() {
    for (codec, name) in [("zstd:1", "x.tar.zst"), ("lz4", "x.tar.gz"), ("gzip:1", "x.tar.lz4"), ("none", "x.tar")] {
        let two = two(codec);
        let dir = temp();
        let (file, back) = (dir.path().join(name), dir.path().join("back"));
        fullbore(args!["export", two.at(1), "--to", file, "--quiet"]).ends_with(0);
        fs::create_dir(&back).unwrap();
        let unpack = match name {
            "x.tar.zst" => "zstd -dc \"$1\"",
            "x.tar.gz" => "gzip -dc \"$1\"",
            "x.tar.lz4" => "bsdcat \"$1\"",
            _ => "cat \"$1\"",
        };
        shell(&format!("{unpack} | tar -xip --xattrs -C \"$2\" -f -"), args![file, back]).ends_with(0);
        two.assert_is(&back, name);
        two.restored(file.to_str().unwrap());
    }
}

#[test]
fn an_export_into_a_repository_or_a_pipe_is_a_full_backup_of_that_time() {
    let two = two("zstd:1");
    let dir = temp();
    let other = dir.path().join("other");
    fullbore(args!["export", two.at(1), "--to", other, "--quiet"]).ends_with(0);
    two.restored(other.to_str().unwrap());
    let of = |from: &str| fullbore(args!["show", from, "--json"]).ends_with(0).json().remove(0);
    let (was, is) = (of(&two.at(1)), of(other.to_str().unwrap()));
    for key in ["time", "finished", "source", "tags", "not_captured"] {
        assert_eq!(was[key], is[key], "{key}");
    }
    assert_eq!((&is["format"], is["bases"].is_null()), (&1.into(), true));
    let (was, is) = (was["id"].as_str().unwrap(), is["id"].as_str().unwrap());
    assert!(was != is && was[..19] == is[..19], "{was} {is}");

    let piped = fed(args!["export", two.at(1), "--to", "-"], b"");
    assert!(piped.status.success());
    let file = dir.path().join("piped.tar.zst");
    fs::write(&file, piped.stdout).unwrap();
    two.restored(file.to_str().unwrap());
}

#[test]
fn an_export_of_a_full_backup_has_the_same_frames() {
    let two = two("zstd:1");
    let dir = temp();
    fullbore(args!["export", two.at(0), "--to", dir.path().join("r"), "--segment-size", "1M", "--quiet"]).ends_with(0);
    let of = |from: &Path, id: &str| {
        let archive = Archive::open_backup(from, id).unwrap();
        let pages = (0..archive.root.pages.len()).map(|at| archive.page(at).unwrap().records.clone());
        pages.flatten().collect::<Vec<_>>()
    };
    let id = runs::names(&dir.path().join("r/backups")).remove(0);
    assert!(of(&two.repository, &two.ids[0]) == of(&dir.path().join("r"), &id));
}

#[test]
fn damage_ends_an_export_or_is_left_out_and_listed() {
    for codec in ["zstd:1", "none"] {
        let two = two(codec);
        let dir = temp();
        let segment = runs::names(&two.repository.join("backups").join(&two.ids[0]));
        let segment = segment.iter().find(|name| name.starts_with("s01-000001")).unwrap();
        let path = two.repository.join("backups").join(&two.ids[0]).join(segment);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 0xff;
        fs::write(&path, bytes).unwrap();

        let file = dir.path().join("x.tar.zst");
        fullbore(args!["export", two.at(1), "--to", file]).ends_with(4).has_one_error("is damaged");
        assert_eq!(runs::names(dir.path()), [""; 0], "{codec}");

        let ran = fullbore(args!["export", two.at(1), "--to", file, "--keep-going", "--json"]).ends_with(4);
        let result = ran.json().pop().unwrap();
        let lost: Vec<&str> =
            result["damage"][0]["files"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
        assert!(!lost.is_empty() && lost.iter().all(|path| two.tree.join(path).exists()), "{codec}: {lost:?}");
        fullbore(args!["verify", file, "--data"]).ends_with(0);
        let back = dir.path().join("back");
        fullbore(args!["restore", file, "--to", back, "--quiet"]).ends_with(0);
        let (mut before, after) = (shape(&two.tree), shape(&back));
        before.retain(|path, node| !lost.iter().any(|lost| node.first == lost.as_bytes() || path == lost.as_bytes()));
        assert_same(&before, &after, codec);
    }
}
