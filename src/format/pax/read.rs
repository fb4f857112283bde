//! Members read from a tar of any make.
//!
//! The source is not trusted: each length is bounded before memory is taken, memory grows only with bytes that are there,
//! names that leave the root are refused, and no input makes this panic.

use super::attributes::Attributes;
use super::field::{self, Block, number, text};
use super::sparse::{MapLines, OLD_EXTENSION, OLD_HEADER, OLD_SIZE, read_map, read_old};
use super::{BLOCK, MAX_NAME, MAX_RECORDS, padding};
use crate::error::{Error, Kind as ErrorKind, Result, quoted};
use crate::format::entry::{Device, Entry, Kind, Owner, Path, Time, is_safe};
use std::io::Read;
use std::sync::Arc;

/// Most bytes of global records. They are kept for all members; `git archive` writes 52.
const MAX_GLOBALS: usize = 64 << 10;

/// Reads the headers of an archive, one member at a time.
///
/// Members may be ustar, v7, pax, GNU (long names, base 256, sparse files of all four makes), with records for one member
/// or for all. Blocks of zeros do not end the archive, so that concatenated ones are read to the end of the bytes, as
/// `tar -i` does; [`Reader::has_ended`] says whether they stood where the bytes ended.
#[derive(Debug, Default)]
pub struct Reader {
    globals: Attributes,
    globals_len: usize,
    /// Bytes of the archive before the next header.
    position: u64,
    ended: bool,
}

/// What stands next in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A member that an entry can describe.
    Member(Member),
    /// A member of a type that is not known, or means nothing here (volume labels, parts of files of another volume).
    Unknown(Unknown),
}

/// A member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// What it is. Change time is zero if the archive does not say; the inode always is.
    pub entry: Entry,
    /// Bytes that follow, to be read before the next header, with their padding ([`skip_padding`]). The map of a sparse
    /// file is consumed: for a file these are its [`Entry::data_len`] bytes. For other kinds they mean nothing: [`skip`].
    pub stored_len: u64,
    /// What the archive says of it that an entry does not hold, a line each: permissions for users known by name only.
    pub lost: Vec<String>,
}

/// A member of no use, whose `stored_len` bytes are to be passed over with [`skip`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// Its name, as it stands.
    pub name: Vec<u8>,
    /// Its type.
    pub typeflag: u8,
    /// Bytes that follow, without padding.
    pub stored_len: u64,
}

impl Reader {
    /// A reader at the start of an archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Were the last bytes read the blocks of zeros that end an archive? If the bytes end without, the archive may have
    /// lost members; PostgreSQL before 15 wrote none.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Read up to the content of the next member; `None` at the end of the bytes.
    ///
    /// The content of the member before, with its padding, must have been read from `input`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for what is not a tar, is cut off, or names a place outside; [`ErrorKind::Unsupported`] for a
    /// newer kind of sparse file; or the error of `input`. There is no going on after an error.
    pub fn next(&mut self, input: &mut dyn Read) -> Result<Option<Found>> {
        let mut pending = Pending::default();
        loop {
            let at = self.position;
            let Some(block) = self.block(input)? else {
                return if pending.is_empty() { Ok(None) } else { Err(cut_off(at)) };
            };
            self.ended = block == [0; BLOCK];
            if self.ended && pending.is_empty() {
                continue;
            }
            if !field::is_sealed(&block) {
                return Err(damaged(at, "the checksum of a header is wrong"));
            }
            let header = Header { block, at };
            match block[field::TYPEFLAG] {
                b'x' | b'X' => self.records(input, &header, &mut pending)?,
                b'g' => self.globals(input, &header)?,
                b'L' => pending.name = Some(self.long(input, &header)?),
                b'K' => pending.link = Some(self.long(input, &header)?),
                _ => return self.member(input, &header, pending).map(Some),
            }
        }
    }

