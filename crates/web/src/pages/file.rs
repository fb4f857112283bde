//! One entry: its facts, and the beginning of its content as text or as a picture.
//!
//! Text is shown escaped within the page. A picture is sent only if its first bytes are those of a format without scripts, with
//! a policy that lets it do nothing.

use super::{
    backup::{EntryRow, path_way},
    layout::{self, facts},
    link::{of_path, of_place},
};
use crate::{asked::Asked, downloads::open_file, http::response::Response};
use fullbore_engine::fleet::RowSource;
use fullbore_format::{
    entry::split,
    error::{Error, ErrorKind, Result},
    text,
};
use fullbore_repository::archive::{not_there, stored_file::StoredFile};
use maud::{Markup, html};
use serde::Serialize;

/// Bytes of text that are shown.
const TEXT_BYTES: usize = 256 << 10;
/// Bytes of a picture.
const PICTURE_BYTES: u64 = 32 << 20;
/// Bytes that tell text from other content.
const HEAD_BYTES: usize = 8 << 10;

/// The page.
#[derive(Serialize)]
pub(super) struct FileView {
    r: usize,
    backup: String,
    source: String,
    #[serde(skip)]
    source_key: String,
    entry: EntryRow,
    digest: Option<String>,
    content: Shown,
}

/// What is shown of the content.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Shown {
    /// Nothing: it is no file, or not text and no picture.
    Nothing,
    Text {
        text: String,
        is_whole: bool,
    },
    Picture {
        kind: &'static str,
    },
    /// It cannot be read.
    Damaged {
        error: String,
    },
}

/// Computes the page.
///
/// # Errors
/// [`ErrorKind::NotFound`]; those of the backup.
pub(super) fn view(asked: &Asked<'_>) -> Result<FileView> {
    let archive = asked.archive()?;
    let path = asked.path()?;
    let parts = archive.find(&path)?;
    let item = parts.last().ok_or_else(|| not_there(&archive, &path))?;
    let entry = EntryRow::of(item);
    let is_file = matches!(entry.kind, "file" | "hardlink");
    let content = match is_file && item.state.is_stored() {
        true => shown(asked, &path),
        false => Shown::Nothing,
    };
    let listing = asked.place()?.listing()?;
    let row = listing.row(asked.backup());
    let source = row.map(|row| listing.source_of(row));
    Ok(FileView {
        r: asked.place_number(),
        backup: asked.backup().to_owned(),
        source: source.map_or_else(String::new, RowSource::name),
        source_key: source.map_or_else(String::new, |source| source.key.clone()),
        entry,
        digest: item.digest.map(|digest| digest.to_string()),
        content,
    })
}

fn shown(asked: &Asked<'_>, path: &[u8]) -> Shown {
    let read = || {
        let file = open_file(asked.place()?, asked.archive()?, path)?;
        let mut head = vec![0; TEXT_BYTES];
        let count = file.read_at(0, &mut head)?;
        head.truncate(count);
        Ok((file.size(), head))
    };
    match read() {
        Err(error) => {
            let error: Error = error;
            Shown::Damaged {
                error: error.line(),
            }
        }
        Ok((size, head)) => match picture_kind(&head) {
            Some(kind) if size <= PICTURE_BYTES => Shown::Picture { kind },
            _ if is_text(&head) => Shown::Text {
                text: printed(&head),
                is_whole: size == head.len() as u64,
            },
            _ => Shown::Nothing,
        },
    }
}

/// Returns the type of a picture that browsers draw without running anything; never that of SVG, which has scripts.
fn picture_kind(head: &[u8]) -> Option<&'static str> {
    let is_webp = head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP");
    match head {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        _ if is_webp => Some("image/webp"),
        _ => None,
    }
}

fn is_text(head: &[u8]) -> bool {
    let head = &head[..head.len().min(HEAD_BYTES)];
    let valid = match std::str::from_utf8(head) {
        Ok(_) => true,
        // The last letter may be cut off.
        Err(error) => error.valid_up_to() + 4 > head.len(),
    };
    valid && !head.contains(&0)
}

/// Returns text in which only lines and tabs are moved by control characters.
fn printed(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n");
    let lines: Vec<_> = text
        .split('\n')
        .map(|line| {
            let parts: Vec<_> = line.split('\t').map(text::shown).collect();
            parts.join("\t")
        })
        .collect();
    lines.join("\n")
}

