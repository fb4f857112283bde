//! Names one backup for a command that changes it: `forget`, `pin` and `tag`.
//!
//! A restore of 2026-11-25 wants the state of that day, so it takes the newest backup of the day or
//! of an earlier one. A deletion must not: here a day, a minute or a second names a backup only if
//! exactly one began in it.

use super::{
    listed::{list_backups, one_of},
    roots::{BackupState, backup_files, key},
    select::{BackupFilter, source_of},
    selector::{BackupSelector, TimeSpan, id_time, pick},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::ROOT,
    root::{Root, is_void},
};
use fullbore_storage::Objects;
use jiff::{Timestamp, Zoned};
use std::sync::Arc;

/// Candidates that an error lists.
const LISTED: usize = 20;

/// Returns the id of the backup that `word` names; without a word the latest that `filter` selects.
///
/// # Errors
/// [`ErrorKind::Usage`] if several backups match, or for a duration such as `2d`;
/// [`ErrorKind::NotFound`]; errors of the storage.
pub fn pick_exactly(
    objects: &Arc<dyn Objects>,
    word: Option<&str>,
    filter: &BackupFilter,
) -> Result<String> {
    let found = word.map(|word| exact_time(objects, word, filter));
    if let Some(id) = found.transpose()?.flatten() {
        return Ok(id);
    }
    let id = pick(objects, word, filter)?;
    check_selected(objects, &id, filter)?;
    Ok(id)
}

/// Returns the id of something that can be forgotten: a backup, or the remains of one that was
/// interrupted or has lost its root.
///
/// # Errors
/// As [`pick_exactly`].
pub fn forgettable(
    objects: &Arc<dyn Objects>,
    word: &str,
    filter: &BackupFilter,
) -> Result<String> {
    match BackupSelector::parse(word, &Zoned::now()) {
        BackupSelector::Id(_) => {}
        selector @ BackupSelector::Back(_) => return filter.choose(objects, &selector),
        _ => {
            let found = exact_time(objects, word, filter)?;
            return found.ok_or_else(|| no_moment(word));
        }
    }
    let is_there = |state| !matches!(state, Some(BackupState::Forgotten | BackupState::Void));
    let id = one_of(&ids_where(objects, is_there)?, word, &**objects)?;
    check_selected(objects, &id, filter)?;
    Ok(id)
}

/// Refuses a backup that was named by its id, and is not among those that the options select.
///
/// # Errors
/// [`ErrorKind::Usage`], also if its root cannot be read, so that its source is not known.
fn check_selected(objects: &Arc<dyn Objects>, id: &str, filter: &BackupFilter) -> Result<()> {
    if filter.is_empty() {
        return Ok(());
    }
    let root = objects.get(&key(id, ROOT))?.map(|(bytes, _)| bytes);
    let root = root.filter(|bytes| !is_void(bytes));
    // The source alone counts, so lists that are elsewhere are not needed.
    let root = root.and_then(|bytes| Root::open_as_stored(&bytes, "").ok());
    let root = root.filter(|root| root.id == id);
    match root {
        Some(mut root) => match filter.selects_in(objects, &mut root) {
            true => Ok(()),
            false => filter.check(&root),
        },
        None => {
            let message =
                format!("cannot use backup {id:?}: nothing says whether {filter} selects it");
            Err(Error::new(ErrorKind::Usage, message)
                .because("its root cannot be read")
                .hint("name it without these options"))
        }
    }
}

/// Returns the id of a backup that was forgotten and is not pruned yet.
///
/// # Errors
/// [`ErrorKind::NotFound`], which lists such backups; [`ErrorKind::Usage`] if several match.
pub fn forgotten(objects: &Arc<dyn Objects>, word: &str) -> Result<String> {
    let ids = ids_where(objects, |state| state == Some(BackupState::Forgotten))?;
    one_of(&ids, word, &**objects).map_err(|error| match error.kind {
        ErrorKind::NotFound => none_forgotten(word, &ids),
        _ => error,
    })
}

