//! Leases by renewal: who is alive, who is dead, and who may find out too late.

use super::suite::{get, keys, ours, put};
use fullbore_format::error::ErrorKind;
use fullbore_storage::{
    Clock, Fault, Faulty, LeaseTaker, Leased, MemoryObjects, Objects, Operation, Put, PutIf, Take,
    TestClock, is_released, lease_body,
};
use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const RENEWAL: Duration = Duration::from_secs(10);
const INTENT: &str = "intents/20261121T054501Z-k3f9qz.json";
const ROOT: &str = "backups/20261121T054501Z-k3f9qz/root.json";

/// A host with a clock of its own, over the objects of all.
struct Host {
    objects: Arc<dyn Objects>,
    clock: Arc<TestClock>,
}

fn host(memory: &MemoryObjects) -> Host {
    let clock = Arc::new(TestClock::default());
    Host {
        objects: Arc::new(memory.with_clock(clock.clone(), RENEWAL)),
        clock,
    }
}

impl Host {
    fn lease(&self, take: Take) -> Leased {
        self.objects.lease(INTENT, b"body", take).unwrap()
    }

    /// Tries to take the lease; `pass` lets time pass until that is answered.
    fn lease_while(&self, take: Take, mut pass: impl FnMut()) -> Leased {
        thread::scope(|scope| {
            let attempt = scope.spawn(|| self.lease(take));
            while !attempt.is_finished() {
                pass();
                thread::sleep(Duration::from_millis(2));
            }
            attempt.join().unwrap()
        })
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
}

/// Waits for what another thread is about to do.
fn wait_until(what: &str, is_done: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_holder_that_renews_is_never_taken_for_dead() {
    let memory = MemoryObjects::new();
    let (holder, observer) = (host(&memory), host(&memory));
    let lease = ours(holder.lease(Take::New));
    for _ in 0..5 {
        let version = || memory.get(INTENT).unwrap().unwrap().1;
        let leased = observer.lease_while(Take::Dead, || {
            let before = version();
            holder.pass(RENEWAL);
            wait_until("no renewal", || version() != before);
            observer.pass(RENEWAL * 3 / 2);
        });
        assert!(matches!(leased, Leased::Held), "{leased:?}");
        assert!(lease.is_ours());
    }
    assert_eq!(lease_body(&memory.get(INTENT).unwrap().unwrap().0), b"body");
}

#[test]
fn a_holder_that_sleeps_is_dead_after_three_renewals_and_not_before() {
    let memory = MemoryObjects::new();
    let (holder, observer) = (host(&memory), host(&memory));
    let _asleep = ours(holder.lease(Take::New));
    let began = observer.clock.now();
    let lease = ours(observer.lease_while(Take::Dead, || observer.pass(RENEWAL / 10)));
    let waited = observer.clock.now() - began;
    assert!(waited >= RENEWAL * 3, "{waited:?}");
    assert!(lease.is_ours());
}

#[test]
fn a_lease_that_was_let_go_is_taken_without_waiting() {
    let memory = MemoryObjects::new();
    let (holder, observer) = (host(&memory), host(&memory));
    drop(ours(holder.lease(Take::New)));
    // No clock moves.
    assert!(ours(observer.lease(Take::Dead)).is_ours());
}

#[test]
fn a_holder_that_wakes_too_late_knows_that_it_lost() {
    let memory = MemoryObjects::new();
    let (holder, observer) = (host(&memory), host(&memory));
    let mut asleep = ours(holder.lease(Take::New));
    let mut lease = ours(observer.lease_while(Take::Dead, || observer.pass(RENEWAL)));
    lease.update(b"the observer's").unwrap();
    // Before it asked anyone, only because of the time.
    holder.pass(RENEWAL * 2);
    assert!(!asleep.is_ours());
    let error = asleep.update(b"the sleeper's").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Gone, "{}", error.line());
    assert!(!asleep.is_ours());
    drop(asleep);
    assert_eq!(
        lease_body(&memory.get(INTENT).unwrap().unwrap().0),
        b"the observer's"
    );
    assert!(lease.is_ours());
}

#[test]
fn of_two_that_take_the_lease_of_a_dead_holder_one_has_it() {
    let memory = MemoryObjects::new();
    let holder = host(&memory);
    let _asleep = ours(holder.lease(Take::New));
    let prunes = [host(&memory), host(&memory)];
    let leases: Vec<_> = thread::scope(|scope| {
        let attempt = |prune: &Host| prune.lease_while(Take::Dead, || prune.pass(RENEWAL / 4));
        let threads: Vec<_> = prunes
            .iter()
            .map(|prune| scope.spawn(move || attempt(prune)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let taken = leases
        .iter()
        .filter(|leased| matches!(leased, Leased::Ours(_)))
        .count();
    assert_eq!(taken, 1, "{leases:?}");
}

/// The fence: whoever removes what a sleeper may refer to puts a void root first, and both put if absent.
#[test]
fn a_sleeper_cannot_commit_behind_the_fence_nor_be_fenced_after_its_commit() {
    for wakes_first in [true, false] {
        let memory = MemoryObjects::new();
        let (sleeper, prune) = (host(&memory), host(&memory));
        let _asleep = ours(sleeper.lease(Take::New));
        let _lease = ours(prune.lease_while(Take::Dead, || prune.pass(RENEWAL)));
        let commit = || sleeper.objects.put(ROOT, b"root", &PutIf::Absent).unwrap();
        let fence = || {
            prune
                .objects
                .put(ROOT, b"{\"void\":true}", &PutIf::Absent)
                .unwrap()
        };
        let (first, second) = if wakes_first {
            (commit(), fence())
        } else {
            (fence(), commit())
        };
        assert!(matches!(first, Put::Done(_)));
        assert_eq!(second, Put::Refused);
    }
}

#[test]
fn a_renewal_whose_answer_was_lost_does_not_lose_the_lease() {
    let memory = MemoryObjects::new();
    let clock = Arc::new(TestClock::default());
    let faulty = Faulty::new(Arc::new(memory.clone())).with(
        Operation::Put,
        2,
        Fault::FailLate(ErrorKind::Unreachable),
    );
    let objects: Arc<dyn Objects> = Arc::new(faulty.clone());
    let taker = LeaseTaker::new(clock.clone(), RENEWAL);
    let mut lease = ours(taker.take(objects, INTENT, b"one", Take::New).unwrap());
    clock.advance(RENEWAL);
    wait_until("no second attempt", || faulty.calls(Operation::Put) >= 4);
    wait_until("the lease is lost", || lease.is_ours());
    lease.update(b"two").unwrap();
    assert_eq!(lease_body(&memory.get(INTENT).unwrap().unwrap().0), b"two");
}

#[test]
fn a_holder_that_cannot_renew_is_not_sure_before_others_take_it_for_dead() {
    let memory = MemoryObjects::new();
    let clock = Arc::new(TestClock::default());
    let mut faulty = Faulty::new(Arc::new(memory.clone()));
    for put in 2..2000 {
        faulty = faulty.with(Operation::Put, put, Fault::Fail(ErrorKind::Unreachable));
    }
    let taker = LeaseTaker::new(clock.clone(), RENEWAL);
    let lease = ours(
        taker
            .take(Arc::new(faulty.clone()), INTENT, b"one", Take::New)
            .unwrap(),
    );
    clock.advance(RENEWAL * 19 / 10);
    wait_until("no renewal", || faulty.calls(Operation::Put) >= 3);
    assert!(lease.is_ours());
    clock.advance(RENEWAL / 10);
    assert!(!lease.is_ours());
}

#[test]
fn an_intent_that_its_holder_deleted_is_not_made_again() {
    let memory = MemoryObjects::new();
    let holder = host(&memory);
    let lease = ours(holder.lease(Take::New));
    memory.delete(&[INTENT.to_owned()]).unwrap();
    holder.pass(RENEWAL);
    wait_until("not lost", || !lease.is_ours());
    drop(lease);
    assert_eq!(memory.list("").unwrap(), []);
}

#[test]
fn an_intent_without_the_line_of_a_lease_is_dead_when_it_does_not_change() {
    let memory = MemoryObjects::new();
    let observer = host(&memory);
    put(&observer.objects, INTENT, b"by hand\nlease: {\"no\": 1}");
    let lease = ours(observer.lease_while(Take::DeadOrNew, || observer.pass(RENEWAL)));
    assert!(lease.is_ours());
    let intent = get(&observer.objects, INTENT).unwrap();
    assert_eq!(lease_body(&intent), b"by hand\nlease: {\"no\": 1}");
}

#[test]
fn where_conditions_are_refused_nobody_can_tell_who_is_dead() {
    let memory = MemoryObjects::new();
    let observer = host(&memory.without_conditions());
    assert_eq!(
        observer
            .objects
            .lease(INTENT, b"", Take::New)
            .unwrap_err()
            .kind,
        ErrorKind::Unsupported
    );
    assert_eq!(keys(&observer.objects, ""), [""; 0]);
    put(&observer.objects, INTENT, b"a backup");
    // The other has a clock that does not stand still.
    let clock = Arc::new(TestClock::default());
    let looking: Arc<dyn Objects> = Arc::new(
        memory
            .without_conditions()
            .with_clock(clock.clone(), RENEWAL),
    );
    let leased = Host {
        objects: looking,
        clock: clock.clone(),
    }
    .lease_while(Take::Dead, || clock.advance(RENEWAL));
    assert!(matches!(leased, Leased::Unknown), "{leased:?}");
    assert_eq!(get(&observer.objects, INTENT).unwrap(), b"a backup");
}

#[test]
fn uploads_of_the_dead_free_their_room() {
    let memory = MemoryObjects::new();
    let mut upload = memory.create("backups/a/s1").unwrap();
    upload.append(b"x").unwrap();
    let kept = memory.create("backups/ab/s1").unwrap();
    assert_eq!(memory.open_uploads(), 2);
    memory.abort_uploads("backups/a").unwrap();
    assert_eq!(memory.open_uploads(), 1);
    assert_eq!(upload.append(b"y").unwrap_err().kind, ErrorKind::Gone);
    assert_eq!(upload.finish().unwrap_err().kind, ErrorKind::Gone);
    kept.finish().unwrap();
    assert_eq!(memory.open_uploads(), 0);
}

#[test]
fn many_leases_are_renewed_in_time_by_few_threads_and_each_ends_alone() {
    let memory = MemoryObjects::new();
    let clock = Arc::new(TestClock::default());
    let objects = memory.with_clock(clock.clone(), RENEWAL);
    let key = |number: usize| format!("backups/b{number}/intent");
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let mut leases: Vec<_> = (0..200)
        .map(|number| ours(objects.lease(&key(number), b"", Take::New).unwrap()))
        .collect();
    assert!(threads() < before + 100, "{} threads", threads());
    let versions = || -> Vec<_> {
        (0..200)
            .map(|number| memory.get(&key(number)).unwrap().unwrap().1)
            .collect()
    };
    let first = versions();
    clock.advance(RENEWAL);
    wait_until("a lease is not renewed", || {
        versions()
            .iter()
            .zip(&first)
            .all(|(now, first)| now != first)
    });
    drop(leases.split_off(150));
    let second = versions();
    clock.advance(RENEWAL);
    wait_until("a lease is not renewed", || {
        let now = versions();
        (0..150).all(|number| now[number] != second[number])
    });
    assert_eq!(versions()[150..], second[150..]);
    assert!(leases.iter().all(|lease| lease.is_ours()));
    drop(leases);
    for number in 0..200 {
        assert!(is_released(&memory.get(&key(number)).unwrap().unwrap().0));
    }
}
