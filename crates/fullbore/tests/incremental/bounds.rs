//! The storage that a repository holds for one backup is bounded, however often its files change.

use super::*;

#[test]
fn pages_that_did_not_change_are_referred_to() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    // Three pages of records.
    (0..20_000).for_each(|i| write(tree.join(format!("d{}/f{i}", i / 500)), b""));
    sleep(SETTLED);
    backup(&tree, &repo, &[]);
    write(tree.join("d20/f10000"), b"x");
    backup(&tree, &repo, &[]);
    let pages = root(&repo, &ids(&repo)[1])["pages"]
        .as_array()
        .unwrap()
        .clone();
    let earlier = pages
        .iter()
        .filter(|page| page["backup"].is_string())
        .count();
    assert!(earlier >= 2 && pages.len() <= 4, "{pages:?}");
    verified(&repo, "latest");
    assert_same(
        &shape(&tree),
        &restored(&repo, "latest"),
        "with pages of two backups",
    );
}

#[test]
fn segments_that_hold_little_of_use_are_left_behind() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    (0..40).for_each(|i| write(tree.join(format!("f{i:02}")), noise(i, 100_000)));
    let options = ["--segment-size", "1M", "--frame-size", "64K"];
    backup(&tree, &repo, &options);
    // Of the first segment one file stays: it is copied within the budget, and the segment is free.
    (0..9).for_each(|i| write(tree.join(format!("f{i:02}")), noise(100 + i, 100_000)));
    backup(&tree, &repo, &options);
    backup(&tree, &repo, &options);
    let of_first = |root: &serde_json::Value| {
        let live = root["liveness"].as_array().unwrap().clone();
        live.iter()
            .any(|live| live["backup"] == ids(&repo)[0].as_str() && live["number"] == 1)
    };
    assert!(of_first(&root(&repo, &ids(&repo)[1])) && !of_first(&root(&repo, &ids(&repo)[2])));
    assert_same(&shape(&tree), &restored(&repo, "latest"), "moved on");
    verified(&repo, "latest");
}

#[test]
fn files_so_small_that_most_of_a_segment_is_manifest_are_not_stored_again_and_again() {
    for codec in ["zstd", "lz4", "none"] {
        let dir = temp();
        let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
        (0..2000).for_each(|i| write(tree.join(format!("f{i}")), format!("{i}\n")));
        sleep(SETTLED);
        let first = backup(&tree, &repo, &["--compress", codec]);
        for round in 0..4 {
            let again = backup(&tree, &repo, &["--compress", codec]);
            assert_eq!(
                (&again["stored_bytes"], &again["kept_files"]),
                (&0.into(), &2000.into()),
                "{codec} {round}"
            );
        }
        // Where one changes each day, the others stay where they are.
        for round in 0..4 {
            write(tree.join("f7"), format!("{round}"));
            let again = backup(&tree, &repo, &["--compress", codec]);
            assert_eq!(again["kept_files"], 1999, "{codec} {round}");
        }
        let latest = ids(&repo).pop().unwrap();
        let root = root(&repo, &latest);
        let live = root["liveness"]
            .as_array()
            .unwrap()
            .iter()
            .find(|live| live["backup"] == first["id"])
            .unwrap();
        let [bytes, data, all] =
            ["bytes", "data_bytes", "of_bytes"].map(|key| live[key].as_u64().unwrap());
        assert!(
            bytes <= data && data <= all && bytes * 10 >= data * 9,
            "{live}"
        );
        assert_same(&shape(&tree), &restored(&repo, &latest), codec);
        verified(&repo, &latest);
    }
}

#[test]
fn a_base_that_lost_a_segment_is_gone_on_from_with_the_rest() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    (0..40).for_each(|i| write(tree.join(format!("f{i:02}")), noise(i, 100_000)));
    sleep(SETTLED);
    backup(
        &tree,
        &repo,
        &["--segment-size", "1M", "--frame-size", "64K"],
    );
    fs::remove_file(runs::segments(&repo).remove(1)).unwrap();
    backup(
        &tree,
        &repo,
        &["--segment-size", "1M", "--frame-size", "64K"],
    );
    assert_same(&shape(&tree), &restored(&repo, "latest"), "mended");
    verified(&repo, "latest");
}

/// Bytes of all files below a directory.
fn size_of(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            if entry.path().is_dir() {
                size_of(&entry.path())
            } else {
                entry.metadata().unwrap().len()
            }
        })
        .sum()
}

