//! Runs the streams of a backup, one for each source, all at the same time.

use crate::plan::{Depths, StageSpec, Tuning, at_fast_level, chain};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_pipeline::{
    frame::{Frame, Pool, Scanned, Slice},
    known::{BaseEntry, Trust},
    lay::{MakeRoot, StreamLayout, StreamOutcome, StreamWriter},
    level_choice::LevelChooser,
    ordered::{FrameLine, FrameWorkers, Permits, WorkFn},
    pack::pack,
    pages::{EntryListener, RecordOrder},
    read_ahead::{ReadAhead, ScannedFiles, WindowLimits},
    sink::{Partial, Sink},
    source::{self, Source},
    stage::{Chain, Stage, level::LevelDial},
    thread_count::ThreadTuner,
};
use fullbore_platform as platform;
use fullbore_platform::{
    memory,
    metrics::meter::{Meter, MeterSample, Side, verdict},
    queue::{Locked, RateLimit, start_in},
};
use std::{
    collections::BTreeMap,
    num::{NonZeroU64, NonZeroUsize},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

/// Settings that all streams share.
pub(crate) struct Streams<'a> {
    pub(crate) tuning: &'a Tuning,
    /// Whether the source is standard input, which only one thread at a time can read.
    pub(crate) is_stdin: bool,
    /// Bytes of a file above which each of its frames is a member, so that a volume can end behind any of them.
    pub(crate) whole_bytes: Option<u64>,
    /// Maximum number of bytes read a second.
    pub(crate) max_rate: Option<NonZeroU64>,
    pub(crate) stages: Vec<StageSpec>,
    /// The level of adaptive compression.
    pub(crate) dial: Option<Arc<LevelDial>>,
    pub(crate) layout: Arc<StreamLayout>,
    pub(crate) meter: &'a Arc<Meter>,
    /// Makes the root of a one-file archive.
    pub(crate) root: Option<MakeRoot<'a>>,
    pub(crate) checkpoints: Option<&'a Checkpoints<'a>>,
}

