//! A backup to a directory and to a store, of which the store is slow, breaks or dies.

use super::{StoreRepository, fault_proxy::Break, runs};
use runs::{Ran, assert_same, noise, shape, temp, write};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

fn tree_at(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    for number in 0..4 {
        write(
            tree.join(format!("large{number}")),
            noise(number, 6_000_000),
        );
    }
    for number in 0..20 {
        write(tree.join(format!("d/f{number}")), noise(100 + number, 3000));
    }
    tree
}

/// The arguments of a backup to a directory and to the store, in one of two orders.
fn args_of(
    store: &StoreRepository,
    tree: &Path,
    near: &Path,
    is_near_first: bool,
) -> Vec<OsString> {
    let (near, far) = (near.as_os_str().to_owned(), OsString::from(&store.address));
    let [first, second] = match is_near_first {
        true => [near, far],
        false => [far, near],
    };
    let options = args![
        "--no-encryption",
        "--segment-size",
        "4M",
        "--memory",
        "24M",
        "--json"
    ];
    let to = args!["backup", tree, "--to", first, "--to", second];
    to.into_iter().chain(options).collect()
}

fn assert_near_restores(store: &StoreRepository, tree: &Path, near: &Path, case: &str) {
    let dir = temp();
    let back = dir.path().join("back");
    store
        .run(args!["restore", near, "--to", back, "--quiet"])
        .ends_with(0);
    assert_same(&shape(tree), &shape(&back), case);
}

fn ends(ran: Ran) -> Vec<serde_json::Value> {
    let last = ran.json().pop().unwrap();
    last["destinations"].as_array().unwrap().clone()
}

#[test]
fn a_store_that_dies_at_any_request_does_not_harm_the_directory() {
    let (mut store, proxy) = StoreRepository::s3_proxied();
    store.set("FULLBORE_STORAGE_TRIES", "1");
    let dir = temp();
    let tree = tree_at(dir.path());
    let bucket = store.address.clone();
    for is_near_first in [true, false] {
        let mut cuts = 0;
        for at in (0..200).filter(|at| *at < 12 || at % 5 == 0) {
            store.address = format!("{bucket}/{is_near_first}{at}");
            let near = dir.path().join(format!("near{is_near_first}{at}"));
            proxy.rule(move |seen| match seen.number >= at {
                true => Break::Reset,
                false => Break::Pass,
            });
            let ran = store.run(args_of(&store, &tree, &near, is_near_first));
            let was_reached = proxy.seen().len() > at;
            proxy.rule(|_| Break::Pass);
            let case = format!("{is_near_first} {at}");
            assert_near_restores(&store, &tree, &near, &case);
            store.run(args!["verify", near, "--data"]).ends_with(0);
            if !was_reached {
                assert_eq!(ran.code, 0, "{case}: {}", ran.err);
                break;
            }
            cuts += 1;
            for backup in store.run(args!["list", store.address, "--json"]).json() {
                store.assert_restores(&tree, backup["id"].as_str().unwrap());
            }
            if ran.code != 0 {
                assert!(ran.err.contains("lacks the backup"), "{case}: {}", ran.err);
                store
                    .run(args!["sync", near, store.address, "--no-encryption"])
                    .ends_with(0);
                store.assert_restores(&tree, &store.listed()[0]);
            }
        }
        assert!((10..199).contains(&cuts), "{is_near_first}: {cuts}");
    }
}

#[test]
fn a_slow_store_does_not_hold_the_directory_and_gets_what_it_missed() {
    for is_near_first in [true, false] {
        let (store, proxy) = StoreRepository::s3_proxied();
        let dir = temp();
        let tree = tree_at(dir.path());
        let near = dir.path().join("near");
        proxy.rule(
            |seen| match seen.method == "PUT" && seen.target.contains("s01-") {
                true => Break::Wait(Duration::from_millis(1500)),
                false => Break::Pass,
            },
        );
        let ran = store.run(args_of(&store, &tree, &near, is_near_first));
        proxy.rule(|_| Break::Pass);
        let ran = ran.ends_with(0);
        let id = ran.json().pop().unwrap()["id"].as_str().unwrap().to_owned();
        let mut ends = ends(ran);
        if !is_near_first {
            ends.reverse();
        }
        let seconds = |end: &serde_json::Value| end["seconds"].as_f64().unwrap();
        let (fast, slow) = (seconds(&ends[0]), seconds(&ends[1]));
        assert!(fast + 1.0 < slow, "{is_near_first}: {fast} {slow}");
        assert!(ends[1]["copied_bytes"].as_u64().unwrap() > 0, "{ends:?}");
        assert_near_restores(&store, &tree, &near, "slow");
        store.assert_restores(&tree, &id);
        store
            .run(args!["verify", store.address, "--data"])
            .ends_with(0);
    }
}
