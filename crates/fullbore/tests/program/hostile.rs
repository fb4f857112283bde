//! What somebody else wrote into a repository: refused, whoever reads, copies or repairs it.

use crate::runs;
use crate::runs::{Ran, fullbore, make_fifo, names, only, shell, temp, text, write};
use fullbore_format::{
    root::{ClusterInfo, EntryName, Live, NotCaptured, Root, Tablespace},
    seal::seal,
};
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Puts something at a path.
type Make = fn(&Path);

/// A repository with one backup of a few files, and the directory of that backup.
fn repository(dir: &Path) -> (PathBuf, PathBuf) {
    write(dir.join("tree/a"), text(1, 30_000));
    write(dir.join("tree/b"), text(2, 300));
    let repository = dir.join("repository");
    fullbore(args!["backup", dir.join("tree"), "--to", repository]).ends_with(0);
    let backup = only(&repository.join("backups"));
    (repository, backup)
}

/// Write the root of a backup anew, with a seal that fits.
fn reseal(backup: &Path, change: impl FnOnce(&mut Root)) {
    let path = backup.join("root.json");
    let mut root = Root::open(&fs::read(&path).unwrap(), "the root").unwrap();
    change(&mut root);
    fs::write(path, seal(&root).unwrap()).unwrap();
}

/// Commands that read a repository, or change it or another one.
fn commands(dir: &Path, repository: &Path) -> Vec<Vec<OsString>> {
    let all = [
        args!["restore", repository, "--to", dir.join("to")].to_vec(),
        args!["copy", repository, dir.join("copy")].to_vec(),
        args!["repair", repository, "--yes"].to_vec(),
        args!["verify", repository].to_vec(),
        args!["verify", repository, "--sample", "50"].to_vec(),
        args!["prune", repository].to_vec(),
        args!["list", repository].to_vec(),
    ];
    all.to_vec()
}

/// A run that must not take long.
fn in_time(args: impl IntoIterator<Item = OsString>) -> Ran {
    let line = "exec timeout 60 \"$@\"";
    runs::shell(
        line,
        [OsString::from(runs::FULLBORE)].into_iter().chain(args),
    )
}

#[test]
fn a_root_that_names_a_path_as_a_backup_is_refused() {
    let dir = temp();
    let (repository, backup) = repository(dir.path());
    runs::fullbore(args!["init", dir.path().join("copy")]).ends_with(0);
    // What it would lead to is there, beside the repository and beside its copy.
    let places = ["x", "copy/x"].map(|place| dir.path().join(place).join("manifest"));
    places
        .iter()
        .for_each(|place| write(place, "what is there"));
    let root = fs::read(backup.join("root.json")).unwrap();
    for case in ["liveness", "pages", "bases"] {
        for command in commands(dir.path(), &repository) {
            fs::write(backup.join("root.json"), &root).unwrap();
            reseal(&backup, |root| match case {
                "liveness" => root.liveness.push(Live {
                    backup: "../../x".into(),
                    stream: 1,
                    number: 1,
                    ..Live::default()
                }),
                "pages" => root.pages[0].backup = "../../x".into(),
                _ => root.bases.push("../../x".into()),
            });
            let ran = in_time(command.clone());
            let code = if command[0] == "repair" { 0 } else { 4 };
            assert_eq!(ran.code, code, "{case} {command:?}: {}{}", ran.out, ran.err);
            for place in &places {
                assert_eq!(
                    names(place.parent().unwrap()),
                    ["manifest"],
                    "{case} {command:?}"
                );
                assert_eq!(
                    fs::read(place).unwrap(),
                    b"what is there",
                    "{case} {command:?}"
                );
            }
        }
    }
}

/// A file that nobody is to touch, and its directory.
fn victim(dir: &Path) -> (PathBuf, PathBuf) {
    let victims = dir.join("victims");
    write(victims.join("key"), "precious");
    (victims.join("key"), victims)
}

#[track_caller]
fn assert_untouched(victims: &Path, case: &str) {
    assert_eq!(
        (names(victims), fs::read(victims.join("key")).unwrap()),
        (vec!["key".into()], b"precious".into()),
        "{case}"
    );
}

