//! A key that opens nothing, keys that a storage put in place, and repositories that are not those of yesterday.

use super::{
    runs::{self, Mount, Ran},
    world::{Person, World},
};
use fullbore_crypt::{KeyRing, UserIdentity, unwrap_secret};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

const NO_USE: &str = "cannot use a key for";

fn backup_of(world: &World, repository: &Path) -> Vec<OsString> {
    args!["backup", world.tree(), "--to", repository, "--quiet"].into()
}

/// Roots that name the tree, which no encrypted repository has in the clear.
fn clear_roots(world: &World, repository: &Path) -> usize {
    let tree = world.tree().display().to_string();
    let roots = runs::names(&repository.join("backups"));
    let texts = roots
        .iter()
        .map(|id| fs::read_to_string(repository.join("backups").join(id).join("root.json")));
    texts
        .filter(|text| text.as_ref().is_ok_and(|text| text.contains(&tree)))
        .count()
}

/// Puts keys in place that another person made for `victim`, as a storage may that knows a public key.
fn plant_keys(world: &World, victim: &Person) -> Person {
    let storage = world.person("storage");
    let evil = world.path("evil");
    world.init(&evil, &storage);
    let add = args![
        "key",
        "add",
        evil,
        "--name",
        "owner-2",
        "--for",
        victim.recipient
    ];
    world.run_as(&storage, add).ends_with(0);
    let keys = world.repository().join("keys");
    fs::remove_dir_all(&keys).unwrap();
    fs::rename(evil.join("keys"), keys).unwrap();
    storage
}

fn fingerprint_in(ran: &Ran, text: &str) -> String {
    let line = text.lines().find_map(|line| {
        line.split_once("fingerprint of the keys: ")
            .or_else(|| line.split_once("fingerprint of its keys: "))
    });
    line.unwrap_or_else(|| panic!("{}{}", ran.out, ran.err))
        .1
        .to_owned()
}

#[test]
fn a_key_that_opens_nothing_is_an_error_of_every_verb() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    let clear = world.path("clear");
    world.run(backup_of(&world, &clear)).ends_with(0);
    let out = world.path("out");
    let verbs: [Vec<OsString>; 9] = [
        backup_of(&world, &clear),
        args!["list", clear].into(),
        args!["restore", clear, "--to", out].into(),
        args!["verify", clear].into(),
        args!["find", clear, "large"].into(),
        args!["forget", clear, "--keep-last", "1"].into(),
        args!["prune", clear].into(),
        args!["tag", format!("{}@latest", clear.display()), "a=b"].into(),
        args!["stats", clear].into(),
    ];
    runs::write_private(world.path("pass"), "correct horse battery staple\n");
    for verb in verbs {
        world
            .run_as(&me, verb.clone())
            .ends_with(2)
            .has_one_error(NO_USE);
        let by_passphrase = verb
            .iter()
            .cloned()
            .chain(args!["--passphrase-file", world.path("pass")]);
        world.run(by_passphrase).ends_with(2).has_one_error(NO_USE);
        for (name, value) in [
            ("FULLBORE_KEY_FILE", me.key.to_str().unwrap()),
            ("FULLBORE_PASSPHRASE", "a b"),
        ] {
            let mut command = world.command(verb.clone());
            let ran = Ran::from(command.env(name, value).output().unwrap());
            ran.ends_with(2).has_one_error(NO_USE);
        }
    }
    assert!(!out.exists());
    // The user has decided.
    let decided = backup_of(&world, &clear)
        .into_iter()
        .chain(args!["--no-encryption"]);
    world.run_as(&me, decided).ends_with(0);
    // Of two repositories the key has to open one.
    world.init(&repository, &me);
    world
        .run_as(&me, args!["copy", clear, repository])
        .ends_with(0);
    let other = world.path("other");
    world.run(args!["init", other]).ends_with(0);
    let copied = world.run_as(&me, args!["copy", clear, other]);
    copied
        .ends_with(2)
        .has_one_error("cannot use the key that was given");
}

