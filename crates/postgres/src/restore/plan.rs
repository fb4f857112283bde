//! Plans the restore of a cluster, beside its files.
//!
//! Combines the facts about the cluster and the operator's options: which paths are elsewhere;
//! which files are restored empty, not at all or last; which files are written in addition. Reads
//! and writes no file. "Rule N" is a rule of `doc/postgres.md`.

use super::{
    advice,
    recovery::{self, Recovery, RecoveryFacts, RecoveryOptions},
    settings, tablespaces,
};
use crate::relation;
use fullbore_format::{
    entry,
    error::{Error, ErrorKind, Result, quoted},
    root::{ClusterInfo, DatabaseInfo},
    wal::SegmentName,
};
use fullbore_tree::write::{final_file::FinalFile, layout::TargetMount};
use std::path::PathBuf;

/// The file without which a server does not start.
pub const PG_CONTROL: &[u8] = b"global/pg_control";
/// Tells a server that its files come from a backup, and where recovery begins.
pub const BACKUP_LABEL: &[u8] = b"backup_label";
pub const PG_WAL: &str = "pg_wal";
/// Makes a server create the links of its tablespaces.
pub const TABLESPACE_MAP: &[u8] = b"tablespace_map";
/// Settings that the server itself writes; read after `postgresql.conf`.
pub const AUTO_CONF: &[u8] = b"postgresql.auto.conf";
/// Written by a running server.
pub const POSTMASTER_PID: &[u8] = b"postmaster.pid";
/// Lets recovery continue where WAL refers to missing pages.
const IGNORE_INVALID_PAGES: &str = "ignore_invalid_pages";
/// Database that tools connect to.
const MAINTENANCE: &[u8] = b"postgres";

/// The operator's options for the restore of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterOptions {
    /// Tablespaces, by location, name or OID, and their new directories.
    pub tablespaces: Vec<(Vec<u8>, PathBuf)>,
    /// Directory for all other tablespaces, each below its name.
    pub tablespaces_under: Option<PathBuf>,
    /// Directory for the WAL; `None` for the data directory.
    pub waldir: Option<PathBuf>,
    /// Databases to restore; empty for all.
    pub databases: Vec<String>,
    pub recovery: RecoveryOptions,
}

/// Steps of a restore beside writing the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterPlan {
    pub mounts: Vec<TargetMount>,
    /// The file to put in place last.
    pub last: Option<FinalFile>,
    /// Settings and signal file for recovery.
    pub recovery: Recovery,
    pub notes: Vec<String>,
    /// Steps before the server starts, one line each.
    pub before_start: Vec<String>,
    /// Steps after the server has started, one line each.
    pub next: Vec<String>,
    /// True if the server recovers only with `allow_in_place_tablespaces`.
    pub in_place: bool,
    /// WAL segments that are taken from the archive in the repository and put into the data directory.
    pub archived_segments: Vec<SegmentName>,
    /// OIDs of the databases that are restored empty.
    emptied: Vec<u32>,
    left_out: Vec<entry::EntryPath>,
}

/// Treatment of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Restored,
    /// Restored as a file of the same size without content.
    Emptied,
    /// Not restored.
    LeftOut,
}

/// Step for a server that pauses at its target, the default action.
const PAUSED_STEP: &str = "at the target the server can only be read; if it is the right one, \
    SELECT pg_wal_replay_resume();";
/// While paused, the startup process keeps the locks of transactions that it has replayed in part.
const LOCKED_STEP: &str = "right before a DROP or TRUNCATE that table is locked until the server \
    is open, and reading it waits until then: to read it, restore a copy with --target-action \
    promote";

/// Reason to reset a setting once the server is open.
const RESET_REASON: &str =
    "it is only for this recovery, and a standby made from this server would use it too";

