//! A new generation of the key of a repository, wrapped anew for all that have a key file.
//!
//! The order of what is written makes a rotation safe at every moment:
//!
//! 1. The list of members of the new generation, with the marks of all roots that count. Whoever opens a new key file has it.
//! 2. The key files. From here on those that open one of them write nothing.
//! 3. `keys/current.json`. From here on the new generation seals.
//! 4. The marks of roots that were stored between 1 and 3. A backup that stores its root later sees the new generation, and fails.

use super::{
    Objects, Put, PutIf,
    generation::{CURRENT, CurrentGeneration},
    key_change::{alone, require_reader},
    key_file::{KeyFile, wrap_for},
    members::{
        ListNumber, ListedKey, Members, change_members, digest_of, known_files, marks_that_count,
        read_members, sealed_bytes, write_first,
    },
    probe::probe_key,
};
use fullbore_crypt::{Author, KeyRing, UserRecipient};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::debug;
use std::collections::BTreeMap;

/// Rotations that may be cut one after the other.
const CUT_ROTATIONS: u32 = 64;
/// Bytes that file systems give to a file at a time, mostly.
const BLOCK_BYTES: usize = 4096;
/// Blocks for directories that grow, and for a file that is written beside the one that it replaces.
const SPARE_BLOCKS: usize = 8;

/// Gives the repository a new key for everything that is sealed from now on, and wraps it anew for all that have a key file.
///
/// Roots that count now go on to count; of the old generation no others do from now on. A rotation that was interrupted leaves key files
/// of both sorts, which all open everything that is there; the next rotation completes it. `passphrase` is asked for the name of each key
/// file that has a passphrase.
///
/// # Errors
/// [`ErrorKind::Permission`] if `ring` cannot read, or if a key file could not be wrapped again; then nothing was changed.
pub fn rotate_key(
    objects: &dyn Objects,
    ring: &KeyRing,
    passphrase: &dyn Fn(&str) -> Result<Option<UserRecipient>>,
) -> Result<KeyRing> {
    require_reader(ring, "rotate the key")?;
    alone(objects, || rotate_alone(objects, ring, passphrase))
}

fn rotate_alone(
    objects: &dyn Objects,
    ring: &KeyRing,
    passphrase: &dyn Fn(&str) -> Result<Option<UserRecipient>>,
) -> Result<KeyRing> {
    let Some((current, version)) = CurrentGeneration::read(objects)? else {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("cannot rotate the key of {}", objects.describe("")),
        )
        .because("it is not encrypted"));
    };
    if ring.newest().number() < current.generation() {
        return Err(ended_first());
    }
    let rotated = ring.rotated_above(used_generations(objects, ring)?)?;
    let (members, _) = read_members(objects, ring)?;
    // All are wrapped before one is written: a recipient that is not known stops the rotation, not the repository.
    let files = wrap_all(objects, &members, &rotated, passphrase)?;
    let counting = || marks_that_count(objects, (&members, ring), &rotated);
    let accepted = counting()?;
    let next = Members {
        files: files
            .iter()
            .map(|(key, (written_by, _))| (key.clone(), written_by.clone()))
            .collect(),
        accepted: accepted.clone(),
    };
    let current = CurrentGeneration::of(&rotated).sealed()?;
    let new_files = files.values().map(|(_, bytes)| bytes.len());
    let list_bytes = sealed_bytes(&next)?;
    let small = [list_bytes, list_bytes, current.len()].into_iter();
    check_room(objects, new_files.chain(small)).map_err(nothing_changed)?;
    write_first(&next, objects, &rotated).map_err(nothing_changed)?;
    write_files(objects, &files).map_err(incomplete)?;
    let put = objects.put(CURRENT, &current, &PutIf::Version(version));
    if put.map_err(incomplete)? == Put::Refused {
        return Err(ended_first());
    }
    let late = counting().map_err(without_late_roots)?;
    if late != accepted {
        change_members(objects, &rotated, |members| {
            members.accepted.extend(&late);
            Ok(())
        })
        .map_err(without_late_roots)?;
    }
    // Nobody reads them any more.
    if let Err(error) = remove_old_lists(objects, &rotated) {
        debug(|| error.line());
    }
    Ok(rotated)
}

