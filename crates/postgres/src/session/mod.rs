//! The session that a backup of a running cluster depends on.
//!
//! One session starts the backup and ends it; if it is lost in between, the backup is void (rule
//! 2). So the session has no time limits, reports its own loss, and owns the slot that holds its
//! WAL. Reading the files is done elsewhere.

mod archiving;
mod catalog;
pub(crate) mod connect;
mod facts;
mod files;
mod keepalive;
mod pooler;
mod rows;
mod summaries;
mod wal_space;

pub use archiving::ArchivingFacts;
pub use catalog::Catalog;
pub use facts::ServerFacts;
pub(crate) use files::{ConfigPlaces, FileSession, ServerMark};
pub use keepalive::HeldSession;
pub use wal_space::WalSpace;

use super::{conninfo::Params, lsn::Lsn};
use fullbore_format::error::{Error, ErrorKind, Result};
use postgres::{
    Client,
    types::{ToSql, Type},
};
use rows::stored_bytes;
use std::hash::{BuildHasher, Hasher, RandomState};

/// SQL for the server's clock, as RFC 3339 in UTC.
const NOW: &str =
    "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";

/// Hint for a lost session.
const RUN_AGAIN: &str = "run it again";

/// A connection to a server of a supported version.
pub struct Session {
    /// `None` once the session is closed.
    client: Option<Client>,
    /// Address of the server, for messages.
    place: String,
    version: u32,
    /// True if the server was a standby at the start. This and `process` must not change until the
    /// end.
    standby: bool,
    process: i32,
    /// The slot that holds WAL, if any.
    slot: Option<String>,
    /// `max_slot_wal_keep_size`, for example `64MB`, if set. A checkpoint ends the session whose
    /// slot holds more.
    slot_limit: Option<String>,
    /// Why the server dropped the slot: it does so when a statement of the slot's session fails.
    dropped: Option<String>,
    /// True between the start and the stop of a backup.
    in_backup: bool,
}

/// The server's answer at the end of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// Recovery is consistent here. The last segment it needs holds the byte before.
    pub lsn: Lsn,
    /// The server's clock at that moment, as RFC 3339 in UTC: no earlier transaction has a later
    /// time.
    pub time: String,
    /// The file `backup_label`, byte for byte (rule 7).
    pub backup_label: Vec<u8>,
    /// The file `tablespace_map`, byte for byte; empty if the backup needs none.
    pub tablespace_map: Vec<u8>,
    /// The timeline that the backup began on.
    pub start_timeline: u32,
    /// The timeline that the backup ended on; differs only on a standby whose primary was replaced.
    pub timeline: u32,
}

/// The status of the server's archiver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArchivedWal {
    /// True if everything up to the requested segment is in the archive.
    pub done: bool,
    /// Files archived since the statistics were last reset.
    pub count: i64,
    /// The last archived file.
    pub last: Option<String>,
    /// The file that the archiver currently fails to archive.
    pub failing: Option<String>,
}

impl Session {
    /// Connects to the first suitable host, with settings that let a session wait for hours.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if the server refuses the user, [`ErrorKind::Unreachable`] if no
    /// host can be reached now, [`ErrorKind::Unsupported`] if the server is older than 13. No error
    /// contains the password.
    pub fn connect(params: &Params) -> Result<Self> {
        connect::connect(params)
    }

    /// Returns whether the server was a standby when the session began. If that changes, the
    /// session is void.
    pub fn standby(&self) -> bool {
        self.standby
    }

    fn client(&mut self) -> Result<&mut Client> {
        self.client
            .as_mut()
            .ok_or_else(|| void_backup("the session has ended"))
    }

    /// Returns whether the server or the network ended the session.
    fn is_closed(&self) -> bool {
        self.client.as_ref().is_none_or(Client::is_closed)
    }

    fn major(&self) -> u32 {
        self.version / 10_000
    }

    /// Makes a temporary slot, so that the server keeps its WAL from its last checkpoint on until
    /// this session ends. Returns that checkpoint's location.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] or [`ErrorKind::Unsupported`] with the setting to change, if the
    /// server refuses.
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

