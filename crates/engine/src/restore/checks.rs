//! Checks before a restore: the requested paths exist, and the target is not the source.

use super::request::Restore;
use fullbore_format::{
    entry::{EntryKind, EntryPath, is_within},
    error::{Error, ErrorKind, Result, quoted},
    page::{EntryState, PageItem},
};
use fullbore_pipeline::sink::is_in;
use fullbore_platform::dir::real_path;
use fullbore_repository::{
    archive::{Archive, Selection, not_there},
    open::{backup_ids, named, place, without_backup},
    select::shell_word,
};
use fullbore_tree::write::layout::TargetLayout;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
};

/// Returns the paths of a selection; empty if the selection is everything.
pub(crate) fn selected_paths(selection: &Selection) -> Vec<EntryPath> {
    if selection.holds(b"") {
        Vec::new()
    } else {
        selection.paths().to_vec()
    }
}

/// Checks that every requested path exists and that some of its content was captured.
///
/// With `keep_going`, a path may also be on a damaged page: the restore reports that later and
/// restores the records on other pages.
pub(crate) fn check_paths_exist(
    archive: &Archive,
    selection: &Selection,
    keep_going: bool,
) -> Result<()> {
    for path in selection.paths() {
        let found = match archive.find(path) {
            Err(damage) if keep_going && damage.kind == ErrorKind::Corrupt => continue,
            found => found?,
        };
        if let Some(item) = found
            .first()
            .filter(|item| item.entry.kind != EntryKind::Directory)
        {
            check_captured(archive, item)?;
            // The target of a hard link may be damaged; the restore reports that later.
            if let EntryKind::HardLink(target) = &item.entry.kind
                && let Some(file) = archive
                    .find(target)
                    .ok()
                    .and_then(|parts| parts.into_iter().next())
            {
                check_captured(archive, &file)?;
            }
            continue;
        }
        if !archive.has(path)? {
            return Err(not_there(archive, path));
        }
    }
    Ok(())
}

/// Backups that are opened at most to find one that has a path.
const MOST_OPENED: usize = 32;

impl Restore {
    /// As [`check_paths_exist`], and names the nearest other backup of the source that has a path which this one lacks.
    ///
    /// # Errors
    /// As [`check_paths_exist`].
    pub(super) fn check_paths(&self, archive: &Archive, selection: &Selection) -> Result<()> {
        let checked = check_paths_exist(archive, selection, self.keep_going);
        let Err(error) = checked else { return Ok(()) };
        let lacks = |path: &&EntryPath| archive.has(path).is_ok_and(|has| !has);
        let lost = selection.paths().iter().find(lacks);
        let other = lost
            .filter(|_| error.kind == ErrorKind::NotFound)
            .and_then(|path| Some((path, self.backup_with(archive, path)?)));
        Err(match other {
            Some((path, (repository, id))) => {
                let words = [named(repository, id), OsStr::from_bytes(path).to_owned()];
                let words = words.map(|word| shell_word(&word)).join(" ");
                error.hint(format!(
                    "another backup has it: `fullbore restore {words} --to DIR`"
                ))
            }
            None => error,
        })
    }

    /// Returns the repository and the newest backup of the same source that has a path, earlier ones first.
    fn backup_with(&self, archive: &Archive, path: &[u8]) -> Option<(OsString, String)> {
        let (location, _) = place(&self.from).ok()?;
        let objects = self.storages.objects(&location).ok()?;
        let own = &archive.root;
        let ids = backup_ids(&*objects).ok()?;
        let (earlier, later): (Vec<_>, Vec<_>) = ids
            .into_iter()
            .filter(|id| *id != own.id)
            .partition(|id| *id < own.id);
        let near = earlier.into_iter().rev().chain(later);
        let id = near.take(MOST_OPENED).find(|id| {
            let other = Archive::open_backup(&objects, id);
            other.is_ok_and(|other| {
                other.root.source == own.source && other.has(path).unwrap_or(false)
            })
        })?;
        Some((without_backup(&self.from).to_owned(), id))
    }
}

/// Refuses a target inside the repository that the restore reads.
pub(super) fn refuse_target_in_source(
    restore: &Restore,
    archive: &Archive,
    layout: &TargetLayout,
) -> Result<()> {
    let places = archive.store().places();
    let targets =
        std::iter::once(&layout.root).chain(layout.mounts.iter().map(|mount| &mount.directory));
    match { targets }.find(|target| is_in(target, &places)) {
        None => Ok(()),
        Some(target) => {
            let message = format!(
                "cannot restore to {target:?}: it is inside {:?}, which is read",
                restore.from
            );
            Err(Error::new(ErrorKind::Usage, message).hint("choose another --to"))
        }
    }
}

/// Refuses a restore that would replace the repository it reads.
pub(super) fn refuse_replacing_source(
    restore: &Restore,
    archive: &Archive,
    selection: &Selection,
    layout: &TargetLayout,
) -> Result<()> {
    let real = |path: &Path| real_path(path).ok();
    let read = place(&restore.from)
        .ok()
        .and_then(|(location, _)| real(location.as_local()?));
    let (Some(read), Some(target)) = (read, real(&layout.root)) else {
        return Ok(());
    };
    let Some(own) = read
        .strip_prefix(&target)
        .ok()
        .filter(|own| *own != Path::new(""))
    else {
        return Ok(());
    };
    let own = own.as_os_str().as_bytes();
    let is_over = |item: &PageItem| {
        let is_itself = item.entry.path == own && item.entry.kind == EntryKind::Directory;
        let path = &item.entry.path;
        !is_itself && selection.holds(path) && is_within(path, own)
    };
    let here = Selection::new(&[own])?;
    match archive
        .records(&here, false)
        .filter_map(Result::ok)
        .find(is_over)
    {
        None => Ok(()),
        Some(item) => {
            let message = format!("cannot restore {} to {target:?}", quoted(&item.entry.path));
            Err(Error::new(ErrorKind::Usage, message)
                .because(format!("it would replace {read:?}, which is read"))
                .hint("choose another --to, or name only the paths that you need"))
        }
    }
}

fn check_captured(archive: &Archive, item: &PageItem) -> Result<()> {
    let why = match &item.state {
        EntryState::Unreadable(why) => why,
        EntryState::Vanished => "it vanished before it was read",
        EntryState::Noted => "sockets are not stored",
        _ => return Ok(()),
    };
    let message = format!(
        "cannot restore {} from backup {:?}",
        quoted(&item.entry.path),
        archive.root.id
    );
    Err(Error::new(ErrorKind::NotFound, message)
        .because(format!("it was not captured: {why}"))
        .hint("`fullbore find` shows which backups of a repository have it"))
}
