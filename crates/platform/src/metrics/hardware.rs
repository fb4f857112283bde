//! Which hardware, or which setting, limited a run: a pure function of measured numbers.
//!
//! [`LimitVerdict`] names the busiest of source, workers and sink. All
//! three may share the same processors, so this file looks at processors first.

use super::meter::{LimitVerdict, MeterSample, Side};

/// The thing that a run reads from or writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EndKind {
    /// A file system of this machine.
    #[default]
    Disk,
    /// An object store, with the network to it.
    Store,
    /// Another host, with the network to it.
    FarHost,
    /// Another program, over standard input or output.
    Program,
}

/// The kind of a run, which decides the names of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunKind {
    /// Reads, digests, compresses and stores.
    #[default]
    Backup,
    /// Fetches, decodes, checks and writes.
    Restore,
    /// Fetches, decodes and checks.
    Verify,
    /// Fetches and checks what is stored, and stores it elsewhere.
    Copy,
}

/// Facts about a run that its counters do not tell.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RunSetting {
    pub kind: RunKind,
    pub source: EndKind,
    pub sink: EndKind,
    /// Processors that this process may use.
    pub cores: usize,
    /// Threads that may compute at once.
    pub workers: usize,
    /// `--max-rate`, in bytes a second.
    pub max_rate: Option<u64>,
    /// Seconds for which `--limit-upload` or `--limit-download` held requests.
    pub limited_seconds: f64,
    /// Whether the store refused requests as too many.
    pub is_throttled: bool,
    /// Seconds of waiting for a server to begin or to end a backup.
    pub server_seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Processor,
    DiskRead,
    DiskWrite,
    /// The network to the other host, or that host.
    FarHost,
    /// The object store, or the network to it.
    StoreOrNetwork,
    /// The object store, which refused requests.
    Store,
    /// The PostgreSQL server, which was waited for.
    Server,
    /// The program that writes to standard input.
    Input,
    /// The program that reads standard output.
    Output,
    /// `--max-rate`.
    MaxRate,
    /// `--limit-upload` or `--limit-download`.
    TransferLimit,
    /// `--workers`.
    Workers,
}

impl Limit {
    /// Returns its name, for people and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Processor => "processor",
            Self::DiskRead => "disk read",
            Self::DiskWrite => "disk write",
            Self::FarHost => "network or far host",
            Self::StoreOrNetwork => "store or network",
            Self::Store => "store",
            Self::Server => "server",
            Self::Input => "standard input",
            Self::Output => "standard output",
            Self::MaxRate => "--max-rate",
            Self::TransferLimit => "--limit-upload or --limit-download",
            Self::Workers => "--workers",
        }
    }
}