    /// Like [`Session::hold_wal`], for a backup that began at `start` and needs all WAL from there
    /// on.
    ///
    /// # Errors
    /// As [`Session::hold_wal`]; [`ErrorKind::Unreachable`] if another checkpoint came in between:
    /// WAL before it may be gone.
    pub fn hold_wal_from(&mut self, start: Lsn) -> Result<()> {
        if self.hold_wal()? <= start {
            return Ok(());
        }
        Err(
            void_backup("another checkpoint came before the server began to keep its WAL")
                .hint("run it again"),
        )
    }

    /// Returns whether the server limits the WAL that it keeps for a slot.
    pub fn has_slot_limit(&self) -> bool {
        self.slot_limit.is_some()
    }

    /// Returns the SQL function for the end of the WAL in files.
    fn wal_end_function(&self) -> &'static str {
        if self.standby {
            "pg_last_wal_receive_lsn()"
        } else {
            "pg_current_wal_lsn()"
        }
    }

    /// Returns the location up to which a primary has written WAL.
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

    /// Lets the server remove WAL before `start`, if the role may advance a slot.
    ///
    /// # Errors
    /// The server's; [`ErrorKind::Unreachable`] if the session is lost.
    pub fn advance_slot(&mut self, start: Lsn) -> Result<()> {
        let Some(slot) = self.slot.clone() else {
            return Ok(());
        };
        let may =
            "SELECT has_function_privilege('pg_replication_slot_advance(name, pg_lsn)', 'execute')";
        let row = self.row("could not ask for a privilege", may, &[])?;
        if !row.get::<bool>(0)? {
            return Ok(());
        }
        let sql = "SELECT pg_replication_slot_advance(slot_name, $2::pg_lsn)::text FROM \
            pg_replication_slots \
                   WHERE slot_name = $1 AND restart_lsn <= $2::pg_lsn";
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&slot, Type::NAME), (&start.to_string(), Type::TEXT)];
        self.rows("could not advance the replication slot", sql, &params)
            .map(drop)
    }

    /// Advances the slot to its current location: from version 18 on, a slot that is never advanced
    /// counts as idle although its session lives.
    fn touch_slot(&mut self) -> Result<()> {
        let Some(slot) = self.slot.clone().filter(|_| self.major() >= 18) else {
            return Ok(());
        };
        let sql = "SELECT restart_lsn::text FROM pg_replication_slots \
                   WHERE slot_name = $1 AND current_setting('idle_replication_slot_timeout') <> \
                   '0'";
        let rows = self.rows(
            "could not ask for the replication slot",
            sql,
            &[(&slot, Type::NAME)],
        )?;
        let Some(row) = rows.first() else {
            return Ok(());
        };
        match row.get::<Option<&str>>(0)? {
            Some(start) => self.advance_slot(start.parse()?),
            None => Ok(()),
        }
    }

    /// The name of the slot, if any.
    pub fn slot(&self) -> Option<&str> {
        self.slot.as_deref()
    }

    /// Fails unless this is the server on which the session of `process` owns the slot `slot`.
    fn check_slot_owner(&mut self, slot: &str, process: i32) -> Result<()> {
        let sql = "SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = $1 AND \
            active_pid = $2";
        let message = "could not ask for the replication slot";
        let row = self.row(message, sql, &[(&slot, Type::NAME), (&process, Type::INT4)])?;
        if row.get::<bool>(0)? {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Unreachable, message).because("another server answered"))
        }
    }

    /// Drops the slot: the server no longer keeps WAL for this session.
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

    /// The process ID of this session's server process, on the server's host.
    pub fn process(&self) -> i32 {
        self.process
    }

    /// Starts a backup; returns the location where recovery will begin.
    ///
    /// `fast` requests a checkpoint at once; otherwise this waits for a spread one, which takes
    /// minutes (rule 3).
    ///
    /// # Errors
    /// The server's, for example if `full_page_writes` was off on a standby (rule 20);
    /// [`ErrorKind::Unreachable`] if the session is lost.
    pub fn start(&mut self, label: &str, fast: bool) -> Result<Lsn> {
        // Rule 1: version 15 renamed the functions. Before, `false` requests the non-exclusive
        // backup, the only kind since.
        let sql = match self.major() {
            15.. => "SELECT pg_backup_start($1, $2)::text",
            _ => "SELECT pg_start_backup($1, $2, false)::text",
        };
        self.check_alive()?;
        let row = self.row(
            "could not start the backup",
            sql,
            &[(&label, Type::TEXT), (&fast, Type::BOOL)],
        )?;
        self.in_backup = true;
        row.get::<&str>(0)?.parse()
    }

    /// Ends the backup after everything was copied; returns the data that a restore needs.
    ///
    /// If `wait_for_archive`, waits until the archive has all WAL; a standby waits only with
    /// `archive_mode = always` (rule 26). The server refuses if it was promoted meanwhile (rule
    /// 28).
    ///
    /// # Errors
    /// The server's; [`ErrorKind::Unreachable`] if the session is lost or held WAL is gone.
    pub fn stop(&mut self, wait_for_archive: bool) -> Result<Stopped> {
        self.check_wal_kept()?;
        let call = match self.major() {
            15.. => "pg_backup_stop($1)",
            _ => "pg_stop_backup(false, $1)",
        };
        let (label, map) = (stored_bytes!("labelfile"), stored_bytes!("spcmapfile"));
        let sql = format!("SELECT lsn::text, {label}, {map}, {NOW} FROM {call}");
        let row = self.row(
            "could not end the backup",
            &sql,
            &[(&wait_for_archive, Type::BOOL)],
        )?;
        // Before the answer is read: the server has ended the backup, and to stop it again would
        // fail.
        self.in_backup = false;
        let lsn: &str = row.get(0)?;
        let backup_label: Vec<u8> = row.get(1)?;
        let start_timeline = start_timeline(&backup_label).ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "cannot find the timeline in the server's backup label",
            )
        })?;
        // A standby can follow its primary to a new timeline during the backup.
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

    /// Checks that the session is still the same.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if the session is lost, the server was promoted (rule 28), or
    /// another server process answers, as behind a connection pool.
    pub fn check_alive(&mut self) -> Result<()> {
        if let Some(reason) = &self.dropped {
            let message = "the server dropped the replication slot because a statement failed";
            return Err(void_backup(message)
                .detail(reason.clone())
                .hint("run it again"));
        }
        let row = self.row(
            "could not ask the server",
            "SELECT pg_is_in_recovery(), pg_backend_pid()",
            &[],
        )?;
        if self.standby && !row.get::<bool>(0)? {
            return Err(void_backup("the standby was promoted")
                .hint("run it again, from the new primary or another standby"));
        }
        if row.get::<i32>(1)? != self.process {
            return Err(void_backup("another server process answered")
                .hint("connect to the server itself, not to a connection pool"));
        }
        Ok(())
    }

    /// Checks that the server still keeps the WAL of this backup.
    ///
    /// # Errors
    /// As [`Session::check_alive`]; also [`ErrorKind::Unreachable`] if the WAL is gone.
    pub fn check_wal_kept(&mut self) -> Result<()> {
        self.check_alive()?;
        self.check_slot_intact()
    }

    /// Returns the archiver's status, and whether the archive has everything up to and including
    /// segment `last`.
    ///
    /// The archiver takes segments in the order of their names, so the last archived one stands for
    /// all before it.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if the session is lost.
    pub fn archived_wal(&mut self, last: &str) -> Result<ArchivedWal> {
        let sql = "SELECT last_archived_wal, CASE WHEN last_failed_time > last_archived_time OR \
            last_archived_time IS NULL \
                   THEN last_failed_wal END, archived_count FROM pg_stat_archiver";
        let row = self.row("could not ask the archiver", sql, &[])?;
        let newest: Option<String> = row.get(0)?;
        let failing: Option<String> = row.get(1)?;
        // A history file sorts after the segments of its parent timeline; a partial segment is not
        // the segment.
        let done = newest
            .as_ref()
            .filter(|name| !name.ends_with(".history") && !name.ends_with(".partial"))
            .is_some_and(|newest| **newest >= *last);
        Ok(ArchivedWal {
            done,
            count: row.get(2)?,
            last: newest,
            failing,
        })
    }

    /// Ends the current WAL segment so that it is archived; returns its name (rules 6 and 26).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] on a standby: only the primary can; [`ErrorKind::Permission`] if
    /// the role may not.
    pub fn switch_wal(&mut self) -> Result<String> {
        if self.standby {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "cannot end a WAL segment on a standby",
            )
            .hint("on the primary, run `SELECT pg_switch_wal()`"));
        }
        // The server does not end an empty segment, so write a message first.
        let note = "SELECT pg_logical_emit_message(false, 'fullbore', 'switch')::text";
        self.row("could not write to the WAL", note, &[])?;
        let row = self.row(
            "could not end the WAL segment",
            "SELECT pg_walfile_name(pg_switch_wal())",
            &[],
        );
        row.map_err(switch_hint)?.get(0)
    }

    /// Returns the timeline on which WAL is written or replayed.
    fn timeline(&mut self) -> Result<u32> {
        // After a promotion pg_control lags until the next checkpoint; the name of the current
        // segment does not.
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
                    format!("{name:?} is not the name of a WAL segment"),
                )
            })
    }

    /// Fails if the server removed WAL that the slot held, because it exceeded
    /// `max_slot_wal_keep_size`.
    fn check_slot_intact(&mut self) -> Result<()> {
        let Some(slot) = self.slot.clone() else {
            return Ok(());
        };
        let sql = "SELECT coalesce((SELECT wal_status FROM pg_replication_slots WHERE slot_name = \
            $1), 'lost')";
        match self
            .row(
                "could not ask for the replication slot",
                sql,
                &[(&slot, Type::NAME)],
            )?
            .get::<&str>(0)?
        {
            "lost" => Err(
                void_backup("the server has removed WAL that the backup needs")
                    .hint(self.limit_hint().unwrap_or_else(|| RUN_AGAIN.to_owned())),
            ),
            _ => Ok(()),
        }
    }

    /// Returns the hint for a session that may have been ended because its slot held too much WAL.
    /// The server writes only to its log that it did so.
    fn limit_hint(&self) -> Option<String> {
        let limit = self.slot_limit.as_ref().filter(|_| self.slot.is_some())?;
        Some(format!(
            "raise max_slot_wal_keep_size, which is {limit}, or take WAL from the archive \
                (--wal archived): a server ends the session whose slot holds more"
        ))
    }

    /// Returns the error for a session that `error` ended.
    fn loss_error(&self, error: &postgres::Error) -> Error {
        void_backup(&format!(
            "the session with the server at {} was lost",
            self.place
        ))
        .detail(connect::reason(error))
        .hint(RUN_AGAIN)
    }
}