impl Streams<'_> {
    /// Runs all streams at the same time. They share the permits to compute; the first error stops
    /// all of them.
    ///
    /// # Errors
    /// The first error of a stream.
    pub(crate) fn run(
        &self,
        sources: &[Arc<dyn Source>],
        sinks: Vec<Box<dyn Sink>>,
    ) -> Result<Vec<StreamOutcome>> {
        let meter = self.meter;
        let depths = self.tuning.depths(sources.len())?;
        meter.workers.set_threads(depths.workers.get());
        let stream_threads = self.stream_threads(sources, &depths)?;
        let leading: Vec<&Threads> = stream_threads
            .iter()
            .filter(|threads| threads.leads)
            .collect();
        meter.streams.store(leading.len(), Relaxed);
        meter.sink.set_threads(leading.len());
        staff_source(&leading, meter);
        let stop = AtomicBool::new(false);
        let streams = self.stream_runs(sources, sinks, &stream_threads, &depths, &stop)?;
        std::thread::scope(|scope| {
            let (done, over) = mpsc::channel::<()>();
            // More threads cannot read standard input faster, and a limited rate needs no more.
            if self.tuning.readers.is_none() && !self.is_stdin && self.max_rate.is_none() {
                start_in(scope, || self.adjust_threads(&leading, over))?;
            }
            let streams = run_all(streams, StreamRun::lay_scan, || stop.store(true, Relaxed));
            let laid = streams.and_then(|streams| {
                run_all(
                    streams,
                    |stream| stream.finish(self.root),
                    || stop.store(true, Relaxed),
                )
            });
            // Ends `adjust_threads`, for which the scope waits.
            drop(done);
            laid
        })
    }

    /// Makes the run of each stream, which has not started yet.
    fn stream_runs<'a>(
        &'a self,
        sources: &[Arc<dyn Source>],
        sinks: Vec<Box<dyn Sink>>,
        stream_threads: &'a [Threads],
        depths: &Depths,
        stop: &'a AtomicBool,
    ) -> Result<Vec<StreamRun<'a>>> {
        let mut streams = Vec::new();
        let chooser = self.level_chooser(depths);
        for ((source, sink), (threads, number)) in sources
            .iter()
            .zip(sinks)
            .zip(stream_threads.iter().zip(1..))
        {
            let told = source.clone();
            let tell: EntryListener =
                Arc::new(move |record, crc32c| told.on_stored(record, crc32c));
            let layout = self.layout.clone();
            let order = record_order(source);
            let meter = self.meter.clone();
            if self.whole_bytes.is_some() && !source.is_sorted() {
                return Err(unsorted());
            }
            let lay = StreamWriter::new(layout, meter, number, sink, tell, order)?;
            let clock = self
                .checkpoints
                // The records of the others are sorted only at the end.
                .filter(|_| source.is_sorted())
                .map(|checkpoints| (checkpoints, Instant::now(), number));
            streams.push(StreamRun {
                source: source.clone(),
                drained: Some(DrainedSignal(source.clone())),
                threads,
                lay,
                frame_bytes: self.tuning.frame_bytes,
                window: self.window(depths),
                whole_bytes: self.whole_bytes,
                root: self.root.filter(|_| self.whole_bytes.is_some()),
                // A follower takes faster stages while it falls behind, and chooses no level.
                chooser: chooser.clone().filter(|_| threads.leads),
                clock,
                stop,
            });
        }
        Ok(streams)
    }

    fn level_chooser(&self, depths: &Depths) -> Option<Arc<LevelChooser>> {
        let choose = |dial: &Arc<LevelDial>| {
            LevelChooser::new(dial.clone(), self.meter.clone(), depths.workers.get())
        };
        self.dial.as_ref().map(choose).map(Arc::new)
    }

    /// Returns the limits of a window in which small files are read ahead: at most the bytes that a
    /// limited rate reads in a second.
    fn window(&self, depths: &Depths) -> WindowLimits {
        let rate = self.max_rate.map_or(u64::MAX, NonZeroU64::get);
        WindowLimits {
            file_bytes: depths.window.file_bytes.min(rate),
            ..depths.window
        }
    }

    /// Creates the threads of each stream.
    fn stream_threads(&self, sources: &[Arc<dyn Source>], depths: &Depths) -> Result<Vec<Threads>> {
        let buffers = sources.len() * (depths.line + 1) + depths.permits.get();
        let pool = Pool::new(self.tuning.frame_bytes as usize + (64 << 10), buffers);
        let permits = Permits::new(depths.permits);
        // A stream is read in turns: a thread waiting for its turn must not keep another thread
        // from reading.
        let readers = self.tuning.readers.filter(|_| !self.is_stdin);
        let pace = self.max_rate.map(|rate| Arc::new(RateLimit::of(rate)));
        let start = |source: &Arc<dyn Source>| {
            let leads = !source.runs_alongside();
            let task = FrameTask {
                source: source.clone(),
                stages: self.stages.clone(),
                pool: pool.clone(),
                permits: permits.clone(),
                reads: readers.map(Permits::new),
                pace: pace.clone().filter(|_| leads),
                meter: self.meter.clone(),
                leads,
            };
            self.start_threads(task, depths)
        };
        sources.iter().map(start).collect()
    }

    /// Starts the threads of one stream.
    fn start_threads(&self, task: FrameTask, depths: &Depths) -> Result<Threads> {
        let leads = task.leads;
        let readers = self.tuning.readers.map_or(0, NonZeroUsize::get);
        let mut first = (readers + depths.workers.get()).min(depths.line);
        if !leads {
            // Half of the workers are left to the other sources, which would otherwise never be
            // read.
            first = first.min(depths.workers.get() / 2);
        }
        let first = NonZeroUsize::new(first).unwrap_or(NonZeroUsize::MIN);
        let gauge = if leads {
            self.meter.source.clone()
        } else {
            Arc::default()
        };
        let workers = FrameWorkers::start(first, gauge, move || task.work())?;
        Ok(Threads {
            line: FrameLine::new(2 * workers.size() + 4, depths.line),
            least: workers.size(),
            max: depths.threads,
            workers,
            leads,
        })
    }

    /// Adds threads during the run where they pay off.
    fn adjust_threads(&self, stream_threads: &[&Threads], over: mpsc::Receiver<()>) {
        let mut tuner = ThreadTuner::new(self.meter, self.tuning.workers.get());
        while over.recv_timeout(Duration::from_millis(50)) == Err(mpsc::RecvTimeoutError::Timeout) {
            add_threads(&mut tuner, self.meter.sample(), stream_threads, self.meter);
        }
    }
}

