//! The segment that is not finished: its bytes, and the pieces of it that are durable.
//!
//! A flush stores one piece. Where three pieces of a rank stand before it, the new piece takes them in and has the next rank: so each
//! byte is stored once for each rank (five times with 1,024 flushes), and a reader needs at most [`MAX_PIECES`] pieces.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    wal::{SegmentName, WalPiece},
};
use fullbore_postgres::{
    lsn::Lsn,
    wal_archive::{SegmentFacts, check_pages, read_segment_facts},
};
use fullbore_repository::wal::WalArchive;
use std::time::{Duration, Instant};

/// Pieces of one rank, at most.
const OF_A_RANK: usize = 3;
/// Pieces of a segment, at most.
const MAX_PIECES: usize = 16;
/// Bytes of the header of a segment: nothing is stored before it was checked.
const HEADER_BYTES: usize = 40;

/// A segment while it is received.
#[derive(Debug)]
pub(super) struct OpenSegment {
    pub(super) name: SegmentName,
    /// The system identifier that its header must have.
    system: u64,
    segment_bytes: u64,
    content: Vec<u8>,
    facts: Option<SegmentFacts>,
    /// Bytes whose pages were checked.
    checked: usize,
    /// Bytes that are durable.
    flushed: usize,
    pieces: Vec<RankedPiece>,
    /// When the first byte arrived that is not durable.
    since: Option<Instant>,
}

/// A piece, and how often those in it were taken together.
#[derive(Debug)]
struct RankedPiece {
    piece: WalPiece,
    rank: u32,
}

/// A segment that has arrived as a whole.
#[derive(Debug)]
pub(super) struct FinishedSegment {
    pub(super) name: SegmentName,
    pub(super) segment_bytes: u64,
    pub(super) content: Vec<u8>,
    /// The pieces of it that are stored.
    pub(super) pieces: Vec<WalPiece>,
}

impl OpenSegment {
    pub(super) fn new(name: SegmentName, segment_bytes: u64, system: u64) -> Self {
        Self {
            name,
            system,
            segment_bytes,
            content: Vec::new(),
            facts: None,
            checked: 0,
            flushed: 0,
            pieces: Vec::new(),
            since: None,
        }
    }

    /// The segment behind it.
    pub(super) fn next(&self) -> Self {
        let name = self.name.next(self.segment_bytes);
        Self::new(name, self.segment_bytes, self.system)
    }

    pub(super) fn start(&self) -> Lsn {
        Lsn(self.name.start(self.segment_bytes))
    }

    pub(super) fn end(&self) -> Lsn {
        Lsn(self.start().0 + self.segment_bytes)
    }

    /// All of the segment before this place is durable.
    pub(super) fn durable(&self) -> Lsn {
        Lsn(self.start().0 + self.flushed as u64)
    }

    pub(super) fn room(&self) -> usize {
        (self.segment_bytes as usize).saturating_sub(self.content.len())
    }

    pub(super) fn has_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Bytes that are not durable.
    pub(super) fn waiting(&self) -> usize {
        self.content.len() - self.flushed
    }

    /// How long the oldest of them waits.
    pub(super) fn waits_since(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.since.get_or_insert_with(Instant::now);
        self.content.extend_from_slice(bytes);
    }

    /// Checks what has arrived: the header, and the place of each page. Returns whether the header is there.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`].
    pub(super) fn check(&mut self) -> Result<bool> {
        if self.content.len() < HEADER_BYTES {
            return Ok(false);
        }
        let facts = match self.facts {
            Some(facts) => facts,
            None => self.check_header()?,
        };
        self.facts = Some(facts);
        check_pages(&self.content, self.checked, &facts)?;
        // The header of the last page may not have arrived.
        self.checked = self.content.len().saturating_sub(HEADER_BYTES);
        Ok(true)
    }

