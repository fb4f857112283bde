//! A source: its backups as a calendar, a chart and a table, and what rules of retention would keep.

use super::{
    calendar::{self, BackupDay},
    chart,
    layout::{self, size, time},
    link::of_place,
};
use crate::{
    ask::ask_each,
    asked::Asked,
    catalog::{BackupSummary, SharedBackup},
    place::Place,
};
use fullbore_engine::fleet::BackupRows;
use fullbore_format::error::{Error, ErrorKind, Result};
use jiff::{Timestamp, Zoned, tz::TimeZone};
use maud::{Markup, html};
use serde::Serialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsString,
};

/// Backups of a page.
const PAGE_ROWS: usize = 100;
/// Lines of `fullbore forget` that are shown.
const SHOWN_LINES: usize = 1000;
/// Options of `fullbore forget` with a number, and their labels.
const RULES: [(&str, &str); 6] = [
    ("keep-last", "Last"),
    ("keep-hourly", "Hourly"),
    ("keep-daily", "Daily"),
    ("keep-weekly", "Weekly"),
    ("keep-monthly", "Monthly"),
    ("keep-yearly", "Yearly"),
];

/// The page.
#[derive(Serialize)]
pub(super) struct SourceView {
    r: usize,
    source: String,
    name: String,
    count: usize,
    /// The number of the first backup of this page, from 0; the newest is 0.
    first: usize,
    /// The newest first.
    backups: Vec<SharedBackup>,
    /// Bytes of content and newly stored bytes of each backup, the oldest first; of all backups.
    sizes: Vec<(u64, u64)>,
    #[serde(skip)]
    days: BTreeMap<jiff::civil::Date, BackupDay>,
}

/// Returns the number of the source `s`.
fn found(asked: &Asked<'_>, listing: &BackupRows) -> Result<u32> {
    let key = asked.fields.text("s").unwrap_or_default();
    let number = listing.source_number(key);
    number.ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no such source"))
}

/// Computes the page.
///
/// # Errors
/// [`ErrorKind::NotFound`]; those of the listing.
pub(super) fn view(asked: &Asked<'_>) -> Result<SourceView> {
    let listing = asked.place()?.listing()?;
    let number = found(asked, &listing)?;
    let source = source_at(&listing, number);
    let r = asked.place_number();
    let first = asked.fields.number("first").unwrap_or(0) as usize;
    let all = listing.of_source(number);
    let newest = all.clone().rev().skip(first).take(PAGE_ROWS);
    Ok(SourceView {
        r,
        source: source.0,
        name: source.1,
        count: all.clone().count(),
        first,
        backups: asked.place()?.summaries(&listing, newest),
        sizes: all.map(|row| (row.bytes, row.stored_bytes)).collect(),
        days: days(r, number, &listing),
    })
}

/// The key and the name of a source.
fn source_at(listing: &BackupRows, number: u32) -> (String, String) {
    let source = listing.source_at(number);
    source.map_or_else(Default::default, |source| {
        (source.key.clone(), source.name())
    })
}

fn days(r: usize, number: u32, listing: &BackupRows) -> BTreeMap<jiff::civil::Date, BackupDay> {
    let zone = TimeZone::system();
    let mut days = BTreeMap::new();
    for row in listing.of_source(number) {
        let begun = Timestamp::from_second(row.seconds).unwrap_or_default();
        let date = begun.to_zoned(zone.clone()).date();
        let day = days.entry(date).or_insert_with(|| BackupDay {
            count: 0,
            has_trouble: false,
            address: String::new(),
        });
        day.count += 1;
        day.has_trouble |= !row.is_complete() || listing.loss(row.id()).is_some();
        day.address = of_place("backup", r, &[("b", row.id().as_bytes())]);
    }
    days
}

/// Draws the page.
pub(super) fn html(view: &SourceView) -> Markup {
    let rows = html! { @for backup in &view.backups { (row(view.r, backup)) } };
    let heads = [
        "Backup",
        "State",
        "Files",
        "Size",
        "Newly stored",
        "Seconds",
    ];
    let caption = format!("Backups, the newest first ({} in all)", view.count);
    layout::page(
        &view.name,
        &[],
        &html! {
            (calendar::year(&view.days, Zoned::now().date()))
            (chart::sizes("Sizes", &view.sizes))
            (retention_form(view.r, &view.source, &[]))
            (layout::table(&caption, &heads, &rows))
            (pager(view))
        },
    )
}

fn row(r: usize, backup: &BackupSummary) -> Markup {
    html! {
        tr {
            th scope="row" {
                a href=(of_place("backup", r, &[("b", backup.id.as_bytes())])) { (time(&backup.time)) }
                br; code { (backup.id) }
            }
            td { (state(backup)) }
            td.number { (fullbore_format::text::count(backup.files)) }
            td.number { (size(backup.bytes)) }
            td.number { (size(backup.stored_bytes)) }
            td.number { (format!("{:.1}", backup.seconds)) }
        }
    }
}

/// What is to say about a backup: whether it is complete, pinned, tagged or damaged.
pub(super) fn state(backup: &BackupSummary) -> Markup {
    html! {
        @if let Some(lost) = backup.lost_files { span.trouble { "damaged: " (lost) " files lost" } }
        @if backup.complete { span.good { "complete" } }
        @else { span.trouble { "not everything was read" } }
        @if backup.pinned { span.tag { "pinned" } }
        @for (tag, value) in &backup.tags {
            span.tag { (fullbore_format::text::shown(tag)) @if !value.is_empty() { "=" (fullbore_format::text::shown(value)) } }
        }
    }
}

