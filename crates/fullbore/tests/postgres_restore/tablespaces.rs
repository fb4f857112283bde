//! Where tablespaces are, and where they cannot be.

use super::{Place, SERVER, VERSION, assert_refused, cluster, declare, facts, mode, own, run};
use super::{
    args,
    fixture::{Fixture, content, plan},
    runs::{self, Mount, has, is_root, or_skip, shell, temp},
};
use fullbore_engine::restore::Restore;
use fullbore_format::{
    error::ErrorKind,
    root::{ClusterInfo, EntryName, Tablespace},
};
use fullbore_postgres::restore::plan::ClusterOptions;
use fullbore_storage::Storages;
use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
};

#[test]
fn a_tablespace_is_moved_by_location_name_or_number() {
    let place = Place::new();
    let old = place.at("old");
    for called in [
        old.to_str().unwrap(),
        &format!("{}/", old.display()),
        "fast",
        "16400",
    ] {
        let new = place.at("new");
        run(&place.moved(called, &new)).unwrap();
        assert_eq!(fs::read_link(place.at("to/pg_tblspc/16400")).unwrap(), new);
        assert!(
            new.join(VERSION).join("4/24576").exists() && !old.exists(),
            "{called}"
        );
        fs::remove_dir_all(place.at("to")).unwrap();
        fs::remove_dir_all(new).unwrap();
    }
    let plain = Restore {
        storages: Storages::default(),
        postgres: ClusterOptions::default(),
        ..place.plan()
    };
    run(&plain).unwrap();
    assert_eq!(fs::read_link(place.at("to/pg_tblspc/16400")).unwrap(), old);
}

#[test]
fn a_tablespace_that_holds_something_is_refused_and_both_ways_out_are_named() {
    let place = Place::new();
    fs::create_dir_all(place.at("old").join(VERSION)).unwrap();
    own(&place.at("old"));
    for into in [
        fullbore_engine::restore::RestoreInto::Empty,
        fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
    ] {
        let restore = Restore {
            storages: Storages::default(),
            postgres: ClusterOptions::default(),
            into,
            ..place.plan()
        };
        let error = assert_refused(&restore, ErrorKind::Exists, "it is not empty");
        let hint = error.hint.unwrap();
        assert!(
            hint.contains("--tablespace ") && hint.contains("--tablespaces-under"),
            "{hint}"
        );
        assert!(!place.at("to").exists(), "something was made");
    }
}

#[test]
fn places_that_a_tablespace_cannot_have_are_refused() {
    let place = Place::new();
    let inside = |name: &str| place.at(name);
    fs::create_dir(inside("real")).unwrap();
    symlink(inside("real"), inside("link")).unwrap();
    let cases = [
        (place.moved("fast", "here"), "not an absolute path"),
        (
            place.moved("fast", inside("x/../y")),
            "not an absolute path",
        ),
        (
            place.moved("fast", inside("to/pg_tblspc/16400")),
            "or one contains the other",
        ),
        (
            place.moved("fast", inside("to")),
            "or one contains the other",
        ),
        (place.moved("fast", place.dir.path()), "it is not empty"),
        (
            Restore {
                storages: Storages::default(),
                to: inside("real/to"),
                ..place.moved("fast", inside("link"))
            },
            "or one contains the other",
        ),
        (place.moved("slow", inside("x")), "\"fast\" (16400)"),
        (place.moved("1640", inside("x")), "does not have it"),
    ];
    for (restore, words) in cases {
        let kind = if words.contains("empty") {
            ErrorKind::Exists
        } else {
            ErrorKind::Usage
        };
        assert_refused(&restore, kind, words);
        assert!(
            !inside("to").exists() && !inside("real/to").exists(),
            "{words}"
        );
    }
}

