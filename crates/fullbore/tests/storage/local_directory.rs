//! Objects in a local directory: their files, whose they are, and what links and dead writers leave.

use super::suite::{get, keys, ours, pattern, put};
use fullbore_format::{error::ErrorKind, layout::REPOSITORY};
use fullbore_platform::write::lock_exclusive;
use fullbore_storage::{Leased, LocalObjects, Objects, Put, PutIf, Take};
use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
};

fn in_dir(dir: &Path) -> Arc<dyn Objects> {
    Arc::new(LocalObjects::new(dir))
}

/// All files and directories below a directory, by path.
fn tree(dir: &Path) -> Vec<String> {
    let mut dirs = vec![dir.to_owned()];
    let mut found = Vec::new();
    while let Some(place) = dirs.pop() {
        for path in fs::read_dir(place)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            found.push(path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned());
            if path.is_dir() && !path.is_symlink() {
                dirs.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn no_file_is_left_of_an_upload_that_is_dropped_or_a_put_that_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let objects = in_dir(dir.path());
    put(&objects, "a/o", b"there");
    for length in [0, 1000, 5 << 20] {
        let mut upload = objects.create("a/new").unwrap();
        upload.append(&pattern(length, 1)).unwrap();
        assert_eq!(tree(dir.path()).len(), 3, "one file is being written");
        drop(upload);
    }
    assert_eq!(
        objects.put("a/o", b"another", &PutIf::Absent).unwrap(),
        Put::Refused
    );
    assert!(matches!(
        objects.lease("a/o", b"", Take::New).unwrap(),
        Leased::Held
    ));
    assert_eq!(tree(dir.path()), ["a", "a/o"]);
}

#[test]
fn a_finished_upload_has_no_more_room_than_its_bytes() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let objects = in_dir(dir.path());
    let mut upload = objects.create("o").unwrap();
    upload.append(&pattern((2 << 20) + 1, 1)).unwrap();
    upload.finish().unwrap();
    let facts = fs::metadata(dir.path().join("o")).unwrap();
    assert_eq!(facts.len(), (2 << 20) + 1);
    assert!(
        facts.blocks() * 512 <= (2 << 20) + (64 << 10),
        "{} blocks",
        facts.blocks()
    );
}

#[test]
fn files_of_dead_writers_are_removed_and_those_of_living_ones_stay() {
    let dir = tempfile::tempdir().unwrap();
    let objects = in_dir(dir.path());
    put(&objects, "backups/a/root.json", b"root");
    let dead = dir
        .path()
        .join("backups/a/s01-000001.tar.zst.abc123.partial");
    let other = dir.path().join("backups/b.abc123.partial");
    for path in [&dead, &other] {
        fs::write(path, b"half").unwrap();
    }
    // Another process that writes, by its lock.
    let living = dir
        .path()
        .join("backups/a/s01-000002.tar.zst.abc123.partial");
    let living_file = File::create(&living).unwrap();
    assert!(lock_exclusive(&living_file).unwrap());
    // A link is of no writer, and keeps nothing else from being removed.
    let link = dir.path().join("backups/a/manifest.abc123.partial");
    std::os::unix::fs::symlink("root.json", &link).unwrap();
    let mut upload = objects.create("backups/a/s01-000003.tar.zst").unwrap();
    upload.append(b"mine").unwrap();
    assert_eq!(keys(&objects, ""), ["backups/a/root.json"]);
    objects.abort_uploads("backups/a").unwrap();
    assert!(!dead.exists() && living.exists() && other.exists());
    assert!(link.is_symlink());
    upload.finish().unwrap();
    drop(living_file);
    objects.abort_uploads("").unwrap();
    assert!(!living.exists() && !other.exists());
    assert_eq!(
        keys(&objects, ""),
        ["backups/a/root.json", "backups/a/s01-000003.tar.zst"]
    );
}

#[test]
fn directories_that_become_empty_go_but_for_those_of_the_first_level() {
    let dir = tempfile::tempdir().unwrap();
    let objects = in_dir(dir.path());
    for key in [
        "backups/a/root.json",
        "backups/a/s1",
        "backups/b/root.json",
        "tombstones/a/b/s1",
    ] {
        put(&objects, key, b"");
    }
    objects
        .delete(&[
            "backups/a/root.json".to_owned(),
            "tombstones/a/b/s1".to_owned(),
        ])
        .unwrap();
    assert_eq!(
        tree(dir.path()),
        [
            "backups",
            "backups/a",
            "backups/a/s1",
            "backups/b",
            "backups/b/root.json",
            "tombstones"
        ]
    );
    objects.delete(&["backups/a/s1".to_owned()]).unwrap();
    assert_eq!(
        tree(dir.path()),
        ["backups", "backups/b", "backups/b/root.json", "tombstones"]
    );
}

#[test]
fn no_link_is_followed_but_the_root_and_the_directory_of_all_backups() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    for made in ["repository", "elsewhere/a", "outside"] {
        fs::create_dir_all(place(made)).unwrap();
    }
    fs::write(place("outside/secret"), b"secret").unwrap();
    fs::write(place("elsewhere/a/root.json"), b"root").unwrap();
    symlink(place("repository"), place("link")).unwrap();
    symlink(place("elsewhere"), place("repository/backups")).unwrap();
    let objects = in_dir(&place("link"));
    assert_eq!(get(&objects, "backups/a/root.json").unwrap(), b"root");
    put(&objects, "backups/b/root.json", b"new");
    assert_eq!(fs::read(place("elsewhere/b/root.json")).unwrap(), b"new");
    assert_eq!(
        keys(&objects, ""),
        ["backups/a/root.json", "backups/b/root.json"]
    );

    symlink(place("outside"), place("elsewhere/evil")).unwrap();
    symlink(place("outside"), place("repository/intents")).unwrap();
    symlink(place("outside/secret"), place("elsewhere/a/s1")).unwrap();
    // A link is listed as what it stands in place of, and what it leads to is not.
    assert_eq!(
        keys(&objects, ""),
        [
            "backups/a/root.json",
            "backups/a/s1",
            "backups/b/root.json",
            "backups/evil",
            "intents"
        ]
    );
    for key in ["backups/evil/secret", "intents/secret", "backups/a/s1"] {
        assert!(objects.get(key).is_err(), "{key}");
        assert!(objects.stat(key).is_err(), "{key}");
        assert!(
            objects.read_at(key, 0, 1, &mut Vec::new()).is_err(),
            "{key}"
        );
        assert!(objects.lease(key, b"", Take::Dead).is_err(), "{key}");
    }
    for key in ["backups/evil/new", "intents/new", "intents/new/new"] {
        assert!(objects.put(key, b"", &PutIf::Always).is_err(), "{key}");
        assert!(objects.create(key).is_err(), "{key}");
        assert!(objects.lease(key, b"", Take::New).is_err(), "{key}");
        assert!(objects.delete(&["intents/secret".to_owned()]).is_err());
    }
    // A link in place of an object is replaced, not written through.
    put(&objects, "backups/a/s1", b"bytes");
    assert_eq!(get(&objects, "backups/a/s1").unwrap(), b"bytes");
    assert_eq!(tree(&place("outside")), ["secret"]);
    assert_eq!(fs::read(place("outside/secret")).unwrap(), b"secret");
}

