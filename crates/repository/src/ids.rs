//! Ids of new backups: the time of the clock, but always later than the newest id of the
//! repository; then two letters of the source, and two random ones.
//!
//! A clock that was set back must not make a backup look older than its base: a restore without an
//! id takes the last one, and retention counts from it. Ids that are more than a day in the future do
//! not count: otherwise one host with a wrong clock, or one that lies, would turn the order of all
//! others around.
//!
//! The letters of the source are a hint. Whoever looks for backups of one source reads the roots
//! first whose ids have its letters. Other sources may have the same ones, and a backup that was
//! copied from another repository may have others.

use super::first_look::FirstLook;
use fullbore_format::{
    layout::{backup_id, backup_time, letters},
    root::{Root, SourceInfo},
};
use fullbore_storage::{Objects, SealedObjects};
use jiff::{SignedDuration, Timestamp};
use std::ops::Range;

/// Letters of an id that are the same for all backups of a source in a repository.
const SOURCE_LETTERS: Range<usize> = 19..21;

/// Letters of an id after the milliseconds.
const LAST_LETTERS: usize = 4;

/// What makes two backups those of one source.
#[derive(Debug, Clone, Copy)]
pub enum SourceMark<'a> {
    /// The host and the paths.
    Files(&'a SourceInfo),
    /// The system identifier of a cluster, which its standbys have too.
    Cluster(&'a str),
}

impl<'a> SourceMark<'a> {
    /// Returns the mark of a stored backup's source.
    pub fn of(root: &'a Root) -> Self {
        match &root.postgres {
            Some(cluster) => Self::Cluster(&cluster.system_identifier),
            None => Self::Files(&root.source),
        }
    }

    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Files(source) => json_of(source),
            Self::Cluster(system) => format!("cluster {system}").into_bytes(),
        }
    }

    /// Returns the letters that ids of this source have in a repository. In an encrypted one they
    /// follow from its key, so that they cannot be guessed from a host and paths.
    pub fn letters(self, objects: &dyn Objects) -> String {
        let bytes = self.bytes();
        let bytes = match objects.as_sealed().and_then(SealedObjects::ring) {
            Some(ring) => ring.pseudonym(&bytes).into_bytes(),
            None => bytes,
        };
        let hash = blake3::hash(&bytes);
        let seed = hash
            .as_bytes()
            .first_chunk()
            .map_or(0, |first| u64::from_le_bytes(*first));
        letters(seed, SOURCE_LETTERS.len())
    }
}

/// Returns a source as the root of its backup has it.
fn json_of(source: &SourceInfo) -> Vec<u8> {
    // By way of a value, so that the members are in the order of their names.
    let json = serde_json::to_value(source).unwrap_or_default();
    json.to_string().into_bytes()
}

/// Returns the name that a source has in an encrypted repository for those who cannot read it;
/// `None` where all can.
pub fn pseudonym(objects: &dyn Objects, source: &SourceInfo) -> Option<String> {
    let ring = objects.as_sealed()?.ring()?;
    Some(ring.pseudonym(&json_of(source)))
}

/// Returns the letters of the source in the id of a backup.
pub fn source_letters(id: &str) -> &str {
    id.get(SOURCE_LETTERS).unwrap_or_default()
}

/// Returns the id of a backup of this source that begins `now` in a repository, which may not exist
/// yet; `seed` makes it differ from ids of the same moment.
pub fn next(
    objects: &dyn Objects,
    look: &FirstLook,
    now: Timestamp,
    source: SourceMark<'_>,
    seed: u64,
) -> String {
    let source = source.letters(objects);
    let random = letters(seed, LAST_LETTERS - source.len());
    after(look.newest_id(now), now, &format!("{source}{random}"))
}

/// Returns the id of a backup that begins `now` and is stored outside repositories; it sorts after `newest`.
pub fn alone(newest: Option<&str>, now: Timestamp, seed: u64) -> String {
    after(newest, now, &letters(seed, LAST_LETTERS))
}

