//! Stored runs whose segments go into other objects, without being compressed anew: into another repository, or joined.

use super::{
    retention::WalNeeds,
    stored::{StoredRun, WalArchive, WalListing},
};
use fullbore_format::{
    error::{ErrorKind, Result},
    wal::{
        MAX_MEMBERS, MAX_RUN_BYTES, PackedSegment, SegmentFrame, SegmentName, WalKey, WalRunIndex,
        run_object,
    },
};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Fewer single segments than this are not joined.
const MIN_JOINED: usize = 8;
/// Seconds for which a single segment is left alone: most are fetched or joined by nothing before.
const MIN_AGE_SECONDS: i64 = 86_400;

/// WAL that was copied to another repository.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopiedWal {
    /// Objects that were copied.
    pub objects: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Objects that were there.
    pub there: u64,
}

impl WalArchive {
    /// Reads all of a run, and checks each segment.
    fn packed(&self, stored: &StoredRun, index: &WalRunIndex) -> Result<Vec<PackedSegment>> {
        let key = stored.run.to_string();
        let name = self.describe(&key);
        let mut packed = Vec::new();
        for (segment, member) in stored.run.segments().zip(&index.members) {
            let frame = self.frame_of(stored, member)?;
            let checked = SegmentFrame {
                frame: &frame,
                member,
                segment_bytes: index.segment_bytes,
                name: format!("{segment} in {name}"),
            };
            checked.check()?;
            let plain_bytes = checked.plain_bytes();
            packed.push(PackedSegment {
                name: segment,
                digest: member.digest,
                frame,
                plain_bytes,
            });
        }
        Ok(packed)
    }

    /// Copies all WAL that a backup leads to into the same system of another repository, with all histories. What is there is
    /// not read.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for damage; those of both storages.
    pub fn copy_to(&self, to: &Self, needs: &WalNeeds) -> Result<CopiedWal> {
        let listing = self.listing()?;
        let there = to.listing()?;
        let keys: BTreeSet<String> = there.runs.iter().map(|run| run.run.to_string()).collect();
        let mut copied = CopiedWal::default();
        // Histories first: segments of a timeline that is not known would look abandoned.
        for (key, _) in &listing.small {
            self.copy_small(key, to, &there, &mut copied)?;
        }
        for stored in listing.runs.iter().filter(|run| needs.leads_to(&run.run)) {
            self.copy_run(stored, to, &keys, &mut copied)?;
        }
        Ok(copied)
    }

    fn copy_small(
        &self,
        key: &WalKey,
        to: &Self,
        there: &WalListing,
        copied: &mut CopiedWal,
    ) -> Result<()> {
        let WalKey::Small { name, .. } = key else {
            return Ok(());
        };
        let is_there = |key: &WalKey| there.small.iter().any(|(other, _)| other == key);
        let content = match is_there(key) {
            true => None,
            false => Some(self.read_small(key)?),
        };
        // In a repository with other keys the digest in the key is another one.
        let content = content.filter(|content| {
            let digest = to.digester().of_small(to.system(), *name, content);
            !is_there(&WalKey::Small {
                system: to.system().to_owned(),
                name: *name,
                digest,
            })
        });
        match content {
            None => copied.there += 1,
            Some(content) => {
                to.put_small(*name, &content)?;
                copied.objects += 1;
                copied.bytes += content.len() as u64;
            }
        }
        Ok(())
    }

    fn copy_run(
        &self,
        stored: &StoredRun,
        to: &Self,
        there: &BTreeSet<String>,
        copied: &mut CopiedWal,
    ) -> Result<()> {
        if there.contains(&stored.run.to_string()) {
            copied.there += 1;
            return Ok(());
        }
        let index = match self.index(stored) {
            // A prune has deleted it meanwhile.
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
            index => index?,
        };
        // In a repository with other keys the digest in the key is another one.
        let names = stored.run.segments();
        let digests = names.zip(index.members.iter().map(|member| &member.digest));
        let mut run = stored.run.clone();
        run.digest = to
            .digester()
            .of_run(to.system(), digests, stored.run.is_partial);
        if there.contains(&run.to_string()) {
            copied.there += 1;
            return Ok(());
        }
        let packed = self.packed(stored, &index)?;
        let (run, object) = run_object(index, &packed, stored.run.is_partial, to.digester())?;
        to.put_run(&run, &object)?;
        copied.objects += 1;
        copied.bytes += object.len() as u64;
        Ok(())
    }

