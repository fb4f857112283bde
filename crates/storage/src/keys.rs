//! The wrapped keys of a repository: one small age file for each person and each host.
//!
//! ```text
//! keys/<name>.age        the key of the repository, wrapped for a person
//! keys/<name>.put.age    the same without what opens objects, wrapped for a host that only adds backups
//! keys/members.<g>.<n>   for whom each of them is wrapped, and which put keys and older roots count (see [`members`])
//! keys/current.json      the newest generation and its recipient; a repository without it is clear
//! keys/change.json       the intent of a command that changes keys
//! ```
//! Of several that make a repository sealed at the same time, one puts `keys/current.json`; the key files of the others are refused then,
//! as they have another recipient. A rotation writes all key files before it: a key file that is older than it was put back by the
//! storage.
//!
//! [`members`]: super::members

use super::{
    Objects, Put, PutIf, SealedObjects, as_stored,
    generation::{CURRENT, CurrentGeneration},
    key_change::{CHANGE, alone},
    key_file::{check_name, key_files, key_of, wrap_for},
    members::{
        self, ListedKey, Members, carry_on, digest_of, known_files, mark_of, proven_roots,
        read_members,
    },
};
use fullbore_crypt::{
    Access, Author, KeyOptions, KeyRing, UserIdentity, UserRecipient, is_for_passphrase,
    unwrap_secret,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{KEYS, REPOSITORY},
};
use std::sync::Arc;

pub use super::{
    generation::{current_generation, is_encrypted},
    key_change::{add_key, remove_key},
    key_file::KeyFile,
    members::accept_root,
    rotation::rotate_key,
};

/// How a repository is to be read.
#[derive(Debug, Clone)]
pub enum RepositoryKey {
    /// It is not encrypted.
    Clear,
    /// It is encrypted, and a key that was given opens it.
    Opened(Box<KeyRing>),
    /// It is encrypted, and no key was given.
    Locked,
}

/// Makes a repository encrypted, before anything else is in it.
///
/// # Errors
/// [`ErrorKind::Exists`] if it is encrypted already, or if another makes it so at the same time; [`ErrorKind::Usage`] for a name that no
/// key file may have.
pub fn encrypt_repository(
    objects: &dyn Objects,
    name: &str,
    recipient: &UserRecipient,
) -> Result<KeyRing> {
    check_name(name)?;
    // One at a time: of two with one name for their key files, the second would write over the key that the first one uses.
    alone(objects, || encrypt_alone(objects, name, recipient))
}

fn encrypt_alone(objects: &dyn Objects, name: &str, recipient: &UserRecipient) -> Result<KeyRing> {
    let exists = || {
        Error::new(
            ErrorKind::Exists,
            format!("cannot encrypt {}", objects.describe("")),
        )
        .because("it is encrypted already, with a key of its own")
        .hint("run the command again with a key that opens it")
    };
    if is_encrypted(objects)? {
        return Err(exists());
    }
    let ring = KeyRing::random()?;
    match write_first(objects, &ring, name, recipient)? {
        Put::Done(_) => Ok(ring),
        Put::Refused => Err(exists()),
    }
}

/// Writes the first key file, the list of members, and at last the file that makes the repository encrypted. Roots that are there count.
pub(super) fn write_first(
    objects: &dyn Objects,
    ring: &KeyRing,
    name: &str,
    recipient: &UserRecipient,
) -> Result<Put> {
    let key = key_of(name, Access::Read);
    let file = wrap_for(ring, Access::Read, Author::PERSON, recipient)?;
    let member = ListedKey {
        recipient: recipient.to_string(),
        author: Author::PERSON,
        digest: digest_of(&file),
        is_pending: false,
    };
    // What a killed attempt left is of no use to anyone: its repository was never made.
    objects.put(&key, &file, &PutIf::Always)?;
    let roots = proven_roots(objects, ring)?;
    let members = Members {
        files: [(key, member)].into(),
        accepted: roots.iter().map(|root| mark_of(ring, root)).collect(),
    };
    members::write_first(&members, objects, ring)?;
    objects.put(
        CURRENT,
        &CurrentGeneration::of(ring).sealed()?,
        &PutIf::Absent,
    )
}

