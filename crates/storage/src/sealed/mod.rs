//! A wrapper that seals objects before they are stored, and opens them when they are read.
//!
//! Each object becomes one age file with a key of its own ([`fullbore_crypt`]), which is bound to the object's key in the repository. Roots get a
//! clear head and a sealed body ([`fullbore_format::root_parts`]). These objects stay as they are: `fullbore-repo.json`,
//! `verify.json`, notes, and everything below `keys/`, `intents/` and `tombstones/`.
//!
//! Callers see plain bytes, plain lengths and plain positions. Three things differ from a storage without encryption:
//!
//! - `StoredObject::parts` are digests of the bytes as stored, so that a storage can be checked without a key. The length in it is plain;
//!   [`stored_object_bytes`] gives the other one.
//! - Uploads cannot be amended: a chunk would be sealed twice under one nonce.
//! - The length of a root in [`Objects::list`] is that of the document as stored.
//!
//! A root must also count (`counting`): its proof may be one of a key that was removed.
//!
//! Without a key ([`SealedObjects::locked`]) roots are read as their heads, and written if they were sealed before; lists,
//! lengths, deletes and leases work; anything else that is sealed is refused with [`ErrorKind::Permission`].

mod counting;
mod upload;

use super::{
    Leased, ListedObject, LocalObjects, Objects, Put, PutIf, StorageAbilities, Take, Upload,
    Version, generation::current_generation, members, root_document::RootDocument,
};
use fullbore_crypt::{
    Access, ChunkOpener, KeyRing, OBJECT_PREFIX_BYTES, ObjectHeader, SealObserver, damaged_chunk,
    no_object, only_adds, open_object, plain_object_bytes, seal_object, stored_object_bytes,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    key_kind::KeyKind,
    seal::MAX_BYTES,
};
use fullbore_platform::queue::Locked;
use fullbore_wire::key::check_key;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Objects whose headers are kept: a restore reads from some hundred segments by turns.
const KEPT_HEADERS: usize = 4096;

/// Objects of a storage, sealed. Clones share what they have opened.
#[derive(Debug, Clone)]
pub struct SealedObjects {
    inner: Arc<dyn Objects>,
    ring: Option<Arc<KeyRing>>,
    opened: Arc<OpenedObjects>,
    members: Arc<counting::KnownMembers>,
    observer: Option<Arc<dyn SealObserver>>,
}

/// What is known of objects that were read, by their keys.
#[derive(Debug, Default)]
pub(super) struct OpenedObjects(Mutex<BTreeMap<String, Arc<ChunkOpener>>>);

impl OpenedObjects {
    pub(super) fn forget(&self, key: &str) {
        self.0.locked().remove(key);
    }

    fn find(&self, key: &str) -> Option<Arc<ChunkOpener>> {
        self.0.locked().get(key).cloned()
    }

    fn keep(&self, key: &str, opener: &Arc<ChunkOpener>) {
        let mut kept = self.0.locked();
        if kept.len() >= KEPT_HEADERS {
            kept.clear();
        }
        kept.insert(key.to_owned(), opener.clone());
    }
}

/// Returns whether an object is stored as it is.
fn is_clear(key: &str) -> bool {
    !KeyKind::of(key).is_sealed()
}

impl SealedObjects {
    /// Seals and opens with a key.
    pub fn new(inner: Arc<dyn Objects>, ring: Arc<KeyRing>) -> Self {
        Self {
            inner,
            ring: Some(ring),
            opened: Arc::default(),
            members: Arc::default(),
            observer: None,
        }
    }

    /// Wraps objects without a key: maintenance only.
    pub fn locked(inner: Arc<dyn Objects>) -> Self {
        Self {
            inner,
            ring: None,
            opened: Arc::default(),
            members: Arc::default(),
            observer: None,
        }
    }

    /// Lets `observer` see each chunk that is sealed.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn SealObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Returns the objects as they are stored: to check them by the digests in a root, and to copy them as they are to a storage with the same key.
    pub fn as_stored(&self) -> &Arc<dyn Objects> {
        &self.inner
    }

    /// Returns the key, if there is one.
    pub fn ring(&self) -> Option<&Arc<KeyRing>> {
        self.ring.as_ref()
    }

    /// Returns the key, to do something with an object.
    fn ring_to(&self, verb: &str, key: &str) -> Result<&KeyRing> {
        self.ring.as_deref().ok_or_else(|| {
            Error::new(ErrorKind::Permission, format!("cannot {verb} {}", self.describe(key)))
                .because("the repository is encrypted, and no key was given")
                .hint("give a key of the repository: --key FILE, or a passphrase with --passphrase-file FILE")
        })
    }

    /// Returns the key, to read an object: a key that only adds backups does not do.
    fn ring_to_read(&self, key: &str) -> Result<&KeyRing> {
        self.ring_to("read", key)
    }

