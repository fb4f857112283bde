//! How many requests commands make, what they say of them, and what the cache saves.

use super::{StoreRepository, runs};
use fullbore_format::{
    root::{BackupOptions, EntryName, FORMAT, Root, SourceInfo},
    seal::seal,
};
use fullbore_storage::{CloudAddress, CloudObjects, Objects, PutIf};
use runs::{noise, temp, write};
use std::{ffi::OsString, fs, path::Path};

fn tree_of(dir: &Path, files: usize) -> std::path::PathBuf {
    let tree = dir.join("tree");
    for number in 0..files {
        let path = tree.join(format!("d{}/f{number}", number % 10));
        write(path, noise(number as u64, 500));
    }
    tree
}

#[test]
fn a_backup_of_what_did_not_change_makes_twelve_requests() {
    let (mut store, proxy) = StoreRepository::s3_proxied();
    store.set("FULLBORE_STORAGE_RENEWAL_MILLIS", "10000"); // no renewal falls into the run
    let dir = temp();
    let tree = tree_of(dir.path(), 300);
    // Many segments: the lists have a page of their own, which is read with a root that shares it.
    (0..12).for_each(|number| write(tree.join(format!("l{number}")), noise(number, 1_100_000)));
    let back_up = || {
        let args = store.backup_args(&tree).into_iter();
        let more = args!["--segment-size", "1M", "--frame-size", "64K"];
        store.run(args.chain(more)).ends_with(0);
    };
    std::thread::sleep(std::time::Duration::from_millis(3100)); // what is as young as a backup is read again
    back_up();
    for run in 2..5 {
        proxy.rule(|_| super::fault_proxy::Break::Pass);
        back_up();
        let seen = proxy.seen();
        let lines: Vec<_> = seen
            .iter()
            .map(|seen| format!("{} {}", seen.method, seen.target))
            .collect();
        assert!(lines.len() <= 12, "{run}: {}: {lines:#?}", lines.len());
    }
}

#[test]
fn one_file_of_a_backup_that_is_named_takes_eight_requests() {
    let (store, proxy) = StoreRepository::s3_proxied();
    let dir = temp();
    let tree = tree_of(dir.path(), 3000);
    let id = store.back_up(&tree);
    proxy.rule(|_| super::fault_proxy::Break::Pass);
    let target = dir.path().join("to");
    let args = args!["restore", store.named(&id), "--to", target, "d7/f1237"];
    store.run(args).ends_with(0);
    assert_eq!(fs::read(target.join("d7/f1237")).unwrap(), noise(1237, 500));
    assert!(proxy.seen().len() <= 8, "{:#?}", proxy.seen());
}

#[test]
fn a_list_takes_roots_from_the_cache_and_asks_the_store_which_there_are() {
    let (store, proxy) = StoreRepository::s3_proxied();
    let dir = temp();
    let tree = tree_of(dir.path(), 5);
    let ids: Vec<_> = (0..4).map(|_| store.back_up(&tree)).collect();
    let requests = |args: &[&str]| {
        proxy.rule(|_| super::fault_proxy::Break::Pass);
        let args = args!["list", store.address]
            .into_iter()
            .chain(runs::args(args));
        let ran = store.run(args).ends_with(0);
        (proxy.seen().len(), ran.out)
    };
    let (cold, first) = requests(&["--no-cache"]);
    assert!(requests(&[]).0 <= cold, "backups keep roots in the cache");
    let (cached, second) = requests(&[]);
    // The outcome of the last verification is one of them.
    assert!(cold <= 5 + 5 && cached <= 6, "{cold} {cached}");
    assert_eq!(first, second);
    let other = dir.path().join("other");
    let other_args = ["--cache-dir", other.to_str().unwrap()];
    assert_eq!(requests(&other_args).0, cold);
    assert_eq!(requests(&other_args).0, cached);
    // A backup that another host forgets is not listed from the cache, and its notes are read.
    let beside = store.beside();
    let forgotten = args!["forget", "--yes", store.address, ids[1]];
    beside.run(forgotten).ends_with(0);
    beside
        .run(args!["tag", store.named(&ids[2]), "why=this"])
        .ends_with(0);
    let (_, third) = requests(&[]);
    assert!(
        !third.contains(&ids[1]) && third.contains("why=this"),
        "{third}"
    );
    beside
        .run(args!["tag", store.named(&ids[2]), "why=that"])
        .ends_with(0);
    assert!(requests(&[]).1.contains("why=that"));
}

