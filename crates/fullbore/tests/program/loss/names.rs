//! A file that stands in for a lost one gets none of its other names.

use super::*;

#[test]
fn no_name_is_given_to_what_was_not_restored() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    let content = noise(1, 20_000);
    write(tree.join("a"), &content);
    ["b", "c"]
        .iter()
        .for_each(|name| fs::hard_link(tree.join("a"), tree.join(name)).unwrap());
    fullbore(args!["backup", &tree, "--to", &repo, "--quiet"]).ends_with(0);
    let segment = segments(&repo).pop().unwrap();
    let mut stored = fs::read(&segment).unwrap();
    let index = stored
        .windows(300)
        .position(|bytes| *bytes == content[100..400])
        .unwrap();
    stored[index + 50] ^= 1;
    fs::write(&segment, stored).unwrap();
    for how in ["--overwrite=all", "--delta"] {
        for names in [&["b", "c"][..], &[]] {
            let target = temp();
            ["a", "b", "c"]
                .iter()
                .for_each(|name| write(target.path().join(name), format!("old {name}")));
            let command = args![
                "restore",
                &repo,
                "--to",
                target.path(),
                "--keep-going",
                "--quiet",
                how
            ];
            let ran = fullbore(command.into_iter().chain(runs::args(names))).ends_with(4);
            assert_eq!(
                fs::read(target.path().join("c")).unwrap(),
                b"old c",
                "{how} {names:?}: {}",
                ran.err
            );
            assert!(ran.err.contains("\"c\""), "{how} {names:?}: {}", ran.err);
        }
    }
}

/// Old content, that is to be neither restored nor given another name.
fn old_names(to: &Path) {
    let _ = fs::remove_dir_all(to);
    ["y", "z"]
        .iter()
        .for_each(|name| write(to.join("p").join(name), format!("old {name}")));
}

/// Is it as it was?
fn has_old_names(to: &Path) -> bool {
    ["y", "z"]
        .iter()
        .all(|name| fs::read(to.join("p").join(name)).unwrap() == format!("old {name}").as_bytes())
}

/// A tree with a file, other names of it in a directory, and files between.
fn linked(tree: &Path) {
    write(tree.join("a"), noise(1, 500_000));
    (0..9).for_each(|i| write(tree.join(format!("m{i}")), noise(i, 30_000)));
    write(tree.join("p/x"), "x");
    ["y", "z"]
        .iter()
        .for_each(|name| fs::hard_link(tree.join("a"), tree.join("p").join(name)).unwrap());
}

#[test]
fn no_name_is_given_to_what_stands_in_for_a_file_that_was_not_captured() {
    let dir = temp();
    let (tree, repo, target) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("to"),
    );
    linked(&tree);
    fullbore(args!["backup", &tree, "--to", &repo, "--quiet"]).ends_with(0);
    let home = repo
        .join("backups")
        .join(runs::names(&repo.join("backups")).remove(0));
    change_page(&home, |page| {
        let file = page
            .records
            .iter_mut()
            .find(|record| record.entry.path == b"a")
            .unwrap();
        file.entry.clear_content();
        let (entry, state) = (
            file.entry.clone(),
            EntryState::Unreadable("it was lost".to_owned()),
        );
        *file = Record {
            entry,
            state,
            ..Record::default()
        };
    });
    for how in ["--overwrite=all", "--delta"] {
        old_names(&target);
        let ran = fullbore(args!["restore", &repo, "p", "--to", &target, how]).ends_with(3);
        assert!(has_old_names(&target), "{how}: {}", ran.err);
        assert!(
            ran.err
                .contains("the file that it links to does not exist): 2 entries"),
            "{how}: {}",
            ran.err
        );
    }
    fs::remove_dir_all(&target).unwrap();
    let ran = fullbore(args!["restore", &repo, "p", "--to", &target]).ends_with(3);
    assert!(
        files(&target).len() == 1 && ran.err.contains("2 entries"),
        "{}",
        ran.err
    );
    let ran = fullbore(args![
        "restore",
        &repo,
        "p/y",
        "--to",
        dir.path().join("one")
    ])
    .ends_with(1);
    assert!(
        ran.err.contains("it was not captured: it was lost"),
        "{}",
        ran.err
    );
}

