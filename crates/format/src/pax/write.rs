//! Writes the header of a member.

use super::{
    ACLS, BLOCK, MAX_NAME, MAX_RECORDS, MAX_RUNS, XATTR,
    attributes::decode_escape,
    field::{self, Block, octal_max, put_number, put_text},
    padding, sparse,
};
use crate::{
    acl,
    entry::{ByteRun, Device, Entry, EntryKind, Time, is_safe},
    error::{Error, ErrorKind, Result, quoted},
};
use std::{borrow::Cow, io::Write};

/// Appends the complete header of a member: GNU `K` and `L` members and a pax `x` member if they
/// are needed, the ustar header, and the map of a sparse file.
///
/// Appends whole blocks. The caller appends [`Entry::data_len`] bytes of content, then [`padding`]
/// zeros for them. The output depends on the entry alone; inode and change time are not written. A
/// hard link carries the full metadata, because Python applies it. A list of permissions that is
/// not as the kernel writes it is stored as a plain attribute.
///
/// # Errors
/// [`ErrorKind::Bug`] for a socket, an unsafe path, or a map that [`sparse::storable_map`] would
/// not return; [`ErrorKind::Unsupported`] for names and attributes longer than [`MAX_NAME`] and
/// [`MAX_RECORDS`]. After an error `out` is unchanged.
pub fn write_header(entry: &Entry, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    write_blocks(&plan(entry)?, out).inspect_err(|_| out.truncate(start))
}

/// Returns whether one ustar header block holds all metadata of `entry`, without pax records, GNU
/// members or base 256.
///
/// The name may still be split at the prefix, which PostgreSQL's tools do not read: they need names
/// shorter than 100 bytes.
pub fn is_plain_ustar(entry: &Entry) -> bool {
    plan(entry).is_ok_and(|plan| {
        plan.name_place == FieldPlace::Ustar
            && plan.link_place == FieldPlace::Ustar
            && plan
                .device
                .is_none_or(|device| device.major.max(device.minor) <= octal_max(8) as u32)
            && !needs_records(&plan)
    })
}

/// The values of a header, and the place of each name.
struct HeaderPlan<'a> {
    entry: &'a Entry,
    typeflag: u8,
    name: Cow<'a, [u8]>,
    name_place: FieldPlace,
    link: &'a [u8],
    link_place: FieldPlace,
    device: Option<Device>,
    /// The map, and the size with holes.
    sparse: Option<(&'a [ByteRun], u64)>,
    /// Bytes that follow, including the map of a sparse file.
    size: u64,
}

/// The place of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldPlace {
    /// In the header block.
    Ustar,
    /// In a pax record: `path`, `linkpath`, or `GNU.sparse.name`.
    Record,
    /// In a GNU `L` or `K` member before the header.
    Member,
}

impl FieldPlace {
    fn of(name: &[u8], fits: bool) -> Self {
        if fits {
            Self::Ustar
        } else if name.is_ascii() {
            Self::Record
        } else {
            Self::Member
        }
    }
}

fn plan(entry: &Entry) -> Result<HeaderPlan<'_>> {
    let (typeflag, link, device) = type_link_device(entry)?;
    let name = member_name(entry)?;
    let sparse = sparse_map(entry)?;
    let name_place = match sparse {
        Some(_) if name.is_ascii() => FieldPlace::Record,
        _ => FieldPlace::of(&name, split(&name).is_some()),
    };
    let link_place = FieldPlace::of(link, link.len() <= field::LINK.len());
    if name.len().max(link.len()) >= MAX_NAME {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("cannot store {}: its name is too long", shown(entry)),
        ));
    }
    // The map of a sparse member stands at the begin of its content and counts to its size.
    let map_len = sparse.map_or(0, |(map, size)| {
        sparse::map_len(map, size).next_multiple_of(BLOCK as u64)
    });
    let size = map_len + entry.data_len();
    Ok(HeaderPlan {
        entry,
        typeflag,
        name,
        name_place,
        link,
        link_place,
        device,
        sparse,
        size,
    })
}

/// Returns type flag, link target and device number of an entry.
fn type_link_device(entry: &Entry) -> Result<(u8, &[u8], Option<Device>)> {
    Ok(match &entry.kind {
        EntryKind::File { .. } => (b'0', b"", None),
        EntryKind::HardLink(target) if is_safe(target) && !target.is_empty() => {
            (b'1', target, None)
        }
        EntryKind::HardLink(_) => return Err(bug(entry, "the target of the link is not safe")),
        // A field ends at the first NUL: the link would lead elsewhere.
        EntryKind::Symlink(target) if target.contains(&0) => {
            return Err(bug(entry, "its target has a NUL"));
        }
        EntryKind::Symlink(target) => (b'2', target, None),
        EntryKind::CharDevice(device) => (b'3', b"", Some(*device)),
        EntryKind::BlockDevice(device) => (b'4', b"", Some(*device)),
        EntryKind::Directory => (b'5', b"", None),
        EntryKind::Fifo => (b'6', b"", None),
        EntryKind::Socket => return Err(bug(entry, "sockets are not stored")),
    })
}