fn record_order(source: &Arc<dyn Source>) -> RecordOrder {
    if source.is_sorted() {
        return RecordOrder::Sorted;
    }
    let source = source.clone();
    RecordOrder::Unsorted(Arc::new(move |record| source.settle(record)))
}

/// The work on the frames of one stream.
///
/// A thread reads a frame and computes on it while it is in the processor's cache.
#[derive(Clone)]
struct FrameTask {
    source: Arc<dyn Source>,
    stages: Vec<StageSpec>,
    pool: Arc<Pool>,
    /// Permits to compute, shared by all streams.
    permits: Arc<Permits>,
    /// Permits to read this stream, if the number of readers is fixed.
    reads: Option<Arc<Permits>>,
    pace: Option<Arc<RateLimit>>,
    meter: Arc<Meter>,
    /// Whether the run lasts until this stream has no more work. A follower does not lead: it runs
    /// as long as others are read, and its waiting must not slow them. Its data cannot wait, so it
    /// computes first, and with faster stages while it falls behind.
    leads: bool,
}

impl FrameTask {
    /// Returns the work function of one thread.
    fn work(&self) -> Result<WorkFn<Slice, Frame>> {
        let task = self.clone();
        let mut usual = chain(&self.stages, &self.pool)?;
        let mut fast = if self.leads {
            None
        } else {
            Some(chain(&at_fast_level(&self.stages), &self.pool)?)
        };
        Ok(Box::new(move |slice| {
            let frame = task.read(slice)?;
            let stages = fast
                .as_mut()
                .filter(|_| task.source.is_falling_behind())
                .unwrap_or(&mut usual);
            task.compute(stages, frame)
        }))
    }

    fn read(&self, slice: Slice) -> Result<Frame> {
        if self.reads.is_some() {
            // Otherwise pieces hold all permits while they wait for a slice that needs one.
            slice.wait();
        }
        memory::check().map_err(|e| Error::io("could not continue", e))?;
        let read = || self.meter.source.work(|| self.read_paced(slice));
        match &self.reads {
            Some(reads) => reads.hold(read),
            None => read(),
        }
    }

    fn read_paced(&self, slice: Slice) -> Result<Frame> {
        let frame = self.source.read(slice, self.pool.take())?;
        if let Some(pace) = &self.pace {
            let bytes = frame.data.len() as u64;
            self.meter.paced_bytes.fetch_add(bytes, Relaxed);
            pace.wait_for(bytes);
        }
        Ok(frame)
    }

    fn compute(&self, stages: &mut Chain, frame: Frame) -> Result<Frame> {
        let compute = || self.meter.workers.compute(|| stages.apply(frame));
        if self.leads {
            self.permits.hold(compute)
        } else {
            self.permits.hold_first(compute)
        }
    }
}

/// Adds threads. Existing threads are never stopped; idle ones sleep.
fn add_threads(
    tuner: &mut ThreadTuner,
    now: MeterSample,
    stream_threads: &[&Threads],
    meter: &Meter,
) {
    let have: usize = stream_threads
        .iter()
        .map(|threads| threads.workers.size())
        .sum();
    let max = stream_threads.iter().map(|threads| threads.max).sum();
    let waits = |since: &_, now: &_| {
        stream_threads
            .iter()
            .any(|threads| threads.workers.has_backlog())
            && verdict(since, now).of(Side::Sink).busy <= 0.85
    };
    let want = tuner.wanted_threads(now, have, max, waits).max(have);
    for threads in stream_threads.iter().cycle().take(want - have) {
        threads
            .line
            .raise(threads.workers.size() + 2 * threads.least + 4);
        if let Err(error) = threads.workers.grow() {
            // The backup goes on with the threads that it has.
            platform::debug(|| error.line());
        }
    }
    if want > have {
        staff_source(stream_threads, meter);
    }
}

