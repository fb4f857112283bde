//! A PostgreSQL cluster as a source.
//!
//! The server is told when the backup begins and ends, through one session that is held throughout; its files are read
//! directly, in parallel, as any tree is. What is known only at the end comes as late files: `backup_label`,
//! `tablespace_map`, `global/pg_control`, the WAL from start to stop, and PostgreSQL's own `backup_manifest`.
//! If the session is lost, or the server promoted, the backup is void and nothing is committed (rules 2, 28).

use super::{
    archive,
    check::PageCheck,
    conninfo::Params,
    control::{self, Control},
    late::Late,
    layout::Layout,
    lsn::{Lsn, segment_name},
    manifest::{Manifest, WalRange},
    relation::SEGMENT_BLOCKS,
    session::{Facts, Held, Session, Stopped},
};
use crate::{
    error::{Error, Kind, Result, quoted},
    format::{
        digest::crc32c,
        entry::{Path, order},
        page::{Record, State},
        root,
    },
    frame::{Buf, Frame, Scanned, Slice},
    platform::{Tricks, walk},
    source::{
        Source, Stream,
        tree::{Rules, Top, Tree},
    },
};
use ignore::gitignore::Gitignore;
use std::{
    collections::HashSet,
    os::unix::ffi::OsStrExt,
    path::{Path as FilePath, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

/// How long storage that is shared may take to show what the server wrote.
const CHECKPOINT_ARRIVES: Duration = Duration::from_secs(10);

/// Which cluster, and how.
#[derive(Debug, Clone)]
pub struct Request {
    /// Where it is.
    pub server: Server,
    /// Should the checkpoint at the start be done at once, or spread over time?
    pub fast: bool,
    /// Where the WAL is that the backup needs.
    pub wal: Wal,
}

/// Where a cluster is.
#[derive(Debug, Clone)]
pub enum Server {
    /// It runs, and answers here.
    Running(Params),
    /// It is stopped; this is its data directory.
    Stopped(PathBuf),
}

/// Where the WAL is that a backup needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wal {
    /// In the backup, so that it starts on its own.
    Included,
    /// In the archive of the server, which is looked at.
    Archived,
    /// That is the operator's business.
    None,
}

impl Wal {
    fn name(self) -> &'static str {
        match self {
            Self::Included => "included",
            Self::Archived => "archived",
            Self::None => "none",
        }
    }
}

/// A cluster that is being backed up. Dropping it ends the session, and with it the backup mode and the slot.
pub struct Cluster {
    wal: Wal,
    session: Option<Held>,
    /// How it was when the backup began; what a stopped one must still be at the end.
    control: Vec<u8>,
    data: PathBuf,
    /// Bytes of a page, if the numbers of pages can be told from the names of files.
    page_bytes: Option<usize>,
    start: Option<Lsn>,
    facts: Mutex<root::Cluster>,
    manifest: Mutex<Option<Manifest>>,
    failed: Mutex<Option<Error>>,
    late: Arc<Late>,
    trees: Vec<Arc<Tree>>,
}

/// One stream of it: what is on one device.
struct Part {
    cluster: Arc<Cluster>,
    tree: Arc<Tree>,
    /// Does this one bring the late files?
    is_first: bool,
}

impl Request {
    /// Connect, begin the backup `id`, and open the sources, one for each device if `split`. Without an id nothing begins.
    ///
    /// # Errors
    /// What the server says, or why its files cannot be read from here.
    pub fn open(&self, id: &str, split: bool, walkers: usize, tricks: Tricks) -> Result<(Arc<Cluster>, Sources)> {
        match &self.server {
            Server::Running(params) => self.running(params, id, split, walkers, tricks),
            Server::Stopped(data) => stopped(data, split, walkers, tricks),
        }
    }

