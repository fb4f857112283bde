//! The runs that made the backups: how long they took, and what they waited for.

use super::{
    days,
    layout::{self, size, time},
    link::of_place,
    source::state,
};
use crate::{asked::Asked, catalog::SharedBackup};
use fullbore_format::{error::Result, text};
use maud::{Markup, html};
use serde::Serialize;
use std::collections::BTreeMap;

/// Runs of a page.
const PAGE_ROWS: usize = 100;

/// The page.
#[derive(Serialize)]
pub(super) struct RunsView {
    r: usize,
    location: String,
    count: usize,
    first: usize,
    /// The newest first.
    runs: Vec<RunRow>,
    /// The first backups that cannot be read, and why.
    damaged: Vec<(String, String)>,
}

#[derive(Serialize)]
struct RunRow {
    source: String,
    #[serde(flatten)]
    backup: SharedBackup,
    bytes_per_second: f64,
}

/// Computes the page.
///
/// # Errors
/// Those of the listing.
pub(super) fn view(asked: &Asked<'_>) -> Result<RunsView> {
    let place = asked.place()?;
    let listing = place.listing()?;
    let first = asked.fields.number("first").unwrap_or(0) as usize;
    let newest = listing.all().iter().rev().skip(first).take(PAGE_ROWS);
    let name_of = |id: &str| {
        let row = listing.row(id);
        row.map_or_else(String::new, |row| listing.source_of(row).name())
    };
    Ok(RunsView {
        r: asked.place_number(),
        location: place.name(),
        count: listing.all().len(),
        first,
        runs: place
            .summaries(&listing, newest)
            .into_iter()
            .map(|backup| RunRow {
                source: name_of(&backup.id),
                bytes_per_second: backup.bytes as f64 / backup.seconds.max(1e-3),
                backup,
            })
            .collect(),
        damaged: listing.errors.clone(),
    })
}

/// Draws the page.
pub(super) fn html(view: &RunsView) -> Markup {
    let rows = html! { @for run in &view.runs { (row(view.r, run)) } };
    let heads = [
        "Backup", "Source", "State", "Seconds", "Speed", "Limit", "Busy",
    ];
    let caption = format!("Runs, the newest first ({} in all)", view.count);
    let at = |first: usize| of_place("runs", view.r, &[("first", first.to_string().as_bytes())]);
    layout::page(
        "Runs",
        &[],
        &html! {
            p { (view.location) }
            @for (id, error) in &view.damaged { p.trouble { (id) ": " (text::shown(error)) } }
            (days::picture(view.r, view.runs.iter().map(|run| (&run.backup, run.source.as_str()))))
            (layout::table(&caption, &heads, &rows))
            p.pager {
                @if view.first > 0 { a href=(at(view.first.saturating_sub(PAGE_ROWS))) { "Newer runs" } }
                " "
                @if view.first + PAGE_ROWS < view.count { a href=(at(view.first + PAGE_ROWS)) { "Older runs" } }
            }
        },
    )
}

fn row(r: usize, run: &RunRow) -> Markup {
    let backup = &run.backup;
    html! {
        tr {
            th scope="row" {
                a href=(of_place("backup", r, &[("b", backup.id.as_bytes())])) { (time(&backup.time)) }
            }
            td { (run.source) }
            td { (state(backup)) }
            td.number { (format!("{:.1}", backup.seconds)) }
            td.number { (size(run.bytes_per_second as u64)) "/s" }
            td { (text::shown(&backup.limit)) }
            td { (busy(&backup.shares)) }
        }
    }
}

/// The share of the time in which each of the three was busy, such as `source 12 %`.
fn busy(shares: &BTreeMap<String, [f64; 3]>) -> String {
    let one = |(name, share): (&String, &[f64; 3])| {
        format!("{} {:.0} %", text::shown(name), share[0] * 100.0)
    };
    let all: Vec<_> = shares.iter().map(one).collect();
    all.join(", ")
}
