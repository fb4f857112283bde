//! The buffer and the motor of a simulated drive: when it starts, how fast it writes, when it stops.
//!
//! A stopped drive starts with the first bytes, which takes a while; then it empties its buffer at one of
//! its speeds and stops when the buffer is empty. Each second it takes the highest speed that is not
//! above what arrives, and the top speed when its buffer is nearly full.

use super::settings::SimSettings;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How often the speed is chosen.
const CHOICE: Duration = Duration::from_secs(1);

/// What a drive did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MotorCounters {
    /// Bytes taken.
    pub written_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// How often the tape started to move for writing.
    pub starts: u64,
    /// Writes that found the buffer empty.
    pub found_empty: u64,
    /// Marks.
    pub marks: u64,
    /// Waits until all was on the medium.
    pub flushes: u64,
    /// Ways to another place.
    pub locates: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Seconds from the first write to the last byte on the medium.
    pub write_seconds: f64,
    /// Seconds that the tape moved for writing.
    pub moving_seconds: f64,
}

/// What the tape does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Motion {
    Stopped,
    /// Goes back and starts; writes from this time.
    StartingUntil(Duration),
    Writing,
}

/// The motor. All times are those of one clock.
#[derive(Debug)]
pub(super) struct Motor {
    buffer_bytes: f64,
    steps: Vec<f64>,
    start: Duration,
    motion: Motion,
    level: f64,
    rate: f64,
    /// Up to when the state is computed.
    time: Duration,
    arrived: f64,
    chosen_at: Duration,
    first_write: Option<Duration>,
    pub(super) counters: MotorCounters,
}

impl Motor {
    pub(super) fn new(settings: &SimSettings, counters: MotorCounters) -> Self {
        let mut steps: Vec<_> = settings.steps.iter().map(|step| *step as f64).collect();
        if steps.is_empty() {
            steps.push(300e6);
        }
        Self {
            buffer_bytes: settings.buffer_bytes.max(1) as f64,
            rate: steps[0],
            steps,
            start: Duration::from_secs_f64(settings.start_seconds.max(0.0)),
            motion: Motion::Stopped,
            level: 0.0,
            time: Duration::ZERO,
            arrived: 0.0,
            chosen_at: Duration::ZERO,
            first_write: None,
            counters,
        }
    }

    /// Bytes in the buffer.
    pub(super) fn level(&self) -> f64 {
        self.level
    }

    /// The highest speed.
    pub(super) fn top_rate(&self) -> f64 {
        self.steps.iter().copied().fold(1.0, f64::max)
    }

    /// Computes the state at `now`.
    pub(super) fn run_until(&mut self, now: Duration) {
        while self.time < now && self.motion != Motion::Stopped {
            match self.motion {
                Motion::StartingUntil(until) if until > now => self.time = now,
                Motion::StartingUntil(until) => {
                    self.time = until.max(self.time);
                    self.motion = Motion::Writing;
                }
                _ => self.write_until(now.min(self.chosen_at + CHOICE)),
            }
        }
        self.time = self.time.max(now);
    }

    /// Empties the buffer until `end`, a time at or before the next choice of a speed.
    fn write_until(&mut self, end: Duration) {
        if end <= self.time {
            self.choose_rate();
            return;
        }
        let span = (end - self.time).as_secs_f64();
        let empty_in = self.level / self.rate;
        let moved = span.min(empty_in);
        self.level -= self.rate * moved;
        self.counters.moving_seconds += moved;
        self.time += Duration::from_secs_f64(moved);
        if empty_in <= span {
            self.level = 0.0;
            self.motion = Motion::Stopped;
        } else {
            self.time = end;
        }
        self.note_duration();
    }

    fn choose_rate(&mut self) {
        let span = (self.time - self.chosen_at).as_secs_f64().max(1e-9);
        let arriving = self.arrived / span;
        let below = |step: &&f64| **step <= arriving * 1.02;
        self.rate = *self
            .steps
            .iter()
            .rev()
            .find(below)
            .unwrap_or(&self.steps[0]);
        if self.level > 0.9 * self.buffer_bytes {
            self.rate = self.top_rate();
        }
        self.arrived = 0.0;
        self.chosen_at = self.time;
    }

    /// The time until the buffer has room for `bytes`.
    pub(super) fn wait_for_room(&self, bytes: u64) -> Duration {
        let excess = self.level + bytes as f64 - self.buffer_bytes;
        if excess <= 0.0 || self.level <= 0.0 {
            return Duration::ZERO;
        }
        let starting = match self.motion {
            Motion::StartingUntil(until) => until.saturating_sub(self.time),
            _ => Duration::ZERO,
        };
        // At most a choice of the speed: it may change until then.
        let draining = (excess.min(self.level) / self.rate).min(CHOICE.as_secs_f64());
        starting + Duration::from_secs_f64(draining + 1e-6)
    }

    /// Takes bytes, for which there is room, at the time of [`Motor::run_until`].
    pub(super) fn take(&mut self, bytes: u64) {
        if self.counters.writes > 0 && self.level <= 0.0 {
            self.counters.found_empty += 1;
        }
        self.counters.writes += 1;
        self.counters.written_bytes += bytes;
        self.first_write.get_or_insert(self.time);
        self.level += bytes as f64;
        self.arrived += bytes as f64;
        if self.motion == Motion::Stopped {
            self.counters.starts += 1;
            self.motion = Motion::StartingUntil(self.time + self.start);
            self.chosen_at = self.time;
            self.arrived = bytes as f64;
        }
    }

    /// The time until the buffer is empty, if nothing more arrives.
    pub(super) fn wait_until_empty(&self) -> Duration {
        let starting = match self.motion {
            Motion::StartingUntil(until) => until.saturating_sub(self.time),
            _ => Duration::ZERO,
        };
        starting + Duration::from_secs_f64(self.level / self.top_rate())
    }

    /// Writes all of the buffer at the top speed, and stops the tape, as was asked for.
    pub(super) fn empty(&mut self, now: Duration) {
        self.counters.moving_seconds += self.level / self.top_rate();
        self.level = 0.0;
        self.motion = Motion::Stopped;
        self.time = self.time.max(now);
        self.note_duration();
    }

    /// Forgets what is in the buffer.
    pub(super) fn lose(&mut self) {
        self.level = 0.0;
        self.motion = Motion::Stopped;
    }

    fn note_duration(&mut self) {
        if let Some(first) = self.first_write {
            self.counters.write_seconds += (self.time.saturating_sub(first)).as_secs_f64();
            self.first_write = Some(self.time);
        }
    }
}
