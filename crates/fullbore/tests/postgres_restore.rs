//! Restoring clusters: what is refused, where tablespaces go, what comes last, what is written for recovery.

mod configuration;
mod control_file;
mod databases;
mod recovery;
mod server;
mod tablespaces;

use fullbore_engine::restore::{Restore, Summary};
use fullbore_format::{
    entry::EntryKind,
    error::{Error, ErrorKind},
    layout,
    page::EntryState,
    root::{ClusterInfo, DatabaseInfo, EntryName, NotCaptured, Root, Tablespace},
    seal::seal,
};
use fullbore_platform::metrics::meter::Meter;
use fullbore_postgres::restore::plan::ClusterOptions;
use fullbore_storage::Storages;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::Ordering::Relaxed,
};
use testkit::{
    args,
    fixture::{self, Fixture, content, entry, once_more_without_tricks, plan},
    runs::{self, fullbore, has, is_root, or_skip, temp},
};

/// The user of the server where the tests run as root.
const SERVER: u32 = 54_321;

const VERSION: &str = "PG_15_202209061";

/// A cluster with three databases beside the templates and a tablespace, as it would be backed up.
fn cluster() -> Fixture {
    let mut f = Fixture::default();
    f.dir("", 0o700)
        .dir("base", 0o700)
        .dir("global", 0o700)
        .dir("pg_tblspc", 0o700)
        .dir("pg_wal", 0o700);
    f.dir("pg_tblspc/16400", 0o750)
        .dir(&format!("pg_tblspc/16400/{VERSION}"), 0o700);
    f.file("backup_label", "START WAL LOCATION")
        .file("tablespace_map", "16400 /old")
        .file("PG_VERSION", "15\n");
    f.file("postgresql.conf", "port = 5433\n")
        .file("global/1262", content(9, 900));
    f.file(
        "postgresql.auto.conf",
        "work_mem = '1MB'\nrecovery_target_time = 'x'\n",
    )
    .file("recovery.signal", "");
    f.file("global/pg_control", content(7, 8192));
    for oid in [1, 4, 5, 16384, 16385] {
        f.dir(&format!("base/{oid}"), 0o700)
            .file(&format!("base/{oid}/PG_VERSION"), "15\n");
        f.file(&format!("base/{oid}/1259"), content(oid, 16384))
            .file(&format!("base/{oid}/2619"), content(oid, 100));
        let moved = format!("pg_tblspc/16400/{VERSION}/{oid}");
        f.dir(&moved, 0o700)
            .file(&format!("{moved}/24576"), content(oid + 1, 10_000));
    }
    f
}

fn facts(location: &Path) -> ClusterInfo {
    let database = |oid, name: &str| DatabaseInfo {
        oid,
        name: name.into(),
        template: name.starts_with("template"),
        subscriptions: 0,
    };
    let names = [
        (1, "template1"),
        (4, "template0"),
        (5, "postgres"),
        (16384, "app"),
        (16385, "o\"ther"),
    ];
    ClusterInfo {
        version: "15.18".into(),
        major: 15,
        timeline: 1,
        online: true,
        stop_lsn: "0/2000100".into(),
        wal: "included".into(),
        tablespaces: vec![Tablespace {
            oid: 16400,
            name: "fast".into(),
            location: EntryName(location.to_str().unwrap().into()),
        }],
        databases: names.map(|(oid, name)| database(oid, name)).into(),
        ..ClusterInfo::default()
    }
}

/// Make the only backup of a repository one of a cluster.
fn declare(repository: &Path, root: &Root, cluster: ClusterInfo) {
    let path = repository
        .join(layout::BACKUPS)
        .join(&root.id)
        .join(layout::ROOT);
    fs::write(
        path,
        seal(&Root {
            postgres: Some(cluster),
            ..root.clone()
        })
        .unwrap(),
    )
    .unwrap();
}

/// What it would be if a server had written it: none runs as root.
fn served(fixture: &Fixture) -> Fixture {
    let mut fixture = fixture.clone();
    if is_root() {
        fixture
            .entries
            .iter_mut()
            .for_each(|(_, entry, ..)| entry.owner.uid = SERVER);
    }
    fixture
}

/// Give it to the user of the server, if this is root.
fn own(path: &Path) {
    if is_root() {
        std::os::unix::fs::chown(path, Some(SERVER), None).unwrap();
    }
}

/// A repository with a backup of a cluster, in a directory that goes with it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn with(fixture: &Fixture, change: impl FnOnce(&mut ClusterInfo)) -> Self {
        let (place, fixture) = (Self { dir: temp() }, &served(fixture));
        own(place.dir.path());
        let root = fixture.write_repository(&place.at("repo"));
        let mut cluster = facts(&place.at("old"));
        change(&mut cluster);
        declare(&place.at("repo"), &root, cluster);
        place
    }

    fn new() -> Self {
        Self::with(&cluster(), |_| {})
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Restored to `to`, tablespaces to `ts`, unless it is said otherwise.
    fn plan(&self) -> Restore {
        let postgres = ClusterOptions {
            tablespaces_under: Some(self.at("ts")),
            ..ClusterOptions::default()
        };
        Restore {
            storages: Storages::default(),
            postgres,
            ..plan(&self.at("repo"), &self.at("to"))
        }
    }

    fn moved(&self, old: &str, new: impl Into<PathBuf>) -> Restore {
        let postgres = ClusterOptions {
            tablespaces: vec![(old.into(), new.into())],
            ..ClusterOptions::default()
        };
        Restore {
            storages: Storages::default(),
            postgres,
            ..self.plan()
        }
    }
}

