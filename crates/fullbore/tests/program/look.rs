//! Listing, showing and comparing backups.

use fullbore_engine::{
    restore::Restore,
    verify::{Verify, VerifyVerdict},
};
use fullbore_format::{entry::EntryKind, error::ErrorKind};
use fullbore_platform::metrics::meter::Meter;
use fullbore_repository::{open::open, select::BackupFilter};
use fullbore_storage::Storages;
use std::{fs, path::Path};
use tempfile::tempdir;
use testkit::{
    fixture::{self, Fixture, content, entry, plan},
    runs::{args, fullbore},
};

fn list(from: &str, paths: &[&str], json: bool) -> Vec<String> {
    let mut words = args(["list", "--recursive", "--quiet", from]);
    words.extend(args(paths));
    words.extend(json.then(|| "--json".into()));
    let ran = fullbore(words).ends_with(0);
    ran.out.lines().map(str::to_owned).collect()
}

fn two_backups(repository: &Path) {
    Fixture::sample().write_repository(repository);
    let id = "20261122T054501Z-k3f9qa".to_owned();
    Fixture {
        id,
        ..Fixture::sample()
    }
    .write_repository(repository);
}

#[test]
fn a_repository_lists_its_committed_backups_only() {
    let dir = tempdir().unwrap();
    two_backups(dir.path());
    fs::create_dir(dir.path().join("backups/20261123T054501Z-k3f9qa")).unwrap();
    let origin = dir.path().to_str().unwrap();
    assert_eq!(list(origin, &[], false).len(), 2);
    let json: Vec<serde_json::Value> = list(origin, &[], true)
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(json.len(), 2);
    for key in [
        "id",
        "time",
        "source",
        "entries",
        "bytes",
        "stored_bytes",
        "complete",
    ] {
        assert!(!json[0][key].is_null(), "{key}");
    }
    assert_eq!(json[0]["complete"], true);
}

#[test]
fn backups_are_found_by_id_prefix_and_latest() {
    let dir = tempdir().unwrap();
    let repository = dir.path().join("re@po");
    two_backups(&repository);
    let source = repository.to_str().unwrap();
    let id = |backup: &str| {
        open(
            &Storages::default(),
            format!("{source}{backup}"),
            &BackupFilter::default(),
        )
        .map(|archive| archive.root.id)
    };
    for latest in ["", "@latest", "@20261122", "@20261122T054501Z-k3f9qa"] {
        assert_eq!(id(latest).unwrap(), "20261122T054501Z-k3f9qa", "{latest}");
    }
    assert_eq!(id("@20261121").unwrap(), fixture::ID);
    let ambiguous = id("@2026").err().unwrap();
    assert_eq!(
        (ambiguous.kind, ambiguous.detail.len()),
        (ErrorKind::Usage, 2)
    );
    assert_eq!(id("@2027").err().unwrap().kind, ErrorKind::NotFound);
    assert_eq!(
        open(
            &Storages::default(),
            dir.path().to_str().unwrap(),
            &BackupFilter::default()
        )
        .err()
        .unwrap()
        .kind,
        ErrorKind::NotFound
    );
    assert_eq!(
        open(
            &Storages::default(),
            "/nowhere/at/all",
            &BackupFilter::default()
        )
        .err()
        .unwrap()
        .kind,
        ErrorKind::NotFound
    );
}

#[test]
fn a_repository_of_a_newer_format_is_unsupported() {
    let dir = tempdir().unwrap();
    two_backups(dir.path());
    let newer = fullbore_format::layout::Repository {
        format: 999,
        ..Default::default()
    };
    fs::write(
        dir.path().join("fullbore-repo.json"),
        fullbore_format::seal::seal(&newer).unwrap(),
    )
    .unwrap();
    assert_eq!(
        open(
            &Storages::default(),
            dir.path().to_str().unwrap(),
            &BackupFilter::default()
        )
        .err()
        .unwrap()
        .kind,
        ErrorKind::Unsupported
    );
}

#[test]
fn a_foreign_file_is_no_archive() {
    let dir = tempdir().unwrap();
    for content in [&b""[..], b"x", &[0; 10_000]] {
        let path = dir.path().join("f");
        fs::write(&path, content).unwrap();
        assert_eq!(
            open(
                &Storages::default(),
                path.to_str().unwrap(),
                &BackupFilter::default()
            )
            .err()
            .unwrap()
            .kind,
            ErrorKind::Unsupported
        );
    }
}

