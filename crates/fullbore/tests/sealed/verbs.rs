//! Each verb with the right key, with none and with another one.

use super::{
    runs::{self, Ran, shape},
    world::{HIDDEN, World, files_below, id_of},
};
use std::{ffi::OsString, fs, path::PathBuf};

const NO_KEY: &str = "no key was given";
const WRONG_KEY: &str = "none of the keys that were given opens";

#[test]
fn every_verb_works_with_a_key_as_in_a_clear_repository() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    world.init(&repository, &me);
    let [first, second] = world.two_backups(&repository, &me);
    let run = |args: Vec<OsString>| world.run_as(&me, args).ends_with(0);
    assert_eq!(
        run(args!["list", repository, "--json"].into()).json().len(),
        2
    );
    let backup = |id: &str| format!("{}@{id}", repository.display());
    assert!(
        run(args!["list", backup(&second)].into())
            .out
            .contains(HIDDEN)
    );
    assert!(
        run(args!["show", backup(&second)].into())
            .out
            .contains("hidden-host:")
    );
    assert!(
        run(args!["find", repository, format!("{HIDDEN}03")].into())
            .out
            .contains(HIDDEN)
    );
    assert!(
        run(args!["diff", repository, first, second].into())
            .out
            .contains(HIDDEN)
    );
    run(args!["verify", repository].into());
    run(args!["verify", repository, "--data"].into());
    run(args!["verify", repository, "--sample", "100%"].into());
    run(args!["verify", backup(&second), "--against", world.tree()].into());
    run(args!["tag", backup(&first), "kind=old"].into());
    run(args!["pin", backup(&first)].into());
    run(args!["unpin", backup(&first)].into());
    run(args!["repair", repository, "--data", "--yes"].into());
    world.assert_restores(&repository, &me, "the latest");
    let one = world.path("one");
    let path = format!("d/{HIDDEN}05");
    run(args!["restore", backup(&first), path, "--to", one].into());
    let restored = fs::read(one.join(&path)).unwrap();
    assert_eq!(restored, fs::read(world.tree().join(&path)).unwrap());
    run(args!["forget", "--yes", repository, first].into());
    run(args!["prune", repository].into());
    run(args!["verify", repository, "--data"].into());
    world.assert_restores(&repository, &me, "after prune");
}

#[test]
fn a_repository_is_made_and_read_with_a_passphrase() {
    let world = World::new();
    let repository = world.repository();
    let file = world.path("passphrase");
    runs::write_private(&file, "correct horse battery staple\n");
    let backup = args!["backup", world.tree(), "--to", repository, "--quiet"];
    let with_key = |args: &[OsString]| {
        let more = args!["--passphrase-file", file];
        world.run(args.iter().cloned().chain(more))
    };
    let made = [&backup[..], &args!["--passphrase"]].concat();
    with_key(&made).ends_with(0);
    with_key(&backup).ends_with(0);
    let out = world.path("out");
    with_key(&args!["restore", repository, "--to", out, "--quiet"]).ends_with(0);
    runs::assert_same(&world.shape(), &shape(&out), "by its passphrase");
    let mut by_variable = world.command(args!["verify", repository]);
    by_variable.env("FULLBORE_PASSPHRASE", "correct horse battery staple");
    let ran = Ran::from(by_variable.output().unwrap()).ends_with(0);
    assert!(ran.err.contains("sound"), "{}", ran.err);
    runs::write_private(&file, "another\n");
    with_key(&args!["verify", repository])
        .ends_with(1)
        .has_one_error("the passphrase is wrong");
}

#[test]
fn without_a_key_backups_are_listed_checked_forgotten_and_pruned_but_not_read() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    world.init(&repository, &me);
    let [first, second] = world.two_backups(&repository, &me);
    let selected = |id: &str| format!("{}@{id}", repository.display());
    world
        .run(args!["tag", selected(&first), "kind=old"])
        .ends_with(0);
    let listed = world.run(args!["list", repository, "--json"]).ends_with(0);
    let rows = listed.json();
    assert_eq!(rows[1]["id"], second.as_str());
    assert_eq!(rows[0]["tags"]["kind"], "old");
    assert!(rows[1]["bytes"].as_u64().unwrap() > 2_500_000);
    assert!(!listed.out.contains("hidden-host"), "{}", listed.out);
    let out = world.path("out");
    let refused: [Vec<OsString>; 9] = [
        args!["repair", repository, "--yes"].into(),
        args!["list", selected(&second)].into(),
        args!["find", repository, "large"].into(),
        args!["diff", repository, first, second].into(),
        args!["restore", repository, "--to", out].into(),
        args!["verify", repository, "--against", world.tree()].into(),
        args!["export", repository, "--to", world.path("a.tar.zst")].into(),
        args!["backup", world.tree(), "--to", repository].into(),
        args![
            "key",
            "add",
            repository,
            "--name",
            "x",
            "--for",
            me.recipient
        ]
        .into(),
    ];
    for args in refused {
        let ran = world.run(args.clone()).ends_with(1);
        assert!(
            !ran.err.contains(HIDDEN) && !ran.out.contains(HIDDEN),
            "{args:?}"
        );
        ran.has_one_error(NO_KEY);
    }
    assert!(!out.join("large").exists() && !world.path("a.tar.zst").exists());
    assert_eq!(runs::names(&repository.join("intents")), [""; 0]);
    for data in [&[][..], &args!["--data"], &args!["--sample", "100%"]] {
        let ran = world.run(
            args!["verify", repository]
                .into_iter()
                .chain(data.iter().cloned()),
        );
        let ran = ran.ends_with(0);
        assert!(ran.err.contains("without a key"), "{}", ran.err);
    }
    world
        .run(args!["forget", "--yes", repository, first])
        .ends_with(0);
    world.run(args!["prune", repository]).ends_with(0);
    world
        .run(args!["verify", repository, "--data"])
        .ends_with(0);
    world.assert_restores(&repository, &me, "after a prune without a key");
}