/// Returns the name, with a slash at the end for a directory; the root is `./`.
fn member_name(entry: &Entry) -> Result<Cow<'_, [u8]>> {
    match entry.kind {
        _ if !is_safe(&entry.path) => Err(bug(entry, "its path is not safe")),
        EntryKind::Directory if entry.path.is_empty() => Ok(Cow::Borrowed(b"./")),
        EntryKind::Directory => Ok([&entry.path[..], b"/"].concat().into()),
        _ if entry.path.is_empty() => Err(bug(entry, "the root is not a directory")),
        _ => Ok(Cow::Borrowed(&entry.path)),
    }
}

fn sparse_map(entry: &Entry) -> Result<Option<(&[ByteRun], u64)>> {
    match &entry.kind {
        EntryKind::File { size, .. } if i64::try_from(*size).is_err() => {
            Err(bug(entry, "its size is too large"))
        }
        EntryKind::File {
            size,
            map: Some(map),
        } if map.len() <= MAX_RUNS && sparse::is_storable(map, *size) => Ok(Some((map, *size))),
        EntryKind::File { map: Some(_), .. } => {
            Err(bug(entry, "its map does not consist of whole blocks"))
        }
        _ => Ok(None),
    }
}

fn bug(entry: &Entry, reason: &str) -> Error {
    Error::new(
        ErrorKind::Bug,
        format!("cannot store {}: {reason}", shown(entry)),
    )
}

/// Returns the path for a message, shortened to 4,096 bytes.
fn shown(entry: &Entry) -> String {
    quoted(&entry.path[..entry.path.len().min(4096)])
}

fn write_blocks(plan: &HeaderPlan, out: &mut Vec<u8>) -> Result<()> {
    // `K` and `L` come first, so that the records are right before their member. Readers that apply
    // records to the very next header would misread the archive (GHSA-j5gw-2vrg-8fgx and similar).
    if plan.link_place == FieldPlace::Member {
        write_long(b'K', plan.link, out);
    }
    if plan.name_place == FieldPlace::Member {
        write_long(b'L', &plan.name, out);
    }
    if needs_records(plan) {
        write_records(plan, out)?;
    }
    out.extend_from_slice(&member_block(plan));
    if let Some((map, size)) = plan.sparse {
        sparse::write_map(map, size, out);
        out.resize(out.len() + padding(sparse::map_len(map, size)), 0);
    }
    Ok(())
}

/// Returns the header block of the member itself.
fn member_block(plan: &HeaderPlan) -> Block {
    let entry = plan.entry;
    let mut block = block(plan.typeflag, plan.size);
    match plan.sparse {
        // GNU tar does the same, so that a tool that does not know the records cannot overwrite the
        // file with map and data.
        Some(_) if plan.name_place == FieldPlace::Record => {
            put_name(
                &mut block,
                &[b"GNUSparseFile.0/", &plan.name[..plan.name.len().min(200)]].concat(),
            );
        }
        _ => put_name(&mut block, &plan.name),
    }
    put_text(&mut block[field::LINK], plan.link);
    put_number(&mut block[field::MODE], i64::from(entry.mode & 0o7777));
    put_number(&mut block[field::UID], entry.owner.uid.into());
    put_number(&mut block[field::GID], entry.owner.gid.into());
    put_number(&mut block[field::MTIME], entry.mtime.seconds);
    put_owner(&mut block[field::USER], &entry.owner.user);
    put_owner(&mut block[field::GROUP], &entry.owner.group);
    let device = plan.device.unwrap_or(Device { major: 0, minor: 0 });
    put_number(&mut block[field::MAJOR], device.major.into());
    put_number(&mut block[field::MINOR], device.minor.into());
    field::seal(&mut block);
    block
}

/// Puts the name of a user or group in its field if it fits; otherwise leaves the field empty.
///
/// GNU tar looks up the owner by the field, even if a record has the whole name: with a cut name it
/// would give the file to the user with the shorter name. If the field is empty, GNU tar uses the
/// number.
fn put_owner(field: &mut [u8], name: &str) {
    let fits = name.len() < field.len(); // a NUL follows
    if fits {
        put_text(field, name.as_bytes());
    }
}

