//! Key files of a repository: their names, and the key of the repository in them, wrapped for one person or one host.

use super::Objects;
use fullbore_crypt::{Access, Author, KeyRing, UserRecipient, wrap_secret};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::KEYS,
};

pub(super) const SUFFIX: &str = ".age";
pub(super) const PUT_SUFFIX: &str = ".put.age";

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
    /// Returns the key of the object.
    pub(super) fn key(&self) -> String {
        key_of(&self.name, self.access)
    }

    /// Returns the key file that has this key in the storage.
    pub(super) fn of_key(key: &str) -> Option<Self> {
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

/// Returns the key of the key file of this name.
pub(super) fn key_of(name: &str, access: Access) -> String {
    let suffix = match access {
        Access::Read => SUFFIX,
        Access::Put => PUT_SUFFIX,
    };
    format!("{KEYS}/{name}{suffix}")
}

/// Returns the key files that are there, without their recipients.
pub(super) fn key_files(objects: &dyn Objects) -> Result<Vec<KeyFile>> {
    let listed = objects.list(KEYS)?.into_iter();
    Ok(listed
        .filter_map(|object| KeyFile::of_key(&object.key))
        .collect())
}

/// Returns the content of a key file for `recipient`.
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
