//! PostgreSQL servers of several versions, each in a directory of its own that goes with it.
//!
//! They run as user postgres if the tests run as root, listen on a socket in that directory and on 127.0.0.1, trust the
//! socket and ask for [`PASSWORD`] elsewhere. `scripts/postgres-servers` installs those that Debian has not.

use crate::shared;
use std::{
    env, fs,
    io::Write,
    net::TcpListener,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

pub const PASSWORD: &str = "it's a secret";

/// Where a version's programs are.
#[derive(Clone, Debug)]
pub struct Version {
    pub major: u32,
    bin: PathBuf,
}

/// That version, if it is here; where all must be here, it is a failure that it is not.
pub fn version(major: u32) -> Option<Version> {
    let found = places(&major.to_string()).find(|bin| bin.join("postgres").exists());
    missing_if_none(found, &format!("PostgreSQL {major}")).map(|bin| Version { major, bin })
}

/// A tool of version 18, as `pg_verifybackup`.
pub fn tool(name: &str) -> Option<PathBuf> {
    let found = places("18-tools")
        .map(|bin| bin.join(name))
        .find(|tool| tool.exists());
    missing_if_none(found, name)
}

/// Debian's server, of whatever version.
pub fn debian() -> Option<Version> {
    let majors = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let majors = majors.filter_map(|dir| dir.file_name().to_str()?.parse().ok());
    let found = majors.map(|major: u32| {
        (
            major,
            PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")),
        )
    });
    let found = found.filter(|(_, bin)| bin.join("postgres").exists()).max();
    missing_if_none(found, "a server of Debian").map(|(major, bin)| Version { major, bin })
}

fn places(name: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let ours = env::var_os("FULLBORE_POSTGRES").map_or_else(
        || Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("target/postgres"),
        PathBuf::from,
    );
    [
        ours.join(name).join("bin"),
        Path::new("/usr/lib/postgresql").join(name).join("bin"),
    ]
    .into_iter()
}

fn missing_if_none<T>(found: Option<T>, what: &str) -> Option<T> {
    if found.is_none() {
        assert!(
            env::var_os("CI").is_none_or(|ci| ci != "true"),
            "{what} is missing: run scripts/postgres-servers"
        );
        eprintln!("not tested: {what} is not here, see scripts/postgres-servers");
    }
    found
}

impl Version {
    /// A program of this version, or of the tools of the newest.
    pub fn program(&self, name: &str) -> PathBuf {
        let tools = places(&format!("{}-tools", self.major)).map(|bin| bin.join(name));
        [self.bin.join(name)]
            .into_iter()
            .chain(tools)
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("no {name}"))
    }

    /// A server with `initdb` flags and lines of `postgresql.conf`, running. Those with the same flags have the same identifier.
    pub fn start(&self, flags: &[&str], lines: &[&str]) -> Server {
        let server = Server::new(self);
        let template = template(self, &format!("{flags:?}"), |target| {
            self.init(flags, target)
        });
        copy_cluster(&template, &server.data());
        server.configure(&[
            "fsync = off",
            "shared_buffers = 16MB",
            "wal_keep_size = 64MB",
            "autovacuum = off",
        ]);
        server.configure(lines);
        server.run();
        server
    }

    fn init(&self, flags: &[&str], to: &Path) {
        let server = Server::new(self);
        let password = server.dir.path().join("password");
        fs::write(&password, PASSWORD).unwrap();
        own(&password);
        let mut initdb = server.command("initdb");
        initdb.args([
            "--no-sync",
            "--no-locale",
            "--encoding=UTF8",
            "--username=postgres",
            "--auth-local=trust",
        ]);
        initdb
            .args(["--auth-host=scram-sha-256", "--pwfile"])
            .arg(&password)
            .arg("-D")
            .arg(server.data());
        ok(initdb.args(flags));
        copy_cluster(&server.data(), to);
    }

    /// A server with `ssl = on`; see [`Server::certificate`].
    pub fn start_tls(&self, lines: &[&str]) -> Server {
        let server = self.start(&[], lines);
        server.make_certificates();
        server.configure(&[
            "ssl = on",
            "ssl_cert_file = '../server.crt'",
            "ssl_key_file = '../server.key'",
        ]);
        server.configure(&["ssl_ca_file = '../ca.crt'"]);
        server.restart();
        server
    }
}

