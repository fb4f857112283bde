//! Makes repositories of very many backups: real roots by the writer of the format, and short objects in place of segments and pages.
//!
//! Each source has files; a backup finds one of them changed, or none, and refers to the segments that earlier backups stored, as
//! the real program does. Only readers of content notice that segments and pages are short.
//!
//! With the content of a real backup ([`GrownContent`]) each backup can be verified and restored: one that finds a change has all of that
//! content, under its own id, and the others refer to it.

use fullbore_format::{
    digest::Algorithm,
    layout::{MANIFEST, REPOSITORY, ROOT, Repository, backup_id, letters},
    root::{
        BackupOptions, BackupTotals, CodecLevel, EntryName, FORMAT, Live, PageAt, Root, RunStats,
        Segment, SourceInfo,
    },
    seal::seal,
};
use fullbore_repository::{ids::SourceMark, roots::key};
use fullbore_storage::MemoryObjects;
use jiff::{SignedDuration, Timestamp};
use std::{collections::BTreeMap, fs, path::Path};

/// Bytes that stand for each segment, manifest and page.
const SHORT: &[u8] = b"short";
/// Bytes that a root says a segment has.
const SEGMENT_BYTES: u64 = 11_000;

/// The repository to make.
#[derive(Debug, Clone, Copy)]
pub struct Growth {
    pub sources: usize,
    /// Backups of each source.
    pub rounds: usize,
    /// Files of each source; the content of one changes.
    pub files: usize,
    /// One of so many backups finds a change.
    pub changed_one_of: usize,
}

/// The only backup of a repository, whose content all grown backups have.
#[derive(Debug, Clone)]
pub struct GrownContent {
    root: Root,
    /// Its other objects, by their names.
    objects: BTreeMap<String, Vec<u8>>,
}

impl GrownContent {
    /// Reads it from a repository in a directory that is not encrypted.
    pub fn read(repository: &Path) -> Self {
        let mut dirs = fs::read_dir(repository.join("backups")).unwrap();
        let dir = dirs.next().expect("a backup").unwrap();
        assert!(dirs.next().is_none(), "more than one backup");
        let id = dir.file_name().into_string().unwrap();
        let mut objects = BTreeMap::new();
        for file in fs::read_dir(dir.path()).unwrap() {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            objects.insert(name, fs::read(file.path()).unwrap());
        }
        let root = objects.remove(ROOT).expect("a root");
        Self {
            root: Root::of_backup(&id, &root, &id).unwrap(),
            objects,
        }
    }

    /// The bytes of an object under the id of another backup, which the label of a segment has.
    fn bytes_under(&self, id: &str, bytes: &[u8]) -> Vec<u8> {
        let own = self.root.id.as_bytes();
        assert_eq!(own.len(), id.len());
        let mut renamed = bytes.to_vec();
        let is_own = |at: &usize| bytes[*at..].starts_with(own);
        for at in (0..bytes.len()).filter(is_own) {
            renamed[at..at + own.len()].copy_from_slice(id.as_bytes());
        }
        renamed
    }
}

/// The state of one source.
struct GrownSource {
    info: SourceInfo,
    letters: String,
    /// The backup that stored each file.
    stored_by: Vec<usize>,
    /// Ids of its backups.
    ids: Vec<String>,
    /// The backup with the newest page of its own.
    page_of: usize,
}

impl Growth {
    /// Calls `put` with the key and bytes of each object, the oldest backup first.
    pub fn write(&self, put: &mut dyn FnMut(&str, &[u8])) {
        self.write_all(None, put);
    }

    /// As [`Growth::write`], with content that can be verified and restored.
    pub fn write_with(&self, content: &GrownContent, put: &mut dyn FnMut(&str, &[u8])) {
        self.write_all(Some(content), put);
    }

    fn write_all(&self, content: Option<&GrownContent>, put: &mut dyn FnMut(&str, &[u8])) {
        let facts = Repository {
            format: FORMAT,
            id: "growth000000".into(),
            created: "2026-01-01T00:00:00Z".into(),
            ..Repository::default()
        };
        put(REPOSITORY, &seal(&facts).expect("a document"));
        let mut sources: Vec<GrownSource> = (0..self.sources).map(|n| self.source(n)).collect();
        let begin: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let mut number = 0;
        for round in 0..self.rounds {
            for source in &mut sources {
                // One backup in two minutes: 100,000 of them are less than a year.
                let time = begin + SignedDuration::from_secs(120) * number;
                number += 1;
                self.back_up(source, content, (round, time), put);
            }
        }
    }

    fn source(&self, number: usize) -> GrownSource {
        let info = SourceInfo {
            host: format!("host{number}"),
            paths: vec![EntryName(b"/srv".to_vec())],
            contents: true,
        };
        // Letters of an encrypted repository are others; this one is in the clear.
        let letters = SourceMark::Files(&info).letters(&MemoryObjects::new());
        GrownSource {
            info,
            letters,
            stored_by: vec![0; self.files],
            ids: Vec::new(),
            page_of: 0,
        }
    }

