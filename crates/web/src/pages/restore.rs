//! A restore: its plan, its command, and its run if the server may restore.

use super::{
    layout::{self, facts, size},
    link::of_path,
};
use crate::{ask::ask, asked::Asked, http::response::Response, restores::RestoreState};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::EntryName,
    text,
};
use fullbore_repository::select::shell_word;
use maud::{Markup, html};
use serde::Serialize;
use serde_json::Value;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStringExt,
    path::Path,
};

/// The page.
#[derive(Serialize)]
pub(super) struct RestoreView {
    r: usize,
    backup: String,
    path: EntryName,
    /// The line of `fullbore restore --plan --json`.
    plan: Value,
    command: String,
    /// Whether the server restores.
    allowed: bool,
}

/// The words that choose a path of the backup.
fn path_words(path: &[u8]) -> Option<OsString> {
    (!path.is_empty()).then(|| OsString::from_vec([b"./", path].concat()))
}

/// Asks `fullbore restore` for its plan.
///
/// # Errors
/// Those of the command.
pub(super) fn view(asked: &Asked<'_>) -> Result<RestoreView> {
    let place = asked.place()?;
    // An unknown backup ends here.
    asked.archive()?;
    let path = asked.path()?;
    let from = place.backup_word(asked.backup());
    let mut words: Vec<OsString> = vec!["restore".into(), "--plan".into(), "--json".into()];
    words.extend(place.shown.options.iter().cloned());
    words.extend(["--".into(), from.clone()]);
    words.extend(path_words(&path));
    let mut lines = ask(&words, 1000, &[0, 4])?.lines;
    let shown_path = path_words(&path).map(|path| format!(" {}", shell_word(&path)));
    Ok(RestoreView {
        r: asked.place_number(),
        backup: asked.backup().to_owned(),
        command: format!(
            "fullbore restore {} --to DIR{}",
            shell_word(&from),
            shown_path.unwrap_or_default()
        ),
        path: EntryName(path),
        plan: lines.pop().unwrap_or_default(),
        allowed: asked.shown.restores.is_allowed(),
    })
}

/// Begins a restore into the directory `to`.
///
/// # Errors
/// [`ErrorKind::Permission`] if that is not allowed; [`ErrorKind::Usage`] for a directory that is not absolute.
pub(super) fn run(asked: &Asked<'_>, as_json: bool) -> Result<Response> {
    let restores = &asked.shown.restores;
    let place = asked.place()?;
    let to = asked.fields.text("to").unwrap_or_default();
    if restores.is_allowed() && !Path::new(to).is_absolute() {
        let error = Error::new(ErrorKind::Usage, "the target is not an absolute path");
        return Err(error.hint("name a new or empty directory of the host of this server"));
    }
    let mut words: Vec<OsString> = vec!["restore".into(), "--json".into()];
    words.extend(place.shown.options.iter().cloned());
    words.push(format!("--to={to}").into());
    if restores.is_allowed() {
        asked.archive()?;
    }
    words.extend(["--".into(), place.backup_word(asked.backup())]);
    words.extend(path_words(&asked.path()?));
    restores.begin(&words, asked.backup(), to)?;
    Ok(match as_json {
        true => Response::json(&restores.state()),
        false => Response::see("restore-run".to_owned()),
    })
}

/// Draws the plan.
pub(super) fn html(view: &RestoreView) -> Markup {
    let way = [(
        of_path("backup", view.r, &view.backup, b""),
        format!("Backup {}", view.backup),
    )];
    let title = match &view.path.0[..] {
        b"" => "Restore everything".to_owned(),
        path => format!("Restore {}", text::name(path)),
    };
    layout::page(
        &title,
        &way,
        &html! {
            h2 { "Plan" }
            (plan(&view.plan))
            h2 { "Command" }
            p { "Put a new or empty directory in the place of DIR." }
            (layout::command(&view.command))
            @if view.allowed { (form(view)) }
            @else { p { "This page only looks. A server that was started with --allow-restore also restores." } }
        },
    )
}

fn plan(plan: &Value) -> Markup {
    let number = |key: &str| plan[key].as_u64().unwrap_or(0);
    let seconds = |key: &str| plan[key].as_f64().unwrap_or(0.0);
    let notes = plan["notes"].as_array().into_iter().flatten();
    html! {
        (facts(&[
            ("Files", text::count(number("files"))),
            ("Size", size(number("bytes"))),
            ("To fetch", size(number("fetched_bytes"))),
            ("Time", format!("{:.1} to {:.1} s", seconds("least_seconds"), seconds("most_seconds"))),
            ("Limit", text::shown(plan["limit"].as_str().unwrap_or_default())),
        ]))
        @for note in notes.filter_map(Value::as_str) { p { (text::shown(note)) } }
    }
}

fn form(view: &RestoreView) -> Markup {
    html! {
        h2 { "Restore now" }
        p { "The files are written on the host of this server, by its user." }
        form method="post" action="restore-run" {
            input type="hidden" name="r" value=(view.r);
            input type="hidden" name="b" value=(view.backup);
            @match std::str::from_utf8(&view.path.0) {
                Ok(path) => {
                    input type="hidden" name="d" value=(path);
                    label { "New or empty directory" input name="to" required placeholder="/var/tmp/restored"; }
                    button { "Restore" }
                }
                Err(_) => p { "This name is not UTF-8: use the command." },
            }
        }
    }
}

/// Draws the state of the last restore.
pub(super) fn run_html(state: &RestoreState) -> Markup {
    let last = state.last.as_ref();
    let number = |key: &str| last.and_then(|last| last[key].as_u64()).unwrap_or(0);
    let end = match (state.began, state.exit_code) {
        (false, _) => "No restore was begun.".to_owned(),
        (true, None) => "It is running.".to_owned(),
        (true, Some(0)) => "It is complete.".to_owned(),
        (true, Some(code)) => format!("It ended with exit code {code}."),
    };
    layout::page(
        "Restore",
        &[],
        &html! {
            p #run-state role="status" data-running=(state.running) { (end) }
            @if state.began {
                (facts(&[
                    ("Backup", state.backup.clone()),
                    ("Target", text::shown(OsStr::new(&state.target).to_string_lossy().as_ref())),
                    ("Entries", text::count(number("entries"))),
                    ("Written", size(number("bytes"))),
                ]))
            }
            @if !state.messages.is_empty() { pre { (text::shown(&state.messages)) } }
        },
    )
}
