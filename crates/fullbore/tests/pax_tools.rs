//! GNU tar, bsdtar and Python's tarfile restore what we write, and we read what they write.
//!
//! A tool that is not installed is passed over, and without root so is what only root may make; both are said on stderr.

mod tree;

use fullbore_format::{
    acl::name_lists,
    entry::{ByteRun, Device, Entry, EntryKind, Owner, Time, Xattr},
};
use fullbore_platform::owner::OwnerNames;
use std::{path::Path, process::Command};
use tree::{Tree, archive, assert_sparse, expected, read, scan};

const ACL: &[u8] =
    b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x04\0\x31\xd4\0\0\x04\0\x05\0\xff\xff\xff\xff\
                     \x10\0\x05\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
/// `cap_net_raw=ep`, revision 2.
const CAPABILITY: &[u8] = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn xattr(name: &str, value: &[u8]) -> Xattr {
    (name.as_bytes().to_vec(), value.to_vec())
}

fn make(path: impl AsRef<[u8]>, kind: EntryKind, mode: u32) -> Entry {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let owner = Owner {
        uid,
        gid,
        ..Owner::default()
    };
    let mtime = Time {
        seconds: 1_600_000_000,
        nanos: 123_456_789,
    };
    Entry {
        path: path.as_ref().to_vec(),
        kind,
        mode,
        owner,
        mtime,
        ..Entry::default()
    }
}

fn file(path: impl AsRef<[u8]>, size: u64) -> Entry {
    make(path, EntryKind::File { size, map: None }, 0o640)
}

fn sparse(path: impl AsRef<[u8]>, size: u64, runs: &[(u64, u64)]) -> Entry {
    let map = runs
        .iter()
        .map(|&(offset, len)| ByteRun { offset, len })
        .collect();
    make(
        path,
        EntryKind::File {
            size,
            map: Some(map),
        },
        0o600,
    )
}

