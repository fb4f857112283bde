//! All sources of all repositories, those with trouble first: what `fullbore fleet` prints.

use super::{
    layout::{self, ago, size},
    link::of_place,
};
use crate::asked::Asked;
use fullbore_engine::fleet::{FleetReport, FleetRepository, FleetSource, SourceState};
use fullbore_format::{
    error::Result,
    text::{self, duration::short, source_text},
};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Serialize;

/// Sources of a page.
const PAGE_ROWS: usize = 500;

/// The page.
#[derive(Serialize)]
pub(super) struct FleetView {
    time: String,
    repositories: Vec<FleetPlace>,
    /// Those with trouble first.
    sources: Vec<FleetRow>,
    #[serde(rename = "late_sources")]
    late: usize,
    #[serde(rename = "damaged_sources")]
    damaged: usize,
    #[serde(rename = "warned_sources")]
    warned: usize,
    exit_code: u8,
    /// The number of the first source of the page, from 0.
    #[serde(skip)]
    first: usize,
}

#[derive(Serialize)]
struct FleetPlace {
    r: usize,
    #[serde(flatten)]
    facts: FleetRepository,
    #[serde(skip)]
    has_clusters: bool,
}

/// A source: where its page is, and the line of `fullbore fleet`.
#[derive(Serialize)]
struct FleetRow {
    r: usize,
    s: String,
    #[serde(rename = "source_text")]
    name: String,
    #[serde(flatten)]
    facts: FleetSource,
}

/// Computes the page.
///
/// # Errors
/// None: a repository that cannot be listed is a line.
pub(super) fn view(asked: &Asked<'_>) -> Result<FleetView> {
    let places = &asked.shown.places;
    let looks = places
        .iter()
        .map(|place| (place.given_name(), place.look()));
    let report = FleetReport::of(Timestamp::now(), looks.collect());
    Ok(FleetView {
        late: report.late(),
        damaged: report.count(SourceState::Damaged),
        warned: report.count(SourceState::Warned),
        exit_code: report.exit_code(),
        first: asked.fields.number("first").unwrap_or(0) as usize,
        time: report.time,
        repositories: report
            .repositories
            .into_iter()
            .zip(places)
            .enumerate()
            .map(|(r, (facts, place))| FleetPlace {
                r,
                has_clusters: place.has_clusters(),
                facts,
            })
            .collect(),
        sources: report
            .sources
            .into_iter()
            .map(|facts| FleetRow {
                r: facts.number,
                s: facts.key.clone(),
                name: source_text(&facts.source),
                facts,
            })
            .collect(),
    })
}

/// Draws the page.
pub(super) fn html(view: &FleetView) -> Markup {
    let shown = view.sources.iter().skip(view.first).take(PAGE_ROWS);
    let rows = html! { @for row in shown { (row_html(row)) } };
    let heads = [
        "Source",
        "State",
        "Latest backup",
        "Expected every",
        "Backups",
        "Size",
        "Stored",
        "Verified",
    ];
    let at = |first: usize| of_place("fleet", 0, &[("first", first.to_string().as_bytes())]);
    layout::page(
        "Sources",
        &[],
        &html! {
            p role="status" { (summary(view)) }
            @if view.sources.is_empty() { p { "There are no backups." } }
            @else { (layout::table("Sources, those with trouble first", &heads, &rows)) }
            p.pager {
                @if view.first > 0 { a href=(at(view.first.saturating_sub(PAGE_ROWS))) { "Sources before these" } }
                " "
                @if view.first + PAGE_ROWS < view.sources.len() { a href=(at(view.first + PAGE_ROWS)) { "More sources" } }
            }
            h2 { "Repositories" }
            ul.repositories { @for place in &view.repositories { (repository_html(place)) } }
        },
    )
}

fn summary(view: &FleetView) -> String {
    let counts = [
        (view.damaged, "damaged"),
        (view.late, "late"),
        (view.warned, "with warnings"),
    ];
    let mut parts = vec![text::counted(view.sources.len() as u64, "source")];
    let some = counts.iter().filter(|(count, _)| *count > 0);
    parts.extend(some.map(|(count, what)| format!("{count} {what}")));
    parts.join(", ")
}

/// What is wrong with a source, in words.
fn trouble(facts: &FleetSource) -> Vec<String> {
    let mut trouble = Vec::new();
    if facts.damaged_backups > 0 {
        let backups = text::counted(facts.damaged_backups, "backup");
        trouble.push(format!("{backups} damaged"));
    }
    if let Some(after) = facts.late_after_seconds.filter(|_| facts.late) {
        trouble.push(format!("late for {}", short(facts.age_seconds - after)));
    }
    trouble.extend(facts.warnings.iter().map(|warning| text::shown(warning)));
    trouble
}

fn row_html(row: &FleetRow) -> Markup {
    let facts = &row.facts;
    let trouble = trouble(facts);
    let verified = facts.verified_age_seconds.map(|age| ago(age as i64));
    html! {
        tr {
            th scope="row" {
                a href=(of_place("source", row.r, &[("s", row.s.as_bytes())])) { (row.name) }
            }
            td {
                @if trouble.is_empty() { span.good { "fine" } }
                @for trouble in &trouble { span.trouble { (trouble) } }
            }
            td {
                a href=(of_place("backup", row.r, &[("b", facts.newest.as_bytes())])) { (ago(facts.age_seconds as i64)) }
            }
            td { (facts.expected_seconds.map_or_else(String::new, short)) }
            td.number { (facts.backups) }
            td.number { (size(facts.bytes)) }
            td.number { (size(facts.stored_bytes)) }
            td { (verified.as_deref().unwrap_or("never")) }
        }
    }
}

fn repository_html(place: &FleetPlace) -> Markup {
    let facts = &place.facts;
    let unreadable = facts.unreadable.len() as u64;
    html! {
        li {
            strong { (text::shown(&facts.repository)) }
            @if let Some(error) = &facts.error { p.trouble { (text::shown(error)) } }
            @if unreadable > 0 { p.trouble { (text::counted(unreadable, "backup")) " cannot be read" } }
            " " (text::counted(facts.backups, "backup")) ", " (size(facts.stored_bytes)) " · "
            a href=(of_place("runs", place.r, &[])) { "Runs" } " · "
            a href=(of_place("checks", place.r, &[])) { "Checks and drills" }
            @if place.has_clusters {
                " · " a href=(of_place("postgres", place.r, &[])) { "PostgreSQL" }
            }
        }
    }
}
