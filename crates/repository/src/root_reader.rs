//! Reads the documents of all backups, one after the other: from the [index](super::root_index) of this host, or from the storage.

use super::{
    repository_file::read_repository,
    root_index::{IndexOwner, IndexPass, IndexPlace, RootIndex},
    roots::{
        BackupFiles, BackupState, Document, Documents, NamePool, RootFacts, Stamp, backup_files,
        read,
    },
};
use fullbore_crypt::Access;
use fullbore_format::{error::Result, layout::KEYS};
use fullbore_platform::queue::run_each;
use fullbore_storage::{KeptLists, Objects, SealedObjects, at_once};
use std::{collections::BTreeMap, sync::Arc};

/// What is called with each id, and with what was found of its document.
type FoundVisit<'a> = dyn FnMut(&Arc<str>, Result<Option<Document>>) -> Result<()> + 'a;

/// The part of a document that stays in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownDocument {
    pub state: BackupState,
    /// See [`RootFacts::mark`]; `None` if the document is damaged.
    pub(super) mark: Option<[u8; 16]>,
}

/// Documents by the id of their backup.
pub type KnownDocuments = BTreeMap<Arc<str>, KnownDocument>;

impl KnownDocument {
    fn of(document: &Document) -> Self {
        Self {
            state: document.state,
            mark: document.facts.as_ref().map(|facts| facts.mark),
        }
    }

    /// A live backup writes its partial root again and again; other documents stay the same.
    fn is_still(&self, state: BackupState) -> bool {
        self.state == state && state != BackupState::Partial
    }
}

/// Is called with each document.
pub type VisitDocument<'a> = &'a mut dyn FnMut(&Arc<str>, &Document) -> Result<()>;

/// Is called with the facts of each listed backup, or with the error of its root.
pub type VisitListed<'a> = &'a mut dyn FnMut(&str, Result<&RootFacts>) -> Result<()>;

/// A document that a listing has.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub id: Arc<str>,
    pub state: BackupState,
    pub stamp: Option<Stamp>,
}

/// Reads documents of one repository.
pub struct DocumentReader<'a> {
    objects: &'a dyn Objects,
    names: NamePool,
    index: Option<RootIndex>,
    lists: KeptLists,
}

impl<'a> DocumentReader<'a> {
    /// Reads each document from the storage.
    pub fn without_index(objects: &'a dyn Objects) -> Self {
        Self {
            objects,
            names: NamePool::default(),
            index: None,
            lists: KeptLists::default(),
        }
    }

    /// Reads a document from the index, if it is there.
    pub fn new(objects: &'a dyn Objects, place: &IndexPlace) -> Self {
        let owner = index_owner(objects);
        Self {
            index: owner.map(|owner| RootIndex::new(place, owner)),
            ..Self::without_index(objects)
        }
    }

    /// Calls `visit` with the documents of all backups that are not among `known`, until two listings in a row
    /// agree, and adds them there. Then no document was missed that existed all the time, or that existed before another
    /// object was deleted.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) for a root that is damaged, [`ErrorKind::Unsupported`](fullbore_format::error::ErrorKind::Unsupported) for any document of a newer program; the
    /// storage's, and those of `visit`.
    pub fn visit(&mut self, known: &mut KnownDocuments, visit: VisitDocument<'_>) -> Result<()> {
        let mut previous = None;
        loop {
            let files = backup_files(self.objects)?;
            // Only of the first look are there many.
            let uses_index = previous.is_none() && known.is_empty();
            self.visit_new_of(&files, uses_index, known, visit)?;
            // A single listing can miss an object that appears while it runs.
            let seen = digest_of_states(&files);
            if previous == Some(seen) {
                return Ok(());
            }
            previous = Some(seen);
        }
    }

    /// Calls `visit` with the documents of a listing, and adds them to those that are known.
    ///
    /// # Errors
    /// As [`DocumentReader::visit`].
    pub(super) fn visit_all_of(
        &mut self,
        files: &BTreeMap<String, BackupFiles>,
        known: &mut KnownDocuments,
        visit: VisitDocument<'_>,
    ) -> Result<()> {
        self.visit_new_of(files, true, known, visit)
    }

    fn visit_new_of(
        &mut self,
        files: &BTreeMap<String, BackupFiles>,
        uses_index: bool,
        known: &mut KnownDocuments,
        visit: VisitDocument<'_>,
    ) -> Result<()> {
        let is_new = |id: &str, state| {
            !known
                .get(id)
                .is_some_and(|known: &KnownDocument| known.is_still(state))
        };
        let mut found = Vec::new();
        self.pass(files, uses_index, &is_new, &mut |id, document| {
            if let Some(document) = document? {
                visit(id, &document)?;
                found.push((id.clone(), KnownDocument::of(&document)));
            }
            Ok(())
        })?;
        known.extend(found);
        Ok(())
    }

