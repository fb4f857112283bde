//! Backups of a cluster that was backed up before.

use super::{
    cluster::{Cluster, debian, some_versions, versions},
    runs::{fullbore, names},
    servers::wait_until,
};
use fullbore_pipeline::stage::codec::Codec;
use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

/// Files touched less than this before a backup begins are read by the next one.
const SETTLED: Duration = Duration::from_millis(3100);

fn at(repository: &Path, id: &str) -> PathBuf {
    format!("{}@{id}", repository.display()).into()
}

fn root(repository: &Path, id: &str) -> serde_json::Value {
    fullbore(super::args!["show", at(repository, id), "--json"])
        .ends_with(0)
        .json()
        .remove(0)["root"]
        .take()
}

fn ids(repository: &Path) -> Vec<String> {
    names(&repository.join("backups"))
}

#[test]
fn every_backup_of_a_sequence_starts_and_has_what_was_there() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        sleep(SETTLED);
        let repository = cluster.path("repository");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.psql_each(&[
            "UPDATE large SET words = 'new' WHERE n % 4000 = 0",
            "CREATE TABLE more AS SELECT 1 AS n",
        ]);
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.psql_each(&["DROP TABLE more", "TRUNCATE small", "VACUUM large"]);
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let ids = ids(&repository);
        let stored = |id: &str| {
            root(&repository, id)["totals"]["stored_bytes"]
                .as_u64()
                .unwrap()
        };
        // But for WAL, which is in every backup, and the catalogs, little of a cluster changes.
        assert!(
            stored(&ids[1]) < stored(&ids[0]) * 2 / 3,
            "{} {}",
            stored(&ids[0]),
            stored(&ids[1])
        );
        let has = |id: &str, small: &str, new: &str, more: &str| {
            fullbore(super::args!["verify", at(&repository, id), "--data"]).ends_with(0);
            let restored = Cluster::restored(version, &at(&repository, id));
            restored.assert_verifies();
            restored.start();
            assert_eq!(restored.psql("SELECT count(*) FROM small"), small);
            assert_eq!(
                restored.psql("SELECT count(*) FROM large WHERE words = 'new'"),
                new
            );
            assert_eq!(
                restored.psql("SELECT count(*) FROM pg_class WHERE relname = 'more'"),
                more
            );
            assert_eq!(
                restored.psql("SELECT count(*), sum(n) FROM large"),
                "40000|800020000"
            );
        };
        has(&ids[0], "300", "0", "0");
        has(&ids[1], "300", "10", "1");
        has(&ids[2], "0", "10", "0");
    }
}

#[test]
fn the_server_says_which_blocks_changed_and_only_those_are_read() {
    for version in versions().iter().filter(|version| version.major >= 17) {
        let cluster = Cluster::new(version, &["summarize_wal = on"]);
        let repository = cluster.path("repository");
        cluster.psql("CHECKPOINT");
        sleep(SETTLED);
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let large = cluster.file_of("large");
        let pages = fs::metadata(cluster.data().join(&large)).unwrap().len() / 8192;
        cluster.psql_each(&[
            "UPDATE large SET words = 'new' WHERE n = 7",
            "INSERT INTO large SELECT n, repeat('x', 260) FROM generate_series(100001, 110000) n",
            "CHECKPOINT",
        ]);
        // A page that no WAL speaks of is not looked at: damage to it on disk does not get into the backup.
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(cluster.data().join(&large))
            .unwrap();
        let mut page = vec![0; 8192];
        file.read_exact_at(&mut page, 700 * 8192).unwrap();
        file.write_all_at(b"damaged", 700 * 8192 + 4000).unwrap();
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        file.write_all_at(&page, 700 * 8192).unwrap();
        let id = ids(&repository).pop().unwrap();
        fullbore(super::args!["verify", at(&repository, &id), "--data"]).ends_with(0);
        let restored = Cluster::restored(version, &at(&repository, &id));
        // The checksum of a file that was read in part is known all the same: from the blocks that were read, and the others'.
        let manifest = fs::read_to_string(restored.data().join("backup_manifest")).unwrap();
        let without = manifest
            .lines()
            .filter(|line| line.contains("\"Path\"") && !line.contains("\"Checksum\""));
        assert_eq!(without.collect::<Vec<_>>(), [""; 0]);
        restored.assert_verifies();
        restored.start();
        assert_eq!(restored.psql("SELECT words FROM large WHERE n = 7"), "new");
        assert_eq!(
            restored.psql("SELECT count(*), count(DISTINCT words) FROM large"),
            "50000|40001"
        );
        assert!(fs::metadata(restored.data().join(&large)).unwrap().len() / 8192 > pages);
        restored.stop("fast");
        // Reads every page; one with a wrong checksum would be exit code 3.
        fullbore(super::args![
            "backup",
            "--offline",
            restored.data(),
            "--to",
            "null:",
            "--quiet"
        ])
        .ends_with(0);
        // And on from there, by reading, and by summaries again.
        cluster.psql_each(&[
            "UPDATE large SET words = 'newer' WHERE n = 9000",
            "CHECKPOINT",
        ]);
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster
            .backup("repository", &["--quiet", "--compare", "content"])
            .ends_with(0);
        for id in ids(&repository).split_off(2) {
            fullbore(super::args!["verify", at(&repository, &id), "--data"]).ends_with(0);
            let restored = Cluster::restored(version, &at(&repository, &id));
            restored.start();
            assert_eq!(
                restored.psql(
                    "SELECT string_agg(words, ' ' ORDER BY n) FROM large WHERE n IN (7, 9000)"
                ),
                "new newer"
            );
        }
    }
}

