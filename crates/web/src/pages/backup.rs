//! A backup: its facts, and one directory of it, page by page.

use super::{
    layout::{self, facts, size, time},
    link::{of_path, of_place},
    source::state,
};
use crate::{asked::Asked, catalog::SharedBackup};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath, join, split},
    error::{Error, ErrorKind, Result},
    page::{EntryState, PageItem},
    root::EntryName,
    text,
};
use fullbore_repository::archive::{Archive, not_there};
use maud::{Markup, html};
use serde::Serialize;
use std::iter;

/// Names of a page.
const PAGE_NAMES: usize = 500;

/// The page.
#[derive(Serialize)]
pub(super) struct BackupView {
    r: usize,
    backup: SharedBackup,
    source: String,
    #[serde(skip)]
    source_key: String,
    path: EntryName,
    entries: Vec<EntryRow>,
    /// The field `after` of the next page.
    next: Option<u64>,
    /// Damage of pages of the manifest, in words.
    damage: Vec<String>,
    /// The backup before this one, of the same source.
    previous: Option<String>,
}

/// An entry of a directory, or one that a search found.
#[derive(Serialize)]
pub(super) struct EntryRow {
    pub(super) path: EntryName,
    pub(super) kind: &'static str,
    pub(super) size: u64,
    pub(super) mtime: String,
    pub(super) mode: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) user: String,
    pub(super) group: String,
    pub(super) target: Option<EntryName>,
    pub(super) state: &'static str,
    pub(super) reason: Option<String>,
    #[serde(skip)]
    minute: String,
}

impl EntryRow {
    pub(super) fn of(item: &PageItem) -> Self {
        let entry = &item.entry;
        let (state, reason) = state_words(&item.state);
        Self {
            path: EntryName(entry.path.clone()),
            kind: kind_word(&entry.kind),
            size: entry.size(),
            mtime: text::rfc3339(entry.mtime),
            minute: text::local_minute(entry.mtime),
            mode: text::mode(entry),
            uid: entry.owner.uid,
            gid: entry.owner.gid,
            user: entry.owner.user.to_string(),
            group: entry.owner.group.to_string(),
            target: target(&entry.kind),
            state,
            reason,
        }
    }

    /// A directory that the backup has only as a part of longer paths.
    fn way(path: EntryPath) -> Self {
        let entry = Entry {
            path,
            kind: EntryKind::Directory,
            ..Entry::default()
        };
        Self {
            path: EntryName(entry.path),
            kind: "directory",
            size: 0,
            mtime: String::new(),
            minute: String::new(),
            mode: String::new(),
            uid: 0,
            gid: 0,
            user: String::new(),
            group: String::new(),
            target: None,
            state: "whole",
            reason: None,
        }
    }
}

/// The word for a kind, as `fullbore list --json` has it.
pub(super) fn kind_word(kind: &EntryKind) -> &'static str {
    match kind {
        EntryKind::File { .. } => "file",
        EntryKind::Directory => "directory",
        EntryKind::Symlink(_) => "symlink",
        EntryKind::HardLink(_) => "hardlink",
        EntryKind::Fifo => "fifo",
        EntryKind::CharDevice(_) => "char-device",
        EntryKind::BlockDevice(_) => "block-device",
        EntryKind::Socket => "socket",
    }
}

fn target(kind: &EntryKind) -> Option<EntryName> {
    match kind {
        EntryKind::Symlink(target) | EntryKind::HardLink(target) => Some(EntryName(target.clone())),
        _ => None,
    }
}

fn state_words(state: &EntryState) -> (&'static str, Option<String>) {
    match state {
        EntryState::Whole => ("whole", None),
        EntryState::Changed => ("changed", None),
        EntryState::Unreadable(reason) => ("unreadable", Some(reason.clone())),
        EntryState::Vanished => ("vanished", None),
        EntryState::Noted => ("noted", None),
        EntryState::BadPages(_) => ("wrong page checksums", None),
    }
}

/// Computes the page.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the backup has no such directory; those of opening the backup.
pub(super) fn view(asked: &Asked<'_>) -> Result<BackupView> {
    let place = asked.place()?;
    let archive = asked.archive()?;
    let listing = place.listing()?;
    let gone = || Error::new(ErrorKind::NotFound, "the backup was forgotten");
    let row = listing.row(asked.backup()).ok_or_else(gone)?;
    let found = place.summaries(&listing, iter::once(row));
    let backup = found.into_iter().next().ok_or_else(gone)?;
    let path = asked.path()?;
    if !path.is_empty() && !archive.has(&path)? {
        return Err(not_there(&archive, &path));
    }
    let source = listing.source_of(row);
    let mut earlier = listing.of_source(row.source).rev();
    let previous = earlier.find(|other| other.id() < row.id());
    let mut view = BackupView {
        r: asked.place_number(),
        source: source.name(),
        source_key: source.key.clone(),
        previous: previous.map(|other| other.id().to_owned()),
        backup,
        path: EntryName(path),
        entries: Vec::new(),
        next: None,
        damage: Vec::new(),
    };
    view.add_entries(&archive, asked.fields.number("after"))?;
    Ok(view)
}

