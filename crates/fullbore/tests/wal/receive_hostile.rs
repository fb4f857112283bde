//! A server that sends what no server sends: errors, and nothing wrong is stored.

use super::{
    args,
    made::{SYSTEM, segment},
    runs::{self, command, fullbore},
};
use std::{
    fs,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

/// What a made server says of itself, and sends.
#[derive(Clone)]
struct MadeAnswers {
    system: String,
    timeline: String,
    lsn: String,
    segment_size: String,
    restart: String,
    /// WAL from the second segment on.
    wal: Vec<u8>,
    /// Where it says that this WAL is.
    wal_start: u64,
}

const MIB: u64 = 1 << 20;

impl MadeAnswers {
    fn good() -> Self {
        Self {
            system: SYSTEM.to_owned(),
            timeline: "1".to_owned(),
            lsn: "0/280000".to_owned(),
            segment_size: "1MB".to_owned(),
            restart: "0/100028".to_owned(),
            wal: with_pages(segment(1, 1, 5)),
            wal_start: MIB,
        }
    }

    /// Answers connections at the socket of this directory, until the process of the test ends.
    fn serve(self, dir: &Path) {
        let listener = UnixListener::bind(dir.join(".s.PGSQL.5432")).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let answers = self.clone();
                thread::spawn(move || answers.answer(stream.unwrap()));
            }
        });
    }

    fn answer(&self, mut stream: UnixStream) -> Option<()> {
        let mut length = [0; 4];
        stream.read_exact(&mut length).ok()?;
        stream
            .read_exact(&mut vec![0; u32::from_be_bytes(length) as usize - 4])
            .ok()?;
        let mut hello = message(b'R', &[0; 4]);
        hello.extend(message(b'S', b"server_version\x0018.0\x00"));
        hello.extend(message(b'Z', b"I"));
        stream.write_all(&hello).ok()?;
        loop {
            let mut head = [0; 5];
            stream.read_exact(&mut head).ok()?;
            let len = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4;
            let mut body = vec![0; len];
            stream.read_exact(&mut body).ok()?;
            let sql = String::from_utf8_lossy(&body).into_owned();
            let said = match &sql {
                sql if sql.starts_with("IDENTIFY") => {
                    row(&[&self.system, &self.timeline, &self.lsn])
                }
                sql if sql.starts_with("SHOW") => row(&[&self.segment_size]),
                sql if sql.starts_with("READ_REPL") => row(&["physical", &self.restart, "1"]),
                sql if sql.starts_with("TIMELINE") => row(&["x", &"9".repeat(100_000)]),
                sql if sql.starts_with("START") => self.stream(),
                _ => continue,
            };
            stream.write_all(&said).ok()?;
        }
    }

    fn stream(&self) -> Vec<u8> {
        let mut said = message(b'W', &[0, 0, 0]);
        for (offset, bytes) in self.wal.chunks(100_000).enumerate() {
            let start = self.wal_start.wrapping_add(offset as u64 * 100_000);
            let mut body = vec![b'w'];
            body.extend(start.to_be_bytes());
            // The segment is the server's last.
            body.extend(start.wrapping_add(bytes.len() as u64).to_be_bytes());
            body.extend([0; 8]);
            body.extend(bytes);
            said.extend(message(b'd', &body));
        }
        said
    }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((body.len() as u32 + 4).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn row(columns: &[&str]) -> Vec<u8> {
    let mut body = (columns.len() as u16).to_be_bytes().to_vec();
    for column in columns {
        body.extend((column.len() as u32).to_be_bytes());
        body.extend(column.as_bytes());
    }
    let mut said = message(b'D', &body);
    said.extend(message(b'C', b"x\0"));
    said.extend(message(b'Z', b"I"));
    said
}

/// A segment whose pages have headers.
fn with_pages(mut content: Vec<u8>) -> Vec<u8> {
    content[36..40].copy_from_slice(&8192_u32.to_ne_bytes());
    let start = u64::from_ne_bytes(content[8..16].try_into().unwrap());
    for offset in (8192..content.len()).step_by(8192) {
        let magic = [content[0], content[1]];
        content[offset..offset + 2].copy_from_slice(&magic);
        content[offset + 8..offset + 16].copy_from_slice(&(start + offset as u64).to_ne_bytes());
    }
    content
}

fn started(dir: &Path) -> Child {
    let repository = dir.join("repository");
    fullbore(args!["init", repository]).ends_with(0);
    let url = format!("postgres:///postgres?user=postgres&host={}", dir.display());
    let line = args![
        "wal", "receive", url, "--to", repository, "--slot", "r1", "--sync"
    ];
    let mut receiver = command(line);
    receiver.stdout(Stdio::null()).stderr(Stdio::piped());
    receiver.spawn().unwrap()
}

fn objects(dir: &Path) -> Vec<String> {
    let found = runs::shell(
        "find \"$1\"/repository/wal -type f 2>/dev/null | sort",
        args![dir],
    );
    found.out.lines().map(str::to_owned).collect()
}

#[test]
fn a_server_that_lies_stores_nothing() {
    let good = MadeAnswers::good;
    let changed_answers = |change: &dyn Fn(&mut MadeAnswers)| {
        let mut answers = good();
        change(&mut answers);
        answers
    };
    let cases: [(&str, MadeAnswers); 11] = [
        (
            "no number",
            changed_answers(&|made| made.system = "../x".into()),
        ),
        (
            "timeline 0",
            changed_answers(&|made| made.timeline = "0".into()),
        ),
        (
            "no server reaches",
            changed_answers(&|made| made.lsn = "FFFFFFFF/FFFFFFFF".into()),
        ),
        (
            "no server reaches",
            changed_answers(&|made| made.restart = "FFFFFFFF/FFFFFFFF".into()),
        ),
        (
            "segment size",
            changed_answers(&|made| made.segment_size = "3MB".into()),
        ),
        (
            "history",
            changed_answers(&|made| made.timeline = "2".into()),
        ),
        ("WAL of", changed_answers(&|made| made.wal_start = 0)),
        (
            "WAL of",
            changed_answers(&|made| made.wal_start = u64::MAX - 9),
        ),
        ("is of system", changed_answers(&|made| made.wal[24] ^= 1)),
        (
            "segments have",
            changed_answers(&|made| {
                made.wal[32..36].copy_from_slice(&(2 * MIB as u32).to_ne_bytes())
            }),
        ),
        (
            "not of that place",
            changed_answers(&|made| made.wal[81928] ^= 1),
        ),
    ];
    for (words, answers) in cases {
        let dir = tempfile::tempdir().unwrap();
        answers.serve(dir.path());
        let output = started(dir.path()).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        assert!(matches!(code, Some(1 | 4)), "{words}: {code:?} {said}");
        assert!(said.contains(words), "{words}: {said}");
        assert_eq!(objects(dir.path()), [""; 0], "{words}");
    }
}

#[test]
fn what_a_made_server_sends_is_stored_as_a_segment_and_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let mut answers = MadeAnswers::good();
    let more = with_pages(segment(1, 2, 9));
    answers.wal.extend(&more[..500_000]);
    let whole = answers.wal[..MIB as usize].to_vec();
    answers.serve(dir.path());
    let mut receiver = started(dir.path());
    let begun = Instant::now();
    // An object that is being written has another ending.
    let has = |objects: &[String], part: &str| {
        let mut stored = objects.iter().filter(|key| key.ends_with(".zst"));
        stored.any(|key| key.contains(part))
    };
    let is_there = |objects: &[String]| has(objects, "-01-") && has(objects, "-0007a120-");
    while !is_there(&objects(dir.path())) {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{:?}",
            objects(dir.path())
        );
        thread::sleep(Duration::from_millis(20));
    }
    receiver.kill().unwrap();
    receiver.wait().unwrap();
    let (repository, target) = (dir.path().join("repository"), dir.path().join("to"));
    let get = |name: &str| {
        let line = args!["wal", "get", name, target, "--from", repository, "--alone"];
        fullbore(line.into_iter().chain(args!["--system", SYSTEM]))
    };
    get("000000010000000000000001").ends_with(0);
    assert!(fs::read(&target).unwrap() == whole);
    get("000000010000000000000002").ends_with(0);
    let mut tail = more[..500_000].to_vec();
    tail.resize(MIB as usize, 0);
    assert!(
        fs::read(&target).unwrap() == tail,
        "the beginning of the segment, and zeros"
    );
    get("000000010000000000000003").ends_with(1);
    // zstd and tar read the pieces, too.
    let plain = runs::shell(
        "for piece in \"$1\"/wal/*/00000001/tail/*; do zstd -dc \"$piece\" | tar -xO; done | cmp - <(head -c 500000 \"$2\")",
        args![repository, target],
    );
    plain.ends_with(0);
    // A later segment makes the beginning a gap.
    let wal = dir.path().join("pg_wal");
    fs::create_dir_all(wal.join("archive_status")).unwrap();
    let later = wal.join("000000010000000000000004");
    fs::write(&later, segment(1, 4, 3)).unwrap();
    let push = args![
        "wal",
        "push",
        later,
        "--to",
        repository,
        "--system",
        SYSTEM,
        "--no-serve"
    ];
    fullbore(push).ends_with(0);
    get("000000010000000000000002").ends_with(126);
    let listed = fullbore(args!["wal", "list", repository, "--json"]).json();
    assert_eq!(
        listed[0]["gaps"][0]["first_segment"], "000000010000000000000002",
        "{listed:?}"
    );
}
