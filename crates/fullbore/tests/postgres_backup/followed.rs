//! WAL that is stored while files are read, so that the server need not keep it.

use super::{
    args,
    cluster::{Cluster, debian, some_versions, versions},
    runs::{FULLBORE, Ran, fullbore, has, names, or_skip, shell},
    servers::{Version, wait_until},
    slow::held_up,
    standby::{catch_up, standby_of},
};
use std::{
    fs,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// What is not kept for a backup goes soon.
const LITTLE: [&str; 3] = [
    "max_wal_size = 32MB",
    "min_wal_size = 32MB",
    "checkpoint_timeout = 30s",
];

/// Of which the server keeps no more once a backup has them.
const SEGMENTS: u64 = 12;

/// A backup that goes on after the server has written so much, and needs none of it from the server any more: to read one table
/// takes it that long.
fn followed(cluster: &Cluster, primary: &Cluster, codec: &str, begin: impl FnOnce()) -> Child {
    followed_for(12, cluster, primary, codec, begin)
}

/// As [`followed`]; the table is held up for `seconds`.
fn followed_for(
    seconds: u32,
    cluster: &Cluster,
    primary: &Cluster,
    codec: &str,
    begin: impl FnOnce(),
) -> Child {
    let repository = cluster.path("repository");
    let child = held_up(cluster, seconds, codec);
    // Its file is there with its first frame, and has bytes only from the first full piece on.
    let stored = || shell("find \"$1\"/backups -name 's01-*'", args![repository]).out;
    wait_until("something is being stored", || !stored().is_empty());
    begin();
    let source = cluster.psql("SELECT restart_lsn FROM pg_replication_slots");
    let first = primary.psql(&format!("SELECT pg_walfile_name('{source}')"));
    for n in 1..=SEGMENTS {
        primary.psql_each(&[
            &format!("INSERT INTO rows VALUES ({n})"),
            "SELECT pg_switch_wal()",
        ]);
    }
    // A standby is consistent with what it has replayed only by then.
    primary.psql("CHECKPOINT");
    catch_up(primary, cluster);
    cluster.psql("CHECKPOINT");
    let now = primary.psql("SELECT pg_current_wal_lsn()");
    let kept = format!(
        "SELECT pg_wal_lsn_diff('{now}', restart_lsn) < 3 * 16777216 FROM pg_replication_slots"
    );
    wait_until("the slot keeps little", || cluster.psql(&kept) == "t");
    primary.psql("CHECKPOINT");
    catch_up(primary, cluster);
    cluster.psql("CHECKPOINT");
    assert!(
        !cluster.data().join("pg_wal").join(first).exists(),
        "the server keeps what is stored"
    );
    child
}

fn end(child: Child) -> Ran {
    Ran::from(child.wait_with_output().unwrap())
}

/// Each of the versions by itself, at the same time: mostly they wait.
fn each(
    versions: impl IntoIterator<Item = &'static Version>,
    test: impl Fn(&'static Version) + Sync,
) {
    if or_skip(has("strace"), "there is no strace") {
        let test = &test;
        std::thread::scope(|scope| {
            versions
                .into_iter()
                .for_each(|version| _ = scope.spawn(move || test(version)))
        });
    }
}

#[test]
fn the_server_keeps_little_of_the_wal_of_a_long_backup_and_all_of_it_is_restored() {
    each(versions(), |version| {
        let cluster = Cluster::new(version, &LITTLE);
        cluster.psql("CREATE TABLE rows (n int)");
        end(followed(&cluster, &cluster, "zstd:1", || ())).ends_with(0);
        cluster.assert_nothing_is_left();
        let repository = cluster.path("repository");
        let root = fullbore(args!["show", repository, "--json"])
            .json()
            .remove(0)["root"]
            .take();
        let streams: Vec<_> = root["segments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|segment| &segment["stream"])
            .collect();
        assert_eq!(streams, [1, 2]);
        let by_tar = Cluster::empty(version);
        fs::create_dir(by_tar.data()).unwrap();
        let line = "zstd -dc \"$1\"/backups/*/s*.tar.zst | tar -xi -C \"$2\"";
        shell(line, args![repository, by_tar.data()]).ends_with(0);
        for restored in [Cluster::restored(version, &repository), by_tar] {
            let wal = names(&restored.data().join("pg_wal"));
            let segments: Vec<_> = wal.iter().filter(|name| name.len() == 24).collect();
            assert!(segments.len() > SEGMENTS as usize, "{segments:?}");
            let done = |name: &&String| {
                restored
                    .data()
                    .join(format!("pg_wal/archive_status/{name}.done"))
                    .exists()
            };
            assert!(segments.iter().all(done));
            restored.assert_verifies();
            restored.start();
            restored.assert_has_content();
            assert_eq!(restored.psql("SELECT count(*), sum(n) FROM rows"), "12|78");
        }
        // One during which there was none to follow has no stream for it, and one for which there is no memory does without.
        cluster
            .backup("elsewhere", &["--frame-size", "16M"])
            .ends_with(0);
        cluster.backup("repository", &[]).ends_with(0);
        let root = fullbore(args!["show", repository, "--json"])
            .json()
            .remove(0)["root"]
            .take();
        assert!(
            root["segments"]
                .as_array()
                .unwrap()
                .iter()
                .all(|segment| segment["stream"] == 1),
            "{root}"
        );
    });
}

/// Level 12 needs longer for 140 MB of text than the server. Level 1 makes an eighth more of it.
#[test]
fn where_more_comes_than_is_stored_level_1_has_to_do() {
    let Some(version) = debian().filter(|_| or_skip(has("strace"), "there is no strace")) else {
        return;
    };
    let cluster = Cluster::new(version, &LITTLE);
    cluster.psql("CREATE TABLE rows (n int)");
    // The server needs half a minute on a slow machine to write so much.
    let child = followed_for(45, &cluster, &cluster, "zstd:12", || {
        cluster.psql(
            "SELECT pg_logical_emit_message(false, 'test', text) FROM generate_series(1, 12), (SELECT \
             string_agg(i || ' is ' || i * 7 % 1000 || ' of ' || i::bigint * i % 77, ',') AS text \
             FROM generate_series(1, 600000) i) texts",
        );
    });
    end(child).ends_with(0);
    let repository = cluster.path("repository");
    let (stored, plain) = (cluster.path("stored"), cluster.path("plain"));
    let line = "cat \"$1\"/backups/*/s02*.tar.zst > \"$2\" && zstd -dc \"$2\" > \"$3\"";
    shell(line, args![repository, stored, plain]).ends_with(0);
    let (stored, plain) = (
        fs::metadata(stored).unwrap().len() as usize,
        fs::read(plain).unwrap(),
    );
    // Of every eighth frame.
    let size = |level| -> usize {
        let compressed = |frame: &[u8]| {
            let mut out = Vec::with_capacity(zstd_safe::compress_bound(frame.len()));
            zstd_safe::compress(&mut out, frame, level).unwrap()
        };
        plain
            .chunks(256 << 10)
            .step_by(8)
            .map(compressed)
            .sum::<usize>()
            * 8
    };
    let between = (size(1) + size(12)) / 2;
    assert!(stored > between, "{stored} {between}");
}

#[test]
fn a_database_that_was_copied_is_known_when_its_wal_is_gone() {
    each(some_versions(), |version| {
        let cluster = Cluster::new(version, &LITTLE);
        cluster.psql_each(&["CREATE TABLE rows (n int)", "CREATE DATABASE worked_in"]);
        let by_files = if version.major < 15 {
            ""
        } else {
            " STRATEGY file_copy"
        };
        let child = followed(&cluster, &cluster, "zstd:1", || {
            _ = cluster.psql(&format!(
                "CREATE DATABASE copied TEMPLATE worked_in{by_files}"
            ))
        });
        end(child)
            .ends_with(1)
            .has_one_error("database \"copied\" was copied or moved meanwhile");
        cluster.assert_nothing_is_left();
    });
}

/// A segment that was seen, and was removed by hand before it was read.
#[test]
fn wal_that_is_gone_when_it_is_to_be_read_is_missed() {
    let Some(version) = debian().filter(|_| or_skip(has("strace"), "there is no strace")) else {
        return;
    };
    let cluster = Cluster::new(version, &[]);
    cluster.psql_each(&["CREATE TABLE rows (n int)", "SELECT pg_switch_wal()"]);
    let table = cluster.data().join(cluster.file_of("rows"));
    cluster.psql("INSERT INTO rows VALUES (0)");
    let lost = cluster.psql("SELECT pg_walfile_name(pg_current_wal_lsn() + 2 * 16777216)");
    let line = "exec strace -f -qq -o /dev/null -P \"$1\" -P \"$2\" -e trace=openat,read,pread64,preadv2 \
                -e inject=openat:delay_enter=5000000 -e inject=read,pread64,preadv2:delay_enter=8000000:when=1 \"${@:3}\"";
    let repository = cluster.path("repository");
    let args = args![
        line,
        "bash",
        table,
        lost,
        FULLBORE,
        "backup",
        cluster.url(),
        "--to",
        repository,
        "--no-tricks"
    ];
    let child = Command::new("bash")
        .arg("-c")
        .args(args)
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the slot is there", || {
        cluster.psql("SELECT count(*) FROM pg_replication_slots") == "1"
    });
    for n in 1..=5 {
        cluster.psql_each(&[
            &format!("INSERT INTO rows VALUES ({n})"),
            "SELECT pg_switch_wal()",
        ]);
    }
    let stored = || shell("find \"$1\"/backups -name 's02-*'", args![repository]).out;
    wait_until("the one before it is being stored", || !stored().is_empty());
    std::thread::sleep(Duration::from_secs(1));
    fs::rename(
        cluster.data().join("pg_wal").join(&lost),
        cluster.path("removed"),
    )
    .unwrap();
    end(child)
        .ends_with(1)
        .has_one_error(&format!("\"pg_wal/{lost}\" is not there"));
    cluster.assert_nothing_is_left();
}

#[test]
fn a_standby_keeps_as_little() {
    let Some(version) = debian().filter(|_| or_skip(has("strace"), "there is no strace")) else {
        return;
    };
    let primary = Cluster::new(version, &[&LITTLE[..], &["wal_keep_size = 1GB"]].concat());
    primary.psql("CREATE TABLE rows (n int)");
    let standby = standby_of(&primary);
    standby.configure(&["wal_keep_size = 0"]);
    standby.psql("SELECT pg_reload_conf()");
    end(followed(&standby, &primary, "zstd:1", || ())).ends_with(0);
    standby.assert_nothing_is_left();
    let restored = Cluster::restored(version, &standby.path("repository"));
    restored.assert_verifies();
    restored.start();
    restored.assert_has_content();
    assert_eq!(restored.psql("SELECT count(*), sum(n) FROM rows"), "12|78");
}
