//! Decides which files of a cluster are backed up, and which of them hold pages.
//!
//! Paths are relative to the data directory, without a slash at either end; the contents of a
//! tablespace are at `pg_tblspc/OID/…`, wherever they are on disk. Each rule applies only where the
//! server itself makes such a file: a user's directory that happens to be called `pg_notify` is
//! backed up.
//!
//! Pure: opens no file. Links and special files are the walk's work (rule 14).

use super::relation::{self, RelationFork};
use fullbore_format::entry::{is_within, split};
use fullbore_platform::dir::{DirName, FileKind};
use std::collections::{BTreeSet, HashSet};

/// Directories stored empty: the server empties or fills them when it starts (rule 11). Replication
/// slots would survive a start; they are left out because in a copy they would hold WAL back for
/// standbys of another server.
const EMPTIED: [&[u8]; 7] = [
    b"pg_dynshmem",
    b"pg_notify",
    b"pg_replslot",
    b"pg_serial",
    b"pg_snapshots",
    b"pg_stat_tmp",
    b"pg_subtrans",
];

/// Files left out of the data directory itself (rule 12). The labels and the manifest belong to
/// another backup: the backup that this cluster was restored from.
const SKIPPED: [&[u8]; 10] = [
    b"backup_label",
    b"backup_label.old",
    b"backup_manifest",
    b"backup_manifest.tmp",
    b"current_logfiles.tmp",
    b"postgresql.auto.conf.tmp",
    b"postmaster.opts",
    b"postmaster.pid",
    b"tablespace_map",
    b"tablespace_map.old",
];

/// Directories of transaction status: files of pages, which WAL restores. Those of [`EMPTIED`] are
/// not backed up.
const STATUS: [&[u8]; 4] = [
    b"pg_commit_ts",
    b"pg_multixact/members",
    b"pg_multixact/offsets",
    b"pg_xact",
];

/// Other directories of the server's own data, beside relations and WAL.
const OWN: [&[u8]; 5] = [
    b"pg_commit_ts",
    b"pg_logical",
    b"pg_multixact",
    PREPARED,
    b"pg_xact",
];
/// Where the server keeps prepared transactions.
pub const PREPARED: &[u8] = b"pg_twophase";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterLayout {
    /// Name of the directory in each tablespace that belongs to this cluster.
    version: Vec<u8>,
    /// True if the version has `pg_wal/summaries`.
    summaries: bool,
    online: bool,
    /// Names in `pg_twophase` just after the backup began.
    prepared: BTreeSet<Vec<u8>>,
}

/// Kinds of directories in a cluster.
#[derive(PartialEq)]
enum ClusterPlace {
    Root,
    Global,
    /// `base`, or the directory of a tablespace that holds databases.
    Databases,
    Database,
    Tablespaces,
    Tablespace,
    Wal,
    /// Below `pg_wal`.
    WalPart,
    Emptied,
    Other,
}

impl ClusterLayout {
    /// Makes the rules for major version `major` and catalog version `catalog`. `online` means that
    /// the server runs: then a label is made, and WAL and `global/pg_control` are added after
    /// everything else.
    pub fn new(major: u32, catalog: u32, online: bool) -> Self {
        Self {
            version: format!("PG_{major}_{catalog}").into_bytes(),
            summaries: major >= 17,
            online,
            prepared: BTreeSet::new(),
        }
    }

    /// Sets the names of the prepared-transaction files that existed just after the backup began.
    /// From a running server only these are stored.
    ///
    /// A later checkpoint writes files of transactions that the WAL has. A server that finds a file
    /// of a future transaction does not use it; from 17 on it may lose the transaction.
    #[must_use]
    pub fn with_prepared(mut self, names: BTreeSet<Vec<u8>>) -> Self {
        self.prepared = names;
        self
    }

    /// Keeps in `names`, found in the directory `dir`, the names that are backed up (rules 10 to 13
    /// and 15).
    ///
    /// `names` must be all names of the directory: the init fork of a relation decides about the
    /// relation's other files.
    pub fn retain_backed_up(&self, dir: &[u8], names: &mut Vec<DirName>) {
        match self.classify(dir) {
            ClusterPlace::Root => names.retain(|name| self.keeps_in_root(&name.bytes)),
            ClusterPlace::Global => names.retain(|name| self.keeps_in_global(&name.bytes)),
            ClusterPlace::Databases => names.retain(|name| !name.bytes.starts_with(b"pgsql_tmp")),
            ClusterPlace::Database => self.retain_in_database(names),
            ClusterPlace::Tablespaces => {
                names.retain(|name| relation::number(&name.bytes).is_some())
            }
            ClusterPlace::Tablespace => names.retain(|name| name.bytes == self.version),
            ClusterPlace::Wal => names.retain(|name| !self.online || self.keeps_of_wal(name)),
            ClusterPlace::WalPart => names.retain(|_| !self.online),
            ClusterPlace::Emptied => names.clear(),
            // Transactions that were prepared after the start are in the WAL: the server writes
            // their files again.
            ClusterPlace::Other if self.online && dir == PREPARED => {
                names.retain(|name| self.prepared.contains(&name.bytes))
            }
            ClusterPlace::Other => {}
        }
    }

