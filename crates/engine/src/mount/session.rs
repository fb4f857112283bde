//! From the mount to its end.

use super::{
    attributes::ShownOwner,
    backup_tree::BackupTree,
    catalog::{BackupCatalog, Catalog},
    filesystem::MountedBackups,
    read_ahead::{KernelReadAhead, ReadAhead},
    trouble::{OnTrouble, Trouble},
};
use fullbore_format::error::{Error, Result};
use fullbore_platform as platform;
use fullbore_platform::{dir::real_path, queue::Locked};
use fullbore_repository::archive::{
    Archive, PageCache, byte_cache::ByteCache, frame_cache::FrameCache,
};
use fullbore_storage::Objects;
use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
    mount::{UnmountFlags, unmount},
};
use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

/// Threads that answer the kernel.
const THREADS: usize = 8;
/// Threads that read ahead, at most.
const MOST_AHEAD_THREADS: usize = 8;
/// Bytes that are read ahead of one reader, at most.
const MOST_AHEAD: u64 = 32 << 20;

/// How backups are shown.
pub struct MountOptions {
    /// Bytes of all caches together.
    pub memory: u64,
    /// Whether other users may look.
    pub is_for_others: bool,
    /// Time that readers wait for a storage that is away; `None` without end.
    pub patience: Option<Duration>,
    /// Receives each trouble once.
    pub on_trouble: OnTrouble,
}

/// A mount that is ready.
pub struct MountSession {
    session: Session<MountedBackups>,
    end: MountEnd,
}

/// Ends a mount from another thread.
#[derive(Clone)]
pub struct MountEnd {
    unmounter: Arc<Mutex<SessionUnmounter>>,
    dir: PathBuf,
    trouble: Arc<Trouble>,
}

impl MountOptions {
    /// Returns a share of the memory, as bytes of a cache.
    fn share(&self, parts: u64, of: u64) -> usize {
        usize::try_from(self.memory / of * parts).unwrap_or(usize::MAX)
    }

    fn pages(&self) -> Arc<PageCache> {
        Arc::new(PageCache::shared(self.share(1, 4)))
    }

    /// Shows one backup: its tree is the root.
    ///
    /// # Errors
    /// [`Permission`](fullbore_format::error::ErrorKind::Permission) if it is encrypted and no key opens it, and those of
    /// [`MountSession`].
    pub fn show_backup(self, archive: Archive, dir: &Path) -> Result<MountSession> {
        archive.store().check_readable()?;
        let archive = archive.with_pages(self.pages());
        let catalog = Catalog::One(Arc::new(BackupTree::new(archive)));
        self.show(catalog, dir)
    }

    /// Shows all backups of a repository.
    ///
    /// # Errors
    /// As [`MountOptions::show_backup`], and errors of the storage.
    pub fn show_repository(self, objects: Arc<dyn Objects>, dir: &Path) -> Result<MountSession> {
        let catalog = BackupCatalog::new(objects, self.pages(), self.share(1, 16))?;
        catalog.check_readable()?;
        self.show(Catalog::Many(Box::new(catalog)), dir)
    }

    fn show(self, catalog: Catalog, dir: &Path) -> Result<MountSession> {
        let is_root = platform::user().0 == 0;
        let owner = if is_root {
            ShownOwner::Stored(Box::default())
        } else {
            let (uid, gid) = platform::user();
            ShownOwner::Own(uid, gid)
        };
        let frame_bytes = self.share(1, 2);
        let file_bytes = self.share(1, 16);
        let trouble = Arc::new(Trouble::new(self.on_trouble, self.patience));
        let real_dir = real_path(dir).map_err(|error| mount_error(dir, error))?;
        let backups = MountedBackups {
            kernel_ahead: KernelReadAhead::new(real_dir),
            catalog,
            frames: Arc::new(FrameCache::new(frame_bytes)),
            files: ByteCache::new(file_bytes),
            ahead: ReadAhead::new(platform::cores().get().min(MOST_AHEAD_THREADS))?,
            most_ahead: MOST_AHEAD.min(frame_bytes as u64 / 4),
            owner,
            trouble: trouble.clone(),
            mounted: SystemTime::now(),
            last_small: AtomicU64::new(0),
        };
        let config = config(is_root, self.is_for_others);
        let session = Session::new(backups, dir, &config);
        let mut session = session.map_err(|error| mount_error(dir, error))?;
        let end = MountEnd {
            unmounter: Arc::new(Mutex::new(session.unmount_callable())),
            dir: dir.to_owned(),
            trouble,
        };
        Ok(MountSession { session, end })
    }
}

fn config(is_root: bool, is_for_others: bool) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("fullbore".to_owned()),
        MountOption::Subtype("fullbore".to_owned()),
        MountOption::RO,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoAtime,
    ];
    // For a user everything is the user's own, and readable; others must not come in by that.
    if is_root || is_for_others {
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    config.acl = if is_for_others {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    config
}

/// Explains why the system refused a mount.
fn mount_error(dir: &Path, error: io::Error) -> Error {
    let message = format!("could not mount at {dir:?}");
    let hint = match error.kind() {
        io::ErrorKind::NotFound if !Path::new("/dev/fuse").exists() => {
            "this system has no FUSE: load it with `modprobe fuse`, or give the container /dev/fuse"
        }
        io::ErrorKind::NotFound => {
            "a user needs fusermount3, of the package fuse3; or run it as root"
        }
        io::ErrorKind::PermissionDenied => {
            "run it as root, or as a user with the package fuse3; --allow-other needs \
             user_allow_other in /etc/fuse.conf"
        }
        _ => "`fullbore restore REPO PATH --to DIR` restores single files without a mount",
    };
    Error::io(message, error).hint(hint)
}

impl MountSession {
    /// Returns what ends the mount.
    pub fn end(&self) -> MountEnd {
        self.end.clone()
    }

    /// Answers the kernel until the mount ends.
    ///
    /// # Errors
    /// The system's.
    pub fn run(self) -> Result<()> {
        let ran = self.session.run();
        ran.map_err(|error| Error::io("could not answer the kernel", error))
    }
}

impl MountEnd {
    /// Unmounts. A mount in use disappears at once from its directory; programs that have files
    /// open keep them until this process ends.
    pub fn unmount(&self) {
        self.trouble.end();
        if self.unmounter.locked().unmount().is_err() {
            detach(&self.dir);
        }
    }
}

/// Removes the mount of a process that is gone. Its directory answers "not connected".
pub fn clear_dead_mount(dir: &Path) {
    // Opened, because the kernel may still know the attributes of a dead mount.
    let found = open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    if matches!(found, Err(Errno::NOTCONN | Errno::CONNABORTED)) {
        detach(dir);
    }
}

/// Takes a mount out of the tree, although it is in use.
fn detach(dir: &Path) {
    if unmount(dir, UnmountFlags::DETACH).is_ok() {
        return;
    }
    // A user has no other way; older systems have it under the second name.
    for program in ["fusermount3", "fusermount"] {
        let mut command = Command::new(program);
        let command = command.args(["-u", "-z", "-q", "--"]).arg(dir);
        if command.status().is_ok() {
            return;
        }
    }
}
