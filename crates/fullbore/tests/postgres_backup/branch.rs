//! Two servers of one past that both go on, and are backed up to one place: the one that was set back is on a later timeline.

use super::{
    args,
    cluster::{Cluster, some_versions},
    runs::{Ran, fullbore},
    servers::{Version, wait_until},
};
use std::path::{Path, PathBuf};

/// A server, the one that went on from an earlier moment of it, and what both archive and are backed up to: the newest backup is
/// of the first.
struct Branches {
    old: Cluster,
    new: Cluster,
    repository: PathBuf,
    fetch: String,
    ids: Vec<String>,
}

fn say(cluster: &Cluster, what: &str) {
    cluster.psql(&format!("INSERT INTO t VALUES ('{what}')"));
}

fn said(cluster: &Cluster) -> String {
    wait_until("it answers", || {
        cluster.psql("SELECT count(*) > 0 FROM pg_class WHERE relname = 't'") == "t"
    });
    cluster.psql("SELECT string_agg(said, ' ') FROM t")
}

fn promoted(cluster: &Cluster) -> String {
    wait_until("it is promoted", || {
        cluster.psql("SELECT pg_is_in_recovery()") == "f"
    });
    said(cluster)
}

fn back_up(cluster: &Cluster, repository: &Path) {
    fullbore(args![
        "backup",
        cluster.url(),
        "--to",
        repository,
        "--quiet"
    ])
    .ends_with(0);
}

fn now(cluster: &Cluster) -> String {
    cluster
        .psql("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.USZ')")
}

impl Branches {
    fn new(version: &Version) -> Self {
        let old = Cluster::stopped(
            version,
            &[
                "archive_mode = on",
                "archive_command = 'cp %p ../archive/%f'",
            ],
        );
        let archive = old.make_dir("archive");
        let (repository, fetch) = (
            old.path("repository"),
            format!("cp {}/%f %p", archive.display()),
        );
        old.start();
        old.psql("CREATE TABLE t AS SELECT 'before' AS said");
        back_up(&old, &repository);
        let lsn = old.psql("SELECT pg_current_wal_lsn()");
        say(&old, "old");
        old.psql("SELECT pg_switch_wal()");
        let put = format!("archive_command=cp %p {}/%f", archive.display());
        let flags = [
            "--target-lsn",
            &lsn,
            "--target-action",
            "promote",
            "--restore-command",
            &fetch,
            "--set",
            &put,
        ];
        let new = Cluster::restored_with(version, &repository, &flags);
        new.start();
        assert_eq!(promoted(&new), "before");
        say(&new, "new");
        back_up(&new, &repository);
        say(&new, "newer");
        new.psql_each(&[
            "SELECT pg_create_restore_point('here')",
            "SELECT pg_switch_wal()",
        ]);
        back_up(&old, &repository);
        say(&old, "older");
        old.psql("SELECT pg_switch_wal()");
        let listed = fullbore(args!["list", repository, "--json"]).json();
        let ids = listed
            .iter()
            .map(|line| line["id"].as_str().unwrap().to_owned())
            .collect();
        Self {
            old,
            new,
            repository,
            fetch,
            ids,
        }
    }

    /// A restore that ends well, started: what it said, and the server.
    fn restored(&self, backup: &str, flags: &[&str]) -> (Ran, Cluster) {
        let restored = Cluster::empty(&self.old.version);
        let source = format!("{}{backup}", self.repository.display());
        let line = args![
            "restore",
            source,
            "--to",
            restored.data(),
            "--set",
            "archive_mode=off"
        ];
        let ran = fullbore(line.into_iter().chain(flags.iter().map(Into::into))).ends_with(0);
        restored.start();
        (ran, restored)
    }
}

#[test]
fn recovery_begins_on_the_way_to_the_latest_timeline_whoever_was_backed_up_last() {
    for version in some_versions() {
        let both = Branches::new(version);
        let fetch = ["--restore-command", &both.fetch];
        let chosen = format!(
            "backup {} is the last one that can reach timeline 2; later ones",
            both.ids[1]
        );
        let (ran, restored) = both.restored("", &fetch);
        assert!(ran.err.contains(&chosen), "{}", ran.err);
        assert_eq!(promoted(&restored), "before new newer");
        let xid = both.new.psql("SELECT xmin FROM t WHERE said = 'newer'");
        for target in [["--target-name", "here"], ["--target-xid", &xid]] {
            let (ran, restored) = both.restored(
                "",
                &[&fetch[..], &target, &["--target-action", "promote"]].concat(),
            );
            assert!(ran.err.contains(&chosen), "{}", ran.err);
            assert_eq!(promoted(&restored), "before new newer");
        }
        let primary = format!(
            "primary_conninfo=host={} user=postgres",
            both.new.path("").display()
        );
        let (ran, standby) = both.restored("", &["--recovery", "standby", "--set", &primary]);
        assert!(ran.err.contains(&chosen), "{}", ran.err);
        wait_until("the standby follows", || {
            said(&standby) == "before new newer"
        });
        let plan = fullbore(args![
            "restore",
            both.repository,
            "--recovery",
            "standby",
            "--plan",
            "--json"
        ]);
        assert_eq!(plan.ends_with(0).json()[0]["id"], *both.ids[1]);
    }
}

