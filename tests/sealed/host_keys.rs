//! Hosts that add backups and cannot read them.

use crate::{
    runs,
    world::{HIDDEN, Person, World, files_below, id_of},
};
use std::{ffi::OsString, fs, path::Path};

const CANNOT_READ: &str = "can add backups and cannot read them";

/// A repository of an owner, and a host that adds to it.
fn world_with_host() -> (World, Person, Person) {
    let world = World::new();
    let (me, host) = (world.person("me"), world.person("host"));
    let repository = world.repository();
    world.init(&repository, &me);
    let put = args![
        "key",
        "put",
        repository,
        "--for",
        host.recipient,
        "--name",
        "web1"
    ];
    world.run_as(&me, put).ends_with(0);
    (world, me, host)
}

/// Adds a backup of the same tree, as that of another host.
fn back_up_another_host(world: &World, me: &Person) {
    let backup = args![
        "backup",
        world.tree(),
        "--to",
        world.repository(),
        "--host",
        "other"
    ];
    world.run_as(me, backup).ends_with(0);
}

#[test]
fn a_host_adds_full_and_incremental_backups_and_reads_none() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    // The host has no list of it.
    back_up_another_host(&world, &me);
    let [first, second] = world.two_backups(&repository, &host);
    world.change(5);
    let third = world.backup(&repository, &host);
    assert_eq!(third["bases"][0], second.as_str());
    let at = |id: &str| format!("{}@{id}", repository.display());
    let out = world.path("out");
    let refused: [Vec<OsString>; 5] = [
        args!["repair", repository, "--yes"].into(),
        args!["restore", at(&first), "--to", out].into(),
        args!["export", at(&first), "--to", world.path("a.tar.zst")].into(),
        args!["verify", at(&first), "--against", world.tree()].into(),
        args!["copy", at(&first), world.path("c"), "--no-encryption"].into(),
    ];
    for args in refused {
        let ran = world.run_as(&host, args.clone());
        assert_eq!(ran.code, 1, "{args:?}: {}", ran.err);
        assert!(!out.exists() || runs::names(&out).is_empty(), "{args:?}");
    }
    let restore = args!["restore", at(&first), "--to", out];
    world
        .run_as(&host, restore)
        .ends_with(1)
        .has_one_error(CANNOT_READ);
    world
        .run_as(&host, args!["verify", repository, "--data"])
        .ends_with(0);
    for verb in ["rotate", "list"] {
        let ran = world.run_as(&host, args!["key", verb, repository]);
        assert_eq!(ran.code == 0, verb == "list", "{}", ran.err);
    }
    world
        .run_as(&me, args!["verify", repository, "--data"])
        .ends_with(0);
    world.assert_restores(Path::new(&at(&id_of(&third))), &me, "added by the host");
}

#[test]
fn a_first_backup_of_a_host_names_no_backup_of_another() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    back_up_another_host(&world, &me);
    let first = world.backup(&repository, &host);
    assert_eq!(first["unlike"], serde_json::Value::Null, "{first}");
    let source = |id: &str| id[19..21].to_owned();
    let second = world.backup(&repository, &host);
    assert_eq!(source(&id_of(&first)), source(&id_of(&second)));
}

#[test]
fn a_host_does_a_full_backup_where_it_has_no_right_copy_of_its_list() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    let first = id_of(&world.backup(&repository, &host));
    let state = world.path("state");
    let root = |id: &str| {
        let name = format!("{id}.root.json");
        let kept = files_below(&state);
        kept.into_iter().find(|path| path.ends_with(&name)).unwrap()
    };
    // A list of another backup in its place.
    let kept = root(&first);
    let bytes = fs::read(&kept).unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    fs::write(
        &kept,
        text.replace(HIDDEN, "othersecretname")
            .replace("9000", "9001"),
    )
    .unwrap();
    let changed = fs::read(&kept).unwrap() != bytes;
    let second = world.backup(&repository, &host);
    assert_eq!(second["bases"].as_array().unwrap().is_empty(), changed);
    fs::remove_dir_all(&state).unwrap();
    let third = world.backup(&repository, &host);
    assert!(third["bases"].as_array().unwrap().is_empty());
    assert!(
        third["unlike"]["why"].as_str().unwrap().contains("no copy"),
        "{third}"
    );
    // Manifests that were cut off or are missing: what they list is stored again.
    for damage in ["cut", "missing"] {
        for manifest in files_below(&state) {
            if manifest.to_str().unwrap().ends_with(".manifest") {
                match damage {
                    "cut" => fs::write(&manifest, b"cut").unwrap(),
                    _ => fs::remove_file(&manifest).unwrap(),
                }
            }
        }
        let result = world.backup(&repository, &host);
        assert_eq!(result["kept"], 0, "{damage}: {result}");
    }
    world
        .run_as(&me, args!["verify", repository, "--data"])
        .ends_with(0);
    world.assert_restores(&repository, &me, "after all");
}

#[test]
fn what_a_host_keeps_is_for_its_user_and_goes_with_the_backup() {
    use std::os::unix::fs::PermissionsExt;
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    let [first, second] = world.two_backups(&repository, &host);
    let kept = files_below(&world.path("state"));
    assert_eq!(kept.len(), 4, "{kept:?}");
    for path in &kept {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o077, 0);
        let parent = path.parent().unwrap().metadata().unwrap();
        assert_eq!(parent.permissions().mode() & 0o077, 0);
        let bytes = fs::read(path).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("AGE-SECRET-KEY"));
    }
    world
        .run_as(&me, args!["forget", "--yes", repository, first, second])
        .ends_with(0);
    world.run_as(&me, args!["prune", repository]).ends_with(0);
    let third = world.backup(&repository, &host);
    assert!(third["bases"].as_array().unwrap().is_empty());
    let left = runs::names(kept[0].parent().unwrap());
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(
        left.iter().all(|name| name.starts_with(&id_of(&third))),
        "{left:?}"
    );
}

#[test]
fn a_host_whose_key_was_removed_adds_nothing_after_a_rotation() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    world.backup(&repository, &host);
    let remove = args!["key", "remove", repository, "--name", "web1", "--put"];
    world.run_as(&me, remove).ends_with(0);
    world
        .run_as(&me, args!["key", "rotate", repository])
        .ends_with(0);
    let backup = args!["backup", world.tree(), "--to", repository];
    world
        .run_as(&host, backup)
        .ends_with(1)
        .has_one_error("none of the keys");
    world.assert_restores(&repository, &me, "what it added stays");
}

#[test]
fn a_host_goes_on_with_its_increments_after_a_rotation() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    let first = id_of(&world.backup(&repository, &host));
    world
        .run_as(&me, args!["key", "rotate", repository])
        .ends_with(0);
    world.change(4);
    let second = world.backup(&repository, &host);
    assert_eq!(second["bases"][0], first.as_str());
    world.assert_restores(&repository, &me, "over a rotation");
}

#[test]
fn find_with_a_put_key_names_the_key_and_denies_nothing() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    world.backup(&repository, &me);
    world
        .run_as(&host, args!["find", repository, "*"])
        .ends_with(1)
        .has_one_error("the key that was given can add backups and cannot read them");
    world
        .run_as(&me, args!["find", repository, "*"])
        .ends_with(0);
}