/// The limit of a run, and how it used the processors.
#[derive(Debug, Clone, PartialEq)]
pub struct HardwareVerdict {
    pub limit: Limit,
    /// Processors that this process may use.
    pub cores: usize,
    /// Share of their time that this process used; 0 to 1.
    pub own: f64,
    /// Share of the time of all processors of the machine that other programs used; 0 to 1.
    pub others: f64,
    /// Kinds of work with their shares of the CPU time of this process; the largest first.
    pub work: Vec<(&'static str, f64)>,
}

/// A share of the processors' time at which they are the limit.
const SATURATED: f64 = 0.85;

/// Returns the verdict between two samples of a run that lasted `verdict.seconds`.
pub fn hardware(
    start: &MeterSample,
    end: &MeterSample,
    verdict: &LimitVerdict,
    run: &RunSetting,
) -> HardwareVerdict {
    let wall = (end.seconds - start.seconds).max(1e-9);
    let spent = end.processors - start.processors;
    let (others, idle) = machine_shares(start, end, spent);
    let own = (spent / (wall * run.cores.max(1) as f64)).clamp(0.0, 1.0);
    // Threads that are never busy for long on a busy machine wait for processors.
    let waits_for_processors = own >= 0.25 || verdict.of(verdict.limit).busy < 0.5;
    let processors_are_busy = own >= SATURATED || (idle < 0.1 && waits_for_processors);
    let limit = match () {
        () if is_held_by_rate(start, end, wall, run) => Limit::MaxRate,
        () if run.server_seconds > verdict.seconds / 2.0 => Limit::Server,
        () if processors_are_busy => Limit::Processor,
        () if is_computing(start, end, verdict.limit) => limit_of_threads(spent / wall, run),
        () if verdict.limit == Side::Source => limit_of_source(start, end, wall, run),
        () => limit_of_sink(wall, run),
    };
    HardwareVerdict {
        limit,
        cores: run.cores,
        own,
        others,
        work: work_shares(start, end, run.kind),
    }
}

/// Returns the shares of all processors of the machine that others used, and that were idle.
fn machine_shares(start: &MeterSample, end: &MeterSample, own_seconds: f64) -> (f64, f64) {
    let Some((earlier, now)) = start.machine.zip(end.machine) else {
        return (0.0, 1.0);
    };
    let all = (now.all_seconds - earlier.all_seconds).max(1e-9);
    let idle = now.idle_seconds - earlier.idle_seconds;
    let others = ((all - idle - own_seconds) / all).clamp(0.0, 1.0);
    (others, (idle / all).clamp(0.0, 1.0))
}

/// Returns whether bytes were read as fast as `--max-rate` permits.
fn is_held_by_rate(start: &MeterSample, end: &MeterSample, wall: f64, run: &RunSetting) -> bool {
    let paced = (end.paced_bytes - start.paced_bytes) as f64;
    run.max_rate
        .is_some_and(|rate| paced / rate.max(1) as f64 > 0.8 * wall)
}

/// Returns whether a part spent its time on a processor, and not waiting for a device.
fn is_computing(start: &MeterSample, end: &MeterSample, side: Side) -> bool {
    let index = side as usize;
    let busy = end.times[index][0] - start.times[index][0];
    let cpu = end.cpu[index] - start.cpu[index];
    side == Side::Workers || cpu > 0.7 * busy
}

/// The limit of a run that computes, though not on all processors; `used` processors.
fn limit_of_threads(used: f64, run: &RunSetting) -> Limit {
    if run.workers < run.cores && used > SATURATED * run.workers as f64 {
        Limit::Workers
    } else {
        Limit::Processor
    }
}

fn limit_of_source(start: &MeterSample, end: &MeterSample, wall: f64, run: &RunSetting) -> Limit {
    match run.source {
        EndKind::Disk => {
            // Cached files need no disk.
            let plain = (end.bytes - start.bytes).max(end.stored_bytes - start.stored_bytes);
            let is_cached = end.device_bytes - start.device_bytes < plain / 20;
            if is_cached {
                Limit::Processor
            } else {
                Limit::DiskRead
            }
        }
        EndKind::Program => Limit::Input,
        EndKind::Store | EndKind::FarHost => limit_of_transfers(run.source, wall, run),
    }
}

fn limit_of_sink(wall: f64, run: &RunSetting) -> Limit {
    match run.sink {
        EndKind::Disk => Limit::DiskWrite,
        EndKind::Program => Limit::Output,
        EndKind::Store | EndKind::FarHost => limit_of_transfers(run.sink, wall, run),
    }
}

fn limit_of_transfers(end: EndKind, wall: f64, run: &RunSetting) -> Limit {
    match () {
        () if run.limited_seconds > wall / 10.0 => Limit::TransferLimit,
        () if end == EndKind::FarHost => Limit::FarHost,
        () if run.is_throttled => Limit::Store,
        () => Limit::StoreOrNetwork,
    }
}

/// Returns the kinds of work with their shares of the CPU time, the largest first.
fn work_shares(start: &MeterSample, end: &MeterSample, kind: RunKind) -> Vec<(&'static str, f64)> {
    let spent = (end.processors - start.processors).max(1e-9);
    let [source, workers, sink] = [0, 1, 2].map(|side| end.cpu[side] - start.cpu[side]);
    let sealing = end.sealing - start.sealing;
    // The counters are read one after the other: without this bound `digesting` could be below
    // zero.
    let compressing = (end.compressing - start.compressing).min(workers);
    let mut work = match kind {
        RunKind::Backup => vec![
            ("reading", source),
            ("digesting", workers - compressing),
            ("compressing", compressing),
            ("encrypting", sealing),
            ("writing", sink - sealing),
        ],
        RunKind::Copy => vec![
            ("reading", source),
            ("checking", workers),
            ("encrypting", sealing),
            ("writing", sink - sealing),
        ],
        RunKind::Restore | RunKind::Verify => vec![
            ("reading", source - sealing),
            ("decrypting", sealing),
            ("decoding", workers),
            ("writing", sink),
        ],
    };
    let named: f64 = work.iter().map(|(_, seconds)| seconds.max(0.0)).sum();
    work.push(("other", spent - named));
    for (_, share) in &mut work {
        *share = (*share / spent).clamp(0.0, 1.0);
    }
    // Less than half a percent would be printed as 0 %.
    work.retain(|(_, share)| *share >= 0.005);
    work.sort_by(|a, b| b.1.total_cmp(&a.1));
    work
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MachineTime, metrics::meter::verdict};

