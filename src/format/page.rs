//! Pages of the manifest: what each entry is and where its bytes are.
//!
//! A page holds up to [`MAX_RECORDS`] records in archive order, one column for each property, as CBOR with numbered
//! fields inside one zstd frame. A later version may add columns; a reader leaves out what it does not know.
//! A file with more extents than fit a page goes on in the next one, see [`Record::more`].

use super::{
    digest::Digest,
    entry::{self, Device, Entry, Kind, Owner, Run, Time},
};
use crate::error::{Error, Result};
use minicbor::{Decode, Encode, bytes::ByteVec};
use std::{collections::HashMap, sync::Arc};

/// Records in a page. 8,192: about 0.3 MiB compressed, what one pick reads to find one file.
pub const MAX_RECORDS: usize = 8192;
/// Extents in a page; an 8 GiB file in 1 MiB frames has 8,192.
pub const MAX_EXTENTS: usize = 32_768;
/// Bytes of names, attributes and sparse maps in a page before it is closed.
pub const MAX_TEXT_BYTES: usize = 2 << 20;
/// The largest page that is decoded, in bytes before compression. A single entry may be as long as its attributes.
const MAX_PAGE_BYTES: usize = 256 << 20;
/// Bytes kept of a block's chaining value: enough, as a block is only compared with the same place of the same file.
pub const BLOCK_DIGEST_BYTES: usize = 16;

/// An entry, how well it was captured, and where its content is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// What it is.
    pub entry: Entry,
    /// How well it was captured.
    pub state: State,
    /// Digest of the content; on the last part if the record goes on over pages.
    pub digest: Option<Digest>,
    /// Digests of the blocks, if there is more than one, 16 bytes each.
    pub blocks: Vec<[u8; BLOCK_DIGEST_BYTES]>,
    /// Where the content is, in order of the file's data (holes left out).
    pub extents: Vec<Extent>,
    /// Bytes of data that earlier pages described; above 0, this is a later part of the record before it.
    pub from: u64,
    /// Does the record go on in the next page?
    pub more: bool,
}

/// How well an entry was captured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum State {
    /// As it was at the scan.
    #[default]
    Whole,
    /// It shrank, grew or was rewritten while it was read; the stored length is that of the scan.
    Changed,
    /// It could not be read, with the reason; nothing is stored.
    Unreadable(String),
    /// It was there at the scan and gone when it was to be read; nothing is stored.
    Vanished,
    /// Sockets are noted, not stored.
    Noted,
}

impl State {
    /// Is there something to restore?
    pub fn is_stored(&self) -> bool {
        matches!(self, Self::Whole | Self::Changed)
    }
}

/// A run of bytes of a file within one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Which frame.
    pub frame: FrameAt,
    /// Bytes of the decoded frame before the run.
    pub inner: u32,
    /// Length of the run.
    pub len: u32,
}

/// Where a frame is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameAt {
    /// In which segment: an index into [`Page::segments`].
    pub segment: u32,
    /// Bytes of the segment before it.
    pub offset: u64,
    /// Stored bytes.
    pub stored_len: u32,
    /// Bytes after decoding.
    pub plain_len: u32,
}

/// Names a segment of this or an earlier backup.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Encode, Decode)]
pub struct SegmentId {
    /// Backup; empty for the one the page belongs to.
    #[n(0)]
    pub backup: String,
    /// Stream, from 1.
    #[n(1)]
    pub stream: u32,
    /// Number in the stream, from 1.
    #[n(2)]
    pub number: u32,
}

/// A page, decoded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The segments that extents speak of.
    pub segments: Vec<SegmentId>,
    /// The records, in archive order.
    pub records: Vec<Record>,
}

const FILE: u8 = 0;
const SPARSE: u8 = 1;
const DIRECTORY: u8 = 2;
const SYMLINK: u8 = 3;
const HARD_LINK: u8 = 4;
const FIFO: u8 = 5;
const CHAR_DEVICE: u8 = 6;
const BLOCK_DEVICE: u8 = 7;
const SOCKET: u8 = 8;