#[test]
fn what_is_no_file_of_a_repository_is_not_listed() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let dir = tempfile::tempdir().unwrap();
    let objects = in_dir(dir.path());
    put(&objects, "a/o", b"x");
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    fs::write(dir.path().join("lost+found/x"), b"").unwrap();
    for name in [&b"a/\xff"[..], b"a/line\n", b"a/o.x.partial"] {
        fs::write(dir.path().join(OsStr::from_bytes(name)), b"").unwrap();
    }
    let deep: PathBuf = [dir.path().to_owned()]
        .into_iter()
        .chain((0..40).map(|_| "d".repeat(20).into()))
        .collect();
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("x"), b"").unwrap();
    assert_eq!(keys(&objects, ""), ["a/o"]);
}

#[test]
fn objects_may_be_read_by_whoever_may_read_the_file_that_makes_the_repository() {
    let dir = tempfile::tempdir().unwrap();
    let objects = in_dir(dir.path());
    let mode = |key: &str| {
        fs::metadata(dir.path().join(key))
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    put(&objects, REPOSITORY, b"{}");
    put(&objects, "backups/a/root.json", b"");
    assert_eq!(
        (mode("backups/a"), mode("backups/a/root.json")),
        (0o700, 0o600)
    );
    fs::set_permissions(
        dir.path().join(REPOSITORY),
        fs::Permissions::from_mode(0o640),
    )
    .unwrap();
    put(&objects, "backups/b/root.json", b"");
    let mut upload = objects.create("backups/b/s1").unwrap();
    upload.append(b"x").unwrap();
    upload.finish().unwrap();
    let lease = ours(objects.lease("intents/b", b"", Take::New).unwrap());
    for (key, expected) in [
        ("backups/b", 0o750),
        ("backups/b/root.json", 0o640),
        ("backups/b/s1", 0o640),
        ("intents/b", 0o640),
    ] {
        assert_eq!(mode(key), expected, "{key}");
    }
    drop(lease);
    // What an upload replaces keeps its mode.
    fs::set_permissions(
        dir.path().join("backups/b/s1"),
        fs::Permissions::from_mode(0o604),
    )
    .unwrap();
    objects.create("backups/b/s1").unwrap().finish().unwrap();
    assert_eq!(mode("backups/b/s1"), 0o604);
}

#[test]
fn a_lease_is_the_lock_of_the_kernel_on_the_intent() {
    let dir = tempfile::tempdir().unwrap();
    let objects = in_dir(dir.path());
    let path = dir.path().join("intents/a.json");
    let opened = || File::options().write(true).open(&path).unwrap();
    let mut lease = ours(objects.lease("intents/a.json", b"one", Take::New).unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"one", "no line is added");
    assert!(!lock_exclusive(opened()).unwrap());
    let before = opened();
    lease.update(b"two").unwrap();
    assert!(
        !lock_exclusive(opened()).unwrap(),
        "the new content is locked as well"
    );
    assert!(
        lock_exclusive(&before).unwrap(),
        "nobody waits for what was replaced"
    );
    drop(lease);
    let other = opened();
    assert!(lock_exclusive(&other).unwrap());
    for take in [Take::Dead, Take::DeadOrNew] {
        assert!(matches!(
            objects.lease("intents/a.json", b"", take).unwrap(),
            Leased::Held
        ));
    }
    drop(other);
    let mut lease = ours(objects.lease("intents/a.json", b"", Take::Dead).unwrap());
    fs::remove_file(&path).unwrap();
    assert!(!lease.is_ours());
    assert_eq!(lease.update(b"three").unwrap_err().kind, ErrorKind::Gone);
    assert!(!path.exists());
}

#[test]
fn a_version_is_compared_while_the_object_is_locked() {
    let dir = tempfile::tempdir().unwrap();
    let objects = in_dir(dir.path());
    let version = put(&objects, "o", b"one");
    let other = File::options()
        .write(true)
        .open(dir.path().join("o"))
        .unwrap();
    assert!(lock_exclusive(&other).unwrap());
    let replaced = std::thread::scope(|scope| {
        let replace = scope.spawn(|| objects.put("o", b"two", &PutIf::Version(version)).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(
            !replace.is_finished(),
            "another process compares and replaces"
        );
        fs::write(dir.path().join("new"), b"three").unwrap();
        fs::rename(dir.path().join("new"), dir.path().join("o")).unwrap();
        drop(other);
        replace.join().unwrap()
    });
    assert_eq!(replaced, Put::Refused);
    assert_eq!(get(&objects, "o").unwrap(), b"three");
}