    /// Joins single segments unless this is a dry run. Returns the listing after that, and how many were joined. Damage is a matter
    /// for `wal check`: nothing is joined then.
    pub(super) fn joined_listing(
        &self,
        listing: WalListing,
        dry: bool,
    ) -> Result<(WalListing, u64)> {
        if dry {
            return Ok((listing, 0));
        }
        match self.join(&listing, Timestamp::now().as_second()) {
            Ok(0) => Ok((listing, 0)),
            Ok(joined) => Ok((self.listing()?, joined)),
            Err(error) if error.kind.is_loss() || error.kind == ErrorKind::Full => Ok((listing, 0)),
            Err(error) => Err(error),
        }
    }

    /// Joins single segments that were stored for more than a day: one object holds up to 64 of them. The single ones stay until
    /// they are [covered](WalArchive::covered) and their grace is over. Returns how many were joined.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for damage; the storage's.
    fn join(&self, listing: &WalListing, now: i64) -> Result<u64> {
        let mut joined = 0;
        for group in single_groups(listing) {
            joined += self.join_group(&group, now)?;
        }
        Ok(joined)
    }

    /// Joins consecutive single segments, as long as one host stored them.
    fn join_group(&self, group: &[&StoredRun], now: i64) -> Result<u64> {
        let mut joined = 0;
        let mut open: Option<(WalRunIndex, Vec<PackedSegment>)> = None;
        for stored in group {
            let index = self.index(stored)?;
            let is_old = index.stored <= now - MIN_AGE_SECONDS;
            let fits = open.as_ref().is_some_and(|(first, packed)| {
                let bytes: usize = packed.iter().map(|segment| segment.frame.len()).sum();
                first.host == index.host
                    && first.segment_bytes == index.segment_bytes
                    && packed.len() < MAX_MEMBERS
                    && bytes < MAX_RUN_BYTES
            });
            if !fits || !is_old {
                joined += self.put_joined(open.take())?;
            }
            if !is_old {
                continue;
            }
            let packed = self.packed(stored, &index)?;
            let (first, all) = open.get_or_insert_with(|| (index.clone(), Vec::new()));
            first.stored = first.stored.max(index.stored);
            all.extend(packed);
        }
        joined += self.put_joined(open)?;
        Ok(joined)
    }

    fn put_joined(&self, open: Option<(WalRunIndex, Vec<PackedSegment>)>) -> Result<u64> {
        let Some((index, packed)) = open.filter(|(_, packed)| packed.len() >= MIN_JOINED) else {
            return Ok(0);
        };
        let (run, object) = run_object(index, &packed, false, self.digester())?;
        self.put_run(&run, &object)?;
        // The single ones are given up for this object: it must be readable.
        let bytes = object.len() as u64;
        let first = run.first;
        let stored = StoredRun { run, bytes };
        self.read_segments(&stored, first, &mut |_, packed| {
            packed.check()?;
            Ok(true)
        })?;
        Ok(packed.len() as u64)
    }

    /// Returns the runs whose segments are all in one longer run with the same content.
    ///
    /// # Errors
    /// The storage's. A damaged run covers nothing.
    pub(super) fn covered(&self, listing: &WalListing) -> Result<Vec<StoredRun>> {
        let mut covered = Vec::new();
        for (short, long) in nested_pairs(listing) {
            if self.has_same_content(short, long)? {
                covered.push(short.clone());
            }
        }
        covered.dedup();
        Ok(covered)
    }

    fn has_same_content(&self, short: &StoredRun, long: &StoredRun) -> Result<bool> {
        let members = |stored: &StoredRun| -> Result<Option<BTreeMap<SegmentName, [u8; 32]>>> {
            match self.index(stored) {
                Err(error) if error.kind.is_loss() => Ok(None),
                index => {
                    let members = index?.members;
                    let digests = members.iter().map(|member| member.digest);
                    Ok(Some(stored.run.segments().zip(digests).collect()))
                }
            }
        };
        let (Some(short), Some(long)) = (members(short)?, members(long)?) else {
            return Ok(false);
        };
        Ok(short
            .iter()
            .all(|(segment, digest)| long.get(segment) == Some(digest)))
    }
}

