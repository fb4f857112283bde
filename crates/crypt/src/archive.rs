//! Archives of one file, sealed for people: `FILE.tar.zst.age`, and standard output.
//!
//! The header is that of the crate `age`, for any recipients. Payloads are sealed and opened here. Such an archive does
//! not prove who made it: everybody who knows a public key can seal an archive for that key.

use super::{
    UserIdentity, UserRecipient,
    passphrase::protect,
    payload::{
        ChunkOpener, ChunkSealer, PayloadKey, PayloadWriter, SALT_BYTES, SEALED_CHUNK_BYTES,
    },
    wrapped::{encryptor_for, is_another_key, unwrap_error},
};
use age::{DecryptError, Decryptor, EncryptError};
use age_core::{
    format::{FileKey, Stanza},
    secrecy::ExposeSecret,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::exact_read::read_exactly;
use std::{
    collections::HashSet,
    fs::File,
    io::{self, Read, Write},
    sync::{Arc, Mutex, PoisonError},
};

/// The first bytes of an age file.
const MAGIC: &[u8] = b"age-encryption.org/v1\n";

/// Bytes of a header at most: some 100 bytes a recipient.
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// Do these bytes begin an age file?
pub fn is_sealed(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Bytes at the front of a file that tell whether it is an age file, and for what kind of key.
pub const KIND_BYTES: usize = MAGIC.len() + PASSPHRASE_STANZA.len();

/// How the header of an age file for a passphrase goes on, which no other key may open.
const PASSPHRASE_STANZA: &[u8] = b"-> scrypt ";

/// Do these bytes begin an age file for a passphrase?
pub fn wants_passphrase(bytes: &[u8]) -> bool {
    let rest = bytes.strip_prefix(MAGIC);
    rest.is_some_and(|rest| rest.starts_with(PASSPHRASE_STANZA))
}

/// Where a file key is left by whoever makes or opens a header.
#[derive(Clone, Default)]
struct CaughtKey(Arc<Mutex<Option<FileKey>>>);

impl CaughtKey {
    fn keep(&self, key: &FileKey) {
        let copy = FileKey::new(Box::new(*key.expose_secret()));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(copy);
    }

    fn take(&self) -> Option<FileKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A recipient that leaves a copy of the file key.
struct Catching<T> {
    inner: T,
    caught: CaughtKey,
}

impl age::Recipient for Catching<Box<dyn age::Recipient>> {
    fn wrap_file_key(&self, key: &FileKey) -> Result<(Vec<Stanza>, HashSet<String>), EncryptError> {
        self.caught.keep(key);
        self.inner.wrap_file_key(key)
    }
}

impl age::Identity for Catching<&dyn age::Identity> {
    fn unwrap_stanza(&self, stanza: &Stanza) -> Option<Result<FileKey, DecryptError>> {
        self.unwrap_stanzas(std::slice::from_ref(stanza))
    }

    fn unwrap_stanzas(&self, stanzas: &[Stanza]) -> Option<Result<FileKey, DecryptError>> {
        let key = self.inner.unwrap_stanzas(stanzas)?;
        Some(key.inspect(|key| self.caught.keep(key)))
    }
}

/// Seals what is written to it into an age file. [`SealingWriter::finish`] ends the file; without it the file does not open.
#[derive(Debug)]
pub struct SealingWriter<W> {
    payload: PayloadWriter,
    header_bytes: u64,
    inner: W,
}

impl<W: Write> SealingWriter<W> {
    /// A new age file for these recipients, written to `inner`.
    ///
    /// # Errors
    /// As [`super::wrap_secret`].
    pub fn new(inner: W, recipients: &[UserRecipient]) -> Result<Self> {
        protect();
        let caught = CaughtKey::default();
        let recipients: Vec<_> = recipients
            .iter()
            .map(UserRecipient::to_age)
            .collect::<Result<_>>()?;
        let catching = recipients.into_iter().map(|inner| {
            let caught = caught.clone();
            Box::new(Catching { inner, caught }) as Box<dyn age::Recipient>
        });
        let encryptor = encryptor_for(&catching.collect::<Vec<_>>())?;
        let mut prefix = Vec::new();
        // The writer of age is dropped before it seals anything: its payload key is used here alone.
        drop(
            encryptor
                .wrap_output(&mut prefix)
                .map_err(|error| header_bug().because(error))?,
        );
        let salt = prefix.last_chunk::<SALT_BYTES>().ok_or_else(header_bug)?;
        let file_key = caught.take().ok_or_else(header_bug)?;
        let sealer = ChunkSealer::with_salt(&file_key, salt, None)?;
        Ok(Self {
            payload: PayloadWriter::new(sealer, &prefix),
            header_bytes: prefix.len() as u64,
            inner,
        })
    }

    /// Plain bytes so far.
    pub fn plain_bytes(&self) -> u64 {
        self.payload.plain_bytes()
    }

    /// Bytes of the file before its first chunk.
    pub fn header_bytes(&self) -> u64 {
        self.header_bytes
    }

    /// Returns the writer of the sealed bytes.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.inner
    }

    /// Ends the file and returns what it was written to.
    ///
    /// # Errors
    /// Those of that.
    pub fn finish(mut self) -> io::Result<W> {
        let rest = self
            .payload
            .finish()
            .map_err(|error| io::Error::other(error.line()))?;
        self.inner.write_all(&rest)?;
        self.inner.flush()?;
        Ok(self.inner)
    }
}

fn header_bug() -> Error {
    Error::new(ErrorKind::Bug, "cannot write the header of an archive")
}

/// An error of the system or of the sealer, as a writer returns it.
struct WriteError(io::Error);

impl From<Error> for WriteError {
    fn from(error: Error) -> Self {
        Self(io::Error::other(error.line()))
    }
}

impl<W: Write> Write for SealingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let inner = &mut self.inner;
        let written = self
            .payload
            .append(bytes, |sealed| inner.write_all(sealed).map_err(WriteError));
        written
            .map(|()| bytes.len())
            .map_err(|WriteError(error)| error)
    }

    /// Flushes what was sealed; an open chunk waits for more bytes or for the end.
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Stored bytes that are read by position, from any thread.
pub trait PositionalBytes: Send + Sync {
    /// Replaces the contents of `out` by `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if there are fewer, or the system's.
    fn read_at(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> io::Result<()>;
}

impl PositionalBytes for File {
    fn read_at(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        read_exactly(self, offset, len, out)
    }
}

impl PositionalBytes for Vec<u8> {
    fn read_at(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        let begin = usize::try_from(offset).ok();
        let range = begin.and_then(|begin| self.get(begin..begin.checked_add(len)?));
        let range = range.ok_or(io::ErrorKind::UnexpectedEof)?;
        out.clear();
        out.extend_from_slice(range);
        Ok(())
    }
}

/// An age file that is read at plain positions, from any thread.
#[derive(Debug)]
pub struct SealedFile<S> {
    stored: S,
    /// Where the first chunk begins.
    payload_at: u64,
    opener: ChunkOpener,
    name: String,
}

impl<S: PositionalBytes> SealedFile<S> {
    /// Opens a file of `stored_bytes`; messages call it `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if none of the keys opens it, [`ErrorKind::Corrupt`] if it is damaged, or the system's.
    pub fn open(
        stored: S,
        stored_bytes: u64,
        identities: &[UserIdentity],
        name: &str,
    ) -> Result<Self> {
        let mut begin = Vec::new();
        // The length comes from the storage: a header takes at most this much memory.
        let len = stored_bytes.min(MAX_HEADER_BYTES) as usize;
        stored
            .read_at(0, len, &mut begin)
            .map_err(|error| Error::io(format!("could not read {name}"), error))?;
        Self::open_with_header(stored, &begin, stored_bytes, identities, name)
    }

    /// As [`SealedFile::open`], with the first bytes of the file: nothing is read.
    ///
    /// # Errors
    /// As [`SealedFile::open`].
    pub fn open_with_header(
        stored: S,
        begin: &[u8],
        stored_bytes: u64,
        identities: &[UserIdentity],
        name: &str,
    ) -> Result<Self> {
        let mut rest = begin;
        let (file_key, salt) = open_header(&mut rest, identities, name)?;
        let payload_at = (begin.len() - rest.len()) as u64;
        // The stored length fixes which chunk is the last one, so a file that was cut off is
        // noticed here.
        let payload_bytes = stored_bytes.saturating_sub(payload_at);
        let opener = ChunkOpener::new(&file_key, &salt, payload_bytes)?;
        let opener = opener.ok_or_else(|| {
            Error::corrupt(format!("{name} is damaged"))
                .because("its end is missing, or something follows it")
        })?;
        Ok(Self {
            stored,
            payload_at,
            opener,
            name: name.to_owned(),
        })
    }

    pub fn plain_bytes(&self) -> u64 {
        self.opener.plain_bytes()
    }

    /// Replaces the contents of `out` by `len` plain bytes at `offset`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the file ends before, or if a chunk is not as it was sealed; or the system's.
    pub fn read_at(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let message = || {
            format!(
                "could not read {len} bytes at byte {offset} of {}",
                self.name
            )
        };
        let range = self.opener.chunks_of(offset, len as u64);
        let (begin, stored) =
            range.ok_or_else(|| Error::corrupt(message()).because("it ends too early"))?;
        self.stored
            .read_at(self.payload_at + begin, stored as usize, out)
            .map_err(|error| Error::io(message(), error))?;
        if self.opener.open(out, offset, len) {
            Ok(())
        } else {
            Err(super::object::damaged_chunk(&self.name))
        }
    }
}

/// Reads header and salt from `input`, which stands at the first chunk then.
fn open_header(
    input: &mut impl Read,
    identities: &[UserIdentity],
    name: &str,
) -> Result<(FileKey, [u8; SALT_BYTES])> {
    protect();
    let caught = CaughtKey::default();
    // age keeps the file key to itself. Chunks can be read at any offset only with it, so it is
    // caught on the way from the identity to age.
    let catching: Vec<_> = identities
        .iter()
        .map(|identity| Catching {
            inner: identity.as_age(),
            caught: caught.clone(),
        })
        .collect();
    // age reads the salt as the last part of the header: the last bytes it has read are the salt.
    let mut recorded = LastBytes {
        inner: input,
        last: [0; SALT_BYTES],
    };
    let decryptor = Decryptor::new(&mut recorded).map_err(|error| match error {
        DecryptError::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            Error::io(format!("could not read {name}"), error)
        }
        DecryptError::UnknownFormat => unwrap_error(&error, name),
        _ => Error::corrupt(format!("{name} is damaged")).because("its header is not one of age"),
    })?;
    let opened = decryptor.decrypt(
        catching
            .iter()
            .map(|identity| identity as &dyn age::Identity),
    );
    if let Err(error) = opened.map(drop) {
        if is_another_key(&error) {
            return Err(Error::new(ErrorKind::Permission, format!("cannot open {name}"))
                .because("none of the keys that were given opens it")
                .hint("give the key that it was encrypted to: --key FILE, or a passphrase with --passphrase-file FILE"));
        }
        return Err(unwrap_error(&error, name));
    }
    let key = caught
        .take()
        .ok_or_else(|| Error::new(ErrorKind::Bug, format!("cannot open {name}")))?;
    Ok((key, recorded.last))
}

/// Remembers the last bytes that were read: `age` reads the salt last.
struct LastBytes<'a, R> {
    inner: &'a mut R,
    last: [u8; SALT_BYTES],
}

