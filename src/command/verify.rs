//! Check a backup: its structure, or every byte.
//!
//! Structure is the root, every copy of every page, the size and seek table of every segment, and that each extent lies in
//! a frame that the seek table knows. With `data`, all stored bytes are compared with their checksums, all frames
//! decoded and all files digested, by many workers: a restore that writes nothing. The bytes that were just summed
//! are decoded next, so that they are read from the device once.

use super::{
    crew,
    damage::{Damage, Report, frame_damage, names},
    frames::{self, Frames},
};
use crate::pipeline::meter::{Meter, lap};
use crate::{
    error::{Error, Result},
    format::{
        digest::{Piece, crc64, crc64_join},
        entry::{Kind, Path as EntryPath},
        page::{FrameAt, Item, SegmentId},
        root::{PART_BYTES, Segment},
    },
    platform::Tricks,
    repo::open::open,
    source::{
        archive::{Archive, Selection},
        jobs::{self, End, Of, Planner, check_whole},
        store::Object,
    },
    stage::codec::Decompressor,
};
use std::{
    collections::{BTreeSet, HashMap},
    num::NonZeroUsize,
    path::PathBuf,
    sync::{Mutex, atomic::Ordering::Relaxed},
    time::Instant,
};

type Job = jobs::Job<()>;

/// What to check, and how.
#[derive(Debug, Clone)]
pub struct Verify {
    /// `FROM[@BACKUP]`.
    pub from: String,
    /// Every byte?
    pub data: bool,
    /// A tree on disk to compare with.
    pub against: Option<PathBuf>,
    /// Threads that read, decode and digest.
    pub workers: NonZeroUsize,
    /// Bytes of all buffers together.
    pub memory: u64,
    /// May the system's special calls be used?
    pub tricks: Tricks,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Verdict {
    /// The backup.
    pub id: String,
    /// Entries that were looked at.
    pub entries: u64,
    /// Everything that is damaged.
    pub damage: Vec<Damage>,
    /// Damage that does no harm, as another copy is whole.
    pub warnings: Vec<String>,
    /// How the tree on disk differs, in path order.
    pub differences: Vec<super::against::Difference>,
    /// Wall-clock seconds.
    pub seconds: f64,
}

impl Verdict {
    /// 4 for damage, even if it does no harm yet; 1 for differences; 0.
    pub fn exit_code(&self) -> u8 {
        match (self.damage.is_empty() && self.warnings.is_empty(), self.differences.is_empty()) {
            (false, _) => 4,
            (true, false) => 1,
            (true, true) => 0,
        }
    }

    /// Print damage and differences, one a line or paragraph.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut dyn std::io::Write) -> Result<()> {
        for damage in &self.damage {
            super::text::line(out, &format!("damage: {}", damage.what))?;
            damage.detail.iter().try_for_each(|line| super::text::line(out, &format!("        {line}")))?;
        }
        self.warnings.iter().try_for_each(|line| super::text::line(out, &format!("harmless: {line}")))?;
        self.differences.iter().try_for_each(|difference| super::text::line(out, &difference.to_string()))
    }
}

impl Verify {
    /// Do it.
    ///
    /// # Errors
    /// What makes checking impossible: FROM is not there, or its root is damaged. Other damage is in the verdict.
    pub fn run(&self, meter: &Meter) -> Result<Verdict> {
        self.run_archive(open(&self.from)?, meter)
    }

    /// Check a backup that is open.
    ///
    /// # Errors
    /// As [`Verify::run`].
    pub fn run_archive(&self, archive: Archive, meter: &Meter) -> Result<Verdict> {
        let start = Instant::now();
        let check =
            Check { archive: &archive, report: Report::new(true), meter, bad_parts: Mutex::default(), data: self.data };
        let tables = check.segments()?;
        check.pages()?;
        check.content(self.workers, tables)?;
        check.blame_parts()?;
        let differences = match &self.against {
            Some(dir) => super::against::compare(&archive, dir, self.workers, self.tricks, meter)?,
            None => Vec::new(),
        };
        Ok(Verdict {
            id: archive.root.id.clone(),
            entries: meter.entries.load(Relaxed),
            damage: check.report.damage(),
            warnings: check.report.warnings(),
            differences,
            seconds: start.elapsed().as_secs_f64(),
        })
    }
}

struct Check<'a> {
    archive: &'a Archive,
    report: Report,
    meter: &'a Meter,
    data: bool,
    /// Stored bytes that differ from their checksum: segment, from, to.
    bad_parts: Mutex<Vec<(SegmentId, u64, u64)>>,
}

/// What a worker is given.
enum Task {
    /// Sum these stored bytes of a segment.
    Part { segment: SegmentId, index: u64, from: u64, to: u64, sum: String },
    /// Decode a frame and check what is in it.
    Frame(Job),
}

/// What a worker has.
struct Hand {
    decompressor: Decompressor,
    stored: Vec<u8>,
    plain: Vec<u8>,
}

