//! What makes backups that refer to others safe beside [`crate::repo::prune`], without either waiting for the other.
//!
//! A backup 1. announces itself with an intent, whose lock it holds while it lives, 2. looks at the roots and chooses its
//! bases, 3. names them in its intent, 4. then looks whether they are still there ([`refer`]), 5. stores, 6. looks whether
//! all that it refers to is there ([`check`]), 7. stores its root, 8. removes its intent. What it names in 3. and finds in
//! 4. is kept for it: whoever removes something looks at intents after the last moment at which it could be found.

use super::{
    objects::{Objects, Seized},
    roots::{self, BackupState, Documents, dir, key},
};
use crate::{
    error::{Error, ErrorKind, Result},
    format::{
        layout::{
            FORGOTTEN, INTENTS, MANIFEST, PARTIAL, ROOT, TOMBSTONES, is_backup_id, is_object,
            is_own, segment_numbers,
        },
        page::SegmentId,
        root::{BackupOptions, FORMAT, Root},
        seal::{open_sealed, seal},
    },
    platform,
    sink::Referred,
    stage::codec::Codec,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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

/// Step 4: which of `bases`, named in the intent of a backup that is alive, may not be used, and what else may not.
///
/// # Errors
/// The system's.
pub fn refer<O: Objects>(objects: &O, bases: &[String]) -> Result<Referred> {
    let mut referred = Referred::default();
    for base in bases {
        if !is_there(objects, base)? {
            referred.gone.push(base.clone());
        }
    }
    for backup in objects.list(TOMBSTONES)? {
        for name in objects.list(&format!("{TOMBSTONES}/{backup}"))? {
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
    }
    Ok(referred)
}

/// A backup that is listed, or one that died after it had stored a partial root.
fn is_there<O: Objects>(objects: &O, id: &str) -> Result<bool> {
    if objects.size(&key(id, ROOT))?.is_some() {
        return Ok(true);
    }
    // In this order: one that is alive may give up, and remove its partial root before its intent.
    let is_dead = matches!(
        objects.seize(&intent_key(id))?,
        Seized::Free(_) | Seized::Absent
    );
    Ok(is_dead && objects.size(&key(id, PARTIAL))?.is_some())
}

/// Step 6: is all there that `root` refers to, with at least the bytes it should have?
///
/// # Errors
/// [`Kind::NotFound`] or [`Kind::Corrupt`] if it is not, or the system's.
pub fn check<O: Objects>(objects: &O, root: &Root) -> Result<()> {
    let hint = "nothing was committed; `fullbore verify` tells which backups are damaged";
    for (key, bytes) in roots::needs(root)? {
        let what = format!(
            "cannot commit backup {:?}: {key:?}, which it refers to,",
            root.id
        );
        match objects.size(&key)? {
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

/// Forget a backup: it is not listed any more, and nothing else happens to it before the next prune. False if it is not
/// there.
///
/// # Errors
/// The system's.
pub fn forget<O: Objects>(objects: &O, id: &str) -> Result<bool> {
    if objects.size(&key(id, ROOT))?.is_none() {
        return Ok(false);
    }
    // Of a backup that was killed right after its commit: without its root it would look as if it had died before.
    if objects.size(&key(id, PARTIAL))?.is_some() {
        objects.remove(&key(id, PARTIAL))?;
    }
    objects.rename(&key(id, ROOT), &key(id, FORGOTTEN))
}

/// Give up what is left of a backup that is not alive: the next prune frees what only it needs. False if there is nothing, or it
/// was forgotten before.
///
/// # Errors
/// [`Kind::Usage`] if the backup is alive, or if there is no telling; or the system's.
pub fn write_off<O: Objects>(objects: &O, id: &str) -> Result<bool> {
    // Before the lock is tried: the intent of a backup is there before its first object.
    let has_objects = objects.list(&dir(id))?.iter().any(|name| is_object(name));
    // Held until it is forgotten: who takes it as a base looks for it after that was said.
    let lock = objects.seize(&intent_key(id))?;
    let refused = |why: &str| {
        Err(Error::new(
            ErrorKind::Usage,
            format!("cannot forget backup {id:?}: {why}"),
        ))
    };
    match lock {
        Seized::Free(_) | Seized::Absent => {}
        Seized::Held => return refused("it is under way, or being pruned or copied"),
        Seized::Unknown => {
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
    if !has_objects || objects.rename(&key(id, PARTIAL), &key(id, FORGOTTEN))? {
        return Ok(has_objects);
    }
    let is_lost = roots::state(objects, id)?.is_none();
    if is_lost {
        let options = BackupOptions {
            codec: Codec::None.name().to_owned(),
            ..BackupOptions::default()
        };
        let root = Root {
            format: FORMAT,
            id: id.to_owned(),
            options,
            ..Root::default()
        };
        objects.put(&key(id, FORGOTTEN), &seal(&root)?)?;
    }
    Ok(is_lost)
}

/// Give up a backup that is alive, by its own run. What nobody can have referred to yet goes at once.
///
/// An error while the root is stored may come after it was there for others to see and to choose as a base; then it is
/// forgotten like any other.
///
/// # Errors
/// The system's; what is left then is for the next prune.
pub fn give_up<O: Objects>(objects: &O, id: &str) -> Result<()> {
    if forget(objects, id)? {
        return Ok(());
    }
    // First what would look usable if we died here.
    objects.remove(&key(id, PARTIAL))?;
    objects.sync(&dir(id))?;
    remove_files(objects, id)
}

/// What somebody else wrote of backup `id` may be relied on: its names are durable, though their writer may have been killed before it
/// saw to that.
///
/// # Errors
/// The system's. That it is not there is none.
pub fn settle<O: Objects>(objects: &O, id: &str) -> Result<()> {
    match objects.sync(&dir(id)) {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// A backup that is alive.
#[derive(Debug, Default)]
pub struct Alive {
    /// The bases that it names.
    pub bases: Vec<String>,
    /// Or can nobody tell whether it is?
    pub is_doubtful: bool,
}

/// The backups that are alive, and the bases they name. One that has not named any yet, or just does, has none: it will
/// see what we did before this call.
///
/// # Errors
/// The system's.
pub fn alive<O: Objects>(objects: &O) -> Result<BTreeMap<String, Alive>> {
    let mut alive = BTreeMap::new();
    for id in intents(objects)? {
        let key = intent_key(&id);
        let is_doubtful = match objects.seize(&key)? {
            Seized::Free(_) | Seized::Absent => continue,
            Seized::Held => false,
            Seized::Unknown => true,
        };
        let intent = objects
            .read(&key)?
            .and_then(|bytes| open_sealed::<Intent>(&bytes, &key).ok());
        // They become parts of keys.
        let mut bases = intent.map_or_else(Vec::new, |intent| intent.bases);
        bases.retain(|id| is_backup_id(id));
        alive.insert(id, Alive { bases, is_doubtful });
    }
    Ok(alive)
}

/// The ids of all intents.
pub(super) fn intents<O: Objects>(objects: &O) -> Result<Vec<String>> {
    let names = objects.list(INTENTS)?.into_iter();
    Ok(names
        .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
        .filter(|id| is_backup_id(id))
        .collect())
}

/// Remove the intents that nobody holds: their backups are dead. What one of them stored goes as well, if it has no
/// document, so that nobody knows of it.
///
/// # Errors
/// Those of [`roots::documents`], by which it is known whether others refer to it: then its intent stays, as what has
/// neither a document nor an intent has lost its root. Or the system's.
pub fn remove_abandoned<O: Objects>(objects: &O) -> Result<()> {
    for id in intents(objects)? {
        // Held until its end: a backup that is about to take the lock will see that its intent is gone. One that is gone by now
        // keeps nobody away.
        let Seized::Free(_lock) = objects.seize(&intent_key(&id))? else {
            continue;
        };
        let has_none = roots::state(objects, &id)?.is_none();
        if has_none && !is_referred_to(objects, &id)? && !shows_document(objects, &id)? {
            remove_files(objects, &id)?;
        }
        objects.remove(&intent_key(&id))?;
    }
    Ok(())
}

/// Is there a document where none was found? One answer that a file is not there may be wrong, and everything would go by it.
fn shows_document<O: Objects>(objects: &O, id: &str) -> Result<bool> {
    Ok(objects
        .list(&dir(id))?
        .iter()
        .any(|name| [ROOT, PARTIAL, FORGOTTEN].contains(&&name[..])))
}

/// Does another backup refer to this one?
fn is_referred_to<O: Objects>(objects: &O, id: &str) -> Result<bool> {
    for (by, document) in roots::documents(objects, Documents::new())? {
        if document.state != BackupState::Forgotten
            && document.facts(&by)?.others.iter().any(|other| other == id)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn remove_files<O: Objects>(objects: &O, id: &str) -> Result<()> {
    let mut names = objects.list(&dir(id))?;
    // As long as anything else is left, its word says that this is no loss.
    names.sort_by_key(|name| name == FORGOTTEN);
    platform::debug(|| format!("removing {id:?}, which a run that ended did not complete"));
    names
        .iter()
        .filter(|name| is_own(name))
        .try_for_each(|name| objects.remove(&key(id, name)))?;
    // Its intent goes next: what is there again after a crash of the system must not be there without one.
    objects.sync(&dir(id))?;
    objects.remove_dir(&dir(id))
}
