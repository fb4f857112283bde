use super::*;
use std::{fs, os::unix::fs::PermissionsExt};

fn environment(variables: &[(&str, &str)]) -> Environment {
    Environment {
        variables: variables
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect(),
        user: Some("me".into()),
        home: None,
        socket_directories: vec![],
    }
}

fn params(text: &str, variables: &[(&str, &str)]) -> Params {
    Params::new(text, &environment(variables)).unwrap()
}

fn network(name: &str) -> SettingPlace {
    SettingPlace::Network(name.into(), None)
}

fn places(params: &Params) -> Vec<(SettingPlace, u16)> {
    params
        .hosts
        .iter()
        .map(|host| (host.place.clone(), host.port))
        .collect()
}

#[test]
fn without_parameters_the_server_is_this_machine_and_the_role_this_user() {
    let params = params("", &[]);
    assert_eq!(
        (&*params.user, &*params.dbname, &*params.application_name),
        ("me", "postgres", "fullbore")
    );
    assert_eq!(places(&params), [(network("localhost"), 5432)]);
    assert_eq!(
        (params.tls.mode, params.tls.channel_binding),
        (SslMode::Prefer, Binding::Prefer)
    );
    assert!(
        params.connect_timeout.is_none()
            && params.keepalive.wanted
            && params.hosts[0].password.is_none()
    );
}

#[test]
fn a_socket_that_is_there_comes_before_the_network() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".s.PGSQL.7"), "").unwrap();
    let nearby = Environment {
        socket_directories: vec!["/nonexistent".into(), dir.path().into()],
        ..environment(&[("PGPORT", "7")])
    };
    assert_eq!(
        places(&Params::new("", &nearby).unwrap()),
        [(SettingPlace::Socket(dir.path().into()), 7)]
    );
    assert_eq!(
        places(&Params::new("port=8", &nearby).unwrap()),
        [(network("localhost"), 8)]
    );
}

#[test]
fn the_string_comes_before_the_service_and_the_service_before_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("pg_service.conf"),
        "[s]\nuser=service\ndbname=service\nport=2\n",
    )
    .unwrap();
    let variables = [
        ("PGSYSCONFDIR", dir.path().to_str().unwrap()),
        ("PGUSER", "env"),
        ("PGDATABASE", "env"),
        ("PGPORT", "3"),
        ("PGHOST", "env"),
        ("PGCONNECT_TIMEOUT", "5"),
    ];
    let params = params("postgres://said@/?service=s", &variables);
    assert_eq!((&*params.user, &*params.dbname), ("said", "service"));
    assert_eq!(places(&params), [(network("env"), 2)]);
    assert_eq!(params.connect_timeout, Some(Duration::from_secs(5)));
    let error = Params::new("service=t", &environment(&variables)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(
        error.what.starts_with("there is no service \"t\" in "),
        "{}",
        error.what
    );
}

#[test]
fn hosts_addresses_and_ports_go_together() {
    let all = params("host=a,/run,b hostaddr=,,::1 port=1,,3", &[]);
    let address = SettingPlace::Network("b".into(), Some("::1".parse().unwrap()));
    assert_eq!(
        places(&all),
        [
            (network("a"), 1),
            (SettingPlace::Socket("/run".into()), 5432),
            (address, 3)
        ]
    );
    let address = SettingPlace::Network("127.0.0.1".into(), Some("127.0.0.1".parse().unwrap()));
    assert_eq!(
        places(&params("hostaddr=127.0.0.1", &[])),
        [(address, 5432)]
    );
    assert_eq!(
        places(&params("host=a,b port=7", &[])),
        [(network("a"), 7), (network("b"), 7)]
    );
    for bad in [
        "host=a,b port=1,2,3",
        "host=a,b hostaddr=::1",
        "port=0",
        "port=65536",
        "port=x",
        "hostaddr=a",
    ] {
        assert_eq!(
            Params::new(bad, &environment(&[])).unwrap_err().kind,
            ErrorKind::Usage,
            "{bad}"
        );
    }
}

#[test]
fn a_value_without_meaning_is_named() {
    for (text, word) in [
        (
            "sslmode=x",
            "the connection parameter \"sslmode\" cannot be \"x\"",
        ),
        (
            "connect_timeout=x",
            "the connection parameter \"connect_timeout\" cannot be \"x\"",
        ),
        (
            "sslrootcert=system sslmode=require",
            "sslrootcert=system needs sslmode=verify-full",
        ),
        (
            "sslnegotiation=direct",
            "sslnegotiation=direct needs sslmode=require or more",
        ),
    ] {
        let error = Params::new(text, &environment(&[])).unwrap_err();
        assert_eq!((error.kind, &*error.what), (ErrorKind::Usage, word));
    }
    assert_eq!(
        params("sslrootcert=system", &[]).tls.mode,
        SslMode::VerifyFull
    );
    let refused = Params::new("", &environment(&[("PGREQUIREPEER", "x")])).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unsupported);
}

#[test]
fn files_at_home_are_used_if_they_are_there() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join(".postgresql");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("root.crt"), "").unwrap();
    fs::write(home.path().join(".pgpass"), "localhost:*:*:*:hushhush\n").unwrap();
    fs::set_permissions(
        home.path().join(".pgpass"),
        fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    let variables = [("HOME", home.path().to_str().unwrap())];
    let mut found = params("", &variables);
    assert_eq!(
        (&found.tls.roots, &found.tls.identity),
        (&CertificateRoots::File(dir.join("root.crt")), &None)
    );
    assert_eq!(found.hosts[0].password.take().unwrap().text, "hushhush");
    assert!(
        params("host=elsewhere", &variables).hosts[0]
            .password
            .is_none()
    );
    let known = Environment {
        home: Some(home.path().into()),
        ..environment(&[("HOME", "")])
    };
    let found = Params::new("", &known).unwrap();
    assert_eq!(
        found.tls.roots,
        CertificateRoots::File(dir.join("root.crt")),
        "the system's home directory is used where HOME is empty"
    );
    fs::set_permissions(
        home.path().join(".pgpass"),
        fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    let found = params("", &variables);
    assert!(
        found.hosts[0].password.is_none() && found.warnings.len() == 1,
        "{found:?}"
    );
}

#[test]
fn no_debug_shows_a_password() {
    for params in [
        params("postgres://u:hushhush@h", &[]),
        params("", &[("PGPASSWORD", "hushhush")]),
    ] {
        assert_eq!(params.hosts[0].password.as_ref().unwrap().text, "hushhush");
        assert!(!format!("{params:?}").contains("hushhush"));
    }
}