    /// Ten seconds on a machine of two processors: busy and CPU seconds of source, workers and sink,
    /// CPU seconds of this process, idle seconds of the machine.
    fn sample(busy: [f64; 3], cpu: [f64; 3], processors: f64, idle: f64) -> MeterSample {
        MeterSample {
            seconds: 10.0,
            bytes: 1 << 30,
            device_bytes: 1 << 30,
            processors,
            machine: Some(MachineTime {
                all_seconds: 20.0,
                idle_seconds: idle,
            }),
            times: busy.map(|busy| [busy, 0.0, 0.0]),
            cpu,
            capacity: [20.0, 20.0, 10.0],
            ..MeterSample::ZERO
        }
    }

    const RUN: RunSetting = RunSetting {
        kind: RunKind::Backup,
        source: EndKind::Disk,
        sink: EndKind::Disk,
        cores: 2,
        workers: 2,
        max_rate: None,
        limited_seconds: 0.0,
        is_throttled: false,
        server_seconds: 0.0,
    };

    fn limit(end: &MeterSample, run: &RunSetting) -> Limit {
        let start = MeterSample {
            machine: Some(MachineTime::default()),
            ..MeterSample::ZERO
        };
        hardware(&start, end, &verdict(&start, end), run).limit
    }

    #[test]
    fn busy_processors_are_the_limit_whichever_part_keeps_them_busy() {
        for (why, later) in [
            (
                "compression",
                sample([5.0, 13.4, 1.0], [5.0, 13.4, 1.0], 19.4, 0.4),
            ),
            (
                "cached files",
                sample([15.0, 4.0, 1.0], [14.0, 4.0, 1.0], 19.0, 0.5),
            ),
            (
                "other programs",
                sample([2.0, 12.0, 1.0], [1.0, 7.0, 0.5], 9.0, 0.5),
            ),
            (
                "waiting for processors",
                sample([7.0, 2.0, 1.0], [1.0, 2.0, 0.5], 4.0, 0.5),
            ),
            (
                "one thread that writes",
                sample([1.0, 4.0, 9.9], [1.0, 4.0, 9.0], 14.0, 6.0),
            ),
        ] {
            assert_eq!(limit(&later, &RUN), Limit::Processor, "{why}");
        }
    }

