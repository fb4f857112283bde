//! Encrypted archives: one age file, or standard output.

use super::{
    runs::{self, Ran, shape},
    world::{HIDDEN, World},
};
use std::{
    fs::{self, File},
    io::Write,
    process::Stdio,
};

#[test]
fn an_encrypted_archive_is_read_with_its_key_by_every_verb_that_reads() {
    let world = World::new();
    let (me, other) = (world.person("me"), world.person("other"));
    for name in ["a.tar.zst.age", "a.tar.lz4.age"] {
        let archive = world.path(name);
        let backup = args!["backup", world.tree(), "--to", archive, "--quiet"];
        let encrypt = args!["--encrypt-to", me.recipient];
        world
            .run(backup.iter().cloned().chain(encrypt.clone()))
            .ends_with(0);
        assert!(
            fs::read(&archive)
                .unwrap()
                .starts_with(b"age-encryption.org/v1\n")
        );
        let listed = world.run_as(&me, args!["list", archive]).ends_with(0);
        assert!(listed.out.contains(HIDDEN));
        world.run_as(&me, args!["show", archive]).ends_with(0);
        world
            .run_as(&me, args!["verify", archive, "--data"])
            .ends_with(0);
        world.assert_restores(&archive, &me, name);
        let verify = args!["verify", archive];
        world
            .run(verify.clone())
            .ends_with(1)
            .has_one_error("no key was given");
        world
            .run_as(&other, verify)
            .ends_with(1)
            .has_one_error("none of the keys");
        // A new one takes its place only if a key shows that it is an archive.
        let again = backup.into_iter().chain(encrypt);
        world
            .run(again.clone())
            .ends_with(1)
            .has_one_error("no key was given");
        world.run_as(&me, again).ends_with(0);
        let clear = world.path("clear.tar.zst");
        world
            .run_as(&me, args!["export", archive, "--to", clear, "--quiet"])
            .ends_with(0);
        world.run(args!["verify", clear, "--data"]).ends_with(0);
        fs::remove_file(clear).unwrap();
    }
}

#[test]
fn any_change_of_an_encrypted_archive_is_found() {
    let world = World::new();
    let me = world.person("me");
    let archive = world.path("a.tar.zst.age");
    world
        .run(args![
            "backup",
            world.tree(),
            "--to",
            archive,
            "--encrypt-to",
            me.recipient,
            "--quiet"
        ])
        .ends_with(0);
    let whole = fs::read(&archive).unwrap();
    for offset in [30, 120, whole.len() / 3, whole.len() / 2, whole.len() - 2] {
        let mut changed = whole.clone();
        changed[offset] ^= 4;
        fs::write(&archive, &changed).unwrap();
        let ran = world.run_as(&me, args!["verify", archive, "--data"]);
        assert!(
            [1, 4].contains(&ran.code),
            "byte {offset}: {}{}",
            ran.out,
            ran.err
        );
        let words = ran.out + &ran.err;
        assert!(words.contains("a.tar.zst.age"), "byte {offset}: {words}");
    }
    for len in [whole.len() - 1, whole.len() / 2, 100] {
        fs::write(&archive, &whole[..len]).unwrap();
        let ran = world.run_as(&me, args!["verify", archive, "--data"]);
        assert!([1, 4].contains(&ran.code), "cut to {len}: {}", ran.err);
    }
}

#[test]
fn an_encrypted_stream_goes_through_a_pipe() {
    let world = World::new();
    let me = world.person("me");
    let stream = world.path("stream");
    let mut backup = world.command(args![
        "backup",
        world.tree(),
        "--to",
        "-",
        "--encrypt-to",
        me.recipient,
        "--quiet"
    ]);
    backup.stdout(File::create(&stream).unwrap());
    assert!(backup.status().unwrap().success());
    let fed = |args: &[std::ffi::OsString]| {
        let mut command = world.command(args.iter().cloned());
        command.stdin(File::open(&stream).unwrap());
        Ran::from(command.output().unwrap())
    };
    let out = world.path("out");
    fed(&args![
        "restore", "-", "--to", out, "--key", me.key, "--quiet"
    ])
    .ends_with(0);
    runs::assert_same(&world.shape(), &shape(&out), "through a pipe");
    let listed = fed(&args!["list", "-", "--key", me.key]).ends_with(0);
    assert!(listed.out.contains(HIDDEN));
    fed(&args!["verify", "-", "--key", me.key]).ends_with(0);
    fed(&args!["verify", "-"])
        .ends_with(1)
        .has_one_error("no key was given");
    let whole = fs::read(&stream).unwrap();
    fs::write(&stream, &whole[..whole.len() - 20_000]).unwrap();
    fed(&args!["verify", "-", "--key", me.key]).ends_with(4);
}

#[test]
fn a_stream_of_unknown_length_is_stored_in_an_encrypted_archive() {
    let world = World::new();
    let me = world.person("me");
    let archive = world.path("dump.tar.zst.age");
    let mut command = world.command(args![
        "backup",
        "--stdin-name",
        "dump.sql",
        "--to",
        archive,
        "--encrypt-to",
        me.recipient,
        "--quiet"
    ]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let content = runs::text(5, 3_000_000);
    child.stdin.take().unwrap().write_all(&content).unwrap();
    assert!(child.wait().unwrap().success());
    let out = world.path("out");
    world
        .run_as(&me, args!["restore", archive, "--to", out, "--quiet"])
        .ends_with(0);
    assert!(fs::read(out.join("dump.sql")).unwrap() == content);
}

#[test]
fn an_archive_for_a_passphrase_is_read_with_it() {
    let world = World::new();
    let archive = world.path("a.tar.zst.age");
    let file = world.path("passphrase");
    runs::write_private(&file, "open sesame street\n");
    let passphrase_args = args!["--passphrase-file", file];
    let backup = args![
        "backup",
        world.tree(),
        "--to",
        archive,
        "--passphrase",
        "--quiet"
    ];
    world
        .run(backup.into_iter().chain(passphrase_args.clone()))
        .ends_with(0);
    let verify = args!["verify", archive, "--data"];
    world
        .run(verify.iter().cloned().chain(passphrase_args))
        .ends_with(0);
    world
        .run(verify)
        .ends_with(1)
        .has_one_error("no key was given");
}

#[test]
fn the_name_of_an_archive_says_whether_it_is_encrypted() {
    let world = World::new();
    let me = world.person("me");
    let backup = |name: &str| args!["backup", world.tree(), "--to", world.path(name)];
    world
        .run(backup("a.tar.zst.age"))
        .ends_with(2)
        .has_one_error("its name says that it is encrypted");
    let encrypt = args!["--encrypt-to", me.recipient];
    world
        .run(backup("a.tar.zst").into_iter().chain(encrypt.clone()))
        .ends_with(2)
        .has_one_error("ends in .age");
    let plain = backup("a.tar.gz.age").into_iter().chain(encrypt);
    world.run(plain).ends_with(0);
    let out = world.path("out");
    world
        .run_as(
            &me,
            args![
                "restore",
                world.path("a.tar.gz.age"),
                "--to",
                out,
                "--quiet"
            ],
        )
        .ends_with(0);
    runs::assert_same(&world.shape(), &shape(&out), "a plain stream");
    assert_eq!(runs::names(&world.path("a.tar.zst")), [""; 0]);
}
