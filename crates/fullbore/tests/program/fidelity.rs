//! What a file system can hold comes back; what cannot be captured or restored is said.

use crate::runs::{
    self, FULLBORE, Ran, assert_same, fed, fullbore, has, is_root, make_fifo, noise, or_skip,
    set_mode, set_mtime, set_xattr, shape, shell, tampered, temp, write,
};
use rustix::fs::{CWD, FileType, Mode, makedev, mkdirat, mknodat};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::Write,
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt, MetadataExt, chown, lchown, symlink},
    },
    path::Path,
    time::{Duration, Instant},
};

/// Back up `tree`, by a repository and by one file, and compare what comes back.
fn assert_comes_back(tree: &Path) {
    let dir = temp();
    let before = shape(tree);
    fullbore(args!["init", dir.path().join("repository")]).ends_with(0); // a new one is announced
    for target in ["repository", "x.tar.zst", "x.tar.lz4"].map(|target| dir.path().join(target)) {
        let back = dir.path().join("back");
        let ran = fullbore(args!["backup", tree, "--to", target, "--quiet"]);
        assert_eq!((ran.code, &*ran.err), (0, ""));
        let ran = fullbore(args!["restore", target, "--to", back, "--json"]).ends_with(0);
        assert_eq!(ran.json().last().unwrap()["notes"], serde_json::json!([]));
        assert_same(&before, &shape(&back), &format!("{target:?}"));
        fullbore(args!["verify", target, "--data", "--against", back]).ends_with(0);
        shell("chmod -R u+rwX \"$1\"; rm -rf \"$1\"", args![back]).ends_with(0);
    }
}

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
fn modes_with_setuid_setgid_and_sticky_come_back() {
    let dir = temp();
    for mode in [0o4755, 0o2755, 0o1644, 0o7777, 0o6711, 0o600, 0o444] {
        let file = dir.path().join(format!("f{mode:o}"));
        runs::write(&file, "x");
        set_mode(&file, mode);
        let sub = dir.path().join(format!("d{mode:o}"));
        fs::create_dir(&sub).unwrap();
        set_mode(&sub, mode | 0o700);
    }
    assert_comes_back(dir.path());
}

#[test]
fn owners_come_back_with_the_setuid_bits_they_would_clear() {
    if !or_skip(is_root(), "owners are set by root only") {
        return;
    }
    let dir = temp();
    let file = dir.path().join("f");
    runs::write(&file, "x");
    chown(&file, Some(12_345), Some(4_000_000_000)).unwrap();
    set_mode(&file, 0o6755);
    symlink("f", dir.path().join("link")).unwrap();
    lchown(dir.path().join("link"), Some(7), Some(8)).unwrap();
    let sub = dir.path().join("sub");
    fs::create_dir(&sub).unwrap();
    chown(&sub, Some(65_534), Some(2)).unwrap();
    set_mode(&sub, 0o2770);
    assert_comes_back(dir.path());
}