#[test]
fn entries_are_listed_in_path_order_and_files_over_pages_once() {
    let dir = tempdir().unwrap();
    let mut fixture = Fixture {
        page_extents: 2,
        page_records: 3,
        ..Fixture::default()
    };
    fixture
        .dir("", 0o755)
        .file("m", content(1, 60_000))
        .symlink("z", "m\u{1b}")
        .link("zz", "m")
        .dir("a", 0o1777);
    for i in 0..9 {
        fixture.file(&format!("a/{i}"), []);
        fixture.entries.last_mut().unwrap().0 = 2;
    }
    fixture.write_repository(dir.path());
    let backup = format!("{}@latest", dir.path().display());
    let lines = list(&backup, &[], false);
    let names: Vec<&str> = lines
        .iter()
        .map(|line| line.split(' ').rfind(|word| !word.is_empty()).unwrap())
        .collect();
    assert_eq!(
        names,
        [
            ".", "a", "a/0", "a/1", "a/2", "a/3", "a/4", "a/5", "a/6", "a/7", "a/8", "m",
            "m\\u{1b}", "m"
        ]
    );
    assert!(lines[1].starts_with("drwxrwxrwt "), "{}", lines[1]);
    assert_eq!(list(&backup, &["a"], true).len(), 10);
    let json: serde_json::Value = serde_json::from_str(&list(&backup, &["m"], true)[0]).unwrap();
    assert_eq!(
        (json["size"].as_u64(), json["kind"].as_str()),
        (Some(60_000), Some("file"))
    );
    assert_eq!(
        json["digest"].as_str().unwrap(),
        blake3::hash(&content(1, 60_000)).to_string()
    );
}

#[test]
fn show_prints_the_root() {
    let dir = tempdir().unwrap();
    let root = Fixture::sample().write_repository(dir.path());
    let show = |words: &[&str]| {
        let mut all = args(["show"]);
        all.extend(args(words));
        all.push(dir.path().into());
        fullbore(all).ends_with(0).out
    };
    let mut shown: serde_json::Value = serde_json::from_str(&show(&["--json"])).unwrap();
    assert_eq!(shown["id"], root.id);
    assert_eq!(shown["source_text"], "host:/data");
    assert_eq!(
        serde_json::from_value::<fullbore_format::root::Root>(shown["root"].take()).unwrap(),
        root
    );
    assert!(show(&[]).contains("host:/data"));
}

fn against(dir: &Path) -> VerifyVerdict {
    let verify = Verify {
        storages: Storages::default(),
        from: dir.join("repo").to_str().unwrap().into(),
        filter: BackupFilter::default(),
        data: false,
        against: Some(dir.join("to")),
        shard: None,
        workers: 2.try_into().unwrap(),
    };
    verify.run(&Meter::default()).unwrap()
}

#[test]
fn a_name_that_belongs_into_a_missing_directory_is_extra_above_it() {
    let dir = tempdir().unwrap();
    let mut fixture = Fixture::default();
    fixture
        .dir("", 0o755)
        .dir("gone", 0o755)
        .file("gone/x", "1")
        .file("keep", "2");
    fixture.write_repository(&dir.path().join("repo"));
    let target = dir.path().join("to");
    plan(&dir.path().join("repo"), &target)
        .run(&Meter::default())
        .unwrap();
    fs::rename(target.join("gone/x"), target.join("x")).unwrap();
    fs::remove_dir(target.join("gone")).unwrap();
    let lines: Vec<String> = against(dir.path())
        .differences
        .iter()
        .map(ToString::to_string)
        .collect();
    let of_files: Vec<_> = lines
        .iter()
        .filter(|line| !line.starts_with(".:"))
        .collect();
    assert_eq!(
        of_files,
        ["gone: missing", "gone/x: missing", "x: extra"],
        "{lines:?}"
    );
}

