//! How the end of a backup to several repositories is told.

use crate::cli::output::aside;
use fullbore_engine::{
    backup::{Backup, Outcome},
    fan_out::{Completed, MemberEnd},
};
use fullbore_format::{
    error::{Error, quoted},
    text::size::bytes,
};
use serde_json::{Value, json};
use std::{ffi::OsString, os::unix::ffi::OsStrExt};

/// Destinations that could not be reached, with their place and word on the command line.
pub(super) type UnopenedSinks = Vec<(usize, OsString, Error)>;

/// A destination, and what became of the backup there.
pub(super) struct NamedEnd {
    /// In quotes.
    name: String,
    end: MemberEnd,
}

/// Returns the outcome of each destination in the order of the command line; nothing if there was
/// one only.
pub(super) fn ends(plan: &Backup, outcome: &Outcome, unopened: UnopenedSinks) -> Vec<NamedEnd> {
    let specs = [&plan.to].into_iter().chain(&plan.also);
    let names = specs.map(|spec| spec.name());
    let mut ends = outcome.destinations.clone();
    if ends.is_empty() && !unopened.is_empty() {
        ends.push(MemberEnd {
            result: Ok(Completed {
                is_new: outcome.is_new_repository,
                copied_bytes: 0,
            }),
            seconds: outcome.verdict.seconds,
        });
    }
    let named = names.zip(ends).map(|(name, end)| NamedEnd { name, end });
    let mut named: Vec<NamedEnd> = named.collect();
    for (place, word, error) in unopened {
        let name = quoted(word.as_bytes());
        let end = MemberEnd {
            result: Err(error),
            seconds: 0.0,
        };
        named.insert(place.min(named.len()), NamedEnd { name, end });
    }
    named
}

/// Prints an error for each destination that lacks the backup. Returns their number.
pub(super) fn tell_failures(ends: &[NamedEnd]) -> usize {
    let mut failed = 0;
    for NamedEnd { name, end } in ends {
        let Err(error) = &end.result else { continue };
        failed += 1;
        aside(format_args!(
            "error: {name} lacks the backup: {}",
            error.line()
        ));
        for line in &error.detail {
            aside(format_args!("       {line}"));
        }
        aside(format_args!(
            "hint:  `fullbore sync` copies it there, or run the same command again"
        ));
    }
    failed
}

/// The words about the destinations in the last line, if there are several.
pub(super) fn completion_text(ends: &[NamedEnd]) -> Option<String> {
    let complete = ends.iter().filter_map(|NamedEnd { name, end }| {
        let done = end.result.as_ref().ok()?;
        let mut text = name.clone();
        if done.is_new {
            text += ", a new repository";
        }
        if done.copied_bytes > 0 {
            text += &format!(" ({} from another one)", bytes(done.copied_bytes));
        }
        Some(text)
    });
    let complete: Vec<String> = complete.collect();
    let of = match complete.len() == ends.len() {
        true => String::new(),
        false => format!(", {} of {} destinations", complete.len(), ends.len()),
    };
    (!ends.is_empty()).then(|| format!("is complete in {}{of}", complete.join(" and in ")))
}

/// Returns the names of the destinations that have the backup, if there are several.
pub(super) fn holders(ends: &[NamedEnd]) -> Option<String> {
    let complete = ends.iter().filter(|named| named.end.result.is_ok());
    let names: Vec<&str> = complete.map(|named| &*named.name).collect();
    (!ends.is_empty()).then(|| names.join(" and "))
}

/// Adds the outcome of each destination, if there are several.
pub(super) fn add_to(result: &mut Value, ends: &[NamedEnd]) {
    if ends.is_empty() {
        return;
    }
    let each = ends.iter().map(|NamedEnd { name, end }| {
        let name = name.trim_matches('"');
        match &end.result {
            Ok(done) => json!({"to": name, "exit_code": 0, "seconds": end.seconds,
                "new_repository": done.is_new, "copied_bytes": done.copied_bytes}),
            Err(error) => json!({"to": name, "exit_code": error.exit_code(),
                "seconds": end.seconds, "error": error.line()}),
        }
    });
    result["destinations"] = each.collect();
}