fn void_backup(reason: &str) -> Error {
    Error::new(ErrorKind::Unreachable, "the backup is void")
        .because(reason)
        .hint("nothing of it is listed, and the server is as it was; run the same command again")
}

/// Adds the setting to change, according to the server's reason.
fn slot_hint(error: Error) -> Error {
    let Some(reason) = error.source.as_ref().map(ToString::to_string) else {
        return error;
    };
    let hint = if error.kind == ErrorKind::Permission {
        "the role needs REPLICATION: `ALTER ROLE … REPLICATION`"
    } else if reason.contains("max_replication_slots")
        || reason.contains("all replication slots are in use")
    {
        "raise max_replication_slots on the server, or drop an unused slot"
    } else if reason.contains("wal_level") {
        "set wal_level = replica on the server"
    } else {
        return error;
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

/// Adds a hint: a role that may back up may lack the privilege to switch WAL.
fn switch_hint(error: Error) -> Error {
    match error.kind {
        ErrorKind::Permission => error.hint(
            "`GRANT EXECUTE ON FUNCTION pg_catalog.pg_switch_wal() TO …`, or use --wal included",
        ),
        _ => error,
    }
}

/// Returns the number in the line `START TIMELINE: 1`.
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
        let label = b"START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\nLABEL: \
            x\nSTART TIMELINE: 26\n";
        assert_eq!(start_timeline(label), Some(26));
        assert_eq!(start_timeline(b"LABEL: START TIMELINE: 1\n"), None);
    }
}
