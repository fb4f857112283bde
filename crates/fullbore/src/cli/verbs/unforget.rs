//! Takes back that a backup was forgotten, as long as no prune has freed its data.

use super::forget_backups::DECISION;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::FORGOTTEN,
    root::Root,
    text,
};
use fullbore_repository::{
    exact::forgotten,
    import::{IncomingBackup, NeededObject},
    open::read_repository,
    protocol,
    roots::{key, needs},
};
use fullbore_storage::{Objects, Storages, whole_root};
use serde_json::json;
use std::{ffi::OsStr, io::Write, sync::Arc};

/// Lists backups again, by ids or prefixes of ids, and prints one line for each.
///
/// # Errors
/// [`ErrorKind::NotFound`] if a backup was not forgotten, or if a prune has freed some of its
/// data; errors of the storage.
pub(super) fn unforget(
    storages: &Storages,
    repository: &OsStr,
    ids: &[String],
    is_json: bool,
    out: &mut dyn Write,
) -> Result<()> {
    let objects = storages.repository_at(repository)?;
    read_repository(&*objects)?;
    for id in ids {
        let id = forgotten(&objects, id)?;
        list_again(&objects, &id)?;
        if is_json {
            text::json(
                out,
                &json!({"type": DECISION, "id": id, "forgotten": false, "dry_run": false}),
            )?;
        } else {
            text::line(out, &format!("{id}  is listed again"))?;
        }
    }
    Ok(())
}

/// The steps are those of a copy of the backup to its own repository: the backup is announced, so
/// that a prune beside it keeps the objects, and all of them must exist when its root is stored.
fn list_again(objects: &Arc<dyn Objects>, id: &str) -> Result<()> {
    let (sealed, root) = former_root(&**objects, id)?;
    let listed = protocol::listed_needs(&**objects, &root)?;
    protocol::check(&**objects, &root, &listed).map_err(|error| match error.kind {
        ErrorKind::NotFound | ErrorKind::Corrupt => {
            lost(id, "`fullbore prune` has freed some of its data")
        }
        _ => error,
    })?;
    let incoming = IncomingBackup::begin(objects.clone(), sealed, &root, &[])?;
    incoming.commit(&needed_objects(&root)?)
}

/// Reads the root that the mark of a forgotten backup keeps.
fn former_root(objects: &dyn Objects, id: &str) -> Result<(Vec<u8>, Root)> {
    let key = key(id, FORGOTTEN);
    let Some((sealed, _)) = objects.get(&key)? else {
        return Err(lost(id, "it was pruned meanwhile"));
    };
    let name = objects.describe(&key);
    let root = Root::of_backup_as_stored(id, &sealed, &name)?;
    let root = whole_root(objects, root, &name)?;
    // A disk that was full had no room for the root, and an interrupted backup never had one.
    if root.finished.is_empty() {
        return Err(lost(id, "its list of data was not kept"));
    }
    Ok((sealed, root))
}

fn lost(id: &str, why: &str) -> Error {
    let message = format!("cannot list backup {id:?} again");
    Error::new(ErrorKind::NotFound, message).because(why.to_owned())
}

fn needed_objects(root: &Root) -> Result<Vec<NeededObject>> {
    Ok(needs(root)?.into_iter().filter_map(parsed_key).collect())
}

fn parsed_key((key, bytes): (String, u64)) -> Option<(String, String, u64)> {
    let (dir, name) = key.rsplit_once('/')?;
    let id = dir.rsplit_once('/').map_or(dir, |(_, id)| id);
    Some((id.to_owned(), name.to_owned(), bytes))
}
