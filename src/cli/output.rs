//! What is printed, and what becomes of a run if nobody reads it or it cannot be written.
//!
//! What only tells something ends with its reader, quietly, as any program in a pipe does, and fails if it cannot be
//! written. What does something does it to its end, and its exit code is about that: of words that were lost standard error
//! has a warning. Standard error itself may be lost without a word.

use crate::{
    error::{Error, ErrorKind, Result},
    platform::BlockedCalls,
    text::shown,
};
use std::{
    fmt::Display,
    io::{self, BufWriter, Write},
};

/// A line on standard error, or several, as a terminal can show them.
pub(super) fn aside(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{}", shown(&line.to_string()));
}

/// An object on standard error.
pub(super) fn object_aside(object: &serde_json::Value) {
    let _ = writeln!(io::stderr().lock(), "{object}");
}

/// Run what only tells something, on standard output. A reader that ended before has read enough: code 0.
///
/// # Errors
/// Those of `tell`, or of standard output.
pub(super) fn printed(tell: impl FnOnce(&mut dyn Write) -> Result<u8>) -> Result<u8> {
    let mut out = BufWriter::new(BlockedCalls(io::stdout().lock()));
    match tell(&mut out).and_then(|code| out.flush().map(|()| code).map_err(failed)) {
        Err(error) if error.kind == ErrorKind::BrokenPipe => Ok(0),
        other => other,
    }
}

/// Run what does something and tells of it on standard output, whether that can be written or not.
///
/// # Errors
/// Those of `act`.
pub(super) fn told(act: impl FnOnce(&mut dyn Write) -> Result<u8>) -> Result<u8> {
    let mut out = BufWriter::new(LenientWriter {
        out: BlockedCalls(io::stdout().lock()),
        failed: None,
    });
    let code = act(&mut out);
    let _ = out.flush(); // nothing fails here
    match out.get_mut().failed.take() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            aside(format_args!("warning: {}", failed(error).line()));
        }
        _ => {}
    }
    code
}

fn failed(error: io::Error) -> Error {
    Error::io("could not write to standard output", error)
}

/// Takes everything, and keeps the first error.
struct LenientWriter<W> {
    out: W,
    failed: Option<io::Error>,
}

impl<W: Write> LenientWriter<W> {
    fn unless_failed(&mut self, write: impl FnOnce(&mut W) -> io::Result<()>) {
        if self.failed.is_none() {
            self.failed = write(&mut self.out).err();
        }
    }
}

impl<W: Write> Write for LenientWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_failed(|out| out.write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_failed(W::flush);
        Ok(())
    }
}
