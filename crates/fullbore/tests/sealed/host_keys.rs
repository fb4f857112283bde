//! Hosts that add backups and cannot read them.

use super::{
    runs,
    world::{HIDDEN, Person, World, files_below, id_of},
};
use std::{ffi::OsString, fs, path::Path};

const CANNOT_READ: &str = "can add backups and cannot read them";

/// A repository of an owner, and a host that adds to it.
fn world_with_host() -> (World, Person, Person) {
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
    (world, me, host)
}

/// Adds a backup of the same tree, as that of another host.
fn back_up_another_host(world: &World, me: &Person) {
    let backup = args![
        "backup",
        world.tree(),
        "--to",
        world.repository(),
        "--host",
        "other"
    ];
    world.run_as(me, backup).ends_with(0);
}

#[test]
fn a_host_adds_full_and_incremental_backups_and_reads_none() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    // The host has no list of it.
    back_up_another_host(&world, &me);
    let [first, second] = world.two_backups(&repository, &host);
    world.change(5);
    let third = world.backup(&repository, &host);
    assert_eq!(third["bases"][0], second.as_str());
    let backup = |id: &str| format!("{}@{id}", repository.display());
    let out = world.path("out");
    let refused: [Vec<OsString>; 5] = [
        args!["repair", repository, "--yes"].into(),
        args!["restore", backup(&first), "--to", out].into(),
        args!["export", backup(&first), "--to", world.path("a.tar.zst")].into(),
        args!["verify", backup(&first), "--against", world.tree()].into(),
        args!["copy", backup(&first), world.path("c"), "--no-encryption"].into(),
    ];
    for args in refused {
        let ran = world.run_as(&host, args.clone());
        assert_eq!(ran.code, 1, "{args:?}: {}", ran.err);
        assert!(!out.exists() || runs::names(&out).is_empty(), "{args:?}");
    }
    let restore = args!["restore", backup(&first), "--to", out];
    world
        .run_as(&host, restore)
        .ends_with(1)
        .has_one_error(CANNOT_READ);
    world
        .run_as(&host, args!["verify", repository, "--data"])
        .ends_with(0);
    for verb in ["rotate", "list"] {
        let ran = world.run_as(&host, args!["key", verb, repository]);
        assert_eq!(ran.code == 0, verb == "list", "{}", ran.err);
    }
    world
        .run_as(&me, args!["verify", repository, "--data"])
        .ends_with(0);
    world.assert_restores(Path::new(&backup(&id_of(&third))), &me, "added by the host");
}

#[test]
fn a_first_backup_of_a_host_names_no_backup_of_another() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    back_up_another_host(&world, &me);
    let first = world.backup(&repository, &host);
    assert_eq!(first["unlike"], serde_json::Value::Null, "{first}");
    let source = |id: &str| id[19..21].to_owned();
    let second = world.backup(&repository, &host);
    assert_eq!(source(&id_of(&first)), source(&id_of(&second)));
}

#[test]
fn a_host_does_a_full_backup_where_it_has_no_right_copy_of_its_list() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    let first = id_of(&world.backup(&repository, &host));
    let state = world.path("state");
    let root = |id: &str| {
        let name = format!("{id}.root.json");
        let kept = files_below(&state);
        kept.into_iter().find(|path| path.ends_with(&name)).unwrap()
    };
    // A list of another backup in its place.
    let kept = root(&first);
    let bytes = fs::read(&kept).unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    fs::write(
        &kept,
        text.replace(HIDDEN, "othersecretname")
            .replace("9000", "9001"),
    )
    .unwrap();
    let changed = fs::read(&kept).unwrap() != bytes;
    let second = world.backup(&repository, &host);
    assert_eq!(second["bases"].as_array().unwrap().is_empty(), changed);
    fs::remove_dir_all(&state).unwrap();
    let third = world.backup(&repository, &host);
    assert!(third["bases"].as_array().unwrap().is_empty());
    assert!(
        third["unlike"]["why"].as_str().unwrap().contains("no copy"),
        "{third}"
    );
    // Manifests that were cut off or are missing: what they list is stored again.
    for damage in ["cut", "missing"] {
        for manifest in files_below(&state) {
            if manifest.to_str().unwrap().ends_with(".manifest") {
                match damage {
                    "cut" => fs::write(&manifest, b"cut").unwrap(),
                    _ => fs::remove_file(&manifest).unwrap(),
                }
            }
        }
        let result = world.backup(&repository, &host);
        assert_eq!(result["kept_files"], 0, "{damage}: {result}");
    }
    world
        .run_as(&me, args!["verify", repository, "--data"])
        .ends_with(0);
    world.assert_restores(&repository, &me, "after all");
}

