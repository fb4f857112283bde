//! Every verb, and what it says where the store is not reached.

use super::{StoreRepository, runs};
use runs::{assert_same, noise, sample, shape, temp, write};
use std::{fs, thread, time::Duration};

/// Two backups, restored, checked, forgotten and pruned.
fn lives(store: &StoreRepository) {
    let dir = temp();
    let tree = dir.path().join("tree");
    sample(&tree);
    let first = store.back_up(&tree);
    write(tree.join("new"), noise(7, 20_000_000));
    let second = store.back_up(&tree);
    assert_eq!(store.listed(), [first.clone(), second.clone()]);
    store.assert_restores(&tree, &second);
    let address = &store.address;
    store.run(args!["verify", address, "--data"]).ends_with(0);
    store
        .run(args!["forget", "--yes", address, first])
        .ends_with(0);
    store.run(args!["prune", address]).ends_with(0);
    assert_eq!(store.listed(), std::slice::from_ref(&second));
    store.assert_restores(&tree, &second);
    let third = store.back_up(&tree);
    store
        .run(args!["forget", "--yes", address, second])
        .ends_with(0);
    store.run(args!["prune", address]).ends_with(0);
    store.assert_restores(&tree, &third);
}

#[test]
fn a_repository_lives_in_s3() {
    lives(&StoreRepository::s3());
}

#[test]
fn a_repository_lives_in_azure() {
    lives(&StoreRepository::azure());
}

#[test]
fn a_repository_lives_in_google() {
    lives(&StoreRepository::google());
}

#[test]
fn every_verb_takes_a_repository_in_s3() {
    let (store, dir) = (StoreRepository::s3(), temp());
    let (tree, address) = (dir.path().join("tree"), store.address.clone());
    sample(&tree);
    store
        .run(args!["init", address, "--no-encryption"])
        .ends_with(0);
    let first = store.back_up(&tree);
    write(tree.join("new"), "new");
    let second = store.back_up(&tree);
    let named = store.named(&first);
    let holds = |words: &str, ran: runs::Ran| {
        let ran = ran.ends_with(0);
        assert!(
            ran.out.contains(words) || ran.err.contains(words),
            "{words:?} is not in: {}{}",
            ran.out,
            ran.err
        );
    };
    holds(&second, store.run(args!["show", address]));
    holds("a/b/f03", store.run(args!["list", named]));
    holds("a/b/f03", store.run(args!["find", address, "f03"]));
    holds("new", store.run(args!["diff", address, first, second]));
    holds(
        "is the same",
        store.run(args!["verify", store.named(&second), "--against", tree]),
    );
    holds("why=this", store.run(args!["tag", named, "why=this"]));
    holds("pinned", store.run(args!["pin", named]));
    holds("no longer", store.run(args!["unpin", named]));
    holds("fetch", store.run(args!["restore", address, "--plan"]));
    holds("nothing is to be done", store.run(args!["repair", address]));
    let one = dir.path().join("one");
    store
        .run(args!["restore", address, "--to", one, "a/b/f03"])
        .ends_with(0);
    assert!(one.join("a/b/f03").exists() && !one.join("new").exists());
    let archive = dir.path().join("x.tar.zst");
    store
        .run(args!["export", address, "--to", archive])
        .ends_with(0);
    store.run(args!["verify", archive, "--data"]).ends_with(0);
    holds(
        "would free",
        store.run(args!["prune", address, "--dry-run"]),
    );
    holds("freed", store.run(args!["prune", address]));
}

#[test]
fn a_backup_is_copied_from_a_directory_to_s3_and_back() {
    let (store, dir) = (StoreRepository::s3(), temp());
    let (tree, local) = (dir.path().join("tree"), dir.path().join("local"));
    sample(&tree);
    store.run(args!["backup", tree, "--to", local]).ends_with(0);
    write(tree.join("new"), noise(3, 300_000));
    store.run(args!["backup", tree, "--to", local]).ends_with(0);
    let address = &store.address;
    store
        .run(args!["init", address, "--no-encryption"])
        .ends_with(0);
    store.run(args!["copy", local, address]).ends_with(0);
    let copied = store.listed();
    assert_eq!(copied.len(), 1);
    store.assert_restores(&tree, &copied[0]);
    let back = dir.path().join("back");
    store.run(args!["copy", address, back]).ends_with(0);
    let out = dir.path().join("out");
    store
        .run(args!["restore", back, "--to", out, "--quiet"])
        .ends_with(0);
    assert_same(&shape(&tree), &shape(&out), "back from s3");
}

