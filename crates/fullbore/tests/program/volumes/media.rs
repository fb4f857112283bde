//! Media that are full, changed, absent: who is asked, and what is known without them.

use super::World;
use crate::runs::{self, Mount, assert_same, fullbore, names, noise, shape, shell};
use std::{ffi::OsString, fs, os::unix::fs::FileExt};

#[test]
fn one_file_needs_only_its_volumes() {
    let world = World::new();
    let volumes = world.backup();
    let last = volumes.last().unwrap();
    let plan = |path| {
        let line = args![
            "restore",
            world.location(),
            path,
            "--to",
            "/nowhere/x",
            "--plan",
            "--json"
        ];
        let found = fullbore(line).ends_with(0).json().remove(0);
        let volumes = found["volumes"].as_object().unwrap();
        assert_eq!(volumes.len(), 1);
        let numbers = volumes.values().next().unwrap();
        serde_json::from_value::<Vec<usize>>(numbers.clone()).unwrap()
    };
    let needed = plan("d0/f5");
    assert_eq!(needed.len(), 1, "{needed:?}");
    for (index, name) in volumes.iter().enumerate() {
        if name != last && !needed.contains(&(index + 1)) {
            fs::remove_file(world.media.join(name)).unwrap();
        }
    }
    assert_eq!(names(&world.media).len(), 2);
    let (ran, back, _dir) = world.restore(&["d0/f5"]);
    ran.ends_with(0);
    assert_eq!(
        fs::read(back.join("d0/f5")).unwrap(),
        fs::read(world.tree.join("d0/f5")).unwrap()
    );
    let cat = fullbore(args!["cat", world.location(), "d0/f5"]);
    assert_eq!(cat.code, 0, "{}", cat.err);
}

#[test]
fn with_a_catalog_no_volume_is_needed_to_list_and_to_plan() {
    let world = World::new();
    let volumes = world.backup();
    for name in &volumes {
        fs::remove_file(world.media.join(name)).unwrap();
    }
    let with = |words: Vec<OsString>| {
        fullbore(words.into_iter().chain(args!["--catalog", world.catalog()])).ends_with(0)
    };
    assert!(
        with(args!["list", world.location()].into())
            .out
            .contains("d4/f4")
    );
    assert!(
        with(args!["find", world.location(), "f4"].into())
            .out
            .contains("d4/f4")
    );
    let plan = with(args!["restore", world.location(), "--to", "/nowhere/x", "--plan"].into());
    let wanted: Vec<_> = (1..=volumes.len())
        .map(|number| number.to_string())
        .collect();
    assert!(
        plan.out.contains(&format!(
            "volumes       number {} of backup ",
            wanted.join(", ")
        )),
        "{}",
        plan.out
    );
    let none = world.dir.path().join("none");
    fullbore(args!["list", world.location(), "--catalog", none])
        .ends_with(1)
        .has_one_error("could not find the volumes");
}

/// A program that takes the volumes out of the drive and puts the wanted one in, and notes that.
fn changer(world: &World) -> String {
    let path = world.dir.path().join("changer");
    let shelf = world.dir.path().join("shelf");
    fs::create_dir(&shelf).unwrap();
    let script = format!(
        "#!/bin/sh\necho \"$FULLBORE_MEDIA_ACTION $FULLBORE_MEDIA_VOLUME $FULLBORE_MEDIA_LABEL\" >> {0}/log\n\
         mv $FULLBORE_MEDIA_DRIVE/v-* {0}/ 2>/dev/null\n\
         [ $FULLBORE_MEDIA_ACTION = next ] || mv {0}/$FULLBORE_MEDIA_LABEL $FULLBORE_MEDIA_DRIVE/\n",
        shelf.display()
    );
    runs::write(&path, script);
    runs::set_mode(&path, 0o755);
    path.display().to_string()
}

/// The volumes that a changer was asked for since the last call.
fn asked_for(world: &World) -> Vec<u32> {
    let path = world.dir.path().join("shelf/log");
    let log = fs::read_to_string(&path).unwrap();
    fs::remove_file(path).unwrap();
    log.lines()
        .map(|line| line.split(' ').nth(1).unwrap().parse().unwrap())
        .collect()
}