fn staff_source(stream_threads: &[&Threads], meter: &Meter) {
    meter.source.set_threads(
        stream_threads
            .iter()
            .map(|threads| threads.workers.size())
            .sum(),
    );
}

/// The threads of one stream, the length of its queue to the sink, and limits of both.
struct Threads {
    workers: Arc<FrameWorkers<Slice, Frame>>,
    line: Arc<FrameLine<Frame>>,
    least: usize,
    max: usize,
    /// Whether the run lasts until this stream has no more work.
    leads: bool,
}

/// One stream of a backup: scan ▸ pack ▸ [read ▸ digest ▸ compress] ▸ lay ▸ sink.
struct StreamRun<'a> {
    source: Arc<dyn Source>,
    /// Dropped when all scanned data has been read.
    drained: Option<DrainedSignal>,
    threads: &'a Threads,
    lay: StreamWriter,
    frame_bytes: u32,
    /// Limits of a window in which small files are read ahead.
    window: WindowLimits,
    /// Bytes of a file above which it is stored in pieces.
    whole_bytes: Option<u64>,
    /// Makes the root of a volume.
    root: Option<MakeRoot<'a>>,
    /// Chooses the level, with adaptive compression.
    chooser: Option<Arc<LevelChooser>>,
    /// The checkpoints, the time of the last one, and the number of this stream.
    clock: Option<(&'a Checkpoints<'a>, Instant, u32)>,
    /// Whether another stream has failed.
    stop: &'a AtomicBool,
}

/// Stores roots of the data that is durable so far.
pub(crate) struct Checkpoints<'a> {
    pub(crate) interval: Duration,
    pub(crate) write: Partial,
    pub(crate) root: &'a (dyn Fn(Vec<StreamOutcome>) -> Result<Vec<u8>> + Sync),
    /// The last state of each stream.
    pub(crate) laid: Mutex<BTreeMap<u32, StreamOutcome>>,
}

impl Checkpoints<'_> {
    /// Returns whether it is time for a checkpoint. It ends a segment, so it waits for the end of a
    /// member, but not longer than for another interval.
    fn is_due(&self, last: &Instant, is_in_member: bool) -> bool {
        let intervals = if is_in_member { 2 } else { 1 };
        last.elapsed() >= self.interval.saturating_mul(intervals)
    }

    fn store(&self, stream: u32, laid: StreamOutcome) -> Result<()> {
        let mut all = self.laid.locked();
        all.insert(stream, laid);
        (self.write)(&(self.root)(all.values().cloned().collect())?)
    }
}