/// A cluster that `make` made once for this version and this description, and that is kept for the next run of the tests.
pub fn template(version: &Version, description: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let name = blake3::hash(description.as_bytes()).to_hex();
    let program = fs::metadata(version.program("postgres")).unwrap().len();
    let place = Path::new(shared::KEPT);
    let name = format!("cluster-{}-{program}-{}", version.major, &name[..8]);
    let _lock = shared::lock(&place.join(format!("{name}.lock")));
    let made = place.join(name);
    if !made.exists() {
        let half = tempfile::tempdir_in(place).unwrap();
        make(&half.path().join("data"));
        fs::rename(half.path().join("data"), &made).unwrap();
    }
    made
}

/// Copies a cluster that is shut down, with its owner.
pub fn copy_cluster(from: &Path, to: &Path) {
    ok(Command::new("cp").arg("-a").args([from, to]));
}

/// A running server. Dropped, it is stopped at once and its files are removed.
pub struct Server {
    pub version: Version,
    pub port: u16,
    dir: TempDir,
}

/// The rows of an answer: columns with `|`, rows with line ends between them.
pub fn answer_lines(said: Vec<postgres::SimpleQueryMessage>) -> String {
    let row = |message| match message {
        postgres::SimpleQueryMessage::Row(row) => Some(
            (0..row.len())
                .map(|index| row.get(index).unwrap_or_default())
                .collect::<Vec<_>>()
                .join("|"),
        ),
        _ => None,
    };
    let rows: Vec<_> = said.into_iter().filter_map(row).collect();
    rows.join("\n")
}

impl Server {
    fn new(version: &Version) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("fullbore-pg")
            .tempdir()
            .unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        own(dir.path());
        Self {
            version: version.clone(),
            port: free_port(),
            dir,
        }
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The directory of its socket, and of everything else that belongs to it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Over TCP, with the password.
    pub fn url(&self) -> String {
        format!(
            "postgres://postgres:{}@127.0.0.1:{}/postgres",
            PASSWORD.replace(' ', "%20"),
            self.port
        )
    }

    /// Over the socket, without.
    pub fn socket_url(&self) -> String {
        format!(
            "postgres:///postgres?user=postgres&host={}&port={}",
            self.dir().display(),
            self.port
        )
    }

    /// One of `ca.crt`, `client.crt`, `client.key` of a server with TLS. It is `localhost` by its certificate.
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// Lines for `postgresql.conf`; the last of a name counts, after a restart.
    pub fn configure(&self, lines: &[&str]) {
        let mut file = fs::File::options()
            .append(true)
            .open(self.data().join("postgresql.conf"))
            .unwrap();
        lines
            .iter()
            .for_each(|line| writeln!(file, "{line}").unwrap());
    }

    /// Start it.
    pub fn run(&self) {
        self.configure(&[
            &format!("port = {}", self.port),
            "listen_addresses = '127.0.0.1'",
            &format!("unix_socket_directories = '{}'", self.dir().display()),
        ]);
        let mut start = self.command("pg_ctl");
        start
            .args(["start", "-w", "-s", "-t", "60", "-l"])
            .arg(self.dir().join("log"))
            .arg("-D")
            .arg(self.data());
        // What it writes to must not stay open in the server, or its reader waits for the server.
        let done = start
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(done.success(), "{}", self.log());
    }

    pub fn stop(&self, mode: &str) {
        let mut stop = self.command("pg_ctl");
        ok(stop
            .args(["stop", "-w", "-s", "-m", mode, "-D"])
            .arg(self.data()));
    }

    pub fn restart(&self) {
        self.stop("fast");
        self.run();
    }

    /// As a power cut does it, to all its processes.
    pub fn kill(&self) {
        let pid = self.postmaster().unwrap();
        ok(Command::new("kill").args(["-9", &pid.to_string()]));
        wait_until("the processes end", || {
            children(pid).is_empty() && !Path::new(&format!("/proc/{pid}")).exists()
        });
        let _ = fs::remove_file(self.data().join("postmaster.pid"));
    }

    pub fn promote(&self) {
        let mut promote = self.command("pg_ctl");
        ok(promote.args(["promote", "-w", "-s", "-D"]).arg(self.data()));
    }

