//! A restore over a tree loses no file if the backup is damaged or the restore ends early.

use super::*;

/// Damage the frame that holds these bytes.
fn damage(repository: &Path, bytes: &[u8]) {
    let segment = runs::segments(repository).pop().unwrap();
    let mut content = fs::read(&segment).unwrap();
    let index = content
        .windows(bytes.len())
        .position(|window| window == bytes)
        .expect("noise is stored as it is");
    content[index + 7] ^= 1;
    fs::write(&segment, content).unwrap();
}

#[test]
fn of_a_damaged_frame_only_the_files_are_lost_that_are_damaged() {
    let dir = temp();
    let (tree, repo, target) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("to"),
    );
    for i in 0..50 {
        write(tree.join(format!("f{i}")), noise(i, 2000));
        write(target.join(format!("f{i}")), "old");
    }
    fullbore(args!["backup", &tree, "--to", &repo, "--quiet"]).ends_with(0);
    damage(&repo, &noise(25, 2000)[..400]);
    let ran = fullbore(args![
        "restore",
        &repo,
        "--to",
        &target,
        "--delta",
        "--keep-going",
        "--verbose"
    ])
    .ends_with(4);
    assert!(
        ran.err.contains("lost: \"f25\"\n")
            && ran.err.contains("it holds part of 1 of 50 files: \"f25\""),
        "{}",
        ran.err
    );
    let is_there = |i: &u64| fs::read(target.join(format!("f{i}"))).unwrap() == noise(*i, 2000);
    assert_eq!((0..50).filter(|i| !is_there(i)).collect::<Vec<_>>(), [25]);
}

#[test]
fn a_file_that_was_not_written_to_is_left_when_the_backup_is_damaged() {
    let place = Place::new("zstd:1");
    let whole = |name: &str| fs::read(place.at("tree").join(name)).unwrap();
    damage(&place.at("repo"), &whole("big/small")[..400]);
    damage(&place.at("repo"), &whole("big/odd")[1 << 20..][..400]);
    damage(&place.at("repo"), &whole("big/exact")[1 << 20..][..400]);
    overwrite_at(&place.at("to/big/small"), 100, b"mine");
    overwrite_at(&place.at("to/big/odd"), 1 << 20, b"mine");
    overwrite_at(&place.at("to/big/exact"), 1 << 20, b"mine");
    overwrite_at(&place.at("to/big/exact"), 3 << 20, b"mine");
    let before = ["small", "odd"].map(|name| fs::read(place.at("to/big").join(name)).unwrap());
    let args = args![
        "restore",
        place.at("repo"),
        "--to",
        place.at("to"),
        "--delta",
        "--keep-going"
    ];
    let ran = fullbore(args).ends_with(4);
    assert_eq!(
        ["small", "odd"].map(|name| fs::read(place.at("to/big").join(name)).unwrap()),
        before
    );
    assert!(!place.at("to/big/exact").exists(), "part of it was written");
    for line in [
        "\"big/small\" is unchanged",
        "\"big/odd\" is unchanged",
        "\"big/exact\" is removed",
    ] {
        assert!(ran.err.contains(line), "{line}: {}", ran.err);
    }
}