/// Stores the roots of so many backups of three hosts, each with a manifest.
fn store_backups(store: &StoreRepository, count: usize) {
    let address = CloudAddress::parse(&store.address).unwrap().unwrap();
    let settings = super::stores::settings(&super::stores::s3_endpoint());
    let environment = super::stores::s3_environment();
    let objects = CloudObjects::open(&address, &settings, &environment).unwrap();
    let put = |number: usize| {
        let id = format!("20250101T{number:06}Z-aaaaaa");
        let root = Root {
            format: FORMAT,
            id: id.clone(),
            time: "2025-01-01T00:00:00Z".to_owned(),
            finished: "2025-01-01T00:00:00Z".to_owned(),
            source: SourceInfo {
                host: format!("host{}", number % 3),
                paths: vec![EntryName(b"/srv".to_vec())],
                contents: true,
            },
            options: BackupOptions {
                codec: "zstd".to_owned(),
                ..BackupOptions::default()
            },
            ..Root::default()
        };
        for (name, bytes) in [
            ("manifest", b"pages".to_vec()),
            ("root.json", seal(&root).unwrap()),
        ] {
            let key = format!("backups/{id}/{name}");
            objects.put(&key, &bytes, &PutIf::Always).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for first in 0..8 {
            let put = &put;
            scope.spawn(move || (first..count).step_by(8).for_each(put));
        }
    });
}

#[test]
fn a_list_of_a_thousand_backups_reads_each_root_once_and_then_none() {
    let (store, proxy) = StoreRepository::s3_proxied();
    let dir = temp();
    store.back_up(&tree_of(dir.path(), 1));
    store_backups(&store, 999);
    let counts = [0, 1].map(|_| {
        proxy.rule(|_| super::fault_proxy::Break::Pass);
        assert_eq!(store.listed().len(), 1000);
        proxy.seen().len()
    });
    println!("requests of a list of a thousand backups, cold and cached: {counts:?}");
    assert!(counts[0] <= 1010 && counts[1] <= 10, "{counts:?}");
    // WAL and drills are printed from the same pass over the roots.
    proxy.rule(|_| super::fault_proxy::Break::Pass);
    let long = args!["list", store.address, "-l", "--no-cache"];
    store.run(long).ends_with(0);
    let long = proxy.seen().len();
    assert!(long <= 1015, "{long}");
}

#[test]
fn a_backup_to_a_repository_with_very_many_objects_lists_it_once() {
    let (mut store, proxy) = StoreRepository::s3_proxied();
    store.set("FULLBORE_STORAGE_RENEWAL_MILLIS", "10000"); // no renewal falls into the run
    let dir = temp();
    let tree = tree_of(dir.path(), 300);
    store.back_up(&tree);
    store_backups(&store, 1500);
    std::thread::sleep(std::time::Duration::from_secs(3)); // what is as young as a backup is read again
    store.back_up(&tree);
    proxy.rule(|_| super::fault_proxy::Break::Pass);
    store.back_up(&tree);
    let seen = proxy.seen();
    let own = store.address.split_once("vault/").unwrap().1;
    let all = [own.to_owned(), format!("{own}/backups")];
    let whole = seen.iter().filter(|seen| {
        let mut words = seen.target.split(['?', '&']);
        let prefix = words.find_map(|word| word.strip_prefix("prefix="));
        let prefix = prefix.map(|prefix| prefix.replace("%2F", "/"));
        prefix.is_some_and(|prefix| all.iter().any(|all| prefix.trim_end_matches('/') == all))
    });
    let lines: Vec<_> = seen
        .iter()
        .map(|seen| format!("{} {}", seen.method, seen.target))
        .collect();
    // 3,000 objects and those of the real backups, in requests of 1,000.
    assert_eq!(whole.count(), 4, "{lines:#?}");
    assert!(lines.len() <= 12 + 4, "{}: {lines:#?}", lines.len());
    assert_eq!(store.listed().len(), 1503);
}

/// Each night forgets a backup of which later ones still use a segment. A prune must not ask for all of them again for ever.
#[test]
fn a_prune_lets_forgotten_backups_be_of_which_nothing_can_go() {
    let counts = [3, 9].map(|nights| {
        let (mut store, proxy) = StoreRepository::s3_proxied();
        store.set("FULLBORE_STORAGE_RENEWAL_MILLIS", "10000");
        let dir = temp();
        let tree = tree_of(dir.path(), 1);
        for night in 0..nights {
            super::runs::write(
                tree.join(format!("new{night}")),
                super::runs::noise(night, 50_000),
            );
            store.back_up(&tree);
        }
        let forget = args!["forget", store.address, "--keep-last", "1", "-q"];
        store.run(forget).ends_with(0);
        let prune = || {
            proxy.rule(|_| super::fault_proxy::Break::Pass);
            store.run(args!["prune", store.address, "-q"]).ends_with(0);
            proxy.seen().len()
        };
        prune();
        let again = prune();
        store
            .run(args!["verify", store.address, "--data", "-q"])
            .ends_with(0);
        again
    });
    println!("requests of a prune with 2 and 8 forgotten backups that others use: {counts:?}");
    // So few documents are not in an index: each is read once.
    assert!(counts[1] <= counts[0] + 6, "{counts:?}");
}