/// The page as it is stored: one column for each property. Lists in brackets are as long as there are records of that sort.
#[derive(Default, Encode, Decode)]
struct Columns {
    #[n(0)]
    segments: Vec<SegmentId>,
    /// Paths, each closed by a NUL.
    #[cbor(n(1), with = "minicbor::bytes")]
    paths: Vec<u8>,
    #[cbor(n(2), with = "minicbor::bytes")]
    kinds: Vec<u8>,
    #[n(3)]
    modes: Vec<u32>,
    #[n(4)]
    owners: Vec<(u32, u32, String, String)>,
    /// Index into `owners`.
    #[n(5)]
    owner: Vec<u32>,
    /// Seconds, as the difference from the record before.
    #[n(6)]
    mtimes: Vec<i64>,
    #[n(7)]
    mtime_nanos: Vec<u32>,
    #[n(8)]
    ctimes: Vec<i64>,
    #[n(9)]
    ctime_nanos: Vec<u32>,
    /// As the difference from the record before.
    #[n(10)]
    inodes: Vec<i64>,
    /// [files] Logical bytes.
    #[n(11)]
    sizes: Vec<u64>,
    /// [sparse files] Count of runs, then for each the gap before it and its length.
    #[n(12)]
    maps: Vec<u64>,
    /// [links] Targets, each closed by a NUL.
    #[cbor(n(13), with = "minicbor::bytes")]
    links: Vec<u8>,
    /// [devices]
    #[n(14)]
    devices: Vec<(u32, u32)>,
    /// Record, name, value.
    #[n(15)]
    xattrs: Vec<(u32, ByteVec, ByteVec)>,
    /// 0 no digest, 1 BLAKE3, 2 CRC-32C.
    #[cbor(n(16), with = "minicbor::bytes")]
    digest_kinds: Vec<u8>,
    #[cbor(n(17), with = "minicbor::bytes")]
    digests: Vec<u8>,
    /// Record, count of blocks.
    #[n(18)]
    block_counts: Vec<(u32, u32)>,
    #[cbor(n(19), with = "minicbor::bytes")]
    blocks: Vec<u8>,
    /// Frames in order of their first use: segment, offset as the difference from the frame before, stored, plain bytes.
    #[n(20)]
    frame_segments: Vec<u32>,
    #[n(21)]
    frame_offsets: Vec<i64>,
    #[n(22)]
    frame_stored: Vec<u32>,
    #[n(23)]
    frame_plain: Vec<u32>,
    /// [files] Count of extents.
    #[n(24)]
    extent_counts: Vec<u32>,
    /// Index of the frame, as the difference from the extent before.
    #[n(25)]
    extent_frames: Vec<i32>,
    #[n(26)]
    extent_inner: Vec<u32>,
    #[n(27)]
    extent_lens: Vec<u32>,
    /// Record, state (1 changed, 2 unreadable, 3 vanished, 4 noted), reason.
    #[n(28)]
    states: Vec<(u32, u8, String)>,
    /// Record, bytes of data that earlier pages described.
    #[n(29)]
    from: Vec<(u32, u64)>,
    /// Does the last record go on?
    #[n(30)]
    more: bool,
}

impl Page {
    /// The page as it is stored: one zstd frame.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut writer = Writer::default();
        writer.columns.segments.clone_from(&self.segments);
        for (index, record) in self.records.iter().enumerate() {
            writer.record(index as u32, record);
        }
        let plain = minicbor::to_vec(&writer.columns).map_err(|e| bug().because(e.to_string()))?;
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
        zstd_safe::compress(&mut out, &plain, 3).map_err(|code| bug().because(zstd_safe::get_error_name(code)))?;
        Ok(out)
    }

    /// Read a page; everything in it is checked, nothing in it is trusted.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::error::Kind::Corrupt) if it is not what [`Page::encode`] writes.
    pub fn decode(stored: &[u8]) -> Result<Self> {
        let size = zstd_safe::get_frame_content_size(stored).ok().flatten();
        let size = size.filter(|n| *n <= MAX_PAGE_BYTES as u64).ok_or_else(|| damaged("it is no page"))?;
        let mut plain = Vec::with_capacity(size as usize);
        zstd_safe::decompress(&mut plain, stored).map_err(|code| damaged(zstd_safe::get_error_name(code)))?;
        Self::from_columns(&plain)
    }

    /// Read the columns of a page, as they are before compression.
    ///
    /// # Errors
    /// As [`Page::decode`].
    pub fn from_columns(plain: &[u8]) -> Result<Self> {
        let columns: Columns = minicbor::decode(plain).map_err(|e| damaged(&e.to_string()))?;
        Reader::new(columns).ok_or_else(|| damaged("its columns do not fit"))?.page()
    }
}

