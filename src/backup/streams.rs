//! Run the streams of a backup, see [`Stream`]: one for each source, all at the same time.

use crate::{
    error::{Error, ErrorKind, Result},
    frame::{Frame, Pool, Scanned, Slice},
    metrics::meter::{Meter, MeterSample, Side, computed, timed, verdict},
    pipeline::{
        lay::{Laid, Lay, MakeRoot, StreamLayout},
        ordered::{FrameLine, FrameWorkers, Permits, Work},
        pack::pack,
        pages::Tell,
        rate_limit::RateLimit,
        read_ahead::{WindowLimits, read_ahead},
        thread_count::Climb,
    },
    plan::{Depths, StageSpec, Tuning, chain, fast},
    platform::{self, Tricks, memory},
    queue::{Locked, start_in},
    sink::{Partial, Sink},
    source::{self, Source},
    stage::Stage,
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

/// What all streams share.
pub(crate) struct Streams<'a> {
    pub(crate) tuning: &'a Tuning,
    /// Is it standard input, which one thread reads at a time?
    pub(crate) is_stdin: bool,
    /// Bytes that are read in a second, at most.
    pub(crate) max_rate: Option<NonZeroU64>,
    pub(crate) stages: Vec<StageSpec>,
    pub(crate) layout: Arc<StreamLayout>,
    pub(crate) meter: &'a Arc<Meter>,
    /// Makes the root of a one-file archive.
    pub(crate) root: Option<MakeRoot<'a>>,
    pub(crate) checkpoints: Option<&'a Checkpoints<'a>>,
}

