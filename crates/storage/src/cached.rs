//! A wrapper that keeps small objects, and small ranges of objects, in a local directory.
//!
//! An object is taken from the cache only if this process listed it before, with the length and the version that the cache has: the
//! storage alone says which objects there are. A storage whose listings have no versions gets no cache. Every file of the cache has a digest over its name and content, so damage, or a file that was moved or
//! exchanged, counts as absent. A directory that another user owns, or could have led here by a link, is not used. Nothing depends on the cache: it may be deleted at any time, and errors of its files are not errors.
//!
//! A manifest is kept when it is written, too.

use super::{
    Leased, ListedObject, LocalObjects, Objects, Put, PutIf, SealedObjects, StorageAbilities,
    StoredObject, Take, Upload, Version,
};
use fullbore_format::{
    error::Result,
    key_kind::{BackupPart, KeyKind},
};
use fullbore_platform::{debug, guarded_path::own_dir, queue::Locked};
use fullbore_wire::key::is_below;
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

/// Bytes of an object or range that is worth keeping at most: more are read as fast anew.
const MAX_ENTRY_BYTES: u64 = 8 << 20;

/// Bytes of a piece of an object that was written: a page of a manifest is in one or two.
const PIECE_BYTES: u64 = 1 << 20;

/// Bytes of a digest, before everything else in a file.
const DIGEST_BYTES: usize = 32;

/// Where a cache is, and what it keeps.
#[derive(Debug, Clone)]
pub struct CacheSpec {
    /// Its directory, which it makes.
    pub dir: PathBuf,
    /// Bytes of all its files at most; the ones that were not used for longest are deleted.
    pub max_bytes: u64,
    /// May an object of this key be taken from the cache? An answer is as old as the last listing of this process, so whoever must see
    /// what another process did since then may not use the cache.
    pub is_kept: fn(&str) -> bool,
}

/// Objects whose small parts are kept in a local directory. Clones share it.
#[derive(Debug, Clone)]
pub struct CachedObjects {
    inner: Arc<dyn Objects>,
    cache: Arc<Cache>,
}

#[derive(Debug)]
struct Cache {
    spec: CacheSpec,
    /// Tells the objects of one storage from those of another.
    storage: String,
    /// The objects that the storage listed.
    listed: Mutex<BTreeMap<String, CachedVersion>>,
    /// Bytes of all files; `None` before the first one is written.
    used_bytes: Mutex<Option<u64>>,
    /// Whether the directory belongs to this user; looked at once.
    is_own: OnceLock<bool>,
    /// Numbers of files that are being written.
    last_number: AtomicU64,
}

/// The content of an object that a listing had.
#[derive(Debug, Clone)]
struct CachedVersion {
    bytes: u64,
    version: Version,
}

/// What a file of the cache has.
struct CacheEntry<'a> {
    key: &'a str,
    object: &'a CachedVersion,
    /// The range; `None` for the whole object with its version.
    range: Option<(u64, u64)>,
}

impl CachedObjects {
    /// Keeps what is read of `inner`.
    pub fn new(inner: Arc<dyn Objects>, spec: CacheSpec) -> Self {
        let cache = Cache {
            spec,
            storage: inner.describe(""),
            listed: Mutex::default(),
            used_bytes: Mutex::default(),
            is_own: OnceLock::new(),
            last_number: AtomicU64::new(0),
        };
        Self {
            inner,
            cache: Arc::new(cache),
        }
    }
}

impl Cache {
    /// Returns the content that an object had when it was listed, if it may be kept.
    fn listed(&self, key: &str) -> Option<CachedVersion> {
        if !(self.spec.is_kept)(key) || !self.has_own_dir() {
            return None;
        }
        self.listed.locked().get(key).cloned()
    }

    /// Returns whether the directory is of this user. Files of another user's directory are neither read nor deleted, though root could.
    fn has_own_dir(&self) -> bool {
        *self.is_own.get_or_init(|| {
            let own = own_dir(&self.spec.dir);
            if let Err(error) = &own {
                debug(|| format!("no cache in {:?}: {error}", self.spec.dir));
            }
            own.is_ok()
        })
    }