/// Returns a POSIX header block with a type and a size; owner, mode and time are zero.
fn block(typeflag: u8, size: u64) -> Block {
    let mut block = [0; BLOCK];
    for zero in [
        field::MODE,
        field::UID,
        field::GID,
        field::MTIME,
        field::MAJOR,
        field::MINOR,
    ] {
        put_number(&mut block[zero], 0);
    }
    put_number(&mut block[field::SIZE], size as i64);
    put_text(&mut block[field::MAGIC], field::POSIX);
    block[field::TYPEFLAG] = typeflag;
    block
}

/// Puts a name in the fields: split at a slash if that makes it fit, else cut. A cut name is also
/// stored in full elsewhere.
fn put_name(block: &mut Block, name: &[u8]) {
    match split(name) {
        Some((prefix, rest)) => {
            put_text(&mut block[field::PREFIX], prefix);
            put_text(&mut block[field::NAME], rest);
        }
        None => put_text(&mut block[field::NAME], cut(name)),
    }
}

/// Returns prefix and name for the two fields, or `None` if they do not fit.
fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let name_max = field::NAME.len();
    let prefix_max = field::PREFIX.len();
    if name.len() <= name_max {
        return Some((b"", name));
    }
    let first = name.len() - name_max - 1;
    let last = prefix_max.min(name.len() - 2);
    let slash = first + name.get(first..=last)?.iter().position(|c| *c == b'/')?;
    (slash > 0).then_some((&name[..slash], &name[slash + 1..]))
}

/// Returns the part of a long name that fits. It must not end in a slash, which old readers take
/// for a directory.
fn cut(name: &[u8]) -> &[u8] {
    let name = &name[..field::NAME.len()];
    name.strip_suffix(b"/").unwrap_or(name)
}

/// Writes a GNU member that holds a name for the next member, NUL-terminated.
fn write_long(typeflag: u8, name: &[u8], out: &mut Vec<u8>) {
    let len = name.len() as u64 + 1;
    let mut block = block(typeflag, len);
    put_text(&mut block[field::NAME], b"././@LongLink");
    put_text(&mut block[field::MAGIC], field::GNU);
    field::seal(&mut block);
    out.extend_from_slice(&block);
    out.extend_from_slice(name);
    out.resize(out.len() + 1 + padding(len), 0);
}

/// Returns whether the header block cannot hold some value, apart from names in GNU members.
fn needs_records(plan: &HeaderPlan) -> bool {
    let Entry {
        owner,
        mtime,
        xattrs,
        ..
    } = plan.entry;
    plan.name_place == FieldPlace::Record
        || plan.link_place == FieldPlace::Record
        || plan.sparse.is_some()
        || !xattrs.is_empty()
        || plan.size > octal_max(12) as u64
        || is_large_id(owner.uid)
        || is_large_id(owner.gid)
        || needs_mtime(*mtime)
        || needs_owner(&owner.user)
        || needs_owner(&owner.group)
}

fn is_large_id(id: u32) -> bool {
    i64::from(id) > octal_max(8)
}

fn needs_mtime(mtime: Time) -> bool {
    mtime.nanos != 0 || !(0..=octal_max(12)).contains(&mtime.seconds)
}

/// Returns whether an owner name needs a record.
///
/// The field holds 31 bytes and a NUL. A name of exactly 31 bytes has a record too: without one, it
/// could be a cut name ([`field::MAX_SURE_OWNER`]). A name that is not ASCII needs none: bsdtar
/// takes any bytes from the field, but in the C locale it fails (exit 1) for a record that is not
/// ASCII.
fn needs_owner(name: &str) -> bool {
    name.len() > field::MAX_SURE_OWNER
}

