//! Keys of the objects that hold WAL.

use super::{
    name::{SegmentName, WalFileName, check_system_name},
    piece::WalPiece,
    run::MAX_MEMBERS,
};
use crate::layout::WAL;
use std::fmt;

/// Directory of histories and labels of a system.
const HISTORY: &str = "history";
/// Directory of the gaps of a system that an operator has accepted.
const GAPS: &str = "gaps";
/// What the key of a run ends with.
const RUN_SUFFIX: &str = ".tar.zst";

/// The digest in a key: the first half of a BLAKE3 hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WalDigest(pub [u8; 16]);

/// Makes the digests in keys. In an encrypted repository they are keyed, so that they say nothing about the
/// content to a reader of names, and only a key holder can make them.
#[derive(Debug, Clone)]
pub struct WalDigester {
    key: [u8; 32],
}

/// A run of consecutive segments of one log, as its key describes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WalRun {
    /// The system: its identifier, and behind a dot the name of a copy.
    pub system: String,
    /// The first segment.
    pub first: SegmentName,
    /// How many segments, from 1 to [`MAX_MEMBERS`].
    pub count: u32,
    /// Whether it holds the one segment in which a timeline ended, which has less than a whole one.
    pub is_partial: bool,
    /// Over system, names and content.
    pub digest: WalDigest,
}

/// An object that holds WAL, by its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WalKey {
    /// A run of segments.
    Run(WalRun),
    /// A history or a label, with the system that it is of.
    Small {
        /// The system.
        system: String,
        /// The name with which the server archived it.
        name: WalFileName,
        /// Over the content.
        digest: WalDigest,
    },
    /// A piece of a segment that was not finished when it was stored.
    Piece(WalPiece),
    /// The note that these segments and those between them are missing, and that an operator has accepted it.
    Gap {
        /// The system.
        system: String,
        /// The first segment.
        from: SegmentName,
        /// The last one.
        to: SegmentName,
    },
}

/// Returns the directory of a system.
pub fn system_dir(system: &str) -> String {
    format!("{WAL}/{system}")
}

/// Returns the directory of a timeline.
pub fn timeline_dir(system: &str, timeline: u32) -> String {
    format!("{WAL}/{system}/{timeline:08X}")
}

/// Returns the directory that holds a segment: at most 4 GiB of WAL.
pub fn log_dir(system: &str, segment: SegmentName) -> String {
    format!(
        "{}/{:08X}",
        timeline_dir(system, segment.timeline),
        segment.log
    )
}

/// Returns the directory of the histories and labels of a system.
pub fn history_dir(system: &str) -> String {
    format!("{WAL}/{system}/{HISTORY}")
}

impl WalDigest {
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.len() != 32
            || !text
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        {
            return None;
        }
        u128::from_str_radix(text, 16)
            .ok()
            .map(|number| Self(number.to_be_bytes()))
    }
}

impl fmt::Display for WalDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl WalDigester {
    /// For a repository that is not encrypted.
    pub fn plain() -> Self {
        Self::keyed(b"")
    }

    /// For an encrypted one, with a secret of all its key holders.
    pub fn keyed(secret: &[u8]) -> Self {
        Self {
            key: blake3::derive_key("fullbore digest in the key of an object with WAL", secret),
        }
    }

    /// Returns the digest of a run: of its system, and the name and the digest of each segment.
    pub fn of_run<'a>(
        &self,
        system: &str,
        members: impl Iterator<Item = (SegmentName, &'a [u8; 32])>,
        is_partial: bool,
    ) -> WalDigest {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(format!("run {system} {is_partial}\n").as_bytes());
        for (name, digest) in members {
            hasher.update(name.to_string().as_bytes());
            hasher.update(digest);
        }
        Self::half(&hasher)
    }

    /// Returns the digest of a history or a label.
    pub fn of_small(&self, system: &str, name: WalFileName, content: &[u8]) -> WalDigest {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(format!("file {system} {name}\n").as_bytes());
        hasher.update(content);
        Self::half(&hasher)
    }

