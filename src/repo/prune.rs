//! Delete what no backup refers to, beside backups and other prunes, whatever is killed when.
//!
//! 0. List the files of all backups, then the backups that are alive, then all documents. What is of no backup alive and
//!    is mentioned by no root is a candidate. A dead backup's partial root counts as one, until there is a newer backup
//!    of the same source; then it is forgotten. If a root is lost, nobody knows what it mentions: then this is the end.
//!    Take the intent of each backup that has one, or was forgotten: a copy, which brings back what had been there, has that of
//!    what it copies. What cannot be taken, or has become another meanwhile, is left alone.
//! 1. Write a tombstone for each candidate, if there is room.
//! 2. List the backups that are alive, and the bases they name, again. Where there are no locks, one that looks dead may only be
//!    asleep: each that has no root gets a void one, which its own commit, a put if-absent, cannot replace.
//! 3. Read the documents of these bases, then all documents, again. A candidate that any of them mentions stays; those
//!    of backups that were forgotten before step 0 do not count.
//! 4. Of the others, the object goes, then its tombstone. A forgotten backup's document goes once no object of it is left:
//!    what has none, and no intent, has lost its root.
//! 5. The intents of dead backups go.
//!
//! Why this is safe: let X be a candidate, and B a backup that refers to it because its base A mentions X. If B named A
//! before step 2, then B is alive there, and A's document, or that of B, which has ended since, is found in 3. If B named A
//! later, then A was not forgotten yet after step 2. So either A's root was there in 0, and X is no candidate; or it came
//! after that, and is found in 3, forgotten since or not; or A itself named its base after step 2, and the same holds for
//! A. The first in this line is X's own backup, which would have been alive in 0. Tombstones are a second guard.

use super::{
    open::read_repository,
    protocol::{
        Claims, Tombstone, alive, fence, forget_partial, intent_key, intents, remove_abandoned,
        settle, tombstones,
    },
    roots::{
        self, BackupFiles, BackupState, Document, Documents, backup_files, dir, documents,
        files_of, key,
    },
};
use crate::{
    error::{Error, ErrorKind, Result},
    format::{
        layout::{FORGOTTEN, NOTES, PARTIAL, ROOT, TOMBSTONES, is_object, segment_numbers},
        sizes,
    },
    storage::{Leased, Objects, PutIf, Take},
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What a prune did, or would do: backups of which something went, or is kept for others alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// By id.
    pub backups: BTreeMap<String, Remains>,
    /// Backups that were left alone, as nobody can tell whether they are alive.
    pub doubtful: Vec<String>,
}

/// What became of a backup that is not listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remains {
    /// What went.
    pub freed: ObjectCount,
    /// What stays, because others refer to it.
    pub held: ObjectCount,
    /// What stays of a backup that was cut off, for the next one of its source to go on from.
    pub cut_off: ObjectCount,
    /// The listed backups that refer to it.
    pub by: Vec<String>,
}

/// Stored objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectCount {
    /// Segments among them.
    pub segments: u64,
    /// Bytes of all.
    pub bytes: u64,
}

impl ObjectCount {
    fn add(&mut self, name: &str, bytes: u64) {
        self.segments += u64::from(segment_numbers(name).is_some());
        sizes::add(&mut self.bytes, bytes);
    }
}

impl Pruned {
    /// All that went.
    pub fn freed(&self) -> ObjectCount {
        self.sum(|remains| remains.freed)
    }

    /// All that stays for others.
    pub fn held(&self) -> ObjectCount {
        self.sum(|remains| remains.held)
    }

    /// All that stays of backups that were cut off.
    pub fn cut_off(&self) -> ObjectCount {
        self.sum(|remains| remains.cut_off)
    }

    fn sum(&self, of: impl Fn(&Remains) -> ObjectCount) -> ObjectCount {
        self.backups
            .values()
            .map(of)
            .fold(ObjectCount::default(), |sum, more| ObjectCount {
                segments: sum.segments.saturating_add(more.segments),
                bytes: sum.bytes.saturating_add(more.bytes),
            })
    }
}

/// An object that no root mentioned when we looked first.
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

    fn is_in(&self, kept: &HashSet<String>) -> bool {
        kept.contains(&self.key())
    }
}

