//! Keeps secrets of the process out of core dumps and off the terminal.

use rustix::{
    process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit},
    termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr},
};
use std::{
    fs::{File, Metadata, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::MetadataExt,
    sync::OnceLock,
};
use zeroize::Zeroizing;

/// Longest line that is read from the terminal.
const MAX_LINE_BYTES: usize = 4096;

/// Makes the system write no core dump of this process, and keeps other processes of the same user
/// from reading its memory.
///
/// Only the first call does something. The kernel gives the files in `/proc` of such a process to
/// root; those that everyone may read stay readable.
///
/// # Errors
/// The system's; a dump may be written then.
pub fn forbid_core_dumps() -> io::Result<()> {
    static DONE: OnceLock<Result<(), rustix::io::Errno>> = OnceLock::new();
    DONE.get_or_init(forbid_now).map_err(io::Error::from)
}

fn forbid_now() -> Result<(), rustix::io::Errno> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // A limit of 0 alone does not stop a pipe in core_pattern, and the flag alone does not with
    // fs.suid_dumpable = 2.
    setrlimit(Resource::Core, none)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Returns whether only its owner can read a file; that of root may be readable by a group. What is no file, such as a pipe, is private.
pub fn is_private(facts: &Metadata) -> bool {
    let others = if facts.uid() == 0 { 0o027 } else { 0o077 };
    !facts.is_file() || facts.mode() & others == 0
}

/// Asks the person at the terminal for a line that is not shown; `None` without a terminal, and if
/// no line is entered.
///
/// # Errors
/// The system's, and [`io::ErrorKind::InvalidData`] if the line is not text.
pub fn ask_secret(question: &str) -> io::Result<Option<Zeroizing<String>>> {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
    let Ok(mut terminal) = terminal else {
        return Ok(None);
    };
    write!(terminal, "{question}: ")?;
    let silence = Silence::begin(&terminal)?;
    // Room for the whole line, so that no part of it is left in a buffer that was given up.
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_LINE_BYTES));
    let mut reader = BufReader::with_capacity(1, io::Read::take(&terminal, MAX_LINE_BYTES as u64));
    let read = reader.read_until(b'\n', &mut line);
    drop(silence);
    writeln!(terminal)?;
    read?;
    while line
        .last()
        .is_some_and(|byte| matches!(byte, b'\n' | b'\r'))
    {
        line.pop();
    }
    let text = std::str::from_utf8(&line)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text"))?;
    Ok((!text.is_empty()).then(|| Zeroizing::new(text.to_owned())))
}

/// A terminal that does not show what is typed, until this is dropped.
struct Silence<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Silence<'a> {
    fn begin(terminal: &'a File) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(terminal, OptionalActions::Flush, &silent)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}
