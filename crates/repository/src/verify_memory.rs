//! Remembers when each part of a repository was checked, and which parts and backups were damaged.
//!
//! The memory is a convenience: if it is lost or damaged, all parts count as never checked, and a repository that cannot be written to
//! can still be verified. A backup does not refer to parts that were damaged, and stores their content again. In an encrypted repository
//! only what a person's key has proved counts for those who have a key ([`stored_memory`](super::stored_memory)).

use super::stored_memory::{MemoryTable, SegmentRow, StoredMemory};
use crate::shard::Shard;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::COVERED,
    page::SegmentId,
};
use fullbore_storage::{Objects, PutIf};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Parts beyond this limit are not remembered: 2^24 parts of 8 MiB are 128 TiB.
pub(super) const MAX_PARTS: u64 = 1 << 24;

/// Used as the time of a part that was damaged when it was last checked.
pub const DAMAGED: u64 = 1;

/// Times that a change of the memory is tried while others change it.
const MOST_UPDATES: u64 = 500;

/// Damaged backups beyond this limit are not remembered.
const MAX_LOSSES: usize = 1 << 16;

/// The outcome of earlier verifications.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyMemory {
    /// The time at which each part of each segment was checked, in seconds since 1970; 0 means never.
    times: HashMap<SegmentId, Vec<u64>>,
    /// The number of files that each damaged backup lost; 0 if it is not known.
    losses: BTreeMap<String, u64>,
    /// Backups of an encrypted repository that a check without a key found damaged, for a reader with a key. Anybody who writes to the
    /// storage can say so: it is told to people, and no backup and no check depends on it.
    unproven: BTreeSet<String>,
}

impl VerifyMemory {
    /// Reads the memory of a repository, as far as it counts for the reader.
    pub fn read(objects: &dyn Objects) -> Self {
        StoredMemory::read(objects).map_or_else(Self::default, |stored| stored.memory(objects))
    }

    /// The memory of these rows. A time in the future comes from a wrong clock, and does not count.
    pub(super) fn of_table(table: MemoryTable) -> Self {
        let mut memory = Self {
            losses: table.losses.into_iter().take(MAX_LOSSES).collect(),
            ..Self::default()
        };
        let mut left = MAX_PARTS;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        for row in table.segments {
            let id = SegmentId {
                backup: row.backup,
                stream: row.stream,
                number: row.number,
            };
            let mut position = 0;
            for (count, time) in row.runs {
                let (count, time) = (count.min(left), if time > now { 0 } else { time });
                (position..position + count).for_each(|index| memory.note(&id, index, time));
                (position, left) = (position + count, left - count);
            }
        }
        memory
    }

    /// The rows of the memory, in order.
    pub(super) fn table(&self) -> MemoryTable {
        let rows = self.times.iter().map(|(id, times)| row(id, times));
        let mut segments: Vec<SegmentRow> = rows.collect();
        segments
            .sort_by(|a, b| (&a.backup, a.stream, a.number).cmp(&(&b.backup, b.stream, b.number)));
        MemoryTable {
            segments,
            losses: self.losses.clone(),
        }
    }

    /// Adds the backups that a check without a key found damaged. Those that a key's check found damaged, too, are known better.
    pub(super) fn with_unproven(mut self, backups: impl Iterator<Item = String>) -> Self {
        let others = backups.filter(|id| !self.losses.contains_key(id));
        self.unproven = others.take(MAX_LOSSES).collect();
        self
    }

    /// The backups that a check without a key found damaged, and no check with a key since.
    pub(super) fn unproven(&self) -> impl Iterator<Item = &String> {
        self.unproven.iter()
    }

    /// Returns whether a check without a key found this backup damaged, and no check with a key has looked at all of it since.
    pub fn is_damaged_unproven(&self, backup: &str) -> bool {
        self.unproven.contains(backup)
    }

    /// Adds what `newer` knows: its times stand before those that are here, and its losses too.
    pub(super) fn overlay(&mut self, newer: Self) {
        for (id, times) in newer.times {
            let known = (0..).zip(times).filter(|(_, time)| *time > 0);
            known.for_each(|(index, time)| self.note(&id, index, time));
        }
        self.losses.extend(newer.losses);
    }

