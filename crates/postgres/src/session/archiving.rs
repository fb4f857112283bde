//! How a server archives its WAL: settings, rights, and what waits.

use super::Session;
use crate::lsn::Lsn;
use fullbore_format::error::Result;
use postgres::types::Type;

/// How a server archives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivingFacts {
    /// The server's own words: `15.18 (Debian 15.18-0+deb12u1)`.
    pub version: String,
    /// Identifies the cluster.
    pub system_identifier: u64,
    /// Bytes of a WAL segment.
    pub segment_bytes: u64,
    /// `off`, `on` or `always`.
    pub archive_mode: String,
    /// Whether another `archive_mode` or `wal_level` is configured, and counts after a restart.
    pub waits_for_restart: bool,
    /// Empty if none is set.
    pub archive_command: String,
    /// Empty if none is set, and before version 15.
    pub archive_library: String,
    /// Seconds after which a segment is ended that is not full; 0 for never.
    pub archive_timeout: i32,
    /// `minimal`, `replica` or `logical`.
    pub wal_level: String,
    /// If it is off, a restore of a torn page fails.
    pub full_page_writes: bool,
    /// The role, quoted for SQL.
    pub role: String,
    /// Whether the role may end a segment.
    pub may_switch: bool,
    /// Standbys that stream from this server.
    pub standbys: i64,
    /// Programs that receive its WAL and store it.
    pub receivers: i64,
}

const ARCHIVING: &str = "SELECT current_setting('server_version'), \
    (SELECT system_identifier FROM pg_control_system()), \
    (SELECT bytes_per_wal_segment FROM pg_control_init()), \
    current_setting('archive_mode'), \
    (SELECT coalesce(bool_or(pending_restart), false) FROM pg_settings \
        WHERE name IN ('archive_mode', 'wal_level')), \
    coalesce((SELECT setting FROM pg_settings WHERE name = 'archive_command' \
        AND setting <> '(disabled)'), ''), \
    coalesce((SELECT setting FROM pg_settings WHERE name = 'archive_library'), ''), \
    (SELECT setting::int FROM pg_settings WHERE name = 'archive_timeout'), \
    current_setting('wal_level'), \
    current_setting('full_page_writes')::bool, \
    quote_ident(current_user), \
    has_function_privilege('pg_switch_wal()', 'execute'), \
    (SELECT count(*) FROM pg_stat_replication WHERE NOT application_name ~ ($1 || '|^pg_basebackup') AND NOT EXISTS \
        (SELECT FROM pg_replication_slots WHERE active_pid = pid AND slot_type = 'logical')), \
    (SELECT count(*) FROM pg_stat_replication WHERE application_name ~ $1)";

/// Names by which programs that store WAL call their connections.
const RECEIVERS: &str = "^(fullbore|pg_receivewal|barman|wal-g)";

impl Session {
    /// Asks the server how it archives.
    ///
    /// # Errors
    /// The server's; if the session is lost.
    pub fn archiving_facts(&mut self) -> Result<ArchivingFacts> {
        let message = "could not ask the server how it archives";
        let row = self.row(message, ARCHIVING, &[(&RECEIVERS, Type::TEXT)])?;
        Ok(ArchivingFacts {
            version: row.get(0)?,
            system_identifier: row.get::<i64>(1)?.cast_unsigned(),
            segment_bytes: u64::from(row.get::<i32>(2)?.cast_unsigned()),
            archive_mode: row.get(3)?,
            waits_for_restart: row.get(4)?,
            archive_command: row.get(5)?,
            archive_library: row.get(6)?,
            archive_timeout: row.get(7)?,
            wal_level: row.get(8)?,
            full_page_writes: row.get(9)?,
            role: row.get(10)?,
            may_switch: row.get(11)?,
            standbys: row.get(12)?,
            receivers: row.get(13)?,
        })
    }

    /// Returns the timeline and the location up to which a primary has written WAL, or a standby has replayed it.
    ///
    /// # Errors
    /// The server's; if the session is lost.
    pub fn wal_position(&mut self) -> Result<(u32, Lsn)> {
        let function = match self.standby() {
            true => "pg_last_wal_replay_lsn()",
            false => "pg_current_wal_lsn()",
        };
        let sql = format!("SELECT coalesce({function}, '0/0')::text");
        let row = self.row("could not ask for the end of the WAL", &sql, &[])?;
        let position: Lsn = row.get::<&str>(0)?.parse()?;
        Ok((self.timeline()?, position))
    }

    /// Returns the seconds since a finished segment was written; without the right to list WAL, the seconds since the archiver last
    /// succeeded, and `None` if it never did.
    ///
    /// # Errors
    /// The server's; if the session is lost.
    pub fn segment_age(&mut self, segment: &str) -> Result<Option<f64>> {
        let message = "could not ask for the age of a segment";
        let may = "SELECT has_function_privilege('pg_ls_waldir()', 'execute')";
        if self.row(message, may, &[])?.get::<bool>(0)? {
            let sql = "SELECT extract(epoch FROM clock_timestamp() - modification)::float8 \
                FROM pg_ls_waldir() WHERE name = $1";
            let rows = self.rows(message, sql, &[(&segment, Type::TEXT)])?;
            if let Some(row) = rows.first() {
                return row.get(0);
            }
        }
        let sql = "SELECT extract(epoch FROM clock_timestamp() - last_archived_time)::float8 \
            FROM pg_stat_archiver";
        self.row(message, sql, &[])?.get(0)
    }
}
