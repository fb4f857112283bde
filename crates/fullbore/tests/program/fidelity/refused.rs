//! Calls that the system refuses: the run names what is missing, and loses nothing else.

use super::*;

/// Run as nobody, if this is root; else as who we are.
fn as_nobody(args: impl IntoIterator<Item = OsString>) -> Ran {
    if !is_root() {
        return fullbore(args);
    }
    let all = [OsString::from(runs::FULLBORE)].into_iter().chain(args);
    shell(
        "exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all \"$@\"",
        all,
    )
}

#[test]
fn what_cannot_be_read_is_listed_and_the_rest_goes_on() {
    let dir = temp();
    let (tree, store) = (dir.path().join("t"), dir.path().join("out/r"));
    for name in ["a", "closed/f", "secret", "large secret", "z"] {
        runs::write(
            tree.join(name),
            noise(
                1,
                if name.starts_with("large") {
                    3_000_000
                } else {
                    100
                },
            ),
        );
    }
    fs::create_dir(dir.path().join("out")).unwrap();
    set_mode(&dir.path().join("out"), 0o777);
    set_mode(dir.path(), 0o755);
    ["secret", "large secret", "closed"]
        .iter()
        .for_each(|name| set_mode(&tree.join(name), 0));
    shell(
        "setfacl -m u:1234:rwx,m::rwx \"$1\"",
        args![tree.join("closed")],
    ); // where there are any
    let ran = as_nobody(args!["backup", tree, "--to", store]).ends_with(3);
    for name in ["secret", "large secret", "closed"] {
        assert!(
            ran.err
                .contains(&format!("not captured: \"{name}\": permission denied")),
            "{}",
            ran.err
        );
    }
    assert!(
        !ran.err.contains("\"a\"") && !ran.err.contains("\"z\""),
        "{}",
        ran.err
    );
    let shown = fullbore(args!["show", store, "--json"]).ends_with(0);
    assert!(
        shown.out.contains("large secret") && shown.out.contains("permission denied"),
        "{}",
        shown.out
    );
    let listed = fullbore(args!["list", store, "--json"]).ends_with(0).json();
    assert_eq!(listed[0]["complete"], false);
    let back = dir.path().join("b");
    let ran = fullbore(args!["restore", store, "--to", back]).ends_with(3);
    let said = "note: 3 entries were not captured by the backup and are not restored, the first is \"closed\": permission denied";
    assert!(
        ran.err.contains(said) && !ran.err.contains("every digest"),
        "{}",
        ran.err
    );
    let plan = fullbore(args!["restore", store, "--plan"]).ends_with(0).out;
    assert!(
        plan.contains(&said.replace("note: ", "\nnote          ")),
        "{plan}"
    );
    assert_eq!(runs::names(&back), ["a", "closed", "z"]);
    let list = |path: &Path| shell("getfacl -cnp \"$1\"", args![path.join("closed")]).out;
    assert_eq!(list(&tree), list(&back));
    let ran = fullbore(args![
        "restore",
        store,
        "secret",
        "--to",
        dir.path().join("c")
    ])
    .ends_with(1);
    ran.has_one_error("cannot restore \"secret\" from backup")
        .has_one_error("was not captured: permission denied");
    assert!(!dir.path().join("c").exists());
    fullbore(args!["restore", store, "a", "--to", dir.path().join("c")]).ends_with(0);
    let ran = fullbore(args!["verify", store, "--data"]).ends_with(0);
    assert!(
        ran.err
            .ends_with("; 3 more could not be captured, or were given up by a repair\n"),
        "{}",
        ran.err
    );
    let ran = fullbore(args!["verify", store, "--against", tree]).ends_with(1);
    for name in ["secret", "large secret", "closed"] {
        assert!(
            ran.out.contains(&format!(
                "{name}: not captured by the backup: permission denied\n"
            )),
            "{}",
            ran.out
        );
    }
    let piped = dir.path().join("out/x.tar.zst");
    as_nobody(args!["backup", tree, "--to", piped, "--quiet"]).ends_with(3);
    shell("zstd -dc \"$1\" | tar -t >/dev/null", args![piped]).ends_with(0);
    set_mode(&tree.join("closed"), 0o755);
}