    fn running(
        &self,
        params: &Params,
        id: &str,
        split: bool,
        walkers: usize,
        tricks: Tricks,
    ) -> Result<(Arc<Cluster>, Sources)> {
        let mut session = Session::connect(params)?;
        let facts = session.facts()?;
        let (data, control) = files_of(&facts)?;
        let mut start = None;
        if !id.is_empty() {
            start = Some(self.begin(&mut session, &facts, id)?);
        }
        let facts = session.facts()?; // tablespaces and databases as they are now that changes are in the WAL
        let now = started(&data, start)?;
        let opening = Opening { data: &data, major: facts.major, catalog: now.catalog };
        let tablespaces = facts.tablespaces.clone();
        let (late, trees) = opening.trees(&tablespaces, true, split, walkers, tricks)?;
        let described = root::Cluster {
            version: facts.version.clone(),
            major: facts.major,
            system_identifier: facts.system_identifier.to_string(),
            timeline: facts.timeline,
            online: true,
            standby: facts.standby,
            checksums: facts.checksums,
            start_lsn: start.map(|lsn| lsn.to_string()).unwrap_or_default(),
            wal: self.wal.name().to_owned(),
            wal_segment_bytes: facts.wal_segment_bytes,
            data_directory: root::Name(data.as_os_str().as_bytes().to_vec()),
            databases: facts.databases.clone(),
            tablespaces,
            ..root::Cluster::default()
        };
        let cluster = Cluster {
            wal: self.wal,
            session: Some(Held::new(session)?),
            control,
            data,
            page_bytes: page_bytes(&now),
            start,
            manifest: Mutex::new(Some(Manifest::new(facts.major, facts.system_identifier)?)),
            facts: Mutex::new(described),
            failed: Mutex::default(),
            late,
            trees,
        };
        Ok(cluster.sources())
    }

    /// The slot first: from then on the server keeps the WAL that the backup will need.
    fn begin(&self, session: &mut Session, facts: &Facts, id: &str) -> Result<Lsn> {
        match self.wal {
            Wal::Included => session.hold_wal()?,
            Wal::Archived => archive::prove(session, facts)?,
            Wal::None => {}
        }
        session.start(&format!("fullbore {id}"), self.fast)
    }
}

/// A source for each stream.
pub type Sources = Vec<Arc<dyn Source>>;

fn control_path(data: &FilePath) -> PathBuf {
    data.join("global/pg_control")
}

/// The data directory of the server that answers, and its control file: the proof that the files here are that server's
/// (rule 5).
fn files_of(facts: &Facts) -> Result<(PathBuf, Vec<u8>)> {
    let Some(data) = facts.data_directory.clone() else {
        return Err(Error::new(Kind::Permission, "cannot find the data directory: the server does not tell this role")
            .hint("`GRANT pg_read_all_settings TO …`"));
    };
    let (bytes, control) = control::read(&control_path(&data)).map_err(|error| {
        let hint =
            format!("run fullbore on the server's host, as a user who may read {data:?}: root or the server's own");
        Error { what: format!("cannot read the data directory {data:?} of the server"), ..error }.hint(hint)
    })?;
    if control.system_identifier != facts.system_identifier {
        let what = format!("cannot back up the cluster: the files in {data:?} are those of another");
        let (here, there) = (control.system_identifier, facts.system_identifier);
        return Err(Error::new(Kind::Usage, what)
            .because(format!("system identifier {here} here, {there} at the server"))
            .hint("run fullbore on the host of that server"));
    }
    Ok((data, bytes))
}

/// The control file once the checkpoint of the start has arrived in it (rule 5).
fn started(data: &FilePath, start: Option<Lsn>) -> Result<Control> {
    let until = Instant::now() + CHECKPOINT_ARRIVES;
    loop {
        let (_, control) = control::read(&control_path(data))?;
        match start {
            Some(start) if control.redo_lsn < start.0 && Instant::now() < until => {
                thread::sleep(Duration::from_millis(50))
            }
            Some(start) if control.redo_lsn < start.0 => {
                let what = format!("cannot back up the cluster: the checkpoint at {start} is not in its files");
                return Err(Error::new(Kind::System, what)
                    .hint("is the data directory on storage whose changes this host sees late?"));
            }
            _ => return Ok(control),
        }
    }
}

fn page_bytes(control: &Control) -> Option<usize> {
    (control.segment_blocks == SEGMENT_BLOCKS).then_some(control.block_bytes as usize)
}