impl BackupView {
    fn add_entries(&mut self, archive: &Archive, after: Option<u64>) -> Result<()> {
        let children = archive.children(&self.path.0);
        let children = match after {
            Some(number) => children.after(number)?,
            None => children,
        };
        let mut last = None;
        for child in children {
            if self.entries.len() == PAGE_NAMES {
                self.next = last;
                break;
            }
            match child {
                Ok(child) => {
                    last = Some(child.number);
                    self.entries.push(match &child.item {
                        Some(item) => EntryRow::of(item),
                        None => EntryRow::way(child.path),
                    });
                }
                Err(error) => self.damage.push(error.line()),
            }
            // Each unreadable page is one error.
            if self.damage.len() > PAGE_NAMES {
                break;
            }
        }
        Ok(())
    }

    fn link(&self, page: &str) -> String {
        of_path(page, self.r, &self.backup.id, &self.path.0)
    }
}

/// Draws the page.
pub(super) fn html(view: &BackupView) -> Markup {
    let source = [("s", view.source_key.as_bytes())];
    let way = [(of_place("source", view.r, &source), view.source.clone())];
    layout::page(
        &format!("Backup {}", view.backup.id),
        &way,
        &html! {
            @if view.path.0.is_empty() { (backup_facts(view)) }
            (path_way(view.r, &view.backup.id, &view.path.0))
            (search_form(view.r, &view.backup.id, &view.path.0, ""))
            (actions(view))
            @for damage in &view.damage { p.trouble { (text::shown(damage)) } }
            @if view.entries.is_empty() { p { "This directory is empty." } }
            @else { (entries_table(view)) }
            @if let Some(next) = view.next {
                @let next = next.to_string();
                @let fields = [("b", view.backup.id.as_bytes()), ("d", &view.path.0[..]), ("after", next.as_bytes())];
                p.pager { a rel="next" href=(of_place("backup", view.r, &fields)) { "Next names" } }
            }
        },
    )
}

fn backup_facts(view: &BackupView) -> Markup {
    let backup = &view.backup;
    let previous = view.previous.as_deref().unwrap_or_default();
    let diff = [("a", previous.as_bytes()), ("b", backup.id.as_bytes())];
    html! {
        p { (state(backup)) " " (time(&backup.time)) }
        (facts(&[
            ("Files", text::count(backup.files)),
            ("Size", size(backup.bytes)),
            ("Newly stored", size(backup.stored_bytes)),
            ("Kept from earlier backups", size(backup.kept_bytes)),
            ("Not read", text::count(backup.unreadable)),
            ("Seconds", format!("{:.1}", backup.seconds)),
        ]))
        @if view.previous.is_some() {
            p { a href=(of_place("diff", view.r, &diff)) { "What changed since the backup before" } }
        }
    }
}

/// The directories above a path, each with its address.
pub(super) fn path_way(r: usize, backup: &str, path: &[u8]) -> Markup {
    let mut ways: Vec<(EntryPath, String)> = Vec::new();
    let mut at = Vec::new();
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        at = join(&at, name);
        ways.push((at.clone(), text::name(name)));
    }
    html! {
        nav aria-label="Directories" {
            ol.way {
                li { a href=(of_path("backup", r, backup, b"")) { "Top" } }
                @for (path, name) in &ways { li { a href=(of_path("backup", r, backup, path)) { (name) } } }
            }
        }
    }
}

/// The form of a search below a directory.
pub(super) fn search_form(r: usize, backup: &str, path: &[u8], query: &str) -> Markup {
    html! {
        form.row role="search" action="search" {
            input type="hidden" name="r" value=(r);
            input type="hidden" name="b" value=(backup);
            // A field can hold text alone; a search below another path begins at the top.
            @if let Ok(path) = std::str::from_utf8(path) { input type="hidden" name="d" value=(path); }
            label { "Find names below this directory"
                input #search type="search" name="q" value=(query) required maxlength="200";
            }
            button { "Find" }
        }
    }
}

fn actions(view: &BackupView) -> Markup {
    html! {
        p.actions {
            a download href=(view.link("tar")) { "Download as tar.zst" } " "
            a download href=(view.link("zip")) { "Download as zip" } " "
            a href=(view.link("restore")) { "Restore this directory" }
        }
    }
}

fn entries_table(view: &BackupView) -> Markup {
    let rows = html! {
        @for row in &view.entries {
            (entry_row(view.r, &view.backup.id, row, &text::name(split(&row.path.0).1)))
        }
    };
    layout::table(
        "Entries",
        &["Name", "Size", "Changed", "Mode", "Owner"],
        &rows,
    )
}

/// A row of a table of entries.
pub(super) fn entry_row(r: usize, backup: &str, row: &EntryRow, name: &str) -> Markup {
    let is_directory = row.kind == "directory";
    let page = if is_directory { "backup" } else { "file" };
    html! {
        tr {
            th scope="row" {
                a href=(of_path(page, r, backup, &row.path.0)) { (name) @if is_directory { "/" } }
                @if let Some(target) = &row.target { " → " (text::name(&target.0)) }
                @if row.state != "whole" {
                    " " span.trouble { (row.state) @if let Some(reason) = &row.reason { ": " (text::shown(reason)) } }
                }
            }
            td.number { @if row.kind == "file" { (size(row.size)) } }
            td { (row.minute) }
            td { code { (row.mode) } }
            td { (owner(&row.user, row.uid)) ":" (owner(&row.group, row.gid)) }
        }
    }
}

fn owner(name: &str, number: u32) -> String {
    match name {
        "" => number.to_string(),
        name => text::shown(name),
    }
}
