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
    let copy = |from: &str, to: &Path| args!["copy", from, to];
    let to_sealed = copy(&at(&repository, &second), &sealed);
    let ran = world
        .run(to_sealed.iter().cloned().chain(encrypt))
        .ends_with(0);
    assert_eq!(ran.json().last().unwrap()["there"], 0);
    assert_sound(&world, &sealed, &me, "clear to encrypted");
    // Again, and the earlier one: their segments are there.
    world.run_as(&me, to_sealed).ends_with(0);
    let earlier = copy(&at(&repository, &first), &sealed);
    let ran = world
        .run_as(&me, earlier.into_iter().chain(args!["--json"]))
        .ends_with(0);
    assert!(ran.json().last().unwrap()["there"].as_u64().unwrap() > 0);
    world
        .run_as(&me, args!["verify", sealed, "--data"])
        .ends_with(0);
    world.run(args!["verify", sealed, "--data"]).ends_with(0);
    let back = world.path("back");
    let from = at(&sealed, &second);
    world
        .run_as(&me, copy(&from, &back))
        .ends_with(2)
        .has_one_error("decide whether it is encrypted");
    assert!(!back.exists());
    let clear = copy(&from, &back)
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
    let (from, to) = (world.repository(), world.path("other"));
    world.init(&from, &me);
    world.init(&to, &other);
    let [_, second] = world.two_backups(&from, &me);
    let copy = args!["copy", at(&from, &second), to];
    world
        .run_as(&me, copy.clone())
        .ends_with(1)
        .has_one_error("none of the keys");
    world
        .run(copy.clone())
        .ends_with(1)
        .has_one_error("it is encrypted");
    assert_eq!(runs::names(&to.join("backups")), [""; 0]);
    let both = args!["--key", me.key, "--key", other.key];
    world.run(copy.into_iter().chain(both)).ends_with(0);
    fs::rename(&from, world.path("away")).unwrap();
    assert_sound(&world, &to, &other, "for other keys");
    world.run_as(&me, args!["list", to]).ends_with(1);
    // The next backup goes on from the copy.
    world.change(3);
    let result = world.backup(&to, &other);
    assert_eq!(result["bases"][0], second.as_str());
    assert_sound(&world, &to, &other, "a backup after the copy");
}

#[test]
fn without_a_key_a_backup_is_copied_as_it_is_stored_to_where_the_same_keys_are() {
    let world = World::new();
    let me = world.person("me");
    let (from, to) = (world.repository(), world.path("replica"));
    world.init(&from, &me);
    let [first, second] = world.two_backups(&from, &me);
    let copy = |id: &str, to: &Path| args!["copy", at(&from, id), to];
    world.run(copy(&second, &to)).ends_with(0);
    assert_sound(&world, &to, &me, "a replica");
    world.run(copy(&first, &to)).ends_with(0);
    let segment = |repository: &Path| {
        let stored = repository
            .join("backups")
            .join(&second)
            .join("s01-000001.tar.zst");
        fs::read(stored).unwrap()
    };
    assert_eq!(segment(&from), segment(&to), "nothing was sealed anew");
    world
        .run_as(&me, args!["verify", to, "--data"])
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
    let stored = from
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
    let export = |from: &str, to: &Path| args!["export", from, "--to", to, "--quiet"];
    let encrypt = args!["--encrypt-to", me.recipient];
    let from = at(&repository, &second);
    world
        .run(export(&from, &sealed).into_iter().chain(encrypt))
        .ends_with(0);
    assert_sound(&world, &sealed, &me, "clear to encrypted");
    let from = sealed.to_str().unwrap();
    world
        .run_as(&me, export(from, &back))
        .ends_with(2)
        .has_one_error("decide whether it is encrypted");
    let clear = export(from, &back)
        .into_iter()
        .chain(args!["--no-encryption"]);
    world.run_as(&me, clear).ends_with(0);
    assert_sound(&world, &back, &world.without_key(), "encrypted to clear");
    let archive = world.path("a.tar.zst");
    world.run_as(&me, export(from, &archive)).ends_with(0);
    let out = world.path("out");
    world
        .run(args!["restore", archive, "--to", out, "--quiet"])
        .ends_with(0);
    runs::assert_same(&world.shape(), &shape(&out), "a clear archive");
    assert!(id_of(&world.backup(&back, &world.without_key())).len() > 10);
}