    /// Returns when a part was checked; 0 means never.
    pub fn when(&self, segment: &SegmentId, index: u64) -> u64 {
        self.times
            .get(segment)
            .and_then(|times| times.get(index as usize))
            .copied()
            .unwrap_or(0)
    }

    /// Returns when each part of a segment was checked, up to the last one that ever was.
    pub fn times(&self, segment: &SegmentId) -> &[u64] {
        self.times.get(segment).map_or(&[], Vec::as_slice)
    }

    /// Records that a part was checked.
    pub fn note(&mut self, segment: &SegmentId, index: u64, time: u64) {
        let times = self.times.entry(segment.clone()).or_default();
        times.resize(times.len().max(index as usize + 1), 0);
        times[index as usize] = time;
    }

    fn has_damage(&self) -> bool {
        let mut times = self.times.values().flatten();
        times.any(|time| *time == DAMAGED)
    }

    /// Drops the segments and the backups that do not exist any more.
    pub fn retain(
        &mut self,
        has_segment: impl Fn(&SegmentId) -> bool,
        has_backup: impl Fn(&str) -> bool,
    ) {
        self.times.retain(|id, _| has_segment(id));
        self.losses.retain(|id, _| has_backup(id));
        self.unproven.retain(|id| has_backup(id));
    }

    /// Returns the segments with parts that were damaged when they were last checked, and the indexes of those.
    pub fn damaged_parts(&self) -> impl Iterator<Item = (&SegmentId, Vec<u64>)> {
        self.times.iter().filter_map(|(id, times)| {
            let parts = (0..).zip(times).filter(|(_, time)| **time == DAMAGED);
            let parts: Vec<u64> = parts.map(|(index, _)| index).collect();
            (!parts.is_empty()).then_some((id, parts))
        })
    }

    /// Records that a backup has lost so many files; 0 if it is not known how many.
    pub fn note_loss(&mut self, backup: &str, files: u64) {
        self.losses.insert(backup.to_owned(), files);
        self.unproven.remove(backup);
    }

    /// Forgets the losses of a backup that was checked, or repaired, since.
    pub fn forget_loss(&mut self, backup: &str) {
        self.losses.remove(backup);
        self.unproven.remove(backup);
    }

    /// Returns how many files a backup lost when it was last checked, 0 if that is not known; `None` if it was not damaged.
    pub fn loss(&self, backup: &str) -> Option<u64> {
        self.losses.get(backup).copied()
    }

    /// Changes the memory as it is stored now, also while others do: their results and these count together. Returns the memory after it.
    ///
    /// `change` is called again for each time that somebody else was faster.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn update(objects: &dyn Objects, change: impl Fn(&mut Self)) -> Result<Self> {
        for attempt in 0..MOST_UPDATES {
            let version = objects.get(COVERED)?.map(|(_, version)| version);
            let mut memory = Self::read(objects);
            change(&mut memory);
            let when = version.map_or(PutIf::Absent, PutIf::Version);
            if StoredMemory::of(&memory, objects)?.put(objects, &when)? {
                return Ok(memory);
            }
            // Those that began together do not meet again.
            let pause = u64::from(std::process::id()) % 20 + attempt;
            thread::sleep(Duration::from_millis(pause));
        }
        let message = format!(
            "could not write {}: others change it all the time",
            objects.describe(COVERED)
        );
        Err(Error::new(ErrorKind::System, message))
    }

    /// Writes the memory: with a person's key it is proved, without a key it stands beside what was proved.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] with a key that only adds backups, or errors of the system.
    pub fn write(&self, objects: &dyn Objects) -> Result<()> {
        StoredMemory::of(self, objects)?.write(objects)
    }
}

/// Proves the memory anew after a rotation: `old` are the objects with the key as it was, `new` those with the new one.
///
/// # Errors
/// Those of writing it.
pub fn carry_memory(old: &dyn Objects, new: &dyn Objects) -> Result<()> {
    let memory = VerifyMemory::read(old);
    if memory == VerifyMemory::default() {
        return Ok(());
    }
    memory.write(new)
}