impl ClusterPlan {
    /// Makes the plan for a cluster.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if an option does not fit this cluster.
    pub fn new(
        options: &ClusterOptions,
        cluster: &ClusterInfo,
        known: &RecoveryFacts<'_>,
    ) -> Result<Self> {
        settings::check(&options.recovery.settings, cluster.major)?;
        let mut mounts = tablespaces::tablespace_mounts(options, cluster)?;
        let unwanted = unwanted_databases(options, cluster)?;
        let (mut recovery, mut notes) = recovery::plan(&options.recovery, cluster, known)?;
        notes.extend(advice::new_tablespace_notes(cluster));
        notes.extend(advice::subscriptions_note(&options.recovery, cluster));
        let mut next = steps_after_start(options, &recovery, &unwanted);
        // WAL refers to pages that it does not contain; for hash indexes even in a cluster with
        // checksums. In an emptied file such pages are holes, and recovery would stop.
        if cluster.online && !unwanted.is_empty() {
            recovery
                .settings
                .push((IGNORE_INVALID_PAGES.to_owned(), "on".to_owned()));
            next.push(format!("ALTER SYSTEM RESET {IGNORE_INVALID_PAGES};"));
        }
        // Without `backup_label` a server would silently start from the wrong checkpoint (rule 9).
        let only_with = cluster.online.then(|| BACKUP_LABEL.to_vec());
        let last = FinalFile {
            path: PG_CONTROL.to_vec(),
            only_with,
        };
        let left_out = left_out(options, cluster, &recovery, !mounts.is_empty());
        if let Some(dir) = &options.waldir {
            mounts.push(tablespaces::wal_mount(dir)?);
        }
        Ok(Self {
            archived_segments: Vec::new(),
            last: Some(last),
            mounts,
            notes,
            before_start: advice::wal_step(&recovery, cluster).into_iter().collect(),
            recovery,
            next,
            in_place: false,
            emptied: unwanted.into_iter().map(|database| database.oid).collect(),
            left_out,
        })
    }

    /// Leaves out a prepared transaction, by its file in `pg_twophase`, if its database is restored
    /// empty. Returns whether it is left out.
    ///
    /// Such a transaction could not be ended, and would keep its database from being dropped.
    pub fn leave_out_prepared(&mut self, path: &[u8], content: &[u8]) -> bool {
        let is_lost =
            database_of_prepared(content).is_some_and(|database| self.emptied.contains(&database));
        self.left_out.extend(is_lost.then(|| path.to_vec()));
        is_lost
    }

    /// Returns whether every file is restored with its content.
    pub fn restores_all_databases(&self) -> bool {
        self.emptied.is_empty()
    }

    /// Returns whether the entry at `path` is in a tablespace but outside the server's own
    /// directories there.
    ///
    /// The backup names the location of a tablespace; a forged backup may name a place where other
    /// file names have a meaning.
    pub fn is_outside_server_directories(&self, path: &[u8]) -> bool {
        self.mounts
            .iter()
            .filter(|mount| mount.at != path && entry::is_within(path, &mount.at))
            .any(|mount| {
                let name = path[mount.at.len() + 1..]
                    .split(|byte| *byte == b'/')
                    .next()
                    .unwrap_or_default();
                !mount.may_contain(name)
            })
    }

    /// Returns whether the entry at `path` is not restored. Another file may be written there, so
    /// the entry's other names are not links to it.
    pub fn leaves_out(&self, path: &[u8]) -> bool {
        self.fate(path) == Fate::LeftOut
    }

    /// Returns the treatment of the entry at `path`.
    pub fn fate(&self, path: &[u8]) -> Fate {
        let is_emptied = || database_of(path).is_some_and(|oid| self.emptied.contains(&oid));
        if self.left_out.iter().any(|left_out| left_out == path) {
            Fate::LeftOut
        } else if !self.emptied.is_empty() && is_emptied() {
            Fate::Emptied
        } else {
            Fate::Restored
        }
    }
}

/// Returns the steps for the time after the server has started, one line each.
fn steps_after_start(
    options: &ClusterOptions,
    recovery: &Recovery,
    unwanted: &[&DatabaseInfo],
) -> Vec<String> {
    let mut next = Vec::new();
    if options.recovery.pauses_at_target() {
        next.push(PAUSED_STEP.to_owned());
    }
    if options.recovery.may_pause_mid_transaction() {
        next.push(LOCKED_STEP.to_owned());
    }
    next.extend(
        recovery
            .temporary_settings()
            .map(|name| format!("ALTER SYSTEM RESET {name}; -- {RESET_REASON}")),
    );
    next.extend(unwanted.iter().flat_map(|database| drop_database(database)));
    next
}

