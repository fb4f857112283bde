//! The members of a repository: for whom its key files are, which put keys count, and which older roots do.
//!
//! The list has the number of a generation and of its changes in its name, is sealed with that generation, and proved with the secret of
//! people: a put key cannot write it, nor can a person who was removed before that generation. The newest generation of the reader's own
//! key says which list counts, so that a list that was put back does not count after a rotation.
//!
//! A root counts in two cases:
//! - The newest generation sealed it, in the name of a person or of a put key that is in the list.
//! - The list has the mark of that root. A rotation and the removal of a put key write down the marks of all roots that count then.

pub use fullbore_format::members::{ListedKey, Members, RootMark};

use super::{
    Objects, Put, PutIf,
    key_file::{KeyFile, PUT_SUFFIX, SUFFIX, key_files},
    root_document::ProvenRoot,
};
use fullbore_crypt::{Access, Author, KeyRing, OBJECT_PREFIX_BYTES, open_by_person, seal_object};
use fullbore_format::members::MARK_BYTES;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{BACKUPS, KEYS},
    seal::seal,
};
use fullbore_platform::queue::run_each;
use std::collections::BTreeSet;

/// How the keys of lists begin.
const LISTS: &str = "keys/members.";

/// What marks of roots are for.
const MARK: &str = "fullbore root that counts v1";

/// Roots that are read at the same time.
const READ_AT_ONCE: usize = 16;

/// Times that a change is tried again which another one came before.
const ATTEMPTS: usize = 5;

/// Which list: of a generation, the one that was changed most often is the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListNumber {
    /// The generation that sealed it.
    pub generation: u32,
    /// Changes of the list since then.
    pub changes: u32,
}

impl ListNumber {
    /// Returns the key of the list.
    pub fn key(self) -> String {
        format!("{LISTS}{}.{}", self.generation, self.changes)
    }

    /// Returns the list that this is the key of.
    pub fn of_key(key: &str) -> Option<Self> {
        let (generation, changes) = key.strip_prefix(LISTS)?.split_once('.')?;
        let number = Self {
            generation: generation.parse().ok()?,
            changes: changes.parse().ok()?,
        };
        (number.key() == key).then_some(number)
    }

    /// Returns all lists that are there.
    ///
    /// # Errors
    /// The storage's.
    pub fn all(objects: &dyn Objects) -> Result<Vec<Self>> {
        let listed = objects.list(KEYS)?.into_iter();
        Ok(listed
            .filter_map(|object| Self::of_key(&object.key))
            .collect())
    }

    fn newest_of(objects: &dyn Objects, generation: u32) -> Result<Option<Self>> {
        let all = Self::all(objects)?.into_iter();
        Ok(all.filter(|list| list.generation == generation).max())
    }
}

/// Reads the newest list of the newest generation of `ring`, and its number.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if it is missing, or if a put key or an old generation sealed it; the storage's.
pub fn read_members(objects: &dyn Objects, ring: &KeyRing) -> Result<(Members, ListNumber)> {
    for _ in 0..ATTEMPTS {
        let Some(list) = ListNumber::newest_of(objects, ring.newest().number())? else {
            break;
        };
        let name = objects.describe(&list.key());
        // Another command may just have replaced it by a newer one.
        if let Some((bytes, _)) = objects.get(&list.key())? {
            let plain = open_by_person(&list.key(), &bytes, ring, &name)?;
            return Ok((Members::parse(&plain, &name)?, list));
        }
    }
    let first = first_list(ring).key();
    Err(
        Error::corrupt(format!("{} is missing", objects.describe(&first)))
            .because("it says who may add backups, and which older backups count"),
    )
}

/// Writes the first list of the newest generation of `ring`.
///
/// # Errors
/// The storage's.
pub fn write_first(members: &Members, objects: &dyn Objects, ring: &KeyRing) -> Result<()> {
    let first = first_list(ring);
    // What an interrupted rotation to the same number left.
    let lists = ListNumber::all(objects)?.into_iter();
    let stale = lists.filter(|list| list.generation == first.generation && *list != first);
    objects.delete(&stale.map(ListNumber::key).collect::<Vec<_>>())?;
    write(members, objects, ring, first, &PutIf::Always).map(drop)
}

