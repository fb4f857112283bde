//! Large files that go on over pages of the manifest, and what is made of a backup that was cut off in the midst of one.

use super::runs::{self, assert_same, fed, fullbore, has, noise, or_skip, shape, temp, write};
use super::{SETTLED, backup, ids, restored, root, verified};
use std::{fs, os::unix::fs::FileExt, path::Path, thread::sleep, time::Duration};

/// A few seconds for 30 MB, of which the processor is hardly used.
const SLOWLY: [&str; 4] = ["--compress", "zstd:1", "--max-rate", "8M"];

/// A backup that is killed once it has made a checkpoint of which this is enough; gives its id.
fn cut_off(
    tree: &Path,
    repo: &Path,
    options: &[&str],
    enough: impl Fn(&serde_json::Value) -> bool,
) -> String {
    let before: Vec<String> = if repo.exists() { ids(repo) } else { Vec::new() };
    let command = args![
        "backup",
        tree,
        "--to",
        repo,
        "--quiet",
        "--checkpoint-interval",
        "0",
        "--workers",
        "1"
    ];
    let mut child = runs::started(command.into_iter().chain(runs::args(options)));
    let dead = loop {
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended before it could be killed"
        );
        let new = if repo.join("backups").exists() {
            ids(repo)
        } else {
            Vec::new()
        };
        let under_way = new.into_iter().find(|id| !before.contains(id));
        if let Some(id) =
            under_way.filter(|id| repo.join("backups").join(id).join("partial.json").exists())
        {
            let partial: serde_json::Value = serde_json::from_slice(
                &fs::read(repo.join("backups").join(&id).join("partial.json")).unwrap(),
            )
            .unwrap();
            if enough(&partial) {
                break id;
            }
        }
        sleep(Duration::from_millis(10));
    };
    child.kill().unwrap();
    child.wait().unwrap();
    dead
}

/// Bytes of all segments that a root names.
fn stored(root: &serde_json::Value) -> u64 {
    let segments = root["segments"].as_array().unwrap().iter();
    segments
        .map(|segment| segment["bytes"].as_u64().unwrap())
        .sum()
}

#[test]
fn of_a_large_file_that_was_cut_off_what_was_stored_is_gone_on_from() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("image"), noise(1, 48 << 20));
    sleep(SETTLED);
    let dead = cut_off(&tree, &repo, &SLOWLY, |partial| stored(partial) > 12 << 20);
    let file = fs::File::options()
        .write(true)
        .open(tree.join("image"))
        .unwrap();
    file.write_all_at(b"changed meanwhile", 3 << 20).unwrap();
    let result = backup(&tree, &repo, &[]);
    assert_eq!(result["bases"][0], dead.as_str());
    let again = result["stored_bytes"].as_u64().unwrap();
    assert!(
        again < 40 << 20,
        "of 48 MiB, of which 12 and more were there, {again} bytes were stored again"
    );
    assert_same(&shape(&tree), &restored(&repo, "latest"), "gone on");
    verified(&repo, "latest");
}

