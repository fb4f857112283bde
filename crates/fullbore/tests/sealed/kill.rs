//! Runs that are killed at each of their system calls that change names of files.

use super::{
    runs::{self, has, or_skip, tampered_in},
    world::{World, id_of},
};
use std::fs;

const CALLS: &str = "linkat,rename,renameat,renameat2,unlink,unlinkat";

/// More calls than any of these runs makes.
const MOST: usize = 200;

#[test]
fn a_rotation_that_is_killed_at_any_moment_locks_nobody_out_and_the_next_one_completes_it() {
    if !or_skip(has("strace"), "strace is missing") {
        return;
    }
    let world = World::new();
    let (repository, me, two) = (world.repository(), world.person("me"), world.person("two"));
    let host = world.person("host");
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
    world.run_as(&me, add).ends_with(0);
    let put = args![
        "key",
        "put",
        repository,
        "--name",
        "web1",
        "--for",
        host.recipient
    ];
    world.run_as(&me, put).ends_with(0);
    world.backup(&repository, &me);
    let rotate = args!["key", "rotate", repository, "--yes", "--key", me.key];
    let mut killed = 0;
    for when in 1..MOST {
        let ran = tampered_in(
            &world.path("state"),
            &format!("{CALLS}:signal=KILL:when={when}"),
            None,
            rotate.clone(),
        );
        for person in [&me, &two] {
            world.assert_restores(&repository, person, &format!("killed at call {when}"));
        }
        let listed = world.run_as(&host, args!["list", repository]);
        listed.ends_with(0);
        if ran.code == 0 {
            break;
        }
        killed += 1;
        world.run(rotate.clone()).ends_with(0);
        world.change(when as u64);
        let person = [&me, &two, &host][when % 3];
        let id = id_of(&world.backup(&repository, person));
        let backup = format!("{}@{id}", repository.display());
        world.assert_restores(
            backup.as_ref(),
            &two,
            &format!("completed after call {when}"),
        );
    }
    assert!((5..MOST - 1).contains(&killed), "{killed}");
    world
        .run_as(&me, args!["verify", repository, "--data"])
        .ends_with(0);
}

#[test]
fn a_copy_for_other_keys_that_is_killed_at_any_moment_lists_nothing_that_is_not_whole() {
    if !or_skip(has("strace"), "strace is missing") {
        return;
    }
    let world = World::new();
    let (me, other) = (world.person("me"), world.person("other"));
    let (source, target) = (world.repository(), world.path("other"));
    world.init(&source, &me);
    world.two_backups(&source, &me);
    let both = args!["--key", me.key, "--key", other.key];
    let copy: Vec<_> = args!["copy", source, target, "--workers", "1"]
        .into_iter()
        .chain(both)
        .collect();
    let mut killed = 0;
    for when in 1..MOST {
        if target.exists() {
            fs::remove_dir_all(&target).unwrap();
        }
        world.init(&target, &other);
        let inject = format!("{CALLS}:signal=KILL:when={when}");
        let ran = tampered_in(&world.path("state"), &inject, None, copy.clone());
        if !runs::names(&target.join("backups")).is_empty() {
            let listed = world
                .run_as(&other, args!["list", target, "--json"])
                .ends_with(0);
            if !listed.out.is_empty() {
                world.assert_restores(&target, &other, &format!("killed at call {when}"));
            }
        }
        if ran.code == 0 {
            break;
        }
        killed += 1;
        world.run(copy.clone()).ends_with(0);
        world
            .run_as(&other, args!["verify", target, "--data"])
            .ends_with(0);
        world.run(args!["verify", target, "--data"]).ends_with(0);
    }
    assert!((5..MOST - 1).contains(&killed), "{killed}");
    world.assert_restores(&target, &other, "at last");
}
