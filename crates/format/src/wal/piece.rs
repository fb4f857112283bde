//! Pieces of a segment that is not finished: what was received of it so far.
//!
//! A piece is one zstd frame: tar header, content, padding, and the two zero blocks that end a tar. `zstd -dc` of all
//! pieces of a segment through `tar -xO`, in the order of their names, is the beginning of the segment. The digest in
//! the key is over the content and its place, so that a piece needs no index.

use super::{
    key::{WalDigest, WalDigester, timeline_dir},
    name::SegmentName,
    segment_frame::{HEADER_BYTES, compress, tar_member},
};
use crate::error::{Error, Result};
use std::fmt;
use zstd_safe::DCtx;

/// Directory of the pieces of a timeline.
const TAIL: &str = "tail";
/// What the key of a piece ends with.
const PIECE_SUFFIX: &str = ".tar.zst";
/// Bytes that a tar ends with.
const END_BYTES: usize = 1024;
/// Offsets in a segment are below this: no segment is larger than 1 GiB.
const MAX_OFFSET: u32 = 1 << 30;

/// A piece of a segment, as its key describes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WalPiece {
    /// The system.
    pub system: String,
    /// The segment.
    pub segment: SegmentName,
    /// Where it begins in the segment.
    pub from: u32,
    /// Where it ends: the offset of the first byte behind it.
    pub to: u32,
    /// Over system, segment, place and content.
    pub digest: WalDigest,
}

/// Returns the directory of the pieces of a timeline.
pub fn tail_dir(system: &str, timeline: u32) -> String {
    format!("{}/{TAIL}", timeline_dir(system, timeline))
}

impl WalPiece {
    /// The piece of a segment that begins at `from` and has this content; `None` if it is empty, or no segment is so long.
    pub fn new(
        system: &str,
        segment: SegmentName,
        from: u32,
        content: &[u8],
        digester: &WalDigester,
    ) -> Option<Self> {
        let bytes = u32::try_from(content.len()).ok()?;
        let end = from.checked_add(bytes)?;
        (bytes > 0 && end <= MAX_OFFSET).then(|| Self {
            system: system.to_owned(),
            segment,
            from,
            to: end,
            digest: digester.of_piece(system, segment, from, content),
        })
    }

    /// Reads the name of a piece, without the directory.
    pub(super) fn parse(system: &str, name: &str) -> Option<Self> {
        let mut parts = name.strip_suffix(PIECE_SUFFIX)?.split('-');
        let (segment, source) = (parts.next()?, parts.next()?);
        let (target, digest) = (parts.next()?, parts.next()?);
        let piece = Self {
            system: system.to_owned(),
            segment: SegmentName::parse(segment)?,
            from: u32::from_str_radix(source, 16).ok()?,
            to: u32::from_str_radix(target, 16).ok()?,
            digest: WalDigest::parse(digest)?,
        };
        (piece.from < piece.to && piece.to <= MAX_OFFSET).then_some(piece)
    }

    /// Bytes of its content.
    pub fn content_bytes(&self) -> usize {
        (self.to - self.from) as usize
    }

    /// Returns whether another piece has all that this one has.
    pub fn is_within(&self, other: &Self) -> bool {
        let is_there = other.from <= self.from && self.to <= other.to;
        self.segment == other.segment && is_there
    }

    /// Bytes of the object at most.
    pub fn max_object_bytes(&self) -> u64 {
        zstd_safe::compress_bound(self.plain_bytes()) as u64
    }

    /// Bytes of the tar.
    fn plain_bytes(&self) -> usize {
        HEADER_BYTES + self.content_bytes().next_multiple_of(512) + END_BYTES
    }

    /// Returns the content of the object, after checking it against the key. Messages call it `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::error::ErrorKind::Corrupt) if it is damaged.
    pub fn unpack(&self, object: &[u8], digester: &WalDigester, name: &str) -> Result<Vec<u8>> {
        let damaged =
            |why: &str| Error::corrupt(format!("{name} is damaged")).because(why.to_owned());
        // The size comes from the key: no number in the object takes memory.
        let mut plain = Vec::with_capacity(self.plain_bytes());
        DCtx::create()
            .decompress(&mut plain, object)
            .map_err(|code| damaged(zstd_safe::get_error_name(code)))?;
        if plain.len() != self.plain_bytes() {
            return Err(damaged("it is shorter than its key says"));
        }
        plain.truncate(HEADER_BYTES + self.content_bytes());
        let content = plain.split_off(HEADER_BYTES);
        let digest = digester.of_piece(&self.system, self.segment, self.from, &content);
        match digest == self.digest {
            true => Ok(content),
            false => Err(damaged("its key has the digest of other content")),
        }
    }
}

impl fmt::Display for WalPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dir = tail_dir(&self.system, self.segment.timeline);
        let (segment, start, end, digest) = (self.segment, self.from, self.to, self.digest);
        write!(
            f,
            "{dir}/{segment}-{start:08x}-{end:08x}-{digest}{PIECE_SUFFIX}"
        )
    }
}

