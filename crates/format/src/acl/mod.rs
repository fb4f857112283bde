//! Access control lists: the system's bytes, and text with names.
//!
//! The bytes are those of the attributes `system.posix_acl_*` (Linux
//! `uapi/linux/posix_acl_xattr.h`): a version, then entries of tag (u16), permissions (u16) and
//! number (u32), little-endian. They have numbers, which mean other users on another host. So an
//! entry of a backup holds text in star's format, with the name and the number of each user and
//! group: `user::rwx,user:joe:r--:1000,group::r-x,mask::r-x,other::r--`. A user without a name has
//! the number in its place.
//!
//! In a tar the text has names without their numbers: a fourth field would make GNU tar drop the
//! list. Names may contain blanks, as in a directory service (`domain users`): bsdtar writes the
//! blank itself, GNU tar and fullbore write `\040`.

use crate::{entry::Xattr, error::quoted};
use std::{borrow::Cow, io::Write};

/// The attribute of the list of an object.
pub const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The attribute of the list that new objects in a directory inherit.
pub const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

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

/// An entry of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AclEntry<'a> {
    tag: u16,
    permissions: u16,
    /// The user or group, if the entry is for one.
    who: Option<Who<'a>>,
}

/// A user or group in a list; the number, the name, or both are known.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Who<'a> {
    name: Cow<'a, str>,
    number: Option<u32>,
}

/// The names and numbers of users and groups on one system.
pub trait AclNames {
    /// The name of a user or group; empty if it has none here.
    fn name(&self, is_user: bool, number: u32) -> std::sync::Arc<str>;
    /// The number of the user or group with this name, if there is one here.
    fn number(&self, is_user: bool, name: &str) -> Option<u32>;
}

/// A list as the system takes it.
#[derive(Debug, PartialEq, Eq)]
pub struct LocalAcl {
    /// The system's bytes.
    pub raw: Vec<u8>,
    /// Names that are not known here. Their numbers were taken.
    pub unknown: Vec<String>,
}

/// Returns whether an attribute holds a list.
pub fn is_list(attribute: &[u8]) -> bool {
    attribute == ACCESS_LIST || attribute == DEFAULT_LIST
}

/// Gives the lists among the attributes of an object the names of their users and groups. A list
/// that text would change keeps the system's bytes.
pub fn name_lists(xattrs: &mut [Xattr], names: &dyn AclNames) {
    let lists = xattrs.iter_mut().filter(|(name, _)| is_list(name));
    for (_, value) in lists.filter(|(_, value)| is_expressible(value)) {
        *value = text_of(value, names);
    }
}

/// Returns the list as this system takes it: by name if the name exists here and `is_numeric` is
/// false, otherwise by number. The system's bytes are returned as they are.
///
/// # Errors
/// The reason why the list cannot be set, in words that follow "not restored".
pub fn local_list(
    value: &[u8],
    names: &dyn AclNames,
    is_numeric: bool,
) -> Result<LocalAcl, &'static str> {
    // Bytes of a system have numbers only, so there are no names to look up.
    if value.starts_with(&VERSION.to_le_bytes()) {
        return Ok(LocalAcl {
            raw: value.to_vec(),
            unknown: Vec::new(),
        });
    }
    let entries = parse(value).ok_or("they are not a valid list of permissions")?;
    let mut unknown = Vec::new();
    let mut numbered = Vec::with_capacity(entries.len());
    for entry in entries {
        let number = match &entry.who {
            None => NOBODY,
            Some(holder) => {
                let is_user = entry.tag == NAMED_USER;
                let stated = holder
                    .number
                    .filter(|_| is_numeric || holder.name.is_empty());
                let local_number = || names.number(is_user, &holder.name);
                match stated.or_else(local_number).or(holder.number) {
                    Some(number) => {
                        if !is_numeric && !holder.name.is_empty() && local_number().is_none() {
                            unknown.push(holder.name.to_string());
                        }
                        number
                    }
                    None => return Err("not all of their names are known here"),
                }
            }
        };
        numbered.push((entry.tag, entry.permissions, number));
    }
    Ok(LocalAcl {
        raw: raw(numbered),
        unknown,
    })
}

