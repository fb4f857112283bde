//! Copies are counted: system calls, and questions that wait for the other side.

use super::runs::{FULLBORE, has, or_skip, temp, text, write};
use fullbore_engine::copy::{
    CopyOptions, CopySource, CopyWatch, TreeCopy,
    far::{FarTarget, answer},
    near::NearTarget,
};
use fullbore_platform::metrics::meter::Meter;
use std::{
    fs,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

const FILES: u64 = 4000;

fn tree(dir: &Path) {
    for number in 0..FILES {
        let path = dir.join(format!("{:03}/{number}", number % 100));
        write(path, text(number, 4000));
    }
}

/// System calls of a copy in one process.
fn calls(from: &Path, to: &Path, options: &[&str]) -> u64 {
    let dir = temp();
    let counts = dir.path().join("counts");
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-o"]).arg(&counts).arg(FULLBORE);
    command.arg("copy").args([from, to]).args(options);
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let counts = fs::read_to_string(counts).unwrap();
    let total = counts.lines().last().unwrap_or_default();
    let numbers = total
        .split_whitespace()
        .filter_map(|word| word.parse().ok());
    numbers.max().unwrap_or_else(|| panic!("{counts}"))
}

#[test]
fn a_copy_makes_few_system_calls_a_file() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    let path = |name: &str| dir.path().join(name);
    tree(&path("from"));
    let [new, same, compared] = [&[][..], &[], &["--checksum"]]
        .map(|options| calls(&path("from"), &path("to"), options) as f64 / FILES as f64);
    println!("calls a file: new {new:.2}, same {same:.2}, compared {compared:.2}");
    // 20 % more than was counted: the number of threads is not always the same.
    assert!(new < 9.7, "new: {new:.2}");
    assert!(same < 6.3, "same: {same:.2}");
    assert!(compared < 9.0, "compared: {compared:.2}");
}

struct Silent;

impl CopyWatch for Silent {
    fn entry(&self, _: char, _: &[u8]) {}

    fn flush(&self) {}
}

/// Questions of a copy to another host.
fn questions(from: &Path, to: &Path, checksum: bool) -> usize {
    let asked = Arc::new(AtomicUsize::new(0));
    let options = CopyOptions {
        checksum,
        ..CopyOptions::default()
    };
    let near = NearTarget::granted(options.target(to, false));
    let counted = asked.clone();
    let ask = move |question: &[u8], _| {
        counted.fetch_add(1, Relaxed);
        answer(&near, question)
    };
    let copy = TreeCopy {
        from: vec![CopySource::content(from)],
        to: None,
        may_be_file: false,
        is_near: false,
        options,
    };
    let target = Arc::new(FarTarget::new(Box::new(ask), None));
    copy.run(target, Arc::new(Silent), &Meter::default())
        .unwrap();
    asked.load(Relaxed)
}

#[test]
fn a_copy_without_changes_asks_two_questions() {
    let dir = temp();
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    tree(&source);
    let new = questions(&source, &target, false);
    assert!((6..12).contains(&new), "{new}");
    assert_eq!(questions(&source, &target, false), 2);
    let compared = questions(&source, &target, true);
    assert!((6..12).contains(&compared), "{compared}");
}
