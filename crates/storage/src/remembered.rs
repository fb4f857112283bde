//! Repositories that this host has used, by location: what is remembered of them between runs, as ssh remembers the keys of hosts.
//!
//! A location may have several, such as disks that are used by turns. Each has its id and, if it is encrypted, the fingerprint of its
//! keys and the recipient of the newest generation that was seen. The first one that is met at a location is taken as it is; from then on
//! another one is noticed, and a command uses it only if its user says so: [`LocationMemory::check_keys`],
//! [`LocationMemory::check_new`], [`LocationMemory::meet`].
//!
//! One small file for each location, in the state directory. A memory that cannot be written is none: the command goes on.

use super::{
    Location,
    kept::replace_file,
    remembered_file::{file_system_of, name_of, read_document},
};
use fullbore_crypt::KeyRing;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::debug;
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Directory of the files, in the state directory.
const DIRECTORY: &str = "repositories";

/// Repositories of a location at most; the one that was met first is forgotten for another one.
const MAX_REPOSITORIES: usize = 64;

/// The keys of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RememberedKeys {
    fingerprint: String,
    /// The newest generation that was seen, and its recipient: later keys have it among their generations.
    generation: u32,
    recipient: String,
}

/// A repository that was at a location.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RememberedRepository {
    id: String,
    is_encrypted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keys: Option<RememberedKeys>,
    /// The file system of a local directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file_system: Option<String>,
}

/// The content of a file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct MemoryDocument {
    location: String,
    repositories: Vec<RememberedRepository>,
}

/// How a repository was opened.
#[derive(Debug, Clone, Copy)]
pub(super) enum MetKeys<'a> {
    /// It is not encrypted.
    Clear,
    /// It is encrypted, and no key was given.
    Locked,
    /// It is encrypted, and a key opened it.
    Opened(&'a KeyRing),
}

/// What came of a look at the repository of a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acquaintance {
    /// It was here before.
    Known,
    /// It is the first one at this location.
    First,
    /// Others were here before, and this one was not.
    Stranger,
}

/// Repositories that are taken for the right ones, although they are not known.
#[derive(Debug, Clone, Copy)]
pub(super) struct AcceptedRepositories {
    /// Any but a clear one in place of an encrypted one.
    pub(super) others: bool,
    /// A clear one in place of an encrypted one.
    pub(super) clear: bool,
    /// This command has made the repository, so what was on its file system was deleted.
    pub(super) is_made: bool,
}

/// What is remembered of a location.
#[derive(Debug)]
pub(super) struct LocationMemory {
    /// `None` if nothing is remembered.
    file: Option<PathBuf>,
    document: MemoryDocument,
    /// The file system that a local directory is on now.
    file_system: Option<String>,
    is_local: bool,
}

impl LocationMemory {
    /// Reads what is remembered of a location in the state directory `dir`. `endpoint` is part of the name of an object store.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the file is damaged.
    pub(super) fn read(
        dir: Option<&Path>,
        location: &Location,
        endpoint: Option<&str>,
    ) -> Result<Self> {
        let name = name_of(location, endpoint);
        let digest = blake3::hash(name.as_bytes()).to_hex();
        let file = dir.map(|dir| dir.join(DIRECTORY).join(format!("{}.json", &digest[..32])));
        let document = file.as_deref().map_or_else(|| Ok(None), read_document)?;
        Ok(Self {
            file,
            document: document.unwrap_or(MemoryDocument {
                location: name,
                repositories: Vec::new(),
            }),
            file_system: location.as_local().and_then(file_system_of),
            is_local: location.as_local().is_some(),
        })
    }

    /// Checks keys that have opened the repository. `expected` are fingerprints that the user gave. Returns whether the keys are known.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if they are neither those that are remembered nor expected.
    pub(super) fn check_keys(
        &self,
        ring: &KeyRing,
        expected: &[String],
        name: &str,
    ) -> Result<bool> {
        let fingerprint = ring.fingerprint();
        // A person who names the keys overrules what this host remembers.
        if !expected.is_empty() {
            return match expected.contains(&fingerprint) {
                true => Ok(true),
                false => Err(other_keys(name, &fingerprint, expected)),
            };
        }
        let known: Vec<_> = self.keys().collect();
        let Some(same) = known.iter().find(|keys| keys.fingerprint == fingerprint) else {
            let fingerprints: Vec<_> = known.iter().map(|keys| keys.fingerprint.clone()).collect();
            return match fingerprints.is_empty() {
                true => Ok(false),
                false => Err(other_keys(name, &fingerprint, &fingerprints)),
            };
        };
        if goes_on_from(ring, same) {
            return Ok(true);
        }
        Err(Error::new(ErrorKind::Permission, format!("cannot use {name}: its keys do not go on from those that this host knows"))
            .because(format!("generation {} has another recipient, or is missing", same.generation))
            .hint(format!(
                "somebody who was a member or adds backups may have put keys of their own in place, or old keys were put back: ask \
                 who administers the storage. If the keys are right, run the command again with --expect-keys {fingerprint}"
            )))
    }

