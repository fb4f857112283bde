//! Annotations of a backup that are made after the backup: other tags, and a pin.
//!
//! A root never changes, because it carries its own seal and other processes may be reading it.
//! Annotations are a small sealed object beside the root, and are replaced as a whole: if two
//! processes write at the same time, the later write wins.
//!
//! In an encrypted repository the annotations that a person makes have a proof of the key. Hosts that only prune have no key, and may
//! still tag and pin: what they set stands beside, without a proof, and takes nothing away. Whoever reads with a key gets the proven tags,
//! and a backup is pinned if either part says so.

use super::roots::key;
use fullbore_crypt::{Access, Author, KeyRing};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{NOTES, ROOT},
    root::{FORMAT, Root},
    seal::{open_sealed, seal},
};
use fullbore_storage::{Objects, PutIf};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the proof of annotations is for.
const PURPOSE: &str = "fullbore notes v1";

/// Tags and the pin of a backup, as given after it was made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Annotations {
    /// Tags in place of those of the root.
    pub tags: Option<BTreeMap<String, String>>,
    /// Whether the backup must never be forgotten.
    pub pinned: bool,
    /// What somebody set without a key, in an encrypted repository that was opened with one.
    pub without_key: Option<KeylessNotes>,
}

/// Annotations that anyone may have made who can write to the storage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeylessNotes {
    /// Tags, which do not count.
    pub tags: Option<BTreeMap<String, String>>,
    /// A pin, which counts.
    pub pinned: bool,
}

/// The document `notes.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct StoredNotes {
    format: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tags: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pinned: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    proven: Option<ProvenNotes>,
}

/// The part that a person made with a key.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ProvenNotes {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tags: Option<BTreeMap<String, String>>,
    pinned: bool,
    generation: u32,
    /// Keyed BLAKE3 of the backup and of the other members.
    proof: String,
}

impl ProvenNotes {
    fn new(notes: &Annotations, id: &str, ring: &KeyRing, name: &str) -> Result<Self> {
        let mut proven = Self {
            tags: notes.tags.clone(),
            pinned: notes.pinned,
            generation: ring.sealing_generation(name)?.number(),
            proof: String::new(),
        };
        let proof = proven.proof_of(id, ring, name)?;
        proven.proof = proof.map(|proof| proof.to_string()).unwrap_or_default();
        Ok(proven)
    }

    fn proof_of(&self, id: &str, ring: &KeyRing, name: &str) -> Result<Option<blake3::Hash>> {
        let content = serde_json::json!([id, self.tags, self.pinned]).to_string();
        let parts: &[&[u8]] = &[content.as_bytes()];
        ring.proof_of(Author::PERSON, self.generation, (PURPOSE, parts), name)
    }

    fn check(&self, id: &str, ring: &KeyRing, name: &str) -> Result<()> {
        let proof = self.proof_of(id, ring, name)?;
        match blake3::Hash::from_hex(&self.proof) {
            Ok(found) if Some(found) == proof => Ok(()),
            _ => Err(Error::corrupt(format!("{name} is damaged"))
                .because("no person who reads this repository has made it: it was changed")),
        }
    }
}

/// The key that reads, if the repository is encrypted and one was given.
fn reading_ring(objects: &dyn Objects) -> Option<&KeyRing> {
    let ring = objects.as_sealed()?.ring()?;
    (ring.access() == Access::Read).then_some(ring)
}

impl StoredNotes {
    fn read(objects: &dyn Objects, id: &str) -> Result<Option<Self>> {
        let key = key(id, NOTES);
        let Some((bytes, _)) = objects.get(&key)? else {
            return Ok(None);
        };
        let notes: Self = open_sealed(&bytes, &format!("{key:?}"))?;
        if notes.format > FORMAT {
            let message = format!(
                "cannot read {key:?}: it has format {}, this program knows {FORMAT}",
                notes.format
            );
            return Err(Error::new(ErrorKind::Unsupported, message).hint("use a newer fullbore"));
        }
        let name = format!("{key:?}");
        if let (Some(proven), Some(ring)) = (&notes.proven, reading_ring(objects)) {
            proven.check(id, ring, &name)?;
        }
        Ok(Some(notes))
    }

