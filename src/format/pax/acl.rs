//! Access control lists: conversion between the system's bytes and text.
//!
//! The bytes are those of the attributes `system.posix_acl_*` (Linux
//! `uapi/linux/posix_acl_xattr.h`): a version, then entries of tag (u16), permissions (u16) and
//! number (u32), little-endian. The text is in star's format, with numbers for names:
//! `user::rwx,user:1000:r--,group::r-x,mask::r-x,other::r--`. A fourth field would make GNU tar
//! drop the list. Names that other programs write may contain blanks, as in a directory service
//! (`domain users`): bsdtar writes the blank itself, GNU tar writes `\040`.

use super::ACLS;
use crate::{error::quoted, format::entry::Xattr};
use std::{fmt, io::Write};

const VERSION: u32 = 2;
/// The number in an entry that names no user and no group.
const NOBODY: u32 = u32::MAX;
/// Bytes of an entry.
const ENTRY: usize = 8;
const NAMED_USER: u16 = 0x02;
/// The group that owns the file.
const GROUP: u16 = 0x04;
/// Tags in the order that the kernel requires: the word, and whether the entry names a user or
/// group.
const TAGS: [(u16, &str, bool); 6] = [
    (0x01, "user", false),
    (NAMED_USER, "user", true),
    (GROUP, "group", false),
    (0x08, "group", true),
    (0x10, "mask", false),
    (0x20, "other", false),
];

/// The result of parsing the text of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// The system's bytes.
    Raw(Vec<u8>),
    /// The list names users or groups without their numbers.
    Names,
    /// The text is not a list.
    Malformed,
}

/// A list that names users or groups without their numbers, or that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedAcl {
    /// The attribute that holds the list.
    pub(super) attribute: &'static [u8],
    /// Text of the list in the archive.
    pub(super) text: Vec<u8>,
}

impl NamedAcl {
    /// Returns the attribute, if the numbers of all users and groups in the list are known.
    ///
    /// # Errors
    /// The reason why the list is not restored, in words that follow "not restored".
    pub fn resolve(
        &self,
        uid: impl Fn(&str) -> Option<u32>,
        gid: impl Fn(&str) -> Option<u32>,
    ) -> Result<Xattr, &'static str> {
        let number = |tag, name: &str| {
            if tag == NAMED_USER {
                uid(name)
            } else {
                gid(name)
            }
        };
        match parse_with(&self.text, &number) {
            Parsed::Raw(raw) => Ok((self.attribute.to_vec(), raw)),
            Parsed::Names => Err("not all of their names are known here"),
            Parsed::Malformed => Err("they are not a valid list of permissions"),
        }
    }

    /// Returns `mode` for a file that does not get this list. With a list, the group bits of a mode
    /// are the maximum for all users and groups in the list, so they are reduced to those of the
    /// owning group.
    pub fn mode_without(&self, mode: u32) -> u32 {
        if self.attribute != ACLS[0].0 {
            return mode;
        }
        let group = match parse_with(&self.text, &|_, _| Some(0)) {
            Parsed::Raw(raw) => raw[4..]
                .as_chunks::<ENTRY>()
                .0
                .iter()
                .find(|entry| entry[0] == GROUP as u8)
                .map(|entry| entry[2]),
            Parsed::Names | Parsed::Malformed => None,
        };
        mode & !0o070 | (u32::from(group.unwrap_or(0)) << 3 & mode)
    }
}

impl fmt::Display for NamedAcl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted(&self.text[..self.text.len().min(4096)]))
    }
}

/// Returns whether `raw` can be written as text and read back as the same bytes.
pub(super) fn is_expressible(raw: &[u8]) -> bool {
    raw.len() > 4
        && raw.starts_with(&VERSION.to_le_bytes())
        && raw[4..].len().is_multiple_of(ENTRY)
        && raw[4..]
            .as_chunks::<ENTRY>()
            .0
            .iter()
            .all(|entry| word(entry).is_some())
        && raw[4..]
            .as_chunks::<ENTRY>()
            .0
            .iter()
            .is_sorted_by_key(|entry| entry[0])
}

/// Appends the text of `raw`, for which [`is_expressible`] is true.
pub(super) fn write_text(raw: &[u8], out: &mut Vec<u8>) {
    for (index, entry) in raw[4..].as_chunks::<ENTRY>().0.iter().enumerate() {
        let Some((name, number)) = word(entry) else {
            continue;
        };
        out.extend_from_slice(if index == 0 { b"" } else { b"," });
        let _ = match number {
            Some(number) => write!(out, "{name}:{number}:"),
            None => write!(out, "{name}::"),
        };
        out.extend(
            [(4, b'r'), (2, b'w'), (1, b'x')]
                .map(|(bit, c)| if entry[2] & bit == 0 { b'-' } else { c }),
        );
    }
}

