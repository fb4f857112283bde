//! What is done to a tree while it is backed up.

use crate::runs::{self, Ran, fullbore, noise, shell, started, temp};
use rustix::fs::{CWD, RenameFlags, getxattr, renameat_with};
use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::Stdio,
    time::Duration,
};

/// Begin a backup that stands still because nobody reads its output, do something to the tree, and let it go on.
fn changed_meanwhile(tree: &Path, out: &Path, change: impl FnOnce()) -> Ran {
    let options = args![
        "--compress",
        "none",
        "--frame-size",
        "64K",
        "--memory",
        "2M",
        "--workers",
        "1",
        "--readers",
        "1"
    ];
    let mut child = started(
        args!["backup", tree, "--to", "-", "--json"]
            .into_iter()
            .chain(options),
    );
    let (mut stdout, mut first) = (child.stdout.take().unwrap(), [0; 4096]);
    stdout.read_exact(&mut first).unwrap();
    std::thread::sleep(Duration::from_millis(300)); // until all its buffers are full
    change();
    let mut all = first.to_vec();
    stdout.read_to_end(&mut all).unwrap();
    fs::write(out, all).unwrap();
    Ran::from(child.wait_with_output().unwrap())
}

/// What a run says at its end that wrote the backup to its output.
fn result(ran: &Ran) -> serde_json::Value {
    serde_json::from_str(ran.err.lines().last().unwrap()).unwrap()
}

#[test]
fn files_that_change_while_they_are_read_are_listed() {
    let dir = temp();
    let (tree, out, back) = (
        dir.path().join("t"),
        dir.path().join("x.tar"),
        dir.path().join("b"),
    );
    runs::write(tree.join("a large"), noise(1, 12_000_000));
    // Far behind what the buffers hold; opened and scanned by then or not, all are accounted for.
    for name in ["b grows", "c shrinks", "d vanishes", "e stays"] {
        runs::write(tree.join(name), noise(2, 1_000_000));
    }
    let ran = changed_meanwhile(&tree, &out, || {
        File::options()
            .append(true)
            .open(tree.join("b grows"))
            .unwrap()
            .write_all(&[7; 100_000])
            .unwrap();
        File::options()
            .write(true)
            .open(tree.join("c shrinks"))
            .unwrap()
            .set_len(400_000)
            .unwrap();
        File::options()
            .write(true)
            .open(tree.join("a large"))
            .unwrap()
            .set_len(9_000_000)
            .unwrap();
        fs::remove_file(tree.join("d vanishes")).unwrap();
    });
    assert_eq!(ran.code, 0, "{}", ran.err);
    let result = result(&ran);
    assert_eq!(
        (&result["changed_while_read"], &result["vanished"]),
        (&3.into(), &1.into()),
        "{result}"
    );
    shell(
        "tar -xf \"$1\" -C \"$(mkdir \"$2\"; echo \"$2\")\"",
        args![out, back],
    )
    .ends_with(0);
    let len = |name: &str| fs::metadata(back.join(name)).map(|meta| meta.len()).ok();
    assert_eq!(
        [
            len("a large"),
            len("b grows"),
            len("c shrinks"),
            len("d vanishes")
        ],
        [Some(12_000_000), Some(1_000_000), Some(1_000_000), None]
    );
    let large = fs::read(back.join("a large")).unwrap();
    assert!(
        large[..9_000_000] == noise(1, 9_000_000)
            && large[9_000_000..].iter().all(|byte| *byte == 0)
    );
    let shrunk = fs::read(back.join("c shrinks")).unwrap();
    assert!(
        shrunk[..400_000] == noise(2, 400_000) && shrunk[400_000..].iter().all(|byte| *byte == 0)
    );
    assert!(fs::read(back.join("e stays")).unwrap() == noise(2, 1_000_000));
}