impl<R: Read> Read for LastBytes<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(out)?;
        for byte in &out[read.saturating_sub(SALT_BYTES)..read] {
            self.last.rotate_left(1);
            self.last[SALT_BYTES - 1] = *byte;
        }
        Ok(read)
    }
}

/// Opens an age file that comes as a stream. A chunk is given out only when it was checked; an end that is missing is an error.
#[derive(Debug)]
pub struct OpeningReader<R> {
    inner: R,
    key: PayloadKey,
    /// Number of the next chunk.
    number: u64,
    /// Stored bytes that were read ahead: one byte behind a chunk tells that it is not the last.
    ahead: Vec<u8>,
    plain: Vec<u8>,
    /// Bytes of the open chunk that were given out.
    given: usize,
    has_ended: bool,
}

impl<R: Read> OpeningReader<R> {
    /// Reads the header; messages call the stream `name`.
    ///
    /// # Errors
    /// As [`SealedFile::open`].
    pub fn new(mut inner: R, identities: &[UserIdentity], name: &str) -> Result<Self> {
        let (file_key, salt) = open_header(&mut inner, identities, name)?;
        Ok(Self {
            inner,
            key: PayloadKey::new(&file_key, &salt)?,
            number: 0,
            ahead: Vec::with_capacity(SEALED_CHUNK_BYTES + 1),
            plain: Vec::with_capacity(SEALED_CHUNK_BYTES),
            given: 0,
            has_ended: false,
        })
    }

