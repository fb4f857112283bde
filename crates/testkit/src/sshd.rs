//! A real sshd on the loopback interface, with keys of its own. It ends with the process of the tests.

pub use crate::runs::FULLBORE;

use crate::runs::state_dir;
use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// The program. What it remembers of repositories lasts as long as this test program: ports are used again.
pub fn program() -> Command {
    let mut command = Command::new(FULLBORE);
    command.env("FULLBORE_STATE_DIR", state_dir());
    command.env("XDG_CACHE_HOME", state_dir());
    command
}

/// A server, and what a client needs to reach it.
pub struct Sshd {
    dir: tempfile::TempDir,
    _held: Child,
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

fn key(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    run(Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&path));
    path
}

/// The server of this process.
pub fn sshd() -> &'static Sshd {
    static SERVER: OnceLock<Sshd> = OnceLock::new();
    SERVER.get_or_init(start)
}

fn start() -> Sshd {
    let sshd = Path::new("/usr/sbin/sshd");
    assert!(
        sshd.exists(),
        "{sshd:?} is not there: install openssh-server"
    );
    // It wants this directory, which only a started service makes.
    let _ = fs::create_dir_all("/run/sshd");
    let dir = tempfile::Builder::new()
        .prefix("fullbore-sshd")
        .tempdir_in("/var/tmp")
        .unwrap();
    let path = dir.path();
    let host_key = key(path, "host_key");
    let user_key = key(path, "user_key");
    let limited_key = key(path, "limited_key");
    let public = |key: &Path| fs::read_to_string(key.with_extension("pub")).unwrap();
    let vault = path.join("vault");
    let limited = format!(
        "restrict,command=\"{FULLBORE} serve --stdio --allow append:{} --host web1\" {}",
        vault.display(),
        public(&limited_key)
    );
    fs::write(path.join("authorized_keys"), public(&user_key) + &limited).unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let user = run(Command::new("id").arg("-un")).stdout;
    let user = String::from_utf8(user).unwrap();
    let shown = path.display();
    fs::write(
        path.join("sshd_config"),
        format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nPidFile none\nUsePAM no\nStrictModes no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nMaxStartups 200\n\
             AuthorizedKeysFile {shown}/authorized_keys\nSetEnv XDG_CACHE_HOME={shown}/cache\n",
            host_key.display()
        ),
    )
    .unwrap();
    let host = |name: &str, key: &Path| {
        format!(
            "Host {name}\nHostName 127.0.0.1\nPort {port}\nUser {user}IdentityFile {}\n",
            key.display()
        )
    };
    let config = host("far", &user_key)
        + &host("limited", &limited_key)
        + &format!(
            "Host *\nIdentitiesOnly yes\nIdentityAgent none\nBatchMode yes\nLogLevel ERROR\nStrictHostKeyChecking no\n\
             UserKnownHostsFile {shown}/known_hosts\n"
        );
    fs::write(path.join("ssh_config"), config).unwrap();
    // The shell ends the server at the end of its input, and removes the directory.
    let script = r#"dir=$1; shift; exec 3<&0; "$@" & server=$!
(cat <&3 >/dev/null; kill $server 2>/dev/null) & wait $server; rm -rf "$dir""#;
    let mut held = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(path)
        .arg(sshd)
        .args(["-D", "-e", "-f"])
        .arg(path.join("sshd_config"))
        .stdin(Stdio::piped())
        .stderr(fs::File::create(path.join("log")).unwrap())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        let log = fs::read_to_string(path.join("log")).unwrap();
        assert!(held.try_wait().unwrap().is_none(), "sshd ended: {log}");
        assert!(began.elapsed() < Duration::from_secs(60), "{log}");
        thread::sleep(Duration::from_millis(20));
    }
    Sshd { dir, _held: held }
}

impl Sshd {
    /// What `--ssh` is told.
    pub fn command(&self) -> String {
        format!("ssh -F {}", self.dir.path().join("ssh_config").display())
    }

    /// The configuration of the server.
    pub fn server_config(&self) -> PathBuf {
        self.dir.path().join("sshd_config")
    }

    /// The key that logs in, which can open a repository, too, and its public half.
    pub fn user_key(&self) -> (PathBuf, String) {
        let key = self.dir.path().join("user_key");
        let public = fs::read_to_string(key.with_extension("pub")).unwrap();
        (key, public.trim().to_owned())
    }

    /// The one location that the host `limited` may append to.
    pub fn vault(&self) -> PathBuf {
        self.dir.path().join("vault")
    }

    /// The cache of the user of this server.
    pub fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// fullbore, which reaches other hosts by this server.
    pub fn fullbore(&self, arguments: &[&str]) -> Command {
        let mut command = program();
        command
            .args(arguments)
            .env("FULLBORE_SSH", self.command())
            .args(["--far-program", FULLBORE]);
        command
    }
}
