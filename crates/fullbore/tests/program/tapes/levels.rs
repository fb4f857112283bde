//! Levels: a backup stores what changed since the latest one of a lower level, on the same tape or on tapes of a shelf.

use super::{World, args_of};
use crate::runs::{self, Ran, Shape, assert_same, fullbore, shape};
use crate::volumes::{change, settle};
use std::{ffi::OsString, fs, path::PathBuf};

/// A backup: its id, the tree as it was, and the name of its tape.
struct Made {
    id: String,
    tree: Shape,
    tape: String,
}

/// The backups that the catalog knows, the newest first.
fn cataloged(world: &World) -> Vec<serde_json::Value> {
    let line = args!["list", "tape:", "--json", "--catalog", world.catalog()];
    fullbore(line).ends_with(0).json()
}

fn newest(world: &World) -> String {
    cataloged(world)[0]["id"].as_str().unwrap().to_owned()
}

fn bases(world: &World, id: &str) -> Vec<String> {
    let from = format!("tape:@{id}");
    let line = args!["show", from, "--json", "--catalog", world.catalog()];
    let json = fullbore(line).ends_with(0).json().remove(0);
    serde_json::from_value(json["bases"].clone()).unwrap_or_default()
}

fn take_out(world: &World, tape: &str) {
    fs::rename(world.cartridge(), world.shelf().join(tape)).unwrap();
}

/// Backups of level 0, 1, 2 and 1 again: on one tape, which stays in the drive, or each on a tape of its own, which then stands on the shelf.
fn leveled(on_one_tape: bool) -> (World, Vec<Made>) {
    let world = World::new();
    settle();
    let mut made = Vec::new();
    for (seed, level) in ["0", "1", "2", "1"].into_iter().enumerate() {
        if seed > 0 {
            change(&world.tree, seed as u64);
        }
        if seed == 1 {
            settle();
        }
        let tape = match on_one_tape {
            true => "A".to_owned(),
            false => format!("T{seed}"),
        };
        if seed == 0 || !on_one_tape {
            world.insert(&[]);
            fullbore(args!["tape", "label", world.location(), tape]).ends_with(0);
        }
        let more: &[&str] = if on_one_tape { &["--append"] } else { &[] };
        world
            .backup(&[&["--level", level], more].concat())
            .ends_with(0);
        if !on_one_tape {
            take_out(&world, &tape);
        }
        made.push(Made {
            id: newest(&world),
            tree: shape(&world.tree),
            tape,
        });
    }
    (world, made)
}

/// A program that puts the wanted tape of the shelf into the drive, and notes it.
fn changer(world: &World) -> String {
    let path = world.dir.path().join("by-label");
    let script = format!(
        "#!/bin/sh\ndrive=${{FULLBORE_MEDIA_DRIVE#sim:}}; shelf={0}\n\
         echo \"$FULLBORE_MEDIA_LABEL\" >> {1}\n\
         [ -e $drive ] && {{ mv $drive $shelf/$(cat $shelf.in); rm -f $shelf.in; }}\n\
         mv $shelf/$FULLBORE_MEDIA_LABEL $drive || exit 2\n\
         echo $FULLBORE_MEDIA_LABEL > $shelf.in\n",
        world.shelf().display(),
        world.dir.path().join("log").display(),
    );
    runs::write(&path, script);
    runs::set_mode(&path, 0o755);
    path.display().to_string()
}

/// Puts a tape of the shelf into the drive, and the one in the drive back.
fn insert_tape(world: &World, tape: Option<&str>) {
    let noted = world.dir.path().join("shelf.in");
    if world.cartridge().exists() {
        // A drive without a tape gets a blank one.
        take_out(
            world,
            fs::read_to_string(&noted)
                .unwrap_or("blank".to_owned())
                .trim(),
        );
    }
    let _ = fs::remove_file(&noted);
    if let Some(tape) = tape {
        fs::rename(world.shelf().join(tape), world.cartridge()).unwrap();
        fs::write(noted, tape).unwrap();
    }
}