impl StreamRun<'_> {
    /// Lays all entries of the scan.
    fn lay_scan(mut self) -> Result<Self> {
        let line = self.threads.line.clone();
        let scan = self
            .source
            .scan()
            .map(|entries| self.read_small_files_ahead(entries))
            .and_then(|entries| self.lay_entries(entries, line))
            .and_then(|()| self.lay.store_sorted_pages());
        self.drained = None;
        scan.inspect_err(|_| self.stop.store(true, Relaxed))
            .map(|()| self)
    }

    fn read_small_files_ahead(&self, entries: source::Stream<Scanned>) -> source::Stream<Scanned> {
        match self.source.opener() {
            Some(opener) => Box::new(ReadAhead::new(entries, ScannedFiles(opener), self.window)),
            None => entries,
        }
    }

    fn lay_entries(
        &mut self,
        entries: source::Stream<Scanned>,
        line: Arc<FrameLine<Frame>>,
    ) -> Result<()> {
        let workers = &self.threads.workers;
        let mut here: Option<WorkFn<Slice, Frame>> = None;
        let slices = self
            .source
            .prepare(pack(in_pieces(entries, self.whole_bytes), self.frame_bytes));
        for frame in workers.ordered(slices, line.clone()) {
            let mut next = Some(frame?);
            if let Some(chooser) = &self.chooser {
                let (done, limit) = line.fill();
                chooser.note_taken(done, limit);
            }
            while let Some(mut frame) = next {
                if self.stop.load(Relaxed) {
                    return Err(Error::new(ErrorKind::Bug, "another stream failed"));
                }
                let rest = frame.rest.take();
                self.lay.frame(frame, self.root)?;
                self.checkpoint()?;
                // Serially, in this thread: the length of the queue bounds the number of frames in
                // memory.
                next = match rest {
                    None => None,
                    Some(rest) => {
                        let work = match &mut here {
                            Some(work) => work,
                            none => none.insert(workers.make_work()?),
                        };
                        Some(work(rest)?)
                    }
                };
            }
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        match &mut self.clock {
            Some((checkpoints, last, number))
                if checkpoints.is_due(last, self.lay.is_in_member()) =>
            {
                checkpoints.store(*number, self.lay.checkpoint()?)?;
                *last = Instant::now();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Lays the entries that are known only after all streams were read. Then ends the stream, with
    /// a root if it is a one-file archive.
    fn finish(mut self, root: Option<MakeRoot<'_>>) -> Result<StreamOutcome> {
        let late = || {
            let mut entries = self.source.finish()?.peekable();
            if entries.peek().is_some() {
                self.lay.begin_late_sequence()?;
                self.lay_entries(Box::new(entries), self.threads.line.same_length())?;
            }
            self.lay.finish(root)
        };
        late()
    }
}

/// Marks files of more than `whole_bytes`: each of their frames becomes a member, as in a backup that was compared.
fn in_pieces(
    entries: source::Stream<Scanned>,
    whole_bytes: Option<u64>,
) -> source::Stream<Scanned> {
    let Some(whole_bytes) = whole_bytes else {
        return entries;
    };
    let mark = move |scanned: Scanned| {
        let is_large = scanned.entry.is_file() && scanned.entry.data_len() > whole_bytes;
        if !is_large || scanned.known.is_some() || !scanned.state.is_stored() {
            return scanned;
        }
        let known = BaseEntry::without_places(&scanned.entry, Trust::Nothing);
        Scanned {
            known: Some(known),
            ..scanned
        }
    };
    Box::new(entries.map(move |scanned| scanned.map(mark)))
}

/// The error for a source whose pages are known only at the end.
fn unsorted() -> Error {
    let message = "cannot write a cluster to volumes as the server sends it";
    Error::new(ErrorKind::Usage, message)
        .because("its entries are in no order, so a volume could not describe itself")
        .hint("use --via files or --via sql")
}

/// Tells the source, when dropped, that all data was read or that reading failed.
struct DrainedSignal(Arc<dyn Source>);

impl Drop for DrainedSignal {
    fn drop(&mut self) {
        self.0.on_all_read();
    }
}

/// Calls its function if the thread panics.
struct PanicAlarm<'a, F: Fn()>(&'a F);

impl<F: Fn()> Drop for PanicAlarm<'_, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// Processes all `items` at the same time. Returns the first error, or all results.
/// Calls `failed` at once for a thread that cannot be started or that panics.
fn run_all<I: Send, O: Send>(
    items: Vec<I>,
    work: impl Fn(I) -> Result<O> + Sync,
    failed: impl Fn() + Sync,
) -> Result<Vec<O>> {
    let lost = |_| Err(Error::new(ErrorKind::Bug, "a stream stopped"));
    let work = &work;
    let failed = &failed;
    let results = std::thread::scope(|scope| {
        let begin = |item| {
            let run = move || {
                let _alarm = PanicAlarm(failed);
                work(item)
            };
            start_in(scope, run).inspect_err(|_| failed())
        };
        let threads: Vec<_> = items.into_iter().map(begin).collect();
        threads
            .into_iter()
            .map(|thread| thread.and_then(|thread| thread.join().unwrap_or_else(lost)))
            .collect()
    });
    first_error_or_all(results)
}

/// Returns the error that ended the run, instead of errors of streams that stopped because of it.
fn first_error_or_all<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let (good, mut bad): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    bad.sort_by_key(|result| {
        result
            .as_ref()
            .is_err_and(|error| error.kind == ErrorKind::Bug)
    });
    bad.into_iter()
        .next()
        .map_or(Ok(()), |result| result.map(drop))?;
    good.into_iter().collect()
}
