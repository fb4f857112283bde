//! What stands on a terminal: tables that fit it, and runs that are interrupted.

use crate::runs::{self, FULLBORE, fullbore, noise, or_skip, temp, write};
use fullbore_format::text::columns::width;
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use testkit::terminal::Terminal;

const DEEP: &str = "数据/客户/二〇二六年的照片/summer holidays by the sea/杭州西湖";
const LONG_NAME: &str = "一张很长很长的名字的照片 from the first evening, with all friends.jpeg";

/// A command on a terminal of so many columns. Words stand in single quotes.
fn shown(columns: usize, line: &str) -> (i32, String) {
    Terminal::sized(columns, &format!("'{FULLBORE}' {line}")).ends()
}

/// Removes colours.
fn plain(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| {
        let end = part.find(|c: char| c.is_ascii_alphabetic());
        plain + &part[end.map_or(part.len(), |end| end + 1)..]
    })
}

/// Two sources with long names in Chinese, each with two backups.
fn long_names(dir: &Path) -> (PathBuf, PathBuf) {
    let repository = dir.join("repo");
    for source in ["one", "另外一个目录"] {
        let tree = dir.join(DEEP).join(source);
        for content in ["first", "second content"] {
            write(tree.join("里面的目录").join(LONG_NAME), content);
            let tag = "purpose=a description that goes on for a good while, to see where it ends";
            let words = args![
                "backup", tree, "--to", repository, "--tag", tag, "-q", "--host"
            ];
            let ran = fullbore(words.into_iter().chain(args!["服务器一号"]));
            ran.ends_with(0);
        }
    }
    (repository, dir.join(DEEP))
}

#[test]
fn every_table_fits_its_terminal_and_is_whole_in_a_pipe() {
    if !or_skip(runs::has("script"), "there is no script") {
        return;
    }
    let dir = temp();
    let (repository, sources) = long_names(dir.path());
    let name = repository.to_str().unwrap();
    let (sealed, word) = (dir.path().join("sealed"), dir.path().join("word"));
    runs::write_private(&word, "a passphrase");
    fullbore(args![
        "init",
        sealed,
        "--passphrase",
        "--passphrase-file",
        word,
        "-q"
    ])
    .ends_with(0);
    let word = word.display();
    let own = "--host 服务器一号 --path";
    let one = sources.join("one");
    let one = one.to_str().unwrap();
    let lines = [
        format!("list '{name}'"),
        format!("list '{name}@latest' {own} '{one}'"),
        format!("list '{name}@latest' {own} '{one}' -R"),
        format!("find '{name}' '*.jpeg'"),
        format!("find '{name}' '*.jpeg' {own} '{one}'"),
        format!("forget '{name}' --keep-last 1 -n"),
        format!("sync '{name}' '{name}-2' -n"),
        format!("key list '{}' --passphrase-file '{word}'", sealed.display()),
        format!("stats '{name}'"),
        format!("fleet '{name}'"),
        format!("show '{name}@latest' {own} '{one}'"),
        format!("diff '{name}' {own} '{one}'"),
        format!("prune '{name}' -n"),
    ];
    for line in &lines {
        for columns in [60, 80] {
            let (code, text) = shown(columns, line);
            let text = plain(&text);
            assert!(code <= 1 && text.contains(' '), "{line}: {code} {text}");
            assert!(!text.contains("error:"), "{line}: {text}");
            for row in text.lines() {
                assert!(width(row) <= columns, "{line} at {columns}: {row:?}");
            }
        }
    }
    // Whole with -l, and in a pipe.
    let source = format!("服务器一号:{one}");
    let (_, long) = shown(60, &format!("list '{name}' -l"));
    assert!(long.contains(&source), "{long}");
    let piped = fullbore(args!["list", name]).ends_with(0).out;
    assert!(piped.contains(&source) && !piped.contains('…'), "{piped}");
    // On the terminal, the host and the end of the path are seen.
    let (_, short) = shown(80, &format!("list '{name}'"));
    assert!(short.contains("服务器…湖/one"), "{short}");
    let (_, narrow) = shown(20, &format!("list '{name}'"));
    for row in plain(&narrow).lines() {
        assert!(width(row) <= 20, "{row:?}");
    }
}

/// A backup that takes ten seconds.
fn slow_backup(dir: &Path) -> (PathBuf, String) {
    let (tree, repository) = (dir.join("tree"), dir.join("repo"));
    for number in 0..20 {
        write(tree.join(number.to_string()), noise(number, 1_000_000));
    }
    let words = "--max-rate 2M --workers 1";
    let [from, to] = [&tree, &repository].map(|path| path.display().to_string());
    let line = format!("'{FULLBORE}' backup '{from}' --to '{to}' {words}");
    (repository, line)
}