    /// Returns the digest of a piece of a segment that begins at `from` in it.
    pub fn of_piece(
        &self,
        system: &str,
        segment: SegmentName,
        from: u32,
        content: &[u8],
    ) -> WalDigest {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(format!("piece {system} {segment} {from}\n").as_bytes());
        hasher.update(content);
        Self::half(&hasher)
    }

    fn half(hasher: &blake3::Hasher) -> WalDigest {
        let mut half = [0; 16];
        half.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        WalDigest(half)
    }
}

impl WalRun {
    /// Returns whether it has the place of this segment, on the same timeline. A run never crosses a log.
    pub fn covers(&self, segment: SegmentName) -> bool {
        let numbers = self.first.number..self.first.number.saturating_add(self.count);
        self.first.timeline == segment.timeline
            && self.first.log == segment.log
            && numbers.contains(&segment.number)
    }

    /// Returns its segments in order.
    pub fn segments(&self) -> impl Iterator<Item = SegmentName> + use<> {
        let first = self.first;
        (0..self.count).map(move |index| SegmentName {
            number: first.number + index,
            ..first
        })
    }

    /// Returns its last segment.
    pub fn last(&self) -> SegmentName {
        SegmentName {
            number: self.first.number + self.count.saturating_sub(1),
            ..self.first
        }
    }
}

impl fmt::Display for WalRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dir = log_dir(&self.system, self.first);
        let partial = if self.is_partial { ".partial" } else { "" };
        let (first, count, digest) = (self.first, self.count, self.digest);
        write!(f, "{dir}/{first}{partial}-{count:02x}-{digest}{RUN_SUFFIX}")
    }
}

impl WalKey {
    /// Returns what the object with this key holds; `None` for any other key, also one below [`WAL`].
    pub fn parse(key: &str) -> Option<Self> {
        let rest = key.strip_prefix(WAL)?.strip_prefix('/')?;
        let (system, rest) = rest.split_once('/')?;
        if !check_system_name(system) {
            return None;
        }
        let (dir, name) = rest.rsplit_once('/')?;
        let found = match dir {
            HISTORY => Self::parse_small(system, name),
            GAPS => Self::parse_gap(system, name),
            _ => Self::parse_run(system, name)
                .or_else(|| WalPiece::parse(system, name).map(Self::Piece)),
        };
        // One object has one key: directories and digits must be as they are written.
        found.filter(|found| found.to_string() == key)
    }

    fn parse_run(system: &str, name: &str) -> Option<Self> {
        let mut parts = name.strip_suffix(RUN_SUFFIX)?.split('-');
        let (first, count, digest) = (parts.next()?, parts.next()?, parts.next()?);
        let (first, is_partial) = match WalFileName::parse(first)? {
            WalFileName::Segment(first) => (first, false),
            WalFileName::Partial(first) => (first, true),
            _ => return None,
        };
        let count = u32::from_str_radix(count, 16).ok()?;
        // A partial segment is the end of its timeline: no segment follows it in a run.
        let is_counted = if is_partial {
            count == 1
        } else {
            (1..=MAX_MEMBERS as u32).contains(&count)
        };
        // The last name of the run must exist too.
        first.number.checked_add(count).filter(|_| is_counted)?;
        Some(Self::Run(WalRun {
            system: system.to_owned(),
            first,
            count,
            is_partial,
            digest: WalDigest::parse(digest)?,
        }))
    }

    fn parse_small(system: &str, name: &str) -> Option<Self> {
        let (stem, suffix) = name.rsplit_once('.')?;
        let (stem, digest) = stem.split_once('-')?;
        Some(Self::Small {
            system: system.to_owned(),
            name: WalFileName::parse(&format!("{stem}.{suffix}"))?,
            digest: WalDigest::parse(digest)?,
        })
    }