#[test]
fn what_is_restored_elsewhere_is_told_and_root_does_not_follow_a_backup_to_what_another_has() {
    let place = Place::new();
    let old = place.at("old");
    let restore = |more: &[&str]| {
        let _ = fs::remove_dir_all(place.at("to"));
        let more = more.iter().map(std::ffi::OsString::from);
        runs::fullbore(
            args!["restore", place.at("repo"), "--to", place.at("to")]
                .into_iter()
                .chain(more),
        )
    };
    if is_root() {
        fs::create_dir(&old).unwrap();
        std::os::unix::fs::chown(&old, Some(12_345), None).unwrap();
        let plain = Restore {
            storages: Storages::default(),
            postgres: ClusterOptions::default(),
            ..place.plan()
        };
        let error = assert_refused(&plain, ErrorKind::Permission, "it belongs to user 12345");
        assert!(error.hint.unwrap().contains("--tablespaces-under"));
        assert!(!place.at("to").exists() && runs::names(&old).is_empty());
        // Who says so himself is not asked.
        run(&place.moved("fast", &old)).unwrap();
        fs::remove_dir_all(&old).unwrap();
    }
    let ran = restore(&[]).ends_with(0);
    assert!(
        ran.err
            .starts_with(&format!("elsewhere: \"pg_tblspc/16400\" goes to {old:?}\n")),
        "{}",
        ran.err
    );
    fs::remove_dir_all(&old).unwrap();
    assert!(!restore(&["--quiet"]).ends_with(0).err.contains("elsewhere"));
    fs::remove_dir_all(&old).unwrap();
    let said = restore(&["--json"]).ends_with(0).json().remove(0);
    let told = ["type", "path", "directory"].map(|key| said[key].as_str().unwrap().to_owned());
    assert_eq!(
        told,
        ["elsewhere", "pg_tblspc/16400", old.to_str().unwrap()]
    );
}

#[test]
fn nothing_of_roots_is_given_away_because_a_backup_names_it() {
    if !or_skip(is_root(), "not root") {
        return;
    }
    let place = Place::new();
    let (old, roots) = (place.at("old"), place.at("roots"));
    let plain = Restore {
        storages: Storages::default(),
        postgres: ClusterOptions::default(),
        ..place.plan()
    };
    fs::create_dir(&roots).unwrap();
    runs::set_mode(&roots, 0o755);
    let is_refused = |words: &str| {
        let error = assert_refused(&plain, ErrorKind::Permission, words);
        let found = fs::metadata(&roots).unwrap();
        assert_eq!((found.uid(), mode(&roots)), (0, 0o755), "{words}");
        assert!(
            !place.at("to").exists() && runs::names(&roots).is_empty(),
            "{words}"
        );
        error.hint.unwrap().into_owned()
    };
    // The owner of the cluster replaces his directory.
    symlink(&roots, &old).unwrap();
    assert!(is_refused("it belongs to user 0").contains("--tablespaces-under"));
    // What is not there is made only in what is his, and one of his that a link leads to is his too.
    fs::remove_file(&old).unwrap();
    std::os::unix::fs::chown(place.dir.path(), Some(0), None).unwrap();
    let hint = is_refused("it is not there, and ");
    assert!(
        hint.contains(&format!("`install -d -o {SERVER} -m 700 {old:?}`")),
        "{hint}"
    );
    fs::create_dir(place.at("his")).unwrap();
    own(&place.at("his"));
    symlink(place.at("his"), &old).unwrap();
    run(&plain).unwrap();
    assert_eq!(fs::metadata(place.at("his")).unwrap().uid(), SERVER);
    fs::remove_dir_all(place.at("to")).unwrap();
    fs::remove_dir_all(place.at("his")).unwrap();
    fs::remove_file(&old).unwrap();
    // Root's are not taken for a backup that says they were root's, but where the operator says so.
    let rooted = Place::with(&cluster(), |_| {});
    let root = cluster().write_repository(&rooted.at("rooted"));
    declare(&rooted.at("rooted"), &root, facts(&roots));
    let source = rooted.at("rooted").to_str().unwrap().to_owned();
    assert_refused(
        &Restore {
            storages: Storages::default(),
            from: source.into(),
            ..plain.clone()
        },
        ErrorKind::Permission,
        "it belongs to user 0",
    );
    run(&place.moved("fast", &roots)).unwrap();
    assert_eq!(fs::metadata(&roots).unwrap().uid(), SERVER);
}

