//! Files that a restore removes from the target, and files that it never removes.

use super::*;

#[test]
fn what_cannot_be_removed_is_named_and_all_else_is_done() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let place = Place::new("zstd:1");
    let target = place.at("to");
    for name in ["extra 1", "extra 2"] {
        write(target.join(name), name);
    }
    overwrite_at(&target.join("big/odd"), 5000, b"other");
    let args = || {
        args![
            "restore",
            place.at("repo"),
            "--to",
            target,
            "--delta",
            "--delete",
            "--quiet"
        ]
    };
    let ran = tampered("unlinkat:error=EPERM", Some(Path::new("extra 1")), args()).ends_with(1);
    assert!(
        ran.err.contains("could not remove ") && ran.err.contains("extra 1\""),
        "{}",
        ran.err
    );
    let ran = ran.has_one_error("it is skipped; the rest of the backup is restored");
    assert!(
        target.join("extra 1").exists() && !target.join("extra 2").exists(),
        "{}",
        ran.err
    );
    fs::remove_file(target.join("extra 1")).unwrap();
    assert!(
        fs::read(target.join("big/odd")).unwrap()
            == fs::read(place.at("tree").join("big/odd")).unwrap()
    );
    write(target.join("extra 1"), "");
    let ran = tampered("unlinkat:error=EIO", Some(Path::new("extra 1")), args()).ends_with(1);
    assert!(!ran.err.contains("trailing data"), "{}", ran.err);
    fullbore(args()).ends_with(0);
    place.assert_restored("at last");
}

#[test]
fn what_is_deep_is_removed_with_few_descriptors_and_little_stack() {
    let place = Place::new("zstd:1");
    let mut dir: std::os::fd::OwnedFd = fs::File::open(place.at("to")).unwrap().into();
    for _ in 0..5_000 {
        mkdirat(&dir, "d", Mode::RWXU).unwrap();
        openat(&dir, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        dir = openat(&dir, "d", OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let line = "ulimit -n 150; ulimit -s 1024; \"$1\" restore \"$2\" --to \"$3\" --delta --delete --max-delete 10000 --quiet --workers 1";
    shell(line, args![FULLBORE, place.at("repo"), place.at("to")]).ends_with(0);
    place.assert_restored("deep");
}

#[test]
fn without_delete_nothing_is_removed() {
    let place = Place::new("zstd:1");
    write(place.at("to/big/mine"), b"stays");
    let changes = place.delta(&[]);
    assert_eq!(
        (
            &changes["removed"],
            fs::read(place.at("to/big/mine")).unwrap()
        ),
        (&0.into(), b"stays".to_vec())
    );
}

#[test]
fn of_selected_paths_only_what_is_below_them_is_touched() {
    let place = Place::new("zstd:1");
    overwrite_at(&place.at("to/big/exact"), 3, b"changed");
    write(place.at("to/big/extra"), b"goes");
    write(place.at("to/extra"), b"stays");
    let other = files(&place.at("tree"))
        .into_iter()
        .find(|path| place.at("to").join(path).metadata().unwrap().len() > 9);
    let other = place.at("to").join(other.unwrap());
    overwrite_at(&other, 0, b"!changed!");
    let changes = place.delta(&["--delete", "big"]);
    assert_eq!(changes["removed"], 1);
    assert!(!place.at("to/big/extra").exists() && place.at("to/extra").exists());
    assert!(fs::read(&other).unwrap().starts_with(b"!changed!"));
    assert_eq!(
        fs::read(place.at("to/big/exact")).unwrap(),
        fs::read(place.at("tree/big/exact")).unwrap()
    );
}

/// Restore over `to` and remove what does not belong.
fn replace(from: &Path, to: &Path) -> Ran {
    fullbore(args!["restore", from, "--to", to, "--delta", "--delete"])
}

/// As [`replace`], also if most of it does not belong.
fn replace_all(from: &Path, to: &Path) -> Ran {
    let all = args!["--delta", "--delete", "--max-delete", "100"];
    fullbore(args!["restore", from, "--to", to].into_iter().chain(all))
}

#[test]
fn a_name_that_belongs_further_down_does_not_belong_further_up() {
    let dir = temp();
    let (tree, repo, target) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("to"),
    );
    ["keep", "new/x", "new/deep/y", "new/deep/z"]
        .iter()
        .for_each(|name| write(tree.join(name), "x"));
    fullbore(args!["backup", tree, "--to", repo, "-q"]).ends_with(0);
    // The directory is not there yet, and then a link to another one.
    for link in [false, true] {
        let _ = fs::remove_dir_all(&target);
        ["x", "y", "deep/f", "z"]
            .iter()
            .for_each(|name| write(target.join(name), "does not belong"));
        if link {
            symlink("deep", target.join("new")).unwrap();
        }
        let ran = replace_all(&repo, &target).ends_with(0);
        assert_eq!(
            ran.out,
            "delete: \"deep\"\ndelete: \"x\"\ndelete: \"y\"\ndelete: \"z\"\n"
        );
        fullbore(args!["verify", repo, "--against", target]).ends_with(0);
    }
}

#[test]
fn what_is_restored_from_is_never_removed() {
    for name in ["mine/deep/repo", "repo", "b.tar.zst", "mine/b.tar.lz4"] {
        let dir = temp();
        let (tree, source) = (dir.path().join("t"), dir.path().join("t").join(name));
        write(tree.join("docs/f"), "before");
        fs::create_dir_all(source.parent().unwrap()).unwrap();
        fullbore(args!["backup", tree, "--to", source, "-q"]).ends_with(0);
        write(tree.join("docs/f"), "oops");
        let expected = match name.starts_with("mine") {
            true => {
                write(tree.join("mine/other/f"), "does not belong");
                "delete: \"mine/other\"\n"
            }
            false => "",
        };
        let ran = replace(&source, &tree).ends_with(0);
        assert_eq!(ran.out, expected);
        assert!(
            ran.err.contains("kept") && ran.err.contains(name),
            "{}",
            ran.err
        );
        assert_eq!(fs::read(tree.join("docs/f")).unwrap(), b"before");
        fullbore(args!["verify", source, "--data"]).ends_with(0);
        // In a directory that does not belong itself.
        let moved = tree.join("new/deep/moved.tar");
        fs::create_dir_all(tree.join("new/deep")).unwrap();
        fs::rename(&source, &moved).unwrap();
        let ran = replace(&moved, &tree).ends_with(0);
        assert!(
            ran.err.contains("new/deep/moved.tar\" is kept"),
            "{}",
            ran.err
        );
        fullbore(args!["verify", moved, "--data"]).ends_with(0);
    }
}

#[test]
fn a_directory_that_is_restored_from_does_not_make_way_for_a_file() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("t"), dir.path().join("r"));
    write(tree.join("docs/f"), "x");
    write(tree.join("way"), "a file");
    fullbore(args!["backup", tree, "--to", repo, "-q"]).ends_with(0);
    fs::remove_file(tree.join("way")).unwrap();
    write(tree.join("way/mine"), "x");
    fs::rename(&repo, tree.join("way/repo")).unwrap();
    replace(&tree.join("way/repo"), &tree)
        .ends_with(1)
        .has_one_error("way");
    assert!(tree.join("way/mine").exists());
    fullbore(args!["verify", tree.join("way/repo"), "--data"]).ends_with(0);
}