#[test]
fn what_is_encrypted_goes_to_a_clear_repository_by_decision_only() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    world.init(&repository, &me);
    world.backup(&repository, &me);
    let clear = world.path("clear");
    world.run(args!["init", clear]).ends_with(0);
    for verb in [
        args!["copy", repository, clear].to_vec(),
        args!["export", repository, "--to", clear].to_vec(),
    ] {
        world
            .run_as(&me, verb.clone())
            .ends_with(2)
            .has_one_error("the repository there is not");
        assert_eq!(clear_roots(&world, &clear), 0);
        let decided = verb.into_iter().chain(args!["--no-encryption", "--quiet"]);
        world.run_as(&me, decided).ends_with(0);
        assert_eq!(clear_roots(&world, &clear), 1);
        fs::remove_dir_all(&clear).unwrap();
        world.run(args!["init", clear]).ends_with(0);
    }
}

#[test]
fn a_repository_without_its_keys_is_not_clear() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    world.init(&repository, &me);
    world.backup(&repository, &me);
    fs::remove_file(repository.join("keys/current.json")).unwrap();
    world
        .run_as(&me, backup_of(&world, &repository))
        .ends_with(2)
        .has_one_error(NO_USE);
    // On a host that knows nothing of it, and without a key.
    for state in ["state", "another state"] {
        for verb in [
            backup_of(&world, &repository),
            args!["restore", repository, "--to", world.path("out")].into(),
        ] {
            let mut command = world.command(verb);
            let ran = Ran::from(
                command
                    .env("FULLBORE_STATE_DIR", world.path(state))
                    .output()
                    .unwrap(),
            );
            assert_eq!(ran.code, 1, "{state}: {}", ran.err);
            let is_said = ran.err.contains("keys/current.json is missing")
                || ran.err.contains("it is not encrypted, and");
            assert!(is_said, "{}", ran.err);
        }
    }
    assert_eq!(clear_roots(&world, &repository), 0);
    assert!(!world.path("out").exists());
}

#[test]
fn keys_of_a_storage_are_not_used() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    let made = world
        .run(args!["init", repository, "--encrypt-to", me.recipient])
        .ends_with(0);
    let fingerprint = fingerprint_in(&made, &made.err);
    world.backup(&repository, &me);
    let kept = world.path("kept");
    shell_copy(&repository.join("keys"), &kept);
    let storage = plant_keys(&world, &me);
    for verb in [
        backup_of(&world, &repository),
        args!["list", repository].into(),
        args!["key", "list", repository].into(),
        args!["key", "rotate", repository].into(),
    ] {
        let ran = world.run_as(&me, verb).ends_with(1);
        ran.has_one_error("its keys are not those that are known");
    }
    // A host that knows nothing of it sees that the old backup was sealed with other keys.
    let on_new_host = |more: &[OsString]| {
        let mut command = world.command(
            backup_of(&world, &repository)
                .into_iter()
                .chain(args!["--key", me.key])
                .chain(more.to_vec()),
        );
        Ran::from(
            command
                .env("FULLBORE_STATE_DIR", world.path("new host"))
                .output()
                .unwrap(),
        )
    };
    on_new_host(&[])
        .ends_with(4)
        .has_one_error("no key of this repository has sealed it");
    on_new_host(&args!["--expect-keys", fingerprint])
        .ends_with(1)
        .has_one_error("its keys are not those that are known");
    fs::remove_dir_all(repository.join("keys")).unwrap();
    shell_copy(&kept, &repository.join("keys"));
    on_new_host(&args!["--expect-keys", fingerprint]).ends_with(0);
    world
        .run_as(&me, backup_of(&world, &repository))
        .ends_with(0);
    // Nothing was stored that the storage reads.
    let ran = world.run_as(&storage, args!["list", repository]);
    ran.ends_with(1).has_one_error("none of the keys");
}

fn shell_copy(from: &Path, to: &Path) {
    runs::shell("cp -r \"$1\" \"$2\"", args![from, to]).ends_with(0);
}

