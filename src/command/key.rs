//! Lists and changes the keys of an encrypted repository.

use crate::{
    crypt::{Access, KeyOptions, KeyRing, UserRecipient, recipients_of_word},
    error::{Error, ErrorKind, Result},
    storage::{
        Location, Objects,
        access::{new_passphrase, opened_key, saved_key, stored_and_key},
        keys::{add_key, list_keys, remove_key, rotate_key},
        lost_keys::restore_keys,
    },
    text,
};
use serde_json::json;
use std::{ffi::OsString, io::Write};

/// The repository and what to do with its keys.
#[derive(Debug, Clone)]
pub struct KeyCommand {
    /// The repository.
    pub repository: OsString,
    /// The change.
    pub change: KeyChange,
}

/// Who uses a new key.
#[derive(Debug, Clone)]
pub enum NewRecipient {
    /// Whoever has the key of this recipient, or of the one in `@FILE`.
    Named(String),
    /// Whoever knows the passphrase that these options give.
    Passphrase(KeyOptions),
}

/// A change of keys.
#[derive(Debug, Clone)]
pub enum KeyChange {
    /// Prints the keys.
    List {
        /// Whether to print JSON.
        json: bool,
    },
    /// Adds a key.
    Add {
        /// Its name.
        name: String,
        /// Who uses it.
        recipient: NewRecipient,
        /// What it permits.
        access: Access,
    },
    /// Removes a key.
    Remove {
        /// Its name.
        name: String,
        /// What it permits, if two keys have the name.
        access: Option<Access>,
    },
    /// Writes the keys anew, from a copy of the repository's key.
    Restore {
        /// The name of the first key.
        name: String,
        /// Who uses it.
        recipient: NewRecipient,
    },
    /// Seals with a new key from now on.
    Rotate,
}

impl KeyCommand {
    /// Carries out the change, and prints what was done.
    ///
    /// # Errors
    /// As the functions of [`keys`](crate::storage::keys).
    pub fn run(&self, out: &mut dyn Write) -> Result<()> {
        let location = Location::parse(&self.repository)?;
        match &self.change {
            KeyChange::List { json } => list(&location, *json, out),
            KeyChange::Add {
                name,
                recipient,
                access,
            } => {
                let (stored, ring) = opened_key(&location)?;
                add_key(&*stored, &ring, name, &recipient.get()?, *access)?;
                text::line(out, &format!("key {name:?} was added"))
            }
            KeyChange::Remove { name, access } => {
                let (stored, ring) = opened_key(&location)?;
                let access = access_of(&*stored, name, *access)?;
                remove_key(&*stored, Some(&ring), name, access)?;
                text::line(out, &format!("key {name:?} was removed"))?;
                text::line(out, after_removal(access))
            }
            KeyChange::Restore { name, recipient } => {
                let (stored, ring) = saved_key(&location)?;
                restore_keys(&stored, &ring, name, &recipient.get()?)?;
                text::line(
                    out,
                    &format!("the keys were written anew, with key {name:?}"),
                )?;
                text::line(out, &fingerprint_line(&ring))
            }
            KeyChange::Rotate => {
                let (stored, ring) = opened_key(&location)?;
                rotate_key(&*stored, &ring, &|_| new_passphrase().map(Some))?;
                text::line(out, "later backups are sealed with a new key")
            }
        }
    }
}

impl NewRecipient {
    fn get(&self) -> Result<UserRecipient> {
        let text = match self {
            Self::Passphrase(options) => return Ok(options.new_passphrase()?.into()),
            Self::Named(text) => text,
        };
        let mut recipients = recipients_of_word(text)?;
        match (recipients.pop(), recipients.is_empty()) {
            (Some(recipient), true) => Ok(recipient),
            _ => Err(Error::new(
                ErrorKind::Usage,
                format!("cannot make one key for {text:?}"),
            )
            .because("the file has several public keys")
            .hint("make a key with a name of its own for each of them")),
        }
    }
}

/// Which of the keys of a name is meant.
fn access_of(stored: &dyn Objects, name: &str, wanted: Option<Access>) -> Result<Access> {
    let named = list_keys(stored, None)?
        .into_iter()
        .filter(|key| key.name == name);
    let found: Vec<_> = named.map(|key| key.access).collect();
    match (wanted, &found[..]) {
        (Some(access), _) | (None, &[access]) => Ok(access),
        (None, []) => Ok(Access::Read), // the removal says that there is none
        (None, _) => Err(Error::new(ErrorKind::Usage, format!("cannot tell which key {name:?} is meant"))
            .because("one of this name reads, and another one only adds backups")
            .hint("--put removes the one that only adds; afterwards the same command without it removes the other one")),
    }
}

fn after_removal(access: Access) -> &'static str {
    match access {
        Access::Read => {
            "its owner can read what was stored before; `fullbore key rotate` seals later backups with a new key"
        }
        Access::Put => {
            "it could read no backup; run `fullbore key rotate`, so that backups which its holder adds are not accepted"
        }
    }
}

fn fingerprint_line(ring: &KeyRing) -> String {
    format!("fingerprint of the keys: {}", ring.fingerprint())
}

fn list(location: &Location, as_json: bool, out: &mut dyn Write) -> Result<()> {
    let (stored, ring) = stored_and_key(location)?;
    for key in list_keys(&*stored, ring.as_ref())? {
        let access = match key.access {
            Access::Read => "read",
            Access::Put => "add",
        };
        let recipient = key.recipient.as_deref().unwrap_or("");
        if as_json {
            text::json(
                out,
                &json!({"type": "key", "name": key.name, "access": access, "recipient": key.recipient}),
            )?;
        } else {
            let line = format!("{:<20} {access:<5} {recipient}", key.name);
            text::line(out, line.trim_end())?;
        }
    }
    match (ring, as_json) {
        (None, _) => Ok(()),
        (Some(ring), false) => text::line(out, &fingerprint_line(&ring)),
        (Some(ring), true) => {
            let fingerprint = json!({"type": "keys", "fingerprint": ring.fingerprint()});
            text::json(out, &fingerprint)
        }
    }
}
