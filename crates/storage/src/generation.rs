//! The newest generation of the key of a repository, which says that the repository is encrypted: `keys/current.json`.

use super::{Objects, Version};
use fullbore_crypt::KeyRing;
use fullbore_format::{
    error::{Error, Result},
    seal::{open_sealed, seal},
};
use serde::{Deserialize, Serialize};

/// The newest generation.
pub(super) const CURRENT: &str = "keys/current.json";

/// What the proof of [`CURRENT`] is for.
const PURPOSE: &str = "fullbore current generation v1";

/// The newest generation, in the clear.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CurrentGeneration {
    generation: u32,
    recipient: String,
    /// Keyed BLAKE3 of both, which all keys of the repository can make and check.
    proof: String,
}

impl CurrentGeneration {
    /// Returns the newest generation of a ring.
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

    /// Checks that a ring is that of this repository, and as new as it. Messages call it `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if it is not.
    pub(super) fn check_ring(&self, ring: &KeyRing, name: &str) -> Result<()> {
        let damaged = |why: String| Error::corrupt(format!("{name} is damaged")).because(why);
        let newest = ring.newest().number();
        if newest < self.generation {
            return Err(damaged(format!(
                "it has generations up to {newest} of the repository's key, which is at {}: an old one was put in its place",
                self.generation
            ))
            .hint("if the storage is to be trusted, add this key again with another one: fullbore key add"));
        }
        let generation = ring.generation(self.generation, name)?;
        // Over both, so that a storage cannot put an old recipient beside a new number.
        let proof = ring.prove_as_any(
            PURPOSE,
            &[&self.generation.to_le_bytes(), self.recipient.as_bytes()],
        );
        let is_ours = generation.recipient().to_string() == self.recipient
            && blake3::Hash::from_hex(&self.proof).is_ok_and(|found| found == proof);
        if is_ours {
            Ok(())
        } else {
            Err(damaged(
                "it is the key of another repository, or keys/current.json was changed".to_owned(),
            ))
        }
    }
}

/// Returns the number of the newest generation of the key of a repository; `None` if it is clear.
///
/// # Errors
/// The storage's, and [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt).
pub fn current_generation(objects: &dyn Objects) -> Result<Option<u32>> {
    let current = CurrentGeneration::read(objects)?;
    Ok(current.map(|(current, _)| current.generation))
}

/// Returns whether a repository is encrypted.
///
/// # Errors
/// The storage's.
pub fn is_encrypted(objects: &dyn Objects) -> Result<bool> {
    Ok(objects.stat(CURRENT)?.is_some())
}
