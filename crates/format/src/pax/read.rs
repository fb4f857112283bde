//! Reads the members of a tar of any program.
//!
//! The input is not trusted: every length is bounded before memory is allocated, memory grows only
//! with bytes that arrive, names that leave the root are reported as such, and no input causes a
//! panic.

use super::{
    BLOCK, MAX_NAME, MAX_RECORDS,
    attributes::Attributes,
    field::{self, Block, text},
    header::{Header, HeaderNames, damaged, stays_within},
    padding,
    sparse::{MapLines, OLD_EXTENSION, OLD_HEADER, OLD_SIZE, read_map, read_old},
};
use crate::{
    entry::{Entry, EntryKind},
    error::{Error, ErrorKind, Result},
};
use std::io::Read;

/// Maximum bytes of global records. They are kept for all members; `git archive` writes 52.
const MAX_GLOBALS: usize = 64 << 10;

/// Maximum blocks of an archive without members, as tar writes it. An archive with more zeros has
/// lost its data.
const MAX_EMPTY: u64 = 20;

/// Reads the headers of an archive, one member at a time.
///
/// Members may be ustar, v7, pax or GNU (long names, base 256, sparse files of all four versions),
/// with records for one member or for all. Blocks of zeros do not end the archive, so that
/// concatenated archives are read to the last byte, as `tar -i` does. [`PaxReader::has_ended`]
/// tells whether the archive ended with such blocks. Trailing bytes after these blocks are ignored
/// if they have no header and do not end like an archive.
#[derive(Debug, Default)]
pub struct PaxReader {
    globals: Attributes,
    globals_len: usize,
    /// Bytes of the archive before the next header.
    position: u64,
    /// Number of zero blocks at the current end.
    zeros: u64,
    /// Whether a block that is not zero was read.
    has_begun: bool,
    trailed: bool,
}

/// The next item in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TarItem {
    /// A member that an entry can describe.
    Member(Member),
    /// A member whose name, or whose hard link target, leads out of the archive.
    Outside(Unknown),
    /// A member of an unknown type, or of a type without meaning here (volume labels, parts of
    /// files of another volume).
    Unknown(Unknown),
}

/// A member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Path, kind and metadata. The change time is zero if the archive has none; the inode is
    /// always zero.
    pub entry: Entry,
    /// Bytes to read before the next header, without their padding ([`skip_padding`]).
    ///
    /// For a file these are its [`Entry::data_len`] bytes; the map of a sparse file is already
    /// read. For other kinds they have no meaning; pass them to [`skip`].
    pub stored_len: u64,
}

/// A member that cannot be used. The caller passes its `stored_len` bytes to [`skip`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// Name as in the archive.
    pub name: Vec<u8>,
    /// Type flag.
    pub typeflag: u8,
    /// Bytes of content, without padding.
    pub stored_len: u64,
}

impl PaxReader {
    /// Creates a reader at the start of an archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the archive ended with blocks of zeros. If not, it may have lost members.
    pub fn has_ended(&self) -> bool {
        self.zeros > 0
    }

    /// Returns whether bytes after the end of the archive were ignored.
    pub fn has_trailing_bytes(&self) -> bool {
        self.trailed
    }

    /// Reads up to the content of the next member; returns `None` at the end of the input.
    ///
    /// The caller must have read the content of the previous member, with its padding, from
    /// `input`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the input is not a tar or is cut off; [`ErrorKind::Unsupported`]
    /// for a newer version of sparse files; or the error of `input`. The reader cannot be used
    /// after an error.
    pub fn next(&mut self, input: &mut dyn Read) -> Result<Option<TarItem>> {
        let mut pending = Pending::default();
        loop {
            let start = self.position;
            let Some(block) = self.block(input)? else {
                return if pending.is_empty() {
                    Ok(None)
                } else {
                    Err(cut_off(start))
                };
            };
            // Zeros are the end of an archive, and also what stands between archives that were put
            // together.
            if block == [0; BLOCK] && pending.is_empty() {
                self.zeros += 1;
                if !self.has_begun && self.zeros > MAX_EMPTY {
                    return Err(damaged(start, "there are only zeros up to here"));
                }
                continue;
            }
            if !field::is_sealed(&block) {
                // After the end there may be the rest of a tape's block or a signature: not every
                // trailing byte is damage.
                if self.may_have_ended() && self.has_only_foreign_bytes(input)? {
                    self.trailed = true;
                    return Ok(None);
                }
                return Err(damaged(start, "the checksum of a header is wrong"));
            }
            self.zeros = 0;
            self.has_begun = true;
            let header = Header { block, at: start };
            match block[field::TYPEFLAG] {
                b'x' | b'X' => self.records(input, &header, &mut pending)?,
                b'g' => self.globals(input, &header)?,
                b'L' => pending.name = Some(self.long_name(input, &header)?),
                b'K' => pending.link = Some(self.long_name(input, &header)?),
                _ => return self.member(input, &header, pending).map(Some),
            }
        }
    }

