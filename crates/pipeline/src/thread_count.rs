//! Finds the number of threads that pays off.
//!
//! A thread reads a frame and then computes on it while the frame is in the processor's cache. With
//! as many threads as may compute, reading and computing take turns; where reading takes long, more
//! threads read while others compute.
//!
//! No number fits all devices. Cached data need no more threads, one disk a few, a flash drive with
//! cold small files 64. A local file system takes writes from as many threads as there are
//! processors, a network file system from many more. So the number is found by trying: threads are
//! added while work waits for them and processors are idle, and only as long as each step makes the
//! run faster.

use fullbore_platform as platform;
use fullbore_platform::metrics::meter::{Meter, MeterSample};

/// Ticks before a step is judged, and before the next try after a step that did not pay off.
const JUDGED_AFTER: u32 = 3;
const REST: u32 = 40;
/// Speed-up that a step must reach.
const GAIN: f64 = 1.05;

/// Returns the maximum number of threads worth trying: cold small files on flash are read fastest
/// by 64, and a core cannot digest for more than 8. Fewer if the address space is limited.
pub fn max_threads(workers: usize) -> usize {
    platform::memory::threads_within_limit((8 * workers).clamp(16, 64))
}

/// Adjusts the number of threads of one run.
pub struct ThreadTuner {
    /// Number of threads that may compute at once.
    workers: usize,
    /// The sample at the start of the present period.
    since: MeterSample,
    /// Number of ticks to wait.
    wait: u32,
    /// Speed and number of threads before the last step, until that step is judged.
    before: Option<(f64, usize)>,
}

impl ThreadTuner {
    /// Starts to watch; `workers` threads may compute at once.
    pub fn new(meter: &Meter, workers: usize) -> Self {
        let workers = workers.min(platform::cores().get());
        Self {
            workers,
            since: meter.sample(),
            wait: 0,
            before: None,
        }
    }

    /// Returns the number of threads that have proven to pay off, if some are on trial.
    pub fn proven_threads(&self) -> usize {
        self.before.map_or(usize::MAX, |(_, fewer)| fewer)
    }

    /// Returns the wanted number of threads, with `threads` now. Call it about every 50 ms. `waits`
    /// tells whether work waited for threads between two samples.
    pub fn wanted_threads(
        &mut self,
        now: MeterSample,
        threads: usize,
        max_threads: usize,
        waits: impl FnOnce(&MeterSample, &MeterSample) -> bool,
    ) -> usize {
        if self.wait > 0 {
            self.wait -= 1;
            return threads;
        }
        let start = std::mem::replace(&mut self.since, now);
        let speed = now.work_since(&start);
        if let Some((previous, fewer)) = self.before.take()
            && speed < previous * GAIN
        {
            self.wait = REST;
            return fewer;
        }
        if threads >= max_threads
            || !now.had_idle_processors(&start, self.workers)
            || !waits(&start, &now)
        {
            return threads;
        }
        (self.before, self.wait) = (Some((speed, threads)), JUDGED_AFTER);
        (threads + threads.div_ceil(2)).min(max_threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    /// Threads after two seconds of a device that serves at most `best` sleepers at a time.
    fn climbed(best: usize) -> usize {
        let meter = Meter::default();
        let (mut threads, mut now) = (2, MeterSample::ZERO);
        let mut tuner = ThreadTuner {
            workers: 2,
            since: now,
            wait: 0,
            before: None,
        };
        for _ in 0..40 {
            meter
                .bytes
                .fetch_add(1_000_000 * threads.min(best) as u64, Relaxed);
            let seconds = now.seconds + 0.05;
            now = meter.sample();
            (now.seconds, now.processors, now.machine) = (seconds, 0.0, None);
            threads = tuner.wanted_threads(now, threads, 64, |_, _| true);
        }
        threads
    }

    #[test]
    fn a_device_that_takes_many_gets_many_and_one_that_does_not_gets_few() {
        assert!(climbed(64) > 48, "{}", climbed(64));
        assert_eq!(climbed(1), 2);
    }
}
