//! What restoring a cluster needs besides its files.
//!
//! From what is known of the cluster and what the operator wants to a plan: which paths are elsewhere, which files come
//! back empty, not at all or last, what is written besides. Nothing here reads or writes. "Rule N" is a rule of online
//! backups and restores, as PostgreSQL's own tools and their peers follow them.

use super::recovery::{Recovery, RecoveryFacts};
use crate::{
    error::{Error, ErrorKind, Result, quoted},
    format::{
        entry,
        root::{ClusterInfo, DatabaseInfo},
    },
    postgres::relation,
    target::{final_file::FinalFile, layout::TargetMount},
};
use std::path::PathBuf;

/// The file without which no server starts.
pub const PG_CONTROL: &[u8] = b"global/pg_control";
/// What tells a server that its files come from a backup, and where recovery begins.
pub const BACKUP_LABEL: &[u8] = b"backup_label";
/// The directory of the WAL.
pub const PG_WAL: &str = "pg_wal";
/// Has a server make the links of its tablespaces.
pub const TABLESPACE_MAP: &[u8] = b"tablespace_map";
/// Settings that the server itself writes; it reads them after `postgresql.conf`.
pub const AUTO_CONF: &[u8] = b"postgresql.auto.conf";
/// Written by a server that runs.
pub const POSTMASTER_PID: &[u8] = b"postmaster.pid";
/// Has recovery go on where WAL speaks of pages that are not there.
const IGNORE_INVALID_PAGES: &str = "ignore_invalid_pages";
/// The database that tools connect to.
const MAINTENANCE: &[u8] = b"postgres";

/// What an operator may want of the restore of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterOptions {
    /// Tablespaces, by location, name or number, and where they are to be.
    pub tablespaces: Vec<(Vec<u8>, PathBuf)>,
    /// Where all other tablespaces are to be, each below its name.
    pub tablespaces_under: Option<PathBuf>,
    /// Where the WAL is to be; `None`: in the data directory.
    pub waldir: Option<PathBuf>,
    /// Databases that are wanted; none means all of them.
    pub databases: Vec<String>,
    /// How the server recovers, and with which settings.
    pub recovery: crate::postgres::restore::recovery::RecoveryOptions,
}

/// What is to be done besides writing the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterPlan {
    /// Tablespaces.
    pub mounts: Vec<TargetMount>,
    /// The file that is put in place last.
    pub last: Option<FinalFile>,
    /// How the server recovers.
    pub recovery: Recovery,
    /// What the operator should know.
    pub notes: Vec<String>,
    /// What is to be done before the server is started, one line for each step,
    pub before_start: Vec<String>,
    /// and after that.
    pub next: Vec<String>,
    /// Does the server recover only if it is told that tablespaces may be directories of the cluster itself?
    pub in_place: bool,
    /// Numbers of the databases that come back empty.
    emptied: Vec<u32>,
    left_out: Vec<entry::EntryPath>,
}

/// What becomes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is restored.
    Restored,
    /// It becomes a file of the same size without content.
    Emptied,
    /// It is not restored.
    LeftOut,
}

/// What a server does at a target, unless told.
const STANDS_STILL: &str = "at the target the server can only be read; if it is the right one, SELECT pg_wal_replay_resume();";
/// The startup process holds the locks of transactions that it has replayed in part, as long as it stands still.
const IS_LOCKED: &str = "right before a DROP or TRUNCATE that table is locked until the server is open, and reading it waits for ever: \
    to read it, restore a copy with --target-action promote";

/// Why a setting is to be reset when the server is open.
const IS_PASSING: &str =
    "it is for this recovery alone, and a standby made from this server would obey it too";

