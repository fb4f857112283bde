//! Chooses the level of adaptive compression during a run.
//!
//! The strongest level is wanted that does not make the run slower. After each window of frames, one
//! of two facts moves the level one step:
//!
//! - The line before the sink is full: the sink takes less than the workers give, so the disk, the
//!   network or the store behind it is the limit. Stronger compression costs no time, and leaves
//!   fewer bytes to send. If the line is short and processors are idle, the source is the limit,
//!   and the same is true.
//! - The line is short and the processors are busy, with compression for the most part: the workers
//!   are the limit. The level goes down.
//!
//! A stronger level that made the run slower is tried again only after a rest, which doubles with
//! each failure.

use crate::stage::level::LevelDial;
use fullbore_platform as platform;
use fullbore_platform::{
    metrics::meter::{Meter, MeterSample},
    queue::Locked,
};
use std::sync::{Arc, Mutex};

const WINDOW_FRAMES: u32 = 16;

/// Seconds of a window that is judged by the processors: the system counts in hundredths.
const WINDOW_SECONDS: f64 = 0.1;

/// Maximum number of windows of a rest.
const MAX_REST: u32 = 32;

/// Chooses the level of one run, for all its streams.
#[derive(Debug)]
pub struct LevelChooser {
    dial: Arc<LevelDial>,
    meter: Arc<Meter>,
    /// Processors that the run may use.
    processors: usize,
    course: Mutex<LevelCourse>,
}

/// The present window, and how the level came to where it is.
#[derive(Debug, Default)]
struct LevelCourse {
    since: MeterSample,
    frames: u32,
    /// Frames that the sink took from a line that was full.
    full: u32,
    /// Frames still to be taken that may have been compressed before the last step.
    stale: usize,
    last: LevelStep,
    /// Windows until a stronger level is tried again.
    rest: u32,
    /// Length of the last rest.
    rested: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum LevelStep {
    #[default]
    Stay,
    Stronger,
    Faster,
}

/// One window of frames, as it was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LevelWindow {
    /// Frames that the sink took.
    frames: u32,
    /// Frames of them that it took from a line that was full.
    full: u32,
    /// Wall-clock seconds.
    seconds: f64,
    /// Idle processors, as a share of those that the run may use.
    idle: f64,
    /// Compression, as a share of the CPU time of this process.
    compressing: f64,
    /// Reading, with its waits, as a share of the time of the threads.
    reading: f64,
}

impl LevelWindow {
    /// Returns the step that follows from this window; `None` if it is too short to tell.
    fn step(&self) -> Option<LevelStep> {
        if self.frames < WINDOW_FRAMES {
            return None;
        }
        if self.full * 4 >= self.frames * 3 {
            return Some(LevelStep::Stronger);
        }
        if self.seconds < WINDOW_SECONDS {
            return None;
        }
        let is_short = self.full * 4 <= self.frames;
        Some(match () {
            () if !is_short => LevelStep::Stay,
            () if self.idle >= 0.25 => LevelStep::Stronger,
            // The workers are not the limit of threads that mostly read.
            () if self.idle >= 0.1 || self.reading >= 0.5 => LevelStep::Stay,
            () if self.compressing >= 0.25 => LevelStep::Faster,
            () => LevelStep::Stay,
        })
    }
}

impl LevelChooser {
    /// Starts to watch a run that may use `processors`.
    pub fn new(dial: Arc<LevelDial>, meter: Arc<Meter>, processors: usize) -> Self {
        let mut course = LevelCourse::default();
        course.begin(meter.sample());
        Self {
            dial,
            meter,
            processors: processors.min(platform::cores().get()),
            course: Mutex::new(course),
        }
    }

    /// Notes that the sink takes a frame from a line of `limit` places, of which `done` hold
    /// frames that only wait for the sink.
    pub fn note_taken(&self, done: usize, limit: usize) {
        let mut course = self.course.locked();
        if course.stale > 0 {
            course.stale -= 1;
            if course.stale == 0 {
                course.begin(self.meter.sample());
            }
            return;
        }
        course.frames += 1;
        // The feeder fills a line again when half of its places are free.
        course.full += u32::from(done * 2 >= limit);
        // A sample costs a read of `/proc/stat`, so not each frame takes one.
        if course.frames % WINDOW_FRAMES != 0 {
            return;
        }
        let now = self.meter.sample();
        let Some(step) = course.window(&now, self.processors).step() else {
            return;
        };
        course.begin(now);
        if course.allows(step) {
            self.turn(step);
            course.stale = limit;
        }
    }

    fn turn(&self, step: LevelStep) {
        let moved = match step {
            LevelStep::Stronger => self.dial.strengthen(),
            LevelStep::Faster => self.dial.weaken(),
            LevelStep::Stay => false,
        };
        if moved {
            platform::debug(|| format!("compression level {}", self.dial.level()));
        }
    }
}

impl LevelCourse {
    fn begin(&mut self, now: MeterSample) {
        self.since = now;
        self.frames = 0;
        self.full = 0;
    }

