//! Sealed objects of a repository: age files with a header of fixed length, which prove who wrote them and under which key.
//!
//! ```text
//! age-encryption.org/v1
//! -> X25519 <share>                      the file key, wrapped for the repository's recipient
//! <wrapped file key>
//! -> fullbore/object <generation> <author>     age skips stanzas that it does not know
//! <proof>
//! --- <code of the header>
//! <salt, 16 bytes><chunks>
//! ```
//! The proof is a keyed BLAKE3 of the object's key and of the stanza above it. A storage has not the secret of that hash: it cannot
//! make an object, nor give one the key of another. Each put key has a secret of its own, and people have one together. The stanza determines the file key, that determines code, salt and chunks.
//! As the length of the header is fixed, the plain length of an object follows from its stored length.

use super::{
    Author, Secret,
    payload::{
        CHUNK_BYTES, ChunkOpener, ChunkSealer, PayloadWriter, SALT_BYTES, SEALED_CHUNK_BYTES,
        SealObserver, plain_bytes, sealed_bytes,
    },
    ring::KeyRing,
    secret::fill_random,
};
use age::{Identity, Recipient};
use age_core::{
    format::{FileKey, Stanza},
    primitives::hkdf,
    secrecy::ExposeSecret,
};
use aws_lc_rs::hmac;
use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use fullbore_format::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use zeroize::Zeroizing;

const VERSION_LINE: &str = "age-encryption.org/v1";
const RECIPIENT_TAG: &str = "X25519";
const PROOF_TAG: &str = "fullbore/object";
const PROOF_CONTEXT: &[u8] = b"fullbore object v1\0";

/// 32 bytes in base64.
const WORD_BYTES: usize = 43;

const HEADER_BYTES: usize = VERSION_LINE.len()
    + 1
    + 3
    + RECIPIENT_TAG.len()
    + 1
    + WORD_BYTES
    + 1
    + WORD_BYTES
    + 1
    + 3
    + PROOF_TAG.len()
    + 1
    + 8
    + 1
    + 16
    + 1
    + WORD_BYTES
    + 1
    + 4
    + WORD_BYTES
    + 1;

/// Stored bytes before the first chunk: header and salt.
pub const OBJECT_PREFIX_BYTES: usize = HEADER_BYTES + SALT_BYTES;

/// Stored bytes of an object of `plain` bytes.
pub fn stored_object_bytes(plain: u64) -> u64 {
    sealed_bytes(plain).saturating_add(OBJECT_PREFIX_BYTES as u64)
}

/// Plain bytes of an object of `stored` bytes; `None` if no object has that length.
pub fn plain_object_bytes(stored: u64) -> Option<u64> {
    plain_bytes(stored.checked_sub(OBJECT_PREFIX_BYTES as u64)?)
}

/// The plain bytes of an object of `plain` bytes that depend on its stored bytes from `from` to `to`.
pub fn plain_object_range((from, to): (u64, u64), plain: u64) -> (u64, u64) {
    let first = bytes_after_prefix(from) / SEALED_CHUNK_BYTES as u64;
    let end = bytes_after_prefix(to).div_ceil(SEALED_CHUNK_BYTES as u64);
    (
        plain_chunk_start(first).min(plain),
        plain_chunk_start(end).min(plain),
    )
}

fn plain_chunk_start(chunk: u64) -> u64 {
    chunk.saturating_mul(CHUNK_BYTES as u64)
}

fn bytes_after_prefix(stored: u64) -> u64 {
    stored.saturating_sub(OBJECT_PREFIX_BYTES as u64)
}

/// The stored bytes of an object that its plain bytes from `from` to `to` depend on. The end may be behind that of the object, whose last
/// chunk is shorter.
pub fn stored_object_range((from, to): (u64, u64)) -> (u64, u64) {
    let chunk_bytes = CHUNK_BYTES as u64;
    (
        stored_chunk_start(from / chunk_bytes),
        stored_chunk_start(to.div_ceil(chunk_bytes)),
    )
}

