//! Backups that are killed or stopped: the next run frees what they left, and a holder that slept commits nothing.

use super::{
    StoreRepository,
    fault_proxy::{Break, FaultProxy},
    runs,
};
use runs::{Ran, noise, temp, write};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

fn tree_at(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    for number in 0..6 {
        write(tree.join(format!("f{number}")), noise(number, 9_000_000));
    }
    tree
}

/// A backup under way that has stored some parts.
fn under_way(store: &StoreRepository, proxy: &FaultProxy, tree: &Path, more: &[&str]) -> Child {
    proxy.rule(|_| Break::Pass);
    let limit = args!["--limit-upload", "8M"];
    let args = store.backup_args(tree).into_iter().chain(limit);
    let child = store
        .command(args.chain(runs::args(more)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while proxy.count("PUT", "partNumber=") < 2 {
        assert!(began.elapsed() < Duration::from_secs(300));
        thread::sleep(Duration::from_millis(10));
    }
    child
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// The uploads that were aborted since the rule was set.
fn aborted(proxy: &FaultProxy) -> usize {
    proxy.count("DELETE", "uploadId=")
}

#[test]
fn the_next_backup_frees_what_a_killed_one_left() {
    let (store, proxy) = StoreRepository::s3_proxied();
    let dir = temp();
    let tree = tree_at(dir.path());
    let mut child = under_way(&store, &proxy, &tree, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    let ran = store.run(args!["list", store.address]).ends_with(0);
    assert_eq!(ran.out, "");
    proxy.rule(|_| Break::Pass);
    let id = store.back_up(&tree);
    assert_eq!(aborted(&proxy), 1);
    assert_eq!(store.listed(), std::slice::from_ref(&id));
    store.assert_restores(&tree, &id);
}

#[test]
fn prune_frees_what_a_killed_backup_left_and_keeps_what_it_can_go_on_from() {
    let (store, proxy) = StoreRepository::s3_proxied();
    let dir = temp();
    let tree = tree_at(dir.path());
    let often = ["--checkpoint-interval", "1s"];
    let mut child = under_way(&store, &proxy, &tree, &often);
    let began = Instant::now();
    while proxy.count("PUT", "partial.json") == 0 {
        assert!(began.elapsed() < Duration::from_secs(300));
        thread::sleep(Duration::from_millis(10));
    }
    let parts = proxy.count("POST", "uploads");
    while proxy.count("POST", "uploads") == parts && child.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    proxy.rule(|_| Break::Pass);
    let ran = store.run(args!["prune", store.address]).ends_with(0);
    assert_eq!(aborted(&proxy), 1, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("kept for the next backup"), "{}", ran.out);
    let args = store.backup_args(&tree).into_iter().chain(args!["--json"]);
    let ran = store.run(args).ends_with(0);
    let result = ran.json().pop().unwrap();
    assert!(result["kept_bytes"].as_u64() > Some(1_000_000), "{result}");
    let id = result["id"].as_str().unwrap();
    store.assert_restores(&tree, id);
    store.run(args!["prune", store.address]).ends_with(0);
    store.assert_restores(&tree, id);
}

#[test]
fn a_backup_that_was_stopped_for_longer_than_its_lease_does_not_commit() {
    let (mut store, proxy) = StoreRepository::s3_proxied();
    store.set("FULLBORE_STORAGE_TRIES", "3");
    let dir = temp();
    let tree = tree_at(dir.path());
    let child = under_way(&store, &proxy, &tree, &[]);
    signal(&child, Signal::STOP);
    let beside = store.beside();
    let pruned = beside.run(args!["prune", store.address]).ends_with(0);
    let next = beside.back_up(&tree);
    signal(&child, Signal::CONT);
    let ran: Ran = child.wait_with_output().unwrap().into();
    let ran = ran.ends_with(1).has_one_error("took it for dead");
    assert!(
        ran.err.contains("run the same command again"),
        "{}",
        ran.err
    );
    assert_eq!(
        store.listed(),
        std::slice::from_ref(&next),
        "{}",
        pruned.out
    );
    store.assert_restores(&tree, &next);
    store
        .run(args!["verify", store.address, "--data"])
        .ends_with(0);
    store.run(args!["prune", store.address]).ends_with(0);
    store.assert_restores(&tree, &next);
}

#[test]
fn a_stopped_backup_that_has_a_base_does_not_commit_over_what_a_prune_removed() {
    let (mut store, proxy) = StoreRepository::s3_proxied();
    store.set("FULLBORE_STORAGE_TRIES", "3");
    let dir = temp();
    let tree = tree_at(dir.path());
    let base = store.back_up(&tree);
    write(tree.join("more"), noise(77, 30_000_000));
    let child = under_way(&store, &proxy, &tree, &[]);
    signal(&child, Signal::STOP);
    let beside = store.beside();
    beside
        .run(args!["forget", "--yes", store.address, base])
        .ends_with(0);
    beside.run(args!["prune", store.address]).ends_with(0);
    signal(&child, Signal::CONT);
    let ran: Ran = child.wait_with_output().unwrap().into();
    ran.ends_with(1).has_one_error("took it for dead");
    let ran = store.run(args!["list", store.address]).ends_with(0);
    assert_eq!(ran.out, "");
    let next = store.back_up(&tree);
    store.assert_restores(&tree, &next);
}
