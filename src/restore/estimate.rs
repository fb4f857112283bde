//! What a restore will cost, before it is begun: bytes, frames, segments, and time at the speeds of this machine.
//!
//! The pages are gone through as the restore does it, so frames are counted as it will fetch them. Then some of them are
//! fetched and decoded, and a file without a name is written at the target. Nothing stays.

use super::{
    MissingParts, Restore,
    cluster::{self, choose_backup},
    must_be_there,
};
use crate::archive::unnamed_losses;
use crate::{
    archive::{
        Archive, Selection,
        schedule::{self, Planner},
    },
    error::{Error, ErrorKind, Result},
    format::{
        digest::{Algorithm, piece},
        entry::{EntryKind, EntryPath},
        page::{FrameAt, PageItem, SegmentId},
        sizes,
    },
    metrics::meter::{Meter, lap},
    pipeline::workers,
    platform::write::{anonymous_file, fsync, pwrite_all},
    postgres::restore::{
        plan::{ClusterPlan, Fate},
        recovery::RecoveryFacts,
    },
};
use serde::Serialize;
use std::{
    collections::HashSet,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

/// Frames that are measured one after the other, as a restore reads them.
const RUN: usize = 8;
/// Runs that are measured, at most.
const RUNS: usize = 16;
/// Stored bytes that are read to measure, about.
const READ_BYTES: u64 = 64 << 20;
/// Bytes that are written to measure, at most.
const WRITE_BYTES: u64 = 64 << 20;
/// Seconds after which measuring ends.
const SECONDS: f64 = 0.5;

type Frame = (SegmentId, FrameAt);

/// A restore that is only thought of.
#[derive(Debug, Clone)]
pub struct Forecast {
    /// What would be restored; its target is not looked at.
    pub restore: Restore,
    /// Where to, if the target is to be measured.
    pub target: Option<PathBuf>,
}

/// What it will cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Contract {
    /// The backup.
    pub id: String,
    /// Entries that will be restored.
    pub entries: u64,
    /// Regular files among them.
    pub files: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Frames that will be fetched.
    pub frames: u64,
    /// Their stored bytes.
    pub fetched_bytes: u64,
    /// Their plain bytes.
    pub decoded_bytes: u64,
    /// Stored bytes of what is wanted of them: of each frame the same share as of its plain bytes.
    pub wanted_bytes: u64,
    /// Segments that will be opened.
    pub segments: u64,
    /// Backups these belong to.
    pub backups: u64,
    /// Threads.
    pub workers: usize,
    /// Stored bytes a second that were fetched, by all threads; 0 if nothing was.
    pub read_rate: f64,
    /// Plain bytes a second that were decoded and digested, by all threads.
    pub decode_rate: f64,
    /// Bytes a second that were written at the target and synced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_rate: Option<f64>,
    /// Seconds if reading, decoding and writing overlap fully.
    pub least_seconds: f64,
    /// Seconds if they do not overlap at all.
    pub most_seconds: f64,
    /// `read`, `decode` or `write`: what takes longest.
    pub limit: &'static str,
    /// What the backup does not hold as it was, one line for each.
    pub notes: Vec<String>,
}

impl Contract {
    /// Bytes fetched for each stored byte that is wanted.
    pub fn fetch_amplification(&self) -> f64 {
        self.fetched_bytes as f64 / (self.wanted_bytes as f64).max(1.0)
    }

    /// Bytes decoded for each byte of content.
    pub fn decode_amplification(&self) -> f64 {
        self.decoded_bytes as f64 / (self.bytes as f64).max(1.0)
    }

