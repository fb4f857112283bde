//! What a run says its limit was, is its limit; and the page about it can be looked at.

use crate::runs;
use crate::runs::{Ran, fullbore, has, noise, or_skip, sample, shell, started, temp};
use std::{
    ffi::OsString,
    fs,
    io::{Read, Write},
    path::Path,
    thread::sleep,
    time::Duration,
};

fn result(text: &str) -> serde_json::Value {
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// The limit is `limit`, whose side was held up by nobody else.
fn assert_limit(result: &serde_json::Value, limit: &str) {
    assert_eq!(result["limit"], limit, "{result}");
}

#[test]
fn before_a_slow_reader_the_limit_is_the_sink() {
    let dir = temp();
    runs::write(dir.path().join("f"), noise(1, 24 << 20));
    let mut child = started(args![
        "backup",
        dir.path(),
        "--to",
        "-",
        "--compress",
        "none",
        "--json",
        "--memory",
        "8M"
    ]);
    let (mut stdout, mut buffer) = (child.stdout.take().unwrap(), vec![0; 256 << 10]);
    while stdout.read(&mut buffer).unwrap() > 0 {
        sleep(Duration::from_millis(4)); // the pipe holds 64 KiB: about 15 MB/s
    }
    let ran = Ran::from(child.wait_with_output().unwrap()).ends_with(0);
    assert_limit(&result(&ran.err), "sink");
}

#[test]
fn with_a_slow_codec_on_one_worker_the_limit_is_the_workers() {
    let dir = temp();
    let mut data = fs::read(runs::FULLBORE).unwrap();
    data.truncate(24 << 20);
    runs::write(dir.path().join("t/f"), data);
    let options = args!["--compress", "zstd:9", "--workers", "1", "--json"];
    let target = dir.path().join("r");
    let ran = fullbore(
        args!["backup", dir.path().join("t"), "--to", target]
            .into_iter()
            .chain(options),
    )
    .ends_with(0);
    let result = result(&ran.out);
    assert_limit(&result, "workers");
    let busy = |part: &str| result["shares"][part]["busy"].as_f64().unwrap();
    assert!(
        busy("workers") > 2.0 * busy("source").max(busy("sink")),
        "{result}"
    );
}

#[test]
fn behind_a_slow_source_the_limit_is_the_source() {
    let dir = temp();
    let mut child = started(args![
        "backup",
        "--stdin-name",
        "s",
        "--to",
        dir.path().join("r"),
        "--json"
    ]);
    let mut stdin = child.stdin.take().unwrap();
    for i in 0..40 {
        stdin.write_all(&noise(i, 256 << 10)).unwrap();
        sleep(Duration::from_millis(25));
    }
    drop(stdin);
    let ran = Ran::from(child.wait_with_output().unwrap()).ends_with(0);
    assert_limit(&result(&ran.out), "source");
}

#[test]
fn behind_a_slow_disk_the_limit_is_the_source() {
    if !or_skip(has("strace"), "there is no strace") {
        return;
    }
    let dir = temp();
    for i in 0..60 {
        runs::write(dir.path().join(format!("t/f{i:02}")), noise(i, 100_000));
    }
    // Every call that reads takes 10 ms longer; output is only in memory.
    let line = "strace -f -qq -o /dev/null -e inject=pread64,preadv2,read:delay_exit=10000 \
        \"$1\" backup \"$2\" --to null: --json --no-tricks --readers 1 --workers 1";
    let ran = shell(line, args![runs::FULLBORE, dir.path().join("t")]).ends_with(0);
    assert_limit(&result(&ran.out), "source");
}

#[test]
fn a_rate_is_kept_by_all_readers_together_and_is_the_limit() {
    let dir = temp();
    let tree = dir.path().join("t");
    runs::write(tree.join("large"), noise(1, 2 << 20));
    (0..64).for_each(|i| runs::write(tree.join(format!("f{i}")), noise(i, 16 << 10)));
    let run = |options: &[&str]| {
        let target = temp();
        let command = args![
            "backup",
            &tree,
            "--to",
            target.path().join("r"),
            "--frame-size",
            "64K"
        ];
        fullbore(command.into_iter().chain(runs::args(options))).ends_with(0)
    };
    let paced = result(&run(&["--max-rate", "2M", "--readers", "4", "--json"]).out);
    assert_limit(&paced, "source");
    assert!(
        (1.2..20.0).contains(&paced["seconds"].as_f64().unwrap()),
        "{paced}"
    );
    let told = run(&["--max-rate", "1G"]).err;
    assert!(
        told.contains("--max-rate held reading to 1 GiB/s"),
        "{told}"
    );
}

#[test]
fn progress_is_told_while_a_run_goes_on() {
    let dir = temp();
    let mut child = started(args![
        "backup",
        "--stdin-name",
        "s",
        "--to",
        dir.path().join("r"),
        "--json"
    ]);
    let mut stdin = child.stdin.take().unwrap();
    for _ in 0..5 {
        stdin.write_all(&noise(1, 1 << 20)).unwrap();
        sleep(Duration::from_millis(500));
    }
    drop(stdin);
    let lines = Ran::from(child.wait_with_output().unwrap())
        .ends_with(0)
        .json();
    let (result, progress) = lines.split_last().unwrap();
    assert_eq!(result["type"], "result");
    assert!(progress.len() >= 2, "{lines:?}");
    for line in progress {
        assert!(
            line["type"] == "progress" && line["bytes"].is_u64() && line["limit"].is_string(),
            "{line}"
        );
    }
}

#[test]
fn the_last_lines_say_how_much_how_fast_and_what_the_limit_was() {
    let dir = temp();
    sample(&dir.path().join("t"));
    let tree = dir.path().join("t");
    let ran = fullbore(args!["backup", tree, "--to", dir.path().join("r"), "-v"]).ends_with(0);
    let lines: Vec<_> = ran.err.lines().collect();
    let [counts, limit, done] = lines[..] else {
        panic!("{lines:?}")
    };
    assert!(
        counts.starts_with("35 files, ") && counts.contains(" stored, ratio "),
        "{counts}"
    );
    let is_processor = limit.starts_with("limit: processor, ") && limit.contains(" % of ");
    let is_device = limit.starts_with("limit: disk ") && limit.contains('×');
    assert!(is_processor || is_device, "{limit}");
    assert!(
        done.starts_with("backup 20") && done.contains(" is complete in "),
        "{done}"
    );
}

#[test]
fn the_limit_of_a_run_of_a_moment_is_told_only_with_verbose() {
    let dir = temp();
    sample(&dir.path().join("t"));
    let run = |command: &[OsString], option: &str| {
        let command = command.iter().cloned().chain([option.into()]);
        let said = fullbore(command).ends_with(0).err;
        said.lines().any(|line| line.starts_with("limit: "))
    };
    let tree = dir.path().join("t");
    let repository = dir.path().join("r");
    let backup = args!["backup", tree, "--to", repository];
    assert!(!run(&backup, "--full") && run(&backup, "-v"));
    let verify = args!["verify", repository, "--data"];
    assert!(!run(&verify, "--no-tricks") && run(&verify, "-v"));
    let restored = |name| args!["restore", repository, "--to", dir.path().join(name)];
    assert!(!run(&restored("a"), "--no-tricks") && run(&restored("b"), "--verbose"));
}

#[test]
fn the_hardware_of_each_run_is_in_json() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("t"), dir.path().join("r"));
    sample(&tree);
    let hardware = |command: &[OsString]| {
        let ran = fullbore(command.iter().cloned().chain(["--json".into()])).ends_with(0);
        result(&ran.out)["hardware"].clone()
    };
    let back = dir.path().join("back");
    for (command, work) in [
        (
            &args!["backup", tree, "--to", repository][..],
            "compressing",
        ),
        (&args!["verify", repository, "--data"], "decoding"),
        (&args!["restore", repository, "--to", back], "decoding"),
    ] {
        let found = hardware(command);
        assert!(
            found["limit"].is_string() && found["cores"].is_u64(),
            "{found}"
        );
        assert!(found["work"][work].is_number(), "{found}");
    }
}

