//! The WAL from the start of a backup to the target of its recovery: the timeline, gaps, and segments with two contents.

use super::choose_backup::ClusterBackups;
use crate::wal::{SystemWal, check_one_content, read_segment};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::ClusterInfo,
    wal::SegmentName,
};
use fullbore_postgres::{
    lsn::Lsn,
    restore::{
        recovery::{Mode, RecoveryOptions},
        recovery_target::RecoveryTarget,
    },
    wal_archive::{SegmentRecords, WalGap},
};
use fullbore_repository::wal::WalNeeds;
use jiff::Timestamp;

/// Segments at the end of the WAL that are read for the time of a commit. Idle servers end segments without one.
const SEARCHED_FOR_COMMIT: usize = 4;

/// The WAL from the start of a backup to the end of its recovery.
pub(super) struct WayToTarget<'a> {
    /// The WAL in the archive.
    pub(super) wal: &'a SystemWal,
    /// The WAL that a restore of the backup needs.
    pub(super) needs: &'a WalNeeds,
    /// The last segment that the backup brings as a whole, if it brings its WAL: up to there, the archive may lack it.
    pub(super) brought: Option<SegmentName>,
    /// The operator's options.
    pub(super) recovery: &'a RecoveryOptions,
}

/// Where a way ends.
pub(super) struct WayEnd {
    /// The last segment that there is on it.
    pub(super) last: Option<SegmentName>,
    /// Set if the recovery ends before a gap.
    pub(super) cut: Option<WayCut>,
}

/// The last WAL before a gap.
pub(super) struct WayCut {
    /// The segment.
    pub(super) last: SegmentName,
    /// Its last record, and the time of its last commit, if it can be read.
    point: Option<(Lsn, Option<Timestamp>)>,
}

impl WayCut {
    /// The end of the recovery, in words.
    fn place(&self) -> String {
        match &self.point {
            Some((at, Some(commit))) => format!("{at}, with the last commit at {commit}"),
            Some((at, None)) => at.to_string(),
            None => format!("the end of {}", self.last),
        }
    }

    /// A note for the operator.
    pub(super) fn note(&self) -> String {
        format!(
            "WAL is missing behind {}: the server recovers to {}, and opens",
            self.last,
            self.place()
        )
    }
}

