//! Leases for storages that have conditional puts and no locks.
//!
//! The holder of a lease renews it: every [`RENEWAL`] it puts the intent again, on the version that it put last, with a higher number in the
//! last line. Whoever wants to take the lease looks at the version. If that does not change for 3 renewals on the clock of whoever
//! looks, the holder is dead, and a put on that version takes the lease: of two that try, one succeeds. No two clocks are compared.
//!
//! A holder that was asleep for long may be taken for dead. Its next put is refused then, and [`Lease::is_ours`] is false before that
//! already: 2 renewals after the last one that succeeded. But it may be stopped between that question and the next step, so the
//! steps themselves need conditions too.

use super::{Clock, Lease, Leased, Objects, Put, PutIf, Take, Version};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::letters,
};
use fullbore_platform::{
    debug,
    queue::{Locked, start},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Time between two renewals: a put every 10 seconds costs an hour of backup 360 puts, and the dead are known after half a minute.
pub const RENEWAL: Duration = Duration::from_secs(10);

/// Renewals after which a version that did not change is that of a dead holder.
const DEAD_AFTER: u32 = 3;

/// Renewals after which the holder itself is not sure any more. Less than [`DEAD_AFTER`]: it must know first.
const SURE_FOR: u32 = 2;

/// Threads that renew the leases of one storage: a prune holds one lease for each backup that was forgotten.
/// With an answer after 50 ms they renew 3,200 leases in time.
const MAX_RENEWERS: usize = 16;

/// The last line of an intent begins with this, after a line feed.
const MARK: &[u8] = b"\nlease: ";

/// Returns the content of an intent without the last line that a lease adds where the storage has no locks.
pub fn lease_body(bytes: &[u8]) -> &[u8] {
    split_intent(bytes).0
}

/// Returns whether the last line of an intent says that its holder let go. Anyone may take it at once then.
pub fn is_released(bytes: &[u8]) -> bool {
    split_intent(bytes).1.is_some_and(|line| line.is_released)
}

/// What the last line of an intent says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LeaseLine {
    /// Who holds it, by a random name: a process may hold several leases, and take over its own.
    holder: String,
    /// How often it was put.
    beat: u64,
    /// Was it let go?
    is_released: bool,
}

fn split_intent(bytes: &[u8]) -> (&[u8], Option<LeaseLine>) {
    let index = bytes.windows(MARK.len()).rposition(|window| window == MARK);
    let line = index.and_then(|offset| serde_json::from_slice(&bytes[offset + MARK.len()..]).ok());
    match (index, line) {
        (Some(at), Some(line)) => (&bytes[..at], Some(line)),
        _ => (bytes, None),
    }
}

fn join_intent(body: &[u8], line: &LeaseLine) -> Result<Vec<u8>> {
    let line = serde_json::to_vec(line).map_err(|error| {
        Error::new(ErrorKind::Bug, "cannot write the line of a lease").because(error)
    })?;
    Ok([body, MARK, &line].concat())
}

/// Takes leases by conditional puts, and remembers since when it knows the version of an intent.
#[derive(Debug)]
pub struct LeaseTaker {
    clock: Arc<dyn Clock>,
    renewal: Duration,
    seen: Mutex<BTreeMap<String, SeenVersion>>,
    held: Arc<Mutex<Held>>,
}

/// The leases of this process in one storage, and the threads that renew them.
#[derive(Debug, Default)]
struct Held {
    leases: Vec<Arc<HeldLease>>,
    renewers: Vec<Renewer>,
}

/// A thread that renews whichever lease is due.
#[derive(Debug)]
struct Renewer {
    is_ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// A version of an intent, and the time when it was known to be there.
#[derive(Debug, Clone)]
struct SeenVersion {
    version: Version,
    since: Duration,
}

/// Is the holder of a lease alive, as far as it was looked at?
enum Sign {
    Alive,
    Dead,
    /// Look again after this time.
    Wait(Duration),
}

impl LeaseTaker {
    /// Takes leases with this clock and time between renewals; all that take leases of one storage have the same.
    pub fn new(clock: Arc<dyn Clock>, renewal: Duration) -> Self {
        Self {
            clock,
            renewal,
            seen: Mutex::default(),
            held: Arc::default(),
        }
    }

