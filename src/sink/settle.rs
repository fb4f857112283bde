//! Making a restored tree durable: what each file system of it wants, see [`Way`].

use super::tree::Tree;
use crate::{
    error::Result,
    format::entry::join,
    platform::{
        durable::{self, Way},
        walk::{self, FileKind},
        write,
    },
};
use std::{io, sync::atomic::Ordering::Relaxed};

/// What is made durable by itself.
struct Each {
    /// On this file system.
    dev: u64,
    /// Files too?
    files: bool,
    /// Is it durable already, and only asked for errors? What may not be opened is passed over then.
    is_durable: bool,
}

impl Tree {
    /// Something is written to a file system of this way. All that is in a target that was empty is asked at the end; of others
    /// only what is written.
    pub(super) fn goes(&self, way: Way) {
        let way = if way == Way::Asked && self.options.overwrite { Way::Each } else { way };
        self.ways.fetch_or(way.bit(), Relaxed);
    }

    /// Is each file to be made durable by itself, when it is written?
    pub(super) fn settles_each(&self) -> bool {
        self.wants(Way::Each)
    }

    fn wants(&self, way: Way) -> bool {
        self.ways.load(Relaxed) & way.bit() != 0
    }

    /// Make everything durable: one call for each file system, and where that is not enough, for each file or directory.
    ///
    /// # Errors
    /// The system's, of anything that was written since the tree was opened.
    pub fn sync(&self) -> Result<()> {
        let mut is_durable = true;
        let systems = self.systems.lock().unwrap_or_else(|e| e.into_inner());
        for fd in systems.values() {
            match durable::sync_fs(fd) {
                Err(e) if matches!(e.kind(), io::ErrorKind::Unsupported) => is_durable = false,
                other => other.map_err(|e| self.error("make durable what was restored to", b"", e))?,
            }
        }
        let files = !is_durable || self.wants(Way::Asked);
        // Of directories that were there before, those that were written into have been settled.
        if !files && (self.options.overwrite || !self.settles_each()) {
            return Ok(());
        }
        self.places.mount_points().chain([&b""[..]]).try_for_each(|at| {
            let dev = walk::stat_fd(&self.places.resolve(at).0.dir).map_err(|e| self.error("look at", at, e))?.dev;
            self.sync_each(at, &Each { dev, files, is_durable })
        })
    }

    /// Every directory by itself, and every file if that is wanted.
    fn sync_each(&self, at: &[u8], each: &Each) -> Result<()> {
        let failed = |e| self.error("make durable", at, e);
        let passed_over = |e: &io::Error| each.is_durable && e.kind() == io::ErrorKind::PermissionDenied;
        let dir = match self.open_dir(at) {
            Err(e) if passed_over(&e) => return Ok(()),
            other => other.map_err(failed)?,
        };
        if walk::stat_fd(&dir).map_err(failed)?.dev != each.dev {
            return Ok(());
        }
        for name in walk::read_dir(&dir, &mut Vec::new()).map_err(failed)? {
            let path = join(at, &name.bytes);
            match walk::stat(&dir, &name.bytes).map_err(failed)?.kind {
                FileKind::Directory => self.sync_each(&path, each)?,
                FileKind::File if each.files => match walk::open_read(&dir, &name.bytes, self.options.tricks) {
                    Err(e) if passed_over(&e) => {}
                    file => file.and_then(write::fsync).map_err(failed)?,
                },
                _ => {}
            }
        }
        write::fsync(dir).map_err(failed)
    }
}