#[test]
fn what_keeps_a_store_from_being_reached_is_said_once() {
    let dir = temp();
    let tree = dir.path().join("tree");
    write(tree.join("f"), "content");
    let mut store = StoreRepository::s3();
    store.back_up(&tree);
    let address = store.address.clone();
    let says = |store: &StoreRepository, code: i32, words: &str| {
        for args in [
            args!["list", address].to_vec(),
            args!["backup", tree, "--to", address].to_vec(),
            args!["restore", address, "--to", dir.path().join("to")].to_vec(),
            args!["prune", address].to_vec(),
        ] {
            let ran = store.run(args).ends_with(code).has_one_error(words);
            assert!(!ran.err.contains("hunter2"), "{}", ran.err);
            assert!(ran.err.contains("hint: "), "{}", ran.err);
        }
    };
    store.set("AWS_SECRET_ACCESS_KEY", "wrong");
    says(&store, 1, "SignatureDoesNotMatch");
    store.set("AWS_ACCESS_KEY_ID", "nobody");
    says(&store, 1, "correct the credentials of the store");
    let mut store = store.beside();
    store.set("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    store.set("FULLBORE_STORAGE_TRIES", "2");
    says(&store, 1, "could not connect to the store");
    let mut store = store.beside();
    store.address = format!("s3://absent/{address}");
    let ran = store.run(args!["list", "s3://absent/x"]).ends_with(2);
    ran.has_one_error("NoSuchBucket");
    let args = args!["backup", tree, "--to", "s3://absent/x", "--no-encryption"];
    store.run(args).ends_with(2).has_one_error("NoSuchBucket");
}

#[test]
fn a_new_repository_in_a_store_wants_a_decision_and_an_archive_is_refused() {
    let (store, dir) = (StoreRepository::s3(), temp());
    let tree = dir.path().join("tree");
    write(tree.join("f"), "content");
    let ran = store.run(args!["backup", tree, "--to", store.address]);
    ran.ends_with(2).has_one_error("--no-encryption");
    let archive = format!("{}/x.tar.zst", store.address);
    let ran = store.run(args!["backup", tree, "--to", archive, "--no-encryption"]);
    ran.ends_with(2)
        .has_one_error("archives are files of this machine");
    let ran = store.run(args!["list", store.address]).ends_with(1);
    ran.has_one_error("it is not a repository");
}

#[test]
fn forget_takes_the_backup_that_is_named_behind_the_store() {
    let (store, dir) = (StoreRepository::s3(), temp());
    write(dir.path().join("tree/f"), "content");
    let id = store.back_up(&dir.path().join("tree"));
    let ran = store
        .run(args!["forget", "--yes", store.named(&id)])
        .ends_with(0);
    assert!(ran.out.contains("1 backup forgotten"), "{}", ran.out);
    let left = store.run(args!["list", store.address, "--json"]);
    assert_eq!(left.ends_with(0).json().len(), 0);
}

#[test]
fn a_mount_shows_a_repository_in_s3() {
    let fuse = fs::File::options().write(true).open("/dev/fuse");
    if !runs::or_skip(
        fuse.is_ok() && runs::is_root(),
        "/dev/fuse cannot be opened, or this is not root",
    ) {
        return;
    }
    let (store, dir) = (StoreRepository::s3(), temp());
    let (tree, at) = (dir.path().join("tree"), dir.path().join("at"));
    sample(&tree);
    write(tree.join("large"), noise(7, 20_000_000));
    store.back_up(&tree);
    fs::create_dir(&at).unwrap();
    let mut mount = store
        .command(args!["mount", store.address, &at, "--quiet"])
        .spawn()
        .unwrap();
    let latest = at.join("latest");
    while !latest.join("large").exists() {
        assert!(mount.try_wait().unwrap().is_none(), "it does not mount");
        thread::sleep(Duration::from_millis(20));
    }
    let shown = latest.canonicalize().unwrap();
    assert_same(&shape(&tree), &shape(&shown), "mounted");
    runs::shell("umount \"$1\"", args![&at]).ends_with(0);
    assert!(mount.wait().unwrap().success());
}
