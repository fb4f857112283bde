//! What several tests use and one makes: servers that live as long as a run of the tests, and templates that outlive it.
//!
//! `scripts/run-tests` gives each test, or a few, a process of their own, and all of them a directory. Without it, a process is
//! a run of its own.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// What is kept for the next run.
pub const KEPT: &str = env!("FULLBORE_TEST_TMPDIR");

/// The directory of this run.
pub fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<(PathBuf, Option<File>)> = OnceLock::new();
    let of_all = || Some((std::env::var_os("FULLBORE_TEST_RUN")?.into(), None));
    &DIRECTORY
        .get_or_init(|| of_all().unwrap_or_else(of_this_process))
        .0
}

/// An earlier process may have had the same number.
fn of_this_process() -> (PathBuf, Option<File>) {
    let directory = Path::new(KEPT).join(format!("run-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let alive = directory.join("alive");
    assert!(
        Command::new("mkfifo")
            .arg(&alive)
            .status()
            .unwrap()
            .success()
    );
    let held = File::options().read(true).write(true).open(alive).unwrap();
    (directory, Some(held))
}

/// The text that `make` returned to the first process of this run that asked for `name`.
pub fn once(name: &str, make: impl FnOnce() -> String) -> String {
    let path = directory().join(name);
    let _lock = lock(&path.with_extension("lock"));
    fs::read_to_string(&path).unwrap_or_else(|_| {
        let made = make();
        fs::write(&path, &made).unwrap();
        made
    })
}

/// Held until it is dropped.
pub fn lock(path: &Path) -> File {
    let file = File::create(path).unwrap();
    file.lock().unwrap();
    file
}

/// Starts `program`, which ends with the run; then `directory` is removed. Its output is in `directory` with the suffix "log".
pub fn start(program: &Path, arguments: &[String], directory: &Path) {
    let script = r#"dir=$1 alive=$2; shift 2; exec 3<"$alive"; "$@" 3<&- & server=$!
cat <&3 >/dev/null; kill $server 2>/dev/null; wait $server; rm -rf "$dir" "$dir.log""#;
    let log = File::create(directory.with_added_extension("log")).unwrap();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "\"$@\" &", "sh"]) // the shell that holds it belongs to no process of tests
        .args(["setsid", "sh", "-c", script, "sh"])
        .arg(directory)
        .arg(self::directory().join("alive"))
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    assert!(shell.status().unwrap().success());
}
