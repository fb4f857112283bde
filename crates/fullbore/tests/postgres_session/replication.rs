//! WAL that is received from real servers is what they have in their files.

use super::environment;
use fullbore_format::error::{Error, ErrorKind};
use fullbore_postgres::{
    conninfo::Params,
    lsn::{Lsn, segment_name},
    replication::{ReplicationClient, TimelineEnd, WalEvent, WalPositions},
};
use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use testkit::servers::{self, PASSWORD, Server, Version};

const SLOT: &str = "receiver";
const MOMENT: Duration = Duration::from_millis(100);

fn both() -> impl Iterator<Item = Version> {
    [13, 18].into_iter().filter_map(servers::version)
}

fn try_client(url: &str) -> Result<ReplicationClient, Error> {
    ReplicationClient::connect(&Params::new(url, &environment(&[]))?)
}

fn client(server: &Server) -> ReplicationClient {
    try_client(&server.socket_url()).unwrap()
}

/// The end of the WAL that the server has made durable.
fn end_of(server: &Server) -> Lsn {
    server
        .psql("SELECT pg_current_wal_flush_lsn()")
        .parse()
        .unwrap()
}

/// Appends WAL to `wal` until it reaches `end`, and reports it.
fn receive(
    client: &mut ReplicationClient,
    from: Lsn,
    timeline: u32,
    end: Lsn,
    wal: &mut Vec<u8>,
) -> Result<Option<TimelineEnd>, Error> {
    let mut stream = client.stream(Some(SLOT), from, timeline)?;
    let begun = Instant::now();
    while stream.position() < end {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "WAL does not arrive"
        );
        match stream.next(MOMENT)? {
            WalEvent::Data { bytes, .. } => {
                wal.extend(bytes);
                let position = stream.position();
                stream.report(WalPositions {
                    written: position,
                    durable: position,
                })?;
            }
            WalEvent::Alive { .. } | WalEvent::Quiet => {
                let position = stream.position();
                stream.report(WalPositions {
                    written: position,
                    durable: position,
                })?;
            }
            WalEvent::End(end) => return Ok(Some(end)),
        }
    }
    Ok(None)
}

/// The bytes of the server's files from `from` on.
fn in_files(data: &Path, timeline: u32, from: Lsn, len: usize, segment: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut offset = from.0;
    while bytes.len() < len {
        let name = segment_name(timeline, Lsn(offset), segment);
        let file = fs::read(data.join("pg_wal").join(name)).unwrap();
        let begin = (offset % segment) as usize;
        let take = (file.len() - begin).min(len - bytes.len());
        bytes.extend(&file[begin..begin + take]);
        offset += take as u64;
    }
    bytes
}

/// Changes many rows, in a session of their own.
fn load(server: &Server, seconds: u64) -> thread::JoinHandle<()> {
    let mut config = postgres::Config::new();
    config.host_path(server.dir()).port(server.port);
    config.user("postgres").dbname("postgres");
    let Some(pgbench) = servers::tool("pgbench") else {
        let mut client = config.connect(postgres::NoTls).unwrap();
        return thread::spawn(move || {
            let begun = Instant::now();
            while begun.elapsed().as_secs() < seconds {
                let sql = "INSERT INTO load SELECT n, md5(n::text) FROM generate_series(1, 500) n";
                client.batch_execute(sql).unwrap();
            }
        });
    };
    let mut command = servers::as_postgres(pgbench);
    command
        .arg("-h")
        .arg(server.dir())
        .args(["-p", &server.port.to_string(), "-U", "postgres"])
        .args(["-n", "-c", "4", "-T", &seconds.to_string(), "postgres"]);
    thread::spawn(move || {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    })
}

/// The tables of [`load`].
fn prepare(server: &Server) {
    server.psql("CREATE TABLE load (n int, words text)");
    if let Some(pgbench) = servers::tool("pgbench") {
        let output = servers::as_postgres(pgbench)
            .arg("-h")
            .arg(server.dir())
            .args([
                "-p",
                &server.port.to_string(),
                "-U",
                "postgres",
                "-i",
                "-q",
                "postgres",
            ])
            .output()
            .unwrap();
        assert!(output.status.success());
    }
}

