//! What of a tar cannot be restored, and is no reason not to restore the rest. It is an error when all else is there.

use crate::{
    error::{Error, Kind, quoted},
    platform::{is_shortage, write::is_failure_of_the_disk},
};

/// Errors that are told one by one; of others there is a count.
const TOLD: usize = 10;

/// Members that are left out, in the order of the tar.
#[derive(Debug, Default)]
pub(super) struct Refused {
    errors: Vec<Error>,
    others: u64,
}

impl Refused {
    /// Leave out what this error is about.
    pub(super) fn add(&mut self, error: Error) {
        if self.errors.len() < TOLD {
            self.errors.push(error);
        } else {
            self.others += 1;
        }
    }

    /// One error for all of them, if there are any.
    pub(super) fn into_error(self) -> Option<Error> {
        let told = self.errors.len() as u64;
        let mut errors = self.errors.into_iter();
        let first = errors.next()?;
        let error = errors.fold(first, |error, other| error.detail(other.line()));
        let others = if self.others == 0 { String::new() } else { format!("and {} others; ", self.others) };
        let are = if told == 1 { "it is" } else { "they are" };
        Some(error.detail(format!("{others}{are} left out; the rest of the tar is restored")))
    }
}

/// Is this error of writing about the one object, so that others can be expected to do better?
pub(super) fn is_of_one(error: &Error) -> bool {
    let of_all = error.system().is_some_and(|error| is_failure_of_the_disk(error) || is_shortage(error));
    !of_all && !matches!(error.kind, Kind::Full | Kind::Corrupt | Kind::Bug)
}

/// A name, or what it is a hard link to, that leads out of the archive.
pub(super) fn leads_out(name: &[u8]) -> Error {
    let what =
        format!("cannot restore {}: its name, or what it is a hard link to, leads out of the archive", quoted(name));
    Error::new(Kind::Unsupported, what)
}

/// A hard link without its file: that was not asked for, or is not there.
pub(super) fn alone(path: &[u8], target: &[u8], was_asked_for: bool) -> Error {
    let what = format!("cannot restore {}, a hard link to {}", quoted(path), quoted(target));
    let error = Error::new(Kind::NotFound, what);
    match was_asked_for {
        true => error.because("what it is a name of does not stand before it"),
        false => error.because("what it is a name of was not asked for").hint("ask for both"),
    }
}

/// A piece of a file, in a segment of an incremental backup.
pub(super) fn piece(path: &[u8]) -> Error {
    let what = format!("cannot restore {}: it is a piece of a file, as incremental backups have them", quoted(path));
    Error::new(Kind::Unsupported, what)
        .hint("restore the backup from its repository: it refers to what other backups hold, which is not in this tar")
}

/// A member that is no entry, and why it cannot be restored; `None` if it holds nothing of the tree: the label of a
/// volume, and what Solaris says of the next member.
pub(super) fn unknown(name: &[u8], typeflag: u8) -> Option<(Error, &'static str)> {
    let why = match typeflag {
        b'V' | b'A' => return None,
        b'M' => "it is the rest of a file that begins on another volume",
        _ => "its type is not known",
    };
    let kind = char::from(typeflag);
    let what = format!("cannot restore {}, a member of type {kind:?}: {why}", quoted(name));
    Some((Error::new(Kind::Unsupported, what), why))
}
