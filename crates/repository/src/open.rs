//! Finds the backup that a user names, and lists the backups of a repository.

use super::{
    annotations::Annotations,
    exact::pick_exactly,
    protocol::is_dead,
    roots::{self, BackupFiles, BackupState, backup_files, key},
    scan::lost_roots,
    select::BackupFilter,
    selector::{BackupSelector, LATEST},
};
use crate::archive::Archive;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{self, Repository, is_backup_id},
    root::{FORMAT, Root, is_void},
    seal::open_sealed,
};
use fullbore_platform::{queue::run_each, write::is_in_the_way};
use fullbore_storage::{
    Found, Location, Objects, Storages,
    foreign_words::{foreign_hint, looks_foreign},
    repository_around,
};
use jiff::Zoned;
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Backups that an error lists.
const LISTED: usize = 5;

pub enum OpenedFrom {
    /// A backup that fullbore wrote.
    Backup(Box<Archive>),
    /// A file that another program wrote, perhaps a tar.
    Foreign(PathBuf),
}

/// Opens `FROM[@BACKUP]` as a backup.
///
/// FROM is a repository or an archive file. BACKUP is what [`BackupSelector`] knows;
/// without BACKUP it is the latest backup that `filter` selects. A path that contains an `@` itself
/// works as long as it exists.
///
/// # Errors
/// [`ErrorKind::NotFound`], [`ErrorKind::Usage`] if several backups match or the repository has
/// several sources,
/// [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`], or an error of the system.
pub fn open(
    storages: &Storages,
    source: impl AsRef<OsStr>,
    filter: &BackupFilter,
) -> Result<Archive> {
    match open_any(storages, source.as_ref(), filter)? {
        OpenedFrom::Backup(archive) => Ok(*archive),
        OpenedFrom::Foreign(path) => {
            let message = format!("cannot read {path:?}: it is not an archive of fullbore");
            Err(Error::new(ErrorKind::Unsupported, message)
                .because(".tar.gz and .tar are plain streams, without a manifest")
                .hint("`fullbore list`, `verify` and `restore` take any tar, as a stream"))
        }
    }
}

/// As [`open`], but accepts any file.
///
/// # Errors
/// As [`open`].
pub fn open_any(storages: &Storages, source: &OsStr, filter: &BackupFilter) -> Result<OpenedFrom> {
    // Every caller jumps between root, pages and frames, which a pipe cannot do.
    if source == "-" {
        return Err(Error::new(ErrorKind::Usage, "this command needs random access and cannot read from standard input").hint(
            "put it into a file; `fullbore list`, `show`, `verify` and `restore` take a stream; \"./-\" is a file",
        ));
    }
    let (location, backup) = place(source)?;
    let path = match location.as_local() {
        Some(path) if !is_directory(&location) => path.to_owned(),
        _ => {
            let archive = open_in(&storages.objects(&location)?, backup, filter)?;
            return Ok(OpenedFrom::Backup(Box::new(archive)));
        }
    };
    not_inside(&path)?;
    let archive = Archive::open_file(storages, &path)?;
    match (archive, backup) {
        (Some(archive), Some(id)) if !archive.root.id.starts_with(id) && id != LATEST => {
            let message = format!(
                "could not find backup {id:?} in {path:?}: the archive holds {:?}",
                archive.root.id
            );
            Err(Error::new(ErrorKind::NotFound, message))
        }
        (Some(archive), _) => {
            filter.check(&archive.root)?;
            Ok(OpenedFrom::Backup(Box::new(archive)))
        }
        (None, _) => {
            filter.must_be_empty(source)?;
            Ok(OpenedFrom::Foreign(path))
        }
    }
}

/// Opens a backup of a repository: the named one, or the latest that `filter` selects.
///
/// # Errors
/// As [`open`].
pub fn open_in(
    objects: &Arc<dyn Objects>,
    backup: Option<&str>,
    filter: &BackupFilter,
) -> Result<Archive> {
    let repository = read_repository(&**objects)?;
    let mut archive = open_backup(objects, &pick(objects, backup, filter)?)?;
    archive.repository = repository.id;
    // Damaged annotations must not prevent a restore.
    if let Ok(notes) = Annotations::read(&**objects, &archive.root.id) {
        notes.apply(&mut archive.root);
    }
    filter.check(&archive.root)?;
    Ok(archive)
}

