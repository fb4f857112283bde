//! Pieces of WAL segments of which a run or a longer piece has all.

use super::stored::{StoredRun, WalListing};
use fullbore_format::wal::{SegmentName, WalPiece};
use std::collections::{BTreeMap, BTreeSet};

/// An object that may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnneededWal {
    pub(super) key: String,
    pub(super) bytes: u64,
}

impl UnneededWal {
    pub(super) fn from_run(stored: &StoredRun) -> Self {
        Self {
            key: stored.run.to_string(),
            bytes: stored.bytes,
        }
    }
}

/// Returns the pieces of segments that a run has, and those that are within a longer one.
pub(super) fn covered_pieces(listing: &WalListing) -> Vec<UnneededWal> {
    if listing.pieces.is_empty() {
        return Vec::new();
    }
    let whole = listing.segments();
    let mut by_segment: BTreeMap<SegmentName, Vec<&WalPiece>> = BTreeMap::new();
    for stored in &listing.pieces {
        let pieces = by_segment.entry(stored.piece.segment).or_default();
        pieces.push(&stored.piece);
    }
    let mut within = BTreeSet::new();
    for pieces in by_segment.values_mut() {
        // The longest of those with one beginning is the first.
        pieces.sort_unstable_by_key(|piece| (piece.from, u32::MAX - piece.to));
        let mut longest: Option<&WalPiece> = None;
        for piece in pieces {
            match longest {
                Some(longest) if piece.is_within(longest) => drop(within.insert(*piece)),
                _ => longest = Some(piece),
            }
        }
    }
    let pieces = listing.pieces.iter();
    let pieces = pieces
        .filter(|stored| whole.contains(&stored.piece.segment) || within.contains(&stored.piece));
    let covered = pieces.map(|stored| UnneededWal {
        key: stored.piece.to_string(),
        bytes: stored.bytes,
    });
    covered.collect()
}

#[cfg(test)]
mod tests {
    use super::{super::tail::StoredPiece, *};
    use fullbore_format::wal::{WalDigest, WalRun};

    fn segment(name: &str) -> SegmentName {
        SegmentName::parse(name).unwrap()
    }

    #[test]
    fn pieces_go_when_a_run_or_a_longer_piece_has_them() {
        let piece = |name: &str, start: u32, end: u32| StoredPiece {
            piece: WalPiece {
                system: "7".to_owned(),
                segment: segment(name),
                from: start,
                to: end,
                digest: WalDigest([end as u8; 16]),
            },
            bytes: 1,
        };
        let (stored, open) = ("000000010000000000000009", "0000000100000000000000F0");
        let mut listing = WalListing {
            pieces: vec![
                piece(stored, 0, 9),
                piece(open, 0, 5),
                piece(open, 0, 9),
                piece(open, 3, 9),
                piece(open, 3, 12),
            ],
            ..WalListing::default()
        };
        listing.runs.push(StoredRun {
            run: WalRun {
                system: "7".to_owned(),
                first: segment(stored),
                count: 1,
                is_partial: false,
                digest: WalDigest([0; 16]),
            },
            bytes: 1,
        });
        let covered = covered_pieces(&listing);
        let expected = [(stored, 0, 9), (open, 0, 5), (open, 3, 9)];
        let expected = expected.map(|(name, start, end)| format!("{name}-{start:08x}-{end:08x}"));
        assert_eq!(covered.len(), 3, "{covered:?}");
        for (found, name) in covered.iter().zip(expected) {
            assert!(found.key.contains(&name), "{found:?} {name}");
        }
    }
}
