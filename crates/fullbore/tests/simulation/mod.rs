//! Backups, prunes and forgetting beside each other, in thousands of orders, and ended at any operation.
//!
//! The steps are those of the program, over objects in memory. A backup refers at random to what its bases have. At every
//! moment all is there that a listed backup needs; and when all is quiet, one more prune leaves nothing else.

mod memory;

use fullbore_format::{
    error::{ErrorKind, Result},
    layout::{PARTIAL, REPOSITORY, Repository},
    page::SegmentId,
    root::{BackupOptions, EntryName, FORMAT, Live, PageAt, Root, Segment, SourceInfo, is_void},
    seal::seal,
};
use fullbore_repository::{
    protocol::{
        Intent, check, forget, give_up, intent_key, listed_needs, refer, remove_abandoned,
        store_root, write_off,
    },
    prune::prune,
    root_reader::documents,
    roots::{BackupState, key, needs},
};
use fullbore_storage::{
    Clock, Lease, Leased, MemoryObjects, Objects, PutIf, RENEWAL, Take, TestClock,
};
use memory::{Accident, Actor, World, is_real};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    thread::{self, ThreadId},
    time::Duration,
};

fn id(number: usize) -> String {
    format!("20261121T0000{number:02}Z-aaaaaa")
}

fn source(number: u64) -> SourceInfo {
    SourceInfo {
        host: "h".into(),
        paths: vec![EntryName(format!("/{number}").into())],
        contents: true,
    }
}

fn own(number: u32) -> Segment {
    Segment {
        stream: 1,
        number,
        bytes: 3,
        frames: 1,
        plain_bytes: 3,
        parts: String::new(),
        tape: None,
    }
}

fn live(segment: &SegmentId) -> Live {
    let SegmentId {
        backup,
        stream,
        number,
    } = segment.clone();
    Live {
        backup,
        stream,
        number,
        frames: 1,
        bytes: 3,
        of_bytes: 3,
        data_bytes: 0,
    }
}

fn segment_key(of: &str, segment: &SegmentId) -> String {
    let backup = if segment.backup.is_empty() {
        of
    } else {
        &segment.backup
    };
    key(
        backup,
        &format!("s{:02}-{:06}.tar.zst", segment.stream, segment.number),
    )
}

/// How a backup in the simulation behaves.
#[derive(Debug, Clone, Copy)]
struct Habits {
    /// Does it mind tombstones? Both must be safe.
    minds_tombstones: bool,
    /// How many of its two sources there are.
    sources: u64,
    /// Are there locks, or may any holder of an intent be taken for dead at any time?
    has_locks: bool,
}

/// Segments by backup and number, and backups by their manifests.
type Offer = (BTreeSet<(String, u32)>, BTreeSet<String>);

/// What a backup may refer to: segments and manifests of its bases, and what these refer to.
fn offered(bases: &BTreeMap<String, Root>) -> Offer {
    let (mut segments, mut manifests) = (BTreeSet::new(), BTreeSet::new());
    for (base, root) in bases {
        for live in &root.liveness {
            let backup = if live.backup.is_empty() {
                base
            } else {
                &live.backup
            };
            segments.insert((backup.clone(), live.number));
        }
        for page in &root.pages {
            manifests.insert(if page.backup.is_empty() {
                base.clone()
            } else {
                page.backup.clone()
            });
        }
    }
    (segments, manifests)
}

