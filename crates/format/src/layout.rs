//! Names in a repository.
//!
//! ```text
//! fullbore-repo.json             format, repository id, creation
//! verify.json                    what `verify --sample` has checked, and when
//! backups/<id>/s01-000001.tar.zst    segments
//! backups/<id>/manifest          pages
//! backups/<id>/contents          digests of the files in the pages, for backups of other sources
//! backups/<id>/unproven          the mark of a backup that a host with a limit added, or that was copied
//! backups/<id>/root.json         the commit
//! backups/<id>/forgotten.json    the root of a backup that was forgotten, until nothing of it is left
//! backups/<id>/notes.json        what was noted of a backup after it was made: tags, whether it is pinned
//! backups/<id>/partial.json      a root of what is durable of a backup under way, for the one that goes on after it
//! intents/<id>.json              a backup under way
//! tombstones/<id>/<name>         an object of a backup that prune wants to delete
//! tombstones/wal/…               an object with WAL that prune wants to delete
//! wal/<system>/…                 archived WAL, see [`super::wal`]
//! ```

use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};
use serde::{Deserialize, Serialize};

/// The file that makes a directory a repository.
pub const REPOSITORY: &str = "fullbore-repo.json";
/// When each part of a repository was last verified.
pub const COVERED: &str = "verify.json";
/// Directory of the backups.
pub const BACKUPS: &str = "backups";
/// Directory in which running backups announce themselves.
pub const INTENTS: &str = "intents";
/// Directory of the objects that prune is about to delete.
pub const TOMBSTONES: &str = "tombstones";
/// The pages of a backup.
pub const MANIFEST: &str = "manifest";
/// The digests of the files in the pages of a backup, see [`super::content_list`].
pub const CONTENTS: &str = "contents";
/// The mark of a backup whose maker may not be who can change the repository: what its digests say is compared with the content before
/// another source refers to it. It is empty.
pub const UNPROVEN: &str = "unproven";
/// The root of a backup.
pub const ROOT: &str = "root.json";
/// The root of a backup that was forgotten.
pub const FORGOTTEN: &str = "forgotten.json";
/// The root of what is durable of a backup that has not ended.
pub const PARTIAL: &str = "partial.json";
/// Annotations that were added after the backup was made.
pub const NOTES: &str = "notes.json";

/// Directory of the wrapped keys of a repository.
pub const KEYS: &str = "keys";
/// Directory of the lists of backups of hosts that may only add some.
pub const HOSTS: &str = "hosts";
/// Directory of what belongs to PostgreSQL systems, each below its identifier.
pub const WAL: &str = "wal";
/// Directory of the results of restore drills of a system.
pub const DRILLS: &str = "drills";
/// Directory of the objects by which a storage is tried.
pub const PROBES: &str = "probes";

/// The directories of a repository. A storage that is shared with others lists no other ones.
pub const ROOMS: [&str; 7] = [BACKUPS, INTENTS, TOMBSTONES, KEYS, HOSTS, PROBES, WAL];

/// Content of [`REPOSITORY`], sealed like a root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Repository {
    /// Version of the format.
    pub format: u32,
    /// Identifies the repository; never changes.
    pub id: String,
    /// Time of creation, RFC 3339.
    pub created: String,
    /// Whether its storage has no conditional puts, and stored what it should have refused when it
    /// was tried: then leases prove nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lacks_conditions: bool,
}

/// What segments are called behind their numbers.
const SUFFIXES: [&str; 2] = ["tar.zst", "tar.lz4"];

/// Returns the directory of the results of drills of a system; `None` if the identifier is no number.
pub fn drills_of(system_identifier: &str) -> Option<String> {
    let is_number = system_identifier.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !system_identifier.is_empty() && system_identifier.len() <= 20)
        .then(|| format!("{WAL}/{system_identifier}/{DRILLS}"))
}

/// Returns the name of a segment, for example `s01-000001.tar.zst`.
pub fn segment(stream: u32, number: u32, suffix: &str) -> String {
    format!("s{stream:02}-{number:06}.{suffix}")
}

/// Returns stream and number of the segment with this name.
pub fn segment_numbers(name: &str) -> Option<(u32, u32)> {
    let (numbers, suffix) = name.split_once('.')?;
    let (stream, number) = numbers.strip_prefix('s')?.split_once('-')?;
    let stream = stream.parse().ok()?;
    let number = number.parse().ok()?;
    // A copy that a user made next to it (`….orig`) is not a segment.
    (SUFFIXES.contains(&suffix) && segment(stream, number, suffix) == name)
        .then_some((stream, number))
}

/// Returns whether this is the name of a manifest or a segment.
pub fn is_object(name: &str) -> bool {
    name == MANIFEST || segment_numbers(name).is_some()
}

/// Returns whether fullbore creates files of this name in the directory of a backup, finished or
/// not.
pub fn is_own(name: &str) -> bool {
    let documents = [ROOT, FORGOTTEN, PARTIAL, NOTES];
    let is_object = |name: &str| is_object(name) || name == CONTENTS;
    let is_part = |stem: &str| {
        let stem = stem.rsplit_once(".repair").map_or(stem, |(stem, _)| stem);
        let upload = stem.rsplit_once('.').map(|(object, _)| object);
        is_object(stem)
            || upload.is_some_and(is_object)
            || stem.starts_with(UNPROVEN)
            || documents.iter().any(|document| stem.starts_with(document))
    };
    documents.contains(&name)
        || name == UNPROVEN
        || is_object(name)
        || name.strip_suffix(".partial").is_some_and(is_part)
}