#[test]
fn what_was_read_in_part_is_restored_in_place_and_exported() {
    for version in versions().iter().filter(|version| version.major >= 17) {
        let cluster = Cluster::new(version, &["summarize_wal = on"]);
        let (repository, full) = (cluster.path("repository"), cluster.path("full"));
        // Of blocks larger than a page some are read in part, and have no digest.
        let flags = ["--quiet", "--compress", "none", "--block-size", "64K"];
        cluster.psql("CHECKPOINT");
        cluster.backup("repository", &flags).ends_with(0);
        cluster.psql_each(&[
            "UPDATE large SET words = 'new' WHERE n % 9000 = 7",
            "CHECKPOINT",
        ]);
        cluster.backup("repository", &flags).ends_with(0);
        let sums = "SELECT count(*), md5(string_agg(words, '' ORDER BY n)) FROM large";
        let wanted = cluster.psql(sums);
        fullbore(super::args!["export", repository, "--to", full, "--quiet"]).ends_with(0);
        let exported = Cluster::restored(version, &full);
        exported.start();
        assert_eq!(exported.psql(sums), wanted);
        cluster.psql("UPDATE large SET words = 'newer' WHERE n % 70 = 0");
        cluster.stop("fast");
        fullbore(super::args![
            "restore",
            repository,
            "--to",
            cluster.data(),
            "--delta",
            "--delete",
            "--quiet"
        ])
        .ends_with(0);
        cluster.start();
        assert_eq!(cluster.psql(sums), wanted);
    }
}

/// Change a byte of a segment of raw frames, and the checksum of its frame with it.
fn change_in_its_frame(segment: &mut [u8], at: usize, byte: u8) {
    const MAGIC: [u8; 4] = 0xFD2F_B528u32.to_le_bytes();
    let start = segment[..at]
        .windows(4)
        .rposition(|four| four == MAGIC)
        .unwrap();
    let len = zstd_safe::find_frame_compressed_size(&segment[start..]).unwrap();
    let plain_len = zstd_safe::get_frame_content_size(&segment[start..]).unwrap();
    let mut plain = Vec::with_capacity(plain_len.unwrap() as usize);
    let old = &mut segment[start..start + len];
    zstd_safe::decompress(&mut plain, old).unwrap();
    // A header of three bytes stands before each block, so the place in the content is another one.
    let word = &old[at - start..][..12];
    let place = plain.windows(12).position(|bytes| bytes == word);
    plain[place.unwrap()] = byte;
    let mut new = Vec::new();
    let mut compressor = Codec::None.compressor().unwrap();
    compressor.compress(&plain, &mut new).unwrap();
    old.copy_from_slice(&new);
}

#[test]
fn what_was_read_in_part_is_compared_with_the_digests_of_its_blocks() {
    for version in versions().iter().filter(|version| version.major >= 17) {
        let cluster = Cluster::new(version, &["summarize_wal = on"]);
        let repository = cluster.path("repository");
        cluster.psql("CHECKPOINT");
        // Stored as it is, so that a word of it can be found.
        cluster
            .backup("repository", &["--quiet", "--compress", "none"])
            .ends_with(0);
        cluster.psql_each(&[
            "UPDATE large SET words = 'unmistakable' WHERE n = 7",
            "CHECKPOINT",
        ]);
        cluster
            .backup("repository", &["--quiet", "--compress", "none"])
            .ends_with(0);
        let id = ids(&repository).pop().unwrap();
        let segment = repository
            .join("backups")
            .join(&id)
            .join("s01-000001.tar.zst");
        let mut stored = fs::read(&segment).unwrap();
        // The file is in the stream before the WAL.
        let word = stored
            .windows(12)
            .position(|bytes| bytes == b"unmistakable")
            .unwrap();
        change_in_its_frame(&mut stored, word, b'U');
        fs::write(&segment, stored).unwrap();
        let large = cluster.file_of("large");
        for options in [&["--keep-going"][..], &[]] {
            let destination = super::runs::temp();
            let target = destination.path().join("data");
            let restore = super::args!["restore", at(&repository, &id), "--to", &target];
            let ran = fullbore(restore.into_iter().chain(super::runs::args(options))).ends_with(4);
            assert!(
                ran.err.contains(&large) && ran.err.contains("its block at byte"),
                "{}",
                ran.err
            );
            assert!(!target.join(&large).exists());
        }
    }
}

