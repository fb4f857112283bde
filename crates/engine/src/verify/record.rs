//! The outcome of a check, which is remembered in the repository.

use super::{RunningCheck, VerifyVerdict, data::part_count};
use fullbore_format::root::PART_BYTES;
use fullbore_platform::queue::Locked;
use fullbore_repository::verify_memory::VerifyRecord;
use std::time::{SystemTime, UNIX_EPOCH};

impl RunningCheck<'_> {
    /// Returns the outcome to be remembered: of a check of all data, or of the structure if that found damage.
    ///
    /// Without a key it is not known which files a damaged backup lost.
    pub(super) fn record(&self, begun: SystemTime, found: &VerifyVerdict) -> Option<VerifyRecord> {
        let is_damaged_locked = found.is_locked && !found.damaged.is_empty();
        if !self.data && found.lost.is_empty() && !is_damaged_locked {
            return None;
        }
        let time = begun.duration_since(UNIX_EPOCH).unwrap_or_default();
        let places = self.stock.segments.iter();
        let parts = self.damaged_parts.locked();
        let ids = self.stock.archives.iter().map(|archive| &archive.root.id);
        let loss_of = |id: &String| {
            let loss = found.lost.iter().find(|loss| loss.backup == *id);
            let files = loss.map(|loss| loss.files.len() as u64);
            let is_damaged = found.is_locked && found.damaged.contains(id);
            files.or(is_damaged.then_some(0))
        };
        Some(VerifyRecord {
            time: time.as_secs(),
            data: self.data,
            segments: places
                .filter(|_| self.data)
                .map(|place| {
                    let most = part_count(place).saturating_mul(PART_BYTES);
                    (place.id.clone(), place.bytes.min(most))
                })
                .collect(),
            damaged: parts
                .iter()
                .filter(|_| self.data)
                .map(|part| (self.stock.segments[part.place].id.clone(), part.index))
                .collect(),
            shard: self.shard,
            losses: ids.map(|id| (id.clone(), loss_of(id))).collect(),
        })
    }
}
