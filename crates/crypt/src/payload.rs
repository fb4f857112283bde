//! The payload of an age file: chunks of 64 KiB, each sealed with ChaCha20-Poly1305 under one key of the file.
//!
//! The nonce of a chunk is its number and whether it is the last. [`ChunkSealer`] counts by itself, cannot go back, and has a key that
//! was made for it: so no key and nonce are used twice.

use super::secret::fill_random;
use age_core::{format::FileKey, primitives::hkdf, secrecy::ExposeSecret};
use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::metrics::{cpu::SEALING, meter::timed};
use std::{fmt, sync::Arc};
use zeroize::Zeroizing;

/// Plain bytes of a chunk; the last one may be shorter, and is empty only if there is no other.
pub const CHUNK_BYTES: usize = 64 << 10;

/// Bytes that sealing adds to a chunk.
pub const TAG_BYTES: usize = 16;

/// Stored bytes of a full chunk.
pub const SEALED_CHUNK_BYTES: usize = CHUNK_BYTES + TAG_BYTES;

/// Bytes between the header and the first chunk, from which the key of the payload is made.
pub(super) const SALT_BYTES: usize = 16;

/// Stored bytes of the chunks of `plain` bytes.
pub fn sealed_bytes(plain: u64) -> u64 {
    let chunks = plain.div_ceil(CHUNK_BYTES as u64).max(1);
    plain.saturating_add(chunks.saturating_mul(TAG_BYTES as u64))
}

/// Plain bytes of chunks that have `sealed` stored bytes; `None` if no payload has that length.
pub fn plain_bytes(sealed: u64) -> Option<u64> {
    let chunks = sealed.div_ceil(SEALED_CHUNK_BYTES as u64);
    let plain = sealed.checked_sub(chunks * TAG_BYTES as u64)?;
    (sealed_bytes(plain) == sealed).then_some(plain)
}

/// Sees each chunk that is sealed: a test checks that no key and nonce come twice.
pub trait SealObserver: fmt::Debug + Send + Sync {
    /// A chunk was sealed with this nonce, under the key that has this fingerprint.
    fn sealed(&self, key_print: [u8; 16], nonce: [u8; 12]);
}

pub(super) struct PayloadKey {
    key: LessSafeKey,
    print: [u8; 16],
}

impl fmt::Debug for PayloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PayloadKey")
    }
}

impl PayloadKey {
    pub(super) fn new(file_key: &FileKey, salt: &[u8; SALT_BYTES]) -> Result<Self> {
        let bytes = Zeroizing::new(hkdf(salt, b"payload", file_key.expose_secret()));
        let mut print = [0; 16];
        let digest = blake3::derive_key("fullbore fingerprint of a payload key", &*bytes);
        print.copy_from_slice(&digest[..16]);
        let key = UnboundKey::new(&CHACHA20_POLY1305, &*bytes)
            .map_err(|_| Error::new(ErrorKind::Bug, "cannot make the key of a payload"))?;
        Ok(Self {
            key: LessSafeKey::new(key),
            print,
        })
    }

    /// Opens a chunk in place: its plain bytes stand at its front. `None` if it is not as it was sealed.
    pub(super) fn open(&self, number: u64, is_last: bool, chunk: &mut [u8]) -> Option<usize> {
        let nonce = Nonce::assume_unique_for_key(nonce_of(number, is_last));
        let plain = timed(&SEALING, || {
            self.key.open_in_place(nonce, Aad::empty(), chunk)
        })
        .ok()?;
        Some(plain.len())
    }
}

fn nonce_of(number: u64, is_last: bool) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[3..11].copy_from_slice(&number.to_be_bytes());
    nonce[11] = is_last.into();
    nonce
}

/// Seals the chunks of one payload, front to back.
pub(super) struct ChunkSealer {
    key: PayloadKey,
    next: u64,
    has_ended: bool,
    observer: Option<Arc<dyn SealObserver>>,
}

