//! The backups that each append host has begun, so that a server can limit them: `hosts/NAME.json`.
//!
//! Only a server writes these objects, and only for hosts with a limit. They are beside the backups, not on
//! the server: a storage that several servers offer has one limit.

use super::AppendRules;
use crate::{Objects, Put, PutIf};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{BACKUPS, HOSTS, is_backup_id},
    root::FORMAT,
    seal::{open_sealed, seal},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Seconds of a day.
const DAY: i64 = 24 * 3600;

/// Attempts to write an object that other sessions of the host write at the same time.
const TRIES: usize = 16;

/// Bytes that an object takes beyond its content: its name, and the rest of a block.
pub(super) const OBJECT_BYTES: u64 = 4096;

/// The backups of one host.
#[derive(Debug, Default, Serialize, Deserialize)]
struct HostLedger {
    format: u32,
    host: String,
    backups: Vec<BegunBackup>,
}

/// A backup that was announced.
#[derive(Debug, Serialize, Deserialize)]
struct BegunBackup {
    id: String,
    /// When, by the clock of the server, in seconds since 1970.
    begun: i64,
}

/// Returns the bytes that each backup has stored.
fn stored_bytes(objects: &dyn Objects) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for object in objects.list(BACKUPS)? {
        let below = object.key.strip_prefix(BACKUPS);
        let id = below.and_then(|below| below.split('/').nth(1));
        if let Some(id) = id.filter(|id| is_backup_id(id)) {
            let bytes = all.entry(id.to_owned()).or_insert(0_u64);
            *bytes = bytes.saturating_add(object.bytes + OBJECT_BYTES);
        }
    }
    Ok(all)
}

impl HostLedger {
    fn key(host: &str) -> String {
        format!("{HOSTS}/{host}.json")
    }

    /// Reads the backups of a host, and how to replace what was read.
    fn read(objects: &dyn Objects, host: &str) -> Result<(Self, PutIf)> {
        let key = Self::key(host);
        match objects.get(&key)? {
            Some((bytes, version)) => Ok((
                open_sealed(&bytes, &objects.describe(&key))?,
                PutIf::Version(version),
            )),
            None => Ok((Self::default(), PutIf::Absent)),
        }
    }

    fn used(&self, stored: &BTreeMap<String, u64>) -> u64 {
        let bytes = self
            .backups
            .iter()
            .filter_map(|begun| stored.get(&begun.id));
        bytes.fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    fn of_last_day(&self, now: i64) -> usize {
        let is_recent = |begun: &&BegunBackup| begun.begun > now - DAY;
        self.backups.iter().filter(is_recent).count()
    }
}

/// Returns the bytes that the backups of a host have stored.
///
/// # Errors
/// The storage's; [`ErrorKind::Corrupt`] if the list of its backups is damaged.
pub(super) fn used_bytes(objects: &dyn Objects, host: &str) -> Result<u64> {
    let (ledger, _) = HostLedger::read(objects, host)?;
    Ok(ledger.used(&stored_bytes(objects)?))
}

/// Notes that a host begins a backup. Returns the bytes that its backups have stored.
///
/// # Errors
/// [`ErrorKind::Full`] if a limit of the host is reached; as [`used_bytes`].
pub(super) fn note_begun(
    objects: &dyn Objects,
    host: &str,
    id: &str,
    rules: &AppendRules,
) -> Result<u64> {
    let now = Timestamp::now().as_second();
    for _ in 0..TRIES {
        let (mut ledger, condition) = HostLedger::read(objects, host)?;
        let stored = stored_bytes(objects)?;
        // Backups that are gone count for a day, so that beginning and giving up is limited as well.
        ledger
            .backups
            .retain(|noted| noted.begun > now - DAY || stored.contains_key(&noted.id));
        let used = ledger.used(&stored);
        rules.check_used(used)?;
        check_count(&ledger, now, rules)?;
        ledger.backups.push(BegunBackup {
            id: id.to_owned(),
            begun: now,
        });
        let ledger = HostLedger {
            format: FORMAT,
            host: host.to_owned(),
            ..ledger
        };
        let put = objects.put(&HostLedger::key(host), &seal(&ledger)?, &condition)?;
        if matches!(put, Put::Done(_)) {
            return Ok(used);
        }
    }
    let message =
        format!("could not begin a backup of host {host:?}: it begins many at the same time");
    Err(Error::new(ErrorKind::System, message).hint("run the same command again"))
}

fn check_count(ledger: &HostLedger, now: i64, rules: &AppendRules) -> Result<()> {
    let begun = ledger.of_last_day(now);
    match rules.max_per_day {
        Some(limit) if begun >= limit as usize => {
            let message = "cannot begin a backup: this host has reached its limit of backups a day";
            let why = format!("it has begun {begun} within 24 hours, and may begin {limit}");
            Err(Error::new(ErrorKind::Full, message)
                .because(why)
                .hint("the limit is --max-per-day of the server"))
        }
        _ => Ok(()),
    }
}
