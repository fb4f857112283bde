//! Where backups go, and which of them is meant: nothing is made or taken by mistake.

use crate::runs;
use crate::runs::{Ran, fullbore, is_root, names, or_skip, shell, temp, write};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

fn backup(tree: &Path, repository: &Path, more: &[&str]) -> Ran {
    let more = more.iter().map(OsString::from);
    fullbore(
        args!["backup", tree, "--to", repository]
            .into_iter()
            .chain(more),
    )
    .ends_with(0)
}

/// Trees `a` and `b`, with a file each, and a repository with two backups of `a` and then one of `b`.
fn two_sources(dir: &Path) -> (PathBuf, PathBuf, PathBuf) {
    let [a, b, repository] = ["a", "b's", "repository"].map(|name| dir.join(name));
    write(a.join("file"), "of a, first");
    write(b.join("file"), "of b");
    backup(&a, &repository, &[]);
    write(a.join("file"), "of a, second");
    backup(&a, &repository, &["--tag", "kind=weekly"]);
    backup(&b, &repository, &["--tag", "kind=daily"]);
    (a, b, repository)
}

/// The ids of the backups, oldest first.
fn ids(repository: &Path) -> Vec<String> {
    names(&repository.join("backups"))
}

#[test]
fn only_the_last_directory_of_a_repository_or_archive_is_made() {
    let dir = temp();
    let [tree, there, missing] = ["tree", "there", "missing"].map(|name| dir.path().join(name));
    write(tree.join("file"), "content");
    backup(&tree, &there, &[]);
    for target in ["repository", "archive.tar.zst", "archive.tar"].map(|name| missing.join(name)) {
        let is_archive = target.extension().is_some();
        let mut commands = vec![
            args!["backup", tree, "--to", target].to_vec(),
            args!["backup", tree, "--to", target, "--dry-run"].to_vec(),
            args!["export", there, "--to", target].to_vec(),
        ];
        if !is_archive {
            commands.push(args!["copy", there, target].to_vec());
            commands.push(args!["init", target].to_vec());
        }
        for command in commands {
            let ran = fullbore(command.clone()).ends_with(1);
            let words = format!("the directory {missing:?} does not exist");
            assert!(
                ran.has_one_error(&words)
                    .err
                    .contains("check that its disk is mounted"),
                "{command:?}"
            );
            assert!(!missing.exists(), "{command:?}");
        }
    }
    fs::create_dir(&missing).unwrap();
    let ran = shell(
        "cd \"$1\" && \"$2\" backup ../tree --to repository",
        args![missing, runs::FULLBORE],
    )
    .ends_with(0);
    assert!(
        ran.err.contains("\"repository\", a new repository"),
        "{}",
        ran.err
    );
}

#[test]
fn a_backup_with_no_create_needs_a_repository_that_is_there() {
    let dir = temp();
    let [tree, there, absent, empty] =
        ["tree", "there", "absent", "empty"].map(|name| dir.path().join(name));
    write(tree.join("file"), "content");
    fs::create_dir(&empty).unwrap();
    backup(&tree, &there, &[]);
    for target in [&absent, &empty] {
        let commands = [
            args!["backup", tree, "--no-create", "--to", target].to_vec(),
            args!["export", there, "--no-create", "--to", target].to_vec(),
            args!["copy", there, target, "--no-create"].to_vec(),
        ];
        for command in commands {
            let ran = fullbore(command).ends_with(1);
            let ran = ran.has_one_error(&format!("could not find a repository at {target:?}"));
            assert!(ran.err.contains("fullbore init"), "{}", ran.err);
        }
        fullbore(args![
            "backup",
            tree,
            "--no-create",
            "--dry-run",
            "--to",
            target
        ])
        .ends_with(1);
    }
    assert!(!absent.exists() && names(&empty).is_empty());
    // A repository that has lost its file says so.
    let file = there.join("fullbore-repo.json");
    fs::rename(&file, dir.path().join("kept")).unwrap();
    fullbore(args!["backup", tree, "--no-create", "--to", there])
        .ends_with(1)
        .has_one_error("is missing");
    fs::rename(dir.path().join("kept"), &file).unwrap();
    backup(&tree, &there, &["--no-create"]);
    let archive = dir.path().join("archive.tar.zst");
    fullbore(args!["backup", tree, "--no-create", "--to", archive])
        .ends_with(2)
        .has_one_error("repositories only");
    assert!(!archive.exists());
}

