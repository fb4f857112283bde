//! Sessions with real servers: how they are reached, what they say, and how their loss is noticed.

mod connection;
mod replication;

use fullbore_format::error::{Error, ErrorKind};
use fullbore_postgres::{
    conninfo::{Environment, Params},
    lsn::{Lsn, segment_name},
    session::{HeldSession, Session},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use testkit::{
    pool,
    servers::{self, PASSWORD, Server, version, wait_until},
};

/// Nothing but what the test says.
fn environment(variables: &[(&str, &str)]) -> Environment {
    Environment {
        variables: variables
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        user: Some("postgres".into()),
        home: None,
        socket_directories: vec![],
    }
}

fn try_connect(text: &str, variables: &[(&str, &str)]) -> Result<Session, Error> {
    Session::connect(&Params::new(text, &environment(variables))?)
}

fn holding(url: &str, session: Session) -> HeldSession {
    HeldSession::new(session, &Params::new(url, &environment(&[])).unwrap(), None).unwrap()
}

fn connect(text: &str) -> Session {
    try_connect(text, &[]).unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn knows_the_facts(server: &Server, major: u32, checksums: bool) {
    let location = server.dir().join("space");
    fs::create_dir(&location).unwrap();
    servers::own(&location);
    server.psql(&format!(
        "CREATE TABLESPACE space LOCATION '{}'",
        location.display()
    ));
    let mut session = connect(&server.socket_url());
    let facts = session.facts().unwrap();
    assert!(facts.version.starts_with(&format!("{major}.")), "{facts:?}");
    assert_eq!(
        (facts.major, facts.version_number / 10_000, &facts.warning),
        (major, major, &None)
    );
    assert_eq!(facts.data_directory.as_deref(), Some(&*server.data()));
    assert_eq!(
        facts.system_identifier.to_string(),
        server.psql("SELECT system_identifier FROM pg_control_system()")
    );
    assert_eq!(
        (facts.standby, facts.checksums, facts.block_bytes),
        (false, checksums, 8192)
    );
    assert_eq!(
        (
            facts.wal_segment_bytes,
            facts.full_page_writes,
            facts.data_directory_mode
        ),
        (1 << 20, true, 0o700)
    );
    assert_eq!(
        (facts.timeline, &*facts.archive_mode, facts.may_hold_wal),
        (1, "off", true)
    );
    let names: Vec<_> = facts
        .tablespaces
        .iter()
        .map(|(_, name)| name.clone())
        .collect();
    assert_eq!(
        names,
        ["pg_default".into(), "pg_global".into(), "space".into()]
    );
    let databases: Vec<_> = facts
        .databases
        .iter()
        .map(|database| (database.name.clone(), database.template))
        .collect();
    assert_eq!(databases.len(), 3);
    assert!(
        databases.contains(&("template0".into(), true))
            && databases.contains(&("postgres".into(), false)),
        "{databases:?}"
    );
}

/// Start, hold, stop, in a session with any server.
fn starts_and_stops(server: &Server) {
    let mut session = connect(&server.socket_url());
    session.hold_wal().unwrap();
    assert_eq!(
        server.psql(
            "SELECT count(*) FROM pg_replication_slots WHERE temporary AND restart_lsn IS NOT NULL"
        ),
        "1"
    );
    let start = session.start("fullbore \u{e9}", true).unwrap();
    session.check_alive().unwrap();
    let stopped = session.stop(false).unwrap();
    assert!(
        start < stopped.lsn && start > Lsn(0),
        "{start} {}",
        stopped.lsn
    );
    let label = String::from_utf8(stopped.backup_label).unwrap();
    let first = segment_name(1, start, 1 << 20);
    assert!(
        label.starts_with(&format!("START WAL LOCATION: {start} (file {first})\n")),
        "{label}"
    );
    assert!(label.contains("\nLABEL: fullbore \u{e9}\n"), "{label}");
    assert_eq!((stopped.start_timeline, stopped.timeline), (1, 1));
    let map = String::from_utf8(stopped.tablespace_map).unwrap();
    assert!(
        map.ends_with("/space\n") && map.lines().count() == 1,
        "{map}"
    );
    drop(session);
    wait_until("the slot is gone", || {
        server.psql("SELECT count(*) FROM pg_replication_slots") == "0"
    });
}

fn serves(major: u32, flags: &[&str], checksums: bool) {
    let Some(version) = version(major) else {
        return;
    };
    let flags: Vec<_> = flags.iter().copied().chain(["--wal-segsize=1"]).collect();
    let server = version.start(&flags, &["wal_level = replica"]);
    knows_the_facts(&server, major, checksums);
    starts_and_stops(&server);
}

#[test]
fn version_13_serves() {
    serves(13, &[], false);
}

#[test]
fn version_17_serves() {
    serves(17, &["--data-checksums"], true);
}

#[test]
fn version_18_serves() {
    serves(18, &[], true);
}

#[test]
fn a_standby_of_18_serves_whatever_functions_others_have_made() {
    let Some(version) = version(18) else { return };
    let primary = version.start(&[], &[]);
    primary.psql(
        "CREATE FUNCTION public.pg_is_in_recovery() RETURNS bool LANGUAGE sql AS 'SELECT false'; \
         ALTER DATABASE postgres SET search_path = public, pg_catalog",
    );
    let standby = primary.standby(&[]);
    let mut session = connect(&standby.socket_url());
    assert!(session.standby());
    let start = session.start("x", true).unwrap();
    assert!(session.stop(false).unwrap().lsn >= start);
}

#[test]
fn the_version_of_debian_serves_and_so_does_its_standby() {
    let Some(version) = servers::debian() else {
        return;
    };
    let primary = version.start(&["--wal-segsize=1"], &[]);
    knows_the_facts(&primary, version.major, version.major > 17);
    starts_and_stops(&primary);
    primary.psql("DROP TABLESPACE space");
    let standby = primary.standby(&[]);
    let mut session = connect(&standby.socket_url());
    assert!(session.standby());
    let facts = session.facts().unwrap();
    assert!(facts.standby);
    assert_eq!(facts.timeline, 1);
    assert_eq!(
        session.switch_wal().unwrap_err().kind,
        ErrorKind::Unsupported
    );
    session.hold_wal().unwrap();
    let start = session.start("x", true).unwrap();
    let stopped = session.stop(false).unwrap();
    assert!(stopped.lsn >= start && stopped.tablespace_map.is_empty());
    assert_eq!((stopped.start_timeline, stopped.timeline), (1, 1));

    let urls = format!(
        "host={0},{1} port={2},{3}",
        text(primary.dir()),
        text(standby.dir()),
        primary.port,
        standby.port
    );
    let which = |wanted: &str| connect(&format!("{urls} target_session_attrs={wanted}")).standby();
    assert_eq!(
        [
            which("any"),
            which("primary"),
            which("standby"),
            which("prefer-standby")
        ],
        [false, false, true, true]
    );

    session.start("x", true).unwrap();
    let held = holding(&standby.url(), session);
    held.check().unwrap();
    standby.promote();
    wait_until("the promotion is noticed", || held.check().is_err());
    let error = held.check().unwrap_err();
    assert_eq!(error.line(), "the backup is void: the standby was promoted");
    assert!(held.with(|session| session.stop(false)).is_err());
}

#[test]
fn the_loss_of_the_session_is_noticed_by_itself() {
    let Some(version) = servers::debian() else {
        return;
    };
    let server = version.start(&[], &[]);
    let mut session = connect(&server.url());
    session.start("x", true).unwrap();
    session.hold_wal().unwrap();
    let held = holding(&server.url(), session);
    thread::sleep(Duration::from_millis(1200));
    held.check().unwrap();
    held.with(Session::check_alive).unwrap();
    server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fullbore'");
    // No statement of this thread notices it.
    wait_until("the loss is noticed", || held.check().is_err());
    for _ in 0..2 {
        let error = held.check().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unreachable);
        assert!(error.line().starts_with(
            "the backup is void: the session with the server at \"127.0.0.1\", port "
        ));
        assert_eq!(
            held.with(|session| session.stop(false)).unwrap_err().line(),
            error.line()
        );
    }
    assert_eq!(
        server.psql("SELECT count(*) FROM pg_replication_slots"),
        "0"
    );

    // And that of the whole server, by a power cut.
    let held = holding(&server.url(), connect(&server.url()));
    held.with(|session| session.start("x", true)).unwrap();
    server.kill();
    assert!(
        held.with(|session| session.stop(false))
            .unwrap_err()
            .line()
            .starts_with("the backup is void")
    );
    server.run();
    let held = holding(&server.url(), connect(&server.url()));
    drop(held);
    wait_until("the session is gone", || {
        server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fullbore'")
            == "0"
    });
}

#[test]
fn in_a_pool_nothing_is_left_to_the_next_and_what_others_had_is_refused() {
    let Some(version) = servers::debian() else {
        return;
    };
    let server = version.start(&[], &[]);
    let url = server.url().replace(
        &server.port.to_string(),
        &pool::start(server.port).to_string(),
    ) + "?sslmode=disable";
    // A session that was made for us, and a backup that is given up.
    let mut session = connect(&url);
    session.hold_wal().unwrap();
    assert_eq!(
        server.psql("SELECT count(*) FROM pg_replication_slots"),
        "1"
    );
    session.start("given up", true).unwrap();
    drop(session);
    assert_eq!(
        server.psql("SELECT count(*) FROM pg_replication_slots"),
        "0"
    );
    wait_until("the session ends with its backup", || {
        server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fullbore'")
            == "0"
    });
    // The pool notices, and makes another one; a backup ends, and somebody else has the session.
    let _ = try_connect(&url, &[]);
    let mut session = connect(&url);
    session.hold_wal().unwrap();
    session.start("whole", true).unwrap();
    session.stop(false).unwrap();
    drop(session);
    assert_eq!(
        server.psql("SELECT count(*) FROM pg_replication_slots"),
        "0"
    );
    let mut other = postgres::Client::connect(&url, postgres::NoTls).unwrap();
    let path: String = other.query_one("SHOW search_path", &[]).unwrap().get(0);
    assert_eq!(path, "\"$user\", public");
    drop(other);
    thread::sleep(Duration::from_millis(1500));
    let error = try_connect(&url, &[]).err().expect("it is refused");
    assert_eq!(
        (error.kind, &*error.what),
        (
            ErrorKind::Unsupported,
            "cannot back up through a connection pool"
        )
    );
}

#[test]
fn a_role_without_rights_is_told_what_to_grant_and_then_suffices() {
    for major in [13, 17] {
        let Some(version) = version(major) else {
            continue;
        };
        let server = version.start(&[], &[]);
        server.psql("CREATE ROLE \"back up\" LOGIN");
        let url = server
            .socket_url()
            .replace("user=postgres", "user=back%20up");
        let mut session = connect(&url);
        let error = session.facts().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Permission);
        assert_eq!(error.what, "the role \"back up\" may not take a backup");
        let slot = session.hold_wal().unwrap_err();
        assert_eq!(slot.kind, ErrorKind::Permission, "{slot:?}");
        assert!(slot.hint.unwrap().contains("REPLICATION"));
        assert_eq!(
            session.start("x", true).unwrap_err().kind,
            ErrorKind::Permission
        );
        server.psql(&error.detail.join("\n"));
        let mut session = connect(&url);
        let facts = session.facts().unwrap();
        assert!(facts.may_hold_wal);
        assert_eq!(facts.data_directory.as_deref(), Some(&*server.data()));
        session.hold_wal().unwrap();
        session.start("x", true).unwrap();
        session.stop(false).unwrap();
    }
}

