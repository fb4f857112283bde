//! What a backup is of, and opening it: one source for each stream.

use super::paths::Scope;
use crate::{
    error::{Result, quoted},
    format::{
        page::Record,
        root::{EntryName, SourceInfo},
    },
    frame::{Buf, Frame, Scanned, Slice},
    metrics::waits::Waits,
    platform::{self, BlockedCalls, Tricks},
    postgres::{
        request::{ClusterRequest, Reading},
        source::ClusterSource,
        wal_summaries::BlockChanges,
    },
    repo::{base::Base, compare::Compare},
    source::{
        self, OpenAhead, Source,
        backup::StoredBackup,
        stdin::Stdin,
        tree::{Own, TreeRules},
    },
};
use std::{ffi::OsString, os::unix::ffi::OsStrExt, sync::Arc};

/// What a backup is of.
#[derive(Debug, Clone)]
pub enum Subject {
    /// Files and directories.
    Files(Scope),
    /// Standard input, as a file of this name.
    Stdin(OsString),
    /// A PostgreSQL cluster.
    Cluster(ClusterRequest),
    /// A stored backup, whatever it was of.
    Stored(Arc<StoredBackup>),
}

impl Subject {
    /// Open it. `id`: the backup that begins; without one it is only looked at.
    pub(crate) fn open(&self, id: Option<&str>, way: OpenOptions) -> Result<OpenedSubject> {
        let OpenOptions {
            host,
            split,
            spool,
            tricks,
            own,
            waits,
        } = way;
        let walkers = platform::cores().get().clamp(2, 8);
        match self {
            Self::Stdin(name) => {
                let name = name.as_bytes();
                let stdin = Stdin::new(
                    name.to_vec(),
                    Box::new(BlockedCalls(std::io::stdin())),
                    spool,
                )?;
                let paths = vec![EntryName([b"stdin:", name].concat())];
                Ok(OpenedSubject::new(
                    vec![Arc::new(stdin)],
                    SourceInfo {
                        host,
                        paths,
                        contents: false,
                    },
                    None,
                ))
            }
            Self::Files(scope) => {
                let scope = scope.open(split, walkers, tricks, own)?;
                let sources = scope
                    .trees
                    .into_iter()
                    .map(|tree| Arc::new(tree) as Arc<dyn Source>)
                    .collect();
                let origin = SourceInfo {
                    host,
                    paths: scope.paths,
                    contents: scope.contents,
                };
                let opened = OpenedSubject::new(sources, origin, None);
                Ok(OpenedSubject {
                    rules: Some(scope.rules),
                    warnings: scope.warnings,
                    ..opened
                })
            }
            Self::Cluster(request) => {
                let (cluster, sources) = request.open(
                    id,
                    &Reading {
                        split,
                        walkers,
                        tricks,
                        own,
                        waits,
                    },
                )?;
                let paths = vec![cluster.facts().data_directory];
                Ok(OpenedSubject::new(
                    sources,
                    SourceInfo {
                        host,
                        paths,
                        contents: true,
                    },
                    Some(cluster),
                ))
            }
            Self::Stored(stored) => Ok(OpenedSubject::new(
                vec![stored.clone()],
                stored.archive().root.source.clone(),
                None,
            )),
        }
    }

    /// Can it be opened once more, only to be looked at?
    pub fn can_be_counted(&self) -> bool {
        match self {
            Self::Files(scope) => scope.files_from.is_none(),
            Self::Cluster(_) => true,
            Self::Stdin(_) | Self::Stored(_) => false,
        }
    }

