//! Clusters that live in a temporary directory: copies of one that was made before, and those restored from a backup.

use super::{
    args,
    runs::{FULLBORE, Ran, fullbore},
    servers::{self, Version, answer_lines, as_postgres, copy_cluster, own, wait_until},
};
use std::{
    ffi::OsString,
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};
use tempfile::TempDir;

/// What every cluster holds: a relation of some 12 MB, a small one, and an index of each.
const CONTENT: &str = "
    CREATE TABLE large AS SELECT n, repeat(md5(n::text), 8) AS words FROM generate_series(1, 40000) n;
    ALTER TABLE large ADD PRIMARY KEY (n);
    CREATE TABLE small (n int PRIMARY KEY, word text);
    INSERT INTO small SELECT n, md5(n::text) FROM generate_series(1, 300) n;
    VACUUM ANALYZE;";

const SETTINGS: [&str; 6] = [
    "fsync = off",
    "shared_buffers = 16MB",
    "autovacuum = off",
    "listen_addresses = ''",
    "max_wal_size = 512MB",
    "log_min_messages = log",
];

/// Two places on different devices: clusters are in the first, in memory if there is room, as everything that waits for a
/// disk takes five times as long.
static DEVICES: LazyLock<(PathBuf, PathBuf)> = LazyLock::new(|| {
    let (memory, disk) = (PathBuf::from("/dev/shm"), std::env::temp_dir());
    let room = rustix::fs::statvfs(&memory).map_or(0, |memory| memory.f_bavail * memory.f_frsize);
    if room > 2 << 30 {
        (memory, disk)
    } else {
        (disk, memory)
    }
});

/// A cluster. Dropped, its server is stopped at once and its files are removed.
pub(crate) struct Cluster {
    pub(crate) version: Version,
    dir: TempDir,
}

impl Cluster {
    /// Running, with [`CONTENT`], page checksums, and these lines in its configuration.
    pub(crate) fn new(version: &Version, lines: &[&str]) -> Self {
        let cluster = Self::stopped(version, lines);
        cluster.start();
        cluster
    }

    /// The same, shut down.
    pub(crate) fn stopped(version: &Version, lines: &[&str]) -> Self {
        let cluster = Self::empty(version);
        let template_dir = template(version);
        copy_cluster(&template_dir, &cluster.data());
        cluster.configure(lines);
        cluster
    }

    /// Running, of databases in this encoding, with nothing in it.
    pub(crate) fn of_encoding(version: &Version, encoding: &str) -> Self {
        let cluster = Self::empty(version);
        cluster.init(encoding);
        cluster.start();
        cluster
    }

    fn init(&self, encoding: &str) {
        let flags = [
            "--no-sync",
            "--no-locale",
            "--username=postgres",
            "--auth=trust",
            "-k",
            "-E",
            encoding,
            "-D",
        ];
        let done = self
            .command("initdb")
            .args(flags)
            .arg(self.data())
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        self.configure(&SETTINGS);
    }

