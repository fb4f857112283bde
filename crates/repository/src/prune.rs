//! Deletes objects that no backup refers to, beside running backups and other prunes, even if any
//! process is killed at any time.
//!
//! 0. List the files of all backups, then the live backups, then all documents. An object is a
//!    candidate if its backup is not alive and no root mentions the object. The partial root of a
//!    dead backup counts as a root until there is a newer backup of the same source; then the dead
//!    backup is forgotten. If a root is lost, its references are unknown, and the prune ends here.
//!    Take the intent of each backup that has one, or was forgotten: a copy that restores such
//!    objects holds that intent. Objects are skipped if the intent cannot be taken, or if their
//!    state has changed meanwhile. A forgotten backup that has objects, and refers to no backup with
//!    candidates, is let be: whoever lists it again finds all that it mentions.
//! 1. Write a tombstone for each candidate, if there is room.
//! 2. List the live backups, and the bases they name, again. Without locks, a backup that looks dead
//!    may only be suspended: each one without a root gets a void root, which its own commit, a put
//!    if-absent, cannot replace.
//! 3. Read the documents of these bases, then all documents, again. A candidate that any of them
//!    mentions is kept; documents of backups that were forgotten before step 0 do not count.
//! 4. Delete each remaining candidate, then its tombstone. Delete the document of a forgotten backup
//!    once it has no objects: a directory with neither document nor intent has lost its root.
//! 5. Delete the intents of dead backups.
//!
//! Why this is safe: let X be a candidate, and B a backup that refers to X because its base A
//! mentions X. If B named A before step 2, then B is alive there, and step 3 finds the document of
//! A, or that of B if B has ended since. If B named A later, then A was not forgotten yet after
//! step 2. Then there are three cases:
//!
//! - The root of A existed in step 0: then X is no candidate.
//! - The root of A came later: step 3 finds it, whether or not A was forgotten since.
//! - A itself named its base after step 2: the same argument applies to A.
//!
//! The first backup in this chain is the one that stored X, which would have been alive in step 0.
//! Tombstones are a second guard.

pub use super::pruned::{BackupRemains, ObjectCount, Pruned};

use super::{
    leftovers::{is_deletable, remove_probes},
    protocol::{
        HeldLeases, Tombstone, alive, fence, forget_partial, intent_key, intents, remove_abandoned,
        settle, tombstones,
    },
    repository_file::read_repository,
    root_reader::{DocumentReader, KnownDocuments, VisitDocument},
    roots::{
        self, BackupFiles, BackupState, Document, RootFacts, backup_files, dir, files_of, key,
    },
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{
        CONTENTS, FORGOTTEN, KEYS, MANIFEST, PARTIAL, ROOT, TOMBSTONES, UNPROVEN, is_object,
        is_of_future, is_own,
    },
};
use fullbore_platform::queue::run_each;
use fullbore_storage::{Leased, Objects, PutIf, Take, at_once};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

/// An object that no root mentioned in step 0.
struct PruneCandidate {
    id: String,
    name: String,
}

impl PruneCandidate {
    fn key(&self) -> String {
        key(&self.id, &self.name)
    }

    fn tombstone(&self) -> String {
        format!("{TOMBSTONES}/{}/{}", self.id, self.name)
    }

    fn is_in(&self, kept: &Mentions) -> bool {
        kept.has(&self.id, &self.name)
    }
}

/// Deletes the objects that no backup refers to; with `dry`, only reports them.
///
/// # Errors
/// [`ErrorKind::Corrupt`] or [`ErrorKind::Unsupported`] if a root cannot be read
/// or is lost, or if the storage cannot tell whether a backup is running: then nothing was deleted.
/// Or the storage's; then the next prune continues. A deletion that the storage does not permit is no
/// error here, see [`Pruned::refusal`].
pub fn prune(objects: &dyn Objects, dry: bool) -> Result<Pruned> {
    prune_with(objects, dry, &mut DocumentReader::without_index(objects))
}

