//! Many hosts that back up into one repository at the same time, while it is pruned.
//!
//! FULLBORE_FLEET gives the number of hosts; the figures are printed.

use super::{StoreRepository, fault_proxy::Break, requests::peak_bytes, runs};
use runs::{noise, temp, write};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

/// Processes at the same time, beside the one that prunes.
const AT_ONCE: usize = 8;

fn host_count() -> usize {
    let wanted = std::env::var("FULLBORE_FLEET").ok();
    wanted.map_or(16, |count| count.parse().unwrap())
}

/// The tree of a host; most of it stays the same.
fn write_tree(tree: &Path, host: usize, round: usize) {
    for number in 0..12 {
        let seed = if number == 3 {
            1000 * round + host
        } else {
            20_000 + host
        };
        write(
            tree.join(format!("d/f{number}")),
            noise((seed * 100 + number) as u64, 3000),
        );
    }
}

/// What one backup did.
struct FleetRun {
    host: usize,
    round: usize,
    id: String,
    requests: u64,
    peak_mib: u64,
}

fn back_up(store: &StoreRepository, dir: &Path, host: usize, round: usize) -> FleetRun {
    let tree = tree_of(dir, host);
    write_tree(&tree, host, round);
    let said = dir.join(format!("said{host}"));
    let name = format!("host{host}");
    // Each host has its own cache.
    let cache = dir.join(format!("cache{host}"));
    let more = args![
        "--json",
        "--host",
        name,
        "--workers",
        "1",
        "--memory",
        "32M",
        "--cache-dir",
        cache
    ];
    let args = store.backup_args(&tree).into_iter().chain(more);
    let mut command = store.command(args);
    command
        .stdout(fs::File::create(&said).unwrap())
        .stderr(Stdio::inherit());
    let peak_mib = peak_bytes(command.spawn().unwrap()) >> 20;
    let said = fs::read_to_string(said).unwrap();
    let result: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    FleetRun {
        host,
        round,
        id: result["id"].as_str().unwrap().to_owned(),
        requests: result["store"]["requests"].as_u64().unwrap(),
        peak_mib,
    }
}

fn tree_of(dir: &Path, host: usize) -> PathBuf {
    dir.join(format!("tree{host}"))
}

/// Forgets all but the last two of each host, and prunes, again and again.
fn prune_until(store: &StoreRepository, is_done: &AtomicBool) -> usize {
    let mut prunes = 0;
    while !is_done.load(Relaxed) {
        store
            .run(args!["forget", store.address, "--keep-last", "2"])
            .ends_with(0);
        store.run(args!["prune", store.address]).ends_with(0);
        prunes += 1;
    }
    prunes
}

#[test]
fn many_hosts_back_up_at_once_while_it_is_pruned_and_nothing_is_lost() {
    const ROUNDS: usize = 3;
    let mut store = StoreRepository::s3();
    // Processes that wait for each other are not dead.
    store.set("FULLBORE_STORAGE_RENEWAL_MILLIS", "10000");
    let (store, dir) = (&store, temp());
    let hosts = host_count();
    let first = dir.path().join("first");
    write(first.join("f"), "first");
    store.back_up(&first);
    let runs = Mutex::new(Vec::new());
    let is_done = AtomicBool::new(false);
    let mut prunes = 0;
    thread::scope(|scope| {
        let pruner = scope.spawn(|| prune_until(store, &is_done));
        for round in 0..ROUNDS {
            let next = AtomicUsize::new(0);
            thread::scope(|scope| {
                for _ in 0..AT_ONCE {
                    scope.spawn(|| {
                        loop {
                            let host = next.fetch_add(1, Relaxed);
                            if host >= hosts {
                                break;
                            }
                            let run = back_up(store, dir.path(), host, round);
                            runs.lock().unwrap().push(run);
                        }
                    });
                }
            });
        }
        is_done.store(true, Relaxed);
        prunes = pruner.join().unwrap();
    });
    let runs = runs.into_inner().unwrap();
    store
        .run(args!["forget", store.address, "--keep-last", "2"])
        .ends_with(0);
    store.run(args!["prune", store.address]).ends_with(0);
    let listed = store.listed();
    assert_eq!(listed.len(), 2 * hosts + 1);
    let is_kept = |run: &&FleetRun| run.round + 2 >= ROUNDS;
    assert!(
        runs.iter()
            .filter(is_kept)
            .all(|run| listed.contains(&run.id))
    );
    store
        .run(args!["verify", store.address, "--data"])
        .ends_with(0);
    for run in runs
        .iter()
        .filter(|run| run.round + 1 == ROUNDS && run.host % 7 == 0)
    {
        store.assert_restores(&tree_of(dir.path(), run.host), &run.id);
    }
    let round = |number: usize| runs.iter().filter(move |run| run.round == number);
    for number in 0..ROUNDS {
        let most = round(number).map(|run| run.requests).max().unwrap();
        let all: u64 = round(number).map(|run| run.requests).sum();
        let mean = all / hosts as u64;
        println!("round {number}: {mean} requests a backup, {most} at most");
        // A first backup looks at one of each other host.
        let others = if number == 0 { hosts as u64 } else { 0 };
        // A later one looks at a few of other hosts: roots, lists and pages.
        assert!(most <= 85 + others, "round {number}: {most}");
    }
    let peak = runs.iter().map(|run| run.peak_mib).max().unwrap();
    println!("{hosts} hosts, {prunes} prunes beside them, {peak} MiB at most");
    assert!(prunes > 0 && peak <= 32 + 96, "{prunes} {peak}");
    check_reads(store, "list", 2 * hosts + 1);
    check_reads(store, "stats", 2 * hosts + 1);
}

/// A command asks once for each root, and then for none. `stats` reads those of forgotten backups whose data others need, too.
fn check_reads(store: &StoreRepository, verb: &str, backups: usize) {
    let (mut seen, proxy) = StoreRepository::s3_proxied();
    seen.address.clone_from(&store.address);
    let counts = [0, 1].map(|_| {
        proxy.rule(|_| Break::Pass);
        let begun = Instant::now();
        let said = seen.run(args![verb, seen.address, "--json"]).ends_with(0);
        println!("{verb}: {:.2} s", begun.elapsed().as_secs_f64());
        let said = said.json();
        match verb {
            "list" => assert_eq!(said.len(), backups),
            _ => assert_eq!(said[0]["backups"], backups),
        }
        proxy.seen().len()
    });
    println!(
        "{verb}: {} requests cold, {} from the cache",
        counts[0], counts[1]
    );
    let forgotten = if verb == "stats" { backups / 2 } else { 0 };
    assert!(counts[0] <= backups + forgotten + 20, "{counts:?}");
    assert!(counts[1] <= 20, "{counts:?}");
}
