//! The header of a WAL segment: nothing is archived under a name that is not its own.
//!
//! See `XLogLongPageHeaderData` in `xlog_internal.h` of PostgreSQL. Numbers are in the byte order of the machine.

use crate::lsn::Lsn;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    wal::{SegmentName, check_segment_bytes},
};
use std::ops::RangeInclusive;

/// The upper half of the magic number of all versions that have one of this layout.
const MAGIC: u16 = 0xD100;
/// The flag of a long header, which only the first page of a segment has.
const LONG_HEADER: u16 = 0x0002;
const HEADER_BYTES: usize = 40;
/// Bytes of the header of other pages up to the end of its location.
const SHORT_HEADER_BYTES: usize = 16;

/// What the header of a segment says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Identifies the cluster that wrote it.
    pub system: u64,
    pub segment_bytes: u64,
    /// Timeline of the first page: at most that of the name, as the first segment of a timeline begins with a copy.
    pub timeline: u32,
    /// Location of the first page.
    pub start: u64,
    /// Bytes of a page.
    pub page_bytes: u32,
}

/// Returns what the header of a segment says; `None` if these bytes begin with none.
pub fn read_segment_facts(bytes: &[u8]) -> Option<SegmentFacts> {
    let header = bytes.get(..HEADER_BYTES)?;
    let is_segment = u16_at(header, 0)? & 0xff00 == MAGIC && u16_at(header, 2)? & LONG_HEADER != 0;
    if !is_segment {
        return None;
    }
    Some(SegmentFacts {
        timeline: u32_at(header, 4)?,
        start: u64_at(header, 8)?,
        system: u64_at(header, 24)?,
        segment_bytes: check_segment_bytes(u64::from(u32_at(header, 32)?))?,
        page_bytes: u32_at(header, 36)?,
    })
}

/// Pages that a server can have, by their bytes.
const PAGES: RangeInclusive<u32> = 1 << 10..=1 << 16;

/// Checks the headers of the pages of a segment that begin in `content[from..]`: each has its own place, or is empty as
/// behind a switch of segments. `content` begins with the segment, whose header was read.
///
/// # Errors
/// [`ErrorKind::Corrupt`] with the place of the first wrong page.
pub fn check_pages(content: &[u8], from: usize, facts: &SegmentFacts) -> Result<()> {
    let is_possible = facts.page_bytes.is_power_of_two() && PAGES.contains(&facts.page_bytes);
    if !is_possible {
        let message = format!("the WAL at {} is not of a server", Lsn(facts.start));
        return Err(Error::new(ErrorKind::Corrupt, message)
            .because(format!("it has pages of {} bytes", facts.page_bytes)));
    }
    let page_bytes = facts.page_bytes as usize;
    let first = from.next_multiple_of(page_bytes);
    for offset in (first..content.len()).step_by(page_bytes) {
        let Some(header) = content.get(offset..offset + SHORT_HEADER_BYTES) else {
            return Ok(());
        };
        let is_own = header[..2] == content[..2]
            && header[8..16] == (facts.start + offset as u64).to_ne_bytes();
        if !is_own && header.iter().any(|byte| *byte != 0) {
            let place = Lsn(facts.start + offset as u64);
            let message = format!("the WAL at {place} is not of that place");
            return Err(Error::new(ErrorKind::Corrupt, message)
                .because("the header of the page has another one"));
        }
    }
    Ok(())
}

fn u64_at(header: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(
        header.get(offset..offset + 8)?.try_into().ok()?,
    ))
}

fn u32_at(header: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(
        header.get(offset..offset + 4)?.try_into().ok()?,
    ))
}

fn u16_at(header: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(
        header.get(offset..offset + 2)?.try_into().ok()?,
    ))
}

/// Checks that `content` is the segment of this name: a file that the server recycled, or of another server, is not.
///
/// # Errors
/// [`ErrorKind::Corrupt`] with the reason.
pub fn check_segment(content: &[u8], name: SegmentName) -> Result<SegmentFacts> {
    check_segment_begin(content, content.len() as u64, name)
}

/// The same of a segment of which only the first page or more is there. `bytes` is the length of the whole.
///
/// # Errors
/// As [`check_segment`].
pub fn check_segment_begin(begin: &[u8], bytes: u64, name: SegmentName) -> Result<SegmentFacts> {
    let Some(facts) = read_segment_facts(begin) else {
        let is_zero = begin.iter().take(8192).all(|byte| *byte == 0);
        let reason = if is_zero {
            "it begins with zeros"
        } else {
            "it does not begin with the header of a segment"
        };
        return wrong_segment(name, reason.to_owned());
    };
    if bytes != facts.segment_bytes {
        return wrong_segment(
            name,
            format!(
                "it has {bytes} bytes, and a segment has {}",
                facts.segment_bytes
            ),
        );
    }
    if facts.start != name.start(facts.segment_bytes) {
        let actual = SegmentName::at(name.timeline, facts.start, facts.segment_bytes);
        return wrong_segment(name, format!("its first page is that of {actual}"));
    }
    // An older timeline is right: the first segment of a timeline begins with WAL of its parent.
    if facts.timeline > name.timeline {
        return wrong_segment(
            name,
            format!("its first page is of timeline {}", facts.timeline),
        );
    }
    Ok(facts)
}

fn wrong_segment(name: SegmentName, reason: String) -> Result<SegmentFacts> {
    let message = format!("{name} is not a WAL segment of that name");
    Err(Error::new(ErrorKind::Corrupt, message).because(reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_wal::sample_segment as segment;

    #[test]
    fn pages_have_their_own_place_or_are_empty() {
        let mut content = segment(1, 5 << 20, 1 << 20);
        let facts = read_segment_facts(&content).unwrap();
        check_pages(&content, 0, &facts).unwrap();
        let page = |place: u64| {
            let mut page = 0xD118_u16.to_ne_bytes().to_vec();
            page.resize(8, 0);
            page.extend(place.to_ne_bytes());
            page
        };
        content[8192..8208].copy_from_slice(&page((5 << 20) + 8192));
        check_pages(&content, 0, &facts).unwrap();
        content[16384..16400].copy_from_slice(&page((6 << 20) + 16384));
        let error = check_pages(&content, 8193, &facts).unwrap_err();
        assert!(error.line().contains("0/504000"), "{}", error.line());
        check_pages(&content, 16385, &facts).unwrap();
        check_pages(&content[..16390], 0, &facts).unwrap();
    }

    #[test]
    fn only_the_segment_of_a_name_is_taken() {
        let name = |name: &str| SegmentName::parse(name).unwrap();
        let mib = 1 << 20;
        let good = segment(1, 5 << 20, mib);
        assert_eq!(
            check_segment(&good, name("000000010000000000000005"))
                .unwrap()
                .system,
            77
        );
        // The first segment of a timeline begins with pages of the timeline before.
        assert!(check_segment(&good, name("000000020000000000000005")).is_ok());
        let why = |content: &[u8], as_name: &str| {
            check_segment(content, name(as_name)).unwrap_err().line()
        };
        assert!(
            why(&good, "000000010000000000000006").contains("that of 000000010000000000000005")
        );
        assert!(why(&segment(2, 5 << 20, mib), "000000010000000000000005").contains("timeline 2"));
        assert!(why(&vec![0; mib as usize], "000000010000000000000005").contains("zeros"));
        assert!(why(&good[..9000], "000000010000000000000005").contains("9000 bytes"));
        assert!(why(b"", "000000010000000000000005").contains("zeros"));
    }
}
