//! Stored backups of clusters as full ones again, and in other repositories.

use super::{
    args,
    cluster::{Cluster, debian, some_versions},
    runs::{fullbore, names, shell},
    servers::own,
    stock::put_tablespaces_in_place,
};
use fullbore_format::root::Root;
use fullbore_repository::archive::Archive;
use fullbore_storage::Storages;
use std::{fs, path::Path};

/// The root of the only backup of a repository, and all of its records.
fn stored(repository: &Path) -> (Root, Vec<fullbore_format::page::Record>) {
    let id = names(&repository.join("backups")).pop().unwrap();
    let archive =
        Archive::open_backup(&Storages::default().repository_at(repository).unwrap(), &id).unwrap();
    let pages = (0..archive.root.pages.len())
        .flat_map(|offset| archive.page(offset).unwrap().records.clone());
    let records = pages.collect();
    (archive.root, records)
}

#[test]
fn an_incremental_backup_of_a_cluster_is_exported_as_one_that_starts() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let space = cluster.make_dir("space");
        cluster.psql(&format!(
            "CREATE TABLESPACE space LOCATION '{}'",
            space.display()
        ));
        cluster.psql(
            "CREATE TABLE moved TABLESPACE space AS SELECT n FROM generate_series(1, 5000) n",
        );
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.psql("UPDATE small SET word = 'changed' WHERE n = 7");
        cluster.psql("INSERT INTO moved VALUES (0)");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let (was, _) = stored(&cluster.path("repository"));
        assert_eq!(was.bases.len(), 1);

        let (file, other) = (cluster.path("x.tar.zst"), cluster.path("other"));
        fullbore(args![
            "export",
            cluster.path("repository"),
            "--to",
            file,
            "--quiet"
        ])
        .ends_with(0);
        fullbore(args!["export", file, "--to", other, "--quiet"]).ends_with(0);
        let (is, _) = stored(&other);
        assert_eq!(
            (&was.postgres, &was.totals.bytes, &was.time),
            (&is.postgres, &is.totals.bytes, &is.time)
        );
        assert!(is.bases.is_empty() && is.pages.iter().any(|page| page.late));
        for source in [&file, &other] {
            fullbore(args!["verify", source, "--data"]).ends_with(0);
            assert_starts(&Cluster::restored(version, source), true);
        }
        let stock = Cluster::empty(version);
        fs::create_dir(stock.data()).unwrap();
        own(&stock.data());
        shell(
            "zstd -dc \"$1\" | tar -x -C \"$2\"",
            args![file, stock.data()],
        )
        .ends_with(0);
        put_tablespaces_in_place(&stock);
        assert_starts(&stock, false);
    }
}

fn assert_starts(restored: &Cluster, verify: bool) {
    if verify {
        restored.assert_verifies();
    }
    restored.start();
    restored.assert_has_content();
    assert_eq!(
        restored.psql("SELECT word FROM small WHERE n = 7"),
        "changed"
    );
    assert_eq!(
        restored.psql("SELECT count(*), sum(n) FROM moved"),
        "5001|12502500"
    );
}

#[test]
fn a_full_backup_of_a_cluster_is_exported_as_it_is() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::stopped(version, &[]);
    let target = cluster.path("repository");
    fullbore(args![
        "backup",
        cluster.data(),
        "--offline",
        "--to",
        target,
        "--quiet"
    ])
    .ends_with(0);
    fullbore(args![
        "export",
        target,
        "--to",
        cluster.path("other"),
        "--quiet"
    ])
    .ends_with(0);
    let ((was, before), (is, after)) = (stored(&target), stored(&cluster.path("other")));
    assert!(before == after, "entries, digests or frames are others");
    assert_eq!(
        (was.options, was.postgres, was.finished),
        (is.options, is.postgres, is.finished)
    );
}

#[test]
fn an_incremental_backup_of_a_cluster_is_copied_and_starts() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    cluster.backup("repository", &["--quiet"]).ends_with(0);
    cluster.psql("UPDATE small SET word = 'changed' WHERE n = 7");
    cluster.backup("repository", &["--quiet"]).ends_with(0);
    let (repository, other) = (cluster.path("repository"), cluster.path("other"));
    fullbore(args!["copy", repository, other, "--quiet"]).ends_with(0);
    fs::rename(&repository, cluster.path("away")).unwrap();
    fullbore(args!["verify", other, "--data"]).ends_with(0);
    let restored = Cluster::restored(version, &other);
    restored.assert_verifies();
    restored.start();
    restored.assert_has_content();
    assert_eq!(
        restored.psql("SELECT word FROM small WHERE n = 7"),
        "changed"
    );
}

#[test]
fn a_cluster_is_backed_up_to_two_repositories_and_each_of_them_starts_alone() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let second = cluster.path("second");
    let also = [
        "--to",
        second.to_str().unwrap(),
        "--segment-size",
        "1M",
        "--quiet",
    ];
    // The second one has no base at first.
    cluster.backup("repository", &["--quiet"]).ends_with(0);
    for turn in 0..2 {
        cluster.psql(&format!(
            "UPDATE small SET word = 'turn {turn}' WHERE n = 7"
        ));
        cluster.backup("repository", &also).ends_with(0);
        for repository in [&cluster.path("repository"), &second] {
            let restored = Cluster::restored(version, repository);
            restored.start();
            restored.assert_has_content();
            let word = restored.psql("SELECT word FROM small WHERE n = 7");
            assert_eq!(word, format!("turn {turn}"));
            fullbore(args!["verify", repository, "--data", "--quiet"]).ends_with(0);
        }
    }
}
