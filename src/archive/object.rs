//! Where the bytes of a stored backup are read from: the objects of a repository, or one archive file.
//!
//! All is read by position, from any thread. Nothing here knows what the bytes mean, except that a
//! one-file archive says at its end where its root is.

use crate::{
    crypt::{Access, KIND_BYTES, SealedFile, is_sealed, plain_object_range, stored_object_bytes},
    error::{Error, ErrorKind, Result},
    format::{
        layout,
        page::SegmentId,
        root::is_void,
        segment::{
            EMPTY_ZSTD, LOCATOR_BYTES, Locator, SEEK_FOOTER_BYTES, SERVICE_HEADER_BYTES, Service,
            seek_table_len, skippable_len,
        },
    },
    platform::is_media_error,
    sink::{Place, place_of},
    storage::{LocalObjects, Objects, SealedObjects, access::archive_keys},
};
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// One of the things a backup is stored as.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ObjectName {
    /// The root.
    Root,
    /// All pages of a backup, one after the other; of this backup if it is not named.
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
    /// Of the objects of a repository.
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
    /// Replace the contents of `out` by `len` bytes of `object`, `offset` bytes from its start.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if the object is not there, [`Kind::Gone`] if the backup was forgotten, [`Kind::Corrupt`] if the object
    /// ends before, or the system's error.
    fn read_at(
        &self,
        object: &ObjectName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()>;

    /// Bytes of `object`.
    ///
    /// # Errors
    /// As [`Store::read_at`].
    fn len(&self, object: &ObjectName) -> Result<u64>;

    /// What messages call `object`, in quotes.
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

    /// Is it one file, with pages and root in its only segment?
    fn is_one_file(&self) -> bool {
        false
    }

    /// What it reads from, so that a restore into what that is in leaves it alone.
    fn places(&self) -> Vec<Place> {
        Vec::new()
    }
}

/// A backup in a repository.
#[derive(Debug)]
pub struct BackupObjects {
    objects: Arc<dyn Objects>,
    backup: String,
    suffix: OnceLock<&'static str>,
    root: &'static str,
    had_root: AtomicBool,
}

impl BackupObjects {
    /// Backup `id` of the repository. Nothing is read yet.
    pub fn new(objects: &Arc<dyn Objects>, id: &str) -> Self {
        Self {
            objects: objects.clone(),
            backup: id.to_owned(),
            suffix: OnceLock::new(),
            root: layout::ROOT,
            had_root: false.into(),
        }
    }

    /// As far as it came, if it has not ended.
    pub fn partial(objects: &Arc<dyn Objects>, id: &str) -> Self {
        Self {
            root: layout::PARTIAL,
            ..Self::new(objects, id)
        }
    }

    /// How the names of its segments end; `tar.zst` until this is called. Known once the root was read.
    pub fn set_suffix(&self, suffix: &'static str) {
        let _ = self.suffix.set(suffix);
    }

    /// Its root was read. What is missing from now on is damage only as long as the root is there: that goes first of a backup
    /// that is forgotten.
    pub fn set_had_root(&self) {
        self.had_root.store(true, Relaxed);
    }

    /// All bytes of the root, which is read by one request.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none, or if it only says that no root may come; or the storage's.
    pub fn root_bytes(&self) -> Result<Vec<u8>> {
        let key = self.key(&ObjectName::Root);
        match self.objects.get(&key)? {
            Some((bytes, _)) if !is_void(&bytes) => Ok(bytes),
            _ => Err(absent(&*self.objects, &key)),
        }
    }

    fn gone_or(&self, error: Error) -> Error {
        let is_missing = error.kind == ErrorKind::NotFound && self.had_root.load(Relaxed);
        let is_absent = |key: &str| matches!(self.objects.stat(key), Ok(None));
        if !is_missing || !is_absent(&self.key(&ObjectName::Root)) {
            return error;
        }
        let repository = self.objects.describe("");
        if is_absent(layout::REPOSITORY) {
            let what = format!("repository {repository} is not there any more");
            return Error::new(ErrorKind::Gone, what)
                .because("it was moved or removed while it was read");
        }
        Error::new(
            ErrorKind::Gone,
            format!("backup {:?} is not in {repository} any more", self.backup),
        )
        .because("it was forgotten while it was read")
        .hint("`fullbore list` shows which backups there are")
    }