fn none_forgotten(word: &str, ids: &[String]) -> Error {
    let message = format!("could not find a forgotten backup {word:?}");
    let newest = ids.iter().rev().take(LISTED);
    let error = newest.fold(Error::new(ErrorKind::NotFound, message), |error, id| {
        error.detail(id.clone())
    });
    let hint = match ids {
        [] => "the repository has no forgotten backup that was not pruned",
        _ => "these are forgotten and not pruned yet",
    };
    error.hint(hint)
}

fn ids_where(
    objects: &Arc<dyn Objects>,
    is_wanted: impl Fn(Option<BackupState>) -> bool,
) -> Result<Vec<String>> {
    let all = backup_files(&**objects)?.into_iter();
    let wanted = all.filter(|(_, files)| is_wanted(files.state()));
    Ok(wanted.map(|(id, _)| id).collect())
}

/// Returns the only backup that began in the time that `word` means; `None` if the word is no time.
fn exact_time(
    objects: &Arc<dyn Objects>,
    word: &str,
    filter: &BackupFilter,
) -> Result<Option<String>> {
    match BackupSelector::parse(word, &Zoned::now()) {
        BackupSelector::At(span) => only_one_in(objects, word, span, filter).map(Some),
        BackupSelector::Ago(_) => Err(no_moment(word)),
        BackupSelector::Id(_) | BackupSelector::Back(_) => Ok(None),
    }
}

fn no_moment(word: &str) -> Error {
    let message = format!("cannot tell which backup {word:?} means");
    Error::new(ErrorKind::Usage, message)
        .because("a command that changes a backup needs its id, a day or a time")
        .hint("`fullbore list` shows the ids")
}

fn only_one_in(
    objects: &Arc<dyn Objects>,
    word: &str,
    span: TimeSpan,
    filter: &BackupFilter,
) -> Result<String> {
    let mut found = Vec::new();
    let mut nearest = NearestBackups::default();
    for (id, root) in list_backups(objects)? {
        let (time, source) = match root {
            Ok(mut root) => {
                if !filter.selects_in(objects, &mut root) {
                    continue;
                }
                (root.time.parse().ok(), source_of(&root))
            }
            // The id tells the time of a backup whose root is damaged.
            Err(_) => (id_time(&id), "its root cannot be read".to_owned()),
        };
        match time {
            Some(time) if span.holds(time) => found.push((id, source)),
            Some(time) => nearest.add(&id, time, span),
            None => {}
        }
    }
    match &found[..] {
        [(id, _)] => Ok(id.clone()),
        [] => Err(nearest.error(word, &**objects)),
        _ => Err(several(word, &found)),
    }
}

fn several(word: &str, found: &[(String, String)]) -> Error {
    let count = found.len();
    let message = format!("cannot tell which backup is meant: {count} backups are of {word:?}");
    let listed = found.iter().take(LISTED);
    let error = listed.fold(
        Error::new(ErrorKind::Usage, message),
        |error, (id, source)| error.detail(format!("{id}  {source}")),
    );
    error.hint("name one by its id")
}

/// The backups before and after a time.
#[derive(Default)]
struct NearestBackups {
    before: Option<String>,
    after: Option<String>,
}

impl NearestBackups {
    /// Backups come in the order of their ids, which is that of their times.
    fn add(&mut self, id: &str, time: Timestamp, span: TimeSpan) {
        if time < span.begin {
            self.before = Some(id.to_owned());
        } else {
            self.after.get_or_insert_with(|| id.to_owned());
        }
    }

    fn error(self, word: &str, objects: &dyn Objects) -> Error {
        let message = format!(
            "could not find a backup of {word:?} in {}",
            objects.describe("")
        );
        let error = Error::new(ErrorKind::NotFound, message);
        let previous = self.before.map(|id| format!("the one before is {id:?}"));
        let next = self.after.map(|id| format!("the one after is {id:?}"));
        let error = previous.into_iter().chain(next).fold(error, Error::detail);
        error.hint("`fullbore list` shows all backups")
    }
}
