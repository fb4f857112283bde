//! Who may read what is stored.

use crate::runs;
use crate::runs::{Ran, fullbore, shell, temp, text, write};
use std::{ffi::OsString, fs, os::unix::fs::MetadataExt, path::Path};

/// A run with a umask.
fn masked(umask: &str, args: impl IntoIterator<Item = OsString>) -> Ran {
    let line = "umask $1; shift; exec \"$@\"";
    shell(line, args![umask, runs::FULLBORE].into_iter().chain(args))
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Everything in a repository has these modes.
#[track_caller]
fn assert_modes(repository: &Path, file: u32, dir: u32) {
    let mut stack = vec![repository.to_owned()];
    while let Some(path) = stack.pop() {
        let wanted = if path.is_dir() { dir } else { file };
        assert_eq!(
            format!("{:o}", mode(&path)),
            format!("{wanted:o}"),
            "{path:?}"
        );
        if path.is_dir() {
            stack.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
}

/// Everything that makes files in a repository.
fn use_it(umask: &str, dir: &Path, repository: &Path, codec: &str) {
    let tree = dir.join("tree");
    for seed in [1, 2] {
        write(tree.join("a"), text(seed, 30_000));
        write(tree.join("b"), text(7, 30_000));
        masked(
            umask,
            args!["backup", tree, "--to", repository, "--compress", codec],
        )
        .ends_with(0);
    }
    masked(umask, args!["tag", repository, "a=b"]).ends_with(0);
    masked(umask, args!["verify", repository, "--sample", "100"]).ends_with(0);
}

#[test]
fn what_is_stored_is_its_owners_alone() {
    let dir = temp();
    for (umask, codec) in [("000", "zstd"), ("022", "lz4"), ("077", "none")] {
        let (repository, other) = (
            dir.path().join(codec).join("repository"),
            dir.path().join(format!("{codec} too")),
        );
        fs::create_dir(dir.path().join(codec)).unwrap();
        use_it(umask, dir.path(), &repository, codec);
        masked(umask, args!["copy", repository, other]).ends_with(0);
        assert_modes(&repository, 0o600, 0o700);
        assert_modes(&other, 0o600, 0o700);
        let backup = fs::read_dir(repository.join("backups"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .min()
            .unwrap();
        write(backup.join("manifest"), "damaged");
        masked(umask, args!["repair", repository, "--yes"]).ends_with(0);
        assert_modes(&repository, 0o600, 0o700);
    }
    let there = dir.path().join("there");
    fs::create_dir(&there).unwrap();
    runs::set_mode(&there, 0o751);
    masked(
        "022",
        args!["backup", dir.path().join("tree"), "--to", there],
    )
    .ends_with(0);
    assert_eq!((mode(&there), mode(&there.join("backups"))), (0o751, 0o700));
}

#[test]
fn a_repository_that_was_opened_to_a_group_stays_open() {
    let dir = temp();
    for (open, file, inner) in [
        ("g+rX", 0o640, 0o750),
        ("go+rX", 0o644, 0o755),
        ("g+rX,g+s", 0o640, 0o2750),
    ] {
        let (repository, other) = (
            dir.path().join(open),
            dir.path().join(format!("{open} too")),
        );
        for repository in [&repository, &other] {
            masked("022", args!["init", repository]).ends_with(0);
            shell(
                "chmod -R \"$1\" \"$2\"; find \"$2\" -type f -exec chmod g-s {} +",
                args![open, repository],
            )
            .ends_with(0);
        }
        use_it("077", dir.path(), &repository, "lz4");
        assert_modes(&repository, file, inner);
        masked("077", args!["copy", repository, other]).ends_with(0);
        assert_modes(&other, file, inner);
    }
}

#[test]
fn an_archive_is_its_owners_alone_unless_the_one_it_replaces_was_not() {
    let dir = temp();
    write(dir.path().join("tree/a"), text(1, 3000));
    for name in ["x.tar.zst", "x.tar.lz4"] {
        let archive = dir.path().join("out").join(name);
        fs::create_dir_all(dir.path().join("out")).unwrap();
        for (wanted, next) in [(0o600, 0o640), (0o640, 0o444), (0o444, 0o600)] {
            masked(
                "022",
                args!["backup", dir.path().join("tree"), "--to", archive],
            )
            .ends_with(0);
            assert_eq!(mode(&archive), wanted, "{archive:?}");
            runs::set_mode(&archive, next);
        }
        fs::remove_dir_all(dir.path().join("out")).unwrap();
    }
    let repository = dir.path().join("repository");
    fullbore(args!["backup", dir.path().join("tree"), "--to", repository]).ends_with(0);
    let archive = dir.path().join("y.tar");
    masked("000", args!["export", repository, "--to", archive]).ends_with(0);
    assert_eq!(mode(&archive), 0o600);
}

#[test]
fn what_root_adds_to_the_repository_of_a_user_is_that_users() {
    if !runs::or_skip(
        runs::is_root() && runs::has("setpriv"),
        "not root, or no setpriv",
    ) {
        return;
    }
    let dir = temp();
    runs::set_mode(dir.path(), 0o777);
    let (repository, user) = (
        dir.path().join("repository"),
        "setpriv --reuid=65534 --regid=65534 --clear-groups",
    );
    let tree = dir.path().join("tree");
    write(tree.join("a"), text(1, 30_000));
    let as_user = |args: Vec<OsString>| {
        shell(
            &format!("exec {user} \"$@\""),
            args![runs::FULLBORE].into_iter().chain(args),
        )
    };
    as_user(args!["backup", tree, "--to", repository].into()).ends_with(0);
    use_it("022", dir.path(), &repository, "zstd");
    use_it("022", dir.path(), &repository, "lz4");
    let newest = fullbore(args!["list", repository, "--json"])
        .ends_with(0)
        .json()
        .pop()
        .unwrap()["id"]
        .to_string();
    fullbore(args![
        "forget",
        "--yes",
        repository,
        newest.trim_matches('"')
    ])
    .ends_with(0);
    let mut stack = vec![repository.clone()];
    while let Some(path) = stack.pop() {
        let facts = fs::symlink_metadata(&path).unwrap();
        assert_eq!((facts.uid(), facts.gid()), (65534, 65534), "{path:?}");
        if path.is_dir() {
            stack.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    as_user(args!["list", repository].into()).ends_with(0);
    as_user(args!["prune", repository].into()).ends_with(0);
    as_user(args!["backup", tree, "--to", repository].into()).ends_with(0);
}

/// A link in a repository that root uses too leads root nowhere that its owner may not go.
#[test]
fn a_link_of_another_user_leads_nobody_into_the_backups_of_a_third() {
    if !runs::or_skip(runs::is_root(), "not root") {
        return;
    }
    let dir = temp();
    let [tree, theirs, ours] = ["tree", "theirs", "ours"].map(|name| dir.path().join(name));
    write(tree.join("a"), text(1, 1000));
    [&theirs, &ours]
        .into_iter()
        .for_each(|target| _ = fullbore(args!["backup", tree, "--to", target]).ends_with(0));
    fs::remove_dir_all(theirs.join("backups")).unwrap();
    std::os::unix::fs::symlink(ours.join("backups"), theirs.join("backups")).unwrap();
    fullbore(args!["list", theirs]).ends_with(0);
    std::os::unix::fs::lchown(theirs.join("backups"), Some(12_345), Some(12_345)).unwrap();
    for args in [
        &args!["backup", tree, "--to", theirs][..],
        &args!["forget", theirs, "--keep-last", "1", "--group-by", "none"],
        &args!["prune", theirs],
        &args!["repair", theirs, "--yes"],
    ] {
        fullbore(args.iter().cloned())
            .ends_with(1)
            .has_one_error("it is a link of user 12345 into a directory of user 0");
    }
    fullbore(args!["verify", ours, "--data"]).ends_with(0);
}