/// Returns the object of a piece.
///
/// # Errors
/// [`ErrorKind::Bug`](crate::error::ErrorKind::Bug) if zstd fails.
pub fn piece_object(piece: &WalPiece, content: &[u8], level: i32) -> Result<Vec<u8>> {
    let name = format!("{}.{:08x}", piece.segment, piece.from);
    let mut plain = tar_member(&name, content)?;
    plain.resize(plain.len() + END_BYTES, 0);
    compress(&plain, level)
}

/// Returns as few of these pieces of one segment as reach furthest from its beginning without a hole, in order.
pub fn longest_chain(mut pieces: Vec<WalPiece>) -> Vec<WalPiece> {
    pieces.sort_unstable_by_key(|piece| piece.from);
    let mut pieces = pieces.into_iter().peekable();
    let mut chain = Vec::new();
    let mut reached = 0;
    loop {
        let mut furthest: Option<WalPiece> = None;
        while let Some(piece) = pieces.next_if(|piece| piece.from <= reached) {
            let most = furthest.as_ref().map_or(reached, |furthest| furthest.to);
            if piece.to > most {
                furthest = Some(piece);
            }
        }
        let Some(next) = furthest else { return chain };
        reached = next.to;
        chain.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::WalKey;

    fn piece(from: u32, to: u32) -> WalPiece {
        WalPiece {
            system: "7".to_owned(),
            segment: SegmentName::parse("000000010000000000000002").unwrap(),
            from,
            to,
            digest: WalDigest([0xab; 16]),
        }
    }

    fn chain(pieces: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let pieces = pieces
            .iter()
            .map(|(start, end)| piece(*start, *end))
            .collect();
        let chain = longest_chain(pieces);
        chain.iter().map(|piece| (piece.from, piece.to)).collect()
    }

    #[test]
    fn keys_of_pieces_read_back_and_others_are_none() {
        let piece = piece(0, 0x1000);
        let key = piece.to_string();
        assert_eq!(WalKey::parse(&key), Some(WalKey::Piece(piece)));
        for bad in [
            key.replace("00001000", "00000000"),
            key.replace("00001000", "40000001"),
            key.replace("00001000", "1000"),
            key.replace("/tail/", "/00000000/"),
            key.replace("/00000001/", "/00000002/"),
            key.replace("abab", "ABAB"),
        ] {
            assert_eq!(WalKey::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn a_piece_reads_back_and_is_bound_to_its_place() {
        let digester = WalDigester::plain();
        let content: Vec<u8> = (0..3000_u32).map(|n| n as u8).collect();
        let made = WalPiece::new("7", piece(0, 1).segment, 40, &content, &digester).unwrap();
        let object = piece_object(&made, &content, 1).unwrap();
        assert!(object.len() as u64 <= made.max_object_bytes());
        assert_eq!(made.unpack(&object, &digester, "x").unwrap(), content);
        let moved = WalPiece {
            from: 41,
            to: made.to + 1,
            ..made.clone()
        };
        moved.unpack(&object, &digester, "x").unwrap_err();
        let longer = WalPiece {
            to: made.to + 512,
            ..made.clone()
        };
        longer.unpack(&object, &digester, "x").unwrap_err();
        made.unpack(&object[..object.len() - 1], &digester, "x")
            .unwrap_err();
        made.unpack(&object, &WalDigester::keyed(b"k"), "x")
            .unwrap_err();
        assert!(WalPiece::new("7", made.segment, 0, b"", &digester).is_none());
    }

    #[test]
    fn each_changed_byte_of_a_key_or_an_object_is_found() {
        let digester = WalDigester::plain();
        let made = WalPiece::new("7", piece(0, 1).segment, 0, &[7; 600], &digester).unwrap();
        let object = piece_object(&made, &[7; 600], 1).unwrap();
        for offset in 0..object.len() {
            for bit in 0..8 {
                let mut changed = object.clone();
                changed[offset] ^= 1 << bit;
                let read = made.unpack(&changed, &digester, "x");
                assert!(read.is_err() || read.is_ok_and(|read| read == [7; 600]));
            }
        }
        let key = made.to_string();
        for offset in 0..key.len() {
            for other in b"0aAfF-./x" {
                let mut changed = key.clone().into_bytes();
                changed[offset] = *other;
                let changed = String::from_utf8(changed).unwrap();
                let read = WalKey::parse(&changed);
                assert!(read.is_none_or(|read| read.to_string() == changed));
            }
        }
    }

    #[test]
    fn the_longest_chain_has_few_pieces_and_no_hole() {
        assert_eq!(chain(&[]), []);
        assert_eq!(chain(&[(5, 9)]), []);
        assert_eq!(chain(&[(0, 5), (5, 9), (10, 12)]), [(0, 5), (5, 9)]);
        assert_eq!(
            chain(&[(0, 5), (0, 9), (5, 9), (9, 12), (3, 7)]),
            [(0, 9), (9, 12)]
        );
        assert_eq!(
            chain(&[(0, 5), (4, 9), (3, 8), (8, 12), (2, 4)]),
            [(0, 5), (4, 9), (8, 12)]
        );
        assert_eq!(chain(&[(0, 4), (2, 6), (0, 6)]), [(0, 6)]);
    }
}
