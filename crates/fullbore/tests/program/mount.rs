//! `fullbore mount`: backups as directories. Without FUSE the tests of a real mount say why they do nothing.

use fullbore_format::{entry::EntryKind, layout, page::EntryState};
use fullbore_platform as platform;
use std::{
    ffi::OsString,
    fs::{self, File},
    io::Read,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::{TempDir, tempdir};
use testkit::{
    fixture::{self, Fixture, content, entry},
    runs::{
        Ran, args, assert_same, command, fullbore, is_root, names, or_skip, sample, segments,
        set_xattr, shape, write,
    },
};

/// A mount of a test, which ends with it.
struct Mounted {
    child: Child,
    dir: PathBuf,
    log: PathBuf,
}

/// Says why there is no mount: no device, or no right to mount.
fn has_fuse() -> bool {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    or_skip(
        device.is_ok() && is_root(),
        "/dev/fuse cannot be opened, or this is not root",
    )
}

fn is_mounted(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let words = |line: &str| line.split(' ').nth(4).map(PathBuf::from);
    let dir = platform::dir::real_path(dir.parent().unwrap()).unwrap();
    table.lines().any(|line| {
        words(line).is_some_and(|mount| mount.parent() == Some(&dir) && line.contains("fuse"))
    })
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

impl Mounted {
    fn new(dir: &TempDir, from: &str, options: &[&str]) -> Self {
        let at = dir.path().join("mnt/at");
        fs::create_dir_all(&at).unwrap();
        let log = dir.path().join("log");
        let from = format!("{}/{from}", dir.path().display());
        let mut words = args!["mount", from, &at].to_vec();
        words.extend(args(options));
        let child = command(words)
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mounted = Self {
            child,
            dir: at,
            log,
        };
        wait_until("no mount", || is_mounted(&mounted.dir));
        mounted
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.join(path)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Sends a signal, and returns the exit code.
    fn ends_by(&mut self, signal: &str) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &pid])
                .status()
                .unwrap()
                .success()
        );
        wait_until("the process stays", || {
            self.child.try_wait().unwrap().is_some()
        });
        self.child.wait().unwrap().code()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .args(["-l"])
            .arg(&self.dir)
            .stderr(Stdio::null())
            .status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn shell(line: &str, at: &Path) -> Ran {
    testkit::runs::shell(&format!("cd \"$1\" && {line}"), args![at])
}

/// A tree with something of everything, and a repository with two backups of it.
fn two_backups(dir: &TempDir) {
    let source = dir.path().join("source");
    sample(&source);
    let file = source.join("large");
    write(&file, content(5, 9 << 20));
    shell(
        "ln large another; truncate -s 100M sparse; mkfifo -m 640 pipe; ln -s large to",
        &source,
    )
    .ends_with(0);
    File::options()
        .write(true)
        .open(source.join("sparse"))
        .unwrap()
        .write_all_at(b"data", 50 << 20)
        .unwrap();
    set_xattr(&file, "user.name", b"value");
    for tag in ["first", "second"] {
        let to = dir.path().join("repo");
        fullbore(args![
            "backup", &source, "--to", to, "--quiet", "--tag", tag
        ])
        .ends_with(0);
    }
}

#[test]
fn every_backup_is_a_directory_that_is_equal_to_its_source() {
    if !has_fuse() {
        return;
    }
    let dir = tempdir().unwrap();
    two_backups(&dir);
    let mounted = Mounted::new(&dir, "repo", &[]);
    let source = dir.path().join("source");
    assert_eq!(
        names(&mounted.dir),
        ["by-day", "by-tag", "by-time", "hosts", "ids", "latest"]
    );
    let ids = names(&mounted.path("ids"));
    assert_eq!(ids.len(), 2);
    assert_eq!(names(&mounted.path("by-tag")), ["first", "second"]);
    assert_eq!(names(&mounted.path("by-time")).len(), 2);
    let days = names(&mounted.path("by-day"));
    let views = [
        format!("ids/{}", ids[0]),
        "latest".to_owned(),
        "by-tag/first/latest".to_owned(),
        format!("by-day/{}/latest", days[0]),
    ];
    for view in views {
        let shown = fs::canonicalize(mounted.path(&view)).unwrap();
        assert_same(&shape(&source), &shape(&shown), &view);
    }
    assert!(fs::metadata(mounted.path("by-tag/third")).is_err());
    assert!(File::create(mounted.path("latest/new")).is_err());
}

#[test]
fn one_backup_is_the_root_and_copies_of_it_are_equal() {
    if !has_fuse() {
        return;
    }
    let dir = tempdir().unwrap();
    two_backups(&dir);
    let mounted = Mounted::new(&dir, "repo@latest", &[]);
    let source = shape(&dir.path().join("source"));
    assert_same(&source, &shape(&mounted.dir), "mount");
    fs::create_dir(dir.path().join("tarred")).unwrap();
    shell(
        "tar cSf - --xattrs --acls -C mnt/at . | tar xpSf - --xattrs --acls -C tarred",
        dir.path(),
    )
    .ends_with(0);
    assert_same(&source, &shape(&dir.path().join("tarred")), "tar");
    shell("cp -a mnt/at copied", dir.path()).ends_with(0);
    assert_same(&source, &shape(&dir.path().join("copied")), "cp -a");
    shell(
        "grep -r nothing-like-this mnt/at; ls -R mnt/at > list",
        dir.path(),
    )
    .ends_with(0);
    assert_eq!(fs::metadata(mounted.path("another")).unwrap().nlink(), 2);
    assert_eq!(
        fs::metadata(mounted.path("another")).unwrap().ino(),
        fs::metadata(mounted.path("large")).unwrap().ino()
    );
}

#[test]
fn holes_are_shown_and_access_lists_count() {
    if !has_fuse() {
        return;
    }
    let dir = tempdir().unwrap();
    two_backups(&dir);
    let source = dir.path().join("source");
    let has_acl = or_skip(testkit::runs::has("setfacl"), "no setfacl");
    if has_acl {
        shell("chmod 600 large && setfacl -m u:1:r large", &source).ends_with(0);
        let to = dir.path().join("repo");
        fullbore(args!["backup", &source, "--to", to, "--quiet"]).ends_with(0);
    }
    let mounted = Mounted::new(&dir, "repo@latest", &["--allow-other"]);
    let sparse = File::open(mounted.path("sparse")).unwrap();
    let seek = |from| rustix::fs::seek(&sparse, from).unwrap();
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), 50 << 20);
    assert!(seek(rustix::fs::SeekFrom::Hole(50 << 20)) < 51 << 20);
    assert!(fs::metadata(mounted.path("sparse")).unwrap().blocks() < 10_000);
    if has_acl {
        let list = |at: &Path| shell("getfacl --omit-header large", at).ends_with(0).out;
        assert_eq!(list(&mounted.dir), list(&source));
        let read = |uid: &str| {
            let words = ["--reuid", uid, "--regid", uid, "--clear-groups", "cat"];
            let ran = Command::new("setpriv")
                .args(words)
                .arg(mounted.path("large"))
                .output();
            ran.unwrap().status.success()
        };
        assert!(read("1") && !read("2"));
    }
}