/// Delete what nothing refers to; or, `dry`, only say what that is.
///
/// # Errors
/// [`crate::error::Kind::Corrupt`] or [`crate::error::Kind::Unsupported`] if a root cannot be read or is lost, or if the storage
/// cannot tell whether a backup is under way: nothing was deleted then. Or the storage's; then the next prune goes on.
pub fn prune(objects: &dyn Objects, dry: bool) -> Result<Pruned> {
    let lacks_conditions = lacks_conditions(objects);
    if lacks_conditions {
        refuse_doubt(objects, intents(objects)?.first())?;
    }
    let mut first = Survey::look(objects)?;
    let claims = if dry {
        Claims::new()
    } else {
        first.claim(objects)?
    };
    if !dry {
        first.bury(objects)?;
    }
    first.lacks_conditions = lacks_conditions;
    let (named, kept) = first.look_again(objects, &claims, dry)?;
    let pruned = first.account(&kept);
    if !dry {
        first.delete(objects, &named, &kept, &claims)?;
        // The other intents go as those of dead backups do.
        for id in &first.own_intents {
            if claims.get(id).is_some_and(|lease| lease.is_ours()) {
                objects.delete(&[intent_key(id)])?;
            }
        }
        drop(claims);
        remove_abandoned(objects)?;
    }
    Ok(pruned)
}

/// What is seen in step 0.
struct Survey {
    /// Objects by backup; those that are alive are not here.
    files: BTreeMap<String, BackupFiles>,
    documents: Documents,
    /// Backups that were forgotten, or are to be: dead ones that are superseded.
    forgotten: BTreeSet<String>,
    superseded: BTreeSet<String>,
    candidates: Vec<PruneCandidate>,
    /// Backups that may be alive or dead.
    doubtful: Vec<String>,
    /// Tombstones that somebody wrote before us.
    tombstones: Vec<Tombstone>,
    /// Backups whose intent this prune made.
    own_intents: BTreeSet<String>,
    /// See [`Repository::lacks_conditions`](crate::format::layout::Repository::lacks_conditions).
    lacks_conditions: bool,
}

impl Survey {
    /// Step 0. In this order: an intent is there before the first file, and until there is a root.
    fn look(objects: &dyn Objects) -> Result<Self> {
        let mut files = backup_files(objects)?;
        let announced = intents(objects)?;
        let alive = alive(objects, &announced, &Claims::new())?;
        alive.keys().for_each(|id| drop(files.remove(id)));
        let doubtful: Vec<String> = alive
            .into_iter()
            .filter(|(_, alive)| alive.is_doubtful)
            .map(|(id, _)| id)
            .collect();
        refuse_doubt(objects, doubtful.first())?;
        let documents = documents(objects, Documents::new())?;
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
            .map(|(id, _)| id.clone())
            .collect();
        forgotten.extend(superseded.iter().cloned());
        let mut first = Self {
            files,
            documents,
            forgotten,
            superseded,
            candidates: Vec::new(),
            doubtful,
            tombstones: Vec::new(),
            own_intents: BTreeSet::new(),
            lacks_conditions: false,
        };
        first.candidates = first.unmentioned()?;
        first.tombstones = tombstones(objects)?;
        Ok(first)
    }

    fn unmentioned(&self) -> Result<Vec<PruneCandidate>> {
        let kept = self.kept(&self.documents, &Documents::new())?;
        let mut candidates = Vec::new();
        for (id, files) in &self.files {
            let state = self.documents.get(id).map(|document| document.state);
            for name in files.names().filter(|name| is_deletable(name, state)) {
                candidates.push(PruneCandidate {
                    id: id.clone(),
                    name: name.clone(),
                });
            }
        }
        candidates.retain(|candidate| !candidate.is_in(&kept));
        Ok(candidates)
    }

    /// The keys that documents mention: all but those of backups that were forgotten at first, and those of `bases`.
    ///
    /// A backup without locks that looked dead may have committed since: then it counts, though its partial root was forgotten.
    fn kept(&self, documents: &Documents, bases: &Documents) -> Result<HashSet<String>> {
        let counts = documents.iter().filter(|(id, document)| {
            !self.forgotten.contains(*id) || document.state == BackupState::Listed
        });
        let mut kept = HashSet::new();
        // A base that became void before anything of it could be used has said nothing.
        let is_mute =
            |document: &Document| document.state == BackupState::Void && document.facts.is_none();
        for (id, document) in counts
            .chain(bases)
            .filter(|(_, document)| !is_mute(document))
        {
            kept.extend(document.facts(id)?.needs.keys().cloned());
        }
        Ok(kept)
    }

