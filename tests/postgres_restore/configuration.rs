//! Configuration that speaks of where the old server was, or leads there.

use super::{Place, cluster, run};
use crate::common::Fixture;
use fullbore::command::restore::Restore;
use std::fs;

/// A cluster whose `postgresql.conf` is something else.
fn without_conf() -> Fixture {
    let mut fixture = cluster();
    fixture.entries.retain(|(_, entry, ..)| entry.path != b"postgresql.conf");
    fixture
}

fn with_conf(text: &str) -> Place {
    let mut fixture = without_conf();
    fixture.file("postgresql.conf", text);
    Place::with(&fixture, |_| {})
}

#[test]
fn a_server_that_would_start_in_the_old_directory_is_not_just_started() {
    let place = with_conf("#data_directory = 'x'\ndata_directory = '/srv/old'\t# here\nport = 5433\n");
    let next = run(&place.plan()).unwrap().next;
    let conf = place.at("to/postgresql.conf");
    let first = format!("take data_directory = \"/srv/old\" out of {conf:?}: with it the server starts there");
    assert!(next.len() == 2 && next[0] == first && next[1].starts_with("pg_ctl"), "{next:?}");
    // Where it is restored to is no other place.
    let place = with_conf("");
    let text = format!("data_directory = '{}/'\nhba_file = '{0}/hba'\n", place.at("to").display());
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
    let place = with_conf("hba_file = '/etc/hba'\nident_file='/etc/ident'\nexternal_pid_file = '/run/x.pid'\n");
    let summary = run(&place.plan()).unwrap();
    let said = |name, path| format!("{name} is set to \"{path}\": the restored server uses that file too");
    let wanted =
        [said("hba_file", "/etc/hba"), said("ident_file", "/etc/ident"), said("external_pid_file", "/run/x.pid")];
    assert_eq!((summary.notes, summary.next.len()), (wanted.into(), 1));
    // Who wants one file has other questions.
    let place = with_conf("hba_file = '/etc/hba'\n");
    let one = Restore { paths: vec![b"postgresql.conf".to_vec()], ..place.plan() };
    assert_eq!(run(&one).unwrap().notes, [""; 0]);
}

#[test]
fn a_configuration_behind_a_link_is_not_written_to() {
    let mut fixture = without_conf();
    fixture.symlink("postgresql.conf", "/etc/pg/main.conf").symlink("pg_hba.conf", "../hba.conf");
    let place = Place::with(&fixture, |_| {});
    let summary = run(&place.plan()).unwrap();
    let wanted = [
        "\"postgresql.conf\" is a link to \"/etc/pg/main.conf\", which is not in the backup",
        "\"pg_hba.conf\" is a link to \"../hba.conf\", which is not in the backup",
    ];
    assert_eq!(summary.notes, wanted);
    let to = place.at("to");
    let remove = format!("remove {:?} and {:?}, so", to.join("postgresql.conf"), to.join("pg_hba.conf"));
    assert!(summary.next.len() == 2 && summary.next[0].starts_with(&remove), "{:?}", summary.next);
    assert!(summary.next[0].contains("a \"postgresql.conf\" that sets no data_directory"), "{:?}", summary.next);
}

#[test]
fn a_link_to_what_is_in_the_backup_is_followed() {
    let mut fixture = without_conf();
    fixture.symlink("postgresql.conf", "./conf/main.conf").dir("conf", 0o700);
    fixture.file("conf/main.conf", "data_directory = '/srv/old'\n");
    let place = Place::with(&fixture, |_| {});
    let summary = run(&place.plan()).unwrap();
    assert_eq!(summary.notes, [""; 0]);
    assert!(summary.next[0].starts_with("take data_directory = \"/srv/old\" out of "), "{:?}", summary.next);
}
