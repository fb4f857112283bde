//! Connection pools such as pgbouncer: their server sessions outlive a client's connection, and
//! other clients use them before and after.
//!
//! A backup leaves state in its server session: the slot, the backup mode, the settings. Normally
//! this state ends with the session; in a pool it does not. So fullbore refuses a server session
//! older than its connection. It cleans up a session made for it before leaving, as far as the
//! server answers.

use super::{Session, connect::server_error};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::start;
use postgres::{Client, SimpleQueryMessage, error::SqlState};
use std::{sync::mpsc, time::Duration};

/// Asks for the age of the session. Changes nothing in it, and has no time limit. A pool in
/// statement mode refuses the first statement. Memory: see `FIRST` in `connect.rs`.
const AGE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0; SET \
    LOCAL search_path = pg_catalog, pg_temp; \
    SET LOCAL work_mem = '16MB'; \
    SELECT extract(epoch FROM clock_timestamp() - backend_start) FROM pg_stat_activity WHERE pid \
    = pg_backend_pid(); COMMIT";

/// Tolerance for the age of a session that is fullbore's alone.
const DOUBT: Duration = Duration::from_secs(1);

/// Limit for the clean-up if the server does not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Refuses a server session that is older than the connection, because others used it before.
/// `connected` returns the age of the connection.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for an older session; the server's.
pub(super) fn refuse_pooled_session(
    client: &mut Client,
    connected: impl FnOnce() -> Duration,
) -> Result<()> {
    let hint = "connect to the server itself, at its own port or socket: the state of a backup \
        there must end with its connection";
    let said = match client.simple_query(AGE) {
        // Without the privilege to see the age, assume a new session. The statement may not have
        // been the last, so roll back.
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            let rolled_back = client.batch_execute("ROLLBACK");
            return rolled_back
                .map_err(|error| server_error("could not ask how old the session is", &error));
        }
        said => said.map_err(|error| {
            server_error("could not ask how old the session is", &error).hint(hint)
        })?,
    };
    let connected = connected();
    let age = said.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0)?.parse::<f64>().ok(),
        _ => None,
    });
    match age {
        Some(age) if age > (connected + DOUBT).as_secs_f64() => {
            let reason =
                format!("the server's session is {age:.0} seconds old, and the connection is new");
            Err(Error::new(
                ErrorKind::Unsupported,
                "cannot back up through a connection pool",
            )
            .because(reason)
            .hint(hint))
        }
        _ => Ok(()),
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(mut client) = self.client.take().filter(|client| !client.is_closed()) else {
            return;
        };
        let slot = self.slot.take();
        let process = self.in_backup.then_some(self.process);
        let (done, tidied) = mpsc::channel();
        let tidy = move || {
            // Errors are ignored: a session of our own takes its state with it.
            if let Some(slot) = slot {
                let _ = client.batch_execute(&format!("SELECT pg_drop_replication_slot('{slot}')"));
            }
            let _ = client.batch_execute("DISCARD ALL");
            // Only the end of the process ends the backup mode without completing the backup.
            if let Some(process) = process {
                let _ = client.batch_execute(&format!(
                    "SELECT pg_catalog.pg_terminate_backend({process})"
                ));
            }
            drop(client);
            done.send(())
        };
        if start(tidy).is_ok() {
            let _ = tidied.recv_timeout(PATIENCE);
        }
    }
}
