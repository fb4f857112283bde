//! `fullbore serve --listen`, and repositories at `fullbore://`.

use crate::{
    over_ssh::{files, restored, scratch, segments, text, tree},
    sshd::program,
};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
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
        for (name, authority) in [("server", "ca"), ("client", "ca"), ("stranger", "other-ca")] {
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
        let mut command = program();
        command.args(arguments).args(self.options("client", "ca"));
        command
    }
}

/// A server that listens on the loopback interface.
pub(crate) struct Listening {
    child: Child,
    pub(crate) port: u16,
}

impl Listening {
    pub(crate) fn start(certificates: &Certificates, allow: &str) -> Self {
        let mut child = program()
            .args(["serve", "--listen", "127.0.0.1:0", "--allow", allow])
            .args(certificates.options("server", "ca"))
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
    let to = dir.path().join("restored");
    run(0, &["restore", &there, "--to", to.to_str().unwrap()]);
    assert_eq!(restored(&to, &source), files(&source));
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
    let with = |certificate: &str, authority: &str| {
        let options = certificates.options(certificate, authority);
        expect(1, program().args(["list", &there]).args(options))
    };
    let said = with("stranger", "ca");
    assert!(
        said.contains("the server refuses the certificate"),
        "{said}"
    );
    // And a client refuses a server of another authority.
    let said = with("client", "other-ca");
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
    let allow = format!("append:{}", repository.display());
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
