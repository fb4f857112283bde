//! Reads the bytes of a stored backup: from the objects of a repository, or from one archive file.
//!
//! All reads are at an offset, from any thread. This module does not interpret the bytes, except
//! the end of a one-file archive, which contains the place of its root.

use super::held_bytes::HeldBytes;
use fullbore_crypt::{
    Access, KIND_BYTES, SealedFile, is_sealed, plain_object_range, stored_object_bytes,
    stored_object_range,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout,
    page::SegmentId,
    root::{Root, is_void},
    segment::Locator,
    segment_reader::SegmentReader,
};
use fullbore_pipeline::sink::{Place, place_of};
use fullbore_platform::exact_read;
use fullbore_storage::{
    LocalObjects, Objects, SealedObjects, Storages, asked_twice, failed_to_read, whole_root,
};
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ObjectName {
    Root,
    /// All pages of a backup, one after the other; of this backup if the name is empty.
    Manifest(String),
    /// Frames.
    Segment(SegmentId),
}

/// Whether the objects of a repository are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealing {
    /// They are stored as they are.
    Clear,
    /// They are encrypted, and the key that was given opens them.
    Opened,
    /// They are encrypted. Roots are read without what is private; pages and segments cannot be read.
    Locked,
}

impl Sealing {
    pub fn of(objects: &dyn Objects) -> Self {
        match objects.as_sealed().map(SealedObjects::access) {
            None => Self::Clear,
            Some(Some(Access::Read)) => Self::Opened,
            Some(_) => Self::Locked,
        }
    }

    /// Stored bytes of an object of `plain` bytes.
    pub fn stored_bytes(self, plain: u64) -> u64 {
        match self {
            Self::Clear => plain,
            Self::Opened | Self::Locked => stored_object_bytes(plain),
        }
    }

    /// The stored bytes that these plain ones depend on. The end may be behind that of the object.
    pub fn stored_range(self, plain: (u64, u64)) -> (u64, u64) {
        match self {
            Self::Clear => plain,
            Self::Opened | Self::Locked => stored_object_range(plain),
        }
    }

    /// The bytes of an object of `plain` bytes that depend on these stored ones.
    pub fn plain_range(self, stored: (u64, u64), plain: u64) -> (u64, u64) {
        match self {
            Self::Clear => stored,
            Self::Opened | Self::Locked => plain_object_range(stored, plain),
        }
    }
}

/// Reads objects of one backup, and segments of others that it refers to.
pub trait ObjectReader: Send + Sync {
    /// Replaces the contents of `out` by `len` bytes of `object`, `offset` bytes from its start.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the object does not exist, [`ErrorKind::Gone`] if the backup was forgotten,
    /// [`ErrorKind::Corrupt`] if the object is too short, or an error of the system.
    fn read_at(
        &self,
        object: &ObjectName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()>;

    /// Returns the size of `object`.
    ///
    /// # Errors
    /// As `Store::read_at`.
    fn len(&self, object: &ObjectName) -> Result<u64>;

    /// Returns the name of `object` for messages, in quotes.
    fn name(&self, object: &ObjectName) -> String;

    /// As [`ObjectReader::read_at`], but of the bytes that are stored, which the checksums in a root are over.
    fn read_stored_at(
        &self,
        object: &ObjectName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.read_at(object, offset, len, out)
    }

    /// As [`ObjectReader::read_at`], from stored bytes of the object. False if they do not have all that is needed, or are not as
    /// they were sealed; then `out` is undefined.
    ///
    /// # Errors
    /// Those of reading what opens a sealed object.
    fn open_held(
        &self,
        _object: &ObjectName,
        held: &HeldBytes,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        Ok(held.copy(offset, len, out))
    }

    /// Refuses to read content, if it is encrypted and no key was given that opens it.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`].
    fn check_readable(&self) -> Result<()> {
        Ok(())
    }

    /// Is it encrypted, and does a key open it?
    fn sealing(&self) -> Sealing {
        Sealing::Clear
    }

    /// Returns whether it is one file, or a series of volumes: the root stands in a segment.
    fn is_one_file(&self) -> bool {
        false
    }

    /// Returns whether the root stands in this object, behind the bytes that it describes.
    fn has_root(&self, _object: &ObjectName) -> bool {
        self.is_one_file()
    }

    /// Returns the files it reads from, so that a restore does not overwrite them.
    fn places(&self) -> Vec<Place> {
        Vec::new()
    }
}

#[derive(Debug)]
pub struct BackupObjects {
    objects: Arc<dyn Objects>,
    backup: String,
    suffix: OnceLock<&'static str>,
    root: &'static str,
    had_root: AtomicBool,
}

impl BackupObjects {
    /// Makes a reader of backup `id` of the repository, without reading anything.
    pub fn new(objects: &Arc<dyn Objects>, id: &str) -> Self {
        Self {
            objects: objects.clone(),
            backup: id.to_owned(),
            suffix: OnceLock::new(),
            root: layout::ROOT,
            had_root: false.into(),
        }
    }

