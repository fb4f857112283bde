//! Find the backup that a person means, and the backups there are.

use super::{annotations::Annotations, scan::lost_roots, select::BackupFilter, writer::is_dead};
use crate::{
    archive::Archive,
    error::{Error, ErrorKind, Result},
    format::{
        layout::{self, Repository},
        root::{FORMAT, Root},
        seal::{MAX_BYTES, open_sealed},
    },
    platform::{self, safe_file, write::is_in_the_way},
};
use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

/// The word for the last backup of a source.
pub const LATEST: &str = "latest";
/// Backups that an error lists.
const LISTED: usize = 5;

/// What FROM turned out to be.
pub enum OpenedFrom {
    /// A backup of ours.
    Backup(Box<Archive>),
    /// A file that some other program wrote, perhaps a tar.
    Foreign(PathBuf),
}

/// Open `FROM[@BACKUP]` as a backup.
///
/// FROM is a repository or an archive file; BACKUP an id, the beginning of one, or `latest`, which is also what is meant
/// if it is missing: the latest that `filter` selects. A path that has an `@` itself works as long as it exists.
///
/// # Errors
/// [`ErrorKind::NotFound`], [`ErrorKind::Usage`] if several backups are meant or the latest is not of the only source,
/// [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`], or the system's.
pub fn open(from: impl AsRef<OsStr>, filter: &BackupFilter) -> Result<Archive> {
    match open_any(from.as_ref(), filter)? {
        OpenedFrom::Backup(archive) => Ok(*archive),
        OpenedFrom::Foreign(path) => {
            let what = format!("cannot read {path:?}: it is no archive that this program wrote");
            Err(Error::new(ErrorKind::Unsupported, what)
                .because(".tar.gz and .tar are plain streams, without a manifest")
                .hint("`fullbore list`, `verify` and `restore` take any tar, as a stream"))
        }
    }
}

/// As [`open`], but any file is taken.
///
/// # Errors
/// As [`open`].
pub fn open_any(from: &OsStr, filter: &BackupFilter) -> Result<OpenedFrom> {
    if from == "-" {
        return Err(Error::new(ErrorKind::Usage, "cannot do this to standard input: it is read in places").hint(
            "put it into a file; `fullbore list`, `show`, `verify` and `restore` take a stream; \"./-\" is a file",
        ));
    }
    let (path, backup) = place(from)?;
    if path.is_dir() {
        let repository = read_repository(&path)?;
        let mut archive = open_backup(&path, &pick(&path, backup, filter)?)?;
        archive.repository = repository.id;
        // Damage to notes must not keep anybody from a restore.
        if let Ok(notes) = Annotations::read(&path, &archive.root.id) {
            notes.apply(&mut archive.root);
        }
        filter.check(&archive.root)?;
        return Ok(OpenedFrom::Backup(Box::new(archive)));
    }
    not_inside(&path)?;
    let archive = Archive::open_file(&path)?;
    match (archive, backup) {
        (Some(archive), Some(id)) if !archive.root.id.starts_with(id) && id != LATEST => {
            let what = format!(
                "could not find backup {id:?} in {path:?}: the archive holds {:?}",
                archive.root.id
            );
            Err(Error::new(ErrorKind::NotFound, what))
        }
        (Some(archive), _) => {
            filter.check(&archive.root)?;
            Ok(OpenedFrom::Backup(Box::new(archive)))
        }
        (None, _) => {
            filter.must_be_empty(from)?;
            Ok(OpenedFrom::Foreign(path))
        }
    }
}

/// A file of a repository is no archive by itself.
fn not_inside(path: &Path) -> Result<()> {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match whole
        .ancestors()
        .nth(3)
        .filter(|dir| dir.join(layout::REPOSITORY).is_file())
    {
        None => Ok(()),
        Some(repository) => Err(Error::new(
            ErrorKind::Usage,
            format!("cannot read {path:?}: it is a part of a repository"),
        )
        .hint(format!("name the repository, {repository:?}"))),
    }
}

/// The repository and the id that `FROM[@BACKUP]` means; nothing of the backup is read.
///
/// # Errors
/// As [`open`]; [`Kind::Usage`] if FROM is a file.
pub fn locate(from: &OsStr, filter: &BackupFilter) -> Result<(PathBuf, String)> {
    let (path, backup) = place(from)?;
    if !path.is_dir() {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("cannot do this to {path:?}: it is no repository"),
        ));
    }
    read_repository(&path)?;
    let id = pick(&path, backup, filter)?;
    Ok((path, id))
}