fn restored(
    world: &World,
    id: &str,
    by_catalog: bool,
    more: &[&str],
) -> (Ran, PathBuf, tempfile::TempDir) {
    let dir = runs::temp();
    let back = dir.path().join("back");
    let catalog = match by_catalog {
        true => world.catalog(),
        false => dir.path().join("none"),
    };
    let mut from: OsString = world.location();
    from.push(format!("@{id}"));
    let line = args!["restore", from, "--to", back, "--catalog", catalog];
    let ran = fullbore(line.into_iter().chain(args_of(more)));
    (ran, back, dir)
}

#[test]
fn levels_on_one_tape_restore_and_store_what_changed() {
    let (world, made) = leveled(true);
    for Made { id, tree, .. } in &made {
        for by_catalog in [true, false] {
            let (ran, back, _dir) = restored(&world, id, by_catalog, &[]);
            ran.ends_with(0);
            assert_same(tree, &shape(&back), id);
        }
    }
    let ids: Vec<_> = made.iter().map(|made| &made.id[..]).collect();
    let expected: [&[&str]; 4] = [&[], &ids[..1], &ids[1..2], &ids[..1]];
    for (id, expected) in ids.iter().zip(expected) {
        assert_eq!(bases(&world, id), expected, "{id}");
    }
    // The large file has 1.5 of the 3.5 MB, and changes each time.
    let stored: Vec<_> = cataloged(&world)
        .iter()
        .map(|backup| backup["stored_bytes"].as_u64().unwrap())
        .collect();
    let (full, levels) = stored.split_last().unwrap();
    assert!(
        levels.iter().all(|bytes| *bytes < full * 7 / 10),
        "{stored:?}"
    );
    fullbore(args![
        "verify",
        world.location(),
        "--data",
        "--against",
        world.tree,
        "--catalog",
        world.catalog()
    ])
    .ends_with(0);
}

#[test]
fn a_drive_gets_the_tapes_of_the_bases_once_in_order() {
    let (world, made) = leveled(false);
    let change = changer(&world);
    for (index, wanted) in [(2, vec!["T0", "T1", "T2"]), (3, vec!["T0", "T3"])] {
        let Made { id, tree, tape } = &made[index];
        let from = format!("tape:@{id}");
        let line = args!["restore", from, "--to", "/nowhere/x", "--plan", "--json"];
        let plan = fullbore(line.into_iter().chain(args!["--catalog", world.catalog()]));
        let plan = plan.ends_with(0).json().remove(0);
        assert_eq!(plan["tapes"], serde_json::json!(wanted), "{plan}");
        for (by_catalog, workers) in [(true, "1"), (true, "8"), (false, "8")] {
            // Without a catalog, the last tape tells where the others stand.
            insert_tape(&world, (!by_catalog).then_some(tape));
            let more = ["--change-command", &change, "--workers", workers];
            let (ran, back, _dir) = restored(&world, id, by_catalog, &more);
            ran.ends_with(0);
            assert_same(tree, &shape(&back), id);
            assert_eq!(world.asked(), wanted, "{id} {by_catalog} {workers}");
        }
    }
}

#[test]
fn a_lost_tape_of_a_base_is_named_and_the_rest_restores() {
    let (world, made) = leveled(false);
    let change = changer(&world);
    fs::remove_file(world.shelf().join("T0")).unwrap();
    let id = &made[2].id;
    for by_catalog in [true, false] {
        insert_tape(&world, Some("T2"));
        let (ran, ..) = restored(&world, id, by_catalog, &["--change-command", &change]);
        let ran = ran.ends_with(4);
        assert!(ran.err.contains("tape \"T0\" is missing"), "{}", ran.err);
        insert_tape(&world, Some("T2"));
        let more = ["--change-command", &change, "--keep-going"];
        let (ran, back, _dir) = restored(&world, id, by_catalog, &more);
        ran.ends_with(4);
        // From level 1, and from level 2 itself.
        for path in ["new1", "new2", "d1/f1", "large"] {
            let found = fs::read(back.join(path)).unwrap();
            assert_eq!(found.len() as u64, len_at(&made[2], path), "{path}");
        }
        assert!(!back.join("d0/f5").exists());
    }
}

