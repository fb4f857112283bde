//! Adaptive compression: the level follows the run, and nothing else depends on it.

use crate::runs::{self, FULLBORE, Ran, fullbore, sample, shell, started, temp};
use std::{collections::BTreeMap, fs, io::Read, thread::sleep, time::Duration};

/// The levels that a run used.
fn levels(output: &str) -> BTreeMap<i32, u64> {
    let result: serde_json::Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
    serde_json::from_value(result["levels"].clone()).unwrap()
}

/// Content that compresses, better at higher levels.
fn code(bytes: usize) -> Vec<u8> {
    let program = fs::read(FULLBORE).unwrap();
    let mut code = program.repeat(bytes.div_ceil(program.len()));
    code.truncate(bytes);
    code
}

#[test]
fn before_a_slow_reader_the_level_goes_up() {
    let dir = temp();
    runs::write(dir.path().join("f"), code(20 << 20));
    let mut child = started(args![
        "backup",
        dir.path(),
        "--to",
        "-",
        "--compress",
        "auto",
        "--frame-size",
        "64K",
        "--memory",
        "8M",
        "--digest",
        "none",
        "--json"
    ]);
    let (mut stdout, mut buffer) = (child.stdout.take().unwrap(), vec![0; 16 << 10]);
    while stdout.read(&mut buffer).unwrap() > 0 {
        sleep(Duration::from_millis(8)); // 2 MB/s
    }
    let ran = Ran::from(child.wait_with_output().unwrap()).ends_with(0);
    let used = levels(&ran.err);
    assert!(*used.last_key_value().unwrap().0 > 3, "{used:?}");
}

#[test]
fn a_busy_worker_before_a_fast_sink_makes_the_level_go_down() {
    let dir = temp();
    runs::write(dir.path().join("f"), code(256 << 20));
    let ran = fullbore(args![
        "backup",
        dir.path(),
        "--to",
        "null:",
        "--compress",
        "auto",
        "--workers",
        "1",
        "--digest",
        "none",
        "--frame-size",
        "256K",
        "--json"
    ])
    .ends_with(0);
    let used = levels(&ran.out);
    let lowest = *used.first_key_value().unwrap().0;
    assert!((-5..0).contains(&lowest), "{used:?}");
}

#[test]
fn a_backup_of_any_level_is_a_base_for_auto_and_the_other_way_round() {
    let dir = temp();
    let (tree, repository, back) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("b"),
    );
    sample(&tree);
    runs::write(tree.join("code"), code(4 << 20));
    let mut kept = Vec::new();
    for (number, codec) in ["auto", "auto", "zstd:7", "auto"].into_iter().enumerate() {
        runs::write(tree.join("changes"), code(100_000 + number));
        let command = args![
            "backup",
            tree,
            "--to",
            repository,
            "--compress",
            codec,
            "--json"
        ];
        let result = fullbore(command).ends_with(0).json().pop().unwrap();
        kept.push(result["bases"].as_array().map_or(0, Vec::len));
        assert_eq!(result["unlike"], serde_json::Value::Null);
    }
    assert!(
        kept[0] == 0 && kept[1..].iter().all(|bases| *bases > 0),
        "{kept:?}"
    );
    fullbore(args!["verify", repository, "--data"]).ends_with(0);
    fullbore(args!["restore", repository, "--to", back]).ends_with(0);
    fullbore(args!["verify", repository, "--against", back]).ends_with(0);
    let root = fullbore(args!["show", repository, "--json"])
        .ends_with(0)
        .json()
        .pop()
        .unwrap()["root"]
        .take();
    assert_eq!(root["options"]["codec"], "zstd");
    assert_eq!(root["options"]["level"], "auto");
    let shown = fullbore(args!["show", repository]).ends_with(0).out;
    assert!(shown.contains("zstd, level auto, "), "{shown}");
}

#[test]
fn the_last_lines_say_which_levels_were_used() {
    let dir = temp();
    runs::write(dir.path().join("t/f"), code(1 << 20));
    let (tree, archive) = (dir.path().join("t"), dir.path().join("a.tar.zst"));
    let ran = fullbore(args!["backup", tree, "--to", archive, "--compress", "auto"]).ends_with(0);
    assert!(ran.err.contains("\ncompression zstd:1\n"), "{}", ran.err);
    shell("zstd -dc \"$1\" | tar -tf - > /dev/null", args![archive]).ends_with(0);
    fullbore(args!["verify", archive, "--data"]).ends_with(0);
}
