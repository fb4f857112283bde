//! What a file system can hold comes back; what cannot be captured or restored is said.

mod refused;
mod standard_input;

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
