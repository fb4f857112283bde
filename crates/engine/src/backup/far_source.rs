//! Trees of another host as the subject of a backup that runs here, and trees of this host for one that runs there.

use super::{
    paths::Scope,
    source::{OpenOptions, OpenedSubject, walkers},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{EntryName, SourceInfo},
};
use fullbore_pipeline::source::Source;
use fullbore_platform as platform;
use fullbore_postgres::stopped;
use fullbore_storage::wire::{MAX_ANSWER_BYTES, ServiceNumber, Wire};
use fullbore_tree::{
    far::{
        FarOrigin, OpenedSources, ServedSources, SourceChannel, far_host_name, far_warnings,
        open_far,
    },
    file_rules::FileRules,
    read::Own,
};
use minicbor::{Decode, Encode, bytes::ByteVec};
use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Files and directories of another host.
#[derive(Debug, Clone)]
pub struct FarSubject {
    channel: Arc<dyn SourceChannel>,
    /// The name of the host, if this side knows it.
    name: Option<String>,
    /// The files, by the paths of that host.
    pub scope: Scope,
}

#[derive(Debug)]
struct WireChannel(Wire);

impl SourceChannel for WireChannel {
    fn ask(&self, question: &[u8]) -> Result<Vec<u8>> {
        self.0
            .peer()
            .ask(ServiceNumber::FILES, question, MAX_ANSWER_BYTES)
    }
}

/// A [`Scope`] as it is sent.
#[derive(Debug, PartialEq, Eq, Encode, Decode)]
struct ScopeWords {
    #[n(0)]
    paths: Vec<ByteVec>,
    #[n(1)]
    rules: FileRules,
    #[n(2)]
    files_from: Option<ByteVec>,
    #[n(3)]
    null: bool,
    #[n(4)]
    full_paths: bool,
    #[n(5)]
    looks_twice: bool,
    /// Does each device get its own stream?
    #[n(6)]
    split: bool,
}

fn path_word(path: &Path) -> ByteVec {
    path.as_os_str().as_bytes().to_vec().into()
}

fn word_path(word: ByteVec) -> PathBuf {
    OsString::from_vec(word.into()).into()
}

impl ScopeWords {
    fn of(scope: &Scope, split: bool) -> Self {
        let list = scope.files_from.as_ref();
        Self {
            paths: scope.paths.iter().map(|path| path_word(path)).collect(),
            rules: scope.rules.clone(),
            files_from: list.map(|list| path_word(list)),
            null: scope.null,
            full_paths: scope.full_paths,
            looks_twice: scope.looks_twice,
            split,
        }
    }

    /// All files and directories that are read for the scope.
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        let words = self.paths.iter().chain(&self.files_from).cloned();
        let lists = self.rules.exclude_from.iter().map(PathBuf::from);
        words.map(word_path).chain(lists)
    }

    fn scope(self) -> Scope {
        Scope {
            paths: self.paths.into_iter().map(word_path).collect(),
            rules: self.rules,
            files_from: self.files_from.map(word_path),
            null: self.null,
            full_paths: self.full_paths,
            looks_twice: self.looks_twice,
            on_excluded: None,
        }
    }
}

impl FarSubject {
    /// The files of a scope on the host at the other end of a session.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a list on standard input.
    pub fn new(wire: Wire, scope: Scope) -> Result<Self> {
        if scope
            .files_from
            .as_ref()
            .is_some_and(|list| list.as_os_str() == "-")
        {
            let message = "cannot read --files-from on standard input for a source of another host";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        Ok(Self {
            channel: Arc::new(WireChannel(wire)),
            name: None,
            scope,
        })
    }

    /// Has its backups be of a host of this name, whatever that host calls itself.
    #[must_use]
    pub fn of_host(mut self, name: String) -> Self {
        self.name = Some(name);
        self
    }

    /// The name of that host: the one that this side knows it by, or else its own.
    ///
    /// # Errors
    /// Those of the session.
    pub fn host_name(&self) -> Result<String> {
        match &self.name {
            Some(name) => Ok(name.clone()),
            None => far_host_name(&*self.channel),
        }
    }

    pub(super) fn open(&self, options: OpenOptions) -> Result<OpenedSubject> {
        let scope = ScopeWords::of(&self.scope, options.split);
        let (origin, trees) = open_far(&self.channel, &minicbor_bytes(&scope))?;
        let trees = trees.into_iter();
        let sources = trees
            .map(|tree| Arc::new(tree) as Arc<dyn Source>)
            .collect();
        let origin = SourceInfo {
            host: options.host,
            paths: origin.paths.into_iter().map(EntryName).collect(),
            contents: origin.contents,
        };
        Ok(OpenedSubject::new(sources, origin, None).of_far(self.clone()))
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        far_warnings(&*self.channel).unwrap_or_else(|error| vec![error.line()])
    }
}

fn minicbor_bytes(scope: &ScopeWords) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = minicbor::encode(scope, &mut bytes); // a `Vec` takes all bytes
    bytes
}

