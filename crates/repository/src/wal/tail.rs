//! The tail of the WAL: pieces of the segment that is not finished, and gaps that an operator has accepted.
//!
//! A piece is an object of its own, put once and never changed. A longer piece may take the place of several; a run takes
//! the place of all pieces of its segments. A reader takes as few pieces as reach furthest.

use super::stored::WalArchive;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text,
    wal::{SegmentName, WalKey, WalPiece, longest_chain, piece_object, tail_dir},
};
use serde::Serialize;
use std::collections::BTreeMap;

/// A piece that a listing had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPiece {
    /// Its key as data.
    pub piece: WalPiece,
    /// Bytes of the object.
    pub bytes: u64,
}

/// The beginning of a segment that is not finished: pieces without a hole between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentTail {
    pieces: Vec<WalPiece>,
}

/// The note of a gap that an operator has accepted.
#[derive(Debug, Clone, Serialize)]
pub struct AcceptedGap {
    /// The host that noted it.
    pub host: String,
    /// When, in seconds since 1970 by the clock of that host.
    pub accepted: i64,
    /// Why the segments are missing.
    pub reason: String,
}

impl SegmentTail {
    /// Returns the tail of each segment of which there are pieces from its beginning on.
    pub(super) fn all_of(stored: &[StoredPiece]) -> BTreeMap<SegmentName, Self> {
        let mut by_segment: BTreeMap<SegmentName, Vec<WalPiece>> = BTreeMap::new();
        for StoredPiece { piece, .. } in stored {
            by_segment
                .entry(piece.segment)
                .or_default()
                .push(piece.clone());
        }
        let chains = by_segment.into_iter().map(|(segment, pieces)| {
            let pieces = longest_chain(pieces);
            (segment, Self { pieces })
        });
        chains.filter(|(_, tail)| tail.end() > 0).collect()
    }

    /// Returns the offset of the first byte that is missing.
    pub fn end(&self) -> u32 {
        self.pieces.last().map_or(0, |piece| piece.to)
    }
}

impl WalArchive {
    /// Stores a piece of a segment that begins at `from` in it: durable when this returns.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if it is empty or no segment is so long; the storage's.
    pub fn put_piece(&self, segment: SegmentName, from: u32, content: &[u8]) -> Result<WalPiece> {
        let piece = WalPiece::new(&self.system, segment, from, content, &self.digester);
        let piece = piece.ok_or_else(|| {
            let message = format!(
                "cannot store {} bytes of {segment} from {from} on",
                content.len()
            );
            Error::new(ErrorKind::Usage, message)
        })?;
        self.put_object(
            &piece.to_string(),
            &piece_object(&piece, content, PIECE_LEVEL)?,
        )?;
        Ok(piece)
    }

    /// Reads the tail of a segment: its bytes from the beginning on.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if a piece was deleted meanwhile; [`ErrorKind::Corrupt`] for damage; [`ErrorKind::Exists`] if
    /// pieces that overlap differ; the storage's.
    pub fn read_tail(&self, tail: &SegmentTail) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        for piece in &tail.pieces {
            let read = self.read_piece(piece)?;
            let (known, new) = read.split_at(content.len().saturating_sub(piece.from as usize));
            if !content.ends_with(known) {
                return Err(two_tails(self.system(), piece.segment));
            }
            content.extend_from_slice(new);
        }
        Ok(content)
    }

    /// Reads a piece.
    ///
    /// # Errors
    /// As [`WalArchive::read_tail`].
    pub fn read_piece(&self, piece: &WalPiece) -> Result<Vec<u8>> {
        let key = piece.to_string();
        let name = self.describe(&key);
        let missing = || {
            Error::new(ErrorKind::NotFound, format!("could not read {name}"))
                .because("it is not there")
        };
        let bytes = self.objects.stat(&key)?.ok_or_else(missing)?;
        if bytes > piece.max_object_bytes() {
            return Err(Error::corrupt(format!("{name} is damaged")).because("it is too long"));
        }
        let mut object = Vec::new();
        self.objects.read_at(&key, 0, bytes as usize, &mut object)?;
        piece.unpack(&object, &self.digester, &name)
    }

    /// Returns the pieces of a timeline.
    ///
    /// # Errors
    /// The storage's.
    pub fn pieces(&self, timeline: u32) -> Result<Vec<StoredPiece>> {
        Ok(self
            .listing_below(&tail_dir(&self.system, timeline))?
            .pieces)
    }

    /// Deletes pieces.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if this host may not; the storage's.
    pub fn delete_pieces(&self, pieces: &[WalPiece]) -> Result<()> {
        let keys: Vec<String> = pieces.iter().map(WalPiece::to_string).collect();
        if keys.is_empty() {
            Ok(())
        } else {
            self.objects.delete(&keys)
        }
    }

    /// Notes that an operator has accepted the loss of the segments from `from` to `to`.
    ///
    /// # Errors
    /// The storage's.
    pub fn accept_gap(&self, from: SegmentName, to: SegmentName, note: &AcceptedGap) -> Result<()> {
        let system = self.system.clone();
        let key = WalKey::Gap { system, from, to };
        let mut body = Vec::new();
        text::json(&mut body, &serde_json::to_value(note).unwrap_or_default())?;
        self.put(&key.to_string(), &body)
    }
}

/// The level of zstd for pieces: they are stored often, and not for long.
const PIECE_LEVEL: i32 = 1;

fn two_tails(system: &str, segment: SegmentName) -> Error {
    let message = format!("cannot choose the content of {segment} of system {system}");
    Error::new(ErrorKind::Exists, message)
        .because("pieces of it that were received differ: two servers wrote one timeline")
        .hint("move the pieces of the server that should not have written away")
}
