//! The sources of a backup, and how they are opened: one source for each stream.

use super::{far_source::FarSubject, paths::Scope};
use crate::stored_backup::StoredBackup;
use fullbore_format::{
    entry::EntryPath,
    error::Result,
    page::{EntryState, Record},
    root::{EntryName, SourceInfo},
};
use fullbore_pipeline::{
    frame::{Buf, Frame, Scanned, Slice},
    source::{self, OpenAhead, Source},
};
use fullbore_platform as platform;
use fullbore_platform::{BlockedCalls, metrics::waits::Waits};
use fullbore_postgres::{
    cluster_backup::{ChangedBlocks, ClusterBackup, EarlierBackup},
    request::{ClusterRequest, Reading},
};
use fullbore_repository::{
    base::Base, compare::Compare, ids::SourceMark, shared_content::SharedContent,
};
use fullbore_tree::unmatched::{idle_names, unmatched_warning};
use fullbore_tree::{
    command_output::CommandOutput,
    patterns::Patterns,
    read::{Own, TreeRules},
    stdin::Stdin,
};
use std::{cell::OnceCell, ffi::OsString, io::Read, os::unix::ffi::OsStrExt, sync::Arc};

/// The subject of a backup.
#[derive(Debug, Clone)]
pub enum Subject {
    /// Files and directories.
    Files(Scope),
    /// Standard input, stored as a file of this name.
    Stdin(OsString),
    /// The output of a command, stored as a file of this name.
    Command(OsString, Vec<OsString>),
    /// A PostgreSQL cluster.
    Cluster(ClusterRequest),
    /// Files and directories of another host.
    Far(FarSubject),
    /// A stored backup of any kind.
    Stored(Arc<StoredBackup>),
}

impl Subject {
    /// Opens the subject. `name` makes the ID of the new backup of its source; without it, the
    /// subject is only examined.
    pub(crate) fn open(
        &self,
        name: Option<NameBackup<'_>>,
        options: OpenOptions,
    ) -> Result<OpenedSubject> {
        let opened = match self {
            Self::Stdin(name) => {
                let input = Box::new(BlockedCalls(std::io::stdin()));
                open_stream(name.as_bytes(), input, options)
            }
            Self::Command(name, words) => {
                let input = Box::new(CommandOutput::start(words)?);
                open_stream(name.as_bytes(), input, options)
            }
            Self::Files(scope) => open_files(scope, options),
            Self::Cluster(request) => return open_cluster(request, name, options),
            Self::Far(far) => far.open(options),
            Self::Stored(stored) => Ok(OpenedSubject::new(
                vec![stored.clone()],
                stored.archive().root.source.clone(),
                None,
            )),
        }?;
        let mark = match self {
            Self::Stored(stored) => SourceMark::of(&stored.archive().root),
            _ => SourceMark::Files(&opened.origin),
        };
        let id = name.map(|name| name(mark)).transpose()?;
        Ok(opened.named(id))
    }

    /// Returns whether the subject can be opened a second time just to count its entries.
    pub fn can_be_counted(&self) -> bool {
        match self {
            Self::Files(scope) => scope.files_from.is_none(),
            Self::Cluster(_) => true,
            Self::Stdin(_) | Self::Command(..) | Self::Far(_) | Self::Stored(_) => false,
        }
    }

