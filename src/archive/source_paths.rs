//! Paths of a backup, also as they were on the host that was backed up.

use super::{Archive, Selection};
use crate::{error::Result, format::entry::is_within};

/// Returns the selection of `paths`. A path that the backup lacks may begin with a path of the source: `/home/ana/notes` of a
/// backup of `/home` is `ana/notes`.
///
/// # Errors
/// Those of [`Selection::new`], and of reading pages.
pub(crate) fn selection_in<P: AsRef<[u8]>>(archive: &Archive, paths: &[P]) -> Result<Selection> {
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

/// Returns where the backup has a path of the host, if it does.
fn place_in(archive: &Archive, path: &[u8]) -> Result<Option<Vec<u8>>> {
    let source = &archive.root.source;
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
                .map_or(0, |at| at + 1),
        };
        let place = &path[kept..];
        if archive.has(place)? {
            return Ok(Some(place.to_vec()));
        }
    }
    Ok(None)
}
