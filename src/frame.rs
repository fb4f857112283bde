//! The unit of work, and the buffers it lives in.

use crate::{
    format::{
        chunk::ContentChunk,
        digest::Piece,
        entry::{Entry, Time, Xattr},
        page::EntryState,
    },
    known::{BaseEntry, StoredRun},
};
use std::{
    ops::{Deref, DerefMut},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

/// What is said of a link that leads to nothing, or to something else.
pub const LOST_LINK: &str = "the file it is another name of was replaced, or could not be read";

/// One unit of work: a piece of a tar stream that is compressed by itself.
///
/// How many exist at once is bounded by construction: each adaptor of [`crate::pipeline`] holds at most its depth.
#[derive(Debug)]
pub struct Frame {
    /// The bytes as the last stage left them.
    pub data: Buf,
    /// Bytes of the tar stream this frame stands for, before any stage.
    pub plain_len: u32,
    /// What the plain bytes hold, in order.
    pub parts: Vec<FrameEntry>,
    /// Does a member of the tar end with this frame? Segments end only there.
    pub ends_member: bool,
    /// CRC-32 of the plain bytes, where the codec needs it.
    pub crc32: Option<u32>,
    /// What did not fit after all, and comes next: a scan does not know how large the attributes of files are.
    pub rest: Option<Slice>,
}

/// What a frame holds of one entry.
#[derive(Debug)]
pub struct FrameEntry {
    /// Which entry, and how much of it.
    pub what: FrameContent,
    /// Bytes of the frame before the content.
    pub inner: u32,
    /// Bytes of content that the part stands for.
    pub len: u32,
    /// What earlier backups have of the object, if it is here as a whole; of a large file see [`Large::known`].
    pub known: Option<BaseEntry>,
    /// Where the content is, run by run; `None`: all of it is in this frame, from `inner` on.
    pub runs: Option<Vec<StoredRun>>,
    /// What the digest stage learned of the content.
    pub piece: Piece,
    /// CRC-32C of each of its blocks, where they are wanted.
    pub crcs: Vec<u32>,
    /// Its chunks, where they are wanted.
    pub chunks: Vec<ContentChunk>,
    /// Is it of another file than the one that the scan saw there, to which later names may be links?
    pub replaced: bool,
    /// May it be the first name of a file with several?
    pub is_first: bool,
}

/// Which entry a part is of.
#[derive(Debug)]
pub enum FrameContent {
    /// All of it, content included.
    Whole(Entry, EntryState),
    /// The header of a large file, whose content follows in frames of its own.
    Head(Entry, Arc<LargeFile>),
    /// Content of a large file, from this offset of its data.
    Piece {
        /// The file.
        file: Arc<LargeFile>,
        /// Bytes of data before this piece.
        offset: u64,
        /// Is it the last?
        last: bool,
    },
}

/// A file too large for one frame: what its readers share.
#[derive(Debug)]
pub struct LargeFile {
    /// The entry as the scan saw it.
    pub entry: Entry,
    /// What earlier backups have of it: then its pieces are members by themselves, of what is new in them.
    pub known: Option<BaseEntry>,
    /// When it was made, where the file system tells.
    pub born: Option<Time>,
    /// Bytes of data; [`u64::MAX`] for a stream whose end is not known yet.
    pub data_len: u64,
    /// Opened once, by whoever needs it first, never awaited; all pieces are read from the same open file. With its
    /// attributes, or why there is nothing to read.
    pub opened: OnceLock<Result<(OwnedFd, Vec<Xattr>), EntryState>>,
    /// Did it shrink or change under the readers?
    pub changed: AtomicBool,
    /// Why a piece could not be read, if one could not.
    pub failed: OnceLock<String>,
    /// Pages of it whose checksums are wrong, if somebody looks.
    pub bad_pages: Mutex<Vec<u32>>,
    /// Pieces not read yet; who takes it to 0 may look whether the file changed.
    pub unread: AtomicU64,
    /// Bytes a stream turned out to have; [`u64::MAX`] until its end was seen.
    pub end: AtomicU64,
}

/// One object the scan saw, and whether it could be looked at.
#[derive(Debug, Clone)]
pub struct Scanned {
    /// The object.
    pub entry: Entry,
    /// [`State::Whole`], or why its content will not be read.
    pub state: EntryState,
    /// When it was made, where the file system tells. Not part of the entry: nothing can set it.
    pub born: Option<Time>,
    /// The directory it was found in, if there is one: device and inode.
    pub home: Option<(u64, u64)>,
    /// May users that are neither root nor we put something else in its place there?
    pub exposed: bool,
    /// Is it the first name of a file that has more?
    pub is_first: bool,
    /// What earlier backups have of it.
    pub known: Option<BaseEntry>,
    /// Was its content brought into the page cache only to be read for this backup?
    pub is_ahead: bool,
}

impl Scanned {
    /// An object that nothing is known of yet.
    pub fn new(entry: Entry, state: EntryState) -> Self {
        Self {
            entry,
            state,
            born: None,
            home: None,
            exposed: false,
            is_first: false,
            known: None,
            is_ahead: false,
        }
    }
}

/// What to read for one frame.
#[derive(Debug)]
pub enum Slice {
    /// These members, each whole; then perhaps the header of a large file.
    Members(Vec<Scanned>, Option<Arc<LargeFile>>),
    /// A piece of a large file.
    Piece {
        /// The file.
        file: Arc<LargeFile>,
        /// Bytes of its data before the piece.
        offset: u64,
        /// Bytes of the piece.
        len: u32,
        /// Is it the last?
        last: bool,
    },
}

impl Slice {
    /// Wait until the file that it is a piece of was opened, for the slice before it.
    ///
    /// Whoever reads waits for that anyway; who holds something that the slice before may need waits first.
    pub fn wait(&self) {
        if let Self::Piece { file, .. } = self {
            file.opened.wait();
        }
    }
}

impl LargeFile {
    /// A file of so many bytes of data, cut into so many pieces.
    pub fn new(of: Scanned, data_len: u64, pieces: u64) -> Arc<Self> {
        let Scanned {
            entry, born, known, ..
        } = of;
        Arc::new(Self {
            entry,
            known,
            born,
            data_len,
            opened: OnceLock::new(),
            changed: AtomicBool::new(false),
            failed: OnceLock::new(),
            bad_pages: Mutex::default(),
            unread: AtomicU64::new(pieces),
            end: AtomicU64::new(u64::MAX),
        })
    }

    /// Is it a stream whose length is known only at its end?
    pub fn is_endless(&self) -> bool {
        self.data_len == u64::MAX
    }
}

impl Frame {
    /// A frame fresh from a source.
    pub fn new(data: Buf, parts: Vec<FrameEntry>, ends_member: bool) -> Self {
        Self {
            plain_len: data.len() as u32,
            data,
            parts,
            ends_member,
            crc32: None,
            rest: None,
        }
    }
}

/// A buffer that goes home to its pool.
#[derive(Debug, Default)]
pub struct Buf {
    bytes: Vec<u8>,
    home: Option<Arc<Pool>>,
}

/// Buffers of one size, kept for reuse: fresh memory costs a page fault for every 4 KiB.
#[derive(Debug)]
pub struct Pool {
    free: Mutex<Vec<Vec<u8>>>,
    capacity: usize,
    keep: usize,
}

impl Pool {
    /// Buffers of `capacity` bytes; at most `keep` idle ones are kept.
    pub fn new(capacity: usize, keep: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::default(),
            capacity,
            keep,
        })
    }

    /// An empty buffer.
    pub fn take(self: &Arc<Self>) -> Buf {
        let free = self.free.lock().map(|mut free| free.pop()).ok().flatten();
        let bytes = free.unwrap_or_else(|| Vec::with_capacity(self.capacity));
        Buf {
            bytes,
            home: Some(self.clone()),
        }
    }
}

impl Buf {
    /// Is so much far more than what it was made for?
    pub fn overflows(&self, bytes: usize) -> bool {
        self.home
            .as_ref()
            .is_some_and(|home| bytes > 2 * home.capacity)
    }
}

impl From<Vec<u8>> for Buf {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, home: None }
    }
}

impl Deref for Buf {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl Drop for Buf {
    /// A buffer that had to grow is not kept: one file with a megabyte of attributes would make all of them large.
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() <= home.capacity * 2
            && let Ok(mut free) = home.free.lock()
            && free.len() < home.keep
        {
            bytes.clear();
            free.push(bytes);
        }
    }
}
