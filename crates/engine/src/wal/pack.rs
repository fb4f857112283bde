//! A run of segments, made from the files of a server.

use super::server_files::{FileStamp, WalDirectory};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    wal::{
        MAX_MEMBERS, MAX_RUN_BYTES, PackedSegment, SegmentName, SegmentPacker, WalDigester, WalRun,
        WalRunIndex, run_object,
    },
};
use fullbore_platform::{debug, host_name, queue::run_each};
use jiff::Timestamp;
use std::collections::BTreeMap;

/// Segments that were compressed, which follow each other in one log.
#[derive(Debug)]
pub(super) struct PackedRun {
    /// The system identifier that the segments have in their headers.
    pub(super) system: u64,
    segment_bytes: u64,
    segments: Vec<PackedSegment>,
    pub(super) stamps: Vec<(SegmentName, FileStamp)>,
    is_partial: bool,
}

/// One segment on its way into a run.
struct Packed {
    segment: PackedSegment,
    stamp: FileStamp,
    system: u64,
    segment_bytes: u64,
}

/// How a run is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packing {
    /// The level of zstd.
    pub(super) level: i32,
    /// Segments that are compressed at the same time.
    pub(super) workers: usize,
}

impl Packing {
    fn pack(&self, wal: &WalDirectory, name: SegmentName, is_partial: bool) -> Result<Packed> {
        let opened = wal.open_segment(name, is_partial)?;
        let facts = opened.facts;
        let mut packer = SegmentPacker::new(name, facts.segment_bytes, is_partial, self.level)?;
        opened.read(&mut |piece| packer.add(piece))?;
        Ok(Packed {
            segment: packer.finish()?,
            stamp: opened.stamp,
            system: facts.system,
            segment_bytes: facts.segment_bytes,
        })
    }

    /// Packs the segment `first` and, up to the limits of a run, those behind it that `may_follow` permits. A segment
    /// behind it that cannot be packed ends the run.
    ///
    /// # Errors
    /// Those of the first segment.
    pub(super) fn pack_run(
        &self,
        wal: &WalDirectory,
        first: SegmentName,
        is_partial: bool,
        may_follow: &dyn Fn(SegmentName) -> bool,
    ) -> Result<PackedRun> {
        let packed = self.pack(wal, first, is_partial)?;
        let segment_bytes = packed.segment_bytes;
        let mut run = PackedRun {
            system: packed.system,
            segment_bytes,
            segments: Vec::new(),
            stamps: Vec::new(),
            is_partial,
        };
        run.add(packed);
        let mut is_open = !is_partial;
        while is_open && run.has_room() {
            let names = run.following(self.workers, may_follow);
            // Fewer names than workers: no other segment follows.
            is_open = names.len() == self.workers;
            for (name, packed) in names
                .iter()
                .zip(run_each(&names, |name| self.pack(wal, *name, false)))
            {
                match packed {
                    Ok(packed)
                        if packed.system == run.system && packed.segment_bytes == segment_bytes =>
                    {
                        run.add(packed);
                    }
                    packed => {
                        debug(|| {
                            format!(
                                "the run ends before {name}: {:?}",
                                packed.err().map(|error| error.line())
                            )
                        });
                        return Ok(run);
                    }
                }
            }
        }
        Ok(run)
    }
}

impl PackedRun {
    fn add(&mut self, packed: Packed) {
        self.stamps.push((packed.segment.name, packed.stamp));
        self.segments.push(packed.segment);
    }

    fn has_room(&self) -> bool {
        let stored: usize = self
            .segments
            .iter()
            .map(|segment| segment.frame.len())
            .sum();
        stored < MAX_RUN_BYTES && self.segments.len() < MAX_MEMBERS
    }

    /// Returns up to `most` segments that follow the run in its log.
    fn following(&self, most: usize, may_follow: &dyn Fn(SegmentName) -> bool) -> Vec<SegmentName> {
        let most = most.min(MAX_MEMBERS - self.segments.len());
        let Some(last) = self.segments.last().map(|segment| segment.name) else {
            return Vec::new();
        };
        let mut names = Vec::new();
        let mut next = last.next(self.segment_bytes);
        while names.len() < most && next.log == last.log && may_follow(next) {
            names.push(next);
            next = next.next(self.segment_bytes);
        }
        names
    }

    /// Returns the digests of the segments.
    pub(super) fn digests(&self) -> BTreeMap<SegmentName, [u8; 32]> {
        let pairs = self
            .segments
            .iter()
            .map(|segment| (segment.name, segment.digest));
        pairs.collect()
    }

    /// Returns the object, and the run that its key describes, for a system of this name.
    pub(super) fn object(&self, system: &str, digester: &WalDigester) -> Result<(WalRun, Vec<u8>)> {
        let index = WalRunIndex {
            system: system.to_owned(),
            segment_bytes: self.segment_bytes,
            host: host_name(),
            stored: Timestamp::now().as_second(),
            ..WalRunIndex::default()
        };
        run_object(index, &self.segments, self.is_partial, digester)
    }

    /// Refuses segments of another cluster than that of the directory.
    pub(super) fn check_system(&self, of_directory: Option<u64>) -> Result<()> {
        let first = self
            .segments
            .first()
            .map(|segment| segment.name.to_string())
            .unwrap_or_default();
        match of_directory {
            Some(system) if system != self.system => {
                let message = format!("cannot archive {first}: it is of another cluster");
                let why = format!(
                    "its system identifier is {}, and that of the data directory is {system}",
                    self.system
                );
                Err(Error::new(ErrorKind::Corrupt, message).because(why))
            }
            _ => Ok(()),
        }
    }
}