#[test]
fn what_a_host_keeps_is_for_its_user_and_goes_with_the_backup() {
    use std::os::unix::fs::PermissionsExt;
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    let [first, second] = world.two_backups(&repository, &host);
    let mut kept = files_below(&world.path("state"));
    kept.retain(|path| !path.parent().unwrap().ends_with("repositories"));
    kept.retain(|path| !path.parent().unwrap().ends_with("last-backups"));
    kept.retain(|path| path.parent().unwrap() != world.path("state"));
    assert_eq!(kept.len(), 4, "{kept:?}");
    for path in &kept {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o077, 0);
        let parent = path.parent().unwrap().metadata().unwrap();
        assert_eq!(parent.permissions().mode() & 0o077, 0);
        let bytes = fs::read(path).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("AGE-SECRET-KEY"));
    }
    world
        .run_as(&me, args!["forget", "--yes", repository, first, second])
        .ends_with(0);
    world.run_as(&me, args!["prune", repository]).ends_with(0);
    let third = world.backup(&repository, &host);
    assert!(third["bases"].as_array().unwrap().is_empty());
    let left = runs::names(kept[0].parent().unwrap());
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(
        left.iter().all(|name| name.starts_with(&id_of(&third))),
        "{left:?}"
    );
}

#[test]
fn a_host_whose_key_was_removed_adds_nothing_after_a_rotation() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    world.backup(&repository, &host);
    let remove = args!["key", "remove", repository, "--name", "web1", "--put"];
    world.run_as(&me, remove).ends_with(0);
    world
        .run_as(&me, args!["key", "rotate", repository])
        .ends_with(0);
    let backup = args!["backup", world.tree(), "--to", repository];
    world
        .run_as(&host, backup)
        .ends_with(1)
        .has_one_error("none of the keys");
    world.assert_restores(&repository, &me, "what it added stays");
}

#[test]
fn a_host_goes_on_with_its_increments_after_a_rotation() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    let first = id_of(&world.backup(&repository, &host));
    world
        .run_as(&me, args!["key", "rotate", repository])
        .ends_with(0);
    world.change(4);
    let second = world.backup(&repository, &host);
    assert_eq!(second["bases"][0], first.as_str());
    world.assert_restores(&repository, &me, "over a rotation");
}

/// The files of a backup, put into another copy of the repository.
fn put_back(world: &World, from: &Path, id: &str) {
    for file in files_below(&from.join("backups").join(id)) {
        let target = world
            .repository()
            .join(file.strip_prefix(from).expect("a file below it"));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(file, target).unwrap();
    }
}

