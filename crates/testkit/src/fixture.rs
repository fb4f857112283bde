//! Writes small backups, from entries and their content, for tests of everything that reads.

use fullbore_engine::restore::{Restore, Summary};
use fullbore_format::{
    digest::{Algorithm, Digest, crc32c, crc64, hex},
    entry::{ByteRun, Entry, EntryKind, Owner, Time, order},
    error::Error,
    layout::{self, Repository},
    page::{EntryState, Extent, FrameAt, ManifestPage, Record, SegmentId},
    root::{
        BackupOptions, BackupTotals, EntryName, FORMAT, Live, PART_BYTES, PageAt, Root, RunStats,
        Segment, SourceInfo,
    },
    seal::seal,
    segment::{Label, Locator, SERVICE_HEADER_BYTES, SeekTable, Service},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform as platform;
use fullbore_platform::metrics::meter::Meter;
use fullbore_repository::archive::{Archive, Selection};
use fullbore_storage::Storages;
use std::{
    collections::BTreeMap, env, fs, os::unix::fs::MetadataExt, path::Path, process::Command, thread,
};

pub const ID: &str = "20261121T054501Z-k3f9qz";

/// What is to be written.
#[derive(Clone)]
pub struct Fixture {
    pub codec: Codec,
    pub frame_bytes: usize,
    pub page_records: usize,
    pub page_extents: usize,
    pub segment_bytes: usize,
    pub digest: Algorithm,
    pub id: String,
    /// When it began, as RFC 3339.
    pub time: String,
    pub tar_headers: bool,
    pub run: RunStats,
    /// A backup in the same repository, whose content and pages are referred to where they are the same.
    pub base: Option<String>,
    /// Stream, entry, its data without holes, how it was captured.
    pub entries: Vec<(u32, Entry, Vec<u8>, EntryState)>,
}

impl Default for Fixture {
    fn default() -> Self {
        Self {
            codec: Codec::Zstd(1),
            frame_bytes: 4096,
            page_records: 7,
            page_extents: 100,
            segment_bytes: 1 << 20,
            digest: Algorithm::Blake3,
            id: ID.into(),
            time: "2026-11-21T05:45:01Z".into(),
            tar_headers: false,
            run: RunStats::default(),
            base: None,
            entries: Vec::new(),
        }
    }
}

pub fn me() -> Owner {
    let meta = fs::metadata("/proc/self").unwrap();
    use std::os::unix::fs::MetadataExt;
    Owner {
        uid: meta.uid(),
        gid: meta.gid(),
        ..Owner::default()
    }
}

pub fn entry(path: &str, kind: EntryKind, mode: u32) -> Entry {
    let mtime = Time {
        seconds: 1_600_000_000 + path.len() as i64,
        nanos: 123_456_789,
    };
    Entry {
        path: path.into(),
        kind,
        mode,
        owner: me(),
        mtime,
        ..Entry::default()
    }
}

/// A restore of everything in `from` to `to`, as the defaults have it, by two workers.
pub fn plan(from: &Path, to: &Path) -> Restore {
    Restore {
        storages: Storages::default(),
        from: from.to_str().unwrap().into(),
        to: to.into(),
        filter: Default::default(),
        paths: vec![],
        patterns: Default::default(),
        into: fullbore_engine::restore::RestoreInto::Empty,
        keep_going: false,
        numeric_owner: false,
        postgres: Default::default(),
        workers: 2.try_into().unwrap(),
        memory: 1 << 27,
        fetch_words: Vec::new(),
        say_elsewhere: |_| (),
        say_removed: |_| Ok(()),
    }
}

/// Do the plan.
pub fn restore(from: &Path, to: &Path) -> Result<Summary, Error> {
    plan(from, to).run(&Meter::default())
}

/// Everything below `dir` as text, by path: kind, content, mode, owner, time, count of names.
pub fn look(dir: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut stack = vec![dir.to_path_buf()];
    while let Some(path) = stack.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
        let content = match meta.file_type() {
            kind if kind.is_dir() => {
                stack.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
                String::new()
            }
            kind if kind.is_symlink() => format!("{:?}", fs::read_link(&path).unwrap()),
            kind if kind.is_file() && meta.len() < 1 << 27 => {
                blake3::hash(&fs::read(&path).unwrap()).to_string()
            }
            _ => format!("{} bytes", meta.len()),
        };
        let time = (meta.mtime(), meta.mtime_nsec());
        found.insert(
            name,
            format!(
                "{:o} {content} {} {time:?} {}",
                meta.mode(),
                meta.uid(),
                meta.nlink()
            ),
        );
    }
    found
}