    /// The next block; `None` if the bytes end before it.
    fn block(&mut self, input: &mut dyn Read) -> Result<Option<Block>> {
        let mut block = [0; BLOCK];
        let mut have = 0;
        while have < BLOCK {
            match input.read(&mut block[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) => return Err(cut_off(self.position)),
                Ok(count) => have += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(error)),
            }
        }
        self.position = self.position.saturating_add(BLOCK as u64);
        Ok(Some(block))
    }

    /// A block that must be there.
    fn more(&mut self, input: &mut dyn Read) -> Result<Block> {
        self.block(input)?.ok_or_else(|| cut_off(self.position))
    }

    /// Append the content of a member of ours, at most `max` bytes, to `body`, and pass over its padding.
    fn body(&mut self, input: &mut dyn Read, header: &Header, max: usize, body: &mut Vec<u8>) -> Result<()> {
        let len = header.size()?;
        if len > max as u64 {
            return Err(damaged(header.at, format!("a header extends over {len} bytes, where {max} are possible")));
        }
        // Grows with the bytes that come, whatever the header promised.
        let count = (&mut *input).take(len).read_to_end(body).map_err(unreadable)?;
        if (count as u64) < len {
            return Err(cut_off(self.position));
        }
        skip_padding(input, len)?;
        self.pass(len);
        Ok(())
    }

    /// Count `len` bytes of content and their padding as read.
    fn pass(&mut self, len: u64) {
        self.position = self.position.saturating_add(len).saturating_add(padding(len) as u64);
    }

    fn records(&mut self, input: &mut dyn Read, header: &Header, pending: &mut Pending) -> Result<()> {
        pending.has_records = true;
        self.body(input, header, MAX_RECORDS - pending.records.len(), &mut pending.records)
    }

    fn globals(&mut self, input: &mut dyn Read, header: &Header) -> Result<()> {
        let mut body = Vec::new();
        self.body(input, header, MAX_GLOBALS - self.globals_len, &mut body)?;
        self.globals_len += body.len();
        self.globals.read(&body).ok_or_else(|| damaged(header.at, MALFORMED))
    }

    fn long(&mut self, input: &mut dyn Read, header: &Header) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        self.body(input, header, MAX_NAME, &mut body)?;
        body.truncate(text(&body).len());
        Ok(body)
    }

    fn member(&mut self, input: &mut dyn Read, header: &Header, pending: Pending) -> Result<Found> {
        let mut attributes = self.globals.clone();
        attributes.read(&pending.records).ok_or_else(|| damaged(header.at, MALFORMED))?;
        let names = Names::of(header, pending, &mut attributes);
        let size = attributes.size.map_or_else(|| header.size(), Ok)?;
        let typeflag = header.block[field::TYPEFLAG];
        let (kind, stored_len) = match typeflag {
            b'0' | 0 | b'7' if names.path.ends_with(b"/") => (Kind::Directory, size),
            b'0' | 0 | b'7' | b'S' => self.file(input, header, &attributes, size)?,
            b'D' => (Kind::Directory, size),
            // Some tools give these a size, none give them content.
            b'1'..=b'6' => (header.special(&names)?, 0),
            _ => {
                self.pass(size);
                return Ok(Found::Unknown(Unknown { name: names.path, typeflag, stored_len: size }));
            }
        };
        self.pass(stored_len);
        let lost = attributes.named_acls.iter().map(|acl| lost_acl(acl)).collect();
        let entry = header.entry(&names.path, kind, attributes)?;
        Ok(Found::Member(Member { entry, stored_len, lost }))
    }

    /// A regular file of which `stored` bytes follow, and how many after its map.
    fn file(
        &mut self,
        input: &mut dyn Read,
        header: &Header,
        attributes: &Attributes,
        stored: u64,
    ) -> Result<(Kind, u64)> {
        let sparse = &attributes.sparse;
        let bad = || damaged(header.at, "the map of a sparse file is malformed");
        let (size, pairs, stored) = match (header.block[field::TYPEFLAG], sparse.major, sparse.minor) {
            (b'S', ..) => (header.number(OLD_SIZE)?, self.old_map(input, header)?, stored),
            (_, Some(1), Some(0)) => {
                let (pairs, len) = self.map(input, stored)?.ok_or_else(bad)?;
                (sparse.size.ok_or_else(bad)?, pairs, stored - len)
            }
            (_, None | Some(0), _) if sparse.pairs.is_some() => {
                (sparse.size.ok_or_else(bad)?, sparse.pairs.clone().unwrap_or_default(), stored)
            }
            (_, None | Some(0), _) => return Ok((Kind::File { size: stored, map: None }, stored)),
            (_, Some(major), minor) => return Err(newer_sparse(header.at, major, minor)),
        };
        let map = read_map(&pairs, size, stored).ok_or_else(bad)?;
        Ok((Kind::File { size, map }, stored))
    }

    /// The map in front of the content (version 1.0), and its length; `None` if it is not one or exceeds `stored` bytes.
    fn map(&mut self, input: &mut dyn Read, stored: u64) -> Result<Option<(Vec<u64>, u64)>> {
        let mut lines = MapLines::default();
        for len in (BLOCK as u64..=stored).step_by(BLOCK) {
            match lines.push(&self.more(input)?) {
                Some(true) => return Ok(Some((lines.into_pairs(), len))),
                Some(false) => {}
                None => break,
            }
        }
        Ok(None)
    }

    /// The map in the header and the blocks after it (GNU's older format).
    fn old_map(&mut self, input: &mut dyn Read, header: &Header) -> Result<Vec<u64>> {
        let mut pairs = Vec::new();
        let (mut block, mut place) = (header.block, OLD_HEADER);
        loop {
            let (fields, flag) = place;
            read_old(&block[fields], &mut pairs)
                .ok_or_else(|| damaged(header.at, "a sparse file has too many runs"))?;
            if block[flag] == 0 {
                return Ok(pairs);
            }
            (block, place) = (self.more(input)?, OLD_EXTENSION);
        }
    }
}

