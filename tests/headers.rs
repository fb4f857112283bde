//! Backups of which every page is lost: the headers of their tars say what they are of.

#![allow(missing_docs)]

mod runs;

use fullbore::format::{root::Root, seal::seal};
use runs::{assert_same, fullbore, noise, sample, segments, shape, temp, text, write};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

const TAG: &[u8] = b"FBPAGE_1";
const SEEK_TABLE: [u8; 4] = 0x184D_2A5Eu32.to_le_bytes();

/// Overwrite pages, the names of their frames too; only how long the frames are stays.
fn lose_pages(file: &Path) -> usize {
    let mut bytes = fs::read(file).unwrap();
    let found: Vec<usize> = (8..bytes.len().saturating_sub(8))
        .filter(|at| bytes[*at..].starts_with(TAG))
        .collect();
    for at in &found {
        let len = u32::from_le_bytes(bytes[at - 4..*at].try_into().unwrap()) as usize;
        bytes[*at..at + len].copy_from_slice(&noise(*at as u64, len));
    }
    fs::write(file, bytes).unwrap();
    found.len()
}

/// Cut the seek table off.
fn cut(file: &Path) {
    let bytes = fs::read(file).unwrap();
    let at = bytes
        .windows(4)
        .rposition(|window| window == SEEK_TABLE)
        .unwrap();
    fs::write(file, &bytes[..at]).unwrap();
}

fn backup(tree: &Path, repository: &Path, codec: &str) -> String {
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
    let ran = fullbore(
        args.into_iter()
            .chain(["--compress", codec].map(OsString::from)),
    )
    .ends_with(0);
    ran.json().pop().unwrap()["id"].as_str().unwrap().to_owned()
}

fn tree(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    sample(&tree);
    // On file systems that have none the comparison is of nothing.
    let _ = rustix::fs::setxattr(
        tree.join("words"),
        "user.color",
        b"red\0",
        rustix::fs::XattrFlags::empty(),
    );
    tree
}

fn restore(repository: &Path, id: &str, to: &Path) {
    restored(repository, id, to).ends_with(0);
}

fn restored(repository: &Path, id: &str, to: &Path) -> runs::Ran {
    let _ = fs::remove_dir_all(to);
    fullbore(args![
        "restore",
        format!("{}@{id}", repository.display()),
        "--to",
        to,
        "-q"
    ])
}

#[test]
fn a_backup_without_pages_is_described_anew_and_restores_the_same_tree() {
    let dir = temp();
    let tree = tree(dir.path());
    let before = shape(&tree);
    for codec in ["zstd", "lz4"] {
        let (whole, copy, to) = (
            dir.path().join(codec),
            dir.path().join("copy"),
            dir.path().join("to"),
        );
        let id = backup(&tree, &whole, codec);
        assert!(segments(&whole).len() > 1);
        for (has_root, has_table) in [(true, true), (true, false), (false, true), (false, false)] {
            let case = format!("{codec}, root {has_root}, seek table {has_table}");
            let _ = fs::remove_dir_all(&copy);
            runs::shell("cp -r \"$1\" \"$2\"", args![whole, copy]).ends_with(0);
            let home = copy.join("backups").join(&id);
            fs::remove_file(home.join("manifest")).unwrap();
            for segment in segments(&copy) {
                assert!(lose_pages(&segment) > 0, "{case}");
                if !has_table {
                    cut(&segment);
                }
            }
            if !has_root {
                fs::remove_file(home.join("root.json")).unwrap();
            }
            let done = fullbore(args!["repair", copy, "--yes"]);
            assert_eq!(done.code, 0, "{case}: {}{}", done.out, done.err);
            assert!(
                done.out.contains("from the headers of the tar"),
                "{case}: {}",
                done.out
            );
            let after = fullbore(args!["verify", copy, "--data"]);
            assert_eq!(
                after.code, 0,
                "{case}: {}{}{}",
                done.out, after.out, after.err
            );
            restore(&copy, &id, &to);
            assert_same(&before, &shape(&to), &case);
            fullbore(args!["repair", copy]).ends_with(0);
        }
    }
}