impl fmt::Debug for ChunkSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkSealer")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl ChunkSealer {
    /// A sealer for a file key that was made for this payload only, and the salt that stands before the payload.
    pub(super) fn new(
        file_key: &FileKey,
        observer: Option<Arc<dyn SealObserver>>,
    ) -> Result<(Self, [u8; SALT_BYTES])> {
        let mut salt = [0; SALT_BYTES];
        fill_random(&mut salt)?;
        Ok((Self::with_salt(file_key, &salt, observer)?, salt))
    }

    /// As [`ChunkSealer::new`], with a salt that was made for this payload only.
    pub(super) fn with_salt(
        file_key: &FileKey,
        salt: &[u8; SALT_BYTES],
        observer: Option<Arc<dyn SealObserver>>,
    ) -> Result<Self> {
        Ok(Self {
            key: PayloadKey::new(file_key, salt)?,
            next: 0,
            has_ended: false,
            observer,
        })
    }

    /// Seals the next chunk in place and returns its tag, which follows it.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`] after the last chunk, and for a chunk of a length that it may not have.
    pub(super) fn seal(&mut self, chunk: &mut [u8], is_last: bool) -> Result<[u8; TAG_BYTES]> {
        // Readers compute the place of a chunk from its number: all chunks but the last have one
        // length, and an empty last chunk is allowed only in an empty file.
        let has_length = if is_last {
            chunk.len() <= CHUNK_BYTES && (!chunk.is_empty() || self.next == 0)
        } else {
            chunk.len() == CHUNK_BYTES
        };
        if self.has_ended || !has_length {
            return Err(chunk_bug(self.next));
        }
        let nonce = nonce_of(self.next, is_last);
        let tag = timed(&SEALING, || {
            let nonce = Nonce::assume_unique_for_key(nonce);
            let key = &self.key.key;
            key.seal_in_place_separate_tag(nonce, Aad::empty(), chunk)
        })
        .map_err(|_| chunk_bug(self.next))?;
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(tag.as_ref());
        if let Some(observer) = &self.observer {
            observer.sealed(self.key.print, nonce);
        }
        self.next += 1;
        self.has_ended = is_last;
        Ok(bytes)
    }
}

fn chunk_bug(number: u64) -> Error {
    Error::new(ErrorKind::Bug, format!("cannot seal chunk {}", number))
}

/// Collects bytes in chunks and seals each chunk as soon as a byte follows it.
///
/// The chunks that are sealed stand at the front of a buffer, the plain bytes of the open one behind them: each byte is copied once.
#[derive(Debug)]
pub(super) struct PayloadWriter {
    sealer: ChunkSealer,
    buffer: Vec<u8>,
    /// Where the open chunk begins in the buffer.
    open_at: usize,
    plain_bytes: u64,
}

/// Sealed bytes that are handed over at once: 256 KiB, which stay in the cache of a core until they are copied on.
const BATCH_BYTES: usize = 4 * SEALED_CHUNK_BYTES;

impl PayloadWriter {
    /// Writes `prefix` (header and salt) before the payload.
    pub(super) fn new(sealer: ChunkSealer, prefix: &[u8]) -> Self {
        let mut buffer = Vec::with_capacity(BATCH_BYTES + SEALED_CHUNK_BYTES + prefix.len());
        buffer.extend_from_slice(prefix);
        Self {
            sealer,
            open_at: buffer.len(),
            buffer,
            plain_bytes: 0,
        }
    }

    /// Plain bytes so far.
    pub(super) fn plain_bytes(&self) -> u64 {
        self.plain_bytes
    }

    /// Adds bytes; `give` gets sealed ones, 256 KiB at once.
    pub(super) fn append<E: From<Error>>(
        &mut self,
        mut bytes: &[u8],
        mut give: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            if self.buffer.len() - self.open_at == CHUNK_BYTES {
                self.close_chunk(false)?;
                if self.buffer.len() >= BATCH_BYTES {
                    give(&self.buffer)?;
                    self.buffer.clear();
                    self.open_at = 0;
                }
            }
            let room = CHUNK_BYTES - (self.buffer.len() - self.open_at);
            let (taken, rest) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(taken);
            self.plain_bytes += taken.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// Seals the last chunk and returns all sealed bytes that were not given away.
    pub(super) fn finish(mut self) -> Result<Vec<u8>> {
        self.close_chunk(true)?;
        Ok(self.buffer)
    }

    fn close_chunk(&mut self, is_last: bool) -> Result<()> {
        let tag = self
            .sealer
            .seal(&mut self.buffer[self.open_at..], is_last)?;
        self.buffer.extend_from_slice(&tag);
        self.open_at = self.buffer.len();
        Ok(())
    }
}

/// Opens the chunks of one payload, in any order and from any thread.
pub struct ChunkOpener {
    key: PayloadKey,
    plain_bytes: u64,
}

impl fmt::Debug for ChunkOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkOpener")
            .field("plain_bytes", &self.plain_bytes)
            .finish_non_exhaustive()
    }
}

