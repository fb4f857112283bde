//! WAL that is received from real servers: what a commit was answered for is there after the server is lost.

use super::{
    args,
    cluster::{Cluster, versions},
    recovery::backup,
    runs::{self, Ran, command, fullbore},
    servers::{self, Version, wait_until},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// A receiver that runs until it is dropped.
struct Receiver(Child);

impl Receiver {
    fn start(url: &str, repository: &Path, slot: &str, more: &[&str]) -> Self {
        let child = receive(url, repository, slot, more)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Receiver {
    /// As kill -9 does it, at any moment.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn receive(url: &str, repository: &Path, slot: &str, more: &[&str]) -> Command {
    let line = args!["wal", "receive", url, "--to", repository, "--slot", slot];
    command(line.into_iter().chain(more.iter().map(Into::into)))
}

/// A receiver that ends by itself.
fn received(url: &str, repository: &Path, slot: &str, more: &[&str]) -> Ran {
    receive(url, repository, slot, more)
        .output()
        .unwrap()
        .into()
}

fn repository(dir: PathBuf) -> PathBuf {
    fullbore(args!["init", dir]).ends_with(0);
    dir
}

/// Gives a repository to the user of the servers, whose recovery reads it.
fn give_away(repository: &Path) {
    if runs::is_root() {
        let owner = args!["-R", "postgres", repository];
        assert!(
            Command::new("chown")
                .args(owner)
                .status()
                .unwrap()
                .success()
        );
    }
}

fn listed(repository: &Path) -> Value {
    fullbore(args!["wal", "list", repository, "--json"])
        .ends_with(0)
        .json()
        .remove(0)
}

fn first_and_last() -> impl Iterator<Item = &'static Version> {
    let last = versions().last().filter(|_| versions().len() > 1);
    [versions().first(), last].into_iter().flatten()
}

/// A number that differs from run to run.
fn random(below: u64) -> u64 {
    static TURN: AtomicU64 = AtomicU64::new(0);
    let seed = format!("{:?} {}", Instant::now(), TURN.fetch_add(1, Relaxed));
    let hash = blake3::hash(seed.as_bytes());
    u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap()) % below
}

fn pause(least: u64, more: u64) {
    thread::sleep(Duration::from_millis(least + random(more)));
}

/// Ends all processes of a server at once.
fn kill_server(data: &Path) {
    let pid = fs::read_to_string(data.join("postmaster.pid")).unwrap();
    let pid = pid.lines().next().unwrap().trim().to_owned();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let mut all = vec![pid];
    all.extend(
        children
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned),
    );
    Command::new("kill").arg("-9").args(&all).output().unwrap();
    wait_until("the processes end", || {
        !all.iter()
            .any(|pid| Path::new(&format!("/proc/{pid}")).exists())
    });
}

/// Commits rows in several sessions until the server is gone. Returns those whose commits were answered.
fn commit_until_lost(cluster: &Cluster, kill: impl FnOnce() + Send) -> BTreeSet<i64> {
    let next = AtomicU64::new(1);
    let is_answered = AtomicBool::new(false);
    thread::scope(|scope| {
        let session = || {
            let mut client = cluster.client();
            let mut done = Vec::new();
            loop {
                let n = next.fetch_add(1, Relaxed) as i64;
                let words = "x".repeat(20 + random(2000) as usize);
                match client.execute("INSERT INTO t VALUES ($1, $2)", &[&n, &words]) {
                    Ok(_) => done.push(n),
                    Err(_) => return done,
                }
                is_answered.store(true, Relaxed);
            }
        };
        let switch = || {
            let mut client = cluster.client();
            while client.batch_execute("SELECT pg_switch_wal()").is_ok() {
                pause(100, 400);
            }
        };
        let sessions: Vec<_> = (0..4).map(|_| scope.spawn(session)).collect();
        scope.spawn(switch);
        scope.spawn(|| {
            wait_until("a commit is answered", || is_answered.load(Relaxed));
            kill();
        });
        let done = sessions.into_iter().map(|session| session.join().unwrap());
        done.flatten().collect()
    })
}

