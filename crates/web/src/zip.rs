//! A zip of a directory of a backup, written as a stream.
//!
//! Each file is deflated and followed by its checksum and sizes, as its header cannot have them yet. The list at the end is made by a
//! second pass over the records, so that memory holds 24 bytes for each entry, and no names. Entries that a zip does not
//! know, such as devices, are left out. Format: PKWARE's APPNOTE 6.3.10, with Zip64.

use crate::downloads::gone;
use flate2::{Compression, Crc, write::DeflateEncoder};
use fullbore_format::{
    entry::{Entry, EntryKind, is_within},
    error::{Error, ErrorKind, Result},
    page::PageItem,
};
use fullbore_repository::archive::{
    Archive, Selection, frame_cache::FrameCache, stored_file::StoredFile,
};
use std::{
    io::{self, Write},
    sync::Arc,
};

/// Sizes and checksum follow the data.
const FOLLOWS: u16 = 1 << 3;
/// The name is UTF-8.
const UTF8: u16 = 1 << 11;
const VERSION: u16 = 45;
const MADE_BY_UNIX: u16 = 3 << 8 | VERSION;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;

/// What the list at the end needs of an entry, beside its record.
struct PackedEntry {
    packed: u64,
    offset: u64,
    crc: u32,
}

/// Counts and sums what it passes on.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.out.write(data)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

struct Summed<W> {
    out: W,
    crc: Crc,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.out.write(data)?;
        self.crc.update(&data[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes the zip of everything below `dir`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] for damage; those of `out`.
pub(crate) fn write_zip(
    archive: &Arc<Archive>,
    frames: &Arc<FrameCache>,
    dir: &[u8],
    out: &mut dyn Write,
) -> Result<()> {
    let mut out = Counted { out, bytes: 0 };
    let mut entries = Vec::new();
    for item in wanted(archive, dir)? {
        let item = item?;
        let name = zip_name(&item.entry, dir);
        let offset = out.bytes;
        let method = method_of(&item.entry);
        write_local(&mut out, &name, &item.entry, method).map_err(gone)?;
        let begin = out.bytes;
        let (crc, plain) = match &item.entry.kind {
            EntryKind::Symlink(target) => {
                out.write_all(target).map_err(gone)?;
                let mut crc = Crc::new();
                crc.update(target);
                (crc.sum(), target.len() as u64)
            }
            EntryKind::File { .. } | EntryKind::HardLink(_) => {
                write_content(archive, frames, &item.entry.path, &mut out)?
            }
            _ => (0, 0),
        };
        let packed = out.bytes - begin;
        write_follower(&mut out, crc, packed, plain).map_err(gone)?;
        entries.push(PackedEntry {
            packed,
            offset,
            crc,
        });
    }
    write_list(archive, dir, &entries, &mut out)
}

/// Deflates a file. Returns its checksum and its size.
fn write_content(
    archive: &Arc<Archive>,
    frames: &Arc<FrameCache>,
    path: &[u8],
    out: &mut Counted<'_>,
) -> Result<(u32, u64)> {
    let file = StoredFile::open(archive.clone(), frames.clone(), path)?;
    let file = file.ok_or_else(|| Error::corrupt("a link has no file"))?;
    let deflater = DeflateEncoder::new(out, Compression::fast());
    let mut summed = Summed {
        out: deflater,
        crc: Crc::new(),
    };
    file.write_to(&mut summed, gone)?;
    summed.out.finish().map_err(gone)?;
    Ok((summed.crc.sum(), file.size()))
}

/// Returns the entries of a zip, in archive order: one record for each.
fn wanted<'a>(
    archive: &'a Arc<Archive>,
    dir: &'a [u8],
) -> Result<impl Iterator<Item = Result<PageItem>> + use<'a>> {
    let selection = match dir {
        b"" => Selection::default(),
        dir => Selection::new(&[dir])?,
    };
    let records = archive.records(&selection, false);
    Ok(records.filter(move |item| item.as_ref().map_or(true, |item| is_wanted(item, dir))))
}

fn is_wanted(item: &PageItem, dir: &[u8]) -> bool {
    let path = &item.entry.path;
    let is_below = is_within(path, dir) && path.len() > dir.len();
    // A file that continues over pages counts by its last part, which has its size.
    is_below && !item.more && item.state.is_stored() && is_known(&item.entry.kind)
}

fn is_known(kind: &EntryKind) -> bool {
    matches!(
        kind,
        EntryKind::File { .. }
            | EntryKind::HardLink(_)
            | EntryKind::Directory
            | EntryKind::Symlink(_)
    )
}

fn method_of(entry: &Entry) -> u16 {
    match entry.kind {
        EntryKind::File { .. } | EntryKind::HardLink(_) => DEFLATED,
        _ => STORED,
    }
}

/// Returns the name below the directory; that of a directory ends with a slash.
fn zip_name(entry: &Entry, dir: &[u8]) -> Vec<u8> {
    let below = &entry.path[dir.len()..];
    let mut name = below.strip_prefix(b"/").unwrap_or(below).to_vec();
    if entry.kind == EntryKind::Directory {
        name.push(b'/');
    }
    name.truncate(u16::MAX.into()); // paths of a backup are shorter
    name
}