    /// Makes a reader of the durable part of a backup that has not ended.
    pub fn partial(objects: &Arc<dyn Objects>, id: &str) -> Self {
        Self {
            root: layout::PARTIAL,
            ..Self::new(objects, id)
        }
    }

    /// Sets the suffix of its segment names, which is known once the root was read; `tar.zst` until
    /// then.
    pub fn set_suffix(&self, suffix: &'static str) {
        let _ = self.suffix.set(suffix);
    }

    /// Records that its root was read. From here on a missing object is damage only while the root
    /// exists: a forgotten backup loses its root first.
    pub fn set_had_root(&self) {
        self.had_root.store(true, Relaxed);
    }

    /// Returns all bytes of the root, with one request.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the root does not exist, or is void; or errors of the storage.
    pub fn root_bytes(&self) -> Result<Vec<u8>> {
        let key = self.key(&ObjectName::Root);
        match self.objects.get(&key)? {
            Some((bytes, _)) if !is_void(&bytes) => Ok(bytes),
            _ => Err(absent(&*self.objects, &key)),
        }
    }

    /// Returns the root of backup `id`, which messages call `name`, with all its lists.
    ///
    /// # Errors
    /// As [`BackupObjects::root_bytes`]; [`ErrorKind::Corrupt`] if it is damaged.
    pub fn root(&self, id: &str, name: &str) -> Result<Root> {
        let root = Root::of_backup_as_stored(id, &self.root_bytes()?, name)?;
        whole_root(&*self.objects, root, name)
    }

    fn gone_or(&self, error: Error) -> Error {
        let is_missing = error.kind == ErrorKind::NotFound && self.had_root.load(Relaxed);
        let is_absent = |key: &str| matches!(self.objects.stat(key), Ok(None));
        if !is_missing || !is_absent(&self.key(&ObjectName::Root)) {
            return error;
        }
        let repository = self.objects.describe("");
        if is_absent(layout::REPOSITORY) {
            let message = format!("repository {repository} does not exist any more");
            return Error::new(ErrorKind::Gone, message)
                .because("it was moved or removed while it was read");
        }
        Error::new(
            ErrorKind::Gone,
            format!("backup {:?} is not in {repository} any more", self.backup),
        )
        .because("it was forgotten while it was read")
        .hint("`fullbore list` shows the backups")
    }

    fn key(&self, object: &ObjectName) -> String {
        let part_of = |id: &str, name: &str| {
            let id = if id.is_empty() { &self.backup } else { id };
            format!("{}/{id}/{name}", layout::BACKUPS)
        };
        match object {
            ObjectName::Root => part_of("", self.root),
            ObjectName::Manifest(backup) => part_of(backup, layout::MANIFEST),
            ObjectName::Segment(id) => {
                let suffix = self.suffix.get().unwrap_or(&"tar.zst");
                part_of(&id.backup, &layout::segment(id.stream, id.number, suffix))
            }
        }
    }
}

/// Returns the storage's own error for a missing object.
fn absent(objects: &dyn Objects, key: &str) -> Error {
    match objects.read_at(key, 0, 0, &mut Vec::new()) {
        Err(error) if error.kind == ErrorKind::NotFound => error,
        _ => Error::new(
            ErrorKind::NotFound,
            format!("could not open {}", objects.describe(key)),
        )
        .because("it does not exist"),
    }
}

impl ObjectReader for BackupObjects {
    fn read_at(
        &self,
        object: &ObjectName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.objects
            .read_at(&self.key(object), offset, len, out)
            .map_err(|error| self.gone_or(error))
    }

