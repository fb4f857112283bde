//! Lists and changes the keys of an encrypted repository.

use crate::{
    crypt::{Access, KeyOptions, UserRecipient},
    error::Result,
    storage::{
        Location,
        access::{new_passphrase, opened_key, stored_and_key},
        keys::{add_key, list_keys, remove_key, rotate_key},
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
    /// Whoever has the key of this recipient.
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
        /// What it permits.
        access: Access,
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
                let recipient = match recipient {
                    NewRecipient::Named(text) => UserRecipient::parse(text)?,
                    NewRecipient::Passphrase(options) => options.new_passphrase()?.into(),
                };
                add_key(&*stored, &ring, name, &recipient, *access)?;
                text::line(out, &format!("key {name:?} was added"))
            }
            KeyChange::Remove { name, access } => {
                let (stored, ring) = opened_key(&location)?;
                remove_key(&*stored, Some(&ring), name, *access)?;
                text::line(out, &format!("key {name:?} was removed"))?;
                text::line(
                    out,
                    "its owner can read what was stored before; `fullbore key rotate` seals later backups with a new key",
                )
            }
            KeyChange::Rotate => {
                let (stored, ring) = opened_key(&location)?;
                rotate_key(&*stored, &ring, &|_| new_passphrase().map(Some))?;
                text::line(out, "later backups are sealed with a new key")
            }
        }
    }
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
    Ok(())
}
