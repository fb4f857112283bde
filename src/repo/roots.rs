//! The documents that say what of a repository is in use, and what they say.
//!
//! A backup has one of four: its root, once it was committed; before that, if it lives long enough, a partial one of
//! what is durable so far; and the one that was either of these, after it was forgotten; or a void root, see [`crate::repo::protocol`]. A document never changes,
//! except that of a backup that is alive.

use crate::{
    error::{Error, ErrorKind, Result},
    format::{
        layout::{self, BACKUPS, FORGOTTEN, MANIFEST, PARTIAL, ROOT, is_backup_id, is_object},
        root::{Root, SourceInfo, VOID_ROOT_BYTES, is_void},
    },
    stage::codec::Codec,
    storage::{ListedObject, Objects},
};
use std::{collections::BTreeMap, sync::Arc};

/// Which document a backup has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupState {
    /// A root: the backup is listed.
    Listed,
    /// A root of what is durable of a backup that has not ended.
    Partial,
    /// What was a root, before the backup was forgotten.
    Forgotten,
    /// A root that says that none may come: its writer was taken for dead. As good as forgotten.
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

/// What was read of a backup.
#[derive(Debug, Clone)]
pub struct Document {
    /// What it is.
    pub state: BackupState,
    /// What it says; `None` if it is damaged and no root, so that no backup is lost with it.
    pub facts: Option<Arc<RootFacts>>,
}

/// What matters of a root; roots of many backups are in memory at the same time.
#[derive(Debug, Clone, Default)]
pub struct RootFacts {
    /// What was backed up.
    pub source: SourceInfo,
    /// The system identifier of the cluster, if it was one.
    pub cluster: Option<String>,
    /// See [`needs`].
    pub needs: BTreeMap<String, u64>,
    /// The other backups that it refers to.
    pub others: Vec<String>,
}

/// Documents by the id of their backup.
pub type Documents = BTreeMap<String, Document>;

/// The directory of a backup.
pub fn dir(id: &str) -> String {
    format!("{BACKUPS}/{id}")
}

/// The key of a file of a backup.
pub fn key(id: &str, file: &str) -> String {
    format!("{BACKUPS}/{id}/{file}")
}

/// The objects of one backup, as a listing shows them: what stands for its state needs no request of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackupFiles {
    /// Names below the directory of the backup, and sizes.
    sizes: BTreeMap<String, u64>,
    is_void: bool,
}

impl BackupFiles {
    /// Is an object of this name there?
    pub fn has(&self, name: &str) -> bool {
        self.sizes.contains_key(name)
    }

    /// Bytes of the object of this name.
    pub fn bytes(&self, name: &str) -> Option<u64> {
        self.sizes.get(name).copied()
    }

    /// All names, ascending.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.sizes.keys()
    }

    /// Is nothing there?
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Is a segment or a manifest there?
    pub fn has_objects(&self) -> bool {
        self.names().any(|name| is_object(name))
    }

    /// Which document the backup has.
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

/// All backups of which there is an object, by their ids.
///
/// # Errors
/// The storage's.
pub fn backup_files(objects: &dyn Objects) -> Result<BTreeMap<String, BackupFiles>> {
    let mut all: BTreeMap<String, BackupFiles> = BTreeMap::new();
    for ListedObject { key, bytes, .. } in objects.list(BACKUPS)? {
        let below = &key[BACKUPS.len() + 1..];
        // What is there in place of the directory of a backup cannot be read, and must not be passed over.
        let names = below.split_once('/').or(Some((below, MANIFEST)));
        let Some((id, name)) = names.filter(|(id, _)| is_backup_id(id)) else {
            continue;
        };
        let files = all.entry(id.to_owned()).or_default();
        files.sizes.insert(name.to_owned(), bytes);
    }
    for (id, files) in &mut all {
        files.is_void = is_void_root(objects, id, files)?;
    }
    Ok(all)
}

/// The objects of one backup.
///
/// # Errors
/// The storage's.
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

/// Only what has the size of a void root is read: a root that was cut off at that size must not be taken for one.
fn is_void_root(objects: &dyn Objects, id: &str, files: &BackupFiles) -> Result<bool> {
    if files.bytes(ROOT) != Some(VOID_ROOT_BYTES) {
        return Ok(false);
    }
    let root = objects.get(&key(id, ROOT))?;
    Ok(root.is_some_and(|(bytes, _)| is_void(&bytes)))
}

