//! What changed between backups, and which of them hold what.

use crate::runs::{self, Ran, fullbore, noise, set_mode, set_mtime, temp, text};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

struct Repo {
    dir: tempfile::TempDir,
    ids: Vec<String>,
}

impl Repo {
    fn new() -> Self {
        Self {
            dir: temp(),
            ids: Vec::new(),
        }
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn repository(&self) -> PathBuf {
        self.dir.path().join("repo")
    }

    fn backup(&mut self, options: &[&str]) {
        let all = args!["backup", self.tree(), "--to", self.repository(), "--json"];
        let ran = fullbore(all.into_iter().chain(options.iter().map(Into::into))).ends_with(0);
        self.ids.push(
            ran.json().last().unwrap()["id"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }

    fn diff(&self, a: usize, b: usize, paths: &[&str]) -> Vec<Value> {
        let all = args![
            "diff",
            self.repository(),
            self.ids[a],
            self.ids[b],
            "--json"
        ];
        fullbore(all.into_iter().chain(paths.iter().map(Into::into)))
            .ends_with(0)
            .json()
    }

    fn find(&self, pattern: &str) -> Ran {
        fullbore(args!["find", self.repository(), pattern, "--json"])
    }
}

fn write(tree: &Path, path: &str, bytes: Vec<u8>) {
    runs::write(tree.join(path), bytes);
}

/// A tree, and all that may happen to its entries.
fn changed(options: &[&str]) -> Repo {
    let mut repo = Repo::new();
    let tree = repo.tree();
    for i in 0..300 {
        write(&tree, &format!("same/{i:03}"), text(i, 500));
    }
    write(&tree, "large", noise(1, 1_000_000));
    write(&tree, "grows", noise(2, 200_000));
    write(&tree, "shrinks", noise(3, 200_000));
    write(&tree, "small", b"abc".to_vec());
    write(&tree, "gone", noise(4, 1234));
    write(&tree, "touched", b"x".to_vec());
    write(&tree, "mode", b"x".to_vec());
    write(&tree, "becomes", b"a file".to_vec());
    std::os::unix::fs::symlink("here", tree.join("link")).unwrap();
    repo.backup(options);
    let mut large = noise(1, 1_000_000);
    (large[100_000], large[900_000]) = (!large[100_000], !large[900_000]);
    write(&tree, "large", large);
    write(
        &tree,
        "grows",
        [noise(2, 200_000), noise(5, 100_000)].concat(),
    );
    write(&tree, "shrinks", noise(3, 131_072));
    write(&tree, "small", b"abcd".to_vec());
    write(&tree, "added/new", noise(6, 5000));
    fs::remove_file(tree.join("gone")).unwrap();
    fs::remove_file(tree.join("becomes")).unwrap();
    fs::create_dir(tree.join("becomes")).unwrap();
    fs::remove_file(tree.join("link")).unwrap();
    std::os::unix::fs::symlink("there", tree.join("link")).unwrap();
    set_mtime(&tree.join("link"), 1_000_000_000, 0);
    set_mtime(&tree.join("touched"), 1_000_000_000, 0);
    set_mode(&tree.join("mode"), 0o600);
    set_mode(&tree.join("becomes"), 0o644);
    repo.backup(options);
    repo
}

/// Change, bytes, size before and after, and what, by path.
fn by_path(lines: &[Value]) -> BTreeMap<String, String> {
    let entries = lines.iter().filter(|line| line["type"] == "change");
    let words = |line: &Value| {
        let changes: Vec<_> = line["properties"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|word| word.as_str().unwrap())
            .collect();
        let sizes = (line["size_before"].as_u64(), line["size_after"].as_u64());
        format!(
            "{} {} {sizes:?} {}",
            line["change"].as_str().unwrap(),
            line["differing_bytes"],
            changes.join(" ")
        )
    };
    entries
        .map(|line| (line["path"].as_str().unwrap().to_owned(), words(line)))
        .collect()
}

const EXPECTED: [(&str, &str); 11] = [
    ("added", "added 0 (None, Some(0)) "),
    ("added/new", "added 5000 (None, Some(5000)) "),
    ("becomes", "changed 0 (Some(6), Some(0)) kind mtime?"),
    ("gone", "removed 1234 (Some(1234), None) "),
    (
        "grows",
        "changed 103392 (Some(200000), Some(300000)) content mtime",
    ),
    (
        "large",
        "changed 131072 (Some(1000000), Some(1000000)) content mtime",
    ),
    ("link", "changed 0 (Some(0), Some(0)) target mtime"),
    ("mode", "changed 0 (Some(1), Some(1)) mode"),
    (
        "shrinks",
        "changed 0 (Some(200000), Some(131072)) content mtime",
    ),
    ("small", "changed 4 (Some(3), Some(4)) content mtime"),
    ("touched", "changed 0 (Some(1), Some(1)) mtime"),
];

#[test]
fn a_diff_names_a_renamed_directory_once() {
    let mut repo = Repo::new();
    let tree = repo.tree();
    for i in 0..30 {
        write(
            &tree,
            &format!("Documents/{}/letter {i:02}", i % 3),
            text(i, 500),
        );
        write(&tree, &format!("moved/{i:02}"), text(100 + i, 500));
    }
    fs::hard_link(
        tree.join("Documents/0/letter 00"),
        tree.join("Documents/linked"),
    )
    .unwrap();
    write(&tree, "below/kept", Vec::new());
    repo.backup(&[]);
    for (before, after) in [("Documents", "below/Papers"), ("moved", "also moved")] {
        fs::rename(tree.join(before), tree.join(after)).unwrap();
    }
    // One file of it is another one.
    write(&tree, "also moved/07", b"another".to_vec());
    repo.backup(&[]);
    let lines = repo.diff(0, 1, &[]);
    let renamed: Vec<&Value> = { lines.iter() }
        .filter(|line| line["change"] == "renamed")
        .collect();
    let [line] = renamed[..] else {
        panic!("{renamed:?}");
    };
    assert_eq!(
        (&line["path_before"], &line["path"]),
        (&"Documents".into(), &"below/Papers".into())
    );
    let is_of_it = |line: &&Value| {
        let path = line["path"].as_str().unwrap_or_default();
        path.starts_with("Documents") || path.starts_with("below/Papers")
    };
    assert_eq!(lines.iter().filter(is_of_it).count(), 1, "{lines:?}");
    let sums = lines.last().unwrap();
    assert_eq!(sums["renamed"], 30, "{sums}");
    // `moved` and its 30 files.
    assert_eq!((&sums["removed"], &sums["added"]), (&31.into(), &31.into()));
    let plain = fullbore(args!["diff", repo.repository(), repo.ids[0], "latest"])
        .ends_with(0)
        .out;
    assert!(plain.contains("  Documents/ -> below/Papers/\n"), "{plain}");
    assert!(
        plain.contains("30 (15.0 kB) in renamed directories, "),
        "{plain}"
    );
    // What is asked for alone is not compared with what is not.
    let part = repo.diff(0, 1, &["Documents"]);
    assert!(
        part.iter().all(|line| line["change"] != "renamed"),
        "{part:?}"
    );
    let back = repo.diff(1, 0, &[]);
    assert!(
        back.iter()
            .any(|line| line["path_before"] == "below/Papers"),
        "{back:?}"
    );
}

#[test]
fn a_diff_names_each_change_and_its_bytes() {
    let mut repo = changed(&["--frame-size", "64K"]);
    let check = |repo: &Repo| {
        let lines = repo.diff(0, 1, &[]);
        let found = by_path(&lines);
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            EXPECTED.map(|(path, _)| path).iter().collect::<Vec<_>>()
        );
        for (path, expected) in EXPECTED {
            // A directory's time is not looked at, and so not that of what became one.
            assert_eq!(
                found[path].trim_end_matches(" mtime"),
                expected.trim_end_matches("?").trim_end_matches(" mtime"),
                "{path}"
            );
        }
        let total = lines.last().unwrap();
        assert_eq!(
            (&total["added"], &total["added_bytes"]),
            (&2.into(), &5000.into())
        );
        assert_eq!(
            (&total["removed"], &total["changed"]),
            (&1.into(), &8.into())
        );
        assert_eq!(
            total["growth_bytes"],
            5000 - 1234 - 6 + 100_000 - 68_928 + 1
        );
        lines
    };
    let thin = check(&repo);
    repo.backup(&["--frame-size", "64K", "--full"]);
    let full = repo.diff(0, 2, &[]);
    assert_eq!(
        thin[..11],
        full[..11],
        "a diff of a backup that refers to the other is another"
    );
    assert_eq!(repo.diff(0, 0, &[]).len(), 1);
    let only: Vec<_> = by_path(&repo.diff(0, 1, &["added", "small"]))
        .into_keys()
        .collect();
    assert_eq!(only, ["added", "added/new", "small"]);
    let back = by_path(&repo.diff(1, 0, &[]));
    assert!(
        back["gone"].starts_with("added 1234") && back["added/new"].starts_with("removed 5000")
    );
    repo.backup(&["--digest", "none", "--frame-size", "64K"]);
    repo.backup(&["--digest", "none", "--frame-size", "64K"]);
    assert_eq!(repo.diff(3, 4, &[]).len(), 1);
    let plain = fullbore(args!["diff", repo.repository(), repo.ids[0], "latest"]).ends_with(0);
    assert!(
        plain.out.contains("+           5,000  added/new\n"),
        "{}",
        plain.out
    );
    assert!(
        plain
            .out
            .contains("  small  (3 to 4 bytes; content, mtime)\n"),
        "{}",
        plain.out
    );
    fullbore(args![
        "diff",
        repo.repository(),
        repo.ids[0],
        "latest",
        "nowhere"
    ])
    .ends_with(1)
    .has_one_error("could not find");
}

#[test]
fn pages_that_both_backups_share_are_not_read() {
    let mut repo = Repo::new();
    for i in 0..10_000 {
        write(
            &repo.tree(),
            &format!("d{:02}/{i:05}", i / 1000),
            Vec::new(),
        );
    }
    repo.backup(&[]);
    write(&repo.tree(), "d09/09999", b"changed".to_vec());
    repo.backup(&[]);
    assert_eq!(
        by_path(&repo.diff(0, 1, &[]))
            .into_keys()
            .collect::<Vec<_>>(),
        ["d09/09999"]
    );
    // Without the pages that both have it is still the same.
    let manifest = repo
        .repository()
        .join("backups")
        .join(&repo.ids[0])
        .join("manifest");
    let mut bytes = fs::read(&manifest).unwrap();
    bytes[..1000].fill(0);
    fs::write(&manifest, bytes).unwrap();
    let segment = runs::names(manifest.parent().unwrap())
        .into_iter()
        .find(|name| name.starts_with("s01"))
        .unwrap();
    fs::remove_file(manifest.with_file_name(segment)).unwrap();
    assert_eq!(repo.diff(0, 1, &[]).len(), 2);
}

#[test]
fn find_says_which_backups_hold_which_version() {
    let mut repo = Repo::new();
    let tree = repo.tree();
    write(&tree, "etc/a.conf", b"1".to_vec());
    write(&tree, "etc/deep/b.conf", b"b".to_vec());
    write(&tree, "large.conf", noise(1, 300_000));
    write(&tree, "other", b"x".to_vec());
    repo.backup(&["--frame-size", "64K"]);
    write(&tree, "etc/a.conf", b"22".to_vec());
    repo.backup(&["--frame-size", "64K"]);
    repo.backup(&["--frame-size", "64K"]);
    fs::remove_file(tree.join("etc/deep/b.conf")).unwrap();
    repo.backup(&[]);
    let rows_of = |pattern: &str| -> Vec<(String, u64, usize, usize, u64)> {
        let index_of = |id: &Value| {
            repo.ids
                .iter()
                .position(|known| known == id.as_str().unwrap())
                .unwrap()
        };
        let line = |line: Value| {
            let path = line["path"].as_str().unwrap().to_owned();
            (
                path,
                line["size"].as_u64().unwrap(),
                index_of(&line["first_id"]),
                index_of(&line["last_id"]),
                line["backups"].as_u64().unwrap(),
            )
        };
        repo.find(pattern)
            .ends_with(0)
            .json()
            .into_iter()
            .map(line)
            .collect()
    };
    let own =
        |path: &str, size, first, last, backups| (path.to_owned(), size, first, last, backups);
    let a = [own("etc/a.conf", 1, 0, 0, 1), own("etc/a.conf", 2, 1, 3, 3)];
    let (b, large) = (
        own("etc/deep/b.conf", 1, 0, 2, 3),
        own("large.conf", 300_000, 0, 3, 4),
    );
    assert_eq!(
        rows_of("*.conf"),
        [a[0].clone(), a[1].clone(), b.clone(), large.clone()]
    );
    assert_eq!(rows_of("etc/*.conf"), a);
    assert_eq!(rows_of("/etc/deep/b.conf"), [b]);
    assert_eq!(rows_of("large.conf"), [large]);
    assert_eq!(rows_of("etc/deep/").len(), 2, "its time differs");
    repo.find("nothing").ends_with(1);
    repo.find("#x").ends_with(2);
    let plain = fullbore(args!["find", repo.repository(), "a.conf"]).ends_with(0);
    assert!(
        plain.out.lines().count() == 2 && plain.out.contains(&repo.ids[3]),
        "{}",
        plain.out
    );
}

#[test]
fn a_file_that_went_away_and_came_back_is_found_once_for_each_run_of_backups() {
    let mut repo = Repo::new();
    let (there, away) = (repo.tree().join("f"), repo.dir.path().join("away"));
    runs::write(repo.tree().join("g"), "g");
    runs::write(&there, "f");
    repo.backup(&[]);
    repo.backup(&[]);
    fs::rename(&there, &away).unwrap();
    repo.backup(&[]);
    fs::rename(&away, &there).unwrap();
    repo.backup(&[]);
    let found = |name: &str| repo.find(name).ends_with(0).json();
    let ends =
        |line: &Value| ["first_id", "last_id"].map(|end| line[end].as_str().unwrap().to_owned());
    let [f, g] = ["f", "g"].map(found);
    let counts: Vec<_> = f
        .iter()
        .map(|line| line["backups"].as_u64().unwrap())
        .collect();
    assert_eq!(counts, [2, 1]);
    let [a, b, _, d] = &repo.ids[..] else {
        panic!("{:?}", repo.ids)
    };
    assert_eq!(
        f.iter().map(ends).collect::<Vec<_>>(),
        [[a.clone(), b.clone()], [d.clone(), d.clone()]]
    );
    assert_eq!(
        g.iter().map(ends).collect::<Vec<_>>(),
        [[a.clone(), d.clone()]]
    );
}

#[test]
fn list_and_show_tell_what_a_backup_refers_to() {
    let repo = changed(&["--frame-size", "64K"]);
    let list = fullbore(args!["list", repo.repository()]).ends_with(0).out;
    let lines: Vec<&str> = list.lines().collect();
    assert!(
        lines[0].contains("  ADDED  SOURCE") && lines.len() == 4,
        "{list}"
    );
    let json = fullbore(args!["list", repo.repository(), "--json"])
        .ends_with(0)
        .json();
    assert_eq!(json[1]["bases"], serde_json::json!([repo.ids[0]]));
    let show = fullbore(args!["show", repo.repository()]).ends_with(0).out;
    assert!(
        show.contains(&format!("\nbase          {}\n", repo.ids[0])),
        "{show}"
    );
    assert!(
        show.contains(&format!("\nrefers to     {}: ", repo.ids[0]))
            && show.contains("\namplification 1."),
        "{show}"
    );
}

#[test]
fn a_backup_that_has_no_room_is_not_begun_to_be_restored_wherever_its_bytes_are() {
    let dir = temp();
    let (tree, repository, place) = (
        dir.path().join("tree"),
        dir.path().join("repository"),
        dir.path().join("place"),
    );
    runs::write(tree.join("f"), runs::noise(1, 8_900_000));
    let Some(_mount) = runs::Mount::tmpfs(&place, "4m") else {
        return;
    };
    for _ in 0..2 {
        fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
        let target = place.join("restored");
        fullbore(args!["restore", repository, "--to", target])
            .ends_with(1)
            .has_one_error("9 MB are needed");
        assert!(!target.exists());
        runs::write(tree.join("little"), b"x");
    }
}

#[test]
fn what_became_of_a_file_is_told_of_each_of_its_names() {
    let mut repo = Repo::new();
    let tree = repo.tree();
    write(&tree, "a", b"1".to_vec());
    (0..100).for_each(|i| write(&tree, &format!("m/{i}"), noise(i, 30_000)));
    fs::create_dir(tree.join("n")).unwrap();
    fs::hard_link(tree.join("a"), tree.join("n/z")).unwrap();
    repo.backup(&["--frame-size", "64K"]);
    repo.backup(&["--frame-size", "64K"]);
    fs::write(tree.join("a"), "22").unwrap();
    repo.backup(&["--frame-size", "64K"]);
    let held = |name: &str| -> Vec<_> {
        let lines = repo.find(name).ends_with(0).json().into_iter();
        lines
            .map(|line| {
                (
                    line["size"].clone(),
                    line["digest"].clone(),
                    line["first_id"].clone(),
                    line["last_id"].clone(),
                )
            })
            .collect()
    };
    assert_eq!(held("/a").len(), 2);
    assert_eq!(held("/n/z"), held("/a"));
    let differences = repo.diff(1, 2, &["n/z"]);
    let changed: Vec<_> = differences
        .iter()
        .filter(|line| line["type"] == "change")
        .collect();
    assert!(
        changed
            .iter()
            .any(|line| line["path"] == "a" && line["properties"][0] == "content"),
        "{changed:?}"
    );
    assert!(
        repo.diff(0, 1, &["n/z"])
            .iter()
            .all(|line| line["type"] == "result")
    );
}