/// What can be forgotten whose id is, or begins with, `id`: a backup, or what is left of one that was cut off or has lost its
/// root.
///
/// # Errors
/// [`Kind::NotFound`], or [`Kind::Usage`] if several are meant.
pub fn forgettable(repository: &Path, id: &str, filter: &BackupFilter) -> Result<String> {
    if id == LATEST {
        return filter.latest(repository);
    }
    let dir = repository.join(layout::BACKUPS);
    let mut ids = directories(repository)?;
    ids.retain(|id| {
        let has = |file| may_be_there(&dir.join(id).join(file));
        has(layout::ROOT) || has(layout::PARTIAL) || !has(layout::FORGOTTEN)
    });
    one_of(&ids, id, repository)
}

/// Is FROM a repository, with no backup of it named?
pub fn is_repository(from: &OsStr) -> bool {
    from != "-" && Path::new(from).join(layout::REPOSITORY).is_file()
}

/// Where FROM is, and which backup of it.
///
/// # Errors
/// [`Kind::NotFound`].
pub fn place(from: &OsStr) -> Result<(PathBuf, Option<&str>)> {
    let whole = Path::new(from);
    if may_be_there(whole) {
        return Ok((whole.to_owned(), None));
    }
    match parts(from) {
        Some((path, backup)) if may_be_there(path) => Ok((path.to_owned(), Some(backup))),
        parts => {
            let path = parts.map_or(whole, |(path, _)| path);
            Err(Error::new(ErrorKind::NotFound, format!("could not find {path:?}"))
                .hint("FROM is a repository directory or an archive file; @BACKUP picks a backup of a repository"))
        }
    }
}

/// The path and the backup in `PATH@BACKUP`. A path is of any bytes, an id is text.
pub fn parts(from: &OsStr) -> Option<(&Path, &str)> {
    let bytes = from.as_bytes();
    let at = bytes.iter().rposition(|byte| *byte == b'@')?;
    let backup = std::str::from_utf8(&bytes[at + 1..]).ok()?;
    Some((Path::new(OsStr::from_bytes(&bytes[..at])), backup))
}

/// `REPOSITORY@BACKUP`.
pub fn named(repository: impl AsRef<OsStr>, backup: impl AsRef<OsStr>) -> OsString {
    [repository.as_ref(), OsStr::new("@"), backup.as_ref()]
        .into_iter()
        .collect()
}

/// The id of the backup that is meant: the latest that `filter` selects, or the one that is named.
pub(super) fn pick(
    repository: &Path,
    backup: Option<&str>,
    filter: &BackupFilter,
) -> Result<String> {
    let Some(wanted) = backup.filter(|wanted| *wanted != LATEST) else {
        return filter.latest(repository);
    };
    let ids = backup_ids(repository)?;
    let lost = lost_roots(repository)?
        .into_iter()
        .rfind(|lost| lost.starts_with(wanted));
    match (one_of(&ids, wanted, repository), lost) {
        (Err(error), Some(lost)) if error.kind == ErrorKind::NotFound => {
            Err(lost_root(&format!("the root of backup {lost:?} is lost")))
        }
        (picked, _) => picked,
    }
}

/// The error of a backup whose root is lost.
pub(super) fn lost_root(what: &str) -> Error {
    Error::corrupt(what)
        .hint("`fullbore repair` makes it anew, or says what else to do; @BACKUP names another")
}

/// What to do about a damaged root.
pub(super) const ROOT_DAMAGED: &str = "`fullbore repair` makes it anew, or says what else to do; `fullbore list` shows others for @BACKUP";

/// Open a backup of a repository; if its root is damaged, say what is to be done about that.
fn open_backup(repository: &Path, id: &str) -> Result<Archive> {
    Archive::open_backup(repository, id).map_err(|error| match error.kind {
        ErrorKind::Corrupt => error.hint(ROOT_DAMAGED),
        _ => error,
    })
}

fn one_of(ids: &[String], wanted: &str, repository: &Path) -> Result<String> {
    if wanted.is_empty() {
        return Err(Error::new(
            ErrorKind::Usage,
            "cannot tell which backup is meant: its id is empty",
        )
        .hint("give the beginning of an id, or `latest`; `fullbore list` shows all of them"));
    }
    let found: Vec<&String> = ids.iter().filter(|id| id.starts_with(wanted)).collect();
    match found[..] {
        [id] => Ok(id.clone()),
        [] => Err(none_found(repository, wanted, ids)?),
        _ => Err(several_found(wanted, &found)),
    }
}