    /// Seconds of reading, decoding and writing, each by itself.
    pub fn seconds(&self) -> [(&'static str, f64); 3] {
        let time = |bytes: u64, rate: f64| {
            if bytes == 0 {
                0.0
            } else {
                bytes as f64 / rate.max(1.0)
            }
        };
        [
            ("read", time(self.fetched_bytes, self.read_rate)),
            ("decode", time(self.decoded_bytes, self.decode_rate)),
            (
                "write",
                self.write_rate.map_or(0.0, |rate| time(self.bytes, rate)),
            ),
        ]
    }

    fn expect(&mut self) {
        let seconds = self.seconds();
        let longest = seconds.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        (self.limit, self.least_seconds) = longest.copied().unwrap_or_default();
        self.most_seconds = seconds.iter().map(|(_, seconds)| seconds).sum();
    }
}

impl Forecast {
    /// Count and measure.
    ///
    /// # Errors
    /// Those of opening FROM and of reading its pages; [`Kind::NotFound`] for a path that is not in it.
    pub fn run(&self) -> Result<Contract> {
        if self.restore.from == "-" {
            let what = "cannot tell what it costs to restore from standard input: it has to be read for that";
            return Err(Error::new(ErrorKind::Usage, what));
        }
        let archive = choose_backup::opened(&self.restore, self.restore.overwrite)?;
        let selection = Selection::new(&self.restore.paths)?;
        must_be_there(&archive, &selection, self.restore.keep_going)?;
        let workers = self.restore.workers;
        let contract = Contract {
            id: archive.root.id.clone(),
            workers: workers.get(),
            ..Contract::default()
        };
        let (mut contract, sample) = self.count(&archive, &selection, contract)?;
        (contract.read_rate, contract.decode_rate) = measure(&archive, workers, sample)?;
        contract.write_rate = self
            .target
            .as_deref()
            .and_then(|target| write_rate(target, contract.bytes));
        contract.expect();
        Ok(contract)
    }

    fn count(
        &self,
        archive: &Archive,
        selection: &Selection,
        contract: Contract,
    ) -> Result<(Contract, DecodeSample)> {
        let plan = self.plan(archive)?;
        let mut count = JobTotals {
            contract,
            opened: HashSet::new(),
            sample: DecodeSample::default(),
        };
        let mut linked = HashSet::new();
        let is_restored = |path: &[u8]| selection.takes(path) && !plan.leaves_out(path);
        let (mut entries, mut files) = (0, 0);
        let mut lacking = MissingParts::new(unnamed_losses::loss_affects(archive, selection)?);
        let mut planner = Planner::new(|job: schedule::FrameJob<()>| {
            count.job(&job, &archive.root.id);
            Ok(())
        });
        for item in archive.records(selection, false) {
            let Some(item) = kept(&plan, item?, &mut lacking) else {
                continue;
            };
            entries += u64::from(item.from == 0);
            files += u64::from(add(&mut planner, archive, is_restored, item, &mut linked)?);
        }
        planner.finish()?;
        let contract = Contract {
            entries,
            files,
            notes: lacking.lines(),
            ..count.contract
        };
        Ok((contract, count.sample))
    }

    /// What is done differently for a cluster, as far as it says which files come back.
    fn plan(&self, archive: &Archive) -> Result<ClusterPlan> {
        let Some(facts) = &archive.root.postgres else {
            return cluster::not_asked(&self.restore).map(|()| ClusterPlan::default());
        };
        let known = RecoveryFacts {
            stopped: archive.root.captured_at(),
            is_all: true,
            restore_command: true,
            primary: true,
            ..RecoveryFacts::default()
        };
        ClusterPlan::new(&self.restore.postgres, facts, &known)
    }
}

/// The record as it comes back, if it does.
fn kept(plan: &ClusterPlan, item: PageItem, lacking: &mut MissingParts) -> Option<PageItem> {
    match plan.fate(&item.entry.path) {
        Fate::Restored => {
            lacking.note(&item);
            Some(item)
        }
        Fate::Emptied if item.from == 0 => Some(item.without_content()),
        _ => None,
    }
}

/// Add what has content; of files of which only other names are restored, the file once. Does another file begin with it?
fn add<S: FnMut(schedule::FrameJob<()>) -> Result<()>>(
    planner: &mut Planner<(), S>,
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

/// What the jobs come to.
struct JobTotals {
    contract: Contract,
    /// Backup, stream and number of the segments.
    opened: HashSet<SegmentId>,
    sample: DecodeSample,
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
        // Several files may want the same bytes: a frame is never wanted more than whole.
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
            contract.backups = self.opened.iter().map(name).collect::<HashSet<_>>().len() as u64;
        }
        self.sample.push((segment.clone(), *frame));
    }
}