#[test]
fn tables_that_were_cut_off_or_made_anew_are_read_where_they_differ() {
    for version in versions().iter().filter(|version| version.major >= 17) {
        let cluster = Cluster::new(version, &["summarize_wal = on"]);
        let repository = cluster.path("repository");
        cluster
            .psql("CREATE TABLE other AS SELECT n, repeat(md5(n::text), 8) AS words FROM generate_series(1, 20000) n");
        cluster.psql("CHECKPOINT");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.psql_each(&[
            "DELETE FROM large WHERE n > 20000",
            "VACUUM large",
            "INSERT INTO large SELECT n, 'after' FROM generate_series(50001, 90000) n",
            "BEGIN; TRUNCATE other; INSERT INTO other SELECT n, 'anew' FROM generate_series(1, 50000) n; COMMIT",
            "CREATE DATABASE copied TEMPLATE postgres STRATEGY file_copy",
        ]);
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let id = ids(&repository).pop().unwrap();
        let restored = Cluster::restored(version, &at(&repository, &id));
        restored.start();
        let sums = "SELECT count(*), sum(n), count(*) FILTER (WHERE words = 'after') FROM large";
        assert_eq!(restored.psql(sums), cluster.psql(sums));
        assert_eq!(
            restored.psql("SELECT count(*), min(words) FROM other"),
            "50000|anew"
        );
        restored.stop("fast");
        // Reads every page; one with a wrong checksum would be exit code 3.
        fullbore(super::args![
            "backup",
            "--offline",
            restored.data(),
            "--to",
            "null:",
            "--quiet"
        ])
        .ends_with(0);
    }
}

#[test]
fn a_database_that_was_moved_and_moved_back_is_read() {
    for version in versions().iter().filter(|version| version.major >= 17) {
        let cluster = Cluster::new(version, &["summarize_wal = on"]);
        let (repository, space) = (cluster.path("repository"), cluster.make_dir("space"));
        cluster.psql_each(&[
            "CREATE DATABASE moves",
            &format!("CREATE TABLESPACE elsewhere LOCATION '{}'", space.display()),
        ]);
        cluster.in_database(
            "moves",
            "CREATE TABLE t AS SELECT n, repeat(md5(n::text), 8) AS words FROM generate_series(1, 9000) n",
        );
        cluster.psql("CHECKPOINT");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.psql("ALTER DATABASE moves SET TABLESPACE elsewhere");
        // The WAL mentions these blocks in the other tablespace only.
        cluster.in_database("moves", "UPDATE t SET words = reverse(words)");
        cluster.psql("ALTER DATABASE moves SET TABLESPACE pg_default");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let restored = Cluster::restored(version, &repository);
        restored.start();
        let sum = "SELECT md5(string_agg(words, '' ORDER BY n)) FROM t";
        assert_eq!(
            restored.in_database("moves", sum),
            cluster.in_database("moves", sum)
        );
    }
}

#[test]
fn a_server_that_was_set_back_on_its_timeline_is_read() {
    for version in versions().iter().filter(|version| version.major >= 17) {
        let cluster = Cluster::new(version, &["summarize_wal = on"]);
        let repository = cluster.path("repository");
        cluster.psql("CHECKPOINT");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let further = |cluster: &Cluster, segments: u32| {
            (0..segments).for_each(|i| {
                cluster.psql_each(&[
                    &format!("CREATE TABLE past{i} ()"),
                    "SELECT pg_switch_wal()",
                ])
            });
        };
        cluster.psql_each(&[
            "UPDATE large SET words = 'first life' WHERE n < 2000",
            "CHECKPOINT",
        ]);
        further(&cluster, 6);
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.stop("immediate");
        // Started without a signal file it stays on the timeline, and comes to where it was at the second backup.
        let restored = Cluster::restored(version, &at(&repository, &ids(&repository)[0]));
        restored.start();
        restored.psql_each(&[
            "UPDATE large SET words = 'second life' WHERE n % 2 = 0",
            "CHECKPOINT",
        ]);
        // Past the place where the second backup began, which what was changed is well before.
        further(&restored, 12);
        let command = super::args!["backup", restored.url(), "--to", repository, "--quiet"];
        fullbore(command).ends_with(0);
        let roots: Vec<_> = ids(&repository)[1..]
            .iter()
            .map(|id| root(&repository, id)["postgres"].clone())
            .collect();
        assert_eq!(roots[0]["timeline"], roots[1]["timeline"]);
        let place = |index: usize| {
            roots[index]["start_lsn"]
                .as_str()
                .unwrap()
                .parse::<fullbore_postgres::lsn::Lsn>()
                .unwrap()
        };
        assert!(place(0) < place(1), "{roots:?}");
        let again = Cluster::restored(version, &at(&repository, &ids(&repository)[2]));
        again.start();
        let sum = "SELECT md5(string_agg(words, '' ORDER BY n)) FROM large";
        assert_eq!(again.psql(sum), restored.psql(sum));
    }
}

