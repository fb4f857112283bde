//! Names in a backup that have a text in them, found page by page of the manifest.
//!
//! A search ends after some matches or some seconds, and the next one goes on there. Memory holds one page of the manifest.

use super::{
    backup::{EntryRow, entry_row, path_way, search_form},
    layout,
    link::{of_path, of_place},
};
use crate::asked::Asked;
use fullbore_format::{
    entry::{is_within, split},
    error::{Error, ErrorKind, Result},
    page::PageItem,
    root::EntryName,
    text,
};
use fullbore_repository::archive::{Archive, Selection};
use maud::{Markup, html};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Matches of a page.
const MATCHES: usize = 200;
/// Time of a search.
const SEARCH_TIME: Duration = Duration::from_secs(3);

/// The page.
#[derive(Serialize)]
pub(super) struct SearchView {
    r: usize,
    backup: String,
    path: EntryName,
    query: String,
    entries: Vec<EntryRow>,
    /// The field `at` of the search that goes on; `None` if everything was searched.
    next: Option<String>,
    damage: Vec<String>,
}

/// Searches a backup.
///
/// # Errors
/// [`ErrorKind::Usage`] without a text; those of the backup.
pub(super) fn view(asked: &Asked<'_>) -> Result<SearchView> {
    let archive = asked.archive()?;
    let query = asked.fields.text("q").unwrap_or_default();
    if query.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "no text to find was given"));
    }
    let mut view = SearchView {
        r: asked.place_number(),
        backup: asked.backup().to_owned(),
        path: EntryName(asked.path()?),
        query: query.to_owned(),
        entries: Vec::new(),
        next: None,
        damage: Vec::new(),
    };
    let at = asked.fields.text("at").and_then(|at| at.split_once('-'));
    let at = at.and_then(|(page, record)| Some((page.parse().ok()?, record.parse().ok()?)));
    view.search(&archive, at.unwrap_or((0, 0)))?;
    Ok(view)
}

impl SearchView {
    /// Searches from a page and a record of it on.
    fn search(&mut self, archive: &Archive, from: (usize, usize)) -> Result<()> {
        let selection = match &self.path.0[..] {
            b"" => Selection::default(),
            path => Selection::new(&[path])?,
        };
        let pages: Vec<_> = archive.pages(&selection).into_iter().flatten().collect();
        let began = Instant::now();
        let wanted = Wanted::new(&self.query);
        for (number, page) in pages.iter().enumerate().skip(from.0) {
            if began.elapsed() > SEARCH_TIME {
                self.next = Some(format!("{number}-0"));
                return Ok(());
            }
            let page = match archive.page(*page) {
                Ok(page) => page,
                Err(error) => {
                    self.damage.push(error.line());
                    continue;
                }
            };
            let first = if number == from.0 { from.1 } else { 0 };
            for record in first..page.records.len() {
                let path = &page.records[record].entry.path;
                let is_match = is_within(path, &self.path.0) && wanted.is_in(path);
                if !is_match || page.records[record].more {
                    continue;
                }
                if self.entries.len() == MATCHES {
                    self.next = Some(format!("{number}-{record}"));
                    return Ok(());
                }
                let item = PageItem::new(page.clone(), record);
                self.entries.extend(item.as_ref().map(EntryRow::of));
            }
        }
        Ok(())
    }
}

/// A text to find, without regard to the case of Latin letters. With a slash it is looked for in paths, else in names.
struct Wanted {
    text: Vec<u8>,
    is_path: bool,
}

impl Wanted {
    fn new(query: &str) -> Self {
        let text = query.as_bytes().to_ascii_lowercase();
        Self {
            is_path: text.contains(&b'/'),
            text,
        }
    }

    fn is_in(&self, path: &[u8]) -> bool {
        let looked_at = if self.is_path { path } else { split(path).1 };
        let mut windows = looked_at.windows(self.text.len());
        windows.any(|window| window.eq_ignore_ascii_case(&self.text))
    }
}

/// Draws the page.
pub(super) fn html(view: &SearchView) -> Markup {
    let (r, backup, path) = (view.r, &view.backup, &view.path.0);
    let way = [(
        of_path("backup", r, backup, b""),
        format!("Backup {backup}"),
    )];
    let rows = html! {
        @for row in &view.entries { (entry_row(r, backup, row, &text::name(&row.path.0))) }
    };
    layout::page(
        &format!("Names with “{}”", text::shown(&view.query)),
        &way,
        &html! {
            (path_way(r, backup, path))
            (search_form(r, backup, path, &view.query))
            @for damage in &view.damage { p.trouble { (text::shown(damage)) } }
            @if view.entries.is_empty() { p role="status" { "Nothing was found so far." } }
            @else { (layout::table("Matches", &["Path", "Size", "Changed", "Mode", "Owner"], &rows)) }
            @if let Some(next) = &view.next {
                @let fields = [("b", backup.as_bytes()), ("d", &path[..]), ("q", view.query.as_bytes()), ("at", next.as_bytes())];
                p.pager { a rel="next" href=(of_place("search", r, &fields)) { "Go on searching" } }
            } @else { p role="status" { "Everything was searched." } }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_in_names_and_with_a_slash_in_paths() {
        let is_in = |query, path: &str| Wanted::new(query).is_in(path.as_bytes());
        assert!(is_in("CONF", "etc/a.conf") && is_in("etc/A", "etc/a.conf"));
        assert!(!is_in("etc", "etc/a.conf") && !is_in("a.confx", "a.conf"));
    }
}
