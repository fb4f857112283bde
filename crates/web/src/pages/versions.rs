//! The versions of a path in all backups of its source, as `fullbore find` tells them.

use super::{
    layout::{self, size},
    link::{of_path, of_place},
};
use crate::{ask::ask, asked::Asked};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::EntryName,
    text,
};
use fullbore_tree::patterns::escape_name;
use maud::{Markup, html};
use serde::Serialize;
use serde_json::Value;
use std::{ffi::OsString, os::unix::ffi::OsStringExt};

/// Versions of a path.
const MOST_LINES: usize = 10_000;

/// The page.
#[derive(Serialize)]
pub(super) struct VersionsView {
    r: usize,
    backup: String,
    path: EntryName,
    /// Lines of `fullbore find --json`, the newest first.
    versions: Vec<Value>,
    is_whole: bool,
}

/// Asks `fullbore find`.
///
/// # Errors
/// Those of the command.
pub(super) fn view(asked: &Asked<'_>) -> Result<VersionsView> {
    let place = asked.place()?;
    let listing = place.listing()?;
    let path = asked.path()?;
    let none = || Error::new(ErrorKind::NotFound, "there is no such backup");
    let row = listing.row(asked.backup()).ok_or_else(none)?;
    let source = listing.source_of(row);
    let source_name = source.name();
    let mut words: Vec<OsString> = vec!["find".into(), "--json".into()];
    words.push(format!("--host={}", source.info.host).into());
    for path in &source.info.paths {
        words.push(OsString::from_vec([b"--path=", &path.0[..]].concat()));
    }
    words.extend(place.shown.options.iter().cloned());
    let pattern = [b"/", &escape_name(&path)[..]].concat();
    words.extend([
        "--".into(),
        place.shown.location.clone(),
        OsString::from_vec(pattern),
    ]);
    let answer = ask(&words, MOST_LINES, &[0, 1, 4])?;
    let mut versions = answer.lines;
    // The command reads a pattern also as a path of the host.
    let own = serde_json::to_value(EntryName(path.clone())).unwrap_or_default();
    versions.retain(|line| line["source_text"] == source_name.as_str() && line["path"] == own);
    versions.reverse();
    Ok(VersionsView {
        r: asked.place_number(),
        backup: asked.backup().to_owned(),
        path: EntryName(path),
        versions,
        is_whole: answer.is_whole,
    })
}

/// Draws the page.
pub(super) fn html(view: &VersionsView) -> Markup {
    let way = [(
        of_path("backup", view.r, &view.backup, b""),
        format!("Backup {}", view.backup),
    )];
    let rows = html! { @for version in &view.versions { (row(view, version)) } };
    let heads = ["Changed", "Size", "First backup", "Last backup", "In", ""];
    layout::page(
        &format!("Versions of {}", text::name(&view.path.0)),
        &way,
        &html! {
            @if !view.is_whole { p.trouble { "There are more versions; only some are shown." } }
            (layout::table("Versions, the newest first", &heads, &rows))
        },
    )
}

fn row(view: &VersionsView, version: &Value) -> Markup {
    let text = |key: &str| version[key].as_str().unwrap_or_default();
    let page = |page: &str| of_path(page, view.r, text("last_id"), &view.path.0);
    let backup = |id: &str| of_place("backup", view.r, &[("b", id.as_bytes())]);
    html! {
        tr {
            th scope="row" { a href=(page("file")) { (layout::time(text("mtime"))) } }
            td.number { (size(version["size"].as_u64().unwrap_or(0))) }
            td { a href=(backup(text("first_id"))) { (text("first_id")) } }
            td { a href=(backup(text("last_id"))) { (text("last_id")) } }
            td.number { (version["backups"].as_u64().unwrap_or(0)) }
            td { @if version["kind"] == "file" { a download href=(page("get")) { "Download" } } }
        }
    }
}
