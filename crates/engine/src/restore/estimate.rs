//! Estimates the cost of a restore: bytes, frames, segments, and time at the speeds of this
//! machine.
//!
//! Reads the pages as the restore does, so the count of frames is exact. Then it fetches and
//! decodes a sample of the frames, and writes an unnamed file at the target. Leaves no file behind.

use super::{
    cluster::{self, choose_backup},
    request::Restore,
    rules::{EntryFate, EntryRules},
};
use crate::report::damage::missing_end;
use fullbore_format::{
    digest::{Algorithm, piece},
    entry::{EntryKind, EntryPath},
    error::{Error, ErrorKind, Result},
    page::{FrameAt, PageItem, SegmentId},
    root::Root,
    sizes,
};
use fullbore_pipeline::workers;
use fullbore_platform::{
    metrics::{
        cpu::ThreadClock,
        meter::{Meter, lap},
    },
    write::{anonymous_file, fsync, pwrite_all},
};
use fullbore_repository::archive::unnamed_losses;
use fullbore_repository::archive::{
    Archive, Selection,
    frame_reader::FrameReader,
    missing::MissingParts,
    schedule::{self, JobPlanner},
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

/// Frames of a measured run, read in order as a restore does.
const RUN: usize = 8;
/// Maximum number of measured runs.
const RUNS: usize = 16;
/// Stored bytes to read for the measurement, approximately.
const READ_BYTES: u64 = 64 << 20;
/// Bytes to write for the measurement, at most.
const WRITE_BYTES: u64 = 64 << 20;
/// Seconds after which the measurement ends.
const SECONDS: f64 = 0.5;

type Frame = (SegmentId, FrameAt);

/// The options of an estimate.
#[derive(Debug, Clone)]
pub struct EstimateRequest {
    /// The restore to estimate; its target is ignored.
    pub restore: Restore,
    /// Directory for measuring the write rate, if wanted.
    pub target: Option<PathBuf>,
}

/// The estimated cost of a restore.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RestoreEstimate {
    /// ID of the backup.
    pub id: String,
    /// Number of entries to restore.
    pub entries: u64,
    /// Number of regular files among them.
    pub files: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Number of frames to fetch.
    pub frames: u64,
    /// Stored bytes of these frames.
    pub fetched_bytes: u64,
    /// Plain bytes of these frames.
    pub decoded_bytes: u64,
    /// Stored bytes of the wanted pieces: their share of the plain bytes of each frame, applied to
    /// its stored bytes.
    pub wanted_bytes: u64,
    /// Number of segments to open.
    pub segments: u64,
    /// Number of backups that these segments belong to.
    pub backups: u64,
    /// Numbers of the volumes to bring, ascending, by the backup that they belong to; of a backup in volumes alone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<String, BTreeSet<u32>>,
    /// Names of the tapes to bring, in order; of a backup on tapes alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tapes: Vec<String>,
    /// Number of worker threads.
    pub workers: usize,
    /// Stored bytes fetched a second by all threads; 0 if there were none.
    pub read_rate: f64,
    /// Plain bytes decoded and digested a second by all threads.
    pub decode_rate: f64,
    /// Bytes written and synced a second at the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_rate: Option<f64>,
    /// Seconds if reading, decoding and writing overlap fully.
    pub least_seconds: f64,
    /// Seconds if reading, decoding and writing do not overlap.
    pub most_seconds: f64,
    /// The slowest step: `read`, `decode` or `write`.
    pub limit: &'static str,
    /// Parts that the backup does not hold as they were, one line each.
    pub notes: Vec<String>,
}

impl RestoreEstimate {
    /// Returns the bytes fetched for each stored byte that is wanted.
    pub fn fetch_amplification(&self) -> f64 {
        self.fetched_bytes as f64 / (self.wanted_bytes as f64).max(1.0)
    }

    /// Returns the bytes decoded for each byte of content.
    pub fn decode_amplification(&self) -> f64 {
        self.decoded_bytes as f64 / (self.bytes as f64).max(1.0)
    }