#[test]
fn a_server_that_has_no_slot_says_what_to_change() {
    let Some(version) = servers::debian() else {
        return;
    };
    let server = version.start(&[], &["max_replication_slots = 1", "max_wal_senders = 1"]);
    let mut first = connect(&server.socket_url());
    first.hold_wal().unwrap();
    let error = connect(&server.socket_url()).hold_wal().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported, "{error:?}");
    assert!(error.hint.unwrap().contains("max_replication_slots"));
    drop(first);
    server.configure(&[
        "wal_level = minimal",
        "max_wal_senders = 0",
        "max_replication_slots = 0",
    ]);
    server.restart();
    let mut session = connect(&server.socket_url());
    let error = session.hold_wal().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported, "{error:?}");
    assert!(
        session
            .start("x", true)
            .unwrap_err()
            .line()
            .contains("WAL level not sufficient")
    );
}

#[test]
fn a_server_that_gives_little_memory_and_no_temporary_files_serves() {
    let Some(version) = servers::debian() else {
        return;
    };
    let settings = [
        "work_mem = 64kB",
        "temp_file_limit = 0",
        "track_activity_query_size = 128kB",
    ];
    let server = version.start(&[], &settings);
    // What others ask is more than that, too.
    let mut other = postgres::Client::connect(&server.url(), postgres::NoTls).unwrap();
    other
        .batch_execute(&format!("SELECT 1 /* {} */", "long ".repeat(20_000)))
        .unwrap();
    let mut session = connect(&server.url());
    session.facts().unwrap();
    session.hold_wal().unwrap();
    session.start("x", true).unwrap();
    session.stop(false).unwrap();
}

