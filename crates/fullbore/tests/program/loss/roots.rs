//! Every command reports lost roots, manifests and whole backups; nothing else is given up with them.

use super::*;

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
