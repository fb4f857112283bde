//! The unit of work, and its buffers.

use crate::known::{BaseEntry, StoredRun, Trust};
use fullbore_format::{
    chunk::ContentChunk,
    digest::Piece,
    entry::{Entry, Time, Xattr},
    page::EntryState,
};
use std::{
    ops::{Deref, DerefMut},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

/// Reason for a hard link that cannot be stored as a link.
pub const LOST_LINK: &str = "the file it is another name of was replaced, or could not be read";

/// One unit of work: a piece of a tar stream that is compressed by itself.
///
/// The number of frames at one time is bounded by construction: each adaptor of [`crate`]
/// holds at most its depth.
#[derive(Debug)]
pub struct Frame {
    /// The output of the last stage.
    pub data: Buf,
    /// Bytes of the tar stream in this frame, before any stage.
    pub plain_len: u32,
    /// The entries in the plain bytes, in order.
    pub parts: Vec<FrameEntry>,
    /// Whether a member of the tar ends with this frame. A segment can end only at such a frame.
    pub ends_member: bool,
    /// CRC-32 of the plain bytes, if the codec needs it.
    pub crc32: Option<u32>,
    /// The part that did not fit and comes next. The scan does not know the size of attributes.
    pub rest: Option<Slice>,
}

#[derive(Debug)]
pub struct FrameEntry {
    /// The entry, and how much of it.
    pub what: FrameContent,
    /// Bytes of the frame before the content.
    pub inner: u32,
    /// Bytes of content of this part.
    pub len: u32,
    /// The entry in earlier backups, if this frame has all of it. For a large file see
    /// [`LargeFile::known`].
    pub known: Option<BaseEntry>,
    /// The places of the content, run by run; `None` if all of it is in this frame, from `inner`
    /// on.
    pub runs: Option<Vec<StoredRun>>,
    /// Digest of the content, set by the digest stage.
    pub piece: Piece,
    /// CRC-32C of each block, if requested.
    pub crcs: Vec<u32>,
    pub chunks: Vec<ContentChunk>,
    /// Whether the file was replaced since the scan. Later names in the scan may be links to the
    /// earlier file.
    pub replaced: bool,
    /// Whether this may be the first name of a file with several.
    pub is_first: bool,
}

/// The entry of a part, and the extent of the part.
#[derive(Debug)]
pub enum FrameContent {
    Whole(Entry, EntryState),
    /// The header of a large file, whose content follows in frames of its own.
    Head(Entry, Arc<LargeFile>),
    /// Content of a large file, from this offset of its data.
    Piece {
        file: Arc<LargeFile>,
        /// Bytes of data before the piece.
        offset: u64,
        last: bool,
    },
}

/// A file too large for one frame, shared by its readers.
#[derive(Debug)]
pub struct LargeFile {
    /// The entry as the scan saw it.
    pub entry: Entry,
    /// The file in earlier backups. If set, each piece is a member of its own with the new content
    /// only.
    pub known: Option<BaseEntry>,
    /// Creation time, if the file system has it.
    pub born: Option<Time>,
    /// Bytes of data; [`u64::MAX`] for a stream whose end is not known yet.
    pub data_len: u64,
    /// The open file and its attributes, or the reason why it cannot be read. The first thread that
    /// needs it opens it, and all pieces are read from the same open file.
    pub opened: OnceLock<Result<(OwnedFd, Vec<Xattr>), EntryState>>,
    /// Whether the file shrank or changed while it was read.
    pub changed: AtomicBool,
    /// The reason why a piece could not be read.
    pub failed: OnceLock<String>,
    /// Pages with wrong checksums, if they are checked.
    pub bad_pages: Mutex<Vec<u32>>,
    /// Pieces that were not read yet. The thread that reads the last one checks whether the file
    /// changed.
    pub unread: AtomicU64,
    /// Final length of a stream; [`u64::MAX`] until its end is reached.
    pub end: AtomicU64,
}

/// One object of the scan, and whether its metadata could be read.
#[derive(Debug, Clone)]
pub struct Scanned {
    pub entry: Entry,
    /// [`EntryState::Whole`], or the reason why its content is not read.
    pub state: EntryState,
    /// Creation time, if the file system has it. Not part of the entry, because no system call can
    /// set it.
    pub born: Option<Time>,
    /// Device and inode of the parent directory, if there is one.
    pub home: Option<(u64, u64)>,
    /// Whether other users, besides root and our own, can replace the object in its directory.
    pub exposed: bool,
    /// Whether this is the first name of a file with several names.
    pub is_first: bool,
    /// The object in earlier backups.
    pub known: Option<BaseEntry>,
    /// Whether this backup had the content read into the page cache ahead of the reader.
    pub is_read_ahead: bool,
    /// Whether the scan delivers the objects in this directory.
    pub content: ContentScope,
    /// Whether only changed runs of the content arrive: the file has frames of its own, however
    /// small it is.
    pub comes_in_runs: bool,
}

/// Whether a scan delivers the objects in a directory. Of those that it does not deliver, nothing is
/// known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContentScope {
    /// It delivers them, except those that a pattern leaves out.
    #[default]
    Delivered,
    /// A name in the directory leaves them out, such as `CACHEDIR.TAG`.
    Marked,
    /// The directory is on another file system, or belongs to another stream.
    Beyond,
}