/// Read and drop the zeros after `len` bytes of content.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the bytes end before, or the error of `input`.
pub fn skip_padding(input: &mut dyn Read, len: u64) -> Result<()> {
    let mut block = [0; BLOCK];
    input.read_exact(&mut block[..padding(len)]).map_err(unreadable)
}

/// Read and drop `len` bytes of content and their padding.
///
/// # Errors
/// As [`skip_padding`].
pub fn skip(input: &mut dyn Read, len: u64) -> Result<()> {
    let count = std::io::copy(&mut (&mut *input).take(len), &mut std::io::sink()).map_err(unreadable)?;
    if count < len {
        return Err(Error::corrupt("the tar is cut off in the middle of a member"));
    }
    skip_padding(input, len)
}

/// What stood before a member and is for it.
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

/// A header block and where it stands.
struct Header {
    block: Block,
    at: u64,
}

impl Header {
    fn signed(&self, place: std::ops::Range<usize>) -> Result<i64> {
        let field = &self.block[place];
        number(field).ok_or_else(|| damaged(self.at, format!("{} is not a number", quoted(field))))
    }

    fn number(&self, place: std::ops::Range<usize>) -> Result<u64> {
        u64::try_from(self.signed(place)?).map_err(|_| damaged(self.at, "a size is negative"))
    }

    fn size(&self) -> Result<u64> {
        self.number(field::SIZE)
    }

    /// The name as the fields have it. Only POSIX has a prefix: GNU's older format keeps other things there.
    fn name(&self) -> Vec<u8> {
        let name = text(&self.block[field::NAME]);
        match text(&self.block[field::PREFIX]) {
            prefix if self.block[field::MAGIC].starts_with(b"ustar\0") && !prefix.is_empty() => {
                [prefix, b"/", name].concat()
            }
            _ => name.to_vec(),
        }
    }

    /// Kinds with no content: type flags `1` to `6`.
    fn special(&self, names: &Names) -> Result<Kind> {
        Ok(match self.block[field::TYPEFLAG] {
            b'1' => Kind::HardLink(clean(&names.link, self.at)?),
            b'2' if names.link.contains(&0) => return Err(damaged(self.at, "the target of a link has a NUL")),
            b'2' => Kind::Symlink(names.link.clone()),
            b'3' => Kind::CharDevice(self.device()?),
            b'4' => Kind::BlockDevice(self.device()?),
            b'5' => Kind::Directory,
            _ => Kind::Fifo,
        })
    }

