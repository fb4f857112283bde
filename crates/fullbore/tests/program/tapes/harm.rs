//! Faults of drives and tapes cost only what is on them, and are told.

use super::{RECORD_BYTES, World, paths};
use crate::runs::{self, fullbore};
use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

#[test]
fn a_lost_tape_costs_only_what_is_on_it() {
    let world = World::new();
    let small = ["capacity-bytes=1400K", "warning-bytes=700K"];
    let asked = world.backup_on_several(&small, &[]);
    assert!(asked.len() >= 2, "{asked:?}");
    let changer = world.dir.path().join("changer").display().to_string();
    // The second tape is never there.
    let lost = world.shelf().join("2");
    fs::rename(&lost, world.dir.path().join("lost")).unwrap();
    let (ran, back, _dir) = world.restore(&["--change-command", &changer, "--keep-going", "-v"]);
    let ran = ran.ends_with(4);
    let all = paths(&world.tree);
    let gone: BTreeSet<_> = all.difference(&paths(&back)).cloned().collect();
    assert!(!gone.is_empty() && gone.len() < all.len() - 10, "{gone:?}");
    let said = format!("{}{}", ran.out, ran.err);
    assert!(
        said.contains("tape \\\"") || said.contains("-2\" is missing"),
        "{said}"
    );
    for path in gone {
        let told = format!("lost: \"{}\"", path.trim_start_matches("./"));
        let is_link = path == "./z/hard" || path == "./z/link";
        assert!(is_link || said.contains(&told), "{told}: {said}");
    }
}

#[test]
fn what_a_drive_lost_is_written_again() {
    for fault in [
        "write@20", "reset@20", "write@0", "reset@1", "write@3", "reset@2", "write@41",
    ] {
        for tells in ["true", "false"] {
            let world = World::new();
            let tells = format!("tells-buffer={tells}");
            world.insert(&[&tells]);
            let fault = format!("faults={fault}");
            let line = args!["simtape", world.cartridge(), "-q", "--set", fault];
            fullbore(line).ends_with(0);
            let ran = world.backup(&[]).ends_with(0);
            assert_eq!(ran.out, "");
            world.assert_comes_back(&[], &fault);
        }
    }
}

#[test]
fn a_tape_that_fails_twice_is_left_and_the_backup_goes_on_on_another() {
    let world = World::new();
    world.insert(&["faults=write@20,write@40"]);
    let changer = world.changer("");
    world.backup(&["--change-command", &changer]).ends_with(0);
    let asked = world.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert!(asked[0].contains("has failed"), "{asked:?}");
    world.assert_comes_back(&["--change-command", &changer], "failed");
}

#[test]
fn a_protected_tape_and_a_drive_with_fixed_records_are_refused() {
    let world = World::new();
    for (setting, words) in [
        ("write-protected=true", "the tape is write protected"),
        ("block-bytes=64K", "records of a fixed length"),
    ] {
        let _ = fs::remove_file(world.cartridge());
        world.insert(&[setting]);
        let refused = world.backup(&[]);
        assert_eq!(refused.code, 1);
        assert!(refused.err.contains(words), "{}", refused.err);
    }
    let line = args!["backup", world.tree, "--to", "tape:/dev/absent"];
    fullbore(line).ends_with(1).has_one_error("could not open");
    fullbore(args!["backup", world.tree, "--to", "tape:"]).ends_with(2);
    let repository = world.dir.path().join("repo");
    fullbore(args!["backup", world.tree, "--to", repository, "--append"]).ends_with(2);
}

#[test]
fn a_record_that_cannot_be_read_costs_the_files_in_it() {
    let world = World::new();
    world.insert(&[]);
    world.backup(&[]).ends_with(0);
    let line = args!["simtape", world.cartridge(), "-q", "--set", "faults=read@8"];
    fullbore(line).ends_with(0);
    let (ran, ..) = world.restore(&[]);
    ran.ends_with(4);
    let (ran, back, _dir) = world.restore(&["--keep-going"]);
    ran.ends_with(4);
    let all = paths(&world.tree);
    let differs = |path: &&String| {
        let [there, here] = [&back, &world.tree].map(|dir| fs::read(dir.join(path)).ok());
        there != here
    };
    let gone: Vec<_> = all.iter().filter(differs).collect();
    assert!(!gone.is_empty() && gone.len() < 12, "{gone:?}");
    fullbore(args!["verify", world.location(), "--data"]).ends_with(4);
}

#[test]
fn a_backup_that_was_killed_restores_up_to_its_last_whole_part() {
    let world = World::new();
    world.insert(&["buffer-bytes=1"]);
    let mut child = runs::started(world.backup_args(&["--max-rate", "1M"]));
    let begun = Instant::now();
    let len = || fs::metadata(world.cartridge()).map_or(0, |found| found.len());
    while len() < 1_700_000 && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let (ran, ..) = world.restore(&[]);
    ran.ends_with(4).has_one_error("the backup is incomplete");
    let (ran, back, _dir) = world.restore(&["--keep-going"]);
    ran.ends_with(4);
    let (there, all) = (paths(&back), paths(&world.tree));
    assert!(!there.is_empty() && there.is_subset(&all), "{there:?}");
    let listed = fullbore(args!["list", world.location()]);
    assert_eq!(listed.code, 4, "{}", listed.err);
    // The next backup goes behind what is there.
    world.backup(&["--append"]).ends_with(0);
    world.assert_comes_back(&[], "behind a cut");
}

/// A tape that somebody has changed is damaged, or is refused; it restores nothing wrong, and nothing panics.
#[test]
fn changed_tapes_are_damaged_and_end_in_order() {
    let world = World::new();
    world.insert(&[]);
    world.backup(&[]).ends_with(0);
    let bytes = fs::read(world.cartridge()).unwrap();
    let frame = 8;
    let label = 4096 + frame;
    let first = label + (10 << 10) + frame + frame;
    let places = (0..12)
        .map(|step| label + 512 + step * 37)
        .chain((0..12).map(|step| first + step * 29))
        .chain((0..24).map(|step| bytes.len() - 20 - step * (RECORD_BYTES / 30)));
    for place in places {
        let mut changed = bytes.clone();
        changed[place] ^= 0x41;
        fs::write(world.cartridge(), &changed).unwrap();
        for by_catalog in [true, false] {
            let (ran, back, _dir) = match by_catalog {
                true => world.restore_by_catalog(&["--keep-going"]),
                false => world.restore(&["--keep-going"]),
            };
            assert!(
                [0, 1, 4].contains(&ran.code),
                "{place}: {} {}",
                ran.code,
                ran.err
            );
            assert!(!ran.err.contains("panicked"), "{place}: {}", ran.err);
            if back.exists() {
                for path in paths(&back) {
                    let (new, old) = (fs::read(back.join(&path)), fs::read(world.tree.join(&path)));
                    assert_eq!(new.ok(), old.ok(), "{place}: {path}");
                }
            }
        }
    }
}