#[test]
fn a_new_repository_is_said_to_the_quiet_too() {
    let dir = temp();
    let tree = dir.path().join("tree");
    write(tree.join("file"), "content");
    let [first, exported, copied, made] = ["1", "2", "3", "4"].map(|name| dir.path().join(name));
    let runs = [
        (&first, args!["backup", tree, "--to", first, "-q"].to_vec()),
        (
            &exported,
            args!["export", first, "--to", exported, "-q"].to_vec(),
        ),
        (&copied, args!["copy", first, copied, "-q"].to_vec()),
        (&made, args!["init", made, "-q"].to_vec()),
    ];
    for (target, command) in runs {
        assert_eq!(
            fullbore(command.clone()).ends_with(0).err,
            format!("{target:?} is a new repository\n")
        );
        assert_eq!(fullbore(command).ends_with(0).err, "");
    }
}

#[test]
fn init_makes_an_empty_repository_once() {
    let dir = temp();
    let [tree, repository] = ["tree", "repository"].map(|name| dir.path().join(name));
    write(tree.join("file"), "content");
    let init = || fullbore(args!["init", repository]).ends_with(0).err;
    assert_eq!(init(), format!("{repository:?} is a new repository\n"));
    let file = repository.join("fullbore-repo.json");
    let facts = fs::read(&file).unwrap();
    // The first backup makes the directories.
    let alone = ["fullbore-repo.json"];
    assert_eq!(names(&repository), alone);
    assert!(
        fullbore(args!["list", repository])
            .ends_with(0)
            .err
            .contains("holds no backup")
    );
    assert!(init().contains("already"));
    assert_eq!(
        fullbore(args!["init", repository, "--json"])
            .ends_with(0)
            .json()[0]["new_repository"],
        false
    );
    assert_eq!(names(&repository), alone);
    backup(&tree, &repository, &["--no-create"]);
    let made = names(&repository);
    assert!(init().contains("already"));
    assert_eq!(
        (fs::read(&file).unwrap(), names(&repository)),
        (facts, made)
    );
    fullbore(args!["init", tree])
        .ends_with(2)
        .has_one_error("it is not empty");
    fullbore(args!["init", dir.path().join("x.tar.zst")])
        .ends_with(2)
        .has_one_error("is no name of a directory");
}

#[test]
fn a_repository_in_the_root_of_a_fresh_disk_gets_a_directory_of_its_own() {
    let dir = temp();
    let [tree, disk] = ["tree", "disk"].map(|name| dir.path().join(name));
    write(tree.join("file"), "content");
    fs::create_dir_all(disk.join("lost+found")).unwrap();
    for command in [
        args!["backup", tree, "--to", disk].to_vec(),
        args!["init", disk].to_vec(),
    ] {
        let ran = fullbore(command)
            .ends_with(2)
            .has_one_error("it is the root of a file system");
        assert!(
            ran.err
                .contains(&format!("such as {:?}", disk.join("fullbore"))),
            "{}",
            ran.err
        );
    }
    assert_eq!(names(&disk), ["lost+found"]);
    backup(&tree, &disk.join("fullbore"), &[]);
    // A repository that was made there otherwise is used.
    let moved = disk.join("fullbore");
    names(&moved)
        .iter()
        .for_each(|name| fs::rename(moved.join(name), disk.join(name)).unwrap());
    fs::remove_dir(&moved).unwrap();
    backup(&tree, &disk, &["--no-create"]);
}

