//! A repair takes nothing from files that can be restored, and looks again before it writes.

use super::*;

#[test]
fn a_repair_says_what_it_does_and_afterwards_everything_that_is_left_restores() {
    for more in [&["--compress", "zstd"][..], &["--compress", "none"]] {
        let dir = temp();
        let all = three(dir.path(), more);
        let (repository, copy, target) = (
            dir.path().join("repo"),
            dir.path().join("copy"),
            dir.path().join("to"),
        );
        fullbore(args!["repair", repository]).ends_with(0);
        let spared = repository.join("backups").join(&all[1].0).join("root.json");
        for object in objects(&repository)
            .into_iter()
            .filter(|path| *path != spared)
        {
            let name = object.strip_prefix(&repository).unwrap().to_owned();
            let _ = fs::remove_dir_all(&copy);
            runs::shell("cp -r \"$1\" \"$2\"", args![repository, copy]).ends_with(0);
            fs::remove_file(copy.join(&name)).unwrap();
            let case = format!("{name:?} {more:?}");
            let verdict = fullbore(args!["verify", copy, "--json"]);
            let verdict = verdict.json().pop();
            let before = files(&copy);
            let said = fullbore(args!["repair", copy]);
            assert_eq!(
                (said.code, files(&copy) == before),
                (4, true),
                "{case}: {}{}",
                said.out,
                said.err
            );
            let done = fullbore(args!["repair", copy, "--yes"]);
            assert_eq!(done.code, 0, "{case}: {}{}", done.out, done.err);
            let after = fullbore(args!["verify", copy, "--data"]);
            assert_eq!(
                after.code, 0,
                "{case}: {}{}{}",
                done.out, after.out, after.err
            );
            let of_root = name.ends_with("root.json");
            for (index, (id, wanted)) in all.iter().enumerate() {
                let _ = fs::remove_dir_all(&target);
                let ran = fullbore(args![
                    "restore",
                    format!("{}@{id}", copy.display()),
                    "--to",
                    target,
                    "-q"
                ]);
                let given = files(&target);
                assert!(
                    given
                        .iter()
                        .all(|(name, data)| wanted.get(name) == Some(data)),
                    "{case}: wrong content"
                );
                let missing: BTreeSet<String> = wanted
                    .keys()
                    .filter(|name| !given.contains_key(*name))
                    .cloned()
                    .collect();
                // A root that is rebuilt cannot tell whether there were whole pages of others.
                let may_lack = of_root && index > 0 && name.to_str().unwrap().contains(id);
                let wanted_code = if missing.is_empty() && !may_lack {
                    0
                } else {
                    3
                };
                assert_eq!(ran.code, wanted_code, "{case}, {id}: {}", ran.err);
                let lost = match &verdict {
                    // A full backup comes back as it was; one that shared whole pages with others does not.
                    _ if of_root && (index == 0 || !name.to_str().unwrap().contains(id)) => {
                        BTreeSet::new()
                    }
                    _ if of_root => continue,
                    Some(verdict) => lost(verdict, id, wanted),
                    None => BTreeSet::new(),
                };
                assert_eq!(missing, lost, "{case}, {id}: {}", done.out);
            }
        }
    }
}