/// As [`prune`], with documents from a reader of these objects.
///
/// # Errors
/// As [`prune`].
pub fn prune_with(
    objects: &dyn Objects,
    dry: bool,
    reader: &mut DocumentReader<'_>,
) -> Result<Pruned> {
    let lacks_conditions = lacks_conditions(objects);
    if lacks_conditions {
        refuse_doubt(objects, intents(objects)?.first())?;
    }
    let mut first = PruneSurvey::look(objects, reader)?;
    let claims = if dry {
        HeldLeases::new()
    } else {
        first.claim(objects)?
    };
    if !dry {
        first.bury(objects)?;
    }
    first.lacks_conditions = lacks_conditions;
    let (named, kept) = first.look_again(objects, reader, &claims, dry)?;
    let mut pruned = first.account(&kept, &HashSet::new());
    if !dry {
        first.delete(objects, &named, &kept, &claims, &mut pruned)?;
        // The other intents are removed like those of dead backups.
        let ours = |id: &&String| claims.get(*id).is_some_and(|lease| lease.is_ours());
        let own = first.own_intents.iter().filter(ours);
        let own: Vec<String> = own.map(|id| intent_key(id)).collect();
        if !own.is_empty() {
            pruned.note_refusal(objects.delete(&own))?;
        }
        drop(claims);
        pruned.note_refusal(remove_abandoned(objects))?;
        pruned.note_refusal(remove_probes(objects))?;
    }
    if pruned.refusal.is_some() {
        let left = first.left(objects)?;
        pruned.backups = first.account(&kept, &left).backups;
    }
    Ok(pruned)
}

/// Returns what a prune would free and hold if these backups were forgotten, by the `files` of a listing. Deletes nothing, and so needs no
/// second listing.
///
/// # Errors
/// As [`prune`].
pub fn prune_forecast(
    objects: &dyn Objects,
    reader: &mut DocumentReader<'_>,
    files: BTreeMap<String, BackupFiles>,
    forgotten: &BTreeSet<String>,
) -> Result<Pruned> {
    let survey = PruneSurvey::look_once(objects, reader, files, forgotten)?;
    Ok(survey.account(&Mentions::default(), &HashSet::new()))
}

/// The objects that documents mention.
#[derive(Default)]
struct Mentions(HashMap<Arc<str>, Vec<Arc<str>>>);

impl Mentions {
    /// Adds what a document mentions.
    fn add(&mut self, facts: &RootFacts) {
        for need in &facts.needs {
            let names = self.0.entry(need.backup.clone()).or_default();
            let beside = beside_manifest(&need.name, need.bytes);
            let beside = beside.iter().map(|name| Arc::from(*name));
            for name in [need.name.clone()].into_iter().chain(beside) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
    }

    fn has(&self, id: &str, name: &str) -> bool {
        let names = self.0.get(id);
        names.is_some_and(|names| names.iter().any(|known| &**known == name))
    }
}

/// Reads documents, visits each, and adds it to those that are known. It gets the listing of the files of all backups.
type ReadDocuments<'a> = &'a mut dyn FnMut(
    &BTreeMap<String, BackupFiles>,
    &mut KnownDocuments,
    VisitDocument<'_>,
) -> Result<()>;

/// The state of the repository in step 0.
struct PruneSurvey {
    /// Objects by backup, without the live backups.
    files: BTreeMap<String, BackupFiles>,
    documents: KnownDocuments,
    /// The listed backups that refer to each backup that is not listed.
    holders: HashMap<Arc<str>, Vec<Arc<str>>>,
    /// Backups that were forgotten, or will be because they are dead and superseded.
    forgotten: BTreeSet<String>,
    superseded: BTreeSet<String>,
    candidates: Vec<PruneCandidate>,
    /// Backups that may be alive or dead.
    doubtful: Vec<String>,
    /// Tombstones that another process wrote.
    tombstones: Vec<Tombstone>,
    /// Forgotten backups that may be listed again, as another process holds their intents: their documents count.
    left: Vec<String>,
    /// The backups that each forgotten one refers to, as far as its document can be read.
    references: HashMap<Arc<str>, Vec<Arc<str>>>,
    /// Forgotten backups of which nothing can go now.
    let_be: BTreeSet<String>,
    /// Backups whose intent this prune made.
    own_intents: BTreeSet<String>,
    /// See [`Repository::lacks_conditions`](fullbore_format::layout::Repository::lacks_conditions).
    lacks_conditions: bool,
}

impl PruneSurvey {
    /// Step 0.
    fn look(objects: &dyn Objects, reader: &mut DocumentReader<'_>) -> Result<Self> {
        let files = backup_files(objects)?;
        Self::of(
            objects,
            files,
            &BTreeSet::new(),
            &mut |_, documents, visit| reader.visit(documents, visit),
        )
    }

