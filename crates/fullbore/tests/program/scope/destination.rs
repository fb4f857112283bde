//! The destination, and file systems, below what is backed up.

use super::*;

#[test]
fn an_archive_that_is_named_by_a_link_is_what_that_leads_to() {
    let dir = temp();
    let tree = dir.path().join("t");
    files(&tree, &["a"]);
    fs::create_dir(dir.path().join("vault")).unwrap();
    for ending in ["tar.lz4", "tar.zst"] {
        let (link, archive) = (
            dir.path().join(format!("l.{ending}")),
            dir.path().join(format!("vault/x.{ending}")),
        );
        fullbore(args!["backup", tree, "--to", archive, "--quiet"]).ends_with(0);
        std::os::unix::fs::symlink(format!("vault/x.{ending}"), &link).unwrap();
        let id = |path: &Path| {
            fullbore(args!["show", path, "--json"]).ends_with(0).json()[0]["id"].clone()
        };
        let old = id(&link);
        assert_eq!(id(&archive), old);
        fullbore(args!["backup", tree, "--to", link, "--quiet"]).ends_with(0);
        assert!(link.is_symlink() && id(&link) != old && id(&archive) == id(&link));
        fullbore(args!["verify", link, "--data", "--against", tree]).ends_with(0);
    }
    let lost = dir.path().join("lost.tar.zst");
    for lost in [lost, dir.path().join("lost")] {
        std::os::unix::fs::symlink("/not/mounted", &lost).unwrap();
        let words = "it is a link to \"/not/mounted\", which ";
        fullbore(args!["backup", tree, "--to", lost])
            .ends_with(1)
            .has_one_error(words);
        fullbore(args!["restore", dir.path().join("l.tar.lz4"), "--to", lost])
            .ends_with(1)
            .has_one_error(words);
    }
}

#[test]
fn a_part_of_a_repository_is_no_backup_and_no_damage() {
    let dir = temp();
    files(dir.path(), &["t/a"]);
    let repository = dir.path().join("r");
    fullbore(args![
        "backup",
        dir.path().join("t"),
        "--to",
        repository,
        "--quiet"
    ])
    .ends_with(0);
    let segment = runs::segments(&repository).remove(0);
    for command in [
        &args!["restore", segment, "--to", dir.path().join("b")][..],
        &args!["list", segment],
    ] {
        let ran = fullbore(command.iter().cloned())
            .ends_with(2)
            .has_one_error("it is part of a repository");
        assert!(
            ran.err
                .contains(&format!("name the repository, {repository:?}")),
            "{}",
            ran.err
        );
    }
    // Somewhere else it is what it is: a tar without its manifest.
    fs::copy(&segment, dir.path().join("x.tar.zst")).unwrap();
    fullbore(args!["list", dir.path().join("x.tar.zst")]).ends_with(4);
}