    fn len(&self, object: &ObjectName) -> Result<u64> {
        let key = self.key(object);
        match self.objects.stat(&key)? {
            Some(len) => Ok(len),
            None => Err(self.gone_or(absent(&*self.objects, &key))),
        }
    }

    fn name(&self, object: &ObjectName) -> String {
        self.objects.describe(&self.key(object))
    }

    fn read_stored_at(
        &self,
        object: &ObjectName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let Some(sealed) = self.objects.as_sealed() else {
            return self.read_at(object, offset, len, out);
        };
        let stored = sealed.as_stored();
        stored
            .read_at(&self.key(object), offset, len, out)
            .map_err(|error| self.gone_or(error))
    }

    fn open_held(
        &self,
        object: &ObjectName,
        held: &HeldBytes,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let Some(sealed) = self.objects.as_sealed() else {
            return Ok(held.copy(offset, len, out));
        };
        sealed.open_held(
            &self.key(object),
            |start, len| held.get(start, len),
            (offset, len),
            out,
        )
    }

    fn check_readable(&self) -> Result<()> {
        let key = self.key(&ObjectName::Manifest(String::new()));
        let sealed = self.objects.as_sealed();
        sealed.map_or(Ok(()), |sealed| sealed.check_readable(&key))
    }

    fn sealing(&self) -> Sealing {
        Sealing::of(&*self.objects)
    }

    fn places(&self) -> Vec<Place> {
        let root = self.objects.as_local().map(LocalObjects::root);
        root.and_then(place_of).into_iter().collect()
    }
}

#[derive(Debug)]
pub struct OneFileObjects {
    path: PathBuf,
    file: ArchiveFile,
    root: Locator,
}

/// The bytes of an archive, opened if they are encrypted.
#[derive(Debug)]
pub(super) enum ArchiveFile {
    Clear(File),
    Sealed(Box<SealedFile<File>>),
}

impl ArchiveFile {
    /// Opens the file at `path`, with the keys of `storages` if it is encrypted.
    pub(super) fn open(storages: &Storages, path: &Path) -> Result<Self> {
        let file = open_file(path, |path| File::open(path))?;
        let clear = Self::Clear(file);
        let stored_bytes = file_len(&clear, path)?;
        let mut head = Vec::new();
        let len = stored_bytes.min(KIND_BYTES as u64) as usize;
        read_exactly(&clear, path, 0, len, &mut head)?;
        match clear {
            Self::Clear(file) if is_sealed(&head) => {
                let name = format!("{path:?}");
                let keys = storages.archive_keys(&head, &name)?;
                let sealed = SealedFile::open(file, stored_bytes, &keys, &name)?;
                Ok(Self::Sealed(sealed.into()))
            }
            clear => Ok(clear),
        }
    }
}

impl OneFileObjects {
    /// Opens the archive at `path`; `None` if fullbore did not write the file.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it begins like an archive of fullbore but does not end like one, or the
    /// system's error.
    pub fn open(storages: &Storages, path: &Path) -> Result<Option<Self>> {
        let file = ArchiveFile::open(storages, path)?;
        let bytes = file_len(&file, path)?;
        let root = archive_reader(&file, path, bytes).locator()?;
        match root {
            Some(root) => Ok(Some(Self {
                path: path.to_owned(),
                file,
                root,
            })),
            None if !archive_reader(&file, path, bytes).begins_with_label()? => Ok(None),
            None => Err(Error::corrupt(format!("archive {path:?} is damaged"))
                .because("its end does not contain the place of its root")
                .hint("`fullbore restore - < FILE` restores the readable part of its stream")),
        }
    }

    /// Returns whether fullbore wrote the file at `path`, damaged or not. A file that cannot be
    /// read does not count.
    pub fn is_ours(storages: &Storages, path: &Path) -> bool {
        ArchiveFile::open(storages, path)
            .and_then(|file| {
                let bytes = file_len(&file, path)?;
                archive_reader(&file, path, bytes).begins_with_label()
            })
            .unwrap_or(false)
    }