/// A file of a repository is no archive by itself.
fn not_inside(path: &Path) -> Result<()> {
    match repository_around(path) {
        None => Ok(()),
        Some(repository) => Err(Error::new(
            ErrorKind::Usage,
            format!("cannot read {path:?}: it is part of a repository"),
        )
        .hint(format!("name the repository, {repository:?}"))),
    }
}

/// Returns whether the location is a repository, or a directory that may be one.
fn is_directory(location: &Location) -> bool {
    matches!(location.look(), Found::Repository | Found::Directory)
}

/// Returns the repository and the id that `FROM[@BACKUP]` means for a command that changes the backup, and reads no object of it.
///
/// # Errors
/// As [`open`] and [`pick_exactly`]; [`ErrorKind::Usage`] if FROM is a file.
pub fn locate(
    storages: &Storages,
    source: &OsStr,
    filter: &BackupFilter,
) -> Result<(Arc<dyn Objects>, String)> {
    let (location, backup) = place(source)?;
    if !is_directory(&location) {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("cannot use {location}: it is not a repository"),
        ));
    }
    let objects = storages.objects(&location)?;
    read_repository(&*objects)?;
    let id = pick_exactly(&objects, backup, filter)?;
    Ok((objects, id))
}

/// Returns whether FROM is a repository without `@BACKUP`.
pub fn is_repository(source: &OsStr) -> bool {
    Location::parse(source).is_ok_and(|location| location.is_repository()) && !names_backup(source)
}

/// Returns whether a URL ends in `@BACKUP`. Every command reads it so, and none makes a repository there; a `/` at the end
/// of the URL makes the `@` a part of the name.
pub fn names_backup(source: &OsStr) -> bool {
    let is_url = Location::parse(source).is_ok_and(|location| location.as_local().is_none());
    is_url && parts_of_url(source).is_some()
}

/// Returns the location of FROM, and the backup named in it.
///
/// # Errors
/// [`ErrorKind::NotFound`].
pub fn place(source: &OsStr) -> Result<(Location, Option<&str>)> {
    let whole = Location::parse(source)?;
    if whole.as_local().is_none() {
        return match parts_of_url(source) {
            Some((url, backup)) => Ok((Location::parse(url)?, Some(backup))),
            None => Ok((whole, None)),
        };
    }
    // A path that exists as it is written wins: `@` is a legal character in names.
    if whole.look() != Found::Nothing {
        return Ok((whole, None));
    }
    let split = parts(source).map(|(path, backup)| (Location::Local(path.to_owned()), backup));
    match split {
        Some((location, backup)) if location.look() != Found::Nothing => {
            Ok((location, Some(backup)))
        }
        split => {
            let hint = not_found_hint(&whole);
            let location = split.map_or(whole, |(location, _)| location);
            Err(Error::new(ErrorKind::NotFound, format!("could not find {location}")).hint(hint))
        }
    }
}

fn not_found_hint(location: &Location) -> String {
    match location.as_local() {
        Some(path) if looks_foreign(path) => foreign_hint(path),
        Some(path) if path.to_string_lossy().contains("::") => {
            "a backup is chosen with @, as in REPO@latest".to_owned()
        }
        _ => "is its disk mounted? REPO is a repository directory or an archive file; @BACKUP picks a backup of a repository"
            .to_owned(),
    }
}

/// Returns FROM without its `@BACKUP`.
pub fn without_backup(source: &OsStr) -> &OsStr {
    match (place(source), parts(source)) {
        (Ok((_, Some(_))), Some((path, _))) => path.as_os_str(),
        _ => source,
    }
}

/// Returns the URL and the backup in `URL@BACKUP`. An `@` before the last slash belongs to the
/// host.
fn parts_of_url(source: &OsStr) -> Option<(&OsStr, &str)> {
    let (url, backup) = parts(source)?;
    (!backup.contains('/')).then_some((url.as_os_str(), backup))
}

/// Returns the path and the backup in `PATH@BACKUP`. A path may have any bytes, an id is text.
pub fn parts(source: &OsStr) -> Option<(&Path, &str)> {
    let bytes = source.as_bytes();
    let position = bytes.iter().rposition(|byte| *byte == b'@')?;
    let backup = std::str::from_utf8(&bytes[position + 1..]).ok()?;
    Some((Path::new(OsStr::from_bytes(&bytes[..position])), backup))
}