#[test]
fn a_repair_writes_through_no_link() {
    let dir = temp();
    let (repository, backup) = repository(dir.path());
    let (key, victims) = victim(dir.path());
    symlink(&key, backup.join("manifest.repair.partial")).unwrap();
    symlink(&key, repository.join("verify.json.repair.partial")).unwrap();
    let manifest = fs::read(backup.join("manifest")).unwrap();
    write(backup.join("manifest"), vec![0; manifest.len()]);
    fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    fullbore(args!["verify", repository, "--sample", "100"]).ends_with(0);
    assert_untouched(&victims, "repair");
    assert!(
        fs::read(backup.join("manifest")).unwrap() == manifest
            && repository.join("verify.json").is_file()
    );

    // Nor into a directory that a link leads to.
    let moved = dir.path().join("moved");
    fs::rename(&backup, &moved).unwrap();
    symlink(&moved, &backup).unwrap();
    write(moved.join("manifest"), "x");
    assert_ne!(fullbore(args!["repair", repository, "--yes"]).code, 0);
    assert_eq!(fs::read(moved.join("manifest")).unwrap(), b"x");
}

#[test]
fn a_prune_marks_and_removes_through_no_link() {
    let dir = temp();
    let (repository, backup) = repository(dir.path());
    let (key, victims) = victim(dir.path());
    let id = backup.file_name().unwrap().to_str().unwrap();
    write(dir.path().join("tree/a"), text(3, 30_000));
    fullbore(args!["backup", dir.path().join("tree"), "--to", repository]).ends_with(0);
    fullbore(args!["forget", "--yes", repository, id]).ends_with(0);
    let marks = repository.join("tombstones");
    fs::create_dir_all(marks.join(id)).unwrap();
    symlink(&key, marks.join(id).join("s01-000001.tar.zst")).unwrap();
    // Names that are not those of this program stay, but for those of a backup that is gone.
    write(marks.join("20200101T000000Z-aaaaaa/mine"), "");
    write(backup.join("mine"), "");
    fullbore(args!["prune", repository]).ends_with(0);
    assert_untouched(&victims, "mark");
    assert_eq!(names(&marks.join("20200101T000000Z-aaaaaa")), ["mine"]);
    assert!(!backup.join("mine").exists());
    fs::remove_dir_all(&marks).unwrap();

    // What is marked is another's.
    let other = dir.path().join("other");
    write(other.join("20200101T000000Z-aaaaaa/manifest"), "");
    symlink(&other, &marks).unwrap();
    assert_ne!(fullbore(args!["prune", repository]).code, 0);
    assert!(other.join("20200101T000000Z-aaaaaa/manifest").is_file());
}

#[test]
fn what_a_dead_backup_left_is_not_looked_for_behind_a_link() {
    let dir = temp();
    let (repository, _) = repository(dir.path());
    let (_, victims) = victim(dir.path());
    write(victims.join("manifest"), "");
    symlink(&victims, repository.join("backups/20200101T000000Z-aaaaaa")).unwrap();
    write(repository.join("intents/20200101T000000Z-aaaaaa.json"), "");
    fullbore(args!["backup", dir.path().join("tree"), "--to", repository]).ends_with(0);
    assert_eq!(names(&victims), ["key", "manifest"]);
    fullbore(args!["restore", repository, "--to", dir.path().join("to")]).ends_with(0);

    // In a directory, what is not of this program stays.
    let left = repository.join("backups/20200101T000000Z-bbbbbb");
    ["manifest", "s01-000001.tar.zst", "mine"]
        .iter()
        .for_each(|name| write(left.join(name), ""));
    fs::remove_file(repository.join("intents/20200101T000000Z-aaaaaa.json")).unwrap();
    write(repository.join("intents/20200101T000000Z-bbbbbb.json"), "");
    fullbore(args!["backup", dir.path().join("tree"), "--to", repository]).ends_with(0);
    assert_eq!(names(&left), ["mine"]);
}

#[test]
fn a_copy_writes_through_no_link() {
    let dir = temp();
    let (repository, backup) = repository(dir.path());
    let (key, victims) = victim(dir.path());
    let id = backup.file_name().unwrap();
    let target = dir.path().join("other");
    fullbore(args!["backup", dir.path().join("tree"), "--to", target]).ends_with(0);
    let links = [
        ("intents", format!("{}.json", id.to_str().unwrap())),
        ("backups", id.to_str().unwrap().to_owned()),
    ];
    for (path, name) in links {
        let link = target.join(path).join(&name);
        symlink(if path == "backups" { &victims } else { &key }, &link).unwrap();
        assert_ne!(in_time(args!["copy", repository, target]).code, 0, "{path}");
        assert_untouched(&victims, path);
        fs::remove_file(link).unwrap();
    }
    let there = target.join("backups").join(id);
    fs::create_dir(&there).unwrap();
    symlink(&key, there.join("manifest.partial")).unwrap();
    fullbore(args!["copy", repository, target]).ends_with(0);
    assert_untouched(&victims, "partial");
}