#[test]
fn a_key_of_another_is_refused_by_every_verb() {
    let world = World::new();
    let (repository, me, other) = (
        world.repository(),
        world.person("me"),
        world.person("other"),
    );
    world.init(&repository, &me);
    let [first, second] = world.two_backups(&repository, &me);
    let selected = format!("{}@{first}", repository.display());
    let out = world.path("out");
    let all: [Vec<OsString>; 14] = [
        args!["list", repository].into(),
        args!["show", repository].into(),
        args!["find", repository, "large"].into(),
        args!["diff", repository, first, second].into(),
        args!["verify", repository].into(),
        args!["restore", repository, "--to", out].into(),
        args!["backup", world.tree(), "--to", repository].into(),
        args!["forget", "--yes", repository, first].into(),
        args!["prune", repository].into(),
        args!["tag", selected, "a=b"].into(),
        args!["repair", repository].into(),
        args!["export", repository, "--to", world.path("a.tar.zst")].into(),
        args!["key", "list", repository].into(),
        args!["key", "rotate", repository].into(),
    ];
    for args in all {
        world
            .run_as(&other, args)
            .ends_with(1)
            .has_one_error(WRONG_KEY);
    }
    world.assert_restores(&repository, &me, "nothing was changed");
}

#[test]
fn a_byte_that_is_flipped_in_any_object_is_found_and_the_object_named() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    world.init(&repository, &me);
    world.two_backups(&repository, &me);
    let mut objects = files_below(&repository.join("backups"));
    // A damaged list only costs space.
    objects.retain(|object| !object.ends_with("contents"));
    assert!(objects.len() >= 6, "{objects:?}");
    for object in objects {
        let whole = fs::read(&object).unwrap();
        for offset in [3, whole.len() / 2, whole.len() - 3] {
            let mut changed = whole.clone();
            changed[offset] ^= 1;
            fs::write(&object, &changed).unwrap();
            let ran = world.run_as(&me, args!["verify", repository, "--data"]);
            let words = ran.out + &ran.err;
            let name = object.file_name().unwrap().to_str().unwrap();
            assert_eq!(ran.code, 4, "byte {offset} of {object:?}: {words}");
            assert!(words.contains(name), "byte {offset} of {object:?}: {words}");
            // Manifests have no checksum of stored bytes.
            if name != "manifest" {
                let ran = world.run(args!["verify", repository, "--data"]);
                let words = ran.out + &ran.err;
                assert_eq!(ran.code, 4, "byte {offset} of {object:?}, no key: {words}");
                assert!(
                    words.contains(name),
                    "byte {offset} of {object:?}, no key: {words}"
                );
            }
        }
        fs::write(&object, &whole).unwrap();
    }
    world
        .run_as(&me, args!["verify", repository, "--data"])
        .ends_with(0);
}

#[test]
fn damage_to_an_encrypted_segment_is_told_with_the_files_that_are_lost() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    world.init(&repository, &me);
    world.two_backups(&repository, &me);
    let segments = files_below(&repository.join("backups"));
    let large = segments
        .iter()
        .filter(|path| path.to_str().unwrap().ends_with(".tar.zst"))
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap();
    let mut bytes = fs::read(large).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x20;
    fs::write(large, bytes).unwrap();
    let ran = world
        .run_as(&me, args!["verify", repository, "--data"])
        .ends_with(4);
    assert!(
        ran.out.contains("lost: ") && ran.out.contains("large"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("with the frames of"), "{}", ran.out);
}

