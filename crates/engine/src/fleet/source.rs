//! The state of one source.

use super::{
    BackupRow, BackupRows, FleetQuestion,
    expected::{Expectation, ExpectedBy, ToldInterval},
};
use crate::drill::record::DrillRecord;
use fullbore_format::{
    root::{PART_BYTES, Root, SourceInfo},
    text::{counted, utc_time},
};
use fullbore_repository::{
    annotations::Annotations,
    verify_memory::{CheckedShare, VerifyMemory},
};
use fullbore_storage::Objects;
use serde::{Serialize, Serializer};
use std::cmp::Ordering;

/// The time over which growth is told.
const GROWTH_SECONDS: i64 = 30 * 86_400;

/// How a source is, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceState {
    /// A verification found damage in one of its backups.
    Damaged,
    /// The newest backup is older than expected.
    Late,
    /// There are warnings.
    Warned,
    Sound,
}

/// A source with its newest backup and everything that may be wrong with it.
#[derive(Debug, Clone, Serialize)]
pub struct FleetSource {
    /// The repository, as it was given.
    pub repository: String,
    /// The number of the repository, from 0, and the key of the source in it.
    #[serde(skip)]
    pub number: usize,
    #[serde(skip)]
    pub key: String,
    pub source: SourceInfo,
    pub state: SourceState,
    /// Is the newest backup older than expected?
    pub late: bool,
    /// Number of backups.
    pub backups: u64,
    /// Id and time of the newest.
    #[serde(rename = "newest_id")]
    pub newest: String,
    pub newest_time: String,
    pub age_seconds: u64,
    /// The interval that is expected, and how it is known; absent if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_by: Option<ExpectedBy>,
    /// The age from which on it is late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_after_seconds: Option<u64>,
    /// Content of the newest backup.
    pub bytes: u64,
    pub files: u64,
    /// Bytes that all its backups added.
    pub stored_bytes: u64,
    /// Growth of the content in the last 30 days, and the time between the two backups that were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_bytes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_seconds: Option<u64>,
    /// Share of the data of the newest backup that was ever checked, from 0 to 1, and when some of it was checked last, in seconds
    /// since 1970 (in JSON as RFC 3339).
    pub verified_share: f64,
    #[serde(rename = "last_verified_time", serialize_with = "as_rfc3339")]
    pub last_verified: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified_age_seconds: Option<u64>,
    /// The newest drill of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_drill: Option<FleetDrill>,
    /// Backups that a verification found to be damaged.
    pub damaged_backups: u64,
    /// Whatever else a person should look at, in words.
    pub warnings: Vec<String>,
}

fn as_rfc3339<S: Serializer>(seconds: &Option<u64>, out: S) -> Result<S::Ok, S::Error> {
    seconds.and_then(utc_time).serialize(out)
}

/// The newest drill of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetDrill {
    /// When it ended, as RFC 3339.
    pub time: String,
    pub passed: bool,
    pub age_seconds: u64,
}

impl FleetSource {
    /// The order of trouble: the worst state first, then what is late by the most intervals, then by name.
    pub fn by_trouble(&self, other: &Self) -> Ordering {
        let lateness = |source: &Self| {
            let after = source.late_after_seconds.filter(|_| source.late);
            after.map_or(0.0, |after| source.age_seconds as f64 / after.max(1) as f64)
        };
        let name = |source: &Self| (source.source.host.clone(), source.repository.clone());
        let by_state = self.state.cmp(&other.state);
        by_state
            .then_with(|| lateness(other).total_cmp(&lateness(self)))
            .then_with(|| name(self).cmp(&name(other)))
    }
}

/// What is collected of a source.
pub(super) struct SourceFacts<'a> {
    /// The newest root, without segments and pages.
    pub(super) newest: Root,
    pub(super) put_key: Option<String>,
    /// The oldest first.
    backups: &'a [BackupRow],
    key: String,
    damaged: u64,
    pub(super) warnings: Vec<String>,
}

impl<'a> SourceFacts<'a> {
    /// Begins with the backups of a source, of which the last one has this root.
    pub(super) fn new(mut newest: Root, backups: &'a [BackupRow], listing: &BackupRows) -> Self {
        (newest.segments, newest.pages) = Default::default();
        newest.not_captured.clear();
        let lost = backups
            .iter()
            .filter(|row| listing.loss(row.id()).is_some());
        let unproven = backups
            .iter()
            .filter(|row| listing.is_damaged_unproven(row.id()))
            .count() as u64;
        let found = (unproven > 0).then(|| {
            let backups = counted(unproven, "backup");
            format!(
                "{backups} found damaged by a verify without a key; `fullbore verify --data` with a key says more"
            )
        });
        let source = backups.last().map(|row| listing.source_of(row));
        Self {
            newest,
            put_key: None,
            key: source.map_or_else(String::new, |source| source.key.clone()),
            damaged: lost.count() as u64 + unproven,
            backups,
            warnings: found.into_iter().collect(),
        }
    }

    pub(super) fn is_of(&self, root: &Root) -> bool {
        self.newest.source == root.source
    }

