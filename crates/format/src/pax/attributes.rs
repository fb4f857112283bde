//! The pax records of a member.

use super::{ACLS, XATTR, sparse};
use crate::entry::{Time, Xattr};
use std::collections::HashSet;

/// Values that records set; `None` where the header block applies.
#[derive(Debug, Clone, Default)]
pub(super) struct Attributes {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<i64>,
    pub(super) gid: Option<i64>,
    pub(super) user: Option<Vec<u8>>,
    pub(super) group: Option<Vec<u8>>,
    pub(super) mtime: Option<Time>,
    pub(super) ctime: Option<Time>,
    pub(super) xattrs: Vec<Xattr>,
    pub(super) sparse: Sparse,
}

/// The records of sparse files, of all GNU versions.
#[derive(Debug, Clone, Default)]
pub(super) struct Sparse {
    pub(super) major: Option<u64>,
    pub(super) minor: Option<u64>,
    pub(super) name: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    /// Offsets and lengths in turn (versions 0.0 and 0.1).
    pub(super) pairs: Option<Vec<u64>>,
}

impl Attributes {
    /// Applies the records in `body`, each `length key=value\n`.
    ///
    /// A later record overrides an earlier one, an empty value unsets a value, and unknown keys are
    /// ignored. Returns `None` if a record is malformed.
    pub(super) fn read(&mut self, mut body: &[u8]) -> Option<()> {
        while !body.is_empty() {
            let (record, rest) = cut_record(body)?;
            let equals = record.iter().position(|c| *c == b'=')?;
            self.set(&record[..equals], &record[equals + 1..])?;
            body = rest;
        }
        Some(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            // An empty value takes back a record of a global header, so it is no error.
            b"path" => self.path = text(value),
            b"linkpath" => self.link = text(value),
            b"uname" => self.user = text(value),
            b"gname" => self.group = text(value),
            b"size" => self.size = unless_empty(value, size)?,
            b"uid" => self.uid = unless_empty(value, integer)?,
            b"gid" => self.gid = unless_empty(value, integer)?,
            b"mtime" => self.mtime = unless_empty(value, time)?,
            b"ctime" => self.ctime = unless_empty(value, time)?,
            _ if key.starts_with(b"GNU.sparse.") => self.sparse.set(&key[11..], value)?,
            _ if key.starts_with(XATTR) => self
                .xattrs
                .push((decode_name(&key[XATTR.len()..]), value.to_vec())),
            _ => self.set_acl(key, value),
        }
        Some(())
    }

    /// Sets the text of a list of permissions. Text that is not a list is not damage: other programs
    /// write formats of their own.
    fn set_acl(&mut self, key: &[u8], value: &[u8]) {
        let Some((name, _)) = ACLS
            .iter()
            .find(|(_, known)| *known == key && !value.is_empty())
        else {
            return;
        };
        self.xattrs.push((name.to_vec(), value.to_vec()));
    }

    /// Takes the attributes in their order, the last one of each name.
    pub(super) fn take_xattrs(&mut self) -> Vec<Xattr> {
        let mut xattrs = std::mem::take(&mut self.xattrs);
        let mut seen = HashSet::new();
        let mut last: Vec<bool> = xattrs
            .iter()
            .rev()
            .map(|(name, _)| seen.insert(name.as_slice()))
            .collect();
        xattrs.retain(|_| last.pop() == Some(true));
        xattrs
    }
}

impl Sparse {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"major" => self.major = unless_empty(value, size)?,
            b"minor" => self.minor = unless_empty(value, size)?,
            b"name" => self.name = text(value),
            b"size" | b"realsize" => self.size = unless_empty(value, size)?,
            b"map" => self.pairs = Some(list(value)?),
            b"offset" => self.push(value, 0)?,
            b"numbytes" => self.push(value, 1)?,
            _ => {} // `numblocks` is redundant
        }
        Some(())
    }

    /// Adds one number of version 0.0, where offsets and lengths are separate records that must
    /// alternate.
    fn push(&mut self, value: &[u8], parity: usize) -> Option<()> {
        let pairs = self.pairs.get_or_insert_default();
        (pairs.len() % 2 == parity && pairs.len() < 2 * (sparse::MAX_RUNS + 1)).then_some(())?;
        pairs.push(size(value)?);
        Some(())
    }
}

/// Splits off the first record. Returns it without its length and line end, and the rest.
fn cut_record(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let blank = body.iter().take(20).position(|c| *c == b' ')?;
    let len = usize::try_from(size(&body[..blank])?).ok()?;
    let (record, rest) = body.split_at_checked(len)?;
    Some((record.get(blank + 1..)?.strip_suffix(b"\n")?, rest))
}

/// Returns the numbers of version 0.1: offsets and lengths in turn, separated by commas.
fn list(value: &[u8]) -> Option<Vec<u64>> {
    let items = value.split(|c| *c == b',').filter(|item| !item.is_empty());
    items
        .take(2 * (sparse::MAX_RUNS + 1) + 1)
        .map(size)
        .collect()
}

fn text(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}

/// Returns `Some(None)` for an empty value and `None` for a malformed one.
fn unless_empty<T>(value: &[u8], parse: impl Fn(&[u8]) -> Option<T>) -> Option<Option<T>> {
    if value.is_empty() {
        Some(None)
    } else {
        parse(value).map(Some)
    }
}

/// Parses a number of decimal digits, at most 2^63 - 1, the limit for file sizes.
fn size(value: &[u8]) -> Option<u64> {
    let sum = value.iter().try_fold(0u64, |sum, c| {
        sum.checked_mul(10)?.checked_add(decimal_digit(c)?)
    })?;
    (!value.is_empty() && i64::try_from(sum).is_ok()).then_some(sum)
}

