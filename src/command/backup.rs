//! Back up: the whole path on one screen, see [`stream`].

use super::scope::Scope;
use crate::{
    error::{Error, Kind, Result},
    format::{
        digest::Algorithm,
        layout::backup_id,
        root::{FORMAT, Live, MAX_NOT_CAPTURED, Name, Options, Root, Run, Source as Origin, Totals, seal},
    },
    frame::{Frame, Pool, Slice},
    pipeline::{
        climb::Climb,
        lay::{Laid, Lay, Layout, MakeRoot},
        meter::{Meter, Sample, Verdict, timed, timed_reading},
        ordered::{Crew, Line, Permits},
        pack::pack,
    },
    plan::{Depths, SinkSpec, StageSpec, Tuning, chain},
    platform::{self, Tricks},
    sink::{Sink, file::is_half_named},
    source::{Source, archive::Archive, stdin::Stdin},
    stage::{Stage, codec::Codec},
};
use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

/// What to back up, how, and where to.
#[derive(Debug, Clone)]
pub struct Backup {
    /// Which objects; ignored if there is a `stdin_name`.
    pub scope: Scope,
    /// Standard input, as a file of this name.
    pub stdin_name: Option<String>,
    /// Where to.
    pub to: SinkSpec,
    /// How frames are compressed.
    pub codec: Codec,
    /// How files are digested.
    pub digest: Algorithm,
    /// What the operator calls it.
    pub tags: BTreeMap<String, String>,
    /// How much of the machine it may use.
    pub tuning: Tuning,
}

/// What a backup came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its root.
    pub root: Root,
    /// What limited it.
    pub verdict: Verdict,
    /// The run over time.
    pub timeline: Vec<Sample>,
}

/// Told about every 100 ms how far a run is.
pub type Watch<'a> = &'a (dyn Fn(&Meter, Sample) + Sync);

impl Backup {
    /// Run it.
    ///
    /// # Errors
    /// Whatever makes the backup impossible; nothing is committed then. What could not be read is in the outcome.
    pub fn run(&self, meter: &Arc<Meter>, watch: Watch<'_>) -> Result<Outcome> {
        let begun = jiff::Timestamp::now();
        let stamp = begun.strftime("%Y%m%dT%H%M%SZ").to_string();
        let millis = begun.subsec_nanosecond().unsigned_abs() / 1_000_000;
        let id = backup_id(&stamp, millis, RandomState::new().build_hasher().finish());
        let time = begun.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        self.check_output()?;
        let (sources, origin) = self.sources(matches!(self.to, SinkSpec::Repository(_) | SinkSpec::Null))?;
        self.tuning.depths(sources.len())?; // what cannot work leaves no trace
        let mut destination = self.to.open(&id, &time, self.codec, self.tuning.tricks)?;
        let abilities = destination.abilities();
        let layout = Arc::new(Layout {
            backup: id.clone(),
            repository: abilities.repository,
            codec: self.codec,
            segment_bytes: abilities.objects.then_some(self.tuning.segment_bytes),
            manifest_bytes: AtomicU64::new(0),
        });
        let draft =
            Root { format: FORMAT, id, tool: tool(), time, source: origin, options: self.options(), ..Root::default() };
        let draft = Root { tags: self.tags.clone(), ..draft };
        let sealed = |laid: &Laid| seal(&complete(draft.clone(), vec![laid.clone()], meter));
        let root: Option<MakeRoot<'_>> = if abilities.objects { None } else { Some(&sealed) };
        let sinks = (1..=sources.len() as u32).map(|number| destination.stream(number)).collect::<Result<Vec<_>>>();
        let laid = sinks.and_then(|sinks| self.streams(sources, sinks, &layout, meter, root, watch));
        let done = laid.and_then(|laid| {
            let root = complete(draft.clone(), laid, meter);
            Ok((seal(&root)?, root))
        });
        match done {
            Ok((bytes, root)) => {
                destination.commit(&bytes)?;
                Ok(Outcome { root, verdict: meter.verdict(), timeline: meter.timeline() })
            }
            Err(error) => {
                destination.abort();
                Err(error)
            }
        }
    }

    /// What it would be of: files, entries and their bytes. Nothing is read but directories.
    ///
    /// # Errors
    /// As [`Backup::run`].
    pub fn count(&self) -> Result<(u64, u64, u64)> {
        let (mut files, mut entries, mut bytes) = (0, 0, 0);
        for source in self.sources(false)?.0 {
            for scanned in source.scan()? {
                let entry = scanned?.entry;
                entries += 1;
                files += u64::from(entry.is_file());
                bytes += entry.size();
            }
        }
        Ok((files, entries, bytes))
    }

    /// An archive is replaced only by another: what else has that name is not ours to remove.
    fn check_output(&self) -> Result<()> {
        match &self.to {
            SinkSpec::File(path)
                if path.exists() && !is_half_named(path) && matches!(Archive::open_file(path), Ok(None)) =>
            {
                let what = format!("cannot write to {}: it exists and is no fullbore archive", self.to.name());
                Err(Error::new(Kind::Exists, what).hint("choose another --to, or move it out of the way"))
            }
            _ => Ok(()),
        }
    }