#[test]
fn a_full_medium_is_changed_and_restore_asks_for_each_volume_once_in_order() {
    let world = World::new();
    // Many borders of volumes, with small files and parts of large ones on both sides.
    for number in 0..200 {
        let path = world.tree.join(format!("m/{number:03}"));
        let len = if number % 50 == 7 { 700_000 } else { 30_000 };
        runs::write(path, noise(1000 + number, len));
    }
    let Some(_mount) = Mount::tmpfs(&world.media, "1m") else {
        return;
    };
    let command = changer(&world);
    let line = world.backup_args("auto");
    fullbore(line.into_iter().chain(args!["--change-command", command])).ends_with(0);
    let written = asked_for(&world);
    let last = *written.last().unwrap();
    assert!(last >= 10, "{written:?}");
    assert_eq!(written, (2..=last).collect::<Vec<_>>());
    let before = shape(&world.tree);
    for workers in ["1", "2", "16"] {
        // The last volume is in the drive: it describes the others.
        let (ran, back, _dir) =
            world.restore(&["--change-command", &command, "--workers", workers]);
        ran.ends_with(0);
        assert_same(&before, &shape(&back), workers);
        let asked = asked_for(&world);
        assert_eq!(asked, (1..=last).collect::<Vec<_>>(), "{workers} workers");
    }
    // A name of a file on an early volume, and files on the last one: still in order, and no other volume.
    let line = [
        "--change-command",
        &command,
        "--workers",
        "16",
        "z",
        "large",
    ];
    let (ran, back, _dir) = world.restore(&line);
    ran.ends_with(0);
    assert_eq!(
        fs::read(back.join("z/hard")).unwrap(),
        fs::read(world.tree.join("d4/f4")).unwrap()
    );
    let asked = asked_for(&world);
    assert!(asked.is_sorted_by(|a, b| a < b), "{asked:?}");
    assert!(asked.len() < last as usize && asked[0] == 1, "{asked:?}");
}

#[test]
fn without_anybody_who_changes_media_a_backup_that_fills_them_is_refused() {
    let world = World::new();
    // A new session has no terminal.
    let line = world.backup_args("auto");
    let words = [OsString::from(runs::FULLBORE)].into_iter().chain(line);
    let ran = shell("exec setsid -w \"$@\"", words);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("--change-command"), "{}", ran.err);
    assert_eq!(names(&world.media), [""; 0]);
}

#[test]
fn a_command_that_brings_no_medium_ends_the_backup_in_order() {
    let world = World::new();
    let line = world.backup_args("1M");
    let ran = fullbore(
        line.into_iter()
            .chain(args!["--change-command", "false -x"]),
    );
    // false leaves it to a person, of whom there is none, or who is not asked by tests.
    assert_ne!(ran.code, 0);
    let line = world.backup_args("1M");
    fs::remove_dir_all(&world.media).unwrap();
    fs::create_dir(&world.media).unwrap();
    let script = world.dir.path().join("no");
    runs::write(&script, "#!/bin/sh\nexit 2\n");
    runs::set_mode(&script, 0o755);
    fullbore(line.into_iter().chain(args!["--change-command", script]))
        .ends_with(1)
        .has_one_error("could not continue on volume 2");
    let left = names(&world.media);
    assert!(
        left.len() == 1 && left[0].ends_with("-001.tar.zst"),
        "{left:?}"
    );
    let (ran, _, _dir) = world.restore(&["--keep-going"]);
    ran.ends_with(4);
}

#[test]
fn volumes_on_a_full_disk_end_with_an_error_and_what_is_named_restores() {
    let world = World::new();
    let Some(_mount) = Mount::tmpfs(&world.media, "2500k") else {
        return;
    };
    fullbore(world.backup_args("1M")).ends_with(1);
    let volumes = names(&world.media);
    assert!(
        volumes.iter().all(|name| name.starts_with("v-")),
        "{volumes:?}"
    );
    let (ran, _, _dir) = world.restore(&["--keep-going"]);
    ran.ends_with(4);
}