#[test]
fn one_page_that_is_lost_is_made_anew_beside_those_that_are_not() {
    let dir = temp();
    let tree = dir.path().join("tree");
    // Two pages: the large file goes on from the first to the second.
    for i in 0..8190 {
        write(tree.join(format!("a/{i:05}")), "");
    }
    write(tree.join("large"), noise(7, 3_000_000));
    for i in 0..100 {
        write(tree.join(format!("z/{i:05}")), text(i, 300));
    }
    let before = shape(&tree);
    let (whole, copy, to) = (
        dir.path().join("whole"),
        dir.path().join("copy"),
        dir.path().join("to"),
    );
    let args = args![
        "backup",
        tree,
        "--to",
        whole,
        "--json",
        "--frame-size",
        "64K"
    ];
    let id = fullbore(args).ends_with(0).json().pop().unwrap()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let segment = segments(&whole)
        .remove(0)
        .strip_prefix(&whole)
        .unwrap()
        .to_owned();
    let bytes = fs::read(whole.join(&segment)).unwrap();
    let pages: Vec<usize> = (0..bytes.len() - 8)
        .filter(|at| bytes[*at..].starts_with(TAG))
        .collect();
    assert!(pages.len() > 1, "{pages:?}");
    let ways = [(true, &[][..]), (true, &["--data"]), (false, &[])];
    for (at, (has_root, flags)) in pages.iter().flat_map(|at| ways.map(|way| (*at, way))) {
        let case = format!("page at {at}, root {has_root}, {flags:?}");
        let _ = fs::remove_dir_all(&copy);
        runs::shell("cp -r \"$1\" \"$2\"", args![whole, copy]).ends_with(0);
        let mut bytes = bytes.clone();
        bytes[at + 8..at + 40].fill(0);
        fs::write(copy.join(&segment), bytes).unwrap();
        let home = copy.join("backups").join(&id);
        fs::remove_file(home.join("manifest")).unwrap();
        if !has_root {
            fs::remove_file(home.join("root.json")).unwrap();
        }
        fullbore(
            args!["repair", copy, "--yes"]
                .into_iter()
                .chain(runs::args(flags)),
        )
        .ends_with(0);
        let after = fullbore(args!["verify", copy, "--data"]);
        assert_eq!(after.code, 0, "{case}: {}{}", after.out, after.err);
        restore(&copy, &id, &to);
        assert_same(&before, &shape(&to), &case);
    }
}

#[test]
fn what_stands_behind_damage_to_the_tar_is_named_and_the_rest_restores() {
    let dir = temp();
    let (tree, repository, to) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("to"),
    );
    for i in 0..8190 {
        write(tree.join(format!("a/{i:05}")), "");
    }
    write(tree.join("large"), noise(7, 3_000_000));
    let args = args![
        "backup",
        tree,
        "--to",
        repository,
        "--json",
        "--frame-size",
        "64K"
    ];
    let id = fullbore(args).ends_with(0).json().pop().unwrap()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    fs::remove_file(repository.join("backups").join(&id).join("manifest")).unwrap();
    let segment = segments(&repository).remove(0);
    assert!(
        lose_pages(&segment) > 1,
        "the large file goes on from one page to another"
    );
    let mut bytes = fs::read(&segment).unwrap();
    let at = bytes.len() - 500_000;
    bytes[at..at + 100].fill(0);
    fs::write(&segment, bytes).unwrap();
    let done = fullbore(args!["repair", repository, "--data", "--yes"]).ends_with(0);
    assert!(
        done.out
            .contains("the headers of the tar cannot be read on"),
        "{}",
        done.out
    );
    restored(&repository, &id, &to).ends_with(3);
    assert!(to.join("a/08189").exists() && !to.join("large").exists());
}

