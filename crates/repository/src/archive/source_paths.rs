//! Paths of a backup, also as they were on the host that was backed up.

use super::{Archive, Selection};
use fullbore_format::{
    entry::is_within,
    error::{Error, ErrorKind, Result, quoted},
    root::SourceInfo,
};

/// Returns the selection of `paths`. A path that the backup lacks may begin with a path of the source: `/home/ana/notes` of a
/// backup of `/home` is `ana/notes`.
///
/// # Errors
/// Those of [`Selection::new`], and of reading pages.
pub fn selection_in<P: AsRef<[u8]>>(archive: &Archive, paths: &[P]) -> Result<Selection> {
    let given = Selection::new(paths)?;
    let mut found = Vec::new();
    for (path, written) in given.paths().iter().zip(paths) {
        let is_absolute = written.as_ref().starts_with(b"/");
        let other = match is_absolute && !archive.has(path)? {
            true => place_in(archive, path)?,
            false => None,
        };
        found.push(other.unwrap_or_else(|| path.clone()));
    }
    Selection::new(&found)
}

/// Returns the selection of `paths` in two backups. Each path is in one of them at least.
///
/// # Errors
/// [`ErrorKind::NotFound`] for a path that neither has; and as [`selection_in`].
pub fn selection_in_either(
    backups: [&Archive; 2],
    paths: &[impl AsRef<[u8]>],
) -> Result<Selection> {
    let mut found = Vec::new();
    for path in paths {
        let count = found.len();
        for backup in backups {
            let selection = selection_in(backup, &[path])?;
            for path in selection.paths() {
                if backup.has(path)? {
                    found.push(path.clone());
                }
            }
        }
        if found.len() == count {
            let [a, b] = backups.map(|backup| &backup.root.id);
            let path = quoted(path.as_ref());
            let message = format!("could not find {path} in backup {a:?} or {b:?}");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
    }
    Selection::new(&found)
}

/// Returns where the backup has a path of the host, if it does.
fn place_in(archive: &Archive, path: &[u8]) -> Result<Option<Vec<u8>>> {
    for place in places_of(&archive.root.source, path) {
        if archive.has(&place)? {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

/// Returns where a backup of `source` would have a path of the host, written without its first `/`.
pub fn places_of(source: &SourceInfo, path: &[u8]) -> Vec<Vec<u8>> {
    let mut places = Vec::new();
    for top in &source.paths {
        let top = top.0.strip_prefix(b"/").unwrap_or(&top.0);
        if top.is_empty() || !is_within(path, top) {
            continue;
        }
        let kept = match source.contents {
            true => (top.len() + 1).min(path.len()),
            false => top
                .iter()
                .rposition(|byte| *byte == b'/')
                .map_or(0, |start| start + 1),
        };
        places.push(path[kept..].to_vec());
    }
    places
}