fn stored_chunk_start(chunk: u64) -> u64 {
    let bytes = chunk.saturating_mul(SEALED_CHUNK_BYTES as u64);
    bytes.saturating_add(OBJECT_PREFIX_BYTES as u64)
}

/// The header of an object as its lines say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectHeader {
    generation: u32,
    author: Author,
    share: [u8; 32],
    wrapped: [u8; 32],
    proof: [u8; 32],
    code: [u8; 32],
    salt: [u8; SALT_BYTES],
}

fn word(bytes: &[u8]) -> String {
    BASE64_STANDARD_NO_PAD.encode(bytes)
}

fn unword(text: &str) -> Option<[u8; 32]> {
    let bytes = BASE64_STANDARD_NO_PAD.decode(text).ok()?;
    bytes.try_into().ok()
}

impl ObjectHeader {
    /// The header that these bytes are, which are the first [`OBJECT_PREFIX_BYTES`] of an object; `None` if they are none, down to the
    /// last bit.
    pub fn parse(prefix: &[u8]) -> Option<Self> {
        let (text, salt) = prefix.split_at_checked(HEADER_BYTES)?;
        let text = std::str::from_utf8(text).ok()?;
        let mut lines = text.lines().skip(1);
        let share = unword(
            lines
                .next()?
                .strip_prefix("-> ")?
                .strip_prefix(RECIPIENT_TAG)?
                .get(1..)?,
        )?;
        let wrapped = unword(lines.next()?)?;
        let (generation, author) = lines
            .next()?
            .strip_prefix("-> ")?
            .strip_prefix(PROOF_TAG)?
            .get(1..)?
            .split_once(' ')?;
        let generation = u32::from_str_radix(generation, 16).ok()?;
        let author = Author::parse(author)?;
        let proof = unword(lines.next()?)?;
        let code = unword(lines.next()?.strip_prefix("--- ")?)?;
        let header = Self {
            generation,
            author,
            share,
            wrapped,
            proof,
            code,
            salt: salt.try_into().ok()?,
        };
        // Only the bytes that the header itself writes are accepted, so that no bit of it can be
        // changed unnoticed.
        (header.bytes() == prefix).then_some(header)
    }

    /// The generation of the repository's key that the object was sealed with.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns who sealed the object: a person, or a put key by its number.
    pub fn author(&self) -> Author {
        self.author
    }

    /// The lines that the code is made from.
    fn text_before_code(&self) -> String {
        format!(
            "{VERSION_LINE}\n-> {RECIPIENT_TAG} {}\n{}\n-> {PROOF_TAG} {:08x} {}\n{}\n---",
            word(&self.share),
            word(&self.wrapped),
            self.generation,
            self.author,
            word(&self.proof),
        )
    }

    fn bytes(&self) -> Vec<u8> {
        let text = format!("{} {}\n", self.text_before_code(), word(&self.code));
        [text.as_bytes(), &self.salt].concat()
    }