    /// From now on nobody else begins anything of what may go: a copy brings a backup back under names that it had. What somebody
    /// has, or what has become another since, is left alone.
    fn claim(&mut self, objects: &dyn Objects) -> Result<Claims> {
        let has_candidate: BTreeSet<&String> = self
            .candidates
            .iter()
            .map(|candidate| &candidate.id)
            .collect();
        let may_go = |id: &&String| {
            has_candidate.contains(id)
                || self.forgotten.contains(*id)
                || !self.documents.contains_key(*id)
        };
        // Of a void one that was pruned before, nothing is left that could go.
        let has_rest = |id: &&String| {
            self.files[*id].names().any(|name| name != ROOT)
                || self.files[*id].state() != Some(BackupState::Void)
        };
        let ids: Vec<String> = self
            .files
            .keys()
            .filter(may_go)
            .filter(has_rest)
            .cloned()
            .collect();
        let mut claims = Claims::new();
        for id in ids {
            let claimed = match self.take_intent(objects, &id) {
                // Where there is no room for it there is the more need to free some. Where there are no conditional puts, no backup and
                // no copy is under way.
                Err(error) if matches!(error.kind, ErrorKind::Full | ErrorKind::Unsupported) => {
                    Leased::Unknown
                }
                claimed => claimed?,
            };
            let lease = match claimed {
                Leased::Held | Leased::Absent => None,
                Leased::Unknown => continue,
                Leased::Ours(lease) => Some(lease),
            };
            let before = self.documents.get(&id).map(|document| document.state);
            match lease {
                Some(lease) if roots::state(objects, &id)? == before => {
                    claims.insert(id, lease);
                }
                _ => self.leave(&id),
            }
        }
        Ok(claims)
    }

    /// Notes which intents are only ours: no writer of these backups can be asleep.
    fn take_intent(&mut self, objects: &dyn Objects, id: &str) -> Result<Leased> {
        let key = intent_key(id);
        if objects.abilities().has_locks {
            return objects.lease(&key, b"", Take::DeadOrNew);
        }
        match objects.lease(&key, b"", Take::New)? {
            Leased::Held => objects.lease(&key, b"", Take::Dead),
            made => {
                self.own_intents.insert(id.to_owned());
                Ok(made)
            }
        }
    }

    fn leave(&mut self, id: &str) {
        self.files.remove(id);
        self.candidates.retain(|candidate| candidate.id != id);
        self.forgotten.remove(id);
        self.superseded.remove(id);
        self.tombstones.retain(|(of, _)| of != id);
    }

    /// Step 1; and what was forgotten is so for good before anything of it goes.
    fn bury(&self, objects: &dyn Objects) -> Result<()> {
        for id in &self.superseded {
            forget_partial(objects, id)?;
        }
        self.forgotten
            .iter()
            .try_for_each(|id| objects.settle(&dir(id)))?;
        // What stays is so for good, too.
        let stays = self
            .documents
            .keys()
            .filter(|id| !self.forgotten.contains(*id) && !self.candidates.is_empty());
        stays.into_iter().try_for_each(|id| settle(objects, id))?;
        self.candidates.iter().try_for_each(|candidate| {
            match objects.put(&candidate.tombstone(), b"", &PutIf::Always) {
                // Where there is no room for one, there is the more need to free some; nothing rests on it.
                Err(error) if error.kind == ErrorKind::Full => Ok(()),
                other => other.map(drop),
            }
        })
    }

