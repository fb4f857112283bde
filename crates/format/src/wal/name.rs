//! Names of the files that a server archives.

use std::fmt;

/// The largest segment that a server can have.
const MAX_SEGMENT_BYTES: u64 = 1 << 30;
const MIN_SEGMENT_BYTES: u64 = 1 << 20;

/// The name of a WAL segment: 24 hexadecimal digits.
///
/// The order is that of the names: by timeline, then by location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// Timeline, from 1.
    pub timeline: u32,
    /// The upper half of the location.
    pub log: u32,
    /// Segments before it with the same upper half.
    pub number: u32,
}

/// A file that a server archives, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalFileName {
    /// A complete segment.
    Segment(SegmentName),
    /// The segment that the timeline before a promotion ended in.
    Partial(SegmentName),
    /// The history of a timeline.
    History(u32),
    /// The label of a base backup, with the segment and the offset of its start.
    Backup(SegmentName, u32),
}

impl SegmentName {
    /// Returns the segment of a timeline that holds the byte at `location`.
    pub fn at(timeline: u32, location: u64, segment_bytes: u64) -> Self {
        Self {
            timeline,
            log: (location >> 32) as u32,
            number: ((location & 0xffff_ffff) / segment_bytes.max(1)) as u32,
        }
    }

    /// Returns the segment with this name; `None` for any other text.
    pub fn parse(name: &str) -> Option<Self> {
        let is_name = name.len() == 24 && name.bytes().all(is_digit);
        let segment = Self {
            timeline: hex_at(name, 0).filter(|_| is_name)?,
            log: hex_at(name, 8)?,
            number: hex_at(name, 16)?,
        };
        (segment.timeline > 0).then_some(segment)
    }

    /// Returns the location of its first byte.
    pub fn start(self, segment_bytes: u64) -> u64 {
        // A name that was made by hand may be behind all WAL.
        let in_log = u64::from(self.number).saturating_mul(segment_bytes);
        (u64::from(self.log) << 32).saturating_add(in_log)
    }

    /// Returns how many segments of this size are before it.
    pub fn index(self, segment_bytes: u64) -> u64 {
        self.start(segment_bytes) / segment_bytes.max(1)
    }

    /// Returns the segment behind it on the same timeline.
    pub fn next(self, segment_bytes: u64) -> Self {
        Self::at(
            self.timeline,
            self.start(segment_bytes).saturating_add(segment_bytes),
            segment_bytes,
        )
    }

    /// Returns the segment before it on the same timeline; `None` of the first one.
    pub fn previous(self, segment_bytes: u64) -> Option<Self> {
        let start = self.start(segment_bytes).checked_sub(segment_bytes)?;
        Some(Self::at(self.timeline, start, segment_bytes))
    }

    /// Returns the segment of the same place on another timeline.
    pub fn on(self, timeline: u32) -> Self {
        Self { timeline, ..self }
    }

    /// The place alone: two segments of different timelines with equal places have the same locations.
    pub fn place(self) -> (u32, u32) {
        (self.log, self.number)
    }
}

fn hex_at(name: &str, offset: usize) -> Option<u32> {
    u32::from_str_radix(name.get(offset..offset + 8)?, 16).ok()
}

/// Hexadecimal digits as servers write them.
fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte)
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:08X}{:08X}{:08X}",
            self.timeline, self.log, self.number
        )
    }
}

impl WalFileName {
    /// Returns the file with this name; `None` for a name that servers do not archive.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(segment) = SegmentName::parse(name) {
            return Some(Self::Segment(segment));
        }
        if let Some(timeline) = name.strip_suffix(".history") {
            // from_str_radix also takes a sign and small letters, which no server writes.
            let is_number = timeline.len() == 8 && timeline.bytes().all(is_digit);
            let timeline = u32::from_str_radix(timeline, 16).ok()?;
            return (is_number && timeline > 0).then_some(Self::History(timeline));
        }
        let (segment, rest) = name.split_once('.')?;
        let segment = SegmentName::parse(segment)?;
        if rest == "partial" {
            return Some(Self::Partial(segment));
        }
        let offset = rest.strip_suffix(".backup")?;
        let is_number = offset.len() == 8 && offset.bytes().all(is_digit);
        let offset = u32::from_str_radix(offset, 16).ok()?;
        is_number.then_some(Self::Backup(segment, offset))
    }
}

impl fmt::Display for WalFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(segment) => write!(f, "{segment}"),
            Self::Partial(segment) => write!(f, "{segment}.partial"),
            Self::History(timeline) => write!(f, "{timeline:08X}.history"),
            Self::Backup(segment, offset) => write!(f, "{segment}.{offset:08X}.backup"),
        }
    }
}

/// Returns the size if a server can have segments of it: a power of two from 1 MiB to 1 GiB.
pub fn check_segment_bytes(bytes: u64) -> Option<u64> {
    let is_right =
        bytes.is_power_of_two() && (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes);
    is_right.then_some(bytes)
}

/// Returns whether this names a system: its identifier, and behind a dot the name of a copy.
pub fn check_system_name(name: &str) -> bool {
    let (identifier, copy) = name.split_once('.').unwrap_or((name, "x"));
    let is_number = identifier
        .parse::<u64>()
        .is_ok_and(|number| number.to_string() == identifier);
    is_number
        && (1..=32).contains(&copy.len())
        && copy
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn names_of_the_archive_are_read_and_written_as_servers_do() {
        for name in [
            "000000010000000000000002",
            "0000001A00000016000000B3",
            "00000002.history",
            "000000010000000000000005.partial",
            "000000010000000000000002.00000028.backup",
        ] {
            assert_eq!(
                WalFileName::parse(name)
                    .map(|name| name.to_string())
                    .as_deref(),
                Some(name)
            );
        }
        for bad in [
            "",
            "00000001000000000000000",
            "00000001000000000000000g",
            "00000001000000000000000a",
            "000000000000000000000001",
            "+0000001000000000000000A",
            "00000000.history",
            "2.history",
            "000000010000000000000005.part",
            "000000010000000000000002.28.backup",
            "../000010000000000000002",
        ] {
            assert_eq!(WalFileName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_segment_has_a_place_and_one_behind_it() {
        let last = SegmentName::parse("0000000100000001000000FF").unwrap();
        assert_eq!(last.next(16 * MIB).to_string(), "000000010000000200000000");
        assert_eq!(last.start(16 * MIB), 0x1_ff00_0000);
        assert_eq!(SegmentName::at(1, 0x1_ff00_0028, 16 * MIB), last);
        assert_eq!(
            SegmentName::at(1, 0x1_ffff_ffff, MIB).to_string(),
            "000000010000000100000FFF"
        );
        assert_eq!(last.index(16 * MIB), 511);
    }

    #[test]
    fn a_system_is_a_number_and_perhaps_the_name_of_a_copy() {
        for name in ["7", "7430123456789012345", "7.staging"] {
            assert!(check_system_name(name), "{name}");
        }
        for bad in ["", "07", "x", "7.", "7.a/b", "7..", "7.a.b", "history"] {
            assert!(!check_system_name(bad), "{bad}");
        }
    }
}