/// A cluster that is stopped, and was shut down cleanly.
fn stopped(data: &FilePath, split: bool, walkers: usize, tricks: Tricks) -> Result<(Arc<Cluster>, Sources)> {
    let data = data.canonicalize().map_err(|e| Error::io(format!("could not open {data:?}"), e))?;
    let (bytes, control) = super::offline::clean(&data)?;
    let (version, major) = super::offline::version(&data)?;
    let tablespaces = super::offline::tablespaces(&data)?;
    let opening = Opening { data: &data, major, catalog: control.catalog };
    let (late, trees) = opening.trees(&tablespaces, false, split, walkers, tricks)?;
    let described = root::Cluster {
        version,
        major,
        system_identifier: control.system_identifier.to_string(),
        timeline: control.timeline,
        checksums: control.checksum_version > 0,
        wal: Wal::Included.name().to_owned(),
        wal_segment_bytes: control.wal_segment_bytes.into(),
        data_directory: root::Name(data.as_os_str().as_bytes().to_vec()),
        tablespaces,
        ..root::Cluster::default()
    };
    let cluster = Cluster {
        wal: Wal::Included,
        session: None,
        control: bytes,
        page_bytes: page_bytes(&control),
        start: None,
        manifest: Mutex::new(Some(Manifest::new(major, control.system_identifier)?)),
        facts: Mutex::new(described),
        failed: Mutex::default(),
        data,
        late,
        trees,
    };
    Ok(cluster.sources())
}

/// What is needed to open the trees.
struct Opening<'a> {
    data: &'a FilePath,
    major: u32,
    catalog: u32,
}

impl Opening<'_> {
    /// The data directory with the tablespaces on its device, and a tree for each other device.
    fn trees(
        &self,
        tablespaces: &[root::Tablespace],
        online: bool,
        split: bool,
        walkers: usize,
        tricks: Tricks,
    ) -> Result<(Arc<Late>, Vec<Arc<Tree>>)> {
        let spaces = tablespaces.iter().map(|space| format!("pg_tblspc/{}", space.oid).into_bytes()).collect();
        let late = Arc::new(Late::new(Layout::new(self.major, self.catalog, online), spaces));
        let rules = Arc::new(Rules {
            exclude: Gitignore::empty(),
            exclude_caches: false,
            exclude_if_present: Vec::new(),
            one_file_system: false,
            walkers,
            tricks,
            overlay: Some(late.clone()),
        });
        let mut devices = self.tops(tablespaces, split)?;
        let elsewhere: HashSet<Path> =
            devices.iter().skip(1).flat_map(|(_, tops)| tops.iter().map(|top| top.at.clone())).collect();
        let tree = |(_, mut tops): (u64, Vec<Top>)| {
            tops.sort_by(|a, b| order(&a.at, &b.at));
            let elsewhere = if tops[0].at.is_empty() { elsewhere.clone() } else { HashSet::new() };
            Arc::new(Tree::new(tops, elsewhere, HashSet::new(), rules.clone()))
        };
        Ok((late, devices.drain(..).map(tree).collect()))
    }

    /// Where walks begin, for each device; the data directory's first, with the directories that links in it lead to.
    fn tops(&self, tablespaces: &[root::Tablespace], split: bool) -> Result<Vec<(u64, Vec<Top>)>> {
        let open = |at: &[u8], path: &FilePath| {
            let dir = walk::open_root(path).map_err(|e| Error::io(format!("could not open {path:?}"), e))?;
            let device = walk::stat_fd(&dir).map(|stat| stat.dev).unwrap_or_default();
            Ok((if split { device } else { 0 }, Top { at: at.to_vec(), dir, name: None, alone: false }))
        };
        let (device, top) = open(b"", self.data)?;
        let mut devices = vec![(device, vec![top])];
        for name in linked_directories(self.data)? {
            devices[0].1.push(open(name.as_bytes(), &self.data.join(&name))?.1);
        }
        for space in tablespaces {
            let at = format!("pg_tblspc/{}", space.oid);
            let (device, top) = open(at.as_bytes(), FilePath::new(std::ffi::OsStr::from_bytes(&space.location.0)))?;
            match devices.iter_mut().find(|(known, _)| *known == device) {
                Some((_, tops)) => tops.push(top),
                None => devices.push((device, vec![top])),
            }
        }
        Ok(devices)
    }
}