    fn sources(&self, split: bool) -> Result<(Vec<Arc<dyn Source>>, Origin)> {
        let host = platform::host_name();
        if let Some(name) = &self.stdin_name {
            let spool = self.to == SinkSpec::Stdout;
            let stdin = Stdin::new(name.clone().into(), Box::new(std::io::stdin()), spool)?;
            let paths = vec![Name(format!("stdin:{name}").into())];
            return Ok((vec![Arc::new(stdin)], Origin { host, paths, contents: false }));
        }
        let walkers = platform::cores().get().clamp(2, 8);
        let opened = self.scope.open(split, walkers, self.tuning.tricks)?;
        let trees = opened.trees.into_iter().map(|tree| Arc::new(tree) as Arc<dyn Source>).collect();
        Ok((trees, Origin { host, paths: opened.paths, contents: opened.contents }))
    }

    fn options(&self) -> Options {
        Options {
            codec: self.codec.name().to_owned(),
            level: self.codec.level(),
            frame_bytes: self.tuning.frame_bytes.into(),
            segment_bytes: self.tuning.segment_bytes,
            block_bytes: self.block_bytes(),
            digest: self.digest,
        }
    }

    /// 1 MiB, or a frame if that is less: a block never spans frames.
    fn block_bytes(&self) -> u64 {
        u64::from(self.tuning.frame_bytes).min(1 << 20)
    }

    fn stages(&self) -> [StageSpec; 2] {
        let crc32 = matches!(self.codec, Codec::Gzip(_));
        [
            StageSpec::Digest { algorithm: self.digest, block_bytes: self.block_bytes(), crc32 },
            StageSpec::Compress { codec: self.codec },
        ]
    }

    /// Run all streams at the same time; they share the permits to compute, and the first error ends them all.
    fn streams(
        &self,
        sources: Vec<Arc<dyn Source>>,
        sinks: Vec<Box<dyn Sink>>,
        layout: &Arc<Layout>,
        meter: &Arc<Meter>,
        root: Option<MakeRoot<'_>>,
        watch: Watch<'_>,
    ) -> Result<Vec<Laid>> {
        let depths = self.tuning.depths(sources.len())?;
        meter.streams.store(sources.len(), Relaxed);
        meter.sink.threads.store(sources.len(), Relaxed);
        meter.workers.threads.store(depths.workers.get(), Relaxed);
        let crews = self.crews(&sources, &depths, meter)?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (done, over) = mpsc::channel::<()>();
            let mut streams = Vec::new();
            for ((source, sink), (threads, number)) in sources.into_iter().zip(sinks).zip(crews.iter().zip(1..)) {
                let lay = Lay::new(layout.clone(), meter.clone(), number, sink);
                let (end, frame_bytes) = (Stop { root, stop: &stop }, self.tuning.frame_bytes);
                streams.push(scope.spawn(move || stream(&*source, threads, lay?, frame_bytes, &end)));
            }
            scope.spawn(|| self.attend(&crews, meter, watch, over));
            let lost = |_| Err(Error::new(Kind::Bug, "a stream stopped"));
            let laid: Vec<_> = streams.into_iter().map(|stream| stream.join().unwrap_or_else(lost)).collect();
            drop(done);
            first_error_or_all(laid)
        })
    }

    /// The threads of each stream. Each reads a frame, and computes on it while it is in the processor's cache.
    fn crews(&self, sources: &[Arc<dyn Source>], depths: &Depths, meter: &Arc<Meter>) -> Result<Vec<Threads>> {
        let buffers = sources.len() * (depths.line + 1) + depths.workers.get();
        let pool = Pool::new(self.tuning.frame_bytes as usize + (64 << 10), buffers);
        let permits = Permits::new(depths.workers);
        // A stream is read in turns: who waits for his must not keep another from reading.
        let readers = self.tuning.readers.filter(|_| self.stdin_name.is_none());
        let crew = |source: &Arc<dyn Source>| {
            let (stages, source, pool) = (self.stages(), source.clone(), pool.clone());
            let (permits, reads, gauges) = (permits.clone(), readers.map(Permits::new), meter.clone());
            let first = self.tuning.readers.map_or(0, NonZeroUsize::get) + depths.workers.get();
            let first = NonZeroUsize::new(first.min(depths.line)).unwrap_or(NonZeroUsize::MIN);
            let crew = Crew::start(first, meter.source.clone(), move || {
                let (source, pool, permits) = (source.clone(), pool.clone(), permits.clone());
                let (reads, meter, mut chain) = (reads.clone(), gauges.clone(), chain(&stages, &pool)?);
                Ok(Box::new(move |slice: Slice| {
                    if reads.is_some() {
                        slice.wait(); // else pieces hold every permit, and wait for a slice that wants one
                    }
                    let read = || timed_reading(&meter.source, || source.read(slice, pool.take()));
                    let frame = match &reads {
                        Some(reads) => reads.hold(read)?,
                        None => read()?,
                    };
                    permits.hold(|| timed(&meter.workers.busy, || chain.apply(frame)))
                }))
            })?;
            let line = Line::new(2 * crew.size() + 2, depths.line);
            Ok(Threads { line, least: crew.size(), max: depths.threads, crew })
        };
        let crews = sources.iter().map(crew).collect::<Result<Vec<_>>>()?;
        meter.source.threads.store(crews.iter().map(|threads| threads.crew.size()).sum(), Relaxed);
        Ok(crews)
    }

    /// Until the run is over: more threads where they pay, a point of the timeline, a word to the operator.
    fn attend(&self, crews: &[Threads], meter: &Meter, watch: Watch<'_>, over: mpsc::Receiver<()>) {
        let mut climb = Climb::new(meter);
        let adapts = self.tuning.readers.is_none() && self.stdin_name.is_none();
        while over.recv_timeout(Duration::from_millis(50)) == Err(mpsc::RecvTimeoutError::Timeout) {
            let sample = meter.tick();
            if adapts {
                adapt(&mut climb, sample, crews, meter);
            }
            watch(meter, sample);
        }
        meter.tick();
    }
}