#[test]
fn of_a_backup_that_refers_to_others_its_own_part_comes_back_and_the_rest_is_named() {
    let dir = temp();
    let (tree, whole, copy, to) = (
        tree(dir.path()),
        dir.path().join("whole"),
        dir.path().join("copy"),
        dir.path().join("to"),
    );
    backup(&tree, &whole, "zstd");
    let mut large = fs::read(tree.join("large")).unwrap();
    large[1_500_000] ^= 1;
    fs::write(tree.join("large"), large).unwrap();
    write(tree.join("new"), noise(9, 200_000));
    write(tree.join("a/b/f03"), text(99, 5000));
    let id = backup(&tree, &whole, "zstd");
    for has_root in [true, false] {
        let _ = fs::remove_dir_all(&copy);
        runs::shell("cp -r \"$1\" \"$2\"", args![whole, copy]).ends_with(0);
        let home = copy.join("backups").join(&id);
        fs::remove_file(home.join("manifest")).unwrap();
        assert!(lose_pages(&home.join("s01-000001.tar.zst")) > 0);
        if !has_root {
            fs::remove_file(home.join("root.json")).unwrap();
        }
        let done = fullbore(args!["repair", copy, "--yes"]).ends_with(0);
        assert!(
            done.out.contains("pieces of files that had changed"),
            "{}",
            done.out
        );
        fullbore(args!["verify", copy, "--data"]).ends_with(0);
        restored(&copy, &id, &to).ends_with(3);
        for name in ["new", "a/b/f03"] {
            assert_eq!(
                fs::read(to.join(name)).unwrap(),
                fs::read(tree.join(name)).unwrap(),
                "{name}"
            );
        }
        assert!(!to.join("large").exists() && !to.join("words").exists());
        let root: serde_json::Value =
            serde_json::from_slice(&fs::read(home.join("root.json")).unwrap()).unwrap();
        assert!(
            root["totals"]["unreadable"].as_u64().unwrap() > 0,
            "{}",
            done.out
        );
    }
}

#[test]
fn of_a_file_of_which_a_part_is_nowhere_no_part_is_left() {
    let dir = temp();
    let (tree, repository, to) = (
        dir.path().join("tree"),
        dir.path().join("repository"),
        dir.path().join("to"),
    );
    write(tree.join("large"), noise(1, 2_000_000));
    write(tree.join("small"), "small");
    let backup = || {
        let args = args![
            "backup",
            tree,
            "--to",
            repository,
            "--json",
            "--frame-size",
            "64K"
        ];
        let often = args!["--checkpoint-interval", "0"];
        let ran = fullbore(args.into_iter().chain(often)).ends_with(0);
        ran.json().pop().unwrap()["id"].as_str().unwrap().to_owned()
    };
    backup();
    // Of an incremental backup the tar does not say where the rest of a file is.
    write(
        tree.join("large"),
        [noise(2, 1_000_000), noise(1, 2_000_000)].concat(),
    );
    let id = backup();
    let home = repository.join("backups").join(&id);
    let root: serde_json::Value =
        serde_json::from_slice(&fs::read(home.join("root.json")).unwrap()).unwrap();
    let pages: Vec<_> = root["pages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|page| page["first"] == "large")
        .collect();
    let page = pages[pages.len() / 2];
    let number = |name: &str| page[name].as_u64().unwrap() as usize;
    let segment = home.join(format!(
        "s{:02}-{:06}.tar.zst",
        number("stream"),
        number("segment")
    ));
    for (file, at) in [
        (home.join("manifest"), number("manifest_offset")),
        (segment, number("offset")),
    ] {
        let mut bytes = fs::read(&file).unwrap();
        bytes[at + 20..at + 80]
            .iter_mut()
            .for_each(|byte| *byte = !*byte);
        fs::write(file, bytes).unwrap();
    }
    fullbore(args!["verify", repository]).ends_with(4);
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
    assert!(restored(&repository, &id, &to).ends_with(3).err.is_empty());
    assert_eq!(
        fs::read_dir(&to)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect::<Vec<_>>(),
        ["small"]
    );
    let again = fullbore(args!["repair", repository, "--yes", "--data"]).ends_with(0);
    assert!(
        again.out.contains("nothing is to be done") || again.err.contains("nothing is to be done")
    );
    // The next backup has all of it again.
    let next = backup();
    restore(&repository, &next, &to);
    assert_same(&shape(&tree), &shape(&to), "next");
}

#[test]
fn a_root_that_says_of_blocks_what_cannot_be_ends_no_repair() {
    for block_bytes in [0, 1, u64::MAX] {
        let dir = temp();
        let (tree, repository) = (tree(dir.path()), dir.path().join("repo"));
        let id = backup(&tree, &repository, "zstd");
        let home = repository.join("backups").join(&id);
        let mut root = Root::open(&fs::read(home.join("root.json")).unwrap(), "root.json").unwrap();
        root.options.block_bytes = block_bytes;
        fs::write(home.join("root.json"), seal(&root).unwrap()).unwrap();
        fs::remove_file(home.join("manifest")).unwrap();
        segments(&repository)
            .iter()
            .for_each(|segment| assert!(lose_pages(segment) > 0));
        fullbore(args!["repair", repository, "--yes"]).ends_with(0);
        fullbore(args!["verify", repository, "--data"]).ends_with(0);
    }
}