/// Returns `REPOSITORY@BACKUP`.
pub fn named(repository: impl AsRef<OsStr>, backup: impl AsRef<OsStr>) -> OsString {
    [repository.as_ref(), OsStr::new("@"), backup.as_ref()]
        .into_iter()
        .collect()
}

/// Returns the id of the wanted backup: the named one, or the latest that `filter` selects.
pub fn pick(
    objects: &Arc<dyn Objects>,
    backup: Option<&str>,
    filter: &BackupFilter,
) -> Result<String> {
    let Some(wanted) = backup else {
        return filter.latest(objects);
    };
    let wanted = match BackupSelector::parse(wanted, &Zoned::now()) {
        BackupSelector::Id(_) => wanted,
        selector => return filter.choose(objects, &selector),
    };
    // One request is enough for a whole id.
    if is_backup_id(wanted) && is_listed(&**objects, wanted)? {
        return Ok(wanted.to_owned());
    }
    let ids = backup_ids(&**objects)?;
    let lost = lost_roots(objects)?
        .into_iter()
        .rfind(|lost| lost.starts_with(wanted));
    match (one_of(&ids, wanted, &**objects), lost) {
        (Err(error), Some(lost)) if error.kind == ErrorKind::NotFound => {
            Err(lost_root(&format!("the root of backup {lost:?} is lost")))
        }
        (picked, _) => picked,
    }
}

/// Returns whether a root exists, readable or not. A void root does not count.
fn is_listed(objects: &dyn Objects, id: &str) -> Result<bool> {
    use fullbore_format::root::VOID_ROOT_BYTES;
    match objects.stat(&key(id, layout::ROOT)) {
        Ok(Some(VOID_ROOT_BYTES)) => Ok(roots::state(objects, id)? == Some(BackupState::Listed)),
        Ok(bytes) => Ok(bytes.is_some()),
        Err(error) if error.kind == ErrorKind::Corrupt => Ok(true),
        Err(error) => Err(error),
    }
}

/// The error of a backup whose root is lost.
pub(super) fn lost_root(message: &str) -> Error {
    Error::corrupt(message)
        .hint("`fullbore repair` rebuilds it, or tells you what else to do; @BACKUP selects another backup")
}

pub(super) const ROOT_DAMAGED: &str = "`fullbore repair` rebuilds it, or tells you what else to do; `fullbore list` shows other backups for @BACKUP";

/// Opens a backup of a repository; a damaged root gets a hint.
fn open_backup(objects: &Arc<dyn Objects>, id: &str) -> Result<Archive> {
    Archive::open_backup(objects, id).map_err(|error| match error.kind {
        ErrorKind::Corrupt => error.hint(ROOT_DAMAGED),
        _ => error,
    })
}

/// Returns the only id among `ids` that `wanted` means, in full, as a prefix or by the letters behind the time.
///
/// # Errors
/// [`ErrorKind::NotFound`](fullbore_format::error::ErrorKind::NotFound), or [`ErrorKind::Usage`](fullbore_format::error::ErrorKind::Usage) if several match.
pub(super) fn one_of(ids: &[String], wanted: &str, objects: &dyn Objects) -> Result<String> {
    if wanted.is_empty() {
        return Err(Error::new(
            ErrorKind::Usage,
            "cannot tell which backup is meant: its id is empty",
        )
        .hint("give the beginning of an id, `latest`, or a time such as 2026-11-25 or 2d; `fullbore list` shows all of them"));
    }
    // The letters behind the time are enough, too.
    let found: Vec<&String> = ids
        .iter()
        .filter(|id| {
            let letters = id.split_once('-').map_or("", |(_, letters)| letters);
            id.starts_with(wanted) || letters.starts_with(wanted)
        })
        .collect();
    match found[..] {
        [id] => Ok(id.clone()),
        [] => Err(none_found(objects, wanted, ids)?),
        _ => Err(several_found(wanted, &found)),
    }
}

fn none_found(objects: &dyn Objects, wanted: &str, ids: &[String]) -> Result<Error> {
    let repository = objects.describe("");
    if let Some(id) = cut_off_ids(objects)?
        .into_iter()
        .find(|id| id.starts_with(wanted))
    {
        let message = format!(
            "could not find backup {wanted:?} in {repository}: {id:?} was interrupted and is incomplete"
        );
        return Ok(Error::new(ErrorKind::NotFound, message).hint(GOES_ON));
    }
    let Some(last) = ids.last() else {
        return no_backup(objects);
    };
    let known_ids = if ids.len() == 1 {
        "1 backup".to_owned()
    } else {
        format!("{} backups", ids.len())
    };
    Ok(Error::new(
        ErrorKind::NotFound,
        format!("could not find backup {wanted:?} in {repository}"),
    )
    .detail(format!("it holds {known_ids}, the last is {last:?}"))
    .hint("`fullbore list` shows all of them"))
}