impl Check<'_> {
    /// Sizes and seek tables. A segment that is not there or has no table gives no frames, and is reported.
    fn segments(&self) -> Result<HashMap<SegmentId, Frames>> {
        let mut tables = HashMap::new();
        for segment in &self.archive.root.segments {
            match frames::read(self.archive, segment, self.data, &self.report) {
                Ok(table) => drop(tables.insert(id(segment), table)),
                Err(error) => self.report.add((error, Vec::new()))?,
            }
        }
        Ok(tables)
    }

    /// Every copy of every page.
    fn pages(&self) -> Result<()> {
        for at in &self.archive.root.pages {
            let copies = self.archive.copies(at);
            let read = |copy| match self.archive.read_copy(at, copy) {
                Ok(page) if page.records.len() as u64 != at.entries => {
                    Err(Error::corrupt("a manifest page has another number of entries than the root says"))
                }
                other => other.map(drop),
            };
            let results: Vec<Result<()>> = copies.iter().map(read).collect();
            let harmless = results.iter().any(Result::is_ok);
            for error in results.into_iter().filter_map(Result::err) {
                match harmless {
                    true => self.report.warn(error),
                    // The pass over the records reports it, with what is lost.
                    false => break,
                }
            }
        }
        Ok(())
    }

    fn content(&self, workers: NonZeroUsize, tables: HashMap<SegmentId, Frames>) -> Result<()> {
        self.meter.total_bytes.store(self.archive.root.totals.bytes, Relaxed);
        let make = || Hand { decompressor: self.archive.codec.decompressor(), stored: Vec::new(), plain: Vec::new() };
        crew::work(workers, make, |hand, task| self.task(hand, task), |send| self.plan(&tables, send))
    }

    fn plan(&self, tables: &HashMap<SegmentId, Frames>, send: &mut dyn FnMut(Task) -> Result<()>) -> Result<()> {
        let mut parts = Parts::new(if self.data { &self.archive.root.segments } else { &[] });
        let mut hand_out = |job: Job| {
            let Some((segment, frame)) = &job.frame else { return Ok(()) };
            parts.up_to(segment, frame.offset + u64::from(frame.stored_len), send)?;
            match self.is_frame(tables, segment, frame) {
                Ok(()) if self.data => send(Task::Frame(job)),
                Ok(()) => Ok(()),
                Err(error) => {
                    self.report.add(frame_damage(self.archive, &(segment.clone(), *frame), error, files(&job)))
                }
            }
        };
        let all = Selection::default();
        let mut planner = Planner::new(&mut hand_out);
        for item in self.archive.records(&all, false) {
            let planned = item.and_then(|item| self.plan_one(&mut planner, item));
            self.report.survive(planned)?;
        }
        self.report.survive(planner.finish())?;
        parts.rest(send)
    }

    fn plan_one<S: FnMut(Job) -> Result<()>>(&self, planner: &mut Planner<(), S>, item: Item) -> Result<()> {
        self.meter.entries.fetch_add(u64::from(!item.more), Relaxed);
        match item.entry.kind {
            Kind::File { .. } if item.state.is_stored() => planner.add(item),
            _ => Ok(()),
        }
    }

    /// Is there such a frame, as far as the seek table of its segment says?
    fn is_frame(&self, tables: &HashMap<SegmentId, Frames>, segment: &SegmentId, frame: &FrameAt) -> Result<()> {
        match tables.get(segment) {
            // Of other backups, or reported as damaged: only decoding can tell.
            None if self.data => Ok(()),
            None if self.archive.root.segments.iter().any(|own| id(own) == *segment) => {
                Err(Error::corrupt("its segment is damaged"))
            }
            None => self.archive.store().len(&Object::Segment(segment.clone())).map(drop),
            Some(table) => table.check(frame),
        }
    }

    fn task(&self, hand: &mut Hand, task: Task) -> Result<()> {
        match task {
            Task::Frame(job) => self.frame(hand, &job),
            Task::Part { segment, index, from, to, sum } => {
                let mut clock = Instant::now();
                let found = self.sum(hand, &segment, from, to);
                lap(&self.meter.source.busy, &mut clock);
                match found {
                    Ok(found) if sum == format!("{found:016x}") => Ok(()),
                    result => self.bad_part(segment, index, (from, to), result.err()),
                }
            }
        }
    }

    fn sum(&self, hand: &mut Hand, segment: &SegmentId, from: u64, to: u64) -> Result<u64> {
        let object = Object::Segment(segment.clone());
        let (mut at, mut sum) = (from, None);
        while at < to {
            let len = (to - at).min(1 << 20);
            self.archive.store().read_at(&object, at, len as usize, &mut hand.stored)?;
            let crc = crc64(&hand.stored);
            sum = Some(sum.map_or(crc, |sum| crc64_join(sum, crc, len)));
            at += len;
        }
        self.meter.stored_bytes.fetch_add(to - from, Relaxed);
        Ok(sum.unwrap_or_else(|| crc64(&[])))
    }

    fn bad_part(&self, segment: SegmentId, index: u64, (from, to): (u64, u64), error: Option<Error>) -> Result<()> {
        let name = self.archive.store().name(&Object::Segment(segment.clone()));
        let why = error.map_or_else(|| "their checksum is not the one in the root".to_owned(), |error| error.line());
        let what = format!("bytes {from} to {to} of {name}, part {}, are damaged", index + 1);
        self.bad_parts.lock().unwrap_or_else(|e| e.into_inner()).push((segment, from, to));
        self.report.add((Error::corrupt(what).because(why), Vec::new()))
    }

    fn frame(&self, hand: &mut Hand, job: &Job) -> Result<()> {
        let Some(at) = &job.frame else { return Ok(()) };
        let mut clock = Instant::now();
        let fetched = self.archive.fetch(&at.0, &at.1, &mut hand.stored);
        lap(&self.meter.source.busy, &mut clock);
        let Hand { decompressor, stored, plain } = hand;
        let decoded = fetched.and_then(|()| decompressor.decompress(stored, at.1.plain_len as usize, plain));
        if let Err(error) = decoded {
            self.report.add(frame_damage(self.archive, at, error, files(job)))?;
            spoil(job);
            return Ok(());
        }
        let checked = job.pieces.iter().try_for_each(|wanted| self.piece(wanted, &hand.plain));
        lap(&self.meter.workers.busy, &mut clock);
        checked
    }

    fn piece(&self, wanted: &jobs::Wanted<()>, plain: &[u8]) -> Result<()> {
        let content = wanted.content(plain);
        self.meter.bytes.fetch_add(content.len() as u64, Relaxed);
        let end = match &wanted.of {
            Of::Whole(item) => check_whole(item, content),
            Of::Part(shared, offset) => {
                let hashed = shared.hash(self.archive.root.options.digest, *offset, content);
                let end = shared.done(*offset, content.len() as u64, hashed);
                if shared.is_damaged() { End::NotYet } else { end }
            }
        };
        match end {
            End::Damaged(why) => self.report.file(wanted.item(), &why),
            // Its frames carry checksums of their own.
            End::NotYet | End::Right | End::Unknown(_) => Ok(()),
        }
    }

    /// Name the files that the damaged parts hold some of.
    fn blame_parts(&self) -> Result<()> {
        let bad = std::mem::take(&mut *self.bad_parts.lock().unwrap_or_else(|e| e.into_inner()));
        if bad.is_empty() {
            return Ok(());
        }
        let mut touched = BTreeSet::new();
        let all = Selection::default();
        for item in self.archive.records(&all, false).flatten() {
            let hit = item.extents.iter().any(|extent| bad.iter().any(|part| overlaps(&item, &extent.frame, part)));
            if hit {
                touched.insert(item.entry.path.clone());
            }
        }
        let touched: Vec<EntryPath> = touched.into_iter().collect();
        self.report.detail_parts(&format!("with the frames of {} files: {}", touched.len(), names(&touched)));
        Ok(())
    }
}