#[test]
fn ctrl_c_once_or_twice_ends_a_backup_on_a_clean_line() {
    if !or_skip(runs::has("script"), "there is no script") {
        return;
    }
    for keys in ["\x03", "\x03\x03"] {
        let dir = temp();
        let (repository, line) = slow_backup(dir.path());
        let start = Instant::now();
        let mut terminal = Terminal::sized(60, &line);
        terminal.shows(" left");
        terminal.types(keys);
        let (code, text) = terminal.ends();
        assert_eq!(code, 130, "{text}");
        assert!(start.elapsed() < Duration::from_secs(9), "{text}");
        // The line of the bar is cleared before the message.
        let before = text.split("error:").next().unwrap();
        let last = before.rsplit('\r').next().unwrap();
        assert_eq!(plain(last).trim(), "", "{text:?}");
        assert!(
            plain(&text).contains("error: interrupted by SIGINT"),
            "{text}"
        );
        let list = fullbore(args!["list", repository]).ends_with(0);
        assert!(!list.out.contains("  tree"), "{}", list.out);
        next_is_whole(dir.path(), &repository);
    }
}

#[test]
fn a_closed_terminal_ends_a_backup_and_the_next_one_is_whole() {
    if !or_skip(runs::has("script"), "there is no script") {
        return;
    }
    let dir = temp();
    let (repository, line) = slow_backup(dir.path());
    let pid = dir.path().join("pid");
    let line = format!("echo $$ > '{}'; exec {line}", pid.display());
    let terminal = Terminal::run(&line);
    terminal.shows(" left");
    let pid = fs::read_to_string(pid).unwrap();
    terminal.close();
    let process = Path::new("/proc").join(pid.trim());
    let start = Instant::now();
    while process.exists() && !is_zombie(&process) {
        assert!(start.elapsed() < Duration::from_secs(8), "it still runs");
        thread::sleep(Duration::from_millis(20));
    }
    next_is_whole(dir.path(), &repository);
}

/// Backs up once more what an interrupted backup of [`slow_backup`] did not store.
fn next_is_whole(dir: &Path, repository: &Path) {
    fullbore(args!["backup", dir.join("tree"), "--to", repository, "-q"]).ends_with(0);
    fullbore(args!["verify", repository, "--data", "-q"]).ends_with(0);
}

fn is_zombie(process: &Path) -> bool {
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    stat.contains(") Z ")
}

#[test]
fn the_bar_loses_whole_parts_and_is_plain_without_a_locale() {
    if !or_skip(runs::has("script"), "there is no script") {
        return;
    }
    let dir = temp();
    let (_, line) = slow_backup(dir.path());
    for (columns, locale) in [(40, "LC_ALL=C"), (60, "LC_ALL=C.UTF-8"), (80, "LC_ALL=C")] {
        let mut terminal = Terminal::sized(columns, &format!("{locale} {line}"));
        terminal.shows("MB of 20.0 MB");
        thread::sleep(Duration::from_secs(1));
        terminal.types("\x03");
        let (_, text) = terminal.ends();
        let bar = text.split("error:").next().unwrap();
        assert_eq!(bar.contains('█'), locale.contains("UTF"), "{bar:?}");
        assert_eq!(bar.contains('#'), !locale.contains("UTF"), "{bar:?}");
        for drawn in bar.split(['\r', '\n']).map(plain) {
            let drawn = drawn.trim_end_matches("^C").trim_end();
            assert!(width(drawn) <= columns, "{drawn:?}");
            let ends = [
                "MB",
                "/s",
                " left",
                "files",
                "file",
                "source",
                "destination",
                "workers",
            ];
            let is_whole = ends.iter().any(|end| drawn.ends_with(end));
            assert!(drawn.is_empty() || is_whole, "{columns}: {drawn:?}");
        }
    }
}

