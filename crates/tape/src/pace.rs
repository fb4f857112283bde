//! When a drive gets the next record: water marks and a steady rate.
//!
//! A drive that stops must go back before it starts again, which takes seconds. So it is started when
//! a buffer is nearly full, or when the source has ended, and is left to stop only when the buffer is
//! empty. While it runs it gets a steady rate, that of the source, so that it settles at one of its
//! speeds; never less than its lowest one.

use std::{collections::VecDeque, time::Duration};

/// The drive is started when this share of the buffer is full.
const START_SHARE: f64 = 0.8;
/// The share at which the drive gets the rate of the source.
const STEADY_SHARE: f64 = 0.6;
/// The rate of the source is that of this span.
const SPAN: Duration = Duration::from_secs(10);

/// The lowest speeds of drives of full height, in MB/s, by the density code of the tape: LTO-5 to LTO-9.
const LOWEST_RATES: [(u8, f64); 6] = [
    (0x58, 47.0),
    (0x5a, 54.0),
    (0x5c, 101.0),
    (0x5d, 101.0),
    (0x5e, 112.0),
    (0x60, 177.0),
];

/// Returns the lowest speed of a drive in bytes a second, by the density code of its tape; 0 if it is not known.
pub(crate) fn lowest_rate(density: u8) -> f64 {
    let known = LOWEST_RATES.iter().find(|(code, _)| *code == density);
    known.map_or(0.0, |(_, rate)| rate * 1e6)
}

/// The parameters of [`Pace`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PaceSettings {
    /// The size of the buffer before the drive.
    pub ring_bytes: u64,
    /// The lowest speed of the drive, in bytes a second; 0 if it is not known.
    pub lowest_rate: f64,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaceStep {
    /// Write the next record.
    Write,
    /// Wait for more records.
    WaitForMore,
    /// Wait this long.
    WaitFor(Duration),
}

/// Decides when records are written. All times are those of one clock.
#[derive(Debug)]
pub struct Pace {
    settings: PaceSettings,
    is_running: bool,
    next_at: Duration,
    /// Time and length of what arrived in the last span.
    arrivals: VecDeque<(Duration, u64)>,
    arrived_bytes: u64,
    begin: Option<Duration>,
    starts: u64,
}

impl Pace {
    /// Nothing has arrived.
    pub fn new(settings: PaceSettings) -> Self {
        Self {
            settings,
            is_running: false,
            next_at: Duration::ZERO,
            arrivals: VecDeque::new(),
            arrived_bytes: 0,
            begin: None,
            starts: 0,
        }
    }

    /// How often writing was begun.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// Notes that bytes have arrived from the source.
    pub fn arrived(&mut self, bytes: u64, now: Duration) {
        self.begin.get_or_insert(now);
        self.arrivals.push_back((now, bytes));
        self.arrived_bytes += bytes;
        while let Some((time, bytes)) = self.arrivals.front().copied()
            && time + SPAN < now
        {
            self.arrivals.pop_front();
            self.arrived_bytes -= bytes;
        }
    }

    /// Decides, with `level` bytes in the buffer. After `has_ended` nothing arrives any more.
    pub fn step(&mut self, level: u64, has_ended: bool, now: Duration) -> PaceStep {
        if level == 0 {
            self.is_running = false;
            return PaceStep::WaitForMore;
        }
        if !self.is_running {
            if !has_ended && (level as f64) < START_SHARE * self.settings.ring_bytes as f64 {
                return PaceStep::WaitForMore;
            }
            self.is_running = true;
            self.starts += 1;
            self.next_at = now;
        }
        // Nothing arrives that would be waited for.
        if has_ended || now >= self.next_at {
            return PaceStep::Write;
        }
        PaceStep::WaitFor(self.next_at - now)
    }

