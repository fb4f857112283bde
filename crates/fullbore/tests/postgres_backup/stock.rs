//! Backups read with what every system has: a decompressor and tar.

use super::{
    args,
    cluster::{Cluster, debian, elsewhere, some_versions},
    runs::{FULLBORE, has, or_skip, shell, temp},
    servers::own,
};
use std::{fs, path::Path};

/// Move what is stored below `pg_tblspc` to where the server may have it, and say so in `tablespace_map`, as the guide
/// tells the operator who has no fullbore.
pub(crate) fn put_tablespaces_in_place(restored: &Cluster) {
    let map = restored.data().join("tablespace_map");
    let Ok(text) = fs::read_to_string(&map) else {
        return;
    };
    let moved = text.lines().map(|line| {
        let oid = line.split(' ').next().unwrap();
        let target = restored.path(&format!("space-{oid}"));
        let source = restored.data().join("pg_tblspc").join(oid);
        if fs::rename(&source, &target).is_err() {
            fs::create_dir(&target).unwrap(); // it was dropped meanwhile
            own(&target);
        }
        format!("{oid} {}\n", target.display())
    });
    let moved = moved.collect::<String>();
    fs::write(map, moved).unwrap();
}

/// The line of shell, with the source as `$1` and the new data directory as `$2`, makes a cluster that starts.
#[track_caller]
fn assert_starts(cluster: &Cluster, line: &str, from: &Path) {
    let restored = Cluster::empty(&cluster.version);
    fs::create_dir(restored.data()).unwrap();
    own(&restored.data());
    shell(line, args![from, restored.data()]).ends_with(0);
    put_tablespaces_in_place(&restored);
    restored.start();
    restored.assert_has_content();
    let spaces = "SELECT count(*) FROM pg_tablespace";
    if restored.psql(spaces) != "2" {
        assert_eq!(
            restored.psql("SELECT count(*), sum(n) FROM elsewhere"),
            "500|125250"
        );
    }
}

#[test]
fn zstd_and_tar_restore_a_cluster_that_starts() {
    for version in some_versions() {
        let cluster = Cluster::new(version, &[]);
        cluster
            .backup("repository", &["--segment-size", "2M", "--quiet"])
            .ends_with(0);
        let line = "cd \"$1\"/backups/*/ && [ -e s01-000002.tar.zst ] && zstd -dc s*.tar.zst | tar -xi -C \"$2\"";
        assert_starts(&cluster, line, &cluster.path("repository"));
    }
}

#[test]
fn zstd_and_tar_restore_tablespaces_on_this_and_another_device() {
    let Some(version) = debian() else { return };
    let (cluster, other) = (Cluster::new(version, &[]), elsewhere());
    let here = cluster.make_dir("here");
    for (name, position, n) in [("here", &*here, "500"), ("there", other.path(), "7")] {
        cluster.psql(&format!(
            "CREATE TABLESPACE {name} LOCATION '{}'",
            position.display()
        ));
        let table = if name == "here" { "elsewhere" } else { "far" };
        cluster.psql(&format!(
            "CREATE TABLE {table} TABLESPACE {name} AS SELECT n FROM generate_series(1, {n}) n"
        ));
    }
    cluster.backup("repository", &["--quiet"]).ends_with(0);
    let line = "cd \"$1\"/backups/*/ && [ -e s02-000001.tar.zst ] && zstd -dc s*.tar.zst | tar -xi -C \"$2\"";
    assert_starts(&cluster, line, &cluster.path("repository"));
    cluster.backup("one.tar.zst", &["--quiet"]).ends_with(0);
    assert_starts(
        &cluster,
        "zstd -dc \"$1\" | tar -xi -C \"$2\"",
        &cluster.path("one.tar.zst"),
    );
    // As a stream it is restored as `tar` does it, which is said.
    let line = format!(
        "cat \"$1\" | {FULLBORE} restore - --to \"$2\" 2>&1 | tee \"$2.said\" && grep -q 'move them' \"$2.said\""
    );
    assert_starts(&cluster, &line, &cluster.path("one.tar.zst"));
}

#[test]
fn an_archive_of_each_codec_starts_and_has_plain_headers_only() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    for (name, unpack) in [
        ("a.tar.zst", "zstd -dc"),
        ("a.tar.lz4", "lz4 -dc"),
        ("a.tar.gz", "gzip -dc"),
        ("a.tar", "cat"),
    ] {
        if !or_skip(has(unpack.split(' ').next().unwrap()), unpack) {
            continue;
        }
        cluster.backup(name, &["--quiet"]).ends_with(0);
        let plain = cluster.path("plain");
        shell(
            &format!("{unpack} \"$1\" > \"$2\""),
            args![cluster.path(name), plain],
        )
        .ends_with(0);
        assert_plain_headers(&fs::read(plain).unwrap());
        assert_starts(
            &cluster,
            &format!("{unpack} \"$1\" | tar -xi -C \"$2\""),
            &cluster.path(name),
        );
    }
}

#[test]
fn standard_output_into_zstd_and_tar_starts() {
    let Some(version) = debian() else { return };
    let cluster = Cluster::new(version, &[]);
    let line = format!("{FULLBORE} backup \"$1\" --to - | zstd -dc | tar -xi -C \"$2\"");
    assert_starts(&cluster, &line, Path::new(&cluster.url()));
}

/// Files, directories and links, in ustar, and nothing that only newer readers of tar know.
#[track_caller]
fn assert_plain_headers(tar: &[u8]) {
    let number = |field: &[u8]| {
        let digits: String = field
            .iter()
            .take_while(|c| c.is_ascii_digit())
            .map(|c| char::from(*c))
            .collect();
        usize::from_str_radix(&digits, 8).unwrap()
    };
    let (mut index, mut members) = (0, 0);
    while let Some(header) = tar.get(index..index + 512) {
        index += 512;
        if header.iter().all(|byte| *byte == 0) {
            continue;
        }
        assert_eq!(&header[257..265], b"ustar\x0000", "at {index}");
        assert!(
            b"05".contains(&header[156]),
            "a member of type {:?}",
            char::from(header[156])
        );
        index += number(&header[124..136]).next_multiple_of(512);
        members += 1;
    }
    assert!(members > 900, "{members}");
}

#[test]
fn a_backup_is_the_same_for_stock_tools_and_for_restore() {
    let Some(version) = debian() else { return };
    let (cluster, place) = (Cluster::new(version, &[]), temp());
    cluster.backup("repository", &["--quiet"]).ends_with(0);
    let line = "cd \"$1\"/backups/*/ && mkdir \"$2\" && zstd -dc s*.tar.zst | tar -xi -C \"$2\"";
    shell(
        line,
        args![cluster.path("repository"), place.path().join("stock")],
    )
    .ends_with(0);
    let restored = Cluster::restored(version, &cluster.path("repository"));
    shell(
        "diff -r \"$1\" \"$2\"",
        args![place.path().join("stock"), restored.data()],
    )
    .ends_with(0);
}
