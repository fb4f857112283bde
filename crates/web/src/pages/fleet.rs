//! All sources of all repositories, those with trouble first.

use super::{
    layout::{self, ago, size},
    link::of_place,
};
use crate::{
    asked::Asked,
    catalog::{BackupSummary, Listing, SourceBackups},
};
use fullbore_format::error::Result;
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Serialize;

/// A source without backups of a known rhythm is late after this many seconds.
const LATE: i64 = 36 * 3600;
/// A source is late after this many times its usual pause.
const PAUSES: i64 = 2;
/// Pauses from which the usual one is known.
const KNOWN_PAUSES: usize = 3;

/// The page.
#[derive(Serialize)]
pub(super) struct FleetView {
    repositories: Vec<FleetRepository>,
    /// Those with trouble first.
    sources: Vec<FleetRow>,
}

#[derive(Serialize)]
struct FleetRepository {
    r: usize,
    location: String,
    backups: usize,
    damaged: usize,
    /// Why it cannot be listed.
    error: Option<String>,
    #[serde(skip)]
    has_clusters: bool,
}

/// A source.
#[derive(Serialize)]
struct FleetRow {
    r: usize,
    source: String,
    name: String,
    backups: usize,
    latest: String,
    time: String,
    age_seconds: i64,
    bytes: u64,
    stored_bytes: u64,
    /// Trouble in words; empty if there is none.
    trouble: Vec<String>,
}

/// Computes the page.
///
/// # Errors
/// None: a repository that cannot be listed is a line.
pub(super) fn view(asked: &Asked<'_>) -> Result<FleetView> {
    let mut view = FleetView {
        repositories: Vec::new(),
        sources: Vec::new(),
    };
    for (r, place) in asked.shown.places.iter().enumerate() {
        let listing = place.listing();
        let (listing, error) = match listing {
            Ok(listing) => (listing, None),
            Err(error) => (Default::default(), Some(error.line())),
        };
        view.repositories.push(FleetRepository {
            r,
            location: place.name(),
            backups: listing.backups.len(),
            damaged: listing.damaged.len(),
            error,
            has_clusters: listing.backups.iter().any(|backup| backup.system.is_some()),
        });
        view.sources.extend(rows(r, &listing));
    }
    let trouble = |row: &FleetRow| (row.trouble.is_empty(), -row.age_seconds);
    view.sources.sort_by_key(trouble);
    Ok(view)
}

/// Returns the sources of a repository, judged by its listing alone.
fn rows(r: usize, listing: &Listing) -> Vec<FleetRow> {
    let now = Timestamp::now();
    let sources = listing.sources.iter();
    sources
        .filter_map(|source| row(r, listing, source, now))
        .collect()
}

fn row(r: usize, listing: &Listing, source: &SourceBackups, now: Timestamp) -> Option<FleetRow> {
    let backups = source.backups.iter().map(|at| &*listing.backups[*at]);
    let backups: Vec<&BackupSummary> = backups.collect();
    let latest = backups.last()?;
    let age_seconds = now.as_second() - latest.begun.as_second();
    let mut trouble = Vec::new();
    let late = usual_pause(&backups).map_or(LATE, |pause| pause * PAUSES);
    if age_seconds > late {
        trouble.push("no backup for longer than usual".to_owned());
    }
    if !latest.complete {
        trouble.push("the last backup could not read everything".to_owned());
    }
    let lost = backups.iter().filter(|backup| backup.lost_files.is_some());
    let lost = lost.count();
    if lost > 0 {
        let backups = fullbore_format::text::counted(lost as u64, "backup");
        trouble.push(format!("damage was found in {backups}"));
    }
    let stored = backups.iter().map(|backup| backup.stored_bytes);
    Some(FleetRow {
        r,
        source: source.key.clone(),
        name: source.name.clone(),
        backups: backups.len(),
        latest: latest.id.clone(),
        time: latest.time.clone(),
        age_seconds,
        bytes: latest.bytes,
        stored_bytes: stored.fold(0, u64::saturating_add),
        trouble,
    })
}

/// Returns the median of the last pauses between backups, in seconds; at least one hour.
fn usual_pause(backups: &[&BackupSummary]) -> Option<i64> {
    let times = backups.iter().rev().take(15);
    let times: Vec<_> = times.map(|backup| backup.begun.as_second()).collect();
    let mut pauses: Vec<_> = times.windows(2).map(|pair| pair[0] - pair[1]).collect();
    pauses.sort_unstable();
    let is_known = pauses.len() >= KNOWN_PAUSES;
    is_known.then(|| pauses[pauses.len() / 2].max(3600))
}

/// Draws the page.
pub(super) fn html(view: &FleetView) -> Markup {
    let rows = html! { @for row in &view.sources { (row_html(row)) } };
    let heads = [
        "Source",
        "State",
        "Latest backup",
        "Backups",
        "Size",
        "Stored",
    ];
    layout::page(
        "Sources",
        &[],
        &html! {
            @if view.sources.is_empty() { p { "There are no backups." } }
            @else { (layout::table("Sources, those with trouble first", &heads, &rows)) }
            h2 { "Repositories" }
            ul.repositories { @for place in &view.repositories { (repository_html(place)) } }
        },
    )
}

fn row_html(row: &FleetRow) -> Markup {
    html! {
        tr {
            th scope="row" {
                a href=(of_place("source", row.r, &[("s", row.source.as_bytes())])) { (row.name) }
            }
            td {
                @if row.trouble.is_empty() { span.good { "fine" } }
                @for trouble in &row.trouble { span.trouble { (trouble) } }
            }
            td {
                a href=(of_place("backup", row.r, &[("b", row.latest.as_bytes())])) { (ago(row.age_seconds)) }
            }
            td.number { (row.backups) }
            td.number { (size(row.bytes)) }
            td.number { (size(row.stored_bytes)) }
        }
    }
}

fn repository_html(place: &FleetRepository) -> Markup {
    html! {
        li {
            strong { (place.location) }
            @if let Some(error) = &place.error { p.trouble { (error) } }
            @if place.damaged > 0 { p.trouble { (place.damaged) " backups cannot be read" } }
            " " (place.backups) " backups · "
            a href=(of_place("runs", place.r, &[])) { "Runs" } " · "
            a href=(of_place("checks", place.r, &[])) { "Checks and drills" }
            @if place.has_clusters {
                " · " a href=(of_place("postgres", place.r, &[])) { "PostgreSQL" }
            }
        }
    }
}
