//! Limits access to files and directories while they are being restored.
//!
//! A process that has opened a file keeps its access, whatever owner and mode the file gets later.
//! It could read the data that the restore writes, or change data that the restore has checked. A
//! user who may write to a directory can swap a restored object for another. So new files are
//! private at first, and directories of other users are taken over until they get their final
//! metadata.

use super::{
    modes::{
        OWNER_ACCESS, PRIVATE, SPECIAL_BITS, access_list_of, can_add_write_access, group_exceeds,
    },
    probe::with_test_file,
    tree::TargetTree,
    writer::TargetWriter,
};
use fullbore_format::{
    acl::ACCESS_LIST,
    entry::{Entry, Xattr, split},
    error::Result,
};
use fullbore_platform as platform;
use fullbore_platform::{
    dir::{self, Stat},
    queue::Locked,
    write, xattr,
};
use std::{
    borrow::Cow,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, Weak},
};

/// Number of changed directories that are restored when the run fails, about 20 MB of memory.
/// Further ones keep the temporary mode until the next run.
const MAX_CHANGED: usize = 100_000;
impl TargetWriter {
    /// Returns the mode with which a new file is created: the final mode, or [`PRIVATE`].
    ///
    /// The final mode is used if no later step changes the mode or needs another one, and if this
    /// mode admits only users who may open the file in the end. The latter holds if group and
    /// others have equal rights, or if the group of the new file is the final one.
    pub(crate) fn creation_mode(&mut self, entry: &Entry) -> u32 {
        let later = entry.mode & SPECIAL_BITS != 0 || !entry.xattrs.is_empty();
        let is_equal = (entry.mode >> 3 ^ entry.mode) & 0o7 == 0;
        let is_right =
            is_equal || self.tree.group_of_new(&entry.path) == Some(self.owner_ids(&entry.owner).1);
        if later || !is_right {
            PRIVATE
        } else {
            entry.mode
        }
    }

    /// Makes root the owner of a directory and takes write access away from others until the
    /// directory gets the metadata of `entry`. Otherwise its former owner could swap the objects in
    /// it.
    ///
    /// Only a directory that is new or `asked_for` is changed, and only if this process runs as
    /// root. Returns `is_new`.
    pub(crate) fn lock_out_others(
        &mut self,
        entry: &Entry,
        dir: &OwnedFd,
        is_new: bool,
        asked_for: bool,
    ) -> Result<bool> {
        let mine = platform::user_id();
        if mine != 0 || !(is_new || asked_for) {
            return Ok(is_new);
        }
        let stat = dir::stat_fd(dir).map_err(|e| self.tree.error("look at", &entry.path, e))?;
        let is_foreign = ![mine, self.owner_ids(&entry.owner).0].contains(&stat.uid);
        if is_foreign || stat.mode & 0o022 & !entry.mode != 0 {
            // A refusal is ignored: such a file system has no owners, or the restore cannot create
            // anything in the directory either. A new directory keeps its group.
            let _ = write::chown_fd(dir, mine, stat.gid);
            let _ = write::chmod_fd(dir, stat.mode & SPECIAL_BITS | 0o700);
            let mut changed = self.tree.changed.locked();
            if !is_new && changed.len() < MAX_CHANGED {
                changed.entry(entry.path.clone()).or_insert(stat);
            }
        }
        Ok(is_new)
    }

    /// Returns whether an existing file may be updated in place.
    ///
    /// That is safe if only users whom the entry admits can have the file open. The file must
    /// belong to this user or to its final owner, and its group, others and access list must grant
    /// no more than the entry. It is also safe if a new file would be no better protected.
    pub(crate) fn may_keep_file(
        &mut self,
        entry: &Entry,
        file: impl AsFd,
        stat: &Stat,
    ) -> Result<bool> {
        let failed = |writer: &Self, e| writer.tree.error("look at", &entry.path, e);
        let (uid, gid) = self.owner_ids(&entry.owner);
        let for_group = group_exceeds(stat.mode, entry.mode);
        let wanted = self.local_access_list(entry);
        let is_listed = stat.mode & 0o077 != 0 && (for_group || wanted.is_some());
        // The list is read only where it can matter: most files grant others nothing.
        let current = if is_listed {
            read_access_list(&file).map_err(|e| failed(self, e))?
        } else {
            wanted.clone()
        };
        let is_narrow = [uid, platform::user_id()].contains(&stat.uid)
            && stat.mode & 0o077 & !entry.mode == 0
            && (stat.gid == gid || !for_group)
            && current == wanted;
        Ok(is_narrow || self.new_file_has_same_access(entry, stat, current.as_ref())?)
    }