fn lose_and_recover(version: &Version, is_receiver_killed: bool) {
    let cluster = Cluster::new(version, &["max_wal_senders = 5"]);
    let repository = repository(cluster.path("repository"));
    cluster.psql("CREATE TABLE t (n bigint, words text)");
    let options = ["--create-slot", "--sync"];
    let receiver = Receiver::start(&cluster.url(), &repository, "r1", &options);
    wait_until("the receiver is there", || {
        cluster.psql("SELECT state FROM pg_stat_replication") == "streaming"
    });
    // Its WAL must be in the repository from its start on.
    backup(&cluster, &repository, &[]);
    cluster.psql_each(&[
        "ALTER SYSTEM SET synchronous_standby_names = 'r1'",
        "SELECT pg_reload_conf()",
    ]);
    wait_until("commits wait for the receiver", || {
        cluster.psql("SELECT sync_state FROM pg_stat_replication") == "sync"
    });
    let mut receiver = Some(receiver);
    let done = commit_until_lost(&cluster, || {
        pause(200, 1500);
        if is_receiver_killed {
            receiver.take();
            pause(0, 20);
        }
        kill_server(&cluster.data());
    });
    drop(receiver);
    fs::remove_dir_all(cluster.data()).unwrap();
    fullbore(args!["wal", "check", repository]).ends_with(0);
    give_away(&repository);
    let flags = ["--recovery", "point"];
    let restored = Cluster::restored_with(version, &repository, &flags);
    restored.start();
    wait_until("the server is open", || {
        restored.psql("SELECT pg_is_in_recovery()") == "f"
    });
    let rows = restored.psql("SELECT n FROM t");
    let rows: BTreeSet<i64> = rows.lines().map(|n| n.parse().unwrap()).collect();
    let lost: Vec<_> = done.difference(&rows).collect();
    assert!(
        lost.is_empty(),
        "{} of {} are lost: {lost:?}",
        lost.len(),
        done.len()
    );
    assert!(!done.is_empty());
    eprintln!("{} commits, none lost", done.len());
}

/// `FULLBORE_RPO_RUNS` sets how often.
#[test]
fn no_commit_that_was_answered_is_lost_with_the_server() {
    let runs = env::var("FULLBORE_RPO_RUNS").ok();
    let runs = runs.map_or(1, |runs| runs.parse::<usize>().unwrap());
    for version in first_and_last() {
        for run in 0..runs {
            lose_and_recover(version, run % 2 == 1);
        }
    }
}

#[test]
fn receivers_that_are_killed_and_others_beside_them_leave_no_gap() {
    for version in first_and_last() {
        let lines = ["wal_keep_size = 1GB", "max_wal_senders = 5"];
        let cluster = Cluster::new(version, &lines);
        let url = cluster.url();
        let repository = repository(cluster.path("repository"));
        let beside = Receiver::start(&url, &repository, "beside", &["--create-slot"]);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = cluster.client();
                client
                    .batch_execute("CREATE TABLE load (n int, words text)")
                    .unwrap();
                let sql = "INSERT INTO load SELECT n, md5(n::text) FROM generate_series(1, 3000) n";
                while !is_over.load(Relaxed) {
                    client.batch_execute(sql).unwrap();
                    pause(0, 20);
                }
            });
            for turn in 0..6 {
                let mode: &[&str] = match turn % 2 {
                    0 => &["--create-slot", "--sync"],
                    _ => &["--create-slot", "--every", "1s"],
                };
                let receiver = Receiver::start(&url, &repository, "killed", mode);
                pause(300, 900);
                drop(receiver);
            }
            is_over.store(true, Relaxed);
        });
        drop(beside);
        cluster.psql_each(&["SELECT pg_switch_wal()", "INSERT INTO load VALUES (1)"]);
        let end = cluster.psql("SELECT pg_current_wal_flush_lsn()");
        let _receiver = Receiver::start(&url, &repository, "killed", &["--every", "1s"]);
        let caught_up =
            format!("SELECT count(*) FROM pg_stat_replication WHERE flush_lsn >= '{end}'");
        wait_until("the receiver has all", || cluster.psql(&caught_up) == "1");
        fullbore(args!["wal", "check", repository]).ends_with(0);
        let report = listed(&repository);
        assert_eq!(report["gaps"], serde_json::json!([]), "{report}");
        let segments = report["segments"].as_u64().unwrap();
        assert!(segments >= 2, "{report}");
        // What is there is what the server wrote.
        let target = cluster.path("fetched");
        let mut same = 0;
        for name in runs::names(&cluster.data().join("pg_wal")) {
            let line = args!["wal", "get", name, target, "--from", repository, "--alone"];
            let system = report["system"].as_str().unwrap();
            let got = fullbore(line.into_iter().chain(args!["--system", system]));
            let is_whole = report["timelines"][0]["last_segment"].as_str().unwrap() > name.as_str();
            if name.len() == 24 && is_whole && got.code == 0 {
                let file = fs::read(cluster.data().join("pg_wal").join(&name)).unwrap();
                assert!(fs::read(&target).unwrap() == file, "{name}");
                same += 1;
            }
        }
        assert!(same >= 2, "{same} of {segments}");
    }
}

