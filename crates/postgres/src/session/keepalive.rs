//! Checks a session every second while other threads copy files.

use super::{Session, WalSpace, void_backup};
use crate::conninfo::Params;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform as platform;
use fullbore_platform::queue::{Locked, start};
use std::{
    sync::{
        Arc, Mutex, OnceLock,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

/// Interval of the checks (rule 2). Files copied after the session was lost are copied in vain.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A session that threads share. Its loss is noticed within seconds. Dropping it ends the session.
pub struct HeldSession {
    shared: Arc<KeepaliveShared>,
    /// Dropping it ends the thread that checks.
    _stop: Sender<()>,
}

struct KeepaliveShared {
    /// `None` once the session is lost or over.
    session: Mutex<Option<Session>>,
    params: Params,
    lost: OnceLock<SessionLoss>,
}

/// The parts of an error, to make the same error several times.
struct SessionLoss {
    why: String,
    detail: Vec<String>,
    hint: Option<String>,
}

impl HeldSession {
    /// Begins the checks. `params` reach the same server; `room` is the disk where the server keeps
    /// WAL for the session.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn new(session: Session, params: &Params, room: Option<WalSpace>) -> Result<Self> {
        let shared = Arc::new(KeepaliveShared {
            session: Mutex::new(Some(session)),
            params: params.clone(),
            lost: OnceLock::new(),
        });
        let (stop, stopped) = channel();
        let asked = Arc::clone(&shared);
        start(move || asked.check_until(&stopped, room))?;
        Ok(Self {
            shared,
            _stop: stop,
        })
    }

    /// Fails if the loss of the session was noticed. Costs one load, from any thread.
    ///
    /// # Errors
    /// The backup is void, with the reason; each time.
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// Runs `run` in the session. The checks pause meanwhile: its statements notice the loss
    /// themselves.
    ///
    /// # Errors
    /// Those of `run`, or of [`HeldSession::check`].
    pub fn with<T>(&self, run: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        self.shared.with(run)
    }

    /// Runs statements that may fail without harm.
    ///
    /// If the session has a slot, `ask` runs in a second session: the server drops the slots of a
    /// session in which a statement fails.
    ///
    /// # Errors
    /// Those of `ask`, and of connecting to the same server again.
    pub fn with_second_session<T>(&self, ask: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        let holder =
            self.with(|session| Ok(session.slot.clone().map(|slot| (slot, session.process))))?;
        let Some((slot, process)) = holder else {
            return self.with(ask);
        };
        let mut session = Session::connect(&self.shared.params)?;
        session.check_slot_owner(&slot, process)?;
        ask(&mut session)
    }
}

impl Drop for HeldSession {
    /// Ends the session now or, if a statement is running, after the server's answer.
    fn drop(&mut self) {
        if let Ok(mut session) = self.shared.session.try_lock() {
            session.take();
        }
    }
}

impl KeepaliveShared {
    fn check_until(&self, stopped: &Receiver<()>, mut room: Option<WalSpace>) {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(CHECK_INTERVAL) {
            // Other errors do not end the session; a user may have cancelled the statement.
            if let Err(error) =
                self.with(|session| session.check_alive().and_then(|()| session.touch_slot()))
                && error.kind == ErrorKind::Unreachable
            {
                self.record_loss(error);
                return;
            }
            let crowded = room
                .as_mut()
                .and_then(|room| self.with(|session| room.check(session)).err());
            if let Some(error) = crowded.filter(|error| error.kind == ErrorKind::Unreachable) {
                self.record_loss(error);
                return self.free_and_close();
            }
        }
    }

    /// Frees the WAL and ends the session: the copying threads may be waiting for their disk or a
    /// reader, and the server cannot wait.
    fn free_and_close(&self) {
        let mut session = self.session.locked();
        if let Some(Err(error)) = session.as_mut().map(Session::free_wal) {
            platform::debug(|| error.line());
        }
        session.take();
    }

    fn check(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |loss| Err(loss.error()))
    }

    fn with<T>(&self, run: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        let mut session = self.session.locked();
        self.check()?;
        let Some(open) = session.as_mut() else {
            return Err(void_backup("the session has ended"));
        };
        let done = run(open);
        if open.is_closed() {
            let limit_hint = open.limit_hint();
            session.take();
            done.map_err(|error| self.record_loss(self.with_cause(error, limit_hint)))
        } else {
            done
        }
    }

    /// Adds the hint about the limit of a slot, unless the server itself ended: then it does not answer.
    fn with_cause(&self, error: Error, limit_hint: Option<String>) -> Error {
        let Some(hint) = limit_hint.filter(|_| self.lost.get().is_none()) else {
            return error;
        };
        match Session::connect(&self.params) {
            Ok(_) => error.hint(hint),
            Err(stopped) => {
                platform::debug(|| stopped.line());
                error.hint("run it again when the server runs")
            }
        }
    }

    /// Records the first loss, and returns its error.
    fn record_loss(&self, error: Error) -> Error {
        self.lost.get_or_init(|| SessionLoss::of(error)).error()
    }
}

impl SessionLoss {
    fn of(error: Error) -> Self {
        let reason = error.source.map_or(error.what, |source| source.to_string());
        Self {
            why: reason,
            detail: error.detail,
            hint: error.hint.map(Into::into),
        }
    }

    fn error(&self) -> Error {
        let error = Error {
            detail: self.detail.clone(),
            ..void_backup(&self.why)
        };
        self.hint.iter().cloned().fold(error, Error::hint)
    }
}