#[test]
fn a_repair_takes_nothing_from_what_can_be_restored() {
    for codec in ["zstd", "none"] {
        let dir = temp();
        let (tree, repository, copy) = (
            dir.path().join("tree"),
            dir.path().join("repo"),
            dir.path().join("copy"),
        );
        (0..3).for_each(|i| write(tree.join(format!("f{i}")), noise(i, 100_000)));
        let mut all = Vec::new();
        for round in 0..2 {
            let args = args![
                "backup",
                tree,
                "--to",
                repository,
                "--compress",
                codec,
                "--frame-size",
                "64K",
                "--json"
            ];
            let id = fullbore(args).ends_with(0).json().pop().unwrap()["id"]
                .as_str()
                .unwrap()
                .to_owned();
            all.push((id, files(&tree)));
            write(tree.join("f0"), noise(10 + round, 100_000));
            write(tree.join("new"), b"new");
        }
        let names: Vec<PathBuf> = files(&repository).into_keys().map(PathBuf::from).collect();
        let pairs = names
            .iter()
            .enumerate()
            .flat_map(|(index, one)| names[index + 1..].iter().map(move |other| [one, other]))
            // All pairs of the one codec are enough for what does not ask for it.
            .step_by(if codec == "zstd" { 1 } else { 3 });
        // One pair is gone, the next is damaged.
        for (pair, is_gone) in pairs.zip([true, false].into_iter().cycle()) {
            let _ = fs::remove_dir_all(&copy);
            runs::shell("cp -r \"$1\" \"$2\"", args![repository, copy]).ends_with(0);
            for path in pair.map(|name| copy.join(name)) {
                let mut stored = fs::read(&path).unwrap();
                let middle = stored.len() / 2;
                stored
                    .iter_mut()
                    .skip(middle)
                    .take(3)
                    .for_each(|byte| *byte ^= 0x15);
                if is_gone {
                    fs::remove_file(&path).unwrap()
                } else {
                    fs::write(&path, stored).unwrap()
                }
            }
            let had = |all: &[(String, _)]| -> Vec<_> {
                all.iter()
                    .map(|(id, wanted)| had(&copy, id, wanted, &dir.path().join("to")))
                    .collect()
            };
            let before = had(&all);
            let [first, second] =
                [0, 1].map(|_| fullbore(args!["repair", copy, "--data", "--yes"]).out);
            let after = had(&all);
            let kept = before
                .iter()
                .zip(&after)
                .all(|(before, after)| before.is_subset(after));
            assert!(
                kept,
                "{codec} {pair:?} {is_gone}: {before:?} {after:?}\n{first}{second}"
            );
        }
    }
}

#[test]
fn the_file_of_a_repository_is_made_anew_wherever_labels_are() {
    for codec in ["zstd", "lz4", "none"] {
        let dir = temp();
        let other = temp();
        let (foreign, _) = ten(other.path(), &["--compress", codec]);
        // What looks like the label of another repository, in the content of files.
        let first = segments(&foreign).remove(0);
        write(dir.path().join("tree/a"), fs::read(first).unwrap());
        let (repository, _) = ten(dir.path(), &["--compress", codec]);
        let file = repository.join("fullbore-repo.json");
        let before: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        spoil(&file, 20);
        fullbore(args!["list", repository]).ends_with(4);
        fullbore(args!["repair", repository, "--yes"]).ends_with(0);
        let after: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(before["id"], after["id"], "{codec}");
        fullbore(args!["verify", repository, "--data"]).ends_with(0);
    }
}

/// Who refers to a page keeps the manifest that it is in, whole or not, and not the segment of another copy.
#[test]
fn a_page_whose_manifest_is_damaged_is_not_referred_to() {
    for is_shorter in [false, true] {
        let dir = temp();
        let (repository, home) = ten(dir.path(), &[]);
        let again = || {
            let ran = fullbore(args![
                "backup",
                dir.path().join("tree"),
                "--to",
                repository,
                "--json"
            ])
            .ends_with(0);
            let done = ran.json().pop().unwrap();
            let root = home
                .with_file_name(done["id"].as_str().unwrap())
                .join("root.json");
            let root: Value = serde_json::from_slice(&fs::read(root).unwrap()).unwrap();
            (
                done["base_damage"].clone(),
                root["pages"][0]["backup"].clone(),
            )
        };
        let first = home.file_name().unwrap().to_str().unwrap();
        thread::sleep(Duration::from_millis(2100)); // what is younger than a base is looked at again
        again();
        assert_eq!(again().1, first, "unchanged pages are referred to");
        let manifest = home.join("manifest");
        let len = fs::metadata(&manifest).unwrap().len();
        match is_shorter {
            true => fs::File::options()
                .write(true)
                .open(&manifest)
                .unwrap()
                .set_len(len - 10)
                .unwrap(),
            false => spoil(&manifest, len / 2),
        }
        let (damage, page) = again();
        assert!(
            damage[0]
                .as_str()
                .is_some_and(|word| word.contains("manifest"))
                && page != first,
            "{damage} {page}"
        );
    }
}

#[test]
fn a_repair_that_leaves_something_to_do_says_so() {
    let dir = temp();
    let (repository, home) = ten(dir.path(), &["--frame-size", "64K"]);
    spoil(&home.join("root.json"), 20);
    spoil(&segments(&repository)[0], 200_000);
    let ran = fullbore(args!["repair", repository, "--data", "--yes"]).ends_with(4);
    assert!(
        ran.err.contains("run the same command again"),
        "{}",
        ran.err
    );
    fullbore(args!["repair", repository, "--data", "--yes"]).ends_with(0);
    fullbore(args!["repair", repository, "--data"]).ends_with(0);
    fullbore(args![
        "restore",
        repository,
        "--to",
        dir.path().join("to"),
        "-q"
    ])
    .ends_with(3);
}

