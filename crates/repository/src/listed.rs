//! The backups of a repository, oldest first: their ids, and their roots.

use super::{
    protocol::is_dead,
    repository_file::read_repository,
    retention::span,
    roots::{BackupFiles, BackupState, backup_files, key},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout,
    root::{Root, is_void},
};
use fullbore_platform::queue::run_each;
use fullbore_storage::{Objects, at_once, whole_root};
use std::{collections::BTreeMap, sync::Arc};

/// Backups that an error lists.
const LISTED: usize = 5;

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
            let root = Root::open_as_stored(&bytes, layout::PARTIAL).ok()?;
            whole_root(objects, root, layout::PARTIAL).ok()
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
        .chunks(at_once(&**objects))
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
            let name = objects.describe(&key);
            let root = Root::of_backup_as_stored(id, &bytes, &name)?;
            whole_root(objects, root, &name).map(Some)
        }
        _ => Ok(None),
    }
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
    if let Some(error) = unclear_span(wanted) {
        return Err(error);
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

/// Returns the error of a time ago with the letter m alone, which is minutes in some options and months in others.
fn unclear_span(wanted: &str) -> Option<Error> {
    span(wanted)?;
    let months = wanted.replace('m', "mo");
    let message = format!("cannot tell which backup {wanted:?} means");
    let error = Error::new(ErrorKind::Usage, message).because("m may be minutes or months");
    let minutes = wanted.strip_suffix('m');
    let minutes = minutes.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let minutes = minutes.map(|number| format!("{number}min"));
    Some(match minutes {
        Some(minutes) => error.hint(format!("write @{minutes} or @{months}")),
        None => error.hint(format!("write @{months}")),
    })
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
    let error = Error::new(
        ErrorKind::NotFound,
        format!("could not find backup {wanted:?} in {repository}"),
    )
    .detail(format!("it holds {known_ids}, the last is {last:?}"));
    if let Some((backup, path)) = wanted.split_once(':')
        && !path.is_empty()
        && !backup.contains('T')
    {
        return Ok(error.hint(format!(
            "a path in a backup is a word of its own: `fullbore restore REPO@{backup} {path} --to DIR`"
        )));
    }
    Ok(error
    .hint("a backup is an id or its begin, latest, latest~1, or a time such as 2026-11-24, 2d or yesterday; `fullbore list` shows all of them"))
}

/// The hint for an interrupted backup.
const GOES_ON: &str =
    "only completed backups can be used; the next `fullbore backup` of this source resumes it";

/// Returns the error of a repository that holds no backup.
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