fn bug() -> Error {
    Error::new(crate::error::Kind::Bug, "cannot encode a manifest page")
}

fn damaged(why: &str) -> Error {
    Error::corrupt("a manifest page is damaged").because(why.to_owned())
}

#[derive(Default)]
struct Writer {
    columns: Columns,
    owners: HashMap<Owner, u32>,
    frames: HashMap<FrameAt, u32>,
    last: Last,
}

/// The values differences are taken from.
#[derive(Default)]
struct Last {
    mtime: i64,
    ctime: i64,
    inode: u64,
    offset: u64,
    frame: u32,
}

impl Writer {
    fn record(&mut self, index: u32, record: &Record) {
        let (c, entry) = (&mut self.columns, &record.entry);
        c.paths.extend_from_slice(&entry.path);
        c.paths.push(0);
        c.modes.push(entry.mode);
        c.mtimes.push(entry.mtime.seconds.wrapping_sub(self.last.mtime));
        c.mtime_nanos.push(entry.mtime.nanos);
        c.ctimes.push(entry.ctime.seconds.wrapping_sub(self.last.ctime));
        c.ctime_nanos.push(entry.ctime.nanos);
        c.inodes.push(entry.inode.wrapping_sub(self.last.inode) as i64);
        c.xattrs.extend(entry.xattrs.iter().map(|(k, v)| (index, k.clone().into(), v.clone().into())));
        self.last = Last { mtime: entry.mtime.seconds, ctime: entry.ctime.seconds, inode: entry.inode, ..self.last };
        self.owner(&entry.owner);
        self.kind(&entry.kind);
        self.state(index, record);
        self.digest(index, record);
        if matches!(entry.kind, Kind::File { .. }) {
            self.columns.extent_counts.push(record.extents.len() as u32);
            record.extents.iter().for_each(|extent| self.extent(extent));
        }
    }

    fn owner(&mut self, owner: &Owner) {
        let next = self.owners.len() as u32;
        let index = *self.owners.entry(owner.clone()).or_insert(next);
        if index == next {
            let row = (owner.uid, owner.gid, owner.user.to_string(), owner.group.to_string());
            self.columns.owners.push(row);
        }
        self.columns.owner.push(index);
    }

    fn kind(&mut self, kind: &Kind) {
        let c = &mut self.columns;
        c.kinds.push(match kind {
            Kind::File { map: None, .. } => FILE,
            Kind::File { .. } => SPARSE,
            Kind::Directory => DIRECTORY,
            Kind::Symlink(_) => SYMLINK,
            Kind::HardLink(_) => HARD_LINK,
            Kind::Fifo => FIFO,
            Kind::CharDevice(_) => CHAR_DEVICE,
            Kind::BlockDevice(_) => BLOCK_DEVICE,
            Kind::Socket => SOCKET,
        });
        match kind {
            Kind::File { size, map } => {
                c.sizes.push(*size);
                map.iter().for_each(|map| encode_map(map, &mut c.maps));
            }
            Kind::Symlink(target) | Kind::HardLink(target) => {
                c.links.extend_from_slice(target);
                c.links.push(0);
            }
            Kind::CharDevice(device) | Kind::BlockDevice(device) => c.devices.push((device.major, device.minor)),
            Kind::Directory | Kind::Fifo | Kind::Socket => {}
        }
    }

