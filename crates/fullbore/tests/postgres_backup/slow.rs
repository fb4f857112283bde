//! Backups that are in the middle for as long as a test wants.
//!
//! To standard output, nothing more is read from the cluster than fits the memory until somebody reads on: what is later in
//! the archive was listed by then, but not opened. Into a repository, a limit of the rate makes the time.

use super::{
    args,
    cluster::Cluster,
    runs::{FULLBORE, Ran, names, shell, started},
    servers::wait_until,
};
use std::{
    ffi::OsString,
    fs,
    io::{Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
};

/// The file of `large` is behind those of two other databases, and so much memory holds neither of them.
const LITTLE: [&str; 9] = [
    "--compress",
    "none",
    "--workers",
    "1",
    "--readers",
    "1",
    "--memory",
    "1M",
    "--frame-size=64K",
];

/// A backup to standard output.
pub(crate) struct Slow {
    child: Child,
    read: Vec<u8>,
}

impl Slow {
    /// It began: the server knows, and the first bytes of the archive are there.
    pub(crate) fn of(source: impl IntoIterator<Item = OsString>) -> Self {
        let flags = ["--to", "-"].iter().chain(&LITTLE).map(Into::into);
        let mut child = started(args!["backup"].into_iter().chain(source).chain(flags));
        let mut read = vec![0; 4096];
        if child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut read)
            .is_err()
        {
            panic!(
                "it ended: {}",
                Ran::from(child.wait_with_output().unwrap()).err
            );
        }
        Self { child, read }
    }

    /// Of a cluster that runs.
    pub(crate) fn of_running(cluster: &Cluster) -> Self {
        Self::of(args![cluster.url()])
    }

    /// Read on until it ends; give what it said, and the archive.
    pub(crate) fn end(mut self) -> (Ran, Vec<u8>) {
        let output = self.child.wait_with_output().unwrap();
        self.read.extend(&output.stdout);
        let ran = Ran::from(std::process::Output {
            stdout: Vec::new(),
            ..output
        });
        (ran, self.read)
    }

    /// The same, restored by tar as a cluster that is not started.
    #[track_caller]
    pub(crate) fn end_well(self, cluster: &Cluster) -> Cluster {
        let (ran, archive) = self.end();
        ran.ends_with(0);
        let restored = Cluster::empty(&cluster.version);
        untar(&archive, &restored.data());
        restored
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// As the operator without this program does it.
#[track_caller]
pub(crate) fn untar(archive: &[u8], to: &Path) {
    fs::create_dir(to).unwrap();
    let mut tar = std::process::Command::new("tar");
    let mut tar = tar
        .args(["-xi", "-C"])
        .arg(to)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    tar.stdin.take().unwrap().write_all(archive).unwrap();
    assert!(tar.wait().unwrap().success());
}

/// A backup into `repository` that takes so many seconds to read one table.
pub(crate) fn held_up(cluster: &Cluster, seconds: u32, codec: &str) -> Child {
    let table = cluster.data().join(cluster.file_of("small"));
    let line = "exec strace -f -qq --seccomp-bpf -o /dev/null -P \"$1\" -e trace=read,pread64,preadv2 \
                -e inject=read,pread64,preadv2:delay_enter=${2}000000:when=1 \"${@:3}\"";
    let program = args![
        FULLBORE,
        "backup",
        cluster.url(),
        "--to",
        cluster.path("repository"),
        "--compress",
        codec
    ];
    let mut strace = Command::new("bash");
    let strace = strace
        .arg("-c")
        .args(args![line, "bash", table, seconds.to_string()])
        .args(program);
    strace
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A backup into a repository that has begun to write, and goes on for about ten seconds, of which the processor is hardly used.
pub(crate) fn started_into(repository: &Path, source: impl IntoIterator<Item = OsString>) -> Child {
    let flags = args![
        "--to",
        repository,
        "--workers",
        "1",
        "--compress",
        "zstd:1",
        "--max-rate",
        "4M",
        "--memory",
        "16M"
    ];
    let child = started(args!["backup"].into_iter().chain(source).chain(flags));
    wait_until("something is written", || {
        shell("find \"$1\"/backups -type f -size +0", args![repository])
            .out
            .contains("/s01-")
    });
    child
}

/// Nothing in the repository is listed.
#[track_caller]
pub(crate) fn assert_nothing_is_listed(repository: &Path) {
    let said = super::runs::fullbore(args!["list", repository, "--json"]);
    assert_eq!(said.out, "", "{}", said.err);
    let roots = names(&repository.join("backups"));
    assert!(
        roots.iter().all(|id| !repository
            .join("backups")
            .join(id)
            .join("root.json")
            .exists()),
        "{roots:?}"
    );
}
