//! The control file is read as `pg_controldata` reads it; without its checkpoint it needs the label.

use super::{manifest::again, server::Cluster};
use fullbore_postgres::{
    control::{self, Control, ControlState},
    manifest::lsn,
};
use std::{fs, path::Path};

/// What `pg_controldata` says of `what`.
fn said<'a>(text: &'a str, what: &str) -> &'a str {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{what} in {text}")).trim()
}

fn read(cluster: &Cluster, name: &str) -> Control {
    control::read(
        Path::new(&cluster.path(name))
            .join("global/pg_control")
            .as_path(),
    )
    .unwrap()
    .1
}

#[test]
fn the_control_file_says_what_pg_controldata_says() {
    let Some(cluster) = Cluster::new(&["-k", "--wal-segsize=4"]) else {
        return;
    };
    for running in [false, true] {
        let server = running.then(|| cluster.start("data").unwrap());
        let (text, control) = (
            cluster.ok("pg_controldata", &[&cluster.path("data")]),
            read(&cluster, "data"),
        );
        let state = ["shut down", "in production"][usize::from(running)];
        assert_eq!(
            (
                said(&text, "Database cluster state"),
                control.state == ControlState::Production
            ),
            (state, running)
        );
        for (word, value) in [
            ("Database system identifier", control.system_identifier),
            ("pg_control version number", control.control_version.into()),
            ("Catalog version number", control.catalog.into()),
            ("Latest checkpoint's TimeLineID", control.timeline.into()),
            (
                "Min recovery ending loc's timeline",
                control.min_recovery_timeline.into(),
            ),
            ("Database block size", control.sizes.page_bytes.into()),
            (
                "Blocks per segment of large relation",
                control.sizes.segment_blocks.into(),
            ),
            ("Bytes per WAL segment", control.wal_segment_bytes.into()),
            (
                "Data page checksum version",
                control.checksum_version.into(),
            ),
        ] {
            assert_eq!(said(&text, word), value.to_string(), "{word}");
        }
        assert_eq!(
            said(&text, "Latest checkpoint location"),
            lsn(control.checkpoint_lsn)
        );
        assert_eq!(
            said(&text, "Latest checkpoint's REDO location"),
            lsn(control.redo_lsn)
        );
        assert_eq!(
            said(&text, "Minimum recovery ending location"),
            lsn(control.min_recovery_lsn)
        );
        drop(server);
    }
}

#[test]
fn a_copy_without_a_checkpoint_passes_pg_verifybackup_and_starts_only_with_its_label() {
    let Some(cluster) = Cluster::new(&["-k"]) else {
        return;
    };
    let server = cluster.start("data").unwrap();
    server.sql("create table t as select g, md5(g::text) from generate_series(1, 20000) g; create index on t(g)");
    for name in ["with", "without"] {
        let copy = server.basebackup(name);
        let path = format!("{copy}/global/pg_control");
        let changed = control::without_checkpoint(&fs::read(&path).unwrap()).unwrap();
        fs::write(&path, changed).unwrap();
        let manifest = format!("{copy}/backup_manifest");
        fs::write(
            &manifest,
            again(
                cluster.major,
                Path::new(&copy),
                &fs::read(&manifest).unwrap(),
            ),
        )
        .unwrap();
        cluster.ok("pg_verifybackup", &[&copy]);
    }
    drop(server);
    fs::remove_file(cluster.path("without/backup_label")).unwrap();
    let refusal = cluster.start("without").err().expect("it started");
    assert!(
        refusal.contains("could not locate a valid checkpoint record"),
        "{refusal}"
    );
    let copy = cluster.start("with").unwrap();
    assert_eq!(
        copy.sql("select count(*), sum(g) from t"),
        "20000|200010000"
    );
    copy.client(
        "pg_amcheck",
        &["--install-missing", "--heapallindexed", "postgres"],
    );
    copy.sql("insert into t values (1); checkpoint");
    drop(copy);
    assert_eq!(read(&cluster, "with").state, ControlState::ShutDown);
    assert_eq!(
        cluster.start("with").unwrap().sql("select count(*) from t"),
        "20001"
    );
}
