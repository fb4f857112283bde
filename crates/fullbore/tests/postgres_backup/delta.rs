//! A cluster that was stopped is brought back to its backup in place, tablespace and all.

use super::{
    args,
    cluster::{Cluster, some_versions},
    runs::fullbore,
};

#[test]
fn a_cluster_that_was_stopped_becomes_its_backup_in_place() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let space = cluster.make_dir("space");
        cluster.psql(&format!(
            "CREATE TABLESPACE space LOCATION '{}'",
            space.display()
        ));
        cluster.psql("CREATE TABLE t TABLESPACE space AS SELECT n, repeat('x', 200) FROM generate_series(1, 20000) n");
        cluster.psql(
            "CREATE TABLE big AS SELECT n, repeat('y', 200) FROM generate_series(1, 20000) n",
        );
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.psql("UPDATE t SET n = -n WHERE n % 1000 = 0");
        cluster.psql("CREATE TABLE later AS SELECT 1");
        let later = cluster.file_of("later");
        let back = |more: &[&str]| {
            let args = args![
                "restore",
                cluster.path("repository"),
                "--to",
                cluster.data(),
                "--delta",
                "--json"
            ];
            fullbore(
                args.into_iter()
                    .chain(more.iter().map(std::ffi::OsString::from)),
            )
        };
        back(&["--delete"])
            .ends_with(1)
            .has_one_error("a server runs there");
        cluster.stop("fast");
        back(&[])
            .ends_with(2)
            .has_one_error("keep files newer than the backup");
        let lines = back(&["--delete"]).ends_with(0).json();
        let removed = |path: &str| {
            lines
                .iter()
                .any(|line| line["change"] == "removed" && line["path"] == path)
        };
        assert!(removed(&later), "{later}: {lines:?}");
        let changes = &lines.last().unwrap()["changes"];
        let (same, changed) = (
            changes["same"].as_u64().unwrap(),
            changes["changed"].as_u64().unwrap(),
        );
        assert!(same > 10 * changed, "{changes}");
        assert!(
            !cluster.data().join(&later).exists()
                && cluster.data().join("global/pg_control").exists()
        );
        cluster.start();
        assert_eq!(
            cluster.psql("SELECT count(*), sum(n) FROM t"),
            "20000|200010000"
        );
        assert_eq!(
            cluster.psql("SELECT count(*), sum(n) FROM big"),
            "20000|200010000"
        );
        assert_eq!(
            cluster.psql("SELECT count(*) FROM pg_class WHERE relname = 'later'"),
            "0"
        );
    }
}
