//! Lists what a restore would create and change. Nothing is written, and no content is read.

use super::{
    cluster::{self, choose_backup},
    request::{Restore, RestoreInto},
};
use fullbore_format::{
    entry::{Device, Entry, EntryKind, EntryPath, Xattr},
    error::{Error, Result},
};
use fullbore_platform as platform;
use fullbore_platform::{owner::OwnerNames, xattr};
use fullbore_tree::write::xattrs::{has_only_xattrs, is_same_here};
use std::{
    ffi::OsStr,
    fs::{self, File, Metadata},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

/// How an entry of the backup differs from the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviewChange {
    /// The target does not have it.
    Create,
    /// The target has another kind, size, time, mode, owner, link or attribute.
    Change,
}

/// The changes that a restore would make, and what it would say.
#[derive(Debug, Default)]
pub struct PreviewTotals {
    /// The backup that it would take.
    pub id: String,
    /// Notes about a cluster, such as where its recovery ends.
    pub notes: Vec<String>,
    /// Why a restore of a cluster would be refused.
    pub refusal: Option<Error>,
    /// Entries that the target does not have.
    pub created: u64,
    /// Entries that differ.
    pub changed: u64,
    /// Entries that look the same.
    pub same: u64,
    /// Files of the target that stay, because they are newer than in the backup.
    pub kept: u64,
}

impl Restore {
    /// Compares the backup with the target by all but content, and calls `say` for each difference, in archive order.
    ///
    /// # Errors
    /// Those of opening the backup and reading its pages, of the target, and of `say`.
    pub fn preview(
        &self,
        say: &mut dyn FnMut(PreviewChange, &EntryPath) -> Result<()>,
    ) -> Result<PreviewTotals> {
        let archive = choose_backup::open_chosen(self, true)?;
        let selection = self.selection(&archive)?;
        self.check_paths(&archive, &selection)?;
        let mut totals = PreviewTotals {
            id: archive.root.id.clone(),
            ..PreviewTotals::default()
        };
        match cluster::preview_notes(self, &archive, &selection) {
            Ok(notes) => totals.notes = notes,
            Err(refusal) => totals.refusal = Some(refusal),
        }
        let look = TargetLook::new(&self.to, self.numeric_owner);
        // Files of a cluster are used as one: none of the target stays.
        let keeps_newer = matches!(self.into, RestoreInto::Overwrite { newer: false })
            && archive.root.postgres.is_none()
            && totals.refusal.is_none();
        for item in archive.records(&selection, false) {
            let item = item?;
            // The last record of a file has its final metadata.
            if item.more || !item.state.is_stored() && item.entry.is_file() {
                continue;
            }
            let path = &item.entry.path;
            match look.difference(&item.entry)? {
                Some(PreviewChange::Change) if keeps_newer && look.is_newer(&item.entry) => {
                    totals.kept += 1;
                }
                Some(change) => {
                    match change {
                        PreviewChange::Create => totals.created += 1,
                        PreviewChange::Change => totals.changed += 1,
                    }
                    say(change, path)?;
                }
                None => totals.same += 1,
            }
        }
        Ok(totals)
    }
}

/// Compares entries of a backup with the objects in the target.
struct TargetLook<'a> {
    target: &'a Path,
    /// The target; `None` if it does not exist.
    dir: Option<File>,
    names: OwnerNames,
    numeric_owner: bool,
    /// Only root can give files away; for others a restore leaves the owner as it is.
    sets_owner: bool,
}

impl<'a> TargetLook<'a> {
    fn new(target: &'a Path, numeric_owner: bool) -> Self {
        Self {
            target,
            dir: File::open(target).ok(),
            names: OwnerNames::default(),
            numeric_owner,
            sets_owner: platform::user().0 == 0,
        }
    }

    fn path(&self, entry: &[u8]) -> PathBuf {
        self.target.join(OsStr::from_bytes(entry))
    }

    fn difference(&self, entry: &Entry) -> Result<Option<PreviewChange>> {
        let path = self.path(&entry.path);
        let there = match fs::symlink_metadata(&path) {
            Ok(there) => there,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(Some(PreviewChange::Create));
            }
            Err(error) => return Err(Error::io(format!("could not look at {path:?}"), error)),
        };
        let is_same = self.is_kind(&there, &path, &entry.kind)
            && (is_described_elsewhere(&entry.kind)
                || has_size_and_time(&there, entry)
                    && self.has_owner(&there, entry)
                    && self.has_xattrs(entry));
        Ok((!is_same).then_some(PreviewChange::Change))
    }

    /// Returns whether the target has a file in this place that is newer than that of the backup.
    fn is_newer(&self, entry: &Entry) -> bool {
        let there = fs::symlink_metadata(self.path(&entry.path));
        entry.is_file()
            && there.is_ok_and(|there| {
                let time = (there.mtime(), there.mtime_nsec());
                there.is_file() && time > (entry.mtime.seconds, i64::from(entry.mtime.nanos))
            })
    }

    fn is_kind(&self, there: &Metadata, path: &Path, kind: &EntryKind) -> bool {
        let found = there.file_type();
        let is_device = |device: &Device| {
            let rdev = there.rdev();
            (device.major, device.minor) == (rustix::fs::major(rdev), rustix::fs::minor(rdev))
        };
        match kind {
            EntryKind::File { .. } => found.is_file(),
            EntryKind::HardLink(target) => {
                let target = fs::symlink_metadata(self.path(target));
                target
                    .is_ok_and(|target| (target.dev(), target.ino()) == (there.dev(), there.ino()))
            }
            EntryKind::Directory => found.is_dir(),
            EntryKind::Symlink(target) => {
                found.is_symlink()
                    && fs::read_link(path).is_ok_and(|link| link.as_os_str().as_bytes() == target)
            }
            EntryKind::Fifo => found.is_fifo(),
            EntryKind::CharDevice(device) => found.is_char_device() && is_device(device),
            EntryKind::BlockDevice(device) => found.is_block_device() && is_device(device),
            // Sockets are not restored.
            EntryKind::Socket => true,
        }
    }

    fn has_owner(&self, there: &Metadata, entry: &Entry) -> bool {
        let wanted = if self.numeric_owner {
            (entry.owner.uid, entry.owner.gid)
        } else {
            self.names.numbers(&entry.owner)
        };
        !self.sets_owner || (there.uid(), there.gid()) == wanted
    }

    /// An object whose attributes cannot be read has other ones.
    fn has_xattrs(&self, entry: &Entry) -> bool {
        let there = self
            .dir
            .as_ref()
            .map(|dir| xattr::read_all_at(dir, &entry.path));
        let is_same = |wanted: &Xattr, there: &Xattr| {
            is_same_here(wanted, there, &self.names, self.numeric_owner)
        };
        matches!(there, Some(Ok(there)) if has_only_xattrs(entry, &there, is_same))
    }
}

/// Another name of a file has no metadata of its own, and a socket is not restored.
fn is_described_elsewhere(kind: &EntryKind) -> bool {
    matches!(kind, EntryKind::HardLink(_) | EntryKind::Socket)
}

/// Compares size, time and mode, where the kind has them.
fn has_size_and_time(there: &Metadata, entry: &Entry) -> bool {
    let has_mode = there.mode() & 0o7777 == entry.mode & 0o7777;
    match &entry.kind {
        EntryKind::Symlink(_) => true,
        EntryKind::File { .. } => {
            let has_time = there.mtime() == entry.mtime.seconds
                && there.mtime_nsec() == i64::from(entry.mtime.nanos);
            has_mode && has_time && there.len() == entry.size()
        }
        _ => has_mode,
    }
}
