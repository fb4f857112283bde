//! That a run says what it did, of what, and what is not as it was: to people and to programs.

use crate::runs;
use crate::runs::{fullbore, noise, segments, shell, temp, write};
use std::{
    fs,
    path::{Path, PathBuf},
};

fn tree(dir: &tempfile::TempDir, name: &str) -> PathBuf {
    let tree = dir.path().join(name);
    write(tree.join("f"), name);
    write(tree.join(format!("only-{name}")), "x");
    tree
}

#[test]
fn a_tree_is_not_overwritten_by_the_last_backup_of_another() {
    let dir = temp();
    let (etc, srv, repo) = (
        tree(&dir, "etc"),
        tree(&dir, "srv"),
        dir.path().join("repo"),
    );
    fullbore(args!["backup", etc, "--to", repo]).ends_with(0);
    // As long as there is one source it is clear which is meant.
    fullbore(args!["restore", repo, "--to", etc, "--delta", "--delete"]).ends_with(0);
    fullbore(args!["verify", repo, "--against", etc]).ends_with(0);
    fullbore(args!["backup", srv, "--to", repo]).ends_with(0);
    let words = "has backups of 2 sources";
    fullbore(args!["restore", repo, "--to", etc, "--delta", "--delete"])
        .ends_with(2)
        .has_one_error(words);
    fullbore(args!["restore", repo, "--to", etc, "--overwrite=all"])
        .ends_with(2)
        .has_one_error(words);
    fullbore(args!["verify", repo, "--against", etc])
        .ends_with(2)
        .has_one_error(words);
    assert!(etc.join("only-etc").exists() && !etc.join("only-srv").exists());
    let latest = format!("{}@latest", repo.display());
    fullbore(args!["verify", latest, "--path", srv, "--against", srv]).ends_with(0);
    let ran = fullbore(args![
        "restore",
        repo,
        "--path",
        srv,
        "--to",
        dir.path().join("to")
    ])
    .ends_with(0);
    assert!(
        ran.err
            .contains(&format!(":{} is restored in", srv.display())),
        "{}",
        ran.err
    );
    let ran = fullbore(args![
        "restore", latest, "--path", srv, "--to", srv, "--delta", "--json"
    ])
    .ends_with(0);
    let result = ran.json().pop().unwrap();
    assert!(
        result["source_text"].as_str().unwrap().ends_with("/srv") && result["time"].is_string(),
        "{result}"
    );
}

#[test]
fn a_restore_says_which_parts_of_a_backup_are_restored() {
    let dir = temp();
    let (srv, repo, tar) = (
        tree(&dir, "srv"),
        dir.path().join("repo"),
        dir.path().join("x.tar.zst"),
    );
    write(srv.join("d/g"), "g");
    fullbore(args!["backup", srv, "--to", repo]).ends_with(0);
    fullbore(args!["backup", srv, "--to", tar, "--compress", "none"]).ends_with(0);
    shell(
        "tar -C \"$1\" --sort=name -cf \"$2\" f d",
        args![srv, dir.path().join("other.tar")],
    )
    .ends_with(0);
    let whole = |source: &str| {
        if source == "other.tar" {
            "the archive is restored"
        } else {
            "backup "
        }
    };
    for source in ["repo", "x.tar.zst", "other.tar"] {
        for (paths, named) in [
            (&[][..], String::new()),
            (&["f"], "\"f\" of ".to_owned()),
            (&["d"], "\"d\" of ".to_owned()),
            (&["f", "d/g"], "\"f\", \"d/g\" of ".to_owned()),
        ] {
            for more in [
                &["--overwrite=all"][..],
                &["--delta"],
                &["--overwrite=all", "--json"],
            ] {
                if source == "other.tar" && more[0] == "--delta" {
                    continue;
                }
                let all = args![
                    "restore",
                    dir.path().join(source),
                    "--to",
                    dir.path().join("to")
                ];
                let ran = fullbore(
                    all.into_iter()
                        .chain(runs::args(paths))
                        .chain(runs::args(more)),
                )
                .ends_with(0);
                if more.len() > 1 {
                    let result = ran.json().pop().unwrap();
                    assert_eq!(
                        (&result["paths"], &result["databases"]),
                        (&paths.into(), &serde_json::json!([])),
                        "{source}"
                    );
                    continue;
                }
                let last = ran.err.lines().last().unwrap();
                let begin = if paths.is_empty() {
                    whole(source).to_owned()
                } else {
                    named.clone()
                };
                let is = match paths.len() {
                    // Of a tar without a root nothing is compared.
                    1 if source != "other.tar" => " is restored as \"",
                    0 | 1 => " is restored in \"",
                    _ => " are restored in \"",
                };
                assert!(
                    last.starts_with(&begin) && last.contains(is),
                    "{source} {paths:?}: {last}"
                );
            }
        }
    }
    // What is damaged is no part of what is restored.
    let segment = segments(&repo).remove(0);
    let mut bytes = fs::read(&segment).unwrap();
    let end = bytes.len().min(4000);
    bytes[200..end].fill(0);
    fs::write(&segment, bytes).unwrap();
    let ran = fullbore(args![
        "restore",
        repo,
        "d",
        "--to",
        dir.path().join("damaged"),
        "--keep-going"
    ])
    .ends_with(4);
    assert!(
        ran.err.contains("what is whole of \"d\" of backup "),
        "{}",
        ran.err
    );
}

