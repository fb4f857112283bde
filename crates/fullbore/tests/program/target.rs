//! What a restore makes of a target as it finds it: disks that are mounted in it, directories that nobody may write to, and limits
//! of its file system.

use crate::runs::{
    FULLBORE, Mount, Ran, Shape, assert_same, fullbore, has, is_root, make_fifo, names, noise,
    or_skip, set_mode, set_mtime, set_xattr, shape, shell, tampered, temp, write,
};
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The program as a user without privileges.
fn as_user(args: impl IntoIterator<Item = OsString>) -> Ran {
    let all = args![FULLBORE].into_iter().chain(args);
    shell(
        "exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all \"$@\"",
        all,
    )
}

/// Is there such a user to become?
fn has_user() -> bool {
    or_skip(is_root() && has("setpriv"), "not root, or no setpriv")
}

/// Everything below `dir` belongs to that user.
fn give_to_user(dir: &Path) {
    shell(
        "chown -R 65534:65534 \"$1\" && chmod a+rx \"$1\"",
        args![dir],
    )
    .ends_with(0);
}

/// A disk with ext4 of so many megabytes, mounted at `at`.
fn ext4(image: &Path, at: &Path, megabytes: u32, more: &str) -> Option<Mount> {
    fs::create_dir_all(at).unwrap();
    let line =
        "truncate -s ${3}M \"$1\" && mke2fs -q -t ext4 $4 \"$1\" && mount -o loop \"$1\" \"$2\"";
    let mounted = is_root() && shell(line, args![image, at, megabytes.to_string(), more]).code == 0;
    or_skip(mounted, "no ext4 can be mounted here").then(|| Mount::at(at))
}

fn restore(repository: &Path, to: &Path, how: &str) -> Vec<OsString> {
    let more = how.split_whitespace().map(OsString::from);
    args!["restore", repository, "--to", to]
        .into_iter()
        .chain(more)
        .collect()
}

/// A tree with a directory `home`, its backup, and two disks: one is the target, the other is mounted at its `home`.
struct Disks {
    _inner: Mount,
    _outer: Mount,
    dir: tempfile::TempDir,
}