#[test]
fn parallel_random_reads_are_right() {
    if !has_fuse() {
        return;
    }
    let dir = tempdir().unwrap();
    two_backups(&dir);
    let mounted = Mounted::new(&dir, "repo@latest", &["--memory", "32M"]);
    let wanted = content(5, 9 << 20);
    thread::scope(|scope| {
        for thread in 0..6u64 {
            let (mounted, wanted) = (&mounted, &wanted);
            scope.spawn(move || {
                let file = File::open(mounted.path("large")).unwrap();
                let mut state = thread + 1;
                for _ in 0..100 {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let offset = (state >> 33) % (8 << 20);
                    let mut found = vec![0; 1 + (state >> 50) as usize % 5000];
                    file.read_exact_at(&mut found, offset).unwrap();
                    assert!(found == wanted[offset as usize..offset as usize + found.len()]);
                }
            });
        }
    });
}

#[test]
fn signals_and_umount_end_the_process_and_a_kill_leaves_nothing() {
    if !has_fuse() {
        return;
    }
    let dir = tempdir().unwrap();
    two_backups(&dir);
    let is_gone = |mounted: &Mounted| {
        wait_until("the mount stays", || !is_mounted(&mounted.dir));
        assert_eq!(names(&mounted.dir), [""; 0]);
    };
    for signal in ["-TERM", "-INT"] {
        let mut mounted = Mounted::new(&dir, "repo", &[]);
        assert_eq!(mounted.ends_by(signal), Some(0));
        is_gone(&mounted);
    }
    let mut mounted = Mounted::new(&dir, "repo", &[]);
    shell("umount mnt/at", dir.path()).ends_with(0);
    wait_until("the process stays", || {
        mounted.child.try_wait().unwrap().is_some()
    });
    assert_eq!(mounted.child.wait().unwrap().code(), Some(0));
    is_gone(&mounted);
    let mut mounted = Mounted::new(&dir, "repo", &[]);
    let mut open = File::open(mounted.path("latest/large")).unwrap();
    assert_eq!(mounted.ends_by("-KILL"), None);
    is_gone(&mounted);
    assert!(open.read(&mut [0; 10]).is_err());
    // A program that has a file open does not keep the directory.
    let mut mounted = Mounted::new(&dir, "repo", &[]);
    let open = File::open(mounted.path("latest/large")).unwrap();
    assert_eq!(mounted.ends_by("-TERM"), Some(0));
    is_gone(&mounted);
    drop(open);
}