#[test]
fn a_file_with_the_inode_of_a_removed_one_is_no_link_to_it() {
    let dir = temp();
    let (tree, out, back) = (
        dir.path().join("t"),
        dir.path().join("x.tar"),
        dir.path().join("b"),
    );
    runs::write(tree.join("a/first"), "first");
    fs::hard_link(tree.join("a/first"), dir.path().join("outside")).unwrap();
    runs::write(tree.join("b large"), noise(1, 12_000_000));
    // More than is listed ahead.
    (0..1500).for_each(|i| runs::write(tree.join(format!("c{:03}/f{}", i / 12, i % 12)), "c"));
    fs::create_dir(tree.join("n")).unwrap();
    let inode = fs::metadata(tree.join("a/first")).unwrap().ino();
    let ran = changed_meanwhile(&tree, &out, || {
        fs::remove_file(tree.join("a/first")).unwrap();
        fs::remove_file(dir.path().join("outside")).unwrap();
        // ext4 gives the number away again at once.
        let mut names = (0..100).map(|i| tree.join(format!("n/{i:02}")));
        let reused = names.find(|name| {
            fs::write(name, "second").unwrap();
            fs::metadata(name).unwrap().ino() == inode
        });
        let last = reused.unwrap_or_else(|| tree.join("n/99"));
        fs::hard_link(last, tree.join("n/z")).unwrap();
    });
    assert_eq!(ran.code, 0, "{}", ran.err);
    fullbore(args!["restore", out, "--to", back, "--quiet"]).ends_with(0);
    let ino = |name: &str| fs::metadata(back.join(name)).unwrap().ino();
    assert_eq!(fs::read(back.join("a/first")).unwrap(), b"first");
    assert_eq!(fs::read(back.join("n/z")).unwrap(), b"second");
    assert!(ino("n/z") != ino("a/first") && fs::metadata(back.join("n/z")).unwrap().nlink() == 2);
}

#[test]
fn a_small_file_that_gets_data_where_it_had_a_hole_is_listed() {
    let dir = temp();
    let (tree, out) = (dir.path().join("t"), dir.path().join("x.tar"));
    runs::write(tree.join("a large"), noise(1, 12_000_000));
    runs::write(tree.join("sparse"), noise(2, 4096));
    let sparse = File::options()
        .write(true)
        .open(tree.join("sparse"))
        .unwrap();
    sparse.set_len(400_000).unwrap();
    let ran = changed_meanwhile(&tree, &out, || {
        sparse.write_all_at(&noise(3, 4096), 0).unwrap();
        sparse.write_all_at(b"new", 200_000).unwrap();
    });
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(result(&ran)["changed_while_read"], 1);
}

#[test]
fn a_file_that_another_took_the_name_of_is_the_other_as_a_whole_or_not_there() {
    let dir = temp();
    let (tree, out, back) = (
        dir.path().join("t"),
        dir.path().join("x.tar"),
        dir.path().join("b"),
    );
    runs::write(tree.join("a large"), noise(1, 12_000_000));
    let lens = [
        ("longer", 1000, 1500),
        ("shorter", 1500, 7),
        ("too long", 10, 3_000_000),
    ];
    let large = [
        ("z same", 3_000_000, 3_000_000),
        ("z longer", 3_000_000, 3_000_500),
        ("z short", 3_000_000, 5),
    ];
    let names = || {
        lens.iter()
            .chain(&large)
            .map(|(name, ..)| *name)
            .chain(["holes"])
    };
    for (name, len, new) in lens.into_iter().chain(large).chain([("holes", 0, 5000)]) {
        runs::write(tree.join(name), noise(2, len));
        runs::set_mode(&tree.join(name), 0o644);
        runs::write(dir.path().join(name), noise(3, new));
        runs::set_mode(&dir.path().join(name), 0o600);
        runs::set_mtime(&dir.path().join(name), 1_000_000_000, 0);
    }
    File::options()
        .write(true)
        .open(tree.join("holes"))
        .unwrap()
        .write_all_at(&noise(2, 4096), 200_000)
        .unwrap();
    let ran = changed_meanwhile(&tree, &out, || {
        names().for_each(|name| fs::rename(dir.path().join(name), tree.join(name)).unwrap());
    });
    assert_eq!(ran.code, 3, "{}", ran.err);
    let result = result(&ran);
    assert_eq!(
        (&result["changed_while_read"], &result["unreadable"]),
        (&4.into(), &3.into()),
        "{result}"
    );
    fs::create_dir_all(back.join("of tar")).unwrap();
    fullbore(args![
        "restore",
        out,
        "--to",
        back.join("of fullbore"),
        "--quiet"
    ])
    .ends_with(0);
    shell("tar -xpf \"$1\" -C \"$2\"", args![out, back.join("of tar")]).ends_with(0);
    for author in ["of fullbore", "of tar"] {
        let found = |name: &str| fs::read(back.join(author).join(name)).ok();
        for (name, len) in [
            ("longer", 1500),
            ("shorter", 7),
            ("z same", 3_000_000),
            ("holes", 5000),
        ] {
            assert!(found(name) == Some(noise(3, len)), "{name} {author}");
            let mode = fs::metadata(back.join(author).join(name)).unwrap().mode() & 0o777;
            assert_eq!(mode, 0o600, "{name} {author}");
        }
        assert_eq!(
            ["too long", "z longer", "z short"].map(found),
            [None, None, None],
            "{author}"
        );
    }
}