fn symlink(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Entry {
    make(path, EntryKind::Symlink(target.as_ref().to_vec()), 0o777)
}

fn link(path: &str, target: &Entry) -> Entry {
    Entry {
        path: path.into(),
        kind: EntryKind::HardLink(target.path.clone()),
        ..target.clone()
    }
}

/// What every format holds.
fn common() -> Vec<Entry> {
    let plain = file("plain", 1000);
    vec![
        make("", EntryKind::Directory, 0o755),
        make("dir", EntryKind::Directory, 0o2750),
        file("dir/block", 512),
        file("dir/empty", 0),
        file(b"latin-\xe9\xff", 3),
        plain.clone(),
        link("plain link", &plain),
        symlink("symlink", "../else\nwhere"),
    ]
}

/// What ustar does not hold but GNU's format does.
fn large() -> Vec<Entry> {
    let long = "long/".repeat(60);
    let latin = [b"not utf-8 \xff\xfe ".repeat(15), b"end".to_vec()].concat();
    let dirs = (1..60).map(|n| make(&long[..5 * n - 1], EntryKind::Directory, 0o755));
    let name = format!("{}{}", &long[..5 * 59], "name".repeat(40));
    let mut old = file("before 1970", 10);
    old.mtime = Time {
        seconds: -86_400,
        nanos: 0,
    };
    let mut entries = vec![
        old,
        file(&latin, 77),
        symlink("link to latin", &latin),
        symlink(&latin[1..], &latin[1..]),
        file(format!("{}é", "é".repeat(100)), 5),
        sparse(
            "sparse",
            1 << 20,
            &[(4096, 4096), (500_000 / 4096 * 4096, 8192)],
        ),
        sparse("sparse, ends in data", 40_960 + 100, &[(36_864, 4196)]),
        sparse("sparse, nothing but a hole", 1 << 20, &[]),
        sparse(
            format!("sparse é{}", "é".repeat(60)),
            1 << 16,
            &[(8192, 512)],
        ),
        sparse("sparse \u{fe}", 1 << 16, &[(0, 512), (20_480, 100)]),
        make("fifo", EntryKind::Fifo, 0o644),
    ];
    entries.extend(dirs);
    entries.push(file(&name, 3));
    entries.push(link("link to long", &file(&name, 3)));
    entries
}

/// What only root may make.
fn of_root() -> Vec<Entry> {
    if !is_root() {
        eprintln!("not root: devices, owners and capabilities are passed over");
        return Vec::new();
    }
    let mut owned = file("owned", 1);
    (owned.owner.uid, owned.owner.gid) = (3_000_000_000, 4_000_000_000);
    vec![
        owned,
        make(
            "char",
            EntryKind::CharDevice(Device { major: 1, minor: 3 }),
            0o666,
        ),
        make(
            "block",
            EntryKind::BlockDevice(Device {
                major: 4095,
                minor: 1_048_575,
            }),
            0o600,
        ),
    ]
}

/// What takes pax records.
fn attributes() -> Vec<Entry> {
    let mut plain = file("attributes", 9);
    plain.mode = 0o754;
    plain.xattrs = vec![
        xattr("system.posix_acl_access", ACL),
        xattr("user.binary", b"\0\n=\xff"),
        xattr("user.empty", b""),
        xattr("user.per%cent", b"1"),
        xattr("user.\u{e9}", b"2"),
    ];
    let mut dir = make("attributed", EntryKind::Directory, 0o755);
    dir.xattrs = vec![
        xattr("system.posix_acl_default", ACL),
        xattr("user.x", b"1"),
    ];
    let mut capable = file("capable", 2);
    if is_root() {
        capable
            .xattrs
            .push(xattr("security.capability", CAPABILITY));
    }
    let names = OwnerNames::default();
    name_lists(&mut plain.xattrs, &names);
    name_lists(&mut dir.xattrs, &names);
    let again = link("attributes again", &plain);
    vec![plain, dir, capable, again]
}

/// What bsdtar reads and writes in a way of its own.
fn not_for_bsdtar() -> Vec<Entry> {
    let mut old = file("before 1970, with a fraction", 1);
    old.mtime = Time {
        seconds: -86_401,
        nanos: 750_000_000,
    };
    let mut odd = file("odd names", 1);
    odd.xattrs = vec![
        xattr("user.a=b", b"1"),
        xattr("user.a%3Db", b"2"),
        xattr("user.a%25b", b"3"),
        xattr("user.%41", b"4"),
    ];
    vec![old, odd]
}

/// More than 8 GiB, nearly all of it a hole.
fn huge() -> Entry {
    sparse(
        "huge",
        9 << 30,
        &[(0, 512), (5 << 30, 1024), ((9 << 30) - 100, 100)],
    )
}

/// Is the tool there?
fn has(tool: &str) -> bool {
    let there = Command::new(tool).arg("--version").output().is_ok();
    if !there {
        eprintln!("{tool} is not installed: passed over");
    }
    there
}

/// Run a tool that must succeed and say nothing; in the C locale, the hardest for names.
fn run(tool: &str, dir: &Path, arguments: &[&str]) {
    let output = Command::new(tool)
        .current_dir(dir)
        .env("LC_ALL", "C")
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.is_empty(),
        "{tool} {arguments:?}: {said}"
    );
}

fn python(dir: &Path, code: &str) {
    run("python3", dir, &["-c", &format!("import tarfile\n{code}")]);
}

/// Have a tool extract these entries; the directory it went to.
fn extracted(entries: &[Entry], extract: impl Fn(&Path)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.tar"), archive(entries)).unwrap();
    std::fs::create_dir(dir.path().join("out")).unwrap();
    extract(dir.path());
    dir
}

fn gnu_extract(dir: &Path) {
    let options = [
        "--xattrs",
        "--xattrs-include=*",
        "--acls",
        "--numeric-owner",
        "--warning=no-timestamp",
    ];
    run(
        "tar",
        dir,
        &[&options[..], &["-xpf", "a.tar", "-C", "out"]].concat(),
    );
}

fn bsd_extract(dir: &Path) {
    run(
        "bsdtar",
        dir,
        &[
            "--numeric-owner",
            "--xattrs",
            "--acls",
            "-xpf",
            "a.tar",
            "-C",
            "out",
        ],
    );
}

fn python_extract(dir: &Path) {
    python(
        dir,
        "tarfile.open('a.tar').extractall('out', numeric_owner=True)",
    );
}

