//! Back up: the whole path on one screen, see [`Stream`].

use super::scope::Scope;
use crate::{
    error::{Error, Kind, Result},
    format::{
        digest::Algorithm,
        page::{Record, SegmentId},
        root::{
            FORMAT, FORMAT_ALONE, Live, MAX_NOT_CAPTURED, Name, Options, Root, Run, Source as Origin, Totals, seal,
        },
    },
    frame::{Buf, Frame, Pool, Scanned, Slice},
    pipeline::{
        climb::Climb,
        lay::{Laid, Lay, Layout, MakeRoot},
        meter::{Meter, Sample, Verdict, timed, timed_reading},
        ordered::{Crew, Line, Permits},
        pack::pack,
        pages::Tell,
    },
    plan::{Depths, SinkSpec, StageSpec, Tuning, chain},
    platform::{self, Tricks},
    postgres::{
        cluster::Cluster,
        request::{Reading, Request},
        summary::Changes,
    },
    repo::{
        base::{Base, Like, Wanted},
        ids,
    },
    sink::{Destination, Partial, Sink, file::is_half_named},
    source::{self, Source, archive::Archive, stdin::Stdin, stored::Stored},
    stage::{Stage, codec::Codec},
};
use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

/// What to back up, how, and where to.
#[derive(Debug, Clone)]
pub struct Backup {
    /// Of what.
    pub subject: Subject,
    /// Where to.
    pub to: SinkSpec,
    /// How frames are compressed.
    pub codec: Codec,
    /// How files are digested.
    pub digest: Algorithm,
    /// What the operator calls it.
    pub tags: BTreeMap<String, String>,
    /// What it is compared with.
    pub base: Wanted,
    /// How often what is stored so far is made durable, so that the next backup can go on if this one is cut off.
    pub checkpoint_interval: Duration,
    /// Are large files cut in chunks by their content?
    pub chunks: bool,
    /// Bytes of a block; `None`: what suits the subject.
    pub block_bytes: Option<u64>,
    /// How much of the machine it may use.
    pub tuning: Tuning,
}

/// What a backup is of.
#[derive(Debug, Clone)]
pub enum Subject {
    /// Files and directories.
    Files(Scope),
    /// Standard input, as a file of this name.
    Stdin(String),
    /// A PostgreSQL cluster.
    Cluster(Request),
    /// A stored backup, whatever it was of.
    Stored(Arc<Stored>),
}

/// A subject, opened: a source for each stream.
struct Opened {
    sources: Vec<Arc<dyn Source>>,
    origin: Origin,
    cluster: Option<Arc<Cluster>>,
    is_compared: bool,
}

impl Opened {
    fn new(sources: Vec<Arc<dyn Source>>, origin: Origin, cluster: Option<Arc<Cluster>>) -> Self {
        Self { sources, origin, cluster, is_compared: false }
    }

    /// Let the sources say what `base` has of what they have.
    fn compare(&mut self, base: &Arc<Base>) {
        let changes = self.cluster.as_ref().and_then(|cluster| cluster.changes_since(base.cluster()?)).map(Arc::new);
        let compared =
            |source| Arc::new(Compared { source, base: base.clone(), changes: changes.clone() }) as Arc<dyn Source>;
        self.sources = std::mem::take(&mut self.sources).into_iter().map(compared).collect();
        self.is_compared = true;
    }
}

/// A source whose scan says what earlier backups have.
struct Compared {
    source: Arc<dyn Source>,
    base: Arc<Base>,
    /// Where files of a cluster changed since.
    changes: Option<Arc<Changes>>,
}

impl Source for Compared {
    fn scan(&self) -> Result<source::Stream<Scanned>> {
        let compared = self.base.compare(self.source.scan()?);
        let Some(changes) = self.changes.clone() else { return Ok(compared) };
        Ok(Box::new(compared.map(move |scanned| {
            scanned.map(|mut scanned| {
                changes.narrow(&mut scanned);
                scanned
            })
        })))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        self.source.read(slice, buf)
    }

    fn laid(&self, record: &Record, crc32c: Option<u32>) {
        self.source.laid(record, crc32c);
    }

