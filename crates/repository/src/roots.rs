//! The documents that list the objects in use, and their contents.
//!
//! A backup has one of four documents: a root after its commit; before the commit, if it runs long
//! enough, a partial root with the objects that are durable so far; the document of a forgotten
//! backup, which was either of these before; or a void root, see [`crate::protocol`]. A
//! document never changes, except that of a live backup.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{self, BACKUPS, FORGOTTEN, MANIFEST, PARTIAL, ROOT, is_backup_id, is_object},
    root::{Root, RunStats, VOID_ROOT_BYTES, is_void},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_storage::{KeptLists, ListedObject, Objects, Version};
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

/// Tells documents apart that have one name.
pub(super) type Stamp = [u8; 16];

/// The kind of document that a backup has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupState {
    /// A root: the backup is listed.
    Listed,
    /// A root with the durable objects of a backup that has not ended.
    Partial,
    /// The former root of a forgotten backup.
    Forgotten,
    /// An empty root that prevents a commit: a prune took the writer for dead. It counts as
    /// forgotten.
    Void,
}

impl BackupState {
    /// A number for it in the index.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Listed => 0,
            Self::Partial => 1,
            Self::Forgotten => 2,
            Self::Void => 3,
        }
    }

    pub(super) fn of_number(number: u8) -> Option<Self> {
        let all = [Self::Listed, Self::Partial, Self::Forgotten, Self::Void];
        all.get(usize::from(number)).copied()
    }

    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Listed | Self::Void => ROOT,
            Self::Partial => PARTIAL,
            Self::Forgotten => FORGOTTEN,
        }
    }
}

/// The document of a backup, as read.
#[derive(Debug, Clone)]
pub struct Document {
    pub state: BackupState,
    /// Its contents; `None` if it is damaged but not a root, so that no backup is lost with it.
    pub facts: Option<Arc<RootFacts>>,
}

/// The facts of a document that maintenance needs. They are in memory for one document at a time.
#[derive(Debug, Clone, Default)]
pub struct RootFacts {
    /// The same for backups of one source: of one host the same cluster, at any path, or the same paths.
    pub(super) mark: [u8; 16],
    /// The put key that made it, by name, as a person sees it.
    pub put_key: Option<String>,
    /// The root as JSON without its lists of segments, pages and losses.
    pub(super) root: Vec<u8>,
    /// See [`needs`]; in the order of their keys.
    pub needs: Vec<NeededObject>,
}

/// An object that a backup needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NeededObject {
    /// The backup that it belongs to.
    pub backup: Arc<str>,
    pub name: Arc<str>,
    pub bytes: u64,
}

impl NeededObject {
    pub fn key(&self) -> String {
        key(&self.backup, &self.name)
    }
}

/// Names that are each in memory once.
#[derive(Debug, Default)]
pub struct NamePool(HashSet<Arc<str>>);

impl NamePool {
    pub(super) fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return known.clone();
        }
        let name: Arc<str> = Arc::from(name);
        self.0.insert(name.clone());
        name
    }
}

/// Documents by the id of their backup.
pub type Documents = BTreeMap<String, Document>;

/// Returns the directory of a backup.
pub fn dir(id: &str) -> String {
    format!("{BACKUPS}/{id}")
}

/// Returns the key of a file of a backup.
pub fn key(id: &str, file: &str) -> String {
    format!("{BACKUPS}/{id}/{file}")
}

/// The objects of one backup, as a listing shows them: the state of the backup follows without
/// another request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackupFiles {
    /// Names below the directory of the backup, each with a zero byte behind it: a repository has very many.
    names: Box<str>,
    sizes: Box<[u64]>,
    is_void: bool,
    /// Names the content of the document, if the listing has versions.
    stamp: Option<Stamp>,
}

impl BackupFiles {
    /// Returns whether an object of this name exists.
    pub fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// Returns the size of the object of this name.
    pub fn bytes(&self, name: &str) -> Option<u64> {
        self.sized()
            .find_map(|(known, bytes)| (known == name).then_some(bytes))
    }

    /// Returns names and sizes, in the order of names.
    pub fn sized(&self) -> impl Iterator<Item = (&str, u64)> {
        self.names().zip(self.sizes.iter().copied())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.split_terminator('\0')
    }

    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Returns whether a segment or a manifest exists.
    pub fn has_objects(&self) -> bool {
        self.names().any(is_object)
    }

