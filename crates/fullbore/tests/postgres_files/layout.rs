//! What is picked of a running cluster is what `pg_basebackup` takes of it.

use super::server::{Cluster, walk};
use fullbore_postgres::{control, layout::ClusterLayout};
use std::{fs, path::Path};

/// Files that a server makes and backups leave out, in places where they are and in places where they are a user's.
const STRAY: [&str; 14] = [
    "backup_manifest",
    "base/pgsql_tmp/pgsql_tmp1.0",
    "base/1/t9_16384",
    "base/1/t9_16384_fsm.1",
    "base/1/77777",
    "base/1/77777.1",
    "base/1/77777_fsm",
    "base/1/77777_init",
    "base/1/pg_internal.init.12",
    "global/pg_internal.init.12",
    "mine/t9_16384",
    "pg_replslot/left/state",
    "pg_stat_tmp/x.stat",
    "postgresql.auto.conf.tmp",
];

#[test]
fn the_files_of_a_running_cluster_are_those_that_pg_basebackup_takes() {
    let Some(cluster) = Cluster::new(&[]) else {
        return;
    };
    let (root, space, moved) = (
        cluster.path("data"),
        cluster.path("space"),
        cluster.path("moved"),
    );
    cluster.make(&space);
    cluster.make(&format!("{root}/base/pgsql_tmp"));
    let server = cluster.start("data").unwrap();
    server.sql(&format!("create tablespace s location '{space}'"));
    server.sql("create unlogged table u tablespace s as select g, g::text t from generate_series(1, 9999) g");
    server.sql("create unlogged table w as select * from u; create table v tablespace s as select * from u");
    server.sql("vacuum");
    for path in STRAY.map(|path| Path::new(&root).join(path)) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
    fs::create_dir(format!("{space}/PG_14_202107181")).unwrap();
    let catalog = control::read(Path::new(&root).join("global/pg_control").as_path())
        .unwrap()
        .1
        .catalog;
    let copy = server.basebackup_with("copy", &["-X", "none", "-T", &format!("{space}={moved}")]);
    let (layout, mut ours, mut theirs) = (
        ClusterLayout::new(cluster.major, catalog, true),
        Vec::new(),
        Vec::new(),
    );
    walk(
        Path::new(&root),
        "",
        &|dir, names| layout.retain_backed_up(dir, names),
        &mut ours,
    );
    walk(Path::new(&copy), "", &|_, _| {}, &mut theirs);
    // Made for the copy, or read after everything else.
    let added = [
        "backup_label",
        "tablespace_map",
        "backup_manifest",
        "global/pg_control",
    ];
    theirs.retain(|path| !added.contains(&path.as_str()));
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
    assert!(
        ours.iter().any(|path| path == "mine/t9_16384")
            && ours.iter().any(|path| path.ends_with("77777_init"))
    );
}
