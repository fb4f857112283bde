//! Tablespaces: which stream they are in, and that everything in them comes along.

use super::{
    args,
    cluster::{Cluster, debian, elsewhere, some_versions, versions},
    runs::{fullbore, or_skip},
};
use serde_json::Value;
use std::{collections::BTreeSet, fs::metadata, os::unix::fs::MetadataExt, path::Path};

/// Streams that the only backup of a repository has segments of.
fn streams(repository: &Path) -> Vec<u64> {
    let root = fullbore(args!["show", repository, "--json"])
        .json()
        .remove(0)["root"]
        .take();
    let streams = root["segments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|segment| segment["stream"].as_u64().unwrap());
    streams.collect::<BTreeSet<_>>().into_iter().collect()
}

fn tablespace(cluster: &Cluster, name: &str, at: &Path) -> u32 {
    cluster.psql(&format!(
        "CREATE TABLESPACE {name} LOCATION '{}'",
        at.display()
    ));
    cluster.psql(&format!(
        "CREATE TABLE in_{name} TABLESPACE {name} AS SELECT n FROM generate_series(1, 500) n"
    ));
    cluster
        .psql(&format!(
            "SELECT oid FROM pg_tablespace WHERE spcname = '{name}'"
        ))
        .parse()
        .unwrap()
}

#[test]
fn a_tablespace_on_this_device_shares_the_stream_and_on_another_it_has_its_own() {
    for version in some_versions() {
        let (cluster, other) = (Cluster::new(version, &[]), elsewhere());
        let here = tablespace(&cluster, "here", &cluster.make_dir("here"));
        cluster.backup("one", &["--quiet"]).ends_with(0);
        assert_eq!(streams(&cluster.path("one")), [1]);
        if !or_skip(
            metadata(other.path()).unwrap().dev() != metadata(cluster.data()).unwrap().dev(),
            "one device",
        ) {
            return;
        }
        let there = tablespace(&cluster, "there", other.path());
        cluster.backup("two", &["--quiet"]).ends_with(0);
        assert_eq!(streams(&cluster.path("two")), [1, 2]);
        let root: Value = fullbore(args!["show", cluster.path("two"), "--json"])
            .json()
            .remove(0)["root"]
            .take();
        let known = root["postgres"]["tablespaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|space| {
                (
                    space["oid"].as_u64().unwrap(),
                    space["name"].as_str().unwrap(),
                    space["location"].as_str().unwrap(),
                )
            });
        let here = (u64::from(here), "here", cluster.path("here"));
        let there = (u64::from(there), "there", other.path().to_owned());
        let wanted = [
            (here.0, here.1, here.2.to_str().unwrap()),
            (there.0, there.1, there.2.to_str().unwrap()),
        ];
        assert_eq!(known.collect::<Vec<_>>(), wanted);
        let entries = fullbore(args![
            "list",
            format!("{}@latest", cluster.path("two").display()),
            "--json"
        ])
        .json();
        let file = cluster.file_of("in_there");
        assert!(
            entries.iter().any(|entry| entry["path"] == *file),
            "{file} is not listed"
        );
    }
}

#[test]
fn a_tablespace_in_the_data_directory_comes_along() {
    for version in versions().iter().filter(|version| version.major >= 15) {
        let cluster = Cluster::new(version, &["allow_in_place_tablespaces = on"]);
        tablespace(&cluster, "inside", Path::new(""));
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let restored = Cluster::restored(version, &cluster.path("repository"));
        restored.assert_verifies();
        restored.start();
        assert_eq!(
            restored.psql("SELECT count(*), sum(n) FROM in_inside"),
            "500|125250"
        );
    }
}

