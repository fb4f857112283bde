//! Times for people, in the time zone of this machine.
//!
//! Ids and JSON have UTC; everything that a person reads has local time, with its offset where the line stands alone.

use jiff::{Timestamp, Zoned, civil::Date, tz::TimeZone};

/// Returns `2026-11-25 19:53:48 +01:00` for a time in RFC 3339; a text that is no time is returned as it is.
pub fn local_second(rfc3339: &str) -> String {
    match zoned(rfc3339, TimeZone::system()) {
        Some(time) => time.strftime("%Y-%m-%d %H:%M:%S %:z").to_string(),
        None => super::name(rfc3339.as_bytes()),
    }
}

/// Returns the time now, as [`local_second`].
pub fn local_now() -> String {
    local_second(&Timestamp::now().to_string())
}

/// Returns [`local_second`] of seconds since 1970.
pub fn local_second_of(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok();
    let time = time.and_then(|time| Timestamp::from_second(time).ok());
    time.map_or_else(
        || seconds.to_string(),
        |time| local_second(&time.to_string()),
    )
}

/// Returns `today 19:53`, `yesterday 19:53` or `2026-11-23 19:53` for a time in RFC 3339: at most 16 characters.
/// A text that is no time is returned as it is.
pub fn recent_minute(rfc3339: &str, now: &Zoned) -> String {
    let Some(time) = zoned(rfc3339, now.time_zone().clone()) else {
        return super::name(rfc3339.as_bytes());
    };
    format!(
        "{} {}",
        day(time.date(), now.date()),
        time.strftime("%H:%M")
    )
}

fn day(date: Date, today: Date) -> String {
    if date == today {
        "today".to_owned()
    } else if today.yesterday().is_ok_and(|yesterday| yesterday == date) {
        "yesterday".to_owned()
    } else {
        date.to_string()
    }
}

fn zoned(rfc3339: &str, zone: TimeZone) -> Option<Zoned> {
    let time: Timestamp = rfc3339.parse().ok()?;
    Some(time.to_zoned(zone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_time_zone() {
        let now: Zoned = "2026-11-25T19:53:48+01:00[Europe/Berlin]".parse().unwrap();
        for (time, text) in [
            ("2026-11-24T23:00:00Z", "today 00:00"),
            ("2026-11-24T22:59:59Z", "yesterday 23:59"),
            ("2026-11-23T22:59:59Z", "2026-11-23 23:59"),
            ("2026-07-01T10:00:00Z", "2026-07-01 12:00"),
            ("no time\u{1b}", "no time\\u{1b}"),
        ] {
            assert_eq!(recent_minute(time, &now), text);
        }
    }
}
