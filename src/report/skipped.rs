//! What of a tar or a backup cannot be restored, and is no reason not to restore the rest. It is an error when all else is
//! there.

use crate::{
    error::{Error, ErrorKind, Result, quoted},
    format::entry::{self, EntryPath},
    platform::{is_shortage, write::is_failure_of_the_disk},
    queue::Locked,
    target::tree::TargetTree,
};
use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard},
};

/// Errors that are told one by one; of others there is a count.
const TOLD: usize = 10;

/// What is left out. From any thread.
#[derive(Debug, Default)]
pub(crate) struct SkippedEntries(Mutex<Left>);

#[derive(Debug, Default)]
struct Left {
    /// In archive order, so that the same restore tells the same whatever the number of workers.
    errors: Vec<(EntryPath, Error)>,
    others: u64,
    /// All that is not there. Grows with what is refused, and with nothing else.
    paths: HashSet<EntryPath>,
}

impl SkippedEntries {
    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.locked()
    }

    /// Leave out what is at `path`, for this error. Of several errors of one path the first is told.
    pub(crate) fn add(&self, path: &[u8], error: Error) {
        let mut left = self.left();
        if !left.paths.insert(path.to_vec()) {
            return;
        }
        let at = left
            .errors
            .partition_point(|(before, _)| entry::order(before, path).is_le());
        left.errors.insert(at, (path.to_vec(), error));
        if left.errors.len() > TOLD {
            left.errors.truncate(TOLD);
            left.others += 1;
        }
    }

    /// What was done, or `None`: an error that is of this `what` only is none of the run yet.
    pub(crate) fn unless<T>(
        &self,
        tree: &TargetTree,
        what: &str,
        path: &[u8],
        done: Result<T>,
    ) -> Result<Option<T>> {
        match done {
            Err(error) if is_of_one(&error) => {
                let why = error
                    .source
                    .as_ref()
                    .map_or_else(String::new, ToString::to_string);
                tree.notes.add(what, &why, path);
                self.add(path, error);
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// There is something at `path` after all: a tar may have another member of the same name.
    pub(crate) fn made(&self, path: &[u8]) {
        self.left().paths.remove(path);
    }

    /// Is what belongs at `path` left out?
    pub(crate) fn holds(&self, path: &[u8]) -> bool {
        self.left().paths.contains(path)
    }

    /// Is nothing?
    pub(crate) fn is_empty(&self) -> bool {
        self.left().errors.is_empty()
    }

    /// One error for all of them, if there are any; `of` is what the rest of is restored. It names the files that the restore made in
    /// `tree` and could not remove.
    pub(crate) fn into_error(self, of: &str, tree: &TargetTree) -> Option<Error> {
        let error = self.into_bare_error(of)?;
        Some(
            tree.notes
                .leftover_lines()
                .into_iter()
                .fold(error, Error::detail),
        )
    }

    fn into_bare_error(self, of: &str) -> Option<Error> {
        let Left { errors, others, .. } = self.0.opened();
        let told = errors.len();
        let mut errors = errors.into_iter().map(|(_, error)| error);
        let first = errors.next()?;
        let error = errors.fold(first, |error, other| error.detail(other.line()));
        let others = if others == 0 {
            String::new()
        } else {
            format!("and {others} others; ")
        };
        let are = if told == 1 { "it is" } else { "they are" };
        Some(error.detail(format!(
            "{others}{are} passed over; the rest of the {of} is restored"
        )))
    }
}

/// Is this error of writing about the one object, so that others can be expected to do better?
fn is_of_one(error: &Error) -> bool {
    let of_all = error
        .system()
        .is_some_and(|error| is_failure_of_the_disk(error) || is_shortage(error));
    !of_all
        && !matches!(
            error.kind,
            ErrorKind::Full | ErrorKind::Corrupt | ErrorKind::Bug
        )
}

/// A name, or what it is a hard link to, that leads out of the archive.
pub(crate) fn leads_out(name: &[u8]) -> Error {
    let what = format!(
        "cannot restore {}: its name, or what it is a hard link to, leads out of the archive",
        quoted(name)
    );
    Error::new(ErrorKind::Unsupported, what)
}

/// A hard link without its file: that was not asked for, or is not there.
pub(crate) fn alone(path: &[u8], target: &[u8], was_asked_for: bool) -> Error {
    match was_asked_for {
        true => no_link(
            path,
            target,
            "what it is a name of does not stand before it",
        ),
        false => {
            no_link(path, target, "what it is a name of was not asked for").hint("ask for both")
        }
    }
}

/// A hard link to what is left out. What stands at its place, if anything, is something else.
pub(crate) fn alone_too(path: &[u8], target: &[u8]) -> Error {
    no_link(path, target, "what it is a name of is left out")
}

fn no_link(path: &[u8], target: &[u8], why: &'static str) -> Error {
    let what = format!(
        "cannot restore {}, a hard link to {}",
        quoted(path),
        quoted(target)
    );
    Error::new(ErrorKind::NotFound, what).because(why)
}

/// A piece of a file, in a segment of an incremental backup.
pub(crate) fn piece(path: &[u8]) -> Error {
    let what = format!(
        "cannot restore {}: it is a piece of a file, as incremental backups have them",
        quoted(path)
    );
    Error::new(ErrorKind::Unsupported, what)
        .hint("restore the backup from its repository: it refers to what other backups hold, which is not in this tar")
}

/// A member that is no entry, and why it cannot be restored; `None` if it holds nothing of the tree: the label of a
/// volume, and what Solaris says of the next member.
pub(crate) fn unknown(name: &[u8], typeflag: u8) -> Option<(Error, &'static str)> {
    let why = match typeflag {
        b'V' | b'A' => return None,
        b'M' => "it is the rest of a file that begins on another volume",
        _ => "its type is not known",
    };
    let kind = char::from(typeflag);
    let what = format!(
        "cannot restore {}, a member of type {kind:?}: {why}",
        quoted(name)
    );
    Some((Error::new(ErrorKind::Unsupported, what), why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::io;

    fn error(path: &str, errno: Errno) -> Error {
        Error::io(format!("could not create {path:?}"), io::Error::from(errno))
    }

    #[test]
    fn what_is_of_one_entry_is_told_from_what_is_of_all() {
        for errno in [
            Errno::NOSYS,
            Errno::PERM,
            Errno::ILSEQ,
            Errno::INVAL,
            Errno::NAMETOOLONG,
            Errno::EXIST,
            Errno::FBIG,
        ] {
            assert!(is_of_one(&error("a", errno)), "{errno}");
        }
        let all = [
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::IO,
            Errno::ROFS,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
        ];
        for errno in all.into_iter().chain([Errno::NOTCONN, Errno::UCLEAN]) {
            assert!(!is_of_one(&error("a", errno)), "{errno}");
        }
        assert!(!is_of_one(&Error::corrupt("a frame is damaged")));
    }

    #[test]
    fn the_first_in_archive_order_are_told_whatever_the_order_in_which_they_come() {
        let told = |order: &mut dyn Iterator<Item = u32>| {
            let refused = SkippedEntries::default();
            order
                .map(|number| format!("f{number:02}"))
                .for_each(|path| {
                    refused.add(path.as_bytes(), error(&path, Errno::ILSEQ));
                    refused.add(path.as_bytes(), error("the same again", Errno::PERM));
                });
            assert!(refused.holds(b"f13") && !refused.holds(b"f15"));
            let error = refused.into_bare_error("backup").unwrap();
            (error.line(), error.detail)
        };
        let (first, detail) = told(&mut (0..15));
        assert!(first.starts_with("could not create \"f00\": "), "{first}");
        assert_eq!(detail.len(), TOLD);
        assert!(
            detail[TOLD - 2].starts_with("could not create \"f09\": "),
            "{detail:?}"
        );
        assert_eq!(
            detail[TOLD - 1],
            "and 5 others; they are passed over; the rest of the backup is restored"
        );
        assert_eq!(told(&mut (0..15).rev()), (first, detail));
        assert!(
            SkippedEntries::default()
                .into_bare_error("backup")
                .is_none()
        );
    }
}
