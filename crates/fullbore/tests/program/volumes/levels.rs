//! Levels: a backup stores what changed since the latest one of a lower level, whose volumes are on a shelf.

use super::{World, paths};
use crate::runs::{self, assert_same, fullbore, has, is_root, names, noise, or_skip, shape, shell};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Waits until the next backup can be the base for files that changed before: a file that changes in the 2 s before a
/// backup begins is stored again by the one that follows.
pub(crate) fn settle() {
    std::thread::sleep(Duration::from_millis(3100));
}

fn backup(world: &World, level: u8, more: &[OsString]) -> String {
    let level = level.to_string();
    let line = world.backup_args("1M").into_iter();
    let line = line.chain(args!["--level", level]).chain(more.to_vec());
    fullbore(line).ends_with(0);
    newest(world)
}

fn newest(world: &World) -> String {
    let json = fullbore(args![
        "show",
        world.location(),
        "--json",
        "--catalog",
        world.catalog()
    ]);
    let json: serde_json::Value = serde_json::from_str(&json.ends_with(0).out).unwrap();
    json["id"].as_str().unwrap().to_owned()
}

/// Bytes of the volumes of a backup.
fn bytes_of(world: &World, id: &str) -> u64 {
    let volumes = names(&world.media).into_iter();
    let own = volumes.filter(|name| name.contains(id));
    own.map(|name| fs::metadata(world.media.join(name)).unwrap().len())
        .sum()
}

fn restored(world: &World, id: &str, more: &[&str]) -> (runs::Ran, PathBuf, tempfile::TempDir) {
    let dir = crate::runs::temp();
    let back = dir.path().join("back");
    let none = dir.path().join("none");
    let from = format!("{}@{id}", world.location().display());
    let line = args!["restore", from, "--to", back, "--catalog", none];
    let ran = fullbore(line.into_iter().chain(more.iter().map(Into::into)));
    (ran, back, dir)
}

/// Changes the tree in all ways that matter.
pub(crate) fn change(tree: &Path, seed: u64) {
    runs::write(tree.join("d1/f1"), noise(seed, 3000));
    runs::write(tree.join(format!("new{seed}")), noise(seed + 1, 40_000));
    let mut large = fs::read(tree.join("large")).unwrap();
    large[seed as usize * 1000] ^= 1;
    fs::write(tree.join("large"), large).unwrap();
    fs::remove_file(tree.join(format!("d2/f{}", 5 * seed + 7))).unwrap();
    fs::rename(
        tree.join(format!("d3/f{}", 5 * seed + 3)),
        tree.join(format!("moved{seed}")),
    )
    .unwrap();
}

/// A tree with backups of level 0, 1, 2 and 1 again, and the shapes of the tree at each.
fn leveled() -> (World, Vec<(String, runs::Shape)>) {
    let world = World::new();
    settle();
    let mut made = Vec::new();
    for (seed, level) in [0, 1, 2, 1].into_iter().enumerate() {
        if seed > 0 {
            change(&world.tree, seed as u64);
        }
        if level == 1 && seed == 1 {
            settle();
        }
        let id = backup(&world, level, &[]);
        made.push((id, shape(&world.tree)));
    }
    (world, made)
}

#[test]
fn each_level_restores_the_tree_as_it_was_and_stores_what_changed() {
    let (world, made) = leveled();
    let full = bytes_of(&world, &made[0].0);
    for (index, (id, tree)) in made.iter().enumerate() {
        let (ran, back, _dir) = restored(&world, id, &[]);
        ran.ends_with(0);
        assert_same(tree, &shape(&back), id);
        let from = format!("{}@{id}", world.location().display());
        fullbore(args!["verify", from, "--data"]).ends_with(0);
        // The large file has 1.5 of the 3.5 MB, and changes each time; the last one is against level 0.
        let stored = bytes_of(&world, id);
        assert!(
            index == 0 || stored < full * 6 / 10,
            "{id}: {stored} of {full}"
        );
    }
    let shown = |id: &str| {
        let from = format!("{}@{id}", world.location().display());
        let json = fullbore(args!["show", from, "--json"]).ends_with(0).out;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        json["bases"][0].as_str().map(ToOwned::to_owned)
    };
    let bases: Vec<_> = made.iter().map(|(id, _)| shown(id)).collect();
    let id = |index: usize| Some(made[index].0.clone());
    assert_eq!(bases, [None, id(0), id(1), id(0)]);
}