fn len_at(made: &Made, path: &str) -> u64 {
    match path {
        "d1/f1" => 3000,
        "large" => 1_500_000,
        _ => {
            assert!(made.tree.len() > 50);
            40_000
        }
    }
}

#[test]
fn a_tape_of_a_base_is_not_written_over_by_a_level() {
    let world = World::new();
    settle();
    world.insert(&[]);
    fullbore(args!["tape", "label", world.location(), "A"]).ends_with(0);
    world.backup(&["--level", "0"]).ends_with(0);
    let base = newest(&world);
    fs::copy(world.cartridge(), world.shelf().join("A")).unwrap();
    settle();
    // The base is lost with its tape, so everything is stored, and no later level builds on it.
    world
        .backup(&["--level", "1", "--overwrite", "A"])
        .ends_with(0);
    assert!(bases(&world, &newest(&world)).is_empty());
    world.assert_comes_back(&[], "written over");
    let first = newest(&world);
    world.backup(&["--level", "2", "--append"]).ends_with(0);
    assert_eq!(bases(&world, &newest(&world)), [first]);
    world.assert_comes_back(&[], "added");
    world
        .backup(&["--append", "--base", &base])
        .ends_with(1)
        .has_one_error("could not find a backup");
    // As the second tape of a level it is refused, whatever was allowed.
    take_out(&world, "A");
    world.insert(&["capacity-bytes=900K", "warning-bytes=300K"]);
    runs::write(world.tree.join("more"), runs::noise(9, 2_000_000));
    let again = world.dir.path().join("again");
    let script = format!(
        "#!/bin/sh\ncp {} ${{FULLBORE_MEDIA_DRIVE#sim:}}\n",
        world.shelf().join("A").display()
    );
    runs::write(&again, script);
    runs::set_mode(&again, 0o755);
    let again = again.display().to_string();
    let more = ["--overwrite", "A", "--change-command", &again];
    let ran = world.backup(&[&["--level", "2"], &more[..]].concat());
    let ran = ran.ends_with(1);
    assert!(
        ran.err
            .contains("this backup builds on one that is on tape \"A\""),
        "{}",
        ran.err
    );
}

#[test]
fn without_the_catalog_everything_is_stored_and_hanoi_and_due_know_tapes() {
    let world = World::new();
    settle();
    world.insert(&[]);
    let dates = world.dir.path().join("dumpdates");
    let dates = dates.display().to_string();
    for _ in 0..3 {
        let more = ["--append", "--level", "hanoi", "--dumpdates", &dates];
        world.backup(&more).ends_with(0);
    }
    let text = fs::read_to_string(&dates).unwrap();
    let levels: Vec<_> = text
        .lines()
        .map(|line| line.split_whitespace().nth(1).unwrap())
        .collect();
    assert_eq!(levels, ["0", "3", "2"], "{text}");
    for from in [world.location(), "tape:".into()] {
        let line = args!["list", "--due", "-l", from, "--catalog", world.catalog()];
        let due = fullbore(line).ends_with(0);
        assert!(due.out.contains("level 2 of today"), "{}", due.out);
    }
    let stored = |backups: Vec<serde_json::Value>| backups[0]["stored_bytes"].as_u64().unwrap();
    assert!(stored(cataloged(&world)) < 500_000);
    fs::remove_dir_all(world.catalog()).unwrap();
    world.backup(&["--append", "--level", "5"]).ends_with(0);
    assert!(stored(cataloged(&world)) > 1_500_000);
    assert!(bases(&world, &newest(&world)).is_empty());
    world.assert_comes_back(&[], "without a base");
    // A scanned tape is a base again.
    fs::remove_dir_all(world.catalog()).unwrap();
    let line = args![
        "tape",
        "scan",
        world.location(),
        "--catalog",
        world.catalog()
    ];
    fullbore(line).ends_with(0);
    let scanned = newest(&world);
    world.backup(&["--append", "--level", "6"]).ends_with(0);
    assert_eq!(bases(&world, &newest(&world)), [scanned]);
    world.assert_comes_back(&[], "on a scanned base");
}