fn adapt(climb: &mut Climb, now: Sample, crews: &[Threads], meter: &Meter) {
    let have: usize = crews.iter().map(|threads| threads.crew.size()).sum();
    let want = climb.advise(now, have, crews.iter().map(|threads| threads.max).sum());
    for threads in crews.iter().cycle().take(want - have) {
        threads.line.raise(threads.crew.size() + 2 * threads.least + 2);
        if let Err(error) = threads.crew.grow() {
            platform::debug(|| error.line());
        }
    }
    meter.source.threads.store(want, Relaxed);
}

/// The threads of one stream, how far they may be ahead of the sink, and how many there may be.
struct Threads {
    crew: Arc<Crew<Slice, Frame>>,
    line: Arc<Line<Frame>>,
    least: usize,
    max: usize,
}

/// How a stream ends: with a root, if it is an archive by itself; early, if another one failed.
struct Stop<'a> {
    root: Option<MakeRoot<'a>>,
    stop: &'a AtomicBool,
}

/// scan ▸ pack ▸ [read ▸ digest ▸ compress] ▸ lay ▸ sink.
fn stream(source: &dyn Source, threads: &Threads, mut lay: Lay, frame_bytes: u32, end: &Stop<'_>) -> Result<Laid> {
    let run = || {
        let slices = pack(source.scan()?, frame_bytes);
        for frame in threads.crew.ordered(slices, threads.line.clone()) {
            if end.stop.load(Relaxed) {
                return Err(Error::new(Kind::Bug, "another stream failed"));
            }
            lay.frame(frame?)?;
        }
        lay.finish(end.root)
    };
    run().inspect_err(|_| end.stop.store(true, Relaxed))
}

/// The error that ended the run, not those of the streams that only stopped for it.
fn first_error_or_all(laid: Vec<Result<Laid>>) -> Result<Vec<Laid>> {
    let (good, mut bad): (Vec<_>, Vec<_>) = laid.into_iter().partition(Result::is_ok);
    bad.sort_by_key(|result| result.as_ref().is_err_and(|error| error.kind == Kind::Bug));
    bad.into_iter().next().map_or(Ok(()), |result| result.map(drop))?;
    good.into_iter().collect()
}

/// What wrote it.
fn tool() -> String {
    format!("fullbore {}", env!("CARGO_PKG_VERSION"))
}

/// The root, now that all streams are known.
fn complete(mut root: Root, laid: Vec<Laid>, meter: &Meter) -> Root {
    let verdict = meter.verdict();
    for laid in laid {
        add(&mut root.totals, &laid.totals);
        root.liveness.extend(laid.segments.iter().map(live));
        root.segments.extend(laid.segments);
        root.pages.extend(laid.pages);
        root.not_captured.extend(laid.not_captured);
    }
    root.not_captured.truncate(MAX_NOT_CAPTURED);
    root.totals.stored_bytes +=
        root.pages.iter().filter_map(|page| page.manifest_offset.map(|_| page.bytes)).sum::<u64>();
    root.finished = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    root.run = Run { seconds: verdict.seconds, limit: verdict.limit.name().to_owned(), shares: verdict.table() };
    root
}

/// A full backup refers to all of its own segments, and to nothing else.
fn live(segment: &crate::format::root::Segment) -> Live {
    let (stream, number) = (segment.stream, segment.number);
    Live { backup: String::new(), stream, number, frames: segment.frames, bytes: segment.bytes }
}

fn add(to: &mut Totals, more: &Totals) {
    to.entries += more.entries;
    to.files += more.files;
    to.directories += more.directories;
    to.bytes += more.bytes;
    to.plain_bytes += more.plain_bytes;
    to.stored_bytes += more.stored_bytes;
    to.unreadable += more.unreadable;
    to.changed += more.changed;
    to.vanished += more.vanished;
    to.sockets += more.sockets;
}

/// May nothing be tried that the system could refuse?
pub fn tricks(no_tricks: bool) -> Tricks {
    if no_tricks { Tricks::Never } else { Tricks::Auto }
}