/// Compare object by object, so that a failure shows one.
fn assert_same(mut is: Tree, mut want: Tree, weaken: impl Fn(&mut Entry)) {
    is.values_mut()
        .chain(want.values_mut())
        .for_each(|seen| weaken(&mut seen.entry));
    for (path, want) in &want {
        assert_eq!(
            is.get(path),
            Some(want),
            "{:?}",
            String::from_utf8_lossy(path)
        );
    }
    assert_eq!(is.len(), want.len());
}

fn all() -> Vec<Entry> {
    [
        common(),
        large(),
        of_root(),
        attributes(),
        not_for_bsdtar(),
        vec![huge()],
    ]
    .concat()
}

fn without(mut entries: Vec<Entry>, others: &[Entry]) -> Vec<Entry> {
    entries.retain(|entry| others.iter().all(|other| other.path != entry.path));
    entries
}

#[test]
fn gnu_tar_restores_everything() {
    if has("tar") {
        let dir = extracted(&all(), gnu_extract);
        assert_same(scan(&dir.path().join("out")), expected(&all()), |_| ());
        assert_sparse(&dir.path().join("out/huge"), &huge());
    }
}

#[test]
fn bsdtar_restores_everything_but_fractions_before_1970_and_odd_names_of_attributes() {
    if has("bsdtar") {
        let entries = without(all(), &not_for_bsdtar());
        let dir = extracted(&entries, bsd_extract);
        assert_same(scan(&dir.path().join("out")), expected(&entries), |entry| {
            // It sets the time of the root before it fills it.
            entry.mtime.nanos *= u32::from(!entry.path.is_empty());
            entry.mtime.seconds *= i64::from(!entry.path.is_empty());
        });
        assert_sparse(&dir.path().join("out/huge"), &huge());
    }
}

#[test]
fn python_restores_everything_but_attributes_and_times_of_links() {
    if has("python3") {
        let dir = extracted(&all(), python_extract);
        assert_same(scan(&dir.path().join("out")), expected(&all()), |entry| {
            entry.xattrs.clear();
            // Times are floating point numbers there: right to about 100 ns.
            entry.mtime.nanos = (entry.mtime.nanos + 500) / 1000;
            if let EntryKind::Symlink(_) = entry.kind {
                entry.mtime = Time::default();
            }
        });
        assert_sparse(&dir.path().join("out/huge"), &huge());
    }
}

/// A tree on disk, as GNU tar extracts it, and what is in it.
fn planted(entries: &[Entry]) -> (tempfile::TempDir, Tree) {
    let dir = extracted(entries, gnu_extract);
    let tree = scan(&dir.path().join("out"));
    assert_same(tree.clone(), expected(entries), |_| ());
    (dir, tree)
}

fn only_seconds(entry: &mut Entry) {
    entry.mtime.nanos = 0;
    entry.xattrs.clear();
}

/// Read `b.tar`, compare and remove it.
fn assert_reads(dir: &Path, want: &Tree, weaken: impl Fn(&mut Entry)) {
    let bytes = std::fs::read(dir.join("b.tar")).unwrap();
    assert_same(read(&bytes), want.clone(), weaken);
    std::fs::remove_file(dir.join("b.tar")).unwrap();
}

#[test]
fn archives_of_gnu_tar_are_read() {
    if !has("tar") {
        return;
    }
    let (dir, tree) = planted(&without(all(), &[huge()]));
    let options = [
        "-C",
        "out",
        "--xattrs",
        "--xattrs-include=*",
        "--acls",
        "--numeric-owner",
        "-cf",
        "b.tar",
        ".",
    ];
    for sparse in [
        &[][..],
        &["--sparse-version=0.0"],
        &["--sparse-version=0.1"],
        &["--sparse-version=1.0"],
    ] {
        let sparse = if sparse.is_empty() {
            vec![]
        } else {
            [&["--sparse"], sparse].concat()
        };
        run(
            "tar",
            dir.path(),
            &[&["--format=pax"], &sparse[..], &options].concat(),
        );
        // It writes a list that says no more than the mode does; the kernel keeps none of these.
        assert_reads(dir.path(), &tree, |entry| {
            entry.xattrs.retain(|(_, value)| value.len() != 4 + 3 * 8)
        });
    }
    for format in ["--format=gnu", "--format=oldgnu"] {
        for sparse in [&[][..], &["--sparse"]] {
            run(
                "tar",
                dir.path(),
                &[&[format], sparse, &["-C", "out", "-cf", "b.tar", "."]].concat(),
            );
            assert_reads(dir.path(), &tree, only_seconds);
        }
    }
    let (dir, tree) = planted(&common());
    for format in ["--format=ustar", "--format=v7"] {
        run(
            "tar",
            dir.path(),
            &[format, "-C", "out", "-cf", "b.tar", "."],
        );
        assert_reads(dir.path(), &tree, only_seconds);
    }
}

