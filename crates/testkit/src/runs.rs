//! Runs the real program, makes trees and compares them, for tests from the outside.

use crate::{schema, shared};
use rustix::fs::{CWD, FileType, Mode, SeekFrom, Timespec, Timestamps, XattrFlags};
use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    fmt,
    fs::{self, File},
    io::{Read, Write},
    os::{
        fd::AsRawFd,
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::LazyLock,
};

pub const FULLBORE: &str = env!("FULLBORE_PROGRAM");

/// What a run said, and how it ended; -1 if it was killed.
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}

impl Ran {
    #[track_caller]
    pub fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "\n{}{}", self.out, self.err);
        self
    }

    /// The objects it printed, one a line, each as the schema says.
    #[track_caller]
    pub fn json(&self) -> Vec<serde_json::Value> {
        let lines = self.out.lines();
        let lines: Vec<_> = lines
            .map(|line| serde_json::from_str(line).expect(line))
            .collect();
        for line in &lines {
            schema::check_line(None, line).unwrap_or_else(|why| panic!("{line}:\n{why}"));
        }
        lines
    }

    /// Ended by an error, which is said once, after `error: `.
    #[track_caller]
    pub fn has_one_error(self, words: &str) -> Self {
        let errors = self
            .err
            .lines()
            .filter(|line| line.starts_with("error: "))
            .count();
        assert_eq!(errors, 1, "{}", self.err);
        assert!(
            self.err.contains(words),
            "{words:?} is not in: {}",
            self.err
        );
        self
    }
}

pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I) -> Vec<OsString> {
    args.into_iter()
        .map(|arg| arg.as_ref().to_owned())
        .collect()
}

/// Arguments of any kind that names something.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => {
        [$(::std::ffi::OsString::from(::std::convert::AsRef::<::std::ffi::OsStr>::as_ref(&$arg))),*]
    };
}

pub fn command(args: impl IntoIterator<Item = OsString>) -> Command {
    let mut command = Command::new(FULLBORE);
    command.args(args).stdin(Stdio::null());
    command.env("FULLBORE_STATE_DIR", state_dir());
    command
}

/// What the program remembers of repositories during this process.
pub fn state_dir() -> &'static Path {
    static DIR: LazyLock<PathBuf> =
        LazyLock::new(|| shared::directory().join(format!("state-{}", std::process::id())));
    &DIR
}

/// Writes a file that only its owner can read, such as a key.
pub fn write_private(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    write(&path, bytes);
    set_mode(path.as_ref(), 0o600);
}

pub fn fullbore(args: impl IntoIterator<Item = OsString>) -> Ran {
    let args: Vec<OsString> = args.into_iter().collect();
    let verb = args
        .first()
        .and_then(|verb| verb.to_str().map(ToOwned::to_owned));
    let is_json = args.iter().any(|word| word == "--json");
    let ran: Ran = command(args).output().unwrap().into();
    if let Some(verb) = verb.filter(|verb| is_json && schema::verbs().contains(&&verb[..])) {
        check_lines(&verb, &ran.out);
    }
    ran
}

/// The objects among the lines are as the schema says for the verb.
fn check_lines(verb: &str, out: &str) {
    for line in out.lines().filter(|line| line.starts_with('{')) {
        let object = serde_json::from_str(line).expect(line);
        schema::check_line(Some(verb), &object).unwrap_or_else(|why| panic!("{line}:\n{why}"));
    }
}

/// A run with something on its standard input.
pub fn fed(args: impl IntoIterator<Item = OsString>, input: &[u8]) -> Output {
    let mut child = started(args);
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input)); // it may end before it has read all
        child.wait_with_output().unwrap()
    })
}

/// A run under strace, which tampers with its system calls as `inject` says; `only` with those on that file.
pub fn tampered(
    inject: &str,
    only: Option<&Path>,
    args: impl IntoIterator<Item = OsString>,
) -> Ran {
    tampered_in(state_dir(), inject, only, args)
}

/// As [`tampered`], with another state directory.
pub fn tampered_in(
    state: &Path,
    inject: &str,
    only: Option<&Path>,
    args: impl IntoIterator<Item = OsString>,
) -> Ran {
    let mut command = Command::new("strace");
    command.env("FULLBORE_STATE_DIR", state);
    command.args([
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        &format!("inject={inject}"),
    ]);
    command.args(
        only.into_iter()
            .flat_map(|file| [OsStr::new("-P"), file.as_os_str()]),
    );
    command.arg(FULLBORE).args(args).output().unwrap().into()
}