#[test]
fn a_worker_that_is_busy_is_named_as_the_limit_that_was_set() {
    let dir = temp();
    let data = fs::read(runs::FULLBORE).unwrap();
    runs::write(dir.path().join("t/f"), &data[..data.len().min(16 << 20)]);
    let options = "--to null: --workers 1 --compress zstd:12 --digest none --json".split(' ');
    let command = args!["backup", dir.path().join("t")];
    let ran = fullbore(command.into_iter().chain(options.map(OsString::from))).ends_with(0);
    let found = result(&ran.out)["hardware"].clone();
    // Other programs may use the other processors meanwhile.
    let limit = found["limit"].as_str().unwrap();
    assert!(["--workers", "processor"].contains(&limit), "{found}");
    assert!(
        found["work"]["compressing"].as_f64().unwrap() > 0.5,
        "{found}"
    );
}

/// Have Chromium draw a page; the pixels as it stores them, compressed.
fn screenshot(page: &Path, at: &Path) -> Vec<u8> {
    let flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars --window-size=1000,1400";
    let line = format!(
        "HOME=\"$3\" timeout 60 chromium {flags} --user-data-dir=\"$3/profile\" --screenshot=\"$1\" \"file://$2\" 2>&1"
    );
    shell(&line, args![at, page, at.parent().unwrap()]).ends_with(0);
    fs::read(at).unwrap()
}

