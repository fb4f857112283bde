//! The stored form of the memory of verifications: the sealed document `verify.json`.
//!
//! In an encrypted repository it has two parts, as annotations have. What a person's key writes is proved, by the secret of people and by
//! that of each put key in the list of members, all of the newest generation. So people and put keys know that a person of today wrote it,
//! and no put key can write what others take for that of a person. Hosts that verify without a key write the other part, which counts for
//! those without a key only. Of it those with a key are told the damaged backups, until a check with a key has looked at them.

use super::verify_memory::{MAX_PARTS, VerifyMemory};
use fullbore_crypt::{Access, Author, KeyRing};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::COVERED,
    root::FORMAT,
    seal::{open_counted, seal},
};
use fullbore_storage::{Objects, Put, PutIf, as_stored, members::read_members};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What the proof of the memory is for.
const PURPOSE: &str = "fullbore memory of verifications v1";

/// Elements of the document: a run of parts has three, and a segment a few more.
const MAX_ELEMENTS: usize = 4 * MAX_PARTS as usize;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct StoredMemory {
    format: u32,
    /// What was found without a key, or in a clear repository.
    #[serde(default, skip_serializing_if = "MemoryTable::is_empty")]
    found: MemoryTable,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    proven: Option<ProvenMemory>,
}

/// Results of checks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemoryTable {
    #[serde(default)]
    pub(super) segments: Vec<SegmentRow>,
    /// Damaged backups, and the number of files that each of them lost.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) losses: BTreeMap<String, u64>,
}

/// Results for the parts of one segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentRow {
    pub(super) backup: String,
    pub(super) stream: u32,
    pub(super) number: u32,
    /// Numbers of consecutive parts, and when they were checked.
    pub(super) runs: Vec<(u64, u64)>,
}

/// The part that a person's key wrote.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ProvenMemory {
    found: MemoryTable,
    generation: u32,
    /// A keyed BLAKE3 for people, and one for each put key, by the numbers of their authors.
    proofs: BTreeMap<Author, String>,
}

impl MemoryTable {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The bytes that are proved.
    fn digest(&self) -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        serde_json::to_writer(&mut hasher, self)
            .map_err(|error| Error::new(ErrorKind::Bug, "cannot write JSON").because(error))?;
        Ok(hasher.finalize())
    }
}

impl ProvenMemory {
    fn new(found: MemoryTable, ring: &KeyRing, authors: &BTreeSet<Author>) -> Result<Self> {
        let generation = ring.sealing_generation(COVERED)?.number();
        let digest = found.digest()?;
        let mut proofs = BTreeMap::new();
        for author in authors {
            let proof = proof_of(*author, generation, &digest, ring)?;
            proofs.extend(proof.map(|proof| (*author, proof.to_string())));
        }
        Ok(Self {
            found,
            generation,
            proofs,
        })
    }

    /// Has a person of the newest generation written this, as far as the owner of `ring` can tell?
    fn is_proved(&self, ring: &KeyRing) -> Result<bool> {
        if self.generation != ring.newest().number() {
            return Ok(false);
        }
        let proof = proof_of(ring.author(), self.generation, &self.found.digest()?, ring)?;
        let written = self.proofs.get(&ring.author());
        let written = written.and_then(|text| blake3::Hash::from_hex(text).ok());
        Ok(written.is_some() && written == proof)
    }
}

fn proof_of(
    author: Author,
    generation: u32,
    digest: &blake3::Hash,
    ring: &KeyRing,
) -> Result<Option<blake3::Hash>> {
    let parts: &[&[u8]] = &[digest.as_bytes()];
    ring.proof_of(author, generation, (PURPOSE, parts), COVERED)
}

/// Who reads or writes the memory.
enum MemoryUser<'a> {
    /// Somebody in a clear repository.
    Clear,
    /// Somebody in an encrypted repository, without a key.
    Locked,
    /// A person or a put key.
    Keyed(&'a KeyRing),
}

fn user_of(objects: &dyn Objects) -> MemoryUser<'_> {
    match objects.as_sealed().map(|sealed| sealed.ring()) {
        None => MemoryUser::Clear,
        Some(None) => MemoryUser::Locked,
        Some(Some(ring)) => MemoryUser::Keyed(ring),
    }
}

fn cannot_prove(name: &str) -> Error {
    Error::new(ErrorKind::Permission, format!("cannot write {name}"))
        .because("the key that was given can add backups only, and what it says of others' backups would not count")
        .hint("run the same command with the key of a person, or without a key")
}

