//! How each part of a run spent its time, and which part was the limit.

use super::{
    cpu::{COMPRESSING, SEALING, ThreadClock, seconds_of},
    hardware::{HardwareVerdict, RunSetting, hardware},
    waits::Waits,
};
use crate as platform;
use crate::{MachineTime, queue::Locked};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

/// Nanoseconds that one part of a run spent, summed over its threads.
#[derive(Debug, Default)]
pub struct Gauge {
    /// Working.
    pub busy: AtomicU64,
    /// CPU time of that.
    pub cpu: AtomicU64,
    /// Waiting for input. Counted for the feeders, not for the threads; for a source it is the time
    /// its walk took.
    pub starved: AtomicU64,
    /// Waiting for a place in line. Counted for the feeders.
    pub blocked: AtomicU64,
    staff: Mutex<Staff>,
}

/// Number of threads that may work at once.
#[derive(Debug)]
struct Staff {
    threads: usize,
    since: Instant,
    /// Thread seconds that were available before `since`.
    before: f64,
}

impl Default for Staff {
    fn default() -> Self {
        Self {
            threads: 1,
            since: Instant::now(),
            before: 0.0,
        }
    }
}

impl Gauge {
    /// Sets the number of threads that may work at once from now on; at least one.
    pub fn set_threads(&self, threads: usize) {
        let mut staff = self.staff.locked();
        *staff = Staff {
            threads: threads.max(1),
            since: Instant::now(),
            before: staff.seconds(),
        };
    }

    /// Runs `work` and adds its time.
    pub fn work<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut clock = ThreadClock::now();
        let result = work();
        lap(self, &mut clock);
        result
    }

    /// Runs `work` and adds its CPU time, without the time it waited for a processor.
    pub fn compute<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = ThreadClock::now();
        let result = work();
        let [_, cpu] = ThreadClock::now().since(&start);
        self.add([cpu, cpu]);
        result
    }

    fn add(&self, [busy, cpu]: [u64; 2]) {
        self.busy.fetch_add(busy, Relaxed);
        self.cpu.fetch_add(cpu, Relaxed);
    }

    fn capacity(&self) -> f64 {
        self.staff.locked().seconds()
    }
}

impl Staff {
    /// Returns the thread seconds that were available so far.
    fn seconds(&self) -> f64 {
        self.before + self.since.elapsed().as_secs_f64() * self.threads as f64
    }
}

/// Runs `work` and adds its wall-clock time to `counter`.
pub fn timed<T>(counter: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    counter.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
    result
}

/// Adds the time since `clock` to `gauge`, and sets `clock` to now. Both are of this thread.
pub fn lap(gauge: &Gauge, clock: &mut ThreadClock) {
    let now = ThreadClock::now();
    gauge.add(now.since(clock));
    *clock = now;
}

/// The counters of a run.
#[derive(Debug)]
pub struct Meter {
    /// Reading.
    pub source: Arc<Gauge>,
    /// Digest and compression.
    pub workers: Arc<Gauge>,
    /// Storing.
    pub sink: Arc<Gauge>,
    /// Plain bytes that were stored.
    pub plain_bytes: AtomicU64,
    pub stored_bytes: AtomicU64,
    pub entries: AtomicU64,
    /// Regular files that were processed.
    pub files: AtomicU64,
    /// Other operations that cost about as much as a small file.
    pub small: AtomicU64,
    /// Logical bytes of those files.
    pub bytes: AtomicU64,
    /// Expected logical bytes in total; 0 while unknown.
    pub total_bytes: AtomicU64,
    /// Bytes that were read under `--max-rate`.
    pub paced_bytes: AtomicU64,
    /// Number of streams that share the parts.
    pub streams: AtomicUsize,
    /// Waits for a server.
    pub waits: Arc<Waits>,
    start: Instant,
    begun: Mutex<MeterSample>,
    timeline: Mutex<Timeline>,
}