#[test]
fn two_file_systems_are_two_streams_of_one_backup() {
    let dir = temp();
    let tree = dir.path().join("t");
    sample(&tree);
    files(&tree, &["a/z", "n/below the other", "z/last"]);
    let Some(_mount) = Mount::tmpfs(&tree.join("m"), "64m") else {
        return;
    };
    files(&tree, &["m/one", "m/sub/two"]);
    runs::write(tree.join("m/large"), runs::noise(1, 3_000_000));
    let Some(_inner) = Mount::tmpfs(&tree.join("m/sub/inner"), "8m") else {
        return;
    };
    files(&tree, &["m/sub/inner/three"]);
    let (target, back) = (dir.path().join("r"), dir.path().join("b"));
    fullbore(args!["backup", tree, "--to", target, "--quiet"]).ends_with(0);
    let names = runs::names(&only(&target.join("backups")));
    assert_eq!(
        names
            .iter()
            .filter(|name| name.starts_with("s0"))
            .map(|name| &name[..3])
            .collect::<Vec<_>>(),
        ["s01", "s02", "s03"]
    );
    let before = shape(&tree);
    fullbore(args!["restore", target, "--to", back, "--quiet"]).ends_with(0);
    assert_same(&before, &shape(&back), "three streams");
    fullbore(args!["verify", target, "--data", "--against", tree]).ends_with(0);
    let stock = dir.path().join("stock");
    let line = "mkdir \"$2\" && zstd -dcq \"$1\"/s0*.tar.zst | tar -xi -p -C \"$2\"";
    shell(line, args![only(&target.join("backups")), stock]).ends_with(0);
    assert_same(&before, &shape(&stock), "three streams by zstd and tar");
    let (file, one) = (dir.path().join("x.tar.zst"), dir.path().join("one"));
    fullbore(args!["backup", tree, "--to", file, "--quiet"]).ends_with(0);
    fullbore(args!["restore", file, "--to", one, "--quiet"]).ends_with(0);
    assert_same(&before, &shape(&one), "one stream");
    let small = dir.path().join("small");
    fullbore(args![
        "restore",
        target,
        "--to",
        small,
        "m/sub/inner/three",
        "z/last",
        "--quiet"
    ])
    .ends_with(0);
    assert_eq!(
        fs::read(small.join("m/sub/inner/three")).unwrap(),
        b"m/sub/inner/three"
    );
    let only_this = stored(&tree, args!["-x"]);
    assert!(only_this.contains(&"m".to_owned()) && only_this.contains(&"z/last".to_owned()));
    assert!(
        !only_this.iter().any(|path| path.starts_with("m/")),
        "{only_this:?}"
    );
}

#[test]
fn what_the_backup_is_written_to_is_not_part_of_it() {
    let dir = temp();
    let tree = dir.path();
    fs::create_dir(tree.join("a")).unwrap();
    files(tree, &["a/file", "z"]);
    let repository = tree.join("a/backups of this");
    for _ in 0..2 {
        fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
        assert_eq!(
            listed(&repository),
            [".", "a", "a/backups of this", "a/file", "z"]
        );
    }
    // Another repository is as good as any other data.
    let stored = stored(tree, []);
    assert!(
        stored.iter().any(|path| path.ends_with("root.json")),
        "{stored:?}"
    );
    fs::remove_dir_all(&repository).unwrap();
    for (name, times) in [("x.tar", 1), ("x.tar.gz", 1), ("x.tar.zst", 2)] {
        let archive = tree.join(name);
        for _ in 0..times {
            fullbore(args!["backup", tree, "--to", archive, "--quiet"]).ends_with(0);
            assert_eq!(listed(&archive), [".", "a", "a/file", "z"]);
        }
        fs::remove_file(&archive).unwrap();
    }
    let to_stdout = "cd \"$2\" && exec \"$1\" backup . --to - --quiet > stream.tar.zst";
    shell(to_stdout, args![runs::FULLBORE, tree]).ends_with(0);
    let stream = tree.join("stream.tar.zst");
    assert_eq!(listed(&stream), [".", "a", "a/file", "z"]);
    fs::remove_file(stream).unwrap();
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    let refused = fullbore(args!["backup", repository, "--to", repository, "--quiet"]);
    assert_ne!(refused.code, 0);
    assert!(
        refused.err.contains("is the destination of the backup"),
        "{}",
        refused.err
    );
}

#[test]
fn what_the_backup_is_written_to_is_not_part_of_it_though_a_list_names_it() {
    let dir = temp();
    let tree = dir.path().join("t");
    files(&tree, &["a/file", "z"]);
    let repository = tree.join("a/r");
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    let by_list = |target: &Path, find: &str| {
        let line = format!(
            "cd \"$2\" && {find} -print0 | \"$1\" backup . --files-from - --null --to \"$3\" --quiet"
        );
        shell(&line, args![FULLBORE, tree, target]).ends_with(0);
        listed(target)
    };
    assert_eq!(
        by_list(&repository, "find ."),
        [".", "a", "a/file", "a/r", "z"]
    );
    assert_eq!(by_list(&repository, "find a/r/* z"), [".", "z"]);
    let list = dir.path().join("list");
    fs::write(&list, "backups\n").unwrap();
    let refused = fullbore(args![
        "backup",
        repository,
        "--files-from",
        list,
        "--to",
        repository,
        "--quiet"
    ]);
    assert!(
        refused
            .ends_with(2)
            .err
            .contains("is the destination of the backup")
    );
    fs::remove_dir_all(&repository).unwrap();
    for _ in 0..2 {
        assert_eq!(
            by_list(&tree.join("x.tar.zst"), "find ."),
            [".", "a", "a/file", "z"]
        );
    }
}

