//! Frames on their way between hosts.

use super::words::wrong_words;
use fullbore_format::{
    entry::Entry,
    error::Result,
    page::{EntryState, encode_entries},
};
use fullbore_pipeline::{
    frame::{Frame, FrameContent, FrameEntry, LargeFile, Slice},
    known::StoredRun,
};
use minicbor::{Decode, Encode, bytes::ByteVec};
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of a part of a frame, as it is sent, without its entry.
const PART_BYTES: usize = 24;

#[derive(Debug, Encode, Decode)]
pub(super) struct FrameWords {
    #[n(0)]
    pub(super) data: ByteVec,
    #[n(1)]
    pub(super) parts: Vec<PartWords>,
    /// The entries of the parts that have one, in their order: a page of the manifest. Nothing for a
    /// piece of a large file.
    #[n(2)]
    pub(super) page: ByteVec,
    #[n(3)]
    pub(super) ends_member: bool,
    /// Members at the end of the slice that did not fit.
    #[n(4)]
    pub(super) left: Option<u32>,
    /// Has the large file of the slice changed?
    #[n(5)]
    pub(super) changed: bool,
    /// Why could it not be read?
    #[n(6)]
    pub(super) failed: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub(super) enum PartKind {
    /// A member: its entry is the next of the page.
    #[n(0)]
    Whole,
    /// The header of the large file: its entry is the next of the page.
    #[n(1)]
    Head,
    #[n(2)]
    Piece,
}

#[derive(Debug, Encode, Decode)]
pub(super) struct PartWords {
    #[n(0)]
    pub(super) kind: PartKind,
    #[n(1)]
    pub(super) inner: u32,
    #[n(2)]
    pub(super) len: u32,
    #[n(3)]
    pub(super) is_known: bool,
    #[n(4)]
    pub(super) runs: Option<Vec<StoredWords>>,
    #[n(5)]
    pub(super) replaced: bool,
    #[n(6)]
    pub(super) is_first: bool,
}

impl FrameWords {
    /// # Errors
    /// Those of the encoding of entries.
    pub(super) fn of(frame: Frame, large: Option<&LargeFile>) -> Result<Self> {
        Ok(Self {
            page: encode_entries(frame.parts.iter().filter_map(part_entry))?.into(),
            ..Self::of_piece(frame, large)
        })
    }

    /// The words of a frame without an entry.
    pub(super) fn of_piece(mut frame: Frame, large: Option<&LargeFile>) -> Self {
        let left = frame.rest.as_ref().map(|rest| match rest {
            Slice::Members(left, _) => left.len() as u32,
            Slice::Piece { .. } => 0,
        });
        Self {
            data: std::mem::take(&mut *frame.data).into(),
            parts: frame.parts.iter().map(PartWords::of).collect(),
            page: Vec::new().into(),
            ends_member: frame.ends_member,
            left,
            changed: large.is_some_and(|file| file.changed.load(Relaxed)),
            failed: large.and_then(|file| file.failed.get().cloned()),
        }
    }

    /// Bytes of the encoded frame, roughly.
    pub(super) fn encoded_bytes(&self) -> usize {
        self.data.len() + self.page.len() + self.parts.len() * PART_BYTES
    }
}

fn part_entry(part: &FrameEntry) -> Option<(&Entry, &EntryState)> {
    match &part.what {
        FrameContent::Whole(entry, state) => Some((entry, state)),
        FrameContent::Head(entry, _) => Some((entry, &EntryState::Whole)),
        FrameContent::Piece { .. } => None,
    }
}

impl PartWords {
    fn of(part: &FrameEntry) -> Self {
        let runs = part.runs.as_ref();
        Self {
            kind: match &part.what {
                FrameContent::Whole(..) => PartKind::Whole,
                FrameContent::Head(..) => PartKind::Head,
                FrameContent::Piece { .. } => PartKind::Piece,
            },
            inner: part.inner,
            len: part.len,
            is_known: part.known.is_some(),
            runs: runs.map(|runs| runs.iter().map(stored_words).collect()),
            replaced: part.replaced,
            is_first: part.is_first,
        }
    }
}

/// A [`StoredRun`]: is it here, where, and how long?
pub(super) type StoredWords = (bool, u64, u32);

pub(super) fn stored_words(run: &StoredRun) -> StoredWords {
    match *run {
        StoredRun::Here { inner, len } => (true, inner.into(), len),
        StoredRun::Kept { at, len } => (false, at, len),
    }
}

pub(super) fn stored_run((is_here, begin, len): StoredWords) -> Result<StoredRun> {
    if !is_here {
        return Ok(StoredRun::Kept { at: begin, len });
    }
    let inner = u32::try_from(begin).map_err(|_| wrong_words("a run is wrong"))?;
    Ok(StoredRun::Here { inner, len })
}
