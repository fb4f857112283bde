//! Files that the cluster's source provides instead of the file system, and the rules which files
//! there are.
//!
//! Late files, such as `backup_label`, exist only in the backup; their content is in temporary
//! files without a name.

use super::{data_dir::DataTree, layout::ClusterLayout};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath, Time},
    error::{Error, ErrorKind, Result, quoted},
    page::EntryState,
};
use fullbore_pipeline::frame::Scanned;
use fullbore_platform::{
    dir::{DirName, FileKind},
    write::anonymous_file,
};
use fullbore_tree::read::Overlay;
use std::{
    collections::{HashMap, HashSet},
    ffi::OsStr,
    fs::File,
    io::{self, Write},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::PathBuf,
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::{SystemTime, UNIX_EPOCH},
};

/// The late files of one cluster, and the rules of its layout.
pub struct LateFiles {
    layout: ClusterLayout,
    data: PathBuf,
    tablespaces: HashSet<EntryPath>,
    files: RwLock<HashMap<EntryPath, Arc<File>>>,
    /// A file that every cluster has: owner and mode are taken from it.
    model: OnceLock<Entry>,
}

impl LateFiles {
    /// Begins without files, for a cluster in `data` whose tablespaces are stored at these paths.
    pub fn new(layout: ClusterLayout, data: PathBuf, tablespaces: HashSet<EntryPath>) -> Self {
        Self {
            layout,
            data,
            tablespaces,
            files: RwLock::default(),
            model: OnceLock::new(),
        }
    }

    /// Checks that data of the server is stored with its entry (rule 14).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the entry is a link: a restored server would write to the live
    /// server's data.
    pub fn check_not_linked(&self, entry: &Entry) -> Result<()> {
        let EntryKind::Symlink(target) = &entry.kind else {
            return Ok(());
        };
        if !self.layout.is_server_data(&entry.path) {
            return Ok(());
        }
        let message = format!(
            "cannot back up the cluster: {} is a link to {}",
            quoted(&entry.path),
            quoted(target)
        );
        let error = Error::new(ErrorKind::Unsupported, message)
            .because("the server makes no links there".to_owned());
        Err(error.hint(
            "stop the server, and replace the link with its target, or move the target \
            into a tablespace",
        ))
    }

    /// Makes `file` the content of `path`.
    ///
    /// # Errors
    /// The system's.
    pub fn insert_file(
        &self,
        tree: &dyn DataTree,
        path: &[u8],
        file: Arc<File>,
    ) -> Result<Scanned> {
        let size = file
            .metadata()
            .map_err(|e| Error::io("could not read the size of a temporary file", e))?
            .len();
        self.set_content(path, file);
        let model = self.model.get_or_init(|| tree.look(b"PG_VERSION").entry);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mtime = Time {
            seconds: now.as_secs() as i64,
            nanos: 0,
        };
        let entry = Entry {
            path: path.to_vec(),
            kind: EntryKind::File { size, map: None },
            mtime,
            ctime: mtime,
            ..model.clone()
        };
        Ok(Scanned::new(entry, EntryState::Whole))
    }

    /// Makes these bytes the content of `path`.
    ///
    /// # Errors
    /// The system's.
    pub fn insert_bytes(&self, tree: &dyn DataTree, path: &[u8], bytes: &[u8]) -> Result<Scanned> {
        self.insert_file(tree, path, self.make_file(bytes)?)
    }

    /// Returns a temporary file of these bytes, for one path or several.
    ///
    /// # Errors
    /// The system's.
    pub fn make_file(&self, bytes: &[u8]) -> Result<Arc<File>> {
        let failed = |e| Error::io("could not write a temporary file", e);
        let mut file = anonymous_file(&std::env::temp_dir()).map_err(failed)?;
        file.write_all(bytes).map_err(failed)?;
        Ok(Arc::new(file))
    }

    fn set_content(&self, path: &[u8], file: Arc<File>) {
        self.files
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(path.to_vec(), file);
    }
}

impl Overlay for LateFiles {
    fn pick(&self, dir: &[u8], names: &mut Vec<DirName>) {
        self.layout.retain_backed_up(dir, names);
        if dir == b"pg_tblspc" {
            // WAL restores a tablespace made since the start; its link would lead to the live one.
            let known = |name: &DirName| {
                self.tablespaces
                    .contains(&[b"pg_tblspc/", &name.bytes[..]].concat())
            };
            // Some file systems do not report the kind of a name.
            let is_dir = |name: &DirName| match name.kind {
                FileKind::Unknown => {
                    let path = self
                        .data
                        .join("pg_tblspc")
                        .join(OsStr::from_bytes(&name.bytes));
                    path.symlink_metadata().is_ok_and(|facts| facts.is_dir())
                }
                kind => kind == FileKind::Directory,
            };
            names.retain(|name| is_dir(name) || known(name));
        }
    }

    fn open(&self, path: &[u8]) -> Option<io::Result<OwnedFd>> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.get(path).map(|file| Ok(file.try_clone()?.into()))
    }

    fn repairs(&self, path: &[u8]) -> bool {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        // A late file has no name on disk, and does not change.
        self.layout.is_repaired_by_wal(path) || files.contains_key(path)
    }

    fn expects(&self, path: &[u8]) -> bool {
        !self.layout.may_disappear(path)
    }
}
