//! Adaptive compression: all threads of a run share one level, and it changes between frames.

use super::{
    Stage,
    codec::{Codec, Compressor, START_LEVEL, compress_frame},
};
use crate::frame::{Frame, Pool};
use fullbore_format::error::Result;
use fullbore_platform::queue::Locked;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// The levels of zstd that a run may use, the fastest first. There is no level 0: for zstd it is
/// another name of level 3.
const LEVELS: [i32; 14] = [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9];

/// The level for the next frame, and the bytes that were compressed at each level so far.
pub struct LevelDial {
    position: AtomicUsize,
    used: Mutex<BTreeMap<i32, u64>>,
    /// Compressors that no thread is using. One takes 10 MiB at level 9, so there are no more than
    /// threads that compute at once.
    spare: Mutex<Vec<Compressor>>,
}

impl Default for LevelDial {
    fn default() -> Self {
        let start = LEVELS.iter().position(|level| *level == START_LEVEL);
        Self {
            position: AtomicUsize::new(start.unwrap_or(0)),
            used: Mutex::default(),
            spare: Mutex::default(),
        }
    }
}

impl fmt::Debug for LevelDial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LevelDial").field(&self.level()).finish()
    }
}

impl LevelDial {
    /// Returns the level for the next frame.
    pub fn level(&self) -> i32 {
        LEVELS[self.position.load(Relaxed)]
    }

    /// Moves one level up. Returns whether there was one.
    pub fn strengthen(&self) -> bool {
        self.turn(|position| (position + 1 < LEVELS.len()).then_some(position + 1))
    }

    /// Moves one level down. Returns whether there was one.
    pub fn weaken(&self) -> bool {
        self.turn(|position| position.checked_sub(1))
    }

    fn turn(&self, next_step: impl Fn(usize) -> Option<usize>) -> bool {
        self.position
            .fetch_update(Relaxed, Relaxed, next_step)
            .is_ok()
    }

    /// Returns the plain bytes that were compressed at each level.
    pub fn used(&self) -> BTreeMap<i32, u64> {
        self.used.locked().clone()
    }

    fn count(&self, level: i32, plain_bytes: u64) {
        *self.used.locked().entry(level).or_default() += plain_bytes;
    }

    fn take_compressor(&self) -> Result<Compressor> {
        let spare = self.spare.locked().pop();
        spare.map_or_else(|| Codec::Auto.compressor(), Ok)
    }
}

/// The stage that compresses each frame at the level of its dial.
pub struct CompressAuto {
    dial: Arc<LevelDial>,
    pool: Arc<Pool>,
}

impl CompressAuto {
    /// Makes a stage that compresses into buffers of `pool`.
    pub fn new(dial: Arc<LevelDial>, pool: Arc<Pool>) -> Self {
        Self { dial, pool }
    }
}

impl Stage for CompressAuto {
    fn apply(&mut self, frame: Frame) -> Result<Frame> {
        if frame.data.is_empty() {
            return Ok(frame);
        }
        let level = self.dial.level();
        self.dial.count(level, frame.data.len() as u64);
        let mut compressor = self.dial.take_compressor()?;
        compressor.set_level(level);
        let frame = compress_frame(&mut compressor, frame, &self.pool);
        self.dial.spare.locked().push(compressor);
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dial_starts_at_level_1_and_stops_at_both_ends() {
        let dial = LevelDial::default();
        assert_eq!(dial.level(), 1);
        let up = std::iter::from_fn(|| dial.strengthen().then(|| dial.level()));
        assert_eq!(up.collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7, 8, 9]);
        while dial.weaken() {}
        assert_eq!((dial.level(), dial.weaken()), (-5, false));
    }

    /// A frame has the same bytes at a level, whatever levels its compressor had before.
    #[test]
    fn a_frame_does_not_depend_on_the_levels_before_it() {
        let plain: Vec<u8> = (0..300_000u32)
            .map(|i| ((i / 7 % 251) as u8) ^ (i as u8 & 3))
            .collect();
        let mut used = Codec::Auto.compressor().unwrap();
        for level in [1, 9, 1, -5, 3, 1, 2] {
            for one_file in [true, false] {
                let (mut out, mut fresh) = (Vec::new(), Vec::new());
                used.set_level(level);
                used.expect_one_file(one_file);
                used.compress(&plain, &mut out).unwrap();
                let mut new = Codec::Zstd(level).compressor().unwrap();
                new.expect_one_file(one_file);
                new.compress(&plain, &mut fresh).unwrap();
                assert_eq!(out, fresh, "level {level}");
            }
        }
    }
}
