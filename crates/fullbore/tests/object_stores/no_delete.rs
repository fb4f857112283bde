//! A bucket whose policy forbids to delete: backups, list, restore and verify work, and nothing is lost by what cannot.

use super::{StoreRepository, fault_proxy::Break, fault_proxy::Seen, runs};
use runs::{noise, temp, write};
use std::path::{Path, PathBuf};

/// S3's answer to who may not do this.
const DENIED: Break = Break::Answer(
    403,
    "Content-Type: application/xml\r\n",
    "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>",
);

fn is_delete(seen: &Seen) -> bool {
    seen.is("POST", "?delete")
}

/// Files below `tree`; those with an even number are others in each generation.
fn write_tree(tree: &Path, generation: u64) {
    for number in 0..20 {
        let seed = if number % 2 == 0 {
            100 * generation + number
        } else {
            number
        };
        write(tree.join(format!("d/f{number}")), noise(seed, 20_000));
    }
}

/// Three backups of a tree that changes; the trees, and the ids.
fn three_backups(store: &StoreRepository, dir: &Path) -> Vec<(PathBuf, String)> {
    let backup = |generation| {
        let tree = dir.join(format!("{generation}/tree"));
        write_tree(&tree, generation);
        let id = store.back_up(&tree);
        (tree, id)
    };
    (0..3).map(backup).collect()
}

/// Everything that is listed restores and verifies.
#[track_caller]
fn assert_whole(store: &StoreRepository, backups: &[(PathBuf, String)]) {
    let ids: Vec<_> = backups.iter().map(|(_, id)| id.clone()).collect();
    assert_eq!(store.listed(), ids);
    for (tree, id) in backups {
        store.assert_restores(tree, id);
    }
    let verify = args!["verify", store.address, "--data"];
    store.run(verify).ends_with(0);
}

#[test]
fn a_bucket_that_forbids_to_delete_takes_backups_and_gives_them_back() {
    for denied in [DENIED, Break::DenyEach] {
        let (store, proxy) = StoreRepository::s3_proxied();
        let answer = denied.clone();
        proxy.rule(move |seen| {
            if is_delete(seen) {
                answer.clone()
            } else {
                Break::Pass
            }
        });
        let dir = temp();
        let backups = three_backups(&store, dir.path());
        assert_whole(&store, &backups);
        // An incremental backup of what did not change refers to all, and the intents that are left cost it nothing more each time.
        let requests = |proxy: &super::fault_proxy::FaultProxy| {
            let before = proxy.seen().len();
            store.back_up(&backups[2].0);
            proxy.seen().len() - before
        };
        // The first one is compared with a backup that has its pages itself.
        requests(&proxy);
        let first = requests(&proxy);
        let counts: Vec<_> = (0..3).map(|_| requests(&proxy)).collect();
        assert!(
            counts.iter().all(|count| *count <= first),
            "{first} {counts:?}"
        );
    }
}

#[test]
fn forget_and_prune_say_what_they_could_not_delete_and_leave_the_repository_whole() {
    for denied in [DENIED, Break::DenyEach] {
        let (store, proxy) = StoreRepository::s3_proxied();
        let dir = temp();
        let mut backups = three_backups(&store, dir.path());
        let answer = denied.clone();
        proxy.rule(move |seen| {
            if is_delete(seen) {
                answer.clone()
            } else {
                Break::Pass
            }
        });
        let forget = args!["forget", "--yes", store.address, backups[1].1];
        let ran = store.run(forget.clone()).ends_with(1);
        ran.has_one_error("AccessDenied")
            .has_one_error("is still listed");
        assert_whole(&store, &backups);
        // Another host may forget it, and then there is something to free.
        store.beside().run(forget).ends_with(0);
        let (_, gone) = backups.remove(1);
        let ran = store.run(args!["prune", store.address]).ends_with(1);
        let line = format!("{gone}  could not delete 204 kB in 1 segment\n");
        assert!(ran.out.contains(&line), "{}", ran.out);
        let total = "freed 0 B in 0 segments; could not delete 204 kB in 1 segment\n";
        assert!(ran.out.ends_with(total), "{}", ran.out);
        ran.has_one_error("AccessDenied");
        let json = store
            .run(args!["prune", store.address, "--json"])
            .ends_with(1);
        let result = json.json().pop().unwrap();
        assert_eq!(result["undeleted_segments"], 1, "{result}");
        assert_eq!(result["freed_bytes"], 0);
        assert_whole(&store, &backups);
        // A backup refers to nothing that is about to be deleted, and is whole after it was.
        let (tree, _) = &backups[1];
        let id = store.back_up(tree);
        backups.push((tree.clone(), id));
        let ran = store
            .beside()
            .run(args!["prune", store.address])
            .ends_with(0);
        assert!(
            ran.out
                .contains(&format!("{gone}  freed 204 kB in 1 segment")),
            "{}",
            ran.out
        );
        assert_whole(&store, &backups);
    }
}