#[test]
fn a_root_that_is_rebuilt_takes_no_page_from_others() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    (0..200).for_each(|i| write(tree.join(format!("a{i:04}")), format!("file {i}")));
    write(tree.join("m_big"), noise(1, 3_000_000));
    let pause = || std::thread::sleep(std::time::Duration::from_millis(3100));
    pause();
    let backup = |more: &[&str]| {
        let command = args![
            "backup",
            &tree,
            "--to",
            &repo,
            "--quiet",
            "--frame-size",
            "64K"
        ];
        fullbore(command.into_iter().chain(runs::args(more))).ends_with(0);
    };
    backup(&["--checkpoint-interval", "0"]);
    write(tree.join("a0100"), "changed");
    backup(&[]);
    pause();
    backup(&[]);
    let ids = runs::names(&repo.join("backups"));
    fs::remove_file(repo.join("backups").join(&ids[1]).join("root.json")).unwrap();
    fullbore(args!["repair", &repo, "--yes"]);
    for id in [&ids[0], &ids[2]] {
        fullbore(args![
            "verify",
            format!("{}@{id}", repo.display()),
            "--data"
        ])
        .ends_with(0);
    }
}

/// What a repair would do.
fn planned(repository: &Path) -> Vec<RepairStep> {
    let repair = Repair {
        storages: Storages::default(),
        repository: repository.into(),
        data: false,
        workers: NonZeroUsize::MIN,
    };
    repair.plan(&Meter::default()).unwrap()
}

#[test]
fn a_root_that_is_back_before_it_is_rebuilt_stays() {
    let dir = temp();
    let (_, home) = small(dir.path(), 1).remove(0);
    let (repository, root) = (dir.path().join("repo"), home.join("root.json"));
    let good = fs::read(&root).unwrap();
    fs::write(&root, &good[..good.len() - 20]).unwrap();
    let steps = planned(&repository);
    fs::write(&root, &good).unwrap();
    assert_eq!(repair::execute(&steps).unwrap(), [""; 0]);
    assert_eq!(fs::read(&root).unwrap(), good);
}

#[test]
fn the_root_of_another_backup_is_none_that_is_back() {
    let dir = temp();
    let all = small(dir.path(), 2);
    fs::copy(all[0].1.join("root.json"), all[1].1.join("root.json")).unwrap();
    let repository = dir.path().join("repo");
    fullbore(args!["verify", repository]).ends_with(4);
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
}

#[test]
fn a_root_that_became_another_since_is_not_written_over() {
    let dir = temp();
    let (repository, home) = ten(dir.path(), &[]);
    fs::remove_file(segments(&repository).remove(0)).unwrap();
    let steps = planned(&repository);
    let root = home.join("root.json");
    let before = fs::read(&root).unwrap();
    change_root(&home, |root| root.tool = "another".to_owned());
    let other = fs::read(&root).unwrap();
    let left = repair::execute(&steps).unwrap();
    assert!(
        left.len() == 1 && left[0].ends_with("its root has changed since the repair was planned"),
        "{left:?}"
    );
    assert_eq!(fs::read(&root).unwrap(), other);
    fs::write(&root, before).unwrap();
    assert_eq!(repair::execute(&steps).unwrap(), [""; 0]);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
}

#[test]
fn what_another_has_the_lock_of_is_left_for_the_next_repair() {
    let dir = temp();
    let (id, home) = small(dir.path(), 1).remove(0);
    let repository = dir.path().join("repo");
    fs::remove_file(home.join("root.json")).unwrap();
    let steps = planned(&repository);
    let claimed = LocalObjects::new(&repository)
        .lease(&intent_key(&id), b"", Take::DeadOrNew)
        .unwrap();
    assert!(matches!(claimed, Leased::Ours(_)));
    let left = repair::execute(&steps).unwrap();
    assert!(
        left.len() == 1 && left[0].contains("is being pruned or copied"),
        "{left:?}"
    );
    assert!(!home.join("root.json").exists());
    drop(claimed);
    assert_eq!(repair::execute(&steps).unwrap(), [""; 0]);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
}