    fn keys(&self) -> impl Iterator<Item = &RememberedKeys> {
        let all = self.document.repositories.iter();
        all.filter_map(|repository| repository.keys.as_ref())
    }

    /// Refuses to make a repository where one was that is missing: its disk may not be mounted. One that was deleted from the same file
    /// system is not missing.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if one is missing.
    pub(super) fn check_new(&self, name: &str) -> Result<()> {
        let all = &self.document.repositories;
        let was_deleted = self.is_local
            && all
                .iter()
                .any(|known| known.file_system == self.file_system);
        let Some(last) = all.last().filter(|_| !was_deleted) else {
            return Ok(());
        };
        let hint = match self.is_local {
            true => "is its disk mounted? `fullbore init` makes a new one there",
            false => "is the address right? `fullbore init` makes a new one there",
        };
        Err(Error::new(
            ErrorKind::NotFound,
            format!("could not find the repository that this host knows at {name}"),
        )
        .because(format!(
            "there is none now, and {:?} was there before",
            last.id
        ))
        .hint(hint))
    }

    /// Notes the repository that is at the location. One that is not known is noted if `accepts` it, or if it is the first one.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if it is clear, and what was there before was encrypted.
    pub(super) fn meet(
        &mut self,
        id: &str,
        keys: MetKeys<'_>,
        accepts: AcceptedRepositories,
        name: &str,
    ) -> Result<Acquaintance> {
        let found = self.position(id);
        let is_clear = matches!(keys, MetKeys::Clear);
        if is_clear && self.was_encrypted(found) && !accepts.clear {
            return Err(became_clear(name));
        }
        let acquaintance = match found {
            Some(_) => Acquaintance::Known,
            None if self.document.repositories.is_empty() => Acquaintance::First,
            None if accepts.others => Acquaintance::Known,
            None => return Ok(Acquaintance::Stranger),
        };
        let before = found.map(|index| self.document.repositories[index].clone());
        // Keys that cannot be seen now are those that were seen last.
        let keys_before = || before.as_ref().and_then(|known| known.keys.clone());
        let now = RememberedRepository {
            id: id.to_owned(),
            is_encrypted: !is_clear,
            keys: match keys {
                MetKeys::Clear => None,
                MetKeys::Locked => keys_before(),
                MetKeys::Opened(ring) => RememberedKeys::of(ring).or_else(keys_before),
            },
            file_system: self.file_system.clone(),
        };
        if before.as_ref() != Some(&now) {
            self.note(found, now, accepts.is_made);
        }
        Ok(acquaintance)
    }

    fn position(&self, id: &str) -> Option<usize> {
        let mut all = self.document.repositories.iter();
        all.position(|known| known.id == id)
    }

    /// Returns whether the repository at `found` was encrypted; if it is not known, whether all were that were here.
    fn was_encrypted(&self, found: Option<usize>) -> bool {
        let all = &self.document.repositories;
        match found {
            Some(at) => all[at].is_encrypted,
            None => !all.is_empty() && all.iter().all(|known| known.is_encrypted),
        }
    }

    fn note(&mut self, found: Option<usize>, now: RememberedRepository, is_made: bool) {
        let all = &mut self.document.repositories;
        match found {
            Some(at) => all[at] = now,
            None => {
                // What is made anew on a file system takes the place of what was deleted there.
                let is_replaced = |known: &RememberedRepository| {
                    is_made && self.is_local && known.file_system == now.file_system
                };
                all.retain(|known| !is_replaced(known));
                all.push(now);
                let over = all.len().saturating_sub(MAX_REPOSITORIES);
                all.drain(..over);
            }
        }
        if let Err(error) = self.write() {
            debug(|| format!("could not remember {}: {error}", self.document.location));
        }
    }

    fn write(&self) -> io::Result<()> {
        let Some(path) = &self.file else {
            return Ok(());
        };
        let text = serde_json::to_vec_pretty(&self.document)?;
        replace_file(path, &text)
    }

    /// Returns the ids that are known, for messages.
    pub(super) fn known_ids(&self) -> String {
        let ids = self
            .document
            .repositories
            .iter()
            .map(|known| format!("{:?}", known.id));
        ids.collect::<Vec<_>>().join(", ")
    }
}

impl RememberedKeys {
    /// Returns what is remembered of a ring; `None` for a ring whose newest generation seals nothing: a rotation was interrupted, and
    /// another generation may replace it.
    fn of(ring: &KeyRing) -> Option<Self> {
        let newest = ring.sealing_generation("").ok()?;
        Some(Self {
            fingerprint: ring.fingerprint(),
            generation: newest.number(),
            recipient: newest.recipient().to_string(),
        })
    }
}

/// Returns whether a ring has the newest generation that was seen. A key that reads holds the identity of each generation, so a ring
/// with it was made by somebody who could read then.
fn goes_on_from(ring: &KeyRing, known: &RememberedKeys) -> bool {
    let generation = ring.generation(known.generation, "the key of the repository");
    generation.is_ok_and(|generation| generation.recipient().to_string() == known.recipient)
}