/// Returns the id of `now`, or of the millisecond after `newest` if that is later; with its last
/// four letters.
fn after(newest: Option<&str>, now: Timestamp, last: &str) -> String {
    let next_time = newest
        .and_then(backup_time)
        .and_then(|time| time.checked_add(SignedDuration::from_millis(1)).ok());
    let time = next_time.map_or(now, |next_time| next_time.max(now));
    let millis = time.subsec_nanosecond().unsigned_abs() / 1_000_000;
    backup_id(&time.strftime("%Y%m%dT%H%M%SZ").to_string(), millis, last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::layout::is_backup_id;
    use fullbore_storage::MemoryObjects;
    use std::collections::BTreeSet;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn an_id_is_the_time_of_a_clock_that_goes_on() {
        let id = after(
            Some("20261121T054501Z-k3f9qz"),
            at("2026-11-22T05:45:01.037Z"),
            "abcd",
        );
        assert_eq!(id, "20261122T054501Z-11abcd");
        let first = after(None, at("2026-11-22T05:45:01Z"), "abcd");
        assert_eq!(first, "20261122T054501Z-00abcd");
    }

    #[test]
    fn ids_go_on_while_the_clock_goes_back() {
        let mut ids = vec![after(None, at("2026-11-22T23:59:59.990Z"), "0007")];
        for hour in (0..20).rev().cycle().take(2000) {
            let now = at("2026-11-22T00:00:00Z") + SignedDuration::from_hours(hour);
            let last = letters(ids.len() as u64, LAST_LETTERS);
            ids.push(after(ids.last().map(String::as_str), now, &last));
        }
        assert!(ids.iter().all(|id| is_backup_id(id)));
        assert!(ids.is_sorted_by(|a, b| a < b));
        assert!(ids[2000].starts_with("20261123T000001Z"), "{}", ids[2000]);
    }

    #[test]
    fn letters_that_are_no_milliseconds_are_passed_too() {
        for newest in [
            "20261121T054501Z-zzzzzz",
            "20261121T054501Z-k3f9qz",
            "20261121T054501Z-000000",
        ] {
            assert!(
                *newest < *after(Some(newest), at("1970-01-01T00:00:00Z"), "0000"),
                "{newest}"
            );
        }
        let now = at("2026-11-22T05:45:01Z");
        assert!(
            after(Some("99999999T999999Z-zzzzzz"), now, "0000").starts_with("20261122"),
            "no time at all"
        );
    }

    fn source(host: &str) -> SourceInfo {
        SourceInfo {
            host: host.into(),
            ..SourceInfo::default()
        }
    }

    #[test]
    fn ids_of_a_source_share_letters_and_differ() {
        let objects = MemoryObjects::default();
        let now = at("2026-11-22T05:45:01Z");
        let id = |host: &str, seed| {
            let source = source(host);
            let look = FirstLook::default();
            next(&objects, &look, now, SourceMark::Files(&source), seed)
        };
        let (first, second, other) = (id("a", 1), id("a", 2), id("b", 1));
        assert!(is_backup_id(&first) && first != second);
        assert_eq!(source_letters(&first), source_letters(&second));
        assert_ne!(source_letters(&first), source_letters(&other));
    }

    #[test]
    fn an_id_of_the_future_does_not_count() {
        let now = at("2026-11-22T05:45:01Z");
        let next_of = |intents: &[&str]| {
            let look = FirstLook {
                intents: intents.iter().map(|id| (*id).to_owned()).collect(),
                ..FirstLook::default()
            };
            let source = source("a");
            next(
                &MemoryObjects::default(),
                &look,
                now,
                SourceMark::Files(&source),
                1,
            )
        };
        let far = "99991230T220000Z-rp0000";
        let soon = "20261123T044501Z-000000";
        assert!(next_of(&[far]).starts_with("20261122T054501Z"));
        assert!(next_of(&["99999999T999999Z-zzzzzz"]).starts_with("20261122T054501Z"));
        assert!(next_of(&[soon, far]).starts_with("20261123T044501Z"));
    }

    #[test]
    fn hosts_have_many_different_letters() {
        let objects = MemoryObjects::default();
        let letters = |number: usize| {
            let source = source(&format!("host{number}"));
            SourceMark::Files(&source).letters(&objects)
        };
        let all: BTreeSet<String> = (0..200).map(letters).collect();
        assert!(all.len() > 150, "{}", all.len());
    }
}
