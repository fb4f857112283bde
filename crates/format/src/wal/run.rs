//! A run of consecutive WAL segments in one object.
//!
//! ```text
//! [member]…   one zstd frame each: tar header, content, padding
//! [end]       one zstd frame: the two zero blocks that end a tar
//! [index]     a service frame
//! [seek table]
//! ```
//! `zstd -dc RUN | tar -x` unpacks a run, and the bytes of one frame alone unpack one segment. The index repeats
//! nothing that a reader trusts: offsets come from the seek table, digests are checked against the key.

use super::{
    key::{WalDigester, WalRun},
    name::{check_segment_bytes, check_system_name},
    segment_frame::{PackedSegment, WalMember, compress},
};
use crate::{
    error::{Error, ErrorKind, Result},
    segment::{SEEK_FOOTER_BYTES, SeekTable, Service, parse_seek_table, seek_table_len},
};
use minicbor::{Decode, Encode};

/// Segments of a run at most.
pub const MAX_MEMBERS: usize = 64;
/// A run ends when so many bytes of it are stored.
pub const MAX_RUN_BYTES: usize = 32 << 20;
/// Bytes at the end of a run that hold index and seek table.
pub const TAIL_BYTES: u64 = 16 << 10;
/// Version of the index.
const FORMAT: u32 = 1;
/// Bytes that a tar ends with.
const END: [u8; 1024] = [0; 1024];

/// What a run holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct WalRunIndex {
    /// Version of the index.
    #[n(0)]
    pub format: u32,
    /// The system.
    #[n(1)]
    pub system: String,
    /// Bytes of a segment.
    #[n(2)]
    pub segment_bytes: u64,
    /// The host that stored it.
    #[n(3)]
    pub host: String,
    /// When, in seconds since 1970 by the clock of that host.
    #[n(4)]
    pub stored: i64,
    /// The segments in order.
    #[n(5)]
    pub members: Vec<WalMember>,
}

/// Returns the object that holds these segments, and the run that its key describes.
///
/// `index` has system, size of a segment, host and time; the segments must follow each other in one log.
///
/// # Errors
/// [`ErrorKind::Bug`] if zstd fails.
pub fn run_object(
    mut index: WalRunIndex,
    packed: &[PackedSegment],
    is_partial: bool,
    digester: &WalDigester,
) -> Result<(WalRun, Vec<u8>)> {
    // The end of the tar: `tar` reads the decompressed object without a complaint.
    let end = compress(&END, 1)?;
    let bytes: usize = packed.iter().map(|segment| segment.frame.len()).sum();
    let mut object = Vec::with_capacity(bytes + TAIL_BYTES as usize);
    let mut table = SeekTable::default();
    index.members.clear();
    for segment in packed {
        index.members.push(WalMember {
            offset: object.len() as u64,
            stored_bytes: segment.frame.len() as u64,
            digest: segment.digest,
        });
        table.push(segment.frame.len(), segment.plain_bytes);
        object.extend_from_slice(&segment.frame);
    }
    table.push(end.len(), END.len());
    object.extend_from_slice(&end);
    index.format = FORMAT;
    let payload = minicbor::to_vec(&index).unwrap_or_default();
    let frame = Service::WalIndex.frame(&payload);
    table.push(frame.len(), 0);
    object.extend_from_slice(&frame);
    object.extend_from_slice(&table.frame());
    let names = packed.iter().map(|segment| (segment.name, &segment.digest));
    let first = packed.first().map(|segment| segment.name);
    let run = WalRun {
        digest: digester.of_run(&index.system, names, is_partial),
        system: index.system,
        first: first.ok_or_else(|| Error::new(ErrorKind::Bug, "a run has no segment"))?,
        count: packed.len() as u32,
        is_partial,
    };
    Ok((run, object))
}

impl WalRunIndex {
    /// Reads the index from the last bytes of the object `run`, at least [`TAIL_BYTES`] of them or all `object_bytes`. Messages
    /// call the object `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if they are damaged, or of another run.
    pub fn read(
        tail: &[u8],
        object_bytes: u64,
        run: &WalRun,
        digester: &WalDigester,
        name: &str,
    ) -> Result<Self> {
        let index = Self::parse(tail, object_bytes)
            .ok_or_else(|| damaged_run(name, "its index cannot be read"))?;
        index
            .check(run, digester)
            .map_err(|value| damaged_run(name, value))?;
        Ok(index)
    }

    fn parse(tail: &[u8], object_bytes: u64) -> Option<Self> {
        let footer = tail.get(tail.len().checked_sub(SEEK_FOOTER_BYTES)?..)?;
        let table_bytes = usize::try_from(seek_table_len(footer, tail.len() as u64)?).ok()?;
        let table_at = tail.len().checked_sub(table_bytes)?;
        let frames = parse_seek_table(&tail[table_at..])?;
        let (index, frames) = frames.split_last()?;
        let index_at = table_at.checked_sub(index.0 as usize)?;
        let (service, payload) = Service::payload(&tail[index_at..table_at])?;
        // One frame more than members: the end of the tar.
        if service != Service::WalIndex || frames.len() > MAX_MEMBERS + 1 {
            return None;
        }
        let mut index: Self = minicbor::decode(payload).ok()?;
        let (_, members) = frames.split_last()?;
        let mut offset = 0;
        if members.len() != index.members.len() {
            return None;
        }
        for (member, (stored, _)) in index.members.iter_mut().zip(members) {
            member.offset = offset;
            member.stored_bytes = u64::from(*stored);
            offset += u64::from(*stored);
        }
        let end = offset + frames.last().map_or(0, |(stored, _)| u64::from(*stored));
        // The positions come from the seek table, and must fill the object to its last byte.
        let is_whole = end + (tail.len() - index_at) as u64 == object_bytes;
        is_whole.then_some(index)
    }

    fn check(&self, run: &WalRun, digester: &WalDigester) -> Result<(), &'static str> {
        if self.format != FORMAT {
            return Err("it is of another version of the format");
        }
        if check_segment_bytes(self.segment_bytes).is_none() || !check_system_name(&self.system) {
            return Err("it has no valid size of a segment, or no valid system");
        }
        if self.system != run.system || self.members.len() != run.count as usize {
            return Err("it is of another run");
        }
        let digests = self.members.iter().map(|member| &member.digest);
        let names = run.segments().zip(digests);
        match digester.of_run(&self.system, names, run.is_partial) == run.digest {
            true => Ok(()),
            false => Err("its key has the digest of other content"),
        }
    }
}

fn damaged_run(name: &str, reason: &'static str) -> Error {
    Error::corrupt(format!("{name} is damaged")).because(reason)
}