    /// Takes a lease as [`Objects::lease`] does, over the puts of `objects`.
    ///
    /// # Errors
    /// The storage's.
    pub fn take(
        &self,
        objects: Arc<dyn Objects>,
        key: &str,
        body: &[u8],
        take: Take,
    ) -> Result<Leased> {
        if take == Take::New {
            return match self.make(&objects, key, body, take) {
                Err(error) if error.kind == ErrorKind::Unsupported => {
                    // Without conditions nothing is made, but one that is there is told.
                    objects.get(key)?.map(|_| Leased::Held).ok_or(error)
                }
                made => Ok(made?.unwrap_or(Leased::Held)),
            };
        }
        let mut first_seen: Option<Version> = None;
        loop {
            let asked = self.clock.now();
            let Some((bytes, version)) = objects.get(key)? else {
                match self.make(&objects, key, body, take)? {
                    Some(leased) => return Ok(leased),
                    None => continue,
                }
            };
            let (body, line) = split_intent(&bytes);
            let is_released = line.is_some_and(|line| line.is_released);
            let has_changed = first_seen.as_ref().is_some_and(|first| *first != version);
            let sign = if is_released {
                Sign::Dead
            } else if has_changed {
                Sign::Alive
            } else {
                self.sign_of(key, &version, asked)
            };
            match sign {
                Sign::Alive => return Ok(Leased::Held),
                Sign::Dead => return self.take_over(objects, key, body, version),
                Sign::Wait(time) => self.clock.sleep(time),
            }
            first_seen.get_or_insert(version);
        }
    }

    /// Ends the leases of this process on intents that it deleted: they are neither renewed nor let go by a request any more.
    pub fn end_deleted(&self, keys: &[String]) {
        for lease in &self.held.locked().leases {
            if keys.contains(&lease.key) {
                lease.standing.locked().is_lost = true;
            }
        }
    }

    /// Makes an intent that is absent; `None` if another was faster.
    fn make(
        &self,
        objects: &Arc<dyn Objects>,
        key: &str,
        body: &[u8],
        take: Take,
    ) -> Result<Option<Leased>> {
        if take == Take::Dead {
            return Ok(Some(Leased::Absent));
        }
        let held = self.put_first(objects, key, body, &PutIf::Absent)?;
        Ok(match (held, take) {
            (Some(writing), _) => Some(self.held(objects.clone(), key, writing)?),
            (None, Take::New) => Some(Leased::Held),
            (None, _) => None,
        })
    }

    fn take_over(
        &self,
        objects: Arc<dyn Objects>,
        key: &str,
        body: &[u8],
        version: Version,
    ) -> Result<Leased> {
        let taken = match self.put_first(&objects, key, body, &PutIf::Version(version)) {
            Err(error) if error.kind == ErrorKind::Unsupported => {
                debug(|| error.line());
                return Ok(Leased::Unknown);
            }
            taken => taken?,
        };
        match taken {
            Some(writing) => self.held(objects, key, writing),
            // Another was faster, or the holder has woken.
            None => Ok(Leased::Held),
        }
    }

    /// Makes the first put of a holder; `None` if its condition does not hold.
    fn put_first(
        &self,
        objects: &Arc<dyn Objects>,
        key: &str,
        body: &[u8],
        condition: &PutIf,
    ) -> Result<Option<(Writing, Duration)>> {
        let asked = self.clock.now();
        let holder = letters(RandomState::new().build_hasher().finish(), 12);
        let line = LeaseLine {
            holder,
            beat: 0,
            is_released: false,
        };
        let put = objects.put(key, &join_intent(body, &line)?, condition)?;
        let Put::Done(version) = put else {
            return Ok(None);
        };
        Ok(Some((
            Writing {
                body: body.to_vec(),
                line,
                version,
            },
            asked,
        )))
    }

