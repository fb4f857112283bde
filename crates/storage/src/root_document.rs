//! Roots in a sealed repository: read and written as documents with a clear head and a sealed body.

use base64::{Engine, prelude::BASE64_STANDARD};
use fullbore_crypt::{Access, Author, KeyRing, SealObserver, open_object, seal_object};
use fullbore_format::{
    error::{Error, ErrorKind, OtherKeys, Result},
    key_kind::KeyKind,
    layout::{BACKUPS, FORGOTTEN, PARTIAL, ROOT},
    root::{Root, is_void},
    root_parts::{RootParts, SealedBody, SealedRoot},
};
use std::sync::Arc;

/// What the proof of a document is for.
const PURPOSE: &str = "fullbore root v1";

/// Who sealed a root, as a proof says that was found right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProvenRoot {
    /// The generation of the key.
    pub generation: u32,
    /// The person, or the put key.
    pub author: Author,
    /// The proof, of all bytes of the root.
    pub proof: blake3::Hash,
}

impl ProvenRoot {
    /// Returns whether the object of this key is a root.
    pub fn is_root(key: &str) -> bool {
        RootDocument::of_key(key).is_some()
    }

    /// Checks the proof of a stored root. `None` if it has none because it is of no use but to remove a backup.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged or forged, [`ErrorKind::Permission`] if `ring` is too old. Messages call it `name`.
    pub fn check(key: &str, stored: &[u8], ring: &KeyRing, name: &str) -> Result<Option<Self>> {
        let (Some(document), Some(sealed)) =
            (RootDocument::of_key(key), SealedRoot::open(stored, name)?)
        else {
            return Ok(None);
        };
        document.check(&sealed, Some(ring), name)
    }
}

/// A document that is a root, by its key.
#[derive(Debug, Clone, Copy)]
pub(super) struct RootDocument<'a> {
    backup: &'a str,
    name: &'a str,
}

impl<'a> RootDocument<'a> {
    /// Returns the root of this key; `None` for the key of anything else.
    pub(super) fn of_key(key: &'a str) -> Option<Self> {
        let KeyKind::Backup(backup, part) = KeyKind::of(key) else {
            return None;
        };
        let (_, name) = key.rsplit_once('/')?;
        part.is_root().then_some(Self { backup, name })
    }

    /// Returns whether the object of this key is the root of a listed backup.
    pub(super) fn is_listed(key: &'a str) -> bool {
        Self::of_key(key).is_some_and(|document| document.name == ROOT)
    }

    /// Returns whether a document that was written as `kind` may stand here. A root that is forgotten moves, whether it was listed or
    /// partial, and a copy without a key has a listed one as its partial one at first. No root becomes a listed one that was written as
    /// another.
    fn takes(&self, kind: &str) -> bool {
        match self.name {
            FORGOTTEN => [ROOT, PARTIAL, FORGOTTEN].contains(&kind),
            PARTIAL => [ROOT, PARTIAL].contains(&kind),
            _ => kind == self.name,
        }
    }

    /// Returns the key that the body is sealed under: it stays the same when a root is forgotten.
    fn body_key(&self) -> String {
        format!("{BACKUPS}/{}/body of {ROOT}", self.backup)
    }

    /// Returns the stored form; `None` for bytes that are no root, which are sealed like any object.
    pub(super) fn seal(
        &self,
        bytes: &[u8],
        ring: Option<&KeyRing>,
        observer: Option<Arc<dyn SealObserver>>,
        name: &str,
    ) -> Result<Option<Vec<u8>>> {
        // What was read without a key, or with one that only adds backups, is sealed already.
        if let Ok(Some(sealed)) = SealedRoot::open(bytes, name) {
            self.check(&sealed, ring, name)?;
            return Ok(Some(bytes.to_vec()));
        }
        // A void root is known by its length in a listing: it is never sealed.
        if is_void(bytes) || ring.is_none() && self.may_be_clear(bytes, name) {
            return Ok(Some(bytes.to_vec()));
        }
        let Some(ring) = ring else {
            return Ok(None);
        };
        let Some(parts) = RootParts::cut(bytes).filter(|parts| parts.id() == self.backup) else {
            return Ok(None);
        };
        let generation = ring.sealing_generation(name)?;
        let body = seal_object(&self.body_key(), &parts.body(), ring, observer)?;
        let sealed = SealedBody {
            kind: self.name.to_owned(),
            generation: generation.number(),
            author: ring.author().to_string(),
            body: BASE64_STANDARD.encode(body),
            proof: String::new(),
        };
        let pseudonym = ring.pseudonym(&parts.source());
        let prove = |proven: &[u8]| generation.prove(PURPOSE, &[proven]).to_hex().to_string();
        parts.document(&pseudonym, sealed, prove).map(Some)
    }