    fn key(&self, object: &ObjectName) -> String {
        let of = |id: &str, name: &str| {
            let id = if id.is_empty() { &self.backup } else { id };
            format!("{}/{id}/{name}", layout::BACKUPS)
        };
        match object {
            ObjectName::Root => of("", self.root),
            ObjectName::Manifest(backup) => of(backup, layout::MANIFEST),
            ObjectName::Segment(id) => {
                let suffix = self.suffix.get().unwrap_or(&"tar.zst");
                of(&id.backup, &layout::segment(id.stream, id.number, suffix))
            }
        }
    }
}

/// The storage's own error of an object that is absent.
fn absent(objects: &dyn Objects, key: &str) -> Error {
    match objects.read_at(key, 0, 0, &mut Vec::new()) {
        Err(error) if error.kind == ErrorKind::NotFound => error,
        _ => Error::new(
            ErrorKind::NotFound,
            format!("could not open {}", objects.describe(key)),
        )
        .because("it is not there"),
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

/// A one-file archive.
#[derive(Debug)]
pub struct OneFileObjects {
    path: PathBuf,
    file: ArchiveFile,
    root: Locator,
}

/// The bytes of an archive, opened if they are encrypted.
#[derive(Debug)]
enum ArchiveFile {
    Clear(File),
    Sealed(Box<SealedFile<File>>),
}

impl ArchiveFile {
    /// Opens the file at `path`, with the keys of this process if it is encrypted.
    fn open(path: &Path) -> Result<Self> {
        let file = open_file(path, |path| File::open(path))?;
        let clear = Self::Clear(file);
        let stored_bytes = file_len(&clear, path)?;
        let mut head = Vec::new();
        let len = stored_bytes.min(KIND_BYTES as u64) as usize;
        read_exactly(&clear, path, 0, len, &mut head)?;
        match clear {
            Self::Clear(file) if is_sealed(&head) => {
                let name = format!("{path:?}");
                let keys = archive_keys(&head, &name)?;
                let sealed = SealedFile::open(file, stored_bytes, &keys, &name)?;
                Ok(Self::Sealed(sealed.into()))
            }
            clear => Ok(clear),
        }
    }
}

impl OneFileObjects {
    /// Open the archive at `path`; `None` if it is a file that this program did not write.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] if it begins as an archive of ours and does not end as one, or the system's error.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let file = ArchiveFile::open(path)?;
        match locate(&file, path)? {
            Some(root) => Ok(Some(Self {
                path: path.to_owned(),
                file,
                root,
            })),
            None if !is_ours(&file, path)? => Ok(None),
            None => Err(Error::corrupt(format!("archive {path:?} is damaged"))
                .because("its end does not say where its root is")
                .hint("`fullbore restore - < FILE` restores what its stream still holds")),
        }
    }

    /// Did this program write what stands at `path`, damaged or not? What cannot be read is no proof.
    pub fn is_ours(path: &Path) -> bool {
        ArchiveFile::open(path)
            .and_then(|file| is_ours(&file, path))
            .unwrap_or(false)
    }

    /// Where in the file this object begins.
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
        let at = self.start(object)?.saturating_add(offset);
        read_exactly(&self.file, &self.path, at, len, out)
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

/// Where the root is: the locator stands before the seek table, or at the very end where there is none.
fn locate(file: &ArchiveFile, path: &Path) -> Result<Option<Locator>> {
    let len = file_len(file, path)?;
    let mut bytes = Vec::new();
    let footer = len.checked_sub(SEEK_FOOTER_BYTES as u64);
    let mut table_len = 0;
    if let Some(footer) = footer {
        read_exactly(file, path, footer, SEEK_FOOTER_BYTES, &mut bytes)?;
        table_len = seek_table_len(&bytes, len).unwrap_or(0);
    }
    let Some(at) = len.checked_sub(table_len + LOCATOR_BYTES) else {
        return Ok(None);
    };
    read_exactly(file, path, at, LOCATOR_BYTES as usize, &mut bytes)?;
    let within = |root: &Locator| {
        root.offset
            .checked_add(root.len)
            .is_some_and(|end| end <= len)
    };
    Ok(Locator::parse(&bytes).filter(within))
}

/// Does it begin with a frame and a label? That frame is empty in zstd and holds data in lz4; a filler may follow it.
fn is_ours(file: &ArchiveFile, path: &Path) -> Result<bool> {
    let start = head(file, path, 0)?;
    let mut at = if start.starts_with(&EMPTY_ZSTD) {
        EMPTY_ZSTD.len() as u64
    } else {
        lz4_frame_len(file, path, &start)?
    };
    if let (Some(filler), None) = (
        skippable_len(&head(file, path, at)?),
        Service::parse(&head(file, path, at)?),
    ) {
        at += filler;
    }
    Ok(
        Service::parse(&head(file, path, at)?)
            .is_some_and(|(service, _)| service == Service::Label),
    )
}

/// Blocks of the first frame of lz4, at most: 64 MiB in blocks of 4 MiB, and one more.
const MAX_LZ4_BLOCKS: usize = 17;

/// The length of the frame of lz4 that a file begins with; 0 if it does not. Ours have a checksum of the content and none
/// of blocks.
fn lz4_frame_len(file: &ArchiveFile, path: &Path, start: &[u8]) -> Result<u64> {
    const START: [u8; 4] = 0x184D_2204u32.to_le_bytes();
    let mut at = if start[4] & 8 == 0 { 7 } else { 15 }; // is the size of the content there?
    for _ in 0..if start.starts_with(&START) {
        MAX_LZ4_BLOCKS
    } else {
        0
    } {
        let [a, b, c, d, ..] = head(file, path, at)?;
        let size = u32::from_le_bytes([a, b, c, d]) & 0x7fff_ffff; // the highest bit says "stored"
        at += 4 + u64::from(size);
        if size == 0 {
            return Ok(at + 4);
        }
    }
    Ok(0)
}

/// A few bytes at `at`, zeros where the file ends before.
fn head(file: &ArchiveFile, path: &Path, at: u64) -> Result<[u8; SERVICE_HEADER_BYTES]> {
    let (mut bytes, there) = (
        Vec::new(),
        file_len(file, path)?
            .saturating_sub(at)
            .min(SERVICE_HEADER_BYTES as u64),
    );
    read_exactly(file, path, at, there as usize, &mut bytes)?;
    bytes.resize(SERVICE_HEADER_BYTES, 0);
    Ok(std::array::from_fn(|i| bytes[i]))
}

fn open_file(path: &Path, open: fn(&Path) -> io::Result<File>) -> Result<File> {
    asked_twice(|| open(path)).map_err(|e| failed(format!("could not open {path:?}"), e))
}

fn file_len(file: &ArchiveFile, path: &Path) -> Result<u64> {
    let file = match file {
        ArchiveFile::Clear(file) => file,
        ArchiveFile::Sealed(sealed) => return Ok(sealed.plain_bytes()),
    };
    Ok(asked_twice(|| file.metadata())
        .map_err(|e| failed(format!("could not look at {path:?}"), e))?
        .len())
}

/// What a disk does not give once it may give when it is asked again; a repair would give up what it did not get.
fn asked_twice<T>(mut ask: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match ask() {
        Err(error) if is_media_error(&error) => ask(),
        answer => answer,
    }
}

/// A sector that cannot be read is damage as a flipped bit is: the rest of the object may be whole.
fn failed(what: String, error: io::Error) -> Error {
    let kind = if is_media_error(&error) {
        ErrorKind::Corrupt
    } else {
        ErrorKind::of(&error)
    };
    Error {
        kind,
        ..Error::io(what, error)
    }
}

/// Checks the length against the file before memory is taken.
fn read_exactly(
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
    // A megabyte costs less to read than to ask for: the length of the file is looked at for what is larger only. No file is so
    // long that the system would not take the offset.
    if end > i64::MAX as u64 || len > 1 << 20 && end > file_len(file, path)? {
        return Err(Error::corrupt(format!("could not read {path:?}")).because("it ends too early"));
    }
    out.resize(len, 0);
    let what = || format!("could not read {len} bytes at byte {offset} of {path:?}");
    asked_twice(|| clear.read_exact_at(out, offset)).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => Error::corrupt(what()).because("it ends too early"),
        _ => failed(what(), e),
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
