//! A source: its backups as a calendar, a chart and a table, and what rules of retention would keep.

use super::{
    calendar::{self, BackupDay},
    chart,
    layout::{self, size, time},
    link::of_place,
};
use crate::{
    ask::ask,
    asked::Asked,
    catalog::{BackupSummary, Listing, SharedBackup, SourceBackups},
    place::Place,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use jiff::{Zoned, tz::TimeZone};
use maud::{Markup, html};
use serde::Serialize;
use serde_json::Value;
use std::{collections::BTreeMap, ffi::OsString};

/// Backups of a page.
const PAGE_ROWS: usize = 100;
/// Lines of `fullbore forget`.
const MOST_LINES: usize = 1 << 20;
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

fn found<'a>(asked: &Asked<'_>, listing: &'a Listing) -> Result<&'a SourceBackups> {
    let key = asked.fields.text("s").unwrap_or_default();
    let source = listing.source(key);
    source.ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no such source"))
}

/// Computes the page.
///
/// # Errors
/// [`ErrorKind::NotFound`]; those of the listing.
pub(super) fn view(asked: &Asked<'_>) -> Result<SourceView> {
    let listing = asked.place()?.listing()?;
    let source = found(asked, &listing)?;
    let r = asked.place_number();
    let first = asked.fields.number("first").unwrap_or(0) as usize;
    let newest = source.backups.iter().rev().skip(first).take(PAGE_ROWS);
    let all = source.backups.iter().map(|at| &listing.backups[*at]);
    Ok(SourceView {
        r,
        source: source.key.clone(),
        name: source.name.clone(),
        count: source.backups.len(),
        first,
        backups: newest.map(|at| listing.backups[*at].clone()).collect(),
        sizes: all
            .clone()
            .map(|backup| (backup.bytes, backup.stored_bytes))
            .collect(),
        days: days(r, all),
    })
}

fn days<'a>(
    r: usize,
    backups: impl Iterator<Item = &'a SharedBackup>,
) -> BTreeMap<jiff::civil::Date, BackupDay> {
    let mut days = BTreeMap::new();
    for backup in backups {
        let date = backup.begun.to_zoned(TimeZone::system()).date();
        let day = days.entry(date).or_insert_with(|| BackupDay {
            count: 0,
            has_trouble: false,
            address: String::new(),
        });
        day.count += 1;
        day.has_trouble |= !backup.complete || backup.lost_files.is_some();
        day.address = of_place("backup", r, &[("b", backup.id.as_bytes())]);
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
    /// Lines of `fullbore forget -n --json`, the newest first.
    backups: Vec<Value>,
}

/// Asks `fullbore forget` what rules keep.
///
/// # Errors
/// [`ErrorKind::Usage`] without a rule; those of the command.
pub(super) fn retention(asked: &Asked<'_>) -> Result<RetentionView> {
    let place = asked.place()?;
    let listing = place.listing()?;
    let source = found(asked, &listing)?;
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
    let answer = ask(&words, MOST_LINES, &[0, 4])?;
    let mut backups = answer.lines;
    backups.retain(|line| line["source_text"] == source.name.as_str());
    backups.reverse();
    let goes = |line: &&Value| line["forgotten"] == true;
    let forgotten = backups.iter().filter(goes).count();
    let bytes = backups
        .iter()
        .filter(goes)
        .filter_map(|line| line["bytes"].as_u64());
    Ok(RetentionView {
        r: asked.place_number(),
        source: source.key.clone(),
        name: source.name.clone(),
        command: command(place, &rules),
        rules,
        kept: backups.len() - forgotten,
        forgotten,
        forgotten_bytes: bytes.fold(0, u64::saturating_add),
        backups,
    })
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
    let shown = view.backups.iter().take(1000);
    let rows = html! { @for line in shown { (retention_row(view.r, line)) } };
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