/// Steps 2 to 4, and what came of it: the roots of bases that may be used, segments and manifests to refer to.
fn choose(
    actor: &Actor,
    lease: &mut dyn Lease,
    intent: &mut Intent,
    habits: Habits,
) -> Result<Offer> {
    let mut bases = BTreeMap::new();
    for base in fullbore_repository::roots::ids(actor)?
        .iter()
        .filter(|base| **base != intent.id)
    {
        let wanted = actor.random(3) > 0;
        for file in ["root.json", "partial.json"].iter().filter(|_| wanted) {
            if let Some((bytes, _)) = actor.get(&key(base, file))? {
                if is_void(&bytes) {
                    break;
                }
                bases.insert(base.clone(), Root::open(&bytes, "a root")?);
                break;
            }
        }
    }
    let named: Vec<String> = bases.keys().cloned().collect();
    intent.bases.extend(named.iter().cloned());
    intent.bases.sort_unstable();
    intent.bases.dedup();
    lease.update(&seal(intent)?)?;
    let referred = refer(actor, &named)?;
    bases.retain(|base, _| !referred.gone.contains(base));
    let (mut segments, mut manifests) = offered(&bases);
    if habits.minds_tombstones {
        let entombed: HashSet<_> = referred
            .tombstones
            .iter()
            .map(|id| (id.backup.clone(), id.number))
            .collect();
        segments.retain(|segment| !entombed.contains(segment));
        manifests.retain(|backup| !referred.manifests.contains(backup));
    }
    segments.retain(|_| actor.random(2) == 0);
    manifests.retain(|_| actor.random(3) == 0);
    Ok((segments, manifests))
}

fn root_of(
    id: &str,
    source: SourceInfo,
    segments: &[Segment],
    others: &BTreeSet<(String, u32)>,
) -> Root {
    let mine = segments.iter().map(|one| SegmentId {
        backup: String::new(),
        stream: 1,
        number: one.number,
    });
    let theirs = others.iter().map(|(backup, number)| SegmentId {
        backup: backup.clone(),
        stream: 1,
        number: *number,
    });
    let options = BackupOptions {
        codec: "zstd".into(),
        ..BackupOptions::default()
    };
    let liveness = mine.chain(theirs).map(|segment| live(&segment)).collect();
    Root {
        format: FORMAT,
        id: id.into(),
        source,
        options,
        segments: segments.to_vec(),
        liveness,
        ..Root::default()
    }
}

fn promise(actor: &Actor, root: &Root) {
    let mut keys: BTreeSet<String> = root
        .liveness
        .iter()
        .map(|live| segment_key(&root.id, &live.id()))
        .collect();
    let backups = root
        .pages
        .iter()
        .map(|page| &page.backup)
        .chain(root.liveness.iter().map(|live| &live.backup));
    keys.extend(backups.map(|backup| {
        key(
            if backup.is_empty() { &root.id } else { backup },
            "manifest",
        )
    }));
    keys.insert(key(&root.id, "manifest"));
    actor.promise(&root.id, keys);
}

/// Everything a backup does to a repository.
fn backup(actor: &Actor, number: usize, habits: Habits) -> Result<()> {
    remove_abandoned(actor)?;
    let intent = Intent {
        id: id(number),
        ..Intent::default()
    };
    let key = intent_key(&intent.id);
    let Leased::Ours(mut lease) = actor.lease(&key, &seal(&intent)?, Take::New)? else {
        actor.complain(format!("{number} could not announce itself"));
        return Ok(());
    };
    let done = store(actor, &mut *lease, &intent, habits);
    if done.is_err() {
        give_up(actor, &intent.id)?;
    }
    // Another that took us for dead sees to the intent; what we failed with came of that.
    if !lease.is_ours() && !actor.has_locks() {
        return Ok(());
    }
    actor.delete(&[key])?;
    done
}

fn store(actor: &Actor, lease: &mut dyn Lease, intent: &Intent, habits: Habits) -> Result<()> {
    let id = &intent.id.clone();
    put(actor, &key(id, "manifest"), b"man")?;
    let mut intent = intent.clone();
    let (mut segments, mut manifests) = choose(actor, lease, &mut intent, habits)?;
    let source = source(actor.random(habits.sources));
    let mut mine = Vec::new();
    for number in 1..=actor.random(3) as u32 {
        mine.push(own(number));
        put(
            actor,
            &segment_key(
                id,
                &SegmentId {
                    backup: String::new(),
                    stream: 1,
                    number,
                },
            ),
            b"seg",
        )?;
        if actor.random(2) == 0 {
            let partial = root_of(id, source.clone(), &mine, &segments);
            put(actor, &key(id, "partial.json"), &seal(&partial)?)?;
        }
    }
    // Backups of other sources come when content of the backup is stored already.
    if actor.random(2) == 0 {
        let (more, others) = choose(actor, lease, &mut intent, habits)?;
        segments.extend(more);
        manifests.extend(others);
    }
    put(actor, &key(id, "contents"), b"list")?;
    let mut root = root_of(id, source, &mine, &segments);
    let page = |backup: &String| PageAt {
        backup: backup.clone(),
        manifest_offset: Some(0),
        bytes: 3,
        ..PageAt::default()
    };
    root.pages = manifests.iter().map(page).collect();
    check(actor, &root, &listed_needs(actor, &root)?)?;
    promise(actor, &root);
    store_root(actor, id, &seal(&root)?)?;
    actor.delete(&[key(id, "partial.json")])
}