    /// As [`PruneSurvey::look`], with the documents of a listing only. Backups that `will_be_forgotten` count as forgotten ones.
    fn look_once(
        objects: &dyn Objects,
        reader: &mut DocumentReader<'_>,
        files: BTreeMap<String, BackupFiles>,
        will_be_forgotten: &BTreeSet<String>,
    ) -> Result<Self> {
        Self::of(
            objects,
            files,
            will_be_forgotten,
            &mut |files, documents, visit| reader.visit_all_of(files, documents, visit),
        )
    }

    /// In this order: an intent exists before the first file, and until there is a root.
    fn of(
        objects: &dyn Objects,
        mut files: BTreeMap<String, BackupFiles>,
        will_be_forgotten: &BTreeSet<String>,
        read: ReadDocuments<'_>,
    ) -> Result<Self> {
        // Files before intents, intents before documents: a file that is listed here has an intent,
        // or its document is found below.
        let announced = intents(objects)?;
        let alive = alive(objects, &announced, &HeldLeases::new())?;
        let doubtful: Vec<String> = alive
            .iter()
            .filter(|(_, alive)| alive.is_doubtful)
            .map(|(id, _)| id.clone())
            .collect();
        refuse_doubt(objects, doubtful.first())?;
        let mut look = FirstPass::new(&files, will_be_forgotten);
        let mut documents = KnownDocuments::new();
        read(&files, &mut documents, &mut |id, document| {
            look.visit(id, document)
        })?;
        let FirstPass {
            mut mentions,
            holders,
            references,
            partial,
            ..
        } = look;
        alive.keys().for_each(|id| drop(files.remove(id)));
        refuse_loss(
            objects,
            files.iter().filter(|(id, _)| !announced.contains(id)),
            &documents,
        )?;
        let superseded: BTreeSet<String> = files
            .iter()
            .filter(|(id, files)| is_superseded(id, files, &documents))
            .map(|(id, _)| id.clone())
            .collect();
        let mut forgotten: BTreeSet<String> = documents
            .iter()
            .filter(|(_, document)| is_forgotten(document.state))
            .map(|(id, _)| id.to_string())
            .collect();
        forgotten.extend(superseded.iter().cloned());
        for id in will_be_forgotten {
            if let Some(document) = documents.get_mut(&**id) {
                document.state = BackupState::Forgotten;
            }
            forgotten.insert(id.clone());
        }
        for (id, document) in &partial {
            if !forgotten.contains(&**id) {
                mentions.add(document.facts(id)?);
            }
        }
        let mut first = Self {
            files,
            documents,
            holders,
            forgotten,
            superseded,
            candidates: Vec::new(),
            doubtful,
            tombstones: Vec::new(),
            left: Vec::new(),
            references,
            let_be: BTreeSet::new(),
            own_intents: BTreeSet::new(),
            lacks_conditions: false,
        };
        // After all documents: a candidate is an object that none of them mentions.
        first.candidates = first.unmentioned(&mentions);
        first.tombstones = tombstones(objects)?;
        Ok(first)
    }

    fn unmentioned(&self, mentions: &Mentions) -> Vec<PruneCandidate> {
        let mut candidates = Vec::new();
        for (id, files) in &self.files {
            let state = self.state_of(id);
            for name in files.names().filter(|name| is_deletable(name, state)) {
                if !mentions.has(id, name) {
                    candidates.push(PruneCandidate {
                        id: id.clone(),
                        name: name.to_owned(),
                    });
                }
            }
        }
        candidates
    }

    fn state_of(&self, id: &str) -> Option<BackupState> {
        self.documents.get(id).map(|document| document.state)
    }

    /// Returns whether the references of a document that is read after step 0 count: not those of backups that were forgotten
    /// in step 0.
    ///
    /// A backup without locks that looked dead may have committed since: then its root counts,
    /// although its partial root was forgotten.
    fn counts(&self, id: &str, document: &Document) -> bool {
        let is_counted = !self.forgotten.contains(id) || document.state == BackupState::Listed;
        // A base that became void before any object of it could be used mentions no objects.
        is_counted && !is_mute(document)
    }