    fn state(&mut self, index: u32, record: &Record) {
        let (state, reason) = match &record.state {
            State::Whole => (0, ""),
            State::Changed => (1, ""),
            State::Unreadable(reason) => (2, reason.as_str()),
            State::Vanished => (3, ""),
            State::Noted => (4, ""),
        };
        if state > 0 {
            self.columns.states.push((index, state, reason.to_owned()));
        }
        if record.from > 0 {
            self.columns.from.push((index, record.from));
        }
        self.columns.more = record.more;
    }

    fn digest(&mut self, index: u32, record: &Record) {
        let c = &mut self.columns;
        c.digest_kinds.push(match record.digest {
            None => 0,
            Some(Digest::Blake3(_)) => 1,
            Some(Digest::Crc32c(_)) => 2,
        });
        match record.digest {
            None => {}
            Some(Digest::Blake3(bytes)) => c.digests.extend_from_slice(&bytes),
            Some(Digest::Crc32c(value)) => c.digests.extend_from_slice(&value.to_le_bytes()),
        }
        if !record.blocks.is_empty() {
            c.block_counts.push((index, record.blocks.len() as u32));
            record.blocks.iter().for_each(|block| c.blocks.extend_from_slice(block));
        }
    }

    fn extent(&mut self, extent: &Extent) {
        let next = self.frames.len() as u32;
        let index = *self.frames.entry(extent.frame).or_insert(next);
        let c = &mut self.columns;
        if index == next {
            c.frame_segments.push(extent.frame.segment);
            c.frame_offsets.push(extent.frame.offset.wrapping_sub(self.last.offset) as i64);
            c.frame_stored.push(extent.frame.stored_len);
            c.frame_plain.push(extent.frame.plain_len);
            self.last.offset = extent.frame.offset;
        }
        c.extent_frames.push(index.wrapping_sub(self.last.frame) as i32);
        c.extent_inner.push(extent.inner);
        c.extent_lens.push(extent.len);
        self.last.frame = index;
    }
}

fn encode_map(map: &[Run], out: &mut Vec<u64>) {
    out.push(map.len() as u64);
    let mut end = 0;
    for run in map {
        out.extend([run.offset.wrapping_sub(end), run.len]);
        end = run.offset + run.len;
    }
}

/// Takes a page apart. Every method gives `None` where the columns do not hold what they should.
struct Reader {
    frames: Vec<FrameAt>,
    owners: Vec<Owner>,
    last: Last,
    at: At,
    c: Columns,
}

/// How far each column was read.
#[derive(Default)]
struct At {
    path: usize,
    size: usize,
    map: usize,
    link: usize,
    device: usize,
    xattr: usize,
    digest: usize,
    block_count: usize,
    block: usize,
    file: usize,
    extent: usize,
    state: usize,
    from: usize,
}

impl Reader {
    fn new(c: Columns) -> Option<Self> {
        let frames = decode_frames(&c)?;
        let owner = |(uid, gid, user, group): &(u32, u32, String, String)| Owner {
            uid: *uid,
            gid: *gid,
            user: Arc::from(user.as_str()),
            group: Arc::from(group.as_str()),
        };
        Some(Self { frames, owners: c.owners.iter().map(owner).collect(), last: Last::default(), at: At::default(), c })
    }

    fn page(mut self) -> Result<Page> {
        let count = self.c.kinds.len();
        let mut records: Vec<Record> = Vec::new();
        for index in 0..count {
            let record = self.record(index).ok_or_else(|| damaged("a column is too short or holds what cannot be"))?;
            if records.last().is_some_and(|before| entry::order(&before.entry.path, &record.entry.path).is_ge()) {
                return Err(damaged("its entries are out of order"));
            }
            records.push(record);
        }
        if let Some(last) = records.last_mut() {
            last.more = self.c.more;
        }
        Ok(Page { segments: self.c.segments, records })
    }

