//! The process that fetches, checks and writes the content of placeholders.
//!
//! It may be killed at any moment: a unit that is half written has no bit, and no reader of it was answered. The next
//! worker writes the unit again.

use super::{
    content_source::ContentSource,
    event_table::WantedUnits,
    fetch_queue::{FetchQueue, FileUnit, LaneKind, UnitSpan},
    filled_file::FilledFile,
    messages::WorkerRequest,
    order::{file_order, prewarmed},
    plan_file::{InstantPlan, UNIT_BYTES},
    state_dir::StateDir,
    sync_cycle::SyncCycle,
    unit_map::{BAD, FINISHED, HERE, MapNumber, UnitMap},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    root::EntryName,
};
use fullbore_platform::{
    durable,
    pre_content::{EventGroup, standing::set_niceness},
    queue::Locked,
    write::{drop_behind, pwrite_all_of, write_behind},
};
use fullbore_repository::archive::stored_file::StoredPiece;
use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io::Write,
    ops::Range,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    process,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// Exit code of a worker whose guardian has ended.
const ORPHANED: i32 = 3;
/// Time between two looks whether everything is there.
const LOOK: Duration = Duration::from_millis(100);
/// Time after which files that are not finished are looked at again.
const AGAIN: Duration = Duration::from_secs(1);
/// Time after which damaged units are read again: a storage may have been repaired.
const RETRY_BAD: Duration = Duration::from_secs(60);
/// Time that the rest waits for a server at most.
const HOLD: Duration = Duration::from_secs(30);
/// Pauses after an error of the storage.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Bytes of a file that are written to the device together.
const BEHIND_BYTES: u64 = 8 << 20;
/// Niceness of threads that somebody waits for, who does not use the processor meanwhile, and of those for the rest, which
/// leave it to the server.
const DEMAND_NICENESS: i32 = -10;
const REST_NICENESS: i32 = 5;

/// The worker of one restore.
pub(super) struct Worker {
    pub(super) state: StateDir,
    pub(super) plan: InstantPlan,
    pub(super) map: UnitMap,
    pub(super) group: EventGroup,
    source: ContentSource,
    pub(super) queue: FetchQueue,
    pub(super) files: Vec<Mutex<FilledFile>>,
    /// Open directories by their devices.
    pub(super) roots: HashMap<u64, File>,
    pub(super) syncs: SyncCycle,
    wake: File,
    problem: Mutex<String>,
}

