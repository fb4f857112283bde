//! What we were doing, to what, why it failed, and what to try.

use std::{borrow::Cow, fmt, io};

/// The one error type.
#[derive(Debug)]
pub struct Error {
    /// What a caller may act on.
    pub kind: ErrorKind,
    /// One line, lower case, no full stop: `could not read "base/5/16384"`.
    pub what: String,
    /// Lines that add facts, printed indented below `what`.
    pub detail: Vec<String>,
    /// One sentence the operator can act on.
    pub hint: Option<Cow<'static, str>>,
    /// Why; printed once, after `what` and a colon, never repeated inside it.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What helps where there is no room.
const ROOM: &str = "free space or choose another place, and run the same command again; in a repository `fullbore forget` and \
                    `fullbore prune` free what old backups need";

/// What helps where a file system has room for content, and for no further file.
const INODES: &str = "remove files there that are not needed, or choose another place (`df -i` shows inodes), and run the same command \
                      again; in a repository `fullbore forget` and `fullbore prune` free what old backups need";

/// A file system has no inodes left: it takes no further file, though it may have space.
#[derive(Debug)]
pub struct NoInodes;

impl fmt::Display for NoInodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no inodes left on the file system, which may have space")
    }
}

impl std::error::Error for NoInodes {}

/// Does the error say so?
pub fn is_of_inodes(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NoInodes>())
}

/// What helps where the system gives no more memory.
pub const MEMORY: &str = "raise the limit of memory (`ulimit -v`, LimitAS= of a systemd unit), or use less --memory and fewer --workers";

/// What a caller may act on: the exit code and the retry policy follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The arguments cannot mean anything.
    Usage,
    /// Not there.
    NotFound,
    /// Removed on purpose since it was opened.
    Gone,
    /// Already there.
    Exists,
    /// Not allowed.
    Permission,
    /// No room.
    Full,
    /// Bytes differ from what was recorded.
    Corrupt,
    /// Written by a newer version, or a feature this build lacks; never said of damage.
    Unsupported,
    /// Worth trying again.
    Unreachable,
    /// The reader of our output went away.
    BrokenPipe,
    /// Any other failure of the system.
    System,
    /// A defect in this program.
    Bug,
}

/// Shorthand.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl ErrorKind {
    /// The kind of a system error.
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

    /// Is something stored not there, or not what was recorded? No other kind says anything of what is stored.
    pub fn is_loss(self) -> bool {
        matches!(self, Self::NotFound | Self::Corrupt)
    }
}

impl Error {
    /// A bare error.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            detail: Vec::new(),
            hint: None,
            source: None,
        }
    }

    /// A system error, with what was being done: `Error::io("could not read \"a\"", err)`.
    pub fn io(what: impl Into<String>, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        let kind = ErrorKind::of(&error);
        let hint = match error.kind() {
            _ if is_of_inodes(&error) => Some(INODES.into()),
            _ if kind == ErrorKind::Full => Some(ROOM.into()),
            io::ErrorKind::OutOfMemory => Some(MEMORY.into()),
            _ => None,
        };
        Self {
            source: Some(Box::new(Reason(error))),
            hint,
            ..Self::new(kind, what)
        }
    }

    /// Damage: bytes differ from what was recorded.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, what)
    }

    /// The same error with a sentence the operator can act on.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error with one more line of facts.
    #[must_use]
    pub fn detail(mut self, line: impl Into<String>) -> Self {
        self.detail.push(line.into());
        self
    }

    /// The same error with its cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The system's error, if that is its cause.
    pub fn system(&self) -> Option<&io::Error> {
        self.source
            .as_ref()?
            .downcast_ref()
            .map(|Reason(error)| error)
    }

    /// `what`, and why, on one line.
    pub fn line(&self) -> String {
        match &self.source {
            Some(source) => format!("{}: {source}", self.what),
            None => self.what.clone(),
        }
    }

    /// The exit code of a run that ended with this error.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::Usage => 2,
            ErrorKind::Corrupt => 4,
            _ => 1,
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

/// The system's words for an error, without Rust's "(os error N)".
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => text.to_owned(),
    }
}

/// An error of the system, in its own words.
#[derive(Debug)]
struct Reason(io::Error);
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&reason(&self.0))
    }
}
impl std::error::Error for Reason {}

/// A name in quotes, as messages show it; bytes that are not text are escaped.
pub fn quoted(name: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(name))
}
