//! Decodes the records of a page from its columns. Every value is checked before it is used.

use crate::{
    digest::Digest,
    entry::{self, ByteRun, Device, Entry, EntryKind, Owner, SparseMap, Time},
    page::*,
};
use std::sync::Arc;

/// Decodes a page. Every method returns `None` if a column does not hold valid values.
pub(super) struct PageReader {
    frames: Vec<FrameAt>,
    owners: Vec<Owner>,
    last: PreviousValues,
    at: At,
    c: Columns,
}

/// The read position in each column.
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
    short_count: usize,
    short: usize,
    crc_count: usize,
    crc: usize,
    chunk_count: usize,
    chunk: usize,
    file: usize,
    extent: usize,
    state: usize,
    from: usize,
}

impl PageReader {
    /// Creates a reader at the first record; `None` if a frame refers to a segment that is not in
    /// the page.
    pub(super) fn new(c: Columns) -> Option<Self> {
        let frames = decode_frames(&c)?;
        Some(Self {
            frames,
            owners: c
                .owners
                .iter()
                .map(|(uid, gid, user, group)| Owner {
                    uid: *uid,
                    gid: *gid,
                    user: Arc::from(user.as_str()),
                    group: Arc::from(group.as_str()),
                })
                .collect(),
            last: PreviousValues::default(),
            at: At::default(),
            c,
        })
    }

    /// Decodes all records.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::error::ErrorKind::Corrupt) if a column is too short or has an
    /// invalid value, or if the records are out of order.
    pub(super) fn page(mut self) -> Result<ManifestPage> {
        let count = self.c.kinds.len();
        let mut records: Vec<Record> = Vec::new();
        for index in 0..count {
            let record = self
                .record(index)
                .ok_or_else(|| damaged("a column is too short or has an invalid value"))?;
            if records.last().is_some_and(|previous| {
                entry::order(&previous.entry.path, &record.entry.path).is_ge()
            }) {
                return Err(damaged("its entries are out of order"));
            }
            records.push(record);
        }
        if let Some(last) = records.last_mut() {
            last.more = self.c.more;
        }
        Ok(ManifestPage {
            segments: self.c.segments,
            records,
            origin: None,
        })
    }

    fn record(&mut self, index: usize) -> Option<Record> {
        let entry = self.entry(index)?;
        let extents = if entry.is_file() {
            self.extents()?
        } else {
            Vec::new()
        };
        let state = match self.state(index as u32)? {
            EntryState::Whole if entry.kind == EntryKind::Socket => return None,
            state => state,
        };
        Some(Record {
            entry,
            state,
            digest: self.digest(index)?,
            blocks: self.blocks(index as u32)?,
            crcs: self.crcs(index as u32)?,
            chunks: self.chunks(index as u32)?,
            extents,
            from: self.from(index as u32),
            more: false,
        })
    }

    fn entry(&mut self, index: usize) -> Option<Entry> {
        let path = text(&self.c.paths, &mut self.at.path).filter(|path| entry::is_safe(path))?;
        let (mtime, ctime) = self.times(index)?;
        Some(Entry {
            path,
            kind: self.kind(*self.c.kinds.get(index)?)?,
            mode: *self.c.modes.get(index)? & 0o7777,
            owner: self.owner(index)?,
            mtime,
            ctime,
            inode: self.inode(index)?,
            xattrs: self.xattrs(index as u32),
        })
    }

    /// Returns the times of the last change of content and inode.
    fn times(&mut self, index: usize) -> Option<(Time, Time)> {
        let c = &self.c;
        let mtime = time(&mut self.last.mtime, &c.mtimes, &c.mtime_nanos, index)?;
        let ctime = time(&mut self.last.ctime, &c.ctimes, &c.ctime_nanos, index)?;
        Some((mtime, ctime))
    }

    fn inode(&mut self, index: usize) -> Option<u64> {
        let difference = *self.c.inodes.get(index)? as u64;
        self.last.inode = self.last.inode.wrapping_add(difference);
        Some(self.last.inode)
    }

    fn owner(&self, index: usize) -> Option<Owner> {
        let number = *self.c.owner.get(index)? as usize;
        self.owners.get(number).cloned()
    }

