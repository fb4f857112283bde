//! Copies and exports between clear and encrypted repositories.

use super::{
    runs::{self, shape},
    world::{Person, World, id_of},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A clear repository with two backups; their ids.
fn clear(world: &World) -> (PathBuf, [String; 2]) {
    let repository = world.path("clear");
    world.run(args!["init", repository]).ends_with(0);
    let ids = world.two_backups(&repository, &world.without_key());
    (repository, ids)
}

fn at(repository: &Path, id: &str) -> String {
    format!("{}@{id}", repository.display())
}

/// Is a copy whole, for whoever has the key, and for its storage?
fn assert_sound(world: &World, repository: &Path, person: &Person, case: &str) {
    world
        .run_as(person, args!["verify", repository, "--data"])
        .ends_with(0);
    world
        .run(args!["verify", repository, "--data"])
        .ends_with(0);
    world.assert_restores(repository, person, case);
}

#[test]
fn a_backup_is_copied_from_clear_to_encrypted_and_back() {
    let world = World::new();
    let (repository, [first, second]) = clear(&world);
    let me = world.person("me");
    let sealed = world.path("sealed");
    let encrypt = args!["--encrypt-to", me.recipient, "--json"];
    let copy = |source: &str, target: &Path| args!["copy", source, target];
    let to_sealed = copy(&at(&repository, &second), &sealed);
    let ran = world
        .run(to_sealed.iter().cloned().chain(encrypt))
        .ends_with(0);
    assert_eq!(ran.json().last().unwrap()["there_objects"], 0);
    assert_sound(&world, &sealed, &me, "clear to encrypted");
    // Again, and the earlier one: their segments are there.
    world.run_as(&me, to_sealed).ends_with(0);
    let earlier = copy(&at(&repository, &first), &sealed);
    let ran = world
        .run_as(&me, earlier.into_iter().chain(args!["--json"]))
        .ends_with(0);
    assert!(
        ran.json().last().unwrap()["there_objects"]
            .as_u64()
            .unwrap()
            > 0
    );
    world
        .run_as(&me, args!["verify", sealed, "--data"])
        .ends_with(0);
    world.run(args!["verify", sealed, "--data"]).ends_with(0);
    let back = world.path("back");
    let source = at(&sealed, &second);
    world
        .run_as(&me, copy(&source, &back))
        .ends_with(2)
        .has_one_error("decide whether it is encrypted");
    assert!(!back.exists());
    let clear = copy(&source, &back)
        .into_iter()
        .chain(args!["--no-encryption"]);
    world.run_as(&me, clear).ends_with(0);
    assert_sound(&world, &back, &world.without_key(), "encrypted to clear");
    assert!(!back.join("keys").exists());
}

#[test]
fn a_copy_for_other_keys_is_sealed_anew() {
    let world = World::new();
    let (me, other) = (world.person("me"), world.person("other"));
    let (source, target) = (world.repository(), world.path("other"));
    world.init(&source, &me);
    world.init(&target, &other);
    let [_, second] = world.two_backups(&source, &me);
    let copy = args!["copy", at(&source, &second), target];
    world
        .run_as(&me, copy.clone())
        .ends_with(1)
        .has_one_error("none of the keys");
    world
        .run(copy.clone())
        .ends_with(1)
        .has_one_error("it is encrypted");
    assert_eq!(runs::names(&target.join("backups")), [""; 0]);
    let both = args!["--key", me.key, "--key", other.key];
    world.run(copy.into_iter().chain(both)).ends_with(0);
    fs::rename(&source, world.path("away")).unwrap();
    assert_sound(&world, &target, &other, "for other keys");
    world.run_as(&me, args!["list", target]).ends_with(1);
    // The next backup goes on from the copy.
    world.change(3);
    let result = world.backup(&target, &other);
    assert_eq!(result["bases"][0], second.as_str());
    assert_sound(&world, &target, &other, "a backup after the copy");
}

#[test]
fn a_repository_is_synced_to_other_keys_to_a_clear_one_and_without_any_key() {
    let world = World::new();
    let (me, other) = (world.person("me"), world.person("other"));
    let (source, target) = (world.repository(), world.path("other"));
    world.init(&source, &me);
    world.init(&target, &other);
    let [first, second] = world.two_backups(&source, &me);
    let both = args!["--key", me.key, "--key", other.key, "--json"];
    let sync = |target: &Path| args!["sync", source, target].to_vec();
    let to_other = || sync(&target).into_iter().chain(both.clone());
    let copied = |ran: runs::Ran| {
        let result = ran.ends_with(0).json().pop().unwrap();
        let ids = result["copied"].as_array().unwrap().iter();
        ids.map(|one| one["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        copied(world.run(to_other())),
        [first.clone(), second.clone()]
    );
    assert_sound(&world, &target, &other, "for other keys");
    world.change(5);
    let third = id_of(&world.backup(&source, &me));
    assert_eq!(copied(world.run(to_other())), std::slice::from_ref(&third));
    assert_sound(&world, &target, &other, "one more for other keys");
    assert_eq!(copied(world.run(to_other())), [""; 0]);
    // The same keys, and none on the command line: what is stored is copied as it is.
    let replica = world.path("replica");
    let blind = sync(&replica).into_iter().chain(args!["--json"]);
    assert_eq!(
        copied(world.run(blind.clone())),
        [&first[..], &second, &third]
    );
    assert_sound(&world, &replica, &me, "a replica");
    world.change(6);
    world.backup(&source, &me);
    assert_eq!(copied(world.run(blind)).len(), 1);
    assert_sound(&world, &replica, &me, "one more in the replica");
    let plain = world.path("plain");
    world
        .run_as(&me, sync(&plain))
        .ends_with(2)
        .has_one_error("decide whether it is encrypted");
    let clear = sync(&plain).into_iter().chain(args!["--no-encryption"]);
    world.run_as(&me, clear).ends_with(0);
    assert_sound(&world, &plain, &world.without_key(), "clear");
}

#[test]
fn without_a_key_a_backup_is_copied_as_it_is_stored_to_where_the_same_keys_are() {
    let world = World::new();
    let me = world.person("me");
    let (source, target) = (world.repository(), world.path("replica"));
    world.init(&source, &me);
    let [first, second] = world.two_backups(&source, &me);
    let copy = |id: &str, target: &Path| args!["copy", at(&source, id), target];
    world.run(copy(&second, &target)).ends_with(0);
    assert_sound(&world, &target, &me, "a replica");
    world.run(copy(&first, &target)).ends_with(0);
    let segment = |repository: &Path| {
        let stored = repository
            .join("backups")
            .join(&second)
            .join("s01-000001.tar.zst");
        fs::read(stored).unwrap()
    };
    assert_eq!(
        segment(&source),
        segment(&target),
        "nothing was sealed anew"
    );
    world
        .run_as(&me, args!["verify", target, "--data"])
        .ends_with(0);
    let clear = world.path("clear");
    world.run(args!["init", clear]).ends_with(0);
    world
        .run(copy(&second, &clear))
        .ends_with(1)
        .has_one_error("the destination has not the same keys");
    let encrypt = args!["--encrypt-to", me.recipient];
    let elsewhere = copy(&second, &world.path("elsewhere"));
    world
        .run(elsewhere.into_iter().chain(encrypt))
        .ends_with(1)
        .has_one_error("no key was given");
    // What a storage changed is not copied.
    let stored = source
        .join("backups")
        .join(&second)
        .join("s01-000001.tar.zst");
    let mut bytes = fs::read(&stored).unwrap();
    bytes[600] ^= 1;
    fs::write(&stored, bytes).unwrap();
    world
        .run(copy(&second, &world.path("third")))
        .ends_with(4)
        .has_one_error("are damaged");
}

#[test]
fn a_backup_is_exported_from_clear_to_encrypted_and_back() {
    let world = World::new();
    let (repository, [_, second]) = clear(&world);
    let me = world.person("me");
    let (sealed, back) = (world.path("sealed"), world.path("back"));
    let export = |source: &str, target: &Path| args!["export", source, "--to", target, "--quiet"];
    let encrypt = args!["--encrypt-to", me.recipient];
    let source = at(&repository, &second);
    world
        .run(export(&source, &sealed).into_iter().chain(encrypt))
        .ends_with(0);
    assert_sound(&world, &sealed, &me, "clear to encrypted");
    let source = sealed.to_str().unwrap();
    world
        .run_as(&me, export(source, &back))
        .ends_with(2)
        .has_one_error("decide whether it is encrypted");
    let clear = export(source, &back)
        .into_iter()
        .chain(args!["--no-encryption"]);
    world.run_as(&me, clear).ends_with(0);
    assert_sound(&world, &back, &world.without_key(), "encrypted to clear");
    let archive = world.path("a.tar.zst");
    world.run_as(&me, export(source, &archive)).ends_with(0);
    let out = world.path("out");
    world
        .run(args!["restore", archive, "--to", out, "--quiet"])
        .ends_with(0);
    runs::assert_same(&world.shape(), &shape(&out), "a clear archive");
    assert!(id_of(&world.backup(&back, &world.without_key())).len() > 10);
}

#[test]
fn a_backup_goes_to_repositories_with_different_keys_and_to_a_clear_one_at_once() {
    let world = World::new();
    let (me, other) = (world.person("me"), world.person("other"));
    let (one, two, clear) = (world.repository(), world.path("two"), world.path("clear"));
    world.init(&one, &me);
    world.init(&two, &other);
    world.run(args!["init", clear]).ends_with(0);
    let backup = || {
        let to = args!["--to", one, "--to", two, "--to", clear, "--no-encryption"];
        let keys = args!["--key", me.key, "--key", other.key];
        let small = args!["--segment-size", "1M", "--json"];
        let args = args!["backup", world.tree()].into_iter();
        let ran = world.run(args.chain(to).chain(keys).chain(small));
        ran.ends_with(0).json().pop().unwrap()
    };
    let first = backup();
    let sound = |case: &str| {
        assert_sound(&world, &one, &me, case);
        assert_sound(&world, &two, &other, case);
        assert_sound(&world, &clear, &world.without_key(), case);
    };
    sound("first");
    world.change(3);
    let second = backup();
    assert_eq!(second["bases"][0], first["id"]);
    let ends = second["destinations"].as_array().unwrap();
    assert!(ends.iter().all(|end| end["copied_bytes"] == 0), "{second}");
    sound("second");
    // No byte of content is the same in the three.
    let stored = |repository: &Path| {
        let id = first["id"].as_str().unwrap();
        fs::read(
            repository
                .join("backups")
                .join(id)
                .join("s01-000001.tar.zst"),
        )
        .unwrap()
    };
    let [a, b, c] = [&one, &two, &clear].map(|repository| stored(repository));
    assert!(a != b && a.len() == b.len() && c.len() < a.len());
}

#[test]
fn a_host_that_only_adds_backs_up_to_two_repositories() {
    let world = World::new();
    let (me, host) = (world.person("me"), world.person("host"));
    let places = [world.repository(), world.path("two")];
    for repository in &places {
        world.init(repository, &me);
        let put = args![
            "key",
            "put",
            repository,
            "--name",
            "web1",
            "--for",
            host.recipient
        ];
        world.run_as(&me, put).ends_with(0);
    }
    for turn in 0..2 {
        world.change(turn);
        let args = args!["backup", world.tree(), "--to", places[0], "--to", places[1]];
        world.run_as(&host, args).ends_with(0);
        for repository in &places {
            assert_sound(&world, repository, &me, "added");
        }
    }
}
