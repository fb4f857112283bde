//! Reads the server's files by SQL.
//!
//! One statement returns many rows, each of a part of a file. Rows are binary. A path is relative to the data directory, so the role needs `EXECUTE` on the functions
//! and no other right.

use super::{
    Session, connect,
    rows::{SqlRow, stored_bytes},
};
use crate::{
    conninfo::Params,
    data_dir::{FileRange, FoundFile, RangeReceiver},
};
use fullbore_format::{
    entry::Time,
    error::{Error, ErrorKind, Result},
    root::{EntryName, Tablespace},
};
use fullbore_platform::dir::FileKind;
use postgres::{
    Row, RowIter,
    fallible_iterator::FallibleIterator,
    types::{ToSql, Type},
};

/// Functions that read files, by their signatures.
const FUNCTIONS: [&str; 3] = [
    "pg_read_binary_file(text, bigint, bigint, boolean)",
    "pg_ls_dir(text, boolean, boolean)",
    "pg_stat_file(text, boolean)",
];

/// Paths go to the server as bytes: they have the encoding of their author.
const READ: &str = "SELECT pg_read_binary_file(convert_from(path, 'SQL_ASCII'), at, len, true) \
    FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) AS wanted (path, at, len)";

const LIST: &str = concat!(
    "SELECT ",
    stored_bytes!("name"),
    ", size, isdir, floor(extract(epoch FROM modification))::int8, number \
    FROM unnest($1::bytea[]) WITH ORDINALITY AS wanted (path, number), convert_from(path, 'SQL_ASCII') AS dir, \
    pg_ls_dir(dir, true, false) AS name, pg_stat_file(dir || '/' || name, true) WHERE size IS NOT NULL"
);

const STAT: &str = "SELECT path, size, isdir, floor(extract(epoch FROM modification))::int8, \
    floor(extract(epoch FROM change))::int8 \
    FROM unnest($1::bytea[]) WITH ORDINALITY AS wanted (path, number), \
    pg_stat_file(convert_from(path, 'SQL_ASCII'), true) ORDER BY number";

const TABLESPACES: &str = concat!(
    "SELECT name::oid, ",
    stored_bytes!("pg_tablespace_location(name::oid)"),
    " FROM pg_ls_dir('pg_tblspc', true, false) AS name WHERE name ~ '^[1-9][0-9]{0,9}$'"
);

/// Paths of configuration files, and whether the role sees all settings.
const CONFIG_PLACES: &str = concat!(
    "SELECT name, ",
    stored_bytes!("setting"),
    ", pg_has_role('pg_read_all_settings', 'USAGE') \
    FROM unnest(ARRAY['config_file', 'hba_file', 'ident_file']) AS wanted (name) \
    LEFT JOIN pg_settings USING (name)"
);

/// What a session has set for itself comes from a file if it is not the default otherwise.
const FILE_SETTINGS: &str = concat!(
    "SELECT ",
    stored_bytes!("name"),
    ", ",
    stored_bytes!("reset_val"),
    " FROM pg_settings WHERE source = 'configuration file' \
    OR (source = 'session' AND reset_val <> boot_val) ORDER BY name"
);

/// The setting for which the server logs a statement such as [`READ`].
const LOGGED: &str = "SELECT CASE WHEN current_setting('log_statement') = 'all' THEN 'log_statement = all' \
    WHEN current_setting('log_min_duration_statement') = '0' THEN 'log_min_duration_statement = 0' \
    WHEN current_setting('log_duration')::bool THEN 'log_duration = on' END";

const MARK: &str = "SELECT (SELECT system_identifier FROM pg_control_system()), \
    extract(epoch FROM pg_postmaster_start_time())::text";

/// Tells one server process from another one of the same cluster or of its standbys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerMark {
    system_identifier: i64,
    start: String,
}

/// Where the configuration of a server is, as far as the role may see it.
#[derive(Debug, Default)]
pub(crate) struct ConfigPlaces {
    /// Settings and their paths.
    places: Vec<(String, EntryName)>,
    /// Whether the role may see all settings.
    pub(crate) sees_all: bool,
}

impl ConfigPlaces {
    /// The path in a setting.
    pub(crate) fn of(&self, setting: &str) -> Option<&EntryName> {
        let found = self.places.iter().find(|(name, _)| name == setting);
        found.map(|(_, place)| place)
    }
}

/// A session that only reads files.
pub(crate) struct FileSession(Session);