    /// Nothing yet: the directory of a cluster to be.
    pub(crate) fn empty(version: &Version) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("fullbore-pg")
            .tempdir_in(&DEVICES.0)
            .unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        own(dir.path());
        Self {
            version: version.clone(),
            dir,
        }
    }

    /// What `fullbore restore` makes of a backup, not started; its tablespaces are below `spaces` beside it.
    pub(crate) fn restored(version: &Version, from: &Path) -> Self {
        Self::restored_with(version, from, &[])
    }

    pub(crate) fn restored_with(version: &Version, from: &Path, flags: &[&str]) -> Self {
        let cluster = Self::empty(version);
        let (target, spaces) = (cluster.data(), cluster.path("spaces"));
        let line = args![
            "restore",
            from,
            "--to",
            target,
            "--tablespaces-under",
            spaces,
            "--quiet"
        ];
        fullbore(line.into_iter().chain(flags.iter().map(Into::into))).ends_with(0);
        cluster
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// A name beside its data directory; it goes with the cluster.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A directory beside its data directory that its server may write to.
    pub(crate) fn make_dir(&self, name: &str) -> PathBuf {
        fs::create_dir(self.path(name)).unwrap();
        own(&self.path(name));
        self.path(name)
    }

    pub(crate) fn url(&self) -> String {
        self.url_as("postgres")
    }

    pub(crate) fn url_as(&self, role: &str) -> String {
        format!(
            "postgres:///postgres?user={role}&host={}",
            self.dir.path().display()
        )
    }

    /// Runs fullbore as a user who may read nothing of the cluster. Only root can do that.
    pub(crate) fn by_nobody(&self, args: impl IntoIterator<Item = OsString>) -> Ran {
        let program = self.path("fullbore");
        fs::copy(FULLBORE, &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(program)
            .args(args)
            .env("TMPDIR", "/tmp");
        command.output().unwrap().into()
    }

    pub(crate) fn configure(&self, lines: &[&str]) {
        let mut file = fs::File::options()
            .append(true)
            .open(self.data().join("postgresql.conf"))
            .unwrap();
        lines
            .iter()
            .for_each(|line| writeln!(file, "{line}").unwrap());
    }

    pub(crate) fn start(&self) {
        assert!(self.starts(), "{}", self.log());
    }

    /// Start it; did that succeed?
    pub(crate) fn starts(&self) -> bool {
        self.starts_with("")
    }

    /// The same with more on its command line.
    pub(crate) fn starts_with(&self, more: &str) -> bool {
        let mut start = self.command("pg_ctl");
        start
            .args(["start", "-w", "-s", "-t", "60", "-l"])
            .arg(self.path("log"))
            .arg("-D")
            .arg(self.data());
        start
            .arg("-o")
            .arg(format!("-k {} {more}", self.dir.path().display()));
        // What it writes to must not stay open in the server, or its reader waits for the server.
        start
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    }

    pub(crate) fn stop(&self, mode: &str) {
        let mut stop = self.command("pg_ctl");
        let done = stop
            .args(["stop", "-w", "-s", "-m", mode, "-D"])
            .arg(self.data())
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}{}",
            String::from_utf8_lossy(&done.stderr),
            self.log()
        );
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = as_postgres(self.version.program(program));
        command.current_dir(self.dir.path()).env("LC_ALL", "C");
        command
    }

    pub(crate) fn client(&self) -> postgres::Client {
        self.client_of("postgres")
    }

    fn client_of(&self, database: &str) -> postgres::Client {
        let mut config = postgres::Config::new();
        config
            .host_path(self.dir.path())
            .user("postgres")
            .dbname(database);
        config.connect(postgres::NoTls).unwrap()
    }

    /// What the statements answer: columns with `|`, rows with line ends between them.
    pub(crate) fn psql(&self, sql: &str) -> String {
        self.in_database("postgres", sql)
    }

    /// The same in another database.
    pub(crate) fn in_database(&self, database: &str, sql: &str) -> String {
        let mut client = self.client_of(database);
        let said = client
            .simple_query(sql)
            .unwrap_or_else(|error| panic!("{sql}: {:?}", error.as_db_error()));
        answer_lines(said)
    }

    /// Statements that cannot run together with others.
    pub(crate) fn psql_each(&self, statements: &[&str]) {
        statements.iter().for_each(|sql| drop(self.psql(sql)));
    }

    /// The same, all in one session.
    pub(crate) fn in_session(&self, statements: &[&str]) {
        let mut client = self.client();
        statements.iter().for_each(|sql| {
            client
                .batch_execute(sql)
                .unwrap_or_else(|error| panic!("{sql}: {error}"))
        });
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// A backup of it while it runs, to `to` beside its data directory.
    pub(crate) fn backup(&self, to: &str, more: &[&str]) -> Ran {
        let flags = ["backup", &self.url(), "--to"]
            .map(Into::into)
            .into_iter()
            .chain([self.path(to).into()]);
        fullbore(flags.chain(more.iter().map(Into::into)))
    }

    /// A backup of it while it is stopped, to `to` beside its data directory.
    pub(crate) fn backup_offline(&self, to: &str) -> Ran {
        fullbore(args![
            "backup",
            self.data(),
            "--offline",
            "--to",
            self.path(to)
        ])
    }

    /// The path of a relation's file, below its data directory.
    pub(crate) fn file_of(&self, relation: &str) -> String {
        self.psql(&format!("SELECT pg_relation_filepath('{relation}')"))
    }

    /// Nothing of a backup is left in the server: no slot, no session.
    #[track_caller]
    pub(crate) fn assert_nothing_is_left(&self) {
        let sql = "SELECT count(*) FROM pg_replication_slots";
        wait_until("the slot is gone", || self.psql(sql) == "0");
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fullbore'";
        wait_until("the session is gone", || self.psql(sql) == "0");
    }

    /// Everything that [`CONTENT`] made is there, as tables and as indexes say.
    #[track_caller]
    pub(crate) fn assert_has_content(&self) {
        let sums = "SELECT count(*), sum(n), count(DISTINCT words) FROM large";
        assert_eq!(self.psql(sums), "40000|800020000|40000");
        let by_index = "SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*), sum(n) FROM small";
        assert_eq!(self.psql(&format!("{by_index} WHERE n > 0")), "300|45150");
    }

    /// The manifest of PostgreSQL agrees with what is in the data directory.
    #[track_caller]
    pub(crate) fn assert_verifies(&self) {
        let own = self
            .version
            .program("initdb")
            .with_file_name("pg_verifybackup");
        let (program, flags) = match (own.exists(), self.version.major) {
            (true, _) => (own, &[][..]),
            // 17 put the control file in, which that of 18 reads as its own. It reads no WAL of another version.
            (false, 17) => return,
            (false, _) => (
                super::servers::tool("pg_verifybackup").unwrap(),
                &["-n"][..],
            ),
        };
        let done = as_postgres(program)
            .args(flags)
            .arg(self.data())
            .current_dir("/")
            .output()
            .unwrap();
        let done = Ran::from(done);
        assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.data().join("postmaster.pid").exists() {
            let mut stop = self.command("pg_ctl");
            let _ = stop
                .args(["stop", "-w", "-s", "-m", "immediate", "-D"])
                .arg(self.data())
                .output();
        }
        if std::thread::panicking() {
            eprintln!("the log of the server:\n{}", self.log());
        }
    }
}