#[test]
fn a_backup_that_is_removed_meanwhile_gives_errors_and_a_reason_once() {
    if !has_fuse() {
        return;
    }
    let dir = tempdir().unwrap();
    two_backups(&dir);
    let mounted = Mounted::new(&dir, "repo", &[]);
    let ids = names(&mounted.path("ids"));
    let first = mounted.path(&format!("ids/{}", ids[0]));
    assert!(first.join("large").exists());
    let repository = dir.path().join("repo");
    let other = dir.path().join("other");
    write(other.join("file"), "other");
    fullbore(args!["backup", other, "--to", &repository, "--quiet"]).ends_with(0);
    let forgotten = ids.iter().map(OsString::from);
    fullbore(
        args!["forget", "--yes", &repository]
            .into_iter()
            .chain(forgotten),
    )
    .ends_with(0);
    fullbore(args!["prune", &repository]).ends_with(0);
    for _ in 0..3 {
        let error = fs::read(first.join("large")).map(|content| content.len());
        assert_eq!(error.unwrap_err().raw_os_error(), Some(5));
    }
    let log = mounted.log();
    let count = log.matches("any more").count();
    assert!(count == 1 && log.contains(&ids[0]), "{log}");
}

#[test]
fn damage_is_an_error_where_it_is() {
    if !has_fuse() {
        return;
    }
    let dir = tempdir().unwrap();
    let mut backup = Fixture::default();
    backup
        .dir("", 0o755)
        .file("large", content(5, 400_000))
        .file("other", content(6, 3000));
    backup.frame_bytes = 64 << 10;
    let repository = dir.path().join("repo");
    backup.write_repository(&repository);
    let segment = &segments(&repository)[0];
    let mut bytes = fs::read(segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(segment, bytes).unwrap();
    let mounted = Mounted::new(&dir, "repo@latest", &[]);
    let file = File::open(mounted.path("large")).unwrap();
    let mut wrong = 0;
    for offset in (0..400_000u64).step_by(64 << 10) {
        let mut found = vec![0; 4096.min(400_000 - offset as usize)];
        match file.read_exact_at(&mut found, offset) {
            Ok(()) => assert!(found == content(5, 400_000)[offset as usize..][..found.len()]),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5));
                wrong += 1;
            }
        }
    }
    assert_eq!(wrong, 1);
    assert_eq!(fs::read(mounted.path("other")).unwrap(), content(6, 3000));
    assert!(
        mounted.log().contains("damaged") || mounted.log().contains("checksum"),
        "{}",
        mounted.log()
    );
}