#[test]
fn a_low_limit_of_open_files_slows_a_backup_down_or_ends_it_but_costs_no_file() {
    let dir = temp();
    let (tree, store, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    for i in 0..800 {
        runs::write(tree.join(format!("d{}/f{i}", i % 40)), noise(i, 500));
    }
    (0..20).for_each(|i| runs::write(tree.join(format!("large/{i}")), noise(i, 400_000)));
    let backup = |limit: &str| {
        let line = "ulimit -n $1; \"$2\" backup \"$3\" --to \"$4\" --workers 8 --frame-size 64K --full --json";
        shell(line, args![limit, FULLBORE, tree, store])
    };
    let ran = backup("64").ends_with(0);
    assert_eq!(ran.json().pop().unwrap()["unreadable"], 0, "{}", ran.out);
    fullbore(args!["restore", store, "--to", back, "--quiet"]).ends_with(0);
    assert_same(&shape(&tree), &shape(&back), "few descriptors");
    for limit in [8, 14, 20] {
        let ran = backup(&limit.to_string());
        match ran.code {
            0 => assert_eq!(
                ran.json().pop().unwrap()["unreadable"],
                0,
                "{limit}: {}",
                ran.out
            ),
            1 => assert!(
                ran.err.contains("too many open files") || ran.err.contains("Too many"),
                "{}",
                ran.err
            ),
            code => panic!("{limit}: {code} {}{}", ran.out, ran.err),
        }
    }
}

#[test]
fn a_low_limit_of_threads_ends_a_run_with_an_error_that_says_so() {
    if !or_skip(
        is_root() && has("prlimit"),
        "only root can be a user without other threads",
    ) {
        return;
    }
    let dir = temp();
    let (tree, store) = (dir.path().join("t"), dir.path().join("r"));
    (0..40).for_each(|i| runs::write(tree.join(format!("d{}/f{i}", i % 4)), noise(i, 500)));
    let user = 1_000_000 + std::process::id();
    chown(dir.path(), Some(user), Some(user)).unwrap();
    let limited = |limit: usize, args: &[OsString]| {
        let all = [limit.to_string(), user.to_string(), FULLBORE.into()].map(OsString::from);
        let line = "limit=$1; user=$2; shift 2; \
            exec prlimit --nproc=$limit setpriv --reuid $user --regid $user --clear-groups --inh-caps=-all \"$@\"";
        let ran = shell(line, all.into_iter().chain(args.to_vec()));
        match ran.code {
            0 => true,
            1 => {
                ran.has_one_error("could not start a thread");
                false
            }
            code => panic!("{limit}: {code} {}{}", ran.out, ran.err),
        }
    };
    let backed_up: Vec<_> = (1..40)
        .map(|limit| {
            limited(
                limit,
                &args!["backup", tree, "--to", store, "--full", "--quiet"],
            )
        })
        .collect();
    assert!(!backed_up[0] && backed_up[38], "{backed_up:?}");
    let verified: Vec<_> = (1..20)
        .map(|limit| limited(limit, &args!["verify", store, "--data"]))
        .collect();
    assert!(!verified[0] && verified[18], "{verified:?}");
}

#[test]
fn an_unprivileged_restore_says_what_it_may_not_set() {
    if !or_skip(is_root(), "root makes the backup") {
        return;
    }
    let dir = temp();
    let (tree, store, out) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("out"),
    );
    runs::write(tree.join("d/f"), "content");
    chown(tree.join("d/f"), Some(1234), Some(1234)).unwrap();
    mknodat(
        CWD,
        tree.join("null"),
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        makedev(1, 3),
    )
    .unwrap();
    fs::create_dir(&out).unwrap();
    [dir.path(), &out]
        .iter()
        .for_each(|path| set_mode(path, 0o777));
    fullbore(args!["backup", tree, "--to", store, "--quiet"]).ends_with(0);
    shell("chmod -R go+rX \"$1\"", args![store]).ends_with(0);
    let ran = as_nobody(args!["restore", store, "--to", out.join("b")]).ends_with(0);
    assert!(
        ran.err.contains("owner not restored") && ran.err.contains("null"),
        "{}",
        ran.err
    );
    assert_eq!(fs::read(out.join("b/d/f")).unwrap(), b"content");
}