#[test]
fn a_backup_is_forgotten_by_seven_requests_and_pruned_by_ten() {
    let counts = [2, 12].map(|forgotten| {
        let (mut store, proxy) = StoreRepository::s3_proxied();
        store.set("FULLBORE_STORAGE_RENEWAL_MILLIS", "10000");
        let dir = temp();
        let tree = tree_of(dir.path(), 1);
        for _ in 0..=forgotten {
            let args = store.backup_args(&tree).into_iter();
            store.run(args.chain(args!["--full"])).ends_with(0);
        }
        let requests = |args: &[OsString]| {
            proxy.rule(|_| super::fault_proxy::Break::Pass);
            store.run(args.to_vec()).ends_with(0);
            proxy.seen().len()
        };
        let forget = requests(&args!["forget", store.address, "--keep-last", "1", "-q"]);
        (forget, requests(&args!["prune", store.address, "-q"]))
    });
    println!("requests of forget and prune with 2 and 12 backups: {counts:?}");
    let [(forget, prune), (more, pruned)] = counts;
    assert!(more <= forget + 7 * 10, "{counts:?}");
    assert!(pruned <= prune + 10 * 10, "{counts:?}");
}

#[test]
fn the_last_lines_say_what_was_asked_of_the_store() {
    let (store, proxy) = StoreRepository::s3_proxied();
    let dir = temp();
    let tree = dir.path().join("tree");
    write(tree.join("f"), noise(1, 3_000_000));
    let ran = store.run(store.backup_args(&tree)).ends_with(0);
    let line = ran.err.lines().find(|line| line.starts_with("store: "));
    let line = line.expect(&ran.err);
    assert!(
        line.contains(" requests, 3.0") && line.contains(" MB sent, "),
        "{line}"
    );
    let last = ran.err.lines().last().unwrap();
    assert!(last.starts_with("backup "), "{last}");
    proxy.break_first(3, "GET", "", super::fault_proxy::Break::Answer(503, "", ""));
    let ran = store
        .run(args!["verify", store.address, "--data", "--json"])
        .ends_with(0);
    let result = ran.json().pop().unwrap();
    assert_eq!(result["store"]["throttled"], 3, "{result}");
    assert_eq!(result["store"]["retries"], 3);
    assert!(result["store"]["received_bytes"].as_u64() > Some(3_000_000));
    let args = store.backup_args(&tree).into_iter();
    let limit = args!["--full", "--limit-upload", "1M"];
    let ran = store.run(args.chain(limit)).ends_with(0);
    assert!(
        ran.err
            .contains("--limit-upload or --limit-download held requests for")
            && ran.err.contains("; that is the limit, at "),
        "{}",
        ran.err
    );
    let local = dir.path().join("local");
    let ran = store.run(args!["backup", tree, "--to", local]).ends_with(0);
    assert!(!ran.err.contains("store: "), "{}", ran.err);
}

/// Most resident bytes of a run, looked at until it ends.
pub(crate) fn peak_bytes(mut run: std::process::Child) -> u64 {
    let status = format!("/proc/{}/status", run.id());
    let mut peak = 0;
    while run.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) << 10);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(run.wait().unwrap().success());
    peak
}

/// MiB that a run may take above `--memory`. An unoptimized program has 20 MiB more of code.
const ABOVE_MEMORY: u64 = if cfg!(debug_assertions) { 96 + 20 } else { 96 };

#[test]
fn a_large_file_passes_in_the_memory_that_is_given() {
    let store = StoreRepository::s3();
    let dir = temp();
    let tree = dir.path().join("tree");
    write(tree.join("large"), noise(1, 400 << 20));
    for memory in [32, 128] {
        let given = args!["--memory", format!("{memory}M"), "--full", "--quiet"];
        let args = store.backup_args(&tree).into_iter().chain(given);
        let peak = peak_bytes(store.command(args).spawn().unwrap()) >> 20;
        assert!(peak <= memory + ABOVE_MEMORY, "{peak} MiB of {memory}");
    }
    let back = dir.path().join("back");
    let args = args![
        "restore",
        store.address,
        "--to",
        back,
        "--memory",
        "64M",
        "--quiet"
    ];
    let peak = peak_bytes(store.command(args).spawn().unwrap()) >> 20;
    assert!(peak <= 64 + ABOVE_MEMORY, "{peak} MiB");
}