/// A run that goes on, with pipes all around.
pub fn started(args: impl IntoIterator<Item = OsString>) -> Child {
    command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A line of shell; `$1` and so on are `args`.
pub fn shell(line: &str, args: impl IntoIterator<Item = OsString>) -> Ran {
    let mut command = Command::new("bash");
    command
        .args(["-o", "pipefail", "-c", line, "bash"])
        .args(args)
        .stdin(Stdio::null());
    command.output().unwrap().into()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn has(program: &str) -> bool {
    shell("command -v \"$1\"", args![program]).code == 0
}

/// Say why a test does nothing, unless `there` is; give `there`.
pub fn or_skip(there: bool, why: &str) -> bool {
    if !there {
        eprintln!("skipped: {why}");
    }
    there
}

pub fn temp() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("fullbore")
        .tempdir()
        .unwrap()
}

/// Bytes that no codec makes smaller, another series for each seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut out);
    out
}

/// Bytes that compress to about a third.
pub fn text(seed: u64, len: usize) -> Vec<u8> {
    noise(seed, len.div_ceil(2))
        .iter()
        .flat_map(|byte| [b"etaoin shrdlucmf"[usize::from(byte & 15)], b' '])
        .take(len)
        .collect()
}

/// Everything there is to know about one object of a tree.
#[derive(PartialEq, Eq, Clone)]
pub struct Node {
    pub kind: String,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, i64),
    pub size: u64,
    pub digest: String,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// The first name of the same file.
    pub first: Vec<u8>,
    /// Where it has data.
    pub data: Vec<(u64, u64)>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            mode,
            owner,
            mtime,
            size,
            digest,
            xattrs,
            first,
            data,
        } = self;
        let first = String::from_utf8_lossy(first);
        write!(
            f,
            "{kind} {mode:04o} {owner:?} {mtime:?} {size} {digest:.8} {xattrs:?} = {first:?} {data:?}"
        )
    }
}

pub type Shape = BTreeMap<Vec<u8>, Node>;

/// All of the tree below `dir`, `dir` itself as the empty path. Paths may be of any length.
pub fn shape(dir: &Path) -> Shape {
    let (mut shape, mut firsts) = (Shape::new(), HashMap::new());
    look(dir, b"", &mut shape, &mut firsts);
    shape
}

fn look(at: &Path, path: &[u8], shape: &mut Shape, firsts: &mut HashMap<(u64, u64), Vec<u8>>) {
    let meta = fs::symlink_metadata(at).unwrap();
    let mut node = node(at, &meta);
    if !meta.is_dir() {
        // Links of what holds no content are not kept together.
        let first = firsts
            .entry((meta.dev(), meta.ino()))
            .or_insert_with(|| path.to_vec());
        node.first = if meta.is_file() {
            first.clone()
        } else {
            path.to_vec()
        };
    }
    shape.insert(path.to_vec(), node);
    if meta.is_dir() {
        let dir = File::open(at).unwrap();
        let base = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        let mut names: Vec<_> = fs::read_dir(&base)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        for name in names {
            let below = if path.is_empty() {
                name.as_bytes().to_vec()
            } else {
                [path, name.as_bytes()].join(&b'/')
            };
            look(&base.join(&name), &below, shape, firsts);
        }
    }
}

fn node(at: &Path, meta: &fs::Metadata) -> Node {
    let kind = meta.file_type();
    let (major, minor) = (
        rustix::fs::major(meta.rdev()),
        rustix::fs::minor(meta.rdev()),
    );
    let said = match () {
        () if kind.is_file() => "file".to_owned(),
        () if kind.is_dir() => "directory".to_owned(),
        () if kind.is_symlink() => format!("symlink {:?}", fs::read_link(at).unwrap()),
        () if kind.is_fifo() => "fifo".to_owned(),
        () if kind.is_socket() => "socket".to_owned(),
        () if kind.is_char_device() => format!("char {major}:{minor}"),
        () => format!("block {major}:{minor}"),
    };
    let (digest, data) = if kind.is_file() {
        content(at, meta.len())
    } else {
        Default::default()
    };
    Node {
        kind: said,
        mode: meta.mode() & 0o7777,
        owner: (meta.uid(), meta.gid()),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        size: if kind.is_file() { meta.len() } else { 0 },
        digest,
        xattrs: xattrs(at),
        first: Vec::new(),
        data,
    }
}

/// Digest of the data, and where it is; in whole blocks, since that is what a file system keeps.
fn content(at: &Path, size: u64) -> (String, Vec<(u64, u64)>) {
    let Ok(mut file) = File::open(at) else {
        return ("unreadable".into(), Vec::new());
    };
    let (mut hasher, mut data, mut begin) = (blake3::Hasher::new(), Vec::new(), 0);
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(begin)) {
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap();
        rustix::fs::seek(&file, SeekFrom::Start(start)).unwrap();
        std::io::copy(&mut (&mut file).take(end - start), &mut hasher).unwrap();
        data.push((start, end.min(size)));
        begin = end;
    }
    (hasher.finalize().to_string(), data)
}