    /// Takes the intents of all backups that have candidates. From here on no other process begins
    /// an object of these backups: a copy restores a backup under its former names. A backup whose
    /// intent another process holds, or whose state has changed, is skipped.
    fn claim(&mut self, objects: &dyn Objects) -> Result<HeldLeases> {
        let candidates = self.candidates.iter();
        let has_candidate: BTreeSet<&str> = candidates.map(|one| one.id.as_str()).collect();
        let can_change = |id: &String| {
            let names_candidates = |others: &Vec<Arc<str>>| {
                others.iter().any(|other| has_candidate.contains(&**other))
            };
            let references = self.references.get(id.as_str());
            !self.files[id].has_objects()
                || self.superseded.contains(id)
                || references.is_none_or(names_candidates)
        };
        let forgotten = self.files.keys().filter(|id| self.forgotten.contains(*id));
        let let_be = forgotten.filter(|id| !has_candidate.contains(id.as_str()) && !can_change(id));
        let let_be: BTreeSet<String> = let_be.cloned().collect();
        // A void backup that was pruned before has no objects left.
        let ids: Vec<String> = self
            .files
            .keys()
            .filter(|id| {
                has_candidate.contains(id.as_str())
                    || (self.forgotten.contains(*id) && !let_be.contains(*id))
                    || !self.documents.contains_key(&***id)
            })
            .filter(|id| {
                self.files[*id].names().any(|name| name != ROOT)
                    || self.files[*id].state() != Some(BackupState::Void)
            })
            .cloned()
            .collect();
        self.let_be = let_be;
        let mut claims = HeldLeases::new();
        for some in ids.chunks(at_once(objects)) {
            let claimed = run_each(some, |id| self.claim_one(objects, id));
            for (id, claimed) in some.iter().zip(claimed) {
                let (leased, is_new) = claimed?;
                if is_new {
                    self.own_intents.insert(id.clone());
                }
                match leased {
                    Leased::Ours(lease) => _ = claims.insert(id.clone(), lease),
                    Leased::Unknown => {}
                    Leased::Held | Leased::Absent => self.leave(id),
                }
            }
        }
        Ok(claims)
    }

    /// Takes the intent of a backup, if the state of that is still the same. Returns also whether it was made: then no writer of the
    /// backup can be suspended.
    fn claim_one(&self, objects: &dyn Objects, id: &str) -> Result<(Leased, bool)> {
        let (leased, is_new) = match take_intent(objects, id) {
            // A full storage cannot store the lease, and needs the prune all the more. Without
            // conditional puts, no backup and no copy is running.
            Err(error) if matches!(error.kind, ErrorKind::Full | ErrorKind::Unsupported) => {
                return Ok((Leased::Unknown, false));
            }
            taken => taken?,
        };
        let has_changed =
            matches!(leased, Leased::Ours(_)) && roots::state(objects, id)? != self.state_of(id);
        Ok((if has_changed { Leased::Held } else { leased }, is_new))
    }

    fn leave(&mut self, id: &str) {
        self.files.remove(id);
        self.candidates.retain(|candidate| candidate.id != id);
        if self.forgotten.remove(id) {
            self.left.push(id.to_owned());
        }
        self.superseded.remove(id);
        self.tombstones.retain(|(owner, _)| owner != id);
    }

    /// Step 1; and makes every forgetting durable before objects are deleted.
    fn bury(&self, objects: &dyn Objects) -> Result<()> {
        for id in &self.superseded {
            forget_partial(objects, id)?;
        }
        self.forgotten
            .iter()
            .try_for_each(|id| objects.settle(&dir(id)))?;
        // A document that is kept must be durable, too.
        let stays = self
            .documents
            .keys()
            .filter(|id| !self.forgotten.contains(&***id) && !self.candidates.is_empty());
        stays.into_iter().try_for_each(|id| settle(objects, id))?;
        // No backup refers to an unknown name.
        let known = self.candidates.iter().filter(|object| is_own(&object.name));
        let tombstones: Vec<String> = known.map(|candidate| candidate.tombstone()).collect();
        for some in tombstones.chunks(at_once(objects)) {
            let made = run_each(some, |key| {
                match objects.put(key, b"", &PutIf::Always) {
                    // A full storage cannot store a tombstone, and needs the prune all the more; the
                    // safety of the prune does not depend on tombstones.
                    Err(error) if error.kind == ErrorKind::Full => Ok(()),
                    other => other.map(drop),
                }
            });
            made.into_iter().collect::<Result<()>>()?;
        }
        Ok(())
    }

