//! The ways to a server, TLS, and messages about refusals.

use super::*;

fn private(path: &Path, content: &str) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn all_of(error: &Error) -> String {
    format!(
        "{} {:?} {:?} {error:?}",
        error.line(),
        error.detail,
        error.hint
    )
}

#[test]
fn a_server_is_reached_in_every_way_that_libpq_knows() {
    let Some(version) = servers::debian() else {
        return;
    };
    let server = version.start(&[], &[]);
    let (port, dir) = (server.port.to_string(), text(server.dir()));
    connect(&server.url()).check_alive().unwrap();
    connect(&server.socket_url()).check_alive().unwrap();
    connect(&format!(
        "host=127.0.0.1 port={port} password='it''s a secret'"
    ))
    .check_alive()
    .unwrap();
    connect(&format!(
        "postgres://postgres@{}:{port}/",
        dir.replace('/', "%2F")
    ))
    .check_alive()
    .unwrap();
    connect(&format!(
        "postgres://postgres:it's%20a%20secret@127.0.0.1:1,127.0.0.1:{port}/"
    ))
    .check_alive()
    .unwrap();

    let variables = [
        ("PGHOST", "localhost"),
        ("PGHOSTADDR", "127.0.0.1"),
        ("PGPORT", &port),
        ("PGPASSWORD", PASSWORD),
    ];
    try_connect("", &variables).unwrap().check_alive().unwrap();
    let home = tempfile::tempdir().unwrap();
    let passfile = home.path().join(".pgpass");
    private(
        &passfile,
        &format!("127.0.0.1:{port}:*:postgres:{PASSWORD}\n"),
    );
    let service = format!("[ours]\nhost=127.0.0.1\nport={port}\nuser=postgres\n");
    fs::write(home.path().join(".pg_service.conf"), service).unwrap();
    let variables = [
        ("HOME", text(home.path())),
        ("PGSERVICE", "ours"),
        ("PGPORT", "1"),
    ];
    try_connect("", &variables).unwrap().check_alive().unwrap();
    fs::write(&passfile, "*:*:*:*:wrong\n").unwrap();
    let error = try_connect("", &variables).err().unwrap();
    assert!(
        error.hint.as_ref().unwrap().contains(".pgpass"),
        "{error:?}"
    );

    let nearby = Environment {
        socket_directories: vec!["/nonexistent".into(), dir.into()],
        ..environment(&[])
    };
    Session::connect(&Params::new(&format!("port={port}"), &nearby).unwrap())
        .unwrap()
        .check_alive()
        .unwrap();
}

