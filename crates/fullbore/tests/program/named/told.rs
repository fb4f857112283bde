//! Paths on the command line that would surprise: a run says so, or refuses them.

use super::*;

#[test]
fn an_archive_that_the_backup_goes_to_is_refused_as_a_path_below_another() {
    let dir = temp();
    let base = dir.path().join("t");
    files(&base, &["a/f"]);
    let target = base.join("a/x.tar.zst");
    backup(&[base.join("a")], &target, &[]).ends_with(0);
    let ran = backup(
        &[base.join("a"), target.clone()],
        &target,
        &["--full-paths"],
    )
    .ends_with(2);
    ran.has_one_error("the backup is written to it");
}

#[test]
fn a_path_that_leads_nowhere_fails_the_backup() {
    let dir = temp();
    let base = dir.path().join("t");
    files(&base, &["a/f"]);
    symlink("away/data", base.join("link")).unwrap();
    symlink("loop", base.join("loop")).unwrap();
    symlink("y".repeat(3000), base.join("long")).unwrap();
    symlink("a/f/below", base.join("below a file")).unwrap();
    let destination = dir.path().join("r");
    for name in ["link", "loop", "long", "below a file"] {
        for paths in [
            vec![base.join(name)],
            vec![base.join("a"), base.join(name)],
            vec![base.join(name), base.join("a")],
        ] {
            for options in [&[][..], &["--dry-run"], &["--full-paths"]] {
                let ran = backup(&paths, &destination, options)
                    .ends_with(1)
                    .has_one_error("which does not exist");
                assert!(
                    ran.err
                        .contains(&format!("{:?}: it is a link to ", base.join(name))),
                    "{}",
                    ran.err
                );
                assert!(
                    ran.err
                        .contains("hint:  check whether the disk of the target is mounted"),
                    "{}",
                    ran.err
                );
            }
        }
    }
    assert!(!destination.exists());
}

