//! The differences of two backups, as `fullbore diff` tells them.

use super::{
    layout::{self, size},
    link::{of_path, of_place},
};
use crate::{ask::ask, asked::Asked};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::is_backup_id,
    root::EntryName,
    text,
};
use maud::{Markup, html};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;

/// Differences that are shown.
const MOST_LINES: usize = 2000;
/// Backups to choose from.
const CHOICES: usize = 200;

/// The page.
#[derive(Serialize)]
pub(super) struct DiffView {
    r: usize,
    a: String,
    b: String,
    /// Lines of `fullbore diff --json`.
    differences: Vec<Value>,
    /// Its result; absent if there are more differences.
    result: Option<Value>,
    #[serde(skip)]
    choices: Vec<String>,
}

/// Asks `fullbore diff`.
///
/// # Errors
/// [`ErrorKind::NotFound`] for an unknown backup; those of the command.
pub(super) fn view(asked: &Asked<'_>) -> Result<DiffView> {
    let place = asked.place()?;
    let listing = place.listing()?;
    let [a, b] = ["a", "b"].map(|name| asked.fields.text(name).unwrap_or_default());
    for id in [a, b] {
        if !is_backup_id(id) || listing.row(id).is_none() {
            return Err(Error::new(ErrorKind::NotFound, "there is no such backup"));
        }
    }
    let mut words: Vec<OsString> = vec!["diff".into(), "--json".into()];
    words.extend(place.shown.options.iter().cloned());
    words.extend([
        "--".into(),
        place.shown.location.clone(),
        a.into(),
        b.into(),
    ]);
    let answer = ask(&words, MOST_LINES, &[0, 1])?;
    let (results, differences): (Vec<_>, Vec<_>) = answer
        .lines
        .into_iter()
        .partition(|line| line["type"] == "result");
    let own = listing.row(b).map(|row| listing.of_source(row.source));
    let newest = own.into_iter().flatten().rev().take(CHOICES);
    Ok(DiffView {
        r: asked.place_number(),
        a: a.to_owned(),
        b: b.to_owned(),
        differences,
        result: results.into_iter().next(),
        choices: newest.map(|row| row.id().to_owned()).collect(),
    })
}

/// Draws the page.
pub(super) fn html(view: &DiffView) -> Markup {
    let way = [(
        of_place("backup", view.r, &[("b", view.b.as_bytes())]),
        format!("Backup {}", view.b),
    )];
    let rows = html! { @for line in &view.differences { (row(view, line)) } };
    layout::page(
        "Differences",
        &way,
        &html! {
            form.row action="diff" {
                input type="hidden" name="r" value=(view.r);
                (choice(view, "From", "a", &view.a))
                (choice(view, "To", "b", &view.b))
                button { "Compare" }
            }
            @match &view.result {
                Some(result) => p role="status" { (summary(result)) },
                None => p.trouble { "There are more differences; only some are shown." },
            }
            @if view.differences.is_empty() { p { "The backups do not differ." } }
            @else { (layout::table("Differences", &["Path", "Change", "Differing", "What"], &rows)) }
        },
    )
}

fn choice(view: &DiffView, label: &str, name: &str, chosen: &str) -> Markup {
    let is_listed = view.choices.iter().any(|id| id == chosen);
    html! {
        label { (label)
            select name=(name) {
                @if !is_listed { option value=(chosen) selected { (chosen) } }
                @for id in &view.choices { option value=(id) selected[id == chosen] { (id) } }
            }
        }
    }
}

fn summary(result: &Value) -> String {
    let count = |kind: &str| {
        let number = |key: &str| result[key].as_u64().unwrap_or(0);
        let bytes = size(number(&format!("{kind}_bytes")));
        format!("{} {kind} ({bytes})", text::count(number(kind)))
    };
    ["added", "removed", "changed"].map(count).join(", ")
}

fn row(view: &DiffView, line: &Value) -> Markup {
    let change = line["change"].as_str().unwrap_or_default();
    let path: EntryName = serde_json::from_value(line["path"].clone()).unwrap_or_default();
    let backup = if change == "removed" {
        &view.a
    } else {
        &view.b
    };
    let page = if line["kind"] == "directory" {
        "backup"
    } else {
        "file"
    };
    let what = line["properties"].as_array().into_iter().flatten();
    let what: Vec<_> = what.filter_map(Value::as_str).collect();
    html! {
        tr {
            th scope="row" {
                a href=(of_path(page, view.r, backup, &path.0)) {
                    @if path.0.is_empty() { "." } @else { (text::name(&path.0)) }
                }
            }
            td { (change) }
            td.number { (size(line["differing_bytes"].as_u64().unwrap_or(0))) }
            td { (what.join(", ")) }
        }
    }
}
