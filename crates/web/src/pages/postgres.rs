//! Clusters: their timelines and WAL, as `fullbore wal list` tells them, and the command that restores to a point in time.

use super::{
    layout::{self, facts, size, time},
    timelines,
};
use crate::{ask::ask, asked::Asked, catalog::SharedBackup, place::Place};
use fullbore_engine::fleet::BackupRow;
use fullbore_format::{error::Result, text};
use fullbore_repository::select::shell_word;
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Serialize;
use serde_json::Value;
use std::ffi::{OsStr, OsString};

/// Systems of a repository.
const MOST_LINES: usize = 10_000;
/// Backups that are shown of a system.
const SHOWN_BACKUPS: usize = 50;
/// Gaps and timelines that are drawn of a system.
const MOST_ROWS: usize = 200;

/// The page.
#[derive(Serialize)]
pub(super) struct PostgresView {
    r: usize,
    clusters: Vec<Cluster>,
}

#[derive(Serialize)]
struct Cluster {
    system: String,
    /// The backups, the newest first; 50 of them.
    backups: Vec<SharedBackup>,
    backup_count: usize,
    /// The line of `fullbore wal list --json`; absent without archived WAL.
    wal: Option<Value>,
    /// The point that was asked for, and how to get there.
    point: Option<Point>,
}

#[derive(Serialize)]
struct Point {
    time: String,
    /// The last backup that ended before it.
    backup: Option<String>,
    command: Option<String>,
}

/// Asks `fullbore wal list`.
///
/// # Errors
/// Those of the command.
pub(super) fn view(asked: &Asked<'_>) -> Result<PostgresView> {
    let place = asked.place()?;
    let listing = place.listing()?;
    let mut words: Vec<OsString> = vec!["wal".into(), "list".into(), "--json".into()];
    words.extend(place.shown.options.iter().cloned());
    words.extend(["--".into(), place.shown.location.clone()]);
    let lines = ask(&words, MOST_LINES, &[0, 1, 4])?.lines;
    let mut systems: Vec<String> = Vec::new();
    let of_backups = listing.sources().filter_map(|source| source.system.clone());
    let of_wal = lines.iter().filter_map(|line| line["system"].as_str());
    for system in of_backups.chain(of_wal.map(str::to_owned)) {
        if !systems.contains(&system) {
            systems.push(system);
        }
    }
    let clusters = systems.into_iter().map(|system| {
        let own = listing.all().iter().rev();
        let own = own.filter(|row| listing.source_of(row).system.as_ref() == Some(&system));
        let own: Vec<BackupRow> = own.copied().collect();
        Cluster {
            wal: lines
                .iter()
                .find(|line| line["system"] == system.as_str())
                .cloned(),
            point: point(
                asked,
                place,
                &system,
                &|rows| place.summaries(&listing, rows.iter()),
                &own,
            ),
            backup_count: own.len(),
            backups: place.summaries(&listing, own.iter().take(SHOWN_BACKUPS)),
            system,
        }
    });
    Ok(PostgresView {
        r: asked.place_number(),
        clusters: clusters.collect(),
    })
}

/// Finds the way to the time `t` of the system `system`. The time of a form has no zone: it is that of this host.
fn point(
    asked: &Asked<'_>,
    place: &Place,
    system: &str,
    summaries: &dyn Fn(&[BackupRow]) -> Vec<SharedBackup>,
    newest_first: &[BackupRow],
) -> Option<Point> {
    let wanted = asked.fields.text("t")?;
    if asked.fields.text("system") != Some(system) {
        return None;
    }
    let time = parse_time(wanted)?;
    let ended = |backup: &&SharedBackup| {
        backup
            .finished
            .parse::<Timestamp>()
            .is_ok_and(|end| end <= time)
    };
    // A backup that ended before it began before it, and most of those that began have ended.
    let begun = newest_first.partition_point(|row| row.seconds > time.as_second());
    let mut candidates = newest_first[begun..].chunks(SHOWN_BACKUPS);
    let backup = candidates.find_map(|rows| {
        let summaries = summaries(rows);
        summaries.iter().find(ended).map(|backup| backup.id.clone())
    });
    let command = backup.as_ref().map(|id| {
        format!(
            "fullbore restore {} --to {} --target-time {}",
            shell_word(&place.backup_word(id)),
            shell_word(OsStr::new("/var/lib/postgresql/restored")),
            shell_word(OsStr::new(&time.to_string())),
        )
    });
    Some(Point {
        time: time.to_string(),
        backup,
        command,
    })
}