#[test]
fn what_is_received_under_load_is_what_the_server_wrote_also_after_a_cut() {
    for version in both() {
        let server = version.start(&[], &["wal_keep_size = 1GB"]);
        prepare(&server);
        let mut receiver = client(&server);
        assert_eq!(receiver.major(), version.major);
        let identity = receiver.identify().unwrap();
        assert_eq!(
            identity.system_identifier,
            server.psql("SELECT system_identifier FROM pg_control_system()")
        );
        let segment = receiver.segment_bytes().unwrap();
        assert!(receiver.create_slot(SLOT).unwrap());
        assert!(!receiver.create_slot(SLOT).unwrap());
        if version.major >= 15 {
            let slot = receiver.slot(SLOT).unwrap().unwrap();
            assert!(slot.restart.unwrap() <= identity.lsn);
            assert_eq!(receiver.slot("nosuch").unwrap(), None);
        }
        let start = Lsn(identity.lsn.0 / segment * segment);
        let mut wal = Vec::new();
        let loaded = load(&server, 3);
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_secs(1));
                let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_replication";
                assert_eq!(server.psql(sql), "1");
            });
            receive(&mut receiver, start, 1, Lsn(u64::MAX), &mut wal).unwrap_err()
        });
        assert_eq!(error.kind, ErrorKind::Unreachable, "{error:?}");
        let error = receiver.identify().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unreachable, "{error:?}");
        loaded.join().unwrap();
        let end = end_of(&server);
        let position = Lsn(start.0 + wal.len() as u64);
        let mut again = client(&server);
        receive(&mut again, position, 1, end, &mut wal).unwrap();
        assert!(wal.len() > 1 << 20, "{} bytes", wal.len());
        let files = in_files(&server.data(), 1, start, wal.len(), segment);
        assert!(files == wal, "what arrived is not what the server wrote");
    }
}

#[test]
fn a_timeline_ends_where_the_next_begins() {
    // The tests have pg_basebackup of these versions.
    for version in [15, 18].into_iter().filter_map(servers::version) {
        let primary = version.start(&[], &[]);
        let standby = primary.standby(&[]);
        primary.psql("CREATE TABLE t AS SELECT generate_series(1, 1000) n");
        let position = end_of(&primary);
        servers::wait_until("the standby catches up", || {
            standby.psql(&format!("SELECT pg_last_wal_replay_lsn() >= '{position}'")) == "t"
        });
        standby.promote();
        let mut receiver = client(&standby);
        assert!(receiver.create_slot(SLOT).unwrap());
        let segment = receiver.segment_bytes().unwrap();
        let start = Lsn(position.0 / segment * segment);
        let mut wal = Vec::new();
        let end = receive(&mut receiver, start, 1, Lsn(u64::MAX), &mut wal).unwrap();
        let end = end.expect("the timeline ends");
        assert_eq!((end.next, end.at.0), (2, start.0 + wal.len() as u64));
        let history = receiver.timeline_history(2).unwrap();
        let history = String::from_utf8(history).unwrap();
        assert!(history.contains(&format!("1\t{}", end.at)), "{history}");
        standby.psql("CREATE TABLE u AS SELECT generate_series(1, 1000) n");
        let last = end_of(&standby);
        receive(&mut receiver, end.at, 2, last, &mut wal).unwrap();
        // The file of the new timeline begins with the bytes of the old one.
        let files = in_files(&standby.data(), 2, start, wal.len(), segment);
        assert!(files == wal, "what arrived is not what the server wrote");
    }
}

#[test]
fn a_password_is_proven_over_tls_and_a_wrong_one_is_refused() {
    for version in both() {
        let server = version.start_tls(&[]);
        let ca = server.certificate("ca.crt");
        let url = server.url().replace("127.0.0.1", "localhost");
        let url = format!("{url}?sslrootcert={}", ca.display());
        for more in [
            "sslmode=verify-full",
            "sslmode=verify-full&channel_binding=require",
            "sslmode=disable",
        ] {
            let mut receiver = try_client(&format!("{url}&{more}")).unwrap();
            assert_eq!(receiver.identify().unwrap().timeline, 1, "{more}");
        }
        let unbound = format!("{url}&sslmode=disable&channel_binding=require");
        let error = try_client(&unbound).err().expect("no binding");
        assert_eq!(error.kind, ErrorKind::Permission, "{error:?}");
        let password = PASSWORD.replace(' ', "%20");
        let wrong = url.replace(&password, "wrong-secret");
        let error = try_client(&wrong).err().expect("a wrong password");
        assert_eq!(error.kind, ErrorKind::Permission, "{error:?}");
        assert!(!format!("{error:?}").contains("wrong-secret"), "{error:?}");
    }
}

#[test]
fn wal_that_the_server_does_not_have_and_names_that_no_slot_has_are_errors() {
    let Some(version) = servers::version(18) else {
        return;
    };
    let server = version.start(&[], &[]);
    let mut receiver = client(&server);
    assert_eq!(receiver.identify().unwrap().timeline, 1);
    let future = Lsn(u64::MAX / 2);
    let mut stream = receiver.stream(None, future, 1).unwrap();
    let error = stream.next(Duration::from_secs(30)).unwrap_err();
    let said = error.line();
    assert!(said.contains("ahead of the WAL"), "{said}");
    let mut receiver = client(&server);
    for name in ["", "a-b", "A", "a b", "a;drop"] {
        let error = receiver.create_slot(name).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage, "{name}");
    }
}