/// Appends the `x` member.
fn write_records(plan: &HeaderPlan, out: &mut Vec<u8>) -> Result<()> {
    // The header has the length of the records, so its place is kept free until they are written.
    let header = out.len();
    out.resize(header + BLOCK, 0);
    write_all_records(plan, out);
    let len = out.len() - header - BLOCK;
    if len > MAX_RECORDS {
        let message = format!(
            "cannot store {}: its attributes take {len} bytes",
            shown(plan.entry)
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    out.resize(out.len() + padding(len as u64), 0);
    let mut block = block(b'x', len as u64);
    put_number(&mut block[field::MODE], 0o644);
    put_name(
        &mut block,
        &[b"PaxHeaders.0/", &plan.name[..plan.name.len().min(87)]].concat(),
    );
    field::seal(&mut block);
    out[header..header + BLOCK].copy_from_slice(&block);
    Ok(())
}

fn write_all_records(plan: &HeaderPlan, out: &mut Vec<u8>) {
    let Entry {
        owner,
        mtime,
        xattrs,
        ..
    } = plan.entry;
    // A sparse member has its real name in a record of its own, so it needs no `path`.
    if let Some((_, size)) = plan.sparse {
        write_sparse_records(plan, size, out);
    } else if plan.name_place == FieldPlace::Record {
        record(out, b"path=", |out| out.extend_from_slice(&plan.name));
    }
    if plan.link_place == FieldPlace::Record {
        record(out, b"linkpath=", |out| out.extend_from_slice(plan.link));
    }
    if plan.size > octal_max(12) as u64 {
        number_record(out, b"size=", plan.size);
    }
    for (key, id) in [(b"uid=", owner.uid), (b"gid=", owner.gid)] {
        if i64::from(id) > octal_max(8) {
            number_record(out, key, id.into());
        }
    }
    for (key, name) in [(b"uname=", &owner.user), (b"gname=", &owner.group)] {
        if needs_owner(name) {
            record(out, key, |out| out.extend_from_slice(name.as_bytes()));
        }
    }
    if needs_mtime(*mtime) {
        record(out, b"mtime=", |out| write_time(*mtime, out));
    }
    for (name, value) in xattrs {
        write_xattr(name, value, out);
    }
}

fn write_sparse_records(plan: &HeaderPlan, size: u64, out: &mut Vec<u8>) {
    number_record(out, b"GNU.sparse.major=", 1);
    number_record(out, b"GNU.sparse.minor=", 0);
    if plan.name_place == FieldPlace::Record {
        record(out, b"GNU.sparse.name=", |out| {
            out.extend_from_slice(&plan.name)
        });
    }
    number_record(out, b"GNU.sparse.realsize=", size);
}

fn write_xattr(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let list = ACLS.iter().find(|(attribute, _)| *attribute == name);
    let text = list.and_then(|(_, key)| Some((key, acl::tar_text(value)?)));
    match text {
        Some((key, text)) => record(out, key, |out| {
            out.push(b'=');
            out.extend_from_slice(&text);
        }),
        None => record(out, XATTR, |out| {
            write_encoded(name, out);
            out.push(b'=');
            out.extend_from_slice(value);
        }),
    }
}

/// Writes the name of an attribute: `=` as `%3D`, and `%` as `%25` if it would otherwise be decoded
/// with the next bytes. bsdtar does not decode names, so a byte is encoded only if it must be.
fn write_encoded(name: &[u8], out: &mut Vec<u8>) {
    for (index, byte) in name.iter().enumerate() {
        match byte {
            b'=' => out.extend_from_slice(b"%3D"),
            b'%' if decode_escape(&name[index..]).is_some() => out.extend_from_slice(b"%25"),
            _ => out.push(*byte),
        }
    }
}

fn number_record(out: &mut Vec<u8>, key: &[u8], value: u64) {
    record(out, key, |out| {
        let _ = write!(out, "{value}");
    });
}

/// Appends a record: its own length in decimal, a blank, the key with its `=`, the value, a line
/// end.
fn record(out: &mut Vec<u8>, key: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.push(b' ');
    out.extend_from_slice(key);
    value(out);
    out.push(b'\n');
    let mut digits = [0; 20];
    let len = prefix(out.len() - start, &mut digits);
    out.splice(start..start, digits[..len].iter().copied());
}

/// Writes the total length of a record with `rest` other bytes to `digits` and returns the number
/// of digits.
fn prefix(rest: usize, digits: &mut [u8; 20]) -> usize {
    let mut total = rest + digit_count(rest);
    if digit_count(total) > digit_count(rest) {
        total = rest + digit_count(total);
    }
    let mut free = &mut digits[..];
    let _ = write!(free, "{total}");
    20 - free.len()
}

fn digit_count(n: usize) -> usize {
    n.ilog10() as usize + 1
}

/// Writes seconds with as many decimals as needed. The sign applies to the whole number: -2 s and
/// 250,000,000 ns are `-1.75`.
fn write_time(time: Time, out: &mut Vec<u8>) {
    let nanos = time.nanos.min(999_999_999);
    let (sign, seconds, nanos) = match time.seconds {
        seconds if seconds < 0 && nanos > 0 => {
            ("-", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanos)
        }
        seconds => (
            if seconds < 0 { "-" } else { "" },
            seconds.unsigned_abs(),
            nanos,
        ),
    };
    let _ = write!(out, "{sign}{seconds}");
    if nanos > 0 {
        let _ = write!(out, ".{nanos:09}");
        while out.pop_if(|c| *c == b'0').is_some() {}
    }
}