    fn forget(&self, key: &str) {
        self.listed.locked().remove(key);
    }

    fn remember(&self, prefix: &str, objects: &[ListedObject]) {
        let mut listed = self.listed.locked();
        listed.retain(|key, _| !is_below(key, prefix));
        for object in objects
            .iter()
            .filter(|object| (self.spec.is_kept)(&object.key))
        {
            let Some(version) = object.version.clone() else {
                continue;
            };
            let bytes = object.bytes;
            listed.insert(object.key.clone(), CachedVersion { bytes, version });
        }
    }

    /// Returns the name of a file, which has all that the content depends on.
    fn name_of(&self, entry: &CacheEntry<'_>) -> String {
        let text = format!(
            "{}\n{}\n{}\n{}\n{:?}",
            self.storage,
            entry.key,
            entry.object.bytes,
            tag_of(&entry.object.version),
            entry.range
        );
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }

    /// Returns the name of a file about an object that this user has written, whose version is not known then: of a piece of [`PIECE_BYTES`],
    /// or of the head, which has the length, and the version of the first listing that had the object.
    fn name_of_written(&self, key: &str, piece: Option<u64>) -> String {
        let text = format!("{}\n{key}\nwritten\n{piece:?}", self.storage);
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }

    /// Returns the range of an object that this user has written. The first listing that has it tells its version. Until then it could be
    /// replaced by one of the same length, and then its pages have other digests than a root says.
    fn load_written(
        &self,
        key: &str,
        object: &CachedVersion,
        (offset, len): (u64, u64),
    ) -> Option<Vec<u8>> {
        let head = self.name_of_written(key, None);
        let (known, version) = split_content(&self.load(&head)?)?;
        if known != object.bytes.to_le_bytes() {
            return None;
        }
        if version.as_str().is_empty() {
            self.keep(&head, &join_content(&known, &object.version));
        } else if tag_of(&version) != tag_of(&object.version) {
            return None;
        }
        let mut range = Vec::with_capacity(len as usize);
        let end = offset + len;
        for number in offset / PIECE_BYTES..end.div_ceil(PIECE_BYTES) {
            let piece = self.load(&self.name_of_written(key, Some(number)))?;
            let start = number * PIECE_BYTES;
            let from = offset.saturating_sub(start);
            let to = PIECE_BYTES.min(end - start);
            range.extend_from_slice(piece.get(from as usize..to as usize)?);
        }
        Some(range)
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.spec.dir.join(&name[..2]).join(name)
    }

    fn load(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.path_of(name);
        let mut file = fs::read(&path).ok()?;
        if file.len() < DIGEST_BYTES
            || digest_of(name, &file[DIGEST_BYTES..]) != file[..DIGEST_BYTES]
        {
            debug(|| format!("{path:?} is damaged"));
            let _ = fs::remove_file(&path); // it counts as absent either way
            return None;
        }
        if let Ok(used) = fs::File::open(&path) {
            let _ = used.set_modified(SystemTime::now()); // only the order of deletions depends on it
        }
        file.drain(..DIGEST_BYTES);
        Some(file)
    }

    fn keep(&self, name: &str, content: &[u8]) {
        if content.len() as u64 > MAX_ENTRY_BYTES.min(self.spec.max_bytes / 4) {
            return;
        }
        if let Err(error) = self.try_keep(name, content) {
            debug(|| format!("could not write to the cache {:?}: {error}", self.spec.dir));
        }
    }