/// Bytes that compress a little and differ by file.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state & 0x3f) as u8
        })
        .collect()
}

impl Fixture {
    pub fn put(&mut self, entry: Entry, data: impl Into<Vec<u8>>) -> &mut Self {
        self.entries
            .push((1, entry, data.into(), EntryState::Whole));
        self
    }

    pub fn file(&mut self, path: &str, data: impl Into<Vec<u8>>) -> &mut Self {
        let data = data.into();
        let kind = EntryKind::File {
            size: data.len() as u64,
            map: None,
        };
        self.put(entry(path, kind, 0o644), data)
    }

    pub fn sparse(&mut self, path: &str, size: u64, runs: &[(u64, u64)]) -> &mut Self {
        let runs: Vec<ByteRun> = runs
            .iter()
            .map(|(offset, len)| ByteRun {
                offset: *offset,
                len: *len,
            })
            .collect();
        let data = content(size, runs.iter().map(|run| run.len as usize).sum());
        self.put(
            entry(
                path,
                EntryKind::File {
                    size,
                    map: Some(runs.into()),
                },
                0o600,
            ),
            data,
        )
    }

    pub fn dir(&mut self, path: &str, mode: u32) -> &mut Self {
        self.put(entry(path, EntryKind::Directory, mode), [])
    }

    pub fn symlink(&mut self, path: &str, target: &str) -> &mut Self {
        self.put(entry(path, EntryKind::Symlink(target.into()), 0o777), [])
    }

    pub fn link(&mut self, path: &str, target: &str) -> &mut Self {
        self.put(entry(path, EntryKind::HardLink(target.into()), 0o644), [])
    }

    /// A tree with something of everything an unprivileged user may make.
    pub fn sample() -> Self {
        let mut f = Self::default();
        f.dir("", 0o755)
            .dir("a", 0o750)
            .dir("a/b", 0o500)
            .dir("empty", 0o2755)
            .dir("big", 0o755);
        for i in 0..40 {
            f.file(&format!("a/b/f{i:02}"), content(i, (i * 97) as usize));
        }
        f.file("a/zero", [])
            .file("big/exact", content(90, 8192))
            .file("big/one", content(91, 50_001));
        f.file("big/odd", content(92, 4097))
            .file("a/b.txt", "after the directory");
        f.symlink("a/link", "b/f01")
            .symlink("dangling", "/nowhere/at/all")
            .link("hard", "a/b/f07");
        f.sparse(
            "sparse/holes",
            1 << 30,
            &[(0, 5000), (1 << 20, 9000), (1 << 29, 100)],
        );
        f.sparse("sparse/empty", 1 << 20, &[]).dir("sparse", 0o755);
        f.put(entry("fifo", EntryKind::Fifo, 0o640), []);
        f.put(
            entry("a/suid", EntryKind::File { size: 3, map: None }, 0o4755),
            "abc",
        );
        f
    }

    fn sorted(&self) -> Vec<(u32, Entry, Vec<u8>, EntryState)> {
        let mut entries = self.entries.clone();
        entries.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| order(&a.1.path, &b.1.path)));
        entries
    }

    pub fn write_repository(&self, repository: &Path) -> Root {
        let dir = repository.join(layout::BACKUPS).join(&self.id);
        fs::create_dir_all(&dir).unwrap();
        let facts = Repository {
            format: FORMAT,
            id: "r".into(),
            created: "2026-11-21T05:45:01Z".into(),
            ..Repository::default()
        };
        fs::write(repository.join(layout::REPOSITORY), seal(&facts).unwrap()).unwrap();
        let mut out = Out::new(self, Some(&dir));
        self.write_streams(&mut out);
        fs::write(dir.join(layout::MANIFEST), &out.manifest).unwrap();
        let foreign: Vec<_> = out.base.liveness().collect();
        out.root.liveness.extend(foreign);
        fs::write(dir.join(layout::ROOT), seal(&out.root).unwrap()).unwrap();
        out.root
    }

    pub fn write_archive(&self, path: &Path) -> Root {
        let mut out = Out::new(self, None);
        self.write_streams(&mut out);
        let sealed = seal(&out.root).unwrap();
        let offset = (out.segment.len() + SERVICE_HEADER_BYTES) as u64;
        let tail = [
            Service::Root.frame(&sealed),
            Locator {
                offset,
                len: sealed.len() as u64,
            }
            .frame(),
        ];
        for frame in tail {
            out.segment.extend(&frame);
            out.table.push(frame.len(), 0);
        }
        out.segment.extend(out.table.frame());
        fs::write(path, &out.segment).unwrap();
        out.root
    }

    fn write_streams(&self, out: &mut Out<'_>) {
        let entries = self.sorted();
        let mut stream = 0;
        for (index, (stream_number, entry, data, state)) in entries.iter().enumerate() {
            if *stream_number != stream {
                stream = *stream_number;
                out.begin(stream, 1);
            }
            out.entry(entry, data, state);
            if entries.get(index + 1).is_none_or(|next| next.0 != stream) {
                out.end_stream();
            }
        }
    }
}