/// Nothing but the session that made it said that it may be there.
#[test]
fn a_tablespace_in_the_data_directory_that_the_configuration_does_not_allow_is_spoken_of() {
    for version in some_versions().filter(|version| version.major >= 15) {
        let cluster = Cluster::new(version, &[]);
        cluster.in_session(&[
            "SET allow_in_place_tablespaces = on",
            "CREATE TABLESPACE inside LOCATION ''",
        ]);
        cluster.psql(
            "CREATE TABLE in_inside TABLESPACE inside AS SELECT n FROM generate_series(1, 500) n",
        );
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let restored = Cluster::empty(version);
        let ran = fullbore(args![
            "restore",
            cluster.path("repository"),
            "--to",
            restored.data()
        ])
        .ends_with(0);
        let option = "-c allow_in_place_tablespaces=on";
        let start = ran
            .err
            .lines()
            .find(|line| line.starts_with("next: pg_ctl "))
            .unwrap();
        assert!(
            start.contains(option) && ran.err.contains("is a directory: a server recovers that"),
            "{}",
            ran.err
        );
        assert!(!restored.starts(), "the option is not wanted");
        assert!(restored.starts_with(option), "{}", restored.log());
        assert_eq!(
            restored.psql("SELECT count(*), sum(n) FROM in_inside"),
            "500|125250"
        );
        let flags = ["--set", "allow_in_place_tablespaces=on"];
        Cluster::restored_with(version, &cluster.path("repository"), &flags).start();
    }
}

#[test]
fn a_directory_of_another_version_in_a_tablespace_stays_behind() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let (space, oid) = (
        cluster.make_dir("space"),
        tablespace(&cluster, "space", &cluster.path("space")),
    );
    std::fs::create_dir(space.join("PG_9_200001011")).unwrap();
    std::fs::write(space.join("PG_9_200001011/old"), "old").unwrap();
    cluster.backup("repository", &["--quiet"]).ends_with(0);
    let entries = fullbore(args![
        "list",
        format!("{}@latest", cluster.path("repository").display()),
        "--json"
    ])
    .json();
    let below: Vec<_> = entries
        .iter()
        .filter_map(|entry| entry["path"].as_str())
        .collect();
    assert!(
        below
            .iter()
            .any(|path| path.starts_with(&format!("pg_tblspc/{oid}/PG_{}_", version.major)))
    );
    assert!(!below.iter().any(|path| path.contains("PG_9_")));
}

#[test]
fn a_tablespace_behind_a_relative_link_comes_along() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        let space = cluster.make_dir("space");
        let oid = tablespace(&cluster, "space", &space);
        cluster.stop("fast");
        let link = cluster.data().join(format!("pg_tblspc/{oid}"));
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("../../space", &link).unwrap();
        let has_it = |repository: &Path| {
            let root: Value = fullbore(args!["show", repository, "--json"])
                .json()
                .remove(0)["root"]
                .take();
            assert_eq!(
                root["postgres"]["tablespaces"][0]["location"],
                space.to_str().unwrap()
            );
            let restored = Cluster::restored(version, repository);
            assert!(
                std::fs::read_link(restored.data().join(format!("pg_tblspc/{oid}")))
                    .unwrap()
                    .is_absolute()
            );
            fullbore(args!["verify", repository, "--against", restored.data()]).ends_with(0);
            restored.assert_verifies();
            restored.start();
            assert_eq!(
                restored.psql("SELECT count(*), sum(n) FROM in_space"),
                "500|125250"
            );
        };
        let offline = cluster.path("offline");
        fullbore(args![
            "backup",
            cluster.data(),
            "--offline",
            "--to",
            offline,
            "--quiet"
        ])
        .ends_with(0);
        has_it(&offline);
        cluster.start();
        cluster.backup("online", &["--quiet"]).ends_with(0);
        has_it(&cluster.path("online"));
    }
}

#[test]
fn a_tablespace_below_the_data_directory_is_stored_once() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let inside = cluster.data().join("inside");
    std::fs::create_dir(&inside).unwrap();
    super::servers::own(&inside);
    let oid = tablespace(&cluster, "inside", &inside);
    cluster.backup("repository", &["--quiet"]).ends_with(0);
    let entries = fullbore(args![
        "list",
        format!("{}@latest", cluster.path("repository").display()),
        "--json"
    ])
    .json();
    let below = |dir: &str| {
        entries
            .iter()
            .filter(|entry| entry["path"].as_str().unwrap().starts_with(dir))
            .count()
    };
    assert!(below(&format!("pg_tblspc/{oid}/PG_")) > 0);
    assert_eq!(below("inside/"), 0);
    let restored = Cluster::restored(version, &cluster.path("repository"));
    restored.assert_verifies();
    restored.start();
    assert_eq!(
        restored.psql("SELECT count(*), sum(n) FROM in_inside"),
        "500|125250"
    );
}
