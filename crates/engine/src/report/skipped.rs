//! Entries of a tar or a backup that cannot be restored and do not stop the restore of the others.
//! They become an error at the end.

use fullbore_format::{
    entry::{self, EntryPath},
    error::{Error, ErrorKind, Result, quoted},
};
use fullbore_platform::{is_shortage, queue::Locked, write::is_disk_failure};
use fullbore_tree::write::tree::TargetTree;
use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard},
};

/// Maximum number of errors that are reported one by one; the others are counted.
const MAX_LISTED: usize = 10;

/// The skipped entries. Can be used from any thread.
#[derive(Debug, Default)]
pub(crate) struct SkippedEntries(Mutex<Left>);

#[derive(Debug, Default)]
struct Left {
    /// In archive order, so that the report does not depend on the number of workers.
    errors: Vec<(EntryPath, Error)>,
    others: u64,
    /// All skipped paths. Grows only with skipped entries.
    paths: HashSet<EntryPath>,
}

impl SkippedEntries {
    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.locked()
    }

    /// Skips the entry at `path` because of this error. Of several errors for one path the first is
    /// reported.
    pub(crate) fn add(&self, path: &[u8], error: Error) {
        let mut left = self.left();
        if !left.paths.insert(path.to_vec()) {
            return;
        }
        let position = left
            .errors
            .partition_point(|(before, _)| entry::order(before, path).is_le());
        left.errors.insert(position, (path.to_vec(), error));
        if left.errors.len() > MAX_LISTED {
            left.errors.truncate(MAX_LISTED);
            left.others += 1;
        }
    }

    /// Returns the result, or `None` if the error concerns only this object: then the object is
    /// skipped.
    pub(crate) fn skip_if_single<T>(
        &self,
        tree: &TargetTree,
        what: &str,
        path: &[u8],
        done: Result<T>,
    ) -> Result<Option<T>> {
        match done {
            Err(error) if concerns_one_object(&error) => {
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

    /// Records that `path` was restored after all: a tar may have another member of the same name.
    pub(crate) fn restored(&self, path: &[u8]) {
        self.left().paths.remove(path);
    }

    /// Returns whether the entry for `path` was skipped.
    pub(crate) fn contains(&self, path: &[u8]) -> bool {
        self.left().paths.contains(path)
    }

    /// Returns whether no entry was skipped.
    pub(crate) fn is_empty(&self) -> bool {
        self.left().errors.is_empty()
    }

    /// Returns one error for all skipped entries, if there are any; `of` names the archive or
    /// backup. It lists the files that the restore created in `tree` and could not remove.
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
            "{others}{are} skipped; the rest of the {of} is restored"
        )))
    }
}

/// Returns whether a write error concerns one object, so that others may succeed.
pub(crate) fn concerns_one_object(error: &Error) -> bool {
    let of_all = error
        .system()
        .is_some_and(|error| is_disk_failure(error) || is_shortage(error));
    !of_all
        && !matches!(
            error.kind,
            ErrorKind::Full | ErrorKind::Corrupt | ErrorKind::Bug
        )
}

/// Returns the error for a name or a hard link target that leads out of the archive.
pub(crate) fn name_leads_out(name: &[u8]) -> Error {
    let message = format!(
        "cannot restore {}: its name or its hard link target leads out of the archive",
        quoted(name)
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// Returns the error for a hard link whose file was not requested, or does not come before it.
pub(crate) fn link_without_file(path: &[u8], target: &[u8], was_asked_for: bool) -> Error {
    if was_asked_for {
        no_link(path, target, "its file does not come before it")
    } else {
        no_link(path, target, "its file was not requested").hint("request both")
    }
}

/// Returns the error for a hard link to a skipped file. An existing object at the file's path may
/// be a different one.
pub(crate) fn link_to_skipped_file(path: &[u8], target: &[u8]) -> Error {
    no_link(path, target, "its file was skipped")
}

fn no_link(path: &[u8], target: &[u8], why: &'static str) -> Error {
    let message = format!(
        "cannot restore {}, a hard link to {}",
        quoted(path),
        quoted(target)
    );
    Error::new(ErrorKind::NotFound, message).because(why)
}

/// Returns the error for a piece of a file, which a segment of an incremental backup holds.
pub(crate) fn piece_of_file(path: &[u8]) -> Error {
    let message = format!(
        "cannot restore {}: it is a piece of a file from an incremental backup",
        quoted(path)
    );
    Error::new(ErrorKind::Unsupported, message)
        .hint("restore the backup from its repository: it needs data of other backups, which is not in this tar")
}

/// Returns the error for a member that is not an entry, and the reason. Returns `None` for members
/// without an object: the label of a volume, and Solaris' attributes of the next member.
pub(crate) fn unknown_type(name: &[u8], typeflag: u8) -> Option<(Error, &'static str)> {
    let why = match typeflag {
        b'V' | b'A' => return None,
        b'M' => "it continues a file from another volume",
        _ => "its type is unknown",
    };
    let kind = char::from(typeflag);
    let message = format!(
        "cannot restore {}, a member of type {kind:?}: {why}",
        quoted(name)
    );
    Some((Error::new(ErrorKind::Unsupported, message), why))
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
    fn errors_of_one_entry_differ_from_errors_of_all() {
        for errno in [
            Errno::NOSYS,
            Errno::PERM,
            Errno::ILSEQ,
            Errno::INVAL,
            Errno::NAMETOOLONG,
            Errno::EXIST,
            Errno::FBIG,
        ] {
            assert!(concerns_one_object(&error("a", errno)), "{errno}");
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
            assert!(!concerns_one_object(&error("a", errno)), "{errno}");
        }
        assert!(!concerns_one_object(&Error::corrupt("a frame is damaged")));
    }

    #[test]
    fn the_first_errors_in_archive_order_are_reported_in_any_order_of_arrival() {
        let told = |order: &mut dyn Iterator<Item = u32>| {
            let refused = SkippedEntries::default();
            order
                .map(|number| format!("f{number:02}"))
                .for_each(|path| {
                    refused.add(path.as_bytes(), error(&path, Errno::ILSEQ));
                    refused.add(path.as_bytes(), error("the same again", Errno::PERM));
                });
            assert!(refused.contains(b"f13") && !refused.contains(b"f15"));
            let error = refused.into_bare_error("backup").unwrap();
            (error.line(), error.detail)
        };
        let (first, detail) = told(&mut (0..15));
        assert!(first.starts_with("could not create \"f00\": "), "{first}");
        assert_eq!(detail.len(), MAX_LISTED);
        assert!(
            detail[MAX_LISTED - 2].starts_with("could not create \"f09\": "),
            "{detail:?}"
        );
        assert_eq!(
            detail[MAX_LISTED - 1],
            "and 5 others; they are skipped; the rest of the backup is restored"
        );
        assert_eq!(told(&mut (0..15).rev()), (first, detail));
        assert!(
            SkippedEntries::default()
                .into_bare_error("backup")
                .is_none()
        );
    }
}
