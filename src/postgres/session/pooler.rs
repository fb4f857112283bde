//! Pools of connections, as pgbouncer's: sessions of the server that outlive ours, and that others have before and after us.
//!
//! A backup is of one session of the server, and what it leaves there goes with it: the slot, the backup mode, the settings. In a
//! pool none of that goes. So a session that is older than our connection is left alone; and one that was made for us is tidied
//! before it is left, as far as its server answers.

use super::{Session, connect::failed};
use crate::{
    error::{Error, ErrorKind, Result},
    queue::start,
};
use postgres::{Client, SimpleQueryMessage, error::SqlState};
use std::{sync::mpsc, time::Duration};

/// Changes nothing of the session, and takes as long as it takes. A pool of statements refuses the first. Memory: see `FIRST` in
/// `reach.rs`.
const AGE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0; SET LOCAL search_path = pg_catalog, pg_temp; \
    SET LOCAL work_mem = '16MB'; \
    SELECT extract(epoch FROM clock_timestamp() - backend_start) FROM pg_stat_activity WHERE pid = pg_backend_pid(); COMMIT";

/// So much older may a session seem to be that is ours alone.
const DOUBT: Duration = Duration::from_secs(1);

/// A server that is silent is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Is the server's session as new as a connection that was begun so long ago, or one that others had before?
///
/// # Errors
/// [`Kind::Unsupported`] if it is not; the server's.
pub(super) fn refuse_used(client: &mut Client, connected: impl FnOnce() -> Duration) -> Result<()> {
    let hint = "connect to the server itself, at its own port or socket: what a backup begins there must end with its connection";
    let said = match client.simple_query(AGE) {
        // Who may not know is believed; and the statement may not have been the last one.
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            let rolled_back = client.batch_execute("ROLLBACK");
            return rolled_back
                .map_err(|error| failed("could not ask how old the session is", &error));
        }
        said => {
            said.map_err(|error| failed("could not ask how old the session is", &error).hint(hint))?
        }
    };
    let connected = connected();
    let age = said.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0)?.parse::<f64>().ok(),
        _ => None,
    });
    match age {
        Some(age) if age > (connected + DOUBT).as_secs_f64() => {
            let why =
                format!("the server's session is {age:.0} seconds old, and the connection is new");
            Err(Error::new(
                ErrorKind::Unsupported,
                "cannot back up through a pool of connections",
            )
            .because(why)
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
        let (slot, process) = (self.slot.take(), self.in_backup.then_some(self.process));
        let (done, tidied) = mpsc::channel();
        let tidy = move || {
            // What fails goes with the session, if it is ours alone.
            if let Some(slot) = slot {
                let _ = client.batch_execute(&format!("SELECT pg_drop_replication_slot('{slot}')"));
            }
            let _ = client.batch_execute("DISCARD ALL");
            // Nothing else ends the backup mode without ending the backup as if it were whole.
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
