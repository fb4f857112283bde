//! The frame of a page, and parts that several pages have. All text is escaped by `maud`.

use crate::http::guard::Entry;
use fullbore_format::{
    error::Error,
    text::{self, local_time::local_second},
};
use maud::{DOCTYPE, Markup, html};

/// A page: its title, the way to it, and its body.
pub(super) fn page(title: &str, way: &[(String, String)], body: &Markup) -> Markup {
    frame(
        title,
        &html! {
            nav aria-label="Where you are" {
                ol.way {
                    li { a href="./" { "All sources" } }
                    @for (address, name) in way { li { a href=(address) { (name) } } }
                }
                form.leave method="post" action="leave" { button { "End the session" } }
            }
            main #main tabindex="-1" { h1 { (title) } (body) }
        },
    )
}

fn frame(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · fullbore" }
                link rel="stylesheet" href="page.css";
                link rel="icon" href="icon.svg";
                script src="page.js" defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                (body)
            }
        }
    }
}

/// The page on which a session begins.
pub(crate) fn entry_page(entry: &Entry, refused: Option<&str>) -> Markup {
    frame(
        "Enter",
        &html! {
            main #main tabindex="-1" {
                h1 { "fullbore" }
                @if let Some(refused) = refused { p.trouble role="alert" { (refused) } }
                form #enter method="post" action="enter" {
                    @match entry {
                        Entry::Passwords(_) => {
                            label { "Name" input name="name" autocomplete="username" required; }
                            label { "Password"
                                input type="password" name="password" autocomplete="current-password" required;
                            }
                        }
                        _ => {
                            p { "The address that " code { "fullbore web" } " printed has a token, which works once. \
                                 Open that address, or write the token here." }
                            label { "Token" input #token type="password" name="token" autocomplete="off" required; }
                        }
                    }
                    button { "Enter" }
                }
            }
        },
    )
}

/// The page of an error, with its hint.
pub(crate) fn error_page(error: &Error) -> Markup {
    page(
        "This did not work",
        &[],
        &html! {
            p.trouble role="alert" { (text::shown(&error.line())) }
            @if let Some(hint) = &error.hint { p { (text::shown(hint)) } }
        },
    )
}

/// A command to copy.
pub(super) fn command(words: &str) -> Markup {
    html! {
        div.command {
            pre tabindex="0" { code { (words) } }
            button type="button" data-copy=(words) { "Copy" }
        }
    }
}

/// A table that scrolls sideways where the screen is narrow.
pub(super) fn table(caption: &str, heads: &[&str], rows: &Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(caption) {
            table {
                caption { (caption) }
                thead { tr { @for head in heads { th scope="col" { (head) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Names and values.
pub(super) fn facts(facts: &[(&str, String)]) -> Markup {
    html! {
        dl.facts { @for (name, value) in facts { div { dt { (name) } dd { (value) } } } }
    }
}

/// A time of a root in the zone of this host.
pub(super) fn time(rfc3339: &str) -> Markup {
    html! { time datetime=(rfc3339) { (local_second(rfc3339)) } }
}

/// Bytes for people.
pub(super) fn size(bytes: u64) -> String {
    text::bytes(bytes)
}

/// Returns how long ago a time is: `3 hours ago`.
pub(super) fn ago(seconds: i64) -> String {
    let (count, unit) = match seconds {
        ..120 => return "just now".to_owned(),
        120..7_200 => (seconds / 60, "minute"),
        7_200..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{} ago", text::counted(count as u64, unit))
}