/// A copy of the whole repository, as whoever can read the storage has it.
fn copy_of(world: &World, name: &str) -> std::path::PathBuf {
    let copy = world.path(name);
    for file in files_below(&world.repository()) {
        let target = copy.join(file.strip_prefix(world.repository()).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(file, target).unwrap();
    }
    copy
}

#[test]
fn what_a_removed_put_key_adds_does_not_count_before_and_after_a_rotation() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    let genuine = id_of(&world.backup(&repository, &host));
    let stolen = copy_of(&world, "stolen");
    let remove = args!["key", "remove", repository, "--name", "web1", "--put"];
    world.run_as(&me, remove).ends_with(0);
    world.change(3);
    let forged = id_of(&world.backup(&stolen, &host));
    put_back(&world, &stolen, &forged);
    for when in ["removed", "rotated"] {
        let ran = world.run_as(&me, args!["cat", repository, "large"]);
        assert_ne!(ran.code, 0, "{when}: it is not the latest");
        assert!(ran.err.contains("does not count"), "{when}: {}", ran.err);
        let selected = format!("{}@{genuine}", repository.display());
        world
            .run_as(&me, args!["cat", selected, "large"])
            .ends_with(0);
        if when == "removed" {
            world
                .run_as(&me, args!["key", "rotate", repository])
                .ends_with(0);
        }
    }
    // No base either.
    let own = world.run_as(
        &me,
        args!["backup", world.tree(), "--to", repository, "--json"],
    );
    assert_eq!(own.json().pop().unwrap()["bases"], serde_json::json!([]));
    // The owner knows that it is genuine after all.
    world
        .run_as(&me, args!["key", "accept", repository, forged])
        .ends_with(0);
    let selected = format!("{}@{forged}", repository.display());
    world
        .run_as(&me, args!["cat", selected, "large"])
        .ends_with(0);
}

#[test]
fn a_backup_that_was_under_way_at_a_rotation_is_named_and_not_lost_silently() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    world.backup(&repository, &host);
    // Under the old key, as one that was begun before the rotation.
    let late = copy_of(&world, "late");
    world
        .run_as(&me, args!["key", "rotate", repository])
        .ends_with(0);
    world.change(3);
    let id = id_of(&world.backup(&late, &host));
    put_back(&world, &late, &id);
    let ran = world.run_as(&me, args!["verify", repository]);
    assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
    let said = format!("{}{}", ran.out, ran.err);
    assert!(
        said.contains(&id) && said.contains("does not count"),
        "{said}"
    );
    world
        .run_as(&me, args!["key", "accept", repository, id])
        .ends_with(0);
    world
        .run_as(&me, args!["verify", repository, "--data"])
        .ends_with(0);
    world.assert_restores(&repository, &me, "accepted");
}

#[test]
fn changes_of_keys_are_told_as_json_and_their_words_aside() {
    let (world, me, _) = world_with_host();
    let repository = world.repository();
    let recipient = "age17n0dh6am39xaacvqu5tksntrss0dqnaty5tznlmf6yhg8vg9lsyqperzv9";
    let put = args![
        "key", "put", repository, "--for", recipient, "--name", "w9", "--json"
    ];
    for (line, change, name) in [
        (&put[..], "added", serde_json::json!("w9")),
        (
            &args!["key", "remove", repository, "--name", "w9", "--json"],
            "removed",
            serde_json::json!("w9"),
        ),
        (
            &args!["key", "rotate", repository, "--yes", "--json"],
            "rotated",
            serde_json::Value::Null,
        ),
    ] {
        let ran = world.run_as(&me, line.to_vec()).ends_with(0);
        let told = ran.json();
        assert_eq!(told.len(), 1, "{}", ran.out);
        assert_eq!(
            (&told[0]["change"], &told[0]["name"]),
            (&change.into(), &name)
        );
        assert!(
            !ran.err.is_empty(),
            "the words for a person are on standard error"
        );
    }
    let none = world.run_as(&me, args!["key", "remove", repository, "--name", "w9"]);
    none.ends_with(1).has_one_error("fullbore key list REPO");
}

#[test]
fn a_key_that_is_new_to_a_user_gets_the_next_key_only_with_consent() {
    let (world, me, _) = world_with_host();
    let repository = world.repository();
    // Another user, who has seen no list.
    fs::remove_dir_all(world.path("state")).unwrap();
    let refused = world.run_as(&me, args!["key", "rotate", repository]);
    refused.ends_with(2).has_one_error("not seen before");
    world
        .run_as(&me, args!["key", "rotate", repository, "--yes"])
        .ends_with(0);
    world
        .run_as(&me, args!["key", "rotate", repository])
        .ends_with(0);
}

