//! Locations in the write-ahead log (LSN), and the names of WAL segments.

use fullbore_format::error::{Error, ErrorKind, Result};
use std::{fmt, str::FromStr};

/// A location in the write-ahead log: bytes since the cluster was made.
///
/// Written as servers up to 18 write it, `0/2000028`. Leading zeros, as later servers write them,
/// are read too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

impl FromStr for Lsn {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = |part: &str| {
            (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let half = |part: &str| {
            if digits(part) {
                u64::from_str_radix(part, 16).ok()
            } else {
                None
            }
        };
        text.split_once('/')
            .and_then(|(high, low)| Some(Self(half(high)? << 32 | half(low)?)))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Unsupported,
                    format!("{text:?} is not a location in the write-ahead log"),
                )
            })
    }
}

/// Returns the name of the WAL segment that holds the byte at `lsn`: 24 hexadecimal digits
/// (`XLogFileName`).
///
/// The last segment that a backup needs holds the byte *before* its stop. `segment_bytes` is a
/// power of two from 1 MiB to 1 GiB, as the server reports it.
pub fn segment_name(timeline: u32, lsn: Lsn, segment_bytes: u64) -> String {
    let number = lsn.0 / segment_bytes;
    let each = (1 << 32) / segment_bytes;
    format!("{timeline:08X}{:08X}{:08X}", number / each, number % each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_lsn_is_read_and_written_as_the_server_does() {
        for (text, value) in [
            ("0/0", 0),
            ("0/2000028", 0x200_0028),
            ("16/B374D848", 0x16_b374_d848),
        ] {
            assert_eq!(text.parse::<Lsn>().unwrap(), Lsn(value));
            assert_eq!(Lsn(value).to_string(), text);
        }
        assert_eq!("0/02000028".parse::<Lsn>().unwrap(), Lsn(0x200_0028));
        for bad in [
            "",
            "/",
            "0",
            "0/",
            "/0",
            "0/+1",
            "0/123456789",
            "0/0/0",
            "x/0",
            " 0/0",
        ] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_segment_has_the_name_that_the_server_gives_it() {
        let mib = 1 << 20;
        assert_eq!(
            segment_name(1, Lsn(0x200_0028), 16 * mib),
            "000000010000000000000002"
        );
        assert_eq!(
            segment_name(26, Lsn(0x16_b374_d848), 16 * mib),
            "0000001A00000016000000B3"
        );
        assert_eq!(
            segment_name(1, Lsn(0x1_0000_0000), 16 * mib),
            "000000010000000100000000"
        );
        assert_eq!(
            segment_name(1, Lsn(0x1_ffff_ffff), mib),
            "000000010000000100000FFF"
        );
        assert_eq!(
            segment_name(1, Lsn(0x1_ffff_ffff), 1024 * mib),
            "000000010000000100000003"
        );
    }
}