    pub(super) fn into_source(
        mut self,
        objects: &dyn Objects,
        memory: &VerifyMemory,
        question: &FleetQuestion,
    ) -> FleetSource {
        self.add_warnings();
        let age = |seconds: i64| question.now.as_second().saturating_sub(seconds).max(0) as u64;
        let drill = self.drill(objects, &age);
        let times: Vec<i64> = self.backups.iter().map(|row| row.seconds).collect();
        let newest_seconds = times.last().copied().unwrap_or_default();
        let told = self.told_interval(objects);
        let expected = Expectation::of(question.every, told, &times);
        let late_after = expected.map(Expectation::late_after_seconds);
        let age_seconds = age(newest_seconds);
        let late = late_after.is_some_and(|after| age_seconds > after);
        let stored = self.backups.iter().map(|row| row.stored_bytes);
        let stored_bytes = stored.fold(0, u64::saturating_add);
        let growth = self.growth();
        let (verified_share, last_verified) = verified(&self.newest, memory);
        let state = match () {
            () if self.damaged > 0 => SourceState::Damaged,
            () if late => SourceState::Late,
            () if !self.warnings.is_empty() => SourceState::Warned,
            () => SourceState::Sound,
        };
        FleetSource {
            repository: String::new(),
            number: 0,
            key: self.key,
            state,
            late,
            backups: self.backups.len() as u64,
            newest_time: self.newest.time,
            newest: self.newest.id,
            source: self.newest.source,
            age_seconds,
            expected_seconds: expected.map(|expected| expected.seconds),
            expected_by: expected.map(|expected| expected.by),
            late_after_seconds: late_after,
            bytes: self.newest.totals.bytes,
            files: self.newest.totals.files,
            stored_bytes,
            growth_bytes: growth.map(|(bytes, _)| bytes),
            growth_seconds: growth.map(|(_, seconds)| seconds),
            verified_share,
            last_verified,
            verified_age_seconds: last_verified.map(|time| age(time as i64)),
            last_drill: drill,
            damaged_backups: self.damaged,
            warnings: self.warnings,
        }
    }

    /// Returns the interval that the newest backup with such a tag says. Later tags of a backup count.
    fn told_interval(&self, objects: &dyn Objects) -> ToldInterval {
        let newest = ToldInterval::of(&self.newest.tags);
        let earlier = self.backups.iter().rev().skip(1);
        let told = earlier.map(|row| {
            let notes = row
                .is_noted()
                .then(|| Annotations::read(objects, row.id()).ok());
            let tags = notes.flatten().and_then(|notes| notes.tags);
            tags.map_or(row.every, |tags| ToldInterval::of(&tags))
        });
        let mut all = [newest].into_iter().chain(told);
        all.find(|told| *told != ToldInterval::Nothing)
            .unwrap_or_default()
    }

    fn add_warnings(&mut self) {
        let totals = &self.newest.totals;
        if totals.unreadable > 0 {
            let entries = counted(totals.unreadable, "entry");
            self.warnings.push(format!("{entries} could not be read"));
        }
        if totals.bad_pages > 0 {
            let files = counted(totals.bad_pages, "file");
            self.warnings
                .push(format!("{files} with wrong page checksums"));
        }
        // A put key can say any host.
        let stranger = self
            .put_key
            .iter()
            .filter(|name| **name != self.newest.source.host);
        let added = stranger.map(|name| format!("added with put key {name:?}"));
        self.warnings.extend(added);
    }

    /// Returns the newest drill of the cluster. One that failed is a warning.
    fn drill(&mut self, objects: &dyn Objects, age: &impl Fn(i64) -> u64) -> Option<FleetDrill> {
        let system = &self.newest.postgres.as_ref()?.system_identifier;
        let record = match DrillRecord::newest(objects, system) {
            Ok(record) => record?,
            Err(error) => {
                self.warnings.push(error.line());
                return None;
            }
        };
        if let Some(why) = &record.error {
            self.warnings.push(format!("the last drill failed: {why}"));
        }
        let time = record.time.parse::<jiff::Timestamp>().ok()?;
        Some(FleetDrill {
            age_seconds: age(time.as_second()),
            passed: record.error.is_none(),
            time: record.time,
        })
    }

    /// Returns by how much the content grew, and in which time.
    fn growth(&self) -> Option<(i64, u64)> {
        let (newest, earlier) = self.backups.split_last()?;
        let oldest = newest.seconds.saturating_sub(GROWTH_SECONDS);
        let begin = earlier.iter().find(|row| row.seconds >= oldest)?;
        let seconds = newest.seconds.abs_diff(begin.seconds);
        let grown = i128::from(newest.bytes) - i128::from(begin.bytes);
        let grown = grown.clamp(i64::MIN.into(), i64::MAX.into());
        Some((grown as i64, seconds))
    }
}

/// Returns which share of the data of a backup was ever checked, and when some of it was checked last.
fn verified(root: &Root, memory: &VerifyMemory) -> (f64, Option<u64>) {
    let segments = root.liveness.iter().map(|live| {
        let mut segment = live.id();
        if segment.backup.is_empty() {
            segment.backup.clone_from(&root.id);
        }
        (segment, live.of_bytes)
    });
    let checked = CheckedShare::of(memory, &segments.collect(), PART_BYTES);
    (checked.share, checked.last)
}