#[test]
fn two_tablespaces_need_two_places() {
    let mut fixture = cluster();
    fixture.dir("pg_tblspc/16401", 0o700);
    let other = |cluster: &mut ClusterInfo| {
        let location = cluster.tablespaces[0].location.clone();
        cluster.tablespaces.push(Tablespace {
            oid: 16401,
            name: "slow".into(),
            location,
        });
    };
    let place = Place::with(&fixture, other);
    let both = |one: &str, two: &str| {
        let tablespaces = vec![
            (b"fast".to_vec(), place.at(one)),
            (b"16401".to_vec(), place.at(two)),
        ];
        Restore {
            storages: Storages::default(),
            postgres: ClusterOptions {
                tablespaces,
                ..ClusterOptions::default()
            },
            ..place.plan()
        }
    };
    for (one, two) in [("a", "a"), ("a", "a/b"), ("a/b", "a")] {
        assert_refused(
            &both(one, two),
            ErrorKind::Usage,
            "they are the same directory, or one contains the other",
        );
    }
    run(&both("a", "ab")).unwrap();
    assert_eq!(
        fs::read_link(place.at("to/pg_tblspc/16401")).unwrap(),
        place.at("ab")
    );
}

#[test]
fn a_restored_cluster_is_compared_through_the_links_of_its_tablespaces() {
    let place = Place::new();
    run(&place.plan()).unwrap();
    let differences = |code: u8| {
        let ran = runs::fullbore(args![
            "verify",
            place.at("repo"),
            "--against",
            place.at("to"),
            "--json"
        ]);
        let mut found = ran.ends_with(code.into()).json().remove(0)["differences"].take();
        let found = found
            .as_array_mut()
            .unwrap()
            .iter()
            .map(|found| found["path"].as_str().unwrap().to_owned());
        found.collect::<Vec<_>>()
    };
    // What is left out is no tablespace's business.
    assert_eq!(differences(1), ["recovery.signal"]);
    fs::write(place.at("to/recovery.signal"), "").unwrap();
    let (space, inside) = (
        place.at("ts/fast").join(VERSION),
        format!("pg_tblspc/16400/{VERSION}"),
    );
    fs::write(space.join("5/24576"), content(9, 10_000)).unwrap();
    fs::remove_file(space.join("4/24576")).unwrap();
    fs::write(space.join("1/other"), "").unwrap();
    let found = differences(1);
    for path in ["1/other", "4/24576", "5/24576"] {
        assert!(
            found.contains(&format!("{inside}/{path}")),
            "{path}: {found:?}"
        );
    }
    assert!(!found.contains(&"tablespace_map".to_owned()), "{found:?}");
    // A link to nothing is none of a tablespace, and all below it is missing.
    fs::remove_dir_all(place.at("ts/fast")).unwrap();
    let found = differences(1);
    let ran = runs::fullbore(args![
        "verify",
        place.at("repo"),
        "--against",
        place.at("to")
    ])
    .ends_with(1);
    let said = ran.out + &ran.err;
    assert!(
        said.contains(&format!("{inside}/5/24576: missing")) && !said.contains("symbolic links"),
        "{said}"
    );
    assert!(
        ["tablespace_map", "pg_tblspc/16400"]
            .iter()
            .all(|path| found.contains(&(*path).to_owned())),
        "{found:?}"
    );
}

#[test]
fn a_tablespace_that_recovery_will_make_where_it_was_is_spoken_of() {
    let late = Tablespace {
        oid: 16401,
        name: "late".into(),
        location: EntryName("/srv/late".into()),
    };
    let place = Place::with(&cluster(), |cluster| {
        cluster.tablespaces_meanwhile = vec![late]
    });
    let notes = run(&place.plan()).unwrap().notes;
    let said = "tablespace \"late\" was created while the backup ran: recovery will create it again at \"/srv/late\"";
    assert!(notes.len() == 1 && notes[0].starts_with(said), "{notes:?}");
    let shown = runs::fullbore(args!["show", place.at("repo")])
        .ends_with(0)
        .out;
    assert!(
        shown.contains("created later 16401 late at /srv/late\n"),
        "{shown}"
    );
}

#[test]
fn a_tablespace_that_was_made_in_place_stays_in_place() {
    let place = Place::with(&cluster(), |cluster| {
        cluster.tablespaces[0].location = EntryName("pg_tblspc/16400".into())
    });
    run(&place.plan()).unwrap();
    assert!(
        place
            .at("to/pg_tblspc/16400")
            .join(VERSION)
            .join("5/24576")
            .exists()
            && !place.at("ts").exists()
    );
    assert!(
        !fs::symlink_metadata(place.at("to/pg_tblspc/16400"))
            .unwrap()
            .is_symlink()
    );
}

