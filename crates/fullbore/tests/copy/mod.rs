//! Copies of trees, by the real program: on this machine, over a real sshd, interrupted, and with a hostile other side.

mod calls;
mod deletions;
mod hostile;
mod local;
mod over_ssh;
mod sources;

use std::{ffi::OsString, path::Path};
use testkit::{
    runs::{self, Ran, fullbore, noise, text},
    sshd,
};

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