    #[test]
    fn a_part_that_waits_is_named_by_its_device() {
        let reads = sample([18.0, 4.0, 1.0], [1.0, 4.0, 1.0], 6.5, 13.0);
        let writes = sample([2.0, 4.0, 9.8], [1.0, 4.0, 1.0], 6.5, 13.0);
        let setting = |source, sink| RunSetting {
            source,
            sink,
            ..RUN
        };
        use EndKind::{Disk, FarHost, Program, Store};
        for (later, run, expected) in [
            (reads, setting(Disk, Store), Limit::DiskRead),
            (reads, setting(Program, Disk), Limit::Input),
            (reads, setting(Store, Disk), Limit::StoreOrNetwork),
            (reads, setting(FarHost, Disk), Limit::FarHost),
            (writes, setting(Disk, Disk), Limit::DiskWrite),
            (writes, setting(Disk, Program), Limit::Output),
            (writes, setting(Disk, Store), Limit::StoreOrNetwork),
            (writes, setting(Disk, FarHost), Limit::FarHost),
        ] {
            assert_eq!(limit(&later, &run), expected, "{run:?}");
        }
        let cached = MeterSample {
            device_bytes: 0,
            ..reads
        };
        assert_eq!(limit(&cached, &RUN), Limit::Processor);
    }

    #[test]
    fn a_limit_that_was_set_is_named_before_the_hardware() {
        let later = sample([18.0, 4.0, 1.0], [1.0, 4.0, 1.0], 6.5, 13.0);
        let paced = MeterSample {
            paced_bytes: 95_000,
            ..later
        };
        let max_rate = Some(10_000);
        assert_eq!(
            limit(&paced, &RunSetting { max_rate, ..RUN }),
            Limit::MaxRate
        );
        assert_eq!(
            limit(&later, &RunSetting { max_rate, ..RUN }),
            Limit::DiskRead
        );
        let store = RunSetting {
            source: EndKind::Store,
            ..RUN
        };
        let limited = RunSetting {
            limited_seconds: 4.0,
            ..store
        };
        assert_eq!(limit(&later, &limited), Limit::TransferLimit);
        let refused = RunSetting {
            is_throttled: true,
            ..store
        };
        assert_eq!(limit(&later, &refused), Limit::Store);
        let server = RunSetting {
            server_seconds: 6.0,
            ..RUN
        };
        assert_eq!(limit(&later, &server), Limit::Server);
        let one = sample([0.5, 9.0, 0.3], [0.5, 9.0, 0.3], 9.9, 9.0);
        assert_eq!(
            limit(&one, &RunSetting { workers: 1, ..RUN }),
            Limit::Workers
        );
        assert_eq!(limit(&one, &RUN), Limit::Processor);
    }

    #[test]
    fn the_time_of_the_processors_is_divided_by_work() {
        let earlier = MeterSample::ZERO;
        let later = MeterSample {
            compressing: 8.0,
            sealing: 1.5,
            ..sample([4.0, 12.0, 2.0], [4.0, 12.0, 2.0], 20.0, 0.0)
        };
        let work = |kind| work_shares(&earlier, &later, kind);
        assert_eq!(
            work(RunKind::Backup),
            [
                ("compressing", 0.4),
                ("reading", 0.2),
                ("digesting", 0.2),
                ("other", 0.1),
                ("encrypting", 0.075),
                ("writing", 0.025)
            ]
        );
        assert_eq!(
            work(RunKind::Restore),
            [
                ("decoding", 0.6),
                ("reading", 0.125),
                ("writing", 0.1),
                ("other", 0.1),
                ("decrypting", 0.075)
            ]
        );
    }

    #[test]
    fn other_programs_are_counted_apart() {
        let earlier = MeterSample {
            machine: Some(MachineTime::default()),
            ..MeterSample::ZERO
        };
        let later = sample([2.0, 10.0, 1.0], [1.0, 10.0, 1.0], 12.0, 0.0);
        let found = hardware(&earlier, &later, &verdict(&earlier, &later), &RUN);
        assert_eq!((found.own, found.others), (0.6, 0.4));
    }
}