    /// Steps 2 and 3: the bases that are named, and the keys that are mentioned now. The bases first: where the document
    /// of one is gone, those who named it have ended, and their roots are found.
    /// What we hold the intent of is dead.
    fn look_again(
        &self,
        objects: &dyn Objects,
        claims: &Claims,
        dry: bool,
    ) -> Result<(BTreeSet<String>, HashSet<String>)> {
        let mut announced = intents(objects)?;
        announced.retain(|id| !self.own_intents.contains(id));
        if self.lacks_conditions {
            refuse_doubt(objects, announced.first())?;
        }
        let alive = alive(objects, &announced, claims)?;
        if !dry && !self.candidates.is_empty() {
            refuse_doubt(objects, alive.keys().find(|id| alive[*id].is_doubtful))?;
            fence(objects, &announced, &alive)?;
        }
        let named: BTreeSet<String> = alive.into_values().flat_map(|alive| alive.bases).collect();
        let mut bases = Documents::new();
        for id in &named {
            if let Some(document) = roots::document(objects, id)? {
                bases.insert(id.clone(), document);
            }
        }
        let documents = documents(objects, self.documents.clone())?;
        let kept = self.kept(&documents, &bases)?;
        Ok((named, kept))
    }

    /// Steps 4 and 5.
    fn delete(
        &self,
        objects: &dyn Objects,
        named: &BTreeSet<String>,
        kept: &HashSet<String>,
        claims: &Claims,
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
        for (id, keys) in &going {
            must_be_ours(objects, id, claims)?;
            objects.delete(keys)?;
        }
        // What a document mentions is gone for good before the document goes.
        going.keys().try_for_each(|id| objects.settle(&dir(id)))?;
        let others = self.tombstones.iter();
        marks.extend(others.map(|(id, name)| format!("{TOMBSTONES}/{id}/{name}")));
        if !marks.is_empty() {
            objects.delete(&marks)?;
        }
        objects.abort_uploads(TOMBSTONES)?;
        self.files
            .iter()
            .try_for_each(|(id, files)| self.delete_rest(objects, (id, files), named, claims))
    }

    /// The last of step 4, in the directory of a backup.
    fn delete_rest(
        &self,
        objects: &dyn Objects,
        (id, files): (&String, &BackupFiles),
        named: &BTreeSet<String>,
        claims: &Claims,
    ) -> Result<()> {
        if claims.contains_key(id) && files.state() != Some(BackupState::Listed) {
            objects.abort_uploads(&dir(id))?;
        }
        if !self.forgotten.contains(id) || named.contains(id) {
            return Ok(());
        }
        if files.state() == Some(BackupState::Void) && !files.has(FORGOTTEN) && !files.has(PARTIAL)
        {
            return Ok(());
        }
        // It must be seen itself: a directory that could not be found once looks empty.
        let there = files_of(objects, id)?;
        if there.has(FORGOTTEN) && !there.has_objects() {
            must_be_ours(objects, id, claims)?;
            objects.delete(&[key(id, FORGOTTEN)])?;
        }
        Ok(())
    }

    /// What goes, and what stays for others only.
    fn account(&self, kept: &HashSet<String>) -> Pruned {
        let going = self
            .candidates
            .iter()
            .filter(|candidate| !candidate.is_in(kept));
        let going: HashSet<String> = going.map(PruneCandidate::key).collect();
        let holders = self.holders();
        let mut pruned = Pruned {
            doubtful: self.doubtful.clone(),
            ..Pruned::default()
        };
        for (id, files) in &self.files {
            let state = self.documents.get(id).map(|document| document.state);
            let is_unlisted = state.is_none() || self.forgotten.contains(id);
            let mut remains = Remains::default();
            for name in files.names().filter(|name| is_deletable(name, state)) {
                let key = key(id, name);
                let amount = match (going.contains(&key), is_unlisted, state) {
                    (true, ..) => &mut remains.freed,
                    (false, true, _) => &mut remains.held,
                    (false, false, Some(BackupState::Partial)) => &mut remains.cut_off,
                    (false, false, _) => continue,
                };
                amount.add(name, files.bytes(name).unwrap_or(0));
            }
            if remains != Remains::default() {
                remains.by = holders.get(&id[..]).cloned().unwrap_or_default();
                pruned.backups.insert(id.clone(), remains);
            }
        }
        pruned
    }