/// The commands that an error lists, one for each source.
fn listed(ran: &Ran) -> Vec<&str> {
    let lines = ran
        .err
        .lines()
        .filter_map(|line| line.strip_prefix("           "));
    lines.filter(|line| !line.starts_with(' ')).collect()
}

#[test]
fn a_restore_of_several_sources_is_refused_and_each_listed_command_restores_one() {
    let dir = temp();
    let (a, b, repository) = two_sources(dir.path());
    let target = dir.path().join("to");
    for latest in ["", "@latest"] {
        let selected = format!("{}{latest}", repository.display());
        let ran = fullbore(args!["restore", selected, "--to", target]).ends_with(2);
        let ran = ran.has_one_error(&format!("{repository:?} has backups of 2 sources"));
        assert!(!target.exists());
        assert!(
            ran.err
                .contains(&format!(":{} (2 backups, the last of ", a.display())),
            "{}",
            ran.err
        );
        assert!(
            ran.err
                .contains(&format!(":{} (1 backup, of ", b.display())),
            "{}",
            ran.err
        );
        let commands = listed(&ran);
        assert_eq!(commands.len(), 2, "{}", ran.err);
        for (command, content) in commands.iter().zip(["of a, second", "of b"]) {
            shell(command, args![]).ends_with(0);
            assert_eq!(fs::read_to_string(target.join("file")).unwrap(), content);
            fs::remove_dir_all(&target).unwrap();
        }
    }
}

#[test]
fn every_command_that_takes_the_latest_backup_refuses_several_sources() {
    let dir = temp();
    let (a, _, repository) = two_sources(dir.path());
    let copy = dir.path().join("copy");
    let text = repository.to_str().unwrap();
    let lines = [
        args!["restore", repository, "--to", copy].to_vec(),
        args!["restore", repository, "--plan"].to_vec(),
        args!["restore", repository, "--to", a, "--delta"].to_vec(),
        args!["restore", repository, "--to", a, "--overwrite=all"].to_vec(),
        args!["list", repository, "file"].to_vec(),
        args!["list", format!("{text}@latest")].to_vec(),
        args!["show", repository].to_vec(),
        args!["verify", repository, "--against", a].to_vec(),
        args!["verify", format!("{text}@latest")].to_vec(),
        args!["export", repository, "--to", "-"].to_vec(),
        args!["diff", repository].to_vec(),
        args!["copy", repository, copy].to_vec(),
        args!["tag", repository, "x=y"].to_vec(),
        args!["pin", format!("{text}@latest")].to_vec(),
        args!["unpin", repository].to_vec(),
        args!["forget", "--yes", repository, "latest"].to_vec(),
    ];
    for line in lines {
        let ran = fullbore(line.clone())
            .ends_with(2)
            .has_one_error("has backups of 2 sources");
        assert_eq!(
            (ran.out.as_str(), listed(&ran).len()),
            ("", 2),
            "{line:?}: {}",
            ran.err
        );
        assert!(!copy.exists(), "{line:?}");
    }
    assert_eq!(
        fullbore(args!["list", repository])
            .ends_with(0)
            .out
            .lines()
            .filter(|line| line.starts_with("20"))
            .count(),
        3
    );
    assert_eq!(
        fullbore(args!["verify", repository, "--json"])
            .ends_with(0)
            .json()[0]["backups"],
        3
    );
}

#[test]
fn a_listed_command_without_options_names_the_last_backup_of_each_source() {
    let dir = temp();
    let (_, _, repository) = two_sources(dir.path());
    let ran = fullbore(args!["pin", repository]).ends_with(2);
    let ids = ids(&repository);
    assert_eq!(
        listed(&ran),
        [&ids[1], &ids[2]].map(|id| format!(
            "{} pin {}@{id}",
            runs::FULLBORE,
            repository.display()
        ))
    );
    let ran = fullbore(args!["forget", "--yes", repository, "latest"]).ends_with(2);
    assert_eq!(
        listed(&ran),
        [format!("@{}", ids[1]), format!("@{}", ids[2])]
    );
}

