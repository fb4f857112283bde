//! `fullbore web` for a team: over TLS, with certificates or passwords.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use tempfile::{TempDir, tempdir};
use testkit::{
    runs::{Ran, fed, fullbore, set_mode, write, write_private},
    web::{Answer, WebServer},
};

fn openssl(dir: &Path, words: &str) {
    let output = Command::new("openssl")
        .args(words.split(' '))
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{words}: {output:?}");
}

/// A repository, and certificates of two authorities.
fn repository() -> TempDir {
    let dir = tempdir().unwrap();
    write(dir.path().join("t/plain"), "plain words");
    fullbore(args![
        "backup",
        dir.path().join("t"),
        "--to",
        dir.path().join("r"),
        "-q"
    ])
    .ends_with(0);
    write(
        dir.path().join("names"),
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n",
    );
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for name in ["ca", "other"] {
        openssl(
            dir.path(),
            &format!(
                "req -x509 {new} -keyout {name}.key -out {name}.pem -subj /CN={name} -days 30"
            ),
        );
    }
    for (name, authority) in [
        ("server", "ca"),
        ("ann", "ca"),
        ("bob", "ca"),
        ("eve", "other"),
    ] {
        openssl(
            dir.path(),
            &format!("req {new} -keyout {name}.key -out {name}.csr -subj /CN={name}"),
        );
        openssl(
            dir.path(),
            &format!(
                "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -out {name}.pem -days 30 -extfile names"
            ),
        );
    }
    dir
}

/// A server with TLS.
fn server(dir: &Path, more: &[&str]) -> WebServer {
    let file = |name: &str| dir.join(name);
    let mut words = args![
        file("r"),
        "--listen",
        "127.0.0.1:0",
        "--name",
        "localhost",
        "--tls-cert",
        file("server.pem"),
        "--tls-key",
        file("server.key")
    ]
    .to_vec();
    words.extend(more.iter().map(Into::into));
    WebServer::start(words)
}

/// Asks over TLS as somebody with this certificate.
fn ask(dir: &Path, server: &WebServer, name: Option<&str>, request: &str) -> Option<Answer> {
    let port = server.host.rsplit_once(':').unwrap().1;
    let mut command = Command::new("openssl");
    command.args([
        "s_client",
        "-quiet",
        "-ign_eof",
        "-tls1_3",
        "-verify_return_error",
        "-CAfile",
        "ca.pem",
        "-connect",
    ]);
    command.arg(format!("localhost:{port}")).current_dir(dir);
    if let Some(name) = name {
        command.args([
            "-cert",
            &format!("{name}.pem"),
            "-key",
            &format!("{name}.key"),
        ]);
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let (head, form) = request.split_once("\n\n").unwrap_or((request, ""));
    let head = head.replace("HOST", &format!("localhost:{port}"));
    let request = format!("{}\r\n\r\n{form}", head.replace('\n', "\r\n"));
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), request.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Answer::parse(&output.stdout)
}

#[test]
fn a_certificate_of_the_authority_is_a_session_and_no_other_is() {
    let dir = repository();
    let ca = dir.path().join("ca.pem");
    let server = server(
        dir.path(),
        &["--tls-ca", ca.to_str().unwrap(), "--tls-name", "ann"],
    );
    let as_who = |name: Option<&str>, request: &str| ask(dir.path(), &server, name, request);
    let fleet = "GET /api/fleet HTTP/1.1\nHost: HOST";
    let answer = as_who(Some("ann"), fleet).unwrap();
    assert_eq!(
        answer.is(200).json()["sources"].as_array().unwrap().len(),
        1
    );
    for other in [Some("bob"), Some("eve"), None] {
        assert!(as_who(other, fleet).is_none(), "{other:?}");
    }
    let other_name = as_who(Some("ann"), "GET / HTTP/1.1\nHost: evil.example");
    other_name.unwrap().is(421);
    let cross =
        "POST /restore-run HTTP/1.1\nHost: HOST\nOrigin: https://evil.example\nContent-Length: 0";
    as_who(Some("ann"), cross).unwrap().is(403);
    // Without TLS there is no page.
    let plain = server.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(plain.is_none());
}

#[test]
fn a_password_of_the_file_begins_a_session() {
    let dir = repository();
    let line = fed(args!["web", "--hash-password", "ann"], b"long enough\n");
    let line = Ran::from(line).ends_with(0).out;
    let file = dir.path().join("passwords");
    write_private(&file, &line);
    let server = server(dir.path(), &["--password-file", file.to_str().unwrap()]);
    let ask = |request: &str| ask(dir.path(), &server, None, request).expect("an answer");
    let enter = |name: &str, password: &str| {
        let form = format!("name={name}&password={password}");
        ask(&format!(
            "POST /enter HTTP/1.1\nHost: HOST\nContent-Length: {}\n\n{form}",
            form.len()
        ))
    };
    ask("GET /api/fleet HTTP/1.1\nHost: HOST").is(401);
    let entered = enter("ann", "long+enough").is(303);
    let cookie = entered.header("set-cookie").unwrap();
    assert!(
        cookie.starts_with("__Host-fullbore=")
            && cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict; Secure"),
        "{cookie}"
    );
    let cookie = cookie.split(';').next().unwrap();
    ask(&format!(
        "GET /api/fleet HTTP/1.1\nHost: HOST\nCookie: {cookie}"
    ))
    .is(200);
    for number in 0..12 {
        let status = enter("ann", "wrong+words").status;
        assert_eq!(status, if number < 10 { 401 } else { 429 }, "{number}");
    }
    enter("ann", "long+enough").is(429);
    ask(&format!(
        "GET /api/fleet HTTP/1.1\nHost: HOST\nCookie: {cookie}"
    ))
    .is(200);
}

#[test]
fn other_hosts_are_let_in_only_over_tls_and_by_name() {
    let dir = repository();
    let repository = dir.path().join("r");
    let web = |words: &[&str]| {
        let mut all = args!["web", "--no-browser", &repository].to_vec();
        all.extend(words.iter().map(Into::into));
        let begin = Instant::now();
        let ran = fullbore(all);
        assert!(begin.elapsed() < Duration::from_secs(30));
        ran
    };
    web(&["--listen", "0.0.0.0:0"])
        .ends_with(2)
        .has_one_error("TLS");
    let passwords = dir.path().join("passwords");
    write(&passwords, "ann:16:00:00\n");
    set_mode(&passwords, 0o644);
    let passwords = passwords.to_str().unwrap();
    web(&["--password-file", passwords]).has_one_error("others can read it");
    set_mode(Path::new(passwords), 0o600);
    web(&["--password-file", passwords])
        .ends_with(2)
        .has_one_error("a line is malformed");
    let short = fed(args!["web", "--hash-password", "ann"], b"short\n");
    Ran::from(short).ends_with(2);
    let one = format!("{}@latest", repository.display());
    fullbore(args!["web", "--no-browser", one])
        .ends_with(1)
        .has_one_error("it is not a repository");
}
