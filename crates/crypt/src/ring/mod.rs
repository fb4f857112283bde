//! The key of a repository: its age identities, one for each generation, and two secrets.
//!
//! As text it is an age identity file, so that `age -d -i` takes it as it is; what age does not know stands in comments:
//!
//! ```text
//! # fullbore: the key of a repository, keep it secret
//! # fullbore-pseudonyms: <64 hexadecimal digits>
//! # fullbore-generation: 2 <64 hexadecimal digits> age1…
//! AGE-SECRET-KEY-1…
//! # fullbore-generation: 1 <64 hexadecimal digits> age1…
//! AGE-SECRET-KEY-1…
//! ```
//! The key of a host that only adds backups has no lines that begin with `AGE-SECRET-KEY-1`, and one more line, with its number:
//!
//! ```text
//! # fullbore-put-key: <16 hexadecimal digits>
//! ```
//! The secrets of its generations are its own: each is made of that of the people and of the number. So a put key proves what it sealed
//! itself, and nothing in the name of a person or of another put key; people can check all.

use super::{Author, Secret};
use age::{secrecy::ExposeSecret, x25519};
use fullbore_format::{
    error::{Error, ErrorKind, OtherKeys, Result},
    root_parts::PSEUDONYM,
};
use std::fmt;
use zeroize::Zeroizing;

const TITLE: &str = "# fullbore: the key of a repository, keep it secret\n";
const PSEUDONYMS: &str = "# fullbore-pseudonyms: ";
const PUT_KEY: &str = "# fullbore-put-key: ";
const GENERATION: &str = "# fullbore-generation: ";
const OURS: &str = "# fullbore-";
const IDENTITY: &str = "AGE-SECRET-KEY-1";

/// Bytes of a ring as text at most: some 250 bytes a generation.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// How the secret of a put key is made of that of the people.
const OF_PUT_KEY: &str = "fullbore proofs of a put key v1";
/// How the secret is made that all keys of a repository have, whatever they permit.
const OF_ALL_KEYS: &str = "fullbore proofs of all keys v1";

/// Permissions that a key gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Read and add backups.
    Read,
    /// Add backups only.
    Put,
}

/// One generation of the key of a repository. Rotation adds one.
#[derive(Clone)]
pub struct Generation {
    number: u32,
    recipient: x25519::Recipient,
    identity: Option<x25519::Identity>,
    proof_secret: Secret,
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Generation {}", self.number)
    }
}

impl Generation {
    fn random(number: u32) -> Result<Self> {
        let identity = x25519::Identity::generate();
        Ok(Self {
            number,
            recipient: identity.to_public(),
            identity: Some(identity),
            proof_secret: Secret::random()?,
        })
    }

    /// Its number, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The recipient that objects are sealed for.
    pub fn recipient(&self) -> &x25519::Recipient {
        &self.recipient
    }

    /// The identity that opens objects; absent in the key of a host that only adds backups.
    pub(super) fn identity(&self) -> Option<&x25519::Identity> {
        self.identity.as_ref()
    }

    /// The secret of the keyed hash that proves that the owner of this key wrote an object.
    pub(super) fn proof_secret(&self) -> &Secret {
        &self.proof_secret
    }

    /// A proof that the owner of this key wrote `parts`, for the given use.
    pub fn prove(&self, purpose: &str, parts: &[&[u8]]) -> blake3::Hash {
        prove(&self.proof_secret, purpose, parts)
    }

    /// The secret that people know of this put key.
    fn secret_of_put_key(&self, author: Author) -> Secret {
        self.proof_secret.derived(OF_PUT_KEY, &author.bytes())
    }
}

fn prove(secret: &Secret, purpose: &str, parts: &[&[u8]]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(secret.expose());
    for part in [purpose.as_bytes()].iter().chain(parts) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize()
}

#[derive(Clone)]
pub struct KeyRing {
    /// The newest first.
    generations: Vec<Generation>,
    pseudonym_secret: Secret,
    author: Author,
    may_seal: bool,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing")
            .field("access", &self.access())
            .field("generations", &self.generations)
            .finish()
    }
}

/// The error for a key that adds backups and cannot read.
pub fn only_adds(name: &str) -> Error {
    Error::new(ErrorKind::Permission, format!("cannot read {name}"))
        .because("the key that was given can add backups and cannot read them")
        .hint("give the key of a person who may read this repository (--key FILE)")
}

impl KeyRing {
    /// The key of a new repository.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the system has no random bytes.
    pub fn random() -> Result<Self> {
        Ok(Self {
            generations: vec![Generation::random(1)?],
            pseudonym_secret: Secret::random()?,
            author: Author::PERSON,
            may_seal: true,
        })
    }

    /// The same key with a new generation, for everything that is sealed from now on.
    ///
    /// # Errors
    /// As [`KeyRing::random`]; [`ErrorKind::Permission`] if this key cannot read.
    pub fn rotated(&self) -> Result<Self> {
        self.rotated_above(self.newest().number)
    }