#[test]
fn a_small_file_that_grew_or_shrank_before_it_was_read_is_as_long_as_it_is() {
    let dir = temp();
    let (tree, repository, back) = (
        dir.path().join("t"),
        dir.path().join("x.tar"),
        dir.path().join("b"),
    );
    runs::write(tree.join("a large"), noise(1, 12_000_000));
    ["grows", "shrinks", "soon long"]
        .iter()
        .for_each(|name| runs::write(tree.join(name), noise(2, 1000)));
    let ran = changed_meanwhile(&tree, &repository, || {
        for (name, len) in [("grows", 3000), ("shrinks", 200), ("soon long", 5_000_000)] {
            File::options()
                .write(true)
                .truncate(true)
                .open(tree.join(name))
                .unwrap()
                .write_all(&noise(2, len))
                .unwrap();
        }
    });
    assert_eq!(
        (ran.code, &result(&ran)["changed_while_read"]),
        (0, &1.into()),
        "{}",
        ran.err
    );
    fullbore(args!["restore", repository, "--to", back, "--quiet"]).ends_with(0);
    for (name, len) in [("grows", 3000), ("shrinks", 200), ("soon long", 1000)] {
        assert!(
            fs::read(back.join(name)).unwrap() == noise(2, len),
            "{name}"
        );
    }
}

#[test]
fn where_others_may_put_a_file_of_the_same_length_it_has_its_own_mode() {
    let dir = temp();
    let [tree, out, back] = ["t", "x.tar", "b"].map(|name| dir.path().join(name));
    runs::write(tree.join("a large"), noise(1, 12_000_000));
    let (shared, secret) = (tree.join("shared"), dir.path().join("secret"));
    runs::write(&shared, noise(2, 1000));
    runs::write(&secret, noise(3, 1000));
    runs::set_mode(&secret, 0o600);
    runs::set_mtime(&secret, 1_000_000_000, 0);
    runs::set_mode(&tree, 0o777);
    let ran = changed_meanwhile(&tree, &out, || fs::rename(&secret, &shared).unwrap());
    assert_eq!(
        (ran.code, &result(&ran)["changed_while_read"]),
        (0, &1.into()),
        "{}",
        ran.err
    );
    fullbore(args!["restore", out, "--to", back, "--quiet"]).ends_with(0);
    assert_eq!(fs::read(back.join("shared")).unwrap(), noise(3, 1000));
    assert_eq!(
        fs::metadata(back.join("shared")).unwrap().mode() & 0o777,
        0o600
    );
}

#[test]
fn what_was_in_a_directory_that_got_another_name_is_listed_as_vanished() {
    let dir = temp();
    let (tree, out) = (dir.path().join("t"), dir.path().join("x.tar"));
    runs::write(tree.join("a large"), noise(1, 12_000_000));
    // More than are looked at together; of the last ones only the names are known when the directory goes.
    (0..1500).for_each(|i| runs::write(tree.join(format!("m/{i:04}")), "m"));
    let ran = changed_meanwhile(&tree, &out, || {
        fs::rename(tree.join("m"), tree.join("a earlier")).unwrap()
    });
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(result(&ran)["vanished"], 1500, "{}", ran.err);
}

