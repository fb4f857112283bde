//! Clusters that are shut down, as sources.

use super::{
    args,
    cluster::{Cluster, debian, versions},
    runs::{Ran, fullbore, make_fifo, names, shell},
    servers::own,
    slow::{Slow, assert_nothing_is_listed, started_into},
};
use std::fs;

fn offline(cluster: &Cluster) -> Ran {
    cluster.backup_offline("repository")
}

#[test]
fn a_cluster_that_was_shut_down_restores_starts_and_verifies() {
    for version in versions() {
        let cluster = Cluster::new(version, &[]);
        let space = cluster.make_dir("space");
        cluster.psql(&format!(
            "CREATE TABLESPACE space LOCATION '{}'",
            space.display()
        ));
        cluster.psql("CREATE UNLOGGED TABLE unlogged AS SELECT n FROM generate_series(1, 500) n");
        cluster.stop("fast");
        let before = cluster.restored_names();
        let ran = offline(&cluster).ends_with(0);
        assert!(ran.err.contains("shut down, timeline 1"), "{}", ran.err);
        let restored = Cluster::restored(version, &cluster.path("repository"));
        assert_eq!(restored.restored_names(), before);
        restored.assert_verifies();
        restored.start();
        restored.assert_has_content();
        // It starts without recovery, which would empty it.
        assert_eq!(restored.psql("SELECT count(*) FROM unlogged"), "500");
    }
}

#[test]
fn what_stands_in_place_of_a_clusters_own_files_is_not_waited_for() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(version, &[]);
    let process = cluster.data().join("postmaster.pid");
    make_fifo(&process);
    offline(&cluster).ends_with(0);
    fs::remove_file(&process).unwrap();
    for name in ["PG_VERSION", "global/pg_control"] {
        let (path, aside) = (cluster.data().join(name), cluster.path("aside"));
        fs::rename(&path, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        offline(&cluster)
            .ends_with(4)
            .has_one_error("it is not a regular file");
        fs::remove_file(&path).unwrap();
        fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        offline(&cluster)
            .ends_with(4)
            .has_one_error("it is too large");
        fs::rename(&aside, &path).unwrap();
    }
}

impl Cluster {
    /// Names of what is in `pg_wal`: of a stopped cluster all of it is stored.
    fn restored_names(&self) -> Vec<String> {
        names(&self.data().join("pg_wal"))
    }
}

#[test]
fn a_cluster_that_runs_is_not_backed_up_by_its_path() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let said = format!(
        "cannot back up the cluster at {:?}: it is running and no connection was given",
        cluster.data()
    );
    let ran = offline(&cluster).ends_with(2).has_one_error(&said);
    assert!(
        ran.err.contains("hint:  use postgres://… as the source"),
        "{}",
        ran.err
    );
    let ran = fullbore(args![
        "backup",
        cluster.data(),
        "--to",
        cluster.path("repository")
    ]);
    let ran = ran.ends_with(2).has_one_error(&said);
    assert!(
        ran.err.contains("hint:  use postgres://… as the source"),
        "{}",
        ran.err
    );
    assert!(!cluster.path("repository").exists());
}

#[test]
fn a_cluster_that_was_killed_is_not_backed_up() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    cluster.stop("immediate");
    let ran = offline(&cluster)
        .ends_with(2)
        .has_one_error("it was not shut down cleanly");
    assert!(ran.err.contains("hint:"), "{}", ran.err);
    // What kill -9 leaves names a process that is gone.
    fs::write(cluster.data().join("postmaster.pid"), "4194305\n").unwrap();
    offline(&cluster)
        .ends_with(2)
        .has_one_error("it was not shut down cleanly");
    fs::remove_file(cluster.data().join("postmaster.pid")).unwrap();
    assert!(!cluster.path("repository").exists());
}

#[test]
fn a_cluster_that_is_started_meanwhile_voids_the_backup() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(version, &[]);
    let slow = Slow::of(args![cluster.data(), "--offline"]);
    let child = started_into(
        &cluster.path("repository"),
        args![cluster.data(), "--offline"],
    );
    cluster.start();
    // Nor does it help to stop it again.
    cluster.stop("fast");
    slow.end()
        .0
        .ends_with(1)
        .has_one_error("was started meanwhile");
    Ran::from(child.wait_with_output().unwrap())
        .ends_with(1)
        .has_one_error("was started meanwhile");
    assert_nothing_is_listed(&cluster.path("repository"));
}

#[test]
fn what_is_no_cluster_is_refused() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(version, &[]);
    let nothing = cluster.make_dir("nothing");
    let ran = fullbore(args![
        "backup",
        nothing,
        "--offline",
        "--to",
        cluster.path("repository")
    ]);
    assert!([1, 2].contains(&ran.code), "{}", ran.code);
    ran.has_one_error("pg_control");
    fullbore(args![
        "backup",
        nothing,
        nothing,
        "--offline",
        "--to",
        cluster.path("repository")
    ])
    .ends_with(2)
    .has_one_error("--offline takes exactly one PATH");
}

#[test]
fn the_same_stopped_cluster_gives_the_same_tar_twice() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(version, &[]);
    let digest = |workers: &str| {
        let target = cluster.path(&format!("{workers}.tar"));
        fullbore(args![
            "backup",
            cluster.data(),
            "--offline",
            "--to",
            target,
            "--workers",
            workers
        ])
        .ends_with(0);
        // The manifest has the time it was made.
        let listed = shell(
            "tar -tvif \"$1\" --full-time | grep -v backup_manifest",
            args![target],
        )
        .out;
        let content = shell(
            "tar -xOif \"$1\" --exclude=backup_manifest | sha256sum",
            args![target],
        )
        .out;
        (listed, content)
    };
    let (one, many) = (digest("1"), digest("4"));
    assert!(one.0.lines().count() > 900 && one == many, "they differ");
}

#[test]
fn a_stopped_standby_keeps_that_it_is_one() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(version, &[]);
    fs::write(cluster.data().join("standby.signal"), "").unwrap();
    own(&cluster.data().join("standby.signal"));
    cluster.start();
    cluster.stop("fast");
    offline(&cluster).ends_with(0);
    let restored = Cluster::restored(version, &cluster.path("repository"));
    restored.start();
    assert_eq!(restored.psql("SELECT pg_is_in_recovery()"), "t");
}