fn none_found(repository: &Path, wanted: &str, ids: &[String]) -> Result<Error> {
    if let Some(id) = cut_off_ids(repository)?
        .into_iter()
        .find(|id| id.starts_with(wanted))
    {
        let what = format!(
            "could not find backup {wanted:?} in {repository:?}: {id:?} was cut off, and so is no backup"
        );
        return Ok(Error::new(ErrorKind::NotFound, what).hint(GOES_ON));
    }
    let Some(last) = ids.last() else {
        return no_backup(repository);
    };
    let there = if ids.len() == 1 {
        "1 backup".to_owned()
    } else {
        format!("{} backups", ids.len())
    };
    Ok(Error::new(
        ErrorKind::NotFound,
        format!("could not find backup {wanted:?} in {repository:?}"),
    )
    .detail(format!("it holds {there}, the last is {last:?}"))
    .hint("`fullbore list` shows all of them"))
}

/// What becomes of what is kept of a backup that was cut off.
const GOES_ON: &str = "a backup counts once it has ended well; the next `fullbore backup` of its source goes on from it";

/// Does a repository hold no backup, not even one whose root cannot be read?
///
/// # Errors
/// The system's.
pub fn holds_none(repository: &Path) -> Result<bool> {
    Ok(backup_ids(repository)?.is_empty())
}

/// What is to be said of a repository that holds no backup.
///
/// # Errors
/// The system's.
pub fn no_backup(repository: &Path) -> Result<Error> {
    let none = Error::new(
        ErrorKind::NotFound,
        format!("could not find a backup: {repository:?} holds none"),
    );
    let cut_off = cut_off_ids(repository)?;
    if cut_off.is_empty() {
        return Ok(none.hint("a backup counts once it has ended well; `fullbore backup` makes one"));
    }
    let line = |id: &String| format!("{id:?} was cut off, and so is no backup");
    Ok(cut_off
        .iter()
        .take(LISTED)
        .map(line)
        .fold(none, Error::detail)
        .hint(GOES_ON))
}

fn several_found(wanted: &str, found: &[&String]) -> Error {
    let what = format!(
        "cannot tell which backup {wanted:?} means: {} begin so",
        found.len()
    );
    let few = found.iter().take(LISTED).map(|id| id.as_str());
    let error = few.fold(Error::new(ErrorKind::Usage, what), Error::detail);
    let more = found.len().saturating_sub(LISTED);
    let error = if more > 0 {
        error.detail(format!("and {more} more"))
    } else {
        error
    };
    error.hint("give more letters of the id")
}

/// Read what makes `path` a repository.
///
/// # Errors
/// [`Kind::NotFound`] if it is none, [`Kind::Corrupt`], [`Kind::Unsupported`] if it is newer than this program.
pub fn read_repository(path: &Path) -> Result<Repository> {
    let file = path.join(layout::REPOSITORY);
    let bytes = safe_file::read(&file, MAX_BYTES).map_err(|e| match e.kind() {
        _ if is_in_the_way(&e) || e.kind() == io::ErrorKind::NotFound => no_repository(path),
        _ => Error::io(format!("could not read {file:?}"), e),
    })?;
    let repository = parse_repository(&bytes, &format!("{file:?}"))?;
    if repository.format > FORMAT {
        let what = format!(
            "cannot read {path:?}: it has format {}, this program knows up to {FORMAT}",
            repository.format
        );
        return Err(Error::new(ErrorKind::Unsupported, what).hint("use a newer fullbore"));
    }
    not_led_away(&path.join(layout::BACKUPS))?;
    Ok(repository)
}

/// `backups/` may be a link, of ours or root's, or of whom it leads to: nobody else leads root into another's directory.
pub(super) fn not_led_away(backups: &Path) -> Result<()> {
    let (Ok(link), Ok(symlink_target)) = (backups.symlink_metadata(), backups.metadata()) else {
        return Ok(());
    };
    if !link.is_symlink() || [0, platform::user().0, symlink_target.uid()].contains(&link.uid()) {
        return Ok(());
    }
    let what = format!(
        "cannot use {backups:?}: it is a link of user {} into a directory of user {}",
        link.uid(),
        symlink_target.uid()
    );
    Err(Error::new(ErrorKind::Permission, what).hint("chown -h the link, if it is to be followed"))
}

/// How a repository gets its own file again.
const REPAIRED: &str = "`fullbore repair` makes it anew, from what the backups say";

/// What the file `name` says that makes a directory a repository.
pub(super) fn parse_repository(bytes: &[u8], name: &str) -> Result<Repository> {
    open_sealed(bytes, name).map_err(|error| match error.kind {
        ErrorKind::Corrupt => error.hint(REPAIRED),
        _ => error,
    })
}

