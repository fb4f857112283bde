//! Instant restores of clusters: servers answer before the content is there, and never wrongly.

use super::{
    args,
    cluster::{Cluster, some_versions},
    runs::{Ran, fullbore, or_skip, shell},
    servers::{Version, answer_lines, own, wait_until},
};
use fullbore_platform::pre_content::probe::refusal_in;
use serde_json::Value;
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// Copies WAL beside the data directory.
const ARCHIVE: &str = "archive_command = 'cp %p ../archive/%f'";

/// Counts and sums of everything that was in the backup.
const SUMS: &str = "SET enable_indexscan = off; SET enable_indexonlyscan = off; \
    SELECT (SELECT sum(n) || ' ' || count(DISTINCT words) FROM large), (SELECT sum(n) FROM cold WHERE t LIKE 'cold%')";
const RIGHT: &str = "800020000 40000|1125015895";

/// A cluster whose backup is restored beside it, on a disk that asks before files are read.
struct Served {
    cluster: Cluster,
    dir: TempDir,
    version: Version,
}

impl Served {
    fn new(version: &Version) -> Option<Self> {
        Self::with(version, &[])
    }

    fn with(version: &Version, settings: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        if let Some(refusal) = refusal_in(dir.path()).unwrap() {
            or_skip(false, &format!("it needs {}", refusal.line()));
            return None;
        }
        own(dir.path());
        let cluster = Cluster::stopped(version, &[&["fsync = on"], settings].concat());
        cluster.make_dir("archive");
        cluster.start();
        cluster.psql(
            "CREATE TABLE cold AS SELECT n, 'cold ' || n || repeat('x', 200) AS t FROM generate_series(1, 50000) n; \
             DELETE FROM cold WHERE n > 47434; CREATE TABLE junk AS SELECT * FROM cold; CREATE INDEX ON cold (n);",
        );
        cluster.psql("VACUUM FREEZE");
        cluster.backup("repo", &[]).ends_with(0);
        cluster.stop("fast");
        Some(Self {
            cluster,
            dir,
            version: version.clone(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn restore(&self, more: &str) -> Ran {
        self.restore_with(more.split_whitespace().map(OsString::from).collect())
    }

    fn restore_with(&self, more: Vec<OsString>) -> Ran {
        let socket = format!("unix_socket_directories={}", self.dir.path().display());
        let words = args![
            "restore",
            self.cluster.path("repo"),
            "--instant",
            "--to",
            self.path("data"),
            "--set",
            socket
        ];
        fullbore(words.into_iter().chain(more))
    }

    fn start(&self, more: &str) -> Ran {
        self.start_with(more.split_whitespace().map(OsString::from))
    }

    fn start_with(&self, more: impl IntoIterator<Item = OsString>) -> Ran {
        let program = self.version.program("postgres");
        let words = args!["--start", "--bindir", program.parent().unwrap()];
        self.restore_with(words.into_iter().chain(more).collect())
    }

    fn status(&self) -> Value {
        self.restore("--status --json")
            .ends_with(0)
            .json()
            .remove(0)
    }

    fn kill(&self, name: &str, signal: &str) {
        // Its number may be that of another program by now.
        let number = self.status()[name].as_u64().unwrap().to_string();
        let is_ours = "grep -q -e --instant /proc/$2/cmdline && kill -$1 $2";
        shell(is_ours, args![signal, number]);
    }

    fn psql(&self, sql: &str) -> String {
        let mut config = postgres::Config::new();
        config
            .host_path(self.dir.path())
            .user("postgres")
            .dbname("postgres");
        let mut client = config.connect(postgres::NoTls).unwrap();
        let said = client
            .simple_query(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error:?}\n{}", self.log()));
        answer_lines(said)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("data/fullbore-start.log")).unwrap_or_default()
    }

    fn stop(&self) {
        let mut stop = self.cluster.command("pg_ctl");
        let stop = stop.args(["stop", "-w", "-s", "-m", "fast", "-D"]);
        assert!(stop.arg(self.path("data")).status().unwrap().success());
    }

    fn starts_alone(&self) -> bool {
        let mut start = self.cluster.command("pg_ctl");
        let start = start.args(["start", "-w", "-s", "-t", "20", "-l"]);
        let start = start
            .arg(self.path("alone.log"))
            .arg("-D")
            .arg(self.path("data"));
        let start = start
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        start.status().unwrap().success()
    }

    fn wait_until_whole(&self) {
        let state = self.path(".data.fullbore-instant");
        wait_until("everything is there", || !state.exists());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(self.path(".data.fullbore-instant/log"));
            eprintln!("{}\n{}", self.log(), log.unwrap_or_default());
        }
        if self.path("data/postmaster.pid").exists() {
            let mut stop = self.cluster.command("pg_ctl");
            let stop = stop.args(["stop", "-s", "-m", "immediate", "-W", "-D"]);
            let _ = stop.arg(self.path("data")).status();
        }
        if self.path(".data.fullbore-instant").exists() {
            self.kill("guardian", "KILL");
            self.kill("worker", "KILL");
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Is the content of a file zeros? Asked without a read, which would fill the file.
fn is_empty(path: &Path) -> bool {
    fs::metadata(path).unwrap().blocks() == 0
}

#[test]
fn a_server_answers_while_most_of_its_cluster_is_not_there() {
    for version in some_versions() {
        let Some(served) = Served::new(version) else {
            return;
        };
        served.start("--rest-rate 1").ends_with(0);
        let status = served.status();
        assert!(
            status["here_bytes"].as_u64().unwrap() * 2 < status["total_bytes"].as_u64().unwrap()
        );
        assert_eq!(served.psql(SUMS), RIGHT);
        let version_file = served.path("data/PG_VERSION");
        wait_until("PG_VERSION is empty again", || is_empty(&version_file));

        // Changes, while the rest is not there.
        served.psql("UPDATE small SET word = 'new' WHERE n <= 10; DROP TABLE junk; TRUNCATE large");
        served.psql("DELETE FROM cold WHERE n > 1000");
        served.psql("VACUUM cold");
        served.psql("CHECKPOINT");
        served.kill("guardian", "TERM");
        wait_until("nobody serves", || served.status()["served"] == false);
        served.restore("--resume --wait").ends_with(0);
        assert!(!is_empty(&version_file));
        assert!(!served.path("data/FULLBORE_INCOMPLETE").exists());
        assert_eq!(
            served.psql("SELECT count(*), sum(n) FROM cold"),
            "1000|500500"
        );
        assert_eq!(
            served.psql("SELECT count(*) FROM small WHERE word = 'new'"),
            "10"
        );
        assert_eq!(served.psql("SELECT count(*) FROM large"), "0");
        served.stop();
        assert!(served.starts_alone());
    }
}

#[test]
fn a_server_that_holds_the_events_waits_until_others_go_on_and_sees_no_zeros() {
    for version in some_versions() {
        let Some(served) = Served::new(version) else {
            return;
        };
        served.start("--rest-rate 1").ends_with(0);
        served.kill("guardian", "KILL");
        served.kill("worker", "KILL");
        wait_until("nobody serves", || served.status()["served"] == false);
        thread::scope(|scope| {
            let sums = scope.spawn(|| served.psql(SUMS));
            thread::sleep(Duration::from_millis(500));
            assert!(!sums.is_finished(), "nobody can answer");
            served.restore("--resume --by-range any").ends_with(0);
            assert_eq!(sums.join().unwrap(), RIGHT);
        });
        served.wait_until_whole();
        assert_eq!(served.psql(SUMS), RIGHT);
    }
}

#[test]
fn a_cluster_that_nobody_serves_does_not_start() {
    let Some(version) = some_versions().next() else {
        return;
    };
    let Some(served) = Served::new(version) else {
        return;
    };
    served.restore("--rest-rate 1").ends_with(0);
    served.kill("guardian", "KILL");
    served.kill("worker", "KILL");
    wait_until("nobody serves", || served.status()["served"] == false);
    assert!(!served.starts_alone());
    let line = args![
        "backup",
        served.path("data"),
        "--offline",
        "--to",
        served.path("repo")
    ];
    fullbore(line).has_one_error("not completely restored");
    served.restore("--resume --wait").ends_with(0);
    assert!(served.starts_alone());
    assert_eq!(served.psql(SUMS), RIGHT);
}

#[test]
fn a_standby_follows_its_primary_while_most_of_it_is_not_there() {
    for version in some_versions() {
        let Some(served) = Served::with(version, &["wal_keep_size = 256MB"]) else {
            return;
        };
        let primary = &served.cluster;
        primary.start();
        primary.psql("DELETE FROM large WHERE n % 2 = 0");
        let host = primary.path("");
        let follow = format!("primary_conninfo=host={} user=postgres", host.display());
        let words = args!["--rest-rate", "1", "--recovery", "standby", "--set", follow];
        served.start_with(words).ends_with(0);
        assert!(served.status()["served"].as_bool().unwrap());
        primary.psql("INSERT INTO cold VALUES (1000000, 'cold as well')");
        let position = primary.psql("SELECT pg_current_wal_lsn()");
        let there = format!("SELECT pg_last_wal_replay_lsn() >= '{position}'");
        wait_until("the standby catches up", || served.psql(&there) == "t");
        assert_eq!(served.psql("SELECT pg_is_in_recovery()"), "t");
        assert_eq!(served.psql(SUMS), primary.psql(SUMS));
        served.kill("guardian", "TERM");
        wait_until("nobody serves", || served.status()["served"] == false);
        served.restore("--resume --wait").ends_with(0);
        assert_eq!(served.psql(SUMS), primary.psql(SUMS));
        primary.stop("fast");
    }
}

#[test]
fn a_point_in_time_is_reached_while_most_of_the_cluster_is_not_there() {
    for version in some_versions() {
        let Some(served) = Served::with(version, &["archive_mode = on", ARCHIVE]) else {
            return;
        };
        let cluster = &served.cluster;
        cluster.start();
        cluster.psql("DELETE FROM cold WHERE n % 2 = 0");
        let (right, lsn) = (
            cluster.psql(SUMS),
            cluster.psql("SELECT pg_current_wal_lsn()"),
        );
        cluster.psql("DELETE FROM cold; TRUNCATE large");
        cluster.psql("SELECT pg_switch_wal()");
        cluster.stop("fast");
        let fetch = format!("cp {}/%f %p", cluster.path("archive").display());
        let mut words = args!["--rest-rate", "1", "--restore-command", fetch].to_vec();
        words.extend(args![
            "--set",
            "archive_mode=off",
            "--target-action",
            "promote"
        ]);
        words.extend(args!["--target-lsn", lsn]);
        served.start_with(words).ends_with(0);
        wait_until("it is promoted", || {
            served.psql("SELECT pg_is_in_recovery()") == "f"
        });
        assert!(served.status()["served"].as_bool().unwrap());
        assert_eq!(served.psql(SUMS), right);
    }
}