/// Returns groups of consecutive runs of one segment each, of which no other run has a segment.
fn single_groups(listing: &WalListing) -> Vec<Vec<&StoredRun>> {
    let mut counts: BTreeMap<SegmentName, u32> = BTreeMap::new();
    let whole = listing.runs.iter().filter(|stored| !stored.run.is_partial);
    for segment in whole.clone().flat_map(|stored| stored.run.segments()) {
        *counts.entry(segment).or_default() += 1;
    }
    let mut groups: Vec<Vec<&StoredRun>> = Vec::new();
    let single =
        whole.filter(|stored| stored.run.count == 1 && counts.get(&stored.run.first) == Some(&1));
    let mut before: Option<SegmentName> = None;
    for stored in single {
        let first = stored.run.first;
        let follows = before.is_some_and(|before| {
            before.timeline == first.timeline
                && before.log == first.log
                && before.number.checked_add(1) == Some(first.number)
        });
        match groups.last_mut().filter(|_| follows) {
            Some(group) => group.push(stored),
            None => groups.push(vec![stored]),
        }
        before = Some(first);
    }
    groups.retain(|group| group.len() >= MIN_JOINED);
    groups
}

/// Returns pairs of runs of which the first lies within the second, by name.
fn nested_pairs(listing: &WalListing) -> Vec<(&StoredRun, &StoredRun)> {
    let whole: Vec<&StoredRun> = listing
        .runs
        .iter()
        .filter(|stored| !stored.run.is_partial)
        .collect();
    let mut pairs = Vec::new();
    for (index, long) in whole.iter().enumerate() {
        // Runs are in the order of their first segments.
        let behind = whole[index + 1..]
            .iter()
            .take_while(|short| short.run.first <= long.run.last());
        let beside = whole[..index].iter().rev();
        let near = behind.chain(beside.take_while(|short| short.run.first == long.run.first));
        let inside = near.filter(|short| {
            short.run.count < long.run.count
                && long.run.covers(short.run.first)
                && long.run.covers(short.run.last())
        });
        pairs.extend(inside.map(|short| (*short, *long)));
    }
    pairs.sort_by(|one, other| one.0.run.cmp(&other.0.run));
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::wal::{WalDigest, WalRun};

    fn listing(runs: &[(u32, u32)]) -> WalListing {
        let stored = |(number, count): &(u32, u32)| StoredRun {
            run: WalRun {
                system: "7".to_owned(),
                first: SegmentName {
                    timeline: 1,
                    log: 0,
                    number: *number,
                },
                count: *count,
                is_partial: false,
                digest: WalDigest([*count as u8; 16]),
            },
            bytes: 1,
        };
        let mut listing = WalListing::default();
        listing.runs.extend(runs.iter().map(stored));
        listing.runs.sort_by(|one, other| one.run.cmp(&other.run));
        listing
    }

    #[test]
    fn only_consecutive_single_segments_that_no_other_run_has_are_joined() {
        let mut runs: Vec<_> = (0..9).map(|number| (number, 1)).collect();
        runs.extend((20..24).map(|number| (number, 1)));
        runs.extend((40..60).map(|number| (number, 1)));
        runs.push((50, 3));
        let all = listing(&runs);
        let groups = single_groups(&all);
        let lengths: Vec<_> = groups.iter().map(Vec::len).collect();
        assert_eq!(lengths, [9, 10]);
    }

    #[test]
    fn a_run_within_another_is_found_wherever_it_begins() {
        let all = listing(&[(2, 8), (2, 1), (5, 1), (9, 1), (10, 1), (8, 4)]);
        let pairs = nested_pairs(&all);
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(short, long)| (short.run.first.number, long.run.first.number))
            .collect();
        assert_eq!(pairs, [(2, 2), (5, 2), (9, 2), (9, 8), (10, 8)]);
    }
}