    /// Returns the access list of an entry as this system takes it; as it is, if it cannot be set.
    fn local_access_list(&self, entry: &Entry) -> Option<Xattr> {
        let list = access_list_of(entry)?;
        let value = self.tree.local_value(list, &entry.path);
        let value = value.map_or_else(|| list.1.clone(), Cow::into_owned);
        Some((list.0.clone(), value))
    }

    /// Returns whether a new file would be open to the same users. That is the case if the file
    /// system does not store owners, modes and lists, or if this process may not set them.
    fn new_file_has_same_access(
        &mut self,
        entry: &Entry,
        current: &Stat,
        listed: Option<&Xattr>,
    ) -> Result<bool> {
        let tree = self.tree.clone();
        let (uid, gid) = self.owner_ids(&entry.owner);
        let wanted = self.local_access_list(entry);
        let (dir, _) = self.enter(&entry.path)?;
        let made = with_test_file(dir, &tree.notes, |file| {
            // The system would refuse the same calls for the real file.
            let _ = write::chown_fd(file, uid, gid);
            let _ = write::chmod_fd(file, entry.mode & 0o777);
            let _ = match &wanted {
                Some((name, value)) => xattr::set_fd(file, name, value),
                None => xattr::remove_fd(file, ACCESS_LIST),
            };
            Ok((dir::stat_fd(file)?, read_access_list(file)?))
        });
        Ok(made.and_then(io::Result::ok).is_some_and(|(new, list)| {
            (new.uid, new.gid) == (current.uid, current.gid)
                && current.mode & 0o077 & !new.mode == 0
                && list.as_ref() == listed
        }))
    }
}

impl TargetTree {
    /// Runs `change` at `path`, in the directory `dir`.
    ///
    /// If the owner's own write permission is missing there and this process is the owner, the
    /// permission is added until the directory gets its metadata or the run ends.
    pub(crate) fn with_write_access<T>(
        &self,
        path: &[u8],
        dir: BorrowedFd<'_>,
        change: impl Fn() -> io::Result<T>,
    ) -> io::Result<T> {
        match change() {
            Err(e)
                if e.kind() == io::ErrorKind::PermissionDenied
                    && self.add_write_access(split(path).0, dir) =>
            {
                change()
            }
            done => done,
        }
    }

    /// Adds the owner's write permission to the directory at `path`, if this process owns the
    /// directory and lacks this permission. Returns whether the permission is there.
    pub(crate) fn add_write_access(&self, path: &[u8], dir: BorrowedFd<'_>) -> bool {
        let mut changed = self.changed.locked();
        let Ok(stat) = dir::stat_fd(dir) else {
            return false;
        };
        if changed.contains_key(path) {
            return true;
        }
        let can_be = self.options.overwrite && can_add_write_access(&stat);
        let is_open = can_be && write::chmod_fd(dir, stat.mode | OWNER_ACCESS).is_ok();
        if is_open {
            changed.insert(path.to_vec(), stat);
        }
        is_open
    }

    /// Returns whether this restore can have created the object with these attributes, at `path` in
    /// or as `dir`. If not, another user has put it there.
    pub(crate) fn may_have_made(&self, path: &[u8], dir: impl AsFd, current: &Stat) -> bool {
        let user = platform::user_id();
        // Without privileges, this process cannot change objects of other users anyway.
        if user != 0 || current.uid == user {
            return true;
        }
        let new_owner = self.places.resolve(path).0.new_owner.get();
        if new_owner.is_some_and(|new_owner| new_owner.0 == current.uid) {
            return true;
        }
        // Some file systems assign the owner themselves, so a test file shows the owner of new
        // files.
        let is_made = with_test_file(dir, &self.notes, |file| {
            dir::stat_fd(file).is_ok_and(|new| new.uid == current.uid)
        });
        is_made == Some(true)
    }
}

/// The trees that this process is restoring.
static TREES: Mutex<Vec<Weak<TargetTree>>> = Mutex::new(Vec::new());

/// Gives changed directories their former owner and mode back, before the process ends.
pub fn restore_dir_access() {
    let trees = TREES.locked();
    trees
        .iter()
        .filter_map(Weak::upgrade)
        .for_each(|tree| tree.restore_dir_access());
}