    /// Returns the bytes that a caller reads of a stored document: the whole root with a key that reads, else its head. `check_counts`
    /// refuses a root of which the proof is right, and which does not count.
    pub(super) fn open(
        &self,
        stored: Vec<u8>,
        ring: Option<&KeyRing>,
        name: &str,
        check_counts: impl FnOnce(&ProvenRoot) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let Some(sealed) = SealedRoot::open(&stored, name)? else {
            return if self.may_be_clear(&stored, name) {
                Ok(stored)
            } else {
                Err(forged(name))
            };
        };
        // Before anything of the body is decoded, which another may have written.
        if let Some(root) = self.check(&sealed, ring, name)? {
            check_counts(&root)?;
        }
        let Some(ring) = ring.filter(|ring| ring.access() == Access::Read) else {
            return Ok(stored);
        };
        let body = BASE64_STANDARD.decode(&sealed.sealed.body);
        let body =
            body.map_err(|error| Error::corrupt(format!("{name} is damaged")).because(error))?;
        let body = open_object(&self.body_key(), &body, ring, name)?;
        sealed.join(&body, name)
    }

    /// Checks that this is the document of this backup, in this place, and that the holder of the key wrote it which it names. Without a key
    /// only the first is known, and to a put key if it wrote the document itself; then there is no result.
    pub(super) fn check(
        &self,
        sealed: &SealedRoot,
        ring: Option<&KeyRing>,
        name: &str,
    ) -> Result<Option<ProvenRoot>> {
        if sealed.id() != self.backup || !self.takes(&sealed.sealed.kind) {
            return Err(
                Error::corrupt(format!("{name} is damaged")).because(format!(
                    "it is {} of backup {:?}",
                    sealed.sealed.kind,
                    sealed.id()
                )),
            );
        }
        let Some(ring) = ring else {
            return Ok(None);
        };
        let generation = sealed.sealed.generation;
        let author = Author::parse(&sealed.sealed.author).ok_or_else(|| forged(name))?;
        let proof = blake3::Hash::from_hex(&sealed.sealed.proof).map_err(|_| forged(name))?;
        let proven = sealed.proven_bytes();
        let parts: &[&[u8]] = &[&proven];
        let Some(right) = ring.proof_of(author, generation, (PURPOSE, parts), name)? else {
            return Ok(None);
        };
        // The comparison of hashes takes the same time wherever they differ.
        if right != proof {
            return Err(forged(name));
        }
        Ok(Some(ProvenRoot {
            generation,
            author,
            proof,
        }))
    }

    /// Returns whether the sealed document `head` is that of the root `whole`, and names this key as its author. Its proof is not checked here.
    pub(super) fn is_head_of(&self, head: &[u8], whole: &[u8], ring: &KeyRing, name: &str) -> bool {
        let sealed = SealedRoot::open(head, name).ok().flatten();
        let parts = RootParts::cut(whole).filter(|parts| parts.id() == self.backup);
        let (Some(sealed), Some(parts)) = (sealed, parts) else {
            return false;
        };
        if sealed.sealed.author != ring.author().to_string() {
            return false; // others may have sealed anything, and this key cannot tell
        }
        let pseudonym = ring.pseudonym(&parts.source());
        let proof = sealed.sealed.proof.clone();
        let document = parts.document(&pseudonym, sealed.sealed, |_| proof);
        document.is_ok_and(|document| document == head)
    }

    /// Returns whether a document may stand here that no key has sealed: only if it is of no use but to remove a backup, which a storage can
    /// do without it: a void root, and a forgotten one without content.
    fn may_be_clear(&self, bytes: &[u8], name: &str) -> bool {
        match self.name {
            ROOT => is_void(bytes),
            FORGOTTEN => Root::open(bytes, name).is_ok_and(|root| {
                root.id == self.backup
                    && root.segments.is_empty()
                    && root.pages.is_empty()
                    && root.liveness.is_empty()
            }),
            _ => false,
        }
    }
}

fn forged(name: &str) -> Error {
    let why = "no key of this repository has sealed it: it was changed, or made by another";
    Error::new(ErrorKind::Corrupt, format!("{name} is damaged")).because(OtherKeys(why.to_owned()))
}