impl Session {
    /// Returns what tells this server from others.
    ///
    /// # Errors
    /// If the session is lost.
    pub(crate) fn mark(&mut self) -> Result<ServerMark> {
        let row = self.row("could not ask the server who it is", MARK, &[])?;
        Ok(ServerMark {
            system_identifier: row.get(0)?,
            start: row.get(1)?,
        })
    }

    /// Returns the system identifier of the cluster.
    ///
    /// # Errors
    /// If the session is lost.
    pub(crate) fn system_identifier(&mut self) -> Result<u64> {
        Ok(self.mark()?.system_identifier.cast_unsigned())
    }

    /// Returns the statements that let the role read the server's files; empty if it may.
    ///
    /// # Errors
    /// If the session is lost.
    pub(crate) fn missing_file_rights(&mut self) -> Result<Vec<String>> {
        self.missing_grants(&FUNCTIONS)
    }

    /// Returns a warning if the server logs each statement that reads files.
    ///
    /// # Errors
    /// If the session is lost.
    pub(crate) fn statement_log_warning(&mut self) -> Result<Option<String>> {
        let what = "could not ask the server what it logs";
        let row = self.row(what, LOGGED, &[])?;
        let setting: Option<String> = row.get(0)?;
        Ok(setting.map(|setting| {
            format!(
                "the server logs every statement ({setting}): a backup by SQL adds about 300 lines \
                 a GB to its log"
            )
        }))
    }

    /// Returns the error for a role that lacks these rights.
    pub(crate) fn file_rights_error(&mut self, missing: Vec<String>) -> Error {
        let message = "the role may not read the files of the cluster by SQL";
        let error = Error::new(ErrorKind::Permission, message);
        let error = missing.into_iter().fold(error, Error::detail);
        match self.database() {
            Ok(database) => error.hint(format!(
                "connect as a superuser, or let a superuser run these in database {database:?}"
            )),
            Err(_) => error,
        }
    }
}

impl FileSession {
    /// Connects to the server that has this mark.
    ///
    /// # Errors
    /// Those of [`Session::connect`]; [`ErrorKind::Unreachable`] if another server answers.
    pub(crate) fn open(params: &Params, server: &ServerMark) -> Result<Self> {
        let mut session = Session::connect(params)?;
        if session.mark()? != *server {
            let message = "could not open a further session with the server";
            return Err(
                Error::new(ErrorKind::Unreachable, message).because("another server answered")
            );
        }
        Ok(Self(session))
    }

