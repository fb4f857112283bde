//! Messages about damage name the damaged files, and no others.

use super::*;

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
        let now = found["sampled"]["never_checked_bytes"].as_u64().unwrap();
        assert!(now < never, "{found}");
        (never, rounds) = (now, rounds + 1);
    }
    assert!((3..=6).contains(&rounds), "{rounds}");
    let all = sample(&["--for", "1h"]).ends_with(0).json().pop().unwrap();
    assert_eq!(
        all["sampled"]["checked_bytes"],
        all["sampled"]["stored_bytes"]
    );
    let segment = segments(&repository).remove(0);
    let mut bytes = fs::read(&segment).unwrap();
    bytes[5 << 20] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let found = sample(&["--sample", "100%"])
        .ends_with(4)
        .json()
        .pop()
        .unwrap();
    assert_eq!(found["lost"][0]["paths"], serde_json::json!(["large"]));
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
    assert_eq!(verdict["id"], Value::Null, "{verdict}");
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
        let is_named = verdict["lost"][0]["paths"][0] == "f";
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

#[test]
fn an_export_says_which_pages_it_could_not_read() {
    let dir = temp();
    let (tree, file) = (dir.path().join("tree"), dir.path().join("x.tar.zst"));
    write(tree.join("f"), b"f");
    fullbore(args!["backup", tree, "--to", file]).ends_with(0);
    let page = fullbore(args!["show", file, "--json"]).json().remove(0)["root"]["pages"][0].clone();
    spoil(&file, page["offset"].as_u64().unwrap() + 30);
    let (repository, home) = ten(dir.path(), &[]);
    let pages = fullbore(args!["show", repository, "--json"])
        .json()
        .remove(0)["root"]["pages"][0]
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
        assert_eq!(loss["paths"], serde_json::json!(["f07"]), "{verdict}");
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
        .map(|_| sample()["sampled"]["never_checked_bytes"].as_u64().unwrap())
        .collect();
    assert_eq!(never.last(), Some(&0), "{never:?}");
    assert!(!sample()["damage"].as_array().unwrap().is_empty());
}