    fn back_up(
        &self,
        source: &mut GrownSource,
        content: Option<&GrownContent>,
        (round, time): (usize, Timestamp),
        put: &mut dyn FnMut(&str, &[u8]),
    ) {
        let millis = time.subsec_nanosecond().unsigned_abs() / 1_000_000;
        let last = format!("{}{}", source.letters, letters(round as u64, 2));
        let begun = time.strftime("%Y%m%dT%H%M%SZ").to_string();
        let id = backup_id(&begun, millis, &last);
        let is_changed = round == 0 || round.is_multiple_of(self.changed_one_of);
        source.ids.push(id.clone());
        if round > 0 && is_changed {
            let file = round.wrapping_mul(7919) % self.files;
            source.stored_by[file] = round;
        }
        if is_changed {
            source.page_of = round;
        }
        if let Some(content) = content {
            for (name, bytes) in content.objects.iter().filter(|_| is_changed) {
                put(&key(&id, name), &content.bytes_under(&id, bytes));
            }
            if !is_changed {
                put(&key(&id, MANIFEST), b"");
            }
            let root = root_with(content, source, round, time);
            put(&key(&id, ROOT), &seal(&root).expect("a root"));
            return;
        }
        if is_changed {
            put(&key(&id, "s01-000001.tar.zst"), SHORT);
        }
        put(&key(&id, MANIFEST), if is_changed { SHORT } else { b"" });
        let root = self.root(source, round, time);
        put(&key(&id, ROOT), &seal(&root).expect("a root"));
    }

    fn root(&self, source: &GrownSource, round: usize, time: Timestamp) -> Root {
        let name_of = |other: usize| match other == round {
            true => String::new(),
            false => source.ids[other].clone(),
        };
        let mut live: BTreeMap<usize, u64> = BTreeMap::new();
        for backup in &source.stored_by {
            *live.entry(*backup).or_default() += 1;
        }
        let liveness = live.iter().map(|(backup, files)| Live {
            backup: name_of(*backup),
            stream: 1,
            number: 1,
            frames: *files,
            bytes: 2_000,
            of_bytes: SHORT.len() as u64,
            data_bytes: 2_000,
        });
        let is_own = source.page_of == round;
        let segment = Segment {
            stream: 1,
            number: 1,
            bytes: SHORT.len() as u64,
            frames: 2,
            plain_bytes: 4_608,
            parts: "e4258982cd9912de".into(),
            tape: None,
        };
        let page = PageAt {
            backup: name_of(source.page_of),
            stream: 1,
            entries: self.files as u64,
            manifest_offset: Some(0),
            segment: 1,
            offset: 2_302,
            bytes: SHORT.len() as u64,
            digest: blake3::hash(SHORT).to_hex().to_string(),
            ..PageAt::default()
        };
        Root {
            format: FORMAT,
            id: source.ids[round].clone(),
            tool: "fullbore growth".into(),
            time: time.to_string(),
            finished: time.to_string(),
            boot: "bd0dc8f1-dda9-41f9-848a-55bfcdeb790c".into(),
            source: source.info.clone(),
            options: BackupOptions {
                codec: "zstd".into(),
                level: CodecLevel::Fixed(1),
                frame_bytes: 1 << 20,
                segment_bytes: 1 << 30,
                block_bytes: 1 << 20,
                digest: Algorithm::Blake3,
                chunks: false,
            },
            totals: BackupTotals {
                entries: self.files as u64 + 1,
                files: self.files as u64,
                directories: 1,
                bytes: self.files as u64 * 2_000,
                stored_bytes: if is_own { SEGMENT_BYTES } else { 0 },
                ..BackupTotals::default()
            },
            bases: source
                .ids
                .iter()
                .rev()
                .nth(1)
                .cloned()
                .into_iter()
                .collect(),
            segments: if is_own { vec![segment] } else { Vec::new() },
            pages: vec![page],
            liveness: liveness.collect(),
            run: RunStats::default(),
            ..Root::default()
        }
    }
}

/// The root of a backup that has this content, or refers to the backup that has it.
fn root_with(content: &GrownContent, source: &GrownSource, round: usize, time: Timestamp) -> Root {
    let mut root = content.root.clone();
    root.id = source.ids[round].clone();
    root.time = time.to_string();
    root.finished = time.to_string();
    root.source = source.info.clone();
    if source.page_of != round {
        let base = &source.ids[source.page_of];
        root.bases = vec![base.clone()];
        root.segments = Vec::new();
        root.totals.stored_bytes = 0;
        root.pages
            .iter_mut()
            .for_each(|page| page.backup = base.clone());
        root.liveness
            .iter_mut()
            .for_each(|live| live.backup = base.clone());
    }
    root
}
