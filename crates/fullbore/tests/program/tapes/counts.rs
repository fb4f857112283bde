//! What a drive has to do is counted.

use super::World;
use crate::runs::{fullbore, noise, temp, write};
use std::fs;

fn counter(world: &World, name: &str) -> u64 {
    let told = fullbore(args!["simtape", world.cartridge(), "--json"])
        .ends_with(0)
        .json();
    told[0]["counters"][name].as_u64().unwrap()
}

#[test]
fn a_backup_starts_the_drive_once_and_one_file_needs_two_locates() {
    let world = World::new();
    let (key, recipient) = super::key(world.dir.path());
    for number in 0..200 {
        let path = world.tree.join(format!("many/{number:03}"));
        write(path, noise(1000 + number, 1_000_000));
    }
    world.insert(&["buffer-bytes=16M"]);
    let large = ["--part-size", "16M", "--tape-buffer", "64M"];
    let seal = ["--encrypt-to", &recipient];
    world.backup(&[&large[..], &seal].concat()).ends_with(0);
    assert!(counter(&world, "written_bytes") > 200_000_000);
    assert_eq!(counter(&world, "starts"), 1);
    for (path, catalog, most_locates) in [
        // To the label, as the tape stands elsewhere; to the end of the data; and to the file.
        ("many/150", world.catalog(), 3),
        ("many/199", world.catalog(), 3),
        // Without a catalog the last part is looked for, and read.
        ("many/150", world.dir.path().join("none"), 7),
    ] {
        let before = ["locates", "read_bytes"].map(|name| counter(&world, name));
        let dir = temp();
        let to = dir.path().join("to");
        let line = args![
            "restore",
            world.location(),
            path,
            "--to",
            to,
            "--key",
            key,
            "--catalog",
            catalog
        ];
        fullbore(line).ends_with(0);
        let restored = fs::read(to.join(path)).unwrap();
        assert_eq!(restored, fs::read(world.tree.join(path)).unwrap());
        let after = ["locates", "read_bytes"].map(|name| counter(&world, name));
        let locates = after[0] - before[0];
        let read = after[1] - before[1];
        assert!(
            (1..=most_locates).contains(&locates),
            "{path}: {locates} locates"
        );
        assert!((1..=8 << 20).contains(&read), "{path}: {read} bytes");
        fullbore(args!["tape", "list", world.location()]).ends_with(0);
    }
}
