//! The documents that list the objects in use, and their contents.
//!
//! A backup has one of four documents: a root after its commit; before the commit, if it runs long
//! enough, a partial root with the objects that are durable so far; the document of a forgotten
//! backup, which was either of these before; or a void root, see [`crate::protocol`]. A
//! document never changes, except that of a live backup.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{self, BACKUPS, FORGOTTEN, MANIFEST, PARTIAL, ROOT, is_backup_id, is_object},
    root::{Root, SourceInfo, VOID_ROOT_BYTES, is_void},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform::queue::run_each;
use fullbore_storage::{ListedObject, Objects};
use std::{collections::BTreeMap, sync::Arc};

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
    fn file(self) -> &'static str {
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

/// The facts of a root that maintenance needs; the facts of many backups are in memory at the same
/// time.
#[derive(Debug, Clone, Default)]
pub struct RootFacts {
    pub source: SourceInfo,
    /// The system identifier of the cluster, if the source is one.
    pub cluster: Option<String>,
    /// See [`needs`].
    pub needs: BTreeMap<String, u64>,
    /// The other backups that the root refers to.
    pub others: Vec<String>,
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
    /// Names below the directory of the backup, and sizes.
    sizes: BTreeMap<String, u64>,
    is_void: bool,
}

impl BackupFiles {
    /// Returns whether an object of this name exists.
    pub fn has(&self, name: &str) -> bool {
        self.sizes.contains_key(name)
    }

    /// Returns the size of the object of this name.
    pub fn bytes(&self, name: &str) -> Option<u64> {
        self.sizes.get(name).copied()
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.sizes.keys()
    }

    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Returns whether a segment or a manifest exists.
    pub fn has_objects(&self) -> bool {
        self.names().any(|name| is_object(name))
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
    for ListedObject { key, bytes, .. } in listed {
        let below = key.strip_prefix(BACKUPS);
        let Some(below) = below.and_then(|below| below.strip_prefix('/')) else {
            continue;
        };
        // An object in place of the directory of a backup cannot be read, and must not be skipped.
        let names = below.split_once('/').or(Some((below, MANIFEST)));
        let Some((id, name)) = names.filter(|(id, _)| is_backup_id(id)) else {
            continue;
        };
        let files = all.entry(id.to_owned()).or_default();
        files.sizes.insert(name.to_owned(), *bytes);
    }
    for (id, files) in &mut all {
        files.is_void = is_void_root(objects, id, files)?;
    }
    Ok(all)
}

/// Returns the objects of one backup.
///
/// # Errors
/// Errors of the storage.
pub fn files_of(objects: &dyn Objects, id: &str) -> Result<BackupFiles> {
    let dir = dir(id);
    let listed = objects.list(&dir)?.into_iter();
    let names = listed.map(|object| (object.key[dir.len() + 1..].to_owned(), object.bytes));
    let mut files = BackupFiles {
        sizes: names.collect(),
        is_void: false,
    };
    files.is_void = is_void_root(objects, id, &files)?;
    Ok(files)
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

/// Reads the documents of all backups that are not among `known`, until two listings in a row
/// agree. Then no document was missed that existed all the time, or that existed before another
/// object was deleted.
///
/// # Errors
/// [`ErrorKind::Corrupt`] for a root that is damaged, [`ErrorKind::Unsupported`] for any document of a newer program, or the
/// storage's.
pub fn documents(objects: &dyn Objects, known: Documents) -> Result<Documents> {
    let (mut found, mut previous) = (known, None);
    loop {
        let files = backup_files(objects)?;
        let seen: Vec<_> = files
            .into_iter()
            .map(|(id, files)| (files.state(), id))
            .collect();
        let new: Vec<(String, BackupState)> = seen
            .iter()
            .filter_map(|(state, id)| Some((id.clone(), (*state)?)))
            .filter(|(id, state)| !found.get(id).is_some_and(|known| known.is_still(*state)))
            .collect();
        for some in new.chunks(at_once(objects)) {
            let documents = run_each(some, |(id, state)| read(objects, id, *state));
            for ((id, _), document) in some.iter().zip(documents) {
                found.extend(document?.map(|document| (id.clone(), document)));
            }
        }
        // A single listing can miss an object that appears while it runs.
        if previous.as_ref() == Some(&seen) {
            return Ok(found);
        }
        previous = Some(seen);
    }
}

/// Documents that are read at the same time if the storage is slow to answer.
const READ_AT_ONCE: usize = 16;

/// Returns how many documents are read at the same time.
pub(super) fn at_once(objects: &dyn Objects) -> usize {
    // A root can have megabytes, and reading a file takes less time than starting a thread.
    if objects.answers_late() {
        READ_AT_ONCE
    } else {
        1
    }
}

/// Reads the document of one backup, of any kind.
///
/// # Errors
/// As [`documents`].
pub fn document(objects: &dyn Objects, id: &str) -> Result<Option<Document>> {
    for state in [
        BackupState::Listed,
        BackupState::Partial,
        BackupState::Forgotten,
    ] {
        if let Some(document) = read(objects, id, state)? {
            return Ok(Some(document));
        }
    }
    Ok(None)
}

fn read(objects: &dyn Objects, id: &str, state: BackupState) -> Result<Option<Document>> {
    let key = key(id, state.file());
    let Some((bytes, _)) = objects.get(&key)? else {
        return Ok(None);
    };
    if is_void(&bytes) {
        return void_document(objects, id).map(Some);
    }
    match Root::of_backup(id, &bytes, &format!("{key:?}")).and_then(|root| RootFacts::new(&root)) {
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
            facts = read(objects, id, state)?.and_then(|document| document.facts);
        }
    }
    Ok(Document {
        state: BackupState::Void,
        facts,
    })
}

impl Document {
    /// Returns the document of a listed backup that was read already.
    ///
    /// # Errors
    /// As [`needs`].
    pub fn of_listed(root: &Root) -> Result<Self> {
        Ok(Self {
            state: BackupState::Listed,
            facts: Some(Arc::new(RootFacts::new(root)?)),
        })
    }

    /// A live backup writes its partial root again and again; other documents stay the same.
    fn is_still(&self, state: BackupState) -> bool {
        self.state == state && state != BackupState::Partial
    }

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
    /// Returns whether both have the same source: of one host the same cluster, at any path, or the same
    /// paths.
    pub fn is_like(&self, other: &Self) -> bool {
        let is_same_host = self.source.host == other.source.host;
        let is_same_cluster = self.cluster.is_some() && is_same_host;
        self.cluster == other.cluster && (is_same_cluster || self.source == other.source)
    }

    fn new(root: &Root) -> Result<Self> {
        let others = root
            .referenced_backups()
            .into_iter()
            .map(str::to_owned)
            .collect();
        let cluster = root
            .postgres
            .as_ref()
            .map(|cluster| cluster.system_identifier.clone());
        Ok(Self {
            source: root.source.clone(),
            cluster,
            needs: needs(root)?,
            others,
        })
    }
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