    fn window(&self, now: &MeterSample, processors: usize) -> LevelWindow {
        let own = now.processors - self.since.processors;
        let compressing = now.compressing - self.since.compressing;
        LevelWindow {
            frames: self.frames,
            full: self.full,
            seconds: now.seconds - self.since.seconds,
            idle: now.idle_share(&self.since, processors),
            compressing: compressing / own.max(1e-9),
            reading: now.reading_share(&self.since),
        }
    }

    /// Returns whether the level moves now, and notes it.
    fn allows(&mut self, step: LevelStep) -> bool {
        let is_resting = self.rest > 0;
        self.rest = self.rest.saturating_sub(1);
        let moves = match (step, self.last) {
            (LevelStep::Stay, _) => false,
            (LevelStep::Stronger, _) => !is_resting,
            (LevelStep::Faster, LevelStep::Stronger) => {
                self.rested = (self.rested * 2).clamp(2, MAX_REST);
                self.rest = self.rested;
                true
            }
            (LevelStep::Faster, _) => true,
        };
        if moves {
            if step == self.last {
                self.rested = 0;
            }
            self.last = step;
        }
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ordered::{FrameLine, FrameWorkers, WorkFn};
    use fullbore_format::error::Result;
    use std::num::NonZeroUsize;

    const WINDOW: LevelWindow = LevelWindow {
        frames: WINDOW_FRAMES,
        full: 0,
        seconds: 1.0,
        idle: 0.0,
        compressing: 0.6,
        reading: 0.2,
    };

    #[test]
    fn a_window_tells_the_step() {
        use LevelStep::{Faster, Stay, Stronger};
        for (why, window, step) in [
            ("busy workers", WINDOW, Some(Faster)),
            (
                "few frames",
                LevelWindow {
                    frames: 9,
                    full: 9,
                    ..WINDOW
                },
                None,
            ),
            (
                "a moment",
                LevelWindow {
                    seconds: 0.01,
                    ..WINDOW
                },
                None,
            ),
            (
                "a slow sink",
                LevelWindow { full: 12, ..WINDOW },
                Some(Stronger),
            ),
            (
                "a slow sink, at once",
                LevelWindow {
                    full: 16,
                    seconds: 0.01,
                    ..WINDOW
                },
                Some(Stronger),
            ),
            (
                "a line that is half full",
                LevelWindow { full: 8, ..WINDOW },
                Some(Stay),
            ),
            (
                "a slow source",
                LevelWindow {
                    idle: 0.5,
                    ..WINDOW
                },
                Some(Stronger),
            ),
            (
                "a slow source beside other programs",
                LevelWindow {
                    reading: 0.8,
                    ..WINDOW
                },
                Some(Stay),
            ),
            (
                "nearly busy",
                LevelWindow {
                    idle: 0.2,
                    ..WINDOW
                },
                Some(Stay),
            ),
            (
                "busy with something else",
                LevelWindow {
                    compressing: 0.1,
                    ..WINDOW
                },
                Some(Stay),
            ),
        ] {
            assert_eq!(window.step(), step, "{why}");
        }
    }

    /// The steps of a run whose workers become the limit above level `best`.
    fn levels(best: i32, windows: usize) -> Vec<i32> {
        let (dial, mut course) = (LevelDial::default(), LevelCourse::default());
        let one = |_| {
            let step = match dial.level() > best {
                true => LevelStep::Faster,
                false => LevelStep::Stronger,
            };
            if course.allows(step) {
                _ = match step {
                    LevelStep::Faster => dial.weaken(),
                    _ => dial.strengthen(),
                };
            }
            dial.level()
        };
        (0..windows).map(one).collect()
    }

    #[test]
    fn a_level_that_is_too_strong_is_left_at_once_and_tried_ever_more_rarely() {
        let levels = levels(4, 400);
        assert_eq!(levels[..5], [2, 3, 4, 5, 4]);
        let tries: Vec<_> = levels
            .iter()
            .map(|level| level - 4)
            .filter(|over| *over > 0)
            .collect();
        assert!(tries.iter().all(|over| *over == 1), "{tries:?}");
        assert!((8..20).contains(&tries.len()), "{tries:?}");
    }

    /// A sink that takes a frame only when those before it fill the line.
    #[test]
    fn behind_a_slow_sink_the_level_goes_up_to_9_and_no_further() {
        let dial = Arc::<LevelDial>::default();
        let chooser = LevelChooser::new(dial.clone(), Arc::default(), 2);
        let work = || -> Result<WorkFn<u32, u32>> { Ok(Box::new(Ok)) };
        let workers =
            FrameWorkers::start(NonZeroUsize::new(2).unwrap(), Arc::default(), work).unwrap();
        let line = FrameLine::new(8, 8);
        let mut levels = Vec::new();
        let mut frames = workers.ordered((0..400).map(Ok), line.clone());
        for number in 0..390 {
            while line.fill().0 < 5 {
                std::thread::yield_now(); // half of a line is filled again at once
            }
            assert_eq!(frames.next().unwrap().unwrap(), number);
            let (done, limit) = line.fill();
            chooser.note_taken(done, limit);
            levels.push(dial.level());
        }
        levels.dedup();
        assert_eq!(levels, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
