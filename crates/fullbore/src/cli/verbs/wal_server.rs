//! The process that a push leaves behind: `fullbore wal serve` with the words of the push.

use crate::cli::{command_line, storage::words_of_process};
use fullbore_engine::wal::{WalAhead, WalPush};
use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
};

/// How long it stays without work.
const IDLE: &str = "60s";
/// Options of a push with a value, which the server of a backlog has not.
const PUSH_VALUES: [&str; 2] = ["--patience", "--system"];

/// Starts the process, in a group of its own: the end of the server does not end it.
///
/// # Errors
/// The system's.
pub(super) fn leave(push: &WalPush, data: &Path) -> io::Result<()> {
    let data = if data.as_os_str().is_empty() {
        Path::new(".")
    } else {
        data
    };
    let words = serve_words(&command_line::words(), push, data);
    start_apart(&words)
}

/// Starts the process that fetches the segments behind one.
///
/// # Errors
/// The system's.
pub(super) fn fetch_ahead(ahead: &WalAhead) -> io::Result<()> {
    let data = match ahead.data.as_os_str().is_empty() {
        true => Path::new("."),
        false => &ahead.data,
    };
    let mut words: Vec<OsString> = ["wal", "ahead", &ahead.name].map(OsString::from).to_vec();
    words.extend([data.into(), "--from".into(), ahead.from.clone()]);
    words.push(format!("--system={}", ahead.system).into());
    let copy_name = ahead.copy_name.iter();
    words.extend(copy_name.map(|name| format!("--as={name}").into()));
    let wal_from = ahead.wal_from.iter();
    words.extend(wal_from.map(|host| format!("--wal-from={host}").into()));
    words.extend(words_of_process());
    start_apart(&words)
}

/// Starts this program with other words, in a group of its own and without the files of this process.
fn start_apart(words: &[OsString]) -> io::Result<()> {
    let mut command = Command::new(env::current_exe()?);
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    command.spawn().map(drop)
}

/// Returns the words of the server, without the name of the program.
fn serve_words(words: &[OsString], push: &WalPush, data: &Path) -> Vec<OsString> {
    let mut serve: Vec<OsString> = Vec::new();
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        let is_value = |option: &&str| word.as_bytes().starts_with(format!("{option}=").as_bytes());
        if PUSH_VALUES.iter().any(|option| word == option) {
            words.next();
        } else if word == "--no-serve" || PUSH_VALUES.iter().any(is_value) {
        } else if word == "push" && serve.last().is_some_and(|last| last == "wal") {
            serve.push("serve".into());
        } else if *word == *push.path.as_os_str() {
            serve.push(data.into());
        } else {
            serve.push(word.clone());
        }
    }
    serve.extend(["--idle", IDLE].map(|word| OsStr::new(word).to_owned()));
    serve
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_words_of_a_push_become_those_of_a_server() {
        let push = WalPush {
            storages: fullbore_storage::Storages::default(),
            path: "pg_wal/000000010000000000000001".into(),
            to: "/r".into(),
            copy_name: None,
            system: None,
            level: 1,
            workers: 1,
            patience: Duration::ZERO,
            alone: false,
            spool: None,
        };
        let line = "fullbore wal push pg_wal/000000010000000000000001 --patience 5s --to /r --system=7 --key k -j 2";
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let serve = serve_words(&words, &push, Path::new("."));
        let serve: Vec<_> = serve.iter().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(
            serve.join(" "),
            "wal serve . --to /r --key k -j 2 --idle 60s"
        );
    }
}