/// Returns whether two lists grant the same: to the same names where both have one and
/// `is_numeric` is false, otherwise to the same numbers.
pub fn is_same_list(one: &[u8], other: &[u8], is_numeric: bool) -> bool {
    // Most lists that are compared are the same to the byte: nothing is parsed for them.
    if one == other {
        return true;
    }
    let (Some(one), Some(other)) = (parse(one), parse(other)) else {
        return false;
    };
    let is_same = |a: &AclEntry<'_>, b: &AclEntry<'_>| {
        let holder = match (&a.who, &b.who) {
            (Some(a), Some(b)) => is_same_who(a, b, is_numeric),
            (a, b) => a.is_none() && b.is_none(),
        };
        (a.tag, a.permissions) == (b.tag, b.permissions) && holder
    };
    one.len() == other.len() && one.iter().all(|a| other.iter().any(|b| is_same(a, b)))
}

fn is_same_who(a: &Who<'_>, b: &Who<'_>, is_numeric: bool) -> bool {
    let by_name = !is_numeric && !a.name.is_empty() && !b.name.is_empty();
    if by_name {
        a.name == b.name
    } else {
        a.number == b.number
    }
}

/// Returns the rights of the owning group in a list: 0 to 7. A list that is not one grants none.
pub fn rights_of_group(value: &[u8]) -> u32 {
    if let Some(raw) = value.strip_prefix(&VERSION.to_le_bytes()) {
        let entries = raw.as_chunks::<ENTRY>().0;
        let group = entries
            .iter()
            .find(|entry| entry[..2] == GROUP.to_le_bytes());
        return group.map_or(0, |entry| u32::from(entry[2] & 0o7));
    }
    let entries = parse(value).unwrap_or_default();
    let group = entries.iter().find(|entry| entry.tag == GROUP);
    group.map_or(0, |entry| u32::from(entry.permissions))
}

/// Returns the text for messages.
pub fn shown(value: &[u8]) -> String {
    quoted(&value[..value.len().min(4096)])
}

/// Returns the text of a list for a tar: each user and group by its name, or by its number if it
/// has no name. `None` if the value is not text.
pub fn tar_text(value: &[u8]) -> Option<Vec<u8>> {
    let entries = parse(value)?;
    let mut out = Vec::with_capacity(value.len());
    for entry in &entries {
        write_entry(entry, false, &mut out);
    }
    Some(out)
}

/// Returns whether `raw` can be written as text and read back as the same bytes.
fn is_expressible(raw: &[u8]) -> bool {
    raw.len() > 4
        && raw.starts_with(&VERSION.to_le_bytes())
        && raw[4..].len().is_multiple_of(ENTRY)
        && raw[4..]
            .as_chunks::<ENTRY>()
            .0
            .iter()
            .all(|entry| checked(entry).is_some())
        && raw[4..]
            .as_chunks::<ENTRY>()
            .0
            .iter()
            .is_sorted_by_key(|entry| entry[0])
}

/// Returns the text of `raw`, for which [`is_expressible`] is true.
fn text_of(raw: &[u8], names: &dyn AclNames) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in raw[4..].as_chunks::<ENTRY>().0 {
        let Some((tag, number)) = checked(entry) else {
            continue;
        };
        let holder = number.map(|number| Who {
            name: Cow::Owned(names.name(tag == NAMED_USER, number).to_string()),
            number: Some(number),
        });
        let permissions = u16::from(entry[2]);
        let entry = AclEntry {
            tag,
            permissions,
            who: holder,
        };
        write_entry(&entry, true, &mut out);
    }
    out
}

/// Appends one entry, with the number behind a name if `has_number`.
fn write_entry(entry: &AclEntry<'_>, has_number: bool, out: &mut Vec<u8>) {
    let word = TAGS.iter().find(|(tag, ..)| *tag == entry.tag);
    let word = word.map_or("other", |(_, word, _)| *word);
    out.extend_from_slice(if out.is_empty() { b"" } else { b"," });
    out.extend_from_slice(word.as_bytes());
    out.push(b':');
    let mut number = None;
    if let Some(holder) = &entry.who {
        match holder.number {
            // Without a name the number stands in its place, as getfacl writes it.
            Some(number) if holder.name.is_empty() => {
                let _ = write!(out, "{number}");
            }
            stated => {
                write_name(&holder.name, out);
                number = stated.filter(|_| has_number);
            }
        }
    }
    out.push(b':');
    let bits = [(4, b'r'), (2, b'w'), (1, b'x')];
    out.extend(bits.map(|(bit, c)| {
        if entry.permissions & bit == 0 {
            b'-'
        } else {
            c
        }
    }));
    if let Some(number) = number {
        let _ = write!(out, ":{number}");
    }
}