#[test]
fn the_archiver_is_asked_and_a_segment_can_be_ended() {
    let Some(version) = servers::debian() else {
        return;
    };
    // The end of a backup takes longer than any statement may: the session has no limits.
    let command = "archive_command = 'case %f in *.backup) sleep 1.5;; esac; test -e ../allowed'";
    let limits = [
        "statement_timeout = 1s",
        "lock_timeout = 1s",
        "idle_session_timeout = 1s",
    ];
    let server = version.start(
        &["--wal-segsize=1"],
        &[&["archive_mode = on", command], &limits[..]].concat(),
    );
    let mut session = connect(&server.socket_url());
    let segment = session.switch_wal().unwrap();
    let again = session.switch_wal().unwrap();
    assert!(again > segment, "{segment} {again}");
    let said = |session: &mut Session| session.archived_wal(&again).unwrap();
    let began = Instant::now();
    while said(&mut session).failing.is_none() {
        assert!(began.elapsed() < Duration::from_secs(120));
        thread::sleep(Duration::from_millis(50));
    }
    assert!(!said(&mut session).done);
    fs::write(server.dir().join("allowed"), "").unwrap();
    session.start("x", true).unwrap();
    let stopped = session.stop(true).unwrap();
    let last = segment_name(stopped.timeline, Lsn(stopped.lsn.0 - 1), 1 << 20);
    let archived = session.archived_wal(&last).unwrap();
    assert!(
        archived.done && archived.failing.is_none(),
        "{archived:?} {last}"
    );
    assert!(said(&mut session).done);
}

