//! The session that a backup of a running cluster lives in.
//!
//! One session starts the backup and ends it; if it is lost between the two, the backup is void (rule 2). So it waits for
//! ever, says when it is gone, and takes the slot that holds its WAL with it. What is copied meanwhile is not its business.

mod catalog;
mod connect;
mod facts;
mod keepalive;
mod pooler;
mod rows;
mod summaries;
mod wal_space;

pub use catalog::Catalog;
pub use facts::ServerFacts;
pub use keepalive::HeldSession;
pub use wal_space::Room;

use super::{conninfo::Params, lsn::Lsn};
use crate::error::{Error, ErrorKind, Result};
use postgres::{
    Client,
    types::{ToSql, Type},
};
use std::hash::{BuildHasher, Hasher, RandomState};

/// The server's clock, as RFC 3339 in UTC.
const NOW: &str =
    "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";

/// A connection to a server that is known to be new enough.
pub struct Session {
    /// None once it is left.
    client: Option<Client>,
    /// Where the server is, for messages.
    place: String,
    version: u32,
    /// What must not change until the end: is it a standby, and which of its processes serves us?
    standby: bool,
    process: i32,
    /// The slot that holds WAL, if there is one.
    slot: Option<String>,
    /// `max_slot_wal_keep_size`, as in `64MB`, if it is set: a checkpoint ends the session whose slot holds more.
    slot_limit: Option<String>,
    /// Why the server has dropped it: it does so when a statement of its session fails.
    dropped: Option<String>,
    /// Has a backup begun that has not ended?
    in_backup: bool,
}

/// What the server said at the end of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// Recovery is consistent here. The last segment it needs holds the byte before.
    pub lsn: Lsn,
    /// When that was by the server's clock, as RFC 3339 in UTC: no transaction before it is later.
    pub time: String,
    /// The file `backup_label`, byte for byte (rule 7).
    pub backup_label: Vec<u8>,
    /// The file `tablespace_map`, byte for byte; empty if there is to be none.
    pub tablespace_map: Vec<u8>,
    /// The timeline that the backup began on.
    pub start_timeline: u32,
    /// The timeline that it ended on; another one only on a standby whose primary was replaced.
    pub timeline: u32,
}

/// What the server's archiver says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArchivedWal {
    /// Is everything up to the segment that was asked for in the archive?
    pub done: bool,
    /// Files that it has archived since its figures were last reset.
    pub count: i64,
    /// The last file it has archived.
    pub last: Option<String>,
    /// The file that it fails to archive now.
    pub failing: Option<String>,
}

impl Session {
    /// The first server that answers and will do, with settings that let a session wait for hours.
    ///
    /// # Errors
    /// [`Kind::Permission`] if the server refuses the user, [`Kind::Unreachable`] if none can be reached now,
    /// [`Kind::Unsupported`] if it is older than 13. No error holds the password.
    pub fn connect(params: &Params) -> Result<Self> {
        connect::connect(params)
    }

    /// Was the server a standby when the session began? It still is, or the session is void.
    pub fn standby(&self) -> bool {
        self.standby
    }

    fn client(&mut self) -> Result<&mut Client> {
        self.client
            .as_mut()
            .ok_or_else(|| void("the session has ended"))
    }

    /// Has the server, or the way to it, ended the session?
    fn is_closed(&self) -> bool {
        self.client.as_ref().is_none_or(Client::is_closed)
    }

    fn major(&self) -> u32 {
        self.version / 10_000
    }

    /// Have the server keep its WAL from its last checkpoint on, until this session ends: a temporary slot. Gives where that is.
    ///
    /// # Errors
    /// [`Kind::Permission`] or [`Kind::Unsupported`] with what to change, if the server cannot.
    pub fn hold_wal(&mut self) -> Result<Lsn> {
        let name = format!(
            "fullbore_{}_{:08x}",
            std::process::id(),
            RandomState::new().build_hasher().finish() as u32
        );
        let sql = "SELECT lsn::text FROM pg_create_physical_replication_slot($1, true, true)";
        let row = self
            .row(
                "could not create a replication slot",
                sql,
                &[(&name, Type::NAME)],
            )
            .map_err(slot_hint)?;
        self.slot = Some(name);
        row.get::<&str>(0)?.parse()
    }

