//! Delete what no backup refers to, beside backups and other prunes, whatever is killed when.
//!
//! 0. List the files of all backups, then the backups that are alive, then all documents. What is of no backup alive and
//!    is mentioned by no root is a candidate. A dead backup's partial root counts as one, until there is a newer backup
//!    of the same source; then it is forgotten. If a root is lost, nobody knows what it mentions: then this is the end.
//!    Take the intent of each backup that has one, or was forgotten: a copy, which brings back what had been there, has that of
//!    what it copies. What cannot be taken, or has become another meanwhile, is left alone.
//! 1. Write a tombstone for each candidate, if there is room.
//! 2. List the backups that are alive, and the bases they name, again.
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
    objects::{Objects, Seized},
    protocol::{alive, intent_key, intents, remove_abandoned, settle},
    roots::{self, BackupState, Document, Documents, dir, documents, has_objects, key},
};
use crate::{
    error::{Error, ErrorKind, Result},
    format::{
        layout::{
            FORGOTTEN, NOTES, PARTIAL, ROOT, TOMBSTONES, is_backup_id, is_object, is_own,
            segment_numbers,
        },
        sizes,
    },
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
/// [`crate::error::Kind::Corrupt`] or [`crate::error::Kind::Unsupported`] if a root cannot be read or is lost: nothing was
/// deleted then. Or the system's; then the next prune goes on.
pub fn prune<O: Objects>(objects: &O, dry: bool) -> Result<Pruned> {
    let mut first = Survey::look(objects)?;
    let claims = if dry {
        Vec::new()
    } else {
        first.claim(objects)?
    };
    if !dry {
        first.bury(objects)?;
    }
    let ours = claims.iter().map(|(id, _)| &id[..]).collect();
    let (named, kept) = first.look_again(objects, &ours)?;
    let pruned = first.account(objects, &kept)?;
    if !dry {
        first.delete(objects, &named, &kept)?;
        // Their intents go as those of dead backups do.
        drop(claims);
        remove_abandoned(objects)?;
    }
    Ok(pruned)
}

/// What is seen in step 0.
struct Survey {
    /// Names of files by backup; those that are alive are not here.
    files: BTreeMap<String, Vec<String>>,
    documents: Documents,
    /// Backups that were forgotten, or are to be: dead ones that are superseded.
    forgotten: BTreeSet<String>,
    superseded: BTreeSet<String>,
    candidates: Vec<PruneCandidate>,
    /// Backups that may be alive or dead.
    doubtful: Vec<String>,
    /// Tombstones that somebody wrote before us.
    tombstones: Vec<(String, String)>,
}

impl Survey {
    /// Step 0. In this order: an intent is there before the first file, and until there is a root.
    fn look<O: Objects>(objects: &O) -> Result<Self> {
        let mut files = BTreeMap::new();
        for id in roots::ids(objects)? {
            let names = objects.list(&dir(&id))?;
            files.insert(id, names);
        }
        let announced = intents(objects)?;
        let alive = alive(objects)?;
        alive.keys().for_each(|id| drop(files.remove(id)));
        let doubtful = alive
            .into_iter()
            .filter(|(_, alive)| alive.is_doubtful)
            .map(|(id, _)| id)
            .collect();
        let documents = documents(objects, Documents::new())?;
        refuse_loss(
            objects,
            files.iter().filter(|(id, _)| !announced.contains(id)),
            &documents,
        )?;
        let superseded: BTreeSet<String> = files
            .keys()
            .filter(|id| is_superseded(id, &documents))
            .map(String::clone)
            .collect();
        let is_forgotten =
            |(_, document): &(&String, &Document)| document.state == BackupState::Forgotten;
        let mut forgotten: BTreeSet<String> = documents
            .iter()
            .filter(is_forgotten)
            .map(|(id, _)| id.clone())
            .collect();
        forgotten.extend(superseded.iter().cloned());
        let (candidates, tombstones) = Default::default();
        let mut first = Self {
            files,
            documents,
            forgotten,
            superseded,
            candidates,
            doubtful,
            tombstones,
        };
        first.candidates = first.unmentioned()?;
        for id in objects
            .list(TOMBSTONES)?
            .into_iter()
            .filter(|id| is_backup_id(id))
        {
            let names = objects
                .list(&format!("{TOMBSTONES}/{id}"))?
                .into_iter()
                .filter(|name| is_own(name));
            first
                .tombstones
                .extend(names.map(|name| (id.clone(), name)));
        }
        Ok(first)
    }

    fn unmentioned(&self) -> Result<Vec<PruneCandidate>> {
        let kept = self.kept(&self.documents, &Documents::new())?;
        let mut candidates = Vec::new();
        for (id, names) in &self.files {
            let state = self.documents.get(id).map(|document| document.state);
            for name in names.iter().filter(|name| is_deletable(name, state)) {
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
    fn kept(&self, documents: &Documents, bases: &Documents) -> Result<HashSet<String>> {
        let counts = documents
            .iter()
            .filter(|(id, _)| !self.forgotten.contains(*id));
        let mut kept = HashSet::new();
        for (id, document) in counts.chain(bases) {
            kept.extend(document.facts(id)?.needs.keys().cloned());
        }
        Ok(kept)
    }

    /// From now on nobody else begins anything of what may go: a copy brings a backup back under names that it had. What somebody
    /// has, or what has become another since, is left alone.
    fn claim<O: Objects>(&mut self, objects: &O) -> Result<Vec<(String, O::Lock)>> {
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
        let ids: Vec<String> = self.files.keys().filter(may_go).cloned().collect();
        let mut claims = Vec::new();
        for id in ids {
            let claimed = match objects.claim(&intent_key(&id)) {
                // Where there is no room for it there is the more need to free some.
                Err(error) if error.kind == ErrorKind::Full => Seized::Unknown,
                claimed => claimed?,
            };
            let lock = match claimed {
                Seized::Held | Seized::Absent => None,
                Seized::Unknown => continue,
                Seized::Free(lock) => Some(lock),
            };
            let before = self.documents.get(&id).map(|document| document.state);
            match lock {
                Some(lock) if roots::state(objects, &id)? == before => claims.push((id, lock)),
                _ => self.leave(&id),
            }
        }
        Ok(claims)
    }

    fn leave(&mut self, id: &str) {
        self.files.remove(id);
        self.candidates.retain(|candidate| candidate.id != id);
        self.forgotten.remove(id);
        self.superseded.remove(id);
        self.tombstones.retain(|(of, _)| of != id);
    }

    /// Step 1; and what was forgotten is so for good before anything of it goes.
    fn bury<O: Objects>(&self, objects: &O) -> Result<()> {
        for id in &self.superseded {
            objects.rename(&key(id, PARTIAL), &key(id, FORGOTTEN))?;
        }
        self.forgotten
            .iter()
            .try_for_each(|id| objects.sync(&dir(id)))?;
        // What stays is so for good, too.
        let stays = self
            .documents
            .keys()
            .filter(|id| !self.forgotten.contains(*id) && !self.candidates.is_empty());
        stays.into_iter().try_for_each(|id| settle(objects, id))?;
        self.candidates.iter().try_for_each(|candidate| {
            match objects.mark(&candidate.tombstone()) {
                // Where there is no room for one, there is the more need to free some; nothing rests on it.
                Err(error) if error.kind == ErrorKind::Full => Ok(()),
                other => other,
            }
        })?;
        let backups: BTreeSet<&str> = self
            .candidates
            .iter()
            .map(|candidate| &candidate.id[..])
            .collect();
        backups
            .into_iter()
            .try_for_each(|id| objects.sync(&format!("{TOMBSTONES}/{id}")))
    }

    /// Steps 2 and 3: the bases that are named, and the keys that are mentioned now. The bases first: where the document
    /// of one is gone, those who named it have ended, and their roots are found.
    /// What has an intent of `ours` is dead.
    fn look_again<O: Objects>(
        &self,
        objects: &O,
        ours: &HashSet<&str>,
    ) -> Result<(BTreeSet<String>, HashSet<String>)> {
        let alive = alive(objects)?
            .into_iter()
            .filter(|(id, _)| !ours.contains(&id[..]));
        let named: BTreeSet<String> = alive.flat_map(|(_, alive)| alive.bases).collect();
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
    fn delete<O: Objects>(
        &self,
        objects: &O,
        named: &BTreeSet<String>,
        kept: &HashSet<String>,
    ) -> Result<()> {
        let mut touched = BTreeSet::new();
        for candidate in &self.candidates {
            if !candidate.is_in(kept) {
                objects.remove(&candidate.key())?;
                touched.insert(&candidate.id);
            }
            objects.remove(&candidate.tombstone())?;
        }
        // What a document mentions is gone for good before the document goes.
        touched
            .into_iter()
            .try_for_each(|id| objects.sync(&dir(id)))?;
        for (id, name) in &self.tombstones {
            objects.remove(&format!("{TOMBSTONES}/{id}/{name}"))?;
        }
        for id in objects
            .list(TOMBSTONES)?
            .into_iter()
            .filter(|id| is_backup_id(id))
        {
            objects.remove_dir(&format!("{TOMBSTONES}/{id}"))?;
        }
        self.files
            .keys()
            .try_for_each(|id| self.delete_dir(objects, id, named))
    }

    /// The last of step 4, in the directory of a backup.
    fn delete_dir<O: Objects>(
        &self,
        objects: &O,
        id: &String,
        named: &BTreeSet<String>,
    ) -> Result<()> {
        let mut names = objects.list(&dir(id))?;
        // It must be seen itself: a directory that could not be found once looks empty.
        let has_word =
            names.iter().any(|name| name == FORGOTTEN) && !names.iter().any(|name| is_object(name));
        if has_word && self.forgotten.contains(id) && !named.contains(id) {
            objects.remove(&key(id, FORGOTTEN))?;
            names.retain(|name| name != FORGOTTEN);
        }
        // Of what stays it must not be said that it could not be removed.
        if names.is_empty() {
            objects.remove_dir(&dir(id))
        } else {
            Ok(())
        }
    }

    /// What goes, and what stays for others only.
    fn account<O: Objects>(&self, objects: &O, kept: &HashSet<String>) -> Result<Pruned> {
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
        for (id, names) in &self.files {
            let state = self.documents.get(id).map(|document| document.state);
            let is_unlisted = state.is_none() || self.forgotten.contains(id);
            let mut remains = Remains::default();
            for name in names.iter().filter(|name| is_deletable(name, state)) {
                let key = key(id, name);
                let amount = match (going.contains(&key), is_unlisted, state) {
                    (true, ..) => &mut remains.freed,
                    (false, true, _) => &mut remains.held,
                    (false, false, Some(BackupState::Partial)) => &mut remains.cut_off,
                    (false, false, _) => continue,
                };
                amount.add(name, objects.size(&key)?.unwrap_or(0));
            }
            if remains != Remains::default() {
                remains.by = holders.get(&id[..]).cloned().unwrap_or_default();
                pruned.backups.insert(id.clone(), remains);
            }
        }
        Ok(pruned)
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

/// A directory with objects, without a document and without an intent has lost its root. It cannot be known what a root that is
/// lost refers to.
fn refuse_loss<'a, O: Objects>(
    objects: &O,
    files: impl Iterator<Item = (&'a String, &'a Vec<String>)>,
    documents: &Documents,
) -> Result<()> {
    let undocumented = files.filter(|(id, _)| !documents.contains_key(*id));
    for (id, names) in undocumented.filter(|(_, names)| has_objects(names)) {
        // What went meanwhile, with its document, was no loss; and what came is somebody's who is alive.
        let mut there = objects.list(&dir(id))?;
        there.retain(|name| names.contains(name));
        if has_objects(&there) && roots::state(objects, id)?.is_none() {
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

/// Is this a dead backup whose partial root is of no use any more, because a newer one of the same source has ended well,
/// or because it is damaged?
fn is_superseded(id: &String, documents: &Documents) -> bool {
    let Some(Document {
        state: BackupState::Partial,
        facts,
    }) = documents.get(id)
    else {
        return false;
    };
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
        PARTIAL => state != Some(BackupState::Partial),
        // Somebody may be writing a note.
        NOTES => !is_listed,
        _ if name.ends_with(".partial") => !is_listed && is_own(name),
        _ => is_object(name),
    }
}
