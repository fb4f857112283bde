//! The runs of the last days as a picture: a row for each day, with a bar for each run at its hours.

use super::{chart::px, link::of_place};
use crate::catalog::SharedBackup;
use jiff::{Timestamp, civil::Date, tz::TimeZone};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// Days that are shown.
const MOST_DAYS: usize = 14;
const WIDTH: f64 = 720.0;
/// Left of the bars: the days.
const LABEL: f64 = 56.0;
const ROW: usize = 18;
const BAR: usize = 10;
/// A run of seconds is to be seen, too.
const LEAST: f64 = 3.0;
const DAY_SECONDS: f64 = 86_400.0;

/// A part of a run within one day.
struct Part<'a> {
    backup: &'a SharedBackup,
    source: &'a str,
    /// Seconds since midnight.
    from: f64,
    to: f64,
}

/// Draws runs, the newest day first. The same runs are in the table of the page.
pub(super) fn picture<'a>(
    r: usize,
    runs: impl Iterator<Item = (&'a SharedBackup, &'a str)>,
) -> Markup {
    let mut days: BTreeMap<Date, Vec<Part<'_>>> = BTreeMap::new();
    for (backup, source) in runs {
        add(&mut days, backup, source);
    }
    let shown: Vec<_> = days.iter().rev().take(MOST_DAYS).collect();
    let height = (shown.len() + 1) * ROW;
    let x = |seconds: f64| LABEL + (seconds / DAY_SECONDS).clamp(0.0, 1.0) * (WIDTH - LABEL);
    html! {
        figure {
            figcaption { "When runs ran, in the zone of this host" }
            svg.timelines viewBox=(format!("0 0 {WIDTH} {height}")) {
                @for hour in [0, 6, 12, 18] {
                    text x=(px(x(f64::from(hour) * 3600.0))) y=(BAR) { (format!("{hour:02}:00")) }
                    line x1=(px(x(f64::from(hour) * 3600.0))) y1=(ROW) x2=(px(x(f64::from(hour) * 3600.0))) y2=(height) {}
                }
                @for (row, (day, parts)) in shown.iter().enumerate() {
                    text x="4" y=((row + 1) * ROW + BAR) { (day.strftime("%m-%d")) }
                    @for part in parts.iter() {
                        a href=(of_place("backup", r, &[("b", part.backup.id.as_bytes())])) aria-label=(label(part)) {
                            title { (label(part)) }
                            rect class=(class(part.backup)) x=(px(x(part.from))) y=((row + 1) * ROW + 2)
                                width=(px((x(part.to) - x(part.from)).max(LEAST))) height=(BAR) {}
                        }
                    }
                }
            }
        }
    }
}

fn class(backup: &SharedBackup) -> &'static str {
    match backup.complete && backup.lost_files.is_none() {
        true => "some",
        false => "bad",
    }
}

fn label(part: &Part<'_>) -> String {
    let backup = part.backup;
    let limit = match backup.limit.is_empty() {
        true => String::new(),
        false => format!(", limit {}", backup.limit),
    };
    format!("{}: {:.1} s{limit}", part.source, backup.seconds)
}

/// A run over midnight has a part in each of its days.
fn add<'a>(days: &mut BTreeMap<Date, Vec<Part<'a>>>, backup: &'a SharedBackup, source: &'a str) {
    let Ok(begin) = backup.time.parse::<Timestamp>() else {
        return;
    };
    let begin = begin.to_zoned(TimeZone::system());
    let mut day = begin.date();
    let midnight = begin
        .start_of_day()
        .map_or(begin.timestamp(), |start| start.timestamp());
    let mut from = begin.timestamp().duration_since(midnight).as_secs_f64();
    let mut rest = backup.seconds.max(0.0);
    for _ in 0..MOST_DAYS {
        let to = (from + rest).min(DAY_SECONDS);
        let part = Part {
            backup,
            source,
            from,
            to,
        };
        days.entry(day).or_default().push(part);
        rest -= to - from;
        let Some(next) = day.tomorrow().ok().filter(|_| rest > 0.0) else {
            return;
        };
        (day, from) = (next, 0.0);
    }
}