#[test]
fn what_a_repository_holds_for_one_backup_is_bounded() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    // Every day the same fifth of the files, and of the blocks of a file, is written anew, and one more.
    let (files, blocks) = (50u64, 80u64);
    let write_block = |file: &fs::File, day: u64, block: u64| {
        file.write_all_at(&noise(1000 * day + block, 64 << 10), block << 16)
            .unwrap();
    };
    (0..files).for_each(|i| write(tree.join(format!("f{i}")), noise(i, 100_000)));
    write(tree.join("large"), Vec::new());
    let large = fs::File::options()
        .write(true)
        .open(tree.join("large"))
        .unwrap();
    (0..blocks).for_each(|block| write_block(&large, 0, block));
    let source = files * 100_000 + (blocks << 16);
    let mut most = 0;
    for day in 1..=45u64 {
        let one_more = |count: u64| count / 5 + day % (count * 4 / 5);
        (0..files / 5)
            .chain([one_more(files)])
            .for_each(|i| write(tree.join(format!("f{i}")), noise(100 * day + i, 100_000)));
        (0..blocks / 5)
            .chain([one_more(blocks)])
            .for_each(|block| write_block(&large, day, block));
        backup(
            &tree,
            &repo,
            &["--frame-size", "256K", "--block-size", "64K"],
        );
        fullbore(args!["forget", &repo, "--keep-last", "1"]).ends_with(0);
        fullbore(args!["prune", &repo]).ends_with(0);
        most = most.max(size_of(&repo));
        if day % 15 == 0 {
            assert_same(&shape(&tree), &restored(&repo, "latest"), "day");
            verified(&repo, "latest");
        }
    }
    assert!(
        most * 2 < source * 7,
        "{} times what is backed up",
        most as f64 / source as f64
    );
}

#[test]
fn what_a_repository_holds_is_bounded_where_small_files_share_frames() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    let (files, bytes) = (1500u64, 1500);
    (0..files).for_each(|i| write(tree.join(format!("f{i}")), noise(i, bytes)));
    let mut most = 0;
    for day in 1..=40u64 {
        // A tenth of the files, any of them.
        for i in (0..files).filter(|i| noise(files * day + i, 1)[0] < 26) {
            write(tree.join(format!("f{i}")), noise(files * day + i, bytes));
        }
        backup(&tree, &repo, &[]);
        fullbore(args!["forget", &repo, "--keep-last", "1"]).ends_with(0);
        fullbore(args!["prune", &repo]).ends_with(0);
        most = most.max(size_of(&repo));
    }
    verified(&repo, "latest");
    assert_same(&shape(&tree), &restored(&repo, "latest"), "after 40 days");
    let source = files * bytes as u64;
    assert!(
        most < source * 7 / 2,
        "{} times what is backed up",
        most as f64 / source as f64
    );
}

#[test]
fn files_with_more_attributes_than_content_are_not_stored_again_and_again() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap(); // which has room for them
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    for i in 0..30 {
        let path = tree.join(format!("f{i}"));
        write(&path, "q");
        std::os::unix::fs::symlink("nowhere", tree.join(format!("link{i}"))).unwrap();
        for key in 0..5 {
            let set = rustix::fs::setxattr(
                &path,
                format!("user.k{key}"),
                &noise(i * 5 + key, 6000),
                rustix::fs::XattrFlags::empty(),
            );
            if !runs::or_skip(set.is_ok(), "no attributes here") {
                return;
            }
        }
    }
    sleep(SETTLED);
    backup(&tree, &repo, &[]);
    for round in 0..3 {
        assert_eq!(backup(&tree, &repo, &[])["stored_bytes"], 0, "{round}");
    }
}

#[test]
fn files_that_are_handed_on_from_name_to_name_are_not_stored_again() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    let log = |number: u64| tree.join(format!("log.{number}"));
    let in_dir = |dir: &str, number: u64| tree.join(dir).join(format!("f{number}"));
    (1..=4).for_each(|number| write(log(number), noise(number, 400_000)));
    for number in 0..4 {
        write(in_dir("a", number), noise(10 + number, 100_000));
        write(in_dir("b", number), noise(20 + number, 100_000));
    }
    sleep(SETTLED);
    backup(&tree, &repo, &[]);
    (1..=4)
        .rev()
        .for_each(|number| fs::rename(log(number), log(number + 1)).unwrap());
    write(log(1), noise(5, 400_000));
    for (source, target) in [("a", "c"), ("b", "a"), ("c", "b")] {
        fs::rename(tree.join(source), tree.join(target)).unwrap();
    }
    let stored = backup(&tree, &repo, &[])["stored_bytes"].as_u64().unwrap();
    assert!((400_000..450_000).contains(&stored), "{stored}");
    assert_same(&shape(&tree), &restored(&repo, "latest"), "handed on");
}
