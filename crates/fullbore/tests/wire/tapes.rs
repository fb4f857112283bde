//! A tape drive of another host, over ssh.

use super::{
    over_ssh::{files, fullbore, restored, scratch, text, tree},
    sshd::{FULLBORE, sshd},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A tree, a cartridge in the drive of the other host, and a catalog here.
struct FarTape {
    dir: tempfile::TempDir,
}

impl FarTape {
    fn new(settings: &[&str]) -> Self {
        let dir = scratch();
        tree(&dir.path().join("source"));
        let tape = Self { dir };
        tape.insert(settings);
        tape
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn word(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn insert(&self, settings: &[&str]) {
        let cartridge = self.word("cartridge");
        let mut line = vec!["simtape", &cartridge, "-q", "--set", "clock=virtual"];
        line.extend(["--set", "buffer-bytes=512K"]);
        for setting in settings {
            line.extend(["--set", setting]);
        }
        fullbore(0, &line);
    }

    fn far(&self) -> String {
        format!("tape:ssh://far/sim:{}", self.word("cartridge"))
    }

    fn near(&self) -> String {
        format!("tape:sim:{}", self.word("cartridge"))
    }

    fn backup_line(&self, to: &str, more: &[&str]) -> Vec<String> {
        let (source, catalog) = (self.word("source"), self.word("catalog"));
        let line = [
            "backup",
            &source,
            "--to",
            to,
            "--catalog",
            &catalog,
            "--part-size",
            "1M",
            "--frame-size",
            "64K",
            "--tape-buffer",
            "4M",
            "-q",
        ];
        line.iter()
            .chain(more)
            .map(|word| (*word).to_owned())
            .collect()
    }

    fn backup(&self, code: i32, more: &[&str]) -> String {
        let line = self.backup_line(&self.far(), more);
        let words: Vec<_> = line.iter().map(String::as_str).collect();
        fullbore(code, &words)
    }

    fn assert_restores(&self, from: &str, catalog: &str, more: &[&str]) {
        let to = self.path("to");
        let _ = fs::remove_dir_all(&to);
        let to_word = to.display().to_string();
        let line = ["restore", from, "--to", &to_word, "--catalog", catalog];
        fullbore(0, &[&line[..], more].concat());
        let source = self.path("source");
        assert!(restored(&to, &source) == files(&source), "{from}");
    }
}

#[test]
fn every_verb_works_with_a_drive_of_another_host() {
    let tape = FarTape::new(&[]);
    let (far, catalog, none) = (tape.far(), tape.word("catalog"), tape.word("none"));
    let told = fullbore(0, &["tape", "status", &far]);
    assert!(told.starts_with("ready, at the begin"), "{told}");
    fullbore(0, &["tape", "label", &far, "A1"]);
    tape.backup(0, &[]);
    for catalog in [&catalog, &none] {
        tape.assert_restores(&far, catalog, &[]);
        tape.assert_restores(&tape.near(), catalog, &[]);
        fullbore(0, &["verify", &far, "--data", "--catalog", catalog]);
        let listed = fullbore(0, &["list", &far, "--catalog", catalog]);
        assert!(listed.contains("sub/17"), "{listed}");
        let found = fullbore(0, &["find", &far, "sub/17", "--catalog", catalog]);
        assert!(found.contains("sub/17"), "{found}");
        let line = ["cat", &far, "sub/39", "--catalog", catalog];
        let line = sshd().fullbore(&line).output().unwrap();
        let here = fs::read(tape.path("source/sub/39")).unwrap();
        assert!(line.stdout == here, "{}", text(&line));
    }
    let scanned = tape.word("scanned");
    fullbore(0, &["tape", "scan", &far, "--catalog", &scanned]);
    let listed = fullbore(0, &["list", "tape:", "--catalog", &scanned]);
    assert!(listed.contains("tapes A1"), "{listed}");
    let listed = fullbore(0, &["tape", "list", &far]);
    assert!(listed.contains("volume 1 of set"), "{listed}");
    let refused = fullbore(1, &["tape", "erase", &far]);
    assert!(refused.contains("it is tape \"A1\""), "{refused}");
    fullbore(0, &["tape", "erase", &far, "--overwrite", "A1", "--long"]);
    fullbore(
        0,
        &["tape", "probe", &far, "--overwrite", "A1", "--size", "8M"],
    );
    for bad in ["tape:ssh://far", "tape:ssh://far/", "tape:ssh:///dev/nst0"] {
        let said = fullbore(2, &["tape", "status", bad]);
        assert!(said.contains("names no host and drive"), "{said}");
    }
    let said = fullbore(1, &["tape", "status", "tape:ssh://far/dev/absent"]);
    assert!(
        said.contains("could not open \"ssh://far/dev/absent\""),
        "{said}"
    );
}

#[test]
fn only_tape_drives_are_opened_for_another_host() {
    let dir = scratch();
    let file = dir.path().join("file");
    fs::write(&file, "kept").unwrap();
    let shown = file.display().to_string();
    for path in [&shown, "/dev/zero", "/dev/tty", "/etc"] {
        for verb in [
            &["status"][..],
            &["list"],
            &["erase", "--overwrite", "foreign"],
        ] {
            let drive = format!("tape:ssh://far{path}");
            let line = [&["tape", verb[0], &drive], &verb[1..]].concat();
            let said = fullbore(1, &line);
            assert!(said.contains("it is no tape drive"), "{said}");
        }
        let to = format!("tape:ssh://far{path}");
        fullbore(1, &["backup", &shown, "--to", &to]);
    }
    // A file that is no cartridge is not written over.
    let drive = format!("tape:ssh://far/sim:{shown}");
    fullbore(1, &["tape", "erase", &drive, "--overwrite", "foreign"]);
    assert_eq!(fs::read(file).unwrap(), b"kept");
}

/// A command that changes cartridges on this host, which is the other one, too.
fn changer(tape: &FarTape, settings: &str) -> String {
    let script = tape.path("changer");
    let dir = tape.dir.path().display();
    let text = format!(
        "#!/bin/sh\nset -e\ncd {dir}\necho \"$FULLBORE_MEDIA_ACTION $FULLBORE_MEDIA_VOLUME\" >> log\n[ -e in ] || echo 1 > in\n\
         mv cartridge volume$(cat in)\necho $FULLBORE_MEDIA_VOLUME > in\n\
         if [ $FULLBORE_MEDIA_ACTION = next ]; then {FULLBORE} simtape cartridge -q --set clock=virtual {settings}\n\
         else mv volume$FULLBORE_MEDIA_VOLUME cartridge; fi\n"
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script.display().to_string()
}

#[test]
fn a_backup_goes_on_on_other_tapes_of_a_drive_of_another_host() {
    // With room for parts behind the early warning, and with room for one record.
    for warning in ["2M", "1M"] {
        let capacity = "capacity-bytes=4M";
        let warning = format!("warning-bytes={warning}");
        let settings = [capacity, &warning, "buffer-bytes=1M"];
        let tape = FarTape::new(&settings);
        let set: Vec<_> = settings.iter().map(|one| format!("--set {one}")).collect();
        let command = changer(&tape, &set.join(" "));
        tape.backup(0, &["--change-command", &command]);
        let log = fs::read_to_string(tape.path("log")).unwrap();
        assert!(log.lines().count() >= 2, "{log}");
        assert!(log.starts_with("next 2\nnext 3\n"), "{log}");
        fs::write(tape.path("log"), "").unwrap();
        let more = ["--change-command", &command];
        tape.assert_restores(&tape.far(), &tape.word("catalog"), &more);
        let wanted = fs::read_to_string(tape.path("log")).unwrap();
        let wanted: Vec<_> = wanted.lines().collect();
        assert_eq!(wanted.len(), log.lines().count() + 1, "{wanted:?}");
    }
}

#[test]
fn records_that_the_drive_lost_are_written_again_by_its_host() {
    for fault in ["write@12", "reset@12"] {
        let tape = FarTape::new(&[]);
        let faults = format!("faults={fault}");
        tape.insert(&[&faults]);
        tape.backup(0, &[]);
        tape.assert_restores(&tape.far(), &tape.word("none"), &[]);
    }
}

/// A command as ssh: it starts a server that may use one drive in one way.
fn limited(tape: &FarTape, allow: &str) -> String {
    let script = tape.path(&format!("ssh-{allow}"));
    let drive = tape.near();
    let text = format!("#!/bin/sh\nexec {FULLBORE} serve --stdio --allow {allow}:{drive}\n");
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script.display().to_string()
}

#[test]
fn a_server_limits_a_host_to_one_drive_and_to_reading_or_appending() {
    let tape = FarTape::new(&[]);
    let far = tape.far();
    let run = |allow: &str, line: &[&str]| {
        let output = Command::new(FULLBORE)
            .args(line)
            .env("FULLBORE_SSH", limited(&tape, allow))
            .env("FULLBORE_STATE_DIR", tape.path("state"))
            .output()
            .unwrap();
        (output.status.code().unwrap(), text(&output))
    };
    let line = tape.backup_line(&far, &[]);
    let line: Vec<_> = line.iter().map(String::as_str).collect();
    let append = [&line[..], &["--append"]].concat();
    let (code, said) = run("read", &line);
    assert!(code == 1 && said.contains("may only read"), "{said}");
    assert_eq!(run("append", &line).0, 0);
    let before = fs::metadata(tape.path("cartridge")).unwrap().len();
    assert_eq!(run("append", &append).0, 0);
    assert!(fs::metadata(tape.path("cartridge")).unwrap().len() > before);
    let listed = run("read", &["tape", "list", &far]).1;
    let name = listed.split('"').nth(1).unwrap().to_owned();
    let over = [&line[..], &["--overwrite", &name]].concat();
    let cartridge = || fs::read(tape.path("cartridge")).unwrap()[4096..].to_vec();
    let kept = cartridge();
    for refused in [
        &over[..],
        &["tape", "erase", &far, "--overwrite", &name],
        &["tape", "label", &far, "B", "--overwrite", &name],
        &["tape", "probe", &far, "--overwrite", &name],
        &["tape", "erase", &far, "--overwrite", &name, "--long"],
    ] {
        let (code, said) = run("append", refused);
        let is_told = said.contains("may only append") || said.contains("may not erase");
        assert!(code == 1 && is_told, "{refused:?}: {said}");
        assert!(cartridge() == kept, "{refused:?}");
    }
    assert_eq!(run("append", &["verify", &far, "--data"]).0, 0);
    assert_eq!(run("read", &["verify", &far, "--data"]).0, 0);
    // No other drive, and nothing else of that host.
    let source = tape.word("source");
    let elsewhere = format!("tape:ssh://far/sim:{}", tape.word("other"));
    for other in [
        &["tape", "status", &elsewhere][..],
        &["tape", "status", "tape:ssh://far/dev/nst0"],
        &["list", "ssh://far/repository"],
        &["backup", "ssh://far/etc", "--to", &source],
        &["sync", &source, "ssh://far/copied"],
    ] {
        let (code, said) = run("write", other);
        assert!(code != 0, "{other:?}: {said}");
    }
    assert!(!tape.path("other").exists());
    assert_eq!(run("write", &over).0, 0);
    let allowed = format!("append:{}", tape.near());
    for options in [
        &["--host", "web1"][..],
        &["--quota", "1G"],
        &["--max-per-day", "1"],
    ] {
        let line = [&["serve", "--stdio", "--allow", &allowed], options].concat();
        fullbore(2, &line);
    }
}

#[test]
fn a_backup_whose_connection_is_cut_has_its_whole_parts_on_the_tape() {
    for seconds in [0.3, 0.8, 1.5] {
        let tape = FarTape::new(&[]);
        // The first one ends; the second one is slow, and is cut.
        tape.backup(0, &[]);
        fs::write(tape.path("source/sub/1"), "changed").unwrap();
        let line = tape.backup_line(&tape.far(), &["--append", "--max-rate", "4M"]);
        let words: Vec<_> = line.iter().map(String::as_str).collect();
        let mut child = sshd()
            .fullbore(&words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_secs_f64(seconds));
        child.kill().unwrap();
        child.wait().unwrap();
        let begun = Instant::now();
        let status = loop {
            // The other host writes what came, and closes the drive.
            let ran = sshd()
                .fullbore(&["tape", "list", &tape.far()])
                .output()
                .unwrap();
            if ran.status.success() || begun.elapsed() > Duration::from_secs(20) {
                break text(&ran);
            }
            thread::sleep(Duration::from_millis(100));
        };
        assert!(status.contains("volume 1 of set"), "{status}");
        assert_first_and_perhaps_second(&tape);
        // The next one goes behind both.
        tape.backup(0, &["--append"]);
        tape.assert_restores(&tape.far(), &tape.word("catalog"), &[]);
        tape.assert_restores(&tape.far(), &tape.word("none"), &[]);
    }
}

/// The backup that was complete is there, whatever is left of the one that was cut off.
fn assert_first_and_perhaps_second(tape: &FarTape) {
    let to = tape.path("first");
    let _ = fs::remove_dir_all(&to);
    let to_word = to.display().to_string();
    let listed = fullbore(0, &["list", "tape:", "--catalog", &tape.word("catalog")]);
    let id = listed.split_whitespace().next().unwrap().to_owned();
    let from = format!("{}@{id}", tape.far());
    fullbore(
        0,
        &[
            "restore",
            &from,
            "--to",
            &to_word,
            "--catalog",
            &tape.word("none"),
        ],
    );
    let found = restored(&to, Path::new(&tape.word("source")));
    assert_eq!(found.len(), files(&tape.path("source")).len());
    // Parts of the one that was cut off are found without a catalog.
    let ran = sshd().fullbore(&["tape", "scan", &tape.far(), "--catalog", &tape.word("scan")]);
    let ran = { ran }.output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran));
}