#[test]
fn host_path_and_tag_select_in_every_command() {
    let dir = temp();
    let (a, b, repository) = two_sources(dir.path());
    backup(&a, &repository, &["--host", "elsewhere"]);
    let ids = ids(&repository);
    let text = repository.to_str().unwrap();
    let path_a: &[OsString] = &args!["--path", a, "--host", fullbore_platform::host_name()];
    let cases: [(&[OsString], &[usize]); 6] = [
        (path_a, &[0, 1]),
        (&args!["--path", b], &[2]),
        (&args!["--host", "elsewhere"], &[3]),
        (&args!["--tag", "kind=weekly"], &[1]),
        (&args!["--tag", "kind", "--path", b], &[2]),
        (&args!["--path", a, "--host", "elsewhere"], &[3]),
    ];
    for (options, wanted) in cases {
        let run = |words: &[OsString]| {
            let words = words.iter().chain(options).cloned();
            fullbore(words).ends_with(0)
        };
        let wanted_ids: Vec<_> = wanted.iter().map(|index| ids[*index].clone()).collect();
        let last = wanted_ids.last().unwrap();
        let listed = run(&args!["list", repository, "--json"]).json();
        assert_eq!(
            listed
                .iter()
                .map(|line| line["id"].as_str().unwrap())
                .collect::<Vec<_>>(),
            wanted_ids,
            "{options:?}"
        );
        for source in [text.to_owned(), format!("{text}@latest")] {
            assert_eq!(
                run(&args!["show", source, "--json"]).json()[0]["id"],
                **last,
                "{options:?}"
            );
        }
        let target = dir.path().join("to");
        assert_eq!(
            run(&args!["restore", repository, "--to", target, "--json"])
                .json()
                .last()
                .unwrap()["id"],
            **last
        );
        fs::remove_dir_all(&target).unwrap();
        assert_eq!(
            run(&args!["list", repository, "file", "--json"]).json()[0]["path"],
            "file"
        );
        assert_eq!(
            run(&args!["verify", repository, "--json"]).json()[0]["backups"],
            wanted.len()
        );
        let of_latest = args!["verify", format!("{text}@latest"), "--json"];
        assert_eq!(run(&of_latest).json()[0]["id"], **last);
        let found = run(&args!["find", repository, "file", "--json"]).json();
        assert_eq!(found.last().unwrap()["last_id"], **last, "{options:?}");
        let archive = dir.path().join("x.tar.zst");
        let exported = run(&args!["export", repository, "--to", archive, "--json"]).json();
        assert_eq!(exported.last().unwrap()["from_id"], **last, "{options:?}");
        let copy = dir.path().join("copy");
        run(&args!["copy", repository, copy]);
        assert!(names(&copy.join("backups")).contains(last), "{options:?}");
        fs::remove_dir_all(&copy).unwrap();
    }
    let diff = fullbore(args![
        "diff",
        repository,
        "--path",
        a,
        "--host",
        fullbore_platform::host_name(),
        "--json"
    ]);
    let total = diff.ends_with(0).json().pop().unwrap();
    assert_eq!(
        (total["id_before"].as_str(), total["id_after"].as_str()),
        (Some(&*ids[0]), Some(&*ids[1]))
    );
}

#[test]
fn a_selection_of_nothing_lists_what_there_is() {
    let dir = temp();
    let (a, b, repository) = two_sources(dir.path());
    let text = repository.to_str().unwrap();
    let lines = [
        args!["restore", repository, "--to", dir.path().join("to")].to_vec(),
        args!["list", repository].to_vec(),
        args!["show", format!("{text}@latest")].to_vec(),
        args!["verify", repository].to_vec(),
        args!["find", repository, "file"].to_vec(),
        args!["export", repository, "--to", "-"].to_vec(),
        args!["diff", repository].to_vec(),
    ];
    for line in lines {
        for options in [
            &["--host", "nowhere"][..],
            &["--path", "/a typo"],
            &["--tag", "kind=yearly"],
        ] {
            let ran = fullbore(
                line.iter()
                    .cloned()
                    .chain(options.iter().map(OsString::from)),
            )
            .ends_with(1);
            let ran = ran.has_one_error("could not find a backup");
            for path in [&a, &b] {
                assert!(
                    ran.err.contains(&format!(":{} (", path.display())),
                    "{line:?}: {}",
                    ran.err
                );
            }
            assert_eq!(
                ran.err.contains("kind=weekly"),
                options[0] == "--tag",
                "{}",
                ran.err
            );
            assert_eq!(ran.out, "", "{line:?}");
        }
    }
}

