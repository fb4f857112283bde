//! How many threads pay.
//!
//! A thread reads a frame and then computes on it, while it is in the processor's cache. So with as many threads as may
//! compute, reading and computing take turns; where reading takes long, more threads read while others compute. No number
//! fits all devices: cached data are best served without any more, one disk by few, a flash drive with cold small files by
//! 64. What a device can do is found out by trying: threads are added while reads sleep and neither the permits to compute
//! nor the sink are used up, and no longer than each step brings something.

use super::meter::{Meter, Sample, Side, verdict};

/// Ticks after a step before it is judged, and before the next try where a step brought nothing.
const JUDGED_AFTER: u32 = 3;
const REST: u32 = 40;
/// What a step must bring.
const GAIN: f64 = 1.05;

/// Watches one run.
pub struct Climb {
    /// Where the time that is looked at began.
    since: Sample,
    /// Ticks to wait.
    wait: u32,
    /// Speed before the last step, until it is judged.
    before: Option<f64>,
}

impl Climb {
    /// Watch from now on.
    pub fn new(meter: &Meter) -> Self {
        Self { since: meter.sample(), wait: 0, before: None }
    }

    /// How many threads there should be where there are `threads` now; called every 50 ms or so.
    pub fn advise(&mut self, now: Sample, threads: usize, max_threads: usize) -> usize {
        if self.wait > 0 {
            self.wait -= 1;
            return threads;
        }
        let since = std::mem::replace(&mut self.since, now);
        let speed = now.work_since(&since);
        if self.before.take().is_some_and(|before| speed < before * GAIN) {
            self.wait = REST;
            return threads;
        }
        let verdict = verdict(&since, &now);
        let [work, store] = [Side::Workers, Side::Sink].map(|side| verdict.of(side).busy);
        if threads >= max_threads || now.asleep_since(&since) < 0.25 || work > 0.85 || store > 0.85 {
            return threads;
        }
        (self.before, self.wait) = (Some(speed), JUDGED_AFTER);
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
        let (mut threads, mut now) = (2, Sample::ZERO);
        let mut climb = Climb { since: now, wait: 0, before: None };
        for _ in 0..40 {
            meter.source.threads.store(threads, Relaxed);
            meter.source.busy.fetch_add(50_000_000 * threads as u64, Relaxed);
            meter.source.asleep.fetch_add(50_000_000 * threads as u64, Relaxed);
            meter.bytes.fetch_add(1_000_000 * threads.min(best) as u64, Relaxed);
            let seconds = now.seconds + 0.05;
            now = meter.sample();
            now.seconds = seconds;
            threads = climb.advise(now, threads, 64);
        }
        threads
    }

    #[test]
    fn a_device_that_takes_many_gets_many_and_one_that_does_not_gets_few() {
        assert_eq!(climbed(64), 64);
        assert!(climbed(1) <= 4, "{}", climbed(1));
    }
}