    fn try_keep(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.path_of(name);
        let mut used = self.used_bytes.locked();
        let before = match *used {
            Some(bytes) => bytes,
            None => files_below(&self.spec.dir)?
                .iter()
                .map(|file| file.bytes)
                .sum(),
        };
        let now = before + (DIGEST_BYTES + content.len()) as u64;
        *used = Some(if now > self.spec.max_bytes {
            self.make_room()?
        } else {
            now
        });
        drop(used);
        let dir = path.parent().unwrap_or(&self.spec.dir);
        // Roots and pages name the files of a backup: only their owner may read them.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)?;
        let number = self.last_number.fetch_add(1, Relaxed);
        let written = dir.join(format!("{name}.{}-{number}", process::id()));
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&written)?;
        let done = file
            .write_all(&digest_of(name, content))
            .and_then(|()| file.write_all(content))
            .and_then(|()| fs::rename(&written, &path));
        if done.is_err() {
            let _ = fs::remove_file(&written); // what it leaves is counted, and deleted in its turn
        }
        done
    }

    /// Deletes the files that were not used for longest until a quarter is free, and returns the bytes that are left.
    fn make_room(&self) -> io::Result<u64> {
        let mut files = files_below(&self.spec.dir)?;
        files.sort_by_key(|file| file.used);
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        for file in files {
            if bytes <= self.spec.max_bytes / 4 * 3 {
                break;
            }
            if fs::remove_file(&file.path).is_ok() {
                bytes -= file.bytes;
            }
        }
        Ok(bytes)
    }
}

/// Returns a version without the quotes that some answers have around it.
fn tag_of(version: &Version) -> &str {
    version.as_str().trim_matches('"')
}

fn digest_of(name: &str, content: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(name.as_bytes());
    hasher.update(content);
    hasher.finalize().into()
}

struct CacheFile {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Returns the files of a cache, which are two levels deep.
fn files_below(dir: &Path) -> io::Result<Vec<CacheFile>> {
    let mut files = Vec::new();
    let dirs = match fs::read_dir(dir) {
        Ok(dirs) => dirs,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
        Err(error) => return Err(error),
    };
    // Beside them there may be programs, which other hosts installed.
    let is_ours = |dir: &fs::DirEntry| dir.file_name().len() == 2;
    for dir in dirs.flatten().filter(is_ours) {
        for file in fs::read_dir(dir.path()).into_iter().flatten().flatten() {
            let Ok(meta) = file.metadata() else {
                continue; // deleted by another process
            };
            files.push(CacheFile {
                path: file.path(),
                bytes: meta.len(),
                used: meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            });
        }
    }
    Ok(files)
}

/// Returns a whole object in a file: the length of its version, its version, its bytes.
fn join_content(bytes: &[u8], version: &Version) -> Vec<u8> {
    let version = version.as_str().as_bytes();
    let length = (version.len() as u32).to_le_bytes();
    [&length, version, bytes].concat()
}

fn split_content(content: &[u8]) -> Option<(Vec<u8>, Version)> {
    let (length, rest) = content.split_first_chunk::<4>()?;
    let (version, bytes) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let version = std::str::from_utf8(version).ok()?;
    Some((bytes.to_vec(), Version::new(version)))
}

/// An upload of which a copy goes to the cache: the next backup compares its source with it.
#[derive(Debug)]
struct KeptUpload {
    inner: Box<dyn Upload>,
    cache: Arc<Cache>,
    key: String,
    /// The bytes of the last piece so far.
    piece: Vec<u8>,
    /// The bytes of the pieces before it.
    bytes: u64,
    /// Cleared when it is too large, or not what was appended.
    is_kept: bool,
}

impl KeptUpload {
    fn add(&mut self, mut bytes: &[u8]) {
        while self.is_kept && !bytes.is_empty() {
            let room = PIECE_BYTES as usize - self.piece.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.piece.extend_from_slice(now);
            bytes = later;
            if self.piece.len() as u64 == PIECE_BYTES {
                self.end_piece();
            }
        }
    }