    /// Returns whether the last two blocks were the zeros that end an archive.
    fn may_have_ended(&self) -> bool {
        self.has_begun && self.zeros >= 2
    }

    /// Returns whether the bytes after the end do not belong to the archive.
    ///
    /// If they have a header, or end like an archive, then zeros have overwritten members and the
    /// archive is damaged.
    fn has_only_foreign_bytes(&mut self, input: &mut dyn Read) -> Result<bool> {
        let mut zeros = 0;
        while let Some(block) = self.block(input)? {
            if field::is_sealed(&block) {
                return Ok(false);
            }
            zeros = if block == [0; BLOCK] { zeros + 1 } else { 0 };
        }
        Ok(zeros < 2)
    }

    /// Returns the next block; `None` if the input ends before it, or within it after the end of
    /// the archive.
    fn block(&mut self, input: &mut dyn Read) -> Result<Option<Block>> {
        let mut block = [0; BLOCK];
        let mut have = 0;
        while have < BLOCK {
            match input.read(&mut block[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                // The end of the archive was read: a piece of a block behind it is not part of it.
                Ok(0) if self.may_have_ended() => {
                    self.trailed |= block != [0; BLOCK];
                    return Ok(None);
                }
                Ok(0) => return Err(cut_off(self.position)),
                Ok(count) => have += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(error)),
            }
        }
        self.position = self.position.saturating_add(BLOCK as u64);
        Ok(Some(block))
    }

    /// Returns a block that must exist.
    fn required_block(&mut self, input: &mut dyn Read) -> Result<Block> {
        self.block(input)?.ok_or_else(|| cut_off(self.position))
    }

    /// Appends the content of a header member, at most `max` bytes, to `body`, and skips its
    /// padding.
    fn body(
        &mut self,
        input: &mut dyn Read,
        header: &Header,
        max: usize,
        body: &mut Vec<u8>,
    ) -> Result<()> {
        let len = header.size()?;
        if len > max as u64 {
            return Err(damaged(
                header.at,
                format!("a header has {len} bytes, the maximum is {max}"),
            ));
        }
        // `body` grows with the bytes that arrive, not with the length in the header.
        let count = (&mut *input)
            .take(len)
            .read_to_end(body)
            .map_err(unreadable)?;
        if (count as u64) < len {
            return Err(cut_off(self.position));
        }
        skip_padding(input, len)?;
        self.advance(len);
        Ok(())
    }

    /// Counts `len` bytes of content and their padding as read.
    fn advance(&mut self, len: u64) {
        self.position = self
            .position
            .saturating_add(len)
            .saturating_add(padding(len) as u64);
    }

    fn records(
        &mut self,
        input: &mut dyn Read,
        header: &Header,
        pending: &mut Pending,
    ) -> Result<()> {
        pending.has_records = true;
        self.body(
            input,
            header,
            MAX_RECORDS - pending.records.len(),
            &mut pending.records,
        )
    }

    fn globals(&mut self, input: &mut dyn Read, header: &Header) -> Result<()> {
        let mut body = Vec::new();
        self.body(input, header, MAX_GLOBALS - self.globals_len, &mut body)?;
        self.globals_len += body.len();
        self.globals
            .read(&body)
            .ok_or_else(|| damaged(header.at, MALFORMED))
    }