    /// Steps 2 and 3: returns the bases that are named, and the candidates that are mentioned now.
    ///
    /// No document that counted in step 0 mentions a candidate, so those that are the same are not read again.
    ///
    /// The bases are read first: if the document of a base has disappeared, the backups that named
    /// it have ended, and their roots are found. A backup whose intent this process holds is dead.
    fn look_again(
        &self,
        objects: &dyn Objects,
        reader: &mut DocumentReader<'_>,
        claims: &HeldLeases,
        dry: bool,
    ) -> Result<(BTreeSet<String>, Mentions)> {
        let mut announced = intents(objects)?;
        announced.retain(|id| !self.own_intents.contains(id));
        // Without conditional requests no lease proves that a backup is dead.
        if self.lacks_conditions {
            refuse_doubt(objects, announced.first())?;
        }
        let alive = alive(objects, &announced, claims)?;
        if !dry && !self.candidates.is_empty() {
            refuse_doubt(objects, alive.keys().find(|id| alive[*id].is_doubtful))?;
            fence(objects, &announced, &alive)?;
        }
        let named: BTreeSet<String> = alive.into_values().flat_map(|alive| alive.bases).collect();
        let mut kept = Mentions::default();
        for id in &named {
            if let Some(document) = roots::document(objects, id)?
                && !is_mute(&document)
            {
                kept.add(document.facts(id)?);
            }
        }
        for id in &self.left {
            // While it is listed again, a first look may miss both names.
            let document = match roots::document(objects, id)? {
                None => roots::document(objects, id)?,
                document => document,
            };
            if let Some(document) = document
                && !is_mute(&document)
            {
                kept.add(document.facts(id)?);
            }
        }
        reader.visit(&mut self.documents.clone(), &mut |id, document| {
            if self.counts(id, document) {
                kept.add(document.facts(id)?);
            }
            Ok(())
        })?;
        Ok((named, kept))
    }

    /// Steps 4 and 5: deletes objects, documents and intents.
    fn delete(
        &self,
        objects: &dyn Objects,
        named: &BTreeSet<String>,
        kept: &Mentions,
        claims: &HeldLeases,
        pruned: &mut Pruned,
    ) -> Result<()> {
        let mut going: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut marks: Vec<String> = Vec::new();
        for candidate in &self.candidates {
            if !candidate.is_in(kept) {
                going
                    .entry(&candidate.id)
                    .or_default()
                    .push(candidate.key());
            }
            marks.push(candidate.tombstone());
        }
        let each: Vec<(&&str, &Vec<String>)> = going.iter().collect();
        for some in each.chunks(at_once(objects)) {
            let deleted = run_each(some, |(id, keys)| {
                must_be_ours(objects, id, claims)?;
                objects.delete(keys)
            });
            for result in deleted {
                pruned.note_refusal(result)?;
            }
        }
        // The deletion of the objects is made durable before their document is deleted.
        going.keys().try_for_each(|id| objects.settle(&dir(id)))?;
        let others = self.tombstones.iter();
        marks.extend(others.map(|(id, name)| format!("{TOMBSTONES}/{id}/{name}")));
        if !marks.is_empty() {
            pruned.note_refusal(objects.delete(&marks))?;
        }
        pruned.note_refusal(objects.abort_uploads(TOMBSTONES))?;
        if objects.as_sealed().is_some() {
            // Those of a command that was killed while it changed keys.
            pruned.note_refusal(objects.abort_uploads(KEYS))?;
        }
        let dead = self.files.iter();
        let dead: Vec<(&String, &BackupFiles)> = dead
            .filter(|(id, _)| claims.contains_key(*id) || self.forgotten.contains(*id))
            .collect();
        for some in dead.chunks(at_once(objects)) {
            for result in run_each(some, |dead| self.delete_rest(objects, *dead, named, claims)) {
                pruned.note_refusal(result)?;
            }
        }
        Ok(())
    }

    /// Returns the keys of candidates that are still there.
    fn left(&self, objects: &dyn Objects) -> Result<HashSet<String>> {
        let present = backup_files(objects)?;
        let left = self.candidates.iter().filter(|candidate| {
            let files = present.get(&candidate.id);
            files.is_some_and(|files| files.has(&candidate.name))
        });
        Ok(left.map(PruneCandidate::key).collect())
    }