#[test]
fn a_file_that_is_made_anew_stays_what_it_was_when_the_backup_is_damaged() {
    let place = Place::new("zstd:1");
    let (target, tree) = (place.at("to/big"), place.at("tree/big"));
    damage(
        &place.at("repo"),
        &fs::read(tree.join("exact")).unwrap()[1 << 20..][..400],
    );
    damage(
        &place.at("repo"),
        &fs::read(tree.join("small")).unwrap()[..400],
    );
    let names = ["exact", "odd", "small"];
    for option in [
        &["--delta"][..],
        &["--overwrite=all"],
        &["--delta", "--no-tricks"],
        &["--overwrite=all", "--no-tricks"],
    ] {
        // Others could have them open who may not by the backup: none of them is written to in place.
        for name in names {
            write(target.join(name), format!("what was there of {name}"));
            set_mode(&target.join(name), 0o666);
        }
        let args = args![
            "restore",
            place.at("repo"),
            "--to",
            place.at("to"),
            "--keep-going"
        ];
        let ran = fullbore(args.into_iter().chain(option.iter().map(OsString::from))).ends_with(4);
        let option = option.join(" ");
        for name in ["exact", "small"] {
            assert_eq!(
                fs::read_to_string(target.join(name)).unwrap(),
                format!("what was there of {name}"),
                "{option}"
            );
            assert!(
                ran.err.contains(&format!("\"big/{name}\" is unchanged")),
                "{option}: {}",
                ran.err
            );
        }
        assert_eq!(
            fs::read(target.join("odd")).unwrap(),
            fs::read(tree.join("odd")).unwrap(),
            "{option}"
        );
        assert_eq!(runs::names(&target), names, "{option}");
    }
}

#[test]
fn a_run_that_is_killed_costs_nothing_of_what_it_was_about_to_replace() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let place = Place::new("zstd:1");
    let target = place.at("to/big");
    let names = ["exact", "odd", "small"];
    for option in ["--delta", "--overwrite=all"] {
        for name in names {
            write(target.join(name), format!("what was there of {name}"));
            set_mode(&target.join(name), 0o666);
        }
        // Each has its content by then, and no name.
        let args = args![
            "restore",
            place.at("repo"),
            "--to",
            place.at("to"),
            option,
            "big"
        ];
        let ran = tampered("linkat:signal=KILL", None, args);
        assert_ne!(ran.code, 0, "{option}: {}", ran.err);
        for name in names {
            assert_eq!(
                fs::read_to_string(target.join(name)).unwrap(),
                format!("what was there of {name}"),
                "{option}"
            );
        }
        assert_eq!(runs::names(&target), names, "{option}");
    }
    place.delta(&[]);
    place.assert_restored("in the end");
}

#[test]
fn where_there_is_no_room_for_both_what_is_replaced_goes_first() {
    if !or_skip(is_root(), "not root") {
        return;
    }
    let place = Place { dir: temp() };
    let (tree, target) = (place.at("tree"), place.at("to"));
    let names = ["a", "b", "c"];
    names
        .iter()
        .zip(1..)
        .for_each(|(name, seed)| write(tree.join(name), noise(seed, 3 << 20)));
    write(tree.join("small"), noise(9, 300_000));
    fullbore(args!["backup", &tree, "--to", place.at("repo"), "-q"]).ends_with(0);
    fs::create_dir(&target).unwrap();
    let Some(_mount) = Mount::tmpfs(&target, "10m") else {
        return;
    };
    for option in ["--delta", "--overwrite=all"] {
        for name in names {
            write(target.join(name), noise(10, 3 << 20));
            set_mode(&target.join(name), 0o666);
        }
        write(target.join("small"), noise(11, 300_000));
        fullbore(args!["restore", place.at("repo"), "--to", &target, option]).ends_with(0);
        assert_same(&shape(&tree), &shape(&target), option);
    }
}

#[test]
fn what_is_replaced_stays_where_there_is_no_room_without_it_either() {
    if !or_skip(is_root(), "not root") {
        return;
    }
    let place = Place { dir: temp() };
    let (tree, target) = (place.at("tree"), place.at("to"));
    write(tree.join("large"), noise(1, 12 << 20));
    fullbore(args!["backup", &tree, "--to", place.at("repo"), "-q"]).ends_with(0);
    fs::create_dir(&target).unwrap();
    let Some(_mount) = Mount::tmpfs(&target, "8m") else {
        return;
    };
    write(target.join("large"), noise(2, 5 << 20));
    fullbore(args![
        "restore",
        place.at("repo"),
        "--to",
        &target,
        "--overwrite=all"
    ])
    .ends_with(1)
    .has_one_error("no space left");
    assert!(fs::read(target.join("large")).unwrap() == noise(2, 5 << 20));
}