    fn next_chunk(&mut self) -> io::Result<()> {
        let wanted = SEALED_CHUNK_BYTES + 1 - self.ahead.len();
        let mut limited = (&mut self.inner).take(wanted as u64);
        limited.read_to_end(&mut self.ahead)?;
        let is_last = self.ahead.len() <= SEALED_CHUNK_BYTES;
        let stored = self.ahead.len().min(SEALED_CHUNK_BYTES);
        self.plain.clear();
        self.plain.extend_from_slice(&self.ahead[..stored]);
        self.ahead.drain(..stored);
        self.given = 0;
        let opened = self.key.open(self.number, is_last, &mut self.plain);
        // An empty chunk behind another is what nothing writes.
        let is_valid = opened.is_some_and(|len| len > 0 || self.number == 0);
        if !is_valid {
            self.plain.clear();
            let reason = "a chunk of the encrypted stream is damaged, or its end is missing";
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        self.plain.truncate(opened.unwrap_or_default());
        self.number += 1;
        self.has_ended = is_last;
        Ok(())
    }
}

impl<R: Read> Read for OpeningReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.given == self.plain.len() && !self.has_ended {
            self.next_chunk()?;
        }
        let len = out.len().min(self.plain.len() - self.given);
        out[..len].copy_from_slice(&self.plain[self.given..self.given + len]);
        self.given += len;
        Ok(len)
    }
}