/// Returns the word of an entry and the number it names; `None` if the entry is not as the kernel
/// writes it.
fn word(entry: &[u8; ENTRY]) -> Option<(&'static str, Option<u32>)> {
    let tag = u16::from_le_bytes([entry[0], entry[1]]);
    let permissions = u16::from_le_bytes([entry[2], entry[3]]);
    let number = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
    let (_, word, named) = TAGS.iter().find(|known| known.0 == tag)?;
    let plausible = permissions <= 7 && (*named || number == NOBODY);
    plausible.then_some((*word, named.then_some(number)))
}

/// Parses a text with three or four fields an entry. Entries are separated by commas or line ends.
/// Blanks separate entries only if the text has neither, because a name may contain a blank.
pub(super) fn parse(text: &[u8]) -> Parsed {
    parse_with(text, &|_, _| None)
}

/// Parses a list like [`parse`]. `number` maps the tag of an entry and a name to a number.
fn parse_with(text: &[u8], number: &dyn Fn(u16, &str) -> Option<u32>) -> Parsed {
    let Ok(text) = std::str::from_utf8(text) else {
        return Parsed::Malformed;
    };
    let mut entries = Vec::new();
    let separators: &[char] = if text.contains([',', '\n']) {
        &[',', '\n']
    } else {
        &[' ', '\t']
    };
    for item in text
        .split(separators)
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        match parse_entry(item, number) {
            Ok(entry) => entries.push(entry),
            Err(other) => return other,
        }
    }
    if entries.is_empty() {
        Parsed::Malformed
    } else {
        Parsed::Raw(raw(entries))
    }
}

/// Returns tag, permissions and number of one entry: `user:joe:r--:1000`, `user:1000:r--`,
/// `u::rwx`, or `mask:r--` of Solaris.
fn parse_entry(
    item: &str,
    number: &dyn Fn(u16, &str) -> Option<u32>,
) -> Result<(u16, u16, u32), Parsed> {
    let item = item.strip_prefix("default:").unwrap_or(item);
    let mut fields = item.split(':');
    let word = fields.next().unwrap_or_default();
    let rest: Vec<&str> = fields.take(4).collect();
    let (who, permissions, stated) = match rest[..] {
        [permissions] => ("", permissions, None),
        [who, permissions] => (who, permissions, None),
        [who, permissions, number] => (who, permissions, Some(number)),
        _ => return Err(Parsed::Malformed),
    };
    let tag = tag(word, !who.is_empty()).ok_or(Parsed::Malformed)?;
    let permissions = parse_permissions(permissions).ok_or(Parsed::Malformed)?;
    if who.is_empty() {
        return Ok((tag, permissions, NOBODY));
    }
    let stated = stated.unwrap_or(who).parse().ok();
    let number = stated
        .or_else(|| number(tag, &unescaped(who)?))
        .ok_or(Parsed::Names)?;
    Ok((tag, permissions, number))
}

/// Decodes octal escapes in a name: `\040` is a blank. Returns `None` if the result is not UTF-8.
fn unescaped(name: &str) -> Option<String> {
    let mut rest = name.as_bytes();
    let mut plain = Vec::with_capacity(rest.len());
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match rest {
            [
                b'\\',
                high @ b'0'..=b'3',
                middle @ b'0'..=b'7',
                low @ b'0'..=b'7',
                after @ ..,
            ] => (
                (high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'),
                after,
            ),
            _ => (*first, after),
        };
        plain.push(byte);
        rest = after;
    }
    String::from_utf8(plain).ok()
}

/// Returns the tag for a word or its first letter.
fn tag(word: &str, named: bool) -> Option<u16> {
    let is = |known: &str| known == word || known[..1] == *word;
    TAGS.iter()
        .find(|(_, known, names)| is(known) && *names == named)
        .map(|(tag, ..)| *tag)
}

fn parse_permissions(text: &str) -> Option<u16> {
    text.chars().try_fold(0, |bits, c| match c {
        'r' => Some(bits | 4),
        'w' => Some(bits | 2),
        'x' => Some(bits | 1),
        '-' => Some(bits),
        _ => None,
    })
}