/// People, and the put keys in the list of members.
fn checkers(objects: &dyn Objects, ring: &KeyRing) -> Result<BTreeSet<Author>> {
    let (members, _) = read_members(as_stored(objects), ring)?;
    let of_files = members.files.values().map(|file| file.author);
    Ok(of_files.chain([Author::PERSON]).collect())
}

impl StoredMemory {
    /// The document; `None` if there is none that can be read.
    pub(super) fn read(objects: &dyn Objects) -> Option<Self> {
        let (bytes, _) = objects.get(COVERED).ok().flatten()?;
        let stored: Self = open_counted(&bytes, COVERED, MAX_ELEMENTS).ok()?;
        (stored.format == FORMAT).then_some(stored)
    }

    /// What counts of it for whoever opened these objects.
    pub(super) fn memory(self, objects: &dyn Objects) -> VerifyMemory {
        let found = VerifyMemory::of_table;
        match user_of(objects) {
            MemoryUser::Clear => found(self.found),
            MemoryUser::Locked => {
                let proven = self.proven.map(|proven| found(proven.found));
                let mut memory = proven.unwrap_or_default();
                memory.overlay(found(self.found));
                memory
            }
            MemoryUser::Keyed(ring) => {
                let proven = self
                    .proven
                    .filter(|proven| proven.is_proved(ring).unwrap_or(false));
                let memory =
                    proven.map_or_else(VerifyMemory::default, |proven| found(proven.found));
                memory.with_unproven(self.found.losses.into_keys())
            }
        }
    }

    /// The document with this memory.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] with a put key; those of reading the list of members.
    pub(super) fn of(memory: &VerifyMemory, objects: &dyn Objects) -> Result<Self> {
        let found = memory.table();
        let (found, proven) = match user_of(objects) {
            MemoryUser::Clear => (found, None),
            MemoryUser::Locked => (found, Self::read(objects).and_then(|stored| stored.proven)),
            MemoryUser::Keyed(ring) if ring.access() == Access::Put => {
                return Err(cannot_prove(&objects.describe(COVERED)));
            }
            MemoryUser::Keyed(ring) => {
                let proven = ProvenMemory::new(found, ring, &checkers(objects, ring)?)?;
                // What was found without a key is told until a key has checked it.
                let unproven = memory.unproven().map(|id| (id.clone(), 0));
                let found = MemoryTable {
                    losses: unproven.collect(),
                    ..MemoryTable::default()
                };
                (found, Some(proven))
            }
        };
        Ok(Self {
            format: FORMAT,
            found,
            proven,
        })
    }

    /// # Errors
    /// The storage's.
    pub(super) fn write(&self, objects: &dyn Objects) -> Result<()> {
        self.put(objects, &PutIf::Always).map(drop)
    }

    /// Returns whether the condition held.
    ///
    /// # Errors
    /// The storage's.
    pub(super) fn put(&self, objects: &dyn Objects, when: &PutIf) -> Result<bool> {
        let put = objects.put(COVERED, &seal(self)?, when)?;
        Ok(put != Put::Refused)
    }
}

