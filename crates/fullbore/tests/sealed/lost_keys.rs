//! Keys that were lost, left over, or that two have the name of.

use super::{
    runs::{self, tampered_in},
    world::{Person, World, files_below},
};
use fullbore_crypt::{Prompt, parse_identities, unwrap_secret};
use std::{fs, path::PathBuf};

/// A copy of the repository's key, as `age -d` prints it.
fn saved_key(world: &World, person: &Person, name: &str) -> PathBuf {
    let secret = fs::read(&person.key).unwrap();
    let identities = parse_identities(&secret, "the key", &Prompt::default()).unwrap();
    let file = fs::read(world.repository().join("keys/owner.age")).unwrap();
    let text = unwrap_secret(&file, &identities, "the file")
        .unwrap()
        .unwrap();
    let saved = world.path(name);
    runs::write_private(&saved, &*text);
    saved
}

#[test]
fn a_copy_of_the_key_opens_the_repository_and_makes_its_keys_anew() {
    let world = World::new();
    let (repository, me, two) = (world.repository(), world.person("me"), world.person("two"));
    world.init(&repository, &me);
    world.backup(&repository, &me);
    let old = saved_key(&world, &me, "old");
    world
        .run_as(&me, args!["key", "rotate", repository])
        .ends_with(0);
    world.backup(&repository, &me);
    let saved = saved_key(&world, &me, "saved");
    let by_copy = Person {
        key: saved.clone(),
        ..me.clone()
    };
    fs::remove_file(repository.join("keys/owner.age")).unwrap();
    world.assert_restores(&repository, &by_copy, "by a copy of the key");
    let restore = |saved: &PathBuf| {
        world.run(args![
            "key",
            "restore",
            repository,
            "--key",
            saved,
            "--for",
            two.recipient
        ])
    };
    restore(&saved).ends_with(1).has_one_error("it has keys");
    fs::remove_dir_all(repository.join("keys")).unwrap();
    let ran = world
        .run_as(&by_copy, args!["list", repository])
        .ends_with(2);
    assert!(ran.err.contains("fullbore key restore"), "{}", ran.err);
    // A copy from before the rotation, and that of another repository.
    restore(&old).ends_with(1);
    let other = world.path("other");
    world.init(&other, &me);
    let foreign = PathBuf::from(&other).join("keys/owner.age");
    let not_a_copy = world.run(args![
        "key",
        "restore",
        repository,
        "--key",
        foreign,
        "--for",
        two.recipient
    ]);
    assert_ne!(not_a_copy.code, 0);
    assert!(!repository.join("keys/current.json").exists());
    restore(&saved).ends_with(0);
    world.assert_restores(&repository, &two, "after the keys were written anew");
    world.backup(&repository, &two);
    world
        .run_as(&two, args!["key", "rotate", repository])
        .ends_with(0);
    world
        .run_as(&two, args!["verify", repository, "--data"])
        .ends_with(0);
    assert_ne!(
        world.run_as(&me, args!["key", "rotate", repository]).code,
        0
    );
}

#[test]
fn key_files_that_a_killed_command_left_are_removed_by_the_next_one() {
    let world = World::new();
    let (repository, me, two) = (world.repository(), world.person("me"), world.person("two"));
    world.init(&repository, &me);
    let partials = || {
        let files = files_below(&repository.join("keys"));
        files
            .iter()
            .filter(|file| file.to_str().unwrap().ends_with(".partial"))
            .count()
    };
    // A key that a killed command put on the list only is new to this user.
    let rotate = args!["key", "rotate", repository, "--yes", "--key", me.key];
    let add = args![
        "key",
        "add",
        repository,
        "--name",
        "two",
        "--for",
        two.recipient,
        "--key",
        me.key
    ];
    for killed in [rotate.to_vec(), add.to_vec()] {
        let mut left = 0;
        for when in 1..12 {
            let inject = format!("rename,renameat,renameat2:signal=KILL:when={when}");
            if tampered_in(&world.path("state"), &inject, None, killed.clone()).code == 0 {
                break;
            }
            left += partials();
            let _ = world.run(rotate.clone());
            assert_eq!(partials(), 0, "{:?}", files_below(&repository.join("keys")));
        }
        assert!(left > 0, "no command was killed before it had named a file");
    }
    // Before a person is removed, too.
    fs::write(repository.join("keys/two.age.abcdef.partial"), "left").unwrap();
    world.run_as(&me, args!["prune", repository]).ends_with(0);
    assert_eq!(partials(), 0);
}

#[test]
fn a_key_is_removed_by_its_name_alone_unless_two_have_it() {
    let world = World::new();
    let (repository, me, host) = (world.repository(), world.person("me"), world.person("web1"));
    world.init(&repository, &me);
    let public = world.path("web1.pub");
    runs::write(
        &public,
        format!("# the key of a host\n{}\n", host.recipient),
    );
    let at_file = format!("@{}", public.display());
    let put = args!["key", "put", repository, "--name", "web1", "--for", at_file];
    let remove = args!["key", "remove", repository, "--name", "web1"];
    world.run_as(&me, put.clone()).ends_with(0);
    let ran = world.run_as(&me, remove.clone()).ends_with(0);
    assert!(
        ran.out.contains("what it adds from now on does not"),
        "{}",
        ran.out
    );
    let ran = world.run_as(&me, remove.clone()).ends_with(1);
    ran.has_one_error("there is none of this name");
    world.run_as(&me, put).ends_with(0);
    let add = args![
        "key",
        "add",
        repository,
        "--name",
        "web1",
        "--for",
        host.recipient
    ];
    world.run_as(&me, add).ends_with(0);
    world
        .run_as(&me, remove.clone())
        .ends_with(2)
        .has_one_error("cannot tell which key");
    let with_put = remove.iter().cloned().chain(args!["--put"]);
    world.run_as(&me, with_put).ends_with(0);
    let ran = world.run_as(&me, remove).ends_with(0);
    assert!(
        ran.out.contains("can read what was stored before"),
        "{}",
        ran.out
    );
    // A file in place of a recipient.
    let wrong = world
        .run(args!["init", world.path("x"), "--encrypt-to", public])
        .ends_with(2);
    assert!(wrong.err.contains("@FILE"), "{}", wrong.err);
}

#[test]
fn programs_get_no_passphrase_and_no_credentials() {
    let world = World::new();
    let said = world.path("said");
    let secrets = [
        ("FULLBORE_PASSPHRASE", "hunter2 is not one"),
        ("AWS_SECRET_ACCESS_KEY", "hunter2"),
        ("AWS_REGION", "kept"),
    ];
    let stored = args![
        "backup",
        "--stdin-name",
        "x",
        "--stdin-from-command",
        "--to",
        world.path("archive.tar.zst"),
        "--quiet",
        "--",
        "sh",
        "-c",
        format!("env >'{}'; echo x", said.display())
    ];
    let ran = world.command(stored).envs(secrets).output().unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let ssh = world.path("ssh");
    runs::write(
        &ssh,
        format!("#!/bin/sh\nenv >>'{}'\nexit 1\n", said.display()),
    );
    runs::set_mode(&ssh, 0o755);
    let list = args!["list", "ssh://vault/repo", "--ssh", ssh];
    assert!(
        !world
            .command(list)
            .envs(secrets)
            .output()
            .unwrap()
            .status
            .success()
    );
    let said = fs::read_to_string(said).unwrap();
    assert!(said.matches("AWS_REGION=kept").count() >= 2, "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}