#[test]
fn a_key_file_of_which_a_bit_was_flipped_is_found_by_verify() {
    let (world, me, _) = world_with_host();
    let repository = world.repository();
    world.backup(&repository, &me);
    world.run_as(&me, args!["verify", repository]).ends_with(0);
    let file = repository.join("keys/web1.put.age");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let ran = world.run_as(&me, args!["verify", repository]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    let said = format!("{}{}", ran.out, ran.err);
    assert!(said.contains("keys/web1.put.age"), "{said}");
}

#[test]
fn notes_without_a_key_take_nothing_from_those_of_a_person() {
    let (world, me, _) = world_with_host();
    let repository = world.repository();
    let id = id_of(&world.backup(&repository, &me));
    let backup = format!("{}@{id}", repository.display());
    world
        .run_as(&me, args!["tag", backup, "state=broken"])
        .ends_with(0);
    world.run_as(&me, args!["pin", backup]).ends_with(0);
    world.run(args!["tag", backup, "state=good"]).ends_with(0);
    world
        .run(args!["unpin", backup])
        .ends_with(1)
        .has_one_error("with a key");
    let listed = |tag: &str| {
        let ran = world.run_as(&me, args!["list", repository, "--tag", tag, "--json"]);
        ran.out.contains(&id)
    };
    assert!(listed("state=broken") && !listed("state=good"));
    let forget = args!["forget", "--yes", repository, id];
    assert_ne!(world.run_as(&me, forget.clone()).code, 0, "it is pinned");
    assert_ne!(world.run(forget).code, 0, "it is pinned");
    let shown = world.run_as(&me, args!["show", backup]).ends_with(0);
    assert!(shown.out.contains("without key"), "{}", shown.out);
    // A person sees all, and what the person writes replaces it.
    world.run_as(&me, args!["unpin", backup]).ends_with(0);
    let shown = world.run_as(&me, args!["show", backup]).ends_with(0);
    assert!(!shown.out.contains("without key"), "{}", shown.out);
    // A pin without a key protects.
    world.run(args!["pin", backup]).ends_with(0);
    let forget = args!["forget", "--yes", repository, id];
    assert_ne!(world.run_as(&me, forget).code, 0, "it is pinned");
    // A bit of a proof.
    world.run_as(&me, args!["pin", backup]).ends_with(0);
    let notes = repository.join("backups").join(&id).join("notes.json");
    let text = fs::read_to_string(&notes).unwrap();
    let (before, _) = text.rsplit_once("\n\"blake3\"").unwrap();
    let before = before.replace("\"pinned\":true", "\"pinned\":false");
    let digest = blake3::hash(before.as_bytes()).to_hex();
    fs::write(&notes, format!("{before}\n\"blake3\": \"{digest}\"\n}}\n")).unwrap();
    let ran = world.run_as(&me, args!["forget", "--yes", repository, id]);
    assert_ne!(ran.code, 0, "{text}");
    assert!(ran.err.contains("notes.json"), "{}", ran.err);
}

#[test]
fn a_backup_of_a_put_key_in_the_name_of_another_host_is_no_base_of_that_host() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    let of_host = id_of(&world.backup(&repository, &host));
    // The same name of a host, but the key of a person.
    let own = world.backup(&repository, &me);
    assert_eq!(own["bases"], serde_json::json!([]), "not {of_host}");
    world.change(2);
    let next = world.backup(&repository, &me);
    assert_eq!(next["bases"][0], id_of(&own).as_str());
}