/// Some runs of frames from all over the backup.
#[derive(Default)]
struct DecodeSample {
    runs: Vec<Vec<Frame>>,
    /// Frames so far, and of how many runs one is kept.
    seen: usize,
    every: usize,
}

impl DecodeSample {
    fn push(&mut self, frame: Frame) {
        let (run, every) = (self.seen / RUN, self.every.max(1));
        self.seen += 1;
        if run % every != 0 {
            return;
        }
        if (self.seen - 1).is_multiple_of(RUN) {
            if self.runs.len() == RUNS {
                let mut kept = 0..;
                self.runs
                    .retain(|_| kept.next().is_some_and(|at| at % 2 == 0));
                self.every = every * 2;
                if run % self.every != 0 {
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

/// Stored bytes a second that are fetched, and plain bytes that are decoded and digested, by all workers together.
fn measure(archive: &Archive, workers: NonZeroUsize, sample: DecodeSample) -> Result<(f64, f64)> {
    let (meter, start, stored, plain) = (
        Meter::default(),
        Instant::now(),
        AtomicU64::new(0),
        AtomicU64::new(0),
    );
    let enough = || stored.load(Relaxed) > READ_BYTES || start.elapsed().as_secs_f64() > SECONDS;
    let hand = || (archive.codec.decompressor(), Vec::new(), Vec::new());
    let each = |hand: &mut (_, Vec<u8>, Vec<u8>), run: Vec<Frame>| {
        let (decompressor, packed, content): (&mut crate::stage::codec::Decompressor, _, _) =
            (&mut hand.0, &mut hand.1, &mut hand.2);
        for (segment, frame) in run.iter().take_while(|_| !enough()) {
            let mut clock = Instant::now();
            archive.fetch(segment, frame, packed)?;
            lap(&meter.source.busy, &mut clock);
            decompressor.decompress(packed, frame.plain_len as usize, content)?;
            digest(archive.root.options.digest, content);
            lap(&meter.workers.busy, &mut clock);
            stored.fetch_add(frame.stored_len.into(), Relaxed);
            plain.fetch_add(frame.plain_len.into(), Relaxed);
        }
        Ok(())
    };
    let runs = sample.runs;
    let threads = workers.get().min(runs.len()).max(1) as f64;
    workers::work(&workers.into(), hand, each, |send| {
        runs.into_iter().try_for_each(send)
    })?;
    let rate = |bytes: &AtomicU64, busy: &AtomicU64| {
        bytes.load(Relaxed) as f64 * threads * 1e9 / (busy.load(Relaxed) as f64).max(1.0)
    };
    Ok((
        rate(&stored, &meter.source.busy),
        rate(&plain, &meter.workers.busy),
    ))
}

fn digest(algorithm: Algorithm, content: &[u8]) {
    std::hint::black_box(piece(algorithm, content, 0, content.len() as u64, u64::MAX));
}

/// Bytes a second that are written where `target` is or would be, and synced; nothing if that cannot be measured.
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
    let (start, mut at) = (Instant::now(), 0);
    while at < bytes.min(WRITE_BYTES) && start.elapsed().as_secs_f64() < SECONDS {
        let len = (bytes.min(WRITE_BYTES) - at).min(block.len() as u64);
        pwrite_all(&file, &block[..len as usize], at).ok()?;
        at += len;
    }
    fsync(&file).ok()?;
    (at > 0).then(|| at as f64 / start.elapsed().as_secs_f64())
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