#[test]
fn entries_that_no_restore_makes_are_not_shown() {
    if !has_fuse() {
        return;
    }
    let dir = tempdir().unwrap();
    let mut backup = Fixture::sample();
    backup
        .link("to-nothing", "not/there")
        .link("to-a-directory", "a/b")
        .link("to-a-link", "hard");
    let unreadable = EntryState::Unreadable("denied".into());
    let kind = EntryKind::File { size: 5, map: None };
    backup
        .entries
        .push((1, entry("lost", kind, 0o644), vec![], unreadable));
    backup.file("implied/deep/file", "x");
    backup.write_repository(&dir.path().join("repo"));
    let mounted = Mounted::new(&dir, "repo@latest", &[]);
    let found = names(&mounted.dir);
    let wanted = [
        "a", "big", "dangling", "empty", "fifo", "hard", "implied", "sparse",
    ];
    assert_eq!(found, wanted);
    assert_eq!(fs::read(mounted.path("implied/deep/file")).unwrap(), b"x");
    for name in ["lost", "to-nothing", "to-a-directory", "to-a-link"] {
        assert!(fs::symlink_metadata(mounted.path(name)).is_err(), "{name}");
    }
}

#[test]
fn a_directory_of_many_names_is_listed_in_bounded_memory() {
    if !has_fuse() {
        return;
    }
    let dir = tempdir().unwrap();
    let mut large = Fixture {
        page_records: 8192,
        frame_bytes: 1 << 20,
        ..Fixture::default()
    };
    large.dir("", 0o755).dir("many", 0o755);
    for number in 0..60_000 {
        large.file(&format!("many/{number:06}"), []);
    }
    for number in 0..48 {
        large.file(&format!("files/{number:02}"), content(number, 1 << 20));
    }
    large.write_repository(&dir.path().join("repo"));
    let mounted = Mounted::new(&dir, "repo@latest", &["--memory", "16M"]);
    let count = shell(
        "ls -lR mnt/at | grep -c '^-'; cat mnt/at/files/* | wc -c",
        dir.path(),
    );
    assert_eq!(
        count.ends_with(0).out.trim(),
        format!("60048\n{}", 48 << 20)
    );
    let status = fs::read_to_string(format!("/proc/{}/status", mounted.child.id())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak >> 10 <= 16 + 64, "{peak} KiB");
}

#[test]
fn archives_and_encrypted_repositories_are_shown_too() {
    if !has_fuse() {
        return;
    }
    let dir = tempdir().unwrap();
    Fixture::sample().write_archive(&dir.path().join("one.tar.zst"));
    let mounted = Mounted::new(&dir, "one.tar.zst", &[]);
    assert_eq!(
        fs::read(mounted.path("a/b/f07")).unwrap(),
        content(7, 7 * 97)
    );
    drop(mounted);
    let source = dir.path().join("source");
    write(source.join("file"), "secret");
    let repository = dir.path().join("sealed");
    shell(
        "age-keygen -o key && age-keygen -y key > public",
        dir.path(),
    )
    .ends_with(0);
    let key = dir.path().join("key");
    let public = fs::read_to_string(dir.path().join("public")).unwrap();
    fullbore(args![
        "init",
        &repository,
        "--encrypt-to",
        public.trim(),
        "--quiet"
    ])
    .ends_with(0);
    fullbore(args![
        "backup",
        &source,
        "--to",
        &repository,
        "--key",
        &key,
        "--quiet"
    ])
    .ends_with(0);
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let refused = fullbore(args!["mount", &repository, &empty]);
    assert!(refused.code != 0 && !is_mounted(&empty), "{}", refused.err);
    let mounted = Mounted::new(&dir, "sealed", &["--key", key.to_str().unwrap()]);
    assert_eq!(fs::read(mounted.path("latest/file")).unwrap(), b"secret");
}

#[test]
fn a_mount_hides_no_files_and_needs_a_repository() {
    let dir = tempdir().unwrap();
    Fixture::sample().write_repository(&dir.path().join("repo"));
    let full = dir.path().join("full");
    write(full.join("file"), "x");
    let repository = dir.path().join("repo");
    fullbore(args!["mount", &repository, &full])
        .ends_with(2)
        .has_one_error("it is not empty");
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    fullbore(args!["mount", dir.path().join("none"), &empty]).ends_with(1);
    fullbore(args![
        "mount",
        format!("{}@2020", repository.display()),
        &empty
    ])
    .ends_with(1);
    assert!(!is_mounted(&empty));
    assert!(repository.join(layout::BACKUPS).join(fixture::ID).exists());
}