#[test]
fn colours_end_with_no_color_and_names_are_shown_escaped() {
    if !or_skip(runs::has("script"), "there is no script") {
        return;
    }
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join(OsStr::from_bytes(b"caf\xe9\x1b[31m.txt")), "x");
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    let name = repository.display();
    let nowhere = format!("'{FULLBORE}' list '{name}-none'");
    let (_, coloured) = Terminal::run(&format!("env -u NO_COLOR {nowhere}")).ends();
    let (_, clear) = Terminal::run(&format!("NO_COLOR=1 {nowhere}")).ends();
    assert!(coloured.contains("\x1b["), "{coloured:?}");
    assert!(
        !clear.contains('\x1b') && clear.contains("error: "),
        "{clear:?}"
    );
    for locale in ["env -u LANG -u LC_ALL", "LC_ALL=C.UTF-8"] {
        let list = format!("{locale} NO_COLOR=1 '{FULLBORE}' list -R '{name}@latest'");
        let (code, text) = Terminal::run(&list).ends();
        assert_eq!(code, 0);
        assert!(text.contains(r"caf\xe9\u{1b}[31m.txt"), "{text:?}");
        assert!(!text.contains('\x1b'), "{text:?}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    for number in 0..20_000 {
        write(
            tree.join(format!("directory/with a long name {number}")),
            "",
        );
    }
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    let name = repository.display();
    let line = format!("set -o pipefail; '{FULLBORE}' list -R '{name}@latest' | head -1");
    let words = ["-c", &line].map(OsString::from);
    let mut bash = std::process::Command::new("bash");
    let ran = bash
        .args(words)
        .env("FULLBORE_STATE_DIR", runs::state_dir());
    let ran = ran.output().unwrap();
    assert_eq!(ran.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&ran.stdout).lines().count(), 1);
    assert!(ran.stderr.is_empty(), "{:?}", ran.stderr);
    if or_skip(runs::has("script"), "there is no script") {
        let line = line.replace('\'', "\\\"");
        let (code, text) = Terminal::run(&format!("bash -c \"{line}\"")).ends();
        assert_eq!((code, text.lines().count()), (0, 1), "{text}");
    }
}

#[test]
fn the_manual_of_a_command_is_shown_by_man_on_a_terminal_and_printed_elsewhere() {
    let page = fullbore(args!["man", "restore"]).ends_with(0).out;
    assert!(
        page.contains(".TH") && page.contains("fullbore\\-restore"),
        "{page}"
    );
    assert!(fullbore(args!["man"]).ends_with(0).out.contains(".TH"));
    fullbore(args!["man", "nothing"])
        .ends_with(2)
        .has_one_error("no command \"nothing\"");
    if !or_skip(runs::has("script"), "there is no script") {
        return;
    }
    // A stand-in for man says what it got.
    let dir = temp();
    write(
        dir.path().join("man"),
        "#!/bin/sh\necho \"man $* got $(grep -c '^[.]TH')\"\n",
    );
    runs::set_mode(&dir.path().join("man"), 0o755);
    let path = format!("PATH='{}':$PATH", dir.path().display());
    let (code, text) = Terminal::run(&format!("{path} '{FULLBORE}' man restore")).ends();
    assert_eq!((code, &*text), (0, "man -l - got 1\n"));
}

#[test]
fn words_of_a_beginner_are_answered() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    write(tree.join("a"), "a");
    let version = fullbore(args!["version"]).ends_with(0).out;
    assert_eq!(version, fullbore(args!["--version"]).ends_with(0).out);
    let ran = fullbore(args!["backup", tree, repository]).ends_with(2);
    let words = format!("backup {} --to {}", tree.display(), repository.display());
    assert!(ran.err.contains(&words), "{}", ran.err);
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    let ran = fullbore(args!["verify", repository]).ends_with(0);
    assert!(
        ran.err.contains("no data was read yet; --data"),
        "{}",
        ran.err
    );
    fullbore(args!["verify", repository, "--data", "-q"]).ends_with(0);
    let ran = fullbore(args!["verify", repository]).ends_with(0);
    assert!(!ran.err.contains("--data"), "{}", ran.err);
    let ran = fullbore(args!["list", format!("{}@tuesday", repository.display())]).ends_with(1);
    assert!(
        ran.err.contains("latest~1, or a time such as 2026-11-24"),
        "{}",
        ran.err
    );
    let ran = fullbore(args!["forget", repository, "--keep-last", "0"]).ends_with(2);
    assert!(
        ran.err.contains("a rule with 0 keeps nothing"),
        "{}",
        ran.err
    );
    let ran = fullbore(args!["systemd"]).ends_with(2);
    assert!(ran.err.contains("`fullbore systemd NAME`"), "{}", ran.err);
    let profile = dir.path().join("p.toml");
    let text =
        format!("repository = {repository:?}\nsources = [{tree:?}]\n[retention]\nkeep-daily = 7\n");
    write(&profile, text);
    let ran = fullbore(args!["config", "check", "--config", profile]).ends_with(2);
    assert!(ran.err.contains("stand in [forget]"), "{}", ran.err);
}