    /// The same, where the backup that began at `start` needs all from there on.
    ///
    /// # Errors
    /// As [`Session::hold_wal`]; [`Kind::Unreachable`] if there was another checkpoint since: WAL before that may be gone.
    pub fn hold_wal_from(&mut self, start: Lsn) -> Result<()> {
        if self.hold_wal()? <= start {
            return Ok(());
        }
        Err(
            void("there was another checkpoint before the server could be told to keep its WAL")
                .hint("run it again"),
        )
    }

    /// Does the server keep WAL for a slot only up to a limit?
    pub fn has_slot_limit(&self) -> bool {
        self.slot_limit.is_some()
    }

    /// The function that says up to where WAL is in files.
    fn written(&self) -> &'static str {
        if self.standby {
            "pg_last_wal_receive_lsn()"
        } else {
            "pg_current_wal_lsn()"
        }
    }

    /// Up to where a primary has written WAL.
    ///
    /// # Errors
    /// If the session is lost.
    pub fn wal_end(&mut self) -> Result<Lsn> {
        self.row(
            "could not ask for the end of the WAL",
            "SELECT pg_current_wal_lsn()::text",
            &[],
        )?
        .get::<&str>(0)?
        .parse()
    }

    /// Have the server keep WAL no longer that is before `from`, if the role may say so.
    ///
    /// # Errors
    /// The server's; [`Kind::Unreachable`] if the session is lost.
    pub fn keep_from(&mut self, from: Lsn) -> Result<()> {
        let Some(slot) = self.slot.clone() else {
            return Ok(());
        };
        let may =
            "SELECT has_function_privilege('pg_replication_slot_advance(name, pg_lsn)', 'execute')";
        if !self
            .row("could not ask for a privilege", may, &[])?
            .get::<bool>(0)?
        {
            return Ok(());
        }
        let sql = "SELECT pg_replication_slot_advance(slot_name, $2::pg_lsn)::text FROM pg_replication_slots \
                   WHERE slot_name = $1 AND restart_lsn <= $2::pg_lsn";
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&slot, Type::NAME), (&from.to_string(), Type::TEXT)];
        self.rows("could not move the replication slot on", sql, &params)
            .map(drop)
    }

    /// Move the slot on to where it is: from version 18 on, one that is never moved counts as idle, though its session is there.
    fn keep_slot(&mut self) -> Result<()> {
        let Some(slot) = self.slot.clone().filter(|_| self.major() >= 18) else {
            return Ok(());
        };
        let sql = "SELECT restart_lsn::text FROM pg_replication_slots \
                   WHERE slot_name = $1 AND current_setting('idle_replication_slot_timeout') <> '0'";
        let rows = self.rows(
            "could not ask for the replication slot",
            sql,
            &[(&slot, Type::NAME)],
        )?;
        match rows
            .first()
            .map(|row| row.get::<Option<&str>>(0))
            .transpose()?
            .flatten()
        {
            Some(from) => self.keep_from(from.parse()?),
            None => Ok(()),
        }
    }

    /// The slot, if there is one.
    pub fn slot(&self) -> Option<&str> {
        self.slot.as_deref()
    }

    /// Fails unless the server is the one where the session of `process` has the slot `slot`.
    fn is_beside(&mut self, slot: &str, process: i32) -> Result<()> {
        let sql = "SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = $1 AND active_pid = $2";
        let what = "could not ask for the replication slot";
        match self
            .row(what, sql, &[(&slot, Type::NAME), (&process, Type::INT4)])?
            .get::<bool>(0)?
        {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::Unreachable, what).because("another server answered"))
            }
        }
    }

    /// Have the server keep no WAL any more.
    ///
    /// # Errors
    /// If the session is lost.
    pub fn release_wal(&mut self) -> Result<()> {
        let Some(name) = self.slot.take() else {
            return Ok(());
        };
        let sql = "SELECT pg_drop_replication_slot($1)::text";
        self.rows(
            "could not drop the replication slot",
            sql,
            &[(&name, Type::NAME)],
        )
        .map(drop)
    }

    /// The process of the server that serves us, by the server's own number.
    pub fn process(&self) -> i32 {
        self.process
    }

    /// Tell the server that a backup begins, and get where recovery will begin.
    ///
    /// `fast` asks for a checkpoint at once; else this waits for a spread one, minutes (rule 3).
    ///
    /// # Errors
    /// The server's, as when `full_page_writes` was off on a standby (rule 20); [`Kind::Unreachable`] if it is lost.
    pub fn start(&mut self, label: &str, fast: bool) -> Result<Lsn> {
        // Rule 1: the functions were renamed in 15; before, "false" asks for the kind of backup that 15 kept.
        let sql = match self.major() {
            15.. => "SELECT pg_backup_start($1, $2)::text",
            _ => "SELECT pg_start_backup($1, $2, false)::text",
        };
        self.alive()?;
        let row = self.row(
            "could not start the backup",
            sql,
            &[(&label, Type::TEXT), (&fast, Type::BOOL)],
        )?;
        self.in_backup = true;
        row.get::<&str>(0)?.parse()
    }

    /// Tell the server that everything was copied, and get what a restore needs.
    ///
    /// Waits until the archive has all WAL if that is asked for; a standby waits only with `archive_mode = always`
    /// (rule 26). The server refuses if it was promoted since (rule 28).
    ///
    /// # Errors
    /// The server's; [`Kind::Unreachable`] if the session is lost, or WAL that was held is gone.
    pub fn stop(&mut self, wait_for_archive: bool) -> Result<Stopped> {
        self.holds()?;
        let call = match self.major() {
            15.. => "pg_backup_stop($1)",
            _ => "pg_stop_backup(false, $1)",
        };
        let sql = format!(
            "SELECT lsn::text, textsend(labelfile), textsend(spcmapfile), {NOW} FROM {call}"
        );
        let row = self.raw_row(
            "could not end the backup",
            &sql,
            &[(&wait_for_archive, Type::BOOL)],
        )?;
        self.in_backup = false;
        let (lsn, backup_label): (&str, Vec<u8>) = (row.get(0)?, row.get(1)?);
        let start_timeline = start_timeline(&backup_label).ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "cannot find the timeline in the server's backup label",
            )
        })?;
        let timeline = if self.standby {
            self.timeline()?.max(start_timeline)
        } else {
            start_timeline
        };
        let tablespace_map = row.get::<Option<Vec<u8>>>(2)?.unwrap_or_default();
        Ok(Stopped {
            lsn: lsn.parse()?,
            time: row.get(3)?,
            backup_label,
            tablespace_map,
            start_timeline,
            timeline,
        })
    }

    /// Is the session still the one it was?
    ///
    /// # Errors
    /// [`Kind::Unreachable`] if it is lost, or the server was promoted (rule 28), or another of its processes serves us, as
    /// behind a pool of connections.
    pub fn alive(&mut self) -> Result<()> {
        if let Some(why) = &self.dropped {
            let what =
                "the server has dropped the replication slot, as it does when a statement fails";
            return Err(void(what).detail(why.clone()).hint("run it again"));
        }
        let row = self.row(
            "could not ask the server",
            "SELECT pg_is_in_recovery(), pg_backend_pid()",
            &[],
        )?;
        if self.standby && !row.get::<bool>(0)? {
            return Err(void("the standby was promoted")
                .hint("run it again, from the new primary or another standby"));
        }
        if row.get::<i32>(1)? != self.process {
            return Err(void("another process of the server answered")
                .hint("connect to the server itself, not to a pool of connections"));
        }
        Ok(())
    }

    /// Does the server still keep the WAL for it?
    ///
    /// # Errors
    /// As [`Session::alive`]; [`Kind::Unreachable`] too if it does not.
    pub fn holds(&mut self) -> Result<()> {
        self.alive()?;
        self.still_held()
    }

    /// Does the archive have everything up to and including segment `last`?
    ///
    /// The archiver takes segments in the order of their names, so the last one speaks for those before it.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] if the session is lost.
    pub fn archived(&mut self, last: &str) -> Result<ArchivedWal> {
        let sql = "SELECT last_archived_wal, CASE WHEN last_failed_time > last_archived_time OR last_archived_time IS NULL \
                   THEN last_failed_wal END, archived_count FROM pg_stat_archiver";
        let row = self.row("could not ask the archiver", sql, &[])?;
        let (at, failing): (Option<String>, Option<String>) = (row.get(0)?, row.get(1)?);
        // A history file sorts behind the segments of its timeline's parent, and a partial segment is not the segment.
        let segment = |name: &&String| !name.ends_with(".history") && !name.ends_with(".partial");
        let done = at.as_ref().filter(segment).is_some_and(|at| **at >= *last);
        Ok(ArchivedWal {
            done,
            count: row.get(2)?,
            last: at,
            failing,
        })
    }

    /// End the current WAL segment, so that it is archived, and get its name (rules 6 and 26).
    ///
    /// # Errors
    /// [`Kind::Unsupported`] on a standby: only the primary can; [`Kind::Permission`].
    pub fn switch_wal(&mut self) -> Result<String> {
        if self.standby {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "cannot end a WAL segment on a standby",
            )
            .hint("on the primary, run `SELECT pg_switch_wal()`"));
        }
        // A segment that nothing was written to is not ended, so something is.
        let note = "SELECT pg_logical_emit_message(false, 'fullbore', 'switch')::text";
        self.row("could not write to the WAL", note, &[])?;
        let row = self.row(
            "could not end the WAL segment",
            "SELECT pg_walfile_name(pg_switch_wal())",
            &[],
        );
        row.map_err(switch_hint)?.get(0)
    }

    /// The timeline that WAL is written or replayed on.
    fn timeline(&mut self) -> Result<u32> {
        // pg_control lags behind a promotion until the next checkpoint; the name of the current segment does not.
        let sql = if self.standby {
            "SELECT lpad(to_hex(greatest((SELECT timeline_id FROM pg_control_checkpoint()), \
             (SELECT min_recovery_end_timeline FROM pg_control_recovery()))), 8, '0')"
        } else {
            "SELECT pg_walfile_name(pg_current_wal_insert_lsn())"
        };
        let name: String = self
            .row("could not ask for the timeline", sql, &[])?
            .get(0)?;
        name.get(..8)
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Unsupported,
                    format!("{name:?} is no name of a WAL segment"),
                )
            })
    }

    /// The server drops what a slot holds once that exceeds `max_slot_wal_keep_size`.
    fn still_held(&mut self) -> Result<()> {
        let Some(slot) = self.slot.clone() else {
            return Ok(());
        };
        let sql = "SELECT coalesce((SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1), 'lost')";
        match self
            .row(
                "could not ask for the replication slot",
                sql,
                &[(&slot, Type::NAME)],
            )?
            .get::<&str>(0)?
        {
            "lost" => {
                Err(void("the server has removed WAL that the backup needs")
                    .hint(self.after_loss()))
            }
            _ => Ok(()),
        }
    }

    /// What to do where the session or its WAL is lost. The server says in its log alone that it ended a session for the limit.
    fn after_loss(&self) -> String {
        let limit = self.slot_limit.as_ref().filter(|_| self.slot.is_some());
        limit.map_or_else(
            || "run it again".to_owned(),
            |limit| {
                format!(
                    "raise max_slot_wal_keep_size, which is {limit}, or take WAL from the archive (--wal archived): a server ends the \
                     session whose slot holds more"
                )
            },
        )
    }

    fn lost(&self, error: &postgres::Error) -> Error {
        void(&format!(
            "the session with the server at {} was lost",
            self.place
        ))
        .detail(connect::reason(error))
        .hint(self.after_loss())
    }
}