/// The hint for an interrupted backup.
const GOES_ON: &str =
    "only completed backups can be used; the next `fullbore backup` of this source resumes it";

/// Returns whether a repository holds no backup, not even one with an unreadable root.
///
/// # Errors
/// Errors of the storage.
pub fn holds_none(objects: &dyn Objects) -> Result<bool> {
    Ok(backup_ids(objects)?.is_empty())
}

/// The error of a repository that holds no backup.
///
/// # Errors
/// Errors of the storage.
pub fn no_backup(objects: &dyn Objects) -> Result<Error> {
    let none = Error::new(
        ErrorKind::NotFound,
        format!(
            "could not find a backup: {} holds none",
            objects.describe("")
        ),
    );
    let cut_off = cut_off_ids(objects)?;
    if cut_off.is_empty() {
        return Ok(none.hint("only completed backups can be used; `fullbore backup` makes one"));
    }
    Ok(cut_off
        .iter()
        .take(LISTED)
        .map(|id| format!("{id:?} was interrupted and is incomplete"))
        .fold(none, Error::detail)
        .hint(GOES_ON))
}

fn several_found(wanted: &str, found: &[&String]) -> Error {
    let message = format!(
        "backup {wanted:?} is ambiguous: {} backups have this prefix",
        found.len()
    );
    let few = found.iter().take(LISTED).map(|id| id.as_str());
    let error = few.fold(Error::new(ErrorKind::Usage, message), Error::detail);
    let more = found.len().saturating_sub(LISTED);
    let error = if more > 0 {
        error.detail(format!("and {more} more"))
    } else {
        error
    };
    error.hint("give more letters of the id")
}

/// Reads the file that makes a directory a repository.
///
/// # Errors
/// [`ErrorKind::NotFound`] if it does not exist, [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`] if it is newer
/// than this program.
pub fn read_repository(objects: &dyn Objects) -> Result<Repository> {
    let bytes = match objects.get(layout::REPOSITORY) {
        Ok(Some((bytes, _))) => bytes,
        Ok(None) => return Err(no_repository(objects)),
        Err(error) if error.system().is_some_and(is_in_the_way) => {
            return Err(no_repository(objects));
        }
        Err(error) => return Err(error),
    };
    let repository = parse_repository(&bytes, &objects.describe(layout::REPOSITORY))?;
    if repository.format > FORMAT {
        let message = format!(
            "cannot read {}: it has format {}, this program knows up to {FORMAT}",
            objects.describe(""),
            repository.format
        );
        return Err(Error::new(ErrorKind::Unsupported, message).hint("use a newer fullbore"));
    }
    // Only after the format is known to be ours: the check speaks of directories of a repository.
    if let Some(local) = objects.as_local() {
        local.check_backups_link()?;
    }
    Ok(repository)
}

/// The hint for a damaged repository file.
const REPAIRED: &str = "`fullbore repair` rebuilds it from the backups";

/// Parses the file `name` that makes a directory a repository.
pub(super) fn parse_repository(bytes: &[u8], name: &str) -> Result<Repository> {
    open_sealed(bytes, name).map_err(|error| match error.kind {
        ErrorKind::Corrupt => error.hint(REPAIRED),
        _ => error,
    })
}

/// The error of a place without the repository file.
pub(super) fn no_repository(objects: &dyn Objects) -> Error {
    let name = objects.describe("");
    if roots::ids(objects).is_ok_and(|backups| !backups.is_empty()) {
        let message = format!(
            "cannot read {name}: its file {:?} is missing",
            layout::REPOSITORY
        );
        return Error::new(ErrorKind::NotFound, message)
            .because("there are backups in it")
            .hint(REPAIRED);
    }
    let none = Error::new(
        ErrorKind::NotFound,
        format!("cannot read {name}: it is not a repository"),
    );
    let place = match objects.as_local() {
        Some(local) => local.root().as_os_str().to_owned(),
        None => OsString::from(name.trim_matches('"')),
    };
    // In a bucket `@` is common in names: only what looks like a backup is taken for one.
    let is_cloud = objects.as_local().is_none();
    let named = parts(&place).filter(|(_, id)| !is_cloud || is_backup_id(id) || *id == LATEST);
    none.hint(
        match named.filter(|(repository, _)| is_repository(repository.as_os_str())) {
            Some((repository, id)) => {
                format!("this takes a repository, {repository:?}, and {id:?} by itself")
            }
            None if is_bare(objects) => "is its disk mounted? there is nothing here".to_owned(),
            None => format!(
                "a repository has a file {:?}; a directory of files is not a backup",
                layout::REPOSITORY
            ),
        },
    )
}

