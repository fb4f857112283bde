//! Makes backups that refer to other backups safe beside [`crate::prune`], although neither
//! waits for the other.
//!
//! A backup
//!
//! 1. announces itself with an intent, whose lock it holds while it runs,
//! 2. reads the roots and chooses its bases,
//! 3. names the bases in its intent,
//! 4. then checks that they still exist ([`refer`]),
//! 5. stores its objects,
//! 6. checks that all objects that it refers to exist ([`check`]),
//! 7. stores its root,
//! 8. removes its intent.
//!
//! A base that is named in step 3 and found in step 4 is kept for the backup: every process that
//! removes objects reads the intents after the last moment at which the backup could have found
//! them. So the listing by which it chooses in step 2 may be older than its intent, and on another
//! host steps 1 and 2 go on at the same time.

use super::{
    intent::taken_for_dead,
    large_listing::LargeListing,
    root_reader::{DocumentReader, KnownDocuments},
    roots::{self, BackupState, backup_files, dir, files_of, key, object_of},
};
pub use fullbore_format::intent::{Intent, intent_key};

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{
        BACKUPS, FORGOTTEN, INTENTS, MANIFEST, PARTIAL, ROOT, TOMBSTONES, is_backup_id, is_own,
        segment_numbers,
    },
    page::SegmentId,
    root::{BackupOptions, FORMAT, Root, VOID_ROOT_BYTES, is_void, void_root},
    seal::{open_sealed, seal},
};
use fullbore_pipeline::{sink::Referred, stage::codec::Codec};
use fullbore_platform as platform;
use fullbore_platform::queue::{run_both, run_each};
use fullbore_storage::{
    Lease, Leased, ListedObject, Objects, Put, PutIf, Take, at_once, is_released, lease_body,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

/// A tombstone: the backup, and the name of the object in it.
pub(super) type Tombstone = (String, String);

pub(super) fn tombstones(objects: &dyn Objects) -> Result<Vec<Tombstone>> {
    let listed = objects.list(TOMBSTONES)?.into_iter();
    let names = listed.filter_map(|object| tombstone(&object.key[TOMBSTONES.len() + 1..]));
    Ok(names.collect())
}

fn tombstone(name: &str) -> Option<Tombstone> {
    let (id, name) = name.split_once('/')?;
    (is_backup_id(id) && is_own(name)).then(|| (id.to_owned(), name.to_owned()))
}

/// Step 4: returns which of `bases`, named in the intent of a live backup, and which other objects
/// must not be used.
///
/// # Errors
/// Errors of the storage.
pub fn refer(objects: &dyn Objects, bases: &[String]) -> Result<Referred> {
    refer_after(objects, None, bases)
}

/// As [`refer`], after a look at a repository with very many objects.
///
/// No prune deletes an object that a listed backup mentions. So if a base is still listed now that it is named, its objects are as they
/// were at the look, but for damage, and the check before the commit looks for them again.
///
/// # Errors
/// Errors of the storage.
pub(super) fn refer_after(
    objects: &dyn Objects,
    look: Option<&LargeListing>,
    bases: &[String],
) -> Result<Referred> {
    let (listed, tombstones, sizes) = match look.filter(|look| bases.len() < look.requests()) {
        Some(look) => {
            let (marks, listed) =
                run_both(true, || tombstones(objects), || listed_of(objects, bases));
            let listed = listed?;
            let ids = listed.iter().filter_map(named_backup_id).collect();
            (ids, marks?, Some(look.sizes.clone()))
        }
        None => listed_bases(objects)?,
    };
    let mut referred = Referred {
        sizes,
        ..Referred::default()
    };
    for base in bases {
        if !listed.contains(base) && !is_there(objects, base)? {
            referred.gone.push(base.clone());
        }
    }
    for (backup, name) in tombstones {
        if name == MANIFEST {
            referred.manifests.insert(backup.clone());
        } else if let Some((stream, number)) = segment_numbers(&name) {
            referred.tombstones.insert(SegmentId {
                backup: backup.clone(),
                stream,
                number,
            });
        }
    }
    Ok(referred)
}

/// Backups that are surely listed, all tombstones, and the bytes of all objects.
type ListedBases = (
    HashSet<String>,
    Vec<Tombstone>,
    Option<Arc<BTreeMap<String, u64>>>,
);

/// Returns the objects of these backups. Many are listed at once.
fn listed_of(objects: &dyn Objects, ids: &[String]) -> Result<Vec<ListedObject>> {
    let mut listed = Vec::new();
    for some in ids.chunks(at_once(objects)) {
        for found in run_each(some, |id| objects.list(&dir(id))) {
            listed.extend(found?);
        }
    }
    Ok(listed)
}

/// Returns what can be referred to. A store takes one request for it; of a directory, no backups and
/// no objects are listed.
fn listed_bases(objects: &dyn Objects) -> Result<ListedBases> {
    if !objects.answers_late() {
        return Ok((HashSet::new(), tombstones(objects)?, None));
    }
    let all = objects.list("")?;
    let listed = all.iter().filter_map(named_backup_id).collect();
    let marks = all.iter().filter_map(|object| {
        let name = object.key.strip_prefix(TOMBSTONES)?.strip_prefix('/')?;
        tombstone(name)
    });
    let marks = marks.collect();
    let sizes = all.into_iter().map(|object| (object.key, object.bytes));
    Ok((listed, marks, Some(Arc::new(sizes.collect()))))
}

fn named_backup_id(object: &ListedObject) -> Option<String> {
    let (id, name) = object_of(&object.key)?;
    // A root as short as a void one must be read.
    let is_listed = name == ROOT && object.bytes != VOID_ROOT_BYTES;
    is_listed.then(|| id.to_owned())
}

/// Returns whether a backup is listed, or died after it had stored a partial root.
fn is_there(objects: &dyn Objects, id: &str) -> Result<bool> {
    if let Some((root, _)) = objects.get(&key(id, ROOT))? {
        return Ok(!is_void(&root));
    }
    // In this order: a live backup that gives up removes its partial root before its intent.
    let is_dead = matches!(
        objects.lease(&intent_key(id), b"", Take::Dead)?,
        Leased::Ours(_) | Leased::Absent
    );
    if !is_dead || objects.stat(&key(id, PARTIAL))?.is_none() {
        return Ok(false);
    }
    // Meanwhile an earlier prune that took the backup for dead may have made its root void.
    Ok(objects.abilities().has_locks || objects.stat(&key(id, ROOT))?.is_none())
}

/// Returns whether a backup is dead, as far as that can be seen without waiting and without
/// writing.
pub(super) fn is_dead(objects: &dyn Objects, id: &str) -> bool {
    if objects.abilities().has_locks {
        let taken = objects.lease(&intent_key(id), b"", Take::Dead);
        return matches!(taken, Ok(Leased::Ours(_) | Leased::Absent));
    }
    match objects.get(&intent_key(id)) {
        Ok(None) => true,
        Ok(Some((intent, _))) => is_released(&intent),
        Err(_) => false,
    }
}

/// Step 6: checks that all objects that `root` refers to exist, with at least their recorded sizes.
/// Objects that are `listed` are not looked for.
///
/// # Errors
/// [`ErrorKind::NotFound`] or [`ErrorKind::Corrupt`] if one does not, or an error of the system.
pub fn check(objects: &dyn Objects, root: &Root, listed: &HashMap<String, u64>) -> Result<()> {
    let hint = "nothing was committed; `fullbore verify` shows which backups are damaged";
    for (key, bytes) in roots::needs(root)? {
        let message = format!(
            "cannot commit backup {:?}: {key:?}, which it refers to,",
            root.id
        );
        if listed.get(&key).is_some_and(|present| *present >= bytes) {
            continue;
        }
        match objects.stat(&key)? {
            Some(present) if present >= bytes => {}
            Some(present) => {
                let message = format!("{message} has {present} bytes and had {bytes}");
                return Err(Error::new(ErrorKind::Corrupt, message).hint(hint));
            }
            None => {
                return Err(
                    Error::new(ErrorKind::NotFound, format!("{message} is gone")).hint(hint),
                );
            }
        }
    }
    Ok(())
}

/// Returns the bytes of existing objects, for [`check`]. A store takes one request for all; of a
/// directory, and for a root that needs only its own manifest, none are returned.
///
/// # Errors
/// Errors of the storage.
pub fn listed_needs(objects: &dyn Objects, root: &Root) -> Result<HashMap<String, u64>> {
    listed_needs_after(objects, None, root)
}

/// As [`listed_needs`], after a look at a repository with very many objects: if it takes fewer requests, only the backups that the root
/// refers to are listed.
///
/// # Errors
/// Errors of the storage.
pub(super) fn listed_needs_after(
    objects: &dyn Objects,
    look: Option<&LargeListing>,
    root: &Root,
) -> Result<HashMap<String, u64>> {
    let needs = roots::needs(root)?;
    if !objects.answers_late() || needs.len() < 2 {
        return Ok(HashMap::new());
    }
    let own = key(&root.id, MANIFEST);
    let others = needs.keys().filter(|key| **key != own);
    let backups: BTreeSet<&str> = others.filter_map(|key| Some(object_of(key)?.0)).collect();
    let backups: Vec<String> = backups.into_iter().map(str::to_owned).collect();
    let listed = match look.filter(|look| backups.len() < look.requests()) {
        Some(_) => listed_of(objects, &backups)?,
        None => objects.list(BACKUPS)?,
    };
    let listed = listed.into_iter();
    Ok(listed.map(|object| (object.key, object.bytes)).collect())
}

/// Step 7: stores the root, unless another process made it void.
///
/// # Errors
/// [`ErrorKind::Gone`] if the backup was taken for dead; or the storage's, and then the root may be there.
pub fn store_root(objects: &dyn Objects, id: &str, sealed: &[u8]) -> Result<()> {
    let key = key(id, ROOT);
    if objects.put(&key, sealed, &PutIf::Absent)? != Put::Refused {
        return Ok(());
    }
    // An earlier attempt may have succeeded although its answer was lost.
    match objects.get(&key)? {
        Some((there, _)) if there == sealed => Ok(()),
        _ => Err(taken_for_dead(objects, id)),
    }
}

/// Prevents the root of a backup from being stored. Returns false if it exists already.
///
/// # Errors
/// Errors of the storage.
pub(super) fn make_void(objects: &dyn Objects, id: &str) -> Result<bool> {
    let key = key(id, ROOT);
    if objects.put(&key, &void_root()?, &PutIf::Absent)? != Put::Refused {
        return Ok(true);
    }
    let present = objects.get(&key)?;
    Ok(present.is_some_and(|(root, _)| is_void(&root)))
}

/// Forgets a backup: it is not listed any more, and the rest of it stays until the next prune.
/// Returns false if it does not exist.
///
/// # Errors
/// Errors of the storage.
pub fn forget(objects: &dyn Objects, id: &str) -> Result<bool> {
    let root = match objects.get(&key(id, ROOT)) {
        Ok(None) => return Ok(false),
        Ok(Some((root, _))) if is_void(&root) => return Ok(false),
        Ok(Some((root, _))) => root,
        // A backup with an unreadable root can be forgotten.
        Err(error) if error.kind == ErrorKind::Corrupt => word_without_facts(id)?,
        Err(error) => return Err(error),
    };
    // A backup that was killed right after its commit still has its partial root: without the root,
    // it would look as if it had died before the commit.
    if objects.stat(&key(id, PARTIAL))?.is_some() {
        objects.delete(&[key(id, PARTIAL)])?;
    }
    replace_by_mark(objects, id, ROOT, &root)
        .map_err(|error| error.detail(format!("backup {id:?} is still listed")))?;
    Ok(true)
}

/// Turns a partial root into the document of a forgotten backup. Returns false if it does not
/// exist.
pub(super) fn forget_partial(objects: &dyn Objects, id: &str) -> Result<bool> {
    let partial = match objects.get(&key(id, PARTIAL)) {
        Ok(None) => return Ok(false),
        Ok(Some((partial, _))) => unfinished(partial)?,
        Err(error) if error.kind == ErrorKind::Corrupt => word_without_facts(id)?,
        Err(error) => return Err(error),
    };
    replace_by_mark(objects, id, PARTIAL, &partial)?;
    Ok(true)
}

/// Takes the end from the root of an interrupted backup, so that it cannot become a listed one.
fn unfinished(partial: Vec<u8>) -> Result<Vec<u8>> {
    match open_sealed::<Root>(&partial, PARTIAL) {
        Ok(root) => seal(&Root {
            finished: String::new(),
            ..root
        }),
        Err(_) => Ok(partial),
    }
}

/// Makes a document of a backup, its root or partial root, the mark that the backup is forgotten.
///
/// Forgetting must work on a full disk, because it is how space is freed. So there the document is deleted before the mark is written,
/// which has fewer bytes. A process that is killed between the two leaves a backup that has lost its root: forgetting it by its id writes
/// the mark.
fn replace_by_mark(objects: &dyn Objects, id: &str, name: &str, document: &[u8]) -> Result<()> {
    let put = |mark: &[u8]| objects.put(&key(id, FORGOTTEN), mark, &PutIf::Always);
    let is_full = match put(document) {
        Err(error) if error.kind == ErrorKind::Full => true,
        put => put.map(|_| false)?,
    };
    // Only of a directory is the space known to be free at once.
    if is_full && !objects.abilities().has_locks {
        put(&word_without_facts(id)?)?;
    }
    objects.delete(&[key(id, name)])?;
    objects.settle(&dir(id))?;
    if is_full && objects.abilities().has_locks {
        let again = format!("run `fullbore forget` with the id {id:?}");
        put(&word_without_facts(id)?).map_err(|error| error.hint(again))?;
        objects.settle(&dir(id))?;
    }
    Ok(())
}

/// Returns the document of a forgotten backup, without any facts.
fn word_without_facts(id: &str) -> Result<Vec<u8>> {
    let options = BackupOptions {
        codec: Codec::None.name().to_owned(),
        ..BackupOptions::default()
    };
    seal(&Root {
        format: FORMAT,
        id: id.to_owned(),
        options,
        ..Root::default()
    })
}

/// Gives up the remains of a dead backup: the next prune frees the objects that only this backup
/// needs. Returns false if there are no remains, or the backup was forgotten before.
///
/// # Errors
/// [`ErrorKind::Usage`] if the backup is alive, or if that cannot be found out; or errors of the storage.
pub fn write_off(objects: &dyn Objects, id: &str) -> Result<bool> {
    // Before the lock is tried: the intent of a backup exists before its first object.
    let has_objects = files_of(objects, id)?.has_objects();
    // Held until the backup is forgotten: a process that uses it as a base checks for it after
    // naming it.
    let lock = objects.lease(&intent_key(id), b"", Take::Dead)?;
    match lock {
        Leased::Ours(_) | Leased::Absent => {}
        Leased::Held => return cannot_forget(id, "it is running, or being pruned or copied"),
        Leased::Unknown => {
            let hint = format!(
                "if it is not running, remove {:?} and run the same command again",
                intent_key(id)
            );
            return cannot_forget(id, "it may still be running").map_err(|error| error.hint(hint));
        }
    }
    // The backup may have committed, and died, since the caller looked.
    if forget(objects, id)? {
        return Ok(true);
    }
    if !has_objects || forget_partial(objects, id)? {
        return Ok(has_objects);
    }
    let is_lost = roots::state(objects, id)?.is_none();
    if is_lost {
        objects.put(
            &key(id, FORGOTTEN),
            &word_without_facts(id)?,
            &PutIf::Always,
        )?;
    }
    Ok(is_lost)
}

fn cannot_forget(id: &str, reason: &str) -> Result<bool> {
    Err(Error::new(
        ErrorKind::Usage,
        format!("cannot forget backup {id:?}: {reason}"),
    ))
}

/// Gives up a live backup, in its own process. Objects that no other backup can have referred to
/// are deleted at once.
///
/// If storing the root failed, the root may still have been visible to others, who may have chosen
/// it as a base. Then the backup is forgotten like any other.
///
/// # Errors
/// The storage's; the next prune removes the rest.
pub fn give_up(objects: &dyn Objects, id: &str) -> Result<()> {
    if forget(objects, id)? {
        return Ok(());
    }
    if !objects.abilities().has_locks {
        // Other processes may have taken this backup for dead, and refer to objects that the
        // partial root mentions: then a prune decides.
        let is_void = make_void(objects, id)?;
        let files = files_of(objects, id)?;
        if !is_void || files.has(PARTIAL) || files.has(FORGOTTEN) {
            return Ok(());
        }
        return remove_files(objects, id);
    }
    // First the file that would look usable if this process died here.
    objects.delete(&[key(id, PARTIAL)])?;
    objects.settle(&dir(id))?;
    remove_files(objects, id)
}

/// Makes the names of objects durable that another process wrote for backup `id`, because that
/// process may have been killed before it did so. Then they can be relied on.
///
/// # Errors
/// The storage's. A missing directory is no error.
pub fn settle(objects: &dyn Objects, id: &str) -> Result<()> {
    match objects.settle(&dir(id)) {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Backups that are settled at the same time.
const SETTLED_AT_ONCE: usize = 8;

/// As [`settle`], of several backups; on another host at the same time.
///
/// # Errors
/// As [`settle`].
pub fn settle_all(objects: &dyn Objects, ids: &[&str]) -> Result<()> {
    match ids {
        [] => Ok(()),
        [id] => settle(objects, id),
        _ => {
            let (first, second) = ids.split_at(ids.len() / 2);
            let at_once = objects.answers_late() && ids.len() <= SETTLED_AT_ONCE;
            let first = || settle_all(objects, first);
            let (first, second) = run_both(at_once, first, || settle_all(objects, second));
            first.and(second)
        }
    }
}

/// Leases on the intents of backups, by id.
pub(super) type HeldLeases = BTreeMap<String, Box<dyn Lease>>;

#[derive(Debug, Default)]
pub struct LiveBackup {
    /// The bases that its intent names.
    pub bases: Vec<String>,
    /// Whether it cannot be found out if the backup is alive.
    pub is_doubtful: bool,
}

/// Returns the live backups, and the bases that they name. A backup that has not named its bases
/// yet has none here: it will see all changes made before this call. A backup whose lease the
/// caller holds is dead.
///
/// # Errors
/// Errors of the storage.
pub(super) fn alive(
    objects: &dyn Objects,
    announced: &[String],
    ours: &HeldLeases,
) -> Result<BTreeMap<String, LiveBackup>> {
    let mut alive = BTreeMap::new();
    for id in announced.iter().filter(|id| !ours.contains_key(*id)) {
        let key = intent_key(id);
        let is_doubtful = match objects.lease(&key, b"", Take::Dead)? {
            Leased::Ours(_) | Leased::Absent => continue,
            Leased::Held => false,
            Leased::Unknown => true,
        };
        let intent = objects
            .get(&key)?
            .and_then(|(bytes, _)| open_sealed::<Intent>(lease_body(&bytes), &key).ok());
        // The ids become parts of keys.
        let mut bases = intent.map_or_else(Vec::new, |intent| intent.bases);
        bases.retain(|id| is_backup_id(id));
        alive.insert(id.clone(), LiveBackup { bases, is_doubtful });
    }
    Ok(alive)
}

pub(super) fn intents(objects: &dyn Objects) -> Result<Vec<String>> {
    Ok(listed_intents(&objects.list(INTENTS)?))
}

/// Returns the ids of the intents in a listing.
pub(super) fn listed_intents(listed: &[ListedObject]) -> Vec<String> {
    listed
        .iter()
        .filter_map(|object| {
            let below = object.key.strip_prefix(INTENTS)?.strip_prefix('/')?;
            let id = below.strip_suffix(".json")?;
            is_backup_id(id).then(|| id.to_owned())
        })
        .collect()
}

/// Removes the intents that no process holds: their backups are dead. Objects of a dead backup
/// without a document are removed, too, because no root mentions them.
///
/// Without locks, an intent stays until its backup has a root or a void root: the intent tells a
/// prune that this backup may still commit.
///
/// # Errors
/// Those of [`DocumentReader::visit`], which shows whether others refer to the backup: then its intent
/// stays, because a directory that has neither a document nor an intent counts as one that has lost
/// its root. Or errors of the storage.
pub fn remove_abandoned(objects: &dyn Objects) -> Result<()> {
    remove_abandoned_of(objects, &intents(objects)?)
}

/// As [`remove_abandoned`], of the intents with these ids.
///
/// # Errors
/// As [`remove_abandoned`].
pub(super) fn remove_abandoned_of(objects: &dyn Objects, ids: &[String]) -> Result<()> {
    // An intent that cannot be removed, because a link is in its place, must not prevent the
    // removal of the others.
    let mut done = Ok(());
    for id in ids {
        let removed = remove_if_abandoned(objects, id);
        // A store that refuses one refuses all, and each takes five requests.
        let is_refused = matches!(&removed, Err(error) if error.kind == ErrorKind::Permission);
        done = done.and(removed);
        if is_refused && !objects.abilities().has_locks {
            return done;
        }
    }
    // Where there are no locks, an intent is put and never uploaded.
    if !objects.abilities().has_locks {
        return done;
    }
    done.and(objects.abort_uploads(INTENTS))
}

fn remove_if_abandoned(objects: &dyn Objects, id: &str) -> Result<()> {
    // Held until the end: a backup that is about to take the lock will see that its intent is
    // missing. An intent that disappeared meanwhile is no obstacle.
    let Leased::Ours(_lock) = objects.lease(&intent_key(id), b"", Take::Dead)? else {
        return Ok(());
    };
    if may_end(objects, id)? {
        objects.delete(&[intent_key(id)])?;
    }
    Ok(())
}

/// Removes objects without a document of a dead backup whose lease this process holds. Returns
/// whether its intent may be removed.
fn may_end(objects: &dyn Objects, id: &str) -> Result<bool> {
    let has_locks = objects.abilities().has_locks;
    match roots::state(objects, id)? {
        Some(BackupState::Listed | BackupState::Void) => return Ok(true),
        Some(_) => {
            // The next backup goes on from what was finished.
            objects.abort_uploads(&dir(id))?;
            return Ok(has_locks);
        }
        None => {}
    }
    if is_referred_to(objects, id)? {
        return Ok(has_locks);
    }
    if !has_locks && !make_void(objects, id)? {
        return Ok(false);
    }
    // A single answer that a document does not exist may be wrong, and would cause the deletion of
    // everything.
    let files = files_of(objects, id)?;
    let has_root = files.has(ROOT) && files.state() != Some(BackupState::Void);
    if !has_root && !files.has(PARTIAL) && !files.has(FORGOTTEN) {
        remove_files(objects, id)?;
    }
    Ok(true)
}

fn is_referred_to(objects: &dyn Objects, id: &str) -> Result<bool> {
    let mut is_found = false;
    let mut reader = DocumentReader::without_index(objects);
    reader.visit(&mut KnownDocuments::new(), &mut |referrer, document| {
        let counts = !matches!(document.state, BackupState::Forgotten | BackupState::Void);
        if counts {
            let facts = document.facts(referrer)?;
            is_found |= facts.others(referrer).any(|other| &**other == id);
        }
        Ok(())
    })?;
    Ok(is_found)
}

/// Removes the files of a backup that ended without a commit. A void root stays.
fn remove_files(objects: &dyn Objects, id: &str) -> Result<()> {
    platform::debug(|| format!("removing {id:?}, which an earlier run left incomplete"));
    objects.abort_uploads(&dir(id))?;
    let files = files_of(objects, id)?;
    let keys: Vec<String> = files
        .names()
        .filter(|name| is_own(name) && *name != ROOT && *name != FORGOTTEN)
        .map(|name| key(id, name))
        .collect();
    if !keys.is_empty() {
        objects.delete(&keys)?;
    }
    // While other files are left, the document shows that the missing root is no loss. An empty
    // directory that a killed prune left is removed with it.
    objects.delete(&[key(id, FORGOTTEN)])?;
    // The intent is removed next: files that reappear after a system crash must not be without one.
    objects.settle(&dir(id))
}

/// Without locks: prevents every backup in `announced` that looked dead from committing later. A
/// backup that has committed before has its root.
///
/// # Errors
/// Errors of the storage.
pub(super) fn fence(
    objects: &dyn Objects,
    announced: &[String],
    alive: &BTreeMap<String, LiveBackup>,
) -> Result<()> {
    let dead: HashSet<&String> = announced
        .iter()
        .filter(|id| !alive.contains_key(*id))
        .collect();
    if objects.abilities().has_locks || dead.is_empty() {
        return Ok(());
    }
    let files = backup_files(objects)?;
    dead.iter()
        .filter(|id| !files.get(**id).is_some_and(|files| files.has(ROOT)))
        .try_for_each(|id| make_void(objects, id).map(drop))
}