impl Worker {
    /// Makes the worker of a plan, with the backup that is read.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(
        (state, plan, map): (StateDir, InstantPlan, UnitMap),
        (group, wake): (EventGroup, File),
        (source, rest_rate, beside): (ContentSource, Option<u64>, usize),
    ) -> Result<Self> {
        let files = plan.files.iter().map(|_| Mutex::default()).collect();
        let seconds = rest_rate.map_or(0.0, |rate| UNIT_BYTES as f64 / rate.max(1) as f64);
        let queue = FetchQueue::new(Duration::from_secs_f64(seconds), beside);
        Ok(Self {
            roots: open_roots(&plan.head.roots)?,
            source,
            queue,
            syncs: SyncCycle::default(),
            problem: Mutex::default(),
            files,
            state,
            plan,
            map,
            group,
            wake,
        })
    }

    /// Works until everything is there and durable. `demand` and `rest` are numbers of lanes.
    ///
    /// The process ends with it: 0 if everything is there.
    pub(super) fn run(&self, requests: &File, (demand, rest): (usize, usize)) {
        // That of the guardian is inherited.
        set_niceness(0);
        self.take_stock();
        self.queue.hold_rest(self.map.number(MapNumber::Hold) != 0);
        self.plan_rest(true);
        self.wake();
        thread::scope(|scope| {
            scope.spawn(|| self.take_requests(requests));
            scope.spawn(|| self.sync_until_done());
            (0..demand).for_each(|_| drop(scope.spawn(|| self.lane(LaneKind::Demand))));
            (0..rest).for_each(|_| drop(scope.spawn(|| self.lane(LaneKind::Rest))));
            self.wait_until_whole();
            if let Err(error) = self.sync_roots() {
                eprintln!("note: {}", error.line());
                process::exit(1);
            }
            // The other threads wait for the guardian and for work, and need not end.
            process::exit(0);
        })
    }

    /// Finds what an earlier worker left: units that are not durable, and files that are nearly finished.
    fn take_stock(&self) {
        for file in 0..self.plan.files.len() as u32 {
            let planned = &self.plan.files[file as usize];
            let units = planned.first_unit..planned.first_unit + planned.units();
            self.syncs.add(
                units
                    .filter(|unit| self.map.state(*unit) & HERE != 0)
                    .map(|unit| (file, unit)),
            );
            self.end_content(file);
        }
    }

    fn plan_rest(&self, is_first: bool) {
        let mut order = file_order(&self.plan);
        order.retain(|file| self.map.flags(*file as usize) & FINISHED == 0);
        let listed = if is_first { self.listed() } else { Vec::new() };
        self.queue.plan(&order, |file| self.last_unit(file), listed);
    }

    fn listed(&self) -> Vec<FileUnit> {
        let places = prewarmed(&self.state.target, &self.plan).into_iter();
        let unit = |(file, offset)| FileUnit {
            file,
            unit: offset / UNIT_BYTES,
        };
        let mut units: Vec<_> = places.map(unit).collect();
        units.dedup();
        units
    }

    fn last_unit(&self, file: u32) -> u64 {
        (self.plan.files[file as usize].size - 1) / UNIT_BYTES
    }

    /// Wakes the guardian. A full pipe wakes it as well.
    pub(super) fn wake(&self) {
        let _ = (&self.wake).write(&[1]);
    }

    fn take_requests(&self, requests: &File) {
        set_niceness(DEMAND_NICENESS);
        while let Ok(Some(request)) = WorkerRequest::receive(requests) {
            self.take_request(request);
        }
        // Two workers must never write, and nobody would answer what this one waits for.
        process::exit(ORPHANED);
    }

    fn take_request(&self, request: WorkerRequest) {
        let is_planned = |file: u32| (file as usize) < self.plan.files.len();
        match request {
            WorkerRequest::Fetch(WantedUnits { file, first, last })
                if is_planned(file) && first <= last =>
            {
                self.queue.want(file, first, last, self.last_unit(file));
            }
            WorkerRequest::Finish(file) if is_planned(file) => {
                let last = self.last_unit(file);
                self.queue.want(file, 0, last, last);
            }
            WorkerRequest::Cut { file, size } if is_planned(file) => self.syncs.cut(file, size),
            WorkerRequest::Sync => self.syncs.ask(),
            _ => {}
        }
    }

    fn lane(&self, kind: LaneKind) {
        set_niceness(match kind {
            LaneKind::Demand => DEMAND_NICENESS,
            LaneKind::Rest => REST_NICENESS,
        });
        let mut pause = FIRST_PAUSE;
        let is_settled = |unit| self.is_settled(UnitSpan::one(unit));
        while let Some(span) = self.queue.next(kind, is_settled) {
            let filled = self.fill(span).or_else(|error| {
                let is_damaged = error.kind == ErrorKind::Corrupt && span.next < span.last;
                match is_damaged {
                    true => self.fill_apart(span),
                    false => Err(error),
                }
            });
            self.queue.release(span);
            match filled {
                Ok(()) => pause = FIRST_PAUSE,
                Err(error) => {
                    self.note_problem(span, &error);
                    if error.kind != ErrorKind::Corrupt {
                        // The guardian asks again for what somebody waits for.
                        thread::sleep(pause);
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
            }
            self.wake();
        }
    }

    fn note_problem(&self, span: UnitSpan, error: &Error) {
        if error.kind == ErrorKind::Corrupt {
            for unit in self.missing(span) {
                self.map.set(unit, BAD);
            }
        }
        let path = quoted(&self.plan.files[span.file as usize].path.0);
        let line = format!("note: {path}: {}", error.line());
        let mut last = self.problem.locked();
        if *last != line {
            eprintln!("{line}");
            *last = line;
        }
    }

    /// Returns whether nothing of these units can be filled now.
    fn is_settled(&self, span: UnitSpan) -> bool {
        let missing = self.missing(span);
        missing
            .into_iter()
            .all(|unit| self.map.state(unit) & BAD != 0)
    }

    /// Returns whether all units of a file up to its limit have these bits.
    pub(super) fn has_all(&self, file: u32, bits: u8) -> bool {
        let planned = &self.plan.files[file as usize];
        let units = self.map.limit(file as usize).div_ceil(UNIT_BYTES);
        let mut units = planned.first_unit..planned.first_unit + units.min(planned.units());
        units.all(|unit| self.map.is(unit, bits))
    }

    /// Returns the units of a span that are not here, up to the limit of the file.
    fn missing(&self, span: UnitSpan) -> Vec<u64> {
        let planned = &self.plan.files[span.file as usize];
        let limit = self.map.limit(span.file as usize).div_ceil(UNIT_BYTES);
        let end = (span.last + 1).min(planned.units()).min(limit);
        let units = planned.first_unit + span.next..planned.first_unit + end;
        units
            .filter(|unit| self.map.state(*unit) & HERE == 0)
            .collect()
    }

    /// Fetches the missing units of a span, and writes them, and what else is in their frames.
    fn fill(&self, span: UnitSpan) -> Result<()> {
        let planned = &self.plan.files[span.file as usize];
        let missing = self.missing(span);
        if missing.is_empty() {
            return Ok(());
        }
        let content = self.source.file(&self.plan, span.file)?;
        let in_file = missing.iter().map(|unit| unit - planned.first_unit);
        let file = &self.files[span.file as usize];
        let needed = file.locked().partial.needed(in_file, planned.size);
        let pieces = content.pieces(&needed)?;
        let file = &mut file.locked();
        // Looked at again under the lock. Somebody may have changed a unit that is here, so it is not written again; and
        // nothing is written behind a limit that was lowered.
        let mut done = self.missing(span);
        if let Some(opened) = file.open(self, span.file)? {
            let failed = |e| Error::io(format!("could not write {}", quoted(&planned.path.0)), e);
            let written = self.open_ranges(span.file, &pieces);
            for stretch in written.chunk_by(|a, b| a.0.end == b.0.start) {
                let buffers: Vec<_> = stretch.iter().map(|(_, bytes)| *bytes).collect();
                pwrite_all_of(opened, &buffers, stretch[0].0.start).map_err(failed)?;
            }
            let end = ((span.last + 1) * UNIT_BYTES).min(planned.size);
            if end == planned.size || end.is_multiple_of(BEHIND_BYTES) {
                write_behind_of(opened, end, self.queue.was_touched(span.file));
            }
            // Of a file that another lane has completed meanwhile, even the time of the last change stays.
            if !written.is_empty() {
                file.set_time(self, span.file)?;
            }
            let complete = written
                .into_iter()
                .flat_map(|(range, _)| file.partial.add(range, planned.size));
            done.extend(complete.map(|unit| planned.first_unit + unit));
        }
        done.sort_unstable();
        done.dedup();
        for unit in &done {
            self.map.set(*unit, HERE);
            file.partial.forget(unit - planned.first_unit);
        }
        self.syncs
            .add(done.into_iter().map(|unit| (span.file, unit)));
        file.end_content(self, span.file)
    }

    /// Returns the ranges of pieces whose units are not here, up to the limit of the file, with their bytes.
    fn open_ranges<'a>(&self, file: u32, pieces: &'a [StoredPiece]) -> Vec<(Range<u64>, &'a [u8])> {
        let first_unit = self.plan.files[file as usize].first_unit;
        let limit = self.map.limit(file as usize);
        let mut open = Vec::new();
        for piece in pieces {
            let (start, bytes) = (piece.offset, piece.bytes());
            let end = (start + bytes.len() as u64).min(limit);
            let units: Vec<_> = (start / UNIT_BYTES..end.div_ceil(UNIT_BYTES))
                .filter(|unit| !self.map.is(first_unit + unit, HERE))
                .collect();
            for units in units.chunk_by(|a, b| a + 1 == *b) {
                let range = (units[0] * UNIT_BYTES).max(start)
                    ..((units[0] + units.len() as u64) * UNIT_BYTES).min(end);
                let part = (range.start - start) as usize..(range.end - start) as usize;
                open.push((range, &bytes[part]));
            }
        }
        open
    }

    /// Fills units one by one, so that damage is that of one unit.
    fn fill_apart(&self, span: UnitSpan) -> Result<()> {
        for one in span.units().map(UnitSpan::one) {
            match self.fill(one) {
                Err(error) if error.kind == ErrorKind::Corrupt => self.note_problem(one, &error),
                filled => filled?,
            }
        }
        Ok(())
    }

    fn end_content(&self, file: u32) {
        let ended = self.files[file as usize].locked().end_content(self, file);
        if let Err(error) = ended {
            eprintln!("note: {}", error.line());
        }
    }

    fn wait_until_whole(&self) {
        let begun = Instant::now();
        let mut looked = Instant::now();
        let mut planned = Instant::now();
        let is_finished = |file: usize| self.map.flags(file) & FINISHED != 0;
        while !(0..self.plan.files.len()).all(is_finished) {
            thread::sleep(LOOK);
            let holds = self.map.number(MapNumber::Hold) != 0 && begun.elapsed() < HOLD;
            self.queue.hold_rest(holds);
            if looked.elapsed() > RETRY_BAD {
                looked = Instant::now();
                (0..self.plan.units()).for_each(|unit| self.map.clear(unit, BAD));
            }
            if self.queue.is_given_out() {
                // Only the sync of the last files is missing, mostly.
                self.syncs.ask();
                if planned.elapsed() > AGAIN {
                    planned = Instant::now();
                    self.plan_rest(false);
                }
            }
        }
        self.queue.end();
    }

    /// Makes everything durable that was written to the file systems of the target.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn sync_roots(&self) -> Result<()> {
        let synced = self.roots.values().try_for_each(durable::sync_fs);
        synced.map_err(|e| Error::io("could not sync the restored files", e))
    }
}

/// Opens a directory of each file system.
pub(super) fn open_roots(names: &[EntryName]) -> Result<HashMap<u64, File>> {
    let mut roots = HashMap::new();
    for name in names {
        let path = OsStr::from_bytes(&name.0);
        let failed = |e| Error::io(format!("could not open {path:?}"), e);
        let file = File::open(path).map_err(failed)?;
        roots.insert(file.metadata().map_err(failed)?.dev(), file);
    }
    Ok(roots)
}

/// Starts to write the stretch of a file that ends at `end`: a sync then waits for little. The stretch before it leaves the
/// page cache if nobody reads the file, so that what others read stays there.
fn write_behind_of(file: &File, end: u64, is_touched: bool) {
    let start = (end - 1) / BEHIND_BYTES * BEHIND_BYTES;
    write_behind(file, start, end - start);
    if let (false, Some(before)) = (is_touched, start.checked_sub(BEHIND_BYTES)) {
        drop_behind(file, before, BEHIND_BYTES);
    }
}
