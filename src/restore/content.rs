//! The first pass of a restore: everything that has content.
//!
//! As many workers compute at once as were asked for; where the target makes them wait, more of them write.
//!
//! A worker has one frame at a time and writes what is wanted of it. Of a large file it has all frames of one stretch, which may
//! be many if the file was changed here and there: it puts the stretch together, then hashes and writes it once.

use super::RestoreRun;
use crate::{
    archive::schedule::{
        self, ContentEnd, Hash, Of, Planner, ScheduleShared, Stretches, WantedRun, check_pieces,
    },
    error::{Error, Result},
    format::{
        digest::Digest,
        entry::{EntryKind, EntryPath},
        page::{FrameAt, PageItem, SegmentId},
    },
    metrics::meter::lap,
    pipeline::workers::{self, WorkerLimit},
    report::damage::{LEFT, frame_damage},
    stage::codec::Decompressor,
    target::{parallel_file::ParallelFile, writer::TargetWriter},
};
use std::{
    collections::HashSet,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

type Job = schedule::FrameJob<ParallelFile>;

/// A smaller frame does not make a smaller stretch.
const LEAST_STRETCH: u64 = 64 << 10;
/// Nor does what a root says of its frames: the largest that are written.
const MOST_STRETCH: u64 = 64 << 20;

/// What one worker has.
struct RestoreWorker {
    writer: TargetWriter,
    decompressor: Decompressor,
    stored: Vec<u8>,
    plain: Vec<u8>,
    stretch: Vec<u8>,
}

impl RestoreRun<'_> {
    /// First pass: everything but hard links and the metadata of directories.
    pub(super) fn content(&self, hands: &WorkerLimit<'_>) -> Result<()> {
        if self.selection.paths().is_empty() && self.cluster.is_of_everything() {
            self.meter
                .total_bytes
                .store(self.archive.root.totals.bytes, Relaxed);
        }
        let make = || RestoreWorker {
            writer: TargetWriter::new(&self.tree),
            decompressor: self.archive.codec.decompressor(),
            stored: Vec::new(),
            plain: Vec::new(),
            stretch: Vec::new(),
        };
        workers::work(
            hands,
            make,
            |hand, jobs| self.jobs(hand, jobs),
            |send| self.plan(send),
        )
    }

    fn plan(&self, send: &mut dyn FnMut(Vec<Job>) -> Result<()>) -> Result<()> {
        let mut stretches = Stretches::new(
            self.archive
                .root
                .options
                .frame_bytes
                .clamp(LEAST_STRETCH, MOST_STRETCH),
            send,
        );
        let mut planner = Planner::new(|job| stretches.add(job));
        let mut writer = TargetWriter::new(&self.tree);
        for item in self.archive.records(&self.selection, false) {
            let planned = item
                .and_then(|item| self.plan_one(&mut |item| planner.add(item), &mut writer, item));
            self.report.tolerate(planned)?;
        }
        self.report.tolerate(planner.finish())?;
        stretches.flush()
    }

    fn jobs(&self, hand: &mut RestoreWorker, jobs: Vec<Job>) -> Result<()> {
        match jobs.len() {
            0 | 1 => jobs.into_iter().try_for_each(|job| self.job(hand, job)),
            _ => self.stretch(hand, jobs),
        }
    }

    /// One frame and all that is wanted of it.
    fn job(&self, hand: &mut RestoreWorker, job: Job) -> Result<()> {
        let mut clock = Instant::now();
        let job = match self.decode(hand, &job, &mut clock) {
            Err(error) => return self.spoil(hand, job.frame.as_ref(), job.pieces, error),
            Ok(None) => job,
            Ok(Some(error)) => self.salvage(hand, job, error)?,
        };
        let plain = std::mem::take(&mut hand.plain);
        let part = |shared: &ScheduleShared<ParallelFile>, at, bytes: &[u8]| {
            CheckedContent::Part(shared.hash(&self.archive.root.options, at, bytes))
        };
        let checked = self
            .permits
            .hold(|| check_pieces(&job.pieces, &plain, CheckedContent::Whole, part));
        lap(&self.meter.workers.busy, &mut clock);
        let mut pieces = job.pieces.iter().zip(checked);
        let written = pieces
            .try_for_each(|(piece, checked)| self.write(&mut hand.writer, piece, &plain, checked));
        let written = written.and_then(|()| {
            job.bare
                .iter()
                .try_for_each(|item| self.bare(&mut hand.writer, item))
        });
        lap(&self.meter.sink.busy, &mut clock);
        hand.plain = plain;
        written
    }

    /// The frames of one stretch of a large file.
    fn stretch(&self, hand: &mut RestoreWorker, jobs: Vec<Job>) -> Result<()> {
        let mut clock = Instant::now();
        let Some((_, shared, _)) = jobs.iter().flat_map(parts).next() else {
            return Ok(());
        };
        let shared = shared.clone();
        let start = jobs
            .iter()
            .flat_map(parts)
            .map(|(_, _, at)| at)
            .min()
            .unwrap_or(0);
        let (mut data, mut runs) = (std::mem::take(&mut hand.stretch), Vec::new());
        for job in jobs {
            if let Err(error) | Ok(Some(error)) = self.decode(hand, &job, &mut clock) {
                self.spoil(hand, job.frame.as_ref(), job.pieces, error)?;
                continue;
            }
            for (wanted, _, at) in parts(&job) {
                let (content, place) = (wanted.content(&hand.plain), (at - start) as usize);
                data.resize(data.len().max(place + content.len()), 0);
                data[place..][..content.len()].copy_from_slice(content);
                runs.push(at..at + content.len() as u64);
            }
            lap(&self.meter.workers.busy, &mut clock);
        }
        runs.sort_by_key(|run: &Range<u64>| run.start);
        for run in runs.chunk_by(|a, b| a.end == b.start) {
            let [from, to] = [run[0].start, run[run.len() - 1].end].map(|at| (at - start) as usize);
            let (content, at) = (&data[from..to], run[0].start);
            let hash = self
                .permits
                .hold(|| shared.hash(&self.archive.root.options, at, content));
            lap(&self.meter.workers.busy, &mut clock);
            self.write_part(&mut hand.writer, &shared, at, content, hash)?;
            lap(&self.meter.sink.busy, &mut clock);
        }
        hand.stretch = data;
        Ok(())
    }

    /// What is wrong with a frame that came out all the same: digests tell what that is worth.
    fn decode(
        &self,
        hand: &mut RestoreWorker,
        job: &Job,
        clock: &mut Instant,
    ) -> Result<Option<Error>> {
        let Some((segment, frame)) = &job.frame else {
            return Ok(None);
        };
        let fetched = self.archive.fetch(segment, frame, &mut hand.stored);
        self.meter
            .stored_bytes
            .fetch_add(u64::from(frame.stored_len), Relaxed);
        lap(&self.meter.source.busy, clock);
        fetched?;
        let plain_len = frame.plain_len as usize;
        let RestoreWorker {
            decompressor,
            stored,
            plain,
            ..
        } = hand;
        self.permits
            .hold(|| decompressor.salvage(stored, plain_len, plain))
    }

    /// The checksum of a frame is wrong. Only those of its files are lost whose digests do not say that they are whole; gives the job
    /// without them.
    fn salvage(&self, hand: &mut RestoreWorker, job: Job, error: Error) -> Result<Job> {
        let Job {
            frame,
            pieces,
            bare,
        } = job;
        let (saved, lost): (Vec<_>, Vec<_>) = pieces
            .into_iter()
            .partition(|piece| piece.is_saved(&hand.plain));
        match &frame {
            Some(frame) if lost.is_empty() => self.report.harmless(&self.archive, frame, error),
            frame => self.spoil(hand, frame.as_ref(), lost, error)?,
        }
        Ok(Job {
            frame,
            pieces: saved,
            bare,
        })
    }

    fn write(
        &self,
        writer: &mut TargetWriter,
        wanted: &WantedRun<ParallelFile>,
        plain: &[u8],
        checked: CheckedContent,
    ) -> Result<()> {
        let content = wanted.content(plain);
        match (&wanted.of, checked) {
            (Of::Whole(item), CheckedContent::Whole(ContentEnd::Damaged(why))) => {
                self.report.file(item, &why)
            }
            (Of::Whole(item), _) => {
                let made =
                    self.unless_refused(&item.entry.path, writer.file(&item.entry, content))?;
                self.count(content, made.is_some());
                Ok(())
            }
            (Of::Part(shared, offset), CheckedContent::Part(hash)) => {
                self.write_part(writer, shared, *offset, content, hash)
            }
            (Of::Part(..), CheckedContent::Whole(_)) => Ok(()),
        }
    }

    fn write_part(
        &self,
        writer: &mut TargetWriter,
        shared: &ScheduleShared<ParallelFile>,
        offset: u64,
        content: &[u8],
        hash: Hash,
    ) -> Result<()> {
        let entry = &shared.item.entry;
        if !shared.is_damaged() {
            let written = shared.handle.write(writer, entry, offset, content);
            if self.unless_refused(&entry.path, written)?.is_none() {
                shared.spoil();
            }
        }
        self.count(content, false);
        self.end(
            writer,
            shared,
            shared.done(offset, content.len() as u64, hash),
        )
    }

    fn count(&self, content: &[u8], file: bool) {
        self.meter.bytes.fetch_add(content.len() as u64, Relaxed);
        self.meter.files.fetch_add(u64::from(file), Relaxed);
    }

    /// Something without content.
    fn bare(&self, writer: &mut TargetWriter, item: &PageItem) -> Result<()> {
        let made = match item.entry.kind {
            EntryKind::File { .. } => writer.file(&item.entry, &[]),
            _ => writer.other(&item.entry),
        };
        let made = self.unless_refused(&item.entry.path, made)?;
        self.meter
            .small
            .fetch_add((!item.entry.is_file()).into(), Relaxed);
        self.meter
            .files
            .fetch_add(u64::from(made.is_some() && item.entry.is_file()), Relaxed);
        Ok(())
    }

    /// What to do with a large file after a piece of it.
    fn end(
        &self,
        writer: &mut TargetWriter,
        shared: &ScheduleShared<ParallelFile>,
        end: ContentEnd,
    ) -> Result<()> {
        let end = match end {
            ContentEnd::Unknown(Digest::Blake3(wanted)) => {
                let found = shared.handle.hash(writer, &shared.item.entry)?;
                let why = || {
                    format!(
                        "its digest is {found}, the manifest says {}",
                        Digest::Blake3(wanted)
                    )
                };
                if found == wanted {
                    ContentEnd::Right
                } else {
                    ContentEnd::Damaged(why())
                }
            }
            other => other,
        };
        match end {
            ContentEnd::NotYet => Ok(()),
            ContentEnd::Right | ContentEnd::Unknown(_) => {
                let finished = shared.handle.finish(writer, &shared.item.entry);
                let made = self.unless_refused(&shared.item.entry.path, finished)?;
                self.meter
                    .files
                    .fetch_add(u64::from(made.is_some()), Relaxed);
                Ok(())
            }
            ContentEnd::Damaged(why) => {
                shared.handle.discard();
                // A damaged frame has been reported with all its files, and what the target cannot take by itself.
                if shared.is_damaged() {
                    Ok(())
                } else {
                    self.report.file(&shared.item, &why)
                }
            }
        }
    }

    /// What is there and cannot be replaced was not touched.
    pub(super) fn say_what_is_left(&self, damaged: &HashSet<EntryPath>) -> Result<()> {
        for path in damaged {
            if self.tree.is_there(path)? {
                self.report.note_outcome(path, LEFT);
            }
        }
        Ok(())
    }

    /// A frame is damaged, and so are these files that want it.
    fn spoil(
        &self,
        hand: &mut RestoreWorker,
        frame: Option<&(SegmentId, FrameAt)>,
        pieces: Vec<WantedRun<ParallelFile>>,
        error: Error,
    ) -> Result<()> {
        let Some(frame) = frame else {
            return Err(error);
        };
        let files = pieces
            .iter()
            .map(|piece| piece.item().entry.path.clone())
            .collect();
        self.report
            .add(frame_damage(&self.archive, frame, error, files))?;
        for piece in &pieces {
            if let Of::Part(shared, offset) = &piece.of {
                shared.spoil();
                self.end(
                    &mut hand.writer,
                    shared,
                    shared.done(*offset, piece.len.into(), None),
                )?;
            }
        }
        Ok(())
    }
}

/// What is known of a piece before it is written.
enum CheckedContent {
    Whole(ContentEnd),
    Part(Hash),
}

/// The pieces of large files.
fn parts(
    job: &Job,
) -> impl Iterator<
    Item = (
        &WantedRun<ParallelFile>,
        &Arc<ScheduleShared<ParallelFile>>,
        u64,
    ),
> {
    job.pieces.iter().filter_map(|wanted| match &wanted.of {
        Of::Part(shared, offset) => Some((wanted, shared, *offset)),
        Of::Whole(_) => None,
    })
}
