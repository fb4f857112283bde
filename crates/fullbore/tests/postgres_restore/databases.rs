//! Some databases of a cluster, and what is refused for other sources.

use super::*;

#[test]
fn other_databases_come_back_as_holes_and_are_not_even_fetched() {
    let place = Place::new();
    let read = |databases: &[&str]| {
        let _ = (
            fs::remove_dir_all(place.at("to")),
            fs::remove_dir_all(place.at("ts")),
        );
        let mut restore = place.plan();
        restore.postgres.databases = databases.iter().map(|name| (*name).to_owned()).collect();
        let meter = Meter::default();
        let summary = restore.run(&meter).unwrap();
        (meter.stored_bytes.load(Relaxed), summary.next[1..].to_vec())
    };
    let (all, none) = read(&[]);
    let (some, next) = read(&["app"]);
    assert!(some + 10_000 < all && none.is_empty(), "{some} of {all}");
    assert_eq!(
        next,
        [
            "DROP DATABASE \"o\"\"ther\";",
            "ALTER SYSTEM RESET ignore_invalid_pages;"
        ]
    );
    for (path, len) in [("to/base/16385/1259", 16384), ("to/base/16385/2619", 100)] {
        let meta = fs::metadata(place.at(path)).unwrap();
        assert_eq!((meta.len(), meta.blocks()), (len, 0), "{path}");
    }
    let moved = fs::metadata(place.at("ts/fast").join(VERSION).join("16385/24576")).unwrap();
    assert_eq!(
        (moved.len(), moved.blocks(), moved.mode() & 0o777),
        (10_000, 0, 0o644)
    );
    assert_eq!(
        fs::read(place.at("to/base/16385/PG_VERSION")).unwrap(),
        b"15\n"
    );
    for oid in [1, 4, 5, 16384] {
        assert!(
            fs::read(place.at(&format!("to/base/{oid}/1259"))).unwrap() == content(oid, 16384),
            "{oid}"
        );
    }
    let (_, next) = read(&["postgres", "template1"]);
    assert_eq!(
        next[..2],
        ["DROP DATABASE \"app\";", "DROP DATABASE \"o\"\"ther\";"]
    );
}

#[test]
fn a_database_that_is_not_there_is_refused_and_those_that_are_are_named() {
    let place = Place::new();
    let mut restore = place.plan();
    restore.postgres.databases = vec!["app".into(), "nothing".into()];
    assert_refused(&restore, ErrorKind::Usage, "database \"nothing\"");
    assert_refused(
        &restore,
        ErrorKind::Usage,
        "\"template1\", \"template0\", \"postgres\", \"app\", \"o\\\"ther\"",
    );
    assert!(!place.at("to").exists());
}

#[test]
fn what_is_for_clusters_only_is_refused_for_anything_else() {
    let place = Place::new();
    Fixture::sample().write_repository(&place.at("tree"));
    fs::write(place.at("x.tar"), [0; 1024]).unwrap();
    for source in [place.at("tree"), place.at("x.tar"), "-".into()] {
        for option in [
            args!["--database", "app"],
            args!["--set", "a=b"],
            args!["--recovery", "none"],
        ] {
            let args = args!["restore", source, "--to", place.at("to")];
            fullbore(args.into_iter().chain(option))
                .ends_with(2)
                .has_one_error("PostgreSQL options");
            assert!(!place.at("to").exists());
        }
    }
}
