//! Which WAL is kept, and the prune of the rest.
//!
//! From the start of the oldest kept backup of a system on, all WAL is kept, on that timeline and all later ones. So a backup
//! under way, whose start is later, needs no announcement. With [`WalRetention::keep_seconds`] all WAL is kept from the newest
//! backup that is at least so old; of older backups only that between start and stop. Without a backup of a system,
//! nothing of it goes.
//!
//! Pieces of a segment go at once when a run has the segment, or a longer piece has all of them: whoever reads looks for those.
//!
//! A prune gives an object a tombstone; a later prune deletes it once the tombstone is older than the grace. So a
//! recovery that began before goes on, although its host may only read.

use super::{
    covered::{UnneededWal, covered_pieces},
    stored::{WalArchive, WalListing, list_systems},
};
use crate::{
    root_reader::DocumentReader,
    roots::{RootFacts, backup_files},
};
use fullbore_crypt::Access;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{TOMBSTONES, WAL},
    root::Root,
    wal::{SegmentName, WalRun},
};
use fullbore_storage::{Objects, PutIf};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// How long WAL is kept.
#[derive(Debug, Clone, Copy)]
pub struct WalRetention {
    /// Recovery to any time is kept for so many seconds; `None` for as long as there are backups.
    pub keep_seconds: Option<i64>,
    /// Seconds between the tombstone of an object and its deletion.
    pub grace_seconds: i64,
}