    fn proof_for(&self, key: &str, secret: &Secret) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(secret.expose());
        hasher.update(PROOF_CONTEXT);
        hasher.update(&self.generation.to_le_bytes());
        hasher.update(&self.author.bytes());
        hasher.update(&self.share);
        hasher.update(&self.wrapped);
        hasher.update(key.as_bytes());
        hasher.finalize()
    }

    /// The code that age demands at the end of a header.
    fn code_for(&self, file_key: &FileKey) -> hmac::Tag {
        let key = Zeroizing::new(hkdf(&[], b"header", file_key.expose_secret()));
        let key = hmac::Key::new(hmac::HMAC_SHA256, &*key);
        hmac::sign(&key, self.text_before_code().as_bytes())
    }

    /// Was the object written under this key, by the holder of a key of this repository that it names?
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if not, [`ErrorKind::Permission`] if the ring has not the generation, or is the put key of another author.
    pub fn check(&self, key: &str, ring: &KeyRing, name: &str) -> Result<()> {
        let secret = ring.secret_of(self.author, self.generation, name)?;
        let secret = secret.ok_or_else(|| super::ring::only_adds(name))?;
        // The comparison of hashes takes the same time wherever they differ.
        if self.proof_for(key, &secret) == blake3::Hash::from_bytes(self.proof) {
            return Ok(());
        }
        Err(Error::corrupt(format!("{name} is damaged")).because(
            "no key of this repository has sealed it under this name: it was changed, replaced or made by another",
        ))
    }

    fn file_key(&self, ring: &KeyRing, name: &str) -> Result<FileKey> {
        let generation = ring.generation(self.generation, name)?;
        let Some(identity) = generation.identity() else {
            return Err(super::ring::only_adds(name));
        };
        let stanza = Stanza {
            tag: RECIPIENT_TAG.to_owned(),
            args: vec![word(&self.share)],
            body: self.wrapped.to_vec(),
        };
        let file_key = identity.unwrap_stanza(&stanza).and_then(|key| key.ok());
        let file_key = file_key.ok_or_else(|| damaged_header(name))?;
        let code = self.code_for(&file_key);
        aws_lc_rs::constant_time::verify_slices_are_equal(code.as_ref(), &self.code)
            .map_err(|_| damaged_header(name))?;
        Ok(file_key)
    }

    /// Checks the header, and opens the payload of an object of `stored` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the object was not written under `key` or has a length that no object has,
    /// [`ErrorKind::Permission`] if the ring cannot open it. Messages call it `name`.
    pub fn opener(
        &self,
        key: &str,
        stored: u64,
        ring: &KeyRing,
        name: &str,
    ) -> Result<ChunkOpener> {
        self.check(key, ring, name)?;
        let file_key = self.file_key(ring, name)?;
        let sealed = stored.saturating_sub(OBJECT_PREFIX_BYTES as u64);
        ChunkOpener::new(&file_key, &self.salt, sealed)?.ok_or_else(|| cut(name))
    }
}

fn damaged_header(name: &str) -> Error {
    Error::corrupt(format!("{name} is damaged")).because("its header does not open")
}

fn cut(name: &str) -> Error {
    Error::corrupt(format!("{name} is damaged"))
        .because("its end is missing, or something follows it")
}

/// Seals one object, front to back.
#[derive(Debug)]
pub struct ObjectSealer(PayloadWriter);

impl ObjectSealer {
    /// A new file key for the object `key`, wrapped for the newest generation of the ring.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the system has no random bytes, and as [`KeyRing::sealing_generation`].
    pub fn new(key: &str, ring: &KeyRing, observer: Option<Arc<dyn SealObserver>>) -> Result<Self> {
        let generation = ring.sealing_generation(&format!("{key:?}"))?;
        let mut bytes = Box::new([0; 16]);
        fill_random(&mut *bytes)?;
        let file_key = FileKey::new(bytes);
        let (stanzas, _) = generation
            .recipient()
            .wrap_file_key(&file_key)
            .map_err(|error| {
                Error::new(ErrorKind::Bug, "cannot wrap the key of an object")
                    .because(error.to_string())
            })?;
        let (share, wrapped) = words_of(&stanzas)
            .ok_or_else(|| Error::new(ErrorKind::Bug, "cannot write the header of an object"))?;
        let (sealer, salt) = ChunkSealer::new(&file_key, observer)?;
        // Proof and code cover the rest of the header, so they are set after it is complete.
        let mut header = ObjectHeader {
            generation: generation.number(),
            author: ring.author(),
            share,
            wrapped,
            proof: [0; 32],
            code: [0; 32],
            salt,
        };
        header.proof = *header.proof_for(key, generation.proof_secret()).as_bytes();
        let code = header.code_for(&file_key);
        header.code.copy_from_slice(code.as_ref());
        Ok(Self(PayloadWriter::new(sealer, &header.bytes())))
    }

