//! Standard output and standard error, and what happens when they cannot be written.
//!
//! A command that only prints, such as `list`, ends quietly when its reader closes the pipe, and fails if its output cannot be
//! written. A command that does work completes it, and its exit code is about that work: lost output gives a warning on
//! standard error. Errors of standard error itself are ignored.

use super::color::{self, LinePainter};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::{columns::wrapped, shown},
};
use fullbore_platform::BlockedCalls;
use std::{
    fmt::Display,
    io::{self, BufWriter, IsTerminal, StdoutLock, Write},
};

/// Prints lines on standard error, with control characters escaped.
pub(super) fn aside(line: impl Display) {
    let mut out = io::stderr().lock();
    let is_painted = color::is_on(&out);
    for line in shown(&line.to_string()).split('\n') {
        let _ = match is_painted {
            true => writeln!(out, "{}", color::painted(line)),
            false => writeln!(out, "{line}"),
        };
    }
}

/// Prints a JSON object on standard error.
pub(super) fn object_aside(object: &serde_json::Value) {
    let _ = writeln!(io::stderr().lock(), "{object}");
}

/// Runs a command that only prints. A closed pipe is not an error: exit code 0.
///
/// # Errors
/// Those of `tell`, or of standard output.
pub(super) fn printed(tell: impl FnOnce(&mut dyn Write) -> Result<u8>) -> Result<u8> {
    let mut out = BufWriter::new(standard_output());
    match tell(&mut out).and_then(|code| out.flush().map(|()| code).map_err(failed)) {
        Err(error) if error.kind == ErrorKind::BrokenPipe => Ok(0),
        other => other,
    }
}

/// As [`printed`]; lines that are wider than so many columns are broken between words. `None` breaks no line.
///
/// # Errors
/// As [`printed`].
pub(super) fn printed_within(
    columns: Option<usize>,
    tell: impl FnOnce(&mut dyn Write) -> Result<u8>,
) -> Result<u8> {
    printed(|out| tell(&mut WrappedLines::new(out, columns)))
}

/// As [`told`], with lines broken as by [`printed_within`].
///
/// # Errors
/// Those of `act`.
pub(super) fn told_within(
    columns: Option<usize>,
    act: impl FnOnce(&mut dyn Write) -> Result<u8>,
) -> Result<u8> {
    told(|out| act(&mut WrappedLines::new(out, columns)))
}

/// Runs a command that does work. It completes even if standard output cannot be written.
///
/// # Errors
/// Those of `act`.
pub(super) fn told(act: impl FnOnce(&mut dyn Write) -> Result<u8>) -> Result<u8> {
    let mut out = BufWriter::new(LenientWriter {
        out: standard_output(),
        failed: None,
    });
    let code = act(&mut out);
    let _ = out.flush(); // the writer keeps its errors
    match out.get_mut().failed.take() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            aside(format_args!("warning: {}", failed(error).line()));
        }
        _ => {}
    }
    code
}

/// As [`printed`], for bytes that are no text of this program.
///
/// # Errors
/// As [`printed`].
pub(super) fn plain_output(write: impl FnOnce(&mut dyn Write) -> Result<u8>) -> Result<u8> {
    // Not locked: the sink of a tar writes to standard output itself.
    let mut out = BufWriter::with_capacity(64 << 10, BlockedCalls(io::stdout()));
    match write(&mut out).and_then(|code| out.flush().map(|()| code).map_err(failed)) {
        Err(error) if error.kind == ErrorKind::BrokenPipe => Ok(0),
        other => other,
    }
}

/// As [`told_within`], but with `is_quiet` nothing is printed.
///
/// # Errors
/// Those of `act`.
pub(super) fn told_unless_within(
    is_quiet: bool,
    columns: Option<usize>,
    act: impl FnOnce(&mut dyn Write) -> Result<u8>,
) -> Result<u8> {
    match is_quiet {
        true => act(&mut io::sink()),
        false => told_within(columns, act),
    }
}

/// Standard output, with colours if they are wanted.
fn standard_output() -> LinePainter<BlockedCalls<StdoutLock<'static>>> {
    let out = io::stdout().lock();
    let is_on = color::is_on(&out);
    LinePainter::new(BlockedCalls(out), is_on)
}

/// Returns whether standard output is a terminal.
pub(super) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns the columns of the terminal at standard output; `None` if it is no terminal.
pub(super) fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

fn failed(error: io::Error) -> Error {
    Error::io("could not write to standard output", error)
}

/// Breaks lines that are too wide for a terminal. It gets whole lines, as [`fullbore_format::text::line`] writes them.
struct WrappedLines<'a> {
    out: &'a mut dyn Write,
    columns: Option<usize>,
    /// The begin of a line.
    line: Vec<u8>,
}

impl<'a> WrappedLines<'a> {
    fn new(out: &'a mut dyn Write, columns: Option<usize>) -> Self {
        Self {
            out,
            columns,
            line: Vec::new(),
        }
    }

    fn write_line(&mut self, columns: usize) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        for part in wrapped(text.trim_end_matches('\n'), columns) {
            writeln!(self.out, "{part}")?;
        }
        Ok(())
    }
}

impl Write for WrappedLines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(columns) = self.columns else {
            return self.out.write(bytes);
        };
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.write_line(columns)?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Accepts all output, and keeps the first error.
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
