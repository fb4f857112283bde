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
    Leased, Objects, Put, PutIf, SealedObjects, Take, Version, as_stored,
    members::{
        self, ListedKey, Members, carry_on, change_members, change_members_and, counts, digest_of,
        mark_of, proven_roots, read_members,
    },
};
use fullbore_crypt::{
    Access, Author, KeyOptions, KeyRing, UserIdentity, UserRecipient, is_for_passphrase,
    random_author, unwrap_secret, wrap_secret,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{KEYS, REPOSITORY},
    seal::{open_sealed, seal},
};
use fullbore_platform::debug;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

pub use super::{members::accept_root, rotation::rotate_key};

/// The newest generation.
pub(super) const CURRENT: &str = "keys/current.json";
/// The intent of whoever changes keys.
const CHANGE: &str = "keys/change.json";
pub(super) const SUFFIX: &str = ".age";
pub(super) const PUT_SUFFIX: &str = ".put.age";

/// What the proof of [`CURRENT`] is for.
const PURPOSE: &str = "fullbore current generation v1";

/// A key file of a repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyFile {
    /// The name that the operator gave it.
    pub name: String,
    /// Permissions that it gives.
    pub access: Access,
    /// For whom it is wrapped, as `age1…`, `ssh-ed25519 …` or `passphrase`; unknown without a key that reads.
    pub recipient: Option<String>,
}

impl KeyFile {
    pub(super) fn key(&self) -> String {
        key_of(&self.name, self.access)
    }

    /// The key file that has this key in the storage.
    fn of_key(key: &str) -> Option<Self> {
        let name = key.strip_prefix(KEYS)?.strip_prefix('/')?;
        let (name, access) = match name.strip_suffix(PUT_SUFFIX) {
            Some(name) => (name, Access::Put),
            None => (name.strip_suffix(SUFFIX)?, Access::Read),
        };
        check_name(name).ok()?;
        Some(Self {
            name: name.to_owned(),
            access,
            recipient: None,
        })
    }
}

fn key_of(name: &str, access: Access) -> String {
    let suffix = match access {
        Access::Read => SUFFIX,
        Access::Put => PUT_SUFFIX,
    };
    format!("{KEYS}/{name}{suffix}")
}

/// The newest generation, in the clear.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CurrentGeneration {
    generation: u32,
    recipient: String,
    /// Keyed BLAKE3 of both, which all keys of the repository can make and check.
    proof: String,
}