impl Default for Meter {
    fn default() -> Self {
        let meter = Self {
            source: Arc::default(),
            workers: Arc::default(),
            sink: Arc::default(),
            plain_bytes: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            files: AtomicU64::new(0),
            small: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
            paced_bytes: AtomicU64::new(0),
            streams: AtomicUsize::new(1),
            waits: Arc::default(),
            start: Instant::now(),
            begun: Mutex::default(),
            timeline: Mutex::default(),
        };
        // Figures of a run are differences from here: processors and devices were busy before it.
        let begun = MeterSample {
            seconds: 0.0,
            ..meter.sample()
        };
        *meter.begun.locked() = begun;
        meter
    }
}

/// How one part spent its time, as shares of 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Shares {
    /// Working.
    pub busy: f64,
    /// Waiting for input.
    pub starved: f64,
    /// Waiting until the next part takes its output.
    pub blocked: f64,
}

/// The three parts of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Reading.
    Source,
    /// Computing.
    Workers,
    /// Writing.
    Sink,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Workers => "workers",
            Self::Sink => "sink",
        }
    }
}

/// The limit of a run or of a time within it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitVerdict {
    pub limit: Side,
    /// Shares of source, workers and sink.
    pub shares: [Shares; 3],
    /// Wall-clock seconds.
    pub seconds: f64,
}

impl LimitVerdict {
    pub fn of(&self, side: Side) -> Shares {
        self.shares[side as usize]
    }

    /// Returns how many times as fast this part could be, judged by its idle time; at least 1.
    pub fn headroom(&self, side: Side) -> f64 {
        1.0 / self.of(side).busy.clamp(0.001, 1.0)
    }

    /// Returns the shares by name: busy, starved, blocked.
    pub fn table(&self) -> BTreeMap<String, [f64; 3]> {
        [Side::Source, Side::Workers, Side::Sink]
            .map(|side| {
                let Shares {
                    busy,
                    starved,
                    blocked,
                } = self.of(side);
                (
                    side.name().to_owned(),
                    [busy, starved, blocked].map(|share| (share * 1000.0).round() / 1000.0),
                )
            })
            .into()
    }
}

/// All counters at one time, in seconds and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MeterSample {
    /// Seconds since the start.
    pub seconds: f64,
    /// Logical bytes so far.
    pub bytes: u64,
    /// Stored bytes so far.
    pub stored_bytes: u64,
    /// Regular files, and other operations that cost as much, so far.
    pub(crate) small: u64,
    /// CPU seconds of this process, all threads together.
    pub processors: f64,
    /// Time of all processors of the machine, if the system reports it.
    pub machine: Option<MachineTime>,
    /// Bytes that this process made devices read.
    pub(crate) device_bytes: u64,
    /// Bytes that were read under `--max-rate`.
    pub(crate) paced_bytes: u64,
    /// Busy, starved and blocked seconds of source, workers and sink.
    pub(crate) times: [[f64; 3]; 3],
    /// CPU seconds of source, workers and sink.
    pub(crate) cpu: [f64; 3],
    /// CPU seconds of compression, a part of the workers'.
    pub compressing: f64,
    /// CPU seconds of encryption, a part of the sink's or of the source's.
    pub(crate) sealing: f64,
    /// Thread seconds that were available to each part.
    pub(crate) capacity: [f64; 3],
    pub(crate) streams: usize,
}

impl Meter {
    /// Declares that the three parts take turns on `threads` threads.
    pub fn share_threads(&self, threads: usize) {
        for gauge in [&self.source, &self.workers, &self.sink] {
            gauge.set_threads(threads);
        }
    }

    /// Returns all counters now.
    pub fn sample(&self) -> MeterSample {
        let gauges = [&self.source, &self.workers, &self.sink];
        MeterSample {
            seconds: self.start.elapsed().as_secs_f64(),
            bytes: self.bytes.load(Relaxed),
            stored_bytes: self.stored_bytes.load(Relaxed),
            // Relaxed loads: the figures are of one moment only nearly, which is enough for rates.
            small: self.files.load(Relaxed) + self.small.load(Relaxed),
            processors: platform::process_cpu_seconds(),
            machine: platform::machine_time(),
            device_bytes: platform::device_read_bytes(),
            paced_bytes: self.paced_bytes.load(Relaxed),
            times: gauges.map(times_of),
            cpu: gauges.map(|gauge| seconds_of(&gauge.cpu)),
            compressing: seconds_of(&COMPRESSING),
            sealing: seconds_of(&SEALING),
            capacity: gauges.map(|gauge| gauge.capacity()),
            streams: self.streams.load(Relaxed).max(1),
        }
    }