    /// Returns the kind of document of the backup.
    pub fn state(&self) -> Option<BackupState> {
        if self.is_void {
            return Some(BackupState::Void);
        }
        [
            BackupState::Listed,
            BackupState::Partial,
            BackupState::Forgotten,
        ]
        .into_iter()
        .find(|state| self.has(state.file()))
    }

    /// Names the content of the document that says the state; `None` if that is not known, or may still change.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }
}

/// Collects the objects of a backup from a listing.
#[derive(Default)]
struct FilesBuilder {
    names: String,
    sizes: Vec<u64>,
    stamps: Vec<(BackupState, Stamp)>,
}

impl FilesBuilder {
    fn add(&mut self, name: &str, object: &ListedObject) {
        self.names.push_str(name);
        self.names.push('\0');
        self.sizes.push(object.bytes);
        // A live backup writes its partial root again and again.
        for state in [BackupState::Listed, BackupState::Forgotten] {
            if name == state.file()
                && let Some(version) = &object.version
            {
                self.stamps.push((state, stamp_of(object.bytes, version)));
            }
        }
    }

    fn build(self, objects: &dyn Objects, id: &str) -> Result<BackupFiles> {
        let mut files = BackupFiles {
            names: self.names.into(),
            sizes: self.sizes.into(),
            is_void: false,
            stamp: None,
        };
        files.is_void = is_void_root(objects, id, &files)?;
        let state = files.state();
        let mut stamps = self.stamps.into_iter();
        files.stamp = stamps
            .find(|(of, _)| Some(*of) == state)
            .map(|(_, stamp)| stamp);
        Ok(files)
    }
}

fn stamp_of(bytes: u64, version: &Version) -> Stamp {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes.to_le_bytes());
    hasher.update(version.as_str().as_bytes());
    let hash = hasher.finalize();
    *hash.as_bytes().first_chunk().unwrap_or(&[0; 16])
}

/// Returns whether a listing has a document with this content.
pub(super) fn is_answered(
    files: &BTreeMap<String, BackupFiles>,
    id: &str,
    state: BackupState,
    stamp: Stamp,
) -> bool {
    files
        .get(id)
        .is_some_and(|files| files.stamp == Some(stamp) && files.state() == Some(state))
}

/// Returns all backups that have an object, by their ids.
///
/// # Errors
/// Errors of the storage.
pub fn backup_files(objects: &dyn Objects) -> Result<BTreeMap<String, BackupFiles>> {
    listed_backups(objects, &objects.list(BACKUPS)?)
}

/// Returns all backups that have an object in a listing, by their ids.
///
/// # Errors
/// Errors of the storage.
pub(super) fn listed_backups(
    objects: &dyn Objects,
    listed: &[ListedObject],
) -> Result<BTreeMap<String, BackupFiles>> {
    let mut all: BTreeMap<String, BackupFiles> = BTreeMap::new();
    // Keys are in order, so the objects of a backup follow each other.
    let mut open: Option<(String, FilesBuilder)> = None;
    for object in listed {
        let below = object.key.strip_prefix(BACKUPS);
        let Some(below) = below.and_then(|below| below.strip_prefix('/')) else {
            continue;
        };
        // An object in place of the directory of a backup cannot be read, and must not be skipped.
        let names = below.split_once('/').or(Some((below, MANIFEST)));
        let Some((id, name)) = names.filter(|(id, _)| is_backup_id(id)) else {
            continue;
        };
        if open.as_ref().is_none_or(|(open, _)| open != id) {
            let ended = open.replace((id.to_owned(), FilesBuilder::default()));
            add_ended(objects, ended, &mut all)?;
        }
        if let Some((_, builder)) = &mut open {
            builder.add(name, object);
        }
    }
    add_ended(objects, open, &mut all)?;
    Ok(all)
}

fn add_ended(
    objects: &dyn Objects,
    ended: Option<(String, FilesBuilder)>,
    all: &mut BTreeMap<String, BackupFiles>,
) -> Result<()> {
    if let Some((id, builder)) = ended {
        let files = builder.build(objects, &id)?;
        all.insert(id, files);
    }
    Ok(())
}

