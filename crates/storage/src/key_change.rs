//! Adds and removes key files. Changes of the keys of a repository are made one at a time.

use super::{
    Leased, Objects, Put, PutIf, Take,
    generation::current_generation,
    key_file::{KeyFile, check_name, key_of, wrap_for},
    members::{
        ListedKey, Members, change_members, change_members_and, counts, digest_of, known_files,
        mark_of, proven_roots, read_members,
    },
};
use fullbore_crypt::{Access, Author, KeyRing, UserRecipient, random_author};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::KEYS,
};
use fullbore_platform::debug;

/// The intent of whoever changes keys.
pub(super) const CHANGE: &str = "keys/change.json";

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

/// Refuses a key that cannot read.
pub(super) fn require_reader(ring: &KeyRing, verb: &str) -> Result<()> {
    match ring.access() {
        Access::Read => Ok(()),
        Access::Put => Err(Error::new(ErrorKind::Permission, format!("cannot {verb}"))
            .because("the key that was given can add backups only")),
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
        is_pending: true,
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
    if current_generation(objects)? != Some(ring.newest().number()) {
        return Err(Error::new(
            ErrorKind::Unreachable,
            format!("could not add key {name:?}"),
        )
        .because("the key of the repository was rotated meanwhile, or a rotation was interrupted")
        .hint("run the same command again; if it fails again, run `fullbore key rotate` first"));
    }
    // The list comes first: what a rotation does not know it would leave behind with an old key.
    let list = |members: &mut Members| {
        if objects.stat(&key)?.is_some() {
            return Err(key_exists(name));
        }
        members.files.insert(key.clone(), member.clone());
        Ok(())
    };
    change_members_and(objects, ring, list, || {
        match objects.put(&key, file, &PutIf::Absent)? {
            Put::Done(_) => Ok(()),
            Put::Refused => Err(key_exists(name)),
        }
    })?;
    let is_there = change_members(objects, ring, |members| {
        if let Some(member) = members.files.get_mut(&key) {
            member.is_pending = false;
        }
        Ok(())
    });
    // The key is added: without this, a check would only not miss its file.
    if let Err(error) = is_there {
        debug(|| error.line());
    }
    Ok(())
}

fn key_exists(name: &str) -> Error {
    Error::new(ErrorKind::Exists, format!("cannot add key {name:?}"))
        .because("there is one of this name")
        .hint("choose another name, or remove that key first: fullbore key remove")
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
    let message = format!("cannot remove key {name:?}");
    let Some(ring) = ring.filter(|ring| ring.access() == Access::Read) else {
        return Err(Error::new(ErrorKind::Permission, message)
            .because("no key was given that reads this repository")
            .hint("give the key of a person, by --key FILE or --passphrase-file FILE"));
    };
    let (members, _) = read_members(objects, ring)?;
    let files = known_files(objects, &members)?;
    let is_it = |file: &KeyFile| file.name == name && file.access == access;
    if !files.iter().any(is_it) {
        return Err(Error::new(ErrorKind::NotFound, message)
            .because("there is none of this name")
            .hint("`fullbore key list REPO` prints the names of all keys"));
    }
    // Files that are not on the list are of nobody whom this repository knows.
    let others = files
        .iter()
        .filter(|file| file.recipient.is_some() && !is_it(file));
    let is_last = !others.into_iter().any(|file| file.access == Access::Read);
    if access == Access::Read && is_last {
        return Err(Error::new(ErrorKind::Usage, message)
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