    /// Returns the opener of the chunks of an object, and whether it was known before.
    fn opener_of(&self, key: &str) -> Result<(Arc<ChunkOpener>, bool)> {
        if let Some(opener) = self.opened.find(key) {
            return Ok((opener, true));
        }
        let ring = self.ring_to_read(key)?;
        let name = self.describe(key);
        let stored = self.inner.stat(key)?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("could not read {name}"))
                .because("it is not there")
        })?;
        // A read would say that it ends too early, and not that it is no sealed object.
        if stored < OBJECT_PREFIX_BYTES as u64 {
            return Err(no_object(&name));
        }
        let mut prefix = Vec::new();
        self.inner
            .read_at(key, 0, OBJECT_PREFIX_BYTES, &mut prefix)?;
        let header = ObjectHeader::parse(&prefix).ok_or_else(|| no_object(&name))?;
        let opener = Arc::new(header.opener(key, stored, ring, &name)?);
        self.opened.keep(key, &opener);
        Ok((opener, false))
    }

    fn read_range(
        &self,
        opener: &ChunkOpener,
        key: &str,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let Some((begin, stored)) = opener.chunks_of(offset, len as u64) else {
            return Err(too_early(&self.describe(key), offset, len));
        };
        let stored = stored as usize;
        self.inner
            .read_at(key, OBJECT_PREFIX_BYTES as u64 + begin, stored, out)?;
        if opener.open(out, offset, len) {
            Ok(())
        } else {
            Err(damaged_chunk(&self.describe(key)))
        }
    }

    /// Opens a plain range of an object from stored bytes that the caller has: `held` gives the bytes of a place and a length. False if it
    /// does not have them, or a chunk is not as it was sealed.
    ///
    /// # Errors
    /// Those of reading the header of the object.
    pub fn open_held<'a>(
        &self,
        key: &str,
        held: impl Fn(u64, usize) -> Option<&'a [u8]>,
        (offset, len): (u64, usize),
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let (opener, _) = self.opener_of(key)?;
        let Some((begin, stored)) = opener.chunks_of(offset, len as u64) else {
            return Ok(false);
        };
        let Some(bytes) = held(OBJECT_PREFIX_BYTES as u64 + begin, stored as usize) else {
            return Ok(false);
        };
        out.clear();
        out.extend_from_slice(bytes);
        Ok(opener.open(out, offset, len))
    }

    /// Opens an object that was read whole.
    fn open_whole(&self, key: &str, stored: Vec<u8>) -> Result<Vec<u8>> {
        if is_clear(key) {
            return Ok(stored);
        }
        let name = self.describe(key);
        if let Some(document) = RootDocument::of_key(key)
            && !fullbore_crypt::is_sealed(&stored)
        {
            return document.open(stored, self.ring.as_deref(), &name, |root| {
                self.note_author(root, key);
                self.check_counts(root, &name)
            });
        }
        open_object(key, &stored, self.ring_to_read(key)?, &name)
    }

    /// Returns the stored form of an object that is put whole.
    fn seal_whole(&self, key: &str, bytes: &[u8]) -> Result<Vec<u8>> {
        if is_clear(key) {
            return Ok(bytes.to_vec());
        }
        if let Some(document) = RootDocument::of_key(key) {
            let sealed = document.seal(
                bytes,
                self.ring.as_deref(),
                self.observer.clone(),
                &self.describe(key),
            )?;
            if let Some(sealed) = sealed {
                return Ok(sealed);
            }
        }
        let ring = self.ring_to("write", key)?;
        if stored_object_bytes(bytes.len() as u64) > MAX_BYTES {
            let message = format!(
                "cannot write {}: it has {} bytes",
                self.describe(key),
                bytes.len()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        seal_object(key, bytes, ring, self.observer.clone())
    }

    /// Returns the length that a caller sees of an object of `stored` bytes, for any object but a root.
    fn plain_length(&self, key: &str, stored: u64) -> u64 {
        if is_clear(key) || RootDocument::of_key(key).is_some() {
            return stored;
        }
        // A length that no object has is damage. What is read of it is refused; here it has no bytes of use.
        plain_object_bytes(stored).unwrap_or(0)
    }
}

fn too_early(name: &str, offset: u64, len: usize) -> Error {
    Error::corrupt(format!(
        "could not read {len} bytes at byte {offset} of {name}"
    ))
    .because("it ends too early")
}

/// Returns the objects as they are stored, without the wrapper that seals them, if there is one.
pub fn as_stored(objects: &dyn Objects) -> &dyn Objects {
    match objects.as_sealed() {
        Some(sealed) => &**sealed.as_stored(),
        None => objects,
    }
}

/// What a check of the key files of an encrypted repository found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyFiles {
    /// Those that are not as they were written, with the reason.
    Changed(Vec<(String, &'static str)>),
    /// They are of two generations, and not compared: a rotation is under way, or was cut.
    Rotating,
}

/// Compares the key files of an encrypted repository with the list of members. Only a key that reads can tell.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the list of members is missing or damaged; the storage's.
pub fn check_key_files(objects: &dyn Objects) -> Result<KeyFiles> {
    let ring_of = |wrapper: &'_ SealedObjects| wrapper.ring().cloned();
    let Some((sealed, ring)) = objects
        .as_sealed()
        .and_then(|wrapper| Some((wrapper, ring_of(wrapper)?)))
        .filter(|(_, ring)| ring.access() == Access::Read)
    else {
        return Ok(KeyFiles::Changed(Vec::new()));
    };
    let objects = &*sealed.inner;
    let newest = ring.newest().number();
    let lists = members::ListNumber::all(objects)?;
    if current_generation(objects)? != Some(newest)
        || lists.iter().any(|list| list.generation > newest)
    {
        return Ok(KeyFiles::Rotating);
    }
    let (members, _) = members::read_members(objects, &ring)?;
    members::changed_files(&members, objects).map(KeyFiles::Changed)
}

impl Objects for SealedObjects {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        let mut listed = self.inner.list(prefix)?;
        for object in &mut listed {
            object.bytes = self.plain_length(&object.key, object.bytes);
        }
        Ok(listed)
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        check_key(key)?;
        if is_clear(key) {
            return self.inner.read_at(key, offset, len, out);
        }
        if RootDocument::of_key(key).is_some() {
            let name = self.describe(key);
            let (bytes, _) = self.get(key)?.ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("could not read {name}"))
                    .because("it is not there")
            })?;
            let end = offset
                .checked_add(len as u64)
                .filter(|end| *end <= bytes.len() as u64);
            let end = end.ok_or_else(|| too_early(&name, offset, len))?;
            out.clear();
            out.extend_from_slice(&bytes[offset as usize..end as usize]);
            return Ok(());
        }
        let (opener, was_known) = self.opener_of(key)?;
        let read = self.read_range(&opener, key, offset, len, out);
        match read {
            // Another process may have replaced the object since its header was read.
            Err(error) if was_known && error.kind == ErrorKind::Corrupt => {
                self.opened.forget(key);
                let (opener, _) = self.opener_of(key)?;
                self.read_range(&opener, key, offset, len, out)
            }
            read => read,
        }
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        let Some((stored, version)) = self.inner.get(key)? else {
            return Ok(None);
        };
        Ok(Some((self.open_whole(key, stored)?, version)))
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        check_key(key)?;
        if self.ring.is_some() && RootDocument::of_key(key).is_some() {
            return Ok(self.get(key)?.map(|(bytes, _)| bytes.len() as u64));
        }
        let stored = self.inner.stat(key)?;
        Ok(stored.map(|stored| self.plain_length(key, stored)))
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        check_key(key)?;
        let stored = self.seal_whole(key, bytes)?;
        let put = self.inner.put(key, &stored, condition)?;
        self.opened.forget(key);
        let is_own_root = stored != bytes && RootDocument::is_listed(key);
        if is_own_root && put != Put::Refused {
            self.check_still_current(&self.describe(key))?;
        }
        Ok(put)
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        check_key(key)?;
        if is_clear(key) || RootDocument::of_key(key).is_some() {
            let message = format!("cannot upload {}: it is put whole", self.describe(key));
            return Err(Error::new(ErrorKind::Bug, message));
        }
        let ring = self.ring_to("write", key)?;
        let sealer = fullbore_crypt::ObjectSealer::new(key, ring, self.observer.clone())?;
        let inner = self.inner.create(key)?;
        Ok(Box::new(upload::SealedUpload::new(
            inner,
            sealer,
            key,
            self.describe(key),
            self.opened.clone(),
        )))
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let deleted = self.inner.delete(keys);
        for key in keys {
            self.opened.forget(key);
        }
        deleted
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        self.inner.abort_uploads(prefix)
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        self.inner.settle(prefix)
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        check_key(key)?;
        if !is_clear(key) {
            let message = format!("cannot lease {}: it is no intent", self.describe(key));
            return Err(Error::new(ErrorKind::Bug, message));
        }
        self.inner.lease(key, body, take)
    }

    fn abilities(&self) -> StorageAbilities {
        StorageAbilities {
            amends: false,
            ..self.inner.abilities()
        }
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
        Some(self)
    }
}

