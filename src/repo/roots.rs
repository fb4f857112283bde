//! The documents that say what of a repository is in use, and what they say.
//!
//! A backup has one of three: its root, once it was committed; before that, if it lives long enough, a partial one of
//! what is durable so far; and the one that was either of these, after it was forgotten. A document never changes,
//! except that of a backup that is alive.

use super::objects::Objects;
use crate::{
    error::{Error, ErrorKind, Result},
    format::{
        layout::{self, BACKUPS, FORGOTTEN, MANIFEST, PARTIAL, ROOT, is_backup_id, is_object},
        root::{Root, SourceInfo},
    },
    stage::codec::Codec,
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
}

impl BackupState {
    fn file(self) -> &'static str {
        match self {
            Self::Listed => ROOT,
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

/// The ids of all that has a directory, ascending.
///
/// # Errors
/// The system's.
pub fn ids<O: Objects>(objects: &O) -> Result<Vec<String>> {
    let mut ids = objects.list(BACKUPS)?;
    ids.retain(|id| is_backup_id(id));
    ids.sort_unstable();
    Ok(ids)
}

/// Which document a backup has.
///
/// # Errors
/// The system's.
pub fn state<O: Objects>(objects: &O, id: &str) -> Result<Option<BackupState>> {
    // Others rename the first two to the last, so that in this order none is missed.
    for state in [
        BackupState::Listed,
        BackupState::Partial,
        BackupState::Forgotten,
    ] {
        if objects.size(&key(id, state.file()))?.is_some() {
            return Ok(Some(state));
        }
    }
    Ok(None)
}

/// Read the documents of all backups that are not among `known` yet, until two looks in a row see the same: then nothing
/// was missed that was there all the time, or was there before something else went.
///
/// # Errors
/// [`Kind::Corrupt`] for a root that is damaged, [`Kind::Unsupported`] for any document of a newer program, or the
/// system's.
pub fn documents<O: Objects>(objects: &O, known: Documents) -> Result<Documents> {
    let (mut found, mut before) = (known, None);
    loop {
        let mut seen = Vec::new();
        for id in ids(objects)? {
            seen.push((state(objects, &id)?, id));
        }
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
pub fn document<O: Objects>(objects: &O, id: &str) -> Result<Option<Document>> {
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

fn read<O: Objects>(objects: &O, id: &str, state: BackupState) -> Result<Option<Document>> {
    let key = key(id, state.file());
    let Some(bytes) = objects.read(&key)? else {
        return Ok(None);
    };
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

/// Is a segment or a manifest among these names?
pub fn has_objects(names: &[String]) -> bool {
    names.iter().any(|name| is_object(name))
}