impl ChunkOpener {
    /// For a payload of `sealed` stored bytes; `None` if no payload has that length.
    pub(super) fn new(
        file_key: &FileKey,
        salt: &[u8; SALT_BYTES],
        sealed: u64,
    ) -> Result<Option<Self>> {
        let Some(plain_bytes) = plain_bytes(sealed) else {
            return Ok(None);
        };
        Ok(Some(Self {
            key: PayloadKey::new(file_key, salt)?,
            plain_bytes,
        }))
    }

    pub fn plain_bytes(&self) -> u64 {
        self.plain_bytes
    }

    /// Where the chunks that hold a plain range are stored: their first byte in the payload and their bytes. `None` if the range does not
    /// end within the payload.
    pub fn chunks_of(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let end = offset
            .checked_add(len)
            .filter(|end| *end <= self.plain_bytes)?;
        let first = offset / CHUNK_BYTES as u64;
        // An empty range needs a chunk too, so that damage to an empty payload is found.
        let last = end
            .max(1)
            .div_ceil(CHUNK_BYTES as u64)
            .max(first + 1)
            .min(self.chunk_count());
        let first = first.min(last - 1);
        let begin = first * SEALED_CHUNK_BYTES as u64;
        let end = (last * SEALED_CHUNK_BYTES as u64).min(sealed_bytes(self.plain_bytes));
        Some((begin, end - begin))
    }

    fn chunk_count(&self) -> u64 {
        self.plain_bytes.div_ceil(CHUNK_BYTES as u64).max(1)
    }

    /// Opens the chunks that [`ChunkOpener::chunks_of`] names, and leaves in `bytes` only the plain range.
    ///
    /// Returns false if a chunk is not as it was sealed, or not at its place; `bytes` is cleared then.
    pub fn open(&self, bytes: &mut Vec<u8>, offset: u64, len: usize) -> bool {
        let is_open = self.open_chunks(bytes, offset, len).is_some();
        if !is_open {
            bytes.clear();
        }
        is_open
    }

    fn open_chunks(&self, bytes: &mut Vec<u8>, offset: u64, len: usize) -> Option<()> {
        let (begin, stored) = self.chunks_of(offset, len as u64)?;
        if bytes.len() as u64 != stored {
            return None;
        }
        let first = begin / SEALED_CHUNK_BYTES as u64;
        let mut filled = 0;
        let mut position = 0;
        for number in first.. {
            let end = bytes.len().min(position + SEALED_CHUNK_BYTES);
            let is_last = number + 1 == self.chunk_count();
            let opened = self.key.open(number, is_last, &mut bytes[position..end])?;
            // The tags between the chunks are squeezed out in place: no second buffer holds plain
            // bytes.
            bytes.copy_within(position..position + opened, filled);
            filled += opened;
            position = end;
            if position == bytes.len() {
                break;
            }
        }
        let skipped = (offset - first * CHUNK_BYTES as u64) as usize;
        bytes.copy_within(skipped..skipped + len, 0);
        bytes.truncate(len);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_and_sealed_lengths_belong_together() {
        let chunk = CHUNK_BYTES as u64;
        let sealed_chunk = SEALED_CHUNK_BYTES as u64;
        for plain in [0, 1, chunk - 1, chunk, chunk + 1, 5 * chunk, (1 << 40) + 7] {
            assert_eq!(plain_bytes(sealed_bytes(plain)), Some(plain), "{plain}");
        }
        // No payload ends with an empty chunk behind another, or within a tag.
        for none in [
            0,
            1,
            15,
            sealed_chunk + 1,
            sealed_chunk + 16,
            2 * sealed_chunk + 3,
        ] {
            assert_eq!(plain_bytes(none), None, "{none}");
        }
        assert_eq!(plain_bytes(16), Some(0));
        assert_eq!(plain_bytes(sealed_chunk + 17), Some(chunk + 1));
    }

    #[test]
    fn a_sealer_refuses_to_go_on_after_the_last_chunk_and_odd_chunks() {
        let file_key = FileKey::new(Box::new([7; 16]));
        let (mut sealer, _) = ChunkSealer::new(&file_key, None).unwrap();
        assert!(
            sealer.seal(&mut [0; 10], false).is_err(),
            "a short chunk in the middle"
        );
        sealer.seal(&mut [0; CHUNK_BYTES], false).unwrap();
        assert!(
            sealer.seal(&mut [], true).is_err(),
            "an empty chunk behind another"
        );
        sealer.seal(&mut [0; 10], true).unwrap();
        assert!(
            sealer.seal(&mut [0; 10], true).is_err(),
            "a second last chunk"
        );
    }
}