#[test]
fn what_is_gone_before_it_is_repaired_ends_no_repair() {
    let dir = temp();
    let all = small(dir.path(), 2);
    let repository = dir.path().join("repo");
    all.iter()
        .for_each(|(_, home)| spoil(&home.join("manifest"), 20));
    let steps = planned(&repository);
    assert_eq!(steps.len(), 2);
    let gone = &all[0].1;
    fs::remove_dir_all(gone).unwrap();
    assert_eq!(repair::execute(&steps).unwrap(), [""; 0]);
    assert!(!gone.exists());
    fullbore(args![
        "verify",
        format!("{}@{}", repository.display(), all[1].0)
    ])
    .ends_with(0);
    // As a prune that was killed leaves it.
    fs::create_dir(gone).unwrap();
    assert_eq!(repair::execute(&steps).unwrap(), [""; 0]);
    assert_eq!(runs::names(gone), [""; 0]);
    assert_eq!(runs::names(&repository.join("intents")), [""; 0]);
}

#[test]
fn what_may_be_on_a_page_that_is_lost_keeps_nothing_else_from_coming_back() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    (0..8).for_each(|i| write(tree.join(format!("d/f{i}")), noise(i, 60_000)));
    std::thread::sleep(std::time::Duration::from_millis(3100));
    let more = [
        "--frame-size",
        "64K",
        "--checkpoint-interval",
        "0",
        "--quiet",
    ];
    fullbore(
        args!["backup", &tree, "--to", &repo]
            .into_iter()
            .chain(runs::args(more)),
    )
    .ends_with(0);
    let home = repo
        .join("backups")
        .join(runs::names(&repo.join("backups")).remove(0));
    let root: Value = serde_json::from_slice(&fs::read(home.join("root.json")).unwrap()).unwrap();
    let firsts: Vec<&str> = root["pages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["first"].as_str().unwrap())
        .collect();
    assert!(firsts.len() > 3, "{firsts:?}");
    // The page with the directory itself, and that before the one that begins with a file.
    spoil_page(&home, |page| page["first"] == firsts[0]);
    for (path, wanted) in [
        ("d", &firsts[1..]),
        (firsts[1], &firsts[1..2]),
        ("d/f0", &[]),
    ] {
        let target = dir.path().join(path.replace('/', "-"));
        fullbore(args!["restore", &repo, path, "--to", &target, "--quiet"]).ends_with(4);
        for how in ["--overwrite=all", "--delta"] {
            let ran = fullbore(args![
                "restore",
                &repo,
                path,
                "--to",
                &target,
                "--keep-going",
                how,
                "-q"
            ])
            .ends_with(4);
            assert!(ran.err.contains("it describes"), "{path}: {}", ran.err);
            let given = files(&target);
            assert!(
                wanted.iter().all(|name| given.contains_key(*name)),
                "{path} {wanted:?}: {:?}",
                given.keys()
            );
        }
    }
}

#[test]
fn a_page_that_says_too_little_of_a_file_costs_that_file_and_no_later_backup() {
    let dir = temp();
    let (repo, home) = ten(dir.path(), &[]);
    change_page(&home, |page| {
        let record = page
            .records
            .iter_mut()
            .find(|record| record.entry.path == b"f3")
            .unwrap();
        record.extents[0].len -= 1;
    });
    let first = home.file_name().unwrap().to_str().unwrap();
    let ran = fullbore(args!["verify", &repo]).ends_with(4);
    assert!(ran.out.contains("f3"), "{}", ran.out);
    // What is stored anew is whole.
    fullbore(args![
        "backup",
        dir.path().join("tree"),
        "--to",
        &repo,
        "--quiet"
    ])
    .ends_with(0);
    fullbore(args![
        "restore",
        &repo,
        "--to",
        dir.path().join("second"),
        "-q"
    ])
    .ends_with(0);
    assert_eq!(
        files(&dir.path().join("second")),
        files(&dir.path().join("tree"))
    );
    fullbore(args!["repair", &repo, "--yes"]).ends_with(0);
    fullbore(args!["verify", &repo, "--data"]).ends_with(0);
    fullbore(args!["repair", &repo]).ends_with(0);
    let back = dir.path().join("first");
    fullbore(args![
        "restore",
        format!("{}@{first}", repo.display()),
        "--to",
        &back,
        "-q"
    ])
    .ends_with(3);
    assert_eq!(files(&back).len(), 9);
}