    /// Returns whether WAL repairs the file at `path` if it changes while it is read (rules 18 to
    /// 20). Other files, such as configuration, certificates and replication positions, are wrong
    /// if they are truncated or filled with zeros.
    pub fn is_repaired_by_wal(&self, path: &[u8]) -> bool {
        let (dir, name) = split(path);
        match self.classify(dir) {
            ClusterPlace::Global | ClusterPlace::Database => relation::parse(name).is_some(),
            _ => STATUS.contains(&dir),
        }
    }

    /// Returns whether the server may remove `path` during the backup, because WAL records the
    /// removal or the server no longer needs the file.
    ///
    /// False for configuration files: they are missing only for a moment, while someone writes
    /// them.
    pub fn may_disappear(&self, path: &[u8]) -> bool {
        let (dir, name) = split(path);
        self.online
            && (self.is_server_data(path)
                || self.classify(dir) == ClusterPlace::Tablespaces
                || name.ends_with(b".tmp"))
    }

    /// Returns whether `path` is data that the server itself wrote. Directories of it may be links;
    /// those of tablespaces are.
    pub fn is_server_data(&self, path: &[u8]) -> bool {
        let (dir, _) = split(path);
        match self.classify(dir) {
            ClusterPlace::Root | ClusterPlace::Tablespaces | ClusterPlace::Emptied => false,
            ClusterPlace::Other => OWN.iter().any(|own| is_within(dir, own)),
            _ => true,
        }
    }

    fn classify(&self, dir: &[u8]) -> ClusterPlace {
        let parts: Vec<&[u8]> = dir.split(|&byte| byte == b'/').collect();
        match parts[..] {
            [b""] => ClusterPlace::Root,
            [b"global"] => ClusterPlace::Global,
            [b"base"] => ClusterPlace::Databases,
            [b"pg_tblspc"] => ClusterPlace::Tablespaces,
            [b"pg_wal"] => ClusterPlace::Wal,
            [b"pg_wal", ..] => ClusterPlace::WalPart,
            [name] if EMPTIED.contains(&name) => ClusterPlace::Emptied,
            [b"base", oid] if relation::number(oid).is_some() => ClusterPlace::Database,
            [b"pg_tblspc", _] => ClusterPlace::Tablespace,
            // A tablespace holds a directory for each version that uses it. Those of other servers
            // are not ours.
            [b"pg_tblspc", _, version] if version == self.version => ClusterPlace::Databases,
            [b"pg_tblspc", _, version, oid]
                if version == self.version && relation::number(oid).is_some() =>
            {
                ClusterPlace::Database
            }
            _ => ClusterPlace::Other,
        }
    }

    /// Signal files, which ask for recovery, are kept only from a stopped server. Its copy has no
    /// label; without the signal file, a standby would end recovery where its WAL ends, and write
    /// on in its primary's timeline.
    ///
    /// A backup with a label is recovered as the person who restores it says. The standby's signal
    /// file would make it wait for a primary. pgBackRest leaves both files out as well;
    /// `pg_basebackup` copies them.
    fn keeps_in_root(&self, name: &[u8]) -> bool {
        let signal = name == b"recovery.signal" || name == b"standby.signal";
        // The lock file of a socket in the data directory. If it names a live process, which any
        // process may be, the server does not start.
        let is_lock = name.starts_with(b".s.PGSQL.") && name.ends_with(b".lock");
        !(SKIPPED.contains(&name) || is_lock || signal && self.online)
    }

    /// From a running server, `pg_control` is read after everything else (rule 15).
    fn keeps_in_global(&self, name: &[u8]) -> bool {
        !(is_relation_cache(name) || self.online && name == b"pg_control")
    }

    /// Keeps only the init fork of an unlogged relation while the server runs: recovery empties the
    /// relation (rule 13). A stopped server starts without recovery and uses the relation as it is.
    fn retain_in_database(&self, names: &mut Vec<DirName>) {
        let unlogged: HashSet<u32> = names
            .iter()
            .filter(|_| self.online)
            .filter_map(|name| unlogged_number(&name.bytes))
            .collect();
        names.retain(|DirName { bytes: name, .. }| match relation::parse(name) {
            Some(file) => file.fork == RelationFork::Init || !unlogged.contains(&file.number),
            None => {
                !is_relation_cache(name)
                    && !name.starts_with(b"pgsql_tmp")
                    && !relation::is_temporary(name)
            }
        });
    }

    fn keeps_of_wal(&self, name: &DirName) -> bool {
        let wanted =
            name.bytes == b"archive_status" || (self.summaries && name.bytes == b"summaries");
        wanted && matches!(name.kind, FileKind::Directory | FileKind::Unknown)
    }
}

/// The server rebuilds its relation cache when it starts. While it writes one, the name ends in a
/// number.
fn is_relation_cache(name: &[u8]) -> bool {
    name.starts_with(b"pg_internal.init")
}

fn unlogged_number(name: &[u8]) -> Option<u32> {
    relation::parse(name)
        .filter(|file| file.fork == RelationFork::Init && file.segment == 0)
        .map(|file| file.number)
}

#[cfg(test)]
mod tests;
