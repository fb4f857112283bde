//! Tells the user about patterns that matched nothing: often they are misspelled.

use crate::patterns::Patterns;
use fullbore_format::error::quoted;

const NAMED: usize = 10;

/// Returns a warning about the patterns that matched nothing in a scan that is complete. Those that
/// [`Patterns::idle_warnings`] explains are left out. `place` says what a pattern with a slash means.
pub fn unmatched_warning<'a>(
    all: impl Iterator<Item = &'a Patterns> + Clone,
    place: &str,
) -> Option<String> {
    let explained = all.clone().flat_map(Patterns::idle_negations);
    let explained: Vec<&[u8]> = explained.map(|(pattern, _)| pattern).collect();
    let unmatched = all.flat_map(Patterns::unmatched);
    let unmatched = unmatched.filter(|pattern| !explained.contains(pattern));
    let unmatched: Vec<&[u8]> = unmatched.collect();
    let names = unmatched.iter().take(NAMED).map(|pattern| quoted(pattern));
    let names = names.collect::<Vec<_>>().join(", ");
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