fn flags_of(name: &[u8]) -> u16 {
    match std::str::from_utf8(name) {
        Ok(_) => FOLLOWS | UTF8,
        Err(_) => FOLLOWS,
    }
}

/// Returns the date and the time of MS-DOS, from 1980 to 2107.
fn dos_time(entry: &Entry) -> [u16; 2] {
    let time = jiff::Timestamp::from_second(entry.mtime.seconds).unwrap_or_default();
    let time = time.to_zoned(jiff::tz::TimeZone::system());
    let Ok(years) = u16::try_from(time.year() - 1980) else {
        return [0, 0x21];
    };
    let date = years.min(127) << 9 | (time.month() as u16) << 5 | time.day() as u16;
    let seconds = time.second() as u16 / 2;
    let clock = (time.hour() as u16) << 11 | (time.minute() as u16) << 5 | seconds;
    [clock, date]
}

fn put16(out: &mut Vec<u8>, numbers: &[u16]) {
    numbers
        .iter()
        .for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

fn put32(out: &mut Vec<u8>, numbers: &[u32]) {
    numbers
        .iter()
        .for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

fn put64(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers
        .iter()
        .for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

fn write_local(out: &mut dyn Write, name: &[u8], entry: &Entry, method: u16) -> io::Result<()> {
    let mut head = b"PK\x03\x04".to_vec();
    put16(&mut head, &[VERSION, flags_of(name), method]);
    put16(&mut head, &dos_time(entry));
    // With Zip64, so that the sizes that follow have 8 bytes.
    put32(&mut head, &[0, u32::MAX, u32::MAX]);
    put16(&mut head, &[name.len() as u16, 20]);
    head.extend_from_slice(name);
    put16(&mut head, &[1, 16]);
    put64(&mut head, &[0, 0]);
    out.write_all(&head)
}

fn write_follower(out: &mut dyn Write, crc: u32, packed: u64, plain: u64) -> io::Result<()> {
    let mut tail = b"PK\x07\x08".to_vec();
    put32(&mut tail, &[crc]);
    put64(&mut tail, &[packed, plain]);
    out.write_all(&tail)
}

/// Writes the list of all entries and the end of the zip.
fn write_list(
    archive: &Arc<Archive>,
    dir: &[u8],
    entries: &[PackedEntry],
    out: &mut Counted<'_>,
) -> Result<()> {
    let begin = out.bytes;
    let mut packed = entries.iter();
    for item in wanted(archive, dir)? {
        let item = item?;
        let packed = packed.next().ok_or_else(changed)?;
        let plain = plain_bytes(archive, &item.entry)?;
        let listed = list_entry(&item.entry, &zip_name(&item.entry, dir), packed, plain);
        out.write_all(&listed).map_err(gone)?;
    }
    let end = zip_end(entries.len() as u64, begin, out.bytes);
    out.write_all(&end).map_err(gone)
}

fn changed() -> Error {
    Error::new(ErrorKind::Bug, "a backup has other entries than before")
}

fn plain_bytes(archive: &Archive, entry: &Entry) -> Result<u64> {
    Ok(match &entry.kind {
        EntryKind::Symlink(target) => target.len() as u64,
        EntryKind::HardLink(target) => archive
            .file_parts(target)?
            .last()
            .map_or(0, |part| part.entry.size()),
        _ => entry.size(),
    })
}

fn list_entry(entry: &Entry, name: &[u8], packed: &PackedEntry, plain: u64) -> Vec<u8> {
    let mut listed = b"PK\x01\x02".to_vec();
    let method = method_of(entry);
    put16(
        &mut listed,
        &[MADE_BY_UNIX, VERSION, flags_of(name), method],
    );
    put16(&mut listed, &dos_time(entry));
    put32(&mut listed, &[packed.crc, u32::MAX, u32::MAX]);
    put16(&mut listed, &[name.len() as u16, 28, 0, 0, 0]);
    let kind = match entry.kind {
        EntryKind::Directory => 0o040_000,
        EntryKind::Symlink(_) => 0o120_000,
        _ => 0o100_000,
    };
    let of_dos = u32::from(entry.kind == EntryKind::Directory) << 4;
    // Without the bits that change the user.
    let mode = kind | entry.mode & 0o777;
    put32(&mut listed, &[mode << 16 | of_dos, u32::MAX]);
    listed.extend_from_slice(name);
    put16(&mut listed, &[1, 24]);
    put64(&mut listed, &[plain, packed.packed, packed.offset]);
    listed
}

fn zip_end(count: u64, begin: u64, end: u64) -> Vec<u8> {
    let mut tail = b"PK\x06\x06".to_vec();
    put64(&mut tail, &[44]);
    put16(&mut tail, &[MADE_BY_UNIX, VERSION]);
    put32(&mut tail, &[0, 0]);
    put64(&mut tail, &[count, count, end - begin, begin]);
    tail.extend_from_slice(b"PK\x06\x07");
    put32(&mut tail, &[0]);
    put64(&mut tail, &[end]);
    put32(&mut tail, &[1]);
    tail.extend_from_slice(b"PK\x05\x06");
    put16(&mut tail, &[0, 0, u16::MAX, u16::MAX]);
    put32(&mut tail, &[u32::MAX, u32::MAX]);
    put16(&mut tail, &[0]);
    tail
}