/// The outcome of a verification, to be remembered: of all data, or the damage that one of the structure found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyRecord {
    /// When the verification began, in seconds since 1970.
    pub time: u64,
    /// The segments that were checked, by their stored bytes.
    pub segments: BTreeMap<SegmentId, u64>,
    /// Parts of them that are damaged.
    pub damaged: Vec<(SegmentId, u64)>,
    /// The backups that were checked, and the number of files that each lost, if any.
    pub losses: BTreeMap<String, Option<u64>>,
    /// The share of the segments that was checked; `None` for all.
    pub shard: Option<Shard>,
    /// Whether the data was read. If not, only losses are added: what a check of the structure finds whole may lack data.
    pub data: bool,
}

impl VerifyRecord {
    /// Adds the outcome for other backups, of the same verification.
    pub fn add(&mut self, more: Self) {
        self.segments.extend(more.segments);
        self.damaged.extend(more.damaged);
        self.losses.extend(more.losses);
    }

    /// Notes that a backup is damaged; which files it lost is not known, unless it was noted.
    pub fn note_damaged(&mut self, backup: &str) {
        self.losses
            .entry(backup.to_owned())
            .or_default()
            .get_or_insert(0);
    }

    /// Adds the outcome to the memory of the repository. Parts have `part_bytes`.
    ///
    /// # Errors
    /// Those of the repository; one that cannot be written to does not remember.
    pub fn remember(&self, objects: &dyn Objects, part_bytes: u64) -> Result<()> {
        VerifyMemory::update(objects, |memory| self.add_to(memory, part_bytes)).map(drop)
    }

    fn add_to(&self, memory: &mut VerifyMemory, part_bytes: u64) {
        for (id, bytes) in &self.segments {
            let parts = 0..bytes.div_ceil(part_bytes);
            parts
                .filter(|index| self.has_part(id, *index))
                .for_each(|index| memory.note(id, index, self.time));
        }
        for (segment, index) in &self.damaged {
            memory.note(segment, *index, DAMAGED);
        }
        // Another share of a backup may be damaged still.
        let forgets = match self.shard {
            _ if !self.data => false,
            None => true,
            Some(_) => !memory.has_damage() && memory.unproven.is_empty(),
        };
        for (backup, files) in &self.losses {
            match files {
                Some(files) if self.shard.is_some() || !self.data => {
                    let known = memory.loss(backup).unwrap_or(0);
                    memory.note_loss(backup, known.max(*files));
                }
                Some(files) => memory.note_loss(backup, *files),
                None if forgets => memory.forget_loss(backup),
                None => {}
            }
        }
    }

    fn has_part(&self, segment: &SegmentId, index: u64) -> bool {
        self.shard
            .is_none_or(|shard| shard.has_part(segment, index))
    }
}

/// The part of a repository's data that was ever checked by verifications.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CheckedShare {
    /// From 0 to 1; 0 without data.
    pub share: f64,
    /// When data was checked last, in seconds since 1970.
    pub last: Option<u64>,
    /// Bytes of the parts that were damaged when they were last checked.
    pub damaged_bytes: u64,
}

impl CheckedShare {
    /// Reads the memory and compares it with the segments in use, by their stored bytes. Parts have `part_bytes`.
    pub fn read(
        objects: &dyn Objects,
        segments: &BTreeMap<SegmentId, u64>,
        part_bytes: u64,
    ) -> Self {
        Self::of(&VerifyMemory::read(objects), segments, part_bytes)
    }

    /// Compares a memory with the segments in use, by their stored bytes.
    pub fn of(memory: &VerifyMemory, segments: &BTreeMap<SegmentId, u64>, part_bytes: u64) -> Self {
        let mut sum = CheckedBytes::default();
        for (id, bytes) in segments {
            sum.add(memory.times(id), *bytes, part_bytes);
        }
        sum.share()
    }
}

/// Sums up the parts of segments that were checked.
#[derive(Debug, Default)]
struct CheckedBytes {
    all: u64,
    checked: u64,
    damaged: u64,
    last: Option<u64>,
}