/// Encodes the entries as bytes, in the order that the kernel requires.
fn raw(mut entries: Vec<(u16, u16, u32)>) -> Vec<u8> {
    entries.sort_by_key(|(tag, ..)| *tag);
    let mut raw = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, number) in entries {
        raw.extend_from_slice(&tag.to_le_bytes());
        raw.extend_from_slice(&permissions.to_le_bytes());
        raw.extend_from_slice(&number.to_le_bytes());
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] =
        b"user::rwx,user:1000:r--,group::r-x,group:4294967294:-w-,mask::r-x,other::r--";

    fn bytes(text: &[u8]) -> Vec<u8> {
        match parse(text) {
            Parsed::Raw(raw) => raw,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn text_becomes_the_bytes_of_the_system_and_text_again() {
        let raw = bytes(TEXT);
        assert_eq!(raw[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
        assert_eq!(raw[12..20], [2, 0, 4, 0, 0xe8, 3, 0, 0]);
        assert!(is_expressible(&raw));
        let mut text = Vec::new();
        write_text(&raw, &mut text);
        assert_eq!(text, TEXT);
    }

    #[test]
    fn other_spellings_mean_the_same() {
        let spelt = b"g::r-x\nu::rwx\nuser:joe:r--:1000\ngroup:x:-w-:4294967294\nmask:r-x\ndefault:other::r--\n";
        assert_eq!(bytes(spelt), bytes(TEXT));
    }

    #[test]
    fn a_name_without_a_number_is_not_guessed() {
        assert_eq!(parse(b"user::rwx,user:joe:r--"), Parsed::Names);
        assert_eq!(parse(b"user::rwx,user:joe:r--:bob"), Parsed::Names);
    }

    #[test]
    fn names_are_resolved_here_or_the_group_keeps_its_own_bits() {
        let list = |attribute, text: &str| NamedAcl {
            attribute,
            text: text.into(),
        };
        let named =
            "user::rwx,user:joe:r--,group::r-x,group:staff:-w-:4294967294,mask::r-x,other::r--";
        let acl = list(ACLS[0].0, named);
        let found = acl.resolve(|name| (name == "joe").then_some(1000), |_| None);
        assert_eq!(found, Ok((ACLS[0].0.to_vec(), bytes(TEXT))));
        assert!(acl.resolve(|_| None, |_| Some(1)).is_err());
        let private = list(ACLS[0].0, "u::rw-,u:joe:rwx,g::---,m::rwx,o::---");
        assert_eq!(
            (private.mode_without(0o4670), acl.mode_without(0o750)),
            (0o4600, 0o750)
        );
        assert_eq!(
            list(ACLS[1].0, named).mode_without(0o770),
            0o770,
            "a default list does not change the mode of the directory"
        );
    }

    #[test]
    fn names_may_hold_blanks_as_they_are_or_escaped() {
        let stated =
            b"user::rwx\nuser:joe doe:r--:1000\ngroup::r-x\ngroup:domain users:-w-:4294967294\nmask::r-x,other::r--";
        assert_eq!(bytes(stated), bytes(TEXT));
        assert_eq!(
            bytes(
                b"user::rwx  user:1000:r-- group::r-x\tgroup:4294967294:-w- mask::r-x other::r--"
            ),
            bytes(TEXT)
        );
        for name in ["domain users", "domain\\040users", "d\\157main users"] {
            let text =
                format!("user::rwx,user:1000:r--,group::r-x,group:{name}:-w-,mask::r-x,other::r--");
            let acl = NamedAcl {
                attribute: ACLS[0].0,
                text: text.into_bytes(),
            };
            let found = acl.resolve(
                |_| None,
                |name| (name == "domain users").then_some(u32::MAX - 1),
            );
            assert_eq!(found, Ok((ACLS[0].0.to_vec(), bytes(TEXT))), "{name}");
        }
        assert_eq!(unescaped("a\\40b\\400\\").as_deref(), Some("a\\40b\\400\\"));
        assert_eq!(unescaped("\\377"), None);
    }

    #[test]
    fn text_that_is_not_a_list_is_malformed() {
        for bad in [
            &b""[..],
            b"user",
            b"user::rwq",
            b"owner@:r:allow",
            b"mask:5:r--",
            b"u:1:r:2:3:4:5",
            b"\xff",
        ] {
            assert_eq!(parse(bad), Parsed::Malformed, "{bad:?}");
        }
    }

    #[test]
    fn bytes_that_text_would_change_are_not_expressible() {
        let raw = bytes(TEXT);
        for (at, value) in [(0, 3), (4, 3), (6, 8), (8, 0), (5, 1)] {
            let mut bad = raw.clone();
            bad[at] = value;
            assert!(!is_expressible(&bad), "{at}");
        }
        assert!(
            !is_expressible(&raw[..raw.len() - 1])
                && !is_expressible(&raw[..4])
                && !is_expressible(b"")
        );
    }
}