    fn record(&mut self, index: usize) -> Option<Record> {
        let path = text(&self.c.paths, &mut self.at.path)?;
        if !entry::is_safe(&path) {
            return None;
        }
        let mtime = time(&mut self.last.mtime, &self.c.mtimes, &self.c.mtime_nanos, index)?;
        let ctime = time(&mut self.last.ctime, &self.c.ctimes, &self.c.ctime_nanos, index)?;
        self.last.inode = self.last.inode.wrapping_add(*self.c.inodes.get(index)? as u64);
        let kind = self.kind(*self.c.kinds.get(index)?)?;
        let extents = if matches!(kind, Kind::File { .. }) { self.extents()? } else { Vec::new() };
        let entry = Entry {
            path,
            kind,
            mode: *self.c.modes.get(index)? & 0o7777,
            owner: self.owners.get(*self.c.owner.get(index)? as usize)?.clone(),
            mtime,
            ctime,
            inode: self.last.inode,
            xattrs: self.xattrs(index as u32),
        };
        Some(Record {
            entry,
            state: self.state(index as u32)?,
            digest: self.digest(index)?,
            blocks: self.blocks(index as u32)?,
            extents,
            from: self.from(index as u32),
            more: false,
        })
    }

    fn kind(&mut self, kind: u8) -> Option<Kind> {
        Some(match kind {
            FILE => Kind::File { size: next(&self.c.sizes, &mut self.at.size)?, map: None },
            SPARSE => {
                let size = next(&self.c.sizes, &mut self.at.size)?;
                Kind::File { size, map: Some(self.map(size)?) }
            }
            DIRECTORY => Kind::Directory,
            SYMLINK => Kind::Symlink(text(&self.c.links, &mut self.at.link)?),
            HARD_LINK => Kind::HardLink(text(&self.c.links, &mut self.at.link).filter(|path| entry::is_safe(path))?),
            FIFO => Kind::Fifo,
            CHAR_DEVICE => Kind::CharDevice(self.device()?),
            BLOCK_DEVICE => Kind::BlockDevice(self.device()?),
            SOCKET => Kind::Socket,
            _ => return None,
        })
    }

    fn map(&mut self, size: u64) -> Option<Arc<[Run]>> {
        let count = next(&self.c.maps, &mut self.at.map)?;
        let (mut runs, mut end) = (Vec::new(), 0u64);
        for _ in 0..count {
            let offset = end.checked_add(next(&self.c.maps, &mut self.at.map)?)?;
            let len = next(&self.c.maps, &mut self.at.map)?;
            end = offset.checked_add(len)?;
            runs.push(Run { offset, len });
        }
        (end <= size).then(|| runs.into())
    }

    fn device(&mut self) -> Option<Device> {
        let (major, minor) = next(&self.c.devices, &mut self.at.device)?;
        Some(Device { major, minor })
    }

    fn xattrs(&mut self, index: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mine = self.c.xattrs[self.at.xattr..].iter().take_while(|(record, ..)| *record == index);
        let mine: Vec<_> = mine.map(|(_, name, value)| (name.to_vec(), value.to_vec())).collect();
        self.at.xattr += mine.len();
        mine
    }

    fn digest(&mut self, index: usize) -> Option<Option<Digest>> {
        let mut take = |len: usize| {
            let bytes = self.c.digests.get(self.at.digest..self.at.digest.checked_add(len)?)?;
            self.at.digest += len;
            Some(bytes)
        };
        Some(match *self.c.digest_kinds.get(index)? {
            0 => None,
            1 => Some(Digest::Blake3(take(32)?.try_into().ok()?)),
            2 => Some(Digest::Crc32c(u32::from_le_bytes(take(4)?.try_into().ok()?))),
            _ => return None,
        })
    }

    fn blocks(&mut self, index: u32) -> Option<Vec<[u8; BLOCK_DIGEST_BYTES]>> {
        let count = match self.c.block_counts.get(self.at.block_count) {
            Some((record, count)) if *record == index => *count as usize,
            _ => return Some(Vec::new()),
        };
        self.at.block_count += 1;
        let end = self.at.block.checked_add(count.checked_mul(BLOCK_DIGEST_BYTES)?)?;
        let bytes = self.c.blocks.get(self.at.block..end)?;
        self.at.block = end;
        bytes.chunks_exact(BLOCK_DIGEST_BYTES).map(|block| block.try_into().ok()).collect()
    }