    fn parse_gap(system: &str, name: &str) -> Option<Self> {
        let (source, target) = name.strip_suffix(".json")?.split_once('-')?;
        let (source, target) = (SegmentName::parse(source)?, SegmentName::parse(target)?);
        (source <= target).then(|| Self::Gap {
            system: system.to_owned(),
            from: source,
            to: target,
        })
    }

    /// Returns the system that the object is of.
    pub fn system(&self) -> &str {
        match self {
            Self::Run(run) => &run.system,
            Self::Piece(piece) => &piece.system,
            Self::Small { system, .. } | Self::Gap { system, .. } => system,
        }
    }

    /// Returns the run, if it is one.
    pub fn run(self) -> Option<WalRun> {
        match self {
            Self::Run(run) => Some(run),
            _ => None,
        }
    }
}

impl fmt::Display for WalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(run) => write!(f, "{run}"),
            Self::Piece(piece) => write!(f, "{piece}"),
            Self::Gap { system, from, to } => {
                write!(f, "{}/{GAPS}/{from}-{to}.json", system_dir(system))
            }
            Self::Small {
                system,
                name,
                digest,
            } => {
                let name = name.to_string();
                let (stem, suffix) = name.rsplit_once('.').unwrap_or((&name, ""));
                write!(f, "{}/{stem}-{digest}.{suffix}", history_dir(system))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: &str, count: u32, is_partial: bool) -> WalRun {
        WalRun {
            system: "7430123456789012345".to_owned(),
            first: SegmentName::parse(first).unwrap(),
            count,
            is_partial,
            digest: WalDigest([0xab; 16]),
        }
    }

    #[test]
    fn keys_read_back_and_others_are_none() {
        let run = run("000000010000000000000002", 64, false);
        assert_eq!(
            WalKey::parse(&run.to_string()),
            Some(WalKey::Run(run.clone()))
        );
        assert!(run.to_string().len() < 200);
        let partial = WalRun {
            count: 1,
            is_partial: true,
            ..run.clone()
        };
        assert_eq!(
            WalKey::parse(&partial.to_string()),
            Some(WalKey::Run(partial))
        );
        for name in [
            "00000002.history",
            "000000010000000000000002.00000028.backup",
        ] {
            let key = WalKey::Small {
                system: "7.staging".to_owned(),
                name: WalFileName::parse(name).unwrap(),
                digest: WalDigest([1; 16]),
            };
            assert_eq!(WalKey::parse(&key.to_string()), Some(key));
        }
        let segment = run.first;
        let gap = WalKey::Gap {
            system: "7".to_owned(),
            from: segment,
            to: segment.next(16 << 20),
        };
        assert_eq!(WalKey::parse(&gap.to_string()), Some(gap));
        let key = run.to_string();
        for bad in [
            format!("wal/7/gaps/{}-{segment}.json", segment.next(16 << 20)),
            key.replace("-40-", "-41-"),
            key.replace("-40-", "-00-"),
            key.replace("-40-", "-+4-"),
            key.replace("/00000001/", "/00000002/"),
            key.replace("abab", "ABAB"),
            key.replace("7430123456789012345", "07430123456789012345"),
            key.replace("wal/", "wal//"),
            key.replace(".tar.zst", ".tar.zst.orig"),
            "wal/7/x".to_owned(),
            "wal".to_owned(),
        ] {
            assert_eq!(WalKey::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn a_run_covers_its_segments_and_no_others() {
        let run = run("0000000200000001000000FC", 4, false);
        let covers = |name: &str| run.covers(SegmentName::parse(name).unwrap());
        assert!(covers("0000000200000001000000FC") && covers("0000000200000001000000FF"));
        assert!(!covers("0000000200000001000000FB") && !covers("000000020000000200000000"));
        assert!(!covers("0000000100000001000000FC"));
        assert_eq!(run.segments().count(), 4);
        assert_eq!(run.last().to_string(), "0000000200000001000000FF");
    }
}
