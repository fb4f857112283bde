//! The facts of a PostgreSQL cluster in a root.

use super::{EntryName, is_zero};
use serde::{Deserialize, Serialize};

/// Facts about a PostgreSQL cluster that was backed up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ClusterInfo {
    /// Version as the server reports it: `15.18`, `18beta1`.
    pub version: String,
    /// Major version: 13 to 18.
    pub major: u32,
    /// Identifies the cluster. A string, because many JSON readers do not hold 64-bit numbers.
    pub system_identifier: String,
    /// Timeline at the end of the backup.
    pub timeline: u32,
    /// Whether the server was running.
    pub online: bool,
    /// Whether the server was a standby.
    pub standby: bool,
    /// Whether data pages have checksums.
    pub checksums: bool,
    /// LSN where recovery begins, as `0/2000028`; empty if the server was not running.
    pub start_lsn: String,
    /// LSN where the cluster is consistent; empty in older roots if the server was not running.
    pub stop_lsn: String,
    /// Time when the server reached `stop_lsn`, by its own clock, as RFC 3339 in UTC; empty if it
    /// was not running, and in older roots.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stopped: String,
    /// Where the WAL between the two LSNs is: `included`, `archived` or `none`.
    pub wal: String,
    /// Names of the first and the last WAL segment that recovery needs; empty if recovery needs no
    /// WAL.
    pub wal_segments: Vec<String>,
    /// Bytes of a WAL segment.
    pub wal_segment_bytes: u64,
    /// Whether the server archived its WAL; false in older roots, and if it was not running.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archives: bool,
    /// Whether the server had a `restore_command`; false if it was not running.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_restore_command: bool,
    /// How the files were read: `files`, `sql` or `protocol`; empty if the server was not running.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub via: String,
    /// Why the files were read in this way; empty if the server was not running.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub via_reason: String,
    /// The data directory of the server. Empty if the role may not read its path.
    pub data_directory: EntryName,
    /// Configuration files outside of the data directory, which are not in the backup.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configuration: Vec<EntryName>,
    /// Tablespaces, ordered by OID. The content of a tablespace is stored below `pg_tblspc/OID`.
    pub tablespaces: Vec<Tablespace>,
    /// Tablespaces that were created while the backup ran. Recovery creates them again at their
    /// original location.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tablespaces_meanwhile: Vec<Tablespace>,
    /// Links, pipes and devices, which PostgreSQL's manifest cannot describe; the first 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unlisted: Vec<EntryName>,
    /// Databases, ordered by OID.
    pub databases: Vec<DatabaseInfo>,
    /// Evidence by which a later backup recognizes the same history of the server; absent for some
    /// clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub witness: Option<Witness>,
}

/// Facts that no other history of a cluster shares: neither a copy of it, nor the same cluster
/// after it was rolled back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Witness {
    /// Start time of the server, in seconds since 1970 as the server reports it.
    pub server_start: String,
    /// Name of the last WAL summary that the server had at the end of the backup.
    pub summary: String,
    /// Inode number of that summary file.
    pub inode: u64,
    /// Change time (ctime) of that file, in seconds since 1970 with nine decimals.
    pub ctime: String,
}

/// A tablespace outside of the data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Tablespace {
    /// OID.
    pub oid: u32,
    /// Name, in any encoding.
    pub name: EntryName,
    /// Directory of the tablespace.
    pub location: EntryName,
}

impl Tablespace {
    /// Returns the path in the backup below which the tablespace is stored.
    pub fn path(&self) -> Vec<u8> {
        format!("pg_tblspc/{}", self.oid).into_bytes()
    }
}

/// A database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct DatabaseInfo {
    /// OID.
    pub oid: u32,
    /// Name, in any encoding.
    pub name: EntryName,
    /// Whether it is a template.
    pub template: bool,
    /// Number of logical subscriptions; 0 in older roots, and if the server was not running.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub subscriptions: u32,
}