/// Returns whether there is no local directory, or an empty one: the place where a disk is mounted is one.
fn is_bare(objects: &dyn Objects) -> bool {
    let Some(local) = objects.as_local() else {
        return false;
    };
    local
        .root()
        .read_dir()
        .map_or(true, |mut names| names.next().is_none())
}

/// Returns the ids of all committed backups, oldest first, even those with an unreadable root.
pub fn backup_ids(objects: &dyn Objects) -> Result<Vec<String>> {
    ids_in_state(objects, BackupState::Listed)
}

fn ids_in_state(objects: &dyn Objects, state: BackupState) -> Result<Vec<String>> {
    Ok(ids_of(&backup_files(objects)?, state))
}

/// Returns the ids of the backups of a listing that are in a state, oldest first.
pub fn ids_of(files: &BTreeMap<String, BackupFiles>, state: BackupState) -> Vec<String> {
    let ids = files
        .iter()
        .filter(|(_, files)| files.state() == Some(state));
    ids.map(|(id, _)| id.clone()).collect()
}

/// Returns the partial roots of the interrupted backups of a listing, oldest first.
pub fn cut_off(objects: &dyn Objects, files: &BTreeMap<String, BackupFiles>) -> Vec<Root> {
    let mut ids = ids_of(files, BackupState::Partial);
    ids.retain(|id| is_dead(objects, id));
    // A damaged partial root is of no use; and a concurrent prune may have forgotten it.
    ids.iter()
        .filter_map(|id| {
            let (bytes, _) = objects.get(&key(id, layout::PARTIAL)).ok()??;
            Root::open(&bytes, layout::PARTIAL).ok()
        })
        .collect()
}

/// Returns the ids of interrupted backups that can be resumed, oldest first.
pub(super) fn cut_off_ids(objects: &dyn Objects) -> Result<Vec<String>> {
    let mut ids = ids_in_state(objects, BackupState::Partial)?;
    ids.retain(|id| is_dead(objects, id));
    Ok(ids)
}

/// Returns the roots of all backups of a repository, oldest first. They are read on demand, a few
/// ahead. A root that cannot be read is returned as its error.
///
/// # Errors
/// As [`read_repository`], or errors of the storage.
pub fn list_backups(
    objects: &Arc<dyn Objects>,
) -> Result<impl Iterator<Item = (String, Result<Root>)> + use<>> {
    read_repository(&**objects)?;
    Ok(listed_roots(objects, backup_ids(&**objects)?))
}

/// Returns the roots of these backups, as [`list_backups`] does.
pub fn listed_roots(
    objects: &Arc<dyn Objects>,
    ids: Vec<String>,
) -> impl Iterator<Item = (String, Result<Root>)> + use<> {
    let batches: Vec<Vec<String>> = ids
        .chunks(roots::at_once(&**objects))
        .map(<[String]>::to_vec)
        .collect();
    let objects = objects.clone();
    batches
        .into_iter()
        .flat_map(move |ids| read_roots(&*objects, ids))
}

/// Backups that were forgotten since the listing are left out.
fn read_roots(objects: &dyn Objects, ids: Vec<String>) -> Vec<(String, Result<Root>)> {
    let read = run_each(&ids, |id| read_root(objects, id));
    let pairs = ids.into_iter().zip(read);
    pairs
        .filter_map(|(id, root)| Some((id, root.transpose()?)))
        .collect()
}

fn read_root(objects: &dyn Objects, id: &str) -> Result<Option<Root>> {
    let key = key(id, layout::ROOT);
    match objects.get(&key)? {
        Some((bytes, _)) if !is_void(&bytes) => {
            Root::of_backup(id, &bytes, &objects.describe(&key)).map(Some)
        }
        _ => Ok(None),
    }
}