#[test]
fn a_path_without_content_to_read_fails_the_backup_and_standard_input_is_advised() {
    let dir = temp();
    let base = dir.path().join("t");
    files(&base, &["a/f"]);
    runs::make_fifo(&base.join("pipe"));
    symlink("pipe", base.join("to pipe")).unwrap();
    symlink("/dev/null", base.join("null")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(base.join("socket")).unwrap();
    let target = dir.path().join("r");
    let things = [
        ("pipe", "is a pipe"),
        ("to pipe", "points to a pipe"),
        ("socket", "is a socket"),
    ];
    for (name, word) in things
        .into_iter()
        .chain([("null", "points to a character device")])
    {
        for paths in [vec![base.join(name)], vec![base.join("a"), base.join(name)]] {
            for options in [&[][..], &["--dry-run"], &["--full-paths"]] {
                let ran = backup(&paths, &target, options)
                    .ends_with(1)
                    .has_one_error(word);
                assert!(ran.err.contains("--stdin-name NAME"), "{}", ran.err);
            }
        }
    }
    for line in [
        "\"$1\" backup <(echo dump) --to \"$2\"",
        "echo dump | \"$1\" backup /dev/stdin --to \"$2\"",
    ] {
        let ran = shell(line, args![FULLBORE, target])
            .ends_with(1)
            .has_one_error("points to a pipe");
        assert!(ran.err.contains("--stdin-name NAME"), "{}", ran.err);
    }
    shell(
        "\"$1\" backup /dev/null --to \"$2\"",
        args![FULLBORE, target],
    )
    .ends_with(1)
    .has_one_error("is a character device");
    assert!(!target.exists());
    // Below a PATH they are what they are.
    backup(&[base], &target, &["--quiet"]).ends_with(0);
}

#[test]
fn of_a_block_device_that_is_named_the_node_is_stored_and_that_is_said() {
    let dir = temp();
    let base = dir.path().join("t");
    files(&base, &["a/f"]);
    let node = "mknod \"$1\" b 259 4000";
    if !or_skip(
        is_root() && shell(node, args![base.join("disk")]).code == 0,
        "no device can be made here",
    ) {
        return;
    }
    symlink("disk", base.join("to disk")).unwrap();
    let target = dir.path().join("r");
    for paths in [
        vec![base.join("disk")],
        vec![base.join("a"), base.join("disk")],
    ] {
        let ran = backup(&paths, &target, &["--dry-run"]).ends_with(0);
        assert!(
            ran.err.contains("only the node of the block device"),
            "{}",
            ran.err
        );
        let ran = backup(&paths, &target, &[]).ends_with(0);
        assert!(
            ran.err.contains("only the node of the block device"),
            "{}",
            ran.err
        );
    }
    let ran = backup(&[base.join("to disk")], &target, &[])
        .ends_with(1)
        .has_one_error("points to a block device");
    assert!(
        ran.err.contains("--stdin-name NAME < DEVICE"),
        "{}",
        ran.err
    );
}

#[test]
fn a_link_to_a_file_is_stored_as_one_and_that_is_said_of_each() {
    let dir = temp();
    files(dir.path(), &["releases/5", "releases/6", "d/f"]);
    let [five, six] = ["5", "6"].map(|name| dir.path().join(format!("link {name}")));
    symlink("releases/5", &five).unwrap();
    symlink("releases/6", &six).unwrap();
    let warned = |paths: &[&PathBuf]| {
        let paths: Vec<PathBuf> = paths.iter().map(|path| (*path).clone()).collect();
        let ran = backup(&paths, Path::new("null:"), &[]).ends_with(0);
        ["5", "6"].map(|name| {
            ran.err
                .contains(&format!("link {name}\" is a link and is stored as a link"))
        })
    };
    assert_eq!(warned(&[&five]), [true, false]);
    assert_eq!(warned(&[&six, &five]), [true, true]);
    assert_eq!(warned(&[&dir.path().join("d"), &six]), [false, true]);
}

#[test]
fn marks_in_a_path_that_is_named_do_not_count_and_that_is_said() {
    let dir = temp();
    let base = dir.path().join("t");
    files(
        &base,
        &["a/.nobackup", "a/sub/.nobackup", "a/sub/x", "a/z", "c/y"],
    );
    let tag = "Signature: 8a477f597d28d172789f06886806bc55";
    ["c/CACHEDIR.TAG", "c/sub/CACHEDIR.TAG"]
        .iter()
        .for_each(|name| runs::write(base.join(name), tag));
    files(&base, &["c/sub/x"]);
    let options = ["--exclude-caches", "--exclude-if-present", ".nobackup"];
    let stored = |paths: &[&str], more: &[&str]| {
        let target = dir.path().join("r");
        let _ = fs::remove_dir_all(&target);
        let paths: Vec<PathBuf> = paths.iter().map(|path| base.join(path)).collect();
        let dry = backup(
            &paths,
            &target,
            &[&options[..], more, &["--dry-run"]].concat(),
        )
        .ends_with(0);
        let ran = backup(&paths, &target, &[&options[..], more].concat()).ends_with(0);
        assert_eq!(
            dry.out.matches(" contains ").count(),
            ran.err.matches(" contains ").count(),
            "{}{}",
            dry.out,
            ran.err
        );
        for path in paths {
            let said = ran
                .err
                .matches(&format!("warning: {path:?} contains "))
                .count();
            assert_eq!(said, 1, "{path:?}: {}", ran.err);
        }
        let base = if more.is_empty() {
            Path::new("")
        } else {
            &base
        };
        listed(&target, base)
    };
    assert_eq!(stored(&["a"], &[]), ["", ".nobackup", "sub", "z"]);
    assert_eq!(
        stored(&["c"], &[]),
        ["", "CACHEDIR.TAG", "sub", "sub/CACHEDIR.TAG", "y"]
    );
    let both = [
        "a",
        "a/.nobackup",
        "a/sub",
        "a/z",
        "c",
        "c/CACHEDIR.TAG",
        "c/sub",
        "c/sub/CACHEDIR.TAG",
        "c/y",
    ];
    assert_eq!(stored(&["a", "c"], &[]), both);
    assert_eq!(stored(&["c", "a"], &["--full-paths"]), both);
    let below = [
        "a",
        "a/.nobackup",
        "a/sub",
        "a/sub/.nobackup",
        "a/sub/x",
        "a/z",
    ];
    assert_eq!(stored(&["a/sub", "a"], &["--full-paths"]), below);
    let quiet = backup(
        &[base.join("a")],
        Path::new("null:"),
        &[&options[..], &["--quiet"]].concat(),
    )
    .ends_with(0);
    assert_eq!(quiet.err, "");
    let list = dir.path().join("list");
    fs::write(&list, "z\nsub\nsub/x\n").unwrap();
    let by_list = args!["--files-from", list, "--exclude-if-present", ".nobackup"];
    let target = dir.path().join("l");
    fullbore(
        args!["backup", base.join("a"), "--to", target, "--quiet"]
            .into_iter()
            .chain(by_list),
    )
    .ends_with(0);
    assert_eq!(listed(&target, Path::new("")), ["", "sub", "z"]);
}

#[test]
fn a_path_is_called_as_it_was_named_wherever_it_leads() {
    let dir = temp();
    let base = dir.path().canonicalize().unwrap().join("t");
    let current = base.join("current");
    let sources = |target: &Path| -> Vec<serde_json::Value> {
        let backups = fullbore(args!["list", target, "--json"])
            .ends_with(0)
            .json();
        backups
            .into_iter()
            .map(|backup| backup["source"]["paths"].clone())
            .collect()
    };
    for release in 1..=3 {
        let name = format!("releases/{release}");
        runs::write(base.join(&name).join("conf/f"), runs::noise(1, 200_000));
        runs::write(base.join(&name).join("version"), release.to_string());
        let _ = fs::remove_file(&current);
        symlink(&name, &current).unwrap();
        let cases = [
            (vec![current.clone()], &[][..]),
            (vec![current.clone()], &["--full-paths"]),
            (vec![current.join("conf")], &[]),
            (vec![current.clone(), base.join("releases/1")], &[]),
        ];
        for (index, (paths, options)) in cases.into_iter().enumerate() {
            let target = dir.path().join(format!("r{index}"));
            let made = backup(&paths, &target, &[options, &["--json"]].concat())
                .ends_with(0)
                .json()
                .pop()
                .unwrap();
            let mut paths = paths.clone();
            paths.sort_by_key(|path| path.file_name().map(OsStr::to_owned));
            let expected = serde_json::json!(paths);
            assert!(
                sources(&target).iter().all(|source| *source == expected),
                "{:?}",
                sources(&target)
            );
            assert_eq!(
                made["bases"].as_array().unwrap().is_empty(),
                release == 1,
                "{made}"
            );
            let stored = made["stored_bytes"].as_u64().unwrap();
            assert!(
                release == 1 || stored < 100_000,
                "{release} {options:?}: {stored}"
            );
        }
    }
    fullbore(args!["forget", dir.path().join("r0"), "--keep-last", "1"]).ends_with(0);
    assert_eq!(sources(&dir.path().join("r0")).len(), 1);
    // Relative ones are of the directory that they are relative to; what is behind `..` is as it was named.
    for (line, expected) in [
        (
            "cd \"$2/current\" && \"$1\" backup . --to \"$3\" -q",
            base.join("releases/3"),
        ),
        (
            "cd \"$2\" && \"$1\" backup current --to \"$3\" -q",
            current.clone(),
        ),
        (
            "cd \"$2\" && \"$1\" backup ./current/. --to \"$3\" -q",
            current.clone(),
        ),
        (
            "cd \"$2/releases\" && \"$1\" backup ../current --to \"$3\" -q",
            current.clone(),
        ),
        (
            "cd \"$2\" && \"$1\" backup current/../1 --to \"$3\" -q",
            base.join("releases/1"),
        ),
        (
            "\"$1\" backup \"$2/current/\" --to \"$3\" -q",
            current.clone(),
        ),
    ] {
        let target = temp();
        let target = target.path().join("r");
        shell(line, args![FULLBORE, base, target]).ends_with(0);
        assert_eq!(sources(&target), [serde_json::json!([expected])], "{line}");
    }
}

#[test]
fn a_pattern_that_matches_nothing_is_said_once_at_the_end() {
    let dir = temp();
    let base = dir.path().join("t");
    files(&base, &["a.log", "sub/b.log", "sub/cache/x"]);
    let list = dir.path().join("list");
    fs::write(&list, "# names\n/gone/*.bak\n*.old\n\nsub/\n").unwrap();
    let of_list = list.display().to_string();
    let run = |options: &[&str]| {
        backup(std::slice::from_ref(&base), &dir.path().join("r"), options).ends_with(0)
    };
    let said = |ran: &Ran| -> Vec<String> {
        let lines = ran
            .err
            .lines()
            .chain(ran.out.lines())
            .filter(|line| line.starts_with("warning: "));
        lines.map(str::to_owned).collect()
    };
    let cases: [(&[&str], &[&str]); 6] = [
        (&["--exclude", "*.log", "--exclude", "/sub/cache"], &[]),
        (&["--exclude", "*.log", "--exclude", "/cahce"], &["/cahce"]),
        (
            &[
                "--exclude",
                "./a.log",
                "--exclude",
                "a.log/",
                "--exclude",
                "!a.log",
            ],
            &["./a.log"],
        ),
        (&["--exclude-from", &of_list], &["/gone/*.bak"]),
        (
            &["--exclude-from", &of_list, "--exclude", "/sub/b.log"],
            &["/gone/*.bak", "/sub/b.log"],
        ),
        // The first one is not wrong, though the second one decides.
        (&["--exclude", "a.log", "--exclude", "*.log"], &[]),
    ];
    for (options, unmatched) in cases {
        for dry in [&[][..], &["--dry-run"]] {
            let options = [options, dry].concat();
            let ran = run(&options);
            let warnings = said(&ran);
            assert_eq!(
                warnings.len(),
                usize::from(!unmatched.is_empty()),
                "{options:?}: {warnings:?}"
            );
            let names: Vec<String> = unmatched.iter().map(|name| format!("{name:?}")).collect();
            let list = format!("{} matched nothing", names.join(", "));
            assert!(
                warnings.iter().all(|line| line.contains(&list)),
                "{list}: {warnings:?}"
            );
            let quiet = run(&[&options[..], &["--quiet"]].concat());
            assert_eq!((&*quiet.out, &*quiet.err), ("", ""), "{options:?}");
            let json = run(&[&options[..], &["--json"]].concat())
                .json()
                .pop()
                .unwrap();
            assert_eq!(
                json["warnings"].as_array().unwrap().len(),
                warnings.len(),
                "{json}"
            );
        }
    }
    let typed = said(&run(&["--exclude", "./cache"]));
    assert!(
        typed.len() == 1
            && typed[0].ends_with(
                "\"cache\" is that name anywhere, \"/cache\" is that path of the backup"
            ),
        "{typed:?}"
    );
    let many: Vec<String> = (0..12).map(|n| format!("/none-{n}")).collect();
    let options: Vec<&str> = many.iter().flat_map(|name| ["--exclude", name]).collect();
    let warnings = said(&run(&options));
    assert!(
        warnings.len() == 1 && warnings[0].contains("12 patterns matched nothing, the first are"),
        "{warnings:?}"
    );
}

#[test]
fn no_pattern_excludes_a_path_that_is_named_and_that_is_said() {
    let dir = temp();
    let base = dir.path().join("t");
    files(&base, &["a/home/f", "a/z"]);
    let pattern = base.join("a/home").display().to_string();
    for paths in [
        vec![base.join("a/home")],
        vec![base.join("a"), base.join("a/home")],
    ] {
        let target = dir.path().join(format!("r{}", paths.len()));
        let ran = backup(&paths, &target, &["--full-paths", "--exclude", &pattern]).ends_with(0);
        assert!(ran.err.contains("matched nothing"), "{}", ran.err);
        assert!(listed(&target, &base).contains(&"a/home/f".to_owned()));
    }
}

#[test]
fn an_absolute_pattern_is_a_place_of_this_machine_or_of_the_backup() {
    let dir = temp();
    let base = dir.path().canonicalize().unwrap().join("t");
    files(
        &base,
        &[
            "data/cache/x",
            "data/data/cache/y",
            "data/f",
            "www/cache/z",
            "www/g",
        ],
    );
    symlink("data", base.join("link")).unwrap();
    let path_text = |path: &str| base.join(path).display().to_string();
    let stored = |paths: &[&str], patterns: &[&str], options: &[&str]| {
        let target = dir.path().join("r");
        let _ = fs::remove_dir_all(&target);
        let paths: Vec<PathBuf> = paths.iter().map(|path| base.join(path)).collect();
        let patterns: Vec<&str> = patterns
            .iter()
            .flat_map(|pattern| ["--exclude", pattern])
            .collect();
        let ran = backup(&paths, &target, &[&patterns[..], options].concat()).ends_with(0);
        assert!(!ran.err.contains("matched nothing"), "{}", ran.err);
        let base = if options.is_empty() {
            Path::new("")
        } else {
            &base
        };
        let mut names = listed(&target, base);
        names.retain(|name| !name.is_empty());
        names
    };
    let rest = ["data", "data/cache", "data/cache/y", "f"];
    assert_eq!(stored(&["data"], &["/cache"], &[]), rest);
    for pattern in [
        path_text("data/cache"),
        path_text("data//cache/"),
        path_text("data") + "/cach*",
    ] {
        assert_eq!(stored(&["data"], &[&pattern], &[]), rest, "{pattern}");
        assert_eq!(stored(&["link"], &[&pattern], &[]), rest, "{pattern}");
    }
    assert_eq!(stored(&["link"], &[&path_text("link/cache")], &[]), rest);
    let but = "!".to_owned() + &path_text("data/data");
    assert_eq!(
        stored(&["data"], &[&path_text("data/*"), "!/f", &but], &[]),
        rest
    );
    // Of several PATHs, each of them.
    let several = [
        "data",
        "data/data",
        "data/data/cache",
        "data/data/cache/y",
        "data/f",
        "www",
        "www/g",
    ];
    assert_eq!(
        stored(&["data", "www"], &["/data/cache", "/www/cache"], &[]),
        several
    );
    assert_eq!(
        stored(
            &["www", "data"],
            &[&path_text("data/cache"), &path_text("www/cache")],
            &[]
        ),
        several
    );
    // Under whole paths the two are one.
    assert_eq!(
        stored(
            &["data", "www"],
            &[&path_text("data/cache"), &path_text("www/cache")],
            &["--full-paths"]
        ),
        several
    );
    let linked = stored(&["link"], &[&path_text("data/cache")], &["--full-paths"]);
    assert_eq!(
        linked,
        [
            "link",
            "link/data",
            "link/data/cache",
            "link/data/cache/y",
            "link/f"
        ]
    );
    // A PATH of the same name as what is in it: the place of this machine is meant.
    let line = "cd \"$2\" && unshare -m sh -c 'mount --bind \"$1\" /srv && exec \"$0\" backup /srv --to \"$2\" --exclude /srv/f' \"$1\" data \"$3\"";
    let target = dir.path().join("s");
    runs::write(base.join("data/srv/f"), "within");
    if or_skip(
        is_root() && Path::new("/srv").is_dir() && has("unshare"),
        "nothing can be mounted here",
    ) {
        shell(line, args![FULLBORE, base, target]).ends_with(0);
        let names = listed(&target, Path::new(""));
        assert!(
            names.contains(&"srv/f".to_owned()) && !names.contains(&"f".to_owned()),
            "{names:?}"
        );
    }
}

#[test]
fn a_list_that_names_what_is_below_a_link_is_told_where_that_is() {
    let dir = temp();
    let base = dir.path().join("t");
    files(&base, &["releases/42/f", "z"]);
    symlink("releases/42", base.join("current")).unwrap();
    let (list, target) = (dir.path().join("list"), dir.path().join("r"));
    fs::write(&list, "current/f\ncurrent/sub/g\nz\n").unwrap();
    let ran = fullbore(args!["backup", base, "--files-from", list, "--to", target]).ends_with(3);
    for name in ["current/f", "current/sub/g"] {
        let said = format!(
            "not captured: {name:?}: \"current\" is a symbolic link to \"releases/42\", and links are not followed"
        );
        assert!(ran.err.contains(&said), "{}", ran.err);
    }
    // What was not captured is listed, too.
    assert_eq!(
        listed(&target, Path::new("")),
        ["", "current", "current/f", "current/sub/g", "z"]
    );
}

#[test]
fn names_of_any_bytes_are_taken() {
    let dir = temp();
    let name = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let base = dir.path().join(name(b"t\xe9"));
    let cafe = base.join(name(b"caf\xe9"));
    runs::write(cafe.join("f"), "f");
    runs::write(base.join(name(b"m\xff/.no\xfe")), "");
    runs::write(base.join(name(b"m\xff/in")), "in");
    runs::write(base.join("z"), "z");
    let target = dir.path().join(name(b"r\xe9"));
    let run = |args: &[OsString]| fullbore(args.iter().cloned());
    run(&args!["backup", base, "--to", target]).ends_with(0);
    let paths = |source: &OsString| -> Vec<Vec<u8>> {
        let back = temp();
        let back = back.path().join("b");
        run(&args!["restore", source, "--to", back, "--quiet"]).ends_with(0);
        shape(&back)
            .into_keys()
            .filter(|path| !path.is_empty())
            .collect()
    };
    let target = target.into_os_string();
    assert_eq!(paths(&target).len(), 6);
    run(&args!["find", target, name(b"caf\xe9")]).ends_with(0);
    run(&args!["find", target, name(b"/caf\xe9/f")]).ends_with(0);
    let none = run(&args!["find", target, name(b"caf\xea")]).ends_with(1);
    none.has_one_error("could not find");
    let latest = OsString::from_vec([target.as_bytes(), b"@latest"].concat());
    for args in [
        &args!["list", target][..],
        &args!["list", latest, name(b"caf\xe9")],
        &args!["show", latest],
        &args!["verify", target, "--data"],
        &args!["verify", latest, "--against", base],
        &args!["verify", target, "--for", "1m"],
        &args!["verify", target, "--sample", "50%"],
        &args!["tag", latest, "a=b"],
        &args!["pin", latest],
        &args!["unpin", latest],
        &args!["repair", target],
        &args!["forget", target, "--keep-last", "9"],
        &args!["prune", target],
        &args!["restore", latest, name(b"caf\xe9/f"), "--plan"],
        &args![
            "export",
            latest,
            "--to",
            dir.path().join(name(b"x\xe9.tar.zst"))
        ],
        &args!["list", dir.path().join(name(b"x\xe9.tar.zst"))],
        &args![
            "export",
            dir.path().join(name(b"x\xe9.tar.zst")),
            "--to",
            "-"
        ],
        &args!["copy", latest, dir.path().join(name(b"copy\xe9"))],
        &args![
            "backup",
            base,
            "--to",
            target,
            "--report",
            dir.path().join(name(b"page\xe9.html"))
        ],
        &args!["diff", target, "latest", "latest", name(b"caf\xe9")],
    ] {
        run(args).ends_with(0);
    }
    let patterns = dir.path().join(name(b"patterns\xe9"));
    fs::write(&patterns, b"m\xff\n").unwrap();
    for (options, left) in [
        (args!["--exclude", name(b"caf\xe9")], 4),
        (args!["--exclude", name(b"/caf[\xe0-\xef]/")], 4),
        (args!["--exclude", cafe], 4),
        (args!["--exclude-from", patterns], 3),
        (args!["--exclude-if-present", name(b".no\xfe")], 4),
    ] {
        let into = dir.path().join("excluded.tar.zst");
        let ran = run(&[&args!["backup", base, "--to", into][..], &options].concat()).ends_with(0);
        assert!(
            !ran.err.contains("matched nothing"),
            "{options:?}: {}",
            ran.err
        );
        assert_eq!(
            paths(&into.clone().into_os_string()).len(),
            left,
            "{options:?}"
        );
        run(&args!["show", into]).ends_with(0);
    }
    let stream = dir.path().join("stream.tar.zst");
    let ran: Ran = runs::fed(
        args!["backup", "--stdin-name", name(b"dump\xe9"), "--to", stream],
        b"dump",
    )
    .into();
    ran.ends_with(0);
    assert_eq!(paths(&stream.into_os_string()), [b"dump\xe9".to_vec()]);
}