#[test]
fn a_backup_that_cannot_be_compared_with_the_one_before_says_why() {
    let dir = temp();
    let (srv, other, repo) = (
        tree(&dir, "srv"),
        tree(&dir, "other"),
        dir.path().join("repo"),
    );
    let backup = |tree: &Path, more: &[&str]| {
        let line = args!["backup", tree, "--to", repo]
            .into_iter()
            .chain(more.iter().map(Into::into));
        fullbore(line)
            .ends_with(0)
            .err
            .contains("note: everything is stored anew")
    };
    assert!(
        !backup(&srv, &[])
            && !backup(&srv, &[])
            && !backup(&srv, &["--full"])
            && !backup(&other, &[])
    );
    assert!(backup(&srv, &["--compress", "lz4"]));
    let ran = fullbore(args![
        "backup", srv, "--to", repo, "--digest", "none", "--json"
    ])
    .ends_with(0);
    let unlike = ran.json().pop().unwrap()["unlike"].clone();
    let lz4 = fullbore(args!["list", repo, "--json"]).json().remove(4);
    assert_eq!(unlike["id"], lz4["id"]);
    assert_eq!(unlike["why"], "it is compressed by another codec");
}

#[test]
fn a_backup_says_that_those_before_it_are_damaged_and_is_whole_itself() {
    for damaged in ["s01-000001.tar.zst", "manifest", "root.json", "nothing"] {
        for quiet in [false, true] {
            let dir = temp();
            let (srv, repo, target) = (
                tree(&dir, "srv"),
                dir.path().join("repo"),
                dir.path().join("to"),
            );
            fullbore(args!["backup", srv, "--to", repo]).ends_with(0);
            let ran = fullbore(args!["backup", srv, "--to", repo, "--full", "--json"]).ends_with(0);
            let home = repo
                .join("backups")
                .join(ran.json().pop().unwrap()["id"].as_str().unwrap());
            match damaged {
                "root.json" => fs::write(home.join(damaged), "{}").unwrap(),
                "nothing" => {}
                _ => fs::remove_file(home.join(damaged)).unwrap(),
            }
            let ran = fullbore(args![
                "backup",
                srv,
                "--to",
                repo,
                if quiet { "--quiet" } else { "--json" }
            ]);
            let lines: Vec<&str> = ran
                .err
                .lines()
                .filter(|line| line.contains("WARNING: earlier backups"))
                .collect();
            if damaged == "nothing" {
                assert!(lines.is_empty() && ran.code == 0, "{}", ran.err);
                continue;
            }
            assert!(
                matches!(lines[..], [line] if line.contains(damaged)),
                "{damaged}: {}",
                ran.err
            );
            if !quiet {
                let result = ran.json().pop().unwrap();
                assert!(
                    result["base_damage"][0].as_str().unwrap().contains(damaged),
                    "{damaged}: {result}"
                );
                let selected = format!("{}@{}", repo.display(), result["id"].as_str().unwrap());
                fullbore(args!["verify", selected, "--data"]).ends_with(0);
                fullbore(args!["restore", selected, "--to", target]).ends_with(0);
            }
            assert_eq!(ran.code, 0);
        }
    }
}

#[test]
fn a_new_repository_is_said_to_be_one() {
    let dir = temp();
    let (srv, repo) = (tree(&dir, "srv"), dir.path().join("repo"));
    let ran = fullbore(args!["backup", srv, "--to", repo]).ends_with(0);
    assert!(ran.err.contains(", a new repository"), "{}", ran.err);
    let ran = fullbore(args!["backup", srv, "--to", repo]).ends_with(0);
    assert!(!ran.err.contains("new repository"), "{}", ran.err);
    let ran = fullbore(args!["backup", srv, "--to", repo, "--json"]).ends_with(0);
    assert_eq!(ran.json().pop().unwrap()["new_repository"], false);
    // One that has lost what says of it that it is one is not new.
    fs::remove_file(repo.join("fullbore-repo.json")).unwrap();
    let ran = fullbore(args!["backup", srv, "--to", repo]).ends_with(1);
    assert!(ran.err.contains("fullbore repair"), "{}", ran.err);
}