fn overlaps(item: &Item, frame: &FrameAt, (segment, from, to): &(SegmentId, u64, u64)) -> bool {
    item.segment(frame) == segment && frame.offset < *to && frame.offset + u64::from(frame.stored_len) > *from
}

fn files(job: &Job) -> Vec<EntryPath> {
    job.pieces.iter().map(|wanted| wanted.item().entry.path.clone()).collect()
}

fn spoil(job: &Job) {
    for wanted in &job.pieces {
        if let Of::Part(shared, offset) = &wanted.of {
            shared.spoil();
            shared.done(*offset, wanted.len.into(), Piece::None);
        }
    }
}

fn id(segment: &Segment) -> SegmentId {
    SegmentId { backup: String::new(), stream: segment.stream, number: segment.number }
}

/// Which parts of which segments were handed out.
struct Parts<'a>(Vec<(&'a Segment, u64)>);

impl<'a> Parts<'a> {
    fn new(segments: &'a [Segment]) -> Self {
        Self(segments.iter().map(|segment| (segment, 0)).collect())
    }

    /// Hand out the parts of `segment` that begin before byte `end`.
    fn up_to(&mut self, segment: &SegmentId, end: u64, send: &mut dyn FnMut(Task) -> Result<()>) -> Result<()> {
        let own = self.0.iter_mut().find(|(own, _)| id(own) == *segment);
        own.map_or(Ok(()), |(own, next)| hand_out(own, next, end, send))
    }

    fn rest(&mut self, send: &mut dyn FnMut(Task) -> Result<()>) -> Result<()> {
        self.0.iter_mut().try_for_each(|(own, next)| hand_out(own, next, u64::MAX, send))
    }
}

fn hand_out(segment: &Segment, next: &mut u64, end: u64, send: &mut dyn FnMut(Task) -> Result<()>) -> Result<()> {
    while let Some(sum) = segment.parts.get(*next as usize * 16..(*next as usize + 1) * 16)
        && *next * PART_BYTES < end
    {
        let (from, to) = (*next * PART_BYTES, segment.bytes.min((*next + 1) * PART_BYTES));
        send(Task::Part { segment: id(segment), index: *next, from, to, sum: sum.to_owned() })?;
        *next += 1;
    }
    Ok(())
}