#[test]
fn owners_are_stored_by_name_and_restored_by_number_if_asked() {
    let dir = temp();
    let (tree, store, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    runs::write(tree.join("f"), "x");
    fullbore(args!["backup", tree, "--to", store, "--quiet"]).ends_with(0);
    let ran = fullbore(args![
        "list",
        format!("{}@latest", store.display()),
        "--json",
        "f"
    ])
    .ends_with(0);
    let name = shell("id -un; id -gn", []).out;
    let entry = &ran.json()[0];
    assert_eq!(
        format!(
            "{}\n{}\n",
            entry["user"].as_str().unwrap(),
            entry["group"].as_str().unwrap()
        ),
        name
    );
    fullbore(args![
        "restore",
        store,
        "--to",
        back,
        "--numeric-owner",
        "--quiet"
    ])
    .ends_with(0);
    assert_same(&shape(&tree), &shape(&back), "by number");
}

#[test]
fn times_to_the_nanosecond_come_back() {
    let dir = temp();
    for (seconds, nanos) in [
        (0, 0),
        (0, 1),
        (-1, 999_999_999),
        (1, 999_999_999),
        (2_147_483_648, 7),
        (8_589_934_592, 0),
        (-2_000_000_000, 5),
    ] {
        let file = dir.path().join(format!("{seconds}.{nanos}"));
        runs::write(&file, "x");
        set_mtime(&file, seconds, nanos);
    }
    let sub = dir.path().join("sub");
    runs::write(sub.join("f"), "y");
    symlink("f", sub.join("link")).unwrap();
    set_mtime(&sub.join("link"), 1, 2);
    set_mtime(&sub, 3, 4);
    set_mtime(dir.path(), 5, 6);
    assert_comes_back(dir.path());
}

#[test]
fn attributes_of_users_come_back() {
    let dir = temp();
    let file = dir.path().join("f");
    runs::write(&file, "x");
    if !or_skip(set_xattr(&file, "user.a", b"one"), "no attributes here") {
        return;
    }
    set_xattr(&file, "user.with = and\nmore", b"=\n\0\xff");
    set_xattr(&file, "user.empty", b"");
    set_xattr(&file, "user.long", &noise(1, 2000));
    fs::create_dir(dir.path().join("d")).unwrap();
    set_xattr(&dir.path().join("d"), "user.d", b"directory");
    set_xattr(dir.path(), "user.root", b"root");
    let large = dir.path().join("large");
    runs::write(&large, noise(2, 3_000_000));
    set_xattr(&large, "user.large", b"yes");
    assert_comes_back(dir.path());
}

#[test]
fn attributes_of_the_system_and_capabilities_come_back_as_root() {
    if !or_skip(is_root() && has("setcap"), "root and setcap are needed") {
        return;
    }
    let dir = temp();
    for (name, bytes) in [("small", noise(1, 10)), ("large", noise(2, 3_000_000))] {
        let file = dir.path().join(name);
        runs::write(&file, bytes);
        set_mode(&file, 0o755);
        assert!(set_xattr(&file, "trusted.t", b"\0\x01\xff"));
        shell("setcap cap_net_raw,cap_sys_admin+ep \"$1\"", args![file]).ends_with(0);
        assert!(
            shape(dir.path())[name.as_bytes()]
                .xattrs
                .contains_key("security.capability")
        );
    }
    symlink("small", dir.path().join("link")).unwrap();
    assert!(set_xattr(
        &dir.path().join("link"),
        "trusted.link",
        b"of its own"
    ));
    runs::make_fifo(&dir.path().join("fifo"));
    assert!(set_xattr(&dir.path().join("fifo"), "trusted.fifo", b"too"));
    assert_comes_back(dir.path());
}

#[test]
fn access_lists_come_back() {
    let dir = temp();
    runs::write(dir.path().join("f"), "x");
    fs::create_dir(dir.path().join("d")).unwrap();
    let line = "cd \"$1\" && setfacl -m u:12345:rw,g:54321:r,u:nobody:rwx,m::rw f && setfacl -m u:7:rwx,d:u:7:rx,d:g:daemon:rwx d";
    if !or_skip(
        shell(line, args![dir.path()]).code == 0,
        "no access lists here",
    ) {
        return;
    }
    runs::write(dir.path().join("d/inherits"), "y");
    let lists = |path: &Path| {
        shell("cd \"$1\" && getfacl -n f d d/inherits", args![path])
            .ends_with(0)
            .out
    };
    assert!(lists(dir.path()).contains("default:user:7:r-x"));
    assert_comes_back(dir.path());
    let (out, before) = (temp(), lists(dir.path()));
    fullbore(args![
        "backup",
        dir.path(),
        "--to",
        out.path().join("r"),
        "--quiet"
    ])
    .ends_with(0);
    fullbore(args![
        "restore",
        out.path().join("r"),
        "--to",
        out.path().join("b"),
        "--quiet"
    ])
    .ends_with(0);
    assert_eq!(lists(&out.path().join("b")), before);
}

/// Two hosts on which alice has different numbers; on the second one her old number is mallory's.
#[test]
fn rights_of_a_list_go_to_the_name_that_had_them() {
    let dir = temp();
    let make = r#"cd "$1" && cp /etc/passwd pA && cp /etc/passwd pB && cp /etc/group gA && cp /etc/group gB &&
echo 'alice:x:31001:31001::/:/bin/sh' >>pA && printf 'alice:x:32001:32001::/:/bin/sh\nmallory:x:31001:31001::/:/bin/sh\n' >>pB &&
echo 'bob:x:31002:31002::/:/bin/sh' >>pA && echo alice:x:31001: >>gA && printf 'alice:x:32001:\nmallory:x:31001:\n' >>gB &&
mkdir s && echo x >s/f && mkdir s/d && setfacl -m u:31001:rw,g:31001:r,u:31003:x s/f && setfacl -d -m u:31001:rwx s/d && setfacl -m u:31002:r s/d"#;
    let is_possible = is_root() && has("unshare") && has("setfacl");
    if !or_skip(is_possible, "not root, or no unshare or setfacl") {
        return;
    }
    shell(make, args![dir.path()]).ends_with(0);
    let run_on = |host: &str, line: &str| {
        let line = format!(
            "cd \"$2\" && unshare -m --propagation private sh -c 'mount --bind p{host} /etc/passwd && mount --bind g{host} /etc/group && \
             fullbore=\"$0\" && {line}' \"$1\""
        );
        shell(&line, args![FULLBORE, dir.path()])
    };
    let lists = |path: &str| {
        let line = format!(
            "cd \"$1\" && getfacl -n -p {path}/f {path}/d | grep -E '^(default:)?(user|group):[0-9]'"
        );
        shell(&line, args![dir.path()]).ends_with(0).out
    };
    run_on(
        "A",
        "\"$fullbore\" backup s --to r -q && \"$fullbore\" backup s --to x.tar.zst -q",
    )
    .ends_with(0);
    let ran = run_on("B", "\"$fullbore\" restore r --to o").ends_with(0);
    let mapped =
        "user:31003:--x\nuser:32001:rw-\ngroup:32001:r--\nuser:31002:r--\ndefault:user:32001:rwx\n";
    assert_eq!(lists("o"), mapped);
    assert!(ran.err.contains("permissions of \"bob\""), "{}", ran.err);
    run_on("B", "\"$fullbore\" restore r --to n --numeric-owner -q").ends_with(0);
    assert_eq!(lists("n"), lists("s"));
    run_on("B", "mkdir t && zstd -dc x.tar.zst | tar --acls -xf - -C t 2>/dev/null; \"$fullbore\" copy s c -q").ends_with(0);
    assert!(
        lists("t").contains("user:32001:rw-"),
        "stock tar maps names: {}",
        lists("t")
    );
    assert_eq!(lists("c"), lists("s"), "a copy on one host");
    run_on("B", "\"$fullbore\" verify r --against o").ends_with(0);
    let ran = run_on(
        "B",
        "setfacl -m u:31001:rw,u:32001:- o/f && \"$fullbore\" verify r --against o",
    );
    assert_eq!(ran.code, 1, "her rights are those of another: {}", ran.out);
}

#[test]
fn devices_come_back_as_root() {
    let dir = temp();
    let make = |name: &str, kind, device| {
        mknodat(
            CWD,
            dir.path().join(name),
            kind,
            Mode::from_raw_mode(0o640),
            device,
        )
        .is_ok()
    };
    let made = make("null", FileType::CharacterDevice, makedev(1, 3))
        && make("big", FileType::BlockDevice, makedev(259, 70_000));
    if or_skip(made, "devices are made by root only") {
        runs::make_fifo(&dir.path().join("fifo"));
        assert_comes_back(dir.path());
    }
}

#[test]
fn names_of_any_bytes_come_back() {
    let dir = temp();
    for byte in (1..=255u8).filter(|byte| *byte != b'/') {
        let name: OsString = std::os::unix::ffi::OsStringExt::from_vec(vec![b'x', byte]);
        runs::write(dir.path().join(name), [byte]);
    }
    for name in [
        "n".repeat(255),
        " ".into(),
        "a\\".into(),
        "-rf".into(),
        "...".into(),
        "ü".repeat(100),
    ] {
        runs::write(dir.path().join(&name), name.as_bytes());
    }
    assert_comes_back(dir.path());
}

#[test]
fn directories_of_many_names_come_back_with_what_is_below_them() {
    // More names than one thread looks at in a go, and directories on both sides of each border, also of many names.
    let dir = temp();
    for i in 0..1700 {
        let name = dir.path().join(format!("{i:04}"));
        match i {
            3 | 511 | 512 | 513 | 1024 | 1600..1650 => {
                fs::create_dir_all(name.join("below/deeper")).unwrap();
                (0..if i == 512 { 1100 } else { 3 })
                    .for_each(|i| runs::write(name.join(format!("below/{i}")), b"b"));
            }
            _ => runs::write(name, i.to_string()),
        }
    }
    fs::hard_link(dir.path().join("0007"), dir.path().join("1699 again")).unwrap();
    assert_comes_back(dir.path());
}

#[test]
fn paths_deeper_than_the_system_takes_come_back() {
    let dir = temp();
    let tree = dir.path().join("t");
    fs::create_dir(&tree).unwrap();
    let mut directory: OwnedFd = File::open(&tree).unwrap().into();
    for level in 0..60 {
        let name = format!("{level:02}{}", "d".repeat(120));
        mkdirat(&directory, &*name, Mode::from_raw_mode(0o755)).unwrap();
        directory = rustix::fs::openat(
            &directory,
            &*name,
            rustix::fs::OFlags::DIRECTORY,
            Mode::empty(),
        )
        .unwrap();
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    let file = rustix::fs::openat(
        &directory,
        "at the bottom",
        flags,
        Mode::from_raw_mode(0o600),
    )
    .unwrap();
    File::from(file).write_all(b"deep").unwrap();
    rustix::fs::symlinkat("target", &directory, "link").unwrap();
    assert!(shape(&tree).keys().any(|path| path.len() > 7000));
    assert_comes_back(&tree);
    fullbore(args![
        "backup",
        tree,
        "--to",
        dir.path().join("x.tar"),
        "--quiet"
    ])
    .ends_with(0);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    shell("rm -rf \"$1\" && mv \"$2\" \"$1\"", args![tree, out]).ends_with(0);
}

#[test]
fn a_terabyte_of_holes_costs_what_its_data_costs() {
    let dir = temp();
    let (tree, store, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    fs::create_dir(&tree).unwrap();
    let file = File::create(tree.join("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    for i in 0..16u64 {
        file.write_all_at(&noise(i, 64 << 10), i * (1 << 40) / 16 + 4096)
            .unwrap();
    }
    fs::write(tree.join("edge"), "").unwrap();
    File::options()
        .write(true)
        .open(tree.join("edge"))
        .unwrap()
        .set_len(1 << 33)
        .unwrap();
    let start = Instant::now();
    let ran = fullbore(args!["backup", tree, "--to", store, "--json"]).ends_with(0);
    let result = ran.json().pop().unwrap();
    assert_eq!(result["bytes"], (1u64 << 40) + (1 << 33));
    assert!(
        result["stored_bytes"].as_u64().unwrap() < 1_200_000,
        "{result}"
    );
    fullbore(args!["restore", store, "--to", back, "--quiet"]).ends_with(0);
    fullbore(args!["verify", store, "--data", "--against", back]).ends_with(0);
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "{:?}",
        start.elapsed()
    );
    assert_same(&shape(&tree), &shape(&back), "sparse");
    let blocks = fs::metadata(back.join("sparse")).unwrap().blocks();
    assert!(blocks * 512 <= 1_500_000, "{blocks} blocks");
    assert_eq!(fs::metadata(back.join("edge")).unwrap().len(), 1 << 33);
}

#[test]
fn a_file_over_8_gib_comes_back_with_its_length() {
    // Its data is at its end: the length needs more than eleven octal digits of a header.
    let dir = temp();
    let tree = dir.path().join("t");
    fs::create_dir(&tree).unwrap();
    let file = File::create(tree.join("f")).unwrap();
    file.write_all_at(b"end", (9 << 30) + 1).unwrap();
    assert_comes_back(&tree);
}

#[test]
fn hard_links_stay_hard_across_directories() {
    let dir = temp();
    runs::write(dir.path().join("z/first"), noise(1, 200_000));
    runs::write(dir.path().join("a/b/c"), "small");
    fs::hard_link(dir.path().join("z/first"), dir.path().join("a/second")).unwrap();
    fs::hard_link(dir.path().join("z/first"), dir.path().join("third")).unwrap();
    fs::hard_link(dir.path().join("a/b/c"), dir.path().join("z/c")).unwrap();
    assert_comes_back(dir.path());
    let (out, only) = (temp(), "z");
    fullbore(args![
        "backup",
        dir.path(),
        "--to",
        out.path().join("r"),
        "--quiet"
    ])
    .ends_with(0);
    fullbore(args![
        "restore",
        out.path().join("r"),
        "--to",
        out.path().join("b"),
        only,
        "--quiet"
    ])
    .ends_with(0);
    assert_eq!(
        fs::read(out.path().join("b/z/first")).unwrap(),
        noise(1, 200_000)
    );
    assert_eq!(fs::read(out.path().join("b/z/c")).unwrap(), b"small");
}

#[test]
fn sockets_are_noted_and_not_stored() {
    let dir = temp();
    let (tree, store) = (dir.path().join("t"), dir.path().join("r"));
    runs::write(tree.join("f"), "x");
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    // The second time it is as it was; the third time all its page is.
    for (back, other) in [("b", None), ("c", Some("g")), ("d", None)] {
        other
            .iter()
            .for_each(|other| runs::write(tree.join(other), "y"));
        let ran = fullbore(args!["backup", tree, "--to", store, "--json"]).ends_with(0);
        assert_eq!(ran.json().pop().unwrap()["sockets"], 1);
        let ran = fullbore(args!["show", store, "--json"]).ends_with(0);
        assert!(ran.out.contains("socket"), "{}", ran.out);
        fullbore(args![
            "restore",
            store,
            "--to",
            dir.path().join(back),
            "--quiet"
        ])
        .ends_with(0);
        let there: &[&str] = if back == "b" { &["f"] } else { &["f", "g"] };
        assert_eq!(runs::names(&dir.path().join(back)), there);
    }
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
fn standard_input_is_stored_as_a_file_whatever_the_codec() {
    let dir = temp();
    for len in [1, 65_535, 65_536, 65_537, 3_000_000] {
        let input = noise(len as u64, len);
        for (n, (codec, file)) in [
            ("zstd", "x.tar.zst"),
            ("lz4", "x.tar.lz4"),
            ("gzip:1", "x.tar.gz"),
            ("none", "x.tar"),
        ]
        .into_iter()
        .enumerate()
        {
            let file = dir.path().join(file);
            let _ = fs::remove_file(&file);
            let repository = dir.path().join(format!("r{n} {len}"));
            let is_repository = |codec: &str| !codec.starts_with("gzip");
            for target in [file]
                .into_iter()
                .chain(is_repository(codec).then_some(repository))
            {
                let options = args![
                    "--compress",
                    codec,
                    "--frame-size",
                    "64K",
                    "--to",
                    target,
                    "--quiet"
                ];
                let ran = Ran::from(fed(
                    args!["backup", "--stdin-name", "dump.sql"]
                        .into_iter()
                        .chain(options),
                    &input,
                ));
                assert_eq!(ran.code, 0, "{codec} {len}: {}", ran.err);
                assert_stream(&target, dir.path(), &input);
            }
        }
        let ran = fed(
            args![
                "backup",
                "--stdin-name",
                "dump.sql",
                "--to",
                "-",
                "--quiet",
                "--frame-size",
                "64K"
            ],
            &input,
        );
        assert!(ran.status.success());
        let target = dir.path().join("y.tar.zst");
        fs::write(&target, &ran.stdout).unwrap();
        assert_stream(&target, dir.path(), &input);
        let tar = shell(
            "zstd -dc \"$1\" | tar -xO dump.sql | sha256sum",
            args![target],
        )
        .ends_with(0)
        .out;
        fs::write(dir.path().join("input"), &input).unwrap();
        assert_eq!(
            tar,
            shell("sha256sum < \"$1\"", args![dir.path().join("input")]).out
        );
    }
}

fn assert_stream(from: &Path, dir: &Path, input: &[u8]) {
    let back = dir.join("back");
    fullbore(args!["restore", from, "--to", back, "--quiet"]).ends_with(0);
    assert!(
        fs::read(back.join("dump.sql")).unwrap() == input,
        "{from:?}"
    );
    fullbore(args!["verify", from, "--data"]).ends_with(0);
    fs::remove_dir_all(back).unwrap();
}

#[test]
fn standard_input_is_stored_however_many_readers_there_are() {
    let dir = temp();
    let input = noise(1, 5_000_000);
    for (n, readers) in ["1", "2", "16"].into_iter().enumerate() {
        let target = dir.path().join(n.to_string());
        let options = args![
            "--frame-size",
            "64K",
            "--workers",
            "16",
            "--readers",
            readers,
            "--quiet",
            "--to",
            target
        ];
        let ran = fed(
            args!["backup", "--stdin-name", "s"]
                .into_iter()
                .chain(options),
            &input,
        );
        assert!(ran.status.success());
        fullbore(args![
            "restore",
            target,
            "--to",
            dir.path().join("b"),
            "--quiet"
        ])
        .ends_with(0);
        assert!(fs::read(dir.path().join("b/s")).unwrap() == input);
        fs::remove_dir_all(dir.path().join("b")).unwrap();
    }
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

/// So they are where an incremental backup was unpacked by tar.
#[test]
fn what_has_the_name_of_a_piece_is_a_file_in_what_is_complete_by_itself() {
    let dir = temp();
    let tree = dir.path().join("tree");
    write(tree.join(".fullbore/parts/x/0-5"), "piece");
    write(tree.join(".fullbore/parts/note"), "note");
    let archive = fed(args!["backup", tree, "--to", "-", "--quiet"], b"");
    assert!(archive.status.success());
    let target = dir.path().join("to");
    let ran = Ran::from(fed(args!["restore", "-", "--to", target], &archive.stdout)).ends_with(0);
    assert_same(&shape(&tree), &shape(&target), &ran.err);
}