    /// The options by which something of it is left out.
    pub(crate) fn left_out(&self) -> Vec<String> {
        match self {
            Self::Files(scope) => scope.left_out(),
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
        matches!(self, Self::Stdin(_))
    }
}

/// How a subject is opened.
#[derive(Debug, Clone)]
pub(crate) struct OpenOptions {
    /// Whose it is.
    pub(crate) host: String,
    /// Has each device a stream of its own?
    pub(crate) split: bool,
    /// Must the length of what comes be known before it is stored?
    pub(crate) spool: bool,
    pub(crate) tricks: Tricks,
    pub(crate) own: Own,
    pub(crate) waits: Arc<Waits>,
}

/// A subject, opened: a source for each stream.
pub(crate) struct OpenedSubject {
    pub(crate) sources: Vec<Arc<dyn Source>>,
    pub(crate) origin: SourceInfo,
    pub(crate) cluster: Option<Arc<ClusterSource>>,
    pub(crate) is_compared: bool,
    /// The rules of trees.
    rules: Option<Arc<TreeRules>>,
    warnings: Vec<String>,
}

/// Patterns that a warning names.
const NAMED: usize = 10;

impl OpenedSubject {
    fn new(
        sources: Vec<Arc<dyn Source>>,
        origin: SourceInfo,
        cluster: Option<Arc<ClusterSource>>,
    ) -> Self {
        Self {
            sources,
            origin,
            cluster,
            is_compared: false,
            rules: None,
            warnings: Vec::new(),
        }
    }

    /// Warnings for the user. Call this after all sources were scanned: only then is it known which patterns matched nothing.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let unmatched: Vec<&[u8]> = self
            .rules
            .iter()
            .flat_map(|rules| rules.exclude.unmatched())
            .collect();
        let names: Vec<String> = unmatched
            .iter()
            .take(NAMED)
            .map(|pattern| quoted(pattern))
            .collect();
        let names = names.join(", ");
        let place = "a pattern that begins with / is a path of the backup, as `fullbore list` prints it, or one below a PATH";
        let warning = match unmatched.len() {
            0 => None,
            1 => Some(format!("the pattern {names} matched nothing; {place}")),
            n if n <= NAMED => Some(format!("the patterns {names} matched nothing; {place}")),
            n => Some(format!(
                "{n} patterns matched nothing, the first are {names}; {place}"
            )),
        };
        self.warnings.iter().cloned().chain(warning).collect()
    }

    /// Let the sources say what `base` has of what they have. A server is not asked where everything is to be read.
    pub(crate) fn compare(&mut self, base: &Arc<Base>, compare: Compare) {
        let asked = self
            .cluster
            .as_ref()
            .filter(|_| compare != Compare::Content);
        let changes = asked
            .and_then(|cluster| cluster.changes_since(base.cluster()?))
            .map(Arc::new);
        // What comes into being meanwhile no earlier backup has.
        for source in self
            .sources
            .iter_mut()
            .filter(|source| !source.accompanies())
        {
            *source = Arc::new(ComparedSource {
                source: source.clone(),
                base: base.clone(),
                changes: changes.clone(),
            });
        }
        self.is_compared = true;
    }
}

/// A source whose scan says what earlier backups have.
struct ComparedSource {
    source: Arc<dyn Source>,
    base: Arc<Base>,
    /// Where files of a cluster changed since.
    changes: Option<Arc<BlockChanges>>,
}

impl Source for ComparedSource {
    fn scan(&self) -> Result<source::Stream<Scanned>> {
        let compared = self.base.compare(self.source.scan()?);
        let Some(changes) = self.changes.clone() else {
            return Ok(compared);
        };
        Ok(Box::new(compared.map(move |scanned| {
            scanned.map(|mut scanned| {
                changes.narrow(&mut scanned);
                scanned
            })
        })))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        self.source.read(slice, buf)
    }

    fn laid(&self, record: &Record, crc32c: Option<u32>) {
        self.source.laid(record, crc32c);
    }

    fn opener(&self) -> Option<Arc<dyn OpenAhead>> {
        self.source.opener()
    }

    fn drained(&self) {
        self.source.drained();
    }

    fn finish(&self) -> Result<source::Stream<Scanned>> {
        self.source.finish()
    }
}
