//! The entries of a copy, as they are printed.

use fullbore_engine::copy::CopyWatch;
use fullbore_format::{root::EntryName, text};
use fullbore_platform::queue::Locked;
use std::{
    io::{self, BufWriter, Stdout, Write},
    sync::Mutex,
};

/// Prints entries on standard output, a line each.
pub(super) struct CopyLog {
    /// Print new and changed entries, and not only deleted ones.
    pub(super) shows_all: bool,
    /// Print nothing.
    pub(super) is_quiet: bool,
    /// Print each line as a JSON object.
    pub(super) is_json: bool,
    pub(super) out: Mutex<BufWriter<Stdout>>,
}

impl CopyLog {
    fn print(&self, sign: char, path: &[u8]) -> io::Result<()> {
        let mut out = self.out.locked();
        if !self.is_json {
            let path = match path {
                b"" => ".".to_owned(),
                path => text::name(path),
            };
            return writeln!(out, "{sign} {path}");
        }
        let change = match sign {
            '+' => "added",
            '~' => "changed",
            _ => "removed",
        };
        let path = EntryName(path.to_vec());
        let object = serde_json::json!({"type": "change", "change": change, "path": path});
        writeln!(out, "{object}")
    }
}

impl CopyWatch for CopyLog {
    /// The copy goes on if its output cannot be written.
    fn entry(&self, sign: char, path: &[u8]) {
        if !self.is_quiet && (self.shows_all || sign == '-') {
            let _ = self.print(sign, path);
        }
    }

    fn flush(&self) {
        let _ = self.out.locked().flush();
    }
}