#[test]
fn sparse_files_of_many_runs_by_gnu_tar_are_read() {
    if !has("tar") {
        return;
    }
    let runs: Vec<_> = (0..200).map(|n| (n * 8192 + 4096, 4096)).collect();
    let (dir, tree) = planted(&[
        make("", EntryKind::Directory, 0o755),
        sparse("s", 200 * 8192, &runs),
    ]);
    for format in ["gnu", "pax"] {
        run(
            "tar",
            dir.path(),
            &[
                "--format", format, "--sparse", "-C", "out", "-cf", "b.tar", ".",
            ],
        );
        assert_reads(dir.path(), &tree, only_seconds);
    }
}

#[test]
fn archives_of_bsdtar_are_read() {
    if !has("bsdtar") || !has("tar") {
        return;
    }
    // In the C locale it cuts the name of a sparse file off after 100 bytes; fractions before 1970 it writes its own way.
    let (is_cut, is_old) = (
        |entry: &Entry| entry.path.starts_with("sparse é".as_bytes()),
        &not_for_bsdtar()[0].path,
    );
    let mut entries = without(all(), &[huge()]);
    entries.retain(|entry| !is_cut(entry) && entry.path != *is_old);
    let (dir, tree) = planted(&entries);
    let options = [
        "--format=pax",
        "--options=hdrcharset=BINARY",
        "--xattrs",
        "--acls",
    ];
    run(
        "bsdtar",
        dir.path(),
        &[&options[..], &["-C", "out", "-cf", "b.tar", "."]].concat(),
    );
    assert_reads(dir.path(), &tree, |_| ());
    // There its numbers of devices have six digits, and times before 1970 become zero.
    entries.retain(|entry| entry.path != b"block" && entry.mtime.seconds >= 0);
    let (dir, tree) = planted(&entries);
    run(
        "bsdtar",
        dir.path(),
        &["--format=gnutar", "-C", "out", "-cf", "b.tar", "."],
    );
    assert_reads(dir.path(), &tree, only_seconds);
    let (dir, tree) = planted(&common());
    for format in ["--format=ustar", "--format=v7"] {
        run(
            "bsdtar",
            dir.path(),
            &[format, "-C", "out", "-cf", "b.tar", "."],
        );
        assert_reads(dir.path(), &tree, only_seconds);
    }
}

#[test]
fn archives_of_python_are_read() {
    if !has("python3") || !has("tar") {
        return;
    }
    let write = |dir: &Path, format: &str| {
        python(
            dir,
            &format!(
                "with tarfile.open('b.tar', 'w', format=tarfile.{format}_FORMAT) as t: t.add('out', '.')"
            ),
        );
    };
    let (dir, tree) = planted(&without(all(), &[huge()]));
    write(dir.path(), "PAX");
    assert_reads(dir.path(), &tree, |entry| {
        entry.xattrs.clear();
        entry.mtime.nanos = (entry.mtime.nanos + 500) / 1000;
    });
    write(dir.path(), "GNU");
    assert_reads(dir.path(), &tree, |entry| {
        // It cuts fractions off, so that times before 1970 become later.
        entry.mtime.seconds += i64::from(entry.mtime.seconds < 0 && entry.mtime.nanos > 0);
        only_seconds(entry);
    });
    let (dir, tree) = planted(&common());
    write(dir.path(), "USTAR");
    assert_reads(dir.path(), &tree, only_seconds);
}