#[test]
fn other_programs_lay_a_level_over_its_base() {
    let (world, made) = leveled();
    let out = world.dir.path().join("out");
    fs::create_dir(&out).unwrap();
    // The last one is against level 0.
    for id in [&made[0].0, &made[3].0] {
        for name in names(&world.media).iter().filter(|name| name.contains(id)) {
            let line = "set -o pipefail; zstd -dc \"$1\" | tar -xif - -C \"$2\"";
            let ran = shell(line, args![world.media.join(name), out]);
            assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{name}");
        }
    }
    // Files above 1/64 of a volume are in pieces.
    let whole = |path: &String| {
        let found = world.tree.join(path).symlink_metadata().unwrap();
        found.is_file() && found.len() <= 64 << 10
    };
    for path in paths(&world.tree).iter().filter(|path| whole(path)) {
        assert_eq!(
            fs::read(out.join(path)).unwrap(),
            fs::read(world.tree.join(path)).unwrap(),
            "{path}"
        );
    }
}

#[test]
fn a_single_drive_gets_the_volumes_of_the_bases_once_in_order() {
    let (world, made) = leveled();
    let shelf = world.dir.path().join("shelf");
    fs::create_dir(&shelf).unwrap();
    let command = world.dir.path().join("changer");
    let script = format!(
        "#!/bin/sh\necho \"$FULLBORE_MEDIA_SET $FULLBORE_MEDIA_VOLUME\" >> {0}/log\n\
         mv $FULLBORE_MEDIA_DRIVE/v-* {0}/ 2>/dev/null\nmv {0}/$FULLBORE_MEDIA_LABEL $FULLBORE_MEDIA_DRIVE/\n",
        shelf.display()
    );
    runs::write(&command, script);
    runs::set_mode(&command, 0o755);
    let command = command.display().to_string();
    let (id, tree) = &made[2];
    let volumes = names(&world.media);
    let last = volumes.iter().rfind(|name| name.contains(&id[..])).unwrap();
    for name in volumes.iter().filter(|name| *name != last) {
        fs::rename(world.media.join(name), shelf.join(name)).unwrap();
    }
    for workers in ["1", "16"] {
        let line = ["--change-command", &command, "--workers", workers];
        let (ran, back, _dir) = restored(&world, id, &line);
        ran.ends_with(0);
        assert_same(tree, &shape(&back), workers);
        let log = fs::read_to_string(shelf.join("log")).unwrap();
        fs::remove_file(shelf.join("log")).unwrap();
        let asked: Vec<_> = log.lines().collect();
        let in_order: BTreeSet<_> = asked.iter().copied().collect();
        assert_eq!(asked, in_order.into_iter().collect::<Vec<_>>(), "{workers}");
        for (base, _) in &made[..3] {
            assert!(log.contains(&base[..]), "{base}: {log}");
        }
        assert!(!log.contains(&made[3].0), "{log}");
    }
}

#[test]
fn a_lost_volume_of_a_base_costs_only_what_is_on_it() {
    let (world, made) = leveled();
    let (id, _) = &made[1];
    let of_base = |name: &String| name.contains(&made[0].0);
    let victim = names(&world.media).into_iter().find(of_base).unwrap();
    let path = world.media.join(&victim);
    let own = fs::read(&path).unwrap();
    let all = paths(&world.tree);
    // Another volume in its place is refused as well.
    let other = names(&world.media).into_iter().rfind(of_base).unwrap();
    let other = fs::read(world.media.join(other)).unwrap();
    for bytes in [None, Some(&other)] {
        match bytes {
            None => fs::remove_file(&path).unwrap(),
            Some(bytes) => fs::write(&path, bytes).unwrap(),
        }
        let ran = restored(&world, id, &[]).0.ends_with(4);
        assert!(ran.err.contains(&victim), "{}", ran.err);
        let (ran, back, _dir) = restored(&world, id, &["--keep-going"]);
        ran.ends_with(4);
        let found = paths(&back);
        assert!(found.len() < all.len() && found.len() > 5);
    }
    fs::write(&path, own).unwrap();
    restored(&world, id, &[]).0.ends_with(0);
}

