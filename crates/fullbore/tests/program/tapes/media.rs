//! Tapes that are full, changed, protected, of other people: who is asked, and what is not written over.

use super::{World, key};
use crate::runs::{self, assert_same, fullbore, shape};
use std::fs;

/// What makes three tapes of the tree of these tests.
const SMALL: &str = "capacity-bytes=1400K";

fn volumes(asked: &[String]) -> Vec<u32> {
    let number = |line: &String| line.split(' ').nth(1).unwrap().parse().unwrap();
    asked.iter().map(number).collect()
}

#[test]
fn a_backup_fills_tapes_and_restore_asks_for_each_once_in_order() {
    // Room behind the early warning for the end of a part; and for less than a part: then it goes on on the next tape.
    // With a large buffer the tapes end when all of the backup has been laid.
    for (warning, early, buffer) in [
        ("700K", "refused", "1M"),
        ("700K", "taken", "1M"),
        ("64K", "refused", "1M"),
        ("64K", "taken", "1M"),
        ("130K", "refused", "16M"),
        ("200K", "taken", "16M"),
    ] {
        let case = format!("{warning} {early} {buffer}");
        let world = World::new();
        let (key, recipient) = key(world.dir.path());
        let warning = format!("warning-bytes={warning}");
        let early = format!("early-warning={early}");
        let seal = ["--encrypt-to", &recipient, "--tape-buffer", buffer];
        let asked = world.backup_on_several(&[SMALL, &warning, &early], &seal);
        let count = asked.len() as u32 + 1;
        assert!(count >= 3, "{case}: {asked:?}");
        assert_eq!(volumes(&asked), (2..=count).collect::<Vec<_>>(), "{case}");
        let changer = world.dir.path().join("changer").display().to_string();
        let more = [
            "--change-command",
            &changer,
            "--key",
            &key,
            "--workers",
            "2",
        ];
        // The last tape is in the drive. It may have nothing but the pages of all.
        let assert_once = |asked: &[u32]| {
            let in_order: Vec<_> = (1..=asked.len() as u32).collect();
            assert!(
                asked == in_order && asked.len() as u32 >= count - 1,
                "{case}: {asked:?}"
            );
        };
        let (ran, back, _dir) = world.restore_by_catalog(&more);
        ran.ends_with(0);
        assert_same(&shape(&world.tree), &shape(&back), &case);
        assert_once(&volumes(&world.asked()));
        world.insert_from_shelf(count);
        let (ran, back, _dir) = world.restore(&more);
        ran.ends_with(0);
        assert_same(&shape(&world.tree), &shape(&back), &case);
        assert_once(&volumes(&world.asked()));
    }
}

#[test]
fn a_wrong_tape_is_given_back_and_the_right_one_asked_for_again() {
    let world = World::new();
    world.backup_on_several(&[SMALL, "warning-bytes=700K"], &[]);
    let changer = world.dir.path().join("changer");
    let script = fs::read_to_string(&changer).unwrap();
    // The first answer to each question is the tape that was in the drive.
    let lazy = "#!/bin/sh\nlast=$0.last\n\
                [ \"$(cat $last 2>/dev/null)\" = $FULLBORE_MEDIA_VOLUME ] || { echo $FULLBORE_MEDIA_VOLUME > $last; exit 0; }\n";
    runs::write(&changer, script.replacen("#!/bin/sh\n", lazy, 1));
    runs::set_mode(&changer, 0o755);
    let changer = changer.display().to_string();
    let (ran, back, _dir) = world.restore_by_catalog(&["--change-command", &changer]);
    ran.ends_with(0);
    assert_same(&shape(&world.tree), &shape(&back), "wrong tapes");
}

#[test]
fn without_anybody_who_changes_tapes_the_backup_ends_and_what_is_on_the_tape_restores() {
    let world = World::new();
    world.insert(&[SMALL, "warning-bytes=700K"]);
    let script = world.dir.path().join("no");
    runs::write(&script, "#!/bin/sh\nexit 2\n");
    runs::set_mode(&script, 0o755);
    let no = script.display().to_string();
    let ran = world.backup(&["--change-command", &no]).ends_with(1);
    let ran = ran.has_one_error("could not continue on tape 2");
    assert!(
        ran.err.contains("restores, as an incomplete backup"),
        "{}",
        ran.err
    );
    let (ran, ..) = world.restore(&["--change-command", &no]);
    ran.ends_with(4).has_one_error("the backup is incomplete");
    let (ran, back, _dir) = world.restore(&["--change-command", &no, "--keep-going"]);
    ran.ends_with(4);
    let (there, all) = (super::paths(&back), super::paths(&world.tree));
    assert!(!there.is_empty() && there.is_subset(&all) && there.len() < all.len());
}