impl WayToTarget<'_> {
    /// The timeline that the recovery ends on.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if two servers began it; [`ErrorKind::Usage`] if two timelines may be the latest.
    pub(super) fn timeline(&self, cluster: &ClusterInfo) -> Result<u32> {
        let own = cluster.timeline;
        let is_own = self.recovery.target == Some(RecoveryTarget::Immediate)
            || self.recovery.kind()? == Mode::None;
        let wanted = match self.recovery.timeline.as_deref() {
            Some("current") => own,
            None if is_own => own,
            None | Some("latest") => self.latest(own)?,
            Some(number) => number.parse().unwrap_or(own),
        };
        if self.wal.doubtful_timelines.contains(&wanted) {
            let message = format!(
                "cannot recover on timeline {wanted}: two servers began it, and each archived a history"
            );
            return Err(Error::new(ErrorKind::Exists, message).hint(
                "choose one with --target-timeline, or move the history of the wrong server away",
            ));
        }
        Ok(wanted)
    }

    /// The newest timeline that the backup leads to. A server takes the largest number, whatever it was: a copy that was tried
    /// and promoted has one too.
    fn latest(&self, own: u32) -> Result<u32> {
        let tree = &self.wal.tree;
        let all = tree.timelines().into_iter();
        let leading: Vec<u32> = all
            .filter(|timeline| *timeline > own && tree.leads_to(self.needs.first, *timeline))
            .collect();
        let Some((latest, earlier)) = leading.split_last() else {
            return Ok(own);
        };
        let rival = earlier
            .iter()
            .find(|other| !tree.descends_from(*latest, **other));
        match rival {
            Some(rival) if self.recovery.kind()? == Mode::Point => {
                Err(self.two_latest(*rival, *latest))
            }
            _ => Ok(*latest),
        }
    }

    fn two_latest(&self, one: u32, other: u32) -> Error {
        let message =
            format!("cannot choose the latest timeline: {one} and {other} both may be it");
        let tree = &self.wal.tree;
        let line = |timeline: u32| {
            let left = tree
                .parent(timeline)
                .map(|(parent, position)| format!(", left timeline {parent} at {position}"));
            let last = match tree.last_of(timeline) {
                Some(last) => format!("its newest segment is {last}"),
                None => "it has no segment".to_owned(),
            };
            format!("timeline {timeline}{}: {last}", left.unwrap_or_default())
        };
        Error::new(ErrorKind::Usage, message)
            .detail(line(one))
            .detail(line(other))
            .hint("say which: --target-timeline NUMBER, or current to stay on that of the backup")
    }

    /// Checks that no segment is missing before the target, and that each has one content.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a gap; [`ErrorKind::Exists`] for two contents; the storage's.
    pub(super) fn check(&self, timeline: u32, backups: Option<&ClusterBackups>) -> Result<WayEnd> {
        let tree = &self.wal.tree;
        let is_short = matches!(self.recovery.target, Some(RecoveryTarget::Immediate))
            || self.recovery.kind()? == Mode::None;
        let target = match &self.recovery.target {
            Some(RecoveryTarget::Lsn(text)) => text.parse::<Lsn>().ok(),
            _ if is_short => Some(Lsn(self.needs.last.start(self.needs.segment_bytes))),
            _ => None,
        };
        let last = tree.end_of_way(self.needs.first, timeline);
        // Of the segment at the end there may be only the beginning.
        let is_whole =
            |end: &SegmentName| !tree.is_open(*end) || end.place() > self.needs.last.place();
        let whole = last.filter(is_whole);
        let is_archived = self.needs.last.place() <= whole.map_or((0, 0), SegmentName::place);
        let is_there = is_archived || self.brought == Some(self.needs.last);
        if is_short && !is_there {
            let gap = WalGap {
                from: self.needs.first,
                to: self.needs.last,
            };
            return Err(self.lacks(gap, None, backups));
        }
        let gaps = tree.gaps_on_way(self.needs.first, timeline, target);
        let is_standby = self.recovery.kind()? == Mode::Standby;
        let mut gaps = gaps
            .into_iter()
            .filter_map(|gap| self.behind_own(gap))
            .filter(|gap| !is_standby && !self.ends_before(*gap, backups));
        let Some(gap) = gaps.next() else {
            self.check_contents(timeline, last)?;
            return Ok(WayEnd { last, cut: None });
        };
        let cut = self.cut_before(gap, timeline);
        if !self.recovery.latest_possible || cut.is_none() {
            return Err(self.lacks(gap, cut, backups));
        }
        let last = cut.as_ref().map(|cut| cut.last);
        self.check_contents(timeline, last)?;
        Ok(WayEnd { last, cut })
    }

    /// Returns what is missing of a gap beside the WAL that the backup brings.
    fn behind_own(&self, gap: WalGap) -> Option<WalGap> {
        let Some(brought) = self.brought.filter(|own| own.timeline == gap.from.timeline) else {
            return Some(gap);
        };
        let from = gap.from.max(brought.next(self.wal.segment_bytes));
        (from <= gap.to).then_some(WalGap { from, ..gap })
    }

    /// Runs overlap where a host pushed again, and where two servers wrote one timeline.
    fn check_contents(&self, timeline: u32, last: Option<SegmentName>) -> Result<()> {
        let Some(last) = last else { return Ok(()) };
        for segment in self
            .wal
            .tree
            .segments_on_way(self.needs.first, timeline, last)
        {
            check_one_content(self.wal, segment)?;
        }
        Ok(())
    }

    /// The WAL before a gap; `None` if the backup itself needs what is missing.
    fn cut_before(&self, gap: WalGap, timeline: u32) -> Option<WayCut> {
        if gap.from.place() <= self.needs.last.place() {
            return None;
        }
        let previous = gap.from.previous(self.wal.segment_bytes)?;
        let on_way = self
            .wal
            .tree
            .segments_on_way(self.needs.first, timeline, previous);
        let last = on_way.into_iter().next_back()?;
        let point = self.last_point(last);
        Some(WayCut { last, point })
    }

    /// The last record of a segment, and the time of its last commit; `None` if it cannot be read.
    fn last_point(&self, segment: SegmentName) -> Option<(Lsn, Option<Timestamp>)> {
        let content = read_segment(&self.wal.archive, segment).ok()?;
        let summary = SegmentRecords::new(&content)?.summary();
        let commit = summary
            .last_commit
            .and_then(|micros| Timestamp::from_microsecond(micros).ok());
        Some((summary.last?, commit))
    }

    /// A note if the recovery goes over to a timeline that the backup is not of.
    pub(super) fn timeline_note(&self, timeline: u32, own: u32) -> Option<String> {
        let (parent, place) = self.wal.tree.parent(timeline).filter(|_| timeline != own)?;
        let stay = match self.recovery.timeline {
            None => ": --target-timeline current stays on that of the backup",
            Some(_) => "",
        };
        Some(format!(
            "the recovery goes over to timeline {timeline}, which left timeline {parent} at {place}{stay}"
        ))
    }

    /// A note if the WAL that there is ends before the target. More may arrive before the server is there.
    pub(super) fn end_note(&self, timeline: u32, last: SegmentName) -> Option<String> {
        let behind = |reached: String| {
            format!(
                "the WAL in this repository does not reach the target, it ends with {reached}: unless more arrives (`SELECT \
                 pg_switch_wal()` on the server sends its last), the recovery ends there with an error; --recovery point without a \
                 target recovers to its end"
            )
        };
        match self.recovery.target.as_ref()? {
            RecoveryTarget::Lsn(text) => {
                let bytes = self.wal.segment_bytes;
                let end = Lsn(last.next(bytes).start(bytes));
                let target = text.parse::<Lsn>().ok()?;
                (target > end).then(|| behind(end.to_string()))
            }
            target => {
                let time = target.time()?;
                let commit = self.last_commit(timeline, last)?;
                (commit < time).then(|| behind(format!("a commit at {commit}")))
            }
        }
    }

    /// The time of the last commit, if one of the last segments has one.
    fn last_commit(&self, timeline: u32, last: SegmentName) -> Option<Timestamp> {
        let tree = &self.wal.tree;
        let on_way = tree.segments_on_way(self.needs.first, timeline, last);
        let last = on_way.into_iter().rev().take(SEARCHED_FOR_COMMIT);
        last.filter_map(|segment| self.last_point(segment))
            .find_map(|(_, commit)| commit)
    }

    /// A target time is before a gap if a backup that ended later did not need the WAL behind the gap.
    fn ends_before(&self, gap: WalGap, backups: Option<&ClusterBackups>) -> bool {
        let target = self.recovery.target.as_ref();
        let Some(time) = target.and_then(RecoveryTarget::time) else {
            return false;
        };
        let is_proof = |needs: &WalNeeds| {
            needs.ended >= time.as_second() && needs.last.place() < gap.from.place()
        };
        backups.is_some_and(|backups| backups.wal_needs().any(|needs| is_proof(&needs)))
    }

    fn lacks(&self, gap: WalGap, cut: Option<WayCut>, backups: Option<&ClusterBackups>) -> Error {
        let id = &self.needs.id;
        let missing = match gap.from == gap.to {
            true => format!("{} is", gap.from),
            false => format!("{} to {} are", gap.from, gap.to),
        };
        let message = format!(
            "cannot recover backup {id:?} to its target: the archive in this repository has a gap"
        );
        let mut error =
            Error::new(ErrorKind::NotFound, message).because(format!("{missing} missing"));
        let mut ways = Vec::new();
        if let Some(cut) = cut {
            error = error.detail(format!("the WAL before the gap leads to {}", cut.place()));
            ways.push("--latest-possible recovers to there");
        }
        let later = backups.into_iter().flat_map(ClusterBackups::wal_needs);
        let later = later
            .filter(|needs| needs.first.place() > gap.to.place())
            .min_by_key(|needs| needs.first.place());
        if let Some(later) = later {
            error = error.detail(format!("the first backup behind the gap is {:?}", later.id));
            ways.push("a backup behind the gap can recover");
        }
        ways.push("`fullbore wal list` shows all gaps");
        error.hint(ways.join("; "))
    }

    /// The segments that a backup needs to be consistent.
    pub(super) fn own_segments(&self, timeline: u32) -> Vec<SegmentName> {
        self.wal
            .tree
            .segments_on_way(self.needs.first, timeline, self.needs.last)
    }
}