    fn kind(&mut self, kind: u8) -> Option<EntryKind> {
        Some(match kind {
            FILE => EntryKind::File {
                size: next(&self.c.sizes, &mut self.at.size)?,
                map: None,
            },
            SPARSE => {
                let size = next(&self.c.sizes, &mut self.at.size)?;
                let (map, end) = self.map()?;
                // A map that goes beyond the file would write outside of it in a restore.
                if end > size {
                    return None;
                }
                EntryKind::File {
                    size,
                    map: Some(map),
                }
            }
            DIRECTORY => EntryKind::Directory,
            SYMLINK => EntryKind::Symlink(text(&self.c.links, &mut self.at.link)?),
            HARD_LINK => EntryKind::HardLink(
                // The target of a hard link is opened below the target of a restore: it must not
                // leave it.
                text(&self.c.links, &mut self.at.link).filter(|path| entry::is_safe(path))?,
            ),
            FIFO => EntryKind::Fifo,
            CHAR_DEVICE => EntryKind::CharDevice(self.device()?),
            BLOCK_DEVICE => EntryKind::BlockDevice(self.device()?),
            SOCKET => EntryKind::Socket,
            _ => return None,
        })
    }

    /// Returns the runs, and the end of the last run.
    fn map(&mut self) -> Option<(SparseMap, u64)> {
        let count = next(&self.c.maps, &mut self.at.map)?;
        let mut runs = Vec::new();
        let mut end = 0u64;
        for _ in 0..count {
            let offset = end.checked_add(next(&self.c.maps, &mut self.at.map)?)?;
            let len = next(&self.c.maps, &mut self.at.map)?;
            end = offset.checked_add(len)?;
            runs.push(ByteRun { offset, len });
        }
        Some((runs.into(), end))
    }

    fn device(&mut self) -> Option<Device> {
        let (major, minor) = next(&self.c.devices, &mut self.at.device)?;
        Some(Device { major, minor })
    }

    fn xattrs(&mut self, index: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mine = self.c.xattrs[self.at.xattr..]
            .iter()
            .take_while(|(record, ..)| *record == index);
        let mine: Vec<_> = mine
            .map(|(_, name, value)| (name.to_vec(), value.to_vec()))
            .collect();
        self.at.xattr += mine.len();
        mine
    }

    fn digest(&mut self, index: usize) -> Option<Option<Digest>> {
        let mut take = |len: usize| {
            let bytes = self
                .c
                .digests
                .get(self.at.digest..self.at.digest.checked_add(len)?)?;
            self.at.digest += len;
            Some(bytes)
        };
        Some(match *self.c.digest_kinds.get(index)? {
            0 => None,
            1 => Some(Digest::Blake3(take(32)?.try_into().ok()?)),
            2 => Some(Digest::Crc32c(u32::from_le_bytes(
                take(4)?.try_into().ok()?,
            ))),
            _ => return None,
        })
    }

    fn blocks(&mut self, index: u32) -> Option<Vec<[u8; BLOCK_DIGEST_BYTES]>> {
        let long = Digests {
            counts: &self.c.block_counts,
            bytes: &self.c.blocks,
            width: BLOCK_DIGEST_BYTES,
        };
        let blocks = long.next(index, &mut self.at.block_count, &mut self.at.block)?;
        if !blocks.is_empty() {
            return Some(blocks);
        }
        let short = Digests {
            counts: &self.c.short_counts,
            bytes: &self.c.short_blocks,
            width: SHORT_DIGEST_BYTES,
        };
        short.next(index, &mut self.at.short_count, &mut self.at.short)
    }

    fn crcs(&mut self, index: u32) -> Option<Vec<u32>> {
        let count = count_of(index, &self.c.crc_counts, &mut self.at.crc_count);
        let crcs = self
            .c
            .crcs
            .get(self.at.crc..self.at.crc.checked_add(count)?)?;
        self.at.crc += count;
        Some(crcs.to_vec())
    }

    fn chunks(&mut self, index: u32) -> Option<Vec<ContentChunk>> {
        let count = count_of(index, &self.c.chunk_counts, &mut self.at.chunk_count);
        let first = self.at.chunk;
        let end = self.at.chunk.checked_add(count)?;
        let lens = self.c.chunk_lens.get(first..end)?;
        let digests = self
            .c
            .chunks
            .get(first * BLOCK_DIGEST_BYTES..end.checked_mul(BLOCK_DIGEST_BYTES)?)?;
        self.at.chunk = end;
        let (digests, _) = digests.as_chunks::<BLOCK_DIGEST_BYTES>();
        Some(
            lens.iter()
                .zip(digests)
                .map(|(len, digest)| ContentChunk {
                    len: *len,
                    digest: *digest,
                })
                .collect(),
        )
    }