#[test]
fn a_restore_that_fails_gives_the_directories_back_that_it_took_over() {
    if !or_skip(is_root(), "not root") {
        return;
    }
    let place = Place { dir: temp() };
    let (tree, target) = (place.at("tree"), place.at("to"));
    write(tree.join("d/e/large"), noise(1, 3 << 20));
    fullbore(args!["backup", &tree, "--to", place.at("repo"), "-q"]).ends_with(0);
    fs::create_dir(&target).unwrap();
    let Some(_mount) = Mount::tmpfs(&target, "1m") else {
        return;
    };
    fs::create_dir_all(target.join("d/e")).unwrap();
    let who = |name: &str| {
        fs::metadata(target.join(name))
            .map(|found| (found.uid(), found.gid(), found.mode() & 0o7777))
    };
    for (name, owner, mode) in [("d", 1234, 0o2775), ("d/e", 0, 0o1777)] {
        std::os::unix::fs::chown(target.join(name), Some(owner), Some(owner)).unwrap();
        set_mode(&target.join(name), mode);
    }
    for option in ["--delta", "--overwrite=all"] {
        fullbore(args!["restore", place.at("repo"), "--to", &target, option])
            .ends_with(1)
            .has_one_error("no space left");
        assert_eq!(who("d").unwrap(), (1234, 1234, 0o2775), "{option}");
        assert_eq!(who("d/e").unwrap(), (0, 0, 0o1777), "{option}");
    }
}

#[test]
fn another_name_of_a_damaged_file_does_not_become_what_stands_in_its_place() {
    let place = Place { dir: temp() };
    let (tree, target) = (place.at("tree"), place.at("to"));
    write(tree.join("a"), noise(1, 200_000));
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    fullbore(args![
        "backup",
        &tree,
        "--to",
        place.at("repo"),
        "-q",
        "--compress",
        "zstd:1"
    ])
    .ends_with(0);
    damage(&place.at("repo"), &noise(1, 200_000)[..400]);
    for option in ["--delta", "--overwrite=all"] {
        ["a", "b"]
            .iter()
            .for_each(|name| write(target.join(name), format!("what was there of {name}")));
        let args = args![
            "restore",
            place.at("repo"),
            "--to",
            &target,
            option,
            "--keep-going"
        ];
        let ran = fullbore(args).ends_with(4);
        assert!(ran.err.contains("1 hard link"), "{}", ran.err);
        for name in ["a", "b"] {
            assert_eq!(
                fs::read_to_string(target.join(name)).unwrap(),
                format!("what was there of {name}"),
                "{option}"
            );
        }
    }
}

#[test]
fn what_is_damaged_in_the_backup_is_named_and_the_rest_is_restored() {
    let place = Place::new("zstd:1");
    damage(
        &place.at("repo"),
        &fs::read(place.at("tree/big/odd")).unwrap()[1 << 20..(1 << 20) + 400],
    );
    // What is the same already needs nothing of the backup.
    place.delta(&[]);
    overwrite_at(&place.at("to/big/odd"), 1 << 20, b"changed");
    overwrite_at(&place.at("to/big/odd"), 2 << 20, b"changed");
    overwrite_at(&place.at("to/big/exact"), 0, b"changed");
    let args = args![
        "restore",
        place.at("repo"),
        "--to",
        place.at("to"),
        "--delta",
        "--keep-going"
    ];
    let ran = fullbore(args).ends_with(4);
    assert!(ran.err.contains("\"big/odd\""), "{}", ran.err);
    assert!(!place.at("to/big/odd").exists());
    assert_eq!(
        fs::read(place.at("to/big/exact")).unwrap(),
        fs::read(place.at("tree/big/exact")).unwrap()
    );
}