fn parse_time(text: &str) -> Option<Timestamp> {
    let of_zone = text.parse::<Timestamp>().ok();
    of_zone.or_else(|| {
        let civil: jiff::civil::DateTime = text.parse().ok()?;
        Some(
            civil
                .to_zoned(jiff::tz::TimeZone::system())
                .ok()?
                .timestamp(),
        )
    })
}

/// Draws the page.
pub(super) fn html(view: &PostgresView) -> Markup {
    layout::page(
        "PostgreSQL",
        &[],
        &html! {
            @if view.clusters.is_empty() { p { "There are no backups of clusters, and no WAL." } }
            @for cluster in &view.clusters { (cluster_html(view.r, cluster)) }
        },
    )
}

fn cluster_html(r: usize, cluster: &Cluster) -> Markup {
    html! {
        section {
            h2 { "System " (text::shown(&cluster.system)) }
            @match &cluster.wal {
                Some(wal) => (wal_html(wal)),
                None => p.trouble { "No WAL is archived here: each backup restores to its own end." },
            }
            h3 { "Restore to a point in time" }
            form.row action="postgres" {
                input type="hidden" name="r" value=(r);
                input type="hidden" name="system" value=(cluster.system);
                label { "Time, in the zone of this host" input type="datetime-local" step="1" name="t" required; }
                button { "Show the command" }
            }
            @if let Some(point) = &cluster.point { (point_html(point)) }
            h3 { "Backups" }
            p { (cluster.backup_count) " in all, the newest first" }
            ul { @for backup in &cluster.backups {
                li {
                    a href=(super::link::of_place("backup", r, &[("b", backup.id.as_bytes())])) { (backup.id) }
                    " ended " (time(&backup.finished))
                }
            } }
        }
    }
}

fn point_html(point: &Point) -> Markup {
    html! {
        @match &point.command {
            Some(command) => {
                p role="status" { "To " (time(&point.time)) ", from backup " (point.backup.as_deref().unwrap_or_default()) ":" }
                (layout::command(command))
                p { "The command checks that no WAL is missing on the way before it writes anything. Put your own directory behind --to." }
            }
            None => p.trouble role="status" { "No backup ended before " (time(&point.time)) "." },
        }
    }
}

fn wal_html(wal: &Value) -> Markup {
    let number = |key: &str| wal[key].as_u64().unwrap_or(0);
    let list = |key: &str| wal[key].as_array().cloned().unwrap_or_default();
    let timelines = list("timelines");
    let gaps = list("gaps");
    let rows =
        html! { @for timeline in timelines.iter().take(MOST_ROWS) { (timeline_html(timeline)) } };
    let heads = [
        "Timeline",
        "From",
        "First segment",
        "Last segment",
        "Segments",
    ];
    html! {
        (facts(&[
            ("Segments", text::count(number("segments"))),
            ("Size", size(number("stored_bytes"))),
            ("Gaps", text::count(gaps.len() as u64)),
        ]))
        (timelines::picture(wal, MOST_ROWS))
        (layout::table("Timelines", &heads, &rows))
        @for gap in gaps.iter().take(MOST_ROWS) {
            p.trouble { "Missing: " (words(&gap["first_segment"])) " to " (words(&gap["last_segment"])) }
        }
        @for cut in list("cut_off").iter().take(MOST_ROWS) {
            p.trouble { "Backup " (words(&cut["id"])) " cannot reach the end: WAL is missing on its way." }
        }
    }
}

fn timeline_html(timeline: &Value) -> Markup {
    html! {
        tr {
            th scope="row" { (words(&timeline["timeline"])) }
            td { @if timeline["parent"].is_null() { "the beginning" } @else { (words(&timeline["parent"])) " at " (words(&timeline["switch_lsn"])) } }
            td { code { (words(&timeline["first_segment"])) } }
            td { code { (words(&timeline["last_segment"])) } }
            td.number { (words(&timeline["segments"])) }
        }
    }
}

fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text::shown(text),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
