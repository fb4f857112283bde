//! What makes backups that refer to others safe beside [`crate::repo::prune`], without either waiting for the other.
//!
//! A backup 1. announces itself with an intent, whose lock it holds while it lives, 2. looks at the roots and chooses its
//! bases, 3. names them in its intent, 4. then looks whether they are still there ([`refer`]), 5. stores, 6. looks whether
//! all that it refers to is there ([`check`]), 7. stores its root, 8. removes its intent. What it names in 3. and finds in
//! 4. is kept for it: whoever removes something looks at intents after the last moment at which it could be found.

use super::{
    intent::taken_for_dead,
    roots::{self, BackupState, Documents, backup_files, dir, files_of, key},
};
use crate::{
    error::{Error, ErrorKind, Result},
    format::{
        layout::{
            BACKUPS, FORGOTTEN, INTENTS, MANIFEST, PARTIAL, ROOT, TOMBSTONES, is_backup_id, is_own,
            segment_numbers,
        },
        page::SegmentId,
        root::{BackupOptions, FORMAT, Root, VOID_ROOT_BYTES, is_void, void_root},
        seal::{open_sealed, seal},
    },
    platform,
    sink::Referred,
    stage::codec::Codec,
    storage::{Lease, Leased, ListedObject, Objects, Put, PutIf, Take, is_released, lease_body},
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A backup under way: who makes it, and what it may refer to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Intent {
    /// The backup.
    pub id: String,
    /// The machine.
    pub host: String,
    /// Which start of it.
    pub boot: String,
    /// The process.
    pub pid: u32,
    /// When the backup began, RFC 3339 in UTC.
    pub time: String,
    /// The backups it is compared with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<String>,
}

/// The key of an intent.
pub fn intent_key(id: &str) -> String {
    format!("{INTENTS}/{id}.json")
}

/// A tombstone: the backup, and the name of the object in it.
pub(super) type Tombstone = (String, String);

/// All tombstones, in order.
pub(super) fn tombstones(objects: &dyn Objects) -> Result<Vec<Tombstone>> {
    let listed = objects.list(TOMBSTONES)?.into_iter();
    let names = listed.filter_map(|object| tombstone(&object.key[TOMBSTONES.len() + 1..]));
    Ok(names.collect())
}

fn tombstone(name: &str) -> Option<Tombstone> {
    let (id, name) = name.split_once('/')?;
    (is_backup_id(id) && is_own(name)).then(|| (id.to_owned(), name.to_owned()))
}

/// Step 4: which of `bases`, named in the intent of a backup that is alive, may not be used, and what else may not.
///
/// # Errors
/// The storage's.
pub fn refer(objects: &dyn Objects, bases: &[String]) -> Result<Referred> {
    let mut referred = Referred::default();
    let (listed, tombstones) = listed_bases(objects)?;
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

/// Backups that are surely listed, and all tombstones: of a store by one request, of a directory without looking at backups.
fn listed_bases(objects: &dyn Objects) -> Result<(HashSet<String>, Vec<Tombstone>)> {
    if objects.as_local().is_some() {
        return Ok((HashSet::new(), tombstones(objects)?));
    }
    let all = objects.list("")?;
    let id_of = |object: &ListedObject| {
        let (id, name) = object
            .key
            .strip_prefix(BACKUPS)?
            .strip_prefix('/')?
            .split_once('/')?;
        // A root of the size of a void one is looked at.
        let is_listed = name == ROOT && object.bytes != VOID_ROOT_BYTES;
        is_listed.then(|| id.to_owned())
    };
    let listed = all.iter().filter_map(id_of).collect();
    let marks = all.iter().filter_map(|object| {
        let name = object.key.strip_prefix(TOMBSTONES)?.strip_prefix('/')?;
        tombstone(name)
    });
    Ok((listed, marks.collect()))
}

/// A backup that is listed, or one that died after it had stored a partial root.
fn is_there(objects: &dyn Objects, id: &str) -> Result<bool> {
    if let Some((root, _)) = objects.get(&key(id, ROOT))? {
        return Ok(!is_void(&root));
    }
    // In this order: one that is alive may give up, and remove its partial root before its intent.
    let is_dead = matches!(
        objects.lease(&intent_key(id), b"", Take::Dead)?,
        Leased::Ours(_) | Leased::Absent
    );
    if !is_dead || objects.stat(&key(id, PARTIAL))?.is_none() {
        return Ok(false);
    }
    // A prune that took it for dead before may have made its root void meanwhile.
    Ok(objects.abilities().has_locks || objects.stat(&key(id, ROOT))?.is_none())
}

/// Is nobody making the backup any more, as far as can be seen without a wait and without writing anything?
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

/// Step 6: is all there that `root` refers to, with at least the bytes it should have?
///
/// # Errors
/// [`Kind::NotFound`] or [`Kind::Corrupt`] if it is not, or the system's.
pub fn check(objects: &dyn Objects, root: &Root) -> Result<()> {
    let hint = "nothing was committed; `fullbore verify` tells which backups are damaged";
    let needs = roots::needs(root)?;
    let listed = listed_needs(objects, &needs)?;
    for (key, bytes) in needs {
        let what = format!(
            "cannot commit backup {:?}: {key:?}, which it refers to,",
            root.id
        );
        if listed.get(&key).is_some_and(|there| *there >= bytes) {
            continue;
        }
        match objects.stat(&key)? {
            Some(there) if there >= bytes => {}
            Some(there) => {
                let what = format!("{what} has {there} bytes and had {bytes}");
                return Err(Error::new(ErrorKind::Corrupt, what).hint(hint));
            }
            None => {
                return Err(Error::new(ErrorKind::NotFound, format!("{what} is gone")).hint(hint));
            }
        }
    }
    Ok(())
}

/// Bytes of objects that are there: of a store by one request for all, of a directory none.
fn listed_needs(
    objects: &dyn Objects,
    needs: &BTreeMap<String, u64>,
) -> Result<HashMap<String, u64>> {
    if objects.as_local().is_some() || needs.len() < 2 {
        return Ok(HashMap::new());
    }
    let listed = objects.list(BACKUPS)?.into_iter();
    Ok(listed.map(|object| (object.key, object.bytes)).collect())
}

/// Step 7: store the root, unless another process made it void.
///
/// # Errors
/// [`ErrorKind::Gone`] if the backup was taken for dead; or the storage's, and then the root may be there.
pub fn store_root(objects: &dyn Objects, id: &str, sealed: &[u8]) -> Result<()> {
    let key = key(id, ROOT);
    if objects.put(&key, sealed, &PutIf::Absent)? != Put::Refused {
        return Ok(());
    }
    // An earlier attempt of ours may have been done though its answer was lost.
    match objects.get(&key)? {
        Some((there, _)) if there == sealed => Ok(()),
        _ => Err(taken_for_dead(id)),
    }
}

/// Keeps the root of a backup from coming. False if it has come before.
///
/// # Errors
/// The storage's.
pub(super) fn make_void(objects: &dyn Objects, id: &str) -> Result<bool> {
    let key = key(id, ROOT);
    if objects.put(&key, &void_root()?, &PutIf::Absent)? != Put::Refused {
        return Ok(true);
    }
    let there = objects.get(&key)?;
    Ok(there.is_some_and(|(root, _)| is_void(&root)))
}

/// Forget a backup: it is not listed any more, and nothing else happens to it before the next prune. False if it is not
/// there.
///
/// # Errors
/// The storage's.
pub fn forget(objects: &dyn Objects, id: &str) -> Result<bool> {
    let root = match objects.get(&key(id, ROOT)) {
        Ok(None) => return Ok(false),
        Ok(Some((root, _))) if is_void(&root) => return Ok(false),
        Ok(Some((root, _))) => root,
        // A root that cannot be read can be given up.
        Err(error) if error.kind == ErrorKind::Corrupt => word_without_facts(id)?,
        Err(error) => return Err(error),
    };
    // Of a backup that was killed right after its commit: without its root it would look as if it had died before.
    if objects.stat(&key(id, PARTIAL))?.is_some() {
        objects.delete(&[key(id, PARTIAL)])?;
    }
    put_forgotten(objects, id, &root)?;
    objects.delete(&[key(id, ROOT)])?;
    objects.settle(&dir(id))?;
    Ok(true)
}

/// Make a partial root one of a backup that was forgotten. False if it is not there.
pub(super) fn forget_partial(objects: &dyn Objects, id: &str) -> Result<bool> {
    let partial = match objects.get(&key(id, PARTIAL)) {
        Ok(None) => return Ok(false),
        Ok(Some((partial, _))) => partial,
        Err(error) if error.kind == ErrorKind::Corrupt => word_without_facts(id)?,
        Err(error) => return Err(error),
    };
    put_forgotten(objects, id, &partial)?;
    objects.delete(&[key(id, PARTIAL)])?;
    objects.settle(&dir(id))?;
    Ok(true)
}

fn put_forgotten(objects: &dyn Objects, id: &str, document: &[u8]) -> Result<()> {
    let key = key(id, FORGOTTEN);
    match objects.put(&key, document, &PutIf::Always) {
        // Forgetting is how room is made. A root may have megabytes; that a backup was forgotten can be said in one block.
        Err(error) if error.kind == ErrorKind::Full => {
            objects.put(&key, &word_without_facts(id)?, &PutIf::Always)
        }
        put => put,
    }
    .map(drop)
}

/// What says that a backup was forgotten, and no more.
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

/// Give up what is left of a backup that is not alive: the next prune frees what only it needs. False if there is nothing, or it
/// was forgotten before.
///
/// # Errors
/// [`Kind::Usage`] if the backup is alive, or if there is no telling; or the storage's.
pub fn write_off(objects: &dyn Objects, id: &str) -> Result<bool> {
    // Before the lock is tried: the intent of a backup is there before its first object.
    let has_objects = files_of(objects, id)?.has_objects();
    // Held until it is forgotten: who takes it as a base looks for it after that was said.
    let lock = objects.lease(&intent_key(id), b"", Take::Dead)?;
    let refused = |why: &str| {
        Err(Error::new(
            ErrorKind::Usage,
            format!("cannot forget backup {id:?}: {why}"),
        ))
    };
    match lock {
        Leased::Ours(_) | Leased::Absent => {}
        Leased::Held => return refused("it is under way, or being pruned or copied"),
        Leased::Unknown => {
            let hint = format!(
                "if it is not, remove {:?} and run the same command again",
                intent_key(id)
            );
            return refused("nobody can tell whether it is under way")
                .map_err(|error| error.hint(hint));
        }
    }
    // It may have committed, and died, since somebody looked.
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

/// Give up a backup that is alive, by its own run. What nobody can have referred to yet goes at once.
///
/// An error while the root is stored may come after it was there for others to see and to choose as a base; then it is
/// forgotten like any other.
///
/// # Errors
/// The storage's; what is left then is for the next prune.
pub fn give_up(objects: &dyn Objects, id: &str) -> Result<()> {
    if forget(objects, id)? {
        return Ok(());
    }
    if !objects.abilities().has_locks {
        // Others may have taken us for dead, and refer to what the partial root mentions: then a prune decides.
        let is_void = make_void(objects, id)?;
        let files = files_of(objects, id)?;
        if !is_void || files.has(PARTIAL) || files.has(FORGOTTEN) {
            return Ok(());
        }
        return remove_files(objects, id);
    }
    // First what would look usable if we died here.
    objects.delete(&[key(id, PARTIAL)])?;
    objects.settle(&dir(id))?;
    remove_files(objects, id)
}

/// What somebody else wrote of backup `id` may be relied on: its names are durable, though their writer may have been killed before it
/// saw to that.
///
/// # Errors
/// The storage's. That it is not there is none.
pub fn settle(objects: &dyn Objects, id: &str) -> Result<()> {
    match objects.settle(&dir(id)) {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Leases on the intents of backups, by id.
pub(super) type Claims = BTreeMap<String, Box<dyn Lease>>;

/// A backup that is alive.
#[derive(Debug, Default)]
pub struct Alive {
    /// The bases that it names.
    pub bases: Vec<String>,
    /// Or can nobody tell whether it is?
    pub is_doubtful: bool,
}

/// The backups that are alive, and the bases they name. One that has not named any yet, or just does, has none: it will
/// see what we did before this call. Those of which the caller holds the lease are dead.
///
/// # Errors
/// The storage's.
pub(super) fn alive(
    objects: &dyn Objects,
    announced: &[String],
    ours: &Claims,
) -> Result<BTreeMap<String, Alive>> {
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
        // They become parts of keys.
        let mut bases = intent.map_or_else(Vec::new, |intent| intent.bases);
        bases.retain(|id| is_backup_id(id));
        alive.insert(id.clone(), Alive { bases, is_doubtful });
    }
    Ok(alive)
}

/// The ids of all intents.
pub(super) fn intents(objects: &dyn Objects) -> Result<Vec<String>> {
    let listed = objects.list(INTENTS)?.into_iter();
    let names = listed.map(|object| object.key[INTENTS.len() + 1..].to_owned());
    Ok(names
        .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
        .filter(|id| is_backup_id(id))
        .collect())
}

/// Remove the intents that nobody holds: their backups are dead. What one of them stored goes as well, if it has no
/// document, so that nobody knows of it.
///
/// Where there are no locks, an intent stays until its backup has a root, or a void one: by it a prune knows that this backup might
/// still commit.
///
/// # Errors
/// Those of [`roots::documents`], by which it is known whether others refer to it: then its intent stays, as what has
/// neither a document nor an intent has lost its root. Or the storage's.
pub fn remove_abandoned(objects: &dyn Objects) -> Result<()> {
    // What cannot be removed of one, as a link stands in its place, keeps nobody from the others.
    let mut done = Ok(());
    for id in intents(objects)? {
        done = done.and(remove_if_abandoned(objects, &id));
    }
    // Where there are no locks, an intent is put and never uploaded.
    if !objects.abilities().has_locks {
        return done;
    }
    done.and(objects.abort_uploads(INTENTS))
}

fn remove_if_abandoned(objects: &dyn Objects, id: &str) -> Result<()> {
    // Held until its end: a backup that is about to take the lock will see that its intent is gone. One that is gone by now
    // keeps nobody away.
    let Leased::Ours(_lock) = objects.lease(&intent_key(id), b"", Take::Dead)? else {
        return Ok(());
    };
    if may_end(objects, id)? {
        objects.delete(&[intent_key(id)])?;
    }
    Ok(())
}

/// Removes what nobody knows of, of a dead backup whose lease we hold. May its intent go?
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
    // One answer that a document is not there may be wrong, and everything would go by it.
    let files = files_of(objects, id)?;
    let has_root = files.has(ROOT) && files.state() != Some(BackupState::Void);
    if !has_root && !files.has(PARTIAL) && !files.has(FORGOTTEN) {
        remove_files(objects, id)?;
    }
    Ok(true)
}

/// Does another backup refer to this one?
fn is_referred_to(objects: &dyn Objects, id: &str) -> Result<bool> {
    for (by, document) in roots::documents(objects, Documents::new())? {
        let counts = !matches!(document.state, BackupState::Forgotten | BackupState::Void);
        if counts && document.facts(&by)?.others.iter().any(|other| other == id) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes what a run that ended did not complete. A void root stays.
fn remove_files(objects: &dyn Objects, id: &str) -> Result<()> {
    platform::debug(|| format!("removing {id:?}, which a run that ended did not complete"));
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
    // As long as anything else is left, its word says that this is no loss. A directory that a prune which was killed left empty goes
    // with it.
    objects.delete(&[key(id, FORGOTTEN)])?;
    // Its intent goes next: what is there again after a crash of the system must not be there without one.
    objects.settle(&dir(id))
}

/// Where there are no locks: nothing that is in `announced` and looked dead commits any more. What has committed before has its root.
///
/// # Errors
/// The storage's.
pub(super) fn fence(
    objects: &dyn Objects,
    announced: &[String],
    alive: &BTreeMap<String, Alive>,
) -> Result<()> {
    let dead: HashSet<&String> = announced
        .iter()
        .filter(|id| !alive.contains_key(*id))
        .collect();
    if objects.abilities().has_locks || dead.is_empty() {
        return Ok(());
    }
    let files = backup_files(objects)?;
    let is_open = |id: &&&String| !files.get(**id).is_some_and(|files| files.has(ROOT));
    dead.iter()
        .filter(is_open)
        .try_for_each(|id| make_void(objects, id).map(drop))
}
