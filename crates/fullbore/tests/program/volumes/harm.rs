//! Lost, damaged, foreign and unfinished volumes cost only what is on them, and it is told.

use super::{World, paths};
use crate::runs::{assert_same, fullbore, has, names, or_skip, shape, tampered};
use std::{collections::BTreeSet, fs};

#[test]
fn a_lost_volume_costs_only_what_is_on_it() {
    let world = World::new();
    let volumes = world.backup();
    let all = paths(&world.tree);
    let aside = world.dir.path().join("aside");
    for name in &volumes[..volumes.len() - 1] {
        fs::rename(world.media.join(name), &aside).unwrap();
        let (ran, _, _dir) = world.restore(&[]);
        ran.ends_with(4).has_one_error("missing");
        let (ran, back, _dir) = world.restore(&["--keep-going"]);
        let ran = ran.ends_with(4);
        let lost: BTreeSet<_> = all.difference(&paths(&back)).cloned().collect();
        assert!(!lost.is_empty() && lost.len() < all.len(), "{name}");
        for path in lost {
            let told = format!("lost: \"{}\"", path.trim_start_matches("./"));
            let is_link = path == "./z/hard" || path == "./z/link";
            assert!(
                is_link || ran.out.contains(&told) || ran.err.contains(&told),
                "{told}: {} {}",
                ran.out,
                ran.err
            );
        }
        fullbore(args!["verify", world.location()]).ends_with(4);
        fs::rename(&aside, world.media.join(name)).unwrap();
    }
    world.restore(&[]).0.ends_with(0);
}

#[test]
fn without_its_last_volume_a_backup_is_told_to_be_incomplete() {
    let world = World::new();
    let volumes = world.backup();
    fs::remove_file(world.media.join(volumes.last().unwrap())).unwrap();
    let (ran, _, _dir) = world.restore(&[]);
    ran.ends_with(4).has_one_error("the backup is incomplete");
    let (ran, back, _dir) = world.restore(&["--keep-going"]);
    ran.ends_with(4);
    assert!(paths(&back).is_subset(&paths(&world.tree)));
    let none = world.dir.path().join("none");
    fullbore(args!["verify", world.location(), "--catalog", none]).ends_with(4);
    let listed = fullbore(args!["list", world.location(), "--catalog", none]).ends_with(4);
    assert!(listed.out.contains("d0/f0"), "{}", listed.out);
    let to = world.dir.path().join("exported");
    let export = args!["export", world.location(), "--to", to, "--catalog", none];
    fullbore(export)
        .ends_with(4)
        .has_one_error("the backup is incomplete");
    // The catalog of this host knows the names on the lost volume.
    let ran = fullbore(args![
        "verify",
        world.location(),
        "--catalog",
        world.catalog()
    ])
    .ends_with(4);
    assert!(
        ran.out.contains("z/empty") || ran.out.contains("is missing"),
        "{}",
        ran.out
    );
    let listed = fullbore(args![
        "list",
        world.location(),
        "--catalog",
        world.catalog()
    ])
    .ends_with(0);
    assert!(listed.out.contains("z/empty"), "{}", listed.out);
}

#[test]
fn damage_of_any_volume_is_found_and_costs_only_files_on_it() {
    let world = World::new();
    let before = shape(&world.tree);
    for name in world.backup() {
        let path = world.media.join(&name);
        let whole = fs::read(&path).unwrap();
        for place in [20, whole.len() / 2, whole.len() - 30] {
            let mut bytes = whole.clone();
            bytes[place] ^= 0x40;
            fs::write(&path, bytes).unwrap();
            let case = format!("{name} at {place}");
            let line = args!["verify", world.location(), "--data"];
            assert_eq!(fullbore(line).code, 4, "{case}");
            let (ran, back, _dir) = world.restore(&["--keep-going"]);
            assert!([0, 4].contains(&ran.code), "{case}: {}", ran.err);
            let after = shape(&back);
            if ran.code == 0 {
                assert_same(&before, &after, &case);
            }
            let wrong: Vec<_> = paths(&back)
                .into_iter()
                .filter(|path| !path.ends_with("link"))
                .filter(|path| {
                    fs::read(back.join(path)).ok() != fs::read(world.tree.join(path)).ok()
                })
                .collect();
            assert!(wrong.is_empty(), "{case}: {wrong:?}");
        }
        fs::write(&path, whole).unwrap();
    }
}

#[test]
fn volumes_of_another_backup_are_not_mixed_in() {
    let (world, other) = (World::new(), World::new());
    let volumes = world.backup();
    let others = other.backup();
    let second = world.media.join(&volumes[1]);
    for stranger in [other.media.join(&others[1]), world.media.join(&volumes[0])] {
        let own = fs::read(&second).unwrap();
        fs::write(&second, fs::read(stranger).unwrap()).unwrap();
        let (ran, _, _dir) = world.restore(&[]);
        let ran = ran.ends_with(4);
        assert!(ran.err.contains("another volume"), "{}", ran.err);
        let (ran, back, _dir) = world.restore(&["--keep-going"]);
        ran.ends_with(4);
        for path in paths(&back).iter().filter(|path| !path.ends_with("link")) {
            assert_eq!(
                fs::read(back.join(path)).unwrap(),
                fs::read(world.tree.join(path)).unwrap()
            );
        }
        fs::write(&second, own).unwrap();
    }
    // A stranger behind the last one has another root: the newest decides, and says so of all others.
    let next = format!("-{:03}.tar.zst", volumes.len() + 1);
    let beyond = world.media.join(volumes[0].replace("-001.tar.zst", &next));
    fs::copy(other.media.join(&others[0]), &beyond).unwrap();
    world.restore(&[]).0.ends_with(0);
}

#[test]
fn killed_at_any_system_call_volumes_look_no_more_complete_than_they_are() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let world = World::new();
    let before = shape(&world.tree);
    let mut kills = 0;
    for calls in ["fsync", "rename,renameat,renameat2", "pwrite64", "openat"] {
        for when in [1, 2, 3, 5, 9] {
            fs::remove_dir_all(&world.media).unwrap();
            fs::create_dir(&world.media).unwrap();
            let inject = format!("{calls}:signal=KILL:when={when}");
            let ran = tampered(&inject, None, world.backup_args("1M"));
            let case = format!("{calls} {when}");
            kills += i32::from(ran.code != 0);
            let volumes = names(&world.media);
            let named = volumes.iter().any(|name| name.starts_with('v'));
            if !named {
                assert_ne!(ran.code, 0, "{case}");
                continue;
            }
            let (restored, back, _dir) = world.restore(&["--keep-going"]);
            match restored.code {
                0 => assert_same(&before, &shape(&back), &case),
                4 => {
                    assert_ne!(ran.code, 0, "{case}");
                    for path in paths(&back).iter().filter(|path| !path.ends_with("link")) {
                        assert_eq!(
                            fs::read(back.join(path)).unwrap(),
                            fs::read(world.tree.join(path)).unwrap(),
                            "{case}"
                        );
                    }
                }
                code => panic!("{case}: {code} {}", restored.err),
            }
        }
    }
    assert!(kills > 8, "this test tests nothing: {kills}");
}