    /// Returns the offset of this object in the file.
    fn start(&self, object: &ObjectName) -> Result<u64> {
        match object {
            ObjectName::Root => Ok(self.root.offset),
            ObjectName::Segment(_) => Ok(0),
            ObjectName::Manifest(_) => Err(Error::new(
                ErrorKind::NotFound,
                format!("could not find {}", self.name(object)),
            )),
        }
    }
}

impl ObjectReader for OneFileObjects {
    fn is_one_file(&self) -> bool {
        true
    }

    fn read_at(
        &self,
        object: &ObjectName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let position = self.start(object)?.saturating_add(offset);
        read_exactly(&self.file, &self.path, position, len, out)
    }

    fn len(&self, object: &ObjectName) -> Result<u64> {
        match object {
            ObjectName::Root => Ok(self.root.len),
            _ => self
                .start(object)
                .and_then(|_| file_len(&self.file, &self.path)),
        }
    }

    fn name(&self, object: &ObjectName) -> String {
        match object {
            ObjectName::Root => format!("the root of {:?}", self.path),
            ObjectName::Manifest(_) => format!("the manifest of {:?}", self.path),
            ObjectName::Segment(_) => format!("{:?}", self.path),
        }
    }

    fn places(&self) -> Vec<Place> {
        place_of(&self.path).into_iter().collect()
    }
}

/// Returns a reader of the frames of a segment of this size.
pub fn segment_reader<'a>(
    store: &'a dyn ObjectReader,
    object: &'a ObjectName,
    bytes: u64,
) -> SegmentReader<impl Fn(u64, usize, &mut Vec<u8>) -> Result<()> + 'a> {
    SegmentReader::new(bytes, move |offset, len, out: &mut Vec<u8>| {
        store.read_at(object, offset, len, out)
    })
}

fn archive_reader<'a>(
    file: &'a ArchiveFile,
    path: &'a Path,
    bytes: u64,
) -> SegmentReader<impl Fn(u64, usize, &mut Vec<u8>) -> Result<()> + 'a> {
    SegmentReader::new(bytes, move |offset, len, out: &mut Vec<u8>| {
        read_exactly(file, path, offset, len, out)
    })
}

fn open_file(path: &Path, open: fn(&Path) -> io::Result<File>) -> Result<File> {
    asked_twice(|| open(path)).map_err(|e| failed_to_read(format!("could not open {path:?}"), e))
}

pub(super) fn file_len(file: &ArchiveFile, path: &Path) -> Result<u64> {
    let file = match file {
        ArchiveFile::Clear(file) => file,
        ArchiveFile::Sealed(sealed) => return Ok(sealed.plain_bytes()),
    };
    Ok(asked_twice(|| file.metadata())
        .map_err(|e| failed_to_read(format!("could not examine {path:?}"), e))?
        .len())
}

/// Checks the length against the file before it allocates memory.
pub(super) fn read_exactly(
    file: &ArchiveFile,
    path: &Path,
    offset: u64,
    len: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let end = offset.saturating_add(len as u64);
    let clear = match file {
        ArchiveFile::Clear(clear) => clear,
        ArchiveFile::Sealed(sealed) => return sealed.read_at(offset, len, out),
    };
    // The length of the file is only checked for larger reads: reading a megabyte costs less than
    // the check. No file is so long that the system would not take the offset.
    if end > i64::MAX as u64 || len > 1 << 20 && end > file_len(file, path)? {
        return Err(Error::corrupt(format!("could not read {path:?}")).because("it ends too early"));
    }
    let message = || format!("could not read {len} bytes at byte {offset} of {path:?}");
    asked_twice(|| exact_read::read_exactly(clear, offset, len, out)).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => Error::corrupt(message()).because("it ends too early"),
        _ => failed_to_read(message(), e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_file_can_have_is_damage() {
        let file = ArchiveFile::Clear(tempfile::tempfile().unwrap());
        for (offset, len) in [
            (i64::MAX as u64 - 1, 2),
            (u64::MAX, 1),
            (0, 1),
            (1 << 40, 1),
        ] {
            let error =
                read_exactly(&file, Path::new("f"), offset, len, &mut Vec::new()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt, "{offset} {len}: {error}");
        }
    }
}