    /// Who refers to a backup, of those that are listed.
    fn holders(&self) -> HashMap<&str, Vec<String>> {
        let mut holders: HashMap<&str, Vec<String>> = HashMap::new();
        for (id, document) in self
            .documents
            .iter()
            .filter(|(_, document)| document.state == BackupState::Listed)
        {
            for other in document.facts.iter().flat_map(|facts| &facts.others) {
                holders.entry(other).or_default().push(id.clone());
            }
        }
        holders
    }
}

/// Who may have lost a lease may not delete any more: a copy may be bringing back what has these names.
fn must_be_ours(objects: &dyn Objects, id: &str, claims: &Claims) -> Result<()> {
    if claims.get(id).is_none_or(|lease| lease.is_ours()) {
        return Ok(());
    }
    let what = format!(
        "could not prune backup {id:?} in {}: its lease was lost",
        objects.describe("")
    );
    Err(Error::new(ErrorKind::Unreachable, what)
        .because("this host did not renew it in time")
        .hint("run the same command again"))
}

/// Where there are no locks, and no conditional puts either, nothing keeps a backup under way from committing what goes now.
fn refuse_doubt(objects: &dyn Objects, doubtful: Option<&String>) -> Result<()> {
    let Some(id) = doubtful.filter(|_| !objects.abilities().has_locks) else {
        return Ok(());
    };
    let what = format!(
        "cannot prune {}: backup {id:?} may be under way",
        objects.describe("")
    );
    Err(Error::new(ErrorKind::Unsupported, what)
        .because("the storage has no conditional puts, so nobody can tell")
        .hint(format!(
            "prune while no backup runs; if none does, remove {:?}",
            intent_key(id)
        )))
}

/// Does the storage ignore the conditions of puts? Then no intent proves that its backup is dead.
fn lacks_conditions(objects: &dyn Objects) -> bool {
    // The caller has looked at this file before.
    !objects.abilities().has_locks
        && read_repository(objects).is_ok_and(|repository| repository.lacks_conditions)
}

/// A directory with objects, without a document and without an intent has lost its root. It cannot be known what a root that is
/// lost refers to.
fn refuse_loss<'a>(
    objects: &dyn Objects,
    files: impl Iterator<Item = (&'a String, &'a BackupFiles)>,
    documents: &Documents,
) -> Result<()> {
    let undocumented = files.filter(|(id, _)| !documents.contains_key(*id));
    for (id, files) in undocumented.filter(|(_, files)| files.has_objects()) {
        // What went meanwhile, with its document, was no loss; and what came is somebody's who is alive.
        let there = files_of(objects, id)?;
        let is_left = there.names().any(|name| is_object(name) && files.has(name));
        if is_left && roots::state(objects, id)?.is_none() {
            let what = format!("cannot prune: the root {:?} is missing", key(id, ROOT));
            return Err(Error::corrupt(what)
                .because("without it nobody knows what that backup needs")
                .hint(
                    "`fullbore repair` rebuilds it; `fullbore forget` it by its id to give it up",
                ));
        }
    }
    Ok(())
}

/// Does what this backup mentions not count any more, but for those who named it before?
fn is_forgotten(state: BackupState) -> bool {
    matches!(state, BackupState::Forgotten | BackupState::Void)
}

/// Is this a dead backup whose partial root is of no use any more, because a newer one of the same source has ended well,
/// or because it is damaged, or because its root is void?
fn is_superseded(id: &String, files: &BackupFiles, documents: &Documents) -> bool {
    let Some(Document { state, facts }) = documents.get(id) else {
        return false;
    };
    if *state != BackupState::Partial {
        return *state == BackupState::Void && files.has(PARTIAL);
    }
    let Some(facts) = facts else { return true };
    documents.iter().any(|(newer, document)| {
        let is_same = || {
            document
                .facts
                .as_ref()
                .is_some_and(|newer| newer.is_like(facts))
        };
        newer > id && document.state == BackupState::Listed && is_same()
    })
}

/// May this file of a backup in that state go, if nothing mentions it? Names that are not ours may not.
fn is_deletable(name: &str, state: Option<BackupState>) -> bool {
    let is_listed = state == Some(BackupState::Listed);
    match name {
        // One that is void becomes what says that the backup was forgotten.
        PARTIAL => !matches!(state, Some(BackupState::Partial | BackupState::Void)),
        // Somebody may be writing a note.
        NOTES => !is_listed,
        _ => is_object(name),
    }
}