/// The error of a directory without the file that makes it a repository.
pub(super) fn no_repository(path: &Path) -> Error {
    match directories(path) {
        Ok(backups) if !backups.is_empty() => {
            let what = format!(
                "cannot read {path:?}: its file {:?} is missing",
                layout::REPOSITORY
            );
            Error::new(ErrorKind::NotFound, what)
                .because("backups are there")
                .hint(REPAIRED)
        }
        _ => {
            let none = Error::new(
                ErrorKind::NotFound,
                format!("cannot read {path:?}: it is no repository"),
            );
            let named = parts(path.as_os_str());
            none.hint(
                match named.filter(|(repository, _)| is_repository(repository.as_os_str())) {
                    Some((repository, id)) => {
                        format!("this takes a repository, {repository:?}, and {id:?} by itself")
                    }
                    None => format!(
                        "a repository has a file {:?}; a directory of files is no backup",
                        layout::REPOSITORY
                    ),
                },
            )
        }
    }
}

/// The names of all directories that have the name of a backup, ascending.
///
/// # Errors
/// The system's.
pub fn directories(repository: &Path) -> Result<Vec<String>> {
    let backups = repository.join(layout::BACKUPS);
    let failed = |e| Error::io(format!("could not list {backups:?}"), e);
    let entries = match std::fs::read_dir(&backups) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let names: Result<Vec<_>> = entries
        .map(|entry| Ok(entry.map_err(failed)?.file_name()))
        .collect();
    let names = names?
        .into_iter()
        .filter_map(|name| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| layout::is_backup_id(name)).collect();
    names.sort_unstable();
    Ok(names)
}

/// Is it there, or does the system not tell? An older backup must not be taken for the latest because of that.
pub(super) fn may_be_there(path: &Path) -> bool {
    path.metadata()
        .err()
        .is_none_or(|error| error.kind() != io::ErrorKind::NotFound && !is_in_the_way(&error))
}

/// The ids of all backups that were committed, oldest first; those that nobody can tell of, too.
pub(crate) fn backup_ids(repository: &Path) -> Result<Vec<String>> {
    let dir = repository.join(layout::BACKUPS);
    let mut ids = directories(repository)?;
    ids.retain(|id| may_be_there(&dir.join(id).join(layout::ROOT)));
    Ok(ids)
}

/// As far as they came, the backups that were cut off, oldest first.
///
/// # Errors
/// The system's.
pub fn cut_off(repository: &Path) -> Result<Vec<Root>> {
    let ids = cut_off_ids(repository)?;
    // One that is damaged is of no use to anybody; and another prune may have forgotten it.
    let partial = |id: &String| {
        repository
            .join(layout::BACKUPS)
            .join(id)
            .join(layout::PARTIAL)
    };
    let read = |id: &String| {
        Root::open(
            &safe_file::read(&partial(id), MAX_BYTES).ok()?,
            layout::PARTIAL,
        )
        .ok()
    };
    Ok(ids.iter().filter_map(read).collect())
}

/// The ids of backups that were cut off and left something to go on from, oldest first.
pub(super) fn cut_off_ids(repository: &Path) -> Result<Vec<String>> {
    let has = |id: &str, file| may_be_there(&repository.join(layout::BACKUPS).join(id).join(file));
    let mut ids = directories(repository)?;
    ids.retain(|id| has(id, layout::PARTIAL) && !has(id, layout::ROOT) && is_dead(repository, id));
    Ok(ids)
}

/// The roots of all backups of a repository, oldest first, each read when it is asked for. One that cannot be read is there too,
/// with the reason.
///
/// # Errors
/// As [`read_repository`], or the system's.
pub fn list_backups(repository: &Path) -> Result<impl Iterator<Item = (String, Result<Root>)>> {
    read_repository(repository)?;
    let read = |id: String| {
        let path = repository
            .join(layout::BACKUPS)
            .join(&id)
            .join(layout::ROOT);
        let bytes = safe_file::read(&path, MAX_BYTES)
            .map_err(|e| Error::io(format!("could not read {path:?}"), e));
        let root = bytes.and_then(|bytes| Root::of_backup(&id, &bytes, &format!("{path:?}")));
        (id, root)
    };
    let is_there = |(_, root): &(String, Result<Root>)| !matches!(root, Err(error) if error.kind == ErrorKind::NotFound);
    // What was forgotten since it was listed is not there.
    Ok(backup_ids(repository)?
        .into_iter()
        .map(read)
        .filter(is_there))
}