/// Returns the bytes of the list as it is stored, about.
///
/// # Errors
/// Those of writing JSON.
pub fn sealed_bytes(members: &Members) -> Result<usize> {
    Ok(seal(members)?.len() + OBJECT_PREFIX_BYTES)
}

fn write(
    members: &Members,
    objects: &dyn Objects,
    ring: &KeyRing,
    list: ListNumber,
    condition: &PutIf,
) -> Result<Put> {
    let key = list.key();
    objects.put(
        &key,
        &seal_object(&key, &seal(members)?, ring, None)?,
        condition,
    )
}

/// Changes the list; another change at the same moment is not lost.
///
/// # Errors
/// As [`read_members`] and `change`; [`ErrorKind::Unreachable`] if others change it all the time.
pub fn change_members(
    objects: &dyn Objects,
    ring: &KeyRing,
    change: impl Fn(&mut Members) -> Result<()>,
) -> Result<()> {
    change_members_and(objects, ring, change, || Ok(()))
}

/// Changes the list, and does what the new list says. If the storage refuses that, the list is as before: the change needs space, and
/// to take it back needs none.
///
/// # Errors
/// As [`change_members`], and those of `then`.
pub fn change_members_and(
    objects: &dyn Objects,
    ring: &KeyRing,
    change: impl Fn(&mut Members) -> Result<()>,
    then: impl FnOnce() -> Result<()>,
) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let (mut members, before) = read_members(objects, ring)?;
        change(&mut members)?;
        let next = ListNumber {
            changes: before.changes.saturating_add(1),
            ..before
        };
        if write(&members, objects, ring, next, &PutIf::Absent)? == Put::Refused {
            continue;
        }
        let done = then();
        // After other errors it may be done all the same: then the new list is the right one.
        let is_refused = done.as_ref().is_err_and(|error| {
            matches!(
                error.kind,
                ErrorKind::Full | ErrorKind::Exists | ErrorKind::Permission
            )
        });
        let useless = if is_refused { next } else { before };
        let deleted = objects.delete(&[useless.key()]);
        return done.and(deleted);
    }
    Err(
        Error::new(ErrorKind::Unreachable, "could not change the keys")
            .because("others change them at the same time")
            .hint("nothing was changed; run the same command again"),
    )
}

/// Returns whether a root counts, of which `ring` has checked the proof.
pub fn counts(members: &Members, ring: &KeyRing, root: &ProvenRoot) -> bool {
    let has_author = || {
        members
            .files
            .values()
            .any(|file| file.author == root.author)
    };
    let is_newest = root.generation == ring.newest().number();
    is_newest && (root.author.is_person() || has_author())
        || members.accepted.contains(&mark_of(ring, root))
}

/// Returns the name of the key file of a put key.
pub fn name_of(members: &Members, author: Author) -> Option<&str> {
    let (key, _) = members
        .files
        .iter()
        .find(|(_, file)| file.author == author)?;
    let name = key.strip_prefix(KEYS)?.strip_prefix('/')?;
    name.strip_suffix(PUT_SUFFIX)
}

/// Returns the key files that are there, and those that were added by the list and that the storage does not show. In order of their keys.
pub(super) fn known_files(objects: &dyn Objects, members: &Members) -> Result<Vec<KeyFile>> {
    let mut files = key_files(objects)?;
    let added = members.files.iter().filter(|(_, file)| !file.is_pending);
    let listed = added.filter_map(|(key, _)| KeyFile::of_key(key));
    let hidden: Vec<_> = listed.filter(|file| !files.contains(file)).collect();
    files.extend(hidden);
    files.sort_by_key(KeyFile::key);
    for file in &mut files {
        let member = members.files.get(&file.key());
        file.recipient = member.map(|member| member.recipient.clone());
    }
    Ok(files)
}

/// Returns the key files that are not as they were written; with the reason for each.
///
/// # Errors
/// The storage's.
pub fn changed_files(
    members: &Members,
    objects: &dyn Objects,
) -> Result<Vec<(String, &'static str)>> {
    let mut changed = Vec::new();
    for (key, member) in &members.files {
        match objects.get(key)? {
            None if member.is_pending => {}
            None => changed.push((key.clone(), "it is missing")),
            Some((bytes, _)) if digest_of(&bytes) != member.digest => {
                changed.push((key.clone(), "it is not as it was written"));
            }
            Some(_) => {}
        }
    }
    Ok(changed)
}