    /// Calls `visit` with each listed backup of a listing, oldest first. Backups that were forgotten since are left out.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn visit_listed(
        &mut self,
        files: &BTreeMap<String, BackupFiles>,
        visit: VisitListed<'_>,
    ) -> Result<()> {
        let is_listed = |_: &str, state| state == BackupState::Listed;
        self.pass(
            files,
            true,
            &is_listed,
            &mut |id, document| match document {
                Ok(Some(Document {
                    state: BackupState::Listed,
                    facts: Some(facts),
                })) => visit(id, Ok(&facts)),
                Ok(_) => Ok(()),
                Err(error) => visit(id, Err(error)),
            },
        )
    }

    fn pass(
        &mut self,
        files: &BTreeMap<String, BackupFiles>,
        uses_index: bool,
        is_wanted: &dyn Fn(&str, BackupState) -> bool,
        visit: &mut FoundVisit<'_>,
    ) -> Result<()> {
        let index = self.index.as_ref().filter(|_| uses_index);
        let mut pass = index.map(|index| index.pass(files.len()));
        let wanted = files.iter().filter_map(|(id, files)| {
            let state = files.state().filter(|state| is_wanted(id, *state))?;
            Some((id, state, files.stamp()))
        });
        let mut wanted = wanted.peekable();
        let at_once = at_once(self.objects);
        while wanted.peek().is_some() {
            let chunk: Vec<Wanted> = wanted
                .by_ref()
                .take(at_once)
                .map(|(id, state, stamp)| Wanted {
                    id: self.names.shared(id),
                    state,
                    stamp,
                })
                .collect();
            self.visit_chunk(&chunk, files, pass.as_mut(), visit)?;
        }
        if let (Some(index), Some(mut pass)) = (&mut self.index, pass) {
            pass.pass_over_rest(files, &mut self.names);
            index.end(pass);
        }
        Ok(())
    }

    /// Finds some documents in the index, reads the others, and visits all.
    fn visit_chunk(
        &mut self,
        chunk: &[Wanted],
        files: &BTreeMap<String, BackupFiles>,
        mut pass: Option<&mut IndexPass>,
        visit: &mut FoundVisit<'_>,
    ) -> Result<()> {
        let objects = self.objects;
        let mut found = Vec::new();
        for wanted in chunk {
            let pass = pass.as_mut();
            found.push(pass.and_then(|pass| pass.find(wanted, files, &mut self.names)));
        }
        let pairs = chunk.iter().zip(&found);
        let missing: Vec<_> = pairs
            .filter(|(_, found)| found.is_none())
            .map(|(wanted, _)| wanted.clone())
            .collect();
        let lists = &self.lists;
        let mut read = run_each(&missing, |wanted| {
            read(objects, &wanted.id, wanted.state, lists)
        })
        .into_iter();
        for (wanted, found) in chunk.iter().zip(found) {
            let is_new = found.is_none();
            let document = match found {
                Some(facts) => Ok(Some(Document {
                    state: wanted.state,
                    facts: Some(facts),
                })),
                None => read.next().unwrap_or(Ok(None)),
            };
            let document = document.map(|document| {
                document.map(|mut document| {
                    if let Some(facts) = document.facts.as_mut().and_then(Arc::get_mut) {
                        facts.share_names(&mut self.names);
                    }
                    document
                })
            });
            // The document of a void root is another object.
            if let Ok(Some(Document {
                state,
                facts: Some(facts),
            })) = &document
                && *state == wanted.state
                && let Some(pass) = &mut pass
            {
                pass.add(wanted, facts, is_new);
            }
            visit(&wanted.id, document)?;
        }
        if let Some(pass) = pass {
            pass.write_pending();
        }
        Ok(())
    }
}

/// Reads the documents of all backups. See [`DocumentReader::visit`].
///
/// # Errors
/// As there.
pub fn documents(objects: &dyn Objects) -> Result<Documents> {
    let mut found = Documents::new();
    DocumentReader::without_index(objects).visit(
        &mut KnownDocuments::new(),
        &mut |id, document| {
            found.insert(id.to_string(), document.clone());
            Ok(())
        },
    )?;
    Ok(found)
}

/// Returns the owner of an index; `None` if this process may not read what it would say.
fn index_owner(objects: &dyn Objects) -> Option<IndexOwner> {
    let sealed = objects.as_sealed();
    let access = sealed.and_then(SealedObjects::access);
    if access == Some(Access::Put) {
        return None;
    }
    let repository = read_repository(objects).ok()?;
    let ring = sealed.and_then(SealedObjects::ring).cloned();
    let mut name = blake3::Hasher::new();
    for part in [
        objects.describe(""),
        repository.id,
        ring.as_ref()
            .map(|ring| ring.fingerprint())
            .unwrap_or_default(),
        sealed.is_some().to_string(),
    ] {
        name.update(part.as_bytes());
        name.update(&[0]);
    }
    // Which roots count follows from the keys: a key that was removed changes a file here.
    let mut keys = blake3::Hasher::new();
    if sealed.is_some() {
        for object in objects.list(KEYS).ok()? {
            keys.update(object.key.as_bytes());
            keys.update(&[0]);
            match &object.version {
                Some(version) => keys.update(version.as_str().as_bytes()),
                // A directory has no versions of these files: their content says the same.
                None => keys.update(blake3::hash(&objects.get(&object.key).ok()??.0).as_bytes()),
            };
            keys.update(&[0]);
        }
    }
    Some(IndexOwner {
        name: name.finalize(),
        keys: keys.finalize(),
        ring,
    })
}

/// A digest of all backups and their states: two listings with the same one agree.
fn digest_of_states(files: &BTreeMap<String, BackupFiles>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for (id, files) in files {
        hasher.update(id.as_bytes());
        hasher.update(&[0, files.state().map_or(u8::MAX, BackupState::number)]);
    }
    hasher.finalize()
}