#[test]
fn what_is_mounted_and_not_in_the_backup_stays() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("t"), dir.path().join("r"));
    write(tree.join("f"), "x");
    let Some(_mount) = Mount::tmpfs(&tree.join("data"), "4m") else {
        return;
    };
    write(tree.join("data/db/rows"), "precious");
    fullbore(args![
        "backup",
        tree,
        "--to",
        repo,
        "--one-file-system",
        "-q"
    ])
    .ends_with(0);
    let Some(_other) = Mount::tmpfs(&tree.join("extra/deep"), "4m") else {
        return;
    };
    write(tree.join("extra/deep/f"), "precious");
    write(tree.join("extra/f"), "does not belong");
    write(dir.path().join("bound/f"), "precious");
    fs::create_dir(tree.join("same device")).unwrap();
    shell(
        "mount --bind \"$1\" \"$2\"",
        args![dir.path().join("bound"), tree.join("same device")],
    )
    .ends_with(0);
    let ran = replace(&repo, &tree);
    shell("umount -l \"$1\"", args![tree.join("same device")]).ends_with(0);
    let ran = ran.ends_with(0);
    assert_eq!(ran.out, "delete: \"extra/f\"\n");
    for kept in ["\"data\"", "\"extra/deep\"", "\"same device\""] {
        assert!(ran.err.contains(&format!("{kept} is kept")), "{}", ran.err);
    }
    for path in ["t/data/db/rows", "t/extra/deep/f", "bound/f"] {
        assert_eq!(
            fs::read(dir.path().join(path)).unwrap(),
            b"precious",
            "{path}"
        );
    }
}

#[test]
fn of_what_is_mounted_and_in_the_backup_the_rest_is_removed() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("t"), dir.path().join("r"));
    let Some(_mount) = Mount::tmpfs(&tree.join("data"), "4m") else {
        return;
    };
    write(tree.join("data/f"), "x");
    fullbore(args!["backup", tree, "--to", repo, "-q"]).ends_with(0);
    write(tree.join("data/more/f"), "does not belong");
    assert_eq!(
        replace(&repo, &tree).ends_with(0).out,
        "delete: \"data/more\"\n"
    );
}

