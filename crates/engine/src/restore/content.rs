//! The first pass of a restore: all entries with content.
//!
//! As many workers compute at once as were requested; where the target makes them wait, more
//! workers write.
//!
//! A worker has one frame at a time and writes the wanted pieces of that frame. A large file is
//! divided into stretches, and a worker has all frames of one stretch, which may be many if the
//! file has many small changes. The worker assembles the stretch, then hashes and writes it once.

use super::{content_records::ContentRecords, run::RestoreRun};
use crate::report::damage::{LEFT, frame_damage};
use fullbore_format::{
    digest::Digest,
    entry::{EntryKind, EntryPath},
    error::{Error, Result},
    page::{FrameAt, PageItem, SegmentId},
};
use fullbore_pipeline::workers::{self, WorkerLimit};
use fullbore_platform::metrics::{cpu::ThreadClock, meter::lap};
use fullbore_repository::archive::{
    frame_reader::FrameReader,
    schedule::{
        self, ContentEnd, JobPlanner, PieceHash, RunOwner, ScheduleShared, StretchBuffer,
        WantedRun, check_pieces,
    },
    volume_passes::VolumePasses,
};
use fullbore_tree::write::{parallel_file::ParallelFile, writer::TargetWriter};
use std::{
    collections::HashSet,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

type Job = schedule::FrameJob<ParallelFile>;

/// Minimum size of a stretch, also when frames are smaller.
const LEAST_STRETCH: u64 = 64 << 10;
/// Maximum size of a stretch: the size of the largest frames written. Limits the frame size that a
/// root claims.
const MOST_STRETCH: u64 = 64 << 20;

/// Writer, frames and buffer of one worker.
struct RestoreWorker {
    writer: TargetWriter,
    frames: FrameReader,
    stretch: Vec<u8>,
}

impl RestoreRun<'_> {
    /// Runs the first pass: restores everything except hard links and the metadata of directories.
    pub(super) fn content(&self, limit: &WorkerLimit<'_>) -> Result<()> {
        if self.selection.is_everything() && self.rules.restores_all() {
            self.meter
                .total_bytes
                .store(self.archive.root.totals.bytes, Relaxed);
        }
        let make = || RestoreWorker {
            writer: TargetWriter::new(&self.tree),
            frames: FrameReader::default(),
            stretch: Vec::new(),
        };
        let mut volumes = VolumePasses::new(&self.archive.root);
        let mut content = ContentRecords::default();
        loop {
            workers::work(
                limit,
                make,
                |worker, jobs| self.restore_jobs(worker, jobs),
                |send| self.plan_jobs(volumes.as_mut(), &mut content, send),
            )?;
            if !volumes.as_mut().is_some_and(VolumePasses::advance) {
                return Ok(());
            }
        }
    }

    /// Plans one pass over the records; there is one, or several over a backup in volumes.
    fn plan_jobs(
        &self,
        volumes: Option<&mut VolumePasses<ParallelFile>>,
        content: &mut ContentRecords,
        send: &mut dyn FnMut(Vec<Job>) -> Result<()>,
    ) -> Result<()> {
        let is_again = volumes.as_ref().is_some_and(|pass| !pass.is_first());
        let is_repeated = volumes.is_some();
        let mut stretches = StretchBuffer::new(
            self.archive
                .root
                .options
                .frame_bytes
                .clamp(LEAST_STRETCH, MOST_STRETCH),
            send,
        );
        let mut planner = JobPlanner::in_pass(|job| stretches.add(job), volumes);
        let mut writer = TargetWriter::new(&self.tree);
        for (number, item) in (0..).zip(self.archive.records(&self.selection, false)) {
            if is_again {
                self.plan_again(&mut planner, content, number, item)?;
                continue;
            }
            let planned = item.and_then(|item| self.plan_item(&mut planner, &mut writer, item));
            if is_repeated {
                content.note(number, &planned);
            }
            self.report.tolerate(planned.map(drop))?;
        }
        let finished = planner.finish();
        if !is_again {
            self.report.tolerate(finished)?;
        }
        stretches.flush()
    }

    /// Plans the content of a record that an earlier pass planned. Errors were reported by that pass.
    fn plan_again<S: FnMut(Job) -> Result<()>>(
        &self,
        planner: &mut JobPlanner<'_, ParallelFile, S>,
        content: &ContentRecords,
        number: u64,
        item: Result<PageItem>,
    ) -> Result<()> {
        let item = match item {
            Err(_) if content.has_failed(number) => return Ok(()),
            item => item?,
        };
        if !content.has(number) {
            return Ok(());
        }
        match &item.entry.kind {
            EntryKind::HardLink(target) => {
                let found = self.archive.find(target)?;
                let renamed = found
                    .iter()
                    .map(|part| part.renamed(item.entry.path.clone()));
                renamed
                    .filter(|part| part.state.is_stored())
                    .try_for_each(|part| planner.add(part))
            }
            _ => planner.add(item),
        }
    }

    /// Plans one entry, and makes the placeholder of a file whose content comes later. Returns whether the entry has content
    /// that was planned.
    fn plan_item<S: FnMut(Job) -> Result<()>>(
        &self,
        planner: &mut JobPlanner<'_, ParallelFile, S>,
        writer: &mut TargetWriter,
        item: PageItem,
    ) -> Result<bool> {
        let mut later = None;
        let mut has_content = false;
        let mut add = |item: PageItem| match &self.deferral {
            Some(deferral) if deferral.defers(&item) => {
                later = Some(item);
                Ok(())
            }
            _ => {
                has_content |= !item.extents.is_empty();
                planner.add(item)
            }
        };
        self.plan_entry(&mut add, writer, item)?;
        match (&self.deferral, later) {
            (Some(deferral), Some(item)) if item.from == 0 => {
                let made = deferral.make(writer, &item);
                let made = self.unless_refused(&item.entry.path, made)?;
                self.count_bytes(&[], made.is_some());
            }
            _ => {}
        }
        Ok(has_content)
    }

    fn restore_jobs(&self, worker: &mut RestoreWorker, jobs: Vec<Job>) -> Result<()> {
        match jobs.len() {
            0 | 1 => jobs
                .into_iter()
                .try_for_each(|job| self.restore_frame(worker, job)),
            _ => self.restore_stretch(worker, jobs),
        }
    }

    /// Restores one frame: decodes it, checks its pieces and writes them.
    fn restore_frame(&self, worker: &mut RestoreWorker, job: Job) -> Result<()> {
        let mut clock = ThreadClock::now();
        let job = match self.decode(worker, &job, &mut clock) {
            Err(error) => {
                return self.report_lost_pieces(worker, job.frame.as_ref(), job.pieces, error);
            }
            Ok(None) => job,
            Ok(Some(error)) => self.salvage(worker, job, error)?,
        };
        let plain = worker.frames.plain();
        let part = |shared: &ScheduleShared<ParallelFile>, offset, bytes: &[u8]| {
            CheckedContent::Part(shared.hash(&self.archive.root.options, offset, bytes))
        };
        let checked = self
            .permits
            .hold(|| check_pieces(&job.pieces, plain, CheckedContent::Whole, part));
        lap(&self.meter.workers, &mut clock);
        let mut pieces = job.pieces.iter().zip(checked);
        let written = pieces.try_for_each(|(piece, checked)| {
            self.write_piece(&mut worker.writer, piece, plain, checked)
        });
        let written = written.and_then(|()| {
            job.bare
                .iter()
                .try_for_each(|item| self.write_without_content(&mut worker.writer, item))
        });
        lap(&self.meter.sink, &mut clock);
        written
    }

    /// Restores one stretch of a large file from its frames.
    fn restore_stretch(&self, worker: &mut RestoreWorker, jobs: Vec<Job>) -> Result<()> {
        let parts = || jobs.iter().flat_map(large_file_parts);
        let Some((_, shared, _)) = parts().next() else {
            return Ok(());
        };
        let shared = shared.clone();
        let start = parts().map(|(_, _, offset)| offset).min().unwrap_or(0);
        let mut data = std::mem::take(&mut worker.stretch);
        let runs = self.assemble(worker, jobs, start, &mut data)?;
        let mut clock = ThreadClock::now();
        // Lost frames leave gaps, so each part between them is hashed and written by itself.
        for run in runs.chunk_by(|a, b| a.end == b.start) {
            let begin = run[0].start;
            let end = run[run.len() - 1].end;
            let content = &data[(begin - start) as usize..(end - start) as usize];
            let hash = self
                .permits
                .hold(|| shared.hash(&self.archive.root.options, begin, content));
            lap(&self.meter.workers, &mut clock);
            self.write_part(&mut worker.writer, &shared, begin, content, hash)?;
            lap(&self.meter.sink, &mut clock);
        }
        // The next stretch uses the same buffer.
        worker.stretch = data;
        Ok(())
    }

    /// Decodes the frames of a stretch that starts at `start`, and puts its pieces together in
    /// `data`. Returns the ranges of the intact pieces in the file, in ascending order.
    fn assemble(
        &self,
        worker: &mut RestoreWorker,
        jobs: Vec<Job>,
        start: u64,
        data: &mut Vec<u8>,
    ) -> Result<Vec<Range<u64>>> {
        let mut clock = ThreadClock::now();
        let mut runs = Vec::new();
        for job in jobs {
            if let Err(error) | Ok(Some(error)) = self.decode(worker, &job, &mut clock) {
                self.report_lost_pieces(worker, job.frame.as_ref(), job.pieces, error)?;
                continue;
            }
            for (wanted, _, offset) in large_file_parts(&job) {
                let content = wanted.content(worker.frames.plain());
                let place = (offset - start) as usize;
                data.resize(data.len().max(place + content.len()), 0);
                data[place..][..content.len()].copy_from_slice(content);
                runs.push(offset..offset + content.len() as u64);
            }
            lap(&self.meter.workers, &mut clock);
        }
        runs.sort_by_key(|run| run.start);
        Ok(runs)
    }

    /// Decodes the frame of a job.
    ///
    /// Returns the error of a frame with a wrong checksum whose bytes could be decoded all the
    /// same; the digests of its files then decide which of them are intact.
    fn decode(
        &self,
        worker: &mut RestoreWorker,
        job: &Job,
        clock: &mut ThreadClock,
    ) -> Result<Option<Error>> {
        let Some((segment, frame)) = &job.frame else {
            return Ok(None);
        };
        let fetched = worker.frames.fetch(&self.archive, segment, frame);
        self.meter
            .stored_bytes
            .fetch_add(u64::from(frame.stored_len), Relaxed);
        lap(&self.meter.source, clock);
        let stored = fetched?;
        self.permits.hold(|| stored.salvage())
    }

    /// Drops the files of a frame with a wrong checksum, except those whose digests prove that they
    /// are intact. Returns the job with the intact files.
    fn salvage(&self, worker: &mut RestoreWorker, job: Job, error: Error) -> Result<Job> {
        let Job {
            frame,
            pieces,
            bare,
        } = job;
        let (saved, lost): (Vec<_>, Vec<_>) = pieces
            .into_iter()
            .partition(|piece| piece.is_saved(worker.frames.plain()));
        match &frame {
            Some(frame) if lost.is_empty() => self.report.harmless(&self.archive, frame, error),
            frame => self.report_lost_pieces(worker, frame.as_ref(), lost, error)?,
        }
        Ok(Job {
            frame,
            pieces: saved,
            bare,
        })
    }

    fn write_piece(
        &self,
        writer: &mut TargetWriter,
        wanted: &WantedRun<ParallelFile>,
        plain: &[u8],
        checked: CheckedContent,
    ) -> Result<()> {
        let content = wanted.content(plain);
        match (&wanted.of, checked) {
            (RunOwner::Whole(item), CheckedContent::Whole(ContentEnd::Damaged(why))) => {
                self.report.file(item, &why)
            }
            (RunOwner::Whole(item), _) => {
                let made =
                    self.unless_refused(&item.entry.path, writer.file(&item.entry, content))?;
                self.count_bytes(content, made.is_some());
                Ok(())
            }
            (RunOwner::Part(shared, offset), CheckedContent::Part(hash)) => {
                self.write_part(writer, shared, *offset, content, hash)
            }
            (RunOwner::Part(..), CheckedContent::Whole(_)) => Ok(()),
        }
    }

    fn write_part(
        &self,
        writer: &mut TargetWriter,
        shared: &ScheduleShared<ParallelFile>,
        offset: u64,
        content: &[u8],
        hash: PieceHash,
    ) -> Result<()> {
        let entry = &shared.item.entry;
        if !shared.is_damaged() {
            let written = shared.handle.write(writer, entry, offset, content);
            if self.unless_refused(&entry.path, written)?.is_none() {
                shared.spoil();
            }
        }
        self.count_bytes(content, false);
        self.end_large_file(
            writer,
            shared,
            shared.done(offset, content.len() as u64, hash),
        )
    }

    fn count_bytes(&self, content: &[u8], file: bool) {
        self.meter.bytes.fetch_add(content.len() as u64, Relaxed);
        self.meter.files.fetch_add(u64::from(file), Relaxed);
    }

    /// Writes an entry without content.
    fn write_without_content(&self, writer: &mut TargetWriter, item: &PageItem) -> Result<()> {
        let made = match item.entry.kind {
            EntryKind::File { .. } => writer.file(&item.entry, &[]),
            _ => writer.special_file(&item.entry),
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

    /// Finishes or discards a large file after its last piece; does nothing before.
    fn end_large_file(
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
                // The report already has this damage: of the frame with all its files, or of the
                // refused entry.
                if shared.is_damaged() {
                    Ok(())
                } else {
                    self.report.file(&shared.item, &why)
                }
            }
        }
    }

    /// Reports damaged files for which an older file is still in the target, untouched.
    pub(super) fn report_kept_files(&self, damaged: &HashSet<EntryPath>) -> Result<()> {
        for path in damaged {
            if self.tree.is_there(path)? {
                self.report.note_outcome(path, LEFT);
            }
        }
        Ok(())
    }

    /// Reports a damaged frame and the files that need it.
    fn report_lost_pieces(
        &self,
        worker: &mut RestoreWorker,
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
            if let RunOwner::Part(shared, offset) = &piece.of {
                shared.spoil();
                // A lost piece counts as done, so that the last piece of the file still ends it.
                self.end_large_file(
                    &mut worker.writer,
                    shared,
                    shared.done(*offset, piece.len.into(), None),
                )?;
            }
        }
        Ok(())
    }
}

/// The check of a piece before it is written.
enum CheckedContent {
    Whole(ContentEnd),
    Part(PieceHash),
}

/// Returns the pieces of large files of a job, each with its file and its offset.
fn large_file_parts(
    job: &Job,
) -> impl Iterator<
    Item = (
        &WantedRun<ParallelFile>,
        &Arc<ScheduleShared<ParallelFile>>,
        u64,
    ),
> {
    job.pieces.iter().filter_map(|wanted| match &wanted.of {
        RunOwner::Part(shared, offset) => Some((wanted, shared, *offset)),
        RunOwner::Whole(_) => None,
    })
}
