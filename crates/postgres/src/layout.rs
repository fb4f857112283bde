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

/// The rules for one cluster.
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn picked(major: u32, online: bool, dir: &str, names: &[&str]) -> Vec<String> {
        let kind = |name: &str| {
            if name.ends_with('/') {
                FileKind::Directory
            } else {
                FileKind::File
            }
        };
        let name = |name: &&str| DirName {
            bytes: name.trim_end_matches('/').into(),
            kind: kind(name),
            inode: 1,
        };
        let mut names: Vec<DirName> = names.iter().map(name).collect();
        ClusterLayout::new(major, 202_209_061, online).retain_backed_up(dir.as_bytes(), &mut names);
        names
            .into_iter()
            .map(|name| String::from_utf8(name.bytes).unwrap())
            .collect()
    }

    #[test]
    fn only_prepared_transactions_from_before_the_start_are_stored_while_the_server_runs() {
        let picked = |online| {
            let name = |bytes: &str| DirName {
                bytes: bytes.into(),
                kind: FileKind::File,
                inode: 1,
            };
            let mut names = vec![name("000002E4"), name("000002E5")];
            let before = BTreeSet::from([b"000002E4".to_vec(), b"000002E3".to_vec()]);
            ClusterLayout::new(15, 202_209_061, online)
                .with_prepared(before)
                .retain_backed_up(b"pg_twophase", &mut names);
            names.len()
        };
        assert_eq!((picked(true), picked(false)), (1, 2));
    }

    #[test]
    fn only_files_of_this_server_process_are_left_out_of_the_data_directory() {
        let all = [
            "PG_VERSION",
            "backup_label",
            "backup_label.old",
            "backup_manifest",
            "base/",
            "current_logfiles",
        ];
        assert_eq!(
            picked(15, true, "", &all),
            ["PG_VERSION", "base", "current_logfiles"]
        );
        let all = [
            "postmaster.pid",
            "postmaster.pid.mine",
            "postgresql.auto.conf",
            "postgresql.auto.conf.tmp",
            "pg_wal/",
        ];
        assert_eq!(
            picked(15, true, "", &all),
            ["postmaster.pid.mine", "postgresql.auto.conf", "pg_wal"]
        );
        assert_eq!(
            picked(15, true, "", &["pg_notify/", "pg_replslot/"]),
            ["pg_notify", "pg_replslot"]
        );
        assert_eq!(
            picked(15, true, "", &[".s.PGSQL.5432.lock", ".s.PGSQL.note"]),
            [".s.PGSQL.note"]
        );
    }

    #[test]
    fn signal_files_stay_only_where_there_is_no_label() {
        assert_eq!(
            picked(15, true, "", &["standby.signal", "recovery.signal"]),
            [""; 0]
        );
        assert_eq!(
            picked(15, false, "", &["standby.signal", "recovery.signal"]),
            ["standby.signal", "recovery.signal"]
        );
    }

    #[test]
    fn directories_that_the_server_makes_anew_are_emptied_there_and_nowhere_else() {
        for online in [true, false] {
            for dir in EMPTIED {
                assert_eq!(
                    picked(
                        15,
                        online,
                        std::str::from_utf8(dir).unwrap(),
                        &["0000", "slot/"]
                    ),
                    [""; 0]
                );
            }
        }
        assert_eq!(picked(15, true, "mine/pg_notify", &["0000"]), ["0000"]);
        assert_eq!(
            picked(15, true, "log", &["postmaster.pid", "pgsql_tmp1", "t1_2"]),
            ["postmaster.pid", "pgsql_tmp1", "t1_2"]
        );
    }

    #[test]
    fn wal_stays_where_the_server_is_stopped() {
        let all = ["000000010000000000000001", "archive_status/", "summaries/"];
        assert_eq!(picked(16, true, "pg_wal", &all), ["archive_status"]);
        assert_eq!(
            picked(17, true, "pg_wal", &all),
            ["archive_status", "summaries"]
        );
        assert_eq!(
            picked(17, false, "pg_wal", &all),
            all.map(|name| name.trim_end_matches('/'))
        );
        assert_eq!(
            picked(17, true, "pg_wal/archive_status", &["0.done"]),
            [""; 0]
        );
        assert_eq!(
            picked(17, false, "pg_wal/archive_status", &["0.done"]),
            ["0.done"]
        );
    }

    #[test]
    fn the_control_file_of_a_running_server_comes_later() {
        let all = [
            "1262",
            "pg_control",
            "pg_internal.init",
            "pg_internal.init.77",
            "pg_filenode.map",
        ];
        assert_eq!(
            picked(15, true, "global", &all),
            ["1262", "pg_filenode.map"]
        );
        assert_eq!(
            picked(15, false, "global", &all),
            ["1262", "pg_control", "pg_filenode.map"]
        );
    }

    #[test]
    fn init_forks_of_unlogged_relations_stay_and_temporary_relations_do_not() {
        let all = [
            "10",
            "10.1",
            "10_fsm",
            "10_fsm.1",
            "10_vm",
            "10_init",
            "100",
            "100_fsm",
            "12",
            "11_init",
            "t3_10_init",
        ];
        let kept = ["10_init", "100", "100_fsm", "12", "11_init"];
        for dir in ["base/5", "pg_tblspc/16400/PG_15_202209061/5"] {
            assert_eq!(picked(15, true, dir, &all), kept);
            assert_eq!(
                picked(
                    15,
                    true,
                    dir,
                    &["t3_16400", "t3_16400_fsm.2", "t_1", "t3_16400_x", "tab"]
                ),
                ["t_1", "t3_16400_x", "tab"]
            );
            assert_eq!(
                picked(
                    15,
                    true,
                    dir,
                    &["pg_internal.init", "PG_VERSION", "pgsql_tmp9"]
                ),
                ["PG_VERSION"]
            );
        }
    }

    #[test]
    fn wal_repairs_relations_and_the_status_of_transactions_and_nothing_else() {
        let layout = ClusterLayout::new(15, 202_209_061, true);
        let repaired = [
            "base/5/1259.2",
            "global/1262_fsm",
            "pg_tblspc/16400/PG_15_202209061/5/2619",
            "pg_xact/0000",
        ];
        assert!(
            repaired
                .iter()
                .all(|path| layout.is_repaired_by_wal(path.as_bytes()))
        );
        assert!(layout.is_repaired_by_wal(b"pg_multixact/offsets/0000"));
        let not = [
            "postgresql.auto.conf",
            "global/pg_filenode.map",
            "base/5/PG_VERSION",
            "pg_logical/1",
            "mine/1259",
        ];
        assert!(
            !not.iter()
                .any(|path| layout.is_repaired_by_wal(path.as_bytes()))
        );
    }

    #[test]
    fn only_directly_in_its_directory_the_server_may_have_links() {
        let layout = ClusterLayout::new(15, 202_209_061, true);
        let data = [
            "base/5",
            "base/5/1259",
            "global/1262",
            "pg_tblspc/16400/PG_15_202209061",
            "pg_multixact/members",
        ];
        assert!(
            data.iter()
                .all(|path| layout.is_server_data(path.as_bytes()))
        );
        let not = [
            "pg_wal",
            "postgresql.conf",
            "server.crt",
            "pg_tblspc/16400",
            "conf.d/mine.conf",
            "log/now",
        ];
        assert!(
            !not.iter()
                .any(|path| layout.is_server_data(path.as_bytes()))
        );
    }

    #[test]
    fn unlogged_relations_of_a_stopped_server_stay_whole() {
        let all = ["10", "10.1", "10_fsm", "10_init", "t3_10"];
        assert_eq!(
            picked(15, false, "base/5", &all),
            ["10", "10.1", "10_fsm", "10_init"]
        );
    }

    #[test]
    fn only_the_directory_of_this_version_stays_in_a_tablespace() {
        assert_eq!(
            picked(15, true, "pg_tblspc", &["16400/", "1x/", "lost+found/"]),
            ["16400"]
        );
        let all = ["PG_15_202209061/", "PG_14_202107181/", "notes"];
        assert_eq!(
            picked(15, true, "pg_tblspc/16400", &all),
            ["PG_15_202209061"]
        );
        assert_eq!(
            picked(
                15,
                true,
                "pg_tblspc/16400/PG_15_202209061",
                &["5/", "pgsql_tmp/"]
            ),
            ["5"]
        );
        assert_eq!(picked(15, true, "base", &["5/", "pgsql_tmp/"]), ["5"]);
    }

    proptest! {
        #[test]
        fn no_name_is_added_or_moved_and_picking_twice_changes_nothing(
            dir in "(base|global|pg_wal|pg_tblspc|x|)(/[0-9]{1,3})?",
            names in proptest::collection::vec("t?[0-9]{1,2}(_[0-9]|_init|_fsm|_vm)?(\\.[0-9])?", 0..20),
            online: bool,
        ) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let once = picked(17, online, &dir, &names);
            let mut rest = names.iter();
            prop_assert!(once.iter().all(|kept| rest.any(|name| name == kept)));
            let again: Vec<&str> = once.iter().map(String::as_str).collect();
            prop_assert_eq!(picked(17, online, &dir, &again), once);
        }
    }
}