    /// The same, with a number above all these: a rotation that was cut has used some, and whoever has a key of it keeps what it sealed.
    ///
    /// # Errors
    /// As [`KeyRing::rotated`].
    pub fn rotated_above(&self, used: u32) -> Result<Self> {
        if self.access() == Access::Put {
            return Err(only_adds("the key of the repository"));
        }
        let mut ring = self.clone();
        let number = self.newest().number.max(used).saturating_add(1);
        ring.generations.insert(0, Generation::random(number)?);
        ring.may_seal = true;
        Ok(ring)
    }

    /// The same key, which seals nothing: a rotation was interrupted, and its generation may not be used.
    #[must_use]
    pub fn for_reading_only(mut self) -> Self {
        self.may_seal = false;
        self
    }

    /// The generation that seals something named `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] after [`KeyRing::for_reading_only`].
    pub fn sealing_generation(&self, name: &str) -> Result<&Generation> {
        if self.may_seal {
            return Ok(self.newest());
        }
        Err(Error::new(ErrorKind::Permission, format!("cannot write {name}"))
            .because("a rotation of the repository's key is under way or was interrupted, or an old keys/current.json was put back")
            .hint("run `fullbore key rotate`, and the same command again"))
    }

    /// The key of a person as that of a host that only adds backups, as `author`.
    #[must_use]
    pub fn for_putting(&self, author: Author) -> Self {
        let mut ring = self.clone();
        ring.author = author;
        for generation in &mut ring.generations {
            generation.identity = None;
            generation.proof_secret = generation.secret_of_put_key(author);
        }
        ring
    }

    pub fn author(&self) -> Author {
        self.author
    }

    /// The secret with which `author` proves things that are named `name`. A put key knows its own only, and gets `None` for others.
    ///
    /// # Errors
    /// As [`KeyRing::generation`].
    pub(super) fn secret_of(
        &self,
        author: Author,
        number: u32,
        name: &str,
    ) -> Result<Option<Secret>> {
        let generation = self.generation(number, name)?;
        Ok(if author == self.author {
            Some(generation.proof_secret.clone())
        } else if self.author.is_person() {
            Some(generation.secret_of_put_key(author))
        } else {
            None
        })
    }

    /// The proof that `author` makes of `parts`, which are named `name`. A put key makes its own only, and gets `None` for others.
    ///
    /// # Errors
    /// As [`KeyRing::generation`].
    pub fn proof_of(
        &self,
        author: Author,
        number: u32,
        (purpose, parts): (&str, &[&[u8]]),
        name: &str,
    ) -> Result<Option<blake3::Hash>> {
        let secret = self.secret_of(author, number, name)?;
        Ok(secret.map(|secret| prove(&secret, purpose, parts)))
    }

    /// A proof that somebody made who has any key of this repository.
    pub fn prove_as_any(&self, purpose: &str, parts: &[&[u8]]) -> blake3::Hash {
        prove(
            &self.pseudonym_secret.derived(OF_ALL_KEYS, b""),
            purpose,
            parts,
        )
    }

    /// Permissions that the key gives.
    pub fn access(&self) -> Access {
        if self
            .generations
            .iter()
            .all(|generation| generation.identity.is_some())
        {
            Access::Read
        } else {
            Access::Put
        }
    }

    pub fn newest(&self) -> &Generation {
        // `parse`, `random` and `rotated` make no ring without one.
        &self.generations[0]
    }

    /// A generation of which something is named `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if the ring does not have it.
    pub fn generation(&self, number: u32, name: &str) -> Result<&Generation> {
        let found = self
            .generations
            .iter()
            .find(|generation| generation.number == number);
        found.ok_or_else(|| {
            let newest = self.newest().number;
            let message = format!("cannot check {name}");
            Error::new(ErrorKind::Permission, message)
                .because(OtherKeys(format!(
                    "it says that generation {number} of the repository's key has sealed it, and the key that was given has \
                     generations up to {newest}"
                )))
                .hint("if the key was rotated meanwhile, run the command again; if not, the object was changed")
        })
    }

    /// The pseudonym of a source in the clear head of a root: equal for equal sources, and says nothing else about them.
    pub fn pseudonym(&self, source: &[u8]) -> String {
        let key = blake3::derive_key(
            "fullbore pseudonym of a source",
            self.pseudonym_secret.expose(),
        );
        let hash = blake3::keyed_hash(&Zeroizing::new(key), source);
        format!("{PSEUDONYM}{}", &hash.to_hex()[..16])
    }

    /// The secret with which names of archived WAL are made: the same for all key holders, also after a rotation.
    pub fn wal_name_secret(&self) -> Zeroizing<[u8; 32]> {
        let context = "fullbore names of archived WAL";
        Zeroizing::new(blake3::derive_key(context, self.pseudonym_secret.expose()))
    }

    /// Identifies the keys of a repository, in groups of four hexadecimal digits. It stays the same when the key is rotated, and is no
    /// secret. Of 128 bits: no second set of keys with the same one can be made.
    pub fn fingerprint(&self) -> String {
        let context = "fullbore fingerprint of the keys of a repository";
        let hash = blake3::derive_key(context, self.pseudonym_secret.expose());
        let groups = hash[..16]
            .chunks(2)
            .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
        groups.collect::<Vec<_>>().join("-")
    }

