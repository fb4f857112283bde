//! Pages of a real cluster have the checksums that are computed here, and damage to them is found.

use super::server::{Cluster, walk};
use fullbore_postgres::{
    page_checksum::{PageVerdict, check},
    relation::{Sizes, first_block},
};
use std::{fs, path::Path};

const PAGE: usize = 8192;

/// A stopped cluster with tables, indexes of all kinds, an unlogged table and a tablespace.
fn filled() -> Option<Cluster> {
    let cluster = Cluster::new(&["-k"])?;
    let server = cluster.start("data").unwrap();
    server.sql("create table t as select g, md5(g::text) m, int4range(g, g + 9) r from generate_series(1, 30000) g");
    for index in [
        "btree (m)",
        "hash (g)",
        "gist (r)",
        "brin (g)",
        "gin (string_to_array(m, 'a'))",
        "spgist (m)",
    ] {
        server.sql(&format!("create index on t using {index}"));
    }
    server
        .sql("create unlogged table u as select * from t limit 100; delete from t where g % 3 = 0");
    server.sql("vacuum analyze");
    let space = cluster.path("space");
    cluster.make(&space);
    server.sql(&format!("create tablespace s location '{space}'"));
    server.sql("create table v tablespace s as select * from t");
    drop(server);
    Some(cluster)
}

#[test]
fn every_page_of_a_stopped_cluster_is_good_and_damage_is_found() {
    let Some(cluster) = filled() else { return };
    let (root, mut all, mut pages, mut missed) = (cluster.path("data"), Vec::new(), 0, 0);
    walk(Path::new(&root), "", &|_, _| {}, &mut all);
    for path in &all {
        let Some(first) = first_block(path.as_bytes(), Sizes::default()) else {
            continue;
        };
        let mut bytes = fs::read(Path::new(&root).join(path)).unwrap();
        assert_eq!(bytes.len() % PAGE, 0, "{path}");
        for (block, page) in (first..).zip(bytes.chunks_mut(PAGE)) {
            let verdict = check(page, block, u64::MAX);
            assert!(
                matches!(verdict, PageVerdict::Good | PageVerdict::Empty),
                "{path}, block {block}: {verdict:?}"
            );
            pages += 1;
            // One byte of each page, another in each.
            page[(pages * 37) % PAGE] ^= 0xff;
            missed += u32::from(check(page, block, u64::MAX) != PageVerdict::Bad);
        }
    }
    assert!(all.iter().any(|path| path.starts_with("pg_tblspc/")
        && first_block(path.as_bytes(), Sizes::default()).is_some()));
    // 16 bits miss one in 65,535.
    assert!(pages > 4000 && missed <= 2, "{missed} of {pages} missed");
}