#[test]
fn attributes_that_do_not_fit_cost_one_file_and_many_of_them_no_backup() {
    let dir = temp();
    let tree = dir.path().join("t");
    fs::create_dir(&tree).unwrap();
    let mount = shell("mount -t tmpfs tmpfs \"$1\" -o size=200m", args![tree]);
    if !or_skip(mount.code == 0, "nothing can be mounted") {
        return;
    }
    let script = "import os, sys\nfor i in range(60):\n open(f'{sys.argv[1]}/f{i:02}', 'w').write(str(i))\n \
        for a in range(300 if i == 7 else 12): os.setxattr(f'{sys.argv[1]}/f{i:02}', f'trusted.{a}', bytes(65000))";
    let made = shell("python3 -c \"$2\" \"$1\"", args![tree, script]);
    let (store, back) = (dir.path().join("r"), dir.path().join("b"));
    if or_skip(made.code == 0, "no such attributes can be set") {
        let ran = fullbore(args!["backup", tree, "--to", store]).ends_with(3);
        assert!(
            ran.err.contains("f07") && ran.err.contains("its attributes take"),
            "{}",
            ran.err
        );
        let root = shell("cat \"$1\"/backups/*/root.json", args![store])
            .ends_with(0)
            .out;
        let root: serde_json::Value = serde_json::from_str(&root).unwrap();
        assert!(root["pages"].as_array().unwrap().len() > 1, "{root}");
        fullbore(args!["restore", store, "--to", back]).ends_with(3);
        assert_eq!(fs::read_dir(&back).unwrap().count(), 59);
        assert_eq!(fs::read(back.join("f42")).unwrap(), b"42");
    }
    shell("umount \"$1\"", args![tree]).ends_with(0);
}

/// A file, a link and a pipe.
fn three_kinds(tree: &Path) {
    runs::write(tree.join("file"), "text");
    symlink("file", tree.join("link")).unwrap();
    make_fifo(&tree.join("pipe"));
}

#[test]
fn a_link_or_a_pipe_whose_attributes_cannot_be_read_is_listed_as_a_file_is() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("t");
    three_kinds(&tree);
    for (errno, code) in [("EIO", 3), ("EACCES", 3), ("EOPNOTSUPP", 0), ("ENODATA", 0)] {
        let [target, back] = ["of", "back"].map(|word| dir.path().join(format!("{word} {errno}")));
        let ran = tampered(
            &format!("llistxattr:error={errno}"),
            None,
            args!["backup", tree, "--to", target],
        )
        .ends_with(code);
        for name in ["link", "pipe"] {
            let is_told = ran.err.contains(&format!("not captured: \"{name}\": "));
            assert_eq!(is_told, code == 3, "{errno}: {}", ran.err);
        }
        fullbore(args!["restore", target, "--to", back, "--quiet"]).ends_with(code);
        assert_eq!(
            runs::names(&back).len(),
            if code == 3 { 1 } else { 3 },
            "{errno}"
        );
    }
}

#[test]
fn where_proc_is_not_mounted_nothing_is_lost_in_silence() {
    let bare = |args: &[OsString]| {
        let line = "unshare -m sh -c 'mount -t tmpfs none /proc && exec \"$@\"' sh \"$@\"";
        shell(
            line,
            [OsString::from(FULLBORE)]
                .into_iter()
                .chain(args.iter().cloned()),
        )
    };
    if !or_skip(
        is_root() && bare(&args!["--version"]).code == 0,
        "nothing can be mounted here",
    ) {
        return;
    }
    let dir = temp();
    let [tree, target, back] = ["t", "r", "b"].map(|name| dir.path().join(name));
    three_kinds(&tree);
    set_mode(&tree.join("pipe"), 0o622);
    let is_set = set_xattr(&tree.join("link"), "trusted.a", b"1")
        && set_xattr(&tree.join("pipe"), "trusted.a", b"2");
    let is_set = is_set && shell("setfacl -m u:1234:rw \"$1\"", args![tree.join("pipe")]).code == 0;
    if !or_skip(is_set, "this file system has no attributes or no lists") {
        return;
    }
    let ran = bare(&args!["backup", tree, "--to", target]);
    if ran.code == 3 {
        // Before Linux 6.13.
        for name in ["link", "pipe"] {
            let said = format!(
                "not captured: \"{name}\": it is reached through /proc, which is not mounted"
            );
            assert!(ran.err.contains(&said), "{}", ran.err);
        }
        return;
    }
    ran.ends_with(0);
    let ran = bare(&args!["restore", target, "--to", back]).ends_with(0);
    assert!(!ran.err.contains("note: "), "{}", ran.err);
    assert_same(&shape(&tree), &shape(&back), "without /proc");
    bare(&args!["verify", target, "--against", back]).ends_with(0);
}