    /// Runs a statement. It is not prepared before: that would be one more question over a slow line.
    fn query(&mut self, sql: &str, params: &[(&(dyn ToSql + Sync), Type)]) -> Result<RowIter<'_>> {
        let params = params.iter().cloned();
        let rows = self.0.client()?.query_typed_raw(sql, params);
        rows.map_err(|error| not_read(&error))
    }

    /// Lists directories; one that is not there is empty.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn list(&mut self, dirs: &[&[u8]]) -> Result<Vec<Vec<FoundFile>>> {
        let here: &[u8] = b".";
        let paths = dirs
            .iter()
            .map(|dir| if dir.is_empty() { here } else { dir });
        let paths: Vec<&[u8]> = paths.collect();
        let mut rows = self.query(LIST, &[(&paths, Type::BYTEA_ARRAY)])?;
        let mut found = vec![Vec::new(); dirs.len()];
        while let Some(row) = rows.next().map_err(|error| not_read(&error))? {
            let row = SqlRow(row);
            let number = usize::try_from(row.get::<i64>(4)?).unwrap_or(0);
            let listed = number.checked_sub(1).and_then(|index| found.get_mut(index));
            let listed = listed.ok_or_else(wrong_rows)?;
            listed.push(FoundFile::of_row(&row)?);
        }
        Ok(found)
    }

    /// Returns the facts of files and the seconds of their change times; `None` for those that are
    /// not there.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn stat(&mut self, paths: &[&[u8]]) -> Result<Vec<Option<(FoundFile, i64)>>> {
        let mut rows = self.query(STAT, &[(&paths, Type::BYTEA_ARRAY)])?;
        let mut found = Vec::with_capacity(paths.len());
        while let Some(row) = rows.next().map_err(|error| not_read(&error))? {
            let row = SqlRow(row);
            let is_there = row.get::<Option<i64>>(1)?.is_some();
            found.push(match is_there {
                true => Some((FoundFile::of_row(&row)?, row.get(4)?)),
                false => None,
            });
        }
        match found.len() == paths.len() {
            true => Ok(found),
            false => Err(wrong_rows()),
        }
    }

    /// Reads ranges of files, see [`DataDir::read`](crate::data_dir::DataDir::read).
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn read(&mut self, ranges: &[FileRange<'_>], each: RangeReceiver<'_>) -> Result<()> {
        let paths: Vec<&[u8]> = ranges.iter().map(|range| range.path).collect();
        let offsets: Vec<i64> = ranges
            .iter()
            .map(|range| range.offset.cast_signed())
            .collect();
        let lengths: Vec<i64> = ranges.iter().map(|range| range.len.into()).collect();
        let params: [(&(dyn ToSql + Sync), Type); 3] = [
            (&paths, Type::BYTEA_ARRAY),
            (&offsets, Type::INT8_ARRAY),
            (&lengths, Type::INT8_ARRAY),
        ];
        let mut rows = self.query(READ, &params)?;
        for range in ranges {
            let row = rows.next().map_err(|error| not_read(&error))?;
            let row = row.ok_or_else(wrong_rows)?;
            each(part_of(&row, range.len)?);
        }
        match rows.next().map_err(|error| not_read(&error))? {
            Some(_) => Err(wrong_rows()),
            None => Ok(()),
        }
    }

    /// Asks where the configuration is.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn config_places(&mut self) -> Result<ConfigPlaces> {
        let what = "could not ask the server for its configuration";
        let rows = self.0.rows(what, CONFIG_PLACES, &[])?;
        let mut places = ConfigPlaces::default();
        for row in &rows {
            places.sees_all = row.get(2)?;
            if let Some(place) = row.get::<Option<Vec<u8>>>(1)? {
                places.places.push((row.get(0)?, EntryName(place)));
            }
        }
        Ok(places)
    }

    /// Returns the settings that files set, with their values.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn file_settings(&mut self) -> Result<Vec<(String, String)>> {
        let what = "could not ask the server for its settings";
        let rows = self.0.rows(what, FILE_SETTINGS, &[])?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        rows.iter()
            .map(|row| Ok((text(row.get(0)?), text(row.get(1)?))))
            .collect()
    }

    /// Returns the tablespaces that links lead to, without names.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn tablespaces(&mut self) -> Result<Vec<Tablespace>> {
        let message = "could not ask the server for its tablespaces";
        let rows = self.0.rows(message, TABLESPACES, &[])?;
        let mut found = Vec::new();
        for row in &rows {
            found.push(Tablespace {
                oid: row.get(0)?,
                location: EntryName(row.get(1)?),
                name: EntryName::default(),
            });
        }
        found.sort_by_key(|space| space.oid);
        Ok(found)
    }
}

/// Returns the bytes of a row; `None` if the file is not there.
fn part_of(row: &Row, most: u32) -> Result<Option<&[u8]>> {
    let bytes: Option<&[u8]> = row.try_get(0).map_err(|error| not_read(&error))?;
    match bytes {
        Some(bytes) if bytes.len() > most as usize => {
            let message = "cannot understand the server's answer";
            Err(Error::new(ErrorKind::Unsupported, message).because("a row is too long"))
        }
        bytes => Ok(bytes),
    }
}

impl FoundFile {
    /// Reads the columns name or path, size, whether it is a directory, and time.
    fn of_row(row: &SqlRow) -> Result<Self> {
        let name: Vec<u8> = row.get(0)?;
        let is_bad = name.is_empty() || name.contains(&0) || name == b"..";
        let size = u64::try_from(row.get::<i64>(1)?);
        let (Ok(size), false) = (size, is_bad) else {
            let message = "cannot understand the server's answer";
            return Err(Error::new(ErrorKind::Unsupported, message).because("a file has no facts"));
        };
        let kind = if row.get::<bool>(2)? {
            FileKind::Directory
        } else {
            FileKind::File
        };
        Ok(Self {
            name,
            kind,
            size,
            mtime: Time {
                seconds: row.get(3)?,
                nanos: 0,
            },
        })
    }
}

fn not_read(error: &postgres::Error) -> Error {
    connect::server_error("could not read the files of the cluster by SQL", error)
}

fn wrong_rows() -> Error {
    let message = "cannot understand the server's answer";
    Error::new(ErrorKind::Unsupported, message).because("it has other rows than asked for")
}