#[test]
fn a_backup_in_the_name_of_another_host_shows_the_put_key_that_added_it() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    let own = id_of(&world.backup(&repository, &me));
    let added = id_of(&world.backup(&repository, &host));
    let list = |more: &[&str]| {
        let words = args!["list", repository].into_iter();
        world
            .run_as(&me, words.chain(more.iter().map(Into::into)))
            .ends_with(0)
    };
    let table = list(&[]).out;
    assert_eq!(
        table.matches("added with put key \"web1\"").count(),
        1,
        "{table}"
    );
    for line in list(&["--json"]).json() {
        let expected = (line["id"] == added.as_str()).then_some("web1");
        assert_eq!(line["put_key"].as_str(), expected, "{line}");
    }
    for (id, expected) in [(&own, None), (&added, Some("web1"))] {
        let backup = format!("{}@{id}", repository.display());
        let shown = world
            .run_as(&me, args!["show", backup, "--json"])
            .ends_with(0);
        assert_eq!(shown.json().pop().unwrap()["put_key"].as_str(), expected);
        let shown = world.run_as(&me, args!["show", backup]).ends_with(0).out;
        assert_eq!(
            shown.contains("put key       web1"),
            expected.is_some(),
            "{shown}"
        );
    }
    let remove = args!["key", "remove", repository, "--name", "web1", "--put"];
    world.run_as(&me, remove).ends_with(0);
    let number = &list(&["--json"]).json()[1]["put_key"];
    assert_eq!(number.as_str().unwrap().len(), 16, "{number}");
}

#[test]
fn a_key_file_that_the_storage_hides_is_listed_removed_and_made_again() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    let file = repository.join("keys/web1.put.age");
    let hide = || fs::remove_file(&file).unwrap();
    hide();
    let listed = world
        .run_as(&me, args!["key", "list", repository])
        .ends_with(0);
    assert!(listed.out.contains(&host.recipient), "{}", listed.out);
    world
        .run_as(&me, args!["key", "rotate", repository])
        .ends_with(0);
    world.backup(&repository, &host);
    hide();
    let last = args!["key", "remove", repository, "--name", "owner"];
    world
        .run_as(&me, last)
        .ends_with(2)
        .has_one_error("the last key");
    let remove = args!["key", "remove", repository, "--name", "web1"];
    world.run_as(&me, remove).ends_with(0);
    world
        .run_as(&me, args!["key", "rotate", repository])
        .ends_with(0);
    assert!(!file.exists());
    world.run_as(&me, args!["verify", repository]).ends_with(0);
}

#[test]
fn a_key_file_of_any_length_takes_little_memory() {
    let (world, me, _) = world_with_host();
    let repository = world.repository();
    world.backup(&repository, &me);
    for name in ["x.age", "x.put.age", "current.json"] {
        let file = repository.join("keys").join(name);
        let kept = fs::read(&file).ok();
        fs::File::create(&file).unwrap().set_len(200 << 20).unwrap();
        let ran = world.run_as(&me, args!["list", repository]).ends_with(4);
        ran.has_one_error("it is too large");
        match kept {
            Some(bytes) => fs::write(&file, bytes).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
    }
    world.run_as(&me, args!["verify", repository]).ends_with(0);
}

#[test]
fn a_copy_as_stored_learns_of_a_put_key_that_was_added_later() {
    let (world, me, _) = world_with_host();
    let (repository, replica) = (world.repository(), world.path("replica"));
    world.backup(&repository, &me);
    let copy = args!["copy", repository, replica];
    world.run(copy.clone()).ends_with(0);
    let later = world.person("later");
    let put = args![
        "key",
        "put",
        repository,
        "--for",
        later.recipient,
        "--name",
        "web2"
    ];
    world.run_as(&me, put).ends_with(0);
    let id = id_of(&world.backup(&repository, &later));
    world.run(copy).ends_with(0);
    let backup = format!("{}@{id}", replica.display());
    world
        .run_as(&me, args!["cat", backup, "large"])
        .ends_with(0);
    world.run_as(&me, args!["verify", replica]).ends_with(0);
}

#[test]
fn find_with_a_put_key_names_the_key_and_denies_nothing() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    world.backup(&repository, &me);
    world
        .run_as(&host, args!["find", repository, "*"])
        .ends_with(1)
        .has_one_error("the key that was given can add backups and cannot read them");
    world
        .run_as(&me, args!["find", repository, "*"])
        .ends_with(0);
}

fn shared_with(result: &serde_json::Value) -> Vec<String> {
    let ids = result["shared_with"].as_array().unwrap();
    ids.iter().map(|id| id.as_str().unwrap().into()).collect()
}

