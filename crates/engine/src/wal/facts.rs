//! What a repository has of the WAL of each system, as data for reports.

use super::system::SystemWal;
use fullbore_format::{error::Result, wal::SegmentName};
use fullbore_postgres::{lsn::Lsn, wal_archive::WalGap};
use fullbore_repository::wal::{WalArchive, WalNeeds, list_systems};
use fullbore_storage::Objects;
use std::{collections::BTreeMap, sync::Arc};

/// The WAL of a system.
#[derive(Debug)]
pub struct SystemReport {
    /// Its identifier, and behind a dot the name of a copy.
    pub system: String,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Complete segments.
    pub segments: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes of all objects.
    pub bytes: u64,
    /// Its timelines in order.
    pub timelines: Vec<TimelineReport>,
    /// Segments that are missing between others.
    pub gaps: Vec<WalGap>,
    /// Those of them that an operator has accepted.
    pub accepted_gaps: Vec<WalGap>,
    /// The backups from which a recovery to the newest WAL meets a gap, each with the first one.
    pub cut_off: Vec<(String, WalGap)>,
    /// Timelines that two servers began.
    pub doubtful_timelines: Vec<u32>,
}

/// A timeline of a system.
#[derive(Debug)]
pub struct TimelineReport {
    /// Its number.
    pub timeline: u32,
    /// The timeline that it left, and where.
    pub parent: Option<(u32, Lsn)>,
    /// Its oldest and its newest segment.
    pub ends: Option<(SegmentName, SegmentName)>,
    /// How many segments there are.
    pub segments: u64,
    /// Backups that begin on it.
    pub backups: Vec<String>,
}

/// Returns what a repository has of each system, given what the backups need.
///
/// # Errors
/// The storage's; [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if a history is damaged.
pub fn system_reports(objects: &Arc<dyn Objects>, needs: &[WalNeeds]) -> Result<Vec<SystemReport>> {
    let mut by_system: BTreeMap<&str, Vec<&WalNeeds>> = BTreeMap::new();
    for need in needs {
        by_system.entry(&need.system).or_default().push(need);
    }
    let systems = list_systems(&**objects)?.into_iter();
    let report = |(system, listing): (String, _)| {
        let identifier = system.split('.').next().unwrap_or_default();
        let needs = by_system.get(identifier).map_or(&[][..], |needs| needs);
        let bytes = needs.last().map(|need| need.segment_bytes);
        let archive = WalArchive::new(objects.clone(), &system);
        let wal = SystemWal::of_listing(archive, listing, bytes)?;
        Ok(SystemReport::of(system, &wal, needs))
    };
    systems.map(report).collect()
}

impl SystemReport {
    fn of(system: String, wal: &SystemWal, needs: &[&WalNeeds]) -> Self {
        let tree = &wal.tree;
        let timelines: Vec<u32> = tree.timelines().into_iter().collect();
        let newest = timelines.last().copied().unwrap_or(1);
        let report = |timeline: &u32| TimelineReport {
            timeline: *timeline,
            parent: tree.parent(*timeline),
            ends: tree.first_of(*timeline).zip(tree.last_of(*timeline)),
            segments: tree.count_of(*timeline) as u64,
            backups: needs
                .iter()
                .filter(|need| need.first.timeline == *timeline)
                .map(|need| need.id.clone())
                .collect(),
        };
        // A backup of an abandoned timeline leads to the end of that one.
        let way_end = |need: &WalNeeds| match tree.leads_to(need.first, newest) {
            true => newest,
            false => need.first.timeline,
        };
        let first_gap = |need: &&WalNeeds| {
            // A backup with its own WAL goes on behind that, and is not cut off from an archive that began later.
            let begin = if need.is_archived {
                need.first
            } else {
                need.last
            };
            if !need.is_archived && !tree.has(need.last) {
                return None;
            }
            let gaps = tree.gaps_on_way(begin, way_end(need), None);
            gaps.first().map(|gap| (need.id.clone(), *gap))
        };
        let gaps = tree.gaps();
        Self {
            accepted_gaps: gaps
                .iter()
                .filter(|gap| is_accepted(gap, wal))
                .copied()
                .collect(),
            segment_bytes: wal.segment_bytes,
            segments: wal.listing.segments().len() as u64,
            objects: wal.listing.objects(),
            bytes: wal.listing.bytes(),
            timelines: timelines.iter().map(report).collect(),
            gaps,
            cut_off: needs.iter().filter_map(first_gap).collect(),
            doubtful_timelines: wal.doubtful_timelines.clone(),
            system,
        }
    }

    /// Returns the timelines as a tree, each behind the one that it left, with its depth.
    pub fn tree(&self) -> Vec<(usize, &TimelineReport)> {
        let mut tree = Vec::new();
        let has_parent = |timeline: &TimelineReport| {
            let parent = timeline.parent.map(|(parent, _)| parent);
            parent.is_some_and(|parent| self.timelines.iter().any(|one| one.timeline == parent))
        };
        let roots = self.timelines.iter().filter(|one| !has_parent(one)).rev();
        let mut open: Vec<_> = roots.map(|root| (0, root)).collect();
        while let Some((depth, timeline)) = open.pop() {
            tree.push((depth, timeline));
            // A parent has a smaller number, so no circle can arise.
            let is_child = |one: &&TimelineReport| {
                one.parent
                    .is_some_and(|(parent, _)| parent == timeline.timeline)
            };
            let children = self.timelines.iter().filter(is_child).rev();
            open.extend(children.map(|child| (depth + 1, child)));
        }
        tree
    }

    /// Returns the newest segment of the newest timeline that has one.
    pub fn newest(&self) -> Option<SegmentName> {
        self.timelines
            .iter()
            .rev()
            .find_map(|timeline| timeline.ends.map(|(_, last)| last))
    }
}

/// Returns whether notes of accepted gaps have all segments of a gap.
fn is_accepted(gap: &WalGap, wal: &SystemWal) -> bool {
    let index = |segment: SegmentName| segment.index(wal.segment_bytes);
    let end = index(gap.to);
    let mut next = index(gap.from);
    while next <= end {
        let notes = wal.listing.accepted.iter();
        let ends = notes
            .filter(|(first, last)| (index(*first)..=index(*last)).contains(&next))
            .map(|(_, last)| index(*last));
        match ends.max() {
            Some(last) => next = last.saturating_add(1),
            None => return false,
        }
    }
    true
}