    fn end_piece(&mut self) {
        let number = self.bytes / PIECE_BYTES;
        let name = { &self.cache }.name_of_written(&self.key, Some(number));
        self.cache.keep(&name, &self.piece);
        self.bytes += self.piece.len() as u64;
        self.piece.clear();
        self.is_kept &= self.bytes <= self.cache.spec.max_bytes / 4;
    }
}

impl Upload for KeptUpload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.add(bytes);
        self.inner.append(bytes)
    }

    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.is_kept = false;
        self.inner.amend(offset, bytes)
    }

    fn finish(mut self: Box<Self>) -> Result<StoredObject> {
        let is_empty = self.bytes == 0 && self.piece.is_empty();
        if self.is_kept && !self.piece.is_empty() {
            self.end_piece();
        }
        let stored = self.inner.finish()?;
        if self.is_kept && !is_empty && stored.bytes == self.bytes {
            let head = { &self.cache }.name_of_written(&self.key, None);
            let content = join_content(&self.bytes.to_le_bytes(), &Version::new(""));
            self.cache.keep(&head, &content);
        }
        Ok(stored)
    }

    fn abort(self: Box<Self>) {
        self.inner.abort();
    }
}

impl Objects for CachedObjects {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        let objects = self.inner.list(prefix)?;
        self.cache.remember(prefix, &objects);
        Ok(objects)
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let known = self.cache.listed(key).filter(|object| {
            let end = offset.checked_add(len as u64);
            len > 0 && len as u64 <= MAX_ENTRY_BYTES && end.is_some_and(|end| end <= object.bytes)
        });
        let Some(object) = known else {
            return self.inner.read_at(key, offset, len, out);
        };
        let entry = CacheEntry {
            key,
            object: &object,
            range: Some((offset, len as u64)),
        };
        let name = self.cache.name_of(&entry);
        let range = (offset, len as u64);
        let known = { self.cache.load(&name) }
            .filter(|content| content.len() == len)
            .or_else(|| self.cache.load_written(key, &object, range));
        if let Some(content) = known {
            *out = content;
            return Ok(());
        }
        self.inner.read_at(key, offset, len, out)?;
        self.cache.keep(&name, out);
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        let Some(object) = self.cache.listed(key) else {
            return self.inner.get(key);
        };
        let entry = CacheEntry {
            key,
            object: &object,
            range: None,
        };
        let name = self.cache.name_of(&entry);
        let kept = self
            .cache
            .load(&name)
            .and_then(|content| split_content(&content));
        if let Some((bytes, version)) = kept.filter(|(bytes, _)| bytes.len() as u64 == object.bytes)
        {
            return Ok(Some((bytes, version)));
        }
        let got = self.inner.get(key)?;
        // The object may have been replaced since it was listed: then it is not kept under that version.
        if let Some((bytes, version)) = &got
            && bytes.len() as u64 == object.bytes
            && tag_of(version) == tag_of(&object.version)
        {
            self.cache.keep(&name, &join_content(bytes, version));
        }
        Ok(got)
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        self.inner.stat(key)
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        self.cache.forget(key);
        self.inner.put(key, bytes, condition)
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        self.cache.forget(key);
        let upload = self.inner.create(key)?;
        let is_manifest = matches!(KeyKind::of(key), KeyKind::Backup(_, BackupPart::Manifest));
        if !is_manifest || !(self.cache.spec.is_kept)(key) || !self.cache.has_own_dir() {
            return Ok(upload);
        }
        Ok(Box::new(KeptUpload {
            inner: upload,
            cache: self.cache.clone(),
            key: key.to_owned(),
            piece: Vec::new(),
            bytes: 0,
            is_kept: true,
        }))
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        keys.iter().for_each(|key| self.cache.forget(key));
        self.inner.delete(keys)
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        self.inner.abort_uploads(prefix)
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        self.inner.settle(prefix)
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        self.inner.lease(key, body, take)
    }

    fn abilities(&self) -> StorageAbilities {
        self.inner.abilities()
    }

    fn answers_late(&self) -> bool {
        self.inner.answers_late()
    }

    fn describe(&self, key: &str) -> String {
        self.inner.describe(key)
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        self.inner.as_local()
    }

    fn as_sealed(&self) -> Option<&SealedObjects> {
        self.inner.as_sealed()
    }
}