    /// Returns the options that exclude entries.
    pub(crate) fn left_out(&self) -> Vec<String> {
        match self {
            Self::Files(scope) => scope.left_out(),
            Self::Far(far) => far.scope.left_out(),
            Self::Stored(stored) => stored.archive().root.left_out.clone(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        match self {
            Self::Cluster(_) => true,
            Self::Stored(stored) => stored.archive().root.postgres.is_some(),
            _ => false,
        }
    }

    pub(crate) fn is_stdin(&self) -> bool {
        matches!(self, Self::Stdin(_) | Self::Command(..))
    }
}

fn open_stream(
    name: &[u8],
    input: Box<dyn Read + Send>,
    options: OpenOptions,
) -> Result<OpenedSubject> {
    let stdin = Stdin::new(name.to_vec(), input, options.spool)?;
    let origin = SourceInfo {
        host: options.host,
        paths: vec![EntryName([b"stdin:", name].concat())],
        contents: false,
    };
    Ok(OpenedSubject::new(vec![Arc::new(stdin)], origin, None))
}

fn open_files(scope: &Scope, options: OpenOptions) -> Result<OpenedSubject> {
    let opened = scope.open(options.split, walkers(), options.own)?;
    let sources = opened
        .trees
        .into_iter()
        .map(|tree| Arc::new(tree) as Arc<dyn Source>)
        .collect();
    let origin = SourceInfo {
        host: options.host,
        paths: opened.paths,
        contents: opened.contents,
    };
    Ok(OpenedSubject::of_trees(
        sources,
        origin,
        opened.rules,
        opened.warnings,
    ))
}

fn open_cluster(
    request: &ClusterRequest,
    name: Option<NameBackup<'_>>,
    options: OpenOptions,
) -> Result<OpenedSubject> {
    let reading = Reading {
        split: options.split,
        walkers: walkers(),
        own: options.own,
        ahead_bytes: options.ahead_bytes,
        waits: options.waits,
    };
    let id = OnceCell::new();
    let named = |system: &str| {
        let made = name.map(|name| name(SourceMark::Cluster(system)));
        let made = made.transpose()?;
        Ok(id.get_or_init(|| made).clone())
    };
    let (cluster, sources) = request.open(&named, &reading)?;
    let facts = cluster.facts();
    // A stopped cluster has no use for the id.
    let id = match id.get() {
        Some(id) => id.clone(),
        None => named(&facts.system_identifier)?,
    };
    let origin = SourceInfo {
        host: options.host,
        paths: vec![facts.data_directory],
        contents: true,
    };
    Ok(OpenedSubject::new(sources, origin, Some(cluster)).named(id))
}

/// Returns the number of threads that walk a tree.
pub(super) fn walkers() -> usize {
    platform::cores().get().clamp(2, 8)
}

/// Makes the ID of a new backup of a source.
pub(crate) type NameBackup<'a> = &'a dyn Fn(SourceMark<'_>) -> Result<String>;

/// Options for opening a subject.
#[derive(Debug, Clone)]
pub(crate) struct OpenOptions {
    /// Host name to record.
    pub(crate) host: String,
    /// Whether each device gets its own stream.
    pub(crate) split: bool,
    /// Whether input is spooled, because its length must be known before it is stored.
    pub(crate) spool: bool,
    pub(crate) own: Own,
    /// Memory for what is read ahead of the frames.
    pub(crate) ahead_bytes: u64,
    pub(crate) waits: Arc<Waits>,
}

/// An opened subject: a source for each stream.
pub(crate) struct OpenedSubject {
    /// ID of the new backup; empty if the subject is only examined.
    pub(crate) id: String,
    pub(crate) sources: Vec<Arc<dyn Source>>,
    pub(crate) origin: SourceInfo,
    pub(crate) cluster: Option<Arc<dyn ClusterBackup>>,
    pub(crate) is_compared: bool,
    /// The rules of the trees.
    rules: Option<Arc<TreeRules>>,
    warnings: Vec<String>,
    /// The trees of another host, which has the rules.
    far: Option<FarSubject>,
}

/// The meaning of a pattern that matched nothing, perhaps.
const PLACE: &str = "a pattern that starts with / must be a path in the backup, as `fullbore list` prints it, or a path below a PATH";

impl OpenedSubject {
    pub(super) fn of_trees(
        sources: Vec<Arc<dyn Source>>,
        origin: SourceInfo,
        rules: Arc<TreeRules>,
        warnings: Vec<String>,
    ) -> Self {
        Self {
            rules: Some(rules),
            warnings,
            ..Self::new(sources, origin, None)
        }
    }

    pub(super) fn of_far(self, far: FarSubject) -> Self {
        Self {
            far: Some(far),
            ..self
        }
    }

    pub(super) fn new(
        sources: Vec<Arc<dyn Source>>,
        origin: SourceInfo,
        cluster: Option<Arc<dyn ClusterBackup>>,
    ) -> Self {
        Self {
            id: String::new(),
            sources,
            origin,
            cluster,
            is_compared: false,
            rules: None,
            warnings: Vec::new(),
            far: None,
        }
    }

    fn named(self, id: Option<String>) -> Self {
        Self {
            id: id.unwrap_or_default(),
            ..self
        }
    }

    /// Returns warnings for the user. Call this after all scans, because unmatched patterns are
    /// known only then.
    pub(crate) fn warnings(&self) -> Vec<String> {
        if let Some(far) = &self.far {
            return far.warnings();
        }
        let patterns = || self.rules.iter().map(|rules| &rules.exclude);
        let idle = patterns().flat_map(Patterns::idle_warnings);
        let warning = unmatched_warning(self.rules.iter().map(|rules| &rules.exclude), PLACE);
        let cluster = self.cluster.iter().flat_map(|cluster| cluster.warnings());
        let warnings = self.warnings.iter().cloned();
        warnings.chain(cluster).chain(warning).chain(idle).collect()
    }

    /// Returns a line about names among the patterns that matched nothing; call this after all scans. The rules of another host are not
    /// asked.
    pub(crate) fn idle_names(&self) -> Option<String> {
        idle_names(self.rules.iter().map(|rules| &rules.exclude))
    }

    /// Returns the number of marked caches that were left out, and the path of one; call this after all scans. The rules
    /// of another host are not asked.
    pub(crate) fn left_out_caches(&self) -> Option<(u64, EntryPath)> {
        self.rules.as_ref()?.caches.found()
    }

    /// Keeps the name that a cluster has in its latest backup, if this backup or that one does not know its
    /// path: not every role may see it.
    pub(crate) fn keep_name(&mut self, name: Option<SourceInfo>) {
        let is_empty = |source: &SourceInfo| source.paths.iter().all(|path| path.0.is_empty());
        let kept = name.filter(|name| is_empty(name) || is_empty(&self.origin));
        if let Some(kept) = kept.filter(|_| self.cluster.is_some()) {
            self.origin = kept;
        }
    }

    /// Begins the backup of a cluster. Makes the sources report unchanged data that the base has. The
    /// server is not asked for changes if all content is compared.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn begin(
        &mut self,
        base: Option<&Arc<Base>>,
        (compare, block_bytes): (Compare, u64),
    ) -> Result<()> {
        // Of a file that is stored whole, no block is compared.
        let asked = base.filter(|base| compare != Compare::Content && !base.stores_whole_files());
        let changes = match &self.cluster {
            Some(cluster) => begin_cluster(&**cluster, asked, block_bytes)?,
            None => None,
        };
        if let Some(base) = base {
            self.compare(base, changes.as_ref());
        }
        Ok(())
    }

    /// Makes large files without an earlier record refer to alike ones of other sources.
    pub(super) fn share(&mut self, shared: &Arc<SharedContent>) {
        for source in &mut self.sources {
            *source = Arc::new(SharingSource {
                source: source.clone(),
                shared: shared.clone(),
            });
        }
    }

    fn compare(&mut self, base: &Arc<Base>, changes: Option<&Arc<dyn ChangedBlocks>>) {
        // A follower reads files that are created during the backup, so no earlier backup has them.
        for source in self
            .sources
            .iter_mut()
            .filter(|source| !source.runs_alongside())
        {
            *source = Arc::new(ComparedSource {
                source: source.clone(),
                base: base.clone(),
                changes: changes.cloned(),
            });
        }
        self.is_compared = true;
    }
}

/// Begins the backup of a cluster; returns the blocks that changed since the base.
fn begin_cluster(
    cluster: &dyn ClusterBackup,
    base: Option<&Arc<Base>>,
    block_bytes: u64,
) -> Result<Option<Arc<dyn ChangedBlocks>>> {
    let earlier = base.and_then(|base| base.cluster().zip(Some(base)));
    let Some((facts, base)) = earlier else {
        return cluster.begin(None);
    };
    cluster.begin(Some(&EarlierBackup {
        facts,
        block_bytes,
        for_each_file: &|each| base.for_each_block_file(each),
    }))
}

/// A source whose scan refers to data of earlier backups.
struct ComparedSource {
    source: Arc<dyn Source>,
    base: Arc<Base>,
    /// Changed blocks of a cluster since the base.
    changes: Option<Arc<dyn ChangedBlocks>>,
}

impl Source for ComparedSource {
    fn scan(&self) -> Result<source::Stream<Scanned>> {
        let compared = self
            .base
            .compare(self.source.scan()?, self.source.is_sorted());
        let Some(changes) = self.changes.clone() else {
            return Ok(compared);
        };
        Ok(Box::new(compared.map(move |scanned| {
            let mut scanned = scanned?;
            changes.narrow(&mut scanned)?;
            Ok(scanned)
        })))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        self.source.read(slice, buf)
    }

    fn is_sorted(&self) -> bool {
        self.source.is_sorted()
    }

    fn prepare(&self, slices: source::Stream<Slice>) -> source::Stream<Slice> {
        self.source.prepare(slices)
    }

    fn settle(&self, record: &mut Record) {
        self.source.settle(record);
    }

    fn on_stored(&self, record: &Record, crc32c: Option<u32>) {
        self.source.on_stored(record, crc32c);
    }

    fn opener(&self) -> Option<Arc<dyn OpenAhead>> {
        self.source.opener()
    }

    fn on_all_read(&self) {
        self.source.on_all_read();
    }

    fn finish(&self) -> Result<source::Stream<Scanned>> {
        self.source.finish()
    }
}

/// A source whose large files refer to those of other sources.
struct SharingSource {
    source: Arc<dyn Source>,
    shared: Arc<SharedContent>,
}

impl Source for SharingSource {
    fn scan(&self) -> Result<source::Stream<Scanned>> {
        let shared = self.shared.clone();
        Ok(Box::new(self.source.scan()?.map(move |scanned| {
            scanned.map(|mut scanned| {
                if scanned.state == EntryState::Whole && scanned.known.is_none() {
                    scanned.known = shared.of_large_file(&scanned.entry);
                }
                scanned
            })
        })))
    }

    fn runs_alongside(&self) -> bool {
        self.source.runs_alongside()
    }

    fn is_falling_behind(&self) -> bool {
        self.source.is_falling_behind()
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        self.source.read(slice, buf)
    }

    fn is_sorted(&self) -> bool {
        self.source.is_sorted()
    }

    fn prepare(&self, slices: source::Stream<Slice>) -> source::Stream<Slice> {
        self.source.prepare(slices)
    }

    fn settle(&self, record: &mut Record) {
        self.source.settle(record);
    }

    fn on_stored(&self, record: &Record, crc32c: Option<u32>) {
        self.source.on_stored(record, crc32c);
    }

    fn opener(&self) -> Option<Arc<dyn OpenAhead>> {
        self.source.opener()
    }

    fn on_all_read(&self) {
        self.source.on_all_read();
    }

    fn finish(&self) -> Result<source::Stream<Scanned>> {
        self.source.finish()
    }
}