    /// Returns whether these bytes are meant to be the text of a ring.
    pub fn is_text(bytes: &[u8]) -> bool {
        bytes.starts_with(TITLE.as_bytes())
    }

    /// Returns whether these bytes are the text of a ring that opens nothing, of a host that only adds backups.
    pub(super) fn is_text_without_identity(bytes: &[u8]) -> bool {
        let has_identity = || {
            bytes
                .split(|byte| *byte == b'\n')
                .any(|line| line.starts_with(IDENTITY.as_bytes()))
        };
        Self::is_text(bytes) && !has_identity()
    }

    pub fn to_text(&self) -> Zeroizing<String> {
        // With room from the start: a string that grows leaves copies behind.
        let mut text = Zeroizing::new(String::with_capacity(300 * (self.generations.len() + 1)));
        text.push_str(TITLE);
        text.push_str(PSEUDONYMS);
        text.push_str(&self.pseudonym_secret.to_hex());
        text.push('\n');
        if !self.author.is_person() {
            text.push_str(&format!("{PUT_KEY}{}\n", self.author));
        }
        for generation in &self.generations {
            text.push_str(GENERATION);
            text.push_str(&format!("{} ", generation.number));
            text.push_str(&generation.proof_secret.to_hex());
            text.push_str(&format!(" {}\n", generation.recipient));
            if let Some(identity) = &generation.identity {
                text.push_str(identity.to_string().expose_secret());
                text.push('\n');
            }
        }
        text
    }

    /// Reads the text of a ring; messages call it `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is none, [`ErrorKind::Unsupported`] if it has a line of a newer program.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(damaged_ring(name));
        }
        let mut pseudonym_secret = None;
        let mut author = Author::PERSON;
        let mut generations: Vec<Generation> = Vec::new();
        for line in text.lines() {
            if let Some(hex) = line.strip_prefix(PSEUDONYMS) {
                pseudonym_secret = Some(Secret::from_hex(hex).ok_or_else(|| damaged_ring(name))?);
            } else if let Some(digits) = line.strip_prefix(PUT_KEY) {
                author = Author::parse(digits).ok_or_else(|| damaged_ring(name))?;
            } else if let Some(words) = line.strip_prefix(GENERATION) {
                generations.push(parse_generation(words).ok_or_else(|| damaged_ring(name))?);
            } else if line.starts_with(IDENTITY) {
                let generation = generations.last_mut().ok_or_else(|| damaged_ring(name))?;
                let identity: x25519::Identity = line.parse().map_err(|_| damaged_ring(name))?;
                // A line that was moved to another generation would seal for one key and open with
                // another.
                let is_of_it = identity.to_public().to_string() == generation.recipient.to_string();
                if !is_of_it || generation.identity.is_some() {
                    return Err(damaged_ring(name));
                }
                generation.identity = Some(identity);
            } else if line.starts_with(OURS) {
                let message = format!("cannot read {name}: it was written by a newer program");
                return Err(
                    Error::new(ErrorKind::Unsupported, message).hint("use a newer fullbore")
                );
            } else if !line.starts_with('#') && !line.is_empty() {
                return Err(damaged_ring(name));
            }
        }
        let is_newest_first = generations.is_sorted_by(|a, b| a.number > b.number);
        let readable = generations
            .iter()
            .filter(|generation| generation.identity.is_some())
            .count();
        // People hold all identities, hosts that only add backups hold none: a mixture is a file
        // that was cut or joined.
        let is_whole = match author.is_person() {
            true => readable == generations.len(),
            false => readable == 0,
        };
        match pseudonym_secret {
            Some(pseudonym_secret) if !generations.is_empty() && is_newest_first && is_whole => {
                Ok(Self {
                    generations,
                    pseudonym_secret,
                    author,
                    may_seal: true,
                })
            }
            _ => Err(damaged_ring(name)),
        }
    }
}

fn damaged_ring(name: &str) -> Error {
    Error::corrupt(format!("{name} is damaged"))
        .because("its content is not the key of a repository")
}

/// Reads a fingerprint as [`KeyRing::fingerprint`] writes it; capital letters, and digits without groups, are the same.
pub fn parse_fingerprint(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|c| !"-: ".contains(*c)).collect();
    let is_whole = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digits = digits.to_ascii_lowercase();
    let groups = (0..32)
        .step_by(4)
        .filter_map(|start| digits.get(start..start + 4));
    is_whole.then(|| groups.collect::<Vec<_>>().join("-"))
}

/// Number, secret and recipient of a generation.
fn parse_generation(words: &str) -> Option<Generation> {
    let (number, rest) = words.split_once(' ')?;
    let (secret, recipient) = rest.split_once(' ')?;
    Some(Generation {
        number: number.parse().ok().filter(|number| *number > 0)?,
        recipient: recipient.parse().ok()?,
        identity: None,
        proof_secret: Secret::from_hex(secret)?,
    })
}

#[cfg(test)]
mod tests;
