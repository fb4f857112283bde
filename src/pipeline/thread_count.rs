//! How many threads pay.
//!
//! A thread reads a frame and then computes on it, while it is in the processor's cache. So with as many threads as may
//! compute, reading and computing take turns; where reading takes long, more threads read while others compute. No number
//! fits all devices: cached data are best served without any more, one disk by few, a flash drive with cold small files by
//! 64; a local file system is written to by as many as there are processors, one behind a network by many more. What a device
//! can do is found out by trying: threads are added while work waits for them and processors are left, and no longer than each
//! step brings something.

use crate::{
    metrics::meter::{Meter, MeterSample},
    platform,
};

/// Ticks after a step before it is judged, and before the next try where a step brought nothing.
const JUDGED_AFTER: u32 = 3;
const REST: u32 = 40;
/// What a step must bring.
const GAIN: f64 = 1.05;

/// Threads that are worth trying where so many may compute: cold small files on flash are best read by 64, and more than 8 for
/// each core could not be digested. Fewer where a limit of address space leaves no room for more.
pub fn max_threads(workers: usize) -> usize {
    platform::memory::threads_within_limit((8 * workers).clamp(16, 64))
}

/// Watches one run.
pub struct Climb {
    /// Threads that may compute at once.
    workers: usize,
    /// Where the time that is looked at began.
    since: MeterSample,
    /// Ticks to wait.
    wait: u32,
    /// Speed before the last step and the threads there were, until it is judged.
    before: Option<(f64, usize)>,
}

impl Climb {
    /// Watch from now on; `workers` may compute at once.
    pub fn new(meter: &Meter, workers: usize) -> Self {
        let workers = workers.min(platform::cores().get());
        Self {
            workers,
            since: meter.sample(),
            wait: 0,
            before: None,
        }
    }

    /// How many threads have proven that they pay, if some are on trial.
    pub fn proven(&self) -> usize {
        self.before.map_or(usize::MAX, |(_, fewer)| fewer)
    }

    /// How many threads there should be where there are `threads` now; called every 50 ms or so. `waits` says whether
    /// something waited for them between two samples.
    pub fn advise(
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
        let since = std::mem::replace(&mut self.since, now);
        let speed = now.work_since(&since);
        if let Some((before, fewer)) = self.before.take()
            && speed < before * GAIN
        {
            self.wait = REST;
            return fewer;
        }
        if threads >= max_threads
            || !now.had_idle_processors(&since, self.workers)
            || !waits(&since, &now)
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
        let mut climb = Climb {
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
            (now.seconds, now.processors, now.idle) = (seconds, 0.0, None);
            threads = climb.advise(now, threads, 64, |_, _| true);
        }
        threads
    }

    #[test]
    fn a_device_that_takes_many_gets_many_and_one_that_does_not_gets_few() {
        assert!(climbed(64) > 48, "{}", climbed(64));
        assert_eq!(climbed(1), 2);
    }
}