#[test]
fn other_names_of_a_file_keep_its_content_when_its_first_name_goes() {
    let dir = temp();
    let (tree, out, back) = (
        dir.path().join("t"),
        dir.path().join("x.tar"),
        dir.path().join("b"),
    );
    runs::write(tree.join("a large"), noise(1, 12_000_000));
    for (name, len) in [
        ("replaced", 1000),
        ("gone", 1000),
        ("both", 1000),
        ("big", 4_000_000),
    ] {
        runs::write(tree.join(name), noise(2, len));
        fs::hard_link(tree.join(name), tree.join(format!("x other {name}"))).unwrap();
        fs::hard_link(tree.join(name), tree.join(format!("x third {name}"))).unwrap();
    }
    let ran = changed_meanwhile(&tree, &out, || {
        for name in ["replaced", "both", "x other both", "big"] {
            runs::write(tree.join("new"), noise(3, 1000));
            fs::rename(tree.join("new"), tree.join(name)).unwrap();
        }
        fs::remove_file(tree.join("gone")).unwrap();
    });
    // The large one, of another length now, is not stored, and its other names have no room in the frames that were cut.
    assert_eq!(ran.code, 3, "{}", ran.err);
    let result = result(&ran);
    assert_eq!(
        (&result["unreadable"], &result["vanished"]),
        (&3.into(), &1.into()),
        "{result}"
    );
    fullbore(args!["restore", out, "--to", back, "--quiet"]).ends_with(0);
    let (old, new) = (noise(2, 1000), noise(3, 1000));
    for (name, content) in [
        ("replaced", &new),
        ("both", &new),
        ("x other both", &new),
        ("x third both", &old),
    ] {
        assert!(fs::read(back.join(name)).unwrap() == *content, "{name}");
    }
    for name in [
        "x other replaced",
        "x third replaced",
        "x other gone",
        "x third gone",
    ] {
        assert!(fs::read(back.join(name)).unwrap() == old, "{name}");
    }
    assert!(
        ["gone", "big", "x other big"]
            .iter()
            .all(|name| !back.join(name).exists())
    );
}

/// A backup, as JSON, while nobody can read that file.
fn with_unreadable(file: &Path, tree: &Path, repository: &Path) -> Ran {
    let args = args![
        "backup",
        tree,
        "--to",
        repository,
        "--compare",
        "content",
        "--json"
    ];
    runs::tampered("preadv2,pread64,read:error=EIO", Some(file), args)
}