    fn finish(&self) -> Result<source::Stream<Scanned>> {
        self.source.finish()
    }
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
        let id = self.id(begun)?;
        let time = begun.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let (id, time) = match &self.subject {
            Subject::Stored(stored) => exported(&stored.archive().root, &id),
            _ => (id, time),
        };
        self.check_output()?;
        let mut subject = self.open(matches!(self.to, SinkSpec::Repository(_) | SinkSpec::Null), Some(&id))?;
        self.tuning.depths(subject.sources.len())?; // what cannot work leaves no trace
        let mut destination = self.to.open(&id, &time, self.codec, self.tuning.tricks)?;
        let base = match self.find_base(&mut *destination, &subject) {
            Ok(base) => base,
            Err(error) => {
                destination.abort(false);
                return Err(error);
            }
        };
        if let Some(base) = &base {
            subject.compare(base);
        }
        let format = if base.is_some() { FORMAT } else { FORMAT_ALONE };
        let abilities = destination.abilities();
        let layout = Arc::new(Layout {
            backup: id.clone(),
            format,
            repository: abilities.repository,
            codec: self.codec,
            segment_bytes: abilities.objects.then_some(self.tuning.segment_bytes),
            block_bytes: self.block_bytes(),
            manifest_bytes: AtomicU64::new(0),
        });
        let draft = Root {
            format,
            bases: base.as_ref().map(|base| base.ids()).unwrap_or_default(),
            id,
            tool: tool(),
            time,
            source: subject.origin.clone(),
            options: self.options(),
            ..Root::default()
        };
        let draft = Root { tags: self.tags.clone(), ..draft };
        let complete = |laid| {
            let root = complete(draft.clone(), laid, base.as_deref(), meter);
            match &self.subject {
                Subject::Stored(stored) => as_it_was(root, &stored.archive().root),
                _ => Root { postgres: subject.cluster.as_ref().map(|cluster| cluster.facts()), ..root },
            }
        };
        let sealed = |laid: &Laid| seal(&complete(vec![laid.clone()]));
        let partial = |laid: Vec<Laid>| seal(&complete(laid));
        // A copy is no base for the next backup before it is complete.
        let interim = destination.partial().filter(|_| !matches!(self.subject, Subject::Stored(_)));
        let checkpoints = interim.map(|write| Checkpoints {
            interval: self.checkpoint_interval,
            write,
            root: &partial,
            laid: Mutex::default(),
        });
        let root: Option<MakeRoot<'_>> = if abilities.objects { None } else { Some(&sealed) };
        let sinks =
            (1..=subject.sources.len() as u32).map(|number| destination.stream(number)).collect::<Result<Vec<_>>>();
        let laid =
            sinks.and_then(|sinks| self.streams(&subject, sinks, &layout, meter, (root, checkpoints.as_ref()), watch));
        let done = laid.and_then(|laid| {
            if let Subject::Stored(stored) = &self.subject {
                stored.check()?;
            }
            let root = complete(laid);
            Ok((seal(&root)?, root))
        });
        match done {
            Ok((bytes, root)) => {
                destination.commit(&bytes)?;
                Ok(Outcome { root, verdict: meter.verdict(), timeline: meter.timeline() })
            }
            Err(error) => {
                destination.abort(error.kind != Kind::Full);
                Err(error)
            }
        }
    }

    /// What an earlier backup of the same source is, if this one goes where one may be.
    fn find_base(&self, destination: &mut dyn Destination, subject: &Opened) -> Result<Option<Arc<Base>>> {
        let SinkSpec::Repository(path) = &self.to else { return Ok(None) };
        let (facts, options) = (subject.cluster.as_ref().map(|cluster| cluster.facts()), self.options());
        let like = Like { origin: &subject.origin, cluster: facts.as_ref(), options: &options };
        let base = Base::find(path, &self.base, &like, |ids| destination.refer(ids))?;
        Ok(base.map(Arc::new))
    }

    /// What it would be of: files, entries and their bytes. Nothing is read but directories.
    ///
    /// # Errors
    /// As [`Backup::run`].
    pub fn count(&self) -> Result<(u64, u64, u64)> {
        let (mut files, mut entries, mut bytes) = (0, 0, 0);
        for source in self.open(false, None)?.sources {
            for scanned in source.scan()? {
                let entry = scanned?.entry;
                entries += 1;
                files += u64::from(entry.is_file());
                bytes += entry.size();
            }
        }
        Ok((files, entries, bytes))
    }

    /// In a repository it sorts behind all others, whatever the clock says.
    fn id(&self, begun: jiff::Timestamp) -> Result<String> {
        let seed = RandomState::new().build_hasher().finish();
        match &self.to {
            SinkSpec::Repository(path) => ids::next(path, begun, seed),
            _ => Ok(ids::after(None, begun, seed)),
        }
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

    /// `id`: the backup that begins; without one the subject is only looked at.
    fn open(&self, split: bool, id: Option<&str>) -> Result<Opened> {
        let (host, tricks) = (platform::host_name(), self.tuning.tricks);
        let walkers = platform::cores().get().clamp(2, 8);
        match &self.subject {
            Subject::Stdin(name) => {
                let spool = self.to == SinkSpec::Stdout;
                let stdin = Stdin::new(name.clone().into(), Box::new(std::io::stdin()), spool)?;
                let paths = vec![Name(format!("stdin:{name}").into())];
                Ok(Opened::new(vec![Arc::new(stdin)], Origin { host, paths, contents: false }, None))
            }
            Subject::Files(scope) => {
                let scope = scope.open(split, walkers, tricks)?;
                let sources = scope.trees.into_iter().map(|tree| Arc::new(tree) as Arc<dyn Source>).collect();
                let origin = Origin { host, paths: scope.paths, contents: scope.contents };
                Ok(Opened::new(sources, origin, None))
            }
            Subject::Cluster(request) => {
                let (cluster, sources) = request.open(id, Reading { split, walkers, tricks })?;
                let paths = vec![cluster.facts().data_directory];
                Ok(Opened::new(sources, Origin { host, paths, contents: true }, Some(cluster)))
            }
            Subject::Stored(stored) => {
                Ok(Opened::new(vec![stored.clone()], stored.archive().root.source.clone(), None))
            }
        }
    }

    fn options(&self) -> Options {
        Options {
            codec: self.codec.name().to_owned(),
            level: self.codec.level(),
            frame_bytes: self.tuning.frame_bytes.into(),
            segment_bytes: self.tuning.segment_bytes,
            block_bytes: self.block_bytes(),
            digest: self.digest,
            chunks: self.chunks,
        }
    }

    fn is_cluster(&self) -> bool {
        match &self.subject {
            Subject::Cluster(_) => true,
            Subject::Stored(stored) => stored.archive().root.postgres.is_some(),
            _ => false,
        }
    }

    fn is_stdin(&self) -> bool {
        matches!(self.subject, Subject::Stdin(_))
    }

    /// 1 MiB, of a cluster a page, or a frame if that is less: a block never spans frames.
    fn block_bytes(&self) -> u64 {
        let block = if self.is_cluster() { 8 << 10 } else { 1 << 20 };
        u64::from(self.tuning.frame_bytes).min(self.block_bytes.unwrap_or(block))
    }

    fn stages(&self, subject: &Opened) -> Vec<StageSpec> {
        let (block_bytes, crc32c) = (self.block_bytes(), self.is_cluster());
        let digest = StageSpec::Digest { algorithm: self.digest, block_bytes, chunks: self.chunks, crc32c };
        let pages = subject.cluster.as_ref().and_then(|cluster| cluster.page_check()).map(StageSpec::Pages);
        let thin = subject.is_compared.then_some(StageSpec::Thin { block_bytes });
        let compress = StageSpec::Compress { codec: self.codec };
        pages.into_iter().chain([digest]).chain(thin).chain([compress]).collect()
    }

    /// Run all streams at the same time; they share the permits to compute, and the first error ends them all.
    fn streams(
        &self,
        subject: &Opened,
        sinks: Vec<Box<dyn Sink>>,
        layout: &Arc<Layout>,
        meter: &Arc<Meter>,
        (root, checkpoints): (Option<MakeRoot<'_>>, Option<&Checkpoints<'_>>),
        watch: Watch<'_>,
    ) -> Result<Vec<Laid>> {
        let sources = &subject.sources;
        let depths = self.tuning.depths(sources.len())?;
        meter.streams.store(sources.len(), Relaxed);
        meter.sink.threads.store(sources.len(), Relaxed);
        meter.workers.threads.store(depths.workers.get(), Relaxed);
        let crews = self.crews(sources, &depths, meter, &self.stages(subject))?;
        let stop = AtomicBool::new(false);
        let frame_bytes = self.tuning.frame_bytes;
        let mut streams = Vec::new();
        for ((source, sink), (threads, number)) in sources.iter().zip(sinks).zip(crews.iter().zip(1..)) {
            let told = source.clone();
            let tell: Tell = Arc::new(move |record, crc32c| told.laid(record, crc32c));
            let lay = Lay::new(layout.clone(), meter.clone(), number, sink, tell)?;
            let clock = checkpoints.map(|checkpoints| (checkpoints, Instant::now(), number));
            streams.push(Stream { source: source.clone(), threads, lay, frame_bytes, clock, stop: &stop });
        }
        std::thread::scope(|scope| {
            let (done, over) = mpsc::channel::<()>();
            scope.spawn(|| self.attend(&crews, meter, watch, over));
            let streams = at_once(streams, Stream::scanned);
            let laid = streams.and_then(|streams| at_once(streams, |stream| stream.finish(root)));
            drop(done);
            laid
        })
    }

    /// The threads of each stream. Each reads a frame, and computes on it while it is in the processor's cache.
    fn crews(
        &self,
        sources: &[Arc<dyn Source>],
        depths: &Depths,
        meter: &Arc<Meter>,
        stages: &[StageSpec],
    ) -> Result<Vec<Threads>> {
        let buffers = sources.len() * (depths.line + 1) + depths.workers.get();
        let pool = Pool::new(self.tuning.frame_bytes as usize + (64 << 10), buffers);
        let permits = Permits::new(depths.workers);
        // A stream is read in turns: who waits for his must not keep another from reading.
        let readers = self.tuning.readers.filter(|_| !self.is_stdin());
        let crew = |source: &Arc<dyn Source>| {
            let (stages, source, pool) = (stages.to_vec(), source.clone(), pool.clone());
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
            let line = Line::new(2 * crew.size() + 4, depths.line);
            Ok(Threads { line, least: crew.size(), max: depths.threads, crew })
        };
        let crews = sources.iter().map(crew).collect::<Result<Vec<_>>>()?;
        meter.source.threads.store(crews.iter().map(|threads| threads.crew.size()).sum(), Relaxed);
        Ok(crews)
    }

    /// Until the run is over: more threads where they pay, a point of the timeline, a word to the operator.
    fn attend(&self, crews: &[Threads], meter: &Meter, watch: Watch<'_>, over: mpsc::Receiver<()>) {
        let mut climb = Climb::new(meter);
        let adapts = self.tuning.readers.is_none() && !self.is_stdin();
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
        threads.line.raise(threads.crew.size() + 2 * threads.least + 4);
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

/// One stream of a backup: scan ▸ pack ▸ [read ▸ digest ▸ compress] ▸ lay ▸ sink.
struct Stream<'a> {
    source: Arc<dyn Source>,
    threads: &'a Threads,
    lay: Lay,
    frame_bytes: u32,
    /// Where checkpoints go, when the last was, and the number of this stream.
    clock: Option<(&'a Checkpoints<'a>, Instant, u32)>,
    /// Did another one fail?
    stop: &'a AtomicBool,
}

/// Stores roots of what is durable so far.
struct Checkpoints<'a> {
    interval: Duration,
    write: Partial,
    root: &'a (dyn Fn(Vec<Laid>) -> Result<Vec<u8>> + Sync),
    /// Of each stream the last.
    laid: Mutex<BTreeMap<u32, Laid>>,
}

