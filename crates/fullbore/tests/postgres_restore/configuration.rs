//! Configuration that speaks of where the old server was, or leads there.

use super::{Place, cluster, run};
use fullbore_engine::restore::Restore;
use fullbore_format::{error::ErrorKind, root::EntryName};
use fullbore_postgres::restore::recovery::{Mode, RecoveryOptions};
use fullbore_storage::Storages;
use std::fs;
use testkit::fixture::Fixture;

/// A cluster whose `postgresql.conf` is something else.
fn without_conf() -> Fixture {
    let mut fixture = cluster();
    fixture
        .entries
        .retain(|(_, entry, ..)| entry.path != b"postgresql.conf");
    fixture
}

fn with_conf(text: &str) -> Place {
    let mut fixture = without_conf();
    fixture.file("postgresql.conf", text);
    Place::with(&fixture, |_| {})
}

#[test]
fn a_server_that_would_start_in_the_old_directory_is_not_just_started() {
    let place =
        with_conf("#data_directory = 'x'\ndata_directory = '/srv/old'\t# here\nport = 5433\n");
    let next = run(&place.plan()).unwrap().next;
    let conf = place.at("to/postgresql.conf");
    let first = format!(
        "remove data_directory = \"/srv/old\" from {conf:?}: with it the server starts there"
    );
    assert!(
        next.len() == 2 && next[0] == first && next[1].starts_with("pg_ctl"),
        "{next:?}"
    );
    // Where it is restored to is no other place.
    let place = with_conf("");
    let text = format!(
        "data_directory = '{}/'\nhba_file = '{0}/hba'\n",
        place.at("to").display()
    );
    fs::remove_dir_all(place.at("repo")).unwrap();
    let mut fixture = without_conf();
    fixture.file("postgresql.conf", text);
    let root = fixture.write_repository(&place.at("repo"));
    super::declare(&place.at("repo"), &root, super::facts(&place.at("old")));
    let summary = run(&place.plan()).unwrap();
    assert_eq!((summary.next.len(), summary.notes), (1, vec![]));
}

#[test]
fn files_that_two_servers_would_share_are_named() {
    let place = with_conf(
        "hba_file = '/etc/hba'\nident_file='/etc/ident'\nexternal_pid_file = '/run/x.pid'\n",
    );
    let summary = run(&place.plan()).unwrap();
    let said =
        |name, path| format!("{name} is set to \"{path}\": the restored server uses that file too");
    let wanted = [
        said("hba_file", "/etc/hba"),
        said("ident_file", "/etc/ident"),
        said("external_pid_file", "/run/x.pid"),
    ];
    assert_eq!((summary.notes, summary.next.len()), (wanted.into(), 1));
    // Who wants one file has other questions.
    let place = with_conf("hba_file = '/etc/hba'\n");
    let one = Restore {
        storages: Storages::default(),
        paths: vec![b"postgresql.conf".to_vec()],
        ..place.plan()
    };
    assert_eq!(run(&one).unwrap().notes, [""; 0]);
}

#[test]
fn a_directory_of_logs_that_two_servers_would_share_is_named() {
    let place = with_conf("log_directory = '/var/log/postgresql'\n");
    let said = "log_directory is set to \"/var/log/postgresql\": the restored server writes its log there too";
    assert_eq!(run(&place.plan()).unwrap().notes, [said]);
    // One in the data directory is the restored server's own.
    let place = with_conf("log_directory = 'log'\n");
    assert_eq!(run(&place.plan()).unwrap().notes, [""; 0]);
    let place = with_conf("log_directory = '../log'\n");
    assert_eq!(run(&place.plan()).unwrap().notes.len(), 1);
}

#[test]
fn a_configuration_behind_a_link_is_not_written_to() {
    let mut fixture = without_conf();
    fixture
        .symlink("postgresql.conf", "/etc/pg/main.conf")
        .symlink("pg_hba.conf", "../hba.conf");
    let place = Place::with(&fixture, |_| {});
    let summary = run(&place.plan()).unwrap();
    let wanted = [
        "\"postgresql.conf\" is a link to \"/etc/pg/main.conf\", which is not in the backup",
        "\"pg_hba.conf\" is a link to \"../hba.conf\", which is not in the backup",
    ];
    assert_eq!(summary.notes, wanted);
    let target = place.at("to");
    let remove = format!(
        "remove {:?} and {:?}, so",
        target.join("postgresql.conf"),
        target.join("pg_hba.conf")
    );
    assert!(
        summary.next.len() == 2 && summary.next[0].starts_with(&remove),
        "{:?}",
        summary.next
    );
    assert!(
        summary.next[0].contains("a \"postgresql.conf\" that sets no data_directory"),
        "{:?}",
        summary.next
    );
}

#[test]
fn a_link_to_what_is_in_the_backup_is_followed() {
    let mut fixture = without_conf();
    fixture
        .symlink("postgresql.conf", "./conf/main.conf")
        .dir("conf", 0o700);
    fixture.file("conf/main.conf", "data_directory = '/srv/old'\n");
    let place = Place::with(&fixture, |_| {});
    let summary = run(&place.plan()).unwrap();
    assert_eq!(summary.notes, [""; 0]);
    assert!(
        summary.next[0].starts_with("remove data_directory = \"/srv/old\" from "),
        "{:?}",
        summary.next
    );
}

