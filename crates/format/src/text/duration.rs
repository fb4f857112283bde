//! Durations of hours and days, parsed and printed.

use std::time::Duration;

const UNITS: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 24 * 3600)];

/// Parses a duration above zero with a unit: `26h`, `7d`, `90m`, `30s`.
///
/// # Errors
/// A sentence for the operator.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || "use a number and d, h, m or s, as 26h".to_owned();
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(*unit));
    let (_, seconds) = unit.ok_or_else(wrong)?;
    let number = text[..text.len() - 1].parse::<u64>().map_err(|_| wrong())?;
    let seconds = number.checked_mul(*seconds).filter(|total| *total > 0);
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

/// Returns a duration in at most 5 letters if it is below 100,000 days: `45s`, `12m`, `26h`, `3d`. It is rounded down.
pub fn short(seconds: u64) -> String {
    // 47 hours say more than 1 day.
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns a duration as [`parse`] reads it, in the largest unit that has no rest.
pub fn exact(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = UNITS.iter().rev();
    let mut whole = units.filter(|(_, unit)| seconds.is_multiple_of(*unit));
    let (unit, in_unit) = whole.next().unwrap_or(&UNITS[0]);
    format!("{}{unit}", seconds / in_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_are_not_zero() {
        for (text, seconds) in [("30s", 30), ("90m", 5400), ("26h", 93_600), ("7d", 604_800)] {
            let duration = Duration::from_secs(seconds);
            assert_eq!(parse(text), Ok(duration), "{text}");
            assert_eq!(parse(&exact(duration)), Ok(duration), "{text}");
        }
        let exact_of = [3600, 5400, 604_801].map(Duration::from_secs).map(exact);
        assert_eq!(exact_of, ["1h", "90m", "604801s"]);
        for bad in [
            "",
            "d",
            "7",
            "0d",
            "-1d",
            "1.5h",
            "1 d",
            "1日",
            "18446744073709551615d",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_duration_is_short() {
        let shown = [0, 119, 120, 7199, 7200, 172_799, 172_800, 86_400 * 400].map(short);
        assert_eq!(
            shown,
            ["0s", "119s", "2m", "119m", "2h", "47h", "2d", "400d"]
        );
    }
}
