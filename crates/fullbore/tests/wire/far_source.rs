//! Backups of trees that run on the host of the source, on that of the destination, or between both.

use super::{
    listening::expect,
    over_ssh::{files, restored, scratch, segments, text, tree},
    sshd::sshd,
    suite::pattern,
};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileExt, PermissionsExt, symlink},
    path::Path,
    process::Command,
};

/// A tree with entries of many kinds.
fn varied_tree(path: &Path) {
    tree(path);
    symlink("large", path.join("link")).unwrap();
    fs::hard_link(path.join("sub/7"), path.join("sub/another-7")).unwrap();
    fs::create_dir_all(path.join("deep/er/dir")).unwrap();
    fs::write(path.join("deep/er/file"), "x").unwrap();
    fs::set_permissions(path.join("deep/er"), fs::Permissions::from_mode(0o711)).unwrap();
    let sparse = fs::File::create(path.join("sparse")).unwrap();
    sparse
        .write_all_at(&pattern(300_000, 4), 5_000_000)
        .unwrap();
    sparse.set_len(20_000_000).unwrap();
    for number in 0..600 {
        let file = path.join(format!("deep/{number}"));
        fs::write(file, pattern(number * 31, number as u64)).unwrap();
    }
}

fn run(code: i32, arguments: &[&str]) -> String {
    expect(code, &mut sshd().fullbore(arguments))
}