    fn extents(&mut self) -> Option<Vec<Extent>> {
        let count = next(&self.c.extent_counts, &mut self.at.file)?;
        (0..count).map(|_| self.extent()).collect()
    }

    fn extent(&mut self) -> Option<Extent> {
        let index = self.at.extent;
        self.last.frame = self
            .last
            .frame
            .wrapping_add(*self.c.extent_frames.get(index)? as u32);
        let frame = *self.frames.get(self.last.frame as usize)?;
        let inner = *self.c.extent_inner.get(index)?;
        let len = *self.c.extent_lens.get(index)?;
        self.at.extent += 1;
        (inner.checked_add(len)? <= frame.plain_len).then_some(Extent { frame, inner, len })
    }

    fn state(&mut self, index: u32) -> Option<EntryState> {
        let (state, reason) = match self.c.states.get(self.at.state) {
            Some((record, state, reason)) if *record == index => (*state, reason),
            _ => return Some(EntryState::Whole),
        };
        self.at.state += 1;
        Some(match state {
            1 => EntryState::Changed,
            2 => EntryState::Unreadable(reason.clone()),
            3 => EntryState::Vanished,
            4 => EntryState::Noted,
            5 => EntryState::BadPages(
                reason
                    .split(' ')
                    .map(str::parse)
                    .collect::<Result<_, _>>()
                    .ok()?,
            ),
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

/// Block digests of the records that have some.
struct Digests<'a> {
    counts: &'a [(u32, u32)],
    bytes: &'a [u8],
    width: usize,
}

impl Digests<'_> {
    /// Returns the digests of the record at `index`.
    fn next(
        &self,
        index: u32,
        counted: &mut usize,
        position: &mut usize,
    ) -> Option<Vec<[u8; BLOCK_DIGEST_BYTES]>> {
        let count = count_of(index, self.counts, counted);
        let end = position.checked_add(count.checked_mul(self.width)?)?;
        let bytes = self.bytes.get(*position..end)?;
        *position = end;
        Some(
            bytes
                .chunks_exact(self.width)
                .map(|digest| std::array::from_fn(|i| digest.get(i).copied().unwrap_or(0)))
                .collect(),
        )
    }
}

/// Returns the number of values that the record at `index` has in a column with values for some
/// records only: 0, unless it is the next record in that column.
fn count_of(index: u32, counts: &[(u32, u32)], position: &mut usize) -> usize {
    let Some((_, count)) = counts.get(*position).filter(|(record, _)| *record == index) else {
        return 0;
    };
    *position += 1;
    *count as usize
}

fn decode_frames(c: &Columns) -> Option<Vec<FrameAt>> {
    let mut offset = 0u64;
    let mut frame = |i: usize| {
        offset = offset.wrapping_add(*c.frame_offsets.get(i)? as u64);
        let segment = *c.frame_segments.get(i)?;
        ((segment as usize) < c.segments.len()).then_some(())?;
        let stored_len = *c.frame_stored.get(i)?;
        let plain_len = *c.frame_plain.get(i)?;
        offset.checked_add(stored_len.into())?; // the end of the frame must not overflow
        Some(FrameAt {
            segment,
            offset,
            stored_len,
            plain_len,
        })
    };
    (0..c.frame_segments.len()).map(&mut frame).collect()
}

fn time(last: &mut i64, seconds: &[i64], nanos: &[u32], index: usize) -> Option<Time> {
    *last = last.wrapping_add(*seconds.get(index)?);
    let nanos = *nanos.get(index)?;
    (nanos < 1_000_000_000).then_some(Time {
        seconds: *last,
        nanos,
    })
}

fn next<T: Copy>(column: &[T], position: &mut usize) -> Option<T> {
    let value = *column.get(*position)?;
    *position += 1;
    Some(value)
}

/// Returns the bytes up to the next NUL and moves behind the NUL.
fn text(column: &[u8], position: &mut usize) -> Option<Vec<u8>> {
    let rest = column.get(*position..)?;
    let len = rest.iter().position(|c| *c == 0)?;
    *position += len + 1;
    Some(rest[..len].to_vec())
}
