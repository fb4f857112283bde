//! The outcome of a check of all data, which is remembered in the repository.

use super::{RunningCheck, data::part_count, losses::EntryLoss};
use fullbore_format::root::PART_BYTES;
use fullbore_platform::queue::Locked;
use fullbore_repository::verify_memory::VerifyRecord;
use std::time::{SystemTime, UNIX_EPOCH};

impl RunningCheck<'_> {
    /// Returns the outcome to be remembered, of a check of all data.
    pub(super) fn record(&self, begun: SystemTime, lost: &[EntryLoss]) -> VerifyRecord {
        let time = begun.duration_since(UNIX_EPOCH).unwrap_or_default();
        let places = self.stock.segments.iter();
        let parts = self.damaged_parts.locked();
        let ids = self.stock.archives.iter().map(|archive| &archive.root.id);
        let loss_of = |id: &String| {
            let found = lost.iter().find(|loss| loss.backup == *id);
            found.map(|loss| loss.files.len() as u64)
        };
        VerifyRecord {
            time: time.as_secs(),
            segments: places
                .map(|place| {
                    let most = part_count(place).saturating_mul(PART_BYTES);
                    (place.id.clone(), place.bytes.min(most))
                })
                .collect(),
            damaged: parts
                .iter()
                .map(|part| (self.stock.segments[part.place].id.clone(), part.index))
                .collect(),
            shard: self.shard,
            losses: ids.map(|id| (id.clone(), loss_of(id))).collect(),
        }
    }
}