impl TargetTree {
    /// Registers the tree, so that a signal handler can restore its directories before the process
    /// ends.
    pub(crate) fn register(self: &Arc<Self>) {
        let mut trees = TREES.locked();
        trees.retain(|tree| tree.strong_count() > 0);
        trees.push(Arc::downgrade(self));
    }

    fn restore_dir_access(&self) {
        let changed = std::mem::take(&mut *self.changed.locked());
        for (path, former) in changed {
            let Ok(dir) = self.open_dir(&path) else {
                continue;
            };
            if dir::stat_fd(&dir)
                .is_ok_and(|stat| (stat.dev, stat.inode) == (former.dev, former.inode))
            {
                let _ = write::chown_fd(&dir, former.uid, former.gid);
                let _ = write::chmod_fd(&dir, former.mode);
            }
        }
    }
}

impl Drop for TargetTree {
    fn drop(&mut self) {
        self.restore_dir_access();
    }
}

fn read_access_list(file: impl AsFd) -> io::Result<Option<Xattr>> {
    Ok(xattr::read_all(file)?
        .into_iter()
        .find(|(name, _)| name == ACCESS_LIST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::{layout::TargetLayout, tree::TargetOptions};
    use fullbore_format::entry::EntryKind;
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, chown},
        path::Path,
    };

    /// A user and group that do not exist.
    const OTHER: u32 = 12_345;

    fn writer(root: &Path) -> TargetWriter {
        let options = TargetOptions {
            overwrite: true,
            numeric_owner: true,
            ..TargetOptions::default()
        };
        TargetWriter::new(&TargetTree::create(&TargetLayout::plain(root), options).unwrap())
    }

    fn entry(path: &str, kind: EntryKind, mode: u32) -> Entry {
        Entry {
            path: path.into(),
            kind,
            mode,
            ..Entry::default()
        }
    }

    fn make(path: &Path, owner: u32, mode: u32) {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        chown(path, Some(owner), Some(owner)).unwrap();
    }

    fn who(path: &Path) -> (u32, u32, u32) {
        let found = fs::metadata(path).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777)
    }

    #[test]
    fn a_directory_of_another_is_taken_over_until_it_has_its_metadata() {
        if platform::user_id() != 0 {
            return eprintln!("skipped: only root sees owners");
        }
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path());
        let cases = [
            ("another's", OTHER, 0o2755, (0, OTHER, 0o2700)),
            ("everybody's", 0, 0o777, (0, 0, 0o700)),
            ("ours", 0, 0o755, (0, 0, 0o755)),
        ];
        for (name, owner, mode, taken) in cases {
            let (path, entry) = (
                dir.path().join(name),
                entry(name, EntryKind::Directory, 0o755),
            );
            make(&path, owner, mode);
            // A directory above the requested paths keeps its owner.
            assert!(!writer.directory(&entry, false).unwrap());
            assert_eq!(who(&path), (owner, owner, mode), "{name}");
            assert!(!writer.directory(&entry, true).unwrap());
            assert_eq!(who(&path), taken, "{name}");
            writer.finish_directory(&entry).unwrap();
            assert_eq!(who(&path), (0, 0, 0o755), "{name}");
        }
    }

    #[test]
    fn an_object_that_replaced_a_restored_one_gets_no_metadata() {
        if platform::user_id() != 0 {
            return eprintln!("skipped: only root sees owners");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut writer = writer(dir.path());
        let made = entry("d", EntryKind::Directory, 0o777);
        assert!(writer.directory(&made, true).unwrap());
        fs::rename(path("d"), path("aside")).unwrap();
        make(&path("d"), OTHER, 0o700);
        let error = writer.finish_directory(&made).unwrap_err();
        assert!(
            error
                .line()
                .ends_with("another object has replaced it since"),
            "{}",
            error.line()
        );
        assert_eq!(who(&path("d")), (OTHER, OTHER, 0o700));
        // The pipe belongs to another user, then a file of this user takes its place.
        let pipe = entry("p", EntryKind::Fifo, 0o666);
        writer.special_file(&pipe).unwrap();
        chown(path("p"), Some(OTHER), Some(OTHER)).unwrap();
        assert!(writer.apply_metadata_at(&pipe).is_err());
        assert_eq!(who(&path("p")), (OTHER, OTHER, 0o666));
        fs::remove_file(path("p")).unwrap();
        fs::write(path("p"), "").unwrap();
        fs::set_permissions(path("p"), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(writer.apply_metadata_at(&pipe).is_err());
        assert_eq!(who(&path("p")).2, 0o600);
    }
}