impl CurrentGeneration {
    pub(super) fn of(ring: &KeyRing) -> Self {
        let newest = ring.newest();
        let recipient = newest.recipient().to_string();
        let proof = ring.prove_as_any(
            PURPOSE,
            &[&newest.number().to_le_bytes(), recipient.as_bytes()],
        );
        Self {
            generation: newest.number(),
            recipient,
            proof: proof.to_hex().to_string(),
        }
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    pub(super) fn sealed(&self) -> Result<Vec<u8>> {
        seal(self)
    }

    pub(super) fn read(objects: &dyn Objects) -> Result<Option<(Self, Version)>> {
        let Some((bytes, version)) = objects.get(CURRENT)? else {
            return Ok(None);
        };
        Ok(Some((
            open_sealed(&bytes, &objects.describe(CURRENT))?,
            version,
        )))
    }
}

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

/// The newest generation of the key of a repository; `None` if it is clear.
///
/// # Errors
/// The storage's, and [`ErrorKind::Corrupt`].
pub fn current_generation(objects: &dyn Objects) -> Result<Option<u32>> {
    let current = CurrentGeneration::read(objects)?;
    Ok(current.map(|(current, _)| current.generation))
}

/// Is a repository encrypted?
///
/// # Errors
/// The storage's.
pub fn is_encrypted(objects: &dyn Objects) -> Result<bool> {
    Ok(objects.stat(CURRENT)?.is_some())
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
    if rings.is_empty() && !for_passphrase.is_empty() {
        rings.extend(open_by_passphrase(objects, for_passphrase, options)?);
    }
    let found = rings.into_iter().min_by_key(|(file, _)| file.access);
    let found = found.map(|(file, ring)| (objects.describe(&file.key()), ring));
    let saved = || {
        let name = "the copy of the repository's key that was given";
        // A command may be given copies for two repositories.
        let mut rings = options.saved_rings()?.into_iter();
        let fitting = rings.find(|ring| check_ring(ring, &current, name).is_ok());
        Ok(fitting.map(|ring| (name.to_owned(), ring)))
    };
    let Some((name, ring)) = found.map_or_else(saved, |found| Ok(Some(found)))? else {
        if options.is_empty() {
            return Ok(RepositoryKey::Locked);
        }
        return Err(Error::new(
            ErrorKind::Permission,
            format!("cannot open {}", objects.describe("")),
        )
        .because("none of the keys that were given opens any of its key files")
        .hint("`fullbore key list` shows for whom the repository has keys"));
    };
    check_ring(&ring, &current, &name)?;
    // A generation that not every key file has yet seals nothing: its rotation was interrupted, and the next one replaces it.
    let ring = if ring.newest().number() > current.generation {
        ring.for_reading_only()
    } else {
        ring
    };
    Ok(RepositoryKey::Opened(Box::new(ring)))
}

/// The destination of a copy of encrypted objects as they are stored, without their key: `to`, if it has the same keys, or if it is new,
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
        carry_on(as_stored(from), as_stored(&**to), current.generation)?;
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

/// Is the ring that of this repository, and as new as it?
fn check_ring(ring: &KeyRing, current: &CurrentGeneration, name: &str) -> Result<()> {
    let damaged = |why: String| Error::corrupt(format!("{name} is damaged")).because(why);
    let newest = ring.newest().number();
    if newest < current.generation {
        return Err(damaged(format!(
            "it has generations up to {newest} of the repository's key, which is at {}: an old one was put in its place",
            current.generation
        ))
        .hint("if the storage is to be trusted, add this key again with another one: fullbore key add"));
    }
    let generation = ring.generation(current.generation, name)?;
    let proof = ring.prove_as_any(
        PURPOSE,
        &[
            &current.generation.to_le_bytes(),
            current.recipient.as_bytes(),
        ],
    );
    let is_ours = generation.recipient().to_string() == current.recipient
        && blake3::Hash::from_hex(&current.proof).is_ok_and(|found| found == proof);
    if is_ours {
        Ok(())
    } else {
        Err(damaged(
            "it is the key of another repository, or keys/current.json was changed".to_owned(),
        ))
    }
}

/// The key files that are there, without their recipients.
pub(super) fn key_files(objects: &dyn Objects) -> Result<Vec<KeyFile>> {
    let listed = objects.list(KEYS)?.into_iter();
    Ok(listed
        .filter_map(|object| KeyFile::of_key(&object.key))
        .collect())
}

/// The key files that are there, and those that are on the list and that the storage does not show. In order of their keys.
pub(super) fn known_files(objects: &dyn Objects, members: &Members) -> Result<Vec<KeyFile>> {
    let mut files = key_files(objects)?;
    let listed = members.files.keys().filter_map(|key| KeyFile::of_key(key));
    let hidden: Vec<_> = listed.filter(|file| !files.contains(file)).collect();
    files.extend(hidden);
    files.sort_by_key(KeyFile::key);
    for file in &mut files {
        let member = members.files.get(&file.key());
        file.recipient = member.map(|member| member.recipient.clone());
    }
    Ok(files)
}

/// The key files of a repository, by name; with a key that reads also for whom they are, and those that the storage does not show.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the list of members was changed, or the storage's.
pub fn list_keys(objects: &dyn Objects, ring: Option<&KeyRing>) -> Result<Vec<KeyFile>> {
    match ring.filter(|ring| ring.access() == Access::Read) {
        Some(ring) => known_files(objects, &read_members(objects, ring)?.0),
        None => key_files(objects),
    }
}

/// Adds a key file for `recipient`.
///
/// # Errors
/// [`ErrorKind::Exists`] if the name is taken, [`ErrorKind::Permission`] if `ring` cannot read, [`ErrorKind::Unreachable`] if the key
/// was rotated at the same time, and the storage's.
pub fn add_key(
    objects: &dyn Objects,
    ring: &KeyRing,
    name: &str,
    recipient: &UserRecipient,
    access: Access,
) -> Result<()> {
    check_name(name)?;
    require_reader(ring, "add a key")?;
    let author = match access {
        Access::Read => Author::PERSON,
        Access::Put => random_author()?,
    };
    let file = wrap_for(ring, access, author, recipient)?;
    let member = ListedKey {
        recipient: recipient.to_string(),
        author,
        digest: digest_of(&file),
    };
    alone(objects, || {
        add_file(objects, ring, name, (&member, access), &file)
    })
}

fn add_file(
    objects: &dyn Objects,
    ring: &KeyRing,
    name: &str,
    (member, access): (&ListedKey, Access),
    file: &[u8],
) -> Result<()> {
    let key = key_of(name, access);
    let current = CurrentGeneration::read(objects)?.map(|(current, _)| current.generation);
    if current != Some(ring.newest().number()) {
        return Err(Error::new(
            ErrorKind::Unreachable,
            format!("could not add key {name:?}"),
        )
        .because("the key of the repository was rotated meanwhile, or a rotation was interrupted")
        .hint("run the same command again; if it fails again, run `fullbore key rotate` first"));
    }
    let exists = || {
        Error::new(ErrorKind::Exists, format!("cannot add key {name:?}"))
            .because("there is one of this name")
            .hint("choose another name, or remove that key first: fullbore key remove")
    };
    // The list comes first: what a rotation does not know it would leave behind with an old key.
    let list = |members: &mut Members| {
        if objects.stat(&key)?.is_some() {
            return Err(exists());
        }
        members.files.insert(key.clone(), member.clone());
        Ok(())
    };
    change_members_and(objects, ring, list, || {
        match objects.put(&key, file, &PutIf::Absent)? {
            Put::Done(_) => Ok(()),
            Put::Refused => Err(exists()),
        }
    })
}

/// Does something to the keys while no other command does.
pub(super) fn alone<T>(objects: &dyn Objects, change: impl FnOnce() -> Result<T>) -> Result<T> {
    let could_not =
        |why| Error::new(ErrorKind::Unreachable, "could not change the keys").because(why);
    let lease = match objects.lease(CHANGE, b"", Take::DeadOrNew)? {
        Leased::Ours(lease) => lease,
        Leased::Unknown => {
            return Err(could_not("an intent of a change is there, and the storage cannot tell whether its holder lives")
                .hint("if no other command changes keys, remove keys/change.json"));
        }
        Leased::Held | Leased::Absent => {
            return Err(could_not("another command changes them at this moment"));
        }
    };
    // Key files that a killed command left may be those of somebody who was removed since.
    if let Err(error) = objects.abort_uploads(KEYS) {
        debug(|| error.line());
    }
    let changed = change();
    let deleted = objects.delete(&[CHANGE.to_owned()]);
    drop(lease);
    let value = changed?;
    deleted.map(|()| value)
}

/// Removes a key file. Whoever had it can read with a copy of it all that was sealed so far: rotate the key afterwards. Of a put key, the
/// backups that are there go on to count, and what it adds from now on does not.
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is none, [`ErrorKind::Usage`] if it is the last one that reads, [`ErrorKind::Permission`] without a key
/// that reads.
pub fn remove_key(
    objects: &dyn Objects,
    ring: Option<&KeyRing>,
    name: &str,
    access: Access,
) -> Result<()> {
    let what = format!("cannot remove key {name:?}");
    let Some(ring) = ring.filter(|ring| ring.access() == Access::Read) else {
        return Err(Error::new(ErrorKind::Permission, what)
            .because("no key was given that reads this repository"));
    };
    let (members, _) = read_members(objects, ring)?;
    let files = known_files(objects, &members)?;
    let is_it = |file: &KeyFile| file.name == name && file.access == access;
    if !files.iter().any(is_it) {
        return Err(Error::new(ErrorKind::NotFound, what).because("there is none of this name"));
    }
    // Files that are not on the list are of nobody whom this repository knows.
    let others = files
        .iter()
        .filter(|file| file.recipient.is_some() && !is_it(file));
    let is_last = !others.into_iter().any(|file| file.access == Access::Read);
    if access == Access::Read && is_last {
        return Err(Error::new(ErrorKind::Usage, what)
            .because("it is the last key that reads this repository")
            .hint("add another key first: fullbore key add"));
    }
    let key = key_of(name, access);
    alone(objects, || {
        // The list comes first: a file that is not in it is of a removed key.
        change_members(objects, ring, |members| {
            remove_member(objects, ring, members, &key)
        })?;
        objects.delete(std::slice::from_ref(&key))
    })
}

/// Takes a key file off the list, and puts the roots of its owner on it that count.
fn remove_member(
    objects: &dyn Objects,
    ring: &KeyRing,
    members: &mut Members,
    key: &str,
) -> Result<()> {
    let author = members
        .files
        .get(key)
        .map_or(Author::PERSON, |file| file.author);
    if !author.is_person() {
        let roots = proven_roots(objects, ring)?.into_iter();
        let of_it = roots.filter(|root| root.author == author && counts(members, ring, root));
        let marks: Vec<_> = of_it.map(|root| mark_of(ring, &root)).collect();
        members.accepted.extend(marks);
    }
    members.files.remove(key);
    Ok(())
}

pub(super) fn wrap_for(
    ring: &KeyRing,
    access: Access,
    author: Author,
    recipient: &UserRecipient,
) -> Result<Vec<u8>> {
    let text = match access {
        Access::Read => ring.to_text(),
        Access::Put => ring.for_putting(author).to_text(),
    };
    wrap_secret(text.as_bytes(), std::slice::from_ref(recipient))
}

pub(super) fn require_reader(ring: &KeyRing, verb: &str) -> Result<()> {
    match ring.access() {
        Access::Read => Ok(()),
        Access::Put => Err(Error::new(ErrorKind::Permission, format!("cannot {verb}"))
            .because("the key that was given can add backups only")),
    }
}

/// Refuses a name that a key file may not have.
pub(super) fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    let is_valid = !name.is_empty()
        && name.len() <= 64
        && name.chars().all(is_plain)
        && !name.starts_with('.')
        && !name.ends_with(".put");
    if is_valid {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    Err(Error::new(ErrorKind::Usage, format!("cannot name a key {shown:?}"))
        .because("a name has up to 64 letters, digits and -_.@, does not begin with a full stop, and does not end in \".put\""))
}
