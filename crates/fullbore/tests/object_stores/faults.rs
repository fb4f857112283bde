//! A store that fails in the middle of a run: what is listed restores, and the next backup works.

use super::{StoreRepository, fault_proxy::Break, runs};
use runs::{noise, temp, write};
use std::path::Path;

fn tree_at(dir: &Path, seed: u64) -> std::path::PathBuf {
    let tree = dir.join("tree");
    write(tree.join("large"), noise(seed, 20_000_000));
    for number in 0..20 {
        write(
            tree.join(format!("d/f{number}")),
            noise(seed + number, 3000),
        );
    }
    tree
}

#[test]
fn a_store_that_fails_now_and_then_stores_and_gives_back_every_byte() {
    let (store, proxy) = StoreRepository::s3_proxied();
    let dir = temp();
    for (index, how) in [
        Break::Answer(500, "", ""),
        Break::Answer(503, "Retry-After: 0\r\n", ""),
        Break::Reset,
        Break::ResetWithin,
        Break::LoseAnswer,
        Break::CutAnswer,
        Break::ChangeByte,
    ]
    .into_iter()
    .enumerate()
    {
        let tree = tree_at(dir.path(), index as u64);
        let of_rule = how.clone();
        proxy.rule(move |seen| {
            // A byte of a body is changed only where there is a checksum of it.
            let is_part = seen.is("PUT", "partNumber");
            let is_broken = match of_rule {
                Break::ChangeByte => is_part && seen.number % 2 == 0,
                Break::CutAnswer => seen.method == "GET" && seen.number % 5 == 4,
                _ => seen.number % 5 == 4,
            };
            if is_broken {
                of_rule.clone()
            } else {
                Break::Pass
            }
        });
        let id = store.back_up(&tree);
        store.assert_restores(&tree, &id);
        assert!(proxy.seen().len() > 10, "{how:?}");
        assert_eq!(store.listed().len(), index + 1, "{how:?}");
    }
    proxy.rule(|_| Break::Pass);
    store
        .run(args!["verify", store.address, "--data"])
        .ends_with(0);
}

#[test]
fn a_backup_that_the_store_ends_is_not_listed_and_the_next_one_works() {
    let (mut store, proxy) = StoreRepository::s3_proxied();
    store.set("FULLBORE_STORAGE_TRIES", "2");
    let dir = temp();
    let tree = tree_at(dir.path(), 50);
    let first = store.back_up(&tree);
    let mut listed = vec![first];
    let expired = "<Error><Code>ExpiredToken</Code><Message>It expired.</Message></Error>";
    let no_bucket = "<Error><Code>NoSuchBucket</Code><Message>No bucket.</Message></Error>";
    let full = "<Error><Code>QuotaExceeded</Code><Message>Full.</Message></Error>";
    for (offset, how, words) in [
        (1, Break::Answer(500, "", ""), "answered 500"),
        (2, Break::Answer(403, "", expired), "ExpiredToken"),
        (3, Break::Answer(404, "", no_bucket), "NoSuchBucket"),
        (4, Break::Answer(507, "", full), "QuotaExceeded"),
        (5, Break::Reset, "the connection to the store broke"),
    ] {
        let tree = tree_at(dir.path(), 100 + offset);
        // From the second part on nothing passes any more.
        let mut is_broken = false;
        proxy.rule(move |seen| {
            is_broken |= seen.is("PUT", "partNumber=2");
            if is_broken { how.clone() } else { Break::Pass }
        });
        let ran = store.run(store.backup_args(&tree));
        assert!(
            [1, 2].contains(&ran.code),
            "{words}: {}{}",
            ran.out,
            ran.err
        );
        ran.has_one_error(words);
        proxy.rule(|_| Break::Pass);
        assert_eq!(store.listed(), listed, "{words}");
        let next = store.back_up(&tree);
        store.assert_restores(&tree, &next);
        listed.push(next);
    }
    store.run(args!["prune", store.address]).ends_with(0);
    for id in &listed {
        store
            .run(args!["verify", store.named(id), "--data"])
            .ends_with(0);
    }
}

