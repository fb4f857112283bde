//! Ids of new backups: the time of the clock, but always later than the newest id of the
//! repository.
//!
//! A clock that was set back must not make a backup look older than its base: a restore without an
//! id takes the last one, and retention counts from it.

use super::first_look::FirstLook;
use crate::format::layout::{backup_id, is_backup_id};
use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};

/// Returns the id of a backup that begins `now` in a repository, which may not exist yet; `seed`
/// makes it differ from ids of the same moment on other hosts.
pub fn next(look: &FirstLook, now: Timestamp, seed: u64) -> String {
    after(look.newest_id(), now, seed)
}

/// Returns the id of `now`, or of the millisecond after `newest` if that is later.
pub fn after(newest: Option<&str>, now: Timestamp, seed: u64) -> String {
    let behind = newest
        .and_then(time)
        .and_then(|time| time.checked_add(SignedDuration::from_millis(1)).ok());
    let time = behind.map_or(now, |behind| behind.max(now));
    let millis = time.subsec_nanosecond().unsigned_abs() / 1_000_000;
    backup_id(&time.strftime("%Y%m%dT%H%M%SZ").to_string(), millis, seed)
}

/// Returns the time at which a backup began, from its id.
fn time(id: &str) -> Option<Timestamp> {
    let (seconds, letters) = id.split_once('-').filter(|_| is_backup_id(id))?;
    let begun = DateTime::strptime("%Y%m%dT%H%M%SZ", seconds)
        .ok()?
        .to_zoned(TimeZone::UTC)
        .ok()?
        .timestamp();
    let millis = i64::from_str_radix(letters.get(..2)?, 36).ok()?;
    begun.checked_add(SignedDuration::from_millis(millis)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn an_id_is_the_time_of_a_clock_that_goes_on() {
        let id = after(
            Some("20261121T054501Z-k3f9qz"),
            at("2026-11-22T05:45:01.037Z"),
            1,
        );
        assert!(id.starts_with("20261122T054501Z-11"), "{id}");
        assert!(after(None, at("2026-11-22T05:45:01Z"), 1).starts_with("20261122T054501Z-00"));
    }

    #[test]
    fn ids_go_on_while_the_clock_goes_back() {
        let mut ids = vec![after(None, at("2026-11-22T23:59:59.990Z"), 7)];
        for hour in (0..20).rev().cycle().take(2000) {
            let now = at("2026-11-22T00:00:00Z") + SignedDuration::from_hours(hour);
            ids.push(after(ids.last().map(String::as_str), now, ids.len() as u64));
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
                *newest < *after(Some(newest), at("1970-01-01T00:00:00Z"), 0),
                "{newest}"
            );
        }
        let now = at("2026-11-22T05:45:01Z");
        assert!(
            after(Some("99999999T999999Z-zzzzzz"), now, 0).starts_with("20261122"),
            "no time at all"
        );
    }
}