    /// Notes that a record was taken, and that `level` bytes are left.
    pub fn written(&mut self, bytes: u64, level: u64, now: Duration) {
        let rate = self.rate(level, now);
        // A drive that made us wait is not given more at once for it.
        let begin = self
            .next_at
            .max(now.saturating_sub(Duration::from_millis(100)));
        self.next_at = begin + Duration::from_secs_f64(bytes as f64 / rate);
    }

    /// The rate at which the drive gets records.
    fn rate(&self, level: u64, now: Duration) -> f64 {
        let since = now.saturating_sub(self.begin.unwrap_or(now));
        let span = since.min(SPAN).as_secs_f64().max(0.1);
        let source = self.arrived_bytes as f64 / span;
        let share = level as f64 / self.settings.ring_bytes.max(1) as f64;
        let rate = source * (1.0 + share - STEADY_SHARE);
        rate.max(self.settings.lowest_rate).max(1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Drive, RecordOutcome, TapeDrive,
        sim::{MotorCounters, SimClock, SimDevice, SimSettings},
    };

    const RECORD: u64 = 1 << 20;

    /// Writes `total` bytes of a source of this rate through a buffer in virtual time. Returns the
    /// starts that were planned, what the drive did, and the seconds.
    fn run(total: u64, source: f64, ring_bytes: u64) -> (u64, MotorCounters, f64) {
        let dir = tempfile::tempdir().unwrap();
        let clock = SimClock::virtual_time();
        let settings = SimSettings::default();
        let lowest_rate = settings.steps[0] as f64;
        let path = dir.path().join("cartridge");
        let mut device = SimDevice::create(&path, settings, clock.clone()).unwrap();
        device.keep_lengths_only();
        let mut drive = TapeDrive::new(device, "sim");
        let mut pace = Pace::new(PaceSettings {
            ring_bytes,
            lowest_rate,
        });
        let (mut arrived, mut level, mut written) = (0, 0, 0);
        let record = vec![1; RECORD as usize];
        while written < total {
            let due = (clock.now().as_secs_f64() * source) as u64;
            while arrived < due.min(total) && level + RECORD <= ring_bytes {
                pace.arrived(RECORD, clock.now());
                arrived += RECORD;
                level += RECORD;
            }
            match pace.step(level, arrived >= total, clock.now()) {
                PaceStep::WaitForMore => {
                    clock.advance(Duration::from_secs_f64(RECORD as f64 / source))
                }
                PaceStep::WaitFor(time) => clock.advance(time.min(Duration::from_millis(5))),
                PaceStep::Write => {
                    assert_eq!(drive.record(&record).unwrap(), RecordOutcome::Taken);
                    level -= RECORD;
                    written += RECORD;
                    pace.written(RECORD, level, clock.now());
                }
            }
        }
        drive.flush().unwrap();
        (
            pace.starts(),
            drive.device().counters().clone(),
            clock.now().as_secs_f64(),
        )
    }

    #[test]
    fn a_source_above_the_lowest_speed_starts_the_drive_once() {
        for source in [120e6, 200e6, 290e6] {
            let total = 20_000 * RECORD;
            let (starts, counters, seconds) = run(total, source, 1 << 30);
            assert_eq!(
                (starts, counters.starts, counters.found_empty),
                (1, 1, 0),
                "{source}"
            );
            let share = total as f64 / source / seconds;
            assert!(share > 0.9, "{source}: {share}");
        }
    }

    #[test]
    fn a_slow_source_is_written_in_runs_of_a_full_buffer() {
        let total = 20_000 * RECORD;
        let (starts, counters, seconds) = run(total, 62e6, 1 << 30);
        // A run writes 0.8 B d / (d - s): 1.97 GB.
        assert!((9..=13).contains(&starts), "{starts}");
        assert!(counters.starts <= starts + 1, "{counters:?}");
        let share = total as f64 / 62e6 / seconds;
        assert!(share > 0.95, "{share}");
        let (large, ..) = run(total, 62e6, 4 << 30);
        assert!(large <= 4, "{large}");
    }
}