fn xattrs(at: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut names, mut value) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let len = rustix::fs::llistxattr(at, &mut names[..]).unwrap_or(0);
    let names = names[..len]
        .split(|c| *c == 0)
        .filter(|name| !name.is_empty());
    let stat_of = |name: &[u8]| {
        let len = rustix::fs::lgetxattr(at, name, &mut value[..]).unwrap();
        (
            String::from_utf8_lossy(name).into_owned(),
            value[..len].to_vec(),
        )
    };
    names.map(stat_of).collect()
}

/// The two trees are the same, or the test fails and says where they are not.
#[track_caller]
pub fn assert_same(before: &Shape, after: &Shape, case: &str) {
    let differences = differences(before, after);
    assert!(
        differences.is_empty(),
        "{case}:\n{}",
        differences.join("\n")
    );
}

pub fn differences(before: &Shape, after: &Shape) -> Vec<String> {
    let paths: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let line = |path: &Vec<u8>| {
        format!(
            "{:?}:\n  {:?}\n  {:?}",
            OsStr::from_bytes(path),
            before.get(path),
            after.get(path)
        )
    };
    paths
        .into_iter()
        .filter(|path| before.get(*path) != after.get(*path))
        .take(20)
        .map(line)
        .collect()
}

pub fn set_mtime(path: &Path, seconds: i64, nanos: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanos as _,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

pub fn set_xattr(path: &Path, name: &str, value: &[u8]) -> bool {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).is_ok()
}

pub fn make_fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    let path = path.as_ref();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(path)
        .unwrap()
        .write_all(bytes.as_ref())
        .unwrap();
}

/// A small tree with something of everything an ordinary user may make.
pub fn sample(dir: &Path) {
    for i in 0..30 {
        write(
            dir.join(format!("a/b/f{i:02}")),
            text(i, (i * i * 11) as usize),
        );
    }
    write(dir.join("large"), noise(1, 2_500_000));
    write(dir.join("words"), text(2, 1_200_001));
    write(dir.join("empty"), "");
    fs::create_dir_all(dir.join("no/thing")).unwrap();
    fs::hard_link(dir.join("words"), dir.join("a/words too")).unwrap();
    std::os::unix::fs::symlink("b/f03", dir.join("a/link")).unwrap();
    std::os::unix::fs::symlink("/nowhere", dir.join("dangling")).unwrap();
    make_fifo(&dir.join("fifo"));
    write(
        dir.join("a")
            .join(OsString::from_vec(b"\xff\xfe \n\"'\\".to_vec())),
        "any bytes",
    );
    let holes = File::create(dir.join("holes")).unwrap();
    holes.set_len(40 << 20).unwrap();
    for (offset, seed) in [(4096u64, 3u64), (1 << 20, 4), (30 << 20, 5)] {
        std::os::unix::fs::FileExt::write_all_at(&holes, &noise(seed, 9000), offset).unwrap();
    }
    set_mode(&dir.join("empty"), 0o4755);
    set_mode(&dir.join("no"), 0o1777);
    set_mtime(&dir.join("words"), -86_401, 999_999_999);
    set_mtime(&dir.join("a/link"), 1_000_000_000, 1);
    set_mtime(&dir.join("a"), 1_234_567_890, 123_456_789);
    set_mtime(dir, 1_400_000_000, 5);
}

/// The segments of the only backup of a repository, in order.
pub fn segments(repository: &Path) -> Vec<PathBuf> {
    let backup = only(&repository.join("backups"));
    let mut names: Vec<_> = fs::read_dir(backup)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.retain(|path| {
        path.file_name().unwrap().as_bytes().starts_with(b"s0")
            && path.extension() != Some(OsStr::new("manifest"))
    });
    names.sort();
    names
}

/// The only object in a directory.
pub fn only(dir: &Path) -> PathBuf {
    let all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

/// Names in a directory; none if it is not there.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Something that is mounted, until this goes.
pub struct Mount(PathBuf);

impl Mount {
    /// A tmpfs; `None`, said, if that is not permitted.
    pub fn tmpfs(at: &Path, size: &str) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let ran = shell(
            "mount -t tmpfs -o size=$2,mode=755 tmpfs \"$1\"",
            args![at, size],
        );
        or_skip(ran.code == 0, "no tmpfs can be mounted here").then(|| Self(at.to_owned()))
    }

    /// What somebody has mounted.
    pub fn at(at: &Path) -> Self {
        Self(at.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        shell("umount -l \"$1\"", args![self.0]);
    }
}
