//! The pages. Each computes a view, which is its JSON, and draws it.

mod backup;
mod calendar;
mod chart;
mod checks;
mod days;
mod diff;
mod file;
mod fleet;
pub(crate) mod layout;
mod link;
mod postgres;
mod restore;
mod runs;
mod search;
mod source;
mod timelines;
mod versions;

use crate::{
    asked::Asked,
    downloads::{cat_words, gone, open_file, write_tar_zst},
    http::response::Response,
    zip::write_zip,
};
use fullbore_format::{
    entry::split,
    error::{Error, ErrorKind, Result},
};
use maud::Markup;
use serde::Serialize;

/// Pages that search, or ask a command.
pub(crate) const QUESTIONS: [&str; 7] = [
    "retention",
    "search",
    "versions",
    "diff",
    "postgres",
    "checks",
    "restore",
];

/// Answers a request for a page.
///
/// # Errors
/// Those of the page.
pub(crate) fn answer(
    asked: &Asked<'_>,
    name: &str,
    as_json: bool,
    is_post: bool,
) -> Result<Response> {
    if is_post && name != "restore-run" {
        return Err(Error::new(ErrorKind::Usage, "this page takes no form"));
    }
    match (name, as_json) {
        ("" | "fleet", _) => shown(as_json, &fleet::view(asked)?, fleet::html),
        ("source", _) => shown(as_json, &source::view(asked)?, source::html),
        ("retention", _) => shown(as_json, &source::retention(asked)?, source::retention_html),
        ("backup", _) => shown(as_json, &backup::view(asked)?, backup::html),
        ("file", _) => shown(as_json, &file::view(asked)?, file::html),
        ("search", _) => shown(as_json, &search::view(asked)?, search::html),
        ("versions", _) => shown(as_json, &versions::view(asked)?, versions::html),
        ("diff", _) => shown(as_json, &diff::view(asked)?, diff::html),
        ("postgres", _) => shown(as_json, &postgres::view(asked)?, postgres::html),
        ("runs", _) => shown(as_json, &runs::view(asked)?, runs::html),
        ("checks", _) => shown(as_json, &checks::view(asked)?, checks::html),
        ("restore", _) => shown(as_json, &restore::view(asked)?, restore::html),
        ("restore-run", true) if !is_post => Ok(Response::json(&asked.shown.restores.state())),
        ("restore-run", _) if is_post => restore::run(asked, as_json),
        ("restore-run", _) => {
            let state = asked.shown.restores.state();
            Ok(Response::html(restore::run_html(&state).into_string()))
        }
        ("get", false) => file_download(asked),
        ("tar", false) => tar_download(asked),
        ("zip", false) => zip_download(asked),
        ("picture", false) => file::picture(asked),
        _ => Err(Error::new(ErrorKind::NotFound, "there is no such page")),
    }
}

fn shown<V: Serialize>(as_json: bool, view: &V, html: impl Fn(&V) -> Markup) -> Result<Response> {
    Ok(match as_json {
        true => Response::json(view),
        false => Response::html(html(view).into_string()),
    })
}

fn file_download(asked: &Asked<'_>) -> Result<Response> {
    let path = asked.path()?;
    let file = open_file(asked.place()?, asked.archive()?, &path)?;
    let length = Some(file.size());
    let write = Box::new(move |out: &mut dyn std::io::Write| file.write_to(out, gone));
    Ok(Response::download(split(&path).1, length, write))
}

/// Returns the directory `d`, and the name of a download of it.
fn directory(asked: &Asked<'_>, ending: &str) -> Result<(Vec<u8>, Vec<u8>)> {
    let path = asked.path()?;
    let archive = asked.archive()?;
    if !path.is_empty() && !archive.has(&path)? {
        return Err(fullbore_repository::archive::not_there(&archive, &path));
    }
    let name = match split(&path).1 {
        b"" => asked.backup().as_bytes(),
        name => name,
    };
    let name = [name, ending.as_bytes()].concat();
    Ok((path, name))
}

fn tar_download(asked: &Asked<'_>) -> Result<Response> {
    let (path, name) = directory(asked, ".tar.zst")?;
    let words = cat_words(asked.place()?, asked.backup(), &path);
    let write = Box::new(move |out: &mut dyn std::io::Write| write_tar_zst(&words, out));
    Ok(Response::download(&name, None, write))
}

fn zip_download(asked: &Asked<'_>) -> Result<Response> {
    let (path, name) = directory(asked, ".zip")?;
    let archive = asked.archive()?;
    let frames = asked.place()?.frames.clone();
    let write =
        Box::new(move |out: &mut dyn std::io::Write| write_zip(&archive, &frames, &path, out));
    Ok(Response::download(&name, None, write))
}
