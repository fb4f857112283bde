//! Restoring backups to disk.

use fullbore_engine::restore::Restore;
use fullbore_format::{
    entry::{EntryKind, order},
    error::{Error, ErrorKind},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform::metrics::meter::Meter;
use fullbore_storage::Storages;
use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};
use tempfile::tempdir;
use testkit::fixture::{
    self, Fixture, content, entry, look, once_more_without_tricks, plan, restore,
};

/// Is the tree at `dir` what the fixture says?
fn assert_restored(fixture: &Fixture, dir: &Path) {
    for (_, entry, data, _) in &fixture.entries {
        let path = dir.join(std::str::from_utf8(&entry.path).unwrap());
        let meta = fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        match &entry.kind {
            EntryKind::File { size, map: None } => {
                assert_eq!(meta.len(), *size, "{path:?}");
                assert!(fs::read(&path).unwrap() == *data, "content of {path:?}");
            }
            EntryKind::File {
                size,
                map: Some(map),
            } => {
                assert_eq!(meta.len(), *size, "{path:?}");
                assert!(meta.blocks() * 512 < 1 << 20, "{path:?} is not sparse");
                let file = fs::File::open(&path).unwrap();
                let mut index = 0;
                for run in map.iter() {
                    let mut bytes = vec![0; run.len as usize];
                    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, run.offset)
                        .unwrap();
                    assert!(
                        bytes == data[index..index + bytes.len()],
                        "content of {path:?}"
                    );
                    index += bytes.len();
                }
            }
            EntryKind::Directory => assert!(meta.is_dir()),
            EntryKind::Symlink(target) => {
                assert_eq!(
                    fs::read_link(&path).unwrap().to_str().unwrap().as_bytes(),
                    target
                );
            }
            EntryKind::HardLink(target) => {
                let target = fs::metadata(dir.join(std::str::from_utf8(target).unwrap())).unwrap();
                assert_eq!(target.ino(), meta.ino());
                continue;
            }
            EntryKind::Fifo => assert!(meta.file_type().is_fifo()),
            _ => {}
        }
        assert_eq!(
            (meta.mtime(), meta.mtime_nsec()),
            (entry.mtime.seconds, entry.mtime.nanos.into()),
            "{path:?}"
        );
        if !meta.is_symlink() {
            assert_eq!(meta.mode() & 0o7777, entry.mode, "{path:?}");
        }
    }
}

#[test]
fn every_codec_restores_from_a_repository_and_from_one_file() {
    for codec in [Codec::Zstd(1), Codec::Lz4, Codec::None] {
        let dir = tempdir().unwrap();
        let fixture = Fixture {
            codec,
            ..Fixture::sample()
        };
        fixture.write_repository(&dir.path().join("repo"));
        let archive = dir.path().join(format!("x.{}", codec.suffix()));
        fixture.write_archive(&archive);
        for (source, target) in [(dir.path().join("repo"), "a"), (archive, "b")] {
            let target = dir.path().join(target);
            let summary = restore(&source, &target).unwrap();
            assert_eq!((summary.exit_code(), summary.notes), (0, vec![]), "{codec}");
            assert_restored(&fixture, &target);
        }
    }
}

#[test]
fn one_worker_and_many_restore_the_same_tree() {
    let dir = tempdir().unwrap();
    let fixture = Fixture {
        page_extents: 3,
        segment_bytes: 9000,
        ..Fixture::sample()
    };
    fixture.write_repository(&dir.path().join("repo"));
    let trees = [1, 2, 9].map(|workers| {
        let target = dir.path().join(workers.to_string());
        Restore {
            storages: Storages::default(),
            workers: workers.try_into().unwrap(),
            ..plan(&dir.path().join("repo"), &target)
        }
        .run(&Meter::default())
        .unwrap();
        assert_restored(&fixture, &target);
        look(&target)
    });
    assert_eq!(trees[0], trees[1]);
    assert_eq!(trees[0], trees[2]);
    once_more_without_tricks();
}

