//! That a restore says it is done only when it is durable, on file systems that do not tell it at once.

use crate::runs;
use crate::runs::{Mount, fullbore, has, or_skip, shell, tampered, temp};
use std::{fs, path::Path};

/// A backup of some files, one of them large, and a directory for the target.
fn backup(dir: &Path) -> std::path::PathBuf {
    let (tree, repo) = (dir.join("tree"), dir.join("repo"));
    for i in 0..20 {
        runs::write(tree.join(format!("d{}/f{i}", i % 3)), "content");
    }
    fs::write(tree.join("large"), vec![7; 3 << 20]).unwrap();
    fullbore(args!["backup", tree, "--to", repo, "--quiet"]).ends_with(0);
    repo
}

/// Calls of this name that a run makes.
fn calls(name: &str, dir: &Path, args: impl IntoIterator<Item = std::ffi::OsString>) -> usize {
    let log = dir.join("calls");
    let line = "log=$1; call=$2; shift 2; strace -f -qq -e trace=$call -o \"$log\" \"$@\"";
    let args = args![log, name, runs::FULLBORE].into_iter().chain(args);
    shell(line, args).ends_with(0);
    fs::read_to_string(log)
        .unwrap()
        .matches(&format!("{name}("))
        .count()
}

/// Restores into `to`, a directory on a file system that hides what goes wrong, ask each file.
fn assert_asks(dir: &Path, repo: &Path, to: &Path) {
    let new = |name: &str| to.join(name);
    let asked = calls("fsync", dir, args!["restore", repo, "--to", new("a")]);
    assert!(asked >= 21 + 4, "{asked}");
    // So it hears of an error.
    let ran = tampered(
        "fsync:error=EIO:when=7",
        None,
        args!["restore", repo, "--to", new("b")],
    )
    .ends_with(1);
    assert!(ran.err.contains("could not sync"), "{}", ran.err);
    let again = calls(
        "fsync",
        dir,
        args!["restore", repo, "--to", new("a"), "--delta"],
    );
    assert!(again >= 21, "{again}");
    // Of a tree that was there only what is written, and the directories above it.
    let one = calls(
        "fsync",
        dir,
        args![
            "restore",
            repo,
            "--to",
            new("a"),
            "--overwrite=all",
            "d1/f1"
        ],
    );
    assert!((3..9).contains(&one), "{one}");
    let cat = |line: &str| shell(line, args![repo, runs::FULLBORE, new("c")]).ends_with(0);
    cat("zstd -dcq \"$1\"/backups/*/s*.zst | \"$2\" restore - --to \"$3\"");
}

#[test]
fn an_overlay_hides_errors_of_what_lies_below() {
    let dir = temp();
    let repo = backup(dir.path());
    let [low, up, target] = ["low", "up", "to"].map(|name| dir.path().join(name));
    for path in [&low, &target] {
        fs::create_dir(path).unwrap();
    }
    let Some(_tmpfs) = Mount::tmpfs(&up, "40m") else {
        return;
    };
    let line = "mkdir \"$2/u\" \"$2/w\" && mount -t overlay -o \"lowerdir=$1,upperdir=$2/u,workdir=$2/w\" none \"$3\"";
    let mounted = shell(line, args![low, up, target]).code == 0;
    if or_skip(mounted, "no overlay can be mounted here") {
        let _overlay = Mount::at(&target);
        assert_asks(dir.path(), &repo, &target);
    }
}

#[test]
fn a_file_system_of_fuse_is_asked_for_each_file() {
    let dir = temp();
    let repo = backup(dir.path());
    let [below, target] = ["below", "to"].map(|name| dir.path().join(name));
    for path in [&below, &target] {
        fs::create_dir(path).unwrap();
    }
    let mounted = has("bindfs") && shell("bindfs \"$1\" \"$2\"", args![below, target]).code == 0;
    if or_skip(mounted, "no bindfs can be mounted here") {
        let _fuse = Mount::at(&target);
        assert_asks(dir.path(), &repo, &target);
    }
}

#[test]
fn elsewhere_one_call_is_enough() {
    let dir = temp();
    let repo = backup(dir.path());
    let path = dir.path().join("at");
    let Some(_tmpfs) = Mount::tmpfs(&path, "40m") else {
        return;
    };
    let (target, args) = (path.join("to"), |target: &Path| {
        args!["restore", repo, "--to", target]
    });
    assert_eq!(calls("syncfs", dir.path(), args(&target)), 1);
    assert!(calls("fsync", dir.path(), args(&path.join("two"))) < 5);
}

/// A repository with two backups of a tree, and the id of the second.
fn two_backups(dir: &Path) -> (std::path::PathBuf, String) {
    let repo = backup(dir);
    fs::write(dir.join("tree/more"), "more").unwrap();
    let ran = fullbore(args!["backup", dir.join("tree"), "--to", repo, "--json"]).ends_with(0);
    (
        repo,
        ran.json().pop().unwrap()["id"].as_str().unwrap().to_owned(),
    )
}

