//! Sizes whose sum is more than a `u64` holds: the sum is the largest `u64`, and no command fails for it.

use crate::runs::{self, Ran, fullbore, or_skip, temp, text, write};
use fullbore_format::{root::Root, seal::seal};
use serde_json::Value;
use std::{
    ffi::OsString,
    fs::{self, File},
    path::Path,
};

/// The largest file there can be; three of them are more than a `u64` counts.
const LARGEST: u64 = i64::MAX as u64;

/// A file of so many bytes that holds nothing but its beginning.
fn sparse(path: &Path, beginning: &str) {
    write(path, beginning);
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(LARGEST)
        .unwrap();
}

/// A directory whose file system has files of any size.
fn roomy() -> Option<tempfile::TempDir> {
    let dir = tempfile::Builder::new()
        .prefix("fullbore")
        .tempdir_in("/dev/shm")
        .ok()?;
    let probe = File::create(dir.path().join("probe")).ok()?;
    probe.set_len(LARGEST).ok()?;
    Some(dir)
}

#[track_caller]
fn run(args: impl IntoIterator<Item = OsString>) -> Ran {
    fullbore(args).ends_with(0)
}

#[test]
fn the_sizes_of_three_of_the_largest_files_add_up_to_the_largest_number() {
    let Some(dir) = roomy() else {
        or_skip(false, "/dev/shm does not take files of 8 EiB");
        return;
    };
    let path = |name: &str| dir.path().join(name);
    let [tree, repository, back] = ["tree", "repository", "back"].map(path);
    fs::create_dir(&tree).unwrap();
    for name in ["a", "b", "c"] {
        sparse(&tree.join(name), name);
    }
    let bytes = |ran: &Ran| ran.json().last().unwrap()["bytes"].as_u64();
    let backup = || args!["backup", tree, "--to", repository, "--json"].to_vec();
    assert_eq!(
        bytes(&run([backup(), args!["--dry-run"].to_vec()].concat())),
        Some(u64::MAX)
    );
    run(backup());
    assert_eq!(
        bytes(&run(args!["list", repository, "--json"])),
        Some(u64::MAX)
    );
    sparse(&tree.join("c"), "another");
    sparse(&tree.join("d"), "d");
    fs::remove_file(tree.join("a")).unwrap();
    run(backup());
    let differences = run(args!["diff", repository, "--json"])
        .json()
        .pop()
        .unwrap();
    assert_eq!(differences["growth_bytes"], 0, "{differences}");
    for args in [
        args!["list", repository].to_vec(),
        args!["list", repository, "--json"].to_vec(),
        args!["show", repository].to_vec(),
        args!["find", repository, "c"].to_vec(),
        args!["diff", repository].to_vec(),
        args!["restore", repository, "--to", back, "--plan"].to_vec(),
        args!["restore", repository, "--to", back].to_vec(),
        args!["verify", repository, "--data", "--against", tree].to_vec(),
        args!["verify", repository, "--sample", "50%"].to_vec(),
        args!["export", repository, "--to", path("x.tar.zst")].to_vec(),
        args!["restore", path("x.tar.zst"), "--to", path("exported")].to_vec(),
        args!["copy", repository, path("copy")].to_vec(),
    ] {
        run(args);
    }
    fs::remove_file(back.join("b")).unwrap();
    write(back.join("c"), "damaged");
    run(args!["restore", repository, "--to", back, "--delta"]);
    for restored in [&back, &path("exported")] {
        run(args!["verify", repository, "--data", "--against", restored]);
    }
    // Without its root the backup is counted anew.
    let newest = runs::names(&repository.join("backups")).pop().unwrap();
    fs::remove_file(repository.join("backups").join(&newest).join("root.json")).unwrap();
    run(args!["repair", repository, "--yes"]);
    assert_eq!(
        bytes(&run(args!["list", repository, "--json"])),
        Some(u64::MAX)
    );
    run(args!["forget", "--yes", repository, newest]);
    run(args!["prune", repository]);
}