#[test]
fn a_root_whose_put_fails_lists_nothing() {
    let (mut store, proxy) = StoreRepository::s3_proxied();
    store.set("FULLBORE_STORAGE_TRIES", "2");
    let dir = temp();
    let tree = tree_at(dir.path(), 9);
    proxy.rule(|seen| {
        if seen.is("PUT", "/root.json") {
            Break::Answer(500, "", "")
        } else {
            Break::Pass
        }
    });
    let ran = store.run(store.backup_args(&tree)).ends_with(1);
    ran.has_one_error("answered 500");
    proxy.rule(|_| Break::Pass);
    let ran = store.run(args!["list", store.address]).ends_with(0);
    assert_eq!(ran.out, "");
    let id = store.back_up(&tree);
    store.assert_restores(&tree, &id);
}

/// Syncs a local repository to the store, and breaks one request of the run after the other.
#[test]
fn a_sync_that_is_cut_at_any_request_lists_nothing_incomplete_and_goes_on() {
    let (mut store, proxy) = StoreRepository::s3_proxied();
    store.set("FULLBORE_STORAGE_TRIES", "1");
    let dir = temp();
    let near = dir.path().join("near");
    let mut trees = Vec::new();
    for turn in 0..2 {
        let tree = tree_at(&dir.path().join(format!("t{turn}")), turn);
        let args = args![
            "backup",
            tree,
            "--to",
            near,
            "--segment-size",
            "8M",
            "--json"
        ];
        let id = store.run(args).ends_with(0).json().pop().unwrap()["id"].clone();
        trees.push((id.as_str().unwrap().to_owned(), tree));
    }
    let ids: Vec<_> = trees.iter().map(|(id, _)| id.clone()).collect();
    let bucket = store.address.clone();
    let (mut cuts, mut failed, mut went_on) = (0, 0, 0);
    for at in (0..400).filter(|at| *at < 24 || at % 7 == 0) {
        store.address = format!("{bucket}/cut{at}");
        let sync = || args!["sync", near, store.address, "--no-encryption", "--json"];
        proxy.rule(move |seen| match (seen.number == at, at % 3) {
            (true, 0) => Break::Reset,
            (true, 1) => Break::LoseAnswer,
            (true, _) => Break::Answer(403, "", ""),
            _ => Break::Pass,
        });
        let ran = store.run(sync());
        let was_reached = proxy.seen().len() > at;
        proxy.rule(|_| Break::Pass);
        assert!(matches!(ran.code, 0 | 1), "{at}: {}", ran.err);
        if !was_reached {
            break;
        }
        cuts += 1;
        failed += ran.code;
        let listed = store.run(args!["list", store.address, "--json"]);
        for backup in listed.json() {
            let id = backup["id"].as_str().unwrap();
            let tree = &trees.iter().find(|(known, _)| known == id).unwrap().1;
            store.assert_restores(tree, id);
        }
        let next = store.run(sync()).ends_with(0).json().pop().unwrap();
        let first = &next["copied"][0];
        went_on += u32::from(first["there_objects"].as_u64() > Some(0) && first["objects"] != 0);
        assert_eq!(store.listed(), ids, "{at}");
        store
            .run(args!["verify", store.address, "--data"])
            .ends_with(0);
    }
    assert!((20..399).contains(&cuts) && failed > 15, "{cuts} {failed}");
    assert!(went_on > 2, "{went_on}");
    // Back from the store, with a request that fails now and then.
    store.address = format!("{bucket}/cut0");
    store.set("FULLBORE_STORAGE_TRIES", "5");
    proxy.rule(|seen| match seen.number % 7 {
        3 => Break::CutAnswer,
        5 => Break::Answer(503, "Retry-After: 0\r\n", ""),
        _ => Break::Pass,
    });
    let back = dir.path().join("back");
    store
        .run(args!["sync", store.address, back, "--no-encryption"])
        .ends_with(0);
    proxy.rule(|_| Break::Pass);
    store.run(args!["verify", back, "--data"]).ends_with(0);
}