#[test]
fn a_put_key_shares_no_content_and_learns_none_of_others() {
    let (world, me, host) = world_with_host();
    let repository = world.repository();
    back_up_another_host(&world, &me);
    let beside = world.backup(&repository, &host);
    // What the host sends does not depend on what others have.
    let (alone_repository, put) = (world.path("alone"), |repository: &Path| {
        let recipient = &host.recipient;
        args![
            "key", "put", repository, "--for", recipient, "--name", "web1"
        ]
    });
    world.init(&alone_repository, &me);
    world.run_as(&me, put(&alone_repository)).ends_with(0);
    let alone = world.backup(&alone_repository, &host);
    for result in [&beside, &alone] {
        assert_eq!(shared_with(result), [""; 0]);
    }
    assert_eq!(beside["stored_bytes"], alone["stored_bytes"]);
    // Nor do people rely on what such a host says of its content.
    let backup = |repository: &Path| {
        let args = args![
            "backup",
            world.tree(),
            "--to",
            repository,
            "--host",
            "third",
            "--json"
        ];
        let small = args!["--frame-size", "64K", "--segment-size", "1M"];
        let ran = world.run_as(&me, args.into_iter().chain(small));
        ran.ends_with(0).json().pop().unwrap()
    };
    assert_eq!(shared_with(&backup(&alone_repository)), [""; 0]);
}

#[test]
fn people_share_content_in_an_encrypted_repository() {
    let world = World::new();
    let me = world.person("me");
    let repository = world.repository();
    world.init(&repository, &me);
    let first = world.backup(&repository, &me);
    let args = args![
        "backup",
        world.tree(),
        "--to",
        repository,
        "--host",
        "other",
        "--json"
    ];
    let small = args!["--frame-size", "64K"];
    let ran = world
        .run_as(&me, args.into_iter().chain(small))
        .ends_with(0);
    let second = ran.json().pop().unwrap();
    assert_eq!(shared_with(&second), [id_of(&first)]);
    assert!(
        second["stored_bytes"].as_u64().unwrap() < 100_000,
        "{second}"
    );
    let verify = args!["verify", repository, "--data"];
    world.run_as(&me, verify).ends_with(0);
    // The list is sealed.
    let list = repository
        .join("backups")
        .join(id_of(&first))
        .join("contents");
    assert!(
        fs::read(list)
            .unwrap()
            .starts_with(b"age-encryption.org/v1")
    );
    let host = args![
        "restore",
        repository,
        "--host",
        "other",
        "--to",
        world.path("out"),
        "-q"
    ];
    world.run_as(&me, host).ends_with(0);
    runs::assert_same(&world.shape(), &runs::shape(&world.path("out")), "other");
}

/// A run that is killed between its two commits leaves its backup in one repository alone.
#[test]
fn a_put_key_takes_as_base_what_all_destinations_have() {
    let (world, me, host) = world_with_host();
    let first = world.repository();
    let second = world.path("second");
    world.init(&second, &me);
    let recipient = &host.recipient;
    let put = args!["key", "put", second, "--for", recipient, "--name", "web1"];
    world.run_as(&me, put).ends_with(0);
    let backup = || {
        let to = args!["backup", world.tree(), "--to", first, "--to", second];
        let ran = world.run_as(&host, to.into_iter().chain(args!["--json"]));
        ran.ends_with(0).json().pop().unwrap()
    };
    let in_both = backup();
    world.change(1);
    let in_one = backup();
    assert_eq!(in_one["bases"][0], id_of(&in_both));
    fs::remove_dir_all(second.join("backups").join(id_of(&in_one))).unwrap();

    world.change(2);
    let last = backup();
    assert_eq!(last["bases"][0], id_of(&in_both), "{last}");
    for repository in [&first, &second] {
        let to = world.path("back");
        let restore = args!["restore", repository, "--to", to, "-q"];
        world.run_as(&me, restore).ends_with(0);
        runs::assert_same(&world.shape(), &runs::shape(&to), "restored");
        fs::remove_dir_all(to).unwrap();
    }
    // Once it is in both, it is the base again.
    assert_eq!(backup()["bases"][0], id_of(&last));
}