#[test]
fn a_file_that_goes_on_over_pages_comes_back() {
    for digest in [
        Default::default(),
        fullbore_format::digest::Algorithm::Crc32c,
    ] {
        let dir = tempdir().unwrap();
        let mut fixture = Fixture {
            page_extents: 2,
            digest,
            ..Fixture::default()
        };
        fixture
            .dir("", 0o755)
            .file("a", content(1, 70_000))
            .file("b", "b")
            .file("c", content(2, 12_288));
        fixture.write_repository(&dir.path().join("repo"));
        restore(&dir.path().join("repo"), &dir.path().join("to")).unwrap();
        assert_restored(&fixture, &dir.path().join("to"));
    }
}

#[test]
fn streams_of_several_devices_come_back_as_one_tree() {
    let dir = tempdir().unwrap();
    let mut fixture = Fixture {
        page_records: 3,
        ..Fixture::default()
    };
    fixture.dir("", 0o755).dir("a", 0o500).dir("z", 0o500);
    for i in 0..30 {
        fixture.file(&format!("a/m/f{i}"), content(i, 600));
        fixture.entries.last_mut().unwrap().0 = 2;
        fixture.file(&format!("z/f{i}"), content(i, 600));
    }
    fixture.dir("a/m", 0o500);
    fixture.entries.last_mut().unwrap().0 = 2;
    fixture
        .dir("a/m/inner", 0o755)
        .file("a/m/inner/f", "of stream 1 again");
    fixture.write_repository(&dir.path().join("repo"));
    restore(&dir.path().join("repo"), &dir.path().join("to")).unwrap();
    assert_restored(&fixture, &dir.path().join("to"));
}

#[test]
fn only_what_was_selected_comes_back_with_the_directories_above_it() {
    let dir = tempdir().unwrap();
    let fixture = Fixture::sample();
    fixture.write_repository(&dir.path().join("repo"));
    let target = dir.path().join("to");
    let paths = vec![b"./a/b/f01".to_vec(), b"/big/".to_vec()];
    Restore {
        storages: Storages::default(),
        paths,
        ..plan(&dir.path().join("repo"), &target)
    }
    .run(&Meter::default())
    .unwrap();
    let names: Vec<String> = look(&target).into_keys().collect();
    assert_eq!(
        names,
        [
            "",
            "a",
            "a/b",
            "a/b/f01",
            "big",
            "big/exact",
            "big/odd",
            "big/one"
        ]
    );
    assert_eq!(
        fs::metadata(target.join("a/b")).unwrap().mode() & 0o7777,
        0o500
    );
}

#[test]
fn a_path_that_is_not_there_is_an_error_that_names_it() {
    let dir = tempdir().unwrap();
    Fixture::sample().write_repository(&dir.path().join("repo"));
    let target = dir.path().join("to");
    let paths = vec![b"a".to_vec(), b"a/nothing".to_vec()];
    let error = Restore {
        storages: Storages::default(),
        paths,
        ..plan(&dir.path().join("repo"), &target)
    }
    .run(&Meter::default())
    .unwrap_err();
    assert_eq!((error.kind, error.exit_code()), (ErrorKind::NotFound, 1));
    assert!(error.what.contains("\"a/nothing\""), "{error}");
    assert!(!target.exists());
}

#[test]
fn a_hard_link_without_its_target_gets_the_content() {
    let dir = tempdir().unwrap();
    let mut fixture = Fixture {
        page_extents: 2,
        ..Fixture::default()
    };
    fixture
        .dir("", 0o755)
        .file("a", content(5, 30_000))
        .link("x", "a")
        .link("y", "a");
    fixture.write_repository(&dir.path().join("repo"));
    let target = dir.path().join("to");
    let paths = vec![b"x".to_vec(), b"y".to_vec()];
    Restore {
        storages: Storages::default(),
        paths,
        ..plan(&dir.path().join("repo"), &target)
    }
    .run(&Meter::default())
    .unwrap();
    assert!(!target.join("a").exists());
    assert!(fs::read(target.join("x")).unwrap() == content(5, 30_000));
    assert_eq!(
        fs::metadata(target.join("x")).unwrap().ino(),
        fs::metadata(target.join("y")).unwrap().ino()
    );
}

