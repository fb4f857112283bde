//! Objects in memory, and a schedule: one actor at a time, and any of them may be next at any operation.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::is_void,
};
use fullbore_storage::{
    Lease, Leased, ListedObject, LocalObjects, MemoryObjects, Objects, Put, PutIf,
    StorageAbilities, Take, Upload, Version,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

/// The objects and the turn, which all actors share.
pub(crate) struct World {
    state: Mutex<State>,
    turn: Condvar,
}

/// Everything there is.
pub(crate) struct State {
    pub(crate) store: MemoryObjects,
    has_locks: bool,
    /// Leases on intents: who holds them, and a number for each time.
    held: BTreeMap<String, (usize, u64)>,
    /// What each backup needs, as its maker knows it.
    pub(crate) needs: BTreeMap<String, BTreeSet<String>>,
    now: usize,
    running: BTreeSet<usize>,
    /// What will happen to actors, and after how many operations of theirs.
    accidents: BTreeMap<usize, (Accident, u32)>,
    dead: BTreeSet<usize>,
    random: Random,
    pub(crate) operations: u64,
    /// The first thing that was wrong.
    pub(crate) broken: Option<String>,
    log: Vec<String>,
}

/// What may happen to an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accident {
    /// It is killed.
    Crash,
    /// One operation fails, and nothing was done.
    Fault,
    /// One operation is done, and an error is told.
    LateFault,
}

/// The work of an actor, and the accident that it meets, with the number of operations before that.
pub(crate) type Part = (Box<dyn FnOnce(Actor) + Send>, Option<(Accident, u32)>);

/// Numbers that follow from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit.max(1)
    }
}

/// The world as one actor sees it.
#[derive(Clone)]
pub(crate) struct Actor {
    world: Arc<World>,
    number: usize,
}

