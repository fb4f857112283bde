//! Backups of which pages are lost in the manifest and in the segment: what they described is lost, and that is said.

use crate::runs;
use crate::runs::{assert_same, fullbore, noise, sample, segments, shape, temp, text, write};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

const TAG: &[u8] = b"FBPAGE_1";

/// Overwrite pages, the names of their frames too; only how long the frames are stays.
fn lose_pages(file: &Path) -> usize {
    let mut bytes = fs::read(file).unwrap();
    let found: Vec<usize> = (8..bytes.len().saturating_sub(8))
        .filter(|offset| bytes[*offset..].starts_with(TAG))
        .collect();
    for offset in &found {
        let len = u32::from_le_bytes(bytes[offset - 4..*offset].try_into().unwrap()) as usize;
        bytes[*offset..offset + len].copy_from_slice(&noise(*offset as u64, len));
    }
    fs::write(file, bytes).unwrap();
    found.len()
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
fn of_a_file_of_which_a_part_is_nowhere_no_part_is_left() {
    let dir = temp();
    let (tree, repository, target) = (
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
    for (file, position) in [
        (home.join("manifest"), number("manifest_offset")),
        (segment, number("offset")),
    ] {
        let mut bytes = fs::read(&file).unwrap();
        bytes[position + 20..position + 80]
            .iter_mut()
            .for_each(|byte| *byte = !*byte);
        fs::write(file, bytes).unwrap();
    }
    fullbore(args!["verify", repository]).ends_with(4);
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
    assert!(
        restored(&repository, &id, &target)
            .ends_with(3)
            .err
            .is_empty()
    );
    assert_eq!(
        fs::read_dir(&target)
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
    restore(&repository, &next, &target);
    assert_same(&shape(&tree), &shape(&target), "next");
}

/// Two pages: the large file goes on from the first to the second. Gives the backup, and where its pages are in the segment.
fn two_pages(dir: &Path) -> (String, Vec<usize>) {
    let tree = dir.join("tree");
    for i in 0..8190 {
        write(tree.join(format!("a/{i:05}")), "");
    }
    write(tree.join("large"), noise(7, 3_000_000));
    for i in 0..100 {
        write(tree.join(format!("z/{i:05}")), text(i, 300));
    }
    let args = args![
        "backup",
        tree,
        "--to",
        dir.join("whole"),
        "--json",
        "--frame-size",
        "64K"
    ];
    let ran = fullbore(args).ends_with(0).json().pop().unwrap();
    let bytes = fs::read(&segments(&dir.join("whole"))[0]).unwrap();
    let pages: Vec<usize> = (0..bytes.len() - 8)
        .filter(|offset| bytes[*offset..].starts_with(TAG))
        .collect();
    assert!(pages.len() > 1, "{pages:?}");
    (ran["id"].as_str().unwrap().to_owned(), pages)
}

#[test]
fn a_page_that_is_lost_costs_its_entries_and_no_others() {
    let dir = temp();
    let (id, pages) = two_pages(dir.path());
    let [whole, copy, target] = ["whole", "copy", "to"].map(|name| dir.path().join(name));
    let (first, last) = (pages[0], pages[pages.len() - 1]);
    for (index, kept, lost) in [(first, "z/00099", "a/00000"), (last, "a/00000", "z/00099")] {
        for has_root in [true, false] {
            let case = format!("page at {index}, root {has_root}");
            let _ = fs::remove_dir_all(&copy);
            runs::shell("cp -r \"$1\" \"$2\"", args![whole, copy]).ends_with(0);
            let segment = segments(&copy).remove(0);
            let mut bytes = fs::read(&segment).unwrap();
            bytes[index + 8..index + 40].fill(0);
            fs::write(&segment, bytes).unwrap();
            let home = copy.join("backups").join(&id);
            fs::remove_file(home.join("manifest")).unwrap();
            if !has_root {
                fs::remove_file(home.join("root.json")).unwrap();
            }
            let done = fullbore(args!["repair", copy, "--data", "--yes"]).ends_with(0);
            let told = if has_root {
                "segment 1 of stream 1"
            } else {
                "s01-000001.tar.zst"
            };
            assert!(done.out.contains(told), "{case}: {}", done.out);
            let after = fullbore(args!["verify", copy, "--data"]);
            assert_eq!(after.code, 0, "{case}: {}{}", after.out, after.err);
            let ran = restored(&copy, &id, &target);
            assert_eq!(ran.code, 3, "{case}: {}", ran.err);
            assert!(target.join(kept).exists(), "{case}");
            assert!(!target.join(lost).exists(), "{case}");
            fullbore(args!["repair", copy, "--data"]).ends_with(0);
        }
    }
}

#[test]
fn of_a_backup_without_root_and_pages_the_tar_is_restored_as_a_stream() {
    let dir = temp();
    let tree = tree(dir.path());
    for codec in ["zstd", "lz4", "none"] {
        let (repository, target) = (dir.path().join(codec), dir.path().join("to"));
        let id = backup(&tree, &repository, codec);
        let home = repository.join("backups").join(&id);
        for name in ["manifest", "root.json"] {
            fs::remove_file(home.join(name)).unwrap();
        }
        for segment in segments(&repository) {
            assert!(lose_pages(&segment) > 0, "{codec}");
        }
        let done = fullbore(args!["repair", repository, "--yes"]).ends_with(4);
        assert!(
            done.out.contains("`fullbore restore - < SEGMENT`"),
            "{codec}: {}{}",
            done.out,
            done.err
        );
        let line = "cat \"$1\"/s01-* | \"$2\" restore - --to \"$3\" --quiet";
        runs::shell(line, args![home, runs::FULLBORE, target]);
        assert_same(&shape(&tree), &shape(&target), codec);
        fs::remove_dir_all(&target).unwrap();
    }
}