impl Checkpoints<'_> {
    fn store(&self, stream: u32, laid: Laid) -> Result<()> {
        let mut all = self.laid.lock().unwrap_or_else(|e| e.into_inner());
        all.insert(stream, laid);
        (self.write)(&(self.root)(all.values().cloned().collect())?)
    }
}

impl Stream<'_> {
    /// Lay everything that the scan sees.
    fn scanned(mut self) -> Result<Self> {
        let line = self.threads.line.clone();
        let scan = self.source.scan().and_then(|entries| self.lay(entries, line));
        scan.inspect_err(|_| self.stop.store(true, Relaxed)).map(|()| self)
    }

    fn lay(&mut self, entries: source::Stream<Scanned>, line: Arc<Line<Frame>>) -> Result<()> {
        for frame in self.threads.crew.ordered(pack(entries, self.frame_bytes), line) {
            if self.stop.load(Relaxed) {
                return Err(Error::new(Kind::Bug, "another stream failed"));
            }
            self.lay.frame(frame?)?;
            self.checkpoint()?;
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

/// Do something with all of `items` at the same time; the first error, or all results.
fn at_once<I: Send, O: Send>(items: Vec<I>, work: impl Fn(I) -> Result<O> + Sync) -> Result<Vec<O>> {
    let lost = |_| Err(Error::new(Kind::Bug, "a stream stopped"));
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(|| work(item))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
    });
    first_error_or_all(results)
}

