//! Patterns that choose entries of a restore.

use super::{
    cluster::refusals::refuse_patterns,
    request::{ChosenEntries, EntryPatterns, Restore},
};
use fullbore_format::{
    entry::{EntryKind, EntryPath, is_within, split},
    error::{Error, ErrorKind, Result},
    root::EntryName,
};
use fullbore_repository::archive::{Archive, Selection, source_paths::selection_in};
use fullbore_tree::patterns::{PatternPlace, Patterns};
use std::{ffi::OsString, os::unix::ffi::OsStrExt, path::PathBuf, sync::Arc};

impl EntryPatterns {
    /// Refuses patterns where only a stream is read.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if there are any.
    pub(super) fn must_be_empty(&self) -> Result<()> {
        if self.include.is_empty() && self.exclude.is_empty() {
            return Ok(());
        }
        let message = "cannot use --include or --exclude: this is no backup of fullbore in a file or repository";
        Err(Error::new(ErrorKind::Usage, message).hint("name the PATHs to restore"))
    }
}

impl Restore {
    /// Returns the entries to restore.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if no entry is included; [`ErrorKind::Usage`] for patterns with a cluster; errors of pages.
    pub(crate) fn selection(&self, archive: &Archive) -> Result<Selection> {
        let EntryPatterns {
            include,
            exclude,
            chosen,
        } = &self.patterns;
        if let Some(chosen) = chosen {
            return chosen_selection(archive, chosen);
        }
        let paths = selection_in(archive, &self.paths)?;
        if include.is_empty() && exclude.is_empty() {
            return Ok(paths);
        }
        refuse_patterns(archive)?;
        let selection = if include.is_empty() {
            paths
        } else {
            Selection::new(&included(archive, &paths, &patterns(include)?)?)?
        };
        if exclude.is_empty() {
            return Ok(selection);
        }
        let rest = without(&selection, exclude)?;
        let has_some = |path: &EntryPath| rest.holds(path);
        if include.is_empty() || selection.paths().iter().any(has_some) {
            return Ok(rest);
        }
        let message = "cannot restore what --include matches: --exclude leaves out all of it";
        Err(Error::new(ErrorKind::Usage, message).hint(
            "--exclude decides last, also for everything below a directory; leave out other names in it, as in --exclude '/dir/other'",
        ))
    }
}

/// The entries that a session has chosen.
fn chosen_selection(archive: &Archive, chosen: &ChosenEntries) -> Result<Selection> {
    let selection = Selection::new(&chosen.paths)?;
    match &chosen.left_out {
        None => Ok(selection),
        Some(left_out) => {
            refuse_patterns(archive)?;
            Ok(selection.without(left_out.clone()))
        }
    }
}

/// Leaves out what these patterns match.
fn without(selection: &Selection, exclude: &[OsString]) -> Result<Selection> {
    let patterns = patterns(exclude)?;
    // A directory of the target must not be deleted because its kind is not known here.
    let is_left_out =
        move |path: &[u8]| patterns.matches(path, true) || patterns.matches(path, false);
    Ok(selection.without(Arc::new(is_left_out)))
}

/// Options that `root.left_out` names and that a restore knows without the files of the host.
const PATTERN: &str = "--exclude ";
const ONE_FILE_SYSTEM: &str = "--one-file-system";
const MARKED_CACHES: &str = "--exclude-caches";

/// Returns whether the backup left out the contents of marked caches. A restore knows them by their tag, which is the only
/// entry in them.
pub(crate) fn lacks_caches(archive: &Archive) -> bool {
    let mut options = archive.root.left_out.iter();
    options.any(|option| option == MARKED_CACHES)
}

/// Returns patterns of files that the backup left out on its host, and that a restore must not
/// delete.
///
/// # Errors
/// [`ErrorKind::Usage`] if the backup left out files by other means: then it does not tell which.
pub(crate) fn left_out_by_backup(archive: &Archive) -> Result<Patterns> {
    let options = &archive.root.left_out;
    let is_known = |option: &&String| {
        option.starts_with(PATTERN) || [ONE_FILE_SYSTEM, MARKED_CACHES].contains(&&***option)
    };
    if let Some(option) = options.iter().find(|option| !is_known(option)) {
        let message = format!(
            "cannot delete files that are not in backup {:?}",
            archive.root.id
        );
        return Err(Error::new(ErrorKind::Usage, message)
            .because(format!("it has only a part of its source: it was made with {option:?}"))
            .hint("--delta without --delete keeps what the backup left out; --delete-excluded deletes it too"));
    }
    let lines = options
        .iter()
        .filter_map(|option| option.strip_prefix(PATTERN));
    let lines: Vec<&str> = lines.collect();
    Patterns::read(&lines, &[] as &[PathBuf], &places(archive))
}

/// The paths of the source, with their places in the backup.
fn places(archive: &Archive) -> Vec<PatternPlace> {
    let source = &archive.root.source;
    let place = |top: &EntryName| {
        let path = top.0.strip_prefix(b"/").unwrap_or(&top.0);
        PatternPlace {
            names: vec![path.to_vec()],
            at: match source.contents {
                true => Vec::new(),
                false => split(path).1.to_vec(),
            },
        }
    };
    source.paths.iter().map(place).collect()
}

fn patterns(lines: &[OsString]) -> Result<Patterns> {
    let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
    Patterns::read(&lines, &[] as &[PathBuf], &[])
}

/// Returns the topmost entries that the patterns match.
fn included(archive: &Archive, paths: &Selection, patterns: &Patterns) -> Result<Vec<EntryPath>> {
    let mut found: Vec<EntryPath> = Vec::new();
    for item in archive.records(paths, false) {
        let item = item?;
        let path = &item.entry.path;
        let is_known = found.last().is_some_and(|top| is_within(path, top));
        if is_known || path.is_empty() || !paths.holds(path) {
            continue;
        }
        if patterns.matches(path, item.entry.kind == EntryKind::Directory) {
            found.push(path.clone());
        }
    }
    if found.is_empty() {
        let message = format!(
            "could not find an entry that --include matches in backup {:?}",
            archive.root.id
        );
        return Err(Error::new(ErrorKind::NotFound, message)
            .hint("patterns are as in .gitignore: '*.conf' anywhere, '/etc/*.conf' from the root of the backup"));
    }
    Ok(found)
}