impl Disks {
    fn new() -> Option<Self> {
        let dir = temp();
        let path = |name: &str| dir.path().join(name);
        write(path("tree/f"), "f");
        write(path("tree/home/g"), "g");
        fullbore(args!["backup", path("tree"), "--to", path("r"), "-q"]).ends_with(0);
        let outer = ext4(&path("one"), &path("m"), 8, "")?;
        let inner = ext4(&path("two"), &path("m/home"), 8, "")?;
        // All but the directories for fsck.
        shell("chown -R 65534 \"$1\" \"$2\" && chmod -R a+rX \"$1\" && chmod a+rx \"$4\" && chown 65534 \"$3\" \"$3/home\"", {
            args![path("r"), path("tree"), path("m"), dir.path()]
        })
        .ends_with(0);
        Some(Self {
            _inner: inner,
            _outer: outer,
            dir,
        })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

#[test]
fn what_fsck_wants_of_each_disk_in_the_target_is_left_alone() {
    let Some(disks) = Disks::new() else { return };
    let (repository, target) = (disks.at("r"), disks.at("m"));
    let number = |name: &str| fs::metadata(target.join(name)).unwrap().ino();
    let before = [number("lost+found"), number("home/lost+found")];
    for how in ["--overwrite=all", "--delta", "--delta --delete"] {
        for ran in [
            as_user(restore(&repository, &target, how)),
            fullbore(restore(&repository, &target, how)),
        ] {
            let ran = ran.ends_with(0);
            assert!(!ran.out.contains("lost+found"), "{how}: {}", ran.out);
            assert_eq!(
                [number("lost+found"), number("home/lost+found")],
                before,
                "{how}"
            );
            shell("chown 65534 \"$1\" \"$1/home\"", args![target]).ends_with(0);
        }
    }
    // Elsewhere it is a name like any other.
    write(target.join("home/sub/lost+found/x"), "x");
    let ran = fullbore(restore(&repository, &target, "--delta --delete")).ends_with(0);
    assert!(
        ran.out.contains("delete: \"home/sub\"") && !target.join("home/sub").exists(),
        "{}",
        ran.out
    );
}

#[test]
fn what_fsck_wants_is_not_replaced_by_the_directory_that_the_backup_has() {
    let Some(disks) = Disks::new() else { return };
    let (repository, target) = (disks.at("r2"), disks.at("m"));
    fs::create_dir(disks.at("tree/home/lost+found")).unwrap();
    write(disks.at("tree/home/z"), "z");
    fullbore(args!["backup", disks.at("tree"), "--to", repository, "-q"]).ends_with(0);
    give_to_user(&repository);
    let number = || fs::metadata(target.join("home/lost+found")).unwrap().ino();
    let before = number();
    for how in ["--overwrite=all", "--delta", "--delta --delete"] {
        let ran = as_user(restore(&repository, &target, how)).ends_with(1);
        let ran = ran.has_one_error("skipped; the rest of the backup is restored");
        assert!(
            ran.err.contains("home/lost+found\": permission denied"),
            "{how}: {}",
            ran.err
        );
        assert_eq!(
            (number(), fs::read(target.join("home/z")).unwrap()),
            (before, b"z".to_vec()),
            "{how}"
        );
        fullbore(restore(&repository, &target, how)).ends_with(0);
        assert_eq!(number(), before, "{how}");
        fs::remove_file(target.join("home/z")).unwrap();
        shell("chown 0 \"$1/lost+found\" && chmod 700 \"$1/lost+found\" && chown 65534 \"$1\" \"$1/..\"", {
            args![target.join("home")]
        })
        .ends_with(0);
    }
}

#[test]
fn what_belongs_to_another_and_cannot_be_looked_into_is_named_and_the_rest_is_restored() {
    if !has_user() {
        return;
    }
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    write(path("tree/f"), "f");
    write(path("tree/sub/g"), "g");
    write(path("tree/way"), "a file");
    write(path("to/sub/others/deep/x"), "x");
    write(path("to/sub/more/others/x"), "x");
    write(path("to/listed/x"), "x");
    write(path("to/way/x"), "x");
    give_to_user(dir.path());
    ["to/sub/others", "to/sub/more/others", "to/way"]
        .iter()
        .for_each(|name| {
            shell("chown -R 0 \"$1\" && chmod 700 \"$1\"", args![path(name)]).ends_with(0);
        });
    // It can be listed, but nothing in it can be looked at.
    shell(
        "chown -R 0 \"$1\" && chmod 744 \"$1\"",
        args![path("to/listed")],
    )
    .ends_with(0);
    as_user(args!["backup", path("tree"), "--to", path("r"), "-q"]).ends_with(0);
    let how = "--delta --delete --max-delete 9";
    let ran = as_user(restore(&path("r"), &path("to"), how)).ends_with(1);
    let ran = ran.has_one_error("skipped; the rest of the backup is restored");
    for (doing, name) in [
        ("remove", "sub/others"),
        ("remove", "sub/more/others"),
        ("remove", "listed/x"),
        ("create", "way"),
    ] {
        let named = format!(
            "could not {doing} \"{}\": ",
            path("to").join(name).display()
        );
        assert!(
            ran.err.contains(&named) && path("to").join(name).exists(),
            "{name}: {}",
            ran.err
        );
    }
    assert_eq!(
        (
            fs::read(path("to/f")).unwrap(),
            fs::read(path("to/sub/g")).unwrap()
        ),
        (b"f".to_vec(), b"g".to_vec())
    );
}

#[test]
fn a_user_restores_into_a_tree_of_his_own_whose_top_he_may_not_write_to() {
    if !has_user() {
        return;
    }
    let dir = temp();
    let (tree, repository, target) = (
        dir.path().join("tree"),
        dir.path().join("r"),
        dir.path().join("to"),
    );
    write(tree.join("f"), "f");
    write(tree.join("sub/g"), "g");
    set_mtime(&tree, 1_000_000_000, 0);
    give_to_user(dir.path());
    set_mode(&tree, 0o555);
    as_user(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    as_user(restore(&repository, &target, "-q")).ends_with(0);
    let before = shape(&tree);
    for how in ["--overwrite=all", "--delta", "--delta --delete"] {
        fs::remove_file(target.join("f")).unwrap();
        as_user(restore(&repository, &target, how)).ends_with(0);
        assert_same(&before, &shape(&target), how);
    }
    // It keeps its own mode and time where it was not asked for, and where the restore fails.
    for (how, code) in [
        ("sub --overwrite", 0),
        ("sub --delta", 0),
        ("nothing --overwrite", 1),
    ] {
        set_mode(&target, 0o511);
        fs::remove_dir_all(target.join("sub")).unwrap();
        as_user(restore(&repository, &target, how)).ends_with(code);
        assert_eq!(
            (
                fs::metadata(&target).unwrap().mode() & 0o7777,
                target.join("sub/g").exists()
            ),
            (0o511, code == 0),
            "{how}"
        );
    }
    // Of another user it cannot be opened, nor where it is empty and nothing was to be replaced.
    set_mode(&target, 0o555);
    shell("chown 0 \"$1\"", args![target]).ends_with(0);
    as_user(restore(&repository, &target, "--delta"))
        .ends_with(1)
        .has_one_error("cannot be written to");
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    give_to_user(&empty);
    set_mode(&empty, 0o555);
    as_user(restore(&repository, &empty, ""))
        .ends_with(1)
        .has_one_error("cannot be written to");
}

/// Names beyond the limit of ext4.
const NAMES: usize = 65_010;

fn name(number: usize) -> String {
    format!("f{number:05}")
}

/// Are all names there, with the content and the metadata of the first one? How many files are they of?
fn files_of_names(to: &Path, first: &fs::Metadata) -> usize {
    let mut numbers = std::collections::BTreeSet::new();
    for number in 0..NAMES {
        let found = fs::symlink_metadata(to.join(name(number))).unwrap();
        if numbers.insert(found.ino()) {
            assert_eq!(
                fs::read_to_string(to.join(name(number))).unwrap(),
                "content"
            );
            let facts = |meta: &fs::Metadata| {
                (
                    meta.mode(),
                    meta.uid(),
                    meta.gid(),
                    meta.mtime(),
                    meta.mtime_nsec(),
                )
            };
            assert_eq!(facts(&found), facts(first), "{number}");
        }
    }
    numbers.len()
}

#[test]
fn names_beyond_the_limit_of_the_target_are_those_of_a_second_file() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    let Some(_tree) = Mount::tmpfs(&path("tree"), "64m") else {
        return;
    };
    let Some(_disk) = ext4(&path("image"), &path("m"), 64, "") else {
        return;
    };
    write(path("tree").join(name(0)), "content");
    shell(
        "chown 12345:54321 \"$1\" && chmod 4751 \"$1\" && touch -d @1000000000.5 \"$1\"",
        args![path("tree").join(name(0))],
    )
    .ends_with(0);
    (1..NAMES).for_each(|number| {
        fs::hard_link(path("tree").join(name(0)), path("tree").join(name(number))).unwrap()
    });
    let first = fs::metadata(path("tree").join(name(0))).unwrap();
    fullbore(args!["backup", path("tree"), "--to", path("r"), "-q"]).ends_with(0);
    let said = "a copy of the file has the further names: 10 entries";
    let changed = || {
        fs::metadata(path("m/to").join(name(NAMES - 1)))
            .map_or((0, 0), |meta| (meta.ctime(), meta.ctime_nsec()))
    };
    for how in ["", "--delta"] {
        let before = changed();
        let ran = fullbore(restore(&path("r"), &path("m/to"), how)).ends_with(0);
        assert_eq!(
            ran.err.matches("a copy of the file").count(),
            1,
            "{how}: {}",
            ran.err
        );
        assert!(ran.err.contains(said), "{how}: {}", ran.err);
        assert_eq!(files_of_names(&path("m/to"), &first), 2, "{how}");
        assert_eq!(
            changed() == before,
            how == "--delta",
            "nothing is to be done: {how}"
        );
    }
}

/// The shape of a tree; which of its names are of one file does not count.
fn shape_of_names(dir: &Path) -> Shape {
    let mut shape = shape(dir);
    shape.values_mut().for_each(|node| node.first.clear());
    shape
}

#[test]
fn what_takes_no_other_name_is_copied_with_its_metadata_whatever_it_is() {
    if !or_skip(is_root() && has("strace"), "not root, or no strace") {
        return;
    }
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    write(path("tree/file"), noise(1, 300_000));
    write(path("tree/empty"), "");
    let make = "cd \"$1\" && truncate -s 5M sparse && printf data | dd of=sparse bs=1 seek=3000000 conv=notrunc && \
                mkfifo -m 640 pipe && ln -s file link && for f in *; do ln -P $f \"$f too\"; done && \
                chown -h 12345:54321 * && chmod 4751 file && touch -hd @1000000000 *";
    shell(make, args![path("tree")]).ends_with(0);
    set_xattr(&path("tree/file"), "user.color", b"red");
    fullbore(args!["backup", path("tree"), "--to", path("r"), "-q"]).ends_with(0);
    fullbore(args![
        "backup",
        path("tree"),
        "--to",
        path("ours.tar.zst"),
        "--compress",
        "none",
        "-q"
    ])
    .ends_with(0);
    let pack = "tar -C \"$1\" -S --xattrs --format=posix --sort=name -cf \"$2\" .";
    shell(pack, args![path("tree"), path("other.tar")]).ends_with(0);
    let before = shape_of_names(&path("tree"));
    // GNU tar writes hard links to symbolic links or pipes too.
    for (source, links) in [("r", 3), ("ours.tar.zst", 3), ("other.tar", 4)] {
        // With tricks a file that replaces another one gets its name by such a call.
        for how in ["", "--no-tricks", "--overwrite=all --no-tricks", "--delta"] {
            if source == "other.tar" && how == "--delta" {
                continue;
            }
            let case = format!("{source} {how}");
            if how.starts_with("--no") {
                fs::remove_dir_all(path("to")).unwrap();
            }
            let ran = tampered(
                "linkat:error=EMLINK",
                None,
                restore(&path(source), &path("to"), how),
            )
            .ends_with(0);
            let said = format!("a copy of the file has the further names: {links} entries");
            assert!(ran.err.contains(&said), "{case}: {}", ran.err);
            assert_same(&before, &shape_of_names(&path("to")), &case);
        }
        fs::remove_dir_all(path("to")).unwrap();
    }
}

/// A directory that names can only be added to, as long as this lives.
struct AppendOnly(PathBuf);

impl AppendOnly {
    fn new(dir: &Path) -> Option<Self> {
        let done = is_root() && shell("chattr +a \"$1\"", args![dir]).code == 0;
        or_skip(done, "no directory can be made append-only here").then(|| Self(dir.to_owned()))
    }
}

impl Drop for AppendOnly {
    fn drop(&mut self) {
        shell("chattr -a \"$1\"", args![self.0]);
    }
}

#[test]
fn in_an_append_only_directory_no_file_of_a_restore_stays() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    write(path("tree/f"), "f");
    write(path("tree/large"), noise(1, 3_000_000));
    write(path("tree/sub/g"), "g");
    std::os::unix::fs::symlink("f", path("tree/link")).unwrap();
    fs::hard_link(path("tree/f"), path("tree/f too")).unwrap();
    fullbore(args!["backup", path("tree"), "--to", path("r"), "-q"]).ends_with(0);
    shell(
        "tar -C \"$1\" -cf \"$2\" .",
        args![path("tree"), path("x.tar")],
    )
    .ends_with(0);
    let target = path("to");
    fs::create_dir_all(&target).unwrap();
    let Some(_top) = AppendOnly::new(&target) else {
        return;
    };
    let all = ["f", "f too", "large", "link", "sub"];
    fullbore(restore(&path("r"), &target, "")).ends_with(0);
    assert_eq!(names(&target), all);
    let _sub = AppendOnly::new(&path("to/sub"));
    write(path("to/f"), "another");
    write(path("to/sub/g"), "another");
    let ways = [
        "--overwrite=all",
        "--overwrite=all --no-tricks",
        "--delta",
        "--delta --no-tricks",
        "--delta --delete",
    ];
    let runs = ways
        .map(|how| (path("r"), how))
        .into_iter()
        .chain([(path("x.tar"), "--overwrite=all")]);
    for (source, how) in runs {
        // Whatever could be replaced was not, and is named; the rest is restored.
        let ran = fullbore(restore(&source, &target, how))
            .ends_with(1)
            .has_one_error("files cannot be removed from its directory");
        assert!(
            ran.err.contains("skipped; the rest of the"),
            "{how}: {}",
            ran.err
        );
        assert_eq!(
            (names(&target), names(&path("to/sub"))),
            (all.map(str::to_owned).to_vec(), vec!["g".to_owned()]),
            "{how}"
        );
    }
}

#[test]
fn a_file_of_a_restore_that_cannot_be_removed_is_named_and_stays_alone() {
    if !or_skip(is_root() && has("strace"), "not root, or no strace") {
        return;
    }
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    for number in 0..5 {
        write(path(&format!("tree/f{number}")), "f");
        std::os::unix::fs::symlink("f", path(&format!("tree/l{number}"))).unwrap();
    }
    fullbore(args!["backup", path("tree"), "--to", path("r"), "-q"]).ends_with(0);
    let is_own = |name: &String| name.starts_with(".fullbore");
    // A system that does not tell of a directory that nothing can be removed from it.
    for (how, code) in [
        ("", 0),
        ("--overwrite=all", 1),
        ("--overwrite=all --no-tricks", 1),
    ] {
        let inject = "unlinkat,renameat,renameat2:error=EPERM";
        let before = if how.is_empty() {
            0
        } else {
            names(&path("to")).len()
        };
        let ran = tampered(inject, None, restore(&path("r"), &path("to"), how)).ends_with(code);
        let left: Vec<_> = names(&path("to")).into_iter().filter(is_own).collect();
        assert_eq!(left.len(), 1, "{how}: {left:?}");
        let line = format!(
            "could not remove {:?}, a temporary file of this restore: operation not permitted",
            path("to").join(&left[0])
        );
        assert!(ran.err.contains(&line), "{how}: {}", ran.err);
        assert_eq!(before, if how.is_empty() { 0 } else { 10 });
        fs::remove_file(path("to").join(&left[0])).unwrap();
    }
}

#[test]
fn an_archive_that_gets_no_name_and_cannot_be_removed_is_named() {
    if !or_skip(has("strace"), "no strace") {
        return;
    }
    let dir = temp();
    let (tree, target) = (dir.path().join("tree"), dir.path().join("to"));
    write(tree.join("f"), "f");
    fs::create_dir(&target).unwrap();
    let backup = args!["backup", tree, "--to", target.join("x.tar.gz")];
    let ran = tampered(
        "unlink,unlinkat,rename,renameat,renameat2:error=EPERM",
        None,
        backup,
    )
    .ends_with(1);
    let left = names(&target);
    assert_eq!(left.len(), 1, "{left:?}");
    left.iter().for_each(|name| {
        assert!(
            ran.err.contains(&format!("{name}\" could not be removed")),
            "{}",
            ran.err
        )
    });
}

#[test]
fn nothing_is_begun_where_it_could_not_be_given_its_name_or_removed() {
    let dir = temp();
    let (tree, target) = (dir.path().join("tree"), dir.path().join("to"));
    write(tree.join("f"), "f");
    fs::create_dir(&target).unwrap();
    let Some(_to) = AppendOnly::new(&target) else {
        return;
    };
    for name in ["x.tar.zst", "x.tar.gz"] {
        let ran = fullbore(args!["backup", tree, "--to", target.join(name)]).ends_with(1);
        ran.has_one_error("its directory is append-only");
    }
    fullbore(args!["bench", "write", target, "--size", "1M"])
        .ends_with(1)
        .has_one_error("the directory is append-only");
    assert_eq!(names(&target), [""; 0]);
    // What needs no final name in it can be stored there.
    fullbore(args![
        "backup",
        tree,
        "--to",
        target.join("repository"),
        "-q"
    ])
    .ends_with(0);
}

#[test]
fn a_file_system_without_inodes_is_said_to_lack_those_and_not_space() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    write(path("files/f"), "f");
    fs::create_dir_all(path("directories/d")).unwrap();
    fs::create_dir_all(path("links")).unwrap();
    std::os::unix::fs::symlink("x", path("links/l")).unwrap();
    fs::create_dir_all(path("pipes")).unwrap();
    make_fifo(&path("pipes/p"));
    let trees = ["files", "directories", "links", "pipes"];
    fs::create_dir(path("r")).unwrap();
    trees.iter().for_each(|tree| {
        _ = fullbore(args![
            "backup",
            path(tree),
            "--to",
            path("r").join(tree),
            "-q"
        ])
        .ends_with(0)
    });
    let Some(_disk) = ext4(&path("image"), &path("m"), 8, "-N 16") else {
        return;
    };
    fs::create_dir(path("m/to")).unwrap();
    while fs::File::create_new(path("m").join(names(&path("m")).len().to_string())).is_ok() {}
    let is_said = |ran: Ran| {
        let ran = ran
            .ends_with(1)
            .has_one_error("no inodes left on the file system");
        assert!(
            ran.err.contains("df -i")
                && !ran.err.contains("no space")
                && !ran.err.contains("free space"),
            "{}",
            ran.err
        );
    };
    for tree in trees {
        ["", "--overwrite=all", "--delta"]
            .iter()
            .for_each(|how| is_said(fullbore(restore(&path("r").join(tree), &path("m/to"), how))));
        is_said(fullbore(restore(
            &path("r").join(tree),
            &path("m/new/target"),
            "",
        )));
    }
    for destination in ["m/repository", "m/x.tar.zst", "m/x.tar.gz", "m/to/x.tar"] {
        is_said(fullbore(args![
            "backup",
            path("files"),
            "--to",
            path(destination)
        ]));
    }
    is_said(fullbore(args!["copy", path("r/files"), path("m/to/copy")]));
    // Where there are some, it is the space that is short.
    let Some(_small) = ext4(&path("other"), &path("n"), 1, "") else {
        return;
    };
    write(path("files/large"), noise(1, 3_000_000));
    fullbore(args!["backup", path("files"), "--to", path("n/x.tar")])
        .ends_with(1)
        .has_one_error("no space left");
}
