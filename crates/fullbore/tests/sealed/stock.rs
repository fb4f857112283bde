//! Stock `age`, `zstd` and `tar` restore full backups and archives, without this program.

use super::{
    runs::{self, has, or_skip, shape, shell},
    world::World,
};
use std::{fs, process::Command};

/// All stock tools.
fn has_tools() -> bool {
    let all = ["age", "ssh-keygen", "zstd", "tar"]
        .iter()
        .all(|tool| has(tool));
    or_skip(all, "age, ssh-keygen, zstd or tar is missing")
}

/// As the guide has it: the repository's key first, then all segments.
const TWO_STEPS: &str = "age -d -i \"$1\" \"$2\"/keys/owner.age > \"$3\".key && mkdir \"$3\" && \
     for s in \"$2\"/backups/*/s01-*; do age -d -i \"$3\".key \"$s\" | zstd -dc; done | tar -xi -C \"$3\"";

#[test]
fn stock_tools_restore_a_full_backup_with_a_key_of_age_and_with_one_of_ssh() {
    if !has_tools() {
        return;
    }
    let world = World::new();
    let me = world.person("me");
    let ssh = world.path("id");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&ssh)
        .status();
    assert!(made.unwrap().success());
    let public = fs::read_to_string(world.path("id.pub")).unwrap();
    for (name, recipient, key) in [
        ("age", me.recipient.as_str(), &me.key),
        ("ssh", public.trim(), &ssh),
    ] {
        let repository = world.path(&format!("{name}.repo"));
        let backup = args![
            "backup",
            world.tree(),
            "--to",
            repository,
            "--encrypt-to",
            recipient,
            "--segment-size",
            "1M",
            "--quiet"
        ];
        world.run(backup).ends_with(0);
        let out = world.path(&format!("{name}.out"));
        shell(TWO_STEPS, args![key, repository, out]).ends_with(0);
        runs::assert_same(&world.shape(), &shape(&out), name);
        let read = args!["verify", repository, "--data", "--key", key];
        world.run(read).ends_with(0);
    }
}

#[test]
fn stock_tools_restore_an_encrypted_archive() {
    if !has_tools() {
        return;
    }
    let world = World::new();
    let me = world.person("me");
    let archive = world.path("a.tar.zst.age");
    let backup = args![
        "backup",
        world.tree(),
        "--to",
        archive,
        "--encrypt-to",
        me.recipient,
        "--quiet"
    ];
    world.run(backup).ends_with(0);
    let out = world.path("out");
    let line = "mkdir \"$3\" && age -d -i \"$1\" \"$2\" | zstd -dc | tar -xi -C \"$3\"";
    shell(line, args![me.key, archive, out]).ends_with(0);
    runs::assert_same(&world.shape(), &shape(&out), "an archive");
    // And the other way round.
    let made = world.path("made.tar.age");
    let line = "tar -C \"$1\" -c . | age -r \"$2\" > \"$3\"";
    shell(line, args![world.tree(), me.recipient, made]).ends_with(0);
    let listed = world.run_as(&me, args!["list", made]).ends_with(0);
    assert!(listed.out.contains("large"), "{}", listed.out);
}

#[test]
fn stock_tools_restore_a_full_backup_with_a_passphrase() {
    if !has_tools() || !or_skip(has("script"), "script is missing") {
        return;
    }
    let world = World::new();
    let repository = world.repository();
    let file = world.path("passphrase");
    runs::write_private(&file, "open sesame street\n");
    let backup = args![
        "backup",
        world.tree(),
        "--to",
        repository,
        "--passphrase",
        "--passphrase-file",
        file,
        "--quiet"
    ];
    world.run(backup).ends_with(0);
    // age reads a passphrase from a terminal only, and throws away what was typed before it asks.
    let unlock = "cd \"$1\" && (sleep 2; echo 'open sesame street'; sleep 1) | \
         script -qec 'age -d -o repository.key repo/keys/owner.age' /dev/null";
    shell(unlock, args![world.dir.path()]).ends_with(0);
    let line = "cd \"$1\" && mkdir out && \
         for s in repo/backups/*/s01-*; do age -d -i repository.key \"$s\" | zstd -dc; done | tar -xi -C out";
    shell(line, args![world.dir.path()]).ends_with(0);
    runs::assert_same(
        &world.shape(),
        &shape(&world.path("out")),
        "by its passphrase",
    );
}