#[test]
fn a_link_in_place_of_a_file_of_a_repository_is_damage() {
    let dir = temp();
    let (_, backup) = repository(dir.path());
    let repository = dir.path().join("repository");
    for name in ["s01-000001.tar.zst", "manifest", "root.json"] {
        let (path, aside) = (backup.join(name), dir.path().join("aside"));
        fs::rename(&path, &aside).unwrap();
        symlink(&aside, &path).unwrap();
        in_time(args!["verify", repository]).ends_with(4);
        if name != "manifest" {
            let ran =
                in_time(args!["restore", repository, "--to", dir.path().join("to")]).ends_with(4);
            ran.has_one_error("it is not a regular file");
        }
        let _ = fs::remove_dir_all(dir.path().join("to"));
        fs::rename(&aside, &path).unwrap();
    }
    fullbore(args!["verify", repository, "--data"]).ends_with(0);

    // A repository may be anywhere, and so may all of its backups.
    let (link, aside) = (dir.path().join("link"), dir.path().join("aside"));
    symlink(&repository, &link).unwrap();
    fs::rename(repository.join("backups"), &aside).unwrap();
    symlink(&aside, repository.join("backups")).unwrap();
    write(dir.path().join("tree/c"), "c");
    for command in [
        args!["backup", dir.path().join("tree"), "--to", link].to_vec(),
        args!["forget", "--yes", link, backup.file_name().unwrap()].to_vec(),
        args!["prune", link].to_vec(),
        args!["verify", link, "--data"].to_vec(),
        args!["restore", link, "--to", dir.path().join("to")].to_vec(),
    ] {
        in_time(command).ends_with(0);
    }
}

#[test]
fn a_document_that_is_none_ends_no_command_but_with_an_error() {
    let dir = temp();
    let (repository, backup) = repository(dir.path());
    let id = backup.file_name().unwrap();
    let make: [(&str, Make); 4] = [
        ("a pipe", make_fifo),
        ("a device", |path| symlink("/dev/zero", path).unwrap()),
        ("too large", |path| {
            fs::File::create(path).unwrap().set_len(100 << 30).unwrap()
        }),
        ("a directory", |path| fs::create_dir(path).unwrap()),
    ];
    let documents = [
        backup.join("root.json"),
        backup.join("notes.json"),
        repository.join("verify.json"),
    ];
    for (word, make) in make {
        for path in &documents {
            let aside = dir.path().join("aside");
            let is_there = fs::rename(path, &aside).is_ok();
            make(path);
            let case = format!("{word} as {path:?}");
            let mut commands = commands(dir.path(), &repository);
            commands.retain(|command| command[0] != "repair");
            commands.push(args!["tag", repository.join(""), "a=b"].to_vec());
            commands.push(args!["backup", dir.path().join("tree"), "--to", repository].to_vec());
            for command in commands {
                let ran = in_time(command.clone());
                assert!(
                    ran.code != 124 && ran.code != 101 && ran.code >= 0,
                    "{case} {command:?}: {}",
                    ran.err
                );
                ["to", "copy"]
                    .iter()
                    .for_each(|place| drop(fs::remove_dir_all(dir.path().join(place))));
            }
            let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
            if is_there {
                fs::rename(&aside, path).unwrap();
            }
            // A backup that was made meanwhile is another one.
            for other in names(&repository.join("backups"))
                .iter()
                .filter(|name| name.as_str() != id)
            {
                fullbore(args!["forget", "--yes", repository, other]).ends_with(0);
            }
            fullbore(args!["prune", repository]).ends_with(0);
        }
    }
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
}

#[test]
fn a_pipe_that_looks_like_half_an_archive_is_passed_by() {
    let dir = temp();
    write(dir.path().join("tree/a"), "a");
    let pipe = dir
        .path()
        .join(".x.tar.zst.20261122T183557Z-5t4dyu.partial");
    make_fifo(&pipe);
    let archive = dir.path().join("x.tar.zst");
    in_time(args!["backup", dir.path().join("tree"), "--to", archive]).ends_with(0);
    assert!(pipe.exists());
    in_time(args!["verify", archive]).ends_with(0);
}