impl World {
    /// Where there are no locks, a holder may be asleep at any time, for any time: others may take it for dead.
    pub(crate) fn new(seed: u64, has_locks: bool) -> Arc<Self> {
        let state = State {
            store: MemoryObjects::new(),
            has_locks,
            held: BTreeMap::new(),
            needs: BTreeMap::new(),
            now: 0,
            running: BTreeSet::new(),
            accidents: BTreeMap::new(),
            dead: BTreeSet::new(),
            random: Random(seed | 1),
            operations: 0,
            broken: None,
            log: Vec::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            turn: Condvar::new(),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Let these actors work at the same time; each may crash at an operation.
    pub(crate) fn run(self: &Arc<Self>, actors: Vec<Part>) {
        let mut state = self.state();
        state.dead.clear();
        for (number, (_, accident)) in actors.iter().enumerate() {
            state.running.insert(number);
            accident.map(|accident| state.accidents.insert(number, accident));
        }
        state.now = 0;
        drop(state);
        std::thread::scope(|scope| {
            for (number, (work, _)) in actors.into_iter().enumerate() {
                let actor = Actor {
                    world: self.clone(),
                    number,
                };
                scope.spawn(move || {
                    let ended = Ended(actor.clone());
                    work(actor);
                    drop(ended);
                });
            }
        });
    }
}

/// Gives the turn to others at the end of an actor, however it ends.
struct Ended(Actor);

impl Drop for Ended {
    fn drop(&mut self) {
        let mut state = self.0.world.state();
        let number = self.0.number;
        state.running.remove(&number);
        state.accidents.remove(&number);
        state.held.retain(|_, (holder, _)| *holder != number);
        state.pick();
        self.0.world.turn.notify_all();
    }
}

impl State {
    /// Who is next.
    fn pick(&mut self) {
        let running = self.running.len() as u64;
        let next = self.random.below(running) as usize;
        self.now = self.running.iter().nth(next).copied().unwrap_or(0);
    }

    fn note(&mut self, number: usize, what: String) {
        self.log.push(format!("{number}: {what}"));
    }

    pub(crate) fn log(&self) -> String {
        self.log.join("\n")
    }

    /// All keys, in order.
    pub(crate) fn keys(&self) -> Vec<String> {
        let listed = self.store.list("").unwrap().into_iter();
        listed.map(|object| object.key).collect()
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.store.stat(key).unwrap().is_some()
    }

    /// Is there a root that is not void?
    pub(crate) fn is_listed(&self, id: &str) -> bool {
        let root = self.store.get(&format!("backups/{id}/root.json")).unwrap();
        root.is_some_and(|(bytes, _)| !is_void(&bytes))
    }

    /// Is all there that the listed backups need?
    fn look(&mut self, touched: &str) {
        let mut lost = None;
        for (id, needs) in self.needs.iter().filter(|(id, _)| self.is_listed(id)) {
            let is_new = touched == format!("backups/{id}/root.json");
            let missing = needs
                .iter()
                .find(|key| (is_new || *key == touched) && !self.has(key));
            lost = lost.or(missing.map(|key| format!("{id} is listed and has lost {key}")));
        }
        if self.broken.is_none() {
            self.broken = lost;
        }
    }
}

/// The mark of errors that are our doing.
const INJECTED: &str = "injected";

fn injected(accident: Accident) -> Error {
    Error::new(ErrorKind::System, INJECTED).detail(format!("{accident:?}"))
}

/// Is this an error that nobody wanted?
pub(crate) fn is_real(error: &Error) -> bool {
    error.what != INJECTED
}

impl Actor {
    /// Wait for the turn, then do one thing that nothing comes between.
    pub(crate) fn step<T>(
        &self,
        what: impl FnOnce() -> String,
        work: impl FnOnce(&mut State) -> T,
    ) -> Result<T> {
        let mut state = self.world.state();
        while state.now != self.number {
            state = self
                .world
                .turn
                .wait(state)
                .unwrap_or_else(|e| e.into_inner());
        }
        if state.dead.contains(&self.number) {
            return Err(injected(Accident::Crash));
        }
        let accident = self.accident(&mut state);
        if let Some(accident @ (Accident::Crash | Accident::Fault)) = accident {
            return Err(injected(accident));
        }
        state.operations += 1;
        let outcome = what();
        state.note(self.number, outcome);
        let result = work(&mut state);
        // Most often the same one goes on: few changes at the wrong places are what breaks things.
        if state.random.below(4) == 0 {
            state.pick();
            if state.now != self.number {
                self.world.turn.notify_all();
            }
        }
        accident.map_or(Ok(result), |accident| Err(injected(accident)))
    }

    /// What happens to this actor now.
    fn accident(&self, state: &mut State) -> Option<Accident> {
        let number = self.number;
        let (accident, left) = state.accidents.get_mut(&number)?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let accident = *accident;
        state.accidents.remove(&number);
        state.note(number, format!("{accident:?}"));
        if accident == Accident::Crash {
            state.dead.insert(number);
            state.held.retain(|_, (holder, _)| *holder != number);
        }
        Some(accident)
    }

    /// Say that something is wrong. A dead one says nothing: its other threads end with errors of their own.
    pub(crate) fn complain(&self, what: String) {
        let mut state = self.world.state();
        if !state.dead.contains(&self.number) {
            state.broken.get_or_insert(what);
        }
    }

    pub(crate) fn random(&self, limit: u64) -> u64 {
        self.world.state().random.below(limit)
    }

    pub(crate) fn promise(&self, id: &str, needs: BTreeSet<String>) {
        self.world.state().needs.insert(id.to_owned(), needs);
    }

    /// Does the storage have locks, so that no holder is taken for dead?
    pub(crate) fn has_locks(&self) -> bool {
        self.world.state().has_locks
    }
}

impl fmt::Debug for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "actor {}", self.number)
    }
}

/// Held until it is dropped, which nobody waits for, or until another takes its holder for dead.
#[derive(Debug)]
struct HeldIntent {
    actor: Actor,
    key: String,
    number: u64,
}