#[test]
fn what_was_excluded_stays_unless_that_is_said() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("t"), dir.path().join("r"));
    ["f", "cache/f"]
        .iter()
        .for_each(|name| write(tree.join(name), "x"));
    fullbore(args![
        "backup",
        tree,
        "--to",
        repo,
        "--exclude",
        "/cache",
        "-q"
    ])
    .ends_with(0);
    assert_eq!(replace(&repo, &tree).ends_with(0).out, "");
    let all = args!["--mirror", "--delete-excluded", "--max-delete", "2"];
    let ran = fullbore(args!["restore", repo, "--to", tree].into_iter().chain(all));
    assert_eq!(ran.ends_with(0).out, "delete: \"cache\"\n");
}

#[test]
fn what_stands_beside_the_way_to_a_path_is_nobody_s_to_remove() {
    let dir = temp();
    let (home, repo, target) = (
        dir.path().join("home"),
        dir.path().join("r"),
        dir.path().join("to"),
    );
    ["alice/f", "bob/f", "carol/f"]
        .iter()
        .for_each(|name| write(home.join(name), "x"));
    let (alice, carol) = (home.join("alice"), home.join("carol"));
    fullbore(args![
        "backup",
        &alice,
        &carol,
        "--full-paths",
        "--to",
        &repo,
        "-q"
    ])
    .ends_with(0);
    let there = target.join(home.strip_prefix("/").unwrap());
    ["alice/f", "alice/new", "bob/f", "carol/f"]
        .iter()
        .for_each(|name| write(there.join(name), "x"));
    fullbore(args![
        "restore",
        &repo,
        "--to",
        &target,
        "--overwrite=all",
        "-q"
    ])
    .ends_with(0);
    let extra = home.strip_prefix("/").unwrap().join("alice/new");
    let extra = extra.display();
    let ran = fullbore(args!["verify", &repo, "--against", &target]).ends_with(1);
    assert!(
        ran.out.contains(&format!("{extra}: extra")) && !ran.out.contains("bob"),
        "{}",
        ran.out
    );
    assert_eq!(
        replace(&repo, &target).ends_with(0).out,
        format!("delete: \"{extra}\"\n")
    );
    assert!(there.join("bob/f").exists() && !there.join("alice/new").exists());
    fullbore(args!["verify", &repo, "--against", &target]).ends_with(0);
}

#[test]
fn to_remove_what_does_not_belong_is_asked_for_with_delta_only() {
    let place = Place::new("none");
    for option in ["--overwrite=all", "--plan"] {
        let ran = fullbore(args![
            "restore",
            place.at("repo"),
            "--to",
            place.at("to"),
            option,
            "--delete"
        ])
        .ends_with(2);
        assert!(ran.err.contains("--delete"), "{}", ran.err);
    }
}

#[test]
fn nothing_is_restored_into_the_repository_that_is_read() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("t"), dir.path().join("r"));
    write(tree.join("f"), "x");
    fullbore(args!["backup", tree, "--to", repo, "-q"]).ends_with(0);
    let before = runs::names(&repo);
    for more in [
        &[][..],
        &["--overwrite=all"],
        &["--delta"],
        &["--delta", "--delete"],
    ] {
        for target in [repo.join("inside"), repo.join("a/b"), repo.clone()] {
            let args = args!["restore", repo, "--to", target]
                .into_iter()
                .chain(more.iter().map(OsString::from));
            fullbore(args).ends_with(2).has_one_error("which is read");
        }
    }
    assert_eq!(runs::names(&repo), before);
}

#[test]
fn a_plan_says_what_would_be_removed_and_removes_nothing() {
    let dir = temp();
    let (tree, repository, target) = (
        dir.path().join("tree"),
        dir.path().join("repository"),
        dir.path().join("to"),
    );
    write(tree.join("a"), "1");
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    write(target.join("mine"), "2");
    let plan = args![
        "restore", repository, "--to", target, "--plan", "--delta", "--delete"
    ];
    let said = fullbore(plan.clone()).ends_with(0).out;
    assert!(said.starts_with("delete: \"mine\"\nbackup "), "{said}");
    let lines = fullbore(plan.into_iter().chain(args!["--json"]))
        .ends_with(0)
        .json();
    assert_eq!(
        (&lines[0]["path"], &lines[1]["files"]),
        (&"mine".into(), &1.into())
    );
    assert_eq!(names(&target), ["mine"]);
}