#[test]
fn a_target_that_holds_something_is_refused_unless_overwrite_is_said() {
    let dir = tempdir().unwrap();
    let fixture = Fixture::sample();
    fixture.write_repository(&dir.path().join("repo"));
    let target = dir.path().join("to");
    fs::create_dir_all(target.join("fifo/dir")).unwrap();
    let error = restore(&dir.path().join("repo"), &target).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Exists);
    fs::remove_dir(target.join("fifo/dir")).unwrap();
    fs::create_dir(target.join("a")).unwrap();
    fs::write(target.join("a/zero"), "old").unwrap();
    fs::write(target.join("kept"), "kept").unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f01"), "safe").unwrap();
    std::os::unix::fs::symlink(&outside, target.join("a/b")).unwrap();
    std::os::unix::fs::symlink(outside.join("f01"), target.join("a/b.txt")).unwrap();
    Restore {
        storages: Storages::default(),
        into: fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
        ..plan(&dir.path().join("repo"), &target)
    }
    .run(&Meter::default())
    .unwrap();
    assert_restored(&fixture, &target);
    assert_eq!(fs::read(target.join("kept")).unwrap(), b"kept");
    assert_eq!(fs::read(outside.join("f01")).unwrap(), b"safe");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn a_symlink_of_the_backup_leads_nobody_out_of_the_target() {
    for into in [
        fullbore_engine::restore::RestoreInto::Empty,
        fullbore_engine::restore::RestoreInto::Overwrite { newer: true },
    ] {
        let dir = tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let mut fixture = Fixture {
            page_records: 2,
            ..Fixture::default()
        };
        fixture
            .dir("", 0o755)
            .symlink("a", outside.to_str().unwrap())
            .file("a/b", "evil")
            .link("a/c", "x");
        fixture.write_repository(&dir.path().join("repo"));
        let target = dir.path().join("to");
        let restored = Restore {
            storages: Storages::default(),
            into,
            ..plan(&dir.path().join("repo"), &target)
        }
        .run(&Meter::default());
        let error = restored.unwrap_err();
        // Whichever worker is first: the link is in the way of the file, or the file of the link.
        assert!(error.line().contains("to/a"), "{}", error.line());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}

#[test]
fn files_that_were_not_captured_are_left_out() {
    let dir = tempdir().unwrap();
    let mut fixture = Fixture::default();
    fixture.dir("", 0o755);
    for (name, state) in [
        ("gone", fullbore_format::page::EntryState::Vanished),
        (
            "denied",
            fullbore_format::page::EntryState::Unreadable("no".into()),
        ),
    ] {
        fixture.put(
            entry(name, EntryKind::File { size: 9, map: None }, 0o644),
            [],
        );
        fixture.entries.last_mut().unwrap().3 = state;
    }
    fixture.write_repository(&dir.path().join("repo"));
    let summary = restore(&dir.path().join("repo"), &dir.path().join("to")).unwrap();
    assert_eq!(look(&dir.path().join("to")).len(), 1);
    // What vanished is not missed by anybody.
    assert_eq!((summary.exit_code(), summary.lacking.unreadable), (3, 1));
    for name in ["gone", "denied"] {
        let paths = vec![name.into()];
        let one = Restore {
            storages: Storages::default(),
            paths,
            ..plan(&dir.path().join("repo"), &dir.path().join("one"))
        };
        assert_eq!(
            one.run(&Meter::default()).unwrap_err().kind,
            ErrorKind::NotFound
        );
    }
    let _ = order(b"a", b"b");
}

/// Counts what is read.
struct Recording {
    inner: Box<dyn fullbore_repository::archive::object::ObjectReader>,
    bytes: std::sync::Arc<std::sync::atomic::AtomicU64>,
    calls: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl fullbore_repository::archive::object::ObjectReader for Recording {
    fn read_at(
        &self,
        object: &fullbore_repository::archive::object::ObjectName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.bytes
            .fetch_add(len as u64, std::sync::atomic::Ordering::Relaxed);
        self.calls
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.inner.read_at(object, offset, len, out)
    }

    fn len(&self, object: &fullbore_repository::archive::object::ObjectName) -> Result<u64, Error> {
        self.inner.len(object)
    }

    fn name(&self, object: &fullbore_repository::archive::object::ObjectName) -> String {
        self.inner.name(object)
    }
}

fn recorded(repository: &Path, plan: &Restore) -> (u64, u64) {
    use std::sync::atomic::Ordering::Relaxed;
    let (bytes, calls) = <(std::sync::Arc<std::sync::atomic::AtomicU64>, _)>::default();
    let inner = Box::new(fullbore_repository::archive::object::BackupObjects::new(
        &Storages::default().repository_at(repository).unwrap(),
        fixture::ID,
    ));
    let store = Recording {
        inner,
        bytes: bytes.clone(),
        calls: std::sync::Arc::clone(&calls),
    };
    let archive = fullbore_repository::archive::Archive::with_store(Box::new(store)).unwrap();
    plan.run_archive(archive, &Meter::default()).unwrap();
    let calls: &std::sync::atomic::AtomicU64 = &calls;
    (bytes.load(Relaxed), calls.load(Relaxed))
}

#[test]
fn one_file_out_of_many_reads_the_root_two_pages_and_its_frame() {
    let dir = tempdir().unwrap();
    let mut fixture = Fixture {
        page_records: 500,
        frame_bytes: 64 << 10,
        ..Fixture::default()
    };
    fixture.dir("", 0o755);
    for i in 0..20_000 {
        fixture.file(&format!("f{i:05}"), content(i, 300));
    }
    let root = fixture.write_repository(&dir.path().join("repo"));
    let plan = Restore {
        storages: Storages::default(),
        paths: vec![b"f12345".to_vec()],
        ..plan(&dir.path().join("repo"), &dir.path().join("to"))
    };
    let (bytes, calls) = recorded(&dir.path().join("repo"), &plan);
    let largest_page = root.pages.iter().map(|page| page.bytes).max().unwrap();
    let root_bytes = fs::metadata(
        dir.path()
            .join("repo/backups")
            .join(fixture::ID)
            .join("root.json"),
    )
    .unwrap()
    .len();
    assert!(
        bytes <= root_bytes + 4 * largest_page + (64 << 10),
        "{bytes} bytes were read"
    );
    assert!(calls <= 6, "{calls} reads");
    assert!(fs::read(dir.path().join("to/f12345")).unwrap() == content(12345, 300));
}

#[test]
fn every_frame_is_read_once_however_many_files_want_it() {
    let dir = tempdir().unwrap();
    let fixture = Fixture::sample();
    let root = fixture.write_repository(&dir.path().join("repo"));
    let (_, calls) = recorded(
        &dir.path().join("repo"),
        &plan(&dir.path().join("repo"), &dir.path().join("to")),
    );
    let frames: u64 = root.segments.iter().map(|segment| segment.frames).sum();
    // The root, each page forwards and backwards, and the frames.
    assert!(
        calls <= 1 + 2 * root.pages.len() as u64 + frames,
        "{calls} reads for {frames} frames"
    );
}

#[test]
fn an_unprivileged_restore_notes_what_it_may_not_set() {
    if fixture::me().uid != 0 {
        return;
    }
    let dir = tempdir().unwrap();
    let mut fixture = Fixture::sample();
    let device = fullbore_format::entry::Device { major: 1, minor: 3 };
    fixture.put(entry("null", EntryKind::CharDevice(device), 0o666), []);
    let mut attributed = entry("attributed", EntryKind::File { size: 1, map: None }, 0o444);
    attributed.xattrs = vec![
        (b"user.a".to_vec(), b"1".to_vec()),
        (b"trusted.b".to_vec(), b"2".to_vec()),
    ];
    fixture.put(attributed, "x");
    fixture.write_repository(&dir.path().join("repo"));
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
    let status = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "restore::restores_the_tree_that_the_environment_names",
            "--nocapture",
        ])
        .env("FULLBORE_TEST_RESTORE", dir.path())
        .status();
    let Ok(status) = status else { return };
    assert!(status.success());
    let meta = fs::metadata(dir.path().join("to/a/b/f01")).unwrap();
    assert_eq!(meta.uid(), 65534);
    assert!(!dir.path().join("to/null").exists());
}