#[test]
fn a_backup_that_is_named_has_to_be_one_of_the_selected() {
    let dir = temp();
    let (a, b, repository) = two_sources(dir.path());
    let id = &ids(&repository)[2];
    let selected = format!("{}@{id}", repository.display());
    fullbore(args!["show", selected, "--path", b]).ends_with(0);
    fullbore(args!["show", selected, "--path", a])
        .ends_with(2)
        .has_one_error("does not select it");
    let archive = dir.path().join("x.tar.zst");
    fullbore(args!["export", selected, "--to", archive]).ends_with(0);
    fullbore(args!["show", archive, "--path", b]).ends_with(0);
    fullbore(args!["show", archive, "--path", a])
        .ends_with(2)
        .has_one_error("does not select it");
    let foreign = dir.path().join("foreign.tar");
    shell("tar -cf \"$1\" -C \"$2\" .", args![foreign, a]).ends_with(0);
    fullbore(args!["list", foreign, "--path", a])
        .ends_with(2)
        .has_one_error("cannot select a backup");
    let line = "\"$1\" restore - --host x --to \"$3\" < \"$2\"";
    let target = dir.path().join("to");
    shell(line, args![runs::FULLBORE, foreign, target])
        .ends_with(2)
        .has_one_error("cannot select a backup");
    assert!(!target.exists());
}

#[test]
fn a_path_selects_however_it_is_written() {
    let dir = temp();
    let (a, b, repository) = two_sources(dir.path());
    std::os::unix::fs::symlink(&a, dir.path().join("link")).unwrap();
    backup(&dir.path().join("link"), &repository, &[]);
    for (word, source) in [
        ("a", &a),
        ("./a/", &a),
        ("a/../b's/.", &b),
        ("link", &dir.path().join("link")),
    ] {
        let line = "cd \"$1\" && \"$2\" show repository --json --path \"$3\"";
        let shown = shell(line, args![dir.path(), runs::FULLBORE, word])
            .ends_with(0)
            .json();
        assert_eq!(
            shown[0]["source"]["paths"][0],
            source.to_str().unwrap(),
            "{word}"
        );
    }
    let line = "echo dump | \"$1\" backup --stdin-name dump.sql --to \"$2\" && \"$1\" list \"$2\" --path stdin:dump.sql dump.sql";
    assert!(
        shell(line, args![runs::FULLBORE, repository])
            .ends_with(0)
            .out
            .contains("dump.sql")
    );
}