    /// Marks the start of the parts: earlier waits do not count as their time.
    pub fn begin(&self) {
        *self.begun.locked() = self.sample();
    }

    /// Returns the verdict since the parts began, with the time of the whole run.
    pub fn verdict(&self) -> LimitVerdict {
        let begun = *self.begun.locked();
        let now = self.sample();
        LimitVerdict {
            seconds: now.seconds,
            ..verdict(&begun, &now)
        }
    }

    /// Returns which hardware was the limit since the parts began, of a run with this verdict.
    pub fn hardware(&self, verdict: &LimitVerdict, run: &RunSetting) -> HardwareVerdict {
        let begun = *self.begun.locked();
        hardware(&begun, &self.sample(), verdict, run)
    }

    /// Records a point of the timeline. One thread calls this about every 100 ms.
    pub fn record_point(&self) -> MeterSample {
        let sample = self.sample();
        if let Ok(mut timeline) = self.timeline.lock() {
            timeline.push(sample);
        }
        sample
    }

    /// Returns the timeline so far, thinned to at most [`MAX_POINTS`] points.
    pub fn timeline(&self) -> Vec<MeterSample> {
        self.timeline
            .lock()
            .map(|timeline| timeline.points.clone())
            .unwrap_or_default()
    }
}

fn times_of(gauge: &Arc<Gauge>) -> [f64; 3] {
    [&gauge.busy, &gauge.starved, &gauge.blocked].map(seconds_of)
}

/// Maximum number of points of a timeline. At this number every second point is dropped, and the
/// interval doubles.
pub const MAX_POINTS: usize = 1024;

#[derive(Debug, Default)]
struct Timeline {
    points: Vec<MeterSample>,
    skip: u32,
    passed: u32,
}

impl Timeline {
    fn push(&mut self, sample: MeterSample) {
        self.passed += 1;
        if self.passed <= self.skip {
            return;
        }
        self.passed = 0;
        self.points.push(sample);
        if self.points.len() >= MAX_POINTS {
            let mut odd = false;
            self.points.retain(|_| {
                odd = !odd;
                odd
            });
            self.skip = self.skip * 2 + 1;
        }
    }
}

impl MeterSample {
    /// The start of a run.
    pub const ZERO: Self = Self {
        seconds: 0.0,
        bytes: 0,
        stored_bytes: 0,
        small: 0,
        processors: 0.0,
        machine: None,
        device_bytes: 0,
        paced_bytes: 0,
        times: [[0.0; 3]; 3],
        cpu: [0.0; 3],
        compressing: 0.0,
        sealing: 0.0,
        capacity: [0.0; 3],
        streams: 1,
    };

    /// Returns the share of the thread time since an earlier sample that was spent reading.
    pub fn reading_share(&self, earlier: &Self) -> f64 {
        busy_share(earlier, self, Side::Source)
    }

    /// Returns the work a second since an earlier sample: bytes, plus 16 KiB for each file or
    /// similar operation, because opening a file costs as much.
    pub fn work_since(&self, earlier: &Self) -> f64 {
        (work(self) - work(earlier)) / (self.seconds - earlier.seconds).max(1e-9)
    }

    /// Returns whether a quarter of the processors was left since an earlier sample, both by this
    /// process and by all processes.
    pub fn had_idle_processors(&self, earlier: &Self, processors: usize) -> bool {
        self.idle_share(earlier, processors) > 0.25
    }

    /// Returns the share of these processors that was left since an earlier sample, by this process
    /// or by all processes, whichever is less; 0 to 1.
    pub fn idle_share(&self, earlier: &Self, processors: usize) -> f64 {
        let all = (self.seconds - earlier.seconds).max(1e-9) * processors as f64;
        let own = 1.0 - (self.processors - earlier.processors) / all;
        let machine = { self.machine.zip(earlier.machine) }.map_or(1.0, |(now, former)| {
            (now.idle_seconds - former.idle_seconds) / all
        });
        own.min(machine).clamp(0.0, 1.0)
    }
}