/// Returns why the memory of verifications does not count, if somebody changed it who has no key of a person.
pub fn forged_memory(objects: &dyn Objects) -> Option<String> {
    let MemoryUser::Keyed(ring) = user_of(objects) else {
        return None;
    };
    let proven = StoredMemory::read(objects)?.proven?;
    // A put key that was added later has no proof in it.
    let has_proof = proven.proofs.contains_key(&ring.author());
    let is_newest = proven.generation == ring.newest().number();
    let is_forged = has_proof && is_newest && !proven.is_proved(ring).unwrap_or(false);
    is_forged.then(|| {
        format!(
            "{} was changed without a key of a person: what it says does not count",
            objects.describe(COVERED)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify_memory::{DAMAGED, carry_memory};
    use fullbore_crypt::UserRecipient;
    use fullbore_format::page::SegmentId;
    use fullbore_storage::{
        MemoryObjects, SealedObjects,
        keys::{add_key, encrypt_repository, rotate_key},
    };
    use std::sync::Arc;

    fn recipient() -> UserRecipient {
        UserRecipient::Native(KeyRing::random().unwrap().newest().recipient().clone())
    }

    /// An encrypted repository with a put key, its key, and that of the put key.
    fn repository() -> (Arc<dyn Objects>, KeyRing, KeyRing) {
        let stored: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
        let ring = encrypt_repository(&*stored, "me", &recipient()).unwrap();
        add_key(&*stored, &ring, "host", &recipient(), Access::Put).unwrap();
        let authors = checkers(&*stored, &ring).unwrap();
        let host = ring.for_putting(*authors.last().unwrap());
        (stored, ring, host)
    }

    fn with(stored: &Arc<dyn Objects>, ring: &KeyRing) -> SealedObjects {
        SealedObjects::new(stored.clone(), Arc::new(ring.clone()))
    }

    fn memory(part: u64, losses: u64) -> VerifyMemory {
        let segment = SegmentId {
            backup: "b".into(),
            stream: 1,
            number: 1,
        };
        let mut memory = VerifyMemory::default();
        memory.note(&segment, part, DAMAGED);
        memory.note_loss("b", losses);
        memory
    }

    /// The document as somebody writes it who has a key, but not that of a person: a proof in its own name and in those of others.
    fn forge(stored: &Arc<dyn Objects>, ring: &KeyRing, generation: u32) {
        let mut document = StoredMemory::read(&**stored).unwrap();
        let mut proven = document.proven.take().unwrap();
        proven.found = memory(7, 70).table();
        proven.generation = generation;
        let newest_number = ring.newest().number();
        let proof = proof_of(
            ring.author(),
            newest_number,
            &proven.found.digest().unwrap(),
            ring,
        );
        let proof = proof.unwrap().unwrap().to_string();
        proven.proofs.insert(ring.author(), proof.clone());
        proven.proofs.insert(Author::PERSON, proof);
        document.proven = Some(proven);
        document.write(&**stored).unwrap();
    }

    #[test]
    fn only_a_person_writes_what_people_and_other_put_keys_believe() {
        let (stored, me, host) = repository();
        add_key(&*stored, &me, "web2", &recipient(), Access::Put).unwrap();
        let others = checkers(&*stored, &me).unwrap();
        let other = others
            .into_iter()
            .find(|author| !author.is_person() && *author != host.author());
        let other = me.for_putting(other.unwrap());
        let genuine = memory(1, 2);
        genuine.write(&with(&stored, &me)).unwrap();
        let later = me.for_putting(fullbore_crypt::random_author().unwrap());
        for (ring, expected) in [
            (&me, genuine.clone()),
            (&host, genuine.clone()),
            (&other, genuine.clone()),
            (&later, VerifyMemory::default()),
        ] {
            assert_eq!(VerifyMemory::read(&with(&stored, ring)), expected);
            assert_eq!(forged_memory(&with(&stored, ring)), None);
        }
        let refused = memory(7, 70).write(&with(&stored, &host)).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Permission);
        forge(&stored, &host, 1);
        for ring in [&me, &other] {
            assert_eq!(
                VerifyMemory::read(&with(&stored, ring)),
                VerifyMemory::default()
            );
            let said = forged_memory(&with(&stored, ring)).unwrap();
            assert!(said.contains("does not count"), "{said}");
        }
    }

    #[test]
    fn without_a_key_results_stand_beside_and_count_for_others_without_a_key() {
        let (stored, me, host) = repository();
        let (genuine, keyless) = (memory(1, 2), memory(3, 4));
        genuine.write(&with(&stored, &me)).unwrap();
        let locked = SealedObjects::locked(stored.clone());
        assert_eq!(VerifyMemory::read(&locked), genuine);
        keyless.write(&locked).unwrap();
        for ring in [&me, &host] {
            assert_eq!(VerifyMemory::read(&with(&stored, ring)), genuine);
        }
        let mut both = genuine.clone();
        both.overlay(keyless);
        assert_eq!(VerifyMemory::read(&locked), both);
        assert_eq!(both.loss("b"), Some(4));
        assert_eq!(both.damaged_parts().next().unwrap().1, [1, 3]);
        // What a person writes replaces both.
        genuine.write(&with(&stored, &me)).unwrap();
        assert_eq!(VerifyMemory::read(&locked), genuine);
    }

    #[test]
    fn a_rotation_carries_it_on_and_a_removed_person_writes_none() {
        let (stored, before, host) = repository();
        memory(1, 2).write(&with(&stored, &before)).unwrap();
        let after = rotate_key(&*stored, &before, &|_| Ok(None)).unwrap();
        assert_eq!(
            VerifyMemory::read(&with(&stored, &after)),
            VerifyMemory::default()
        );
        carry_memory(&with(&stored, &before), &with(&stored, &after)).unwrap();
        let host = after.for_putting(host.author());
        for ring in [&after, &host] {
            assert_eq!(VerifyMemory::read(&with(&stored, ring)), memory(1, 2));
        }
        for generation in [1, 2] {
            forge(&stored, &before, generation);
            for ring in [&after, &host] {
                let read = VerifyMemory::read(&with(&stored, ring));
                assert_ne!(read.loss("b"), Some(70), "generation {generation}");
            }
        }
    }
}
