//! The simulated drive, as other programs use it.

use crate::runs::{self, fullbore, noise, temp, write};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// A script that GNU tar and dump take as their remote shell.
fn remote_shell(dir: &Path, cartridge: &Path, settings: &str) -> PathBuf {
    let script = dir.join("rsh");
    let program = env!("CARGO_BIN_EXE_fullbore");
    let cartridge = cartridge.display();
    let line = format!(
        "#!/bin/sh\nexec {program} simtape {cartridge} --rmt -q --set clock=virtual {settings} \"$@\"\n"
    );
    write(&script, line);
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

fn source(dir: &Path) -> PathBuf {
    let source = dir.join("src");
    for number in 1..6 {
        write(
            source.join(format!("f{number}")),
            noise(number, 100_000 * number as usize),
        );
    }
    source
}

fn tar(dir: &Path, script: &Path, words: &[&str]) -> String {
    let mut command = Command::new("tar");
    command.arg(format!("--rsh-command={}", script.display()));
    let output = command.args(words).current_dir(dir).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn gnu_tar_writes_to_a_simulated_drive_and_reads_from_it() {
    let dir = temp();
    let (dir, cartridge) = (dir.path(), dir.path().join("cartridge"));
    let source = source(dir);
    let script = remote_shell(dir, &cartridge, "");
    tar(
        dir,
        &script,
        &["--format=posix", "-cf", "localhost:st0", "src"],
    );
    let listed = tar(dir, &script, &["-tf", "localhost:st0"]);
    assert_eq!(listed.lines().count(), 6, "{listed}");
    fs::create_dir(dir.join("out")).unwrap();
    tar(dir, &script, &["-C", "out", "-xf", "localhost:st0"]);
    runs::assert_same(
        &runs::shape(&source),
        &runs::shape(&dir.join("out/src")),
        "tar",
    );
    let told = fullbore(args!["simtape", cartridge, "--json"])
        .ends_with(0)
        .json();
    let counters = &told[0]["counters"];
    assert_eq!(
        (counters["starts"].as_u64(), counters["marks"].as_u64()),
        (Some(1), Some(1))
    );
}

#[test]
fn gnu_tar_goes_on_to_another_volume_when_the_simulated_tape_is_full() {
    let dir = temp();
    let (dir, cartridge) = (dir.path(), dir.path().join("cartridge"));
    let source = source(dir);
    // With a drive that writes the record it answers ENOSPC for, tar writes that record twice.
    let settings = "--set capacity-bytes=800000 --set warning-bytes=100000";
    let script = remote_shell(dir, &cartridge, settings);
    let next = dir.join("next");
    write(&next, "#!/bin/sh\nmv cartridge vol$((TAR_VOLUME-1))\n");
    fs::set_permissions(&next, fs::Permissions::from_mode(0o755)).unwrap();
    let to_tape = [
        "--format=gnu",
        "-M",
        "-F",
        "./next",
        "-cf",
        "localhost:st0",
        "src",
    ];
    tar(dir, &script, &to_tape);
    fs::rename(&cartridge, dir.join("vol3")).unwrap();
    fs::rename(dir.join("vol1"), &cartridge).unwrap();
    let at = dir.display();
    write(
        &next,
        format!("#!/bin/sh\nmv {at}/vol$TAR_VOLUME {at}/cartridge\n"),
    );
    fs::create_dir(dir.join("out")).unwrap();
    let next = next.to_str().unwrap();
    tar(
        dir,
        &script,
        &["-M", "-F", next, "-C", "out", "-xf", "localhost:st0"],
    );
    for number in 1..6 {
        let name = format!("f{number}");
        let restored = fs::read(dir.join("out/src").join(&name)).unwrap();
        assert_eq!(restored, fs::read(source.join(&name)).unwrap(), "{name}");
    }
}

#[test]
fn standard_input_becomes_records_and_a_full_tape_is_an_error() {
    let dir = temp();
    let cartridge = dir.path().join("cartridge");
    let all = args![
        "simtape",
        cartridge,
        "--stdin",
        "--set",
        "clock=virtual",
        "--record-size",
        "64K",
        "--set",
        "capacity-bytes=1M"
    ];
    let ran = runs::fed(all.clone(), &noise(1, 200_000));
    assert!(ran.status.success());
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(
        said.contains("200 kB written") && said.contains("1 start,"),
        "{said}"
    );
    let told = fullbore(args!["simtape", cartridge]).ends_with(0).out;
    assert!(told.starts_with("5 records and marks;"), "{told}");
    let ran = runs::fed(all, &noise(1, 2_000_000));
    assert_eq!(ran.status.code(), Some(1));
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(said.contains("the tape is full"), "{said}");
}

#[test]
fn a_tape_is_labelled_listed_and_not_overwritten_by_mistake() {
    let dir = temp();
    let cartridge = dir.path().join("cartridge");
    let drive = format!("tape:sim:{}", cartridge.display());
    let told = fullbore(args!["tape", "list", drive]).ends_with(0).out;
    assert_eq!(told, "the tape is blank\n");
    fullbore(args!["tape", "label", drive, "A00001L8"]).ends_with(0);
    let refused = fullbore(args!["tape", "label", drive, "B"]).ends_with(1);
    assert!(
        refused.err.contains("it is tape \"A00001L8\""),
        "{}",
        refused.err
    );
    let files = fullbore(args!["tape", "list", drive, "--json"])
        .ends_with(0)
        .json();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(files[0]["label"]["tape"], "A00001L8");
    assert_eq!(files[0]["records"], 1);
    fullbore(args![
        "tape",
        "label",
        drive,
        "B",
        "--overwrite",
        "A00001L8"
    ])
    .ends_with(0);
    fullbore(args!["tape", "erase", drive]).ends_with(1);
    fullbore(args!["tape", "erase", drive, "--overwrite", "B", "--long"]).ends_with(0);
    let status = fullbore(args!["tape", "status", drive]).ends_with(0).out;
    assert!(
        status.starts_with("ready, at the begin\nat record 0\n"),
        "{status}"
    );
    for name in ["a b", "foreign", ""] {
        fullbore(args!["tape", "label", drive, name]).ends_with(2);
    }
}

#[test]
fn gnu_tar_lists_a_label_and_a_tape_of_tar_is_foreign() {
    let dir = temp();
    let (dir, cartridge) = (dir.path(), dir.path().join("cartridge"));
    source(dir);
    let script = remote_shell(dir, &cartridge, "");
    let drive = format!("sim:{}", cartridge.display());
    fullbore(args!["tape", "label", drive, "A1"]).ends_with(0);
    let listed = tar(dir, &script, &["-tf", "localhost:st0"]);
    assert_eq!(listed, ".fullbore/label.json\n.fullbore/README\n");
    tar(dir, &script, &["-cf", "localhost:st0", "src"]);
    let refused = fullbore(args!["tape", "label", drive, "A1"]).ends_with(1);
    assert!(refused.err.contains("another program"), "{}", refused.err);
    fullbore(args![
        "tape",
        "label",
        drive,
        "A1",
        "--overwrite",
        "foreign"
    ])
    .ends_with(0);
}

#[test]
fn a_probe_tells_the_limits_and_the_buffer_of_a_drive() {
    let dir = temp();
    let drive = format!("sim:{}", dir.path().join("cartridge").display());
    let probe = args!["tape", "probe", drive, "--size", "64M", "--json"];
    let figures = fullbore(probe).ends_with(0).json();
    assert_eq!(figures[0]["written_bytes"], 64 << 20);
    assert!(
        figures[0]["buffered_bytes"].as_u64().unwrap() > 0,
        "{figures:?}"
    );
    assert!(figures[0]["locate_seconds"].is_number(), "{figures:?}");
}

#[test]
fn a_backup_of_a_level_is_compared_with_the_latest_of_a_lower_one() {
    let dir = temp();
    let (source, repository) = (source(dir.path()), dir.path().join("repo"));
    let backup = |level: &str| {
        let args = args![
            "backup", source, "--to", repository, "--level", level, "--json"
        ];
        fullbore(args).ends_with(0).json().pop().unwrap()
    };
    // The first one is full, whatever its level.
    for (step, level, stored) in [
        (1, "0", 1_500_000),
        (2, "3", 100_000),
        // Since level 0: both changes.
        (3, "2", 300_000),
        (4, "3", 300_000),
        (5, "0", 1_500_000),
    ] {
        if step > 1 && step < 5 {
            let changed = noise(10 + step, 100_000 * (step as usize - 1));
            write(source.join(format!("f{}", step - 1)), changed);
        }
        let told = backup(level);
        let [all, kept] = ["bytes", "kept_bytes"].map(|name| told[name].as_u64().unwrap());
        let written = all - kept;
        assert!(
            written.abs_diff(stored) < 50_000,
            "{step}: {written} {told}"
        );
    }
    let to = dir.path().join("to");
    fullbore(args!["restore", repository, "--to", to, "-q"]).ends_with(0);
    runs::assert_same(&runs::shape(&source), &runs::shape(&to), "level 3");
    fullbore(args!["backup", source, "--to", repository, "--level", "10"]).ends_with(2);
    let archive = dir.path().join("a.tar.zst");
    fullbore(args!["backup", source, "--to", archive, "--level", "1"]).ends_with(2);
}