#[test]
fn a_refusal_says_who_where_and_why_and_not_the_password() {
    let Some(version) = servers::debian() else {
        return;
    };
    let server = version.start(&[], &[]);
    let port = server.port;
    let error = try_connect(&format!("postgres://me:hushhush@127.0.0.1:{port}/"), &[])
        .err()
        .unwrap();
    assert_eq!(error.kind, ErrorKind::Permission);
    assert_eq!(
        error.line(),
        format!(
            "could not connect to the server at \"127.0.0.1\", port {port} as \"me\": password authentication failed for user \"me\""
        )
    );
    assert_eq!(
        error.hint.as_deref(),
        Some("the password is from the connection string")
    );
    assert!(!all_of(&error).contains("hushhush"));
    let error = try_connect(&format!("postgres://me@127.0.0.1:{port}/"), &[])
        .err()
        .unwrap();
    assert!(error.line().ends_with("password missing"), "{error:?}");
    assert!(error.hint.unwrap().contains("~/.pgpass"));
    let nowhere = [
        format!("host={}/nowhere", text(server.dir())),
        "postgres://me@127.0.0.1:1/".to_owned(),
    ];
    for error in nowhere.map(|place| try_connect(&place, &[]).err().unwrap()) {
        assert!(
            error.kind == ErrorKind::Unreachable
                && all_of(&error).contains("is a server running there?"),
            "{error:?}"
        );
    }
    let error = try_connect(
        &server.socket_url(),
        &[("PGDATABASE", "x"), ("PGSSLMODE", "disable")],
    );
    assert!(error.is_ok(), "explicit before environment");
    let error = try_connect(&server.socket_url().replace("/postgres?", "/none?"), &[])
        .err()
        .unwrap();
    assert!(
        error.line().ends_with("database \"none\" does not exist"),
        "{error:?}"
    );
    assert!(error.hint.unwrap().contains("postgres:///NAME"));
    let error = try_connect(
        &server.socket_url().replace("user=postgres", "user=you"),
        &[],
    )
    .err()
    .unwrap();
    assert!(
        error.line().ends_with("role \"you\" does not exist"),
        "{error:?}"
    );
    assert!(error.hint.unwrap().starts_with("connect as another role"));
    let error = try_connect("postgres://127.0.0.1:1,127.0.0.2:1/", &[])
        .err()
        .unwrap();
    assert_eq!(
        (error.kind, error.detail.len()),
        (ErrorKind::Unreachable, 1),
        "{error:?}"
    );
    assert!(error.line().ends_with("connection refused"), "{error:?}");
    // It takes connections and never answers.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "postgres://127.0.0.1:{}/?connect_timeout=1",
        mute.local_addr().unwrap().port()
    );
    assert!(
        try_connect(&url, &[])
            .err()
            .unwrap()
            .line()
            .ends_with("no answer within 1 seconds, the connect_timeout")
    );
}

/// As some versions of openssl make them without -extfile.
fn is_of_version_1(server: &Server, certificate: &str) -> bool {
    let mut shown = std::process::Command::new("openssl");
    shown
        .args(["x509", "-noout", "-text", "-in"])
        .arg(server.certificate(certificate));
    String::from_utf8_lossy(&shown.output().unwrap().stdout).contains("Version: 1 ")
}