#[test]
fn every_difference_from_a_tree_on_disk_is_listed() {
    let dir = tempdir().unwrap();
    let mut fixture = Fixture::sample();
    fixture.put(entry("socket", EntryKind::Socket, 0o600), []);
    fixture.entries.last_mut().unwrap().3 = fullbore_format::page::EntryState::Noted;
    fixture.write_repository(&dir.path().join("repo"));
    let target = dir.path().join("to");
    let restore = plan(&dir.path().join("repo"), &target);
    restore.run(&Meter::default()).unwrap();
    let verdict = against(dir.path());
    assert_eq!((verdict.exit_code(), verdict.differences), (0, vec![]));

    let same_time = |path: &str, change: &dyn Fn(&Path)| {
        let path = target.join(path);
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        change(&path);
        fs::File::open(&path).unwrap().set_modified(time).unwrap();
    };
    same_time("big/odd", &|path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[4000] ^= 1;
        fs::write(path, bytes).unwrap();
    });
    same_time("sparse/holes", &|path| {
        let file = fs::File::options().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_at(&file, b"x", 900_000).unwrap();
    });
    same_time("a", &|path| fs::write(path.join("new"), "").unwrap());
    same_time("big", &|path| fs::remove_file(path.join("exact")).unwrap());
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(target.join("a/zero"), fs::Permissions::from_mode(0o600)).unwrap();
    let verdict = against(dir.path());
    let lines: Vec<String> = verdict
        .differences
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        lines,
        [
            "a/new: extra",
            "a/zero: mode 0600, in the backup 0644",
            "big/exact: missing",
            "big/odd: other content",
            "sparse/holes: other content",
        ]
    );
    assert_eq!(verdict.exit_code(), 1);
}

#[test]
fn paths_longer_than_the_system_takes_at_once_come_back() {
    let dir = tempdir().unwrap();
    let mut fixture = Fixture::default();
    fixture.dir("", 0o755);
    let mut path = "n".repeat(200);
    for _ in 0..30 {
        fixture.dir(&path, 0o755);
        path = format!("{path}/{}", "n".repeat(200));
    }
    fixture
        .file(&path, "deep")
        .link(&format!("{path}2"), &path)
        .symlink(&format!("{path}3"), "x");
    fixture.file(&format!("{path}4"), content(1, 20_000));
    fixture.write_repository(&dir.path().join("repo"));
    let restore = plan(&dir.path().join("repo"), &dir.path().join("to"));
    restore.run(&Meter::default()).unwrap();
    assert_eq!(against(dir.path()).differences, vec![]);
    // Longer than what `remove_dir_all` of the temporary directory may be able to name.
    assert!(
        std::process::Command::new("rm")
            .arg("-rf")
            .arg(dir.path().join("to"))
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn a_full_disk_ends_the_restore_with_one_error() {
    let dir = tempdir().unwrap();
    let target = dir.path().join("to");
    fs::create_dir(&target).unwrap();
    let mount = |args: &[&str]| {
        std::process::Command::new(args[0])
            .args(&args[1..])
            .arg(&target)
            .status()
    };
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .is_ok_and(|status| status.success())
    {
        return;
    }
    let mut fixture = Fixture::default();
    fixture.dir("", 0o755).file("large", content(1, 1_500_000));
    for i in 0..300 {
        fixture.file(&format!("m{i}"), content(i, 4000));
    }
    fixture.write_repository(&dir.path().join("repo"));
    let restore = Restore {
        storages: Storages::default(),
        from: dir.path().join("repo").to_str().unwrap().into(),
        filter: BackupFilter::default(),
        to: target.clone(),
        paths: vec![],
        patterns: Default::default(),
        into: fullbore_engine::restore::RestoreInto::Empty,
        keep_going: true,
        numeric_owner: false,
        postgres: Default::default(),
        workers: 2.try_into().unwrap(),
        memory: 1 << 27,
        fetch_words: Vec::new(),
        say_elsewhere: |_| (),
        say_removed: |_| Ok(()),
    };
    let result = restore.run(&Meter::default());
    let large = target.join("large").exists();
    assert!(mount(&["umount"]).unwrap().success());
    let error = result.unwrap_err();
    assert_eq!(
        (error.kind, error.exit_code()),
        (ErrorKind::Full, 1),
        "{}",
        error.line()
    );
    assert!(!large, "an unfinished file was left");
}
