//! Segments that no server wrote: a header, and content that depends on a seed.

use super::{
    args,
    runs::{Ran, fullbore, noise, shell},
};
use fullbore_format::{
    digest::crc32c,
    wal::{SegmentName, WalDigester, WalRunIndex, pack_segment, run_object},
};
use std::{ffi::OsString, fs, path::PathBuf};
use tempfile::TempDir;

/// Bytes of a segment here: the smallest that a server can have.
const BYTES: usize = 1 << 20;

/// The system that these segments are of.
pub(crate) const SYSTEM: &str = "7430123456789012345";

/// The files of a server that archives, and a repository.
pub(crate) struct MadeServer {
    dir: TempDir,
}

/// The name of a segment of a timeline.
pub(crate) fn name(timeline: u32, number: u32) -> String {
    format!("{timeline:08X}{:08X}{number:08X}", 0)
}

/// A segment of this place.
pub(crate) fn segment(timeline: u32, number: u32, seed: u64) -> Vec<u8> {
    let mut content = noise(seed, BYTES / 16).repeat(16);
    let start = u64::from(number) * BYTES as u64;
    let system: u64 = SYSTEM.parse().unwrap();
    content[0..2].copy_from_slice(&0xD118_u16.to_ne_bytes());
    content[2..4].copy_from_slice(&6_u16.to_ne_bytes());
    content[4..8].copy_from_slice(&timeline.to_ne_bytes());
    content[8..16].copy_from_slice(&start.to_ne_bytes());
    content[24..32].copy_from_slice(&system.to_ne_bytes());
    content[32..36].copy_from_slice(&(BYTES as u32).to_ne_bytes());
    content
}

/// A segment with records that are valid, and these bytes behind them.
pub(crate) fn segment_of_records(
    timeline: u32,
    number: u32,
    bodies: &[&[u8]],
    behind: u8,
) -> Vec<u8> {
    let mut content = segment(timeline, number, 0);
    content[40..].fill(0);
    let mut index = 40;
    let switch: &[u8] = &[];
    for body in bodies.iter().chain([&switch]) {
        let mut record = vec![0; 24];
        record[..4].copy_from_slice(&((24 + body.len()) as u32).to_le_bytes());
        (record[16], record[17]) = if body.is_empty() { (0x40, 0) } else { (0, 10) };
        let sum = crc32c(&[body, &record[..20]].concat());
        record[20..].copy_from_slice(&sum.to_le_bytes());
        record.extend(*body);
        content[index..index + record.len()].copy_from_slice(&record);
        index = (index + record.len()).next_multiple_of(8);
    }
    content[BYTES / 2..].fill(behind);
    content
}

/// The object with which a host archives this segment: its key, and its bytes.
pub(crate) fn object_of_host(
    host: &str,
    system: &str,
    segment: &str,
    content: &[u8],
) -> (String, Vec<u8>) {
    let name = SegmentName::parse(segment).unwrap();
    let index = WalRunIndex {
        system: system.to_owned(),
        segment_bytes: content.len() as u64,
        host: host.to_owned(),
        stored: 1_700_000_000,
        ..WalRunIndex::default()
    };
    let packed = pack_segment(name, content, false, 1).unwrap();
    let (run, object) = run_object(index, &[packed], false, &WalDigester::plain()).unwrap();
    (run.to_string(), object)
}

impl MadeServer {
    /// Archives a segment as another host does it.
    pub(crate) fn store_as(&self, host: &str, segment: &str, content: &[u8]) {
        let (key, object) = object_of_host(host, SYSTEM, segment, content);
        let path = self.repository().join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, object).unwrap();
    }

    pub(crate) fn new() -> Self {
        let server = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fullbore(args!["init", server.repository()]).ends_with(0);
        server.make_wal("pg_wal");
        server
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.path("repository")
    }

    /// A directory with WAL: of a server, or of another one.
    pub(crate) fn make_wal(&self, dir: &str) {
        fs::create_dir_all(self.path(dir).join("archive_status")).unwrap();
    }

    /// Segments that wait to be archived.
    pub(crate) fn write(
        &self,
        dir: &str,
        timeline: u32,
        numbers: impl IntoIterator<Item = u32>,
        seed: u64,
    ) {
        for number in numbers {
            let name = name(timeline, number);
            let content = segment(timeline, number, seed + u64::from(number));
            fs::write(self.path(dir).join(&name), content).unwrap();
            fs::write(
                self.path(dir).join(format!("archive_status/{name}.ready")),
                "",
            )
            .unwrap();
        }
    }

    pub(crate) fn push_args(&self, dir: &str, file: &str, more: &[&str]) -> Vec<OsString> {
        let file = self.path(dir).join(file);
        let line = args![
            "wal",
            "push",
            file,
            "--to",
            self.repository(),
            "--system",
            SYSTEM,
            "--no-serve"
        ];
        line.into_iter()
            .chain(more.iter().map(Into::into))
            .collect()
    }

    pub(crate) fn push(&self, file: &str) -> Ran {
        fullbore(self.push_args("pg_wal", file, &[]))
    }

    pub(crate) fn push_from(&self, dir: &str, file: &str) -> Ran {
        fullbore(self.push_args(dir, file, &[]))
    }

    pub(crate) fn get(&self, file: &str, more: &[&str]) -> Ran {
        let target = self.path("fetched");
        let _ = fs::remove_file(&target);
        let line = args![
            "wal",
            "get",
            file,
            target,
            "--from",
            self.repository(),
            "--system",
            SYSTEM,
            "--alone"
        ];
        fullbore(line.into_iter().chain(more.iter().map(Into::into)))
    }

    pub(crate) fn fetched(&self) -> Vec<u8> {
        fs::read(self.path("fetched")).unwrap()
    }

    /// The files of the repository that hold WAL, by their names.
    pub(crate) fn objects(&self) -> Vec<String> {
        let found = shell(
            "cd \"$1\" && find wal -type f 2>/dev/null | sort",
            args![self.repository()],
        );
        found.out.lines().map(str::to_owned).collect()
    }

    pub(crate) fn check(&self) -> Ran {
        fullbore(args!["wal", "check", self.repository()])
    }
}
