//! What a backup is of, and opening it: one source for each stream.

use super::paths::Scope;
use crate::{
    error::{Result, quoted},
    format::{
        page::Record,
        root::{Name, Source as Origin},
    },
    frame::{Buf, Frame, Scanned, Slice},
    metrics::waits::Waits,
    platform::{self, Tricks, Waiting},
    postgres::{
        request::{Reading, Request},
        source::Cluster,
        wal_summaries::Changes,
    },
    repo::{base::Base, compare::Compare},
    source::{
        self, Source,
        backup::Stored,
        stdin::Stdin,
        tree::{Own, Rules},
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
    Cluster(Request),
    /// A stored backup, whatever it was of.
    Stored(Arc<Stored>),
}

impl Subject {
    /// Open it. `id`: the backup that begins; without one it is only looked at.
    pub(crate) fn open(&self, id: Option<&str>, way: Way) -> Result<Opened> {
        let Way {
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
                let stdin = Stdin::new(name.to_vec(), Box::new(Waiting(std::io::stdin())), spool)?;
                let paths = vec![Name([b"stdin:", name].concat())];
                Ok(Opened::new(
                    vec![Arc::new(stdin)],
                    Origin {
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
                let origin = Origin {
                    host,
                    paths: scope.paths,
                    contents: scope.contents,
                };
                let opened = Opened::new(sources, origin, None);
                Ok(Opened {
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
                Ok(Opened::new(
                    sources,
                    Origin {
                        host,
                        paths,
                        contents: true,
                    },
                    Some(cluster),
                ))
            }
            Self::Stored(stored) => Ok(Opened::new(
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
pub(crate) struct Way {
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
pub(crate) struct Opened {
    pub(crate) sources: Vec<Arc<dyn Source>>,
    pub(crate) origin: Origin,
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) is_compared: bool,
    /// The rules of trees.
    rules: Option<Arc<Rules>>,
    warnings: Vec<String>,
}

/// Patterns that a warning names.
const NAMED: usize = 10;

impl Opened {
    fn new(sources: Vec<Arc<dyn Source>>, origin: Origin, cluster: Option<Arc<Cluster>>) -> Self {
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
            *source = Arc::new(Compared {
                source: source.clone(),
                base: base.clone(),
                changes: changes.clone(),
            });
        }
        self.is_compared = true;
    }
}

/// A source whose scan says what earlier backups have.
struct Compared {
    source: Arc<dyn Source>,
    base: Arc<Base>,
    /// Where files of a cluster changed since.
    changes: Option<Arc<Changes>>,
}

impl Source for Compared {
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

    fn drained(&self) {
        self.source.drained();
    }

    fn finish(&self) -> Result<source::Stream<Scanned>> {
        self.source.finish()
    }
}