    /// The document with other notes: proven with a key that reads; without one they stand beside the proven part.
    fn with(self, notes: &Annotations, objects: &dyn Objects, id: &str) -> Result<Self> {
        if let Some(ring) = reading_ring(objects) {
            return Ok(Self {
                format: FORMAT,
                proven: Some(ProvenNotes::new(
                    notes,
                    id,
                    ring,
                    &format!("{:?}", key(id, NOTES)),
                )?),
                ..Self::default()
            });
        }
        if self.proven.as_ref().is_some_and(|proven| proven.pinned) && !notes.pinned {
            return Err(Error::new(ErrorKind::Permission, format!("cannot unpin backup {id:?}"))
                .because("it was pinned with a key of the repository, and no key was given that reads it")
                .hint("give a key of a person: --key FILE"));
        }
        Ok(Self {
            format: FORMAT,
            tags: notes.tags.clone(),
            pinned: notes.pinned,
            proven: self.proven,
        })
    }

    /// Says nothing, neither with a key nor without.
    fn is_empty(&self) -> bool {
        self.tags.is_none()
            && !self.pinned
            && self
                .proven
                .as_ref()
                .is_none_or(|proven| proven.tags.is_none() && !proven.pinned)
    }

    /// Notes that say nothing are deleted, so that a backup can be unpinned, and then forgotten, on a full disk.
    fn store(&self, objects: &dyn Objects, key: &str) -> Result<()> {
        if self.is_empty() {
            return objects.delete(&[key.to_owned()]);
        }
        objects.put(key, &seal(self)?, &PutIf::Always).map(drop)
    }

    fn into_annotations(self, objects: &dyn Objects) -> Annotations {
        let is_pinned = self.pinned || self.proven.as_ref().is_some_and(|proven| proven.pinned);
        let proven_tags = self.proven.and_then(|proven| proven.tags);
        if reading_ring(objects).is_none() {
            return Annotations {
                tags: self.tags.or(proven_tags),
                pinned: is_pinned,
                without_key: None,
            };
        }
        let has_keyless = self.pinned || self.tags.is_some();
        Annotations {
            tags: proven_tags,
            pinned: is_pinned,
            without_key: has_keyless.then_some(KeylessNotes {
                tags: self.tags,
                pinned: self.pinned,
            }),
        }
    }
}

impl Annotations {
    /// Returns the annotations of backup `id`, which are empty if there is no such object.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`], also if the proof is wrong, [`ErrorKind::Unsupported`] or the system's.
    pub fn read(objects: &dyn Objects, id: &str) -> Result<Self> {
        let hint = "remove it; then `fullbore tag`, `pin` or `unpin` writes a new one";
        let stored = StoredNotes::read(objects, id).map_err(|error| match error.kind {
            ErrorKind::Corrupt => error.hint(hint),
            _ => error,
        })?;
        Ok(stored.map_or_else(Self::default, |notes| notes.into_annotations(objects)))
    }

    /// Replaces the annotations of a backup. Without a key that reads, those that a person proved stay beside.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the backup is not listed, or was forgotten meanwhile; [`ErrorKind::Permission`] if a person pinned it, and
    /// it would be unpinned without a key; or an error of the system.
    pub fn write(&self, objects: &dyn Objects, id: &str) -> Result<()> {
        if is_listed(objects, id)? {
            let is_keyless = objects.as_sealed().is_some() && reading_ring(objects).is_none();
            let previous = match is_keyless.then(|| StoredNotes::read(objects, id)) {
                None => StoredNotes::default(),
                // Nothing is left of damaged ones, and repair pins the backup.
                Some(Err(error)) if error.kind == ErrorKind::Corrupt => StoredNotes::default(),
                Some(notes) => notes?.unwrap_or_default(),
            };
            let notes = previous.with(self, objects, id)?;
            notes.store(objects, &key(id, NOTES))?;
        }
        match is_listed(objects, id)? {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::NotFound,
                format!("could not find backup {id:?} in {}", objects.describe("")),
            )),
        }
    }

    /// Replaces the tags of the root with those of the annotations.
    pub fn apply(&self, root: &mut Root) {
        if let Some(tags) = &self.tags {
            root.tags.clone_from(tags);
        }
    }

    /// Says in words what was set without a key.
    pub fn keyless_line(&self) -> Option<String> {
        let keyless = self.without_key.as_ref()?;
        let tags = keyless.tags.iter().flatten();
        // Anyone may have written them: no byte of them reaches a terminal as it is.
        let mut words: Vec<String> = tags
            .map(|(key, value)| format!("{:?}", format!("{key}={value}")))
            .collect();
        words.extend(keyless.pinned.then(|| "pinned".to_owned()));
        Some(format!(
            "{} (tags without a key do not count)",
            words.join(", ")
        ))
    }
}

fn is_listed(objects: &dyn Objects, id: &str) -> Result<bool> {
    objects.stat(&key(id, ROOT)).map(|bytes| bytes.is_some())
}
