//! Copies of trees, by the real program: on this machine, over a real sshd, interrupted, and with a hostile other side.

#![allow(missing_docs)]

#[macro_use]
#[path = "../runs/mod.rs"]
mod runs;
mod calls;
mod deletions;
mod hostile;
mod local;
mod over_ssh;
#[path = "../wire/sshd.rs"]
#[allow(dead_code, reason = "the tests of connections use the rest")]
mod sshd;

use runs::{Ran, fullbore, noise, text};
use std::{ffi::OsString, path::Path};

/// A tree with every kind of object, and one large file.
fn sample(dir: &Path) {
    runs::sample(dir);
    for number in 0..200 {
        runs::write(
            dir.join(format!("many/{:02}/{number}", number % 7)),
            text(number, 50 * number as usize),
        );
    }
    runs::write(dir.join("large"), noise(7, 5_000_000));
}

fn copy(options: impl IntoIterator<Item = OsString>) -> Ran {
    fullbore(args!["copy"].into_iter().chain(options))
}

/// The last object that a copy printed with `--json`.
fn result(ran: &Ran) -> serde_json::Value {
    ran.json().pop().unwrap()
}