impl CheckedBytes {
    fn add(&mut self, times: &[u64], bytes: u64, part_bytes: u64) {
        self.all = self.all.saturating_add(bytes);
        // By the parts that are remembered: the size in a root may be any number.
        for (index, time) in (0..).zip(times) {
            let start = part_bytes.saturating_mul(index);
            let part = part_bytes.min(bytes.saturating_sub(start));
            if part > 0 && *time > DAMAGED {
                self.checked = self.checked.saturating_add(part);
                self.last = self.last.max(Some(*time));
            } else if *time == DAMAGED {
                self.damaged = self.damaged.saturating_add(part);
            }
        }
    }

    fn share(&self) -> CheckedShare {
        CheckedShare {
            share: self.checked as f64 / self.all.max(1) as f64,
            last: self.last,
            damaged_bytes: self.damaged,
        }
    }
}

/// Sums up what was checked of segments that are met one after the other, perhaps several times. It keeps 8 bytes of each segment.
#[derive(Debug)]
pub struct CheckedSum {
    memory: VerifyMemory,
    part_bytes: u64,
    met: HashSet<u64>,
    sum: CheckedBytes,
}

impl CheckedSum {
    /// Begins with the memory of a repository. Parts have `part_bytes`.
    pub fn new(objects: &dyn Objects, part_bytes: u64) -> Self {
        Self {
            memory: VerifyMemory::read(objects),
            part_bytes,
            met: HashSet::new(),
            sum: CheckedBytes::default(),
        }
    }

    /// Adds a segment with its stored bytes, unless it was met before.
    pub fn add(&mut self, id: &SegmentId, bytes: u64) {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        if self.met.insert(hasher.finish()) {
            let times = self.memory.times(id);
            self.sum.add(times, bytes, self.part_bytes);
        }
    }

    /// Returns the share of all of them.
    pub fn share(&self) -> CheckedShare {
        self.sum.share()
    }
}