    /// The end of step 4, for one backup.
    fn delete_rest(
        &self,
        objects: &dyn Objects,
        (id, files): (&String, &BackupFiles),
        named: &BTreeSet<String>,
        claims: &HeldLeases,
    ) -> Result<()> {
        if claims.contains_key(id) && files.state() != Some(BackupState::Listed) {
            objects.abort_uploads(&dir(id))?;
        }
        if !self.forgotten.contains(id) || named.contains(id) || self.let_be.contains(id) {
            return Ok(());
        }
        if files.state() == Some(BackupState::Void) && !files.has(FORGOTTEN) && !files.has(PARTIAL)
        {
            return Ok(());
        }
        // Listed again: a single failed lookup makes a directory look empty.
        let present = files_of(objects, id)?;
        if present.has(FORGOTTEN) && !present.has_objects() {
            must_be_ours(objects, id, claims)?;
            objects.delete(&[key(id, FORGOTTEN)])?;
        }
        Ok(())
    }

    /// Counts the objects that are deleted, but for those in `left`, and those that are kept only for others.
    fn account(&self, kept: &Mentions, left: &HashSet<String>) -> Pruned {
        let going = self
            .candidates
            .iter()
            .filter(|candidate| !candidate.is_in(kept));
        let going: HashSet<String> = going.map(PruneCandidate::key).collect();
        let mut pruned = Pruned {
            doubtful: self.doubtful.clone(),
            ..Pruned::default()
        };
        for (id, files) in &self.files {
            let state = self.state_of(id);
            let is_unlisted = state.is_none() || self.forgotten.contains(id);
            let mut remains = BackupRemains::default();
            for name in files.names().filter(|name| is_deletable(name, state)) {
                let key = key(id, name);
                // The first arm that fits counts: an object is in one sum only.
                let amount = match (going.contains(&key), is_unlisted, state) {
                    (true, ..) if left.contains(&key) => &mut remains.undeleted,
                    (true, ..) => &mut remains.freed,
                    (false, true, _) => &mut remains.held,
                    (false, false, Some(BackupState::Partial)) => &mut remains.cut_off,
                    (false, false, _) => continue,
                };
                amount.add(name, files.bytes(name).unwrap_or(0));
            }
            if remains != BackupRemains::default() {
                remains.by = self.holders.get(&id[..]).cloned().unwrap_or_default();
                pruned.backups.insert(id.clone(), remains);
            }
        }
        pruned
    }
}

/// What step 0 collects while it reads the documents.
struct FirstPass<'a> {
    files: &'a BTreeMap<String, BackupFiles>,
    will_be_forgotten: &'a BTreeSet<String>,
    mentions: Mentions,
    holders: HashMap<Arc<str>, Vec<Arc<str>>>,
    references: HashMap<Arc<str>, Vec<Arc<str>>>,
    /// Dead backups, which count unless newer ones supersede them.
    partial: BTreeMap<Arc<str>, Document>,
}

impl<'a> FirstPass<'a> {
    fn new(
        files: &'a BTreeMap<String, BackupFiles>,
        will_be_forgotten: &'a BTreeSet<String>,
    ) -> Self {
        Self {
            files,
            will_be_forgotten,
            mentions: Mentions::default(),
            holders: HashMap::new(),
            references: HashMap::new(),
            partial: BTreeMap::new(),
        }
    }

    fn visit(&mut self, id: &Arc<str>, document: &Document) -> Result<()> {
        // A later document of the same backup takes its place.
        self.partial.remove(id);
        if self.will_be_forgotten.contains(&**id) {
            return Ok(());
        }
        match document.state {
            BackupState::Listed => {
                let facts = document.facts(id)?;
                self.mentions.add(facts);
                for other in facts.others(id) {
                    if !self.is_listed(other) {
                        let holders = self.holders.entry(other.clone()).or_default();
                        holders.push(id.clone());
                    }
                }
            }
            BackupState::Partial => {
                self.partial.insert(id.clone(), document.clone());
            }
            BackupState::Forgotten | BackupState::Void => {
                // What a damaged one refers to is not known.
                if let Ok(facts) = document.facts(id) {
                    let others = facts.others(id).cloned().collect();
                    self.references.insert(id.clone(), others);
                }
            }
        }
        Ok(())
    }

    fn is_listed(&self, id: &str) -> bool {
        let files = self.files.get(id);
        !self.will_be_forgotten.contains(id)
            && files.is_some_and(|files| files.state() == Some(BackupState::Listed))
    }
}

/// Returns the names of what is kept beside a manifest of which this many bytes are needed; nothing for another object. The list of
/// contents is of use as long as any of the pages that it speaks of.
fn beside_manifest(name: &str, bytes: u64) -> &'static [&'static str] {
    match (name == MANIFEST, bytes > 0) {
        (false, _) => &[],
        (true, false) => &[UNPROVEN],
        (true, true) => &[UNPROVEN, CONTENTS],
    }
}