    pub fn postmaster(&self) -> Option<u32> {
        fs::read_to_string(self.data().join("postmaster.pid"))
            .ok()?
            .lines()
            .next()?
            .trim()
            .parse()
            .ok()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// What the statements answer: columns with `|`, rows with line ends between them.
    pub fn psql(&self, sql: &str) -> String {
        let mut config = postgres::Config::new();
        config
            .host_path(self.dir())
            .port(self.port)
            .user("postgres")
            .dbname("postgres");
        let mut client = config.connect(postgres::NoTls).unwrap();
        let said = client
            .simple_query(sql)
            .unwrap_or_else(|error| panic!("{sql}: {:?}", error.as_db_error()));
        answer_lines(said)
    }

    /// A standby of this server, running and up to date.
    pub fn standby(&self, lines: &[&str]) -> Server {
        let standby = Self::new(&self.version);
        let mut copy = self.command("pg_basebackup");
        copy.args(["-h"]).arg(self.dir()).args([
            "-p",
            &self.port.to_string(),
            "-U",
            "postgres",
            "-R",
            "-c",
            "fast",
        ]);
        ok(copy
            .args(["-X", "stream", "--no-sync", "-D"])
            .arg(standby.data()));
        standby.configure(lines);
        standby.run();
        let position = self.psql("SELECT pg_current_wal_lsn()");
        wait_until("the standby catches up", || {
            standby.psql(&format!("SELECT pg_last_wal_replay_lsn() >= '{position}'")) == "t"
        });
        standby
    }

    /// A program of the server's version, run as its user.
    pub fn command(&self, program: &str) -> Command {
        let mut command = as_postgres(self.version.program(program));
        command.current_dir(self.dir());
        command
    }

    fn make_certificates(&self) {
        let names = "subjectAltName=DNS:localhost";
        self.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca \
                      -addext keyUsage=keyCertSign -keyout ca.key -out ca.crt",
        );
        for (name, subject) in [("server", "/CN=localhost"), ("client", "/CN=postgres")] {
            self.openssl(&format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj {subject} \
                                   -keyout {name}.key -out {name}.csr"
            ));
            fs::write(self.dir().join("ext"), names).unwrap();
            self.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
                                   -extfile ext -out {name}.crt"
            ));
        }
        for name in ["server.key", "server.crt", "ca.crt"] {
            own(&self.dir().join(name));
        }
    }

    /// Also for a test's own certificates: words are separated by spaces, files are in the server's directory.
    pub fn openssl(&self, words: &str) {
        ok(Command::new("openssl")
            .args(words.split_whitespace())
            .current_dir(self.dir()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.postmaster().is_some() {
            let mut stop = self.command("pg_ctl");
            let _ = stop
                .args(["stop", "-w", "-s", "-m", "immediate", "-D"])
                .arg(self.data())
                .output();
        }
        if thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

fn root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// The program, as user postgres if this is root, whom servers refuse.
pub fn as_postgres(program: impl AsRef<Path>) -> Command {
    if !root() {
        return Command::new(program.as_ref());
    }
    let mut command = Command::new("setpriv");
    command
        .args([
            "--reuid=postgres",
            "--regid=postgres",
            "--clear-groups",
            "--",
        ])
        .arg(program.as_ref());
    command
}

/// Give a file to the user that servers run as.
pub fn own(path: &Path) {
    if root() {
        let users = fs::read_to_string("/etc/passwd").unwrap();
        let user = users
            .lines()
            .find(|line| line.starts_with("postgres:"))
            .expect("a user postgres");
        let ids: Vec<u32> = user
            .split(':')
            .skip(2)
            .take(2)
            .map(|id| id.parse().unwrap())
            .collect();
        chown(path, Some(ids[0]), Some(ids[1])).unwrap();
    }
}

fn ok(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn children(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default()
}

/// # Panics
/// If it is not so within three minutes.
pub fn wait_until(what: &str, so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(
            began.elapsed() < Duration::from_secs(180),
            "waited too long until {what}"
        );
        // To ask costs a process or a session: after two seconds once each 100 ms is enough.
        let pause = began.elapsed() / 20;
        thread::sleep(pause.clamp(Duration::from_millis(20), Duration::from_millis(100)));
    }
}