/// Opens the key of a repository with what the options give; of several key files that open, the one with most permissions counts.
///
/// # Errors
/// [`ErrorKind::Permission`] if none of the keys that were given opens it; [`ErrorKind::Usage`] if keys were given by options and the
/// repository is not encrypted; [`ErrorKind::Corrupt`] if a key file was changed, replaced by an old one, or made by another.
pub fn open_repository(objects: &dyn Objects, options: &KeyOptions) -> Result<RepositoryKey> {
    let Some((current, _)) = CurrentGeneration::read(objects)? else {
        return if options.is_empty() {
            Ok(RepositoryKey::Clear)
        } else {
            Err(Error::new(
                ErrorKind::Usage,
                format!("cannot use a key for {}", objects.describe("")),
            )
            .because("it is not encrypted, or its keys were removed")
            .hint("leave the key out if the repository should be clear; if its keys were lost: fullbore key restore REPO --key SAVED"))
        };
    };
    let identities = options.identities()?;
    let mut rings = Vec::new();
    let mut for_passphrase = Vec::new();
    for file in key_files(objects)? {
        let key = file.key();
        let Some((bytes, _)) = objects.get(&key)? else {
            continue;
        };
        if is_for_passphrase(&bytes) {
            for_passphrase.push((file, bytes));
        } else if let Some(ring) = open_file(objects, &file, &bytes, &identities)? {
            rings.push((file, ring));
        }
    }
    let takes_passphrase = !for_passphrase.is_empty();
    if rings.is_empty() && takes_passphrase {
        rings.extend(open_by_passphrase(objects, for_passphrase, options)?);
    }
    let found = rings.into_iter().min_by_key(|(file, _)| file.access);
    let found = found.map(|(file, ring)| (objects.describe(&file.key()), ring));
    let saved = || {
        let name = "the copy of the repository's key that was given";
        // A command may be given copies for two repositories.
        let mut rings = options.saved_rings()?.into_iter();
        let fitting = rings.find(|ring| current.check_ring(ring, name).is_ok());
        Ok(fitting.map(|ring| (name.to_owned(), ring)))
    };
    let Some((name, ring)) = found.map_or_else(saved, |found| Ok(Some(found)))? else {
        if options.is_empty() {
            return Ok(RepositoryKey::Locked);
        }
        let error = Error::new(
            ErrorKind::Permission,
            format!("cannot open {}", objects.describe("")),
        );
        let has_passphrase = options.passphrase_file.is_some() || options.passphrase.is_some();
        return Err(match (has_passphrase, takes_passphrase) {
            (true, true) if options.key_files.is_empty() => error
                .because("the passphrase is wrong")
                .hint("blanks and the case of letters count; a line break at the end of its file does not"),
            (true, false) if options.key_files.is_empty() => error
                .because("no passphrase opens it: it has keys in files only")
                .hint("give one with --key FILE; `fullbore key list` shows for whom the repository has keys"),
            (true, true) => error
                .because("neither the keys nor the passphrase that were given open any of its key files")
                .hint("`fullbore key list` shows for whom the repository has keys"),
            _ => error
                .because("none of the keys that were given opens any of its key files")
                .hint("`fullbore key list` shows for whom the repository has keys"),
        });
    };
    current.check_ring(&ring, &name)?;
    // A generation that not every key file has yet seals nothing: its rotation was interrupted, and the next one replaces it.
    let ring = if ring.newest().number() > current.generation() {
        ring.for_reading_only()
    } else {
        ring
    };
    Ok(RepositoryKey::Opened(Box::new(ring)))
}

/// Returns the destination of a copy of encrypted objects as they are stored, without their key: `to`, if it has the same keys, or if it is new,
/// then it gets them. `None` if it has others, or is clear.
///
/// # Errors
/// The storage's.
pub fn share_keys(from: &dyn Objects, to: &Arc<dyn Objects>) -> Result<Option<Arc<dyn Objects>>> {
    let Some((current, _)) = CurrentGeneration::read(from)? else {
        return Ok(None);
    };
    if let Some((there, _)) = CurrentGeneration::read(&**to)? {
        if there != current {
            return Ok(None);
        }
        carry_on(as_stored(from), as_stored(&**to), current.generation())?;
        return Ok(Some(to.clone()));
    }
    if to.stat(REPOSITORY)?.is_some() || to.as_sealed().is_some() {
        return Ok(None);
    }
    // The newest generation comes last, as always.
    let files = from.list(KEYS)?.into_iter().map(|file| file.key);
    let files = files.filter(|key| key != CURRENT && key != CHANGE);
    for key in files.chain([CURRENT.to_owned()]) {
        if let Some((bytes, _)) = from.get(&key)? {
            to.put(&key, &bytes, &PutIf::Absent)?;
        }
    }
    let ring = from.as_sealed().and_then(|sealed| sealed.ring().cloned());
    Ok(Some(match ring {
        Some(ring) => Arc::new(SealedObjects::new(to.clone(), ring)),
        None => Arc::new(SealedObjects::locked(to.clone())),
    }))
}

fn open_by_passphrase(
    objects: &dyn Objects,
    files: Vec<(KeyFile, Vec<u8>)>,
    options: &KeyOptions,
) -> Result<Vec<(KeyFile, KeyRing)>> {
    let mut rings = Vec::new();
    let Some(passphrase) = options.passphrase_for(&objects.describe(""))? else {
        return Ok(rings);
    };
    let identities = [UserIdentity::of_passphrase(&passphrase)];
    for (file, bytes) in files {
        if let Some(ring) = open_file(objects, &file, &bytes, &identities)? {
            rings.push((file, ring));
            break;
        }
    }
    Ok(rings)
}

fn open_file(
    objects: &dyn Objects,
    file: &KeyFile,
    bytes: &[u8],
    identities: &[UserIdentity],
) -> Result<Option<KeyRing>> {
    let name = objects.describe(&file.key());
    let Some(text) = unwrap_secret(bytes, identities, &name)? else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&text)
        .map_err(|_| Error::corrupt(format!("{name} is damaged")).because("it is not text"))?;
    let ring = KeyRing::parse(text, &name)?;
    if ring.access() == file.access {
        return Ok(Some(ring));
    }
    Err(Error::corrupt(format!("{name} is damaged"))
        .because("its name and its content differ in what the key permits"))
}

/// Returns the key files of a repository, by name; with a key that reads also for whom they are, and those that the storage does not show.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the list of members was changed, or the storage's.
pub fn list_keys(objects: &dyn Objects, ring: Option<&KeyRing>) -> Result<Vec<KeyFile>> {
    match ring.filter(|ring| ring.access() == Access::Read) {
        Some(ring) => known_files(objects, &read_members(objects, ring)?.0),
        None => key_files(objects),
    }
}