/// Returns whether this is the name of a backup, for example `20261121T054501Z-k3f9qz`: a time in
/// UTC and six letters or digits.
pub fn is_backup_id(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes.len() == 23
        && bytes.iter().enumerate().all(|(i, c)| match i {
            8 => *c == b'T',
            15 => *c == b'Z',
            16 => *c == b'-',
            17.. => c.is_ascii_lowercase() || c.is_ascii_digit(),
            _ => c.is_ascii_digit(),
        })
}

/// Returns the time at which a backup began, from its name.
pub fn backup_time(id: &str) -> Option<Timestamp> {
    let (seconds, letters) = id.split_once('-').filter(|_| is_backup_id(id))?;
    let begun = DateTime::strptime("%Y%m%dT%H%M%SZ", seconds)
        .ok()?
        .to_zoned(TimeZone::UTC)
        .ok()?
        .timestamp();
    let millis = i64::from_str_radix(letters.get(..2)?, 36).ok()?;
    begun.checked_add(SignedDuration::from_millis(millis)).ok()
}

/// Returns whether a backup with this name is not counted at `now`, because its time is more than a day later or
/// no time at all: the clock of its host was wrong, or its host lied.
pub fn is_of_future(id: &str, now: Timestamp) -> bool {
    backup_time(id).is_none_or(|time| time > last_that_counts(now))
}

/// The latest time of backups that count at `now`.
pub fn last_that_counts(now: Timestamp) -> Timestamp {
    let limit = now.checked_add(SignedDuration::from_hours(24));
    limit.unwrap_or(Timestamp::MAX)
}

/// Returns the name of a backup that began at `time` (`20261121T054501Z`) and `millis`
/// milliseconds.
///
/// Two letters encode the milliseconds, so that names sort by time within a second. `last` are the
/// other four letters.
pub fn backup_id(time: &str, millis: u32, last: &str) -> String {
    format!(
        "{time}-{}{}{last}",
        base36_digit(millis / 36),
        base36_digit(millis)
    )
}

fn base36_digit(value: u32) -> char {
    char::from_digit(value % 36, 36).unwrap_or('0')
}

/// Returns `count` lower-case letters and digits that are derived from `seed`.
pub fn letters(mut seed: u64, count: usize) -> String {
    (0..count)
        .map(|_| {
            let digit = (seed % 36) as u32;
            seed /= 36;
            char::from_digit(digit, 36).unwrap_or('0')
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_within_a_second() {
        let ids: Vec<_> = (0..1000)
            .map(|millis| {
                backup_id(
                    "20261121T054501Z",
                    millis,
                    &letters(u64::from(1000 - millis), 4),
                )
            })
            .collect();
        assert!(ids.is_sorted());
    }

    #[test]
    fn names_of_segments_say_their_numbers() {
        for (stream, number) in [(1, 1), (12, 345_678), (123, 12_345_678)] {
            assert_eq!(
                segment_numbers(&segment(stream, number, "tar.zst")),
                Some((stream, number))
            );
        }
        let near = [
            "s01-000001.tar.zst.orig",
            "s01-000001.bak",
            "s1-2.tar.zst",
            "s+1-000001.tar.zst",
            "s01-000001.tar.xz",
            "s01-000001.tar.gz",
            "s01-000001.tar",
        ];
        for bad in [
            "manifest",
            "s01",
            "s01.tar.zst",
            "root.json",
            "s-1.tar.zst",
            "sx-y.tar.zst",
            "",
        ]
        .into_iter()
        .chain(near)
        {
            assert_eq!(segment_numbers(bad), None, "{bad}");
        }
    }

    #[test]
    fn results_of_drills_are_stored_only_below_a_number() {
        let dir = drills_of("7412345678901234567");
        assert_eq!(dir.as_deref(), Some("wal/7412345678901234567/drills"));
        for bad in ["", "..", "1/2", "a", "123456789012345678901"] {
            assert_eq!(drills_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_of_its_own_are_known() {
        let segment = segment(1, 1, "tar.lz4");
        for name in [
            MANIFEST, CONTENTS, ROOT, NOTES, PARTIAL, FORGOTTEN, &segment,
        ] {
            for ending in ["", ".partial", ".repair.partial", ".repair-a1b2c3.partial"] {
                assert!(is_own(&format!("{name}{ending}")), "{name}{ending}");
            }
        }
        for name in ["root.json", MANIFEST, CONTENTS, &segment] {
            assert!(is_own(&format!("{name}.a1b2c3.partial")), "{name}");
        }
        for other in [
            "id_rsa",
            "x.partial",
            "",
            ".partial",
            "s01",
            "root.jsonx",
            "fullbore-repo.json",
        ] {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn ids_are_recognized_and_nothing_else_is() {
        let id = backup_id("20261121T054501Z", 999, &letters(u64::MAX, 4));
        assert!(is_backup_id(&id), "{id}");
        for bad in [
            "",
            "..",
            "20261121T054501Z-k3f9q",
            "20261121T054501Z-K3F9QZ",
            "x0261121T054501Z-k3f9qz",
        ] {
            assert!(!is_backup_id(bad), "{bad}");
        }
    }
}