#[test]
fn a_place_that_cannot_be_written_to_is_refused_before_anything_is_made() {
    if !or_skip(is_root() && has("setpriv"), "not root, or no setpriv") {
        return;
    }
    let place = Place::new();
    runs::set_mode(place.dir.path(), 0o755);
    fs::create_dir(place.at("mine")).unwrap();
    fs::create_dir(place.at("theirs")).unwrap();
    runs::set_mode(&place.at("mine"), 0o755);
    runs::set_mode(&place.at("theirs"), 0o777);
    let line = "exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all \"$@\"";
    let args = args![
        runs::FULLBORE,
        "restore",
        place.at("repo"),
        "--to",
        place.at("theirs/to"),
        "--tablespaces-under",
        place.at("mine")
    ];
    shell(line, args)
        .ends_with(1)
        .has_one_error("cannot be written to: permission denied");
    assert_eq!(runs::names(&place.at("theirs")), [""; 0]);
}

#[test]
fn a_disk_that_is_too_small_is_refused_before_anything_is_made() {
    let mut fixture = cluster();
    fixture.file(
        &format!("pg_tblspc/16400/{VERSION}/5/large"),
        content(1, 3_000_000),
    );
    let place = Place::with(&fixture, |_| {});
    let Some(_small) = Mount::tmpfs(&place.at("small"), "2m") else {
        return;
    };
    assert_refused(
        &place.moved("fast", place.at("small/ts")),
        ErrorKind::Full,
        "4 MB are needed",
    );
    assert_refused(
        &Restore {
            storages: Storages::default(),
            to: place.at("small"),
            ..place.moved("fast", place.at("small/ts"))
        },
        ErrorKind::Usage,
        "",
    );
    assert_eq!(runs::names(&place.at("small")), [""; 0]);
    // What goes elsewhere does not count.
    run(&Restore {
        storages: Storages::default(),
        to: place.at("small/to"),
        ..place.plan()
    })
    .unwrap();
    // Any other backup is measured as well.
    let mut plain = Fixture::default();
    plain
        .dir("", 0o755)
        .file("large", content(1, 3_000_000))
        .sparse("holes", 1 << 40, &[(0, 100)]);
    plain.write_repository(&place.at("plain"));
    let Some(_other) = Mount::tmpfs(&place.at("other"), "2m") else {
        return;
    };
    assert_refused(
        &plan(&place.at("plain"), &place.at("other/to")),
        ErrorKind::Full,
        "MB are needed",
    );
    run(&plan(&place.at("plain"), &place.at("to"))).unwrap();
}

#[test]
fn a_symlink_in_a_tablespace_leads_nobody_out_of_it() {
    let outside = |place: &Place| {
        fs::create_dir(place.at("outside")).unwrap();
        place.at("outside").to_str().unwrap().to_owned()
    };
    let place = Place { dir: temp() };
    let target = outside(&place);
    let mut fixture = cluster();
    let version = format!("pg_tblspc/16400/{VERSION}");
    fixture
        .symlink(&format!("{version}/link"), &target)
        .file(&format!("{version}/link/evil"), "evil");
    let root = fixture.write_repository(&place.at("repo"));
    declare(&place.at("repo"), &root, facts(&place.at("old")));
    let error = run(&place.plan()).unwrap_err();
    assert!(
        error.line().contains(&format!("ts/fast/{VERSION}/link")),
        "{}",
        error.line()
    );
    assert_eq!(runs::names(&place.at("outside")), [""; 0]);
    assert!(!place.at("to/global/pg_control").exists());
}