impl Scanned {
    /// Creates an object without further facts.
    pub fn new(entry: Entry, state: EntryState) -> Self {
        Self {
            entry,
            state,
            born: None,
            home: None,
            exposed: false,
            is_first: false,
            known: None,
            is_read_ahead: false,
            content: ContentScope::default(),
            comes_in_runs: false,
        }
    }
}

/// The content of one frame, to be read.
#[derive(Debug)]
pub enum Slice {
    /// These members, all whole, and optionally the header of a large file.
    Members(Vec<Scanned>, Option<Arc<LargeFile>>),
    /// A piece of a large file.
    Piece {
        file: Arc<LargeFile>,
        /// Bytes of data before the piece.
        offset: u64,
        /// Bytes of the piece.
        len: u32,
        last: bool,
    },
}

impl Slice {
    /// Waits until an earlier slice has opened the file of this piece.
    ///
    /// Reading waits for that too. A thread that holds a resource which the earlier slice may need
    /// must call this first.
    pub fn wait(&self) {
        if let Self::Piece { file, .. } = self {
            file.opened.wait();
        }
    }
}

impl Scanned {
    /// Returns whether a source reads the content: of an object that is unchanged since an earlier
    /// backup it reads nothing, whatever its size.
    pub fn is_read(&self) -> bool {
        { self.known.as_ref() }.is_none_or(|known| known.trust == Trust::Nothing)
    }
}

impl LargeFile {
    /// Creates a file with this number of bytes of data, in this number of pieces.
    pub fn new(scanned: Scanned, data_len: u64, pieces: u64) -> Arc<Self> {
        let Scanned {
            entry, born, known, ..
        } = scanned;
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

    /// Returns whether this is a stream whose length is known only at its end.
    pub fn is_endless(&self) -> bool {
        self.data_len == u64::MAX
    }
}

impl Frame {
    /// Creates a frame as a source delivers it.
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

/// A buffer that returns to its pool when it is dropped.
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
    /// Creates a pool of buffers of `capacity` bytes that keeps at most `keep` idle ones.
    pub fn new(capacity: usize, keep: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::default(),
            capacity,
            keep,
        })
    }

    /// Returns an empty buffer.
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
    /// Bytes that the buffer was made for.
    pub fn made_for(&self) -> usize {
        let home = self.home.as_ref();
        home.map_or(self.bytes.capacity(), |home| home.capacity)
    }

    /// Returns whether `bytes` is more than twice the capacity that the buffer was made for.
    pub fn exceeds_capacity(&self, bytes: usize) -> bool {
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
    /// Returns the buffer to its pool. A buffer that had to grow is not kept: one file with a
    /// megabyte of attributes would make all buffers large.
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