/// What is being written.
struct Out<'a> {
    fixture: &'a Fixture,
    dir: Option<&'a Path>,
    root: Root,
    manifest: Vec<u8>,
    segment: Vec<u8>,
    table: SeekTable,
    frames: u64,
    plain_bytes: u64,
    stream: u32,
    number: u32,
    plain: Vec<u8>,
    /// Records of the open frame: index in `page`, inner, len.
    open: Vec<(usize, u32, u32)>,
    page: ManifestPage,
    extents: usize,
    is_incremental: bool,
    base: Base,
}

/// What an earlier backup has: records by path with segments under their full names, and its pages.
#[derive(Default)]
struct Base {
    files: BTreeMap<Vec<u8>, (Record, Vec<SegmentId>)>,
    pages: Vec<(PageAt, Vec<Record>)>,
    sizes: BTreeMap<(String, u32, u32), u64>,
    used: BTreeMap<(String, u32, u32), BTreeMap<u64, u64>>,
}

fn key(id: &SegmentId) -> (String, u32, u32) {
    (id.backup.clone(), id.stream, id.number)
}

impl Base {
    fn open(repository: &Path, id: &str) -> Self {
        let archive =
            Archive::open_backup(&Storages::default().repository_at(repository).unwrap(), id)
                .unwrap();
        let mut base = Self::default();
        let full = |segment: &SegmentId| match &segment.backup[..] {
            "" => SegmentId {
                backup: id.into(),
                ..segment.clone()
            },
            _ => segment.clone(),
        };
        let own = archive
            .root
            .segments
            .iter()
            .map(|s| ((id.to_owned(), s.stream, s.number), s.bytes));
        let live = archive
            .root
            .liveness
            .iter()
            .map(|live| (key(&full(&live.id())), live.of_bytes));
        base.sizes = live.chain(own).collect();
        for item in archive
            .records(&Selection::default(), false)
            .map(Result::unwrap)
        {
            let segments = item
                .extents
                .iter()
                .map(|extent| full(item.segment(&extent.frame)))
                .collect();
            if item.from == 0 && !item.more {
                base.files
                    .insert(item.entry.path.clone(), (Record::clone(&item), segments));
            }
        }
        for (index, page) in archive.root.pages.iter().enumerate() {
            let backup = if page.backup.is_empty() {
                id.to_owned()
            } else {
                page.backup.clone()
            };
            let records = archive.page(index).unwrap().records.clone();
            base.pages.push((
                PageAt {
                    backup,
                    ..page.clone()
                },
                records,
            ));
        }
        base
    }

    fn uses(&mut self, segment: &SegmentId, frame: &FrameAt) {
        self.used
            .entry(key(segment))
            .or_default()
            .insert(frame.offset, frame.stored_len.into());
    }

    fn liveness(&self) -> impl Iterator<Item = Live> + '_ {
        self.used.iter().map(|(id, frames)| Live {
            backup: id.0.clone(),
            stream: id.1,
            number: id.2,
            frames: frames.len() as u64,
            bytes: frames.values().sum(),
            of_bytes: self.sizes[id],
            data_bytes: 0,
        })
    }
}