#[test]
fn what_is_there_is_not_missing_although_its_attributes_are() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let (tree, target) = (dir.path().join("t"), dir.path().join("r"));
    three_kinds(&tree);
    fullbore(args!["backup", tree, "--to", target, "--quiet"]).ends_with(0);
    let args = args!["verify", target, "--against", tree];
    let ran = tampered("llistxattr:error=ENOENT", None, args).ends_with(1);
    assert!(
        ran.out.contains("pipe: attributes could not be read: ") && !ran.out.contains("missing"),
        "{}",
        ran.out
    );
}

#[test]
fn an_owner_that_the_system_refuses_is_noted_and_one_that_it_fails_to_set_ends_the_restore() {
    if !or_skip(
        is_root() && has("strace"),
        "this is not root, or there is no strace",
    ) {
        return;
    }
    let dir = temp();
    let (tree, target) = (dir.path().join("t"), dir.path().join("r"));
    three_kinds(&tree);
    for (owned, call) in [("file", "fchown"), ("link", "fchownat")] {
        lchown(tree.join(owned), Some(5), Some(5)).unwrap();
        fullbore(args!["backup", tree, "--to", target, "--quiet"]).ends_with(0);
        for (errno, code) in [
            ("EPERM", 0),
            ("EINVAL", 0),
            ("EOPNOTSUPP", 0),
            ("EIO", 1),
            ("EDQUOT", 1),
            ("EROFS", 1),
        ] {
            let back = dir.path().join(format!("{call} {errno}"));
            let ran = tampered(
                &format!("{call}:error={errno}"),
                None,
                args!["restore", target, "--to", back],
            );
            let ran = ran.ends_with(code);
            let said = if code == 0 {
                "owner not restored ("
            } else {
                "could not set the owner of "
            };
            assert!(ran.err.contains(said), "{call} {errno}: {}", ran.err);
            let why = [
                ("EPERM", "operation not permitted"),
                ("EDQUOT", "disk quota exceeded"),
            ];
            let why = why
                .iter()
                .find(|(number, _)| *number == errno)
                .map_or("", |(_, why)| why);
            assert!(ran.err.contains(why), "{call} {errno}: {}", ran.err);
        }
        lchown(tree.join(owned), Some(0), Some(0)).unwrap();
    }
}