impl Streams<'_> {
    /// Run all streams at the same time; they share the permits to compute, and the first error ends them all.
    ///
    /// # Errors
    /// The first one.
    pub(crate) fn run(
        &self,
        sources: &[Arc<dyn Source>],
        sinks: Vec<Box<dyn Sink>>,
    ) -> Result<Vec<Laid>> {
        let meter = self.meter;
        let depths = self.tuning.depths(sources.len())?;
        meter.workers.staff(depths.workers.get());
        let crews = self.crews(sources, &depths)?;
        let leading: Vec<&Threads> = crews.iter().filter(|threads| threads.leads).collect();
        meter.streams.store(leading.len(), Relaxed);
        meter.sink.staff(leading.len());
        staff_source(&leading, meter);
        let stop = AtomicBool::new(false);
        let frame_bytes = self.tuning.frame_bytes;
        let mut streams = Vec::new();
        for ((source, sink), (threads, number)) in
            sources.iter().zip(sinks).zip(crews.iter().zip(1..))
        {
            let told = source.clone();
            let tell: Tell = Arc::new(move |record, crc32c| told.laid(record, crc32c));
            let lay = Lay::new(self.layout.clone(), meter.clone(), number, sink, tell)?;
            let clock = self
                .checkpoints
                .map(|checkpoints| (checkpoints, Instant::now(), number));
            let (source, drained) = (source.clone(), Some(Drained(source.clone())));
            streams.push(StreamRun {
                source,
                drained,
                threads,
                lay,
                frame_bytes,
                window: self.window(&depths),
                clock,
                stop: &stop,
            });
        }
        std::thread::scope(|scope| {
            let (done, over) = mpsc::channel::<()>();
            if self.tuning.readers.is_none() && !self.is_stdin && self.max_rate.is_none() {
                start_in(scope, || self.attend(&leading, over))?;
            }
            let streams = at_once(streams, StreamRun::scanned, || stop.store(true, Relaxed));
            let laid = streams.and_then(|streams| {
                at_once(
                    streams,
                    |stream| stream.finish(self.root),
                    || stop.store(true, Relaxed),
                )
            });
            drop(done);
            laid
        })
    }

    /// How far small files are read ahead: what a limited rate reads in a second, at most.
    fn window(&self, depths: &Depths) -> Option<WindowLimits> {
        let WindowLimits {
            entries,
            file_bytes,
        } = depths.window;
        let file_bytes = file_bytes.min(self.max_rate.map_or(u64::MAX, NonZeroU64::get));
        (self.tuning.tricks == Tricks::Auto).then_some(WindowLimits {
            entries,
            file_bytes,
        })
    }

    /// The threads of each stream. Each reads a frame, and computes on it while it is in the processor's cache.
    fn crews(&self, sources: &[Arc<dyn Source>], depths: &Depths) -> Result<Vec<Threads>> {
        let meter = self.meter;
        let buffers = sources.len() * (depths.line + 1) + depths.permits.get();
        let pool = Pool::new(self.tuning.frame_bytes as usize + (64 << 10), buffers);
        let permits = Permits::new(depths.permits);
        // A stream is read in turns: who waits for his must not keep another from reading.
        let readers = self.tuning.readers.filter(|_| !self.is_stdin);
        let pace = self.max_rate.map(|rate| Arc::new(RateLimit::of(rate)));
        let crew = |source: &Arc<dyn Source>| {
            let (stages, source, pool) = (self.stages.clone(), source.clone(), pool.clone());
            let (permits, reads, gauges) =
                (permits.clone(), readers.map(Permits::new), meter.clone());
            let first = self.tuning.readers.map_or(0, NonZeroUsize::get) + depths.workers.get();
            let first = NonZeroUsize::new(first.min(depths.line)).unwrap_or(NonZeroUsize::MIN);
            // Where a source goes on for as long as others are read, its waiting is none of theirs; what it has cannot wait,
            // but half of the workers are left to them, or they would never be read.
            let leads = !source.accompanies();
            let pace = pace.clone().filter(|_| leads);
            let half = NonZeroUsize::new(depths.workers.get() / 2).unwrap_or(NonZeroUsize::MIN);
            let (first, gauge) = match leads {
                true => (first, meter.source.clone()),
                false => (first.min(half), Arc::default()),
            };
            let crew = FrameWorkers::start(first, gauge, move || {
                let (source, pool, permits, pace) =
                    (source.clone(), pool.clone(), permits.clone(), pace.clone());
                let (reads, meter, mut usual) =
                    (reads.clone(), gauges.clone(), chain(&stages, &pool)?);
                let mut fast = if leads {
                    None
                } else {
                    Some(chain(&fast(&stages), &pool)?)
                };
                Ok(Box::new(move |slice: Slice| {
                    if reads.is_some() {
                        slice.wait(); // else pieces hold every permit, and wait for a slice that wants one
                    }
                    memory::check().map_err(|e| Error::io("could not go on", e))?;
                    let read = || {
                        let frame = source.read(slice, pool.take());
                        let paced = pace.as_ref().zip(frame.as_ref().ok());
                        paced.inspect(|(pace, frame)| pace.keep(frame.data.len() as u64));
                        frame
                    };
                    let read = || timed(&meter.source.busy, read);
                    let frame = match &reads {
                        Some(reads) => reads.hold(read)?,
                        None => read()?,
                    };
                    let chain = fast
                        .as_mut()
                        .filter(|_| source.is_pressed())
                        .unwrap_or(&mut usual);
                    let compute = || computed(&meter.workers.busy, || chain.apply(frame));
                    if leads {
                        permits.hold(compute)
                    } else {
                        permits.hold_first(compute)
                    }
                }))
            })?;
            let line = FrameLine::new(2 * crew.size() + 4, depths.line);
            Ok(Threads {
                line,
                least: crew.size(),
                max: depths.threads,
                crew,
                leads,
            })
        };
        sources.iter().map(crew).collect()
    }

    /// Until the run is over: more threads where they pay.
    fn attend(&self, crews: &[&Threads], over: mpsc::Receiver<()>) {
        let mut climb = Climb::new(self.meter, self.tuning.workers.get());
        while over.recv_timeout(Duration::from_millis(50)) == Err(mpsc::RecvTimeoutError::Timeout) {
            adapt(&mut climb, self.meter.sample(), crews, self.meter);
        }
    }
}

/// Threads that are there stay: they sleep.
fn adapt(climb: &mut Climb, now: MeterSample, crews: &[&Threads], meter: &Meter) {
    let have: usize = crews.iter().map(|threads| threads.crew.size()).sum();
    let max = crews.iter().map(|threads| threads.max).sum();
    let waits = |since: &_, now: &_| {
        crews.iter().any(|threads| threads.crew.is_behind())
            && verdict(since, now).of(Side::Sink).busy <= 0.85
    };
    let want = climb.advise(now, have, max, waits).max(have);
    for threads in crews.iter().cycle().take(want - have) {
        threads
            .line
            .raise(threads.crew.size() + 2 * threads.least + 4);
        if let Err(error) = threads.crew.grow() {
            platform::debug(|| error.line());
        }
    }
    if want > have {
        staff_source(crews, meter);
    }
}

fn staff_source(crews: &[&Threads], meter: &Meter) {
    meter
        .source
        .staff(crews.iter().map(|threads| threads.crew.size()).sum());
}

/// The threads of one stream, how far they may be ahead of the sink, and how many there may be.
struct Threads {
    crew: Arc<FrameWorkers<Slice, Frame>>,
    line: Arc<FrameLine<Frame>>,
    least: usize,
    max: usize,
    /// Does the run last as long as this one has work?
    leads: bool,
}