/// The ids of all backups of which there is an object, ascending.
///
/// # Errors
/// The storage's.
pub fn ids(objects: &dyn Objects) -> Result<Vec<String>> {
    Ok(backup_files(objects)?.into_keys().collect())
}

/// Which document a backup has.
///
/// # Errors
/// The storage's.
pub fn state(objects: &dyn Objects, id: &str) -> Result<Option<BackupState>> {
    // A document is replaced by another one, and a listing beside that may show neither. The next one shows the other.
    match files_of(objects, id)?.state() {
        Some(state) => Ok(Some(state)),
        None => Ok(files_of(objects, id)?.state()),
    }
}

/// Read the documents of all backups that are not among `known` yet, until two looks in a row see the same: then nothing
/// was missed that was there all the time, or was there before something else went.
///
/// # Errors
/// [`Kind::Corrupt`] for a root that is damaged, [`Kind::Unsupported`] for any document of a newer program, or the
/// storage's.
pub fn documents(objects: &dyn Objects, known: Documents) -> Result<Documents> {
    let (mut found, mut before) = (known, None);
    loop {
        let files = backup_files(objects)?;
        let seen: Vec<_> = files
            .into_iter()
            .map(|(id, files)| (files.state(), id))
            .collect();
        for (state, id) in &seen {
            // A backup that is alive writes its partial root again and again.
            let is_known = |known: &Document| {
                Some(known.state) == *state && known.state != BackupState::Partial
            };
            if let Some(state) = *state
                && !found.get(id).is_some_and(is_known)
                && let Some(document) = read(objects, id, state)?
            {
                found.insert(id.clone(), document);
            }
        }
        if before.as_ref() == Some(&seen) {
            return Ok(found);
        }
        before = Some(seen);
    }
}

/// Read the document of one backup, whichever it has.
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
        Err(error) if error.kind == ErrorKind::Corrupt && state != BackupState::Listed => {
            Ok(Some(Document { state, facts: None }))
        }
        Err(error) if error.kind == ErrorKind::Corrupt => Err(error
            .detail("without it nobody knows what that backup needs")
            .hint("`fullbore repair` rebuilds it; `fullbore forget` it by its id to give it up")),
        Err(error) => Err(error),
    }
}

/// What a backup said whose root is void: others may have referred to it before.
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
    /// What it says.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] if it is damaged.
    pub fn facts(&self, id: &str) -> Result<&RootFacts> {
        let damaged = || Error::corrupt(format!("{:?} is damaged", key(id, self.state.file())));
        self.facts.as_deref().ok_or_else(damaged)
    }
}

impl RootFacts {
    /// Are both of the same source: the same cluster, wherever it is, or the same paths of a host?
    pub fn is_like(&self, other: &Self) -> bool {
        self.cluster == other.cluster && (self.cluster.is_some() || self.source == other.source)
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

/// The objects that a backup needs, and how many bytes of each: segments and manifests, its own and of others.
///
/// # Errors
/// [`Kind::Unsupported`] for a codec that this program does not know.
pub fn needs(root: &Root) -> Result<BTreeMap<String, u64>> {
    let suffix = Codec::named(&root.options.codec)?.suffix();
    let of =
        |backup: &str, file: &str| key(if backup.is_empty() { &root.id } else { backup }, file);
    let mut needs = BTreeMap::new();
    let mut need = |key: String, bytes: u64| {
        let known = needs.entry(key).or_insert(0);
        *known = bytes.max(*known);
    };
    need(of("", MANIFEST), 0);
    for segment in &root.segments {
        need(
            of("", &layout::segment(segment.stream, segment.number, suffix)),
            segment.bytes,
        );
    }
    for live in &root.liveness {
        need(
            of(
                &live.backup,
                &layout::segment(live.stream, live.number, suffix),
            ),
            live.of_bytes,
        );
        need(of(&live.backup, MANIFEST), 0);
    }
    for page in &root.pages {
        need(
            of(&page.backup, MANIFEST),
            page.manifest_offset
                .map_or(0, |offset| offset.saturating_add(page.bytes)),
        );
    }
    Ok(needs)
}