fn other_keys(name: &str, now: &str, known: &[String]) -> Error {
    let whom = "ask who administers the storage, and compare it with what `fullbore key list` prints on another host";
    Error::new(ErrorKind::Permission, format!("cannot use {name}: its keys are not those that are known"))
        .because(format!("the fingerprint of its keys is {now}, and not {}", known.join(" or ")))
        .hint(format!(
            "the storage may have put keys of its own in place: {whom}. If it is right, run the command again with --expect-keys {now}"
        ))
}

fn became_clear(name: &str) -> Error {
    Error::new(ErrorKind::Permission, format!("cannot use {name}: it is not encrypted, and the repository that this host knows there is"))
        .because("the storage may have removed its keys, or put another repository in place")
        .hint("if it is meant, run `fullbore init` for it with --no-encryption")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: AcceptedRepositories = AcceptedRepositories {
        others: true,
        clear: true,
        is_made: false,
    };
    const NONE: AcceptedRepositories = AcceptedRepositories {
        others: false,
        clear: false,
        is_made: false,
    };

    fn memory(dir: &Path) -> LocationMemory {
        let location = Location::Ssh {
            host: "vault".to_owned(),
            path: "/backup".into(),
        };
        LocationMemory::read(Some(dir), &location, None).unwrap()
    }

    /// A ring that somebody makes who knows the secrets of one that only adds backups.
    fn planted(ring: &KeyRing) -> KeyRing {
        let other = KeyRing::random().unwrap().to_text().to_string();
        let second_line = |text: &str| text.lines().nth(1).unwrap().to_owned();
        let text = other.replace(
            &second_line(&other),
            &second_line(
                &ring
                    .for_putting(fullbore_crypt::random_author().unwrap())
                    .to_text(),
            ),
        );
        KeyRing::parse(&text, "it").unwrap()
    }

    #[test]
    fn keys_that_do_not_go_on_from_the_known_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let ring = KeyRing::random().unwrap();
        assert!(!memory(dir.path()).check_keys(&ring, &[], "it").unwrap());
        let met = memory(dir.path()).meet("a", MetKeys::Opened(&ring), NONE, "it");
        assert_eq!(met.unwrap(), Acquaintance::First);
        assert!(memory(dir.path()).check_keys(&ring, &[], "it").unwrap());
        let rotated = ring.rotated().unwrap();
        assert!(memory(dir.path()).check_keys(&rotated, &[], "it").unwrap());
        let met = memory(dir.path()).meet("a", MetKeys::Opened(&rotated), NONE, "it");
        assert_eq!(met.unwrap(), Acquaintance::Known);
        let planted = planted(&ring);
        assert_eq!(planted.fingerprint(), ring.fingerprint());
        let refused = [planted, KeyRing::random().unwrap(), ring.clone()];
        for other in &refused {
            let error = memory(dir.path()).check_keys(other, &[], "it").unwrap_err();
            assert_eq!(error.kind, ErrorKind::Permission);
        }
        // Its user says so.
        let other = &refused[1];
        let expected = [other.fingerprint()];
        assert!(
            memory(dir.path())
                .check_keys(other, &expected, "it")
                .unwrap()
        );
        assert!(
            memory(dir.path())
                .check_keys(&rotated, &expected, "it")
                .is_err()
        );
    }

    #[test]
    fn an_interrupted_rotation_is_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let ring = KeyRing::random().unwrap();
        memory(dir.path())
            .meet("a", MetKeys::Opened(&ring), NONE, "it")
            .unwrap();
        let interrupted = ring.rotated().unwrap().for_reading_only();
        memory(dir.path())
            .meet("a", MetKeys::Opened(&interrupted), NONE, "it")
            .unwrap();
        let replaced = ring.rotated().unwrap();
        assert!(memory(dir.path()).check_keys(&replaced, &[], "it").unwrap());
    }

    #[test]
    fn a_repository_that_is_gone_or_another_one_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        memory(dir.path()).check_new("it").unwrap();
        let meet = |id: &str, accepts| {
            memory(dir.path())
                .meet(id, MetKeys::Clear, accepts, "it")
                .unwrap()
        };
        assert_eq!(meet("a", NONE), Acquaintance::First);
        let gone = memory(dir.path()).check_new("it").unwrap_err();
        assert_eq!(gone.kind, ErrorKind::NotFound);
        assert_eq!(meet("b", NONE), Acquaintance::Stranger);
        assert_eq!(meet("b", ANY), Acquaintance::Known);
        for id in ["a", "b"] {
            assert_eq!(meet(id, NONE), Acquaintance::Known);
        }
    }

    #[test]
    fn a_damaged_memory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        memory(dir.path())
            .meet("a", MetKeys::Clear, NONE, "it")
            .unwrap();
        let file = memory(dir.path()).file.unwrap();
        std::fs::write(&file, "{").unwrap();
        let error = read_document::<MemoryDocument>(&file).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
    }
}