#[test]
fn a_backup_that_was_cut_off_is_gone_on_from() {
    let dir = temp();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    // Files enough for some pages, and bytes enough to be killed on the way.
    (0..17_500u64).for_each(|i| write(tree.join(format!("d{:02}/f{i}", i / 500)), i.to_string()));
    (0..30u64).for_each(|i| write(tree.join(format!("z/large{i}")), noise(i, 1 << 20)));
    sleep(SETTLED);
    let dead = cut_off(&tree, &repo, &SLOWLY, |partial| {
        partial["totals"]["entries"].as_u64().unwrap() > 17_000
    });
    fullbore(args!["restore", &repo, "--to", dir.path().join("none")])
        .ends_with(1)
        .has_one_error("could not find a backup");
    write(tree.join("d00/f1"), b"changed meanwhile");
    let result = backup(&tree, &repo, &[]);
    assert_eq!(result["bases"][0], dead.as_str());
    assert!(result["kept_files"].as_u64().unwrap() >= 16_000, "{result}");
    assert_same(&shape(&tree), &restored(&repo, "latest"), "gone on");
    verified(&repo, "latest");
    backup(&tree, &repo, &[]);
    assert_eq!(
        root(&repo, ids(&repo).last().unwrap())["bases"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    verified(&repo, "latest");
}

#[test]
fn of_a_file_that_was_cut_off_and_is_found_by_its_inode_nothing_is_taken_for_the_whole() {
    for digest in ["blake3", "crc32c"] {
        let dir = temp();
        let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
        write(tree.join("dir/image"), noise(1, 24 << 20));
        sleep(SETTLED);
        let options = ["--digest", digest];
        cut_off(&tree, &repo, &[&options[..], &SLOWLY].concat(), |partial| {
            stored(partial) > 6 << 20
        });
        fs::rename(tree.join("dir"), tree.join("renamed")).unwrap();
        for _ in 0..2 {
            backup(&tree, &repo, &options);
            verified(&repo, "latest");
            assert_same(&shape(&tree), &restored(&repo, "latest"), digest);
        }
    }
}

#[test]
fn a_stream_that_goes_on_over_pages_is_as_long_as_it_was() {
    let dir = temp();
    let (repo, back) = (dir.path().join("repo"), dir.path().join("back"));
    let mut dump = noise(1, 5 << 20);
    // Pages are closed at a checkpoint.
    for (index, options) in [[].as_slice(), &[], &["--chunking", "content"]]
        .into_iter()
        .enumerate()
    {
        dump[index << 20] ^= 1;
        let command = args![
            "backup",
            "--stdin-name",
            "db.sql",
            "--to",
            repo,
            "--json",
            "--checkpoint-interval",
            "0"
        ];
        let ran = runs::Ran::from(fed(command.into_iter().chain(runs::args(options)), &dump))
            .ends_with(0);
        assert_eq!(
            ran.json().last().unwrap()["bytes"],
            dump.len(),
            "{}",
            ran.out
        );
        assert!(
            root(&repo, &ids(&repo)[index])["pages"]
                .as_array()
                .unwrap()
                .len()
                > 1
        );
        verified(&repo, "latest");
        for tricks in [&[][..], &["--no-tricks"]] {
            let command = args!["restore", repo, "--to", back, "--quiet"]
                .into_iter()
                .chain(runs::args(tricks));
            fullbore(command).ends_with(0);
            assert!(fs::read(back.join("db.sql")).unwrap() == dump, "{index}");
            fs::remove_dir_all(&back).unwrap();
        }
        let listed = fullbore(args![
            "list",
            format!("{}@latest", repo.display()),
            "--json"
        ])
        .ends_with(0)
        .json();
        assert_eq!(listed.last().unwrap()["size"], dump.len());
    }
}

#[test]
fn of_a_large_file_that_cannot_be_read_to_its_end_no_part_counts() {
    if !or_skip(has("strace"), "strace") {
        return;
    }
    let dir = temp();
    let (tree, repo, back) = (
        dir.path().join("tree"),
        dir.path().join("repo"),
        dir.path().join("back"),
    );
    write(tree.join("large"), noise(1, 10 << 20));
    write(tree.join("small"), b"small");
    fs::hard_link(tree.join("large"), tree.join("other-name")).unwrap();
    sleep(SETTLED);
    let command = args![
        "backup",
        tree,
        "--to",
        repo,
        "--json",
        "--checkpoint-interval",
        "0",
        "--workers",
        "1"
    ];
    // strace counts the reads of each thread: the first that fails is one of the 8th piece or later.
    let alone = args!["--readers", "1", "--frame-size", "256K"];
    let file = tree.join("large");
    let ran = runs::tampered(
        "preadv2:error=EIO:when=8",
        Some(&file),
        command.into_iter().chain(alone),
    )
    .ends_with(3);
    assert_eq!(ran.json().last().unwrap()["bytes"], 5, "{}", ran.out);
    verified(&repo, "latest");
    fullbore(args!["restore", repo, "--to", back, "--quiet"]).ends_with(3);
    assert_eq!(
        fs::read_dir(&back)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect::<Vec<_>>(),
        ["small"]
    );
    fullbore(args![
        "restore",
        repo,
        "--to",
        dir.path().join("one"),
        "large",
        "--quiet"
    ])
    .ends_with(1)
    .has_one_error("it was not captured: input/output error");
    backup(&tree, &repo, &["--frame-size", "256K"]);
    verified(&repo, "latest");
    assert_same(&shape(&tree), &restored(&repo, "latest"), "readable again");
}