#[test]
fn without_a_lower_level_in_the_catalog_everything_is_stored() {
    let world = World::new();
    settle();
    let first = backup(&world, 1, &[]);
    let again = backup(&world, 1, &[]);
    assert!(bytes_of(&world, &again) > 1_500_000);
    // Of another prefix, or without the catalog, there is no base either.
    let from = format!("{}@{again}", world.location().display());
    let json = fullbore(args!["show", from, "--json"]).ends_with(0).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["bases"].as_array().is_none_or(Vec::is_empty), "{json}");
    // A base can be named, by the beginning of its id.
    let line = world.backup_args("1M").into_iter();
    fullbore(line.chain(args!["--base", first])).ends_with(0);
    assert!(bytes_of(&world, &newest(&world)) < 100_000);
    let line = world.backup_args("1M").into_iter();
    fullbore(line.chain(args!["--base", "2001"]))
        .ends_with(1)
        .has_one_error("could not find a backup \"2001\"");
}

#[test]
fn hanoi_chooses_levels_and_dumpdates_has_them() {
    let world = World::new();
    let dates = world.dir.path().join("dumpdates");
    let of_dump = "/dev/sda1        0 Sun Nov 22 10:00:00 2026 +0000\n";
    runs::write(&dates, of_dump);
    let hanoi = || {
        let line = world.backup_args("1M").into_iter();
        fullbore(line.chain(args!["--level", "hanoi", "--dumpdates", dates]))
    };
    (0..4).for_each(|_| drop(hanoi().ends_with(0)));
    let text = fs::read_to_string(&dates).unwrap();
    let levels: Vec<_> = text
        .lines()
        .map(|line| line.split_whitespace().nth(1))
        .collect();
    assert_eq!(levels, ["0", "0", "3", "2", "5"].map(Some), "{text}");
    assert!(text.starts_with(of_dump), "{text}");
    // A later backup of the same level takes the place of the earlier one.
    backup(&world, 3, &args!["--dumpdates", dates]);
    let text = fs::read_to_string(&dates).unwrap();
    let of_level_3 = text.lines().filter(|line| line.contains(" 3 "));
    assert_eq!((text.lines().count(), of_level_3.count()), (5, 1), "{text}");
    // dump's own reader: name, level, and a time with its zone.
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words.len(), 8, "{line}");
        // What dump writes: strftime of "%a %b %e %H:%M:%S %Y %z".
        let time = jiff::Zoned::strptime("%a %b %e %H:%M:%S %Y %z", words[2..].join(" "));
        let age = time
            .unwrap()
            .timestamp()
            .duration_until(jiff::Timestamp::now());
        assert!(
            line.starts_with("/dev/sda1") || age.as_secs().abs() < 300,
            "{line}"
        );
    }
    let due = |more: &[&str]| {
        let line = args![
            "list",
            "--due",
            world.location(),
            "--catalog",
            world.catalog()
        ];
        fullbore(line.into_iter().chain(more.iter().map(Into::into)))
    };
    // All have a backup of today.
    assert_eq!(due(&[]).ends_with(0).out, "");
    assert!(due(&["-l"]).ends_with(0).out.contains("level 3 of today"));
    let json: serde_json::Value = serde_json::from_str(&due(&["-l", "--json"]).out).unwrap();
    assert_eq!((&json["level"], &json["due"]), (&3.into(), &false.into()));
    runs::write(&dates, "this is no line of dump\n");
    hanoi().ends_with(2).has_one_error("for --dumpdates");
    let link = world.dir.path().join("absent/dumpdates");
    let line = world.backup_args("1M").into_iter();
    fullbore(line.chain(args!["--level", "1", "--dumpdates", link])).ends_with(1);
}

#[test]
fn hanoi_and_due_know_the_backups_of_a_repository() {
    let world = World::new();
    let repository = world.dir.path().join("repository");
    for level in ["0", "3"] {
        let line = args!["backup", world.tree, "--to", repository, "--level", "hanoi"];
        fullbore(line).ends_with(0);
        let out = fullbore(args!["list", repository, "--json"])
            .ends_with(0)
            .out;
        let json: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
        assert_eq!(json["tags"]["level"], level, "{json}");
    }
    let due = fullbore(args!["list", "--due", "--long", repository]).ends_with(0);
    assert!(due.out.contains("the next is level 2"), "{}", due.out);
}