impl<'a> Out<'a> {
    fn new(fixture: &'a Fixture, dir: Option<&'a Path>) -> Self {
        let options = BackupOptions {
            codec: fixture.codec.name().into(),
            level: fixture.codec.level(),
            frame_bytes: fixture.frame_bytes as u64,
            segment_bytes: fixture.segment_bytes as u64,
            block_bytes: fixture.frame_bytes as u64,
            digest: fixture.digest,
            chunks: false,
        };
        let files = fixture.entries.iter().filter(|e| e.1.is_file());
        let totals = BackupTotals {
            entries: fixture.entries.len() as u64,
            files: files.clone().count() as u64,
            bytes: files.map(|e| e.1.size()).sum(),
            ..BackupTotals::default()
        };
        let root = Root {
            format: FORMAT,
            id: fixture.id.clone(),
            bases: fixture.base.iter().cloned().collect(),
            tool: "fixture".into(),
            time: fixture.time.clone(),
            finished: "2026-11-21T05:45:02Z".into(),
            source: SourceInfo {
                host: "host".into(),
                paths: vec![EntryName(b"/data".to_vec())],
                contents: true,
            },
            options,
            totals,
            run: fixture.run.clone(),
            ..Root::default()
        };
        let open = |id: &String| Base::open(dir.unwrap().parent().unwrap().parent().unwrap(), id);
        Self {
            fixture,
            dir,
            is_incremental: fixture.base.is_some(),
            base: fixture.base.as_ref().map_or_else(Base::default, open),
            root,
            manifest: vec![],
            segment: vec![],
            table: SeekTable::default(),
            frames: 0,
            plain_bytes: 0,
            stream: 0,
            number: 0,
            plain: vec![],
            open: vec![],
            page: ManifestPage::default(),
            extents: 0,
        }
    }

    fn begin(&mut self, stream: u32, number: u32) {
        (self.stream, self.number, self.frames, self.plain_bytes) = (stream, number, 0, 0);
        (self.segment, self.table) = (vec![], SeekTable::default());
        let codec = self.fixture.codec;
        let label = Label {
            format: FORMAT,
            repository: if self.dir.is_some() {
                "r".into()
            } else {
                String::new()
            },
            backup: self.fixture.id.clone(),
            stream,
            number,
            codec: codec.name().into(),
            is_incremental: self.is_incremental,
        };
        let empty = packed(codec, &[]);
        self.table.push(empty.len(), 0);
        self.segment.extend(empty);
        self.service(&label.frame());
    }

    fn service(&mut self, frame: &[u8]) {
        self.table.push(frame.len(), 0);
        self.segment.extend(frame);
    }

    fn id(&self) -> SegmentId {
        SegmentId {
            backup: String::new(),
            stream: self.stream,
            number: self.number,
        }
    }

    fn entry(&mut self, entry: &Entry, data: &[u8], state: &EntryState) {
        let digest = match self.fixture.digest {
            Algorithm::Blake3 => Some(Digest::Blake3(blake3::hash(data).into())),
            Algorithm::Crc32c => Some(Digest::Crc32c(crc32c(data))),
            Algorithm::None => None,
        };
        let digest = digest.filter(|_| entry.is_file() && state.is_stored());
        self.plain.extend([0; 512]);
        self.page.records.push(Record {
            entry: entry.clone(),
            state: state.clone(),
            digest,
            ..Record::default()
        });
        let kept = self
            .base
            .files
            .get(&entry.path)
            .filter(|(known, _)| known.entry == *entry && known.digest == digest);
        if let Some((known, segments)) = kept.cloned() {
            self.keep(&known, &segments);
        } else if data.len() > self.fixture.frame_bytes {
            self.large(entry, data, digest);
        } else if !data.is_empty() {
            self.open.push((
                self.page.records.len() - 1,
                self.plain.len() as u32,
                data.len() as u32,
            ));
            self.extents += 1;
            self.plain.extend(data);
            self.plain.resize(self.plain.len().next_multiple_of(512), 0);
        }
        if self.plain.len() >= self.fixture.frame_bytes {
            self.flush();
        }
        if self.page.records.len() >= self.fixture.page_records
            || self.extents >= self.fixture.page_extents
        {
            self.flush();
            self.end_page();
            if self.segment.len() >= self.fixture.segment_bytes && self.dir.is_some() {
                self.end_segment();
                self.begin(self.stream, self.number + 1);
            }
        }
    }

    /// The last record is one that the base has.
    fn keep(&mut self, known: &Record, segments: &[SegmentId]) {
        let mut extents = known.extents.clone();
        for (extent, segment) in extents.iter_mut().zip(segments) {
            self.base.uses(segment, &extent.frame);
            let index = self.page.segments.iter().position(|known| known == segment);
            extent.frame.segment = index.unwrap_or(self.page.segments.len()) as u32;
            if index.is_none() {
                self.page.segments.push(segment.clone());
            }
        }
        self.extents += extents.len();
        self.page.records.last_mut().unwrap().extents = extents;
    }