/// A program in the place of mtx: three slots and a drive. A medium is called by the volume on it.
fn robot(world: &World) -> String {
    let bin = world.dir.path().join("bin");
    let slots = world.dir.path().join("slots");
    (1..=9).for_each(|slot| fs::create_dir_all(slots.join(slot.to_string())).unwrap());
    let script = format!(
        "#!/bin/bash\n[ \"$1 $2\" = '-f /dev/sg9' ] || exit 9\ncd {0}; drive={1}\n\
         echo \"$3 $4\" >> {0}/log\n\
         tag() {{ local n=$(ls $1 | head -1); echo \"${{n%%.tar.zst}}\"; }}\n\
         case $3 in\n\
         status) echo '  Storage Changer /dev/sg9:1 Drives, 9 Slots ( 0 Import/Export )'\n\
           if [ -e loaded ]; then echo \"Data Transfer Element 0:Full (Storage Element $(cat loaded) Loaded):VolumeTag = $(tag $drive)\"\n\
           else echo 'Data Transfer Element 0:Empty'; fi\n\
           for s in 1 2 3 4 5 6 7 8 9; do\n\
             if [ \"$(cat loaded 2>/dev/null)\" = $s ]; then echo \"      Storage Element $s:Empty\"\n\
             else echo \"      Storage Element $s:Full :VolumeTag=$(tag $s)\"; fi; done;;\n\
         unload) [ $(cat loaded) = $4 ] && mv $drive/* $4/ && rm loaded;;\n\
         load) [ ! -e loaded ] || exit 1; mv $4/* $drive/ 2>/dev/null; echo $4 > loaded;;\n\
         *) exit 8;; esac\n",
        slots.display(),
        world.media.display()
    );
    fs::create_dir(&bin).unwrap();
    runs::write(bin.join("mtx"), script);
    runs::set_mode(&bin.join("mtx"), 0o755);
    let path = std::env::var("PATH").unwrap();
    format!("PATH={}:{path}", bin.display())
}