    fn check_header(&self) -> Result<SegmentFacts> {
        let refused = |why: String| {
            let message = format!(
                "cannot receive {}: the server sent something else",
                self.name
            );
            Err(Error::new(ErrorKind::Corrupt, message).because(why))
        };
        let Some(facts) = read_segment_facts(&self.content) else {
            return refused("it does not begin with the header of a segment".to_owned());
        };
        if facts.system != self.system {
            return refused(format!("it is of system {}", facts.system));
        }
        if facts.segment_bytes != self.segment_bytes {
            return refused(format!("its segments have {} bytes", facts.segment_bytes));
        }
        if facts.start != self.start().0 || facts.timeline > self.name.timeline {
            let is = Lsn(facts.start);
            return refused(format!("it is of {is} on timeline {}", facts.timeline));
        }
        Ok(facts)
    }

    /// Makes all that has arrived durable, as one piece. Returns the pieces that it took in.
    ///
    /// # Errors
    /// As [`OpenSegment::check`]; the storage's.
    pub(super) fn flush(&mut self, archive: &WalArchive) -> Result<Vec<WalPiece>> {
        if self.waiting() == 0 || !self.check()? {
            return Ok(Vec::new());
        }
        let ranks: Vec<u32> = self.pieces.iter().map(|piece| piece.rank).collect();
        let (kept, rank) = kept_before(&ranks);
        let start = self
            .pieces
            .get(kept)
            .map_or(self.flushed, |first| first.piece.from as usize);
        let piece = archive.put_piece(self.name, start as u32, &self.content[start..])?;
        self.flushed = self.content.len();
        self.since = None;
        let replaced = self.pieces.drain(kept..);
        let replaced = replaced
            .map(|ranked| ranked.piece)
            .filter(|replaced| *replaced != piece);
        let replaced = replaced.collect();
        self.pieces.push(RankedPiece { piece, rank });
        Ok(replaced)
    }

    /// Takes the segment, which is whole.
    ///
    /// # Errors
    /// As [`OpenSegment::check`].
    pub(super) fn finish(&mut self) -> Result<FinishedSegment> {
        self.check()?;
        let pieces = std::mem::take(&mut self.pieces);
        Ok(FinishedSegment {
            name: self.name,
            segment_bytes: self.segment_bytes,
            content: std::mem::take(&mut self.content),
            pieces: pieces.into_iter().map(|ranked| ranked.piece).collect(),
        })
    }
}

/// Returns how many pieces stay before a new one, and the rank of the new one, given the ranks of those that are there.
fn kept_before(ranks: &[u32]) -> (usize, u32) {
    let mut kept = ranks.len();
    let mut rank = 0;
    while kept >= OF_A_RANK
        && ranks[kept - OF_A_RANK..kept]
            .iter()
            .all(|other| *other == rank)
    {
        kept -= OF_A_RANK;
        rank += 1;
    }
    match kept < MAX_PIECES {
        true => (kept, rank),
        false => (0, ranks.first().map_or(0, |first| first + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces after so many flushes of one byte, and the bytes that were stored.
    fn flushed(flushes: usize) -> (usize, usize) {
        let mut pieces: Vec<(usize, u32)> = Vec::new();
        let mut stored = 0;
        for flush in 0..flushes {
            let ranks: Vec<u32> = pieces.iter().map(|(_, rank)| *rank).collect();
            let (kept, rank) = kept_before(&ranks);
            let start = pieces.get(kept).map_or(flush, |(start, _)| *start);
            pieces.truncate(kept);
            pieces.push((start, rank));
            stored += flush + 1 - start;
            assert!(pieces.len() <= MAX_PIECES, "{pieces:?}");
        }
        (pieces.len(), stored)
    }

    #[test]
    fn pieces_stay_few_and_each_byte_is_stored_a_few_times() {
        assert_eq!(flushed(3), (3, 3));
        assert_eq!(flushed(4), (1, 7));
        let (_, stored) = flushed(2048);
        assert!(stored < 6 * 2048, "{stored}");
        flushed(100_000);
    }
}
