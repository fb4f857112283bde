//! How many system calls a small file costs: counts do not flake, times do.

use super::{empty, places};
use fullbore_platform::{
    dir::{open_dir, open_read, open_root, read_dir, stat},
    read::{PageCacheUse, read_full},
    uring::FileRing,
    write::create_file,
    xattr::read_all,
};
use std::{collections::BTreeMap, fs, path::Path, process::Command};

/// Not a test: what is traced. Reads the small files in the directory that the environment names.
#[test]
#[ignore = "traced by the tests below"]
fn read_small_files() {
    let Some(dir) = std::env::var_os("SMALL_FILES") else {
        return;
    };
    let root = open_root(Path::new(&dir)).unwrap();
    let (mut ring, mut buffer) = (FileRing::new(), Vec::new());
    for name in read_dir(open_dir(&root, b"").unwrap(), &mut Vec::new()).unwrap() {
        let size = stat(&root, &name.bytes).unwrap().size as usize;
        let file = open_read(&root, &name.bytes).unwrap();
        assert!(read_all(&file).unwrap().is_empty());
        buffer.clear();
        assert_eq!(
            read_full(&file, &mut buffer, 0, size, PageCacheUse::Keep).unwrap(),
            size
        );
        ring.close(file);
    }
}

/// Calls by name for `count` files; `None` without strace, or where it may not trace.
fn trace(count: usize, with_tricks: bool, options: &[&str]) -> Option<BTreeMap<String, usize>> {
    let (dir, root) = empty(places()[0].0.path().parent()?);
    for i in 0..count {
        let file = create_file(&root, format!("{i}").as_bytes(), 0o600).ok()?;
        fullbore_platform::write::pwrite_all(file, b"small", 0).ok()?;
    }
    let log = dir.path().with_extension("log");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq"])
        .args(options)
        .arg("-o")
        .arg(&log)
        .arg(std::env::current_exe().ok()?);
    strace
        .args(["calls::read_small_files", "--exact", "--ignored"])
        .env("SMALL_FILES", dir.path());
    if with_tricks {
        strace.env_remove("FULLBORE_NO_TRICKS");
    } else {
        strace.env("FULLBORE_NO_TRICKS", "1");
    }
    let output = strace.output().ok()?;
    let text = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(log);
    let ran = String::from_utf8_lossy(&output.stdout).contains("running 1 test");
    assert!(
        !ran || output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    ran.then(|| names(&text))
}

/// `1234  openat2(3, "a", …` counts one `openat2`.
fn names(log: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in log.lines().filter(|line| !line.contains(" resumed>")) {
        if let Some((name, _)) = line
            .split_once(' ')
            .and_then(|(_, call)| call.trim_start().split_once('('))
        {
            *counts.entry(name.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// The calls of 128 files more, by name; what the process costs by itself is the same in both runs.
fn calls_of_128(with_tricks: bool) -> Option<impl Fn(&str) -> usize> {
    let few = trace(64, with_tricks, &[])?;
    let many = trace(192, with_tricks, &[])?;
    let count_of =
        |counts: &BTreeMap<String, usize>, name: &str| counts.get(name).copied().unwrap_or(0);
    Some(move |name: &str| count_of(&many, name) - count_of(&few, name))
}

#[test]
fn a_small_file_costs_stat_open_list_read_and_a_64th_of_a_close() {
    let Some(calls) = calls_of_128(true) else {
        return;
    };
    assert_eq!(
        ["statx", "openat2", "flistxattr", "pread64"].map(&calls),
        [128; 4]
    );
    let ring = calls("io_uring_enter");
    // Where io_uring is forbidden each file is closed by itself.
    assert!((ring, calls("close")) == (2, 0) || (ring, calls("close")) == (0, 128));
    assert_eq!(
        ["openat", "fstat", "lseek", "fadvise64", "read", "fgetxattr"].map(&calls),
        [0; 6]
    );
}

#[test]
fn without_tricks_it_costs_a_plain_open_and_close() {
    let Some(calls) = calls_of_128(false) else {
        return;
    };
    assert_eq!(
        ["statx", "openat", "flistxattr", "pread64", "close"].map(&calls),
        [128; 5]
    );
    assert_eq!(
        ["openat2", "io_uring_enter", "io_uring_setup"].map(&calls),
        [0; 3]
    );
}

#[test]
fn every_trick_may_be_refused_and_the_files_are_read_all_the_same() {
    for refusal in [
        "openat2:error=ENOSYS",
        "openat2:error=EPERM",
        "io_uring_setup:error=EPERM",
        "io_uring_enter:error=EBUSY",
        "io_uring_enter:error=EINTR:when=1",
        "openat2:error=EPERM:when=2+2",
        "flistxattr:error=EOPNOTSUPP",
    ] {
        let Some(calls) = trace(130, true, &["-e", &format!("inject={refusal}")]) else {
            return;
        };
        assert!(calls["pread64"] >= 130, "{refusal}");
    }
}

/// How often a backup of one small file calls `openat2`; `None` without strace, or where it may not trace.
fn openat2_calls(options: &[&str], environment: Option<&str>) -> Option<usize> {
    let (dir, _root) = empty(places()[0].0.path().parent()?);
    fs::write(dir.path().join("small"), "small").ok()?;
    let log = dir.path().with_extension("log");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(&log);
    strace.arg(env!("CARGO_BIN_EXE_fullbore")).args(options);
    strace.args(["backup", "--to", "null:"]).arg(dir.path());
    strace.env_remove("FULLBORE_NO_TRICKS");
    if let Some(value) = environment {
        strace.env("FULLBORE_NO_TRICKS", value);
    }
    let output = strace.output().ok()?;
    let counts = names(&fs::read_to_string(&log).unwrap_or_default());
    let _ = fs::remove_file(log);
    counts.get("exit_group")?;
    assert!(output.status.success(), "{output:?}");
    Some(counts.get("openat2").copied().unwrap_or(0))
}

#[test]
fn the_option_or_the_environment_takes_tricks_from_a_command() {
    let Some(with_tricks) = openat2_calls(&[], None) else {
        return;
    };
    assert!(with_tricks > 0);
    assert_eq!(openat2_calls(&["--no-tricks"], None), Some(0));
    assert_eq!(openat2_calls(&[], Some("1")), Some(0));
}