/// The error that ended the run, not those of the streams that only stopped for it.
fn first_error_or_all<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let (good, mut bad): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    bad.sort_by_key(|result| result.as_ref().is_err_and(|error| error.kind == Kind::Bug));
    bad.into_iter().next().map_or(Ok(()), |result| result.map(drop))?;
    good.into_iter().collect()
}

/// What wrote it.
fn tool() -> String {
    format!("fullbore {}", env!("CARGO_PKG_VERSION"))
}

/// The root, now that all streams are known.
fn complete(mut root: Root, laid: Vec<Laid>, base: Option<&Base>, meter: &Meter) -> Root {
    let verdict = meter.verdict();
    let mut earlier: BTreeMap<SegmentId, Live> = BTreeMap::new();
    for laid in laid {
        add(&mut root.totals, &laid.totals);
        root.liveness.extend(laid.segments.iter().map(live));
        for live in laid.live {
            let sum = earlier.entry(live.id()).or_insert_with(|| Live { frames: 0, bytes: 0, ..live.clone() });
            (sum.frames, sum.bytes) = (sum.frames + live.frames, sum.bytes + live.bytes);
        }
        root.segments.extend(laid.segments);
        root.pages.extend(laid.pages);
        root.not_captured.extend(laid.not_captured);
    }
    let mut earlier: Vec<Live> = earlier.into_values().collect();
    if let Some(base) = base {
        base.measure(&mut earlier);
    }
    root.liveness.extend(earlier);
    root.not_captured.truncate(MAX_NOT_CAPTURED);
    root.totals.stored_bytes += root
        .pages
        .iter()
        .filter(|page| page.backup.is_empty())
        .filter_map(|page| page.manifest_offset.map(|_| page.bytes))
        .sum::<u64>();
    root.finished = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    root.run = Run { seconds: verdict.seconds, limit: verdict.limit.name().to_owned(), shares: verdict.table() };
    root
}

