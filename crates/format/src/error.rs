//! The error type: the operation and its object, the cause, and a hint.

use std::{borrow::Cow, fmt, io};

/// The only error type of the crate.
#[derive(Debug)]
pub struct Error {
    /// Decides the exit code and whether to retry.
    pub kind: ErrorKind,
    /// One line, lower case, no full stop: `could not read "base/5/16384"`.
    pub what: String,
    /// Lines that add facts, printed indented below `what`.
    pub detail: Vec<String>,
    /// One sentence that tells the operator how to act.
    pub hint: Option<Cow<'static, str>>,
    /// The cause; printed once, after `what` and a colon, and never repeated in `what`.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Hint for a full file system.
const ROOM: &str = "free space or choose another place, and run the same command again; in a repository `fullbore forget` and \
                    `fullbore prune` free the space of old backups";

/// Hint for a file system that has space but no free inodes.
const INODES: &str = "remove files there that are not needed, or choose another place (`df -i` shows inodes), and run the same command \
                      again; in a repository `fullbore forget` and `fullbore prune` free the space of old backups";

/// A file system has no inodes left: it cannot hold another file, though it may have space.
#[derive(Debug)]
pub struct NoInodes;

impl fmt::Display for NoInodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no inodes left on the file system, which may have space")
    }
}

impl std::error::Error for NoInodes {}

/// Something was sealed with keys other than those that this command has.
#[derive(Debug)]
pub struct OtherKeys(
    /// How this is known.
    pub String,
);

impl fmt::Display for OtherKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OtherKeys {}

/// Returns whether the error is [`NoInodes`].
pub fn is_inode_shortage(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NoInodes>())
}

/// Hint for a shortage of memory.
pub const MEMORY: &str = "raise the limit of memory (`ulimit -v`, LimitAS= of a systemd unit), or use less --memory and fewer --workers";

/// The kind of an error. It decides the exit code and the retry policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The arguments are invalid.
    Usage,
    /// The object does not exist.
    NotFound,
    /// The object was deliberately removed after it was opened.
    Gone,
    /// The object exists already.
    Exists,
    /// Permission denied.
    Permission,
    /// No space or quota left.
    Full,
    /// Bytes differ from the recorded ones.
    Corrupt,
    /// Written by a newer version, or needs a feature that this build lacks. Not used for damage.
    Unsupported,
    /// Not reachable now; worth trying again.
    Unreachable,
    /// The reader of the output is gone.
    BrokenPipe,
    /// Any other failure of the system.
    System,
    /// A defect of fullbore.
    Bug,
}

/// A result with the crate's error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl ErrorKind {
    /// Returns the kind for an error of the system.
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotFound,
            io::ErrorKind::AlreadyExists => Self::Exists,
            io::ErrorKind::PermissionDenied => Self::Permission,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            io::ErrorKind::BrokenPipe => Self::BrokenPipe,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Self::Corrupt,
            io::ErrorKind::Unsupported if error.raw_os_error().is_none() => Self::Unsupported,
            _ => Self::System,
        }
    }

    /// Returns whether stored data is missing or differs from the recorded data. Other kinds do not
    /// concern stored data.
    pub fn is_loss(self) -> bool {
        matches!(self, Self::NotFound | Self::Corrupt)
    }
}

impl Error {
    /// Creates an error without cause and hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            what: message.into(),
            detail: Vec::new(),
            hint: None,
            source: None,
        }
    }

    /// Creates an error from a system error and the operation: `Error::io("could not read \"a\"",
    /// err)`.
    pub fn io(message: impl Into<String>, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        let kind = ErrorKind::of(&error);
        let hint = match error.kind() {
            _ if is_inode_shortage(&error) => Some(INODES.into()),
            _ if kind == ErrorKind::Full => Some(ROOM.into()),
            io::ErrorKind::OutOfMemory => Some(MEMORY.into()),
            _ => None,
        };
        Self {
            source: Some(Box::new(Reason(error))),
            hint,
            ..Self::new(kind, message)
        }
    }

    /// Creates an error for damage: bytes differ from the recorded ones.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a line of facts.
    #[must_use]
    pub fn detail(mut self, line: impl Into<String>) -> Self {
        self.detail.push(line.into());
        self
    }

    /// Adds a cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the system's error, if that is the cause.
    pub fn system(&self) -> Option<&io::Error> {
        self.source
            .as_ref()?
            .downcast_ref()
            .map(|Reason(error)| error)
    }

    /// Returns whether the cause is [`OtherKeys`]: a flipped bit is not the reason, and another key may be.
    pub fn is_of_other_keys(&self) -> bool {
        self.source
            .as_ref()
            .is_some_and(|source| source.is::<OtherKeys>())
    }

    /// Returns `what` and the cause on one line.
    pub fn line(&self) -> String {
        match &self.source {
            Some(source) => format!("{}: {source}", self.what),
            None => self.what.clone(),
        }
    }

    /// Returns the exit code of a run that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::Usage => 2,
            ErrorKind::Corrupt => 4,
            _ => 1,
        }
    }
}

/// The cause of a clone is its text.
impl Clone for Error {
    fn clone(&self) -> Self {
        let source = self.source.as_ref().map(|source| source.to_string().into());
        Self {
            kind: self.kind,
            what: self.what.clone(),
            detail: self.detail.clone(),
            hint: self.hint.clone(),
            source,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|s| &**s as _)
    }
}

/// Returns the system's text for an error, without Rust's "(os error N)".
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => text.to_owned(),
    }
}

/// A system error that is printed with the system's text.
#[derive(Debug)]
struct Reason(io::Error);
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&reason(&self.0))
    }
}
impl std::error::Error for Reason {}

/// Returns a name in quotes for messages; bytes that are not UTF-8 are replaced.
pub fn quoted(name: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(name))
}

/// Returns text of another host on one line: control characters are escaped, so that a part of it
/// cannot look like a line of this program.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}