    fn extents(&mut self) -> Option<Vec<Extent>> {
        let count = next(&self.c.extent_counts, &mut self.at.file)?;
        (0..count).map(|_| self.extent()).collect()
    }

    fn extent(&mut self) -> Option<Extent> {
        let at = self.at.extent;
        self.last.frame = self.last.frame.wrapping_add(*self.c.extent_frames.get(at)? as u32);
        let frame = *self.frames.get(self.last.frame as usize)?;
        let (inner, len) = (*self.c.extent_inner.get(at)?, *self.c.extent_lens.get(at)?);
        self.at.extent += 1;
        (inner.checked_add(len)? <= frame.plain_len).then_some(Extent { frame, inner, len })
    }

    fn state(&mut self, index: u32) -> Option<State> {
        let (state, reason) = match self.c.states.get(self.at.state) {
            Some((record, state, reason)) if *record == index => (*state, reason),
            _ => return Some(State::Whole),
        };
        self.at.state += 1;
        Some(match state {
            1 => State::Changed,
            2 => State::Unreadable(reason.clone()),
            3 => State::Vanished,
            4 => State::Noted,
            _ => return None,
        })
    }

    fn from(&mut self, index: u32) -> u64 {
        match self.c.from.get(self.at.from) {
            Some((record, from)) if *record == index => {
                self.at.from += 1;
                *from
            }
            _ => 0,
        }
    }
}

fn decode_frames(c: &Columns) -> Option<Vec<FrameAt>> {
    let mut offset = 0u64;
    let mut frame = |i: usize| {
        offset = offset.wrapping_add(*c.frame_offsets.get(i)? as u64);
        let segment = *c.frame_segments.get(i)?;
        ((segment as usize) < c.segments.len()).then_some(())?;
        Some(FrameAt { segment, offset, stored_len: *c.frame_stored.get(i)?, plain_len: *c.frame_plain.get(i)? })
    };
    (0..c.frame_segments.len()).map(&mut frame).collect()
}

fn time(last: &mut i64, seconds: &[i64], nanos: &[u32], index: usize) -> Option<Time> {
    *last = last.wrapping_add(*seconds.get(index)?);
    let nanos = *nanos.get(index)?;
    (nanos < 1_000_000_000).then_some(Time { seconds: *last, nanos })
}

fn next<T: Copy>(column: &[T], at: &mut usize) -> Option<T> {
    let value = *column.get(*at)?;
    *at += 1;
    Some(value)
}

