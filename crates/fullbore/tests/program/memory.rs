//! Runs that get too little memory: an error and exit code 1, whatever there was no memory for.

use crate::runs;
use crate::runs::{Ran, assert_same, fullbore, names, noise, sample, shape, shell, temp, write};
use std::{ffi::OsString, path::Path};

/// A run that may have so many MiB of address space.
fn limited(mib: usize, args: impl IntoIterator<Item = OsString>) -> Ran {
    let line = "ulimit -v $(($1 * 1024)); shift; exec \"$@\"";
    shell(
        line,
        args![mib.to_string(), runs::FULLBORE]
            .into_iter()
            .chain(args),
    )
}

/// Limits in MiB: from too little to begin with, in small steps, to plenty.
fn limits() -> impl Iterator<Item = usize> {
    (60..=108).step_by(4).chain([130, 250, 500, 2000])
}

/// Did the run succeed? If not, it ended with an error that says what to do.
#[track_caller]
fn succeeded(ran: Ran, case: &str) -> bool {
    // With too little to map the program, the loader says so.
    if ran.code == 127 && ran.err.contains("error while loading shared libraries") {
        return false;
    }
    assert!(
        matches!(ran.code, 0 | 1),
        "{case}: {}\n{}",
        ran.code,
        ran.err
    );
    if ran.code == 1 {
        assert!(
            ran.err.contains("raise the limit of memory"),
            "{case}: {}",
            ran.err
        );
        ran.has_one_error("");
        return false;
    }
    true
}

/// A tree of files that take all sorts of buffers.
fn tree(at: &Path) {
    sample(at);
    write(at.join("many frames"), noise(3, 30 << 20));
    (0..300).for_each(|i| write(at.join(format!("small/{i}")), noise(i, 2000 + i as usize)));
}

#[test]
fn a_backup_with_too_little_memory_ends_with_an_error_and_leaves_nothing_that_harms() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    let tree_at = path("tree");
    tree(&tree_at);
    for (target, codec) in [("repository", "zstd:1"), ("out/x.tar.lz4", "lz4")] {
        write(path("out/anchor"), "");
        let backup = || {
            args![
                "backup",
                tree_at,
                "--to",
                path(target),
                "--compress",
                codec,
                "--quiet"
            ]
        };
        let ends: Vec<bool> = limits()
            .map(|mib| succeeded(limited(mib, backup()), &format!("{target}, {mib} MiB")))
            .collect();
        assert!(!ends[0] && ends[ends.len() - 1], "{target}: {ends:?}");
        fullbore(backup()).ends_with(0);
        assert!(
            !names(&path("out"))
                .iter()
                .any(|name| name.ends_with(".partial"))
        );
        fullbore(args![
            "verify",
            path(target),
            "--data",
            "--against",
            tree_at
        ])
        .ends_with(0);
        std::fs::remove_dir_all(path("out")).unwrap();
    }
}

#[test]
fn a_restore_or_a_check_with_too_little_memory_ends_with_an_error() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    tree(&path("tree"));
    fullbore(args![
        "backup",
        path("tree"),
        "--to",
        path("repository"),
        "--quiet"
    ])
    .ends_with(0);
    let before = shape(&path("tree"));
    let mut ends = Vec::new();
    for mib in limits() {
        let case = format!("{mib} MiB");
        let _ = std::fs::remove_dir_all(path("back")); // it may not be there
        let is_restored = succeeded(
            limited(
                mib,
                args![
                    "restore",
                    path("repository"),
                    "--to",
                    path("back"),
                    "--quiet"
                ],
            ),
            &case,
        );
        if is_restored {
            assert_same(&before, &shape(&path("back")), &case);
        }
        ends.push(is_restored);
        for more in [
            args!["verify", path("repository"), "--data", "--quiet"].to_vec(),
            args!["list", path("repository@latest")].to_vec(),
            args![
                "export",
                path("repository"),
                "--to",
                path("x.tar.zst"),
                "--quiet"
            ]
            .to_vec(),
        ] {
            succeeded(limited(mib, more.clone()), &format!("{case}: {more:?}"));
        }
    }
    assert!(!ends[0] && ends[ends.len() - 1], "{ends:?}");
}