fn run(restore: &Restore) -> Result<Summary, Error> {
    restore.run(&Meter::default())
}

#[track_caller]
fn assert_refused(restore: &Restore, kind: ErrorKind, words: &str) -> Error {
    let error = run(restore).unwrap_err();
    let said = format!(
        "{} / {}",
        error.line(),
        error.hint.as_deref().unwrap_or_default()
    );
    assert!(
        error.kind == kind && said.contains(words),
        "{words:?}, {kind:?}: {:?} {said}",
        error.kind
    );
    error
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_cluster_comes_back_with_its_tablespaces_and_their_links() {
    for workers in [1, 4] {
        let place = Place::new();
        let (target, fast) = (place.at("to"), place.at("ts/fast"));
        let summary = run(&Restore {
            storages: Storages::default(),
            workers: workers.try_into().unwrap(),
            ..place.plan()
        })
        .unwrap();
        assert_eq!((summary.exit_code(), summary.notes), (0, vec![]));
        assert_eq!(fs::read_link(target.join("pg_tblspc/16400")).unwrap(), fast);
        assert_eq!(
            [mode(&target), mode(&fast), mode(&target.join("pg_tblspc"))],
            [0o700, 0o750, 0o700]
        );
        assert!(fs::read(fast.join(VERSION).join("5/24576")).unwrap() == content(6, 10_000));
        assert!(fs::read(target.join("global/pg_control")).unwrap() == content(7, 8192));
        assert_eq!(runs::names(&target.join("global")), ["1262", "pg_control"]);
        // The links are ours, and signals of an earlier recovery are not meant for this one.
        assert!(
            !target.join("tablespace_map").exists() && !target.join("recovery.signal").exists()
        );
        assert_eq!(
            fs::metadata(&fast).unwrap().mtime(),
            fs::symlink_metadata(target.join("pg_tblspc/16400"))
                .unwrap()
                .mtime()
        );
        let next = format!("pg_ctl -D {target:?} -o \"-c recovery_init_sync_method=syncfs\" start");
        assert_eq!(summary.next, [next]);
    }
    once_more_without_tricks();
}

#[test]
fn nobody_restores_below_a_server_that_runs() {
    let place = Place::new();
    let mut server = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = format!("{}\n{}\n", server.id(), place.at("to").display());
    runs::write(place.at("to/postmaster.pid"), &pid);
    for into in [
        fullbore_engine::restore::RestoreInto::Empty,
        fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
    ] {
        let words = format!("a server runs there, process {}", server.id());
        assert_refused(
            &Restore {
                storages: Storages::default(),
                into,
                ..place.plan()
            },
            ErrorKind::Exists,
            &words,
        );
    }
    server.kill().unwrap();
    server.wait().unwrap();
    assert_refused(&place.plan(), ErrorKind::Exists, "it is not empty");
    // That of a container has another number there.
    let program = place.at("postgres");
    fs::copy("/bin/sleep", &program).unwrap();
    let start = |seconds: &str| {
        let mut command = Command::new(&program);
        let server = command.arg(seconds).current_dir(place.at("to")).spawn();
        let server = server.unwrap();
        // The name of a process is that of its parent until shortly after `spawn`.
        let name = format!("/proc/{}/comm", server.id());
        while fs::read(&name).unwrap() != b"postgres\n" {
            std::thread::yield_now();
        }
        server
    };
    let mut server = start("600");
    fs::write(place.at("to/postmaster.pid"), "4194305\n").unwrap();
    let words = format!("a server runs there, process {}", server.id());
    assert_refused(
        &Restore {
            storages: Storages::default(),
            into: fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
            ..place.plan()
        },
        ErrorKind::Exists,
        &words,
    );
    // Somebody has removed all of its files.
    fs::remove_file(place.at("to/postmaster.pid")).unwrap();
    assert_refused(&place.plan(), ErrorKind::Exists, &words);
    server.kill().unwrap();
    server.wait().unwrap();
    // `pg_ctl stop` has returned, and the server ends.
    let mut server = start("2");
    run(&Restore {
        storages: Storages::default(),
        into: fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
        ..place.plan()
    })
    .unwrap();
    server.wait().unwrap();
}

#[test]
fn nothing_in_place_of_a_process_number_is_waited_for() {
    let place = Place::new();
    fs::create_dir(place.at("to")).unwrap();
    runs::make_fifo(&place.at("to/postmaster.pid"));
    let again = Restore {
        storages: Storages::default(),
        into: fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
        ..place.plan()
    };
    let said = assert_refused(&again, ErrorKind::Corrupt, "could not read").line();
    assert!(said.contains("it is not a regular file"), "{said}");
}

#[test]
fn only_a_restore_that_was_cut_off_is_written_over() {
    let place = Place::new();
    let again = Restore {
        storages: Storages::default(),
        into: fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
        ..place.plan()
    };
    run(&place.plan()).unwrap();
    assert_refused(&again, ErrorKind::Exists, "a cluster is there");
    // One file of a cluster that is there is another matter, and leaves the rest alone.
    fs::write(place.at("to/postgresql.conf"), "broken").unwrap();
    run(&Restore {
        storages: Storages::default(),
        paths: vec![b"postgresql.conf".to_vec()],
        ..again.clone()
    })
    .unwrap();
    assert_eq!(
        fs::read(place.at("to/postgresql.conf")).unwrap(),
        b"port = 5433\n"
    );
    assert!(place.at("to/global/pg_control").exists() && place.at("to/backup_label").exists());
    // But of what the server writes nothing means anything beside the rest.
    let part = Restore {
        storages: Storages::default(),
        paths: vec![b"base/5".to_vec()],
        ..again.clone()
    };
    assert_refused(
        &part,
        ErrorKind::Exists,
        "and its files must be of one moment",
    );
    fs::rename(
        place.at("to/global/pg_control"),
        place.at("to/global/.fullbore-unfinished"),
    )
    .unwrap();
    // Nor one that was of another backup: what that had besides would be taken for this one's.
    for rest in [
        place.at("to/base/5/16384_vm"),
        place.at("ts/fast").join(VERSION).join("5/24576.1"),
    ] {
        fs::write(&rest, b"of another").unwrap();
        assert_refused(
            &again,
            ErrorKind::Exists,
            "is there, which is not in the backup",
        );
        fs::remove_file(&rest).unwrap();
    }
    run(&again).unwrap();
    assert!(place.at("to/global/pg_control").exists());
    assert!(place.at("ts/fast").join(VERSION).join("5/24576").exists());
}

#[test]
fn the_program_says_what_is_to_be_done_next() {
    let place = Place::with(&cluster(), |cluster| cluster.major = 13);
    let (source, destination, under) = (place.at("repo"), place.at("to"), place.at("ts"));
    let args = args![
        "restore",
        source,
        "--to",
        destination,
        "--tablespaces-under",
        under,
        "--database",
        "app"
    ];
    let ran = fullbore(args).ends_with(0);
    let next: Vec<&str> = ran
        .err
        .lines()
        .filter_map(|line| line.strip_prefix("next: "))
        .collect();
    let reset = "ALTER SYSTEM RESET ignore_invalid_pages;";
    assert_eq!(
        next,
        [
            &format!("pg_ctl -D {destination:?} start"),
            "DROP DATABASE \"o\"\"ther\";",
            reset
        ]
    );
    let restored = ran
        .err
        .lines()
        .find(|line| line.contains(" restored in "))
        .unwrap();
    assert!(
        restored.starts_with("database \"app\" of backup "),
        "{restored}"
    );
    let two = args!["--target-immediate", "--target-name", "x"];
    let args = args!["restore", source, "--to", place.at("other")];
    fullbore(args.into_iter().chain(two))
        .ends_with(2)
        .has_one_error("cannot be used with");
}

#[test]
fn what_is_written_anew_or_left_out_is_still_there_under_its_other_names() {
    let settings = "work_mem = '1MB'\n";
    for (first, other) in [
        ("aa", "postgresql.auto.conf"),
        ("postgresql.auto.conf", "zz"),
    ] {
        let mut fixture = cluster();
        fixture
            .entries
            .retain(|(_, entry, ..)| entry.path != b"postgresql.auto.conf");
        fixture
            .file(first, settings)
            .link(other, first)
            .link("zz.signal", "recovery.signal");
        let place = Place::with(&fixture, |_| {});
        let mut restore = place.plan();
        restore.postgres.recovery.settings = vec![("port".into(), "5499".into())];
        assert_eq!(run(&restore).unwrap().exit_code(), 0);
        let read = |name: &str| fs::read_to_string(place.at("to").join(name)).unwrap();
        let anew = read("postgresql.auto.conf");
        assert!(
            anew.starts_with(settings) && anew.ends_with("port = '5499'\n"),
            "{anew}"
        );
        assert_eq!(read(if first == "aa" { first } else { other }), settings);
        assert!(!place.at("to/recovery.signal").exists());
        assert_eq!(read("zz.signal"), "");
    }
}

#[test]
fn of_a_server_it_is_spoken_only_where_there_will_be_one() {
    let place = Place::with(&cluster(), |cluster| {
        cluster.tablespaces_meanwhile = vec![Tablespace {
            name: "new".into(),
            ..Tablespace::default()
        }];
    });
    let part = Restore {
        storages: Storages::default(),
        paths: vec![b"PG_VERSION".to_vec()],
        to: place.at("part"),
        ..place.plan()
    };
    assert_eq!(run(&part).unwrap().notes, [""; 0]);
    assert!(
        run(&place.plan())
            .unwrap()
            .notes
            .iter()
            .any(|note| note.contains("recovery will create it"))
    );
}