/// Names in the data directory that are links to directories, as `initdb --waldir` makes one: they are stored as the
/// directories they lead to (rule 14).
fn linked_directories(data: &FilePath) -> Result<Vec<std::ffi::OsString>> {
    let failed = |e| Error::io(format!("could not list {data:?}"), e);
    let mut names = Vec::new();
    for entry in data.read_dir().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().is_ok_and(|kind| kind.is_symlink()) && entry.path().is_dir() {
            names.push(entry.file_name());
        }
    }
    Ok(names)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Cluster {
    fn sources(self) -> (Arc<Self>, Sources) {
        let cluster = Arc::new(self);
        let part = |(at, tree): (usize, &Arc<Tree>)| {
            Arc::new(Part { cluster: cluster.clone(), tree: tree.clone(), is_first: at == 0 }) as Arc<dyn Source>
        };
        let sources = cluster.trees.iter().enumerate().map(part).collect();
        (cluster, sources)
    }

    /// What the root says of it; complete once the backup is.
    pub fn facts(&self) -> root::Cluster {
        lock(&self.facts).clone()
    }

    /// How its pages are looked at, if they have checksums.
    pub fn page_check(&self) -> Option<Arc<PageCheck>> {
        let start_lsn = self.start.map_or(u64::MAX, |start| start.0);
        let page_bytes = self.page_bytes.filter(|_| lock(&self.facts).checksums)?;
        Some(Arc::new(PageCheck { trees: self.trees.clone(), page_bytes, start_lsn }))
    }

    /// A file for PostgreSQL's manifest. WAL and the manifest itself are not listed in it.
    fn list(&self, record: &Record, crc32c: Option<u32>) {
        let entry = &record.entry;
        if !entry.is_file() || !record.state.is_stored() || entry.path.starts_with(b"pg_wal/") {
            return;
        }
        if let Some(manifest) = &mut *lock(&self.manifest)
            && let Err(error) = manifest.add(&entry.path, entry.size(), entry.mtime.seconds, crc32c.unwrap_or(0))
        {
            lock(&self.failed).get_or_insert(error);
        }
    }

    /// End the backup, and say what belongs to it that was not there before.
    fn finish(&self, tree: &Tree) -> Result<Vec<Scanned>> {
        if let Some(error) = lock(&self.failed).take() {
            return Err(error);
        }
        let mut scanned = Vec::new();
        let mut ranges = Vec::new();
        match &self.session {
            Some(session) => {
                // Before the stop, as on a standby it says where the backup is consistent (rules 15, 27).
                let (control, _) = control::read(&control_path(&self.data))?;
                let stopped = session.with(|session| session.stop(self.wal == Wal::Archived))?;
                self.check_timeline(&stopped)?;
                scanned.push(self.control_file(tree, &control)?);
                scanned.push(self.add(tree, b"backup_label", &stopped.backup_label)?);
                if !stopped.tablespace_map.is_empty() {
                    scanned.push(self.late(tree, b"tablespace_map", &stopped.tablespace_map)?);
                }
                scanned.extend(self.wal_files(tree, session, &stopped)?);
                ranges.extend(self.start.map(|start| WalRange {
                    timeline: stopped.timeline,
                    start_lsn: start.0,
                    end_lsn: stopped.lsn.0,
                }));
            }
            None => super::offline::still_clean(&self.data, &self.control)?,
        }
        let manifest = lock(&self.manifest).take();
        if let Some(manifest) = manifest {
            let finished = manifest.finish(&ranges)?;
            scanned.push(self.late.stand_in(tree, b"backup_manifest", finished.file)?);
        }
        scanned.sort_by(|a, b| order(&a.entry.path, &b.entry.path));
        Ok(scanned)
    }

    fn check_timeline(&self, stopped: &Stopped) -> Result<()> {
        let mut facts = lock(&self.facts);
        if facts.timeline != stopped.timeline {
            let (from, to) = (facts.timeline, stopped.timeline);
            let what = format!("cannot complete the backup: the server went from timeline {from} to {to} meanwhile");
            return Err(Error::new(Kind::System, what).hint("run the same command again"));
        }
        facts.stop_lsn = stopped.lsn.to_string();
        Ok(())
    }

    /// The control file, such that a server does not start on it without `backup_label` (rule 9).
    fn control_file(&self, tree: &Tree, bytes: &[u8]) -> Result<Scanned> {
        let safe = control::without_checkpoint(bytes);
        let safe = safe.ok_or_else(|| Error::corrupt("cannot read \"global/pg_control\": it is not understood"))?;
        self.add(tree, b"global/pg_control", &safe)
    }

    /// A late file that PostgreSQL's manifest lists.
    fn add(&self, tree: &Tree, path: &[u8], bytes: &[u8]) -> Result<Scanned> {
        let scanned = self.late(tree, path, bytes)?;
        if let Some(manifest) = &mut *lock(&self.manifest) {
            manifest.add(path, bytes.len() as u64, scanned.entry.mtime.seconds, crc32c(bytes))?;
        }
        Ok(scanned)
    }

    fn late(&self, tree: &Tree, path: &[u8], bytes: &[u8]) -> Result<Scanned> {
        self.late.stand_in_bytes(tree, path, bytes)
    }

    /// The WAL from start to stop (rule 25): it is in `pg_wal`, as the slot held it, or it is in the archive.
    fn wal_files(&self, tree: &Tree, session: &Held, stopped: &Stopped) -> Result<Vec<Scanned>> {
        let Some(start) = self.start else { return Ok(Vec::new()) };
        let (bytes, timeline) = (lock(&self.facts).wal_segment_bytes, stopped.timeline);
        // The end of the last record may be the start of a segment that holds nothing of it.
        let numbers = start.0 / bytes..=(stopped.lsn.0 - 1) / bytes;
        let names: Vec<String> = numbers.map(|n| segment_name(timeline, Lsn(n * bytes), bytes)).collect();
        if let (Some(first), Some(last)) = (names.first(), names.last()) {
            lock(&self.facts).wal_segments = vec![first.clone(), last.clone()];
            if self.wal == Wal::Archived {
                session.with(|session| archive::wait(session, last))?;
            }
        }
        if self.wal != Wal::Included {
            return Ok(Vec::new());
        }
        let mut files = Vec::new();
        for name in &names {
            files.push(segment(tree, name, bytes)?);
            // So that the restored server does not archive it again.
            files.push(self.late(tree, format!("pg_wal/archive_status/{name}.done").as_bytes(), b"")?);
        }
        if timeline > 1 {
            // Without it recovery does not find the way to this timeline (rule 29).
            let history = tree.look(format!("pg_wal/{timeline:08X}.history").as_bytes());
            files.extend(Some(history).filter(|history| history.state.is_stored()));
        }
        Ok(files)
    }
}

/// A segment of the WAL, whole.
fn segment(tree: &Tree, name: &str, bytes: u64) -> Result<Scanned> {
    let scanned = tree.look(format!("pg_wal/{name}").as_bytes());
    if scanned.state == State::Whole && scanned.entry.size() == bytes {
        return Ok(scanned);
    }
    let what = format!("cannot complete the backup: WAL segment {} is not in \"pg_wal\"", quoted(name.as_bytes()));
    Err(Error::new(Kind::System, what).hint("was it removed by hand? The server itself keeps it for the backup"))
}

impl Source for Part {
    fn scan(&self) -> Result<Stream<Scanned>> {
        self.tree.scan()
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        if let Some(session) = &self.cluster.session {
            session.check()?;
        }
        self.tree.read(slice, buf)
    }

    fn laid(&self, record: &Record, crc32c: Option<u32>) {
        self.cluster.list(record, crc32c);
    }

    fn finish(&self) -> Result<Stream<Scanned>> {
        let late = if self.is_first { self.cluster.finish(&self.tree)? } else { Vec::new() };
        Ok(Box::new(late.into_iter().map(Ok)))
    }
}
