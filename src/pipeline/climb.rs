//! How many threads pay.
//!
//! A thread reads a frame and then computes on it, while it is in the processor's cache. So with as many threads as may
//! compute, reading and computing take turns; where reading takes long, more threads read while others compute. No number
//! fits all devices: cached data are best served without any more, one disk by few, a flash drive with cold small files by
//! 64. More are added only while reads sleep, and neither the permits to compute nor the sink are used up.

use super::meter::{Meter, Sample, Side, verdict};

/// Watches one run.
pub struct Climb(Sample);

impl Climb {
    /// Watch from now on.
    pub fn new(meter: &Meter) -> Self {
        Self(meter.sample())
    }

    /// How many threads there should be where there are `threads` now; called every 50 ms or so.
    pub fn advise(&mut self, now: Sample, threads: usize, max_threads: usize) -> usize {
        let before = std::mem::replace(&mut self.0, now);
        let verdict = verdict(&before, &now);
        let [work, store] = [Side::Workers, Side::Sink].map(|side| verdict.of(side).busy);
        if now.asleep_since(&before) > 0.25 && work < 0.85 && store < 0.85 {
            (threads + threads.div_ceil(2)).min(max_threads)
        } else {
            threads
        }
    }
}
