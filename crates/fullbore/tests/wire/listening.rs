//! `fullbore serve --listen`, and repositories at `fullbore://`.

use super::{
    hostile::{GET_LARGE, HostilePeer, LIST, MORE_MIB, OPEN, peak_mib},
    over_ssh::{files, restored, scratch, segments, text, tree},
    sshd::program,
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

/// Certificates of two authorities: the first one's are for a server and a client, the other one's for a stranger.
pub(crate) struct Certificates(tempfile::TempDir);

fn openssl(dir: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments}: {output:?}");
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let certificates = Self(scratch());
        let dir = certificates.0.path();
        let new = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        for authority in ["ca", "other-ca"] {
            openssl(
                dir,
                &format!(
                    "req -x509 {new} -keyout {authority}.key -out {authority}.pem -subj /CN={authority} -days 30"
                ),
            );
        }
        fs::write(
            dir.join("names"),
            "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n",
        )
        .unwrap();
        let all = [
            ("server", "ca"),
            ("client", "ca"),
            ("web2", "ca"),
            ("stranger", "other-ca"),
        ];
        for (name, authority) in all {
            openssl(
                dir,
                &format!("req {new} -keyout {name}.key -out {name}.csr -subj /CN={name}"),
            );
            openssl(
                dir,
                &format!(
                    "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -out {name}.pem -days 30 -extfile names"
                ),
            );
        }
        certificates
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The options of a side with this certificate.
    fn options(&self, name: &str, authority: &str) -> Vec<PathBuf> {
        vec![
            "--tls-cert".into(),
            self.file(&format!("{name}.pem")),
            "--tls-key".into(),
            self.file(&format!("{name}.key")),
            "--tls-ca".into(),
            self.file(&format!("{authority}.pem")),
        ]
    }

    /// fullbore as a client with the right certificate.
    pub(crate) fn fullbore(&self, arguments: &[&str]) -> Command {
        self.fullbore_as("client", arguments)
    }

    /// fullbore as a client with this certificate.
    fn fullbore_as(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = program();
        command.args(arguments).args(self.options(name, "ca"));
        command
    }

    /// Writes the list of the certificates that the authority has revoked, with these among them.
    fn revoke(&self, names: &[&str]) {
        let dir = self.0.path();
        let config = "[ca]\ndefault_ca=d\n[d]\ndatabase=index\ncrlnumber=number\ndefault_md=sha256\ndefault_crl_days=30\n";
        fs::write(dir.join("ca.conf"), config).unwrap();
        if !dir.join("index").exists() {
            fs::write(dir.join("index"), "").unwrap();
            fs::write(dir.join("number"), "01\n").unwrap();
        }
        let ca = "ca -config ca.conf -keyfile ca.key -cert ca.pem";
        for name in names {
            openssl(dir, &format!("{ca} -revoke {name}.pem"));
        }
        openssl(dir, &format!("{ca} -gencrl -out new.crl"));
        fs::rename(dir.join("new.crl"), dir.join("crl.pem")).unwrap();
    }

    /// A connection to a server, with a certificate, that is spoken over by a test.
    fn connect(&self, name: &str, port: u16) -> StreamOwned<ClientConnection, TcpStream> {
        let pem = |file: String| fs::read(self.file(&file)).unwrap();
        let certificate = CertificateDer::from_pem_slice(&pem(format!("{name}.pem"))).unwrap();
        let key = PrivateKeyDer::from_pem_slice(&pem(format!("{name}.key"))).unwrap();
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(&pem("ca.pem".into())).unwrap();
        roots.add(authority).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)
            .unwrap();
        let server = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), server).unwrap();
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        StreamOwned::new(connection, socket)
    }
}

/// A server that listens on the loopback interface.
pub(crate) struct Listening {
    child: Child,
    pub(crate) port: u16,
}

impl Listening {
    pub(crate) fn start(certificates: &Certificates, allow: &str) -> Self {
        Self::start_with(certificates, allow, &[])
    }

    fn start_with(certificates: &Certificates, allow: &str, more: &[&str]) -> Self {
        let mut child = program()
            .args(["serve", "--listen", "127.0.0.1:0", "--allow", allow])
            .args(certificates.options("server", "ca"))
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let port = line.trim().rsplit_once(':').map(|(_, port)| port.parse());
        let port = port.unwrap_or_else(|| panic!("{line}")).unwrap();
        thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Self { child, port }
    }

