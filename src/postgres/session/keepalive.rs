//! A session that is asked every second whether it is still there, while others copy.

use super::{Room, Session, void};
use crate::{
    error::{Error, ErrorKind, Result},
    platform,
    postgres::conninfo::Params,
    queue::{Locked, start},
};
use std::{
    sync::{
        Arc, Mutex, OnceLock,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

/// How often the server is asked (rule 2): what is copied after the session was lost is copied in vain.
const EVERY: Duration = Duration::from_secs(1);

/// A session that threads share, and whose loss is noticed within seconds. Dropping it ends the session.
pub struct HeldSession {
    shared: Arc<KeepaliveShared>,
    /// How the server was reached.
    params: Params,
    /// Dropped, it ends the thread that asks.
    _stop: Sender<()>,
}

struct KeepaliveShared {
    /// None once it is lost or over.
    session: Mutex<Option<Session>>,
    lost: OnceLock<SessionLoss>,
}

/// The parts of an error that can be given more than once.
struct SessionLoss {
    why: String,
    detail: Vec<String>,
    hint: Option<String>,
}

impl HeldSession {
    /// Begin to ask; `room` is where the server keeps WAL for it, which was reached by `params`.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn new(session: Session, params: &Params, room: Option<Room>) -> Result<Self> {
        let shared = Arc::new(KeepaliveShared {
            session: Mutex::new(Some(session)),
            lost: OnceLock::new(),
        });
        let (stop, stopped) = channel();
        let asked = Arc::clone(&shared);
        start(move || asked.ask_until(&stopped, room))?;
        Ok(Self {
            shared,
            params: params.clone(),
            _stop: stop,
        })
    }

    /// Is the session still there, as far as was noticed? Costs one load, from any thread.
    ///
    /// # Errors
    /// That the backup is void, and why; each time.
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// Run something in the session; meanwhile it is not asked, as its statements notice the loss themselves.
    ///
    /// # Errors
    /// Those of `run`, or of [`Held::check`].
    pub fn with<T>(&self, run: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        self.shared.with(run)
    }

    /// Ask something that may fail without harm: of a session that has a slot in another one, as the server drops the slots of one
    /// with a statement that fails.
    ///
    /// # Errors
    /// Those of `ask`, and of a session with the same server.
    pub fn beside<T>(&self, ask: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        let holder =
            self.with(|session| Ok(session.slot.clone().map(|slot| (slot, session.process))))?;
        let Some((slot, process)) = holder else {
            return self.with(ask);
        };
        let mut session = Session::connect(&self.params)?;
        session.is_beside(&slot, process)?;
        ask(&mut session)
    }
}

impl Drop for HeldSession {
    /// Ends the session now, or, if the server is being asked, once it has answered.
    fn drop(&mut self) {
        if let Ok(mut session) = self.shared.session.try_lock() {
            session.take();
        }
    }
}

impl KeepaliveShared {
    fn ask_until(&self, stopped: &Receiver<()>, mut room: Option<Room>) {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(EVERY) {
            // Of any other kind is, for one, that somebody has cancelled the question.
            if let Err(error) =
                self.with(|session| session.alive().and_then(|()| session.keep_slot()))
                && error.kind == ErrorKind::Unreachable
            {
                self.lose(error);
                return;
            }
            let crowded = room
                .as_mut()
                .and_then(|room| self.with(|session| room.check(session)).err());
            if let Some(error) = crowded.filter(|error| error.kind == ErrorKind::Unreachable) {
                self.lose(error);
                return self.give_up();
            }
        }
    }

    /// Whoever copies may be waiting, for its own disk or a reader: the server does not.
    fn give_up(&self) {
        let mut session = self.session.locked();
        if let Some(Err(error)) = session.as_mut().map(Session::make_room) {
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
            return Err(void("the session has ended"));
        };
        let done = run(open);
        if open.is_closed() {
            session.take();
            done.map_err(|error| self.lose(error))
        } else {
            done
        }
    }

    /// Remember the first reason, and give it.
    fn lose(&self, error: Error) -> Error {
        self.lost.get_or_init(|| SessionLoss::of(error)).error()
    }
}

impl SessionLoss {
    fn of(error: Error) -> Self {
        let why = error.source.map_or(error.what, |source| source.to_string());
        Self {
            why,
            detail: error.detail,
            hint: error.hint.map(Into::into),
        }
    }

    fn error(&self) -> Error {
        let error = Error {
            detail: self.detail.clone(),
            ..void(&self.why)
        };
        self.hint.iter().cloned().fold(error, Error::hint)
    }
}
