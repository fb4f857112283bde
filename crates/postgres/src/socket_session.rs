//! A session with a server on a socket of this host, as a restore drill needs it.
//!
//! It runs statements and keeps a bounded part of the answers. Sessions of backups, which must not be lost, are in
//! `session`.

use crate::session::connect::server_error;
use fullbore_format::error::{Error, ErrorKind, Result};
use postgres::{Client, Config, NoTls, error::SqlState};
use std::{io::BufRead, path::Path};

/// Rows of an answer that are kept.
const KEPT_ROWS: usize = 100;
/// Bytes of a row that are kept.
const KEPT_BYTES: usize = 4096;

/// The first version with `event_triggers`.
const EVENT_TRIGGERS_SINCE: u32 = 17;
/// Settings of a session, which override those of its role and its database: no library is loaded for it.
const WITHOUT_LIBRARIES: &str = "-c session_preload_libraries= -c local_preload_libraries=";

pub struct SocketSession(Client);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryAnswer {
    /// The first 100 rows, as COPY writes them: tabs between columns, `\N` for null. A row ends after 4096 bytes.
    pub rows: Vec<String>,
    /// The number of all rows.
    pub count: u64,
}

/// Returns the options of a session in which no code of the cluster runs unasked, for a server of this version.
pub fn quiet_options(major: u32) -> String {
    let mut options = WITHOUT_LIBRARIES.to_owned();
    if major >= EVENT_TRIGGERS_SINCE {
        options.push_str(" -c event_triggers=off");
    }
    options
}

impl SocketSession {
    /// Connects to the server on the socket in `directory`, port 5432, as the first of `roles` that exists.
    /// Returns the session and that role.
    ///
    /// # Errors
    /// The server's, for the last of the roles.
    pub fn open<'a>(
        directory: &Path,
        roles: &[&'a str],
        database: &str,
        major: u32,
    ) -> Result<(Self, &'a str)> {
        let message = format!("could not connect to database {database:?}");
        let mut missing = Error::new(ErrorKind::NotFound, &*message);
        for role in roles {
            let mut config = Config::new();
            config
                .host_path(directory)
                .user(role)
                .dbname(database)
                .application_name("fullbore drill")
                .options(&quiet_options(major));
            match config.connect(NoTls) {
                Ok(client) => return Ok((Self(client), role)),
                Err(error) => {
                    let is_missing =
                        error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
                    // Only a role that does not exist lets the next be tried: another failure would
                    // be the same for all.
                    missing = server_error(&message, &error);
                    if !is_missing {
                        return Err(missing);
                    }
                }
            }
        }
        Err(missing)
    }

    /// Returns the first column of the answer's only row, as text.
    ///
    /// # Errors
    /// The server's.
    pub fn value(&mut self, sql: &str) -> Result<String> {
        let message = || format!("could not run {sql:?}");
        let row = self
            .0
            .query_typed_one(sql, &[])
            .map_err(|error| server_error(&message(), &error))?;
        row.try_get(0)
            .map_err(|error| server_error(&message(), &error))
    }

    /// Runs a query, and counts its rows.
    ///
    /// # Errors
    /// The server's; of a statement that gives no rows too.
    pub fn query(&mut self, sql: &str) -> Result<QueryAnswer> {
        let message = "the query failed";
        let sql = sql.trim().trim_end_matches(';');
        // The end of a comment in the query is a line end.
        let copy = format!("COPY ({sql}\n) TO STDOUT");
        let mut reader = self
            .0
            .copy_out(&copy)
            .map_err(|error| server_error(message, &error))?;
        read_rows(&mut reader)
            .map_err(|error| Error::new(ErrorKind::System, message).because(error))
    }
}

/// Counts the lines, and keeps the beginnings of the first.
fn read_rows(reader: &mut dyn BufRead) -> std::io::Result<QueryAnswer> {
    let mut answer = QueryAnswer::default();
    let mut line = Vec::new();
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return Ok(answer);
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        // An answer may have any size: of each line only the begin is kept, and all lines are
        // counted.
        let room = KEPT_BYTES.saturating_sub(line.len());
        line.extend_from_slice(&part[..part.len().min(room)]);
        let used = part.len() + usize::from(end.is_some());
        reader.consume(used);
        if end.is_some() {
            answer.count += 1;
            if answer.rows.len() < KEPT_ROWS {
                answer
                    .rows
                    .push(String::from_utf8_lossy(&line).into_owned());
            }
            line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_and_a_bounded_part_is_kept() {
        let long = "x".repeat(2 * KEPT_BYTES);
        let text = format!("a\tb\n\\N\n{long}\n{}", "y\n".repeat(1000));
        let answer = read_rows(&mut text.as_bytes()).unwrap();
        assert_eq!(answer.count, 1003);
        assert_eq!(answer.rows.len(), KEPT_ROWS);
        assert_eq!(answer.rows[..2], ["a\tb", "\\N"]);
        assert_eq!(answer.rows[2].len(), KEPT_BYTES);
    }
}
