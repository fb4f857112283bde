//! Objects in memory, and a schedule: one actor at a time, and any of them may be next at any operation.

use fullbore::{
    error::{Error, ErrorKind, Result},
    repo::objects::{Objects, Seized},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

/// What all actors share.
pub(crate) struct World {
    state: Mutex<State>,
    turn: Condvar,
}

/// Everything there is.
pub(crate) struct State {
    pub(crate) objects: BTreeMap<String, Vec<u8>>,
    /// Locks of intents, and who holds them.
    held: BTreeMap<String, usize>,
    /// What each backup needs, as its maker knows it.
    pub(crate) needs: BTreeMap<String, BTreeSet<String>>,
    now: usize,
    running: BTreeSet<usize>,
    /// What will happen to actors, and after how many operations of theirs.
    accidents: BTreeMap<usize, (Accident, u32)>,
    dead: BTreeSet<usize>,
    random: Random,
    pub(crate) operations: u64,
    /// What was wrong first.
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

/// What an actor does, and what happens to it.
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
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let state = State {
            objects: BTreeMap::new(),
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
        state.held.retain(|_, holder| *holder != number);
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

    fn is_listed(&self, id: &str) -> bool {
        self.objects
            .contains_key(&format!("backups/{id}/root.json"))
    }

    /// Is all there that the listed backups need?
    fn look(&mut self, touched: &str) {
        let mut lost = None;
        for (id, needs) in self.needs.iter().filter(|(id, _)| self.is_listed(id)) {
            let is_new = touched == format!("backups/{id}/root.json");
            let missing = needs
                .iter()
                .find(|key| (is_new || *key == touched) && !self.objects.contains_key(*key));
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
        let what = what();
        state.note(self.number, what);
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
            state.held.retain(|_, holder| *holder != number);
        }
        Some(accident)
    }

    /// Say that something is wrong.
    pub(crate) fn complain(&self, what: String) {
        self.world.state().broken.get_or_insert(what);
    }

    pub(crate) fn random(&self, limit: u64) -> u64 {
        self.world.state().random.below(limit)
    }

    pub(crate) fn promise(&self, id: &str, needs: BTreeSet<String>) {
        self.world.state().needs.insert(id.to_owned(), needs);
    }

    /// Write an intent and take its lock, in one step: what is between the two is the lock's own affair.
    pub(crate) fn announce(&self, key: &str, bytes: &[u8]) -> Result<()> {
        self.step(
            || format!("announces {key}"),
            |state| {
                state.held.insert(key.to_owned(), self.number);
                state.objects.insert(key.to_owned(), bytes.to_vec());
            },
        )
    }

    /// Write over an intent in place: first a part of it.
    pub(crate) fn amend(&self, key: &str, bytes: &[u8]) -> Result<()> {
        for end in [bytes.len() / 2, bytes.len()] {
            let write = |state: &mut State| {
                drop(state.objects.insert(key.to_owned(), bytes[..end].to_vec()))
            };
            self.step(|| format!("writes {end} bytes of {key}"), write)?;
        }
        Ok(())
    }
}

/// Held until it is dropped, which nobody waits for.
pub(crate) struct Claimed {
    actor: Actor,
    key: String,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let mut state = self.actor.world.state();
        if state.held.get(&self.key) == Some(&self.actor.number) {
            state.held.remove(&self.key);
        }
    }
}

impl Objects for Actor {
    type Lock = Option<Claimed>;

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let prefix = format!("{dir}/");
        self.step(
            || format!("lists {dir}"),
            |state| {
                let below = state
                    .objects
                    .range(prefix.clone()..)
                    .map_while(|(key, _)| key.strip_prefix(&prefix));
                let names: BTreeSet<_> = below
                    .map(|rest| rest.split('/').next().unwrap_or(rest).to_owned())
                    .collect();
                names.into_iter().collect()
            },
        )
    }

    fn read(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.step(
            || format!("reads {key}"),
            |state| state.objects.get(key).cloned(),
        )
    }

    fn size(&self, key: &str) -> Result<Option<u64>> {
        self.step(
            || format!("looks at {key}"),
            |state| state.objects.get(key).map(|bytes| bytes.len() as u64),
        )
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<()> {
        self.step(
            || format!("stores {key}"),
            |state| {
                state.objects.insert(key.to_owned(), bytes.to_vec());
                state.look(key);
            },
        )
    }

    fn mark(&self, key: &str) -> Result<()> {
        self.put(key, &[])
    }

    fn sync(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<bool> {
        self.step(
            || format!("renames {from} to {to}"),
            |state| match state.objects.remove(from) {
                Some(bytes) => {
                    state.objects.insert(to.to_owned(), bytes);
                    true
                }
                None => false,
            },
        )
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.step(
            || format!("removes {key}"),
            |state| {
                state.objects.remove(key);
                state.look(key);
            },
        )
    }

    fn remove_dir(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn seize(&self, key: &str) -> Result<Seized<Option<Claimed>>> {
        let what = |state: &mut State| match state.objects.contains_key(key) {
            _ if state.held.contains_key(key) => Seized::Held,
            true => Seized::Free(None),
            false => Seized::Absent,
        };
        self.step(|| format!("tries the lock of {key}"), what)
    }

    fn claim(&self, key: &str) -> Result<Seized<Option<Claimed>>> {
        let what = |state: &mut State| {
            if state.held.contains_key(key) {
                return Seized::Held::<()>;
            }
            state.held.insert(key.to_owned(), self.number);
            state.objects.entry(key.to_owned()).or_default();
            Seized::Free(())
        };
        let claimed = self.step(|| format!("claims {key}"), what)?;
        let claim = || Claimed {
            actor: self.clone(),
            key: key.to_owned(),
        };
        Ok(if matches!(claimed, Seized::Free(_)) {
            Seized::Free(Some(claim()))
        } else {
            Seized::Held
        })
    }
}