#[test]
fn no_command_prints_a_secret_or_leaves_a_name_in_the_clear() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    let passphrase = "a passphrase that nobody sees";
    let file = world.path("passphrase");
    runs::write_private(&file, passphrase);
    world.init(&repository, &me);
    let secret = fs::read_to_string(&me.key).unwrap();
    let mut words = String::new();
    let mut run = |args: Vec<OsString>| {
        let mut command = world.command(args.into_iter().chain(args!["--key", me.key]));
        command.env("FULLBORE_DEBUG", "1");
        let ran = Ran::from(command.output().unwrap()).ends_with(0);
        words += &(ran.out + &ran.err);
    };
    run(args!["backup", world.tree(), "--to", repository].into());
    run(args![
        "key",
        "add",
        repository,
        "--name",
        "two",
        "--new-passphrase-file",
        file
    ]
    .into());
    run(args!["key", "list", repository, "--json"].into());
    run(args!["key", "rotate", repository, "--passphrase-file", file].into());
    run(args!["backup", world.tree(), "--to", repository, "--json"].into());
    run(args!["show", repository, "--json"].into());
    run(args!["verify", repository, "--data"].into());
    run(args!["key", "remove", repository, "--name", "two"].into());
    for hidden in [
        secret.trim(),
        "AGE-SECRET-KEY",
        passphrase,
        "fullbore-pseudonyms",
    ] {
        assert!(!words.contains(hidden), "{hidden}: {words}");
    }
    for object in files_below(&repository) {
        let bytes = String::from_utf8_lossy(&fs::read(&object).unwrap()).into_owned();
        for hidden in [
            HIDDEN,
            "hidden-host",
            "AGE-SECRET-KEY",
            passphrase,
            world.tree().to_str().unwrap(),
        ] {
            assert!(!bytes.contains(hidden), "{hidden} in {object:?}");
        }
    }
}

#[test]
fn keys_are_added_listed_rotated_and_removed() {
    let world = World::new();
    let (repository, me, two) = (world.repository(), world.person("me"), world.person("two"));
    world.init(&repository, &me);
    let add = args![
        "key",
        "add",
        repository,
        "--name",
        "two",
        "--for",
        two.recipient
    ];
    world.run_as(&me, add.clone()).ends_with(0);
    world
        .run_as(&me, add)
        .ends_with(1)
        .has_one_error("there is one of this name");
    world.backup(&repository, &two);
    world.assert_restores(&repository, &two, "by the second key");
    let listed = world
        .run_as(&me, args!["key", "list", repository])
        .ends_with(0);
    assert!(listed.out.contains(&me.recipient) && listed.out.contains(&two.recipient));
    let listed = world.run(args!["key", "list", repository]).ends_with(0);
    assert!(listed.out.contains("two") && !listed.out.contains(&two.recipient));
    world
        .run_as(&me, args!["key", "remove", repository, "--name", "two"])
        .ends_with(0);
    world
        .run_as(&me, args!["key", "rotate", repository])
        .ends_with(0);
    world.change(2);
    let result = world.backup(&repository, &me);
    assert!(
        result["kept_bytes"].as_u64().unwrap() > 2_500_000,
        "a rotation costs no full backup"
    );
    world.assert_restores(&repository, &me, "old and new generations");
    world
        .run_as(&two, args!["list", repository])
        .ends_with(1)
        .has_one_error(WRONG_KEY);
    let last = args!["key", "remove", repository, "--name", "owner"];
    world
        .run_as(&me, last)
        .ends_with(2)
        .has_one_error("the last key");
}

#[test]
fn a_new_repository_stays_as_it_was_made() {
    let world = World::new();
    let me = world.person("me");
    let clear: PathBuf = world.path("clear");
    world.run(args!["init", clear]).ends_with(0);
    let backup = args!["backup", world.tree(), "--to", clear, "--quiet"];
    let encrypt = args!["--encrypt-to", me.recipient];
    world
        .run(backup.iter().cloned().chain(encrypt.clone()))
        .ends_with(2)
        .has_one_error("is a repository that is not encrypted");
    world
        .run_as(&me, args!["backup", world.tree(), "--to", clear, "--quiet"])
        .ends_with(2)
        .has_one_error("cannot use a key");
    let sealed = world.repository();
    let first = args!["backup", world.tree(), "--to", sealed, "--json"];
    let both = args!["--key", me.key].into_iter().chain(encrypt.clone());
    let made = world.run(first.iter().cloned().chain(both)).ends_with(0);
    let id = id_of(&made.json().pop().unwrap());
    assert!(sealed.join("backups").join(id).join("manifest").exists());
    world.assert_restores(&sealed, &me, "made by its first backup");
}

#[test]
fn a_root_and_a_manifest_that_are_lost_are_made_anew_with_a_key_only() {
    let world = World::new();
    let (repository, me) = (world.repository(), world.person("me"));
    world.init(&repository, &me);
    let [first, second] = world.two_backups(&repository, &me);
    let file = |id: &str, name: &str| repository.join("backups").join(id).join(name);
    fs::remove_file(file(&first, "root.json")).unwrap();
    fs::remove_file(file(&second, "manifest")).unwrap();
    let ran = world.run(args!["repair", repository, "--yes"]).ends_with(1);
    assert!(!ran.out.contains("forget"), "{}", ran.out);
    ran.has_one_error(NO_KEY);
    let repair = args!["repair", repository, "--yes"];
    world.run_as(&me, repair).ends_with(0);
    world
        .run_as(&me, args!["verify", repository, "--data"])
        .ends_with(0);
    // The new root has checksums of what is stored.
    world
        .run(args!["verify", repository, "--data"])
        .ends_with(0);
    world.assert_restores(&repository, &me, "after a repair");
}
