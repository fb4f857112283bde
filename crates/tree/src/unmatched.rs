//! Tells the user about patterns that matched nothing: often they are misspelled.

use crate::patterns::Patterns;
use fullbore_format::error::quoted;

const NAMED: usize = 10;

/// Returns whether a pattern is about one place: it has a slash before its end.
fn is_place(pattern: &[u8]) -> bool {
    let name = pattern.strip_suffix(b"/").unwrap_or(pattern);
    name.contains(&b'/')
}

/// Returns a warning about the patterns that matched nothing in a scan that is complete. Names without a place
/// are left out, and those that [`Patterns::idle_warnings`] explains. `place` says what a pattern with a slash means.
pub fn unmatched_warning<'a>(
    all: impl Iterator<Item = &'a Patterns> + Clone,
    place: &str,
) -> Option<String> {
    let explained = all.clone().flat_map(Patterns::idle_negations);
    let explained: Vec<&[u8]> = explained.map(|(pattern, _)| pattern).collect();
    let unmatched = all.flat_map(Patterns::unmatched);
    // A name that is nowhere today is no mistake: `*.bak` is there for the day when one is.
    let unmatched = unmatched.filter(|pattern| is_place(pattern) && !explained.contains(pattern));
    let unmatched: Vec<&[u8]> = unmatched.collect();
    let names = unmatched.iter().take(NAMED).map(|pattern| quoted(pattern));
    let names = names.collect::<Vec<_>>().join(", ");
    let begins_wrong = |pattern: &&[u8]| pattern.starts_with(b"./") || pattern.starts_with(b"~/");
    let place = match unmatched.iter().find(|pattern| begins_wrong(pattern)) {
        Some(pattern) => {
            let name = quoted(&pattern[2..]);
            let place = quoted(&[b"/", &pattern[2..]].concat());
            format!(
                "no pattern begins with ./ or ~/: {name} is that name anywhere, {place} is that path of the backup"
            )
        }
        None => place.to_owned(),
    };
    match unmatched.len() {
        // The first names are enough to find the mistake: hundreds of patterns can come from a
        // file.
        0 => None,
        1 => Some(format!("the pattern {names} matched nothing; {place}")),
        n if n <= NAMED => Some(format!("the patterns {names} matched nothing; {place}")),
        n => Some(format!(
            "{n} patterns matched nothing, the first are {names}; {place}"
        )),
    }
}

/// Returns a line about the names that matched nothing, for somebody who looks at the patterns of a scan that is complete. A name that
/// is nowhere may be misspelled, or may be there another day.
pub fn idle_names<'a>(all: impl Iterator<Item = &'a Patterns> + Clone) -> Option<String> {
    let explained = all.clone().flat_map(Patterns::idle_negations);
    let explained: Vec<&[u8]> = explained.map(|(pattern, _)| pattern).collect();
    let unmatched = all.flat_map(Patterns::unmatched);
    let unmatched = unmatched.filter(|pattern| !is_place(pattern) && !explained.contains(pattern));
    let unmatched: Vec<&[u8]> = unmatched.collect();
    let names = unmatched.iter().take(NAMED).map(|pattern| quoted(pattern));
    let names = names.collect::<Vec<_>>().join(", ");
    match unmatched.len() {
        0 => None,
        1 => Some(format!("the pattern {names} matched nothing")),
        n if n <= NAMED => Some(format!("the patterns {names} matched nothing")),
        n => Some(format!(
            "{n} patterns matched nothing, the first are {names}"
        )),
    }
}
