//! A small cluster in a directory of its own, whose server listens on a socket there.

use fullbore_platform::dir::{DirName, FileKind};
use std::{
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    process::{Command, Output},
};

pub(crate) struct Cluster {
    pub(crate) major: u32,
    bin: PathBuf,
    dir: tempfile::TempDir,
}

impl Cluster {
    /// A new cluster of the newest version that is installed, not running; `None` if there is none.
    pub(crate) fn new(options: &[&str]) -> Option<Self> {
        let versions = fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .flatten();
        let number = |entry: fs::DirEntry| {
            Some((
                entry.file_name().to_str()?.parse().ok()?,
                entry.path().join("bin"),
            ))
        };
        let found = versions
            .filter_map(number)
            .filter(|(_, bin)| bin.join("pg_basebackup").exists())
            .max();
        let Some((major, bin)) = found else {
            eprintln!("skipped: PostgreSQL is not installed");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let cluster = Self { major, bin, dir };
        let data = cluster.path("data");
        cluster.ok(
            "initdb",
            &[
                &["-D", &data, "-A", "trust", "-U", "postgres", "-N"],
                options,
            ]
            .concat(),
        );
        Some(cluster)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Make a directory that the server may use.
    pub(crate) fn make(&self, path: &str) {
        fs::create_dir(path).unwrap();
        let owner = fs::metadata(self.path("data")).unwrap();
        std::os::unix::fs::chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }

    /// Run a program of PostgreSQL; as its own user where we are root, for it refuses to be.
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> Output {
        let (root, program) = (
            fs::metadata("/proc/self").unwrap().uid() == 0,
            self.bin.join(program),
        );
        let mut command = Command::new(if root { Path::new("setpriv") } else { &program });
        if root {
            command
                .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
                .arg(&program);
        }
        // A server that stays would keep a pipe open.
        let (out, err) = (self.path("stdout"), self.path("stderr"));
        let open = |path: &str| fs::File::create(path).unwrap();
        let status = command
            .args(args)
            .env("LC_ALL", "C")
            .stdout(open(&out))
            .stderr(open(&err))
            .status()
            .unwrap();
        Output {
            status,
            stdout: fs::read(out).unwrap(),
            stderr: fs::read(err).unwrap(),
        }
    }

    /// The same, and it must succeed: what it prints.
    pub(crate) fn ok(&self, program: &str, args: &[&str]) -> String {
        let output = self.run(program, args);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args:?}: {err}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Start the server of the data directory `name`; its log, if it refuses.
    pub(crate) fn start(&self, name: &str) -> Result<Server<'_>, String> {
        let (sockets, data, log) = (
            self.dir.path().to_str().unwrap(),
            self.path(name),
            self.path("log"),
        );
        let options =
            format!("-c listen_addresses= -c unix_socket_directories={sockets} -c fsync=off");
        let _ = fs::remove_file(&log);
        let output = self.run(
            "pg_ctl",
            &["-D", &data, "-o", &options, "-l", &log, "-w", "start"],
        );
        match output.status.success() {
            true => Ok(Server {
                cluster: self,
                data,
            }),
            false => Err(fs::read_to_string(log).unwrap()),
        }
    }
}

/// A server that runs until this goes.
pub(crate) struct Server<'a> {
    cluster: &'a Cluster,
    data: String,
}

impl Server<'_> {
    pub(crate) fn sql(&self, text: &str) -> String {
        self.client("psql", &["-d", "postgres", "-XAtqc", text])
            .trim_end()
            .to_owned()
    }

    /// Run a program that connects to the server.
    pub(crate) fn client(&self, program: &str, args: &[&str]) -> String {
        self.cluster.ok(
            program,
            &[
                &[
                    "-h",
                    self.cluster.dir.path().to_str().unwrap(),
                    "-U",
                    "postgres",
                ],
                args,
            ]
            .concat(),
        )
    }

    /// A plain copy in the directory `name`, WAL included.
    pub(crate) fn basebackup(&self, name: &str) -> String {
        self.basebackup_with(name, &["-X", "fetch"])
    }

    /// The same with other options.
    pub(crate) fn basebackup_with(&self, name: &str, options: &[&str]) -> String {
        let copy = self.cluster.path(name);
        self.client(
            "pg_basebackup",
            &[&["-D", &copy, "-c", "fast", "-N"], options].concat(),
        );
        copy
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.cluster
            .run("pg_ctl", &["-D", &self.data, "-m", "fast", "-w", "stop"]);
    }
}

/// Paths of all that is below `dir` of `root` and that `pick` leaves of each directory; those of directories end in `/`.
pub(crate) fn walk(
    root: &Path,
    dir: &str,
    pick: &dyn Fn(&[u8], &mut Vec<DirName>),
    found: &mut Vec<String>,
) {
    let kind = |path: &Path| {
        if path.is_dir() {
            FileKind::Directory
        } else {
            FileKind::File
        }
    };
    let entries = fs::read_dir(root.join(dir))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let name = |path: PathBuf| DirName {
        bytes: path.file_name().unwrap().as_bytes().into(),
        kind: kind(&path),
        inode: 0,
    };
    let mut names: Vec<DirName> = entries.map(name).collect();
    pick(dir.as_bytes(), &mut names);
    for name in names {
        let text = String::from_utf8(name.bytes).unwrap();
        let path = if dir.is_empty() {
            text
        } else {
            format!("{dir}/{text}")
        };
        match name.kind {
            FileKind::Directory => {
                walk(root, &path, pick, found);
                found.push(path + "/");
            }
            _ => found.push(path),
        }
    }
}
