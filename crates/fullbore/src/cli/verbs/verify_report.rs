//! The last lines of a verification.

use super::restore_report::BARE;
use crate::cli::report::{NAMED, damage_json};
use fullbore_engine::verify::{VerifyVerdict as Found, losses::EntryLoss};
use fullbore_format::{
    root::EntryName,
    text::size::{count, counted, seconds},
};
use fullbore_repository::shard::Shard;
use serde_json::{Value, json};
use std::path::Path;

/// The part that a check without a key leaves out.
const LOCKED: &str = "without a key that reads, names and content were not checked";

/// The last line of a verification.
/// `against` is the tree that the backup was compared with.
pub(super) fn last_line(found: &Found, against: Option<&Path>) -> String {
    let share = found.shard.filter(|_| found.data).map(Shard::words);
    let message = if found.data {
        "every byte"
    } else {
        "the structure"
    };
    let entries = counted(found.entries, "entry");
    let (subject, is) = match &*found.id {
        "" if found.is_bare => ("the tar".to_owned(), "is"),
        "" => (counted(found.backups as u64, "backup"), "are"),
        id => (format!("backup {id}"), "is"),
    };
    let trailed = if found.is_trailed {
        "; what comes after its end is none of it"
    } else {
        ""
    };
    match found.exit_code() {
        0 if found.is_locked => {
            let message = match &share {
                Some(share) => {
                    format!("the length of every object, and {share} of the stored bytes, were")
                }
                None if found.data => "all stored bytes of segments were".to_owned(),
                None => "the length of every object was".to_owned(),
            };
            let time = seconds(found.seconds);
            format!("{subject} {is} stored as the roots say: {message} checked in {time}; {LOCKED}")
        }
        0 if found.is_bare => {
            let time = seconds(found.seconds);
            format!(
                "the tar has its end, and all checksums of its {entries} are right, in {time}; {BARE}{trailed}"
            )
        }
        0 => {
            let lacking = match found.not_captured {
                0 => String::new(),
                n => format!(
                    "; {} more could not be captured, or were given up by a repair",
                    count(n)
                ),
            };
            let wrong = match found.bad_pages {
                0 => String::new(),
                n => format!(
                    "; {} had wrong page checksums when they were backed up",
                    counted(n, "file")
                ),
            };
            let same =
                against.map_or_else(String::new, |tree| format!(", and {tree:?} is the same"));
            let time = seconds(found.seconds);
            let checked = match &share {
                Some(share) => format!(
                    "{share} of the data, and the structure of {entries}, were checked in {time}"
                ),
                None => format!("{message} of {entries} was checked in {time}"),
            };
            format!("{subject} {is} sound: {checked}{same}{lacking}{wrong}{trailed}")
        }
        1 => {
            format!(
                "{subject} {is} sound, and the tree differs in {}",
                counted(found.differences.len() as u64, "place")
            )
        }
        _ if found.of > 1 && !found.damaged.is_empty() => damaged_ones(found),
        _ => format!(
            "{subject} {is} damaged in {}; {}",
            places(found),
            losers(found)
        ),
    }
}

/// The line about the data that a check of the structure does not read; `None` if all of it was checked once.
pub(super) fn checked_line(share: f64) -> Option<String> {
    let percent = share * 100.0;
    let how = "--data checks all of it, --sample 5% a share";
    match percent {
        0.0 => Some(format!("no data was read yet; {how}")),
        ..0.5 => Some(format!(
            "less than 1 % of the data was checked at least once; {how}"
        )),
        99.5..100.0 => Some(format!(
            "over 99 % of the data was checked at least once; {how}"
        )),
        100.0.. => None,
        _ => Some(format!(
            "{percent:.0} % of the data was checked at least once; {how}"
        )),
    }
}

/// The hint about damage in a repository.
pub(super) fn after_damage(found: &Found) -> Option<String> {
    let hint = match (found.exit_code(), found.lost.is_empty()) {
        (4, true) => {
            "`fullbore repair` says what can be made anew; the rest no file needs: it goes with the backups that stored it"
        }
        (4, false) => {
            "`fullbore repair --data` says what can be made anew, and what is lost; where it has marked that (--yes), the next backup \
             stores again what is there still, as `fullbore backup --full` does at once"
        }
        _ => return None,
    };
    Some(format!("hint:  {hint}"))
}

/// The damaged ones of several backups; the first few are named.
fn damaged_ones(found: &Found) -> String {
    let (ids, is) = (
        &found.damaged,
        if found.damaged.len() == 1 {
            "is"
        } else {
            "are"
        },
    );
    let mut names = ids
        .iter()
        .take(NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if ids.len() > NAMED {
        names.push_str(&format!(" and {} more", ids.len() - NAMED));
    }
    let total = format!(
        "{} of {}",
        count(ids.len() as u64),
        counted(found.of as u64, "backup")
    );
    format!(
        "{total} {is} damaged in {}: {names}; {}",
        places(found),
        losers(found)
    )
}

fn places(found: &Found) -> String {
    counted((found.damage.len() + found.warnings.len()) as u64, "place")
}

fn losers(found: &Found) -> String {
    match found.lost.len() {
        // A stream that lacks its end does not say how much is missing.
        0 if found.is_bare => "what else is lost nothing says".to_owned(),
        0 if found.is_locked => "only a key that reads tells which files are lost; `fullbore fleet` tells of it until `verify --data` with a key has looked".to_owned(),
        0 => "no file is lost".to_owned(),
        n => format!("{} lost something", counted(n as u64, "backup")),
    }
}

/// The result of a verification as JSON.
pub(super) fn json(found: &Found) -> Value {
    let differences: Vec<_> = found
        .differences
        .iter()
        .map(|d| json!({"path": EntryName(d.path.clone()), "what": d.what}))
        .collect();
    let damage: Vec<_> = found.damage.iter().map(damage_json).collect();
    let lost: Vec<_> = found.lost.iter().map(loss_json).collect();
    let id = Some(&found.id).filter(|id| !id.is_empty());
    json!({"type": "result", "id": id, "shard": found.shard.map(|shard| shard.to_string()), "backups": found.backups, "sound": found.exit_code() != 4, "locked": found.is_locked, "rotating": found.is_rotating,
        "entries": found.entries, "unreadable": found.not_captured, "bad_pages": found.bad_pages, "seconds": found.seconds,
        "damage": damage, "lost": lost, "warnings": found.warnings, "differences": differences})
}

fn loss_json(loss: &EntryLoss) -> Value {
    let paths: Vec<_> = loss
        .files
        .iter()
        .map(|path| EntryName(path.clone()))
        .collect();
    json!({"id": loss.backup, "all": loss.all, "paths": paths, "unnamed": loss.unnamed})
}