/// The columns of all entries of a backup, without what differs between two backups.
fn entries(repository: &str) -> Vec<String> {
    let output = sshd()
        .fullbore(&["list", &format!("{repository}@latest"), "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines
        .lines()
        .filter(|line| line.contains("\"path\""))
        .map(str::to_owned)
        .collect()
}

/// Segments and listings of backups, by their names.
type Made = BTreeMap<String, (Vec<(String, Vec<u8>)>, Vec<String>)>;

fn host_and_source(repository: &str) -> Vec<String> {
    let output = sshd().fullbore(&["list", repository, "--json"]).output();
    let lines = String::from_utf8(output.unwrap().stdout).unwrap();
    let parsed = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    parsed
        .map(|line| format!("{} {}", line["host"], line["source"]))
        .collect()
}

#[test]
fn any_host_that_does_the_work_makes_the_same_backup() {
    let dir = scratch();
    let source = dir.path().join("source");
    varied_tree(&source);
    let near = source.to_str().unwrap().to_owned();
    let far = format!("ssh://far{near}");
    let everywhere = |number: &str| -> Made {
        let mut made = BTreeMap::new();
        for (from_name, origin) in [("near", &near), ("far", &far)] {
            for (place, scheme) in [("near", ""), ("far", "ssh://far")] {
                for host in ["source", "dest"] {
                    let name = format!("{number}-{from_name}-{place}-{host}");
                    let path = dir.path().join(&name);
                    let repository = path.to_str().unwrap();
                    let target = format!("{scheme}{repository}");
                    let backup = ["backup", origin, "--to", &target, "--run-on", host];
                    // A host that is asked has the name that it was asked by.
                    let host = ["--host", "far"];
                    let host = if from_name == "near" { &host[..] } else { &[] };
                    run(0, &[&backup[..], &["--exclude", "sub/3"], host].concat());
                    let listed = [entries(repository), host_and_source(repository)].concat();
                    made.insert(name, (segments(&path), listed));
                }
            }
        }
        made
    };
    let all_are_the_same = |made: Made| {
        let (first, (stored, listed)) = made.first_key_value().unwrap();
        assert!(!stored.is_empty() && listed.len() > 600, "{first}");
        for (name, (others, lines)) in &made {
            assert!(others == stored, "{name} is not {first}");
            assert_eq!(lines, listed, "{name} is not {first}");
        }
    };
    all_are_the_same(everywhere("first"));
    // Changed: a small file, a part of a large one, one that is gone, metadata, a new name.
    fs::write(source.join("sub/9"), "changed").unwrap();
    let large = fs::File::options().write(true).open(source.join("large"));
    let new = pattern(100_000, 77);
    large.unwrap().write_all_at(&new, 4_000_000).unwrap();
    fs::remove_file(source.join("deep/17")).unwrap();
    fs::set_permissions(source.join("deep/18"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(source.join("deep/19"), source.join("deep/new")).unwrap();
    // Each goes on from the same backup: its ID is in the pages.
    let base = dir.path().join("first-near-near-source");
    for origin in ["near", "far"] {
        for place in ["near", "far"] {
            for host in ["source", "dest"] {
                let copy = dir.path().join(format!("second-{origin}-{place}-{host}"));
                let copied = Command::new("cp").arg("-a").args([&base, &copy]).status();
                assert!(copied.unwrap().success());
            }
        }
    }
    all_are_the_same(everywhere("second"));
    for name in [
        "second-far-near-dest",
        "second-far-far-dest",
        "second-near-far-dest",
    ] {
        let repository = dir.path().join(name);
        let repository = repository.to_str().unwrap();
        run(0, &["verify", repository, "--data"]);
        let target = dir.path().join(format!("restored-{name}"));
        run(
            0,
            &["restore", repository, "--to", target.to_str().unwrap()],
        );
        let mut expected = files(&source);
        expected.remove("sub/3");
        assert!(restored(&target, &source) == expected, "{name}");
    }
}

#[test]
fn the_host_of_the_destination_reports_what_could_not_be_read() {
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source);
    let far = format!("ssh://far{}", source.display());
    let target = dir.path().join("r");
    let target = target.to_str().unwrap();
    let said = run(
        0,
        &[
            "backup",
            &far,
            "--to",
            target,
            "--run-on",
            "dest",
            "--exclude",
            "sub/no-such-name",
        ],
    );
    assert!(said.contains("sub/no-such-name"), "{said}");
    let report = dir.path().join("report.html");
    let report = report.to_str().unwrap();
    run(
        0,
        &[
            "backup", &far, "--to", target, "--run-on", "dest", "--report", report,
        ],
    );
    assert!(fs::read_to_string(report).unwrap().contains("<svg"));
    run(
        0,
        &[
            "backup",
            &far,
            "--to",
            target,
            "--run-on",
            "dest",
            "--dry-run",
        ],
    );
    let none = format!("ssh://far{}/none", source.display());
    let said = run(1, &["backup", &none, "--to", target, "--run-on", "dest"]);
    assert!(said.contains("none"), "{said}");
}

#[test]
fn the_report_of_a_command_on_another_host_is_written_here() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name).display().to_string();
    tree(&dir.path().join("source"));
    let [source, pulled, pushed, back] = ["source", "pulled", "pushed", "back"].map(path);
    let far = |path: &str| format!("ssh://far{path}");
    let report = |name: &str, arguments: &[&str]| {
        let file = path(name);
        run(0, &[arguments, &["--report", &file]].concat());
        fs::read_to_string(&file).unwrap()
    };
    let backup = report("1.html", &["backup", &far(&source), "--to", &pulled]);
    let (there, of_dest) = (far(&pushed), ["--run-on", "dest"]);
    let at_destination = ["backup", &source, "--to", &there];
    let at_destination = report("2.html", &[&at_destination[..], &of_dest].concat());
    let restore = report("3.html", &["restore", &pulled, "--to", &far(&back)]);
    for page in [&backup, &at_destination, &restore] {
        assert!(page.starts_with("<!doctype html>"), "{page}");
        assert!(
            page.contains("<svg") && page.ends_with("</html>\n"),
            "{page}"
        );
    }
    assert!(backup.contains("<title>backup"), "{backup}");
    assert!(restore.contains("<title>restore"), "{restore}");
    // No other file is replaced, and a run that fails leaves none.
    fs::write(path("other"), "mine").unwrap();
    let source = far(&source);
    run(
        2,
        &[
            "backup",
            &source,
            "--to",
            &pulled,
            "--report",
            &path("other"),
        ],
    );
    assert_eq!(fs::read_to_string(path("other")).unwrap(), "mine");
    let none = source + "/none";
    run(
        1,
        &[
            "backup",
            &none,
            "--to",
            &pulled,
            "--report",
            &path("4.html"),
        ],
    );
    assert!(!dir.path().join("4.html").exists());
}

#[test]
fn a_host_that_may_only_append_shows_none_of_its_files_and_clusters_are_read_where_they_are() {
    let dir = scratch();
    let target = dir.path().join("r");
    let target = target.to_str().unwrap();
    let limited = format!("ssh://limited{}", dir.path().display());
    let said = run(1, &["backup", &limited, "--to", target, "--run-on", "dest"]);
    assert!(said.contains("does not offer its files"), "{said}");
    let cluster = [
        "backup",
        "--on",
        "ssh://far",
        "postgres:///",
        "--to",
        target,
    ];
    let said = run(2, &[&cluster[..], &["--run-on", "dest"]].concat());
    assert!(said.contains("--run-on"), "{said}");
    let mut alone = Command::new(super::sshd::FULLBORE);
    alone.args(["backup", "x", "--on", "peer:", "--to", target]);
    expect(1, alone.stdin(std::process::Stdio::null()));
}

#[test]
fn files_of_another_host_go_to_volumes_of_this_one() {
    let dir = scratch();
    let source = dir.path().join("source");
    varied_tree(&source);
    let media = dir.path().join("media");
    fs::create_dir(&media).unwrap();
    let far = format!("ssh://far{}", source.display());
    let to = format!("volumes:{}/v", media.display());
    let catalog = dir.path().join("catalog").display().to_string();
    let backup = |level: &str| {
        let words = ["backup", &far, "--to", &to, "--volume-size", "1M"];
        let more = [
            "--frame-size",
            "64K",
            "--catalog",
            &catalog,
            "--level",
            level,
        ];
        run(0, &[&words[..], &more].concat());
    };
    backup("0");
    assert!(fs::read_dir(&media).unwrap().count() > 3);
    fs::write(source.join("sub/9"), "changed").unwrap();
    fs::remove_file(source.join("deep/17")).unwrap();
    backup("1");
    let back = dir.path().join("back");
    run(0, &["restore", &to, "--to", back.to_str().unwrap()]);
    assert_eq!(files(&back), files(&source));
    // A cluster is not read that way.
    let said = run(
        2,
        &[
            "backup",
            &far,
            "--offline",
            "--to",
            &to,
            "--volume-size",
            "1M",
        ],
    );
    assert!(said.contains("cluster of another host"), "{said}");
}
