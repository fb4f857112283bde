//! Questions of the side that runs a backup.

use super::{
    listed::ListedWords,
    words::{decoded, wrong_words},
};
use fullbore_format::error::Result;
use fullbore_pipeline::frame::{LargeFile, Scanned};
use minicbor::{Decode, Encode, bytes::ByteVec};
use std::sync::{Arc, atomic::Ordering::Relaxed};

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

/// A question of the side that runs a backup.
#[derive(Debug, Encode, Decode)]
pub(super) enum SourceQuestion {
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

/// The answer to [`SourceQuestion::Open`].
#[derive(Debug, Encode, Decode)]
pub(super) struct OriginWords {
    #[n(0)]
    pub(super) host: String,
    #[n(1)]
    pub(super) paths: Vec<ByteVec>,
    #[n(2)]
    pub(super) contents: bool,
    #[n(3)]
    pub(super) sources: u32,
}

/// The answer to [`SourceQuestion::Scan`]: entries, and whether the scan ends with them.
pub(super) type ScanWords = (ListedWords, bool);

#[derive(Debug, Encode, Decode)]
pub(super) enum SliceWords {
    /// Members. If a large file is among them, it is the last one.
    #[n(0)]
    Members(#[n(0)] ListedWords, #[n(1)] Option<LargeWords>),
    /// A piece of a large file, which its path names.
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

/// How a large file is read.
#[derive(Debug, Clone, Copy, Encode, Decode)]
pub(super) struct LargeWords {
    #[n(0)]
    pub(super) data_len: u64,
    #[n(1)]
    pub(super) pieces: u64,
}

impl LargeWords {
    fn of(file: &LargeFile) -> Self {
        Self {
            data_len: file.data_len,
            pieces: file.unread.load(Relaxed),
        }
    }

    /// Takes the large file off the end of the members.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if there is no member.
    pub(super) fn take_file(self, members: &mut Vec<Scanned>) -> Result<Arc<LargeFile>> {
        let scanned = members.pop();
        let scanned = scanned.ok_or_else(|| wrong_words("a large file has no entry"))?;
        Ok(LargeFile::new(scanned, self.data_len, self.pieces))
    }
}

impl SliceWords {
    /// # Errors
    /// Those of the encoding of entries.
    pub(super) fn of_members(small: &[Scanned], large: Option<&LargeFile>) -> Result<Self> {
        let head = large.map(scanned_again);
        let listed = ListedWords::of(small.iter().chain(&head))?;
        Ok(Self::Members(listed, large.map(LargeWords::of)))
    }
}

/// A large file as the scan saw it, as far as reading needs that.
fn scanned_again(file: &LargeFile) -> Scanned {
    Scanned {
        born: file.born,
        known: file.known.clone(),
        ..Scanned::new(file.entry.clone(), Default::default())
    }
}