#[test]
fn a_small_sparse_file_that_cannot_be_read_costs_no_other() {
    if !runs::or_skip(runs::has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let (tree, repository, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    runs::write(tree.join("a stays"), noise(1, 1000));
    runs::write(tree.join("b sparse"), b"");
    let sparse = File::options()
        .write(true)
        .open(tree.join("b sparse"))
        .unwrap();
    sparse.write_all_at(&[7; 5000], 300_000).unwrap();
    sparse.set_len(900_000).unwrap();
    let ran = with_unreadable(&tree.join("b sparse"), &tree, &repository).ends_with(3);
    assert_eq!(ran.json().pop().unwrap()["unreadable"], 1, "{}", ran.out);
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
    fullbore(args!["restore", repository, "--to", back]).ends_with(3);
    assert_eq!(runs::names(&back), ["a stays"]);
}

#[test]
fn other_names_of_a_file_that_could_not_be_read_are_listed_also_if_they_are_as_they_were() {
    if !runs::or_skip(runs::has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let (tree, repository, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    runs::write(tree.join("m first"), noise(1, 5000));
    fs::hard_link(tree.join("m first"), tree.join("z second")).unwrap();
    fullbore(args!["backup", tree, "--to", repository]).ends_with(0);
    let ran = with_unreadable(&tree.join("m first"), &tree, &repository).ends_with(3);
    assert_eq!(ran.json().pop().unwrap()["unreadable"], 2, "{}", ran.out);
    fullbore(args!["restore", repository, "--to", back]).ends_with(3);
    assert_eq!(runs::names(&back), [""; 0]);
}

#[test]
fn a_file_that_is_not_as_long_as_the_system_says_is_unreadable() {
    let dir = temp();
    let (tree, repository, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    let why = "its size differs from the size that the file system reports";
    if runs::or_skip(Path::new("/proc/version").exists(), "there is no /proc") {
        let ran = fullbore(args!["backup", "/proc/version", "--to", repository]).ends_with(3);
        assert!(ran.err.contains(why), "{}", ran.err);
        let ran = fullbore(args![
            "backup",
            "/proc/version",
            "--to",
            repository,
            "--json"
        ])
        .ends_with(3);
        let result = ran.json().pop().unwrap();
        assert_eq!(
            (&result["unreadable"], &result["changed_while_read"]),
            (&1.into(), &0.into()),
            "{result}"
        );
        fullbore(args!["verify", repository, "--data"]).ends_with(0);
        fullbore(args!["restore", repository, "--to", back]).ends_with(3);
        assert_eq!(runs::names(&back), [""; 0]);
    }
    if !runs::or_skip(runs::has("strace"), "there is no strace") {
        return;
    }
    runs::write(tree.join("a stays"), noise(1, 1000));
    for (name, len) in [("small", 5000), ("large", 3_000_000)] {
        let (file, repository, back) = (
            tree.join(name),
            dir.path().join(name),
            dir.path().join("to").join(name),
        );
        runs::write(&file, noise(2, len));
        let args = args!["backup", tree, "--to", repository, "--json"];
        let ran = runs::tampered("preadv2,pread64,read:retval=0", Some(&file), args).ends_with(3);
        let result = ran.json().pop().unwrap();
        assert_eq!(
            (&result["unreadable"], &result["changed_while_read"]),
            (&1.into(), &0.into()),
            "{name}: {result}"
        );
        assert!(
            fullbore(args!["show", repository])
                .ends_with(0)
                .out
                .contains(&format!("{name}: {why}"))
        );
        fullbore(args!["verify", repository, "--data"]).ends_with(0);
        fullbore(args!["restore", repository, "--to", back]).ends_with(3);
        assert_eq!(runs::names(&back), ["a stays"], "{name}");
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn what_is_forgotten_and_pruned_meanwhile_is_no_damage_to_a_search() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("t"), dir.path().join("r"));
    (0..30).for_each(|i| runs::write(tree.join(format!("f{i}")), "f"));
    let backup = |round: u32| {
        runs::write(tree.join("changes"), round.to_string());
        fullbore(args!["backup", tree, "--to", repository, "--quiet"]).ends_with(0);
    };
    (0..4).for_each(backup);
    std::thread::scope(|scope| {
        let life = scope.spawn(|| {
            for round in 4..20 {
                backup(round);
                fullbore(args!["forget", repository, "--keep-last", "2"]).ends_with(0);
                fullbore(args!["prune", repository]).ends_with(0);
            }
        });
        while !life.is_finished() {
            fullbore(args!["find", repository, "f*"]).ends_with(0);
        }
    });
}

/// A backup that reads slowly: some seconds for 12 MB. Files are opened when their turn comes.
fn stored_meanwhile(tree: &Path, repository: &Path, change: impl FnOnce()) -> Ran {
    let mut strace = std::process::Command::new("strace");
    strace.args([
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "inject=preadv2,pread64:delay_enter=20000",
        runs::FULLBORE,
    ]);
    strace.arg("backup").arg(tree).arg("--to").arg(repository);
    strace.args(
        "--compress none --frame-size 64K --memory 2M --workers 1 --readers 1 --quiet".split(' '),
    );
    let child = strace
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    change();
    Ran::from(child.wait_with_output().unwrap())
}

#[test]
fn a_directory_that_took_the_name_of_another_is_not_taken_for_it_ever_after() {
    if !runs::or_skip(runs::has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    for back_again in [false, true] {
        let path = dir.path().join(back_again.to_string());
        let (tree, repository) = (path.join("t"), path.join("r"));
        runs::write(tree.join("a large"), noise(1, 12_000_000));
        for (name, seed) in [("app", 2), ("new", 3)] {
            // One length, and one time, as a build gives them that can be reproduced.
            for (file, len) in [("small", 500), ("linked", 500), ("large", 3_000_000)] {
                runs::write(tree.join(name).join(file), noise(seed, len));
                runs::set_mtime(&tree.join(name).join(file), 1_000_000_000, 0);
            }
            fs::hard_link(tree.join(name).join("linked"), tree.join(name).join("z")).unwrap();
        }
        std::thread::sleep(Duration::from_secs(3)); // or nothing of it is trusted
        let rename =
            |source: &str, target: &str| fs::rename(tree.join(source), tree.join(target)).unwrap();
        let ran = stored_meanwhile(&tree, &repository, || {
            rename("app", "old");
            rename("new", "app");
        });
        assert!([0, 3].contains(&ran.code), "{}", ran.err);
        if back_again {
            rename("app", "new");
            rename("old", "app");
        }
        let like_it = ["--compress", "none", "--frame-size", "64K"];
        fullbore(
            args!["backup", tree, "--to", repository, "--quiet"]
                .into_iter()
                .chain(like_it.map(Into::into)),
        )
        .ends_with(0);
        fullbore(args!["verify", repository, "--data"]).ends_with(0);
        fullbore(args![
            "verify",
            format!("{}@latest", repository.display()),
            "--against",
            tree
        ])
        .ends_with(0);
    }
}

#[test]
fn who_owns_a_directory_above_gives_a_file_of_root_no_other_content() {
    if !runs::or_skip(
        runs::is_root() && runs::has("strace"),
        "not root, or no strace",
    ) {
        return;
    }
    let dir = temp();
    let (tree, repository, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    runs::write(tree.join("a large"), noise(1, 12_000_000));
    runs::write(tree.join("tool/prog"), "root's");
    runs::set_mode(&tree.join("tool/prog"), 0o4755);
    std::os::unix::fs::chown(&tree, Some(1234), None).unwrap();
    let ran = stored_meanwhile(&tree, &repository, || {
        fs::rename(tree.join("tool"), tree.join("tool.old")).unwrap();
        runs::write(tree.join("tool/prog"), "hers!!");
        std::os::unix::fs::chown(tree.join("tool/prog"), Some(1234), None).unwrap();
    });
    assert_eq!(ran.code, 0, "{}", ran.err);
    fullbore(args!["restore", repository, "--to", back, "--quiet"]).ends_with(0);
    let restored = fs::metadata(back.join("tool/prog")).unwrap();
    assert_eq!(fs::read(back.join("tool/prog")).unwrap(), b"hers!!");
    assert_eq!((restored.uid(), restored.mode() & 0o7000), (1234, 0));
}

#[test]
fn a_file_that_has_the_number_of_a_removed_one_is_another() {
    let dir = temp();
    let (tree, out, back) = (
        dir.path().join("t"),
        dir.path().join("x.tar"),
        dir.path().join("b"),
    );
    runs::write(tree.join("a large"), noise(1, 12_000_000));
    runs::write(tree.join("saved"), noise(2, 3_000_000));
    runs::write(tree.join("z/linked"), "as it was");
    fs::hard_link(tree.join("z/linked"), tree.join("z/other")).unwrap();
    let ran = changed_meanwhile(&tree, &out, || {
        // ext4 gives the number of the file that goes to the next.
        for text in ["once", "twice"] {
            runs::write(dir.path().join("new"), text);
            fs::rename(dir.path().join("new"), tree.join("saved")).unwrap();
        }
        fs::remove_file(tree.join("z/other")).unwrap();
        fs::remove_file(tree.join("z/linked")).unwrap();
        runs::write(tree.join("z/linked"), "new one's");
        runs::write(tree.join("z/other"), "other one");
    });
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(
        ran.err
            .contains("another file replaced it during the backup"),
        "{}",
        ran.err
    );
    fullbore(args!["restore", out, "--to", back, "--quiet"]).ends_with(0);
    assert!(!back.join("saved").exists());
    assert_eq!(fs::read(back.join("z/linked")).unwrap(), b"new one's");
    assert_eq!(fs::read(back.join("z/other")).unwrap(), b"other one");
}

#[test]
fn a_directory_has_the_attributes_and_the_owner_of_one() {
    if !runs::or_skip(
        runs::is_root() && runs::has("strace"),
        "not root, or no strace",
    ) {
        return;
    }
    let dir = temp();
    let (tree, repository, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    let pairs: Vec<_> = (0..12)
        .map(|i| (tree.join(format!("a{i}")), tree.join(format!("b{i}"))))
        .collect();
    for (path, owner) in pairs.iter().flat_map(|(a, b)| [(a, 1234u32), (b, 1235)]) {
        fs::create_dir_all(path).unwrap();
        std::os::unix::fs::chown(path, Some(owner), None).unwrap();
        if !runs::or_skip(
            runs::set_xattr(path, "user.owner", owner.to_string().as_bytes()),
            "no attributes here",
        ) {
            return;
        }
    }
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let swaps = std::thread::spawn(move || {
        while let Err(std::sync::mpsc::TryRecvError::Empty) = is_done.try_recv() {
            for (a, b) in &pairs {
                renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    });
    // Between what is asked of a name and the opening of it.
    let slow = "openat2,openat:delay_enter=5000";
    runs::tampered(
        slow,
        None,
        args!["backup", tree, "--to", repository, "--quiet"],
    )
    .ends_with(0);
    drop(done);
    swaps.join().unwrap();
    fullbore(args!["restore", repository, "--to", back, "--quiet"]).ends_with(0);
    for path in fs::read_dir(&back)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        let mut owner = [0; 4];
        getxattr(&path, "user.owner", &mut owner).unwrap();
        let uid = fs::metadata(&path).unwrap().uid().to_string();
        assert_eq!(uid.as_bytes(), owner, "{path:?}");
    }
}