fn decimal_digit(c: &u8) -> Option<u64> {
    c.is_ascii_digit().then(|| u64::from(c - b'0'))
}

fn integer(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Parses a decimal number of seconds; digits after the ninth decimal are cut off.
fn time(value: &[u8]) -> Option<Time> {
    let (negative, value) = value
        .strip_prefix(b"-")
        .map_or((false, value), |rest| (true, rest));
    let (whole, fraction) = match value.iter().position(|c| *c == b'.') {
        Some(dot) => (&value[..dot], &value[dot + 1..]),
        None => (value, &b""[..]),
    };
    let whole = if whole.is_empty() && !fraction.is_empty() {
        0
    } else {
        size_or_limit(whole)?
    };
    let nanos = nanos(fraction)?;
    Some(match (negative, nanos) {
        (false, _) => Time {
            seconds: i64::try_from(whole).ok()?,
            nanos,
        },
        (true, 0) => Time {
            seconds: 0i64.checked_sub_unsigned(whole)?,
            nanos,
        },
        // Nanoseconds always count forwards: -0.25 s is -1 s and 750,000,000 ns.
        (true, _) => Time {
            seconds: (-1i64).checked_sub_unsigned(whole)?,
            nanos: 1_000_000_000 - nanos,
        },
    })
}

/// Parses a number like [`size`], but accepts 2^63 too, the magnitude of the earliest time.
fn size_or_limit(value: &[u8]) -> Option<u64> {
    if value == b"9223372036854775808" {
        Some(1 << 63)
    } else {
        size(value)
    }
}

fn nanos(fraction: &[u8]) -> Option<u32> {
    let zeros = std::iter::repeat(&b'0');
    let digits = fraction
        .iter()
        .all(u8::is_ascii_digit)
        .then(|| fraction.iter().chain(zeros).take(9))?;
    Some(digits.fold(0, |nanos, c| nanos * 10 + u32::from(c - b'0')))
}

/// Decodes the name of an attribute: `%3D` is `=`, and so on for two upper-case hexadecimal digits.
///
/// GNU tar encodes `=` and `%`; bsdtar also encodes every byte that is not printable ASCII.
/// Decoding everything is right for both.
fn decode_name(mut name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    while let Some((first, rest)) = name.split_first() {
        let (byte, rest) = match decode_escape(name) {
            Some(byte) => (byte, &rest[2..]),
            None => (*first, rest),
        };
        plain.push(byte);
        name = rest;
    }
    plain
}

/// Returns the byte that an escape at the start of `name` encodes, if there is one.
pub(super) fn decode_escape(name: &[u8]) -> Option<u8> {
    match *name {
        [b'%', high, low, ..] => Some(hex_digit(high)? << 4 | hex_digit(low)?),
        _ => None,
    }
}

fn hex_digit(c: u8) -> Option<u8> {
    match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'A'..=b'F' => Some(c - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &[u8]) -> Option<Attributes> {
        let mut attributes = Attributes::default();
        attributes.read(body).map(|()| attributes)
    }

    #[test]
    fn malformed_records_are_refused() {
        for bad in [
            &b"x"[..],
            b"12",
            b" path=a\n",
            b"11 path=a\n",
            b"9 path=a\nx",
            b"9 path=ab",
            b"8 path=a\n",
            b"5 abc\n",
            b"2 \n",
            b"0 \n",
            b"99999999999999999999 a=b\n",
            b"-9 path=a\n",
            b"11 size=-1\n",
            b"10 size=1x\n",
            b"28 size=9223372036854775808\n",
            b"12 mtime=1e\n",
            b"12 mtime=1.x\n",
        ] {
            assert!(read(bad).is_none(), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn times_before_1970_are_decimal_numbers() {
        for (text, seconds, nanos) in [
            ("1.5", 1, 500_000_000),
            ("-1.75", -2, 250_000_000),
            ("-0.000000001", -1, 999_999_999),
            ("-86400", -86400, 0),
            (".25", 0, 250_000_000),
            ("7.1234567899", 7, 123_456_789),
            ("-9223372036854775808", i64::MIN, 0),
        ] {
            assert_eq!(
                time(text.as_bytes()),
                Some(Time { seconds, nanos }),
                "{text}"
            );
        }
        assert!(
            [&b""[..], b"-", b".", b"1.-5", b"-9223372036854775808.5"]
                .iter()
                .all(|bad| time(bad).is_none())
        );
    }

    #[test]
    fn an_empty_value_takes_a_value_back() {
        let attributes = read(b"9 path=a\n8 path=\n8 uid=7\n7 uid=\n").unwrap();
        assert!(attributes.path.is_none() && attributes.uid.is_none());
    }

    #[test]
    fn the_last_attribute_of_a_name_wins() {
        let body =
            b"25 SCHILY.xattr.user.a=1\n25 SCHILY.xattr.user.b=2\n25 SCHILY.xattr.user.a=3\n";
        let xattrs = read(body).unwrap().take_xattrs();
        assert_eq!(
            xattrs,
            [
                (b"user.b".to_vec(), b"2".to_vec()),
                (b"user.a".to_vec(), b"3".to_vec())
            ]
        );
    }

    #[test]
    fn names_of_attributes_are_decoded_once() {
        assert_eq!(
            decode_name(b"a%3Db%253D%3d%C3%%41%2%"),
            b"a=b%3D%3d\xc3%A%2%"
        );
    }
}