    fn terminate(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(killed.unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn expect(code: i32, command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    said
}

#[test]
fn a_server_that_listens_is_a_repository_for_whoever_has_a_certificate() {
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source);
    let src = source.to_str().unwrap();
    let repository = dir.path().join("repository");
    let certificates = Certificates::new();
    let allow = format!("write:{}", repository.display());
    let mut server = Listening::start(&certificates, &allow);
    let there = format!(
        "fullbore://127.0.0.1:{}{}",
        server.port,
        repository.display()
    );
    let short = format!("fullbore://localhost:{}", server.port);
    let run = |code: i32, arguments: &[&str]| expect(code, &mut certificates.fullbore(arguments));
    run(0, &["init", &there]);
    run(0, &["backup", src, "--to", &there]);
    let near = dir.path().join("near");
    run(0, &["backup", src, "--to", near.to_str().unwrap()]);
    let same = segments(&repository);
    assert!(!same.is_empty() && same == segments(&near));
    run(0, &["backup", src, "--to", &short]);
    let listed = run(0, &["list", &short]);
    assert_eq!(listed.matches(src).count(), 2, "{listed}");
    run(0, &["verify", &there, "--data"]);
    run(0, &["show", &there]);
    let target = dir.path().join("restored");
    run(0, &["restore", &there, "--to", target.to_str().unwrap()]);
    assert_eq!(restored(&target, &source), files(&source));
    run(0, &["forget", &there, "--keep-last", "1"]);
    run(0, &["prune", &there]);
    let elsewhere = format!("fullbore://127.0.0.1:{}{}", server.port, near.display());
    let said = run(1, &["list", &elsewhere]);
    assert!(said.contains("may open"), "{said}");
    assert_eq!(server.terminate(), Some(0));
    run(1, &["list", &there]);
}

#[test]
fn a_host_without_a_certificate_of_the_authority_gets_nothing() {
    let dir = scratch();
    let certificates = Certificates::new();
    let server = Listening::start(&certificates, &format!("read:{}/r", dir.path().display()));
    let there = format!("fullbore://127.0.0.1:{}", server.port);
    let args_with = |certificate: &str, authority: &str| {
        let options = certificates.options(certificate, authority);
        expect(1, program().args(["list", &there]).args(options))
    };
    let said = args_with("stranger", "ca");
    assert!(
        said.contains("the server refuses the certificate"),
        "{said}"
    );
    // And a client refuses a server of another authority.
    let said = args_with("client", "other-ca");
    assert!(said.contains("invalid peer certificate"), "{said}");
    let said = expect(2, program().args(["list", &there]));
    assert!(said.contains("--tls-cert"), "{said}");
    // No TLS at all: nothing is said in clear.
    let mut socket = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    socket.write_all(b"fullbore wire 1 0.1.0\n").unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    assert!(
        !answer.windows(8).any(|eight| eight == b"fullbore"),
        "{answer:?}"
    );
    // One that says nothing is closed.
    let mut silent = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    silent
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
    silent.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_server_that_listens_must_be_told_who_may_do_what() {
    let certificates = Certificates::new();
    let listen = ["serve", "--listen", "127.0.0.1:0"];
    expect(2, program().args(listen).args(["--allow", "read:/x"]));
    let options = certificates.options("server", "ca");
    expect(2, program().args(listen).args(&options));
    expect(2, program().args(listen).args(&options).arg("--stdio"));
    expect(2, program().arg("serve"));
}

#[test]
fn a_server_that_ends_in_a_backup_leaves_nothing_half_done() {
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source);
    let certificates = Certificates::new();
    let repository = dir.path().join("r");
    let allow = format!("write:{}", repository.display());
    let mut server = Listening::start(&certificates, &allow);
    let there = format!("fullbore://127.0.0.1:{}", server.port);
    let src = source.to_str().unwrap();
    let slow = ["backup", src, "--to", &there, "--limit-upload", "2M"];
    let mut backup = certificates
        .fullbore(&slow)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !repository.join("intents").exists() {
        assert!(backup.try_wait().unwrap().is_none(), "it ended too early");
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(Duration::from_millis(500));
    assert_eq!(server.terminate(), Some(0));
    let ended = backup.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended));
    let left = files(&repository);
    assert!(
        !left.keys().any(|name| name.ends_with("root.json")),
        "{left:?}"
    );
    let unfinished = left.keys().filter(|name| name.contains(".tar.zst"));
    assert_eq!(unfinished.count(), 0, "{:?}", left.keys());
}

/// A server of a repository with one backup, and the words for it.
fn serving(certificates: &Certificates, dir: &Path, more: &[&str]) -> (Listening, String) {
    let (source, repository) = (dir.join("source"), dir.join("repository"));
    tree(&source);
    let words = [
        "backup",
        source.to_str().unwrap(),
        "--to",
        repository.to_str().unwrap(),
    ];
    expect(0, program().args(words));
    let allow = format!("read:{}", repository.display());
    let server = Listening::start_with(certificates, &allow, more);
    let there = format!("fullbore://localhost:{}", server.port);
    (server, there)
}

#[test]
fn connections_that_show_no_certificate_keep_no_host_out() {
    let dir = scratch();
    let certificates = Certificates::new();
    let (server, there) = serving(&certificates, dir.path(), &[]);
    expect(0, &mut certificates.fullbore(&["list", &there]));
    let before = peak_mib(server.child.id()).unwrap();
    let silent = || TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    for _ in 0..5 {
        let held: Vec<TcpStream> = (0..300).map(|_| silent()).collect();
        expect(0, &mut certificates.fullbore(&["list", &there]));
        drop(held);
    }
    let after = peak_mib(server.child.id()).unwrap();
    assert!(after - before <= MORE_MIB, "{before} and {after} MiB");
}

#[test]
fn sessions_of_one_certificate_keep_no_other_host_out() {
    let dir = scratch();
    let certificates = Certificates::new();
    let (server, there) = serving(&certificates, dir.path(), &[]);
    let mut held: Vec<_> = (0..40)
        .map(|_| HostilePeer::greet(certificates.connect("client", server.port)).unwrap())
        .collect();
    let mut served = 0;
    for peer in &mut held {
        peer.call(OPEN, b"").unwrap();
        let id = peer.call(LIST, b"").unwrap();
        let (_, listed) = peer.answer(id).unwrap();
        served += usize::from(!listed.is_empty());
    }
    assert_eq!(served, 16);
    let said = expect(1, &mut certificates.fullbore(&["list", &there]));
    assert!(said.contains("16 sessions of this certificate"), "{said}");
    expect(0, &mut certificates.fullbore_as("web2", &["list", &there]));
    drop(held);
    let is_served = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(100));
        let listed = certificates.fullbore(&["list", &there]).output();
        listed.unwrap().status.success()
    });
    assert!(is_served, "sessions that ended are counted");
}