fn put(objects: &dyn Objects, key: &str, bytes: &[u8]) -> Result<()> {
    objects.put(key, bytes, &PutIf::Always).map(drop)
}

/// What an actor is to do.
#[derive(Debug, Clone)]
enum Role {
    Backup,
    Prune,
    Forget,
}

type Planned = (Role, Option<(Accident, u32)>);

fn roles() -> impl Strategy<Value = Vec<Planned>> {
    let role =
        prop_oneof![5 => Just(Role::Backup), 4 => Just(Role::Prune), 3 => Just(Role::Forget)];
    let kind = prop_oneof![2 => Just(Accident::Crash), 1 => Just(Accident::Fault), 1 => Just(Accident::LateFault)];
    let accident = prop_oneof![3 => Just(None), 2 => (kind, 0..60u32).prop_map(Some)];
    prop::collection::vec((role, accident), 2..6)
}

fn act(role: Role, number: usize, habits: Habits) -> Box<dyn FnOnce(Actor) + Send> {
    Box::new(move |actor| {
        let done = match role {
            Role::Backup => backup(&actor, number, habits),
            Role::Prune => match prune(&actor, false) {
                // It was taken for dead itself.
                Err(error) if error.kind == ErrorKind::Unreachable && !actor.has_locks() => Ok(()),
                done => done.map(drop),
            },
            Role::Forget => {
                let victim = 1 + actor.random(number as u64) as usize;
                forget(&actor, &id(victim)).and_then(|done| {
                    if done {
                        Ok(())
                    } else {
                        give_up_dead(&actor, victim)
                    }
                })
            }
        };
        if let Some(error) = done.err().filter(is_real) {
            actor.complain(format!(
                "{number} failed: {} {:?}",
                error.line(),
                error.detail
            ));
        }
    })
}

/// Forget what is left of a backup, if it is not alive.
fn give_up_dead(actor: &Actor, victim: usize) -> Result<()> {
    match write_off(actor, &id(victim)) {
        Err(error) if error.kind == ErrorKind::Usage => Ok(()),
        other => other.map(drop),
    }
}