/// The bytes up to the next NUL, which is passed over.
fn text(column: &[u8], at: &mut usize) -> Option<Vec<u8>> {
    let rest = column.get(*at..)?;
    let len = rest.iter().position(|c| *c == 0)?;
    *at += len + 1;
    Some(rest[..len].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, option, prelude::*};

    fn kind() -> impl Strategy<Value = Kind> {
        let run = (1u64..1 << 40, 1u64..1 << 40);
        let map = vec(run, 0..4).prop_map(|gaps| {
            let mut end = 0;
            let run = |(gap, len)| {
                let offset = end + gap;
                end = offset + len;
                Run { offset, len }
            };
            gaps.into_iter().map(run).collect::<Vec<_>>()
        });
        let device = (any::<u32>(), any::<u32>()).prop_map(|(major, minor)| Device { major, minor });
        prop_oneof![
            any::<u64>().prop_map(|size| Kind::File { size, map: None }),
            map.prop_map(|map| Kind::File { size: 1 << 60, map: Some(map.into()) }),
            Just(Kind::Directory),
            vec(1u8.., 1..20).prop_map(Kind::Symlink),
            "[a-z]{1,9}".prop_map(|name| Kind::HardLink(name.into())),
            Just(Kind::Fifo),
            device.clone().prop_map(Kind::CharDevice),
            device.prop_map(Kind::BlockDevice),
            Just(Kind::Socket),
        ]
    }

    fn state() -> impl Strategy<Value = State> {
        let reason = "[ -~]{0,12}".prop_map(State::Unreadable);
        prop_oneof![5 => Just(State::Whole), 1 => Just(State::Changed), 1 => reason, 1 => Just(State::Vanished)]
    }

    fn time() -> impl Strategy<Value = Time> {
        (any::<i64>(), 0u32..1_000_000_000).prop_map(|(seconds, nanos)| Time { seconds, nanos })
    }

    fn extent() -> impl Strategy<Value = Extent> {
        (0u32..2, any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
            |(segment, offset, stored_len, a, b)| {
                let frame = FrameAt { segment, offset, stored_len, plain_len: a.max(b) };
                Extent { frame, inner: a.min(b), len: a.max(b) - a.min(b) }
            },
        )
    }

    fn entry() -> impl Strategy<Value = Entry> {
        let owner = (any::<u32>(), any::<u32>(), "[a-z]{0,4}", "[a-z]{0,4}")
            .prop_map(|(uid, gid, user, group)| Owner { uid, gid, user: user.into(), group: group.into() });
        let xattrs = vec((vec(any::<u8>(), 1..9), vec(any::<u8>(), 0..30)), 0..3);
        (kind(), 0u32..0o10000, owner, time(), time(), any::<u64>(), xattrs).prop_map(
            |(kind, mode, owner, mtime, ctime, inode, xattrs)| Entry {
                path: Vec::new(),
                kind,
                mode,
                owner,
                mtime,
                ctime,
                inode,
                xattrs,
            },
        )
    }

    fn record() -> impl Strategy<Value = Record> {
        let digest = prop_oneof![any::<[u8; 32]>().prop_map(Digest::Blake3), any::<u32>().prop_map(Digest::Crc32c)];
        let blocks = vec(any::<[u8; BLOCK_DIGEST_BYTES]>(), 0..4);
        let from = prop_oneof![4 => Just(0u64), 1 => any::<u64>()];
        (entry(), state(), option::of(digest), blocks, vec(extent(), 0..4), from).prop_map(
            |(entry, state, digest, blocks, extents, from)| {
                let extents = if matches!(entry.kind, Kind::File { .. }) { extents } else { Vec::new() };
                Record { entry, state, digest, blocks, extents, from, more: false }
            },
        )
    }

    fn page() -> impl Strategy<Value = Page> {
        (vec(record(), 0..20), any::<bool>()).prop_map(|(mut records, more)| {
            for (i, record) in records.iter_mut().enumerate() {
                record.entry.path = format!("dir/{i:04}-\u{e9}").into_bytes();
            }
            records.iter_mut().last().into_iter().for_each(|last| last.more = more);
            let segment = |number| SegmentId { backup: String::new(), stream: 1, number };
            Page { segments: vec![segment(1), segment(2)], records }
        })
    }

    proptest! {
        #[test]
        fn a_page_reads_back_as_it_was_written(page in page()) {
            prop_assert_eq!(Page::decode(&page.encode().unwrap()).unwrap(), page);
        }

        #[test]
        fn a_damaged_page_is_an_error_and_never_a_panic(page in page(), flips in vec((any::<u16>(), any::<u8>()), 1..6)) {
            let mut columns = zstd_safe_plain(&page.encode().unwrap());
            for (at, value) in flips {
                let at = at as usize % columns.len();
                columns[at] = value;
            }
            let mut stored = Vec::with_capacity(zstd_safe::compress_bound(columns.len()));
            zstd_safe::compress(&mut stored, &columns, 1).unwrap();
            let _ = Page::decode(&stored);
        }

        #[test]
        fn any_bytes_are_an_error_and_never_a_panic(bytes in vec(any::<u8>(), 0..200)) {
            prop_assert!(Page::decode(&bytes).is_err());
        }
    }

    fn zstd_safe_plain(stored: &[u8]) -> Vec<u8> {
        let mut plain = Vec::with_capacity(1 << 20);
        zstd_safe::decompress(&mut plain, stored).unwrap();
        plain
    }
}