impl Default for WalRetention {
    fn default() -> Self {
        Self {
            keep_seconds: None,
            grace_seconds: 24 * 3600,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalNeeds {
    pub id: String,
    /// The system identifier of its cluster.
    pub system: String,
    pub first: SegmentName,
    /// The last segment that it needs to be consistent.
    pub last: SegmentName,
    pub segment_bytes: u64,
    /// When its capture ended, in seconds since 1970.
    pub ended: i64,
    /// Whether the WAL between the two is in the archive only.
    pub is_archived: bool,
}

impl WalNeeds {
    /// Returns what a backup needs; `None` if it is not of a cluster, or needs no WAL.
    pub fn of(root: &Root) -> Option<Self> {
        let cluster = root.postgres.as_ref()?;
        let segment = |name: &String| SegmentName::parse(name);
        let ended: Option<Timestamp> = root.captured_at().parse().ok();
        // A cluster that was shut down needs none; what follows it begins at its stop.
        let stop = parse_location(&cluster.stop_lsn);
        let at_stop = SegmentName::at(cluster.timeline.max(1), stop, cluster.wal_segment_bytes);
        Some(Self {
            id: root.id.clone(),
            system: cluster.system_identifier.clone(),
            first: cluster
                .wal_segments
                .first()
                .and_then(segment)
                .unwrap_or(at_stop),
            last: cluster
                .wal_segments
                .last()
                .and_then(segment)
                .unwrap_or(at_stop),
            segment_bytes: cluster.wal_segment_bytes,
            ended: ended.map_or(i64::MIN, Timestamp::as_second),
            is_archived: cluster.online && cluster.wal != "included",
        })
    }

    /// Returns whether a recovery that begins with this backup may need a run.
    pub fn leads_to(&self, run: &WalRun) -> bool {
        self.keeps((run.first, run.last()), true, true)
    }

    /// Returns whether this backup needs WAL from `first` to `last`: within its own time, or also behind it.
    fn keeps(
        &self,
        (first, last): (SegmentName, SegmentName),
        is_continuous: bool,
        are_sizes_equal: bool,
    ) -> bool {
        let is_behind_start = last.timeline >= self.first.timeline
            && comparable_place(are_sizes_equal, last)
                >= comparable_place(are_sizes_equal, self.first);
        let is_before_stop = first.timeline <= self.last.timeline
            && comparable_place(are_sizes_equal, first)
                <= comparable_place(are_sizes_equal, self.last);
        is_behind_start && (is_continuous || is_before_stop)
    }
}

fn comparable_place(are_sizes_equal: bool, segment: SegmentName) -> (u32, u32) {
    match are_sizes_equal {
        true => segment.place(),
        // Numbers count segments of another size: only the log can be compared.
        false => (segment.log, 0),
    }
}

fn parse_location(text: &str) -> u64 {
    let halves = text.split_once('/');
    halves.map_or(0, |(high, low)| {
        half_of_location(high) << 32 | half_of_location(low)
    })
}

fn half_of_location(half: &str) -> u64 {
    u64::from_str_radix(half, 16).unwrap_or(0)
}

/// What a prune did with WAL, or would do.
#[derive(Debug, Default)]
pub struct PrunedWal {
    /// Objects that were deleted.
    pub freed_runs: u64,
    pub freed_bytes: u64,
    /// Objects that have a tombstone, and go with a later prune.
    pub marked_runs: u64,
    pub marked_bytes: u64,
    /// Single segments that were joined into longer objects.
    pub joined_segments: u64,
    /// Systems of which there is no backup: all of their WAL is kept.
    pub systems_without_backups: Vec<String>,
    /// Why nothing was done.
    pub skipped: Option<String>,
}

impl PrunedWal {
    /// Returns whether there is nothing to report.
    pub fn is_nothing(&self) -> bool {
        self.freed_runs + self.marked_runs + self.joined_segments == 0
            && self.systems_without_backups.is_empty()
            && self.skipped.is_none()
    }
}

/// Deletes the WAL that no backup needs; with `dry`, only reports it. Reads no WAL and changes no backup. The reader is of these objects.
///
/// # Errors
/// The storage's. A root that cannot be read ends it before anything is marked.
pub fn prune_wal(
    objects: &Arc<dyn Objects>,
    reader: &mut DocumentReader<'_>,
    retention: &WalRetention,
    dry: bool,
) -> Result<PrunedWal> {
    let mut pruned = PrunedWal::default();
    let systems = list_systems(&**objects)?;
    let marks = wal_tombstones(&**objects)?;
    if systems.is_empty() && marks.is_empty() {
        return Ok(pruned);
    }
    if cannot_read(&**objects) {
        pruned.skipped = Some("the roots of its backups cannot be read without a key".to_owned());
        return Ok(pruned);
    }
    let mut needs: BTreeMap<String, Vec<WalNeeds>> = BTreeMap::new();
    // The listing of backups is newer than that of the WAL.
    reader.visit_listed(&backup_files(&**objects)?, &mut |id, facts| {
        let root = facts.and_then(RootFacts::root).map_err(|error| {
            error.detail(format!("WAL is kept while backup {id:?} cannot be read"))
        })?;
        if let Some(need) = WalNeeds::of(&root) {
            needs.entry(need.system.clone()).or_default().push(need);
        }
        Ok(())
    })?;
    let mut unneeded = Vec::new();
    let mut covered = Vec::new();
    for (system, listing) in systems {
        let archive = WalArchive::new(objects.clone(), &system);
        let (listing, joined) = archive.joined_listing(listing, dry)?;
        pruned.joined_segments += joined;
        covered.extend(covered_pieces(&listing));
        // Who fetches WAL may just have listed a run that a longer one has all of: it goes as runs do that no backup needs.
        let within = archive.covered(&listing)?;
        let within = within.iter().map(UnneededWal::from_run);
        // A copy that archives under a name of its own has the backups of its system.
        let identifier = system.split('.').next().unwrap_or(&system);
        match needs.get(identifier) {
            None => {
                pruned.systems_without_backups.push(system);
                unneeded.extend(within);
            }
            Some(needs) => {
                let unkept = unneeded_wal(&listing, needs, retention);
                let is_new = |stored: &UnneededWal| !unkept.contains(stored);
                let within: Vec<_> = within.filter(is_new).collect();
                unneeded.extend(within);
                unneeded.extend(unkept);
            }
        }
    }
    WalPruning {
        objects: &**objects,
        retention,
        dry,
        marks,
    }
    .apply(&unneeded, &covered, &mut pruned)?;
    Ok(pruned)
}

fn cannot_read(objects: &dyn Objects) -> bool {
    let sealed = objects.as_sealed();
    sealed.is_some_and(|sealed| sealed.access() != Some(Access::Read))
}

/// Returns the runs and pieces that no backup of the system needs.
fn unneeded_wal(
    listing: &WalListing,
    needs: &[WalNeeds],
    retention: &WalRetention,
) -> Vec<UnneededWal> {
    let are_sizes_equal = needs
        .iter()
        .all(|need| need.segment_bytes == needs[0].segment_bytes);
    let now = Timestamp::now().as_second();
    let begins = needs
        .iter()
        .filter(|need| match retention.keep_seconds {
            None => false,
            Some(seconds) => need.ended <= now.saturating_sub(seconds),
        })
        .max_by_key(|need| need.ended);
    let is_needed = |first: SegmentName, last: SegmentName| {
        let mut needs = needs.iter();
        needs.any(|need| need.keeps((first, last), is_continuous(need, begins), are_sizes_equal))
    };
    let runs = listing.runs.iter();
    let runs = runs.filter(|stored| !is_needed(stored.run.first, stored.run.last()));
    let runs = runs.map(|stored| (stored.run.to_string(), stored.bytes));
    let pieces = listing.pieces.iter();
    let pieces = pieces.filter(|stored| !is_needed(stored.piece.segment, stored.piece.segment));
    let pieces = pieces.map(|stored| (stored.piece.to_string(), stored.bytes));
    runs.chain(pieces)
        .map(|(key, bytes)| UnneededWal { key, bytes })
        .collect()
}

/// Older backups than the one with which recovery to any time begins need their own WAL only.
fn is_continuous(need: &WalNeeds, begins: Option<&WalNeeds>) -> bool {
    begins.is_none_or(|begins| need.ended >= begins.ended)
}

/// Tombstones of WAL: the key of the object, and when the tombstone was stored, in seconds since 1970.
fn wal_tombstones(objects: &dyn Objects) -> Result<BTreeMap<String, i64>> {
    let mut marks = BTreeMap::new();
    for object in objects.list(&format!("{TOMBSTONES}/{WAL}"))? {
        let stored = objects.get(&object.key)?;
        let text = stored.map(|(bytes, _)| String::from_utf8_lossy(&bytes).trim().to_owned());
        // One that cannot be read is as new as can be.
        let marked = text.and_then(|text| text.parse().ok()).unwrap_or(i64::MAX);
        let key = object
            .key
            .strip_prefix(TOMBSTONES)
            .and_then(|key| key.strip_prefix('/'));
        marks.extend(key.map(|key| (key.to_owned(), marked)));
    }
    Ok(marks)
}

struct WalPruning<'a> {
    objects: &'a dyn Objects,
    retention: &'a WalRetention,
    dry: bool,
    marks: BTreeMap<String, i64>,
}

impl WalPruning<'_> {
    fn apply(
        &self,
        unneeded: &[UnneededWal],
        covered: &[UnneededWal],
        pruned: &mut PrunedWal,
    ) -> Result<()> {
        let now = Timestamp::now().as_second();
        let grace = self.retention.grace_seconds;
        let is_due = |marked_at: i64| marked_at <= now.saturating_sub(grace);
        let mut going = Vec::new();
        let mut marked = BTreeSet::new();
        for stored in covered {
            pruned.freed_runs += 1;
            pruned.freed_bytes += stored.bytes;
            going.push(stored.key.clone());
        }
        let is_covered: BTreeSet<&String> = covered.iter().map(|stored| &stored.key).collect();
        for stored in unneeded
            .iter()
            .filter(|stored| !is_covered.contains(&stored.key))
        {
            let key = &stored.key;
            let is_over = match self.marks.get(key) {
                Some(marked_at) => is_due(*marked_at),
                None => grace <= 0,
            };
            if is_over {
                pruned.freed_runs += 1;
                pruned.freed_bytes += stored.bytes;
                going.push(key.clone());
                continue;
            }
            pruned.marked_runs += 1;
            pruned.marked_bytes += stored.bytes;
            if !self.marks.contains_key(key) && !self.dry {
                self.mark(key, now)?;
            }
            marked.insert(key.clone());
        }
        if self.dry {
            return Ok(());
        }
        self.objects.delete(&going)?;
        if self.objects.abilities().has_locks {
            // Those of pushes that were killed; the storage knows the living ones.
            self.objects.abort_uploads(WAL)?;
        }
        // The tombstones of what is gone, and of what a backup needs again.
        let stale = self.marks.keys().filter(|key| !marked.contains(*key));
        let stale: Vec<String> = stale.map(|key| format!("{TOMBSTONES}/{key}")).collect();
        if stale.is_empty() {
            Ok(())
        } else {
            self.objects.delete(&stale)
        }
    }

    fn mark(&self, key: &str, now: i64) -> Result<()> {
        let body = format!("{now}\n");
        match self.objects.put(
            &format!("{TOMBSTONES}/{key}"),
            body.as_bytes(),
            &PutIf::Always,
        ) {
            // A full storage needs the prune of backups all the more.
            Err(error) if error.kind == ErrorKind::Full => Ok(()),
            other => other.map(drop).map_err(|error: Error| error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::stored::StoredRun, *};
    use fullbore_format::wal::{WalDigest, WalRun};

    fn segment(name: &str) -> SegmentName {
        SegmentName::parse(name).unwrap()
    }

    fn need(id: &str, first: &str, last: &str, days_old: i64) -> WalNeeds {
        WalNeeds {
            id: id.to_owned(),
            system: "7".to_owned(),
            first: segment(first),
            last: segment(last),
            segment_bytes: 16 << 20,
            ended: Timestamp::now().as_second() - days_old * 86400,
            is_archived: false,
        }
    }

    fn listing(runs: &[(&str, u32)]) -> WalListing {
        let stored = |(first, count): &(&str, u32)| StoredRun {
            run: WalRun {
                system: "7".to_owned(),
                first: segment(first),
                count: *count,
                is_partial: false,
                digest: WalDigest([0; 16]),
            },
            bytes: 1,
        };
        WalListing {
            runs: runs.iter().map(stored).collect(),
            ..WalListing::default()
        }
    }

    fn going(runs: &[(&str, u32)], needs: &[WalNeeds], keep_days: Option<i64>) -> Vec<String> {
        let retention = WalRetention {
            keep_seconds: keep_days.map(|days| days * 86400),
            ..WalRetention::default()
        };
        let unneeded = unneeded_wal(&listing(runs), needs, &retention);
        let name = |stored: &UnneededWal| {
            let name = stored.key.rsplit('/').next().unwrap_or_default();
            name[..24].to_owned()
        };
        unneeded.iter().map(name).collect()
    }

    const RUNS: [(&str, u32); 6] = [
        ("000000010000000000000001", 4),
        ("000000010000000000000005", 4),
        ("000000010000000000000009", 1),
        ("00000001000000000000000A", 16),
        ("00000002000000000000000C", 2),
        ("00000003000000000000000D", 1),
    ];

    #[test]
    fn all_wal_from_the_oldest_backup_on_is_kept() {
        let needs = [need(
            "a",
            "000000010000000000000007",
            "000000010000000000000008",
            9,
        )];
        assert_eq!(going(&RUNS, &needs, None), ["000000010000000000000001"]);
        let later = [need(
            "b",
            "00000002000000000000000C",
            "00000002000000000000000C",
            1,
        )];
        // The timeline before the backup leads nowhere that it could go.
        assert_eq!(going(&RUNS, &later, None).len(), 4);
        assert_eq!(
            going(&RUNS, &[needs[0].clone(), later[0].clone()], None).len(),
            1
        );
    }

    #[test]
    fn with_a_limit_older_backups_keep_their_own_wal_only() {
        let needs = [
            need(
                "a",
                "000000010000000000000002",
                "000000010000000000000003",
                30,
            ),
            need(
                "b",
                "000000010000000000000009",
                "000000010000000000000009",
                20,
            ),
            need(
                "c",
                "00000001000000000000000B",
                "00000001000000000000000B",
                3,
            ),
        ];
        assert_eq!(going(&RUNS, &needs, Some(14)), ["000000010000000000000005"]);
        assert!(going(&RUNS, &needs, Some(40)).is_empty());
        assert!(going(&RUNS, &needs, None).is_empty());
    }

    #[test]
    fn segments_of_another_size_are_compared_by_log() {
        let mut needs = vec![need(
            "a",
            "000000010000000000000007",
            "000000010000000000000008",
            9,
        )];
        needs.push(WalNeeds {
            segment_bytes: 64 << 20,
            ..needs[0].clone()
        });
        assert!(going(&RUNS, &needs, None).is_empty());
    }
}