#[test]
fn a_fingerprint_stays_when_the_key_is_rotated() {
    let world = World::new();
    let (repository, me, other) = (
        world.repository(),
        world.person("me"),
        world.person("other"),
    );
    let made = world
        .run(args!["init", repository, "--encrypt-to", me.recipient])
        .ends_with(0);
    let first = fingerprint_in(&made, &made.err);
    world
        .run_as(&me, args!["key", "rotate", repository])
        .ends_with(0);
    let add = args![
        "key",
        "add",
        repository,
        "--name",
        "other",
        "--for",
        other.recipient
    ];
    world.run_as(&me, add).ends_with(0);
    for person in [&me, &other] {
        let listed = world
            .run_as(person, args!["key", "list", repository])
            .ends_with(0);
        assert_eq!(fingerprint_in(&listed, &listed.out), first);
    }
    let listed = world
        .run_as(&me, args!["key", "list", repository, "--json"])
        .ends_with(0);
    assert_eq!(listed.json().pop().unwrap()["fingerprint"], first.as_str());
    world.backup(&repository, &other);
    world.assert_restores(&repository, &me, "after a rotation");
}

/// The ring of a repository, as its key file for a person holds it.
fn ring_of(repository: &Path, person: &Person) -> KeyRing {
    let secret = fs::read_to_string(&person.key).unwrap();
    let options = fullbore_crypt::Prompt::default();
    let identities: Vec<UserIdentity> =
        fullbore_crypt::parse_identities(secret.as_bytes(), "the key", &options).unwrap();
    let file = fs::read(repository.join("keys/owner.age")).unwrap();
    let text = unwrap_secret(&file, &identities, "the file")
        .unwrap()
        .unwrap();
    KeyRing::parse(std::str::from_utf8(&text).unwrap(), "the ring").unwrap()
}

#[test]
fn old_keys_that_are_put_back_are_not_used() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    world.init(&repository, &me);
    let old = world.path("old");
    shell_copy(&repository.join("keys"), &old);
    let before = ring_of(&repository, &me);
    world
        .run_as(&me, args!["key", "rotate", repository])
        .ends_with(0);
    world.backup(&repository, &me);
    assert_eq!(
        ring_of(&repository, &me).fingerprint(),
        before.fingerprint()
    );
    fs::remove_dir_all(repository.join("keys")).unwrap();
    shell_copy(&old, &repository.join("keys"));
    let ran = world
        .run_as(&me, backup_of(&world, &repository))
        .ends_with(1);
    ran.has_one_error("its keys do not go on from those that this host knows");
    // Elsewhere the old backup tells, also if the fingerprint was given: it is the same.
    let fingerprint = before.fingerprint();
    let expected = args!["--key", me.key, "--expect-keys", fingerprint];
    let ran = world
        .run(backup_of(&world, &repository).into_iter().chain(expected))
        .ends_with(1);
    ran.has_one_error("generation 2 of the repository's key has sealed it");
    let mut command = world.command(
        backup_of(&world, &repository)
            .into_iter()
            .chain(args!["--key", me.key]),
    );
    let ran = Ran::from(
        command
            .env("FULLBORE_STATE_DIR", world.path("new host"))
            .output()
            .unwrap(),
    );
    ran.ends_with(1)
        .has_one_error("generation 2 of the repository's key has sealed it");
}

#[test]
fn a_repository_of_another_disk_gets_no_backup_by_accident() {
    let world = World::new();
    let disk = world.path("disk");
    let repository = disk.join("repo");
    let back_up = || world.run(backup_of(&world, &repository));
    let Some(first) = Mount::tmpfs(&disk, "64m") else {
        return;
    };
    back_up().ends_with(0);
    drop(first);
    // The disk is not mounted.
    let ran = back_up()
        .ends_with(1)
        .has_one_error("could not find the repository that this host knows");
    assert!(ran.err.contains("is its disk mounted?"), "{}", ran.err);
    assert!(!repository.exists());
    let me = world.person("me");
    let sealed = backup_of(&world, &repository)
        .into_iter()
        .chain(args!["--encrypt-to", me.recipient]);
    world
        .run(sealed)
        .ends_with(1)
        .has_one_error("could not find the repository that this host knows");
    assert!(!repository.exists());
    for verb in [
        args!["list", repository].to_vec(),
        args!["restore", repository, "--to", world.path("out")].to_vec(),
    ] {
        let ran = world.run(verb);
        assert_ne!(ran.code, 0);
        assert!(ran.err.contains("is its disk mounted?"), "{}", ran.err);
    }
    // Another disk, with a repository that was made elsewhere.
    let second = Mount::tmpfs(&disk, "64m").unwrap();
    let mut elsewhere = world.command(args!["init", repository]);
    elsewhere.env("FULLBORE_STATE_DIR", world.path("another host"));
    assert!(elsewhere.output().unwrap().status.success());
    let said = back_up()
        .ends_with(1)
        .has_one_error("is not the repository that this host knows");
    assert!(said.err.contains("fullbore init"), "{}", said.err);
    assert!(runs::names(&repository.join("backups")).is_empty());
    world.run(args!["list", repository]).ends_with(0);
    // Both are meant.
    world.run(args!["init", repository]).ends_with(0);
    back_up().ends_with(0);
    drop(second);
}