/// After everything: a prune that nothing disturbs leaves what is listed, what a dead backup may still give, and no more.
fn settle(world: &Arc<World>, has_locks: bool) {
    let last = |actor: Actor| {
        let failed = prune(&actor, false).err();
        failed
            .into_iter()
            .for_each(|error| actor.complain(format!("the last prune failed: {}", error.line())));
    };
    world.run(vec![(Box::new(last), None)]);
    // Where there are no locks, a prune that removes something makes those void that look dead; the next one removes these.
    world.run(vec![(Box::new(last), None)]);
    let log = world.state().log();
    assert_eq!(world.state().broken, None, "{log}");
    let kept: Arc<std::sync::Mutex<BTreeSet<String>>> = Arc::default();
    let into = kept.clone();
    let look = move |actor: Actor| {
        for (id, document) in documents(&actor).unwrap() {
            let mut kept = into.lock().unwrap();
            let file = match document.state {
                BackupState::Listed | BackupState::Void => "root.json",
                BackupState::Partial => "partial.json",
                BackupState::Forgotten => "forgotten.json",
            };
            kept.insert(key(&id, file));
            if !matches!(document.state, BackupState::Forgotten | BackupState::Void) {
                for need in &document.facts.unwrap().needs {
                    let key = need.key();
                    // A list of contents is there as long as a page of its backup.
                    let dir = key.strip_suffix("manifest").filter(|_| need.bytes > 0);
                    let list = dir.map(|dir| format!("{dir}contents"));
                    kept.extend(list.filter(|list| actor.stat(list).unwrap().is_some()));
                    kept.insert(key);
                }
            }
        }
    };
    world.run(vec![(Box::new(look), None)]);
    let state = world.state();
    let is_word = |name: &String| {
        // One who forgot it was killed between the two steps; it is listed still.
        let backup_of = name.strip_suffix("/forgotten.json");
        let id = backup_of.and_then(|dir| dir.strip_prefix("backups/"));
        // Or it was asleep then, and has stored its partial root since: it stays like that of any dead backup.
        id.is_some_and(|id| {
            state.is_listed(id)
                || state.has(&key_of_void(id))
                || (!has_locks && state.has(&key(id, PARTIAL)))
        })
    };
    let mut there: BTreeSet<String> = state.keys().into_iter().collect();
    there.retain(|key| key != REPOSITORY && !is_word(key));
    if !has_locks {
        // By it a later prune knows that the backup may still commit.
        there.retain(|key| !key.starts_with("intents/"));
    }
    drop(state);
    assert_eq!(there, *kept.lock().unwrap(), "{log}");
    // What says that a backup was forgotten is there just as long as anything of it is.
    for dir in there
        .iter()
        .filter_map(|key| key.strip_suffix("forgotten.json"))
    {
        assert!(
            there
                .range(dir.to_owned()..)
                .take_while(|key| key.starts_with(dir))
                .count()
                > 1,
            "{dir}"
        );
    }
}

/// Where a void root would be.
fn key_of_void(id: &str) -> String {
    key(id, "root.json")
}