#[test]
fn a_copy_whose_sync_fails_is_not_listed_or_can_be_restored() {
    let dir = temp();
    let (repo, id) = two_backups(dir.path());
    let mut failed = 0;
    for nth in 1.. {
        let target = dir.path().join(format!("copy{nth}"));
        let backup = format!("{}@{id}", repo.display());
        let ran = tampered(
            &format!("fsync:error=EIO:when={nth}"),
            None,
            args!["copy", backup, target, "--workers", "1"],
        );
        if ran.code == 0 {
            break;
        }
        failed += 1;
        assert_eq!(ran.code, 1, "{}", ran.err);
        if !target.join(format!("backups/{id}/root.json")).exists() {
            continue;
        }
        fullbore(args!["verify", target, "--data"]).ends_with(0);
    }
    assert!(failed > 8, "{failed}");
}

#[test]
fn an_archive_that_cannot_be_replaced_stays_what_it_was() {
    let dir = temp();
    backup(dir.path());
    let target = dir.path().join("x.tar.zst");
    let args = || args!["backup", dir.path().join("tree"), "--to", target, "--quiet"];
    fullbore(args()).ends_with(0);
    let before = fs::read(&target).unwrap();
    tampered("rename,renameat,renameat2:error=EIO:when=1", None, args())
        .ends_with(1)
        .has_one_error("could not rename");
    assert!(fs::read(&target).unwrap() == before);
    fullbore(args!["verify", target, "--data"]).ends_with(0);
}

#[test]
fn an_archive_that_has_its_name_is_said_to_be_there_when_its_directory_cannot_be_synced() {
    let dir = temp();
    let (tree, target) = (dir.path().join("tree"), dir.path().join("x.tar.zst"));
    backup(dir.path());
    fullbore(args!["backup", tree, "--to", target, "--quiet"]).ends_with(0);
    fs::write(tree.join("more"), "more").unwrap();
    let ran = tampered(
        "fsync:error=EIO",
        Some(dir.path()),
        args!["backup", tree, "--to", target, "--quiet"],
    )
    .ends_with(1);
    assert!(
        ran.err
            .contains("x.tar.zst\" is the new archive, but may not be durable"),
        "{}",
        ran.err
    );
    fullbore(args!["verify", target, "--data", "--against", tree]).ends_with(0);
}

/// A backup whose `nth` sync fails, while what has a root cannot be forgotten; whether it is listed. Repository, intent and root
/// are renamed by renameat2, a segment by another thread, so only the manifest and the list of contents come before what was forgotten.
fn unsynced(nth: usize, tree: &Path, repo: &Path) -> (runs::Ran, bool) {
    let line = "strace -f -qq -o /dev/null -e inject=\"fsync:error=EIO:when=$1\" \
                -e inject=rename,renameat:error=EIO:when=3+ \"${@:2}\"";
    let nth = nth.to_string();
    let ran = shell(
        line,
        args![
            nth,
            runs::FULLBORE,
            "backup",
            tree,
            "--to",
            repo,
            "--workers",
            "1",
            "--quiet"
        ],
    );
    let roots = shell("ls \"$1\"/backups/*/root.json", args![repo])
        .out
        .lines()
        .count();
    (ran, roots > 0)
}

#[test]
fn a_backup_that_fails_behind_its_root_is_not_listed_or_said_to_be() {
    let dir = temp();
    backup(dir.path());
    let mut listed = 0;
    for nth in 1.. {
        let repo = dir.path().join(format!("repo{nth}"));
        assert!(nth < 100, "no backup succeeds");
        let (ran, is_listed) = unsynced(nth, &dir.path().join("tree"), &repo);
        if ran.code == 0 {
            break;
        }
        let said = ran
            .err
            .contains("the backup is listed, but may not be durable");
        assert_eq!(said, is_listed, "{nth}: {}", ran.err);
        listed += u32::from(is_listed);
        if is_listed {
            fullbore(args!["verify", repo, "--data"]).ends_with(0);
        }
    }
    assert!(listed > 0, "no sync comes behind a root");
}

#[test]
fn what_a_crash_may_have_lost_is_read_again() {
    let dir = temp();
    let repo = backup(dir.path());
    std::thread::sleep(std::time::Duration::from_millis(4500));
    let next = || {
        let log = dir.path().join("opened");
        let line = "strace -f -qq -e trace=openat,openat2 -o \"$1\" \"$2\" backup \"$3\" --to \"$4\" --quiet";
        shell(
            line,
            args![log, runs::FULLBORE, dir.path().join("tree"), repo],
        )
        .ends_with(0);
        fs::read_to_string(log).unwrap().contains("large\"")
    };
    next(); // what was touched just before the first one
    assert!(!next());
    let id = fullbore(args!["list", repo, "--json"])
        .ends_with(0)
        .json()
        .pop()
        .unwrap()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = repo.join("backups").join(id).join("root.json");
    let mut root: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    root.as_object_mut().unwrap().remove("blake3");
    assert!(!root["boot"].as_str().unwrap().is_empty());
    root["boot"] = "another".into();
    fs::write(&path, fullbore_format::seal::seal(&root).unwrap()).unwrap();
    assert!(next());
    assert!(!next());
}
