//! Keeps secrets of the process out of core dumps and off the terminal, and tells which files keep theirs.

use rustix::{
    process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit},
    termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr},
};
use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::OnceLock,
};
use zeroize::Zeroizing;

/// Longest line that is read from the terminal.
const MAX_LINE_BYTES: usize = 4096;

/// Bytes of a file with keys or a passphrase at most.
const MAX_SECRET_BYTES: u64 = 1 << 20;

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

/// Reads the first MiB of a file with a secret; `None` if others can read or change the file.
///
/// Only its owner may; a file of root may be readable by a group. Any file is private below a directory that lets its owner alone in, who is
/// this user or root: copies of keys are often written there with the usual mode. What is no file, such as a pipe, is private.
///
/// # Errors
/// The system's.
pub fn read_private(path: &Path) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let file = File::open(path)?;
    let facts = file.metadata()?;
    if !is_private(&facts) && !is_shut_in(path, &facts) {
        return Ok(None);
    }
    // With all room from the start: a vector that grows leaves copies of a secret behind. A pipe has no length.
    let room = facts.len().clamp(4096, MAX_SECRET_BYTES);
    let mut bytes = Zeroizing::new(Vec::with_capacity(room as usize + 1));
    file.take(MAX_SECRET_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn is_private(facts: &Metadata) -> bool {
    let others = if facts.uid() == 0 { 0o027 } else { 0o077 };
    !facts.is_file() || facts.mode() & others == 0
}

/// Is this file below a directory that nobody else can pass? With a second name it may be reached by another way.
fn is_shut_in(path: &Path, facts: &Metadata) -> bool {
    let Ok(path) = fs::canonicalize(path) else {
        return false;
    };
    let is_same = fs::symlink_metadata(&path)
        .is_ok_and(|found| (found.dev(), found.ino()) == (facts.dev(), facts.ino()));
    is_same && facts.nlink() == 1 && path.ancestors().skip(1).any(is_shut)
}

fn is_shut(dir: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(dir)
        .is_ok_and(|dir| [0, user].contains(&dir.uid()) && dir.mode() & 0o011 == 0)
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
    let mut reader = BufReader::with_capacity(1, Read::take(&terminal, MAX_LINE_BYTES as u64));
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

/// Returns whether this process has a terminal at which a person can be asked.
pub fn has_terminal() -> bool {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/tty")
        .is_ok()
}

/// Asks the person at the terminal for a line that is shown, with a bell; `None` without a terminal.
///
/// # Errors
/// The system's.
pub fn ask_line(question: &str) -> io::Result<Option<String>> {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
    let Ok(mut terminal) = terminal else {
        return Ok(None);
    };
    write!(terminal, "\x07{question}: ")?;
    let mut line = String::new();
    let read = BufReader::new(Read::take(&terminal, MAX_LINE_BYTES as u64)).read_line(&mut line)?;
    Ok((read > 0).then_some(line))
}

/// A terminal that does not show what is typed, until this is dropped.
struct Silence<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Silence<'a> {
    fn begin(terminal: &'a File) -> io::Result<Self> {
        let attributes = tcgetattr(terminal)?;
        let mut silent = attributes.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(terminal, OptionalActions::Flush, &silent)?;
        Ok(Self {
            terminal,
            before: attributes,
        })
    }
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_is_private_by_its_mode_or_by_that_of_a_directory_above_it() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("a/b");
        fs::create_dir_all(&dir).unwrap();
        let (file, link) = (dir.join("key"), top.path().join("link"));
        fs::write(&file, "secret").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let is_private = |path: &Path| read_private(path).unwrap().is_some();
        set_mode(&dir, 0o755);
        for (mode, file_mode, expected) in [
            (0o700, 0o644, true),
            (0o744, 0o666, true),
            (0o711, 0o644, false),
            (0o710, 0o644, false),
            (0o755, 0o600, true),
            (0o755, 0o604, false),
            (0o755, 0o620, false),
        ] {
            set_mode(top.path(), 0o755);
            set_mode(&top.path().join("a"), mode);
            set_mode(&file, file_mode);
            let case = format!("{mode:o} {file_mode:o}");
            assert_eq!(is_private(&file), expected, "{case}");
            assert_eq!(is_private(&link), expected, "{case}, through a link");
        }
        set_mode(&top.path().join("a"), 0o700);
        set_mode(&file, 0o644);
        fs::hard_link(&file, top.path().join("other name")).unwrap();
        assert!(!is_private(&file), "it has a name outside");
    }
}
