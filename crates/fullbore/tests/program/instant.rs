//! Instant restores of trees: they are used before their content is there, and nobody sees a zero that is not one.

use super::runs::{
    Ran, assert_same, fullbore, has, names, noise, or_skip, segments, shape, shell, write,
};
use fullbore_platform::pre_content::probe::refusal_in;
use serde_json::Value;
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::Read,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Bytes of each large file: not a number of units.
const LARGE: usize = 2_500_000;
/// Content that nobody waits for does not come.
const SLOW: &str = "--rest-rate 1";
/// Number of kills: more in a long run.
const KILLS: &str = "FULLBORE_INSTANT_KILLS";

fn kills() -> u64 {
    let wanted = std::env::var(KILLS).ok();
    wanted.and_then(|number| number.parse().ok()).unwrap_or(3)
}

/// A tree, its backup, and a place on a file system that asks before files are read.
struct World {
    dir: TempDir,
}

impl World {
    /// `None`, said, where the system does not ask.
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        if let Some(refusal) = refusal_in(dir.path()).unwrap() {
            or_skip(false, &format!("it needs {}", refusal.line()));
            return None;
        }
        let world = Self { dir };
        for number in 0..8 {
            write(world.source(number), noise(number, LARGE));
        }
        write(world.path("src/sub/small"), "small");
        fs::hard_link(world.source(1), world.path("src/link")).unwrap();
        world.add_sparse();
        let line = args![
            "backup",
            world.path("src"),
            "--to",
            world.path("repo"),
            "-q"
        ];
        fullbore(line).ends_with(0);
        let line = args![
            "restore",
            world.path("repo"),
            "--to",
            world.path("plain"),
            "-q"
        ];
        fullbore(line).ends_with(0);
        Some(world)
    }

    fn add_sparse(&self) {
        let file = File::create(self.path("src/sparse")).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&noise(9, 900_000), 3 << 20).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn source(&self, number: u64) -> PathBuf {
        self.path(&format!("src/sub/large{number}"))
    }

    fn target(&self, number: u64) -> PathBuf {
        self.path(&format!("dst/sub/large{number}"))
    }

    fn words(&self, more: &str) -> Vec<OsString> {
        let words = args![
            "restore",
            self.path("repo"),
            "--instant",
            "--to",
            self.path("dst")
        ];
        let more = more.split_whitespace().map(OsString::from);
        words.into_iter().chain(more).collect()
    }

    fn restore(&self, more: &str) -> Ran {
        fullbore(self.words(more))
    }

    fn status(&self) -> Value {
        let ran = self.restore("--status --json").ends_with(0);
        ran.json().remove(0)
    }

    fn number(&self, name: &str) -> u64 {
        self.status()[name].as_u64().unwrap()
    }

    fn kill(&self, name: &str, signal: &str) {
        // Its number may be that of another program by now.
        let number = self.number(name).to_string();
        let is_ours = "grep -q -e --instant /proc/$2/cmdline && kill -$1 $2";
        shell(is_ours, args![signal, number]);
    }

    fn wait_until_not_served(&self) {
        wait("nobody serves", || self.status()["served"] == false);
    }

    #[track_caller]
    fn assert_is_plain(&self, case: &str) {
        assert_same(&shape(&self.path("plain")), &shape(&self.path("dst")), case);
        assert_eq!(
            names(self.dir.path()),
            ["dst", "plain", "repo", "src"],
            "{case}"
        );
        let blocks = |tree: &str| {
            fs::metadata(self.path(tree).join("sparse"))
                .unwrap()
                .blocks()
        };
        assert_eq!(blocks("dst"), blocks("plain"), "{case}");
    }

    #[track_caller]
    fn assert_reads(&self, number: u64) {
        let read = fs::read(self.target(number)).unwrap();
        assert!(read == noise(number, LARGE), "content of {number}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.path(".dst.fullbore-instant").exists() {
            let ran = self.restore("--status --json");
            let log = fs::read_to_string(self.path(".dst.fullbore-instant/log"));
            if thread::panicking() {
                eprintln!("{}{}\n{}", ran.out, ran.err, log.unwrap_or_default());
            }
            self.kill("guardian", "KILL");
            self.kill("worker", "KILL");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

#[track_caller]
fn wait(what: &str, so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "waited too long until {what}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_tree_is_used_at_once_and_is_that_of_a_plain_restore_at_the_end() {
    let Some(world) = World::new() else { return };
    let ran = world.restore("--wait --json").ends_with(0);
    let result = ran.json().pop().unwrap();
    assert!(result["served_seconds"].as_f64() < result["whole_seconds"].as_f64());
    world.assert_is_plain("whole");
}

#[test]
fn whoever_reads_before_the_content_is_there_gets_the_content() {
    let Some(world) = World::new() else { return };
    world.restore(SLOW).ends_with(0);
    let target = world.path("dst");
    assert_eq!(fs::metadata(world.target(0)).unwrap().len(), LARGE as u64);
    assert!(target.join("FULLBORE_INCOMPLETE").exists());
    let mtime = |path: PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    assert_eq!(mtime(world.target(7)), mtime(world.source(7)));

    world.assert_reads(0);
    assert_eq!(mtime(world.target(0)), mtime(world.source(0)));
    for (number, line) in [
        (1, "cp \"$1\" \"$2\""),
        (2, "cp --sparse=always \"$1\" \"$2\""),
        (
            3,
            "tar -C \"${1%/*}\" -cSf - \"${1##*/}\" | tar -xOf - >\"$2\"",
        ),
        (4, "dd if=\"$1\" of=\"$2\" bs=64k iflag=direct status=none"),
    ] {
        let copy = world.path("copy");
        let _ = fs::remove_file(&copy);
        shell(line, args![world.target(number), copy]).ends_with(0);
        assert!(fs::read(&copy).unwrap() == noise(number, LARGE), "{line}");
        fs::remove_file(&copy).unwrap();
    }
    if has("python3") {
        let line = "python3 -c 'import mmap,sys
f=open(sys.argv[1],\"rb\"); m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ); sys.stdout.buffer.write(m[:])' \"$1\" >\"$2\"";
        let copy = world.path("copy");
        shell(line, args![world.target(5), copy]).ends_with(0);
        assert!(fs::read(&copy).unwrap() == noise(5, LARGE), "mmap");
        fs::remove_file(&copy).unwrap();
    }
    let status = world.status();
    assert!(status["here_bytes"].as_u64() < status["total_bytes"].as_u64());

    // An orderly end hides the tree, and a resume completes it.
    world.kill("guardian", "TERM");
    world.wait_until_not_served();
    assert!(!target.exists() && world.path(".dst.fullbore-incomplete").exists());
    world.restore("--resume --wait").ends_with(0);
    world.assert_is_plain("resumed");
}

#[test]
fn a_killed_worker_is_replaced_and_its_readers_are_answered() {
    let Some(world) = World::new() else { return };
    world.restore(SLOW).ends_with(0);
    thread::scope(|scope| {
        let readers = (0..6).map(|number| {
            let world = &world;
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(number * 60));
                world.assert_reads(number);
            })
        });
        let readers: Vec<_> = readers.collect();
        for _ in 0..kills() {
            let worker = world.number("worker");
            world.kill("worker", "KILL");
            wait("another worker is started", || {
                world.number("worker") != worker
            });
        }
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
    });
    assert!(world.number("workers") > kills());
    world.kill("guardian", "TERM");
    world.wait_until_not_served();
    world.restore("--resume --wait").ends_with(0);
    world.assert_is_plain("after the kills");
}