/// An error after which nothing that was copied is worth anything.
fn void(why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, "the backup is void").because(why)
}

/// What to change, by the server's reason.
fn slot_hint(error: Error) -> Error {
    let Some(why) = error.source.as_ref().map(ToString::to_string) else {
        return error;
    };
    let hint = match () {
        () if error.kind == ErrorKind::Permission => {
            "the role needs REPLICATION: `ALTER ROLE … REPLICATION`"
        }
        () if why.contains("max_replication_slots")
            || why.contains("all replication slots are in use") =>
        {
            "raise max_replication_slots on the server, or drop a slot that nobody uses"
        }
        () if why.contains("wal_level") => "set wal_level = replica on the server",
        () => return error,
    };
    Error {
        kind: if error.kind == ErrorKind::Permission {
            error.kind
        } else {
            ErrorKind::Unsupported
        },
        ..error
    }
    .hint(hint)
}

/// A role that may back up need not be one that may do this.
fn switch_hint(error: Error) -> Error {
    match error.kind {
        ErrorKind::Permission => error.hint(
            "`GRANT EXECUTE ON FUNCTION pg_catalog.pg_switch_wal() TO …`, or take --wal included",
        ),
        _ => error,
    }
}

/// The number in the line `START TIMELINE: 1`.
fn start_timeline(label: &[u8]) -> Option<u32> {
    let prefix = b"START TIMELINE: ";
    let line = label
        .split(|&byte| byte == b'\n')
        .find(|line| line.starts_with(prefix))?;
    std::str::from_utf8(&line[prefix.len()..])
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeline_is_read_from_the_label() {
        let label = b"START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\nLABEL: x\nSTART TIMELINE: 26\n";
        assert_eq!(start_timeline(label), Some(26));
        assert_eq!(start_timeline(b"LABEL: START TIMELINE: 1\n"), None);
    }
}