#[test]
fn what_is_missing_has_a_name_without_words_too() {
    let dir = temp();
    let (srv, repo, list) = (
        tree(&dir, "srv"),
        dir.path().join("repo"),
        dir.path().join("list"),
    );
    fs::write(&list, "f\nnowhere\n").unwrap();
    fullbore(args!["init", repo]).ends_with(0);
    let run = |how: &str| {
        fullbore(args![
            "backup",
            srv,
            "--to",
            repo,
            "--files-from",
            list,
            how
        ])
        .ends_with(3)
    };
    assert_eq!(
        run("--quiet").err,
        "not captured: \"nowhere\": no file or directory has this name\n"
    );
    let ran = run("--json");
    let result = ran.json().pop().unwrap();
    assert_eq!(result["not_captured"][0]["path"], "nowhere");
    assert!(
        result["not_captured"][0]["reason"]
            .as_str()
            .unwrap()
            .contains("has this name")
    );
    assert!(result["postgres"].is_null());
}

#[test]
fn a_backup_of_a_part_says_so() {
    let dir = temp();
    let (srv, repo) = (tree(&dir, "srv"), dir.path().join("repo"));
    fullbore(args!["backup", srv, "--to", repo]).ends_with(0);
    fullbore(args![
        "backup",
        srv,
        "--to",
        repo,
        "--exclude",
        "only-*",
        "--one-file-system"
    ])
    .ends_with(0);
    // Only a list of names makes a part of a backup: others leave out what nobody wants.
    let listed = fullbore(args!["list", repo]).ends_with(0).out;
    assert!(!listed.contains("in part"), "{listed}");
    let all = fullbore(args!["list", repo, "--long"]).ends_with(0).out;
    assert!(all.contains("--exclude only-*\n"), "{all}");
    let shown = fullbore(args!["show", repo]).ends_with(0).out;
    assert!(
        shown.contains("--exclude only-*\n") && shown.contains("--one-file-system\n"),
        "{shown}"
    );
    let json = fullbore(args!["list", repo, "--json"]).ends_with(0).json();
    assert_eq!(json[1]["left_out"][0], "--exclude only-*");
}

#[test]
fn all_that_damage_costs_is_listed() {
    let dir = temp();
    let (srv, repo) = (dir.path().join("srv"), dir.path().join("repo"));
    (0..20).for_each(|i| write(srv.join(format!("f{i:02}")), noise(i, 3000)));
    fs::hard_link(srv.join("f19"), srv.join("z")).unwrap();
    fullbore(args!["backup", srv, "--to", repo]).ends_with(0);
    let segment = segments(&repo).remove(0);
    let mut stored = fs::read(&segment).unwrap();
    // The noise is stored as it is.
    for name in ["f07", "f19"] {
        let content = fs::read(srv.join(name)).unwrap();
        let index = stored
            .windows(64)
            .position(|window| window == &content[1000..1064])
            .unwrap();
        stored[index] ^= 1;
    }
    fs::write(&segment, stored).unwrap();
    let target = dir.path().join("to");
    let ran = fullbore(args![
        "restore",
        repo,
        "--to",
        target,
        "--keep-going",
        "--quiet"
    ])
    .ends_with(4);
    let names = (0..20).map(|i| format!("f{i:02}")).chain(["z".to_owned()]);
    let lost: Vec<_> = names.filter(|name| !target.join(name).exists()).collect();
    assert_eq!(lost, ["f07", "f19", "z"]);
    for name in lost {
        assert!(
            ran.err
                .lines()
                .any(|line| line == format!("lost: {name:?}")),
            "{}",
            ran.err
        );
    }
    let target = dir.path().join("most.tar.zst");
    let ran = fullbore(args![
        "export",
        repo,
        "--to",
        target,
        "--keep-going",
        "--quiet"
    ])
    .ends_with(4);
    assert!(ran.err.contains("lost: \"f19\"\n"), "{}", ran.err);
}

#[test]
fn who_verifies_and_wants_no_words_hears_of_damage_only() {
    let dir = temp();
    let (srv, repo) = (dir.path().join("srv"), dir.path().join("repo"));
    write(srv.join("f"), noise(1, 3000));
    fullbore(args!["backup", srv, "--to", repo]).ends_with(0);
    let verified = |code| {
        let how = [args!["--data"].to_vec(), args!["--sample", "100%"].to_vec()];
        let ran = how.map(|how| {
            fullbore(args!["verify", repo, "--quiet"].into_iter().chain(how)).ends_with(code)
        });
        ran.map(|ran| (ran.out, ran.err))
    };
    assert_eq!(verified(0), [0, 1].map(|_| Default::default()));
    let segment = segments(&repo).remove(0);
    let mut stored = fs::read(&segment).unwrap();
    stored[1500] ^= 1;
    fs::write(&segment, stored).unwrap();
    for (out, err) in verified(4) {
        assert!(out.contains("\"f\"") && err.is_empty(), "{out}{err}");
    }
}