/// Returns the paths that are not restored.
fn left_out(
    options: &ClusterOptions,
    cluster: &ClusterInfo,
    recovery: &Recovery,
    has_mounts: bool,
) -> Vec<entry::EntryPath> {
    let mut left_out: Vec<&[u8]> = vec![POSTMASTER_PID];
    // Signal files of an earlier recovery do not apply to this one (rule 12). A standby that was shut
    // down stays a standby: it must not write on its primary's timeline.
    if cluster.online || options.recovery.is_chosen() {
        left_out.extend([recovery::RECOVERY_SIGNAL, recovery::STANDBY_SIGNAL]);
    }
    if recovery.changes_settings() {
        left_out.push(AUTO_CONF);
    }
    // The server would replace the new links with the old locations of the tablespaces (rule 36).
    if has_mounts {
        left_out.push(TABLESPACE_MAP);
    }
    left_out.into_iter().map(<[u8]>::to_vec).collect()
}

/// Returns the database whose content the file is. `PG_VERSION` belongs to none: `DROP DATABASE`
/// needs it (rule 39).
fn database_of(path: &[u8]) -> Option<u32> {
    relation::database_of(path).filter(|_| !path.ends_with(b"/PG_VERSION"))
}

/// Returns the database of a prepared transaction, from its file.
///
/// `TwoPhaseFileHeader` of twophase.c, from 13 to 18, begins with a magic number, the length, the
/// transaction's ID, and the database's OID, 4 bytes each.
fn database_of_prepared(content: &[u8]) -> Option<u32> {
    let is_whole = u32_at(content, 4)? as usize == content.len();
    if is_whole { u32_at(content, 12) } else { None }
}

fn u32_at(content: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(
        content.get(offset..offset + 4)?.try_into().ok()?,
    ))
}

/// Returns the databases that are not wanted. Templates and `postgres` are always wanted.
fn unwanted_databases<'a>(
    options: &ClusterOptions,
    cluster: &'a ClusterInfo,
) -> Result<Vec<&'a DatabaseInfo>> {
    if options.databases.is_empty() {
        return Ok(Vec::new());
    }
    let is_there = |name: &&String| {
        cluster
            .databases
            .iter()
            .any(|database| database.name.0 == name.as_bytes())
    };
    if let Some(missing) = options.databases.iter().find(|name| !is_there(name)) {
        let names: Vec<String> = cluster
            .databases
            .iter()
            .map(|database| quoted(&database.name.0))
            .collect();
        let names = if names.is_empty() {
            "none by name".to_owned()
        } else {
            names.join(", ")
        };
        return Err(Error::new(
            ErrorKind::Usage,
            format!("cannot restore database {missing:?}: the backup does not have it"),
        )
        .hint(format!("it knows {names}")));
    }
    let is_wanted = |name: &[u8]| {
        options
            .databases
            .iter()
            .any(|wanted| wanted.as_bytes() == name)
    };
    let kept = |name: &[u8]| name == MAINTENANCE || is_wanted(name);
    Ok(cluster
        .databases
        .iter()
        .filter(|database| !database.template && !kept(&database.name.0))
        .collect())
}

/// Returns the statements that drop a database; if its name is not UTF-8, a statement with which
/// `psql` makes the name.
///
/// A database with subscriptions cannot be dropped, and they can be dropped only from inside; so
/// they are deleted first.
fn drop_database(database: &DatabaseInfo) -> impl Iterator<Item = String> {
    let oid = database.oid;
    let subscribes = (database.subscriptions > 0)
        .then(|| format!("DELETE FROM pg_subscription WHERE subdbid = {oid};"));
    let drop = match str::from_utf8(&database.name.0) {
        Ok(name) => format!("DROP DATABASE \"{}\";", name.replace('"', "\"\"")),
        Err(_) => format!(
            "SELECT format('DROP DATABASE %I', datname) FROM pg_database WHERE oid = {oid} \\gexec"
        ),
    };
    subscribes.into_iter().chain([drop])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_know_their_database_and_pg_version_has_none() {
        let cases: [(&[u8], Option<u32>); 8] = [
            (b"base/5/1259", Some(5)),
            (b"base/5/PG_VERSION", None),
            (b"base/5", None),
            (b"base/x/1259", None),
            (b"pg_tblspc/16400/PG_15_202209061/5/1259", Some(5)),
            (b"pg_tblspc/16400/PG_15_202209061/5/PG_VERSION", None),
            (b"pg_tblspc/16400/other/5/1259", None),
            (b"global/1262", None),
        ];
        for (path, oid) in cases {
            assert_eq!(database_of(path), oid, "{}", String::from_utf8_lossy(path));
        }
    }
}