    /// Returns the seconds of reading, decoding and writing, each alone.
    pub fn seconds(&self) -> [(&'static str, f64); 3] {
        [
            ("read", seconds_at(self.fetched_bytes, self.read_rate)),
            ("decode", seconds_at(self.decoded_bytes, self.decode_rate)),
            (
                "write",
                self.write_rate
                    .map_or(0.0, |rate| seconds_at(self.bytes, rate)),
            ),
        ]
    }

    /// Returns whether the speeds of reading and decoding are known, where they matter.
    pub fn is_measured(&self) -> bool {
        self.fetched_bytes == 0 || self.read_rate > 0.0
    }

    fn compute_seconds(&mut self) {
        let seconds = self.seconds();
        let longest = seconds.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        (self.limit, self.least_seconds) = longest.copied().unwrap_or_default();
        self.most_seconds = seconds.iter().map(|(_, seconds)| seconds).sum();
    }
}

/// Returns the seconds for these bytes at a rate in bytes per second.
fn seconds_at(bytes: u64, rate: f64) -> f64 {
    if bytes == 0 {
        0.0
    } else {
        bytes as f64 / rate.max(1.0)
    }
}

impl EstimateRequest {
    /// Counts frames and bytes, and measures the speeds.
    ///
    /// # Errors
    /// Those of opening FROM and of reading its pages; [`ErrorKind::NotFound`] for a path that the
    /// backup does not have.
    pub fn run(&self) -> Result<RestoreEstimate> {
        if self.restore.from == "-" {
            let message = "cannot estimate a restore from standard input: the estimate would have to read all of it";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let archive = choose_backup::open_chosen(&self.restore, self.restore.into.overwrites())?;
        let selection = self.restore.selection(&archive)?;
        self.restore.check_paths(&archive, &selection)?;
        let workers = self.restore.workers;
        let contract = RestoreEstimate {
            id: archive.root.id.clone(),
            workers: workers.get(),
            ..RestoreEstimate::default()
        };
        let (mut contract, sample) = self.count(&archive, &selection, contract)?;
        (contract.read_rate, contract.decode_rate) = measure_rates(&archive, workers, sample)?;
        contract.write_rate = self
            .target
            .as_deref()
            .and_then(|target| write_rate(target, contract.bytes));
        contract.compute_seconds();
        Ok(contract)
    }

    fn count(
        &self,
        archive: &Archive,
        selection: &Selection,
        contract: RestoreEstimate,
    ) -> Result<(RestoreEstimate, DecodeSample)> {
        let rules = cluster::rules_of_estimate(&self.restore, archive)?;
        let mut count = JobTotals {
            contract,
            opened: HashSet::new(),
            sample: DecodeSample::default(),
            is_in_volumes: archive.root.volume.is_some(),
        };
        let mut linked = HashSet::new();
        let is_restored = |path: &[u8]| selection.takes(path) && !rules.leaves_out(path);
        let mut entries = 0;
        let mut files = 0;
        let mut lacking = MissingParts::new(unnamed_losses::loss_affects(archive, selection)?);
        let mut planner = JobPlanner::new(|job: schedule::FrameJob<()>| {
            count.job(&job, &archive.root.id);
            Ok(())
        });
        for item in archive.records(selection, false) {
            let Some(item) = restored_record(&*rules, item?, &mut lacking) else {
                continue;
            };
            entries += u64::from(item.from == 0);
            files += u64::from(plan_record(
                &mut planner,
                archive,
                is_restored,
                item,
                &mut linked,
            )?);
        }
        // A file that goes on behind the last volume has an end nowhere: that does not end the plan.
        let missing_end = missing_end(&archive.root).map(|error| error.line());
        let cut_off = match planner.finish() {
            Err(error) if missing_end.is_some() && error.kind == ErrorKind::Corrupt => {
                Some(error.line())
            }
            finished => finished.map(|()| None)?,
        };
        let mut volumes = count.contract.volumes.clone();
        let tapes = tapes_of(&archive.root, &volumes);
        if !tapes.is_empty() {
            volumes.clear();
        }
        let contract = RestoreEstimate {
            volumes,
            tapes,
            entries,
            files,
            notes: missing_end
                .into_iter()
                .chain(cut_off)
                .chain(lacking.lines())
                .collect(),
            ..count.contract
        };
        Ok((contract, count.sample))
    }
}

/// Returns the names of the tapes that have these parts of backups, in their order.
fn tapes_of(root: &Root, parts: &BTreeMap<String, BTreeSet<u32>>) -> Vec<String> {
    let own = root.segments.iter().filter_map(|segment| {
        let tape = segment.tape.as_ref()?;
        Some((&root.id, segment.number, tape))
    });
    let earlier = root.earlier_places.iter();
    let earlier = earlier.map(|place| (&place.backup, place.number, &place.tape));
    let wanted = own.chain(earlier).filter(|(backup, number, _)| {
        let of_backup = parts.get(*backup);
        of_backup.is_some_and(|parts| parts.contains(number))
    });
    let names: BTreeMap<_, _> = wanted
        .flat_map(|(backup, _, place)| {
            let extents = place.extents.iter();
            extents.map(move |extent| ((backup, extent.volume), &extent.tape))
        })
        .collect();
    // The last tape of a base may be the first one of the level.
    let mut tapes: Vec<String> = names.into_values().cloned().collect();
    tapes.dedup();
    tapes
}

/// Returns the record as it is restored, or `None` if it is left out.
fn restored_record(
    rules: &dyn EntryRules,
    item: PageItem,
    lacking: &mut MissingParts,
) -> Option<PageItem> {
    match rules.fate(&item.entry.path) {
        EntryFate::Restored => {
            lacking.note(&item);
            Some(item)
        }
        EntryFate::Emptied if item.from == 0 => Some(item.without_content()),
        _ => None,
    }
}

/// Adds content to the plan; a file of which only other names are restored is added once. Returns
/// whether the record starts a file.
fn plan_record<S: FnMut(schedule::FrameJob<()>) -> Result<()>>(
    planner: &mut JobPlanner<'_, (), S>,
    archive: &Archive,
    is_restored: impl Fn(&[u8]) -> bool,
    item: PageItem,
    linked: &mut HashSet<EntryPath>,
) -> Result<bool> {
    match &item.entry.kind {
        EntryKind::Directory => Ok(false),
        _ if !item.state.is_stored() => Ok(false),
        EntryKind::HardLink(target) if is_restored(target) || !linked.insert(target.clone()) => {
            Ok(false)
        }
        EntryKind::HardLink(target) => archive
            .find(target)?
            .into_iter()
            .try_for_each(|item| planner.add(item))
            .map(|()| true),
        _ => {
            let begins = item.from == 0 && item.entry.is_file();
            planner.add(item).map(|()| begins)
        }
    }
}

/// Totals of the planned jobs.
struct JobTotals {
    contract: RestoreEstimate,
    /// Segments that the restore opens: backup, stream and number.
    opened: HashSet<SegmentId>,
    sample: DecodeSample,
    /// Whether segments are volumes: they may have to be brought, so none is read for a measurement.
    is_in_volumes: bool,
}

impl JobTotals {
    fn job(&mut self, job: &schedule::FrameJob<()>, id: &str) {
        let Some((segment, frame)) = &job.frame else {
            return;
        };
        let wanted = sizes::sum(job.pieces.iter().map(|piece| u64::from(piece.len)));
        let contract = &mut self.contract;
        sizes::add(&mut contract.bytes, wanted);
        contract.frames += 1;
        sizes::add(&mut contract.fetched_bytes, frame.stored_len.into());
        sizes::add(&mut contract.decoded_bytes, frame.plain_len.into());
        // Several files may share bytes of a frame; the share is at most 1.
        let share = (wanted as f64 / f64::from(frame.plain_len.max(1))).min(1.0);
        sizes::add(
            &mut contract.wanted_bytes,
            (f64::from(frame.stored_len) * share).round() as u64,
        );
        if self.opened.insert(segment.clone()) {
            contract.segments += 1;
            let name = |segment: &SegmentId| {
                if segment.backup.is_empty() {
                    id.to_owned()
                } else {
                    segment.backup.clone()
                }
            };
            if self.is_in_volumes {
                let of_backup = contract.volumes.entry(name(segment)).or_default();
                of_backup.insert(segment.number);
            }
            contract.backups = self.opened.iter().map(name).collect::<HashSet<_>>().len() as u64;
        }
        if !self.is_in_volumes {
            self.sample.push((segment.clone(), *frame));
        }
    }
}

/// Runs of frames spread over the whole backup.
#[derive(Default)]
struct DecodeSample {
    runs: Vec<Vec<Frame>>,
    /// Number of frames so far; of `every` runs one is kept.
    seen: usize,
    every: usize,
}

impl DecodeSample {
    fn push(&mut self, frame: Frame) {
        let run = self.seen / RUN;
        let every = self.every.max(1);
        self.seen += 1;
        if !run.is_multiple_of(every) {
            return;
        }
        if (self.seen - 1).is_multiple_of(RUN) {
            if self.runs.len() == RUNS {
                let mut kept = 0..;
                self.runs
                    .retain(|_| kept.next().is_some_and(|index| index % 2 == 0));
                self.every = every * 2;
                if !run.is_multiple_of(self.every) {
                    return;
                }
            }
            self.runs.push(Vec::new());
        }
        self.runs
            .last_mut()
            .into_iter()
            .for_each(|run| run.push(frame.clone()));
    }
}

/// Returns the stored bytes fetched a second and the plain bytes decoded and digested a second, by
/// all workers together.
fn measure_rates(
    archive: &Archive,
    workers: NonZeroUsize,
    sample: DecodeSample,
) -> Result<(f64, f64)> {
    let runs = sample.runs;
    let threads = workers.get().min(runs.len()).max(1) as f64;
    let measured = DecodeMeasurement {
        archive,
        meter: Meter::default(),
        start: Instant::now(),
        stored: AtomicU64::new(0),
        plain: AtomicU64::new(0),
    };
    workers::work(
        &workers.into(),
        FrameReader::default,
        |frames, run: Vec<Frame>| measured.decode(frames, &run),
        |send| runs.into_iter().try_for_each(send),
    )?;
    Ok((
        busy_rate(&measured.stored, &measured.meter.source.busy, threads),
        busy_rate(&measured.plain, &measured.meter.workers.busy, threads),
    ))
}

/// Busy times add up over threads that run side by side.
fn busy_rate(bytes: &AtomicU64, busy: &AtomicU64, threads: f64) -> f64 {
    bytes.load(Relaxed) as f64 * threads * 1e9 / (busy.load(Relaxed) as f64).max(1.0)
}

/// The bytes decoded so far, and the time they took.
struct DecodeMeasurement<'a> {
    archive: &'a Archive,
    meter: Meter,
    start: Instant,
    stored: AtomicU64,
    plain: AtomicU64,
}

impl DecodeMeasurement<'_> {
    /// Decodes a run of frames, until enough is measured.
    fn decode(&self, frames: &mut FrameReader, run: &[Frame]) -> Result<()> {
        for (segment, frame) in run {
            if self.is_enough() {
                break;
            }
            let mut clock = ThreadClock::now();
            let stored = frames.fetch(self.archive, segment, frame)?;
            lap(&self.meter.source, &mut clock);
            digest(self.archive.root.options.digest, stored.decode()?);
            lap(&self.meter.workers, &mut clock);
            self.stored.fetch_add(frame.stored_len.into(), Relaxed);
            self.plain.fetch_add(frame.plain_len.into(), Relaxed);
        }
        Ok(())
    }