    fn device(&self) -> Result<Device> {
        let part =
            |place| u32::try_from(self.number(place)?).map_err(|_| damaged(self.at, "a device number is too large"));
        Ok(Device { major: part(field::MAJOR)?, minor: part(field::MINOR)? })
    }

    fn entry(&self, name: &[u8], kind: Kind, mut attributes: Attributes) -> Result<Entry> {
        let path = clean(name, self.at)?;
        let hollow = matches!(&kind, Kind::HardLink(target) if target.is_empty());
        if hollow || (path.is_empty() && kind != Kind::Directory) {
            return Err(damaged(self.at, "a member has no name"));
        }
        let mtime = match attributes.mtime {
            Some(mtime) => mtime,
            None => Time { seconds: self.signed(field::MTIME)?, nanos: 0 },
        };
        Ok(Entry {
            path,
            kind,
            mode: (self.number(field::MODE)? & 0o7777) as u32,
            owner: self.owner(&attributes)?,
            mtime,
            ctime: attributes.ctime.unwrap_or_default(),
            inode: 0,
            xattrs: attributes.take_xattrs(),
        })
    }

    fn owner(&self, attributes: &Attributes) -> Result<Owner> {
        let id = |record: Option<i64>, place| {
            let id = record.map_or_else(|| self.signed(place), Ok)?;
            // -2 is nobody to some systems: the number modulo 2^32.
            let id = u32::try_from(id).or_else(|_| i32::try_from(id).map(i32::cast_unsigned));
            id.map_err(|_| damaged(self.at, "the number of an owner is too large"))
        };
        let name = |record: &Option<Vec<u8>>, place| match record {
            Some(name) => owner_name(name),
            None if self.block[field::MAGIC].starts_with(b"ustar") => owner_name(text(&self.block[place])),
            None => Arc::default(),
        };
        Ok(Owner {
            uid: id(attributes.uid, field::UID)?,
            gid: id(attributes.gid, field::GID)?,
            user: name(&attributes.user, field::USER),
            group: name(&attributes.group, field::GROUP),
        })
    }
}

/// A name that is not text is as good as none.
fn owner_name(name: &[u8]) -> Arc<str> {
    std::str::from_utf8(name).map(Arc::from).unwrap_or_default()
}

/// Name and link target as they stand: a record before a GNU member before the header block.
struct Names {
    path: Vec<u8>,
    link: Vec<u8>,
}

impl Names {
    fn of(header: &Header, pending: Pending, attributes: &mut Attributes) -> Self {
        let path = attributes.sparse.name.take().or(attributes.path.take()).or(pending.name);
        let link = attributes.link.take().or(pending.link);
        Self {
            path: path.unwrap_or_else(|| header.name()),
            link: link.unwrap_or_else(|| text(&header.block[field::LINK]).to_vec()),
        }
    }
}

/// The path that a name means: without `.` and doubled or trailing slashes. Refuses those that lead outside.
fn clean(name: &[u8], at: u64) -> Result<Path> {
    let parts = name.split(|c| *c == b'/').filter(|part| !part.is_empty() && *part != b".");
    let path = parts.collect::<Vec<_>>().join(&b'/');
    if name.starts_with(b"/") || !is_safe(&path) {
        let name = quoted(&name[..name.len().min(4096)]);
        return Err(damaged(at, format!("the name {name} leads out of the archive")));
    }
    Ok(path)
}

const MALFORMED: &str = "a pax record is malformed";

fn damaged(at: u64, why: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("cannot read the tar at byte {at}: {why}"))
}

fn cut_off(at: u64) -> Error {
    damaged(at, "it is cut off in the middle of a header")
}

fn newer_sparse(at: u64, major: u64, minor: Option<u64>) -> Error {
    let what =
        format!("cannot read the tar at byte {at}: it has a sparse file of version {major}.{}", minor.unwrap_or(0));
    Error::new(ErrorKind::Unsupported, what)
}

fn unreadable(error: std::io::Error) -> Error {
    Error::io("could not read the tar", error)
}

fn lost_acl(acl: &[u8]) -> String {
    format!("permissions {} name users or groups without their numbers", quoted(&acl[..acl.len().min(4096)]))
}