    /// Starts the renewals of a lease that was taken.
    fn held(
        &self,
        objects: Arc<dyn Objects>,
        key: &str,
        (writing, renewed): (Writing, Duration),
    ) -> Result<Leased> {
        self.seen.locked().remove(key);
        let lease = Arc::new(HeldLease {
            objects,
            key: key.to_owned(),
            clock: self.clock.clone(),
            renewal: self.renewal,
            writing: Mutex::new(writing),
            standing: Mutex::new(Standing {
                renewed,
                is_being_renewed: false,
                is_lost: false,
            }),
        });
        let mut held = self.held.locked();
        if held.renewers.len() < MAX_RENEWERS.min(held.leases.len() + 1) {
            match self.start_renewer() {
                Ok(renewer) => held.renewers.push(renewer),
                // Those that there are renew this lease, too.
                Err(error) if held.renewers.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        held.leases.push(lease.clone());
        drop(held);
        Ok(Leased::Ours(Box::new(RenewedLease {
            lease,
            held: self.held.clone(),
        })))
    }

    fn start_renewer(&self) -> Result<Renewer> {
        let is_ending = Arc::new(AtomicBool::new(false));
        let (held, clock, ending) = (self.held.clone(), self.clock.clone(), is_ending.clone());
        let renewal = self.renewal;
        let thread = start(move || {
            while !ending.load(Relaxed) {
                let next = next_due(&held.locked().leases, clock.now());
                match next {
                    Next::Renew(lease) => lease.renew(),
                    Next::Wait(time) => clock.sleep(time.unwrap_or(renewal)),
                }
            }
        })?;
        Ok(Renewer { is_ending, thread })
    }

    /// Returns the sign of a version that was there when the answer came, and still when the question was `asked`.
    fn sign_of(&self, key: &str, version: &Version, asked: Duration) -> Sign {
        let mut seen = self.seen.locked();
        let dead_after = self.renewal * DEAD_AFTER;
        match seen.get(key) {
            Some(known) if known.version == *version => {
                let watched = asked.saturating_sub(known.since);
                if watched >= dead_after {
                    return Sign::Dead;
                }
                Sign::Wait((dead_after - watched).min(self.renewal / 2))
            }
            _ => {
                // The time after the answer, not before the question: the version may be as young as that.
                let since = self.clock.now();
                seen.insert(
                    key.to_owned(),
                    SeenVersion {
                        version: version.clone(),
                        since,
                    },
                );
                Sign::Wait(self.renewal / 2)
            }
        }
    }
}

/// The next step of a thread that renews leases.
enum Next {
    Renew(Arc<HeldLease>),
    /// Looks again after this time, if any lease is not being renewed.
    Wait(Option<Duration>),
}

/// Returns the lease that is due first, for the caller to renew, if it is due `now`.
fn next_due(leases: &[Arc<HeldLease>], now: Duration) -> Next {
    let waiting = leases.iter().filter_map(|lease| {
        let standing = lease.standing.locked();
        (!standing.is_lost && !standing.is_being_renewed)
            .then_some((standing.renewed + lease.renewal, lease))
    });
    let Some((due, lease)) = waiting.min_by_key(|(due, _)| *due) else {
        return Next::Wait(None);
    };
    let left = due.saturating_sub(now);
    if !left.is_zero() {
        return Next::Wait(Some(left));
    }
    lease.standing.locked().is_being_renewed = true;
    Next::Renew(lease.clone())
}

/// The content of an intent, and the version of its last put.
#[derive(Debug)]
struct Writing {
    body: Vec<u8>,
    line: LeaseLine,
    version: Version,
}

/// How sure a holder may be.
#[derive(Debug)]
struct Standing {
    /// When the last put that succeeded began.
    renewed: Duration,
    is_being_renewed: bool,
    /// Was it taken by another, or let go?
    is_lost: bool,
}

#[derive(Debug)]
struct HeldLease {
    objects: Arc<dyn Objects>,
    key: String,
    clock: Arc<dyn Clock>,
    renewal: Duration,
    /// Held during a put.
    writing: Mutex<Writing>,
    /// Never held during a put: who asks whether the lease is ours does not wait for the storage.
    standing: Mutex<Standing>,
}

impl HeldLease {
    fn renew(&self) {
        if let Err(error) = self.beat(None, false) {
            debug(|| {
                let intent = self.objects.describe(&self.key);
                format!("could not renew {intent}: {}", error.line())
            });
            self.clock.sleep(self.renewal / 4);
        }
        self.standing.locked().is_being_renewed = false;
    }

    /// Puts the intent again, with another body if there is one. False if the lease is lost.
    fn beat(&self, body: Option<&[u8]>, is_released: bool) -> Result<bool> {
        let mut writing = self.writing.locked();
        if self.standing.locked().is_lost {
            return Ok(false);
        }
        // Before the request: others count from the moment at which the store has it.
        let began = self.clock.now();
        let line = LeaseLine {
            beat: writing.line.beat + 1,
            is_released,
            ..writing.line.clone()
        };
        let bytes = join_intent(body.unwrap_or(&writing.body), &line)?;
        let mut put =
            self.objects
                .put(&self.key, &bytes, &PutIf::Version(writing.version.clone()))?;
        // An earlier put may have been done though its answer was lost.
        if put == Put::Refused
            && let Some(version) = self.version_of_lost_answer(&writing)?
        {
            put = self
                .objects
                .put(&self.key, &bytes, &PutIf::Version(version))?;
        }
        let Put::Done(version) = put else {
            self.standing.locked().is_lost = true;
            return Ok(false);
        };
        if let Some(body) = body {
            writing.body = body.to_vec();
        }
        writing.line = line;
        writing.version = version;
        let mut standing = self.standing.locked();
        standing.renewed = began;
        standing.is_lost = is_released;
        Ok(true)
    }

    /// Returns the version of our intent after an answer was lost. A put may have been done though its answer was an error: then the intent
    /// is still ours, with a version that we do not know.
    fn version_of_lost_answer(&self, writing: &Writing) -> Result<Option<Version>> {
        let Some((bytes, version)) = self.objects.get(&self.key)? else {
            return Ok(None);
        };
        let line = split_intent(&bytes).1;
        let is_ours =
            line.is_some_and(|line| line.holder == writing.line.holder && !line.is_released);
        Ok(is_ours.then_some(version))
    }
}

#[derive(Debug)]
struct RenewedLease {
    lease: Arc<HeldLease>,
    held: Arc<Mutex<Held>>,
}

impl Lease for RenewedLease {
    fn update(&mut self, body: &[u8]) -> Result<()> {
        if self.lease.beat(Some(body), false)? {
            return Ok(());
        }
        let intent = self.lease.objects.describe(&self.lease.key);
        let message = format!("cannot write {intent}: its lease was taken by another process");
        Err(Error::new(ErrorKind::Gone, message).hint("run the same command again"))
    }

    fn is_ours(&self) -> bool {
        let standing = self.lease.standing.locked();
        let age = self.lease.clock.now().saturating_sub(standing.renewed);
        !standing.is_lost && age < self.lease.renewal * SURE_FOR
    }
}

impl Drop for RenewedLease {
    fn drop(&mut self) {
        let mut held = self.held.locked();
        held.leases.retain(|lease| !Arc::ptr_eq(lease, &self.lease));
        let least = held.leases.len().min(held.renewers.len());
        let ending = held.renewers.split_off(least);
        drop(held);
        for renewer in &ending {
            renewer.is_ending.store(true, Relaxed);
            renewer.thread.thread().unpark();
        }
        for renewer in ending {
            let _ = renewer.thread.join(); // a renewal that panicked leaves a lease that ends by itself
        }
        // If this fails, the others wait until they take the holder for dead.
        if let Err(error) = self.lease.beat(None, true) {
            debug(|| {
                let intent = self.lease.objects.describe(&self.lease.key);
                format!("could not let go of {intent}: {}", error.line())
            });
        }
    }
}