/// Sends a picture.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if it is none that is shown; those of the backup.
pub(super) fn picture(asked: &Asked<'_>) -> Result<Response> {
    let path = asked.path()?;
    let file: StoredFile = open_file(asked.place()?, asked.archive()?, &path)?;
    let refused = || Error::new(ErrorKind::Unsupported, "this is no picture that is shown");
    if file.size() > PICTURE_BYTES {
        return Err(refused());
    }
    let mut bytes = Vec::new();
    file.write_to(&mut bytes, crate::downloads::gone)?;
    let kind = picture_kind(&bytes).ok_or_else(refused)?;
    Ok(Response::picture(kind, bytes))
}

/// Draws the page.
pub(super) fn html(view: &FileView) -> Markup {
    let path = &view.entry.path.0;
    let (above, name) = split(path);
    let source = [("s", view.source_key.as_bytes())];
    let way = [
        (of_place("source", view.r, &source), view.source.clone()),
        (
            of_path("backup", view.r, &view.backup, b""),
            format!("Backup {}", view.backup),
        ),
    ];
    layout::page(
        &text::name(name),
        &way,
        &html! {
            (path_way(view.r, &view.backup, above))
            (entry_facts(view))
            p.actions {
                @if matches!(view.entry.kind, "file" | "hardlink") {
                    a download href=(of_path("get", view.r, &view.backup, path)) { "Download" } " "
                }
                a href=(of_path("versions", view.r, &view.backup, path)) { "Versions over time" } " "
                a href=(of_path("restore", view.r, &view.backup, path)) { "Restore" }
            }
            (content(view))
        },
    )
}

fn entry_facts(view: &FileView) -> Markup {
    let entry = &view.entry;
    let mut all = vec![
        ("Kind", entry.kind.to_owned()),
        ("Size", format!("{} bytes", text::count(entry.size))),
        ("Changed", entry.mtime.clone()),
        ("Mode", entry.mode.clone()),
        (
            "Owner",
            format!(
                "{} ({}) : {} ({})",
                entry.user, entry.uid, entry.group, entry.gid
            ),
        ),
        ("Captured", entry.state.to_owned()),
    ];
    let target = entry.target.as_ref();
    all.extend(target.map(|target| ("Target", text::name(&target.0))));
    all.extend(view.digest.clone().map(|digest| ("Digest", digest)));
    facts(&all)
}

fn content(view: &FileView) -> Markup {
    html! {
        @match &view.content {
            Shown::Nothing => {},
            Shown::Damaged { error } => p.trouble role="alert" { (text::shown(error)) },
            Shown::Picture { .. } => {
                p { img.shown src=(of_path("picture", view.r, &view.backup, &view.entry.path.0)) alt="The picture in this file"; }
            }
            Shown::Text { text, is_whole } => {
                h2 { "Content" }
                @if !is_whole { p { "Only the beginning is shown. Download the file for the rest." } }
                pre.content tabindex="0" { (text) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pictures_without_scripts_are_shown() {
        assert_eq!(picture_kind(b"\x89PNG\r\n\x1a\nrest"), Some("image/png"));
        assert_eq!(picture_kind(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(picture_kind(b"GIF89a"), Some("image/gif"));
        assert_eq!(picture_kind(b"RIFF....WEBPVP8 "), Some("image/webp"));
        for other in [
            &b"<svg xmlns="[..],
            b"<?xml",
            b"%PDF-1.7",
            b"<html>",
            b"",
            b"GIF8",
        ] {
            assert_eq!(picture_kind(other), None);
        }
    }

    #[test]
    fn text_is_shown_without_characters_that_control() {
        assert!(is_text("grün".as_bytes()) && is_text(b"") && is_text(&"ü".as_bytes()[..1]));
        assert!(!is_text(b"a\0b") && !is_text(b"\xff\xfe and more text"));
        assert_eq!(printed(b"a\tb\r\nc\x1b[0m"), "a\tb\nc\\u{1b}[0m");
        assert_eq!(printed("x\u{202e}y".as_bytes()), "x\\u{202e}y");
    }
}