/// Three rounds of actors that work at the same time.
fn simulate(seed: u64, rounds: Vec<Vec<Planned>>, habits: Habits) -> u64 {
    let world = World::new(seed, habits.has_locks);
    let facts = seal(&Repository::default()).unwrap();
    put(&world.state().store, REPOSITORY, &facts).unwrap();
    let mut number = 0;
    for round in rounds {
        let actors = round.into_iter().map(|(role, accident)| {
            number += 1;
            (act(role, number, habits), accident)
        });
        world.run(actors.collect());
    }
    settle(&world, habits.has_locks);
    world.state().operations
}

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig {
        cases: count,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn no_order_and_no_crash_takes_from_a_listed_backup_what_it_needs(
        seed in any::<u64>(), rounds in prop::collection::vec(roles(), 1..4), sources in 1..3u64,
    ) {
        simulate(seed, rounds, Habits { minds_tombstones: true, sources, has_locks: true });
    }

    #[test]
    fn the_same_holds_for_backups_that_do_not_mind_tombstones(
        seed in any::<u64>(), rounds in prop::collection::vec(roles(), 1..4), sources in 1..3u64,
    ) {
        simulate(seed, rounds, Habits { minds_tombstones: false, sources, has_locks: true });
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn a_holder_that_is_asleep_for_any_time_never_lists_itself_over_what_was_removed(
        seed in any::<u64>(), rounds in prop::collection::vec(roles(), 1..4), sources in 1..3u64,
        minds_tombstones in any::<bool>(),
    ) {
        simulate(seed, rounds, Habits { minds_tombstones, sources, has_locks: false });
    }
}

/// A clock of a host on which one thread has waited as soon as it waits. Those that renew leases wait for it.
#[derive(Debug)]
struct HastyClock(TestClock, ThreadId);

impl Clock for HastyClock {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn sleep(&self, time: Duration) {
        if thread::current().id() == self.1 {
            self.0.advance(time);
        } else {
            self.0.sleep(time);
        }
    }
}

/// A backup that was forgotten, and one under way on a host whose clock stands still. Gives what the host that prunes sees.
fn beside_a_sleeper(store: &MemoryObjects) -> (MemoryObjects, Leased) {
    put(store, REPOSITORY, &seal(&Repository::default()).unwrap()).unwrap();
    let old = root_of(&id(1), source(0), &[own(1)], &BTreeSet::new());
    put(store, &key(&id(1), "manifest"), b"man").unwrap();
    put(store, &key(&id(1), "s01-000001.tar.zst"), b"seg").unwrap();
    put(store, &key(&id(1), "forgotten.json"), &seal(&old).unwrap()).unwrap();
    let asleep = store.with_clock(Arc::new(TestClock::default()), RENEWAL);
    let intent = Intent {
        id: id(2),
        ..Intent::default()
    };
    let body = seal(&intent).unwrap();
    let lease = asleep.lease(&intent_key(&id(2)), &body, Take::New).unwrap();
    let awake = store.with_clock(
        Arc::new(HastyClock(TestClock::default(), thread::current().id())),
        RENEWAL,
    );
    (awake, lease)
}

#[test]
fn a_backup_that_slept_through_its_lease_cannot_commit_after_a_prune() {
    let store = MemoryObjects::new();
    let (awake, lease) = beside_a_sleeper(&store);
    assert!(matches!(lease, Leased::Ours(_)));
    let freed = prune(&awake, false).unwrap().freed();
    assert_eq!((freed.segments, freed.bytes), (1, 6));
    let root = root_of(&id(2), source(0), &[], &BTreeSet::new());
    let error = store_root(&store, &id(2), &seal(&root).unwrap()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Gone);
    // It stays, however often a prune comes by: this host may sleep on.
    for _ in 0..3 {
        prune(&awake, false).unwrap();
        assert!(documents(&store).unwrap()[&id(2)].state == BackupState::Void);
    }
    assert_eq!(store.list("intents").unwrap(), []);
    assert_eq!(store.list("backups").unwrap().len(), 1);
}

#[test]
fn a_prune_beside_an_intent_is_refused_where_puts_have_no_conditions() {
    let store = MemoryObjects::new();
    let (awake, lease) = beside_a_sleeper(&store);
    let before = store.list("").unwrap();
    let error = prune(&awake.without_conditions(), false).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported, "{}", error.line());
    assert_eq!(store.list("").unwrap(), before);
    drop(lease);
    store.delete(&[intent_key(&id(2))]).unwrap();
    let freed = prune(&awake.without_conditions(), false).unwrap().freed();
    assert_eq!(freed.segments, 1);
}

#[test]
fn what_a_root_needs_is_what_it_names() {
    let others = [(id(7), 4)].into();
    let root = root_of(&id(8), source(0), &[own(1)], &others);
    let names = [
        "backups/20261121T000007Z-aaaaaa/manifest",
        "backups/20261121T000007Z-aaaaaa/s01-000004.tar.zst",
    ];
    let keys: Vec<String> = needs(&root).unwrap().into_keys().collect();
    assert_eq!(keys[..2], names);
    assert_eq!(
        keys[2..],
        [key(&id(8), "manifest"), key(&id(8), "s01-000001.tar.zst")]
    );
}

#[test]
fn a_backup_that_commits_and_dies_while_it_is_written_off_is_forgotten() {
    let world = World::new(1, true);
    let work = |actor: Actor| {
        let (id, root) = (
            id(1),
            root_of(&id(1), source(0), &[own(1)], &BTreeSet::new()),
        );
        put(&actor, &key(&id, "manifest"), b"man").unwrap();
        put(
            &actor,
            &segment_key(
                &id,
                &SegmentId {
                    backup: String::new(),
                    stream: 1,
                    number: 1,
                },
            ),
            b"seg",
        )
        .unwrap();
        for file in ["partial.json", "root.json"] {
            put(&actor, &key(&id, file), &seal(&root).unwrap()).unwrap();
        }
        assert!(write_off(&actor, &id).unwrap());
    };
    world.run(vec![(Box::new(work), None)]);
    settle(&world, true);
    assert_eq!(world.state().keys(), [""; 0]);
}