/// A state directory that was lost is not taken for "nothing is due", and a level that stores all says so.
#[test]
fn where_no_level_is_known_it_is_said() {
    let world = World::new();
    for place in ["volumes:/nowhere/x", "tape:/dev/nst0"] {
        let line = args!["list", "--due", place, "--catalog", world.catalog()];
        fullbore(line)
            .ends_with(1)
            .has_one_error("could not find a backup with a level");
    }
    let repository = world.dir.path().join("repository");
    let backup = |level: &str| {
        fullbore(args![
            "backup", world.tree, "--to", repository, "--level", level
        ])
        .ends_with(0)
        .err
    };
    let said = "no backup of a level below 2 is known here: everything was stored";
    let first = backup("2");
    assert!(first.contains(said), "{first}");
    assert!(!backup("0").contains("is known here"));
    assert!(!backup("2").contains("is known here"));
}

/// The id that an error says a backup can go on with.
fn id_to_resume(ran: &runs::Ran) -> String {
    let (_, rest) = ran.err.split_once("--resume ").expect(&ran.err);
    rest.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn a_backup_that_ended_in_order_goes_on_behind_its_last_volume() {
    let world = World::new();
    settle();
    for level in [None, Some("1")] {
        if level.is_some() {
            backup(&world, 0, &[]);
            (0..12).for_each(|number| {
                runs::write(
                    world.tree.join(format!("d0/more{number}")),
                    noise(number, 200_000),
                );
            });
            settle();
        }
        let stop = world.dir.path().join("stop");
        runs::write(&stop, "#!/bin/sh\n[ $FULLBORE_MEDIA_VOLUME -lt 3 ]\n");
        runs::set_mode(&stop, 0o755);
        let line = || {
            let line = world.backup_args("1M").into_iter();
            line.chain(level.into_iter().flat_map(|level| args!["--level", level]))
        };
        let ran = fullbore(line().chain(args!["--change-command", stop]));
        assert_ne!(ran.code, 0);
        let begun = id_to_resume(&ran);
        let volumes = names(&world.media);
        let of_begun = volumes.iter().filter(|name| name.contains(&begun)).count();
        assert!(of_begun >= 1, "{volumes:?}");
        let all = bytes_of(&world, &begun);
        let plan = |id: &str| {
            let from = format!("{}@{id}", world.location().display());
            let line = args![
                "restore",
                from,
                "--to",
                "/nowhere/x",
                "--plan",
                "--catalog",
                world.catalog()
            ];
            fullbore(line).ends_with(0).out
        };
        let planned = plan(&begun);
        assert!(
            planned.contains("the backup is incomplete: it goes on behind volume"),
            "{planned}"
        );
        fullbore(line().chain(args!["--resume", begun])).ends_with(0);
        let id = newest(&world);
        assert_ne!(id, begun);
        // What is on the volumes of the first run is not stored again.
        let (ran, back, _dir) = restored(&world, &id, &[]);
        ran.ends_with(0);
        assert_same(&shape(&world.tree), &shape(&back), "resumed");
        let planned = plan(&id);
        assert!(
            planned.contains(&format!("of backup {begun}")) && !planned.contains("incomplete"),
            "{planned}"
        );
        assert!(bytes_of(&world, &id) + all < 8_000_000);
        // A complete one is refused, and one of another level.
        fullbore(line().chain(args!["--resume", id]))
            .ends_with(2)
            .has_one_error("it is complete");
        let other = world.backup_args("1M").into_iter();
        let other = other.chain(args!["--level", "7", "--resume", begun]);
        fullbore(other).ends_with(2).has_one_error("another level");
    }
    let repository = world.dir.path().join("repository");
    fullbore(args![
        "backup", world.tree, "--to", repository, "--resume", "2026"
    ])
    .ends_with(2);
}

#[test]
fn a_backup_ends_after_more_errors_than_it_may_have() {
    if !or_skip(is_root() && has("setpriv"), "not root, or no setpriv") {
        return;
    }
    let world = World::new();
    fs::create_dir(world.catalog()).unwrap();
    runs::set_mode(world.dir.path(), 0o755);
    runs::set_mode(&world.media, 0o777);
    runs::set_mode(&world.catalog(), 0o777);
    // Directories that this user cannot list.
    for number in 0..4 {
        let secret = world.tree.join(format!("secret{number}"));
        fs::create_dir(&secret).unwrap();
        runs::set_mode(&secret, 0);
    }
    let allowed = |most: &str| {
        let words = args![runs::FULLBORE].into_iter();
        let words = words.chain(world.backup_args("1M"));
        let line = "exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all \"$@\"";
        shell(line, words.chain(args!["--errors", most]))
    };
    allowed("4").ends_with(3);
    allowed("3").ends_with(1).has_one_error("--errors allows 3");
}