#[test]
fn a_server_that_was_restored_to_where_an_earlier_backup_began_is_read() {
    for version in versions().iter().filter(|version| version.major >= 17) {
        let cluster = Cluster::new(version, &["summarize_wal = on"]);
        let repository = cluster.path("repository");
        cluster.psql("CHECKPOINT");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.psql("UPDATE large SET words = 'first life' WHERE n <= 100");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        cluster.stop("immediate");
        // A backup switches to a new segment of the WAL first: in both lives there is a checkpoint at the start of each.
        let restored = Cluster::restored(version, &at(&repository, &ids(&repository)[0]));
        restored.start();
        restored.psql_each(&[
            "UPDATE large SET words = 'second life' WHERE n BETWEEN 201 AND 300",
            "CHECKPOINT",
        ]);
        let base = ids(&repository).remove(1);
        let sum = "SELECT count(*) FILTER (WHERE words = 'first life'), count(*) FILTER (WHERE words = 'second life') FROM large";
        for compare in ["content", "inode", "content", "inode"] {
            let flags = ["--base", &base, "--compare", compare, "--quiet"];
            let command = super::args!["backup", restored.url(), "--to", repository];
            fullbore(command.into_iter().chain(flags.iter().map(Into::into))).ends_with(0);
            let again =
                Cluster::restored(version, &at(&repository, &ids(&repository).pop().unwrap()));
            again.start();
            assert_eq!(again.psql(sum), "0|100", "{compare}");
        }
    }
}

#[test]
fn a_cluster_that_was_stopped_between_is_compared_by_content() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let repository = cluster.path("repository");
    cluster.backup("repository", &["--quiet"]).ends_with(0);
    cluster.stop("fast");
    fullbore(super::args![
        "backup",
        cluster.data(),
        "--offline",
        "--to",
        repository,
        "--quiet"
    ])
    .ends_with(0);
    let id = ids(&repository).pop().unwrap();
    assert_eq!(root(&repository, &id)["bases"].as_array().unwrap().len(), 1);
    let restored = Cluster::restored(version, &at(&repository, &id));
    restored.assert_verifies();
    restored.start();
    restored.assert_has_content();
}

#[test]
fn summaries_that_cannot_be_had_are_done_without() {
    for version in versions().iter().filter(|version| version.major >= 17) {
        let cluster = Cluster::new(version, &["summarize_wal = on"]);
        let (repository, summaries) = (
            cluster.path("repository"),
            cluster.data().join("pg_wal/summaries"),
        );
        cluster.psql("CHECKPOINT");
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let before = names(&summaries);
        cluster.psql_each(&[
            "UPDATE large SET words = 'new' WHERE n % 9000 = 7",
            "CHECKPOINT",
        ]);
        wait_until("a summary more is there", || {
            names(&summaries).len() > before.len()
        });
        let new = names(&summaries)
            .into_iter()
            .find(|name| !before.contains(name))
            .unwrap();
        fs::OpenOptions::new()
            .write(true)
            .open(summaries.join(new))
            .unwrap()
            .set_len(10)
            .unwrap();
        cluster.backup("repository", &["--quiet"]).ends_with(0);
        let restored = Cluster::restored(version, &repository);
        restored.start();
        let sums = "SELECT count(*), md5(string_agg(words, '' ORDER BY n)) FROM large";
        assert_eq!(restored.psql(sums), cluster.psql(sums));
        cluster.psql_each(&[
            "CREATE ROLE tester LOGIN REPLICATION IN ROLE pg_read_all_settings",
            "GRANT EXECUTE ON FUNCTION pg_backup_start(text, boolean), pg_backup_stop(boolean) TO tester",
            "REVOKE EXECUTE ON FUNCTION pg_available_wal_summaries() FROM PUBLIC",
        ]);
        fullbore(super::args![
            "backup",
            cluster.url_as("tester"),
            "--to",
            repository,
            "--quiet"
        ])
        .ends_with(0);
    }
}