    fn long_name(&mut self, input: &mut dyn Read, header: &Header) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        self.body(input, header, MAX_NAME, &mut body)?;
        body.truncate(text(&body).len());
        Ok(body)
    }

    fn member(
        &mut self,
        input: &mut dyn Read,
        header: &Header,
        pending: Pending,
    ) -> Result<TarItem> {
        let mut attributes = self.globals.clone();
        attributes
            .read(&pending.records)
            .ok_or_else(|| damaged(header.at, MALFORMED))?;
        let names = HeaderNames::of(header, (pending.name, pending.link), &mut attributes);
        let size = attributes.size.map_or_else(|| header.size(), Ok)?;
        let typeflag = header.block[field::TYPEFLAG];
        let (kind, stored_len) = match typeflag {
            b'0' | 0 | b'7' if names.path.ends_with(b"/") => (EntryKind::Directory, size),
            b'0' | 0 | b'7' | b'S' => self.file(input, header, &attributes, size)?,
            b'D' => (EntryKind::Directory, size),
            // Some tools give these a size, but no tool gives them content.
            b'1'..=b'6' => (header.special(&names)?, 0),
            _ => {
                self.advance(size);
                return Ok(TarItem::Unknown(Unknown {
                    name: names.path,
                    typeflag,
                    stored_len: size,
                }));
            }
        };
        self.advance(stored_len);
        if !stays_within(&names.path) || (typeflag == b'1' && !stays_within(&names.link)) {
            return Ok(TarItem::Outside(Unknown {
                name: names.path,
                typeflag,
                stored_len,
            }));
        }
        let entry = header.entry(&names.path, kind, attributes)?;
        Ok(TarItem::Member(Member { entry, stored_len }))
    }

    /// Returns the kind of a regular file with `stored` bytes, and the bytes that follow its map.
    fn file(
        &mut self,
        input: &mut dyn Read,
        header: &Header,
        attributes: &Attributes,
        stored: u64,
    ) -> Result<(EntryKind, u64)> {
        let sparse = &attributes.sparse;
        // GNU tar has written sparse files in three ways: type S, and the PAX versions 0 and 1.0.
        let is_old = header.block[field::TYPEFLAG] == b'S';
        let has_map =
            is_old || sparse.pairs.is_some() || sparse.major.is_some_and(|major| major > 0);
        if !has_map {
            let kind = EntryKind::File {
                size: stored,
                map: None,
            };
            return Ok((kind, stored));
        }
        let bad = || damaged(header.at, "the map of a sparse file is malformed");
        let mut map_len = 0;
        let (size, pairs) = if is_old {
            (header.number(OLD_SIZE)?, self.old_map(input, header)?)
        } else {
            let pairs = match (sparse.major, sparse.minor) {
                (None | Some(0), _) => sparse.pairs.clone().unwrap_or_default(),
                (Some(1), Some(0)) => {
                    let (pairs, len) = self.map(input, stored)?.ok_or_else(bad)?;
                    map_len = len;
                    pairs
                }
                (Some(major), minor) => return Err(newer_sparse(header.at, major, minor)),
            };
            (sparse.size.ok_or_else(bad)?, pairs)
        };
        let stored = stored - map_len;
        let map = read_map(&pairs, size, stored).ok_or_else(bad)?;
        Ok((EntryKind::File { size, map }, stored))
    }

    /// Reads the map in front of the content (version 1.0). Returns it with its length, or `None`
    /// if it is malformed or longer than `stored` bytes.
    fn map(&mut self, input: &mut dyn Read, stored: u64) -> Result<Option<(Vec<u64>, u64)>> {
        let mut lines = MapLines::default();
        for len in (BLOCK as u64..=stored).step_by(BLOCK) {
            match lines.push(&self.required_block(input)?) {
                Some(true) => return Ok(Some((lines.into_pairs(), len))),
                Some(false) => {}
                None => break,
            }
        }
        Ok(None)
    }

    /// Reads the map in the header and the blocks after it (GNU's older format).
    fn old_map(&mut self, input: &mut dyn Read, header: &Header) -> Result<Vec<u64>> {
        let mut pairs = Vec::new();
        let mut block = header.block;
        let mut place = OLD_HEADER;
        loop {
            let (fields, flag) = place;
            read_old(&block[fields], &mut pairs)
                .ok_or_else(|| damaged(header.at, "a sparse file has too many runs"))?;
            if block[flag] == 0 {
                return Ok(pairs);
            }
            block = self.required_block(input)?;
            place = OLD_EXTENSION;
        }
    }
}

/// Returns whether a tar, whole or damaged, may start with these bytes: with a header, or with
/// zeros if it is empty.
pub fn begins(start: &[u8]) -> bool {
    start.first_chunk::<BLOCK>().is_some_and(|block| {
        block[field::MAGIC].starts_with(b"ustar") || *block == [0; BLOCK] || field::is_sealed(block)
    })
}

/// Reads and drops the zeros after `len` bytes of content.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the input ends too early, or the error of `input`.
pub fn skip_padding(input: &mut dyn Read, len: u64) -> Result<()> {
    let mut block = [0; BLOCK];
    input
        .read_exact(&mut block[..padding(len)])
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => cut_off_in_member(),
            _ => unreadable(error),
        })
}

/// Reads and drops `len` bytes of content and their padding.
///
/// # Errors
/// As [`skip_padding`].
pub fn skip(input: &mut dyn Read, len: u64) -> Result<()> {
    let count =
        std::io::copy(&mut (&mut *input).take(len), &mut std::io::sink()).map_err(unreadable)?;
    if count < len {
        return Err(cut_off_in_member());
    }
    skip_padding(input, len)
}

/// Records and names that came before a member and apply to it.
#[derive(Default)]
struct Pending {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Vec<u8>,
    has_records: bool,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.name.is_none() && self.link.is_none() && !self.has_records
    }
}

const MALFORMED: &str = "a pax record is malformed";

fn cut_off(offset: u64) -> Error {
    damaged(offset, "it is cut off in the middle of a header")
}

fn cut_off_in_member() -> Error {
    Error::corrupt("the tar is cut off in the middle of a member")
}

fn newer_sparse(offset: u64, major: u64, minor: Option<u64>) -> Error {
    let message = format!(
        "cannot read the tar at byte {offset}: it has a sparse file of version {major}.{}",
        minor.unwrap_or(0)
    );
    Error::new(ErrorKind::Unsupported, message)
}

fn unreadable(error: std::io::Error) -> Error {
    Error::io("could not read the tar", error)
}