/// What a backup that runs on another host may read of this one.
#[derive(Debug, Clone)]
pub enum SourceRights {
    /// All that this process may: whoever asks may log in.
    All,
    /// What the command line of this host names.
    Scope(Scope),
    /// Files and directories at or below these paths.
    Below(Vec<PathBuf>),
}

impl SourceRights {
    fn check(&self, words: &ScopeWords) -> Result<()> {
        match self {
            Self::All => Ok(()),
            Self::Scope(scope) => check_words(words, scope),
            Self::Below(tops) => words.files().try_for_each(|path| check_below(&path, tops)),
        }
    }
}

/// Refuses words of a question that do not mean this scope.
///
/// # Errors
/// [`ErrorKind::Permission`], or [`ErrorKind::Corrupt`] for words that are none.
pub fn check_scope(words: &[u8], scope: &Scope) -> Result<()> {
    check_words(&read_words(words)?, scope)
}

fn check_words(words: &ScopeWords, scope: &Scope) -> Result<()> {
    // Into how many streams the files are divided is a matter of the side that does the work.
    match *words == ScopeWords::of(scope, words.split) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Permission,
            "cannot read other files for the other host than the command line names",
        )),
    }
}

/// Refuses a path that is not at or below one of `tops`, also by a link.
fn check_below(path: &Path, tops: &[PathBuf]) -> Result<()> {
    let message = || format!("cannot read {path:?} for the other host");
    let failed = |error| Error::io(message(), error);
    let real = path.canonicalize().map_err(failed)?;
    let is_below = |top: &PathBuf| top.canonicalize().is_ok_and(|top| real.starts_with(top));
    match tops.iter().any(is_below) {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Permission, message())
            .because("it is not below a path that `serve --allow source:PATH` names")),
    }
}

/// Serves the trees of this host to a backup that runs on another one.
pub fn served_sources(rights: SourceRights) -> ServedSources {
    let open = move |words: &[u8]| {
        let words = read_words(words)?;
        rights.check(&words)?;
        open_scope(words)
    };
    ServedSources::new(platform::host_name(), Box::new(open))
}

fn read_words(words: &[u8]) -> Result<ScopeWords> {
    minicbor::decode(words)
        .map_err(|error| Error::corrupt("could not read which files are wanted").because(error))
}

fn open_scope(words: ScopeWords) -> Result<OpenedSources> {
    let split = words.split;
    let scope = words.scope();
    if let Some(path) = scope
        .paths
        .iter()
        .find(|path| stopped::is_data_directory(path) && stopped::is_running(path))
    {
        // Without a connection there is no backup mode, and files change while they are copied.
        let message = format!("cannot back up the cluster at {path:?}: it is running");
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("leave out --run-on, and use --on ssh://HOST with postgres://… as the source"));
    }
    let opened = scope.open(split, walkers(), Own::default())?;
    let paths = opened.paths.into_iter().map(|EntryName(path)| path);
    let origin = FarOrigin {
        host: platform::host_name(),
        paths: paths.collect(),
        contents: opened.contents,
        sources: opened.trees.len(),
    };
    let trees = opened.trees.into_iter();
    let sources = trees
        .map(|tree| Arc::new(tree) as Arc<dyn Source>)
        .collect();
    let subject = OpenedSubject::of_trees(
        Vec::new(),
        SourceInfo::default(),
        opened.rules,
        opened.warnings,
    );
    Ok(OpenedSources {
        origin,
        sources,
        warnings: Box::new(move || subject.warnings()),
    })
}