    /// Adds plain bytes; `give` gets stored ones, about 256 KiB at once.
    ///
    /// # Errors
    /// Those of `give`.
    pub fn append(&mut self, bytes: &[u8], give: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.0.append(bytes, give)
    }

    /// Plain bytes so far.
    pub fn plain_bytes(&self) -> u64 {
        self.0.plain_bytes()
    }

    /// Ends the object: the stored bytes that were not given away.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`].
    pub fn finish(self) -> Result<Vec<u8>> {
        self.0.finish()
    }
}

/// The two variable words of the only stanza of a recipient of the repository.
fn words_of(stanzas: &[Stanza]) -> Option<([u8; 32], [u8; 32])> {
    let [stanza] = stanzas else { return None };
    let [share] = &stanza.args[..] else {
        return None;
    };
    let is_known = stanza.tag == RECIPIENT_TAG;
    is_known.then_some((unword(share)?, stanza.body[..].try_into().ok()?))
}

/// The stored form of a small object.
///
/// # Errors
/// As [`ObjectSealer::new`].
pub fn seal_object(
    key: &str,
    bytes: &[u8],
    ring: &KeyRing,
    observer: Option<Arc<dyn SealObserver>>,
) -> Result<Vec<u8>> {
    let mut sealer = ObjectSealer::new(key, ring, observer)?;
    let mut stored = Vec::with_capacity(stored_object_bytes(bytes.len() as u64) as usize);
    sealer.append(bytes, |sealed| {
        stored.extend_from_slice(sealed);
        Ok(())
    })?;
    stored.extend_from_slice(&sealer.finish()?);
    Ok(stored)
}

/// The plain bytes of a small object; messages call it `name`.
///
/// # Errors
/// As [`ObjectHeader::opener`]; [`ErrorKind::Corrupt`] if any byte differs from the stored form.
pub fn open_object(key: &str, stored: &[u8], ring: &KeyRing, name: &str) -> Result<Vec<u8>> {
    let header = stored
        .get(..OBJECT_PREFIX_BYTES)
        .and_then(ObjectHeader::parse);
    let header = header.ok_or_else(|| no_object(name))?;
    let opener = header.opener(key, stored.len() as u64, ring, name)?;
    let mut plain = stored[OBJECT_PREFIX_BYTES..].to_vec();
    let len = opener.plain_bytes() as usize;
    if opener.open(&mut plain, 0, len) {
        Ok(plain)
    } else {
        Err(damaged_chunk(name))
    }
}

/// The plain bytes of a small object that a person sealed with the newest generation: no put key, and nobody who was removed.
///
/// # Errors
/// As [`open_object`]; [`ErrorKind::Corrupt`] if another key sealed it.
pub fn open_by_person(key: &str, stored: &[u8], ring: &KeyRing, name: &str) -> Result<Vec<u8>> {
    let header = stored
        .get(..OBJECT_PREFIX_BYTES)
        .and_then(ObjectHeader::parse);
    let header = header.ok_or_else(|| no_object(name))?;
    if !header.author.is_person() || header.generation != ring.newest().number() {
        return Err(Error::corrupt(format!("{name} is damaged")).because(
            "a put key or an old generation of the repository's key has sealed it, which may not write it",
        ));
    }
    open_object(key, stored, ring, name)
}

/// The error for an object without a header of ours.
pub fn no_object(name: &str) -> Error {
    Error::corrupt(format!("{name} is damaged")).because("it does not begin as a sealed object")
}

/// The error for a chunk that does not open.
pub fn damaged_chunk(name: &str) -> Error {
    Error::corrupt(format!("{name} is damaged"))
        .because("a chunk is not as it was sealed, or not at its place")
}