#[test]
fn sessions_of_one_certificate_share_the_room_for_answers() {
    let dir = scratch();
    let certificates = Certificates::new();
    let (server, there) = serving(&certificates, dir.path(), &[]);
    let backup = dir.path().join("repository/backups/x");
    fs::create_dir_all(&backup).unwrap();
    fs::write(backup.join("root.json"), vec![7; 24 << 20]).unwrap();
    let mut held: Vec<_> = (0..12)
        .map(|_| HostilePeer::greet(certificates.connect("client", server.port)).unwrap())
        .collect();
    for peer in &mut held {
        let id = peer.call(OPEN, b"").unwrap();
        peer.answer(id).unwrap();
    }
    let before = peak_mib(server.child.id()).unwrap();
    for peer in &mut held {
        for _ in 0..8 {
            peer.call(GET_LARGE, b"").unwrap();
        }
    }
    thread::sleep(Duration::from_secs(3));
    let after = peak_mib(server.child.id()).unwrap();
    assert!(after - before <= MORE_MIB, "{before} and {after} MiB");
    // Another host has room of its own.
    expect(0, &mut certificates.fullbore_as("web2", &["list", &there]));
    drop(held);
}

#[test]
fn a_server_answers_certificates_that_are_named_and_not_revoked() {
    let dir = scratch();
    let certificates = Certificates::new();
    certificates.revoke(&[]);
    let crl = certificates.file("crl.pem");
    let crl = crl.to_str().unwrap();
    let more = [
        "--tls-crl",
        crl,
        "--tls-name",
        "client",
        "--tls-name",
        "web3",
    ];
    let (_server, there) = serving(&certificates, dir.path(), &more);
    let list = |name: &str, code: i32| {
        expect(code, &mut certificates.fullbore_as(name, &["list", &there]))
    };
    list("client", 0);
    let said = list("web2", 1);
    assert!(said.contains("refuses the certificate"), "{said}");
    certificates.revoke(&["client"]);
    let said = list("client", 1);
    assert!(said.contains("refuses the certificate"), "{said}");
    // A list that cannot be read does not let anybody in again.
    fs::write(crl, "nothing").unwrap();
    list("client", 1);
    fs::remove_file(crl).unwrap();
    list("client", 1);
}

#[test]
fn a_server_does_not_start_with_a_list_that_it_cannot_use() {
    let certificates = Certificates::new();
    let crl = certificates.file("crl.pem");
    for text in ["nothing", ""] {
        fs::write(&crl, text).unwrap();
        let listen = ["serve", "--listen", "127.0.0.1:0", "--allow", "read:/x"];
        let mut command = program();
        command
            .args(listen)
            .args(certificates.options("server", "ca"));
        let said = expect(2, command.arg("--tls-crl").arg(&crl));
        assert!(said.contains("revoked"), "{said}");
    }
}