    fn is_enough(&self) -> bool {
        self.stored.load(Relaxed) > READ_BYTES || self.start.elapsed().as_secs_f64() > SECONDS
    }
}

fn digest(algorithm: Algorithm, content: &[u8]) {
    std::hint::black_box(piece(algorithm, content, 0, content.len() as u64, u64::MAX));
}

/// Returns the bytes written and synced a second at `target` or its nearest existing parent; `None`
/// if that cannot be measured.
fn write_rate(target: &Path, bytes: u64) -> Option<f64> {
    let there = target
        .ancestors()
        .find(|path| path.is_dir() || path.as_os_str().is_empty())?;
    let there = if there.as_os_str().is_empty() {
        Path::new(".")
    } else {
        there
    };
    let file = anonymous_file(there).ok()?;
    let mut block = vec![0; 1 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut block);
    let start = Instant::now();
    let mut written = 0;
    while written < bytes.min(WRITE_BYTES) && start.elapsed().as_secs_f64() < SECONDS {
        let len = (bytes.min(WRITE_BYTES) - written).min(block.len() as u64);
        pwrite_all(&file, &block[..len as usize], written).ok()?;
        written += len;
    }
    fsync(&file).ok()?;
    (written > 0).then(|| written as f64 / start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_small_and_from_all_over() {
        for frames in [1, 8, 9, 1000, 100_000u64] {
            let mut sample = DecodeSample::default();
            for offset in 0..frames {
                let frame = FrameAt {
                    segment: 0,
                    offset,
                    stored_len: 1,
                    plain_len: 1,
                };
                sample.push((SegmentId::default(), frame));
            }
            let offsets: Vec<Vec<u64>> = sample
                .runs
                .iter()
                .map(|run| run.iter().map(|(_, frame)| frame.offset).collect())
                .collect();
            assert!(
                offsets.len() <= RUNS
                    && offsets
                        .iter()
                        .all(|run| run.len() <= RUN && run[0] % RUN as u64 == 0)
            );
            assert!(
                offsets.len() as u64 >= (frames / RUN as u64).clamp(1, RUNS as u64 / 2),
                "{frames}: {offsets:?}"
            );
            let last = offsets.last().unwrap()[0];
            assert!(last + RUN as u64 > frames / 3, "{frames}: {last}");
        }
    }
}
