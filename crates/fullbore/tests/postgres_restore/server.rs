//! Real servers: a cluster that was copied while it ran is restored, starts and answers.

use super::declare;
use super::{
    args,
    runs::{FULLBORE, Ran, has, is_root, only, or_skip, set_mode, shell, temp},
};
use fullbore_format::{
    layout,
    root::{ClusterInfo, DatabaseInfo, EntryName, Root, Tablespace},
};
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The programs of the newest server that is installed.
fn programs() -> Option<PathBuf> {
    let dirs = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<_> = dirs
        .map(|dir| dir.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .collect();
    found.sort();
    let usable = !is_root() || (has("setpriv") && shell("id postgres", args![]).code == 0);
    found.pop().filter(|_| usable)
}

/// A server in `dir`/`data`, which listens on a socket in `dir` only.
struct Server {
    bin: PathBuf,
    dir: PathBuf,
    data: PathBuf,
}

impl Server {
    /// A line of shell as the user who runs servers; `$1` and so on are `args`.
    fn shell(&self, line: &str, args: impl IntoIterator<Item = OsString>) -> Ran {
        let all = args![
            format!("{}:{}", self.bin.display(), std::env::var("PATH").unwrap()),
            line
        ];
        let who = if is_root() {
            "setpriv --reuid=postgres --regid=postgres --clear-groups"
        } else {
            ""
        };
        let line = format!("cd /; PATH=$1 exec {who} bash -ec \"$2\" bash \"${{@:3}}\"");
        shell(&line, all.into_iter().chain(args))
    }

    fn start(&self, options: &str) -> &Self {
        let line = "pg_ctl -D \"$1\" -w -t 60 -l \"$1/../log\" -o \"-k '$2' -c listen_addresses= $3\" start >/dev/null";
        let ran = self.shell(line, args![self.data, self.dir, options]);
        let log = || fs::read_to_string(self.data.join("../log")).unwrap_or_default();
        assert_eq!(ran.code, 0, "{}{}\n{}", ran.out, ran.err, log());
        self
    }

    fn sql(&self, database: &str, sql: &str) -> Ran {
        self.shell(
            "psql -XAtq -v ON_ERROR_STOP=1 -h \"$1\" -d \"$2\" -c \"$3\"",
            args![self.dir, database, sql],
        )
    }

    fn answers(&self, database: &str, sql: &str) -> String {
        self.sql(database, sql)
            .ends_with(0)
            .out
            .trim_end()
            .to_owned()
    }

    fn stop(&self) {
        self.shell(
            "pg_ctl -D \"$1\" -w -m fast stop >/dev/null",
            args![self.data],
        )
        .ends_with(0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.data.join("postmaster.pid").exists() {
            self.shell(
                "pg_ctl -D \"$1\" -w -m immediate stop >/dev/null",
                args![self.data],
            );
        }
    }
}

/// A running server with a table of two databases in a tablespace.
fn source(bin: &Path, dir: &Path) -> Server {
    let server = Server {
        bin: bin.into(),
        dir: dir.into(),
        data: dir.join("source"),
    };
    server
        .shell(
            "initdb -D \"$1\" -A trust -N --wal-segsize=1 >/dev/null",
            args![server.data],
        )
        .ends_with(0);
    server.start("-c fsync=off");
    fs::create_dir(dir.join("space")).unwrap();
    if is_root() {
        shell("chown postgres: \"$1\"", args![dir.join("space")]).ends_with(0);
    }
    server.answers(
        "postgres",
        &format!(
            "CREATE TABLESPACE fast LOCATION '{}'",
            dir.join("space").display()
        ),
    );
    for name in ["app", "other"] {
        server.answers("postgres", &format!("CREATE DATABASE {name}"));
        server.answers(
            name,
            "CREATE TABLE t TABLESPACE fast AS SELECT i FROM generate_series(1, 20000) i",
        );
    }
    server
}

/// What will be known of a cluster.
fn facts(server: &Server) -> ClusterInfo {
    let rows = |sql: &str| {
        server
            .answers("postgres", sql)
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let row = |line: &String| line.split('|').map(str::to_owned).collect::<Vec<_>>();
    let database = |line: &String| {
        let row = row(line);
        DatabaseInfo {
            oid: row[0].parse().unwrap(),
            name: row[1].as_str().into(),
            template: row[2] == "t",
            subscriptions: 0,
        }
    };
    let tablespace = |line: &String| {
        let row = row(line);
        Tablespace {
            oid: row[0].parse().unwrap(),
            name: row[1].as_str().into(),
            location: EntryName(row[2].clone().into()),
        }
    };
    let spaces =
        "SELECT oid, spcname, pg_tablespace_location(oid) FROM pg_tablespace WHERE oid >= 16384";
    let version = server.answers("postgres", "SHOW server_version_num");
    ClusterInfo {
        major: version.parse::<u32>().unwrap() / 10_000,
        timeline: 1,
        online: true,
        wal: "included".into(),
        databases: rows("SELECT oid, datname, datistemplate FROM pg_database")
            .iter()
            .map(database)
            .collect(),
        tablespaces: rows(spaces).iter().map(tablespace).collect(),
        ..ClusterInfo::default()
    }
}

/// Back up a copy of the server as a tree, with what is in tablespaces below their links, and say that it is a cluster.
fn back_up(server: &Server, repository: &Path) {
    let (copy, cluster) = (server.dir.join("copy"), facts(server));
    let line = "pg_basebackup -h \"$1\" -D \"$1/copy\" -c fast -X stream --no-sync -T \"$1/space=$1/moved\"";
    server.shell(line, args![server.dir]).ends_with(0);
    let link = copy.join(format!("pg_tblspc/{}", cluster.tablespaces[0].oid));
    fs::remove_file(&link).unwrap();
    fs::rename(server.dir.join("moved"), link).unwrap();
    shell(
        "\"$1\" backup \"$2\" --to \"$3\" --quiet",
        args![FULLBORE, copy, repository],
    )
    .ends_with(0);
    let root = fs::read(only(&repository.join(layout::BACKUPS)).join(layout::ROOT)).unwrap();
    declare(repository, &Root::open(&root, "the root").unwrap(), cluster);
}

#[test]
fn a_restored_cluster_starts_and_answers() {
    let Some(bin) = programs() else {
        or_skip(false, "there is no PostgreSQL, or nobody who may run it");
        return;
    };
    let dir = temp();
    let dir = dir.path();
    set_mode(dir, 0o755);
    if is_root() {
        shell("chown postgres: \"$1\"", args![dir]).ends_with(0);
    }
    let server = source(&bin, dir);
    back_up(&server, &dir.join("repo"));
    let restore = |destination: &str, more: &str| {
        let line = "\"$1\" restore \"$2/repo\" --to \"$2/$3/data\" ";
        let all = args![FULLBORE, dir, destination];
        (
            shell(&format!("{line} {more}"), all),
            Server {
                bin: bin.clone(),
                dir: dir.into(),
                data: dir.join(destination).join("data"),
            },
        )
    };
    // The tablespace is where it was, and in use.
    restore("refused", "")
        .0
        .ends_with(1)
        .has_one_error("it is not empty");
    assert!(!dir.join("refused").exists());
    server.stop();

    let (ran, restored) = restore("plain", "--tablespaces-under \"$2/plain/spaces\"");
    ran.ends_with(0);
    give_log(&restored);
    restored.start("-c recovery_init_sync_method=syncfs");
    for name in ["app", "other"] {
        assert_eq!(
            restored.answers(name, "SELECT count(*), sum(i) FROM t"),
            "20000|200010000"
        );
    }
    let location = "SELECT pg_tablespace_location(oid) FROM pg_tablespace WHERE spcname = 'fast'";
    assert_eq!(
        restored.answers("app", location),
        dir.join("plain/spaces/fast").to_str().unwrap()
    );
    assert_eq!(
        fs::metadata(dir.join("plain/spaces/fast")).unwrap().mode() & 0o7777,
        0o700
    );
    restored.stop();

    let target =
        "--target-immediate --target-action promote --restore-command false --set work_mem=7MB";
    let (ran, restored) = restore(
        "some",
        &format!("--tablespace fast=\"$2/some/fast\" --database app {target}"),
    );
    assert!(
        ran.ends_with(0)
            .err
            .contains("next: DROP DATABASE \"other\";")
    );
    give_log(&restored);
    restored.start("");
    // The server answers before it is promoted.
    let promoted = || restored.answers("postgres", "SELECT pg_is_in_recovery()") == "f";
    assert!(
        (0..300).any(|_| promoted() || pause()),
        "it was not promoted"
    );
    restored.answers("postgres", "DROP DATABASE \"other\"");
    assert_eq!(restored.answers("app", "SELECT count(*) FROM t"), "20000");
    assert_eq!(restored.answers("app", "SHOW work_mem"), "7MB");
    assert_eq!(
        restored.answers(
            "app",
            "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"
        ),
        "00000002"
    );
    assert_ne!(restored.sql("other", "SELECT 1").code, 0);
    restored.stop();
}

/// False, a tenth of a second later.
fn pause() -> bool {
    std::thread::sleep(std::time::Duration::from_millis(100));
    false
}

/// A log that the server may write, beside its data.
fn give_log(server: &Server) {
    let log = server.data.join("../log");
    fs::write(&log, "").unwrap();
    if is_root() {
        shell("chown postgres: \"$1\"", args![log]).ends_with(0);
    }
}