#[test]
fn a_segment_of_any_length_is_sampled_as_far_as_it_goes() {
    let dir = temp();
    let (repository, backup) = repository(dir.path());
    for bytes in [u64::MAX, 1 << 40] {
        reseal(&backup, |root| {
            root.segments[0].bytes = bytes;
            root.liveness[0].of_bytes = bytes;
        });
        in_time(args!["verify", repository, "--sample", "50"]).ends_with(4);
        in_time(args!["verify", repository, "--data"]).ends_with(4);
    }
}

#[test]
fn nothing_that_was_stored_speaks_to_the_terminal() {
    const BAD: &str = "x\u{1b}]0;y\u{7}\u{9b}2J\u{202e}\n\u{200b}z";
    let dir = temp();
    let (repository, backup) = repository(dir.path());
    reseal(&backup, |root| {
        root.source.host = BAD.into();
        root.source.paths = vec![EntryName(BAD.into()), EntryName("ä日本".into())];
        root.tags.insert(BAD.into(), BAD.into());
        root.run.limit = BAD.into();
        root.totals.unreadable = 1;
        root.not_captured = vec![NotCaptured {
            path: EntryName(BAD.into()),
            reason: BAD.into(),
        }];
        let space = Tablespace {
            oid: 1,
            name: EntryName(BAD.into()),
            location: EntryName(BAD.into()),
        };
        let [version, system_identifier, wal] = [BAD; 3].map(str::to_owned);
        let (start_lsn, wal_segments) = (BAD.into(), vec![BAD.into()]);
        let tablespaces = vec![space];
        root.postgres = Some(ClusterInfo {
            version,
            system_identifier,
            wal,
            start_lsn,
            wal_segments,
            tablespaces,
            online: true,
            ..ClusterInfo::default()
        });
    });
    let any = args!["list", format!("{}@latest", repository.display())].to_vec();
    for command in [
        args!["list", repository].to_vec(),
        args!["show", repository].to_vec(),
        args!["tag", repository].to_vec(),
        args!["find", repository, "a"].to_vec(),
        args![
            "forget",
            repository,
            "--keep-last",
            "1",
            "--dry-run",
            "--group-by",
            "source"
        ]
        .to_vec(),
        args!["restore", repository, "--to", dir.path().join("to")].to_vec(),
        any,
    ] {
        let ran = fullbore(command.clone());
        assert!(
            ran.code != 2 || command[0] == "restore",
            "{command:?}: {}",
            ran.err
        );
        let bad = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{200b}".contains(c);
        assert!(
            !ran.out.contains(bad) && !ran.err.contains(bad),
            "{command:?}: {}{}",
            ran.out,
            ran.err
        );
        assert!(!ran.out.contains("\nz"), "{command:?}: {}", ran.out);
        if ["list", "show"].iter().any(|verb| command[0] == *verb)
            && command[1] == repository.as_os_str()
        {
            assert!(
                ran.out.contains("x\\u{1b}]0;y") && ran.out.contains("ä日本"),
                "{command:?}: {}",
                ran.out
            );
        }
    }
    let json = fullbore(args!["show", repository, "--json"])
        .ends_with(0)
        .json();
    assert_eq!(json[0]["source"]["host"], BAD);
}

#[test]
fn a_file_of_somebody_else_is_not_replaced_also_if_it_cannot_be_read() {
    let dir = temp();
    let tree = dir.path().join("tree");
    write(tree.join("a"), "a");
    let archive = dir.path().join("y.tar.gz");
    write(&archive, "mine");
    fullbore(args!["backup", tree, "--to", archive])
        .ends_with(1)
        .has_one_error("is not a fullbore archive");
    assert_eq!(fs::read(&archive).unwrap(), b"mine");
    let archive = dir.path().join("x.tar.zst");
    write(&archive, "mine");
    let inject = "openat:error=EACCES";
    runs::tampered(
        inject,
        Some(&archive),
        args!["backup", tree, "--to", archive],
    )
    .ends_with(1);
    assert_eq!(fs::read(&archive).unwrap(), b"mine");
}

#[test]
fn a_forged_size_of_frames_takes_no_more_memory() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("zeros"), vec![0; 400 << 20]).unwrap();
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    reseal(&only(&repository.join("backups")), |root| {
        root.options.frame_bytes = 1 << 50
    });
    let line = "ulimit -v 400000; exec \"$@\"";
    let target = dir.path().join("to");
    shell(
        line,
        args![runs::FULLBORE, "restore", repository, "--to", target],
    )
    .ends_with(0);
}