impl HeldIntent {
    fn is_in(&self, state: &State) -> bool {
        let held = state.held.get(&self.key);
        held.is_some_and(|(_, number)| *number == self.number)
    }
}

impl Lease for HeldIntent {
    fn update(&mut self, body: &[u8]) -> Result<()> {
        let key = &self.key;
        let write = |state: &mut State| {
            if !self.is_in(state) {
                return Err(Error::new(ErrorKind::Gone, format!("{key} was taken")));
            }
            state.store.put(key, body, &PutIf::Always).map(drop)
        };
        self.actor.step(|| format!("writes {key}"), write)?
    }

    fn is_ours(&self) -> bool {
        self.is_in(&self.actor.world.state())
    }
}

impl Drop for HeldIntent {
    fn drop(&mut self) {
        let mut state = self.actor.world.state();
        if self.is_in(&state) {
            state.held.remove(&self.key);
        }
    }
}

/// What comes of an attempt to take a lease; the number of one that is held now.
fn take(state: &mut State, actor: usize, key: &str, body: &[u8], take: Take) -> Option<u64> {
    if !state.has(key) {
        if take == Take::Dead {
            return None;
        }
        state.store.put(key, body, &PutIf::Always).unwrap();
    }
    state.operations += 1;
    state.held.insert(key.to_owned(), (actor, state.operations));
    Some(state.operations)
}

/// Does somebody hold it, as far as others can tell?
fn is_held(state: &mut State, actor: usize, key: &str) -> bool {
    match state.held.get(key) {
        None => false,
        Some((holder, _)) if state.has_locks || *holder == actor => true,
        // Asleep for longer than leases last.
        Some(_) => state.random.below(4) > 0,
    }
}

impl Objects for Actor {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        self.step(
            || format!("lists {prefix}"),
            |state| state.store.list(prefix),
        )?
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.step(
            || format!("reads a part of {key}"),
            |state| state.store.read_at(key, offset, len, out),
        )?
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        self.step(|| format!("reads {key}"), |state| state.store.get(key))?
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        self.step(|| format!("looks at {key}"), |state| state.store.stat(key))?
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        self.step(
            || format!("stores {} bytes as {key}, {condition:?}", bytes.len()),
            |state| {
                let put = state.store.put(key, bytes, condition);
                state.look(key);
                put
            },
        )?
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        self.step(|| format!("creates {key}"), |state| state.store.create(key))?
    }

    /// One after the other: others may come between.
    fn delete(&self, keys: &[String]) -> Result<()> {
        for key in keys {
            let delete = |state: &mut State| {
                state.held.remove(key);
                let deleted = state.store.delete(std::slice::from_ref(key));
                state.look(key);
                deleted
            };
            self.step(|| format!("deletes {key}"), delete)??;
        }
        Ok(())
    }

    fn abort_uploads(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn settle(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn lease(&self, key: &str, body: &[u8], how: Take) -> Result<Leased> {
        let leased = |state: &mut State| {
            let is_there = state.has(key);
            if is_there && (how == Take::New || is_held(state, self.number, key)) {
                return Err(Leased::Held);
            }
            take(state, self.number, key, body, how).ok_or(Leased::Absent)
        };
        let number = match self.step(|| format!("takes the lease on {key}"), leased)? {
            Ok(number) => number,
            Err(refused) => return Ok(refused),
        };
        Ok(Leased::Ours(Box::new(HeldIntent {
            actor: self.clone(),
            key: key.to_owned(),
            number,
        })))
    }

    fn abilities(&self) -> StorageAbilities {
        StorageAbilities {
            has_locks: self.has_locks(),
            amends: true,
        }
    }

    fn answers_late(&self) -> bool {
        true
    }

    fn describe(&self, key: &str) -> String {
        format!("{key:?}")
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        None
    }

    fn as_sealed(&self) -> Option<&fullbore_storage::SealedObjects> {
        None
    }
}