fn is_mute(document: &Document) -> bool {
    document.state == BackupState::Void && document.facts.is_none()
}

/// Takes the intent of a dead backup. Returns also whether it was made.
fn take_intent(objects: &dyn Objects, id: &str) -> Result<(Leased, bool)> {
    let key = intent_key(id);
    if objects.abilities().has_locks {
        return Ok((objects.lease(&key, b"", Take::DeadOrNew)?, false));
    }
    match objects.lease(&key, b"", Take::New)? {
        Leased::Held => Ok((objects.lease(&key, b"", Take::Dead)?, false)),
        made => Ok((made, true)),
    }
}

/// Refuses to delete after the lease may have been lost: a copy may be restoring objects with these
/// names.
fn must_be_ours(objects: &dyn Objects, id: &str, claims: &HeldLeases) -> Result<()> {
    if claims.get(id).is_none_or(|lease| lease.is_ours()) {
        return Ok(());
    }
    let message = format!(
        "could not prune backup {id:?} in {}: its lease was lost",
        objects.describe("")
    );
    Err(Error::new(ErrorKind::Unreachable, message)
        .because("this host did not renew it in time")
        .hint("run the same command again"))
}

/// Refuses to prune where there are neither locks nor conditional puts: then a running backup could
/// commit references to objects that are deleted now.
fn refuse_doubt(objects: &dyn Objects, doubtful: Option<&String>) -> Result<()> {
    let Some(id) = doubtful.filter(|_| !objects.abilities().has_locks) else {
        return Ok(());
    };
    let message = format!(
        "cannot prune {}: backup {id:?} may be running",
        objects.describe("")
    );
    Err(Error::new(ErrorKind::Unsupported, message)
        .because("the storage has no conditional puts, so this cannot be found out")
        .hint(format!(
            "prune while no backup runs; if none does, remove {:?}",
            intent_key(id)
        )))
}

/// Returns whether the storage ignores the conditions of puts, so that no intent proves that its
/// backup is dead.
fn lacks_conditions(objects: &dyn Objects) -> bool {
    // The caller has looked at this file before.
    !objects.abilities().has_locks
        && read_repository(objects).is_ok_and(|repository| repository.lacks_conditions)
}

/// Refuses a directory with objects but without document and intent: its root is lost, and so are
/// the references in that root.
fn refuse_loss<'a>(
    objects: &dyn Objects,
    files: impl Iterator<Item = (&'a String, &'a BackupFiles)>,
    documents: &KnownDocuments,
) -> Result<()> {
    let undocumented = files.filter(|(id, _)| !documents.contains_key(&***id));
    for (id, files) in undocumented.filter(|(_, files)| files.has_objects()) {
        // An object that disappeared together with its document is no loss; a new object belongs to
        // a live backup.
        let present = files_of(objects, id)?;
        let is_left = present
            .names()
            .any(|name| is_object(name) && files.has(name));
        if is_left && roots::state(objects, id)?.is_none() {
            let message = format!("cannot prune: the root {:?} is missing", key(id, ROOT));
            return Err(Error::corrupt(message)
                .because("without it the objects that this backup needs are unknown")
                .hint(
                    "`fullbore repair` rebuilds it; to give the backup up, name its id to `fullbore forget`",
                ));
        }
    }
    Ok(())
}

/// Returns whether the references of this backup do not count any more, except for backups that
/// named it before.
fn is_forgotten(state: BackupState) -> bool {
    matches!(state, BackupState::Forgotten | BackupState::Void)
}

/// Returns whether this is a dead backup with a useless partial root: because a newer backup of the
/// same source was completed, because the partial root is damaged, or because the root is void.
fn is_superseded(id: &str, files: &BackupFiles, documents: &KnownDocuments) -> bool {
    let Some(document) = documents.get(id) else {
        return false;
    };
    if document.state != BackupState::Partial {
        return document.state == BackupState::Void && files.has(PARTIAL);
    }
    let Some(mark) = document.mark else {
        return true;
    };
    documents.iter().any(|(newer, document)| {
        let is_newer = &**newer > id && !is_of_future(newer, Timestamp::now());
        is_newer && document.state == BackupState::Listed && document.mark == Some(mark)
    })
}