impl SealedObjects {
    /// Returns whether `head` is the part that a storage may see of the root `whole`, which this key would store under `key`.
    pub(super) fn is_head_of(&self, key: &str, head: &[u8], whole: &[u8]) -> bool {
        let document = RootDocument::of_key(key);
        let name = self.describe(key);
        match (document, self.ring.as_deref()) {
            (Some(document), Some(ring)) => document.is_head_of(head, whole, ring, &name),
            _ => false,
        }
    }

    /// Refuses to store anything that is encrypted, if no key was given that seals it.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`].
    pub fn check_writable(&self) -> Result<()> {
        let ring = self.ring_to("write to", "")?;
        ring.sealing_generation(&self.describe("")).map(drop)
    }

    /// Refuses to read an object, if no key was given that opens it.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`].
    pub fn check_readable(&self, key: &str) -> Result<()> {
        match self.ring_to_read(key)?.access() {
            Access::Read => Ok(()),
            Access::Put => Err(only_adds(&self.describe(key))),
        }
    }

    /// Returns whether the key that was given reads backups.
    pub fn reads(&self) -> bool {
        self.access() == Some(Access::Read)
    }

    /// Returns what the key that was given permits; `None` without a key.
    pub fn access(&self) -> Option<Access> {
        self.ring.as_deref().map(KeyRing::access)
    }
}