/// Returns the objects of one backup.
///
/// # Errors
/// Errors of the storage.
pub fn files_of(objects: &dyn Objects, id: &str) -> Result<BackupFiles> {
    let dir = dir(id);
    let mut builder = FilesBuilder::default();
    for object in objects.list(&dir)? {
        builder.add(&object.key[dir.len() + 1..], &object);
    }
    builder.build(objects, id)
}

/// Reads only a root of the size of a void root: a root that was truncated to that size must not
/// count as void.
fn is_void_root(objects: &dyn Objects, id: &str, files: &BackupFiles) -> Result<bool> {
    if files.bytes(ROOT) != Some(VOID_ROOT_BYTES) {
        return Ok(false);
    }
    let root = objects.get(&key(id, ROOT))?;
    Ok(root.is_some_and(|(bytes, _)| is_void(&bytes)))
}

/// Returns the ids of all backups that have an object, ascending.
///
/// # Errors
/// Errors of the storage.
pub fn ids(objects: &dyn Objects) -> Result<Vec<String>> {
    Ok(backup_files(objects)?.into_keys().collect())
}

/// Returns the kind of document of a backup.
///
/// # Errors
/// Errors of the storage.
pub fn state(objects: &dyn Objects, id: &str) -> Result<Option<BackupState>> {
    // A document is replaced by another one, and a concurrent listing may show neither. The next
    // listing shows the other one.
    match files_of(objects, id)?.state() {
        Some(state) => Ok(Some(state)),
        None => Ok(files_of(objects, id)?.state()),
    }
}

/// Reads the document of one backup, of any kind.
///
/// # Errors
/// As [`documents`](super::root_reader::documents).
pub fn document(objects: &dyn Objects, id: &str) -> Result<Option<Document>> {
    for state in [
        BackupState::Listed,
        BackupState::Partial,
        BackupState::Forgotten,
    ] {
        if let Some(document) = read(objects, id, state, &KeptLists::default())? {
            return Ok(Some(document));
        }
    }
    Ok(None)
}

pub(super) fn read(
    objects: &dyn Objects,
    id: &str,
    state: BackupState,
    lists: &KeptLists,
) -> Result<Option<Document>> {
    let key = key(id, state.file());
    let Some((bytes, _)) = objects.get(&key)? else {
        return Ok(None);
    };
    if is_void(&bytes) {
        return void_document(objects, id).map(Some);
    }
    let name = format!("{key:?}");
    let root = Root::of_backup_as_stored(id, &bytes, &name);
    let root = root.and_then(|root| lists.whole_root(objects, root, &name));
    match root.and_then(|root| RootFacts::new(objects, root)) {
        Ok(facts) => Ok(Some(Document {
            state,
            facts: Some(Arc::new(facts)),
        })),
        // An unlisted backup has promised nothing yet. Of a listed one
        // the needs must be known.
        Err(error) if error.kind == ErrorKind::Corrupt && state != BackupState::Listed => {
            Ok(Some(Document { state, facts: None }))
        }
        Err(error) if error.kind == ErrorKind::Corrupt => Err(error
            .detail("without it the objects that this backup needs are unknown")
            .hint("`fullbore repair` rebuilds it; to give the backup up, name its id to `fullbore forget`")),
        Err(error) => Err(error),
    }
}

/// Returns the document of a backup with a void root: other backups may have referred to it before.
fn void_document(objects: &dyn Objects, id: &str) -> Result<Document> {
    let mut facts = None;
    for state in [BackupState::Partial, BackupState::Forgotten] {
        if facts.is_none() {
            facts = read(objects, id, state, &KeptLists::default())?
                .and_then(|document| document.facts);
        }
    }
    Ok(Document {
        state: BackupState::Void,
        facts,
    })
}

impl Document {
    /// Returns the contents.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged.
    pub fn facts(&self, id: &str) -> Result<&RootFacts> {
        self.facts
            .as_deref()
            .ok_or_else(|| Error::corrupt(format!("{:?} is damaged", key(id, self.state.file()))))
    }
}

impl RootFacts {
    /// Returns the root without its lists of segments, pages and losses.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`].
    pub fn root(&self) -> Result<Root> {
        serde_json::from_slice(&self.root)
            .map_err(|e| Error::new(ErrorKind::Bug, "cannot read JSON of this host").because(e))
    }

    /// The same for backups of one source: of one host the same cluster, at any path, or the same paths.
    pub fn mark(&self) -> [u8; 16] {
        self.mark
    }