#[test]
fn a_tag_that_was_noted_later_selects() {
    let dir = temp();
    let (_, _, repository) = two_sources(dir.path());
    let ids = ids(&repository);
    fullbore(args![
        "tag",
        format!("{}@{}", repository.display(), ids[0]),
        "kind=monthly"
    ])
    .ends_with(0);
    let shown = fullbore(args!["show", repository, "--tag", "kind=monthly", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(shown[0]["id"], *ids[0]);
}

#[test]
fn an_older_backup_is_not_the_latest_because_the_root_of_a_later_one_is_damaged() {
    let dir = temp();
    let (a, b, repository) = two_sources(dir.path());
    let root = repository
        .join("backups")
        .join(&ids(&repository)[2])
        .join("root.json");
    let bytes = fs::read(&root).unwrap();
    let show = |path: &Path| fullbore(args!["show", repository, "--path", path]);
    fs::write(&root, &bytes[..bytes.len() / 2]).unwrap();
    show(&a).ends_with(4);
    fs::remove_file(&root).unwrap();
    show(&a)
        .ends_with(4)
        .has_one_error("is lost, which is later than");
    fs::write(&root, bytes).unwrap();
    show(&a).ends_with(0);
    show(&b).ends_with(0);
}

#[test]
fn a_source_that_was_lost_matters_only_if_its_backup_is_the_last() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repository"));
    write(tree.join("file"), "content");
    backup(&tree, &repository, &["--full"]);
    backup(&tree, &repository, &["--full"]);
    let ids = ids(&repository);
    let lose = |id: &str| {
        fs::remove_file(repository.join("backups").join(id).join("root.json")).unwrap();
        fullbore(args!["repair", repository, "--yes"]).ends_with(0);
    };
    let show = |options: &[OsString]| {
        let words: &[OsString] = &args!["show", repository, "--json"];
        fullbore(words.iter().chain(options).cloned())
    };
    let path: &[OsString] = &args!["--path", tree];
    lose(&ids[0]);
    for options in [&[], path] {
        assert_eq!(show(options).ends_with(0).json()[0]["id"], *ids[1]);
    }
    show(&args!["--path", dir.path()])
        .ends_with(1)
        .has_one_error("could not find a backup");
    assert_eq!(
        fullbore(args!["list", repository, "--path", tree])
            .ends_with(0)
            .out
            .lines()
            .filter(|line| line.starts_with("20"))
            .count(),
        2
    );
    let made = backup(&tree, &repository, &["--full", "--json"])
        .json()
        .pop()
        .unwrap();
    let third = made["id"].as_str().unwrap().to_owned();
    lose(&third);
    for options in [&[], path] {
        let ran = show(options)
            .ends_with(2)
            .has_one_error("has backups of 2 sources");
        assert!(
            ran.err.contains("an unknown source (its root is lost)"),
            "{}",
            ran.err
        );
        let shown = listed(&ran)
            .into_iter()
            .map(|line| shell(line, args![]).ends_with(0).json()[0]["id"].clone());
        assert_eq!(shown.collect::<Vec<_>>(), [&*ids[1], &*third]);
    }
    backup(&tree, &repository, &["--full"]);
    show(&[]).ends_with(0);
}

#[test]
fn the_latest_base_is_that_of_the_same_source() {
    let dir = temp();
    let (a, _, repository) = two_sources(dir.path());
    let before = ids(&repository);
    let made = backup(&a, &repository, &["--base", "latest", "--json"])
        .json()
        .pop()
        .unwrap();
    assert!(
        made["bases"]
            .as_array()
            .unwrap()
            .contains(&before[1].as_str().into()),
        "{made}"
    );
    let other = dir.path().join("other");
    write(other.join("file"), "content");
    fullbore(args![
        "backup", other, "--to", repository, "--base", "latest"
    ])
    .ends_with(1)
    .has_one_error("of this source");
    assert_eq!(ids(&repository).len(), before.len() + 1);
}

/// Removes a directory when the test ends.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn where_disks_are_mounted_and_none_is_no_repository_is_made_unasked() {
    if !or_skip(
        is_root() && Path::new("/media").is_dir(),
        "not root, or no /media",
    ) {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("tree");
    write(tree.join("file"), "content");
    let disk = Removed(format!("/media/fullbore-test-{}", std::process::id()).into());
    let ran = fullbore(args!["backup", tree, "--to", disk.0]).ends_with(1);
    ran.has_one_error("no disk is mounted there");
    assert!(!disk.0.exists());
    // An empty mount point is as bad.
    fs::create_dir(&disk.0).unwrap();
    fullbore(args!["backup", tree, "--to", disk.0]).ends_with(1);
    assert_eq!(fs::read_dir(&disk.0).unwrap().count(), 0);
    // A directory on it is meant.
    fullbore(args!["init", disk.0]).ends_with(0);
    fullbore(args!["backup", tree, "--to", disk.0]).ends_with(0);
}