fn first_list(ring: &KeyRing) -> ListNumber {
    ListNumber {
        generation: ring.newest().number(),
        changes: 0,
    }
}

/// Brings the list of a copy of the repository with the same keys up to date, and the key files that it has not. This needs no key: the
/// name of a list says how often it was changed, and is part of what is proven.
///
/// # Errors
/// The storage's.
pub fn carry_on(from: &dyn Objects, to: &dyn Objects, generation: u32) -> Result<()> {
    let Some(newer) = ListNumber::newest_of(from, generation)? else {
        return Ok(());
    };
    if ListNumber::newest_of(to, generation)?.is_some_and(|older| older >= newer) {
        return Ok(());
    }
    let listed = from.list(KEYS)?.into_iter().map(|object| object.key);
    let files = listed.filter(|key| key.ends_with(SUFFIX));
    // The list comes last: it has the digests of the files.
    for key in files.chain([newer.key()]) {
        if let Some((bytes, _)) = from.get(&key)? {
            to.put(&key, &bytes, &PutIf::Absent)?;
        }
    }
    Ok(())
}

/// Returns the digest of a key file.
pub fn digest_of(file: &[u8]) -> String {
    blake3::hash(file).to_hex().to_string()
}

/// Returns the mark of a root in the list of the newest generation of `ring`.
pub fn mark_of(ring: &KeyRing, root: &ProvenRoot) -> RootMark {
    let hash = ring.newest().prove(MARK, &[root.proof.as_bytes()]);
    let mut mark = RootMark::default();
    mark.copy_from_slice(&hash.as_bytes()[..MARK_BYTES]);
    mark
}

/// Returns all roots whose proof `ring` finds right, listed, partial and forgotten, whether they count or not.
///
/// # Errors
/// The storage's. Damaged roots are skipped.
pub fn proven_roots(objects: &dyn Objects, ring: &KeyRing) -> Result<Vec<ProvenRoot>> {
    let listed = objects.list(BACKUPS)?.into_iter().map(|object| object.key);
    let keys: Vec<String> = listed.filter(|key| ProvenRoot::is_root(key)).collect();
    let mut roots = Vec::new();
    for some in keys.chunks(READ_AT_ONCE) {
        for root in run_each(some, |key| proven_root(objects, ring, key)) {
            roots.extend(root?);
        }
    }
    Ok(roots)
}

fn proven_root(objects: &dyn Objects, ring: &KeyRing, key: &str) -> Result<Option<ProvenRoot>> {
    let Some((stored, _)) = objects.get(key)? else {
        return Ok(None);
    };
    // Damage has no proof, and never counts.
    Ok(
        ProvenRoot::check(key, &stored, ring, &objects.describe(key))
            .ok()
            .flatten(),
    )
}

/// Returns the marks, made with `newer`, of the roots of the repository that count by `members` with the key `ring`.
///
/// # Errors
/// The storage's.
pub fn marks_that_count(
    objects: &dyn Objects,
    (members, ring): (&Members, &KeyRing),
    newer: &KeyRing,
) -> Result<BTreeSet<RootMark>> {
    let roots = proven_roots(objects, ring)?.into_iter();
    let counting = roots.filter(|root| counts(members, ring, root));
    Ok(counting.map(|root| mark_of(newer, &root)).collect())
}

/// Lets a root count that does not, because a person says that it is genuine. Returns `false` if it has no proof of any key.
///
/// # Errors
/// As [`change_members`]; [`ErrorKind::Permission`] if `ring` cannot read.
pub fn accept_root(objects: &dyn Objects, ring: &KeyRing, root_key: &str) -> Result<bool> {
    if ring.access() == Access::Put {
        return Err(fullbore_crypt::only_adds(root_key));
    }
    let Some(root) = proven_root(objects, ring, root_key)? else {
        return Ok(false);
    };
    let mark = mark_of(ring, &root);
    change_members(objects, ring, |members| {
        members.accepted.insert(mark);
        Ok(())
    })?;
    Ok(true)
}