fn pager(view: &SourceView) -> Markup {
    let at = |first: usize| {
        let first = first.to_string();
        let fields = [("s", view.source.as_bytes()), ("first", first.as_bytes())];
        of_place("source", view.r, &fields)
    };
    html! {
        p.pager {
            @if view.first > 0 { a href=(at(view.first.saturating_sub(PAGE_ROWS))) { "Newer backups" } }
            " "
            @if view.first + PAGE_ROWS < view.count { a href=(at(view.first + PAGE_ROWS)) { "Older backups" } }
        }
    }
}

/// What `fullbore forget` would keep.
#[derive(Serialize)]
pub(super) struct RetentionView {
    r: usize,
    source: String,
    name: String,
    rules: Vec<(&'static str, String)>,
    command: String,
    kept: usize,
    forgotten: usize,
    forgotten_bytes: u64,
    /// The newest lines of `fullbore forget -n --json`, the newest first.
    backups: VecDeque<Value>,
}

/// Asks `fullbore forget` what rules keep.
///
/// # Errors
/// [`ErrorKind::Usage`] without a rule; those of the command.
pub(super) fn retention(asked: &Asked<'_>) -> Result<RetentionView> {
    let place = asked.place()?;
    let listing = place.listing()?;
    let number = found(asked, &listing)?;
    let rules = RULES.iter().filter_map(|(option, _)| {
        let count = asked.fields.number(option)?;
        Some((*option, u32::try_from(count).ok()?.to_string()))
    });
    let rules: Vec<_> = rules.collect();
    if rules.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "no rule was given"));
    }
    let mut words: Vec<OsString> = vec!["forget".into(), "--dry-run".into(), "--json".into()];
    words.extend(
        rules
            .iter()
            .map(|(rule, count)| format!("--{rule}={count}").into()),
    );
    words.extend(place.shown.options.iter().cloned());
    words.extend(["--".into(), place.shown.location.clone()]);
    let (source, name) = source_at(&listing, number);
    let mut view = RetentionView {
        r: asked.place_number(),
        source,
        name,
        command: command(place, &rules),
        rules,
        kept: 0,
        forgotten: 0,
        forgotten_bytes: 0,
        backups: VecDeque::new(),
    };
    ask_each(&words, &[0, 4], |line| {
        let id = line["id"].as_str().unwrap_or_default();
        if listing.row(id).is_some_and(|row| row.source == number) {
            view.add(line);
        }
    })?;
    Ok(view)
}

impl RetentionView {
    /// Adds a line; the oldest come first.
    fn add(&mut self, line: Value) {
        if line["forgotten"] == true {
            let bytes = line["bytes"].as_u64().unwrap_or(0);
            self.forgotten += 1;
            self.forgotten_bytes = self.forgotten_bytes.saturating_add(bytes);
        } else {
            self.kept += 1;
        }
        self.backups.push_front(line);
        self.backups.truncate(SHOWN_LINES);
    }
}

fn command(place: &Place, rules: &[(&str, String)]) -> String {
    let rules: Vec<_> = rules
        .iter()
        .map(|(rule, count)| format!("--{rule} {count}"))
        .collect();
    format!(
        "fullbore forget {} {}",
        fullbore_repository::select::shell_word(&place.shown.location),
        rules.join(" ")
    )
}

/// Draws what rules keep.
pub(super) fn retention_html(view: &RetentionView) -> Markup {
    let way = [(
        of_place("source", view.r, &[("s", view.source.as_bytes())]),
        view.name.clone(),
    )];
    let rows = html! { @for line in &view.backups { (retention_row(view.r, line)) } };
    layout::page(
        "What rules would keep",
        &way,
        &html! {
            (retention_form(view.r, &view.source, &view.rules))
            p {
                "Kept: " strong { (view.kept) } ". Forgotten: " strong { (view.forgotten) }
                ". Nothing was changed."
            }
            p { "This command forgets them, and does the same for all other sources of the repository:" }
            (layout::command(&view.command))
            (layout::table("Backups, the newest first", &["Backup", "Fate", "Why it stays", "Size"], &rows))
        },
    )
}

fn retention_row(r: usize, line: &Value) -> Markup {
    let text = |key: &str| line[key].as_str().unwrap_or_default();
    let reasons = line["reasons"].as_array().into_iter().flatten();
    let reasons: Vec<_> = reasons.filter_map(Value::as_str).collect();
    html! {
        tr {
            th scope="row" {
                a href=(of_place("backup", r, &[("b", text("id").as_bytes())])) { (time(text("time"))) }
            }
            td {
                @if line["forgotten"] == true { span.trouble { "forgotten" } } @else { span.good { "kept" } }
            }
            td { (reasons.join(", ")) }
            td.number { (size(line["bytes"].as_u64().unwrap_or(0))) }
        }
    }
}

fn retention_form(r: usize, source: &str, rules: &[(&str, String)]) -> Markup {
    let given = |option: &str| {
        let found = rules.iter().find(|(rule, _)| *rule == option);
        found.map_or("", |(_, count)| count.as_str())
    };
    html! {
        form.row action="retention" {
            input type="hidden" name="r" value=(r);
            input type="hidden" name="s" value=(source);
            fieldset {
                legend { "Which backups would rules keep?" }
                @for (option, label) in RULES {
                    label { (label) input type="number" min="0" max="9999" name=(option) value=(given(option)); }
                }
                button { "Show" }
            }
        }
    }
}
