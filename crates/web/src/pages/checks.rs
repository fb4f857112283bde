//! What was verified, and drills: how long restores of clusters took over time.

use super::layout::{self, facts, time};
use crate::{ask::ask, asked::Asked};
use fullbore_engine::drill::record::DrillRecord;
use fullbore_format::{error::Result, text, text::local_time::local_second};
use maud::{Markup, html};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;

/// Drills of a system that are read, the newest.
const MOST_DRILLS: usize = 100;

/// The page.
#[derive(Serialize)]
pub(super) struct ChecksView {
    r: usize,
    location: String,
    /// The result of `fullbore stats --json`.
    stats: Value,
    drills: Vec<SystemDrills>,
    /// Backups with damage that a verification found, and the files that each lost.
    damaged: Vec<(String, u64)>,
}

#[derive(Serialize)]
struct SystemDrills {
    system: String,
    /// The newest first.
    drills: Vec<DrillRecord>,
}

/// Asks `fullbore stats`, and reads the drills.
///
/// # Errors
/// Those of the command and of the storage.
pub(super) fn view(asked: &Asked<'_>) -> Result<ChecksView> {
    let place = asked.place()?;
    let listing = place.listing()?;
    let mut words: Vec<OsString> = vec!["stats".into(), "--json".into()];
    words.extend(place.shown.options.iter().cloned());
    words.extend(["--".into(), place.shown.location.clone()]);
    let lines = ask(&words, 1000, &[0, 1, 4])?.lines;
    let stats = lines.into_iter().find(|line| line["type"] == "result");
    let systems = listing
        .sources()
        .filter_map(|source| source.system.as_ref());
    let systems: std::collections::BTreeSet<_> = systems.collect();
    let mut drills = Vec::new();
    for system in systems {
        let of_system = DrillRecord::latest(&*place.shown.objects, system, MOST_DRILLS)?;
        if !of_system.is_empty() {
            drills.push(SystemDrills {
                system: system.clone(),
                drills: of_system,
            });
        }
    }
    let damaged = listing.losses().iter();
    let damaged = damaged.map(|(id, files)| (id.clone(), *files));
    Ok(ChecksView {
        r: asked.place_number(),
        location: place.name(),
        stats: stats.unwrap_or_default(),
        drills,
        damaged: damaged.collect(),
    })
}

/// Draws the page.
pub(super) fn html(view: &ChecksView) -> Markup {
    let share = view.stats["verified_share"].as_f64().unwrap_or(0.0) * 100.0;
    let last = view.stats["last_verified_time"].as_str();
    layout::page(
        "Checks and drills",
        &[],
        &html! {
            p { (view.location) }
            (facts(&[
                ("Data that was verified", format!("{share:.0} %")),
                ("Last verification of data", last.map_or_else(|| "never".to_owned(), local_second)),
            ]))
            label { "Share of the data that was verified" progress max="100" value=(format!("{share:.0}")) {} }
            @for (id, lost) in view.damaged.iter().take(MOST_DRILLS) {
                p.trouble {
                    a href=(super::link::of_place("backup", view.r, &[("b", id.as_bytes())])) { (id) }
                    " is damaged" @if *lost > 0 { ": " (lost) " files are lost" }
                }
            }
            h2 { "Drills" }
            @if view.drills.is_empty() { p { "No restore of a cluster was tried. " code { "fullbore drill" } " does that." } }
            @for system in &view.drills { (drills_html(system)) }
        },
    )
}

fn drills_html(system: &SystemDrills) -> Markup {
    let most = system.drills.iter().map(DrillRecord::seconds_to_queries);
    let most = most.fold(1e-3, f64::max);
    let rows = html! { @for drill in &system.drills { (drill_row(drill, most)) } };
    let heads = ["Time", "Result", "Until queries", "", "Backup"];
    html! {
        h3 { "System " (text::shown(&system.system)) }
        (layout::table("Drills, the newest first", &heads, &rows))
    }
}

fn drill_row(drill: &DrillRecord, most: f64) -> Markup {
    let seconds = drill.seconds_to_queries();
    html! {
        tr {
            th scope="row" { (time(&drill.time)) }
            td {
                @match &drill.error {
                    None => span.good { "passed" },
                    Some(error) => span.trouble { "failed: " (text::shown(error)) },
                }
            }
            td.number { (format!("{seconds:.1} s")) }
            td { meter min="0" max="100" value=(format!("{:.0}", seconds / most * 100.0)) aria-hidden="true" {} }
            td { code { (text::shown(&drill.id)) } }
        }
    }
}