    fn large(&mut self, entry: &Entry, data: &[u8], digest: Option<Digest>) {
        self.flush();
        let mut start = 0;
        for chunk in data.chunks(self.fixture.frame_bytes) {
            if self.extents >= self.fixture.page_extents {
                let last = self.page.records.last_mut().unwrap();
                (last.more, last.digest) = (true, None);
                let state = last.state.clone();
                self.end_page();
                self.page.records.push(Record {
                    entry: entry.clone(),
                    state,
                    digest,
                    from: start,
                    ..Record::default()
                });
            }
            self.open
                .push((self.page.records.len() - 1, 0, chunk.len() as u32));
            self.plain.extend(chunk);
            start += chunk.len() as u64;
            if start == data.len() as u64 {
                self.plain.resize(self.plain.len().next_multiple_of(512), 0);
            }
            self.extents += 1;
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.plain.is_empty() {
            return;
        }
        let id = self.id();
        let index = self.page.segments.iter().position(|known| *known == id);
        if index.is_none() {
            self.page.segments.push(id);
        }
        let stored = packed(self.fixture.codec, &self.plain);
        let frame = FrameAt {
            segment: index.unwrap_or(self.page.segments.len() - 1) as u32,
            offset: self.segment.len() as u64,
            stored_len: stored.len() as u32,
            plain_len: self.plain.len() as u32,
        };
        for (record, inner, len) in self.open.drain(..) {
            self.page.records[record]
                .extents
                .push(Extent { frame, inner, len });
        }
        self.table.push(stored.len(), self.plain.len());
        self.segment.extend(stored);
        self.frames += 1;
        self.plain_bytes += self.plain.len() as u64;
        self.root.totals.plain_bytes += self.plain.len() as u64;
        self.plain.clear();
    }

    fn end_page(&mut self) {
        let page = std::mem::take(&mut self.page);
        self.extents = 0;
        if page.records.is_empty() {
            return;
        }
        let same = |records: &[Record]| {
            let identity = |record: &Record| (record.entry.clone(), record.digest, record.from);
            records
                .iter()
                .map(identity)
                .eq(page.records.iter().map(identity))
        };
        let extents = page.records.iter().flat_map(|record| &record.extents);
        let foreign = extents
            .map(|extent| &page.segments[extent.frame.segment as usize])
            .all(|id| !id.backup.is_empty());
        if let Some((place, _)) = self
            .base
            .pages
            .iter()
            .find(|(_, records)| foreign && same(records))
        {
            self.root.pages.push(place.clone());
            return;
        }
        let bytes = page.encode().unwrap();
        self.root.pages.push(PageAt {
            backup: String::new(),
            stream: self.stream,
            late: false,
            first: EntryName(page.records[0].entry.path.clone()),
            entries: page.records.len() as u64,
            manifest_offset: self.dir.map(|_| self.manifest.len() as u64),
            segment: self.number,
            offset: (self.segment.len() + SERVICE_HEADER_BYTES) as u64,
            bytes: bytes.len() as u64,
            digest: hex(blake3::hash(&bytes).as_bytes()),
        });
        self.service(&Service::Page.frame(&bytes));
        self.manifest.extend(&bytes);
    }

    fn end_segment(&mut self) {
        if let Some(dir) = self.dir {
            let name = layout::segment(self.stream, self.number, self.fixture.codec.suffix());
            self.segment.extend(self.table.frame());
            fs::write(dir.join(&name), &self.segment).unwrap();
        }
        let parts = self
            .segment
            .chunks(PART_BYTES as usize)
            .map(|part| format!("{:016x}", crc64(part)))
            .collect();
        self.root.liveness.push(Live {
            stream: self.stream,
            number: self.number,
            frames: self.frames,
            of_bytes: self.segment.len() as u64,
            ..Live::default()
        });
        self.root.totals.stored_bytes += self.segment.len() as u64;
        self.root.segments.push(Segment {
            stream: self.stream,
            number: self.number,
            bytes: self.segment.len() as u64,
            frames: self.frames,
            plain_bytes: self.plain_bytes,
            parts,
            tape: None,
        });
    }

    fn end_stream(&mut self) {
        self.flush();
        self.end_page();
        // The two zero blocks at the end of a tar.
        self.plain.extend([0; 1024]);
        self.flush();
        self.page = ManifestPage::default();
        self.end_segment();
    }
}

pub fn packed(codec: Codec, plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    codec
        .compressor()
        .unwrap()
        .compress(plain, &mut out)
        .unwrap();
    out
}

/// Runs the current test once more in a process of its own, without tricks; in that process it does nothing.
pub fn once_more_without_tricks() {
    if !platform::tricks() {
        return;
    }
    let thread = thread::current();
    let name = thread.name().unwrap(); // the harness names the thread after the test
    let again = Command::new(env::current_exe().unwrap())
        .args([name, "--exact"])
        .env("FULLBORE_NO_TRICKS", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(
        again.status.success() && said.contains("1 passed"),
        "{said}"
    );
}