    /// Returns the other backups that the root refers to, each once.
    pub fn others(&self, id: &str) -> impl Iterator<Item = &Arc<str>> {
        let backups = self.needs.chunk_by(|a, b| a.backup == b.backup);
        let backups = backups.map(|needs| &needs[0].backup);
        backups.filter(move |backup| &***backup != id)
    }

    pub(super) fn new(objects: &dyn Objects, mut root: Root) -> Result<Self> {
        let needs = needed_objects(&root)?;
        (root.segments, root.pages, root.liveness) = Default::default();
        root.forget_lists();
        root.not_captured = Vec::new();
        root.run = RunStats::default();
        let json = serde_json::to_vec(&root)
            .map_err(|e| Error::new(ErrorKind::Bug, "cannot write JSON").because(e))?;
        let sealed = objects.as_sealed();
        Ok(Self {
            mark: mark_of(&root),
            put_key: sealed.and_then(|sealed| sealed.put_key_of(&root.id)),
            root: json,
            needs,
        })
    }

    /// Takes names from the pool, so that each is in memory once.
    pub(super) fn share_names(&mut self, names: &mut NamePool) {
        for need in &mut self.needs {
            need.backup = names.shared(&need.backup);
            need.name = names.shared(&need.name);
        }
    }
}

/// A digest that backups of one source have in common. A cluster may have other paths on its host.
fn mark_of(root: &Root) -> [u8; 16] {
    let text = match &root.postgres {
        Some(cluster) => serde_json::json!([cluster.system_identifier, root.source.host]),
        None => serde_json::json!([root.source]),
    };
    let hash = blake3::hash(text.to_string().as_bytes());
    *hash.as_bytes().first_chunk().unwrap_or(&[0; 16])
}

/// Returns the backup that the key of an object belongs to, and the name of the object.
pub(super) fn object_of(key: &str) -> Option<(&str, &str)> {
    let below = key.strip_prefix(BACKUPS)?.strip_prefix('/')?;
    below.split_once('/')
}

fn needed_objects(root: &Root) -> Result<Vec<NeededObject>> {
    let needs = needs(root)?.into_iter();
    let split = needs.filter_map(|(key, bytes)| {
        let (backup, name) = object_of(&key)?;
        Some(NeededObject {
            backup: backup.into(),
            name: name.into(),
            bytes,
        })
    });
    Ok(split.collect())
}

/// Returns the objects that a backup needs, with the size of each: segments and manifests, its own
/// and those of others.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for a codec that this program does not know.
pub fn needs(root: &Root) -> Result<BTreeMap<String, u64>> {
    let suffix = Codec::named(&root.options.codec)?.suffix();
    let host_roots =
        |backup: &str, file: &str| key(if backup.is_empty() { &root.id } else { backup }, file);
    let mut needs = BTreeMap::new();
    let mut need = |key: String, bytes: u64| {
        let known = needs.entry(key).or_insert(0);
        *known = bytes.max(*known);
    };
    need(host_roots("", MANIFEST), 0);
    for segment in &root.segments {
        need(
            host_roots("", &layout::segment(segment.stream, segment.number, suffix)),
            segment.bytes,
        );
    }
    for live in &root.liveness {
        need(
            host_roots(
                &live.backup,
                &layout::segment(live.stream, live.number, suffix),
            ),
            live.of_bytes,
        );
        need(host_roots(&live.backup, MANIFEST), 0);
    }
    if let Some(at) = &root.lists_at {
        let end = at.offset.saturating_add(at.bytes);
        need(host_roots(&root.lists_of, MANIFEST), end);
    } else if !root.lists_of.is_empty() {
        need(host_roots(&root.lists_of, MANIFEST), 0);
    }
    for page in &root.pages {
        need(
            host_roots(&page.backup, MANIFEST),
            page.manifest_offset
                .map_or(0, |offset| offset.saturating_add(page.bytes)),
        );
    }
    Ok(needs)
}

/// The put key that made a backup, by name; `None` if a person made it, and without a key that reads.
pub fn put_key_of(objects: &dyn Objects, id: &str) -> Option<String> {
    let sealed = objects.as_sealed()?;
    // Reading the root tells.
    objects.get(&key(id, ROOT)).ok()?;
    sealed.put_key_of(id)
}