/// Returns the highest generation that has a list: a rotation that was cut may have given it to some, and the list is theirs until the next
/// one is complete.
fn used_generations(objects: &dyn Objects, ring: &KeyRing) -> Result<u32> {
    let newest = ring.newest().number();
    // A storage that makes up lists does not use up the numbers.
    let highest = newest.saturating_add(CUT_ROTATIONS);
    let lists = ListNumber::all(objects)?.into_iter();
    let used = lists
        .map(|list| list.generation)
        .filter(|number| *number <= highest);
    Ok(used.max().unwrap_or(newest))
}

fn write_files(
    objects: &dyn Objects,
    files: &BTreeMap<String, (ListedKey, Vec<u8>)>,
) -> Result<()> {
    for (key, (_, bytes)) in files {
        objects.put(key, bytes, &PutIf::Always)?;
    }
    Ok(())
}

/// Tries whether the storage has room for files of these lengths, before a key file is replaced: with some of both generations nobody who
/// has a new one adds backups.
fn check_room(objects: &dyn Objects, lengths: impl Iterator<Item = usize>) -> Result<()> {
    let blocks = lengths.map(|bytes| bytes.div_ceil(BLOCK_BYTES) + 1);
    let mut filler = vec![0; (blocks.sum::<usize>() + SPARE_BLOCKS) * BLOCK_BYTES];
    // Zeros would take no room where a file system compresses.
    blake3::Hasher::new().finalize_xof().fill(&mut filler);
    let key = probe_key();
    let put = objects.put(&key, &filler, &PutIf::Absent);
    let deleted = objects.delete(&[key]);
    put?;
    deleted
}

fn nothing_changed(error: Error) -> Error {
    Error::new(error.kind, "could not rotate the key")
        .because(error.line())
        .hint("nothing was changed; free space if the storage is full, and run the same command again")
}

fn incomplete(error: Error) -> Error {
    Error::new(error.kind, "could not complete the rotation of the key")
        .because(error.line())
        .hint("all keys open the repository as before, and those that have the new key add no backups; run the same command again")
}

fn without_late_roots(error: Error) -> Error {
    Error::new(
        error.kind,
        "could not let the backups count that were made while the key was rotated",
    )
    .because(error.line())
    .hint("the key is rotated, and other backups count; `fullbore verify` names these, and `fullbore key accept` lets them count")
}

fn ended_first() -> Error {
    Error::new(ErrorKind::Unreachable, "could not rotate the key")
        .because("another rotation ended first")
        .hint("run the same command again")
}

/// Returns all key files with the new generation, by their keys.
fn wrap_all(
    objects: &dyn Objects,
    members: &Members,
    rotated: &KeyRing,
    passphrase: &dyn Fn(&str) -> Result<Option<UserRecipient>>,
) -> Result<BTreeMap<String, (ListedKey, Vec<u8>)>> {
    let mut wrapped = BTreeMap::new();
    for file in known_files(objects, members)? {
        let key = file.key();
        let recipient = recipient_of(&file, members, passphrase)?;
        let author = members
            .files
            .get(&key)
            .map_or(Author::PERSON, |host| host.author);
        let bytes = wrap_for(rotated, file.access, author, &recipient)?;
        let member = ListedKey {
            recipient: recipient.to_string(),
            author,
            digest: digest_of(&bytes),
            is_pending: false,
        };
        wrapped.insert(key, (member, bytes));
    }
    Ok(wrapped)
}

fn recipient_of(
    file: &KeyFile,
    members: &Members,
    passphrase: &dyn Fn(&str) -> Result<Option<UserRecipient>>,
) -> Result<UserRecipient> {
    let refused = |why: &str| {
        Error::new(
            ErrorKind::Permission,
            format!("cannot wrap the new key for {:?}", file.name),
        )
        .because(why.to_owned())
        .hint("remove that key first, and add it again after the rotation")
    };
    let member = members.files.get(&file.key());
    match member.map(|member| &member.recipient[..]) {
        None => Err(refused("the list of keys does not say for whom it is")),
        Some("passphrase") => {
            passphrase(&file.name)?.ok_or_else(|| refused("its passphrase was not given"))
        }
        Some(text) => UserRecipient::parse(text),
    }
}

/// Removes the lists of other generations.
fn remove_old_lists(objects: &dyn Objects, ring: &KeyRing) -> Result<()> {
    let newest = ring.newest().number();
    let lists = ListNumber::all(objects)?.into_iter();
    let old = lists.filter(|list| list.generation != newest);
    objects.delete(&old.map(ListNumber::key).collect::<Vec<_>>())
}