/// Id and time of what a stored backup becomes: the time is still that of the capture, and the id says so; but it is another
/// one, as an id names bytes and these will be others.
fn exported(root: &Root, new: &str) -> (String, String) {
    const TIMED: usize = "20261121T054501Z-k3".len();
    let id = root.id.get(..TIMED).zip(new.get(TIMED..)).map_or(new.to_owned(), |(time, rest)| format!("{time}{rest}"));
    (id, root.time.clone())
}

/// What was captured, and when, is what it was.
fn as_it_was(root: Root, of: &Root) -> Root {
    Root { finished: of.finished.clone(), postgres: of.postgres.clone(), ..root }
}

/// A full backup refers to all of its own segments, and to nothing else.
fn live(segment: &crate::format::root::Segment) -> Live {
    let (stream, number) = (segment.stream, segment.number);
    Live {
        backup: String::new(),
        stream,
        number,
        frames: segment.frames,
        bytes: segment.bytes,
        of_bytes: segment.bytes,
    }
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
    to.bad_pages += more.bad_pages;
    to.vanished += more.vanished;
    to.sockets += more.sockets;
    to.kept += more.kept;
    to.kept_bytes += more.kept_bytes;
}

/// May nothing be tried that the system could refuse?
pub fn tricks(no_tricks: bool) -> Tricks {
    if no_tricks { Tricks::Never } else { Tricks::Auto }
}
