//! Errors of a mount: waits for a storage that is away, and tells each trouble once.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::Locked;
use fuser::Errno;
use std::{
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Receives each error that a reader of the mount got, once.
pub type OnTrouble = Box<dyn Fn(Error) + Send + Sync>;

/// Different errors that are told. A hostile repository must not fill a log.
const MAX_TOLD: usize = 1000;
/// Waits between two tries of a storage that is away.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Decides about errors.
pub(super) struct Trouble {
    tell: OnTrouble,
    /// Time that readers wait for a storage; `None` without end.
    patience: Option<Duration>,
    told: Mutex<HashSet<String>>,
    is_ended: AtomicBool,
}

impl Trouble {
    pub(super) fn new(tell: OnTrouble, patience: Option<Duration>) -> Self {
        Self {
            tell,
            patience,
            told: Mutex::default(),
            is_ended: false.into(),
        }
    }

    /// Ends all waiting.
    pub(super) fn end(&self) {
        self.is_ended.store(true, Relaxed);
    }

    /// Runs `work` again while the storage is away. Tells the error, and returns its number for the
    /// reader.
    pub(super) fn attempt<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T, Errno> {
        let begin = Instant::now();
        let mut wait = FIRST_WAIT;
        loop {
            let error = match work() {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let is_over = self.patience.is_some_and(|time| begin.elapsed() >= time);
            let is_away = error.kind == ErrorKind::Unreachable;
            let number = number(error.kind);
            self.tell_once(error);
            if !is_away || is_over || self.is_ended.load(Relaxed) {
                return Err(number);
            }
            thread::sleep(wait);
            wait = LAST_WAIT.min(wait * 2);
        }
    }

    /// Tells an error, unless the same was told before.
    pub(super) fn tell_once(&self, error: Error) {
        let line = error.line();
        let mut told = self.told.locked();
        if told.len() < MAX_TOLD && told.insert(line) {
            drop(told);
            (self.tell)(error);
        }
    }
}

fn number(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::Permission => Errno::EACCES,
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    };

    fn counted(patience: Duration) -> (Trouble, Arc<AtomicU32>) {
        let told = Arc::new(AtomicU32::new(0));
        let count = told.clone();
        let tell = move |_: Error| {
            count.fetch_add(1, SeqCst);
        };
        (Trouble::new(Box::new(tell), Some(patience)), told)
    }

    #[test]
    fn the_same_trouble_is_told_once() {
        let (trouble, told) = counted(Duration::ZERO);
        for line in ["one", "two", "one"] {
            let result = trouble.attempt(|| Err::<(), _>(Error::corrupt(line)));
            assert!(matches!(result, Err(Errno::EIO)));
        }
        assert_eq!(told.load(SeqCst), 2);
    }

    #[test]
    fn a_reader_waits_for_a_storage_that_is_away() {
        let (trouble, told) = counted(Duration::from_secs(60));
        let calls = AtomicU32::new(0);
        let work = || match calls.fetch_add(1, SeqCst) {
            0 => Err(Error::new(ErrorKind::Unreachable, "away")),
            calls => Ok(calls),
        };
        assert_eq!(trouble.attempt(work).ok(), Some(1));
        assert_eq!(told.load(SeqCst), 1);
        let (trouble, _) = counted(Duration::ZERO);
        let away = || Err::<(), _>(Error::new(ErrorKind::Unreachable, "away"));
        assert!(matches!(trouble.attempt(away), Err(Errno::EIO)));
    }
}
