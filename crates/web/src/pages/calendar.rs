//! A calendar of the days of the last year, with the number of backups of each.

use jiff::{Span, civil::Date};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// Weeks that are shown.
const WEEKS: i64 = 53;
/// Width and height of a day, with its gap.
const DAY: i64 = 13;

/// A day with backups: their number, whether one has trouble, and the address of the last one.
pub(super) struct BackupDay {
    pub(super) count: u64,
    pub(super) has_trouble: bool,
    pub(super) address: String,
}

/// Draws the year up to `today`. Each day with backups leads to its last one.
pub(super) fn year(days: &BTreeMap<Date, BackupDay>, today: Date) -> Markup {
    let weekday = i64::from(today.weekday().to_monday_zero_offset());
    let first = today
        .checked_sub(Span::new().days(weekday + 7 * (WEEKS - 1)))
        .unwrap_or(today);
    let shown = (0..WEEKS * 7).filter_map(|number| {
        let day = first.checked_add(Span::new().days(number)).ok()?;
        (day <= today).then_some((number, day))
    });
    html! {
        figure.scroll tabindex="0" role="region" aria-label="Days with backups" {
            figcaption { "Days with backups in the last year" }
            svg.calendar width=(WEEKS * DAY) height=(7 * DAY) viewBox=(format!("0 0 {} {}", WEEKS * DAY, 7 * DAY)) {
                @for (number, day) in shown { (day_html(number, day, days.get(&day))) }
            }
        }
    }
}

fn day_html(number: i64, day: Date, found: Option<&BackupDay>) -> Markup {
    let x = number / 7 * DAY;
    let y = number % 7 * DAY;
    html! {
        @match found {
            None => rect.none x=(x) y=(y) width="11" height="11" {},
            Some(found) => {
                a href=(found.address) aria-label=(format!("{day}: {}", words(found))) {
                    title { (day) ": " (words(found)) }
                    rect class=(if found.has_trouble { "bad" } else { "some" }) x=(x) y=(y) width="11" height="11" {}
                }
            }
        }
    }
}

fn words(found: &BackupDay) -> String {
    let count = fullbore_format::text::counted(found.count, "backup");
    match found.has_trouble {
        true => format!("{count}, one with trouble"),
        false => count,
    }
}