/// A restore that recovers in this mode.
fn recovering(place: &Place, mode: Mode) -> Restore {
    let mut restore = place.plan();
    restore.postgres.recovery = RecoveryOptions {
        mode: Some(mode),
        ..RecoveryOptions::default()
    };
    restore
}

#[test]
fn what_is_included_counts_where_it_is_included() {
    let mut fixture = without_conf();
    let main = "data_directory = '/srv/one'\nInclude_Dir 'conf.d'\ninclude_if_exists = none.conf\nrestore_command = ''\n";
    fixture
        .file("postgresql.conf", main)
        .dir("conf.d", 0o700)
        .dir("conf.d/c.conf", 0o700)
        .dir("more", 0o700);
    fixture
        .file(
            "conf.d/a.conf",
            "include '../more/x'\nrestore_command = 'of a'\n",
        )
        .file("conf.d/.z.conf", "port = 1");
    fixture
        .file(
            "conf.d/b.conf",
            "data_directory = '/srv/two'\ninclude 'of_b'\n",
        )
        .file("conf.d/of_b", "hba_file = '/b'");
    fixture.file("conf.d/b.conf.old", "data_directory = '/srv/three'\n");
    let place = Place::with(&fixture, |_| {});
    let summary = run(&place.plan()).unwrap();
    let first = format!(
        "remove data_directory = \"/srv/two\" from {:?}: with it",
        place.at("to/conf.d/b.conf")
    );
    assert!(summary.next[0].starts_with(&first), "{:?}", summary.next);
    let wanted = [
        "\"conf.d/a.conf\" includes \"../more/x\", which is not in the backup",
        "\"conf.d/c.conf\" includes \"conf.d/c.conf\", which is not in the backup",
        "hba_file is set to \"/b\": the restored server uses that file too",
    ];
    assert_eq!(summary.notes, wanted);
}

#[test]
fn a_restore_command_that_is_included_counts_and_one_elsewhere_is_not_missed() {
    let archived =
        |fixture: &Fixture| Place::with(fixture, |cluster| cluster.wal = "archived".into());
    let mut fixture = without_conf();
    fixture
        .file("postgresql.conf", "include 'a'\n")
        .file("a", "restore_command = 'cp'\ninclude 'a'\n");
    let place = archived(&fixture);
    // A file that includes itself is what the server refuses, ten deep.
    let notes = run(&recovering(&place, Mode::Point)).unwrap().notes;
    let deep = "files of the configuration include each other: no server starts with that";
    assert_eq!(notes, [deep]);
    let mut fixture = without_conf();
    fixture.file(
        "postgresql.conf",
        "include 'postgresql.conf'\ninclude_dir '.'\n".repeat(9),
    );
    fixture.file("a.conf", "include_dir '.'\n".repeat(9));
    assert_eq!(
        run(&Place::with(&fixture, |_| {}).plan()).unwrap().notes,
        [deep]
    );
    for fixture in [cluster(), without_conf()] {
        let error = run(&recovering(&archived(&fixture), Mode::Point)).unwrap_err();
        assert!(
            error.kind == ErrorKind::Usage
                && error
                    .what
                    .contains("without restore_command the server cannot fetch WAL"),
            "{error}"
        );
    }
    // The server told when it was backed up that it has one.
    let place = Place::with(&without_conf(), |cluster| {
        cluster.has_restore_command = true
    });
    run(&recovering(&place, Mode::Point)).unwrap();
    assert!(place.at("to/recovery.signal").exists());
    // What is in the backup knows better.
    let place = Place::with(&cluster(), |cluster| cluster.has_restore_command = true);
    run(&recovering(&place, Mode::Point)).unwrap_err();
    let notes = run(&recovering(&archived(&without_conf()), Mode::Standby))
        .unwrap()
        .notes;
    let said = notes[0].starts_with("neither primary_conninfo");
    assert!(
        said && notes[0].contains("not all of the configuration is in the"),
        "{notes:?}"
    );
}

#[test]
fn a_configuration_elsewhere_that_archives_is_spoken_of_and_in_place_it_is_still_there() {
    let place = Place::with(&without_conf(), |cluster| cluster.archives = true);
    let notes = run(&place.plan()).unwrap().notes;
    assert!(
        notes
            .iter()
            .any(|note| note.contains("--set archive_mode=off")),
        "{notes:?}"
    );
    // What is in the backup knows better.
    let place = Place::with(&cluster(), |cluster| cluster.archives = true);
    assert_eq!(run(&place.plan()).unwrap().notes, [""; 0]);
    let dir = super::temp();
    let (target, conf) = (dir.path().join("to"), dir.path().join("main.conf"));
    fs::create_dir(&target).unwrap();
    let place = Place::with(&without_conf(), |cluster| {
        cluster.tablespaces.clear();
        cluster.data_directory = EntryName(target.to_str().unwrap().into());
        cluster.configuration = vec![EntryName(conf.to_str().unwrap().into())];
    });
    let next = || {
        fs::remove_dir_all(&target).unwrap();
        fs::create_dir(&target).unwrap();
        run(&Restore {
            storages: Storages::default(),
            to: target.clone(),
            ..place.plan()
        })
        .unwrap()
        .next
    };
    assert!(next()[0].contains("\"postgresql.conf\" that sets no data_directory"));
    fs::write(&conf, "").unwrap();
    assert_eq!(
        next(),
        ["start the server as before: its configuration is where it was"]
    );
}