/// A cluster that was shut down cleanly.
fn template(version: &Version) -> PathBuf {
    let statements: Vec<_> = CONTENT
        .split_inclusive(';')
        .map(str::trim)
        .filter(|sql| !sql.is_empty())
        .collect();
    servers::template(version, &format!("{CONTENT}{SETTINGS:?}"), |target| {
        let cluster = Cluster::empty(version);
        cluster.init("UTF8");
        cluster.start();
        cluster.psql_each(&statements);
        cluster.stop("fast");
        copy_cluster(&cluster.data(), target);
    })
}

/// A directory on another device than that of the clusters, that their servers may write to.
pub(crate) fn elsewhere() -> TempDir {
    let dir = tempfile::tempdir_in(&DEVICES.1).unwrap();
    own(dir.path());
    dir
}

/// The versions that are installed, the oldest that is known first.
pub(crate) fn versions() -> &'static [Version] {
    static ALL: LazyLock<Vec<Version>> = LazyLock::new(|| {
        [13, 15, 17, 18]
            .into_iter()
            .filter_map(super::servers::version)
            .collect()
    });
    &ALL
}

/// Debian's and the newest: for what differs little among versions.
pub(crate) fn some_versions() -> impl Iterator<Item = &'static Version> {
    let newest = versions()
        .last()
        .filter(|newest| debian().is_none_or(|debian| debian.major < newest.major));
    debian().into_iter().chain(newest)
}

/// Debian's, which has all tools.
pub(crate) fn debian() -> Option<&'static Version> {
    static DEBIAN: LazyLock<Option<Version>> = LazyLock::new(super::servers::debian);
    DEBIAN.as_ref()
}