#[test]
fn backups_are_added_to_a_tape_and_each_restores() {
    let world = World::new();
    world.insert(&[]);
    world.backup(&[]).ends_with(0);
    let first = shape(&world.tree);
    runs::write(world.tree.join("added"), runs::noise(5, 300_000));
    let location = world.location();
    world
        .backup(&[])
        .ends_with(1)
        .has_one_error("cannot write to");
    world.backup(&["--append"]).ends_with(0);
    // The newest one, by what the tape says and by the catalog.
    world.assert_comes_back(&[], "appended");
    let files = fullbore(args!["tape", "list", location, "--json"]).ends_with(0);
    let labels: Vec<_> = { files.json().into_iter() }
        .filter(|file| !file["label"].is_null())
        .map(|file| file["label"]["set"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(labels.len(), 2, "{labels:?}");
    let none = world.dir.path().join("none");
    for (catalog, name) in [(&none, "by-tape"), (&world.catalog(), "by-catalog")] {
        let back = world.dir.path().join(name);
        let mut from = location.clone();
        from.push(format!("@{}", labels[0]));
        fullbore(args!["restore", from, "--to", back, "--catalog", catalog]).ends_with(0);
        assert_same(&first, &shape(&back), name);
    }
    // A tape may be written again when the label at its begin says so.
    world.insert(&[]);
}

#[test]
fn only_blank_named_expired_and_chosen_tapes_are_written() {
    let world = World::new();
    let location = world.location();
    world.insert(&[]);
    fullbore(args!["tape", "label", location, "A1"]).ends_with(0);
    world.backup(&["--expires", "1h"]).ends_with(0);
    let refused = world.backup(&[]).ends_with(1);
    assert!(
        refused.err.contains("tape \"A1\" has backup"),
        "{}",
        refused.err
    );
    let longer = world.backup(&["--append"]).ends_with(1);
    assert!(longer.err.contains("kept longer"), "{}", longer.err);
    world.backup(&["--append", "--expires", "1m"]).ends_with(0);
    world.backup(&["--overwrite", "B1"]).ends_with(1);
    world.assert_comes_back(&[], "after refusals");
    world
        .backup(&["--overwrite", "A1", "--expires", "1s"])
        .ends_with(0);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    world.backup(&[]).ends_with(0);
    world.assert_comes_back(&[], "on an expired tape");
    // Of another program.
    fs::remove_file(world.cartridge()).unwrap();
    world.insert(&[]);
    let line = args![
        "simtape",
        world.cartridge(),
        "--stdin",
        "--record-size",
        "10K"
    ];
    assert!(runs::fed(line, &runs::noise(1, 100_000)).status.success());
    let refused = world.backup(&[]).ends_with(1);
    assert!(
        refused.err.contains("data of another program"),
        "{}",
        refused.err
    );
    world.backup(&["--append"]).ends_with(1);
    world.backup(&["--overwrite", "foreign"]).ends_with(0);
    world.assert_comes_back(&[], "on a tape of another program");
}

#[test]
fn with_a_catalog_no_tape_is_needed_to_list_and_to_plan() {
    let world = World::new();
    world.backup_on_several(&[SMALL, "warning-bytes=700K"], &[]);
    let last = world.dir.path().join("last");
    fs::rename(world.cartridge(), &last).unwrap();
    let catalog = world.catalog();
    let with = |words: Vec<std::ffi::OsString>| {
        fullbore(words.into_iter().chain(args!["--catalog", catalog]))
    };
    let all = with(args!["list", "tape:"].into()).ends_with(0);
    assert!(all.out.contains("tapes "), "{}", all.out);
    let id = all.out.split(' ').next().unwrap().to_owned();
    let by_id = format!("tape:@{id}");
    for from in ["tape:@latest", &by_id] {
        let listed = with(args!["list", from].into()).ends_with(0);
        assert!(listed.out.contains("d4/f4"), "{}", listed.out);
    }
    with(args!["find", "tape:", "f44"].into()).ends_with(0);
    with(args!["diff", by_id, by_id].into()).ends_with(0);
    let plan = |paths: &[&str]| {
        let line = args!["restore", by_id, "--to", "/nowhere/x", "--plan", "--json"];
        let line = line.into_iter().chain(super::args_of(paths));
        let found = with(line.collect()).ends_with(0).json().remove(0);
        serde_json::from_value::<Vec<String>>(found["tapes"].clone()).unwrap()
    };
    assert_eq!(plan(&["d0/f5"]), [format!("{id}-1")]);
    assert!(plan(&[]).len() >= 3);
    // Another host learns it from the last tape.
    fs::rename(&last, world.cartridge()).unwrap();
    let other = world.dir.path().join("other");
    let scan = args!["tape", "scan", world.location(), "--catalog", other];
    let told = fullbore(scan).ends_with(0);
    assert!(
        told.err.contains(&id) || told.out.contains(&id),
        "{} {}",
        told.out,
        told.err
    );
    fs::remove_file(world.cartridge()).unwrap();
    let listed = fullbore(args!["list", by_id, "--catalog", other]).ends_with(0);
    assert!(listed.out.contains("z/empty"), "{}", listed.out);
}