#[test]
fn who_may_give_files_away_but_not_dress_them_then_restores_their_content() {
    if !or_skip(is_root() && runs::has("setpriv"), "not root, or no setpriv") {
        return;
    }
    let dir = temp();
    let (tree, store, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    runs::write(tree.join("d/f"), "x");
    symlink("f", tree.join("d/link")).unwrap();
    for name in ["d", "d/f", "d/link"] {
        lchown(tree.join(name), Some(12_345), Some(12_345)).unwrap();
    }
    set_mode(&tree.join("d/f"), 0o4711);
    fullbore(args!["backup", tree, "--to", store, "--quiet"]).ends_with(0);
    let line = "exec setpriv --bounding-set=-fowner --inh-caps=-fowner \"$@\"";
    let ran = shell(line, args![runs::FULLBORE, "restore", store, "--to", back]).ends_with(0);
    for word in ["mode", "time"] {
        assert!(
            ran.err
                .contains(&format!("{word} not restored (operation not permitted)")),
            "{}",
            ran.err
        );
    }
    let meta = fs::metadata(back.join("d/f")).unwrap();
    assert_eq!(
        (
            meta.uid(),
            meta.mode() & 0o6077,
            fs::read(back.join("d/f")).unwrap()
        ),
        (12_345, 0, b"x".to_vec())
    );
    assert_eq!(
        fs::symlink_metadata(back.join("d/link")).unwrap().uid(),
        12_345
    );
}

#[test]
fn a_target_that_may_not_be_listed_is_refused_in_these_words() {
    if !or_skip(is_root() && runs::has("setpriv"), "not root, or no setpriv") {
        return;
    }
    let dir = temp();
    let (tree, store, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    runs::write(tree.join("f"), "x");
    fullbore(args!["backup", tree, "--to", store, "--quiet"]).ends_with(0);
    fs::create_dir(&back).unwrap();
    for path in [dir.path(), &store, &back] {
        set_mode(path, 0o755);
        shell("chown -R 65534:65534 \"$1\"", args![path]).ends_with(0);
    }
    set_mode(&back, 0o300);
    for flags in [&[][..], &["--overwrite=all"], &["--delta"]] {
        let ran = as_nobody(
            args!["restore", store, "--to", back]
                .into_iter()
                .chain(flags.iter().map(Into::into)),
        );
        ran.ends_with(1).has_one_error("could not open the target");
    }
    set_mode(&store, 0);
    let ran = as_nobody(args!["verify", store, "--sample", "5%"]).ends_with(1);
    assert!(
        ran.has_one_error("could not read")
            .err
            .contains("permission denied")
    );
}

#[test]
fn an_attribute_that_the_disk_fails_to_remove_ends_the_restore() {
    if !or_skip(
        has("strace") && has("setfattr"),
        "there is no strace, or no setfattr",
    ) {
        return;
    }
    let dir = temp();
    let [tree, target, back] = ["t", "r", "back"].map(|name| dir.path().join(name));
    runs::write(tree.join("f"), "content");
    fullbore(args!["backup", tree, "--to", target, "--quiet"]).ends_with(0);
    runs::write(back.join("f"), "content");
    for (errno, code) in [("EPERM", 0), ("EIO", 1)] {
        shell(
            "setfattr -n user.foreign -v 1 \"$1\"",
            args![back.join("f")],
        )
        .ends_with(0);
        let args = args!["restore", target, "--to", back, "--delta"];
        let ran = tampered(&format!("fremovexattr:error={errno}"), None, args).ends_with(code);
        let said = if code == 0 {
            "removal of attribute \"user.foreign\""
        } else {
            "could not remove an attribute of "
        };
        assert!(ran.err.contains(said), "{errno}: {}", ran.err);
    }
}

#[test]
fn calls_that_a_container_forbids_are_done_without() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("t");
    runs::sample(&tree);
    for (call, errno) in ["preadv2", "statx", "faccessat2"]
        .iter()
        .flat_map(|call| [(call, "EPERM"), (call, "ENOSYS")])
    {
        let [target, back] =
            ["of", "back"].map(|word| dir.path().join(format!("{word} {call} {errno}")));
        let inject = format!("{call}:error={errno}");
        let [source, into] =
            [&tree, &back].map(|path| path.join("..").join(path.file_name().unwrap()));
        tampered(
            &inject,
            None,
            args!["backup", source, "--to", target, "--quiet"],
        )
        .ends_with(0);
        fs::create_dir(&back).unwrap();
        tampered(
            &inject,
            None,
            args!["restore", target, "--to", into, "--quiet"],
        )
        .ends_with(0);
        assert_same(&shape(&tree), &shape(&back), &inject);
    }
}

#[test]
fn with_what_the_target_was_tried_is_removed_or_said_to_be_left() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let (tree, target) = (dir.path().join("t"), dir.path().join("r"));
    runs::write(tree.join("file"), "text");
    fullbore(args!["backup", tree, "--to", target, "--quiet"]).ends_with(0);
    for (when, left) in [("1", 0), ("1+", 1)] {
        let back = dir.path().join(format!("back {when}"));
        let inject = format!("unlink,unlinkat:error=EIO:when={when}");
        let ran = tampered(&inject, None, args!["restore", target, "--to", back]).ends_with(0);
        let is_told = ran
            .err
            .contains("a temporary file of this restore: input/output error")
            && ran.err.contains(&format!(
                "note: could not remove \"{}/.fullbore-p",
                back.display()
            ));
        assert_eq!(
            (runs::names(&back).len(), is_told),
            (1 + left, left > 0),
            "{}",
            ran.err
        );
    }
}
