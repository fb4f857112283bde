//! The memory of verifications in an encrypted repository: what counts of it, and for whom.

use super::world::{Person, World, files_below};
use fullbore_format::seal::seal;
use serde_json::{Value, json};
use std::{ffi::OsString, fs, path::PathBuf};

/// A repository of a person, and a host with a put key that has one backup in it; both have backed up the tree.
struct Remembered {
    world: World,
    me: Person,
    host: Person,
}

impl Remembered {
    fn new() -> Self {
        let world = World::new();
        let (me, host) = (world.person("me"), world.person("host"));
        let repository = world.repository();
        world.init(&repository, &me);
        let put = args![
            "key",
            "put",
            repository,
            "--for",
            host.recipient,
            "--name",
            "web1"
        ];
        world.run_as(&me, put).ends_with(0);
        for person in [&me, &host] {
            world.backup(&repository, person);
        }
        Self { world, me, host }
    }

    fn memory(&self) -> PathBuf {
        self.world.repository().join("verify.json")
    }

    fn verify(&self, options: &[&str]) -> Vec<OsString> {
        let words = args!["verify", self.world.repository()].into_iter();
        words.chain(options.iter().map(Into::into)).collect()
    }

    /// Bytes that the next backup of somebody stores.
    fn stored(&self, person: &Person) -> u64 {
        let backup = self.world.backup(&self.world.repository(), person);
        backup["stored_bytes"].as_u64().unwrap()
    }

    fn stats(&self, person: &Person) -> Value {
        let stats = args!["stats", self.world.repository(), "--json"];
        self.world
            .run_as(person, stats)
            .ends_with(0)
            .json()
            .pop()
            .unwrap()
    }

    fn losses(&self, person: &Person) -> Vec<Value> {
        let list = args!["list", self.world.repository(), "--json"];
        let lines = self.world.run_as(person, list).ends_with(0).json();
        lines
            .into_iter()
            .map(|line| line["lost_files"].clone())
            .collect()
    }

    /// The document, with all parts damaged and a loss of each backup, sealed as anybody can who writes to the storage.
    fn forge(&self, change: impl FnOnce(&mut Value)) {
        let mut document: Value =
            serde_json::from_slice(&fs::read(self.memory()).unwrap()).unwrap();
        document.as_object_mut().unwrap().remove("blake3");
        change(&mut document);
        fs::write(self.memory(), seal(&document).unwrap()).unwrap();
    }
}

/// All is damaged, and lost.
fn damage_all(found: &mut Value) {
    let mut losses = serde_json::Map::new();
    for row in found["segments"].as_array_mut().unwrap() {
        for run in row["runs"].as_array_mut().unwrap() {
            run[1] = json!(1);
        }
        losses.insert(row["backup"].as_str().unwrap().to_owned(), json!(99));
    }
    found["losses"] = losses.into();
}

#[test]
fn a_storage_cannot_make_backups_store_more_or_verifications_check_less() {
    let world = Remembered::new();
    world
        .world
        .run_as(&world.me, world.verify(&["--data"]))
        .ends_with(0);
    assert_eq!(world.stats(&world.me)["verified_share"], 1.0);
    let assert_ignored = |case: &str| {
        for person in [&world.me, &world.host] {
            let bytes = world.stored(person);
            assert!(bytes < 50_000, "{case}: {bytes}");
            assert!(world.losses(person).iter().all(Value::is_null), "{case}");
        }
        let stats = world.stats(&world.me);
        assert_eq!(
            (&stats["verified_share"], &stats["damaged_bytes"]),
            (&json!(0.0), &json!(0))
        );
    };
    let genuine = fs::read(world.memory()).unwrap();
    // The proof stays, the content is another one.
    world.forge(|document| damage_all(&mut document["proven"]["found"]));
    let ran = world.world.run_as(&world.me, world.verify(&[]));
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(format!("{}{}", ran.out, ran.err).contains("was changed without a key of a person"));
    assert_ignored("a proof of something else");
    // No proof: as a host without a key writes.
    fs::write(world.memory(), genuine).unwrap();
    world.forge(|document| {
        let mut proven = document["proven"].take();
        damage_all(&mut proven["found"]);
        *document = json!({"format": document["format"], "found": proven["found"]});
    });
    assert_ignored("no proof");
    world
        .world
        .run_as(&world.me, world.verify(&[]))
        .ends_with(0);
    // Who has no key sees it, as that of others without a key.
    let keyless = world.losses(&world.world.without_key());
    assert!(keyless.contains(&json!(99)), "{keyless:?}");
}

