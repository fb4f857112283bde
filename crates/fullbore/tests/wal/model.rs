//! Servers of one system that push, fail over, are cloned and pruned in any order, against a model of the archive.
//!
//! After each step: a segment that was acknowledged is there with its content, or both contents of it are named; a segment that a
//! fetch calls missing was never acknowledged.

use super::{
    args,
    made::{MadeServer, name, segment},
    runs::{self, fullbore},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

/// Steps of one history.
const STEPS: usize = 30;
/// Histories of this test: one, unless this variable says more.
const HISTORIES: &str = "FULLBORE_WAL_HISTORIES";

/// A server: its directory, its timeline, the next segment that it writes, and what makes its content its own.
#[derive(Clone)]
struct ModelServer {
    dir: String,
    timeline: u32,
    next: u32,
    seed: u64,
}

/// The archive as it should be.
struct Model {
    made: MadeServer,
    servers: Vec<ModelServer>,
    /// Contents that were acknowledged, by timeline and number.
    acknowledged: BTreeMap<(u32, u32), u64>,
    /// Segments of which other content was refused.
    conflicts: BTreeSet<(u32, u32)>,
    /// Histories that were archived: where each timeline began.
    begun: BTreeMap<u32, u32>,
}

impl Model {
    fn new() -> Self {
        let made = MadeServer::new();
        let first = ModelServer {
            dir: "pg_wal".to_owned(),
            timeline: 1,
            next: 2,
            seed: 1000,
        };
        Self {
            made,
            servers: vec![first],
            acknowledged: BTreeMap::new(),
            conflicts: BTreeSet::new(),
            begun: BTreeMap::new(),
        }
    }

    fn step(&mut self, random: &[u8]) {
        let offset = usize::from(random[1]) % self.servers.len();
        match random[0] % 10 {
            0 | 1 => self.fail_over(offset),
            2 => self.clone_server(offset),
            3 => self.prune(),
            4 => self.join_old(offset),
            _ => self.push(
                offset,
                1 + u32::from(random[2] % 5),
                random[3].is_multiple_of(2),
            ),
        }
    }

    /// A server writes segments and asks for each; one that is refused stays the first that it asks for.
    fn push(&mut self, at: usize, count: u32, alone: bool) {
        let server = self.servers[at].clone();
        let numbers = server.next..server.next + count;
        self.made
            .write(&server.dir, server.timeline, numbers.clone(), server.seed);
        let more: &[&str] = if alone { &["--alone"] } else { &[] };
        for number in numbers {
            let key = (server.timeline, number);
            let content = server.seed + u64::from(number);
            let file = name(server.timeline, number);
            let ran = fullbore(self.made.push_args(&server.dir, &file, more));
            let is_same = self
                .acknowledged
                .get(&key)
                .is_none_or(|known| *known == content);
            if ran.code == 0 {
                assert!(is_same, "two contents of {file} were acknowledged");
                self.acknowledged.insert(key, content);
                self.servers[at].next = number + 1;
                continue;
            }
            assert!(
                ran.err.contains("two servers write one timeline"),
                "{}",
                ran.err
            );
            self.conflicts
                .extend((number..server.next + count).map(|n| (server.timeline, n)));
            // The operator stops the server that should not write.
            if self.servers.len() > 1 {
                self.servers.remove(at);
            }
            return;
        }
    }

    /// A standby of a server is promoted, and the old one may go on.
    fn fail_over(&mut self, at: usize) {
        let old = self.servers[at].clone();
        let taken = self.begun.keys().next_back().copied().unwrap_or(1);
        let timeline = taken.max(old.timeline) + 1;
        let promoted = ModelServer {
            dir: format!("server-{}", self.servers.len() + timeline as usize * 10),
            timeline,
            next: old.next,
            seed: old.seed + 1_000_000,
        };
        assert_eq!(self.begin(&promoted, old.timeline), 0);
        self.begun.insert(timeline, promoted.next);
        self.servers.push(promoted);
    }

    /// A copy of a server, which writes the same timeline on with content of its own. It does not see what happens meanwhile.
    fn clone_server(&mut self, at: usize) {
        let mut copy = self.servers[at].clone();
        copy.dir = format!("copy-{}-{}", self.servers.len(), copy.next);
        copy.seed += 5_000_000;
        // Promoted, it takes a number that may be taken.
        if let Some((taken, _)) = self.begun.iter().find(|(taken, _)| **taken > copy.timeline) {
            let begins = ModelServer {
                timeline: *taken,
                next: copy.next + 1000,
                ..copy.clone()
            };
            assert_eq!(self.begin(&begins, copy.timeline), 1);
            // The wrong history is moved away.
            self.remove_wrong_history(&begins, copy.timeline);
        }
        self.made.make_wal(&copy.dir);
        self.servers.push(copy);
    }

    fn history(of: &ModelServer, left: u32) -> String {
        format!(
            "{left}\t0/{:X}\tno recovery target specified\n",
            (of.next << 20) + 40
        )
    }

    /// Archives the history of a server's timeline. Returns the exit code.
    fn begin(&self, server: &ModelServer, left: u32) -> i32 {
        self.made.make_wal(&server.dir);
        let file = format!("{:08X}.history", server.timeline);
        let path = self.made.path(&server.dir).join(&file);
        fs::write(path, Self::history(server, left)).unwrap();
        self.made.push_from(&server.dir, &file).code
    }

    fn remove_wrong_history(&self, server: &ModelServer, left: u32) {
        let wrong = Self::history(server, left);
        for object in self.made.objects() {
            let path = self.made.repository().join(&object);
            if object.ends_with(".history") && fs::read_to_string(&path).unwrap() == wrong {
                fs::remove_file(path).unwrap();
            }
        }
    }

    fn prune(&self) {
        let line = args!["prune", self.made.repository(), "--wal-grace", "0"];
        fullbore(line).ends_with(0);
    }

    /// Segments that were archived one by one long ago, which the next prune joins.
    fn join_old(&mut self, at: usize) {
        let server = self.servers[at].clone();
        for number in server.next..server.next + 9 {
            let key = (server.timeline, number);
            if self.acknowledged.contains_key(&key) || self.conflicts.contains(&key) {
                return;
            }
            let content = server.seed + u64::from(number);
            let file = name(server.timeline, number);
            self.made
                .store_as("old", &file, &segment(server.timeline, number, content));
            self.acknowledged.insert(key, content);
            self.servers[at].next = number + 1;
        }
        self.prune();
    }

    fn check(&self) {
        let conflicts = !self.conflicts.is_empty();
        let checked = self.made.check();
        assert!(
            conflicts || !checked.out.contains("two contents"),
            "{}",
            checked.out
        );
        for ((timeline, number), content) in &self.acknowledged {
            let ran = self.made.get(&name(*timeline, *number), &[]);
            if self.conflicts.contains(&(*timeline, *number)) && ran.code == 126 {
                assert!(ran.err.contains("different content"), "{}", ran.err);
                continue;
            }
            assert_eq!(ran.code, 0, "{timeline} {number}: {}", ran.err);
            assert!(
                self.made.fetched() == segment(*timeline, *number, *content),
                "{timeline} {number}"
            );
        }
        for server in &self.servers {
            let key = (server.timeline, server.next + 500);
            let ran = self.made.get(&name(key.0, key.1), &[]);
            assert_ne!(ran.code, 0, "{}", ran.err);
            let later = self
                .acknowledged
                .keys()
                .any(|(timeline, number)| *timeline == key.0 && *number > key.1);
            assert!(!later || ran.code == 126, "{}", ran.err);
        }
    }
}

#[test]
fn servers_that_push_fail_over_and_are_cloned_and_pruned_in_any_order_lose_nothing() {
    let histories = std::env::var(HISTORIES).ok();
    let histories = histories.and_then(|text| text.parse().ok()).unwrap_or(1);
    for history in 0..histories {
        let mut model = Model::new();
        let random = runs::noise(4711_u64 + history, STEPS * 4);
        for (index, step) in random.chunks(4).enumerate() {
            model.step(step);
            if index % 10 == 9 {
                model.check();
            }
        }
        assert!(model.acknowledged.len() > 10);
    }
}
