//! Facts about a server that a backup needs before it begins, and whether the role may take one.

use super::{
    Session,
    rows::{SqlRow, stored_bytes},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{DatabaseInfo, EntryName},
};
use postgres::types::{ToSql, Type};
use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

/// The newest version that was tested.
const NEWEST: u32 = 18;

/// Facts about a server that a backup needs.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerFacts {
    /// The server's own words: `15.18 (Debian 15.18-0+deb12u1)`.
    pub version: String,
    /// For example `150018`.
    pub version_number: u32,
    /// For example `15`.
    pub major: u32,
    /// A warning, if the version is newer than any tested one.
    pub warning: Option<String>,
    /// The data directory; `None` if the role may not read all settings.
    pub data_directory: Option<PathBuf>,
    /// Identifies the cluster.
    pub system_identifier: u64,
    /// True for a standby.
    pub standby: bool,
    /// True if pages have checksums.
    pub checksums: bool,
    pub block_bytes: u32,
    pub wal_segment_bytes: u64,
    /// Value of the setting. If it is off, a primary turns it on during a backup, and a standby's
    /// backup fails (rule 20).
    pub full_page_writes: bool,
    /// Permissions of the data directory: 0o700 or 0o750.
    pub data_directory_mode: u32,
    pub timeline: u32,
    /// `off`, `on` or `always`.
    pub archive_mode: String,
    /// True if a `restore_command` is set.
    pub has_restore_command: bool,
    pub tablespaces: Vec<(u32, EntryName)>,
    /// All databases, sorted by OID.
    pub databases: Vec<DatabaseInfo>,
    /// Configuration files outside the data directory.
    pub configuration: Vec<EntryName>,
    /// True if the role may create a slot, see [`Session::hold_wal`].
    pub may_hold_wal: bool,
}

const SETTINGS: &str = concat!(
    "SELECT current_setting('server_version'), (SELECT ",
    stored_bytes!("setting"),
    " FROM pg_settings WHERE name = 'data_directory'), \
    (SELECT system_identifier FROM pg_control_system()), \
    (SELECT data_page_checksum_version FROM pg_control_init()) <> 0, \
    current_setting('block_size')::int, \
    (SELECT bytes_per_wal_segment FROM pg_control_init()), \
    current_setting('full_page_writes')::bool, \
    current_setting('data_directory_mode'), \
    current_setting('archive_mode'), \
    ARRAY(SELECT ",
    stored_bytes!("setting"),
    " FROM pg_settings WHERE name IN ('config_file', 'hba_file', \
    'ident_file') \
        AND NOT starts_with(setting, (SELECT setting FROM pg_settings WHERE name = \
        'data_directory') || '/') ORDER BY name), \
    current_setting('restore_command') <> ''"
);

const TABLESPACES: &str = concat!(
    "SELECT oid, ",
    stored_bytes!("spcname::text"),
    " FROM pg_tablespace ORDER BY oid"
);

const DATABASES: &str = concat!(
    "SELECT oid, ",
    stored_bytes!("datname::text"),
    ", datistemplate, (SELECT count(*)::oid FROM pg_subscription WHERE subdbid = d.oid) \
    FROM pg_database d ORDER BY oid"
);

const ROLE: &str = "SELECT current_user::text, quote_ident(current_user), rolsuper, rolsuper OR \
    rolreplication \
    FROM pg_roles WHERE rolname = current_user";