/// Run by the test above as another user; nothing by itself.
#[test]
fn restores_the_tree_that_the_environment_names() {
    let Some(dir) = std::env::var_os("FULLBORE_TEST_RESTORE") else {
        return;
    };
    let dir = Path::new(&dir);
    let summary = restore(&dir.join("repo"), &dir.join("to")).unwrap();
    assert_eq!(summary.exit_code(), 0);
    let notes = summary.notes.join("\n");
    for note in [
        "owner not restored (operation not permitted): ",
        "device not restored",
        "attribute \"trusted.b\" not restored",
    ] {
        assert!(notes.contains(note), "{notes}");
    }
    assert!(!notes.contains("user.a"), "{notes}");
    assert_eq!(
        fs::metadata(dir.join("to/a/suid")).unwrap().mode() & 0o7777,
        0o755
    );
}

#[test]
fn owners_attributes_and_devices_come_back_as_root() {
    if fixture::me().uid != 0 {
        return;
    }
    let dir = tempdir().unwrap();
    let mut fixture = Fixture::default();
    fixture.dir("", 0o755);
    let device = fullbore_format::entry::Device {
        major: 7,
        minor: 300,
    };
    for (name, kind) in [
        ("char", EntryKind::CharDevice(device)),
        ("block", EntryKind::BlockDevice(device)),
        ("link", EntryKind::Symlink(b"x".to_vec())),
        ("fifo", EntryKind::Fifo),
        ("file", EntryKind::File { size: 2, map: None }),
        (
            "large",
            EntryKind::File {
                size: 20_000,
                map: None,
            },
        ),
        ("dir", EntryKind::Directory),
    ] {
        let mut entry = entry(name, kind, 0o2750);
        entry.owner.uid = 12_345;
        entry.owner.gid = 54_321;
        entry.xattrs = vec![(b"trusted.x".to_vec(), name.into())];
        let data = content(1, entry.size() as usize);
        fixture.put(entry, data);
    }
    fixture.write_repository(&dir.path().join("repo"));
    let summary = restore(&dir.path().join("repo"), &dir.path().join("to")).unwrap();
    assert_eq!(summary.notes, Vec::<String>::new());
    assert_restored(&fixture, &dir.path().join("to"));
    let root = fullbore_platform::dir::open_root(&dir.path().join("to")).unwrap();
    for (_, entry, ..) in fixture.entries.iter().skip(1) {
        let stat = fullbore_platform::dir::stat(&root, &entry.path).unwrap();
        assert_eq!((stat.uid, stat.gid), (12_345, 54_321));
        assert_eq!(
            fullbore_platform::xattr::read_all_at(&root, &entry.path).unwrap(),
            entry.xattrs
        );
        if let EntryKind::CharDevice(device) | EntryKind::BlockDevice(device) = entry.kind {
            assert_eq!(stat.rdev, device);
        }
    }
}