/// Appends a name. Signs that mean something in a list are written in octal, as is the first digit
/// of a name of digits, which would be a number.
fn write_name(name: &str, out: &mut Vec<u8>) {
    let is_number = name.parse::<u32>().is_ok();
    for (index, byte) in name.bytes().enumerate() {
        let is_plain = byte > b' ' && byte != 0x7f && !b",:\\".contains(&byte);
        if is_plain && !(is_number && index == 0) {
            out.push(byte);
        } else {
            let _ = write!(out, "\\{byte:03o}");
        }
    }
}

/// Returns the tag of an entry and the number it names; `None` if the entry is not as the kernel
/// writes it.
fn checked(entry: &[u8; ENTRY]) -> Option<(u16, Option<u32>)> {
    let tag = u16::from_le_bytes([entry[0], entry[1]]);
    let permissions = u16::from_le_bytes([entry[2], entry[3]]);
    let number = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
    let (_, _, named) = TAGS.iter().find(|known| known.0 == tag)?;
    let plausible = permissions <= 7 && (*named || number == NOBODY);
    plausible.then_some((tag, named.then_some(number)))
}

/// Parses a text with three or four fields an entry; `None` if it is not a list. Entries are
/// separated by commas or line ends. Blanks separate entries only if the text has neither, because
/// a name may contain a blank.
fn parse(text: &[u8]) -> Option<Vec<AclEntry<'_>>> {
    let text = std::str::from_utf8(text).ok()?;
    let separators: &[char] = if text.contains([',', '\n']) {
        &[',', '\n']
    } else {
        &[' ', '\t']
    };
    let items = text.split(separators).map(str::trim);
    let mut entries = items
        .filter(|item| !item.is_empty())
        .map(parse_entry)
        .collect::<Option<Vec<_>>>()?;
    // The order that the kernel requires.
    entries.sort_by_key(|entry| entry.tag);
    (!entries.is_empty()).then_some(entries)
}

/// Parses one entry: `user:joe:r--:1000`, `user:1000:r--`, `u::rwx`, or `mask:r--` of Solaris.
fn parse_entry(item: &str) -> Option<AclEntry<'_>> {
    let item = item.strip_prefix("default:").unwrap_or(item);
    let mut fields = item.split(':');
    let word = fields.next().unwrap_or_default();
    // One more than an entry has: the match below refuses what is longer.
    let rest: Vec<&str> = fields.take(4).collect();
    let (holder, permissions, stated) = match rest[..] {
        [permissions] => ("", permissions, None),
        [holder, permissions] => (holder, permissions, None),
        [holder, permissions, number] => (holder, permissions, Some(number)),
        _ => return None,
    };
    let tag = tag(word, !holder.is_empty())?;
    let permissions = parse_permissions(permissions)?;
    let holder = match (holder, holder.parse().ok()) {
        ("", _) => None,
        // A name of digits alone is a number, unless a number follows: then digits are the name.
        (_, Some(number)) if stated.is_none() => Some(Who {
            name: Cow::Borrowed(""),
            number: Some(number),
        }),
        _ => Some(Who {
            name: Cow::Owned(unescaped(holder)?),
            number: stated.and_then(|number| number.parse().ok()),
        }),
    };
    Some(AclEntry {
        tag,
        permissions,
        who: holder,
    })
}

/// Decodes octal escapes in a name: `\040` is a blank. Returns `None` if the result is not UTF-8.
fn unescaped(name: &str) -> Option<String> {
    let mut rest = name.as_bytes();
    let mut plain = Vec::with_capacity(rest.len());
    while let Some((first, tail)) = rest.split_first() {
        let (byte, tail) = match rest {
            [
                b'\\',
                high @ b'0'..=b'3',
                middle @ b'0'..=b'7',
                low @ b'0'..=b'7',
                tail @ ..,
            ] => (
                (high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'),
                tail,
            ),
            _ => (*first, tail),
        };
        plain.push(byte);
        rest = tail;
    }
    String::from_utf8(plain).ok()
}

/// Returns the tag for a word or its first letter.
fn tag(word: &str, named: bool) -> Option<u16> {
    TAGS.iter()
        .find(|(_, known, names)| is_tag_word(word, known) && *names == named)
        .map(|(tag, ..)| *tag)
}

fn is_tag_word(word: &str, known: &str) -> bool {
    known == word || known[..1] == *word
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
mod tests;