fn work(sample: &MeterSample) -> f64 {
    sample.bytes as f64 + sample.small as f64 * 16384.0
}

/// Returns the limit between two samples: the busiest part.
///
/// The source counts as busy as its readers or as its walk, for which the feeders wait, whichever
/// is more. The idle time of a part is starved in proportion to how busy the parts before it were,
/// and blocked in proportion to how busy the parts after it were.
pub fn verdict(start: &MeterSample, end: &MeterSample) -> LimitVerdict {
    let wall = (end.seconds - start.seconds).max(1e-9);
    let [read, work, store] =
        [Side::Source, Side::Workers, Side::Sink].map(|side| busy_share(start, end, side));
    // Readers that starve wait for the walk, the only part before them.
    let waited_for_walk = end.times[0][1] - start.times[0][1];
    let walk = (waited_for_walk / (wall * end.streams as f64)).clamp(0.0, 1.0);
    let source = read.max(walk);
    LimitVerdict {
        limit: busiest(source, work, store),
        shares: [
            shares(source, 0.0, work.max(store)),
            shares(work, source, store),
            shares(store, source.max(work), 0.0),
        ],
        seconds: wall,
    }
}

/// Returns the share of the available thread time that one part worked between two samples.
fn busy_share(start: &MeterSample, end: &MeterSample, side: Side) -> f64 {
    let side = side as usize;
    let busy = end.times[side][0] - start.times[side][0];
    let capacity = (end.capacity[side] - start.capacity[side]).max(1e-9);
    (busy / capacity).clamp(0.0, 1.0)
}

/// Returns the busiest part. Of equal ones the sink comes first, then the workers.
fn busiest(source: f64, work: f64, store: f64) -> Side {
    if store >= source.max(work) {
        Side::Sink
    } else if source > work {
        Side::Source
    } else {
        Side::Workers
    }
}

/// Splits the idle time of a part by the busy shares of the parts before and behind it.
fn shares(busy: f64, waiting_before: f64, waiting_behind: f64) -> Shares {
    let starved = if waiting_before + waiting_behind > 0.0 {
        waiting_before / (waiting_before + waiting_behind)
    } else {
        1.0
    };
    let idle = 1.0 - busy;
    Shares {
        busy,
        starved: idle * starved,
        blocked: idle * (1.0 - starved),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(times: [[f64; 3]; 3]) -> MeterSample {
        MeterSample {
            seconds: 10.0,
            times,
            capacity: [20.0, 20.0, 10.0],
            streams: 1,
            ..MeterSample::default()
        }
    }

    #[test]
    fn the_busiest_side_is_the_limit() {
        let zero = MeterSample::default();
        let cpu = sample([[1.0, 0.1, 9.0], [18.5, 0.0, 0.0], [2.0, 0.0, 0.0]]);
        let disk = sample([[19.0, 0.1, 9.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]);
        let walk = sample([[2.0, 9.5, 0.0], [4.0, 0.0, 0.0], [1.0, 0.0, 0.0]]);
        let sink = sample([[2.0, 0.1, 9.0], [4.0, 0.0, 0.0], [9.7, 0.0, 0.0]]);
        for (sample, limit) in [
            (cpu, Side::Workers),
            (disk, Side::Source),
            (walk, Side::Source),
            (sink, Side::Sink),
        ] {
            assert_eq!(verdict(&zero, &sample).limit, limit);
        }
        // The walk counts as work of the source.
        assert_eq!(verdict(&zero, &walk).of(Side::Source).busy, 0.95);
    }

    #[test]
    fn a_long_timeline_is_thinned_and_keeps_its_ends() {
        let mut timeline = Timeline::default();
        (0..100_000).for_each(|i| {
            timeline.push(MeterSample {
                seconds: f64::from(i),
                ..MeterSample::default()
            })
        });
        assert!(timeline.points.len() < MAX_POINTS);
        assert_eq!(timeline.points[0].seconds, 0.0);
        assert!(timeline.points.last().unwrap().seconds > 99_000.0);
    }
}
