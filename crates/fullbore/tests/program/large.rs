//! What is read of a large backup to look at it, or to fetch one file: the root and a page or two.

use crate::runs;
use crate::runs::{has, or_skip, temp};
use std::{fs, path::Path, process::Command};
use testkit::fixture;
use testkit::fixture::Fixture;

/// A repository with a backup of so many small files.
fn large(repository: &Path, files: usize) {
    let mut fixture = Fixture {
        page_records: 8192,
        page_extents: 32_768,
        frame_bytes: 1 << 20,
        ..Fixture::default()
    };
    fixture.dir("", 0o755);
    for i in 0..files {
        fixture.file(
            &format!("d{:04}/a-file-with-some-name-{i:07}", i / 1000),
            format!("content of {i}"),
        );
    }
    fixture.write_repository(repository);
}

/// How often a command reads in the repository, and how many bytes.
fn reads(repository: &Path, args: &[&str]) -> (usize, u64) {
    let dir = temp();
    let trace = dir.path().join("trace");
    let mut command = Command::new("strace");
    command
        .args(["-f", "-qq", "-y", "-e", "trace=read,pread64", "-o"])
        .arg(&trace)
        .arg(runs::FULLBORE)
        .args(args);
    assert!(command.output().unwrap().status.success(), "{args:?}");
    let text = fs::read_to_string(&trace).unwrap();
    let of_repository = text
        .lines()
        .filter(|line| line.contains(repository.to_str().unwrap()));
    let counts: Vec<u64> = of_repository
        .filter_map(|line| line.rsplit("= ").next()?.trim().parse().ok())
        .collect();
    (counts.len(), counts.iter().sum())
}

#[test]
fn one_file_of_a_large_backup_costs_the_root_and_a_few_pages() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let files = 100_000;
    let dir = temp();
    let repository = dir.path().join("repo");
    large(&repository, files);
    let backup = repository.join("backups").join(fixture::ID);
    let len = |name: &str| fs::metadata(backup.join(name)).unwrap().len();
    let (root, manifest) = (len("root.json"), len("manifest"));
    let page = manifest.div_ceil(files as u64 / 8192);
    let (source, target) = (repository.to_str().unwrap(), dir.path().join("to"));
    let one = format!(
        "d{:04}/a-file-with-some-name-{:07}",
        files / 2000,
        files / 2 + 7
    );
    let only_root: [&[&str]; 3] = [
        &["list", source],
        &["show", source],
        &["show", source, "--json"],
    ];
    for args in only_root {
        let (count, bytes) = reads(&repository, args);
        eprintln!("{args:?}: {count} reads, {bytes} bytes");
        assert!(
            bytes < 2 * root + 4096,
            "{args:?}: {bytes} bytes, the root has {root}"
        );
    }
    let with_pages: [&[&str]; 4] = [
        &[
            "restore",
            source,
            "--to",
            target.to_str().unwrap(),
            &one,
            "--quiet",
        ],
        &["list", source, &one],
        &["find", source, &format!("/{one}")],
        &["restore", source, "--plan", &one],
    ];
    for args in with_pages {
        let (count, bytes) = reads(&repository, args);
        eprintln!("{args:?}: {count} reads, {bytes} bytes");
        let most = 3 * root + 5 * page + (1 << 20);
        assert!(
            bytes < most && count < 40,
            "{args:?}: {count} reads, {bytes} bytes of {manifest}, pages of {page}"
        );
    }
}