#[test]
fn what_is_restored_from_a_timeline_that_was_left_starts_and_is_told() {
    for version in some_versions() {
        let both = Branches::new(version);
        let why = "timeline 2 forked at 0/";
        let newest = format!(
            "the newest backup that can reach timeline 2 is {}",
            both.ids[1]
        );
        let told = |ran: &Ran, words: &str| {
            assert!(
                [why, words, &newest]
                    .iter()
                    .all(|words| ran.err.contains(words)),
                "{words}: {}",
                ran.err
            );
        };
        let last = format!("@{}", both.ids[2]);
        let (ran, restored) = both.restored(&last, &[]);
        told(&ran, "before this backup ended on timeline 1");
        assert_eq!(said(&restored), "before old");
        let (ran, restored) = both.restored(&last, &["--restore-command", &both.fetch]);
        told(&ran, "the server will stay on timeline 1");
        assert_eq!(promoted(&restored), "before old older");
        let time = now(&both.old);
        say(&both.old, "oldest");
        both.old.psql("SELECT pg_switch_wal()");
        let flags = [
            "--restore-command",
            &both.fetch,
            "--target-time",
            &time,
            "--target-action",
            "promote",
        ];
        let (ran, restored) = both.restored(&last, &flags);
        told(&ran, "the server will stay on timeline 1");
        assert_eq!(promoted(&restored), "before old older");
        // What leads on is not spoken of.
        let (ran, restored) = both.restored(
            &format!("@{}", both.ids[0]),
            &["--restore-command", &both.fetch],
        );
        assert!(!ran.err.contains("timeline"), "{}", ran.err);
        assert_eq!(promoted(&restored), "before new newer");
    }
}

/// A restore that recovers from the archive, and begins with whatever backup fits.
fn recovery(repository: &Path, more: &[&str]) -> Ran {
    let target = repository.parent().unwrap().join("recovered");
    let line = args![
        "restore",
        repository,
        "--to",
        &target,
        "--restore-command",
        "false"
    ];
    let ran = fullbore(line.into_iter().chain(more.iter().map(Into::into)));
    let _ = std::fs::remove_dir_all(&target);
    ran
}

#[test]
fn of_two_servers_on_one_timeline_none_is_chosen_to_recover_with() {
    for version in some_versions() {
        let live = Cluster::stopped(version, &[]);
        live.start();
        let repository = live.path("repository");
        back_up(&live, &repository);
        let copy = Cluster::restored_with(version, &repository, &[]);
        copy.start();
        let switch = |cluster: &Cluster| {
            cluster.psql_each(&[
                "SELECT pg_create_restore_point('x')",
                "SELECT pg_switch_wal()",
            ])
        };
        let pause = || std::thread::sleep(std::time::Duration::from_millis(2100));
        // The copy is where the live server was before: its backup begins behind the end of one that was over.
        (0..2).for_each(|_| switch(&live));
        back_up(&live, &repository);
        recovery(&repository, &["--recovery", "standby"]).ends_with(0);
        pause();
        back_up(&copy, &repository);
        let time = now(&live);
        for target in [
            &["--target-time", &time][..],
            &["--recovery", "standby"],
            &["--target-name", "x"],
        ] {
            let ran = recovery(&repository, target).ends_with(2);
            assert!(
                ran.err.contains("are from diverged histories")
                    && ran.err.contains("had passed before"),
                "{}",
                ran.err
            );
        }
        let listed = fullbore(args!["list", &repository, "--json"]).json();
        let ids: Vec<&str> = listed
            .iter()
            .map(|line| line["id"].as_str().unwrap())
            .collect();
        let destination = live.path("plain");
        let line = args![
            "restore",
            format!("{}@{}", repository.display(), ids[0]),
            "--to",
            &destination
        ];
        assert!(
            fullbore(line)
                .ends_with(0)
                .err
                .contains("as if no later backup existed")
        );
        let named = repository.with_file_name(format!("repository@{}", ids[1]));
        recovery(&named, &["--target-time", &time]).ends_with(0);
        fullbore(args!["forget", "--yes", &repository, ids[2]]).ends_with(0);
        recovery(&repository, &["--target-time", &time]).ends_with(0);
        // It may also be further, and be another all the same: the two are backed up in turn.
        (0..4).for_each(|_| switch(&copy));
        pause();
        back_up(&copy, &repository);
        let ran = recovery(&repository, &["--target-time", &now(&live)]).ends_with(0);
        assert!(
            ran.err.contains("unless that is the same server"),
            "{}",
            ran.err
        );
        (0..8).for_each(|_| switch(&live));
        pause();
        back_up(&live, &repository);
        let ran = recovery(&repository, &["--target-time", &now(&live)]).ends_with(2);
        assert!(ran.err.contains("in turn"), "{}", ran.err);
    }
}