impl ClusterPlan {
    /// The plan for a cluster.
    ///
    /// # Errors
    /// [`Kind::Usage`] for what cannot be done with this cluster.
    pub fn new(
        options: &ClusterOptions,
        cluster: &ClusterInfo,
        known: &RecoveryFacts<'_>,
    ) -> Result<Self> {
        let mut mounts = crate::postgres::restore::tablespaces::mounts(options, cluster)?;
        let unwanted = unwanted(options, cluster)?;
        let (mut recovery, mut notes) =
            crate::postgres::restore::recovery::plan(&options.recovery, cluster, known)?;
        notes.extend(crate::postgres::restore::advice::meanwhile(cluster));
        notes.extend(crate::postgres::restore::advice::subscriptions(
            &options.recovery,
            cluster,
        ));
        let mut next = Vec::new();
        if options.recovery.stands_still() {
            next.push(STANDS_STILL.to_owned());
        }
        if options.recovery.may_stand_before_a_drop() {
            next.push(IS_LOCKED.to_owned());
        }
        next.extend(
            recovery
                .passing()
                .map(|name| format!("ALTER SYSTEM RESET {name}; -- {IS_PASSING}")),
        );
        next.extend(unwanted.iter().flat_map(|database| drop_database(database)));
        // WAL speaks of pages that it does not bring, of hash indexes also where pages have checksums: in those that are holes now,
        // recovery would stop.
        if cluster.online && !unwanted.is_empty() {
            recovery
                .settings
                .push((IGNORE_INVALID_PAGES.to_owned(), "on".to_owned()));
            next.push(format!("ALTER SYSTEM RESET {IGNORE_INVALID_PAGES};"));
        }
        // A server without `backup_label` would start from the wrong checkpoint, and nobody would notice (rule 9).
        let only_with = cluster.online.then(|| BACKUP_LABEL.to_vec());
        let mut left_out: Vec<&'static [u8]> = vec![POSTMASTER_PID];
        if cluster.online || options.recovery.is_chosen() {
            // Signals of an earlier recovery are not meant for this one (rule 12).
            left_out.extend([
                crate::postgres::restore::recovery::RECOVERY_SIGNAL,
                crate::postgres::restore::recovery::STANDBY_SIGNAL,
            ]);
        } // A standby that was shut down goes on as one: it must not write on the timeline of its primary.
        left_out.extend(recovery.changes_settings().then_some(AUTO_CONF));
        // The server would make our links anew, from where the tablespaces were (rule 36).
        left_out.extend((!mounts.is_empty()).then_some(TABLESPACE_MAP));
        mounts.extend(
            options
                .waldir
                .as_deref()
                .map(crate::postgres::restore::tablespaces::wal)
                .transpose()?,
        );
        Ok(Self {
            last: Some(FinalFile {
                path: PG_CONTROL.to_vec(),
                only_with,
            }),
            mounts,
            notes,
            before_start: crate::postgres::restore::advice::fetch(&recovery, cluster)
                .into_iter()
                .collect(),
            recovery,
            next,
            in_place: false,
            emptied: unwanted.into_iter().map(|database| database.oid).collect(),
            left_out: left_out.into_iter().map(<[u8]>::to_vec).collect(),
        })
    }

    /// Leave out a transaction that was prepared, by its file in `pg_twophase`, if it is of a database that comes back empty: nobody
    /// could end it there, nor drop the database because of it. Is it?
    pub fn leave_out_prepared(&mut self, path: &[u8], content: &[u8]) -> bool {
        let is_lost =
            database_of_prepared(content).is_some_and(|database| self.emptied.contains(&database));
        self.left_out.extend(is_lost.then(|| path.to_vec()));
        is_lost
    }

    /// Does every file come back with its content?
    pub fn is_of_everything(&self) -> bool {
        self.emptied.is_empty()
    }

    /// Is the entry at `path` in a tablespace beside what servers have there? Where a tablespace goes is the word of the
    /// backup, and of a forged one it may be a place where other names mean something.
    pub fn strays(&self, path: &[u8]) -> bool {
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

    /// Is the entry at `path` not restored? Something else may be written there, so its other names are no links to that.
    pub fn leaves_out(&self, path: &[u8]) -> bool {
        self.fate(path) == Fate::LeftOut
    }

    /// What becomes of the entry at `path`.
    pub fn fate(&self, path: &[u8]) -> Fate {
        let is_emptied = || database_of(path).is_some_and(|oid| self.emptied.contains(&oid));
        match () {
            () if self.left_out.iter().any(|left_out| left_out == path) => Fate::LeftOut,
            () if !self.emptied.is_empty() && is_emptied() => Fate::Emptied,
            () => Fate::Restored,
        }
    }
}

/// The database whose content a file is. `PG_VERSION` is of none: `DROP DATABASE` wants to find it (rule 39).
fn database_of(path: &[u8]) -> Option<u32> {
    relation::database_of(path).filter(|_| !path.ends_with(b"/PG_VERSION"))
}

/// The database that a prepared transaction is of, by its file: `TwoPhaseFileHeader` of twophase.c, from 13 to 18, begins with a magic
/// number, the length, the transaction's number, and that of the database, 4 bytes each.
fn database_of_prepared(content: &[u8]) -> Option<u32> {
    let number = |at: usize| {
        Some(u32::from_ne_bytes(
            content.get(at..at + 4)?.try_into().ok()?,
        ))
    };
    (number(4)? as usize == content.len())
        .then(|| number(12))
        .flatten()
}

/// Numbers and names of the databases that are not wanted. Templates and `postgres` always are.
fn unwanted<'a>(
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

/// The statement; where the name cannot be written, one for `psql` that makes it. A database that has subscriptions is not dropped, and
/// they can be dropped only in there.
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