fn row(id: &SegmentId, times: &[u64]) -> SegmentRow {
    let runs = times
        .chunk_by(|a, b| a == b)
        .map(|run| (run.len() as u64, run[0]))
        .collect();
    SegmentRow {
        backup: id.backup.clone(),
        stream: id.stream,
        number: id.number,
        runs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::layout;
    use fullbore_storage::{MemoryObjects, PutIf};

    #[test]
    fn what_is_said_to_be_checked_in_the_future_was_not() {
        let objects = MemoryObjects::new();
        let id = SegmentId {
            backup: "b".into(),
            stream: 1,
            number: 2,
        };
        let mut covered = VerifyMemory::default();
        covered.note(&id, 0, u64::MAX);
        covered.note(&id, 1, 77);
        covered.write(&objects).unwrap();
        assert_eq!(
            [0, 1].map(|offset| VerifyMemory::read(&objects).when(&id, offset)),
            [0, 77]
        );
    }

    #[test]
    fn the_checked_share_counts_parts_by_their_bytes() {
        let objects = MemoryObjects::new();
        let id = SegmentId {
            backup: "b".into(),
            stream: 1,
            number: 1,
        };
        let segments = BTreeMap::from([(id.clone(), 25)]);
        let share = || CheckedShare::read(&objects, &segments, 10);
        assert_eq!(share(), CheckedShare::default());
        let mut covered = VerifyMemory::default();
        covered.note(&id, 0, DAMAGED);
        covered.note(&id, 1, 70);
        covered.note(&id, 2, 77);
        covered.write(&objects).unwrap();
        let last = Some(77);
        let wanted = CheckedShare {
            share: 0.6,
            last,
            damaged_bytes: 10,
        };
        assert_eq!(share(), wanted);
    }

    #[test]
    fn a_size_that_is_not_true_takes_no_time() {
        let id = SegmentId {
            backup: "b".into(),
            stream: 1,
            number: 1,
        };
        let mut memory = VerifyMemory::default();
        memory.note(&id, 0, 77);
        memory.note(&id, 2, 77);
        let share = |bytes| CheckedShare::of(&memory, &BTreeMap::from([(id.clone(), bytes)]), 10);
        assert!(share(u64::MAX).share < 1e-6);
        assert_eq!((share(10).share, share(0).last), (1.0, None));
    }

    #[test]
    fn what_was_checked_is_remembered_and_damage_forgets_it() {
        let objects = MemoryObjects::new();
        let id = SegmentId {
            backup: "b".into(),
            stream: 1,
            number: 2,
        };
        let mut covered = VerifyMemory::read(&objects);
        covered.note(&id, 3, 77);
        covered.note(&id, 4, 77);
        covered.write(&objects).unwrap();
        let read = VerifyMemory::read(&objects);
        assert_eq!(
            (&read, [2, 3, 4, 5].map(|offset| read.when(&id, offset))),
            (&covered, [0, 77, 77, 0])
        );
        objects.put(layout::COVERED, b"{", &PutIf::Always).unwrap();
        assert_eq!(VerifyMemory::read(&objects), VerifyMemory::default());
    }

    #[test]
    fn damaged_parts_and_losses_are_remembered_until_they_are_found_whole() {
        let objects = MemoryObjects::new();
        let id = SegmentId {
            backup: "b".into(),
            stream: 1,
            number: 2,
        };
        let mut record = VerifyRecord {
            data: true,
            time: 77,
            segments: BTreeMap::from([(id.clone(), 25)]),
            damaged: vec![(id.clone(), 1)],
            losses: BTreeMap::from([("b".to_owned(), Some(3)), ("c".to_owned(), None)]),
            shard: None,
        };
        record.remember(&objects, 10).unwrap();
        let memory = VerifyMemory::read(&objects);
        assert_eq!(
            [0, 1, 2].map(|offset| memory.when(&id, offset)),
            [77, DAMAGED, 77]
        );
        assert_eq!(memory.damaged_parts().collect::<Vec<_>>(), [(&id, vec![1])]);
        assert_eq!((memory.loss("b"), memory.loss("c")), (Some(3), None));
        record.damaged.clear();
        record.losses.insert("b".to_owned(), None);
        record.remember(&objects, 10).unwrap();
        let memory = VerifyMemory::read(&objects);
        assert_eq!(
            (memory.damaged_parts().count(), memory.loss("b")),
            (0, None)
        );
    }
    #[test]
    fn results_of_those_that_check_at_the_same_time_count_together() {
        let objects = MemoryObjects::new();
        let id = |number| SegmentId {
            backup: "b".into(),
            stream: 1,
            number,
        };
        thread::scope(|scope| {
            for number in 0..8 {
                let objects = &objects;
                scope.spawn(move || {
                    for part in 0..20 {
                        VerifyMemory::update(objects, |memory| memory.note(&id(number), part, 77))
                            .unwrap();
                    }
                });
            }
        });
        let memory = VerifyMemory::read(&objects);
        for number in 0..8 {
            assert_eq!(memory.times(&id(number)), [77; 20], "{number}");
        }
    }

    #[test]
    fn a_share_forgets_no_loss_while_another_one_is_damaged() {
        let objects = MemoryObjects::new();
        let id = SegmentId {
            backup: "b".into(),
            stream: 1,
            number: 1,
        };
        let segments = BTreeMap::from([(id.clone(), 100 * 10)]);
        let shards = ["1/2", "2/2"].map(|text| Shard::parse(text).unwrap());
        let mut record = VerifyRecord {
            time: 77,
            segments,
            shard: Some(shards[0]),
            data: true,
            ..VerifyRecord::default()
        };
        let damaged = (0..100)
            .find(|index| shards[0].has_part(&id, *index))
            .unwrap();
        record.damaged.push((id.clone(), damaged));
        record.losses.insert("b".to_owned(), Some(3));
        record.remember(&objects, 10).unwrap();
        let sound = VerifyRecord {
            time: 78,
            damaged: Vec::new(),
            losses: BTreeMap::from([("b".to_owned(), None)]),
            ..record.clone()
        };
        let other = VerifyRecord {
            shard: Some(shards[1]),
            ..sound.clone()
        };
        other.remember(&objects, 10).unwrap();
        let memory = VerifyMemory::read(&objects);
        assert_eq!(memory.loss("b"), Some(3));
        let checked = memory.times(&id).iter().filter(|time| **time > 0);
        assert_eq!(checked.count(), 100);
        sound.remember(&objects, 10).unwrap();
        assert_eq!(VerifyMemory::read(&objects).loss("b"), None);
    }
}