#[test]
fn after_all_were_killed_a_resume_goes_on_also_after_another_boot() {
    for is_rebooted in [false, true] {
        let Some(world) = World::new() else { return };
        world.restore(SLOW).ends_with(0);
        world.assert_reads(2);
        world.kill("guardian", "KILL");
        world.kill("worker", "KILL");
        world.wait_until_not_served();
        let again = world.restore("").ends_with(1);
        again.has_one_error("--resume");
        if is_rebooted {
            let units = world.path(".dst.fullbore-instant/units");
            let units = OpenOptions::new().write(true).open(units).unwrap();
            units.write_all_at(b"another boot", 0).unwrap();
        }
        world.restore("--resume --wait").ends_with(0);
        world.assert_is_plain(&format!("resumed, rebooted: {is_rebooted}"));
    }
}

#[test]
fn a_damaged_frame_is_an_error_for_its_readers_only() {
    let Some(world) = World::new() else { return };
    let segment = segments(&world.path("repo")).remove(0);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&segment)
        .unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 1], middle).unwrap();
    world.restore(SLOW).ends_with(0);
    let mut failed = 0;
    for number in 0..8 {
        match fs::read(world.target(number)) {
            Ok(read) => assert!(read == noise(number, LARGE), "content of {number}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5), "{error}");
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 1);
    assert!(world.number("damaged_bytes") > 0);
}

#[test]
fn a_repository_that_is_away_gives_an_error_after_the_patience_and_content_when_it_is_back() {
    let Some(world) = World::new() else { return };
    world.restore(&format!("{SLOW} --patience 1s")).ends_with(0);
    let away = world.path("away");
    fs::rename(world.path("repo"), &away).unwrap();
    // The worker has objects of the repository open; the next one has not.
    world.kill("worker", "KILL");
    let begun = Instant::now();
    let error = fs::read(world.target(3))
        .map(drop)
        .expect_err("no content can come");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    assert!(begun.elapsed() > Duration::from_secs(1));
    fs::rename(&away, world.path("repo")).unwrap();
    wait("the content comes", || fs::read(world.target(3)).is_ok());
    world.assert_reads(3);
}

#[test]
fn a_worker_that_hangs_is_replaced() {
    let Some(world) = World::new() else { return };
    world.restore(&format!("{SLOW} --patience 1s")).ends_with(0);
    let worker = world.number("worker");
    world.kill("worker", "STOP");
    let stat = format!("/proc/{worker}/stat");
    wait("the worker is stopped", || {
        fs::read_to_string(&stat).unwrap().contains(") T ")
    });
    let error = fs::read(world.target(3))
        .map(drop)
        .expect_err("no content can come");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    wait("another worker fills", || fs::read(world.target(3)).is_ok());
    world.assert_reads(3);
    assert!(world.number("workers") > 1);
}

#[test]
fn changes_of_files_that_are_not_whole_are_kept() {
    let Some(world) = World::new() else { return };
    world
        .restore(&format!("{SLOW} --by-range any"))
        .ends_with(0);
    let open = |number| {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true);
        options.open(world.target(number)).unwrap()
    };
    // Overwritten in the middle.
    let file = open(0);
    file.write_all_at(b"changed", 1_000_000).unwrap();
    // Cut, and made longer again: what was cut off is zeros, and stays so.
    let file = open(1);
    file.set_len(700_000).unwrap();
    file.set_len(2_000_000).unwrap();
    // Appended to.
    let mut end = OpenOptions::new()
        .append(true)
        .open(world.target(2))
        .unwrap();
    std::io::Write::write_all(&mut end, b"more").unwrap();
    // Removed, while it is open.
    let removed = open(3);
    fs::remove_file(world.target(3)).unwrap();
    let mut read = Vec::new();
    (&removed).read_to_end(&mut read).unwrap();
    assert!(read == noise(3, LARGE), "a removed file");
    drop(removed);
    // Made empty at the open.
    write(world.target(4), "new");

    world.kill("worker", "KILL");
    world.kill("guardian", "TERM");
    world.wait_until_not_served();
    world.restore("--resume --wait").ends_with(0);
    let mut changed = noise(0, LARGE);
    changed[1_000_000..][..7].copy_from_slice(b"changed");
    assert!(fs::read(world.target(0)).unwrap() == changed);
    let mut cut = noise(1, LARGE);
    cut.truncate(700_000);
    cut.resize(2_000_000, 0);
    assert!(fs::read(world.target(1)).unwrap() == cut);
    let mut longer = noise(2, LARGE);
    longer.extend(b"more");
    assert!(fs::read(world.target(2)).unwrap() == longer);
    assert!(!world.target(3).exists());
    assert_eq!(fs::read(world.target(4)).unwrap(), b"new");
    (5..8).for_each(|number| world.assert_reads(number));
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let Some(world) = World::new() else { return };
    let refused = |to: &Path, more: &str, words: &str| {
        let line = args!["restore", world.path("repo"), "--instant", "--to", to];
        let more = more.split_whitespace().map(OsString::from);
        let ran = fullbore(line.into_iter().chain(more));
        assert_ne!(ran.code, 0);
        ran.has_one_error(words);
    };
    let target = world.path("dst");
    if Path::new("/dev/shm").is_dir() {
        let memory = Path::new("/dev/shm/fullbore-instant-test");
        refused(memory, "", "(this is tmpfs)");
        refused(memory, "", "fullbore mount");
        assert!(!memory.exists());
    }
    refused(&target, "sub", "the whole backup");
    refused(&target, "--overwrite", "an empty target");
    refused(&target, "--start", "not a cluster");
    refused(&target, "--status", "it is complete, or was not begun");
    refused(&target, "--resume", "could not find an instant restore");
    refused(Path::new("ssh://host/dst"), "", "with --instant");
    assert!(names(world.dir.path()) == ["plain", "repo", "src"]);

    world.restore(SLOW).ends_with(0);
    world.restore("").ends_with(1).has_one_error("is running");
    world
        .restore("--resume")
        .ends_with(1)
        .has_one_error("is running");
    let line = args!["backup", &target, "--to", world.path("repo")];
    fullbore(line).has_one_error("not completely restored");
    let line = args!["copy", &target, world.path("copy")];
    fullbore(line).has_one_error("not completely restored");
}
