//! A tree of another host as a source: the listing comes in batches, in archive order, and slices are read there.
//!
//! One side serves the sources that it has opened ([`ServedSources`]); the other one has a [`FarTree`] for each of them, and asks over a
//! [`SourceChannel`]. A slice is one question, however many files it has, and any number of threads may ask at the same time.
//! The frames are those that the other host would have made itself.

mod room;
mod served;
mod tree;
mod words;

pub use room::{MAX_FRAME_BYTES, question_room};
pub use served::{OpenSubject, OpenedSources, ServedSources};
pub use tree::FarTree;

use fullbore_format::error::{Result, one_line};
use minicbor::{Decode, Encode, bytes::ByteVec};
use std::{fmt, sync::Arc};
use words::{EntryWords, KnownWords, StateWords, StoredWords, decoded, encoded, wrong_words};

/// The words by which a question opens a subject; `None` if it is another question.
///
/// # Errors
/// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if it is no question.
pub fn opened_words(question: &[u8]) -> Result<Option<Vec<u8>>> {
    match decoded(question)? {
        SourceQuestion::Open(words) => Ok(Some(words.into())),
        _ => Ok(None),
    }
}

/// A way to a host that serves sources.
pub trait SourceChannel: fmt::Debug + Send + Sync {
    /// Asks a question, and returns the answer.
    ///
    /// # Errors
    /// Those of the other host, and of the way to it.
    fn ask(&self, question: &[u8]) -> Result<Vec<u8>>;
}

/// What a host has opened for a backup.
#[derive(Debug, Clone)]
pub struct FarOrigin {
    pub host: String,
    pub paths: Vec<Vec<u8>>,
    /// Is the root of the backup the content of the only path?
    pub contents: bool,
    /// How many sources there are.
    pub sources: usize,
}

/// Sources that there may be: one for each device.
const MAX_SOURCES: usize = 256;

/// A question of the side that runs a backup.
#[derive(Debug, Encode, Decode)]
enum SourceQuestion {
    /// Opens a subject, given in words that this room does not read.
    #[n(0)]
    Open(#[n(0)] ByteVec),
    /// The next entries of the scan of a source.
    #[n(1)]
    Scan(#[n(0)] u32),
    /// Reads a slice of a source into a buffer of this capacity.
    #[n(2)]
    Read(#[n(0)] u32, #[n(1)] u32, #[n(2)] SliceWords),
    /// Warnings, after all scans.
    #[n(3)]
    Warnings,
    #[n(4)]
    HostName,
}

#[derive(Debug, Encode, Decode)]
struct OriginWords {
    #[n(0)]
    host: String,
    #[n(1)]
    paths: Vec<ByteVec>,
    #[n(2)]
    contents: bool,
    #[n(3)]
    sources: u32,
}

#[derive(Debug, Encode, Decode)]
struct ScannedWords {
    #[n(0)]
    entry: EntryWords,
    #[n(1)]
    state: StateWords,
    #[n(2)]
    born: Option<(i64, u32)>,
    #[n(3)]
    home: Option<(u64, u64)>,
    #[n(4)]
    exposed: bool,
    #[n(5)]
    is_first: bool,
    #[n(6)]
    known: Option<KnownWords>,
}

/// Entries of a scan, and whether it ends with them.
type ScanWords = (Vec<ScannedWords>, bool);

/// A large file, whose path names it.
#[derive(Debug, Encode, Decode)]
struct LargeWords {
    #[n(0)]
    scanned: ScannedWords,
    #[n(1)]
    data_len: u64,
    #[n(2)]
    pieces: u64,
}

#[derive(Debug, Encode, Decode)]
enum SliceWords {
    #[n(0)]
    Members(#[n(0)] Vec<ScannedWords>, #[n(1)] Option<Box<LargeWords>>),
    #[n(1)]
    Piece {
        #[n(0)]
        path: ByteVec,
        #[n(1)]
        offset: u64,
        #[n(2)]
        len: u32,
        #[n(3)]
        last: bool,
    },
}

#[derive(Debug, Encode, Decode)]
enum PartKind {
    #[n(0)]
    Whole(#[n(0)] EntryWords, #[n(1)] StateWords),
    #[n(1)]
    Head(#[n(0)] EntryWords),
    #[n(2)]
    Piece,
}

#[derive(Debug, Encode, Decode)]
struct PartWords {
    #[n(0)]
    kind: PartKind,
    #[n(1)]
    inner: u32,
    #[n(2)]
    len: u32,
    #[n(3)]
    is_known: bool,
    #[n(4)]
    runs: Option<Vec<StoredWords>>,
    #[n(5)]
    replaced: bool,
    #[n(6)]
    is_first: bool,
}

#[derive(Debug, Encode, Decode)]
struct FrameWords {
    #[n(0)]
    data: ByteVec,
    #[n(1)]
    parts: Vec<PartWords>,
    #[n(2)]
    ends_member: bool,
    /// Members at the end of the slice that did not fit.
    #[n(3)]
    left: Option<u32>,
    /// Has the large file of the slice changed?
    #[n(4)]
    changed: bool,
    /// Why could it not be read?
    #[n(5)]
    failed: Option<String>,
}

/// The name of the host at the other end.
///
/// # Errors
/// Those of the channel.
pub fn far_host_name(channel: &dyn SourceChannel) -> Result<String> {
    decoded(&channel.ask(&encoded(&SourceQuestion::HostName))?)
}

/// Opens a subject on the other host, by words that are its business.
///
/// # Errors
/// Those of the other host and of the channel.
pub fn open_far(
    channel: &Arc<dyn SourceChannel>,
    words: &[u8],
) -> Result<(FarOrigin, Vec<FarTree>)> {
    let question = SourceQuestion::Open(words.to_vec().into());
    let origin: OriginWords = decoded(&channel.ask(&encoded(&question))?)?;
    let sources = origin.sources as usize;
    if sources > MAX_SOURCES {
        return Err(wrong_words("it has too many devices"));
    }
    let trees = (0..origin.sources).map(|number| FarTree::new(channel.clone(), number));
    let origin = FarOrigin {
        host: origin.host,
        paths: origin.paths.into_iter().map(Into::into).collect(),
        contents: origin.contents,
        sources,
    };
    Ok((origin, trees.collect()))
}

/// Warnings of the other host about what it has opened.
///
/// # Errors
/// Those of the channel.
pub fn far_warnings(channel: &dyn SourceChannel) -> Result<Vec<String>> {
    let warnings: Vec<String> = decoded(&channel.ask(&encoded(&SourceQuestion::Warnings))?)?;
    Ok(warnings.iter().map(|line| one_line(line)).collect())
}
