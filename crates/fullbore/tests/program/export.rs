//! A backup that refers to others is exported as a full one.

use crate::runs::{self, assert_same, fed, fullbore, noise, sample, shape, shell, temp};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_repository::archive::Archive;
use fullbore_storage::Storages;
use std::{
    fs,
    path::{Path, PathBuf},
};
use testkit::fixture::{Fixture, content, look, restore};

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
        let options = [
            "--frame-size",
            "64K",
            "--segment-size",
            "1M",
            "--json",
            "--tag",
            "k=v",
            "--compress",
            codec,
        ];
        let options = args![tree, "--to", repository]
            .into_iter()
            .chain(options.map(Into::into));
        let ran = fullbore(args!["backup"].into_iter().chain(options)).ends_with(0);
        ran.json().last().unwrap()["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let first = backup();
    change(&tree);
    let second = backup();
    Two {
        _dir: dir,
        tree,
        repository,
        ids: [first, second],
    }
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
    let archive = Archive::open_backup(
        &Storages::default().repository_at(&two.repository).unwrap(),
        &two.ids[1],
    )
    .unwrap();
    assert_eq!(archive.root.referenced_backups(), [&two.ids[0]]);
    let dir = temp();
    let back = dir.path().join("back");
    fullbore(args!["restore", two.at(1), "--to", back, "--quiet"]).ends_with(0);
    two.assert_is(&back, "thin");
}

#[test]
fn an_export_extracts_with_tar_to_the_same_tree() {
    for (codec, name) in [
        ("zstd:1", "x.tar.zst"),
        ("lz4", "x.tar.gz"),
        ("zstd:3", "x.tar.lz4"),
        ("none", "x.tar"),
    ] {
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
        shell(
            &format!("{unpack} | tar -xip --xattrs -C \"$2\" -f -"),
            args![file, back],
        )
        .ends_with(0);
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
    let export_of = |origin: &str| {
        fullbore(args!["show", origin, "--json"])
            .ends_with(0)
            .json()
            .remove(0)["root"]
            .take()
    };
    let (was, is) = (export_of(&two.at(1)), export_of(other.to_str().unwrap()));
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
    fullbore(args![
        "export",
        two.at(0),
        "--to",
        dir.path().join("r"),
        "--segment-size",
        "1M",
        "--quiet"
    ])
    .ends_with(0);
    let records_of = |source: &Path, id: &str| {
        let archive =
            Archive::open_backup(&Storages::default().repository_at(source).unwrap(), id).unwrap();
        let pages = (0..archive.root.pages.len())
            .map(|offset| archive.page(offset).unwrap().records.clone());
        pages.flatten().collect::<Vec<_>>()
    };
    let id = runs::names(&dir.path().join("r/backups")).remove(0);
    assert!(records_of(&two.repository, &two.ids[0]) == records_of(&dir.path().join("r"), &id));
}

#[test]
fn damage_ends_an_export_or_is_left_out_and_listed() {
    for codec in ["zstd:1", "lz4", "none"] {
        let two = two(codec);
        let base = two.repository.join("backups").join(&two.ids[0]);
        let is_first = |name: &String| name.starts_with("s01-000001");
        let path = base.join(runs::names(&base).into_iter().find(is_first).unwrap());
        let bytes = fs::read(&path).unwrap();
        // Everywhere with one codec; where the others differ from it is their frames.
        let parts = (1..10).step_by(if codec == "zstd:1" { 1 } else { 3 });
        let places = parts.len();
        let harms = parts.filter(|part| two.is_harmed_by(&path, &bytes, *part, codec));
        let harms = harms.count();
        assert!(2 * harms > places, "{codec}: {harms} of {places}");
    }
}

impl Two {
    /// Export with one byte of a segment flipped; is something lost by it?
    fn is_harmed_by(&self, path: &Path, bytes: &[u8], part: usize, codec: &str) -> bool {
        let dir = temp();
        let (file, back) = (dir.path().join("x.tar.zst"), dir.path().join("back"));
        let mut bad = bytes.to_vec();
        bad[bytes.len() * part / 10] ^= 0x10;
        fs::write(path, bad).unwrap();
        let ran = fullbore(args![
            "export",
            self.at(1),
            "--to",
            file,
            "--keep-going",
            "--json"
        ]);
        let result = ran
            .json()
            .pop()
            .unwrap_or_else(|| panic!("{codec} {part}: {}", ran.err));
        let files = result["damage"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|damage| damage["paths"].as_array().unwrap());
        let lost: Vec<&[u8]> = files
            .map(|file| file.as_str().unwrap().as_bytes())
            .collect();
        assert_eq!(
            ran.code,
            if lost.is_empty() { 0 } else { 4 },
            "{codec} {part}: {}",
            ran.err
        );
        fullbore(args!["verify", file, "--data"]).ends_with(0);
        // What the export could not take is not in it, and that is said.
        fullbore(args!["restore", file, "--to", back, "--quiet"]).ends_with(if lost.is_empty() {
            0
        } else {
            3
        });
        let mut before = shape(&self.tree);
        // Other names of a lost file go with it.
        before.retain(|path, node| !lost.contains(&&node.first[..]) && !lost.contains(&&path[..]));
        assert_same(&before, &shape(&back), codec);
        if !lost.is_empty() {
            let strict = dir.path().join("strict");
            fs::create_dir(&strict).unwrap();
            let target = strict.join("x.tar.zst");
            fullbore(args!["export", self.at(1), "--to", target])
                .ends_with(4)
                .has_one_error("is damaged");
            assert_eq!(runs::names(&strict), [""; 0], "{codec} {part}");
        }
        !lost.is_empty()
    }
}

/// Backups whose files go on over many pages, in frames of any size.
fn in_many_pages(codec: Codec) -> Fixture {
    let mut fixture = Fixture {
        codec,
        page_extents: 3,
        page_records: 5,
        frame_bytes: 64 << 10,
        ..Fixture::sample()
    };
    // A tar has maps of whole blocks.
    fixture
        .entries
        .retain(|(_, entry, ..)| entry.path != b"sparse/holes");
    fixture.sparse(
        "sparse/runs",
        1 << 30,
        &[(0, 5120), (1 << 20, 300 << 10), (1 << 29, 100)],
    );
    fixture
        .file("big/many", content(1, 1_000_001))
        .file("big/more", content(2, 3 * (64 << 10)));
    fixture
}

#[test]
fn files_that_go_on_over_pages_are_exported_whole() {
    for codec in [Codec::Zstd(1), Codec::Lz4, Codec::None] {
        let dir = temp();
        let path = |name: &str| dir.path().join(name);
        in_many_pages(codec).write_repository(&path("repo"));
        fullbore(args![
            "export",
            path("repo"),
            "--to",
            path("x.tar"),
            "--quiet"
        ])
        .ends_with(0);
        restore(&path("repo"), &path("before")).unwrap();
        restore(&path("x.tar"), &path("after")).unwrap();
        assert_eq!(look(&path("before")), look(&path("after")), "{codec}");
    }
}