/// A backup of [`linked`] with many pages, and the directory it is in.
fn linked_pages(dir: &Path) -> (PathBuf, PathBuf) {
    let (tree, repo) = (dir.join("tree"), dir.join("repo"));
    write(tree.join("0"), "0");
    linked(&tree);
    std::thread::sleep(std::time::Duration::from_millis(3100));
    let more = ["--frame-size", "64K", "--checkpoint-interval", "0"];
    fullbore(
        args!["backup", &tree, "--to", &repo, "--quiet"]
            .into_iter()
            .chain(runs::args(more)),
    )
    .ends_with(0);
    let home = repo
        .join("backups")
        .join(runs::names(&repo.join("backups")).remove(0));
    (repo, home)
}

#[test]
fn no_name_is_given_to_what_stands_in_for_a_file_whose_page_is_lost() {
    let dir = temp();
    let (repo, home) = linked_pages(dir.path());
    let target = dir.path().join("to");
    spoil_page(&home, |page| page["first"] == "a");
    for how in ["--overwrite=all", "--delta"] {
        old_names(&target);
        let ran = fullbore(args![
            "restore",
            &repo,
            "p",
            "--to",
            &target,
            "--keep-going",
            "--quiet",
            how
        ])
        .ends_with(4);
        assert!(has_old_names(&target), "{how}: {}", ran.err);
        assert!(
            ["p/y", "p/z"].iter().all(|name| ran.err.contains(name)),
            "{how}: {}",
            ran.err
        );
    }
}

/// Of the names of a file that was cut off none is told to be there, and a restore of one is refused.
fn has_no_name_of_a(repo: &str, to: &Path) {
    let listed = fullbore(args!["list", repo, "--json"]).ends_with(0).json();
    for name in ["a", "p/y", "p/z"] {
        let entry = listed.iter().find(|entry| entry["path"] == name).unwrap();
        assert_eq!(entry["state"], "unreadable", "{entry}");
        let ran = fullbore(args!["restore", repo, name, "--to", to.join("none")]).ends_with(1);
        assert!(ran.err.contains("it was not captured"), "{}", ran.err);
    }
    for how in ["--overwrite=all", "--delta"] {
        old_names(to);
        write(to.join("a"), "old a");
        let ran = fullbore(args!["restore", repo, "--to", to, "--quiet", how]).ends_with(3);
        assert!(
            has_old_names(to) && fs::read(to.join("a")).unwrap() == b"old a",
            "{how}: {}",
            ran.err
        );
    }
}

#[test]
fn a_repair_gives_up_the_names_of_a_file_that_was_lost_with_a_page() {
    let dir = temp();
    let (repo, home) = linked_pages(dir.path());
    // One in the midst of those that go on with it, and what of the tar would tell the same.
    let seen = std::cell::Cell::new(0);
    let (segment, offset) = spoil_page(&home, |page| {
        page["first"] == "a" && seen.replace(seen.get() + 1) == 2
    });
    let segment = fs::File::options().write(true).open(segment).unwrap();
    segment.write_all_at(&[0; 60_000], offset - 64_000).unwrap();
    fullbore(args!["repair", &repo, "--yes"]).ends_with(0);
    has_no_name_of_a(
        &format!("{}@latest", repo.display()),
        &dir.path().join("to"),
    );
    fullbore(args!["verify", &repo]).ends_with(0);
}

/// Cuts the page of lists off the manifest of a backup.
fn lose_lists(home: &Path) {
    let root: Value = serde_json::from_slice(&fs::read(home.join("root.json")).unwrap()).unwrap();
    let manifest = fs::File::options().write(true).open(home.join("manifest"));
    let end = root["lists_at"]["offset"].as_u64().unwrap();
    manifest.unwrap().set_len(end).unwrap();
}

#[test]
fn a_repair_gives_up_the_names_of_a_file_that_was_lost_with_the_root() {
    let dir = temp();
    let (repo, _) = linked_pages(dir.path());
    let tree = dir.path().join("tree");
    write(tree.join("0"), "1");
    write(tree.join("p/x"), "xx");
    fullbore(args![
        "backup",
        &tree,
        "--to",
        &repo,
        "--quiet",
        "--frame-size",
        "64K"
    ])
    .ends_with(0);
    let id = runs::names(&repo.join("backups")).pop().unwrap();
    let home = repo.join("backups").join(&id);
    lose_lists(&home);
    fs::remove_file(home.join("root.json")).unwrap();
    fullbore(args!["repair", &repo, "--yes"]).ends_with(0);
    has_no_name_of_a(&format!("{}@{id}", repo.display()), &dir.path().join("to"));
    fullbore(args!["repair", &repo]).ends_with(0);
}