#[test]
fn what_was_deleted_is_made_again() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    for _ in 0..2 {
        world.run(backup_of(&world, &repository)).ends_with(0);
        fs::remove_dir_all(&repository).unwrap();
        world.init(&repository, &me);
        world.backup(&repository, &me);
        fs::remove_dir_all(&repository).unwrap();
    }
}

#[test]
fn an_encrypted_repository_does_not_become_clear() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    world.init(&repository, &me);
    let clear = world.path("clear");
    world.run(args!["init", clear]).ends_with(0);
    fs::remove_dir_all(&repository).unwrap();
    fs::rename(&clear, &repository).unwrap();
    let refused = "it is not encrypted, and the repository that this host knows there is";
    for verb in [
        backup_of(&world, &repository),
        args!["list", repository].into(),
        args!["init", repository].into(),
    ] {
        world.run(verb).ends_with(1).has_one_error(refused);
    }
    world
        .run(args!["init", repository, "--no-encryption"])
        .ends_with(0);
    world.run(backup_of(&world, &repository)).ends_with(0);
}

#[test]
fn secrets_that_are_easily_guessed_or_read_are_refused() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    let file = world.path("passphrase");
    let init = args![
        "init",
        repository,
        "--passphrase",
        "--passphrase-file",
        file
    ];
    for weak in ["", "short", "aaaaaaaaaaaaaaaaaaaa", "12345678901"] {
        runs::write_private(&file, weak);
        let ran = world.run(init.clone()).ends_with(2);
        assert!(
            weak.is_empty() || ran.err.contains("easily guessed"),
            "{}",
            ran.err
        );
    }
    assert!(!repository.exists());
    runs::write_private(&file, "five random words are enough");
    world.run(init).ends_with(0);
    let add = |file: &PathBuf| {
        let add = args![
            "key",
            "add",
            repository,
            "--name",
            "b",
            "--new-passphrase-file",
            file,
            "--passphrase-file",
            world.path("passphrase")
        ];
        world.run(add)
    };
    // Of the same mode, and private by the directory around it.
    runs::set_mode(&me.key, 0o644);
    runs::set_mode(world.dir.path(), 0o700);
    let ran = world.run(args!["list", repository, "--key", me.key]);
    assert!(ran.err.contains("none of the keys"), "{}", ran.err);
    runs::set_mode(world.dir.path(), 0o755);
    let weak = world.path("weak");
    runs::write_private(&weak, "weak");
    add(&weak)
        .ends_with(2)
        .has_one_error("cannot set this passphrase");
    for (path, option) in [(&file, "--passphrase-file"), (&me.key, "--key")] {
        // A file of root may be readable by a group, as keys of TLS are.
        runs::set_mode(path, 0o640);
        let ran = world.run(args!["list", repository, option, path]);
        assert_eq!(
            ran.err.contains("others can read it"),
            !is_root(),
            "{}",
            ran.err
        );
        runs::set_mode(path, 0o644);
        world
            .run(args!["list", repository, option, path])
            .ends_with(1)
            .has_one_error("others can read it");
        runs::set_mode(path, 0o600);
    }
    let mut by_variable = world.command(args!["list", repository]);
    runs::set_mode(&me.key, 0o604);
    let ran = Ran::from(
        by_variable
            .env("FULLBORE_KEY_FILE", &me.key)
            .output()
            .unwrap(),
    );
    ran.ends_with(1).has_one_error("others can read it");
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}