#[test]
fn pseudo_file_systems_are_not_entered() {
    let dir = temp();
    let path = dir.path().join("t/proc");
    fs::create_dir_all(&path).unwrap();
    let mounted = is_root() && runs::shell("mount -t proc proc \"$1\"", args![path]).code == 0;
    if or_skip(mounted, "no proc can be mounted here") {
        let listed = stored(&dir.path().join("t"), []);
        runs::shell("umount -l \"$1\"", args![path]).ends_with(0);
        assert_eq!(listed, [".", "proc"]);
    }
}

#[test]
fn a_tree_that_cannot_be_looked_at_for_a_moment_is_no_file() {
    if !or_skip(has("strace"), "no strace") {
        return;
    }
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    runs::write(tree.join("d/file"), "content");
    let line = "ulimit -v 8000000; timeout 30 strace -f -qq -o /dev/null -e inject=statx:error=$1:when=$2 -P \"$3\" \"$4\" backup \"$3\" --to \"$5\" -q";
    for error in ["EIO", "ENOENT", "ESTALE"] {
        for when in 1..6 {
            let _ = fs::remove_dir_all(&repository);
            let ran = shell(
                line,
                args![error, when.to_string(), tree, FULLBORE, repository],
            );
            assert!(
                [0, 1, 3].contains(&ran.code),
                "{error} {when}: {} {}",
                ran.code,
                ran.err
            );
            if ran.code == 0 {
                // What is in the tree may go; that is said.
                let said = fullbore(args!["show", repository])
                    .out
                    .contains("d: vanished before it was read");
                assert!(
                    said || listed(&repository).contains(&"d/file".to_owned()),
                    "{error} {when}"
                );
            }
        }
    }
}

#[test]
fn a_path_in_the_repository_that_the_backup_goes_to_is_refused() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("t"), dir.path().join("t/r"));
    files(&tree, &["f"]);
    fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    let before = runs::names(&repository.join("backups"));
    let home = repository.join("backups").join(&before[0]);
    for path in [
        repository.join("backups"),
        repository.join("intents"),
        home.join("manifest"),
        home,
    ] {
        for args in [
            &args![path][..],
            &args![tree, path],
            &args![tree, path, "--full-paths"],
            &args![path, "--dry-run"],
        ] {
            let words = args!["backup", "--to", repository].into_iter();
            let said = fullbore(words.chain(args.iter().cloned()))
                .ends_with(2)
                .has_one_error("inside the destination repository");
            assert!(said.err.contains(path.to_str().unwrap()), "{}", said.err);
        }
    }
    let line = "cd \"$2\" && \"$1\" backup r --to r";
    shell(line, args![FULLBORE, tree])
        .ends_with(2)
        .has_one_error("cannot back up \"r\": it is the destination of the backup");
    assert_eq!(runs::names(&repository.join("backups")), before);
    // What is mounted elsewhere is still its own.
    let elsewhere = tree.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let bind = "mount --bind \"$1\" \"$2\"";
    if or_skip(
        shell(bind, args![repository.join("backups"), elsewhere]).code == 0,
        "nothing can be mounted here",
    ) {
        let _mount = runs::Mount::at(&elsewhere);
        fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
        assert_eq!(listed(&repository), [".", "elsewhere", "f", "r"]);
    }
}