#[test]
fn a_failover_is_followed_to_the_next_timeline() {
    // The tests have pg_basebackup of these versions.
    for version in [15, 18].into_iter().filter_map(servers::version) {
        let primary = version.start(&[], &["max_wal_senders = 5"]);
        let standby = primary.standby(&["max_wal_senders = 5"]);
        let repository = repository(primary.dir().join("repository"));
        let line = args![
            "backup",
            primary.socket_url(),
            "--to",
            repository,
            "--quiet"
        ];
        fullbore(line).ends_with(0);
        let sync = ["--create-slot", "--sync"];
        let receiver = Receiver::start(&primary.socket_url(), &repository, "r1", &sync);
        primary.psql("CREATE TABLE t AS SELECT generate_series(1, 1000) n");
        let end = primary.psql("SELECT pg_current_wal_flush_lsn()");
        let caught_up =
            format!("SELECT count(*) FROM pg_stat_replication WHERE flush_lsn >= '{end}'");
        wait_until("both have it", || primary.psql(&caught_up) == "2");
        primary.kill();
        drop(receiver);
        standby.promote();
        let _receiver = Receiver::start(&standby.socket_url(), &repository, "r1", &sync);
        standby.psql("INSERT INTO t SELECT generate_series(1, 500)");
        let end = standby.psql("SELECT pg_current_wal_flush_lsn()");
        let caught_up =
            format!("SELECT count(*) FROM pg_stat_replication WHERE flush_lsn >= '{end}'");
        wait_until("the receiver has it", || standby.psql(&caught_up) == "1");
        let report = listed(&repository);
        assert_eq!(report["gaps"], serde_json::json!([]), "{report}");
        assert_eq!(report["timelines"][1]["parent"], 1, "{report}");
        fullbore(args!["wal", "check", repository]).ends_with(0);
        give_away(&repository);
        let flags = ["--recovery", "point", "--set", "port=5432"];
        let restored = Cluster::restored_with(&version, &repository, &flags);
        restored.start();
        wait_until("the server is open", || {
            restored.psql("SELECT pg_is_in_recovery()") == "f"
        });
        assert_eq!(restored.psql("SELECT count(*) FROM t"), "1500");
    }
}

#[test]
fn wal_that_the_server_has_removed_is_a_gap_that_is_named_and_can_be_accepted() {
    for version in first_and_last() {
        let lines = [
            "wal_keep_size = 0",
            "max_wal_size = 32MB",
            "min_wal_size = 32MB",
        ];
        let cluster = Cluster::new(version, &lines);
        let url = cluster.url();
        let repository = repository(cluster.path("repository"));
        if version.major >= 15 {
            received(&url, &repository, "r1", &[])
                .ends_with(1)
                .has_one_error("there is no replication slot \"r1\"");
        }
        let receiver = Receiver::start(&url, &repository, "r1", &["--create-slot"]);
        wait_until("the receiver is there", || {
            cluster.psql("SELECT state FROM pg_stat_replication") == "streaming"
        });
        cluster.psql_each(&["CREATE TABLE t AS SELECT 1 AS n", "SELECT pg_switch_wal()"]);
        let is_stored = || {
            let found = fullbore(args!["wal", "list", repository, "--json"]).json();
            found
                .first()
                .is_some_and(|report| report["segments"].as_u64() > Some(0))
        };
        wait_until("a segment is stored", is_stored);
        drop(receiver);
        wait_until("the slot is free", || {
            cluster.psql("SELECT active FROM pg_replication_slots") == "f"
        });
        cluster.psql("SELECT pg_drop_replication_slot('r1')");
        for _ in 0..4 {
            cluster.psql_each(&[
                "INSERT INTO t SELECT 1",
                "SELECT pg_switch_wal()",
                "CHECKPOINT",
            ]);
        }
        let refused = received(&url, &repository, "r1", &["--create-slot"]).ends_with(1);
        assert!(refused.err.contains("the gap has"), "{}", refused.err);
        assert!(
            refused.err.contains("max_slot_wal_keep_size"),
            "{}",
            refused.err
        );
        let _receiver = Receiver::start(&url, &repository, "r1", &["--accept-gap"]);
        cluster.psql("INSERT INTO t SELECT 1");
        let end = cluster.psql("SELECT pg_current_wal_flush_lsn()");
        let caught_up =
            format!("SELECT count(*) FROM pg_stat_replication WHERE flush_lsn >= '{end}'");
        wait_until("the receiver goes on", || cluster.psql(&caught_up) == "1");
        let report = listed(&repository);
        assert_eq!(report["accepted_gaps"], report["gaps"], "{report}");
        assert_eq!(report["gaps"].as_array().unwrap().len(), 1, "{report}");
        fullbore(args!["wal", "check", repository]).ends_with(0);
    }
}

#[test]
fn a_role_without_the_right_to_replicate_is_named_with_what_it_lacks() {
    for version in first_and_last() {
        let cluster = Cluster::new(version, &[]);
        let repository = repository(cluster.path("repository"));
        cluster.psql("CREATE ROLE plain LOGIN");
        let refused = received(&cluster.url_as("plain"), &repository, "r1", &[]).ends_with(1);
        for words in ["plain", "alter role ROLE replication"] {
            assert!(refused.err.contains(words), "{}", refused.err);
        }
        received(&cluster.url(), &repository, "R 1", &[])
            .ends_with(2)
            .has_one_error("cannot be the name of a replication slot");
    }
}