/// One stream of a backup: scan ▸ pack ▸ [read ▸ digest ▸ compress] ▸ lay ▸ sink.
struct StreamRun<'a> {
    source: Arc<dyn Source>,
    /// Dropped when all that the scan named was read.
    drained: Option<Drained>,
    threads: &'a Threads,
    lay: Lay,
    frame_bytes: u32,
    /// How far small files are read ahead, if they are.
    window: Option<WindowLimits>,
    /// Where checkpoints go, when the last was, and the number of this stream.
    clock: Option<(&'a Checkpoints<'a>, Instant, u32)>,
    /// Did another one fail?
    stop: &'a AtomicBool,
}

/// Stores roots of what is durable so far.
pub(crate) struct Checkpoints<'a> {
    pub(crate) interval: Duration,
    pub(crate) write: Partial,
    pub(crate) root: &'a (dyn Fn(Vec<Laid>) -> Result<Vec<u8>> + Sync),
    /// Of each stream the last.
    pub(crate) laid: Mutex<BTreeMap<u32, Laid>>,
}

impl Checkpoints<'_> {
    fn store(&self, stream: u32, laid: Laid) -> Result<()> {
        let mut all = self.laid.locked();
        all.insert(stream, laid);
        (self.write)(&(self.root)(all.values().cloned().collect())?)
    }
}

impl StreamRun<'_> {
    /// Lay everything that the scan sees.
    fn scanned(mut self) -> Result<Self> {
        let line = self.threads.line.clone();
        let scan = self
            .source
            .scan()
            .map(|entries| self.ahead(entries))
            .and_then(|entries| self.lay(entries, line));
        self.drained = None;
        scan.inspect_err(|_| self.stop.store(true, Relaxed))
            .map(|()| self)
    }

    /// The same entries, small files among them read ahead where that can be done.
    fn ahead(&self, entries: source::Stream<Scanned>) -> source::Stream<Scanned> {
        match self.window.zip(self.source.opener()) {
            Some((window, opener)) => read_ahead(entries, opener, window),
            None => entries,
        }
    }

    fn lay(&mut self, entries: source::Stream<Scanned>, line: Arc<FrameLine<Frame>>) -> Result<()> {
        let crew = &self.threads.crew;
        let mut here: Option<Work<Slice, Frame>> = None;
        for frame in crew.ordered(pack(entries, self.frame_bytes), line) {
            let mut next = Some(frame?);
            while let Some(mut frame) = next {
                if self.stop.load(Relaxed) {
                    return Err(Error::new(ErrorKind::Bug, "another stream failed"));
                }
                let rest = frame.rest.take();
                self.lay.frame(frame)?;
                self.checkpoint()?;
                // One after the other, here: how many frames there are at once is bounded by the places in line.
                next = match rest {
                    None => None,
                    Some(rest) => {
                        let work = match &mut here {
                            Some(work) => work,
                            none => none.insert(crew.work()?),
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
            Some((checkpoints, last, number)) if last.elapsed() >= checkpoints.interval => {
                checkpoints.store(*number, self.lay.checkpoint()?)?;
                *last = Instant::now();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Lay what is known only now that all streams were read; then end the stream, with a root if it is an archive by itself.
    fn finish(mut self, root: Option<MakeRoot<'_>>) -> Result<Laid> {
        let late = || {
            let mut entries = self.source.finish()?.peekable();
            if entries.peek().is_some() {
                self.lay.late()?;
                self.lay(Box::new(entries), self.threads.line.anew())?;
            }
            self.lay.finish(root)
        };
        late()
    }
}

/// Tells a source that all was read, or that it failed, or that its thread did.
struct Drained(Arc<dyn Source>);

impl Drop for Drained {
    fn drop(&mut self) {
        self.0.drained();
    }
}

/// Goes off if its thread panics.
struct Alarm<'a, F: Fn()>(&'a F);

impl<F: Fn()> Drop for Alarm<'_, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// Do something with all of `items` at the same time; the first error, or all results.
/// `failed` is told at once of a thread that cannot be started, or that panics.
fn at_once<I: Send, O: Send>(
    items: Vec<I>,
    work: impl Fn(I) -> Result<O> + Sync,
    failed: impl Fn() + Sync,
) -> Result<Vec<O>> {
    let lost = |_| Err(Error::new(ErrorKind::Bug, "a stream stopped"));
    let (work, failed) = (&work, &failed);
    let results = std::thread::scope(|scope| {
        let begin = |item| {
            let run = move || {
                let _alarm = Alarm(failed);
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

/// The error that ended the run, not those of the streams that only stopped for it.
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