#[test]
fn the_page_about_a_run_opens_in_a_browser() {
    let dir = temp();
    let (tree, page) = (dir.path().join("t"), dir.path().join("report.html"));
    sample(&tree);
    for i in 0..20 {
        runs::write(tree.join(format!("more/{i}")), noise(i, 2 << 20));
    }
    fullbore(args![
        "backup",
        tree,
        "--to",
        dir.path().join("r"),
        "--quiet",
        "--compress",
        "zstd:12",
        "--report",
        page
    ])
    .ends_with(0);
    let html = fs::read_to_string(&page).unwrap();
    let address = html
        .replace("http://www.w3.org/", "")
        .replace("http-equiv", "")
        .contains("http");
    assert!(
        !address && !html.contains("<link") && !html.contains("src="),
        "the page asks for something else"
    );
    assert!(html.contains("<svg") && html.contains("limit: "));
    if or_skip(has("chromium"), "there is no chromium") {
        fs::write(dir.path().join("empty.html"), "<title>empty</title>").unwrap();
        let blank = screenshot(
            &dir.path().join("empty.html"),
            &dir.path().join("empty.png"),
        );
        let drawn = screenshot(&page, &dir.path().join("report.png"));
        assert!(
            drawn.starts_with(b"\x89PNG") && drawn.len() > 4 * blank.len(),
            "{} {}",
            drawn.len(),
            blank.len()
        );
    }
}

#[test]
fn a_limit_is_as_busy_in_words_as_in_json() {
    let dir = temp();
    let repository = dir.path().join("r");
    let mut child = started(args![
        "backup",
        "--stdin-name",
        "s",
        "--to",
        repository,
        "-v"
    ]);
    let mut stdin = child.stdin.take().unwrap();
    for i in 0..40 {
        stdin.write_all(&noise(i, 64 << 10)).unwrap();
        sleep(Duration::from_millis(25));
    }
    drop(stdin);
    let said = Ran::from(child.wait_with_output().unwrap())
        .ends_with(0)
        .err;
    let told: f64 = said
        .split("limit: standard input, busy ")
        .nth(1)
        .expect(&said)
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let root = fullbore(args!["show", repository, "--json"])
        .ends_with(0)
        .json()
        .pop()
        .unwrap()["root"]
        .take();
    let stored = root["run"]["shares"]["source"][0].as_f64().unwrap() * 100.0;
    assert!(
        told > 50.0 && (told - stored).abs() < 5.0,
        "{told} {stored}"
    );
    assert!(!said.contains("99.9×"), "{said}");
}