impl Session {
    /// Asks the server for the facts.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] with the statements to run, if the role may not take a backup.
    pub fn facts(&mut self) -> Result<ServerFacts> {
        // First: a role without rights would fail below with an error that does not say what to
        // grant.
        let may_hold_wal = self.check_role()?;
        let row = self.row("could not ask the server for its settings", SETTINGS, &[])?;
        let major = self.major();
        let standby = self.standby;
        let mode: String = row.get(7)?;
        Ok(ServerFacts {
            version: row.get(0)?,
            version_number: self.version,
            major,
            warning: (major > NEWEST).then(|| {
                format!(
                    "PostgreSQL {major} is newer than the versions that fullbore was tested \
                    with, up to {NEWEST}"
                )
            }),
            data_directory: row.name(1)?.map(|path| OsString::from_vec(path.0).into()),
            system_identifier: row.get::<i64>(2)?.cast_unsigned(),
            standby,
            checksums: row.get(3)?,
            block_bytes: row.get::<i32>(4)?.cast_unsigned(),
            wal_segment_bytes: u64::from(row.get::<i32>(5)?.cast_unsigned()),
            full_page_writes: row.get(6)?,
            data_directory_mode: u32::from_str_radix(&mode, 8).map_err(|_| {
                Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "cannot read \
                    data_directory_mode {mode:?}"
                    ),
                )
            })?,
            timeline: self.timeline()?,
            archive_mode: row.get(8)?,
            tablespaces: self.tablespaces()?,
            databases: self.databases()?,
            configuration: row
                .get::<Vec<Vec<u8>>>(9)?
                .into_iter()
                .map(EntryName)
                .collect(),
            has_restore_command: row.get(10)?,
            may_hold_wal,
        })
    }

    pub(super) fn tablespaces(&mut self) -> Result<Vec<(u32, EntryName)>> {
        let rows = self.rows(
            "could not ask the server for its tablespaces",
            TABLESPACES,
            &[],
        )?;
        rows.iter()
            .map(|row| Ok((row.get(0)?, EntryName(row.get(1)?))))
            .collect()
    }

    fn databases(&mut self) -> Result<Vec<DatabaseInfo>> {
        let rows = self.rows("could not ask the server for its databases", DATABASES, &[])?;
        rows.iter()
            .map(|row| -> Result<DatabaseInfo> {
                Ok(DatabaseInfo {
                    oid: row.get(0)?,
                    name: EntryName(row.get(1)?),
                    template: row.get(2)?,
                    subscriptions: row.get(3)?,
                })
            })
            .collect()
    }

    /// Fails unless the role may start and stop a backup; returns whether it may create a slot.
    fn check_role(&mut self) -> Result<bool> {
        let needed = match self.major() {
            15.. => ["pg_backup_start(text, boolean)", "pg_backup_stop(boolean)"],
            _ => [
                "pg_start_backup(text, boolean, boolean)",
                "pg_stop_backup(boolean, boolean)",
            ],
        };
        let role = self.row("could not ask the server for the role", ROLE, &[])?;
        let name: String = role.get(0)?;
        let ident: String = role.get(1)?;
        let superuser: bool = role.get(2)?;
        let mut missing = match superuser {
            true => Vec::new(),
            false => self.missing_grants(&needed)?,
        };
        if missing.is_empty() {
            return role.get(3);
        }
        // Grants that the backup needs next: to read the data directory's path, and to make a slot.
        missing.extend([
            format!("GRANT pg_read_all_settings TO {ident};"),
            format!("ALTER ROLE {ident} REPLICATION;"),
        ]);
        let error = Error::new(
            ErrorKind::Permission,
            format!("the role {name:?} may not take a backup"),
        );
        Err(missing.into_iter().fold(error, Error::detail).hint(format!(
            "connect as a superuser, or let a superuser run these in database {:?}",
            self.database()?
        )))
    }

    /// Returns the statements that let the role call those of `functions`, by signature, that it may not call.
    ///
    /// # Errors
    /// If the session is lost.
    pub(super) fn missing_grants(&mut self, functions: &[&str]) -> Result<Vec<String>> {
        let sql = "SELECT wanted, quote_ident(current_user) FROM unnest($1::text[]) AS wanted \
            WHERE NOT has_function_privilege(wanted, 'execute')";
        let params = [(&functions as &(dyn ToSql + Sync), Type::TEXT_ARRAY)];
        let rows = self.rows("could not ask for privileges", sql, &params)?;
        let grant = |row: &SqlRow| {
            let (function, role) = (row.get::<String>(0)?, row.get::<String>(1)?);
            Ok(format!(
                "GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO {role};"
            ))
        };
        rows.iter().map(grant).collect()
    }

    pub(super) fn database(&mut self) -> Result<String> {
        self.row(
            "could not ask for the database",
            "SELECT current_database()::text",
            &[],
        )?
        .get(0)
    }
}