#[test]
fn what_a_person_found_damaged_is_stored_again_by_all_also_after_a_rotation() {
    let world = Remembered::new();
    let repository = world.world.repository();
    let mut damaged = 0;
    let files = files_below(&repository.join("backups")).into_iter();
    for segment in files.filter(|file| file.to_str().unwrap().contains("/s01-")) {
        let mut bytes = fs::read(&segment).unwrap();
        if bytes.len() > 500_000 {
            bytes[300_000] ^= 1;
            fs::write(&segment, bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged >= 2, "of each backup");
    for person in [&world.me, &world.host] {
        assert!(world.stored(person) < 50_000, "it is not known");
    }
    world
        .world
        .run_as(&world.me, world.verify(&["--data"]))
        .ends_with(4);
    assert!(world.losses(&world.me).iter().any(|loss| !loss.is_null()));
    let rotate = args!["key", "rotate", repository];
    world.world.run_as(&world.me, rotate).ends_with(0);
    assert!(world.losses(&world.me).iter().any(|loss| !loss.is_null()));
    for person in [&world.me, &world.host] {
        let bytes = world.stored(person);
        assert!(bytes > 500_000, "{bytes}");
    }
    world
        .world
        .assert_restores(&repository, &world.me, "stored again");
}

#[test]
fn samples_without_a_key_go_on_where_they_ended_and_a_put_key_records_none() {
    let world = Remembered::new();
    let sample = |person: &Person| {
        let words = world.verify(&["--sample", "40%", "--json"]);
        let ran = world.world.run_as(person, words).ends_with(0);
        ran.json().pop().unwrap()["sampled"].clone()
    };
    let first = sample(&world.host);
    let why = first["not_remembered"].as_str().unwrap();
    assert!(why.contains("can add backups only"), "{why}");
    assert!(!world.memory().exists());
    let nobody = world.world.without_key();
    let again = sample(&nobody);
    assert_eq!(again["never_checked_bytes"], first["never_checked_bytes"]);
    let next = sample(&nobody);
    assert!(
        next["never_checked_bytes"].as_u64() < again["never_checked_bytes"].as_u64(),
        "{next} {again}"
    );
    // A person begins anew, and what it records counts for all.
    let mine = sample(&world.me);
    assert!(
        mine["never_checked_bytes"].as_u64() > next["never_checked_bytes"].as_u64(),
        "{mine}"
    );
    let share = world.stats(&nobody)["verified_share"].clone();
    assert_eq!(world.stats(&world.me)["verified_share"], share);
}

#[test]
fn damage_found_without_a_key_is_told_to_all_until_a_key_has_checked_the_data() {
    let world = Remembered::new();
    let nobody = world.world.without_key();
    let files = files_below(&world.world.repository().join("backups"));
    let is_large = |file: &&PathBuf| fs::metadata(file).unwrap().len() > 500_000;
    let segment = files
        .iter()
        .filter(|file| file.to_str().unwrap().contains("/s01-"))
        .find(is_large)
        .unwrap();
    let whole = fs::read(segment).unwrap();
    let mut bytes = whole.clone();
    bytes[300_000] ^= 1;
    fs::write(segment, bytes).unwrap();
    let fleet = |person: &Person| {
        let words = args!["fleet", world.world.repository()];
        world.world.run_as(person, words)
    };
    // Whoever can only add is told that its result counts nowhere.
    let by_host = world
        .world
        .run_as(&world.host, world.verify(&["--data"]))
        .ends_with(4);
    assert!(
        by_host.err.contains("`fullbore fleet` will not know of it"),
        "{}",
        by_host.err
    );
    fleet(&world.me).ends_with(0);
    let found = world
        .world
        .run_as(&nobody, world.verify(&["--data"]))
        .ends_with(4);
    assert!(
        found.err.contains("`fullbore fleet` tells of it"),
        "{}",
        found.err
    );
    for person in [&nobody, &world.me, &world.host] {
        let told = fleet(person).ends_with(4);
        assert!(told.out.contains("1 backup damaged"), "{}", told.out);
    }
    let told = fleet(&world.me);
    assert!(
        told.out.contains("by a verify without a key"),
        "{}",
        told.out
    );
    // No backup and no check depends on what nobody proved.
    assert!(world.stored(&world.me) < 50_000);
    assert!(world.losses(&world.me).iter().all(Value::is_null));
    // A check of a part, and a rotation, keep it.
    fs::write(segment, whole).unwrap();
    let sample = world.verify(&["--sample", "1%"]);
    world.world.run_as(&world.me, sample).ends_with(0);
    fleet(&world.me).ends_with(4);
    let rotate = args!["key", "rotate", world.world.repository()];
    world.world.run_as(&world.me, rotate).ends_with(0);
    fleet(&world.me).ends_with(4);
    world
        .world
        .run_as(&world.me, world.verify(&["--data"]))
        .ends_with(0);
    fleet(&world.me).ends_with(0);
    fleet(&nobody).ends_with(0);
    // So is what the structure shows.
    fs::rename(segment, segment.with_extension("away")).unwrap();
    world.world.run_as(&nobody, world.verify(&[])).ends_with(4);
    fleet(&world.me).ends_with(4);
}

#[test]
fn sharing_with_other_sources_is_refused_to_a_put_key_and_a_wrong_passphrase_is_called_so() {
    let world = Remembered::new();
    let words = args![
        "backup",
        world.world.tree(),
        "--to",
        world.world.repository(),
        "--dedup",
        "repository"
    ];
    let ran = world.world.run_as(&world.host, words.clone()).ends_with(2);
    assert!(
        ran.err.contains("the key can add backups only"),
        "{}",
        ran.err
    );
    world.world.run_as(&world.me, words).ends_with(0);
    let (right, wrong) = (world.world.path("right"), world.world.path("wrong"));
    super::runs::write_private(&right, "correct horse battery staple");
    super::runs::write_private(&wrong, "correct horse battery");
    let other = world.world.path("other");
    let init = args!["init", other, "--passphrase", "--passphrase-file", right];
    world.world.run(init).ends_with(0);
    let list = |repository: &PathBuf, file: &PathBuf| {
        let words = args!["list", repository, "--passphrase-file", file];
        world.world.run(words).ends_with(1).err
    };
    let said = list(&other, &wrong);
    assert!(said.contains("the passphrase is wrong"), "{said}");
    let said = list(&world.world.repository(), &right);
    assert!(said.contains("it has keys in files only"), "{said}");
}