#[test]
fn tls_checks_what_sslmode_says() {
    let Some(version) = version(17) else { return };
    let server = version.start_tls(&[]);
    let connection_url = |host: &str, rest: &str| {
        let password = PASSWORD.replace(' ', "%20");
        format!(
            "postgres://postgres:{password}@{host}:{}/?hostaddr=127.0.0.1{rest}",
            server.port
        )
    };
    let ca = server.certificate("ca.crt");
    let ca = text(&ca);
    let encrypted = |url: &str| {
        let _session = connect(&format!("{url}&application_name=seen"));
        server.psql("SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'seen'")
            == "t"
    };
    assert!(encrypted(&connection_url("localhost", "")), "prefer");
    assert!(!encrypted(&connection_url("localhost", "&sslmode=disable")));
    assert!(!encrypted(&connection_url("localhost", "&sslmode=allow")));
    assert!(encrypted(&connection_url(
        "localhost",
        "&sslmode=require&channel_binding=require"
    )));
    assert!(encrypted(&connection_url(
        "localhost",
        "&sslmode=require&sslnegotiation=direct"
    )));
    assert!(encrypted(&connection_url(
        "localhost",
        &format!("&sslmode=verify-full&sslrootcert={ca}")
    )));
    assert!(encrypted(&connection_url(
        "other",
        &format!("&sslmode=verify-ca&sslrootcert={ca}")
    )));
    assert!(encrypted(&connection_url("other", "&sslmode=require")));
    let refused = |host: &str, rest: &str| {
        try_connect(&connection_url(host, rest), &[])
            .err()
            .unwrap_or_else(|| panic!("{rest}"))
    };
    let error = refused("other", &format!("&sslmode=verify-full&sslrootcert={ca}"));
    assert!(
        error
            .hint
            .as_ref()
            .is_some_and(|hint| hint.contains("verify-ca")),
        "{error:?}"
    );
    assert_eq!(error.kind, ErrorKind::Permission);
    server.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -keyout x.key -out x.crt");
    let stranger = server.certificate("x.crt");
    for mode in ["require", "verify-ca", "verify-full"] {
        refused(
            "localhost",
            &format!("&sslmode={mode}&sslrootcert={}", text(&stranger)),
        );
    }
    assert_eq!(
        refused("localhost", "&sslmode=verify-ca").kind,
        ErrorKind::Usage
    );
    assert_eq!(
        refused("localhost", "&sslmode=require&sslrootcert=system").kind,
        ErrorKind::Usage
    );
    assert_eq!(
        refused("localhost", "&sslmode=verify-full&sslrootcert=/none").kind,
        ErrorKind::NotFound
    );
    assert_eq!(
        refused("localhost", "&sslrootcert=system").kind,
        ErrorKind::Permission
    );

    // Without -extfile: of version 1, which libpq's users have had for long.
    server.openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out server.crt",
    );
    server.restart();
    assert!(encrypted(&connection_url("localhost", "")), "prefer");
    assert!(encrypted(&connection_url("localhost", "&sslmode=require")));
    if is_of_version_1(&server, "server.crt") {
        let error = refused("localhost", &format!("&sslmode=verify-ca&sslrootcert={ca}"));
        assert!(
            format!("{error:?}").contains("version 1 of X.509"),
            "{error:?}"
        );
    }

    // The server's own certificate as the root, as `openssl req -x509` makes it: an authority that signs itself.
    server.openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost \
         -addext subjectAltName=DNS:localhost -keyout self.key -out self.crt",
    );
    fs::copy(
        server.certificate("self.crt"),
        server.certificate("server.crt"),
    )
    .unwrap();
    fs::copy(
        server.certificate("self.key"),
        server.certificate("server.key"),
    )
    .unwrap();
    // Only who has a certificate gets in.
    let hba = server.data().join("pg_hba.conf");
    fs::write(
        &hba,
        "local all all trust\nhostssl all all 127.0.0.1/32 cert\n",
    )
    .unwrap();
    server.restart();
    let own = server.certificate("self.crt");
    let (cert, key) = (
        server.certificate("client.crt"),
        server.certificate("client.key"),
    );
    let root = format!("&sslmode=verify-full&sslrootcert={}", text(&own));
    assert_eq!(refused("localhost", &root).kind, ErrorKind::Permission);
    assert!(encrypted(&connection_url(
        "localhost",
        &format!("{root}&sslcert={}&sslkey={}", text(&cert), text(&key))
    )));
    // One of our own is of version 1, too, without -extfile.
    server.openssl(
        "x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out first.crt",
    );
    let first = format!(
        "{root}&sslcert={}&sslkey={}",
        text(&server.certificate("first.crt")),
        text(&key)
    );
    if is_of_version_1(&server, "first.crt") {
        let error = refused("localhost", &first);
        assert!(
            error.kind == ErrorKind::Usage
                && error
                    .line()
                    .contains("certificate is of version 1 of X.509"),
            "{error:?}"
        );
    }
    let allow = format!(
        "&sslmode=allow&sslcert={}&sslkey={}",
        text(&cert),
        text(&key)
    );
    assert!(
        encrypted(&connection_url("localhost", &allow)),
        "what is refused unencrypted is tried encrypted"
    );
    fs::write(
        &hba,
        "local all all trust\nhostnossl all all 127.0.0.1/32 scram-sha-256\n",
    )
    .unwrap();
    server.restart();
    assert!(
        !encrypted(&connection_url("localhost", "")),
        "what is refused encrypted is tried unencrypted"
    );
    assert_eq!(
        refused("localhost", "&sslmode=require").kind,
        ErrorKind::Permission
    );
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let error = refused(
        "localhost",
        &format!("{root}&sslcert={}&sslkey={}", text(&cert), text(&key)),
    );
    assert_eq!(error.kind, ErrorKind::Permission);
}