#[test]
fn a_changer_loads_the_next_slot_and_finds_volumes_by_their_barcodes() {
    let world = World::new();
    let path = robot(&world);
    fs::write(world.dir.path().join("slots/loaded"), "1").unwrap();
    let with_robot = |line: Vec<OsString>| {
        let words = args!["/usr/bin/env", path, runs::FULLBORE];
        let more = args!["--changer", "/dev/sg9"];
        shell("exec \"$@\"", words.into_iter().chain(line).chain(more))
    };
    with_robot(world.backup_args("1M")).ends_with(0);
    let log = world.dir.path().join("slots/log");
    let moves = || {
        let text = fs::read_to_string(&log).unwrap();
        fs::remove_file(&log).unwrap();
        let moves = text.lines().filter(|line| !line.starts_with("status"));
        moves.map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(moves()[..4], ["unload 1", "load 2", "unload 2", "load 3"]);
    let back = world.dir.path().join("back");
    let none = world.dir.path().join("none");
    let line = args!["restore", world.location(), "--to", back, "--catalog", none];
    with_robot(line.into()).ends_with(0);
    assert_same(&shape(&world.tree), &shape(&back), "changer");
    let moves = moves();
    let last = moves.len() / 2;
    let loads: Vec<_> = moves
        .iter()
        .filter(|line| line.starts_with("load"))
        .collect();
    let wanted: Vec<_> = (1..=last).map(|slot| format!("load {slot}")).collect();
    assert_eq!(loads, wanted.iter().collect::<Vec<_>>());
    // A volume that is in no slot does not come.
    fs::remove_dir_all(world.dir.path().join("slots/2")).unwrap();
    fs::create_dir(world.dir.path().join("slots/2")).unwrap();
    let back = world.dir.path().join("again");
    let line = args!["restore", world.location(), "--to", back, "--catalog", none];
    with_robot(line.into())
        .ends_with(4)
        .has_one_error("volume 2");
}

#[test]
fn a_script_of_dump_changes_media_and_a_command_that_hangs_is_stopped() {
    let world = World::new();
    let script = world.dir.path().join("script");
    let log = world.dir.path().join("log");
    runs::write(
        &script,
        format!("#!/bin/sh\necho \"$2\" >> {}\n", log.display()),
    );
    runs::set_mode(&script, 0o755);
    let line = world.backup_args("1M").into_iter();
    fullbore(line.chain(args!["--dump-script", script])).ends_with(0);
    let asked = fs::read_to_string(&log).unwrap();
    let volumes = names(&world.media).len();
    let wanted: Vec<_> = (2..=volumes).map(|number| number.to_string()).collect();
    assert_eq!(asked.lines().collect::<Vec<_>>(), wanted);
    let line = world.backup_args("1M").into_iter();
    let more = args!["--change-command", "sleep 600", "--change-timeout", "1s"];
    fullbore(line.chain(more)).has_one_error("did not end");
}

#[test]
fn two_backups_in_volumes_are_compared_without_their_volumes() {
    let world = World::new();
    world.backup();
    runs::write(world.tree.join("added"), "new");
    fs::remove_file(world.tree.join("d0/f5")).unwrap();
    fullbore(world.backup_args("1M")).ends_with(0);
    let diff = |more: &[&str]| {
        let line = args!["diff", world.location(), "--catalog", world.catalog()];
        fullbore(line.into_iter().chain(more.iter().map(Into::into)))
    };
    let there = diff(&[]).ends_with(0).out;
    assert!(
        there.contains("added") && there.contains("d0/f5"),
        "{there}"
    );
    fs::remove_dir_all(&world.media).unwrap();
    fs::create_dir(&world.media).unwrap();
    assert_eq!(diff(&[]).ends_with(0).out, there);
    assert_eq!(diff(&["latest~1", "latest"]).ends_with(0).out, there);
    diff(&["latest~2", "latest"]).ends_with(1);
}

#[test]
fn a_verification_asks_for_volumes_in_order() {
    let world = World::new();
    let volumes = world.backup();
    let command = changer(&world);
    let shelf = world.dir.path().join("shelf");
    for name in &volumes[..volumes.len() - 1] {
        fs::rename(world.media.join(name), shelf.join(name)).unwrap();
    }
    let verify = |more: &[&str]| {
        let line = args![
            "verify",
            world.location(),
            "--change-command",
            command,
            "--workers",
            "8"
        ];
        let none = world.dir.path().join("none");
        let line = line.into_iter().chain(args!["--catalog", none]);
        fullbore(line.chain(more.iter().map(Into::into))).ends_with(0);
        asked_for(&world)
    };
    // Seek tables, copies of pages, and then all bytes: three rounds at most, each in order.
    let rounds = |asked: &[u32]| asked.windows(2).filter(|pair| pair[0] >= pair[1]).count() + 1;
    let asked = verify(&["--data"]);
    assert!(rounds(&asked) <= 3, "{asked:?}");
    let asked = verify(&[]);
    assert!(rounds(&asked) <= 2, "{asked:?}");
    let tree = world.tree.display().to_string();
    let asked = verify(&["--against", &tree]);
    assert!(rounds(&asked) <= 2, "{asked:?}");
}

#[test]
fn a_delta_an_export_and_a_directory_of_cat_ask_for_each_volume_once_in_order() {
    let world = World::new();
    for number in 0..200 {
        let path = world.tree.join(format!("m/{number:03}"));
        let len = if number % 50 == 7 { 700_000 } else { 30_000 };
        runs::write(path, noise(1000 + number, len));
    }
    let volumes = world.backup();
    let command = changer(&world);
    let shelf = world.dir.path().join("shelf");
    for name in &volumes[..volumes.len() - 1] {
        fs::rename(world.media.join(name), shelf.join(name)).unwrap();
    }
    let last = volumes.len() as u32;
    // The catalog describes all volumes, whichever is in the drive.
    let run = |line: &[OsString]| {
        let change = args!["--change-command", command, "--catalog", world.catalog()];
        fullbore(line.iter().cloned().chain(change)).ends_with(0);
        asked_for(&world)
    };
    let back = world.dir.path().join("back");
    run(&args!["restore", world.location(), "--to", back]);
    // A part of a large file, all of a small one, and one that is gone; on early and on late volumes.
    let large = fs::File::options()
        .write(true)
        .open(back.join("m/007"))
        .unwrap();
    large.write_all_at(&[0; 5000], 300_000).unwrap();
    for name in ["m/003", "m/150"] {
        runs::write(back.join(name), b"changed");
    }
    fs::remove_file(back.join("m/110")).unwrap();
    let many = ["--workers", "16"].map(OsString::from);
    let line = args!["restore", world.location(), "--to", back, "--delta"];
    let asked = run(&[&line[..], &many].concat());
    assert_same(&shape(&world.tree), &shape(&back), "delta");
    assert!(asked.is_sorted_by(|a, b| a < b), "{asked:?}");
    let line = args![
        "export",
        world.location(),
        "--to",
        world.dir.path().join("full")
    ];
    let asked = run(&[&line[..], &many].concat());
    assert_eq!(asked, (1..=last).collect::<Vec<_>>());
    let asked = run(&args!["cat", world.location(), "m"]);
    assert!(asked.is_sorted_by(|a, b| a < b), "{asked:?}");
}