#[test]
fn a_statement_that_fails_costs_the_slot_and_that_is_the_reason_that_is_told() {
    let Some(version) = servers::debian() else {
        return;
    };
    let server = version.start(&[], &[]);
    let mut session = connect(&server.url());
    session.hold_wal().unwrap();
    session.start("x", true).unwrap();
    let held = holding(&server.url(), session);
    // In another session it costs nothing, and that is at the same server.
    let slots = "SELECT count(*) FROM pg_replication_slots";
    let failed = held
        .with_second_session(|session| session.summaries(1))
        .unwrap_err();
    assert!(
        failed
            .line()
            .contains("could not list the summaries of the WAL"),
        "{failed}"
    );
    held.with(Session::check_alive).unwrap();
    assert_eq!(server.psql(slots), "1");
    // What it no longer has it is not asked for.
    held.with(|session| session.advance_slot(Lsn(1))).unwrap();
    assert_eq!(server.psql(slots), "1");
    held.with(|session| session.summaries(1)).unwrap_err();
    assert_eq!(server.psql(slots), "0");
    wait_until("the loss is noticed", || held.check().is_err());
    let error = held.check().unwrap_err();
    assert!(
        error
            .line()
            .ends_with("dropped the replication slot because a statement failed"),
        "{error}"
    );
    assert!(
        error.detail[0].contains("could not list the summaries of the WAL"),
        "{error:?}"
    );
}