#[test]
fn a_backup_cannot_choose_where_a_tablespace_really_is() {
    // A link in the place of the directory, and names that would lead elsewhere.
    let place = Place { dir: temp() };
    fs::create_dir(place.at("outside")).unwrap();
    let mut fixture = cluster();
    fixture
        .entries
        .retain(|(_, entry, ..)| entry.path != b"pg_tblspc/16400");
    fixture.symlink("pg_tblspc/16400", place.at("outside").to_str().unwrap());
    let root = fixture.write_repository(&place.at("repo"));
    for name in ["..", ".", "../outside", "/outside", ""] {
        let mut cluster = facts(&place.at("old"));
        cluster.tablespaces[0].name = name.into();
        declare(&place.at("repo"), &root, cluster);
        let error = run(&place.plan()).unwrap_err();
        assert!(error.line().contains("16400"), "{}", error.line());
        assert_eq!(runs::names(&place.at("outside")), [""; 0]);
        assert_eq!(
            fs::read_link(place.at("to/pg_tblspc/16400")).unwrap(),
            place.at("ts/16400"),
            "{name:?}"
        );
        fs::remove_dir_all(place.at("to")).unwrap();
        fs::remove_dir_all(place.at("ts")).unwrap();
    }
    let mut fixture = cluster();
    fixture.file("pg_tblspc/16400/../../evil", "evil");
    let place = Place::with(&fixture, |_| {});
    assert_refused(&place.plan(), ErrorKind::Corrupt, "");
    assert!(!place.at("evil").exists() && !place.at("ts/evil").exists());
}

#[test]
fn what_the_cluster_that_was_backed_up_uses_is_replaced_only_there() {
    let home = temp();
    let live = home.path().join("live");
    let place = Place::with(&cluster(), |cluster| {
        cluster.data_directory = live.to_str().unwrap().into()
    });
    run(&Restore {
        storages: Storages::default(),
        to: live.clone(),
        postgres: ClusterOptions::default(),
        ..place.plan()
    })
    .unwrap();
    shell("cp -a \"$1\" \"$2\"", args![live, place.at("copy")]).ends_with(0);
    let again = |target: &std::path::Path, more: &[&str]| {
        let args = args![
            "restore",
            place.at("repo"),
            "--to",
            target,
            "--delta",
            "--delete",
            "--quiet"
        ];
        runs::fullbore(
            args.into_iter()
                .chain(more.iter().map(std::ffi::OsString::from)),
        )
    };
    let ran = again(&place.at("copy"), &[]).ends_with(1);
    assert!(ran.err.contains("that is a tablespace of "), "{}", ran.err);
    again(
        &place.at("copy"),
        &[
            "--tablespace",
            &format!("fast={}", place.at("old").display()),
        ],
    )
    .ends_with(0);
    again(&live, &[]).ends_with(0);
}

#[test]
fn of_a_location_the_directories_of_other_versions_are_left_alone() {
    let home = temp();
    let live = home.path().join("live");
    let place = Place::with(&cluster(), |cluster| {
        cluster.data_directory = live.to_str().unwrap().into()
    });
    let others = place.at("old/PG_13_202007201/5/16384");
    runs::write(&others, "of the cluster before pg_upgrade");
    own(&place.at("old"));
    // Nothing of the version that comes is there, so it may come.
    run(&Restore {
        storages: Storages::default(),
        to: live.clone(),
        postgres: ClusterOptions::default(),
        ..place.plan()
    })
    .unwrap();
    runs::write(
        place.at(&format!("old/{VERSION}/5/surplus")),
        "not in the backup",
    );
    runs::write(place.at("old/notes.txt"), "of the administrator");
    let args = args![
        "restore",
        place.at("repo"),
        "--to",
        live,
        "--delta",
        "--delete"
    ];
    let ran = runs::fullbore(args).ends_with(0);
    let said = ran.out + &ran.err;
    assert!(
        said.contains("surplus") && !said.contains("PG_13"),
        "{said}"
    );
    assert_eq!(
        fs::read(&others).unwrap(),
        b"of the cluster before pg_upgrade"
    );
    assert_eq!(
        runs::names(&place.at("old")),
        ["PG_13_202007201", VERSION, "notes.txt"]
    );
    assert!(!place.at(&format!("old/{VERSION}/5/surplus")).exists());
    let compared = runs::fullbore(args!["verify", place.at("repo"), "--against", live]);
    assert!(!compared.out.contains("extra"), "{}", compared.out);
    // One of the same version, or what nobody knows, is in the way of a new one.
    fs::remove_dir_all(&live).unwrap();
    let anew = Restore {
        storages: Storages::default(),
        to: live.clone(),
        postgres: ClusterOptions::default(),
        ..place.plan()
    };
    assert_refused(&anew, ErrorKind::Exists, "it is not empty");
    fs::remove_dir_all(place.at(&format!("old/{VERSION}"))).unwrap();
    assert_refused(&anew, ErrorKind::Exists, "it is not empty");
}