/// Where numbers stand in a value, as JSON pointers.
fn numbers(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(at.to_owned()),
        Value::Array(items) => {
            (0..items.len()).for_each(|i| numbers(&items[i], &format!("{at}/{i}"), found))
        }
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| numbers(value, &format!("{at}/{key}"), found)),
        _ => {}
    }
}

/// What a run says may be anything but a defect of the program.
#[track_caller]
fn assert_no_defect(ran: &Ran, case: &str) {
    assert!(
        (0..=4).contains(&ran.code),
        "{case}: {}\n{}",
        ran.code,
        ran.err
    );
    assert!(
        !ran.err.contains("panicked") && !ran.err.contains("defect"),
        "{case}: {}",
        ran.err
    );
}

/// Write the root at `path` with another number at `pointer`, if there is one and the program reads the root then.
fn forge(path: &Path, bytes: &[u8], pointer: &str, number: u64) -> bool {
    let mut root: Value = serde_json::from_slice(bytes).unwrap();
    let Some(place) = root.pointer_mut(pointer) else {
        return false;
    };
    *place = number.into();
    root.as_object_mut().unwrap().remove("blake3");
    let sealed = seal(&root).unwrap();
    let is_read = Root::open(&sealed, "the root").is_ok();
    if is_read {
        fs::write(path, sealed).unwrap();
    }
    is_read
}

#[test]
fn no_number_in_a_forged_root_makes_a_command_fail_by_a_defect() {
    let dir = temp();
    let inside = |name: &str| dir.path().join(name);
    let [tree, repository] = ["tree", "repository"].map(inside);
    for seed in [1, 2] {
        write(tree.join("changed"), text(seed, 30_000));
        write(tree.join("same"), text(7, 300_000));
        run(args![
            "backup",
            tree,
            "--to",
            repository,
            "--quiet",
            "--block-size",
            "4K"
        ]);
    }
    let ids = runs::names(&repository.join("backups"));
    let paths: Vec<_> = ids
        .iter()
        .map(|id| repository.join("backups").join(id).join("root.json"))
        .collect();
    let roots: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let mut found = Vec::new();
    let root: Value = serde_json::from_slice(&roots[1]).unwrap();
    numbers(&root, "", &mut found);
    assert!(found.len() > 40, "{found:?}");
    for pointer in found.iter().filter(|pointer| *pointer != "/format") {
        // In both backups, so that two of them are added; some numbers have 32 bits.
        let forged = |number: u64| {
            let all = paths
                .iter()
                .zip(&roots)
                .map(|(path, bytes)| forge(path, bytes, pointer, number));
            all.filter(|forged| *forged).count()
        };
        if forged(u64::MAX) == 0 && forged(u32::MAX.into()) == 0 {
            continue;
        }
        let more = inside("more");
        for args in [
            args!["list", repository].to_vec(),
            args!["show", repository].to_vec(),
            args!["diff", repository, ids[0], ids[1]].to_vec(),
            args!["verify", repository, "--sample", "50%"].to_vec(),
            args!["restore", repository, "--to", more, "--plan"].to_vec(),
            args!["restore", repository, "--to", more.join("back"), "--quiet"].to_vec(),
            args!["copy", repository, more.join("copy")].to_vec(),
            args!["prune", repository, "--dry-run"].to_vec(),
            args!["backup", tree, "--to", repository, "--quiet"].to_vec(),
        ] {
            assert_no_defect(&fullbore(args.clone()), &format!("{pointer}: {args:?}"));
        }
        let _ = fs::remove_dir_all(&more); // not all make it
        for id in runs::names(&repository.join("backups"))
            .iter()
            .filter(|id| !ids.contains(id))
        {
            fs::remove_dir_all(repository.join("backups").join(id)).unwrap();
        }
        paths
            .iter()
            .zip(&roots)
            .for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    }
}
